//! Findings about which file is loaded: not found, unusable, shadowed, wrong version.
//!
//! Everything is read from what the simulation recorded: decisions with their attempts, failures of steps, images. A
//! step that the program goes on without is never an error; what it could not find is harmless.

use bstr::{BStr, BString, ByteSlice};
use rustc_hash::{FxHashMap, FxHashSet};

use super::{
    CACHE_UNUSABLE, CANNOT_START, Candidate, DAMAGED_FILE, Evidence, Finding, LOADER_ASSUMED, MODULE_ABSENT, NOT_FOUND,
    Owner, PRELOAD_FAILED, Part, REFUSED, RULES, SHADOWED, SYMBOLS_NOT_READ, Severity, TOO_MUCH, UNUSABLE_FILE,
    VERSION_MISSING, WRONG_ARCHITECTURE,
};
use super::{telltale, words};
use crate::discover::python::Installed;
use crate::discover::python::torch::Torch;
use crate::elf::{Facts, flags_1};
use crate::ld::dialect::Evidence as Source;
use crate::ld::{
    Attempt, Decision, DecisionId, Dialect, Family, How, ImageId, LoadFailure, Outcome, Process, Role, Rule, Step,
    StepId, StepKind, Verdict,
};
use crate::recipe::prerequisites::Lacking;
use crate::recipe::{Absent, Cure, Exception};
use crate::system::Errno;

/// Preload entries that are told of one by one; whoever has more of them knows.
const MAX_PRELOADS: usize = 100;

/// What is known beyond the simulated process.
pub struct Knowledge<'a> {
    /// The distribution that a path belongs to.
    pub owner: &'a dyn Fn(&BStr) -> Option<Owner>,
    /// The package whose list of files has a path, whether or not the file is there.
    pub listed: &'a dyn Fn(&BStr) -> Option<Installed>,
    /// Places where a file of a name lies in the environment's packages, whether or not a search leads there.
    pub copies: &'a dyn Fn(&BStr) -> Vec<BString>,
    /// Library files of the environment's packages; asked for only when nothing nearer explains a failure.
    pub libraries: &'a dyn Fn() -> Vec<BString>,
    /// NVIDIA's wheels that the distribution which owns a file requires and that are not there, or not whole.
    pub lacking: &'a dyn Fn(&BStr) -> Vec<Lacking>,
    /// What the distribution that owns a file requires, line by line as its metadata has it.
    pub requires: &'a dyn Fn(&BStr) -> Vec<String>,
    /// The torch that `import torch` takes.
    pub torch: Option<&'a Torch>,
    /// The exception with which the recipe ended.
    pub exception: Option<&'a Exception>,
}

impl Knowledge<'static> {
    /// Nothing is known: a plain file outside every package.
    pub fn none() -> Knowledge<'static> {
        Knowledge {
            owner: &|_| None,
            listed: &|_| None,
            copies: &|_| Vec::new(),
            libraries: &Vec::new,
            lacking: &|_| Vec::new(),
            requires: &|_| Vec::new(),
            torch: None,
            exception: None,
        }
    }
}

/// Everything that is wrong with one process, the finding that explains the first failure first.
pub fn check(process: &Process, known: &Knowledge<'_>) -> Vec<Finding> {
    if process.gave_up() {
        return vec![gave_up(process)];
    }
    let scene = Scene::new(process, known.exception);
    let mut out = Vec::new();
    cannot_start(process, &mut out);
    missing(&scene, known, &mut out);
    unusable(&scene, known, &mut out);
    let mut told = FxHashSet::default();
    super::versions::check(&scene, known, &mut out, &mut told);
    super::symbols::check(&scene, known, &mut out, &mut told);
    super::static_tls::check(&scene, known, &mut out);
    preloads(process, &mut out);
    damaged(&scene, known, &mut out);
    unexplained(&scene, known, &mut out);
    out.extend(super::shadow::check(process, known, &told));
    wrong_architecture(process, known, &mut out);
    out.extend(super::mix::check(process, known));
    not_looked_up(process, &mut out);
    loader(process, &mut out);
    out.extend(super::elements::check(process));
    sort(&scene, &mut out);
    out
}

/// The process takes more than any real one: what was recorded is not whole, so that nothing else can be said of it.
fn gave_up(process: &Process) -> Finding {
    let step = process.steps.iter().rposition(|s| s.failure.is_some()).unwrap_or(0);
    let subject = process.steps.first().map(|s| s.name.clone()).unwrap_or_default();
    let summary = format!("{} cannot be audited whole: it asks for too much", words::shown(&subject));
    let because = format!(
        "The simulation ended after {} libraries and {} requests.",
        process.images.len(),
        process.decisions.len()
    );
    Finding::new(TOO_MUCH, subject, summary).because(because).with(Evidence::Step(StepId(step as u32)))
}

/// True when nothing in a process can be an error: every step did what it was to do, every request has its answer, and
/// no file is damaged. Attempts are not looked at, so that a process without them will do.
pub fn is_clean(process: &Process) -> bool {
    !process.gave_up()
        && process.steps.iter().all(|s| matches!(s.outcome, Outcome::Ok | Outcome::AlreadyLoaded))
        && process.decisions.iter().all(|d| d.chosen.is_some())
        && process.images.iter().all(|i| i.facts().is_some() && i.object.defects().next().is_none())
}

// --------------------------------------------------------------------------------------------------- which steps count

/// Which step is fatal, and which failures nobody minds.
pub struct Scene<'a> {
    pub(super) process: &'a Process,
    fatal: Option<StepId>,
}

