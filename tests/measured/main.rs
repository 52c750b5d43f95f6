//! Damaged and hostile input whose memory is measured: this program counts what is allocated, and runs one test at a
//! time, so that time and memory are each test's own. `cargo test --test measured mutants::` runs one file.

mod fuzz;
mod hostile_process;
mod hostile_symbols;
mod mutants;

/// Code that several test programs share.
#[path = "../support"]
mod support {
    pub mod elves;
    pub mod memory;
    pub mod random;
    pub mod sample;
    pub mod targets;
    pub mod texts;
}

use std::sync::{Mutex, MutexGuard};

use support::memory;

#[global_allocator]
static ALLOCATOR: memory::Counting = memory::Counting;

/// Every test here holds this while it runs.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(|e| e.into_inner())
}
