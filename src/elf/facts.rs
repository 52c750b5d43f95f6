//! The facts a loader takes from one file, owned and small.

use bstr::{BString, ByteSlice};
use goblin::elf::dynamic::Dyn;
use goblin::elf::program_header as ph;
use scroll::Pread;

use super::reader::Text;
use super::{Header, Layout, Reader};
use crate::system::Errno;

/// One `PT_LOAD` segment. Addresses and sizes in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Segment {
    /// Virtual address relative to the load base.
    pub address: u64,
    /// Offset in the file.
    pub offset: u64,
    /// Bytes taken from the file.
    pub file_size: u64,
    /// Bytes in memory.
    pub memory_size: u64,
    /// `p_align`.
    pub align: u64,
    /// `p_flags`: 1 execute, 2 write, 4 read.
    pub flags: u32,
}

/// Which dynamic tag asks for another library.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RequestTag {
    /// `DT_NEEDED`.
    Needed,
    /// `DT_AUXILIARY`: loaded in front of this object when it exists.
    Auxiliary,
    /// `DT_FILTER`: loaded in front of this object.
    Filter,
}

/// The thread-local block of a file (`PT_TLS`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ThreadLocal {
    /// Bytes in memory.
    pub size: u64,
    /// Alignment.
    pub align: u64,
    /// How far its first byte lies behind an aligned address.
    pub first_byte: u64,
}

/// One request for another library, in the order of the dynamic array (which is the order the loader follows).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// Which tag.
    pub tag: RequestTag,
    /// The text, tokens not expanded. Empty when `mapped` is false.
    pub name: BString,
    /// False when the entry points at memory that is not there: reading it kills the process.
    pub mapped: bool,
}

/// A version this object wants from a file (`Vernaux`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VersionNeed {
    /// Version name.
    pub name: BString,
    /// Its hash as stored.
    pub hash: u32,
    /// `vna_flags`; bit 1 is `VER_FLG_WEAK`.
    pub flags: u16,
    /// `vna_other`: the index that `DT_VERSYM` uses; bit 15 marks a hidden reference.
    pub index: u16,
}

impl VersionNeed {
    /// True for a weak version reference (`VER_FLG_WEAK`).
    pub fn is_weak(&self) -> bool {
        self.flags & 2 != 0
    }
}

/// The versions this object wants from one file (`Verneed`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VersionNeedFile {
    /// `vn_version`; the loader accepts only 1.
    pub revision: u16,
    /// Name of the file as it was in NEEDED at link time.
    pub file: BString,
    /// The versions.
    pub versions: Vec<VersionNeed>,
}

/// A version this object defines (`Verdef`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VersionDefinition {
    /// `vd_version`; the loader accepts only 1.
    pub revision: u16,
    /// Version name (of the first `Verdaux`).
    pub name: BString,
    /// Its hash as stored.
    pub hash: u32,
    /// `vd_flags`; bit 0 is `VER_FLG_BASE`, bit 1 `VER_FLG_WEAK`.
    pub flags: u16,
    /// `vd_ndx`.
    pub index: u16,
}

/// What a defect means for whoever loads the file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Harm {
    /// A loader copes with it.
    Odd,
    /// These facts leave something out that a loader would read: an answer that rests on them may be incomplete.
    Incomplete,
    /// A loader that follows it touches memory that is not there: the process dies by SIGSEGV or SIGBUS.
    Crash,
}

/// Something that is not as it should be, yet need not stop a loader.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Defect {
    /// What is wrong, as a sentence fragment: `string table lies outside the file`.
    pub what: String,
    /// What it means for whoever loads the file.
    pub harm: Harm,
}

/// Where the dynamic array says the tables are: addresses relative to the load base and sizes in bytes, as stored.
/// The symbol and relocation tables are read through these by whoever binds symbols.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub struct Dynamic {
    pub string_table: Option<u64>,
    pub string_size: Option<u64>,
    pub symbol_table: Option<u64>,
    pub symbol_entry_size: Option<u64>,
    pub gnu_hash: Option<u64>,
    pub hash: Option<u64>,
    pub version_symbols: Option<u64>,
    pub version_needs: Option<u64>,
    pub version_definitions: Option<u64>,
    pub rela: Option<u64>,
    pub rela_size: Option<u64>,
    /// `DT_RELACOUNT`: so many entries at the front name no symbol.
    pub rela_count: Option<u64>,
    pub rel: Option<u64>,
    pub rel_size: Option<u64>,
    /// `DT_RELCOUNT`.
    pub rel_count: Option<u64>,
    pub plt_relocations: Option<u64>,
    pub plt_relocation_size: Option<u64>,
    /// `DT_PLTREL`: 7 (`DT_RELA`) or 17 (`DT_REL`).
    pub plt_relocation_kind: Option<u64>,
    pub relr: Option<u64>,
    pub relr_size: Option<u64>,
    pub text_relocations: bool,
    pub symbolic: bool,
    pub bind_now: bool,
    pub preinit: bool,
}

