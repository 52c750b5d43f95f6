//! Reads what glibc's loader writes under `LD_DEBUG=libs,files,scopes` into plain data, in the order of events.
//!
//! The grammar is one for glibc 2.31 to 2.43. What a trace does **not** say, and so what nobody may read out of it:
//!
//! * A request that an already loaded object answers by name or soname leaves no line at all, be it NEEDED or dlopen.
//! * `trying file=` followed by nothing may be a hit, a file that ends the load (a bad ELF header), or, before 2.43, a
//!   miss. Only `generating link map` proves a new object. A request without one was either unified with an object of the
//!   same device and inode, or failed: [`ProcessTrace::settle`] tells the two apart by looking at the files.
//! * The rule in parentheses after `search path=` is not that of the list being searched. The loader keeps one record for
//!   each directory text (`fillin_rpath`, `dl_all_dirs`), and prints the rule of the list that mentioned the text
//!   *first*. A DT_RPATH element that LD_LIBRARY_PATH holds too is announced as `(LD_LIBRARY_PATH)`, and where the kind of
//!   rule changes inside a list a second `search path=` line begins. [`Labels`] keeps the same books, for comparisons.

#![allow(dead_code)] // each test binary uses its own part

use bstr::{BStr, BString, ByteSlice};
use std::collections::HashMap;
use std::mem::discriminant;

/// Who asked for a library.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Asker {
    /// DT_NEEDED (also DT_AUXILIARY and DT_FILTER) of this object, or a preload, which counts as needed by the program.
    NeededBy(BString),
    /// The code of this object called dlopen.
    DlopenedBy(BString),
    /// The loader was run as a program and this is the program it was given.
    CommandLine,
}

/// The rule that the loader prints for a list of directories; see the note on labels above.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Rule {
    /// DT_RPATH of this file.
    Rpath(BString),
    /// DT_RUNPATH of this file.
    Runpath(BString),
    /// The environment's list (2.31 says this for `--library-path` too).
    LdLibraryPath,
    /// The list given by `--library-path`.
    LibraryPathOption,
    /// The built-in directories.
    System,
    /// The cache file of this name.
    Cache(BString),
    /// Words that the grammar does not know, kept as printed.
    Other(BString),
}

/// Why a candidate was passed over. Only glibc 2.43 and later say so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The file could not be opened, for whatever errno.
    NoSuchFile,
    /// An ELF file of the other class.
    WrongClass,
    /// An ELF file for another machine.
    WrongMachine,
}

/// One file that was tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The path as the loader spelled it.
    pub path: BString,
    /// Why it was not taken, where the loader says so.
    pub reason: Option<Reason>,
}

/// One directory list (or the cache) that was consulted, with the candidates tried in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SearchList {
    /// The printed label.
    pub rule: Rule,
    /// The directories still thought to exist, hwcaps forms included: not the whole list, but a run of directories with
    /// one kind of rule; the file in the label is that of the first. Split at colons, so an element never holds one.
    /// Empty for the cache.
    pub dirs: Vec<BString>,
    /// What was tried, in order.
    pub tried: Vec<Candidate>,
}

/// What came of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A new object. `path` is the name that the loader records (`l_name`), except for a dlopen name that holds a dynamic
    /// string token, which is printed unexpanded. `mapped` is false when a late check refused the file.
    New {
        /// As the loader recorded it.
        path: BString,
        /// The loader went on to print addresses.
        mapped: bool,
    },
    /// No new object: unified by device and inode, or failed. Not to be told apart from the trace.
    NotNew,
    /// Settled: the object of this name has the same device and inode.
    Unified(BString),
    /// Settled: the last candidate (or the name itself, when it holds a slash) cannot be opened.
    Missing,
    /// Settled: the last candidate exists, but became no object: refused, or, at the end of a search, skipped.
    Refused(BString),
}

