//! In which steps does a framework load its libraries?
//!
//! A recipe is code, because the conditions upstream are code: it feeds a [`Process`] step by step and looks at how each
//! step ended. It opens no files itself; what is installed comes from [`crate::discover`].

pub mod constructors;
pub mod follow;
mod operators;
pub mod prerequisites;
pub mod table;
pub mod torch;

use bstr::{BStr, BString, ByteSlice};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::discover::python::torch::Lack;
use crate::discover::python::{Installed, Module, Python};
use crate::elf::symbols;
use crate::ld::{Family, ImageId, OpenFlags, OpenRequest, Outcome, Process, Start, StepId, StepKind};
use crate::system::join;

/// How a recipe ended.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Ending {
    /// The exception that the user sees, when it fails.
    pub exception: Option<Exception>,
    /// Why the recipe is a guess for this version, when it is one.
    pub guess: Option<String>,
    /// Modules that are imported for certain and that are not found.
    pub absent: Vec<Absent>,
    /// Extensions that are imported for certain and that do not load by what is known.
    pub doubtful: Vec<Doubtful>,
    /// What the torch that was found lacks, when it is no installed one.
    pub lack: Option<Lack>,
    /// Modules of Python's own library that torch imports and that a file elsewhere hides.
    pub hidden: Vec<(String, BString)>,
}

/// An extension whose load failed as it was simulated. Its package may prepare the load in a way that is not followed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Doubtful {
    /// Its name in full.
    pub module: String,
    /// The module whose source imports it.
    pub by: String,
    /// The failed step.
    pub step: StepId,
}

/// A module that is nowhere on `sys.path`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Absent {
    /// Its name.
    pub module: String,
    /// The module whose source imports it.
    pub by: String,
    /// True when the package of that module changes where modules are found.
    pub may_be_provided: bool,
    /// What brings it back, when that is known.
    pub cure: Option<Cure>,
}

/// What brings a module back.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Cure {
    /// Its distribution is not installed: the requirement in the form that pip takes, `sympy>=1.13.3`.
    Install(String),
    /// Its distribution is installed and lists a file that is gone.
    Reinstall(Installed),
}

/// A Python exception.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Exception {
    /// `ImportError`, `OSError`, `ValueError`, ...
    pub class: &'static str,
    /// Its text.
    pub text: BString,
    /// The step that raised it.
    pub step: Option<StepId>,
    /// The module whose absence raised it.
    pub absent: Option<Box<Absent>>,
}

impl Exception {
    /// One that no step stands behind.
    pub fn new(class: &'static str, text: impl Into<BString>) -> Exception {
        Exception { class, text: text.into(), step: None, absent: None }
    }
}

/// A Python process that a recipe drives.
pub struct Session<'a> {
    /// The simulated process.
    pub process: &'a mut Process,
    /// The environment.
    pub python: &'a Python,
    seen_images: usize,
    /// Symbol table of the image that holds the interpreter, once it was asked for.
    init_functions: Option<Option<symbols::Table>>,
    /// `sys.modules`, as far as it is known: names of modules whose import has begun and did not fail.
    imported: FxHashSet<String>,
    /// Files of extensions that were opened, and whether that succeeded the last time.
    extensions: FxHashMap<BString, bool>,
}

impl<'a> Session<'a> {
    /// Starts the interpreter. The step fails when the interpreter itself cannot start.
    pub fn start(process: &'a mut Process, python: &'a Python) -> (Session<'a>, StepId) {
        let program = python.interpreter.real_executable.clone();
        let argv0 = python.interpreter.executable.clone();
        let step = process.exec(program.as_bstr(), argv0.as_bstr(), Start::Kernel);
        process.steps[step.index()].note = "the interpreter starts".into();
        let seen_images = process.images.len();
        let session = Session {
            process,
            python,
            seen_images,
            init_functions: None,
            imported: FxHashSet::default(),
            extensions: FxHashMap::default(),
        };
        (session, step)
    }

