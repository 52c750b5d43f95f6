//! What a file asks other files for: the symbols that its relocations name.
//!
//! A dynamic symbol that no relocation uses is never looked up (rule R6.24), so this walks `DT_RELA`, `DT_REL` and
//! `DT_JMPREL`. `DT_RELR` entries name no symbols.

use std::sync::OnceLock;

use object::endian::Endianness;

use super::ranges::{Range, Ranges};
use super::{Access, Defect, Facts, Harm, Touch};
use crate::system::File;

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

/// A relocation that wants a thread-local block in the static area: that of the image which defines its symbol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StaticUse {
    /// The relocation's place among those that [`References::every`] lists: it comes before the one of this index.
    pub at: usize,
    /// The symbol; 0 for the file's own block.
    pub symbol: u32,
    /// True for a descriptor (`TLSDESC`), which does without.
    pub is_optional: bool,
    /// True when it stands in `DT_JMPREL`.
    pub is_late: bool,
}

/// The relocations' symbols of one file.
#[derive(Default)]
pub struct References {
    /// By symbol index: what relocations ask of it ([`JUMP_SLOT`] and the others).
    asked: Vec<u8>,
    count: usize,
    tables: Vec<RelocationTable>,
    /// True when a relocation wants a thread-local block in the static area, or would rather have it there
    /// ([`References::static_uses`]).
    pub has_static_uses: bool,
    /// Which of [`RELOCATORS`] find types of relocations that they do not know.
    unknown: [bool; 3],
    /// All that is asked of any symbol, be it one that the symbol table has no room for.
    all: u8,
    /// True when a relocation writes to a page that lies past the end of the file, which is SIGBUS.
    pub writes_past_end: bool,
    /// What is damaged.
    pub defects: Vec<Defect>,
    /// The machine, when its relocations are not known: then no symbol of the file is looked up.
    pub unknown_machine: Option<String>,
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
    bits: &'static [u16; 256],
    /// Where the bytes stand in the file.
    offset: u64,
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
    /// True for an entry of the global offset table.
    pub is_got: bool,
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
    /// Descriptors (`TLSDESC`).
    descriptors: &'static [(u32, u32)],
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
        descriptors: &[(36, 36)],
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
        descriptors: &[(1031, 1031)],
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
        descriptors: &[(41, 41)],
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
        descriptors: &[(13, 13)],
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
        descriptors: &[(12, 12)],
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
        descriptors: &[],
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
        descriptors: &[],
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
        descriptors: &[(13, 14)],
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
        } else if among(self.tls, kind) {
            Class::Tls
        } else {
            Class::Other
        }
    }

    /// What each type below 256 asks, found out once.
    fn bits(&'static self, part: Part) -> &'static [u16; 256] {
        static BITS: [[OnceLock<[u16; 256]>; 3]; MACHINES.len()] =
            [const { [const { OnceLock::new() }; 3] }; MACHINES.len()];
        let machine = MACHINES.iter().position(|t| t.machine == self.machine).unwrap_or(0);
        BITS[machine][part as usize].get_or_init(|| std::array::from_fn(|kind| self.bit(kind as u32, part)))
    }

    /// What a type asks of its symbol; 0 when it uses none and every loader knows it.
    fn bit(&self, kind: u32, part: Part) -> u16 {
        let remark = if self.known().is_some_and(|k| k.is_remarkable(kind, part)) { REMARKABLE } else { 0 };
        remark | u16::from(self.asked(kind, part))
    }

    fn asked(&self, kind: u32, part: Part) -> u8 {
        match self.class(kind) {
            _ if kind == 0 || self.relative.contains(&kind) => 0,
            Class::Plt if part == Part::Plt => JUMP_SLOT,
            Class::Plt => EARLY_JUMP_SLOT,
            Class::Tls if among(self.static_tls, kind) => STATIC_THREAD_LOCAL,
            Class::Tls if among(self.descriptors, kind) => DESCRIPTOR,
            Class::Tls => THREAD_LOCAL,
            Class::Copy => COPY,
            Class::Other if self.glob_dat.contains(&kind) => GOT,
            Class::Other => ADDRESS,
        }
    }
}

