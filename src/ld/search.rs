//! Where would glibc's loader look for a name, in order? Writes every attempt down at the moment it is made.
//!
//! Follows `_dl_map_new_object` (before 2.42 `_dl_map_object`) and `open_path` in elf/dl-load.c. Knows nothing of
//! symbols.

use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, OnceLock};

use bstr::{BStr, BString, ByteSlice};

use super::budget::{self, Budget};
use super::closure::Process;
use super::store::{Directory, KnownCopy};
use super::tokens::{self, Secure, Values};
use super::verify::{self, Check};
use super::{Attempt, Family, ImageId, List, LoadFailure, LoaderOptions, Object, Place, Rule, Verdict};
use crate::elf::flags_1;
use crate::system::{Errno, Kind};

/// One directory of a search list.
#[derive(Clone)]
pub struct Dir {
    /// The text as it is put in front of a name: empty for the current directory, else with a trailing slash.
    pub text: BString,
    /// Element of the list as written, from 0.
    pub entry: u32,
    /// The element as written.
    pub written: BString,
    /// What the store knows of the directory.
    pub(crate) known: OnceLock<Arc<Directory>>,
}

impl Dir {
    /// A directory of which nothing is known yet.
    pub fn new(text: BString, entry: u32, written: BString) -> Dir {
        Dir { text, entry, written, known: OnceLock::new() }
    }
}

impl PartialEq for Dir {
    fn eq(&self, other: &Dir) -> bool {
        (&self.text, self.entry, &self.written) == (&other.text, other.entry, &other.written)
    }
}

impl Eq for Dir {}

impl fmt::Debug for Dir {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} (element {}, {:?})", self.text, self.entry, self.written)
    }
}

/// A parsed RPATH, RUNPATH or LD_LIBRARY_PATH (`struct r_search_path_struct`).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SearchList {
    /// The directories that count, in order.
    pub dirs: Vec<Dir>,
    /// Number of the list in its store; 0 for one that the store does not share.
    pub(crate) id: u32,
}

/// Parses a list of directories as `fillin_rpath` does (rule R2.7): tokens expanded, elements that expand to nothing dropped, trailing
/// slashes trimmed to one, equal texts kept once, an empty element meaning the current directory. `None` for a wholly
/// empty string: no list at all.
pub fn parse_list(
    text: &BStr,
    list: List,
    family: Family,
    expand: impl Fn(&BStr) -> Option<BString>,
) -> Option<SearchList> {
    if text.is_empty() {
        return None;
    }
    let mut parsed = SearchList::default();
    let mut seen: HashSet<BString> = HashSet::new();
    for (entry, written) in list.elements(family, text).enumerate() {
        let dir = if written.is_empty() {
            BString::default()
        } else {
            let Some(mut dir) = expand(written).filter(|d| !d.is_empty()) else { continue };
            while dir.len() > 1 && dir.ends_with(b"/") {
                dir.pop();
            }
            if !dir.ends_with(b"/") {
                dir.push(b'/');
            }
            dir
        };
        if seen.insert(dir.clone()) {
            parsed.dirs.push(Dir::new(dir, entry as u32, written.to_owned()));
        }
    }
    Some(parsed)
}

/// Most copies of one name that are noted as not reached.
pub(crate) const MAX_UNREACHED: usize = 64;

/// How many copies are noted as not reached: they stand at the end.
pub(crate) fn unreached(attempts: &[Attempt]) -> usize {
    attempts.iter().rev().take_while(|a| a.verdict == Verdict::NotReached).count()
}

/// What a search found.
#[derive(Debug)]
pub struct Found {
    /// The file.
    pub object: Arc<Object>,
    /// The path it was opened by.
    pub path: BString,
    /// Where in the order.
    pub place: Place,
    /// The element or cache line.
    pub text: BString,
}

/// How a search ended.
#[derive(Debug)]
pub enum Searched {
    /// A usable file.
    Found(Found),
    /// Nothing; the failure is the one the loader reports.
    Nothing(LoadFailure),
    /// A candidate ended the load.
    Fatal(LoadFailure),
}

