//! The search order of one request as lines to read: every place in order, what was there, and what is not set.

use bstr::{BStr, BString, ByteSlice};
use rustc_hash::FxHashSet;

use super::escape;
use super::text::layout::{pad, shorten, width, wrap};
use super::text::{Ink, Style};
use crate::findings::words;
use crate::ld::{Attempt, Decision, Family, ImageId, Place, Process, Rule, Verdict};
use crate::system::parent;

/// One place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Line {
    /// `RUNPATH[1] of libx.so`, `LD_LIBRARY_PATH`, `cache`.
    pub title: String,
    /// The directory; empty where there is none to name.
    pub directory: String,
    /// What is to be said: `not set`, `no such directory`. Empty when the name is simply not there.
    pub remark: String,
}

/// What is said of a directory that does not exist.
const MISSING: &str = "no such directory";

impl Line {
    fn remark(title: impl Into<String>, remark: impl Into<String>) -> Line {
        Line { title: title.into(), directory: String::new(), remark: remark.into() }
    }
}

/// The places of a request that nothing answered, in the order they were tried.
pub fn lines(process: &Process, decision: &Decision) -> Vec<Line> {
    if decision.asked.contains(&b'/') {
        return decision.attempts.iter().map(|a| line(process, a.place, &[a])).collect();
    }
    match process.dialect().family {
        Family::Glibc => glibc(process, decision),
        Family::Musl => musl(process, decision),
    }
}

/// Attempts of one place; sub-directories for processor levels are attempts of their own.
fn grouped<'a>(decision: &'a Decision, rules: &[Rule]) -> Vec<(Place, Vec<&'a Attempt>)> {
    let mut out: Vec<(Place, Vec<&Attempt>)> = Vec::new();
    for a in decision.attempts.iter().filter(|a| rules.contains(&a.place.rule) && a.verdict != Verdict::NotReached) {
        match out.last_mut() {
            Some((place, list)) if *place == a.place => list.push(a),
            _ => out.push((a.place, vec![a])),
        }
    }
    out
}

fn each(process: &Process, decision: &Decision, rule: Rule) -> Vec<Line> {
    grouped(decision, &[rule]).iter().map(|(place, attempts)| line(process, *place, attempts)).collect()
}

fn line(process: &Process, place: Place, attempts: &[&Attempt]) -> Line {
    // The directory itself is tried last, behind its sub-directories.
    let base = attempts.last().map(|a| a.path.as_bstr()).unwrap_or_default();
    let directory = match parent(base) {
        dir if dir.is_empty() => "the current directory".to_owned(),
        dir => escape::text(&words::readable(process, dir)),
    };
    let exists = process.store().is_dir(words::directory(base).as_bstr());
    let found = attempts.iter().find_map(|a| verdict(process, a));
    let remark = match found {
        Some(text) => text,
        None if !exists && parent(base).first() == Some(&b'/') => match process.store().stat(parent(base)) {
            Ok(_) => "not a directory".into(),
            Err(crate::system::Errno::ENOENT) => MISSING.into(),
            Err(errno) => errno.text(),
        },
        None => String::new(),
    };
    Line { title: escape::text(words::place(process, place).as_bytes()), directory, remark }
}

/// What a candidate that is there was left aside for.
fn verdict(process: &Process, a: &Attempt) -> Option<String> {
    match &a.verdict {
        Verdict::Skipped(errno) if matches!(errno.0, 2 | 20) => None,
        Verdict::Skipped(errno) => Some(errno.text()),
        Verdict::ListStopped(errno) => Some(format!("{errno}: the rest of this list is left out")),
        Verdict::WrongClass | Verdict::WrongMachine => Some(words::architecture(process, a.path.as_bstr())),
        Verdict::NeedsNewerKernel => Some("a file that asks for a newer kernel".into()),
        Verdict::NotSetUserId => Some("not set-user-ID".into()),
        Verdict::Forbidden => Some("forbidden by NODEFLIB".into()),
        Verdict::Fatal(text) => Some(format!("ends the load: {}", escape::text(text.as_bytes()))),
        Verdict::Taken => Some("taken".into()),
        Verdict::NotReached | Verdict::DirectoryMissing => None,
    }
}

