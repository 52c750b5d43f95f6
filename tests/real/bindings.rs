//! Every symbol binding against the real loader: `LD_DEBUG=bindings` with `LD_BIND_NOW=1` beside `ldaudit --bindings`.
//!
//! The tables must be equal, line for line, for every program of `/usr/bin` (listed by the loader as `ldd -r` has it, nothing
//! is run), for `import torch` in each real environment, and for a `dlopen` of every library of those environments. Where a
//! `dlopen` fails the error must be equal too, and the loader's table (which ends there) a part of ours.
//!
//! The loader's trace also tells of lookups that no relocation makes: its own, those of `dlsym`, those of the vdso (rule
//! R11.4). A line that only the loader has is left out when a second reader of the file (goblin, from its section headers
//! on) finds no relocation with that symbol in it. Images that a constructor opens by itself are left out too: which
//! images a step brings is for `environments` and `system` to judge.
//!
//! A part runs by default; `LDAUDIT_REAL=full` runs everything. `tests/make-boxes` makes the environments.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use crate::Part;
use crate::support::{real, require};
use bstr::{BString, ByteSlice};
use libtest_mimic::Failed;
use serde_json::Value;

/// From, to, symbol, version.
type Line = (BString, BString, BString, Option<BString>);

/// Set-user-ID, set-group-ID.
const SET_ID: u32 = 0o6000;
/// Most differences that a failure shows.
const SHOWN: usize = 12;

/// Lists the trials.
pub fn list(part: &mut Part) {
    let full = std::env::var("LDAUDIT_REAL").is_ok_and(|v| v == "full");
    let programs = programs();
    assert!(programs.len() > 20, "the programs of the system were not found");
    let step = if full { 1 } else { 8 };
    for path in programs.into_iter().step_by(step) {
        part.add(path.display().to_string(), move || listed(&path));
    }
    let boxes = part.boxes();
    let host = real::build_dlopen_host(Path::new(env!("CARGO_TARGET_TMPDIR"))).map_err(|e| e.to_string());
    for (name, directory) in boxes {
        {
            let directory = directory.clone();
            part.add(format!("{name}: import torch"), move || imported(&directory));
        }
        let files = real::list_elf_files(&directory.join("lib")).unwrap_or_default();
        let files = files.into_iter().filter(|f| f.file_name().is_some_and(|n| n.as_bytes().contains_str(".so")));
        for file in files.step_by(if full { 1 } else { 11 }) {
            let short = file.strip_prefix(&directory).unwrap_or(&file).to_string_lossy().into_owned();
            match &host {
                Ok(host) => {
                    let host = host.clone();
                    part.add(format!("{name}: dlopen {short}"), move || opened(&host, &file));
                }
                Err(why) => {
                    let why = format!("{name}: dlopen {short}: no C compiler ({why})");
                    part.absent(why, require::is_required("cc"));
                }
            }
        }
    }
}

/// Programs that this machine's glibc starts, each file once. A set-user-ID program would not take our variables.
fn programs() -> Vec<PathBuf> {
    let mut seen = HashSet::new();
    let entries = fs::read_dir("/usr/bin").into_iter().flatten().flatten().map(|e| e.path());
    let mut out: Vec<PathBuf> = entries
        .filter(|path| {
            let Ok(meta) = fs::metadata(path) else { return false };
            let interpreter = b"/ld-linux";
            meta.is_file()
                && meta.permissions().mode() & SET_ID == 0
                && fs::symlink_metadata(path).is_ok_and(|m| m.is_file())
                && seen.insert((meta.dev(), meta.ino()))
                && fs::read(path)
                    .is_ok_and(|b| b.starts_with(b"\x7fELF\x02") && b[..b.len().min(4096)].contains_str(interpreter))
        })
        .collect();
    out.sort();
    out
}

/// What one of the two sides says.
#[derive(Default)]
struct Table {
    lines: BTreeSet<Line>,
    /// Symbol with version, and the file that refers to it.
    undefined: BTreeSet<(BString, BString)>,
    error: Option<BString>,
    /// Paths of the images; empty for the loader's side.
    images: HashSet<BString>,
}

// ---------------------------------------------------------------------------------------------------------- the cases

