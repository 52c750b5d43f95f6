//! Which copies of a library lie on the box, where, and how does each relate to the name that is asked for?
//!
//! A [`Name`] knows its own near misses (other version, name without a version, name with a hash as auditwheel makes
//! it) and which texts in a program's read-only data ask for it. [`find`] lists the copies in given places and among the
//! files of packages; the same file under several names is one [`struct@Copy`]. Nothing here decides who wins.

use std::fmt;
use std::sync::Arc;

use bstr::{BStr, BString, ByteSlice};
use rayon::prelude::*;
use rustc_hash::{FxHashMap, FxHashSet};

use super::python::glob::glob;
use crate::elf::{Reader, literals as elf_literals};
use crate::ld::{Object, Rule, Store};
use crate::system::{Environment, Errno, FileKey, Kind, System, WalkLimits, file_name, join, normalised, parent};

/// Directories below a package directory and names per tree that a sweep looks at.
const SWEEP: WalkLimits = WalkLimits { depth: 14, entries: 400_000 };
/// Most files of one directory whose SONAME is read.
const MAX_FILES: usize = 20_000;
/// Most texts of one file that are looked at.
const MAX_TEXTS: usize = 200;
/// Most copies that are told apart.
const MAX_COPIES: usize = 500;

/// The parts of a library's file name: `libcudart-e409450e.so.11.0` is `libcudart`, `e409450e`, `.11.0`.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Parts<'a> {
    stem: &'a BStr,
    hash: Option<&'a BStr>,
    version: &'a BStr,
}

fn parts(name: &BStr) -> Option<Parts<'_>> {
    let at = name.find_iter(b".so").find(|at| matches!(name.get(at + 3), None | Some(b'.')))?;
    let (whole, version) = (&name[..at], &name[at + 3..]);
    if whole.is_empty() {
        return None;
    }
    Some(match hash_of(whole.as_bstr()) {
        Some(cut) => {
            Parts { stem: whole[..cut].as_bstr(), hash: Some(whole[cut + 1..].as_bstr()), version: version.as_bstr() }
        }
        None => Parts { stem: whole.as_bstr(), hash: None, version: version.as_bstr() },
    })
}

/// Where the hash begins that a wheel's maker put behind a stem: auditwheel writes `libgomp-a34b3233.so.1`, other tools
/// `libcudart.3eda8113.so.13`.
fn hash_of(whole: &BStr) -> Option<usize> {
    whole.rfind_byteset(b"-.").filter(|cut| {
        let hash = &whole[cut + 1..];
        *cut > 0 && (8..=40).contains(&hash.len()) && hash.iter().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
    })
}

/// A name up to its `.so` without hashes, `libgfortran` of `libgfortran-040039e1-0352e75f`: a wheel that vendors what
/// another one has vendored adds a second one.
pub fn unhashed(whole: &BStr) -> &BStr {
    let mut rest = whole;
    while let Some(cut) = hash_of(rest) {
        rest = rest[..cut].as_bstr();
    }
    rest
}

/// A library name that is asked about.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Name {
    /// The name without a directory: what NEEDED and `dlopen` are compared with.
    pub text: BString,
    /// The name up to `.so`, hash kept.
    whole: BString,
    stem: BString,
    hash: Option<BString>,
    version: BString,
}

/// How a file relates to the name, closest first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Relation {
    /// The file name is the name.
    Exact,
    /// A longer version as file name (`libfoo.so.8.9.7`), and the SONAME is the name: only the link is missing.
    Longer,
    /// Another file name, and the SONAME is the name: answers once it is loaded by its path.
    Soname,
    /// Another version of the name.
    Version,
    /// The name without a version, as compilers want it.
    Developer,
    /// Renamed with a hash, or with another one than the name has.
    Hashed,
}

impl Relation {
    /// The name used in reports.
    pub fn name(self) -> &'static str {
        match self {
            Relation::Exact => "exact",
            Relation::Longer => "longer-version",
            Relation::Soname => "soname",
            Relation::Version => "other-version",
            Relation::Developer => "developer-name",
            Relation::Hashed => "renamed",
        }
    }

    /// True when a file of this relation answers the name, once it is loaded in whatever way.
    pub fn answers(self) -> bool {
        matches!(self, Relation::Exact | Relation::Longer | Relation::Soname)
    }
}

/// How a text in read-only data asks for the name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Literal {
    /// The name itself.
    Exact,
    /// A path that ends in the name.
    Path,
    /// A pattern that can become the name (`libnvrtc.so.%d`).
    Template,
    /// The beginning of the name (`libnvrtc.so.`, `libcudnn_graph.so`): code may add the version.
    Beginning,
    /// A note that declares what the file opens (`.note.dlopen`, as systemd's libraries have it).
    Note,
    /// Another name than the one asked about, near to it.
    Near,
}

