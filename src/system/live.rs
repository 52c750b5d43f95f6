//! Real files: the live box, or another root directory.
//!
//! The live box (`/`) lets the kernel resolve paths. With another root the kernel resolves them inside it (`openat2`
//! with `RESOLVE_IN_ROOT`), in one step that no change meanwhile can lead out of. Where the kernel cannot, every path is
//! walked here, link by link, each directory opened in the one before (see [`walk`]), and what is found is
//! opened without following any further link.
//!
//! Reads use `pread` on a descriptor marked for random access: with the kernel's readahead, mapping the same tables
//! read eight times as much from a cold disk. Only big ranges that are scanned whole are mapped
//! ([`GuardedMap`]), and a file that is cut short under the map reads as zeros instead of killing the process.

use std::fs;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Once};

use bstr::{BStr, BString, ByteSlice};
use rustix::fs::{Access, AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, Stat, StatVfsMountFlags};

use super::walk::{self, Nodes};
use super::{Entry, Errno, File, FileKey, Files, Kind, Meta, Privilege, User, WalkLimits, Walked};

/// Files of this machine, below `/` or below another root directory.
pub struct Live {
    root: Option<Root>,
}

struct Root {
    path: BString,
    fd: OwnedFd,
    /// Whether the kernel resolves paths inside the root for us (`openat2`, Linux 5.6; some sandboxes refuse it).
    by_kernel: bool,
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
        let by_kernel = rustix::fs::openat2(&fd, ".", OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), INSIDE).is_ok();
        Ok(Live { root: Some(Root { path, fd, by_kernel }) })
    }

    /// Walks every path in this process even where the kernel could: what happens on old kernels.
    #[cfg(test)]
    fn walking(mut self) -> Live {
        if let Some(root) = &mut self.root {
            root.by_kernel = false;
        }
        self
    }
}

impl Default for Live {
    fn default() -> Self {
        Live::new()
    }
}

const OPEN: OFlags = OFlags::RDONLY.union(OFlags::CLOEXEC).union(OFlags::NONBLOCK).union(OFlags::NOCTTY);
const LOOK: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);
/// As after `chroot`: absolute links and `..` stay inside. Links of /proc that lead to an open file of some process
/// (`/proc/PID/root`, `/proc/PID/fd/N`) are refused, since they leave any root.
const INSIDE: ResolveFlags = ResolveFlags::IN_ROOT.union(ResolveFlags::NO_MAGICLINKS);
/// How often a walk that met a rename is tried again.
const TRIES: usize = 64;

impl Root {
    /// Opens a path inside the root in one step of the kernel, so that nothing that changes meanwhile leads out.
    fn open_inside(&self, path: &BStr, flags: OFlags) -> Result<OwnedFd, Errno> {
        if path.is_empty() {
            return Err(Errno::ENOENT);
        }
        for _ in 0..TRIES {
            match rustix::fs::openat2(&self.fd, path.as_bytes(), flags, Mode::empty(), INSIDE) {
                // A rename happened while `..` was resolved, so that the kernel cannot tell whether it stayed inside.
                Err(rustix::io::Errno::AGAIN) => {}
                other => return Ok(other?),
            }
        }
        Err(Errno::ELOOP)
    }

    /// Opens what the walk found, following no further link.
    fn open_walked(&self, location: &BStr, flags: OFlags) -> Result<OwnedFd, Errno> {
        // Component by component, each opened in the one before: a directory that is replaced by a link meanwhile is
        // an error then, not a way out.
        let mut here = self.fd.try_clone()?;
        let mut parts = location.split_str("/").filter(|p| !p.is_empty()).peekable();
        if parts.peek().is_none() {
            return Ok(rustix::fs::openat(&here, ".", flags | OFlags::NOFOLLOW, Mode::empty())?);
        }
        while let Some(part) = parts.next() {
            let last = parts.peek().is_none();
            let how = if last { flags | OFlags::NOFOLLOW } else { LOOK | OFlags::DIRECTORY | OFlags::NOFOLLOW };
            here = rustix::fs::openat(&here, part, how, Mode::empty())?;
        }
        Ok(here)
    }

