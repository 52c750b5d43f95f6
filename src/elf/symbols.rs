//! The dynamic symbol table as a loader finds definitions in it: through the hash tables, by address, never through
//! section headers. Nothing is copied; a name is hashed only when it is looked up.

use std::cell::OnceCell;

use bstr::{BStr, BString, ByteSlice};
use object::elf;
use object::endian::{Endianness, LittleEndian};
use object::pod;

use super::Facts;
use super::ranges::{Range, Ranges};
use crate::system::File;

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

impl Version {
    /// A version as one that is asked for, of whatever file.
    pub fn named(name: &BStr) -> Version {
        Version { hash: elf::hash(name), name: name.to_owned(), hidden: false, file: None }
    }
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

    /// Takes the name that ends at the first NUL of a text and hashes it on the way. `None` when there is no NUL within
    /// any name's length.
    #[inline]
    fn ending(text: &'n [u8]) -> Option<Name<'n>> {
        // hash = hash * 33 + byte; eight bytes at a time are one step of a polynomial whose terms do not wait for each
        // other.
        const POWERS: [u32; 9] = powers();
        let text = &text[..text.len().min(MAX_NAME)];
        let mut hash = 5381u32;
        let mut at = 0;
        while let Some(eight) = text.get(at..at + 8) {
            let eight: [u8; 8] = eight.try_into().unwrap_or_default();
            let word = u64::from_le_bytes(eight);
            let zeros = word.wrapping_sub(0x0101_0101_0101_0101) & !word & 0x8080_8080_8080_8080;
            if zeros != 0 {
                break;
            }
            let mut sum = 0u32;
            for (i, byte) in eight.iter().enumerate() {
                sum = sum.wrapping_add(u32::from(*byte).wrapping_mul(POWERS[7 - i]));
            }
            hash = hash.wrapping_mul(POWERS[8]).wrapping_add(sum);
            at += 8;
        }
        loop {
            match text.get(at)? {
                0 => return Some(Name { bytes: &text[..at], gnu: hash, sysv: OnceCell::new() }),
                byte => hash = hash.wrapping_mul(33).wrapping_add(u32::from(*byte)),
            }
            at += 1;
        }
    }

    fn sysv(&self) -> u32 {
        *self.sysv.get_or_init(|| elf::hash(self.bytes))
    }
}

const fn powers() -> [u32; 9] {
    let mut out = [1u32; 9];
    let mut i = 1;
    while i < 9 {
        out[i] = out[i - 1].wrapping_mul(33);
        i += 1;
    }
    out
}

/// Where the parts of a `DT_GNU_HASH` table are.
#[derive(Clone, Copy)]
struct GnuHash<'t> {
    table: &'t [u8],
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
    symbols: Range,
    strings: Range,
    gnu_hash: Option<Range>,
    hash: Option<Range>,
    version_symbols: Option<Range>,
    versions: Vec<Option<Version>>,
    defines_versions: bool,
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
    #[inline]
    pub fn is_undefined(&self) -> bool {
        self.section == elf::SHN_UNDEF.0
    }

    /// `SHN_ABS`: the value is no address.
    #[inline]
    pub fn is_absolute(&self) -> bool {
        self.section == elf::SHN_ABS.0
    }

    /// Type (`STT_*`): 1 object, 2 function, 6 thread-local, 10 indirect function.
    #[inline]
    pub fn kind(&self) -> u8 {
        self.info & 15
    }

    /// Binding (`STB_*`): 0 local, 1 global, 2 weak, 10 unique.
    #[inline]
    pub fn binding(&self) -> u8 {
        self.info >> 4
    }

    /// `STB_WEAK`.
    #[inline]
    pub fn is_weak(&self) -> bool {
        self.binding() == elf::STB_WEAK.0
    }

    /// Visibility hidden or internal: no other object sees it.
    #[inline]
    pub fn is_hidden(&self) -> bool {
        matches!(self.other & 3, 1 | 2)
    }

    /// Visibility protected: the own object always means its own definition.
    #[inline]
    pub fn is_protected(&self) -> bool {
        self.other & 3 == 3
    }
}

impl Table {
    /// Maps the tables. `None` when the file has no symbol or string table that lies in a loaded segment.
    pub fn open(file: &File, facts: &Facts) -> Option<Table> {
        Table::of(&mut Ranges::new(file, facts), facts)
    }

