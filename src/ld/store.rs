//! Files asked for once: opens, facts and directory checks are remembered for all processes simulated on one system.
//!
//! A box is taken as standing still during one audit, so the same question has the same answer. This is what makes
//! the closure of hundreds of files cheap, and what lets a counterfactual run share everything but the change.

mod reading;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, RwLock, RwLockReadGuard, RwLockWriteGuard};

use bstr::{BStr, BString, ByteSlice};
use rustc_hash::FxHashMap;

use self::reading::Reading;
pub use self::reading::Symbols;
use super::List;
use super::dialect::Dialect;
use super::search::{Dir, SearchList};
use super::tunables::{self, hwcap_mask};
use super::verify::assumed_kernel;
use crate::elf::{Defect, Facts, Header, Layout, Reader};
use crate::system::{Cpu, Errno, File, FileKey, Files, Host, Kind, Meta, System, file_name, parent};

/// One file, as far as the loader reads it.
pub struct Object {
    /// `fstat`.
    pub meta: Meta,
    /// The path it was first opened by.
    pub opened_as: BString,
    /// That path with every link resolved.
    real_path: OnceLock<BString>,
    /// Where to ask for it when it is wanted, and the absolute path to ask for.
    late: Option<(Arc<dyn Files>, BString)>,
    /// Bytes of the file header that could be read, or the error of the first read.
    pub head: Result<Vec<u8>, Errno>,
    facts: Option<Arc<Facts>>,
    /// About how many bytes of memory the facts take.
    cost: usize,
    /// Its symbols, as far as they are read.
    reading: Reading,
}

impl Object {
    /// About how many bytes of memory the facts take.
    pub(crate) fn cost(&self) -> usize {
        self.cost
    }

    /// What is damaged: of the facts, and of the relocations where somebody has looked at them.
    pub fn defects(&self) -> impl Iterator<Item = &Defect> {
        let facts = self.facts.iter().flat_map(|f| &f.defects);
        facts.chain(self.reading.asked().into_iter().flat_map(|s| &s.references.defects))
    }

    /// The machine, when it is found out that its relocations are not known.
    pub fn unknown_machine(&self) -> Option<&str> {
        self.reading.asked()?.references.unknown_machine.as_deref()
    }

    /// The facts; `None` when the file is not an ELF file in the loader's layout.
    pub fn facts(&self) -> Option<&Facts> {
        self.facts.as_deref()
    }

    /// The header fields read in the loader's layout, whatever the identification says.
    pub fn header(&self, layout: Layout) -> Option<Header> {
        self.head.as_ref().ok().and_then(|bytes| Header::parse(bytes, layout))
    }

    /// The path with links resolved; the path it was opened by when that is not known.
    pub fn real_path(&self) -> &BStr {
        let known = match &self.late {
            Some((files, path)) => {
                let ask = || files.real_path(path.as_bstr()).unwrap_or_else(|_| self.opened_as.clone());
                Some(self.real_path.get_or_init(ask))
            }
            None => self.real_path.get(),
        };
        known.unwrap_or(&self.opened_as).as_bstr()
    }

    /// An object that stands for a file nobody could read: the loader's own image on a box without one, for example.
    pub fn nowhere(path: &BStr) -> Object {
        Object {
            meta: Meta { key: FileKey { device: u64::MAX, inode: 0 }, kind: Kind::File, size: 0, mode: 0 },
            opened_as: path.to_owned(),
            real_path: OnceLock::new(),
            late: None,
            head: Err(Errno::ENOENT),
            facts: None,
            cost: 0,
            reading: Reading::default(),
        }
    }
}

impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Object").field("opened_as", &self.opened_as).field("meta", &self.meta).finish_non_exhaustive()
    }
}

