//! Symbols that nothing defines. The loader names the file that refers to one; the culprit is another: the library that
//! was to define it, of which a wrong copy was taken, a library that is not in the scope, or a build for another release.
//!
//! Everything is read from the references that the simulation could not bind, from its decisions and from the symbol
//! tables of files that are known already.

mod meant;
mod torch;

use std::collections::BTreeMap;

use bstr::{BStr, BString, ByteSlice};
use rustc_hash::{FxHashMap, FxHashSet};

use self::meant::{Guide, Meant, Other};
pub use self::meant::{answering, defines};
pub use self::torch::{comes_with_import, pinned_to_another};
use super::loading::{Knowledge, Scene, foreign_arrival, removal};
use super::{
    Candidate, Copy, Evidence, Finding, LEFT_TO_THE_HOST, Part, Severity, UNDEFINED_SYMBOL, demangle, shadow, telltale,
    words,
};
use crate::elf::symbols::Name;
use crate::ld::{DecisionId, Family, ImageId, Outcome, Process, StepId, StepKind, Unresolved, When};

/// Symbols that are kept as evidence of one finding.
const MAX_EVIDENCE: usize = 32;
/// Failing references of one process that are explained one by one; the rest is counted with them.
const MAX_EXPLAINED: usize = 2000;

/// References of one step with one cause.
struct Group<'p> {
    step: StepId,
    meant: Meant,
    references: Vec<&'p Unresolved>,
}

/// Explains every reference that failed. Images that are named as a culprit are added to `told`.
pub fn check(scene: &Scene<'_>, known: &Knowledge<'_>, out: &mut Vec<Finding>, told: &mut FxHashSet<ImageId>) {
    let process = scene.process;
    let alone = process.lists_only();
    let mut groups: Vec<Group<'_>> = Vec::new();
    let mut position: FxHashMap<(StepId, Meant, Option<ImageId>), usize> = FxHashMap::default();
    let mut guides: BTreeMap<ImageId, Guide<'_>> = BTreeMap::new();
    let mut left: Vec<&Unresolved> = Vec::new();
    for u in process.unresolved.iter().filter(|u| !u.weak) {
        if alone && !is_certain(process, u) {
            left.push(u);
            continue;
        }
        let step = process.image(u.image).step;
        let guide = guides.entry(u.image).or_insert_with(|| Guide::new(process, known, u.image));
        let meant = if guide.asked() < MAX_EXPLAINED { guide.meant(u) } else { Meant::Nobody };
        // What a library is to blame for is told once; what is nobody's, for each file that refers to it.
        let own = match meant {
            Meant::Library(_) => None,
            Meant::Torch(_) | Meant::OutOfScope(_) | Meant::Elsewhere(_) | Meant::Nobody => Some(u.image),
        };
        let at = *position.entry((step, meant.clone(), own)).or_insert_with(|| {
            groups.push(Group { step, meant, references: Vec::new() });
            groups.len() - 1
        });
        groups[at].references.push(u);
    }
    for group in &put_together(scene, groups) {
        if let Some(finding) = explain(scene, known, group, told) {
            out.push(finding);
        }
    }
    if let Some(note) = left_to_the_host(process, &left) {
        out.push(note);
    }
}

/// What references that fail do to the process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Effect {
    /// The program ends when it calls the function.
    AtCall,
    /// A load fails that may fail.
    Harmless,
    /// A load fails, and what asked for it with it.
    Fatal,
}

impl Group<'_> {
    /// The step that the references end. What a preloaded library lacks ends the start of the program.
    fn ended_step(&self, process: &Process) -> StepId {
        let starts = process.steps.iter().position(|s| s.kind == StepKind::Exec).map(|n| StepId(n as u32));
        let is_preload = process.steps[self.step.index()].kind == StepKind::Preload;
        if is_preload { starts.unwrap_or(self.step) } else { self.step }
    }

    fn effect(&self, scene: &Scene<'_>) -> Effect {
        let process = scene.process;
        let at = self.ended_step(process);
        let ends_the_load = process.lists_only()
            || process.steps[at.index()].outcome == Outcome::Failed
                && self.references.iter().any(|u| u.when == When::Load);
        match ends_the_load {
            false => Effect::AtCall,
            true if scene.is_harmless(at) => Effect::Harmless,
            true => Effect::Fatal,
        }
    }
}

