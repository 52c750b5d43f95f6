//! What files and what environment does the audited box have?
//!
//! A [`System`] is host data ([`Host`]: environment, working directory, secure flag, CPU, kernel) plus a [`Files`]
//! backend. Nothing here reads ELF or decides anything, and nothing outside this room reads the disk or the process
//! environment.
//!
//! Errors of file operations keep their errno ([`Errno`]): it decides what a loader does next.

pub mod host;
pub mod live;
pub mod tree;
pub mod walk;

use std::fmt;
use std::sync::Arc;

use bstr::{BStr, BString, ByteSlice};

pub use host::{Cpu, Environment, Host, Privilege, User};
pub use live::Live;
pub use tree::Tree;

/// An error number of the Linux kernel, as `open`, `read`, `stat` would return it on the audited box.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(pub i32);

impl Errno {
    /// Operation not permitted.
    pub const EPERM: Errno = Errno(1);
    /// No such file or directory.
    pub const ENOENT: Errno = Errno(2);
    /// Exec format error.
    pub const ENOEXEC: Errno = Errno(8);
    /// Input/output error.
    pub const EIO: Errno = Errno(5);
    /// Resource temporarily unavailable: here a FIFO, which is not read because that would wait for a writer.
    pub const EAGAIN: Errno = Errno(11);
    /// Cannot allocate memory.
    pub const ENOMEM: Errno = Errno(12);
    /// Permission denied.
    pub const EACCES: Errno = Errno(13);
    /// Not a directory.
    pub const ENOTDIR: Errno = Errno(20);
    /// Is a directory.
    pub const EISDIR: Errno = Errno(21);
    /// Invalid argument.
    pub const EINVAL: Errno = Errno(22);
    /// Too many open files.
    pub const EMFILE: Errno = Errno(24);
    /// File too large: also what a read refuses that would take too much memory.
    pub const EFBIG: Errno = Errno(27);
    /// File name too long.
    pub const ENAMETOOLONG: Errno = Errno(36);
    /// Too many levels of symbolic links.
    pub const ELOOP: Errno = Errno(40);

    /// Accessing a corrupted shared library: what the kernel says of a program's loader that is none.
    pub const ELIBBAD: Errno = Errno(80);

