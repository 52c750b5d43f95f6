//! Which file would `import` take? Python's order: built-in modules, then the entries of `sys.path`; in each entry a
//! package directory, an extension (suffix by suffix), a source file, byte code; directories without `__init__` are
//! gathered into a namespace package when no entry has more (`importlib._bootstrap_external.FileFinder`, 3.6 to
//! 3.15). Last come the mappings of editable installs.

use std::collections::HashSet;
use std::sync::Arc;

use bstr::{BStr, BString, ByteSlice};

use super::{EntryKind, Interpreter, Python};
use crate::system::{Errno, Kind, System, join};

/// The answer to a module lookup.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
    /// What was found.
    pub module: Module,
    /// Entries of `sys.path` that are archives and were not searched.
    pub not_searched: Vec<BString>,
}

/// What a module name leads to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Module {
    /// Compiled into the interpreter.
    BuiltIn,
    /// A package: its directory and the file that makes it one (`__init__.py`, or an extension).
    Package {
        /// The directory.
        directory: BString,
        /// The `__init__` file.
        init: BString,
    },
    /// An extension: a shared library that the interpreter opens with `dlopen`.
    Extension(BString),
    /// A source file, or byte code without source.
    Source(BString),
    /// A namespace package: directories without `__init__`, in the order of `sys.path`.
    Namespace(Vec<BString>),
    /// Nothing: `import` raises ModuleNotFoundError.
    Missing,
}

/// Longest module name in parts.
const MAX_PARTS: usize = 64;

/// Looks up a dotted name.
pub(super) fn find(python: &Python, name: &str) -> Found {
    let interpreter = &python.interpreter;
    let Searched { directories, archives } = python.searched.get_or_init(|| searched(python));
    let (mut directories, not_searched) = (directories.clone(), archives.clone());
    let mut module = Module::Missing;
    for (depth, part) in name.split('.').enumerate() {
        if part.is_empty() || part.contains('/') || depth >= MAX_PARTS {
            return Found { module: Module::Missing, not_searched };
        }
        if depth == 0 && interpreter.builtins.as_ref().is_some_and(|names| names.iter().any(|n| n == part)) {
            module = Module::BuiltIn;
            directories.clear();
            continue;
        }
        module = find_in(python, &directories, part);
        if depth == 0 && matches!(module, Module::Missing | Module::Namespace(_)) {
            // The finder of editable installs stands after the path finder, which takes namespaces too.
            if module == Module::Missing
                && let Some(found) = find_editable(python, part)
            {
                module = found;
            }
            if module == Module::Missing && interpreter.builtins.is_none() && has_built_in(python, part) {
                module = Module::BuiltIn;
            }
        }
        directories = searched_below(&module);
        if module == Module::Missing {
            break;
        }
    }
    Found { module, not_searched }
}

/// `__path__`: the directories in which modules below one are looked for.
fn searched_below(module: &Module) -> Vec<BString> {
    match module {
        Module::Package { directory, .. } => vec![directory.clone()],
        Module::Namespace(directories) => directories.clone(),
        _ => Vec::new(),
    }
}

/// Looks up the last part of a dotted name when it is known what stands in front of it.
pub(super) fn find_below(python: &Python, parent: &Module, part: &str) -> Module {
    if part.is_empty() || part.contains('/') {
        return Module::Missing;
    }
    find_in(python, &searched_below(parent), part)
}

/// True when none of some directories holds a module.
pub(super) fn is_missing_in(python: &Python, directories: &[BString], name: &str) -> bool {
    matches!(find_in(python, directories, name), Module::Missing | Module::Namespace(_))
}

/// What stands on `sys.path`.
pub(super) struct Searched {
    directories: Vec<BString>,
    archives: Vec<BString>,
}

fn searched(python: &Python) -> Searched {
    let mut out = Searched { directories: Vec::new(), archives: Vec::new() };
    for entry in &python.interpreter.path {
        match python.system.files.stat(entry.directory.as_bstr()) {
            Ok(meta) if meta.kind == Kind::Directory => out.directories.push(entry.directory.clone()),
            Ok(_) => out.archives.push(entry.directory.clone()),
            Err(_) => {}
        }
    }
    out
}

/// The names in one directory; `None` when there are too many to list: then each is asked for.
pub(super) type Names = Option<HashSet<BString>>;
/// Most directories whose names are remembered.
const MAX_LISTINGS: usize = 1 << 14;

/// The names in a directory, listed once as Python's finder does (`FileFinder._fill_cache`): what is not listed is not
/// found, and one that cannot be listed is empty.
pub(super) fn names_in(python: &Python, directory: &BStr) -> Arc<Names> {
    let locked = || python.listings.lock().unwrap_or_else(|e| e.into_inner());
    if let Some(known) = locked().get(directory) {
        return known.clone();
    }
    let names: Arc<Names> = Arc::new(match python.system.files.list_unsorted(directory) {
        Ok(entries) => Some(entries.into_iter().map(|e| e.name).collect()),
        Err(Errno::EFBIG) => None,
        Err(_) => Some(HashSet::new()),
    });
    let mut listings = locked();
    if listings.len() < MAX_LISTINGS {
        listings.insert(directory.to_owned(), names.clone());
    }
    names
}

