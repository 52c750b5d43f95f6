//! What do the loader's configuration files say, and which lines would ldconfig write?
//!
//! `/etc/ld.so.conf` with its includes (`elf/ldconfig.c`: `parse_conf`, `add_dir_1`, `search_dir`), the view that
//! ldconfig has of a root whose cache is missing ([`rebuild`]), `/etc/ld.so.preload` (`elf/rtld.c`), and musl's path file
//! (`ldso/dynlink.c`). The loader itself never reads `ld.so.conf`: it says why a line stands in the cache, or what is
//! missing there.

mod glob;
mod lists;
mod rules;
mod scan;

use std::collections::HashMap;

use bstr::{BStr, BString, ByteSlice};

use glob::glob;
pub use lists::{
    MUSL_DEFAULT, MuslPath, PRELOAD, PathSource, musl_arch, musl_path, musl_path_file, preload_names, read_preload,
};
pub use rules::Rules;
pub use scan::{LibraryId, Line, View, rebuild};

use crate::system::{self, Errno, FileKey, Kind, System};

/// The configuration file of ldconfig.
pub const CONF: &str = "/etc/ld.so.conf";

/// Configuration files above this size are not read.
const FILE_LIMIT: u64 = 1 << 20;
/// Configuration files read before includes are given up: they can include each other again and again.
const FILES_LIMIT: usize = 1000;
/// Patterns of `include` lines that are followed.
const INCLUDES_LIMIT: usize = 10_000;
/// Names that all these patterns together are compared with.
const NAMES_LIMIT: usize = 1_000_000;
/// Notes that are kept.
const NOTES_LIMIT: usize = 1000;
/// Depth of includes; ldconfig ends when it runs out of file descriptors.
const DEPTH_LIMIT: usize = 100;
/// Directories taken from the configuration.
const DIRECTORIES_LIMIT: usize = 20_000;

/// What put a directory on ldconfig's list.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Source {
    /// A line of a configuration file, counted from 1.
    Line(BString, u32),
    /// Compiled into ldconfig.
    BuiltIn,
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Source::Line(file, line) => write!(f, "{file}:{line}"),
            Source::BuiltIn => f.write_str("<builtin>"),
        }
    }
}

/// Whether a directory is scanned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Status {
    /// It is (a path that is no directory too, in vain).
    Scanned,
    /// The same directory, by device and inode, stands earlier in the list: the number of that one, whose spelling
    /// counts (rule R4.15).
    Duplicate(usize),
    /// It does not exist, or cannot be reached.
    Missing(Errno),
}

/// A directory of ldconfig's list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Directory {
    /// The path as configured, without trailing slashes.
    pub path: BString,
    /// What put it here; for a sub-directory, what put the directory above it here.
    pub source: Source,
    /// Whether it is scanned.
    pub status: Status,
    /// Name of the sub-directory of `glibc-hwcaps` that it is.
    pub hwcaps: Option<BString>,
    /// Library type by a suffix `=TYPE`, which applies to plain ELF files only.
    kind: Option<i32>,
}

/// Something in the configuration that a person should know.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Note {
    /// The file.
    pub file: BString,
    /// The line, from 1; 0 when the whole file is meant.
    pub line: u32,
    /// What is the matter.
    pub what: Oddity,
}

/// What can be the matter with a configuration file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Oddity {
    /// The file cannot be read (a missing file is not noted: ldconfig is silent about it).
    Unreadable(Errno),
    /// A `hwcap` line, which does nothing any more.
    HwcapIgnored,
    /// The type of library after `=` is not known.
    UnknownType(BString),
    /// The file includes itself, directly or through others.
    IncludeLoop,
    /// Includes too deep or too many; the rest is left out.
    TooMany,
}

/// ldconfig's list of directories.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Configuration {
    /// In the order of the list. The legacy sub-directories, which ldconfig finds while scanning, are not here.
    pub directories: Vec<Directory>,
    /// The configuration files that were read, in order.
    pub files: Vec<BString>,
    /// What a person should know.
    pub notes: Vec<Note>,
}

impl Configuration {
    /// Reads `/etc/ld.so.conf` and adds the built-in directories ([`Rules::system_directories`]).
    pub fn read(system: &System, rules: &Rules, built_in: &[BString]) -> Configuration {
        let mut list = List {
            system,
            rules,
            out: Configuration::default(),
            seen: HashMap::new(),
            open: Vec::new(),
            includes: 0,
            names_left: NAMES_LIMIT,
        };
        list.parse(CONF.into());
        for directory in built_in {
            list.add(directory.as_bstr(), Source::BuiltIn);
        }
        list.out
    }

