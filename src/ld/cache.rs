//! Which path does `/etc/ld.so.cache` give for a name?
//!
//! The file is read as glibc's loader reads it, odd corners included (`elf/dl-cache.c`: `_dl_load_cache_lookup`,
//! `search_cache`, `_dl_cache_libcmp`; `sysdeps/generic/dl-cache.h`), because a report must say what that loader finds,
//! not what the writer of the file meant. A lookup touches only the entries that the loader's binary search touches.
//!
//! Nothing here asks whether the path exists: the loader takes the one path it gets and opens it (rule R4.10).
//! [`encode`] writes such files, for fixtures and for the view that ldconfig would have of a root without a cache.

mod abi;
mod answer;
mod write;

use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use bstr::{BStr, BString, ByteSlice};

pub(super) use abi::X86_PLATFORMS;
pub use abi::{Abi, Flags, Legacy, isa_bits, isa_level, library_flags, machine, signed_char};
pub use answer::{Entry, Explanation, Fate, Fault, Hit, Unusable};
pub use write::{Record, TooBig, encode, sort};

use crate::system::System;

/// Where every glibc of a distribution looks for the cache (rule R0.2).
pub const PATH: &str = "/etc/ld.so.cache";

/// A cache file above this size is not read: a box of thousands of libraries has some 300 KiB.
pub const SIZE_LIMIT: u64 = 64 << 20;

/// Strings are shown up to this length. The kernel opens no path of that length, so no answer is changed by the cut.
const STRING_LIMIT: usize = 64 << 10;

/// Bytes of names compared before a lookup is given up: an ordinary one compares a few hundred, a file made to stop its
/// readers could ask for days.
const WORK_LIMIT: usize = 8 << 20;

const OLD_MAGIC: &[u8] = b"ld.so-1.7.0";
const NEW_MAGIC: &[u8] = b"glibc-ld.so.cache1.1";
const EXTENSION_MAGIC: u32 = 0xEAA4_2174;
const TAG_GENERATOR: u32 = 0;
const TAG_HWCAPS: u32 = 1;
const OLD_HEADER: usize = 16;
const OLD_ENTRY: usize = 12;
const NEW_HEADER: usize = 48;
const NEW_ENTRY: usize = 24;

/// Marks, with the other bits of the upper half clear but for the ISA level, an entry of a glibc-hwcaps directory.
const NAMED: u64 = 1 << 62;
const ISA_LEVEL_MASK: u64 = (1 << 10) - 1;

/// How one release of glibc on one machine reads the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reader {
    /// Byte order of the machine; the file is written in it.
    pub big_endian: bool,
    /// Alignment of the new header behind an old table: that of a 64-bit integer in a C structure (8; 4 on i386).
    pub header_align: usize,
    /// Whether bytes from 0x80 on are below zero when names are compared: plain `char` is signed on x86, not on ARM.
    pub signed_char: bool,
    /// Page size: between the end of the file and the end of its last page the loader reads zeros.
    pub page_size: usize,
    /// Named entries, the endian flag as upstream has it, and a check of the entry count (2.33 and later).
    pub named: bool,
    /// The endian flag is looked at (2.33 and later; Debian's 2.31 too, as a fix that its stable branch took over).
    pub endian_flag: bool,
    /// Entries with a legacy hwcap mask can be chosen (2.36 and earlier).
    pub legacy: bool,
    /// Entries that ask for a newer kernel are passed over (2.35 and earlier).
    pub os_version: bool,
}

impl Reader {
    /// glibc 2.`minor` on a machine (`e_machine`).
    pub fn glibc(minor: u32, machine: u16, big_endian: bool) -> Reader {
        Reader {
            big_endian,
            header_align: match machine {
                machine::I386 => 4,
                machine::M68K => 2,
                _ => 8,
            },
            signed_char: signed_char(machine),
            page_size: 4096,
            named: minor >= 33,
            endian_flag: minor >= 31,
            legacy: minor <= 36,
            os_version: minor <= 35,
        }
    }

