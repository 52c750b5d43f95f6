//! Real files: the live box, or another root directory.
//!
//! The live box (`/`) lets the kernel resolve paths. With another root every path is walked here, link by link, so
//! that no link leaves the root (see [`walk`](super::walk)); the file found is then opened without following any
//! further link, so that a link put in its place meanwhile cannot lead out either.
//!
//! Reads use `pread` on a descriptor marked for random access: with the kernel's readahead, mapping the same tables
//! read eight times as much from a cold disk. Only big ranges that are scanned whole are mapped
//! ([`GuardedMap`]), and a file that is cut short under the map reads as zeros instead of killing the process.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use bstr::{BStr, BString, ByteSlice};
use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, Stat};

use super::walk::{self, Location, Nodes};
use super::{Entry, Errno, File, FileKey, Files, Kind, Meta, WalkLimits, Walked};

/// Files of this machine, below `/` or below another root directory.
pub struct Live {
    root: Option<Root>,
}

struct Root {
    path: BString,
    fd: OwnedFd,
}

impl Live {
    /// The live box.
    pub fn new() -> Live {
        Live { root: None }
    }

    /// Another root: every path is a path inside `dir`, and no link leaves it.
    pub fn at_root(dir: &BStr) -> Result<Live, Errno> {
        let real = fs::canonicalize(dir.to_path_lossy())?;
        let path = BString::from(<[u8] as ByteSlice>::from_path(&real).unwrap_or(b"/"));
        if path == "/" {
            return Ok(Live { root: None });
        }
        let fd = rustix::fs::open(path.as_slice(), OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Live { root: Some(Root { path, fd }) })
    }
}

impl Default for Live {
    fn default() -> Self {
        Live::new()
    }
}

impl Root {
    fn on_disk(&self, location: &Location) -> BString {
        let mut out = self.path.clone();
        if location.as_bstr() != "/" {
            out.extend_from_slice(location.as_bstr());
        }
        out
    }
}

impl Nodes for Root {
    fn lstat(&self, at: &Location) -> Result<Meta, Errno> {
        Ok(meta_of(&rustix::fs::lstat(self.on_disk(at).as_slice())?))
    }

    fn read_link(&self, at: &Location) -> Result<BString, Errno> {
        let text = rustix::fs::readlink(self.on_disk(at).as_slice(), Vec::new())?;
        Ok(text.into_bytes().into())
    }
}

const OPEN: OFlags = OFlags::RDONLY.union(OFlags::CLOEXEC).union(OFlags::NONBLOCK).union(OFlags::NOCTTY);

fn file_from(fd: OwnedFd) -> Result<File, Errno> {
    let meta = meta_of(&rustix::fs::fstat(&fd)?);
    Ok(match meta.kind {
        Kind::File => File::from_handle(meta, Handle { fd }),
        Kind::Directory => File::not_readable(meta, Errno::EISDIR),
        Kind::Link | Kind::Other => File::not_readable(meta, Errno::EINVAL),
    })
}

impl Files for Live {
    fn open(&self, path: &BStr) -> Result<File, Errno> {
        match &self.root {
            None => file_from(rustix::fs::open(path.as_bytes(), OPEN, Mode::empty())?),
            Some(root) => {
                let (location, _) = walk::resolve(root, path, true)?;
                let relative = location.as_bstr().strip_prefix(b"/").unwrap_or(b"");
                let relative = if relative.is_empty() { b"." } else { relative };
                let flags = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
                let fd = match rustix::fs::openat2(&root.fd, relative, OPEN, Mode::empty(), flags) {
                    Ok(fd) => fd,
                    // Kernels before 5.6, and sandboxes that refuse the call.
                    Err(rustix::io::Errno::NOSYS | rustix::io::Errno::PERM) => {
                        rustix::fs::openat(&root.fd, relative, OPEN | OFlags::NOFOLLOW, Mode::empty())?
                    }
                    Err(e) => return Err(e.into()),
                };
                file_from(fd)
            }
        }
    }

