//! The pipeline: system, loader, process, findings, report.

use std::ffi::OsStr;
use std::io::Write;
use std::mem::ManuallyDrop;
use std::sync::{Arc, OnceLock};

use bstr::{BStr, BString, ByteSlice};

use super::Error;
use super::args::{Args, Format};
use super::loaders::{Loader, Loaders};
use super::usage;
use crate::discover::Note;
use crate::discover::python::torch::Lack;
use crate::discover::python::{self, Module, Python};
use crate::elf::{Facts, Layout, Reader, file_type};
use crate::findings::loading::{self, Knowledge};
use crate::findings::prove::{Outcome, prove};
use crate::findings::{
    CACHE_UNUSABLE, CODE_NOT_RUN, DOES_NOT_ANSWER, ENVIRONMENT_NOT_THERE, EXTENSION_DOUBTFUL, Evidence, Finding,
    METADATA_DAMAGED, MODULE_ABSENT, NOT_THE_FRAMEWORK, PATH_FILE_DAMAGED, RECIPE_GUESS, STANDARD_HIDDEN, Severity,
    fold_repeated, interposed, missing_cache, words,
};
use crate::ld::dialect::machine::is_known;
use crate::ld::{Dialect, Family, LoadedCache, Lookups, OpenFlags, OpenRequest, Process, Start, StepKind, Store};
use crate::recipe::{self, Absent, Doubtful, Ending, Exception, FRAMEWORKS, Session};
use crate::render::{self, Owner, Report, Target, Verdict};
use crate::system::{File, Host, Kind, Live, System, User, file_name, parent};

/// Bytes of a command line argument.
pub fn bytes(text: &OsStr) -> BString {
    use std::os::unix::ffi::OsStrExt;
    text.as_bytes().into()
}

/// The audited system as the arguments ask for.
pub fn system(args: &Args) -> Result<System, Error> {
    let mut host = Host::live();
    let files: Arc<dyn crate::system::Files> = match (&args.root, &args.fixture) {
        (_, Some(fixture)) => {
            let (_, described) = super::boxes::read(fixture, args)?;
            host = described.host;
            described.files
        }
        (None, None) => Arc::new(Live::new()),
        (Some(root), None) => {
            let path = bytes(root.as_os_str());
            host.cwd = "/".into();
            // What this very process may not gain says nothing about those that will run there.
            host.user = host.user.map(|user| User { gains_ids: true, ..user });
            Arc::new(
                Live::at_root(path.as_bstr())
                    .map_err(|e| Error::new(format!("cannot open root {}: {e}", quoted(&path))))?,
            )
        }
    };
    usage::change_environment(args, &mut host.env)?;
    host.secure |= args.secure;
    if let Some(level) = &args.cpu {
        host.cpu = parse_cpu(level)?;
    }
    Ok(System::new(host, files))
}

fn parse_cpu(level: &str) -> Result<crate::system::Cpu, Error> {
    use crate::system::Cpu;
    match level {
        "x86-64" | "x86-64-v1" => Ok(Cpu::x86_64(1)),
        "x86-64-v2" => Ok(Cpu::x86_64(2)),
        "x86-64-v3" => Ok(Cpu::x86_64(3)),
        "x86-64-v4" => Ok(Cpu::x86_64(4)),
        _ => Err(Error::with_hint(
            format!("`--cpu {}` is not a level", render::escape::text(level.as_bytes())),
            "write `x86-64-v2`, `x86-64-v3` or `x86-64-v4`",
        )),
    }
}

/// A name from the box between backticks, safe for a terminal.
pub fn quoted(name: &[u8]) -> String {
    format!("`{}`", render::escape::text(name))
}

/// The target itself: opened, and read in its own layout.
fn open_target(system: &System, path: &BStr) -> Result<(File, Vec<u8>, Facts), Error> {
    let file = system.open(path).map_err(|e| Error::new(format!("cannot open {}: {e}", quoted(path))))?;
    match file.meta.kind {
        Kind::File => {}
        Kind::Directory => return Err(Error::new(format!("cannot audit {}: it is a directory", quoted(path)))),
        Kind::Link | Kind::Other => {
            return Err(Error::new(format!("cannot audit {}: not a regular file", quoted(path))));
        }
    }
    let mut reader = Reader::new(&file);
    let head = reader.range(0, 64).map_err(|e| Error::new(format!("cannot read {}: {e}", quoted(path))))?.to_vec();
    let layout = Layout::of_ident(&head).ok_or_else(|| {
        let what = crate::ld::verify::describe(&head);
        let what = if what == "not an ELF file" { what.to_owned() } else { format!("not an ELF file but {what}") };
        Error::new(format!("cannot audit {}: {what}", quoted(path)))
    })?;
    let facts = Facts::read(&mut reader, layout)
        .ok_or_else(|| Error::new(format!("cannot audit {}: the ELF header is cut short", quoted(path))))?;
    drop(reader);
    Ok((file, head, facts))
}

/// Facts of the target itself, read in its own layout.
pub fn target_facts(system: &System, path: &BStr) -> Result<Facts, Error> {
    open_target(system, path).map(|(_, _, facts)| facts)
}

/// The rules of the loader at a path, as the arguments change them for a file.
pub fn dialect_for(args: &Args, system: &System, facts: &Facts, path: &BStr) -> Result<Dialect, Error> {
    let mut dialect = Dialect::read(system, path, facts.layout, facts.header.machine);
    if let Some(spec) = &args.loader {
        let (family, version) = parse_loader(spec)?;
        if family != dialect.family {
            let path = Dialect::loader_of_family(facts, family);
            dialect = Dialect::read(system, path.as_bstr(), facts.layout, facts.header.machine);
        }
        dialect = dialect.with_version(version);
    }
    Ok(dialect)
}

