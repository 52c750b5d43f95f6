//! ldaudit says what the dynamic loader does, and why, and how to mend it.
//!
//! Data flows one way through the rooms of the house:
//!
//! ```text
//! system -> elf -> ld -> (discover -> recipe) -> findings -> render        only cli sees everything
//! ```
//!
//! Build a [`system::System`], open an [`ld::Process`] on it, feed it steps (`exec`, `dlopen`), then read the recorded
//! [`ld::Decision`]s. ARCHITECTURE.md says what each room answers and what it never does.

pub mod cli;
pub mod discover;
pub mod elf;
pub mod findings;
pub mod fixture;
pub mod ld;
pub mod recipe;
pub mod render;
pub mod system;