/// What one file says to a loader.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Facts {
    /// In which layout the file was read.
    pub layout: Layout,
    /// The ELF header.
    pub header: Header,
    /// Size of the file in bytes.
    pub file_size: u64,
    /// `PT_LOAD` segments in order.
    pub segments: Vec<Segment>,
    /// `PT_INTERP`, the first one; empty when there is one that the kernel refuses (see [`Facts::interpreter_error`]).
    pub interpreter: Option<BString>,
    /// The error with which the kernel refuses to start the program because of its `PT_INTERP` (`load_elf_binary`,
    /// fs/binfmt_elf.c): `ENOEXEC` for a text that is shorter than 2 or longer than 4096 bytes or does not end in NUL,
    /// `EIO` for one that lies past the end of the file.
    pub interpreter_error: Option<Errno>,
    /// True when there is a `PT_DYNAMIC`; the last one that takes bytes from the file counts, and one at address 0 is
    /// none.
    pub has_dynamic: bool,
    /// True when a `PT_DYNAMIC` takes no bytes from the file, as in separate debug files.
    pub empty_dynamic: bool,
    /// Address of the dynamic array.
    pub dynamic_at: Option<u64>,
    /// `p_flags` of `PT_GNU_STACK`, when there is one.
    pub stack_flags: Option<u32>,
    /// `PT_TLS`, when it has a size.
    pub tls: Option<ThreadLocal>,
    /// `DT_SONAME` (the last one, as the loader keeps it).
    pub soname: Option<BString>,
    /// `DT_NEEDED`, `DT_AUXILIARY` and `DT_FILTER` in the order of the dynamic array.
    pub requests: Vec<Request>,
    /// `DT_RPATH` as stored, also when `DT_RUNPATH` makes the loader forget it.
    pub rpath: Option<BString>,
    /// `DT_RUNPATH`.
    pub runpath: Option<BString>,
    /// `DT_FLAGS`.
    pub flags: u64,
    /// `DT_FLAGS_1`.
    pub flags_1: u64,
    /// `DT_AUDIT` and `DT_DEPAUDIT` texts.
    pub audit: Vec<BString>,
    /// Table addresses.
    pub dynamic: Dynamic,
    /// Versions wanted, in file order. `None` when there is no `DT_VERNEED`.
    pub version_needs: Option<Vec<VersionNeedFile>>,
    /// Versions defined, in file order. `None` when there is no `DT_VERDEF`.
    pub version_definitions: Option<Vec<VersionDefinition>>,
    /// `GNU_PROPERTY_X86_ISA_1_NEEDED` bits: bit n set = level n+1 needed (bit 0 baseline, 1 v2, 2 v3, 3 v4).
    pub isa_needed: u32,
    /// `GNU_PROPERTY_1_NEEDED` says `INDIRECT_EXTERN_ACCESS`: no program may have a copy of the file's protected data, nor
    /// stand in for its protected functions.
    pub needs_indirect_access: bool,
    /// `NT_GNU_ABI_TAG`: operating system (0 = Linux) and the oldest kernel.
    pub abi_tag: Option<(u32, u32, u32, u32)>,
    /// `NT_GNU_BUILD_ID`.
    pub build_id: Option<Vec<u8>>,
    /// FDO dlopen notes: JSON text as stored.
    pub dlopen_notes: Vec<BString>,
    /// What is damaged or odd.
    pub defects: Vec<Defect>,
}

/// Longest library name or version name that is kept, in bytes: beyond PATH_MAX (4096) no name can be opened, so that
/// the beginning of a longer one fails for the same reason.
const MAX_NAME: u64 = 8 << 10;
/// Longest RPATH or RUNPATH that is kept, in bytes.
const MAX_PATH_LIST: u64 = 256 << 10;
/// Bytes of all names of one file that are kept. Thousands of entries can point at one long string.
const MAX_NAMES: usize = 1 << 20;
/// Most entries of the dynamic array, of NEEDED, and of each version table that are read.
const MAX_DYNAMIC: u64 = 64 << 10;
const MAX_REQUESTS: usize = 16 << 10;
const MAX_VERSIONS: usize = 32 << 10;
/// Most bytes of all note segments together that are read, and most segments.
const MAX_NOTES: u64 = 1 << 20;
const MAX_NOTE_SEGMENTS: usize = 64;
/// Most defects of one harm that are kept.
const MAX_DEFECTS: usize = 100;
/// Most strings of one file that are looked for outside the segment of the string table.
const MAX_STRAYS: u32 = 256;
/// Longest interpreter path that the kernel takes, with its NUL (PATH_MAX).
const MAX_INTERPRETER: u64 = 4096;
/// The smallest page: segments are mapped in whole pages, so that file bytes around a segment are seen too.
const PAGE: u64 = 4096;

/// What a process would see at an address of the loaded object.
enum Memory {
    /// Bytes of the file, `room` of them.
    File { offset: u64, room: u64 },
    /// Zeros up to the end of the mapping.
    Zeros,
    /// Nothing is mapped there.
    Nothing,
}

/// The string table and what may still be kept of it.
struct Strings {
    address: u64,
    /// Offset in the file and bytes there, when the table begins in a segment.
    at: Option<(u64, u64)>,
    names_left: usize,
    strays_left: u32,
}

