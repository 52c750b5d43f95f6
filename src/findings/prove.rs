//! Which single change mends it? Candidates are data; a change counts only when the box was simulated again with it.

use bstr::{BStr, BString, ByteSlice};
use rustc_hash::FxHashMap;

use super::{Finding, Remedy, Severity};
use crate::ld::{Family, List, Process, Role};
use crate::system::Environment;

/// One change of the environment.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Candidate {
    /// Leave these elements out of LD_LIBRARY_PATH.
    DropLibraryPath(Vec<u32>),
    /// Remove LD_LIBRARY_PATH.
    UnsetLibraryPath,
    /// Put directories at the end of LD_LIBRARY_PATH.
    AppendLibraryPath(Vec<BString>),
    /// Leave these entries out of LD_PRELOAD.
    DropPreload(Vec<u32>),
    /// Remove LD_PRELOAD.
    UnsetPreload,
    /// Put a library at the end of LD_PRELOAD.
    AppendPreload(BString),
    /// Set so many bytes of the static area for thread-local storage aside (`glibc.rtld.optional_static_tls`).
    StaticRoom(u64),
}

const LIBRARY_PATH: &str = "LD_LIBRARY_PATH";
const PRELOAD: &str = "LD_PRELOAD";
const TUNABLES: &str = "GLIBC_TUNABLES";

impl Candidate {
    /// The environment with the change made; `None` when the change changes nothing.
    pub fn apply(&self, env: &Environment, family: Family) -> Option<Environment> {
        let (name, value) = self.assignment(env, family)?;
        let mut changed = env.clone();
        match value {
            Some(value) => changed.set(name, value),
            None => changed.unset(name),
        }
        Some(changed)
    }

    /// The variable and its new value (`None`: unset).
    fn assignment(&self, env: &Environment, family: Family) -> Option<(&'static str, Option<BString>)> {
        let library_path = env.get(LIBRARY_PATH);
        match self {
            Candidate::DropLibraryPath(entries) => {
                Some((LIBRARY_PATH, List::LibraryPath.without(family, library_path?, entries)?))
            }
            Candidate::UnsetLibraryPath => library_path.map(|_| (LIBRARY_PATH, None)),
            Candidate::AppendLibraryPath(dirs) => {
                // A separator in a name ends the element, `$` begins a token.
                let separators = List::LibraryPath.separators(family);
                if dirs.iter().any(|d| d.is_empty() || d.iter().any(|b| *b == b'$' || separators.contains(b))) {
                    return None;
                }
                let now = library_path.filter(|p| !p.is_empty()).map(|p| p.to_owned());
                let all: Vec<BString> = now.into_iter().chain(dirs.iter().cloned()).collect();
                Some((LIBRARY_PATH, Some(bstr::join(":", all).into())))
            }
            Candidate::DropPreload(entries) => {
                Some((PRELOAD, List::Preload.without(family, env.get(PRELOAD)?, entries)?))
            }
            Candidate::UnsetPreload => env.get(PRELOAD).map(|_| (PRELOAD, None)),
            Candidate::AppendPreload(path) => {
                // Nothing quotes what separates the entries.
                if path.iter().any(|b| *b == b'$' || List::Preload.separators(family).contains(b)) {
                    return None;
                }
                let now = env.get(PRELOAD).filter(|p| !p.is_empty()).map(|p| p.to_owned());
                let all: Vec<BString> = now.into_iter().chain([path.clone()]).collect();
                Some((PRELOAD, Some(bstr::join(":", all).into())))
            }
            Candidate::StaticRoom(bytes) => {
                let now = env.get(TUNABLES).filter(|p| !p.is_empty()).map(|p| p.to_owned());
                let room = format!("glibc.rtld.optional_static_tls={bytes}").into();
                let all: Vec<BString> = now.into_iter().chain([room]).collect();
                Some((TUNABLES, Some(bstr::join(":", all).into())))
            }
        }
    }

    /// How much of the environment it touches, in elements; a whole variable is more than any number of them.
    fn size(&self) -> usize {
        match self {
            Candidate::DropLibraryPath(entries) | Candidate::DropPreload(entries) => entries.len(),
            Candidate::AppendLibraryPath(dirs) => dirs.len(),
            Candidate::AppendPreload(_) | Candidate::StaticRoom(_) => 1,
            Candidate::UnsetLibraryPath | Candidate::UnsetPreload => usize::MAX,
        }
    }

