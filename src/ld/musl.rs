//! musl's loader (ldso/dynlink.c, 1.2): rules R10.
//!
//! It differs from glibc's in kind, not in detail: LD_LIBRARY_PATH first, one inherited run path, a path file, no cache;
//! the first file that opens is final; DT_SONAME is never read; names of libc's own never leave the loader.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use bstr::{BStr, BString, ByteSlice};

use super::budget::{self, Budget};
use super::closure::{MAX_IMAGES, OpenRequest, Start};
use super::config::PathSource;
use super::search::{MAX_UNREACHED, unreached};
use super::store::Object;
use super::{
    Attempt, Decision, Family, How, Identity, Image, ImageId, List, LoadFailure, Outcome, Place, Process, Role, Rule,
    StepId, StepKind, Verdict, Via, concat,
};
use crate::elf::{RequestTag, file_type, symbols};
use crate::system::{Errno, Kind, file_name, parent};

/// What musl keeps besides the images.
#[derive(Clone, Debug, Default)]
pub struct State {
    library_path: Option<Arc<BString>>,
    system_path: Option<Arc<BString>>,
    /// The run path of each image that was asked for one, expanded.
    run_paths: HashMap<ImageId, Option<Arc<BString>>>,
    /// Short names: an image has one only when a search found it (rule R10.9).
    short_names: HashMap<BString, ImageId>,
    /// The images that have one.
    short_named: HashSet<ImageId>,
    /// How many images were there when some request put the loader into the list.
    loader_at: Option<usize>,
    kernel_started: bool,
    no_load: bool,
    /// True when the system path comes from the path file.
    path_file: bool,
}

/// Size of the buffer a candidate path must fit in (2 * NAME_MAX + 2).
const PATH_BUFFER: usize = 512;
const NAME_MAX: usize = 255;

enum Opened {
    File(Arc<Object>, BString, Place, BString),
    Nothing,
    /// An error other than "not there" ends the whole search.
    Stopped,
}