    fn stat(&self, path: &BStr) -> Result<Meta, Errno> {
        match &self.root {
            None => Ok(meta_of(&rustix::fs::stat(path.as_bytes())?)),
            Some(root) => Ok(walk::resolve(root, path, true)?.1),
        }
    }

    fn lstat(&self, path: &BStr) -> Result<Meta, Errno> {
        match &self.root {
            None => Ok(meta_of(&rustix::fs::lstat(path.as_bytes())?)),
            Some(root) => Ok(walk::resolve(root, path, false)?.1),
        }
    }

    fn read_link(&self, path: &BStr) -> Result<BString, Errno> {
        match &self.root {
            None => Ok(rustix::fs::readlink(path.as_bytes(), Vec::new())?.into_bytes().into()),
            Some(root) => {
                let (location, meta) = walk::resolve(root, path, false)?;
                if meta.kind != Kind::Link {
                    return Err(Errno::EINVAL);
                }
                root.read_link(&location)
            }
        }
    }

    fn list(&self, path: &BStr) -> Result<Vec<Entry>, Errno> {
        let mut out = self.list_unsorted(path)?;
        out.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(out)
    }

    fn list_unsorted(&self, path: &BStr) -> Result<Vec<Entry>, Errno> {
        let on_disk = match &self.root {
            None => path.to_owned(),
            Some(root) => root.on_disk(&walk::resolve(root, path, true)?.0),
        };
        let mut out = Vec::new();
        for entry in fs::read_dir(on_disk.to_path_lossy())? {
            let entry = entry?;
            let kind = match entry.file_type() {
                Ok(t) if t.is_dir() => Kind::Directory,
                Ok(t) if t.is_symlink() => Kind::Link,
                Ok(t) if t.is_file() => Kind::File,
                _ => Kind::Other,
            };
            let name = entry.file_name();
            out.push(Entry { name: <[u8] as ByteSlice>::from_os_str(&name).unwrap_or(b"").into(), kind });
        }
        Ok(out)
    }

    fn walk(&self, directory: &BStr, limits: WalkLimits, keep: &(dyn Fn(&BStr) -> bool + Sync)) -> Walked {
        let on_disk = match &self.root {
            None => directory.to_owned(),
            Some(root) => match walk::resolve(root, directory, true) {
                Ok((location, _)) => root.on_disk(&location),
                Err(_) => return Walked::default(),
            },
        };
        let mut out = Walked::default();
        let mut seen = 0usize;
        // The first directory has depth 0 here and its entries depth 1. A slash makes a link to it be followed.
        let start = super::join(on_disk.as_bstr(), "");
        let sweep = walkdir::WalkDir::new(start.to_path_lossy())
            .follow_links(false)
            .follow_root_links(true)
            .min_depth(1)
            .max_depth(limits.depth.saturating_add(1));
        for entry in sweep.into_iter().filter_map(Result::ok) {
            if seen >= limits.entries {
                out.cut = true;
                break;
            }
            seen += 1;
            let kind = entry.file_type();
            if !(kind.is_file() || kind.is_symlink()) {
                continue;
            }
            let Some(name) = <[u8] as ByteSlice>::from_os_str(entry.file_name()) else { continue };
            if keep(name.as_bstr())
                && let Some(path) = <[u8] as ByteSlice>::from_path(entry.path())
                && let Some(below) = path.strip_prefix(start.as_slice())
            {
                out.files.push(super::join(directory, below));
            }
        }
        out.files.sort();
        out
    }

    fn real_path(&self, path: &BStr) -> Result<BString, Errno> {
        match &self.root {
            None => {
                let real = fs::canonicalize(path.to_path_lossy())?;
                Ok(<[u8] as ByteSlice>::from_path(&real).unwrap_or(path).into())
            }
            Some(root) => Ok(walk::resolve(root, path, true)?.0.into_path()),
        }
    }

    fn root(&self) -> Option<&BStr> {
        Some(self.root.as_ref().map_or(b"/".as_bstr(), |r| r.path.as_bstr()))
    }
}