/// One request for a library which the loader did not answer from its own list of names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Load {
    /// The name asked for, DT_NEEDED text with tokens expanded.
    pub name: BString,
    /// Number of the namespace; 0 is the program's own.
    pub namespace: u64,
    /// Who asked.
    pub asker: Asker,
    /// The lists gone through. Empty for a name with a slash.
    pub lists: Vec<SearchList>,
    /// A reason line without a candidate: the fate of a name with a slash, since 2.43.
    pub reason: Option<Reason>,
    /// What came of it.
    pub outcome: Outcome,
}

impl Load {
    /// The last file tried, or the name itself when it holds a slash.
    pub fn last_candidate(&self) -> Option<&BStr> {
        if self.name.contains(&b'/') {
            return Some(self.name.as_bstr());
        }
        self.lists.iter().rev().find_map(|list| list.tried.last()).map(|candidate| candidate.path.as_bstr())
    }

    /// The list in which the last candidate stood.
    pub fn last_list(&self) -> Option<&SearchList> {
        self.lists.iter().rev().find(|list| !list.tried.is_empty())
    }

    /// Every path tried, in order, whatever list it came from.
    pub fn tried(&self) -> impl Iterator<Item = &BStr> {
        self.lists.iter().flat_map(|list| list.tried.iter()).map(|candidate| candidate.path.as_bstr())
    }

    /// The path of the new object, if there is one.
    pub fn new_path(&self) -> Option<&BStr> {
        match &self.outcome {
            Outcome::New { path, mapped: true } => Some(path.as_bstr()),
            _ => None,
        }
    }
}

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A library was asked for.
    Load(Load),
    /// `load auxiliary object=NAME requested by file=BY`.
    Auxiliary {
        /// The filtee.
        name: BString,
        /// The file with the tag.
        by: BString,
    },
    /// The constructors of this object run now.
    Init(BString),
    /// DT_PREINIT_ARRAY of the program runs now.
    Preinit(BString),
    /// The program's own start.
    TransferControl(BString),
    /// The destructors of this object run now. The program's own name may be empty here.
    Fini(BString),
    /// The object was added to the global scope (RTLD_GLOBAL). This comes after the constructors.
    Global(BString),
    /// A dlopen succeeded; the count is how often this object has been opened directly. A first opening is printed by
    /// every version, later ones by 2.41 and before.
    Opened {
        /// The object.
        path: BString,
        /// Its count of direct openings.
        count: u64,
    },
    /// A dlclose that left the object open.
    Closed {
        /// The object.
        path: BString,
        /// What is left of its count.
        count: u64,
    },
    /// The object was unmapped: dlclose, or the end of a dlopen that failed.
    Unmapped(BString),
    /// The loader's own error line (symbols and versions only; files that do not open leave none).
    Error {
        /// The object named first.
        object: BString,
        /// The rest of the line.
        text: BString,
    },
}

/// The trace of one process (one PID) of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessTrace {
    /// The process that wrote the lines.
    pub pid: u32,
    /// What happened, in order.
    pub events: Vec<Event>,
    /// Lines outside the grammar, of categories that were not asked for or from a loader unknown to this parser. Tests
    /// demand that it is empty.
    pub unknown: Vec<BString>,
}

/// Splits one output file by process and reads each. A process that forks without exec goes on writing to the file of
/// its parent under its own PID, so one file can hold several; the first to write comes first.
///
/// # Errors
///
/// A line before the first `PID:<TAB>` prefix: the file is no such trace.
pub fn parse(text: &[u8]) -> Result<Vec<ProcessTrace>, String> {
    let mut readers: Vec<Reader> = Vec::new();
    for (pid, line) in records(text)? {
        let at = match readers.iter().position(|reader| reader.trace.pid == pid) {
            Some(at) => at,
            None => {
                readers.push(Reader::new(pid));
                readers.len() - 1
            }
        };
        readers[at].line(&line);
    }
    Ok(readers.into_iter().map(|reader| reader.trace).collect())
}

