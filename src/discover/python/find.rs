//! Which interpreter does the user mean? The first of: the one named, `$VIRTUAL_ENV`, `$CONDA_PREFIX`, `python3` on
//! `PATH`, `python` on `PATH`. Everything looked at is kept, so that a failure can tell.

use std::fmt;

use bstr::{BStr, BString, ByteSlice};

use super::error::Error;
use crate::discover::Source;
use crate::system::{Errno, Kind, System, join};

/// The choice, before anything is known of the interpreter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Choice {
    /// Absolute path as a user's start would have it: links are kept, since an environment is found beside the link.
    pub executable: BString,
    /// Which place named it.
    pub source: Source,
    /// Places that were looked at before and gave nothing.
    pub passed: Vec<Looked>,
}

/// A place that was looked at in vain.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Looked {
    /// A variable that is not set (or empty).
    Unset(&'static str),
    /// A variable that names something unusable.
    Rejected {
        /// The variable.
        variable: &'static str,
        /// Why it is unusable.
        error: Error,
    },
    /// `python3` and `python` were looked up in this many directories of `PATH`.
    SearchPath(usize),
}

impl fmt::Display for Looked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Looked::Unset(name) => write!(f, "{name} is not set"),
            Looked::Rejected { variable, error } => write!(f, "{variable}: {}", error.brief()),
            Looked::SearchPath(directories) => {
                f.write_str("neither `python3` nor `python` in ")?;
                match directories {
                    0 => f.write_str("PATH, which names no directory"),
                    1 => f.write_str("the only directory of PATH"),
                    n => write!(f, "the {n} directories of PATH"),
                }
            }
        }
    }
}

/// Names of an interpreter in the `bin` directory of an environment, best first.
const NAMES: [&str; 2] = ["python", "python3"];

/// What glibc's `execvp` and the shells search when `PATH` is not set.
const DEFAULT_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// Chooses the interpreter. `named` is what the user gave: an interpreter, the directory of an environment, or a
/// program name to look up on `PATH`.
pub fn choose(system: &System, named: Option<&BStr>) -> Result<Choice, Error> {
    if let Some(named) = named {
        return choose_named(system, named);
    }
    let mut passed = Vec::new();
    for (variable, source) in [("VIRTUAL_ENV", Source::VirtualEnv), ("CONDA_PREFIX", Source::CondaPrefix)] {
        match system.host.env.get(variable).filter(|v| !v.is_empty()) {
            None => passed.push(Looked::Unset(variable)),
            Some(prefix) => match in_prefix(system, absolute(system, prefix).as_bstr(), source) {
                Ok(executable) => return Ok(Choice { executable, source, passed }),
                Err(error) => passed.push(Looked::Rejected { variable, error }),
            },
        }
    }
    for name in ["python3", "python"] {
        if let Some((entry, executable)) = on_path(system, name.into(), None) {
            return Ok(Choice { executable, source: Source::SearchPath(entry), passed });
        }
    }
    passed.push(Looked::SearchPath(search_path(system).count()));
    Err(Error::NoneFound { looked_at: passed })
}

fn choose_named(system: &System, named: &BStr) -> Result<Choice, Error> {
    let path = absolute(system, named);
    let source = Source::Named;
    let done = |executable| Ok(Choice { executable, source, passed: Vec::new() });
    match examine(system, path.as_bstr(), source) {
        Ok(Kind::Directory) => done(in_prefix(system, path.as_bstr(), source)?),
        Ok(_) => done(path),
        Err(Error::NotFound { .. }) if !named.contains(&b'/') && !named.is_empty() => {
            match on_path(system, named, None) {
                Some((_, executable)) => done(executable),
                None => Err(Error::NotFound { path: named.to_owned(), source }),
            }
        }
        Err(error) => Err(error),
    }
}

/// Looks a path up and says what it is: a directory, or a file that may be executed.
fn examine(system: &System, path: &BStr, source: Source) -> Result<Kind, Error> {
    match system.files.stat(path) {
        Ok(meta) if meta.kind == Kind::Directory => Ok(Kind::Directory),
        Ok(meta) if meta.kind == Kind::File && meta.mode & 0o111 != 0 => Ok(Kind::File),
        Ok(_) => Err(Error::NotExecutable { path: path.to_owned() }),
        Err(errno) => Err(match system.files.read_link(path) {
            Ok(target) if errno == Errno::ENOENT => Error::BrokenLink { path: path.to_owned(), target },
            _ if matches!(errno, Errno::ENOENT | Errno::ENOTDIR) => Error::NotFound { path: path.to_owned(), source },
            _ => Error::Unreadable { path: path.to_owned(), errno },
        }),
    }
}

/// The interpreter of an environment: in `bin` of its directory, or in the directory itself when that is a `bin`.
fn in_prefix(system: &System, prefix: &BStr, source: Source) -> Result<BString, Error> {
    if !matches!(examine(system, prefix, source)?, Kind::Directory) {
        return Err(Error::NoInterpreter { prefix: prefix.to_owned(), source });
    }
    let mut first_error = None;
    for directory in [join(prefix, "bin"), prefix.to_owned()] {
        for name in NAMES {
            let path = join(directory.as_bstr(), name);
            match examine(system, path.as_bstr(), source) {
                Ok(Kind::File) => return Ok(path),
                Ok(_) | Err(Error::NotFound { .. }) => {}
                Err(error) => first_error = first_error.or(Some(error)),
            }
        }
    }
    Err(first_error.unwrap_or_else(|| Error::NoInterpreter { prefix: prefix.to_owned(), source }))
}

/// The first file of that name on `PATH` that may be executed, as a shell or `execvp` finds it, with the number of
/// the element. Elements equal to `without` are left out.
pub(super) fn on_path(system: &System, name: &BStr, without: Option<&BStr>) -> Option<(usize, BString)> {
    search_path(system)
        .enumerate()
        .filter(|(_, directory)| without != Some(directory.as_bstr()))
        .map(|(entry, directory)| (entry, join(directory.as_bstr(), name)))
        .find(|(_, path)| matches!(examine(system, path.as_bstr(), Source::Named), Ok(Kind::File)))
}

/// Elements of `PATH`, absolute; an empty one is the working directory.
fn search_path(system: &System) -> impl Iterator<Item = BString> + '_ {
    let path = system.host.env.get("PATH").unwrap_or(DEFAULT_PATH.into());
    path.split_str(":").map(|element| match element {
        b"" => system.host.cwd.clone(),
        _ => absolute(system, element.as_bstr()),
    })
}

/// Absolute, without a leading `./` and without a slash at the end; links and `..` are kept.
fn absolute(system: &System, path: &BStr) -> BString {
    let path = path.strip_prefix(b"./").map_or(path, |rest| rest.as_bstr());
    let mut path = system.absolute(path);
    while path.len() > 1 && path.ends_with(b"/") {
        path.pop();
    }
    path
}
