//! `import a.b.c` in Python's own order, also of modules that no recipe describes.
//!
//! `a` comes first, then `a.b`, then `a.b.c` (`importlib._bootstrap._find_and_load_unlocked`), each once. A framework
//! among them takes the steps of its recipe. Source is followed by the imports that it makes for certain
//! ([`crate::discover::python::imports`]). What else a module does when it is imported is not known, and the ending says
//! so. Therefore the failure of a package's extension is not held against the whole: the package may have prepared more
//! than can be read off. A framework, an extension that is itself the target and Python's own library are taken at
//! their word.

use bstr::{BStr, ByteSlice};

use super::{Absent, Doubtful, Ending, Exception, FRAMEWORKS, Session, operators};
use crate::discover::python::Module;
use crate::system::parent;

/// Most modules that one import is followed through.
const MAX_MODULES: usize = 20_000;
/// Deepest chain of imports that is followed; Python's own recursion limit ends at about as many.
const MAX_DEPTH: usize = 120;

/// Imports a module, its packages first.
pub fn import(session: &mut Session<'_>, target: &str) -> Ending {
    let module = session.python.code_of(target).module.clone();
    let mut follow = Follow {
        session,
        target,
        ending: Ending::default(),
        modules: 0,
        unread: 0,
        is_stranger: false,
        came_along: false,
    };
    follow.ending.exception = follow.dotted(target, 0, "").err();
    let mut tried = false;
    if let (Module::Package { directory, .. }, None) = (&module, &follow.ending.exception)
        && !FRAMEWORKS.contains(&target)
    {
        operators::later(follow.session, target);
        tried = follow.rest_of(directory.as_bstr());
    }
    follow.own_up(&module, tried);
    follow.ending
}

/// One import under way.
struct Follow<'s, 'a> {
    session: &'s mut Session<'a>,
    /// The module that the user names.
    target: &'s str,
    ending: Ending,
    /// Modules imported so far.
    modules: usize,
    /// Modules in Python whose code could not be read.
    unread: usize,
    /// The target bears the name of a framework and is none.
    is_stranger: bool,
    /// The target is an extension that a package of it had opened before its turn: nothing is left to be known.
    came_along: bool,
}

impl Follow<'_, '_> {
    /// `import a.b.c`; `by` is the module that does it, empty for the user.
    fn dotted(&mut self, name: &str, depth: usize, by: &str) -> Result<(), Exception> {
        let ends = name.match_indices('.').map(|(at, _)| at).chain([name.len()]);
        for end in ends {
            let part = &name[..end];
            if self.modules >= MAX_MODULES || depth >= MAX_DEPTH {
                return Ok(());
            }
            if !self.session.imported.insert(part.to_owned()) {
                continue;
            }
            self.modules += 1;
            if let Err(exception) = self.one(part, depth, by) {
                // A module whose import fails is taken out of sys.modules again.
                self.session.imported.remove(part);
                return Err(exception);
            }
        }
        Ok(())
    }

