//! Runs the real loader and brings back what it did: program starts, Python imports and dlopens under LD_DEBUG, each with
//! a time limit and in an environment that holds nothing but what the caller names.

#![allow(dead_code)] // each test binary uses its own part

use super::ld_debug::{ProcessTrace, parse};
use bstr::{BStr, BString};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Variables of a child process.
pub type Env = [(OsString, OsString)];

/// How the process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// With this status.
    Exited(i32),
    /// By this signal.
    Killed(i32),
    /// It was still running at the time limit and was ended by this module.
    TimedOut,
}

/// What one run of the real thing left behind.
#[derive(Clone, Debug)]
pub struct Observation {
    /// How the process ended.
    pub end: End,
    /// Its standard output.
    pub stdout: BString,
    /// Its standard error.
    pub stderr: BString,
    /// What the loader did in the process that was started.
    pub trace: ProcessTrace,
    /// What it did in processes that this one started, by PID.
    pub children: Vec<ProcessTrace>,
}

/// A directory for one run, removed with its value.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> io::Result<Scratch> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("ldaudit-real-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(&path)?;
        Ok(Scratch(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A scratch directory that stays behind harms nobody: it lies in the build folder.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Runs a program under `LD_DEBUG=libs,files,scopes` in exactly this environment.
///
/// # Errors
///
/// The program can't be started, or the loader wrote no trace (a static program, another libc, secure mode).
pub fn observe_exec(
    program: &Path,
    args: &[&OsStr],
    env: &Env,
    cwd: &Path,
    limit: Duration,
) -> io::Result<Observation> {
    let scratch = Scratch::new()?;
    let (out, err) = (scratch.0.join("stdout"), scratch.0.join("stderr"));
    let mut child = Command::new(program)
        .args(args)
        .env_clear()
        .envs(env.iter().map(|(name, value)| (name, value)))
        .env("LD_DEBUG", "libs,files,scopes")
        .env("LD_DEBUG_OUTPUT", scratch.0.join("trace"))
        .current_dir(cwd)
        .stdin(Stdio::null())
        .stdout(File::create(&out)?)
        .stderr(File::create(&err)?)
        .process_group(0)
        .spawn()?;
    let pid = child.id();
    let end = wait(&mut child, limit)?;
    let mut traces = read_traces(&scratch.0)?;
    let own = traces
        .iter()
        .position(|trace| trace.pid == pid)
        .ok_or_else(|| io::Error::other(format!("{}: the loader wrote no trace ({end:?})", program.display())))?;
    let trace = traces.swap_remove(own);
    traces.sort_by_key(|trace| trace.pid);
    Ok(Observation { end, stdout: fs::read(out)?.into(), stderr: fs::read(err)?.into(), trace, children: traces })
}

/// Waits for the child, and ends its whole process group at the limit.
fn wait(child: &mut Child, limit: Duration) -> io::Result<End> {
    let until = Instant::now() + limit;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(end(status));
        }
        if Instant::now() >= until {
            let group = i32::try_from(child.id()).map_err(io::Error::other)?;
            // SAFETY: kill has no memory effects; the group is that of a child which has not been waited for.
            unsafe { libc::kill(-group, libc::SIGKILL) };
            child.wait()?;
            return Ok(End::TimedOut);
        }
        std::thread::sleep(Duration::from_millis(4));
    }
}

fn end(status: ExitStatus) -> End {
    match (status.code(), status.signal()) {
        (Some(code), _) => End::Exited(code),
        (None, Some(signal)) => End::Killed(signal),
        (None, None) => End::Killed(0),
    }
}

fn read_traces(dir: &Path) -> io::Result<Vec<ProcessTrace>> {
    let mut traces = Vec::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let is_trace = path.file_name().is_some_and(|name| name.as_bytes().starts_with(b"trace."));
        if is_trace {
            traces.extend(parse(&fs::read(&path)?).map_err(io::Error::other)?);
        }
    }
    Ok(traces)
}

/// Runs `import MODULE` in this interpreter. No byte code is written, so that environments stay as they are.
///
/// # Errors
///
/// As [`observe_exec`]. An import that fails is no error: it is in the observation's status and standard error.
pub fn observe_import(python: &Path, module: &str, env: &Env, cwd: &Path, limit: Duration) -> io::Result<Observation> {
    let code = format!("import {module}");
    observe_exec(python, &["-B".as_ref(), "-c".as_ref(), code.as_ref()], env, cwd, limit)
}

/// Which program calls dlopen.
#[derive(Clone, Debug)]
pub enum Host {
    /// This interpreter, through ctypes: the caller is then the `_ctypes` extension.
    Python(PathBuf),
    /// The small program of [`build_dlopen_host`]: the caller is the program, which has no search path of its own.
    Program(PathBuf),
}

/// One dlopen to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DlopenStep {
    /// The argument.
    pub name: BString,
    /// RTLD_GLOBAL rather than RTLD_LOCAL.
    pub global: bool,
    /// RTLD_LAZY rather than RTLD_NOW. ctypes always adds RTLD_NOW, so a Python host can't be lazy.
    pub lazy: bool,
}

/// The answer to one step: nothing, or what dlerror said.
pub type DlopenAnswer = Result<(), BString>;

