//! The dynamic symbol table as a loader finds definitions in it: through the hash tables, by address, never through
//! section headers. Nothing is copied; a name is hashed only when it is looked up.

use std::cell::OnceCell;

use bstr::{BStr, BString, ByteSlice};
use object::elf;
use object::endian::Endianness;
use object::pod;

use super::Facts;
use crate::system::{File, Mapped};

/// Most links of a hash chain that are followed for one name. Chains of real tables have some dozen; a damaged table can
/// lead through gigabytes, or in a circle.
const MAX_CHAIN: u32 = 64 << 10;
/// Most symbols of one name that are returned (one for each version).
const MAX_NAMESAKES: usize = 1 << 10;
/// Most symbols in front of the hashed ones that are looked at.
const MAX_IMPORTS: u32 = 1 << 20;
/// Longest symbol name that is looked up, in bytes: longer ones come from damaged files.
const MAX_NAME: usize = 1 << 20;

/// One entry of the table by which `DT_VERSYM` indexes are understood: glibc's `struct r_found_version`
/// (`_dl_check_map_versions`, elf/dl-version.c). The base definition has no entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Version {
    /// Hash of the name as stored.
    pub hash: u32,
    /// The name.
    pub name: BString,
    /// A need that bit 15 of `vna_other` marks hidden: only this very version will do.
    pub hidden: bool,
    /// The file it is wanted from; `None` for a definition.
    pub file: Option<BString>,
}

/// A name with its hashes, for looking up in any number of tables.
pub struct Name<'n> {
    /// The name.
    pub bytes: &'n [u8],
    /// Its `DT_GNU_HASH` hash.
    pub gnu: u32,
    sysv: OnceCell<u32>,
}

impl<'n> Name<'n> {
    /// Hashes a name for `DT_GNU_HASH`; the hash for `DT_HASH` is made when a file without the former is met.
    pub fn new(bytes: &'n [u8]) -> Name<'n> {
        Name { bytes, gnu: elf::gnu_hash(bytes), sysv: OnceCell::new() }
    }

    fn sysv(&self) -> u32 {
        *self.sysv.get_or_init(|| elf::hash(self.bytes))
    }
}

/// Where the parts of a `DT_GNU_HASH` table are.
struct GnuHash {
    table: Mapped,
    buckets: u32,
    /// Index of the first symbol that the table finds.
    first: u32,
    bloom_mask: u32,
    bloom_shift: u32,
    /// Byte offsets of the buckets and of the chains.
    buckets_at: usize,
    chains_at: usize,
}

/// The tables of one file, mapped; nothing is copied.
pub struct Table {
    is_64: bool,
    endian: Endianness,
    symbols: Mapped,
    strings: Mapped,
    gnu_hash: Option<GnuHash>,
    hash: Option<Mapped>,
    version_symbols: Option<Mapped>,
    versions: Vec<Option<Version>>,
}

/// One symbol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Symbol {
    /// Index in the table.
    pub index: u32,
    /// `st_name`: offset of the name in the string table.
    pub name_at: u32,
    /// `st_value`.
    pub value: u64,
    /// `st_size`, in bytes.
    pub size: u64,
    /// `st_shndx`.
    pub section: u16,
    /// `st_info`: type in the low four bits, binding above.
    pub info: u8,
    /// `st_other`: visibility in the low two bits.
    pub other: u8,
}

impl Symbol {
    /// True for a definition that another object may bind to: defined, and neither local nor hidden.
    pub fn is_definition(&self) -> bool {
        !self.is_undefined() && self.binding() != 0 && !self.is_hidden()
    }

    /// `SHN_UNDEF`: the file refers to it.
    pub fn is_undefined(&self) -> bool {
        self.section == elf::SHN_UNDEF.0
    }

    /// `SHN_ABS`: the value is no address.
    pub fn is_absolute(&self) -> bool {
        self.section == elf::SHN_ABS.0
    }

    /// Type (`STT_*`): 1 object, 2 function, 6 thread-local, 10 indirect function.
    pub fn kind(&self) -> u8 {
        self.info & 15
    }

    /// Binding (`STB_*`): 0 local, 1 global, 2 weak, 10 unique.
    pub fn binding(&self) -> u8 {
        self.info >> 4
    }

    /// `STB_WEAK`.
    pub fn is_weak(&self) -> bool {
        self.binding() == elf::STB_WEAK.0
    }

    /// Visibility hidden or internal: no other object sees it.
    pub fn is_hidden(&self) -> bool {
        matches!(self.other & 3, 1 | 2)
    }

