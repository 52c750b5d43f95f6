//! Which module of another package is gone, so that `import torch` cannot end well?
//!
//! torch's metadata tells what it requires, the requirements' own metadata what these require. A module of a required
//! distribution that is nowhere on `sys.path` makes the source of torch be followed: an import that is made for certain
//! on the way raises. So does a module of torch itself that is gone: those that `torch/__init__.py` names are looked for
//! first, those further down once everything else went well. No more is read of the source while everything is there. What torch only tries to import, or imports
//! when something of it is used, may be absent. numpy is never required: [`super::torch`] knows what it imports.

use bstr::ByteSlice;
use rustc_hash::{FxHashMap, FxHashSet};

use super::{Absent, Cure, Exception};
use crate::discover::python::dist::Distribution;
use crate::discover::python::dist::normalised_name;
use crate::discover::python::imports::Import;
use crate::discover::python::{Module, Owner, Python, Version};
use crate::system::parent;

/// Most distributions whose requirements are looked at.
const MAX_DISTRIBUTIONS: usize = 200;
/// Most modules that are followed.
const MAX_MODULES: usize = 20_000;
/// Deepest chain of imports that is followed.
const MAX_DEPTH: usize = 120;

/// When in the import of torch something is raised.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum When {
    /// Before its libraries are opened.
    Before,
    /// After `torch._C` is imported.
    After,
}

/// The exception that a missing module ends `import torch` with.
pub fn missing(python: &Python) -> Option<(When, Exception)> {
    let mut gone = gone(python);
    gone.extend(named_and_gone(python));
    follow(python, &gone)
}

/// The exception that a missing module of torch itself ends the import with, one that no statement of
/// `torch/__init__.py` names.
pub fn missing_below(python: &Python) -> Option<Exception> {
    let gone = python.gone_sources_of_torch();
    let cure = reinstall(python, "torch");
    let gone: Vec<_> = gone.iter().map(|module| (module.clone(), cure.clone())).collect();
    follow(python, &gone).map(|(_, exception)| exception)
}

/// Follows the source of torch when something is gone.
fn follow(python: &Python, gone: &[(String, Option<Cure>)]) -> Option<(When, Exception)> {
    if gone.is_empty() {
        return None;
    }
    let mut walk = Walk { python, gone, known: FxHashMap::default(), running: Vec::new() };
    walk.known.insert("torch".into(), None);
    let code = python.code_of("torch");
    let before = python.certain_imports_before("torch", "from torch._C import *");
    let (ahead, behind) = code.imports.split_at(before.min(code.imports.len()));
    walk.running.push("torch".into());
    if let Some(exception) = walk.statements("torch", ahead, 0) {
        return Some((When::Before, exception));
    }
    Some((When::After, walk.statements("torch", behind, 0)?))
}

/// How to get the module of a required distribution back, when it is one that bears the distribution's name and is not
/// found.
fn gone_of(python: &Python, required: &Requirement, module: &str) -> Option<Cure> {
    let is_found = || !matches!(python.find_module(module).module, Module::Missing | Module::Namespace(_));
    let Some(installed) = python.distribution(&required.name) else {
        return (!is_found()).then(|| Cure::Install(required.text.clone()));
    };
    // A distribution need not have a module of its name. Its list is asked before the module is looked for everywhere.
    let files = [format!("{module}.py"), format!("{module}/__init__.py")];
    let is_there = files.iter().any(|file| python.is_beside(installed, file));
    let is_gone = !is_there && files.iter().any(|file| python.lists(installed, file)) && !is_found();
    is_gone.then(|| reinstall(python, &required.name))?
}

/// Another copy of an installed distribution.
pub(super) fn reinstall(python: &Python, distribution: &str) -> Option<Cure> {
    python.distribution(distribution).map(|d| Cure::Reinstall(python.installed(Owner::Distribution(d))))
}

/// Most modules of torch's own that are looked for.
const MAX_NAMED: usize = 500;