/// Conditions of one search.
#[derive(Clone, Copy, Debug, Default)]
pub struct Conditions {
    /// A preload of a process in secure mode: no cache, and the file needs the set-user-ID bit (rules R3.10, R9.2).
    pub secure_preload: bool,
    /// The loader run as a program looks for its program before the search lists exist: cache only (rule R1.8).
    pub cache_only: bool,
    /// A look at what a search would find, which leaves no trace in the process.
    pub quiet: bool,
}

enum Judged {
    Found(Arc<Object>),
    Skipped,
    Fatal(LoadFailure),
}

/// State of one search.
struct Search<'p> {
    process: &'p mut Process,
    name: &'p BStr,
    conditions: Conditions,
    attempts: Vec<Attempt>,
    other_class: bool,
    /// The winner, once there is one: what follows is only looked at to name the copies that were not reached.
    winner: Option<Found>,
    /// Set when an error has cut off the rest of the current list.
    stopped: bool,
}

/// Where a candidate lies: a name in a directory of a list, or a whole path.
enum Candidate<'a> {
    In(&'a Arc<Directory>, &'a BStr),
    Path(&'a BStr),
}

impl Candidate<'_> {
    fn path(&self) -> BString {
        match self {
            Candidate::In(directory, name) => directory.join(name),
            Candidate::Path(path) => (*path).to_owned(),
        }
    }

    fn len(&self) -> usize {
        match self {
            Candidate::In(directory, name) => directory.text().len() + name.len(),
            Candidate::Path(path) => path.len(),
        }
    }
}

