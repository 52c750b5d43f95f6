//! The process: start-up, preloads, breadth-first closure, `dlopen` steps, identity, rollback.
//!
//! Follows `dl_main` (elf/rtld.c), `_dl_map_object` and `_dl_map_object_from_fd` (elf/dl-load.c),
//! `_dl_map_object_deps` (elf/dl-deps.c) and `dl_open_worker_begin` (elf/dl-open.c) of glibc.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use bstr::{BStr, BString, ByteSlice};
use rustc_hash::{FxHashMap, FxHashSet};

use super::bind::{Binding, Lookups, Unresolved};
use super::budget::{self, Budget};
use super::cache::{Fault, Unusable};
use super::dialect::{Dialect, Family};
use super::loaded_cache::{LoadedCache, Origin};
use super::names::Names;
use super::search::{CacheHit, Conditions, Found, SearchList, Searched};
use super::store::{Object, Setup, Store};
use super::tokens::{self, Secure};
use super::verify::{self, Check, Mapping};
use super::{
    Attempt, Decision, DecisionId, How, Identity, Image, ImageId, List, LoadFailure, OpenFlags, Outcome, Place, Role,
    Rule, ScopePart, Step, StepId, StepKind, Verdict, Via,
};
use crate::elf::{Facts, RequestTag};
use crate::system::{Errno, FileKey, Host, parent};

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
/// More filtees than this that are moved to an earlier place stand in a circle.
const MAX_RETURNS: u32 = 10_000;
/// Most filtees that change their place.
const MAX_MOVES: usize = 1_000;

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
    pub bindings: Vec<Binding>,
    /// Where bindings are not recorded ([`Lookups::Check`]): those to other images. What a file with very many references
    /// defines itself is not among them, whoever answers.
    ///
    /// [`Lookups::Check`]: super::Lookups::Check
    pub imports: Vec<Binding>,
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
        if dialect.can_be_told_secure() && super::dialect::tunable(&host, b"glibc.rtld.enable_secure") == Some(1) {
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
            bindings: Vec::new(),
            imports: Vec::new(),
            unresolved: Vec::new(),
            relocation_failures: Vec::new(),
            unique: HashMap::new(),
            static_tls: None,
            options: LoaderOptions::default(),
            cache_was_opened: false,
            missing_directories: FxHashSet::default(),
            budget: Budget::default(),
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

    // ------------------------------------------------------------------------------------------------- glibc start-up

    fn exec_glibc(&mut self, step: StepId, path: &BStr, argv0: &BStr, start: Start) {
        let at_start = |failure: &LoadFailure| -> BString {
            let mut line = argv0.to_owned();
            line.extend_from_slice(b": error while loading shared libraries: ");
            line.extend_from_slice(&failure.at_startup());
            line
        };
        let object = match self.open_program(step, path, start) {
            Ok(object) => object,
            Err(failure) => {
                let text = if start == Start::Kernel { failure.dlerror() } else { at_start(&failure) };
                self.fail_step(step, failure, text);
                return;
            }
        };
        let wants_stack = object.facts().is_some_and(|f| {
            f.stack_flags.map_or(self.dialect.stack_is_executable_by_default(), |flags| flags & 1 != 0)
        });
        if wants_stack && self.dialect.forbids_executable_stack(self.host()) {
            let failure = LoadFailure::new("", "Fatal glibc error: executable stack is not allowed", 0);
            let text = failure.text.clone();
            self.fail_step(step, failure, text);
            return;
        }
        let has_interpreter = object.facts().is_some_and(|f| f.interpreter.is_some());
        if start == Start::Kernel && !has_interpreter {
            // A static program: no loader takes part.
            return;
        }
        self.add_loader_image(step, start);
        if start == Start::Kernel
            && let Some(interpreter) = self.images.get(1).map(|i| i.name.clone())
            && let Err(errno) = self.store.open(interpreter.as_bstr())
        {
            // execve gives the error of the interpreter; what follows shows what would be loaded with one.
            let failure = LoadFailure::new(interpreter, "the program's loader cannot be opened", errno.0);
            let text = failure.dlerror();
            self.fail_step(step, failure, text);
        }
        self.load_environment();
        let preloads = self.glibc_preloads(step);
        let roots: Vec<ImageId> = std::iter::once(ImageId(0)).chain(preloads).collect();
        let Closure { mut list, failure, leader } = self.map_dependencies(step, &roots, false);
        let failure = failure.or_else(|| self.gave_up().then(|| Budget::failure(path)));
        let displaced = list.first() != Some(&ImageId(0));
        if displaced {
            // A filtee of the program itself lands in front of it, which the loader does not survive (rule R6.3).
            // What stands in front of the program is out of the loader's own list too.
            let place = list.iter().position(|id| *id == ImageId(0)).unwrap_or(0);
            for id in list.drain(..place).collect::<Vec<_>>() {
                self.images[id.index()].hidden = true;
            }
            let line = self.dialect.displaced_program_message();
            if self.dialect.checks_list_at_start() && leader != ImageId(0) {
                let failure = LoadFailure::new("", line, 0);
                let text = failure.text.clone();
                self.startup_order = list;
                self.fail_step(step, failure, text);
                return;
            }
            if !self.dialect.checks_list_at_start() {
                self.steps[step.index()].warnings.push(line.into());
            }
        }
        self.startup_order = list;
        let mut known = vec![false; self.images.len()];
        for id in &self.global {
            known[id.index()] = true;
        }
        for id in &self.startup_order {
            self.images[id.index()].global = true;
            if !std::mem::replace(&mut known[id.index()], true) {
                self.global.push(*id);
            }
        }
        self.images[0].search_list.clone_from(&self.startup_order);
        self.note_stacks();
        if let Some(failure) = failure {
            let text = match failure.text.as_slice() {
                // The ISA check at start-up prints without the usual frame (rule R3.11).
                b"CPU ISA level is lower than required" => failure.dlerror(),
                _ if failure.signal.is_some() => failure.text.clone(),
                _ => at_start(&failure),
            };
            self.fail_step(step, failure, text);
            return;
        }
        let order: Vec<ImageId> = self.load_order();
        let outcome = self.check_versions(&order, true, argv0);
        let missing_lines = |missing: &[LoadFailure]| -> Vec<BString> {
            missing.iter().map(|failure| super::concat(&[argv0.as_bytes(), b": ", &failure.dlerror()])).collect()
        };
        self.steps[step.index()].warnings.extend(outcome.warnings);
        if let Some(failure) = outcome.fatal {
            let last = if failure.object.is_empty() && failure.text.starts_with(b"Inconsistency") {
                failure.text.clone()
            } else {
                at_start(&failure)
            };
            // What was missing before is told already.
            let mut lines = missing_lines(&outcome.missing);
            lines.push(last);
            self.fail_step(step, failure, bstr::join("\n", lines).into());
        } else if let Some(first) = outcome.missing.first().cloned() {
            let text = bstr::join("\n", missing_lines(&outcome.missing)).into();
            self.fail_step(step, first, text);
        } else if let Some(failure) = self.relocate_at_start(step) {
            let text = self.symbol_error_at_start(&failure, argv0);
            self.fail_step(step, failure, text);
        }
    }

    /// Opens the program as the kernel or the loader run as a program does, and makes it image 0.
    fn open_program(&mut self, step: StepId, path: &BStr, start: Start) -> Result<Arc<Object>, LoadFailure> {
        let mut opened_as = path.to_owned();
        if start == Start::Loader && !path.contains(&b'/') {
            // The search lists do not exist yet: only the cache can answer a bare name (rule R1.8).
            match self.cache_lookup(path)? {
                Some(hit) => opened_as = hit.path,
                None => {
                    let no_cache = self.cache.as_ref().is_none_or(|c| c.cache().is_none());
                    let errno = if no_cache { Errno::ENOENT.0 } else { 0 };
                    return Err(LoadFailure::new(path.to_owned(), "cannot open shared object file", errno));
                }
            }
        }
        let opened = self.store.open(opened_as.as_bstr());
        let object = match opened {
            Ok(object) => object,
            Err(errno) => {
                return Err(match start {
                    Start::Kernel => LoadFailure::new(path.to_owned(), "cannot execute", errno.0),
                    Start::Loader => LoadFailure::new(path.to_owned(), "cannot open shared object file", errno.0),
                });
            }
        };
        let decision = self.push_decision(Decision {
            via: Some(Via { place: Place::of(Rule::Exec), identity: None, text: path.to_owned() }),
            attempts: vec![Attempt { path: path.to_owned(), place: Place::of(Rule::Exec), verdict: Verdict::Taken }],
            ..Decision::new(step, path.to_owned(), None, How::Exec)
        });
        if start == Start::Kernel
            && let Some(errno) = verify::kernel(&object, &self.dialect)
        {
            self.decisions[decision.index()].attempts[0].verdict = Verdict::Fatal(errno.text());
            return Err(LoadFailure::new(path.to_owned(), "cannot execute", errno.0));
        }
        match verify::header(&object, &self.dialect, self.host()) {
            Check::Usable => {}
            Check::Skip(verdict) => {
                self.decisions[decision.index()].attempts[0].verdict = verdict.clone();
                let text = match (&verdict, self.dialect.layout.is_64) {
                    (Verdict::WrongClass, true) => "wrong ELF class: ELFCLASS32",
                    (Verdict::WrongClass, false) => "wrong ELF class: ELFCLASS64",
                    _ => "cannot open shared object file",
                };
                let errno = if verdict == Verdict::WrongClass { 0 } else { Errno::ENOENT.0 };
                return Err(LoadFailure::new(path.to_owned(), text, errno));
            }
            Check::Fatal(text, errno) => {
                self.decisions[decision.index()].attempts[0].verdict = Verdict::Fatal(text.into());
                return Err(LoadFailure::new(path.to_owned(), text, errno));
            }
        }
        if start == Start::Loader {
            let how = Mapping { dlopen: false, as_program: true, stack_is_executable: true };
            verify::map(&object, path, path, &self.dialect, self.host(), how)?;
        }
        let absolute = self.store.system().absolute(opened_as.as_bstr());
        let typed_directory = || parent(absolute.as_bstr()).to_owned();
        let resolved_directory = || {
            self.store.real_directory_of(absolute.as_bstr()).unwrap_or_else(|| parent(absolute.as_bstr()).to_owned())
        };
        let origin = match start {
            Start::Kernel if self.host().proc_mounted => Some(resolved_directory()),
            Start::Kernel if self.host().secure => None,
            Start::Kernel => self.host().env.get("LD_ORIGIN_PATH").map(|p| p.to_owned()),
            Start::Loader if self.dialect.explicit_origin_is_resolved() && self.host().proc_mounted => {
                Some(resolved_directory())
            }
            Start::Loader => Some(typed_directory()),
        };
        let mut names = Vec::new();
        let mut key = None;
        if start == Start::Loader {
            names.push(path.to_owned());
            key = Some(object.meta.key);
        }
        let main = Image::new(path.to_owned(), Role::Main, object.clone(), decision, step);
        let image = self.push_image(Image { names, key, origin, global: true, scope: vec![ScopePart::Global], ..main });
        self.decisions[decision.index()].chosen = Some(image);
        self.steps[step.index()].image = Some(image);
        self.stack_is_executable = super::dialect::tunable(self.host(), b"glibc.rtld.execstack") == Some(2);
        Ok(object)
    }

    /// The loader's own image: it answers to its PT_INTERP text and its soname (rule R5.5). Its file is that of the
    /// loader that runs: the one that the program names where the kernel starts it, else the one that was run.
    pub(crate) fn add_loader_image(&mut self, step: StepId, start: Start) {
        let own = self.dialect.path.clone();
        let interpreter = self.images[0].facts().and_then(|f| f.interpreter.clone()).unwrap_or_else(|| own.clone());
        let object = match self.store.open(own.as_bstr()) {
            Ok(object) if start == Start::Loader && object.facts().is_some() => object,
            _ => {
                let object = self.store.open(interpreter.as_bstr());
                object.unwrap_or_else(|_| Arc::new(Object::nowhere(interpreter.as_bstr())))
            }
        };
        let decision = self.push_decision(Decision {
            chosen: Some(ImageId(1)),
            via: Some(Via { place: Place::of(Rule::Exec), identity: None, text: "PT_INTERP".into() }),
            ..Decision::new(step, interpreter.clone(), Some(ImageId(0)), How::Exec)
        });
        let key = object.facts().is_some().then_some(object.meta.key);
        let origin = Some(parent(interpreter.as_bstr()).to_owned());
        let mut names = vec![interpreter.clone()];
        if self.dialect.family == Family::Glibc && object.facts().is_none() {
            names.push(self.dialect.soname.clone());
        }
        let loader = Image::new(interpreter, Role::Loader, object, decision, step);
        self.push_image(Image { names, key, origin, versions_checked: true, ..loader });
    }

    /// LD_LIBRARY_PATH is read once (rules R2.7, R2.8, R9.1).
    fn load_environment(&mut self) {
        let variable =
            (!self.host().secure).then(|| self.host().env.get("LD_LIBRARY_PATH").map(|t| t.to_owned())).flatten();
        let text = self.options.library_path.clone().or(variable);
        let cost = text.as_ref().map_or(0, |t| tokens::longest(t.as_bstr(), self.values(ImageId(0))));
        let text = text.filter(|_| self.budget.take_text(cost as u64 / 8, cost));
        self.library_path = text.and_then(|t| self.parse_shared(t.as_bstr(), List::LibraryPath, ImageId(0)));
    }

    /// LD_PRELOAD, then /etc/ld.so.preload (rules R6.1, R6.2, R9.2).
    fn glibc_preloads(&mut self, step: StepId) -> Vec<ImageId> {
        let mut out = Vec::new();
        let text = self.host().env.get("LD_PRELOAD").map(|t| t.to_owned()).unwrap_or_default();
        for (index, name) in (0..).zip(List::Preload.elements(Family::Glibc, text.as_bstr())) {
            if name.len() >= 4096 || (self.host().secure && (name.contains(&b'/') || name.len() >= 255)) {
                continue;
            }
            self.preload(step, name, "LD_PRELOAD", index, &mut out);
        }
        for list in self.options.preload.clone() {
            for name in List::Preload.elements(Family::Glibc, list.as_bstr()) {
                self.preload(step, name, "--preload", 0, &mut out);
            }
        }
        if let Ok(bytes) = self.store.preload_file() {
            for (index, name) in super::config::preload_names(&bytes).iter().enumerate() {
                self.preload(step, name.as_bstr(), "/etc/ld.so.preload", index as u32, &mut out);
            }
        }
        out
    }

    fn preload(&mut self, exec: StepId, name: &BStr, from: &str, entry: u32, out: &mut Vec<ImageId>) {
        if !self.budget.take_text(budget::CANDIDATE, 4 * name.len()) {
            return;
        }
        let step = self.push_step(StepKind::Preload, name.to_owned());
        self.steps[step.index()].optional = true;
        self.steps[step.index()].note = format!("{from}[{entry}]");
        let conditions = Conditions { secure_preload: self.host().secure, ..Conditions::default() };
        match self.request(step, name, Some(ImageId(0)), How::Preload, conditions, Some(entry)) {
            Mapped::Image(id, new) => {
                self.steps[step.index()].image = Some(id);
                if new {
                    out.push(id);
                } else {
                    self.steps[step.index()].outcome = Outcome::AlreadyLoaded;
                }
            }
            Mapped::Failed(failure) => {
                // Only the text stands in the message, neither object nor errno (do_preload).
                let mut line = BString::from("ERROR: ld.so: object '");
                line.extend_from_slice(name);
                line.extend_from_slice(b"' from ");
                line.extend_from_slice(from.as_bytes());
                line.extend_from_slice(b" cannot be preloaded (");
                line.extend_from_slice(&failure.text);
                line.extend_from_slice(b"): ignored.");
                self.steps[exec.index()].warnings.push(line.clone());
                self.fail_step(step, failure, line);
            }
        }
    }

    /// An executable stack asked for at start-up stays for later `dlopen`s (rule R6.32).
    fn note_stacks(&mut self) {
        let default = self.dialect.stack_is_executable_by_default();
        self.stack_is_executable |= self
            .images
            .iter()
            .filter(|i| i.unloaded_by.is_none() && i.role != Role::Loader)
            .any(|i| i.facts().is_some_and(|f| f.stack_flags.map_or(default, |flags| flags & 1 != 0)));
    }

    // ----------------------------------------------------------------------------------------------- closure and identity

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
        let (id, learnt) = self.names.find(&self.images, name)?;
        if learnt {
            return Some((id, Identity::Name));
        }
        self.learn(name, id);
        self.images[id.index()].soname_added = true;
        Some((id, Identity::Soname))
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

    /// `_dl_map_object_deps`: the breadth-first closure of some roots. Returns the list and the first failure.
    ///
    /// After a missing library the walk goes on, as `LD_TRACE_LOADED_OBJECTS` does, so that everything that is missing
    /// is known at once; a candidate that is fatal ends it.
    fn map_dependencies(&mut self, step: StepId, roots: &[ImageId], dlopen: bool) -> Closure {
        struct Item {
            id: ImageId,
            done: bool,
        }
        let mut list: Vec<Item> = roots.iter().map(|id| Item { id: *id, done: false }).collect();
        // By image: true for what is in the list.
        let mut reserved = vec![false; self.images.len()];
        for id in roots {
            reserved[id.index()] = true;
        }
        let mut first_failure: Option<LoadFailure> = None;
        // Who led the list when the first one failed: the loader goes no further.
        let mut leader = None;
        let mut at = 0;
        // How often a filtee that was in the list already came back in front of its filter: in a circle of filters that has
        // no end, and each time takes some of the loader's stack.
        let mut returns = 0;
        'walk: while at < list.len() {
            list[at].done = true;
            let me = list[at].id;
            let mut position = at;
            let object = self.images[me.index()].object.clone();
            let requests = object.facts().map(|f| f.requests.as_slice()).unwrap_or_default();
            let mut needs = Vec::with_capacity(requests.len());
            let known = self.images[me.index()].needs.len() == requests.len();
            for (index, request) in requests.iter().enumerate() {
                let how = match request.tag {
                    RequestTag::Needed => How::Needed,
                    RequestTag::Auxiliary => How::Auxiliary,
                    RequestTag::Filter => How::Filter,
                };
                let answer = if known && self.is_loaded(self.images[me.index()].needs[index]) {
                    // Answered before; a loaded name keeps its answer.
                    Ok(Some(self.images[me.index()].needs[index]))
                } else {
                    self.need(step, me, request, how, index as u32)
                };
                let id = match answer {
                    Ok(Some(id)) => id,
                    Ok(None) => continue,
                    Err(failure) => {
                        if self.budget.is_spent() {
                            first_failure.get_or_insert(failure);
                            break 'walk;
                        }
                        let first = list[0].id;
                        if how == How::Auxiliary
                            && failure.signal.is_none()
                            && !failure.text.starts_with(b"empty dynamic")
                            && !failure.text.starts_with(b"DST not")
                        {
                            continue;
                        }
                        let missing = failure.text.as_slice() == b"cannot open shared object file"
                            || failure.text.starts_with(b"wrong ELF class");
                        first_failure.get_or_insert(failure);
                        leader.get_or_insert(first);
                        if missing {
                            continue;
                        }
                        break 'walk;
                    }
                };
                needs.push(id);
                reserved.resize(self.images.len(), false);
                let is_new = !std::mem::replace(&mut reserved[id.index()], true);
                if how != How::Needed {
                    self.budget.take(list.len() as u64 / 16, 0);
                }
                if how == How::Needed {
                    if is_new {
                        list.push(Item { id, done: false });
                    }
                } else if is_new {
                    list.insert(position, Item { id, done: false });
                    position += 1;
                    self.note_move(id, me, dlopen && first_failure.is_none());
                } else if let Some(later) = list[position + 1..].iter().position(|i| i.id == id) {
                    returns += 1;
                    if returns > MAX_RETURNS {
                        let why = "libraries that are filters of each other use up the stack";
                        let label = self.images[me.index()].name.as_bstr();
                        first_failure.get_or_insert(LoadFailure::killed(label, "SIGSEGV", why));
                        break 'walk;
                    }
                    list.remove(position + 1 + later);
                    list.insert(position, Item { id, done: false });
                    position += 1;
                    self.note_move(id, me, dlopen && first_failure.is_none());
                }
            }
            self.images[me.index()].needs = needs;
            while list.get(at).is_some_and(|i| i.done) {
                at += 1;
            }
        }
        let list: Vec<ImageId> = list.into_iter().map(|i| i.id).collect();
        Closure { leader: leader.unwrap_or(list[0]), list, failure: first_failure }
    }

    /// A filtee takes its place in front of its filter in the loader's list too. At a start that list is the search list.
    fn note_move(&mut self, filtee: ImageId, filter: ImageId, dlopen: bool) {
        if dlopen && filtee != filter && self.moved.len() < MAX_MOVES {
            self.moved.push((filtee, filter));
        }
    }

    /// One NEEDED, AUXILIARY or FILTER entry: tokens are expanded before anything else (rules R1.4, R1.6, R9.4).
    fn need(
        &mut self,
        step: StepId,
        me: ImageId,
        request: &crate::elf::Request,
        how: How,
        index: u32,
    ) -> Result<Option<ImageId>, LoadFailure> {
        let written = request.name.as_bstr();
        if !request.mapped {
            let why = "an entry of its dynamic array points at memory that is not there";
            return Err(LoadFailure::killed(self.images[me.index()].name.as_bstr(), "SIGSEGV", why));
        }
        let mut name = Cow::Borrowed(written);
        if tokens::count(written) > 0 {
            if self.host().secure {
                return Err(LoadFailure::new(written.to_owned(), "DST not allowed in SUID/SGID programs", 0));
            }
            match tokens::expand(written, self.values(me), None).filter(|n| !n.is_empty()) {
                Some(expanded) => name = Cow::Owned(expanded),
                None if how == How::Auxiliary => {
                    return Err(LoadFailure::new(written.to_owned(), "empty dynamic string token substitution", 0));
                }
                None => return Ok(None),
            }
        }
        let requested = &mut self.images[me.index()].requested;
        let repeated = index < *requested;
        *requested = (*requested).max(index + 1);
        let before = self.decisions.len();
        let answer = self.request(step, name.as_ref(), Some(me), how, Conditions::default(), None);
        match answer {
            Mapped::Image(id, new) => {
                if repeated && !new && self.decisions.len() == before + 1 {
                    // The same image asking again gets the answer it got before: nothing new to tell.
                    self.decisions.pop();
                }
                Ok(Some(id))
            }
            Mapped::Failed(failure) => Err(failure),
        }
    }

    // ---------------------------------------------------------------------------------------------------------- dlopen

    fn dlopen_glibc(&mut self, step: StepId, request: &OpenRequest, caller: Option<ImageId>) {
        // A running program's errno is unknown; 0 leaves no tail behind a message that no failed call precedes.
        self.errno = Errno(0);
        if request.name.is_empty() && !self.images.is_empty() {
            self.steps[step.index()].image = Some(ImageId(0));
            self.steps[step.index()].outcome = Outcome::AlreadyLoaded;
            return;
        }
        let images_before = self.images.len();
        let decisions_before = self.decisions.len();
        // The caller counts only for a bare name or one with a token (dl_open_worker_begin).
        let bare = !request.name.contains(&b'/') || request.name.contains(&b'$');
        let requester = if bare { caller } else { None };
        let id = match self.request(step, request.name.as_bstr(), requester, How::Dlopen, Conditions::default(), None) {
            Mapped::Image(id, _) => id,
            Mapped::Failed(failure) => {
                let text = failure.dlerror();
                if let Some(last) = self.decisions.get_mut(decisions_before..).and_then(<[_]>::last_mut) {
                    last.needed_by = caller;
                }
                self.fail_step(step, failure, text);
                return;
            }
        };
        if !bare && let Some(last) = self.decisions.get_mut(decisions_before..).and_then(<[_]>::last_mut) {
            last.needed_by = caller;
        }
        self.steps[step.index()].image = Some(id);
        let is_new = id.index() >= images_before;
        if request.flags.no_load && is_new {
            self.unload(images_before, step);
            self.steps[step.index()].outcome = Outcome::Failed;
            return;
        }
        if !is_new {
            self.steps[step.index()].outcome = Outcome::AlreadyLoaded;
        }
        if self.images[id.index()].search_list.is_empty() {
            let Closure { list, failure, leader } = self.map_dependencies(step, &[id], true);
            let failure = failure.or_else(|| self.gave_up().then(|| Budget::failure(request.name.as_bstr())));
            let is_displaced = leader != id && self.dialect.checks_list_at_start();
            let goes_first = |f: &LoadFailure| f.signal.is_some() || self.gave_up() || !is_displaced;
            if let Some(failure) = failure.filter(goes_first) {
                let text = failure.dlerror();
                self.fail_step(step, failure, text);
                self.unload(images_before, step);
                return;
            }
            if is_displaced {
                // The object's own filtee is in front of it (rule R6.3). The list is looked at before it is told which
                // dependency could not be loaded (`out:` in _dl_map_object_deps, elf/dl-deps.c).
                let failure = LoadFailure::new("", self.dialect.displaced_program_message(), 0);
                let text = failure.text.clone();
                self.fail_step(step, failure, text);
                self.unload(images_before, step);
                return;
            }
            let outcome = self.check_versions(&list, false, b"".as_bstr());
            if let Some(failure) = outcome.fatal.or_else(|| outcome.missing.into_iter().next()) {
                let text =
                    if failure.text.starts_with(b"Inconsistency") { failure.text.clone() } else { failure.dlerror() };
                self.fail_step(step, failure, text);
                self.unload(images_before, step);
                return;
            }
            self.images[id.index()].search_list = list;
            self.extend_scopes(id);
            if let Some(failure) = self.relocate_opened(step, id, request.flags) {
                let text = if failure.object.is_empty() { failure.text.clone() } else { failure.dlerror() };
                self.fail_step(step, failure, text);
                self.unload(images_before, step);
                return;
            }
            self.retry_late_lookups();
        }
        if request.flags.global {
            self.promote(id);
            self.retry_late_lookups();
        }
    }

    /// RTLD_GLOBAL: the whole search list joins the global scope in order (rule R6.9).
    pub(crate) fn promote(&mut self, id: ImageId) {
        for member in self.images[id.index()].search_list.clone() {
            let image = &mut self.images[member.index()];
            if !image.global {
                image.global = true;
                self.global.push(member);
            }
        }
    }

    /// Unloads what a failed step loaded. Names that loaded images learnt meanwhile stay, as in the loader.
    pub(crate) fn unload(&mut self, from: usize, step: StepId) {
        self.release_static_tls(from);
        if !self.moved.is_empty() {
            // What was moved stays where it is, also when what it was moved for goes.
            let mut order = self.load_order();
            let stays = |id: &ImageId| self.image(*id).role != Role::Loader || self.startup_order.contains(id);
            order.retain(|id| id.index() < from && stays(id));
            self.base_order = order;
            self.moved.clear();
        }
        for image in &mut self.images[from..] {
            image.unloaded_by = Some(step);
            image.global = false;
        }
        self.global.retain(|id| id.index() < from);
        for image in &mut self.images[..from] {
            image.scope.retain(|part| !matches!(part, ScopePart::SearchList(id) if id.index() >= from));
        }
        let images = &self.images;
        self.unique.retain(|_, (id, _)| id.index() < from);
        self.by_key.retain(|_, id| images[id.index()].unloaded_by.is_none());
    }

    /// Unloads an image, as the last `dlclose` does, or as the loader does when a later stage of a `dlopen` fails that
    /// this model does not take part in. The step given is the one during which that happened.
    pub fn close(&mut self, id: ImageId, step: StepId) {
        self.release_static_tls_of(id);
        if let Some(image) = self.images.get_mut(id.index()) {
            image.unloaded_by = Some(step);
            image.global = false;
        }
        self.global.retain(|member| *member != id);
        let images = &self.images;
        self.by_key.retain(|_, id| images[id.index()].unloaded_by.is_none());
        for image in &mut self.images {
            // What needed it has to ask again.
            if image.needs.contains(&id) {
                image.needs.clear();
            }
            if image.search_list.contains(&id) {
                image.search_list.clear();
            }
        }
    }

    /// The global scope in lookup order: what the next issue of names walks first.
    pub fn global_scope(&self) -> &[ImageId] {
        &self.global
    }
}
