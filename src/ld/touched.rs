//! What a loader reads, writes and runs of a file before the program does anything, and what a damaged file makes of it:
//! a page past the end of the file is SIGBUS, memory that is not there SIGSEGV, and some fields are asserted.

use bstr::BStr;

use super::dialect::{Dialect, DynamicCondition, Family};
use super::store::Symbols;
use super::{ImageId, LoadFailure, Process, Role};
use crate::elf::{Access, Facts, Segment, Touch, file_type};

/// `e_machine` of machines that have relocations with addends only (`ELF_MACHINE_NO_REL`): x86-64 and aarch64.
const ONLY_WITH_ADDEND: [u16; 2] = [62, 183];
/// `DT_RELA` as the value of `DT_PLTREL`.
const KIND_RELA: u64 = 7;
/// Zeros that no machine gives one mapping, in bytes: the kernel refuses what is more than all of its memory, and the limit
/// of the address space is not far.
const TOO_MANY_ZEROS: u64 = 1 << 44;

/// The failure that touching an address brings.
fn signal(path: &BStr, touch: Touch, what: &str) -> Option<LoadFailure> {
    match touch {
        Touch::Fine => None,
        Touch::PastEnd => Some(LoadFailure::killed(path, "SIGBUS", "the file is cut short")),
        Touch::Unmapped => Some(LoadFailure::killed(path, "SIGSEGV", what)),
    }
}

fn read(facts: &Facts, path: &BStr, address: Option<u64>, name: &str) -> Option<LoadFailure> {
    signal(path, facts.touch(address?, Access::Read), &format!("{name} points at memory that is not there"))
}

/// True when the page in which the uninitialised data of a segment begins is filled with zeros and lies past the end of the
/// file.
fn fills_behind(facts: &Facts, s: &Segment, page: u64) -> bool {
    let end = facts.file_size.checked_next_multiple_of(page).unwrap_or(u64::MAX);
    let is_filled = s.memory_size > s.file_size && s.address.wrapping_add(s.file_size) & (page - 1) != 0;
    is_filled && s.offset.saturating_add(s.file_size) & !(page - 1) >= end
}

/// How the kernel ends a program that it has begun to map (`load_elf_binary` and `elf_load`, fs/binfmt_elf.c): there is no
/// way back then, and whatever fails is SIGSEGV.
pub(super) fn kernel(facts: &Facts, path: &BStr, page: u64) -> Option<LoadFailure> {
    let killed = |why: &str| Some(LoadFailure::killed(path, "SIGSEGV", why));
    let space = facts.layout.address_space();
    if facts.segments.is_empty() {
        return killed("it has no segment that could be mapped");
    }
    for s in &facts.segments {
        if s.address.wrapping_sub(s.offset) & (page - 1) != 0 && s.file_size > 0 {
            return killed("the kernel cannot map a segment whose address and offset do not fit each other");
        }
        let is_too_big = |n: u64| n > space;
        if s.file_size > s.memory_size
            || is_too_big(s.memory_size)
            || is_too_big(s.address.saturating_add(s.memory_size))
            || s.memory_size - s.file_size > TOO_MANY_ZEROS
        {
            return killed("the kernel cannot map a segment of such a size");
        }
        // A page that may not be written is not filled (older kernels do not fill it either, or do not look whether
        // they could).
        if s.flags & 2 != 0 && fills_behind(facts, s, page) {
            return killed("the file is cut short");
        }
    }
    None
}

/// `_dl_map_segments`: mapping and the zeros behind the file's bytes.
pub(super) fn segments(
    facts: &Facts,
    asked: &BStr,
    path: &BStr,
    dialect: &Dialect,
    page: u64,
) -> Result<(), LoadFailure> {
    let fail = |text: &str| Err(LoadFailure::new(asked.to_owned(), text, 0));
    let page_of = |address: u64| address & !(page - 1);
    let page_end = |address: u64| page_of(address.wrapping_add(page - 1));
    let (Some(first), Some(last)) = (facts.segments.first(), facts.segments.last()) else { return Ok(()) };
    // One map from the first segment's first page to the last one's end, in which a hole is cut behind the first segment
    // when the segments do not follow one another.
    let space = facts.layout.address_space();
    let is_shared = facts.header.file_type == file_type::DYN;
    let length = last.address.wrapping_add(last.memory_size).wrapping_sub(page_of(first.address));
    if is_shared && (length == 0 || length > space) {
        return fail("failed to map segment from shared object");
    }
    let map_end = |s: &Segment| page_end(s.address.wrapping_add(s.file_size));
    let holes = facts.segments.windows(2).any(|pair| map_end(&pair[0]) != page_of(pair[1].address));
    if is_shared && holes && page_of(last.address) < map_end(first) {
        return fail(dialect.overlap_text());
    }
    for (n, s) in facts.segments.iter().enumerate() {
        if (n > 0 || !is_shared) && map_end(s).saturating_sub(page_of(s.address)) > space {
            return fail("failed to map segment from shared object");
        }
        if fills_behind(facts, s, page) {
            return Err(LoadFailure::killed(path, "SIGBUS", "the file is cut short"));
        }
        let zeros = s.memory_size.saturating_sub(s.file_size);
        if zeros > TOO_MANY_ZEROS {
            return fail("cannot map zero-fill pages");
        }
    }
    Ok(())
}

