//! Versions that a library does not define: which symbols of which file ask for them, how far the copy that is taken
//! goes, and which other copy on the box would do.

use bstr::{BStr, BString, ByteSlice};
use rustc_hash::FxHashSet;

use super::loading::{Knowledge, Scene, foreign_arrival, removal};
use super::{Candidate, Evidence, Finding, Part, Severity, VERSION_MISSING, demangle, telltale, words};
use crate::elf::Facts;
use crate::ld::{Attempt, Decision, ImageId, LoadFailure, Object, Process, Step, StepId, Verdict};
use crate::system::FileKey;

/// A version error taken apart: provider, version, who wants it.
fn version_parts(line: &str) -> Option<(&str, &str, &str)> {
    let (provider, rest) = line.split_once(": version `")?;
    let (version, rest) = rest.split_once("' not found (required by ")?;
    Some((provider, version, rest.strip_suffix(')')?))
}

/// Explains every step that a missing version ended. Images that are named as a culprit are added to `told`.
pub fn check(scene: &Scene<'_>, known: &Knowledge<'_>, out: &mut Vec<Finding>, told: &mut FxHashSet<ImageId>) {
    let process = scene.process;
    for (n, step) in process.steps.iter().enumerate() {
        let Some(failure) = step.failure.as_ref().filter(|f| f.is_version) else { continue };
        let id = StepId(n as u32);
        for missing in Missing::of(process, step, id, failure) {
            told.insert(missing.provider);
            let mut finding = missing.finding(process, known, id);
            if scene.is_harmless(id) {
                finding = finding.severity(Severity::Warning);
            }
            out.push(finding);
        }
    }
}

/// One provider and the versions that it lacks.
struct Missing {
    provider: ImageId,
    /// The first file that asks, as the message names it, and its image.
    requester: BString,
    asker: Option<ImageId>,
    /// What that file wants, in the order of the message.
    wanted: Vec<String>,
    /// What other files want besides.
    others: Vec<(BString, Vec<String>)>,
}

/// Providers of one step that are explained.
const MAX_PROVIDERS: usize = 16;

impl Missing {
    /// Start-up prints every missing version, one to a line; dlopen stops at the first. In the order of the message.
    fn of(process: &Process, step: &Step, id: StepId, failure: &LoadFailure) -> Vec<Missing> {
        let mut out: Vec<Missing> = Vec::new();
        let first = failure.dlerror().to_string();
        let lines = step.error.as_ref().map(|e| e.to_string()).unwrap_or_default();
        for line in std::iter::once(first.as_str()).chain(lines.lines()) {
            let Some((provider, version, requester)) = version_parts(line) else { continue };
            // At start-up the name of the program stands in front.
            let whole = image_named(process, provider.as_bytes().as_bstr(), id);
            let behind = || image_named(process, provider.split_once(": ")?.1.as_bytes().as_bstr(), id);
            let Some(provider) = whole.or_else(behind) else { continue };
            let version = version.to_owned();
            let requester = BString::from(requester);
            let is_full = out.len() >= MAX_PROVIDERS;
            match out.iter_mut().find(|m| m.provider == provider) {
                None if is_full => {}
                None => {
                    let asker = image_named(process, requester.as_bstr(), id);
                    out.push(Missing { provider, requester, asker, wanted: vec![version], others: Vec::new() });
                }
                Some(m) if m.requester == requester => {
                    if !m.wanted.contains(&version) {
                        m.wanted.push(version);
                    }
                }
                Some(m) => match m.others.iter_mut().find(|(other, _)| *other == requester) {
                    Some((_, wanted)) if wanted.contains(&version) => {}
                    Some((_, wanted)) => wanted.push(version),
                    None => m.others.push((requester, vec![version])),
                },
            }
        }
        out
    }

    /// Every version that is wanted.
    fn all_wanted(&self) -> impl Iterator<Item = &String> {
        self.wanted.iter().chain(self.others.iter().flat_map(|(_, wanted)| wanted))
    }