    /// The same, over maps that other tables of the file share.
    pub fn of(ranges: &mut Ranges<'_>, facts: &Facts) -> Option<Table> {
        // A loader trusts the addresses; what limits a table is the segment it lies in, not a size in the dynamic array.
        let mut map = |address: Option<u64>| ranges.at(address?, u64::MAX).map(|(range, _)| range);
        let d = &facts.dynamic;
        let is_64 = facts.layout.is_64;
        let endian = facts.layout.endian();
        let gnu_hash = map(d.gnu_hash).filter(|table| GnuHash::read(table, is_64, endian).is_some());
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
            defines_versions: facts.version_definitions.is_some(),
        })
    }

    /// The tables as plain slices, for many questions.
    pub fn view(&self) -> View<'_> {
        let (is_64, endian) = (self.is_64, self.endian);
        View {
            is_64,
            endian,
            symbols: &self.symbols,
            strings: &self.strings,
            gnu_hash: self.gnu_hash.as_ref().and_then(|table| GnuHash::read(table, is_64, endian)),
            hash: self.hash.as_deref(),
            version_symbols: self.version_symbols.as_deref(),
            versions: &self.versions,
            defines_versions: self.defines_versions,
        }
    }

    /// A symbol by index.
    #[inline]
    pub fn symbol(&self, index: u32) -> Option<Symbol> {
        self.view().symbol(index)
    }

    /// See [`View::room`].
    pub fn room(&self) -> u32 {
        self.view().room()
    }

    /// One more than the highest index that the hash tables find: how many symbols there seem to be. 0 when there is no
    /// hash table.
    pub fn end(&self) -> u32 {
        let (first, count) = self.view().hashed_range();
        first.saturating_add(count).min(self.room())
    }

    /// See [`View::name`].
    pub fn name(&self, symbol: &Symbol) -> Option<&BStr> {
        self.view().name(symbol)
    }

    /// See [`View::version_of`].
    #[inline]
    pub fn version_of(&self, index: u32) -> Option<&Version> {
        self.view().version_of(index)
    }

    /// See [`View::version_index`].
    #[inline]
    pub fn version_index(&self, index: u32) -> Option<u16> {
        self.view().version_index(index)
    }

    /// See [`View::version`].
    #[inline]
    pub fn version(&self, index: u16) -> Option<&Version> {
        self.view().version(index)
    }

    /// See [`View::candidates`].
    pub fn candidates<'t>(&'t self, name: &'t Name<'t>) -> Candidates<'t> {
        self.view().candidates(name)
    }

    /// Every symbol of a name, see [`View::candidates`].
    pub fn lookup(&self, name: &[u8]) -> Vec<Symbol> {
        self.candidates(&Name::new(name)).collect()
    }

    /// See [`View::imports`].
    pub fn imports(&self, name: &[u8]) -> bool {
        self.view().imports(name)
    }

    /// See [`View::hashed`].
    pub fn hashed(&self) -> impl Iterator<Item = Symbol> + '_ {
        self.view().hashed()
    }

    /// True when a definition of the name is found.
    pub fn defines(&self, name: &[u8]) -> bool {
        self.candidates(&Name::new(name)).any(|s| s.is_definition())
    }

    /// True when some definition that others can bind to is an indirect function (`STT_GNU_IFUNC`).
    pub fn has_indirect_functions(&self) -> bool {
        let view = self.view();
        // Where a symbol's type stands is looked at first, so that this is a matter of microseconds.
        let (size, info) = if self.is_64 { (24, 4) } else { (16, 12) };
        let (first, count) = view.hashed_range();
        let bytes = (first as usize).checked_mul(size).and_then(|at| view.symbols.get(at..)).unwrap_or_default();
        let found = bytes.chunks_exact(size).take(count as usize).zip(first..).filter(|(s, _)| s[info] & 15 == 10);
        found.filter_map(|(_, index)| view.symbol(index)).any(|s| s.is_definition())
    }

    /// True when a file was cut short under one of the tables: what was read of it is partly zeros.
    pub fn was_cut(&self) -> bool {
        [
            Some(&self.symbols),
            Some(&self.strings),
            self.gnu_hash.as_ref(),
            self.hash.as_ref(),
            self.version_symbols.as_ref(),
        ]
        .into_iter()
        .flatten()
        .any(Range::was_cut)
    }
}