/// `elf_get_dynamic_info`: the array itself and what is asserted of it. `of_program` for the program that the kernel
/// started.
pub(super) fn dynamic_array(
    facts: &Facts,
    path: &BStr,
    dialect: &Dialect,
    of_program: bool,
) -> Result<(), LoadFailure> {
    if !facts.has_dynamic {
        return Ok(());
    }
    if let Some(at) = facts.dynamic_at
        && let Some(failure) = signal(path, facts.touch(at, Access::Read), "its dynamic array is not mapped")
    {
        return Err(failure);
    }
    if !ONLY_WITH_ADDEND.contains(&facts.header.machine) {
        return Ok(());
    }
    let d = &facts.dynamic;
    let entry = if facts.layout.is_64 { 24 } else { 12 };
    let assert = |condition| Err(LoadFailure::new("", dialect.dynamic_array_message(condition, of_program), 0));
    if d.plt_relocation_kind.is_some_and(|kind| kind != KIND_RELA) {
        return assert(DynamicCondition::PltRelocationKind);
    }
    match (d.rela, d.rela_entry_size) {
        (Some(_), None) => Err(LoadFailure::killed(path, "SIGSEGV", "it has DT_RELA and no DT_RELAENT")),
        (Some(_), Some(size)) if size != entry => assert(DynamicCondition::RelaEntrySize),
        _ => Ok(()),
    }
}

/// `_dl_setup_hash`, and the tables that every load reads.
pub(super) fn tables(facts: &Facts, path: &BStr) -> Result<(), LoadFailure> {
    let d = &facts.dynamic;
    let hash = match d.gnu_hash {
        Some(at) => read(facts, path, Some(at), "DT_GNU_HASH"),
        None => read(facts, path, d.hash, "DT_HASH"),
    };
    // Where these are not mapped they may never be read; where they lie past the end of the file more is missing.
    let cut = [d.string_table, d.symbol_table].into_iter().flatten();
    let mut cut = cut.filter(|at| facts.touch(*at, Access::Read) == Touch::PastEnd);
    let cut = || cut.next().and_then(|at| read(facts, path, Some(at), ""));
    hash.or_else(cut).map_or(Ok(()), Err)
}

/// `_dl_check_map_versions`: the tables that it walks.
pub(super) fn version_tables(facts: &Facts, path: &BStr) -> Option<LoadFailure> {
    let d = &facts.dynamic;
    let defined = || read(facts, path, d.version_definitions, "DT_VERDEF");
    read(facts, path, d.version_needs, "DT_VERNEED").or_else(defined)
}

