//! Lookups: a reference of one image answered from its scope.
//!
//! Follows `_dl_lookup_symbol_x`, `do_lookup_x` and `check_match` (elf/dl-lookup.c) of glibc.

use std::borrow::Cow;

use bstr::ByteSlice;
use rayon::iter::{IntoParallelRefIterator, ParallelIterator};
use rustc_hash::FxHashMap;

use super::{Binding, Lookups, Refusal, When};
use crate::elf::references::{Asked, Class, Reference};
use crate::elf::symbols::{Filter, Name, Symbol, Version, View, touch};
use crate::ld::scope::ScopePart;
use crate::ld::store::{Object, Symbols};
use crate::ld::{ImageId, Process};

/// Fewer references than this are looked up on one thread.
pub(super) const WORTH_THREADS: usize = 4096;
/// From so many images on their tables are opened on several threads.
pub(super) const WORTH_OPENING: usize = 8;
/// From so many references on it can be worth to list the hashes of a scope.
const WORTH_LISTING: usize = 8192;
/// Where nobody asks who wins, a file with up to so many references is asked all the same whether it gets its own strong
/// definitions.
const WORTH_ASKING: usize = 8192;
/// References that go through one stage together.
pub(super) const STAGE: usize = 256;
/// Most references that relocations make to one symbol: one for each class, and one more for other addresses than those
/// of the global offset table.
const MAX_REFERENCES: usize = 4;
/// Symbols of one image whose references are looked up at a time where every binding is recorded.
pub(super) const CHUNK: u32 = 4096;

/// What was found for one reference.
#[derive(Clone, Copy)]
pub(super) enum Answer {
    Bound {
        to: ImageId,
        definition: u32,
        flags: u8,
    },
    Nothing {
        weak: bool,
    },
    /// The loader dies: glibc of an assertion, because the file that should have the version has none at all; musl of a
    /// weak reference to thread-local storage that nothing defines.
    Dies,
}

/// What has to be settled in order.
pub(super) const UNIQUE: u8 = 1;
pub(super) const INDIRECT: u8 = 2;
pub(super) const COPIED: u8 = 4;
pub(super) const DIRECT: u8 = 8;
/// A protected reference: whatever is found, the own definition is meant.
pub(super) const OWN: u8 = 16;
/// What the loader may say something about.
pub(super) const REMARKABLE: u8 = INDIRECT | COPIED | DIRECT;

/// References of one image, a chunk of them, with the answers that matter.
pub(super) struct Answered {
    pub(super) image: ImageId,
    /// Plain answers, about which nothing has to be settled. Where bindings are not recorded only those to other images are
    /// kept.
    pub(super) bindings: Vec<Binding>,
    /// The others.
    pub(super) answers: Vec<(Reference, Answer)>,
}

/// A reference and its own symbol.
type Wanted = (Reference, Symbol);

/// The symbols of one image that something is looked up for.
type WantedOf<'p> = (ImageId, Cow<'p, [(u32, Asked)]>);

/// A reference whose name is looked up.
struct Pending<'n> {
    wanted: Wanted,
    name: Name<'n>,
    /// The first image of the scope that can have the symbol.
    start: usize,
    /// The first symbol there of that hash, when it is known; else 0.
    index: u32,
}

impl Pending<'_> {
    /// Passes over the images whose filter says that they do not have the name. Where the form of a filter is not the
    /// usual one, the hash table itself tells.
    fn pass_filters(&mut self, scope: &Scope<'_>) {
        let filters = scope.filters.get(self.start..).unwrap_or_default();
        let passed = filters.iter().position(|filter| filter.may_have(self.name.gnu));
        self.start += passed.unwrap_or(filters.len());
    }
}

/// A plain answer.
fn bound(from: ImageId, reference: &Reference, to: ImageId, definition: u32, is_late: bool) -> Binding {
    let when = if is_late && reference.is_late { When::Call } else { When::Load };
    Binding { from, to, symbol: reference.symbol, definition, class: reference.class, when }
}

