//! Which library was meant to define a symbol? The linker wrote it down for a symbol with a version; for the others it
//! is one of the NEEDED libraries, and another copy of it on the box tells which.

use std::sync::Arc;

use bstr::{BStr, BString, ByteSlice};
use rustc_hash::FxHashMap;

use super::torch;
use crate::elf::symbols::{Name, Table};
use crate::findings::loading::Knowledge;
use crate::findings::{Part, telltale, versions, words};
use crate::ld::{ImageId, Object, Process, Role, StepId, Unresolved};
use crate::system::FileKey;

/// Most other copies of one library that are looked at.
const MAX_COPIES: usize = 8;
/// Most files of the environment whose symbols are looked at for one process.
const MAX_FILES: usize = 4000;
/// Symbols of one file for which they are.
const MAX_SEARCHED: usize = 8;

/// Who was to define a symbol.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Meant {
    /// A loaded library, which does not.
    Library(ImageId),
    /// A loaded library of torch, for a file that is not torch's.
    Torch(ImageId),
    /// A loaded library defines it and is not in the scope.
    OutOfScope(ImageId),
    /// A file that is not loaded defines it.
    Elsewhere(BString),
    /// Nobody that is known.
    Nobody,
}

/// Another copy of a loaded library.
pub struct Other {
    /// Its path.
    pub path: BString,
    /// A place of the search order that holds it, in words, or that it is in none.
    pub place: String,
    /// Passed over, or in no search list.
    pub part: Part,
    /// The file.
    pub object: Arc<Object>,
}

impl Other {
    /// The copies of what one image got from another that were not taken: those that the search would have found, then
    /// those of the environment's packages.
    pub fn of(process: &Process, known: &Knowledge<'_>, provider: ImageId, asker: ImageId) -> Vec<Other> {
        let image = process.image(provider);
        let mut seen: Vec<FileKey> = vec![image.object.meta.key];
        let mut out: Vec<Other> = Vec::new();
        let mut add = |path: &BStr, place: String, part: Part| {
            let Ok(object) = process.store().open(path) else { return };
            if out.len() < MAX_COPIES && object.facts().is_some() && !seen.contains(&object.meta.key) {
                seen.push(object.meta.key);
                out.push(Other { path: path.to_owned(), place, part, object });
            }
        };
        for attempt in versions::losers(process, provider, Some(asker)) {
            add(attempt.path.as_bstr(), words::place(process, attempt.place), Part::Passed);
        }
        let mut names: Vec<&BStr> = image.soname().into_iter().collect();
        names.extend(image.names.iter().map(|n| n.as_bstr()).filter(|n| !n.contains(&b'/')));
        names.dedup();
        for name in names {
            for path in (known.copies)(name) {
                add(path.as_bstr(), "not where it is searched for".into(), Part::Present);
            }
        }
        out
    }
}

/// True when a table defines a name, in a version that is asked for or without any.
pub fn defines(table: &Table, name: &Name<'_>, version: Option<&BStr>) -> bool {
    table.view().may_have(name.gnu)
        && table.candidates(name).any(|s| {
            let fits = |wanted: &BStr| table.version_of(s.index).is_none_or(|v| v.name == wanted);
            s.is_definition() && version.is_none_or(fits)
        })
}

/// The loaded library that answers to a name, as it was while an image was loaded.
pub fn answering(process: &Process, name: &BStr, asker: ImageId) -> Option<ImageId> {
    let step = process.image(asker).step;
    present(process, step).find(|id| {
        let image = process.image(*id);
        image.name == name || image.soname() == Some(name) || image.names.iter().any(|n| n == name)
    })
}

/// The images that were there when a step ended, also where it failed and unloaded them again.
pub fn present(process: &Process, step: StepId) -> impl Iterator<Item = ImageId> {
    (0..process.images.len() as u32).map(ImageId).filter(move |id| {
        let image = process.image(*id);
        image.step <= step && image.unloaded_by.is_none_or(|s| s >= step)
    })
}

/// True for a name of Python's C interface.
pub fn is_of_python(symbol: &BStr) -> bool {
    let rest = symbol.strip_prefix(b"_").unwrap_or(symbol);
    rest.strip_prefix(b"Py").and_then(|r| r.first()).is_some_and(|b| b.is_ascii_uppercase() || *b == b'_')
}

/// True for the image that holds the Python interpreter.
pub fn is_interpreter(process: &Process, id: ImageId) -> bool {
    process.symbols(id).is_some_and(|s| s.table.defines(b"Py_IsInitialized"))
}

/// What is known of the references of one image.
pub struct Guide<'p> {
    process: &'p Process,
    known: &'p Knowledge<'p>,
    asker: ImageId,
    /// Each library that it needs, then the others of the process, with their other copies; found when first asked for.
    needs: Option<Vec<(ImageId, Vec<Other>)>>,
    interpreter: Option<Option<ImageId>>,
    torch: Option<torch::Libraries>,
    /// By name.
    answers: FxHashMap<BString, Meant>,
    searched: usize,
}