    /// The text glibc's `strerror` gives in the C locale (2.36); `Unknown error N` for numbers outside the table.
    pub fn text(self) -> String {
        let known = match self.0 {
            1 => "Operation not permitted",
            2 => "No such file or directory",
            3 => "No such process",
            4 => "Interrupted system call",
            5 => "Input/output error",
            6 => "No such device or address",
            7 => "Argument list too long",
            8 => "Exec format error",
            9 => "Bad file descriptor",
            10 => "No child processes",
            11 => "Resource temporarily unavailable",
            12 => "Cannot allocate memory",
            13 => "Permission denied",
            14 => "Bad address",
            15 => "Block device required",
            16 => "Device or resource busy",
            17 => "File exists",
            18 => "Invalid cross-device link",
            19 => "No such device",
            20 => "Not a directory",
            21 => "Is a directory",
            22 => "Invalid argument",
            23 => "Too many open files in system",
            24 => "Too many open files",
            25 => "Inappropriate ioctl for device",
            26 => "Text file busy",
            27 => "File too large",
            28 => "No space left on device",
            29 => "Illegal seek",
            30 => "Read-only file system",
            31 => "Too many links",
            32 => "Broken pipe",
            33 => "Numerical argument out of domain",
            34 => "Numerical result out of range",
            35 => "Resource deadlock avoided",
            36 => "File name too long",
            37 => "No locks available",
            38 => "Function not implemented",
            39 => "Directory not empty",
            40 => "Too many levels of symbolic links",
            42 => "No message of desired type",
            43 => "Identifier removed",
            44 => "Channel number out of range",
            45 => "Level 2 not synchronized",
            46 => "Level 3 halted",
            47 => "Level 3 reset",
            48 => "Link number out of range",
            49 => "Protocol driver not attached",
            50 => "No CSI structure available",
            51 => "Level 2 halted",
            52 => "Invalid exchange",
            53 => "Invalid request descriptor",
            54 => "Exchange full",
            55 => "No anode",
            56 => "Invalid request code",
            57 => "Invalid slot",
            59 => "Bad font file format",
            60 => "Device not a stream",
            61 => "No data available",
            62 => "Timer expired",
            63 => "Out of streams resources",
            64 => "Machine is not on the network",
            65 => "Package not installed",
            66 => "Object is remote",
            67 => "Link has been severed",
            68 => "Advertise error",
            69 => "Srmount error",
            70 => "Communication error on send",
            71 => "Protocol error",
            72 => "Multihop attempted",
            73 => "RFS specific error",
            74 => "Bad message",
            75 => "Value too large for defined data type",
            76 => "Name not unique on network",
            77 => "File descriptor in bad state",
            78 => "Remote address changed",
            79 => "Can not access a needed shared library",
            80 => "Accessing a corrupted shared library",
            81 => ".lib section in a.out corrupted",
            82 => "Attempting to link in too many shared libraries",
            83 => "Cannot exec a shared library directly",
            84 => "Invalid or incomplete multibyte or wide character",
            85 => "Interrupted system call should be restarted",
            86 => "Streams pipe error",
            87 => "Too many users",
            88 => "Socket operation on non-socket",
            89 => "Destination address required",
            90 => "Message too long",
            91 => "Protocol wrong type for socket",
            92 => "Protocol not available",
            93 => "Protocol not supported",
            94 => "Socket type not supported",
            95 => "Operation not supported",
            96 => "Protocol family not supported",
            97 => "Address family not supported by protocol",
            98 => "Address already in use",
            99 => "Cannot assign requested address",
            100 => "Network is down",
            101 => "Network is unreachable",
            102 => "Network dropped connection on reset",
            103 => "Software caused connection abort",
            104 => "Connection reset by peer",
            105 => "No buffer space available",
            106 => "Transport endpoint is already connected",
            107 => "Transport endpoint is not connected",
            108 => "Cannot send after transport endpoint shutdown",
            109 => "Too many references: cannot splice",
            110 => "Connection timed out",
            111 => "Connection refused",
            112 => "Host is down",
            113 => "No route to host",
            114 => "Operation already in progress",
            115 => "Operation now in progress",
            116 => "Stale file handle",
            117 => "Structure needs cleaning",
            118 => "Not a XENIX named type file",
            119 => "No XENIX semaphores available",
            120 => "Is a named type file",
            121 => "Remote I/O error",
            122 => "Disk quota exceeded",
            123 => "No medium found",
            124 => "Wrong medium type",
            125 => "Operation canceled",
            126 => "Required key not available",
            127 => "Key has expired",
            128 => "Key has been revoked",
            129 => "Key was rejected by service",
            130 => "Owner died",
            131 => "State not recoverable",
            132 => "Operation not possible due to RF-kill",
            133 => "Memory page has hardware error",
            n => return format!("Unknown error {n}"),
        };
        known.to_owned()
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Errno({} {})", self.0, self.text())
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text())
    }
}

impl From<std::io::Error> for Errno {
    fn from(e: std::io::Error) -> Self {
        Errno(e.raw_os_error().unwrap_or(Errno::EIO.0))
    }
}

impl From<rustix::io::Errno> for Errno {
    fn from(e: rustix::io::Errno) -> Self {
        Errno(e.raw_os_error())
    }
}

/// Identity of a file: device and inode number of the audited box (or stable made-up numbers of an in-memory tree).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct FileKey {
    /// Device number.
    pub device: u64,
    /// Inode number.
    pub inode: u64,
}

/// What kind of thing a path names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link (only from `lstat`).
    Link,
    /// A device, FIFO or socket: never read, since reading it could block or never end.
    Other,
}

/// The answer of `stat` or `lstat`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Meta {
    /// Device and inode.
    pub key: FileKey,
    /// Kind of the file.
    pub kind: Kind,
    /// Size in bytes.
    pub size: u64,
    /// Permission bits, including set-user-ID (0o4000) and set-group-ID (0o2000).
    pub mode: u32,
}

/// A name in a directory listing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// File name without directory.
    pub name: BString,
    /// Kind by `lstat` (links are not followed).
    pub kind: Kind,
}

