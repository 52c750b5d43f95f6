//! Roots that lack what a loader goes by: no cache, no name for musl's path file. The report says what is missing and what
//! it would change; the judges are the real ldconfig and the real musl.
//!
//! `LDAUDIT_REQUIRE=root,musl` makes the absence of root's rights (for `ldconfig -r`) and of musl failures.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::require;
use bstr::ByteSlice;
use ldaudit::fixture::place::Thing;
use ldaudit::fixture::{Fixture, Loader};
use serde_json::Value;

/// A directory that is removed in the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let dir = std::env::temp_dir().join(format!("ldaudit-roots-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).expect("a scratch directory");
        Scratch(fs::canonicalize(dir).expect("a scratch directory"))
    }

    /// Puts the files of a fixture below a directory; `only` those whose path begins so.
    fn place(&self, below: &Path, text: &str, loader: Loader, only: &str) {
        let fixture = Fixture::parse(text.as_bytes()).unwrap_or_else(|p| panic!("{p:?}"));
        for placed in fixture.files(loader).expect("a box") {
            let Some(path) = placed.path.strip_prefix(b"/").filter(|_| placed.path.starts_with(only.as_bytes())) else {
                continue;
            };
            let path = below.join(path.to_path().expect("a path"));
            fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
            match placed.what {
                Thing::File { bytes, mode } => {
                    fs::write(&path, bytes).expect("a file");
                    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("a mode");
                }
                Thing::Link(target) => symlink(target.to_path().expect("a path"), &path).expect("a link"),
                Thing::Directory => fs::create_dir_all(&path).expect("a directory"),
                Thing::HardLink(_) | Thing::Mode(_) => panic!("not in these boxes"),
            }
        }
    }
}

/// This machine's own loader, copied into a root.
fn copy_loader(root: &Path) {
    fs::create_dir_all(root.join("lib64")).expect("a directory");
    fs::copy(LOADER, root.join(&LOADER[1..])).expect("a copy of the loader");
}

const LOADER: &str = "/lib64/ld-linux-x86-64.so.2";

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn ldaudit(words: &[&str]) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_ldaudit"))
        .args(["--format", "json"])
        .args(words)
        .env_remove("LD_LIBRARY_PATH")
        .env_remove("LD_PRELOAD")
        .output()
        .expect("ldaudit runs");
    let out = &output.stdout;
    serde_json::from_slice(out).unwrap_or_else(|e| panic!("{e}: {} {}", out.as_bstr(), output.stderr.as_bstr()))
}

/// `RULE: summary | because`, one for each finding.
fn told(report: &Value) -> Vec<String> {
    let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
    let findings = report["findings"].as_array().expect("findings").iter();
    findings.map(|f| format!("{}: {} | {}", text(&f["rule"]), text(&f["summary"]), text(&f["because"]))).collect()
}

/// The path that answers a request.
fn answer(report: &Value, name: &str) -> Option<String> {
    let decisions = report["process"]["decisions"].as_array().expect("decisions");
    let chosen = decisions.iter().find(|d| d["asked"] == name)?["chosen"].as_u64()?;
    let images = report["process"]["images"].as_array().expect("images");
    images.iter().find(|i| i["id"] == chosen)?["name"].as_str().map(str::to_owned)
}

const WITHOUT_CACHE: &str = "\
exe /app/run needed=libx.so.1,liby.so.1,libz.so.1\n\
so /opt/x/libx.so.1 soname=libx.so.1\n\
so /opt/x/liby.so.1 soname=liby.so.1\n\
so /usr/lib/liby.so.1 soname=liby.so.1 pad=64\n\
so /usr/lib/libz.so.1 soname=libz.so.1\n\
conf /opt/x\n\
\nexec /app/run\n";

#[test]
fn a_root_without_a_cache_says_what_ldconfig_would_change() {
    let scratch = Scratch::new("cache");
    scratch.place(&scratch.0, WITHOUT_CACHE, Loader::glibc(2, 36), "/");
    copy_loader(&scratch.0);
    let root = scratch.0.to_str().expect("text");
    let without = ldaudit(&["--root", root, "/app/run"]);
    let findings = told(&without);
    let hint = "there is no /etc/ld.so.cache; --assume-ldconfig rebuilds it";
    let note = findings.iter().find(|f| f.starts_with("LD0205")).unwrap_or_else(|| panic!("{findings:#?}"));
    assert!(note.contains(hint), "{note}");
    let change = "With the one that ldconfig would write, libx.so.1 is found as /opt/x/libx.so.1; \
                  liby.so.1 is another file, /opt/x/liby.so.1; 0 errors are left of 1.";
    assert!(note.ends_with(change), "{note}");
    let error = findings.iter().find(|f| f.starts_with("LD0101")).unwrap_or_else(|| panic!("{findings:#?}"));
    assert!(error.contains("(--assume-ldconfig) it is found as /opt/x/libx.so.1."), "{error}");
    let names = ["libx.so.1", "liby.so.1", "libz.so.1"];
    let answers = |report: &Value| names.map(|n| answer(report, n).unwrap_or_default());
    assert_eq!(answers(&without), ["", "/usr/lib/liby.so.1", "/usr/lib/libz.so.1"]);

    // What was promised comes true, by the option and by the real ldconfig.
    let assumed = ldaudit(&["--root", root, "--assume-ldconfig", "/app/run"]);
    assert_eq!(answers(&assumed), ["/opt/x/libx.so.1", "/opt/x/liby.so.1", "/usr/lib/libz.so.1"]);
    assert!(told(&assumed).is_empty(), "{:#?}", told(&assumed));
    let ldconfig = ["/sbin/ldconfig", "/usr/sbin/ldconfig"].into_iter().find(|p| Path::new(p).exists());
    let made = ldconfig.map(|l| Command::new(l).args(["-r", root]).status().expect("ldconfig runs").success());
    if made != Some(true) {
        return require::skip("root", "ldconfig -r cannot be run");
    }
    let written = ldaudit(&["--root", root, "/app/run"]);
    assert_eq!(answers(&written), answers(&assumed));
    assert!(told(&written).is_empty(), "{:#?}", told(&written));
}

