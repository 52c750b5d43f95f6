//! Which single change mends it? Candidates are data; a change counts only when the box was simulated again with it.

use bstr::{BStr, BString, ByteSlice};

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
}

const LIBRARY_PATH: &str = "LD_LIBRARY_PATH";
const PRELOAD: &str = "LD_PRELOAD";

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
        Ok(text) if text.chars().all(|c| !c.is_control()) => format!("'{}'", text.replace('\'', "'\\''")),
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

/// Most environments that are simulated for one report.
const MAX_SIMULATIONS: usize = 24;

/// Tries the candidates of every finding, the worst finding first, and writes down the changes that make it go away and
/// break nothing: those with the fewest errors and warnings left, then the smallest. `simulate` runs the audit again in
/// another environment; each environment is tried once.
pub fn prove(
    findings: &mut [Finding],
    env: &Environment,
    family: Family,
    simulate: &mut dyn FnMut(&Environment) -> Outcome,
) {
    let errors_now = findings.iter().filter(|f| f.severity == Severity::Error).count();
    let mut tried: Vec<(Environment, Outcome)> = Vec::new();
    for finding in findings.iter_mut().filter(|f| f.severity > Severity::Note) {
        let mut proven: Vec<Remedy> = Vec::new();
        let mut commands: Vec<String> = Vec::new();
        for candidate in &finding.candidates {
            let Some(changed) = candidate.apply(env, family) else { continue };
            let outcome = match tried.iter().position(|(e, _)| *e == changed) {
                Some(at) => &tried[at].1,
                None if tried.len() >= MAX_SIMULATIONS => continue,
                None => {
                    let outcome = simulate(&changed);
                    tried.push((changed, outcome));
                    let Some((_, outcome)) = tried.last() else { continue };
                    outcome
                }
            };
            let gone = !outcome.findings.iter().any(|f| f.rule == finding.rule && f.subject == finding.subject);
            let errors = outcome.count(Severity::Error);
            // An error must not be traded for another one.
            let better = errors < errors_now || (errors == errors_now && finding.severity < Severity::Error);
            let command = candidate.command(env, family).unwrap_or_default();
            if gone && better && !commands.contains(&command) {
                commands.push(command.clone());
                proven.push(Remedy {
                    summary: candidate.summary(env, family),
                    commands: vec![command],
                    verified: true,
                    after: Some((errors, outcome.count(Severity::Warning))),
                });
            }
        }
        // A stable sort keeps the order of candidates, smallest change first.
        proven.sort_by_key(|r| r.after);
        proven.append(&mut finding.remedies);
        finding.remedies = proven;
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
        prove(&mut findings, &env, Family::Glibc, &mut |changed| {
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
        prove(&mut findings, &env, Family::Glibc, &mut |_| Outcome { findings: before.to_vec(), ..Outcome::default() });
        assert!(findings[0].remedies.is_empty());
    }
}