fn among(ranges: &[(u32, u32)], kind: u32) -> bool {
    ranges.iter().any(|(from, to)| (*from..=*to).contains(&kind))
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
const DESCRIPTOR: u8 = 128;
/// Some loader does not know the type: told of relocations, not kept by symbol.
const REMARKABLE: u16 = 256;
/// The three classes of a lookup.
const CALLS: u8 = JUMP_SLOT | EARLY_JUMP_SLOT | THREAD_LOCAL | STATIC_THREAD_LOCAL | DESCRIPTOR;
const STATIC_USES: u8 = STATIC_THREAD_LOCAL | DESCRIPTOR;
const ADDRESSES: u8 = GOT | ADDRESS;
const CLASSES: [u8; 3] = [CALLS, COPY, ADDRESSES];

impl References {
    fn defect(&mut self, harm: Harm, what: impl Into<String>) {
        self.defects.push(Defect { what: what.into(), harm });
    }

    /// How many references there are.
    pub fn len(&self) -> usize {
        self.count
    }

    /// True when glibc reads the symbol table while it relocates the file; `late` when functions are bound at the first
    /// call.
    pub fn reads_symbols(&self, late: bool) -> bool {
        self.all & !(if late { JUMP_SLOT } else { 0 }) != 0
    }

    /// True when the file refers to no symbol.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// An upper bound of the symbol indexes that are referred to, never above what the symbol table has room for.
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
        self.walk(to, |table, symbol, kind, bit| {
            let is_plt = table.part == Part::Plt;
            let unknown = (bit & REMARKABLE != 0 && table.is_unknown(kind, to)).then_some(kind);
            // What is put off is not looked up before its type is looked at.
            let is_looked_up = unknown.is_none() || !to.puts_off() || !is_plt;
            let class = CLASSES.into_iter().find(|class| class & bit as u8 != 0).filter(|_| is_looked_up);
            let asked = self.asked.get(symbol as usize);
            let class = class.zip(asked).map(|(class, bits)| Reference::of(symbol, *bits & class).class);
            out.push(Relocation { symbol, class, is_got: bit as u8 & GOT != 0, unknown, is_plt });
        });
        out
    }

    /// The relocations that want a thread-local block in the static area, in the same order. Walks the tables again.
    pub fn static_uses(&self, to: Relocator) -> Vec<StaticUse> {
        let (mut out, mut at) = (Vec::new(), 0);
        self.walk(to, |table, symbol, _, bit| {
            if bit as u8 & STATIC_USES != 0 {
                let (is_optional, is_late) = (bit as u8 == DESCRIPTOR, table.part == Part::Plt);
                out.push(StaticUse { at, symbol, is_optional, is_late });
            }
            at += 1;
        });
        out
    }

    /// Gives table, symbol, type and what is asked for every relocation that asks for something or is remarkable.
    fn walk(&self, to: Relocator, mut f: impl FnMut(&RelocationTable, u32, u32, u16)) {
        let (plt, others): (Vec<_>, Vec<_>) = self.tables.iter().partition(|t| t.part == Part::Plt);
        let (first, second) = if to == Relocator::Musl { (plt, others) } else { (others, plt) };
        for table in first.into_iter().chain(second) {
            table.walk(0..table.entries(), |symbol, kind, bit| f(table, symbol, kind, bit));
        }
    }
}

/// How many classes of lookup each combination of bits asks for.
const fn classes_of() -> [u8; 256] {
    let mut out = [0; 256];
    let mut bits = 0;
    while bits < 256 {
        let mut class = 0;
        while class < CLASSES.len() {
            out[bits] += (bits as u8 & CLASSES[class] != 0) as u8;
            class += 1;
        }
        bits += 1;
    }
    out
}

/// Relocation entries that are read as one piece: enough of them to share out the largest tables, few enough that putting
/// the pieces together, each a byte for every symbol, costs nothing to speak of.
const PIECE: usize = 48 << 10;
/// From so many entries on a piece has room for every symbol of the file from the start.
const WORTH_ROOM: usize = 4 << 10;

/// The relocation tables of a file that are found but not read yet. They can be read in pieces, on several threads.
pub struct Unread {
    references: References,
    room: u32,
    expected: u32,
    file: Option<File>,
}

/// Entries that are read at a time: they stay in the processor's cache while they are looked at.
const READ_AT_ONCE: usize = 4 << 10;

/// A piece of a table.
pub struct PiecePlace {
    table: usize,
    entries: std::ops::Range<usize>,
}

/// What the entries of a piece ask.
pub struct Piece {
    table: usize,
    asked: Vec<u8>,
    /// All that is asked of any symbol.
    all: u8,
    /// Which of [`RELOCATORS`] do not know a type.
    unknown: [bool; 3],
    /// A symbol past the end of the symbol table.
    outside: Option<u32>,
    /// The file ended before.
    was_cut: bool,
}