#[test]
fn a_root_in_which_a_cache_changes_nothing_says_so() {
    let scratch = Scratch::new("same");
    let text = "exe /app/run needed=libz.so.1\nso /usr/lib/libz.so.1 soname=libz.so.1\n\nexec /app/run\n";
    scratch.place(&scratch.0, text, Loader::glibc(2, 36), "/");
    copy_loader(&scratch.0);
    let findings = told(&ldaudit(&["--root", scratch.0.to_str().expect("text"), "/app/run"]));
    let [note] = findings.as_slice() else { panic!("{findings:#?}") };
    assert!(
        note.ends_with("With the one that ldconfig would write, every request of this target has the same answer."),
        "{note}"
    );
}

#[test]
fn musls_path_file_is_named_by_the_loaders_own_file() {
    let real = Path::new("/lib/ld-musl-x86_64.so.1");
    if !real.exists() {
        return require::skip("musl", "musl is not installed");
    }
    let scratch = Scratch::new("musl");
    let root = scratch.0.to_str().expect("text").to_owned();
    let text = format!(
        "loader musl\nexe {root}/run needed=libx.so interp={root}/m/lib/libc.so\nso {root}/x/libx.so\n\nexec {root}/run\n"
    );
    scratch.place(Path::new("/"), &text, Loader::musl(1, 2, 3), &root);
    let loader = scratch.0.join("m/lib/libc.so");
    fs::create_dir_all(scratch.0.join("m/lib")).expect("a directory");
    fs::create_dir_all(scratch.0.join("m/etc")).expect("a directory");
    // A link: a file that was just written may be busy when another thread has forked meanwhile.
    symlink(real, &loader).expect("a link");
    fs::write(scratch.0.join("m/etc/ld-musl-x86_64.path"), format!("{root}/x\n")).expect("a path file");
    let program = format!("{root}/run");
    let listed = Command::new(&loader).args(["--list", &program]).output().expect("musl runs");
    let line = format!("libx.so => {root}/x/libx.so");
    assert!(listed.stdout.contains_str(&line), "{} {}", listed.stdout.as_bstr(), listed.stderr.as_bstr());
    let report = ldaudit(&[&program]);
    assert_eq!(answer(&report, "libx.so"), Some(format!("{root}/x/libx.so")));
    assert!(told(&report).is_empty(), "{:#?}", told(&report));
}

#[test]
fn a_musl_of_unknown_architecture_is_not_guessed() {
    let scratch = Scratch::new("unknown");
    let text = "loader musl\n\
                exe /app/run needed=libx.so,liby.so interp=/lib/libc.so\n\
                so /x/libx.so\nso /usr/lib/liby.so\nmuslpath /x\n\
                so /lib/libc.so strings=1.2.3\n\nexec /app/run\n";
    scratch.place(&scratch.0, text, Loader::musl(1, 2, 3), "/");
    let report = ldaudit(&["--root", scratch.0.to_str().expect("text"), "/app/run"]);
    // The path file of x86_64 may be another loader's.
    assert_eq!(answer(&report, "libx.so"), None);
    assert_eq!(answer(&report, "liby.so"), Some("/usr/lib/liby.so".into()));
    let findings = told(&report);
    let note = findings.iter().find(|f| f.starts_with("LD0204")).unwrap_or_else(|| panic!("{findings:#?}"));
    assert!(note.contains("which path file it reads") && note.contains("ARCH is not known here"), "{note}");
}

#[test]
fn a_loader_of_a_release_that_is_not_described_is_a_guess() {
    let scratch = Scratch::new("release");
    let text = "exe /app/run needed=libx.so runpath=/x\nso /x/libx.so\n\nexec /app/run\n";
    scratch.place(&scratch.0, text, Loader::glibc(2, 36), "/");
    copy_loader(&scratch.0);
    let root = scratch.0.to_str().expect("text");
    let guesses = || -> Vec<String> {
        told(&ldaudit(&["--root", root, "/app/run"])).into_iter().filter(|f| f.starts_with("LD0204")).collect()
    };
    assert_eq!(guesses(), [] as [&str; 0]);
    let path = scratch.0.join(&LOADER[1..]);
    let bytes = fs::read(&path).expect("the loader");
    let before = b"release version 2.";
    let at = bytes.find(before).expect("a banner") + before.len();
    for (release, said) in [(b"99", "glibc 2.99, whose rules are not known"), (b"16", "glibc 2.16, whose rules")] {
        let mut other = bytes.clone();
        other[at..at + 2].copy_from_slice(release);
        fs::write(&path, other).expect("another loader");
        let guesses = guesses();
        assert!(guesses.len() == 1 && guesses[0].contains(said), "{guesses:?}");
    }
}
