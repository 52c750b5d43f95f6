//! Packages that bring operators for torch: the libraries that they open by `torch.ops.load_library`, and what becomes
//! of their import when those do not load.
//!
//! Which ones, and when, is a table (`operator_libraries.csv`) with the releases it was read from. How torch words a
//! failure is read off the installed torch.

use bstr::{BString, ByteSlice};

use super::table::{Row, between, numbers, rows};
use super::{Exception, Session};
use crate::discover::python::Module;
use crate::ld::StepId;
use crate::system::join;

const TABLE: &str = include_str!("operator_libraries.csv");

/// What a module does behind its own imports.
pub(super) fn after_imports(session: &mut Session<'_>, module: &str) -> Result<(), Exception> {
    if module == "torchvision._meta_registrations" {
        return operators_of_torchvision(session);
    }
    for row in rows_of(session, |row| row.get("module") == module && row.get("if_fails") != "later") {
        let raises = row.get("if_fails") == "raises";
        if row.get("kind") == "import" {
            import(session, row.get("what"), module, raises)?;
        } else if let Some((step, path)) = load(session, &row, module, !raises)
            && raises
            && !session.succeeded(step)
        {
            return Err(load_error(session, step, path));
        }
    }
    Ok(())
}

/// Imports an extension module that has its library at hand now.
fn import(session: &mut Session<'_>, module: &str, by: &str, raises: bool) -> Result<(), Exception> {
    let Module::Extension(path) = session.python.find_module(module).module else { return Ok(()) };
    if session.has_opened(path.as_bstr()) {
        return Ok(());
    }
    let step = session.import_file(path.as_bstr(), !raises, &format!("imported by {by}"));
    if session.succeeded(step) {
        session.imported.insert(module.to_owned());
        return Ok(());
    }
    if raises { Err(session.exception("ImportError", step)) } else { Ok(()) }
}

/// Opens what a package opens only when something of it is used, ahead of the extensions that need it.
pub(super) fn later(session: &mut Session<'_>, package: &str) {
    for row in rows_of(session, |row| row.get("package") == package && row.get("if_fails") == "later") {
        load(session, &row, package, true);
    }
}

/// Rows for the installed release whose condition holds.
fn rows_of(session: &Session<'_>, wanted: impl Fn(&Row) -> bool) -> Vec<Row> {
    let there = |module: &str| module.is_empty() || session.python.find_module(module).module != Module::Missing;
    let fits = |row: &Row| {
        let version = session.python.distribution(row.get("package")).map(|d| numbers(&d.version.to_string()));
        version.is_none_or(|v| between(row.get("package_from"), row.get("package_to"), &v))
    };
    rows(TABLE).filter(|row| wanted(row) && there(row.get("given")) && fits(row)).collect()
}

/// `torch.ops.load_library`: ctypes opens the real path. `None` when there is no such file.
fn load(session: &mut Session<'_>, row: &Row, by: &str, optional: bool) -> Option<(StepId, BString)> {
    let path = match row.get("kind") {
        "extension" => match session.python.find_module(row.get("what")).module {
            Module::Extension(path) => path,
            _ => return None,
        },
        _ => {
            let Module::Package { directory, .. } = session.python.find_module(row.get("package")).module else {
                return None;
            };
            session.python.glob(join(directory.as_bstr(), row.get("what")).as_bstr()).into_iter().next()?
        }
    };
    let real = session.python.real_path(path.as_bstr());
    let note = format!("torch.ops.load_library, called by {by}");
    let step = session.cdll(real.as_bstr(), false, optional, &note);
    let succeeded = session.succeeded(step);
    session.extensions.insert(path, succeeded);
    // Its extension is imported behind it, in the same `try`: on a box without the library nobody asks for that.
    const ENOENT: i32 = 2;
    let is_absent = session.process.steps[step.index()].failure.as_ref().is_some_and(|f| f.errno == ENOENT);
    if optional
        && is_absent
        && let Module::Extension(given) = session.python.find_module(row.get("given")).module
    {
        session.extensions.entry(given).or_insert(false);
    }
    Some((step, real))
}

/// Later releases of torch wrap the loader's error.
fn load_error(session: &Session<'_>, step: StepId, path: BString) -> Exception {
    const WRAPPED: &str = "Could not load this library: ";
    let mut exception = session.exception("OSError", step);
    if session.python.source_has("torch._ops", WRAPPED) {
        exception.text = [WRAPPED.as_bytes(), &path].concat().into();
    }
    exception
}

/// torchvision goes on without its operators until it registers something for one of them, which torch refuses.
fn operators_of_torchvision(session: &Session<'_>) -> Result<(), Exception> {
    let python = session.python;
    let fail = |class, text: &str, step| Err(Exception { step, ..Exception::new(class, text) });
    let own = "torchvision._meta_registrations";
    let is_used = |decorator: &str| python.source_has(own, &format!("\n@{decorator}(\"torchvision::nms\")"));
    let old = is_used("torch._custom_ops.impl_abstract");
    let new = is_used("torch.library.register_fake");
    if !old && !new {
        return Ok(());
    }
    let failed = ["torchvision._C", "torchvision._C_stable"].iter().find_map(|name| {
        let Module::Extension(path) = python.find_module(name).module else { return None };
        let real = python.real_path(path.as_bstr());
        session.process.steps.iter().rposition(|s| s.name == real).map(|at| StepId(at as u32))
    });
    let is_torch_there = python.find_module("torch").module != Module::Missing;
    if is_torch_there && python.find_module("torch._custom_ops").module == Module::Missing {
        return fail("ModuleNotFoundError", "No module named 'torch._custom_ops'", None);
    }
    if new && is_torch_there && !python.source_has("torch.library", "def register_fake(") {
        return fail("AttributeError", "module 'torch.library' has no attribute 'register_fake'", failed);
    }
    if failed.is_some_and(|step| session.succeeded(step)) {
        return Ok(());
    }
    let torch = python.torch().and_then(|t| t.numbers());
    match torch {
        Some((2, 1, _)) if old => fail(
            "ValueError",
            "Could not find the operator torchvision::nms. Please make sure you have already registered the operator \
             and (if registered from C++) loaded it via torch.ops.load_library.",
            failed,
        ),
        _ => fail("RuntimeError", "operator torchvision::nms does not exist", failed),
    }
}
