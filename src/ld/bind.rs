//! Who binds to whom: every reference of the loaded images looked up as the loader does it.
//!
//! Follows `_dl_relocate_object` (elf/dl-reloc.c), `_dl_lookup_symbol_x`, `do_lookup_x` and `check_match`
//! (elf/dl-lookup.c) of glibc, and `do_relocs` and `find_sym` (ldso/dynlink.c) of musl.
//!
//! References of different images do not depend on each other, so they are looked up on several threads; what depends
//! on the order (unique symbols, the first failure, messages) is settled afterwards, in the loader's order.

pub mod bindings;
mod lookup;
mod musl;
pub mod static_tls;
mod trace;

use bstr::{BString, ByteSlice};
use rustc_hash::FxHashMap;

use super::dialect::Family;
use super::store::Symbols;
use super::{ImageId, LoadFailure, OpenFlags, Process, Role, StepId, concat};
use crate::elf::references::{Class, Reference, Relocator};
use crate::elf::symbols::Version;

pub use self::bindings::Bindings;
use self::lookup::{Answer, Answered, COPIED, DIRECT, INDIRECT, INDIRECT_FUNCTION, Lookup, OWN, REMARKABLE, UNIQUE};

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
/// Most relocations of one image of which something is told that was told before.
const MAX_TOLD: usize = 4 << 20;

/// Whether a reference was settled before.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Again {
    No,
    /// Another relocation, looked up again.
    LookedUp,
    /// Another relocation right after one of the same symbol.
    Remembered,
}

/// What happens to a relocation.
enum Told {
    Answer(Reference, Answer, Again),
    /// The loader does not know its type.
    Unknown {
        kind: u32,
        is_put_off: bool,
    },
}

/// Answers of one image in the order in which they are settled.
struct Ordered {
    answers: Vec<Told>,
    /// The plain ones are among them.
    has_plain: bool,
    /// The answer before which the loader ends.
    stop: usize,
}