    fn finding(&self, process: &Process, known: &Knowledge<'_>, step: StepId) -> Finding {
        let image = process.image(self.provider);
        let library = words::shown(image.soname().unwrap_or_else(|| crate::system::file_name(image.name.as_bstr())));
        let who = words::shown(crate::system::file_name(self.requester.as_bstr()));
        let summary = format!("{library} does not define {}, which {who} wants", words::enumerate(&self.wanted));
        let mut finding = Finding::new(VERSION_MISSING, BString::from(library.as_str()), summary)
            .with(Evidence::Step(step))
            .with(Evidence::Decision(image.decision))
            .with(Evidence::Image(self.provider));
        if let Some(asker) = self.asker {
            let place = match self.others.len() {
                0 => foreign_arrival(process, asker),
                n => format!("and {n} more"),
            };
            let copy = words::image_copy(process, known, Part::AskedBy, asker, place);
            finding = finding.with(Evidence::Copy(copy));
        }
        let mut arrival = words::arrival(process, self.provider);
        if let Some(first) = image.loader.filter(|l| Some(*l) != self.asker) {
            arrival.push_str(&format!(", loaded for {}", words::label(process, first)));
        }
        finding = finding.with(Evidence::Copy(words::image_copy(process, known, Part::Taken, self.provider, arrival)));
        let mut with_version: Option<String> = None;
        let mut seen: Vec<FileKey> = vec![image.object.meta.key];
        for attempt in losers(process, self.provider, self.asker) {
            let Ok(object) = process.store().open(attempt.path.as_bstr()) else { continue };
            if seen.contains(&object.meta.key) {
                continue;
            }
            seen.push(object.meta.key);
            let place = words::place(process, attempt.place);
            if self.would_do(process, &object) {
                with_version.get_or_insert_with(|| place.clone());
            }
            let copy = words::path_copy(process, known, Part::Passed, attempt.path.as_bstr(), place);
            finding = finding.with(Evidence::Copy(copy));
        }
        // A libc works with its own loader only: a copy of another release is no help.
        let is_libc = self.wanted.iter().any(|w| w.starts_with("GLIBC_"));
        if !is_libc {
            for (path, _) in self.elsewhere(process, known, &library, &mut seen) {
                let directory = words::directory(path.as_bstr());
                let wanted: Vec<String> = self.all_wanted().cloned().collect();
                let place = format!("has {}, not where it is searched for", words::enumerate(&wanted));
                let copy = words::path_copy(process, known, Part::Present, path.as_bstr(), place);
                finding = finding.with(Evidence::Copy(copy));
                finding.candidates.push(Candidate::AppendLibraryPath(vec![directory]));
            }
        }
        finding = finding.because(self.because(process, &library, &who, with_version.as_deref(), is_libc));
        let mut candidates = removal(process, self.provider);
        candidates.append(&mut finding.candidates);
        candidates.extend(self.asker.map(|asker| removal(process, asker)).unwrap_or_default());
        finding.candidates = candidates;
        finding
    }

    /// True when a copy defines every version that is wanted.
    fn would_do(&self, process: &Process, object: &Object) -> bool {
        let lacks = words::missing_versions(&process.image(self.provider).object, object);
        self.all_wanted().all(|w| lacks.contains(w))
    }

    /// Copies in no search list that would do.
    fn elsewhere(
        &self,
        process: &Process,
        known: &Knowledge<'_>,
        library: &str,
        seen: &mut Vec<FileKey>,
    ) -> Vec<(BString, FileKey)> {
        let mut out = Vec::new();
        for path in (known.copies)(library.into()) {
            let Ok(object) = process.store().open(path.as_bstr()) else { continue };
            if out.len() < 2 && !seen.contains(&object.meta.key) && self.would_do(process, &object) {
                seen.push(object.meta.key);
                out.push((path, object.meta.key));
            }
        }
        out
    }

