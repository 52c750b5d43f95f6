//! The question put to an interpreter, and reading its answer. The running itself is the caller's ([`Ask`]).
//!
//! The interpreter is started isolated (`-I`: no working directory and no `PYTHON…` variable on the way to its own
//! library), without `site` (`-S`) and without leaving byte code behind (`-B`). The script (`ask.py`) then lets the
//! interpreter's own `site` module compute what an ordinary start would have on `sys.path`, with `PYTHONPATH`, the
//! user's site directory and `.pth` files, but takes code execution away from it. So one start answers exactly, and
//! costs no more than an ordinary start of Python.
//!
//! With `PYTHONHOME` (or `PYTHONPLATLIBDIR`) an ordinary start has another standard library, which `-I` would hide;
//! then the question is put with `-S -s` and an environment without all other `PYTHON…` variables.

use std::time::Duration;

use bstr::{BStr, BString, ByteSlice};
use serde::Deserialize;

use super::error::Error;
use super::{Entry, EntryKind, Interpreter, KnownBy, UserSite, Version};
use crate::discover::Note;
use crate::system::{Environment, Errno, System, normalised};

/// Runs a command that this room composed. The live one is in `cli`; tests bring their own.
pub trait Ask {
    /// Runs the command and gives what it wrote, or why it could not be run to its end.
    fn run(&self, command: &Command<'_>) -> Result<Answer, Failure>;
}

/// A command to run: standard input empty, output bounded, killed with all its children when the time is over.
#[derive(Clone, Debug)]
pub struct Command<'a> {
    /// Program (an absolute path) and arguments.
    pub argv: Vec<BString>,
    /// The complete environment.
    pub env: Environment,
    /// Working directory.
    pub cwd: &'a BStr,
    /// How long it may take.
    pub limit: Duration,
    /// At most this many bytes of each output are kept; more on standard output is a failure.
    pub max_output: usize,
}

/// What a command left.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answer {
    /// How it ended.
    pub exit: Exit,
    /// Standard output.
    pub stdout: Vec<u8>,
    /// Standard error, at least its end.
    pub stderr: Vec<u8>,
}

/// How a process ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Exit {
    /// By itself, with a status.
    Status(i32),
    /// By a signal.
    Signal(i32),
}

/// Why a command did not run to its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    /// It could not be started.
    Spawn(Errno),
    /// It took too long and was killed.
    TimedOut,
    /// It wrote more than was allowed and was killed.
    TooMuchOutput,
    /// Reading its output failed.
    Read(Errno),
}

const SCRIPT: &str = include_str!("ask.py");
const MARK: &[u8] = b"ldaudit-python/1 ";
const MAX_OUTPUT: usize = 4 << 20;

/// Variables of the loader that would change or disturb the asked process: preloads and audits bring foreign code in,
/// the tracing ones replace the answer by the loader's own output. `LD_LIBRARY_PATH` stays, since an interpreter may
/// need it to start.
fn disturbs(name: &[u8]) -> bool {
    name.starts_with(b"LD_") && name != b"LD_LIBRARY_PATH"
}

fn command<'a>(system: &'a System, executable: &BStr, limit: Duration) -> Command<'a> {
    let env = &system.host.env;
    let set = |name: &str| env.get(name).is_some_and(|v| !v.is_empty());
    let moved_home = set("PYTHONHOME") || set("PYTHONPLATLIBDIR");
    let mut child = Environment::new();
    for (name, value) in env.iter() {
        if disturbs(name) {
            continue;
        }
        if moved_home && name.starts_with(b"PYTHON") && name != "PYTHONHOME" && name != "PYTHONPLATLIBDIR" {
            // Passed on under a name that the interpreter does not know but the script does.
            let mut renamed = BString::from("LDAUDIT_");
            renamed.extend_from_slice(name);
            if name == "PYTHONUSERBASE" {
                child.push(name, value);
            }
            child.push(renamed, value);
            continue;
        }
        child.push(name, value);
    }
    let flags: &[&str] = if moved_home { &["-B", "-S", "-s"] } else { &["-B", "-I", "-S"] };
    let mut argv = vec![executable.to_owned()];
    argv.extend(flags.iter().map(|f| BString::from(*f)));
    argv.push("-c".into());
    argv.push(SCRIPT.into());
    Command { argv, env: child, cwd: system.host.cwd.as_bstr(), limit, max_output: MAX_OUTPUT }
}

#[derive(Deserialize)]
struct Reply {
    executable: Text,
    real_executable: Text,
    prefix: Text,
    exec_prefix: Text,
    base_prefix: Text,
    base_exec_prefix: Text,
    implementation: Text,
    version: (u16, u16, u16),
    abiflags: Text,
    platlibdir: Text,
    multiarch: Text,
    suffixes: Vec<Text>,
    builtins: Vec<Text>,
    standard: Vec<Text>,
    path: Vec<Text>,
    user_site: Text,
    user_site_enabled: bool,
    skipped: Vec<(Text, Text)>,
    environment: Vec<(Text, Text)>,
}

/// Bytes that travel as a string whose characters are the bytes (U+0000 to U+00FF).
#[derive(Deserialize)]
#[serde(from = "String")]
struct Text(BString);

impl From<String> for Text {
    fn from(s: String) -> Text {
        Text(s.chars().map(|c| u8::try_from(u32::from(c)).unwrap_or(b'?')).collect::<Vec<u8>>().into())
    }
}

