//! One lookup told step by step: every definition that is met or that could have been, and why it is taken or passed.
//!
//! The answer itself comes from the lookup that binds whole processes; which symbols are accepted is asked of the same
//! `check_match`. Nothing is decided here a second time.

use bstr::BStr;

use super::lookup::{Answer, Lookup, Match, Scope, UNIQUE, UNIQUE_BINDING};
use super::musl::{musl_accepts, musl_candidate};
use crate::elf::references::{Class, Reference};
use crate::elf::symbols::{Name, Symbol, Version, View};
use crate::ld::{ImageId, Outcome, Process, ScopePart, Step, StepId, StepKind};

/// Most symbols of one name that are told of one image.
const MAX_NAMESAKES: usize = 64;

/// What is looked up.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// The symbol.
    pub name: &'a BStr,
    /// The version asked for.
    pub version: Option<&'a Version>,
    /// What for.
    pub class: Class,
}

/// Why a definition is not accepted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Refusal {
    /// It is none: undefined there, without an address, or of a type that no lookup accepts.
    NoDefinition,
    /// An undefined symbol with the address of a PLT entry: it answers for the function's address, not for calls.
    PltEntry,
    /// It has another version than is asked for.
    OtherVersion,
    /// No version is asked for, and this is a version that is kept for old programs only.
    OldVersion,
    /// No version is asked for, and it is one of several versions of which none is the base version.
    Ambiguous,
    /// A version is asked for, and this definition has none and is hidden, or the reference accepts no such one.
    Unversioned,
    /// The file has the version's name but no versions at all: the loader dies of an assertion.
    Assertion,
    /// Its visibility is hidden or internal.
    Hidden,
    /// Its binding is local.
    Local,
    /// A copy relocation never means the program's own symbol.
    Program,
    /// Another symbol of the same file answers.
    Namesake,
}

impl Refusal {
    /// The name used in reports.
    pub fn name(self) -> &'static str {
        match self {
            Refusal::NoDefinition => "no-definition",
            Refusal::PltEntry => "plt-entry",
            Refusal::OtherVersion => "other-version",
            Refusal::OldVersion => "old-version",
            Refusal::Ambiguous => "ambiguous",
            Refusal::Unversioned => "unversioned",
            Refusal::Assertion => "assertion",
            Refusal::Hidden => "hidden",
            Refusal::Local => "local",
            Refusal::Program => "program",
            Refusal::Namesake => "namesake",
        }
    }
}

/// Why a definition is in no list of the scope.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Outside {
    /// It was opened without `RTLD_GLOBAL`, for other images than this one.
    Local(StepId),
    /// It was opened later.
    Later(StepId),
    /// It was unloaded again before.
    Unloaded(StepId),
}

impl Outside {
    /// The name used in reports.
    pub fn name(self) -> &'static str {
        match self {
            Outside::Local(_) => "rtld-local",
            Outside::Later(_) => "opened-later",
            Outside::Unloaded(_) => "unloaded",
        }
    }

    /// The step by which it came, or by which it went.
    pub fn step(self) -> StepId {
        match self {
            Outside::Local(step) | Outside::Later(step) | Outside::Unloaded(step) => step,
        }
    }
}

/// Why the winner won.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Because {
    /// It comes first of all that are accepted.
    First,
    /// It comes first, and is weak: that makes no difference to the loader.
    FirstThoughWeak,
    /// No strong one is accepted, and `LD_DYNAMIC_WEAK` makes the loader look for one.
    NoStrongOne,
    /// The file's own definition is protected.
    Protected,
    /// The symbol is local or hidden in its file: nothing is looked up.
    NotLookedUp,
    /// The file was linked with `-Bsymbolic`: it is asked before all others.
    Symbolic,
    /// It was opened with `RTLD_DEEPBIND`: its own libraries are asked before the global ones.
    DeepBind,
    /// A unique symbol: the first binding of the process decides for all later ones.
    Unique,
    /// musl answers the name with `64` at its end by the plain function.
    LargeFile,
}

impl Because {
    /// The name used in reports.
    pub fn name(self) -> &'static str {
        match self {
            Because::First => "first",
            Because::FirstThoughWeak => "first-though-weak",
            Because::NoStrongOne => "no-strong-one",
            Because::Protected => "protected",
            Because::NotLookedUp => "not-looked-up",
            Because::Symbolic => "symbolic",
            Because::DeepBind => "deepbind",
            Because::Unique => "unique",
            Because::LargeFile => "large-file",
        }
    }
}