impl Process {
    pub(crate) fn exec_musl(&mut self, step: StepId, path: &BStr, argv0: &BStr, start: Start) {
        let object = match self.store.open(path) {
            Ok(object) => object,
            Err(errno) => {
                let failure = LoadFailure::new(path.to_owned(), "cannot execute", errno.0);
                let text = failure.dlerror();
                self.fail_step(step, failure, text);
                return;
            }
        };
        let decision = self.push_decision(Decision {
            chosen: Some(ImageId(0)),
            via: Some(Via { place: Place::of(Rule::Exec), identity: None, text: path.to_owned() }),
            attempts: vec![Attempt { path: path.to_owned(), place: Place::of(Rule::Exec), verdict: Verdict::Taken }],
            ..Decision::new(step, path.to_owned(), None, How::Exec)
        });
        if start == Start::Kernel
            && let Some(errno) = self.refuses_program(&object, path)
        {
            self.decisions[decision.index()].chosen = None;
            let failure = LoadFailure::new(path.to_owned(), "cannot execute", errno.0);
            let text = failure.dlerror();
            self.fail_step(step, failure, text);
            return;
        }
        if let Err(errno) = usable(&object) {
            self.decisions[decision.index()].chosen = None;
            let text = concat(&[argv0, b": Not a valid dynamic program"]);
            self.fail_step(step, LoadFailure::new(path.to_owned(), "Not a valid dynamic program", errno.0), text);
            return;
        }
        if start == Start::Kernel {
            self.gain_privilege(path, object.meta.mode);
        }
        self.musl.kernel_started = start == Start::Kernel;
        let absolute = self.store.system().absolute(path);
        let origin = match start {
            Start::Kernel if !self.host().proc_mounted || self.host().secure => None,
            Start::Kernel => {
                let real = self.store.system().files.real_path(absolute.as_bstr()).unwrap_or(absolute);
                Some(parent(real.as_bstr()).to_owned())
            }
            Start::Loader => Some(directory(path)),
        };
        let key = (start == Start::Loader).then_some(object.meta.key);
        let main = Image::new(path.to_owned(), Role::Main, object.clone(), decision, step);
        self.push_image(Image { key, origin, global: true, versions_checked: true, ..main });
        self.steps[step.index()].image = Some(ImageId(0));
        if start == Start::Kernel
            && let Some(failure) = object.facts().and_then(|facts| self.dies_before_loading(facts, path))
        {
            let text = failure.text.clone();
            self.fail_step(step, failure, text);
            return;
        }
        if start == Start::Kernel && object.facts().is_some_and(|f| f.interpreter.is_none()) {
            return;
        }
        self.add_loader_image(step, start);
        if !self.host().secure {
            let variable = self.host().env.get("LD_LIBRARY_PATH").map(|p| p.to_owned());
            self.musl.library_path = self.options.library_path.clone().or(variable).map(Arc::new);
            let variable = self.host().env.get("LD_PRELOAD").map(|p| p.to_owned()).unwrap_or_default();
            let preload = self.options.preload.last().cloned().unwrap_or(variable);
            for (entry, name) in List::Preload.elements(Family::Musl, preload.as_bstr()).enumerate() {
                let inner = self.push_step(StepKind::Preload, name.into());
                self.steps[inner.index()].optional = true;
                self.steps[inner.index()].note = format!("LD_PRELOAD[{entry}]");
                let before = self.images.len();
                match self.musl_request(inner, name, None, How::Preload, Some(entry as u32)) {
                    Ok(id) => {
                        self.steps[inner.index()].image = Some(id);
                        if id.index() < before {
                            self.steps[inner.index()].outcome = Outcome::AlreadyLoaded;
                        }
                    }
                    Err(failure) if failure.is_the_end() => {
                        let text = failure.end_text();
                        self.fail_step(inner, failure.clone(), text.clone());
                        self.fail_step(step, failure, text);
                        return;
                    }
                    // musl does not say a word about a preload that fails.
                    Err(failure) => self.fail_step(inner, failure, BString::default()),
                }
            }
        }
        let mut errors = Vec::new();
        self.musl_dependencies(step, ImageId(0), &mut errors);
        self.startup_order = self.musl_order();
        self.images[0].search_list.clone_from(&self.startup_order);
        for id in self.startup_order.clone() {
            self.images[id.index()].global = true;
            self.global.push(id);
        }
        // A process that never names its libc cannot see a symbol of it.
        if let Some(at) = self.musl.loader_at.filter(|_| self.has_loader()) {
            let before = (0..at).filter(|at| self.images[*at].role != Role::Loader).count();
            self.global.insert(before.min(self.global.len()), ImageId(1));
        }
        let is_dead = errors.last().is_some_and(|(failure, _)| failure.is_the_end());
        let mut unbound = if is_dead { Vec::new() } else { self.relocate_musl(None) };
        // The program is the first in every lookup; when all is relocated `malloc` is looked up, unless it only lists.
        let asks = |image: &Image| self.store.symbols(&image.object).is_some_and(|s| !s.references.is_empty());
        let is_asked = || self.images.iter().any(|i| i.role != Role::Loader && asks(i));
        if !is_dead && !is_searchable(&object) && (is_asked() || errors.is_empty() && !self.lists_only()) {
            let failure = LoadFailure::killed(path, "SIGSEGV", NO_HASH_TABLE);
            let text = failure.text.clone();
            unbound = vec![(failure, text)];
        }
        let told = unbound.iter().filter(|(failure, _)| !failure.is_the_end());
        self.relocation_failures = told.map(|(_, line)| line.clone()).collect();
        if !self.lists_only() || unbound.last().is_some_and(|(failure, _)| failure.is_the_end()) {
            errors.extend(unbound);
        }
        if self.gave_up() {
            let failure = Budget::failure(path);
            let text = failure.dlerror();
            self.fail_step(step, failure, text);
        } else if let Some((failure, text)) = errors.pop_if(|(failure, _)| failure.is_the_end()) {
            // What it said before it died.
            self.steps[step.index()].warnings.extend(errors.into_iter().map(|(_, line)| line));
            self.fail_step(step, failure, text);
        } else if let Some((failure, _)) = errors.first().cloned() {
            let lines: Vec<BString> = errors.into_iter().map(|(_, line)| line).collect();
            self.fail_step(step, failure, bstr::join("\n", lines).into());
        }
    }

