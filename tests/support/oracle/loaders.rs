//! The real loaders of this machine, with the files that a process of theirs needs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use bstr::ByteSlice;
use ldaudit::fixture::place::LIBRARY_DIRECTORY;
use ldaudit::fixture::{Family, Loader, Version};

use super::super::cached;

/// A real loader with the files that a process of it needs.
pub struct Real {
    /// Which one it is.
    pub loader: Loader,
    /// Its files by their place in the box.
    pub(super) files: Vec<(String, PathBuf)>,
    /// Its ldconfig, where it has one.
    pub(super) ldconfig: Option<PathBuf>,
    /// How a process gets into the box.
    pub(super) entry: Entry,
}

impl Real {
    #[allow(dead_code)] // not every test binary asks
    /// The loader's own files: where they lie in a box, and where on this machine.
    pub fn files(&self) -> &[(String, PathBuf)] {
        &self.files
    }
}

/// How to enter a box.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Entry {
    /// As root: mount namespace and chroot, then another user.
    Root,
    /// As another user: user and mount namespace.
    UserNamespace,
}

/// Finds out whether and how a box can be entered.
fn entry() -> Result<Entry, String> {
    // SAFETY: no memory is involved.
    if unsafe { libc::geteuid() } == 0 {
        return Ok(Entry::Root);
    }
    let probe = Command::new("unshare").args(["-rm", "true"]).stderr(Stdio::null()).status();
    match probe {
        Ok(status) if status.success() => Ok(Entry::UserNamespace),
        _ => Err("neither root nor user namespaces: boxes cannot be entered".into()),
    }
}

/// All loaders of this machine: its own glibc, musl, and the glibc of each foreign root; or why one is not usable.
pub fn loaders() -> Vec<Result<Real, String>> {
    let entry = match entry() {
        Ok(entry) => entry,
        Err(why) => return vec![Err(why)],
    };
    let mut out = vec![glibc_of(Path::new("/"), entry)];
    out.push(musl(entry));
    out.extend(cached::roots().iter().map(|root| glibc_of(root, entry)));
    // The same release twice asks nothing new.
    let mut seen: Vec<Loader> = Vec::new();
    out.retain(|real| match real {
        Ok(real) if seen.contains(&real.loader) => false,
        Ok(real) => {
            seen.push(real.loader);
            true
        }
        Err(_) => true,
    });
    out
}

/// A file of a root, with links that are absolute in that root followed by hand.
fn inside(root: &Path, path: &str) -> Option<PathBuf> {
    let mut here = root.join(path.trim_start_matches('/'));
    for _ in 0..40 {
        let parent = here.parent()?.canonicalize().ok()?;
        here = parent.join(here.file_name()?);
        match fs::read_link(&here) {
            Ok(target) if target.is_absolute() => here = root.join(target.strip_prefix("/").ok()?),
            Ok(target) => here = parent.join(target),
            Err(_) => return here.is_file().then_some(here),
        }
    }
    None
}

fn glibc_of(root: &Path, entry: Entry) -> Result<Real, String> {
    let name = root.display();
    let interpreter = Family::Glibc.interpreter();
    let loader = inside(root, interpreter).ok_or_else(|| format!("no {interpreter} in {name}"))?;
    let built_in = fs::read(&loader).map_err(|e| format!("cannot read the loader of {name}: {e}"))?;
    if built_in.find(format!("{LIBRARY_DIRECTORY}/")).is_none() {
        return Err(format!("the loader of {name} is not one of Debian's: other built-in directories"));
    }
    let libc_path = format!("{LIBRARY_DIRECTORY}/libc.so.6");
    let libc = inside(root, &libc_path).ok_or_else(|| format!("no {libc_path} in {name}"))?;
    let text = fs::read(&libc).map_err(|e| format!("cannot read libc of {name}: {e}"))?;
    let version = release(&text).ok_or_else(|| format!("no release number in libc of {name}"))?;
    let mut files = vec![(interpreter.to_owned(), loader), (libc_path, libc)];
    if version < Version([2, 34, 0]) {
        let path = format!("{LIBRARY_DIRECTORY}/libdl.so.2");
        let file = inside(root, &path).ok_or_else(|| format!("no {path} in {name}"))?;
        files.push((path, file));
    }
    let ldconfig = inside(root, "/sbin/ldconfig");
    Ok(Real { loader: Loader { family: Family::Glibc, version }, files, ldconfig, entry })
}

/// `... release version 2.36.` in libc.
fn release(libc: &[u8]) -> Option<Version> {
    let start = libc.find("GNU C Library")?;
    let text = libc.get(start..start + 200)?;
    let (_, number) = text.split_once_str("release version ")?;
    let end = number.iter().position(|b| !b.is_ascii_digit() && *b != b'.')?;
    let mut parts =
        number.get(..end)?.trim_end_with(|c| c == '.').split_str(".").map(|p| p.to_str().ok()?.parse().ok());
    Some(Version([parts.next()??, parts.next()??, 0]))
}

fn musl(entry: Entry) -> Result<Real, String> {
    let interpreter = Family::Musl.interpreter();
    let file = inside(Path::new("/"), interpreter).ok_or("musl is not installed (Debian's package `musl`)")?;
    // Without arguments the loader prints its release.
    let output = Command::new(&file).output().map_err(|e| format!("cannot run musl: {e}"))?;
    let text = output.stderr.to_str_lossy().into_owned();
    let number = text.lines().find_map(|l| l.strip_prefix("Version ")).ok_or("musl tells no release")?;
    let mut parts = [0; 3];
    for (place, part) in parts.iter_mut().zip(number.trim().split('.')) {
        *place = part.parse().map_err(|_| format!("odd musl release {number}"))?;
    }
    let loader = Loader { family: Family::Musl, version: Version(parts) };
    Ok(Real { loader, files: vec![(interpreter.into(), file)], ldconfig: None, entry })
}