/// What becomes of one definition.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Standing {
    /// It answers.
    Wins(Because),
    /// It would be accepted and stands in front of the winner, which wins all the same.
    Overruled(Because),
    /// It would be accepted and stands behind the winner.
    Later,
    /// It is met and not accepted.
    Refused(Refusal),
    /// It is in no list of the scope. With the reason why it would not be accepted if it were, if there is one.
    Outside(Outside, Option<Refusal>),
}

impl Standing {
    /// The name used in reports.
    pub fn name(self) -> &'static str {
        match self {
            Standing::Wins(_) => "wins",
            Standing::Overruled(_) => "overruled",
            Standing::Later => "later",
            Standing::Refused(_) => "refused",
            Standing::Outside(..) => "not-in-scope",
        }
    }
}

/// One definition of the name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Candidate {
    /// The image that has it.
    pub image: ImageId,
    /// Index in its symbol table.
    pub symbol: u32,
    /// The image's place in the scope, from 0; `None` when it is in no list of it.
    pub place: Option<u32>,
    /// What becomes of it.
    pub standing: Standing,
}

/// How a lookup ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    /// A definition answers.
    Bound {
        /// The image with it.
        to: ImageId,
        /// Index in its symbol table.
        definition: u32,
    },
    /// Nothing answers a weak reference: its value is 0.
    Zero,
    /// Nothing answers.
    Undefined,
    /// The loader dies of an assertion in `check_match`.
    Assertion,
}

/// A lookup.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Trace {
    /// The images that are asked, in order, each once.
    pub scope: Vec<ImageId>,
    /// The definitions: those in the scope in its order, then the others in load order.
    pub candidates: Vec<Candidate>,
    /// What comes of it.
    pub ending: Ending,
}

impl Trace {
    /// The candidate that wins.
    pub fn winner(&self) -> Option<&Candidate> {
        self.candidates.iter().find(|c| matches!(c.standing, Standing::Wins(_)))
    }
}

/// A found definition and why it is it.
type Winner = (ImageId, u32, Because);

impl Process {
    /// Tells how a reference of an image is bound, as of the step that loaded the image. `None` when the image has no
    /// such symbol.
    pub fn trace_reference(&self, from: ImageId, reference: &Reference) -> Option<Trace> {
        let table = self.symbols(from)?.table.view();
        let symbol = table.symbol(reference.symbol)?;
        let name = table.name(&symbol)?;
        let wanted = Wanted { name, version: table.version_of(reference.symbol), class: reference.class };
        let at = self.relocated_in(from);
        let trace = self.trace(from, &wanted, Some((reference, &symbol)), at);
        let last = StepId(self.steps.len() as u32);
        // What the first call finds missing may have been opened meanwhile (rules R6.8, R6.9). musl puts off entries of
        // the global offset table too (rule R10.12).
        let is_late = reference.is_late || self.is_musl() && reference.is_got;
        if trace.ending == Ending::Undefined && is_late && self.is_loaded(from) {
            let again = self.trace(from, &wanted, Some((reference, &symbol)), last);
            if again.ending != Ending::Undefined {
                return Some(again);
            }
        }
        Some(trace)
    }

    /// Tells what a reference to a symbol would be bound to if an image had it, after all steps.
    pub fn trace_symbol(&self, from: ImageId, wanted: &Wanted<'_>) -> Option<Trace> {
        self.images.get(from.index())?;
        Some(self.trace(from, wanted, None, StepId(self.steps.len() as u32)))
    }

    fn is_there(&self, id: ImageId, at: StepId) -> bool {
        let unloaded = self.images.get(id.index()).map(|i| i.unloaded_by);
        unloaded.is_some_and(|by| self.loaded_in(id) <= at && by.is_none_or(|gone| gone >= at))
    }

    /// The step that loaded an image; for a preloaded one the start that it belongs to.
    fn loaded_in(&self, id: ImageId) -> StepId {
        let own = self.image(id).step;
        let is_preload = |n: u32| self.steps.get(n as usize).is_some_and(|s| s.kind == StepKind::Preload);
        let mut step = own.0;
        while step > 0 && is_preload(step) {
            step -= 1;
        }
        StepId(step)
    }

    /// The step in which an image is relocated: all of a start when the last preload entry is mapped.
    fn relocated_in(&self, id: ImageId) -> StepId {
        let step = self.image(id).step;
        let of_start = |s: &&Step| matches!(s.kind, StepKind::Exec | StepKind::Preload);
        let steps_of_start = self.steps.iter().take_while(of_start).count() as u32;
        if step.0 < steps_of_start { StepId(steps_of_start - 1) } else { step }
    }

