//! Which entries would ldconfig write? The scan of its directories (`elf/ldconfig.c`: `search_dirs`, `search_dir`).

use std::collections::{HashMap, HashSet};

use bstr::{BStr, BString, ByteSlice};

use super::{Configuration, DIRECTORIES_LIMIT, Directory, Rules, Source, Status, rooted};
use crate::ld::cache::{self, Cache, Format, Reader, Record, Unusable};
use crate::system::{self, Errno, FileKey, Kind, System};

/// What ldconfig reads out of a library (`process_file`). `None` for a file that it leaves out: not ELF, not ET_DYN, of
/// another machine, without a dynamic section.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LibraryId {
    /// DT_SONAME.
    pub soname: Option<BString>,
    /// Type and machine ([`cache::library_flags`]).
    pub flags: i32,
    /// x86 ISA level ([`cache::isa_level`]).
    pub isa_level: u16,
    /// Kernel version of the ABI note, `os << 24 | major << 16 | minor << 8 | patch`; 0 without one.
    pub os_version: u32,
}

/// An entry as ldconfig would write it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Line {
    /// The entry. Its path can name a file that does not exist: ldconfig would make a link of that name (rule R4.17).
    pub record: Record,
    /// The file that it stands for.
    pub file: BString,
    /// Why its directory is scanned.
    pub source: Source,
}

/// ldconfig's view of a box: the lines of the cache that it would write, in order.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct View {
    /// The lines.
    pub lines: Vec<Line>,
    /// Directories that could not be listed.
    pub unlisted: Vec<(BString, Errno)>,
}

impl View {
    /// The cache file of this view, as a loader reads it.
    pub fn cache(&self, reader: Reader) -> Result<Cache, Unusable> {
        let records: Vec<Record> = self.lines.iter().map(|l| l.record.clone()).collect();
        let bytes = cache::encode(&records, Format::New, reader.big_endian, Some(BStr::new("ldaudit")))
            .map_err(|cache::TooBig| Unusable::Unreadable(Errno(27)))?;
        Cache::parse(bytes.into(), reader)
    }
}

/// Scans the directories as `ldconfig -X` does. `identify` reads a library file.
///
/// Where ldconfig's outcome depends on the order in which the file system lists a directory (names that differ only in
/// leading zeros), the bytewise order is taken.
pub fn rebuild(
    system: &System,
    rules: &Rules,
    configuration: &Configuration,
    identify: &mut dyn FnMut(&BStr) -> Option<LibraryId>,
) -> View {
    let mut directories: Vec<Directory> =
        configuration.directories.iter().filter(|d| d.status == Status::Scanned).cloned().collect();
    let keys = directories.iter().filter_map(|d| system.stat(rooted(d.path.as_bstr()).as_bstr()).ok());
    let mut seen: HashSet<FileKey> = keys.map(|meta| meta.key).collect();
    let mut view = View::default();
    let mut next = 0;
    // Legacy sub-directories are appended while the list is walked.
    while let Some(directory) = directories.get(next).cloned() {
        next += 1;
        let mut scan = Scan { system, rules, directory: &directory, names: HashMap::new(), found: Vec::new() };
        match scan.directory(identify) {
            Err(errno) => view.unlisted.push((directory.path.clone(), errno)),
            Ok(below) => {
                for (path, key) in below {
                    if directories.len() < DIRECTORIES_LIMIT && seen.insert(key) {
                        directories.push(Directory { path, status: Status::Scanned, ..directory.clone() });
                    }
                }
            }
        }
        view.lines.append(&mut scan.lines());
    }
    cache::sort(&mut view.lines, cache::signed_char(rules.machine), |line| &line.record);
    view
}

/// `search_dir`.
struct Scan<'a> {
    system: &'a System,
    rules: &'a Rules,
    directory: &'a Directory,
    /// Place in `found` of each soname.
    names: HashMap<BString, usize>,
    found: Vec<Found>,
}

/// The best file of one soname so far.
struct Found {
    name: BString,
    soname: BString,
    is_link: bool,
    id: LibraryId,
}

impl Scan<'_> {
    /// Returns the legacy sub-directories.
    fn directory(
        &mut self,
        identify: &mut dyn FnMut(&BStr) -> Option<LibraryId>,
    ) -> Result<Vec<(BString, FileKey)>, Errno> {
        let mut below = Vec::new();
        for entry in self.system.files.list(rooted(self.directory.path.as_bstr()).as_bstr())? {
            let name = entry.name.as_bstr();
            let is_link = entry.kind == Kind::Link;
            let in_hwcaps = self.directory.hwcaps.is_some();
            let legacy = !in_hwcaps && self.rules.is_legacy_name(name);
            // A link in a glibc-hwcaps directory may have any name.
            if !self.rules.is_library_name(name) && (entry.kind == Kind::File || !(in_hwcaps || legacy)) {
                continue;
            }
            if entry.kind == Kind::Other || self.rules.is_temporary_name(name) {
                continue;
            }
            let path = system::join(self.directory.path.as_bstr(), name);
            let Ok(meta) = self.system.stat(rooted(path.as_bstr()).as_bstr()) else { continue };
            if legacy && meta.kind == Kind::Directory {
                below.push((path, meta.key));
                continue;
            }
            // Opening anything else would be in vain, or would never end.
            if meta.kind != Kind::File {
                continue;
            }
            if let Some(id) = identify(rooted(path.as_bstr()).as_bstr()) {
                self.add(entry.name, is_link, id);
            }
        }
        Ok(below)
    }

    fn add(&mut self, name: BString, is_link: bool, mut id: LibraryId) {
        let soname = id.soname.clone().unwrap_or_else(|| name.clone());
        // A link is one only when it is called like the soname or is a developer's link to it; else it counts as a file.
        let is_link = is_link && (name == soname || (name.ends_with(b".so") && soname.starts_with(&name)));
        let soname = if is_link { name.clone() } else { soname };
        if id.flags == 1
            && let Some(kind @ 2..=3) = self.directory.kind
        {
            id.flags = kind;
        }
        let Some(place) = self.names.get(&soname) else {
            self.names.insert(soname.clone(), self.found.len());
            return self.found.push(Found { name, soname, is_link, id });
        };
        let Some(held) = self.found.get_mut(*place) else { return };
        let newer = || cache::libcmp(&held.name, &name, cache::signed_char(self.rules.machine)) < 0;
        if (!is_link && held.is_link) || (is_link == held.is_link && newer()) {
            // Of two different types ldconfig keeps the first with an error message.
            id.flags = match (held.id.flags, id.flags) {
                (1, better @ 2..=3) => better,
                (first, _) => first,
            };
            (held.name, held.is_link, held.id) = (name, is_link, id);
        }
    }

    /// The lines, last found first, as ldconfig keeps its list.
    fn lines(self) -> Vec<Line> {
        let Scan { rules, directory, found, .. } = self;
        let hwcap = if directory.hwcaps.is_none() { rules.legacy_mask(directory.path.as_bstr()) } else { 0 };
        let line = |found: Found| {
            let file = system::join(directory.path.as_bstr(), &found.name);
            let path = match directory.hwcaps {
                None => system::join(directory.path.as_bstr(), &found.soname),
                Some(_) => file.clone(),
            };
            let record = Record {
                os_version: if rules.os_version { found.id.os_version } else { 0 },
                hwcap,
                hwcaps: directory.hwcaps.clone(),
                isa_level: found.id.isa_level,
                ..Record::new(found.soname, path, found.id.flags)
            };
            Line { record, file, source: directory.source.clone() }
        };
        found.into_iter().rev().map(line).collect()
    }
}