    /// True when a step did not fail.
    pub fn succeeded(&self, step: StepId) -> bool {
        self.process.steps[step.index()].outcome != Outcome::Failed
    }

    /// True when a step ended the process by a signal, or made it wait: nothing of Python is run after it.
    pub fn is_killed(&self, step: StepId) -> bool {
        self.process.steps[step.index()].failure.as_ref().is_some_and(|f| f.is_the_end())
    }

    /// The image whose code opens extensions: libpython where the interpreter is linked against it, else the program.
    pub fn interpreter_image(&self) -> ImageId {
        self.loaded_named(|name| name.starts_with(b"libpython3") || name.starts_with(b"libpython2"))
            .unwrap_or(ImageId(0))
    }

    /// The image whose code makes ctypes' `dlopen`: the `_ctypes` extension, or the interpreter when it is built in.
    pub fn ctypes_image(&self) -> ImageId {
        self.loaded_named(|name| name.starts_with(b"_ctypes.")).unwrap_or_else(|| self.interpreter_image())
    }

    fn loaded_named(&self, test: impl Fn(&BStr) -> bool) -> Option<ImageId> {
        (0..self.process.images.len() as u32).map(ImageId).find(|id| {
            self.process.is_loaded(*id) && test(crate::system::file_name(self.process.image(*id).name.as_bstr()))
        })
    }

    /// `ctypes.CDLL(path)`: always RTLD_NOW.
    pub fn cdll(&mut self, path: &BStr, global: bool, optional: bool, note: &str) -> StepId {
        let caller = self.ctypes_image();
        self.open(path, OpenFlags { global, ..OpenFlags::default() }, caller, StepKind::Dlopen, optional, note)
    }

    /// Imports an extension module by name, if it is one: the interpreter opens its file, ordinarily with
    /// RTLD_NOW | RTLD_LOCAL. `None` when the module is built in, pure Python or absent: nothing is loaded then.
    pub fn import_with(&mut self, module: &str, flags: OpenFlags, optional: bool, note: &str) -> Option<StepId> {
        if self.is_built_in(module) {
            return None;
        }
        match self.python.find_module(module).module {
            Module::Extension(path) => {
                let caller = self.interpreter_image();
                Some(self.open(path.as_bstr(), flags, caller, StepKind::Import, optional, note))
            }
            Module::BuiltIn | Module::Package { .. } | Module::Source(_) | Module::Namespace(_) | Module::Missing => {
                None
            }
        }
    }

    /// True when the image that holds the interpreter has the module built in: it exports `PyInit_MODULE`. That image is
    /// the one the simulation mapped, which LD_LIBRARY_PATH may have exchanged for another Python's.
    fn is_built_in(&mut self, module: &str) -> bool {
        if module.contains('.') {
            return false;
        }
        let image = self.interpreter_image();
        let process = &self.process;
        let table = self.init_functions.get_or_insert_with(|| {
            let object = &process.image(image).object;
            let file = process.store().system().open(object.opened_as.as_bstr()).ok()?;
            symbols::Table::open(&file, object.facts()?)
        });
        table.as_ref().is_some_and(|t| t.defines(format!("PyInit_{module}").as_bytes()))
    }

    /// True when the interpreter itself said which modules it has built in: a module that is then nowhere is no module.
    fn knows_what_is_built_in(&self) -> bool {
        self.python.interpreter.builtins.is_some()
    }

    /// Imports an extension by its file.
    pub fn import_file(&mut self, path: &BStr, optional: bool, note: &str) -> StepId {
        let caller = self.interpreter_image();
        self.open(path, OpenFlags::default(), caller, StepKind::Import, optional, note)
    }

    /// True when an extension file was imported: the next import of it finds the module in `sys.modules` and opens
    /// nothing.
    fn has_opened(&self, path: &BStr) -> bool {
        self.extensions.get(path).is_some_and(|succeeded| *succeeded)
    }