    /// By image: the step that made it global, when it was not the start of the program.
    fn promotions(&self) -> Vec<Option<StepId>> {
        let mut out = vec![None; self.images.len()];
        for (n, step) in self.steps.iter().enumerate() {
            let promotes =
                step.flags.is_some_and(|f| f.global) && matches!(step.outcome, Outcome::Ok | Outcome::AlreadyLoaded);
            let Some(root) = step.image.filter(|_| promotes) else { continue };
            for id in std::iter::once(&root).chain(&self.image(root).search_list) {
                out[id.index()].get_or_insert(StepId(n as u32));
            }
        }
        for id in &self.startup_order {
            out[id.index()] = None;
        }
        out
    }

    /// The images that a lookup from an image goes through in the course of a step.
    fn scope_at(&self, from: ImageId, at: StepId, promotions: &[Option<StepId>]) -> Vec<ImageId> {
        let mut out = Vec::new();
        let mut seen = vec![false; self.images.len()];
        let mut add = |id: ImageId| {
            if self.is_there(id, at) && !std::mem::replace(&mut seen[id.index()], true) {
                out.push(id);
            }
        };
        let parts = if self.is_musl() { self.musl_scope(from) } else { self.image(from).scope.clone() };
        for part in parts {
            match part {
                ScopePart::Global => {
                    for id in &self.global {
                        if promotions[id.index()].is_none_or(|step| step < at) {
                            add(*id);
                        }
                    }
                }
                ScopePart::Itself(id) => add(id),
                ScopePart::SearchList(root) => {
                    if self.opened_by(root) <= at {
                        let list = self.scope_list(&part);
                        if list.is_empty() {
                            // The load ended before the list was made.
                            self.would_be_list(root).into_iter().for_each(&mut add);
                        }
                        list.iter().for_each(|id| add(*id));
                    }
                }
            }
        }
        out
    }

    /// An image and what it needs, breadth first.
    fn would_be_list(&self, root: ImageId) -> Vec<ImageId> {
        let mut seen = vec![false; self.images.len()];
        let mut list = vec![root];
        let mut at = 0;
        seen[root.index()] = true;
        while let Some(id) = list.get(at) {
            at += 1;
            for next in self.image(*id).needs.clone() {
                if !std::mem::replace(&mut seen[next.index()], true) {
                    list.push(next);
                }
            }
        }
        list
    }

    /// The step that first opened an image by itself, so that its search list became a scope.
    fn opened_by(&self, root: ImageId) -> StepId {
        let opens = |s: &Step| s.kind == StepKind::Dlopen && s.image == Some(root);
        let first = self.steps.iter().position(opens).map(|n| StepId(n as u32));
        first.unwrap_or(self.loaded_in(root)).max(self.loaded_in(root))
    }

    /// musl's list for what a step loads: the global one, then what the opened file needs.
    fn musl_scope(&self, from: ImageId) -> Vec<ScopePart> {
        let step = self.steps.get(self.loaded_in(from).index());
        let opened = step.filter(|s| s.kind == StepKind::Dlopen).and_then(|s| s.image);
        std::iter::once(ScopePart::Global).chain(opened.map(ScopePart::SearchList)).collect()
    }