    /// This change and then another one of the same list, whose elements are numbered as they stand after this one.
    /// `None` when they do not leave out elements of one list.
    fn and(&self, next: &Candidate, env: &Environment, family: Family) -> Option<Candidate> {
        let both = |first: &[u32], next: &[u32], list: List, variable: &str| {
            let count = list.elements(family, env.get(variable)?).count() as u32;
            let left: Vec<u32> = (0..count).filter(|n| !first.contains(n)).collect();
            // A single empty element is written as `:`, which reads as two.
            let mapped = next.iter().filter_map(|n| left.get(*n as usize).or(left.last()));
            let mut all: Vec<u32> = first.iter().chain(mapped).copied().collect();
            all.sort_unstable();
            all.dedup();
            Some(all)
        };
        match (self, next) {
            (Candidate::DropLibraryPath(a), Candidate::DropLibraryPath(b)) => {
                both(a, b, List::LibraryPath, LIBRARY_PATH).map(Candidate::DropLibraryPath)
            }
            (Candidate::DropPreload(a), Candidate::DropPreload(b)) => {
                both(a, b, List::Preload, PRELOAD).map(Candidate::DropPreload)
            }
            _ => None,
        }
    }

    /// What to do, in one line.
    pub fn summary(&self, env: &Environment, family: Family) -> String {
        let named = |variable: &str, list: List, entries: &[u32]| {
            let names: Vec<String> = list
                .elements(family, env.get(variable).unwrap_or_default())
                .enumerate()
                .filter(|(n, _)| entries.contains(&(*n as u32)))
                .map(
                    |(_, element)| {
                        if element.is_empty() { "the empty element".into() } else { super::words::shown(element) }
                    },
                )
                .collect();
            super::words::enumerate(&names)
        };
        match self {
            Candidate::DropLibraryPath(entries) => {
                let names = named(LIBRARY_PATH, List::LibraryPath, entries);
                format!("leave {names} out of LD_LIBRARY_PATH")
            }
            Candidate::UnsetLibraryPath => "run without LD_LIBRARY_PATH".into(),
            Candidate::AppendLibraryPath(dirs) => match dirs.as_slice() {
                [one] => format!("add {} to LD_LIBRARY_PATH", super::words::shown(one)),
                many => format!("add {} directories to LD_LIBRARY_PATH", many.len()),
            },
            Candidate::DropPreload(entries) => {
                let names = named(PRELOAD, List::Preload, entries);
                format!("leave {names} out of LD_PRELOAD")
            }
            Candidate::UnsetPreload => "run without LD_PRELOAD".into(),
            Candidate::AppendPreload(path) => {
                let name = super::words::shown(crate::system::file_name(path.as_bstr()));
                format!("load {name} at the start, by LD_PRELOAD")
            }
            Candidate::StaticRoom(bytes) => {
                format!("set {bytes} bytes aside for thread-local storage at a fixed distance")
            }
        }
    }

    /// The command to paste.
    pub fn command(&self, env: &Environment, family: Family) -> Option<String> {
        let (name, value) = self.assignment(env, family)?;
        Some(match value {
            Some(value) => format!("export {name}={}", quoted(value.as_bstr())),
            None => format!("unset {name}"),
        })
    }
}

/// A word for a POSIX shell; bytes that a terminal should not see are written in the `$'...'` form.
pub fn quoted(text: &BStr) -> String {
    let plain = |b: &u8| b.is_ascii_alphanumeric() || b"/.:_-+=,@%".contains(b);
    if !text.is_empty() && text.iter().all(plain) {
        return text.to_string();
    }
    match text.to_str() {
        // Characters that a terminal may hide or reorder would not be shown as they are.
        Ok(text) if text.chars().all(|c| !c.is_control() && (c.is_ascii() || c.is_alphanumeric())) => {
            format!("'{}'", text.replace('\'', "'\\''"))
        }
        _ => {
            let mut out = String::from("$'");
            for b in text.iter() {
                match b {
                    b'\'' | b'\\' => out.extend(['\\', char::from(*b)]),
                    0x20..0x7f => out.push(char::from(*b)),
                    _ => out.push_str(&format!("\\x{b:02x}")),
                }
            }
            out.push('\'');
            out
        }
    }
}

