//! Programs of `/usr/bin` and libraries of the system under musl's loader: `ldaudit --loader musl:… --format ldd` against
//! `ld-musl-*.so.1 --list`, line by line: what is listed, what cannot be loaded, what cannot be relocated.
//!
//! Nearly all of them are made for glibc, so that most of what musl says is errors. Two thousand files take ten seconds.
//! `LDAUDIT_REQUIRE=musl` makes the absence of musl a failure.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;

use crate::Part;
use crate::support::{require, system_files};
use libtest_mimic::Failed;

const MUSL: &str = "/lib/ld-musl-x86_64.so.1";

/// Lists the trials.
pub fn list(part: &mut Part) {
    if !Path::new(MUSL).exists() {
        part.absent("musl is not installed", require::is_required("musl"));
        return;
    }
    let own = system_files::facts(Path::new("/proc/self/exe")).expect("this program is an ELF file");
    let files = system_files::files().into_iter().filter(|path| {
        system_files::facts(path)
            .is_some_and(|f| f.layout == own.layout && f.header.machine == own.header.machine && f.has_dynamic)
    });
    for path in files {
        part.add(path.display().to_string(), move || compare(&path));
    }
    assert!(part.trials.len() > 20, "the programs and libraries of the system were not found");
}

/// What a command says on both streams in its order, without addresses, and the signal that ended it.
fn said(command: &[&str]) -> Result<(Vec<String>, Option<i32>), Failed> {
    let output = Command::new("/bin/sh")
        .args(["-c", "exec \"$@\" 2>&1", "sh"])
        .args(command)
        .env_clear()
        .current_dir("/")
        .output()
        .map_err(|e| Failed::from(format!("cannot run {command:?}: {e}")))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let lines = text.lines().map(|l| l.rfind(" (0x").map_or(l, |at| &l[..at]).to_owned()).collect();
    Ok((lines, output.status.signal()))
}

fn compare(path: &Path) -> Result<(), Failed> {
    let name = path.to_str().ok_or("a name that is not UTF-8")?;
    let (ours, killed) = said(&[env!("CARGO_BIN_EXE_ldaudit"), "--loader", "musl:1.2", "--format", "ldd", name])?;
    if let Some(signal) = killed {
        return Err(format!("ldaudit was killed by signal {signal}").into());
    }
    let (theirs, killed) = said(&[MUSL, "--list", name])?;
    if let Some(signal) = killed {
        // What it said before it died holds all the same.
        let is_start = ours.starts_with(&theirs);
        return if is_start { Ok(()) } else { Err(difference(&ours, &theirs, &format!("(signal {signal})"))) };
    }
    if ours == theirs { Ok(()) } else { Err(difference(&ours, &theirs, "")) }
}

/// What only one of them says, and where they part.
fn difference(ours: &[String], theirs: &[String], how: &str) -> Failed {
    let at = ours.iter().zip(theirs).take_while(|(a, b)| a == b).count();
    let mut text =
        format!("musl says otherwise from line {} of {} (here {}) on {how}:\n", at + 1, theirs.len(), ours.len());
    for line in theirs.iter().skip(at).take(4) {
        text.push_str(&format!("  real  {line}\n"));
    }
    for line in ours.iter().skip(at).take(4) {
        text.push_str(&format!("  ours  {line}\n"));
    }
    let mut only: Vec<String> =
        theirs.iter().filter(|l| !ours.contains(l)).map(|l| format!("  only real  {l}\n")).collect();
    only.extend(ours.iter().filter(|l| !theirs.contains(l)).map(|l| format!("  only ours  {l}\n")));
    text.extend(only.into_iter().take(8));
    text.into()
}
