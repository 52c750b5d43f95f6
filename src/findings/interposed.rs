//! Symbols that another library answers than the one they were linked against: a preloaded library, one that was loaded
//! earlier, a copy of a library that is built into another one.
//!
//! The winners are those of the lookups; what is asked here is whether the library meant has the symbol too. What is so by design is left out: weak definitions (C++ code that every file has a copy of) and unique ones,
//! the parts of the C library among each other, programs that replace functions of the C library or hold copies of
//! variables, allocators, libraries of one distribution, and several copies of one library, of which another rule tells.

use bstr::{BStr, BString, ByteSlice};
use rayon::iter::{IntoParallelRefIterator, ParallelIterator};
use rustc_hash::{FxHashMap, FxHashSet};

use super::loading::Knowledge;
use super::symbols::answering;
use super::{Evidence, Finding, INTERPOSED, Owner, Part, demangle, telltale, words};
use crate::discover::copies::unhashed;
use crate::elf::references::Class;
use crate::elf::symbols::{Name, Symbol, Version, View};
use crate::ld::{Binding, How, ImageId, Lookups, Process, Role};
use crate::system::parent;

/// Most pairs of libraries that are told of one by one.
const MAX_PAIRS: usize = 16;
/// Symbols and files that are named for a pair.
const MAX_EXAMPLES: usize = 3;

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

/// Who takes which symbols of whom.
#[derive(Default)]
struct Pair {
    symbols: FxHashSet<BString>,
    examples: Vec<BString>,
    referrers: Vec<ImageId>,
}

/// Finds the symbols whose winner is not the library that they were linked against. Of those that a file with very many
/// references defines itself (more than 8192) only where every binding is recorded (`--bindings`).
pub fn check(process: &Process, known: &Knowledge<'_>, owners: &[Option<Owner>]) -> Vec<Finding> {
    let bindings = match process.lookups() {
        Lookups::Record => &process.bindings,
        _ => &process.imports,
    };
    let rivals = Rivals::new(process, owners);
    let views: Vec<Option<View<'_>>> =
        (0..process.images.len() as u32).map(|id| Some(process.symbols(ImageId(id))?.table.view())).collect();
    // Many symbols, few pairs of images.
    let mut worth: FxHashMap<(ImageId, ImageId), bool> = FxHashMap::default();
    // Those of one image stand together.
    let groups: Vec<&[Binding]> = bindings.parts().flat_map(|part| part.chunk_by(|a, b| a.from == b.from)).collect();
    let found: Vec<Vec<Interposed<'_>>> =
        groups.par_iter().map(|group| Search::new(process, &views).among(group)).collect();
    let mut pairs: Vec<((ImageId, ImageId), Pair)> = Vec::new();
    for Interposed { binding, name, expected } in found.into_iter().flatten() {
        let key = (binding.to, expected);
        let is_worth = *worth.entry(key).or_insert_with(|| rivals.may_displace(binding.to, expected));
        if !is_worth || is_normal(&rivals, name, binding, expected) {
            continue;
        }
        let at = pairs.iter().position(|(known, _)| *known == key).unwrap_or_else(|| {
            pairs.push((key, Pair::default()));
            pairs.len() - 1
        });
        let pair = &mut pairs[at].1;
        if pair.symbols.insert(name.to_owned()) && pair.examples.len() < MAX_EXAMPLES {
            pair.examples.push(name.to_owned());
        }
        if !pair.referrers.contains(&binding.from) {
            pair.referrers.push(binding.from);
        }
    }
    pairs.sort_by_key(|(key, pair)| (std::cmp::Reverse(pair.symbols.len()), *key));
    pairs.truncate(MAX_PAIRS);
    pairs.iter().map(|((winner, expected), pair)| finding(process, known, *winner, *expected, pair)).collect()
}

/// A symbol that came from elsewhere.
struct Interposed<'p> {
    binding: &'p Binding,
    name: &'p BStr,
    /// The image that it was linked against.
    expected: ImageId,
}

/// What the references of one image share.
struct Search<'a, 'p> {
    process: &'p Process,
    /// By image.
    views: &'a [Option<View<'p>>],
    /// By version index: the image that answers to the file which the version is wanted from.
    by_version: FxHashMap<u16, Option<ImageId>>,
    /// By image: its place in the scope of the referring one.
    places: Vec<usize>,
    /// By winner: the images that a symbol without version can have been linked against instead.
    meant: FxHashMap<ImageId, Vec<ImageId>>,
}

