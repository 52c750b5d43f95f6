//! How is it shown? Decides nothing and computes nothing: it reads a [`Report`].

pub mod bindings;
pub mod escape;
pub mod json;
mod json_why;
mod json_why_symbol;
pub mod ldd;
pub mod places;
pub mod text;
pub mod tree;
pub mod why;
pub mod why_symbol;

use bstr::BString;

pub use crate::findings::Owner;
use crate::findings::{Finding, Severity};
use crate::ld::Process;
use crate::recipe::Exception;

/// What was audited.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Target {
    /// `file`, `framework`, `module`, ...
    pub kind: &'static str,
    /// The name as given.
    pub name: BString,
    /// Version of the framework or module.
    pub version: Option<String>,
    /// Path of the file, or of the package.
    pub path: Option<BString>,
}

impl Target {
    /// A file.
    pub fn file(path: impl Into<BString>) -> Target {
        let path = path.into();
        Target { kind: "file", name: path.clone(), version: None, path: Some(path) }
    }
}

/// The Python environment that was looked at.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Python {
    /// The interpreter as the user would start it.
    pub executable: BString,
    /// Its version.
    pub version: String,
    /// The environment's prefix.
    pub prefix: BString,
    /// How it was chosen, in words: `VIRTUAL_ENV`, `python3 on PATH`.
    pub source: String,
    /// True when the interpreter itself was asked for its paths, false when they were worked out from files.
    pub asked: bool,
    /// `sys.path`.
    pub sys_path: Vec<BString>,
}

/// The verdict in one word.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Verdict {
    /// Nothing to complain of.
    Ok,
    /// It loads, but something is fragile or not what was installed.
    Warnings,
    /// It fails.
    Fails,
}

impl Verdict {
    /// The name used in reports.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Ok => "ok",
            Verdict::Warnings => "warnings",
            Verdict::Fails => "fails",
        }
    }

    /// The verdict that findings amount to.
    pub fn of(findings: &[Finding]) -> Verdict {
        match findings.iter().map(|f| f.severity).max() {
            Some(Severity::Error) => Verdict::Fails,
            Some(Severity::Warning) => Verdict::Warnings,
            Some(Severity::Note) | None => Verdict::Ok,
        }
    }
}

/// The story that `--why` asks for.
pub enum Story {
    /// Of the name of a library.
    Library(crate::findings::why::Why),
    /// Of a symbol.
    Symbol(crate::findings::why_symbol::WhySymbol),
}

/// Everything that one audit found out, for the renderers.
pub struct Report {
    /// What was audited.
    pub target: Target,
    /// The options that led to this answer, as words of a command line: with them another command is about the same.
    pub options: Vec<BString>,
    /// The Python environment, when one was looked at.
    pub python: Option<Python>,
    /// The simulated process with every decision.
    pub process: Process,
    /// Owner of each image, by image id.
    pub owners: Vec<Option<Owner>>,
    /// The exception with which a framework's recipe ended.
    pub exception: Option<Exception>,
    /// What is wrong, worst first.
    pub findings: Vec<Finding>,
    /// What it amounts to.
    pub verdict: Verdict,
    /// The story of one name, when one was asked for.
    pub why: Option<Story>,
}

impl Report {
    /// The report of a process of which nothing has been said yet: no owners, no findings.
    pub fn new(target: Target, process: Process) -> Report {
        Report {
            target,
            options: Vec::new(),
            python: None,
            process,
            owners: Vec::new(),
            exception: None,
            findings: Vec::new(),
            verdict: Verdict::Ok,
            why: None,
        }
    }
}

/// Names of environment variables that a loader, Python or the frameworks read; only these appear in reports.
pub const RELEVANT_VARIABLES: &[&str] = &[
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "LD_AUDIT",
    "LD_BIND_NOW",
    "LD_ASSUME_KERNEL",
    "LD_HWCAP_MASK",
    "LD_ORIGIN_PATH",
    "LD_DYNAMIC_WEAK",
    "GLIBC_TUNABLES",
    "PYTHONPATH",
    "PYTHONHOME",
    "PYTHONNOUSERSITE",
    "PYTHONUSERBASE",
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
    "CUDA_HOME",
    "CUDA_PATH",
    "CUDNN_PATH",
    "TORCH_USE_RTLD_GLOBAL",
];

/// Names in a sentence, so many at most: `a, b and c`, `a, b and 3 more`.
fn enumerate(names: &[String], most: usize) -> String {
    match names {
        [] => String::new(),
        [one] => one.clone(),
        names if names.len() <= most => {
            format!("{} and {}", names[..names.len() - 1].join(", "), names[names.len() - 1])
        }
        names => format!("{} and {} more", names[..most].join(", "), names.len() - most),
    }
}
