//! `import torch` on Linux, from 1.13 to 2.15, step by step.
//!
//! Read from `torch/__init__.py` of those releases and checked against what the real process loads:
//! 1. extension modules of the standard library that the imports at the head of the file bring;
//! 2. `libtorch_global_deps.so` by ctypes, RTLD_GLOBAL;
//! 3. when that raised and the message names a library of the list: the fallback preload over `sys.path`, then step 2
//!    again;
//! 4. when it succeeded: the preload after success (2.6 and later), errors swallowed;
//! 5. `torch._C`, then what the rest of the package imports.
//!
//! The lists are tables (`torch_preload.csv`, `torch_modules.csv`), each with the releases it was read from.

use bstr::{BStr, BString, ByteSlice};

use super::prerequisites::{self, When};
use super::table::{Row, between, numbers, rows};
use super::{Absent, Ending, Exception, Session};
use crate::discover::python::imports::Import;
use crate::discover::python::torch::Torch;
use crate::discover::python::{Module, Python};
use crate::ld::{OpenFlags, StepKind};
use crate::system::join;

const MODULES: &str = include_str!("torch_modules.csv");
const PRELOAD: &str = include_str!("torch_preload.csv");

/// First and last release that this recipe was read from.
pub const DESCRIBED: ((u16, u16), (u16, u16)) = ((1, 13), (2, 15));

/// The release to follow, as numbers.
type Version = Vec<u64>;

/// Simulates `import torch`. `None` for what bears the name and has nothing of torch in it.
pub fn import(session: &mut Session<'_>) -> Option<Ending> {
    let lack = session.python.torch_lacks();
    // A source checkout gets as far as its libraries, and no further.
    if lack.is_some() && !session.python.code_of("torch").speaks_of_c {
        return None;
    }
    let torch = session.python.torch()?;
    let ending = Ending { lack, hidden: hidden(session.python), ..Ending::default() };
    Some(follow(session, &torch, ending))
}

/// Modules of Python's own library that torch imports for certain and that a file in front of it hides.
fn hidden(python: &Python) -> Vec<(String, BString)> {
    let code = python.code_of("torch");
    let modules = code.imports.iter().filter(|i| !i.guarded).map(|i| i.module.as_str());
    python.hidden_modules(modules)
}

fn follow(session: &mut Session<'_>, torch: &Torch, mut ending: Ending) -> Ending {
    let (version, guess) = described(torch);
    ending.guess = guess;
    let fail = |mut ending: Ending, exception: Exception| {
        ending.exception = Some(exception);
        ending
    };
    for module in modules(session, &version, "before") {
        if let Err(exception) =
            import_module(session, &module, OpenFlags::default(), "imported before torch's own libraries")
        {
            return fail(ending, exception);
        }
    }
    let missing = prerequisites::missing(session.python);
    if let Some((When::Before, exception)) = missing {
        return fail(ending, exception);
    }
    let hard_way = session.process.host().env.get("TORCH_USE_RTLD_GLOBAL").is_some_and(|v| !v.is_empty());
    let mut flags = OpenFlags::default();
    if hard_way {
        // sys.setdlopenflags holds for everything that is imported while torch._C is.
        flags = OpenFlags { global: true, lazy: true, ..flags };
    } else if let Err(exception) = global_deps(session, torch, &version) {
        return fail(ending, exception);
    }
    let Module::Extension(extension) = session.python.find_module("torch._C").module else {
        let text = "Failed to load PyTorch C extensions: no extension module torch._C is installed";
        let cure = prerequisites::reinstall(session.python, "torch");
        let absent = Absent { module: "torch._C".into(), by: "torch".into(), may_be_provided: false, cure };
        return fail(ending, Exception { absent: Some(Box::new(absent)), ..Exception::new("ImportError", text) });
    };
    let caller = session.interpreter_image();
    let step = session.open(extension.as_bstr(), flags, caller, StepKind::Import, false, "from torch._C import *");
    if !session.succeeded(step) {
        return fail(ending, session.exception("ImportError", step));
    }
    session.run_module_init();
    let numpy = numpy_modules(session);
    for module in modules(session, &version, "after") {
        let inside = numpy.contains(&module);
        let flags = if inside { flags } else { OpenFlags::default() };
        let note = if inside { "numpy, imported by torch._C" } else { "imported by the rest of the package" };
        let first = session.process.steps.len();
        let mut result = import_module(session, &module, flags, note);
        // torch._C swallows numpy's failure; Python's own `import numpy` right after does not (from 2.0 on it is tried
        // twice).
        let is_killed = |e: &Exception| e.step.is_some_and(|step| session.is_killed(step));
        let goes_on = result.as_ref().is_err_and(|e| !is_killed(e));
        if inside && goes_on && between("2.0", "", &version) {
            for step in &mut session.process.steps[first..] {
                step.optional = true;
            }
            result =
                import_module(session, &module, OpenFlags::default(), "numpy, imported again by torch's Python code");
        }
        if let Err(exception) = result {
            return fail(ending, exception);
        }
    }
    if let Module::Namespace(_) = session.python.find_module("numpy").module {
        // No part of numpy can be imported well without its `__init__.py`, and torch does not look for that.
        return fail(ending, without_init(session));
    }
    if let Some((When::After, exception)) = missing {
        return fail(ending, exception);
    }
    if let Some(exception) = prerequisites::missing_below(session.python) {
        return fail(ending, exception);
    }
    ending
}

