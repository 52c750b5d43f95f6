//! The model against the real loader on real environments: `import torch` and `dlopen` of every library, plain and in
//! seeded random environments, compared with `LD_DEBUG=libs,files`.
//!
//! What is compared, request by request: the name, who asked, every path that was tried, and the path of the object that
//! came of it (or that nothing did). The order of the requests is that of the real run: the observed `dlopen` calls are
//! fed to the model, since Python code decides which come next. In a plain environment the torch recipe must give the
//! whole sequence by itself.
//!
//! `tests/make-boxes` makes the environments. `LDAUDIT_REAL` says how many random environments each gets (`full` is 40; a
//! small part is the default), `LDAUDIT_SEED` the first seed.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bstr::{BStr, BString, ByteSlice};
use ldaudit::discover::python::{self, Python};
use ldaudit::elf::Layout;
use ldaudit::ld::dialect::machine;
use ldaudit::ld::{
    Decision, Dialect, How, Identity, ImageId, LoadedCache, OpenRequest, Process, Start, StepId, Store, Verdict,
};
use ldaudit::recipe::{Session, torch};
use ldaudit::system::{Host, System};
use libtest_mimic::Failed;

use crate::Part;
use crate::support::{ld_debug, random_env, real};
use ld_debug::{Asker, Event, Load, Outcome, ProcessTrace};
use random_env::{Pools, RandomEnv};

const LIMIT: Duration = Duration::from_secs(120);

