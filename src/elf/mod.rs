//! What does this file say to a loader? Facts, versions, notes, strings that look like library names.
//!
//! Everything is read from the program headers and the dynamic array, as a loader reads it; section headers are never
//! trusted for what the loader takes from segments (stripped files have none). A file gives a value plus
//! [`Defect`]s, not all or nothing: one damaged table does not hide the others.
//!
//! This room never touches the disk or the environment: bytes come through [`crate::system::File`].

pub mod facts;
pub mod literals;
pub mod ranges;
pub mod reader;
pub mod references;
pub mod symbols;

pub use facts::{
    Access, Defect, Dynamic, Facts, Harm, Request, RequestTag, Segment, ThreadLocal, Touch, VersionDefinition,
    VersionNeed, VersionNeedFile,
};
pub use reader::{Reader, Text};

/// ELF class and byte order: how a loader reads a file. A loader reads every file in its own layout, whatever the
/// file's `e_ident` says.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Layout {
    /// True for ELFCLASS64.
    pub is_64: bool,
    /// True for ELFDATA2MSB.
    pub big_endian: bool,
}

impl Layout {
    /// 64-bit, little-endian.
    pub const LITTLE_64: Layout = Layout { is_64: true, big_endian: false };

    /// The layout that `e_ident` states, when both bytes hold known values and the magic is there.
    pub fn of_ident(ident: &[u8]) -> Option<Layout> {
        if ident.len() < 16 || &ident[..4] != b"\x7fELF" {
            return None;
        }
        let is_64 = match ident[4] {
            1 => false,
            2 => true,
            _ => return None,
        };
        let big_endian = match ident[5] {
            1 => false,
            2 => true,
            _ => return None,
        };
        Some(Layout { is_64, big_endian })
    }

    /// The byte order as the tables of `object` take it.
    pub(crate) fn endian(self) -> object::Endianness {
        if self.big_endian { object::Endianness::Big } else { object::Endianness::Little }
    }

    /// Size of the ELF header in bytes.
    pub fn header_size(self) -> usize {
        if self.is_64 { 64 } else { 52 }
    }

    /// Most bytes of address space that a process of this class can have: 47 bits on x86-64; machines with more give it
    /// only to those who ask.
    pub fn address_space(self) -> u64 {
        if self.is_64 { 1 << 47 } else { 1 << 32 }
    }

    /// Size of one program header in bytes.
    pub fn program_header_size(self) -> usize {
        if self.is_64 { 56 } else { 32 }
    }

    pub(crate) fn context(self) -> goblin::container::Ctx {
        use goblin::container::{Container, Ctx, Endian};
        Ctx::new(
            if self.is_64 { Container::Big } else { Container::Little },
            if self.big_endian { Endian::Big } else { Endian::Little },
        )
    }
}

/// The ELF header, fields as numbers, nothing checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// The 16 identification bytes.
    pub ident: [u8; 16],
    /// `e_type`.
    pub file_type: u16,
    /// `e_machine`.
    pub machine: u16,
    /// `e_version`.
    pub version: u32,
    /// `e_flags`.
    pub flags: u32,
    /// `e_entry`.
    pub entry: u64,
    /// `e_phoff`.
    pub program_headers_at: u64,
    /// `e_phentsize`.
    pub program_header_size: u16,
    /// `e_phnum`.
    pub program_header_count: u16,
    /// `e_shoff`.
    pub section_headers_at: u64,
    /// `e_shentsize`.
    pub section_header_size: u16,
    /// `e_shnum`.
    pub section_header_count: u16,
    /// `e_shstrndx`.
    pub section_names_index: u16,
}

impl Header {
    /// Reads the header fields in a given layout, whatever `e_ident` says; `None` when there are fewer bytes than a header
    /// has.
    pub fn parse(bytes: &[u8], layout: Layout) -> Option<Header> {
        use object::elf::{FileHeader32, FileHeader64};
        use object::endian::Endianness;
        use object::pod::from_bytes;
        let e = layout.endian();
        macro_rules! read {
            ($header:ty) => {{
                let (h, _) = from_bytes::<$header>(bytes).ok()?;
                Header {
                    ident: bytes.get(..16)?.try_into().ok()?,
                    file_type: h.e_type.get(e).0,
                    machine: h.e_machine.get(e).0,
                    version: h.e_version.get(e),
                    flags: h.e_flags.get(e).0,
                    entry: h.e_entry.get(e).into(),
                    program_headers_at: h.e_phoff.get(e).into(),
                    program_header_size: h.e_phentsize.get(e),
                    program_header_count: h.e_phnum.get(e),
                    section_headers_at: h.e_shoff.get(e).into(),
                    section_header_size: h.e_shentsize.get(e),
                    section_header_count: h.e_shnum.get(e),
                    section_names_index: h.e_shstrndx.get(e).0,
                }
            }};
        }
        Some(if layout.is_64 { read!(FileHeader64<Endianness>) } else { read!(FileHeader32<Endianness>) })
    }
}

/// `e_type` values.
pub mod file_type {
    /// Relocatable object.
    pub const REL: u16 = 1;
    /// Executable at fixed addresses.
    pub const EXEC: u16 = 2;
    /// Shared object or position-independent executable.
    pub const DYN: u16 = 3;
}

/// `DT_FLAGS_1` bits that matter to a loader.
pub mod flags_1 {
    /// Bind everything at load.
    pub const NOW: u64 = 0x1;
    /// Not to be unloaded.
    pub const NODELETE: u64 = 0x8;
    /// Refuses `dlopen`.
    pub const NOOPEN: u64 = 0x40;
    /// The system directories are not searched.
    pub const NODEFLIB: u64 = 0x800;
    /// A position-independent executable.
    pub const PIE: u64 = 0x0800_0000;
}

/// `DT_FLAGS` bits that matter to a loader.
pub mod flags {
    /// Text relocations.
    pub const TEXTREL: u64 = 0x4;
    /// Own symbols first.
    pub const SYMBOLIC: u64 = 0x2;
    /// Bind everything at load.
    pub const BIND_NOW: u64 = 0x8;
    /// Uses static TLS.
    pub const STATIC_TLS: u64 = 0x10;
}

/// Common name of an `e_machine` value.
pub fn machine_name(machine: u16) -> String {
    match machine {
        3 => "i386".into(),
        8 => "mips".into(),
        20 => "powerpc".into(),
        21 => "powerpc64".into(),
        22 => "s390x".into(),
        40 => "arm".into(),
        62 => "x86-64".into(),
        183 => "aarch64".into(),
        243 => "riscv".into(),
        258 => "loongarch".into(),
        n => format!("machine {n}"),
    }
}