impl Literal {
    /// The name used in reports.
    pub fn name(self) -> &'static str {
        match self {
            Literal::Exact => "exact",
            Literal::Path => "path",
            Literal::Template => "template",
            Literal::Beginning => "beginning",
            Literal::Note => "note",
            Literal::Near => "near",
        }
    }
}

impl Name {
    /// Reads a library name; `None` when it holds no `.so`.
    pub fn parse(text: &BStr) -> Option<Name> {
        let p = parts(text)?;
        Some(Name {
            text: text.to_owned(),
            whole: text[..text.len() - p.version.len() - 3].into(),
            stem: p.stem.to_owned(),
            hash: p.hash.map(|h| h.to_owned()),
            version: p.version.to_owned(),
        })
    }

    /// True for `libfoo.so`: the name without a version.
    pub fn is_developer(&self) -> bool {
        self.version.is_empty()
    }

    /// True when the name carries a hash.
    pub fn is_hashed(&self) -> bool {
        self.hash.is_some()
    }

    /// The name without its hash.
    pub fn unhashed(&self) -> BString {
        [self.stem.as_bytes(), b".so", self.version.as_bytes()].concat().into()
    }

    /// What every text that asks for the name contains.
    pub fn needle(&self) -> BString {
        [self.whole.as_bytes(), b".so"].concat().into()
    }

    /// How a file name relates to the name, its SONAME left aside.
    pub fn relation_of_name(&self, file: &BStr) -> Option<Relation> {
        if file == self.text {
            return Some(Relation::Exact);
        }
        if !file.starts_with(&self.stem) {
            return None;
        }
        let p = parts(file)?;
        if p.stem != self.stem {
            None
        } else if p.hash != self.hash.as_ref().map(|h| h.as_bstr()) {
            Some(Relation::Hashed)
        } else if p.version.is_empty() {
            Some(Relation::Developer)
        } else {
            Some(Relation::Version)
        }
    }

    /// How a file relates to the name.
    pub fn relation(&self, file: &BStr, soname: Option<&BStr>) -> Option<Relation> {
        if file != self.text && soname.is_some_and(|s| s == self.text) {
            let longer = file.strip_prefix(self.text.as_bytes()).is_some_and(|rest| rest.starts_with(b"."));
            return Some(if longer { Relation::Longer } else { Relation::Soname });
        }
        self.relation_of_name(file)
    }

    /// How a text in read-only data asks for the name; `None` when it does not.
    pub fn literal(&self, text: &BStr) -> Option<Literal> {
        if text == self.text {
            return Some(Literal::Exact);
        }
        let file = file_name(text);
        if file == self.text {
            return Some(Literal::Path);
        }
        // `%slibfoo.so.1`: the directory comes in as an argument.
        let file = file.strip_prefix(b"%s").map_or(file, |rest| rest.as_bstr());
        if file == self.text {
            return Some(Literal::Template);
        }
        if file.contains_str("%") || file.contains_str("{}") {
            return fits_template(file, self.text.as_bstr()).then_some(Literal::Template);
        }
        let rest = self.text.strip_prefix(file.as_bytes())?;
        let at_boundary = rest.starts_with(b".") || file.ends_with(b".");
        (file.len() >= self.whole.len() + 3 && at_boundary).then_some(Literal::Beginning)
    }
}

/// True when a text made from a `printf` or `{}` pattern can be `name`. Numbers stand for digits, strings for anything
/// but slashes; both for at least one character.
fn fits_template(pattern: &[u8], name: &[u8]) -> bool {
    let Some((first, rest)) = pattern.split_first() else { return name.is_empty() };
    let (digits, after): (bool, &[u8]) = match (first, rest) {
        (b'%', [b'%', after @ ..]) => return name.first() == Some(&b'%') && fits_template(after, &name[1..]),
        (b'%', _) => {
            let flags = rest.iter().take_while(|b| b.is_ascii_digit() || matches!(b, b'-' | b'.' | b'l' | b'h' | b'z'));
            let flags = flags.count();
            match rest.get(flags) {
                Some(b'd' | b'i' | b'u') => (true, &rest[flags + 1..]),
                Some(b's') => (false, &rest[flags + 1..]),
                _ => return false,
            }
        }
        (b'{', [b'}', after @ ..]) => (false, after),
        _ => return name.first() == Some(first) && fits_template(rest, &name[1..]),
    };
    // Names and patterns are at most 256 bytes long with few fields, so trying each length is no matter.
    if pattern.iter().filter(|b| matches!(b, b'%' | b'{')).count() > 4 {
        return false;
    }
    let room = name.iter().take_while(|b| if digits { b.is_ascii_digit() } else { **b != b'/' }).count();
    (1..=room).any(|n| fits_template(after, &name[n..]))
}

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