/// Lists the trials.
pub fn list(part: &mut Part) {
    let boxes = part.boxes();
    let pools = Arc::new(pools(&boxes));
    let first: u64 = std::env::var("LDAUDIT_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(1);
    for (name, directory) in boxes {
        {
            let directory = directory.clone();
            part.add(format!("{name}: recipe of import torch"), move || recipe_test(&directory));
        }
        for seed in first..first + random_environments() {
            let (directory, pools) = (directory.clone(), pools.clone());
            part.add(format!("{name}: import torch, environment {seed}"), move || {
                import_test(&directory, seed, &pools)
            });
        }
        let files = libraries(&directory);
        let step = if full() { 1 } else { 9 };
        for (index, file) in files.into_iter().enumerate().filter(|(i, _)| i % step == 0) {
            let pools = pools.clone();
            let short = file.strip_prefix(&directory).unwrap_or(&file).to_string_lossy().into_owned();
            let seed = first + 1000 + index as u64;
            part.add(format!("{name}: dlopen {short}, environment {seed}"), move || dlopen_test(&file, seed, &pools));
        }
    }
}

fn full() -> bool {
    std::env::var("LDAUDIT_REAL").is_ok_and(|v| v == "full")
}

fn random_environments() -> u64 {
    match std::env::var("LDAUDIT_REAL") {
        Ok(v) if v == "full" => 40,
        Ok(v) => v.parse().unwrap_or(4),
        Err(_) => 4,
    }
}

fn pools(boxes: &[(String, PathBuf)]) -> Pools {
    let mut roots: Vec<PathBuf> = boxes.iter().map(|(_, directory)| directory.clone()).collect();
    roots.push(PathBuf::from("/usr/lib/x86_64-linux-gnu"));
    roots.retain(|r| r.is_dir());
    Pools::below(&roots).expect("library directories")
}

fn libraries(directory: &Path) -> Vec<PathBuf> {
    let files = real::list_elf_files(&directory.join("lib")).unwrap_or_default();
    files.into_iter().filter(|f| f.file_name().is_some_and(|n| n.as_bytes().contains_str(".so"))).collect()
}

/// The environment of a run: nothing but a home and what the seed says.
fn variables(env: &RandomEnv) -> Vec<(OsString, OsString)> {
    let mut out =
        vec![(OsString::from("HOME"), OsString::from("/nonexistent")), ("PATH".into(), "/usr/bin:/bin".into())];
    out.extend(env.variables());
    out
}

fn host(variables: &[(OsString, OsString)], cwd: &Path) -> Host {
    let mut host = Host::live();
    host.env = ldaudit::system::Environment::new();
    for (name, value) in variables {
        host.env.push(name.as_bytes(), value.as_bytes());
    }
    host.cwd = cwd.as_os_str().as_bytes().into();
    host
}

fn process_for(host: Host) -> Process {
    let system = System { host: host.clone(), ..System::live() };
    let interpreter = b"/lib64/ld-linux-x86-64.so.2".as_bstr();
    let dialect = Arc::new(Dialect::read(&system, interpreter, Layout::LITTLE_64, machine::X86_64));
    let cache = Some(Arc::new(LoadedCache::read(&system, &dialect, false)));
    Process::new(Arc::new(Store::new(system, Layout::LITTLE_64, false)), dialect, Arc::new(host), cache)
}

fn bytes(path: &Path) -> &BStr {
    path.as_os_str().as_bytes().as_bstr()
}

// ------------------------------------------------------------------------------------------------------------ the trials

/// In a plain environment the recipe by itself gives the whole sequence.
fn recipe_test(directory: &Path) -> Result<(), Failed> {
    let python = directory.join("bin/python");
    let cwd = Path::new("/");
    let variables =
        vec![(OsString::from("HOME"), OsString::from("/nonexistent")), ("PATH".into(), "/usr/bin:/bin".into())];
    let seen = real::observe_import(&python, "torch", &variables, cwd, LIMIT)?;
    let host = host(&variables, cwd);
    let system = System { host: host.clone(), ..System::live() };
    let request = python::Request {
        named: Some(bytes(&python)),
        ask: Some(&ldaudit::cli::ask::Live),
        limit: python::DEFAULT_LIMIT,
    };
    let found: Python = python::discover(&system, &request).map_err(|e| e.to_string())?;
    let mut process = process_for(host);
    let (mut session, _) = Session::start(&mut process, &found);
    let ending = torch::import(&mut session).ok_or("the torch that is found is no installed one")?;
    if let Some(exception) = ending.exception {
        return Err(format!("the recipe ends in {}: {}", exception.class, exception.text).into());
    }
    // The compiler itself imports unicodedata when it meets a name that is not ASCII, so its place depends on which byte
    // code is there already.
    let fixed = |path: &&BStr| !path.contains_str("/unicodedata.");
    let model: Vec<&BStr> = process.images.iter().skip(2).map(|i| i.name.as_bstr()).filter(fixed).collect();
    let real: Vec<&BStr> = seen.trace.new_paths().into_iter().filter(fixed).collect();
    if model == real {
        return Ok(());
    }
    let at = model.iter().zip(&real).position(|(a, b)| a != b).unwrap_or(model.len().min(real.len()));
    Err(format!(
        "object {at} differs: the model has {:?}, the loader {:?} ({} and {} objects)",
        model.get(at),
        real.get(at),
        model.len(),
        real.len()
    )
    .into())
}

fn import_test(directory: &Path, seed: u64, pools: &Pools) -> Result<(), Failed> {
    let python = directory.join("bin/python");
    let cwd = Path::new("/usr");
    let env = RandomEnv::new(seed, pools, cwd);
    let variables = variables(&env);
    let seen = real::observe_import(&python, "torch", &variables, cwd, LIMIT)?;
    let mut process = process_for(host(&variables, cwd));
    let compared = replay(&mut process, bytes(&python), &seen, cwd).map_err(|text| explain(&env, &text))?;
    // The interpreter alone makes three requests that a trace shows; fewer means that nothing was compared.
    if compared < 3 { Err(format!("only {compared} requests were compared").into()) } else { Ok(()) }
}

fn dlopen_test(file: &Path, seed: u64, pools: &Pools) -> Result<(), Failed> {
    static HOST: OnceLock<PathBuf> = OnceLock::new();
    let program = HOST.get_or_init(|| {
        real::build_dlopen_host(Path::new(env!("CARGO_TARGET_TMPDIR"))).expect("a C compiler for the small host")
    });
    let cwd = Path::new("/usr");
    let env = RandomEnv::new(seed, pools, cwd);
    let variables = variables(&env);
    let steps = [real::DlopenStep { name: bytes(file).to_owned(), global: false, lazy: false }];
    let (seen, answers) = real::observe_dlopen(&real::Host::Program(program.clone()), &steps, &variables, cwd, LIMIT)?;
    let mut process = process_for(host(&variables, cwd));
    replay(&mut process, bytes(program), &seen, cwd).map_err(|text| explain(&env, &text))?;
    // The error text, where the model knows enough to give one.
    let said = answers.into_iter().next();
    let step = process.steps.iter().rev().find(|s| s.name == steps[0].name);
    let told = step.and_then(|s| s.error.clone());
    match (said, told) {
        (Some(Ok(())), None) | (None, _) => Ok(()),
        (Some(Err(text)), None) if beyond_loading(text.as_bstr()) => Ok(()),
        (Some(Err(text)), Some(own)) if text == own => Ok(()),
        (said, told) => Err(explain(&env, &format!("dlerror says {said:?}, the model {told:?}"))),
    }
}

/// Errors that arise after everything is mapped and versions are checked: binding symbols is not part of this model yet.
fn beyond_loading(text: &BStr) -> bool {
    text.contains_str("undefined symbol") || text.contains_str("static TLS block")
}

fn explain(env: &RandomEnv, text: &str) -> Failed {
    let show = |v: &Option<BString>| v.as_ref().map_or("(unset)".into(), |t| t.to_string());
    format!("LD_LIBRARY_PATH={}\nLD_PRELOAD={}\n{text}", show(&env.ld_library_path), show(&env.ld_preload)).into()
}

// ------------------------------------------------------------------------------------------------------------ the replay

/// One request, as both sides can tell it.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Told {
    name: BString,
    by: BString,
    tried: Vec<BString>,
    result: Came,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Came {
    New(BString),
    Known,
    Nothing,
}

/// Feeds the observed process to the model and compares every request.
fn replay(process: &mut Process, program: &BStr, seen: &real::Observation, cwd: &Path) -> Result<usize, String> {
    let mut trace: ProcessTrace = seen.trace.clone();
    if !trace.unknown.is_empty() {
        return Err(format!("lines that the parser does not know: {:?}", trace.unknown));
    }
    let loader = BString::from("/lib64/ld-linux-x86-64.so.2");
    trace.settle(&[loader], |path| real::identity(cwd, path));
    let mut step = process.exec(program, program, Start::Kernel);
    let mut first_decision = 0;
    let mut expected: Vec<Told> = Vec::new();
    let mut compared = 0;
    for event in &trace.events {
        match event {
            Event::Load(load) if load.namespace == 0 => {
                if let Asker::DlopenedBy(caller) = &load.asker {
                    compared += compare(process, step, first_decision, &expected)?;
                    expected.clear();
                    first_decision = process.decisions.len();
                    let caller = image_named(process, program, caller.as_bstr());
                    step = process.dlopen(&OpenRequest { caller, ..OpenRequest::new(load.name.clone()) });
                }
                expected.push(told_by_loader(load, program, cwd));
            }
            Event::Unmapped(path) => {
                // A stage after loading failed (a symbol, static TLS), or Python closed it.
                if let Some(id) = image_named(process, program, path.as_bstr()) {
                    compared += compare(process, step, first_decision, &expected)?;
                    expected.clear();
                    first_decision = process.decisions.len();
                    process.close(id, step);
                }
            }
            _ => {}
        }
    }
    compared += compare(process, step, first_decision, &expected)?;
    Ok(compared)
}

fn image_named(process: &Process, program: &BStr, path: &BStr) -> Option<ImageId> {
    if path == program || path == "<main program>" || path.is_empty() {
        return Some(ImageId(0));
    }
    (0..process.images.len() as u32).map(ImageId).find(|id| process.is_loaded(*id) && process.image(*id).name == path)
}

fn told_by_loader(load: &Load, program: &BStr, cwd: &Path) -> Told {
    let by = match &load.asker {
        Asker::NeededBy(by) | Asker::DlopenedBy(by) => by.clone(),
        Asker::CommandLine => BString::default(),
    };
    let by = if by.is_empty() || by == "<main program>" { program.to_owned() } else { by };
    let tried = load.tried().filter(|path| is_plain(path, cwd)).map(|p| p.to_owned()).collect();
    let result = match &load.outcome {
        Outcome::New { path, mapped: true } => Came::New(path.clone()),
        Outcome::Unified(_) => Came::Known,
        _ => Came::Nothing,
    };
    Told { name: load.name.clone(), by, tried, result }
}

/// Sub-directories for processor features are tried once in every directory; where they do not exist the model does not
/// write the attempt down.
fn is_plain(path: &BStr, cwd: &Path) -> bool {
    const BELOW: [&str; 5] = ["glibc-hwcaps", "tls", "haswell", "avx512_1", "x86_64"];
    let parent = ldaudit::system::parent(path);
    let last = ldaudit::system::file_name(parent);
    let in_feature = BELOW.iter().any(|b| last == *b) || last.starts_with(b"x86-64-v");
    !in_feature || cwd.join(OsStr::from_bytes(parent)).is_dir()
}

/// What the model did in a step, up to the first request that ends it.
fn told_by_model(process: &Process, step: StepId, from: usize) -> Vec<Told> {
    let mut out = Vec::new();
    for d in &process.decisions[from..] {
        if d.how == How::Exec {
            continue;
        }
        let silent = d.via.as_ref().is_some_and(|v| matches!(v.identity, Some(Identity::Name | Identity::Soname)));
        if !silent {
            out.push(told(process, d));
        }
        let ends = d.chosen.is_none() && !matches!(d.how, How::Preload | How::Auxiliary);
        if ends {
            break;
        }
    }
    let _ = step;
    out
}

fn told(process: &Process, d: &Decision) -> Told {
    let tried = d
        .attempts
        .iter()
        .filter(|a| !matches!(a.verdict, Verdict::NotReached | Verdict::Forbidden | Verdict::DirectoryMissing))
        .map(|a| a.path.clone())
        .collect::<Vec<_>>();
    let slash = d.asked.contains(&b'/');
    let result = match d.chosen {
        Some(_) if d.via.as_ref().is_some_and(|v| v.identity == Some(Identity::Inode)) => Came::Known,
        Some(id) => Came::New(process.image(id).name.clone()),
        None => Came::Nothing,
    };
    Told {
        name: d.asked.clone(),
        by: d.needed_by.map(|id| process.image(id).name.clone()).unwrap_or_default(),
        tried: if slash { Vec::new() } else { tried },
        result,
    }
}

fn compare(process: &Process, step: StepId, from: usize, expected: &[Told]) -> Result<usize, String> {
    let model = told_by_model(process, step, from);
    // A name with a slash that cannot be opened leaves no line in the trace at all.
    let visible = |t: &&Told| !(t.name.contains(&b'/') && t.result == Came::Nothing);
    let model: Vec<&Told> = model.iter().filter(visible).collect();
    let real: Vec<&Told> = expected.iter().filter(visible).collect();
    let at = model.iter().zip(&real).position(|(a, b)| a != b).unwrap_or(model.len().min(real.len()));
    if at == model.len() && at == real.len() {
        return Ok(at);
    }
    Err(format!(
        "step {} ({}), request {at}:\n  model  {}\n  loader {}",
        step.index(),
        process.steps[step.index()].name,
        shown(model.get(at).copied()),
        shown(real.get(at).copied())
    ))
}

fn shown(told: Option<&Told>) -> String {
    match told {
        None => "nothing more".into(),
        Some(t) => format!("{} for {}: {:?} after {:?}", t.name, t.by, t.result, t.tried),
    }
}