    fn u32(&self, bytes: [u8; 4]) -> u32 {
        if self.big_endian { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) }
    }

    fn u64(&self, bytes: [u8; 8]) -> u64 {
        if self.big_endian { u64::from_be_bytes(bytes) } else { u64::from_le_bytes(bytes) }
    }
}

/// What a loader wants of the entries of a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Want<'a> {
    /// Flags that are taken.
    pub flags: Flags,
    /// Active names of glibc-hwcaps sub-directories, best first (rule R3.2).
    pub active: &'a [BString],
    /// Usable ISA bits of an x86 processor ([`isa_bits`]); `None` on machines whose loader does not compare.
    pub isa: Option<u32>,
    /// Legacy hardware capabilities; `None` is a machine that has none. Only releases up to 2.36 look at it.
    pub legacy: Option<Legacy>,
}

/// The parts of the file that the loader works with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Layout {
    /// Offset of the first entry.
    entries: usize,
    /// Size of an entry: 12 (old table) or 24 (new table).
    stride: usize,
    /// Number of entries by the header.
    count: u32,
    /// What string offsets are counted from.
    strings: usize,
    /// String offsets from here on are bogus to the loader.
    limit: u32,
    /// Offset of the new header; `None` when only the old table is there.
    header: Option<usize>,
}

/// Which tables a file has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// Only the table of libc5 and glibc 2.0: no hwcap field, so the first entry of a name wins (rule R4.3).
    Old,
    /// The old table, and the new one behind it. Default of ldconfig up to 2.31.
    Compat,
    /// Only the new table.
    New,
}

/// A cache file that the loader works with.
pub struct Cache {
    bytes: Arc<[u8]>,
    reader: Reader,
    layout: Layout,
    format: Format,
    /// The sections behind the strings.
    extension: OnceLock<Option<Extension>>,
    /// Priorities of the names in the extension table for the list of active names used last.
    priorities: Mutex<Option<(Vec<BString>, Arc<Priorities>)>>,
}

/// Result of merging the table of names in the file with the list of active names.
#[derive(Debug)]
struct Priorities {
    /// Index in the table and priority, lower is better; a name that is not active is absent.
    active: Vec<(u32, u32)>,
    fault: Option<Fault>,
}

impl fmt::Debug for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache").field("format", &self.format).field("layout", &self.layout).finish_non_exhaustive()
    }
}

impl Cache {
    /// Reads the cache of a box.
    pub fn open(system: &System, reader: Reader) -> Result<Cache, Unusable> {
        let bytes = system.read_small(PATH.into(), SIZE_LIMIT).map_err(Unusable::Unreadable)?;
        Cache::parse(bytes.into(), reader)
    }

    /// Looks at the headers as `_dl_load_cache_lookup` does.
    pub fn parse(bytes: Arc<[u8]>, reader: Reader) -> Result<Cache, Unusable> {
        let (layout, format) = layout(&bytes, &reader)?;
        Ok(Cache { bytes, reader, layout, format, extension: OnceLock::new(), priorities: Mutex::new(None) })
    }

    /// Which tables the file has.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Number of entries by the header.
    pub fn len(&self) -> usize {
        self.layout.count as usize
    }

    /// True when there is no entry.
    pub fn is_empty(&self) -> bool {
        self.layout.count == 0
    }

    /// Text of the program that wrote the file (2.33 and later).
    pub fn generator(&self) -> Option<&BStr> {
        let (offset, size) = self.extension()?.generator?;
        let end = offset.checked_add(size)?;
        Some(self.bytes.get(offset..end)?.as_bstr())
    }

    /// The path that the loader takes from the cache for a name.
    pub fn lookup(&self, name: &BStr, want: &Want<'_>) -> Result<Option<Hit>, Fault> {
        self.search(name, want, &mut |_, _| {})
    }

