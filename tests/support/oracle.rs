//! Asks real loaders: a fixture's files are laid out below a scratch directory, its processes run in there by chroot
//! with a copy of the loader and of its C library, and what the loader did is read from its trace and from what the
//! forged program tells.
//!
//! Needs root, or user namespaces. Nothing outside the scratch directory is changed.

use std::collections::HashMap;
use std::ffi::{CString, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::bindings;
use super::cached;
use bstr::{BStr, BString, ByteSlice};
use ldaudit::fixture::place::{LIBRARY_DIRECTORY, Placed, Thing};
use ldaudit::fixture::{
    Bound, Call, Exec, Family, Fixture, Hit, Loader, Observation, Outcome, Pass, Run, Step, Version, Via, What,
};
use ldaudit::system::Cpu;

/// The flag by which the driver knows a call of a function from one of dlopen.
const CALL: u32 = 65536;

/// The user that fixture programs run as.
const NOBODY: u32 = 65534;

/// A real loader with the files that a process of it needs.
pub struct Real {
    /// Which one it is.
    pub loader: Loader,
    /// Its files by their place in the box.
    files: Vec<(String, PathBuf)>,
    /// Its ldconfig, where it has one.
    ldconfig: Option<PathBuf>,
    /// How a process gets into the box.
    entry: Entry,
}

impl Real {
    #[allow(dead_code)] // not every test binary asks
    /// The loader's own files: where they lie in a box, and where on this machine.
    pub fn files(&self) -> &[(String, PathBuf)] {
        &self.files
    }
}

/// How to enter a box.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Entry {
    /// As root: mount namespace and chroot, then another user.
    Root,
    /// As another user: user and mount namespace.
    UserNamespace,
}

/// Finds out whether and how a box can be entered.
pub fn entry() -> Result<Entry, String> {
    // SAFETY: no memory is involved.
    if unsafe { libc::geteuid() } == 0 {
        return Ok(Entry::Root);
    }
    let probe = Command::new("unshare").args(["-rm", "true"]).stderr(Stdio::null()).status();
    match probe {
        Ok(status) if status.success() => Ok(Entry::UserNamespace),
        _ => Err("neither root nor user namespaces: boxes cannot be entered".into()),
    }
}

/// All loaders of this machine: its own glibc, musl, and the glibc of each foreign root; or why one is not usable.
pub fn loaders() -> Vec<Result<Real, String>> {
    let entry = match entry() {
        Ok(entry) => entry,
        Err(why) => return vec![Err(why)],
    };
    let mut out = vec![glibc_of(Path::new("/"), entry)];
    out.push(musl(entry));
    out.extend(cached::roots().iter().map(|root| glibc_of(root, entry)));
    // The same release twice asks nothing new.
    let mut seen: Vec<Loader> = Vec::new();
    out.retain(|real| match real {
        Ok(real) if seen.contains(&real.loader) => false,
        Ok(real) => {
            seen.push(real.loader);
            true
        }
        Err(_) => true,
    });
    out
}

/// A file of a root, with links that are absolute in that root followed by hand.
fn inside(root: &Path, path: &str) -> Option<PathBuf> {
    let mut here = root.join(path.trim_start_matches('/'));
    for _ in 0..40 {
        let parent = here.parent()?.canonicalize().ok()?;
        here = parent.join(here.file_name()?);
        match fs::read_link(&here) {
            Ok(target) if target.is_absolute() => here = root.join(target.strip_prefix("/").ok()?),
            Ok(target) => here = parent.join(target),
            Err(_) => return here.is_file().then_some(here),
        }
    }
    None
}

