//! What would this loader do? Search, closure, failures in its exact words, every decision recorded while it is made.
//!
//! Open a [`Store`] on a [`crate::system::System`], read a [`Dialect`] from the target's own loader, make a
//! [`Process`], and feed it steps: [`Process::exec`], [`Process::dlopen`]. The outcome is in [`Process::images`],
//! [`Process::decisions`] and [`Process::steps`].
//!
//! This room reads no disk, environment or clock by itself; all of that comes through the `System`. It knows nothing
//! of Python or CUDA.

pub mod bind;
mod budget;
pub mod cache;
pub mod closure;
pub mod config;
pub mod dialect;
pub mod elements;
pub mod loaded_cache;
pub mod musl;
mod names;
pub mod scope;
pub mod search;
mod sort;
pub mod store;
pub mod tokens;
mod touched;
pub mod tunables;
pub mod verify;
pub mod versions;

use std::fmt;
use std::sync::Arc;

use bstr::{BStr, BString, ByteSlice};

use crate::elf::Facts;
use crate::system::{Errno, FileKey};

pub use bind::{
    Because, Binding, Bindings, Candidate, Ending, FirstCall, Lookups, Outside, Refusal, Standing, Trace, Unresolved,
    Wanted, When,
};
pub use closure::{LoaderOptions, OpenRequest, Process, Start};
pub use dialect::{Dialect, Family};
pub use elements::List;
pub use loaded_cache::LoadedCache;
pub use scope::ScopePart;
pub use store::{Object, Store};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub u32);

        impl $name {
            /// As an index into the array it counts.
            pub fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0)
            }
        }
    };
}

id!(
    /// Index into [`Process::images`].
    ImageId
);
id!(
    /// Index into [`Process::decisions`].
    DecisionId
);
id!(
    /// Index into [`Process::steps`].
    StepId
);

/// The rule by which a file was reached. Names in reports are those of [`Rule::name`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Rule {
    /// The program itself, mapped by the kernel (or by the loader run as a program).
    Exec,
    /// The name has a slash and is opened as given (rule R1.1).
    Path,
    /// A directory of a `DT_RPATH`.
    Rpath,
    /// A directory of `LD_LIBRARY_PATH`.
    LibraryPath,
    /// A directory of the requester's `DT_RUNPATH`.
    Runpath,
    /// A line of `/etc/ld.so.cache`.
    Cache,
    /// A built-in default directory.
    Default,
    /// A preload entry with a slash.
    Preload,
    /// No search: a loaded image answers to the name, or the file found is one that is loaded already.
    AlreadyLoaded,
    /// A directory of musl's path file or of its built-in path.
    MuslPath,
}

impl Rule {
    /// The name used in reports.
    pub fn name(self) -> &'static str {
        match self {
            Rule::Exec => "exec",
            Rule::Path => "path",
            Rule::Rpath => "rpath",
            Rule::LibraryPath => "LD_LIBRARY_PATH",
            Rule::Runpath => "runpath",
            Rule::Cache => "cache",
            Rule::Default => "default",
            Rule::Preload => "preload",
            Rule::AlreadyLoaded => "already-loaded",
            Rule::MuslPath => "musl-path",
        }
    }
}

/// A place in the search order: the rule, whose tag it is, which element.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// The rule.
    pub rule: Rule,
    /// The image whose RPATH or RUNPATH it is.
    pub owner: Option<ImageId>,
    /// Element of the list as written, from 0 (`a::b` has elements 0, 1, 2).
    pub entry: Option<u32>,
}

impl Place {
    /// A place without owner and element.
    pub fn of(rule: Rule) -> Place {
        Place { rule, owner: None, entry: None }
    }
}

/// Why a loaded image answered a request (the three identity rules R5.1, R5.6).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Identity {
    /// The request equals the path or another name the image answers to.
    Name,
    /// The request equals its `DT_SONAME`.
    Soname,
    /// The file found has the same device and inode.
    Inode,
}

/// What became of one candidate.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// This file is used.
    Taken,
    /// Opening failed and the search went on.
    Skipped(Errno),
    /// Opening failed in a way that ends this list; the next rule goes on (rule R3.5).
    ListStopped(Errno),
    /// ELF file of the other class: skipped.
    WrongClass,
    /// ELF file for another machine: skipped without a word.
    WrongMachine,
    /// Its ABI note asks for a newer kernel: skipped like a missing file (glibc up to 2.35, rule R4.20).
    NeedsNewerKernel,
    /// A preload in secure mode whose file has no set-user-ID bit: skipped like a missing file (rule R3.10).
    NotSetUserId,
    /// This file ends the whole load; the text without object name and errno tail.
    Fatal(String),
    /// A usable copy that a later place holds and that was not reached.
    NotReached,
    /// Its directory is known to be missing from an earlier try, so nothing was opened (rule R2.9).
    DirectoryMissing,
    /// A usable cache line that `DF_1_NODEFLIB` of the requester forbids (rule R2.10).
    Forbidden,
}

