//! The fixtures of the tree.

#![allow(dead_code)] // each test binary uses its own part

use std::path::{Path, PathBuf};

use ldaudit::fixture::Fixture;

/// The root of the source tree.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Every fixture below a directory of the tree, in order; there is at least one.
pub fn below(directory: &str) -> Vec<PathBuf> {
    let entries = walkdir::WalkDir::new(root().join(directory)).into_iter().map(|e| e.expect("a readable tree"));
    let mut out: Vec<PathBuf> =
        entries.map(|e| e.into_path()).filter(|p| p.extension().is_some_and(|e| e == "ld") && p.is_file()).collect();
    out.sort();
    assert!(!out.is_empty(), "no fixtures below {directory}");
    out
}

/// Every fixture.
pub fn all() -> Vec<PathBuf> {
    below("fixtures")
}

/// The name of a fixture: its path below `fixtures`, without the extension.
pub fn name_of(path: &Path) -> String {
    path.strip_prefix(root().join("fixtures")).unwrap_or(path).with_extension("").to_string_lossy().into_owned()
}

/// Reads a fixture, or tells all that is wrong with it.
pub fn read(path: &Path) -> Result<Fixture, String> {
    let text = std::fs::read(path).map_err(|e| format!("cannot read {}: {e}", path.display()))?;
    Fixture::parse(&text)
        .map_err(|problems| problems.iter().map(|p| format!("{}: {p}", path.display())).collect::<Vec<_>>().join("\n"))
}

/// Reads a fixture that must be sound.
#[track_caller]
pub fn sound(path: &Path) -> Fixture {
    read(path).unwrap_or_else(|problems| panic!("{problems}"))
}
