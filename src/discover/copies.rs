//! Which copies of a library lie on the box, where, and how does each relate to the name that is asked for?
//!
//! A [`Name`] knows its own near misses (other version, name without a version, name with a hash as auditwheel makes
//! it) and which texts in a program's read-only data ask for it. [`find`] lists the copies in given places and among the
//! files of packages; the same file under several names is one [`struct@Copy`]. Nothing here decides who wins.

mod names;
mod places;

use std::fmt;
use std::sync::Arc;

use bstr::{BStr, BString, ByteSlice};
use rayon::prelude::*;
use rustc_hash::{FxHashMap, FxHashSet};

pub use names::{Literal, Name, Relation, unhashed};
pub use places::usual_places;

use crate::elf::{Reader, literals as elf_literals};
use crate::ld::{Object, Rule, Store};
use crate::system::{Errno, FileKey, Kind, System, WalkLimits, file_name, join, normalised, parent};
use names::parts;

/// Directories below a package directory and names per tree that a sweep looks at.
const SWEEP: WalkLimits = WalkLimits { depth: 14, entries: 400_000 };
/// Most files of one directory whose SONAME is read.
const MAX_FILES: usize = 20_000;
/// Most texts of one file that are looked at.
const MAX_TEXTS: usize = 200;
/// Most copies that are told apart.
const MAX_COPIES: usize = 500;

/// Why a directory is looked at.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Origin {
    /// The user named the file.
    Given,
    /// An element of `LD_LIBRARY_PATH`.
    LibraryPath(u32),
    /// An element of an image's RPATH or RUNPATH.
    ImagePath {
        /// [`Rule::Rpath`] or [`Rule::Runpath`].
        rule: Rule,
        /// File name of the image.
        image: BString,
    },
    /// A line of the loader's cache.
    Cache,
    /// A built-in default directory of the loader.
    Default,
    /// A directory of `/etc/ld.so.conf`.
    Config,
    /// The directory of a loaded image.
    Loaded,
    /// A package directory of the Python environment.
    Package,
    /// A directory that an environment variable names.
    Variable(&'static str),
    /// A usual place of CUDA or driver libraries.
    Toolkit,
    /// A candidate that a recorded search came across.
    Attempt,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Given => f.write_str("given"),
            Origin::LibraryPath(n) => write!(f, "LD_LIBRARY_PATH[{n}]"),
            Origin::ImagePath { rule: Rule::Rpath, image } => write!(f, "RPATH of {image}"),
            Origin::ImagePath { image, .. } => write!(f, "RUNPATH of {image}"),
            Origin::Cache => f.write_str("cache"),
            Origin::Default => f.write_str("default directory"),
            Origin::Config => f.write_str("ld.so.conf"),
            Origin::Loaded => f.write_str("directory of a loaded library"),
            Origin::Package => f.write_str("package"),
            Origin::Variable(name) => f.write_str(name),
            Origin::Toolkit => f.write_str("usual place"),
            Origin::Attempt => f.write_str("searched"),
        }
    }
}

/// A directory to look in.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Place {
    /// The directory.
    pub directory: BString,
    /// Why.
    pub origin: Origin,
}

/// One file that is, or could be taken for, the library.
#[derive(Clone, Debug)]
pub struct Copy {
    /// The name that is shown: the closest relation, the plainest path.
    pub path: BString,
    /// Every path found that leads to it, `path` first.
    pub names: Vec<BString>,
    /// How it relates to the name, by the closest of its names.
    pub relation: Relation,
    /// Device and inode; `None` for a link that leads nowhere.
    pub key: Option<FileKey>,
    /// The file, or why it could not be opened.
    pub object: Result<Arc<Object>, Errno>,
    /// Why its directories were looked at.
    pub origins: Vec<Origin>,
}

impl Copy {
    /// The path with links resolved.
    pub fn real_path(&self) -> &BStr {
        self.object.as_ref().map_or(self.path.as_bstr(), |o| o.real_path())
    }