impl Verdict {
    /// The name used in reports.
    pub fn name(&self) -> String {
        match self {
            Verdict::Taken => "taken".into(),
            Verdict::Skipped(e) if matches!(*e, Errno::ENOENT | Errno::ENOTDIR) => "absent".into(),
            Verdict::Skipped(_) | Verdict::ListStopped(_) => "unreadable".into(),
            Verdict::NeedsNewerKernel | Verdict::NotSetUserId | Verdict::DirectoryMissing => "absent".into(),
            Verdict::WrongClass => "wrong-class".into(),
            Verdict::WrongMachine => "wrong-machine".into(),
            Verdict::Fatal(text) => format!("fatal: {text}"),
            Verdict::NotReached | Verdict::Forbidden => "not-reached".into(),
        }
    }
}

/// One candidate and what became of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Attempt {
    /// The path as the loader would open it.
    pub path: BString,
    /// Where in the search order it stood.
    pub place: Place,
    /// What became of it.
    pub verdict: Verdict,
}

/// How a request arose.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum How {
    /// The program itself.
    Exec,
    /// `DT_NEEDED`.
    Needed,
    /// `LD_PRELOAD`, `--preload`, `/etc/ld.so.preload`.
    Preload,
    /// `dlopen`.
    Dlopen,
    /// `DT_AUXILIARY`.
    Auxiliary,
    /// `DT_FILTER`.
    Filter,
}

impl How {
    /// The name used in reports.
    pub fn name(self) -> &'static str {
        match self {
            How::Exec => "exec",
            How::Needed => "needed",
            How::Preload => "preload",
            How::Dlopen => "dlopen",
            How::Auxiliary => "auxiliary",
            How::Filter => "filter",
        }
    }
}

/// The reason of a hit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Via {
    /// Rule, owner, element.
    pub place: Place,
    /// For [`Rule::AlreadyLoaded`]: which identity matched.
    pub identity: Option<Identity>,
    /// The element, cache line or name that decided, as text.
    pub text: BString,
}

/// One request and how it was answered.
#[derive(Clone, Debug)]
pub struct Decision {
    /// The step during which it was made.
    pub step: StepId,
    /// The name as asked, tokens not expanded.
    pub asked: BString,
    /// Who asked: the image with the NEEDED entry or the caller of `dlopen`.
    pub needed_by: Option<ImageId>,
    /// How the request arose.
    pub how: How,
    /// The image that answers it; `None` when nothing does.
    pub chosen: Option<ImageId>,
    /// Why that one. `None` when nothing was chosen.
    pub via: Option<Via>,
    /// Candidates in the order they were tried, then the copies that were not reached.
    pub attempts: Vec<Attempt>,
    /// A file that the search ended at and that the loader then refused: its path and where it stood.
    pub refused: Option<(BString, Place)>,
    /// Why it failed, when it did.
    pub failure: Option<LoadFailure>,
}

impl Decision {
    /// A request that nothing was tried for yet.
    pub(crate) fn new(step: StepId, asked: BString, needed_by: Option<ImageId>, how: How) -> Decision {
        Decision {
            step,
            asked,
            needed_by,
            how,
            chosen: None,
            via: None,
            attempts: Vec::new(),
            refused: None,
            failure: None,
        }
    }
}

/// A failure in the loader's own words, in parts: the frame around them differs between start-up and `dlopen`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LoadFailure {
    /// The object named in front; may be empty.
    pub object: BString,
    /// The text.
    pub text: BString,
    /// The error number whose text follows; 0 for none.
    pub errno: i32,
    /// True for version errors, which start-up prints in a frame of their own (rule R7.2).
    pub is_version: bool,
    /// True for a symbol that nothing defines, which start-up prints in another frame (rule R8.1).
    pub is_symbol: bool,
    /// The signal that ends the process in place of a message: a file that is cut short passes every check, and reading
    /// its missing pages is SIGBUS (rule R3.6).
    pub signal: Option<&'static str>,
}

/// What stands for the loader's words when it opens a FIFO: it says nothing and waits.
pub(crate) const WAITS: &str = "the loader waits until somebody writes into this FIFO";