/// The answers of one image, and the rest.
fn of_image(answered: &mut [Answered], id: ImageId) -> (&mut [Answered], &mut [Answered]) {
    answered.split_at_mut(answered.iter().position(|a| a.image != id).unwrap_or(answered.len()))
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
        let failure = self.relocate(step, &order, lazy);
        self.lay_out_static_tls();
        failure
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
        let is_late = |id: ImageId| self.binds_late(id, lazy);
        let answered = Lookup::new(self, order).binding_late(is_late, order).run(order);
        self.settle_all(step, order, answered, lazy)
    }

    fn settle_all(
        &mut self,
        step: StepId,
        order: &[ImageId],
        mut answered: Vec<Answered>,
        lazy: bool,
    ) -> Option<LoadFailure> {
        let mut failure = None;
        let mut rest = answered.as_mut_slice();
        for id in order {
            let (own, after) = of_image(rest, *id);
            rest = after;
            if failure.is_none() {
                failure = self.dies_before_relocation(*id, self.binds_late(*id, lazy));
            }
            let mut misfit = if failure.is_none() { self.place_static_tls(step, *id, lazy) } else { None };
            let by = Relocator::Glibc { late: self.binds_late(*id, lazy) };
            let ordered = self.in_order(*id, own, by, misfit.as_ref().map(|(at, _)| *at));
            if !ordered.has_plain && failure.is_none() {
                self.keep_plain(own);
            }
            for (n, told) in ordered.answers.into_iter().enumerate() {
                if n == ordered.stop && failure.is_none() {
                    failure = misfit.take().map(|(_, failure)| failure);
                }
                match told {
                    Told::Answer(reference, answer, Again::No) => {
                        self.settle(step, *id, &reference, answer, lazy, &mut failure);
                    }
                    Told::Answer(reference, answer, again) => {
                        self.settle_again(step, *id, &reference, answer, lazy, again, &mut failure);
                    }
                    Told::Unknown { kind, is_put_off } => {
                        failure.get_or_insert_with(|| self.unexpected_type(*id, kind, is_put_off));
                    }
                }
            }
            if failure.is_none() {
                failure = misfit.map(|(_, failure)| failure).or_else(|| self.dies_after_relocation(*id));
            }
            if failure.is_none() {
                let is_late = self.binds_late(*id, lazy);
                let image = &mut self.images[id.index()];
                (image.is_relocated, image.is_bound_late) = (true, is_late);
            }
        }
        if failure.is_none() && !self.lists_only() {
            failure = self.dies_at_first_code(order);
        }
        failure
    }

    /// Keeps bindings about which nothing is to be settled.
    fn keep_plain(&mut self, answered: &mut [Answered]) {
        let kept = self.kept_bindings();
        for part in answered {
            let mut bindings = std::mem::take(&mut part.bindings);
            bindings.truncate(MAX_BINDINGS.saturating_sub(kept.len()));
            kept.append(bindings);
        }
    }

    fn kept_bindings(&mut self) -> &mut Bindings {
        if self.lookups == Lookups::Record { &mut self.bindings } else { &mut self.imports }
    }

    /// The answers of one image that have to be settled. Where something fails or is remarked all of them stand in the
    /// loader's order, which costs a second look at the relocations; else the order does not matter and the plain ones are
    /// left out. A remark is made for every relocation, so those come again. `stop` is a
    /// relocation (by its place in [`References::every`]) at which the loader ends.
    ///
    /// [`References::every`]: crate::elf::references::References::every
    fn in_order(&self, id: ImageId, answered: &[Answered], by: Relocator, stop: Option<usize>) -> Ordered {
        let answers = answered.iter().flat_map(|a| &a.answers);
        let is_remarked = |answer: &Answer| match answer {
            Answer::Bound { to, flags, .. } => {
                flags & (COPIED | DIRECT) != 0 || flags & INDIRECT != 0 && !self.images[to.index()].is_relocated
            }
            // musl goes on, and tells it again.
            Answer::Nothing { weak: false } => by == Relocator::Musl,
            _ => false,
        };
        let fails = |answer: &Answer| matches!(answer, Answer::Nothing { weak: false } | Answer::Dies);
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
        let is_any = stop.is_some() || answers.clone().any(|(r, a)| fails(a) || is_remarked(a) || is_namesake(r, a));
        let is_told = |s: &&Symbols| is_any || s.references.is_unknown(by);
        let Some(symbols) = self.symbols(id).filter(is_told) else {
            let answers = answers.map(|(reference, answer)| Told::Answer(*reference, *answer, Again::No)).collect();
            return Ordered { answers, has_plain: false, stop: usize::MAX };
        };
        let plain = answered.iter().flat_map(|a| &a.bindings).filter_map(|b| {
            let reference = symbols.references.iter(b.symbol..b.symbol + 1).find(|r| r.class == b.class)?;
            Some((reference, Answer::Bound { to: b.to, definition: b.definition, flags: 0 }))
        });
        let mut by_symbol: FxHashMap<(u32, Class, bool), (Reference, Answer, Again)> = answers
            .copied()
            .chain(plain)
            .map(|(r, answer)| ((r.symbol, r.class, r.is_got), (r, answer, Again::No)))
            .collect();
        let mut out = Vec::with_capacity(by_symbol.len());
        let mut last = None;
        let mut stops_before = usize::MAX;
        for (at, relocation) in symbols.references.every(by).into_iter().enumerate() {
            if stop == Some(at) {
                stops_before = out.len();
            }
            let key = relocation.class.map(|class| (relocation.symbol, class));
            let was_last = key.is_some() && std::mem::replace(&mut last, key) == key;
            let mut is_told = false;
            // Most references are asked for by both kinds of addresses together.
            let known = key.and_then(|(symbol, class)| {
                let by_kind = [relocation.is_got, !relocation.is_got].map(|is_got| (symbol, class, is_got));
                by_kind.into_iter().find(|key| by_symbol.contains_key(key))
            });
            if let Some((reference, answer, again)) = known.and_then(|key| by_symbol.get_mut(&key)) {
                match again {
                    Again::No => out.push(Told::Answer(*reference, *answer, Again::No)),
                    _ if out.len() > MAX_TOLD => {}
                    // One lookup serves relocations of one symbol that follow each other.
                    _ if is_remarked(answer) && was_last => {
                        out.push(Told::Answer(*reference, *answer, Again::Remembered))
                    }
                    _ if is_remarked(answer) => out.push(Told::Answer(*reference, *answer, Again::LookedUp)),
                    _ => {}
                }
                *again = Again::LookedUp;
                is_told = fails(answer);
            }
            if let Some(kind) = relocation.unknown.filter(|_| !is_told && out.len() <= MAX_TOLD) {
                out.push(Told::Unknown { kind, is_put_off: relocation.is_plt && by.puts_off() });
            }
        }
        Ordered { answers: out, has_plain: true, stop: stops_before }
    }

    /// A later relocation of a reference: only what the loader says of it.
    #[expect(clippy::too_many_arguments, reason = "the state of one relocation")]
    fn settle_again(
        &mut self,
        step: StepId,
        from: ImageId,
        reference: &Reference,
        answer: Answer,
        lazy: bool,
        again: Again,
        failure: &mut Option<LoadFailure>,
    ) {
        let Answer::Bound { to, definition, flags } = answer else { return };
        let is_late = reference.is_late && self.binds_late(from, lazy);
        let flags = if again == Again::Remembered { flags & INDIRECT } else { flags & (INDIRECT | DIRECT) };
        if flags != 0 && !is_late && failure.is_none() {
            self.remark(step, from, reference, (to, definition), flags, failure);
        }
    }

    /// One answer in the loader's order: unique symbols, messages, failures.
    fn settle(
        &mut self,
        step: StepId,
        from: ImageId,
        reference: &Reference,
        answer: Answer,
        lazy: bool,
        failure: &mut Option<LoadFailure>,
    ) {
        let is_late = reference.is_late && self.binds_late(from, lazy);
        let when = if is_late { When::Call } else { When::Load };
        match answer {
            Answer::Bound { mut to, mut definition, flags } => {
                if failure.is_some() {
                    return;
                }
                if flags & UNIQUE != 0 {
                    (to, definition) = self.unique(from, reference, to, definition);
                    if flags & OWN != 0 && to != from {
                        (to, definition) = (from, reference.symbol);
                    }
                }
                let is_forbidden = !is_late && self.forbids(flags & (COPIED | DIRECT), to, definition);
                let is_kept = self.lookups == Lookups::Record || to != from;
                if is_kept && !is_forbidden && self.kept_bindings().len() < MAX_BINDINGS {
                    let symbol = reference.symbol;
                    self.kept_bindings().push(Binding { from, to, symbol, definition, class: reference.class, when });
                }
                if flags & REMARKABLE != 0 && !is_late {
                    self.remark(step, from, reference, (to, definition), flags, failure);
                }
            }
            Answer::Nothing { weak } => {
                if weak && self.lookups != Lookups::Record || self.unresolved.len() >= MAX_UNRESOLVED {
                    return;
                }
                let Some((name, version)) = self.symbol_name(from, reference.symbol) else { return };
                let unresolved = Unresolved {
                    image: from,
                    index: reference.symbol,
                    symbol: name.to_owned(),
                    version: version.map(|v| v.name.clone()),
                    version_file: version.and_then(|v| v.file.clone()),
                    weak,
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
            Answer::Dies => {
                if when == When::Load && failure.is_none() {
                    *failure = Some(LoadFailure::new("", self.assertion_text(), 0));
                }
            }
        }
    }

    /// The end at a relocation of a type that glibc does not know: two digits, or eight when two do not suffice; `l_name`
    /// of the program is empty (`_dl_reloc_bad_type`, elf/dl-reloc.c).
    fn unexpected_type(&self, id: ImageId, kind: u32, is_put_off: bool) -> LoadFailure {
        let object = if id == ImageId(0) { BString::default() } else { self.label_of(id) };
        let what = if is_put_off { "unexpected PLT reloc type" } else { "unexpected reloc type" };
        let text = if kind > 0xff { format!("{what} 0x{kind:08x}") } else { format!("{what} 0x{kind:02x}") };
        LoadFailure::new(object, text, 0)
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
            self.bindings.append(found);
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
            Answer::Dies => FirstCall::Dies(self.assertion_text().into()),
        })
    }

    fn assertion_text(&self) -> String {
        let line = self.dialect().unversioned_provider_assertion_line().unwrap_or(0);
        format!(
            "Inconsistency detected by ld.so: dl-lookup.c: {line}: check_match: Assertion \
             `version->filename == NULL || ! _dl_name_match_p (version->filename, map)' failed!"
        )
    }

    /// The frame that start-up puts around a failed relocation (rule R8.1).
    pub(crate) fn symbol_error_at_start(&self, failure: &LoadFailure, argv0: &bstr::BStr) -> BString {
        if failure.text.starts_with(b"unexpected ") {
            let line: &[u8] = b": error while loading shared libraries: ";
            return concat(&[argv0, line, &failure.dlerror()]);
        }
        if failure.object.is_empty() || failure.signal.is_some() {
            return failure.text.clone();
        }
        concat(&[argv0, b": symbol lookup error: ", &failure.dlerror()])
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

impl Process {
    /// `_dl_name_match_p`: does an image answer to a name by its path or a name it learnt?
    fn answers_to(&self, id: ImageId, name: &bstr::BStr) -> bool {
        let image = &self.images[id.index()];
        image.name == name || image.names.iter().any(|known| known == name)
    }

    /// The name of an image in messages: the program's is the one it was started by.
    pub(crate) fn label_of(&self, id: ImageId) -> BString {
        if id == ImageId(0) { self.argv0.clone() } else { self.images[id.index()].name.clone() }
    }

    /// True for musl, whose lookup knows no versions.
    pub(crate) fn is_musl(&self) -> bool {
        self.dialect().family == Family::Musl
    }
}
