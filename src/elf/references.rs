//! What a file asks other files for: the symbols that its relocations name.
//!
//! A dynamic symbol that no relocation uses is never looked up (rule R6.24), so this walks `DT_RELA`, `DT_REL` and
//! `DT_JMPREL`. `DT_RELR` entries name no symbols.

use object::endian::Endianness;

use super::ranges::{Range, Ranges};
use super::{Defect, Facts, Harm};

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
    /// True when only `DT_JMPREL` asks, so that lazy binding can wait for the first call.
    pub is_late: bool,
    /// True when thread-local storage at a fixed distance from the thread pointer is wanted (initial-exec model).
    pub is_static_tls: bool,
    /// True when only entries of the global offset table ask (`GLOB_DAT`), which musl can bind late too.
    pub is_got: bool,
}

/// The relocations' symbols of one file.
#[derive(Default)]
pub struct References {
    /// By symbol index: what relocations ask of it ([`JUMP_SLOT`] and the others).
    asked: Vec<u8>,
    count: usize,
    tables: Vec<RelocationTable>,
    /// Which of [`RELOCATORS`] find types of relocations that they do not know.
    unknown: [bool; 3],
    /// True when a relocation of the initial-exec model refers to the file's own thread-local block.
    pub own_static_tls: bool,
    /// What is damaged.
    pub defects: Vec<Defect>,
}

/// One table of relocations, the part of it that can name symbols.
struct RelocationTable {
    bytes: Range,
    with_addend: bool,
    part: Part,
    types: &'static Types,
    is_64: bool,
    endian: Endianness,
    /// What the types below 256 ask; 0 for those that use no symbol.
    bits: [u8; 256],
}

/// Who relocates: loaders know different types of relocations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Relocator {
    /// glibc, which comes to `DT_JMPREL` last and may put it off.
    Glibc {
        /// True when functions are bound at the first call.
        late: bool,
    },
    /// musl, which comes to `DT_JMPREL` first.
    Musl,
}

impl Relocator {
    /// True when `DT_JMPREL` is put off.
    pub fn puts_off(self) -> bool {
        self == Relocator::Glibc { late: true }
    }
}

const RELOCATORS: [Relocator; 3] = [Relocator::Glibc { late: false }, Relocator::Glibc { late: true }, Relocator::Musl];

/// One relocation, as far as it asks for a symbol or cannot be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Relocation {
    /// Index in the file's symbol table.
    pub symbol: u32,
    /// What the symbol is looked up for; `None` when it is not.
    pub class: Option<Class>,
    /// The type, when the loader does not know it.
    pub unknown: Option<u32>,
    /// True in `DT_JMPREL`.
    pub is_plt: bool,
}

/// Types that the loaders know. Others end a load (`_dl_reloc_bad_type`, elf/dl-reloc.c of glibc; `do_relocs`,
/// ldso/dynlink.c of musl).
struct Known {
    /// `elf_machine_rela`, sysdeps/MACHINE/dl-machine.h.
    glibc: &'static [u32],
    /// `elf_machine_lazy_rel`: in `DT_JMPREL` under lazy binding.
    lazy_glibc: &'static [u32],
    /// arch/MACHINE/reloc.h.
    musl: &'static [u32],
}

/// What is known of x86-64. Of other machines nothing is: all their types count as known.
const KNOWN_TO_X86_64: Known = Known {
    glibc: &[0, 1, 2, 5, 6, 7, 8, 10, 16, 17, 18, 32, 33, 36, 37, 38],
    lazy_glibc: &[7, 36, 37],
    musl: &[0, 1, 2, 5, 6, 7, 8, 16, 17, 18, 36],
};

impl Known {
    fn is_unknown(&self, kind: u32, part: Part, to: Relocator) -> bool {
        let known = match to {
            Relocator::Glibc { late: true } if part == Part::Plt => self.lazy_glibc,
            Relocator::Glibc { .. } => self.glibc,
            Relocator::Musl => self.musl,
        };
        !known.contains(&kind)
    }

