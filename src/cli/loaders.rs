//! The loaders of one run, each read once: its rules, its cache, and the files as it sees them.
//!
//! Hundreds of targets of one command share what they have in common; they can be planned on several threads.

use std::borrow::Cow;
use std::sync::{Arc, RwLock};

use bstr::{BString, ByteSlice};

use super::Error;
use super::args::{Args, Format};
use super::audit::dialect_for;
use super::threads::Threads;
use crate::elf::{Facts, Layout};
use crate::ld::{Dialect, Family, LoadedCache, Store};
use crate::system::{Host, System};

/// What decides which loader a program or library is meant for.
struct Key {
    interpreter: BString,
    layout: Layout,
    machine: u16,
    /// `e_flags`: on ARM the loader's usual path depends on them.
    flags: u32,
}

/// One loader with what was read for it.
pub struct Loader {
    /// Its rules.
    pub dialect: Arc<Dialect>,
    /// Its cache; musl has none.
    pub cache: Option<Arc<LoadedCache>>,
    /// Files, remembered.
    pub store: Arc<Store>,
}

/// The loaders met so far, on one audited system.
pub struct Loaders<'a> {
    /// The arguments of the run.
    pub args: &'a Args,
    /// The audited system.
    pub system: &'a System,
    /// Its host data, shared.
    pub host: Arc<Host>,
    /// The threads of the run.
    pub threads: Threads,
    known: RwLock<Vec<(Key, Arc<Loader>)>>,
}

impl<'a> Loaders<'a> {
    /// Nothing is read yet.
    pub fn new(args: &'a Args, system: &'a System) -> Loaders<'a> {
        let threads = Threads::new(args.threads);
        Loaders { args, system, host: Arc::new(system.host.clone()), threads, known: RwLock::default() }
    }

    /// The loader that a file is meant for.
    pub fn of(&self, facts: &Facts) -> Result<Arc<Loader>, Error> {
        let interpreter = match &facts.interpreter {
            Some(interpreter) => Cow::Borrowed(interpreter.as_bstr()),
            None => Cow::Owned(Dialect::usual_loader(facts)),
        };
        let fits = |key: &Key| {
            key.interpreter == *interpreter
                && (key.layout, key.machine, key.flags) == (facts.layout, facts.header.machine, facts.header.flags)
        };
        let find = |known: &[(Key, Arc<Loader>)]| known.iter().find(|(k, _)| fits(k)).map(|(_, l)| l.clone());
        if let Some(loader) = find(&self.known.read().unwrap_or_else(|e| e.into_inner())) {
            return Ok(loader);
        }
        // Under the lock: another thread that wants the same one waits for it.
        let mut known = self.known.write().unwrap_or_else(|e| e.into_inner());
        if let Some(loader) = find(&known) {
            return Ok(loader);
        }
        let dialect = dialect_for(self.args, self.system, facts, interpreter.as_ref())?;
        let mut store = Store::new(self.system.clone(), facts.layout, dialect.family == Family::Musl);
        if self.args.format == Format::Ldd {
            store = store.with_late_real_paths();
        }
        let cache = (dialect.family == Family::Glibc)
            .then(|| Arc::new(LoadedCache::read(self.system, &dialect, self.args.assume_ldconfig)));
        let loader = Arc::new(Loader { dialect: Arc::new(dialect), cache, store: Arc::new(store) });
        let key = Key {
            interpreter: interpreter.into_owned(),
            layout: facts.layout,
            machine: facts.header.machine,
            flags: facts.header.flags,
        };
        known.push((key, loader.clone()));
        Ok(loader)
    }
}
