//! What does `site` put on `sys.path`? The same order as CPython's `Lib/site.py` (3.6 to 3.15) gives, from files
//! alone: `PYTHONPATH`, the library, the environment's and the user's and the system's `site-packages`, and the path
//! lines of `.pth` files.
//!
//! Lines of code in `.pth` files, `.start` entry points, `sitecustomize` and `usercustomize` are noted, never run:
//! what they would change on `sys.path` is not known here (asking the interpreter has the same limit, by intent).

use bstr::{BStr, BString, ByteSlice};
use rustc_hash::FxHashSet;

use super::layout::Base;
use super::{Entry, EntryKind, Interpreter, KnownBy, UserSite, Version};
use crate::discover::Note;
use crate::system::{System, absolute, file_name, join, normalised};

/// Bounds against hostile directories; ordinary ones stay far below.
const MAX_PTH_BYTES: u64 = 1 << 20;
const MAX_PTH_FILES: usize = 2_000;
const MAX_LINES: usize = 200_000;
const MAX_ENTRIES: usize = 10_000;
const MAX_NOTES: usize = 1_000;
const MAX_SITE_SOURCE: u64 = 1 << 20;

/// The elements of `PYTHONPATH` as `site` makes them: absolute, an empty one is the working directory.
pub(super) fn python_path(system: &System) -> Vec<BString> {
    match system.host.env.get("PYTHONPATH") {
        Some(value) if !value.is_empty() => {
            value.split_str(":").map(|part| make_path(system, part.as_bstr())).collect()
        }
        _ => Vec::new(),
    }
}

/// The first entry of `sys.path` of `python -c` and `python -m`: the working directory, written as an empty string.
/// (A script has its own directory in that place.) `PYTHONSAFEPATH` takes it away since 3.11.
pub(super) fn working_directory(system: &System, version: Version) -> Option<Entry> {
    let safe = system.host.env.get("PYTHONSAFEPATH").is_some_and(|v| !v.is_empty());
    (version.older_than(3, 11) || !safe).then(|| Entry {
        text: BString::default(),
        directory: system.host.cwd.clone(),
        kind: EntryKind::WorkingDirectory,
    })
}

/// A note on code that an ordinary start would run.
pub(super) fn skipped_code(file: &BStr, line: Option<usize>, code: &BStr) -> Note {
    let code = code.trim_ascii();
    let shown = code[..code.len().min(60)].as_bstr();
    let more = if shown.len() < code.len() { "..." } else { "" };
    let place = line.map(|n| format!("line {n} is ")).unwrap_or_default();
    Note::new("skip", file, format!("{place}code that an ordinary start runs: `{shown}{more}`"))
}

/// `os.path.abspath`.
fn make_path(system: &System, path: &BStr) -> BString {
    let path = normalised(system.absolute(path).as_bstr());
    if path.is_empty() { "/".into() } else { path }
}

/// How this interpreter's `site` was changed by a distribution; told by the text of its own `site.py`.
#[derive(Clone, Copy, Default, Debug)]
struct Patches {
    /// Debian and Ubuntu: `dist-packages` instead of `site-packages` outside of environments.
    dist_packages: bool,
    /// Fedora and Red Hat: `/usr/local` is a prefix too, unless an RPM is being built.
    usr_local: bool,
    /// `.pth` files whose name starts with a dot are passed over (3.13; backported to some releases of older lines).
    skips_hidden: bool,
    /// A byte order mark at the start of a `.pth` file is understood (3.13); before, it is part of the first line.
    knows_mark: bool,
}

struct Site<'a> {
    system: &'a System,
    base: &'a Base,
    patches: Patches,
    path: Vec<Entry>,
    known: FxHashSet<BString>,
    visited: FxHashSet<BString>,
    /// Lines of `.pth` files that may still be read.
    lines_left: usize,
    notes: Vec<Note>,
}

