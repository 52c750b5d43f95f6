//! Every fixture against the model, in memory: one test for each fixture and each loader that it concerns.
//!
//! The expectations are those that real loaders met (`oracle.rs` runs the same files).

use crate::Part;
use crate::support::fixtures;
use ldaudit::fixture::{Fixture, Loader, judge, simulate};

/// Fixtures that the model does not answer yet, each with the reason. A fixture in this list must fail: one that passes
/// has to be taken out.
const NOT_YET: &[(&str, &str)] = &[(
    "search/tail_called_dlopen_counts_for_the_callers_caller",
    "whether a call of dlopen is a jump is not visible in what the model reads",
)];

/// Lists the trials.
pub fn list(part: &mut Part) {
    let loaders =
        [Loader::glibc(2, 31), Loader::glibc(2, 36), Loader::glibc(2, 41), Loader::glibc(2, 43), Loader::musl(1, 2, 3)];
    for path in fixtures::all() {
        let name = fixtures::name_of(&path);
        let fixture = match fixtures::read(&path) {
            Ok(fixture) => fixture,
            Err(problems) => {
                part.add(name, move || Err(problems.into()));
                continue;
            }
        };
        for loader in loaders.into_iter().filter(|l| fixture.concerns(*l)) {
            let fixture = fixture.clone();
            let whole = format!("{name} [{loader}]");
            let not_yet = NOT_YET.iter().find(|(known, _)| *known == name || *known == whole).map(|(_, why)| *why);
            let label = match not_yet {
                None => format!("{name} [{loader}]"),
                Some(why) => format!("{name} [{loader}] (not yet: {why})"),
            };
            part.add(label, move || match (not_yet, check(&fixture, loader)) {
                (None, result) => result,
                (Some(_), Err(_)) => Ok(()),
                (Some(why), Ok(())) => Err(format!("passes now, take it out of NOT_YET: {why}").into()),
            });
        }
    }
    assert!(part.trials.len() > 200, "the fixtures were not found");
}

fn check(fixture: &Fixture, loader: Loader) -> Result<(), libtest_mimic::Failed> {
    let mut complaints = Vec::new();
    for run in fixture.runs(loader) {
        let seen = simulate::observe(fixture, loader, &run).map_err(|p| format!("line {}: {}", p.line, p.text))?;
        complaints.extend(judge::judge(&run, &seen));
    }
    if complaints.is_empty() { Ok(()) } else { Err(complaints.join("\n").into()) }
}
