//! The facts a loader takes from one file, owned and small.

mod dynamic;
mod notes;
mod strings;
mod versions;

use bstr::BString;
use goblin::elf::program_header as ph;

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
    pub rela_entry_size: Option<u64>,
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
    pub relr_entry_size: Option<u64>,
    /// `DT_PLTGOT`.
    pub plt_table: Option<u64>,
    /// `DT_INIT`: address of a function.
    pub init: Option<u64>,
    /// `DT_INIT_ARRAY`.
    pub init_array: Option<u64>,
    pub init_array_size: Option<u64>,
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

/// Most bytes of all note segments together that are read, and most segments.
const MAX_NOTES: u64 = 1 << 20;
const MAX_NOTE_SEGMENTS: usize = 64;
/// Most defects of one harm that are kept.
const MAX_DEFECTS: usize = 100;
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

/// What becomes of a process that touches an address of the loaded object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Touch {
    /// Nothing.
    Fine,
    /// SIGBUS: the page is mapped from behind the end of the file.
    PastEnd,
    /// SIGSEGV: nothing is mapped there, or it may not be touched in this way.
    Unmapped,
}

/// How memory is touched: the `p_flags` of which a segment must have one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Reading: what can be run or written can be read.
    Read = 7,
    /// Running code.
    Run = 1,
}

/// Most steps of a walk over a range of addresses: a range is as long as a damaged file says.
const MAX_STEPS: usize = 64 << 10;

impl Facts {
    /// What happens when a byte of the loaded object is touched.
    pub fn touch(&self, address: u64, access: Access) -> Touch {
        let Some(segment) = self.segment_at(address).filter(|s| s.flags & access as u32 != 0) else {
            return Touch::Unmapped;
        };
        match self.memory_in(segment, address) {
            Memory::File { offset, .. } if self.is_past_end(offset) => Touch::PastEnd,
            Memory::File { .. } | Memory::Zeros => Touch::Fine,
            Memory::Nothing => Touch::Unmapped,
        }
    }

    /// The first page of a range whose bytes cannot be read one after the other: where, and what happens.
    pub fn touch_all(&self, address: u64, size: u64) -> Option<(u64, Touch)> {
        let end = address.saturating_add(size);
        let mut at = address;
        for _ in 0..MAX_STEPS {
            if at >= end {
                break;
            }
            match self.touch(at, Access::Read) {
                Touch::Fine => at = (at & !(PAGE - 1)).saturating_add(PAGE),
                bad => return Some((at, bad)),
            }
        }
        None
    }

    /// True when a page that is mapped lies past the end of the file.
    pub fn has_missing_pages(&self) -> bool {
        let last = |s: &Segment| s.offset.saturating_add(s.file_size).saturating_sub(1);
        self.segments.iter().any(|s| s.file_size > 0 && self.is_past_end(last(s)))
    }

    fn is_past_end(&self, offset: u64) -> bool {
        offset >= self.file_size.checked_next_multiple_of(PAGE).unwrap_or(u64::MAX)
    }

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
            facts.check_dynamic();
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

    /// Notes tables that lie nowhere and fields that a loader holds to a fixed value.
    fn check_dynamic(&mut self) {
        let d = self.dynamic;
        let tables = [
            ("DT_SYMTAB", d.symbol_table),
            ("DT_STRTAB", d.string_table),
            ("DT_GNU_HASH", d.gnu_hash),
            ("DT_HASH", d.hash),
            ("DT_VERSYM", d.version_symbols),
            ("DT_INIT", d.init),
            ("DT_INIT_ARRAY", d.init_array),
        ];
        for (name, address) in tables {
            if address.is_some_and(|address| !self.is_mapped(address)) {
                self.defect(Harm::Crash, format!("{name} points outside what is mapped of the file"));
            }
        }
        let [addend, symbol] = if self.layout.is_64 { [24, 24] } else { [12, 16] };
        if let Some(size) = d.rela_entry_size.filter(|size| d.rela.is_some() && *size != addend) {
            self.defect(Harm::Crash, format!("DT_RELAENT is {size} in place of {addend}"));
        }
        if let Some(size) = d.symbol_entry_size.filter(|size| *size != symbol) {
            self.defect(Harm::Odd, format!("DT_SYMENT is {size} in place of {symbol}"));
        }
        // x86-64 and aarch64 have one kind only.
        let is_kind = |kind: &u64| *kind == 7 || *kind == 17 && !matches!(self.header.machine, 62 | 183);
        if let Some(kind) = d.plt_relocation_kind.filter(|kind| !is_kind(kind)) {
            self.defect(Harm::Crash, format!("DT_PLTREL is {kind}, which is no kind of relocations here"));
        }
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
        self.segment_at(address).map_or(Memory::Nothing, |s| self.memory_in(s, address))
    }

    /// The segment whose pages are seen at an address: the last one that has it.
    fn segment_at(&self, address: u64) -> Option<&Segment> {
        self.segments.iter().rev().find(|s| {
            let size = s.memory_size.max(s.file_size);
            let Some(memory_end) = s.address.checked_add(size) else { return false };
            let mapped_end = memory_end.checked_next_multiple_of(PAGE).unwrap_or(u64::MAX);
            (s.address & !(PAGE - 1)..mapped_end).contains(&address)
        })
    }

    /// What is seen at an address that lies in the pages of a segment.
    fn memory_in(&self, s: &Segment, address: u64) -> Memory {
        let data_end = s.address.saturating_add(s.file_size);
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
        match offset {
            // No file has bytes behind the last offset there is.
            Some(offset) if offset < u64::MAX => {
                Memory::File { offset, room: (file_end - address).min(u64::MAX - offset) }
            }
            _ => Memory::Nothing,
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

fn read_words<const N: usize>(bytes: &[u8], at: usize, endian: scroll::Endian) -> Option<[u32; N]> {
    let bytes = bytes.get(at..at.checked_add(4 * N)?)?;
    let mut out = [0u32; N];
    for (word, bytes) in out.iter_mut().zip(bytes.chunks_exact(4)) {
        let bytes = bytes.try_into().ok()?;
        *word = if endian.is_little() { u32::from_le_bytes(bytes) } else { u32::from_be_bytes(bytes) };
    }
    Some(out)
}

const PT_GNU_PROPERTY: u32 = 0x6474_e553;
