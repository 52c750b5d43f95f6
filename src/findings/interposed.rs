//! Symbols that another library answers than the one they were linked against: a preloaded library, one that was loaded
//! earlier, a copy of a library that is built into another one.
//!
//! Names that several loaded files define are found by the hashes that the files hold; only references to those are
//! looked at. What is so by design is left out: weak definitions (C++ code that every file has a copy of) and unique ones,
//! the parts of the C library among each other, programs that replace functions of the C library or hold copies of
//! variables, allocators, libraries of one distribution, and several copies of one library, of which another rule tells.

use std::collections::BTreeMap;

use bstr::{BStr, BString, ByteSlice};
use rayon::iter::{IntoParallelRefIterator, ParallelIterator};
use rustc_hash::{FxHashMap, FxHashSet};

use super::loading::Knowledge;
use super::symbols::answering;
use super::{Evidence, Finding, INTERPOSED, Owner, Part, demangle, telltale, words};
use crate::elf::references::{Class, Reference};
use crate::elf::symbols::{Name, Symbol, View};
use crate::ld::{How, ImageId, Process, Role};

/// Most pairs of libraries that are told of one by one.
const MAX_PAIRS: usize = 16;
/// Symbols and files that are named for a pair.
const MAX_EXAMPLES: usize = 3;
/// Slots of the set of hashes: half a million symbols fill an eighth of it.
const SLOTS: usize = 1 << 22;
/// Most definitions of names with several definitions that are looked at.
const MAX_DEFINITIONS: usize = 1 << 20;
/// Most files with one name that are compared with each other.
const MAX_RIVALS: usize = 64;

/// Parts of the C library, which define each other's functions for old programs, by stem.
const C_LIBRARY: &[&str] = &[
    "libc",
    "libm",
    "libpthread",
    "libdl",
    "librt",
    "libutil",
    "libresolv",
    "libanl",
    "libnsl",
    "libmvec",
    "libcrypt",
    "ld-linux-x86-64",
    "ld-linux",
    "ld-linux-aarch64",
];

/// Run-times of languages, of which older compilers' tools build parts into every library (`libstdc++_nonshared.a`): where
/// the run-time itself comes first, it has them all.
const RUN_TIMES: &[&str] = &["libstdc++", "libc++", "libc++abi", "libgcc_s", "libgfortran"];

/// What an allocator replaces, and where linkers put marks.
const BY_DESIGN: &[&str] = &[
    "malloc",
    "free",
    "calloc",
    "realloc",
    "reallocarray",
    "memalign",
    "aligned_alloc",
    "posix_memalign",
    "valloc",
    "pvalloc",
    "cfree",
    "malloc_usable_size",
    "mallinfo",
    "mallinfo2",
    "mallopt",
    "malloc_trim",
    "malloc_stats",
    "__libc_memalign",
    "_init",
    "_fini",
    "_edata",
    "_end",
    "__bss_start",
    "__data_start",
    "data_start",
    "_start",
    "main",
];

/// Operators `new` and `delete` in every form.
fn is_allocator(name: &BStr) -> bool {
    BY_DESIGN.iter().any(|known| name == *known)
        || [b"_Znw", b"_Zna", b"_Zdl", b"_Zda"].iter().any(|begin| name.starts_with(*begin))
}

/// A set of hashes; what it says of one it does not have may be wrong.
struct Slots(Vec<u64>);

impl Slots {
    fn new() -> Slots {
        Slots(vec![0; SLOTS / 64])
    }

    fn has(&self, hash: u32) -> bool {
        self.0[hash as usize % SLOTS / 64] >> (hash % 64) & 1 != 0
    }

    fn add(&mut self, hash: u32) {
        self.0[hash as usize % SLOTS / 64] |= 1 << (hash % 64);
    }
}

/// One of several definitions of a name.
struct Definition {
    image: ImageId,
    index: u32,
    is_strong: bool,
}

/// Who takes which symbols of whom.
#[derive(Default)]
struct Pair {
    symbols: FxHashSet<BString>,
    examples: Vec<BString>,
    referrers: Vec<ImageId>,
}