    /// Visibility protected: the own object always means its own definition.
    pub fn is_protected(&self) -> bool {
        self.other & 3 == 3
    }
}

impl Table {
    /// Maps the tables. `None` when the file has no symbol or string table that lies in a loaded segment.
    pub fn open(file: &File, facts: &Facts) -> Option<Table> {
        // A loader trusts the addresses; what limits a table is the segment it lies in, not a size in the dynamic array.
        let map = |address: Option<u64>| -> Option<Mapped> {
            let (offset, room) = facts.offset_of(address?)?;
            file.map(offset, room).ok()
        };
        let d = &facts.dynamic;
        let is_64 = facts.layout.is_64;
        let endian = if facts.layout.big_endian { Endianness::Big } else { Endianness::Little };
        let gnu_hash = map(d.gnu_hash).and_then(|table| GnuHash::read(table, is_64, endian));
        let version_symbols = map(d.version_symbols);
        Some(Table {
            is_64,
            endian,
            symbols: map(d.symbol_table)?,
            strings: map(d.string_table)?,
            gnu_hash,
            hash: map(d.hash),
            versions: if version_symbols.is_some() { versions(facts) } else { Vec::new() },
            version_symbols,
        })
    }

    /// A symbol by index.
    pub fn symbol(&self, index: u32) -> Option<Symbol> {
        let e = self.endian;
        let at = index as usize;
        macro_rules! read {
            ($sym:ty) => {{
                let bytes = self.symbols.get(at.checked_mul(size_of::<$sym>())?..)?;
                let (s, _) = pod::from_bytes::<$sym>(bytes).ok()?;
                Some(Symbol {
                    index,
                    name_at: s.st_name.get(e),
                    value: s.st_value.get(e).into(),
                    size: s.st_size.get(e).into(),
                    section: s.st_shndx.get(e).0,
                    info: s.st_info.0,
                    other: s.st_other.0,
                })
            }};
        }
        if self.is_64 { read!(elf::Sym64<Endianness>) } else { read!(elf::Sym32<Endianness>) }
    }

    /// How many symbols fit into what is mapped of the file: an upper bound of every index.
    pub fn room(&self) -> u32 {
        let size = if self.is_64 { size_of::<elf::Sym64<Endianness>>() } else { size_of::<elf::Sym32<Endianness>>() };
        u32::try_from(self.symbols.len() / size).unwrap_or(u32::MAX)
    }

    /// The name of a symbol; `None` when it lies outside the file or has no end there.
    pub fn name(&self, symbol: &Symbol) -> Option<&BStr> {
        let text = self.strings.get(symbol.name_at as usize..)?;
        let end = memchr::memchr(0, &text[..text.len().min(MAX_NAME)])?;
        Some(text[..end].as_bstr())
    }

    fn is_named(&self, symbol: &Symbol, name: &[u8]) -> bool {
        let Some(text) = self.strings.get(symbol.name_at as usize..) else { return false };
        text.get(..name.len()) == Some(name) && text.get(name.len()) == Some(&0)
    }

    /// The `DT_VERSYM` entry of a symbol: version index in the low 15 bits, bit 15 for a hidden definition. `None` when
    /// the file has no such table.
    pub fn version_index(&self, index: u32) -> Option<u16> {
        let bytes = self.version_symbols.as_ref()?.get((index as usize).checked_mul(2)?..)?.get(..2)?;
        let bytes: [u8; 2] = bytes.try_into().ok()?;
        Some(match self.endian {
            Endianness::Little => u16::from_le_bytes(bytes),
            Endianness::Big => u16::from_be_bytes(bytes),
        })
    }

    /// True when the file has a `DT_VERSYM` table.
    pub fn has_versions(&self) -> bool {
        self.version_symbols.is_some()
    }

    /// What a version index stands for; `None` for the local, global and base ones.
    pub fn version(&self, index: u16) -> Option<&Version> {
        self.versions.get(usize::from(index & 0x7fff))?.as_ref()
    }

    /// The version of a symbol, when it has one.
    pub fn version_of(&self, index: u32) -> Option<&Version> {
        self.version(self.version_index(index)?)
    }