impl Unread {
    /// Finds the tables. `room` is how many symbols the file's symbol table can hold
    /// ([`room`](super::symbols::Table::room)); `expected`, how many it seems to hold, saves growing.
    pub fn find(ranges: &mut Ranges<'_>, facts: &Facts, room: u32, expected: u32) -> Unread {
        let expected = expected.min(room);
        let endian = facts.layout.endian();
        let mut references = References::default();
        let Some(types) = Types::of(facts.header.machine) else {
            let machine = super::machine_name(facts.header.machine);
            references.unknown_machine = Some(machine);
            return Unread { references, room, expected, file: None };
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
            if facts.has_missing_pages()
                && let Some((bytes, _)) = ranges.at(address, size)
            {
                references.writes_past_end |= writes_past_end(&bytes, entry as usize, facts);
            }
            // So many entries at the front are known to name no symbol (DT_RELACOUNT), as the loader takes it.
            let skip = relative.unwrap_or(0).saturating_mul(entry).min(size);
            if skip == size {
                continue;
            }
            match ranges.at(address.wrapping_add(skip), size - skip) {
                Some((bytes, there)) => {
                    if there < size - skip {
                        let what = part.name();
                        references.defect(Harm::Crash, format!("{what} reaches past the end of its segment"));
                    }
                    let is_64 = facts.layout.is_64;
                    let bits = types.bits(part);
                    let offset = facts.offset_of(address.wrapping_add(skip)).map_or(u64::MAX, |(offset, _)| offset);
                    let table = RelocationTable { bytes, with_addend, part, types, is_64, endian, bits, offset };
                    references.tables.push(table);
                }
                None => {
                    let what = format!("{} points outside what is mapped of the file", part.name());
                    references.defect(Harm::Crash, what);
                }
            }
        }
        Unread { references, room, expected, file: None }
    }

    /// Reads the entries from the file piece by piece, not from a map of it: pages that are looked at once and in order cost
    /// twice as much to map as to copy.
    pub fn reading(mut self, file: File) -> Unread {
        self.file = Some(file);
        self
    }

    /// The pieces, in order.
    pub fn places(&self) -> Vec<PiecePlace> {
        let tables = self.references.tables.iter().enumerate();
        let pieces = tables.flat_map(|(table, t)| {
            let count = t.entries();
            (0..count).step_by(PIECE).map(move |from| PiecePlace { table, entries: from..count.min(from + PIECE) })
        });
        pieces.collect()
    }

    /// Reads one piece.
    pub fn piece(&self, place: &PiecePlace) -> Piece {
        let room = self.room;
        let (mut all, mut outside) = (0, None);
        let is_large = place.entries.len() >= WORTH_ROOM;
        let mut asked: Vec<u8> = vec![0; if is_large { self.expected as usize } else { 0 }];
        let mut unknown = [false; 3];
        let table = &self.references.tables[place.table];
        let mut take = |symbol, kind, bit| {
            if bit & REMARKABLE != 0 {
                for (is_unknown, to) in unknown.iter_mut().zip(RELOCATORS) {
                    *is_unknown |= table.is_unknown(kind, to);
                }
            }
            let bit = bit as u8;
            all |= bit;
            match asked.get_mut(symbol as usize) {
                // The file itself is meant.
                _ if symbol == 0 => {}
                Some(known) => *known |= bit,
                None if symbol >= room => _ = outside.get_or_insert(symbol),
                None => {
                    let wanted = (symbol as usize + 1).max(asked.len() * 2).min(room as usize);
                    asked.resize(wanted, 0);
                    asked[symbol as usize] |= bit;
                }
            }
        };
        let mut was_cut = false;
        match self.file.as_ref().filter(|_| is_large) {
            None => table.walk(place.entries.clone(), take),
            Some(file) => {
                let entry = entry_size(table.is_64, table.with_addend);
                let mut bytes = Vec::with_capacity(READ_AT_ONCE * entry);
                for from in place.entries.clone().step_by(READ_AT_ONCE) {
                    let length = READ_AT_ONCE.min(place.entries.end - from) * entry;
                    bytes.clear();
                    let at = table.offset.saturating_add((from * entry) as u64);
                    was_cut |= file.append_at(at, length, &mut bytes) != Ok(length);
                    table.walk_in(&bytes, &mut take);
                }
            }
        }
        Piece { table: place.table, asked, all, unknown, outside, was_cut }
    }

    /// Reads all of it on this thread.
    pub fn read(self) -> References {
        let pieces = self.places().iter().map(|place| self.piece(place)).collect();
        self.finish(pieces)
    }