    pub(crate) fn dlopen_musl(&mut self, step: StepId, request: &OpenRequest, caller: Option<ImageId>) {
        self.errno = Errno(0);
        let before = self.images.len();
        // The requester is always the main program (rule R10.3).
        let requester = (!self.images.is_empty()).then_some(ImageId(0));
        self.musl.no_load = request.flags.no_load;
        let opened = self.musl_request(step, request.name.as_bstr(), requester, How::Dlopen, None);
        self.musl.no_load = false;
        if let Some(last) = self.decisions.last_mut() {
            last.needed_by = caller;
        }
        let id = match opened {
            Ok(id) => id,
            Err(failure) => {
                if request.flags.no_load {
                    let text = concat(&[b"Library ", &request.name, b" is not already loaded"]);
                    self.fail_step(step, failure, text);
                    return;
                }
                if failure.is_the_end() {
                    let text = failure.end_text();
                    self.fail_step(step, failure, text);
                    return;
                }
                let reason = strerror(Errno(failure.errno));
                let text = missing_line(request.name.as_bstr(), reason.as_str().into(), None);
                let text = if self.gave_up() { failure.dlerror() } else { text };
                self.fail_step(step, failure, text);
                return;
            }
        };
        self.steps[step.index()].image = Some(id);
        if id.index() < before {
            self.steps[step.index()].outcome = Outcome::AlreadyLoaded;
        }
        let mut errors = Vec::new();
        self.musl_dependencies(step, id, &mut errors);
        let first = if self.gave_up() {
            let failure = Budget::failure(request.name.as_bstr());
            let text = failure.dlerror();
            Some((failure, text))
        } else {
            errors.into_iter().next()
        };
        if let Some((failure, line)) = first {
            self.fail_step(step, failure, line);
            self.unload(before, step);
            self.musl.short_names.retain(|_, id| id.index() < before);
            self.musl.short_named.retain(|id| id.index() < before);
            return;
        }
        if let Some((failure, line)) = self.relocate_musl(Some((id, request.flags))).into_iter().next() {
            self.fail_step(step, failure, line);
            self.unload(before, step);
            self.musl.short_names.retain(|_, id| id.index() < before);
            self.musl.short_named.retain(|id| id.index() < before);
            return;
        }
        if request.flags.global {
            self.promote(id);
        }
        self.retry_late_lookups();
    }

    fn musl_order(&self) -> Vec<ImageId> {
        (0..self.images.len() as u32).map(ImageId).filter(|id| self.images[id.index()].role != Role::Loader).collect()
    }

    /// True when the loader's own image is there: not in a static program, nor when nothing was started.
    fn has_loader(&self) -> bool {
        self.images.get(1).is_some_and(|i| i.role == Role::Loader)
    }

    /// The first image of a short name keeps it.
    fn add_short_name(&mut self, name: BString, id: ImageId) {
        self.musl.short_names.entry(name).or_insert(id);
        self.musl.short_named.insert(id);
    }

    /// The loader is appended where a request first named it.
    fn list_loader(&mut self) {
        let count = self.images.len();
        self.musl.loader_at.get_or_insert(count);
    }

    /// Breadth first over the list of images, from one image on (`load_deps`).
    fn musl_dependencies(&mut self, step: StepId, root: ImageId, errors: &mut Vec<(LoadFailure, BString)>) {
        let mut at = root.index();
        let mut first = true;
        while at < self.images.len() {
            let id = ImageId(at as u32);
            at += 1;
            let skip = self.images[id.index()].role == Role::Loader || self.images[id.index()].unloaded_by.is_some();
            if skip || (!first && !self.images[id.index()].needs.is_empty()) {
                continue;
            }
            first = false;
            let object = self.images[id.index()].object.clone();
            let Some(facts) = object.facts() else { continue };
            if !self.images[id.index()].needs.is_empty() {
                continue;
            }
            let mut needs = Vec::new();
            for request in facts.requests.iter().filter(|r| r.tag == RequestTag::Needed) {
                let name = &request.name;
                if !request.mapped {
                    let path = self.images[id.index()].name.as_bstr();
                    let why = "an entry of its dynamic array points at memory that is not there";
                    let failure = LoadFailure::killed(path, "SIGSEGV", why);
                    let line = failure.text.clone();
                    errors.push((failure, line));
                    return;
                }
                match self.musl_request(step, name.as_bstr(), Some(id), How::Needed, None) {
                    Ok(dep) => needs.push(dep),
                    Err(failure) if failure.is_the_end() => {
                        let text = failure.end_text();
                        errors.push((failure, text));
                        return;
                    }
                    Err(failure) => {
                        let reason = strerror(Errno(failure.errno));
                        let needed_by = self.images[id.index()].name.as_bstr();
                        let line = missing_line(name.as_bstr(), reason.as_str().into(), Some(needed_by));
                        errors.push((failure, line));
                        if self.gave_up() {
                            return;
                        }
                    }
                }
            }
            self.images[id.index()].needs = needs;
        }
        if self.images[root.index()].search_list.is_empty() {
            let mut list = vec![root];
            let mut seen = HashSet::from([root]);
            let mut i = 0;
            while let Some(id) = list.get(i).copied() {
                list.extend(self.images[id.index()].needs.iter().copied().filter(|dep| seen.insert(*dep)));
                i += 1;
            }
            self.images[root.index()].search_list = list;
        }
    }

