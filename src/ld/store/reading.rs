//! Symbols and references of files: read once for all processes, large ones ahead and by several threads.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, RwLock};

use bstr::ByteSlice;
use rayon::iter::{IntoParallelIterator, IntoParallelRefIterator, ParallelIterator};

use super::{Object, Store, read, write};
use crate::elf::ranges::Ranges;
use crate::elf::references::{Asked, Piece, PiecePlace, References, Unread};
use crate::elf::symbols::Table;

/// Bytes of relocations from which on a file is worth being read ahead.
const WORTH_READING_AHEAD: u64 = 64 << 10;

/// What a file defines and what it asks for.
pub struct Symbols {
    /// Its symbol tables, mapped.
    pub table: Table,
    /// What its relocations refer to.
    pub references: References,
    has_indirect: OnceLock<bool>,
    /// See [`Symbols::outward`].
    pub(in crate::ld) outward: OnceLock<Vec<(u32, Asked)>>,
}

impl Symbols {
    fn new(table: Table, references: References) -> Symbols {
        Symbols { table, references, has_indirect: OnceLock::new(), outward: OnceLock::new() }
    }

    /// Finds out what a check asks of each file.
    fn prepare_check(&self) {
        self.outward();
        self.has_indirect_functions();
    }

    /// True when some definition that others can bind to is an indirect function; looked for once.
    pub fn has_indirect_functions(&self) -> bool {
        *self.has_indirect.get_or_init(|| self.table.has_indirect_functions())
    }
}

/// How far the symbols of a file are read.
#[derive(Default)]
pub(super) struct Reading {
    symbols: OnceLock<Option<Symbols>>,
    /// What several threads read together; `None` for a file without symbols.
    shared: OnceLock<Option<Shared>>,
    /// Some thread reads them, or will.
    is_claimed: AtomicBool,
    /// They are read ahead, in a way in which others can help.
    is_shared: AtomicBool,
    /// Somebody asked for them; else they were read ahead at most.
    is_asked: AtomicBool,
}

impl Reading {
    /// What somebody asked for. What was only read ahead must not show: whether it was depends on the threads.
    pub(super) fn asked(&self) -> Option<&Symbols> {
        self.is_asked.load(Ordering::Relaxed).then(|| self.symbols.get()?.as_ref()).flatten()
    }
}

/// A large file's relocations, which every thread that wants them takes pieces of.
struct Shared {
    table: Mutex<Option<Table>>,
    /// Taken out when all pieces are read: whoever does that has to wait for those who still read.
    unread: RwLock<Option<Unread>>,
    places: Vec<PiecePlace>,
    /// Those that are read, with their places.
    pieces: Mutex<Vec<(usize, Piece)>>,
    /// The next piece that nobody has taken.
    next: AtomicUsize,
}

impl Shared {
    fn new(table: Table, unread: Unread) -> Shared {
        let places = unread.places();
        let (table, unread) = (Mutex::new(Some(table)), RwLock::new(Some(unread)));
        Shared { table, unread, places, pieces: Mutex::default(), next: AtomicUsize::new(0) }
    }

    /// Reads pieces until none is left to take.
    fn help(&self) {
        let unread = read(&self.unread);
        let Some(unread) = unread.as_ref() else { return };
        loop {
            let at = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(place) = self.places.get(at) else { return };
            let piece = unread.piece(place);
            lock(&self.pieces).push((at, piece));
        }
    }

    /// Puts the pieces together once all helpers are done; to be called once, by one that has helped.
    fn finish(&self) -> Option<Symbols> {
        let unread = write(&self.unread).take()?;
        let table = lock(&self.table).take()?;
        // All of them: a piece is taken and read under the lock that was waited for.
        let mut pieces = std::mem::take(&mut *lock(&self.pieces));
        pieces.sort_unstable_by_key(|(at, _)| *at);
        Some(Symbols::new(table, unread.finish(pieces.into_iter().map(|(_, piece)| piece).collect())))
    }
}