fn listed(path: &Path) -> Result<(), Failed> {
    let variables: [(&str, &str); 2] = [("LD_TRACE_LOADED_OBJECTS", "1"), ("LD_WARN", "1")];
    let (mut real, text) = traced(path, &[], &variables)?;
    for line in text.lines() {
        if let Some(rest) = line.trim_ascii().strip_prefix(b"undefined symbol: ".as_slice())
            && let Some((symbol, file)) = rest.split_once_str("\t(")
        {
            real.undefined.insert((symbol.into(), file.trim_end_with(|c| c == ')').into()));
        }
    }
    let ours = told(&[path.as_os_str()], path)?;
    if real.undefined != ours.undefined {
        let text = format!("undefined\n  real {:?}\n  ours {:?}", real.undefined, ours.undefined);
        return Err(text.into());
    }
    compare(&real, &ours, true)
}

fn imported(directory: &Path) -> Result<(), Failed> {
    let python = directory.join("bin/python");
    let (real, _) = traced(&python, &["-B", "-c", "import torch"].map(OsStr::new), &[])?;
    let ours = told(&["torch".as_ref(), "--python".as_ref(), directory.as_os_str()], &python)?;
    if real.lines.len() < 50_000 {
        return Err(format!("only {} bindings were seen", real.lines.len()).into());
    }
    compare(&real, &ours, true)
}

fn opened(host: &Path, file: &Path) -> Result<(), Failed> {
    let (real, said) = traced(host, &["LN".as_ref(), file.as_os_str()], &[])?;
    let arguments = ["--host".as_ref(), host.as_os_str(), file.as_os_str()];
    let ours = told(&arguments, host)?;
    match said.split_first() {
        Some((b'+', _)) if ours.error.is_none() => compare(&real, &ours, true),
        Some((b'-', text)) => {
            let text = text.trim_end_with(|c| c == '\0');
            match &ours.error {
                Some(own) if own == text => compare(&real, &ours, false),
                own => Err(format!("dlerror says\n  {}\nand ours is\n  {own:?}", text.as_bstr()).into()),
            }
        }
        _ => Err(format!("the host says {:?}, ours {:?}", said.as_bstr(), ours.error).into()),
    }
}

// -------------------------------------------------------------------------------------------------------- the two sides

/// Runs a program and gives the loader's table, with the program's output (standard output, then error).
fn traced(program: &Path, arguments: &[&OsStr], variables: &[(&str, &str)]) -> Result<(Table, Vec<u8>), Failed> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = format!("bindings-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::create_dir_all(&directory).map_err(|e| e.to_string())?;
    let run = || -> std::io::Result<(Vec<u8>, Vec<u8>)> {
        let child = Command::new(program)
            .args(arguments)
            .env_clear()
            .envs(base())
            .envs(variables.iter().copied())
            .env("LD_DEBUG", "bindings")
            .env("LD_DEBUG_OUTPUT", directory.join("trace"))
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let trace = directory.join(format!("trace.{}", child.id()));
        let output = child.wait_with_output()?;
        Ok((fs::read(trace)?, [output.stdout, output.stderr].concat()))
    };
    let result = run();
    // A scratch directory that stays behind lies in the build folder.
    let _ = fs::remove_dir_all(&directory);
    let (trace, output) = result.map_err(|e| format!("{}: {e}", program.display()))?;
    let mut table = Table::default();
    for line in trace.lines() {
        let Some((_, rest)) = line.split_once_str("binding file ") else { continue };
        table.lines.insert(parse(rest).ok_or_else(|| format!("a line that cannot be read: {}", line.as_bstr()))?);
    }
    Ok((table, output))
}

/// `FROM [0] to TO [0]: normal symbol `NAME' [VERSION]`.
fn parse(text: &[u8]) -> Option<Line> {
    let (from, rest) = text.split_once_str(" [0] to ")?;
    let (to, rest) = rest.split_once_str(" [0]: ")?;
    let (_, rest) = rest.split_once_str(" symbol `")?;
    let end = rest.rfind("'")?;
    let version = rest[end + 1..].trim_ascii().strip_prefix(b"[").and_then(|v| v.strip_suffix(b"]"));
    Some((from.into(), to.into(), rest[..end].into(), version.map(BString::from)))
}

fn base() -> [(&'static str, &'static str); 4] {
    [("PATH", "/usr/bin:/bin"), ("HOME", "/nonexistent"), ("LC_ALL", "C"), ("LD_BIND_NOW", "1")]
}

