//! Healthy programs and environments give no error and no warning: every program and library of this machine's system
//! directories, and `import torch` in every environment there is, each in a clean environment.
//!
//! `tests/make-boxes` makes the environments; without them that part is told as an ignored test, which
//! `LDAUDIT_REQUIRE=boxes` makes fail.

#[path = "support/cached.rs"]
mod cached;
#[path = "support/require.rs"]
mod require;

use std::path::{Path, PathBuf};
use std::process::Command;

use libtest_mimic::{Arguments, Failed, Trial};

fn main() {
    let arguments = Arguments::from_args();
    let mut trials = Vec::new();
    for directory in ["/usr/bin", "/usr/sbin", "/usr/lib/x86_64-linux-gnu", "/usr/lib64"] {
        let files = elf_files(Path::new(directory));
        if !files.is_empty() {
            let name = format!("{directory}: {} files", files.len());
            trials.push(Trial::test(name, move || quiet(&files, &[])));
        }
    }
    let boxes = cached::boxes();
    if boxes.is_empty() {
        let why = "skipped: no environments (make them with tests/make-boxes)";
        let fatal = require::is_required("boxes");
        trials.push(Trial::test(why, || Err(Failed::from("required, but missing"))).with_ignored_flag(!fatal));
    }
    for directory in boxes {
        let name = directory.file_name().unwrap_or_default().to_string_lossy().into_owned();
        trials.push(Trial::test(format!("{name}: import torch"), move || {
            quiet(&[PathBuf::from("torch")], &["--python".into(), directory.into_os_string()])
        }));
    }
    libtest_mimic::run(&arguments, trials).exit();
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
