//! The shape of the house as a test: which room may know which, and what some rooms must never do.
//!
//! Data flows one way: system -> elf -> ld -> (discover -> recipe) -> findings -> render; only cli sees everything. A
//! failure names the line that breaks an arrow, and the arrow.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Each room with the rooms it may name.
const ROOMS: &[(&str, &[&str])] = &[
    ("system", &[]),
    ("elf", &["system"]),
    ("ld", &["elf", "system"]),
    ("discover", &["elf", "system", "ld"]),
    ("recipe", &["discover", "ld", "elf", "system"]),
    ("findings", &["ld", "discover", "recipe", "elf", "system"]),
    ("render", &["findings", "ld", "discover", "recipe", "elf", "system"]),
    ("fixture", &["ld", "elf", "system"]),
    ("cli", &["system", "elf", "ld", "discover", "recipe", "findings", "render", "fixture"]),
];

/// Crates with one room each.
const CRATES: &[(&str, &[&str])] = &[
    ("goblin", &["elf"]),
    ("scroll", &["elf"]),
    ("object", &["elf", "fixture"]),
    ("memmap2", &["system"]),
    ("walkdir", &["system"]),
    ("rustix", &["system", "cli"]),
    ("libc", &["system"]),
    ("clap", &["cli"]),
    ("clap_mangen", &["cli"]),
    ("clap_complete", &["cli"]),
    ("colored", &["render"]),
    ("cpp_demangle", &["findings"]),
    ("rayon", &["cli", "findings", "discover", "elf", "ld"]),
    ("serde_json", &["render", "discover"]),
];

/// Texts that only some rooms (or files) may contain: no other one reads the disk, the environment or the clock, or
/// prints.
const NEVERS: &[(&str, &[&str])] = &[
    ("std::fs", &["system/live.rs", "fixture/place.rs", "fixture/forge.rs", "cli/"]),
    ("std::env::", &["system/host.rs", "cli/"]),
    ("std::process", &["cli/", "main.rs"]),
    ("Instant::now", &["cli/"]),
    ("SystemTime", &["cli/"]),
    ("println!", &["cli/"]),
    ("print!", &["cli/"]),
    ("unsafe ", &["system/live.rs", "cli/"]),
    ("canonicalize", &["system/live.rs"]),
];

struct Source {
    /// Path below `src`, with `/`.
    path: String,
    /// Lines of code, numbered from 1; test modules and comments left out.
    lines: Vec<(usize, String)>,
}

fn sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut out = Vec::new();
    let mut pending: Vec<PathBuf> = vec![root.clone()];
    while let Some(directory) = pending.pop() {
        for entry in fs::read_dir(&directory).expect("source directory") {
            let path = entry.expect("entry").path();
            if path.is_dir() {
                pending.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") && path.file_name().is_some_and(|n| n != "tests.rs") {
                let text = fs::read_to_string(&path).expect("source file");
                let relative = path.strip_prefix(&root).expect("below src").to_string_lossy().into_owned();
                out.push(Source { path: relative, lines: code_lines(&text) });
            }
        }
    }
    out.sort_by(|a, b| a.path.cmp(&b.path));
    assert!(out.len() > 20, "the source tree was not found");
    out
}

/// Lines before a `#[cfg(test)]` module, without comments.
fn code_lines(text: &str) -> Vec<(usize, String)> {
    let mut out = Vec::new();
    let lines: Vec<&str> = text.lines().collect();
    for (index, line) in lines.iter().enumerate() {
        let for_tests = line.starts_with("#[cfg(test)]") || line.starts_with("#[cfg(all(test,");
        if for_tests && lines.get(index + 1).is_some_and(|next| next.starts_with("mod tests {")) {
            break;
        }
        let code = line.split("//").next().unwrap_or_default();
        if !code.trim().is_empty() {
            out.push((index + 1, code.to_owned()));
        }
    }
    out
}

fn room(path: &str) -> Option<&str> {
    let first = path.split('/').next()?;
    let name = first.strip_suffix(".rs").unwrap_or(first);
    ROOMS.iter().map(|(room, _)| *room).find(|room| *room == name)
}

