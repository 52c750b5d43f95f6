//! A fixture's files below a scratch directory.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use bstr::{BStr, ByteSlice};
use ldaudit::fixture::place::{Placed, Thing};
use ldaudit::fixture::{Exec, Fixture, Run, Step, What};

use super::{NOBODY, Real};

/// A scratch directory that is removed when dropped.
pub struct Scratch(pub PathBuf);

impl Scratch {
    /// A new empty directory.
    pub fn new(name: &str) -> io::Result<Scratch> {
        let name: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        let path = std::env::temp_dir().join(format!("ldaudit-oracle-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        Ok(Scratch(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Directories without permission would stop an ordinary user from removing what is in them.
        fn open_up(dir: &Path) {
            let _ = fs::set_permissions(dir, fs::Permissions::from_mode(0o755));
            for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
                if entry.file_type().is_ok_and(|t| t.is_dir()) {
                    open_up(&entry.path());
                }
            }
        }
        open_up(&self.0);
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Bytes as the system takes them.
pub(super) fn os(bytes: &BStr) -> OsString {
    OsString::from_vec(bytes.to_vec())
}

pub(super) fn on_disk(root: &Path, path: &BStr) -> PathBuf {
    root.join(os(path.trim_start_with(|c| c == '/').as_bstr()))
}

fn parents(root: &Path, path: &Path) -> io::Result<()> {
    let mut missing = Vec::new();
    let mut here = path.parent();
    while let Some(dir) = here.filter(|d| *d != root && !d.exists()) {
        missing.push(dir);
        here = dir.parent();
    }
    for dir in missing.into_iter().rev() {
        fs::create_dir(dir)?;
        give_away(dir)?;
    }
    Ok(())
}

/// Makes the unprivileged user the owner, so that permission bits of the owner count.
fn give_away(path: &Path) -> io::Result<()> {
    // SAFETY: no memory is involved.
    if unsafe { libc::geteuid() } == 0 {
        std::os::unix::fs::lchown(path, Some(NOBODY), Some(NOBODY))?;
    }
    Ok(())
}

pub(super) fn lay_out(root: &Path, fixture: &Fixture, real: &Real, runs: &[Run], files: &[Placed]) -> io::Result<()> {
    let named = |path: &str| files.iter().any(|f| f.path == path);
    for (path, source) in &real.files {
        let is_loader = path == real.loader.family.interpreter();
        if named(path) || !(is_loader || fixture.needs_libc()) {
            continue;
        }
        let target = on_disk(root, path.as_str().into());
        parents(root, &target)?;
        // A link costs nothing, but works on one file system only.
        if fs::hard_link(source, &target).is_err() {
            fs::copy(source, &target)?;
        }
    }
    fs::create_dir_all(root.join("proc"))?;
    let set_ids: Vec<&BStr> = runs
        .iter()
        .filter(|r| r.host.secure)
        .filter_map(|r| match r.steps.first().map(|s| &s.step) {
            Some(Step::Exec(Exec { path, .. })) => Some(path.as_bstr()),
            _ => None,
        })
        .collect();
    let set_id = |path: &BStr| set_ids.contains(&path);
    for Placed { path, what, .. } in files {
        let target = on_disk(root, path.as_bstr());
        parents(root, &target)?;
        match what {
            Thing::File { bytes, mode } => {
                let _ = fs::remove_file(&target);
                fs::write(&target, bytes)?;
                let mut mode = *mode;
                if set_id(path.as_bstr()) {
                    // It stays root's: started by another user it is a privileged program.
                    mode |= 0o4000;
                } else {
                    give_away(&target)?;
                }
                fs::set_permissions(&target, fs::Permissions::from_mode(mode))?;
            }
            Thing::Link(text) => {
                let _ = fs::remove_file(&target);
                std::os::unix::fs::symlink(os(text.as_bstr()), &target)?;
            }
            Thing::HardLink(existing) => fs::hard_link(on_disk(root, existing.as_bstr()), &target)?,
            Thing::Directory => {
                fs::create_dir_all(&target)?;
                give_away(&target)?;
            }
            Thing::Mode(_) => {}
        }
    }
    for statement in &fixture.statements {
        if let (What::Ldconfig(arguments), Some(ldconfig)) = (&statement.what, &real.ldconfig) {
            fs::create_dir_all(root.join("etc"))?;
            fs::create_dir_all(root.join("var/cache/ldconfig"))?;
            let status = Command::new(ldconfig)
                .arg("-r")
                .arg(root)
                .args(arguments.iter().map(|a| os(a.as_bstr())))
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status()?;
            if !status.success() {
                return Err(io::Error::other("ldconfig failed"));
            }
        }
    }
    for Placed { path, what, .. } in files {
        if let Thing::Mode(mode) = what {
            let target = on_disk(root, path.as_bstr());
            // Changing the owner clears set-user-ID, so this comes last.
            fs::set_permissions(&target, fs::Permissions::from_mode(*mode))?;
        }
    }
    Ok(())
}

/// A path inside the box with every link followed inside the box.
pub(super) fn resolve(root: &Path, path: &BStr) -> Option<PathBuf> {
    let live = ldaudit::system::Live::at_root(root.as_os_str().as_bytes().as_bstr()).ok()?;
    let real = ldaudit::system::Files::real_path(&live, path).ok()?;
    Some(on_disk(root, real.as_bstr()))
}
