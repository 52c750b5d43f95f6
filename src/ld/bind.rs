//! Who binds to whom: every reference of the loaded images looked up as the loader does it.
//!
//! Follows `_dl_relocate_object` (elf/dl-reloc.c), `_dl_lookup_symbol_x`, `do_lookup_x` and `check_match`
//! (elf/dl-lookup.c) of glibc, and `do_relocs` and `find_sym` (ldso/dynlink.c) of musl.
//!
//! References of different images do not depend on each other, so they are looked up on several threads; what depends
//! on the order (unique symbols, the first failure, messages) is settled afterwards, in the loader's order.

mod trace;

use bstr::{BString, ByteSlice};
use rayon::iter::{IntoParallelRefIterator, ParallelIterator};
use rustc_hash::FxHashMap;

use super::dialect::Family;
use super::scope::ScopePart;
use super::store::Symbols;
use super::{ImageId, LoadFailure, OpenFlags, Process, Role, StepId, concat};
use crate::elf::references::{Class, Reference};
use crate::elf::symbols::{Name, Symbol, Version, View};

pub use self::trace::{Because, Candidate, Ending, Outside, Refusal, Standing, Trace, Wanted};

/// Whether a process looks up symbols.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub enum Lookups {
    /// No symbol is looked up: a missing one goes unnoticed.
    None,
    /// Every reference is looked up; what fails is kept.
    #[default]
    Check,
    /// Every binding is kept too.
    Record,
}

/// When a reference is bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum When {
    /// While its image is loaded.
    Load,
    /// At the first call of the function (lazy binding).
    Call,
}

impl When {
    /// The name used in reports.
    pub fn name(self) -> &'static str {
        match self {
            When::Load => "load",
            When::Call => "call",
        }
    }
}

/// One reference and the definition that answers it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Binding {
    /// The image with the reference.
    pub from: ImageId,
    /// The image with the definition.
    pub to: ImageId,
    /// Index in the symbol table of `from`.
    pub symbol: u32,
    /// Index in the symbol table of `to`.
    pub definition: u32,
    /// What the reference is for.
    pub class: Class,
    /// When it is bound. One bound at a call is shown as it would be right after the load.
    pub when: When,
}

/// A reference that nothing answers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unresolved {
    /// The image with the reference.
    pub image: ImageId,
    /// Index in its symbol table.
    pub index: u32,
    /// The symbol.
    pub symbol: BString,
    /// The version asked for.
    pub version: Option<BString>,
    /// The file that the version was to come from, as it was named at link time.
    pub version_file: Option<BString>,
    /// A weak reference gets the value 0; the program goes on. Kept only where bindings are recorded.
    pub weak: bool,
    /// When it fails.
    pub when: When,
    /// What the reference is for.
    pub class: Class,
}

impl Unresolved {
    /// The loader's text without the object in front.
    pub fn text(&self) -> BString {
        match &self.version {
            Some(version) => concat(&[b"undefined symbol: ", &self.symbol, b", version ", version]),
            None => concat(&[b"undefined symbol: ", &self.symbol]),
        }
    }
}

/// What the first call of a function that is bound late leads to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FirstCall {
    /// A definition.
    Bound {
        /// The image with the definition.
        to: ImageId,
        /// Index in its symbol table.
        definition: u32,
        /// Lines that the loader prints.
        said: Vec<BString>,
    },
    /// Address 0: nothing answers a weak reference.
    Zero,
    /// The loader ends the process with exit status 127 and this text.
    Dies(BString),
}

/// Most failing references that are kept of one process.
const MAX_UNRESOLVED: usize = 100_000;
/// Most bindings that are kept of one process.
const MAX_BINDINGS: usize = 64 << 20;
/// Fewer references than this are looked up on one thread.
const WORTH_THREADS: usize = 4096;
/// From so many images on their tables are opened on several threads.
const WORTH_OPENING: usize = 8;
/// From so many references on it is worth to list the hashes of a scope.
const WORTH_LISTING: usize = 8192;
/// References that go through one stage together.
const STAGE: usize = 256;
/// Symbols of one image whose references are looked up at a time.
const CHUNK: u32 = 4096;

/// One reference with what was found.
enum Answer {
    Bound {
        to: ImageId,
        definition: u32,
        flags: u8,
    },
    Nothing {
        weak: bool,
    },
    /// The loader dies of an assertion: the file that should have the version has none at all.
    Assertion,
}

/// What has to be settled in order.
const UNIQUE: u8 = 1;
const INDIRECT: u8 = 2;
const COPIED: u8 = 4;
const DIRECT: u8 = 8;
/// A protected reference: whatever is found, the own definition is meant.
const OWN: u8 = 16;
/// What the loader may say something about.
const REMARKABLE: u8 = INDIRECT | COPIED | DIRECT;

/// Whether a reference was settled before.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Again {
    No,
    /// Another relocation, looked up again.
    LookedUp,
    /// Another relocation right after one of the same symbol.
    Remembered,
}

/// The answers of one image, and the rest.
fn of_image(answered: &[Answered], id: ImageId) -> (&[Answered], &[Answered]) {
    answered.split_at(answered.iter().position(|a| a.image != id).unwrap_or(answered.len()))
}

/// References of one image, a chunk of them, with the answers that matter.
struct Answered {
    image: ImageId,
    answers: Vec<(Reference, Answer)>,
}

/// A scope, and which of its images can have a symbol at all.
struct Scope<'p> {
    members: Vec<(ImageId, View<'p>)>,
    /// By some bits of a symbol's hash: the first image that has such a symbol, [`NO_IMAGE`] for none. Empty when there is
    /// too little to look up.
    first: Vec<u8>,
    /// The first image whose hashes cannot be listed (it has no `DT_GNU_HASH`).
    unlisted: usize,
}

const NO_IMAGE: u8 = u8::MAX;
/// Slots of the list of first images: a quarter of a million symbols leave four of five free.
const SLOTS: usize = 1 << 20;

impl<'p> Scope<'p> {
    /// Lists which image has which hashes first. What the names of earlier images hash to is known without any name
    /// being read, so that most lookups ask one image instead of fifty.
    fn list_hashes(&mut self) {
        self.first = vec![NO_IMAGE; SLOTS];
        for (at, (_, table)) in self.members.iter().enumerate().rev() {
            if !table.has_gnu_hash() {
                self.unlisted = at;
            }
            for hash in table.stored_hashes() {
                self.first[hash as usize % SLOTS] = at.min(usize::from(NO_IMAGE - 1)) as u8;
            }
        }
    }