/// True for a file whose relocations are worth several threads.
fn is_large(object: &Object) -> bool {
    object.facts().is_some_and(|facts| {
        let d = &facts.dynamic;
        // Those at the front that name no symbol are not read.
        let rela = d.rela_size.map(|size| {
            let relative = d.rela_count.unwrap_or(0).saturating_mul(d.rela_entry_size.unwrap_or(0));
            size.saturating_sub(relative)
        });
        let sizes = [d.rel_size, rela, d.plt_relocation_size];
        sizes.into_iter().flatten().fold(0, u64::saturating_add) >= WORTH_READING_AHEAD
    })
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

impl Store {
    /// The symbols and references of a file, read when they are first asked for. `None` for one without symbols, and for
    /// one that is not the file any more that was opened.
    pub fn symbols<'o>(&self, object: &'o Object) -> Option<&'o Symbols> {
        object.reading.is_asked.store(true, Ordering::Relaxed);
        self.symbols_of(object)
    }

    /// What is being read ahead is read on together.
    fn symbols_of<'o>(&self, object: &'o Object) -> Option<&'o Symbols> {
        let reading = &object.reading;
        let find = || {
            if !reading.is_shared.load(Ordering::Acquire) {
                let (table, unread) = self.find_symbols(object)?;
                return Some(Symbols::new(table, unread.read()));
            }
            let shared = self.shared(object)?;
            shared.help();
            shared.finish()
        };
        if reading.symbols.get().is_none()
            && reading.is_shared.load(Ordering::Acquire)
            && let Some(shared) = self.shared(object)
        {
            // One of those who help puts it together, and the others wait for that alone.
            shared.help();
        }
        reading.symbols.get_or_init(find).as_ref()
    }

    fn shared<'o>(&self, object: &'o Object) -> Option<&'o Shared> {
        let find = || self.find_symbols(object).map(|(table, unread)| Shared::new(table, unread));
        object.reading.shared.get_or_init(find).as_ref()
    }

    /// Lets another thread read what [`Store::symbols`] gives of a file while its process is still being put together, when
    /// that is worth it. `checks_only` as for [`Store::read_symbols`].
    pub(crate) fn read_ahead(self: &Arc<Store>, object: &Arc<Object>, checks_only: bool) {
        if !is_large(object) || object.reading.is_claimed.load(Ordering::Relaxed) || rayon::current_num_threads() < 2 {
            return;
        }
        let (store, object) = (self.clone(), object.clone());
        rayon::spawn(move || {
            let reading = &object.reading;
            if reading.symbols.get().is_some() || reading.is_claimed.swap(true, Ordering::Relaxed) {
                return;
            }
            reading.is_shared.store(true, Ordering::Release);
            let symbols = store.symbols_of(&object);
            if let Some(symbols) = symbols.filter(|_| checks_only) {
                symbols.prepare_check();
            }
        });
    }

    fn find_symbols(&self, object: &Object) -> Option<(Table, Unread)> {
        let facts = object.facts()?;
        let file = self.system.open(object.opened_as.as_bstr()).ok()?;
        if file.meta.key != object.meta.key {
            return None;
        }
        let mut ranges = Ranges::new(&file, facts);
        let table = Table::of(&mut ranges, facts)?;
        let unread = Unread::find(&mut ranges, facts, table.room(), table.end());
        Some((table, unread.reading(file)))
    }

    /// Reads what [`Store::symbols`] gives of many files on several threads, each large file's parts too. No thread waits for
    /// another while it holds a place in an object: work that it takes on meanwhile may ask for the same one.
    /// `checks_only`: nobody wants to know who wins, so that some more is worth finding out here.
    pub(crate) fn read_symbols(&self, objects: &[&Object], checks_only: bool) {
        for object in objects {
            object.reading.is_asked.store(true, Ordering::Relaxed);
        }
        // What another thread is at is left to it as long as there is something else to do.
        let (new, begun): (Vec<&Object>, Vec<&Object>) = objects
            .iter()
            .copied()
            .filter(|object| object.reading.symbols.get().is_none())
            .partition(|object| !object.reading.is_claimed.swap(true, Ordering::Relaxed));
        let (large, small): (Vec<&Object>, Vec<&Object>) = new.into_iter().partition(|object| is_large(object));
        let read = |object: &&Object| {
            if let Some(symbols) = self.symbols_of(object).filter(|_| checks_only) {
                symbols.prepare_check();
            }
        };
        for object in &large {
            object.reading.is_shared.store(true, Ordering::Release);
            (0..rayon::current_num_threads()).into_par_iter().for_each(|_| _ = self.symbols_of(object));
        }
        small.par_iter().chain(&large).for_each(read);
        for object in begun {
            // Who read it ahead begins with the other question of a check.
            if let Some(symbols) = self.symbols(object).filter(|_| checks_only) {
                symbols.has_indirect_functions();
            }
        }
    }
}