fn parse_loader(spec: &str) -> Result<(Family, (u16, u16, u16)), Error> {
    let bad = || {
        Error::with_hint(
            format!("`--loader {}` is not a loader", render::escape::text(spec.as_bytes())),
            "write `glibc:2.31` or `musl:1.2`",
        )
    };
    let (family, version) = spec.split_once(':').ok_or_else(bad)?;
    let family = match family {
        "glibc" => Family::Glibc,
        "musl" => Family::Musl,
        _ => return Err(bad()),
    };
    let numbers: Vec<u16> = version.split('.').map(|p| p.parse().map_err(|_| bad())).collect::<Result<_, _>>()?;
    let version = match numbers[..] {
        [major, minor] => (major, minor, 0),
        [major, minor, patch] => (major, minor, patch),
        _ => return Err(bad()),
    };
    if !family.describes(version) {
        return Err(Error::with_hint(
            format!("`--loader {}`: the rules of that release are not known", render::escape::text(spec.as_bytes())),
            format!("known are {} and {}", Family::Glibc.described_text(), Family::Musl.described_text()),
        ));
    }
    Ok((family, version))
}

/// What is to be simulated.
pub enum Subject {
    /// A program, or a library that the loader runs as ldd does.
    File {
        /// The file.
        path: BString,
        /// How it is started.
        start: Start,
    },
    /// A library that a program opens.
    Hosted {
        /// The program.
        program: BString,
        /// The library, as given to `dlopen`.
        library: BString,
    },
    /// A framework or module of a Python environment.
    Python {
        /// Modules in the order of their import; the last one is the target.
        modules: Vec<String>,
    },
}

/// Everything that a simulation needs; it can be run again with another environment.
pub struct Plan {
    /// What is simulated.
    pub subject: Subject,
    /// The target, for the report.
    pub target: Target,
    /// The audited host as it is.
    pub host: Arc<Host>,
    /// Files, remembered.
    pub store: Arc<Store>,
    /// The loader.
    pub dialect: Arc<Dialect>,
    /// The loader's cache.
    pub cache: Option<Arc<LoadedCache>>,
    /// The Python environment.
    pub python: Option<Arc<Python>>,
    /// The environment among whose packages a file lies; looked for when it is first asked for.
    pub around: OnceLock<Option<Arc<Python>>>,
    /// Further opens after the target's own steps.
    pub opens: Vec<(BString, OpenFlags)>,
    /// Whether symbols are looked up.
    pub lookups: Lookups,
    /// The options that it was made of, as words of a command line.
    pub options: Vec<BString>,
}

/// A simulated process and how its recipe ended.
pub struct Simulated {
    /// The process.
    pub process: Process,
    /// The exception that ended it, for a Python target.
    pub exception: Option<Exception>,
    /// How each import ended, in order.
    pub endings: Vec<Ending>,
}

impl Plan {
    /// Of a subject on its own: no cache, no Python, nothing that is opened besides.
    pub fn new(subject: Subject, target: Target, host: Arc<Host>, store: Arc<Store>, dialect: Arc<Dialect>) -> Plan {
        Plan {
            subject,
            target,
            host,
            store,
            dialect,
            cache: None,
            python: None,
            around: OnceLock::new(),
            opens: Vec::new(),
            lookups: Lookups::default(),
            options: Vec::new(),
        }
    }

    /// Runs the steps under an environment.
    pub fn simulate(&self, host: &Arc<Host>) -> Simulated {
        self.simulate_with(host, |process| process)
    }

    /// The same, for a process that is changed before it starts.
    fn simulate_with(&self, host: &Arc<Host>, change: impl FnOnce(Process) -> Process) -> Simulated {
        let process = Process::new(self.store.clone(), self.dialect.clone(), host.clone(), self.cache.clone());
        self.run(change(process.with_lookups(self.lookups)))
    }

    /// The same with the cache that ldconfig would write, where there is none.
    fn simulate_with_rebuilt_cache(&self) -> Option<Simulated> {
        let cache = self.cache.as_ref()?.rebuilt(self.store.system(), &self.dialect)?;
        let process = Process::new(self.store.clone(), self.dialect.clone(), self.host.clone(), Some(cache));
        Some(self.run(process.with_lookups(self.lookups)))
    }

    fn run(&self, mut process: Process) -> Simulated {
        let mut exception = None;
        let mut endings: Vec<Ending> = Vec::new();
        let mut caller = None;
        match &self.subject {
            Subject::File { path, start } => {
                // A program ends when a symbol is missing; what opens a library may define it.
                let is_library = || {
                    let object = self.store.open(path.as_bstr());
                    object.is_ok_and(|o| o.facts().is_some_and(|f| f.interpreter.is_none()))
                };
                if *start == Start::Loader && is_library() {
                    process = process.as_a_list();
                }
                process.exec(path.as_bstr(), path.as_bstr(), *start);
            }
            Subject::Hosted { program, library } => {
                let step = process.exec(program.as_bstr(), program.as_bstr(), Start::Kernel);
                if process.steps[step.index()].error.is_none() {
                    process.dlopen(&OpenRequest::new(library.clone()));
                }
            }
            Subject::Python { modules } => {
                if let Some(python) = &self.python {
                    let (mut session, start) = Session::start(&mut process, python);
                    if session.succeeded(start) {
                        for module in modules {
                            let ending = recipe::import(&mut session, module);
                            exception.clone_from(&ending.exception);
                            endings.push(ending);
                            if exception.is_some() {
                                break;
                            }
                        }
                        caller = Some(session.ctypes_image());
                    }
                }
            }
        }
        if process.steps.iter().all(|s| s.kind != StepKind::Exec || s.error.is_none()) {
            for (name, flags) in &self.opens {
                process.dlopen(&OpenRequest {
                    flags: *flags,
                    caller,
                    note: "asked for by --dlopen".into(),
                    ..OpenRequest::new(name.clone())
                });
            }
        }
        Simulated { process, exception, endings }
    }