/// A directory of a search list with what is known of the names in it.
pub(crate) struct Directory {
    /// The text in front of a name: empty for the current directory, else with a slash at the end.
    text: BString,
    meta: OnceLock<Result<Meta, Errno>>,
    /// The sub-directories of a loader that exist here, by the list they are indexes into.
    prefixes: RwLock<Option<KnownPrefixes>>,
    names: RwLock<HashMap<BString, Known>>,
    /// How often [`Store::is_not_listed`] was asked, and the names once it was often enough.
    asked: AtomicUsize,
    listed: OnceLock<Option<HashSet<BString>>>,
}

impl Directory {
    /// The text in front of a name.
    pub(crate) fn text(&self) -> &BStr {
        self.text.as_bstr()
    }

    /// The path of a name as the loader puts it together.
    pub(crate) fn join(&self, name: &BStr) -> BString {
        let mut path = BString::new(Vec::with_capacity(self.text.len() + name.len()));
        path.extend_from_slice(&self.text);
        path.extend_from_slice(name);
        path
    }
}

/// What is known of one name in a directory.
#[derive(Clone, Default)]
struct Known {
    opened: Option<Result<Arc<Object>, Errno>>,
    meta: Option<Result<Meta, Errno>>,
}

/// A file that a search without attempts found, by the path under which it is loaded.
pub(crate) struct KnownCopy {
    pub(crate) object: Arc<Object>,
    pub(crate) path: BString,
}

/// What a loader's rules amount to on a host, worked out once.
pub(crate) struct Setup {
    dialect: Arc<Dialect>,
    /// The processor without what the environment switches off.
    pub(crate) cpu: Cpu,
    mask: Option<u64>,
    kernel: (u32, u32, u32),
    /// Number in its store; 0 for one that the store does not share.
    pub(crate) id: u32,
    /// Sub-directories that are tried in front of each directory.
    pub(crate) subdirectories: Arc<[BString]>,
    /// Names below `glibc-hwcaps` that are searched.
    pub(crate) active: Arc<[BString]>,
    /// The default directories.
    pub(crate) default_list: Arc<SearchList>,
}

/// Questions about names that one listing of a directory is worth.
const WORTH_A_LISTING: usize = 3;
/// Bytes of a directory that is listed for a few questions: one block of most file systems.
const SMALL_DIRECTORY: u64 = 4096;
/// Most answers of one kind that are remembered.
const MAX_ANSWERS: usize = 1 << 20;
/// Most search lists that are shared between processes, and most setups.
const MAX_LISTS: usize = 1 << 16;
const MAX_SETUPS: usize = 64;
/// Bytes of facts that are kept, of all files together. An ordinary file has a few kilobytes.
const MAX_FACTS: usize = 512 << 20;

type ListKey = (List, BString, BString);

/// The list of sub-directory names that was asked about, and the indexes of those that exist.
type KnownPrefixes = (Arc<[BString]>, Arc<[u32]>);

/// Remembers what the system answered. Paths come out of files, so that the maps by path must withstand paths made to
/// collide.
pub struct Store {
    system: System,
    layout: Layout,
    any_ident: bool,
    opened: RwLock<HashMap<BString, Result<Arc<Object>, Errno>>>,
    objects: RwLock<FxHashMap<FileKey, Arc<Object>>>,
    stats: RwLock<HashMap<BString, Result<Meta, Errno>>>,
    /// What `execve` says of a file before it reads it.
    may_run: RwLock<HashMap<BString, Result<(), Errno>>>,
    directories: RwLock<HashMap<BString, Arc<Directory>>>,
    /// Names that are remembered in directories, all together.
    names: AtomicUsize,
    /// Parsed texts by their separators, the text, and what `$ORIGIN` stands for in it.
    lists: RwLock<HashMap<ListKey, Option<Arc<SearchList>>>>,
    /// Answers to searches without attempts, by the lists that were searched and the name.
    copies: RwLock<HashMap<Vec<u8>, Arc<KnownCopy>>>,
    setups: RwLock<Vec<Arc<Setup>>>,
    preload_file: OnceLock<Result<Arc<[u8]>, Errno>>,
    /// Directories with every link resolved, by their text.
    real_directories: RwLock<HashMap<BString, Option<BString>>>,
    late_real_paths: bool,
    facts_kept: AtomicUsize,
}

fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(|e| e.into_inner())
}

fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(|e| e.into_inner())
}

impl Store {
    /// A store for files read in one layout. `any_ident` reads facts whatever `e_ident` says, as musl does.
    pub fn new(system: System, layout: Layout, any_ident: bool) -> Store {
        Store {
            system,
            layout,
            any_ident,
            opened: RwLock::default(),
            objects: RwLock::default(),
            stats: RwLock::default(),
            may_run: RwLock::default(),
            directories: RwLock::default(),
            names: AtomicUsize::new(0),
            lists: RwLock::default(),
            copies: RwLock::default(),
            setups: RwLock::default(),
            preload_file: OnceLock::new(),
            real_directories: RwLock::default(),
            late_real_paths: false,
            facts_kept: AtomicUsize::new(0),
        }
    }

    /// The same store, asking for real paths only when they are wanted: for reports that do not show them.
    pub fn with_late_real_paths(mut self) -> Store {
        self.late_real_paths = true;
        self
    }

    /// The system behind it.
    pub fn system(&self) -> &System {
        &self.system
    }

    /// The layout files are read in.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Opens a path as the loader would (relative ones against the working directory) and reads its facts. `ENOMEM` when
    /// the facts of all files take more memory than an audit may have.
    pub fn open(&self, path: &BStr) -> Result<Arc<Object>, Errno> {
        if let Some(known) = read(&self.opened).get(path) {
            return known.clone();
        }
        let answer = self.open_fresh(path);
        remember(&self.opened, path, answer.clone());
        answer
    }

    fn open_fresh(&self, path: &BStr) -> Result<Arc<Object>, Errno> {
        let file = self.system.open(path)?;
        if let Some(known) = read(&self.objects).get(&file.meta.key).cloned() {
            return Ok(self.by_this_path(known, path, &file));
        }
        let mut reader = Reader::new(&file);
        let head = reader.range(0, self.layout.header_size() as u64).map(<[u8]>::to_vec);
        let facts = match &head {
            Ok(bytes) if self.any_ident || Layout::of_ident(bytes) == Some(self.layout) => {
                Facts::read(&mut reader, self.layout)
            }
            _ => None,
        };
        self.keep(path, &file, head, facts)
    }

    /// Takes in a file that was opened by a path and read already, in the layout of this store.
    pub fn adopt(&self, path: &BStr, file: &File, mut head: Vec<u8>, facts: Facts) {
        if facts.layout != self.layout {
            return;
        }
        let known = read(&self.objects).get(&file.meta.key).cloned();
        let answer = match known {
            Some(known) => Ok(self.by_this_path(known, path, file)),
            None => {
                head.truncate(self.layout.header_size());
                self.keep(path, file, Ok(head), Some(facts))
            }
        };
        remember(&self.opened, path, answer);
    }

    fn keep(
        &self,
        path: &BStr,
        file: &File,
        head: Result<Vec<u8>, Errno>,
        facts: Option<Facts>,
    ) -> Result<Arc<Object>, Errno> {
        let cost = facts.as_ref().map_or(0, Facts::cost);
        if self.facts_kept.fetch_add(cost, Ordering::Relaxed).saturating_add(cost) > MAX_FACTS {
            return Err(Errno::ENOMEM);
        }
        let is_late = self.late_real_paths && facts.is_some();
        let late = is_late.then(|| (self.system.files.clone(), self.system.absolute(path)));
        let object = Object {
            meta: file.meta,
            opened_as: path.to_owned(),
            real_path: OnceLock::new(),
            late,
            head,
            facts: facts.map(Arc::new),
            cost,
            reading: Reading::default(),
        };
        if object.facts.is_some()
            && !is_late
            && let Some(real) = self.real_path_of(path, file)
        {
            let _ = object.real_path.set(real);
        }
        // Another thread may have read the same file meanwhile: one object stands for it.
        let object = Arc::new(object);
        let known = write(&self.objects).entry(file.meta.key).or_insert_with(|| object.clone()).clone();
        Ok(if known.real_path.get() == object.real_path.get() { known } else { object })
    }