fn glibc_of(root: &Path, entry: Entry) -> Result<Real, String> {
    let name = root.display();
    let interpreter = Family::Glibc.interpreter();
    let loader = inside(root, interpreter).ok_or_else(|| format!("no {interpreter} in {name}"))?;
    let built_in = fs::read(&loader).map_err(|e| format!("cannot read the loader of {name}: {e}"))?;
    if built_in.find(format!("{LIBRARY_DIRECTORY}/")).is_none() {
        return Err(format!("the loader of {name} is not one of Debian's: other built-in directories"));
    }
    let libc_path = format!("{LIBRARY_DIRECTORY}/libc.so.6");
    let libc = inside(root, &libc_path).ok_or_else(|| format!("no {libc_path} in {name}"))?;
    let text = fs::read(&libc).map_err(|e| format!("cannot read libc of {name}: {e}"))?;
    let version = release(&text).ok_or_else(|| format!("no release number in libc of {name}"))?;
    let mut files = vec![(interpreter.to_owned(), loader), (libc_path, libc)];
    if version < Version([2, 34, 0]) {
        let path = format!("{LIBRARY_DIRECTORY}/libdl.so.2");
        let file = inside(root, &path).ok_or_else(|| format!("no {path} in {name}"))?;
        files.push((path, file));
    }
    let ldconfig = inside(root, "/sbin/ldconfig");
    Ok(Real { loader: Loader { family: Family::Glibc, version }, files, ldconfig, entry })
}

/// `... release version 2.36.` in libc.
fn release(libc: &[u8]) -> Option<Version> {
    let start = libc.find("GNU C Library")?;
    let text = libc.get(start..start + 200)?;
    let (_, number) = text.split_once_str("release version ")?;
    let end = number.iter().position(|b| !b.is_ascii_digit() && *b != b'.')?;
    let mut parts =
        number.get(..end)?.trim_end_with(|c| c == '.').split_str(".").map(|p| p.to_str().ok()?.parse().ok());
    Some(Version([parts.next()??, parts.next()??, 0]))
}

fn musl(entry: Entry) -> Result<Real, String> {
    let interpreter = Family::Musl.interpreter();
    let file = inside(Path::new("/"), interpreter).ok_or("musl is not installed (Debian's package `musl`)")?;
    // Without arguments the loader prints its release.
    let output = Command::new(&file).output().map_err(|e| format!("cannot run musl: {e}"))?;
    let text = output.stderr.to_str_lossy().into_owned();
    let number = text.lines().find_map(|l| l.strip_prefix("Version ")).ok_or("musl tells no release")?;
    let mut parts = [0; 3];
    for (place, part) in parts.iter_mut().zip(number.trim().split('.')) {
        *place = part.parse().map_err(|_| format!("odd musl release {number}"))?;
    }
    let loader = Loader { family: Family::Musl, version: Version(parts) };
    Ok(Real { loader, files: vec![(interpreter.into(), file)], ldconfig: None, entry })
}

/// A scratch directory that is removed when dropped.
pub struct Scratch(pub PathBuf);