/// The lines with their process. A newline inside a name is printed as it is, without a prefix, so a line without prefix
/// continues the one before.
fn records(text: &[u8]) -> Result<Vec<(u32, BString)>, String> {
    let mut out: Vec<(u32, BString)> = Vec::new();
    for line in text.lines() {
        match prefix(line) {
            Some((pid, rest)) => out.push((pid, BString::from(rest))),
            None => match out.last_mut() {
                Some((_, last)) => {
                    last.push(b'\n');
                    last.extend_from_slice(line);
                }
                None => return Err(format!("no `PID:<TAB>` in front of {:?}", line.as_bstr())),
            },
        }
    }
    Ok(out)
}

/// `^ *PID:\t`
fn prefix(line: &[u8]) -> Option<(u32, &[u8])> {
    let start = line.find_not_byteset(b" ")?;
    let colon = start + line[start..].find_byte(b':')?;
    let pid = line[start..colon].to_str().ok()?.parse().ok()?;
    Some((pid, line[colon + 1..].strip_prefix(b"\t")?))
}

/// The state of reading one process.
struct Reader {
    trace: ProcessTrace,
    /// Index of the load whose lines are being read.
    open: Option<usize>,
}

impl Reader {
    fn new(pid: u32) -> Self {
        Reader { trace: ProcessTrace { pid, events: Vec::new(), unknown: Vec::new() }, open: None }
    }

    fn open_load(&mut self) -> Option<&mut Load> {
        match self.trace.events.get_mut(self.open?) {
            Some(Event::Load(load)) => Some(load),
            _ => None,
        }
    }

    fn push(&mut self, event: Event) {
        self.open = None;
        self.trace.events.push(event);
    }

    fn line(&mut self, line: &[u8]) {
        if !self.known(line) {
            self.trace.unknown.push(BString::from(line));
        }
    }

    /// Takes one line in; false when it is none of the grammar.
    fn known(&mut self, line: &[u8]) -> bool {
        if line.is_empty() || is_scope_listing(line) {
            return true;
        }
        if let Some(rest) = line.strip_prefix(b"  trying file=") {
            return self.candidate(rest);
        }
        if let Some(reason) = reason(line) {
            return self.reason(reason);
        }
        if line.starts_with(b"  dynamic: ") {
            return match self.open_load().map(|load| &mut load.outcome) {
                Some(Outcome::New { mapped, .. }) => {
                    *mapped = true;
                    true
                }
                _ => false,
            };
        }
        if line.starts_with(b"    entry: ") {
            return true;
        }
        if let Some(rest) = line.strip_prefix(b" search path=") {
            return self.search_path(rest);
        }
        if let Some(rest) = line.strip_prefix(b" search cache=") {
            return self.list(SearchList { rule: Rule::Cache(rest.into()), dirs: Vec::new(), tried: Vec::new() });
        }
        if let Some(rest) = line.strip_prefix(b"find library=") {
            let named = rest.strip_suffix(b"; searching").and_then(namespaced);
            return match (named, self.open_load()) {
                (Some((name, _)), Some(load)) => load.name == name,
                _ => false,
            };
        }
        if let Some(rest) = line.strip_prefix(b"file=") {
            return self.file(rest);
        }
        self.plain(line)
    }

    fn candidate(&mut self, path: &[u8]) -> bool {
        match self.open_load().and_then(|load| load.lists.last_mut()) {
            Some(list) => {
                list.tried.push(Candidate { path: path.into(), reason: None });
                true
            }
            None => false,
        }
    }

    fn reason(&mut self, reason: Reason) -> bool {
        let Some(load) = self.open_load() else { return false };
        match load.lists.iter_mut().rev().find_map(|list| list.tried.last_mut()) {
            Some(candidate) => candidate.reason = Some(reason),
            None => load.reason = Some(reason),
        }
        true
    }

    fn list(&mut self, list: SearchList) -> bool {
        match self.open_load() {
            Some(load) => {
                load.lists.push(list);
                true
            }
            None => false,
        }
    }