    /// Lets another thread read which files the target's distribution owns: every report asks for it, and large ones have
    /// ten thousand. Those of torch are compared with what is there.
    fn look_for_owners_ahead(&self) {
        let Some((python, path)) = self.python.clone().zip(self.target.path.clone()) else { return };
        if rayon::current_num_threads() > 1 {
            let is_torch = self.target.name == "torch";
            rayon::spawn(move || {
                _ = python.owner_of(path.as_bstr());
                if is_torch {
                    _ = python.gone_sources_of_torch();
                }
            });
        }
    }

    /// The distribution that owns a file.
    pub fn owner_of(&self, path: &BStr) -> Option<Owner> {
        let owner = self.python.as_ref()?.owner_of(path)?;
        Some(Owner { package: render::escape::text(owner.name()), version: render::escape::text(owner.version()) })
    }
}

/// Requirements of one distribution that are looked at.
const MAX_REQUIREMENTS: usize = 500;

/// Directories of an environment in which libraries lie that no search need lead to.
const LIBRARY_DIRECTORIES: &[&str] = &["nvidia/*/lib", "*/lib", "*.libs", "*"];

impl Plan {
    /// The environment whose packages are looked at: the target's own, or for a file the one among whose packages it lies.
    /// Of that one only files are read.
    pub fn environment(&self) -> Option<&Arc<Python>> {
        self.python.as_ref().or_else(|| self.around.get_or_init(|| self.environment_around()).as_ref())
    }

    fn environment_around(&self) -> Option<Arc<Python>> {
        let system = self.store.system();
        let path = system.absolute(self.target.path.as_ref()?.as_bstr());
        let packages = ["/site-packages/", "/dist-packages/"].into_iter().filter_map(|name| path.rfind(name)).max()?;
        let version_directory = path[..packages].as_bstr();
        if !file_name(version_directory).starts_with(b"python") {
            return None;
        }
        let prefix = parent(parent(version_directory));
        let request = python::Request { named: Some(prefix), ask: None, limit: python::DEFAULT_LIMIT };
        python::discover(system, &request).ok().map(Arc::new)
    }

    /// Where the environment's packages hold a file of this name.
    fn copies_of(&self, name: &BStr) -> Vec<BString> {
        let Some(python) = self.environment() else { return Vec::new() };
        if name.find_byteset(b"*?[/").is_some() {
            return Vec::new();
        }
        let entries = python.path().iter().map(|e| e.directory.as_bstr());
        let directories = entries.flat_map(|e| LIBRARY_DIRECTORIES.iter().map(move |d| crate::system::join(e, d)));
        // conda puts its libraries into the prefix itself.
        let prefix = crate::system::join(python.interpreter.prefix.as_bstr(), "lib");
        let directories = directories.chain([prefix]);
        directories.flat_map(|d| python.glob(crate::system::join(d.as_bstr(), name).as_bstr())).collect()
    }

    /// The library files of the environment's packages.
    fn package_libraries(&self) -> Vec<BString> {
        let Some(python) = self.environment() else { return Vec::new() };
        super::places::package_files(self.store.system(), python).0
    }

    /// What the distribution of a file requires.
    fn requirements_of(&self, path: &BStr) -> Vec<String> {
        let Some(python) = self.environment() else { return Vec::new() };
        let requires = match python.owner_of(path) {
            Some(python::Owner::Distribution(distribution)) => python.metadata(distribution).requires.clone(),
            Some(python::Owner::Conda(_)) => Vec::new(),
            None => python.owner_beside(path).map(|b| b.requires).unwrap_or_default(),
        };
        requires.iter().take(MAX_REQUIREMENTS).map(|line| render::escape::text(line)).collect()
    }
}

/// Finds the Python that is audited.
pub fn find_python(args: &Args, system: &System) -> Result<Python, Error> {
    let named = args.python.as_ref().map(|p| bytes(p));
    let may_ask = !args.no_exec && args.root.is_none() && args.fixture.is_none();
    let request = python::Request {
        named: named.as_ref().map(|n| n.as_bstr()),
        ask: may_ask.then_some(&super::ask::Live as &dyn python::Ask),
        limit: python::DEFAULT_LIMIT,
    };
    python::discover(system, &request).map_err(|e| match e.hint() {
        Some(hint) => Error::with_hint(e.to_string(), hint),
        None => Error::new(e.to_string()),
    })
}

fn open_flags(args: &Args) -> Result<Vec<(BString, OpenFlags)>, Error> {
    let mut out = Vec::new();
    for text in &args.dlopen {
        let text = bytes(text);
        let mut rest: &[u8] = &text;
        let mut flags = OpenFlags::default();
        loop {
            if let Some(after) = rest.strip_prefix(b"G:") {
                flags.global = true;
                rest = after;
            } else if let Some(after) = rest.strip_prefix(b"L:") {
                flags.lazy = true;
                rest = after;
            } else {
                break;
            }
        }
        if rest.is_empty() {
            return Err(Error::new(format!("`--dlopen {}` names no library", render::escape::text(&text))));
        }
        out.push((rest.into(), flags));
    }
    Ok(out)
}

/// A plan of a subject for a loader.
fn plan(loaders: &Loaders<'_>, loader: &Loader, subject: Subject, target: Target) -> Plan {
    Plan {
        cache: loader.cache.clone(),
        // The form of ldd shows no findings, and needs to know of no packages.
        around: if loaders.args.format == Format::Ldd { OnceLock::from(None) } else { OnceLock::new() },
        lookups: if loaders.args.bindings { Lookups::Record } else { Lookups::Check },
        options: loaders.args.of_the_box(),
        ..Plan::new(subject, target, loaders.host.clone(), loader.store.clone(), loader.dialect.clone())
    }
}