impl<'a> Scene<'a> {
    /// Looks at the steps; an exception of the recipe tells which of them stopped the program.
    pub fn new(process: &'a Process, exception: Option<&Exception>) -> Scene<'a> {
        let steps = || process.steps.iter().enumerate().map(|(n, s)| (StepId(n as u32), s));
        let failed = |s: &Step| s.outcome == Outcome::Failed && s.failure.is_some() && s.kind != StepKind::Preload;
        let fatal = match exception {
            Some(Exception { step: Some(step), .. }) => Some(*step),
            // An exception of the framework's own can follow a failure that it tried to make up for, yet not one that
            // nobody minds.
            Some(_) => {
                let counts = |s: &Step| failed(s) && s.kind == StepKind::Dlopen && !s.optional;
                steps().filter(|(_, s)| counts(s)).map(|(id, _)| id).next_back()
            }
            None => steps().find(|(_, s)| failed(s) && !s.optional).map(|(id, _)| id),
        };
        Scene { process, fatal }
    }

    /// The step that stopped the program.
    pub fn fatal(&self) -> Option<(StepId, &'a Step)> {
        Some((self.fatal?, self.process.steps.get(self.fatal?.index())?))
    }

    /// True when nobody minds that a step failed: the program goes on without it.
    pub fn is_harmless(&self, id: StepId) -> bool {
        let Some(step) = self.process.steps.get(id.index()) else { return true };
        self.fatal != Some(id) && step.optional
    }

    /// Names that optional opens asked for and that are nowhere, in order.
    pub fn optional_and_absent(&self) -> Vec<BString> {
        let mut out: Vec<BString> = Vec::new();
        let mut seen: FxHashSet<&BStr> = FxHashSet::default();
        for (n, step) in self.process.steps.iter().enumerate() {
            // Of an extension module one cannot say that nobody will miss it.
            let counts = step.kind == StepKind::Dlopen && step.optional && self.is_harmless(StepId(n as u32));
            let absent = step.failure.as_ref().filter(|f| counts && is_absence(self.process, f));
            if let Some(failure) = absent.filter(|f| seen.insert(f.object.as_bstr())) {
                out.push(failure.object.clone());
            }
        }
        out
    }
}

/// True for the failure that says that no file was found.
fn is_absence(process: &Process, failure: &LoadFailure) -> bool {
    match process.dialect().family {
        Family::Glibc => {
            failure.text == "cannot open shared object file" || failure.text.starts_with(b"wrong ELF class")
        }
        // ENOEXEC and ENOMEM are what musl says of a file that it opened and cannot use.
        Family::Musl => !matches!(failure.errno, 8 | 12),
    }
}

// ----------------------------------------------------------------------------------------------------------- the rules

fn cannot_start(process: &Process, out: &mut Vec<Finding>) {
    let Some((index, step)) = process.steps.iter().enumerate().find(|(_, s)| s.kind == StepKind::Exec) else { return };
    let name = words::shown(&step.name);
    if step.outcome == Outcome::Failed && process.images.is_empty() {
        let text = step.error.as_ref().map(words::shown).unwrap_or_default();
        let opened = process.store().open(step.name.as_bstr()).ok();
        let finding = match opened.and_then(|o| words::cut_short(process, &o)) {
            Some((size, least)) => {
                let summary = format!("{name} is cut short: {size} of at least {least} bytes are there");
                Finding::new(CANNOT_START, step.name.clone(), summary)
                    .because("what its ELF header tells of lies behind the end of the file")
            }
            None => Finding::new(CANNOT_START, step.name.clone(), format!("{name} cannot be started")),
        };
        // The reason is the error itself where nothing better is known.
        let finding = match finding.because {
            None if !text.is_empty() => finding.because(text),
            _ => finding,
        };
        out.push(finding.with(Evidence::Step(StepId(index as u32))));
        return;
    }
    let (Some(main), Some(loader)) = (process.images.first(), process.images.get(1)) else { return };
    let named = main.facts().and_then(|f| f.interpreter.as_ref());
    let refused = step.failure.as_ref().filter(|f| f.text == "the program's loader cannot be opened");
    let errno = refused.map(|f| Errno(f.errno)).or_else(|| loader.object.head.as_ref().err().copied());
    if let (Some(interpreter), Role::Loader, Some(errno)) = (named, loader.role, errno) {
        let shown = words::shown(interpreter);
        let (what, and_then) = match errno {
            Errno::EACCES => ("that may not be run", ""),
            Errno::ELIBBAD | Errno::EIO => ("that is none", ""),
            _ => (
                "that is not there",
                ". A shell then says \"No such file or directory\" although the program itself exists",
            ),
        };
        out.push(
            Finding::new(CANNOT_START, step.name.clone(), format!("{name} names a loader {what}: {shown}"))
                .because(format!(
                    "the kernel starts the loader that PT_INTERP names, and opening {shown} gives: {errno}{and_then}."
                ))
                .with(Evidence::Step(StepId(index as u32)))
                .with(Evidence::Path(interpreter.clone(), errno.text())),
        );
    }
}

/// A search list as its places in order: requests with equal ones are explained together.
type Places = Vec<(Rule, Option<ImageId>, Option<u32>, bool)>;

fn places(decision: &Decision) -> Places {
    let mut out: Places = Vec::new();
    for a in &decision.attempts {
        let place = (a.place.rule, a.place.owner, a.place.entry, is_remarkable(&a.verdict));
        if out.last() != Some(&place) {
            out.push(place);
        }
    }
    out
}

fn missing(scene: &Scene<'_>, known: &Knowledge<'_>, out: &mut Vec<Finding>) {
    let process = scene.process;
    let mut by_name: Vec<(&BStr, Vec<DecisionId>)> = Vec::new();
    let mut position: FxHashMap<&BStr, usize> = FxHashMap::default();
    for (n, d) in process.decisions.iter().enumerate() {
        let counts = matches!(d.how, How::Needed | How::Filter | How::Dlopen) && d.chosen.is_none();
        let absent = d.failure.as_ref().is_some_and(|f| is_absence(process, f));
        // An extension module that does not load is worth a word even where nobody says that it is needed.
        let is_import = process.steps[d.step.index()].kind == StepKind::Import;
        if !counts || !absent || (scene.is_harmless(d.step) && !is_import) {
            continue;
        }
        let at = *position.entry(d.asked.as_bstr()).or_insert_with(|| {
            by_name.push((d.asked.as_bstr(), Vec::new()));
            by_name.len() - 1
        });
        by_name[at].1.push(DecisionId(n as u32));
    }
    let mut groups: FxHashMap<(Option<ImageId>, Places), u32> = FxHashMap::default();
    let from = out.len();
    let mut gone: Vec<Gone<'_>> = Vec::new();
    for (name, mut ids) in by_name {
        // What somebody minds stands for all: a name can be asked for again where nobody does.
        ids.sort_by_key(|d| scene.is_harmless(process.decisions[d.index()].step));
        let decision = &process.decisions[ids[0].index()];
        let next = groups.len() as u32;
        let group = *groups.entry((decision.needed_by, places(decision))).or_insert(next);
        let (mut finding, listed) = missing_one(process, known, name, &ids);
        finding.group = Some(group);
        gone.push(Gone { name, by: decision.needed_by, listed });
        if ids.iter().all(|d| scene.is_harmless(process.decisions[d.index()].step)) {
            finding = finding.severity(Severity::Note);
        }
        out.push(finding);
    }
    together(&mut out[from..]);
    bring_back(process, known, &mut out[from..], &gone);
}

/// A library that is missing.
struct Gone<'p> {
    name: &'p BStr,
    /// Who needs it.
    by: Option<ImageId>,
    /// The installed package that says it has the library.
    listed: Option<Installed>,
}