/// What `ldaudit` says. `program` is the label of the main program.
fn told(arguments: &[&OsStr], program: &Path) -> Result<Table, Failed> {
    let output = Command::new(env!("CARGO_BIN_EXE_ldaudit"))
        .args(["--bindings", "--format", "jsonl"])
        .args(arguments)
        .env_clear()
        .envs(base())
        .current_dir("/")
        .output()
        .map_err(|e| e.to_string())?;
    let report: Value = serde_json::from_slice(&output.stdout)
        .map_err(|e| format!("{e}: {}", String::from_utf8_lossy(&output.stderr)))?;
    let process = &report["process"];
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let text = |value: &Value| BString::from(value.as_str().unwrap_or_default());
    let mut names: Vec<BString> = list(&process["images"]).iter().map(|i| text(&i["name"])).collect();
    if let Some(main) = names.first_mut() {
        *main = program.as_os_str().as_bytes().into();
    }
    let name = |value: &Value| names.get(value.as_u64().unwrap_or(u64::MAX) as usize).cloned().unwrap_or_default();
    let mut table = Table { images: names.iter().cloned().collect(), ..Table::default() };
    for b in list(&process["bindings"]) {
        table.lines.insert((name(&b[0]), name(&b[1]), text(&b[2]), b[3].as_str().map(BString::from)));
    }
    for u in list(&process["unresolved"]) {
        if u["weak"] == Value::Bool(false) {
            let mut symbol = text(&u["symbol"]);
            if let Some(version) = u["version"].as_str() {
                symbol.extend_from_slice(format!(", version {version}").as_bytes());
            }
            table.undefined.insert((symbol, name(&u["image"])));
        }
    }
    table.error = list(&process["steps"]).last().and_then(|s| s["error"].as_str()).map(BString::from);
    Ok(table)
}

// ----------------------------------------------------------------------------------------------------- the comparison

fn compare(real: &Table, ours: &Table, whole: bool) -> Result<(), Failed> {
    let ours_only: Vec<&Line> = ours.lines.difference(&real.lines).collect();
    let real_only = real.lines.difference(&ours.lines).filter(|line| ours.images.contains(&line.0));
    let real_only: Vec<&Line> = real_only.filter(|line| is_a_relocation(line)).collect();
    if real_only.is_empty() && (ours_only.is_empty() || !whole) {
        return Ok(());
    }
    let mut text = format!("{} bindings seen, {} told\n", real.lines.len(), ours.lines.len());
    for (side, lines) in [("real", real_only), ("ours", if whole { ours_only } else { Vec::new() })] {
        text.push_str(&format!("  only {side}: {}\n", lines.len()));
        for (from, to, symbol, version) in lines.into_iter().take(SHOWN) {
            text.push_str(&format!("    {from} -> {to}: {symbol} {version:?}\n"));
        }
    }
    Err(text.into())
}

/// True unless a second reader finds no relocation with that symbol in the file: then something else than a relocation
/// made the lookup.
fn is_a_relocation(line: &Line) -> bool {
    type Known = Mutex<HashMap<BString, Option<Arc<HashSet<Vec<u8>>>>>>;
    static KNOWN: OnceLock<Known> = OnceLock::new();
    let (from, _, symbol, _) = line;
    if from.contains_str("linux-vdso") || from.contains_str("/ld-linux") {
        return false;
    }
    let mut known = KNOWN.get_or_init(Mutex::default).lock().unwrap_or_else(|e| e.into_inner());
    let symbols = known.entry(from.clone()).or_insert_with(|| relocated(Path::new(OsStr::from_bytes(from)))).clone();
    symbols.is_none_or(|symbols| symbols.contains(symbol.as_slice()))
}

/// The names of all symbols that relocations of a file name.
fn relocated(path: &Path) -> Option<Arc<HashSet<Vec<u8>>>> {
    let bytes = fs::read(path).ok()?;
    let elf = goblin::elf::Elf::parse(&bytes).ok()?;
    let all = elf.dynrelas.iter().chain(elf.dynrels.iter()).chain(elf.pltrelocs.iter());
    let names: BTreeMap<usize, ()> = all.map(|r| (r.r_sym, ())).collect();
    let name = |index: &usize| Some(elf.dynstrtab.get_at(elf.dynsyms.get(*index)?.st_name)?.as_bytes().to_vec());
    Some(Arc::new(names.keys().filter_map(name).collect()))
}