/// Why a string could not be had.
enum NoText {
    /// The loader would read memory that is not there.
    Unmapped,
    /// Too much was read of this file already.
    Spent,
}

impl Strings {
    /// The string at an index of the table, as the loader sees it in memory: it trusts the index, so that the string
    /// may lie in any segment. A string longer than `limit` is cut there.
    fn get(&mut self, facts: &Facts, reader: &mut Reader<'_>, index: u64, limit: u64) -> Result<Text, NoText> {
        let limit = limit.min(self.names_left as u64);
        if limit == 0 {
            return Err(NoText::Spent);
        }
        let mut text = match self.at {
            Some((start, room)) if index < room => {
                reader.text(start.saturating_add(index), limit.min(room - index)).ok_or(NoText::Unmapped)?
            }
            _ => Text { bytes: BString::default(), whole: false },
        };
        // Most strings end where they begin; what follows is for tables that cross a segment's end.
        while !text.whole && (text.bytes.len() as u64) < limit {
            self.strays_left = self.strays_left.checked_sub(1).ok_or(NoText::Spent)?;
            let have = text.bytes.len() as u64;
            match facts.memory_at(self.address.wrapping_add(index).wrapping_add(have)) {
                Memory::File { offset, room } => {
                    let more = reader.text(offset, room.min(limit - have)).ok_or(NoText::Unmapped)?;
                    text.whole = more.whole;
                    text.bytes.extend_from_slice(&more.bytes);
                }
                Memory::Zeros => text.whole = true,
                Memory::Nothing => return Err(NoText::Unmapped),
            }
        }
        self.names_left -= text.bytes.len().min(self.names_left);
        Ok(text)
    }

    /// A name; says what is wrong with one that cannot be had.
    fn name(&mut self, facts: &mut Facts, reader: &mut Reader<'_>, index: u64, what: &str) -> Option<BString> {
        self.name_or_reason(facts, reader, index, what).ok()
    }

    fn name_or_reason(
        &mut self,
        facts: &mut Facts,
        reader: &mut Reader<'_>,
        index: u64,
        what: &str,
    ) -> Result<BString, NoText> {
        let got = self.get(facts, reader, index, MAX_NAME);
        match &got {
            Ok(text) if text.whole => {}
            Ok(_) => facts.defect(Harm::Odd, format!("{what} is longer than any path can be")),
            Err(NoText::Unmapped) => {
                facts.defect(Harm::Crash, format!("{what} points outside what is mapped of the file"));
            }
            Err(NoText::Spent) => {
                facts.defect(Harm::Incomplete, format!("too many long names; {what} is not read"));
            }
        }
        got.map(|text| text.bytes)
    }
}

impl Facts {
    /// True when every function is bound at load: `DT_BIND_NOW`, `DF_BIND_NOW` or `DF_1_NOW` (`elf_get_dynamic_info`;
    /// rule R6.27).
    pub fn binds_now(&self) -> bool {
        self.dynamic.bind_now || self.flags & super::flags::BIND_NOW != 0 || self.flags_1 & super::flags_1::NOW != 0
    }

    /// True when the file's own definitions come first: `DT_SYMBOLIC` or `DF_SYMBOLIC` (rule R6.7).
    pub fn is_symbolic(&self) -> bool {
        self.dynamic.symbolic || self.flags & super::flags::SYMBOLIC != 0
    }