    /// True when the import of an extension file was tried, whatever came of it.
    fn has_tried(&self, path: &BStr) -> bool {
        self.extensions.contains_key(path)
    }

    /// One `dlopen`, followed by what the constructors of newly loaded libraries are known to open.
    pub fn open(
        &mut self,
        name: &BStr,
        flags: OpenFlags,
        caller: ImageId,
        kind: StepKind,
        optional: bool,
        note: &str,
    ) -> StepId {
        let request =
            OpenRequest { name: name.to_owned(), flags, caller: Some(caller), kind, optional, note: note.into() };
        let step = self.process.dlopen(&request);
        if kind == StepKind::Import {
            let succeeded = self.succeeded(step);
            self.extensions.insert(name.to_owned(), succeeded);
        }
        self.run_constructors();
        step
    }

    /// What newly loaded images open in their constructors. Dependencies run first, so the images of a step are taken from
    /// the last one loaded to the first.
    fn run_constructors(&mut self) {
        let new = self.seen_images..self.process.images.len();
        self.seen_images = self.process.images.len();
        for index in new.rev() {
            self.run_opens(ImageId(index as u32), constructors::When::Constructor);
        }
    }

    /// What loaded images open while `torch._C` is initialised.
    pub fn run_module_init(&mut self) {
        for index in 0..self.process.images.len() {
            self.run_opens(ImageId(index as u32), constructors::When::ModuleInit);
        }
    }

    fn run_opens(&mut self, id: ImageId, when: constructors::When) {
        if !self.process.is_loaded(id) || self.process.dialect().family != Family::Glibc {
            return;
        }
        let python = self.python;
        let version_of = |package: &str| -> Option<Vec<u64>> {
            let version = python.distribution(package)?.version.to_str().ok()?.to_owned();
            Some(table::numbers(&version))
        };
        for open in constructors::opened_by(self.process.image(id), when, &version_of) {
            self.process.dlopen(&OpenRequest {
                name: open.name.into(),
                flags: OpenFlags { lazy: true, ..OpenFlags::default() },
                caller: Some(id),
                kind: StepKind::Dlopen,
                optional: true,
                note: open.note,
            });
        }
        // What these bring has constructors of its own.
        if self.seen_images < self.process.images.len() {
            self.run_constructors();
        }
    }

    /// The exception that a failed step raises.
    pub fn exception(&self, class: &'static str, step: StepId) -> Exception {
        let text = self.process.steps[step.index()].error.clone().unwrap_or_default();
        Exception { step: Some(step), ..Exception::new(class, text) }
    }

    /// The first match of a pattern over `sys.path`: for each entry the given places (directories below it) in order, and
    /// of the matches in a directory the first that it yields, as `glob.glob(...)[0]` takes it.
    pub fn first_on_path(&self, places: &[String], pattern: &str, only_with_nvidia: bool) -> Option<BString> {
        self.python.path().iter().find_map(|entry| {
            if only_with_nvidia && self.python.glob(join(entry.directory.as_bstr(), "nvidia").as_bstr()).is_empty() {
                return None;
            }
            places.iter().find_map(|place| {
                let directory = join(entry.directory.as_bstr(), place);
                self.python.glob(join(directory.as_bstr(), pattern).as_bstr()).into_iter().next()
            })
        })
    }
}

/// Frameworks that have a recipe.
pub const FRAMEWORKS: &[&str] = &["torch"];

/// Imports a module: Python's packages first, frameworks by their recipes, everything else as far as its source shows.
pub fn import(session: &mut Session<'_>, module: &str) -> Ending {
    follow::import(session, module)
}

/// The recipe of one of [`FRAMEWORKS`]. `None` where what is found by that name is something that has no libraries: then
/// its source tells what it does.
fn framework(session: &mut Session<'_>, name: &str) -> Option<Ending> {
    match name {
        "torch" => torch::import(session),
        _ => None,
    }
}