    /// `DT_SONAME`.
    pub fn soname(&self) -> Option<&BStr> {
        let facts = self.object.as_ref().ok()?.facts()?;
        facts.soname.as_ref().map(|s| s.as_bstr())
    }

    /// The longest version that its file names tell: `8.9.7` of `libfoo.so.8.9.7`, when it says more than the SONAME.
    pub fn version_in_name(&self) -> Option<BString> {
        let version = |name: &BStr| parts(name).map(|p| p.version.to_owned()).unwrap_or_default();
        let told = version(file_name(self.real_path()));
        let promised = self.soname().map_or_else(|| version(file_name(self.path.as_bstr())), version);
        let starts_with_digit = told.get(1).is_some_and(u8::is_ascii_digit);
        (told.len() > promised.len() && starts_with_digit).then(|| told[1..].into())
    }
}

/// What a search for copies found.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// The copies: closest relation first, then in the order of the places.
    pub copies: Vec<Copy>,
    /// True when there were too many to list.
    pub cut: bool,
}

struct Candidate {
    path: BString,
    origin: Origin,
    relation: Relation,
    object: Result<Arc<Object>, Errno>,
    key: Option<FileKey>,
    /// The directory it lies in, by device and inode.
    directory: Option<FileKey>,
    /// Position of its place.
    order: usize,
}

/// Finds the copies of a name in directories, among the files of packages (as [`sweep`] gives them), and under single
/// paths. `subdirectories` are the loader's own (`glibc-hwcaps/…`), each directory is also looked at below them.
pub fn find(
    store: &Store,
    name: &Name,
    places: &[Place],
    packages: &[BString],
    paths: &[(BString, Origin)],
    subdirectories: &[BString],
) -> Found {
    let system = store.system();
    let places = with_subdirectories(store, places, subdirectories);
    // A directory that several places name is listed once, under each of its names.
    let mut listed: FxHashMap<FileKey, Vec<crate::system::Entry>> = FxHashMap::default();
    let mut seen: FxHashSet<BString> = FxHashSet::default();
    let mut wanted: Vec<(BString, Origin, bool, usize)> = Vec::new();
    for (path, origin) in paths {
        if seen.insert(path.clone()) {
            wanted.push((path.clone(), origin.clone(), true, wanted.len()));
        }
    }
    let first = wanted.len();
    for (index, place) in places.iter().enumerate() {
        let Ok(meta) = store.stat(place.directory.as_bstr()) else { continue };
        if meta.kind != Kind::Directory {
            continue;
        }
        let entries = listed.entry(meta.key).or_insert_with(|| {
            system.files.list(system.absolute(place.directory.as_bstr()).as_bstr()).unwrap_or_default()
        });
        for entry in entries.iter().take(MAX_FILES) {
            if !entry.name.contains_str(".so") || !matches!(entry.kind, Kind::File | Kind::Link) {
                continue;
            }
            let by_name = name.relation_of_name(entry.name.as_bstr()).is_some();
            // A link of an unrelated name is no copy by itself: the file it leads to is looked at where it lies.
            if by_name || entry.kind == Kind::File {
                let path = join(place.directory.as_bstr(), &entry.name);
                if seen.insert(path.clone()) {
                    wanted.push((path, place.origin.clone(), by_name, first + index));
                }
            }
        }
    }
    for path in packages {
        let by_name = name.relation_of_name(file_name(path.as_bstr())).is_some();
        if seen.insert(path.clone()) {
            wanted.push((path.clone(), Origin::Package, by_name, first + places.len()));
        }
    }
    let candidates: Vec<Option<Candidate>> = wanted
        .into_par_iter()
        .map(|(path, origin, by_name, order)| candidate(store, name, path, origin, by_name, order))
        .collect();
    group(candidates.into_iter().flatten().collect())
}