/// The packages that bring missing libraries back, for all findings that are shown together: those that list them, and what
/// the package of the asking file requires and that is not installed. Where one of NVIDIA's is gone, so are all others that
/// are: they would be missed next.
fn bring_back(process: &Process, known: &Knowledge<'_>, findings: &mut [Finding], gone: &[Gone<'_>]) {
    let mut lacking: FxHashMap<ImageId, Vec<Lacking>> = FxHashMap::default();
    let mut of_group: FxHashMap<Option<u32>, (Vec<String>, Vec<Installed>)> = FxHashMap::default();
    for (finding, gone) in findings.iter().zip(gone) {
        let (install, again) = of_group.entry(finding.group).or_default();
        again.extend(gone.listed.clone().filter(|package| !again.contains(package)));
        let Some(by) = gone.by else { continue };
        let path = process.image(by).object.real_path();
        let lacking = lacking.entry(by).or_insert_with(|| (known.lacking)(path));
        let stem = telltale::stem(gone.name);
        if gone.listed.is_none() && !lacking.iter().any(|l| telltale::is_wheel_of(stem, &l.name)) {
            continue;
        }
        for lacking in lacking.iter() {
            match &lacking.cure {
                Cure::Install(text) if !install.contains(text) => install.push(text.clone()),
                Cure::Reinstall(package) if !again.contains(package) => again.push(package.clone()),
                Cure::Install(_) | Cure::Reinstall(_) => {}
            }
        }
    }
    for finding in findings {
        let Some((install, again)) = of_group.get(&finding.group) else { continue };
        let again = (!again.is_empty()).then(|| words::reinstall(again, false));
        let install = (!install.is_empty()).then(|| words::install(install));
        // Either is needed.
        finding.remedies.extend(match (install, again) {
            (Some(install), Some(mut again)) => {
                again.summary = format!("{}; {}", install.summary, again.summary);
                again.commands.splice(0..0, install.commands);
                Some(again)
            }
            (install, again) => install.or(again),
        });
    }
}

/// For findings that are shown together also the change that serves them all: every directory that holds a copy.
fn together(findings: &mut [Finding]) {
    let mut of_group: FxHashMap<Option<u32>, Vec<BString>> = FxHashMap::default();
    for f in findings.iter() {
        // The first copy of each name: one directory is enough for it.
        let first = f.candidates.iter().find_map(|c| match c {
            Candidate::AppendLibraryPath(dirs) => dirs.first(),
            _ => None,
        });
        let dirs = of_group.entry(f.group).or_default();
        if let Some(dir) = first.filter(|d| !dirs.contains(d)) {
            dirs.push(dir.clone());
        }
    }
    for f in findings {
        if let Some(dirs) = of_group.get(&f.group).filter(|dirs| (2..=MAX_DIRECTORIES).contains(&dirs.len())) {
            f.candidates.push(Candidate::AppendLibraryPath(dirs.clone()));
        }
    }
}

/// Most places of a search that are looked up in the lists of distributions.
const MAX_LISTED: usize = 64;

/// True for a place where there is no file of the name.
fn is_nothing(verdict: &Verdict) -> bool {
    match verdict {
        Verdict::DirectoryMissing => true,
        Verdict::Skipped(errno) => matches!(errno.0, 2 | 20),
        _ => false,
    }
}

/// Most directories that one change adds.
const MAX_DIRECTORIES: usize = 16;

