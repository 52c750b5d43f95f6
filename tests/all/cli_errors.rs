//! What the command says when an audit cannot be done: exit status 2, one line that begins with `ldaudit: `, at most one
//! `hint: ` line, nothing on standard output. And what it does not fall for: closed pipes, links out of a root.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::Read;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::support::sample;
use sample::*;

const PROGRAM: &str = env!("CARGO_BIN_EXE_ldaudit");

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let dir = std::env::temp_dir().join(format!("ldaudit-cli-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).expect("scratch directory");
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).expect("mode");
        Scratch(dir)
    }

    fn file(&self, name: impl AsRef<Path>, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.join(name);
        fs::create_dir_all(path.parent().expect("parent")).expect("directory");
        fs::write(&path, bytes).expect("write");
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn command() -> Command {
    let mut command = Command::new(PROGRAM);
    command.env_clear().env("PATH", "/usr/bin:/bin").env("HOME", "/nonexistent").stdin(Stdio::null());
    command
}

fn run(arguments: &[&OsStr]) -> Output {
    command().args(arguments).output().expect("run")
}

/// Checks the form of a refusal; gives the line behind `ldaudit: `.
fn refused(output: &Output, what: &str) -> String {
    let errors = String::from_utf8(output.stderr.clone()).unwrap_or_else(|_| panic!("{what}: not UTF-8"));
    assert_eq!(output.status.code(), Some(2), "{what}: {errors}");
    assert!(output.stdout.is_empty(), "{what}: something on standard output");
    assert!(!errors.bytes().any(|b| b < b' ' && b != b'\n' || b == 0x7f), "{what}: control bytes in {errors:?}");
    let lines: Vec<&str> = errors.lines().collect();
    let line = lines.first().and_then(|l| l.strip_prefix("ldaudit: ")).unwrap_or_else(|| panic!("{what}: {errors}"));
    let is_lower = line.starts_with(|c: char| !c.is_uppercase());
    assert!(is_lower && !line.ends_with('.'), "{what}: {line}");
    match lines[1..] {
        [] => {}
        [hint] => assert!(hint.starts_with("hint: "), "{what}: {errors}"),
        _ => panic!("{what}: more than a line and a hint: {errors}"),
    }
    line.to_owned()
}

fn refusal(arguments: &[&str]) -> String {
    let os: Vec<&OsStr> = arguments.iter().map(OsStr::new).collect();
    refused(&run(&os), &arguments.join(" "))
}

#[test]
fn targets_that_cannot_be_audited() {
    let dir = Scratch::new("targets");
    let at = |path: &Path| path.to_str().expect("text").to_owned();
    let nothing = at(&dir.0.join("nothing"));
    assert_eq!(refusal(&[&nothing]), format!("cannot open `{nothing}`: No such file or directory"));
    let directory = at(&dir.0);
    assert_eq!(refusal(&[&directory]), format!("cannot audit `{directory}`: it is a directory"));
    for (name, bytes) in [
        ("empty", &b""[..]),
        ("text", b"hello\n"),
        ("magic", b"\x7fELF"),
        ("short", b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\0\0\0"),
        ("script", b"#!/bin/sh\n"),
        ("pointer", b"version https://git-lfs.github.com/spec/v1\n"),
        ("linker-script", b"/* GNU ld script\n*/\nGROUP ( libc.so.6 )\n"),
        ("class", b"\x7fELF\x07\x01\x01\0\0\0\0\0\0\0\0\0\x03\0\x3e\0\x01\0\0\0"),
        ("below/\u{1b}[31mred\n\u{202e}", b"no"),
    ] {
        let path = at(&dir.file(name, bytes));
        let line = refusal(&[&path]);
        assert!(line.starts_with("cannot audit `"), "{line}");
    }
    let file = dir.file("file", b"x");
    assert!(refusal(&[&format!("{}/below", at(&file))]).contains("Not a directory"));
    symlink("loop", dir.0.join("loop")).expect("link");
    assert!(refusal(&[&at(&dir.0.join("loop"))]).contains("Too many levels of symbolic links"));
    for device in ["/dev/null", "/dev/zero", "/dev/tty"] {
        if Path::new(device).exists() {
            assert_eq!(refusal(&[device]), format!("cannot audit `{device}`: not a regular file"));
        }
    }
    let fifo = dir.0.join("fifo");
    let made = Command::new("mkfifo").arg(&fifo).status().expect("mkfifo");
    assert!(made.success());
    assert_eq!(refusal(&[&at(&fifo)]), format!("cannot audit `{}`: not a regular file", at(&fifo)));
    let long = format!("/{}", "n".repeat(300));
    assert!(refusal(&[&long]).contains("File name too long"));
}

#[test]
fn a_file_that_may_not_be_read() {
    let dir = Scratch::new("unreadable");
    let path = dir.file("secret", Sample::x86_64().build());
    fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).expect("mode");
    // The superuser reads everything; then somebody else is asked to try, with a copy of the program that they may run.
    let copy = dir.0.join("ldaudit");
    fs::copy(PROGRAM, &copy).expect("copy");
    let mut command = Command::new(&copy);
    command.env_clear().arg(&path);
    if rustix::process::geteuid().is_root() {
        command.uid(65534).gid(65534);
    }
    let line = refused(&command.output().expect("run"), "unreadable");
    assert_eq!(line, format!("cannot open `{}`: Permission denied", path.display()));
}

#[test]
fn names_that_are_not_text() {
    let dir = Scratch::new("names");
    let bytes = [dir.0.clone().into_os_string().into_vec(), b"/\xff\xfe\x1b]0;x\x07".to_vec()].concat();
    let name = OsString::from_vec(bytes);
    let line = refused(&run(&[&name]), "bytes");
    assert!(line.contains("\\xff\\xfe\\x1b]0;x\\x07"), "{line}");
    fs::write(&name, b"no").expect("write");
    let line = refused(&run(&[&name]), "bytes");
    assert!(line.contains("not an ELF file"), "{line}");
    // And in the report of a file that can be audited.
    fs::write(&name, Sample::x86_64().needed("lib\u{1b}[2J\u{7}evil.so").build()).expect("write");
    for format in ["text", "tree", "ldd", "json"] {
        let output = run(&[&name, OsStr::new("--format"), OsStr::new(format)]);
        let text = String::from_utf8(output.stdout).expect("UTF-8");
        assert!(!text.bytes().any(|b| b < b' ' && b != b'\n' && b != b'\t'), "{format}: control bytes in {text:?}");
    }
}

#[test]
fn bad_usage_is_one_line_too() {
    let ls = "/bin/ls";
    for arguments in [
        &["--frobnicate"][..],
        &[ls, "--loader", "foo"],
        &[ls, "--loader", "glibc:"],
        &[ls, "--loader", "glibc:2.x"],
        &[ls, "--loader", "glibc:2.16"],
        &[ls, "--loader", "glibc:2.44"],
        &[ls, "--loader", "glibc:3.0"],
        &[ls, "--loader", "musl:1.1"],
        &[ls, "--loader", "musl:1.3"],
        &[ls, "--loader", "musl:99999999.1"],
        &[ls, "--loader", ""],
        &[ls, "--env", "NOVALUE"],
        &[ls, "--env"],
        &[ls, "--format", "pdf"],
        &[ls, "--cpu", "x86-64-v9"],
        &[ls, "--root", "/nonexistent"],
        &[ls, "--root", "/bin/ls"],
        &[ls, "--env", "=x"],
        &[ls, "--env", ""],
        &[ls, "--unset", ""],
        &[ls, "--unset", "A=b"],
        &["--why"],
        &["--python", "/nonexistent", "torch"],
        &["--python", "/bin/ls", "torch"],
        &["--host", "/nonexistent", "/lib/x86_64-linux-gnu/libc.so.6"],
        &["no-such-module-anywhere"],
        &["--frob\u{1b}[31m"],
    ] {
        let line = refusal(arguments);
        assert!(!line.is_empty(), "{arguments:?}");
    }
    assert_eq!(refusal(&["--frobnicate"]), "unexpected argument `--frobnicate` found");
    assert_eq!(refusal(&["/bin/ls", "--env", "NOVALUE"]), "`--env NOVALUE` has no `=`");
    assert_eq!(refusal(&["/bin/ls", "--env", "=x"]), "`--env =x` names no variable");
    assert_eq!(refusal(&["/bin/ls", "--unset", ""]), "`--unset ` names no variable");
    let help = run(&[OsStr::new("--help")]);
    assert!(help.status.success() && help.stderr.is_empty() && !help.stdout.is_empty());
}

#[test]
fn what_would_be_ignored_is_refused() {
    let demo = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/demo/broken_torch.ld");
    let python = "/home/ada/venv/bin/python";
    for (arguments, line) in [
        (&["torch", "--host", python][..], "`--host` is for libraries, and `torch` is a Python module"),
        // Without a target the frameworks are meant.
        (&["--host", python, "--why", "libz.so.1"], "`--host` is for libraries, and `torch` is a Python module"),
        (&[python, "--import", "torch"], "`--import` is for Python targets, and `/home/ada/venv/bin/python` is a file"),
        (
            &["torch", python, "--import", "torch"],
            "`--import` is for Python targets, and `/home/ada/venv/bin/python` is a file",
        ),
        (&[python, "--python", python], "`--python` is for Python targets, and `/home/ada/venv/bin/python` is a file"),
        (
            &[python, "--import", "torch", "--host", python],
            "the argument `--import <MOD>` cannot be used with `--host <PROGRAM>`",
        ),
        (
            &["/lib/x86_64-linux-gnu/libz.so.1", "--host", "/lib/x86_64-linux-gnu/libz.so.1"],
            "cannot audit `/lib/x86_64-linux-gnu/libz.so.1` in `/lib/x86_64-linux-gnu/libz.so.1`: it is a library, not a \
             program",
        ),
        (&["torch", "--bindings", "--format", "tree"], "this form does not hold what `--bindings` asks for"),
        (&["torch", "--bindings", "--format", "ldd"], "this form does not hold what `--bindings` asks for"),
        (&["torch", "--bindings", "--why", "libz.so.1"], "this form does not hold what `--bindings` asks for"),
        (&["torch", "--env", "A=1", "--unset", "A"], "`--env A=...` and `--unset A` contradict each other"),
    ] {
        let arguments: Vec<&str> = arguments.iter().copied().chain(["--fixture", demo]).collect();
        let said = refusal(&arguments);
        // clap names the two in an order of its own.
        let same = |a: &str, b: &str| {
            let sorted = |t: &str| {
                let mut words: Vec<String> = t.split('`').map(str::to_owned).collect();
                words.sort();
                words
            };
            sorted(a) == sorted(b)
        };
        assert!(same(&said, line), "{arguments:?}: {said}");
    }
    for level in [["--deny", "note"], ["--allow", "LD0101"], ["--warn", "LD0101"], ["--error", "LD0101"]] {
        let said = refusal(&["torch", "--why", "libz.so.1", level[0], level[1], "--fixture", demo]);
        assert!(said.contains(level[0]) && said.contains("--why"), "{level:?}: {said}");
    }
    // The same options where they have a meaning.
    for arguments in [
        &["torch", "--import", "torch"][..],
        &["/lib/x86_64-linux-gnu/libz.so.1", "--host", python],
        &["torch", "--bindings", "--why", "libz.so.1", "--format", "json"],
        &["torch", python, "--python", "/home/ada/venv"],
        &["--why", "libz.so.1", python, "--python", "/home/ada/venv"],
        &["torch", "--env", "A=", "--unset", "B"],
    ] {
        let output = command().args(arguments).args(["--fixture", demo]).output().expect("run");
        assert!(output.status.code().is_some_and(|c| c < 2), "{arguments:?}: {output:?}");
    }
}

#[test]
fn a_name_may_be_a_file_or_a_module() {
    let dir = Scratch::new("either");
    let demo = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/demo/broken_torch.ld");
    let place = "in `/home/ada/venv` (virtual environment, found by VIRTUAL_ENV)";
    for (name, line) in [
        ("README.nope", format!("cannot audit `README.nope`: no such file, and no such module {place}")),
        ("torchvisio", format!("cannot audit `torchvisio`: no such file, and no such module {place}")),
        // `import os.path` works, but no file says so.
        (
            "os.path",
            format!(
                "cannot audit `os.path`: no such file, and `os` is no package, so that nothing can be looked up below it, {place}"
            ),
        ),
    ] {
        assert_eq!(refusal(&[name, "--fixture", demo]), line);
    }
    let line = refused(&command().args(["README.nope", "--root"]).arg(&dir.0).output().expect("run"), "no Python");
    assert!(line.starts_with("cannot audit `README.nope`: no such file, and no Python found"), "{line}");
    let line = refused(&command().args(["torch", "--root"]).arg(&dir.0).output().expect("run"), "no Python");
    assert!(line.starts_with("no Python found"), "{line}");
}

#[test]
fn what_is_no_python_says_nothing_of_the_question() {
    for program in ["/bin/ls", "/bin/cat", "/bin/echo", "/usr/bin/env", "/bin/true"] {
        if !Path::new(program).exists() {
            continue;
        }
        let output = command().args(["torch", "--python", program]).output().expect("run");
        let line = refused(&output, program);
        assert!(line.starts_with(&format!("cannot ask `{program}` for its paths: ")), "{line}");
        assert!(line.len() < 200 && !line.contains("interpreter's own"), "{line}");
        let hint = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(hint.contains("hint: is it a Python interpreter? "), "{hint}");
    }
}

#[test]
fn a_file_that_is_cut_short_is_called_so() {
    let dir = Scratch::new("cut");
    let whole = Sample::x86_64().soname("libcut.so.1").build();
    let cut = dir.file("libcut.so.1", &whole[..100]);
    let output = run(&[cut.as_os_str()]);
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    assert_eq!(output.status.code(), Some(1), "{text}");
    let expected = format!("error[LD0110]  {} is cut short: 100 of at least ", cut.display());
    let joined = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(joined.contains(&expected.split_whitespace().collect::<Vec<_>>().join(" ")), "{text}");
    // Where a program needs it, the file that ends the load is named with what it is.
    let program =
        Sample::x86_64().needed("libcut.so.1").entry(DT_RUNPATH, "$ORIGIN").interpreter("/lib64/ld-linux-x86-64.so.2");
    let program = dir.file("program", program.build());
    let output = run(&[program.as_os_str()]);
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let joined = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(joined.contains("an ELF file cut off after 100 bytes in place of libcut.so.1"), "{text}");
    assert!(text.contains(&cut.display().to_string()), "{text}");
}

#[test]
fn what_is_left_of_a_library_is_told_as_the_loader_tells_it() {
    let dir = Scratch::new("left");
    let whole = Sample::x86_64().soname("libleft.so.1").needed("libc.so.6").build();
    let mut other_order = whole.clone();
    other_order[5] = 2;
    let (loader, frame) = ("/lib64/ld-linux-x86-64.so.2", "error while loading shared libraries: ");
    let cases = [
        ("order.so", &other_order[..], 0o644, "ELF file data encoding not little-endian"),
        ("run.so", &other_order, 0o755, "ELF file data encoding not little-endian"),
        ("head.so", &whole[..64], 0o644, "cannot read file data"),
    ];
    for (name, bytes, mode, text) in cases {
        let file = dir.file(name, bytes);
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).expect("a mode");
        let line = format!("{frame}{}: {text}", file.display());
        if Path::new(loader).exists() {
            let real = Command::new(loader).arg("--list").arg(&file).output().expect("the loader runs").stderr;
            assert!(String::from_utf8_lossy(&real).contains(&line), "{name}: {}", String::from_utf8_lossy(&real));
        }
        let output = run(&[file.as_os_str()]);
        let said = String::from_utf8(output.stdout).expect("UTF-8");
        assert!(output.status.code() == Some(1) && said.contains(&line), "{name}: {said}");
    }
}