/// A header as it would be in the other byte order, where only that makes sense of it: the byte that tells the order is
/// damaged, and the loader that one would run the file by is that of the machine it was made for.
fn other_byte_order(facts: &Facts) -> Option<Facts> {
    let machine = facts.header.machine.swap_bytes();
    if is_known(facts.header.machine) || !is_known(machine) {
        return None;
    }
    let mut sound = facts.clone();
    sound.layout.big_endian = !sound.layout.big_endian;
    sound.header.machine = machine;
    sound.header.flags = sound.header.flags.swap_bytes();
    sound.interpreter = None;
    Some(sound)
}

/// The plan of a program or library.
pub fn plan_file(loaders: &Loaders<'_>, path: &BStr) -> Result<Plan, Error> {
    let args = loaders.args;
    let (file, head, facts) = open_target(loaders.system, path)?;
    let program = args.host.as_ref().map(|program| bytes(program));
    let sound = other_byte_order(&facts);
    let loader = match &program {
        Some(program) => {
            let facts = target_facts(loaders.system, program.as_bstr())?;
            if facts.interpreter.is_none() {
                let is_library = facts.has_dynamic && facts.flags_1 & crate::elf::flags_1::PIE == 0;
                let what = if is_library { "a library, not a program" } else { "statically linked, and has no loader" };
                return Err(Error::with_hint(
                    format!("cannot audit {} in {}: it is {what}", quoted(path), quoted(program)),
                    "name the program that opens the library, `--host /usr/bin/python3`",
                ));
            }
            loaders.of(&facts)?
        }
        None => loaders.of(sound.as_ref().unwrap_or(&facts))?,
    };
    // A file without PT_INTERP that asks for libraries is a library: the loader runs it, as ldd does. One that asks for
    // nothing and is marked as a program is static.
    let is_static = !facts.has_dynamic || (facts.requests.is_empty() && facts.flags_1 & crate::elf::flags_1::PIE != 0);
    // The kernel starts a program with the loader that it names; another one has to be run with the program as argument.
    let is_foreign = facts.interpreter.as_ref().is_some_and(|own| *own != loader.dialect.path);
    // No dynamic section, no program and nothing that could be started: what is left of a library. ldd has the loader say
    // what is wrong with it.
    let may_run = || loader.store.may_run(path).is_ok();
    let is_fixed = facts.header.file_type == file_type::EXEC;
    let may_be_started = || is_fixed || facts.header.file_type == file_type::DYN && may_run();
    let is_static = is_static && (facts.has_dynamic || may_be_started());
    // musl's ldd takes such a program, too.
    let is_static =
        is_static && !(args.format == Format::Ldd && loader.dialect.family == Family::Musl && facts.has_dynamic);
    // A library may name a loader too. Without the permission to be run it is one that nobody starts, and ldd has the
    // loader run whatever has not got it.
    let is_program = is_fixed || facts.flags_1 & crate::elf::flags_1::PIE != 0;
    let is_started = || is_static || is_program && args.format != Format::Ldd || may_run();
    let start = match facts.interpreter.is_some() || is_static {
        true if !is_foreign && is_started() => Start::Kernel,
        _ => Start::Loader,
    };
    let subject = match program {
        Some(program) => {
            // dlopen searches a bare name; the target is this very file.
            let library = if path.contains(&b'/') { path.to_owned() } else { [b"./", path.as_bytes()].concat().into() };
            Subject::Hosted { program, library }
        }
        // ldd puts `./` in front of a bare name: the loader would look it up in its cache.
        None if start == Start::Loader && !path.contains(&b'/') => {
            Subject::File { path: [b"./", path.as_bytes()].concat().into(), start }
        }
        None => Subject::File { path: path.to_owned(), start },
    };
    if let (Subject::File { path, .. }, None) = (&subject, &sound) {
        loader.store.adopt(path.as_bstr(), &file, head, facts);
    }
    Ok(Plan { opens: open_flags(args)?, ..plan(loaders, &loader, subject, Target::file(path)) })
}

/// The plan of starting the interpreter, and nothing else.
pub fn plan_interpreter(loaders: &Loaders<'_>, python: &Arc<Python>) -> Result<Plan, Error> {
    let loader = loaders.of(&target_facts(loaders.system, python.interpreter.real_executable.as_bstr())?)?;
    let target = Target { kind: "module", name: "python".into(), version: None, path: None };
    let subject = Subject::Python { modules: Vec::new() };
    Ok(Plan { python: Some(python.clone()), ..plan(loaders, &loader, subject, target) })
}

