//! Each way in which finding or asking an interpreter can fail, with the path, the act and a way out.

use std::fmt;
use std::time::Duration;

use bstr::{BStr, BString, ByteSlice};

use super::find::Looked;
use crate::discover::Source;
use crate::system::Errno;

/// Why there is no interpreter to audit, or why it did not answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Error {
    /// The named path does not exist.
    NotFound {
        /// The path as named.
        path: BString,
        /// Who named it.
        source: Source,
    },
    /// The path exists but cannot be looked at.
    Unreadable {
        /// The path.
        path: BString,
        /// The kernel's answer.
        errno: Errno,
    },
    /// A file without any execute permission, or not a regular file.
    NotExecutable {
        /// The file.
        path: BString,
    },
    /// A symbolic link whose target is gone: the base interpreter of a virtual environment was removed.
    BrokenLink {
        /// The link.
        path: BString,
        /// Its text.
        target: BString,
    },
    /// A directory without `bin/python3` or `bin/python`.
    NoInterpreter {
        /// The directory.
        prefix: BString,
        /// Who named it.
        source: Source,
    },
    /// Nothing named an interpreter and `PATH` has none.
    NoneFound {
        /// What was looked at, in order.
        looked_at: Vec<Looked>,
    },
    /// The interpreter is a script; without running it the real one is not known.
    Script {
        /// The script.
        path: BString,
        /// Its first line, shortened.
        first_line: BString,
    },
    /// A pyenv shim that leads to no installed version.
    ShimWithoutVersion {
        /// The shim.
        shim: BString,
        /// The version that was asked for.
        version: BString,
        /// The variable or file that asks for it.
        wanted_by: BString,
    },
    /// The operating system refused to start the interpreter.
    Spawn {
        /// The interpreter.
        path: BString,
        /// The kernel's answer.
        errno: Errno,
    },
    /// The interpreter did not answer in time and was ended.
    TimedOut {
        /// The interpreter.
        path: BString,
        /// The time limit.
        limit: Duration,
    },
    /// The interpreter ended with an error.
    BadStatus {
        /// The interpreter.
        path: BString,
        /// Exit status or signal, in words.
        status: String,
        /// Last line of its standard error, shortened; empty when there was none.
        last_line: BString,
    },
    /// The interpreter ended well but did not give the answer.
    BadAnswer {
        /// The interpreter.
        path: BString,
        /// What is wrong with the answer.
        why: String,
    },
    /// The files around the interpreter do not show where its library is.
    NoLibrary {
        /// The interpreter.
        path: BString,
        /// What was looked for.
        why: String,
    },
}

impl Error {
    /// The path that the error is about; `None` when nothing was found at all.
    pub fn path(&self) -> Option<&BStr> {
        Some(match self {
            Error::NotFound { path, .. }
            | Error::Unreadable { path, .. }
            | Error::NotExecutable { path }
            | Error::BrokenLink { path, .. }
            | Error::NoInterpreter { prefix: path, .. }
            | Error::Script { path, .. }
            | Error::ShimWithoutVersion { shim: path, .. }
            | Error::Spawn { path, .. }
            | Error::TimedOut { path, .. }
            | Error::BadStatus { path, .. }
            | Error::BadAnswer { path, .. }
            | Error::NoLibrary { path, .. } => path.as_ref(),
            Error::NoneFound { .. } => return None,
        })
    }

    /// The matter in a few words, for a list of places that were looked at.
    pub fn brief(&self) -> String {
        match self {
            Error::NotFound { path, .. } => format!("`{path}` does not exist"),
            Error::NoInterpreter { prefix, .. } => format!("no interpreter in `{prefix}`"),
            Error::NotExecutable { path } => format!("`{path}` is not executable"),
            Error::BrokenLink { path, target } => format!("`{path}` is a link to `{target}`, which does not exist"),
            Error::Unreadable { path, errno } => format!("`{path}`: {}", errno.text().to_lowercase()),
            other => other.to_string(),
        }
    }