#[test]
fn a_closed_pipe_is_no_error() {
    let dir = Scratch::new("pipe");
    // Enough names that no pipe holds the report.
    let library = (0..3000).fold(Sample::x86_64(), |s, i| s.needed(format!("lib{i}-{}.so", "x".repeat(60))));
    let path = dir.file("libmany.so", library.build());
    for format in ["text", "tree", "ldd", "json", "jsonl"] {
        let mut child = command()
            .arg(&path)
            .args(["--format", format])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("start");
        let mut first = [0u8; 1];
        child.stdout.take().expect("pipe").read_exact(&mut first).expect("a first byte");
        let output = child.wait_with_output().expect("wait");
        assert!(output.stderr.is_empty(), "{format}: {}", String::from_utf8_lossy(&output.stderr));
        assert!(output.status.code().is_some_and(|c| c < 2), "{format}: {:?}", output.status);
    }
    // Closed standard error: still the exit status, no panic.
    let status = command().arg("/nonexistent").stderr(Stdio::null()).stdout(Stdio::null()).status().expect("run");
    assert_eq!(status.code(), Some(2));
    // A full disk is an error.
    if Path::new("/dev/full").exists() {
        let full = fs::OpenOptions::new().write(true).open("/dev/full").expect("open");
        let output = command().arg(&path).stdout(full).stderr(Stdio::piped()).output().expect("run");
        assert!(refused(&output, "full").starts_with("cannot write the report: "));
    }
}

