//! Which Python is audited, what is on its `sys.path`, and what is installed there?
//!
//! [`discover`] chooses the interpreter ([`find`], `pyenv`), asks it ([`ask`]) or reads its surroundings from files
//! (`layout`, `site`), and gives a [`Python`]: the interpreter with its search path, the distributions on it
//! ([`dist`]), modules by Python's import order ([`modules`]) and files by Python's `glob` ([`glob`]).
//!
//! Nothing found here is ever imported, and no code of the audited environment is run: not even what an ordinary
//! start runs from `.pth` files.

pub mod ask;
pub mod conda;
pub mod dist;
pub mod error;
mod extensions;
pub mod find;
pub mod glob;
pub mod imports;
mod layout;
pub mod modules;
mod pyenv;
mod record;
mod site;
pub mod torch;

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use bstr::{BStr, BString, ByteSlice};
use rustc_hash::{FxHashMap, FxHashSet};

pub use ask::Ask;
pub use dist::{Distribution, Installed, Installer, Owner};
pub use error::Error;
pub use find::{Choice, Looked};
pub use modules::{Found, Module};

use super::{Note, Source};
use crate::system::{Kind, System, join};

/// What to look for.
pub struct Request<'a> {
    /// What the user named: an interpreter, the directory of an environment, or a program name.
    pub named: Option<&'a BStr>,
    /// Runs the interpreter; `None` when nothing may be executed.
    pub ask: Option<&'a dyn Ask>,
    /// How long the interpreter may take to answer.
    pub limit: Duration,
}

/// Directories above a file in which its distribution is looked for.
const MAX_ABOVE: usize = 8;

/// Most `.pth` files of one directory that are looked into.
const MAX_PATH_FILES: usize = 500;

/// Time limit that is ample for an interpreter on a slow network disk.
pub const DEFAULT_LIMIT: Duration = Duration::from_secs(10);

/// A version of Python.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Version {
    /// 3
    pub major: u16,
    /// 11
    pub minor: u16,
    /// 7; unknown when only files could be read and none of them tells.
    pub micro: Option<u16>,
}

impl Version {
    /// True when this is before `major.minor`.
    pub fn older_than(self, major: u16, minor: u16) -> bool {
        (self.major, self.minor) < (major, minor)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)?;
        self.micro.map_or(Ok(()), |micro| write!(f, ".{micro}"))
    }
}

/// An interpreter and what an ordinary `python -c` has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Interpreter {
    /// `sys.executable`: the path as a user starts it, links kept.
    pub executable: BString,
    /// The program file that the kernel runs, all links resolved: the first image of the audited process.
    pub real_executable: BString,
    /// `sys.prefix`: the environment.
    pub prefix: BString,
    /// `sys.exec_prefix`.
    pub exec_prefix: BString,
    /// `sys.base_prefix`: the installation under the environment (equal to `prefix` without one).
    pub base_prefix: BString,
    /// `sys.base_exec_prefix`.
    pub base_exec_prefix: BString,
    /// `sys.implementation.name`, `cpython`.
    pub implementation: BString,
    /// `sys.version_info`.
    pub version: Version,
    /// `sys.abiflags`: `t` free-threaded, `d` debug, `m` up to 3.7.
    pub abiflags: BString,
    /// `sys.platlibdir`: `lib` or `lib64`.
    pub platlibdir: BString,
    /// `x86_64-linux-gnu` and the like.
    pub multiarch: Option<BString>,
    /// `importlib.machinery.EXTENSION_SUFFIXES`: endings of extension files in the order in which they are tried.
    pub extension_suffixes: Vec<BString>,
    /// `sys.builtin_module_names`; `None` when only files could be read.
    pub builtins: Option<Vec<BString>>,
    /// The interpreter's own library: zip file, directory, extensions.
    pub standard: Vec<BString>,
    /// `sys.path` of `python -c` in the audited environment, in order.
    pub path: Vec<Entry>,
    /// The user's own site directory.
    pub user_site: UserSite,
    /// How all this became known.
    pub known_by: KnownBy,
    /// What an ordinary start would do beyond this, and what could not be read.
    pub notes: Vec<Note>,
}