/// The plan of importing a module.
pub fn plan_python(loaders: &Loaders<'_>, python: &Arc<Python>, name: &str) -> Result<Plan, Error> {
    let where_looked =
        || format!("{} ({}, found by {})", quoted(&python.interpreter.prefix), python.environment(), python.source());
    let imports = loaders.args.import.iter().map(|m| bytes(m).to_string());
    let modules: Vec<String> = imports.chain([name.to_owned()]).collect();
    for (n, module) in modules.iter().enumerate() {
        if python.find_module(module).module == Module::Missing && !python.is_put_into_sys_modules(module) {
            // A name without a slash may have been meant as a file; one with a recipe was not.
            let is_target = n + 1 == modules.len() && !FRAMEWORKS.contains(&module.as_str());
            let file = if is_target { "no such file, and " } else { "" };
            let what = match module.rsplit_once('.').map(|(parent, _)| (parent, python.find_module(parent).module)) {
                Some((parent, Module::Source(_) | Module::Extension(_) | Module::BuiltIn)) => {
                    format!("{} is no package, so that nothing can be looked up below it,", quoted(parent.as_bytes()))
                }
                _ => "no such module".to_owned(),
            };
            let mut hint = "name another environment with `--python PATH` (an interpreter or the directory of an \
                            environment)"
                .to_owned();
            for note in python.code_not_run().into_iter().take(MAX_TOLD) {
                let path = words::shown(&note.path);
                hint.push_str(&format!("; {path}: {}, which is not run here and may change sys.path", note.detail));
            }
            return Err(Error::with_hint(
                format!("cannot audit {}: {file}{what} in {}", quoted(module.as_bytes()), where_looked()),
                hint,
            ));
        }
    }
    let loader = loaders.of(&target_facts(loaders.system, python.interpreter.real_executable.as_bstr())?)?;
    let path = match python.find_module(name).module {
        Module::Package { directory, .. } => Some(directory),
        Module::Extension(path) | Module::Source(path) => Some(path),
        Module::BuiltIn | Module::Namespace(_) | Module::Missing => None,
    };
    // A checkout or a stranger in front of an installed framework has not got its version.
    let is_its = |d: &&python::Distribution| {
        !FRAMEWORKS.contains(&name) || path.as_ref().is_some_and(|path| d.location == parent(path.as_bstr()))
    };
    let version = python.distribution(name).filter(is_its).map(|d| d.version.to_string());
    // What is imported by another name than it is installed by: onnxruntime of onnxruntime-gpu.
    let by_file = || match python.find_module(name).module {
        Module::Package { init: file, .. } | Module::Source(file) | Module::Extension(file) if !name.contains('.') => {
            match python.owner_of(file.as_bstr()) {
                Some(owner @ python::Owner::Distribution(_)) => Some(owner.version().to_string()),
                Some(python::Owner::Conda(_)) | None => None,
            }
        }
        _ => None,
    };
    let version = version.or_else(by_file).filter(|version| !version.is_empty());
    let torch = (name == "torch").then(|| python.torch()).flatten();
    let version = torch.as_ref().and_then(|t| t.version.as_ref()).map(|v| v.to_string()).or(version);
    let kind = if FRAMEWORKS.contains(&name) { "framework" } else { "module" };
    let target = Target { kind, name: name.into(), version, path };
    let plan = plan(loaders, &loader, Subject::Python { modules }, target);
    Ok(Plan { python: Some(python.clone()), opens: open_flags(loaders.args)?, ..plan })
}

/// Simulates a plan and makes the report of it.
pub fn audit(plan: &Plan) -> Report {
    plan.look_for_owners_ahead();
    let simulated = plan.simulate(&plan.host);
    let mut further = python_findings(plan, &simulated);
    let mut report = report(plan, simulated);
    further.extend(environment_findings(plan));
    judge(plan, &mut report, further);
    report
}

/// The report of a simulation, nothing judged yet.
fn report(plan: &Plan, simulated: Simulated) -> Report {
    let Simulated { process, exception, .. } = simulated;
    // Asked ahead on some machines; what is wrong with a list of files must not depend on that.
    let _ = plan.target.path.as_ref().map(|path| plan.owner_of(path.as_bstr()));
    let owners = match &plan.python {
        Some(_) => process.images.iter().map(|i| plan.owner_of(i.object.real_path())).collect(),
        None => vec![None; process.images.len()],
    };
    let python = plan.python.as_ref().map(|p| render::Python {
        executable: p.interpreter.executable.clone(),
        version: p.interpreter.version.to_string(),
        prefix: p.interpreter.prefix.clone(),
        source: p.source().to_string(),
        asked: matches!(p.interpreter.known_by, python::KnownBy::Asked { .. }),
        sys_path: p.path().iter().map(|e| e.text.clone()).collect(),
    });
    Report { options: plan.options.clone(), python, owners, exception, ..Report::new(plan.target.clone(), process) }
}

/// What is to be said of the imports themselves.
fn python_findings(plan: &Plan, simulated: &Simulated) -> Vec<Finding> {
    let mut out = Vec::new();
    for Ending { absent, doubtful, guess, lack, hidden, .. } in &simulated.endings {
        out.extend(lack.and_then(|lack| stranger(plan, lack)));
        for (module, file) in hidden {
            let summary =
                format!("{} hides `{module}` of Python's own library, which torch imports", words::shown(file));
            let because = "The directory of that file stands ahead of Python's own library on sys.path.";
            let finding = Finding::new(STANDARD_HIDDEN, module.as_str(), summary).because(because);
            out.push(finding.with(Evidence::Path(file.clone(), format!("imported as `{module}`"))));
        }
        for Absent { module, by, may_be_provided, .. } in absent {
            let summary = format!("no module named `{module}` is found, which `{by}` imports");
            let because = "Python raises ModuleNotFoundError there, unless something provides the module that only \
                           running the program would show.";
            let finding = Finding::new(MODULE_ABSENT, module.as_str(), summary).because(because);
            out.push(if *may_be_provided { finding.severity(Severity::Note) } else { finding });
        }
        for Doubtful { module, by, step } in doubtful {
            let error = simulated.process.steps.get(step.index()).and_then(|s| s.error.clone()).unwrap_or_default();
            let summary = format!("`{module}`, which `{by}` imports, does not load: {}", words::shown(&error));
            let because = "Python raises ImportError there, unless the package prepares the load in a way that is not \
                           followed: it may open libraries itself before.";
            let finding = Finding::new(EXTENSION_DOUBTFUL, module.as_str(), summary).because(because);
            out.push(finding.with(Evidence::Step(*step)));
        }
        out.extend(guess.iter().map(|why| Finding::new(RECIPE_GUESS, plan.target.name.clone(), why.clone())));
    }
    out
}