    /// [`lookup`](Cache::lookup), with the story of each entry.
    pub fn explain(&self, name: &BStr, want: &Want<'_>) -> Explanation<'_> {
        let mut fates: Vec<(u32, Fate)> = Vec::new();
        // The scan goes upwards, and comes back only to an entry that it held.
        let found = self.search(name, want, &mut |index, fate| match fates.binary_search_by_key(&index, |f| f.0) {
            Ok(earlier) => fates[earlier].1 = fate,
            Err(place) => fates.insert(place, (index, fate)),
        });
        let mut told: Vec<_> = fates.iter().filter_map(|(i, fate)| Some((self.entry(*i)?, *fate))).collect();
        if let Some((last, _)) = fates.last() {
            let after = (last.saturating_add(1)..self.layout.count).map_while(|i| self.entry(i));
            told.extend(after.take_while(|e| same_name(name, e.key)).take(1000).map(|e| (e, Fate::NotReached)));
        }
        Explanation { found, entries: told }
    }

    /// Every entry in the order of the file.
    pub fn entries(&self) -> impl Iterator<Item = Entry<'_>> {
        (0..self.layout.count).map_while(|i| self.entry(i))
    }

    /// Every entry whose name the loader holds for equal to `name`, wherever it stands.
    pub fn entries_of<'a>(&'a self, name: &'a BStr) -> impl Iterator<Item = Entry<'a>> {
        self.entries().filter(move |e| same_name(name, e.key))
    }