    fn is_remarkable(&self, kind: u32, part: Part) -> bool {
        RELOCATORS.iter().any(|to| self.is_unknown(kind, part, *to))
    }
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

    fn known(&self) -> Option<&'static Known> {
        (self.machine == 62).then_some(&KNOWN_TO_X86_64)
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

    /// What a type asks of its symbol; 0 when it uses none and every loader knows it.
    fn bit(&self, kind: u32, part: Part) -> u8 {
        let remark = if self.known().is_some_and(|k| k.is_remarkable(kind, part)) { REMARKABLE } else { 0 };
        remark | self.asked(kind, part)
    }

    fn asked(&self, kind: u32, part: Part) -> u8 {
        match self.class(kind) {
            _ if kind == 0 || self.relative.contains(&kind) => 0,
            Class::Plt if part == Part::Plt => JUMP_SLOT,
            Class::Plt => EARLY_JUMP_SLOT,
            Class::Tls if self.is_static_tls(kind) => STATIC_THREAD_LOCAL,
            Class::Tls => THREAD_LOCAL,
            Class::Copy => COPY,
            Class::Other if self.glob_dat.contains(&kind) => GOT,
            Class::Other => ADDRESS,
        }
    }

    fn is_static_tls(&self, kind: u32) -> bool {
        self.static_tls.iter().any(|(from, to)| (*from..=*to).contains(&kind))
    }
}

/// What relocations ask of a symbol. A jump slot of `DT_JMPREL` can be bound late.
const JUMP_SLOT: u8 = 1;
/// A jump slot that stands in another table.
const EARLY_JUMP_SLOT: u8 = 2;
const THREAD_LOCAL: u8 = 4;
const STATIC_THREAD_LOCAL: u8 = 8;
const COPY: u8 = 16;
/// An entry of the global offset table, and any other address.
const GOT: u8 = 32;
const ADDRESS: u8 = 64;
/// Some loader does not know the type.
const REMARKABLE: u8 = 128;
/// The three classes of a lookup.
const CALLS: u8 = JUMP_SLOT | EARLY_JUMP_SLOT | THREAD_LOCAL | STATIC_THREAD_LOCAL;
const ADDRESSES: u8 = GOT | ADDRESS;
const CLASSES: [u8; 3] = [CALLS, COPY, ADDRESSES];

impl References {
    /// Reads the relocations of a file. `room` is how many symbols its table can hold
    /// ([`room`](super::symbols::Table::room)).
    pub fn read(ranges: &mut Ranges<'_>, facts: &Facts, room: u32) -> References {
        let endian = facts.layout.endian();
        let mut out = References::default();
        let Some(types) = Types::of(facts.header.machine) else {
            let machine = super::machine_name(facts.header.machine);
            out.defect(
                Harm::Incomplete,
                format!("relocations of {machine} are not known: no symbol of it is looked up"),
            );
            return out;
        };
        let d = &facts.dynamic;
        let tables = [
            (d.rel, d.rel_size, false, Part::Rel, d.rel_count),
            (d.rela, d.rela_size, true, Part::Rela, d.rela_count),
            (d.plt_relocations, d.plt_relocation_size, d.plt_relocation_kind != Some(DT_REL), Part::Plt, None),
        ];
        for (address, size, with_addend, part, relative) in tables {
            let (Some(address), Some(size)) = (address, size.filter(|n| *n > 0)) else { continue };
            let entry = entry_size(facts.layout.is_64, with_addend) as u64;
            // So many entries at the front are known to name no symbol (DT_RELACOUNT), as the loader takes it.
            let skip = relative.unwrap_or(0).saturating_mul(entry).min(size);
            if skip == size {
                continue;
            }
            match ranges.at(address.wrapping_add(skip), size - skip) {
                Some((bytes, there)) => {
                    if there < size - skip {
                        let what = part.name();
                        out.defect(Harm::Crash, format!("{what} reaches past the end of its segment"));
                    }
                    let is_64 = facts.layout.is_64;
                    let bits = std::array::from_fn(|kind| types.bit(kind as u32, part));
                    out.table(RelocationTable { bytes, with_addend, part, types, is_64, endian, bits }, room);
                }
                None => out.defect(Harm::Crash, format!("{} points outside what is mapped of the file", part.name())),
            }
        }
        out.count = out.asked.iter().map(|bits| CLASSES.iter().filter(|class| bits & **class != 0).count()).sum();
        out
    }