/// What is to be said of a torch that is no installed one.
fn stranger(plan: &Plan, lack: Lack) -> Option<Finding> {
    let python = plan.python.as_ref()?;
    let path = match python.find_module("torch").module {
        Module::Package { directory: path, .. } | Module::Source(path) | Module::Extension(path) => path,
        Module::Namespace(directories) => directories.into_iter().next()?,
        Module::BuiltIn | Module::Missing => return None,
    };
    let what = match lack {
        Lack::Source => "no `__init__.py` that is a file: Python makes an empty module of it",
        Lack::Libraries => "no directory `lib` and no extension `_C`",
        Lack::Reference => "its `__init__.py` does not speak of `_C`",
    };
    let summary = format!("the torch that is found is {}, which is no installed torch: {what}", words::shown(&path));
    let mut finding = Finding::new(NOT_THE_FRAMEWORK, path.clone(), summary);
    let place = parent(path.as_bstr());
    let damaged = python.distribution("torch").filter(|d| d.location == place);
    let damaged = damaged.map(|d| python.installed(python::Owner::Distribution(d)));
    finding.remedies.extend(damaged.map(|package| words::reinstall(&[package], true)));
    let installed = python.distribution("torch").map(|d| d.location.clone()).filter(|location| location != place);
    if let Some(entry) = python.path().iter().find(|e| e.directory == place) {
        let which = match entry.kind {
            python::EntryKind::WorkingDirectory => "the current directory".to_owned(),
            python::EntryKind::PythonPath => format!("{}, from PYTHONPATH,", words::shown(place)),
            _ => words::shown(place),
        };
        finding = finding.because(match installed {
            Some(other) => format!("{which} stands ahead of {}, where torch is installed.", words::shown(&other)),
            None => format!("{which} is where it is found on sys.path."),
        });
    }
    Some(finding.with(Evidence::Path(path, "found as torch".into())))
}

/// Notes of one kind that are told.
const MAX_TOLD: usize = 8;

/// What is to be said of the Python environment itself, as far as it was looked at.
fn environment_findings(plan: &Plan) -> Vec<Finding> {
    let Some(python) = &plan.python else { return Vec::new() };
    let mut out = Vec::new();
    let taken = format!("{}, which {} leads to", quoted(&python.interpreter.prefix), python.source());
    for looked in &python.choice.passed {
        if let python::Looked::Rejected { variable, error } = looked {
            let summary = format!("{variable} leads to no Python: {}; audited is {taken}", error.brief());
            let value = plan.host.env.get(variable).map(ToOwned::to_owned).unwrap_or_default();
            let finding = Finding::new(ENVIRONMENT_NOT_THERE, value, summary);
            out.push(finding.with(Evidence::Variable((*variable).to_owned(), None)));
        }
    }
    let path_files = python.path_file_damage();
    if let Some(error) = &python.ask_failure {
        let summary = format!("{error}; what its files show is taken");
        let finding = Finding::new(DOES_NOT_ANSWER, python.interpreter.executable.clone(), summary);
        // `site` decodes these files at every start.
        let stumbles = error.to_string().contains("UnicodeDecodeError") && path_files.iter().any(|n| n.act == "decode");
        out.push(if stumbles { finding.severity(Severity::Error) } else { finding });
    }
    for note in python.code_not_run().into_iter().take(MAX_TOLD) {
        let summary =
            format!("{}: {}; it is not run here, and may change sys.path", words::shown(&note.path), note.detail);
        let finding = Finding::new(CODE_NOT_RUN, note.path.clone(), summary);
        out.push(finding.with(Evidence::Path(note.path, note.detail)));
    }
    let metadata: Vec<Note> = python.notes().into_iter().filter(is_of_metadata).collect();
    for (rule, notes) in [(PATH_FILE_DAMAGED, path_files), (METADATA_DAMAGED, metadata)] {
        let count = notes.len();
        for (n, note) in notes.into_iter().take(MAX_TOLD).enumerate() {
            let more = if n + 1 == MAX_TOLD && count > MAX_TOLD { count - MAX_TOLD } else { 0 };
            let more = if more > 0 { format!(" (and {more} more)") } else { String::new() };
            let path = words::shown(&note.path);
            let summary = match note.act {
                "import" => format!("{path}: {}{more}", note.detail),
                act => format!("cannot {act} {path}: {}{more}", note.detail),
            };
            let finding = Finding::new(rule, note.path.clone(), summary);
            // Unless the locale takes every byte, no ordinary start gets past it.
            let finding = if note.act == "decode" { finding.severity(Severity::Warning) } else { finding };
            out.push(finding.with(Evidence::Path(note.path, note.detail)));
        }
    }
    out
}

/// True for what could not be read of the packages' own lists and headers.
fn is_of_metadata(note: &Note) -> bool {
    let of = |ending: &str| note.path.contains_str(ending);
    matches!(note.act, "read" | "parse") && (of(".dist-info") || of(".egg-info") || of("EGG-INFO"))
}