/// Asks the interpreter at `executable`.
pub(super) fn interpreter(
    system: &System,
    executable: &BStr,
    ask: &dyn Ask,
    limit: Duration,
) -> Result<Interpreter, Error> {
    let path = || executable.to_owned();
    let bad = |why: String| Error::BadAnswer { path: path(), why };
    let command = command(system, executable, limit);
    let answer = ask.run(&command).map_err(|failure| match failure {
        Failure::Spawn(errno) => Error::Spawn { path: path(), errno },
        Failure::TimedOut => Error::TimedOut { path: path(), limit },
        Failure::TooMuchOutput => bad(format!("it wrote more than {MAX_OUTPUT} bytes")),
        Failure::Read(errno) => bad(format!("its answer could not be read: {}", errno.text().to_lowercase())),
    })?;
    if answer.exit != Exit::Status(0) {
        let status = match answer.exit {
            Exit::Status(n) => format!("status {n}"),
            Exit::Signal(n) => format!("signal {n}"),
        };
        return Err(Error::BadStatus { path: path(), status, last_line: last_line(&answer.stderr) });
    }
    let line = answer.stdout.lines().filter_map(|line| line.strip_prefix(MARK)).next_back();
    let line = line.ok_or_else(|| bad("no answer in its output".to_owned()))?;
    let reply: Reply = serde_json::from_slice(line).map_err(|e| bad(format!("not the expected answer ({e})")))?;
    Ok(from_reply(system, reply, &command.env))
}

/// The last line that tells something, at most 200 bytes of it. A program that is no Python may repeat the script of
/// its command line, which tells nobody anything.
fn last_line(stderr: &[u8]) -> BString {
    let telling = SCRIPT.lines().map(str::trim).filter(|l| l.len() >= 16).collect::<Vec<_>>();
    let repeats = |line: &[u8]| SCRIPT.as_bytes().contains_str(line) || telling.iter().any(|l| line.contains_str(l));
    let mut lines = stderr.lines().map(<[u8]>::trim_ascii);
    // GNU programs refuse an option in one line and name `--help` in a second one.
    let points_at_help = |line: &[u8]| line.starts_with(b"Try '");
    let line = lines.rfind(|l| !l.is_empty() && !repeats(l) && !points_at_help(l)).unwrap_or(b"");
    let line = line.strip_suffix(b".").unwrap_or(line);
    line[..line.len().min(200)].into()
}

fn from_reply(system: &System, reply: Reply, sent: &Environment) -> Interpreter {
    let list = |texts: Vec<Text>| texts.into_iter().map(|t| t.0).collect::<Vec<_>>();
    let standard: Vec<BString> = list(reply.standard).iter().map(|p| normalised(p.as_bstr())).collect();
    let python_path: Vec<BString> = super::site::python_path(system);
    let version = Version { major: reply.version.0, minor: reply.version.1, micro: Some(reply.version.2) };
    let user_site = reply.user_site.0;
    let mut path = Vec::new();
    if let Some(entry) = super::site::working_directory(system, version) {
        path.push(entry);
    }
    for text in list(reply.path) {
        let kind = if python_path.contains(&text) {
            EntryKind::PythonPath
        } else if standard.contains(&text) {
            EntryKind::Standard
        } else if reply.user_site_enabled && text == user_site {
            EntryKind::UserSite
        } else if text.ends_with(b"/site-packages") || text.ends_with(b"/dist-packages") {
            EntryKind::Site
        } else {
            EntryKind::Pth
        };
        path.push(Entry { directory: system.absolute(text.as_bstr()), text, kind });
    }
    let mut notes: Vec<Note> = Vec::new();
    for (file, code) in reply.skipped {
        let note = super::site::skipped_code(file.0.as_bstr(), None, code.0.as_bstr());
        // A virtual environment's directory is read twice by `site`.
        if !notes.contains(&note) {
            notes.push(note);
        }
    }
    notes.extend(super::site::customisation(system, &path, reply.user_site_enabled));
    let environment = reply
        .environment
        .into_iter()
        .map(|(name, value)| (name.0, value.0))
        .filter(|(name, value)| sent.get(name).is_none_or(|v| v != value))
        .collect();
    let executable = reply.executable.0;
    let real_executable = Some(reply.real_executable.0)
        .filter(|p| !p.is_empty())
        .or_else(|| system.files.real_path(executable.as_bstr()).ok())
        .unwrap_or_else(|| executable.clone());
    Interpreter {
        executable,
        real_executable,
        prefix: reply.prefix.0,
        exec_prefix: reply.exec_prefix.0,
        base_prefix: reply.base_prefix.0,
        base_exec_prefix: reply.base_exec_prefix.0,
        implementation: reply.implementation.0,
        version,
        abiflags: reply.abiflags.0,
        platlibdir: reply.platlibdir.0,
        multiarch: Some(reply.multiarch.0).filter(|m| !m.is_empty()),
        extension_suffixes: list(reply.suffixes),
        builtins: Some(list(reply.builtins)),
        standard,
        path,
        user_site: UserSite { enabled: reply.user_site_enabled, directory: Some(user_site).filter(|d| !d.is_empty()) },
        known_by: KnownBy::Asked { environment },
        notes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_is_never_the_script() {
        let error = "ModuleNotFoundError: No module named 'encodings'";
        assert_eq!(last_line(format!("Traceback\n  {error}\n\n").as_bytes()), error);
        assert_eq!(last_line(SCRIPT.as_bytes()), "");
        // As GNU ls writes it, and as programs do that quote nothing.
        let quoted = format!("/bin/ls: cannot access '{}': File name too long\n", SCRIPT.replace('\n', "'$'\\n''"));
        assert_eq!(last_line(quoted.as_bytes()), "");
        assert_eq!(last_line(format!("bad option.\nls: {SCRIPT}\n").as_bytes()), "bad option");
        let refusal = "cat: invalid option -- 'B'";
        assert_eq!(last_line(format!("{refusal}\nTry 'cat --help' for more information.\n").as_bytes()), refusal);
    }
}