/// Completes what `layout` found to a whole interpreter.
pub(super) fn complete(system: &System, base: Base, notes: Vec<Note>) -> Interpreter {
    let library = base.standard.get(1).cloned().unwrap_or_default();
    let mut site = Site {
        system,
        base: &base,
        patches: patches(system, library.as_bstr(), base.version),
        path: Vec::new(),
        known: FxHashSet::default(),
        visited: FxHashSet::default(),
        lines_left: MAX_LINES,
        notes,
    };
    site.path.extend(working_directory(system, base.version));
    for directory in python_path(system) {
        site.append(directory, EntryKind::PythonPath);
    }
    for directory in &base.standard {
        site.append(directory.clone(), EntryKind::Standard);
    }
    let mut prefixes = vec![base.prefix.clone(), base.exec_prefix.clone()];
    let mut user_site_enabled =
        system.host.env.get("PYTHONNOUSERSITE").is_none_or(|v| v.is_empty()) && !system.host.secure;
    if let Some(venv) = &base.venv {
        site.add_site_packages(std::slice::from_ref(&venv.prefix));
        if venv.system_site {
            prefixes.insert(0, venv.prefix.clone());
        } else {
            prefixes = vec![venv.prefix.clone()];
            user_site_enabled = false;
        }
    }
    let user_site = site.user_site();
    if user_site_enabled {
        match &user_site {
            Some(directory) if system.is_dir(directory.as_bstr()) => {
                site.add_directory(directory.clone(), EntryKind::UserSite);
            }
            Some(_) => {}
            None => site.note(Note::new("find", "~/.local", "HOME is not set: no user site directory")),
        }
        if site.patches.usr_local && system.host.env.get("RPM_BUILD_ROOT").is_none() {
            prefixes.insert(0, "/usr/local".into());
        }
    }
    site.add_site_packages(&prefixes);
    let Site { path, mut notes, patches, .. } = site;
    notes.extend(customisation(system, &path, user_site_enabled));
    let venv_prefix = base.venv.as_ref().map(|v| v.prefix.clone());
    let (extension_suffixes, abiflags, multiarch) = suffixes(system, &base, patches);
    Interpreter {
        prefix: venv_prefix.clone().unwrap_or_else(|| base.prefix.clone()),
        exec_prefix: venv_prefix.unwrap_or_else(|| base.exec_prefix.clone()),
        executable: base.executable,
        real_executable: base.real_executable,
        base_prefix: base.prefix,
        base_exec_prefix: base.exec_prefix,
        implementation: "cpython".into(),
        version: base.version,
        abiflags,
        platlibdir: base.platlibdir,
        multiarch,
        extension_suffixes,
        builtins: None,
        standard: base.standard,
        path,
        user_site: UserSite { enabled: user_site_enabled, directory: user_site },
        known_by: KnownBy::Files,
        notes,
    }
}

fn patches(system: &System, library: &BStr, version: Version) -> Patches {
    let Ok(source) = system.read_small(join(library, "site.py").as_bstr(), MAX_SITE_SOURCE) else {
        let new = !version.older_than(3, 13);
        return Patches { skips_hidden: new, knows_mark: new, ..Patches::default() };
    };
    Patches {
        dist_packages: source.find("\"dist-packages\"").is_some(),
        usr_local: source.find("RPM_BUILD_ROOT").is_some() && source.find("/usr/local").is_some(),
        skips_hidden: source.find("startswith(\".\")").is_some(),
        knows_mark: source.find("utf-8-sig").is_some(),
    }
}