    /// `load_library`.
    fn musl_request(
        &mut self,
        step: StepId,
        name: &BStr,
        needed_by: Option<ImageId>,
        how: How,
        entry: Option<u32>,
    ) -> Result<ImageId, LoadFailure> {
        let mut decision = Decision::new(step, name.to_owned(), needed_by, how);
        if self.images.len() >= MAX_IMAGES {
            self.budget.exhaust();
        }
        let result = if self.budget.take_text(budget::CANDIDATE, 2 * name.len()) {
            self.musl_answer(name, needed_by, how, entry, &mut decision)
        } else {
            Err(Budget::failure(name))
        };
        match result {
            Ok(Answer::Loaded(id)) => {
                decision.chosen = Some(id);
                self.push_decision(decision);
                Ok(id)
            }
            Ok(Answer::New(mut image)) => {
                let id = ImageId(self.images.len() as u32);
                decision.chosen = Some(id);
                let short =
                    decision.via.as_ref().is_some_and(|v| v.place.rule != Rule::Path && v.place.rule != Rule::Preload);
                image.decision = self.push_decision(decision);
                if short {
                    self.add_short_name(file_name(image.name.as_bstr()).to_owned(), id);
                }
                self.push_image(*image);
                Ok(id)
            }
            Err(failure) => {
                decision.failure = Some(failure.clone());
                self.push_decision(decision);
                Err(failure)
            }
        }
    }

