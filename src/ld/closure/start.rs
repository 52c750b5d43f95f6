//! Start-up of a process under glibc: the program, the loader itself, preloads, the environment's lists.
//!
//! Follows `dl_main` and `do_preload` (elf/rtld.c) of glibc.

use std::sync::Arc;

use bstr::{BStr, BString, ByteSlice};

use super::{Closure, Mapped, Process, Start};
use crate::elf::Facts;
use crate::ld::budget::{self, Budget};
use crate::ld::dialect::Family;
use crate::ld::search::Conditions;
use crate::ld::store::Object;
use crate::ld::tokens;
use crate::ld::touched;
use crate::ld::tunables;
use crate::ld::verify::{self, Check, Mapping};
use crate::ld::{
    Attempt, Decision, How, Image, ImageId, List, LoadFailure, Outcome, Place, Role, Rule, ScopePart, StepId, StepKind,
    Verdict, Via,
};
use crate::system::{Errno, parent};

impl Process {
    pub(super) fn exec_glibc(&mut self, step: StepId, path: &BStr, argv0: &BStr, start: Start) {
        let at_start = |failure: &LoadFailure| -> BString {
            if failure.stands_alone() {
                return failure.end_text();
            }
            let mut line = argv0.to_owned();
            line.extend_from_slice(b": error while loading shared libraries: ");
            line.extend_from_slice(&failure.at_startup());
            line
        };
        let object = match self.open_program(step, path, start) {
            Ok(object) => object,
            Err(failure) => {
                let is_told = start == Start::Kernel && !failure.stands_alone();
                let text = if is_told { failure.dlerror() } else { at_start(&failure) };
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
        let named = object.facts().and_then(|f| f.interpreter.clone()).filter(|_| start == Start::Kernel);
        let refused = named.and_then(|name| Some((self.refuses_interpreter(name.as_bstr())?, name)));
        if start == Start::Kernel
            && refused.is_none()
            && let Some(facts) = object.facts()
            && let Some(failure) = self.dies_before_loading(facts, path)
        {
            let text = failure.text.clone();
            self.fail_step(step, failure, text);
            return;
        }
        if start == Start::Kernel && !has_interpreter {
            // A static program: no loader takes part.
            return;
        }
        self.add_loader_image(step, start);
        if let Some((errno, interpreter)) = refused {
            // execve gives the error of the interpreter; what follows shows what would be loaded with one.
            let failure = LoadFailure::new(interpreter, "the program's loader cannot be opened", errno.0);
            let text = failure.dlerror();
            self.fail_step(step, failure, text);
        }
        self.load_environment();
        let preloads = match self.glibc_preloads(step) {
            Ok(preloads) => preloads,
            Err(failure) => {
                let text = failure.end_text();
                self.fail_step(step, failure, text);
                return;
            }
        };
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
                _ => at_start(&failure),
            };
            self.fail_step(step, failure, text);
            return;
        }
        let order: Vec<ImageId> = self.load_order();
        let outcome = self.check_versions(&order, true, argv0);
        let missing_lines = |missing: &[LoadFailure]| -> Vec<BString> {
            missing.iter().map(|failure| crate::ld::concat(&[argv0.as_bytes(), b": ", &failure.dlerror()])).collect()
        };
        self.steps[step.index()].warnings.extend(outcome.warnings);
        if let Some(failure) = outcome.fatal {
            let last = at_start(&failure);
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

    /// The error with which `execve` ends because of the program's loader, before it begins to replace the process.
    pub(crate) fn refuses_interpreter(&self, path: &BStr) -> Option<Errno> {
        let opened = self.store.open(path).and_then(|object| self.store.may_run(path).map(|()| object));
        match opened {
            Ok(object) => verify::interpreter(&object, &self.dialect),
            Err(errno) => Some(errno),
        }
    }

    /// The error with which `execve` ends because of the program itself.
    pub(crate) fn refuses_program(&self, object: &Object, path: &BStr) -> Option<Errno> {
        let may_run = self.store.may_run(path);
        may_run.err().or_else(|| verify::kernel(object, &self.dialect))
    }

    /// What ends a started process before its loader looks for anything: the kernel cannot map the program, its first
    /// instruction is none (without a loader), or its tables are damaged (with glibc's).
    pub(crate) fn dies_before_loading(&self, facts: &Facts, path: &BStr) -> Option<LoadFailure> {
        let mapped = touched::kernel(facts, path, self.host().page_size.max(1));
        mapped.or_else(|| match (&facts.interpreter, self.dialect.family) {
            (None, _) => touched::entry_point(facts, path),
            (Some(_), Family::Musl) => None,
            (Some(_), Family::Glibc) => touched::dynamic_array(facts, path, &self.dialect, true)
                .and_then(|()| touched::tables(facts, path))
                .err(),
        })
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
            && let Some(errno) = self.refuses_program(&object, path)
        {
            self.decisions[decision.index()].attempts[0].verdict = Verdict::Fatal(errno.text());
            return Err(LoadFailure::new(path.to_owned(), "cannot execute", errno.0));
        }
        if start == Start::Kernel {
            self.gain_privilege(path, object.meta.mode);
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
        self.stack_is_executable = tunables::number(self.dialect(), self.host(), b"glibc.rtld.execstack") == Some(2);
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

    /// LD_PRELOAD, then /etc/ld.so.preload (rules R6.1, R6.2, R9.2). Fails only where the process gets no further.
    fn glibc_preloads(&mut self, step: StepId) -> Result<Vec<ImageId>, LoadFailure> {
        let mut out = Vec::new();
        let text = self.host().env.get("LD_PRELOAD").map(|t| t.to_owned()).unwrap_or_default();
        for (index, name) in (0..).zip(List::Preload.elements(Family::Glibc, text.as_bstr())) {
            if name.len() >= 4096 || (self.host().secure && (name.contains(&b'/') || name.len() >= 255)) {
                continue;
            }
            self.preload(step, name, "LD_PRELOAD", index, &mut out)?;
        }
        for list in self.options.preload.clone() {
            for name in List::Preload.elements(Family::Glibc, list.as_bstr()) {
                self.preload(step, name, "--preload", 0, &mut out)?;
            }
        }
        if let Ok(bytes) = self.store.preload_file() {
            for (index, name) in crate::ld::config::preload_names(&bytes).iter().enumerate() {
                self.preload(step, name.as_bstr(), "/etc/ld.so.preload", index as u32, &mut out)?;
            }
        }
        Ok(out)
    }

    fn preload(
        &mut self,
        exec: StepId,
        name: &BStr,
        from: &str,
        entry: u32,
        out: &mut Vec<ImageId>,
    ) -> Result<(), LoadFailure> {
        if !self.budget.take_text(budget::CANDIDATE, 4 * name.len()) {
            return Ok(());
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
            Mapped::Failed(failure) if failure.is_the_end() => {
                self.fail_step(step, failure.clone(), failure.end_text());
                return Err(failure);
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
        Ok(())
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
}