/// What a simulation with a changed environment came to.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Findings of that run.
    pub findings: Vec<Finding>,
    /// Each request by name and the path that answered it, in order.
    pub chosen: Vec<(BString, BString)>,
    /// Libraries that are loaded in the end.
    pub libraries: usize,
}

impl Outcome {
    /// Reads a simulated process and its findings.
    pub fn of(process: &Process, findings: Vec<Finding>) -> Outcome {
        let chosen = process
            .decisions
            .iter()
            .filter_map(|d| Some((d.asked.clone(), process.image(d.chosen?).name.clone())))
            .collect();
        let libraries = process.images.iter().filter(|i| i.role == Role::Library && i.unloaded_by.is_none()).count();
        Outcome { findings, chosen, libraries }
    }

    /// How many findings have a severity.
    pub fn count(&self, severity: Severity) -> usize {
        self.findings.iter().filter(|f| f.severity == severity).count()
    }

    /// The path that answered the first request for a name.
    pub fn path_of(&self, name: &BStr) -> Option<&BStr> {
        self.chosen.iter().find(|(asked, _)| asked == name).map(|(_, path)| path.as_bstr())
    }
}

/// Most environments with one change that are simulated for one report, and most with two.
const MAX_SINGLE: usize = 24;
const MAX_PAIRS: usize = 12;

/// Tries the candidates of every finding, the worst finding first, and writes down the changes that make it go away and
/// break nothing: those with the fewest errors and warnings left, then the smallest. Where no small change leaves nothing
/// behind, elements are left out two at a time: one that a candidate names, and one that a finding names which is left
/// without it. `simulate` runs the audit again in another environment; each environment is tried once. `answered`: requests
/// that libraries answer without any change.
pub fn prove(
    findings: &mut [Finding],
    env: &Environment,
    family: Family,
    answered: usize,
    simulate: &mut dyn FnMut(&Environment) -> Outcome,
) {
    let errors_now = findings.iter().filter(|f| f.severity == Severity::Error).count();
    let mut groups: FxHashMap<u32, Vec<Key>> = FxHashMap::default();
    for finding in findings.iter() {
        let group = finding.group.into_iter();
        group.for_each(|group| groups.entry(group).or_default().push(key(finding)));
    }
    let mut trials = Trials { env, family, errors_now, answered, groups, tried: Vec::new(), simulate };
    let (mut singles_left, mut pairs_left) = (MAX_SINGLE, MAX_PAIRS);
    for finding in findings.iter_mut().filter(|f| f.severity > Severity::Note) {
        let mut proven: Vec<(usize, Remedy)> = Vec::new();
        let add = |proven: &mut Vec<(usize, Remedy)>, candidate: &Candidate, remedy: Remedy| {
            if proven.iter().all(|(_, known)| known.commands != remedy.commands) {
                proven.push((candidate.size(), remedy));
            }
        };
        let mut best = None;
        for candidate in &finding.candidates {
            let at = trials.run(candidate, &mut singles_left);
            if let Some(remedy) = at.and_then(|at| trials.remedy(finding, candidate, at, Measure::Fewer)) {
                if candidate.size() < usize::MAX && best.is_none_or(|b| remedy.after < b) {
                    best = Some(remedy.after);
                }
                add(&mut proven, candidate, remedy);
            }
        }
        let pairs = if best == Some(Some((0, 0))) { Vec::new() } else { trials.pairs(finding) };
        for pair in pairs {
            let Some(at) = trials.run(&pair, &mut pairs_left) else { continue };
            if let Some(remedy) = trials.remedy(finding, &pair, at, Measure::Fewer)
                && best.is_none_or(|b| remedy.after < b)
            {
                add(&mut proven, &pair, remedy);
            }
        }
        if proven.is_empty() {
            // Where the next error waits behind this one, what gets that far is better than nothing.
            for candidate in &finding.candidates {
                let at = trials.run(candidate, &mut 0);
                if let Some(remedy) = at.and_then(|at| trials.remedy(finding, candidate, at, Measure::Further)) {
                    add(&mut proven, candidate, remedy);
                }
            }
        }
        // A stable sort keeps the order of candidates.
        proven.sort_by_key(|(size, remedy)| (remedy.after, *size));
        let mut proven: Vec<Remedy> = proven.into_iter().map(|(_, remedy)| remedy).collect();
        proven.append(&mut finding.remedies);
        finding.remedies = proven;
    }
    // What was tried for another finding may mend this one too.
    for finding in findings.iter_mut().filter(|f| f.severity == Severity::Error) {
        if finding.remedies.iter().all(|remedy| !remedy.verified) {
            let tried = trials.tried.iter().enumerate();
            let mending = tried.filter_map(|(at, (_, _, candidate))| {
                let remedy = trials.remedy(finding, candidate, at, Measure::Fewer)?;
                Some((remedy.after, candidate.size(), remedy))
            });
            let best = mending.min_by_key(|(after, size, _)| (*after, *size)).map(|(_, _, remedy)| remedy);
            finding.remedies.splice(0..0, best);
        }
    }
}

