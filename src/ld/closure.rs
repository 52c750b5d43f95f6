//! The process: start-up, preloads, breadth-first closure, `dlopen` steps, identity, rollback.
//!
//! Follows `dl_main` (elf/rtld.c), `_dl_map_object` and `_dl_map_object_from_fd` (elf/dl-load.c),
//! `_dl_map_object_deps` (elf/dl-deps.c) and `dl_open_worker_begin` (elf/dl-open.c) of glibc.

mod dependencies;
mod open;
mod start;

use std::collections::HashMap;
use std::sync::Arc;

use bstr::{BStr, BString, ByteSlice};
use rustc_hash::{FxHashMap, FxHashSet};

use super::bind::{Bindings, Lookups, Unresolved};
use super::budget::{self, Budget};
use super::cache::{Fault, Unusable};
use super::dialect::{Dialect, Family};
use super::loaded_cache::{LoadedCache, Origin};
use super::names::Names;
use super::search::{CacheHit, Conditions, Found, SearchList, Searched};
use super::store::{Object, Setup, Store};
use super::tokens::{self, Secure};
use super::tunables;
use super::verify::{self, Check, Mapping};
use super::{
    Attempt, Decision, DecisionId, How, Identity, Image, ImageId, LoadFailure, OpenFlags, Outcome, Place, Role, Rule,
    ScopePart, Step, StepId, StepKind, Verdict, Via,
};
use crate::elf::Facts;
use crate::system::{Errno, FileKey, Host, Privilege, parent};

/// A `dlopen` to simulate.
#[derive(Clone, Debug)]
pub struct OpenRequest {
    /// The name as given to `dlopen`.
    pub name: BString,
    /// The flags.
    pub flags: OpenFlags,
    /// The image whose code makes the call; the main program when not known.
    pub caller: Option<ImageId>,
    /// [`StepKind::Dlopen`] or [`StepKind::Import`].
    pub kind: StepKind,
    /// True when the program goes on if it fails.
    pub optional: bool,
    /// Who does this and why, in words.
    pub note: String,
}

impl OpenRequest {
    /// `dlopen(name, RTLD_NOW | RTLD_LOCAL)` called by the main program.
    pub fn new(name: impl Into<BString>) -> OpenRequest {
        OpenRequest {
            name: name.into(),
            flags: OpenFlags::default(),
            caller: None,
            kind: StepKind::Dlopen,
            optional: false,
            note: String::new(),
        }
    }
}

/// Options of the loader run as a program (`ld.so [OPTIONS] PROGRAM`).
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct LoaderOptions {
    /// `--library-path`: takes the place of LD_LIBRARY_PATH.
    pub library_path: Option<BString>,
    /// `--preload` lists, in order; loaded after LD_PRELOAD (glibc 2.30 and later).
    pub preload: Vec<BString>,
    /// `--inhibit-rpath`: a colon list of objects whose RPATH and RUNPATH do not count (rule R2.13).
    pub inhibit_rpath: Option<BString>,
    /// `--inhibit-cache`.
    pub inhibit_cache: bool,
    /// `--glibc-hwcaps-prepend`: names searched before the built-in ones (glibc 2.33 and later).
    pub hwcaps_prepend: Option<BString>,
    /// `--glibc-hwcaps-mask`: the built-in names that may be used (glibc 2.33 and later).
    pub hwcaps_mask: Option<BString>,
}

/// How a program is started.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Start {
    /// By the kernel, which maps the program and its PT_INTERP.
    Kernel,
    /// By the loader run as a program with the file as argument (`ld.so FILE`): what `ldd` does with a library.
    Loader,
}

/// Most images of one process, against hostile closures.
pub(crate) const MAX_IMAGES: usize = 20_000;