/// The questions that can be asked of the audited box's files.
///
/// Paths are absolute (`/…`), as a process inside the audited root would write them, and are resolved as the kernel
/// resolves them: symbolic links are followed (inside the root, absolute ones too), `..` after a link leads to the
/// parent of the link's target, at most 40 links.
pub trait Files: Send + Sync {
    /// `open(path, O_RDONLY)`. A directory opens too; reading it then fails with `EISDIR`.
    fn open(&self, path: &BStr) -> Result<File, Errno>;
    /// `stat(path)`: links are followed.
    fn stat(&self, path: &BStr) -> Result<Meta, Errno>;
    /// What `execve` says of a file before it reads it: `EACCES` for one that may not be run. Whoever starts it is the one
    /// who runs ldaudit, or on a box of another root, where nobody can know, anybody: one bit is enough then.
    fn may_run(&self, path: &BStr) -> Result<(), Errno> {
        let meta = self.stat(path)?;
        if meta.kind == Kind::File && meta.mode & 0o111 != 0 { Ok(()) } else { Err(Errno::EACCES) }
    }
    /// `lstat(path)`: a link in the last component is not followed.
    fn lstat(&self, path: &BStr) -> Result<Meta, Errno>;
    /// `readlink(path)`.
    fn read_link(&self, path: &BStr) -> Result<BString, Errno>;
    /// Names in a directory without `.` and `..`, sorted bytewise.
    fn list(&self, path: &BStr) -> Result<Vec<Entry>, Errno>;
    /// The same names in the order in which the kernel hands them out (`readdir`), which is what Python's `glob` and
    /// `os.scandir` see. A backend that has no such order gives them sorted.
    fn list_unsorted(&self, path: &BStr) -> Result<Vec<Entry>, Errno> {
        self.list(path)
    }
    /// Files below a directory whose name passes `keep`. Links to directories are not followed (links to files are
    /// among the results); what cannot be listed is passed over. Paths begin with `directory` as given and come sorted.
    fn walk(&self, directory: &BStr, limits: WalkLimits, keep: &(dyn Fn(&BStr) -> bool + Sync)) -> Walked {
        walk_by_listing(self, directory, limits, keep)
    }
    /// The path with every link resolved, inside the root.
    fn real_path(&self, path: &BStr) -> Result<BString, Errno>;
    /// Rights that a file gives beyond a user's own when the kernel starts it as a program (`bprm_fill_uid`, fs/exec.c;
    /// `cap_bprm_creds_from_file`, security/commoncap.c). A backend without owners gives none.
    fn privilege(&self, _path: &BStr, _user: User) -> Option<Privilege> {
        None
    }
    /// The root directory on the machine that runs ldaudit (`/` for the live box), for messages; `None` when the
    /// files are not on disk.
    fn root(&self) -> Option<&BStr> {
        None
    }
}

/// How far a sweep of a directory tree goes, against hostile or endless trees.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WalkLimits {
    /// Directories below the first one: 0 looks at the files of the directory itself only.
    pub depth: usize,
    /// Names looked at, all directories together.
    pub entries: usize,
}

/// What a sweep found.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Walked {
    /// Paths of files and links, sorted bytewise.
    pub files: Vec<BString>,
    /// True when the limit of names was reached, so that something may be missing.
    pub cut: bool,
}

/// [`Files::walk`] for a backend that has no faster way.
fn walk_by_listing(
    files: &(impl Files + ?Sized),
    directory: &BStr,
    limits: WalkLimits,
    keep: &(dyn Fn(&BStr) -> bool + Sync),
) -> Walked {
    let mut out = Walked::default();
    let mut seen = 0usize;
    let mut pending = vec![(directory.to_owned(), 0usize)];
    'sweep: while let Some((here, depth)) = pending.pop() {
        for entry in files.list(here.as_bstr()).unwrap_or_default() {
            if seen >= limits.entries {
                out.cut = true;
                break 'sweep;
            }
            seen += 1;
            match entry.kind {
                Kind::Directory if depth < limits.depth => {
                    pending.push((join(here.as_bstr(), &entry.name), depth + 1));
                }
                Kind::File | Kind::Link if keep(entry.name.as_bstr()) => {
                    out.files.push(join(here.as_bstr(), &entry.name));
                }
                _ => {}
            }
        }
    }
    out.files.sort();
    out
}

/// An opened file: identity and a way to read ranges.
///
/// Reading never trusts the size seen earlier: a range past the present end gives fewer bytes, which the caller
/// reports as a defect of that file.
pub struct File {
    /// `fstat` of the opened file.
    pub meta: Meta,
    source: Source,
}

enum Source {
    Memory(Arc<[u8]>),
    Handle(live::Handle),
    NotReadable(Errno),
}

impl File {
    /// A file whose bytes are in memory.
    pub fn from_memory(meta: Meta, bytes: Arc<[u8]>) -> File {
        File { meta, source: Source::Memory(bytes) }
    }

    pub(crate) fn from_handle(meta: Meta, handle: live::Handle) -> File {
        File { meta, source: Source::Handle(handle) }
    }

    /// An opened thing whose reads fail, such as a directory (`EISDIR`).
    pub fn not_readable(meta: Meta, errno: Errno) -> File {
        File { meta, source: Source::NotReadable(errno) }
    }

