//! The story of one symbol: who refers to it, which definitions the lookup meets and why one of them wins, and which
//! other files of the box could serve.
//!
//! Everything about a process is read from its records and from traces of its lookups ([`Process::trace_reference`]).

mod query;

use std::collections::BTreeMap;

use bstr::{BStr, BString, ByteSlice};
use rayon::prelude::*;
use rustc_hash::{FxHashMap, FxHashSet};

pub use self::query::Query;
use super::{Owner, telltale, words};
use crate::elf::references::{Class, Reference};
use crate::elf::symbols::{Name, Symbol, Table, Version};
use crate::ld::{
    Candidate, Ending, ImageId, Object, OpenFlags, Outside, Process, Standing, Store, Trace, Wanted, When,
};
use crate::system::{FileKey, Kind, file_name};

/// Most symbols that one name stands for and that are told of.
const MAX_SYMBOLS: usize = 64;
/// Most references of one symbol that are traced in one process.
const MAX_TRACES: usize = 4096;
/// Bytes of names of one image that are compared.
const MAX_NAMES: usize = 1 << 30;
/// Most files outside of the processes that are told of, for one symbol.
const MAX_ELSEWHERE: usize = 200;

/// A simulated process.
pub struct Run {
    /// Whose process it is: `torch 2.4.0`.
    pub title: String,
    /// The process.
    pub process: Process,
}

/// What the caller knows beyond the processes.
pub struct Knowledge<'a> {
    /// The package that owns a file.
    pub owner: &'a (dyn Fn(&BStr) -> Option<Owner> + Sync),
    /// Library files of the box, loaded or not.
    pub files: &'a [BString],
    /// Opens those files.
    pub store: &'a Store,
}

/// A file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileFacts {
    /// Its path; of an image, as the loader has it.
    pub path: BString,
    /// `DT_SONAME`.
    pub soname: Option<BString>,
    /// The package that owns it.
    pub owner: Option<Owner>,
    /// The version that its file name tells.
    pub version: Option<String>,
}

/// An image that refers to the symbol.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Referrer {
    /// The image.
    pub image: ImageId,
    /// Its file.
    pub file: FileFacts,
    /// What for, and when each is bound.
    pub uses: Vec<(Class, When)>,
    /// The reference is weak.
    pub weak: bool,
    /// False when the load ended before the loader came to it.
    pub recorded: bool,
}

/// A definition that a lookup meets, or could have met.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Met {
    /// The image that has it.
    pub image: ImageId,
    /// Its file.
    pub file: FileFacts,
    /// The definition's version.
    pub version: Option<BString>,
    /// The version is not the default one: only a reference to this very version means it.
    pub old: bool,
    /// The definition is weak.
    pub weak: bool,
    /// The definition is `STB_GNU_UNIQUE`.
    pub unique: bool,
    /// `STT_*`.
    pub kind: u8,
    /// Place in the scope of the first referrer, from 0.
    pub place: Option<u32>,
    /// What becomes of it.
    pub standing: Standing,
    /// Whose `dlopen` brought it, or took it away, in words. For those that are not in the scope.
    pub step: String,
}

/// A library that was meant and does not define the symbol.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lacking {
    /// The image.
    pub image: ImageId,
    /// Its file.
    pub file: FileFacts,
    /// Place in the scope of the first referrer, from 0.
    pub place: Option<u32>,
}

/// References that are answered alike.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lookup {
    /// The version asked for.
    pub version: Option<BString>,
    /// The file that the version was to come from, as it was named at link time.
    pub version_file: Option<BString>,
    /// Who refers. Empty when nobody does: then it is told what the program itself would get.
    pub referrers: Vec<Referrer>,
    /// The images that are asked, in order; of the first referrer.
    pub scope: Vec<ImageId>,
    /// How many images are asked, over all referrers: least and most.
    pub asked: (usize, usize),
    /// What comes of it.
    pub ending: Ending,
    /// The definitions.
    pub met: Vec<Met>,
    /// Libraries that were meant and do not define it.
    pub lacking: Vec<Lacking>,
}