fn glibc(process: &Process, decision: &Decision) -> Vec<Line> {
    let mut out = Vec::new();
    let facts = decision.needed_by.and_then(|id| process.image(id).facts());
    let has_runpath = facts.is_some_and(|f| f.runpath.is_some());
    let label = |id: ImageId| escape::text(words::label(process, id).as_bytes());
    let rpath = each(process, decision, Rule::Rpath);
    if has_runpath {
        let who = decision.needed_by.map(label).unwrap_or_default();
        out.push(Line::remark("RPATH", format!("does not count: {who} carries RUNPATH")));
    } else if rpath.is_empty() {
        out.push(Line::remark("RPATH", "none"));
    }
    out.extend(rpath);
    let environment = each(process, decision, Rule::LibraryPath);
    if environment.is_empty() {
        out.push(Line::remark("LD_LIBRARY_PATH", library_path_remark(process)));
    }
    out.extend(environment);
    let runpath = each(process, decision, Rule::Runpath);
    if runpath.is_empty() {
        out.push(Line::remark("RUNPATH", if has_runpath { "no usable element" } else { "none" }));
    }
    out.extend(runpath);
    let cache = each(process, decision, Rule::Cache);
    if cache.is_empty() {
        let usable = process.cache.as_ref().is_some_and(|c| c.cache().is_some());
        let remark = if usable { "no line for this name" } else { "there is none to use" };
        out.push(Line::remark("cache", remark));
    }
    out.extend(cache);
    let flagged = decision.needed_by.unwrap_or(ImageId(0));
    if !process.images.is_empty() && process.has_nodeflib(flagged) {
        out.push(Line::remark("default directories", format!("not searched: NODEFLIB of {}", label(flagged))));
        return out;
    }
    out.extend(defaults(process, decision));
    out
}

/// The default directories in one line when none of them has anything to tell.
fn defaults(process: &Process, decision: &Decision) -> Vec<Line> {
    let lines = each(process, decision, Rule::Default);
    if lines.is_empty() || lines.iter().any(|l| !l.remark.is_empty() && l.remark != MISSING) {
        return lines;
    }
    let dirs: Vec<&str> = lines.iter().map(|l| l.directory.as_str()).collect();
    vec![Line { title: "default directories".into(), directory: dirs.join(" "), remark: String::new() }]
}

fn library_path_remark(process: &Process) -> String {
    let host = process.host();
    match host.env.get("LD_LIBRARY_PATH") {
        None => "not set".into(),
        Some(_) if host.secure => "ignored: the process is privileged".into(),
        Some(text) if text.is_empty() => "set, but empty".into(),
        Some(_) => "no usable element".into(),
    }
}

fn musl(process: &Process, decision: &Decision) -> Vec<Line> {
    let mut out = each(process, decision, Rule::LibraryPath);
    if out.is_empty() {
        out.push(Line::remark("LD_LIBRARY_PATH", library_path_remark(process)));
    }
    let lists: Vec<Line> = grouped(decision, &[Rule::Rpath, Rule::Runpath])
        .iter()
        .map(|(place, attempts)| line(process, *place, attempts))
        .collect();
    if lists.is_empty() {
        out.push(Line::remark("RPATH or RUNPATH", "none"));
    }
    out.extend(lists);
    out.extend(each(process, decision, Rule::MuslPath));
    out
}

/// The same with long lists in one line: more than three elements of one list that have nothing to tell are counted.
pub fn folded(lines: Vec<Line>) -> Vec<Line> {
    let ordinary = |line: &Line| line.remark.is_empty() || line.remark == MISSING;
    let mut out = Vec::new();
    for run in lines.chunk_by(|a, b| list(a).is_some() && list(a) == list(b) && ordinary(a) == ordinary(b)) {
        match list(&run[0]) {
            Some(title) if run.len() > 3 && ordinary(&run[0]) => out.push(counted(title, run)),
            _ => out.extend(run.iter().cloned()),
        }
    }
    out
}

/// A run of one list as one line. A single directory that is missing is named: it often is the answer.
fn counted(title: String, run: &[Line]) -> Line {
    let missing: Vec<&Line> = run.iter().filter(|l| l.remark == MISSING).collect();
    match missing.as_slice() {
        [] => Line::remark(title, format!("{} directories", run.len())),
        [one] => Line {
            title,
            directory: one.directory.clone(),
            remark: format!("does not exist; {} others do", run.len() - 1),
        },
        many => Line::remark(title, format!("{} directories, {} of them do not exist", run.len(), many.len())),
    }
}