fn candidate(
    store: &Store,
    name: &Name,
    path: BString,
    origin: Origin,
    by_name: bool,
    order: usize,
) -> Option<Candidate> {
    let object = store.open(path.as_bstr());
    let soname = object.as_ref().ok().and_then(|o| o.facts()).and_then(|f| f.soname.as_ref()).map(|s| s.as_bstr());
    let relation = if by_name || soname == Some(name.text.as_bstr()) {
        name.relation(file_name(path.as_bstr()), soname)?
    } else {
        return None;
    };
    let key = match &object {
        Ok(object) if object.meta.kind == Kind::File => Some(object.meta.key),
        // A directory of that name: opening it ends a load.
        Ok(object) if relation == Relation::Exact => Some(object.meta.key),
        Ok(_) => return None,
        Err(_) => store.stat(path.as_bstr()).ok().map(|m| m.key),
    };
    if key.is_none() && store.system().files.lstat(store.system().absolute(path.as_bstr()).as_bstr()).is_err() {
        return None;
    }
    let above = parent(path.as_bstr());
    let above = if above.is_empty() { b".".as_bstr() } else { above };
    let directory = store.stat(above).ok().map(|m| m.key);
    Some(Candidate { path, origin, relation, object, key, directory, order })
}

/// One copy for each file; its plainest name first.
fn group(mut candidates: Vec<Candidate>) -> Found {
    let plainness = |path: &BStr| (path.first() != Some(&b'/'), normalised(path) != path);
    candidates.sort_by(|a, b| {
        (a.relation, plainness(a.path.as_bstr()), a.order, &a.path).cmp(&(
            b.relation,
            plainness(b.path.as_bstr()),
            b.order,
            &b.path,
        ))
    });
    let mut out = Found::default();
    let mut by_key: FxHashMap<FileKey, usize> = FxHashMap::default();
    // `/lib/x` and `/usr/lib/x` are one name when `/lib` is a link.
    let mut entries: FxHashSet<(FileKey, BString)> = FxHashSet::default();
    for candidate in candidates {
        let is_new =
            candidate.directory.is_none_or(|d| entries.insert((d, file_name(candidate.path.as_bstr()).to_owned())));
        let known = candidate.key.and_then(|key| by_key.get(&key).copied());
        match known {
            Some(index) => {
                let copy = &mut out.copies[index];
                if is_new {
                    copy.names.push(candidate.path);
                }
                if !copy.origins.contains(&candidate.origin) {
                    copy.origins.push(candidate.origin);
                }
            }
            None if out.copies.len() >= MAX_COPIES => out.cut = true,
            None => {
                if let Some(key) = candidate.key {
                    by_key.insert(key, out.copies.len());
                }
                out.copies.push(Copy {
                    names: vec![candidate.path.clone()],
                    path: candidate.path,
                    relation: candidate.relation,
                    key: candidate.key,
                    object: candidate.object,
                    origins: vec![candidate.origin],
                });
            }
        }
    }
    out
}

/// Each place and, behind it, the sub-directories that a loader on some processor would prefer to it.
fn with_subdirectories(store: &Store, places: &[Place], subdirectories: &[BString]) -> Vec<Place> {
    let system = store.system();
    let mut out = Vec::new();
    for place in places {
        let mut text = place.directory.clone();
        if !text.ends_with(b"/") {
            text.push(b'/');
        }
        let mut below: Vec<BString> = store
            .existing_prefixes(text.as_bstr(), subdirectories)
            .iter()
            .filter_map(|i| subdirectories.get(*i as usize))
            .map(|prefix| join(text.as_bstr(), prefix).trim_end_with(|c| c == '/').into())
            .collect();
        let hwcaps = join(text.as_bstr(), "glibc-hwcaps");
        if store.is_dir(hwcaps.as_bstr()) {
            let entries = system.files.list(system.absolute(hwcaps.as_bstr()).as_bstr()).unwrap_or_default();
            below.extend(entries.iter().map(|e| join(hwcaps.as_bstr(), &e.name)));
        }
        out.push(place.clone());
        below.sort();
        below.dedup();
        out.extend(below.into_iter().map(|directory| Place { directory, origin: place.origin.clone() }));
    }
    out
}