/// Extensions without which the modules that want them go on (each was made to fail under a real import).
const DISPENSABLE: &[&str] = &["_bz2", "_lzma", "_ssl", "_uuid", "_decimal", "_hashlib", "nvfuser._C"];

/// Extensions of Python's own library without which every release was seen to fail.
const ESSENTIAL: &[&str] = &[
    "_ctypes",
    "_struct",
    "zlib",
    "math",
    "_random",
    "_socket",
    "_posixsubprocess",
    "select",
    "cmath",
    "array",
    "_multiprocessing",
    "binascii",
];

/// Imports one extension module by name.
fn import_module(session: &mut Session<'_>, module: &str, flags: OpenFlags, note: &str) -> Result<(), Exception> {
    let dispensable = DISPENSABLE.contains(&module);
    let Some(step) = session.import_with(module, flags, dispensable, note) else {
        return match is_gone(session, module) {
            true => Err(not_found(session, module)),
            false => Ok(()),
        };
    };
    if session.succeeded(step) {
        return Ok(());
    }
    if module == "_hashlib" {
        // hashlib falls back to its own implementations.
        for own in ["_md5", "_sha1", "_sha256", "_sha2", "_sha3"] {
            session.import_with(own, flags, true, "hashlib's own, since _hashlib does not load");
        }
    }
    if dispensable && !session.is_killed(step) { Ok(()) } else { Err(session.exception("ImportError", step)) }
}

/// True for a module that is nowhere and without which `import torch` does not end well. Every row of numpy was tried: it
/// raises without any one of its own extensions that its import loads.
fn is_gone(session: &Session<'_>, module: &str) -> bool {
    let counts = module.starts_with("numpy.") || ESSENTIAL.contains(&module) && session.knows_what_is_built_in();
    counts && session.python.find_module(module).module == Module::Missing
}

