//! The ELF files of this machine's system.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use bstr::ByteSlice;
use ldaudit::elf::{Facts, Layout, Reader};
use ldaudit::system::System;

const PROGRAMS: &str = "/usr/bin";
const LIBRARIES: &[&str] = &["/usr/lib", "/usr/lib64", "/lib", "/lib64", "/usr/local/lib"];

/// The ELF files: programs with the links to them, libraries without.
pub fn files() -> Vec<PathBuf> {
    let mut out: Vec<PathBuf> = list(Path::new(PROGRAMS)).into_iter().filter(|p| is_elf(p)).collect();
    let mut pending: Vec<PathBuf> = Vec::new();
    for directory in LIBRARIES.iter().filter_map(|d| Path::new(d).canonicalize().ok()) {
        if !pending.iter().any(|p| directory.starts_with(p)) {
            pending.push(directory);
        }
    }
    while let Some(directory) = pending.pop() {
        for path in list(&directory) {
            match fs::symlink_metadata(&path) {
                Ok(meta) if meta.is_dir() => pending.push(path),
                Ok(meta) if meta.is_file() && is_elf(&path) => out.push(path),
                _ => {}
            }
        }
    }
    out.sort();
    out.dedup();
    out
}

fn list(directory: &Path) -> Vec<PathBuf> {
    fs::read_dir(directory).into_iter().flatten().flatten().map(|e| e.path()).collect()
}

fn head(path: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    if fs::metadata(path).is_ok_and(|m| m.is_file()) {
        let _ = File::open(path).and_then(|f| f.take(64).read_to_end(&mut bytes));
    }
    bytes
}

fn is_elf(path: &Path) -> bool {
    head(path).starts_with(b"\x7fELF")
}

/// What the loader would read of a file in this machine's own layout.
pub fn facts(path: &Path) -> Option<Facts> {
    let system = System::live();
    let file = system.open(path.as_os_str().as_bytes().as_bstr()).ok()?;
    let mut reader = Reader::new(&file);
    let layout = Layout::of_ident(reader.range(0, 64).ok()?)?;
    Facts::read(&mut reader, layout)
}