    /// Reads the facts of a file in a layout. `None` when the file is shorter than a header or a read fails there.
    pub fn read(reader: &mut Reader<'_>, layout: Layout) -> Option<Facts> {
        let header = Header::parse(reader.range(0, layout.header_size() as u64).ok()?, layout)?;
        let mut facts = Facts {
            layout,
            header,
            file_size: reader.file_size(),
            segments: Vec::new(),
            interpreter: None,
            interpreter_error: None,
            has_dynamic: false,
            empty_dynamic: false,
            dynamic_at: None,
            stack_flags: None,
            tls: None,
            soname: None,
            requests: Vec::new(),
            rpath: None,
            runpath: None,
            flags: 0,
            flags_1: 0,
            audit: Vec::new(),
            dynamic: Dynamic::default(),
            version_needs: None,
            version_definitions: None,
            isa_needed: 0,
            needs_indirect_access: false,
            abi_tag: None,
            build_id: None,
            dlopen_notes: Vec::new(),
            defects: Vec::new(),
        };
        let headers = facts.program_headers(reader);
        let mut dynamic_at = None;
        let mut notes = Vec::new();
        for p in &headers {
            match p.p_type {
                ph::PT_LOAD => facts.segments.push(Segment {
                    address: p.p_vaddr,
                    offset: p.p_offset,
                    file_size: p.p_filesz,
                    memory_size: p.p_memsz,
                    align: p.p_align,
                    flags: p.p_flags,
                }),
                ph::PT_DYNAMIC => {
                    // The last one that is not empty counts (_dl_map_object_from_fd); address 0 is none (l_ld == NULL).
                    facts.empty_dynamic |= p.p_filesz == 0;
                    if p.p_filesz > 0 {
                        facts.has_dynamic = p.p_vaddr != 0;
                        facts.dynamic_at = Some(p.p_vaddr).filter(|at| *at != 0);
                        dynamic_at = Some((p.p_vaddr, p.p_offset, p.p_filesz)).filter(|_| p.p_vaddr != 0);
                    }
                }
                // The first one counts (load_elf_binary).
                ph::PT_INTERP if facts.interpreter.is_none() => facts.read_interpreter(reader, p.p_offset, p.p_filesz),
                ph::PT_GNU_STACK => facts.stack_flags = Some(p.p_flags),
                ph::PT_TLS if p.p_memsz > 0 => {
                    let first_byte = if p.p_align == 0 { 0 } else { p.p_vaddr & (p.p_align - 1) };
                    facts.tls = Some(ThreadLocal { size: p.p_memsz, align: p.p_align, first_byte });
                }
                ph::PT_NOTE => notes.push((p.p_offset, p.p_filesz, p.p_align, false)),
                PT_GNU_PROPERTY => notes.push((p.p_offset, p.p_filesz, p.p_align, true)),
                _ => {}
            }
        }
        facts.check_length();
        let property_segment = notes.iter().any(|n| n.3);
        if notes.len() > MAX_NOTE_SEGMENTS {
            facts.defect(Harm::Incomplete, format!("{} note segments, only {MAX_NOTE_SEGMENTS} are read", notes.len()));
        }
        let mut left = MAX_NOTES;
        for (offset, size, align, is_property) in notes.into_iter().take(MAX_NOTE_SEGMENTS) {
            if size > left {
                facts.defect(Harm::Odd, "notes of more than a megabyte, the rest is not read");
            }
            let size = size.min(left);
            left -= size;
            facts.read_notes(reader, offset, size, align, is_property || !property_segment);
        }
        if let Some((address, offset, size)) = dynamic_at {
            facts.read_dynamic(reader, address, offset, size);
        }
        Some(facts)
    }

    /// Notes a segment that the file is too short for. Nothing checks that when a file is loaded: what lies on a page
    /// past the end of the file ends the process when it is touched, the rest of the last page reads as zeros.
    fn check_length(&mut self) {
        let end_of = |s: &Segment| s.offset.saturating_add(s.file_size);
        let Some(cut) = self.segments.iter().filter(|s| s.file_size > 0).find(|s| end_of(s) > self.file_size) else {
            return;
        };
        let last_page = self.file_size.checked_next_multiple_of(PAGE).unwrap_or(u64::MAX);
        let harm = if self.segments.iter().any(|s| end_of(s) > last_page) { Harm::Crash } else { Harm::Incomplete };
        self.defect(harm, format!("truncated: segment at {:#x} ends past the end of the file", cut.offset));
    }

    fn read_interpreter(&mut self, reader: &mut Reader<'_>, offset: u64, size: u64) {
        let refused = if !(2..=MAX_INTERPRETER).contains(&size) {
            Some(Errno::ENOEXEC)
        } else {
            match reader.range(offset, size) {
                Ok(bytes) if (bytes.len() as u64) < size => Some(Errno::EIO),
                Ok(bytes) if bytes.last() != Some(&0) => Some(Errno::ENOEXEC),
                Ok(bytes) => {
                    let end = memchr::memchr(0, bytes).unwrap_or(bytes.len());
                    self.interpreter = Some(bytes[..end].into());
                    None
                }
                Err(_) => Some(Errno::EIO),
            }
        };
        if refused.is_some() {
            self.interpreter = Some(BString::default());
            self.interpreter_error = refused;
            self.defect(Harm::Odd, "PT_INTERP holds no path that the kernel takes");
        }
    }

    fn defect(&mut self, harm: Harm, what: impl Into<String>) {
        let defect = Defect { what: what.into(), harm };
        // Counted by harm, so that many small things do not hide a great one.
        if self.defects.last() != Some(&defect) && self.defects.iter().filter(|d| d.harm == harm).count() < MAX_DEFECTS
        {
            self.defects.push(defect);
        }
    }

    /// About how many bytes of memory these facts take.
    pub fn cost(&self) -> usize {
        let name = |n: &BString| n.len() + size_of::<BString>();
        size_of::<Facts>()
            + self.segments.len() * size_of::<Segment>()
            + self.requests.iter().map(|r| name(&r.name) + 8).sum::<usize>()
            + [&self.interpreter, &self.soname, &self.rpath, &self.runpath]
                .iter()
                .filter_map(|n| n.as_ref().map(name))
                .sum::<usize>()
            + self.audit.iter().chain(&self.dlopen_notes).map(name).sum::<usize>()
            + self
                .version_needs
                .iter()
                .flatten()
                .map(|f| name(&f.file) + f.versions.iter().map(|v| name(&v.name) + 8).sum::<usize>() + 32)
                .sum::<usize>()
            + self.version_definitions.iter().flatten().map(|d| name(&d.name) + 16).sum::<usize>()
            + self.defects.len() * 128
    }