/// Modules of torch that its `__init__.py` names and that are gone. Of a torch that is not installed but lies there as
/// source, no list tells what there should be: then all that are not there are meant that no `from torch import` names,
/// which may as well be no module.
fn named_and_gone(python: &Python) -> Vec<(String, Option<Cure>)> {
    let code = python.code_of("torch");
    let Module::Package { directory, .. } = &code.module else { return Vec::new() };
    let installed = python.distribution("torch").filter(|d| d.location == parent(directory.as_bstr()));
    let mut seen: FxHashSet<String> = FxHashSet::default();
    let mut out = Vec::new();
    let mut look_for = |below: &str, is_module: bool| {
        // What is imported below a package that is not there comes to nothing already with that.
        for end in below.match_indices('.').map(|(at, _)| at).chain([below.len()]) {
            let below = &below[..end];
            if seen.len() >= MAX_NAMED
                || !seen.insert(below.to_owned())
                || !python.is_no_source_below(directory.as_bstr(), below)
            {
                continue;
            }
            let module = format!("torch.{below}");
            if !matches!(python.find_module(&module).module, Module::Missing | Module::Namespace(_)) {
                continue;
            }
            let path = module.replace('.', "/");
            let is_gone = match installed {
                Some(list) => {
                    [format!("{path}.py"), format!("{path}/__init__.py")].iter().any(|f| python.lists(list, f))
                }
                None => is_module,
            };
            if is_gone {
                out.push((module, installed.and_then(|_| reinstall(python, "torch"))));
                return;
            }
        }
    };
    for import in code.imports.iter().filter(|i| !i.guarded) {
        if let Some(below) = import.module.strip_prefix("torch.") {
            look_for(below, true);
        } else if import.module == "torch" {
            import.names.iter().for_each(|name| look_for(name, false));
        }
    }
    // `torch_version` takes the version from it.
    if code.speaks_of_c {
        look_for("version", true);
    }
    out
}

/// Modules of required distributions that are not found, with what brings each back.
fn gone(python: &Python) -> Vec<(String, Option<Cure>)> {
    let mut out = Vec::new();
    let version = python.interpreter.version;
    let mut seen: FxHashSet<String> = FxHashSet::default();
    let mut next = vec!["torch".to_owned()];
    while let Some(name) = next.pop() {
        let Some(distribution) = python.distribution(&name) else { continue };
        for line in &python.metadata(distribution).requires {
            let Some(required) = line.to_str().ok().and_then(|line| requirement(line, version, &[])) else { continue };
            // The simulation itself opens what these hold.
            if required.name.starts_with("nvidia-") || !seen.insert(required.name.clone()) {
                continue;
            }
            let module = required.name.replace('-', "_");
            out.extend(gone_of(python, &required, &module).map(|cure| (module, Some(cure))));
            if seen.len() < MAX_DISTRIBUTIONS {
                next.push(required.name);
            }
        }
    }
    out
}

/// A required distribution of NVIDIA's libraries that is not installed, or not whole.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lacking {
    /// Its name by PEP 503.
    pub name: String,
    /// What brings it back.
    pub cure: Cure,
}

/// Which of NVIDIA's wheels that a distribution requires, by itself or by way of `cuda-toolkit[...]`, are not installed or
/// lack libraries of theirs.
pub fn lacking_wheels(python: &Python, distribution: &Distribution) -> Vec<Lacking> {
    let version = python.interpreter.version;
    let mut out: Vec<Lacking> = Vec::new();
    let mut seen: FxHashSet<String> = FxHashSet::default();
    // Wheels require each other; of a bundle only the extras count that are asked for.
    let mut next: Vec<(&Distribution, Vec<String>)> = vec![(distribution, Vec::new())];
    while let Some((distribution, extras)) = next.pop() {
        let extras: Vec<&str> = extras.iter().map(String::as_str).collect();
        for line in python.metadata(distribution).requires.iter().filter_map(|line| line.to_str().ok()) {
            let Some(required) = requirement(line, version, &extras) else { continue };
            let extras = required.text.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map(|(list, _)| list);
            let is_wheel = required.name.starts_with("nvidia-");
            let is_new = (is_wheel || extras.is_some()) && seen.len() < MAX_DISTRIBUTIONS;
            if !is_new || !seen.insert(required.name.clone()) {
                continue;
            }
            let installed = python.distribution(&required.name);
            if let Some(installed) = installed {
                next.push((installed, extras.unwrap_or_default().split(',').map(str::to_owned).collect()));
            }
            let cure = match installed {
                _ if !is_wheel => continue,
                None => Cure::Install(required.text),
                Some(d) if python.lacks_libraries(d) => Cure::Reinstall(python.installed(Owner::Distribution(d))),
                Some(_) => continue,
            };
            out.push(Lacking { name: required.name, cure });
        }
    }
    out
}

/// The extra for which a marker holds: `cublas` of `... and extra == 'cublas'`.
fn extra_of(marker: &str) -> Option<&str> {
    let (_, rest) = marker.split_once("extra")?;
    let quoted = rest.trim_start().strip_prefix("==")?.trim_start();
    let quote = quoted.chars().next().filter(|c| matches!(c, '"' | '\''))?;
    quoted[1..].split(quote).next()
}

/// A line of `Requires-Dist`.
struct Requirement {
    /// Name by PEP 503.
    name: String,
    /// As pip takes it, without marker: `sympy>=1.13.3`.
    text: String,
}

