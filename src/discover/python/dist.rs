//! What is installed on `sys.path`: distributions by their metadata directories, and which of them owns a file.
//!
//! Listing is cheap: name and version come from directory names (`torch-2.4.0.dist-info`). Headers (`METADATA`) and
//! file lists (`RECORD`) are read when asked for. To find a file's owner the lists are read in the order of how well
//! a distribution's name fits the path, which finds the owner at the first or second try.

use std::sync::{Mutex, OnceLock};

use bstr::{BStr, BString, ByteSlice};
use rustc_hash::FxHashMap;

use super::conda;
use super::record::{MAX_BYTES, Record};
use super::{Entry, Interpreter};
use crate::discover::Note;
use crate::system::{Errno, Kind, System, file_name, join, normalised, parent};

/// Only this much of a metadata file is read: headers come first.
const MAX_HEADERS: usize = 256 * 1024;
/// More distributions than this are not listed.
const MAX_DISTRIBUTIONS: usize = 50_000;
/// Libraries of one distribution that are looked for.
const MAX_LIBRARIES: usize = 1000;

/// A package that owns a file.
#[derive(Clone, Copy)]
pub enum Owner<'a> {
    /// A Python distribution.
    Distribution(&'a Distribution),
    /// A conda package.
    Conda(&'a conda::Package),
}

impl Owner<'_> {
    /// Name as its metadata writes it (`nvidia-cublas-cu12`).
    pub fn name(&self) -> &BStr {
        match self {
            Owner::Distribution(d) => d.written_name(),
            Owner::Conda(p) => p.name.as_bstr(),
        }
    }

    /// Version as text; empty when it is not told.
    pub fn version(&self) -> &BStr {
        match self {
            Owner::Distribution(d) => d.version.as_bstr(),
            Owner::Conda(p) => p.version.as_bstr(),
        }
    }
}

/// A package as an installer is told of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Installed {
    /// Name as its metadata writes it.
    pub name: BString,
    /// Version.
    pub version: BString,
    /// Who puts its files there.
    pub by: Installer,
}

/// Who puts a package's files there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Installer {
    /// pip, or what works as pip does.
    Pip,
    /// conda and its kin.
    Conda,
    /// The system's own package manager.
    System,
}

/// An installed distribution.
pub struct Distribution {
    /// Name as the metadata directory writes it: installers put `_` where the metadata has `-`.
    pub name: BString,
    /// Name normalised by PEP 503: lower case, runs of `-`, `_` and `.` are one `-`.
    pub normalised: BString,
    /// Version; empty when neither the directory name nor the metadata tells it.
    pub version: BString,
    /// The directory (or file) with its metadata.
    pub metadata_path: BString,
    /// The directory that holds it, an entry of `sys.path`.
    pub location: BString,
    /// Index of that entry in `sys.path`.
    pub entry: usize,
    /// What kind of metadata it has.
    pub form: Form,
    tokens: Vec<BString>,
    metadata: OnceLock<Metadata>,
    record: OnceLock<Option<Record>>,
    notes: Mutex<Vec<Note>>,
}

/// What kind of metadata a distribution has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// A `.dist-info` directory.
    DistInfo,
    /// An `.egg-info` directory (or `EGG-INFO` of an egg).
    EggInfo,
    /// An `.egg-info` file: headers only, the installed files are not listed.
    EggInfoFile,
}

/// Headers of `METADATA` (or `PKG-INFO`), and the installer.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Metadata {
    /// `Name`.
    pub name: BString,
    /// `Version`.
    pub version: BString,
    /// `Requires-Dist` lines as written, with their markers.
    pub requires: Vec<BString>,
    /// What `INSTALLER` says: `pip`, `uv`, `conda`.
    pub installer: Option<BString>,
}

/// All distributions on `sys.path`.
pub(super) struct Distributions {
    pub list: Vec<Distribution>,
    notes: Vec<Note>,
    owners: Mutex<FxHashMap<BString, Option<usize>>>,
    /// Directories of distributions that are reached by links: the real path and the spelling of `sys.path`.
    spellings: OnceLock<Vec<(BString, BString)>>,
}

/// PEP 503: lower case, runs of `-`, `_` and `.` become one `-`.
pub fn normalised_name(name: &[u8]) -> BString {
    let mut out = BString::default();
    for b in name {
        match b {
            b'-' | b'_' | b'.' => {
                if !out.ends_with(b"-") {
                    out.push(b'-');
                }
            }
            b => out.push(b.to_ascii_lowercase()),
        }
    }
    out
}