impl Interpreter {
    /// The ABI tag of extensions (`SOABI`), `cpython-311-x86_64-linux-gnu`.
    pub fn soabi(&self) -> Option<&BStr> {
        let suffix = self.extension_suffixes.first()?;
        let tag = suffix.strip_prefix(b".")?.strip_suffix(b".so")?;
        (!tag.is_empty() && !tag.starts_with(b"abi3")).then(|| tag.as_bstr())
    }

    /// The directory of the library's Python files (`sysconfig` path `stdlib`).
    pub fn library(&self) -> &BStr {
        self.standard.iter().find(|p| !p.ends_with(b".zip")).map_or(b"".as_bstr(), |p| p.as_bstr())
    }

    /// The directory where an installer puts packages (`sysconfig` paths `purelib` and `platlib`): the first site
    /// directory on the path.
    pub fn site_packages(&self) -> Option<&BStr> {
        self.path.iter().find(|e| e.kind == EntryKind::Site).map(|e| e.directory.as_bstr())
    }
}

/// How an interpreter's facts became known.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum KnownBy {
    /// The interpreter answered.
    Asked {
        /// `LD_…` and `PYTHON…` variables that the interpreter saw with another value than the audited environment
        /// has: a script in front of it sets them.
        environment: Vec<(BString, BString)>,
    },
    /// Files were read.
    Files,
}

/// The user's site directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UserSite {
    /// True when it is searched (if it exists).
    pub enabled: bool,
    /// Where it is or would be.
    pub directory: Option<BString>,
}

/// An entry of `sys.path`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// As Python has it: the empty string for the working directory.
    pub text: BString,
    /// The absolute directory (or zip file) that is meant.
    pub directory: BString,
    /// Why it is there.
    pub kind: EntryKind,
}

/// Why an entry is on `sys.path`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EntryKind {
    /// The working directory of `python -c`; a script has its own directory in this place.
    WorkingDirectory,
    /// From `PYTHONPATH`.
    PythonPath,
    /// The interpreter's library.
    Standard,
    /// The user's site directory.
    UserSite,
    /// `site-packages` or `dist-packages` of a prefix.
    Site,
    /// From a path line of a `.pth` file.
    Pth,
}

/// What kind of environment or installation an interpreter belongs to: for naming it to the user.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Environment {
    /// A virtual environment, with the tool that made it (`venv`, `virtualenv`, `uv`).
    Virtual(&'static str),
    /// An application environment of pipx.
    Pipx,
    /// A conda environment.
    Conda,
    /// A version installed by pyenv.
    Pyenv,
    /// A standalone build as uv and others download it.
    Standalone,
    /// The distribution's own.
    System,
    /// Any other installation.
    Plain,
}

impl fmt::Display for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Environment::Virtual("venv") => "virtual environment",
            Environment::Virtual("uv") => "virtual environment made by uv",
            Environment::Virtual(_) => "virtual environment made by virtualenv",
            Environment::Pipx => "pipx environment",
            Environment::Conda => "conda environment",
            Environment::Pyenv => "pyenv installation",
            Environment::Standalone => "standalone installation",
            Environment::System => "system installation",
            Environment::Plain => "installation",
        })
    }
}

/// The audited Python: interpreter, search path, what is installed. Answers are read when asked for and kept.
pub struct Python {
    /// Which interpreter, and why this one.
    pub choice: Choice,
    /// The interpreter.
    pub interpreter: Interpreter,
    /// Why asking failed, when the facts come from files for that reason.
    pub ask_failure: Option<Error>,
    system: System,
    distributions: OnceLock<dist::Distributions>,
    conda: OnceLock<conda::Packages>,
    build_builtins: OnceLock<Vec<BString>>,
    editable: OnceLock<Vec<(BString, BString)>>,
    searched: OnceLock<modules::Searched>,
    /// Names by directory.
    listings: Mutex<HashMap<BString, Arc<modules::Names>>>,
    /// By directory that is not on `sys.path`.
    beside: Mutex<FxHashMap<BString, Arc<dist::Distributions>>>,
    /// By name in full.
    code: Mutex<FxHashMap<String, Arc<imports::Code>>>,
    gone_sources: OnceLock<Vec<String>>,
}

/// A distribution that is on no path of the audited Python.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Beside {
    /// Its name.
    pub name: BString,
    /// Its version.
    pub version: BString,
    /// `Requires-Dist` lines as written.
    pub requires: Vec<BString>,
}