/// Finds the symbols whose winner is not the library that they were linked against. `owners` are the distributions of the
/// images.
pub fn check(process: &Process, known: &Knowledge<'_>, owners: &[Option<Owner>]) -> Vec<Finding> {
    let tables: Vec<(ImageId, View<'_>)> = (0..process.images.len() as u32)
        .map(ImageId)
        .filter(|id| process.is_loaded(*id) && process.image(*id).role != Role::Loader)
        .filter_map(|id| Some((id, process.symbols(id)?.table.view())))
        .collect();
    let rivals = Rivals::new(process, owners);
    let Shared { names, hashes } = Shared::of(&tables, &rivals);
    if names.is_empty() {
        return Vec::new();
    }
    let search = Search::new(process, &names, &hashes);
    let wanted: Vec<Vec<(Reference, &BStr, ImageId)>> =
        tables.par_iter().map(|(from, table)| search.references(*from, table)).collect();
    let mut pairs: Vec<((ImageId, ImageId), Pair)> = Vec::new();
    for ((from, _), wanted) in tables.iter().zip(wanted).filter(|(_, wanted)| !wanted.is_empty()) {
        let references: Vec<Reference> = wanted.iter().map(|(reference, ..)| *reference).collect();
        for ((_, name, expected), answer) in wanted.iter().zip(process.answers(*from, &references)) {
            let Some((winner, definition)) = answer else { continue };
            if winner == *expected || search.is_normal(&rivals, *from, name, winner, definition, *expected) {
                continue;
            }
            let key = (winner, *expected);
            let at = pairs.iter().position(|(known, _)| *known == key).unwrap_or_else(|| {
                pairs.push((key, Pair::default()));
                pairs.len() - 1
            });
            let pair = &mut pairs[at].1;
            if pair.symbols.insert((*name).to_owned()) && pair.examples.len() < MAX_EXAMPLES {
                pair.examples.push((*name).to_owned());
            }
            if !pair.referrers.contains(from) {
                pair.referrers.push(*from);
            }
        }
    }
    pairs.sort_by_key(|(key, pair)| (std::cmp::Reverse(pair.symbols.len()), *key));
    pairs.truncate(MAX_PAIRS);
    pairs.iter().map(|((winner, expected), pair)| finding(process, known, *winner, *expected, pair)).collect()
}

/// The names that several files define, one of them strongly and in vain if another one comes first.
struct Shared<'p> {
    names: FxHashMap<&'p BStr, Vec<Definition>>,
    /// Their hashes.
    hashes: Slots,
}

impl<'p> Shared<'p> {
    fn of(tables: &[(ImageId, View<'p>)], rivals: &Rivals<'_>) -> Shared<'p> {
        let (mut seen, mut shared) = (Slots::new(), Slots::new());
        // Files of one family do not count as several, nor does one name in several versions.
        let owners: Vec<Option<&str>> = tables.iter().map(|(image, _)| rivals.family(*image)).collect();
        let mut families: BTreeMap<usize, Vec<&View<'p>>> = BTreeMap::new();
        for (n, (_, table)) in tables.iter().enumerate() {
            let first = owners[n].and_then(|own| owners.iter().position(|o| *o == Some(own)));
            families.entry(first.unwrap_or(n)).or_default().push(table);
        }
        for family in families.values() {
            for table in family {
                each_hash(table, |hash| {
                    if seen.has(hash) {
                        shared.add(hash);
                    }
                });
            }
            for table in family {
                each_hash(table, |hash| seen.add(hash));
            }
        }
        let lists: Vec<Vec<(u32, Symbol)>> = tables.par_iter().map(|(_, table)| definitions(table, &shared)).collect();
        let mut strong = Slots::new();
        for (hash, _) in lists.iter().flatten().filter(|(_, symbol)| symbol.binding() == 1) {
            strong.add(*hash);
        }
        let mut names: FxHashMap<&BStr, Vec<Definition>> = FxHashMap::default();
        let mut count = 0;
        for ((image, table), list) in tables.iter().zip(&lists) {
            for (_, symbol) in list.iter().filter(|(hash, _)| strong.has(*hash)) {
                let Some(name) = table.name(symbol).filter(|_| count < MAX_DEFINITIONS) else { continue };
                count += 1;
                let (image, index, is_strong) = (*image, symbol.index, symbol.binding() == 1);
                names.entry(name).or_default().push(Definition { image, index, is_strong });
            }
        }
        let mut known: FxHashMap<(ImageId, ImageId), bool> = FxHashMap::default();
        names.retain(|_, all| {
            // What a run-time of a language has is expected of it alone.
            if all.iter().any(|d| rivals.is_one_of(d.image, RUN_TIMES)) {
                all.iter_mut().for_each(|d| d.is_strong &= rivals.is_one_of(d.image, RUN_TIMES));
            }
            // Many files with one name are all alike.
            let images: Vec<ImageId> = all.iter().map(|d| d.image).take(MAX_RIVALS).collect();
            for one in all.iter_mut().filter(|d| d.is_strong) {
                let mut others = images.iter().filter(|id| **id != one.image);
                one.is_strong = others
                    .any(|id| *known.entry((*id, one.image)).or_insert_with(|| rivals.may_displace(*id, one.image)));
            }
            all.iter().any(|d| d.is_strong)
        });
        let mut hashes = Slots::new();
        for name in names.keys() {
            hashes.add(Name::new(name).gnu >> 1);
        }
        Shared { names, hashes }
    }
}

/// The hash of every symbol that a file's hash tables find.
fn each_hash(table: &View<'_>, mut f: impl FnMut(u32)) {
    if table.has_gnu_hash() {
        table.stored_hashes().for_each(f);
        return;
    }
    for symbol in table.hashed() {
        if let Some(name) = table.hashed_name(&symbol) {
            f(name.gnu >> 1);
        }
    }
}

/// The definitions of a file whose hashes are in a set.
fn definitions(table: &View<'_>, set: &Slots) -> Vec<(u32, Symbol)> {
    let Some(first) = table.hashed().next() else { return Vec::new() };
    if table.has_gnu_hash() {
        let numbered = (first.index..).zip(table.stored_hashes()).filter(|(_, hash)| set.has(*hash));
        let symbols = numbered.filter_map(|(index, hash)| Some((hash, table.symbol(index)?)));
        return symbols.filter(|(_, symbol)| symbol.is_definition()).collect();
    }
    let symbols = table.hashed().filter(Symbol::is_definition);
    let named = symbols.filter_map(|symbol| Some((table.hashed_name(&symbol)?.gnu >> 1, symbol)));
    named.filter(|(hash, _)| set.has(*hash)).collect()
}

/// What lookups of one process share.
struct Search<'a, 'p> {
    process: &'p Process,
    names: &'a FxHashMap<&'p BStr, Vec<Definition>>,
    hashes: &'a Slots,
    /// The images that have such names strongly.
    providers: FxHashSet<ImageId>,
}

impl<'a, 'p> Search<'a, 'p> {
    fn new(process: &'p Process, names: &'a FxHashMap<&'p BStr, Vec<Definition>>, hashes: &'a Slots) -> Search<'a, 'p> {
        let all = names.values().flatten();
        let providers = all.filter(|d| d.is_strong).map(|d| d.image).collect();
        Search { process, names, hashes, providers }
    }