/// Finds what is wrong, tries what could mend it in other environments, and sets the verdict. `further` findings are
/// added as they are.
fn judge(plan: &Plan, report: &mut Report, further: Vec<Finding>) {
    let owner = |path: &BStr| super::places::owner(plan.environment()?, path);
    let listed = |path: &BStr| {
        let python = plan.environment()?;
        python.owner_of(path).map(|owner| python.installed(owner))
    };
    let copies = |name: &BStr| plan.copies_of(name);
    let libraries = || plan.package_libraries();
    let requires = |path: &BStr| plan.requirements_of(path);
    let lacking = |path: &BStr| match plan.environment().and_then(|python| Some((python, python.owner_of(path)?))) {
        Some((python, python::Owner::Distribution(distribution))) => {
            recipe::prerequisites::lacking_wheels(python, distribution)
        }
        _ => Vec::new(),
    };
    let torch = plan.python.as_ref().and_then(|p| p.torch());
    let check = |process: &Process, exception: Option<&Exception>| {
        let known = Knowledge {
            owner: &owner,
            listed: &listed,
            copies: &copies,
            libraries: &libraries,
            lacking: &lacking,
            requires: &requires,
            torch: torch.as_ref(),
            exception,
        };
        fold_repeated(loading::check(process, &known))
    };
    let process = &report.process;
    // A note: it is not asked of the trials.
    let looks_up = process.lookups() != Lookups::None && !process.gave_up();
    let interposed = || {
        let known = Knowledge { owner: &owner, ..Knowledge::none() };
        if looks_up { interposed::check(process, &known, &report.owners) } else { Vec::new() }
    };
    let (mut findings, notes) = rayon::join(|| check(process, report.exception.as_ref()), interposed);
    findings.extend(notes);
    let answered = process.decisions.iter().filter(|d| d.chosen.is_some()).count();
    prove(&mut findings, &plan.host.env, plan.dialect.family, answered, &mut |env| {
        let host = Arc::new(Host { env: env.clone(), ..(*plan.host).clone() });
        let again = plan.simulate(&host);
        let findings = check(&again.process, again.exception.as_ref());
        Outcome::of(&again.process, findings)
    });
    if findings.iter().any(|f| f.rule == CACHE_UNUSABLE)
        && let Some(again) = plan.simulate_with_rebuilt_cache()
    {
        let outcome = Outcome::of(&again.process, check(&again.process, again.exception.as_ref()));
        let errors = outcome.count(Severity::Error);
        missing_cache::tell_what_ldconfig_would_change(&mut findings, &report.process, &again.process, errors);
    }
    // Behind what is as bad or worse; the findings of a group stay together.
    for finding in further {
        let at = findings.iter().rposition(|f| f.severity >= finding.severity).map_or(0, |at| at + 1);
        findings.insert(at, finding);
    }
    report.verdict = Verdict::of(&findings);
    report.findings = findings;
}

/// The report for the form of ldd, which shows neither attempts nor findings: when the process loads without a flaw,
/// nothing more is asked. `None` when something is to be looked at.
fn listing(plan: &Plan) -> Option<Report> {
    // musl's ldd relocates what it lists.
    let lookups = if plan.dialect.family == Family::Musl { plan.lookups } else { Lookups::None };
    let simulated = plan.simulate_with(&plan.host, |process| process.without_attempts().with_lookups(lookups));
    (simulated.exception.is_none() && loading::is_clean(&simulated.process)).then(|| report(plan, simulated))
}

/// True when a target's name is that of a file. A directory is meant as one only when it is written as a path: `ldaudit
/// torch` in a source checkout asks for the framework.
fn is_file(system: &System, name: &BStr) -> bool {
    name.contains(&b'/') || system.stat(name).is_ok_and(|m| m.kind != Kind::Directory)
}

/// The plan of a framework or module that the user names. Python is looked for when the first one needs it.
fn plan_module(loaders: &Loaders<'_>, python: &mut Option<Arc<Python>>, name: &BStr) -> Result<Plan, Error> {
    let Ok(module) = name.to_str() else {
        return Err(Error::new(format!("cannot audit {}: neither a file nor a module name", quoted(name))));
    };
    let looks_like_module =
        module.split('.').all(|p| !p.is_empty() && p.chars().all(|c| c.is_alphanumeric() || c == '_'));
    if !looks_like_module {
        return Err(Error::new(format!("cannot open {}: {}", quoted(name), crate::system::Errno::ENOENT)));
    }
    let python = match python {
        Some(python) => python.clone(),
        None => {
            let found = find_python(loaders.args, loaders.system).map_err(|e| match e {
                // The name may have been meant as a file.
                Error::Message { text, hint } if !FRAMEWORKS.contains(&module) => {
                    Error::Message { text: format!("cannot audit {}: no such file, and {text}", quoted(name)), hint }
                }
                e => e,
            })?;
            python.insert(Arc::new(found)).clone()
        }
    };
    plan_python(loaders, &python, module)
}

/// The plan of a target as the user names it. Python is looked for when the first target needs it.
pub fn plan_target(loaders: &Loaders<'_>, python: &mut Option<Arc<Python>>, name: &BStr) -> Result<Plan, Error> {
    if is_file(loaders.system, name) { plan_file(loaders, name) } else { plan_module(loaders, python, name) }
}

/// The plans of the frameworks of a described box whose program is its Python: that alone is what nobody asks about.
/// Empty where there is no framework, and for every other program.
fn frameworks_of(loaders: &Loaders<'_>, python: &mut Option<Arc<Python>>, program: &BStr) -> Result<Vec<Plan>, Error> {
    // No Python at all is no error here.
    let Ok(found) = find_python(loaders.args, loaders.system) else { return Ok(Vec::new()) };
    let interpreter = &found.interpreter;
    if ![&interpreter.executable, &interpreter.real_executable].iter().any(|p| **p == program) {
        return Ok(Vec::new());
    }
    let found = python.insert(Arc::new(found)).clone();
    frameworks(loaders, &found)
}

/// The plans of the frameworks that are installed.
fn frameworks(loaders: &Loaders<'_>, python: &Arc<Python>) -> Result<Vec<Plan>, Error> {
    let installed = FRAMEWORKS.iter().filter(|name| python.find_module(name).module != Module::Missing);
    installed.map(|name| plan_python(loaders, python, name)).collect()
}