    /// Fills `buffer` from `offset` on; returns how many bytes there were (fewer than asked only at the end of file).
    pub fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, Errno> {
        match &self.source {
            Source::Memory(bytes) => {
                let start = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
                let n = buffer.len().min(bytes.len() - start);
                buffer[..n].copy_from_slice(&bytes[start..start + n]);
                Ok(n)
            }
            Source::Handle(handle) => handle.read_at(offset, buffer),
            Source::NotReadable(errno) => Err(*errno),
        }
    }

    /// Appends up to `len` bytes from `offset` on to a buffer; returns how many there were (fewer than asked only at the
    /// end of the file).
    pub fn append_at(&self, offset: u64, len: usize, out: &mut Vec<u8>) -> Result<usize, Errno> {
        match &self.source {
            Source::Memory(bytes) => {
                let start = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
                let n = len.min(bytes.len() - start);
                out.extend_from_slice(&bytes[start..start + n]);
                Ok(n)
            }
            Source::Handle(handle) => handle.append_at(offset, len, self.meta.size, out),
            Source::NotReadable(errno) => Err(*errno),
        }
    }

    /// Reads the whole file; `limit` bytes at most, `Errno::EFBIG` (file too large) beyond.
    pub fn read_all(&self, limit: u64) -> Result<Vec<u8>, Errno> {
        if self.meta.size > limit {
            return Err(Errno::EFBIG);
        }
        let mut out = Vec::with_capacity(usize::try_from(self.meta.size).unwrap_or(0));
        loop {
            let more = usize::try_from(self.meta.size).unwrap_or(0).saturating_sub(out.len()).max(4096);
            let n = self.append_at(out.len() as u64, more, &mut out)?;
            if n == 0 || (out.len() as u64) == self.meta.size {
                return Ok(out);
            }
            if out.len() as u64 > limit {
                return Err(Errno::EFBIG);
            }
        }
    }

    /// Maps a range of a big file (or borrows it from memory). A range that reaches past the end is cut there.
    /// If the file is cut short while mapped, the missing part reads as zeros and [`Mapped::was_cut`] tells.
    pub fn map(&self, offset: u64, len: u64) -> Result<Mapped, Errno> {
        match &self.source {
            Source::Memory(bytes) => {
                let start = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
                let end = start.saturating_add(usize::try_from(len).unwrap_or(usize::MAX)).min(bytes.len());
                Ok(Mapped::Memory { bytes: bytes.clone(), start, end })
            }
            Source::Handle(handle) => handle.map(offset, len, self.meta.size).map(Mapped::Map),
            Source::NotReadable(errno) => Err(*errno),
        }
    }

    /// Tells the kernel that ranges will be read here and there, so that it reads nothing beside them from the disk.
    pub fn advise_random(&self) {
        if let Source::Handle(handle) = &self.source {
            handle.advise_random();
        }
    }

    /// True while the file is as long as it was when it was opened, or longer.
    pub fn is_whole(&self) -> bool {
        match &self.source {
            Source::Handle(handle) => handle.size().is_ok_and(|size| size >= self.meta.size),
            Source::Memory(_) | Source::NotReadable(_) => true,
        }
    }

    /// The parts of a range that hold data, in order, at most a thousand: holes of a sparse file read as zeros and can be
    /// terabytes long. The whole range where nothing is known of holes.
    pub fn stored(&self, offset: u64, len: u64) -> Vec<(u64, u64)> {
        match &self.source {
            Source::Handle(handle) => handle.stored(offset, len, 1000).unwrap_or_else(|| vec![(offset, len)]),
            Source::Memory(_) | Source::NotReadable(_) => vec![(offset, len)],
        }
    }

    /// The path of the opened file with all links resolved, where the backend can tell at no cost.
    pub(crate) fn resolved_path(&self) -> Option<BString> {
        match &self.source {
            Source::Handle(handle) => handle.resolved_path(),
            _ => None,
        }
    }
}

/// A mapped or borrowed range of a file.
pub enum Mapped {
    /// Bytes of an in-memory file.
    Memory {
        /// The whole file.
        bytes: Arc<[u8]>,
        /// First byte of the range.
        start: usize,
        /// End of the range.
        end: usize,
    },
    /// A memory map.
    Map(live::GuardedMap),
}

impl Mapped {
    /// True when the file was cut short under the map, so that part of what was read is zeros.
    pub fn was_cut(&self) -> bool {
        match self {
            Mapped::Memory { .. } => false,
            Mapped::Map(map) => map.was_cut(),
        }
    }
}