#[test]
fn no_link_leads_out_of_a_root() {
    let dir = Scratch::new("root");
    let outside = dir.file("outside/libsecret.so", Sample::x86_64().soname("libsecret.so").build());
    let up = "../".repeat(30);
    let program = Sample::x86_64()
        .needed("libsecret.so")
        .needed(format!("{}{}", up, outside.strip_prefix("/").expect("absolute").display()))
        .needed(outside.to_str().expect("text"))
        .entry(DT_RUNPATH, format!("$ORIGIN/{up}{}:/link:/up:/proc/self/root", dir.0.join("outside").display()))
        .interpreter("/lib64/ld-linux-x86-64.so.2");
    dir.file("root/bin/program", program.build());
    dir.file("root/etc/hostname", "inside");
    symlink(dir.0.join("outside"), dir.0.join("root/link")).expect("link");
    symlink(format!("{up}{}", dir.0.join("outside").display()), dir.0.join("root/up")).expect("link");
    symlink(&outside, dir.0.join("root/bin/escape")).expect("link");
    symlink("/proc/self/exe", dir.0.join("root/bin/magic")).expect("link");
    let root = dir.0.join("root");
    let audit = |target: &str, format: &str| {
        run(&[OsStr::new("--root"), root.as_os_str(), OsStr::new(target), OsStr::new("--format"), OsStr::new(format)])
    };
    let output = audit("/bin/program", "json");
    let report = String::from_utf8(output.stdout).expect("UTF-8");
    let report: serde_json::Value = serde_json::from_str(&report).expect("JSON");
    let images = report["process"]["images"].as_array().expect("images");
    let names: Vec<&str> = images.iter().filter_map(|i| i["name"].as_str()).collect();
    assert!(names.iter().all(|n| !n.contains("secret")), "{names:?}");
    assert_eq!(report["verdict"], "fails");
    for target in ["/bin/escape", "/bin/magic", "/link/libsecret.so", "/../../../../etc/passwd", "/up/libsecret.so"] {
        let line = refused(&audit(target, "text"), target);
        assert!(line.contains("No such file or directory") || line.contains("not an ELF file"), "{target}: {line}");
    }
}