fn meta_of(stat: &Stat) -> Meta {
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Kind::File,
        FileType::Directory => Kind::Directory,
        FileType::Symlink => Kind::Link,
        _ => Kind::Other,
    };
    Meta {
        key: FileKey { device: stat.st_dev, inode: stat.st_ino },
        kind,
        size: u64::try_from(stat.st_size).unwrap_or(0),
        mode: stat.st_mode & 0o7777,
    }
}

/// An open descriptor of a regular file.
pub struct Handle {
    fd: OwnedFd,
}

impl Handle {
    pub(super) fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, Errno> {
        let mut done = 0;
        while done < buffer.len() {
            match rustix::io::pread(&self.fd, &mut buffer[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(done)
    }

    /// Tells the kernel that reads will jump about, so that a cold read of a table does not drag megabytes in.
    pub(super) fn map(&self, offset: u64, len: u64, size: u64) -> Result<GuardedMap, Errno> {
        let start = offset.min(size);
        let len = len.min(size - start);
        GuardedMap::new(&self.fd, start, usize::try_from(len).map_err(|_| Errno::ENOMEM)?)
    }

    pub(super) fn resolved_path(&self) -> Option<BString> {
        use std::os::fd::AsRawFd;
        let link = format!("/proc/self/fd/{}", self.fd.as_fd().as_raw_fd());
        let text = rustix::fs::readlinkat(CWD, link, Vec::new()).ok()?.into_bytes();
        // A deleted or unreachable file has no path that could be named.
        (text.starts_with(b"/") && !text.ends_with(b" (deleted)")).then(|| text.into())
    }

    /// Marks the descriptor for random access (no readahead).
    pub fn advise_random(&self) {
        let _ = rustix::fs::fadvise(&self.fd, 0, None, rustix::fs::Advice::Random);
    }
}

/// A read-only map of a range that survives the file being cut short.
///
/// Reading a mapped page that lies behind the end of its file raises SIGBUS. The handler installed with the first map
/// puts a page of zeros in that place when (and only when) the address lies in one of our maps, and notes it;
/// any other SIGBUS is passed on to what was there before.
pub struct GuardedMap {
    map: Option<memmap2::Mmap>,
    /// Used instead of a map when all guard slots are taken.
    copy: Vec<u8>,
    slot: usize,
}

const SLOTS: usize = 64;

struct Slot {
    taken: AtomicBool,
    start: AtomicUsize,
    end: AtomicUsize,
    cut: AtomicBool,
}

static GUARDED: [Slot; SLOTS] = [const {
    Slot {
        taken: AtomicBool::new(false),
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        cut: AtomicBool::new(false),
    }
}; SLOTS];
static PAGE: AtomicUsize = AtomicUsize::new(4096);

impl GuardedMap {
    fn new(fd: &OwnedFd, offset: u64, len: usize) -> Result<GuardedMap, Errno> {
        if len == 0 {
            return Ok(GuardedMap { map: None, copy: Vec::new(), slot: SLOTS });
        }
        install_handler();
        let slot = GUARDED
            .iter()
            .position(|s| s.taken.compare_exchange(false, true, Ordering::AcqRel, Ordering::Relaxed).is_ok());
        let Some(slot) = slot else {
            let mut copy = vec![0u8; len];
            let handle = Handle { fd: fd.try_clone()? };
            let n = handle.read_at(offset, &mut copy)?;
            copy.truncate(n);
            return Ok(GuardedMap { map: None, copy, slot: SLOTS });
        };
        // SAFETY: the map is private and read-only; that the file may change or shrink meanwhile is what the guard is
        // for: a shrunk file gives zeros and `was_cut`, and no value read here is trusted without bounds checks.
        let map = match unsafe { memmap2::MmapOptions::new().offset(offset).len(len).map(fd) } {
            Ok(map) => map,
            Err(e) => {
                GUARDED[slot].taken.store(false, Ordering::Release);
                return Err(e.into());
            }
        };
        let page = PAGE.load(Ordering::Relaxed);
        let start = map.as_ptr() as usize & !(page - 1);
        let end = map.as_ptr() as usize + map.len();
        GUARDED[slot].cut.store(false, Ordering::Relaxed);
        GUARDED[slot].start.store(start, Ordering::Relaxed);
        GUARDED[slot].end.store(end, Ordering::Release);
        Ok(GuardedMap { map: Some(map), copy: Vec::new(), slot })
    }

    /// True when a page behind the present end of the file was read.
    pub fn was_cut(&self) -> bool {
        GUARDED.get(self.slot).is_some_and(|s| s.cut.load(Ordering::Acquire))
    }
}

impl std::ops::Deref for GuardedMap {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.map.as_deref().unwrap_or(&self.copy)
    }
}

impl Drop for GuardedMap {
    fn drop(&mut self) {
        if let Some(slot) = GUARDED.get(self.slot) {
            slot.end.store(0, Ordering::Release);
            self.map = None;
            slot.taken.store(false, Ordering::Release);
        }
    }
}

static PREVIOUS: AtomicUsize = AtomicUsize::new(libc::SIG_DFL);
static PREVIOUS_HAS_INFO: AtomicBool = AtomicBool::new(false);

fn install_handler() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        PAGE.store(rustix::param::page_size(), Ordering::Relaxed);
        // SAFETY: both structures are plain data, zero is a valid start value, and the handler only uses atomics and
        // the mmap system call, which are safe in a signal handler.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_sigbus as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER | libc::SA_ONSTACK;
            libc::sigemptyset(&raw mut action.sa_mask);
            let mut old: libc::sigaction = std::mem::zeroed();
            if libc::sigaction(libc::SIGBUS, &raw const action, &raw mut old) == 0 {
                PREVIOUS.store(old.sa_sigaction, Ordering::Relaxed);
                PREVIOUS_HAS_INFO.store(old.sa_flags & libc::SA_SIGINFO != 0, Ordering::Relaxed);
            }
        }
    });
}