impl Search<'_> {
    /// Tries one candidate. After a hit, notes a usable different copy as not reached.
    fn candidate(&mut self, candidate: Candidate<'_>, place: Place, text: &BStr) -> Result<(), LoadFailure> {
        // A copy that is not reached is compared with everything that was tried.
        let compared = if self.winner.is_some() { self.attempts.len() as u64 / 64 } else { 0 };
        self.spend(budget::CANDIDATE + compared, candidate.len())?;
        if let Some(winner) = &self.winner {
            self.process.note_unreached(&mut self.attempts, winner.object.meta.key, candidate, place);
            return Ok(());
        }
        match self.judge(&candidate, place)? {
            Judged::Found(object) => {
                self.winner = Some(Found { object, path: candidate.path(), place, text: text.to_owned() });
                Ok(())
            }
            Judged::Skipped => Ok(()),
            Judged::Fatal(failure) => Err(failure),
        }
    }

    fn judge(&mut self, path: &Candidate<'_>, place: Place) -> Result<Judged, LoadFailure> {
        let opened = match path {
            Candidate::In(directory, name) => self.process.store.open_in(directory, name),
            Candidate::Path(path) => self.process.store.open(path),
        };
        let object = match opened {
            Ok(object) => object,
            Err(errno) => {
                self.process.errno = errno;
                self.note(path, place, Verdict::Skipped(errno));
                return Ok(Judged::Skipped);
            }
        };
        match verify::header(&object, &self.process.dialect, self.process.host()) {
            Check::Usable if self.conditions.secure_preload && object.meta.mode & 0o4000 == 0 => {
                self.process.errno = Errno::ENOENT;
                self.note(path, place, Verdict::NotSetUserId);
                Ok(Judged::Skipped)
            }
            Check::Usable => {
                self.note(path, place, Verdict::Taken);
                Ok(Judged::Found(object))
            }
            Check::Skip(verdict) => {
                self.other_class |= verdict == Verdict::WrongClass;
                self.process.errno = Errno::ENOENT;
                self.note(path, place, verdict);
                Ok(Judged::Skipped)
            }
            Check::Fatal(text, errno) => {
                self.note(path, place, Verdict::Fatal(text.into()));
                Ok(Judged::Fatal(LoadFailure::new(path.path(), text, errno)))
            }
        }
    }

    /// Ends the search when it takes too much (see [`budget`]).
    fn spend(&mut self, work: u64, text: usize) -> Result<(), LoadFailure> {
        if self.process.budget.take_text(work, text) { Ok(()) } else { Err(Budget::failure(self.name)) }
    }

    fn note(&mut self, candidate: &Candidate<'_>, place: Place, verdict: Verdict) {
        if self.process.records_attempts {
            self.attempts.push(Attempt { path: candidate.path(), place, verdict });
        }
    }

    /// Tries a list (`open_path`).
    fn list(&mut self, list: &SearchList, rule: Rule, owner: Option<ImageId>) -> Result<(), LoadFailure> {
        self.stopped = false;
        for dir in &list.dirs {
            let relative = dir.text.first() != Some(&b'/');
            let place = Place { rule, owner, entry: Some(dir.entry) };
            let searching = self.winner.is_none();
            self.spend(1, dir.text.len())?;
            let directory = self.process.store.directory_of(dir);
            let meta = if relative { None } else { Some(self.process.store.stat_directory(&directory)) };
            if meta.is_some_and(|meta| meta.is_ok_and(|m| m.kind != Kind::Directory) || meta.is_err()) {
                if searching {
                    let candidate = Candidate::In(&directory, self.name);
                    // A directory that turns out to be missing is tried once and then left out for the rest of the
                    // process, whichever list names it (rule R2.9). The errno that stays is that of its stat.
                    if !self.conditions.quiet && self.process.missing_directories.insert(dir.text.clone()) {
                        let errno = meta.and_then(Result::err).unwrap_or(Errno::ENOTDIR);
                        self.process.errno = errno;
                        self.note(&candidate, place, Verdict::Skipped(errno));
                    } else {
                        self.note(&candidate, place, Verdict::DirectoryMissing);
                    }
                }
                continue;
            }
            let prefixes = self.process.store.prefixes_in(&directory, &self.process.subdirectories);
            for index in prefixes.iter() {
                let mut name = self.process.subdirectories.get(*index as usize).cloned().unwrap_or_default();
                name.extend_from_slice(self.name);
                self.candidate(Candidate::In(&directory, name.as_bstr()), place, dir.written.as_bstr())?;
            }
            self.candidate(Candidate::In(&directory, self.name), place, dir.written.as_bstr())?;
            if self.winner.is_none() {
                let errno = self.process.errno;
                let goes_on = matches!(errno, Errno::ENOENT | Errno::EACCES)
                    || (errno == Errno::ENOTDIR && !self.process.dialect.not_a_directory_ends_list());
                if !goes_on {
                    if let Some(last) = self.attempts.last_mut()
                        && last.verdict == Verdict::Skipped(errno)
                    {
                        last.verdict = Verdict::ListStopped(errno);
                    }
                    self.stopped = true;
                    return Ok(());
                }
            }
            if self.is_over() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// True when nobody wants to know of copies that are not reached.
    fn is_over(&self) -> bool {
        self.winner.is_some() && !self.process.records_attempts
    }
}

/// The lists that a search goes through, in order, and whether the default directories are left out.
struct Order {
    before: Vec<(Arc<SearchList>, Rule, Option<ImageId>)>,
    no_default: bool,
}

impl Process {
    /// Searches a bare name for a requester; `attempts` gets every candidate. Rules R2.1 to R2.10.
    pub(crate) fn search(
        &mut self,
        name: &BStr,
        requester: Option<ImageId>,
        conditions: Conditions,
        attempts: &mut Vec<Attempt>,
    ) -> Searched {
        let order = match self.search_order(name, requester, conditions) {
            Ok(order) => order,
            Err(failure) => return Searched::Fatal(failure),
        };
        let key = self.search_key(&order, name, conditions).then(|| std::mem::take(&mut self.key));
        if let Some(copy) = key.as_ref().and_then(|key| self.store.known_copy(key)) {
            self.key = key.unwrap_or_default();
            let place = Place::of(Rule::Default);
            let found = Found { object: copy.object.clone(), path: copy.path.clone(), place, text: BString::default() };
            return Searched::Found(found);
        }
        let mut search = Search {
            process: self,
            name,
            conditions,
            attempts: Vec::new(),
            other_class: false,
            winner: None,
            stopped: false,
        };
        let result = search.run(&order);
        let Search { attempts: found_attempts, other_class, winner, .. } = search;
        attempts.extend(found_attempts);
        if let Some(found) = winner {
            if let Some(key) = key {
                self.store.remember_copy(key, KnownCopy { object: found.object.clone(), path: found.path.clone() });
            }
            return Searched::Found(found);
        }
        match result {
            Err(failure) => Searched::Fatal(failure),
            Ok(()) if other_class => {
                let text = if self.dialect.layout.is_64 {
                    "wrong ELF class: ELFCLASS32"
                } else {
                    "wrong ELF class: ELFCLASS64"
                };
                Searched::Nothing(LoadFailure::new(name.to_owned(), text, 0))
            }
            Ok(()) => {
                Searched::Nothing(LoadFailure::new(name.to_owned(), "cannot open shared object file", self.errno.0))
            }
        }
    }

    /// Adds a copy that a later place holds, when it is usable and another file than the winner.
    fn note_unreached(
        &self,
        attempts: &mut Vec<Attempt>,
        winner: crate::system::FileKey,
        candidate: Candidate<'_>,
        place: Place,
    ) {
        let meta = match candidate {
            Candidate::In(directory, name) if self.store.is_not_listed(directory, name) => return,
            Candidate::In(directory, name) => self.store.stat_in(directory, name),
            Candidate::Path(path) => self.store.stat(path),
        };
        let is_copy = meta.is_ok_and(|m| m.kind == Kind::File && m.key != winner);
        if !is_copy || unreached(attempts) >= MAX_UNREACHED {
            return;
        }
        let path = candidate.path();
        if attempts.iter().any(|a| a.path == path) {
            return;
        }
        let opened = match candidate {
            Candidate::In(directory, name) => self.store.open_in(directory, name),
            Candidate::Path(path) => self.store.open(path),
        };
        let Ok(object) = opened else { return };
        if verify::header(&object, &self.dialect, self.host()) == Check::Usable {
            attempts.push(Attempt { path, place, verdict: Verdict::NotReached });
        }
    }

    /// The lists that count for a requester, in order (rules R2.1 to R2.6).
    fn search_order(
        &mut self,
        name: &BStr,
        requester: Option<ImageId>,
        conditions: Conditions,
    ) -> Result<Order, LoadFailure> {
        let main = ImageId(0);
        let mut before = Vec::new();
        if !conditions.cache_only {
            let has_runpath =
                requester.and_then(|r| self.images[r.index()].facts()).is_some_and(|f| f.runpath.is_some());
            if !has_runpath {
                let mut did_main = false;
                let mut at = requester;
                while let Some(image) = at {
                    if !self.budget.take_text(1, 0) {
                        return Err(Budget::failure(name));
                    }
                    if let Some(list) = self.rpath_of(image) {
                        before.push((list, Rule::Rpath, Some(image)));
                        did_main |= image == main;
                    }
                    at = self.images[image.index()].loader;
                }
                if !did_main
                    && !self.images.is_empty()
                    && let Some(list) = self.rpath_of(main)
                {
                    before.push((list, Rule::Rpath, Some(main)));
                }
            }
            if let Some(list) = &self.library_path {
                before.push((list.clone(), Rule::LibraryPath, None));
            }
            if let Some(image) = requester
                && let Some(list) = self.runpath_of(image)
            {
                before.push((list, Rule::Runpath, Some(image)));
            }
        }
        let flagged = requester.or((!self.images.is_empty()).then_some(main));
        let no_default = flagged.is_some_and(|image| self.has_nodeflib(image));
        Ok(Order { before, no_default })
    }

    /// What the answer to a search depends on, when attempts are not recorded and the answer may be shared with other
    /// processes on the store: the lists, the loader's setup and cache, and the name. The key is left in `self.key`; false
    /// when there is none.
    fn search_key(&mut self, order: &Order, name: &BStr, conditions: Conditions) -> bool {
        let Conditions { secure_preload, cache_only, quiet } = conditions;
        let is_plain = !(secure_preload || cache_only || quiet) && self.options == LoaderOptions::default();
        if self.records_attempts || !is_plain || self.host().secure || self.setup.id == 0 {
            return false;
        }
        let cache = self.cache.as_ref().map_or(0, |c| Arc::as_ptr(c) as usize);
        let key = &mut self.key;
        key.clear();
        key.extend_from_slice(&self.setup.id.to_ne_bytes());
        key.extend_from_slice(&cache.to_ne_bytes());
        for (n, (list, ..)) in order.before.iter().enumerate() {
            if list.id == 0 {
                return false;
            }
            // A list that is searched again holds nothing new.
            if order.before.iter().take(n).all(|(earlier, ..)| earlier.id != list.id) {
                key.extend_from_slice(&list.id.to_ne_bytes());
            }
        }
        // List numbers are not 0, so that this ends them.
        key.extend_from_slice(&[0, 0, 0, 0, u8::from(order.no_default)]);
        key.extend_from_slice(name);
        true
    }

    /// The parsed RPATH of an image that counts (none when it has a RUNPATH, rule R2.2).
    pub(crate) fn rpath_of(&mut self, image: ImageId) -> Option<Arc<SearchList>> {
        self.path_list(image, Rule::Rpath)
    }

    /// The parsed RUNPATH of an image.
    pub(crate) fn runpath_of(&mut self, image: ImageId) -> Option<Arc<SearchList>> {
        self.path_list(image, Rule::Runpath)
    }

    fn path_list(&mut self, image: ImageId, rule: Rule) -> Option<Arc<SearchList>> {
        let text = self.images[image.index()].facts().and_then(|f| match rule {
            Rule::Rpath => f.effective_rpath(),
            _ => f.runpath.as_ref(),
        });
        text?;
        if let Some(known) = self.path_lists.get(&(image, rule)) {
            return known.clone();
        }
        let label = if image == ImageId(0) { b"".as_bstr() } else { self.images[image.index()].name.as_bstr() };
        if self.options.inhibit_rpath.as_ref().is_some_and(|list| is_inhibited(list.as_bstr(), label)) {
            self.path_lists.insert((image, rule), None);
            return None;
        }
        let object = self.images[image.index()].object.clone();
        let text = object.facts().and_then(|f| match rule {
            Rule::Rpath => f.effective_rpath(),
            _ => f.runpath.as_ref(),
        });
        let text = text?.as_bstr();
        let cost = tokens::longest(text, self.values(image));
        if !self.budget.take_text(cost as u64 / 8, cost) {
            self.path_lists.insert((image, rule), None);
            return None;
        }
        let parsed = self.parse_shared(text, List::RunPath, image);
        self.path_lists.insert((image, rule), parsed.clone());
        parsed
    }

    /// A list as [`parse_list`] gives it for an image, shared between processes where that can be; `None` for one
    /// without directories.
    pub(crate) fn parse_shared(&self, text: &BStr, list: List, image: ImageId) -> Option<Arc<SearchList>> {
        let parse = || {
            let parsed = parse_list(text, list, self.dialect.family, |element| self.expand_element(image, element));
            parsed.filter(|l| !l.dirs.is_empty())
        };
        match shared_origin(text, self.values(image)) {
            Some(origin) if !self.host().secure => self.store.list(list, text, origin, parse),
            _ => parse().map(Arc::new),
        }
    }

    /// Expands the tokens of a path element of an image (rules R1.4, R1.6, R9.3).
    pub(crate) fn expand_element(&self, image: ImageId, element: &BStr) -> Option<BString> {
        let is_main = image == ImageId(0);
        let secure = self.host().secure.then_some(Secure {
            trusted: is_main.then_some(self.dialect.system_dirs.as_slice()),
            normalise: self.dialect.normalises_secure_origin(),
        });
        tokens::expand(element, self.values(image), secure)
    }

    /// Token values for an image.
    pub(crate) fn values(&self, image: ImageId) -> Values<'_> {
        Values {
            origin: self.images.get(image.index()).and_then(|i| i.origin.as_ref()).map(|o| o.as_bstr()),
            lib: self.dialect.lib.as_bstr(),
            platform: self.setup.cpu.platform.as_ref().map(|p| p.as_bstr()),
        }
    }

    /// True when an image carries `DF_1_NODEFLIB`.
    pub(crate) fn has_nodeflib(&self, image: ImageId) -> bool {
        self.images.get(image.index()).and_then(|i| i.facts()).is_some_and(|f| f.flags_1 & flags_1::NODEFLIB != 0)
    }
}