#[test]
fn levels_change_the_status_and_not_what_happens() {
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("levels.ld");
    let boxed = |lines: &str| {
        std::fs::write(&path, format!("exe /app/run needed=libx.so rpath=/app\n{lines}\nexec /app/run\n"))
            .expect("a file");
    };
    let said = |words: &[&str]| {
        let output = command().args(words).arg("--fixture").arg(&path).output().expect("run");
        let text = String::from_utf8(output.stdout).expect("UTF-8");
        (output.status.code(), text.split_whitespace().collect::<Vec<_>>().join(" "))
    };
    boxed("so /app/libx.so soname=libx.so\nenv LD_LIBRARY_PATH=/gone\n");
    let (status, text) = said(&[]);
    assert!(status == Some(0) && text.starts_with("WORKS /app/run starts"), "{text}");
    let (status, text) = said(&["--error", "LD0202"]);
    let line = "WORKS, BUT /app/run starts with 1 finding that counts for an error error[LD0202]";
    assert!(status == Some(1) && text.starts_with(line) && !text.contains("until then"), "{text}");
    let (_, json) = said(&["--error", "LD0202", "--format", "json"]);
    assert!(json.contains("\"verdict\": \"warnings\""), "{json}");
    boxed("");
    for words in [["--allow", "LD0101"], ["--warn", "LD0101"]] {
        let (status, text) = said(&words);
        assert!(status == Some(0) && text.starts_with("FAILS /app/run does not start"), "{text}");
    }
}