    fn program_headers(&mut self, reader: &mut Reader<'_>) -> Vec<ph::ProgramHeader> {
        let size = self.layout.program_header_size();
        let count = usize::from(self.header.program_header_count);
        let Ok(bytes) = reader.range(self.header.program_headers_at, (size * count) as u64) else {
            self.defect(Harm::Odd, "program headers cannot be read");
            return Vec::new();
        };
        let have = bytes.len() / size;
        let parsed = ph::ProgramHeader::parse(bytes, 0, have.min(count), self.layout.context());
        if have < count {
            self.defect(Harm::Odd, "program headers lie past the end of the file");
        }
        parsed.unwrap_or_default()
    }

    /// Where an address of the loaded object lies in the file: offset, and how many bytes follow there that are mapped
    /// from the file (their sum is an offset too). `None` for an address that is not mapped or reads as zero.
    ///
    /// As in memory: whole pages are mapped, so that the file's bytes around a segment on its first and last page are
    /// seen too (unless zeros follow, because the segment is longer in memory than in the file), and where segments
    /// overlap the later one covers the earlier one (`_dl_map_segments`).
    pub fn offset_of(&self, address: u64) -> Option<(u64, u64)> {
        match self.memory_at(address) {
            Memory::File { offset, room } => Some((offset, room)),
            Memory::Zeros | Memory::Nothing => None,
        }
    }

    /// True when the loaded object has memory at an address, from the file or zeros.
    pub fn is_mapped(&self, address: u64) -> bool {
        !matches!(self.memory_at(address), Memory::Nothing)
    }

    fn memory_at(&self, address: u64) -> Memory {
        for s in self.segments.iter().rev() {
            let first_page = s.address & !(PAGE - 1);
            let Some(data_end) = s.address.checked_add(s.file_size) else { continue };
            let Some(memory_end) = s.address.checked_add(s.memory_size.max(s.file_size)) else { continue };
            let mapped_end = memory_end.checked_next_multiple_of(PAGE).unwrap_or(u64::MAX);
            if address < first_page || address >= mapped_end {
                continue;
            }
            let file_end = if s.memory_size > s.file_size {
                data_end
            } else {
                data_end.checked_next_multiple_of(PAGE).unwrap_or(u64::MAX)
            };
            if address >= file_end || s.file_size == 0 {
                return Memory::Zeros;
            }
            let offset = if address >= s.address {
                s.offset.checked_add(address - s.address)
            } else {
                s.offset.checked_sub(s.address - address)
            };
            return match offset {
                // No file has bytes behind the last offset there is.
                Some(offset) if offset < u64::MAX => {
                    Memory::File { offset, room: (file_end - address).min(u64::MAX - offset) }
                }
                _ => Memory::Nothing,
            };
        }
        Memory::Nothing
    }

    fn read_dynamic(&mut self, reader: &mut Reader<'_>, address: u64, offset: u64, size: u64) {
        // The loader walks the array at the segment's address, not at p_offset (_dl_map_object_from_fd: l_ld).
        let (offset, limit, zeros_follow) = match self.memory_at(address) {
            Memory::File { offset: at, room } => {
                if at != offset {
                    self.defect(Harm::Odd, "PT_DYNAMIC address and offset disagree; the loader follows the address");
                }
                let zeros = address.checked_add(room).is_some_and(|a| matches!(self.memory_at(a), Memory::Zeros));
                (at, room, zeros)
            }
            // DT_NULL at once.
            Memory::Zeros => return,
            Memory::Nothing => {
                self.defect(Harm::Crash, "PT_DYNAMIC lies outside every loaded segment");
                (offset, size, false)
            }
        };
        let entry = if self.layout.is_64 { 16 } else { 8 };
        let context = self.layout.context();
        let mut entries: Vec<Dyn> = Vec::with_capacity(40);
        let mut at = 0u64;
        let mut ended = false;
        'array: while limit - at >= entry && at / entry < MAX_DYNAMIC {
            // One page at a time, so that the array's length need not be known.
            let Some(from) = offset.checked_add(at) else { break };
            let ask = (PAGE - from % PAGE).max(entry).min(limit - at);
            let Ok(bytes) = reader.range(from, ask) else { break };
            let usable = bytes.len() as u64 / entry * entry;
            if usable == 0 {
                break;
            }
            let mut position = 0usize;
            while (position as u64) < usable {
                let Ok(d) = bytes.pread_with::<Dyn>(position, context) else { break 'array };
                position += entry as usize;
                if d.d_tag == 0 {
                    ended = true;
                    break 'array;
                }
                entries.push(d);
            }
            at += usable;
        }
        let cut = !ended && at / entry >= MAX_DYNAMIC;
        if cut {
            self.defect(Harm::Incomplete, format!("the dynamic array has more than {MAX_DYNAMIC} entries"));
        } else if !(ended || zeros_follow && limit - at < entry) {
            self.defect(Harm::Crash, "the dynamic array has no end mark");
        }
        self.take_entries(reader, &entries, cut);
    }