    /// The first image that can have a symbol of this hash (without its lowest bit).
    fn start(&self, stored_hash: u32) -> usize {
        match self.first.get(stored_hash as usize % SLOTS) {
            None => 0,
            Some(&NO_IMAGE) => self.unlisted,
            Some(at) => usize::from(*at).min(self.unlisted),
        }
    }
}

/// What lookups of one step share.
struct Lookup<'p> {
    process: &'p Process,
    /// By image.
    tables: Vec<Option<&'p Symbols>>,
    /// Each distinct scope: its lists one after the other, each image once, since it would answer the same again.
    scopes: Vec<Scope<'p>>,
    /// By image: which of them.
    scope_of: Vec<u32>,
    dynamic_weak: bool,
    prefers_exact: bool,
    asserts: bool,
    /// Libraries bind to the program's copy of their own protected data.
    shares_copies: bool,
    keeps_all: bool,
    is_musl: bool,
    /// By image; empty when it is not worth to find out. See [`Lookup::note_answered_by_itself`].
    answers_itself: Vec<bool>,
}

impl Process {
    /// Tells whether symbols are looked up; to be called before [`Process::exec`].
    pub fn with_lookups(mut self, lookups: Lookups) -> Process {
        self.lookups = lookups;
        self
    }

    /// Whether symbols are looked up.
    pub fn lookups(&self) -> Lookups {
        self.lookups
    }

    /// The symbols and references of an image; `None` for one that has none or that could not be read.
    pub fn symbols(&self, id: ImageId) -> Option<&Symbols> {
        self.store.symbols(&self.images.get(id.index())?.object)
    }

    /// The name and version of a symbol in the table of an image.
    pub fn symbol_name(&self, id: ImageId, index: u32) -> Option<(&bstr::BStr, Option<&Version>)> {
        let table = &self.symbols(id)?.table;
        let symbol = table.symbol(index)?;
        Some((table.name(&symbol)?, table.version_of(index)))
    }

    /// True when functions of this image are bound at the first call. `lazy` is what the process or `dlopen` asks for
    /// (rule R6.27).
    fn binds_late(&self, id: ImageId, lazy: bool) -> bool {
        lazy && !self.images[id.index()].facts().is_some_and(|f| f.binds_now())
    }

    /// True unless the environment asks for immediate binding (`LD_BIND_NOW`; rule R6.27).
    pub(crate) fn binds_lazily_by_default(&self) -> bool {
        let honoured = !self.host().secure || self.dialect().honours_bind_now_in_secure_mode();
        !(honoured && self.host().env.get("LD_BIND_NOW").is_some_and(|v| !v.is_empty()))
    }

    /// Relocates images at start-up: dependencies first (rules R6.5, R6.30).
    pub(crate) fn relocate_at_start(&mut self, step: StepId) -> Option<LoadFailure> {
        let mut order = self.sort_images(&self.startup_order.clone(), true, Some(ImageId(0)));
        self.images[0].sorted.clone_from(&order);
        order.reverse();
        order.retain(|id| self.image(*id).role != Role::Loader);
        if self.dialect().relocates_libc_first() {
            self.libc_first(&mut order);
        }
        let lazy = self.binds_lazily_by_default();
        self.relocate(step, &order, lazy)
    }

    /// Relocates what a `dlopen` loaded.
    pub(crate) fn relocate_opened(&mut self, step: StepId, opened: ImageId, flags: OpenFlags) -> Option<LoadFailure> {
        let mut list = self.images[opened.index()].search_list.clone();
        // The object itself comes first here, whatever filtees are in front of it in its search list.
        if let Some(at) = list.iter().position(|id| *id == opened) {
            list[..=at].rotate_right(1);
        }
        // What was loaded as a dependency before has its list of dependencies already.
        let blank = Some(opened).filter(|id| self.image(*id).step == step);
        self.images[opened.index()].sorted = self.sort_images(&list, true, blank);
        let fresh = |id: &ImageId| {
            let image = self.image(*id);
            !image.is_relocated && image.unloaded_by.is_none() && image.role == Role::Library
        };
        let mut order = if self.dialect().relocates_by_sorted_list() {
            self.images[opened.index()].sorted.clone()
        } else {
            let all = self.load_order();
            let from = all.iter().position(|id| *id == opened).unwrap_or(0);
            let new: Vec<ImageId> = all[from..].iter().copied().filter(fresh).collect();
            self.sort_images(&new, false, None)
        };
        order.retain(fresh);
        order.reverse();
        if self.dialect().relocates_libc_first() {
            self.libc_first(&mut order);
        }
        let lazy = flags.lazy && self.binds_lazily_by_default();
        self.relocate(step, &order, lazy)
    }

    fn libc_first(&self, order: &mut [ImageId]) {
        let is_libc = |id: &ImageId| self.image(*id).soname().is_some_and(|s| s == "libc.so.6");
        if let Some(at) = order.iter().position(is_libc) {
            order[..=at].rotate_right(1);
        }
    }

    /// Looks up the references of images in the given order. Returns the first failure; what the loader would not have
    /// come to after it is not recorded as bound, yet everything that fails is.
    fn relocate(&mut self, step: StepId, order: &[ImageId], lazy: bool) -> Option<LoadFailure> {
        if self.lookups == Lookups::None {
            for id in order {
                self.images[id.index()].is_relocated = true;
            }
            return None;
        }
        let answered = Lookup::new(self, order).run(order);
        self.settle_all(step, order, &answered, lazy)
    }

    fn settle_all(
        &mut self,
        step: StepId,
        order: &[ImageId],
        answered: &[Answered],
        lazy: bool,
    ) -> Option<LoadFailure> {
        let mut failure = None;
        let mut rest = answered;
        for id in order {
            let (own, after) = of_image(rest, *id);
            rest = after;
            for (reference, answer, again) in self.in_order(*id, own, false) {
                if again == Again::No {
                    self.settle(step, *id, reference, answer, lazy, &mut failure);
                } else {
                    self.settle_again(step, *id, reference, answer, lazy, again, &mut failure);
                }
            }
            if failure.is_none() {
                let is_late = self.binds_late(*id, lazy);
                let image = &mut self.images[id.index()];
                (image.is_relocated, image.is_bound_late) = (true, is_late);
            }
        }
        failure
    }