/// A scope, and which of its images can have a symbol at all.
pub(super) struct Scope<'p> {
    pub(super) members: Vec<(ImageId, View<'p>)>,
    /// Of each of them.
    filters: Vec<Filter<'p>>,
    /// By some bits of a symbol's hash: the first image that has such a symbol, [`NO_IMAGE`] for none. Empty when there is
    /// too little to look up.
    pub(super) first: Vec<u8>,
    /// The first image whose hashes cannot be listed (it has no `DT_GNU_HASH`).
    pub(super) unlisted: usize,
}

pub(super) const NO_IMAGE: u8 = u8::MAX;
/// Slots of the list of first images: a quarter of a million symbols leave four of five free.
pub(super) const SLOTS: usize = 1 << 20;

impl<'p> Scope<'p> {
    /// Of these images, in order.
    pub(super) fn new(members: Vec<(ImageId, View<'p>)>) -> Scope<'p> {
        let filters = members.iter().map(|(_, table)| table.filter()).collect();
        Scope { unlisted: members.len(), members, filters, first: Vec::new() }
    }

    /// Lists which image has which hashes first. What the names of earlier images hash to is known without any name
    /// being read, so that most lookups ask one image instead of fifty.
    fn list_hashes(&mut self) {
        self.unlisted = self.members.iter().position(|(_, t)| !t.has_gnu_hash()).unwrap_or(self.members.len());
        // Each thread lists what falls into its half. It looks at all hashes for that, which lie in a row.
        let list = |half: &mut [u8], upper: bool| {
            for (at, (_, table)) in self.members.iter().enumerate().rev() {
                let value = at.min(usize::from(NO_IMAGE - 1)) as u8;
                for slot in table.stored_hashes().map(|hash| hash as usize % SLOTS) {
                    if (slot >= SLOTS / 2) == upper {
                        half[slot % (SLOTS / 2)] = value;
                    }
                }
            }
        };
        let mut first = vec![NO_IMAGE; SLOTS];
        let (lower, upper) = first.split_at_mut(SLOTS / 2);
        rayon::join(|| list(lower, false), || list(upper, true));
        self.first = first;
    }

    /// Listing costs a little for every symbol of the scope; without it a lookup asks the filters of the images in turn.
    fn is_worth_listing(&self, lookups: usize) -> bool {
        let symbols = self.members.iter().map(|(_, table)| 3 * table.buckets() as usize).sum::<usize>();
        lookups > WORTH_LISTING && lookups.saturating_mul(self.members.len()) / 4 > symbols
    }

    /// The first image that can have a symbol of this hash (without its lowest bit).
    pub(super) fn start(&self, stored_hash: u32) -> usize {
        match self.first.get(stored_hash as usize % SLOTS) {
            None => 0,
            Some(&NO_IMAGE) => self.unlisted,
            Some(at) => usize::from(*at).min(self.unlisted),
        }
    }
}

/// What lookups of one step share.
pub(super) struct Lookup<'p> {
    pub(super) process: &'p Process,
    /// By image.
    pub(super) tables: Vec<Option<&'p Symbols>>,
    /// Each distinct scope: its lists one after the other, each image once, since it would answer the same again.
    pub(super) scopes: Vec<Scope<'p>>,
    /// By image: which of them.
    pub(super) scope_of: Vec<u32>,
    pub(super) dynamic_weak: bool,
    pub(super) prefers_exact: bool,
    pub(super) asserts: bool,
    /// Libraries bind to the program's copy of their own protected data.
    pub(super) shares_copies: bool,
    pub(super) keeps_all: bool,
    pub(super) is_musl: bool,
    /// By image: whether its functions are bound at the first call.
    pub(super) binds_late: Vec<bool>,
    /// By image; empty when it is not worth to find out. See [`Lookup::note_answered_by_itself`].
    pub(super) answers_itself: Vec<bool>,
}

/// `STT_GNU_IFUNC`.
pub(super) const INDIRECT_FUNCTION: u8 = 10;
/// `STB_GNU_UNIQUE`.
pub(super) const UNIQUE_BINDING: u8 = 10;
/// `STT_TLS`.
pub(super) const THREAD_LOCAL: u8 = 6;
/// `STT_OBJECT`.
pub(super) const OBJECT: u8 = 1;
/// `STT_FUNC`.
pub(super) const FUNCTION: u8 = 2;
/// Most symbols of one name that are looked at for a copy relocation.
pub(super) const MAX_COPIES: usize = 64;
/// NOTYPE, OBJECT, FUNC, COMMON, TLS, GNU_IFUNC (`ALLOWED_STT`).
pub(super) const ALLOWED_KINDS: u16 = 1 | 1 << 1 | 1 << 2 | 1 << 5 | 1 << 6 | 1 << 10;

/// True for a symbol with a value, of a kind that answers a reference (`check_match`; rule R6.15).
pub(super) fn can_answer(symbol: &Symbol) -> bool {
    (symbol.value != 0 || symbol.is_absolute() || symbol.kind() == THREAD_LOCAL)
        && ALLOWED_KINDS >> symbol.kind() & 1 != 0
}

impl Symbols {
    /// What needs a lookup even where nobody wants to know who wins: all but references to own definitions that answer
    /// them in any case. Those are found by the hash table, of a kind that answers, and not asked for in another version
    /// than their own. Of smaller files it is asked all the same whether they get their own strong definitions.
    pub(in crate::ld) fn outward(&self) -> &[(u32, Asked)] {
        self.outward.get_or_init(|| {
            let asks_who_wins = self.references.len() <= WORTH_ASKING;
            let table = self.table.view();
            let mut out = Vec::new();
            for (index, asked) in self.references.asked(0..self.references.symbols()) {
                let Some(symbol) = table.symbol(index) else { continue };
                let is_answered = !symbol.is_undefined()
                    && (symbol.binding() == 2 || symbol.binding() == 1 && !asks_who_wins)
                    && can_answer(&symbol)
                    && !asked.is_copied()
                    && table.is_hashed(index)
                    && (!table.defines_versions() || table.version_of(index).is_some());
                if !is_answered && !means_its_own(&symbol) {
                    out.push((index, asked));
                }
            }
            out
        })
    }
}

/// True for a reference that glibc binds without a lookup (rule R6.18).
fn means_its_own(wanted: &Symbol) -> bool {
    wanted.binding() == 0 || wanted.is_hidden()
}

/// What a candidate is to a reference (`check_match`).
pub(super) enum Match {
    Yes,
    No(Refusal),
    /// Only if the file has no other one.
    Perhaps,
    Assertion,
}

impl<'p> Lookup<'p> {
    /// For images of glibc, each with its scope.
    pub(super) fn new(process: &'p Process, order: &[ImageId]) -> Lookup<'p> {
        if order.len() >= WORTH_OPENING {
            let objects: Vec<&Object> = order.iter().map(|id| &*process.images[id.index()].object).collect();
            process.store.read_symbols(&objects, process.lookups != Lookups::Record);
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
    pub(super) fn in_one_list(
        process: &'p Process,
        order: &[ImageId],
        list: impl Iterator<Item = ImageId>,
    ) -> Lookup<'p> {
        let mut lookup = Lookup::empty(process);
        let number = lookup.add_scope(list);
        for id in order {
            lookup.look_from(*id, number);
        }
        lookup
    }

    pub(super) fn empty(process: &'p Process) -> Lookup<'p> {
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
            binds_late: vec![false; process.images.len()],
            answers_itself: Vec::new(),
        }
    }

    pub(super) fn add_scope(&mut self, members: impl Iterator<Item = ImageId>) -> u32 {
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
        self.scopes.push(Scope::new(list));
        self.scopes.len() as u32 - 1
    }

    /// Which of the images bind functions at the first call.
    pub(super) fn binding_late(mut self, is_late: impl Fn(ImageId) -> bool, order: &[ImageId]) -> Lookup<'p> {
        for id in order {
            self.binds_late[id.index()] = is_late(*id);
        }
        self
    }

    pub(super) fn look_from(&mut self, id: ImageId, scope: u32) {
        self.tables[id.index()] = self.process.symbols(id);
        self.scope_of[id.index()] = scope;
    }

    /// Notes of which images the references to their own definitions need no lookup as long as nobody wants to know who
    /// wins: there is a definition in any case. What could still be said of the winner is that it is an indirect function
    /// of an image that is not relocated yet.
    pub(super) fn note_answered_by_itself(&mut self, order: &[ImageId]) {
        self.answers_itself = vec![false; self.process.images.len()];
        if self.is_musl {
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
    pub(super) fn run(mut self, order: &[ImageId]) -> Vec<Answered> {
        let symbols_of = |id: &ImageId| self.tables[id.index()].map(|symbols| (*id, symbols));
        let images: Vec<(ImageId, &'p Symbols)> = order.iter().filter_map(symbols_of).collect();
        let count: usize = images.iter().map(|(_, own)| own.references.len()).sum();
        let is_worth_threads = count >= WORTH_THREADS;
        // Where most references need no lookup, those that do are told apart first, each file's once for all processes.
        let wanted: Option<Vec<WantedOf<'p>>> = (is_worth_threads && !self.keeps_all).then(|| {
            self.note_answered_by_itself(order);
            let wanted = images.par_iter().map(|(image, own)| match self.answers_itself[image.index()] {
                true => (*image, Cow::Borrowed(own.outward())),
                false => (*image, Cow::Owned(self.wanted(own, 0..own.references.symbols()).collect())),
            });
            wanted.collect()
        });
        let mut by_scope = vec![0; self.scopes.len()];
        let mut note = |image: &ImageId, count: usize| by_scope[self.scope_of[image.index()] as usize] += count;
        match &wanted {
            Some(wanted) => wanted.iter().for_each(|(image, wanted)| note(image, wanted.len())),
            None => images.iter().for_each(|(image, own)| note(image, own.references.len())),
        }
        for (scope, count) in self.scopes.iter_mut().zip(by_scope) {
            if scope.is_worth_listing(count) {
                scope.list_hashes();
            }
        }
        let Some(wanted) = wanted else {
            let chunks = images.iter().flat_map(|(image, own)| {
                let end = own.references.symbols();
                (0..end).step_by(CHUNK as usize).map(move |from| (*image, *own, from..end.min(from + CHUNK)))
            });
            let answer = |(image, own, range): &(ImageId, &'p Symbols, std::ops::Range<u32>)| {
                let count = own.references.asked(range.clone()).count();
                self.answer_all(*image, count, own.references.asked(range.clone()))
            };
            return match is_worth_threads {
                true => chunks.collect::<Vec<_>>().par_iter().map(answer).collect(),
                false => chunks.map(|chunk| answer(&chunk)).collect(),
            };
        };
        // What a file takes from others stands together in its symbol table: shared out in small parts.
        let parts: Vec<(ImageId, &[(u32, Asked)])> =
            wanted.iter().flat_map(|(image, wanted)| wanted.chunks(STAGE).map(|part| (*image, part))).collect();
        parts.par_iter().map(|(image, part)| self.answer_all(*image, part.len(), part.iter().copied())).collect()
    }

    /// The symbols of one image, in a range of indexes, that something is looked up for.
    fn wanted(&self, own: &'p Symbols, symbols: std::ops::Range<u32>) -> impl Iterator<Item = (u32, Asked)> {
        let table = own.table.view();
        let is_wanted = move |index| table.symbol(index).is_some_and(|symbol| !self.means_its_own(&symbol));
        own.references.asked(symbols).filter(move |(index, _)| is_wanted(*index))
    }

    /// Takes up the references to the next symbols until there are enough for a stage.
    fn take_stage(&self, table: &View<'p>, wanted: &mut impl Iterator<Item = (u32, Asked)>, stage: &mut Vec<Wanted>) {
        stage.clear();
        while stage.len() < STAGE - MAX_REFERENCES + 1
            && let Some((index, asked)) = wanted.next()
        {
            let Some(symbol) = table.symbol(index).filter(|symbol| !self.means_its_own(symbol)) else { continue };
            let is_apart = self.tells_addresses_apart(&symbol);
            stage.extend(asked.references_apart(index, is_apart).map(|reference| (reference, symbol)));
        }
    }

    /// Works in stages over a few hundred references at a time: what one stage touches lies in memory in order or does
    /// not depend on the step before, so that the processor waits for many places at once. `count`: about so many symbols.
    fn answer_all(&self, image: ImageId, count: usize, mut wanted: impl Iterator<Item = (u32, Asked)>) -> Answered {
        let mut out = Answered { image, bindings: Vec::with_capacity(count), answers: Vec::new() };
        let Some(own) = self.tables[image.index()] else { return out };
        let table = own.table.view();
        let scope = &self.scopes[self.scope_of[image.index()] as usize];
        let is_late = self.binds_late[image.index()];
        let leads = scope.members.first().is_some_and(|(first, _)| *first == image);
        let mut own_starts = [usize::MAX; STAGE];
        let mut stage: Vec<Wanted> = Vec::with_capacity(STAGE);
        let mut others: Vec<Wanted> = Vec::with_capacity(STAGE);
        let mut rest: Vec<Pending<'_>> = Vec::with_capacity(STAGE);
        loop {
            self.take_stage(&table, &mut wanted, &mut stage);
            if stage.is_empty() {
                return out;
            }
            for ((_, symbol), start) in stage.iter().zip(&mut own_starts) {
                *start = match table.stored_hash(symbol.index) {
                    Some(_) if leads && !symbol.is_undefined() => 0,
                    Some(hash) if !symbol.is_undefined() => scope.start(hash),
                    _ => usize::MAX,
                };
            }
            others.clear();
            for (wanted, start) in stage.iter().zip(own_starts) {
                let (reference, symbol) = wanted;
                if !self.is_own(image, &table, scope, symbol, reference, start) {
                    others.push(*wanted);
                } else if self.keeps_all {
                    out.bindings.push(bound(image, reference, image, symbol.index, is_late));
                }
            }
            touch(others.iter().map(|(_, symbol)| table.name_byte(symbol)));
            rest.clear();
            for wanted in &others {
                if let Some(name) = table.hashed_name(&wanted.1) {
                    let start = scope.start(name.gnu >> 1);
                    rest.push(Pending { wanted: *wanted, name, start, index: 0 });
                }
            }
            self.lead_to_first(scope, &mut rest);
            for pending in &rest {
                let (reference, symbol) = &pending.wanted;
                let answer = match self.first_answer(&table, scope, pending) {
                    Some((to, definition)) => Answer::Bound { to, definition, flags: 0 },
                    None => self.answer_named(image, &table, scope, reference, symbol, &pending.name, pending.start),
                };
                match answer {
                    Answer::Nothing { weak: true } if !self.keeps_all => {}
                    Answer::Bound { flags: 0, to, .. } if !self.keeps_all && to == image => {}
                    Answer::Bound { to, definition, flags: 0 } if !self.tells_addresses_apart(symbol) => {
                        out.bindings.push(bound(image, reference, to, definition, is_late));
                    }
                    _ => out.answers.push((*reference, answer)),
                }
            }
        }
    }

    /// Finds, for each name, the image that is the first to have a symbol of that hash, and that symbol, as far as the hash
    /// tables tell: step by step for all of them.
    fn lead_to_first(&self, scope: &Scope<'_>, rest: &mut [Pending<'_>]) {
        if self.is_musl || self.dynamic_weak {
            return;
        }
        let is_listed = !scope.first.is_empty();
        if !is_listed {
            // Filter by filter: one stays at hand while all names go through it.
            let mut left: Vec<&mut Pending<'_>> = rest.iter_mut().collect();
            for filter in &scope.filters {
                left.retain_mut(|pending| {
                    let passes = !filter.may_have(pending.name.gnu);
                    pending.start += usize::from(passes);
                    passes
                });
            }
        }
        for pending in rest.iter_mut() {
            if let Some((_, table)) = scope.members.get(pending.start) {
                pending.index = table.bucket(pending.name.gnu).unwrap_or(0);
            }
        }
        touch(rest.iter().filter_map(|pending| Some(scope.members.get(pending.start)?.1.chain_byte(pending.index))));
        for pending in rest.iter_mut() {
            // A filter lets some names pass that are not there.
            while let Some((_, table)) = scope.members.get(pending.start).filter(|(_, table)| table.has_gnu_hash()) {
                let first = Some(pending.index).filter(|index| *index != 0);
                pending.index = first.and_then(|index| table.next_of_hash(index, pending.name.gnu)).unwrap_or(0);
                if pending.index != 0 {
                    break;
                }
                pending.start += 1;
                pending.pass_filters(scope);
                if let Some((_, table)) = scope.members.get(pending.start) {
                    pending.index = table.bucket(pending.name.gnu).unwrap_or(0);
                }
            }
        }
        let found = |pending: &Pending<'_>| {
            let (_, table) = scope.members.get(pending.start).filter(|_| pending.index != 0)?;
            Some((table, table.symbol(pending.index)?))
        };
        touch(rest.iter().filter_map(|pending| found(pending).map(|(_, symbol)| symbol.info)));
        touch(rest.iter().filter_map(|pending| found(pending).map(|(table, symbol)| table.name_byte(&symbol))));
    }