    fn trace(&self, from: ImageId, wanted: &Wanted<'_>, own: Option<(&Reference, &Symbol)>, at: StepId) -> Trace {
        let promotions = self.promotions();
        let scope = self.scope_at(from, at, &promotions);
        let members: Vec<(ImageId, View<'_>)> =
            scope.iter().filter_map(|id| Some((*id, self.symbols(*id)?.table.view()))).collect();
        let mut lookup = Lookup::empty(self);
        lookup.scopes.push(Scope::new(members));
        lookup.look_from(from, 0);
        let name = Name::new(wanted.name);
        let (ending, winner) = lookup.ending(from, wanted, own, &name, at);
        let mut candidates = Vec::new();
        let mut seen = vec![false; self.images.len()];
        for (place, id) in scope.iter().enumerate() {
            seen[id.index()] = true;
            lookup.candidates_of(*id, Some(place as u32), wanted, &name, winner, &mut candidates);
        }
        for n in 0..self.images.len() {
            let id = ImageId(n as u32);
            // A local symbol answers its own file alone.
            let is_own = winner.is_some_and(|(to, ..)| to == id);
            if !seen[n] {
                let mut found = Vec::new();
                lookup.candidates_of(id, None, wanted, &name, winner, &mut found);
                if !is_own {
                    let refused = |c: &Candidate| match c.standing {
                        Standing::Refused(refusal) => Some(refusal),
                        _ => None,
                    };
                    let outside = self.outside(id, at, promotions[n]);
                    found.retain(|c| refused(c).is_none_or(|r| !matches!(r, Refusal::Local | Refusal::Hidden)));
                    found.iter_mut().for_each(|c| c.standing = Standing::Outside(outside, refused(c)));
                }
                candidates.append(&mut found);
            }
        }
        if let Some((image, symbol, because)) = winner
            && !candidates.iter().any(|c| (c.image, c.symbol) == (image, symbol))
        {
            let place = scope.iter().position(|id| *id == image).map(|place| place as u32);
            candidates.push(Candidate { image, symbol, place, standing: Standing::Wins(because) });
        }
        Trace { scope, candidates, ending }
    }

    fn outside(&self, id: ImageId, at: StepId, promoted: Option<StepId>) -> Outside {
        let loaded = self.loaded_in(id);
        match self.image(id).unloaded_by {
            _ if loaded > at => Outside::Later(loaded),
            Some(gone) if gone < at => Outside::Unloaded(gone),
            _ => match promoted.filter(|step| *step >= at) {
                Some(step) if step > loaded => Outside::Later(step),
                _ => Outside::Local(loaded),
            },
        }
    }
}

impl<'p> Lookup<'p> {
    fn ending(
        &self,
        from: ImageId,
        wanted: &Wanted<'_>,
        own: Option<(&Reference, &Symbol)>,
        name: &Name<'_>,
        at: StepId,
    ) -> (Ending, Option<Winner>) {
        let Some(scope) = self.scopes.first() else { return (Ending::Undefined, None) };
        let answer = match own {
            Some((reference, symbol)) => match self.answer(from, reference) {
                Some(answer) => answer,
                None => {
                    let winner = (from, symbol.index, Because::NotLookedUp);
                    return (Ending::Bound { to: from, definition: symbol.index }, Some(winner));
                }
            },
            None => self.answer_supposed(scope, name, wanted),
        };
        match answer {
            Answer::Bound { to, definition, flags } => {
                let decides = flags & UNIQUE != 0 && wanted.class != Class::Copy;
                let registered = self.process.unique.get(wanted.name).copied();
                let winner = match registered.filter(|(image, _)| decides && self.process.is_there(*image, at)) {
                    // A protected reference means its own definition, whichever stands for all.
                    Some((image, _)) if image != from && own.is_some_and(|(_, s)| s.is_protected()) => {
                        (from, own.map_or(definition, |(_, s)| s.index), Because::Protected)
                    }
                    Some((image, symbol)) => (image, symbol, Because::Unique),
                    None => (to, definition, self.because(from, scope, wanted, name, (to, definition))),
                };
                (Ending::Bound { to: winner.0, definition: winner.1 }, Some(winner))
            }
            Answer::Nothing { weak: true } => (Ending::Zero, None),
            Answer::Nothing { weak: false } => (Ending::Undefined, None),
            Answer::Dies if self.is_musl => (Ending::Zero, None),
            Answer::Dies => (Ending::Assertion, None),
        }
    }

    /// The answer to a reference that no file has.
    fn answer_supposed(&self, scope: &Scope<'p>, name: &Name<'_>, wanted: &Wanted<'_>) -> Answer {
        if self.is_musl {
            let (class, symbol) = (wanted.class, 0);
            let reference = Reference { symbol, class, is_late: false, is_static_tls: false, is_got: false };
            // Undefined, global, of no type.
            let symbol = Symbol { index: 0, name_at: 0, value: 0, size: 0, section: 0, info: 1 << 4, other: 0 };
            return self.answer_musl(&scope.members, name, &symbol, &reference);
        }
        match self.find(&scope.members, name, wanted.version, wanted.class) {
            Ok(Some((to, symbol))) => {
                let flags = if symbol.binding() == UNIQUE_BINDING { UNIQUE } else { 0 };
                Answer::Bound { to, definition: symbol.index, flags }
            }
            Ok(None) => Answer::Nothing { weak: false },
            Err(_) => Answer::Dies,
        }
    }