extern "C" fn on_sigbus(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel hands a valid siginfo to a SA_SIGINFO handler.
    let address = unsafe { (*info).si_addr() } as usize;
    let page = PAGE.load(Ordering::Relaxed);
    for slot in &GUARDED {
        let end = slot.end.load(Ordering::Acquire);
        let start = slot.start.load(Ordering::Relaxed);
        if address >= start && address < end {
            slot.cut.store(true, Ordering::Release);
            // SAFETY: the page belongs to one of our own read-only maps; it is replaced by zeros at the same place.
            let got = unsafe {
                libc::mmap(
                    (address & !(page - 1)) as *mut libc::c_void,
                    page,
                    libc::PROT_READ,
                    libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
                    -1,
                    0,
                )
            };
            if got != libc::MAP_FAILED {
                return;
            }
        }
    }
    let previous = PREVIOUS.load(Ordering::Relaxed);
    if previous == libc::SIG_DFL || previous == libc::SIG_IGN {
        // SAFETY: putting the default action back; returning repeats the access and the process ends as it would have.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    } else if PREVIOUS_HAS_INFO.load(Ordering::Relaxed) {
        // SAFETY: this address was installed as a SA_SIGINFO handler of this signature.
        let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
            unsafe { std::mem::transmute(previous) };
        handler(signal, info, context);
    } else {
        // SAFETY: this address was installed as a plain handler.
        let handler: extern "C" fn(libc::c_int) = unsafe { std::mem::transmute(previous) };
        handler(signal);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn a_sweep_finds_files_and_follows_no_link_to_a_directory() {
        let dir = scratch("walk");
        fs::create_dir_all(dir.join("a/b/c")).expect("directories");
        for file in ["x.so", "a/y.so.1", "a/y.txt", "a/b/z.so", "a/b/c/deep.so"] {
            fs::write(dir.join(file), b"").expect("file");
        }
        std::os::unix::fs::symlink("a", dir.join("again")).expect("link");
        std::os::unix::fs::symlink("/nowhere", dir.join("gone.so")).expect("link");
        let root = BString::from(dir.to_str().expect("text"));
        let keep = |name: &BStr| name.contains_str(".so");
        let names = |walked: &Walked| -> Vec<String> {
            walked.files.iter().map(|p| p[root.len()..].as_bstr().to_string()).collect()
        };
        let limits = WalkLimits { depth: 2, entries: 100 };
        let live = Live::new().walk(root.as_bstr(), limits, &keep);
        assert_eq!(names(&live), ["/a/b/z.so", "/a/y.so.1", "/gone.so", "/x.so"]);
        assert!(!live.cut);
        let by_list = super::super::walk_by_listing(&Live::new(), root.as_bstr(), limits, &keep);
        assert_eq!(live, by_list);
        let inside = Live::at_root(root.as_bstr()).expect("root").walk(b"/a".as_bstr(), limits, &keep);
        assert_eq!(inside.files, ["/a/b/c/deep.so", "/a/b/z.so", "/a/y.so.1"]);
        assert!(Live::new().walk(root.as_bstr(), WalkLimits { depth: 9, entries: 3 }, &keep).cut);
        assert_eq!(Live::new().walk(b"/nonexistent".as_bstr(), limits, &keep), Walked::default());
        fs::remove_dir_all(&dir).expect("clean up");
    }

    fn scratch(name: &str) -> std::path::PathBuf {
        let dir = std::env::temp_dir().join(format!("ldaudit-live-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).expect("scratch directory");
        dir
    }

    fn bytes(path: &std::path::Path) -> &BStr {
        <[u8] as ByteSlice>::from_path(path).expect("unix").as_bstr()
    }

    #[test]
    fn a_file_cut_short_under_a_map_reads_as_zeros_and_says_so() {
        let dir = scratch("cut");
        let path = dir.join("big");
        let mut f = fs::File::create(&path).expect("create");
        f.write_all(&vec![7u8; 64 * 1024]).expect("write");
        let file = Live::new().open(bytes(&path)).expect("open");
        let map = file.map(0, 64 * 1024).expect("map");
        assert_eq!(map[0], 7);
        f.set_len(4096).expect("truncate");
        assert_eq!(map[60_000], 0);
        assert!(map.was_cut());
        let mut buffer = [1u8; 16];
        assert_eq!(file.read_at(60_000, &mut buffer), Ok(0));
        drop(map);
        fs::remove_dir_all(&dir).expect("clean up");
    }

    #[test]
    fn a_root_keeps_absolute_links_and_dotdot_inside() {
        let dir = scratch("root");
        fs::create_dir_all(dir.join("etc")).expect("dir");
        fs::write(dir.join("etc/hostname"), "inside").expect("write");
        std::os::unix::fs::symlink("/etc/hostname", dir.join("absolute")).expect("link");
        std::os::unix::fs::symlink("../../../../etc/hostname", dir.join("etc/up")).expect("link");
        std::os::unix::fs::symlink("loop", dir.join("loop")).expect("link");
        let live = Live::at_root(bytes(&dir)).expect("root");
        for path in ["/absolute", "/etc/up", "/../../etc/hostname"] {
            let file = live.open(path.into()).expect(path);
            assert_eq!(file.read_all(100).expect("read"), b"inside", "{path}");
            assert_eq!(live.real_path(path.into()).expect("real"), "/etc/hostname");
        }
        assert_eq!(live.open("/loop".into()).err(), Some(Errno::ELOOP));
        assert_eq!(live.open("/etc/hostname/x".into()).err(), Some(Errno::ENOTDIR));
        fs::remove_dir_all(&dir).expect("clean up");
    }

    #[test]
    fn a_fifo_does_not_block() {
        let dir = scratch("fifo");
        let path = dir.join("pipe");
        rustix::fs::mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).expect("mkfifo");
        let file = Live::new().open(bytes(&path)).expect("open");
        assert_eq!(file.meta.kind, Kind::Other);
        assert!(file.read_at(0, &mut [0; 4]).is_err());
        fs::remove_dir_all(&dir).expect("clean up");
    }
}