impl Site<'_> {
    fn note(&mut self, note: Note) {
        if self.notes.len() < MAX_NOTES {
            self.notes.push(note);
        }
    }

    /// Appends unless the same path is there already.
    fn append(&mut self, directory: BString, kind: EntryKind) {
        if self.path.len() < MAX_ENTRIES && self.known.insert(directory.clone()) {
            self.path.push(Entry { text: directory.clone(), directory, kind });
        }
    }

    /// `site.getsitepackages` and `site.addsitepackages`.
    fn add_site_packages(&mut self, prefixes: &[BString]) {
        let base = self.base;
        let plain = format!("python{}.{}", base.version.major, base.version.minor);
        let name = base.library_name();
        let mut libdirs = vec![base.platlibdir.clone()];
        if base.platlibdir != "lib" {
            libdirs.push("lib".into());
        }
        let mut seen = FxHashSet::default();
        for prefix in prefixes.iter().filter(|p| !p.is_empty()) {
            if !seen.insert(prefix) {
                continue;
            }
            let mut directories: Vec<String> = Vec::new();
            if self.patches.dist_packages {
                // Debian's `is_virtual_environment` asks whether the interpreter runs in one, not whether this
                // prefix is one: a system prefix then has `site-packages` too.
                if base.venv.is_some() {
                    directories.push(format!("lib/{plain}/site-packages"));
                }
                directories.push(format!("local/lib/{plain}/dist-packages"));
                directories.push("lib/python3/dist-packages".to_owned());
                directories.extend(libdirs.iter().map(|lib| format!("{lib}/{plain}/dist-packages")));
            } else {
                directories.extend(libdirs.iter().map(|lib| format!("{lib}/{name}/site-packages")));
            }
            for directory in directories {
                let directory = join(prefix.as_bstr(), directory);
                if self.system.is_dir(directory.as_bstr()) {
                    self.add_directory(make_path(self.system, directory.as_bstr()), EntryKind::Site);
                }
            }
        }
    }

    /// `site.addsitedir`: the directory, then the path lines of its `.pth` files in the order of their names.
    fn add_directory(&mut self, directory: BString, kind: EntryKind) {
        let first_visit = self.visited.insert(directory.clone());
        self.append(directory.clone(), kind);
        if !first_visit {
            // Reading the files again changes nothing: their paths are known by now.
            return;
        }
        let entries = match self.system.files.list(directory.as_bstr()) {
            Ok(entries) => entries,
            Err(errno) => {
                self.note(Note::new("list", directory, errno.text().to_lowercase()));
                return;
            }
        };
        let hidden_too = !self.patches.skips_hidden;
        let names = |ending: &'static str| {
            entries
                .iter()
                .map(|e| e.name.as_bstr())
                .filter(move |n| n.ends_with(ending.as_bytes()) && (hidden_too || !n.starts_with(b".")))
        };
        if names(".pth").count() > MAX_PTH_FILES {
            let detail = format!("more than {MAX_PTH_FILES} `.pth` files; the rest is left unread");
            self.note(Note::new("read", directory.clone(), detail));
        }
        for name in names(".pth").take(MAX_PTH_FILES) {
            self.add_path_file(directory.as_bstr(), name);
        }
        // PEP 829, 3.15.
        if !self.base.version.older_than(3, 15) {
            for name in names(".start").take(MAX_PTH_FILES) {
                let file = join(directory.as_bstr(), name);
                self.note(Note::new("skip", file, "entry points that an ordinary start runs"));
            }
        }
    }

    /// `site.addpackage`: one `.pth` file.
    fn add_path_file(&mut self, directory: &BStr, name: &BStr) {
        let file = join(directory, name);
        let text = match self.system.read_small(file.as_bstr(), MAX_PTH_BYTES) {
            Ok(text) => text,
            Err(errno) => {
                self.note(Note::new("read", file, errno.text().to_lowercase()));
                return;
            }
        };
        if text.to_str().is_err() {
            let detail = "not UTF-8: with a UTF-8 locale an ordinary start of this Python fails here";
            self.note(Note::new("decode", file.clone(), detail));
        }
        let new_rules = !self.base.version.older_than(3, 15);
        let text = match text.strip_prefix(b"\xef\xbb\xbf") {
            Some(rest) if self.patches.knows_mark => rest,
            _ => &text,
        };
        let lines = text.lines().enumerate().flat_map(|(i, line)| line.split(|b| *b == b'\r').map(move |l| (i, l)));
        for (i, line) in lines {
            if self.lines_left == 0 {
                self.note(Note::new(
                    "read",
                    file,
                    format!("more than {MAX_LINES} lines of `.pth` files; the rest is left unread"),
                ));
                return;
            }
            self.lines_left -= 1;
            // `os.path.exists` raises on it before 3.8, and `site` leaves the file there.
            if line.contains(&0) && self.base.version.older_than(3, 8) && !line.starts_with(b"#") {
                return;
            }
            let line = if new_rules { line.trim_ascii() } else { line };
            if line.starts_with(b"#") || line.trim_ascii().is_empty() {
                continue;
            }
            if line.starts_with(b"import ") || line.starts_with(b"import\t") {
                self.note(skipped_code(file.as_bstr(), Some(i + 1), line.as_bstr()));
                continue;
            }
            let path = normalised(absolute(directory, line.trim_ascii_end().as_bstr()).as_bstr());
            if !self.known.contains(&path) && self.system.exists(path.as_bstr()) {
                self.append(path, EntryKind::Pth);
            }
        }
    }

    /// `site.getusersitepackages`.
    fn user_site(&self) -> Option<BString> {
        let env = &self.system.host.env;
        let base = match env.get("PYTHONUSERBASE").filter(|v| !v.is_empty()) {
            Some(base) => base.to_owned(),
            None => {
                let home = env.get("HOME")?;
                let mut home = home.trim_end_with(|c| c == '/').to_owned();
                home.extend_from_slice(b"/.local");
                home.into()
            }
        };
        let name = self.base.library_name();
        Some(join(join(base.as_bstr(), "lib").as_bstr(), format!("{name}/site-packages")))
    }
}

