//! Every fixture against real loaders: this machine's glibc and musl, and the glibc of each foreign root that
//! `tests/make-roots` made.
//!
//! A fixture's expectations must be what the real loader does. What is missing on this machine is told as an ignored
//! test with the reason in its name; LDAUDIT_REQUIRE makes chosen absences fail: a comma-separated list of `root`,
//! `musl`, `glibc2.31` (any release), `cpu-v3` (any level).
//!
//! `LDAUDIT_BLESS=1` writes what this machine's loader did into fixtures that have no expectations yet, and what other
//! loaders did differently into `differs` blocks whose reason a person must write (the lint test refuses them until
//! then). `LDAUDIT_BLESS=bindings` leaves out where files were found. Read every line against the rule before committing.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use ldaudit::fixture::judge::{judge, lint};
use ldaudit::fixture::{Family, Fixture, Loader, What};
use libtest_mimic::Failed;

use crate::Part;
use crate::support::{fixtures, oracle, require};
use oracle::{Real, Stop};

/// The reason that blessing writes, and that no committed fixture may have.
const NO_REASON: &str = "REASON";

/// A fixture as a test: it parses, prints as it stands, states its rule, and expects something of each step.
fn lint_test(path: &Path) -> Result<(), Failed> {
    let fixture = fixtures::read(path)?;
    let again = Fixture::parse(fixture.print().as_bytes()).map_err(|_| "what is printed does not parse")?;
    if again != fixture {
        return Err("printing and reading again gives another fixture".into());
    }
    let mut problems: Vec<String> = lint(&fixture).iter().map(ToString::to_string).collect();
    for statement in &fixture.statements {
        if let What::Differs { reason, .. } = &statement.what
            && reason == NO_REASON
        {
            problems.push(format!("line {}: a person must write the reason", statement.line));
        }
    }
    if !fixture.rule().iter().any(u8::is_ascii_digit) {
        problems.push("the first comment names no rule".into());
    }
    if problems.is_empty() { Ok(()) } else { Err(problems.join("\n").into()) }
}

fn oracle_test(path: &Path, real: &Real) -> Result<(), Failed> {
    let fixture = fixtures::read(path)?;
    let seen = match oracle::observe(&fixture, real, &fixtures::name_of(path)) {
        Ok(seen) => seen,
        Err(Stop::Skip(why) | Stop::Fail(why)) => return Err(why.into()),
    };
    let runs = fixture.runs(real.loader);
    let mut complaints = Vec::new();
    for (run, observation) in runs.iter().zip(&seen) {
        complaints.extend(judge(run, observation));
    }
    if complaints.is_empty() {
        return Ok(());
    }
    let shown =
        oracle::describe(&fixture, &runs, &seen).into_iter().map(|step| step.join("\n    ")).collect::<Vec<_>>();
    Err(format!(
        "{}: the real loader disagrees\n  {}\n  it did:\n    {}",
        path.display(),
        complaints.join("\n  "),
        shown.join("\n    --\n    ")
    )
    .into())
}

/// Lists the trials.
pub fn list(part: &mut Part) {
    let loaders = oracle::loaders();
    let files = fixtures::all();
    let mut usable: Vec<Arc<Real>> = Vec::new();
    for loader in loaders {
        match loader {
            Ok(real) => usable.push(Arc::new(real)),
            Err(why) => {
                let fatal = (require::is_required("root") && why.contains("root"))
                    || (require::is_required("musl") && why.contains("musl"));
                part.absent(why, fatal);
            }
        }
    }
    // Loaders asked for by release.
    for item in require::all() {
        if let Some(release) = item.strip_prefix("glibc")
            && !usable.iter().any(|r| r.loader.to_string() == format!("glibc-{release}"))
        {
            part.absent(format!("glibc {release} is not at hand"), true);
        }
    }
    for path in files {
        let name = fixtures::name_of(&path);
        {
            let path = path.clone();
            part.add(format!("{name} [lint]"), move || lint_test(&path));
        }
        let Ok(fixture) = fixtures::read(&path) else { continue };
        for real in usable.iter().filter(|r| fixture.concerns(r.loader)) {
            match oracle::obstacle(&fixture, real) {
                Some(why) => {
                    let fatal = why.split(':').next().is_some_and(require::is_required);
                    part.absent(format!("{name} [{}] {why}", real.loader), fatal);
                }
                None => {
                    let (path, real) = (path.clone(), Arc::clone(real));
                    part.add(format!("{name} [{}]", real.loader), move || oracle_test(&path, &real));
                }
            }
        }
    }
}

