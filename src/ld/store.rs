//! Files asked for once: opens, facts and directory checks are remembered for all processes simulated on one system.
//!
//! A box is taken as standing still during one audit, so the same question has the same answer. This is what makes
//! the closure of hundreds of files cheap, and what lets a counterfactual run share everything but the change.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, RwLock};

use bstr::{BStr, BString};
use rustc_hash::FxHashMap;

use crate::elf::{Facts, Header, Layout, Reader};
use crate::system::{Errno, FileKey, Kind, Meta, System};

/// One file, as far as the loader reads it.
#[derive(Debug)]
pub struct Object {
    /// `fstat`.
    pub meta: Meta,
    /// The path it was first opened by.
    pub opened_as: BString,
    /// That path with every link resolved.
    real_path: OnceLock<BString>,
    /// Bytes of the file header that could be read, or the error of the first read.
    pub head: Result<Vec<u8>, Errno>,
    facts: Option<Facts>,
}

impl Object {
    /// The facts; `None` when the file is not an ELF file in the loader's layout.
    pub fn facts(&self) -> Option<&Facts> {
        self.facts.as_ref()
    }

    /// The header fields read in the loader's layout, whatever the identification says.
    pub fn header(&self, layout: Layout) -> Option<Header> {
        self.head.as_ref().ok().and_then(|bytes| Header::parse(bytes, layout))
    }

    /// The path with links resolved; the path it was opened by when that is not known.
    pub fn real_path(&self) -> &BStr {
        self.real_path.get().map_or(self.opened_as.as_ref(), |p| p.as_ref())
    }

    /// An object that stands for a file nobody could read: the loader's own image on a box without one, for example.
    pub fn nowhere(path: &BStr) -> Object {
        Object {
            meta: Meta { key: FileKey { device: u64::MAX, inode: 0 }, kind: Kind::File, size: 0, mode: 0 },
            opened_as: path.to_owned(),
            real_path: OnceLock::new(),
            head: Err(Errno::ENOENT),
            facts: None,
        }
    }
}

/// Most answers of one kind that are remembered.
const MAX_ANSWERS: usize = 1 << 20;
/// Bytes of facts that are kept, of all files together. An ordinary file has a few kilobytes.
const MAX_FACTS: usize = 512 << 20;

/// Remembers what the system answered. Paths come out of files, so that the maps by path must withstand paths made to
/// collide.
pub struct Store {
    system: System,
    layout: Layout,
    any_ident: bool,
    opened: RwLock<HashMap<BString, Result<Arc<Object>, Errno>>>,
    objects: RwLock<FxHashMap<FileKey, Arc<Object>>>,
    stats: RwLock<HashMap<BString, Result<Meta, Errno>>>,
    prefixes: RwLock<HashMap<BString, Arc<[u32]>>>,
    facts_kept: AtomicUsize,
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
            prefixes: RwLock::default(),
            facts_kept: AtomicUsize::new(0),
        }
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
        if let Some(known) = self.opened.read().unwrap_or_else(|e| e.into_inner()).get(path) {
            return known.clone();
        }
        let answer = self.open_fresh(path);
        remember(&self.opened, path, answer.clone());
        answer
    }

    fn open_fresh(&self, path: &BStr) -> Result<Arc<Object>, Errno> {
        let file = self.system.open(path)?;
        if let Some(known) = self.objects.read().unwrap_or_else(|e| e.into_inner()).get(&file.meta.key) {
            return Ok(known.clone());
        }
        let mut reader = Reader::new(&file);
        let head = reader.range(0, self.layout.header_size() as u64).map(<[u8]>::to_vec);
        let facts = match &head {
            Ok(bytes) if self.any_ident || Layout::of_ident(bytes) == Some(self.layout) => {
                Facts::read(&mut reader, self.layout)
            }
            _ => None,
        };
        let cost = facts.as_ref().map_or(0, Facts::cost);
        if self.facts_kept.fetch_add(cost, Ordering::Relaxed).saturating_add(cost) > MAX_FACTS {
            return Err(Errno::ENOMEM);
        }
        let object =
            Arc::new(Object { meta: file.meta, opened_as: path.to_owned(), real_path: OnceLock::new(), head, facts });
        if object.facts.is_some() {
            let real = file
                .resolved_path()
                .and_then(|p| self.inside_root(p))
                .or_else(|| self.system.files.real_path(self.system.absolute(path).as_ref()).ok());
            if let Some(real) = real {
                let _ = object.real_path.set(real);
            }
        }
        self.objects.write().unwrap_or_else(|e| e.into_inner()).entry(file.meta.key).or_insert_with(|| object.clone());
        Ok(object)
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
        if let Some(known) = self.stats.read().unwrap_or_else(|e| e.into_inner()).get(path) {
            return *known;
        }
        let answer = self.system.stat(path);
        remember(&self.stats, path, answer);
        answer
    }

    /// True when the path is a directory, by a remembered `stat`.
    pub fn is_dir(&self, path: &BStr) -> bool {
        self.stat(path).is_ok_and(|m| m.kind == Kind::Directory)
    }

    /// Which of the sub-directory prefixes (indexes into `all`) exist below a directory text that ends in a slash.
    /// `all` must be the same for every call on one store.
    pub fn existing_prefixes(&self, dir: &BStr, all: &[BString]) -> Arc<[u32]> {
        if let Some(known) = self.prefixes.read().unwrap_or_else(|e| e.into_inner()).get(dir) {
            return known.clone();
        }
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
        let found: Arc<[u32]> = found.into();
        remember(&self.prefixes, dir, found.clone());
        found
    }
}

/// Keeps an answer; when there are too many, forgets them all first: the system is asked again then.
fn remember<T>(answers: &RwLock<HashMap<BString, T>>, path: &BStr, answer: T) {
    let mut answers = answers.write().unwrap_or_else(|e| e.into_inner());
    if answers.len() >= MAX_ANSWERS {
        answers.clear();
    }
    answers.insert(path.to_owned(), answer);
}