/// What `site` makes nothing of in a `.pth` file: the file itself, a line that names nothing, a line that imports what is
/// not there. `is_nowhere` tells the last of a module.
pub(super) fn damage(system: &System, file: &BStr, version: Version, is_nowhere: &dyn Fn(&str) -> bool) -> Vec<Note> {
    let text = match system.read_small(file, MAX_PTH_BYTES) {
        Ok(text) => text,
        Err(errno) => return vec![Note::new("read", file, errno.text().to_lowercase())],
    };
    let mut out = Vec::new();
    for (i, line) in text.lines().enumerate().take(MAX_LINES) {
        let n = i + 1;
        if line.starts_with(b"#") {
            continue;
        }
        if line.contains(&0) {
            let then =
                if version.older_than(3, 8) { "an ordinary start leaves the file there" } else { "it is no path" };
            out.push(Note::new("parse", file, format!("line {n} has a NUL byte: {then}")));
        }
        let Some(code) = line.strip_prefix(b"import ").or_else(|| line.strip_prefix(b"import\t")) else { continue };
        let module = code.split(|b| !(b.is_ascii_alphanumeric() || *b == b'_')).next().unwrap_or_default();
        if let Some(module) = module.to_str().ok().filter(|m| !m.is_empty() && is_nowhere(m)) {
            let detail = format!(
                "line {n} imports `{module}`, which is not found: an ordinary start says so and leaves the file there"
            );
            out.push(Note::new("import", file, detail));
            break;
        }
        if out.len() >= MAX_NOTES {
            break;
        }
    }
    out
}

/// The `sitecustomize` and `usercustomize` that a start imports, when they are somebody's own code. Those inside the
/// library belong to the distribution and are left unmentioned; the working directory is not on the path yet.
pub(super) fn customisation(system: &System, path: &[Entry], user_site_enabled: bool) -> Vec<Note> {
    let searched = || path.iter().filter(|e| e.kind != EntryKind::WorkingDirectory).take(MAX_NOTES);
    let first = |module: &str| {
        let files = searched().flat_map(|entry| {
            let module = join(entry.directory.as_bstr(), module);
            [".py", "/__init__.py"].map(|e| (entry.kind, BString::from([module.as_slice(), e.as_bytes()].concat())))
        });
        let mut files = files.filter(|(_, file)| system.exists(file.as_bstr()));
        files.next().filter(|(kind, _)| *kind != EntryKind::Standard).map(|(_, file)| file)
    };
    let modules = ["sitecustomize", "usercustomize"].into_iter().take(if user_site_enabled { 2 } else { 1 });
    modules.filter_map(first).map(|file| Note::new("skip", file, "code that an ordinary start runs")).collect()
}