    /// The answers of one image. Where something fails or is remarked they stand in the loader's order, which costs a
    /// second look at the relocations; else the order does not matter. A remark is made for every relocation, so those
    /// come again.
    fn in_order<'a>(
        &self,
        id: ImageId,
        answered: &'a [Answered],
        plt_first: bool,
    ) -> Vec<(&'a Reference, &'a Answer, Again)> {
        let answers = answered.iter().flat_map(|a| &a.answers);
        let is_remarked = |answer: &Answer| match answer {
            Answer::Bound { to, flags, .. } => {
                flags & (COPIED | DIRECT) != 0 || flags & INDIRECT != 0 && !self.images[to.index()].is_relocated
            }
            _ => false,
        };
        let fails = |answer: &Answer| matches!(answer, Answer::Nothing { weak: false } | Answer::Assertion);
        // Of unique symbols of one name the first one that is bound is registered.
        let mut unique: FxHashMap<u32, u32> = FxHashMap::default();
        let mut is_namesake = |reference: &Reference, answer: &Answer| {
            let is_unique = matches!(answer, Answer::Bound { flags, .. } if flags & UNIQUE != 0);
            is_unique
                && self
                    .symbols(id)
                    .and_then(|s| s.table.symbol(reference.symbol))
                    .is_some_and(|symbol| *unique.entry(symbol.name_at).or_insert(reference.symbol) != reference.symbol)
        };
        let is_any = answers.clone().any(|(r, a)| fails(a) || is_remarked(a) || is_namesake(r, a));
        let Some(symbols) = self.symbols(id).filter(|_| is_any) else {
            return answers.map(|(reference, answer)| (reference, answer, Again::No)).collect();
        };
        let mut by_symbol: FxHashMap<(u32, Class), (&Reference, &Answer, Again)> =
            answers.map(|(r, answer)| ((r.symbol, r.class), (r, answer, Again::No))).collect();
        let mut out = Vec::with_capacity(by_symbol.len());
        let mut last = None;
        for key in symbols.references.every(plt_first) {
            let was_last = last.replace(key) == Some(key);
            let Some((reference, answer, again)) = by_symbol.get_mut(&key) else { continue };
            match again {
                Again::No => out.push((*reference, *answer, Again::No)),
                // One lookup serves relocations of one symbol that follow each other.
                _ if is_remarked(answer) && was_last => out.push((*reference, *answer, Again::Remembered)),
                _ if is_remarked(answer) => out.push((*reference, *answer, Again::LookedUp)),
                _ => {}
            }
            *again = Again::LookedUp;
        }
        out
    }

    /// A later relocation of a reference: only what the loader says of it.
    #[expect(clippy::too_many_arguments, reason = "the state of one relocation")]
    fn settle_again(
        &mut self,
        step: StepId,
        from: ImageId,
        reference: &Reference,
        answer: &Answer,
        lazy: bool,
        again: Again,
        failure: &mut Option<LoadFailure>,
    ) {
        let Answer::Bound { to, definition, flags } = answer else { return };
        let is_late = reference.is_late && self.binds_late(from, lazy);
        let flags = if again == Again::Remembered { flags & INDIRECT } else { flags & (INDIRECT | DIRECT) };
        if flags != 0 && !is_late && failure.is_none() {
            self.remark(step, from, reference, (*to, *definition), flags, failure);
        }
    }

    /// One answer in the loader's order: unique symbols, messages, failures.
    fn settle(
        &mut self,
        step: StepId,
        from: ImageId,
        reference: &Reference,
        answer: &Answer,
        lazy: bool,
        failure: &mut Option<LoadFailure>,
    ) {
        let is_late = reference.is_late && self.binds_late(from, lazy);
        let when = if is_late { When::Call } else { When::Load };
        match answer {
            Answer::Bound { to, definition, flags } => {
                if failure.is_some() {
                    return;
                }
                let (mut to, mut definition) = (*to, *definition);
                if flags & UNIQUE != 0 {
                    (to, definition) = self.unique(from, reference, to, definition);
                    if flags & OWN != 0 && to != from {
                        (to, definition) = (from, reference.symbol);
                    }
                }
                let is_forbidden = !is_late && self.forbids(flags & (COPIED | DIRECT), to, definition);
                if self.lookups == Lookups::Record && !is_forbidden && self.bindings.len() < MAX_BINDINGS {
                    let symbol = reference.symbol;
                    self.bindings.push(Binding { from, to, symbol, definition, class: reference.class, when });
                }
                if flags & REMARKABLE != 0 && !is_late {
                    self.remark(step, from, reference, (to, definition), *flags, failure);
                }
            }
            Answer::Nothing { weak } => {
                if *weak && self.lookups != Lookups::Record || self.unresolved.len() >= MAX_UNRESOLVED {
                    return;
                }
                let Some((name, version)) = self.symbol_name(from, reference.symbol) else { return };
                let unresolved = Unresolved {
                    image: from,
                    index: reference.symbol,
                    symbol: name.to_owned(),
                    version: version.map(|v| v.name.clone()),
                    version_file: version.and_then(|v| v.file.clone()),
                    weak: *weak,
                    when,
                    class: reference.class,
                };
                if when == When::Load && !weak && failure.is_none() && !self.lists_only() {
                    let mut first = LoadFailure::new(self.label_of(from), unresolved.text(), 0);
                    first.is_symbol = true;
                    *failure = Some(first);
                }
                self.unresolved.push(unresolved);
            }
            Answer::Assertion => {
                if when == When::Load && failure.is_none() {
                    *failure = Some(LoadFailure::new("", self.assertion_text(), 0));
                }
            }
        }
    }

    /// `STB_GNU_UNIQUE`: the first binding of a name in the process decides for all later ones
    /// (`do_lookup_unique`, elf/dl-lookup.c; rule R6.17).
    fn unique(&mut self, from: ImageId, reference: &Reference, to: ImageId, definition: u32) -> (ImageId, u32) {
        let Some((name, _)) = self.symbol_name(from, reference.symbol) else { return (to, definition) };
        let name = name.to_owned();
        let registered = self.unique.get(&name).copied().filter(|(image, _)| self.is_loaded(*image));
        match registered {
            Some(_) if reference.class == Class::Copy => (to, definition),
            Some(known) => known,
            None => {
                let entry = if reference.class == Class::Copy { (from, reference.symbol) } else { (to, definition) };
                self.unique.insert(name, entry);
                (to, definition)
            }
        }
    }

    /// True when a library forbids that the program stands in for its protected symbols (since 2.35,
    /// `_dl_check_protected_symbol`, elf/dl-protected.h; rule R6.20).
    fn forbids(&self, flags: u8, library: ImageId, definition: u32) -> bool {
        flags != 0
            && self.dialect().warns_of_copied_protected_data()
            && self.images[library.index()].facts().is_some_and(|f| f.needs_indirect_access)
            && self.symbols(library).and_then(|s| s.table.symbol(definition)).is_some_and(|s| s.is_protected())
    }

    /// The end of a process that a library forbids.
    fn forbidden(&self, name: &bstr::BStr, library: ImageId) -> BString {
        let tail = b": error due to GNU_PROPERTY_1_NEEDED_INDIRECT_EXTERN_ACCESS";
        concat(&[&self.argv0, b": ", name, b": ", &self.label_of(library), tail])
    }

    /// What the loader says about an indirect function, a copy, or the address of a protected function (rules R6.18,
    /// R6.20, R6.21).
    fn remark(
        &mut self,
        step: StepId,
        from: ImageId,
        reference: &Reference,
        (to, definition): (ImageId, u32),
        flags: u8,
        failure: &mut Option<LoadFailure>,
    ) {
        let symbol_of = |id: ImageId, index: u32| self.symbols(id).and_then(|s| s.table.symbol(index));
        let (Some(wanted), Some(found)) = (symbol_of(from, reference.symbol), symbol_of(to, definition)) else {
            return;
        };
        let Some((name, _)) = self.symbol_name(from, reference.symbol) else { return };
        let label = |id: ImageId| self.label_of(id);
        let mut lines = Vec::new();
        if reference.class == Class::Copy {
            if found.is_protected() && self.dialect().warns_of_copied_protected_data() {
                let text: [&[u8]; 5] = [
                    b"warning: copy relocation against non-copyable protected symbol `",
                    name,
                    b"' in `",
                    &label(to),
                    b"'",
                ];
                lines.push(concat(&text));
            }
            if found.size > wanted.size {
                let tail: &[u8] = b"' has different size in shared object, consider re-linking";
                lines.push(concat(&[&self.argv0, b": Symbol `", name, tail]));
            }
        }
        if flags & DIRECT != 0 {
            lines.push(direct_reference(name, label(to).as_bstr()));
        }
        if reference.class != Class::Copy
            && found.kind() == INDIRECT_FUNCTION
            && !found.is_undefined()
            && to != from
            && !self.images[to.index()].is_relocated
        {
            if to == ImageId(0) {
                let text: [&[u8]; 6] = [
                    &self.argv0,
                    b": IFUNC symbol '",
                    name,
                    b"' referenced in '",
                    &label(from),
                    b"' is defined in the executable and creates an unsatisfiable circular dependency.",
                ];
                *failure = Some(LoadFailure::new("", concat(&text), 0));
            } else {
                let text: [&[u8]; 8] = [
                    &self.argv0,
                    b": Relink `",
                    &label(from),
                    b"' with `",
                    &label(to),
                    b"' for IFUNC symbol `",
                    name,
                    b"'",
                ];
                lines.push(concat(&text));
            }
        }
        if self.forbids(flags & (COPIED | DIRECT), to, definition) {
            lines.truncate(1);
            *failure = Some(LoadFailure::new("", self.forbidden(name, to), 0));
        }
        self.steps[step.index()].warnings.extend(lines);
    }

    /// Functions that are bound at the first call and that nothing answered may have got a definition meanwhile: scopes
    /// grow with every `dlopen` (rules R6.8, R6.9).
    pub(crate) fn retry_late_lookups(&mut self) {
        if !self.unresolved.iter().any(|u| u.when == When::Call && !u.weak) {
            return;
        }
        let all = std::mem::take(&mut self.unresolved);
        let mut found = Vec::new();
        let mut left = Vec::new();
        let images: Vec<ImageId> =
            all.iter().filter(|u| u.when == When::Call && self.is_loaded(u.image)).map(|u| u.image).collect();
        {
            // musl asks the global list alone (`redo_lazy_relocs`).
            let lookup = match self.is_musl() {
                true => Lookup::in_one_list(self, &images, self.global.iter().copied()),
                false => Lookup::new(self, &images),
            };
            for unresolved in all {
                let is_late = unresolved.when == When::Call && !unresolved.weak && self.is_loaded(unresolved.image);
                let reference = Reference {
                    symbol: unresolved.index,
                    class: unresolved.class,
                    is_late: true,
                    is_static_tls: false,
                    is_got: false,
                };
                match is_late.then(|| lookup.answer(unresolved.image, &reference)).flatten() {
                    Some(Answer::Bound { to, definition, .. }) => found.push(Binding {
                        from: unresolved.image,
                        to,
                        symbol: unresolved.index,
                        definition,
                        class: unresolved.class,
                        when: When::Call,
                    }),
                    _ => left.push(unresolved),
                }
            }
        }
        self.unresolved = left;
        if self.lookups == Lookups::Record {
            self.bindings.extend(found);
        }
    }

    /// What the first call of a function does now: the scope is walked as it is at the moment of the call (`_dl_fixup`,
    /// elf/dl-runtime.c; rule R6.29). `symbol` is the index in the table of `from`. `None` when nothing is looked up for
    /// that symbol: the own definition is called. A local symbol is looked up here, unlike at a load.
    pub fn first_call(&mut self, from: ImageId, symbol: u32) -> Option<FirstCall> {
        let reference = Reference { symbol, class: Class::Plt, is_late: true, is_static_tls: false, is_got: false };
        let answer = {
            let lookup = Lookup::new(self, &[from]);
            let table = lookup.tables.get(from.index()).copied().flatten()?.table.view();
            let wanted = table.symbol(symbol)?;
            if wanted.is_hidden() || wanted.is_protected() {
                return None;
            }
            if !self.images[from.index()].is_bound_late {
                // Nothing is looked up any more: a weak reference without an answer has got the address 0.
                return (wanted.binding() != 0).then_some(FirstCall::Zero);
            }
            let scope = &lookup.scopes[lookup.scope_of[from.index()] as usize];
            let name = table.hashed_name(&wanted)?;
            lookup.answer_named(from, &table, scope, &reference, &wanted, &name, scope.start(name.gnu >> 1))
        };
        Some(match answer {
            Answer::Bound { to, definition, flags } => {
                let (to, definition) = match flags & UNIQUE != 0 {
                    true => self.unique(from, &reference, to, definition),
                    false => (to, definition),
                };
                let mut said = Vec::new();
                if flags & DIRECT != 0 {
                    let (name, _) = self.symbol_name(from, symbol)?;
                    said.push(direct_reference(name, self.label_of(to).as_bstr()));
                    if self.forbids(flags, to, definition) {
                        said.push(self.forbidden(name, to));
                        return Some(FirstCall::Dies(bstr::join("\n", said).into()));
                    }
                }
                FirstCall::Bound { to, definition, said }
            }
            Answer::Nothing { weak: true } => FirstCall::Zero,
            Answer::Nothing { weak: false } => {
                let (name, version) = self.symbol_name(from, symbol)?;
                let mut text = concat(&[b"undefined symbol: ", name]);
                if let Some(version) = version {
                    text.extend_from_slice(b", version ");
                    text.extend_from_slice(&version.name);
                }
                let failure = LoadFailure::new(self.label_of(from), text, 0);
                FirstCall::Dies(self.symbol_error_at_start(&failure, self.argv0.as_bstr()))
            }
            Answer::Assertion => FirstCall::Dies(self.assertion_text().into()),
        })
    }

    fn assertion_text(&self) -> String {
        let line = self.dialect().unversioned_provider_assertion_line().unwrap_or(0);
        format!(
            "Inconsistency detected by ld.so: dl-lookup.c: {line}: check_match: Assertion \
             `version->filename == NULL || ! _dl_name_match_p (version->filename, map)' failed!"
        )
    }

    /// The frame that start-up puts around a failed lookup (rule R8.1).
    pub(crate) fn symbol_error_at_start(&self, failure: &LoadFailure, argv0: &bstr::BStr) -> BString {
        if failure.object.is_empty() {
            return failure.text.clone();
        }
        concat(&[argv0, b": symbol lookup error: ", &failure.dlerror()])
    }
}

