//! Seeded random environments for the differential tests: what users do to LD_LIBRARY_PATH and LD_PRELOAD, at random.
//!
//! The same seed, pools and current directory give the same environment on every machine and in every version of Rust,
//! so a failure is repeated by its seed.

#![allow(dead_code)] // each test binary uses its own part

use bstr::{BStr, BString, ByteSlice};
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

pub use super::random::Random;

/// What the environments are drawn from.
#[derive(Clone, Debug, Default)]
pub struct Pools {
    /// Directories for LD_LIBRARY_PATH.
    pub library_dirs: Vec<PathBuf>,
    /// Libraries for LD_PRELOAD.
    pub libraries: Vec<PathBuf>,
}

impl Pools {
    /// Every directory below the given roots (virtualenvs, system directories) that holds at least one file with `.so` in
    /// its name, and those files. Sorted, so that the order of the disk does not matter. Symbolic links to directories
    /// are not followed; Python's own extension directories are left out, for they hold no library anyone asks for.
    pub fn below(roots: &[PathBuf]) -> io::Result<Pools> {
        let mut pools = Pools::default();
        for root in roots {
            pools.walk(root)?;
        }
        pools.library_dirs.sort();
        pools.library_dirs.dedup();
        pools.libraries.sort();
        pools.libraries.dedup();
        Ok(pools)
    }

    fn walk(&mut self, dir: &Path) -> io::Result<()> {
        let mut has_library = false;
        for entry in std::fs::read_dir(dir)? {
            let entry = entry?;
            let kind = entry.file_type()?;
            let name = entry.file_name();
            let name = name.as_bytes();
            if kind.is_dir() {
                self.walk(&entry.path())?;
            } else if name.starts_with(b"lib") && name.contains_str(".so") {
                has_library = true;
                self.libraries.push(entry.path());
            }
        }
        if has_library {
            self.library_dirs.push(dir.to_path_buf());
        }
        Ok(())
    }
}

/// One environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RandomEnv {
    /// What it was made from.
    pub seed: u64,
    /// LD_LIBRARY_PATH, if it is set.
    pub ld_library_path: Option<BString>,
    /// LD_PRELOAD, if it is set.
    pub ld_preload: Option<BString>,
}

impl RandomEnv {
    /// The environment of this seed. `cwd` is the directory that the program will be started in: relative elements are
    /// spelled from there.
    pub fn new(seed: u64, pools: &Pools, cwd: &Path) -> RandomEnv {
        let mut random = Random::new(seed);
        let ld_library_path = random.chance(92).then(|| library_path(&mut random, pools, cwd));
        let ld_preload = random.chance(30).then(|| preload(&mut random, pools));
        RandomEnv { seed, ld_library_path, ld_preload }
    }

    /// The variables as a list, for a child process.
    pub fn variables(&self) -> Vec<(OsString, OsString)> {
        let named = |name: &str, value: &Option<BString>| {
            value.as_ref().map(|value| (OsString::from(name), OsString::from_vec(value.to_vec())))
        };
        [named("LD_LIBRARY_PATH", &self.ld_library_path), named("LD_PRELOAD", &self.ld_preload)]
            .into_iter()
            .flatten()
            .collect()
    }
}

/// One to five elements with a separator between each two, either of which the loader accepts.
fn library_path(random: &mut Random, pools: &Pools, cwd: &Path) -> BString {
    let mut text = BString::default();
    for at in 0..1 + random.below(5) {
        if at > 0 {
            text.push(if random.chance(20) { b';' } else { b':' });
        }
        text.extend_from_slice(&element(random, pools, cwd));
    }
    text
}

fn element(random: &mut Random, pools: &Pools, cwd: &Path) -> BString {
    let dir = random.pick(&pools.library_dirs).cloned().unwrap_or_else(|| PathBuf::from("/usr/lib"));
    let dir = dir.as_os_str().as_bytes().as_bstr().to_owned();
    match random.below(100) {
        0..=61 => dir,
        62..=71 => slashes(random, dir),
        72..=81 => relative(cwd, dir.as_bstr()),
        82..=88 => BString::default(),
        89..=93 => BString::from(format!("/nonexistent/ldaudit-{}", random.below(3))),
        94..=96 => BString::from(*random.pick(&["no-such-dir", ".", "..", "./"]).unwrap_or(&".")),
        _ => inner(random, dir),
    }
}

/// Slashes at the end, which the loader trims.
fn slashes(random: &mut Random, mut dir: BString) -> BString {
    for _ in 0..1 + random.below(3) {
        dir.push(b'/');
    }
    dir
}

/// The same directory with a detour in the middle, which the loader keeps as it is.
fn inner(random: &mut Random, dir: BString) -> BString {
    let detour = *random.pick(&["//", "/./", "/../"]).unwrap_or(&"//");
    match (dir.rfind_byte(b'/'), detour) {
        (Some(cut), "/../") => BString::from([&dir[..], b"/..", &dir[cut..]].concat()),
        (Some(cut), detour) => BString::from([&dir[..cut], detour.as_bytes(), &dir[cut + 1..]].concat()),
        (None, _) => dir,
    }
}

/// The directory as seen from `cwd`, for two absolute paths without `..`.
pub fn relative(cwd: &Path, dir: &BStr) -> BString {
    let from: Vec<&[u8]> = cwd.as_os_str().as_bytes().split_str("/").filter(|part| !part.is_empty()).collect();
    let to: Vec<&[u8]> = dir.split_str("/").filter(|part| !part.is_empty()).collect();
    let shared = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
    let mut parts: Vec<&[u8]> = vec![b".."; from.len() - shared];
    parts.extend_from_slice(&to[shared..]);
    if parts.is_empty() { BString::from(".") } else { BString::from(parts.join(&b"/"[..])) }
}

/// One or two names: full paths, bare names (which are searched), and names of nothing.
fn preload(random: &mut Random, pools: &Pools) -> BString {
    let mut text = BString::default();
    for at in 0..1 + random.below(2) {
        if at > 0 {
            text.push(if random.chance(50) { b' ' } else { b':' });
        }
        let library = random.pick(&pools.libraries).cloned();
        let name = match (random.below(100), library) {
            (0..=54, Some(path)) => BString::from(path.as_os_str().as_bytes()),
            (55..=79, Some(path)) => path.file_name().map_or_else(BString::default, |name| name.as_bytes().into()),
            (80..=89, _) => BString::from("/nonexistent/libldaudit-none.so"),
            _ => BString::from("libldaudit-none.so.1"),
        };
        text.extend_from_slice(&name);
    }
    text
}
