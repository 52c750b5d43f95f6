//! Where is the interpreter's own library? Read from files alone, by the rules of CPython's start
//! (`Modules/getpath.py` since 3.11, `Modules/getpath.c` before; 3.6 to 3.15).
//!
//! What is compiled into the interpreter cannot be seen from here: where no landmark is found above the executable,
//! CPython falls back on its build prefix, and this room reports [`Error::NoLibrary`].

use bstr::{BStr, BString, ByteSlice};

use super::Version;
use super::error::Error;
use crate::discover::Note;
use crate::system::{Kind, System, absolute, file_name, join, normalised, parent};

/// What CPython knows before `site` runs.
#[derive(Clone, Debug)]
pub(super) struct Base {
    pub executable: BString,
    pub real_executable: BString,
    pub version: Version,
    /// `t` for a free-threaded build, which has its own library directory.
    pub threads: &'static str,
    /// The library directory name, `lib` or `lib64`.
    pub platlibdir: BString,
    pub prefix: BString,
    pub exec_prefix: BString,
    /// Zip file, library, extensions.
    pub standard: Vec<BString>,
    /// The virtual environment that the executable lies in.
    pub venv: Option<Venv>,
}

/// A virtual environment's `pyvenv.cfg`.
#[derive(Clone, Debug)]
pub(super) struct Venv {
    pub prefix: BString,
    pub home: BString,
    /// Value of `include-system-site-packages` is `true`.
    pub system_site: bool,
    pub version: Option<Version>,
}

/// Longest `pyvenv.cfg` that is read.
const MAX_CONFIG: u64 = 64 * 1024;

impl Base {
    /// `pythonX.Y` with the `t` of a free-threaded build.
    pub fn library_name(&self) -> String {
        library_name(self.version, self.threads)
    }
}

fn library_name(version: Version, threads: &str) -> String {
    format!("python{}.{}{threads}", version.major, version.minor)
}