/// A simulated process. See the [module](self).
pub struct Process {
    pub(crate) store: Arc<Store>,
    host: Arc<Host>,
    pub(crate) dialect: Arc<Dialect>,
    /// Every image that was ever loaded, also those that a failed step unloaded again. The main program is 0, the
    /// loader 1.
    pub images: Vec<Image>,
    /// Every request and how it was answered.
    pub decisions: Vec<Decision>,
    /// Every step.
    pub steps: Vec<Step>,
    /// Start-up load order (the main program's search list).
    pub startup_order: Vec<ImageId>,
    /// The loader's list as it was when an image was last taken out of it; empty when that never mattered.
    base_order: Vec<ImageId>,
    /// Filtees that a `dlopen` put in front of their filters in the loader's list, each with its filter.
    moved: Vec<(ImageId, ImageId)>,
    pub(crate) global: Vec<ImageId>,
    /// `errno` of the simulated thread: error texts end in the number of the last failed call.
    pub(crate) errno: Errno,
    pub(crate) library_path: Option<Arc<SearchList>>,
    pub(crate) setup: Arc<Setup>,
    /// False when only the answers count, not what was tried for them.
    pub(crate) records_attempts: bool,
    /// Room for the key of a search.
    pub(crate) key: Vec<u8>,
    pub(crate) subdirectories: Arc<[BString]>,
    pub(crate) path_lists: FxHashMap<(ImageId, Rule), Option<Arc<SearchList>>>,
    names: Names,
    by_key: FxHashMap<FileKey, ImageId>,
    stack_is_executable: bool,
    pub(crate) cache: Option<Arc<LoadedCache>>,
    pub(crate) musl: super::musl::State,
    /// The name of the program in messages.
    pub(crate) argv0: BString,
    pub(crate) lookups: Lookups,
    lists_only: bool,
    /// With [`Lookups::Record`]: every reference and its definition, in the loader's order.
    pub bindings: Bindings,
    /// Where bindings are not recorded ([`Lookups::Check`]): those to other images. What a file with very many references
    /// defines itself is not among them, whoever answers.
    ///
    /// [`Lookups::Check`]: super::Lookups::Check
    pub imports: Bindings,
    /// Every reference that nothing answers.
    pub unresolved: Vec<Unresolved>,
    /// musl: what it says while it relocates the program and its libraries, line by line; a symbol that is missing is
    /// told for every relocation that names it.
    pub relocation_failures: Vec<BString>,
    /// `STB_GNU_UNIQUE` symbols by name: the image and the definition that stands for all.
    pub(crate) unique: HashMap<BString, (ImageId, u32)>,
    pub(crate) static_tls: Option<super::bind::static_tls::StaticTls>,
    pub(crate) budget: Budget,
    pub(crate) options: LoaderOptions,
    cache_was_opened: bool,
    /// What the program has beyond its user's rights, which makes the process secure.
    pub privilege: Option<Privilege>,
    /// Directories that were found missing, by their text.
    pub(crate) missing_directories: FxHashSet<BString>,
}

/// What `_dl_map_object_deps` makes of some roots.
struct Closure {
    /// The search list.
    list: Vec<ImageId>,
    /// The first failure.
    failure: Option<LoadFailure>,
    /// Who led the list when that happened: the loader goes no further.
    leader: ImageId,
}

/// How a request for a library came out.
pub(crate) enum Mapped {
    /// An image answers it; true when it is new.
    Image(ImageId, bool),
    /// Nothing answers it, or what was found cannot be loaded.
    Failed(LoadFailure),
}