/// Reads a requirement; `None` for one that this interpreter does not have, for one of another extra than those that are
/// wanted, and for what is none.
fn requirement(line: &str, version: Version, extras: &[&str]) -> Option<Requirement> {
    let (what, marker) = line.split_once(';').unwrap_or((line, ""));
    let is_wanted = !marker.contains("extra") || extra_of(marker).is_some_and(|extra| extras.contains(&extra));
    if !is_wanted || !may_hold(marker, version) {
        return None;
    }
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let plain = |c: char| is_name(c) || matches!(c, '<' | '>' | '=' | '!' | '~' | ',' | '[' | ']' | '*' | '+');
    // Old metadata has the versions in parentheses.
    let text: String = what.chars().filter(|c| !matches!(c, ' ' | '(' | ')')).collect();
    let name = &text[..text.find(|c| !is_name(c)).unwrap_or(text.len())];
    let name = normalised_name(name.as_bytes()).to_string();
    (!name.is_empty() && text.chars().all(plain)).then_some(Requirement { name, text })
}

/// False for a marker (PEP 508) that certainly does not hold here. Only conditions joined by `and` are looked into.
fn may_hold(marker: &str, version: Version) -> bool {
    let holds = |clause: &str| {
        let clause = clause.trim_matches(|c: char| c.is_whitespace() || matches!(c, '(' | ')'));
        let is_operator = |c: char| matches!(c, '<' | '>' | '=' | '!' | '~');
        let start = clause.find(is_operator)?;
        let length = clause[start..].find(|c| !is_operator(c))?;
        let (operator, value) = clause[start..].split_at(length);
        let value = value.trim().trim_matches(['"', '\'']);
        let same = match clause[..start].trim() {
            "python_version" => {
                let (major, minor) = value.split_once('.')?;
                let wanted = (major.parse::<u16>().ok()?, minor.parse::<u16>().ok()?);
                let own = (version.major, version.minor);
                return match operator {
                    "<" => Some(own < wanted),
                    "<=" => Some(own <= wanted),
                    ">" => Some(own > wanted),
                    ">=" => Some(own >= wanted),
                    "==" => Some(own == wanted),
                    "!=" => Some(own != wanted),
                    _ => None,
                };
            }
            "platform_system" => value == "Linux",
            "sys_platform" => value == "linux",
            "os_name" => value == "posix",
            "implementation_name" => value == "cpython",
            "platform_python_implementation" => value == "CPython",
            _ => return None,
        };
        match operator {
            "==" => Some(same),
            "!=" => Some(!same),
            _ => None,
        }
    };
    marker.contains(" or ") || marker.split(" and ").all(|clause| holds(clause) != Some(false))
}

/// The source of torch and of what it imports, followed without loading anything.
struct Walk<'p> {
    python: &'p Python,
    gone: &'p [(String, Option<Cure>)],
    /// Modules whose import has begun, and what it raises.
    known: FxHashMap<String, Option<Exception>>,
    /// Those whose import has not ended.
    running: Vec<String>,
}