/// Files below package directories whose names could be libraries or extensions, each once, sorted. True when a tree
/// was too big to be seen whole.
pub fn sweep(system: &System, directories: &[BString]) -> (Vec<BString>, bool) {
    let walked: Vec<_> = directories
        .par_iter()
        .map(|directory| system.files.walk(directory.as_bstr(), SWEEP, &|name| name.contains_str(".so")))
        .collect();
    let cut = walked.iter().any(|w| w.cut);
    let mut files: Vec<BString> = walked.into_iter().flat_map(|w| w.files).collect();
    files.sort();
    files.dedup();
    (files, cut)
}

/// Texts in a file's read-only data by which it may open the name or a near one, closest first. Empty unless the file imports
/// `dlopen`. A text that only repeats what the loader itself reads there (SONAME, NEEDED) does not count.
pub fn literals(store: &Store, name: &Name, path: &BStr) -> Vec<(BString, Literal)> {
    let Ok(object) = store.open(path) else { return Vec::new() };
    let Some(facts) = object.facts() else { return Vec::new() };
    let quoted = [b"\"", name.text.as_bytes(), b"\""].concat();
    let note = facts.dlopen_notes.iter().find(|n| n.contains_str(&quoted)).map(|_| (name.text.clone(), Literal::Note));
    let Ok(file) = store.system().open(path) else { return Vec::new() };
    if !elf_literals::imports_dlopen(&file, facts) {
        return note.into_iter().collect();
    }
    let mut reader = Reader::new(&file);
    let texts = elf_literals::containing(&file, facts, &mut reader, &name.needle(), MAX_TEXTS);
    let mut out: Vec<(BString, Literal)> = texts
        .found
        .into_iter()
        .filter(|t| facts.soname.as_ref() != Some(t) && facts.requests.iter().all(|r| r.name != *t))
        .flat_map(|t| {
            let asks = name.literal(t.as_bstr()).map(|kind| (t.clone(), kind));
            // `libcuda.so` is a name of its own, whatever else it may be the beginning of.
            let whole =
                !t.ends_with(b".") && !t.contains(&b'%') && asks.as_ref().is_none_or(|(_, k)| *k != Literal::Exact);
            let near = name.relation_of_name(t.as_bstr()).filter(|_| whole).map(|_| (t, Literal::Near));
            asks.into_iter().chain(near)
        })
        .chain(note)
        .collect();
    out.sort_by(|a, b| (a.1, &a.0).cmp(&(b.1, &b.0)));
    out
}

/// The name that a path stands for: the SONAME of the file, else its file name.
pub fn name_of_path(store: &Store, path: &BStr) -> BString {
    let soname = store.open(path).ok().and_then(|o| o.facts().and_then(|f| f.soname.clone()));
    soname.unwrap_or_else(|| file_name(path).to_owned())
}

