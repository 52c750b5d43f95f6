//! Many targets on several threads, with the answers in the order of the questions.

use std::sync::OnceLock;

use rayon::ThreadPoolBuilder;
use rayon::iter::{IntoParallelRefIterator, ParallelIterator};

/// The threads of one run; none is started before there is work for two.
pub struct Threads {
    wanted: Option<u16>,
    ready: OnceLock<usize>,
}

impl Threads {
    /// As many as asked for, or one for each processor that this process may use.
    pub fn new(wanted: Option<u16>) -> Threads {
        Threads { wanted, ready: OnceLock::new() }
    }

    /// Starts the threads; to be called before work that can use several of them. Gives their number.
    pub fn start(&self) -> usize {
        *self.ready.get_or_init(|| {
            let count = match self.wanted {
                Some(count) => usize::from(count).max(1),
                None => std::thread::available_parallelism().map_or(1, usize::from),
            };
            // The thread that asks does its share, so that one fewer is started. Where a pool is there already, as in a
            // test that makes several runs, that one serves.
            match ThreadPoolBuilder::new().num_threads(count).use_current_thread().build_global() {
                Ok(()) => count,
                Err(_) => rayon::current_num_threads(),
            }
        })
    }

    /// Applies a function to each item. The answers stand in the order of the items, whichever thread gave them.
    pub fn map<T: Sync, R: Send>(&self, items: &[T], f: impl Fn(&T) -> R + Sync + Send) -> Vec<R> {
        match items.len() > 1 && self.start() > 1 {
            true => items.par_iter().map(f).collect(),
            false => items.iter().map(f).collect(),
        }
    }
}