/// One library that lets several steps down is told once, where it does most harm.
fn put_together<'p>(scene: &Scene<'_>, groups: Vec<Group<'p>>) -> Vec<Group<'p>> {
    let mut out: Vec<Group<'p>> = Vec::new();
    let mut position: FxHashMap<ImageId, usize> = FxHashMap::default();
    for mut group in groups {
        if let Meant::Library(provider) = group.meant {
            if let Some(at) = position.get(&provider) {
                let known = &mut out[*at];
                if group.effect(scene) > known.effect(scene) {
                    std::mem::swap(known, &mut group);
                }
                known.references.append(&mut group.references);
                continue;
            }
            position.insert(provider, out.len());
        }
        out.push(group);
    }
    out
}

/// References of a library audited alone that no program can satisfy: the version is wanted from a library that is
/// loaded and does not have the symbol.
pub fn certain_alone(process: &Process) -> impl Iterator<Item = &Unresolved> {
    process.unresolved.iter().filter(|u| process.lists_only() && !u.weak && is_certain(process, u))
}

fn is_certain(process: &Process, u: &Unresolved) -> bool {
    u.version_file.as_ref().is_some_and(|file| meant::answering(process, file.as_bstr(), u.image).is_some())
}

fn explain(
    scene: &Scene<'_>,
    known: &Knowledge<'_>,
    group: &Group<'_>,
    told: &mut FxHashSet<ImageId>,
) -> Option<Finding> {
    let process = scene.process;
    let first = *group.references.first()?;
    let mut finding = match &group.meant {
        Meant::Library(provider) => {
            told.insert(*provider);
            lacking(process, known, *provider, &group.references)
        }
        Meant::Torch(provider) => torch::finding(process, known, *provider, &group.references),
        Meant::OutOfScope(image) => out_of_scope(process, known, *image, &group.references),
        Meant::Elsewhere(path) => elsewhere(process, known, path, &group.references),
        Meant::Nobody => nobody(process, known, &group.references),
    };
    let effect = group.effect(scene);
    let at = group.ended_step(process);
    if effect < Effect::Fatal {
        finding.severity = Severity::Warning;
    }
    if effect == Effect::AtCall {
        let whose = words::label(process, first.image);
        let text = format!("{whose} binds functions when they are first called: the program ends at that call.");
        finding.because = Some(finding.because.map_or(text.clone(), |because| format!("{because} {text}")));
    }
    finding = finding.with(Evidence::Step(at));
    for u in group.references.iter().take(MAX_EVIDENCE) {
        finding = finding.with(Evidence::Symbol {
            image: u.image,
            symbol: u.symbol.clone(),
            version: u.version.clone(),
            demangled: demangle::full(u.symbol.as_bstr()),
        });
    }
    finding.candidates.extend(removal(process, first.image));
    Some(finding)
}

/// Symbols in a sentence, each once.
fn listed(references: &[&Unresolved]) -> String {
    let mut names: Vec<&BStr> = Vec::new();
    let mut seen: FxHashSet<&BStr> = FxHashSet::default();
    for u in references.iter().filter(|u| seen.insert(u.symbol.as_bstr())) {
        names.push(u.symbol.as_bstr());
    }
    // Only what is shown is taken apart.
    let mut texts: Vec<String> = names.iter().take(2).map(|n| demangle::in_words(n)).collect();
    match names.len() {
        0..=2 => words::enumerate(&texts),
        3 => {
            texts.push(demangle::in_words(names[2]));
            words::enumerate(&texts)
        }
        n => format!("{} and {} more symbols", texts.join(", "), n - 2),
    }
}