    /// A file that is known, as opened by a path: one with several names (hard links) has a path of its own by each.
    fn by_this_path(&self, known: Arc<Object>, path: &BStr, file: &File) -> Arc<Object> {
        if self.late_real_paths || known.facts.is_none() {
            return known;
        }
        let real = self.real_path_of(path, file);
        if real.as_ref() == known.real_path.get() {
            return known;
        }
        let object = Object {
            meta: known.meta,
            opened_as: path.to_owned(),
            real_path: OnceLock::new(),
            late: None,
            head: known.head.clone(),
            facts: known.facts.clone(),
            cost: known.cost,
            reading: Reading::default(),
        };
        if let Some(real) = real {
            let _ = object.real_path.set(real);
        }
        Arc::new(object)
    }

    fn real_path_of(&self, path: &BStr, file: &File) -> Option<BString> {
        let told = file.resolved_path().and_then(|p| self.inside_root(p));
        told.or_else(|| self.system.files.real_path(self.system.absolute(path).as_ref()).ok())
    }

    fn inside_root(&self, on_disk: BString) -> Option<BString> {
        match self.system.files.root() {
            Some(root) if root == "/" => Some(on_disk),
            Some(root) => {
                on_disk.strip_prefix(root.as_ref() as &[u8]).filter(|p| p.starts_with(b"/")).map(BString::from)
            }
            None => None,
        }
    }

    /// `stat`, remembered.
    pub fn stat(&self, path: &BStr) -> Result<Meta, Errno> {
        if let Some(known) = read(&self.stats).get(path) {
            return *known;
        }
        let answer = self.system.stat(path);
        remember(&self.stats, path, answer);
        answer
    }

    /// [`System::may_run`], remembered: of one loader it is asked for every program.
    pub fn may_run(&self, path: &BStr) -> Result<(), Errno> {
        if let Some(known) = read(&self.may_run).get(path) {
            return *known;
        }
        let answer = self.system.may_run(path);
        remember(&self.may_run, path, answer);
        answer
    }

    /// True when the path is a directory, by a remembered `stat`.
    pub fn is_dir(&self, path: &BStr) -> bool {
        self.stat(path).is_ok_and(|m| m.kind == Kind::Directory)
    }

    /// `/etc/ld.so.preload`.
    pub(crate) fn preload_file(&self) -> Result<Arc<[u8]>, Errno> {
        let read = || self.system.read_small(b"/etc/ld.so.preload".as_bstr(), 1 << 20).map(Arc::from);
        self.preload_file.get_or_init(read).clone()
    }

    /// The directory that holds the file which an absolute path leads to when every link is resolved; `None` when it leads
    /// nowhere.
    pub(crate) fn real_directory_of(&self, path: &BStr) -> Option<BString> {
        let files = &self.system.files;
        // Of a name that is no link the directory alone is to be resolved, and that once for all files in it.
        if matches!(file_name(path).as_bytes(), b"" | b"." | b"..") || files.lstat(path).ok()?.kind == Kind::Link {
            return files.real_path(path).ok().map(|real| parent(real.as_bstr()).to_owned());
        }
        let directory = parent(path);
        if let Some(known) = read(&self.real_directories).get(directory) {
            return known.clone();
        }
        let real = files.real_path(directory).ok();
        remember(&self.real_directories, directory, real.clone());
        real
    }

