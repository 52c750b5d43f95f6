//! Programs with more rights than the user who starts them: set-user-ID, set-group-ID, file capabilities. They run in the
//! loader's secure mode. The judge is each program itself: outside of that mode the loader complains of a preload that
//! is not there, in it names with a slash are passed over in silence.
//!
//! `LDAUDIT_REQUIRE=root` makes the absence of root's rights a failure: only root can make such programs.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{fresh, require};
use rustix::fs::{CWD, XattrFlags};
use serde_json::Value;

/// A user without rights, and his group.
const NOBODY: u32 = 65534;

/// `VFS_CAP_REVISION_2` with the effective flag, and `CAP_NET_RAW` permitted.
const NET_RAW: [u8; 20] = [1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

const PRELOAD: &str = "/nosuch/preload.so";

struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A command run as a user, with the preload.
fn as_user(program: &Path, user: u32) -> Command {
    let mut command = Command::new(program);
    command
        .uid(user)
        .gid(user)
        .env_clear()
        .env("LD_PRELOAD", PRELOAD)
        .env("LD_LIBRARY_PATH", "/nosuch")
        .current_dir("/");
    command
}

/// Whether the loader runs a program in secure mode.
fn is_secure(program: &Path, user: u32) -> bool {
    let output = fresh::start(|| as_user(program, user).output()).expect("the program runs");
    assert!(output.status.success(), "{}: {output:?}", program.display());
    !String::from_utf8_lossy(&output.stderr).contains(PRELOAD)
}

/// What ldaudit says: whether a preload was tried, and the summaries of what is ignored.
fn audited(ldaudit: &Path, program: &Path, user: u32) -> (bool, Vec<String>) {
    let output =
        fresh::start(|| as_user(ldaudit, user).args(["--format", "json"]).arg(program).output()).expect("ldaudit runs");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {output:?}"));
    let steps = report["process"]["steps"].as_array().expect("steps");
    let findings = report["findings"].as_array().expect("findings");
    let ignored = findings.iter().filter(|f| f["slug"] == "variable-ignored");
    let summaries = ignored.map(|f| f["summary"].as_str().expect("text").to_owned()).collect();
    (!steps.iter().any(|s| s["kind"] == "preload"), summaries)
}

#[test]
fn a_program_with_rights_of_its_own_is_secure_for_those_who_lack_them() {
    if !rustix::process::geteuid().is_root() {
        return require::skip("root", "only root can make programs of other users");
    }
    let dir = std::env::temp_dir().join(format!("ldaudit-privileged-{}", std::process::id()));
    fs::create_dir_all(&dir).expect("a directory");
    let dir = Scratch(fs::canonicalize(dir).expect("a directory"));
    fs::set_permissions(&dir.0, fs::Permissions::from_mode(0o755)).expect("a mode");
    // Where nobody may go that is built below root's home, a copy does.
    let ldaudit = dir.0.join("ldaudit");
    fs::copy(env!("CARGO_BIN_EXE_ldaudit"), &ldaudit).expect("a copy");
    let cases: [(&str, u32, u32, bool); 9] = [
        ("plain", 0, 0o755, false),
        ("set-uid-root", 0, 0o4755, false),
        ("set-uid-nobody", NOBODY, 0o4755, false),
        ("set-gid-root", 0, 0o2755, false),
        ("set-gid-nobody", NOBODY, 0o2755, false),
        ("both", NOBODY, 0o6755, false),
        // Without the group's x the bit means another thing.
        ("locking", NOBODY, 0o2745, false),
        ("capable", 0, 0o755, true),
        ("capable-and-set-uid", 0, 0o4755, true),
    ];
    let mut secure = 0;
    for (name, owner, mode, capable) in cases {
        let program = dir.0.join(name);
        fs::copy("/bin/true", &program).expect("a copy");
        chown(&program, Some(owner), Some(owner)).expect("an owner");
        fs::set_permissions(&program, fs::Permissions::from_mode(mode)).expect("a mode");
        if capable {
            let fd = rustix::fs::openat(CWD, &program, rustix::fs::OFlags::RDONLY, rustix::fs::Mode::empty());
            let set = rustix::fs::fsetxattr(fd.expect("opens"), "security.capability", &NET_RAW, XattrFlags::empty());
            if let Err(errno) = set {
                require::skip("root", &format!("no file capabilities here: {errno}"));
                continue;
            }
        }
        for user in [0, NOBODY] {
            let real = is_secure(&program, user);
            let (said, ignored) = audited(&ldaudit, &program, user);
            assert_eq!(said, real, "{name} run by user {user}");
            secure += usize::from(real);
            let told = ignored.iter().filter(|text| text.contains(name)).count();
            assert_eq!(told, if real { 2 } else { 0 }, "{name} run by user {user}: {ignored:?}");
        }
    }
    match secure {
        0 => {
            eprintln!("skipped: no program gains rights here (nosuid or no_new_privs); that none is said to was tested")
        }
        _ => assert!(secure > 5, "only {secure} secure starts"),
    }
}
