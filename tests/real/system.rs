//! Every program in `/usr/bin` and every library below the loader's default directories: `ldaudit --format ldd` against this
//! machine's `ldd`, line by line.
//!
//! `ldd` gives programs to the loader as an argument, while a program that is started has the directory of its real file
//! as `$ORIGIN`; for a link these differ. Where `ldaudit` and `ldd` disagree about a link to a program, the judge is
//! therefore the start by the kernel, with `LD_TRACE_LOADED_OBJECTS` set; the test is then named so. Files for which
//! this machine's loader is not the judge (another machine or class, musl) are told as ignored tests with the reason.
//!
//! `LDAUDIT_REQUIRE=ldd` makes the absence of `ldd` a failure. Everything here takes about a minute on two cores.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use bstr::{BString, ByteSlice};
use libtest_mimic::Failed;

use crate::Part;
use crate::support::{require, system_files};
use system_files::{facts, files};

const LDD: &str = "/usr/bin/ldd";
/// Set-user-ID, set-group-ID.
const SET_ID: u32 = 0o6000;

/// Lists the trials.
pub fn list(part: &mut Part) {
    if !Path::new(LDD).exists() {
        part.absent("there is no ldd on this machine", require::is_required("ldd"));
        return;
    }
    for path in files() {
        let name = path.display().to_string();
        match obstacle(&path) {
            Some(why) => part.absent(format!("{name}: {why}"), false),
            None => part.add(name, move || compare(&path)),
        }
    }
    assert!(part.trials.len() > 50, "the programs and libraries of the system were not found");
}

/// Why this machine's `ldd` is not the judge of a file.
fn obstacle(path: &Path) -> Option<&'static str> {
    let own = facts(Path::new("/proc/self/exe"))?;
    let Some(facts) = facts(path) else { return Some("not readable as ELF") };
    if facts.layout != own.layout || facts.header.machine != own.header.machine {
        return Some("for another machine or class");
    }
    let musl = |name: &BString| name.starts_with(b"libc.musl-") || name.as_slice() == b"libc.so";
    let is_musl = facts.interpreter.as_ref().is_some_and(|i| i.find(b"ld-musl").is_some()) || facts.needed().any(musl);
    is_musl.then_some("for musl's loader")
}

/// What a command says, without addresses.
fn said(command: &mut Command) -> Result<Vec<String>, Failed> {
    let output = command
        .env_clear()
        .env("LC_ALL", "C")
        .env("PATH", "/usr/bin:/bin")
        .current_dir("/")
        .output()
        .map_err(|e| Failed::from(format!("cannot run it: {e}")))?;
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    let lines = text.lines().map(|l| match l.rfind(" (0x") {
        Some(at) => l[..at].trim().to_owned(),
        None => l.trim().to_owned(),
    });
    Ok(lines.filter(|l| !l.starts_with("ldd: warning: you do not have execution permission")).collect())
}

fn compare(path: &Path) -> Result<(), Failed> {
    let ours = said(Command::new(env!("CARGO_BIN_EXE_ldaudit")).args(["--format", "ldd"]).arg(path))?;
    let theirs = said(Command::new(LDD).arg(path))?;
    if ours == theirs {
        return Ok(());
    }
    if let Some(kernel) = kernel_start(path)? {
        if ours == kernel {
            return Ok(());
        }
        return Err(difference(&ours, &kernel, "a start by the kernel"));
    }
    Err(difference(&ours, &theirs, "ldd"))
}

/// What the loader lists when the kernel starts a program by a link. Never for a program that would not take the variable
/// from us, since it would then really run.
fn kernel_start(path: &Path) -> Result<Option<Vec<String>>, Failed> {
    let is_link = fs::symlink_metadata(path).is_ok_and(|m| m.file_type().is_symlink());
    let is_safe = fs::metadata(path).is_ok_and(|m| m.permissions().mode() & SET_ID == 0);
    let is_dynamic = facts(path).and_then(|f| f.interpreter).is_some_and(|i| i.find(b"/ld-linux").is_some());
    if !(is_link && is_safe && is_dynamic) {
        return Ok(None);
    }
    said(Command::new("/usr/bin/env").arg("LD_TRACE_LOADED_OBJECTS=1").arg(path)).map(Some)
}

fn difference(ours: &[String], theirs: &[String], judge: &str) -> Failed {
    let mut text = format!("{judge} says otherwise:\n");
    for line in theirs.iter().filter(|l| !ours.contains(l)) {
        text.push_str(&format!("  real  {line}\n"));
    }
    for line in ours.iter().filter(|l| !theirs.contains(l)) {
        text.push_str(&format!("  ours  {line}\n"));
    }
    if text.lines().count() == 1 {
        text.push_str(&format!("  in another order\n  real  {theirs:?}\n  ours  {ours:?}\n"));
    }
    text.into()
}