/// What Python says of a module that is nowhere.
fn not_found(session: &Session<'_>, module: &str) -> Exception {
    let python = session.python;
    let (package, name) = module.rsplit_once('.').unwrap_or(("", module));
    let code = python.code_of(package);
    // `from . import name`, by the package itself or by a module that it imports.
    let takes = |module: &str| {
        let imports = &python.code_of(module).imports;
        imports.iter().any(|i| !i.guarded && i.module == package && i.names.iter().any(|n| n == name))
    };
    let below = |i: &&Import| i.module.strip_prefix(package).is_some_and(|rest| rest.starts_with('.'));
    let modules = code.imports.iter().filter(below).map(|i| i.module.as_str());
    let by = [package].into_iter().chain(modules).filter(|_| !package.is_empty()).find(|module| takes(module));
    let init = match &code.module {
        Module::Package { init, .. } => words(init.as_bstr()),
        _ => String::new(),
    };
    let (class, text) = match by {
        Some(_) if python.interpreter.version.older_than(3, 8) => {
            ("ImportError", format!("cannot import name '{name}' from '{package}' ({init})"))
        }
        Some(_) => (
            "ImportError",
            format!(
                "cannot import name '{name}' from partially initialized module '{package}' (most likely due to a \
                 circular import) ({init})"
            ),
        ),
        // numpy makes longer words of it for its largest part; these stand in them, or above them.
        None => ("ModuleNotFoundError", format!("No module named '{module}'")),
    };
    let first = module.split('.').next().unwrap_or_default();
    let cure = prerequisites::reinstall(python, first).filter(|_| !package.is_empty());
    let by = by.unwrap_or(if package.is_empty() { "torch" } else { first }).to_owned();
    let absent = Absent { module: module.to_owned(), by, may_be_provided: false, cure };
    Exception { absent: Some(Box::new(absent)), ..Exception::new(class, text) }
}

/// numpy's directory without `__init__.py`: each release of torch takes a name from it that is not there.
fn without_init(session: &Session<'_>) -> Exception {
    let cure = prerequisites::reinstall(session.python, "numpy");
    let absent = Absent { module: "numpy".into(), by: "torch".into(), may_be_provided: false, cure };
    Exception {
        absent: Some(Box::new(absent)),
        ..Exception::new("AttributeError", "module 'numpy' has no attribute 'ndarray'")
    }
}

fn words(path: &BStr) -> String {
    path.to_str_lossy().into_owned()
}

/// The version to follow, and why it is a guess when it is one.
fn described(torch: &Torch) -> (Version, Option<String>) {
    let (first, last) = DESCRIBED;
    let wide = |(major, minor): (u16, u16)| vec![u64::from(major), u64::from(minor)];
    let range = format!("{}.{} to {}.{}", first.0, first.1, last.0, last.1);
    match torch.numbers() {
        None => (wide(last), Some(format!("torch does not tell its version; it is taken for {}.{}", last.0, last.1))),
        Some(v) if (v.0, v.1) > last => {
            (wide(last), Some(format!("torch {}.{} is newer than the releases that are described ({range})", v.0, v.1)))
        }
        Some(v) if (v.0, v.1) < first => (
            wide(first),
            Some(format!("torch {}.{} is older than the releases that are described ({range})", v.0, v.1)),
        ),
        Some(v) => (vec![v.0.into(), v.1.into(), v.2.into()], None),
    }
}

