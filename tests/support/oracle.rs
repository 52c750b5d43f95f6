//! Asks real loaders: a fixture's files are laid out below a scratch directory, its processes run in there by chroot
//! with a copy of the loader and of its C library, and what the loader did is read from its trace and from what the
//! forged program tells.
//!
//! Needs root, or user namespaces. Nothing outside the scratch directory is changed.

mod describe;
mod enter;
mod files;
mod loaders;
mod trace;

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};

use super::{bindings, fresh};
use bstr::{BStr, BString, ByteSlice};
pub use describe::describe;
use enter::{enter, signal_name, tunables};
pub use files::Scratch;
use files::{lay_out, os, resolve};
use ldaudit::fixture::{Call, Exec, Family, Fixture, Hit, Observation, Outcome, Pass, Run, Step, Via, What};
use ldaudit::system::{Cpu, Errno};
pub use loaders::{Entry, Real, loaders};
use trace::{Reader, split_trace};

/// The flag by which the driver knows a call of a function from one of dlopen.
const CALL: u32 = 65536;

/// The user that fixture programs run as.
const NOBODY: u32 = 65534;

/// Why a fixture says nothing about a loader here, though it is for it.
pub enum Stop {
    /// Something of this machine is missing.
    Skip(String),
    /// The fixture or the harness is wrong.
    Fail(String),
}

impl From<io::Error> for Stop {
    fn from(e: io::Error) -> Stop {
        Stop::Fail(format!("the box cannot be made: {e}"))
    }
}

/// The reason why a fixture cannot run here under a loader, if there is one.
pub fn obstacle(fixture: &Fixture, real: &Real) -> Option<String> {
    let runs = fixture.runs(real.loader);
    let level = Cpu::live().level;
    for run in &runs {
        if run.cpu_given && run.host.cpu.level > level {
            return Some(format!("cpu-v{}: this processor is x86-64-v{level}", run.host.cpu.level));
        }
        if run.host.secure && real.entry != Entry::Root {
            return Some("root: set-user-ID programs need it".into());
        }
    }
    let has_ldconfig = fixture.statements.iter().any(|s| matches!(s.what, What::Ldconfig(_)));
    if has_ldconfig && real.ldconfig.is_none() {
        return Some(format!("ldconfig of {} is not at hand", real.loader));
    }
    None
}

/// Errors with which the kernel refuses a program: EIO, ENOEXEC, EACCES, ELIBBAD.
const REFUSED: [i32; 4] = [5, 8, 13, 80];

/// Runs a fixture under a loader: one observation per run.
pub fn observe(fixture: &Fixture, real: &Real, name: &str) -> Result<Vec<Observation>, Stop> {
    if let Some(why) = obstacle(fixture, real) {
        return Err(Stop::Skip(why));
    }
    let scratch = Scratch::new(&format!("{}-{name}", real.loader))?;
    let root = &scratch.0;
    let runs = fixture.runs(real.loader);
    let files = fixture.files(real.loader).map_err(|p| Stop::Fail(p.to_string()))?;
    lay_out(root, fixture, real, &runs, &files)?;
    runs.iter().map(|run| Process { fixture, real, root, run }.observe()).collect()
}

struct Process<'a> {
    fixture: &'a Fixture,
    real: &'a Real,
    root: &'a Path,
    run: &'a Run,
}