    /// The entry of a number, `None` behind the table or the file.
    pub fn entry(&self, index: u32) -> Option<Entry<'_>> {
        let raw = (index < self.layout.count).then(|| self.raw(index)).and_then(Result::ok)?;
        Some(Entry {
            index,
            key: self.text(self.layout.strings, raw.key),
            path: self.text(self.layout.strings, raw.value),
            flags: raw.flags,
            os_version: raw.os_version,
            hwcap: raw.hwcap,
            hwcaps: self.hwcaps_name(&raw),
        })
    }

    /// `search_cache` of 2.33 and later, or the macro of the same work before.
    fn search(&self, name: &BStr, want: &Want<'_>, tell: &mut dyn FnMut(u32, Fate)) -> Result<Option<Hit>, Fault> {
        // C's strings end at the first zero byte.
        let name = name.split(|b| *b == 0).next().unwrap_or_default();
        let mut work = 0;
        let mut compare = |key: u32| -> Result<Option<i32>, Fault> {
            if key >= self.layout.limit {
                return Ok(None);
            }
            let (order, looked_at) = compare(name, self.string(key)?, self.reader.signed_char);
            work += looked_at;
            if work > WORK_LIMIT { Err(Fault::TooMuchWork) } else { Ok(Some(order)) }
        };

        let mut left = 0i32;
        let mut right = self.layout.count.wrapping_sub(1) as i32;
        while left <= right {
            let mut middle = left.wrapping_add(right) / 2;
            let Some(order) = compare(self.raw(middle as u32)?.key)? else { return Ok(None) };
            if order < 0 {
                left = middle + 1;
                continue;
            }
            if order > 0 {
                right = middle - 1;
                continue;
            }
            // Entries of this name may stand before the one that was met.
            left = middle;
            while middle > 0 && compare(self.raw((middle - 1) as u32)?.key)? == Some(0) {
                middle -= 1;
            }
            let mut best: Option<Best> = None;
            loop {
                let raw = self.raw(middle as u32)?;
                if middle > left && compare(raw.key)? != Some(0) {
                    break;
                }
                if self.consider(middle as u32, &raw, want, &mut best, tell)? {
                    break;
                }
                // `right` is where the binary search stood, so in an unsorted table the scan can end early.
                middle += 1;
                if middle > right {
                    break;
                }
            }
            let Some(best) = best else { return Ok(None) };
            let path = cut(self.string(best.raw.value)?).into();
            let hwcaps = self.hwcaps_name(&best.raw).map(BStr::to_owned);
            return Ok(Some(Hit { path, entry: best.index, hwcaps }));
        }
        Ok(None)
    }

    /// One step of the scan over entries of equal name; true ends it.
    fn consider(
        &self,
        index: u32,
        raw: &Raw,
        want: &Want<'_>,
        best: &mut Option<Best>,
        tell: &mut dyn FnMut(u32, Fate),
    ) -> Result<bool, Fault> {
        if !want.flags.take(raw.flags) {
            tell(index, Fate::OtherFlags);
            return Ok(false);
        }
        if raw.value >= self.layout.limit {
            tell(index, Fate::BadPath);
            return Ok(false);
        }
        let mut priority = 0;
        let mut named = false;
        if self.reader.named {
            if self.layout.header.is_some() {
                named = is_named(raw.hwcap);
                if named && !isa_usable(raw.hwcap, want.isa) {
                    tell(index, Fate::IsaLevel);
                    return Ok(false);
                }
                // Named entries stand before all others: with one of them in hand the scan is over.
                if !named && best.is_some() {
                    return Ok(true);
                }
                if let Some(fate) = self.legacy_refusal(raw, named, want) {
                    tell(index, fate);
                    return Ok(false);
                }
                if named {
                    priority = match self.priority(raw.hwcap as u32, want.active)? {
                        Some(priority) => priority,
                        None => {
                            tell(index, Fate::NotActive);
                            return Ok(false);
                        }
                    };
                    if best.as_ref().is_some_and(|b| priority >= b.priority) {
                        tell(index, Fate::LessGood);
                        return Ok(false);
                    }
                }
            }
        } else {
            if best.is_some() && raw.flags != want.flags.own {
                tell(index, Fate::LessGood);
                return Ok(false);
            }
            if self.layout.header.is_some()
                && let Some(fate) = self.legacy_refusal(raw, false, want)
            {
                tell(index, fate);
                return Ok(false);
            }
        }
        if let Some(surpassed) = best.take() {
            tell(surpassed.index, Fate::Surpassed);
        }
        tell(index, Fate::Taken);
        *best = Some(Best { index, raw: *raw, priority });
        Ok(!named && raw.flags == want.flags.own)
    }

    /// The checks of hwcap mask, platform and kernel version.
    fn legacy_refusal(&self, raw: &Raw, named: bool, want: &Want<'_>) -> Option<Fate> {
        if !self.reader.legacy {
            return (!named && raw.hwcap != 0).then_some(Fate::LegacyHwcap);
        }
        let legacy = want.legacy.unwrap_or(Legacy { hwcap: 0, platforms: 0, platform: None, kernel: None });
        if !named && raw.hwcap & !(legacy.hwcap | legacy.platforms | 1 << 63) != 0 {
            return Some(Fate::LegacyHwcap);
        }
        if self.reader.os_version && legacy.kernel.is_some_and(|kernel| kernel != 0 && raw.os_version > kernel) {
            return Some(Fate::Kernel);
        }
        let platform = raw.hwcap & legacy.platforms;
        (platform != 0 && Some(platform) != legacy.platform).then_some(Fate::LegacyHwcap)
    }

    /// Priority of a name in the extension table; `None` when it is not active.
    fn priority(&self, index: u32, active: &[BString]) -> Result<Option<u32>, Fault> {
        let mut held = self.priorities.lock().unwrap_or_else(PoisonError::into_inner);
        let priorities = match &*held {
            Some((of, priorities)) if of == active => priorities.clone(),
            _ => {
                let priorities = Arc::new(self.merge(active));
                *held = Some((active.to_vec(), priorities.clone()));
                priorities
            }
        };
        drop(held);
        match priorities.fault {
            Some(fault) => Err(fault),
            None => Ok(priorities.active.iter().find(|(i, _)| *i == index).map(|(_, priority)| *priority)),
        }
    }

    /// `glibc_hwcaps_priorities_init`: both lists are taken for sorted and walked once, so a name out of order in the
    /// file is not seen.
    fn merge(&self, active: &[BString]) -> Priorities {
        let mut out = Priorities { active: Vec::new(), fault: None };
        let Some(table) = self.extension().and_then(|e| e.hwcaps) else { return out };
        let mut right: Vec<(&BString, u32)> = active.iter().zip(1..).collect();
        right.sort_by(|a, b| a.0.cmp(b.0));
        let mut right = right.into_iter().peekable();
        let mut left = table.0..table.0 + table.1;
        let mut index = 0u32;
        let mut offset = left.next().and_then(|at| self.u32_at(at));
        while let (Some(at), Some((name, priority))) = (offset, right.peek()) {
            if at as usize >= self.bytes.len() {
                out.fault = Some(Fault::HwcapsTable);
                break;
            }
            // No more of the string is needed than decides.
            let text = self.bytes.get(at as usize..).unwrap_or_default();
            let text = text.get(..name.len() + 1).unwrap_or(text);
            let order = cut(text).cmp(name.as_slice());
            if order.is_eq() {
                out.active.push((index, *priority));
            }
            if order.is_ge() {
                right.next();
            }
            if order.is_le() {
                index += 1;
                offset = left.nth(3).and_then(|at| self.u32_at(at));
            }
        }
        out
    }

    fn extension(&self) -> Option<Extension> {
        *self.extension.get_or_init(|| self.read_extension())
    }

    /// `cache_extension_load`: one bad section discards all of them.
    fn read_extension(&self) -> Option<Extension> {
        let header = self.layout.header.filter(|_| self.reader.named)?;
        let at = self.u32_at(header + 32)? as usize;
        if at == 0 || !at.is_multiple_of(4) || self.u32_at(at)? != EXTENSION_MAGIC {
            return None;
        }
        let count = self.u32_at(at + 4)? as usize;
        if count > (self.bytes.len() - at - 8) / 16 {
            return None;
        }
        let mut out = Extension { generator: None, hwcaps: None };
        for section in 0..count {
            let at = at + 8 + 16 * section;
            let tag = self.u32_at(at)?;
            let offset = self.u32_at(at + 8)? as usize;
            let size = self.u32_at(at + 12)? as usize;
            if offset.checked_add(size)? > self.bytes.len() {
                return None;
            }
            match tag {
                TAG_GENERATOR => out.generator = Some((offset, size)),
                TAG_HWCAPS => out.hwcaps = Some((offset, size)),
                _ => {}
            }
        }
        out.hwcaps = out.hwcaps.filter(|(offset, size)| *size != 0 && offset % 4 == 0 && size % 4 == 0);
        Some(out)
    }

    /// Name of a named entry, read where the loader reads it.
    fn hwcaps_name(&self, raw: &Raw) -> Option<&BStr> {
        if self.layout.header.is_none() || !is_named(raw.hwcap) {
            return None;
        }
        let (table, size) = self.extension()?.hwcaps?;
        let index = raw.hwcap as u32 as usize;
        if index >= size / 4 {
            return None;
        }
        let offset = self.u32_at(table + 4 * index)?;
        ((offset as usize) < self.bytes.len()).then(|| self.text(0, offset))
    }

    fn raw(&self, index: u32) -> Result<Raw, Fault> {
        let at = (index as usize)
            .checked_mul(self.layout.stride)
            .and_then(|n| n.checked_add(self.layout.entries))
            .ok_or(Fault::ReadsPastEnd)?;
        let word = |n: usize| self.field(at.saturating_add(n)).map(|b| self.reader.u32(b));
        let mut raw = Raw { flags: word(0)? as i32, key: word(4)?, value: word(8)?, os_version: 0, hwcap: 0 };
        if self.layout.stride == NEW_ENTRY {
            raw.os_version = word(12)?;
            raw.hwcap = self.field(at.saturating_add(16)).map(|b| self.reader.u64(b))?;
        }
        Ok(raw)
    }

    /// A field of an entry. Up to the end of the last page of the file the loader reads zeros.
    fn field<const N: usize>(&self, at: usize) -> Result<[u8; N], Fault> {
        let end = at.saturating_add(N);
        let mut out = [0; N];
        match self.bytes.get(at..end) {
            Some(bytes) => out.copy_from_slice(bytes),
            None if end > self.mapped() => return Err(Fault::ReadsPastEnd),
            None => {
                let rest = self.bytes.get(at..).unwrap_or_default();
                out[..rest.len()].copy_from_slice(rest);
            }
        }
        Ok(out)
    }

    fn u32_at(&self, at: usize) -> Option<u32> {
        let bytes = self.bytes.get(at..at.checked_add(4)?)?;
        Some(self.reader.u32(bytes.try_into().ok()?))
    }

    /// Size of the file in whole pages.
    fn mapped(&self) -> usize {
        self.bytes.len().next_multiple_of(self.reader.page_size.max(1))
    }

    /// The bytes from a string offset on; the string ends at the first zero byte or at the end of the file.
    fn string(&self, offset: u32) -> Result<&[u8], Fault> {
        let at = self.layout.strings.saturating_add(offset as usize);
        match self.bytes.get(at..) {
            Some(bytes) => Ok(bytes),
            None if at < self.mapped() => Ok(&[]),
            None => Err(Fault::ReadsPastEnd),
        }
    }

    /// A string for people; empty when it lies outside of the file.
    fn text(&self, base: usize, offset: u32) -> &BStr {
        let bytes = self.bytes.get(base.saturating_add(offset as usize)..).unwrap_or_default();
        cut(bytes).as_bstr()
    }
}