impl Lookup {
    /// True when references were bound, or were found to lead nowhere; false when the load ended before.
    pub fn was_made(&self) -> bool {
        self.referrers.iter().any(|r| r.recorded)
    }
}

/// One process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProcessStory {
    /// Index of the run.
    pub run: usize,
    /// `torch 2.4.0`.
    pub title: String,
    /// What the loader says of the step that fails for want of this symbol, or before the symbol is looked up.
    pub error: Option<BString>,
    /// The answers.
    pub lookups: Vec<Lookup>,
    /// References to other versions than the one that was asked about.
    pub other_versions: usize,
    /// References that were too many to be told of.
    pub left_out: usize,
}

/// A file that defines the symbol and that no process has loaded, or not the one that lacks it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Elsewhere {
    /// The file.
    pub file: FileFacts,
    /// The versions of its definitions; empty when they have none.
    pub versions: Vec<BString>,
    /// It is another copy of a library that is loaded, needed or meant.
    pub is_copy: bool,
    /// A reference of the first lookup would accept it.
    pub suits: bool,
}

/// One symbol.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SymbolStory {
    /// The symbol as it stands in files.
    pub name: BString,
    /// Its C++ name.
    pub demangled: Option<String>,
    /// The processes in which something refers to it or defines it.
    pub processes: Vec<ProcessStory>,
    /// Other files with it, copies of known libraries first.
    pub elsewhere: Vec<Elsewhere>,
    /// Files beyond those.
    pub elsewhere_left_out: usize,
    /// Which releases of which library have it, in words.
    pub known: Option<String>,
}

/// All that is to be told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WhySymbol {
    /// What was asked for.
    pub query: Query,
    /// The symbols, by name.
    pub symbols: Vec<SymbolStory>,
    /// Symbols beyond those.
    pub left_out: usize,
    /// The run that a report describes whose part this story is.
    pub reported_run: usize,
    /// Files of the box that were looked at.
    pub files_looked_at: usize,
    /// What else is to be known, in words.
    pub notes: Vec<String>,
}

/// A reference to a symbol of the query.
#[derive(Clone, Copy)]
struct Found {
    image: ImageId,
    reference: Reference,
    symbol: Symbol,
}

/// By symbol: who refers to it, and whether something defines it.
type Names = BTreeMap<BString, Vec<Found>>;

/// Tells the story. There are no symbols in it when no process and no file knows such a one.
pub fn tell(query: &Query, runs: &[Run], known: &Knowledge<'_>) -> WhySymbol {
    let found: Vec<Names> = runs.iter().map(|run| names_of(query, &run.process)).collect();
    let mut names: Vec<BString> = found.iter().flat_map(|f| f.keys().cloned()).collect();
    if query.is_exact() {
        names.push(query.name.clone());
    }
    names.sort();
    names.dedup();
    // What is referred to comes first.
    let references = |name: &BString| found.iter().filter_map(|f| f.get(name)).map(Vec::len).sum::<usize>();
    names.sort_by_key(|name| std::cmp::Reverse(references(name).min(1)));
    let left_out = names.len().saturating_sub(MAX_SYMBOLS);
    names.truncate(MAX_SYMBOLS);
    let mut symbols: Vec<SymbolStory> = names
        .iter()
        .map(|name| {
            let processes = runs.iter().zip(&found).enumerate();
            let processes =
                processes.filter_map(|(n, (run, found))| process_story(query, name, n, run, found.get(name)?, known));
            SymbolStory {
                name: name.clone(),
                demangled: super::demangle::full(name.as_bstr()),
                processes: processes.collect(),
                elsewhere: Vec::new(),
                elsewhere_left_out: 0,
                known: telltale::of_symbol(name.as_bstr())
                    .map(|t| format!("{} {}", t.library, t.words.replace('%', &words::shown(name)))),
            }
        })
        .collect();
    let files_looked_at = look_elsewhere(&mut symbols, runs, known);
    symbols.retain(|s| !s.processes.is_empty() || !s.elsewhere.is_empty());
    WhySymbol { query: query.clone(), symbols, left_out, reported_run: 0, files_looked_at, notes: Vec::new() }
}