impl Process<'_> {
    fn observe(&self) -> Result<Observation, Stop> {
        let Some((Step::Exec(exec), actions)) = self.run.steps.split_first().map(|(e, d)| (&e.step, d)) else {
            return Err(Stop::Fail("a run does not begin with exec".into()));
        };
        let actions: Vec<&Step> = actions.iter().map(|s| &s.step).filter(|s| !matches!(s, Step::Exec(_))).collect();
        let is_glibc = self.real.loader.family == Family::Glibc;

        let mut command = match &exec.loader_options {
            None => Command::new(os(exec.path.as_bstr())),
            Some(options) => {
                let mut command = Command::new(self.real.loader.family.interpreter());
                command.args(options.iter().map(|o| os(o.as_bstr())));
                command.arg(os(exec.path.as_bstr()));
                command
            }
        };
        for action in &actions {
            let dlopen = match action {
                Step::Dlopen(dlopen) => dlopen,
                Step::Call(call) => {
                    let plt = self.plt_entry(call).ok_or_else(|| Stop::Fail(format!("no such call: {call:?}")))?;
                    command.arg(CALL.to_string());
                    command.arg(plt.to_string());
                    command.arg(if call.of == exec.path { OsString::new() } else { os(call.of.as_bstr()) });
                    continue;
                }
                Step::Exec(_) => continue,
            };
            let mut flags = if dlopen.lazy { 1 } else { 2 };
            for (set, bit) in [(dlopen.global, 0x100), (dlopen.noload, 4), (dlopen.deepbind, 8)] {
                flags |= if set { bit } else { 0 };
            }
            let from = dlopen.from.as_ref().filter(|from| **from != exec.path);
            command.arg(flags.to_string());
            command.arg(os(dlopen.name.as_bstr()));
            command.arg(os(from.map_or(BStr::new(""), |f| f.as_bstr())));
        }
        command.env_clear();
        let host = &self.run.host;
        for (name, value) in host.env.iter() {
            command.env(os(name), os(value));
        }
        let traced = is_glibc && !host.secure && host.env.get("LD_DEBUG").is_none();
        if traced {
            command.env("LD_DEBUG", "libs,files,bindings");
        }
        let switched_off = tunables(host.cpu.level);
        if is_glibc && self.run.cpu_given && !switched_off.is_empty() {
            let own = host.env.get("GLIBC_TUNABLES").map_or(String::new(), |t| format!("{}:", t.to_str_lossy()));
            command.env("GLIBC_TUNABLES", format!("{own}glibc.cpu.hwcaps={switched_off}"));
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        enter(&mut command, self.root, host.cwd.as_bstr(), host.proc_mounted, self.real.entry);
        let child = match fresh::start(|| command.spawn()) {
            Ok(child) => child,
            Err(e) if exec.loader_options.is_none() && e.raw_os_error().is_some_and(|n| REFUSED.contains(&n)) => {
                let text = Errno(e.raw_os_error().unwrap_or(0)).text();
                let said = vec![format!("{}: cannot execute: {text}", exec.path).into()];
                return Ok(Observation { steps: vec![Outcome { said, ..Outcome::default() }] });
            }
            Err(e) => return Err(Stop::Fail(format!("cannot start {}: {e}", exec.path))),
        };
        let pid = child.id();
        let output = child.wait_with_output()?;

        let program = bindings::records(&output.stdout).map_err(Stop::Fail)?;
        // A loader that runs in secure mode ignores the wish for a trace.
        let traced = traced && output.stderr.find(format!("{pid}:\t")).is_some();
        let said: Vec<&[u8]> = output.stderr.split(|b| *b == 0).collect();
        let mut observation = Observation::default();
        // Parts of standard error: start, one per call that returned, and what came after the last mark.
        let returned = program.len();
        let mut memory = bindings::Memory::new(self.fixture, self.real.loader, exec.path.as_bstr());
        // Each object, and the one whose DT_NEEDED loaded it first.
        let mut loaders = HashMap::new();
        for step in 0..=actions.len().min(returned) {
            let text = said.get(step).copied().unwrap_or(b"");
            let (trace, messages) = split_trace(text, pid);
            let mut outcome = Outcome { said: messages, ..Outcome::default() };
            if let Some(told) = program.get(step) {
                let paths: Vec<BString> = told.maps.iter().map(|m| m.path.clone()).collect();
                outcome.order = Some(self.order(exec, &paths));
                match &told.result {
                    None => outcome.ok = true,
                    Some(Ok(path)) => {
                        outcome.ok = true;
                        let path = if path.is_empty() { &exec.path } else { path };
                        outcome.handle = Some(path.clone());
                    }
                    Some(Err(text)) => outcome.said.insert(0, text.clone()),
                }
            }
            if traced {
                self.read_trace(exec, &trace, &mut outcome, &mut loaders);
                let main = |name: &BStr| -> BString {
                    if name.is_empty() || name == "<main program>" { exec.path.clone() } else { name.into() }
                };
                let describes = |path: &BStr| Some(self.described(path)?.0);
                outcome.bindings = Some(memory.read_trace(&trace, &main, &describes));
            }
            if let Some(told) = program.get(step) {
                let describes = |path: &BStr| Some(self.described(path)?.0);
                let call =
                    step.checked_sub(1).and_then(|at| actions.get(at).copied()).and_then(|action| match action {
                        Step::Call(call) => Some(call),
                        _ => None,
                    });
                memory.step(told, call, &describes, &mut outcome).map_err(Stop::Fail)?;
            }
            observation.steps.push(outcome);
        }
        // What is printed after the last mark belongs to the last step: the end of the process.
        if returned > actions.len() {
            let (_, messages) = split_trace(said.get(returned).copied().unwrap_or(b""), pid);
            if let Some(last) = observation.steps.last_mut() {
                last.said.extend(messages);
            }
        }
        if let Some(last) = observation.steps.last_mut() {
            last.exit = output.status.code().filter(|c| *c != 0);
            last.killed = output.status.signal().map(signal_name);
        }
        if output.status.signal() == Some(libc::SIGALRM) {
            return Err(Stop::Fail("the process did not end in time".into()));
        }
        if output.status.code() == Some(3) && returned == 0 {
            return Err(Stop::Fail("the forged program found no list of objects".into()));
        }
        Ok(observation)
    }

    /// The list of loaded objects as a fixture writes it: main program by its path, without vdso, loader and C library.
    fn order(&self, exec: &Exec, maps: &[BString]) -> Vec<BString> {
        let mut out = vec![exec.path.clone()];
        out.extend(maps.iter().skip(1).filter(|m| !self.leaves_out(m.as_bstr())).cloned());
        out
    }

    fn leaves_out(&self, name: &BStr) -> bool {
        self.fixture.leaves_out(self.real.loader, name)
    }

    fn read_trace(
        &self,
        exec: &Exec,
        trace: &[BString],
        outcome: &mut Outcome,
        loaders: &mut HashMap<BString, Option<BString>>,
    ) {
        let order = outcome.order.as_ref();
        let main = |name: &BStr| -> BString {
            if name.is_empty() || name == "<main program>" { exec.path.clone() } else { name.into() }
        };
        let mut reader = Reader::default();
        for line in trace {
            reader.line(line.as_bstr());
        }
        reader.finish(outcome.ok);
        let mut hits = Vec::new();
        let mut failed = Vec::new();
        for (mut hit, by_dlopen) in reader.hits {
            hit.needed_by = hit.needed_by.map(|by| main(by.as_bstr()));
            // A loader or C library found in the fixture's own file is news, whatever it was asked for as.
            if self.leaves_out(hit.path.as_bstr()) {
                continue;
            }
            if let Some(Via::Rpath { of: Some(of), .. } | Via::Runpath { of: Some(of), .. }) = &mut hit.via {
                *of = main(of.as_bstr());
            }
            if hit.via == Some(Via::Literal) && hit.name.contains(&b'$') {
                // The trace shows the text before expansion; the object's path shows what became of it.
                let file = ldaudit::system::file_name(hit.name.as_bstr());
                let expanded = order.into_iter().flatten().find(|o| ldaudit::system::file_name(o.as_bstr()) == file);
                hit.path = expanded.unwrap_or(&hit.path).clone();
            }
            if hit.via == Some(Via::Inode) {
                let known = order.into_iter().flatten().chain(hits.iter().map(|h: &Hit| &h.path));
                match self.same_file(hit.path.as_bstr(), known) {
                    Some(loaded) => hit.path = loaded,
                    None => {
                        // A request that failed without ending the step: a preload, an auxiliary.
                        failed.push((hit.path, Pass::Tried));
                        continue;
                    }
                }
            }
            self.attribute(exec, &mut hit, loaders);
            if hit.via != Some(Via::Inode) {
                let loader = hit.needed_by.clone().filter(|_| !by_dlopen);
                loaders.insert(hit.path.clone(), loader);
            }
            hits.push(hit);
        }
        let passed = reader.passed.into_iter().chain(failed).filter(|(path, _)| !self.leaves_out(path.as_bstr()));
        let tried = reader.tried.into_iter().filter(|(name, _)| !self.leaves_out(name.as_bstr()));
        let (passed, tried) = (passed.collect(), tried.collect());
        (outcome.found, outcome.passed, outcome.tried) = (Some(hits), Some(passed), Some(tried));
    }

    /// The loaded object that is the same file as a candidate.
    fn same_file<'b>(&self, candidate: &BStr, mut loaded: impl Iterator<Item = &'b BString>) -> Option<BString> {
        let identity = |path: &BStr| {
            let absolute = ldaudit::system::absolute(self.run.host.cwd.as_bstr(), path);
            let meta = fs::metadata(resolve(self.root, absolute.as_bstr())?).ok()?;
            Some((meta.dev(), meta.ino()))
        };
        let wanted = identity(candidate)?;
        loaded.find(|path| identity(path.as_bstr()) == Some(wanted)).cloned()
    }

    /// Completes the rule of a hit: the index of the path element, and the list itself where the trace is unreliable.
    ///
    /// glibc keeps one record per directory text, shared by all lists, and the trace names the list that made the
    /// record first (loader rule R2.7). So where a directory stands in several lists, the trace does not tell which one
    /// was searched; as the file would be found in the first of them, that one is it (R2.1).
    fn attribute(&self, exec: &Exec, hit: &mut Hit, loaders: &HashMap<BString, Option<BString>>) {
        if let (Some(Via::LibraryPath(_)), Some(_)) = (&hit.via, library_path_option(exec)) {
            // Old loaders call the option by the variable's name.
            hit.via = Some(Via::LibraryPathOption(None));
        }
        let is_default = matches!(hit.via, Some(Via::Default));
        if !is_default
            && !matches!(
                hit.via,
                Some(Via::Rpath { .. } | Via::Runpath { .. } | Via::LibraryPath(_) | Via::LibraryPathOption(_))
            )
        {
            return;
        }
        let by = hit.needed_by.clone().unwrap_or_else(|| exec.path.clone());
        let objects: Vec<&BString> = loaders.keys().chain([&exec.path]).collect();
        let mut everywhere: Vec<List> = self.library_path(exec).into_iter().collect();
        for object in &objects {
            everywhere.extend(self.run_paths(exec, object.as_bstr()));
        }
        let matching: Vec<(Via, u32)> =
            everywhere.iter().filter_map(|l| Some((l.via.clone(), l.index_of(hit)?))).collect();
        let built_in = ["/lib/x86_64-linux-gnu/", "/usr/lib/x86_64-linux-gnu/", "/lib/", "/usr/lib/"];
        let also_default = built_in.iter().any(|d| hit.path.strip_prefix(d.as_bytes()).is_some_and(|r| !r.is_empty()));
        if matching.len() + usize::from(also_default) > 1 {
            let applicable = self.applicable(exec, by.as_bstr(), loaders);
            if let Some((via, index)) = applicable.iter().find_map(|l| Some((l.via.clone(), l.index_of(hit)?))) {
                hit.via = Some(with_entry(via, index));
            } else if also_default {
                hit.via = Some(Via::Default);
            }
            return;
        }
        if let Some((via, index)) = matching.into_iter().find(|(via, _)| Some(via) == hit.via.as_ref()) {
            hit.via = Some(with_entry(via, index));
        }
    }

    /// The lists that a request of an object goes through, in order (loader rule R2.1).
    fn applicable(&self, exec: &Exec, by: &BStr, loaders: &HashMap<BString, Option<BString>>) -> Vec<List> {
        let is_rpath = |l: &List| matches!(l.via, Via::Rpath { .. });
        let own = self.run_paths(exec, by);
        let mut out = Vec::new();
        if own.as_ref().is_none_or(is_rpath) {
            let mut here: BString = by.into();
            let mut seen = Vec::new();
            loop {
                out.extend(self.run_paths(exec, here.as_bstr()).filter(is_rpath));
                seen.push(here.clone());
                match loaders.get(&here) {
                    Some(Some(next)) if !seen.contains(next) => here = next.clone(),
                    _ => break,
                }
            }
            if !seen.contains(&exec.path) {
                out.extend(self.run_paths(exec, exec.path.as_bstr()).filter(is_rpath));
            }
        }
        out.extend(self.library_path(exec));
        out.extend(own.filter(|l| !is_rpath(l)));
        out
    }

    /// LD_LIBRARY_PATH, or the option in its place.
    fn library_path(&self, exec: &Exec) -> Option<List> {
        let (text, via) = match library_path_option(exec) {
            Some(text) => (text.clone(), Via::LibraryPathOption(None)),
            None => (self.run.host.env.get("LD_LIBRARY_PATH")?.into(), Via::LibraryPath(None)),
        };
        Some(List { via, text, separators: b":;", origins: self.origins(exec, exec.path.as_bstr()) })
    }

    /// DT_RUNPATH or else DT_RPATH of an object.
    fn run_paths(&self, exec: &Exec, object: &BStr) -> Option<List> {
        let elf = self.elf_at(object)?;
        let of = Some(object.into());
        let (text, via) = match (&elf.runpath, &elf.rpath) {
            (Some(text), _) => (text, Via::Runpath { entry: None, of }),
            (None, Some(text)) => (text, Via::Rpath { entry: None, of }),
            (None, None) => return None,
        };
        Some(List { via, text: text.clone(), separators: b":", origins: self.origins(exec, object) })
    }

    /// What $ORIGIN of an object may be: the directory of its path, and for the program that of the real file.
    fn origins(&self, exec: &Exec, object: &BStr) -> Vec<BString> {
        let absolute = ldaudit::system::absolute(self.run.host.cwd.as_bstr(), object);
        let mut out: Vec<BString> = vec![ldaudit::system::parent(absolute.as_bstr()).into()];
        if object == exec.path {
            if let Some(inside) = self.inside(absolute.as_bstr()) {
                out.push(ldaudit::system::parent(inside.as_bstr()).into());
            }
            out.extend(self.run.host.env.get("LD_ORIGIN_PATH").map(BString::from));
        }
        out
    }

    /// The path of the real file, inside the box.
    fn inside(&self, path: &BStr) -> Option<BString> {
        let real = resolve(self.root, path)?;
        let mut out = BString::from("/");
        out.extend_from_slice(real.strip_prefix(self.root).ok()?.as_os_str().as_bytes());
        Some(out)
    }

    fn elf_at(&self, path: &BStr) -> Option<&ldaudit::fixture::Elf> {
        self.described(path).map(|(_, elf)| elf)
    }

    /// The forged file that an object is, with the path at which the fixture describes it.
    fn described(&self, path: &BStr) -> Option<(BString, &ldaudit::fixture::Elf)> {
        let absolute = ldaudit::system::absolute(self.run.host.cwd.as_bstr(), path);
        if let Some(elf) = self.fixture.elf(absolute.as_bstr()) {
            return Some((absolute.to_vec().into(), elf));
        }
        // The object may have been opened through a link.
        let real = self.inside(absolute.as_bstr())?;
        let elf = self.fixture.elf(real.as_bstr())?;
        Some((real, elf))
    }

    /// Where a call begins, before its object is moved.
    fn plt_entry(&self, call: &Call) -> Option<u64> {
        let (path, _) = self.described(call.of.as_bstr())?;
        bindings::plt_entry(&self.fixture.anatomy(self.real.loader, path.as_bstr())?, &call.symbol)
    }
}