    fn because(
        &self,
        process: &Process,
        library: &str,
        who: &str,
        with_version: Option<&str>,
        is_libc: bool,
    ) -> String {
        let version = self.wanted[0].as_str();
        let newest = newest_definition(process.image(self.provider).object.facts(), version);
        let mut out = match &newest {
            Some(newest) => format!("the copy that is taken defines versions up to {newest}."),
            None => "the copy that is taken does not define this version at all.".to_owned(),
        };
        if let Some(place) = with_version {
            out.push_str(&format!(" The copy by way of {place} has what is wanted."));
        }
        if let Some(text) = self.raised_by(process, who, library) {
            out.push_str(&text);
        }
        if let Some(gcc) = telltale::gcc_of(version) {
            let here = newest.as_deref().and_then(telltale::gcc_of);
            let here = here.map(|gcc| format!(", the copy taken is of GCC {gcc}")).unwrap_or_default();
            out.push_str(&format!(" {version} came with GCC {gcc}{here}."));
        }
        if is_libc {
            let newest = version.trim_start_matches("GLIBC_");
            out.push_str(&format!(
                " The C library belongs to the loader and no other copy can take its place: {who} was built on a system with glibc {newest} or later."
            ));
        }
        if let Some((other, wanted)) = self.others.first() {
            let other = words::shown(crate::system::file_name(other.as_bstr()));
            let more = match self.others.len() {
                1 => String::new(),
                n => format!(", and {} more want versions that it lacks", words::count(n - 1, "file", "files")),
            };
            out.push_str(&format!(" {other} wants {} of it{more}.", words::enumerate(wanted)));
        }
        out
    }

    /// Which symbols of the requester ask for the first missing version.
    fn raised_by(&self, process: &Process, who: &str, library: &str) -> Option<String> {
        let asker = self.asker?;
        let symbols = process.symbols(asker)?;
        let version = self.wanted[0].as_bytes();
        let (mut of_library, mut of_version) = (0usize, Vec::new());
        let mut seen = FxHashSet::default();
        for r in symbols.references.iter(0..symbols.references.symbols()).filter(|r| seen.insert(r.symbol)) {
            let Some((name, Some(wanted))) = process.symbol_name(asker, r.symbol) else { continue };
            if wanted.file.as_ref().is_some_and(|f| self.is_provider(process, f.as_bstr())) {
                of_library += 1;
                if wanted.name == version {
                    of_version.push(name);
                }
            }
        }
        let names: Vec<String> = of_version.iter().take(3).map(|n| demangle::in_words(n)).collect();
        let listed = match of_version.len() {
            0 => return None,
            1..=3 => words::enumerate(&names),
            n => format!("{}, {} and {} more", names[0], names[1], n - 2),
        };
        let share = match (of_version.len(), of_library) {
            (1, 1) => "the only symbol".to_owned(),
            (n, all) if n == all => format!("all {all} symbols"),
            (n, all) => format!("{n} of the {all} symbols"),
        };
        Some(format!(" {} is wanted for {listed}: {share} that {who} takes from {library}.", self.wanted[0]))
    }

    fn is_provider(&self, process: &Process, file: &BStr) -> bool {
        let image = process.image(self.provider);
        image.soname() == Some(file) || image.name == file || image.names.iter().any(|n| n == file)
    }
}

/// The copies of an image's name that its requesters passed over.
pub fn losers(process: &Process, provider: ImageId, asker: Option<ImageId>) -> Vec<&Attempt> {
    let mut out: Vec<&Attempt> = Vec::new();
    let mut decisions: Vec<&Decision> = process.decisions.iter().filter(|d| d.chosen == Some(provider)).collect();
    // The asker's own search first: its copies are the ones that were meant.
    decisions.sort_by_key(|d| d.needed_by != asker);
    for d in decisions {
        for a in d.attempts.iter().filter(|a| a.verdict == Verdict::NotReached) {
            if out.len() < 3 && out.iter().all(|o| o.path != a.path) {
                out.push(a);
            }
        }
    }
    out
}

/// The highest version of the same family (`GLIBCXX_3.4.` ...) that a file defines.
fn newest_definition(facts: Option<&Facts>, wanted: &str) -> Option<String> {
    let family = wanted.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.');
    facts?
        .version_definitions
        .as_ref()?
        .iter()
        .filter(|d| d.flags & 1 == 0)
        .map(|d| words::shown(&d.name))
        .filter(|name| !family.is_empty() && name.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.') == family)
        .max_by(|a, b| {
            let tail = |t: &str| t[family.len().min(t.len())..].to_owned();
            words::compare_versions(&tail(a), &tail(b)).unwrap_or_else(|| a.cmp(b))
        })
}

/// The image that a message names, as it was during a step.
fn image_named(process: &Process, name: &BStr, step: StepId) -> Option<ImageId> {
    (0..process.images.len() as u32).map(ImageId).find(|id| {
        let image = process.image(*id);
        image.name == name && image.step <= step && image.unloaded_by.is_none_or(|s| s >= step)
    })
}