/// Reads bytes for no other reason than that something near them is read next. Reads that do not depend on each other wait
/// for memory together; those of a search, each of which decides where the next one goes, wait one after the other.
#[inline]
pub fn touch(bytes: impl Iterator<Item = u8>) {
    std::hint::black_box(bytes.fold(0, |all, byte| all ^ byte));
}

/// The tables of one file as plain slices.
#[derive(Clone, Copy)]
pub struct View<'t> {
    is_64: bool,
    endian: Endianness,
    symbols: &'t [u8],
    strings: &'t [u8],
    gnu_hash: Option<GnuHash<'t>>,
    hash: Option<&'t [u8]>,
    version_symbols: Option<&'t [u8]>,
    versions: &'t [Option<Version>],
    defines_versions: bool,
}

impl<'t> View<'t> {
    /// A symbol by index.
    #[inline]
    pub fn symbol(&self, index: u32) -> Option<Symbol> {
        let at = index as usize;
        macro_rules! read {
            ($sym:ident, $endian:ty, $e:expr) => {{
                let bytes = self.symbols.get(at.checked_mul(size_of::<elf::$sym<$endian>>())?..)?;
                let (s, _) = pod::from_bytes::<elf::$sym<$endian>>(bytes).ok()?;
                let e: $endian = $e;
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
        // The byte order of nearly all files is known where this is compiled.
        match (self.is_64, self.endian) {
            (true, Endianness::Little) => read!(Sym64, LittleEndian, LittleEndian),
            (true, e) => read!(Sym64, Endianness, e),
            (false, e) => read!(Sym32, Endianness, e),
        }
    }

    /// How many symbols fit into what is mapped of the file: an upper bound of every index.
    pub fn room(&self) -> u32 {
        let size = if self.is_64 { size_of::<elf::Sym64<Endianness>>() } else { size_of::<elf::Sym32<Endianness>>() };
        u32::try_from(self.symbols.len() / size).unwrap_or(u32::MAX)
    }

    /// The name of a symbol; `None` when it lies outside the file or has no end there.
    pub fn name(&self, symbol: &Symbol) -> Option<&'t BStr> {
        let text = self.strings.get(symbol.name_at as usize..)?;
        let end = memchr::memchr(0, &text[..text.len().min(MAX_NAME)])?;
        Some(text[..end].as_bstr())
    }

    /// The name of a symbol with its hash. See [`View::name`].
    #[inline]
    pub fn hashed_name(&self, symbol: &Symbol) -> Option<Name<'t>> {
        Name::ending(self.strings.get(symbol.name_at as usize..)?)
    }

    /// The first byte of a symbol's name, for [`touch`].
    #[inline]
    pub fn name_byte(&self, symbol: &Symbol) -> u8 {
        self.strings.get(symbol.name_at as usize).copied().unwrap_or(0)
    }

    /// A byte of a symbol's entry in the hash table, for [`touch`].
    #[inline]
    pub fn chain_byte(&self, index: u32) -> u8 {
        self.gnu_hash.as_ref().and_then(|table| table.chain(index, self.endian)).unwrap_or(0) as u8
    }

    /// True when the file has a `DT_GNU_HASH` table that can be used.
    pub fn has_gnu_hash(&self) -> bool {
        self.gnu_hash.is_some()
    }

    /// The hash of a symbol that `DT_GNU_HASH` finds, all but its lowest bit, without its name being read.
    #[inline]
    pub fn stored_hash(&self, index: u32) -> Option<u32> {
        self.gnu_hash.as_ref()?.chain(index, self.endian).map(|value| value >> 1)
    }

    /// The hashes of all symbols that `DT_GNU_HASH` finds, all but their lowest bit.
    pub fn stored_hashes(&self) -> impl Iterator<Item = u32> + use<'t> {
        let words: &'t [u8] = match &self.gnu_hash {
            Some(table) => {
                let size = (table.count(self.endian) as usize).saturating_mul(4);
                let all = table.table.get(table.chains_at..).unwrap_or_default();
                &all[..size.min(all.len())]
            }
            None => &[],
        };
        let big = self.endian == Endianness::Big;
        words.chunks_exact(4).map(move |bytes| {
            let bytes: [u8; 4] = bytes.try_into().unwrap_or_default();
            (if big { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) }) >> 1
        })
    }

    /// True when `DT_GNU_HASH` can lead to a symbol.
    #[inline]
    pub fn is_hashed(&self, index: u32) -> bool {
        self.gnu_hash.as_ref().is_some_and(|table| {
            index.checked_sub(table.first).is_some_and(|place| {
                (place as usize).saturating_mul(4).saturating_add(table.chains_at + 4) <= table.table.len()
            })
        })
    }

    /// How many buckets `DT_GNU_HASH` has, as far as there is room for them: some third of the symbols.
    pub fn buckets(&self) -> u32 {
        self.gnu_hash.as_ref().map_or(0, |table| table.buckets.min((table.table.len() / 4) as u32))
    }

    /// The first symbol of the bucket of a hash, the filter not being asked.
    #[inline]
    pub fn bucket(&self, gnu: u32) -> Option<u32> {
        self.gnu_hash.as_ref().and_then(|table| table.bucket(gnu, self.endian))
    }

    /// The first symbol of that hash on a chain, from `index` on.
    #[inline]
    pub fn next_of_hash(&self, index: u32, gnu: u32) -> Option<u32> {
        let table = self.gnu_hash.as_ref()?;
        let place = (index.checked_sub(table.first)? as usize).saturating_mul(4).saturating_add(table.chains_at);
        let is_big = self.endian == Endianness::Big;
        for (bytes, index) in table.table.get(place..)?.as_chunks().0.iter().take(MAX_CHAIN as usize).zip(index..) {
            let value = if is_big { u32::from_be_bytes(*bytes) } else { u32::from_le_bytes(*bytes) };
            if value | 1 == gnu | 1 {
                return Some(index);
            }
            if value & 1 != 0 {
                return None;
            }
        }
        None
    }

    /// True when a symbol has that name.
    #[inline]
    pub fn is_named(&self, symbol: &Symbol, name: &[u8]) -> bool {
        let Some(text) = self.strings.get(symbol.name_at as usize..) else { return false };
        text.get(..name.len()) == Some(name) && text.get(name.len()) == Some(&0)
    }

    /// The `DT_VERSYM` entry of a symbol: version index in the low 15 bits, bit 15 for a hidden definition. `None` when
    /// the file has no such table.
    #[inline]
    pub fn version_index(&self, index: u32) -> Option<u16> {
        let bytes = self.version_symbols?.get((index as usize).checked_mul(2)?..)?.get(..2)?;
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

    /// True when the file has a `DT_VERDEF` table: it may have several definitions of one name.
    pub fn defines_versions(&self) -> bool {
        self.defines_versions
    }

    /// What a version index stands for; `None` for the local, global and base ones.
    #[inline]
    pub fn version(&self, index: u16) -> Option<&'t Version> {
        self.versions.get(usize::from(index & 0x7fff))?.as_ref()
    }

    /// The version of a symbol, when it has one.
    #[inline]
    pub fn version_of(&self, index: u32) -> Option<&'t Version> {
        self.version(self.version_index(index)?)
    }

    /// Every symbol of a name that the hash tables lead to, definitions or not, in the order in which a loader meets
    /// them. `DT_GNU_HASH` is used when there is one, else `DT_HASH` (`do_lookup_x`; rule R6.25).
    pub fn candidates<'n>(&self, name: &'n Name<'n>) -> Candidates<'n>
    where
        't: 'n,
    {
        let next = match (&self.gnu_hash, self.hash) {
            (Some(table), _) => table.first_of(name.gnu, self.is_64, self.endian),
            (None, Some(table)) => first_of_sysv(table, name.sysv(), self.endian),
            (None, None) => None,
        };
        Candidates { table: *self, name, next, steps: 0, found: 0 }
    }

    /// True when the Bloom filter of `DT_GNU_HASH` says that a name may be here, or there is none to ask.
    #[inline]
    pub fn may_have(&self, gnu: u32) -> bool {
        self.gnu_hash.as_ref().is_none_or(|table| table.passes(gnu, self.is_64, self.endian))
    }

    /// The filter of `DT_GNU_HASH` by itself.
    pub fn filter(&self) -> Filter<'t> {
        match &self.gnu_hash {
            Some(table) if self.is_64 && self.endian == Endianness::Little => Filter {
                words: table.table.get(16..).unwrap_or_default().as_chunks().0,
                mask: table.bloom_mask,
                shift: table.bloom_shift,
                is_other: false,
            },
            _ => Filter { words: &[], mask: 0, shift: 0, is_other: true },
        }
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

    /// The first symbol that the hash tables find, and how many there are from there on.
    fn hashed_range(&self) -> (u32, u32) {
        match (&self.gnu_hash, &self.hash) {
            (Some(table), _) => (table.first, table.count(self.endian)),
            (None, Some(table)) => (1, word(table, 4, self.endian).unwrap_or(0).min(self.room())),
            (None, None) => (0, 0),
        }
    }

    /// Every symbol that the hash tables find, in table order: what the file can define. Bounded by the size of the file.
    pub fn hashed(self) -> impl Iterator<Item = Symbol> + use<'t> {
        let (first, count) = self.hashed_range();
        (first..first.saturating_add(count)).map_while(move |index| self.symbol(index))
    }
}

