//! What a cache says: its lines, what a lookup found and why, and why a file is not used.

use std::fmt;

use bstr::{BStr, BString};

use super::{ISA_LEVEL_MASK, is_named};
use crate::system::Errno;

/// Why the loader takes no notice of the file. It says nothing about it: the lookup just finds nothing (rule R4.11).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unusable {
    /// It cannot be opened or read; a missing cache is `ENOENT`.
    Unreadable(Errno),
    /// Too short to have a header.
    TooShort,
    /// Neither the old nor the new magic, or another version of the format.
    BadMagic,
    /// Written for machines of the other byte order, or marked as invalid: the flag byte.
    WrongEndian(u8),
    /// The header counts more entries than the file has room for.
    TooManyEntries {
        /// Entries by the header.
        claimed: u32,
        /// Entries that fit.
        room: u32,
    },
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unusable::Unreadable(errno) => write!(f, "cannot be read: {errno}"),
            Unusable::TooShort => f.write_str("too short for a cache"),
            Unusable::BadMagic => f.write_str("not a cache of a known format"),
            Unusable::WrongEndian(flag) if flag & 3 == 1 => f.write_str("marked as invalid"),
            Unusable::WrongEndian(flag) => write!(f, "written for another byte order (flag {flag:#x})"),
            Unusable::TooManyEntries { claimed, room } if claimed.swap_bytes() <= *room => {
                f.write_str("written for another byte order")
            }
            Unusable::TooManyEntries { claimed, room } => {
                write!(f, "counts {claimed} entries but has room for {room}")
            }
        }
    }
}

/// What ends a lookup in a damaged file without an answer, because the loader itself does not survive it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The loader reads behind the mapped file and is killed by a signal.
    ReadsPastEnd,
    /// A string offset in the table of hwcaps names lies behind the end of the file: the loader writes its priorities
    /// past their array (`glibc_hwcaps_priorities_init` forgets to step on) and is killed by a signal.
    HwcapsTable,
    /// The file was made so that comparing names takes no end; the lookup was given up.
    TooMuchWork,
}

/// What a lookup found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hit {
    /// The path, which may not exist.
    pub path: BString,
    /// Number of the entry in the file, from 0.
    pub entry: u32,
    /// Name of the glibc-hwcaps sub-directory when the entry is of one.
    pub hwcaps: Option<BString>,
}

/// What became of one of the entries whose name is equal to the name looked up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// The lookup gave this one.
    Taken,
    /// Usable, but a later entry was better.
    Surpassed,
    /// For another machine or ABI.
    OtherFlags,
    /// The offset of its path lies outside of the file.
    BadPath,
    /// Needs an x86 ISA level that the processor lacks.
    IsaLevel,
    /// Of a glibc-hwcaps sub-directory that is not active.
    NotActive,
    /// Not better than the entry held so far: of a glibc-hwcaps sub-directory further down the list.
    LessGood,
    /// Has a legacy hwcap mask that the processor does not fulfil, or that this release does not take at all.
    LegacyHwcap,
    /// Needs a newer kernel.
    Kernel,
    /// The search ended before it.
    NotReached,
}

/// A lookup told in full.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Explanation<'a> {
    /// What the lookup gives.
    pub found: Result<Option<Hit>, Fault>,
    /// What became of each entry whose name is equal to the one looked up, in the order of the scan; then the equal ones
    /// that follow and were not reached.
    pub entries: Vec<(Entry<'a>, Fate)>,
}

/// One line of the cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry<'a> {
    /// Number of the entry in the file, from 0.
    pub index: u32,
    /// The name.
    pub key: &'a BStr,
    /// The path.
    pub path: &'a BStr,
    /// Type of library and machine.
    pub flags: i32,
    /// Kernel version needed, in the form of `Legacy::kernel` with the OS number in the top byte; 0 for none.
    pub os_version: u32,
    /// The raw hwcap field; 0 in files of the old format.
    pub hwcap: u64,
    /// Name of the glibc-hwcaps sub-directory, as the loader reads it: in a file of the combined format that is some
    /// other text, which is why such entries are never chosen there.
    pub hwcaps: Option<&'a BStr>,
}

impl Entry<'_> {
    /// True for an entry of a glibc-hwcaps sub-directory (rule R4.5).
    pub fn is_named(&self) -> bool {
        is_named(self.hwcap)
    }

    /// The x86 ISA level a named entry needs: the number of a property bit (0 base, 1 v2, 2 v3, 3 v4).
    pub fn isa_level(&self) -> u16 {
        if self.is_named() { (self.hwcap >> 32 & ISA_LEVEL_MASK) as u16 } else { 0 }
    }
}

/// As `ldconfig -p` prints it, without the leading tab.
impl fmt::Display for Entry<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.flags & 0xff {
            0 => "libc4",
            1 => "ELF",
            2 => "libc5",
            3 => "libc6",
            _ => "unknown",
        };
        write!(f, "{} ({kind}", self.key)?;
        match self.flags & 0xff00 {
            0 => {}
            0x100 | 0x400 | 0x500 | 0x700 => f.write_str(",64bit")?,
            0x200 => f.write_str(",IA-64")?,
            0x300 => f.write_str(",x86-64")?,
            0x600 => f.write_str(",N32")?,
            0x800 => f.write_str(",x32")?,
            0x900 => f.write_str(",hard-float")?,
            0xa00 => f.write_str(",AArch64")?,
            0xb00 | 0xf00 | 0x1100 => f.write_str(",soft-float")?,
            0xc00 => f.write_str(",nan2008")?,
            0xd00 => f.write_str(",N32,nan2008")?,
            0xe00 => f.write_str(",64bit,nan2008")?,
            0x1000 | 0x1200 => f.write_str(",double-float")?,
            other => write!(f, ",{other}")?,
        }
        match self.hwcaps {
            Some(name) => write!(f, ", hwcap: \"{name}\"")?,
            None if self.hwcap != 0 => write!(f, ", hwcap: {:#018x}", self.hwcap)?,
            None => {}
        }
        if self.os_version != 0 {
            let v = self.os_version;
            let os = match v >> 24 {
                0 => "Linux",
                1 => "Hurd",
                2 => "Solaris",
                3 => "FreeBSD",
                4 => "kNetBSD",
                5 => "Syllable",
                _ => "Unknown OS",
            };
            write!(f, ", OS ABI: {os} {}.{}.{}", v >> 16 & 0xff, v >> 8 & 0xff, v & 0xff)?;
        }
        write!(f, ") => {}", self.path)
    }
}