    /// Why a definition answers: what the lookup finds first, and what it would find in the usual order of lists.
    fn because(
        &self,
        from: ImageId,
        scope: &Scope<'p>,
        wanted: &Wanted<'_>,
        name: &Name<'_>,
        (to, definition): (ImageId, u32),
    ) -> Because {
        let process = self.process;
        let Some(symbol) = process.symbols(to).and_then(|s| s.table.symbol(definition)) else { return Because::First };
        if self.is_musl {
            let is_named = process.symbol_name(to, definition).is_some_and(|(found, _)| found == wanted.name);
            return if is_named { Because::First } else { Because::LargeFile };
        }
        let is_it = |members: &[(ImageId, View<'p>)]| {
            let found = self.find(members, name, wanted.version, wanted.class);
            matches!(found, Ok(Some((id, symbol))) if (id, symbol.index) == (to, definition))
        };
        if !is_it(&scope.members) {
            return Because::Protected;
        }
        if symbol.is_weak() && self.dynamic_weak {
            return Because::NoStrongOne;
        }
        let first_list = process.image(from).scope.first();
        if !matches!(first_list, None | Some(ScopePart::Global)) {
            let place = |id: ImageId| process.global.iter().position(|member| *member == id).unwrap_or(usize::MAX);
            let mut usual = scope.members.clone();
            usual.sort_by_cached_key(|(id, _)| place(*id));
            if !is_it(&usual) {
                let is_symbolic = to == from && matches!(first_list, Some(ScopePart::Itself(_)));
                return if is_symbolic { Because::Symbolic } else { Because::DeepBind };
            }
        }
        if symbol.is_weak() { Because::FirstThoughWeak } else { Because::First }
    }

    /// What becomes of each symbol of the name in one image.
    fn candidates_of(
        &self,
        id: ImageId,
        place: Option<u32>,
        wanted: &Wanted<'_>,
        name: &Name<'_>,
        winner: Option<Winner>,
        out: &mut Vec<Candidate>,
    ) {
        let Some(symbols) = self.process.symbols(id) else { return };
        let table = symbols.table.view();
        // The file's symbol that is looked at, or that the loader dies of.
        let chosen = match self.is_musl {
            true => musl_candidate(&table, name),
            false => self.find_in(id, &table, name, wanted.version, wanted.class).unwrap_or_default(),
        };
        let first = out.len();
        for symbol in table.candidates(name).take(MAX_NAMESAKES) {
            let is_winner = winner.filter(|(to, definition, _)| (*to, *definition) == (id, symbol.index));
            // What the file itself refers to, and has no address for, is nobody's definition.
            if symbol.is_undefined() && symbol.value == 0 && is_winner.is_none() {
                continue;
            }
            let standing = match (is_winner, self.refusal(id, &table, &symbol, chosen.as_ref(), wanted)) {
                (Some((_, _, because)), _) => Standing::Wins(because),
                (None, Some(refusal)) => Standing::Refused(refusal),
                (None, None) => match winner {
                    // What stands behind the winner is found by the candidates before it.
                    Some((_, _, because)) if !out[..first].iter().any(|c| matches!(c.standing, Standing::Wins(_))) => {
                        Standing::Overruled(because)
                    }
                    _ => Standing::Later,
                },
            };
            out.push(Candidate { image: id, symbol: symbol.index, place, standing });
        }
    }

    /// Why a symbol does not answer; `None` when it would.
    fn refusal(
        &self,
        id: ImageId,
        table: &View<'_>,
        symbol: &Symbol,
        chosen: Option<&Symbol>,
        wanted: &Wanted<'_>,
    ) -> Option<Refusal> {
        if wanted.class == Class::Copy && id == ImageId(0) {
            return Some(Refusal::Program);
        }
        if symbol.binding() == 0 {
            return Some(Refusal::Local);
        }
        let is_chosen = chosen.is_some_and(|c| c.index == symbol.index);
        if self.is_musl {
            let needs_definition = wanted.class == Class::Plt;
            return match (is_chosen, musl_accepts(symbol, needs_definition)) {
                (true, true) => None,
                (true, false) if symbol.is_undefined() => Some(Refusal::PltEntry),
                (true, false) => Some(Refusal::NoDefinition),
                (false, _) if table.version_index(symbol.index).unwrap_or(0) & 0x8000 != 0 => Some(Refusal::OldVersion),
                (false, _) => Some(Refusal::Namesake),
            };
        }
        match self.check(id, table, symbol, wanted.version, wanted.class) {
            Match::No(Refusal::NoDefinition) if symbol.is_undefined() => Some(Refusal::PltEntry),
            Match::No(refusal) => Some(refusal),
            Match::Assertion => Some(Refusal::Assertion),
            Match::Perhaps if !is_chosen && chosen.is_none() => Some(Refusal::Ambiguous),
            Match::Yes | Match::Perhaps if !is_chosen => Some(Refusal::Namesake),
            Match::Yes | Match::Perhaps if symbol.is_hidden() => Some(Refusal::Hidden),
            Match::Yes | Match::Perhaps if !matches!(symbol.binding(), 1 | 2 | UNIQUE_BINDING) => Some(Refusal::Local),
            Match::Yes | Match::Perhaps => None,
        }
    }
}