impl Process {
    /// A process that has not started yet. `host` is the audited environment; it may differ from the store's in its
    /// variables (what-if runs share the store), not in its working directory.
    pub fn new(store: Arc<Store>, dialect: Arc<Dialect>, host: Arc<Host>, cache: Option<Arc<LoadedCache>>) -> Process {
        let mut host = host;
        // glibc 2.40 and later can be told to behave as for a set-user-ID program (rule R9.7).
        if dialect.can_be_told_secure() && tunables::number(&dialect, &host, b"glibc.rtld.enable_secure") == Some(1) {
            Arc::make_mut(&mut host).secure = true;
        }
        let setup = store.setup(&dialect, &host);
        let is_glibc = dialect.family == Family::Glibc;
        Process {
            store,
            host,
            dialect,
            images: Vec::new(),
            decisions: Vec::new(),
            steps: Vec::new(),
            startup_order: Vec::new(),
            base_order: Vec::new(),
            moved: Vec::new(),
            global: Vec::new(),
            errno: Errno(0),
            library_path: None,
            subdirectories: setup.subdirectories.clone(),
            setup,
            records_attempts: true,
            key: Vec::new(),
            path_lists: FxHashMap::default(),
            names: Names::new(is_glibc),
            by_key: FxHashMap::default(),
            stack_is_executable: false,
            cache,
            musl: super::musl::State::default(),
            argv0: BString::default(),
            lookups: Lookups::default(),
            lists_only: false,
            bindings: Bindings::default(),
            imports: Bindings::default(),
            unresolved: Vec::new(),
            relocation_failures: Vec::new(),
            unique: HashMap::new(),
            static_tls: None,
            options: LoaderOptions::default(),
            cache_was_opened: false,
            privilege: None,
            missing_directories: FxHashSet::default(),
            budget: Budget::default(),
        }
    }

    /// The kernel has found the program startable: a program with rights that its user lacks makes the process secure
    /// (AT_SECURE; rules R9).
    pub(crate) fn gain_privilege(&mut self, program: &BStr, mode: u32) {
        let Some(user) = self.host.user else { return };
        // Nearly all programs have neither bit, and root has every capability.
        if mode & 0o6000 == 0 && user.uid == 0 {
            return;
        }
        let system = self.store.system();
        self.privilege = system.files.privilege(system.absolute(program).as_bstr(), user);
        if self.privilege.is_some() && !self.host.secure {
            Arc::make_mut(&mut self.host).secure = true;
        }
    }

    /// True when the simulation ended early because this process takes more than any real one: what is recorded is
    /// right but not complete, and the step that was simulated has failed for it.
    pub fn gave_up(&self) -> bool {
        self.budget.is_spent()
    }

    /// The same process with only its answers: what is loaded, in which order, and what fails. Its decisions name neither
    /// attempts nor the rule that decided, answers are taken over from other such processes on the same store, and error
    /// texts may end in another errno where nothing was tried. To be called before [`Process::exec`].
    pub fn without_attempts(mut self) -> Process {
        // musl's search is short and keeps its record.
        self.records_attempts = self.dialect.family != Family::Glibc;
        self
    }

    /// The loader only lists what it loads, as `ldd` makes it do (`LD_TRACE_LOADED_OBJECTS`): a symbol that nothing
    /// defines is noted and does not end the start. For a library that is run as if it were a program, since the real
    /// program may define it (rules R6.30, R11.7). To be called before [`Process::exec`].
    pub fn as_a_list(mut self) -> Process {
        self.lists_only = true;
        self
    }

    /// True when the loader only lists ([`Process::as_a_list`]).
    pub fn lists_only(&self) -> bool {
        self.lists_only
    }

    /// Sets options of the loader run as a program; to be called before [`Process::exec`].
    pub fn with_options(mut self, options: LoaderOptions) -> Process {
        self.subdirectories = self
            .dialect
            .subdirectories_with(
                &self.host,
                options.hwcaps_prepend.as_ref().map(|t| t.as_bstr()),
                options.hwcaps_mask.as_ref().map(|t| t.as_bstr()),
            )
            .into();
        self.options = options;
        self
    }

    /// The host data of the audited box.
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// The loader's rules.
    pub fn dialect(&self) -> &Dialect {
        &self.dialect
    }

    /// The store behind this process.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// An image by id.
    pub fn image(&self, id: ImageId) -> &Image {
        &self.images[id.index()]
    }

    /// Images in the order of the loader's list: start-up order (the loader at the place where it is first needed), then
    /// what `dlopen` brought, with filtees in front of their filters.
    pub fn load_order(&self) -> Vec<ImageId> {
        let base = if self.base_order.is_empty() { &self.startup_order } else { &self.base_order };
        let mut out = base.clone();
        let mut seen = vec![false; self.images.len()];
        for id in &out {
            seen[id.index()] = true;
        }
        let ids = || (0..self.images.len() as u32).map(ImageId).filter(|id| !seen[id.index()]);
        out.extend(ids().filter(|id| self.image(*id).role != Role::Loader));
        out.extend(ids().filter(|id| self.image(*id).role == Role::Loader));
        for (filtee, filter) in &self.moved {
            let place = |out: &[ImageId], id: &ImageId| out.iter().position(|other| other == id);
            if self.is_loaded(*filtee)
                && self.is_loaded(*filter)
                && let Some(from) = place(&out, filtee)
            {
                out.remove(from);
                let to = place(&out, filter).unwrap_or(from);
                out.insert(to, *filtee);
            }
        }
        out
    }

