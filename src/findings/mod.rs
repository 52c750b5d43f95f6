//! What is wrong, why, and which change mends it? Reads recorded decisions; never searches again.
//!
//! [`loading::check`] looks at one simulated process; [`prove::prove`] tries the changes that could mend what it found.

pub mod demangle;
pub mod elements;
pub mod interposed;
pub mod loading;
pub mod missing_cache;
pub mod mix;
pub mod prove;
pub mod shadow;
pub mod static_tls;
pub mod symbols;
pub mod telltale;
pub mod versions;
pub mod why;
pub mod why_symbol;
pub mod words;

pub use prove::Candidate;

use std::collections::HashMap;

use bstr::BString;

use crate::ld::{DecisionId, ImageId, StepId};

/// How bad a finding is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Severity {
    /// Worth knowing.
    Note,
    /// Fragile, or silently not what was installed.
    Warning,
    /// Something fails.
    Error,
}

impl Severity {
    /// The name used in reports.
    pub fn name(self) -> &'static str {
        match self {
            Severity::Note => "note",
            Severity::Warning => "warning",
            Severity::Error => "error",
        }
    }
}

/// One rule of the table [`RULES`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rule {
    /// Stable code, `LD0101`.
    pub id: &'static str,
    /// Stable short name.
    pub slug: &'static str,
    /// What it says, in one line.
    pub summary: &'static str,
    /// Default severity.
    pub severity: Severity,
}