    fn search_path(&mut self, rest: &[u8]) -> bool {
        let Some(cut) = rest.rfind(b"\t\t(") else { return false };
        let Some(label) = rest[cut + 3..].strip_suffix(b")") else { return false };
        let dirs = rest[..cut].split_str(b":").map(BString::from).collect();
        self.list(SearchList { rule: rule(label), dirs, tried: Vec::new() })
    }

    /// What follows `file=`.
    fn file(&mut self, rest: &[u8]) -> bool {
        let Some((name, namespace, what)) = file_line(rest) else { return false };
        if what == "generating link map" {
            self.generating(name, namespace);
            return true;
        }
        if what == "destroying link map" {
            self.push(Event::Unmapped(name.into()));
            return true;
        }
        if what.ends_with(b" (relocation dependency)") {
            return true;
        }
        let asker = if let Some(by) = what.strip_prefix(b"needed by ").and_then(namespaced) {
            Asker::NeededBy(by.0.into())
        } else if let Some(by) = what.strip_prefix(b"dynamically loaded by ").and_then(namespaced) {
            Asker::DlopenedBy(by.0.into())
        } else {
            return false;
        };
        self.push(Event::Load(Load {
            name: name.into(),
            namespace,
            asker,
            lists: Vec::new(),
            reason: None,
            outcome: Outcome::NotNew,
        }));
        self.open = Some(self.trace.events.len() - 1);
        true
    }

    fn generating(&mut self, name: &[u8], namespace: u64) {
        if let Some(load) = self.open_load().filter(|load| load.name == name && load.outcome == Outcome::NotNew) {
            let path = load.last_candidate().map_or_else(|| BString::from(name), |path| path.to_owned());
            load.outcome = Outcome::New { path, mapped: false };
            return;
        }
        self.push(Event::Load(Load {
            name: name.into(),
            namespace,
            asker: Asker::CommandLine,
            lists: Vec::new(),
            reason: None,
            outcome: Outcome::New { path: name.into(), mapped: false },
        }));
        self.open = Some(self.trace.events.len() - 1);
    }

    /// The lines that are one event each.
    fn plain(&mut self, line: &[u8]) -> bool {
        let event = if let Some(rest) = line.strip_prefix(b"calling init: ") {
            Event::Init(rest.into())
        } else if let Some(rest) = line.strip_prefix(b"calling preinit: ") {
            Event::Preinit(rest.into())
        } else if let Some(rest) = line.strip_prefix(b"transferring control: ") {
            Event::TransferControl(rest.into())
        } else if let Some(name) = line.strip_prefix(b"calling fini: ").and_then(namespaced) {
            Event::Fini(name.0.into())
        } else if let Some(rest) = line.strip_prefix(b"load auxiliary object=") {
            match rest.split_once_str(b" requested by file=") {
                Some((name, by)) => Event::Auxiliary { name: name.into(), by: by.into() },
                None => return false,
            }
        } else if let Some(rest) = line.strip_prefix(b"opening file=") {
            match opencount(rest) {
                Some((path, count)) => Event::Opened { path: path.into(), count },
                None => return false,
            }
        } else if let Some(rest) = line.strip_prefix(b"closing file=") {
            match opencount(rest) {
                Some((path, count)) => Event::Closed { path: path.into(), count },
                None => return false,
            }
        } else if let Some(name) =
            line.strip_prefix(b"add ").and_then(|rest| rest.strip_suffix(b" to global scope")).and_then(namespaced)
        {
            Event::Global(name.0.into())
        } else if let Some((object, text)) = line.split_once_str(b": error: ") {
            Event::Error { object: object.into(), text: text.into() }
        } else {
            return line.starts_with(b"initialize program: ")
                || line.starts_with(b"marking ")
                || line.starts_with(b"activating NODELETE for ")
                || line.starts_with(b"WARNING: Unsupported flag value");
        };
        self.push(event);
        true
    }
}

