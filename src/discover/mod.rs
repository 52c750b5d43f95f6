//! What is installed on the audited box?
//!
//! Interpreters, distributions and their files, read through [`System`](crate::system::System). This room decides
//! nothing about loading, and it runs nothing: what only an interpreter can answer is put to the caller's
//! [`Ask`](python::Ask).

pub mod copies;
pub mod python;

use std::fmt;

use bstr::BString;

pub use python::Python;

/// What was found on the box. Later rooms refer to its parts by index.
#[derive(Default)]
pub struct Inventory {
    /// The chosen interpreter with its environment, when there is one.
    pub python: Option<Python>,
    /// What could not be read and was passed over.
    pub notes: Vec<Note>,
}

/// Which place named a thing: the reason for looking at it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// The user named it (`--python`).
    Named,
    /// The variable `VIRTUAL_ENV`.
    VirtualEnv,
    /// The variable `CONDA_PREFIX`.
    CondaPrefix,
    /// An element of `PATH`, counted from 0 as written.
    SearchPath(usize),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Named => f.write_str("--python"),
            Source::VirtualEnv => f.write_str("VIRTUAL_ENV"),
            Source::CondaPrefix => f.write_str("CONDA_PREFIX"),
            Source::SearchPath(entry) => write!(f, "PATH[{entry}]"),
        }
    }
}

/// Something that was passed over: damaged or unread metadata, code that an ordinary start would have run. Never a
/// failure of the audit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Note {
    /// What was being done, for example `read` or `parse`.
    pub act: &'static str,
    /// The file or directory.
    pub path: BString,
    /// What is the matter with it, in words.
    pub detail: String,
}

impl Note {
    /// A note on a path.
    pub fn new(act: &'static str, path: impl Into<BString>, detail: impl Into<String>) -> Note {
        Note { act, path: path.into(), detail: detail.into() }
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} `{}`: {}", self.act, self.path, self.detail)
    }
}