impl Scratch {
    /// A new empty directory.
    pub fn new(name: &str) -> io::Result<Scratch> {
        let name: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        let path = std::env::temp_dir().join(format!("ldaudit-oracle-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        Ok(Scratch(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Directories without permission would stop an ordinary user from removing what is in them.
        fn open_up(dir: &Path) {
            let _ = fs::set_permissions(dir, fs::Permissions::from_mode(0o755));
            for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
                if entry.file_type().is_ok_and(|t| t.is_dir()) {
                    open_up(&entry.path());
                }
            }
        }
        open_up(&self.0);
        let _ = fs::remove_dir_all(&self.0);
    }
}

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

/// Bytes as the system takes them.
fn os(bytes: &BStr) -> OsString {
    OsString::from_vec(bytes.to_vec())
}

fn on_disk(root: &Path, path: &BStr) -> PathBuf {
    root.join(os(path.trim_start_with(|c| c == '/').as_bstr()))
}

fn parents(root: &Path, path: &Path) -> io::Result<()> {
    let mut missing = Vec::new();
    let mut here = path.parent();
    while let Some(dir) = here.filter(|d| *d != root && !d.exists()) {
        missing.push(dir);
        here = dir.parent();
    }
    for dir in missing.into_iter().rev() {
        fs::create_dir(dir)?;
        give_away(dir)?;
    }
    Ok(())
}

/// Makes the unprivileged user the owner, so that permission bits of the owner count.
fn give_away(path: &Path) -> io::Result<()> {
    // SAFETY: no memory is involved.
    if unsafe { libc::geteuid() } == 0 {
        std::os::unix::fs::lchown(path, Some(NOBODY), Some(NOBODY))?;
    }
    Ok(())
}

fn lay_out(root: &Path, fixture: &Fixture, real: &Real, runs: &[Run], files: &[Placed]) -> io::Result<()> {
    let named = |path: &str| files.iter().any(|f| f.path == path);
    for (path, source) in &real.files {
        let is_loader = path == real.loader.family.interpreter();
        if named(path) || !(is_loader || fixture.needs_libc()) {
            continue;
        }
        let target = on_disk(root, path.as_str().into());
        parents(root, &target)?;
        // A link costs nothing, but works on one file system only.
        if fs::hard_link(source, &target).is_err() {
            fs::copy(source, &target)?;
        }
    }
    fs::create_dir_all(root.join("proc"))?;
    let set_ids: Vec<&BStr> = runs
        .iter()
        .filter(|r| r.host.secure)
        .filter_map(|r| match r.steps.first().map(|s| &s.step) {
            Some(Step::Exec(Exec { path, .. })) => Some(path.as_bstr()),
            _ => None,
        })
        .collect();
    let set_id = |path: &BStr| set_ids.contains(&path);
    for Placed { path, what, .. } in files {
        let target = on_disk(root, path.as_bstr());
        parents(root, &target)?;
        match what {
            Thing::File { bytes, mode } => {
                let _ = fs::remove_file(&target);
                fs::write(&target, bytes)?;
                let mut mode = *mode;
                if set_id(path.as_bstr()) {
                    // It stays root's: started by another user it is a privileged program.
                    mode |= 0o4000;
                } else {
                    give_away(&target)?;
                }
                fs::set_permissions(&target, fs::Permissions::from_mode(mode))?;
            }
            Thing::Link(text) => {
                let _ = fs::remove_file(&target);
                std::os::unix::fs::symlink(os(text.as_bstr()), &target)?;
            }
            Thing::HardLink(existing) => fs::hard_link(on_disk(root, existing.as_bstr()), &target)?,
            Thing::Directory => {
                fs::create_dir_all(&target)?;
                give_away(&target)?;
            }
            Thing::Mode(_) => {}
        }
    }
    for statement in &fixture.statements {
        if let (What::Ldconfig(arguments), Some(ldconfig)) = (&statement.what, &real.ldconfig) {
            fs::create_dir_all(root.join("etc"))?;
            fs::create_dir_all(root.join("var/cache/ldconfig"))?;
            let status = Command::new(ldconfig)
                .arg("-r")
                .arg(root)
                .args(arguments.iter().map(|a| os(a.as_bstr())))
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status()?;
            if !status.success() {
                return Err(io::Error::other("ldconfig failed"));
            }
        }
    }
    for Placed { path, what, .. } in files {
        if let Thing::Mode(mode) = what {
            let target = on_disk(root, path.as_bstr());
            // Changing the owner clears set-user-ID, so this comes last.
            fs::set_permissions(&target, fs::Permissions::from_mode(*mode))?;
        }
    }
    Ok(())
}

struct Process<'a> {
    fixture: &'a Fixture,
    real: &'a Real,
    root: &'a Path,
    run: &'a Run,
}

