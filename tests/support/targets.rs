//! The fuzz targets by name, and what each input may take. A crate that uses this has `elves`, `memory`, `sample` and
//! `texts` beside it, and counts memory ([`super::memory`]).

use std::time::{Duration, Instant};

use super::{elves, memory, texts};

/// A fuzz target.
pub struct Target {
    /// Its name, as in `cargo fuzz run NAME`.
    pub name: &'static str,
    /// What is done with an input; a panic is a finding.
    act: fn(&[u8]),
    /// What an input may hold in memory at once, in MiB.
    memory: usize,
}

/// All of them.
pub const TARGETS: [Target; 6] = [
    Target { name: "elf_facts", act: elves::facts, memory: 96 },
    Target { name: "ld_so_cache", act: texts::cache, memory: 64 },
    // A fixture may ask for 256 MiB of files; a tree is made while its parts still exist.
    Target { name: "fixture_language", act: texts::fixture, memory: 1024 },
    // The first byte says which file the others are.
    Target {
        name: "python_metadata",
        act: |data| {
            if let Some((kind, text)) = data.split_first() {
                texts::python(*kind, text);
            }
        },
        memory: 64,
    },
    Target { name: "ld_so_conf", act: texts::configuration, memory: 64 },
    Target { name: "process", act: elves::process, memory: 256 },
];

/// What one input may take: seconds are a hundred times what is usual.
const TIME: Duration = Duration::from_secs(if cfg!(fuzzing) { 5 } else { 20 });

/// Gives an input to a target.
pub fn run(name: &str, data: &[u8]) {
    let target = TARGETS.iter().find(|t| t.name == name).expect("a target of that name");
    let start = Instant::now();
    let ((), peak) = memory::peak_of(|| (target.act)(data));
    let took = start.elapsed();
    assert!(took < TIME, "{name} takes {took:?}");
    assert!(peak < target.memory << 20, "{name} takes {} MiB", peak >> 20);
}