/// The symbols of a process that the query means.
fn names_of(query: &Query, process: &Process) -> Names {
    let images: Vec<ImageId> = (0..process.images.len() as u32).map(ImageId).collect();
    let found: Vec<Vec<(BString, Option<Found>)>> = images.par_iter().map(|id| names_in(query, process, *id)).collect();
    let mut names = Names::new();
    for (name, found) in found.into_iter().flatten() {
        names.entry(name).or_default().extend(found);
    }
    names
}

fn names_in(query: &Query, process: &Process, image: ImageId) -> Vec<(BString, Option<Found>)> {
    let Some(symbols) = process.symbols(image) else { return Vec::new() };
    let table = symbols.table.view();
    let mut out: Vec<(BString, Option<Found>)> = Vec::new();
    let mut room = MAX_NAMES;
    for reference in symbols.references.iter(0..symbols.references.symbols()) {
        let Some(symbol) = table.symbol(reference.symbol) else { continue };
        // What is bound without a lookup is a matter of the file alone.
        if symbol.binding() == 0 || symbol.is_hidden() {
            continue;
        }
        let Some(name) = table.name(&symbol) else { continue };
        let Some(left) = room.checked_sub(name.len()) else { break };
        room = left;
        if query.matches(name) {
            out.push((name.to_owned(), Some(Found { image, reference, symbol })));
        }
    }
    if query.is_exact() {
        let name = Name::new(&query.name);
        if table.candidates(&name).any(|s| s.is_definition()) {
            out.push((query.name.clone(), None));
        }
    } else {
        let mut seen: FxHashSet<&BStr> = FxHashSet::default();
        for symbol in table.hashed().filter(Symbol::is_definition) {
            let Some(name) = table.name(&symbol) else { continue };
            let Some(left) = room.checked_sub(name.len()) else { break };
            room = left;
            if query.matches(name) && seen.insert(name) {
                out.push((name.to_owned(), None));
            }
        }
    }
    out
}

/// How a reference was bound, as it is recorded.
type Recorded = FxHashMap<(ImageId, u32, Class), When>;

fn process_story(
    query: &Query,
    name: &BString,
    number: usize,
    run: &Run,
    found: &[Found],
    known: &Knowledge<'_>,
) -> Option<ProcessStory> {
    let process = &run.process;
    let recorded = recorded(process, found);
    let mut lookups: Vec<(Key, Lookup)> = Vec::new();
    let (mut traced, mut other_versions) = (0, 0);
    for found in found.iter().take(MAX_TRACES) {
        let version = process.symbols(found.image).and_then(|s| s.table.version_of(found.symbol.index));
        if query.version.is_some() && query.version.as_ref() != version.map(|v| &v.name) {
            other_versions += 1;
            continue;
        }
        let Some(trace) = process.trace_reference(found.image, &found.reference) else { continue };
        traced += 1;
        let when = recorded.get(&(found.image, found.symbol.index, found.reference.class)).copied();
        // Where something answers, it makes no difference which file the version was meant to come from.
        let is_bound = matches!(trace.ending, Ending::Bound { .. });
        let file = version.and_then(|v| v.file.clone());
        let key = Key {
            version: version.map(|v| v.name.clone()),
            file: file.clone().filter(|_| !is_bound),
            ending: ending_key(trace.ending),
            met: trace.candidates.iter().map(|c| (c.image, c.symbol, c.standing)).collect(),
        };
        let usual = if found.reference.is_late { When::Call } else { When::Load };
        let usage = (found.reference.class, when.unwrap_or(usual));
        let lookup = match lookups.iter_mut().find(|(k, _)| *k == key) {
            Some((_, lookup)) => lookup,
            None => {
                let lookup = lookup(process, known, &trace, key.version.clone(), file);
                lookups.push((key, lookup));
                &mut lookups.last_mut()?.1
            }
        };
        lookup.asked = (lookup.asked.0.min(trace.scope.len()), lookup.asked.1.max(trace.scope.len()));
        match lookup.referrers.iter_mut().find(|r| r.image == found.image) {
            Some(referrer) => {
                referrer.recorded |= when.is_some();
                if !referrer.uses.contains(&usage) {
                    referrer.uses.push(usage);
                }
            }
            None => lookup.referrers.push(Referrer {
                image: found.image,
                file: image_facts(process, known, found.image),
                uses: vec![usage],
                weak: found.symbol.is_weak() && found.symbol.is_undefined(),
                recorded: when.is_some(),
            }),
        }
    }
    if traced == 0 {
        let lookup = supposed(query, name, process, known)?;
        lookups.push((Key::default(), lookup));
    }
    // What fails first, then what most refer to.
    let rank = |l: &Lookup| match l.ending {
        Ending::Undefined | Ending::Assertion => 0,
        Ending::Bound { .. } | Ending::Zero => 1,
    };
    let mut lookups: Vec<Lookup> = lookups.into_iter().map(|(_, lookup)| lookup).collect();
    lookups.sort_by_key(|l| (rank(l), std::cmp::Reverse(l.referrers.len())));
    Some(ProcessStory {
        run: number,
        title: run.title.clone(),
        error: error_of(process, name, &lookups),
        lookups,
        other_versions,
        left_out: found.len().saturating_sub(MAX_TRACES),
    })
}