/// What tells findings apart from one simulation to the next.
type Key = (&'static str, BString);

fn key(finding: &Finding) -> Key {
    (finding.rule.id, finding.subject.clone())
}

/// When a change is for the better.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Measure {
    /// Fewer errors are left.
    Fewer,
    /// As many, and the process gets further before the first.
    Further,
}

/// The environments that were tried for one report.
struct Trials<'a> {
    env: &'a Environment,
    family: Family,
    /// Errors without any change.
    errors_now: usize,
    /// Requests that are answered without any change.
    answered: usize,
    /// Findings that are shown together.
    groups: FxHashMap<u32, Vec<Key>>,
    tried: Vec<(Environment, Outcome, Candidate)>,
    simulate: &'a mut dyn FnMut(&Environment) -> Outcome,
}

impl Trials<'_> {
    /// The number of the trial of a change. `None` when it changes nothing, or was not tried before and no more trials
    /// are `left`.
    fn run(&mut self, candidate: &Candidate, left: &mut usize) -> Option<usize> {
        let changed = candidate.apply(self.env, self.family)?;
        if let Some(at) = self.tried.iter().position(|(env, _, _)| *env == changed) {
            return Some(at);
        }
        *left = left.checked_sub(1)?;
        let outcome = (self.simulate)(&changed);
        self.tried.push((changed, outcome, candidate.clone()));
        Some(self.tried.len() - 1)
    }

    /// The remedy, when a trial shows that the change is one: it has to mend all that is shown together.
    fn remedy(&self, finding: &Finding, candidate: &Candidate, at: usize, by: Measure) -> Option<Remedy> {
        let outcome = &self.tried[at].1;
        let own = [key(finding)];
        let group = finding.group.and_then(|group| self.groups.get(&group)).map_or(own.as_slice(), Vec::as_slice);
        // A note that stays tells of what works.
        let stays = |f: &Finding| f.severity > Severity::Note && group.contains(&key(f));
        let gone = !outcome.findings.iter().any(stays);
        let errors = outcome.count(Severity::Error);
        // An error must not be traded for another one.
        let better = match by {
            Measure::Fewer => {
                errors < self.errors_now || errors == self.errors_now && finding.severity < Severity::Error
            }
            Measure::Further => errors == self.errors_now && outcome.chosen.len() > self.answered,
        };
        (gone && better).then(|| Remedy {
            summary: candidate.summary(self.env, self.family),
            commands: candidate.command(self.env, self.family).into_iter().collect(),
            verified: true,
            after: Some((errors, outcome.count(Severity::Warning))),
        })
    }

    /// Two elements together: each one that a candidate of the finding leaves out, with each one that is named as soon
    /// as that one is gone.
    fn pairs(&mut self, finding: &Finding) -> Vec<Candidate> {
        let mut out: Vec<Candidate> = Vec::new();
        for first in finding.candidates.iter().filter(|c| c.size() == 1) {
            let Some(at) = self.run(first, &mut 0) else { continue };
            let left = self.tried[at].1.findings.iter().filter(|f| f.severity > Severity::Note);
            for next in left.flat_map(|f| &f.candidates).filter(|c| c.size() == 1) {
                out.extend(first.and(next, self.env, self.family).filter(|pair| !out.contains(pair)));
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::findings::SHADOWED;

    fn env(path: &str) -> Environment {
        let mut env = Environment::new();
        env.set(LIBRARY_PATH, path);
        env
    }

    #[test]
    fn dropping_elements_keeps_the_rest_and_counts_as_the_loader_does() {
        let glibc = Family::Glibc;
        let value =
            |c: Candidate, e: &Environment| c.apply(e, glibc).map(|e| e.get(LIBRARY_PATH).map(ToString::to_string));
        let drop = |n: &[u32]| Candidate::DropLibraryPath(n.to_vec());
        assert_eq!(value(drop(&[1]), &env("/a:/b;/c")), Some(Some("/a:/c".into())));
        assert_eq!(value(drop(&[0]), &env("/a:")), Some(Some(":".into())));
        assert_eq!(value(drop(&[0]), &env("/a")), Some(None));
        assert_eq!(value(drop(&[5]), &env("/a")), None);
        assert_eq!(value(Candidate::AppendLibraryPath(vec!["/n".into()]), &env("/a")), Some(Some("/a:/n".into())));
        assert_eq!(value(Candidate::AppendLibraryPath(vec!["/n;m".into()]), &env("/a")), None);
        assert_eq!(value(Candidate::AppendLibraryPath(vec!["/$n".into()]), &env("/a")), None);
        assert_eq!(value(Candidate::UnsetLibraryPath, &Environment::new()), None);
        // `;` separates nothing for musl.
        let changed = drop(&[1]).apply(&env("/a;x:/b;y:/c"), Family::Musl).expect("changed");
        assert_eq!(changed.get(LIBRARY_PATH), Some("/a;x:/c".into()));
        assert_eq!(drop(&[1]).summary(&env("/a;x:/b;y:/c"), Family::Musl), "leave /b;y out of LD_LIBRARY_PATH");
        let mut preload = Environment::new();
        preload.set(PRELOAD, " /x.so::/y.so");
        let changed = Candidate::DropPreload(vec![0]).apply(&preload, glibc).expect("changed");
        assert_eq!(changed.get(PRELOAD), Some("/y.so".into()));
    }

    #[test]
    fn words_for_a_shell_are_quoted_when_they_must_be() {
        assert_eq!(quoted("/a/b:/c".into()), "/a/b:/c");
        assert_eq!(quoted("/a b/it's".into()), "'/a b/it'\\''s'");
        assert_eq!(quoted(b"/a\x1b[0m\xff".as_bstr()), "$'/a\\x1b[0m\\xff'");
        assert_eq!(quoted("$ORIGIN".into()), "'$ORIGIN'");
    }

    #[test]
    fn only_a_change_that_was_seen_to_help_is_proven() {
        let mut finding = Finding::new(SHADOWED, "libx.so.1", "x");
        finding.candidates = vec![Candidate::DropLibraryPath(vec![0]), Candidate::UnsetLibraryPath];
        let before = [finding.clone()];
        let env = env("/a:/b");
        // Dropping the first element alone does not help, the second one holds the name as well.
        let mut findings = before.clone();
        let mut runs = 0;
        prove(&mut findings, &env, Family::Glibc, 0, &mut |changed| {
            runs += 1;
            let still = changed.get(LIBRARY_PATH).is_some();
            Outcome { findings: if still { before.to_vec() } else { Vec::new() }, ..Outcome::default() }
        });
        assert_eq!(runs, 2);
        let [remedy] = findings[0].remedies.as_slice() else { panic!("{:?}", findings[0].remedies) };
        assert_eq!(remedy.commands, ["unset LD_LIBRARY_PATH"]);
        assert!(remedy.verified);
        assert_eq!(remedy.after, Some((0, 0)));
        // When nothing helps, nothing is promised.
        let mut findings = before.clone();
        prove(&mut findings, &env, Family::Glibc, 0, &mut |_| Outcome {
            findings: before.to_vec(),
            ..Outcome::default()
        });
        assert!(findings[0].remedies.is_empty());
    }

    /// A made-up box: a finding for each of some directories while LD_LIBRARY_PATH holds it, its candidates numbered as
    /// the elements stand then; without `/keep` an error.
    fn box_with(env: &Environment, stale: &[&str]) -> Vec<Finding> {
        let text = env.get(LIBRARY_PATH).unwrap_or_default();
        let elements: Vec<&BStr> = List::LibraryPath.elements(Family::Glibc, text).collect();
        let mut out = Vec::new();
        for (n, element) in elements.iter().enumerate().filter(|(_, e)| stale.contains(&e.to_str_lossy().as_ref())) {
            let mut finding = Finding::new(SHADOWED, (*element).to_owned(), "stale");
            finding.candidates = vec![Candidate::DropLibraryPath(vec![n as u32]), Candidate::UnsetLibraryPath];
            out.push(finding);
        }
        if !elements.iter().any(|e| *e == "/keep") {
            out.push(Finding::new(crate::findings::NOT_FOUND, "libkept.so", "missing"));
        }
        out
    }

    /// How many trials were made, and for each finding the new values with the errors and warnings that are left.
    fn remedies(path: &str, stale: &[&str]) -> (usize, Vec<Vec<String>>) {
        let env = env(path);
        let mut findings = box_with(&env, stale);
        let mut runs = 0;
        prove(&mut findings, &env, Family::Glibc, 0, &mut |changed| {
            runs += 1;
            Outcome { findings: box_with(changed, stale), ..Outcome::default() }
        });
        let value = |command: &str| command.trim_start_matches("export LD_LIBRARY_PATH=").to_owned();
        let one = |r: &Remedy| {
            let (errors, warnings) = r.after.expect("simulated");
            format!("{} {errors}/{warnings}", value(&r.commands[0]))
        };
        let shown = |f: &Finding| f.remedies.iter().map(one).collect();
        (runs, findings.iter().map(shown).collect())
    }

    #[test]
    fn two_elements_go_together_where_one_leaves_something_behind() {
        let (runs, got) = remedies("/a:/keep:/b", &["/a", "/b"]);
        assert_eq!(got[0], ["/keep 0/0", "/keep:/b 0/1"]);
        assert_eq!(got[1], ["/keep 0/0", "/a:/keep 0/1"]);
        // Each alone, none at all, both: the second finding makes use of what the first one tried.
        assert_eq!(runs, 4);
        // One is enough: no pair is tried.
        assert_eq!(remedies("/a:/keep:/b", &["/a"]).0, 2);
        // Of three, two are left out at the most.
        let (_, got) = remedies("/a:/b:/c:/keep", &["/a", "/b", "/c"]);
        assert_eq!(got[0], ["/c:/keep 0/1", "/b:/keep 0/1", "/b:/c:/keep 0/2"]);
    }

    #[test]
    fn the_number_of_trials_is_bounded() {
        let many: Vec<String> = (0..60).map(|n| format!("/d{n}")).collect();
        let stale: Vec<&str> = many.iter().map(String::as_str).collect();
        let (runs, _) = remedies(&format!("/keep:{}", many.join(":")), &stale);
        assert_eq!(runs, MAX_SINGLE + MAX_PAIRS);
    }

    #[test]
    fn elements_are_numbered_as_they_stand_after_the_first_change() {
        let drop = |n: &[u32]| Candidate::DropLibraryPath(n.to_vec());
        let and = |a: &[u32], b: &[u32], path: &str| drop(a).and(&drop(b), &env(path), Family::Glibc);
        assert_eq!(and(&[0], &[0], "/a:/b:/c"), Some(drop(&[0, 1])));
        assert_eq!(and(&[1], &[1], "/a:/b:/c"), Some(drop(&[1, 2])));
        assert_eq!(and(&[2], &[0], "/a:/b:/c"), Some(drop(&[0, 2])));
        assert_eq!(and(&[0], &[1], "/a:"), Some(drop(&[0, 1])));
        assert_eq!(drop(&[0]).and(&Candidate::UnsetLibraryPath, &env("/a"), Family::Glibc), None);
    }
}
