//! `import torch` on Linux, from 1.13 to 2.15, step by step.
//!
//! Read from `torch/__init__.py` of those releases and checked against what the real process loads:
//! 1. extension modules of the standard library that the imports at the head of the file bring;
//! 2. `libtorch_global_deps.so` by ctypes, RTLD_GLOBAL;
//! 3. when that raised and the message names a CUDA library: the fallback preload over `sys.path`, then step 2 again;
//! 4. when it succeeded: the preload after success (2.6 and later), errors swallowed;
//! 5. `torch._C`, then what the rest of the package imports.

use bstr::{BStr, BString, ByteSlice};

use super::table::{in_range, rows};
use super::{Ending, Exception, Session};
use crate::discover::python::Module;
use crate::discover::python::torch::Torch;
use crate::ld::{OpenFlags, Outcome, StepKind};
use crate::system::join;

const MODULES: &str = include_str!("torch_modules.csv");
const PRELOAD: &str = include_str!("torch_preload.csv");

/// First and last release that this recipe was read from.
pub const DESCRIBED: ((u16, u16), (u16, u16)) = ((1, 13), (2, 15));

type Numbers = (u16, u16, u16);

/// One library of a preload list.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Part {
    /// Folder below `nvidia/` (and, from 2.6 on, below the entry itself).
    folder: &'static str,
    /// Pattern for `glob`.
    pattern: &'static str,
}

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
    for module in modules(version, "before") {
        if let Some(step) = session.import(module, false, "imported before torch's own libraries")
            && !session.succeeded(step)
        {
            return fail(ending, session.exception("ImportError", step));
        }
    }
    let rtld_global = session.process.host().env.get("TORCH_USE_RTLD_GLOBAL").is_some_and(|v| !v.is_empty());
    if !rtld_global {
        if let Err(exception) = global_deps(session, &torch, version) {
            return fail(ending, exception);
        }
        for module in modules(version, "between") {
            session.import(module, true, "imported before torch._C");
        }
    }
    let flags =
        if rtld_global { OpenFlags { global: true, lazy: true, ..OpenFlags::default() } } else { OpenFlags::default() };
    let Module::Extension(extension) = session.python.find_module("torch._C").module else {
        let text = "Failed to load PyTorch C extensions: no extension module torch._C is installed";
        return fail(ending, Exception { class: "ImportError", text: text.into(), step: None });
    };
    let caller = session.interpreter_image();
    let step = session.open(extension.as_bstr(), flags, caller, StepKind::Import, false, "from torch._C import *");
    if !session.succeeded(step) {
        return fail(ending, session.exception("ImportError", step));
    }
    for module in modules(version, "after") {
        if let Some(step) = session.import(module, true, "imported by the rest of the package")
            && !session.succeeded(step)
        {
            ending.silent.push(step);
        }
    }
    ending
}

/// The version to follow, and why it is a guess when it is one.
fn described(torch: &Torch) -> (Numbers, Option<String>) {
    let (first, last) = DESCRIBED;
    let range = format!("{}.{} to {}.{}", first.0, first.1, last.0, last.1);
    match torch.numbers() {
        None => (
            (last.0, last.1, 0),
            Some(format!("torch does not tell its version; the recipe for {}.{} is followed", last.0, last.1)),
        ),
        Some(v) if (v.0, v.1) > last => (
            (last.0, last.1, 0),
            Some(format!("torch {}.{} is newer than what the recipe describes ({range})", v.0, v.1)),
        ),
        Some(v) if (v.0, v.1) < first => (
            (first.0, first.1, 0),
            Some(format!("torch {}.{} is older than what the recipe describes ({range})", v.0, v.1)),
        ),
        Some(v) => (v, None),
    }
}