/// The row of the file that refers to the symbols, and how many more there are.
fn asked_by(process: &Process, known: &Knowledge<'_>, references: &[&Unresolved]) -> Option<Evidence> {
    let first = references.first()?.image;
    let others: FxHashSet<ImageId> = references.iter().map(|u| u.image).filter(|id| *id != first).collect();
    let place = match others.len() {
        0 => foreign_arrival(process, first),
        n => format!("and {n} more"),
    };
    Some(Evidence::Copy(words::image_copy(process, known, Part::AskedBy, first, place)))
}

/// How a request of one image was answered by another.
fn request(process: &Process, asker: ImageId, answer: ImageId) -> Option<DecisionId> {
    let own = |d: &crate::ld::Decision| d.needed_by == Some(asker) && d.chosen == Some(answer);
    process.decisions.iter().position(own).map(|n| DecisionId(n as u32))
}

/// A library is loaded that was to define the symbols, and does not.
fn lacking(process: &Process, known: &Knowledge<'_>, provider: ImageId, references: &[&Unresolved]) -> Finding {
    let asker = references[0].image;
    let who = words::label(process, asker);
    let image = process.image(provider);
    let decision = request(process, asker, provider);
    let asked = decision.map(|d| process.decisions[d.index()].asked.clone());
    let name = asked.or_else(|| image.soname().map(ToOwned::to_owned));
    let name = name.unwrap_or_else(|| crate::system::file_name(image.name.as_bstr()).to_owned());
    let library = words::shown(crate::system::file_name(name.as_bstr()));
    let mut arrival = words::arrival(process, provider);
    let by_environment = ["LD_LIBRARY_PATH", "LD_PRELOAD"].iter().any(|v| arrival.starts_with(v));
    let head = if by_environment { format!("the {library} of {arrival}") } else { library.clone() };
    let summary = format!("{head} does not define {}, which {who} wants", listed(references));
    let mut finding = Finding::new(UNDEFINED_SYMBOL, name, summary);
    finding = finding.with(Evidence::Decision(decision.unwrap_or(image.decision))).with(Evidence::Image(provider));
    finding.evidence.extend(asked_by(process, known, references));
    if let Some(first) = image.loader.filter(|l| *l != asker && !by_environment) {
        arrival.push_str(&format!(", loaded for {}", words::label(process, first)));
    }
    finding = finding.with(Evidence::Copy(words::image_copy(process, known, Part::Taken, provider, arrival)));
    let others = Other::of(process, known, provider, asker);
    let good: Vec<&Other> = others.iter().filter(|o| o.defines(process, references[0])).collect();
    for other in good.iter().take(3) {
        finding = finding.with(Evidence::Copy(other.row(process, known)));
    }
    let displaced = decision.and_then(|d| shadow::displaced(process, known, d));
    let mut because: Vec<String> = Vec::new();
    if let Some(displaced) = &displaced {
        because.push(shadow::because(process, displaced, std::slice::from_ref(displaced)));
    }
    because.extend(how_many(process, provider, asker, references, good.first().copied()));
    if meant::is_interpreter(process, provider) {
        because.push(format!("It is a function of Python itself: {who} was built for another release of Python."));
    }
    because.extend(known_releases(references));
    if !because.is_empty() {
        finding = finding.because(because.join(" "));
    }
    finding.candidates = match &displaced {
        Some(displaced) => shadow::candidates(process, displaced, std::slice::from_ref(displaced)),
        None => removal(process, provider),
    };
    if let Some(other) = good.first() {
        let directory = words::directory(other.path.as_bstr());
        finding.candidates.push(Candidate::AppendLibraryPath(vec![directory]));
    }
    finding
}