    /// Every symbol of a name that the hash tables lead to, definitions or not, in the order in which a loader meets
    /// them. `DT_GNU_HASH` is used when there is one, else `DT_HASH` (`do_lookup_x`; rule R6.25).
    pub fn candidates<'t>(&'t self, name: &'t Name<'t>) -> Candidates<'t> {
        let next = match (&self.gnu_hash, &self.hash) {
            (Some(table), _) => table.first_of(name.gnu, self.is_64, self.endian),
            (None, Some(table)) => first_of_sysv(table, name.sysv(), self.endian),
            (None, None) => None,
        };
        Candidates { table: self, name, next, steps: 0, found: 0 }
    }

    /// True when the Bloom filter of `DT_GNU_HASH` says that a name may be here, or there is none to ask.
    pub fn may_have(&self, gnu: u32) -> bool {
        self.gnu_hash.as_ref().is_none_or(|table| table.passes(gnu, self.is_64, self.endian))
    }

    /// Every symbol of a name, see [`Table::candidates`].
    pub fn lookup(&self, name: &[u8]) -> Vec<Symbol> {
        self.candidates(&Name::new(name)).collect()
    }

    /// True when one of the symbols in front of those that `DT_GNU_HASH` finds (all symbols, when there is none) is an
    /// undefined one of this name: the file imports it.
    pub fn imports(&self, name: &[u8]) -> bool {
        let first_hashed = self.gnu_hash.as_ref().map(|t| t.first);
        let count = first_hashed.or_else(|| self.hash.as_ref().and_then(|t| word(t, 4, self.endian))).unwrap_or(0);
        (1..count.min(MAX_IMPORTS))
            .map_while(|index| self.symbol(index))
            .any(|s| s.is_undefined() && self.is_named(&s, name))
    }

    /// Every symbol that the hash tables find, in table order: what the file can define. Bounded by the size of the file.
    pub fn hashed(&self) -> impl Iterator<Item = Symbol> + '_ {
        let (first, count) = match (&self.gnu_hash, &self.hash) {
            (Some(table), _) => (table.first, table.count(self.endian)),
            (None, Some(table)) => (1, word(table, 4, self.endian).unwrap_or(0).min(self.room())),
            (None, None) => (0, 0),
        };
        (first..first.saturating_add(count)).map_while(|index| self.symbol(index))
    }

    /// True when a file was cut short under one of the tables: what was read of it is partly zeros.
    pub fn was_cut(&self) -> bool {
        [
            Some(&self.symbols),
            Some(&self.strings),
            self.gnu_hash.as_ref().map(|t| &t.table),
            self.hash.as_ref(),
            self.version_symbols.as_ref(),
        ]
        .into_iter()
        .flatten()
        .any(Mapped::was_cut)
    }

    /// True when a definition of the name is found.
    pub fn defines(&self, name: &[u8]) -> bool {
        self.candidates(&Name::new(name)).any(|s| s.is_definition())
    }
}

/// Symbols of one name in one table. See [`Table::candidates`].
pub struct Candidates<'t> {
    table: &'t Table,
    name: &'t Name<'t>,
    next: Option<u32>,
    steps: u32,
    found: usize,
}

impl Iterator for Candidates<'_> {
    type Item = Symbol;

    fn next(&mut self) -> Option<Symbol> {
        let t = self.table;
        while let Some(index) = self.next {
            // A chain in a circle, or one that a damaged file made endless.
            self.steps += 1;
            if self.steps > MAX_CHAIN || self.found >= MAX_NAMESAKES {
                self.next = None;
                return None;
            }
            let may_match = match (&t.gnu_hash, &t.hash) {
                (Some(table), _) => {
                    let Some(value) = table.chain(index, t.endian) else {
                        self.next = None;
                        return None;
                    };
                    // A chain ends at a set low bit.
                    self.next = if value & 1 != 0 { None } else { index.checked_add(1) };
                    value | 1 == self.name.gnu | 1
                }
                (None, Some(table)) => {
                    let buckets = word(table, 0, t.endian).unwrap_or(0) as usize;
                    let at = buckets.saturating_add(index as usize).saturating_add(2).saturating_mul(4);
                    self.next = word(table, at, t.endian).filter(|next| *next != 0);
                    true
                }
                (None, None) => false,
            };
            if may_match
                && let Some(symbol) = t.symbol(index)
                && t.is_named(&symbol, self.name.bytes)
            {
                self.found += 1;
                return Some(symbol);
            }
        }
        None
    }
}

/// A 32-bit word at a byte offset.
fn word(table: &[u8], at: usize, endian: Endianness) -> Option<u32> {
    let bytes: [u8; 4] = table.get(at..at.checked_add(4)?)?.try_into().ok()?;
    Some(match endian {
        Endianness::Little => u32::from_le_bytes(bytes),
        Endianness::Big => u32::from_be_bytes(bytes),
    })
}