impl LoadFailure {
    pub(crate) fn new(object: impl Into<BString>, text: impl Into<BString>, errno: i32) -> LoadFailure {
        LoadFailure {
            object: object.into(),
            text: text.into(),
            errno,
            is_version: false,
            is_symbol: false,
            signal: None,
        }
    }

    /// A file that kills the process which loads it.
    pub(crate) fn killed(object: &BStr, signal: &'static str, why: &str) -> LoadFailure {
        let mut failure = LoadFailure::new(object.to_owned(), format!("killed by {signal}: {why}"), 0);
        failure.signal = Some(signal);
        failure
    }

    /// True when the loader's own assertion ends the process: nothing is printed around its text.
    pub fn is_assertion(&self) -> bool {
        self.object.is_empty() && self.text.starts_with(b"Inconsistency")
    }

    /// True when nothing is said and nothing ends: the loader opens a FIFO and waits for somebody who writes into it.
    pub fn waits(&self) -> bool {
        self.text == WAITS
    }

    /// True when the process gets no further and no message tells why: a signal ends it, or it waits.
    pub fn is_the_end(&self) -> bool {
        self.signal.is_some() || self.waits()
    }

    /// What is shown of such an end.
    pub(crate) fn end_text(&self) -> BString {
        if self.waits() { self.dlerror() } else { self.text.clone() }
    }

    /// True when nothing stands around the text at a start: the process is ended by a signal or an assertion, or waits.
    pub(crate) fn stands_alone(&self) -> bool {
        self.is_the_end() || self.is_assertion()
    }

    /// What `dlerror()` returns: `OBJECT: TEXT: ERRNO TEXT`.
    pub fn dlerror(&self) -> BString {
        self.framed(&Errno(self.errno).text())
    }

    /// The part after `error while loading shared libraries: `. Start-up knows only six errno texts, any other number
    /// is printed as `Error N` (rule R8.2).
    pub fn at_startup(&self) -> BString {
        let text = match self.errno {
            1 | 2 | 5 | 12 | 13 | 22 => Errno(self.errno).text(),
            n => format!("Error {n}"),
        };
        self.framed(&text)
    }

    fn framed(&self, tail: &str) -> BString {
        let mut out = BString::default();
        if !self.object.is_empty() {
            out.extend_from_slice(&self.object);
            out.extend_from_slice(b": ");
        }
        out.extend_from_slice(&self.text);
        if self.errno != 0 {
            out.extend_from_slice(b": ");
            out.extend_from_slice(tail.as_bytes());
        }
        out
    }
}

/// A text of parts, as bytes: names need not be UTF-8.
pub(crate) fn concat(parts: &[&[u8]]) -> BString {
    parts.concat().into()
}

/// What an image is in the process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// The main program.
    Main,
    /// The loader itself (`ld.so`; musl's libc).
    Loader,
    /// A library.
    Library,
    /// The kernel's own library (the vdso), which has no file. It stands in the list only where somebody asks for it.
    Vdso,
}

/// One loaded object: glibc's `struct link_map`, musl's `struct dso`.
#[derive(Clone, Debug)]
pub struct Image {
    /// `l_name`: the path as the loader records it, not normalised. For the main program the path it was started by.
    pub name: BString,
    /// Main, loader or library.
    pub role: Role,
    /// Names it answers to besides `name` (`l_libname`): the string that caused the load comes first.
    pub names: Vec<BString>,
    /// The file.
    pub object: Arc<Object>,
    /// Identity for unification; `None` for a main program mapped by the kernel (rule R5.4).
    pub key: Option<FileKey>,
    /// `l_loader`: the image whose request first caused it to load; `None` for the main program and for what `dlopen`
    /// loads directly (rule R2.4).
    pub loader: Option<ImageId>,
    /// What `$ORIGIN` stands for; `None` when it cannot be found out (rule R1.5).
    pub origin: Option<BString>,
    /// The decision that loaded it.
    pub decision: DecisionId,
    /// The step that loaded it.
    pub step: StepId,
    /// True when it is in the global scope.
    pub global: bool,
    /// Its search list: itself and its dependencies breadth first (rule R6.4). Empty until it was computed.
    pub search_list: Vec<ImageId>,
    /// Its search list sorted, dependencies last (`l_initfini`). Empty until it was computed.
    pub sorted: Vec<ImageId>,
    /// Where its references are looked up, list by list. Not used by musl.
    pub scope: Vec<ScopePart>,
    /// The images that answered its NEEDED entries, in order, when those were followed.
    pub needs: Vec<ImageId>,
    /// The failed step that unloaded it again.
    pub unloaded_by: Option<StepId>,
    /// True for a filtee of the program itself, which drops out of the loader's own list (rule R6.3).
    pub hidden: bool,
    /// How many of its requests were made, counted from the first.
    pub(crate) requested: u32,
    pub(crate) soname_added: bool,
    /// Its references were looked up.
    pub(crate) is_relocated: bool,
    /// True when its functions were left to their first calls.
    pub(crate) is_bound_late: bool,
    pub(crate) versions_checked: bool,
}