    /// The references of an image to shared names, each with the image that they were linked against: the one that the
    /// version is wanted from, else the first one needed that has the name, or the image itself.
    fn references(&self, from: ImageId, table: &View<'p>) -> Vec<(Reference, &'p BStr, ImageId)> {
        let Some(symbols) = self.process.symbols(from) else { return Vec::new() };
        let needs = &self.process.image(from).needs;
        // A reference to a library with versions would have one.
        let is_plain = |id: &&ImageId| {
            self.providers.contains(id)
                && self.process.symbols(**id).is_some_and(|s| !s.table.view().defines_versions())
        };
        let plain: Vec<ImageId> = needs.iter().filter(is_plain).copied().collect();
        let (is_provider, needs_providers) = (self.providers.contains(&from), !plain.is_empty());
        let mut by_version: FxHashMap<u16, Option<ImageId>> = FxHashMap::default();
        let mut out = Vec::new();
        for reference in symbols.references.iter(0..symbols.references.symbols()) {
            if reference.class == Class::Copy {
                continue;
            }
            // What the file itself says of hash and version saves reading most symbols and names.
            if table.stored_hash(reference.symbol).is_some_and(|hash| !is_provider || !self.hashes.has(hash)) {
                continue;
            }
            let version = table.version_of(reference.symbol);
            if version.is_none() && !is_provider && !needs_providers {
                continue;
            }
            let Some(symbol) = table.symbol(reference.symbol) else { continue };
            let written = match (symbol.is_undefined(), version) {
                (true, Some(version)) => {
                    let index = table.version_index(symbol.index).unwrap_or(0);
                    let file = version.file.as_ref();
                    let image =
                        *by_version.entry(index).or_insert_with(|| answering(self.process, file?.as_bstr(), from));
                    let Some(image) = image.filter(|id| self.providers.contains(id)) else { continue };
                    Some(image)
                }
                (true, None) if !needs_providers => continue,
                (true, None) => None,
                (false, _) if symbol.binding() != 1 || !is_provider => continue,
                (false, _) => Some(from),
            };
            let Some(name) = table.hashed_name(&symbol).filter(|name| self.hashes.has(name.gnu >> 1)) else { continue };
            let Some((name, all)) = self.names.get_key_value(name.bytes.as_bstr()) else { continue };
            let has = |id: ImageId| {
                all.iter().any(|d| {
                    let fits = || {
                        let defined = self.process.symbols(id).and_then(|s| s.table.version_of(d.index));
                        version.zip(defined).is_none_or(|(wanted, defined)| wanted.name == defined.name)
                    };
                    d.image == id && d.is_strong && fits()
                })
            };
            let expected = match written {
                Some(id) => Some(id).filter(|id| has(*id)),
                None => plain.iter().copied().find(|id| has(*id)),
            };
            out.extend(expected.map(|expected| (reference, *name, expected)));
        }
        out
    }