/// Writes expectations into fixtures that have none: those whose trials' names contain a filter.
pub fn bless(filter: &str) {
    let loaders = oracle::loaders();
    let only_bindings = std::env::var("LDAUDIT_BLESS").is_ok_and(|v| v == "bindings");
    let kept = |steps: Vec<Vec<String>>| -> Vec<Vec<String>> {
        let is_search = |line: &String| only_bindings && (line.starts_with("found ") || line.starts_with("order "));
        steps.into_iter().map(|lines| lines.into_iter().filter(|l| !is_search(l)).collect()).collect()
    };
    let wanted = |name: &str| format!("oracle::{name}").contains(filter);
    for path in fixtures::all().iter().filter(|p| wanted(&fixtures::name_of(p))) {
        let fixture = match fixtures::read(path) {
            Ok(fixture) => fixture,
            Err(why) => {
                println!("{why}");
                continue;
            }
        };
        if fixture.statements.iter().any(|s| matches!(s.what, What::Expect(_))) {
            continue;
        }
        let mut seen: Vec<(Loader, Vec<Vec<String>>)> = Vec::new();
        for real in loaders.iter().flatten().filter(|r| fixture.concerns(r.loader)) {
            match oracle::observe(&fixture, real, &fixtures::name_of(path)) {
                Ok(observations) => {
                    let steps = oracle::describe(&fixture, &fixture.runs(real.loader), &observations);
                    seen.push((real.loader, kept(steps)));
                }
                Err(Stop::Skip(why) | Stop::Fail(why)) => {
                    println!("{} [{}]: {why}", fixtures::name_of(path), real.loader)
                }
            }
        }
        let Some((_, base)) = seen.first() else { continue };
        let mut out = String::new();
        let mut step = 0;
        for statement in &fixture.statements {
            let one = Fixture { statements: vec![statement.clone()] };
            out.push_str(&one.print());
            if !matches!(statement.what, What::Step(_)) {
                continue;
            }
            let lines = base.get(step).cloned().unwrap_or_default();
            for line in &lines {
                out.push_str(line);
                out.push('\n');
            }
            // Loaders that did the same other thing share a block.
            let mut groups: Vec<(Vec<Loader>, Vec<String>)> = Vec::new();
            for (loader, steps) in seen.iter().skip(1) {
                let theirs = steps.get(step).cloned().unwrap_or_default();
                let changed = difference(&lines, &theirs, *loader);
                if changed.is_empty() {
                    continue;
                }
                match groups.iter_mut().find(|(_, c)| *c == changed) {
                    Some((loaders, _)) => loaders.push(*loader),
                    None => groups.push((vec![*loader], changed)),
                }
            }
            for (loaders, changed) in groups {
                let selectors: Vec<String> = loaders
                    .iter()
                    .map(|l| match l.family {
                        Family::Musl => "musl".to_owned(),
                        Family::Glibc => format!("glibc={}", l.version),
                    })
                    .collect();
                out.push_str(&format!("differs {} because {NO_REASON}\n", selectors.join(" ")));
                for line in changed {
                    out.push_str(&format!("    {line}\n"));
                }
            }
            step += 1;
        }
        fs::write(path, &out).expect("write the fixture");
        println!("blessed {}", fixtures::name_of(path));
    }
}

/// The lines that a `differs` block needs to turn one loader's description into another's.
fn difference(base: &[String], theirs: &[String], loader: Loader) -> Vec<String> {
    let is_outcome =
        |line: &String| ["ok", "error ", "warning ", "exit ", "killed "].iter().any(|word| line.starts_with(word));
    let subject = |line: &String| -> Option<String> {
        line.strip_prefix("found ").map(|rest| rest.split(" at ").next().unwrap_or(rest).to_owned())
    };
    let reference = |line: &String| -> Option<String> {
        line.strip_prefix("binds ").map(|rest| rest.split(" to ").next().unwrap_or(rest).to_owned())
    };
    // musl tells no rule and no requester: only the paths are compared.
    let cut = |line: &String| match (loader.family, line.split_once(" via ")) {
        (Family::Musl, Some((path, _))) => path.to_owned(),
        _ => line.clone(),
    };
    let mut out = Vec::new();
    let outcomes = |lines: &[String]| lines.iter().filter(|l| is_outcome(l)).cloned().collect::<Vec<_>>();
    if outcomes(base) != outcomes(theirs) {
        out.extend(outcomes(theirs));
    }
    let known: Vec<String> = base.iter().map(cut).collect();
    out.extend(theirs.iter().filter(|l| !is_outcome(l) && !known.contains(&cut(l))).cloned());
    let worked = theirs.iter().any(|l| l == "ok");
    if loader.family == Family::Glibc || worked {
        let names: Vec<String> = theirs.iter().filter_map(subject).collect();
        let gone = base.iter().filter_map(subject).filter(|name| !names.contains(name));
        out.extend(gone.map(|name| format!("notloaded {name}")));
    }
    if worked || loader.family == Family::Glibc {
        let references: Vec<String> = theirs.iter().filter_map(reference).collect();
        let gone = base.iter().filter_map(reference).filter(|r| !references.contains(r));
        out.extend(gone.map(|reference| format!("unbound {reference}")));
    }
    out
}