/// Path files that installers and well-known packages bring: their code changes nothing that counts here, or is followed
/// in another way (finders of editable installs).
fn is_harmless(name: &BStr) -> bool {
    const FILES: [&[u8]; 4] = [b"distutils-precedence.pth", b"_virtualenv.pth", b"coloredlogs.pth", b"a1_coverage.pth"];
    FILES.contains(&name.as_bytes()) || name.ends_with(b"-nspkg.pth") || name.starts_with(b"__editable__")
}

/// Of the notes on code that is not run those that may count, with the line where it stands in its file.
pub(super) fn code_not_run(system: &System, notes: &[Note]) -> Vec<Note> {
    let mut out: Vec<Note> = Vec::new();
    for note in notes.iter().filter(|n| n.act == "skip" && !is_harmless(file_name(n.path.as_bstr()))) {
        // An interpreter that was asked tells the code without its line.
        let detail = match note.detail.strip_prefix("code that an ordinary start runs: `") {
            Some(code) => {
                let code = code.trim_end_matches('`').trim_end_matches("...");
                let text = system.read_small(note.path.as_bstr(), MAX_PTH_BYTES).unwrap_or_default();
                let at =
                    text.lines().take(MAX_LINES).position(|line| line.trim_ascii_start().starts_with(code.as_bytes()));
                at.map_or(note.detail.clone(), |n| format!("line {} is {}", n + 1, note.detail))
            }
            None => note.detail.clone(),
        };
        let told = Note { detail, ..note.clone() };
        if !out.contains(&told) {
            out.push(told);
        }
    }
    out
}

/// Extension suffixes in the import system's order, ABI flags and multiarch name, told by the names of the library's
/// own extensions or of its build data file.
fn suffixes(system: &System, base: &Base, patches: Patches) -> (Vec<BString>, BString, Option<BString>) {
    let tag = format!(".cpython-{}{}", base.version.major, base.version.minor);
    let from_extension = base.standard.get(2).and_then(|dynload| {
        let entries = system.files.list(dynload.as_bstr()).ok()?;
        entries.iter().find_map(|e| {
            let suffix = e.name.find_byte(b'.').map(|i| &e.name[i..])?;
            (suffix.starts_with(tag.as_bytes()) && suffix.ends_with(b".so")).then(|| BString::from(suffix))
        })
    });
    let from_data = || {
        let entries = system.files.list(base.standard.get(1)?.as_bstr()).ok()?;
        entries.iter().find_map(|e| {
            let (flags, multiarch) =
                e.name.strip_prefix(b"_sysconfigdata_")?.strip_suffix(b".py")?.split_once_str("_linux_")?;
            let mut suffix = BString::from(tag.as_str());
            suffix.extend_from_slice(flags);
            suffix.push(b'-');
            suffix.extend_from_slice(multiarch);
            suffix.extend_from_slice(b".so");
            Some(suffix)
        })
    };
    let specific = from_extension.or_else(from_data);
    let (mut abiflags, mut multiarch) = (BString::from(base.threads), None);
    if let Some(rest) = specific.as_ref().and_then(|s| s.strip_prefix(tag.as_bytes())?.strip_suffix(b".so"))
        && let Some((flags, arch)) = rest.split_once_str("-")
    {
        abiflags = flags.into();
        multiarch = Some(arch.into());
    }
    let mut out: Vec<BString> = specific.into_iter().collect();
    // `Python/dynload_shlib.c`. Since 3.15 (PEP 803) there is a stable ABI for both kinds of builds, and free-threaded
    // ones no longer take the old one.
    let free_threaded = abiflags.contains(&b't');
    if base.version.older_than(3, 15) || !free_threaded {
        out.push(".abi3.so".into());
        // Upstream since 3.14; Debian's 3.13 has it as a patch.
        if (!base.version.older_than(3, 14) || patches.dist_packages && !base.version.older_than(3, 13))
            && let Some(multiarch) = &multiarch
        {
            out.push(format!(".abi3-{multiarch}.so").into());
        }
    }
    if !base.version.older_than(3, 15) {
        out.push(".abi3t.so".into());
    }
    out.push(".so".into());
    (out, abiflags, multiarch)
}