    fn musl_answer(
        &mut self,
        name: &BStr,
        needed_by: Option<ImageId>,
        how: How,
        entry: Option<u32>,
        decision: &mut Decision,
    ) -> Result<Answer, LoadFailure> {
        let failed = |errno: Errno| LoadFailure::new(name.to_owned(), strerror(errno), errno.0);
        if name.is_empty() {
            self.errno = Errno::EINVAL;
            return Err(failed(Errno::EINVAL));
        }
        if self.has_loader() && (own_name(name).is_some() || self.images.get(1).is_some_and(|l| l.name == name)) {
            self.list_loader();
            decision.via = Some(Via {
                place: Place::of(Rule::AlreadyLoaded),
                identity: Some(Identity::Name),
                text: name.to_owned(),
            });
            return Ok(Answer::Loaded(ImageId(1)));
        }
        let slash = name.contains(&b'/');
        let (object, path, place, text) = if slash {
            let place = if how == How::Preload {
                Place { rule: Rule::Preload, owner: None, entry }
            } else {
                Place::of(Rule::Path)
            };
            match self.store.open(name) {
                Ok(object) => (object, name.to_owned(), place, name.to_owned()),
                Err(errno) => {
                    self.errno = errno;
                    decision.attempts.push(Attempt { path: name.to_owned(), place, verdict: Verdict::Skipped(errno) });
                    return Err(failed(errno));
                }
            }
        } else {
            let known = self.musl.short_names.get(name).copied();
            if let Some(id) = known {
                decision.via = Some(Via {
                    place: Place::of(Rule::AlreadyLoaded),
                    identity: Some(Identity::Name),
                    text: name.to_owned(),
                });
                let saved = self.errno;
                let mut attempts = Vec::new();
                if let Opened::File(object, path, place, _) = self.musl_search(name, needed_by, &mut attempts)
                    && object.meta.key != self.images[id.index()].object.meta.key
                {
                    decision.attempts.push(Attempt { path, place, verdict: Verdict::NotReached });
                }
                self.errno = saved;
                return Ok(Answer::Loaded(id));
            }
            if name.len() > NAME_MAX {
                return Err(failed(self.errno));
            }
            match self.musl_search(name, needed_by, &mut decision.attempts) {
                Opened::File(object, path, place, text) => (object, path, place, text),
                Opened::Nothing | Opened::Stopped => return Err(failed(self.errno)),
            }
        };
        let key = object.meta.key;
        // A loader that no request has named yet is not in the list.
        let hidden = |image: &Image| image.role == Role::Loader && self.musl.loader_at.is_none();
        let same = match self.lookup_file(key) {
            Some(id) if hidden(&self.images[id.index()]) => (0..self.images.len() as u32).map(ImageId).find(|id| {
                let image = &self.images[id.index()];
                image.key == Some(key) && image.unloaded_by.is_none() && !hidden(image)
            }),
            found => found,
        };
        if let Some(id) = same {
            if !slash && !self.musl.short_named.contains(&id) {
                let short = file_name(self.images[id.index()].name.as_bstr()).to_owned();
                self.add_short_name(short, id);
            }
            decision.via = Some(Via {
                place: Place { rule: Rule::AlreadyLoaded, ..place },
                identity: Some(Identity::Inode),
                text: path,
            });
            return Ok(Answer::Loaded(id));
        }
        if self.musl.no_load {
            return Err(failed(self.errno));
        }
        if usable(&object) == Err(Errno::EAGAIN) {
            decision.attempts.retain(|a| a.verdict != Verdict::Taken);
            decision.attempts.push(Attempt { path: path.clone(), place, verdict: Verdict::Fatal(super::WAITS.into()) });
            return Err(LoadFailure::new(path, super::WAITS, 0));
        }
        if let Err(errno) = usable(&object) {
            self.errno = errno;
            if let Some(last) = decision.attempts.iter_mut().find(|a| a.verdict == Verdict::Taken) {
                last.verdict = Verdict::Fatal(strerror(errno));
            } else {
                decision.attempts.push(Attempt { path: path.clone(), place, verdict: Verdict::Fatal(strerror(errno)) });
            }
            return Err(failed(errno));
        }
        if !is_searchable(&object) {
            // It is looked through for two names of libc (see below).
            let failure = LoadFailure::killed(path.as_bstr(), "SIGSEGV", NO_HASH_TABLE);
            decision.attempts.push(Attempt { path, place, verdict: Verdict::Fatal(NO_HASH_TABLE.to_owned()) });
            return Err(failure);
        }
        if self.is_a_libc(&object) {
            // A second libc is put away again and the loader's own answers (rule R10.14).
            decision.via = Some(Via {
                place: Place::of(Rule::AlreadyLoaded),
                identity: Some(Identity::Name),
                text: "libc.so".into(),
            });
            if self.has_loader() {
                return Ok(Answer::Loaded(ImageId(1)));
            }
        }
        if slash {
            decision.attempts.push(Attempt { path: path.clone(), place, verdict: Verdict::Taken });
        }
        decision.via = Some(Via { place, identity: None, text });
        let origin = Some(directory(path.as_bstr()));
        let library = Image::new(path, Role::Library, object, super::DecisionId(0), decision.step);
        let checked = Image { loader: needed_by, origin, soname_added: true, versions_checked: true, ..library };
        Ok(Answer::New(Box::new(checked)))
    }

    fn musl_search(&mut self, name: &BStr, needed_by: Option<ImageId>, attempts: &mut Vec<Attempt>) -> Opened {
        let mut winner: Option<Opened> = None;
        if let Some(path) = self.musl.library_path.clone()
            && let Opened::Stopped =
                self.musl_list(name, path.as_bstr(), Rule::LibraryPath, None, attempts, &mut winner)
        {
            return Opened::Stopped;
        }
        let mut at = needed_by;
        while let Some(id) = at {
            if !self.budget.take(1, 0) {
                return Opened::Stopped;
            }
            if let Some(path) = self.musl_run_path(id) {
                let has_runpath = self.images[id.index()].facts().is_some_and(|f| f.runpath.is_some());
                let rule = if has_runpath { Rule::Runpath } else { Rule::Rpath };
                if let Opened::Stopped = self.musl_list(name, path.as_bstr(), rule, Some(id), attempts, &mut winner) {
                    return Opened::Stopped;
                }
            }
            at = self.images[id.index()].loader;
        }
        let list = self.musl_system_path();
        let rule = if self.musl.path_file { Rule::MuslPath } else { Rule::Default };
        if let Opened::Stopped = self.musl_list(name, list.as_bstr(), rule, None, attempts, &mut winner) {
            return Opened::Stopped;
        }
        winner.unwrap_or(Opened::Nothing)
    }

