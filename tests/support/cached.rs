//! Where the big things of the tests are kept, which `tests/make-roots` and `tests/make-boxes` make: outside the tree, in
//! `$LDAUDIT_CACHE`, by default `ldaudit` in the user's cache directory.

#![allow(dead_code)] // each test binary uses its own part

use std::path::PathBuf;

/// The directory that holds everything.
pub fn directory() -> PathBuf {
    let variable = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    variable("LDAUDIT_CACHE").unwrap_or_else(|| {
        let cache = variable("XDG_CACHE_HOME").or_else(|| variable("HOME").map(|h| h.join(".cache")));
        cache.unwrap_or_else(|| PathBuf::from("/var/cache")).join("ldaudit")
    })
}

/// Foreign roots, each with a C library of another release.
pub fn roots() -> Vec<PathBuf> {
    below("roots", "lib64")
}

/// Python environments.
pub fn boxes() -> Vec<PathBuf> {
    below("boxes", "bin/python")
}

fn below(kind: &str, holds: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory().join(kind)).into_iter().flatten().flatten();
    let mut out: Vec<PathBuf> = entries.map(|e| e.path()).filter(|p| p.join(holds).exists()).collect();
    out.sort();
    out
}