impl Distribution {
    fn new(metadata_path: BString, entry: usize, form: Form, stem: &[u8]) -> Distribution {
        let (name, version) = stem.rsplit_once_str("-").unwrap_or((stem, b""));
        let normalised = normalised_name(name);
        Distribution {
            name: name.into(),
            tokens: normalised.split_str("-").map(BString::from).collect(),
            normalised,
            version: version.into(),
            location: parent(metadata_path.as_bstr()).to_owned(),
            metadata_path,
            entry,
            form,
            metadata: OnceLock::new(),
            record: OnceLock::new(),
            notes: Mutex::new(Vec::new()),
        }
    }

    /// The name as the metadata writes it, once that was read; else as the directory does.
    pub fn written_name(&self) -> &BStr {
        let read = self.metadata.get().map(|m| m.name.as_bstr()).filter(|n| !n.is_empty());
        read.unwrap_or(self.name.as_bstr())
    }

    fn note(&self, note: Note) {
        if let Ok(mut notes) = self.notes.lock() {
            notes.push(note);
        }
    }

    pub(super) fn metadata(&self, system: &System) -> &Metadata {
        self.metadata.get_or_init(|| {
            let file = match self.form {
                Form::DistInfo => join(self.metadata_path.as_bstr(), "METADATA"),
                Form::EggInfo => join(self.metadata_path.as_bstr(), "PKG-INFO"),
                Form::EggInfoFile => self.metadata_path.clone(),
            };
            let mut metadata = match head(system, file.as_bstr()) {
                Ok(text) => {
                    let (metadata, complete) = headers(&text);
                    if metadata.name.is_empty() {
                        self.note(Note::new("parse", file, "no `Name` among its headers"));
                    } else if !complete && text.len() >= MAX_HEADERS {
                        self.note(Note::new(
                            "read",
                            file,
                            format!("headers beyond {MAX_HEADERS} bytes are left unread"),
                        ));
                    }
                    metadata
                }
                Err(errno) => {
                    self.note(Note::new("read", file, errno.text().to_lowercase()));
                    Metadata::default()
                }
            };
            if self.form == Form::EggInfo
                && let Ok(text) = head(system, join(self.metadata_path.as_bstr(), "requires.txt").as_bstr())
            {
                let plain = text.lines().map(<[u8]>::trim_ascii).take_while(|l| !l.starts_with(b"["));
                metadata.requires.extend(plain.filter(|l| !l.is_empty()).map(BString::from));
            }
            let installer = system.read_small(join(self.metadata_path.as_bstr(), "INSTALLER").as_bstr(), 4096).ok();
            metadata.installer = installer.map(|text| BString::from(text.trim_ascii())).filter(|text| !text.is_empty());
            metadata
        })
    }

    /// The list of its files and the directory to which the list is relative.
    pub(super) fn record(&self, system: &System) -> Option<&Record> {
        self.record
            .get_or_init(|| {
                let name = match self.form {
                    Form::DistInfo => "RECORD",
                    Form::EggInfo => "installed-files.txt",
                    Form::EggInfoFile => return None,
                };
                let file = join(self.metadata_path.as_bstr(), name);
                match system.read_small(file.as_bstr(), MAX_BYTES) {
                    Ok(bytes) if self.form == Form::DistInfo => {
                        let record = Record::of_csv(bytes);
                        if let Some(damage) = record.damage() {
                            self.note(Note::new("parse", file, damage));
                        }
                        Some(record)
                    }
                    Ok(bytes) => Some(Record::of_lines(bytes)),
                    // Distributions of the system's package manager and of conda may have none.
                    Err(Errno::ENOENT) => None,
                    Err(errno) => {
                        self.note(Note::new("read", file, errno.text().to_lowercase()));
                        None
                    }
                }
            })
            .as_ref()
    }

    fn lists(&self, system: &System, path: &BStr) -> bool {
        let base = match self.form {
            Form::DistInfo => self.location.as_bstr(),
            Form::EggInfo | Form::EggInfoFile => self.metadata_path.as_bstr(),
        };
        let Some(record) = self.record(system) else { return false };
        record.has(&relative(base, path)) || record.has(path)
    }