/// What a list depends on besides its text when it may be shared: the origin, or nothing. `None` for a text with another
/// token.
fn shared_origin<'a>(text: &BStr, values: Values<'a>) -> Option<&'a BStr> {
    let mut parts = text.split_str("$").skip(1).peekable();
    if parts.peek().is_none() {
        return Some(b"".as_bstr());
    }
    let is_origin = |part: &[u8]| part.starts_with(b"ORIGIN") || part.starts_with(b"{ORIGIN");
    if parts.all(is_origin) { values.origin } else { None }
}

impl Search<'_> {
    fn run(&mut self, order: &Order) -> Result<(), LoadFailure> {
        for (list, rule, owner) in &order.before {
            self.list(list, *rule, *owner)?;
            if self.is_over() {
                return Ok(());
            }
        }
        if !self.conditions.secure_preload {
            self.cache(order.no_default)?;
            if self.is_over() {
                return Ok(());
            }
        }
        if !order.no_default && !self.conditions.cache_only {
            let list = self.process.setup.default_list.clone();
            self.list(&list, Rule::Default, None)?;
        }
        Ok(())
    }

    fn cache(&mut self, no_default: bool) -> Result<(), LoadFailure> {
        self.spend(budget::CACHE_LOOKUP, 0)?;
        let hit = match self.process.cache_lookup(self.name) {
            Ok(Some(hit)) => hit,
            Ok(None) => return Ok(()),
            Err(failure) => return Err(failure),
        };
        let place = Place { rule: Rule::Cache, owner: None, entry: Some(hit.entry) };
        // Prefix compare without the trailing slash of the directory text, sub-directories included (rule R2.10).
        let forbidden = no_default && self.process.dialect.system_dirs.iter().any(|d| hit.path.starts_with(d));
        if forbidden {
            if self.winner.is_none() {
                self.note(&Candidate::Path(hit.path.as_bstr()), place, Verdict::Forbidden);
            }
            return Ok(());
        }
        self.candidate(Candidate::Path(hit.path.as_bstr()), place, hit.text.as_bstr())
    }
}