    /// The directory behind a path of the cache: the scanned one that it lies directly in, else the nearest one above
    /// it (then a legacy sub-directory). `None` says that the configuration of today does not explain the line.
    pub fn behind(&self, path: &BStr) -> Option<&Directory> {
        let parent = system::parent(path);
        let scanned = || self.directories.iter().filter(|d| d.status == Status::Scanned);
        scanned().find(|d| d.path == parent).or_else(|| {
            let below =
                |d: &&Directory| parent.strip_prefix(d.path.as_slice()).is_some_and(|rest| rest.starts_with(b"/"));
            scanned().filter(below).max_by_key(|d| d.path.len())
        })
    }
}

/// The list while it is built.
struct List<'a> {
    system: &'a System,
    rules: &'a Rules,
    out: Configuration,
    seen: HashMap<FileKey, usize>,
    /// Files being read, outermost first.
    open: Vec<FileKey>,
    /// Patterns followed so far.
    includes: usize,
    /// Names that patterns may still be compared with.
    names_left: usize,
}

impl List<'_> {
    /// `parse_conf`. A file that includes itself, by whatever path, adds nothing but itself: ldconfig goes on until it can
    /// open no more files.
    fn parse(&mut self, file: &BStr) {
        let key = match self.system.stat(file) {
            Ok(meta) => meta.key,
            Err(Errno::ENOENT) => return,
            Err(errno) => return self.note(file, 0, Oddity::Unreadable(errno)),
        };
        if self.open.contains(&key) {
            return self.note(file, 0, Oddity::IncludeLoop);
        }
        if self.open.len() >= DEPTH_LIMIT || self.out.files.len() >= FILES_LIMIT {
            return self.note(file, 0, Oddity::TooMany);
        }
        let text = match self.system.read_small(file, FILE_LIMIT) {
            Ok(text) => text,
            Err(Errno::ENOENT) => return,
            Err(errno) => return self.note(file, 0, Oddity::Unreadable(errno)),
        };
        self.out.files.push(file.to_owned());
        self.open.push(key);
        for (number, line) in (1..).zip(text.lines_with_terminator()) {
            let line = line.strip_suffix(b"\n").unwrap_or(line);
            // A line is a C string; `#` cannot be quoted.
            let line = line.split(|b| matches!(b, 0 | b'#')).next().unwrap_or_default();
            let line = line.trim_start_with(is_space);
            if line.is_empty() {
                continue;
            }
            if let Some(patterns) = directive(line, "include") {
                for pattern in patterns.split(|b| is_blank(*b)).filter(|p| !p.is_empty()) {
                    self.include(file, number, pattern.as_bstr());
                }
            } else if line.get(..5).is_some_and(|word| word.eq_ignore_ascii_case(b"hwcap"))
                && line.get(5).is_some_and(|b| is_blank(*b))
            {
                if self.rules.hwcap_warning {
                    self.note(file, number, Oddity::HwcapIgnored);
                }
            } else {
                self.add(line.as_bstr(), Source::Line(file.to_owned(), number));
            }
        }
        self.open.pop();
    }

    fn note(&mut self, file: &BStr, line: u32, what: Oddity) {
        if self.out.notes.len() < NOTES_LIMIT {
            self.out.notes.push(Note { file: file.to_owned(), line, what });
        }
    }

    /// `parse_conf_include`: a relative pattern begins at the directory of the including file.
    fn include(&mut self, file: &BStr, line: u32, pattern: &BStr) {
        self.includes += 1;
        if self.includes > INCLUDES_LIMIT {
            return self.note(file, line, Oddity::TooMany);
        }
        let pattern = match pattern.first() {
            Some(b'/') => pattern.to_owned(),
            _ => system::join(system::parent(file), pattern),
        };
        let had_room = self.names_left > 0;
        for path in glob(self.system, pattern.as_bstr(), &mut self.names_left) {
            self.parse(path.as_bstr());
        }
        if had_room && self.names_left == 0 {
            self.note(file, line, Oddity::TooMany);
        }
    }

    /// `add_dir_1`.
    fn add(&mut self, line: &BStr, source: Source) {
        let (mut path, mut kind) = (line, None);
        if self.rules.type_suffix
            && let Some(at) = line.find_byte(b'=')
        {
            path = line[..at].as_bstr();
            kind = match line[at + 1..].as_bytes() {
                b"libc4" => Some(0),
                b"libc5" => Some(2),
                b"libc6" | b"glibc2" => Some(3),
                other => {
                    if let Source::Line(file, line) = &source {
                        self.note(file.as_bstr(), *line, Oddity::UnknownType(other.into()));
                    }
                    None
                }
            };
        }
        let path = path.trim_end_with(is_space).trim_end_with(|c| c == '/').as_bstr();
        if path.is_empty() {
            return;
        }
        if self.push(path.to_owned(), source.clone(), None, kind) && self.rules.named {
            self.add_hwcaps(path, source, kind);
        }
    }

    /// `add_glibc_hwcaps_subdirectories`: they come right after their directory.
    fn add_hwcaps(&mut self, directory: &BStr, source: Source, kind: Option<i32>) {
        let hwcaps = system::join(directory, "glibc-hwcaps");
        for entry in self.system.files.list(rooted(hwcaps.as_bstr()).as_bstr()).unwrap_or_default() {
            if entry.name.starts_with(b".") || entry.kind == Kind::File || entry.name.contains(&b':') {
                continue;
            }
            let path = system::join(hwcaps.as_bstr(), &entry.name);
            if self.system.is_dir(rooted(path.as_bstr()).as_bstr()) {
                self.push(path, source.clone(), Some(entry.name), kind);
            }
        }
    }

    /// `add_single_dir`. True when the directory is new and exists.
    fn push(&mut self, path: BString, source: Source, hwcaps: Option<BString>, kind: Option<i32>) -> bool {
        if self.out.directories.len() >= DIRECTORIES_LIMIT {
            return false;
        }
        let next = self.out.directories.len();
        let status = match self.system.stat(rooted(path.as_bstr()).as_bstr()) {
            Err(errno) => Status::Missing(errno),
            Ok(meta) => match *self.seen.entry(meta.key).or_insert(next) {
                first if first == next => Status::Scanned,
                first => {
                    // The later line decides on the type, the earlier one on the rest.
                    if let Some(first) = self.out.directories.get_mut(first) {
                        first.kind = kind;
                    }
                    Status::Duplicate(first)
                }
            },
        };
        self.out.directories.push(Directory { path, source, status, hwcaps, kind });
        status == Status::Scanned
    }
}