    fn open(&self, path: &BStr, follow: bool, flags: OFlags) -> Result<OwnedFd, Errno> {
        if self.by_kernel {
            let flags = if follow { flags } else { flags | OFlags::NOFOLLOW };
            return self.open_inside(path, flags);
        }
        let found = walk::resolve(self, path, follow)?;
        self.open_walked(found.path.as_bstr(), flags)
    }

    fn stat(&self, path: &BStr, follow: bool) -> Result<Meta, Errno> {
        if self.by_kernel {
            return Ok(meta_of(&rustix::fs::fstat(self.open(path, follow, LOOK)?)?));
        }
        Ok(walk::resolve(self, path, follow)?.meta)
    }
}

/// The walk in this process: each node is a descriptor of a directory, or of what cannot be walked into.
impl Nodes for Root {
    type Node = Arc<OwnedFd>;

    fn root(&self) -> Result<(Self::Node, Meta), Errno> {
        let fd = self.fd.try_clone()?;
        let meta = meta_of(&rustix::fs::fstat(&fd)?);
        Ok((Arc::new(fd), meta))
    }

    fn child(&self, directory: &Self::Node, name: &BStr) -> Result<(Self::Node, Meta), Errno> {
        let fd = rustix::fs::openat(directory, name.as_bytes(), LOOK | OFlags::NOFOLLOW, Mode::empty())?;
        let meta = meta_of(&rustix::fs::fstat(&fd)?);
        Ok((Arc::new(fd), meta))
    }

    fn read_link(&self, link: &Self::Node) -> Result<BString, Errno> {
        Ok(rustix::fs::readlinkat(link, "", Vec::new())?.into_bytes().into())
    }
}

/// An opened file as the rest of the house sees it. Devices, FIFOs and sockets are never read: that could block, never
/// end, or have effects of its own; see [`unread`].
fn file_from(fd: OwnedFd) -> Result<File, Errno> {
    let stat = rustix::fs::fstat(&fd)?;
    let meta = meta_of(&stat);
    Ok(match meta.kind {
        Kind::File => File::from_handle(meta, Handle { fd }),
        Kind::Directory => File::not_readable(meta, Errno::EISDIR),
        Kind::Link | Kind::Other => unread(&stat),
    })
}

/// What stands for a device, FIFO or socket. What some devices give is known: the null device, with which people mask
/// files, is empty, and a loader finds no ELF header in the first bytes of those that give zeros or chance. A FIFO is
/// `EAGAIN`: whoever reads it waits for somebody who writes.
fn unread(stat: &Stat) -> File {
    const MEMORY: u32 = 1;
    const NULL: u32 = 3;
    const ZERO: u32 = 5;
    const FULL: u32 = 7;
    const RANDOM: u32 = 8;
    const URANDOM: u32 = 9;
    let meta = meta_of(stat);
    let device = (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev));
    match (FileType::from_raw_mode(stat.st_mode), device) {
        (FileType::CharacterDevice, (MEMORY, NULL)) => File::from_memory(meta, Arc::from(Vec::new())),
        (FileType::CharacterDevice, (MEMORY, ZERO | FULL | RANDOM | URANDOM)) => {
            File::from_memory(meta, Arc::from(vec![0; 4096]))
        }
        (FileType::Fifo, _) => File::not_readable(meta, Errno::EAGAIN),
        _ => File::not_readable(meta, Errno::EINVAL),
    }
}

/// What a look without opening tells: `Some` for what is never opened, because opening alone can have effects (a
/// watchdog, a tape, the writer at the other end of a FIFO).
fn unopened(stat: &Stat) -> Option<File> {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Socket => None,
        _ if meta_of(stat).kind == Kind::Other => Some(unread(stat)),
        _ => None,
    }
}

impl Files for Live {
    fn open(&self, path: &BStr) -> Result<File, Errno> {
        match &self.root {
            None => {
                let stat = rustix::fs::stat(path.as_bytes())?;
                if let Some(file) = unopened(&stat) {
                    return Ok(file);
                }
                file_from(rustix::fs::open(path.as_bytes(), OPEN, Mode::empty())?)
            }
            Some(root) => {
                let look = root.open(path, true, LOOK)?;
                if let Some(file) = unopened(&rustix::fs::fstat(&look)?) {
                    return Ok(file);
                }
                file_from(root.open(path, true, OPEN)?)
            }
        }
    }