impl std::ops::Deref for Mapped {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match self {
            Mapped::Memory { bytes, start, end } => &bytes[*start..*end],
            Mapped::Map(map) => map,
        }
    }
}

/// The audited box: what it is ([`Host`]) and what files it has.
#[derive(Clone)]
pub struct System {
    /// Environment, working directory, secure flag, CPU, kernel.
    pub host: Host,
    /// The files.
    pub files: Arc<dyn Files>,
}

impl System {
    /// Puts host data and files together.
    pub fn new(host: Host, files: Arc<dyn Files>) -> System {
        System { host, files }
    }

    /// The live box this process runs on, with this process's environment.
    pub fn live() -> System {
        System { host: Host::live(), files: Arc::new(Live::new()) }
    }

    /// `path` made absolute with the working directory. Not normalised.
    pub fn absolute(&self, path: &BStr) -> BString {
        absolute(self.host.cwd.as_bstr(), path)
    }

    /// Opens a path, relative ones against the working directory. An empty path is `ENOENT`, as for the kernel.
    pub fn open(&self, path: &BStr) -> Result<File, Errno> {
        if path.is_empty() {
            return Err(Errno::ENOENT);
        }
        if path.first() == Some(&b'/') { self.files.open(path) } else { self.files.open(self.absolute(path).as_bstr()) }
    }

    /// `stat` of a path, relative ones against the working directory.
    pub fn stat(&self, path: &BStr) -> Result<Meta, Errno> {
        if path.is_empty() {
            return Err(Errno::ENOENT);
        }
        if path.first() == Some(&b'/') { self.files.stat(path) } else { self.files.stat(self.absolute(path).as_bstr()) }
    }

    /// [`Files::may_run`] of a path, relative ones against the working directory.
    pub fn may_run(&self, path: &BStr) -> Result<(), Errno> {
        self.files.may_run(self.absolute(path).as_bstr())
    }

    /// Reads a small file whole (text, metadata): at most `limit` bytes, `EISDIR` for a directory, `Errno::EFBIG` beyond
    /// the limit.
    pub fn read_small(&self, path: &BStr, limit: u64) -> Result<Vec<u8>, Errno> {
        self.open(path)?.read_all(limit)
    }

    /// True when the path names something (links followed).
    pub fn exists(&self, path: &BStr) -> bool {
        self.stat(path).is_ok()
    }

    /// True when the path names a directory (links followed).
    pub fn is_dir(&self, path: &BStr) -> bool {
        self.stat(path).is_ok_and(|m| m.kind == Kind::Directory)
    }
}

/// `path` made absolute with `cwd`; not normalised.
pub fn absolute(cwd: &BStr, path: &BStr) -> BString {
    if path.first() == Some(&b'/') {
        return path.to_owned();
    }
    let mut out = cwd.to_owned();
    if !out.ends_with(b"/") {
        out.push(b'/');
    }
    out.extend_from_slice(path);
    out
}

/// Joins a directory and a name with one `/`.
pub fn join(dir: &BStr, name: impl AsRef<[u8]>) -> BString {
    let mut out = dir.to_owned();
    if !out.is_empty() && !out.ends_with(b"/") {
        out.push(b'/');
    }
    out.extend_from_slice(name.as_ref());
    out
}

/// The part after the last `/`.
pub fn file_name(path: &BStr) -> &BStr {
    match path.rfind_byte(b'/') {
        Some(i) => path[i + 1..].as_bstr(),
        None => path,
    }
}

/// The part before the last `/` (`/` for a name directly below the root, empty when there is no `/`).
pub fn parent(path: &BStr) -> &BStr {
    match path.rfind_byte(b'/') {
        Some(0) => path[..1].as_bstr(),
        Some(i) => path[..i].as_bstr(),
        None => b"".as_bstr(),
    }
}

/// `path` with `.`, `..` and doubled slashes removed as text (links are not considered).
pub fn normalised(path: &BStr) -> BString {
    let rooted = path.first() == Some(&b'/');
    let mut parts: Vec<&[u8]> = Vec::new();
    for part in path.split_str("/") {
        match part {
            b"" | b"." => {}
            b".." => {
                if parts.last().is_some_and(|p| *p != b"..") {
                    parts.pop();
                } else if !rooted {
                    parts.push(part);
                }
            }
            _ => parts.push(part),
        }
    }
    let mut out = BString::from(if rooted { "/" } else { "" });
    out.extend_from_slice(&bstr::join("/", parts));
    out
}
