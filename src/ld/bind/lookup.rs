//! Lookups: a reference of one image answered from its scope.
//!
//! Follows `_dl_lookup_symbol_x`, `do_lookup_x` and `check_match` (elf/dl-lookup.c) of glibc.

use bstr::ByteSlice;
use rayon::iter::{IntoParallelRefIterator, ParallelIterator};
use rustc_hash::FxHashMap;

use super::{Lookups, Refusal};
use crate::elf::references::{Class, Reference};
use crate::elf::symbols::{Name, Symbol, Version, View};
use crate::ld::scope::ScopePart;
use crate::ld::store::Symbols;
use crate::ld::{ImageId, Process};

/// Fewer references than this are looked up on one thread.
pub(super) const WORTH_THREADS: usize = 4096;
/// From so many images on their tables are opened on several threads.
pub(super) const WORTH_OPENING: usize = 8;
/// From so many references on it is worth to list the hashes of a scope.
pub(super) const WORTH_LISTING: usize = 8192;
/// References that go through one stage together.
pub(super) const STAGE: usize = 256;
/// Symbols of one image whose references are looked up at a time.
pub(super) const CHUNK: u32 = 4096;

/// One reference with what was found.
pub(super) enum Answer {
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
    pub(super) answers: Vec<(Reference, Answer)>,
}

/// A scope, and which of its images can have a symbol at all.
pub(super) struct Scope<'p> {
    pub(super) members: Vec<(ImageId, View<'p>)>,
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
    /// Lists which image has which hashes first. What the names of earlier images hash to is known without any name
    /// being read, so that most lookups ask one image instead of fifty.
    pub(super) fn list_hashes(&mut self) {
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
        self.scopes.push(Scope { unlisted: list.len(), members: list, first: Vec::new() });
        self.scopes.len() as u32 - 1
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
    pub(super) fn run(mut self, order: &[ImageId]) -> Vec<Answered> {
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
    pub(super) fn answer_chunk(&self, image: ImageId, symbols: std::ops::Range<u32>) -> Answered {
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
    pub(super) fn means_its_own(&self, wanted: &Symbol) -> bool {
        wanted.binding() == 0 || wanted.is_hidden() && !self.is_musl
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

impl Process {
    /// The definitions that answer references of an image where it looks them up now; `None` for one that is not looked
    /// up, and where nothing answers. Unique symbols are not settled.
    pub fn answers(&self, from: ImageId, references: &[Reference]) -> Vec<Option<(ImageId, u32)>> {
        let lookup = match self.is_musl() {
            true => {
                let own = self.images[from.index()].search_list.iter();
                Lookup::in_one_list(self, &[from], self.global.iter().chain(own).copied())
            }
            false => Lookup::new(self, &[from]),
        };
        let answer = |reference: &Reference| match lookup.answer(from, reference)? {
            Answer::Bound { to, definition, .. } => Some((to, definition)),
            Answer::Nothing { .. } | Answer::Assertion => None,
        };
        references.iter().map(answer).collect()
    }
}
