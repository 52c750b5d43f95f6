//! pyenv's shims: scripts on `PATH` that run the interpreter of a version chosen by a variable or a file.
//!
//! Followed by the rules of pyenv 2.4 to 2.6 (`pyenv-version-name`, `pyenv-version-file`, `pyenv-version-file-read`,
//! `pyenv-latest`, `pyenv-which`), since a start through the shim costs ten times as much as the answer.

use bstr::{BStr, BString, ByteSlice};

use super::error::Error;
use super::find::on_path;
use crate::system::{Kind, System, file_name, join, parent};

/// What lies at an interpreter's path.
pub(super) enum Program {
    /// A program file (or something unreadable, which the loader will complain about).
    Binary,
    /// Neither an ELF file nor a script. (A shell would run it as a script of its own.)
    Unknown,
    /// A pyenv shim and the interpreter it runs.
    Shim(BString),
    /// Another script, with its first line.
    Script(BString),
}

/// Tells shims and other scripts from programs, and follows shims.
pub(super) fn inspect(system: &System, path: &BStr) -> Result<Program, Error> {
    let mut head = [0u8; 4096];
    let n = system.open(path).and_then(|file| file.read_at(0, &mut head)).unwrap_or(0);
    let text = &head[..n];
    if !text.starts_with(b"#!") {
        let program = text.is_empty() || text.starts_with(b"\x7fELF");
        return Ok(if program { Program::Binary } else { Program::Unknown });
    }
    if text.find("pyenv").is_some() && text.find("exec").is_some() && file_name(parent(path)) == "shims" {
        return follow(system, path, text).map(Program::Shim);
    }
    let first_line = text.lines().next().unwrap_or(b"");
    Ok(Program::Script(first_line[..first_line.len().min(80)].into()))
}

fn follow(system: &System, shim: &BStr, text: &[u8]) -> Result<BString, Error> {
    let program = file_name(shim);
    let root = text
        .lines()
        .find_map(|line| line.strip_prefix(b"export PYENV_ROOT="))
        .map(|value| value.trim_with(|c| c == '"' || c == '\'').as_bstr())
        .or_else(|| system.host.env.get("PYENV_ROOT"))
        .unwrap_or(parent(parent(shim)));
    let (versions, wanted_by) = wanted(system, root);
    for version in &versions {
        let path = if version == "system" {
            on_path(system, program, Some(join(root, "shims").as_bstr())).map(|(_, path)| path)
        } else {
            installed(system, root, version.as_bstr())
                .map(|prefix| join(join(prefix.as_bstr(), "bin").as_bstr(), program))
        };
        if let Some(path) = path.filter(|path| is_program(system, path.as_bstr())) {
            return Ok(path);
        }
    }
    if let Some((_, path)) = on_path(system, program, Some(join(root, "shims").as_bstr())) {
        return Ok(path);
    }
    let version = versions.into_iter().next().unwrap_or_else(|| "system".into());
    Err(Error::ShimWithoutVersion { shim: shim.to_owned(), version, wanted_by })
}

/// The versions asked for, in order, and what asks for them.
fn wanted(system: &System, root: &BStr) -> (Vec<BString>, BString) {
    let env = &system.host.env;
    let from_variable: Vec<BString> = env
        .get("PYENV_VERSION")
        .map(|value| value.split_str(":").filter(|v| !v.is_empty()).map(BString::from).collect())
        .unwrap_or_default();
    if !from_variable.is_empty() {
        return (from_variable, "PYENV_VERSION".into());
    }
    let start = env.get("PYENV_DIR").filter(|d| !d.is_empty()).unwrap_or(system.host.cwd.as_bstr());
    let file = local_file(system, start)
        .or_else(|| local_file(system, system.host.cwd.as_bstr()))
        .unwrap_or_else(|| join(root, "version"));
    let mut versions = Vec::new();
    if let Ok(text) = system.read_small(file.as_bstr(), 64 * 1024) {
        for line in text.lines() {
            let word = line.fields_with(|c| matches!(c, ' ' | '\t' | '\r')).next().unwrap_or(b"");
            // A version that leads out of the versions directory is refused by pyenv too.
            if !word.is_empty() && !word.starts_with(b"#") && word != b".." && !word.contains(&b'/') {
                versions.push(BString::from(word));
            }
        }
    }
    if versions.is_empty() {
        versions.push("system".into());
    }
    (versions, file)
}

fn local_file(system: &System, start: &BStr) -> Option<BString> {
    let mut directory = system.absolute(start);
    loop {
        let file = join(directory.as_bstr(), ".python-version");
        if system.files.stat(file.as_bstr()).is_ok_and(|m| m.kind == Kind::File) {
            return Some(file);
        }
        if directory == "/" || directory.is_empty() {
            return None;
        }
        directory = parent(directory.as_bstr()).to_owned();
    }
}

/// The directory of an installed version; `3.11` stands for the newest 3.11, and `python-3.11` for `3.11`.
fn installed(system: &System, root: &BStr, version: &BStr) -> Option<BString> {
    let versions = join(root, "versions");
    let plain = version.strip_prefix(b"python-").unwrap_or(version).as_bstr();
    let exact = |name: &BStr| {
        let path = join(versions.as_bstr(), name);
        system.is_dir(path.as_bstr()).then_some(path)
    };
    if let Some(path) = exact(version).or_else(|| exact(plain)) {
        return Some(path);
    }
    let (stem, threads) = match plain.strip_suffix(b"t") {
        Some(stem) if stem.last().is_some_and(u8::is_ascii_digit) => (stem.as_bstr(), true),
        _ => (plain, false),
    };
    let mut best: Option<(Vec<u64>, BString)> = None;
    for entry in system.files.list(versions.as_bstr()).ok()? {
        let Some(rest) = entry.name.strip_prefix(stem.as_bytes()) else { continue };
        let released = matches!(rest.first(), Some(b'.' | b'-')) && !is_preview(entry.name.as_bstr());
        let free_threaded =
            entry.name.ends_with(b"t") && entry.name.len() > 1 && { entry.name[entry.name.len() - 2].is_ascii_digit() };
        if !released || free_threaded != threads {
            continue;
        }
        let key: Vec<u64> = entry
            .name
            .split(|b| !b.is_ascii_digit())
            .filter(|part| !part.is_empty())
            .map(|part| part.to_str().ok().and_then(|s| s.parse().ok()).unwrap_or(0))
            .collect();
        if best.as_ref().is_none_or(|(k, _)| key > *k) {
            best = Some((key, entry.name));
        }
    }
    exact(best?.1.as_bstr())
}

/// Alpha, beta, candidate, development and source versions are never the newest of a line.
fn is_preview(name: &BStr) -> bool {
    let digits = name.iter().rev().take_while(|b| b.is_ascii_digit()).count();
    let before = &name[..name.len() - digits];
    name.ends_with(b"-dev")
        || name.ends_with(b"-src")
        || name.ends_with(b"-latest")
        || digits > 0 && (before.ends_with(b"a") || before.ends_with(b"b") || before.ends_with(b"rc"))
}

fn is_program(system: &System, path: &BStr) -> bool {
    system.files.stat(path).is_ok_and(|m| m.kind == Kind::File && m.mode & 0o111 != 0)
}