    /// True when the loader was given `--library-path`.
    pub fn has_library_path_option(&self) -> bool {
        self.options.library_path.is_some()
    }

    /// True while the image is loaded.
    pub fn is_loaded(&self, id: ImageId) -> bool {
        self.images.get(id.index()).is_some_and(|i| i.unloaded_by.is_none())
    }

    /// One look into the cache. The first one maps the file; when that fails its errno stays behind.
    pub(crate) fn cache_lookup(&mut self, name: &BStr) -> Result<Option<CacheHit>, LoadFailure> {
        if self.options.inhibit_cache {
            return Ok(None);
        }
        if !std::mem::replace(&mut self.cache_was_opened, true)
            && let Some(Origin::None(Unusable::Unreadable(errno))) = self.cache.as_ref().map(|c| &c.origin)
        {
            self.errno = *errno;
        }
        let active: Arc<[BString]> = match (&self.options.hwcaps_prepend, &self.options.hwcaps_mask) {
            (None, None) => self.setup.active.clone(),
            (prepend, mask) => {
                let [prepend, mask] = [prepend, mask].map(|t| t.as_ref().map(|t| t.as_bstr()));
                self.dialect.active_hwcaps_with(self.host(), prepend, mask).into()
            }
        };
        let Some(cache) = self.cache.clone() else { return Ok(None) };
        cache.lookup(name, &self.dialect, self.host(), &active).map_err(|fault| {
            let mut failure = LoadFailure::new("/etc/ld.so.cache", "killed by SIGSEGV: the cache is damaged", 0);
            match fault {
                Fault::ReadsPastEnd | Fault::HwcapsTable => failure.signal = Some("SIGSEGV"),
                Fault::TooMuchWork => failure.text = "the cache cannot be searched: it was made to take no end".into(),
            }
            failure
        })
    }

    /// The global scope in lookup order.
    pub fn global_scope(&self) -> &[ImageId] {
        &self.global
    }

    pub(crate) fn push_step(&mut self, kind: StepKind, name: BString) -> StepId {
        self.steps.push(Step {
            kind,
            name,
            flags: None,
            caller: None,
            outcome: Outcome::Ok,
            optional: false,
            error: None,
            failure: None,
            image: None,
            warnings: Vec::new(),
            note: String::new(),
        });
        StepId(self.steps.len() as u32 - 1)
    }

    pub(crate) fn fail_step(&mut self, step: StepId, failure: LoadFailure, error: BString) {
        let step = &mut self.steps[step.index()];
        if step.outcome != Outcome::Failed {
            step.outcome = Outcome::Failed;
            step.error = Some(error);
            step.failure = Some(failure);
        }
    }

    /// Notes a step that a recipe leaves out, with the reason.
    pub fn skip(&mut self, kind: StepKind, name: impl Into<BString>, note: impl Into<String>) -> StepId {
        let id = self.push_step(kind, name.into());
        let step = &mut self.steps[id.index()];
        step.outcome = Outcome::Skipped;
        step.optional = true;
        step.note = note.into();
        id
    }

    /// Starts a program: its closure with preloads, then the version checks. `argv0` is the name in start-up messages.
    pub fn exec(&mut self, path: &BStr, argv0: &BStr, start: Start) -> StepId {
        let step = self.push_step(StepKind::Exec, path.to_owned());
        self.argv0 = argv0.to_owned();
        match self.dialect.family {
            Family::Glibc => self.exec_glibc(step, path, argv0, start),
            Family::Musl => self.exec_musl(step, path, argv0, start),
        }
        step
    }

