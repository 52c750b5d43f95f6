//! What was seen, as the lines of a fixture that expect it.

use bstr::{BStr, BString, ByteSlice};
use ldaudit::fixture::{Bound, Fixture, Hit, Observation, Run, Step, Via, What};

/// Expectation lines that say what was seen, per step, for messages and for writing a new fixture.
pub fn describe(fixture: &Fixture, runs: &[Run], observations: &[Observation]) -> Vec<Vec<String>> {
    use ldaudit::fixture::Expectation as E;
    let mut out = Vec::new();
    for (run, seen) in runs.iter().zip(observations) {
        let mut before: Vec<BString> = Vec::new();
        for (index, step) in run.steps.iter().enumerate() {
            let (mut lines, mut binds): (Vec<E>, Vec<E>) = (Vec::new(), Vec::new());
            let Some(outcome) = seen.steps.get(index) else {
                out.push(Vec::new());
                continue;
            };
            if outcome.ok && outcome.killed.is_none() {
                lines.push(E::Ok);
            }
            for text in &outcome.said {
                lines.push(if outcome.ok { E::Warning(text.clone()) } else { E::Error(text.clone()) });
            }
            if let Some(status) = outcome.exit {
                lines.push(E::Exit(status));
            }
            if let Some(signal) = &outcome.killed {
                lines.push(E::Killed(signal.clone()));
            }
            let mut hits: Vec<Hit> = outcome.found.clone().unwrap_or_default();
            if outcome.found.is_none() {
                let new = outcome.order.iter().flatten().filter(|p| !before.contains(p)).skip(usize::from(index == 0));
                hits.extend(new.map(|path| guess(fixture, run, path.as_bstr())));
            }
            for bound in outcome.bindings.iter().flatten() {
                // In a file without versions there is nothing to tell apart.
                let has_versions =
                    fixture.elf(bound.to.as_bstr()).is_none_or(|e| e.defs.iter().any(|d| d.version.is_some()));
                let definition = bound.definition.clone().filter(|d| has_versions || d.is_some());
                binds.push(E::Binds(Bound { definition, ..bound.clone() }));
            }
            if let (Step::Dlopen(dlopen), Some(handle)) = (&step.step, &outcome.handle)
                && !hits.iter().any(|hit| hit.name == dlopen.name)
            {
                let (name, path) = (dlopen.name.clone(), handle.clone());
                lines.push(E::Found { name, path, via: Some(Via::Name), needed_by: None });
            }
            for Hit { name, path, via, needed_by } in hits {
                lines.push(E::Found { name, path, via, needed_by });
            }
            lines.append(&mut binds);
            if let Some(order) = &outcome.order {
                if !matches!(step.step, Step::Call(_)) {
                    lines.push(E::Order(order.clone()));
                }
                before.clone_from(order);
            }
            out.push(lines.iter().map(E::to_string).collect());
        }
    }
    out
}

/// musl and a privileged process tell nothing but the path: a likely name and rule, to be checked by the person who writes the fixture.
fn guess(fixture: &Fixture, run: &Run, path: &BStr) -> Hit {
    let literal = fixture.statements.iter().any(|s| match &s.what {
        What::Elf { elf, .. } => elf.requests.iter().any(|r| r.name() == path),
        What::Step(Step::Dlopen(dlopen)) => dlopen.name == path,
        What::Env { name, value } => {
            name == "LD_PRELOAD" && value.split(|b| b" :".contains(b)).any(|p| p == path.as_bytes())
        }
        _ => false,
    });
    let name: BString = if literal { path.into() } else { ldaudit::system::file_name(path).into() };
    let directory = ldaudit::system::parent(path);
    let index_in = |list: &BStr, origin: &BStr| {
        let origin = ldaudit::system::parent(origin);
        let index = list.split(|b| b":\n".contains(b)).position(|element| {
            let element = element.replace("${ORIGIN}", origin).replace("$ORIGIN", origin);
            !element.is_empty() && element.trim_end_with(|c| c == '/') == directory.as_bytes()
        });
        index.and_then(|i| u32::try_from(i).ok())
    };
    let variable = run.host.env.get("LD_LIBRARY_PATH").and_then(|list| index_in(list, "".into()));
    let mut via = None;
    if literal {
        via = Some(Via::Literal);
    } else if let Some(entry) = variable {
        via = Some(Via::LibraryPath(Some(entry)));
    } else {
        for statement in &fixture.statements {
            if let What::Elf { path: owner, elf, .. } = &statement.what {
                let of = Some(owner.clone());
                let list = elf.runpath.as_ref().or(elf.rpath.as_ref());
                let entry = list.and_then(|l| index_in(l.as_bstr(), owner.as_bstr()));
                via = via.or(match (entry, &elf.runpath) {
                    (None, _) => None,
                    (entry, Some(_)) => Some(Via::Runpath { entry, of }),
                    (entry, None) => Some(Via::Rpath { entry, of }),
                });
            }
        }
    }
    Hit { name, path: path.into(), via: via.or(Some(Via::Default)), needed_by: None }
}
