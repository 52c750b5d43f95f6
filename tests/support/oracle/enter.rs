//! Starting a process in a box: mounts, root, user, processor features, limits.

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use bstr::{BStr, BString};

use super::{Entry, NOBODY};

/// Switches processor features off, so that glibc sees the level the fixture wants.
pub(super) fn tunables(level: u8) -> String {
    let mut off: Vec<&str> = Vec::new();
    if level < 4 {
        off.extend(["AVX512F", "AVX512BW", "AVX512CD", "AVX512DQ", "AVX512VL"]);
    }
    if level < 3 {
        off.extend(["AVX", "AVX2", "BMI1", "BMI2", "F16C", "FMA", "LZCNT", "MOVBE"]);
    }
    if level < 2 {
        off.extend(["CMPXCHG16B", "LAHF64_SAHF64", "POPCNT", "SSE3", "SSSE3", "SSE4_1", "SSE4_2"]);
    }
    off.iter().map(|f| format!("-{f}")).collect::<Vec<_>>().join(",")
}

pub(super) fn signal_name(signal: i32) -> BString {
    let name = match signal {
        libc::SIGSEGV => "SIGSEGV",
        libc::SIGBUS => "SIGBUS",
        libc::SIGABRT => "SIGABRT",
        libc::SIGILL => "SIGILL",
        libc::SIGFPE => "SIGFPE",
        libc::SIGTRAP => "SIGTRAP",
        libc::SIGKILL => "SIGKILL",
        other => return format!("SIG{other}").into(),
    };
    name.into()
}

/// Prepares the child: own mounts, /proc, root, directory, user, a time limit, no core file.
pub(super) fn enter(command: &mut Command, root: &Path, cwd: &BStr, proc_mounted: bool, entry: Entry) {
    let c = |bytes: &[u8]| CString::new(bytes).expect("paths have no NUL");
    let root_path = c(root.as_os_str().as_bytes());
    let proc_path = c(root.join("proc").as_os_str().as_bytes());
    let cwd = c(cwd);
    // SAFETY: no memory is involved.
    let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
    let maps = [
        (c(b"/proc/self/setgroups"), b"deny".to_vec()),
        (c(b"/proc/self/uid_map"), format!("{NOBODY} {uid} 1").into_bytes()),
        (c(b"/proc/self/gid_map"), format!("{NOBODY} {gid} 1").into_bytes()),
    ];
    // SAFETY: between fork and exec only system calls are made, on memory that was prepared before.
    unsafe {
        command.pre_exec(move || {
            let check = |r: libc::c_int| if r == 0 { Ok(()) } else { Err(io::Error::last_os_error()) };
            let null = std::ptr::null::<libc::c_char>();
            match entry {
                Entry::Root => check(libc::unshare(libc::CLONE_NEWNS))?,
                Entry::UserNamespace => {
                    check(libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS))?;
                    for (path, text) in &maps {
                        let fd = libc::open(path.as_ptr(), libc::O_WRONLY);
                        if fd < 0 || libc::write(fd, text.as_ptr().cast(), text.len()) != text.len() as isize {
                            return Err(io::Error::last_os_error());
                        }
                        libc::close(fd);
                    }
                }
            }
            check(libc::mount(null, c"/".as_ptr(), null, libc::MS_REC | libc::MS_PRIVATE, null.cast()))?;
            if proc_mounted {
                let flags = libc::MS_BIND | libc::MS_REC;
                check(libc::mount(c"/proc".as_ptr(), proc_path.as_ptr(), null, flags, null.cast()))?;
            }
            check(libc::chroot(root_path.as_ptr()))?;
            check(libc::chdir(cwd.as_ptr()))?;
            let no_core = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            check(libc::setrlimit(libc::RLIMIT_CORE, &raw const no_core))?;
            libc::alarm(20);
            if entry == Entry::Root {
                check(libc::setgroups(0, std::ptr::null()))?;
                check(libc::setgid(NOBODY))?;
                check(libc::setuid(NOBODY))?;
            }
            Ok(())
        });
    }
}