/// `STT_GNU_IFUNC`.
const INDIRECT_FUNCTION: u8 = 10;
/// `STB_GNU_UNIQUE`.
const UNIQUE_BINDING: u8 = 10;
/// `STT_TLS`.
const THREAD_LOCAL: u8 = 6;
/// `STT_OBJECT`.
const OBJECT: u8 = 1;
/// `STT_FUNC`.
const FUNCTION: u8 = 2;
/// Most symbols of one name that are looked at for a copy relocation.
const MAX_COPIES: usize = 64;
/// NOTYPE, OBJECT, FUNC, COMMON, TLS, GNU_IFUNC (`ALLOWED_STT`).
const ALLOWED_KINDS: u16 = 1 | 1 << 1 | 1 << 2 | 1 << 5 | 1 << 6 | 1 << 10;

/// True for a symbol with a value, of a kind that answers a reference (`check_match`; rule R6.15).
fn can_answer(symbol: &Symbol) -> bool {
    (symbol.value != 0 || symbol.is_absolute() || symbol.kind() == THREAD_LOCAL)
        && ALLOWED_KINDS >> symbol.kind() & 1 != 0
}

/// What a candidate is to a reference (`check_match`).
enum Match {
    Yes,
    No(Refusal),
    /// Only if the file has no other one.
    Perhaps,
    Assertion,
}