    /// The ordinary answer: the first symbol of the hash, in the first image that has one, is of that name and version, and
    /// nothing is remarkable about it. `None` when the whole lookup has to be made.
    fn first_answer(&self, own: &View<'_>, scope: &Scope<'_>, pending: &Pending<'_>) -> Option<(ImageId, u32)> {
        let (reference, wanted) = &pending.wanted;
        let (to, table) = scope.members.get(pending.start).filter(|_| pending.index != 0)?;
        let symbol = table.symbol(pending.index)?;
        let is_ordinary = reference.class != Class::Copy
            && !wanted.is_protected()
            && matches!(symbol.binding(), 1 | 2)
            && symbol.other & 3 == 0
            && symbol.kind() != INDIRECT_FUNCTION
            && table.is_named(&symbol, pending.name.bytes);
        if !is_ordinary {
            return None;
        }
        let version = own.version_of(reference.symbol);
        matches!(self.check(*to, table, &symbol, version, reference.class), Match::Yes).then_some((*to, symbol.index))
    }

    /// True for a reference that is bound without a lookup (rule R6.18). musl knows no visibility.
    pub(super) fn means_its_own(&self, wanted: &Symbol) -> bool {
        if self.is_musl { wanted.binding() == 0 } else { means_its_own(wanted) }
    }