    fn defect(&mut self, harm: Harm, what: impl Into<String>) {
        self.defects.push(Defect { what: what.into(), harm });
    }

    fn table(&mut self, table: RelocationTable, room: u32) {
        let mut outside = None;
        let asked = &mut self.asked;
        let mut own_static_tls = false;
        let mut unknown = [false; 3];
        table.walk(|symbol, kind, mut bit| {
            if bit & REMARKABLE != 0 {
                bit &= !REMARKABLE;
                for (is_unknown, to) in unknown.iter_mut().zip(RELOCATORS) {
                    *is_unknown |= table.is_unknown(kind, to);
                }
            }
            match asked.get_mut(symbol as usize) {
                _ if symbol == 0 => own_static_tls |= table.types.is_static_tls(kind),
                Some(known) => *known |= bit,
                None if symbol >= room => _ = outside.get_or_insert(symbol),
                None => {
                    let wanted = (symbol as usize + 1).max(asked.len() * 2).min(room as usize);
                    asked.resize(wanted, 0);
                    asked[symbol as usize] |= bit;
                }
            }
        });
        for (known, new) in self.unknown.iter_mut().zip(unknown) {
            *known |= new;
        }
        self.own_static_tls |= own_static_tls;
        if let Some(symbol) = outside {
            let what =
                format!("{} names symbol {symbol}, which lies past the end of the symbol table", table.part.name());
            self.defect(Harm::Crash, what);
        }
        if table.bytes.was_cut() {
            self.defect(Harm::Incomplete, format!("the file was cut short while {} was read", table.part.name()));
        }
        self.tables.push(table);
    }

    /// How many references there are.
    pub fn len(&self) -> usize {
        self.count
    }

    /// True when the file refers to no symbol.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// One more than the highest symbol index that is referred to.
    pub fn symbols(&self) -> u32 {
        self.asked.len() as u32
    }

    /// Each pair of symbol and lookup class once, by symbol index, for a range of indexes.
    pub fn iter(&self, symbols: std::ops::Range<u32>) -> impl Iterator<Item = Reference> + '_ {
        self.asked(symbols).flat_map(|(symbol, asked)| asked.references(symbol))
    }

    /// Each symbol that is referred to, by index, for a range of indexes.
    #[inline]
    pub fn asked(&self, symbols: std::ops::Range<u32>) -> impl Iterator<Item = (u32, Asked)> + '_ {
        let range = symbols.start as usize..(symbols.end as usize).min(self.asked.len());
        let bits = self.asked.get(range).unwrap_or_default();
        symbols.zip(bits.iter().copied()).filter(|(_, bits)| *bits != 0).map(|(symbol, bits)| (symbol, Asked(bits)))
    }

    /// True when a loader finds a type of relocation that it does not know.
    pub fn is_unknown(&self, to: Relocator) -> bool {
        RELOCATORS.iter().position(|r| *r == to).is_some_and(|at| self.unknown[at])
    }

    /// Every relocation that names a symbol or cannot be done, in the order in which a loader comes to them: table after
    /// table. Walks the tables again.
    pub fn every(&self, to: Relocator) -> Vec<Relocation> {
        let mut out = Vec::with_capacity(self.count);
        let (plt, others): (Vec<_>, Vec<_>) = self.tables.iter().partition(|t| t.part == Part::Plt);
        let (first, second) = if to == Relocator::Musl { (plt, others) } else { (others, plt) };
        for table in first.into_iter().chain(second) {
            let is_plt = table.part == Part::Plt;
            table.walk(|symbol, kind, bit| {
                let unknown = (bit & REMARKABLE != 0 && table.is_unknown(kind, to)).then_some(kind);
                // What is put off is not looked up before its type is looked at.
                let is_looked_up = unknown.is_none() || !to.puts_off() || !is_plt;
                let class = CLASSES.into_iter().find(|class| class & bit != 0).filter(|_| is_looked_up);
                let asked = self.asked.get(symbol as usize);
                let class = class.zip(asked).map(|(class, bits)| Reference::of(symbol, *bits & class).class);
                if class.is_some() || unknown.is_some() {
                    out.push(Relocation { symbol, class, unknown, is_plt });
                }
            });
        }
        out
    }
}

