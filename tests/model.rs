//! Every fixture against the model, in memory: one test for each fixture and each loader that it concerns.
//!
//! The expectations are those that real loaders met (`tests/oracle.rs` runs the same files).

use std::path::{Path, PathBuf};

use ldaudit::fixture::{Fixture, Loader, judge, simulate};
use libtest_mimic::{Arguments, Trial};

/// Fixtures that the model does not answer yet, each with the reason. A fixture in this list must fail: one that passes
/// has to be taken out.
const NOT_YET: &[(&str, &str)] = &[(
    "search/tail_called_dlopen_counts_for_the_callers_caller",
    "whether a call of dlopen is a jump is not visible in what the model reads",
)];

fn main() {
    let arguments = Arguments::from_args();
    let loaders =
        [Loader::glibc(2, 31), Loader::glibc(2, 36), Loader::glibc(2, 41), Loader::glibc(2, 43), Loader::musl(1, 2, 3)];
    let mut trials = Vec::new();
    for path in fixture_files() {
        let text = std::fs::read(&path).expect("fixture file");
        let name = name_of(&path);
        let fixture = match Fixture::parse(&text) {
            Ok(fixture) => fixture,
            Err(problems) => {
                let text =
                    problems.iter().map(|p| format!("line {}: {}", p.line, p.text)).collect::<Vec<_>>().join("\n");
                trials.push(Trial::test(name, move || Err(text.into())));
                continue;
            }
        };
        for loader in loaders.into_iter().filter(|l| fixture.concerns(*l)) {
            let fixture = fixture.clone();
            let not_yet = NOT_YET.iter().find(|(known, _)| *known == name).map(|(_, why)| *why);
            let label = match not_yet {
                None => format!("{name} [{loader}]"),
                Some(why) => format!("{name} [{loader}] (not yet: {why})"),
            };
            trials.push(Trial::test(label, move || match (not_yet, check(&fixture, loader)) {
                (None, result) => result,
                (Some(_), Err(_)) => Ok(()),
                (Some(why), Ok(())) => Err(format!("passes now, take it out of NOT_YET: {why}").into()),
            }));
        }
    }
    assert!(trials.len() > 200, "the fixtures were not found");
    libtest_mimic::run(&arguments, trials).exit();
}

fn check(fixture: &Fixture, loader: Loader) -> Result<(), libtest_mimic::Failed> {
    let mut complaints = Vec::new();
    for run in fixture.runs(loader) {
        let seen = simulate::observe(fixture, loader, &run).map_err(|p| format!("line {}: {}", p.line, p.text))?;
        complaints.extend(judge::judge(&run, &seen));
    }
    if complaints.is_empty() { Ok(()) } else { Err(complaints.join("\n").into()) }
}

fn fixture_files() -> Vec<PathBuf> {
    let mut out = Vec::new();
    let mut pending = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures")];
    while let Some(directory) = pending.pop() {
        for entry in std::fs::read_dir(&directory).expect("fixtures") {
            let path = entry.expect("entry").path();
            if path.is_dir() {
                pending.push(path);
            } else if path.extension().is_some_and(|e| e == "ld") {
                out.push(path);
            }
        }
    }
    out.sort();
    out
}

fn name_of(path: &Path) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
    path.strip_prefix(root).unwrap_or(path).with_extension("").to_string_lossy().into_owned()
}