/// The Bloom filter of one table by itself, to ask many tables for one name after another.
#[derive(Clone, Copy)]
pub struct Filter<'t> {
    words: &'t [[u8; 8]],
    mask: u32,
    shift: u32,
    /// The table has no filter of this form: [`View::may_have`] is to be asked.
    is_other: bool,
}

impl Filter<'_> {
    /// False when [`View::may_have`] says so. True when it is to be asked, or says so too.
    #[inline]
    pub fn may_have(&self, gnu: u32) -> bool {
        let Some(word) = self.words.get(((gnu >> 6) & self.mask) as usize) else { return self.is_other };
        let bits = u64::from_le_bytes(*word);
        bits.wrapping_shr(gnu) & bits.wrapping_shr(gnu.wrapping_shr(self.shift)) & 1 != 0
    }
}

/// Symbols of one name in one table. See [`View::candidates`].
pub struct Candidates<'t> {
    table: View<'t>,
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

impl<'t> GnuHash<'t> {
    /// Reads the header of a table (`_dl_setup_hash`, elf/dl-setup_hash.c).
    fn read(table: &'t [u8], is_64: bool, endian: Endianness) -> Option<GnuHash<'t>> {
        let [buckets, first, bloom_words, bloom_shift] = [0, 4, 8, 12].map(|at| word(table, at, endian));
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

    #[inline]
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
            match word(self.table, index * 4 + 16, endian) {
                Some(bits) => bits.into(),
                None => return false,
            }
        };
        // Shifting by more than the width keeps the low bits, as the processor does.
        let second = hash.wrapping_shr(self.bloom_shift) % width;
        (bits >> (hash % width)) & (bits >> second) & 1 != 0
    }