impl<'p> Lookup<'p> {
    /// For images of glibc, each with its scope.
    fn new(process: &'p Process, order: &[ImageId]) -> Lookup<'p> {
        if order.len() >= WORTH_OPENING {
            let _: Vec<bool> = order.par_iter().map(|id| process.symbols(*id).is_some()).collect();
        }
        let mut lookup = Lookup::empty(process);
        let mut known: FxHashMap<&[ScopePart], u32> = FxHashMap::default();
        for id in order {
            let scope = process.images[id.index()].scope.as_slice();
            let number = match known.get(scope) {
                Some(number) => *number,
                None => {
                    let members = scope.iter().flat_map(|part| process.scope_list(part)).copied();
                    let number = lookup.add_scope(members);
                    known.insert(scope, number);
                    number
                }
            };
            lookup.look_from(*id, number);
        }
        lookup
    }

    /// For images that all see the same list.
    fn in_one_list(process: &'p Process, order: &[ImageId], list: impl Iterator<Item = ImageId>) -> Lookup<'p> {
        let mut lookup = Lookup::empty(process);
        let number = lookup.add_scope(list);
        for id in order {
            lookup.look_from(*id, number);
        }
        lookup
    }

    fn empty(process: &'p Process) -> Lookup<'p> {
        Lookup {
            process,
            tables: vec![None; process.images.len()],
            scopes: Vec::new(),
            scope_of: vec![0; process.images.len()],
            dynamic_weak: !process.host().secure && process.host().env.get("LD_DYNAMIC_WEAK").is_some(),
            prefers_exact: process.dialect().prefers_exact_version(),
            asserts: process.dialect().unversioned_provider_assertion_line().is_some(),
            shares_copies: !process.dialect().warns_of_copied_protected_data(),
            keeps_all: process.lookups == Lookups::Record,
            is_musl: process.is_musl(),
            answers_itself: Vec::new(),
        }
    }

    fn add_scope(&mut self, members: impl Iterator<Item = ImageId>) -> u32 {
        let process = self.process;
        let mut seen = vec![false; process.images.len()];
        let mut list = Vec::new();
        for member in members {
            if std::mem::replace(&mut seen[member.index()], true) || !process.is_loaded(member) {
                continue;
            }
            if let Some(symbols) = process.symbols(member) {
                list.push((member, symbols.table.view()));
            }
        }
        self.scopes.push(Scope { unlisted: list.len(), members: list, first: Vec::new() });
        self.scopes.len() as u32 - 1
    }

    fn look_from(&mut self, id: ImageId, scope: u32) {
        self.tables[id.index()] = self.process.symbols(id);
        self.scope_of[id.index()] = scope;
    }

    /// Notes of which images the references to their own definitions need no lookup as long as nobody wants to know who
    /// wins: there is a definition in any case. What could still be said of the winner is that it is an indirect function
    /// of an image that is not relocated yet.
    fn note_answered_by_itself(&mut self, order: &[ImageId]) {
        self.answers_itself = vec![false; self.process.images.len()];
        if self.keeps_all || self.is_musl {
            return;
        }
        let mut later: Vec<bool> = vec![false; self.process.images.len()];
        for id in order.iter().rev() {
            let scope = &self.scopes[self.scope_of[id.index()] as usize];
            let in_front = scope.members.iter().map(|(member, _)| *member).take_while(|member| member != id);
            let mut unrelocated = in_front.filter(|member| later[member.index()]);
            let tells = |member: ImageId| self.process.symbols(member).is_some_and(Symbols::has_indirect_functions);
            self.answers_itself[id.index()] = !unrelocated.any(tells);
            later[id.index()] = true;
        }
    }

    /// Looks up everything that the images refer to; the answers in their order.
    fn run(mut self, order: &[ImageId]) -> Vec<Answered> {
        let mut work: Vec<(ImageId, std::ops::Range<u32>)> = Vec::new();
        let mut count = 0;
        let mut by_scope = vec![0; self.scopes.len()];
        for id in order {
            let Some(symbols) = self.tables[id.index()] else { continue };
            count += symbols.references.len();
            by_scope[self.scope_of[id.index()] as usize] += symbols.references.len();
            let end = symbols.references.symbols();
            work.extend((0..end).step_by(CHUNK as usize).map(|from| (*id, from..end.min(from + CHUNK))));
        }
        for (scope, count) in self.scopes.iter_mut().zip(by_scope) {
            if count > WORTH_LISTING {
                scope.list_hashes();
            }
        }
        if count > WORTH_LISTING {
            self.note_answered_by_itself(order);
        }
        let answer = |(image, symbols): &(ImageId, std::ops::Range<u32>)| self.answer_chunk(*image, symbols.clone());
        if count < WORTH_THREADS { work.iter().map(answer).collect() } else { work.par_iter().map(answer).collect() }
    }

    /// Works in stages over a few hundred symbols at a time: what one stage touches lies in memory in order or does not
    /// depend on the step before, so that the processor waits for many places at once.
    fn answer_chunk(&self, image: ImageId, symbols: std::ops::Range<u32>) -> Answered {
        let mut answers = Vec::new();
        let Some(own) = self.tables[image.index()] else { return Answered { image, answers } };
        let table = own.table.view();
        let scope = &self.scopes[self.scope_of[image.index()] as usize];
        if self.keeps_all {
            answers.reserve_exact(symbols.len());
        }
        let mut wanted: Vec<(Reference, Symbol, usize)> = Vec::with_capacity(STAGE);
        let mut rest: Vec<(Reference, Symbol, Name<'_>, usize)> = Vec::with_capacity(STAGE);
        let mut references = own.references.iter(symbols);
        let answers_itself = self.answers_itself.get(image.index()).is_some_and(|own| *own);
        let leads = scope.members.first().is_some_and(|(first, _)| *first == image);
        // Found by the hash table, of a kind that answers, and not asked for in another version than its own.
        let defines = |symbol: &Symbol| {
            !symbol.is_undefined()
                && matches!(symbol.binding(), 1 | 2)
                && table.stored_hash(symbol.index).is_some()
                && can_answer(symbol)
                && (!table.defines_versions() || table.version_of(symbol.index).is_some())
        };
        loop {
            wanted.clear();
            rest.clear();
            let mut taken = 0;
            for reference in references.by_ref().take(STAGE) {
                taken += 1;
                let Some(symbol) = table.symbol(reference.symbol) else { continue };
                if self.means_its_own(&symbol) {
                    continue;
                }
                if answers_itself && reference.class != Class::Copy && defines(&symbol) {
                    continue;
                }
                let start = match table.stored_hash(symbol.index) {
                    Some(_) if leads && !symbol.is_undefined() => 0,
                    Some(hash) if !symbol.is_undefined() => scope.start(hash),
                    _ => usize::MAX,
                };
                wanted.push((reference, symbol, start));
            }
            if taken == 0 {
                break;
            }
            for (reference, symbol, start) in wanted.drain(..) {
                if self.is_own(image, &table, scope, &symbol, &reference, start) {
                    if self.keeps_all {
                        answers.push((reference, Answer::Bound { to: image, definition: symbol.index, flags: 0 }));
                    }
                } else if let Some(name) = table.hashed_name(&symbol) {
                    let start = scope.start(name.gnu >> 1);
                    rest.push((reference, symbol, name, start));
                }
            }
            for (reference, symbol, name, start) in rest.drain(..) {
                let answer = self.answer_named(image, &table, scope, &reference, &symbol, &name, start);
                let matters = match answer {
                    Answer::Bound { flags, .. } => flags != 0,
                    Answer::Nothing { weak } => !weak,
                    Answer::Assertion => true,
                };
                if self.keeps_all || matters {
                    answers.push((reference, answer));
                }
            }
        }
        Answered { image, answers }
    }

    /// True for a reference that is bound without a lookup (rule R6.18). musl knows no visibility.
    fn means_its_own(&self, wanted: &Symbol) -> bool {
        wanted.binding() == 0 || wanted.is_hidden() && !self.is_musl
    }

    /// One reference by itself; `None` when nothing is looked up for it.
    fn answer(&self, from: ImageId, reference: &Reference) -> Option<Answer> {
        let table = self.tables[from.index()]?.table.view();
        let wanted = table.symbol(reference.symbol)?;
        if self.means_its_own(&wanted) {
            return None;
        }
        let scope = &self.scopes[self.scope_of[from.index()] as usize];
        let name = table.hashed_name(&wanted)?;
        Some(self.answer_named(from, &table, scope, reference, &wanted, &name, scope.start(name.gnu >> 1)))
    }

    /// `RESOLVE_MAP` and `_dl_lookup_symbol_x` for one reference. Images in front of `start` cannot have the symbol.
    #[expect(clippy::too_many_arguments, reason = "the state of one lookup")]
    fn answer_named(
        &self,
        from: ImageId,
        table: &View<'_>,
        scope: &Scope<'p>,
        reference: &Reference,
        wanted: &Symbol,
        name: &Name<'_>,
        start: usize,
    ) -> Answer {
        if self.is_musl {
            return self.answer_musl(&scope.members, name, wanted, reference);
        }
        let version = table.version_of(reference.symbol);
        let members = scope.members.get(start..).unwrap_or_default();
        let found = self.find(members, name, version, reference.class);
        let (to, symbol) = match found {
            Ok(Some(found)) => found,
            Ok(None) => return Answer::Nothing { weak: wanted.is_weak() },
            Err(Asserts) => return Answer::Assertion,
        };
        let mut flags = 0;
        if symbol.binding() == UNIQUE_BINDING {
            flags |= UNIQUE;
        }
        if symbol.kind() == INDIRECT_FUNCTION && to != from {
            flags |= INDIRECT;
        }
        if reference.class == Class::Copy {
            flags |= COPIED;
        }
        // A function of the program whose address is that of its PLT entry (`_dl_check_protected_symbol`).
        if symbol.is_protected()
            && from == ImageId(0)
            && to != from
            && reference.class != Class::Copy
            && wanted.is_undefined()
            && wanted.value != 0
            && wanted.kind() == FUNCTION
            && !self.shares_copies
        {
            flags |= DIRECT;
        }
        let mut answer = Answer::Bound { to, definition: symbol.index, flags };
        if wanted.is_protected() && to != from {
            // The own definition is meant, unless its address is that of a copy or a PLT entry in the program, which a
            // second lookup as for a call tells apart.
            let stands_elsewhere = if reference.class.is_plt() {
                true
            } else if self.shares_copies && reference.is_got && wanted.kind() == OBJECT {
                // Up to 2.34 a program may have a copy of protected data, and only such a copy is passed over.
                let has_copy = |id: ImageId| id == ImageId(0) && self.is_copy(name);
                let others: Vec<_> = members.iter().filter(|(id, _)| !has_copy(*id)).copied().collect();
                let again = self.find(&others, name, version, Class::Other);
                matches!(again, Ok(Some((other, _))) if other != from)
            } else {
                let again = self.find(members, name, version, Class::Plt);
                matches!(again, Ok(Some((other, _))) if other != from)
            };
            if stands_elsewhere {
                answer = Answer::Bound { to: from, definition: reference.symbol, flags: 0 };
            }
        }
        if wanted.is_protected() && symbol.binding() == UNIQUE_BINDING && reference.class != Class::Copy {
            // The search registers what it finds all the same.
            answer = Answer::Bound { to, definition: symbol.index, flags: UNIQUE | OWN };
        }
        answer
    }

    /// True when the program has a copy relocation for a symbol of that name.
    fn is_copy(&self, name: &Name<'_>) -> bool {
        let Some(symbols) = self.process.symbols(ImageId(0)) else { return false };
        let mut named = symbols.table.view().candidates(name).map(|s| s.index).take(MAX_COPIES);
        named.any(|index| symbols.references.iter(index..index + 1).any(|r| r.class == Class::Copy))
    }

    /// The commonest case of large C++ libraries: what the file refers to it defines itself, and no image in front of it
    /// has a symbol of that hash (`start`). Then no name needs to be read.
    fn is_own(
        &self,
        from: ImageId,
        table: &View<'_>,
        scope: &Scope<'_>,
        wanted: &Symbol,
        reference: &Reference,
        start: usize,
    ) -> bool {
        if scope.first.is_empty()
            || scope.members.get(start).is_none_or(|(first, _)| *first != from)
            || reference.class == Class::Copy
            || !matches!(wanted.binding(), 1 | 2)
            || self.dynamic_weak
            || self.is_musl
        {
            return false;
        }
        // Of several versions in one file the chain decides, unless the very version is asked for.
        let version = table.version_of(reference.symbol);
        (!table.defines_versions() || version.is_some())
            && matches!(self.check(from, table, wanted, version, reference.class), Match::Yes)
    }

    /// `do_lookup_x` over the lists of a scope.
    fn find(
        &self,
        scope: &[(ImageId, View<'p>)],
        name: &Name<'_>,
        version: Option<&Version>,
        class: Class,
    ) -> Result<Option<(ImageId, Symbol)>, Asserts> {
        let mut first_weak = None;
        for (id, table) in scope {
            if !table.may_have(name.gnu) || class == Class::Copy && *id == ImageId(0) {
                continue;
            }
            let Some(symbol) = self.find_in(*id, table, name, version, class)? else { continue };
            if symbol.is_hidden() {
                continue;
            }
            match symbol.binding() {
                2 if self.dynamic_weak => {
                    first_weak.get_or_insert((*id, symbol));
                }
                1 | 2 | UNIQUE_BINDING => return Ok(Some((*id, symbol))),
                _ => {}
            }
        }
        Ok(first_weak)
    }

    fn find_in(
        &self,
        id: ImageId,
        table: &View<'_>,
        name: &Name<'_>,
        version: Option<&Version>,
        class: Class,
    ) -> Result<Option<Symbol>, Asserts> {
        let mut fallback = None;
        let mut fallbacks = 0;
        for symbol in table.candidates(name) {
            match self.check(id, table, &symbol, version, class) {
                Match::Yes => return Ok(Some(symbol)),
                Match::No(_) => {}
                Match::Perhaps => {
                    fallbacks += 1;
                    fallback.get_or_insert(symbol);
                }
                Match::Assertion => return Err(Asserts),
            }
        }
        Ok(fallback.filter(|_| fallbacks == 1))
    }

    /// `check_match` (rules R6.15, R7.5, R7.6).
    fn check(&self, id: ImageId, table: &View<'_>, symbol: &Symbol, version: Option<&Version>, class: Class) -> Match {
        if !can_answer(symbol) || class.is_plt() && symbol.is_undefined() {
            return Match::No(Refusal::NoDefinition);
        }
        let index = table.version_index(symbol.index);
        match (version, index) {
            (None, None) => Match::Yes,
            (None, Some(index)) => match index & 0x7fff {
                0..3 => Match::Yes,
                _ if index & 0x8000 == 0 => Match::Perhaps,
                _ => Match::No(Refusal::OldVersion),
            },
            (Some(version), None) => {
                let is_the_file =
                    || version.file.as_ref().is_some_and(|file| self.process.answers_to(id, file.as_bstr()));
                if self.asserts && is_the_file() { Match::Assertion } else { Match::Yes }
            }
            (Some(version), Some(index)) => match table.version(index) {
                Some(own) if own.hash == version.hash && own.name == version.name => Match::Yes,
                Some(_) => Match::No(Refusal::OtherVersion),
                None if version.hidden || index & 0x8000 != 0 => Match::No(Refusal::Unversioned),
                None if self.prefers_exact => Match::Perhaps,
                None => Match::Yes,
            },
        }
    }
}

fn direct_reference(name: &bstr::BStr, library: &bstr::BStr) -> BString {
    let text: [&[u8]; 5] = [
        b"warning: direct reference to protected function `",
        name,
        b"' in `",
        library,
        b"' may break pointer equality",
    ];
    concat(&text)
}

/// The loader dies in `check_match`.
struct Asserts;

/// Names whose form with `64` at the end musl 1.2.4 and later answer by the plain function (`get_lfs64`,
/// ldso/dynlink.c).
const MUSL_LARGE_FILE_NAMES: &str = "aio_cancel aio_error aio_fsync aio_read aio_return aio_suspend aio_write alphasort \
    creat fallocate fgetpos fopen freopen fseeko fsetpos fstat fstatat fstatfs fstatvfs ftello ftruncate ftw getdents \
    getrlimit glob globfree lio_listio lockf lseek lstat mkostemp mkostemps mkstemp mkstemps mmap nftw open openat \
    posix_fadvise posix_fallocate pread preadv prlimit pwrite pwritev readdir scandir sendfile setrlimit stat statfs \
    statvfs tmpfile truncate versionsort __fxstat __fxstatat __lxstat __xstat";

/// The plain name, for one of those.
fn plain_large_file_name(name: &[u8]) -> Option<&[u8]> {
    if name == b"readdir64_r" {
        return Some(b"readdir_r");
    }
    let plain = name.strip_suffix(b"64")?;
    MUSL_LARGE_FILE_NAMES.split(' ').any(|known| known.as_bytes() == plain).then_some(plain)
}

/// The symbol of a file that musl looks at: versions count for nothing, but a hidden one is passed over.
fn musl_candidate(table: &View<'_>, name: &Name<'_>) -> Option<Symbol> {
    table.candidates(name).find(|s| table.version_index(s.index).unwrap_or(0) & 0x8000 == 0)
}

fn musl_accepts(symbol: &Symbol, needs_definition: bool) -> bool {
    !(symbol.is_undefined() && (needs_definition || symbol.kind() == THREAD_LOCAL))
        && (symbol.value != 0 || symbol.kind() == THREAD_LOCAL)
        && (ALLOWED_KINDS & !(1 << INDIRECT_FUNCTION)) >> symbol.kind() & 1 != 0
        && matches!(symbol.binding(), 1 | 2 | UNIQUE_BINDING)
}

impl Lookup<'_> {
    /// `find_sym` of musl: no versions (but a hidden one is passed over), no visibility (rule R10.11).
    fn answer_musl(
        &self,
        scope: &[(ImageId, View<'_>)],
        name: &Name<'_>,
        wanted: &Symbol,
        reference: &Reference,
    ) -> Answer {
        let needs_definition = reference.class == Class::Plt;
        let skipped = if reference.class == Class::Copy { Some(ImageId(0)) } else { None };
        let find = |name: &Name<'_>, only: Option<ImageId>, needs_definition: bool| {
            scope.iter().filter(|(id, _)| Some(*id) != skipped && only.is_none_or(|only| only == *id)).find_map(
                |(id, table)| {
                    let symbol = musl_candidate(table, name)?;
                    musl_accepts(&symbol, needs_definition).then_some((*id, symbol))
                },
            )
        };
        let found = find(name, None, needs_definition).or_else(|| {
            let plain =
                plain_large_file_name(name.bytes).filter(|_| self.process.dialect().has_musl_large_file_names())?;
            find(&Name::new(plain), Some(ImageId(1)), true)
        });
        match found {
            Some((to, symbol)) => Answer::Bound { to, definition: symbol.index, flags: 0 },
            // A weak symbol that the file itself defines is an error too.
            None => Answer::Nothing { weak: wanted.is_undefined() && wanted.is_weak() },
        }
    }
}

impl Process {
    /// Relocates what is not relocated yet, with one list of images for everything (`reloc_all`; rules R10.10 to
    /// R10.13). At start-up every failure is told; a `dlopen` ends at the first one.
    pub(crate) fn relocate_musl(&mut self, opened: Option<(ImageId, OpenFlags)>) -> Vec<(LoadFailure, BString)> {
        let mut list = self.global.clone();
        let mut order: Vec<ImageId> =
            (0..self.images.len() as u32).map(ImageId).filter(|id| !self.images[id.index()].is_relocated).collect();
        order.retain(|id| self.is_loaded(*id) && self.image(*id).role != Role::Loader);
        if let Some((id, _)) = opened {
            list.extend_from_slice(&self.images[id.index()].search_list);
        } else if order.first() == Some(&ImageId(0)) {
            order.rotate_left(1);
        }
        let mut errors = Vec::new();
        let answered = match self.lookups {
            Lookups::None => Vec::new(),
            _ => Lookup::in_one_list(self, &order, list.into_iter()).run(&order),
        };
        let lazy = opened.is_some_and(|(_, flags)| flags.lazy);
        let mut rest = answered.as_slice();
        for id in &order {
            let (own, after) = of_image(rest, *id);
            rest = after;
            let answers = self.in_order(*id, own, true);
            let late = lazy && !self.images[id.index()].facts().is_some_and(|f| f.binds_now());
            for (reference, answer, _) in answers {
                let when = match late && (reference.is_late || reference.is_got) {
                    true => When::Call,
                    false => When::Load,
                };
                let name = self.symbol_name(*id, reference.symbol).map(|(name, _)| name.to_owned()).unwrap_or_default();
                match answer {
                    Answer::Bound { to, definition, .. } => {
                        // Only what is missing is put off (rule R10.12).
                        if self.lookups == Lookups::Record && self.bindings.len() < MAX_BINDINGS {
                            self.bindings.push(Binding {
                                from: *id,
                                to: *to,
                                symbol: reference.symbol,
                                definition: *definition,
                                class: reference.class,
                                when: When::Load,
                            });
                        }
                    }
                    Answer::Nothing { weak } => {
                        if self.unresolved.len() >= MAX_UNRESOLVED || *weak && self.lookups != Lookups::Record {
                            continue;
                        }
                        if !weak && when == When::Load {
                            let mut failure =
                                LoadFailure::new(self.label_of(*id), concat(&[&name, b": symbol not found"]), 0);
                            failure.is_symbol = true;
                            let line = concat(&[b"Error relocating ", &failure.object, b": ", &failure.text]);
                            errors.push((failure, line));
                        }
                        self.unresolved.push(Unresolved {
                            image: *id,
                            index: reference.symbol,
                            symbol: name,
                            version: None,
                            version_file: None,
                            weak: *weak,
                            when,
                            class: reference.class,
                        });
                    }
                    Answer::Assertion => {}
                }
            }
            self.images[id.index()].is_relocated = true;
        }
        errors
    }
}

impl Process {
    /// `_dl_name_match_p`: does an image answer to a name by its path or a name it learnt?
    fn answers_to(&self, id: ImageId, name: &bstr::BStr) -> bool {
        let image = &self.images[id.index()];
        image.name == name || image.names.iter().any(|known| known == name)
    }

    /// The name of an image in messages: the program's is the one it was started by.
    fn label_of(&self, id: ImageId) -> BString {
        if id == ImageId(0) { self.argv0.clone() } else { self.images[id.index()].name.clone() }
    }

    /// True for musl, whose lookup knows no versions.
    pub(crate) fn is_musl(&self) -> bool {
        self.dialect().family == Family::Musl
    }
}