    /// One reference by itself; `None` when nothing is looked up for it.
    pub(super) fn answer(&self, from: ImageId, reference: &Reference) -> Option<Answer> {
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
    pub(super) fn answer_named(
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
            Err(Asserts) => return Answer::Dies,
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

    /// Up to 2.34 an entry of the global offset table can mean the program's copy of protected data while other addresses
    /// mean the library's own (`ELF_RTYPE_CLASS_EXTERN_PROTECTED_DATA`; rule R6.20).
    fn tells_addresses_apart(&self, symbol: &Symbol) -> bool {
        self.shares_copies && symbol.is_protected() && symbol.kind() == OBJECT && !self.is_musl
    }

    /// True when the program has a copy relocation for a symbol of that name.
    pub(super) fn is_copy(&self, name: &Name<'_>) -> bool {
        let Some(symbols) = self.process.symbols(ImageId(0)) else { return false };
        let mut named = symbols.table.view().candidates(name).map(|s| s.index).take(MAX_COPIES);
        named.any(|index| symbols.references.iter(index..index + 1).any(|r| r.class == Class::Copy))
    }

    /// The commonest case of large C++ libraries: what the file refers to it defines itself, and no image in front of it
    /// has a symbol of that hash (`start`). Then no name needs to be read.
    pub(super) fn is_own(
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
    pub(super) fn find(
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

    pub(super) fn find_in(
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
    pub(super) fn check(
        &self,
        id: ImageId,
        table: &View<'_>,
        symbol: &Symbol,
        version: Option<&Version>,
        class: Class,
    ) -> Match {
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

/// The loader dies in `check_match`.
pub(super) struct Asserts;
