//! The report of one screen: the verdict, one culprit with the copies side by side, why, what mends it; then one line
//! each for what else matters, and the ordinary in one folded line.

pub mod layout;
pub mod style;

use std::io::{self, Write};

use bstr::ByteSlice;

use self::layout::{Paths, pad, width, wrap};
pub use self::style::{Ink, Style};
use super::{Owner, Report, Verdict, escape, places};
use crate::findings::loading::Scene;
use crate::findings::{self, Copy, Finding, Part, Severity, words};
use crate::ld::{Family, ImageId, Process, Role, Rule, Start, StepKind};

/// Column at which the contents of a block begin.
const INDENT: usize = 12;
/// Findings that are shown in full unless `-v` asks for all.
const FULL: usize = 3;
/// Longest lines of prose: on a wide screen the eye would lose its line.
const PROSE: usize = 120;
/// Columns up to which a path is rather put on a line of its own than cut.
const WHOLE: usize = 64;
/// Notes that are shown unless `-v` asks for all.
const NOTES: usize = 4;

/// Writes the report.
pub fn write(report: &Report, style: &Style, out: &mut dyn Write) -> io::Result<()> {
    let scene = Scene::new(&report.process, report.exception.as_ref());
    let mut screen = Screen { report, scene, style, out };
    screen.verdict()?;
    if style.verbosity < 0 {
        return Ok(());
    }
    let notes_shown = screen.findings()?;
    if style.verbosity > 0 {
        screen.libraries()?;
    }
    screen.folded(notes_shown)
}

struct Screen<'a> {
    report: &'a Report,
    scene: Scene<'a>,
    style: &'a Style,
    out: &'a mut dyn Write,
}

/// Findings that are shown as one: those of a group, or one alone.
fn blocks(findings: &[Finding]) -> Vec<&[Finding]> {
    findings.chunk_by(|a, b| a.rule == b.rule && a.group.is_some() && a.group == b.group).collect()
}

