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

use bstr::{BString, ByteSlice};

use super::table::{Row, between, rows};
use super::{Ending, Exception, Session};
use crate::discover::python::Module;
use crate::discover::python::torch::Torch;
use crate::ld::{OpenFlags, StepKind};
use crate::system::join;

const MODULES: &str = include_str!("torch_modules.csv");
const PRELOAD: &str = include_str!("torch_preload.csv");

/// First and last release that this recipe was read from.
pub const DESCRIBED: ((u16, u16), (u16, u16)) = ((1, 13), (2, 15));

/// The release to follow, as numbers.
type Version = Vec<u64>;

/// Simulates `import torch`.
pub fn import(session: &mut Session<'_>) -> Ending {
    let mut ending = Ending::default();
    let Some(torch) = session.python.torch() else {
        return ending;
    };
    let (version, guess) = described(&torch);
    ending.guess = guess;
    let fail = |mut ending: Ending, exception: Exception| {
        ending.exception = Some(exception);
        ending
    };
    for module in modules(session, &version, "before") {
        if let Some(step) = session.import(&module, false, "imported before torch's own libraries")
            && !session.succeeded(step)
        {
            return fail(ending, session.exception("ImportError", step));
        }
    }
    let hard_way = session.process.host().env.get("TORCH_USE_RTLD_GLOBAL").is_some_and(|v| !v.is_empty());
    let mut flags = OpenFlags::default();
    if hard_way {
        flags = OpenFlags { global: true, lazy: true, ..flags };
    } else {
        if let Err(exception) = global_deps(session, &torch, &version) {
            return fail(ending, exception);
        }
        for module in modules(session, &version, "between") {
            session.import(&module, true, "imported before torch._C");
        }
    }
    let Module::Extension(extension) = session.python.find_module("torch._C").module else {
        let text = "Failed to load PyTorch C extensions: no extension module torch._C is installed";
        return fail(ending, Exception { class: "ImportError", text: text.into(), step: None });
    };
    let caller = session.interpreter_image();
    let step = session.open(extension.as_bstr(), flags, caller, StepKind::Import, false, "from torch._C import *");
    if !session.succeeded(step) {
        return fail(ending, session.exception("ImportError", step));
    }
    session.run_module_init();
    for module in modules(session, &version, "after") {
        if let Some(step) = session.import(&module, true, "imported by the rest of the package")
            && !session.succeeded(step)
        {
            ending.silent.push(step);
        }
    }
    ending
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
    // 2.4 and 2.5 honour a package whose lib directory replaces torch's.
    if between("2.4", "2.5", version)
        && let Module::Package { directory: split, .. } = session.python.find_module("libtorchsplit").module
    {
        directory = split;
    }
    let library = join(directory.as_bstr(), "lib/libtorch_global_deps.so");
    let step = session.cdll(library.as_bstr(), true, false, "ctypes.CDLL of torch's global dependencies");
    if session.succeeded(step) {
        preload_after_success(session, torch, version);
        return Ok(());
    }
    let error = session.exception("OSError", step);
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
    if list.iter().any(|row| row.get("if_missing") == "os_error") {
        fallback_pair(session, &list)?;
    } else {
        fallback(session, torch, &list)?;
    }
    let again =
        session.cdll(library.as_bstr(), true, false, "ctypes.CDLL of torch's global dependencies, second attempt");
    if session.succeeded(again) { Ok(()) } else { Err(session.exception("OSError", again)) }
}

const FALLBACK: &str = "preload after the first attempt failed";

/// Each library of the list from the first entry of `sys.path` that has it (2.0 and later).
fn fallback(session: &mut Session<'_>, torch: &Torch, list: &[Row]) -> Result<(), Exception> {
    for row in list {
        let Some(path) = session.first_on_path(&places(row, torch), row.get("pattern")) else {
            if row.get("if_missing") == "skip" {
                continue;
            }
            let shown: Vec<String> = session.python.path().iter().map(|e| format!("'{}'", e.text)).collect();
            let text = format!("{} not found in the system path [{}]", row.get("pattern"), shown.join(", "));
            return Err(Exception { class: "ValueError", text: text.into(), step: None });
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
        return Err(Exception { class: "UnboundLocalError", text: text.into(), step: None });
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
        let Some(path) = session.first_on_path(&places(&row, torch), row.get("pattern")) else {
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

fn preloads(torch: &Torch, version: &Version, stage: &str) -> Vec<Row> {
    rows(PRELOAD)
        .filter(|row| row.get("stage") == stage && between(row.get("torch_from"), row.get("torch_to"), version))
        .filter(|row| match row.get("condition").strip_prefix("cuda_major>=").and_then(|n| n.parse::<u16>().ok()) {
            Some(least) => torch.cuda_major().is_some_and(|major| major >= least),
            None => true,
        })
        .collect()
}

fn modules(_session: &Session<'_>, version: &Version, phase: &str) -> Vec<String> {
    rows(MODULES)
        .filter(|row| row.get("phase") == phase && between(row.get("torch"), row.get("torch"), version))
        .map(|row| row.get("module").to_owned())
        .collect()
}