/// `_load_global_deps()`.
fn global_deps(session: &mut Session<'_>, torch: &Torch, version: Numbers) -> Result<(), Exception> {
    let mut directory = torch.directory.clone();
    // 2.4 and 2.5 honour a package whose lib directory replaces torch's.
    if in_range("2.4-2.5", version)
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
    let list = parts(version, "fallback");
    let named = |part: &Part| part.pattern.split('.').next().is_some_and(|stem| error.text.contains_str(stem));
    if version < (2, 0, 0) {
        if !error.text.contains_str("libcublas.so.11") {
            return Err(error);
        }
        fallback_1_13(session)?;
    } else {
        if !list.iter().any(named) {
            return Err(error);
        }
        for part in &list {
            let folders = folders(part.folder, torch, version);
            let Some(path) = session.first_on_path(&folders, part.pattern) else {
                let shown: Vec<String> = session.python.path().iter().map(|e| format!("'{}'", e.text)).collect();
                let text = format!("{} not found in the system path [{}]", part.pattern, shown.join(", "));
                return Err(Exception { class: "ValueError", text: text.into(), step: Some(step) });
            };
            let step = session.cdll(path.as_bstr(), false, false, "preload after the first attempt failed");
            if !session.succeeded(step) {
                return Err(session.exception("OSError", step));
            }
        }
    }
    // The first failure was only a reason to try again.
    session.process.steps[step.index()].optional = true;
    let again =
        session.cdll(library.as_bstr(), true, false, "ctypes.CDLL of torch's global dependencies, second attempt");
    if session.succeeded(again) { Ok(()) } else { Err(session.exception("OSError", again)) }
}

/// 1.13: cublas and cudnn together from one entry of `sys.path`; without a pair the last candidate is opened all the
/// same, and without any `nvidia` directory the code runs into an unset variable.
fn fallback_1_13(session: &mut Session<'_>) -> Result<(), Exception> {
    let mut pair: Option<[BString; 2]> = None;
    for entry in session.python.path() {
        let nvidia = join(entry.directory.as_bstr(), "nvidia");
        if session.python.glob(nvidia.as_bstr()).is_empty() {
            continue;
        }
        let candidate = ["cublas/lib/libcublas.so.11", "cudnn/lib/libcudnn.so.8"].map(|p| join(nvidia.as_bstr(), p));
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
        let step = session.cdll(path.as_bstr(), false, false, "preload after the first attempt failed");
        if !session.succeeded(step) {
            return Err(session.exception("OSError", step));
        }
    }
    Ok(())
}

/// The preload after success, from 2.6 on: only when a CUDA run-time is mapped, all errors swallowed.
fn preload_after_success(session: &mut Session<'_>, torch: &Torch, version: Numbers) {
    let list = parts(version, "after");
    if list.is_empty() {
        return;
    }
    let mark: &[u8] = if version < (2, 9, 0) { b"nvidia/cuda_runtime/lib/libcudart.so" } else { b"libcudart.so" };
    let mapped = |path: &BStr| path.find(mark).is_some();
    let present = session.process.images.iter().any(|i| i.unloaded_by.is_none() && mapped(i.object.real_path()));
    if !present {
        return;
    }
    for part in &list {
        let folders = folders(part.folder, torch, version);
        let Some(path) = session.first_on_path(&folders, part.pattern) else {
            // Up to 2.13 the first library that is not found raises, which ends the list in silence.
            if ((2, 10, 0)..(2, 14, 0)).contains(&version) {
                return;
            }
            continue;
        };
        let step = session.cdll(path.as_bstr(), false, true, "preload after success");
        if session.process.steps[step.index()].outcome == Outcome::Failed {
            return;
        }
    }
}

/// Directories below an entry of `sys.path` in which a part is looked for, in order.
fn folders(folder: &str, torch: &Torch, version: Numbers) -> Vec<BString> {
    let mut out: Vec<BString> = vec![format!("nvidia/{folder}").into()];
    if version >= (2, 9, 0)
        && let Some(major) = torch.cuda_major()
    {
        out.push(format!("nvidia/cu{major}").into());
    }
    if version >= (2, 6, 0) {
        out.push(folder.into());
    }
    out
}

fn parts(version: Numbers, list: &str) -> Vec<Part> {
    rows(PRELOAD)
        .filter_map(|row| match row[..] {
            [range, name, folder, pattern] if name == list && in_range(range, version) => {
                Some(Part { folder, pattern })
            }
            _ => None,
        })
        .collect()
}

fn modules(version: Numbers, phase: &str) -> Vec<&'static str> {
    rows(MODULES)
        .filter_map(|row| match row[..] {
            [range, name, module] if name == phase && in_range(range, version) => Some(module),
            _ => None,
        })
        .collect()
}
