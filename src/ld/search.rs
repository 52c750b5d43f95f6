//! Where would glibc's loader look for a name, in order? Writes every attempt down at the moment it is made.
//!
//! Follows `_dl_map_new_object` (before 2.42 `_dl_map_object`) and `open_path` in elf/dl-load.c. Knows nothing of
//! symbols.

use std::collections::HashSet;
use std::sync::Arc;

use bstr::{BStr, BString, ByteSlice};

use super::budget::{self, Budget};
use super::closure::Process;
use super::tokens::{self, Secure, Values};
use super::verify::{self, Check};
use super::{Attempt, ImageId, LoadFailure, Object, Place, Rule, Verdict};
use crate::elf::flags_1;
use crate::system::{Errno, Kind};

/// One directory of a search list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Dir {
    /// The text as it is put in front of a name: empty for the current directory, else with a trailing slash.
    pub text: BString,
    /// Element of the list as written, from 0.
    pub entry: u32,
    /// The element as written.
    pub written: BString,
}

/// A parsed RPATH, RUNPATH or LD_LIBRARY_PATH (`struct r_search_path_struct`).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SearchList {
    /// The directories that count, in order.
    pub dirs: Vec<Dir>,
}

/// Parses a list as `fillin_rpath` does (rule R2.7): tokens expanded, elements that expand to nothing dropped, trailing
/// slashes trimmed to one, equal texts kept once, an empty element meaning the current directory. `None` for a wholly
/// empty string: no list at all.
pub fn parse_list(text: &BStr, separators: &[u8], expand: impl Fn(&BStr) -> Option<BString>) -> Option<SearchList> {
    if text.is_empty() {
        return None;
    }
    let mut list = SearchList::default();
    let mut seen: HashSet<BString> = HashSet::new();
    for (entry, element) in text.split(|b| separators.contains(b)).enumerate() {
        let written = element.as_bstr();
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
            list.dirs.push(Dir { text: dir, entry: entry as u32, written: written.to_owned() });
        }
    }
    Some(list)
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

impl Search<'_> {
    /// Tries one path. After a hit, notes a usable different copy as not reached.
    fn candidate(&mut self, path: BString, place: Place, text: &BStr) -> Result<(), LoadFailure> {
        // A copy that is not reached is compared with everything that was tried.
        let compared = if self.winner.is_some() { self.attempts.len() as u64 / 64 } else { 0 };
        self.spend(budget::CANDIDATE + compared, path.len())?;
        if let Some(winner) = &self.winner {
            self.process.note_unreached(&mut self.attempts, winner.object.meta.key, path, place);
            return Ok(());
        }
        match self.judge(&path, place)? {
            Judged::Found(object) => {
                self.winner = Some(Found { object, path, place, text: text.to_owned() });
                Ok(())
            }
            Judged::Skipped => Ok(()),
            Judged::Fatal(failure) => Err(failure),
        }
    }

    fn judge(&mut self, path: &BString, place: Place) -> Result<Judged, LoadFailure> {
        let object = match self.process.store.open(path.as_bstr()) {
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
                Ok(Judged::Fatal(LoadFailure::new(path.clone(), text, errno)))
            }
        }
    }

    /// Ends the search when it takes too much (see [`budget`]).
    fn spend(&mut self, work: u64, text: usize) -> Result<(), LoadFailure> {
        if self.process.budget.take_text(work, text) { Ok(()) } else { Err(Budget::failure(self.name)) }
    }

    fn note(&mut self, path: &BString, place: Place, verdict: Verdict) {
        self.attempts.push(Attempt { path: path.clone(), place, verdict });
    }

    /// Tries a list (`open_path`).
    fn list(&mut self, list: &SearchList, rule: Rule, owner: Option<ImageId>) -> Result<(), LoadFailure> {
        self.stopped = false;
        for dir in &list.dirs {
            let relative = dir.text.first() != Some(&b'/');
            let place = Place { rule, owner, entry: Some(dir.entry) };
            let searching = self.winner.is_none();
            self.spend(1, dir.text.len())?;
            let exists = relative || self.process.store.is_dir(dir.text.as_bstr());
            if !exists {
                if searching {
                    let path = self.in_dir(&dir.text, None);
                    // A directory that turns out to be missing is tried once and then left out for the rest of the
                    // process, whichever list names it (rule R2.9). The errno that stays is that of its stat.
                    if !self.conditions.quiet && self.process.missing_directories.insert(dir.text.clone()) {
                        let errno = self.process.store.stat(dir.text.as_bstr()).err().unwrap_or(Errno::ENOTDIR);
                        self.process.errno = errno;
                        self.note(&path, place, Verdict::Skipped(errno));
                    } else {
                        self.note(&path, place, Verdict::DirectoryMissing);
                    }
                }
                continue;
            }
            let prefixes = self.process.store.existing_prefixes(dir.text.as_bstr(), &self.process.subdirectories);
            for index in prefixes.iter() {
                let path = self.in_dir(&dir.text, Some(*index as usize));
                self.candidate(path, place, dir.written.as_bstr())?;
            }
            let path = self.in_dir(&dir.text, None);
            self.candidate(path, place, dir.written.as_bstr())?;
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
        }
        Ok(())
    }

    fn in_dir(&self, dir: &BString, prefix: Option<usize>) -> BString {
        let mut path = BString::new(Vec::with_capacity(dir.len() + self.name.len() + 24));
        path.extend_from_slice(dir);
        if let Some(prefix) = prefix.and_then(|i| self.process.subdirectories.get(i)) {
            path.extend_from_slice(prefix);
        }
        path.extend_from_slice(self.name);
        path
    }
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
        let mut search = Search {
            process: self,
            name,
            conditions,
            attempts: Vec::new(),
            other_class: false,
            winner: None,
            stopped: false,
        };
        let result = search.run(requester);
        let Search { attempts: found_attempts, other_class, winner, .. } = search;
        attempts.extend(found_attempts);
        if let Some(found) = winner {
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
    pub(crate) fn note_unreached(
        &self,
        attempts: &mut Vec<Attempt>,
        winner: crate::system::FileKey,
        path: BString,
        place: Place,
    ) {
        let Ok(meta) = self.store.stat(path.as_bstr()) else { return };
        let is_copy = meta.kind == Kind::File && meta.key != winner;
        if !is_copy || unreached(attempts) >= MAX_UNREACHED || attempts.iter().any(|a| a.path == path) {
            return;
        }
        let Ok(object) = self.store.open(path.as_bstr()) else { return };
        if verify::header(&object, &self.dialect, self.host()) == Check::Usable {
            attempts.push(Attempt { path, place, verdict: Verdict::NotReached });
        }
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
        let cost = text.map_or(0, |text| tokens::longest(text.as_bstr(), self.values(image)));
        let affordable = self.budget.take_text(cost as u64 / 8, cost);
        let parsed = text
            .filter(|_| affordable)
            .and_then(|text| parse_list(text.as_bstr(), b":", |element| self.expand_element(image, element)));
        let parsed = parsed.filter(|l| !l.dirs.is_empty()).map(Arc::new);
        self.path_lists.insert((image, rule), parsed.clone());
        parsed
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
        let host = self.host();
        Values {
            origin: self.images.get(image.index()).and_then(|i| i.origin.as_ref()).map(|o| o.as_bstr()),
            lib: self.dialect.lib.as_bstr(),
            platform: host.cpu.platform.as_ref().map(|p| p.as_bstr()),
        }
    }

    /// True when an image carries `DF_1_NODEFLIB`.
    pub(crate) fn has_nodeflib(&self, image: ImageId) -> bool {
        self.images.get(image.index()).and_then(|i| i.facts()).is_some_and(|f| f.flags_1 & flags_1::NODEFLIB != 0)
    }
}