impl<'p> Guide<'p> {
    /// For the references of one image.
    pub fn new(process: &'p Process, known: &'p Knowledge<'p>, asker: ImageId) -> Guide<'p> {
        Guide {
            process,
            known,
            asker,
            needs: None,
            interpreter: None,
            torch: None,
            answers: FxHashMap::default(),
            searched: 0,
        }
    }

    /// How many symbols were asked about.
    pub fn asked(&self) -> usize {
        self.answers.len()
    }

    /// Who was to define it.
    pub fn meant(&mut self, u: &Unresolved) -> Meant {
        if let Some(known) = self.answers.get(&u.symbol) {
            return known.clone();
        }
        let found = self.find(u);
        self.answers.insert(u.symbol.clone(), found.clone());
        found
    }

    fn find(&mut self, u: &Unresolved) -> Meant {
        let name = Name::new(&u.symbol);
        let version = u.version.as_ref().map(|v| v.as_bstr());
        let written = u.version_file.as_ref().and_then(|file| answering(self.process, file.as_bstr(), self.asker));
        if let Some(provider) = written {
            let has = |id: ImageId| self.process.symbols(id).is_some_and(|s| defines(&s.table, &name, version));
            return if has(provider) { Meant::OutOfScope(provider) } else { Meant::Library(provider) };
        }
        if let Some(id) = self.loaded_with(&name, version) {
            // Another copy of it answered the request.
            let soname = self.process.image(id).soname();
            let mut needs = self.process.image(self.asker).needs.iter();
            let needed = needs.find(|n| soname.is_some() && self.process.image(**n).soname() == soname);
            return needed.map_or(Meant::OutOfScope(id), |needed| Meant::Library(*needed));
        }
        if is_of_python(u.symbol.as_bstr())
            && let Some(interpreter) = self.interpreter()
        {
            return Meant::Library(interpreter);
        }
        if let Some(id) = self.needed_with_other_copy(&name, version) {
            return Meant::Library(id);
        }
        if torch::is_of_torch(u.symbol.as_bstr()) {
            let (process, known, asker) = (self.process, self.known, self.asker);
            let libraries = self.torch.get_or_insert_with(|| torch::Libraries::of(process, known, asker));
            if let Some(provider) = libraries.provider(process, u.symbol.as_bstr()) {
                return Meant::Torch(provider);
            }
        }
        if let Some(known) = telltale::of_symbol(u.symbol.as_bstr()) {
            let stem = telltale::stem(known.library.into());
            let step = self.process.image(self.asker).step;
            let by_soname = |id: &ImageId| {
                let soname = self.process.image(*id).soname();
                soname.is_some_and(|s| s == known.library || telltale::stem(s) == stem)
            };
            if let Some(id) = present(self.process, step).find(by_soname) {
                return Meant::Library(id);
            }
        }
        self.in_the_environment(&name, version).unwrap_or(Meant::Nobody)
    }

    /// A loaded image that defines the name; it is not in the scope, or it would have answered.
    fn loaded_with(&self, name: &Name<'_>, version: Option<&BStr>) -> Option<ImageId> {
        let step = self.process.image(self.asker).step;
        present(self.process, step).find(|id| {
            self.process.image(*id).role != Role::Loader
                && *id != self.asker
                && self.process.symbols(*id).is_some_and(|s| defines(&s.table, name, version))
        })
    }

    fn interpreter(&mut self) -> Option<ImageId> {
        let (process, asker) = (self.process, self.asker);
        *self.interpreter.get_or_insert_with(|| {
            let step = process.image(asker).step;
            present(process, step).find(|id| is_interpreter(process, *id))
        })
    }

    /// A library of which another copy has the symbol: first those that the file needs, then all others, since what is
    /// looked up is looked up in them too.
    fn needed_with_other_copy(&mut self, name: &Name<'_>, version: Option<&BStr>) -> Option<ImageId> {
        let (process, known, asker) = (self.process, self.known, self.asker);
        let needs = self.needs.get_or_insert_with(|| {
            let needed = &process.image(asker).needs;
            let others = present(process, process.image(asker).step).filter(|id| *id != asker && !needed.contains(id));
            needed.iter().copied().chain(others).map(|id| (id, Other::of(process, known, id, asker))).collect()
        });
        let has =
            |other: &Other| process.store().symbols(&other.object).is_some_and(|s| defines(&s.table, name, version));
        needs.iter().find(|(_, others)| others.iter().any(has)).map(|(id, _)| *id)
    }

    /// A file of the environment's packages that has the symbol: another copy of something loaded, or something that
    /// is not loaded at all.
    fn in_the_environment(&mut self, name: &Name<'_>, version: Option<&BStr>) -> Option<Meant> {
        if self.searched >= MAX_SEARCHED {
            return None;
        }
        self.searched += 1;
        let process = self.process;
        let own = process.image(self.asker).object.meta.key;
        let mut found = None;
        for path in (self.known.libraries)().iter().take(MAX_FILES) {
            let Ok(object) = process.store().open(path.as_bstr()) else { continue };
            let has = || process.store().symbols(&object).is_some_and(|s| defines(&s.table, name, version));
            if object.facts().is_none() || object.meta.key == own || !has() {
                continue;
            }
            let soname = object.facts().and_then(|f| f.soname.as_ref());
            if let Some(loaded) = soname.and_then(|s| answering(process, s.as_bstr(), self.asker)) {
                return Some(Meant::Library(loaded));
            }
            // An extension module is nobody's library.
            if soname.is_some() {
                found.get_or_insert_with(|| Meant::Elsewhere(path.clone()));
            }
        }
        found
    }
}