    fn take_entries(&mut self, reader: &mut Reader<'_>, entries: &[Dyn], cut: bool) {
        use goblin::elf::dynamic as dt;
        let mut soname = None;
        let mut rpath = None;
        let mut runpath = None;
        let mut requests = Vec::new();
        let mut audits = Vec::new();
        let d = &mut self.dynamic;
        // For a tag that may occur once the loader keeps the last one (elf_get_dynamic_info).
        for e in entries {
            let value = e.d_val;
            match e.d_tag {
                dt::DT_NEEDED => requests.push((RequestTag::Needed, value)),
                DT_AUXILIARY => requests.push((RequestTag::Auxiliary, value)),
                DT_FILTER => requests.push((RequestTag::Filter, value)),
                DT_AUDIT | DT_DEPAUDIT => audits.push(value),
                dt::DT_SONAME => soname = Some(value),
                dt::DT_RPATH => rpath = Some(value),
                dt::DT_RUNPATH => runpath = Some(value),
                dt::DT_FLAGS => self.flags = value,
                dt::DT_FLAGS_1 => self.flags_1 = value,
                dt::DT_STRTAB => d.string_table = Some(value),
                dt::DT_STRSZ => d.string_size = Some(value),
                dt::DT_SYMTAB => d.symbol_table = Some(value),
                dt::DT_SYMENT => d.symbol_entry_size = Some(value),
                dt::DT_GNU_HASH => d.gnu_hash = Some(value),
                dt::DT_HASH => d.hash = Some(value),
                dt::DT_VERSYM => d.version_symbols = Some(value),
                dt::DT_VERNEED => d.version_needs = Some(value),
                dt::DT_VERDEF => d.version_definitions = Some(value),
                dt::DT_RELA => d.rela = Some(value),
                dt::DT_RELASZ => d.rela_size = Some(value),
                DT_RELACOUNT => d.rela_count = Some(value),
                DT_RELCOUNT => d.rel_count = Some(value),
                dt::DT_REL => d.rel = Some(value),
                dt::DT_RELSZ => d.rel_size = Some(value),
                dt::DT_JMPREL => d.plt_relocations = Some(value),
                dt::DT_PLTRELSZ => d.plt_relocation_size = Some(value),
                dt::DT_PLTREL => d.plt_relocation_kind = Some(value),
                DT_RELR => d.relr = Some(value),
                DT_RELRSZ => d.relr_size = Some(value),
                dt::DT_TEXTREL => d.text_relocations = true,
                dt::DT_SYMBOLIC => d.symbolic = true,
                dt::DT_BIND_NOW => d.bind_now = true,
                dt::DT_PREINIT_ARRAY => d.preinit = true,
                _ => {}
            }
        }
        let address = self.dynamic.string_table;
        let uses_strings = soname.is_some() || rpath.is_some() || runpath.is_some() || !requests.is_empty();
        let mut strings = match address {
            Some(address) => {
                Strings { address, at: self.offset_of(address), names_left: MAX_NAMES, strays_left: MAX_STRAYS }
            }
            None => {
                if uses_strings && !cut {
                    self.defect(Harm::Crash, "there is no string table");
                    let tags = requests.iter().take(1).map(|(tag, _)| *tag);
                    self.requests.extend(tags.map(|tag| Request { tag, name: BString::default(), mapped: false }));
                }
                return;
            }
        };
        self.soname = soname.and_then(|at| strings.name(self, reader, at, "DT_SONAME"));
        let lists = [rpath.map(|at| (at, "DT_RPATH")), runpath.map(|at| (at, "DT_RUNPATH"))];
        let [rpath, runpath] = lists.map(|l| l.and_then(|(at, what)| self.path_list(&mut strings, reader, at, what)));
        self.rpath = rpath;
        self.runpath = runpath;
        if requests.len() > MAX_REQUESTS {
            let count = requests.len();
            self.defect(Harm::Incomplete, format!("{count} library requests, only the first {MAX_REQUESTS} are read"));
            requests.truncate(MAX_REQUESTS);
        }
        for (tag, at) in requests {
            let what = match tag {
                RequestTag::Needed => "DT_NEEDED",
                RequestTag::Auxiliary => "DT_AUXILIARY",
                RequestTag::Filter => "DT_FILTER",
            };
            match strings.name_or_reason(self, reader, at, what) {
                Ok(name) => self.requests.push(Request { tag, name, mapped: true }),
                Err(NoText::Unmapped) => self.requests.push(Request { tag, name: BString::default(), mapped: false }),
                Err(NoText::Spent) => {}
            }
        }
        for at in audits.into_iter().take(16) {
            if let Some(name) = strings.name(self, reader, at, "DT_AUDIT") {
                self.audit.push(name);
            }
        }
        if let Some(address) = self.dynamic.version_needs {
            let list = self.read_version_needs(reader, address, &mut strings);
            self.version_needs = Some(list);
        }
        if let Some(address) = self.dynamic.version_definitions {
            let list = self.read_version_definitions(reader, address, &mut strings);
            self.version_definitions = Some(list);
        }
    }