/// Makes the given dlopens one after the other in one process. There are fewer answers than steps when the process died
/// on the way.
///
/// # Errors
///
/// As [`observe_exec`].
pub fn observe_dlopen(
    host: &Host,
    steps: &[DlopenStep],
    env: &Env,
    cwd: &Path,
    limit: Duration,
) -> io::Result<(Observation, Vec<DlopenAnswer>)> {
    let mut args: Vec<&OsStr> = Vec::new();
    let program = match host {
        Host::Python(python) => {
            args.extend(["-B", "-c", PYTHON_HOST].map(OsStr::new));
            python
        }
        Host::Program(program) => program,
    };
    for step in steps {
        let flags = match (step.global, step.lazy) {
            (true, true) => "GL",
            (true, false) => "GN",
            (false, true) => "LL",
            (false, false) => "LN",
        };
        args.extend([OsStr::new(flags), OsStr::from_bytes(&step.name)]);
    }
    let observation = observe_exec(program, &args, env, cwd, limit)?;
    let answers = answers(&observation.stdout);
    Ok((observation, answers))
}

/// Reads the records `+\0` and `-TEXT\0` that both hosts print.
fn answers(stdout: &[u8]) -> Vec<DlopenAnswer> {
    stdout
        .split(|&byte| byte == 0)
        .filter_map(|record| match record.split_first()? {
            (b'+', _) => Some(Ok(())),
            (b'-', text) => Some(Err(text.into())),
            _ => None,
        })
        .collect()
}

/// The Python host. Writes with os.write, past any buffer, since the process may die in the next step.
const PYTHON_HOST: &str = r#"
import ctypes, os, sys
args = [os.fsencode(a) for a in sys.argv[1:]]
for flags, name in zip(args[::2], args[1::2]):
    mode = ctypes.RTLD_GLOBAL if flags[:1] == b"G" else ctypes.RTLD_LOCAL
    try:
        ctypes.CDLL(os.fsdecode(name), mode)
        os.write(1, b"+\0")
    except OSError as e:
        os.write(1, b"-" + os.fsencode(str(e)) + b"\0")
"#;

/// The small host in C.
const C_HOST: &str = r#"
#include <dlfcn.h>
#include <string.h>
#include <unistd.h>

static void say(const char *text, size_t length)
{
    while (length > 0) {
        ssize_t n = write(1, text, length);
        if (n <= 0)
            _exit(3);
        text += n;
        length -= (size_t)n;
    }
}

int main(int argc, char **argv)
{
    for (int i = 1; i + 1 < argc; i += 2) {
        int flags = (argv[i][0] == 'G' ? RTLD_GLOBAL : RTLD_LOCAL) | (argv[i][1] == 'L' ? RTLD_LAZY : RTLD_NOW);
        if (dlopen(argv[i + 1], flags)) {
            say("+", 2);
        } else {
            const char *why = dlerror();
            if (!why)
                why = "";
            say("-", 1);
            say(why, strlen(why) + 1);
        }
    }
    return 0;
}
"#;

/// Builds the small host in `dir` with the C compiler that Rust itself needs for linking, unless it is there.
///
/// # Errors
///
/// No `cc`, or it refuses.
pub fn build_dlopen_host(dir: &Path) -> io::Result<PathBuf> {
    let to = dir.join("dlopen-host");
    if to.exists() {
        return Ok(to);
    }
    fs::create_dir_all(dir)?;
    let fresh = dir.join(format!("dlopen-host.{}", std::process::id()));
    let mut cc =
        Command::new("cc").args(["-O1", "-x", "c", "-", "-ldl", "-o"]).arg(&fresh).stdin(Stdio::piped()).spawn()?;
    if let Some(mut source) = cc.stdin.take() {
        source.write_all(C_HOST.as_bytes())?;
    }
    let status = cc.wait()?;
    if !status.success() {
        return Err(io::Error::other(format!("cc: {status}")));
    }
    // Test binaries may build it at the same time; the rename lets each see a whole file.
    fs::rename(&fresh, &to)?;
    Ok(to)
}

/// Every regular ELF file below a directory, sorted by path. Symbolic links are not followed, neither to files nor to
/// directories: what they lead to is listed in its own place.
///
/// # Errors
///
/// A directory can't be listed. Files that can't be opened are left out.
pub fn list_elf_files(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut waiting = vec![dir.to_path_buf()];
    while let Some(dir) = waiting.pop() {
        for entry in fs::read_dir(&dir)? {
            let entry = entry?;
            let kind = entry.file_type()?;
            if kind.is_dir() {
                waiting.push(entry.path());
            } else if kind.is_file() && has_elf_magic(&entry.path()) {
                found.push(entry.path());
            }
        }
    }
    found.sort();
    Ok(found)
}

fn has_elf_magic(path: &Path) -> bool {
    let mut magic = [0; 4];
    File::open(path).and_then(|mut file| file.read_exact(&mut magic)).is_ok() && magic == *b"\x7fELF"
}

/// Device and inode of a path as a process in `cwd` would reach it, for [`ProcessTrace::settle`]; nothing when it can't be
/// opened for reading, for that is what the loader would find.
pub fn identity(cwd: &Path, path: &BStr) -> Option<(u64, u64)> {
    let meta = File::open(cwd.join(OsStr::from_bytes(path))).ok()?.metadata().ok()?;
    Some((meta.dev(), meta.ino()))
}