    /// True when the list has a path as written.
    pub(super) fn lists_as_written(&self, system: &System, path: &str) -> bool {
        self.record(system).is_some_and(|record| record.has(path.as_bytes()))
    }

    /// True when a library that the list has is not there.
    pub(super) fn lacks_libraries(&self, system: &System) -> bool {
        let is_library = |path: &[u8]| file_name(path.as_bstr()).contains_str(".so");
        let Some(record) = self.record(system) else { return false };
        let mut libraries = record.paths().filter(|path| is_library(path)).take(MAX_LIBRARIES);
        libraries.any(|path| !system.exists(join(self.location.as_bstr(), &*path).as_bstr()))
    }

    /// How well the name fits a path: parts of the name that are parts of the path, less those that are not.
    fn fits(&self, parts: &[&[u8]]) -> i32 {
        self.tokens.iter().map(|t| if parts.iter().any(|p| p.eq_ignore_ascii_case(t)) { 4 } else { -1 }).sum()
    }
}

/// The first part of a file.
fn head(system: &System, path: &BStr) -> Result<Vec<u8>, Errno> {
    let file = system.open(path)?;
    let mut text = vec![0; MAX_HEADERS.min(usize::try_from(file.meta.size).unwrap_or(usize::MAX))];
    let n = file.read_at(0, &mut text)?;
    text.truncate(n);
    Ok(text)
}

/// Reads mail-style headers up to the first empty line; true when that line was found.
fn headers(text: &[u8]) -> (Metadata, bool) {
    let mut metadata = Metadata::default();
    for line in text.lines() {
        if line.is_empty() {
            return (metadata, true);
        }
        let Some((key, value)) = line.split_once_str(":") else { continue };
        let value = value.trim_ascii();
        // A header that is continued (only long texts are) starts with white space and has no such key.
        if key.eq_ignore_ascii_case(b"Name") && metadata.name.is_empty() {
            metadata.name = value.into();
        } else if key.eq_ignore_ascii_case(b"Version") && metadata.version.is_empty() {
            metadata.version = value.into();
        } else if key.eq_ignore_ascii_case(b"Requires-Dist") {
            metadata.requires.push(value.into());
        }
    }
    (metadata, false)
}

/// `path` as seen from the directory `base`, both absolute and normalised: `torch/lib/x`, `../../../bin/x`.
fn relative(base: &BStr, path: &BStr) -> Vec<u8> {
    let mut from = base.split_str("/").filter(|p| !p.is_empty()).peekable();
    let mut to = path.split_str("/").filter(|p| !p.is_empty()).peekable();
    while from.peek().is_some() && from.peek() == to.peek() {
        from.next();
        to.next();
    }
    let parts: Vec<&[u8]> = from.map(|_| b"..".as_slice()).chain(to).collect();
    bstr::join("/", parts)
}

impl Distributions {
    /// Lists the metadata directories of each entry of `sys.path`.
    pub fn list(system: &System, path: &[Entry]) -> Distributions {
        let mut out =
            Distributions { list: Vec::new(), notes: Vec::new(), owners: Mutex::default(), spellings: OnceLock::new() };
        for (index, entry) in path.iter().enumerate() {
            let directory = entry.directory.as_bstr();
            let entries = match system.files.list(directory) {
                Ok(entries) => entries,
                // The zip file of the library rarely exists; archives are not searched.
                Err(Errno::ENOENT | Errno::ENOTDIR) => continue,
                Err(errno) => {
                    out.notes.push(Note::new("list", directory, errno.text().to_lowercase()));
                    continue;
                }
            };
            for found in entries {
                if out.list.len() >= MAX_DISTRIBUTIONS {
                    out.notes.push(Note::new(
                        "list",
                        directory,
                        format!("more than {MAX_DISTRIBUTIONS} distributions"),
                    ));
                    return out;
                }
                let metadata_path = join(directory, &found.name);
                let distribution = if let Some(stem) = found.name.strip_suffix(b".dist-info") {
                    Distribution::new(metadata_path, index, Form::DistInfo, stem)
                } else if let Some(stem) = found.name.strip_suffix(b".egg-info") {
                    // `name-1.0-py3.11`: the Python version is no part of the version.
                    let stem = match stem.rsplit_once_str("-") {
                        Some((rest, tag)) if tag.starts_with(b"py") && tag.len() > 2 && tag[2].is_ascii_digit() => rest,
                        _ => stem,
                    };
                    let form = if found.kind == Kind::File { Form::EggInfoFile } else { Form::EggInfo };
                    Distribution::new(metadata_path, index, form, stem)
                } else {
                    continue;
                };
                out.list.push(completed(system, distribution));
            }
        }
        out
    }

