//! Is this candidate usable? The checks of glibc's `open_verify` (rule R3.5) and `_dl_map_object_from_fd` (rule R3.6).

use bstr::{BStr, BString};

use super::{Dialect, LoadFailure, Object, Verdict, touched};
use crate::elf::{Header, Layout, file_type, flags_1};
use crate::system::{Errno, Host, Kind};

/// How a candidate's header was judged.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Check {
    /// Usable: this file wins.
    Usable,
    /// Not usable, the search goes on (verdict says why).
    Skip(Verdict),
    /// The load ends here: text and errno.
    Fatal(&'static str, i32),
}

/// The error with which the kernel refuses to start a program (`load_elf_binary`, fs/binfmt_elf.c), before any loader
/// takes part. It looks at less than the loader does: neither at the identification behind the magic nor at the
/// version.
pub fn kernel(object: &Object, dialect: &Dialect) -> Option<Errno> {
    let layout = dialect.layout;
    if object.meta.kind != Kind::File {
        return Some(Errno::EACCES);
    }
    let head = match &object.head {
        Ok(head) => head,
        Err(errno) => return Some(*errno),
    };
    if !head.starts_with(b"\x7fELF") {
        return Some(Errno::ENOEXEC);
    }
    let Some(h) = object.header(layout) else { return Some(Errno::ENOEXEC) };
    // What is written for the other class is judged as such; see `header`.
    let class = if layout.is_64 { 2 } else { 1 };
    if h.ident[4] != class {
        return None;
    }
    let is_of_a_kind = matches!(h.file_type, file_type::DYN | file_type::EXEC);
    let startable = is_of_a_kind && has_what_the_kernel_maps(&h, object, dialect);
    if startable { object.facts().and_then(|f| f.interpreter_error) } else { Some(Errno::ENOEXEC) }
}

/// What the kernel asks of a program and of its interpreter alike: the machine, and program headers that lie in the file
/// (`load_elf_phdrs`, fs/binfmt_elf.c).
fn has_what_the_kernel_maps(h: &Header, object: &Object, dialect: &Dialect) -> bool {
    let (size, count) = (dialect.layout.program_header_size(), usize::from(h.program_header_count));
    let table = (size * count) as u64;
    h.machine == dialect.machine
        && usize::from(h.program_header_size) == size
        && (1..=65536 / size).contains(&count)
        && h.program_headers_at.checked_add(table).is_some_and(|end| end <= object.meta.size)
}

/// The error with which the kernel refuses to start a program because of the file that its `PT_INTERP` names
/// (`load_elf_binary`).
pub fn interpreter(object: &Object, dialect: &Dialect) -> Option<Errno> {
    let layout = dialect.layout;
    let head = match &object.head {
        Ok(head) => head,
        Err(errno) => return Some(*errno),
    };
    if head.len() < layout.header_size() {
        return Some(Errno::EIO);
    }
    let h = object.header(layout)?;
    let is_good = head.starts_with(b"\x7fELF") && has_what_the_kernel_maps(&h, object, dialect);
    if is_good { None } else { Some(Errno::ELIBBAD) }
}

/// The checks of `open_verify`, in its order.
pub fn header(object: &Object, dialect: &Dialect, host: &Host) -> Check {
    let layout = dialect.layout;
    let head = match &object.head {
        Ok(head) => head,
        Err(Errno::EAGAIN) => return Check::Fatal(super::WAITS, 0),
        Err(errno) => return Check::Fatal("cannot read file data", errno.0),
    };
    if head.len() < layout.header_size() {
        return Check::Fatal("file too short", 0);
    }
    let Some(h) = object.header(layout) else { return Check::Fatal("file too short", 0) };
    let ident = &h.ident;
    // The identification is first compared as a whole, then piece by piece to name what differs.
    if &ident[..4] != b"\x7fELF" {
        return Check::Fatal("invalid ELF header", 0);
    }
    if ident[4] != if layout.is_64 { 2 } else { 1 } {
        return Check::Skip(Verdict::WrongClass);
    }
    // Once something in the identification differs, a foreign e_machine (read in the loader's own byte order) is the
    // first thing that is looked for.
    let abi_limit = if ident[7] == 3 { dialect.gnu_abi_limit() } else { 1 };
    let as_expected = ident[5] == if layout.big_endian { 2 } else { 1 }
        && ident[6] == 1
        && matches!(ident[7], 0 | 3)
        && ident[8] < abi_limit
        && ident[9..16].iter().all(|b| *b == 0);
    if !as_expected && h.machine != dialect.machine {
        return Check::Skip(Verdict::WrongMachine);
    }
    if ident[5] != if layout.big_endian { 2 } else { 1 } {
        let text = if layout.big_endian {
            "ELF file data encoding not big-endian"
        } else {
            "ELF file data encoding not little-endian"
        };
        return Check::Fatal(text, 0);
    }
    if ident[6] != 1 {
        return Check::Fatal("ELF file version ident does not match current one", 0);
    }
    if ident[7] != 0 && ident[7] != 3 {
        return Check::Fatal("ELF file OS ABI invalid", 0);
    }
    // valid_elf_osabi / valid_elf_abiversion: SYSV only 0, GNU below LIBC_ABI_MAX.
    if ident[8] >= abi_limit {
        return Check::Fatal("ELF file ABI version invalid", 0);
    }
    if ident[9..16].iter().any(|b| *b != 0) {
        return Check::Fatal("nonzero padding in e_ident", 0);
    }
    if h.version != 1 {
        return Check::Fatal("ELF file version does not match current one", 0);
    }
    if h.machine != dialect.machine {
        return Check::Skip(Verdict::WrongMachine);
    }
    if h.file_type != file_type::DYN && h.file_type != file_type::EXEC {
        return Check::Fatal("only ET_DYN and ET_EXEC can be loaded", 0);
    }
    if usize::from(h.program_header_size) != layout.program_header_size() {
        return Check::Fatal("ELF file's phentsize not the expected size", 0);
    }
    let table = u64::from(h.program_header_count) * u64::from(h.program_header_size);
    match h.program_headers_at.checked_add(table) {
        Some(end) if end <= object.meta.size => {}
        // No offset of a file is negative.
        Some(_) if i64::try_from(h.program_headers_at).is_err() => {
            return Check::Fatal("cannot read file data", Errno::EINVAL.0);
        }
        Some(_) => return Check::Fatal("cannot read file data", 0),
        // The sum overflows and seems to lie in what is read already: program headers are what stands in front of that in
        // memory, and there is no segment among them.
        None => {}
    }
    if dialect.checks_kernel_note()
        && let Some((os, major, minor, patch)) = object.facts().and_then(|f| f.abi_tag)
    {
        let assumed = assumed_kernel(host);
        if os != 0 || (major, minor, patch) > assumed {
            return Check::Skip(Verdict::NeedsNewerKernel);
        }
    }
    Check::Usable
}