/// Reads what surrounds the interpreter at `executable`.
pub(super) fn read(system: &System, executable: &BStr, notes: &mut Vec<Note>) -> Result<Base, Error> {
    let failed = |why: String| Error::NoLibrary { path: executable.to_owned(), why };
    let real_executable = system.files.real_path(executable).unwrap_or_else(|_| executable.to_owned());
    let home = system.host.env.get("PYTHONHOME").filter(|v| !v.is_empty()).map(BStr::to_owned);
    // PYTHONHOME overrides the environment's home, but `site` reads the environment all the same.
    let venv = venv(system, executable, notes);
    let file = file_name(real_executable.as_bstr());
    let named = named_version(file);
    let keeps_dots = named.is_some_and(|(version, _)| version.older_than(3, 11));
    let resolved = follow_file_links(system, executable, keeps_dots);
    let start = match &venv {
        Some(venv) if home.is_none() => venv.home.clone(),
        _ => parent(resolved.as_bstr()).to_owned(),
    };
    if named.is_none() && file.starts_with(b"pypy") {
        return Err(failed("PyPy's layout is not described here".to_owned()));
    }
    if named.is_none() && venv.is_none() && !file.starts_with(b"python") {
        // Above any file at all there is some Python's library, at the latest the system's.
        return Err(failed("its name does not say that it is a Python".to_owned()));
    }
    let roots: Vec<BString> = match &home {
        Some(home) => vec![system.absolute(home.split_str(":").next().unwrap_or(b"").as_bstr())],
        None => ancestors(start.as_bstr()),
    };
    let mut wanted: Vec<(Version, &'static str)> = Vec::new();
    if let Some((version, threads)) = named {
        wanted.push((version, threads));
        wanted.push((version, if threads.is_empty() { "t" } else { "" }));
    }
    if let Some(version) = venv.as_ref().and_then(|v| v.version) {
        wanted.extend([(version, ""), (version, "t")]);
    }
    let asked_libdir = system.host.env.get("PYTHONPLATLIBDIR").filter(|v| !v.is_empty()).map(BStr::to_owned);
    let libdirs: Vec<BString> = asked_libdir.map_or_else(|| vec!["lib".into(), "lib64".into()], |d| vec![d]);
    let found = wanted
        .iter()
        .find_map(|(version, threads)| find_library(system, &roots, &libdirs, *version, threads))
        .or_else(|| newest_library(system, &roots, &libdirs, notes));
    let Some(Library { prefix, platlibdir, mut version, threads }) = found else {
        let name = wanted.first().map_or("pythonX.Y".to_owned(), |(v, t)| library_name(*v, t));
        return Err(failed(format!("no `lib/{name}/os.py` above `{start}`")));
    };
    let name = library_name(version, threads);
    let dynload = |root: &BStr| path_of(&[root, platlibdir.as_bstr(), name.as_str().into(), "lib-dynload".into()]);
    let exec_prefix = match home.as_ref().and_then(|h| h.split_once_str(":")) {
        Some((_, exec_prefix)) => system.absolute(exec_prefix.as_bstr()),
        None if home.is_some() => prefix.clone(),
        None => roots.iter().find(|r| system.is_dir(dynload(r.as_bstr()).as_bstr())).unwrap_or(&prefix).clone(),
    };
    if version.micro.is_none() {
        version.micro = micro(system, prefix.as_bstr(), &name, venv.as_ref(), version);
    }
    let zip =
        format!("python{}{}{}.zip", version.major, version.minor, if version.older_than(3, 13) { "" } else { threads });
    let standard = [
        path_of(&[prefix.as_bstr(), platlibdir.as_bstr(), zip.as_str().into()]),
        path_of(&[prefix.as_bstr(), platlibdir.as_bstr(), name.as_str().into()]),
        dynload(exec_prefix.as_bstr()),
    ]
    .iter()
    .map(|p| normalised(p.as_bstr()))
    .collect();
    Ok(Base {
        executable: executable.to_owned(),
        real_executable,
        version,
        threads,
        platlibdir,
        prefix,
        exec_prefix,
        standard,
        venv,
    })
}

/// `python3.11` → 3.11; a trailing `t` means free-threaded, `d`, `m` and `-dbg` only tell the build.
fn named_version(name: &BStr) -> Option<(Version, &'static str)> {
    let rest = name.strip_prefix(b"python")?;
    let (major, rest) = number(rest)?;
    let (minor, rest) = number(rest.strip_prefix(b".")?)?;
    let threads = if rest.starts_with(b"t") { "t" } else { "" };
    Some((Version { major, minor, micro: None }, threads))
}

fn number(text: &[u8]) -> Option<(u16, &[u8])> {
    let digits = text.iter().take_while(|b| b.is_ascii_digit()).count();
    let (number, rest) = text.split_at(digits);
    Some((number.to_str().ok()?.parse().ok()?, rest))
}

/// `3.11.7`, `3.11` or `3.11.7.final.0`.
pub(super) fn parse_version(text: &[u8]) -> Option<Version> {
    let (major, rest) = number(text)?;
    let (minor, rest) = number(rest.strip_prefix(b".")?)?;
    let micro = rest.strip_prefix(b".").and_then(number).map(|(n, _)| n);
    Some(Version { major, minor, micro })
}

/// The environment whose `pyvenv.cfg` names a home: one level above the executable, or beside it.
fn venv(system: &System, executable: &BStr, notes: &mut Vec<Note>) -> Option<Venv> {
    let beside = parent(executable);
    for prefix in [parent(beside), beside] {
        let path = join(prefix, "pyvenv.cfg");
        let text = match system.read_small(path.as_bstr(), MAX_CONFIG) {
            Ok(text) => text,
            Err(errno) => {
                if system.exists(path.as_bstr()) {
                    notes.push(Note::new("read", path, errno.text().to_lowercase()));
                }
                continue;
            }
        };
        let value = |wanted: &[&str]| {
            text.lines().find_map(|line| {
                let (key, value) = line.split_once_str("=")?;
                let key = key.trim_ascii().to_ascii_lowercase();
                wanted.iter().any(|w| key == w.as_bytes()).then(|| value.trim_ascii())
            })
        };
        if let Some(home) = value(&["home"]) {
            return Some(Venv {
                prefix: prefix.to_owned(),
                home: system.absolute(home.as_bstr()),
                system_site: value(&["include-system-site-packages"]).is_some_and(|v| v.eq_ignore_ascii_case(b"true")),
                version: value(&["version_info", "version"]).and_then(parse_version),
            });
        }
        notes.push(Note::new("read", path, "names no `home`: not an environment"));
    }
    None
}

struct Library {
    prefix: BString,
    platlibdir: BString,
    version: Version,
    threads: &'static str,
}

/// The prefix with the library of one version: a zip file first, then the landmark `os.py`.
fn find_library(
    system: &System,
    roots: &[BString],
    libdirs: &[BString],
    version: Version,
    threads: &'static str,
) -> Option<Library> {
    let found = |prefix: &BString, platlibdir: &BString| Library {
        prefix: prefix.clone(),
        platlibdir: platlibdir.clone(),
        version,
        threads,
    };
    let is_file = |path: BString| system.files.stat(path.as_bstr()).is_ok_and(|m| m.kind == Kind::File);
    let name = library_name(version, threads);
    for root in roots {
        for lib in libdirs {
            let library = path_of(&[root.as_bstr(), lib.as_bstr(), name.as_str().into()]);
            if is_file(join(library.as_bstr(), "os.py")) || is_file(join(library.as_bstr(), "os.pyc")) {
                return Some(found(root, lib));
            }
        }
    }
    let zip = format!("python{}{}{threads}.zip", version.major, version.minor);
    for root in roots {
        for lib in libdirs {
            if is_file(path_of(&[root.as_bstr(), lib.as_bstr(), zip.as_str().into()])) {
                return Some(found(root, lib));
            }
        }
    }
    None
}

/// When nothing tells the version: the newest library above the executable.
fn newest_library(system: &System, roots: &[BString], libdirs: &[BString], notes: &mut Vec<Note>) -> Option<Library> {
    for root in roots {
        let mut versions: Vec<(u16, u16, &'static str)> = Vec::new();
        for lib in libdirs {
            let Ok(entries) = system.files.list(join(root.as_bstr(), lib).as_bstr()) else { continue };
            for entry in &entries {
                let exact = named_version(entry.name.as_bstr())
                    .filter(|(version, threads)| entry.name == library_name(*version, threads).as_bytes());
                versions.extend(exact.map(|(version, threads)| (version.major, version.minor, threads)));
            }
        }
        versions.sort_unstable();
        versions.dedup();
        let several = versions.len() > 1;
        for (major, minor, threads) in versions.into_iter().rev() {
            let version = Version { major, minor, micro: None };
            if let Some(library) = find_library(system, std::slice::from_ref(root), libdirs, version, threads) {
                if several {
                    let detail = format!("several Python libraries; the newest, {major}.{minor}, is taken");
                    notes.push(Note::new("choose", join(root.as_bstr(), &library.platlibdir), detail));
                }
                return Some(library);
            }
        }
    }
    None
}

/// The last part of the version: from the installed header, else from the environment's own record (which may be
/// older than the interpreter), else from the directory name of a pyenv or uv installation.
fn micro(system: &System, prefix: &BStr, name: &str, venv: Option<&Venv>, version: Version) -> Option<u16> {
    // Up to 3.7 the directory carries the ABI flag.
    let from_header = [name.to_owned(), format!("{name}m")].iter().find_map(|directory| {
        let header = path_of(&[prefix, "include".into(), directory.as_str().into(), "patchlevel.h".into()]);
        let text = system.read_small(header.as_bstr(), MAX_CONFIG).ok()?;
        let line = text.lines().find_map(|l| l.trim_ascii().strip_prefix(b"#define PY_MICRO_VERSION"))?;
        number(line.trim_ascii_start()).map(|(n, _)| n)
    });
    let same = |v: Version| (v.major, v.minor) == (version.major, version.minor);
    let from_directory = || {
        prefix.rsplit(|b| *b == b'/').find_map(|part| {
            part.split_str("-").find_map(|piece| parse_version(piece).filter(|v| same(*v)).and_then(|v| v.micro))
        })
    };
    from_header
        .or_else(from_directory)
        .or_else(|| venv.and_then(|v| v.version).filter(|v| same(*v)).and_then(|v| v.micro))
}

/// Longest path that the kernel takes (PATH_MAX with its NUL).
const MAX_PATH: usize = 4096;

/// The directory itself and all above it, nearest first. Paths that nothing can be opened by are left out: a `home` of
/// thousands of slashes has as many directories above it.
fn ancestors(directory: &BStr) -> Vec<BString> {
    let mut out = Vec::new();
    let mut here = directory;
    loop {
        if !here.is_empty() && here.len() < MAX_PATH {
            out.push(here.to_owned());
        }
        if here.is_empty() || here == "/" {
            return out;
        }
        here = parent(here);
    }
}

/// Follows links of the file itself. Links among its directories are kept as text, and so the prefix keeps them
/// (`getpath.c`). Up to 3.10 the `..` of a relative link stays in it too.
fn follow_file_links(system: &System, path: &BStr, keeps_dots: bool) -> BString {
    let mut path = path.to_owned();
    for _ in 0..40 {
        let Ok(target) = system.files.read_link(path.as_bstr()) else { break };
        path = absolute(parent(path.as_bstr()), target.as_bstr());
        if !keeps_dots {
            path = normalised(path.as_bstr());
        }
    }
    path
}

fn path_of(parts: &[&BStr]) -> BString {
    let mut parts = parts.iter();
    let first = parts.next().map(|p| (*p).to_owned()).unwrap_or_default();
    parts.fold(first, |path, part| join(path.as_bstr(), part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_above_a_path_too_long_to_be_opened_is_found_without_it() {
        let long = format!("/usr/{}", "d/".repeat(1_000_000));
        let above = ancestors(long.as_str().into());
        assert!(above.iter().all(|p| p.len() < 4096) && above.len() < 4096, "{} directories", above.len());
        assert_eq!(above.last().map(|p| p.as_bstr()), Some("/".into()));
        assert_eq!(ancestors("/usr/bin".into()), ["/usr/bin", "/usr", "/"]);
        assert_eq!(ancestors("".into()), [""; 0]);
    }
}