fn missing_one(
    process: &Process,
    known: &Knowledge<'_>,
    name: &BStr,
    ids: &[DecisionId],
) -> (Finding, Option<Installed>) {
    let decision = &process.decisions[ids[0].index()];
    let asked = words::shown(name);
    let by_path = name.contains(&b'/');
    let failure = decision.failure.as_ref();
    let errno = failure.map_or(0, |f| f.errno);
    let summary = match (by_path, errno) {
        (true, 2) => format!("{asked} does not exist"),
        (true, 0) => format!("{asked} is for another architecture"),
        (true, n) => format!("{asked} cannot be opened: {}", Errno(n).text()),
        (false, _) if decision.attempts.iter().any(|a| is_foreign(&a.verdict)) => {
            format!("{asked} is found for other architectures only")
        }
        (false, _) => format!("{asked} is in none of the places that are searched for it"),
    };
    let mut finding = Finding::new(NOT_FOUND, name.to_owned(), summary).with(Evidence::Decision(ids[0]));
    if let Some(id) = decision.needed_by {
        let mut others: Vec<ImageId> =
            ids[1..].iter().filter_map(|d| process.decisions[d.index()].needed_by).filter(|r| *r != id).collect();
        others.sort();
        others.dedup();
        let mut place = foreign_arrival(process, id);
        if !others.is_empty() {
            place = format!("and {} more", others.len());
        }
        finding = finding.with(Evidence::Copy(words::image_copy(process, known, Part::AskedBy, id, place)));
    }
    for attempt in decision.attempts.iter().filter(|a| is_remarkable(&a.verdict)) {
        finding = finding.with(Evidence::Copy(skipped(process, known, attempt)));
    }
    for attempt in decision.attempts.iter().filter(|a| is_nothing(&a.verdict)).take(MAX_LISTED) {
        if let Some(target) = words::dead_link(process, attempt.path.as_bstr()) {
            let place = format!("{}: a link to {target}, which is not there", words::place(process, attempt.place));
            let copy = words::path_copy(process, known, Part::Skipped, attempt.path.as_bstr(), place);
            finding = finding.with(Evidence::Copy(copy));
        }
    }
    let copies = if by_path { Vec::new() } else { (known.copies)(name) };
    let is_tried = |path: &BString| decision.attempts.iter().any(|a| a.path == *path);
    let is_there = |path: &BString| process.store().stat(path.as_bstr()).is_ok();
    for path in copies.iter().filter(|path| !is_tried(path) && is_there(path)).take(3) {
        let place = "not where it is searched for".to_owned();
        finding = finding.with(Evidence::Copy(words::path_copy(process, known, Part::Present, path.as_bstr(), place)));
        finding.candidates.push(Candidate::AppendLibraryPath(vec![words::directory(path.as_bstr())]));
    }
    // A place where an installed distribution says that the file is.
    let listed = decision.attempts.iter().filter(|a| is_nothing(&a.verdict)).take(MAX_LISTED);
    let listed = listed.map(|a| a.path.as_bstr()).chain(by_path.then_some(name)).find_map(|path| (known.listed)(path));
    if let Some((attempt, errno)) = decision.attempts.iter().find_map(|a| match a.verdict {
        Verdict::ListStopped(errno) => Some((a, errno)),
        _ => None,
    }) {
        let list = match attempt.place.rule {
            Rule::LibraryPath => {
                finding.candidates.push(Candidate::DropLibraryPath(attempt.place.entry.into_iter().collect()));
                "LD_LIBRARY_PATH".to_owned()
            }
            rule => rule.name().to_owned(),
        };
        finding = finding.because(format!(
            "opening {} gives \"{errno}\", which ends {list}: its later elements are not searched.",
            words::shown(&attempt.path)
        ));
    } else if !by_path && let Some(text) = decision.needed_by.and_then(|id| narrow_search(process, id)) {
        finding = finding.because(text);
    }
    if let Some(id) = decision.needed_by {
        finding.candidates.extend(removal(process, id));
        let other = super::symbols::pinned_to_another(process, known, id);
        if let Some(other) = other.or_else(|| super::symbols::comes_with_import(process, known, name)) {
            let because = [other.because, finding.because.unwrap_or_default()].join(" ");
            finding.because = None;
            finding = finding.because(because.trim_end().to_owned());
            finding.remedies.extend(other.remedies);
        }
    }
    (finding, listed)
}

/// How a requester came in, when the environment brought it: then the environment is to blame for what it misses.
pub(super) fn foreign_arrival(process: &Process, id: ImageId) -> String {
    if removal(process, id).is_empty() { String::new() } else { words::arrival(process, id) }
}

/// Changes that keep an image out which the environment brought in.
pub(super) fn removal(process: &Process, id: ImageId) -> Vec<Candidate> {
    let decision = &process.decisions[process.image(id).decision.index()];
    match (words::preload_source(process, decision), &decision.via) {
        (Some((source, entry)), _) if source == "LD_PRELOAD" => vec![Candidate::DropPreload(vec![entry])],
        (None, Some(via)) if via.place.rule == Rule::LibraryPath => {
            vec![Candidate::DropLibraryPath(via.place.entry.into_iter().collect()), Candidate::UnsetLibraryPath]
        }
        _ => Vec::new(),
    }
}

fn is_foreign(verdict: &Verdict) -> bool {
    matches!(verdict, Verdict::WrongClass | Verdict::WrongMachine)
}

/// True for a candidate that is there and was left aside.
fn is_remarkable(verdict: &Verdict) -> bool {
    match verdict {
        Verdict::WrongClass
        | Verdict::WrongMachine
        | Verdict::NeedsNewerKernel
        | Verdict::NotSetUserId
        | Verdict::ListStopped(_)
        | Verdict::Forbidden => true,
        Verdict::Skipped(errno) => !matches!(errno.0, 2 | 20),
        Verdict::Taken | Verdict::Fatal(_) | Verdict::NotReached | Verdict::DirectoryMissing => false,
    }
}

fn skipped(process: &Process, known: &Knowledge<'_>, attempt: &Attempt) -> super::Copy {
    let what = match &attempt.verdict {
        Verdict::WrongClass | Verdict::WrongMachine => words::architecture(process, attempt.path.as_bstr()),
        Verdict::NeedsNewerKernel => "asks for a newer kernel".into(),
        Verdict::NotSetUserId => "not set-user-ID, as secure mode demands".into(),
        Verdict::ListStopped(errno) => format!("{errno}: the rest of this list is left out"),
        Verdict::Skipped(errno) => errno.text(),
        Verdict::Forbidden => "forbidden by NODEFLIB of the requester".into(),
        Verdict::Taken | Verdict::Fatal(_) | Verdict::NotReached | Verdict::DirectoryMissing => String::new(),
    };
    let place = format!("{}: {what}", words::place(process, attempt.place));
    words::path_copy(process, known, Part::Skipped, attempt.path.as_bstr(), place)
}