    /// The distribution whose file list has the path.
    pub fn owner_of(&self, system: &System, interpreter: &Interpreter, path: &BStr) -> Option<&Distribution> {
        let path = normalised(path);
        if let Some(known) = self.owners.lock().ok().and_then(|owners| owners.get(&path).copied()) {
            return known.and_then(|i| self.list.get(i));
        }
        let mut found = self.search(system, interpreter, path.as_bstr());
        if found.is_none() {
            // The same file by another way: `lib64` and `lib`, a linked prefix. The name itself is kept, for wheels
            // whose files are links into a cache.
            let directory = system.files.real_path(parent(path.as_bstr()));
            if let Ok(directory) = directory.as_ref().map(|d| join(d.as_bstr(), file_name(path.as_bstr()))) {
                if directory != path {
                    found = self.search(system, interpreter, directory.as_bstr());
                }
                // A home or environment directory behind a link: back to the spelling that `sys.path` has.
                for (real, text) in self.spellings(system) {
                    let below = directory.strip_prefix(real.as_slice()).filter(|rest| rest.starts_with(b"/"));
                    if let (None, Some(rest)) = (found, below) {
                        found = self.search(system, interpreter, [text.as_slice(), rest].concat().as_bstr());
                    }
                }
            }
        }
        if let Ok(mut owners) = self.owners.lock() {
            owners.insert(path, found);
        }
        found.and_then(|i| self.list.get(i))
    }

    fn spellings(&self, system: &System) -> &[(BString, BString)] {
        self.spellings.get_or_init(|| {
            let mut out: Vec<(BString, BString)> = Vec::new();
            for distribution in &self.list {
                let text = &distribution.location;
                if out.iter().all(|(_, known)| known != text)
                    && let Ok(real) = system.files.real_path(text.as_bstr())
                {
                    out.push((real, text.clone()));
                }
            }
            out.retain(|(real, text)| real != text);
            out
        })
    }

    fn search(&self, system: &System, interpreter: &Interpreter, path: &BStr) -> Option<usize> {
        let under = |directory: &BStr| {
            !directory.is_empty() && path.strip_prefix(directory.as_bytes()).is_some_and(|rest| rest.starts_with(b"/"))
        };
        let in_prefix = under(interpreter.prefix.as_bstr()) || under(interpreter.exec_prefix.as_bstr());
        // Scores are compared with the parts of the whole path; directories common to all candidates do not matter.
        let parts: Vec<&[u8]> =
            path.split(|b| matches!(b, b'/' | b'.' | b'-' | b'_')).filter(|p| !p.is_empty()).collect();
        let stripped: Vec<&[u8]> =
            parts.iter().filter_map(|p| p.strip_prefix(b"lib")).filter(|p| !p.is_empty()).collect();
        let parts = [parts, stripped].concat();
        let mut candidates: Vec<(i32, usize)> = self
            .list
            .iter()
            .enumerate()
            .filter(|(_, d)| d.form != Form::EggInfoFile && (under(d.location.as_bstr()) || in_prefix))
            .map(|(i, d)| (-d.fits(&parts), i))
            .collect();
        candidates.sort_unstable();
        candidates.into_iter().map(|(_, i)| i).find(|i| self.list[*i].lists(system, path))
    }

    /// What could not be read so far.
    pub fn notes(&self) -> Vec<Note> {
        let mut out = self.notes.clone();
        for distribution in &self.list {
            if let Ok(notes) = distribution.notes.lock() {
                out.extend(notes.iter().cloned());
            }
        }
        out
    }
}

/// Fills in what the directory name does not tell.
fn completed(system: &System, mut distribution: Distribution) -> Distribution {
    if distribution.version.is_empty() {
        let metadata = distribution.metadata(system).clone();
        distribution.version = metadata.version;
        if !metadata.name.is_empty() {
            distribution.normalised = normalised_name(&metadata.name);
            distribution.tokens = distribution.normalised.split_str("-").map(BString::from).collect();
            distribution.name = metadata.name;
        }
    }
    distribution
}