/// `_load_global_deps()`.
fn global_deps(session: &mut Session<'_>, torch: &Torch, version: &Version) -> Result<(), Exception> {
    let mut directory = torch.directory.clone();
    // 2.4 honours a package whose lib directory replaces torch's.
    let mut split = false;
    if between("2.4", "2.4", version)
        && let Module::Package { directory: other, .. } = session.python.find_module("libtorchsplit").module
    {
        directory = other;
        split = true;
    }
    let library = join(directory.as_bstr(), "lib/libtorch_global_deps.so");
    let step = session.cdll(library.as_bstr(), true, false, "ctypes.CDLL of torch's global dependencies");
    if session.succeeded(step) {
        preload_after_success(session, torch, version);
        if split {
            for path in session.python.glob(join(directory.as_bstr(), "lib/*.so").as_bstr()) {
                session.cdll(path.as_bstr(), true, true, "every library of the package libtorchsplit");
            }
        }
        return Ok(());
    }
    let error = session.exception("OSError", step);
    if session.is_killed(step) {
        return Err(error);
    }
    let list = preloads(torch, version, "fallback");
    // 1.13.1 compares the whole name, later releases the part before the first dot.
    let mark = |row: &Row| -> &'static str {
        let pattern = row.get("pattern");
        if between("", "1.13", version) { pattern } else { pattern.split('.').next().unwrap_or(pattern) }
    };
    if !list.iter().any(|row| row.get("in_message") == "yes" && error.text.contains_str(mark(row))) {
        return Err(error);
    }
    // The first failure was only a reason to try again.
    session.process.steps[step.index()].optional = true;
    // What the second way raises itself is about what the first one lacked.
    let of_first = |e: Exception| Exception { step: e.step.or(Some(step)), ..e };
    if list.iter().any(|row| row.get("if_missing") == "os_error") {
        fallback_pair(session, &list).map_err(of_first)?;
    } else {
        fallback(session, torch, &list).map_err(of_first)?;
    }
    let again =
        session.cdll(library.as_bstr(), true, false, "ctypes.CDLL of torch's global dependencies, second attempt");
    if session.succeeded(again) { Ok(()) } else { Err(session.exception("OSError", again)) }
}

const FALLBACK: &str = "preload after the first attempt failed";

/// Each library of the list from the first entry of `sys.path` that has it (2.0 and later).
fn fallback(session: &mut Session<'_>, torch: &Torch, list: &[Row]) -> Result<(), Exception> {
    for row in list {
        let Some(path) = session.first_on_path(&places(row, torch), row.get("pattern"), needs_nvidia(row)) else {
            if row.get("if_missing") == "skip" {
                continue;
            }
            let shown: Vec<String> = session.python.path().iter().map(|e| format!("'{}'", e.text)).collect();
            let text = format!("{} not found in the system path [{}]", row.get("pattern"), shown.join(", "));
            return Err(Exception::new("ValueError", text));
        };
        let step = session.cdll(path.as_bstr(), false, false, FALLBACK);
        if !session.succeeded(step) {
            return Err(session.exception("OSError", step));
        }
    }
    Ok(())
}

/// 1.13.1: both libraries from one entry of `sys.path`. Without an entry that has both, the last candidate is opened all
/// the same, and without any `nvidia` directory the code runs into a variable that was never set.
fn fallback_pair(session: &mut Session<'_>, list: &[Row]) -> Result<(), Exception> {
    let mut pair: Option<Vec<BString>> = None;
    for entry in session.python.path() {
        let nvidia = join(entry.directory.as_bstr(), "nvidia");
        if session.python.glob(nvidia.as_bstr()).is_empty() {
            continue;
        }
        let candidate: Vec<BString> = list
            .iter()
            .map(|row| join(nvidia.as_bstr(), format!("{}/lib/{}", row.get("folder"), row.get("pattern"))))
            .collect();
        let complete = candidate.iter().all(|p| !session.python.glob(p.as_bstr()).is_empty());
        pair = Some(candidate);
        if complete {
            break;
        }
    }
    let Some(pair) = pair else {
        let text = if session.python.interpreter.version.older_than(3, 11) {
            "local variable 'cublas_path' referenced before assignment"
        } else {
            "cannot access local variable 'cublas_path' where it is not associated with a value"
        };
        return Err(Exception::new("UnboundLocalError", text));
    };
    for path in pair {
        let step = session.cdll(path.as_bstr(), false, false, FALLBACK);
        if !session.succeeded(step) {
            return Err(session.exception("OSError", step));
        }
    }
    Ok(())
}