/// One entry, undecoded.
#[derive(Clone, Copy)]
struct Raw {
    flags: i32,
    key: u32,
    value: u32,
    os_version: u32,
    hwcap: u64,
}

/// The entry that the scan holds.
struct Best {
    index: u32,
    raw: Raw,
    priority: u32,
}

/// Offset and size of the extension sections.
#[derive(Clone, Copy)]
struct Extension {
    generator: Option<(usize, usize)>,
    hwcaps: Option<(usize, usize)>,
}

fn layout(bytes: &[u8], reader: &Reader) -> Result<(Layout, Format), Unusable> {
    let size = bytes.len();
    let word =
        |at: usize| -> u32 { bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, |b| reader.u32(b)) };
    let endian = |at: usize| -> Result<(), Unusable> {
        let flag = bytes.get(at + 28).copied().unwrap_or_default();
        let own = if reader.big_endian { 3 } else { 2 };
        // Only a byte of zero is "unknown": other bits with a clear endian field are refused.
        if !reader.endian_flag || flag == 0 || flag & 3 == own { Ok(()) } else { Err(Unusable::WrongEndian(flag)) }
    };
    if bytes.starts_with(NEW_MAGIC) && size > NEW_HEADER {
        let count = word(20);
        let room = (size - NEW_HEADER) / NEW_ENTRY;
        if reader.named && (count as usize) > room {
            return Err(Unusable::TooManyEntries { claimed: count, room: room as u32 });
        }
        endian(0)?;
        return Ok((new_layout(0, count, size), Format::New));
    }
    if !bytes.starts_with(OLD_MAGIC) || size <= OLD_HEADER {
        let known = bytes.starts_with(NEW_MAGIC) || bytes.starts_with(OLD_MAGIC) || size < OLD_HEADER;
        return Err(if known { Unusable::TooShort } else { Unusable::BadMagic });
    }
    let count = word(12);
    let room = (size - OLD_HEADER) / OLD_ENTRY;
    if (count as usize) > room {
        return Err(Unusable::TooManyEntries { claimed: count, room: room as u32 });
    }
    let table_end = OLD_HEADER + OLD_ENTRY * count as usize;
    let header = table_end.next_multiple_of(reader.header_align.max(1));
    if size >= header + NEW_HEADER && bytes.get(header..).is_some_and(|b| b.starts_with(NEW_MAGIC)) {
        endian(header)?;
        let mut layout = new_layout(header, word(header + 20), size);
        if !reader.named {
            layout.limit = (size - header) as u32;
        }
        return Ok((layout, Format::Compat));
    }
    let limit = (size - table_end) as u32;
    let layout = Layout { entries: OLD_HEADER, stride: OLD_ENTRY, count, strings: table_end, limit, header: None };
    Ok((layout, Format::Old))
}