/// Why the search of a requester is narrower than one may think.
fn narrow_search(process: &Process, id: ImageId) -> Option<String> {
    if process.dialect().family == Family::Musl {
        return None;
    }
    let image = process.image(id);
    let facts = image.facts()?;
    let label = words::label(process, id);
    let mut ancestors = Vec::new();
    let mut at = image.loader.or((id != ImageId(0)).then_some(ImageId(0)));
    while let Some(ancestor) = at.filter(|a| !ancestors.contains(a)) {
        ancestors.push(ancestor);
        at = process.image(ancestor).loader.or((ancestor != ImageId(0)).then_some(ImageId(0)));
    }
    let list_of = |f: fn(&Facts) -> Option<&BString>| -> Option<String> {
        ancestors
            .iter()
            .find(|a| process.image(**a).facts().and_then(f).is_some_and(|t| !t.is_empty()))
            .map(|a| words::label(process, *a))
    };
    if facts.runpath.is_some() {
        let with = list_of(|f| f.effective_rpath())?;
        return Some(format!("{label} carries RUNPATH, so the RPATH of {with} does not count for what it asks for."));
    }
    if facts.effective_rpath().is_none()
        && let Some(with) = list_of(|f| f.runpath.as_ref())
    {
        return Some(format!(
            "{label} carries neither RPATH nor RUNPATH, and the RUNPATH of {with} serves only what {with} itself \
             asks for."
        ));
    }
    None
}

/// Texts of the checks that refuse a sound file for what it is.
fn is_refusal(text: &str) -> bool {
    ["cannot dynamically load", "shared object cannot be dlopen()ed", "cannot enable executable stack", "CPU ISA level"]
        .iter()
        .any(|t| text.starts_with(t))
}

fn unusable(scene: &Scene<'_>, known: &Knowledge<'_>, out: &mut Vec<Finding>) {
    let process = scene.process;
    for (n, d) in process.decisions.iter().enumerate() {
        let Some(failure) = d.failure.as_ref().filter(|f| !is_absence(process, f)) else { continue };
        let step = &process.steps[d.step.index()];
        // A preload that fails is told elsewhere, unless the process gets no further.
        let is_preload = d.how == How::Preload || step.kind == StepKind::Preload;
        if is_preload && !failure.is_the_end() || d.how == How::Exec {
            continue;
        }
        if d.how == How::Auxiliary && step.outcome != Outcome::Failed {
            continue;
        }
        let Some(attempt) = d.attempts.iter().rev().find(|a| matches!(a.verdict, Verdict::Fatal(_) | Verdict::Taken))
        else {
            continue;
        };
        // musl tells by its errno; glibc by the text.
        let text = match &attempt.verdict {
            Verdict::Fatal(text) => text.clone(),
            _ => failure.text.to_string(),
        };
        let name = words::shown(&d.asked);
        let what = words::what_is(process, attempt.path.as_bstr());
        let place = words::place(process, attempt.place);
        let refused = is_refusal(&text);
        let searched = !d.asked.contains(&b'/');
        let mut finding = if failure.signal.is_some() {
            let object = process.store().open(attempt.path.as_bstr()).ok();
            let (summary, reason) = killed(&name, object.as_ref().and_then(|o| o.facts()), failure);
            Finding::new(DAMAGED_FILE, d.asked.clone(), summary).severity(Severity::Error).because(reason)
        } else if refused {
            let summary = format!("the loader finds {name} and refuses it: {text}");
            Finding::new(REFUSED, d.asked.clone(), summary).because(refusal(process, &text, attempt))
        } else if searched {
            let reason = "only a file for another architecture is passed over; any other file ends the search, and \
                 later copies are not tried.";
            let what = unusable_words(&what, &text);
            Finding::new(UNUSABLE_FILE, d.asked.clone(), format!("{place} leads to {what} in place of {name}"))
                .because(reason)
        } else {
            Finding::new(UNUSABLE_FILE, d.asked.clone(), format!("{name} is {}", unusable_words(&what, &text)))
        };
        // A broken file is out of the ordinary even where the program does without it.
        let goes_on =
            d.how == How::Auxiliary || scene.is_harmless(d.step) && !(d.how == How::Preload && failure.is_the_end());
        if goes_on {
            finding = finding.severity(Severity::Warning);
        }
        finding = finding.with(Evidence::Decision(DecisionId(n as u32)));
        if attempt.place.rule == Rule::LibraryPath {
            finding = finding.with(Evidence::Variable("LD_LIBRARY_PATH".into(), attempt.place.entry));
            finding.candidates.push(Candidate::DropLibraryPath(attempt.place.entry.into_iter().collect()));
            finding.candidates.push(Candidate::UnsetLibraryPath);
        }
        if let Some(id) = d.needed_by {
            let place = foreign_arrival(process, id);
            finding = finding.with(Evidence::Copy(words::image_copy(process, known, Part::AskedBy, id, place)));
            finding.candidates.extend(removal(process, id));
        }
        let copy = words::path_copy(process, known, Part::StopsAt, attempt.path.as_bstr(), place);
        finding = finding.with(Evidence::Copy(copy));
        if !refused {
            let package = (known.listed)(attempt.path.as_bstr());
            finding.remedies.extend(package.map(|package| words::reinstall(&[package], true)));
        }
        if let Some(passed) = d.attempts.iter().find(|a| a.verdict == Verdict::NotReached) {
            let place = words::place(process, passed.place);
            let copy = words::path_copy(process, known, Part::Passed, passed.path.as_bstr(), place);
            finding = finding.with(Evidence::Copy(copy));
        }
        out.push(finding);
    }
}

/// What the file is, and where that says too little, the loader's own text.
fn unusable_words(what: &str, text: &str) -> String {
    let vague = what.starts_with("a damaged") || what.ends_with("ELF file");
    if vague { format!("{what} ({text})") } else { what.to_owned() }
}