    /// Simulates one `dlopen`.
    pub fn dlopen(&mut self, request: &OpenRequest) -> StepId {
        let step = self.push_step(request.kind, request.name.clone());
        let caller = request.caller.filter(|c| self.is_loaded(*c)).or((!self.images.is_empty()).then_some(ImageId(0)));
        {
            let s = &mut self.steps[step.index()];
            s.flags = Some(request.flags);
            s.caller = caller;
            s.optional = request.optional;
            s.note.clone_from(&request.note);
        }
        match self.dialect.family {
            Family::Glibc => self.dlopen_glibc(step, request, caller),
            Family::Musl => self.dlopen_musl(step, request, caller),
        }
        step
    }

    pub(crate) fn push_decision(&mut self, decision: Decision) -> DecisionId {
        self.decisions.push(decision);
        DecisionId(self.decisions.len() as u32 - 1)
    }

    pub(crate) fn push_image(&mut self, image: Image) -> ImageId {
        let id = ImageId(self.images.len() as u32);
        let cost = image.object.cost();
        self.budget.take_text(budget::CANDIDATE, cost + 4 * image.name.len());
        if let Some(key) = image.key {
            self.by_key.entry(key).or_insert(id);
        }
        if self.lookups != Lookups::None {
            self.store.read_ahead(&image.object, self.lookups != Lookups::Record);
        }
        self.images.push(image);
        self.names.add_last(&self.images);
        id
    }

    /// The first image in load order that answers to a name (`_dl_lookup_map`; rule R5.1).
    pub(crate) fn lookup_loaded(&mut self, name: &BStr) -> Option<(ImageId, Identity)> {
        // The main program's l_name is empty, and so can a request be.
        if name.is_empty() && self.images.first().is_some_and(|i| i.role == Role::Main) {
            return Some((ImageId(0), Identity::Name));
        }
        if self.dialect.vdso_name().is_some_and(|vdso| vdso == name) && !self.images.is_empty() {
            return Some((self.vdso(name), Identity::Name));
        }
        let (id, learnt) = self.names.find(&self.images, name)?;
        if learnt {
            return Some((id, Identity::Name));
        }
        self.learn(name, id);
        self.images[id.index()].soname_added = true;
        Some((id, Identity::Soname))
    }

    /// The image that answers to the name of the kernel's library (rule R5.5): it stands behind the program and before
    /// everything that is loaded, and is noted when it is asked for.
    fn vdso(&mut self, name: &BStr) -> ImageId {
        let known = self.names.find(&self.images, name).filter(|(id, _)| id.index() == 0).map(|(id, _)| id);
        let noted = || self.images.iter().position(|i| i.role == Role::Vdso).map(|at| ImageId(at as u32));
        if let Some(id) = known.or_else(noted) {
            return id;
        }
        let exec = StepId(0);
        let id = ImageId(self.images.len() as u32);
        let decision = self.push_decision(Decision {
            chosen: Some(id),
            via: Some(Via { place: Place::of(Rule::Exec), identity: None, text: "the kernel".into() }),
            ..Decision::new(exec, name.to_owned(), Some(ImageId(0)), How::Exec)
        });
        let image = Image::new(name.to_owned(), Role::Vdso, Arc::new(Object::nowhere(name)), decision, exec);
        self.push_image(Image { versions_checked: true, is_relocated: true, ..image })
    }

    /// From now on an image answers to this name too.
    fn learn(&mut self, name: &BStr, id: ImageId) {
        self.images[id.index()].names.push(name.to_owned());
        self.names.learn(&self.images, name, id);
    }

    /// The first loaded image that answers to a name by its path or a name it learnt, not by its soname alone.
    pub(crate) fn lookup_learnt(&self, name: &BStr) -> Option<ImageId> {
        self.names.find_learnt(&self.images, name)
    }

    /// The image with a file's identity, if it is loaded (rule R5.6).
    pub(crate) fn lookup_file(&self, key: FileKey) -> Option<ImageId> {
        // Only loaded images are indexed.
        self.by_key.get(&key).copied().filter(|id| self.is_loaded(*id))
    }