    /// Imports one module whose packages are there.
    fn one(&mut self, name: &str, depth: usize, by: &str) -> Result<(), Exception> {
        if FRAMEWORKS.contains(&name) {
            if let Some(Ending { exception, guess, lack, hidden, .. }) = super::framework(self.session, name) {
                self.guess(guess);
                self.ending.lack = lack;
                self.ending.hidden = hidden;
                return exception.map_or(Ok(()), Err);
            }
            self.ending.lack = self.session.python.torch_lacks();
            self.is_stranger |= name == self.target;
        }
        let code = self.session.python.code_of(name);
        match &code.module {
            Module::Extension(path) => self.extension(name, path.as_bstr(), by)?,
            Module::Package { init, .. } if !init.ends_with(b".py") && !init.ends_with(b".pyc") => {
                self.extension(name, init.as_bstr(), by)?;
            }
            // A module below another one may be no file at all: `os.path`, `six.moves`.
            Module::Missing if !name.contains('.') => {
                let package = by.split('.').next().unwrap_or_default();
                let may_be_provided = [package, by].iter().any(|m| self.session.python.code_of(m).may_provide_modules);
                self.ending.absent.push(Absent {
                    module: name.to_owned(),
                    by: by.to_owned(),
                    may_be_provided,
                    cure: None,
                });
            }
            _ => {}
        }
        self.unread += usize::from(!code.was_read);
        for import in &code.imports {
            let first = self.session.process.steps.len();
            let (absent, doubtful) = (self.ending.absent.len(), self.ending.doubtful.len());
            let mut result = self.dotted(&import.module, depth + 1, name);
            // `from a import b`: `b` may be a module below `a`.
            let of_package = !import.names.is_empty()
                && matches!(
                    self.session.python.code_of(&import.module).module,
                    Module::Package { .. } | Module::Namespace(_)
                );
            for below in import.names.iter().filter(|_| of_package) {
                let below = format!("{}.{below}", import.module);
                if result.is_ok() && self.session.python.code_of(&below).module != Module::Missing {
                    result = self.dotted(&below, depth + 1, name);
                }
            }
            let is_killed = |e: &Exception| e.step.is_some_and(|step| self.session.is_killed(step));
            if import.guarded && !result.as_ref().is_err_and(is_killed) {
                self.ending.absent.truncate(absent);
                self.ending.doubtful.truncate(doubtful);
                if result.is_err() {
                    for step in &mut self.session.process.steps[first..] {
                        step.optional = true;
                    }
                }
            } else {
                result?;
            }
        }
        operators::after_imports(self.session, name)
    }

    fn extension(&mut self, name: &str, path: &BStr, by: &str) -> Result<(), Exception> {
        if self.session.has_opened(path) || self.session.is_built_in(name) {
            self.came_along |= name == self.target;
            return Ok(());
        }
        let note = match by {
            "" if name == self.target => "the module itself".to_owned(),
            "" => "a package of the module".to_owned(),
            by => format!("imported by {by}"),
        };
        let certain = name == self.target || self.is_standard(path);
        let step = self.session.import_file(path, !certain, &note);
        if self.session.succeeded(step) {
            return Ok(());
        }
        if certain || self.session.is_killed(step) {
            return Err(self.session.exception("ImportError", step));
        }
        self.ending.doubtful.push(Doubtful { module: name.to_owned(), by: by.to_owned(), step });
        Ok(())
    }

    /// True for extensions of Python's own library.
    fn is_standard(&self, path: &BStr) -> bool {
        self.session.python.interpreter.standard.iter().any(|directory| *directory == parent(path))
    }

    /// Tries the other extension files of the target's package. Python code decides which of those are imported and
    /// when; that they can be loaded is what is tried, so each is an optional step. True when there are any.
    fn rest_of(&mut self, directory: &BStr) -> bool {
        let mut any = false;
        for path in self.session.python.extensions_below(directory) {
            if self.session.has_tried(path.as_bstr()) {
                continue;
            }
            any = true;
            self.session.import_file(path.as_bstr(), true, "an extension of the package");
        }
        any
    }

    /// Says what has not been followed.
    fn own_up(&mut self, module: &Module, tried: bool) {
        let target = self.target;
        let this = if self.is_stranger { format!("this `{target}`") } else { format!("`{target}`") };
        let text = match module {
            _ if FRAMEWORKS.contains(&target) && !self.is_stranger || self.came_along => return,
            Module::BuiltIn | Module::Namespace(_) | Module::Missing if !target.contains('.') => return,
            Module::Extension(path) if self.is_standard(path.as_bstr()) => return,
            Module::Extension(_) => {
                format!("no recipe describes `{target}`: what its own code imports or opens is not known")
            }
            _ => format!(
                "no recipe describes {this}: followed are the imports that its Python code makes outside of functions \
                 and conditions, not those of its extensions"
            ),
        };
        self.guess(Some(text));
        if tried {
            self.guess(Some("its other extension files are tried in name order".into()));
        }
        if self.unread > 0 {
            let modules = if self.unread == 1 { "module has" } else { "modules have" };
            self.guess(Some(format!("{} {modules} no source that can be read", self.unread)));
        }
        if self.modules >= MAX_MODULES {
            self.guess(Some(format!("it imports more than {MAX_MODULES} modules")));
        }
    }

    fn guess(&mut self, text: Option<String>) {
        let Some(text) = text else { return };
        match &mut self.ending.guess {
            Some(known) => *known = format!("{known}; {text}"),
            none => *none = Some(text),
        }
    }
}