/// Finds the audited Python.
pub fn discover(system: &System, request: &Request<'_>) -> Result<Python, Error> {
    let mut choice = find::choose(system, request.named)?;
    let mut unresolved = None;
    match pyenv::inspect(system, choice.executable.as_bstr()) {
        Ok(pyenv::Program::Binary) => {}
        Ok(pyenv::Program::Unknown) => return Err(Error::NotExecutable { path: choice.executable }),
        Ok(pyenv::Program::Shim(real)) => choice.executable = real,
        Ok(pyenv::Program::Script(first_line)) => {
            unresolved = Some(Error::Script { path: choice.executable.clone(), first_line });
        }
        Err(error) => unresolved = Some(error),
    }
    let mut ask_failure = None;
    if let Some(ask) = request.ask {
        match ask::interpreter(system, choice.executable.as_bstr(), ask, request.limit) {
            Ok(interpreter) => return Ok(Python::new(system, choice, interpreter, None)),
            Err(error) => ask_failure = Some(error),
        }
    }
    if let Some(error) = unresolved {
        return Err(ask_failure.unwrap_or(error));
    }
    let mut notes = Vec::new();
    match layout::read(system, choice.executable.as_bstr(), &mut notes) {
        Ok(base) => Ok(Python::new(system, choice, site::complete(system, base, notes), ask_failure)),
        Err(error) => Err(ask_failure.unwrap_or(error)),
    }
}

impl Python {
    fn new(system: &System, choice: Choice, interpreter: Interpreter, ask_failure: Option<Error>) -> Python {
        Python {
            choice,
            interpreter,
            ask_failure,
            system: system.clone(),
            distributions: OnceLock::new(),
            conda: OnceLock::new(),
            build_builtins: OnceLock::new(),
            editable: OnceLock::new(),
            searched: OnceLock::new(),
            listings: Mutex::default(),
            beside: Mutex::default(),
            code: Mutex::default(),
            gone_sources: OnceLock::new(),
        }
    }

    /// Which place named this interpreter.
    pub fn source(&self) -> Source {
        self.choice.source
    }

    /// `sys.path` in order.
    pub fn path(&self) -> &[Entry] {
        &self.interpreter.path
    }

    /// What kind of environment this is.
    pub fn environment(&self) -> Environment {
        let interpreter = &self.interpreter;
        let has = |name: &str| self.system.exists(join(interpreter.prefix.as_bstr(), name).as_bstr());
        if has("conda-meta") {
            return Environment::Conda;
        }
        if interpreter.prefix != interpreter.base_prefix {
            if has("pipx_metadata.json") {
                return Environment::Pipx;
            }
            let config = join(interpreter.prefix.as_bstr(), "pyvenv.cfg");
            let text = self.system.read_small(config.as_bstr(), 64 * 1024).unwrap_or_default();
            let key = |wanted: &str| {
                text.lines().filter_map(|l| l.split_once_str("=")).any(|(k, _)| k.trim_ascii() == wanted.as_bytes())
            };
            return Environment::Virtual(match () {
                () if key("uv") => "uv",
                () if key("virtualenv") => "virtualenv",
                () => "venv",
            });
        }
        let prefix = interpreter.prefix.as_bstr();
        if prefix == "/usr" {
            return Environment::System;
        }
        let under = |name: &str| crate::system::file_name(crate::system::parent(prefix)) == name;
        let grandparent = crate::system::parent(crate::system::parent(prefix));
        if under("versions") && self.system.exists(join(grandparent, "shims").as_bstr()) {
            return Environment::Pyenv;
        }
        if crate::system::file_name(prefix).starts_with(b"cpython-") {
            return Environment::Standalone;
        }
        Environment::Plain
    }

    /// The distributions on `sys.path`, in its order.
    pub fn distributions(&self) -> &[Distribution] {
        &self.all().list
    }

    /// The distribution of that name (compared as PEP 503 says) that `importlib.metadata` would take: the first on
    /// `sys.path`.
    pub fn distribution(&self, name: &str) -> Option<&Distribution> {
        let name = dist::normalised_name(name.as_bytes());
        self.all().list.iter().find(|d| d.normalised == name)
    }