/// What the arguments name.
pub struct Named {
    /// The targets that can be audited, or the program of a fixture (the frameworks, where that is Python). Empty when
    /// nothing is named.
    pub plans: Vec<Plan>,
    /// Why the other targets cannot.
    pub refused: Vec<Error>,
}

impl Named {
    /// The plans, when no target is refused.
    pub fn all(self) -> Result<Vec<Plan>, Error> {
        self.refused.into_iter().next().map_or(Ok(self.plans), Err)
    }
}

/// The plans of what the arguments name. `python` is set when one was looked for.
pub fn named_plans(loaders: &Loaders<'_>, python: &mut Option<Arc<Python>>) -> Result<Named, Error> {
    let args = loaders.args;
    let names: Vec<BString> = args.targets.iter().map(|t| bytes(t)).collect();
    let files = loaders.threads.map(&names, |name| {
        let name = name.as_bstr();
        is_file(loaders.system, name).then(|| plan_file(loaders, name))
    });
    let mut plans = Vec::with_capacity(names.len());
    let mut refused = Vec::new();
    for (name, file) in names.iter().zip(files) {
        match file.unwrap_or_else(|| plan_module(loaders, python, name.as_bstr())) {
            Ok(plan) => plans.push(plan),
            Err(error) => refused.push(error),
        }
    }
    if args.targets.is_empty()
        && let Some(fixture) = &args.fixture
        && let (Some(path), _) = super::boxes::read(fixture, args)?
    {
        plans = frameworks_of(loaders, python, path.as_bstr())?;
        if plans.is_empty() {
            plans.push(plan_file(loaders, path.as_bstr())?);
        }
    }
    usage::check_use(args, &plans)?;
    Ok(Named { plans, refused })
}

/// The exit status of an audit that could not be done, or not of every target.
pub const UNDONE: u8 = 2;

/// Reports that are made before the first of them is written: enough for every thread, few enough for the memory.
const AT_ONCE: usize = 256;

/// Does what the arguments ask for; returns the exit status.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<u8, Error> {
    usage::check_form(args)?;
    if let Some(name) = &args.why {
        return super::why::run(args, bytes(name).as_bstr(), out);
    }
    let system = system(args)?;
    // Never dropped: the process ends right after, and giving back thousands of small blocks one by one takes time.
    let loaders = ManuallyDrop::new(Loaders::new(args, &system));
    let mut python: Option<Arc<Python>> = None;
    let Named { mut plans, refused } = named_plans(&loaders, &mut python)?;
    if plans.is_empty() && refused.is_empty() {
        let python = Arc::new(find_python(args, &system)?);
        plans = frameworks(&loaders, &python)?;
        usage::check_use(args, &plans)?;
        if plans.is_empty() {
            return Err(Error::with_hint(
                format!(
                    "no known framework ({}) is installed in {}",
                    FRAMEWORKS.join(", "),
                    quoted(&python.interpreter.prefix)
                ),
                "name a target, or another environment with `--python PATH`",
            ));
        }
    }
    // One target that cannot be audited is no reason to be silent about the others. The status tells.
    refused.iter().for_each(super::complain);
    let is_whole = refused.is_empty();
    if plans.is_empty() {
        return Ok(UNDONE);
    }
    if args.format != Format::Ldd {
        loaders.threads.start();
    }
    let output = Output {
        format: args.format,
        many: args.targets.len() > 1,
        style: super::screen::style(args),
        levels: super::levels::Levels::new(args)?,
    };
    let mut denied = false;
    if let [plan] = plans.as_slice() {
        denied = output.target(0, plan, out)?;
    } else {
        let mut at = 0;
        for some in plans.chunks(AT_ONCE) {
            let numbered: Vec<(usize, &Plan)> = some.iter().enumerate().map(|(n, plan)| (at + n, plan)).collect();
            at += some.len();
            let made = loaders.threads.map(&numbered, |(n, plan)| {
                let mut text = Vec::new();
                output.target(*n, plan, &mut text).map(|denied| (denied, text))
            });
            for report in made {
                let (report_denied, text) = report?;
                denied |= report_denied;
                out.write_all(&text)?;
            }
        }
    }
    Ok(if is_whole { u8::from(denied) } else { UNDONE })
}

/// How reports are written.
struct Output {
    format: Format,
    /// More than one target: each is named.
    many: bool,
    style: render::text::Style,
    levels: super::levels::Levels,
}

impl Output {
    /// Audits the n-th target and writes its report; true when a finding is at or above the denied level.
    fn target(&self, n: usize, plan: &Plan, out: &mut dyn Write) -> std::io::Result<bool> {
        let quick = (self.format == Format::Ldd && self.levels.are_usual()).then(|| listing(plan)).flatten();
        let (report, denied) = match quick {
            Some(report) => (report, false),
            None => {
                let mut report = audit(plan);
                let denied = self.levels.apply(&mut report);
                (report, denied)
            }
        };
        match self.format {
            Format::Json => render::json::write(&report, out, true)?,
            Format::Jsonl => render::json::write(&report, out, false)?,
            Format::Ldd => {
                if self.many {
                    render::escape::write(out, &plan.target.name)?;
                    out.write_all(b":\n")?;
                }
                render::ldd::write(&report, out)?;
            }
            Format::Text | Format::Tree => {
                if n > 0 && self.style.verbosity >= 0 {
                    writeln!(out)?;
                }
                match self.format {
                    Format::Tree => render::tree::write(&report, &self.style, out)?,
                    _ => {
                        render::text::write(&report, &self.style, out)?;
                        if report.process.lookups() == Lookups::Record && self.style.verbosity >= 0 {
                            writeln!(out)?;
                            render::bindings::write(&report, &self.style, out)?;
                        }
                    }
                }
            }
        }
        Ok(denied)
    }
}