impl Search<'_> {
    fn run(&mut self, requester: Option<ImageId>) -> Result<(), LoadFailure> {
        let main = ImageId(0);
        if !self.conditions.cache_only {
            let has_runpath =
                requester.and_then(|r| self.process.images[r.index()].facts()).is_some_and(|f| f.runpath.is_some());
            if !has_runpath {
                let mut did_main = false;
                let mut at = requester;
                while let Some(image) = at {
                    self.spend(1, 0)?;
                    if let Some(list) = self.process.rpath_of(image) {
                        self.list(&list, Rule::Rpath, Some(image))?;
                        did_main |= image == main;
                    }
                    at = self.process.images[image.index()].loader;
                }
                if !did_main
                    && !self.process.images.is_empty()
                    && let Some(list) = self.process.rpath_of(main)
                {
                    self.list(&list, Rule::Rpath, Some(main))?;
                }
            }
            if let Some(list) = self.process.library_path.clone() {
                self.list(&list, Rule::LibraryPath, None)?;
            }
            if let Some(image) = requester
                && let Some(list) = self.process.runpath_of(image)
            {
                self.list(&list, Rule::Runpath, Some(image))?;
            }
        }
        let flagged = requester.or((!self.process.images.is_empty()).then_some(main));
        let no_default = flagged.is_some_and(|image| self.process.has_nodeflib(image));
        if !self.conditions.secure_preload {
            self.cache(no_default)?;
        }
        if !no_default && !self.conditions.cache_only {
            let list = self.process.default_list.clone();
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
                self.note(&hit.path.clone(), place, Verdict::Forbidden);
            }
            return Ok(());
        }
        self.candidate(hit.path, place, hit.text.as_bstr())
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

    fn texts(list: &str, separators: &[u8]) -> Vec<String> {
        parse_list(list.into(), separators, |e| Some(e.to_owned()))
            .map(|l| l.dirs.iter().map(|d| format!("{}@{}", d.text, d.entry)).collect())
            .unwrap_or_default()
    }

    #[test]
    fn elements_are_split_trimmed_and_kept_once() {
        assert_eq!(texts("/a//:/b:/a", b":"), ["/a/@0", "/b/@1"]);
        assert_eq!(texts("/a::/b:", b":"), ["/a/@0", "@1", "/b/@2"]);
        assert_eq!(texts("/x;/y", b":"), ["/x;/y/@0"]);
        assert_eq!(texts("/x;/y", b":;"), ["/x/@0", "/y/@1"]);
        assert_eq!(texts("/", b":"), ["/@0"]);
        assert!(texts("", b":").is_empty());
        assert_eq!(texts(":", b":"), ["@0"]);
    }
}