    /// The first symbol of the bucket, when the filter lets the hash pass.
    #[inline]
    fn first_of(&self, hash: u32, is_64: bool, endian: Endianness) -> Option<u32> {
        if !self.passes(hash, is_64, endian) {
            return None;
        }
        self.bucket(hash, endian)
    }

    #[inline]
    fn bucket(&self, hash: u32, endian: Endianness) -> Option<u32> {
        if self.buckets == 0 {
            return None;
        }
        let at = ((hash % self.buckets) as usize).saturating_mul(4).saturating_add(self.buckets_at);
        word(self.table, at, endian).filter(|index| *index != 0 && *index >= self.first)
    }

    #[inline]
    fn chain(&self, index: u32, endian: Endianness) -> Option<u32> {
        let place = index.checked_sub(self.first)? as usize;
        word(self.table, place.saturating_mul(4).saturating_add(self.chains_at), endian)
    }

    /// How many symbols the table finds: up to the end of the chain that begins last.
    fn count(&self, endian: Endianness) -> u32 {
        let size = (self.buckets as usize).saturating_mul(4);
        let buckets = self.table.get(self.buckets_at..).unwrap_or_default();
        let words = buckets[..size.min(buckets.len())].chunks_exact(4);
        let words = words.map(|bytes| <[u8; 4]>::try_from(bytes).unwrap_or_default());
        let last = match endian {
            Endianness::Little => words.map(u32::from_le_bytes).max(),
            Endianness::Big => words.map(u32::from_be_bytes).max(),
        };
        let Some(mut last) = last.filter(|last| *last >= self.first) else { return 0 };
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
