//! Healthy programs and environments give no error and no warning: every program and library of this machine's system
//! directories, and `import torch` in every environment there is, each in a clean environment. The libraries of the
//! environments are opened after it, by the real loader and by the model: what really loads gives no error and no warning,
//! what does not gives the loader's own text. Alone, as ldd has them, they give no error about symbols. `LDAUDIT_REAL=full`
//! takes every library, else a part.
//!
//! `tests/make-boxes` makes the environments; without them that part is told as an ignored test, which
//! `LDAUDIT_REQUIRE=boxes` makes fail.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Parser;
use ldaudit::cli::args::Args;
use ldaudit::cli::audit;
use ldaudit::cli::loaders::Loaders;
use ldaudit::findings::{BUILT_FOR_OTHER_TORCH, Severity, TWO_COPIES, UNDEFINED_SYMBOL};
use ldaudit::ld::OpenFlags;

use crate::Part;
use libtest_mimic::Failed;

/// Lists the trials.
pub fn list(part: &mut Part) {
    for directory in ["/usr/bin", "/usr/sbin", "/usr/lib/x86_64-linux-gnu", "/usr/lib64"] {
        let files = elf_files(Path::new(directory));
        if !files.is_empty() {
            let name = format!("{directory}: {} files", files.len());
            part.add(name, move || quiet(&files, &[]));
        }
    }
    for (name, directory) in part.boxes() {
        let environment = directory.clone();
        part.add(format!("{name}: libraries after import torch"), move || opened(&environment));
        part.add(format!("{name}: import torch"), move || {
            quiet(&[PathBuf::from("torch")], &["--python".into(), directory.into_os_string()])
        });
    }
}

/// Regular ELF files of a directory; links to them are the same files.
fn elf_files(directory: &Path) -> Vec<PathBuf> {
    let mut out: Vec<PathBuf> = std::fs::read_dir(directory)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|e| e.file_type().is_ok_and(|t| t.is_file()))
        .map(|e| e.path())
        .filter(|p| is_program_or_library(p))
        .collect();
    out.sort();
    out
}

/// An ELF file of type EXEC or DYN: object files lie there too.
fn is_program_or_library(path: &Path) -> bool {
    use std::io::Read;
    let mut head = [0u8; 18];
    let read = std::fs::File::open(path).and_then(|mut f| f.read_exact(&mut head));
    read.is_ok() && head.starts_with(b"\x7fELF") && matches!(head[16].max(head[17]), 2 | 3)
}

fn quiet(targets: &[PathBuf], options: &[std::ffi::OsString]) -> Result<(), Failed> {
    let mut complaints = Vec::new();
    for part in targets.chunks(200) {
        let output = Command::new(env!("CARGO_BIN_EXE_ldaudit"))
            .args(["--format", "jsonl"])
            .args(options)
            .args(part)
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .output()?;
        let mut reports = 0;
        for line in output.stdout.split(|b| *b == b'\n').filter(|l| !l.is_empty()) {
            reports += 1;
            let report: serde_json::Value = serde_json::from_slice(line)?;
            let target = &report["target"]["name"];
            for finding in report["findings"].as_array().into_iter().flatten() {
                if finding["severity"] != "note" {
                    complaints.push(format!("{target}: {}: {}", finding["rule"], finding["summary"]));
                }
            }
            if report["verdict"] != "ok" {
                complaints.push(format!("{target}: {}", report["verdict"]));
            }
        }
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.code() != Some(0) || reports != part.len() {
            complaints.push(format!("{reports} of {} reports, {}: {errors}", part.len(), output.status));
        }
    }
    if complaints.is_empty() { Ok(()) } else { Err(complaints.join("\n").into()) }
}

/// Opens each file in a process of its own that has imported torch; the answers as JSON.
const OPENER: &str = r#"
import ctypes, json, os, sys
import torch
answers = {}
for path in sys.argv[1:]:
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            ctypes.CDLL(path)
            text = "ok"
        except OSError as e:
            text = str(e)
        os.write(theirs, text.encode())
        os._exit(0)
    os.close(theirs)
    with os.fdopen(ours, "rb") as answer:
        answers[path] = answer.read().decode()
    os.waitpid(pid, 0)
print(json.dumps(answers))
"#;

fn libraries(environment: &Path) -> Vec<PathBuf> {
    let step = if std::env::var("LDAUDIT_REAL").is_ok_and(|v| v == "full") { 1 } else { 5 };
    let files = walkdir::WalkDir::new(environment.join("lib/python3.11/site-packages")).sort_by_file_name();
    let files = files.into_iter().flatten().filter(|e| e.file_type().is_file()).map(|e| e.into_path());
    let is_library = |p: &PathBuf| p.file_name().is_some_and(|n| n.to_string_lossy().contains(".so"));
    files.filter(is_library).filter(|p| is_program_or_library(p)).step_by(step).collect()
}

fn opened(environment: &Path) -> Result<(), Failed> {
    let files = libraries(environment);
    let output = Command::new(environment.join("bin/python"))
        .args(["-B", "-c", OPENER])
        .args(&files)
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .output()?;
    let answers: BTreeMap<String, String> = serde_json::from_slice(&output.stdout)
        .map_err(|e| format!("no answers: {e}: {}", String::from_utf8_lossy(&output.stderr)))?;
    let python = environment.to_string_lossy().into_owned();
    // cargo sets the variable for the tests.
    let words = ["ldaudit", "--unset", "LD_LIBRARY_PATH", "--python", &python, "torch"];
    let args = Args::parse_from(words);
    let system = audit::system(&args)?;
    let loaders = Loaders::new(&args, &system);
    let mut plan = audit::named_plans(&loaders, &mut None)?.plans.pop().ok_or("no plan")?;
    let mut complaints = Vec::new();
    for file in &files {
        let path = file.as_os_str().as_bytes();
        let real = answers.get(&*file.to_string_lossy()).ok_or("no answer")?;
        plan.opens = vec![(path.into(), OpenFlags::default())];
        let report = audit::audit(&plan);
        let step = report.process.steps.last().ok_or("no step")?;
        let predicted = step.error.as_ref().map_or_else(|| "ok".to_owned(), ToString::to_string);
        if predicted != *real {
            complaints.push(format!("{}: predicted {predicted}, really {real}", file.display()));
        }
        // A second copy beside torch's own is one.
        let loud = report.findings.iter().filter(|f| f.severity > Severity::Note && f.rule != TWO_COPIES);
        if real == "ok" {
            complaints.extend(loud.map(|f| format!("{}: {}: {}", file.display(), f.rule.id, f.summary)));
            let alone = audit::audit(&audit::plan_file(&loaders, path.into())?);
            let of_symbols = |r| r == UNDEFINED_SYMBOL || r == BUILT_FOR_OTHER_TORCH;
            let loud = alone.findings.iter().filter(|f| f.severity > Severity::Note && of_symbols(f.rule));
            complaints.extend(loud.map(|f| format!("{} alone: {}: {}", file.display(), f.rule.id, f.summary)));
        }
    }
    if complaints.is_empty() { Ok(()) } else { Err(complaints.join("\n").into()) }
}