fn first_of_sysv(table: &[u8], hash: u32, endian: Endianness) -> Option<u32> {
    let buckets = word(table, 0, endian).filter(|n| *n != 0)?;
    let at = ((hash % buckets) as usize).saturating_add(2).saturating_mul(4);
    word(table, at, endian).filter(|index| *index != 0)
}

impl GnuHash {
    /// Reads the header of a table (`_dl_setup_hash`, elf/dl-setup_hash.c).
    fn read(table: Mapped, is_64: bool, endian: Endianness) -> Option<GnuHash> {
        let [buckets, first, bloom_words, bloom_shift] = [0, 4, 8, 12].map(|at| word(&table, at, endian));
        let (buckets, first, bloom_words) = (buckets?, first?, bloom_words?);
        let bloom_size = (bloom_words as usize).saturating_mul(if is_64 { 8 } else { 4 });
        let buckets_at = bloom_size.saturating_add(16);
        let chains_at = buckets_at.saturating_add((buckets as usize).saturating_mul(4));
        Some(GnuHash {
            table,
            buckets,
            first,
            bloom_mask: bloom_words.wrapping_sub(1),
            bloom_shift: bloom_shift?,
            buckets_at,
            chains_at,
        })
    }

    fn passes(&self, hash: u32, is_64: bool, endian: Endianness) -> bool {
        let (width, shift) = if is_64 { (64, 6) } else { (32, 5) };
        let index = ((hash >> shift) & self.bloom_mask) as usize;
        let bits = if is_64 {
            let at = index * 8 + 16;
            let Some(bytes) = self.table.get(at..at + 8) else { return false };
            let bytes: [u8; 8] = bytes.try_into().unwrap_or_default();
            match endian {
                Endianness::Little => u64::from_le_bytes(bytes),
                Endianness::Big => u64::from_be_bytes(bytes),
            }
        } else {
            match word(&self.table, index * 4 + 16, endian) {
                Some(bits) => bits.into(),
                None => return false,
            }
        };
        // Shifting by more than the width keeps the low bits, as the processor does.
        let second = hash.wrapping_shr(self.bloom_shift) % width;
        (bits >> (hash % width)) & (bits >> second) & 1 != 0
    }

    /// The first symbol of the bucket, when the filter lets the hash pass.
    fn first_of(&self, hash: u32, is_64: bool, endian: Endianness) -> Option<u32> {
        if self.buckets == 0 || !self.passes(hash, is_64, endian) {
            return None;
        }
        let at = ((hash % self.buckets) as usize).saturating_mul(4).saturating_add(self.buckets_at);
        word(&self.table, at, endian).filter(|index| *index != 0 && *index >= self.first)
    }

    fn chain(&self, index: u32, endian: Endianness) -> Option<u32> {
        let place = index.checked_sub(self.first)? as usize;
        word(&self.table, place.saturating_mul(4).saturating_add(self.chains_at), endian)
    }

    /// How many symbols the table finds: up to the end of the chain that begins last.
    fn count(&self, endian: Endianness) -> u32 {
        let bucket = |n: u32| word(&self.table, (n as usize).saturating_mul(4).saturating_add(self.buckets_at), endian);
        let Some(mut last) = (0..self.buckets).map_while(bucket).max().filter(|last| *last >= self.first) else {
            return 0;
        };
        while self.chain(last, endian).is_some_and(|value| value & 1 == 0) {
            let Some(next) = last.checked_add(1) else { break };
            last = next;
        }
        (last - self.first).saturating_add(1)
    }
}

/// Most entries of the table of versions: an index has 15 bits.
const MAX_INDEX: usize = 1 << 15;

/// The table of versions by index. Needs come first, definitions may replace them, the base definition is left out
/// (`_dl_check_map_versions`).
fn versions(facts: &Facts) -> Vec<Option<Version>> {
    let mut out: Vec<Option<Version>> = Vec::new();
    let mut put = |index: u16, version: Version| {
        let index = usize::from(index & 0x7fff);
        if index >= out.len() && index < MAX_INDEX {
            out.resize(index + 1, None);
        }
        if let Some(place) = out.get_mut(index) {
            *place = Some(version).filter(|v| v.hash != 0);
        }
    };
    for need in facts.version_needs.iter().flatten() {
        for v in &need.versions {
            let hidden = v.index & 0x8000 != 0;
            put(v.index, Version { hash: v.hash, name: v.name.clone(), hidden, file: Some(need.file.clone()) });
        }
    }
    for d in facts.version_definitions.iter().flatten().filter(|d| d.flags & 1 == 0) {
        put(d.index, Version { hash: d.hash, name: d.name.clone(), hidden: false, file: None });
    }
    out
}