/// The part of a line after a directive and the blank behind it.
fn directive<'a>(line: &'a [u8], word: &str) -> Option<&'a [u8]> {
    let rest = line.strip_prefix(word.as_bytes())?;
    rest.first().is_some_and(|b| is_blank(*b)).then(|| &rest[1..])
}

/// C's `isspace`.
fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\n' | '\x0b' | '\x0c' | '\r')
}

/// C's `isblank`.
fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

fn trimmed(path: &BStr) -> &BStr {
    path.trim_end_with(|c| c == '/').as_bstr()
}

/// A relative path of the configuration is taken from the root, where `ldconfig -r` stands. Where an administrator ran
/// ldconfig is not known.
fn rooted(path: &BStr) -> BString {
    system::absolute(BStr::new("/"), path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system::{Host, Tree};

    fn read(minor: u32, files: &[(&str, &str)], directories: &[&str]) -> Configuration {
        let mut tree = Tree::new();
        for directory in directories {
            tree.add_directory(directory).expect("add");
        }
        for (path, text) in files {
            tree.add_file(path, text.as_bytes()).expect("add");
        }
        tree.add_link("/link", "/b").expect("add");
        tree.add_link("/link2", "/etc/ld.so.conf").expect("add");
        let system = System::new(Host::bare(), std::sync::Arc::new(tree));
        Configuration::read(&system, &Rules::glibc(minor, 62), &["/lib".into()])
    }

    fn paths(configuration: &Configuration) -> Vec<String> {
        let scanned = configuration.directories.iter().filter(|d| d.status == Status::Scanned);
        scanned.map(|d| format!("{} {}", d.path, d.source)).collect()
    }

    #[test]
    fn each_directory_keeps_the_line_that_put_it_there() {
        let conf = "# no\n/a # yes\n\n include d/*.conf\t/none \n/link\n/b\n/missing/\n/c///\t\n";
        let files = [(CONF, conf), ("/etc/d/2.conf", "/d\n"), ("/etc/d/1.conf", "\n/e=libc6\n")];
        let directories =
            ["/a/glibc-hwcaps/x86-64-v3", "/a/glibc-hwcaps/.x", "/a/glibc-hwcaps/a:b", "/b", "/c", "/d", "/e", "/lib"];
        let configuration = read(36, &files, &directories);
        assert_eq!(
            paths(&configuration),
            [
                "/a /etc/ld.so.conf:2",
                "/a/glibc-hwcaps/x86-64-v3 /etc/ld.so.conf:2",
                "/e /etc/d/1.conf:2",
                "/d /etc/d/2.conf:1",
                "/link /etc/ld.so.conf:5",
                "/c /etc/ld.so.conf:8",
                "/lib <builtin>",
            ]
        );
        assert_eq!(configuration.files.len(), 3);
        let status = |path: &str| configuration.directories.iter().find(|d| d.path == path).map(|d| d.status);
        assert_eq!(status("/b"), Some(Status::Duplicate(4)));
        assert_eq!(status("/missing"), Some(Status::Missing(Errno::ENOENT)));
        let behind = |path: &str| configuration.behind(path.into()).map(|d| d.source.to_string());
        assert_eq!(behind("/e/libx.so"), Some("/etc/d/1.conf:2".into()));
        assert_eq!(behind("/a/tls/libx.so"), Some("/etc/ld.so.conf:2".into()));
        assert_eq!(behind("/elsewhere/libx.so"), None);
        // The suffix is part of the name since 2.37, and 2.31 knows no glibc-hwcaps.
        assert_eq!(read(37, &files, &directories).directories[2].status, Status::Missing(Errno::ENOENT));
        assert_eq!(paths(&read(31, &files, &directories)).len(), 6);
    }

    #[test]
    fn oddities_are_noted_and_loops_end() {
        let conf = "hwcap 1 nosegneg\nHWCAP\t2 x\nhwcap\n/a=what\ninclude /etc/loop.conf\n/b\0/c\ninclude\n/a b\r\n";
        let files = [(CONF, conf), ("/etc/loop.conf", "/x\ninclude loop.conf ld.so.conf\n/y\n")];
        let configuration = read(36, &files, &["/a", "/b", "/x", "/y", "/a b", "/include", "/hwcap"]);
        let names: Vec<String> =
            paths(&configuration).iter().map(|p| p[..p.find(" /").unwrap_or(p.len())].into()).collect();
        assert_eq!(names, ["hwcap", "/a", "/x", "/y", "/b", "include", "/a b"]);
        let notes: Vec<(&Oddity, u32)> = configuration.notes.iter().map(|n| (&n.what, n.line)).collect();
        let unknown = Oddity::UnknownType("what".into());
        let expected = [
            (&Oddity::HwcapIgnored, 1),
            (&Oddity::HwcapIgnored, 2),
            (&unknown, 4),
            (&Oddity::IncludeLoop, 0),
            (&Oddity::IncludeLoop, 0),
        ];
        assert_eq!(notes, expected);
        assert!(!read(31, &files, &[]).notes.iter().any(|n| n.what == Oddity::HwcapIgnored));
        // The same file by ever longer paths, and by a link.
        let conf = "include ../etc/ld.s* ../etc/./l* /link2\n/a\n";
        let configuration = read(36, &[(CONF, conf), ("/etc/ld.so.x", conf)], &["/a"]);
        assert!(configuration.files.len() <= 30 && configuration.notes.len() <= 100, "{:?}", configuration.notes);
        assert!(configuration.notes.iter().all(|n| n.what == Oddity::IncludeLoop));
        // Files that include two others each, thirty deep: 2^30 readings without a bound.
        let chain: Vec<(String, String)> =
            (0..30).map(|i| (format!("/etc/{i}.c"), format!("include {}.c {}.c\n/d{i}\n", i + 1, i + 1))).collect();
        let mut files: Vec<(&str, &str)> = chain.iter().map(|(p, t)| (p.as_str(), t.as_str())).collect();
        files.push((CONF, "include 0.c"));
        let configuration = read(41, &files, &[]);
        assert!(configuration.notes.iter().any(|n| n.what == Oddity::TooMany));
        assert!(configuration.notes.len() <= NOTES_LIMIT && configuration.files.len() <= FILES_LIMIT);
    }

    #[test]
    fn system_directories_follow_the_loaders() {
        let of = |machine: u16, loader: &[&str]| {
            let loader: Vec<BString> = loader.iter().map(|d| BString::from(*d)).collect();
            let directories = Rules::glibc(36, machine).system_directories(&loader);
            directories.iter().map(|d| d.to_string()).collect::<Vec<_>>().join(" ")
        };
        let debian = ["/lib/x86_64-linux-gnu/", "/usr/lib/x86_64-linux-gnu/", "/lib/", "/usr/lib/"];
        assert_eq!(of(62, &debian), "/lib/x86_64-linux-gnu /usr/lib/x86_64-linux-gnu /lib /usr/lib");
        assert_eq!(of(62, &["/lib64/", "/usr/lib64/"]), "/lib /lib64 /libx32 /usr/lib /usr/lib64 /usr/libx32");
        assert_eq!(of(62, &["/usr/lib/"]), "/usr/lib /usr/lib64 /usr/libx32");
        assert_eq!(of(183, &["/lib64/"]), "/lib /lib64 /libilp32");
        assert_eq!(of(243, &["/lib64/lp64d/"]), "/lib /lib64/lp64d /lib64/lp64 /lib32/ilp32d /lib32/ilp32");
        assert_eq!(of(21, &["/nix/store/x/lib/"]), "/nix/store/x/lib /nix/store/x/lib64");
    }
}