impl Process {
    /// What ends the process before the first relocation of an image is done: a table that is not there, a page to write
    /// to that is not there (`_dl_relocate_object`, elf/dl-reloc.c). `late` when functions are bound at their first call.
    pub(crate) fn dies_before_relocation(&self, id: ImageId, late: bool) -> Option<LoadFailure> {
        let facts = self.relocated(id)?;
        let path = self.label_of(id);
        let path = path.as_ref();
        let d = &facts.dynamic;
        let killed = |why: &str| Some(LoadFailure::killed(path, "SIGSEGV", why));
        // Taken from the array whether there is anything to relocate or not: seen on 2.31 to 2.43.
        let Some(symbol_table) = d.symbol_table else { return killed("it has no DT_SYMTAB") };
        if d.rela.is_some() && d.rela_size.is_none() {
            return killed("it has DT_RELA and no DT_RELASZ");
        }
        let is_plt = d.plt_relocation_kind == Some(KIND_RELA);
        if is_plt && (d.plt_relocations.is_none() || d.plt_relocation_size.is_none()) {
            return killed("it has DT_PLTREL and not both of DT_JMPREL and DT_PLTRELSZ");
        }
        if late && d.plt_relocations.is_some() {
            // The loader writes itself into the second and third word (elf_machine_runtime_setup).
            let failure = read(facts, path, d.plt_table, "DT_PLTGOT");
            if failure.is_some() {
                return failure;
            }
        }
        let of = |at: Option<u64>, size: Option<u64>| at.filter(|_| size != Some(0));
        let starts = [
            (of(d.rela, d.rela_size), "DT_RELA"),
            (of(d.plt_relocations, d.plt_relocation_size).filter(|_| is_plt), "DT_JMPREL"),
            (of(d.relr, d.relr_size), "DT_RELR"),
        ];
        if let Some(failure) = starts.into_iter().find_map(|(at, name)| read(facts, path, at, name)) {
            return Some(failure);
        }
        let references = self.symbols(id).map(|s: &Symbols| &s.references);
        let reads_symbols = match references {
            Some(references) => references.reads_symbols(late),
            // Where there is no symbol table at all the relocations were not read: those at the front name no symbol.
            None => {
                let entry = d.rela_entry_size.unwrap_or(0);
                let relative = d.rela_count.unwrap_or(0).saturating_mul(entry);
                let plt = d.plt_relocation_size.filter(|_| !late && is_plt);
                d.rela.is_some() && d.rela_size > Some(relative) || plt > Some(0)
            }
        };
        if reads_symbols {
            if d.string_table.is_none() {
                return killed("it has no DT_STRTAB");
            }
            let tables =
                [(Some(symbol_table), "DT_SYMTAB"), (d.string_table, "DT_STRTAB"), (d.version_symbols, "DT_VERSYM")];
            if let Some(failure) = tables.into_iter().find_map(|(at, name)| read(facts, path, at, name)) {
                return Some(failure);
            }
        }
        references
            .is_some_and(|r| r.writes_past_end)
            .then(|| LoadFailure::killed(path, "SIGBUS", "the file is cut short"))
    }

    /// What ends the process when all relocations of an image that are there are done: its tables go on where nothing is.
    pub(crate) fn dies_after_relocation(&self, id: ImageId) -> Option<LoadFailure> {
        let facts = self.relocated(id)?;
        let d = &facts.dynamic;
        let tables = [(d.rela, d.rela_size), (d.plt_relocations, d.plt_relocation_size)];
        let (_, touch) = tables.into_iter().find_map(|(at, size)| facts.touch_all(at?, size?))?;
        signal(self.label_of(id).as_ref(), touch, "its relocations go on where nothing is mapped")
    }

    /// What ends the process when it is about to run what it loaded: initialisers of libraries in their order, then the
    /// program's (which the C library calls since 2.34), then its entry point.
    pub(crate) fn dies_at_first_code(&self, order: &[ImageId]) -> Option<LoadFailure> {
        let libraries = order.iter().filter(|id| self.image(**id).role == Role::Library);
        let mut failure = libraries.filter_map(|id| self.initialisers(*id)).next();
        if failure.is_none() && order.contains(&ImageId(0)) {
            let facts = self.relocated(ImageId(0))?;
            failure = entry_point(facts, self.label_of(ImageId(0)).as_ref());
            let has_libc = self.images.iter().any(|i| i.soname().is_some_and(|s| s == "libc.so.6"));
            if has_libc && self.dialect().initialises_program_by_tags() {
                failure = failure.or_else(|| self.initialisers(ImageId(0)));
            }
        }
        failure
    }

    /// `call_init`, elf/dl-init.c.
    fn initialisers(&self, id: ImageId) -> Option<LoadFailure> {
        let facts = self.relocated(id)?;
        let path = self.label_of(id);
        let path = path.as_ref();
        let d = &facts.dynamic;
        if let Some(init) = d.init {
            let failure = signal(path, facts.touch(init, Access::Run), "DT_INIT points at no code");
            if failure.is_some() {
                return failure;
            }
        }
        match (d.init_array, d.init_array_size) {
            (Some(_), None) => {
                Some(LoadFailure::killed(path, "SIGSEGV", "it has DT_INIT_ARRAY and no DT_INIT_ARRAYSZ"))
            }
            (Some(at), Some(size)) if size >= 8 => read(facts, path, Some(at), "DT_INIT_ARRAY"),
            _ => None,
        }
    }

    /// The facts of an image that glibc relocates.
    fn relocated(&self, id: ImageId) -> Option<&Facts> {
        let image = self.image(id);
        let is_glibc = self.dialect().family == Family::Glibc;
        image.facts().filter(|f| is_glibc && f.has_dynamic && image.role != Role::Loader)
    }
}

/// What ends a program at its first instruction.
pub(super) fn entry_point(facts: &Facts, path: &BStr) -> Option<LoadFailure> {
    let is_program = matches!(facts.header.file_type, file_type::DYN | file_type::EXEC);
    let touch = facts.touch(facts.header.entry, Access::Run);
    signal(path, touch, "its entry point is no code").filter(|_| is_program)
}