/// What makes two lookups the same story.
#[derive(PartialEq, Eq, Default)]
struct Key {
    version: Option<BString>,
    file: Option<BString>,
    ending: (u8, Option<(ImageId, u32)>),
    met: Vec<(ImageId, u32, Standing)>,
}

fn ending_key(ending: Ending) -> (u8, Option<(ImageId, u32)>) {
    match ending {
        Ending::Bound { to, definition } => (0, Some((to, definition))),
        Ending::Zero => (1, None),
        Ending::Undefined => (2, None),
        Ending::Assertion => (3, None),
    }
}

/// When references were bound, from the bindings and the failures of the process.
fn recorded(process: &Process, found: &[Found]) -> Recorded {
    let wanted: FxHashSet<(ImageId, u32)> = found.iter().map(|f| (f.image, f.symbol.index)).collect();
    let bound = process.bindings.iter().filter(|b| wanted.contains(&(b.from, b.symbol)));
    let failed = process.unresolved.iter().filter(|u| wanted.contains(&(u.image, u.index)));
    bound
        .map(|b| ((b.from, b.symbol, b.class), b.when))
        .chain(failed.map(|u| ((u.image, u.index, u.class), u.when)))
        .collect()
}

fn lookup(
    process: &Process,
    known: &Knowledge<'_>,
    trace: &Trace,
    version: Option<BString>,
    file: Option<BString>,
) -> Lookup {
    Lookup {
        version,
        referrers: Vec::new(),
        scope: trace.scope.clone(),
        asked: (trace.scope.len(), trace.scope.len()),
        ending: trace.ending,
        met: trace.candidates.iter().map(|c| met(process, known, c)).collect(),
        lacking: lacking(process, known, trace, file.as_ref()),
        version_file: file,
    }
}

fn met(process: &Process, known: &Knowledge<'_>, candidate: &Candidate) -> Met {
    let symbols = process.symbols(candidate.image);
    let symbol = symbols.and_then(|s| s.table.symbol(candidate.symbol));
    let index = symbols.and_then(|s| s.table.version_index(candidate.symbol)).unwrap_or(0);
    Met {
        image: candidate.image,
        file: image_facts(process, known, candidate.image),
        version: process.symbol_name(candidate.image, candidate.symbol).and_then(|(_, v)| v).map(|v| v.name.clone()),
        old: index & 0x8000 != 0,
        weak: symbol.is_some_and(|s| s.is_weak()),
        unique: symbol.is_some_and(|s| s.binding() == 10),
        kind: symbol.map_or(0, |s| s.kind()),
        place: candidate.place,
        standing: candidate.standing,
        step: match candidate.standing {
            Standing::Outside(outside, _) => step_words(process, outside),
            _ => String::new(),
        },
    }
}

/// The `dlopen` that brought an image, or that took it away.
fn step_words(process: &Process, outside: Outside) -> String {
    let Some(step) = process.steps.get(outside.step().index()) else { return String::new() };
    let name = words::shown(file_name(step.name.as_bstr()));
    let flags = step.flags.map_or("", |f: OpenFlags| if f.global { ", RTLD_GLOBAL" } else { "" });
    match outside {
        Outside::Unloaded(_) => format!("dlopen of {name} failed"),
        Outside::Local(_) | Outside::Later(_) => format!("dlopen of {name}{flags}"),
    }
}