/// What the table of telltale symbols says of the first symbol that it knows.
fn known_releases(references: &[&Unresolved]) -> Option<String> {
    let known =
        |u: &&Unresolved| Some((telltale::of_symbol(u.symbol.as_bstr())?, demangle::in_words(u.symbol.as_bstr())));
    let (telltale, symbol) = references.iter().take(MAX_EVIDENCE).find_map(known)?;
    Some(format!("{} {}.", telltale::stem(telltale.library.into()), telltale.words.replace('%', &symbol)))
}

/// How much of what is wanted of a library it lacks, and how much another copy has.
fn how_many(
    process: &Process,
    provider: ImageId,
    asker: ImageId,
    references: &[&Unresolved],
    good: Option<&Other>,
) -> Option<String> {
    let symbols = process.symbols(asker)?;
    let answers = |file: &BStr| meant::answering(process, file, asker) == Some(provider);
    let other = good.and_then(|o| process.store().symbols(&o.object)).map(|s| &s.table);
    let (mut wanted, mut in_other) = (0usize, 0usize);
    let mut seen = FxHashSet::default();
    for r in symbols.references.iter(0..symbols.references.symbols()).filter(|r| seen.insert(r.symbol)) {
        let Some((name, version)) = process.symbol_name(asker, r.symbol) else { continue };
        let file = version.and_then(|v| v.file.as_ref());
        let defined = other.is_some_and(|t| meant::defines(t, &Name::new(name), version.map(|v| v.name.as_bstr())));
        let belongs = match file {
            Some(file) => answers(file.as_bstr()),
            None => defined,
        };
        wanted += usize::from(belongs);
        in_other += usize::from(belongs && defined);
    }
    let lacking: FxHashSet<u32> = references.iter().filter(|u| u.image == asker).map(|u| u.index).collect();
    if wanted < lacking.len() || wanted < 2 {
        return None;
    }
    let who = words::label(process, asker);
    let mut text = match lacking.len() {
        n if n == wanted => format!("All {n} symbols that {who} wants of it are absent in the copy taken"),
        1 => format!("One of the {wanted} symbols that {who} wants of it is absent in the copy taken"),
        n => format!("{n} of the {wanted} symbols that {who} wants of it are absent in the copy taken"),
    };
    if let Some(other) = good {
        let all = if in_other == wanted { "all".to_owned() } else { format!("{in_other}") };
        let place = if other.part == Part::Passed { other.place.clone() } else { words::shown(&other.path) };
        text.push_str(&format!("; {all} are in the one of {place}"));
    }
    Some(text + ".")
}

/// A loaded library defines the symbols and is not where they are looked up.
fn out_of_scope(process: &Process, known: &Knowledge<'_>, image: ImageId, references: &[&Unresolved]) -> Finding {
    let who = words::label(process, references[0].image);
    let has = words::label(process, image);
    let summary = format!("{has} is loaded and defines {}, but not for {who}, which wants it", listed(references));
    let mut finding = Finding::new(UNDEFINED_SYMBOL, has.clone(), summary).with(Evidence::Image(image));
    finding.evidence.extend(asked_by(process, known, references));
    let place = format!("{}, not in the scope of {who}", words::arrival(process, image));
    finding = finding.with(Evidence::Copy(words::image_copy(process, known, Part::Present, image, place)));
    let local = "what dlopen loads without RTLD_GLOBAL serves only itself and what it loads";
    finding.because(format!("{who} has no NEEDED entry that leads to {has}, and {local}."))
}

/// A file of the environment defines the symbols, and nobody loads it.
fn elsewhere(process: &Process, known: &Knowledge<'_>, path: &BString, references: &[&Unresolved]) -> Finding {
    let asker = references[0].image;
    let who = words::label(process, asker);
    let has = words::shown(crate::system::file_name(path.as_bstr()));
    let summary = format!("{who} wants {}, which {has} defines, and does not load it", listed(references));
    let mut finding = Finding::new(UNDEFINED_SYMBOL, has.clone(), summary);
    finding.evidence.extend(asked_by(process, known, references));
    let place = "not loaded".to_owned();
    finding = finding.with(Evidence::Copy(words::path_copy(process, known, Part::Present, path.as_bstr(), place)));
    let mut because =
        vec![format!("none of its NEEDED entries leads to {has}: it counts on somebody else to load it.")];
    because.extend(known_releases(references));
    finding.because(because.join(" "))
}