/// The kernel version that counts: `LD_ASSUME_KERNEL` can only lower it (rule R4.20).
pub(crate) fn assumed_kernel(host: &Host) -> (u32, u32, u32) {
    match host.env.get("LD_ASSUME_KERNEL").map(|v| crate::system::host::parse_release(v)) {
        Some(v) if v != (0, 0, 0) && v < host.kernel => v,
        _ => host.kernel,
    }
}

/// How an object is being mapped.
#[derive(Clone, Copy, Debug)]
pub struct Mapping {
    /// Under `dlopen` (also as a dependency of what it opens).
    pub dlopen: bool,
    /// As the main program by the loader run as a program.
    pub as_program: bool,
    /// True when the stack is executable already.
    pub stack_is_executable: bool,
}

/// The checks of `_dl_map_object_from_fd`, in its order. `asked` is the name in the message, `path` the file's.
pub fn map(
    object: &Object,
    asked: &BStr,
    path: &BStr,
    dialect: &Dialect,
    host: &Host,
    how: Mapping,
) -> Result<(), LoadFailure> {
    let fail = |text: &str, errno: i32| Err(LoadFailure::new(asked.to_owned(), BString::from(text), errno));
    let Some(facts) = object.facts() else { return fail("object file has no loadable segments", 0) };
    let page = host.page_size.max(1);
    for s in &facts.segments {
        if dialect.strict_alignment() {
            if s.align & (page - 1) != 0 {
                return fail("ELF load command alignment not page-aligned", 0);
            }
            if s.address.wrapping_sub(s.offset) & s.align.wrapping_sub(1) != 0 {
                return fail("ELF load command address/offset not properly aligned", 0);
            }
        } else if s.address.wrapping_sub(s.offset) & (page - 1) != 0 {
            return fail("ELF load command address/offset not page-aligned", 0);
        }
    }
    if facts.segments.is_empty() {
        return fail("object file has no loadable segments", 0);
    }
    if facts.header.file_type == file_type::EXEC && !how.as_program {
        return fail("cannot dynamically load executable", 0);
    }
    let is_shared = facts.header.file_type == file_type::DYN;
    if facts.empty_dynamic && dialect.refuses_empty_dynamic() || !facts.has_dynamic && is_shared {
        return fail("object file has no dynamic section", 0);
    }
    touched::segments(facts, asked, path, dialect, page)?;
    touched::dynamic_array(facts, path, dialect, false)?;
    if facts.flags_1 & flags_1::PIE != 0 && !how.as_program && dialect.refuses_pie() {
        return fail("cannot dynamically load position-independent executable", 0);
    }
    if facts.flags_1 & flags_1::NOOPEN != 0 && how.dlopen {
        return fail("shared object cannot be dlopen()ed", 0);
    }
    let wants_stack = match facts.stack_flags {
        Some(flags) => flags & 1 != 0,
        None => dialect.stack_is_executable_by_default(),
    };
    let in_dlopen = how.dlopen && !how.stack_is_executable && dialect.refuses_executable_stack_in_dlopen(host);
    if wants_stack && !how.as_program && (in_dlopen || dialect.forbids_executable_stack(host)) {
        return fail("cannot enable executable stack as shared object requires", Errno::EINVAL.0);
    }
    if dialect.checks_isa_level() && facts.isa_needed != 0 {
        let have = (1u32 << host.cpu.level.min(31)) - 1;
        if facts.isa_needed & !have != 0 {
            return Err(LoadFailure::new(path.to_owned(), "CPU ISA level is lower than required", 0));
        }
    }
    touched::tables(facts, path)
}

/// What a file of a foreign layout is, in words for a message.
pub fn describe(head: &[u8]) -> &'static str {
    match Layout::of_ident(head) {
        Some(l) if l.is_64 => "a 64-bit ELF file",
        Some(_) => "a 32-bit ELF file",
        None if head.starts_with(b"version https://git-lfs") => "a git-lfs pointer",
        None if head.starts_with(b"#!") => "a script",
        None if head.starts_with(b"/* GNU ld script") || head.starts_with(b"INPUT") || head.starts_with(b"GROUP") => {
            "a linker script"
        }
        None if head.is_empty() => "an empty file",
        None => "not an ELF file",
    }
}