fn refusal(process: &Process, text: &str, attempt: &Attempt) -> String {
    let facts = process.store().open(attempt.path.as_bstr()).ok();
    let facts = facts.as_ref().and_then(|o| o.facts());
    if text.starts_with("cannot dynamically load") {
        let kind = if facts.is_some_and(|f| f.flags_1 & flags_1::PIE != 0) {
            "it is marked as a position-independent program (DF_1_PIE)"
        } else {
            "it is a program with fixed addresses (ET_EXEC)"
        };
        format!("{kind}, not a library.")
    } else if text.starts_with("shared object cannot be dlopen()ed") {
        "it is marked DF_1_NOOPEN: it can be a dependency at start-up but not opened later.".into()
    } else if text.starts_with("cannot enable executable stack") {
        format!(
            "it asks for an executable stack, and glibc {} does not make the stack executable in dlopen; the file's \
             GNU_STACK mark is usually an accident of hand-written assembly.",
            process.dialect().version_text()
        )
    } else {
        let have = process.host().cpu.level;
        let need = facts.map_or(0, |f| f.isa_level());
        format!("it is built for x86-64-v{need}, and this processor has x86-64-v{have}.")
    }
}

fn preloads(process: &Process, out: &mut Vec<Finding>) {
    let mut told = 0;
    for (n, step) in process.steps.iter().enumerate() {
        // What ends the process is told as such.
        let is_the_end = step.failure.as_ref().is_some_and(LoadFailure::is_the_end);
        if step.kind != StepKind::Preload || step.outcome != Outcome::Failed || is_the_end {
            continue;
        }
        told += 1;
        if told > MAX_PRELOADS {
            return;
        }
        let id = StepId(n as u32);
        let (source, entry) = match step.note.split_once('[') {
            Some((source, rest)) => (source.to_owned(), rest.trim_end_matches(']').parse::<u32>().ok()),
            None => ("LD_PRELOAD".to_owned(), None),
        };
        let index = entry.map(|n| format!("[{n}]")).unwrap_or_default();
        let name = words::shown(&step.name);
        let reason = step.failure.as_ref().map(|f| words::shown(&f.text)).unwrap_or_default();
        let mut finding = Finding::new(
            PRELOAD_FAILED,
            step.name.clone(),
            format!("{source}{index}, {name}, cannot be preloaded and is ignored"),
        )
        .with(Evidence::Step(id))
        .with(Evidence::Variable(source.clone(), entry));
        let mut because = match step.error.as_ref().filter(|e| !e.is_empty()) {
            Some(_) => format!("{reason}."),
            None => format!("{reason}; this loader does not say so."),
        };
        let attempts = process.decisions.iter().filter(|d| d.step == id).flat_map(|d| &d.attempts);
        if let Some(passed) = attempts.into_iter().find(|a| a.verdict == Verdict::NotSetUserId) {
            let path = words::shown(&passed.path);
            because.push_str(&format!(
                " {path} has no set-user-ID bit, without which a privileged process takes no preload; nor does it ask the \
                 cache."
            ));
        }
        finding.because = Some(because);
        if source == "LD_PRELOAD" {
            finding.candidates.push(Candidate::DropPreload(entry.into_iter().collect()));
            finding.candidates.push(Candidate::UnsetPreload);
        }
        out.push(finding);
    }
}

/// A step that failed for a reason no other rule speaks of: nothing that fails stays without a finding.
fn unexplained(scene: &Scene<'_>, known: &Knowledge<'_>, out: &mut Vec<Finding>) {
    let process = scene.process;
    for (n, step) in process.steps.iter().enumerate() {
        let id = StepId(n as u32);
        let Some(failure) = step.failure.as_ref() else { continue };
        let counts = step.outcome == Outcome::Failed && step.kind != StepKind::Preload && !scene.is_harmless(id);
        // A preload that ends the process is told with its own request.
        let is_same =
            |f: &Finding| f.decision().is_some_and(|d| process.decisions[d.index()].failure.as_ref() == Some(failure));
        if !counts || out.iter().any(|f| f.severity == Severity::Error && (speaks_of(process, f, id) || is_same(f))) {
            continue;
        }
        let subject = if failure.object.is_empty() { &step.name } else { &failure.object };
        if failure.object == "/etc/ld.so.cache" {
            let summary = format!("the loader's cache, /etc/ld.so.cache, is damaged: {}", words::shown(&failure.text));
            let finding = Finding::new(CACHE_UNUSABLE, subject.clone(), summary).severity(Severity::Error);
            out.push(finding.with(Evidence::Step(id)));
            continue;
        }
        let summary = format!("the loader gives up: {}", words::shown(failure.dlerror()));
        out.push(Finding::new(REFUSED, subject.clone(), summary).with(Evidence::Step(id)));
    }
    // An exception that no failed step stands behind: the framework itself misses something.
    if let Some(exception) = known.exception
        && !out.iter().any(|f| f.severity == Severity::Error)
    {
        out.push(match &exception.absent {
            Some(absent) => absence(process, exception, absent),
            None => {
                let text = words::shown(&exception.text);
                let summary = format!("the framework gives up: {}: {text}", exception.class);
                match exception.class {
                    "ModuleNotFoundError" => {
                        let module = exception.text.split_str("'").nth(1).unwrap_or(&exception.text);
                        Finding::new(MODULE_ABSENT, module, summary).severity(Severity::Error)
                    }
                    _ => Finding::new(NOT_FOUND, exception.text.clone(), summary),
                }
            }
        });
    }
}

/// Where Python looks for its own library.
const HOME: &str = "PYTHONHOME";