    /// The one thing to try, where there is one.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Error::NotFound { .. } | Error::NoInterpreter { .. } | Error::NotExecutable { .. } => {
                "name an interpreter (`--python /path/to/bin/python3`) or the directory of an environment".to_owned()
            }
            Error::BrokenLink { target, .. } => {
                format!("the environment's base interpreter `{target}` is gone; make the environment again")
            }
            Error::NoneFound { .. } => {
                "name one with `--python PATH` (an interpreter or the directory of an environment)".to_owned()
            }
            Error::Script { .. } => {
                "name the real interpreter with `--python PATH`, or leave out `--no-exec`".to_owned()
            }
            Error::ShimWithoutVersion { version, .. } => {
                format!("`pyenv install {version}`, or name an interpreter with `--python PATH`")
            }
            Error::BadStatus { path, .. } | Error::BadAnswer { path, .. } if !is_named_python(path.as_bstr()) => {
                "is it a Python interpreter? `--python` takes one, or the directory of an environment".to_owned()
            }
            Error::TimedOut { .. } | Error::BadStatus { .. } | Error::BadAnswer { .. } => {
                "with `--no-exec` the environment is read from files instead".to_owned()
            }
            Error::NoLibrary { .. } => "leave out `--no-exec` so that the interpreter may be asked".to_owned(),
            Error::Unreadable { .. } | Error::Spawn { .. } => return None,
        })
    }
}

/// True for the names that interpreters have: `python3.11`, `pypy3`.
fn is_named_python(path: &BStr) -> bool {
    let name = crate::system::file_name(path);
    name.starts_with(b"python") || name.starts_with(b"pypy")
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NotFound { path, source } => write!(f, "no Python at `{path}` (from {source}): no such file"),
            Error::Unreadable { path, errno } => {
                write!(f, "cannot look at `{path}`: {}", errno.text().to_lowercase())
            }
            Error::NotExecutable { path } => write!(f, "cannot use `{path}` as Python: not an executable file"),
            Error::BrokenLink { path, target } => {
                write!(f, "cannot use `{path}` as Python: a link to `{target}`, which does not exist")
            }
            Error::NoInterpreter { prefix, source } => {
                write!(f, "no Python in `{prefix}` (from {source}): neither `bin/python3` nor `bin/python`")
            }
            Error::NoneFound { looked_at } => {
                f.write_str("no Python found")?;
                for (i, looked) in looked_at.iter().enumerate() {
                    write!(f, "{}{looked}", if i == 0 { ": " } else { "; " })?;
                }
                Ok(())
            }
            Error::Script { path, first_line } => {
                write!(f, "cannot tell which Python `{path}` runs without running it: a script (`{first_line}`)")
            }
            Error::ShimWithoutVersion { shim, version, wanted_by } => {
                write!(
                    f,
                    "cannot follow the pyenv shim `{shim}`: version `{version}` (from {wanted_by}) is not installed"
                )
            }
            Error::Spawn { path, errno } => write!(f, "cannot run `{path}`: {}", errno.text().to_lowercase()),
            Error::TimedOut { path, limit } => {
                write!(f, "cannot ask `{path}` for its paths: no answer within {} s", limit.as_secs_f32())
            }
            Error::BadStatus { path, status, last_line } if last_line.is_empty() => {
                write!(f, "cannot ask `{path}` for its paths: it ended with {status}")
            }
            Error::BadStatus { path, status, last_line } => {
                write!(f, "cannot ask `{path}` for its paths: it ended with {status}: {last_line}")
            }
            Error::BadAnswer { path, why } => write!(f, "cannot ask `{path}` for its paths: {why}"),
            Error::NoLibrary { path, why } => write!(f, "cannot tell the paths of `{path}` from files: {why}"),
        }
    }
}

impl std::error::Error for Error {}
