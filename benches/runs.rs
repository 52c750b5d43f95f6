//! Runs commands and tells what they took.

use std::ffi::{OsStr, OsString};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// One run of a command.
#[derive(Clone, Copy)]
pub struct Run {
    pub wall: Duration,
    pub cpu: Duration,
    /// Most memory that the process held, in KiB.
    pub peak: i64,
    /// Bytes that the kernel read from disks for it.
    pub disk: u64,
}

/// A command with its label.
pub struct Contender {
    pub label: String,
    pub words: Vec<OsString>,
}

impl Contender {
    /// A command by its words.
    pub fn new(label: &str, words: &[&OsStr]) -> Contender {
        Contender { label: label.to_owned(), words: words.iter().map(|w| (*w).to_owned()).collect() }
    }

    #[expect(clippy::zombie_processes, reason = "wait4 waits, and tells what the process took")]
    /// Runs it once, its output thrown away.
    pub fn run(&self) -> Run {
        let start = Instant::now();
        let child = Command::new(&self.words[0])
            .args(&self.words[1..])
            .env_remove("LD_LIBRARY_PATH")
            .env_remove("LD_PRELOAD")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|e| panic!("{}: {e}", self.words[0].display()));
        // SAFETY: plain data, for which zero is a value.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        let mut status = 0;
        let pid = i32::try_from(child.id()).expect("process id");
        // SAFETY: both pointers lead to live values, and the child is nobody else's to wait for.
        let waited = unsafe { libc::wait4(pid, &raw mut status, 0, &raw mut usage) };
        let wall = start.elapsed();
        assert_eq!(waited, pid, "wait4");
        assert!(libc::WIFEXITED(status), "{}: ended by a signal", self.label);
        let time = |t: libc::timeval| Duration::new(t.tv_sec as u64, t.tv_usec as u32 * 1000);
        Run {
            wall,
            cpu: time(usage.ru_utime) + time(usage.ru_stime),
            peak: usage.ru_maxrss,
            disk: usage.ru_inblock as u64 * 512,
        }
    }
}