/// Nothing that is known defines the symbols.
fn nobody(process: &Process, known: &Knowledge<'_>, references: &[&Unresolved]) -> Finding {
    let asker = references[0].image;
    let who = words::label(process, asker);
    let summary = format!("no library defines {}, which {who} wants", listed(references));
    let mut finding = Finding::new(UNDEFINED_SYMBOL, who.clone(), summary).with(Evidence::Image(asker));
    finding.evidence.extend(asked_by(process, known, references));
    let needs: Vec<String> = process.image(asker).needs.iter().map(|id| words::label(process, *id)).collect();
    let mut because = vec![match needs.len() {
        0 => format!("{who} needs no library, so whoever loads it has to bring what defines it."),
        // musl answers to libc.so.6 itself.
        _ if process.dialect().family == Family::Musl && asks_for(process, asker, "libc.so.6") => format!(
            "{who} was built for glibc: it asks for libc.so.6, and musl puts its own C library in that place, which does not \
             have what only glibc has."
        ),
        n => {
            let them = if references.len() == 1 { "it" } else { "them" };
            let (libraries, do_not) = if n == 1 { ("only library", "does not") } else { ("libraries", "do not") };
            format!("the {libraries} that {who} needs {do_not} define {them}: {}.", needs.join(", "))
        }
    }];
    because.extend(known_releases(references));
    finding.because(because.join(" "))
}

/// True when an image has a NEEDED entry of a name.
fn asks_for(process: &Process, id: ImageId, name: &str) -> bool {
    process.image(id).facts().is_some_and(|f| f.requests.iter().any(|r| r.name == name))
}

/// One note for all that a library audited alone leaves to the program that opens it.
fn left_to_the_host(process: &Process, left: &[&Unresolved]) -> Option<Finding> {
    let first = left.first()?;
    let symbols: FxHashSet<&BStr> = left.iter().map(|u| u.symbol.as_bstr()).collect();
    let whose = words::label(process, ImageId(0));
    let of_python = symbols.iter().filter(|s| meant::is_of_python(s)).count();
    let host = if of_python * 2 > symbols.len() { "the Python that imports it" } else { "the program that opens it" };
    let example = demangle::in_words(first.symbol.as_bstr());
    let summary = match symbols.len() {
        1 => format!("{whose} leaves {example} to {host}"),
        n => format!("{whose} leaves {n} symbols to {host}: {example} and others"),
    };
    let because = "a library may count on definitions of its program; with `--host PROGRAM` they are looked up there.";
    let mut finding =
        Finding::new(LEFT_TO_THE_HOST, whose, summary).because(because).with(Evidence::Image(first.image));
    for u in left.iter().take(MAX_EVIDENCE) {
        finding = finding.with(Evidence::Symbol {
            image: u.image,
            symbol: u.symbol.clone(),
            version: u.version.clone(),
            demangled: demangle::full(u.symbol.as_bstr()),
        });
    }
    Some(finding)
}

impl Other {
    fn row(&self, process: &Process, known: &Knowledge<'_>) -> Copy {
        words::path_copy(process, known, self.part, self.path.as_bstr(), self.place.clone())
    }

    fn defines(&self, process: &Process, u: &Unresolved) -> bool {
        let version = u.version.as_ref().map(|v| v.as_bstr());
        let table = process.store().symbols(&self.object).map(|s| &s.table);
        table.is_some_and(|t| meant::defines(t, &Name::new(&u.symbol), version))
    }
}