    /// A search list. One that is longer than any list is cut after its last whole element.
    fn path_list(&mut self, strings: &mut Strings, reader: &mut Reader<'_>, at: u64, what: &str) -> Option<BString> {
        match strings.get(self, reader, at, MAX_PATH_LIST) {
            Ok(Text { bytes, whole: true }) => Some(bytes),
            Ok(Text { mut bytes, whole: false }) => {
                self.defect(
                    Harm::Incomplete,
                    format!("{what} is longer than {MAX_PATH_LIST} bytes, the rest is not read"),
                );
                let end = bytes.rfind_byte(b':').unwrap_or(0);
                bytes.truncate(end);
                Some(bytes)
            }
            Err(NoText::Unmapped) => {
                self.defect(Harm::Crash, format!("{what} points outside what is mapped of the file"));
                None
            }
            Err(NoText::Spent) => {
                self.defect(Harm::Incomplete, format!("too many long names; {what} is not read"));
                None
            }
        }
    }

    fn read_version_needs(
        &mut self,
        reader: &mut Reader<'_>,
        address: u64,
        strings: &mut Strings,
    ) -> Vec<VersionNeedFile> {
        let mut out = Vec::new();
        let Some((start, room)) = self.offset_of(address) else {
            self.defect(Harm::Crash, "DT_VERNEED lies outside every loaded segment");
            return out;
        };
        let endian = self.layout.context().le;
        let mut at = 0u64;
        let mut total = 0usize;
        loop {
            // Verneed: u16 version, u16 count, u32 file, u32 aux, u32 next.
            let Some([word, file, aux, next]) = words::<4>(reader, start, room, at, endian) else {
                self.defect(Harm::Crash, "the version need table ends outside its segment");
                return out;
            };
            let revision = half(word, 0, endian);
            let mut versions = Vec::with_capacity(usize::from(half(word, 1, endian)).min(16));
            let mut aux_at = at.saturating_add(aux.into());
            loop {
                // Vernaux: u32 hash, u16 flags, u16 other, u32 name, u32 next.
                let Some([hash, flags_other, name, aux_next]) = words::<4>(reader, start, room, aux_at, endian) else {
                    self.defect(Harm::Crash, "the version need table ends outside its segment");
                    break;
                };
                total += 1;
                if let Some(name) = strings.name(self, reader, name.into(), "a version name") {
                    versions.push(VersionNeed {
                        name,
                        hash,
                        flags: half(flags_other, 0, endian),
                        index: half(flags_other, 1, endian),
                    });
                }
                if aux_next == 0 || total > MAX_VERSIONS {
                    break;
                }
                aux_at = aux_at.saturating_add(aux_next.into());
            }
            if let Some(file) = strings.name(self, reader, file.into(), "the file name of a version need") {
                out.push(VersionNeedFile { revision, file, versions });
            }
            total += 1;
            if next == 0 {
                return out;
            }
            if total > MAX_VERSIONS {
                self.defect(Harm::Incomplete, "too many version needs, the rest is not read");
                return out;
            }
            at = at.saturating_add(next.into());
        }
    }

    fn read_version_definitions(
        &mut self,
        reader: &mut Reader<'_>,
        address: u64,
        strings: &mut Strings,
    ) -> Vec<VersionDefinition> {
        let mut out = Vec::new();
        let Some((start, room)) = self.offset_of(address) else {
            self.defect(Harm::Crash, "DT_VERDEF lies outside every loaded segment");
            return out;
        };
        let endian = self.layout.context().le;
        let mut at = 0u64;
        let mut total = 0usize;
        loop {
            // Verdef: u16 version, u16 flags, u16 ndx, u16 cnt, u32 hash, u32 aux, u32 next.
            let Some([version_flags, index_count, hash, aux, next]) = words::<5>(reader, start, room, at, endian)
            else {
                self.defect(Harm::Crash, "the version definition table ends outside its segment");
                return out;
            };
            let aux = words::<2>(reader, start, room, at.saturating_add(aux.into()), endian);
            match aux.map(|[name, _next]| strings.name(self, reader, name.into(), "the name of a version definition")) {
                Some(Some(name)) => out.push(VersionDefinition {
                    revision: half(version_flags, 0, endian),
                    name,
                    hash,
                    flags: half(version_flags, 1, endian),
                    index: half(index_count, 0, endian),
                }),
                Some(None) => {}
                None => self.defect(Harm::Crash, "the version definition table ends outside its segment"),
            }
            if next == 0 {
                return out;
            }
            total += 1;
            if total > MAX_VERSIONS {
                self.defect(Harm::Incomplete, "too many version definitions, the rest is not read");
                return out;
            }
            at = at.saturating_add(next.into());
        }
    }