/// The directories of a copy in which a search for the name finds it.
pub fn directories_of(copy: &Copy, name: &Name) -> Vec<BString> {
    let mut out: Vec<BString> = Vec::new();
    for path in copy.names.iter().filter(|p| file_name(p.as_bstr()) == name.text && p.contains(&b'/')) {
        let directory = parent(path.as_bstr()).to_owned();
        if !out.contains(&directory) {
            out.push(directory);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elf::Layout;
    use crate::fixture::{Fixture, Loader};

    fn name(text: &str) -> Name {
        Name::parse(text.into()).expect("a library name")
    }

    fn store(fixture: &str) -> Store {
        let fixture = Fixture::parse(fixture.as_bytes()).expect("a fixture");
        let system = fixture.system(Loader::glibc(2, 36)).expect("a system");
        Store::new(system, Layout::LITTLE_64, false)
    }

    const BOX: &str = "# copies\n\
        exe /app/run needed=libx.so.1\n\
        so /a/libx.so.1.2.3 soname=libx.so.1\n\
        link /a/libx.so.1 -> libx.so.1.2.3\n\
        link /a/libx.so -> libx.so.1\n\
        so /b/libx.so.1 soname=libx.so.1\n\
        hardlink /c/libx.so.1 = /b/libx.so.1\n\
        so /d/libx-0123abcd.so.1 soname=libx.so.1\n\
        so /d/libx.so.2 soname=libx.so.2\n\
        so /e/libx.so.1.9 soname=libx.so.1\n\
        so /e/liby.so.1 soname=liby.so.1\n\
        link /f/libx.so.1 -> /nowhere\n\
        so /g/glibc-hwcaps/x86-64-v3/libx.so.1 soname=libx.so.1\n\
        file /h/libx.so.1 text \"no library\"\n\
        so /site/pkg/libx.so.1 soname=libx.so.1\n\
        dir /i/libx.so.1\n\
        exec /app/run\n";

    #[test]
    fn each_file_is_one_copy_with_its_closest_name() {
        let store = store(BOX);
        let places: Vec<Place> = ["/a", "/b", "/c", "/d", "/e", "/f", "/g", "/h", "/i", "/missing"]
            .iter()
            .enumerate()
            .map(|(n, d)| Place { directory: (*d).into(), origin: Origin::LibraryPath(n as u32) })
            .collect();
        let (files, cut) = sweep(store.system(), &["/site".into()]);
        assert_eq!((files.len(), cut), (1, false));
        let found = find(&store, &name("libx.so.1"), &places, &files, &[], &[]);
        let told: Vec<(String, Relation, usize)> =
            found.copies.iter().map(|c| (c.path.to_string(), c.relation, c.names.len())).collect();
        let expected: Vec<(String, Relation, usize)> = [
            ("/a/libx.so.1", Relation::Exact, 3),
            ("/b/libx.so.1", Relation::Exact, 2),
            ("/f/libx.so.1", Relation::Exact, 1),
            ("/g/glibc-hwcaps/x86-64-v3/libx.so.1", Relation::Exact, 1),
            ("/h/libx.so.1", Relation::Exact, 1),
            ("/site/pkg/libx.so.1", Relation::Exact, 1),
            ("/e/libx.so.1.9", Relation::Longer, 1),
            ("/d/libx-0123abcd.so.1", Relation::Soname, 1),
            ("/d/libx.so.2", Relation::Version, 1),
        ]
        .map(|(p, r, n)| (p.to_owned(), r, n))
        .into();
        assert_eq!(told, expected);
        let of = |path: &str| found.copies.iter().find(|c| c.path == path).expect("copy");
        assert_eq!(of("/a/libx.so.1").version_in_name(), Some("1.2.3".into()));
        assert_eq!(of("/b/libx.so.1").version_in_name(), None);
        assert_eq!(of("/f/libx.so.1").key, None);
        assert_eq!(of("/site/pkg/libx.so.1").origins, [Origin::Package]);
        assert_eq!(directories_of(of("/b/libx.so.1"), &name("libx.so.1")), ["/b", "/c"]);
        assert!(directories_of(of("/e/libx.so.1.9"), &name("libx.so.1")).is_empty());
    }

    #[test]
    fn one_directory_under_two_names_gives_one_name() {
        let store = store(
            "# merged\nexe /app/run needed=libx.so.1\nso /usr/lib/libx.so.1 soname=libx.so.1\n\
             link /alias -> usr/lib\nexec /app/run\n",
        );
        let place = |d: &str| Place { directory: d.into(), origin: Origin::Default };
        let found = find(&store, &name("libx.so.1"), &[place("/alias"), place("/usr/lib")], &[], &[], &[]);
        assert_eq!(found.copies.len(), 1);
        assert_eq!(found.copies[0].names, ["/alias/libx.so.1"]);
    }
}
