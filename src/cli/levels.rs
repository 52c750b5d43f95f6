//! Levels that the user gives to rules, and the level from which findings make the exit status 1.

use super::Error;
use super::args::{Args, Level};
use crate::findings::{RULES, Rule, Severity};
use crate::render::{Report, Verdict};

/// What `--deny`, `--allow`, `--warn` and `--error` say.
pub struct Levels {
    deny: Severity,
    allowed: Vec<&'static str>,
    warned: Vec<&'static str>,
    erred: Vec<&'static str>,
}

impl Levels {
    /// Reads the options. An unknown rule is an error.
    pub fn new(args: &Args) -> Result<Levels, Error> {
        let ids = |names: &[String]| names.iter().map(|n| rule(n).map(|r| r.id)).collect::<Result<Vec<_>, _>>();
        Ok(Levels {
            deny: match args.deny {
                Level::Error => Severity::Error,
                Level::Warning => Severity::Warning,
                Level::Note => Severity::Note,
            },
            allowed: ids(&args.allow)?,
            warned: ids(&args.warn)?,
            erred: ids(&args.error)?,
        })
    }

    /// True when only findings that are errors by themselves count, as without any option.
    pub fn are_usual(&self) -> bool {
        self.deny == Severity::Error && self.erred.is_empty()
    }

    /// Changes the levels of a report's findings; true when one is at or above the denied level. What the user makes of a
    /// rule changes the exit status, not what happens: a process that fails goes on to be said to, and one that works is
    /// said to work at most with findings.
    pub fn apply(&self, report: &mut Report) -> bool {
        let changed = !(self.allowed.is_empty() && self.warned.is_empty() && self.erred.is_empty());
        if changed {
            report.findings.retain(|f| !self.allowed.contains(&f.rule.id));
            for finding in &mut report.findings {
                if self.warned.contains(&finding.rule.id) {
                    finding.severity = Severity::Warning;
                }
                if self.erred.contains(&finding.rule.id) {
                    finding.severity = Severity::Error;
                }
            }
            if report.verdict != Verdict::Fails {
                report.verdict = Verdict::of(&report.findings).min(Verdict::Warnings);
            }
        }
        report.findings.iter().any(|f| f.severity >= self.deny)
    }
}

fn rule(name: &str) -> Result<&'static Rule, Error> {
    RULES.iter().find(|r| r.id.eq_ignore_ascii_case(name) || r.slug == name).ok_or_else(|| {
        Error::with_hint(
            format!("there is no rule `{}`", crate::render::escape::text(name.as_bytes())),
            "rules are named by their id, such as `LD0101`, or their short name, such as `library-not-found`",
        )
    })
}