    /// `path_open`: elements between `:` and newline, empty ones skipped.
    fn musl_list(
        &mut self,
        name: &BStr,
        list: &BStr,
        rule: Rule,
        owner: Option<ImageId>,
        attempts: &mut Vec<Attempt>,
        winner: &mut Option<Opened>,
    ) -> Opened {
        for (entry, element) in List::RunPath.elements(Family::Musl, list).enumerate() {
            if element.is_empty() {
                continue;
            }
            let place = Place { rule, owner, entry: Some(entry as u32) };
            let mut path = element.to_owned();
            path.push(b'/');
            path.extend_from_slice(name);
            if !self.budget.take_text(budget::CANDIDATE, 2 * path.len()) {
                return Opened::Stopped;
            }
            if path.len() >= PATH_BUFFER {
                continue;
            }
            if let Some(Opened::File(object, ..)) = winner {
                let key = object.meta.key;
                if let Ok(meta) = self.store.stat(path.as_bstr())
                    && meta.kind == Kind::File
                    && meta.key != key
                    && unreached(attempts) < MAX_UNREACHED
                    && attempts.iter().all(|a| a.path != path)
                {
                    attempts.push(Attempt { path, place, verdict: Verdict::NotReached });
                }
                continue;
            }
            match self.store.open(path.as_bstr()) {
                Ok(object) => {
                    attempts.push(Attempt { path: path.clone(), place, verdict: Verdict::Taken });
                    *winner = Some(Opened::File(object, path, place, element.into()));
                }
                Err(errno) => {
                    self.errno = errno;
                    let goes_on = matches!(errno, Errno::ENOENT | Errno::ENOTDIR | Errno::EACCES | Errno::ENAMETOOLONG);
                    attempts.push(Attempt {
                        path,
                        place,
                        verdict: if goes_on { Verdict::Skipped(errno) } else { Verdict::ListStopped(errno) },
                    });
                    if !goes_on {
                        return Opened::Stopped;
                    }
                }
            }
        }
        Opened::Nothing
    }

    /// `fixup_rpath`: RUNPATH, else RPATH; `$ORIGIN` only, any other `$` drops the whole list (rule R10.8).
    fn musl_run_path(&mut self, id: ImageId) -> Option<Arc<BString>> {
        if let Some(known) = self.musl.run_paths.get(&id) {
            return known.clone();
        }
        let image = &self.images[id.index()];
        let text = image.facts().and_then(|f| f.runpath.as_ref().or(f.rpath.as_ref()));
        let origin = image.origin.as_ref().map_or(0, |o| o.len());
        let cost = text.map_or(0, |t| t.len() + t.iter().filter(|b| **b == b'$').count() * origin);
        let path = if self.budget.take_text(1, cost) { self.musl_expanded(id).map(Arc::new) } else { None };
        self.musl.run_paths.insert(id, path.clone());
        path
    }

    fn musl_expanded(&self, id: ImageId) -> Option<BString> {
        let image = &self.images[id.index()];
        let facts = image.facts()?;
        let text = facts.runpath.as_ref().or(facts.rpath.as_ref())?;
        if !text.contains(&b'$') {
            return Some(text.clone());
        }
        let tokens: &[&[u8]] = &[b"${ORIGIN}", b"$ORIGIN"];
        let origin = image.origin.as_ref()?;
        let is_main = image.role == Role::Main;
        if self.host().secure && (is_main && self.musl.kernel_started || !origin.starts_with(b"/")) {
            return None;
        }
        let mut out = BString::default();
        let mut rest: &[u8] = text;
        while let Some(at) = memchr::memchr(b'$', rest) {
            out.extend_from_slice(&rest[..at]);
            let token = tokens.iter().find(|t| rest[at..].starts_with(t))?;
            out.extend_from_slice(origin);
            rest = &rest[at + token.len()..];
        }
        out.extend_from_slice(rest);
        Some(out)
    }

