//! The fuzz targets. What they do with an input is shared with the tests of the package above (`tests/measured/fuzz.rs`).

#[path = "../../tests/support/elves.rs"]
pub mod elves;
#[path = "../../tests/support/memory.rs"]
pub mod memory;
#[path = "../../tests/support/sample.rs"]
pub mod sample;
#[path = "../../tests/support/targets.rs"]
pub mod targets;
#[path = "../../tests/support/texts.rs"]
pub mod texts;

pub use targets::run;

#[global_allocator]
static ALLOCATOR: memory::Counting = memory::Counting;