    fn stat(&self, path: &BStr) -> Result<Meta, Errno> {
        match &self.root {
            None => Ok(meta_of(&rustix::fs::stat(path.as_bytes())?)),
            Some(root) => root.stat(path, true),
        }
    }

    fn may_run(&self, path: &BStr) -> Result<(), Errno> {
        let meta = self.stat(path)?;
        if meta.kind != Kind::File || meta.mode & 0o111 == 0 {
            return Err(Errno::EACCES);
        }
        // The file system may be mounted without the right to run anything; for another root that says nothing.
        let flags = AtFlags::EACCESS;
        match self.root {
            None => Ok(rustix::fs::accessat(CWD, path.as_bytes(), Access::EXEC_OK, flags)?),
            Some(_) => Ok(()),
        }
    }

    fn lstat(&self, path: &BStr) -> Result<Meta, Errno> {
        match &self.root {
            None => Ok(meta_of(&rustix::fs::lstat(path.as_bytes())?)),
            Some(root) => root.stat(path, false),
        }
    }

    fn read_link(&self, path: &BStr) -> Result<BString, Errno> {
        match &self.root {
            None => Ok(rustix::fs::readlink(path.as_bytes(), Vec::new())?.into_bytes().into()),
            Some(root) => {
                let fd = root.open(path, false, LOOK)?;
                if meta_of(&rustix::fs::fstat(&fd)?).kind != Kind::Link {
                    return Err(Errno::EINVAL);
                }
                Ok(rustix::fs::readlinkat(&fd, "", Vec::new())?.into_bytes().into())
            }
        }
    }

    fn list(&self, path: &BStr) -> Result<Vec<Entry>, Errno> {
        let mut out = self.list_unsorted(path)?;
        out.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Ok(out)
    }

    /// In the order in which the file system gives the names.
    fn list_unsorted(&self, path: &BStr) -> Result<Vec<Entry>, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = match &self.root {
            None => rustix::fs::open(path.as_bytes(), flags, Mode::empty())?,
            Some(root) => root.open(path, true, flags)?,
        };
        let mut out = Vec::new();
        for entry in rustix::fs::Dir::new(fd)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if matches!(name, b"." | b"..") {
                continue;
            }
            if out.len() >= MAX_ENTRIES {
                return Err(Errno::EFBIG);
            }
            out.push((BString::from(name), entry.file_type()));
        }
        let kind_of = |name: &BStr, listed: FileType| match listed {
            FileType::Directory => Kind::Directory,
            FileType::Symlink => Kind::Link,
            FileType::RegularFile => Kind::File,
            // Some file systems do not tell while listing.
            FileType::Unknown => self.lstat(super::join(path, name).as_bstr()).map_or(Kind::Other, |m| m.kind),
            _ => Kind::Other,
        };
        Ok(out
            .into_iter()
            .map(|(name, listed)| {
                let kind = kind_of(name.as_bstr(), listed);
                Entry { name, kind }
            })
            .collect())
    }

    fn walk(&self, directory: &BStr, limits: WalkLimits, keep: &(dyn Fn(&BStr) -> bool + Sync)) -> Walked {
        if self.root.is_some() {
            // Each directory is opened inside the root: a sweep by path could be led out by a link that is put in the
            // place of a directory meanwhile.
            return super::walk_by_listing(self, directory, limits, keep);
        }
        let mut out = Walked::default();
        // The first directory has depth 0 here and its entries depth 1. A slash makes a link to it be followed.
        let start = super::join(directory, "");
        let sweep = walkdir::WalkDir::new(start.to_path_lossy())
            .follow_links(false)
            .follow_root_links(true)
            .min_depth(1)
            .max_depth(limits.depth.saturating_add(1));
        for (seen, entry) in sweep.into_iter().filter_map(Result::ok).enumerate() {
            if seen >= limits.entries {
                out.cut = true;
                break;
            }
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
            Some(root) => Ok(walk::resolve(root, path, true)?.path),
        }
    }

    fn privilege(&self, path: &BStr, user: User) -> Option<Privilege> {
        let fd = match &self.root {
            None => rustix::fs::open(path.as_bytes(), LOOK, Mode::empty()).ok()?,
            Some(root) => root.open(path, true, LOOK).ok()?,
        };
        let stat = rustix::fs::fstat(&fd).ok()?;
        let (is_set_uid, is_set_gid) = (stat.st_mode & 0o4000 != 0, stat.st_mode & 0o2010 == 0o2010);
        let changes_uid = is_set_uid && stat.st_uid != user.uid;
        let changes_gid = is_set_gid && stat.st_gid != user.gid;
        let by_id = match (changes_uid, changes_gid) {
            (true, _) => Some(Privilege::User(stat.st_uid)),
            (false, true) => Some(Privilege::Group(stat.st_gid)),
            (false, false) => None,
        };
        let granted = by_id.filter(|_| user.gains_ids).or_else(|| {
            // Capabilities make a start secure unless root, who has them anyway, starts the program. No descriptor that
            // is opened without access gives them, its name in /proc does.
            let name = format!("/proc/self/fd/{}", fd.as_raw_fd());
            let has = || rustix::fs::getxattr(name, "security.capability", &mut [0u8; 64]).is_ok_and(|n| n >= 8);
            (user.uid != 0 && has()).then_some(Privilege::Capabilities)
        })?;
        // How an image is mounted where it is looked at says nothing about where it will run.
        let is_nosuid = || rustix::fs::fstatvfs(&fd).is_ok_and(|s| s.f_flag.contains(StatVfsMountFlags::NOSUID));
        (self.root.is_some() || !is_nosuid()).then_some(granted)
    }

    fn root(&self) -> Option<&BStr> {
        Some(self.root.as_ref().map_or(b"/".as_bstr(), |r| r.path.as_bstr()))
    }
}