fn find_in(python: &Python, directories: &[BString], name: &str) -> Module {
    let system = &python.system;
    let extensions = &python.interpreter.extension_suffixes;
    let is_file = |path: &BString| system.files.stat(path.as_bstr()).is_ok_and(|m| m.kind == Kind::File);
    let mut portions = Vec::new();
    for directory in directories {
        let listed = names_in(python, directory.as_bstr());
        let names = listed.as_ref().as_ref();
        let is_listed = |ending: &BStr| names.is_none_or(|names| names.contains(&with(name.into(), ending)));
        let path = join(directory.as_bstr(), name);
        if is_listed("".into()) && system.is_dir(path.as_bstr()) {
            let init = join(path.as_bstr(), "__init__");
            let endings = extensions.iter().map(|e| e.as_bstr()).chain([".py".into(), ".pyc".into()]);
            for ending in endings {
                let init = with(init.as_bstr(), ending);
                if is_file(&init) {
                    return Module::Package { directory: path, init };
                }
            }
            portions.push(path.clone());
        }
        for ending in extensions {
            let file = with(path.as_bstr(), ending.as_bstr());
            if is_listed(ending.as_bstr()) && is_file(&file) {
                return Module::Extension(file);
            }
        }
        for ending in [".py", ".pyc"] {
            let file = with(path.as_bstr(), ending.into());
            if is_listed(ending.into()) && is_file(&file) {
                return Module::Source(file);
            }
        }
    }
    if portions.is_empty() { Module::Missing } else { Module::Namespace(portions) }
}

fn with(path: &BStr, ending: &BStr) -> BString {
    let mut out = path.to_owned();
    out.extend_from_slice(ending);
    out
}

/// Longest build data file that is read (CPython's has about 100 kB).
const MAX_DATA: u64 = 4 << 20;

/// A string variable of the interpreter's build data, `_sysconfigdata_….py` in its library.
pub(super) fn build_variable(system: &System, interpreter: &Interpreter, name: &str) -> Option<Vec<u8>> {
    let library = interpreter.library();
    let entries = system.files.list(library).ok()?;
    let file = entries.iter().find(|e| e.name.starts_with(b"_sysconfigdata_") && e.name.ends_with(b".py"))?;
    let text = system.read_small(join(library, &file.name).as_bstr(), MAX_DATA).ok()?;
    let key = format!("'{name}': ");
    let at = text.find(key.as_bytes())? + key.len();
    joined_literals(text.get(at..)?)
}

/// Python's string literals one after the other, as `pprint` breaks long ones, up to the comma or brace that ends
/// the value. Escapes do not occur in the values wanted here.
fn joined_literals(mut text: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    let mut any = false;
    loop {
        text = text.trim_ascii_start();
        match text.first() {
            Some(quote @ (b'\'' | b'"')) => {
                let end = memchr::memchr(*quote, text.get(1..)?)? + 1;
                out.extend_from_slice(&text[1..end]);
                text = &text[end + 1..];
                any = true;
            }
            _ => return any.then_some(out),
        }
    }
}

fn has_built_in(python: &Python, name: &str) -> bool {
    // `MODBUILT_NAMES` (3.8 on) may also name extensions; those were found as files before. The second list never
    // appears in it.
    const ALWAYS: [&str; 6] = ["sys", "builtins", "_imp", "marshal", "gc", "_warnings"];
    let names = python.build_builtins.get_or_init(|| {
        let names = build_variable(&python.system, &python.interpreter, "MODBUILT_NAMES").unwrap_or_default();
        names.split(u8::is_ascii_whitespace).filter(|n| !n.is_empty()).map(BString::from).collect()
    });
    ALWAYS.contains(&name) || names.iter().any(|n| n == name)
}

/// Mappings of setuptools' editable installs: `__editable___NAME_finder.py` beside the `.pth` file that installs it
/// holds a line `MAPPING: dict[str, str] = {'torch': '/home/me/pytorch/torch'}`. Read as text.
fn find_editable(python: &Python, name: &str) -> Option<Module> {
    let mappings = python.editable.get_or_init(|| editable_mappings(python));
    let (_, path) = mappings.iter().find(|(module, _)| module == name)?;
    let parent = crate::system::parent(path.as_bstr()).to_owned();
    let last = crate::system::file_name(path.as_bstr()).to_str().ok()?;
    let found = find_in(python, &[parent], last);
    (found != Module::Missing).then_some(found)
}

fn editable_mappings(python: &Python) -> Vec<(BString, BString)> {
    let mut out = Vec::new();
    for entry in python.path().iter().filter(|e| matches!(e.kind, EntryKind::Site | EntryKind::UserSite)) {
        let files = python.system.files.list(entry.directory.as_bstr()).unwrap_or_default();
        for file in files.iter().filter(|f| f.name.starts_with(b"__editable___") && f.name.ends_with(b"_finder.py")) {
            let path = join(entry.directory.as_bstr(), &file.name);
            let Ok(text) = python.system.read_small(path.as_bstr(), MAX_DATA) else { continue };
            let Some(line) = text.lines().find(|l| l.starts_with(b"MAPPING")) else { continue };
            let Some((_, mut rest)) = line.split_once_str("{") else { continue };
            // 'module': 'path', ...
            while let Some((key, after)) = literal(rest) {
                let Some((value, after)) = after.trim_ascii_start().strip_prefix(b":").and_then(literal) else { break };
                out.push((key.into(), value.into()));
                rest = after.trim_ascii_start().strip_prefix(b",").unwrap_or(b"");
            }
        }
    }
    out
}

/// A quoted literal at the start (after white space) and what follows it.
fn literal(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let text = text.trim_ascii_start();
    let quote = *text.first().filter(|b| matches!(b, b'\'' | b'"'))?;
    let end = memchr::memchr(quote, text.get(1..)?)? + 1;
    Some((&text[1..end], &text[end + 1..]))
}
