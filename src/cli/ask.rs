//! Runs the command with which an interpreter is asked: the only program that an audit may start by default.
//!
//! Standard input is empty, output is bounded, and the command has its own process group, so that a script in front
//! of the interpreter and everything it started are killed together when the time is over.

use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use crate::discover::python::ask::{Answer, Ask, Command, Exit, Failure};
use crate::system::Errno;

/// Starts processes on this machine.
pub struct Live;

/// Which output a reader thread has finished.
enum Finished {
    Stdout(Result<Vec<u8>, Failure>),
    Stderr(Vec<u8>),
}

impl Ask for Live {
    fn run(&self, command: &Command<'_>) -> Result<Answer, Failure> {
        let deadline = Instant::now() + command.limit;
        let text = |bytes: &[u8]| OsStr::from_bytes(bytes).to_owned();
        let (program, arguments) = command.argv.split_first().ok_or(Failure::Spawn(Errno::EINVAL))?;
        let mut start = std::process::Command::new(text(program));
        start
            .args(arguments.iter().map(|a| text(a)))
            .env_clear()
            .envs(command.env.iter().map(|(name, value)| (text(name), text(value))))
            .current_dir(text(command.cwd))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        let mut running = Running { child: start.spawn().map_err(|e| Failure::Spawn(e.into()))?, ended: false };
        let (sender, receiver) = mpsc::channel();
        let max = command.max_output;
        if let Some(pipe) = running.child.stdout.take() {
            let sender = sender.clone();
            thread::spawn(move || sender.send(Finished::Stdout(read_bounded(pipe, max))));
        }
        if let Some(pipe) = running.child.stderr.take() {
            thread::spawn(move || sender.send(Finished::Stderr(read_end(pipe, max))));
        }
        let (mut stdout, mut stderr) = (None, None);
        while stdout.is_none() || stderr.is_none() {
            let left = deadline.saturating_duration_since(Instant::now());
            match receiver.recv_timeout(left) {
                Ok(Finished::Stdout(result)) => stdout = Some(result?),
                Ok(Finished::Stderr(bytes)) => stderr = Some(bytes),
                Err(_) => return Err(Failure::TimedOut),
            }
        }
        let exit = running.wait(deadline)?;
        Ok(Answer { exit, stdout: stdout.unwrap_or_default(), stderr: stderr.unwrap_or_default() })
    }
}

/// A started process that is killed with its group unless it has ended.
struct Running {
    child: Child,
    ended: bool,
}

impl Running {
    /// Waits until the process has ended. It has closed its outputs, so it is about to.
    fn wait(&mut self, deadline: Instant) -> Result<Exit, Failure> {
        let mut pause = Duration::from_micros(50);
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => {
                    self.ended = true;
                    let signal = || Exit::Signal(status.signal().unwrap_or(0));
                    return Ok(status.code().map_or_else(signal, Exit::Status));
                }
                Ok(None) if Instant::now() >= deadline => return Err(Failure::TimedOut),
                Ok(None) => thread::sleep(pause),
                Err(e) => return Err(Failure::Read(e.into())),
            }
            pause = (pause * 2).min(Duration::from_millis(10));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.ended {
            if let Some(group) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
                let _ = kill_process_group(group, Signal::KILL);
            }
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// All bytes up to a bound.
fn read_bounded(pipe: impl Read, max: usize) -> Result<Vec<u8>, Failure> {
    let mut out = Vec::new();
    pipe.take(max as u64 + 1).read_to_end(&mut out).map_err(|e| Failure::Read(e.into()))?;
    if out.len() > max { Err(Failure::TooMuchOutput) } else { Ok(out) }
}

/// The last bytes of a stream, reading it to its end so that the writer never blocks.
fn read_end(mut pipe: impl Read, max: usize) -> Vec<u8> {
    let mut out = Vec::new();
    let mut chunk = [0u8; 8192];
    loop {
        match pipe.read(&mut chunk) {
            Ok(0) => return out,
            Ok(n) => out.extend_from_slice(&chunk[..n]),
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => return out,
        }
        if out.len() > max.saturating_mul(2) {
            out.drain(..out.len() - max);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system::Environment;
    use bstr::BString;

    fn shell(script: &str, limit: Duration) -> Result<Answer, Failure> {
        let argv: Vec<BString> = ["/bin/sh", "-c", script].map(BString::from).into();
        let mut env = Environment::new();
        env.set("GREETING", "hello");
        Live.run(&Command { argv, env, cwd: "/".into(), limit, max_output: 1000 })
    }

    const AMPLE: Duration = Duration::from_secs(30);

    #[test]
    fn status_output_environment_and_directory_are_as_asked() {
        let answer = shell("echo $GREETING; pwd; echo bad >&2; cat; exit 3", AMPLE).expect("runs");
        assert_eq!(answer.exit, Exit::Status(3));
        assert_eq!(answer.stdout, b"hello\n/\n");
        assert_eq!(answer.stderr, b"bad\n");
        assert_eq!(shell("kill -9 $$", AMPLE).expect("runs").exit, Exit::Signal(9));
    }

    #[test]
    fn each_failure_is_told_apart() {
        let argv = vec![BString::from("/nonexistent/program")];
        let command = Command { argv, env: Environment::new(), cwd: "/".into(), limit: AMPLE, max_output: 10 };
        assert_eq!(Live.run(&command), Err(Failure::Spawn(Errno::ENOENT)));
        assert_eq!(shell("yes", AMPLE), Err(Failure::TooMuchOutput));
        assert_eq!(shell("sleep 100", Duration::from_millis(50)), Err(Failure::TimedOut));
    }

    #[test]
    fn a_timeout_kills_what_the_command_started() {
        let mark = std::env::temp_dir().join(format!("ldaudit-ask-{}", std::process::id()));
        let script = format!("(sleep 1; echo late > {}) & wait", mark.display());
        assert_eq!(shell(&script, Duration::from_millis(50)), Err(Failure::TimedOut));
        thread::sleep(Duration::from_millis(1300));
        assert!(!mark.exists(), "the background process went on");
    }

    #[test]
    fn much_on_standard_error_neither_blocks_nor_fails() {
        let answer = shell("head -c 300000 /dev/zero >&2; echo end >&2; echo out", AMPLE).expect("runs");
        assert_eq!(answer.stdout, b"out\n");
        assert!(answer.stderr.ends_with(b"end\n"));
        assert!(answer.stderr.len() <= 3000 + 8192);
    }
}