    fn read_notes(&mut self, reader: &mut Reader<'_>, offset: u64, size: u64, align: u64, take_properties: bool) {
        let Ok(bytes) = reader.range(offset, size) else { return };
        let bytes = bytes.to_vec();
        let alignment = if align == 8 { 8usize } else { 4 };
        let endian = self.layout.context().le;
        let mut at = 0usize;
        while let Some([name_size, desc_size, kind]) = read_words::<3>(&bytes, at, endian) {
            let name_at = at + 12;
            let Some(name_end) = name_at.checked_add(name_size as usize) else { return };
            let desc_at = name_end.next_multiple_of(alignment);
            let Some(desc_end) = desc_at.checked_add(desc_size as usize) else { return };
            let (Some(name), Some(desc)) = (bytes.get(name_at..name_end), bytes.get(desc_at..desc_end)) else { return };
            match (name, kind) {
                (b"GNU\0", NT_GNU_ABI_TAG) if self.abi_tag.is_none() => {
                    self.abi_tag = read_words::<4>(desc, 0, endian).map(|[os, a, b, c]| (os, a, b, c));
                }
                (b"GNU\0", NT_GNU_BUILD_ID) if desc.len() <= 64 => self.build_id = Some(desc.to_vec()),
                // _dl_process_property_note: wrongly aligned property notes are skipped.
                (b"GNU\0", NT_GNU_PROPERTY_TYPE_0)
                    if take_properties && alignment == if self.layout.is_64 { 8 } else { 4 } =>
                {
                    self.isa_needed |= property(GNU_PROPERTY_X86_ISA_1_NEEDED, desc, alignment, endian);
                    self.needs_indirect_access |= property(GNU_PROPERTY_1_NEEDED, desc, alignment, endian) & 1 != 0;
                }
                (b"FDO\0", FDO_DLOPEN) if self.dlopen_notes.len() < 64 => {
                    self.dlopen_notes.push(desc.trim_end_with(|c| c == '\0').into());
                }
                _ => {}
            }
            let next = desc_end.next_multiple_of(alignment);
            if next <= at {
                return;
            }
            at = next;
        }
    }

    /// The texts of `DT_NEEDED` in order.
    pub fn needed(&self) -> impl Iterator<Item = &BString> {
        self.requests.iter().filter(|r| r.tag == RequestTag::Needed && r.mapped).map(|r| &r.name)
    }

    /// The RPATH that counts: none when there is a RUNPATH (elf_get_dynamic_info clears `l_info[DT_RPATH]`; rule R2.2).
    pub fn effective_rpath(&self) -> Option<&BString> {
        if self.runpath.is_some() { None } else { self.rpath.as_ref() }
    }

    /// The x86-64 level (1 to 4, or above for unknown bits) that the ISA property asks for; 0 when it asks for none.
    pub fn isa_level(&self) -> u8 {
        u8::try_from(32 - self.isa_needed.leading_zeros()).unwrap_or(32)
    }
}

/// The bits of one property of a property note.
fn property(wanted: u32, desc: &[u8], alignment: usize, endian: scroll::Endian) -> u32 {
    let mut at = 0usize;
    while let Some([kind, size]) = read_words::<2>(desc, at, endian) {
        if kind == wanted && size == 4 {
            return read_words::<1>(desc, at + 8, endian).map_or(0, |[bits]| bits);
        }
        let Some(next) = (at + 8).checked_add(size as usize) else { return 0 };
        at = next.next_multiple_of(alignment);
    }
    0
}

fn half(word: u32, index: u32, endian: scroll::Endian) -> u16 {
    // The words were read in the file's byte order; in a big-endian file the first half is the upper one.
    let low_first = matches!(endian, scroll::Endian::Little);
    let shift = if (index == 0) == low_first { 0 } else { 16 };
    (word >> shift) as u16
}

fn read_words<const N: usize>(bytes: &[u8], at: usize, endian: scroll::Endian) -> Option<[u32; N]> {
    let bytes = bytes.get(at..at.checked_add(4 * N)?)?;
    let mut out = [0u32; N];
    for (word, bytes) in out.iter_mut().zip(bytes.chunks_exact(4)) {
        let bytes = bytes.try_into().ok()?;
        *word = if endian.is_little() { u32::from_le_bytes(bytes) } else { u32::from_be_bytes(bytes) };
    }
    Some(out)
}

fn words<const N: usize>(
    reader: &mut Reader<'_>,
    start: u64,
    room: u64,
    at: u64,
    endian: scroll::Endian,
) -> Option<[u32; N]> {
    let len = 4 * N as u64;
    if at.checked_add(len)? > room {
        return None;
    }
    read_words(reader.range(start.checked_add(at)?, len).ok()?, 0, endian)
}

const PT_GNU_PROPERTY: u32 = 0x6474_e553;
const DT_AUXILIARY: u64 = 0x7fff_fffd;
const DT_FILTER: u64 = 0x7fff_ffff;
const DT_RELACOUNT: u64 = 0x6fff_fff9;
const DT_RELCOUNT: u64 = 0x6fff_fffa;
const DT_AUDIT: u64 = 0x6fff_fefc;
const DT_DEPAUDIT: u64 = 0x6fff_fefb;
const DT_RELR: u64 = 36;
const DT_RELRSZ: u64 = 35;
const NT_GNU_ABI_TAG: u32 = 1;
const NT_GNU_BUILD_ID: u32 = 3;
const NT_GNU_PROPERTY_TYPE_0: u32 = 5;
const FDO_DLOPEN: u32 = 0x407c_0c0a;
const GNU_PROPERTY_X86_ISA_1_NEEDED: u32 = 0xc000_8002;
const GNU_PROPERTY_1_NEEDED: u32 = 0xb000_8000;