/// Most entries of one directory that are listed.
const MAX_ENTRIES: usize = 1 << 20;

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

    pub(super) fn size(&self) -> Result<u64, Errno> {
        Ok(meta_of(&rustix::fs::fstat(&self.fd)?).size)
    }

    /// Appends bytes to a buffer without clearing its room first. `size` is the file's, where the kernel tells one: the
    /// read that would only find the end is left out.
    pub(super) fn append_at(&self, offset: u64, len: usize, size: u64, out: &mut Vec<u8>) -> Result<usize, Errno> {
        out.reserve(len);
        let mut done = 0;
        while done < len {
            let at = offset.saturating_add(done as u64);
            if done > 0 && at == size {
                break;
            }
            let Some(room) = out.spare_capacity_mut().get_mut(..len - done) else { break };
            match rustix::io::pread(&self.fd, room, at) {
                Ok(([], _)) => break,
                Ok((read, _)) => {
                    let n = read.len();
                    // SAFETY: the kernel has written these n bytes behind the end of the buffer.
                    unsafe { out.set_len(out.len() + n) };
                    done += n;
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(done)
    }

    /// The stored parts of a range, holes left out; `None` where the file system does not tell.
    pub(super) fn stored(&self, offset: u64, len: u64, most: usize) -> Option<Vec<(u64, u64)>> {
        use rustix::fs::{SeekFrom, seek};
        let end = offset.checked_add(len)?;
        let mut out = Vec::new();
        let mut at = offset;
        while at < end {
            if out.len() + 1 >= most {
                // Whatever is left counts as one part.
                out.push((at, end - at));
                break;
            }
            let data = match seek(&self.fd, SeekFrom::Data(at)) {
                Ok(data) => data.max(at),
                // Nothing but a hole up to the end of the file.
                Err(rustix::io::Errno::NXIO) => break,
                Err(_) => return None,
            };
            let hole = seek(&self.fd, SeekFrom::Hole(data)).ok()?;
            if data >= end || hole <= at {
                break;
            }
            out.push((data, hole.min(end) - data));
            at = hole;
        }
        Some(out)
    }

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

/// How many maps can be guarded at once: more than a process can have images.
const SLOTS: usize = 32 << 10;
/// Longest range that is read into memory when no slot is free.
const MAX_COPY: usize = 16 << 20;

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
/// Where the search for a free slot begins.
static NEXT: AtomicUsize = AtomicUsize::new(0);

impl GuardedMap {
    fn new(fd: &OwnedFd, offset: u64, len: usize) -> Result<GuardedMap, Errno> {
        if len == 0 {
            return Ok(GuardedMap { map: None, copy: Vec::new(), slot: SLOTS });
        }
        install_handler();
        let hint = NEXT.fetch_add(1, Ordering::Relaxed);
        let slot = (0..SLOTS)
            .map(|i| hint.wrapping_add(i) % SLOTS)
            .find(|i| GUARDED[*i].taken.compare_exchange(false, true, Ordering::AcqRel, Ordering::Relaxed).is_ok());
        let Some(slot) = slot else {
            if len > MAX_COPY {
                return Err(Errno::ENOMEM);
            }
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

    /// The root as the kernel resolves it and as old kernels make us resolve it.
    fn roots(dir: &std::path::Path) -> Vec<(&'static str, Live)> {
        let by_kernel = Live::at_root(bytes(dir)).expect("root");
        vec![("by the kernel", by_kernel), ("walking", Live::at_root(bytes(dir)).expect("root").walking())]
    }

    #[test]
    fn a_root_keeps_absolute_links_and_dotdot_inside() {
        use std::os::unix::fs::symlink;
        let dir = scratch("root");
        fs::create_dir_all(dir.join("etc/deep")).expect("dir");
        fs::write(dir.join("etc/hostname"), "inside").expect("write");
        symlink("/etc/hostname", dir.join("absolute")).expect("link");
        symlink("../../../../etc/hostname", dir.join("etc/up")).expect("link");
        symlink("loop", dir.join("loop")).expect("link");
        symlink("../../..", dir.join("etc/deep/out")).expect("link");
        for (how, live) in roots(&dir) {
            for path in
                ["/absolute", "/etc/up", "/../../etc/hostname", "/etc/deep/out/etc/hostname", "//etc/./hostname"]
            {
                let file = live.open(path.into()).expect(path);
                assert_eq!(file.read_all(100).expect("read"), b"inside", "{how} {path}");
                assert_eq!(live.real_path(path.into()).expect("real"), "/etc/hostname", "{how} {path}");
                assert_eq!(live.stat(path.into()).expect("stat").key, file.meta.key, "{how} {path}");
            }
            assert_eq!(live.open("/loop".into()).err(), Some(Errno::ELOOP), "{how}");
            assert_eq!(live.open("/etc/hostname/x".into()).err(), Some(Errno::ENOTDIR), "{how}");
            assert_eq!(live.open("/etc/hostname/".into()).err(), Some(Errno::ENOTDIR), "{how}");
            assert_eq!(live.open("/none".into()).err(), Some(Errno::ENOENT), "{how}");
            assert_eq!(live.open("".into()).err(), Some(Errno::ENOENT), "{how}");
            assert_eq!(live.open("/a\0b".into()).err(), Some(Errno::EINVAL), "{how}");
            assert_eq!(live.open(format!("/{}", "n".repeat(256)).as_str().into()).err(), Some(Errno::ENAMETOOLONG));
            assert_eq!(live.open("/etc".into()).expect("open").read_at(0, &mut [0; 4]), Err(Errno::EISDIR), "{how}");
            assert_eq!(live.lstat("/absolute".into()).expect("lstat").kind, Kind::Link, "{how}");
            assert_eq!(live.read_link("/absolute".into()).expect("link"), "/etc/hostname", "{how}");
            assert_eq!(live.read_link("/etc/hostname".into()).err(), Some(Errno::EINVAL), "{how}");
            let names: Vec<String> =
                live.list("/etc/deep/out/etc".into()).expect("list").iter().map(|e| e.name.to_string()).collect();
            assert_eq!(names, ["deep", "hostname", "up"], "{how}");
        }
        fs::remove_dir_all(&dir).expect("clean up");
    }

    #[test]
    fn links_of_proc_do_not_lead_out_of_a_root() {
        // /proc as the root: its links to open files and roots of processes lead anywhere when the kernel follows them.
        use std::os::fd::AsRawFd;
        let dir = scratch("magic");
        fs::write(dir.join("secret"), "outside").expect("write");
        let secret = fs::File::open(dir.join("secret")).expect("open");
        for (how, live) in roots(std::path::Path::new("/proc")) {
            let fd = format!("/self/fd/{}", secret.as_raw_fd());
            let by_root = BString::from([b"/self/root", bytes(&dir.join("secret")).as_bytes()].concat());
            for path in [BString::from(fd), by_root, "/self/cwd/Cargo.toml".into()] {
                assert!(live.open(path.as_bstr()).is_err(), "{how} {path}");
                assert!(live.stat(path.as_bstr()).is_err(), "{how} {path}");
            }
            assert!(live.list("/self/cwd".into()).is_err(), "{how}");
        }
        fs::remove_dir_all(&dir).expect("clean up");
    }

    #[test]
    fn a_directory_swapped_for_a_link_meanwhile_does_not_lead_out() {
        use rustix::fs::{RenameFlags, renameat_with};
        use std::sync::atomic::{AtomicBool, Ordering};
        let dir = scratch("race");
        let root = dir.join("root");
        fs::create_dir_all(root.join("d/e")).expect("dir");
        fs::create_dir_all(dir.join("outside/e")).expect("dir");
        fs::write(root.join("d/e/f"), "inside").expect("write");
        fs::write(dir.join("outside/e/f"), "outside").expect("write");
        fs::write(dir.join("outside/e/only-outside"), "").expect("write");
        let outside = Live::new().stat(bytes(&dir.join("outside/e/f"))).expect("stat").key;
        std::os::unix::fs::symlink(dir.join("outside"), root.join("link")).expect("link");
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    renameat_with(CWD, root.join("d"), CWD, root.join("link"), RenameFlags::EXCHANGE).expect("swap");
                }
            });
            for (how, live) in roots(&root) {
                let end = std::time::Instant::now() + std::time::Duration::from_millis(700);
                let mut inside = 0;
                while std::time::Instant::now() < end {
                    for path in ["/d/e/f", "/d/e/../e/f", "/link/e/f"] {
                        if let Ok(file) = live.open(path.into()) {
                            assert_eq!(file.read_all(100).expect("read"), b"inside", "{how} {path}");
                            inside += 1;
                        }
                        if let Ok(meta) = live.stat(path.into()) {
                            assert_ne!(meta.key, outside, "{how} {path}");
                        }
                    }
                    if let Ok(entries) = live.list("/d/e".into()) {
                        assert_eq!(entries.len(), 1, "{how}: {entries:?}");
                    }
                }
                assert!(inside > 0, "{how}: the test has seen the directory");
            }
            stop.store(true, Ordering::Relaxed);
        });
        fs::remove_dir_all(&dir).expect("clean up");
    }

    #[test]
    fn devices_and_fifos_are_neither_opened_nor_read() {
        let dir = scratch("fifo");
        let path = dir.join("pipe");
        rustix::fs::mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).expect("mkfifo");
        // A writer that does not wait fails as long as nobody has opened the other end for reading.
        let writer = || rustix::fs::open(&path, OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty());
        let mut lives = vec![("/", Live::new(), BString::from(bytes(&path)))];
        lives.extend(roots(&dir).into_iter().map(|(how, live)| (how, live, BString::from("/pipe"))));
        for (how, live, path) in lives {
            let file = live.open(path.as_bstr()).expect("open");
            assert_eq!(file.meta.kind, Kind::Other, "{how}");
            assert!(file.read_at(0, &mut [0; 4]).is_err(), "{how}");
            assert_eq!(writer().err(), Some(rustix::io::Errno::NXIO), "{how}: the FIFO was opened");
        }
        let file = Live::new().open("/dev/zero".into()).expect("open");
        assert_eq!(file.read_at(0, &mut [1; 4]), Ok(4), "what it gives is known without a read");
        let file = Live::new().open("/dev/ptmx".into()).expect("open");
        assert_eq!(file.read_at(0, &mut [0; 4]), Err(Errno::EINVAL));
        let file = Live::new().open("/dev/null".into()).expect("open");
        assert_eq!(file.read_all(10).expect("masked files are empty"), b"");
        let _socket = std::os::unix::net::UnixListener::bind(dir.join("socket")).expect("socket");
        assert_eq!(Live::new().open(bytes(&dir.join("socket"))).err(), Some(Errno(6)), "as open(2) has it");
        fs::remove_dir_all(&dir).expect("clean up");
    }

    #[test]
    fn more_maps_than_guards_still_read_right() {
        let dir = scratch("many");
        let path = dir.join("file");
        fs::write(&path, vec![5u8; 8192]).expect("write");
        let file = Live::new().open(bytes(&path)).expect("open");
        let maps: Vec<_> = (0..SLOTS + 50).map(|_| file.map(10, 4096).expect("map")).collect();
        assert!(maps.iter().all(|m| m.len() == 4096 && m.iter().all(|b| *b == 5)));
        fs::remove_dir_all(&dir).expect("clean up");
    }
}