    /// Which of the sub-directory prefixes (indexes into `all`) exist below a directory text that ends in a slash.
    pub fn existing_prefixes(&self, dir: &BStr, all: &[BString]) -> Vec<u32> {
        let mut found = Vec::new();
        // The first component of each prefix decides for all that begin with it: most directories have none of them.
        let mut absent: Vec<&[u8]> = Vec::new();
        for (index, prefix) in all.iter().enumerate() {
            let first = prefix.split(|b| *b == b'/').next().unwrap_or_default();
            if absent.contains(&first) {
                continue;
            }
            let mut path = dir.to_owned();
            path.extend_from_slice(first);
            if !self.is_dir(path.as_ref()) {
                absent.push(first);
                continue;
            }
            let mut path = dir.to_owned();
            path.extend_from_slice(prefix);
            if self.is_dir(path.as_ref()) {
                found.push(index as u32);
            }
        }
        found
    }

    /// A directory of a search list by its text.
    fn directory(&self, text: &BStr) -> Arc<Directory> {
        if let Some(known) = read(&self.directories).get(text) {
            return known.clone();
        }
        let fresh = Arc::new(Directory {
            text: text.to_owned(),
            meta: OnceLock::new(),
            prefixes: RwLock::default(),
            names: RwLock::default(),
            asked: AtomicUsize::new(0),
            listed: OnceLock::new(),
        });
        let mut directories = write(&self.directories);
        if directories.len() >= MAX_ANSWERS {
            return fresh;
        }
        directories.entry(text.to_owned()).or_insert(fresh).clone()
    }

    /// The directory of a list's element.
    pub(crate) fn directory_of(&self, dir: &Dir) -> Arc<Directory> {
        dir.known.get_or_init(|| self.directory(dir.text.as_bstr())).clone()
    }

    /// `stat` of a directory.
    pub(crate) fn stat_directory(&self, directory: &Directory) -> Result<Meta, Errno> {
        *directory.meta.get_or_init(|| self.system.stat(directory.text.as_bstr()))
    }

    /// Which of the sub-directories exist below a directory, remembered.
    pub(crate) fn prefixes_in(&self, directory: &Directory, all: &Arc<[BString]>) -> Arc<[u32]> {
        if let Some((of, found)) = &*read(&directory.prefixes)
            && (Arc::ptr_eq(of, all) || of == all)
        {
            return found.clone();
        }
        let found: Arc<[u32]> = self.existing_prefixes(directory.text.as_bstr(), all).into();
        *write(&directory.prefixes) = Some((all.clone(), found.clone()));
        found
    }

    /// Opens a name in a directory; `name` may begin with sub-directories.
    pub(crate) fn open_in(&self, directory: &Directory, name: &BStr) -> Result<Arc<Object>, Errno> {
        if let Some(known) = read(&directory.names).get(name).and_then(|k| k.opened.as_ref()) {
            return known.clone();
        }
        let answer = self.open_fresh(directory.join(name).as_bstr());
        self.note_name(directory, name, |known| known.opened = Some(answer.clone()));
        answer
    }

    /// `stat` of a name in a directory.
    pub(crate) fn stat_in(&self, directory: &Directory, name: &BStr) -> Result<Meta, Errno> {
        if let Some(known) = read(&directory.names).get(name) {
            match (&known.meta, &known.opened) {
                (Some(meta), _) => return *meta,
                (None, Some(Ok(object))) => return Ok(object.meta),
                // What says that there is nothing says so to both calls.
                (None, Some(Err(errno @ (Errno::ENOENT | Errno::ENOTDIR | Errno::ENAMETOOLONG)))) => {
                    return Err(*errno);
                }
                (None, _) => {}
            }
        }
        let answer = self.system.stat(directory.join(name).as_bstr());
        self.note_name(directory, name, |known| known.meta = Some(answer));
        answer
    }

    /// True when a directory of few names does not list one. Only for what is told beside the loader's own decisions: it
    /// never lists, and a file system can open names that it does not list. False when that is not known; the first
    /// questions are not worth a listing.
    pub(crate) fn is_not_listed(&self, directory: &Directory, name: &BStr) -> bool {
        if name.contains(&b'/') || directory.asked.fetch_add(1, Ordering::Relaxed) < WORTH_A_LISTING {
            return false;
        }
        let list = || {
            let is_small = self.stat_directory(directory).is_ok_and(|meta| meta.size <= SMALL_DIRECTORY);
            let entries =
                is_small.then(|| self.system.files.list_unsorted(self.system.absolute(directory.text()).as_bstr()));
            Some(entries?.ok()?.into_iter().map(|entry| entry.name).collect())
        };
        directory.listed.get_or_init(list).as_ref().is_some_and(|names| !names.contains(name))
    }