/// True when `--inhibit-rpath` names an object by its `l_name` (rule R2.13): exact compare of colon-separated parts, an
/// empty part meaning the main program, but none after a trailing colon (`decompose_rpath`).
fn is_inhibited(list: &BStr, name: &BStr) -> bool {
    let list = match list.strip_suffix(b":") {
        Some(rest) if !rest.is_empty() => rest,
        _ => list,
    };
    list.split_str(":").any(|part| part == name)
}

/// A line of the cache that answers a name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CacheHit {
    /// Index of the line in the cache.
    pub entry: u32,
    /// The path it gives.
    pub path: BString,
    /// `name => path`, for explanations.
    pub text: BString,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(text: &str, list: List) -> Vec<String> {
        parse_list(text.into(), list, Family::Glibc, |e| Some(e.to_owned()))
            .map(|l| l.dirs.iter().map(|d| format!("{}@{}", d.text, d.entry)).collect())
            .unwrap_or_default()
    }

    #[test]
    fn elements_are_split_trimmed_and_kept_once() {
        assert_eq!(texts("/a//:/b:/a", List::RunPath), ["/a/@0", "/b/@1"]);
        assert_eq!(texts("/a::/b:", List::RunPath), ["/a/@0", "@1", "/b/@2"]);
        assert_eq!(texts("/x;/y", List::RunPath), ["/x;/y/@0"]);
        assert_eq!(texts("/x;/y", List::LibraryPath), ["/x/@0", "/y/@1"]);
        assert_eq!(texts("/", List::RunPath), ["/@0"]);
        assert!(texts("", List::RunPath).is_empty());
        assert_eq!(texts(":", List::RunPath), ["@0"]);
    }
}