    /// True for what is so by design, or is told by another rule.
    fn is_normal(
        &self,
        rivals: &Rivals<'_>,
        from: ImageId,
        name: &BStr,
        winner: ImageId,
        definition: u32,
        expected: ImageId,
    ) -> bool {
        let process = self.process;
        let won = process.image(winner);
        // It could not win when the reference was bound.
        if !rivals.is_preloaded(winner) && won.step > process.image(from).step
            || !rivals.may_displace(winner, expected)
            || is_allocator(name) && !rivals.is_preloaded(winner)
        {
            return true;
        }
        let Some(symbols) = process.symbols(winner) else { return true };
        let Some(symbol) = symbols.table.symbol(definition) else { return true };
        // The PLT entry or the copy of a program, and what is one for the whole process.
        let is_copy = || {
            let mut own = symbols.references.iter(definition..definition.saturating_add(1));
            won.role == Role::Main && own.any(|r| r.class == Class::Copy)
        };
        symbol.is_undefined() || symbol.binding() == 10 || is_copy()
    }
}

/// What is known of two images.
struct Rivals<'p> {
    process: &'p Process,
    owners: &'p [Option<Owner>],
}

impl<'p> Rivals<'p> {
    fn new(process: &'p Process, owners: &'p [Option<Owner>]) -> Rivals<'p> {
        Rivals { process, owners }
    }

    /// The distribution whose libraries are made to work together; none for a preloaded one.
    fn family(&self, id: ImageId) -> Option<&'p str> {
        let owner = self.owners.get(id.index())?.as_ref()?;
        (!self.is_preloaded(id)).then_some(owner.package.as_str())
    }

    fn is_one_of(&self, id: ImageId, stems: &[&str]) -> bool {
        self.process.image(id).soname().is_some_and(|s| stems.iter().any(|stem| telltale::stem(s) == *stem))
    }

    fn is_preloaded(&self, id: ImageId) -> bool {
        self.process.decisions[self.process.image(id).decision.index()].how == How::Preload
    }

    /// True when it is worth a word that one image answers for another one.
    fn may_displace(&self, winner: ImageId, expected: ImageId) -> bool {
        let [won, lost] = [winner, expected].map(|id| self.process.image(id));
        let is_other_copy = won.soname().is_some() && won.soname() == lost.soname();
        if is_other_copy || self.is_one_of(winner, RUN_TIMES) || self.is_one_of(winner, C_LIBRARY) {
            return false;
        }
        if won.role == Role::Main && self.is_one_of(expected, C_LIBRARY) {
            return false;
        }
        self.family(winner).is_none_or(|package| Some(package) != self.family(expected))
    }
}

fn finding(process: &Process, known: &Knowledge<'_>, winner: ImageId, expected: ImageId, pair: &Pair) -> Finding {
    let [won, lost] = [winner, expected].map(|id| words::label(process, id));
    let count = pair.symbols.len();
    let symbols = words::count(count, "symbol", "symbols");
    let summary =
        format!("{won} answers {symbols} that {} linked to take from {lost}", if count == 1 { "was" } else { "were" });
    let names: Vec<String> = pair.examples.iter().map(|name| demangle::in_words(name.as_bstr())).collect();
    let more = count - names.len();
    let more = if more == 0 { String::new() } else { format!(" and {more} more") };
    let who: Vec<String> = pair.referrers.iter().map(|id| words::label(process, *id)).collect();
    let place = words::arrival(process, winner);
    let because = format!(
        "{won}{} comes before {lost} where {} {} looked up: {}{more}. The two may differ in what these do.",
        if place.is_empty() { String::new() } else { format!(" ({place})") },
        whose(&who),
        if count == 1 { "is" } else { "are" },
        names.join(", "),
    );
    let mut finding = Finding::new(INTERPOSED, won, summary).because(because).with(Evidence::Image(winner));
    let row = |part, id| Evidence::Copy(words::image_copy(process, known, part, id, words::arrival(process, id)));
    let askers = pair.referrers.iter().filter(|id| **id != expected).take(MAX_EXAMPLES);
    finding.evidence.extend(askers.map(|id| row(Part::AskedBy, *id)));
    finding.evidence.push(row(Part::Taken, winner));
    finding.evidence.push(row(Part::Passed, expected));
    finding
}

/// `symbols of a and b`.
fn whose(names: &[String]) -> String {
    format!("symbols of {}", words::enumerate(names))
}