/// A module that is gone and that ends an import.
fn absence(process: &Process, exception: &Exception, absent: &Absent) -> Finding {
    let Absent { module, by, cure, .. } = absent;
    let summary = match exception.class {
        // The directory is there.
        "AttributeError" => format!("`{module}` is a directory without `__init__.py`: `{by}` finds nothing in it"),
        _ => format!("no module named `{module}` is found, which `{by}` imports"),
    };
    let mut finding = Finding::new(MODULE_ABSENT, module.as_str(), summary).severity(Severity::Error);
    if exception.class == "NameError" {
        let because = format!("`{by}` goes on without the module at first, and takes something from it right after.");
        finding = finding.because(because);
    }
    // Nothing brings back a module of Python's own library but the library itself.
    let home = process.host().env.get(HOME).filter(|home| !home.is_empty());
    if let Some(home) = home.filter(|_| cure.is_none() && !module.contains('.')) {
        let because = format!("{HOME} is set: Python looks for its own library below {}.", words::shown(home));
        finding = finding.because(because).with(Evidence::Variable(HOME.to_owned(), None));
        finding.remedies.push(super::Remedy {
            summary: format!("take {HOME} out of the environment"),
            commands: vec![format!("unset {HOME}")],
            verified: false,
            after: None,
        });
    }
    finding.remedies.extend(match cure {
        Some(Cure::Reinstall(package)) => Some(words::reinstall(std::slice::from_ref(package), false)),
        Some(Cure::Install(requirement)) => Some(words::install(std::slice::from_ref(requirement))),
        None => None,
    });
    finding
}

/// True when a finding is about something that happened in a step.
fn speaks_of(process: &Process, finding: &Finding, step: StepId) -> bool {
    finding.evidence.iter().any(|e| match e {
        Evidence::Step(id) => *id == step,
        Evidence::Decision(id) => process.decisions[id.index()].step == step,
        _ => false,
    })
}

/// True when a finding explains the very reference at which a load ended.
fn is_about(finding: &Finding, failure: &LoadFailure) -> bool {
    finding.evidence.iter().any(|e| match e {
        Evidence::Symbol { symbol, .. } => failure.text.contains_str(symbol),
        _ => false,
    })
}

/// True for the finding of the file that a failure names.
fn is_of(process: &Process, finding: &Finding, failure: &LoadFailure) -> bool {
    finding.evidence.iter().any(|e| matches!(e, Evidence::Image(id) if process.image(*id).name == failure.object))
}

fn wrong_architecture(process: &Process, known: &Knowledge<'_>, out: &mut Vec<Finding>) {
    let mut seen: FxHashSet<(&BStr, Option<u32>)> = FxHashSet::default();
    let mut by_place: Vec<(Finding, crate::ld::Place, usize)> = Vec::new();
    for (n, d) in process.decisions.iter().enumerate() {
        if d.chosen.is_none() {
            continue;
        }
        for a in d.attempts.iter().filter(|a| is_foreign(&a.verdict)) {
            if !seen.insert((a.path.as_bstr(), a.place.entry)) {
                continue;
            }
            // One note for a whole directory of them.
            if let Some((_, _, more)) = by_place.iter_mut().find(|(_, place, _)| *place == a.place) {
                *more += 1;
                continue;
            }
            let summary = format!(
                "{} holds {} that is passed over: {}",
                words::place(process, a.place),
                words::architecture(process, a.path.as_bstr()),
                words::shown(&d.asked)
            );
            let finding = Finding::new(WRONG_ARCHITECTURE, d.asked.clone(), summary)
                .with(Evidence::Decision(DecisionId(n as u32)))
                .with(Evidence::Copy(skipped(process, known, a)));
            by_place.push((finding, a.place, 0));
        }
    }
    for (mut finding, _, more) in by_place {
        if more > 0 {
            finding.summary.push_str(&format!(" and {more} more"));
        }
        out.push(finding);
    }
}

/// Without its relocations nothing can be said of what a file refers to.
fn not_looked_up(process: &Process, out: &mut Vec<Finding>) {
    let Some((image, machine)) = process.images.iter().find_map(|i| Some((i, i.object.unknown_machine()?))) else {
        return;
    };
    let summary = format!("symbols are not looked up: relocations of {machine} are not known");
    out.push(Finding::new(SYMBOLS_NOT_READ, image.name.clone(), summary));
}

fn damaged(scene: &Scene<'_>, known: &Knowledge<'_>, out: &mut Vec<Finding>) {
    let process = scene.process;
    for (n, image) in process.images.iter().enumerate() {
        let id = ImageId(n as u32);
        let Some(facts) = image.facts() else { continue };
        let fatal = process.steps.iter().enumerate().find_map(|(n, step)| {
            let failure = step.failure.as_ref().filter(|f| f.signal.is_some() && step.outcome == Outcome::Failed)?;
            let is_this = failure.object == image.name || n == 0 && failure.object == process.argv0;
            is_this.then_some((StepId(n as u32), failure))
        });
        if fatal.is_none() && image.object.defects().next().is_none() {
            continue;
        }
        let harmless = image.unloaded_by.is_some_and(|step| scene.is_harmless(step));
        if harmless {
            continue;
        }
        let label = words::label(process, id);
        // A missing part of the last page reads as zeros; a page that lies wholly past the end kills the process.
        let page = process.host().page_size.max(1);
        let missing_page = words::end_of_segments(facts) > facts.file_size.next_multiple_of(page);
        let what: Vec<String> = image.object.defects().take(3).map(|d| d.what.clone()).collect();
        let mut finding = if let Some((step, failure)) = fatal {
            let (summary, reason) = killed(&label, Some(facts), failure);
            let finding = Finding::new(DAMAGED_FILE, image.name.clone(), summary).because(reason);
            finding.severity(Severity::Error).with(Evidence::Step(step))
        } else if missing_page {
            Finding::new(DAMAGED_FILE, image.name.clone(), cut_short(&label, facts)).because(
                "the loader maps it all the same, and the process is killed (SIGBUS) when it touches what is missing.",
            )
        } else {
            Finding::new(DAMAGED_FILE, image.name.clone(), format!("{label} is damaged: {}", what.join("; ")))
        };
        let arrival = words::arrival(process, id);
        finding = finding.with(Evidence::Image(id)).with(Evidence::Copy(words::image_copy(
            process,
            known,
            Part::Taken,
            id,
            arrival,
        )));
        finding.candidates.extend(removal(process, id));
        let package = (known.listed)(image.name.as_bstr());
        finding.remedies.extend(package.map(|package| words::reinstall(&[package], true)));
        out.push(finding);
    }
}

