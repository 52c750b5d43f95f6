//! The tests that need no process of their own, in one program: linking the library into thirty programs takes longer
//! than compiling it. `cargo test --test all why::` runs one file; each says itself what it judges.

mod architecture;
mod cache;
mod cli_errors;
mod compiled;
mod damaged;
mod damaged_python;
mod demo;
mod findings;
mod hostile_elf;
mod hostile_texts;
mod incomplete_roots;
mod ld_debug;
mod man;
mod many_targets;
mod privileged;
mod python;
mod random_graphs;
mod schema;
mod screens;
mod symbol_findings;
mod why;
mod why_symbol;

/// Code that several test programs share.
#[path = "../support"]
mod support {
    pub mod bindings;
    pub mod cached;
    pub mod case;
    pub mod drawn;
    pub mod fixtures;
    pub mod fresh;
    pub mod ld_debug;
    pub mod oracle;
    pub mod random;
    pub mod random_env;
    pub mod random_graph;
    pub mod real;
    pub mod require;
    pub mod sample;
    pub mod strict;
    pub mod texts;
}