macro_rules! rules {
    ($($(#[$doc:meta])* $name:ident = $id:literal, $slug:literal, $severity:ident, $summary:literal;)*) => {
        $(
            $(#[$doc])*
            pub const $name: Rule =
                Rule { id: $id, slug: $slug, summary: $summary, severity: Severity::$severity };
        )*
        /// Every rule, by id.
        pub const RULES: &[Rule] = &[$($name),*];
    };
}

rules! {
    /// A library that the program needs is in no place that is searched.
    NOT_FOUND = "LD0101", "library-not-found", Error,
        "a library that is needed is in no place that the loader searches for this requester";
    /// A file that is first in the search order cannot be loaded and ends the load.
    UNUSABLE_FILE = "LD0102", "unusable-file-wins", Error,
        "an unusable file stands first in the search order and ends the load; later copies are not tried";
    /// The copy that is taken displaces the one that was installed with the requester.
    SHADOWED = "LD0103", "shadowed-copy", Warning,
        "a copy from elsewhere is taken in place of the one that the requester was installed with";
    /// The copy that is taken lacks a version that the requester wants.
    VERSION_MISSING = "LD0104", "version-not-found", Error,
        "the library that is taken does not define a version that is wanted of it";
    /// A copy that was loaded earlier answers, though the requester would have found another one.
    LOADED_EARLIER = "LD0105", "loaded-earlier", Warning,
        "a copy loaded earlier answers a name for which the requester has its own copy";
    /// Two different files of one soname are loaded.
    TWO_COPIES = "LD0106", "two-copies-of-one-soname", Warning,
        "two different files with one soname are loaded in one process";
    /// A file of another class or machine lies where the library is looked for.
    WRONG_ARCHITECTURE = "LD0107", "wrong-architecture", Note,
        "a file for another architecture stands in the search order and is passed over";
    /// The loader refuses a file for what it is.
    REFUSED = "LD0108", "refused-by-the-loader", Error, "the loader finds the file and refuses to load it";
    /// A preload entry does not load.
    PRELOAD_FAILED = "LD0109", "preload-failed", Warning, "a preload entry cannot be loaded and is ignored";
    /// The program cannot be started.
    CANNOT_START = "LD0110", "cannot-start", Error, "the program itself cannot be started";
    /// The files of the process are damaged though loadable.
    DAMAGED_FILE = "LD0111", "damaged-file", Warning, "a file of the process is damaged or truncated";
    /// The process takes too much to be simulated whole.
    TOO_MUCH = "LD0112", "too-much-to-simulate", Error,
        "the process asks for more than any real one; the audit stopped before its end";
    /// A symbol that a file refers to is defined nowhere in its scope.
    UNDEFINED_SYMBOL = "LD0113", "undefined-symbol", Error,
        "a symbol that is referred to is defined by no library in which it is looked up";
    /// A file refers to what another release of torch exports.
    BUILT_FOR_OTHER_TORCH = "LD0114", "built-for-another-torch", Error,
        "a file refers to symbols that the installed torch does not export: it was built for another one";
    /// A library audited alone refers to symbols of the program that opens it.
    LEFT_TO_THE_HOST = "LD0115", "left-to-the-host", Note,
        "a library audited alone refers to symbols that the program which opens it is to define";
    /// Two run-times of one kind are loaded.
    TWO_RUN_TIMES = "LD0116", "two-run-times", Note,
        "two run-times of one kind (OpenMP, BLAS, protobuf) are loaded in one process";
    /// Libraries that are released together come from different releases.
    MIXED_RELEASES = "LD0117", "mixed-releases", Note,
        "libraries of one family that are released together come from different releases";
    /// The room for static thread-local storage is used up, or nearly.
    STATIC_TLS = "LD0118", "static-tls", Error,
        "libraries that are opened later need more static thread-local storage than there is, or nearly so";
    /// A library makes the stack executable.
    EXECUTABLE_STACK = "LD0119", "executable-stack", Note,
        "a library that is opened makes the stack executable; newer loaders refuse it";
    /// Symbols are answered by another library than they were linked against.
    INTERPOSED = "LD0120", "interposed-symbols", Note,
        "a library answers symbols that were linked to be taken from another one";
    /// An empty element makes the current directory part of the search.
    EMPTY_ELEMENT = "LD0201", "empty-path-element", Note,
        "an empty element of a search path means the current directory";
    /// An element of LD_LIBRARY_PATH names no directory.
    MISSING_DIRECTORY = "LD0202", "missing-directory", Note, "an element of LD_LIBRARY_PATH is not a directory";
    /// A relative RPATH or RUNPATH element.
    RELATIVE_ELEMENT = "LD0203", "relative-path-element", Note,
        "a relative element of a search path depends on the current directory";
    /// The loader's file could not be read.
    LOADER_ASSUMED = "LD0204", "loader-assumed", Note,
        "the loader's own file does not tell all, or its release is not a described one; what is usual is assumed";
    /// The loader cache cannot be used.
    CACHE_UNUSABLE = "LD0205", "cache-unusable", Note,
        "the loader cache is missing or damaged, so the loader does without it";
    /// The steps of an import are not known in full.
    RECIPE_GUESS = "LD0206", "recipe-is-a-guess", Note,
        "no recipe describes the module or this version of it: the steps of its import are not known in full";
    /// Python's metadata is damaged.
    METADATA_DAMAGED = "LD0207", "metadata-damaged", Note, "package metadata could not be read";
    /// A module that is imported for certain is not installed.
    MODULE_ABSENT = "LD0208", "module-not-found", Warning,
        "a module that is imported for certain is nowhere on sys.path";
    /// An extension that is imported for certain does not load.
    EXTENSION_DOUBTFUL = "LD0209", "extension-does-not-load", Warning,
        "an extension that is imported for certain does not load, unless its package prepares that unseen";
    /// Relocations of the machine are not known.
    SYMBOLS_NOT_READ = "LD0210", "symbols-not-looked-up", Note,
        "relocations of this machine are not known, so that no symbol is looked up";
    /// A `.pth` file is damaged, unreadable, or imports what is not there.
    PATH_FILE_DAMAGED = "LD0211", "path-file-damaged", Note,
        "a .pth file of the Python environment could not be read, or an ordinary start stumbles over it";
    /// A variable names a Python environment that is not there.
    ENVIRONMENT_NOT_THERE = "LD0212", "environment-not-there", Note,
        "a variable names a Python environment that is not there; another one is audited";
    /// Variables that a privileged process does not honour.
    IGNORED_VARIABLE = "LD0213", "variable-ignored", Note,
        "the process is privileged (AT_SECURE), so that a variable which is set is ignored or heeded in part only";
    /// The interpreter did not answer.
    DOES_NOT_ANSWER = "LD0214", "interpreter-does-not-answer", Warning,
        "the interpreter was asked for its paths and did not answer; they are taken from files";
    /// What is found by a framework's name is something else.
    NOT_THE_FRAMEWORK = "LD0215", "not-the-framework", Warning,
        "what is found by the name of a framework is no installed one: a source checkout, or a stranger of that name";
    /// A module of Python's own library is hidden by another one.
    STANDARD_HIDDEN = "LD0216", "standard-module-hidden", Warning,
        "a file in the current directory or on PYTHONPATH hides a module of Python's own library that is needed";
    /// Code that an ordinary start of Python runs and that is not run here.
    CODE_NOT_RUN = "LD0217", "start-up-code-not-run", Note,
        "an ordinary start of Python runs code of a .pth file or a sitecustomize module, which may change sys.path";
    /// Libraries that watch the loader and may change its answers.
    AUDIT_LIBRARY = "LD0218", "audit-library", Note,
        "LD_AUDIT names libraries that watch the loader and may change its answers; they are not simulated";
}

/// Which distribution a file belongs to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Owner {
    /// Name of the distribution.
    pub package: String,
    /// Its version.
    pub version: String,
}

/// The part that a file plays in a finding.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Part {
    /// The file that asks for the library.
    AskedBy,
    /// The copy that the loader takes.
    Taken,
    /// A copy that a later place holds, or that the requester would have found by itself: passed over.
    Passed,
    /// A copy that is there and that no place in the search order leads to.
    Present,
    /// The file at which the load ends.
    StopsAt,
    /// A file that the loader looks at and leaves aside.
    Skipped,
}

impl Part {
    /// The name used in reports.
    pub fn name(self) -> &'static str {
        match self {
            Part::AskedBy => "asked by",
            Part::Taken => "taken",
            Part::Passed => "passed",
            Part::Present => "present",
            Part::StopsAt => "stops at",
            Part::Skipped => "skipped",
        }
    }
}