    /// The path file, or the built-in list (rule R10.4).
    fn musl_system_path(&mut self) -> Arc<BString> {
        if let Some(known) = &self.musl.system_path {
            return known.clone();
        }
        let loader = self.images.get(1).map_or_else(|| self.dialect.path.clone(), |l| l.name.clone());
        let arch = self.dialect.musl_arch.as_ref().map(|a| a.as_bstr());
        let path = super::config::musl_path(self.store.system(), loader.as_bstr(), arch);
        match path.source {
            PathSource::File | PathSource::Unusable(None) => self.musl.path_file = true,
            PathSource::Default => self.errno = Errno::ENOENT,
            PathSource::Unusable(Some(errno)) => self.errno = errno,
        }
        let list = Arc::new(path.list);
        self.musl.system_path = Some(list.clone());
        list
    }

    /// True for a file that defines both `__libc_start_main` and `stdin`.
    fn is_a_libc(&self, object: &Object) -> bool {
        let Some(facts) = object.facts() else { return false };
        let Ok(file) = self.store.system().open(object.opened_as.as_bstr()) else { return false };
        let Some(table) = symbols::Table::open(&file, facts) else { return false };
        table.defines(b"__libc_start_main") && table.defines(b"stdin")
    }
}

enum Answer {
    Loaded(ImageId),
    New(Box<Image>),
}

/// `map_library`: long enough, of type DYN or EXEC, program headers there, a PT_DYNAMIC among them (rule R10.7).
fn usable(object: &Object) -> Result<(), Errno> {
    const ENOEXEC: Errno = Errno(8);
    match &object.head {
        Err(errno) => return Err(*errno),
        Ok(_) if object.meta.kind == Kind::Other => return Err(Errno::EINVAL),
        Ok(_) => {}
    }
    let facts = object.facts().ok_or(ENOEXEC)?;
    let h = &facts.header;
    let table = u64::from(h.program_header_size) * u64::from(h.program_header_count);
    let fits = h.program_headers_at.checked_add(table).is_some_and(|end| end <= object.meta.size);
    let is_program = matches!(h.file_type, file_type::DYN | file_type::EXEC);
    let standard = usize::from(h.program_header_size) == facts.layout.program_header_size();
    if !is_program || !fits || !standard || !facts.has_dynamic {
        return Err(ENOEXEC);
    }
    if facts.segments.is_empty() {
        return Err(Errno::ENOMEM);
    }
    Ok(())
}

/// A lookup walks `DT_GNU_HASH`, or else `DT_HASH`, without asking whether it is there (`find_sym`).
const NO_HASH_TABLE: &str = "a symbol is looked up in it, and it has no hash table";

fn is_searchable(object: &Object) -> bool {
    object.facts().is_some_and(|f| f.dynamic.gnu_hash.is_some() || f.dynamic.hash.is_some())
}

/// The part of a name by which it never leaves the loader: `lib` + one of these (`load_library`; rule R10.1).
pub fn own_name(name: &BStr) -> Option<&'static [u8]> {
    const OWN: [&[u8]; 7] = [b"c.", b"pthread.", b"rt.", b"m.", b"dl.", b"util.", b"xnet."];
    let rest = name.strip_prefix(b"lib")?;
    OWN.into_iter().find(|own| rest.starts_with(own))
}

/// What musl says of a library that cannot be loaded (`load_deps`, `dlopen`); `needed_by` is the path of the file with
/// the entry, none for a `dlopen`.
pub fn missing_line(name: &BStr, reason: &BStr, needed_by: Option<&BStr>) -> BString {
    let mut line = concat(&[b"Error loading shared library ", name, b": ", reason]);
    if let Some(path) = needed_by {
        line.extend_from_slice(&concat(&[b" (needed by ", path, b")"]));
    }
    line
}

/// Directory part as musl takes it: `.` when there is no slash.
fn directory(path: &BStr) -> BString {
    match path.rfind_byte(b'/') {
        Some(at) => path[..at].into(),
        None => ".".into(),
    }
}

/// musl's own error texts.
pub fn strerror(errno: Errno) -> String {
    match errno.0 {
        0 => "No error information".into(),
        5 => "I/O error".into(),
        8 => "Exec format error".into(),
        12 => "Out of memory".into(),
        23 => "Too many open files in system".into(),
        24 => "No file descriptors available".into(),
        36 => "Filename too long".into(),
        40 => "Symbolic link loop".into(),
        _ => errno.text(),
    }
}