/// Library directories of a toolkit below its root.
const IN_TOOLKIT: &[&str] =
    &["lib64", "lib", "targets/*/lib", "extras/CUPTI/lib64", "nvvm/lib64", "compat", "lib64/stubs", "lib/stubs"];

/// Roots of toolkits and directories of drivers in their usual places.
const TOOLKITS: &[&str] = &[
    "/usr/local/cuda*",
    "/opt/cuda*",
    "/opt/nvidia/hpc_sdk/Linux_*/*/cuda/*",
    "/opt/nvidia/hpc_sdk/Linux_*/*/math_libs/*",
];
const DIRECTORIES: &[&str] = &[
    "/opt/nvidia/hpc_sdk/Linux_*/*/comm_libs/*/lib",
    "/usr/local/nvidia/lib64",
    "/usr/local/nvidia/lib",
    "/usr/lib/wsl/lib",
    "/usr/lib/wsl/drivers/*",
    "/usr/lib/*/nvidia/current",
    "/usr/lib/nvidia*",
    "/usr/lib64/nvidia",
    "/usr/lib/*/nvidia",
    "/usr/lib/*/tegra",
    "/run/opengl-driver/lib",
    "/var/lib/snapd/lib/gl",
    "/usr/local/lib",
    "/opt/*/lib",
    "/opt/*/lib64",
];
/// Variables that name a root with libraries.
const VARIABLES: &[&str] = &[
    "CUDA_HOME",
    "CUDA_PATH",
    "CUDA_ROOT",
    "CUDNN_PATH",
    "CUDNN_HOME",
    "TENSORRT_HOME",
    "NCCL_HOME",
    "EBROOTCUDA",
    "CONDA_PREFIX",
];