/// The same with each list that leads to nothing new in one line: all its directories stand above or do not exist.
pub fn brief(lines: Vec<Line>) -> Vec<Line> {
    let mut seen: FxHashSet<String> = FxHashSet::default();
    let mut out = Vec::new();
    for run in lines.chunk_by(|a, b| list(a).is_some() && list(a) == list(b)) {
        let known = |l: &Line| l.remark == MISSING || (l.remark.is_empty() && seen.contains(&l.directory));
        let nothing_new = run.iter().all(known) && run.iter().any(|l| seen.contains(&l.directory));
        match list(&run[0]) {
            Some(title) if run.len() > 1 && nothing_new => {
                let missing = run.iter().filter(|l| l.remark == MISSING).count();
                let remark = match missing {
                    0 => format!("{} directories, all of them as above", run.len()),
                    n => format!("{} directories, as above or missing ({n})", run.len()),
                };
                out.push(Line::remark(title, remark));
            }
            _ => {
                // Of an otherwise telling list, runs of missing directories are counted.
                for part in run.chunk_by(|a, b| a.remark == MISSING && b.remark == MISSING) {
                    match (list(&part[0]), part) {
                        (Some(title), [first, .., last]) if part.len() > 3 => {
                            let ends = (element(first), element(last));
                            let remark =
                                format!("{} to {}: {} directories that do not exist", ends.0, ends.1, part.len());
                            out.push(Line::remark(title, remark));
                        }
                        _ => out.extend(part.iter().cloned()),
                    }
                }
            }
        }
        seen.extend(run.iter().map(|l| l.directory.clone()));
    }
    out
}

/// Columns that are kept for what is said of a place: longer titles stand on a line of their own.
const VALUE: usize = 30;

/// The lines in two columns, none wider than so many columns unless a word alone is.
pub fn drawn(lines: &[Line], columns: usize, style: &Style) -> Vec<String> {
    const GAP: &str = "   ";
    let most = columns.saturating_sub(VALUE + GAP.len()).max(4);
    let titles = lines.iter().map(|l| width(&l.title)).filter(|w| *w <= most).max().unwrap_or(4);
    let room = columns.saturating_sub(titles + GAP.len()).max(VALUE.min(24));
    let mut out = Vec::new();
    for line in lines {
        let mut values: Vec<String> = Vec::new();
        let is_list = line.directory.contains(' ');
        let beside = if line.remark.is_empty() { 0 } else { width(&line.remark) + GAP.len() };
        if is_list {
            values.extend(wrap(&line.directory, room));
        } else if !line.directory.is_empty() {
            values.push(shorten(&line.directory, room.saturating_sub(beside).max(20)));
        }
        match values.last_mut() {
            _ if line.remark.is_empty() => {}
            Some(last) if width(last) + beside <= room => {
                *last = format!("{last}{GAP}{}", style.paint(Ink::Faint, &line.remark));
            }
            last => {
                // The remark goes below, so that the path need not be cut for it.
                if let Some(path) = last.filter(|_| !is_list) {
                    *path = shorten(&line.directory, room);
                }
                values.extend(wrap(&line.remark, room).iter().map(|l| style.paint(Ink::Faint, l)));
            }
        }
        let mut title = line.title.as_str();
        if width(title) > titles && !values.is_empty() {
            out.push(std::mem::take(&mut title).to_owned());
        }
        if values.is_empty() {
            values.push(String::new());
        }
        for value in values {
            out.push(format!("{}{GAP}{value}", pad(std::mem::take(&mut title), titles)).trim_end().to_owned());
        }
    }
    out
}

/// The `[3]` of a line's title.
fn element(line: &Line) -> &str {
    let from = line.title.find('[').unwrap_or(0);
    let to = line.title.find(']').map_or(line.title.len(), |at| at + 1);
    line.title.get(from..to).unwrap_or_default()
}

/// The list that a line is an element of, in words: `RPATH of libx.so`.
fn list(line: &Line) -> Option<String> {
    let (name, rest) = line.title.split_once('[')?;
    Some(format!("{name}{}", rest.split_once(']')?.1))
}

/// What a request was searched in: requests with equal keys are told together.
pub type Key = (Option<ImageId>, Vec<(&'static str, Option<ImageId>, Option<u32>, BString)>);

/// The key of a request.
pub fn key(decision: &Decision) -> Key {
    let mut out: Vec<(&'static str, Option<ImageId>, Option<u32>, BString)> = Vec::new();
    for a in &decision.attempts {
        let dir: &BStr = parent(a.path.as_bstr());
        let (rule, owner, entry) = (a.place.rule.name(), a.place.owner, a.place.entry);
        match out.last_mut() {
            Some((r, o, e, last)) if (*r, *o, *e) == (rule, owner, entry) => *last = dir.to_owned(),
            _ => out.push((rule, owner, entry, dir.to_owned())),
        }
    }
    (decision.needed_by, out)
}