#[test]
fn rooms_name_only_rooms_before_them() {
    let mut broken = Vec::new();
    for source in sources() {
        let Some(room) = room(&source.path) else { continue };
        let allowed = ROOMS.iter().find(|(name, _)| *name == room).map(|(_, allowed)| *allowed).unwrap_or_default();
        for (number, line) in &source.lines {
            for (at, _) in line.match_indices("crate::") {
                let named: String =
                    line[at + 7..].chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
                let is_room = ROOMS.iter().any(|(name, _)| *name == named);
                if is_room && named != room && !allowed.contains(&named.as_str()) {
                    broken.push(format!(
                        "src/{}:{number}: `{room}` must not know `{named}`: {}",
                        source.path,
                        line.trim()
                    ));
                }
            }
        }
    }
    assert!(broken.is_empty(), "arrows broken:\n{}", broken.join("\n"));
}

#[test]
fn crates_stay_in_their_rooms() {
    let mut broken = Vec::new();
    for source in sources() {
        let Some(room) = room(&source.path) else { continue };
        for (number, line) in &source.lines {
            for (name, rooms) in CRATES {
                let used = line.match_indices(&format!("{name}::")).any(|(at, _)| {
                    let before = line[..at].chars().next_back();
                    !before.is_some_and(|c| c.is_ascii_alphanumeric() || c == '_' || c == ':')
                        || line[..at].ends_with(" ::")
                });
                if used && !rooms.contains(&room) {
                    broken.push(format!(
                        "src/{}:{number}: `{name}` belongs to {rooms:?}: {}",
                        source.path,
                        line.trim()
                    ));
                }
            }
        }
    }
    assert!(broken.is_empty(), "crates out of place:\n{}", broken.join("\n"));
}

#[test]
fn only_the_edges_touch_the_world() {
    let mut broken = Vec::new();
    for source in sources() {
        for (number, line) in &source.lines {
            for (text, places) in NEVERS {
                if line.contains(text) && !places.iter().any(|p| source.path.starts_with(p)) {
                    broken.push(format!(
                        "src/{}:{number}: `{text}` is for {places:?} only: {}",
                        source.path,
                        line.trim()
                    ));
                }
            }
        }
    }
    assert!(broken.is_empty(), "forbidden here:\n{}", broken.join("\n"));
}

#[test]
fn every_file_says_what_it_is_for() {
    for source in sources() {
        let text =
            fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(&source.path)).expect("read");
        assert!(
            text.starts_with("//!"),
            "src/{} does not begin with a `//!` line that says what it answers",
            source.path
        );
    }
}

/// Words of a text that begin so, each once.
fn words(text: &str, prefix: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.split(|c| !is_part(c)).filter(|w| w.starts_with(prefix) && *w != prefix).map(str::to_owned).collect()
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    fs::read_dir(directory).expect("a directory").map(|e| e.expect("an entry").path()).collect()
}

fn stem(path: &Path) -> String {
    path.file_stem().expect("a name").to_string_lossy().into_owned()
}

#[test]
fn the_readme_names_every_test_and_every_variable() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let readme = fs::read_to_string(root.join("README.md")).expect("README.md");
    // A program of one file has that name; of a program of several files each is named as its filter: `all why::`.
    let mut tests: BTreeSet<String> = BTreeSet::new();
    for path in entries(&root.join("tests")) {
        let name = stem(&path);
        if path.join("main.rs").exists() {
            let files = entries(&path).into_iter().filter(|p| !p.ends_with("main.rs"));
            let files = files.filter(|p| p.extension().is_some_and(|e| e == "rs") || p.join("mod.rs").exists());
            tests.extend(files.map(|p| format!("{name} {}::", stem(&p))));
        } else if path.extension().is_some_and(|e| e == "rs") {
            tests.insert(name);
        }
    }
    let rows = readme.lines().skip_while(|l| !l.starts_with("| `cargo test --test")).skip(2);
    let named: Vec<String> = rows
        .take_while(|l| l.starts_with('|'))
        .filter_map(|l| l.split('|').nth(1))
        .flat_map(|cell| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>())
        .collect();
    assert_eq!(named.iter().cloned().collect::<BTreeSet<_>>(), tests, "the table of tests in README.md");
    assert_eq!(named.len(), tests.len(), "a test stands there twice: {named:?}");

    let mut used = BTreeSet::new();
    for folder in ["tests", "benches", ".ci"] {
        for entry in walkdir::WalkDir::new(root.join(folder)).into_iter().filter_map(Result::ok) {
            if entry.file_type().is_file() && !entry.path().ends_with("architecture.rs") {
                used.extend(words(&String::from_utf8_lossy(&fs::read(entry.path()).expect("a file")), "LDAUDIT_"));
            }
        }
    }
    assert_eq!(words(&readme, "LDAUDIT_"), used, "the variables in README.md");
}