    fn note_name(&self, directory: &Directory, name: &BStr, note: impl FnOnce(&mut Known)) {
        let mut names = write(&directory.names);
        match names.get_mut(name) {
            Some(known) => note(known),
            // Above the limit nothing more is remembered, and the system is asked again.
            None if self.names.fetch_add(1, Ordering::Relaxed) < MAX_ANSWERS => {
                note(names.entry(name.to_owned()).or_default());
            }
            None => {}
        }
    }

    /// The list that a text gives with an origin, parsed once for all processes. What `parse` gives must depend on these
    /// three and on the dialect alone.
    pub(crate) fn list(
        &self,
        list: List,
        text: &BStr,
        origin: &BStr,
        parse: impl FnOnce() -> Option<SearchList>,
    ) -> Option<Arc<SearchList>> {
        let key = (list, text.to_owned(), origin.to_owned());
        if let Some(known) = read(&self.lists).get(&key) {
            return known.clone();
        }
        let mut parsed = parse();
        let mut lists = write(&self.lists);
        if lists.len() >= MAX_LISTS {
            return parsed.map(Arc::new);
        }
        if let Some(parsed) = &mut parsed {
            parsed.id = lists.len() as u32 + 1;
        }
        lists.entry(key).or_insert_with(|| parsed.map(Arc::new)).clone()
    }

    /// The copy that an earlier search without attempts found under the same key.
    pub(crate) fn known_copy(&self, key: &[u8]) -> Option<Arc<KnownCopy>> {
        read(&self.copies).get(key).cloned()
    }

    /// Remembers what a search without attempts found.
    pub(crate) fn remember_copy(&self, key: Vec<u8>, copy: KnownCopy) {
        let mut copies = write(&self.copies);
        if copies.len() < MAX_ANSWERS {
            copies.insert(key, Arc::new(copy));
        }
    }

    /// Sub-directories and default directories of a loader on a host.
    pub(crate) fn setup(&self, dialect: &Arc<Dialect>, host: &Host) -> Arc<Setup> {
        let mask = hwcap_mask(dialect, host);
        let cpu = tunables::cpu(dialect, host);
        let kernel = assumed_kernel(host);
        let fits =
            |s: &&Arc<Setup>| Arc::ptr_eq(&s.dialect, dialect) && s.mask == mask && s.kernel == kernel && s.cpu == cpu;
        if let Some(known) = read(&self.setups).iter().find(fits) {
            return known.clone();
        }
        let dir = |(i, d): (usize, &BString)| Dir::new(d.clone(), i as u32, d.clone());
        let dirs = dialect.system_dirs.iter().enumerate().map(dir).collect();
        let mut setups = write(&self.setups);
        let id = if setups.len() < MAX_SETUPS { setups.len() as u32 + 1 } else { 0 };
        let setup = Arc::new(Setup {
            dialect: dialect.clone(),
            cpu,
            mask,
            kernel,
            id,
            subdirectories: dialect.subdirectories(host).into(),
            active: dialect.active_hwcaps_with(host, None, None).into(),
            default_list: Arc::new(SearchList { dirs, id: 0 }),
        });
        if id > 0 {
            setups.push(setup.clone());
        }
        setup
    }
}

/// Keeps an answer; when there are too many, forgets them all first: the system is asked again then.
fn remember<T>(answers: &RwLock<HashMap<BString, T>>, path: &BStr, answer: T) {
    let mut answers = write(answers);
    if answers.len() >= MAX_ANSWERS {
        answers.clear();
    }
    answers.insert(path.to_owned(), answer);
}
