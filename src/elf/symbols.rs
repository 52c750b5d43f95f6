//! The dynamic symbol table as a loader finds definitions in it: through the hash tables, by address, never through
//! section headers.

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

/// The tables of one file, mapped; nothing is copied.
pub struct Table {
    is_64: bool,
    endian: Endianness,
    symbols: Mapped,
    strings: Mapped,
    gnu_hash: Option<Mapped>,
    hash: Option<Mapped>,
}

/// One symbol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Symbol {
    /// Index in the table.
    pub index: u32,
    /// `st_value`.
    pub value: u64,
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
        self.section != elf::SHN_UNDEF.0 && self.info >> 4 != 0 && !matches!(self.other & 3, 1 | 2)
    }
}

impl Table {
    /// Maps the tables. `None` when the file has no symbol or string table that lies in a loaded segment.
    pub fn open(file: &File, facts: &Facts) -> Option<Table> {
        let map = |address: Option<u64>, size: Option<u64>| -> Option<Mapped> {
            let (offset, room) = facts.offset_of(address?)?;
            file.map(offset, size.unwrap_or(room).min(room)).ok()
        };
        let d = &facts.dynamic;
        Some(Table {
            is_64: facts.layout.is_64,
            endian: if facts.layout.big_endian { Endianness::Big } else { Endianness::Little },
            symbols: map(d.symbol_table, None)?,
            strings: map(d.string_table, d.string_size)?,
            gnu_hash: map(d.gnu_hash, None),
            hash: map(d.hash, None),
        })
    }

    /// A symbol by index.
    pub fn symbol(&self, index: u32) -> Option<(Symbol, u32)> {
        let e = self.endian;
        let at = index as usize;
        if self.is_64 {
            let size = size_of::<elf::Sym64<Endianness>>();
            let bytes = self.symbols.get(at.checked_mul(size)?..)?;
            let (s, _) = pod::from_bytes::<elf::Sym64<Endianness>>(bytes).ok()?;
            let symbol = Symbol {
                index,
                value: s.st_value.get(e),
                section: s.st_shndx.get(e).0,
                info: s.st_info.0,
                other: s.st_other.0,
            };
            Some((symbol, s.st_name.get(e)))
        } else {
            let size = size_of::<elf::Sym32<Endianness>>();
            let bytes = self.symbols.get(at.checked_mul(size)?..)?;
            let (s, _) = pod::from_bytes::<elf::Sym32<Endianness>>(bytes).ok()?;
            let symbol = Symbol {
                index,
                value: s.st_value.get(e).into(),
                section: s.st_shndx.get(e).0,
                info: s.st_info.0,
                other: s.st_other.0,
            };
            Some((symbol, s.st_name.get(e)))
        }
    }

    fn named(&self, index: u32, name: &[u8]) -> Option<Symbol> {
        let (symbol, at) = self.symbol(index)?;
        let text = self.strings.get(at as usize..)?;
        (text.get(..name.len()) == Some(name) && text.get(name.len()) == Some(&0)).then_some(symbol)
    }

    /// Every symbol of a name that the hash tables lead to, definitions or not. `DT_GNU_HASH` is used when there is one,
    /// else `DT_HASH` (rule R6.25).
    pub fn lookup(&self, name: &[u8]) -> Vec<Symbol> {
        match (&self.gnu_hash, &self.hash) {
            (Some(table), _) => self.gnu_lookup(table, name),
            (None, Some(table)) => self.sysv_lookup(table, name),
            (None, None) => Vec::new(),
        }
    }

    /// True when one of the symbols in front of those that `DT_GNU_HASH` finds (all symbols, when there is none) is an
    /// undefined one of this name: the file imports it.
    pub fn imports(&self, name: &[u8]) -> bool {
        let first_hashed = self.gnu_hash.as_ref().and_then(|t| self.word(t, 1));
        let count = first_hashed.or_else(|| self.hash.as_ref().and_then(|t| self.word(t, 1))).unwrap_or(0);
        (1..count.min(MAX_IMPORTS))
            .map_while(|index| self.symbol(index).map(|_| index))
            .filter_map(|index| self.named(index, name))
            .any(|s| s.section == elf::SHN_UNDEF.0)
    }

    /// True when a file was cut short under one of the tables: what was read of it is partly zeros.
    pub fn was_cut(&self) -> bool {
        [Some(&self.symbols), Some(&self.strings), self.gnu_hash.as_ref(), self.hash.as_ref()]
            .into_iter()
            .flatten()
            .any(Mapped::was_cut)
    }

    /// True when a definition of the name is found.
    pub fn defines(&self, name: &[u8]) -> bool {
        self.lookup(name).iter().any(Symbol::is_definition)
    }

    fn word(&self, table: &[u8], index: usize) -> Option<u32> {
        let bytes: [u8; 4] = table.get(index.checked_mul(4)?..)?.get(..4)?.try_into().ok()?;
        Some(match self.endian {
            Endianness::Little => u32::from_le_bytes(bytes),
            Endianness::Big => u32::from_be_bytes(bytes),
        })
    }

    fn gnu_lookup(&self, table: &[u8], name: &[u8]) -> Vec<Symbol> {
        let mut out = Vec::new();
        let hash = elf::gnu_hash(name);
        let header = (|| Some((self.word(table, 0)?, self.word(table, 1)?, self.word(table, 2)?)))();
        let Some((buckets, first, bloom_words)) = header else { return out };
        if buckets == 0 {
            return out;
        }
        let bloom_size = (bloom_words as usize).saturating_mul(if self.is_64 { 2 } else { 1 });
        let bucket_at = bloom_size.saturating_add(4);
        let chain_at = bucket_at.saturating_add(buckets as usize);
        let Some(mut index) = self.word(table, bucket_at.saturating_add((hash % buckets) as usize)) else { return out };
        if index < first {
            return out;
        }
        // A chain ends at a set low bit; a table without one ends with the mapped range.
        for _ in 0..MAX_CHAIN {
            let Some(value) = self.word(table, chain_at.saturating_add((index - first) as usize)) else { break };
            if value | 1 == hash | 1 {
                out.extend(self.named(index, name));
            }
            if value & 1 != 0 || out.len() >= MAX_NAMESAKES {
                break;
            }
            let Some(next) = index.checked_add(1) else { break };
            index = next;
        }
        out
    }

    fn sysv_lookup(&self, table: &[u8], name: &[u8]) -> Vec<Symbol> {
        let mut out = Vec::new();
        let (Some(buckets), Some(chains)) = (self.word(table, 0), self.word(table, 1)) else { return out };
        if buckets == 0 {
            return out;
        }
        let bucket = elf::hash(name) % buckets;
        let word_at = |n: usize| self.word(table, n.saturating_add(2)).unwrap_or(0);
        let mut index = word_at(bucket as usize);
        let mut left = chains.min(MAX_CHAIN);
        while index != 0 && left > 0 && out.len() < MAX_NAMESAKES {
            out.extend(self.named(index, name));
            index = word_at((buckets as usize).saturating_add(index as usize));
            left -= 1;
        }
        out
    }
}