impl<'a, 'p> Search<'a, 'p> {
    fn new(process: &'p Process, views: &'a [Option<View<'p>>]) -> Search<'a, 'p> {
        Search { process, views, by_version: FxHashMap::default(), places: Vec::new(), meant: FxHashMap::default() }
    }

    fn view(&self, id: ImageId) -> Option<&'a View<'p>> {
        self.views.get(id.index())?.as_ref()
    }

    fn among(mut self, bindings: &'p [Binding]) -> Vec<Interposed<'p>> {
        let Some(from) = bindings.first().map(|b| b.from) else { return Vec::new() };
        let Some(table) = self.view(from) else { return Vec::new() };
        self.places = vec![usize::MAX; self.process.images.len()];
        let scope = self.process.image(from).scope.iter().flat_map(|part| self.process.scope_list(part));
        for (place, image) in scope.enumerate() {
            let known = &mut self.places[image.index()];
            *known = place.min(*known);
        }
        let mut out = Vec::new();
        for binding in bindings.iter().filter(|b| b.class != Class::Copy) {
            let Some(symbol) = table.symbol(binding.symbol) else { continue };
            // What a file defines itself and gets is as it was linked.
            if binding.to == from && !symbol.is_undefined() {
                continue;
            }
            if let Some(expected) = self.expected(table, binding, &symbol)
                && expected != binding.to
                && let Some(name) = table.name(&symbol)
            {
                out.push(Interposed { binding, name, expected });
            }
        }
        out
    }

    /// The image that a symbol was linked against: the one that its version is wanted from, else the first one needed that
    /// has it, or the image itself. `None` when there is no such image, or it has the symbol weakly at most. What stands in
    /// front of the winner in the scope does not have the symbol, or it would have won.
    fn expected(&mut self, table: &View<'p>, binding: &Binding, symbol: &Symbol) -> Option<ImageId> {
        let (process, from) = (self.process, binding.from);
        if !symbol.is_undefined() {
            return Some(from).filter(|_| symbol.binding() == 1);
        }
        let version = table.version_of(symbol.index);
        if let Some(version) = version {
            let index = table.version_index(symbol.index).unwrap_or(0);
            let file = version.file.as_ref();
            let answers = || answering(process, file?.as_bstr(), from);
            let image = (*self.by_version.entry(index).or_insert_with(answers))?;
            if image == binding.to {
                return Some(image);
            }
            let name = table.hashed_name(symbol)?;
            return self.has(image, &name, Some(version))?.then_some(image);
        }
        let (winner, places) = (binding.to, &self.places);
        let meant = self.meant.entry(winner).or_insert_with(|| {
            let needs = process.image(from).needs.iter().copied().take_while(|id| *id != winner);
            needs.filter(|id| places[id.index()] > places[winner.index()]).collect()
        });
        if meant.is_empty() {
            return Some(winner);
        }
        let meant = std::mem::take(meant);
        let name = table.hashed_name(symbol);
        let expected = name.and_then(|name| meant.iter().copied().find(|id| self.has(*id, &name, None) == Some(true)));
        self.meant.insert(winner, meant);
        Some(expected.unwrap_or(winner))
    }

    /// True when an image defines a name strongly.
    fn has(&self, id: ImageId, name: &Name<'_>, version: Option<&Version>) -> Option<bool> {
        let table = self.view(id)?;
        let fits = |symbol: &Symbol| {
            let defined = table.version_of(symbol.index);
            version.zip(defined).is_none_or(|(wanted, defined)| wanted.name == defined.name)
        };
        // A reference to a library with versions would have one.
        if version.is_none() && table.defines_versions() {
            return Some(false);
        }
        Some(
            table.may_have(name.gnu)
                && table.candidates(name).any(|s| s.is_definition() && s.binding() == 1 && fits(&s)),
        )
    }
}

/// True for what is so by design, or is told by another rule.
fn is_normal(rivals: &Rivals<'_>, name: &BStr, binding: &Binding, expected: ImageId) -> bool {
    let process = rivals.process;
    let Binding { from, to: winner, definition, .. } = *binding;
    let won = process.image(winner);
    // It could not win when the reference was bound.
    if !rivals.is_preloaded(winner) && won.step > process.image(from).step
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
    // Compilers for old systems build into a library what the run-time there lacks, and all other copies of it are meant.
    let fills_in = from == expected && rivals.is_one_of(expected, RUN_TIMES);
    fills_in || symbol.is_undefined() || symbol.binding() == 10 || is_copy() || rivals.is_of_a_run_time(name, expected)
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
        self.process.image(id).soname().is_some_and(|s| stems.iter().any(|stem| unhashed(telltale::stem(s)) == *stem))
    }

    fn is_preloaded(&self, id: ImageId) -> bool {
        self.process.decisions[self.process.image(id).decision.index()].how == How::Preload
    }

    /// True when a run-time of a language has a name: it is expected of that alone.
    fn is_of_a_run_time(&self, name: &BStr, expected: ImageId) -> bool {
        let images = (0..self.process.images.len() as u32).map(ImageId);
        !self.is_one_of(expected, RUN_TIMES)
            && images
                .filter(|id| self.process.is_loaded(*id) && self.is_one_of(*id, RUN_TIMES))
                .any(|id| self.process.symbols(id).is_some_and(|s| s.table.defines(name)))
    }

    /// True when it is worth a word that one image answers for another one.
    fn may_displace(&self, winner: ImageId, expected: ImageId) -> bool {
        let [won, lost] = [winner, expected].map(|id| self.process.image(id));
        let is_other_copy = won.soname().zip(lost.soname()).is_some_and(|(won, lost)| is_same_library(won, lost));
        if is_other_copy || self.is_one_of(winner, RUN_TIMES) || self.is_one_of(winner, C_LIBRARY) {
            return false;
        }
        if won.role == Role::Main && self.is_one_of(expected, C_LIBRARY) {
            return false;
        }
        // What lies in one directory of a Python package was built for each other, also where no distribution is known.
        let directory = parent(won.object.real_path());
        let is_of_a_package =
            [b"/site-packages/".as_slice(), b"/dist-packages/"].iter().any(|n| directory.contains_str(n));
        if is_of_a_package && !self.is_preloaded(winner) && directory == parent(lost.object.real_path()) {
            return false;
        }
        self.family(winner).is_none_or(|package| Some(package) != self.family(expected))
    }
}

/// True for names of one library, hashes left aside.
fn is_same_library(a: &BStr, b: &BStr) -> bool {
    let [(stem_a, rest_a), (stem_b, rest_b)] = [a, b].map(|name| name.split_at(telltale::stem(name).len()));
    rest_a == rest_b && unhashed(stem_a.as_bstr()) == unhashed(stem_b.as_bstr())
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
        "{won}{} comes before {lost} where {} are looked up: {}{more}. The two may differ in what {} do{}.",
        if place.is_empty() { String::new() } else { format!(" ({place})") },
        whose(&who),
        names.join(", "),
        if count == 1 { "it" } else { "these" },
        if count == 1 { "es" } else { "" },
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