impl Screen<'_> {
    fn process(&self) -> &Process {
        &self.report.process
    }

    fn paint(&self, ink: Ink, text: &str) -> String {
        self.style.paint(ink, text)
    }

    // ------------------------------------------------------------------------------------------------------ the verdict

    fn verdict(&mut self) -> io::Result<()> {
        let subject = self.subject();
        match self.report.verdict {
            Verdict::Fails => self.fails(&subject),
            Verdict::Ok => self.headlines(Ink::Good, "WORKS", &subject, ""),
            Verdict::Warnings => {
                if let Some(doubt) = self.doubt() {
                    return self.headlines(Ink::Warn, "MAY FAIL", &format!("{subject}:"), &doubt);
                }
                let warnings: Vec<&Finding> =
                    self.report.findings.iter().filter(|f| f.severity > Severity::Note).collect();
                let errors = warnings.iter().filter(|f| f.severity == Severity::Error).count();
                let wrong = |f: &&Finding| f.rule == findings::SHADOWED || f.rule == findings::LOADED_EARLIER;
                let what = match warnings.len() {
                    // The user takes something for an error that stops nothing.
                    n if errors > 0 && errors < n => {
                        format!(
                            "{n} findings, {errors} of which {} for errors",
                            if errors == 1 { "counts" } else { "count" }
                        )
                    }
                    n if errors > 0 => {
                        words::count(n, "finding that counts for an error", "findings that count for errors")
                    }
                    1 if warnings.iter().all(wrong) => "a library from the wrong place".to_owned(),
                    n if warnings.iter().all(wrong) => format!("{n} libraries from the wrong place"),
                    n => words::count(n, "warning", "warnings"),
                };
                let is_import = matches!(self.report.target.kind, "framework" | "module");
                let tail = if is_import { format!("works with {what}") } else { format!("with {what}") };
                self.headlines(Ink::Warn, "WORKS, BUT", &subject, &tail)
            }
        }
    }

    /// What an import that is followed as far as its source shows most likely ends with.
    fn doubt(&self) -> Option<String> {
        let of = |rule| self.report.findings.iter().find(|f| f.rule == rule && f.severity == Severity::Warning);
        let absent =
            of(findings::MODULE_ABSENT).map(|f| format!("no module named `{}` is found", words::shown(&f.subject)));
        let extension = || {
            of(findings::EXTENSION_DOUBTFUL)
                .map(|f| format!("its extension `{}` does not load", words::shown(&f.subject)))
        };
        let hidden = || {
            of(findings::STANDARD_HIDDEN)
                .map(|f| format!("`{}` of Python's own library is hidden", words::shown(&f.subject)))
        };
        absent.or_else(extension).or_else(hidden)
    }

    /// The first line: a word, what is meant, and a plain tail. What is too long goes on below itself.
    fn headlines(&mut self, ink: Ink, word: &str, subject: &str, tail: &str) -> io::Result<()> {
        let indent = width(word) + 2;
        let word = self.paint(ink, word);
        let gap = if tail.is_empty() { "" } else { " " };
        let room = self.style.columns().saturating_sub(indent);
        if width(subject) + width(gap) + width(tail) <= room {
            return writeln!(self.out, "{word}  {}{gap}{tail}", self.paint(Ink::Strong, subject));
        }
        let mut strong = subject.split(' ').filter(|w| !w.is_empty()).count();
        for (n, line) in wrap(&format!("{subject}{gap}{tail}"), room).iter().enumerate() {
            let words: Vec<&str> = line.split(' ').collect();
            let (subject, tail) = words.split_at(strong.min(words.len()));
            strong -= subject.len();
            let gap = if subject.is_empty() || tail.is_empty() { "" } else { " " };
            let line = format!("{}{gap}{}", self.paint(Ink::Strong, &subject.join(" ")), tail.join(" "));
            match n {
                0 => writeln!(self.out, "{word}  {line}")?,
                _ => writeln!(self.out, "{:indent$}{line}", "")?,
            }
        }
        Ok(())
    }

    fn fails(&mut self, subject: &str) -> io::Result<()> {
        let no_loader = self.report.findings.first().is_some_and(|f| f.rule == findings::CANNOT_START);
        let fatal = self.scene.fatal().filter(|(_, s)| !no_loader || s.image.is_none());
        // A process that a signal ends raises nothing.
        let failure = fatal.and_then(|(_, step)| step.failure.as_ref());
        if let (Some(failure), Some(signal), Some(_)) =
            (failure, failure.and_then(|f| f.signal), &self.report.exception)
        {
            self.headlines(Ink::Bad, "FAILS", &format!("{subject} is killed by {signal}"), "")?;
            let prefix = format!("killed by {signal}: ");
            let why = failure.text.strip_prefix(prefix.as_bytes()).unwrap_or(&failure.text);
            return self.error_lines(&[[failure.object.as_slice(), b": ", why].concat()]);
        }
        if let Some(failure) = failure.filter(|f| f.waits()) {
            let who = match self.report.target.kind {
                "framework" | "module" => subject.to_owned(),
                _ => self.host().unwrap_or_else(|| escape::text(&self.report.target.name)),
            };
            self.headlines(Ink::Bad, "FAILS", &format!("{who} hangs:"), "")?;
            return self.error_lines(&[failure.dlerror().into()]);
        }
        let error = match (&self.report.exception, fatal) {
            (Some(e), _) => [e.class.as_bytes(), b": ", &e.text].concat(),
            (None, Some((_, step))) => step.error.clone().unwrap_or_default().into(),
            (None, None) if self.process().lists_only() && self.unresolved_alone().next().is_some() => {
                self.headlines(Ink::Bad, "FAILS", subject, "whatever program opens it:")?;
                let mut lines: Vec<Vec<u8>> = self.unresolved_alone().collect();
                lines.dedup();
                return self.error_lines(&lines);
            }
            // Nothing that the loader says of itself: a damaged file, a loader that is not there.
            (None, None) => return self.headlines(Ink::Bad, "FAILS", subject, ""),
        };
        let what = match (fatal.map(|(_, s)| s.kind), self.report.target.kind) {
            (Some(StepKind::Exec), "file") => format!("{subject}:"),
            (Some(StepKind::Dlopen), kind) if self.report.exception.is_none() => {
                let opened = fatal.map(|(_, s)| match crate::system::file_name(s.name.as_bstr()) {
                    name if name.is_empty() => words::shown(&s.name),
                    name => words::shown(name),
                });
                let program = || self.host().unwrap_or_else(|| escape::text(&self.report.target.name));
                let subject = if kind == "file" { program() } else { subject.to_owned() };
                format!("{subject}, then dlopen of {}:", escape::text(opened.unwrap_or_default().as_bytes()))
            }
            _ => format!("{subject} stops with"),
        };
        self.headlines(Ink::Bad, "FAILS", &what, "")?;
        let lines: Vec<Vec<u8>> = error.lines().map(<[u8]>::to_vec).collect();
        self.error_lines(&lines)
    }

    /// What `dlopen` would say of each reference of a library audited alone that no program can satisfy.
    fn unresolved_alone(&self) -> impl Iterator<Item = Vec<u8>> {
        let process = self.process();
        findings::symbols::certain_alone(process)
            .map(|u| [process.image(u.image).name.as_slice(), b": ", &u.text()].concat())
    }

    /// The exact text stays whole, so that it can be compared with what a terminal showed.
    fn error_lines(&mut self, lines: &[Vec<u8>]) -> io::Result<()> {
        let limit = if self.style.verbosity > 0 { lines.len() } else { 4 };
        for line in lines.iter().take(limit) {
            writeln!(self.out, "       {}", escape::text(line))?;
        }
        if lines.len() > limit {
            let more = words::count(lines.len() - limit, "more line", "more lines");
            writeln!(self.out, "       and {more} (-v)")?;
        }
        Ok(())
    }

    /// What the user's command would do, as words: `import torch (2.4.0)`, `/usr/bin/ls starts`.
    fn subject(&self) -> String {
        let target = &self.report.target;
        let name = escape::text(&target.name);
        let version = target.version.as_ref().map(|v| format!(" ({v})")).unwrap_or_default();
        match target.kind {
            "framework" | "module" => format!("import {name}{version}"),
            _ => {
                let fails = self.report.verdict == Verdict::Fails;
                if let Some(program) = self.host() {
                    let verb = if fails { "does not load" } else { "loads" };
                    return format!("{name} {verb} in {program}");
                }
                let verb = match (self.started_by(), fails) {
                    (Start::Kernel, true) => " does not start",
                    (Start::Loader, true) => " does not load",
                    (Start::Kernel, false) => " starts",
                    (Start::Loader, false) => " loads",
                };
                format!("{name}{version}{verb}")
            }
        }
    }

    /// Whether the command line has an option.
    fn is_given(&self, option: &str) -> bool {
        self.report.options.iter().any(|word| word == option)
    }

    /// The program that opens the target, where one was named.
    fn host(&self) -> Option<String> {
        self.process().images.first().filter(|_| self.is_given("--host")).map(|program| escape::text(&program.name))
    }

    /// Whether the target is a program of its own or a library that the loader runs.
    fn started_by(&self) -> Start {
        let main = self.process().images.first().and_then(|i| i.facts());
        let has_loader = self.process().images.iter().any(|i| i.role == Role::Loader);
        if main.is_some_and(|f| f.interpreter.is_some()) || !has_loader { Start::Kernel } else { Start::Loader }
    }

    // ------------------------------------------------------------------------------------------------------ the findings

    /// Returns how many notes were left out.
    fn findings(&mut self) -> io::Result<usize> {
        let report = self.report;
        let (serious, notes): (Vec<&[Finding]>, Vec<&[Finding]>) =
            blocks(&report.findings).into_iter().partition(|b| b[0].severity > Severity::Note);
        let verbose = self.style.verbosity > 0;
        let full = if verbose { serious.len() } else { FULL };
        for block in serious.iter().take(full) {
            writeln!(self.out)?;
            self.block(block)?;
        }
        if serious.len() > full {
            writeln!(self.out)?;
            for block in &serious[full..] {
                self.headline(&block[0], block.len())?;
            }
        }
        if notes.is_empty() {
            return Ok(0);
        }
        writeln!(self.out)?;
        let shown = if verbose || notes.len() <= NOTES + 1 { notes.len() } else { NOTES };
        for block in &notes[..shown] {
            self.headline(&block[0], block.len())?;
            if verbose {
                self.rows(&block[0], 0)?;
                self.because(&block[0])?;
            }
        }
        Ok(notes.len() - shown)
    }

    fn headline(&mut self, finding: &Finding, count: usize) -> io::Result<()> {
        let head = format!("{}[{}]", finding.severity.name(), finding.rule.id);
        let ink = match finding.severity {
            Severity::Error => Ink::Bad,
            Severity::Warning => Ink::Warn,
            Severity::Note => Ink::Note,
        };
        let mut text = escape::text(finding.summary.as_bytes());
        if count > 1 {
            text.push_str(&format!(" (and {} more)", count - 1));
        }
        let indent = width(&head) + 2;
        let lines = wrap(&text, self.style.columns().saturating_sub(indent));
        for (n, line) in lines.iter().enumerate() {
            let line = if finding.severity == Severity::Note { line.clone() } else { self.paint(Ink::Strong, line) };
            if n == 0 {
                writeln!(self.out, "{}  {line}", self.paint(ink, &head))?;
            } else {
                writeln!(self.out, "{:indent$}{line}", "")?;
            }
        }
        Ok(())
    }

    fn block(&mut self, block: &[Finding]) -> io::Result<()> {
        let finding = &block[0];
        if finding.rule == findings::NOT_FOUND && block.len() > 1 {
            let mut many = finding.clone();
            many.summary = format!("{} libraries are in none of the places that are searched for them", block.len());
            self.headline(&many, 1)?;
            let names: Vec<String> = block.iter().map(|f| escape::text(&f.subject)).collect();
            self.labelled("missing", &names.join(", "))?;
        } else {
            self.headline(finding, 1)?;
        }
        let alike = block[1..].iter().filter(|f| f.copies().any(|c| c.part == Part::Present)).count();
        self.rows(finding, alike)?;
        if finding.rule == findings::NOT_FOUND {
            self.searched(finding)?;
        }
        self.because(finding)?;
        if block.len() > 1 && finding.rule != findings::NOT_FOUND {
            let names: Vec<String> = block[1..].iter().map(|f| escape::text(&f.subject)).collect();
            self.labelled("likewise", &names.join(", "))?;
        }
        self.fixes(finding)
    }

    /// `  label     text`, wrapped under itself.
    fn labelled(&mut self, label: &str, text: &str) -> io::Result<()> {
        for (n, line) in wrap(text, self.style.columns().min(PROSE).saturating_sub(INDENT)).iter().enumerate() {
            let label = if n == 0 { label } else { "" };
            writeln!(self.out, "  {}{line}", pad(label, INDENT - 2))?;
        }
        Ok(())
    }

    /// The files of a finding: one line each where the screen is wide enough, else version and rule on a second line.
    /// `alike` more findings of the block have a copy that is present.
    fn rows(&mut self, finding: &Finding, alike: usize) -> io::Result<()> {
        // What was left aside stands among the places that were searched.
        let listed = finding.rule == findings::NOT_FOUND && finding.severity > Severity::Note;
        let copies: Vec<&Copy> = finding.copies().filter(|c| !listed || c.part != Part::Skipped).collect();
        if copies.is_empty() {
            return Ok(());
        }
        let texts: Vec<String> = copies.iter().map(|c| escape::text(&c.path)).collect();
        // What asks is told by its name where its distribution is known; only copies are compared by their paths.
        let short_name = |n: usize| copies[n].part == Part::AskedBy && copies[n].owner.is_some();
        let compared: Vec<usize> = (0..copies.len()).filter(|n| copies[*n].part != Part::AskedBy).collect();
        let together = Paths::new(&compared.iter().map(|n| texts[*n].as_str()).collect::<Vec<_>>());
        let fit = |n: usize, columns: usize| match compared.iter().position(|c| *c == n) {
            Some(at) => together.fit(at, columns),
            None if short_name(n) => texts[n].rsplit('/').next().unwrap_or_default().to_owned(),
            None => layout::shorten(&texts[n], columns),
        };
        let versions: Vec<String> = copies.iter().map(|c| version(c.owner.as_ref(), c.version.as_deref())).collect();
        let rules: Vec<String> = copies
            .iter()
            .map(|c| match c.part {
                Part::Present if alike > 0 => {
                    format!("{}, nor {} {alike} more", c.place, words::plural(alike, "is", "are"))
                }
                _ => escape::text(c.place.as_bytes()),
            })
            .collect();
        let widest = |list: &[String]| list.iter().map(|t| width(t)).max().unwrap_or(0);
        let room = self.style.columns() - INDENT;
        let (version_width, rule_width) = (widest(&versions), widest(&rules));
        let tail = [version_width, rule_width].iter().filter(|w| **w > 0).map(|w| w + 3).sum::<usize>();
        // One line each only where no path has to be cut much: the path is what one looks for.
        let wanted = (0..copies.len()).map(|n| width(&fit(n, usize::MAX)).min(WHOLE)).max().unwrap_or(0);
        let one_line = room >= tail + wanted;
        let columns = if one_line { room - tail } else { room };
        let paths: Vec<String> = (0..copies.len()).map(|n| fit(n, columns)).collect();
        let path_width = widest(&paths);
        for (n, copy) in copies.iter().enumerate() {
            let ink = match copy.part {
                Part::Taken | Part::StopsAt if finding.severity == Severity::Error => Ink::Bad,
                Part::Taken | Part::StopsAt => Ink::Warn,
                Part::Passed | Part::Present => Ink::Good,
                Part::AskedBy | Part::Skipped => Ink::Strong,
            };
            let label = pad(copy.part.name(), INDENT - 2);
            let path = self.paint(ink, &paths[n]);
            let needed =
                [&versions[n], &rules[n]].iter().filter(|t| !t.is_empty()).map(|t| width(t) + 3).sum::<usize>();
            // What asks is not compared with the rest: it may stand on one line when the copies do not.
            let alone = (copy.part == Part::AskedBy || compared.len() == 1) && width(&paths[n]) + needed <= room;
            if one_line {
                let mut line = format!("  {label}{path}");
                let mut gap = path_width - width(&paths[n]);
                if version_width > 0 {
                    line.push_str(&format!("{:gap$}   {}", "", versions[n]));
                    gap = version_width - width(&versions[n]);
                }
                if rule_width > 0 {
                    line.push_str(&format!("{:gap$}   {}", "", self.paint(Ink::Faint, &rules[n])));
                }
                writeln!(self.out, "{}", line.trim_end())?;
            } else {
                let (version, rule) = (versions[n].clone(), rules[n].as_str());
                let facts = [version.clone(), self.paint(Ink::Faint, rule)];
                let second = facts.into_iter().filter(|t| !t.is_empty()).collect::<Vec<_>>();
                if second.is_empty() {
                    writeln!(self.out, "  {label}{path}")?;
                } else if alone {
                    writeln!(self.out, "  {label}{path}   {}", second.join("   "))?;
                } else {
                    writeln!(self.out, "  {label}{path}")?;
                    // Side by side where there is room for both.
                    let below = |t: &str| if t.is_empty() { Vec::new() } else { wrap(t, room) };
                    let lines = if needed <= room + 3 {
                        vec![second.join("   ")]
                    } else {
                        let rule = below(rule).into_iter().map(|l| self.paint(Ink::Faint, &l));
                        below(&version).into_iter().chain(rule).collect()
                    };
                    for line in lines {
                        writeln!(self.out, "{:INDENT$}{line}", "")?;
                    }
                }
            }
        }
        Ok(())
    }

    /// The places in which a missing library was looked for.
    fn searched(&mut self, finding: &Finding) -> io::Result<()> {
        let Some(id) = finding.decision() else { return Ok(()) };
        let process = &self.report.process;
        let decision = &process.decisions[id.index()];
        let mut lines = places::lines(process, decision);
        if self.style.verbosity <= 0 {
            lines = places::folded(lines);
        }
        let drawn = places::drawn(&lines, self.style.columns().saturating_sub(INDENT), self.style);
        for (n, line) in drawn.iter().enumerate() {
            let label = pad(if n == 0 { "searched" } else { "" }, INDENT - 2);
            writeln!(self.out, "{}", format!("  {label}{line}").trim_end())?;
        }
        Ok(())
    }

    fn because(&mut self, finding: &Finding) -> io::Result<()> {
        match &finding.because {
            Some(text) => self.labelled("because", &escape::text(text.as_bytes())),
            None => Ok(()),
        }
    }

    fn fixes(&mut self, finding: &Finding) -> io::Result<()> {
        let verbose = self.style.verbosity > 0;
        let shown = if verbose { finding.remedies.len() } else { 1 };
        if !finding.remedies.is_empty() {
            writeln!(self.out)?;
        }
        for remedy in finding.remedies.iter().take(shown) {
            let label = if remedy.verified { "fix" } else { "try" };
            let proof = match (remedy.verified, remedy.after) {
                (true, Some((0, 0))) => "proven: simulated again, no error and no warning is left".to_owned(),
                (true, Some((0, n))) => {
                    format!("proven: simulated again, this is gone; {} left", words::count(n, "warning", "warnings"))
                }
                (true, Some((n, _))) => {
                    format!("proven: simulated again, this is gone; {} left", words::count(n, "error", "errors"))
                }
                _ => "not simulated".to_owned(),
            };
            let text = escape::text(remedy.summary.as_bytes());
            let room = self.style.columns().saturating_sub(5);
            let ink = if remedy.verified { Ink::Good } else { Ink::Faint };
            if width(&text) + 4 + width(&proof) <= room {
                writeln!(self.out, "{}  {text}    {}", self.paint(ink, label), self.paint(ink, &proof))?;
            } else {
                for (n, line) in wrap(&text, room).iter().enumerate() {
                    let label = if n == 0 { self.paint(ink, label) } else { "   ".into() };
                    writeln!(self.out, "{label}  {line}")?;
                }
                writeln!(self.out, "     {}", self.paint(ink, &proof))?;
            }
            for command in &remedy.commands {
                writeln!(self.out, "     {}", self.paint(Ink::Strong, &escape::text(command.as_bytes())))?;
            }
        }
        let more = finding.remedies.len().saturating_sub(shown);
        let mut pointers = Vec::new();
        if more > 0 {
            pointers.push(format!("{}: -v", words::count(more, "more way to fix it", "more ways to fix it")));
        }
        if let Some(why) = self.why(finding) {
            pointers.push(format!("the whole story: {why}"));
        }
        let together = pointers.join("      ");
        let lines = if width(&together) + 5 <= self.style.columns() {
            vec![together]
        } else {
            // A command that is too long for the line has one of its own, whole.
            let room = self.style.columns().saturating_sub(5);
            let apart = |text: String| match text.split_once(": ldaudit ") {
                Some((what, command)) if width(&text) > room => vec![format!("{what}:"), format!("ldaudit {command}")],
                _ => vec![text],
            };
            pointers.into_iter().flat_map(apart).collect()
        };
        for line in lines.iter().filter(|l| !l.is_empty()) {
            writeln!(self.out, "     {}", self.paint(Ink::Faint, line))?;
        }
        Ok(())
    }

    /// The command that tells all about the name.
    fn why(&self, finding: &Finding) -> Option<String> {
        let about_a_name = finding.decision().is_some_and(|d| {
            self.report.process.decisions[d.index()].asked == finding.subject && !finding.subject.contains(&b'/')
        });
        about_a_name.then(|| {
            let name = &finding.subject;
            // A value that begins with a dash is one only behind an equals sign.
            let why = if name.starts_with(b"-") {
                vec![[b"--why=", name.as_slice()].concat()]
            } else {
                vec![b"--why".to_vec(), name.to_vec()]
            };
            let target = &self.report.target.name;
            let end = target.starts_with(b"-").then(|| b"--".to_vec());
            let options = self.report.options.iter().map(|o| o.to_vec());
            let words = why.into_iter().chain(options).chain(end).chain([target.to_vec()]);
            let words: Vec<String> = words.map(|w| findings::prove::quoted(w.as_bstr())).collect();
            escape::text(format!("ldaudit {}", words.join(" ")).as_bytes())
        })
    }

    // ------------------------------------------------------------------------------------------------------- the ordinary

    /// Every library with its rule, for `-v`.
    fn libraries(&mut self) -> io::Result<()> {
        let process = &self.report.process;
        let ids: Vec<ImageId> =
            process.load_order().into_iter().filter(|id| words::is_loaded_library(process, *id)).collect();
        if ids.is_empty() {
            return Ok(());
        }
        writeln!(self.out)?;
        let rows: Vec<[String; 3]> = ids
            .iter()
            .map(|id| {
                let owner = self.report.owners.get(id.index()).cloned().flatten();
                let number = words::file_version(process.image(*id).object.real_path());
                [
                    escape::text(words::label(process, *id).as_bytes()),
                    version(owner.as_ref(), number.as_deref()),
                    escape::text(words::arrival(process, *id).as_bytes()),
                ]
            })
            .collect();
        let column = |n: usize| rows.iter().map(|r| width(&r[n])).max().unwrap_or(0);
        let columns = self.style.columns();
        // Three columns where they fit; else what brought a library stands below it.
        let stacked = 1 + (0..3).map(column).filter(|w| *w > 0).map(|w| w + 2).sum::<usize>() > columns;
        let widths = [column(0).min(40), column(1).min(40), if stacked { 0 } else { column(2) }];
        for (id, row) in ids.iter().zip(&rows) {
            let mut line = String::from(" ");
            let mut used = 1;
            for (text, columns) in row.iter().zip(widths).filter(|(_, w)| *w > 0) {
                line.push_str(&format!(" {} ", pad(text, columns)));
                used += width(text).max(columns) + 2;
            }
            if stacked && used > columns && !row[1].is_empty() {
                writeln!(self.out, "  {}", row[0])?;
                line = format!("      {}", row[1]);
                used = width(&line);
            }
            // The directory where there is room for it.
            let path = words::readable(process, process.image(*id).name.as_bstr());
            let directory = escape::text(&words::directory(path.as_bstr()));
            if stacked {
                writeln!(self.out, "{}", line.trim_end())?;
                line = format!("      {} ", row[2]);
                used = width(&line);
            }
            let room = columns.saturating_sub(used + 1);
            let directory = layout::shorten(&directory, room);
            if width(&directory) <= room {
                line.push_str(&format!(" {}", self.paint(Ink::Faint, &directory)));
            }
            writeln!(self.out, "{}", line.trim_end())?;
        }
        Ok(())
    }

    /// One line with counts for all that is as it should be.
    fn folded(&mut self, notes_left_out: usize) -> io::Result<()> {
        let process = &self.report.process;
        let mut text = String::new();
        if process.images.iter().all(|i| i.role != Role::Loader) {
            if process.images.first().is_some_and(|i| i.facts().is_none_or(|f| f.interpreter.is_none())) {
                text.push_str("Statically linked: no loader takes part.");
            }
        } else {
            text = self.tally();
        }
        let absent: Vec<String> = self.scene.optional_and_absent().iter().map(|n| escape::text(n)).collect();
        if !absent.is_empty() {
            let list = if self.style.verbosity > 0 { absent.join(", ") } else { words::enumerate(&absent) };
            text.push_str(&format!(" Optional and absent, harmless: {list}."));
        }
        if self.is_given("--loader") {
            let dialect = process.dialect();
            let rules = format!("{} {}", dialect.family.name(), dialect.version_text());
            let files = match dialect.family {
                Family::Glibc => "; the libraries, libc too, are this box's",
                Family::Musl => "",
            };
            text.push_str(&format!(" By the rules of {rules}{files}."));
        }
        if notes_left_out > 0 {
            text.push_str(&format!(" {}: -v.", words::count(notes_left_out, "more note", "more notes")));
        }
        if text.is_empty() {
            return Ok(());
        }
        if self.report.findings.is_empty() && self.style.verbosity <= 0 {
            // A healthy target: two lines, no gap.
        } else {
            writeln!(self.out)?;
        }
        let indent = if self.report.findings.is_empty() && self.style.verbosity <= 0 { 7 } else { 0 };
        for line in wrap(text.trim(), self.style.columns().saturating_sub(indent)) {
            writeln!(self.out, "{:indent$}{}", "", self.paint(Ink::Faint, &line))?;
        }
        Ok(())
    }

    /// `63 libraries: 59 as shipped in wheels, 3 from the system, 1 shadowed.`
    fn tally(&self) -> String {
        let process = &self.report.process;
        let blamed: Vec<ImageId> = self
            .report
            .findings
            .iter()
            .filter(|f| f.severity > Severity::Note)
            .filter(|f| f.rule == findings::SHADOWED || f.rule == findings::LOADED_EARLIER)
            .flat_map(|f| f.copies().filter(|c| c.part == Part::Taken).filter_map(|c| c.image))
            .collect();
        // Extensions of the standard library and libpython lie below the prefix of the real interpreter.
        let prefix = self.report.python.as_ref().and_then(|_| {
            let main = process.images.first()?.object.real_path();
            Some(crate::system::parent(crate::system::parent(main)).to_owned()).filter(|p| p.len() > 1 && p != "/usr")
        });
        let of_python = |id: ImageId| {
            let path = process.image(id).object.real_path();
            path.contains_str("/lib-dynload/")
                || prefix.as_ref().is_some_and(|p| path.strip_prefix(p.as_slice()).is_some_and(|r| r.starts_with(b"/")))
        };
        const KINDS: [&str; 8] = [
            "as shipped in wheels",
            "of Python itself",
            "by RPATH or RUNPATH",
            "from the system",
            "from LD_LIBRARY_PATH",
            "preloaded",
            "by path",
            "from the wrong place",
        ];
        let mut counts = [0usize; KINDS.len()];
        for index in 0..process.images.len() {
            let id = ImageId(index as u32);
            if !words::is_loaded_library(process, id) {
                continue;
            }
            let decision = &process.decisions[process.image(id).decision.index()];
            let rule = decision.via.as_ref().map_or(Rule::Path, |v| v.place.rule);
            let kind = if blamed.contains(&id) {
                7
            } else if words::preload_source(process, decision).is_some() {
                5
            } else if rule == Rule::LibraryPath {
                4
            } else if self.report.python.is_some() && of_python(id) {
                1
            } else if self.report.owners.get(index).is_some_and(|o| o.is_some()) {
                0
            } else {
                match rule {
                    Rule::Rpath | Rule::Runpath => 2,
                    Rule::Cache | Rule::Default | Rule::MuslPath => 3,
                    _ => 6,
                }
            };
            counts[kind] += 1;
        }
        let total: usize = counts.iter().sum();
        let parts: Vec<String> =
            counts.iter().zip(KINDS).filter(|(n, _)| **n > 0).map(|(n, kind)| format!("{n} {kind}")).collect();
        let when = if self.report.verdict == Verdict::Fails { " until then" } else { "" };
        let kind = |part: &str| part.trim_start_matches(|c: char| c.is_ascii_digit() || c == ' ').to_owned();
        match (total, parts.as_slice()) {
            (0, _) if when.is_empty() => "It needs no library.".into(),
            (0, _) => "No library was loaded.".into(),
            (1, [one]) => format!("1 library{when}, {}.", kind(one)),
            (n, [one]) => format!("{n} libraries{when}, all {}.", kind(one)),
            (n, _) => format!("{n} libraries{when}: {}.", parts.join(", ")),
        }
    }
}

/// Version and distribution: `12.9.86 (nvidia-nvjitlink-cu12)`, `12.0.140`.
fn version(owner: Option<&Owner>, number: Option<&str>) -> String {
    match (owner, number) {
        (Some(Owner { package, version }), _) => escape::text(format!("{version} ({package})").as_bytes()),
        (None, Some(number)) => escape::text(number.as_bytes()),
        (None, None) => String::new(),
    }
}