/// The preload after success, from 2.6 on: only when a CUDA run-time is mapped, all errors swallowed.
fn preload_after_success(session: &mut Session<'_>, torch: &Torch, version: &Version) {
    for row in preloads(torch, version, "after_success") {
        if let Some(mark) = row.get("condition").strip_prefix("mapped:") {
            let mapped = session.process.images.iter().filter(|i| i.unloaded_by.is_none());
            if !mapped.into_iter().any(|i| i.object.real_path().contains_str(mark)) {
                return;
            }
        }
        let Some(path) = session.first_on_path(&places(&row, torch), row.get("pattern"), needs_nvidia(&row)) else {
            if row.get("if_missing") == "stop" {
                return;
            }
            continue;
        };
        let step = session.cdll(path.as_bstr(), false, true, "preload after success");
        if !session.succeeded(step) {
            return;
        }
    }
}

/// Directories below an entry of `sys.path` in which a library is looked for, in order.
fn places(row: &Row, torch: &Torch) -> Vec<String> {
    row.get("places")
        .split('|')
        .filter_map(|place| {
            let place = place.replace("{folder}", row.get("folder"));
            if !place.contains("{major}") {
                return Some(place);
            }
            torch.cuda_major().map(|major| place.replace("{major}", &major.to_string()))
        })
        .collect()
}

/// 2.6 passes over entries of `sys.path` without a folder `nvidia`, though it looks beside that folder too.
fn needs_nvidia(row: &Row) -> bool {
    between(row.get("torch_from"), row.get("torch_to"), &[2, 6, 0])
}

fn preloads(torch: &Torch, version: &Version, stage: &str) -> Vec<Row> {
    rows(PRELOAD)
        .filter(|row| row.get("stage") == stage && between(row.get("torch_from"), row.get("torch_to"), version))
        .filter(|row| match row.get("condition").strip_prefix("cuda_major>=").and_then(|n| n.parse::<u16>().ok()) {
            Some(least) => torch.cuda_major().is_some_and(|major| major >= least),
            None => true,
        })
        .collect()
}

/// Rows of the module table for a package, its version and the interpreter's.
fn module_rows(session: &Session<'_>, package: &str, version: &[u64], phase: &str) -> Vec<&'static str> {
    let python = session.python.interpreter.version;
    let python = [u64::from(python.major), u64::from(python.minor)];
    rows(MODULES)
        .filter(|row| {
            row.get("package") == package
                && (phase.is_empty() || row.get("phase") == phase)
                && between(row.get("version_from"), row.get("version_to"), version)
                && between(row.get("python_from"), row.get("python_to"), &python)
        })
        .flat_map(|row| row.get("modules").split_ascii_whitespace())
        .collect()
}

/// The extension modules of numpy in the order of their import; empty when numpy is not installed, or only a directory
/// of its name.
fn numpy_modules(session: &Session<'_>) -> Vec<String> {
    if matches!(session.python.find_module("numpy").module, Module::Missing | Module::Namespace(_)) {
        return Vec::new();
    }
    let version =
        session.python.distribution("numpy").and_then(|d| d.version.to_str().ok().map(numbers)).unwrap_or_default();
    module_rows(session, "numpy", &version, "").into_iter().map(str::to_owned).collect()
}

/// The extension modules of one phase in order, each once. `torch._C` itself is left out: it is a step of its own.
fn modules(session: &Session<'_>, version: &Version, phase: &str) -> Vec<String> {
    let mut seen: Vec<String> = Vec::new();
    if phase == "after" {
        seen = modules(session, version, "before");
    }
    let earlier = seen.len();
    for word in module_rows(session, "torch", version, phase) {
        let expanded: Vec<String> = match word.split_once(':') {
            _ if word == "torch._C" => continue,
            _ if word == "@numpy" => numpy_modules(session),
            Some((package, _)) if session.python.find_module(package).module == Module::Missing => continue,
            Some((_, module)) => vec![module.to_owned()],
            None => vec![word.to_owned()],
        };
        for module in expanded {
            if !seen.contains(&module) {
                seen.push(module);
            }
        }
    }
    seen.split_off(earlier)
}