/// The value of --library-path.
fn library_path_option(exec: &Exec) -> Option<&BString> {
    let options = exec.loader_options.as_deref()?;
    let at = options.iter().position(|o| o == "--library-path")?;
    options.get(at + 1)
}

fn with_entry(via: Via, index: u32) -> Via {
    let entry = Some(index);
    match via {
        Via::Rpath { of, .. } => Via::Rpath { entry, of },
        Via::Runpath { of, .. } => Via::Runpath { entry, of },
        Via::LibraryPath(_) => Via::LibraryPath(entry),
        Via::LibraryPathOption(_) => Via::LibraryPathOption(entry),
        other => other,
    }
}

/// A list of directories as its text stands.
struct List {
    via: Via,
    text: BString,
    separators: &'static [u8],
    origins: Vec<BString>,
}

impl List {
    /// The index of the element in which a hit lies.
    fn index_of(&self, hit: &Hit) -> Option<u32> {
        let index = self.text.split(|b| self.separators.contains(b)).position(|element| {
            self.origins.iter().any(|origin| {
                let element = element
                    .replace("${ORIGIN}", origin)
                    .replace("$ORIGIN", origin)
                    .replace("$LIB", "lib/x86_64-linux-gnu")
                    .replace("$PLATFORM", "x86_64");
                let mut prefix = BString::from(element.trim_end_with(|c| c == '/'));
                if !element.is_empty() {
                    prefix.push(b'/');
                }
                let Some(rest) = hit.path.strip_prefix(prefix.as_slice()) else { return false };
                const BELOW: [&str; 5] = ["glibc-hwcaps/", "tls/", "haswell/", "avx512_1/", "x86_64/"];
                rest == hit.name.as_slice()
                    || BELOW.iter().any(|b| rest.starts_with(b.as_bytes())) && rest.ends_with(&hit.name)
            })
        });
        // A wholly empty text is no list.
        index.and_then(|i| u32::try_from(i).ok()).filter(|_| !self.text.is_empty())
    }
}