/// Summary and reason for a file that kills the process which loads it.
fn killed(name: &str, facts: Option<&Facts>, failure: &LoadFailure) -> (String, String) {
    let signal = failure.signal.unwrap_or("a signal");
    let text = words::shown(&failure.text);
    let why = text.split_once(": ").map_or(text.as_str(), |(_, why)| why);
    let is_cut = why == "the file is cut short";
    let summary = match facts {
        Some(facts) if is_cut => cut_short(name, facts),
        None if is_cut => format!("{name} is cut short"),
        _ => format!("{name} is damaged: {why}"),
    };
    // What the kernel cannot map it tells by SIGSEGV.
    let reason = match (is_cut, signal) {
        (true, "SIGSEGV") => {
            "the kernel begins to map it and kills the process (SIGSEGV) when it comes to what is missing.".into()
        }
        (true, _) => {
            format!("it passes every check, and the loader is killed ({signal}) when it reads what is missing.")
        }
        (false, _) => format!("it passes every check, and the process is killed ({signal}) when that is used."),
    };
    (summary, reason)
}

fn cut_short(name: &str, facts: &Facts) -> String {
    format!("{name} is cut short: {} of {} bytes are there", facts.file_size, words::end_of_segments(facts))
}

fn loader(process: &Process, out: &mut Vec<Finding>) {
    let dialect = process.dialect();
    out.extend(super::missing_cache::check(process));
    // Said already where the missing loader is what is wrong.
    let told = out.iter().any(|f| f.rule == CANNOT_START);
    let searched = process.images.iter().any(|i| i.role == Role::Loader) && !told;
    if let (Source::Assumed(why), true) = (&dialect.evidence, searched) {
        let path = words::shown(&dialect.path);
        let summary = format!("the rules of {} {} are assumed: {why}", dialect.family.name(), dialect.version_text());
        let because = match (dialect.family, &dialect.musl_arch) {
            // The path file's name is as unknown as the architecture in it.
            (Family::Musl, None) => {
                "musl searches what its path file, /etc/ld-musl-ARCH.path, lists, and ARCH is not known here: its \
                 usual directories are taken, as if there were no such file."
            }
            _ => "directories that are built into the loader may differ.",
        };
        out.push(
            Finding::new(LOADER_ASSUMED, dialect.path.clone(), summary)
                .because(because)
                .with(Evidence::Path(dialect.path.clone(), format!("{path} does not tell"))),
        );
    } else if searched {
        release(dialect, out);
    }
}

/// A release whose rules nobody has described, or that the loader's file does not tell.
fn release(dialect: &Dialect, out: &mut Vec<Finding>) {
    let path = words::shown(&dialect.path);
    let (family, version) = (dialect.family.name(), dialect.version_text());
    let (summary, because, evidence) = match &dialect.version_evidence {
        Source::Read if !dialect.family.describes(dialect.version) => (
            format!("this is a guess: {path} is of {family} {version}, whose rules are not known"),
            format!("{} is described; the rules of the nearest release are taken.", dialect.family.described_text()),
            format!("{path} is of {family} {version}"),
        ),
        Source::Assumed(_) => (
            format!("this is a guess: {path} does not tell its release, and {family} {version} is assumed"),
            "rules that changed between releases may differ.".to_owned(),
            format!("{path} does not tell"),
        ),
        Source::Read | Source::Given => return,
    };
    let finding = Finding::new(LOADER_ASSUMED, dialect.path.clone(), summary).because(because);
    out.push(finding.with(Evidence::Path(dialect.path.clone(), evidence)));
}

// ------------------------------------------------------------------------------------------------------------ in order

/// The finding that explains the first fatal error, then errors, warnings and notes; within one severity by weight of
/// the rule, then as they happened.
fn sort(scene: &Scene<'_>, findings: &mut Vec<Finding>) {
    let process = scene.process;
    let fatal = scene.fatal();
    let decisive = |f: &Finding| -> bool {
        let Some((id, step)) = fatal else { return false };
        f.severity == Severity::Error
            && speaks_of(process, f, id)
            && match (f.decision(), &step.failure) {
                (_, Some(failure)) if failure.is_symbol => is_about(f, failure),
                (Some(d), Some(failure)) if !failure.is_version => {
                    process.decisions[d.index()].failure.as_ref() == Some(failure)
                }
                (_, Some(failure)) if failure.is_version => f.rule == VERSION_MISSING && is_of(process, f, failure),
                (_, Some(_)) => f.rule != VERSION_MISSING,
                (_, None) => true,
            }
    };
    let weight = |f: &Finding| match f.rule {
        r if r == SHADOWED => 0,
        r => 1 + RULES.iter().position(|x| *x == r).unwrap_or(RULES.len()),
    };
    let moment = |f: &Finding| f.decision().map_or(u32::MAX, |d| d.0);
    findings.sort_by_key(|f| {
        let weight = if f.severity == Severity::Error { 0 } else { weight(f) };
        // Without its loader the program never gets to what else is wrong.
        let rank = if f.rule == CANNOT_START { 0 } else { 1 + u8::from(!decisive(f)) };
        (rank, std::cmp::Reverse(f.severity), weight, moment(f))
    });
    // Findings that are shown together stand together, where the first of them stands.
    let mut first: FxHashMap<(&str, u32), usize> = FxHashMap::default();
    let mut places = Vec::with_capacity(findings.len());
    for (at, f) in findings.iter().enumerate() {
        places.push(f.group.map_or(at, |group| *first.entry((f.rule.id, group)).or_insert(at)));
    }
    let mut keyed: Vec<(usize, Finding)> = places.into_iter().zip(std::mem::take(findings)).collect();
    keyed.sort_by_key(|(place, _)| *place);
    *findings = keyed.into_iter().map(|(_, f)| f).collect();
}