impl Walk<'_> {
    /// What the certain imports of a module raise, or its classes behind them.
    fn statements(&mut self, name: &str, imports: &[Import], depth: usize) -> Option<Exception> {
        let mut behind = None;
        for import in imports {
            let raises = self.statement(name, import, depth);
            if raises.is_some() && !import.guarded {
                return raises;
            }
            let bound = import.module.as_str();
            if behind.is_none() && import.names.is_empty() && !bound.contains('.') {
                behind = self.without(name, bound, raises);
            }
        }
        behind
    }

    /// What a module raises that goes on without another one, or with an empty directory in its place.
    fn without(&self, name: &str, bound: &str, raises: Option<Exception>) -> Option<Exception> {
        let python = self.python;
        if let Some(exception) = raises {
            python.takes_at_once(name, bound)?;
            let absent = exception.absent.map(|absent| Box::new(Absent { by: name.to_owned(), ..*absent }));
            return Some(Exception { absent, ..Exception::new("NameError", format!("name '{bound}' is not defined")) });
        }
        let cure = self.cure(bound).filter(|_| matches!(python.code_of(bound).module, Module::Namespace(_)))?;
        let text = format!("module '{bound}' has no attribute '{}'", python.takes_at_once(name, bound)?);
        Some(raised("AttributeError", text, bound, name, cure))
    }

    fn statement(&mut self, name: &str, import: &Import, depth: usize) -> Option<Exception> {
        if let Some(exception) = self.dotted(&import.module, depth + 1, name) {
            return Some(exception);
        }
        if import.names.is_empty() {
            return None;
        }
        let code = self.python.code_of(&import.module);
        if !matches!(code.module, Module::Package { .. } | Module::Namespace(_)) {
            return None;
        }
        import.names.iter().find_map(|below| {
            let full = format!("{}.{below}", import.module);
            if self.python.code_of(&full).module != Module::Missing {
                return self.dotted(&full, depth + 1, name);
            }
            if let (Some(cure), Module::Package { init, .. }) = (self.cure(&full), &code.module) {
                let partially = match self.running.contains(&import.module) {
                    true => ["partially initialized module ", " (most likely due to a circular import)"],
                    false => [""; 2],
                };
                let text = format!(
                    "cannot import name '{below}' from {}'{}'{} ({})",
                    partially[0],
                    import.module,
                    partially[1],
                    init.to_str_lossy()
                );
                return Some(raised("ImportError", text, &full, name, cure));
            }
            let cure = self.cure(&import.module).filter(|_| matches!(code.module, Module::Namespace(_)))?;
            let text = format!("cannot import name '{below}' from '{}' (unknown location)", import.module);
            Some(raised("ImportError", text, &import.module, name, cure))
        })
    }

    /// `import a.b.c` by a module.
    fn dotted(&mut self, name: &str, depth: usize, by: &str) -> Option<Exception> {
        let ends = name.match_indices('.').map(|(at, _)| at).chain([name.len()]);
        for end in ends {
            let part = &name[..end];
            match self.known.get(part) {
                Some(Some(exception)) => return Some(exception.clone()),
                // Imported, or in the midst of it: in a circle nothing happens.
                Some(None) => continue,
                None if self.known.len() >= MAX_MODULES || depth >= MAX_DEPTH => return None,
                None => {}
            }
            self.known.insert(part.to_owned(), None);
            let code = self.python.code_of(part);
            let raises = match self.cure(part) {
                Some(cure) if code.module == Module::Missing => {
                    Some(raised("ModuleNotFoundError", format!("No module named '{part}'"), part, by, cure))
                }
                _ => {
                    self.running.push(part.to_owned());
                    let raises = self.statements(part, &code.imports, depth);
                    self.running.pop();
                    raises
                }
            };
            if raises.is_some() {
                self.known.insert(part.to_owned(), raises.clone());
                return raises;
            }
        }
        None
    }

    /// What brings a module back that is gone, if that is known.
    fn cure(&self, module: &str) -> Option<Option<Cure>> {
        self.gone.iter().find(|(gone, _)| gone == module).map(|(_, cure)| cure.clone())
    }
}

fn raised(class: &'static str, text: String, module: &str, by: &str, cure: Option<Cure>) -> Exception {
    let absent = Absent { module: module.into(), by: by.into(), may_be_provided: false, cure };
    Exception { absent: Some(Box::new(absent)), ..Exception::new(class, text) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requirements_are_read_in_both_forms() {
        let version = Version { major: 3, minor: 11, micro: None };
        let read = |line: &str| requirement(line, version, &[]).map(|r| (r.name, r.text));
        let is = |name: &str, text: &str| Some((name.to_owned(), text.to_owned()));
        assert_eq!(read("typing-extensions (>=4.8.0)"), is("typing-extensions", "typing-extensions>=4.8.0"));
        assert_eq!(read("Jinja2"), is("jinja2", "Jinja2"));
        assert_eq!(read("triton~=3.9; python_version < '3.16'"), is("triton", "triton~=3.9"));
        assert_eq!(read("a_b[c]<2,>=1"), is("a-b", "a_b[c]<2,>=1"));
        for other in
            ["python_version < '3.10'", "platform_system == \"Linux\" and (python_version<'3.11')", "os_name=='nt'"]
        {
            assert_eq!(read(&format!("x; {other}")), None, "{other}");
        }
        for held in
            ["python_version < '3.10' or os_name == 'nt'", "platform_machine == 'x'", "python_version >= '3.9'", "?"]
        {
            assert_eq!(read(&format!("x; {held}")), is("x", "x"), "{held}");
        }
        let of_extra = |line: &str| requirement(line, version, &["y"]).map(|r| r.text);
        assert_eq!(of_extra("x==1.*; (os_name == 'a' or os_name == 'b') and extra == 'y'"), Some("x==1.*".to_owned()));
        assert_eq!(of_extra("x; extra == \"z\""), None);
        assert_eq!(of_extra("x"), Some("x".to_owned()));
        for none in ["x ; extra == 'y'", "", ";", "a @ https://x", "$(rm)", "a`b`"] {
            assert_eq!(read(none), None, "{none}");
        }
    }
}