/// Libraries that were meant, by the version's file, and have no such symbol.
fn lacking(process: &Process, known: &Knowledge<'_>, trace: &Trace, file: Option<&BString>) -> Vec<Lacking> {
    let Some(file) = file else { return Vec::new() };
    let is_meant = |id: &ImageId| {
        let image = process.image(*id);
        image.soname().is_some_and(|s| s == file) || image.names.contains(file)
    };
    let has_it = |id: &ImageId| trace.candidates.iter().any(|c| c.image == *id);
    let meant = trace.scope.iter().enumerate().filter(|(_, id)| is_meant(id) && !has_it(id));
    meant
        .map(|(place, id)| Lacking { image: *id, file: image_facts(process, known, *id), place: Some(place as u32) })
        .collect()
}

/// What a call from the program would get, where nothing refers to the symbol.
fn supposed(query: &Query, name: &BString, process: &Process, known: &Knowledge<'_>) -> Option<Lookup> {
    let version = query.version.as_ref().map(|name| Version::named(name.as_bstr()));
    let wanted = Wanted { name: name.as_bstr(), version: version.as_ref(), class: Class::Plt };
    let trace = process.trace_symbol(ImageId(0), &wanted)?;
    Some(lookup(process, known, &trace, query.version.clone(), None))
}

/// The first failure for want of the symbol, else the one that came before the lookup.
fn error_of(process: &Process, name: &BString, lookups: &[Lookup]) -> Option<BString> {
    let fails = lookups.iter().any(|l| matches!(l.ending, Ending::Undefined | Ending::Assertion));
    // As glibc says it, and as musl does.
    let is_about = |text: &BString| {
        let rest = text.strip_prefix(b"undefined symbol: ").and_then(|t| t.strip_prefix(name.as_slice()));
        rest.is_some_and(|r| r.is_empty() || r.starts_with(b", version "))
            || text.strip_suffix(b": symbol not found").is_some_and(|t| t == name)
    };
    let step = process.steps.iter().find(|s| s.failure.as_ref().is_some_and(|f| f.is_symbol && is_about(&f.text)));
    let about = step.filter(|_| fails).and_then(|s| s.error.clone());
    // What ended the load before anything was looked up.
    let unreached = || {
        let first = lookups.iter().flat_map(|l| &l.referrers).find(|r| !r.recorded)?;
        process.steps.get(process.image(first.image).step.index())?.error.clone()
    };
    about.or_else(unreached)
}

fn facts(known: &Knowledge<'_>, path: BString, object: &Object) -> FileFacts {
    FileFacts {
        owner: (known.owner)(path.as_bstr()).or_else(|| (known.owner)(object.real_path())),
        soname: object.facts().and_then(|f| f.soname.clone()),
        version: words::file_version(object.real_path()),
        path,
    }
}

fn image_facts(process: &Process, known: &Knowledge<'_>, id: ImageId) -> FileFacts {
    let image = process.image(id);
    facts(known, words::readable(process, image.name.as_bstr()), &image.object)
}

impl ProcessStory {
    /// True when a reference finds no definition.
    fn fails(&self) -> bool {
        self.lookups.iter().any(|l| matches!(l.ending, Ending::Undefined | Ending::Assertion))
    }
}