    /// Puts the pieces together, all of them in order.
    pub fn finish(self, pieces: Vec<Piece>) -> References {
        let mut out = self.references;
        let mut outside = vec![None; out.tables.len()];
        let mut was_cut = vec![false; out.tables.len()];
        for piece in pieces {
            out.has_static_uses |= piece.all & STATIC_USES != 0;
            out.all |= piece.all;
            out.unknown.iter_mut().zip(piece.unknown).for_each(|(known, new)| *known |= new);
            if let Some(place) = outside.get_mut(piece.table) {
                *place = place.or(piece.outside);
            }
            if let Some(place) = was_cut.get_mut(piece.table) {
                *place |= piece.was_cut;
            }
            let mut asked = piece.asked;
            if asked.len() < out.asked.len() {
                std::mem::swap(&mut asked, &mut out.asked);
            }
            asked.iter_mut().zip(&out.asked).for_each(|(bits, other)| *bits |= *other);
            out.asked = asked;
        }
        let mut defects = Vec::new();
        for ((table, outside), was_cut) in out.tables.iter().zip(outside).zip(was_cut) {
            let name = table.part.name();
            if let Some(symbol) = outside {
                let what = format!("{name} names symbol {symbol}, which lies past the end of the symbol table");
                defects.push(Defect { what, harm: Harm::Crash });
            }
            if was_cut || table.bytes.was_cut() {
                let what = format!("the file was cut short while {name} was read");
                defects.push(Defect { what, harm: Harm::Incomplete });
            }
        }
        out.defects.extend(defects);
        const CLASSES_OF: [u8; 256] = classes_of();
        out.count = out.asked.iter().map(|bits| usize::from(CLASSES_OF[usize::from(*bits)])).sum();
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
        self.references_apart(symbol, false)
    }

    /// The same; entries of the global offset table and other addresses can be two references.
    #[inline]
    pub fn references_apart(self, symbol: u32, is_apart: bool) -> impl Iterator<Item = Reference> {
        let (addresses, others) = if is_apart { (GOT, ADDRESS) } else { (ADDRESSES, 0) };
        let classes = [CALLS, COPY, addresses, others].into_iter().filter(move |class| self.0 & class != 0);
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

/// True when an entry of a relocation table writes to a page that lies past the end of the file. An entry of type 0
/// (`NONE`) writes nothing.
fn writes_past_end(table: &[u8], entry: usize, facts: &Facts) -> bool {
    let word = if facts.layout.is_64 { 8 } else { 4 };
    let number = |bytes: &[u8]| {
        let push = |sum: u64, byte: &u8| sum << 8 | u64::from(*byte);
        if facts.layout.big_endian { bytes.iter().fold(0, push) } else { bytes.iter().rev().fold(0, push) }
    };
    table.chunks_exact(entry).any(|entry| {
        let (target, rest) = entry.split_at(word);
        let info = rest.get(..word).map_or(0, number);
        let kind = if facts.layout.is_64 { info & 0xffff_ffff } else { info & 0xff };
        kind != 0 && facts.touch(number(target), Access::Read) == Touch::PastEnd
    })
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
    /// How many entries there are.
    fn entries(&self) -> usize {
        self.bytes.len() / entry_size(self.is_64, self.with_addend)
    }

    /// Gives the symbol index, the type and what is asked for each entry that can need a lookup or is remarkable, and those
    /// that refer to the file itself.
    fn walk(&self, entries: std::ops::Range<usize>, f: impl FnMut(u32, u32, u16)) {
        let entry = entry_size(self.is_64, self.with_addend);
        let range = entries.start.saturating_mul(entry)..entries.end.saturating_mul(entry).min(self.bytes.len());
        self.walk_in(self.bytes.get(range).unwrap_or_default(), f);
    }

    /// The same for bytes of the table.
    fn walk_in(&self, bytes: &[u8], f: impl FnMut(u32, u32, u16)) {
        // The size of an entry is fixed where the loop is compiled: files have hundreds of thousands of them.
        match (self.is_64, self.with_addend) {
            (true, true) => self.walk_64::<24>(bytes, f),
            (true, false) => self.walk_64::<16>(bytes, f),
            (false, true) => self.walk_32::<12>(bytes, f),
            (false, false) => self.walk_32::<8>(bytes, f),
        }
    }

    fn walk_64<const SIZE: usize>(&self, bytes: &[u8], mut f: impl FnMut(u32, u32, u16)) {
        let is_big = self.endian == Endianness::Big;
        for entry in bytes.as_chunks::<SIZE>().0 {
            let info: [u8; 8] = entry[8..16].try_into().unwrap_or_default();
            let info = if is_big { u64::from_be_bytes(info) } else { u64::from_le_bytes(info) };
            let (symbol, kind) = ((info >> 32) as u32, info as u32);
            let bit = self.bit(kind);
            if bit != 0 {
                f(symbol, kind, bit);
            }
        }
    }

    fn walk_32<const SIZE: usize>(&self, bytes: &[u8], mut f: impl FnMut(u32, u32, u16)) {
        let is_big = self.endian == Endianness::Big;
        for entry in bytes.as_chunks::<SIZE>().0 {
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

    fn bit(&self, kind: u32) -> u16 {
        match self.bits.get(kind as usize) {
            Some(bit) => *bit,
            None => self.types.bit(kind, self.part),
        }
    }
}
