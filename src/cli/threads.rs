//! Many targets on several threads, with the answers in the order of the questions.

use std::sync::OnceLock;

use rayon::iter::{IntoParallelRefIterator, ParallelIterator};
use rayon::{ThreadPool, ThreadPoolBuilder};

/// The threads of one run; none is started before there is work for two.
pub struct Threads {
    wanted: Option<u16>,
    pool: OnceLock<Option<ThreadPool>>,
}

impl Threads {
    /// As many as asked for, or one for each processor that this process may use.
    pub fn new(wanted: Option<u16>) -> Threads {
        Threads { wanted, pool: OnceLock::new() }
    }

    /// Applies a function to each item. The answers stand in the order of the items, whichever thread gave them.
    pub fn map<T: Sync, R: Send>(&self, items: &[T], f: impl Fn(&T) -> R + Sync + Send) -> Vec<R> {
        let pool = if items.len() > 1 { self.pool.get_or_init(|| self.start()).as_ref() } else { None };
        match pool {
            Some(pool) => pool.install(|| items.par_iter().map(f).collect()),
            None => items.iter().map(f).collect(),
        }
    }

    /// The pool; `None` for a single thread, and where no thread can be started.
    fn start(&self) -> Option<ThreadPool> {
        let count = match self.wanted {
            Some(count) => usize::from(count),
            None => std::thread::available_parallelism().map_or(1, usize::from),
        };
        // The thread that asks does its share, so that one fewer is started.
        (count > 1).then(|| ThreadPoolBuilder::new().num_threads(count).use_current_thread().build().ok()).flatten()
    }
}