    /// The package that installed a file, given by any absolute path that leads to it.
    pub fn owner_of(&self, path: &BStr) -> Option<Owner<'_>> {
        if let Some(distribution) = self.all().owner_of(&self.system, &self.interpreter, path) {
            // For its name: the directory's spelling is not the one that users know.
            distribution.metadata(&self.system);
            return Some(Owner::Distribution(distribution));
        }
        let conda = self.conda.get_or_init(|| conda::Packages::list(&self.system, self.interpreter.prefix.as_bstr()));
        conda.owner_of(&self.system, path).map(Owner::Conda)
    }

    /// A package as its installer is told of it.
    pub fn installed(&self, owner: Owner<'_>) -> Installed {
        let by = match owner {
            Owner::Conda(_) => Installer::Conda,
            Owner::Distribution(distribution) => {
                let installer = distribution.metadata(&self.system).installer.as_ref();
                let of_system = distribution.location.starts_with(b"/usr/lib");
                match installer.map_or(b"".as_slice(), |text| text.as_slice()) {
                    b"conda" => Installer::Conda,
                    b"" | b"debian" | b"rpm" if of_system => Installer::System,
                    _ => Installer::Pip,
                }
            }
        };
        Installed { name: owner.name().into(), version: owner.version().into(), by }
    }

    /// The distribution that a file outside `sys.path` belongs to: one whose metadata lies in a directory above the file,
    /// as `pip install --target` and other environments have it. Directories of the system itself are not looked at.
    pub fn owner_beside(&self, path: &BStr) -> Option<Beside> {
        let path = crate::system::normalised(path);
        let of_system = ["/usr/", "/lib", "/bin/", "/sbin/"].iter().any(|d| path.starts_with(d.as_bytes()));
        if of_system && !path.contains_str("-packages/") {
            return None;
        }
        let mut directory = crate::system::parent(path.as_bstr());
        for _ in 0..MAX_ABOVE {
            if directory.len() < 2 {
                return None;
            }
            let known = self.beside.lock().ok()?.get(directory).cloned();
            let listed = match known {
                Some(listed) => listed,
                None => {
                    let entry = Entry { text: directory.into(), directory: directory.into(), kind: EntryKind::Pth };
                    let listed = Arc::new(dist::Distributions::list(&self.system, &[entry]));
                    self.beside.lock().ok()?.insert(directory.to_owned(), listed.clone());
                    listed
                }
            };
            if let Some(found) = listed.owner_of(&self.system, &self.interpreter, path.as_bstr()) {
                let requires = found.metadata(&self.system).requires.clone();
                let owner = Owner::Distribution(found);
                return Some(Beside { name: owner.name().into(), version: owner.version().into(), requires });
            }
            directory = crate::system::parent(directory);
        }
        None
    }

    /// Headers of a distribution's metadata, read at the first call.
    pub fn metadata<'a>(&self, distribution: &'a Distribution) -> &'a dist::Metadata {
        distribution.metadata(&self.system)
    }

    /// What is wrong with the `.pth` files of the site directories, as far as an ordinary start says so or passes over it.
    pub fn path_file_damage(&self) -> Vec<Note> {
        let interpreter = &self.interpreter;
        let of_files = |n: &&Note| n.act != "skip" && n.path.ends_with(b".pth");
        let mut out: Vec<Note> = interpreter.notes.iter().filter(of_files).cloned().collect();
        let is_nowhere = |module: &str| self.find_module(module).module == Module::Missing;
        for entry in self.path().iter().filter(|e| matches!(e.kind, EntryKind::Site | EntryKind::UserSite)) {
            let names = modules::names_in(self, entry.directory.as_bstr());
            let names = names.as_ref().iter().flatten();
            let mut names: Vec<&BString> = names.filter(|n| n.ends_with(b".pth") && !n.starts_with(b".")).collect();
            names.sort_unstable();
            for name in names.into_iter().take(MAX_PATH_FILES) {
                let file = join(entry.directory.as_bstr(), name);
                let found = site::damage(&self.system, file.as_bstr(), interpreter.version, &is_nowhere);
                out.extend(found);
            }
        }
        let mut seen: Vec<Note> = Vec::new();
        out.retain(|note| {
            let is_new = !seen.contains(note);
            seen.extend(is_new.then(|| note.clone()));
            is_new
        });
        out
    }

    /// Code that an ordinary start of this Python runs and that may change `sys.path`: lines of `.pth` files, `sitecustomize`.
    pub fn code_not_run(&self) -> Vec<Note> {
        site::code_not_run(&self.system, &self.interpreter.notes)
    }

    /// Notes that came up while reading what is installed (so far).
    pub fn notes(&self) -> Vec<Note> {
        let mut out = self.interpreter.notes.clone();
        if let Some(distributions) = self.distributions.get() {
            out.extend(distributions.notes());
        }
        out
    }

    /// True when a file lies in the directory that a distribution is installed in.
    pub fn is_beside(&self, distribution: &Distribution, path: &str) -> bool {
        self.system.exists(join(distribution.location.as_bstr(), path).as_bstr())
    }

    /// True when a package directory has neither a file `a/b.py` nor a package `a/b` in Python for a module `a.b` below it.
    pub fn is_no_source_below(&self, directory: &BStr, module: &str) -> bool {
        let path = join(directory, module.replace('.', "/"));
        let is_file = |ending: &str| {
            let file = BString::from([path.as_slice(), ending.as_bytes()].concat());
            self.system.stat(file.as_bstr()).is_ok_and(|meta| meta.kind == Kind::File)
        };
        !is_file(".py") && !is_file("/__init__.py")
    }

    /// True when the file list of a distribution has a path as written there, `sympy/__init__.py`.
    pub fn lists(&self, distribution: &Distribution, path: &str) -> bool {
        distribution.lists_as_written(&self.system, path)
    }

    /// True when a library that a distribution's file list has is not there.
    pub fn lacks_libraries(&self, distribution: &Distribution) -> bool {
        distribution.lacks_libraries(&self.system)
    }

    /// Looks a module up as `import` does.
    pub fn find_module(&self, name: &str) -> Found {
        modules::find(self, name)
    }

    /// What a module is and what its source imports for certain. Each is looked up and read once.
    pub fn code_of(&self, name: &str) -> Arc<imports::Code> {
        let locked = || self.code.lock().unwrap_or_else(|e| e.into_inner());
        let known = |name: &str| locked().get(name).cloned();
        if let Some(code) = known(name) {
            return code;
        }
        let parent = name.rsplit_once('.').and_then(|(package, _)| known(package));
        let code = Arc::new(imports::read(self, name, parent.as_ref().map(|p| &p.module)));
        locked().insert(name.to_owned(), code.clone());
        code
    }

    /// `os.path.realpath`; a path that leads nowhere stays as it is.
    pub fn real_path(&self, path: &BStr) -> BString {
        self.system.files.real_path(path).unwrap_or_else(|_| path.to_owned())
    }

    /// True when a module that is no file is put into `sys.modules` by the one in front of its last dot, in plain words: `os`
    /// does so with `os.path`.
    pub fn is_put_into_sys_modules(&self, name: &str) -> bool {
        let Some((parent, _)) = name.rsplit_once('.') else { return false };
        ["'", "\""].iter().any(|quote| self.source_has(parent, &format!("sys.modules[{quote}{name}{quote}] =")))
    }

    /// True when the source file of a module holds a text.
    pub fn source_has(&self, module: &str, text: &str) -> bool {
        imports::source_of(self, &self.find_module(module).module).is_some_and(|t| t.contains_str(text))
    }

    /// How many of the imports that [`code_of`](Python::code_of) gives of a package stand in front of a statement,
    /// written as a line of its own.
    pub fn certain_imports_before(&self, package: &str, statement: &str) -> usize {
        let text = imports::source_of(self, &self.find_module(package).module).unwrap_or_default();
        imports::count_before(text.as_bstr(), package, statement)
    }

    /// What a class of a module's own level takes at once from another module that is imported there: without it the
    /// first one cannot be run.
    pub fn takes_at_once(&self, module: &str, from: &str) -> Option<String> {
        let text = imports::source_of(self, &self.find_module(module).module)?;
        imports::taken_by_a_class(text.as_bstr(), from)
    }

    /// `glob.glob(pattern)` in the audited process, in the order in which Python gives the matches: the order of
    /// the directory itself, which is not sorted. A caller that takes the first of several matches depends on that
    /// order, which another copy of the same directory need not have.
    pub fn glob(&self, pattern: &BStr) -> Vec<BString> {
        glob::glob(&self.system, pattern)
    }

    /// Files of the directories in which wheels keep shared libraries, for one entry of `sys.path`: `nvidia/*/lib`
    /// and `<folder>/lib` for each given folder. Names in directory order.
    pub fn library_directories(&self, entry: &Entry, folders: &[&str]) -> Vec<LibraryDirectory> {
        let root = entry.directory.as_bstr();
        let nvidia = join(root, "nvidia");
        let mut wanted: Vec<BString> = Vec::new();
        for found in self.system.files.list_unsorted(nvidia.as_bstr()).unwrap_or_default() {
            if found.kind != Kind::File {
                wanted.push(join(b"nvidia".as_bstr(), &found.name));
            }
        }
        wanted.extend(folders.iter().map(|f| BString::from(*f)));
        wanted
            .into_iter()
            .filter_map(|folder| {
                let directory = join(join(root, &folder).as_bstr(), "lib");
                let names = self.system.files.list_unsorted(directory.as_bstr()).ok()?;
                Some(LibraryDirectory { folder, directory, names: names.into_iter().map(|e| e.name).collect() })
            })
            .collect()
    }

    /// What the installed torch says of itself, without importing it.
    pub fn torch(&self) -> Option<torch::Torch> {
        torch::read(self)
    }

    /// Which of some modules of Python's own library a file hides that lies in the working directory or on `PYTHONPATH`.
    pub fn hidden_modules<'m>(&self, wanted: impl Iterator<Item = &'m str>) -> Vec<(String, BString)> {
        /// Imported before a program's first line, ahead of the working directory.
        const AT_START: [&str; 9] = ["abc", "builtins", "codecs", "io", "os", "site", "stat", "sys", "zipimport"];
        let wanted: FxHashSet<&str> = wanted.filter_map(|module| module.split('.').next()).collect();
        let is_ahead = |e: &&Entry| matches!(e.kind, EntryKind::WorkingDirectory | EntryKind::PythonPath);
        let mut out: Vec<(String, BString)> = Vec::new();
        for entry in self.path().iter().take_while(|e| e.kind != EntryKind::Standard).filter(is_ahead) {
            let names = modules::names_in(self, entry.directory.as_bstr());
            let Some(names) = names.as_ref() else { continue };
            for module in names.iter().filter_map(|name| name.to_str().ok()?.split('.').next()) {
                let is_new = wanted.contains(module) && out.iter().all(|(known, _)| known != module);
                if !is_new || entry.kind == EntryKind::WorkingDirectory && AT_START.contains(&module) {
                    continue;
                }
                let file = match self.find_module(module).module {
                    Module::Package { init: file, .. } | Module::Source(file) | Module::Extension(file) => file,
                    Module::BuiltIn | Module::Namespace(_) | Module::Missing => continue,
                };
                let is_own = |directory: &BString| {
                    !modules::is_missing_in(self, std::slice::from_ref(directory), module)
                        && *directory != entry.directory
                };
                if file.starts_with(&entry.directory) && self.interpreter.standard.iter().any(is_own) {
                    out.push((module.to_owned(), file));
                }
            }
        }
        out.sort();
        out
    }

    /// What the torch that `import` takes lacks, when it is no installed one; `None` also where there is none at all.
    pub fn torch_lacks(&self) -> Option<torch::Lack> {
        torch::lacks(self)
    }

    /// Modules of the installed torch, in Python, that its list of files has and that are gone, as far as they lie in its
    /// upper directories. Reads that list at the first call.
    pub fn gone_sources_of_torch(&self) -> &[String] {
        self.gone_sources.get_or_init(|| torch::gone_sources(self))
    }

    /// The file name of the interpreter's shared library (`LDLIBRARY` of `sysconfig`), `libpython3.11.so`.
    pub fn shared_library(&self) -> Option<BString> {
        let value = modules::build_variable(&self.system, &self.interpreter, "LDLIBRARY")?;
        (!value.is_empty()).then(|| value.into())
    }

    fn all(&self) -> &dist::Distributions {
        self.distributions.get_or_init(|| dist::Distributions::list(&self.system, &self.interpreter.path))
    }
}

/// A directory with shared libraries of a wheel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LibraryDirectory {
    /// Folder below the entry of `sys.path`: `nvidia/cublas`.
    pub folder: BString,
    /// The directory itself, absolute: `…/nvidia/cublas/lib`.
    pub directory: BString,
    /// Names in it, in directory order.
    pub names: Vec<BString>,
}