/// Switches processor features off, so that glibc sees the level the fixture wants.
fn tunables(level: u8) -> String {
    let mut off: Vec<&str> = Vec::new();
    if level < 4 {
        off.extend(["AVX512F", "AVX512BW", "AVX512CD", "AVX512DQ", "AVX512VL"]);
    }
    if level < 3 {
        off.extend(["AVX", "AVX2", "BMI1", "BMI2", "F16C", "FMA", "LZCNT", "MOVBE"]);
    }
    if level < 2 {
        off.extend(["CMPXCHG16B", "LAHF64_SAHF64", "POPCNT", "SSE3", "SSSE3", "SSE4_1", "SSE4_2"]);
    }
    off.iter().map(|f| format!("-{f}")).collect::<Vec<_>>().join(",")
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
        let child = spawn(&mut command).map_err(|e| Stop::Fail(format!("cannot start {}: {e}", exec.path)))?;
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

/// A path inside the box with every link followed inside the box.
fn resolve(root: &Path, path: &BStr) -> Option<PathBuf> {
    let live = ldaudit::system::Live::at_root(root.as_os_str().as_bytes().as_bstr()).ok()?;
    let real = ldaudit::system::Files::real_path(&live, path).ok()?;
    Some(on_disk(root, real.as_bstr()))
}

fn signal_name(signal: i32) -> BString {
    let name = match signal {
        libc::SIGSEGV => "SIGSEGV",
        libc::SIGBUS => "SIGBUS",
        libc::SIGABRT => "SIGABRT",
        libc::SIGILL => "SIGILL",
        libc::SIGFPE => "SIGFPE",
        libc::SIGTRAP => "SIGTRAP",
        libc::SIGKILL => "SIGKILL",
        other => return format!("SIG{other}").into(),
    };
    name.into()
}

/// Starts a program that was just written. A child that another thread forks at that moment holds the file open for
/// writing until its own exec, and the kernel refuses to run it meanwhile.
fn spawn(command: &mut Command) -> io::Result<std::process::Child> {
    for _ in 0..200 {
        match command.spawn() {
            Err(e) if e.raw_os_error() == Some(libc::ETXTBSY) => {
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
            other => return other,
        }
    }
    command.spawn()
}

/// Prepares the child: own mounts, /proc, root, directory, user, a time limit, no core file.
fn enter(command: &mut Command, root: &Path, cwd: &BStr, proc_mounted: bool, entry: Entry) {
    let c = |bytes: &[u8]| CString::new(bytes).expect("paths have no NUL");
    let root_path = c(root.as_os_str().as_bytes());
    let proc_path = c(root.join("proc").as_os_str().as_bytes());
    let cwd = c(cwd);
    // SAFETY: no memory is involved.
    let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
    let maps = [
        (c(b"/proc/self/setgroups"), b"deny".to_vec()),
        (c(b"/proc/self/uid_map"), format!("{NOBODY} {uid} 1").into_bytes()),
        (c(b"/proc/self/gid_map"), format!("{NOBODY} {gid} 1").into_bytes()),
    ];
    // SAFETY: between fork and exec only system calls are made, on memory that was prepared before.
    unsafe {
        command.pre_exec(move || {
            let check = |r: libc::c_int| if r == 0 { Ok(()) } else { Err(io::Error::last_os_error()) };
            let null = std::ptr::null::<libc::c_char>();
            match entry {
                Entry::Root => check(libc::unshare(libc::CLONE_NEWNS))?,
                Entry::UserNamespace => {
                    check(libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS))?;
                    for (path, text) in &maps {
                        let fd = libc::open(path.as_ptr(), libc::O_WRONLY);
                        if fd < 0 || libc::write(fd, text.as_ptr().cast(), text.len()) != text.len() as isize {
                            return Err(io::Error::last_os_error());
                        }
                        libc::close(fd);
                    }
                }
            }
            check(libc::mount(null, c"/".as_ptr(), null, libc::MS_REC | libc::MS_PRIVATE, null.cast()))?;
            if proc_mounted {
                let flags = libc::MS_BIND | libc::MS_REC;
                check(libc::mount(c"/proc".as_ptr(), proc_path.as_ptr(), null, flags, null.cast()))?;
            }
            check(libc::chroot(root_path.as_ptr()))?;
            check(libc::chdir(cwd.as_ptr()))?;
            let no_core = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            check(libc::setrlimit(libc::RLIMIT_CORE, &raw const no_core))?;
            libc::alarm(20);
            if entry == Entry::Root {
                check(libc::setgroups(0, std::ptr::null()))?;
                check(libc::setgid(NOBODY))?;
                check(libc::setuid(NOBODY))?;
            }
            Ok(())
        });
    }
}

/// Lines of the loader's trace (without their prefix) and other lines.
fn split_trace(text: &[u8], pid: u32) -> (Vec<BString>, Vec<BString>) {
    let prefix = format!("{pid}:\t");
    let mut trace = Vec::new();
    let mut messages = Vec::new();
    for line in text.lines() {
        match line.trim_start_with(|c| c == ' ').strip_prefix(prefix.as_bytes()) {
            Some(rest) => trace.push(rest.into()),
            None if line.is_empty() => {}
            None => messages.push(line.into()),
        }
    }
    (trace, messages)
}

/// Reads LD_DEBUG=libs,files line by line (loader rules R11.2, R11.3, R3.13, R3.14).
#[derive(Default)]
struct Reader {
    /// Hits, and whether dlopen itself asked for them.
    hits: Vec<(Hit, bool)>,
    passed: Vec<(BString, Pass)>,
    tried: Vec<(BString, Vec<BString>)>,
    /// The request under way: name, who asks, and whether by dlopen.
    asked: Option<(BString, BString, bool)>,
    search: Option<Search>,
}

struct Search {
    name: BString,
    via: Option<Via>,
    tried: Vec<(BString, Option<Via>, Pass)>,
    /// True when its paths are already among those told.
    told: bool,
}

impl Search {
    fn tried_paths(&self) -> Vec<BString> {
        self.tried.iter().map(|t| t.0.clone()).collect()
    }
}

/// `NAME [N]` → NAME.
fn before_namespace(text: &[u8]) -> BString {
    let end = text.rfind(" [").unwrap_or(text.len());
    text.get(..end).unwrap_or(b"").into()
}

impl Reader {
    fn line(&mut self, line: &BStr) {
        let bytes = line.as_bytes();
        if let Some(rest) = bytes.strip_prefix(b"find library=") {
            self.end_search();
            let name = before_namespace(rest.split_once_str("; searching").map_or(rest, |(name, _)| name));
            self.search = Some(Search { name, via: None, tried: Vec::new(), told: false });
        } else if let Some(rest) = bytes.strip_prefix(b" search path=") {
            if let (Some(search), Some((_, rule))) = (&mut self.search, rest.rsplit_once_str("\t\t(")) {
                search.via = rule_of(rule.trim_end_with(|c| c == ')').as_bstr());
            }
        } else if bytes.starts_with(b" search cache=") {
            if let Some(search) = &mut self.search {
                search.via = Some(Via::Cache);
            }
        } else if let Some(path) = bytes.strip_prefix(b"  trying file=") {
            if let Some(search) = &mut self.search {
                search.tried.push((path.into(), search.via.clone(), Pass::Tried));
            }
        } else if bytes.starts_with(b"    (") {
            let why = match bytes.trim_ascii() {
                b"(no such file)" => Pass::NotOpened,
                b"(incompatible ELF class)" => Pass::WrongClass,
                b"(incompatible ELF machine)" => Pass::WrongMachine,
                _ => return,
            };
            if let Some(last) = self.search.as_mut().and_then(|s| s.tried.last_mut()) {
                last.2 = why;
            }
        } else if let Some(rest) = bytes.strip_prefix(b"file=") {
            if rest.ends_with(b"(relocation dependency)") {
                return;
            }
            for (words, by_dlopen) in [("needed by ", false), ("dynamically loaded by ", true)] {
                if let Some((name, by)) = rest.split_once_str(&format!(";  {words}")) {
                    self.end_request(true);
                    self.asked = Some((before_namespace(name), before_namespace(by), by_dlopen));
                    return;
                }
            }
            if let Some((name, _)) = rest.split_once_str(";  generating link map") {
                self.generating(before_namespace(name));
            }
        }
    }

    /// A new object for a name.
    fn generating(&mut self, name: BString) {
        let (needed_by, by_dlopen) = match &self.asked {
            Some((asked, by, by_dlopen)) if *asked == name => (Some(by.clone()), *by_dlopen),
            // The main program itself, when the loader is started as a program.
            _ => return,
        };
        let tried =
            self.search.as_mut().filter(|s| s.name == name).and_then(|s| Some((s.tried_paths(), s.tried.pop()?)));
        let searched = tried.map(|(paths, last)| {
            self.tried.push((name.clone(), paths));
            self.search = self.search.take().map(|s| Search { told: true, ..s });
            last
        });
        let (path, via) = match searched {
            Some((path, via, _)) => (path, via),
            None => (name.clone(), Some(Via::Literal)),
        };
        self.hits.push((Hit { name, path, via, needed_by }, by_dlopen));
        self.asked = None;
        self.end_search();
    }

    fn end_search(&mut self) {
        if let Some(search) = self.search.take() {
            if !search.told {
                self.tried.push((search.name.clone(), search.tried_paths()));
            }
            self.passed.extend(search.tried.into_iter().map(|(path, _, why)| (path, why)));
        }
    }

    /// The request under way ended without a new object: by a file that is loaded already when things went on.
    fn end_request(&mut self, went_on: bool) {
        if let Some((name, by, by_dlopen)) = self.asked.take() {
            let tried = self.search.as_ref().filter(|s| s.name == name).and_then(|s| s.tried.last());
            let missed = tried.is_some_and(|t| t.2 != Pass::Tried);
            let path = match tried {
                Some((path, _, _)) => Some(path.clone()),
                None => name.contains(&b'/').then(|| name.clone()),
            };
            if let (true, false, Some(path)) = (went_on, missed, path) {
                if let Some(search) = self.search.as_mut().filter(|s| s.name == name) {
                    self.tried.push((name.clone(), search.tried_paths()));
                    search.told = true;
                    search.tried.pop();
                }
                self.hits.push((Hit { name, path, via: Some(Via::Inode), needed_by: Some(by) }, by_dlopen));
            }
        }
        self.end_search();
    }

    fn finish(&mut self, ok: bool) {
        self.end_request(ok);
    }
}

fn rule_of(text: &BStr) -> Option<Via> {
    if let Some(of) = text.strip_prefix(b"RPATH from file ") {
        return Some(Via::Rpath { entry: None, of: Some(of.into()) });
    }
    if let Some(of) = text.strip_prefix(b"RUNPATH from file ") {
        return Some(Via::Runpath { entry: None, of: Some(of.into()) });
    }
    match text.as_bytes() {
        b"LD_LIBRARY_PATH" => Some(Via::LibraryPath(None)),
        b"--library-path" => Some(Via::LibraryPathOption(None)),
        b"system search path" => Some(Via::Default),
        _ => None,
    }
}

/// Expectation lines that say what was seen, per step, for messages and for writing a new fixture.
pub fn describe(fixture: &Fixture, runs: &[Run], observations: &[Observation]) -> Vec<Vec<String>> {
    use ldaudit::fixture::Expectation as E;
    let mut out = Vec::new();
    for (run, seen) in runs.iter().zip(observations) {
        let mut before: Vec<BString> = Vec::new();
        for (index, step) in run.steps.iter().enumerate() {
            let (mut lines, mut binds): (Vec<E>, Vec<E>) = (Vec::new(), Vec::new());
            let Some(outcome) = seen.steps.get(index) else {
                out.push(Vec::new());
                continue;
            };
            if outcome.ok && outcome.killed.is_none() {
                lines.push(E::Ok);
            }
            for text in &outcome.said {
                lines.push(if outcome.ok { E::Warning(text.clone()) } else { E::Error(text.clone()) });
            }
            if let Some(status) = outcome.exit {
                lines.push(E::Exit(status));
            }
            if let Some(signal) = &outcome.killed {
                lines.push(E::Killed(signal.clone()));
            }
            let mut hits: Vec<Hit> = outcome.found.clone().unwrap_or_default();
            if outcome.found.is_none() {
                let new = outcome.order.iter().flatten().filter(|p| !before.contains(p)).skip(usize::from(index == 0));
                hits.extend(new.map(|path| guess(fixture, run, path.as_bstr())));
            }
            for bound in outcome.bindings.iter().flatten() {
                // In a file without versions there is nothing to tell apart.
                let has_versions =
                    fixture.elf(bound.to.as_bstr()).is_none_or(|e| e.defs.iter().any(|d| d.version.is_some()));
                let definition = bound.definition.clone().filter(|d| has_versions || d.is_some());
                binds.push(E::Binds(Bound { definition, ..bound.clone() }));
            }
            if let (Step::Dlopen(dlopen), Some(handle)) = (&step.step, &outcome.handle)
                && !hits.iter().any(|hit| hit.name == dlopen.name)
            {
                let (name, path) = (dlopen.name.clone(), handle.clone());
                lines.push(E::Found { name, path, via: Some(Via::Name), needed_by: None });
            }
            for Hit { name, path, via, needed_by } in hits {
                lines.push(E::Found { name, path, via, needed_by });
            }
            lines.append(&mut binds);
            if let Some(order) = &outcome.order {
                if !matches!(step.step, Step::Call(_)) {
                    lines.push(E::Order(order.clone()));
                }
                before.clone_from(order);
            }
            out.push(lines.iter().map(E::to_string).collect());
        }
    }
    out
}

/// musl and a privileged process tell nothing but the path: a likely name and rule, to be checked by the person who writes the fixture.
fn guess(fixture: &Fixture, run: &Run, path: &BStr) -> Hit {
    let literal = fixture.statements.iter().any(|s| match &s.what {
        What::Elf { elf, .. } => elf.requests.iter().any(|r| r.name() == path),
        What::Step(Step::Dlopen(dlopen)) => dlopen.name == path,
        What::Env { name, value } => {
            name == "LD_PRELOAD" && value.split(|b| b" :".contains(b)).any(|p| p == path.as_bytes())
        }
        _ => false,
    });
    let name: BString = if literal { path.into() } else { ldaudit::system::file_name(path).into() };
    let directory = ldaudit::system::parent(path);
    let index_in = |list: &BStr, origin: &BStr| {
        let origin = ldaudit::system::parent(origin);
        let index = list.split(|b| b":\n".contains(b)).position(|element| {
            let element = element.replace("${ORIGIN}", origin).replace("$ORIGIN", origin);
            !element.is_empty() && element.trim_end_with(|c| c == '/') == directory.as_bytes()
        });
        index.and_then(|i| u32::try_from(i).ok())
    };
    let variable = run.host.env.get("LD_LIBRARY_PATH").and_then(|list| index_in(list, "".into()));
    let mut via = None;
    if literal {
        via = Some(Via::Literal);
    } else if let Some(entry) = variable {
        via = Some(Via::LibraryPath(Some(entry)));
    } else {
        for statement in &fixture.statements {
            if let What::Elf { path: owner, elf, .. } = &statement.what {
                let of = Some(owner.clone());
                let list = elf.runpath.as_ref().or(elf.rpath.as_ref());
                let entry = list.and_then(|l| index_in(l.as_bstr(), owner.as_bstr()));
                via = via.or(match (entry, &elf.runpath) {
                    (None, _) => None,
                    (entry, Some(_)) => Some(Via::Runpath { entry, of }),
                    (entry, None) => Some(Via::Rpath { entry, of }),
                });
            }
        }
    }
    Hit { name, path: path.into(), via: via.or(Some(Via::Default)), needed_by: None }
}