/// Directories where CUDA parts and drivers usually lie, and those that variables of the environment name.
pub fn usual_places(system: &System, env: &Environment) -> Vec<Place> {
    let mut out: Vec<Place> = Vec::new();
    let mut add = |directory: BString, origin: Origin| {
        if system.is_dir(directory.as_bstr()) && out.iter().all(|p| p.directory != directory) {
            out.push(Place { directory, origin });
        }
    };
    let found = |pattern: &BStr| {
        let mut found = glob(system, pattern);
        found.sort();
        found
    };
    for variable in VARIABLES {
        let Some(root) = env.get(variable).filter(|r| r.first() == Some(&b'/')) else { continue };
        for below in IN_TOOLKIT {
            // Only our own part of the pattern may hold wildcards, the value of the variable is taken as it is.
            match below.split_once('*') {
                None => add(join(root, below), Origin::Variable(variable)),
                Some((before, after)) => {
                    let base = join(root, before.trim_end_matches('/'));
                    for entry in system.files.list(base.as_bstr()).unwrap_or_default() {
                        let directory =
                            join(join(base.as_bstr(), &entry.name).as_bstr(), after.trim_start_matches('/'));
                        add(directory, Origin::Variable(variable));
                    }
                }
            }
        }
    }
    for root in TOOLKITS {
        for below in IN_TOOLKIT {
            for directory in found(join(root.as_bytes().as_bstr(), below).as_bstr()) {
                add(directory, Origin::Toolkit);
            }
        }
    }
    for pattern in DIRECTORIES {
        for directory in found(pattern.as_bytes().as_bstr()) {
            add(directory, Origin::Toolkit);
        }
    }
    out
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

    #[test]
    fn names_are_taken_apart_at_the_first_so() {
        let of = |text: &str| {
            parts(text.as_bytes().as_bstr())
                .map(|p| (p.stem.to_string(), p.hash.map(|h| h.to_string()).unwrap_or_default(), p.version.to_string()))
        };
        let made = |a: &str, b: &str, c: &str| Some((a.to_owned(), b.to_owned(), c.to_owned()));
        assert_eq!(of("libfoo.so.8.9"), made("libfoo", "", ".8.9"));
        assert_eq!(of("libfoo.so"), made("libfoo", "", ""));
        assert_eq!(of("libgomp-a34b3233.so.1.0.0"), made("libgomp", "a34b3233", ".1.0.0"));
        assert_eq!(of("libcudart.3eda8113.so.13"), made("libcudart", "3eda8113", ".13"));
        assert_eq!(of("libc-2.31.so"), made("libc-2.31", "", ""));
        assert_eq!(of("_C.cpython-311-x86_64-linux-gnu.so"), made("_C.cpython-311-x86_64-linux-gnu", "", ""));
        assert_eq!(of("lib.sofa.so.1"), made("lib.sofa", "", ".1"));
        assert_eq!(of("libfoo"), None);
        assert_eq!(of(".so"), None);
        assert_eq!(of("-a34b3233.so"), made("-a34b3233", "", ""));
    }

    #[test]
    fn a_file_relates_to_a_name_by_its_own_name_and_its_soname() {
        let n = name("libfoo.so.8");
        let of = |file: &str, soname: Option<&str>| n.relation(file.into(), soname.map(|s| s.into()));
        assert_eq!(of("libfoo.so.8", Some("libother.so")), Some(Relation::Exact));
        assert_eq!(of("libfoo.so.8.9.7", Some("libfoo.so.8")), Some(Relation::Longer));
        assert_eq!(of("libfoo.so.8.9.7", Some("libfoo.so.8.9")), Some(Relation::Version));
        assert_eq!(of("zz.so", Some("libfoo.so.8")), Some(Relation::Soname));
        assert_eq!(of("libfoo-0123abcd.so.8", Some("libfoo.so.8")), Some(Relation::Soname));
        assert_eq!(of("libfoo-0123abcd.so.8", None), Some(Relation::Hashed));
        assert_eq!(of("libfoo.so.9", None), Some(Relation::Version));
        assert_eq!(of("libfoo.so", None), Some(Relation::Developer));
        assert_eq!(of("libfoobar.so.8", None), None);
        assert_eq!(of("libfo.so.8", None), None);
        let hashed = name("libfoo-0123abcd.so.8");
        assert_eq!(hashed.relation_of_name("libfoo.so.8".into()), Some(Relation::Hashed));
        assert_eq!(hashed.relation_of_name("libfoo-0123abcd.so.9".into()), Some(Relation::Version));
    }

    #[test]
    fn texts_ask_for_a_name_in_several_ways() {
        let n = name("libnvrtc.so.12");
        let of = |text: &str| n.literal(text.into());
        assert_eq!(of("libnvrtc.so.12"), Some(Literal::Exact));
        assert_eq!(of("/opt/x/libnvrtc.so.12"), Some(Literal::Path));
        assert_eq!(of("libnvrtc.so.%d"), Some(Literal::Template));
        assert_eq!(of("%s/libnvrtc.so.%s"), Some(Literal::Template));
        assert_eq!(of("libnvrtc.so.{}"), Some(Literal::Template));
        assert_eq!(of("libnvrtc.so."), Some(Literal::Beginning));
        assert_eq!(of("libnvrtc.so"), Some(Literal::Beginning));
        assert_eq!(of("libnvrtc.so.1"), None);
        assert_eq!(of("libnvrtc.so.%d.%d"), None);
        assert_eq!(of("libnvrtc.so.13"), None);
        assert_eq!(of("libnvrtc"), None);
        assert_eq!(of("cannot load libnvrtc.so.12"), None);
        assert_eq!(of("libnvrtc.so.%n"), None);
        assert_eq!(of("libnvrtc.so.%"), None);
        assert_eq!(name("libx.so.1.2").literal("libx.so.%d.%02d".into()), Some(Literal::Template));
        assert_eq!(name("libx.so").literal("libx.so.1".into()), None);
    }

    #[test]
    fn a_pattern_of_many_fields_takes_no_time() {
        let text = format!("lib{}.so", "a".repeat(200));
        let pattern = "%s".repeat(100);
        assert!(!fits_template(pattern.as_bytes(), text.as_bytes()));
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

    #[test]
    fn usual_places_follow_variables_without_reading_them_as_patterns() {
        let store = store(
            "# places\nexe /app/run needed=libx.so.1\ndir /x*y/lib64\ndir /xzy/lib64\ndir /x*y/targets/t/lib\n\
             dir /usr/local/cuda-12.1/lib64/stubs\nexec /app/run\n",
        );
        let mut env = Environment::new();
        env.set("CUDA_HOME", "/x*y");
        let places: Vec<(String, String)> = usual_places(store.system(), &env)
            .into_iter()
            .map(|p| (p.directory.to_string(), p.origin.to_string()))
            .collect();
        let has = |d: &str, o: &str| places.iter().any(|(a, b)| (a.as_str(), b.as_str()) == (d, o));
        assert!(has("/x*y/lib64", "CUDA_HOME") && has("/x*y/targets/t/lib", "CUDA_HOME"), "{places:?}");
        assert!(has("/usr/local/cuda-12.1/lib64", "usual place"), "{places:?}");
        assert!(has("/usr/local/cuda-12.1/lib64/stubs", "usual place"), "{places:?}");
        assert!(!places.iter().any(|(d, _)| d.starts_with("/xzy")), "{places:?}");
    }
}
