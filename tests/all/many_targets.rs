//! Many targets in one run, and runs that record no attempts: the answers must be those of one target alone with its whole
//! record, at any number of threads.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::support::fixtures;
use bstr::ByteSlice;
use ldaudit::fixture::{Expected, Loader, Run, Step, simulate};
use ldaudit::ld::{OpenFlags, OpenRequest, Process, Start};
use serde_json::Value;

/// Feeds the steps of a run to a process, as far as they need no options of the loader.
fn feed(mut process: Process, run: &Run) -> Process {
    for Expected { step, .. } in &run.steps {
        match step {
            Step::Exec(exec) => {
                let start = if exec.loader_options.is_some() { Start::Loader } else { Start::Kernel };
                process.exec(exec.path.as_bstr(), exec.path.as_bstr(), start);
            }
            Step::Call(_) => {}
            Step::Dlopen(open) => {
                let flags = OpenFlags { global: open.global, lazy: open.lazy, ..OpenFlags::default() };
                process.dlopen(&OpenRequest { flags, ..OpenRequest::new(open.name.clone()) });
            }
        }
    }
    process
}

/// What a process answers: images, load order, how each step ended, what was not found.
fn answers(p: &Process) -> Vec<String> {
    let mut out: Vec<String> = Vec::new();
    for image in &p.images {
        let names = image.names.iter().map(|n| n.to_string()).collect::<BTreeSet<_>>();
        out.push(format!("{:?} {} {names:?} unloaded {:?}", image.role, image.name, image.unloaded_by));
    }
    out.push(format!("order {:?} global {:?}", p.load_order(), p.global_scope()));
    for step in &p.steps {
        // An errno that an earlier failed try left behind may stand at the end of a text.
        let text = step.failure.as_ref().map(|f| (f.object.to_string(), f.text.to_string(), f.is_version, f.signal));
        out.push(format!("step {} {:?} {text:?} {:?}", step.name, step.outcome, step.warnings));
    }
    for d in p.decisions.iter().filter(|d| d.chosen.is_none()) {
        out.push(format!("nothing for {} needed by {:?}", d.asked, d.needed_by));
    }
    out
}

#[test]
fn answers_are_the_same_without_attempts() {
    let mut runs = 0;
    for path in fixtures::all() {
        let fixture = fixtures::sound(&path);
        for loader in [Loader::glibc(2, 31), Loader::glibc(2, 36), Loader::glibc(2, 41), Loader::musl(1, 2, 3)] {
            if !fixture.concerns(loader) {
                continue;
            }
            for run in fixture.runs(loader) {
                let make = || simulate::process(&fixture, loader, &run).map_err(|p| p.text);
                let (Ok(whole), Ok(bare)) = (make(), make()) else { continue };
                let (whole, bare) = (feed(whole, &run), feed(bare.without_attempts(), &run));
                assert_eq!(answers(&whole), answers(&bare), "{} under {loader}", path.display());
                runs += 1;
            }
        }
    }
    assert!(runs > 500, "only {runs} runs");
}

fn programs() -> Vec<String> {
    let is_elf = |p: &PathBuf| fs::read(p).is_ok_and(|b| b.starts_with(b"\x7fELF"));
    let mut files: Vec<PathBuf> =
        fs::read_dir("/usr/bin").expect("/usr/bin").flatten().map(|e| e.path()).filter(is_elf).collect();
    files.extend([std::env::current_exe().expect("own path"), PathBuf::from(env!("CARGO_BIN_EXE_ldaudit"))]);
    files.sort();
    files.into_iter().map(|p| p.into_os_string().into_string().expect("UTF-8")).collect()
}

/// Output and exit status.
fn ldaudit(words: &[&str], files: &[String]) -> (Option<i32>, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_ldaudit"))
        .args(words)
        .args(files)
        .env_remove("LD_LIBRARY_PATH")
        .env_remove("LD_PRELOAD")
        .output()
        .expect("ldaudit runs");
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    (output.status.code(), String::from_utf8(output.stdout).expect("UTF-8"))
}

#[test]
fn output_does_not_depend_on_the_number_of_threads() {
    let files = programs();
    for format in ["ldd", "jsonl", "text"] {
        let one = ldaudit(&["--format", format, "--threads", "1"], &files);
        for threads in ["2", "7"] {
            let many = ldaudit(&["--format", format, "--threads", threads], &files);
            assert_eq!(one.0, many.0, "{format}: status at {threads} threads");
            assert!(one.1 == many.1, "{format}: output at {threads} threads differs");
        }
    }
}

#[test]
fn the_ldd_form_of_many_files_lists_what_the_whole_record_of_each_has() {
    let files = programs();
    let (_, reports) = ldaudit(&["--format", "jsonl"], &files);
    let (_, listing) = ldaudit(&["--format", "ldd"], &files);
    let mut lists: Vec<Vec<&str>> = Vec::new();
    for line in listing.lines() {
        match line.strip_prefix('\t') {
            None => lists.push(Vec::new()),
            Some(line) => lists.last_mut().expect("a file comes first").push(line),
        }
    }
    assert_eq!(lists.len(), files.len());
    let mut libraries = 0;
    for ((report, list), file) in reports.lines().zip(&lists).zip(&files) {
        let report: Value = serde_json::from_str(report).expect("JSON");
        assert_eq!(report["target"]["name"], file.as_str());
        let images = report["process"]["images"].as_array().expect("images");
        let names = images.iter().filter(|i| i["role"] == "library").map(|i| i["name"].as_str().expect("name"));
        let names: BTreeSet<&str> = names.collect();
        let loader = images.iter().find(|i| i["role"] == "loader").and_then(|i| i["name"].as_str());
        let path = |line: &&str| line.rsplit(" => ").next().unwrap_or(line).split(" (0x").next().map(str::to_owned);
        let listed: Vec<String> = list.iter().filter(|l| l.contains(" (0x")).filter_map(path).collect();
        let listed: BTreeSet<&str> =
            listed.iter().map(String::as_str).filter(|p| *p != "linux-vdso.so.1" && Some(*p) != loader).collect();
        assert_eq!(listed, names, "{file}");
        libraries += names.len();
    }
    assert!(libraries > 50, "only {libraries} libraries");
}

#[test]
fn targets_that_cannot_be_audited_are_named_and_the_others_audited() {
    let mut files = programs();
    files.truncate(20);
    let (status, listing) = ldaudit(&["--format", "ldd", "--threads", "2"], &files);
    assert_eq!(status, Some(0));
    files.insert(11, "/nonexistent/program".into());
    files.push("/dev".into());
    let output = Command::new(env!("CARGO_BIN_EXE_ldaudit"))
        .args(["--format", "ldd", "--threads", "2"])
        .args(&files)
        .output()
        .expect("ldaudit runs");
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(output.stdout.as_bstr(), listing.as_bytes().as_bstr());
    assert_eq!(
        output.stderr.as_bstr(),
        "ldaudit: cannot open `/nonexistent/program`: No such file or directory\n\
         ldaudit: cannot audit `/dev`: it is a directory\n"
    );
}

#[test]
fn one_json_report_is_not_followed_by_another() {
    let output = Command::new(env!("CARGO_BIN_EXE_ldaudit"))
        .args(["--format", "json", "/bin/true", "/bin/false"])
        .output()
        .expect("ldaudit runs");
    assert_eq!(output.status.code(), Some(2));
    assert!(output.stdout.is_empty());
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("hint: use `--format jsonl`, one report a line"), "{text}");
}
