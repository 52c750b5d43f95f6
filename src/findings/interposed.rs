//! Symbols that another library answers than the one they were linked against: a preloaded library, one that was loaded
//! earlier, a copy of a library that is built into another one.
//!
//! Names that several loaded files define are found by the hashes that the files hold; only references to those are
//! looked at. What is so by design is left out: weak definitions (C++ code that every file has a copy of) and unique ones,
//! the parts of the C library among each other, programs that replace functions of the C library or hold copies of
//! variables, allocators, libraries of one distribution, and several copies of one library, of which another rule tells.

use bstr::{BStr, BString, ByteSlice};
use rayon::iter::{IntoParallelRefIterator, ParallelIterator};
use rustc_hash::{FxHashMap, FxHashSet};

use super::loading::Knowledge;
use super::symbols::answering;
use super::{Evidence, Finding, INTERPOSED, Part, demangle, telltale, words};
use crate::elf::references::{Class, Reference};
use crate::elf::symbols::{Symbol, View};
use crate::ld::{How, ImageId, Process, Role};

/// Most pairs of libraries that are told of one by one.
const MAX_PAIRS: usize = 16;
/// Symbols and files that are named for a pair.
const MAX_EXAMPLES: usize = 3;
/// Slots of the set of hashes: half a million symbols fill an eighth of it.
const SLOTS: usize = 1 << 22;
/// Most definitions of names with several definitions that are looked at.
const MAX_DEFINITIONS: usize = 1 << 20;

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

/// Finds the symbols whose winner is not the library that they were linked against.
pub fn check(process: &Process, known: &Knowledge<'_>) -> Vec<Finding> {
    let tables: Vec<(ImageId, View<'_>)> = (0..process.images.len() as u32)
        .map(ImageId)
        .filter(|id| process.is_loaded(*id) && process.image(*id).role != Role::Loader)
        .filter_map(|id| Some((id, process.symbols(id)?.table.view())))
        .collect();
    let Shared { names, hashes } = Shared::of(&tables);
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
            if winner == *expected || search.is_normal(known, *from, name, winner, definition, *expected) {
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

/// The names that several files define, one of them strongly.
struct Shared<'p> {
    names: FxHashMap<&'p BStr, Vec<Definition>>,
    /// Their hashes, and others.
    hashes: Slots,
}

impl<'p> Shared<'p> {
    fn of(tables: &[(ImageId, View<'p>)]) -> Shared<'p> {
        let (mut seen, mut shared) = (Slots::new(), Slots::new());
        for (_, table) in tables {
            // Twice: what a file has in several versions is not shared for that.
            each_hash(table, |hash| {
                if seen.has(hash) {
                    shared.add(hash);
                }
            });
            each_hash(table, |hash| seen.add(hash));
        }
        let mut strong = Slots::new();
        for (_, table) in tables {
            each_definition(table, &shared, |hash, symbol| {
                if symbol.binding() == 1 {
                    strong.add(hash);
                }
            });
        }
        let mut out: FxHashMap<&BStr, Vec<Definition>> = FxHashMap::default();
        let mut count = 0;
        for (image, table) in tables {
            each_definition(table, &strong, |_, symbol| {
                let Some(name) = table.name(&symbol).filter(|_| count < MAX_DEFINITIONS) else { return };
                count += 1;
                let (image, index, is_strong) = (*image, symbol.index, symbol.binding() == 1);
                out.entry(name).or_default().push(Definition { image, index, is_strong });
            });
        }
        out.retain(|_, all| all.iter().any(|d| d.image != all[0].image) && all.iter().any(|d| d.is_strong));
        Shared { names: out, hashes: strong }
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
fn each_definition(table: &View<'_>, set: &Slots, mut f: impl FnMut(u32, Symbol)) {
    if !table.has_gnu_hash() {
        for symbol in table.hashed().filter(Symbol::is_definition) {
            if let Some(name) = table.hashed_name(&symbol).filter(|name| set.has(name.gnu >> 1)) {
                f(name.gnu >> 1, symbol);
            }
        }
        return;
    }
    let Some(first) = table.hashed().next() else { return };
    for (index, hash) in (first.index..).zip(table.stored_hashes()) {
        if set.has(hash)
            && let Some(symbol) = table.symbol(index).filter(Symbol::is_definition)
        {
            f(hash, symbol);
        }
    }
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
        let needs_providers = needs.iter().any(|id| self.providers.contains(id));
        let mut by_version: FxHashMap<u16, Option<ImageId>> = FxHashMap::default();
        let mut out = Vec::new();
        for reference in symbols.references.iter(0..symbols.references.symbols()) {
            if reference.class == Class::Copy {
                continue;
            }
            let Some(symbol) = table.symbol(reference.symbol) else { continue };
            let version = table.version_of(symbol.index);
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
                (false, _) if symbol.binding() != 1 || !self.providers.contains(&from) => continue,
                // What the file itself says of the hash saves reading the name.
                (false, _) if table.stored_hash(symbol.index).is_some_and(|hash| !self.hashes.has(hash)) => continue,
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
                None => needs.iter().copied().find(|id| has(*id)),
            };
            out.extend(expected.map(|expected| (reference, *name, expected)));
        }
        out
    }

    /// True for what is so by design, or is told by another rule.
    fn is_normal(
        &self,
        known: &Knowledge<'_>,
        from: ImageId,
        name: &BStr,
        winner: ImageId,
        definition: u32,
        expected: ImageId,
    ) -> bool {
        let process = self.process;
        let [won, lost] = [winner, expected].map(|id| process.image(id));
        // It could not win when the reference was bound.
        if won.step > process.image(from).step || won.soname().is_some() && won.soname() == lost.soname() {
            return true;
        }
        let is_one_of = |id: ImageId, stems: &[&str]| {
            process.image(id).soname().is_some_and(|s| stems.iter().any(|stem| telltale::stem(s) == *stem))
        };
        let is_of_libc = |id: ImageId| is_one_of(id, C_LIBRARY);
        if is_one_of(winner, RUN_TIMES) || is_of_libc(winner) {
            return true;
        }
        let is_preloaded = process.decisions[won.decision.index()].how == How::Preload;
        if is_of_libc(expected) && won.role == Role::Main || !is_preloaded && is_allocator(name) {
            return true;
        }
        let Some(symbols) = process.symbols(winner) else { return true };
        let Some(symbol) = symbols.table.symbol(definition) else { return true };
        // The PLT entry or the copy of a program, and what is one for the whole process.
        let is_copy = || {
            let mut own = symbols.references.iter(definition..definition.saturating_add(1));
            won.role == Role::Main && own.any(|r| r.class == Class::Copy)
        };
        if symbol.is_undefined() || symbol.binding() == 10 || is_copy() {
            return true;
        }
        let owner = |id: ImageId| {
            let image = process.image(id);
            words::owner(known, image.name.as_bstr(), Some(&image.object)).map(|o| o.package)
        };
        !is_preloaded && owner(winner).is_some_and(|package| Some(package) == owner(expected))
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