/// The new table at an offset. Since 2.33 string offsets are held against the size of the whole file even when the
/// table does not begin at its start.
fn new_layout(header: usize, count: u32, size: usize) -> Layout {
    Layout {
        entries: header + NEW_HEADER,
        stride: NEW_ENTRY,
        count,
        strings: header,
        limit: size as u32,
        header: Some(header),
    }
}

fn is_named(hwcap: u64) -> bool {
    (hwcap >> 32) & !ISA_LEVEL_MASK == NAMED >> 32
}

/// `dl_cache_hwcap_isa_level_compatible`: the shift counts modulo 32, as the x86 instruction does.
fn isa_usable(hwcap: u64, isa: Option<u32>) -> bool {
    isa.is_none_or(|isa| isa & 1u32.wrapping_shl((hwcap >> 32 & ISA_LEVEL_MASK) as u32) != 0)
}

/// The bytes before the first zero byte, at most [`STRING_LIMIT`].
fn cut(bytes: &[u8]) -> &[u8] {
    let bytes = bytes.get(..STRING_LIMIT).unwrap_or(bytes);
    bytes.find_byte(0).map_or(bytes, |end| &bytes[..end])
}

/// `_dl_cache_libcmp`: the order of names in the cache (rule R4.7), below zero, zero or above as for `strcmp`.
///
/// Runs of digits count as numbers, in C's 32-bit arithmetic: they wrap, and so does their difference, which makes the
/// order of names with numbers from 2^31 on no order at all (seen on 2.31, 2.36, 2.41, 2.43).
pub fn libcmp(a: &[u8], b: &[u8], signed_char: bool) -> i32 {
    compare(a, b, signed_char).0
}