    /// `_dl_map_object`: answers one request by a loaded image or by loading a file; records the decision.
    /// `asked` is the text after token expansion.
    pub(crate) fn request(
        &mut self,
        step: StepId,
        asked: &BStr,
        requester: Option<ImageId>,
        how: How,
        conditions: Conditions,
        entry: Option<u32>,
    ) -> Mapped {
        if self.images.len() >= MAX_IMAGES {
            self.budget.exhaust();
        }
        let affordable = self.budget.take_text(budget::CANDIDATE, 2 * asked.len());
        if affordable
            && !self.records_attempts
            && let Some((id, _)) = self.lookup_loaded(asked)
        {
            return Mapped::Image(id, false);
        }
        let mut decision = Decision::new(step, asked.to_owned(), requester, how);
        if !affordable {
            let failure = Budget::failure(asked);
            decision.failure = Some(failure.clone());
            self.push_decision(decision);
            return Mapped::Failed(failure);
        }
        if let Some((id, identity)) = self.lookup_loaded(asked) {
            decision.chosen = Some(id);
            decision.via =
                Some(Via { place: Place::of(Rule::AlreadyLoaded), identity: Some(identity), text: asked.to_owned() });
            if !asked.contains(&b'/') {
                self.note_shadowed(asked, requester, conditions, id, &mut decision.attempts);
            }
            self.push_decision(decision);
            return Mapped::Image(id, false);
        }
        let found = if asked.contains(&b'/') {
            self.open_path_name(asked, requester, how, entry, &mut decision.attempts)
        } else {
            let mut attempts = Vec::new();
            let result = self.search(asked, requester, conditions, &mut attempts);
            decision.attempts = attempts;
            result
        };
        match found {
            Searched::Found(found) => self.map_found(decision, found, how),
            Searched::Nothing(failure) | Searched::Fatal(failure) => {
                decision.failure = Some(failure.clone());
                self.push_decision(decision);
                Mapped::Failed(failure)
            }
        }
    }

    /// A name with a slash: tokens of the requester expanded, opened as given, no search (rules R1.1, R1.4).
    fn open_path_name(
        &mut self,
        asked: &BStr,
        requester: Option<ImageId>,
        how: How,
        entry: Option<u32>,
        attempts: &mut Vec<Attempt>,
    ) -> Searched {
        let path = match requester {
            Some(image) if tokens::count(asked) > 0 => {
                let trusted = (image == ImageId(0)).then_some(self.dialect.system_dirs.as_slice());
                let secure = self
                    .host()
                    .secure
                    .then_some(Secure { trusted, normalise: self.dialect.normalises_secure_origin() });
                tokens::expand(asked, self.values(image), secure).unwrap_or_default()
            }
            _ => asked.to_owned(),
        };
        let place =
            if how == How::Preload { Place { rule: Rule::Preload, owner: None, entry } } else { Place::of(Rule::Path) };
        let mut note = |verdict| attempts.push(Attempt { path: path.clone(), place, verdict });
        let object = match self.store.open(path.as_bstr()) {
            Ok(object) => object,
            Err(errno) => {
                self.errno = errno;
                note(Verdict::Skipped(errno));
                return Searched::Nothing(LoadFailure::new(
                    asked.to_owned(),
                    "cannot open shared object file",
                    errno.0,
                ));
            }
        };
        match verify::header(&object, &self.dialect, self.host()) {
            Check::Usable => {
                note(Verdict::Taken);
                Searched::Found(Found { object, path, place, text: asked.to_owned() })
            }
            Check::Skip(verdict) => {
                self.errno = Errno::ENOENT;
                let class = verdict == Verdict::WrongClass;
                note(verdict);
                Searched::Nothing(if class {
                    let text = if self.dialect.layout.is_64 {
                        "wrong ELF class: ELFCLASS32"
                    } else {
                        "wrong ELF class: ELFCLASS64"
                    };
                    LoadFailure::new(asked.to_owned(), text, 0)
                } else {
                    LoadFailure::new(asked.to_owned(), "cannot open shared object file", Errno::ENOENT.0)
                })
            }
            Check::Fatal(text, errno) => {
                note(Verdict::Fatal(text.into()));
                Searched::Fatal(LoadFailure::new(path.clone(), text, errno))
            }
        }
    }