/// One file of a finding, with all that tells copies apart.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Copy {
    /// Its part.
    pub part: Part,
    /// The path, without `..` where that names the same file.
    pub path: BString,
    /// The loaded image, when it is one.
    pub image: Option<ImageId>,
    /// The distribution it belongs to, when known.
    pub owner: Option<Owner>,
    /// Its version: the one in its file name, when it says more than the soname.
    pub version: Option<String>,
    /// The rule that leads to it, or what it is, in words: `RUNPATH[1] of libcusparse.so.12`. May be empty.
    pub place: String,
}

/// What a finding rests on: ids of what was recorded, never prose alone.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Evidence {
    /// A request and its answer.
    Decision(DecisionId),
    /// A loaded object.
    Image(ImageId),
    /// A step.
    Step(StepId),
    /// A path with what is to be said of it.
    Path(BString, String),
    /// A variable and, when one element decides, its index.
    Variable(String, Option<u32>),
    /// A file and its part.
    Copy(Copy),
    /// A reference that nothing answers.
    Symbol {
        /// The image that refers to it.
        image: ImageId,
        /// The symbol.
        symbol: BString,
        /// The version that is asked for.
        version: Option<BString>,
        /// The C++ name that it stands for.
        demangled: Option<String>,
    },
}

/// A change that mends a finding.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Remedy {
    /// What to do, in one line.
    pub summary: String,
    /// Commands to paste.
    pub commands: Vec<String>,
    /// True only when the box was simulated again with the change made and the finding was gone.
    pub verified: bool,
    /// Errors and warnings that remain then.
    pub after: Option<(usize, usize)>,
}

/// One finding.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// The rule.
    pub rule: Rule,
    /// How bad it is here.
    pub severity: Severity,
    /// One sentence about this box.
    pub summary: String,
    /// What it is about: a soname, a path, a variable.
    pub subject: BString,
    /// Why, one sentence with "because", when there is more to say.
    pub because: Option<String>,
    /// What it rests on.
    pub evidence: Vec<Evidence>,
    /// What mends it.
    pub remedies: Vec<Remedy>,
    /// Single changes of the environment that could mend it; [`prove::prove`] tries them.
    pub candidates: Vec<Candidate>,
    /// Findings of one rule with the same number have one cause and are shown together.
    pub group: Option<u32>,
}

/// Leaves out what is said again of another step: a cause is told once, where it does the worst.
pub fn fold_repeated(findings: Vec<Finding>) -> Vec<Finding> {
    let mut worst: HashMap<(&str, &BString, &str), usize> = HashMap::new();
    for (at, finding) in findings.iter().enumerate() {
        let known = worst.entry((finding.rule.id, &finding.subject, &finding.summary)).or_insert(at);
        if findings[*known].severity < finding.severity {
            *known = at;
        }
    }
    let mut kept: Vec<usize> = worst.into_values().collect();
    kept.sort_unstable();
    let mut kept = kept.into_iter().peekable();
    let is_kept = |(at, finding)| kept.next_if_eq(&at).map(|_| finding);
    findings.into_iter().enumerate().filter_map(is_kept).collect()
}

impl Finding {
    /// A finding with its rule's severity.
    pub fn new(rule: Rule, subject: impl Into<BString>, summary: impl Into<String>) -> Finding {
        Finding {
            rule,
            severity: rule.severity,
            summary: summary.into(),
            subject: subject.into(),
            because: None,
            evidence: Vec::new(),
            remedies: Vec::new(),
            candidates: Vec::new(),
            group: None,
        }
    }

    /// Adds evidence.
    pub fn with(mut self, evidence: Evidence) -> Finding {
        self.evidence.push(evidence);
        self
    }

    /// Sets the reason.
    pub fn because(mut self, text: impl Into<String>) -> Finding {
        self.because = Some(text.into());
        self
    }

    /// The files of the finding.
    pub fn copies(&self) -> impl Iterator<Item = &Copy> {
        self.evidence.iter().filter_map(|e| match e {
            Evidence::Copy(copy) => Some(copy),
            _ => None,
        })
    }

    /// The decision it is about, when there is one.
    pub fn decision(&self) -> Option<DecisionId> {
        self.evidence.iter().find_map(|e| match e {
            Evidence::Decision(id) => Some(*id),
            _ => None,
        })
    }

    /// Sets the severity.
    pub fn severity(mut self, severity: Severity) -> Finding {
        self.severity = severity;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_have_distinct_ids_and_slugs_in_order() {
        assert!(RULES.windows(2).all(|w| w[0].id < w[1].id));
        for (i, r) in RULES.iter().enumerate() {
            assert!(RULES[i + 1..].iter().all(|o| o.slug != r.slug));
            assert!(!r.summary.is_empty());
        }
    }
}