/// True when the loader holds two names for equal: `libx.so.01` is `libx.so.1`.
pub fn same_name(a: &BStr, b: &BStr) -> bool {
    libcmp(a, b, true) == 0
}

/// [`libcmp`] with the number of bytes that were looked at. A slice ends where it ends or at its first zero byte.
fn compare(a: &[u8], b: &[u8], signed_char: bool) -> (i32, usize) {
    let char_at = |s: &[u8], i: usize| -> i32 {
        let byte = s.get(i).copied().unwrap_or(0);
        if signed_char { i32::from(byte as i8) } else { i32::from(byte) }
    };
    let number = |s: &[u8], i: &mut usize| -> i32 {
        let mut value = 0i32;
        while let Some(digit) = s.get(*i).filter(|b| b.is_ascii_digit()) {
            value = value.wrapping_mul(10).wrapping_add(i32::from(digit - b'0'));
            *i += 1;
        }
        value
    };
    let (mut i, mut j) = (0, 0);
    loop {
        let (x, y) = (a.get(i).copied().unwrap_or(0), b.get(j).copied().unwrap_or(0));
        let order = match (x.is_ascii_digit(), y.is_ascii_digit()) {
            _ if x == 0 => return (-char_at(b, j), i + j),
            (true, true) => number(a, &mut i).wrapping_sub(number(b, &mut j)),
            (true, false) => 1,
            (false, true) => -1,
            (false, false) => {
                let order = char_at(a, i) - char_at(b, j);
                i += 1;
                j += 1;
                order
            }
        };
        if order != 0 {
            return (order, i + j);
        }
    }
}
