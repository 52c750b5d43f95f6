//! What a file asks other files for: the symbols that its relocations name.
//!
//! A dynamic symbol that no relocation uses is never looked up (rule R6.24), so this walks `DT_RELA`, `DT_REL` and
//! `DT_JMPREL`. `DT_RELR` entries name no symbols.

use object::endian::Endianness;

use super::{Defect, Facts, Harm};
use crate::system::{File, Mapped};

/// What a loader does with the answer: which definitions it accepts depends on it (`elf_machine_type_class`,
/// sysdeps/MACHINE/dl-machine.h; rule R6.19).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Class {
    /// A call through the PLT (`JUMP_SLOT`).
    Plt,
    /// A copy of the definition's bytes into the program.
    Copy,
    /// Thread-local storage.
    Tls,
    /// Addresses in data and in the global offset table.
    Other,
}

impl Class {
    /// The name used in reports.
    pub fn name(self) -> &'static str {
        match self {
            Class::Plt => "plt",
            Class::Copy => "copy",
            Class::Tls => "tls",
            Class::Other => "data",
        }
    }

    /// Calls and thread-local storage are one class to the lookup: an undefined symbol with a value, the PLT entry of a
    /// program that stands for a function's address, does not answer them.
    pub fn is_plt(self) -> bool {
        matches!(self, Class::Plt | Class::Tls)
    }
}

/// Which table a relocation stands in: their order decides which failure is told first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// `DT_REL`.
    Rel,
    /// `DT_RELA`.
    Rela,
    /// `DT_JMPREL`: bound at the first call under lazy binding.
    Plt,
}

/// A symbol that relocations of one class name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reference {
    /// Index in the file's symbol table.
    pub symbol: u32,
    /// The class.
    pub class: Class,
    /// The table of the first such relocation.
    pub part: Part,
    /// True for thread-local storage at a fixed distance from the thread pointer (initial-exec model).
    pub is_static_tls: bool,
    /// True for an entry of the global offset table (`GLOB_DAT`), which musl can bind late too.
    pub is_got: bool,
}

/// The relocations' symbols of one file.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct References {
    /// Each pair of symbol and class once (initial-exec references apart from other thread-local ones), in the order in
    /// which glibc meets them: `DT_JMPREL` is the last table.
    pub list: Vec<Reference>,
    /// True when a relocation of the initial-exec model refers to the file's own thread-local block.
    pub own_static_tls: bool,
    /// What is damaged.
    pub defects: Vec<Defect>,
}

/// Relocation types of one machine.
struct Types {
    machine: u16,
    jump_slot: u32,
    copy: u32,
    glob_dat: &'static [u32],
    /// Types that use no symbol: RELATIVE and IRELATIVE.
    relative: &'static [u32],
    tls: &'static [(u32, u32)],
    static_tls: &'static [(u32, u32)],
}

/// From the relocation headers of each machine (elf.h of glibc 2.43).
const MACHINES: &[Types] = &[
    // x86-64: DTPMOD64, DTPOFF64, TPOFF64, TLSDESC.
    Types {
        machine: 62,
        jump_slot: 7,
        copy: 5,
        glob_dat: &[6],
        relative: &[8, 38, 37],
        tls: &[(16, 18), (36, 36)],
        static_tls: &[(18, 18)],
    },
    // aarch64.
    Types {
        machine: 183,
        jump_slot: 1026,
        copy: 1024,
        glob_dat: &[1025],
        relative: &[1027, 1032],
        tls: &[(1028, 1031)],
        static_tls: &[(1030, 1030)],
    },
    // i386: TLS_TPOFF, DTPMOD32, DTPOFF32, TPOFF32, TLS_DESC.
    Types {
        machine: 3,
        jump_slot: 7,
        copy: 5,
        glob_dat: &[6],
        relative: &[8, 42],
        tls: &[(14, 14), (35, 37), (41, 41)],
        static_tls: &[(14, 14), (37, 37)],
    },
    // arm: TLS_DESC, DTPMOD32, DTPOFF32, TPOFF32.
    Types {
        machine: 40,
        jump_slot: 22,
        copy: 20,
        glob_dat: &[21],
        relative: &[23, 160],
        tls: &[(13, 13), (17, 19)],
        static_tls: &[(19, 19)],
    },
    // riscv.
    Types {
        machine: 243,
        jump_slot: 5,
        copy: 4,
        glob_dat: &[],
        relative: &[3, 58],
        tls: &[(6, 12)],
        static_tls: &[(10, 11)],
    },
    // ppc64: every TLS type up to DTPREL16_HIGHESTA, and the later HIGH ones.
    Types {
        machine: 21,
        jump_slot: 21,
        copy: 19,
        glob_dat: &[20],
        relative: &[22, 248],
        tls: &[(67, 106), (112, 115)],
        static_tls: &[(69, 73)],
    },
    // s390x: DTPMOD, DTPOFF, TPOFF.
    Types {
        machine: 22,
        jump_slot: 11,
        copy: 9,
        glob_dat: &[10],
        relative: &[12, 61],
        tls: &[(54, 56)],
        static_tls: &[(56, 56)],
    },
    // loongarch: DTPMOD, DTPREL, TPREL, DESC.
    Types {
        machine: 258,
        jump_slot: 5,
        copy: 4,
        glob_dat: &[],
        relative: &[3, 12],
        tls: &[(6, 11), (13, 14)],
        static_tls: &[(10, 11)],
    },
];

impl Types {
    fn of(machine: u16) -> Option<&'static Types> {
        MACHINES.iter().find(|t| t.machine == machine)
    }

    fn class(&self, kind: u32) -> Class {
        if kind == self.jump_slot {
            Class::Plt
        } else if kind == self.copy {
            Class::Copy
        } else if self.tls.iter().any(|(from, to)| (*from..=*to).contains(&kind)) {
            Class::Tls
        } else {
            Class::Other
        }
    }

    fn is_static_tls(&self, kind: u32) -> bool {
        self.static_tls.iter().any(|(from, to)| (*from..=*to).contains(&kind))
    }
}