/// All that relocations ask of one symbol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Asked(u8);

impl Asked {
    /// True when a copy of its bytes is wanted.
    #[inline]
    pub fn is_copied(self) -> bool {
        self.0 & COPY != 0
    }

    /// The references to it, one for each class of lookup.
    #[inline]
    pub fn references(self, symbol: u32) -> impl Iterator<Item = Reference> {
        let classes = CLASSES.into_iter().filter(move |class| self.0 & class != 0);
        classes.map(move |class| Reference::of(symbol, self.0 & class))
    }
}

impl Reference {
    fn of(symbol: u32, bits: u8) -> Reference {
        let class = match bits {
            COPY => Class::Copy,
            _ if bits & (JUMP_SLOT | EARLY_JUMP_SLOT) != 0 => Class::Plt,
            _ if bits & CALLS != 0 => Class::Tls,
            _ => Class::Other,
        };
        Reference {
            symbol,
            class,
            is_late: bits & CALLS == JUMP_SLOT,
            is_static_tls: bits & STATIC_THREAD_LOCAL != 0,
            is_got: bits & ADDRESSES == GOT,
        }
    }
}

fn entry_size(is_64: bool, with_addend: bool) -> usize {
    match (is_64, with_addend) {
        (true, true) => 24,
        (true, false) => 16,
        (false, true) => 12,
        (false, false) => 8,
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

impl RelocationTable {
    /// Gives symbol index, type and what it asks of each entry that can need a lookup, and those that refer to the file
    /// itself.
    fn walk(&self, f: impl FnMut(u32, u32, u8)) {
        // The size of an entry is fixed where the loop is compiled: files have hundreds of thousands of them.
        match (self.is_64, self.with_addend) {
            (true, true) => self.walk_64::<24>(f),
            (true, false) => self.walk_64::<16>(f),
            (false, true) => self.walk_32::<12>(f),
            (false, false) => self.walk_32::<8>(f),
        }
    }

    fn walk_64<const SIZE: usize>(&self, mut f: impl FnMut(u32, u32, u8)) {
        let is_big = self.endian == Endianness::Big;
        for entry in self.bytes.as_chunks::<SIZE>().0 {
            let info: [u8; 8] = entry[8..16].try_into().unwrap_or_default();
            let info = if is_big { u64::from_be_bytes(info) } else { u64::from_le_bytes(info) };
            let (symbol, kind) = ((info >> 32) as u32, info as u32);
            let bit = self.bit(kind);
            if bit != 0 {
                f(symbol, kind, bit);
            }
        }
    }

    fn walk_32<const SIZE: usize>(&self, mut f: impl FnMut(u32, u32, u8)) {
        let is_big = self.endian == Endianness::Big;
        for entry in self.bytes.as_chunks::<SIZE>().0 {
            let info: [u8; 4] = entry[4..8].try_into().unwrap_or_default();
            let info = if is_big { u32::from_be_bytes(info) } else { u32::from_le_bytes(info) };
            let (symbol, kind) = (info >> 8, info & 0xff);
            let bit = self.bit(kind);
            if bit != 0 {
                f(symbol, kind, bit);
            }
        }
    }

    fn is_unknown(&self, kind: u32, to: Relocator) -> bool {
        self.types.known().is_some_and(|known| known.is_unknown(kind, self.part, to))
    }

    fn bit(&self, kind: u32) -> u8 {
        match self.bits.get(kind as usize) {
            Some(bit) => *bit,
            None => self.types.bit(kind, self.part),
        }
    }
}