/// The scope listings, whose content is a consequence of the loads and is not kept.
fn is_scope_listing(line: &[u8]) -> bool {
    line == b"Initial object scopes"
        || line == b" no scope"
        || line.starts_with(b" scope ")
        || (line.starts_with(b"object=") && line.ends_with(b"]"))
}

/// `NAME [N]`
fn namespaced(text: &[u8]) -> Option<(&[u8], u64)> {
    let cut = text.rfind(b" [")?;
    let number = text[cut + 2..].strip_suffix(b"]")?.to_str().ok()?.parse().ok()?;
    Some((&text[..cut], number))
}

/// `NAME [N];  WHAT`
fn file_line(text: &[u8]) -> Option<(&[u8], u64, &BStr)> {
    let cut = text.find(b"];  ")?;
    let (name, namespace) = namespaced(&text[..cut + 1])?;
    Some((name, namespace, text[cut + 4..].as_bstr()))
}

/// `PATH [N]; direct_opencount=K`, and the same without `[N]`
fn opencount(text: &[u8]) -> Option<(&[u8], u64)> {
    let (path, count) = text.rsplit_once_str(b"; direct_opencount=")?;
    let path = namespaced(path).map_or(path, |(path, _)| path);
    Some((path, count.to_str().ok()?.parse().ok()?))
}

fn reason(line: &[u8]) -> Option<Reason> {
    match line {
        b"    (no such file)" => Some(Reason::NoSuchFile),
        b"    (incompatible ELF class)" => Some(Reason::WrongClass),
        b"    (incompatible ELF machine)" => Some(Reason::WrongMachine),
        _ => None,
    }
}

fn rule(label: &[u8]) -> Rule {
    if let Some(file) = label.strip_prefix(b"RPATH from file ") {
        Rule::Rpath(file.into())
    } else if let Some(file) = label.strip_prefix(b"RUNPATH from file ") {
        Rule::Runpath(file.into())
    } else {
        match label {
            b"LD_LIBRARY_PATH" => Rule::LdLibraryPath,
            b"--library-path" => Rule::LibraryPathOption,
            b"system search path" => Rule::System,
            other => Rule::Other(other.into()),
        }
    }
}

/// A dlopen, or the start of the program, with what it mapped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step<'a> {
    /// The dlopen's own request; none for the start of the program.
    pub asked: Option<&'a Load>,
    /// The requests for dependencies that followed, in order.
    pub dependencies: Vec<&'a Load>,
}

impl Step<'_> {
    /// Paths of the new objects, in load order.
    pub fn new_paths(&self) -> Vec<&BStr> {
        self.asked.iter().copied().chain(self.dependencies.iter().copied()).filter_map(Load::new_path).collect()
    }
}

impl ProcessTrace {
    /// All requests, in order.
    pub fn loads(&self) -> impl Iterator<Item = &Load> {
        self.events.iter().filter_map(|event| match event {
            Event::Load(load) => Some(load),
            _ => None,
        })
    }

    /// Paths of all new objects as the loader recorded them, in load order. The program, the loader and the vdso are not
    /// among them: the kernel maps those.
    pub fn new_paths(&self) -> Vec<&BStr> {
        self.loads().filter_map(Load::new_path).collect()
    }

    /// The order in which constructors ran. 2.31 does not print the loader's own.
    pub fn init_order(&self) -> Vec<&BStr> {
        self.events
            .iter()
            .filter_map(|event| match event {
                Event::Init(path) => Some(path.as_bstr()),
                _ => None,
            })
            .collect()
    }