/// What was seen of a symbol so far: one bit for each class of the lookup, one for initial-exec references.
const SEEN_PLT: u8 = 1;
const SEEN_COPY: u8 = 2;
const SEEN_OTHER: u8 = 4;
const SEEN_STATIC_TLS: u8 = 8;

struct Walk<'t> {
    types: &'t Types,
    is_64: bool,
    endian: Endianness,
    /// By symbol index.
    seen: Vec<u8>,
    room: u32,
    out: References,
}

impl References {
    /// Reads the relocations of a file. `room` is how many symbols its table can hold
    /// ([`room`](super::symbols::Table::room)).
    pub fn read(file: &File, facts: &Facts, room: u32) -> References {
        let endian = if facts.layout.big_endian { Endianness::Big } else { Endianness::Little };
        let Some(types) = Types::of(facts.header.machine) else {
            let mut out = References::default();
            let machine = super::machine_name(facts.header.machine);
            out.defect(
                Harm::Incomplete,
                format!("relocations of {machine} are not known: no symbol of it is looked up"),
            );
            return out;
        };
        let mut walk =
            Walk { types, is_64: facts.layout.is_64, endian, seen: Vec::new(), room, out: References::default() };
        let d = &facts.dynamic;
        let tables = [
            (d.rel, d.rel_size, false, Part::Rel, d.rel_count),
            (d.rela, d.rela_size, true, Part::Rela, d.rela_count),
            (d.plt_relocations, d.plt_relocation_size, d.plt_relocation_kind != Some(DT_REL), Part::Plt, None),
        ];
        for (address, size, with_addend, part, relative) in tables {
            let (Some(address), Some(size)) = (address, size.filter(|n| *n > 0)) else { continue };
            let table = facts.offset_of(address).and_then(|(offset, there)| {
                if there < size {
                    let what = part.name();
                    walk.out.defect(Harm::Crash, format!("{what} reaches past the end of its segment"));
                }
                file.map(offset, size.min(there)).ok()
            });
            match table {
                Some(table) => walk.table(&table, with_addend, part, relative.unwrap_or(0)),
                None => {
                    walk.out.defect(Harm::Crash, format!("{} points outside what is mapped of the file", part.name()));
                }
            }
        }
        walk.out
    }

    fn defect(&mut self, harm: Harm, what: impl Into<String>) {
        self.defects.push(Defect { what: what.into(), harm });
    }
}

const DT_REL: u64 = 17;

impl Part {
    /// The dynamic tag.
    pub fn name(self) -> &'static str {
        match self {
            Part::Rel => "DT_REL",
            Part::Rela => "DT_RELA",
            Part::Plt => "DT_JMPREL",
        }
    }
}

impl Walk<'_> {
    /// One table. The first `relative` entries are known to name no symbol (`DT_RELACOUNT`), as the loader takes it.
    fn table(&mut self, table: &Mapped, with_addend: bool, part: Part, relative: u64) {
        let size = match (self.is_64, with_addend) {
            (true, true) => 24,
            (true, false) => 16,
            (false, true) => 12,
            (false, false) => 8,
        };
        let skip = usize::try_from(relative).unwrap_or(usize::MAX).saturating_mul(size).min(table.len());
        let mut outside = None;
        for entry in table[skip..].chunks_exact(size) {
            let (symbol, kind) = if self.is_64 {
                let info: [u8; 8] = entry[8..16].try_into().unwrap_or_default();
                let info = match self.endian {
                    Endianness::Little => u64::from_le_bytes(info),
                    Endianness::Big => u64::from_be_bytes(info),
                };
                ((info >> 32) as u32, info as u32)
            } else {
                let info: [u8; 4] = entry[4..8].try_into().unwrap_or_default();
                let info = match self.endian {
                    Endianness::Little => u32::from_le_bytes(info),
                    Endianness::Big => u32::from_be_bytes(info),
                };
                (info >> 8, info & 0xff)
            };
            if symbol == 0 {
                self.out.own_static_tls |= self.types.is_static_tls(kind);
                continue;
            }
            if kind == 0 || self.types.relative.contains(&kind) {
                continue;
            }
            if symbol >= self.room {
                outside.get_or_insert(symbol);
                continue;
            }
            self.reference(symbol, kind, part);
        }
        if let Some(symbol) = outside {
            let what = format!("{} names symbol {symbol}, which lies past the end of the symbol table", part.name());
            self.out.defect(Harm::Crash, what);
        }
        if table.was_cut() {
            self.out.defect(Harm::Incomplete, format!("the file was cut short while {} was read", part.name()));
        }
    }

    fn reference(&mut self, symbol: u32, kind: u32, part: Part) {
        let class = self.types.class(kind);
        let is_static_tls = self.types.is_static_tls(kind);
        let bit = match class {
            Class::Tls if is_static_tls => SEEN_STATIC_TLS,
            Class::Plt | Class::Tls => SEEN_PLT,
            Class::Copy => SEEN_COPY,
            Class::Other => SEEN_OTHER,
        };
        let at = symbol as usize;
        if at >= self.seen.len() {
            let wanted = (at + 1).max(self.seen.len() * 2).min(self.room as usize);
            self.seen.resize(wanted, 0);
        }
        if self.seen[at] & bit == 0 {
            self.seen[at] |= bit;
            let is_got = self.types.glob_dat.contains(&kind);
            self.out.list.push(Reference { symbol, class, part, is_static_tls, is_got });
        }
    }
}