impl Image {
    /// An image that was just mapped: no dependencies yet, no names besides its path, not global.
    pub(crate) fn new(name: BString, role: Role, object: Arc<Object>, decision: DecisionId, step: StepId) -> Image {
        Image {
            name,
            role,
            names: Vec::new(),
            key: Some(object.meta.key),
            object,
            loader: None,
            origin: None,
            decision,
            step,
            global: false,
            search_list: Vec::new(),
            needs: Vec::new(),
            unloaded_by: None,
            hidden: false,
            requested: 0,
            soname_added: false,
            sorted: Vec::new(),
            scope: Vec::new(),
            is_relocated: false,
            is_bound_late: false,
            versions_checked: false,
        }
    }

    /// The facts of its file; `None` only for a file that could not be read.
    pub fn facts(&self) -> Option<&Facts> {
        self.object.facts()
    }

    /// `DT_SONAME`.
    pub fn soname(&self) -> Option<&BStr> {
        self.facts().and_then(|f| f.soname.as_ref()).map(|s| s.as_bstr())
    }
}

/// `dlopen` flags.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct OpenFlags {
    /// `RTLD_GLOBAL`; otherwise `RTLD_LOCAL`.
    pub global: bool,
    /// `RTLD_LAZY`; otherwise `RTLD_NOW`.
    pub lazy: bool,
    /// `RTLD_DEEPBIND`.
    pub deep_bind: bool,
    /// `RTLD_NOLOAD`.
    pub no_load: bool,
    /// `RTLD_NODELETE`.
    pub no_delete: bool,
}

impl OpenFlags {
    /// The flags by name, as reports list them.
    pub fn names(self) -> Vec<&'static str> {
        let mut out = vec![
            if self.lazy { "RTLD_LAZY" } else { "RTLD_NOW" },
            if self.global { "RTLD_GLOBAL" } else { "RTLD_LOCAL" },
        ];
        if self.deep_bind {
            out.push("RTLD_DEEPBIND");
        }
        if self.no_load {
            out.push("RTLD_NOLOAD");
        }
        if self.no_delete {
            out.push("RTLD_NODELETE");
        }
        out
    }
}

/// What kind of event a step is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StepKind {
    /// A program is started.
    Exec,
    /// A preload entry of that start.
    Preload,
    /// A `dlopen`.
    Dlopen,
    /// A `dlopen` by Python's import system.
    Import,
}

impl StepKind {
    /// The name used in reports.
    pub fn name(self) -> &'static str {
        match self {
            StepKind::Exec => "exec",
            StepKind::Preload => "preload",
            StepKind::Dlopen => "dlopen",
            StepKind::Import => "import",
        }
    }
}

/// How a step ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// It loaded what it asked for.
    Ok,
    /// It failed.
    Failed,
    /// What it asked for was loaded already.
    AlreadyLoaded,
    /// It was not done.
    Skipped,
}

impl Outcome {
    /// The name used in reports.
    pub fn name(self) -> &'static str {
        match self {
            Outcome::Ok => "ok",
            Outcome::Failed => "failed",
            Outcome::AlreadyLoaded => "already-loaded",
            Outcome::Skipped => "skipped",
        }
    }
}

/// One event fed to the process.
#[derive(Clone, Debug)]
pub struct Step {
    /// What kind.
    pub kind: StepKind,
    /// The program, library or module name.
    pub name: BString,
    /// `dlopen` flags; `None` for exec and preload.
    pub flags: Option<OpenFlags>,
    /// The image whose code calls `dlopen`.
    pub caller: Option<ImageId>,
    /// How it ended.
    pub outcome: Outcome,
    /// True when the program goes on without it.
    pub optional: bool,
    /// The exact text that this loader prints or returns through `dlerror()`.
    pub error: Option<BString>,
    /// The failure in parts.
    pub failure: Option<LoadFailure>,
    /// The image that the step asked for.
    pub image: Option<ImageId>,
    /// Lines that the loader prints and goes on (preload failures, version warnings).
    pub warnings: Vec<BString>,
    /// Who makes this step and why, in words, when a recipe made it.
    pub note: String,
}