    /// `_dl_map_object_from_fd`: unify by inode, or map and make a new image.
    fn map_found(&mut self, mut decision: Decision, found: Found, how: How) -> Mapped {
        let asked = decision.asked.clone();
        if let Some(id) = self.lookup_file(found.object.meta.key) {
            self.learn(asked.as_bstr(), id);
            decision.chosen = Some(id);
            decision.via = Some(Via {
                place: Place { rule: Rule::AlreadyLoaded, ..found.place },
                identity: Some(Identity::Inode),
                text: found.path,
            });
            self.push_decision(decision);
            return Mapped::Image(id, false);
        }
        let under_dlopen = matches!(self.steps[decision.step.index()].kind, StepKind::Dlopen | StepKind::Import);
        let mapping =
            Mapping { dlopen: under_dlopen, as_program: false, stack_is_executable: self.stack_is_executable };
        let verdict =
            verify::map(&found.object, asked.as_bstr(), found.path.as_bstr(), &self.dialect, self.host(), mapping);
        if let Err(failure) = verdict {
            if let Some(taken) = decision.attempts.iter_mut().find(|a| a.verdict == Verdict::Taken) {
                taken.verdict = Verdict::Fatal(failure.text.to_string());
            }
            decision.refused = Some((found.path, found.place));
            decision.failure = Some(failure.clone());
            self.push_decision(decision);
            return Mapped::Failed(failure);
        }
        // What dlopen loads directly has no loader; everything else remembers who caused it (rule R2.4).
        let loader = if how == How::Dlopen { None } else { decision.needed_by };
        let origin = self.origin_of(found.path.as_bstr());
        let id = ImageId(self.images.len() as u32);
        let step = decision.step;
        let mut scope = self.new_scope(id, loader, self.steps[step.index()].flags.unwrap_or_default());
        let is_deep = self.steps[step.index()].flags.is_some_and(|f| f.deep_bind);
        if !is_deep && found.object.facts().is_some_and(Facts::is_symbolic) {
            scope.insert(0, ScopePart::Itself(id));
        }
        decision.chosen = Some(id);
        decision.via = Some(Via { place: found.place, identity: None, text: found.text });
        let decision = self.push_decision(decision);
        let library = Image::new(found.path, Role::Library, found.object, decision, step);
        self.push_image(Image { names: vec![asked], loader, origin, scope, ..library });
        Mapped::Image(id, true)
    }

    /// `$ORIGIN` of a library: directory part of the path it was opened by, made absolute, nothing resolved
    /// (`_dl_new_object`; rule R1.5).
    pub(crate) fn origin_of(&self, path: &BStr) -> Option<BString> {
        if path.first() == Some(&b'/') {
            return Some(parent(path).to_owned());
        }
        let absolute = self.store.system().absolute(path);
        Some(parent(absolute.as_bstr()).to_owned())
    }

    /// For a request that a loaded image answers: the copy that the requester's own search would have found, when it is
    /// another file. Does not disturb the state that errors depend on.
    fn note_shadowed(
        &mut self,
        asked: &BStr,
        requester: Option<ImageId>,
        conditions: Conditions,
        chosen: ImageId,
        attempts: &mut Vec<Attempt>,
    ) {
        let saved = self.errno;
        let mut tried = Vec::new();
        let found = self.search(asked, requester, Conditions { quiet: true, ..conditions }, &mut tried);
        self.errno = saved;
        let Searched::Found(found) = found else { return };
        let key = self.images[chosen.index()].object.meta.key;
        if found.object.meta.key != key {
            attempts.push(Attempt { path: found.path, place: found.place, verdict: Verdict::NotReached });
        }
        attempts.extend(tried.into_iter().filter(|a| {
            a.verdict == Verdict::NotReached && self.store.stat(a.path.as_bstr()).is_ok_and(|m| m.key != key)
        }));
    }
}