    /// The requests by step: first the start of the program (preloads, then NEEDED), then each dlopen that was not
    /// answered by name. A constructor that calls dlopen never splits the step around it, for it runs when that step has
    /// mapped all it needs.
    pub fn steps(&self) -> Vec<Step<'_>> {
        let mut steps = vec![Step { asked: None, dependencies: Vec::new() }];
        for load in self.loads() {
            match (&load.asker, steps.last_mut()) {
                (Asker::DlopenedBy(_), _) | (_, None) => {
                    steps.push(Step { asked: Some(load), dependencies: Vec::new() })
                }
                (_, Some(step)) => step.dependencies.push(load),
            }
        }
        steps
    }

    /// Replaces every [`Outcome::NotNew`] by what the files say. `identity` gives device and inode of a path, or nothing
    /// when it can't be opened; `mapped_by_kernel` are the objects that answer by inode without a trace line of their own:
    /// the loader, but never the program, whose inode the loader does not record.
    pub fn settle(&mut self, mapped_by_kernel: &[BString], identity: impl Fn(&BStr) -> Option<(u64, u64)>) {
        let mut known: HashMap<(u64, u64, u64), BString> = HashMap::new();
        for path in mapped_by_kernel {
            if let Some((dev, ino)) = identity(path.as_bstr()) {
                known.entry((0, dev, ino)).or_insert_with(|| path.clone());
            }
        }
        for event in &mut self.events {
            match event {
                Event::Load(load) => settle_load(load, &mut known, &identity),
                Event::Unmapped(path) => known.retain(|_, held| held != path),
                _ => {}
            }
        }
    }
}

fn settle_load(
    load: &mut Load,
    known: &mut HashMap<(u64, u64, u64), BString>,
    identity: &impl Fn(&BStr) -> Option<(u64, u64)>,
) {
    let key = |(dev, ino)| (load.namespace, dev, ino);
    match &load.outcome {
        Outcome::New { path, mapped: true } => {
            if let Some(id) = identity(path.as_bstr()) {
                known.entry(key(id)).or_insert_with(|| path.clone());
            }
        }
        Outcome::NotNew => {
            let last = load.last_candidate().map(|path| (path.to_owned(), identity(path)));
            load.outcome = match last {
                None | Some((_, None)) => Outcome::Missing,
                Some((path, Some(id))) => match known.get(&key(id)) {
                    Some(held) => Outcome::Unified(held.clone()),
                    None => Outcome::Refused(path),
                },
            };
        }
        _ => {}
    }
}

/// The loader's books on directory texts: which rule it prints for a directory that stands in several lists.
///
/// Tell it of the lists in the order in which the loader parses them: the built-in directories, then the program's
/// DT_RUNPATH or else its DT_RPATH, then LD_LIBRARY_PATH; any other object's list when it is first consulted.
#[derive(Clone, Debug, Default)]
pub struct Labels {
    first: HashMap<BString, Rule>,
}

impl Labels {
    /// A list is parsed; directories that are known already keep the rule they have.
    pub fn list<'a>(&mut self, rule: &Rule, dirs: impl IntoIterator<Item = &'a BStr>) {
        for dir in dirs {
            self.first.entry(trimmed(dir)).or_insert_with(|| rule.clone());
        }
    }

    /// The rule that is printed for this directory, whatever list it is searched in.
    pub fn printed(&self, dir: &BStr) -> Option<&Rule> {
        self.first.get(&trimmed(dir))
    }

    /// The `search path=` lines that a list with these directories gives, if all of them are tried: a line for each run of
    /// one kind of rule, with the label of the run's first directory. Directories that no list has mentioned are left out.
    pub fn lines(&self, dirs: &[BString]) -> Vec<(Rule, Vec<BString>)> {
        let mut lines: Vec<(Rule, Vec<BString>)> = Vec::new();
        for dir in dirs {
            let Some(rule) = self.printed(dir.as_bstr()) else { continue };
            match lines.last_mut() {
                Some((last, run)) if discriminant(last) == discriminant(rule) => run.push(trimmed(dir.as_bstr())),
                _ => lines.push((rule.clone(), vec![trimmed(dir.as_bstr())])),
            }
        }
        lines
    }
}

/// A directory text without its trailing slashes; `/` stays.
fn trimmed(dir: &BStr) -> BString {
    let end = dir.iter().rposition(|&byte| byte != b'/').map_or(usize::from(!dir.is_empty()), |at| at + 1);
    BString::from(&dir[..end])
}