/// Finds the symbols in files that no process has loaded, or not the one that lacks them; returns how many were looked at.
fn look_elsewhere(symbols: &mut [SymbolStory], runs: &[Run], known: &Knowledge<'_>) -> usize {
    let keys = |run: &Run| run.process.images.iter().map(|i| i.object.meta.key).collect::<FxHashSet<FileKey>>();
    let loaded: Vec<FxHashSet<FileKey>> = runs.iter().map(keys).collect();
    // What one target loads may serve another.
    let images = runs.iter().flat_map(|r| &r.process.images).map(|i| &i.name).filter(|_| runs.len() > 1);
    let paths: Vec<&BString> = known.files.iter().chain(images).collect();
    let names: Vec<BString> = symbols.iter().map(|s| s.name.clone()).collect();
    let mut files: Vec<(FileKey, &BString)> = paths
        .par_iter()
        .filter_map(|path| {
            let object = known.store.open(path.as_bstr()).ok()?;
            let is_library = object.meta.kind == Kind::File && object.facts().is_some();
            let is_everywhere = !loaded.is_empty() && loaded.iter().all(|l| l.contains(&object.meta.key));
            (is_library && !is_everywhere).then_some((object.meta.key, *path))
        })
        .collect();
    // A file under several names: the shortest is told.
    files.sort_by_key(|(_, path)| (path.len(), *path));
    let mut seen = FxHashSet::default();
    files.retain(|(key, _)| seen.insert(*key));
    let found: Vec<Vec<(usize, FileFacts, Vec<BString>)>> =
        files.par_iter().map(|(_, path)| definitions_in(known, path, &names)).collect();
    let found = files.iter().zip(found).flat_map(|((key, _), found)| found.into_iter().map(move |found| (key, found)));
    for (key, (index, file, versions)) in found {
        let story = &mut symbols[index];
        let lacks_it = |p: &ProcessStory| p.fails() && !loaded[p.run].contains(key);
        if loaded.iter().any(|l| l.contains(key)) && !story.processes.iter().any(lacks_it) {
            continue;
        }
        let is_copy = is_copy(story, &file, runs);
        let suits = story.processes.iter().flat_map(|p| &p.lookups).next().is_none_or(|l| match &l.version {
            Some(version) => versions.is_empty() || versions.contains(version),
            None => true,
        });
        story.elsewhere.push(Elsewhere { file, versions, is_copy, suits });
    }
    for story in symbols.iter_mut() {
        story.elsewhere.sort_by(|a, b| {
            let rank = |e: &Elsewhere| (!e.is_copy, !e.suits);
            (rank(a), &a.file.path).cmp(&(rank(b), &b.file.path))
        });
        story.elsewhere_left_out = story.elsewhere.len().saturating_sub(MAX_ELSEWHERE);
        story.elsewhere.truncate(MAX_ELSEWHERE);
    }
    files.iter().filter(|(key, _)| !loaded.iter().any(|l| l.contains(key))).count()
}

/// Which of the symbols a file defines.
fn definitions_in(known: &Knowledge<'_>, path: &BString, names: &[BString]) -> Vec<(usize, FileFacts, Vec<BString>)> {
    let open = || {
        let object = known.store.open(path.as_bstr()).ok()?;
        // The tables are mapped for this look only.
        let file = known.store.system().open(path.as_bstr()).ok()?;
        let table = Table::open(&file, object.facts()?)?;
        Some((object, table))
    };
    let Some((object, table)) = open() else { return Vec::new() };
    let view = table.view();
    let mut out = Vec::new();
    for (index, name) in names.iter().enumerate() {
        let name = Name::new(name);
        let defined: Vec<Symbol> = view.candidates(&name).filter(|s| s.is_definition()).take(64).collect();
        if !defined.is_empty() {
            let versions = defined.iter().filter_map(|s| view.version_of(s.index)).map(|v| v.name.clone()).collect();
            out.push((index, facts(known, path.clone(), &object), versions));
        }
    }
    out
}

/// True for a copy of a library that defines the symbol in a process, that a referrer needs, or whose version is meant.
fn is_copy(story: &SymbolStory, file: &FileFacts, runs: &[Run]) -> bool {
    let name = file.soname.as_ref().map_or_else(|| file_name(file.path.as_bstr()), |s| s.as_bstr());
    story.processes.iter().any(|p| {
        p.lookups.iter().any(|l| {
            let needs = |id: ImageId| {
                let facts = runs.get(p.run).and_then(|r| r.process.image(id).facts());
                facts.is_some_and(|f| f.requests.iter().any(|r| r.name == name))
            };
            l.version_file.as_ref().is_some_and(|f| f == name)
                || l.met.iter().any(|m| m.file.soname.as_ref().is_some_and(|s| s == name))
                || l.referrers.iter().any(|r| needs(r.image))
        })
    })
}
