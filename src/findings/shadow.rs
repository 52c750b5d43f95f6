//! Which copies win that should not? Reads the losers that the loader model wrote down beside each answer.
//!
//! A loser counts only when it is another build than the winner. It weighs more when it is the requester's own: reached
//! by the requester's own RPATH or RUNPATH, or part of the same distribution.

use bstr::{BStr, ByteSlice};
use rustc_hash::{FxHashMap, FxHashSet};

use super::loading::Knowledge;
use super::words::{self, Relation};
use super::{Candidate, Evidence, Finding, LOADED_EARLIER, Part, Rule, SHADOWED, Severity, TWO_COPIES};
use crate::ld::search::parse_list;
use crate::ld::{Attempt, Decision, DecisionId, ImageId, List, Outcome, Process, Rule as By, Verdict};
use crate::system::{FileKey, join};

/// Why another copy than the requester's was taken.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Cause {
    /// An element of LD_LIBRARY_PATH stands before it.
    LibraryPath(u32),
    /// A preload entry: variable or file, index.
    Preload(String, u32),
    /// It was loaded before the request was made.
    Earlier,
}

/// One request whose answer is not what the requester came with.
pub struct Displaced<'p> {
    decision: DecisionId,
    requester: Option<ImageId>,
    chosen: ImageId,
    cause: Cause,
    passed: &'p Attempt,
    own: bool,
    relation: Relation,
    /// True when only the identity rule stood in the way, not the order of the search.
    earlier: bool,
}

/// Finds displaced copies and double copies. Images in `told` are the subject of an error already.
pub fn check(process: &Process, known: &Knowledge<'_>, told: &FxHashSet<ImageId>) -> Vec<Finding> {
    let mut groups: Vec<(ImageId, Vec<Displaced<'_>>)> = Vec::new();
    let mut position: FxHashMap<ImageId, usize> = FxHashMap::default();
    for index in 0..process.decisions.len() {
        let Some(found) = displaced(process, known, DecisionId(index as u32)) else { continue };
        if told.contains(&found.chosen) {
            continue;
        }
        let at = *position.entry(found.chosen).or_insert_with(|| {
            groups.push((found.chosen, Vec::new()));
            groups.len() - 1
        });
        groups[at].1.push(found);
    }
    let mut out: Vec<Finding> = groups.iter().map(|(_, list)| finding(process, known, list)).collect();
    let sonames: FxHashSet<&BStr> = groups.iter().filter_map(|(id, _)| process.image(*id).soname()).collect();
    out.extend(two_copies(process, known, &sonames));
    out
}

/// The request whose answer is not what the requester came with; `None` for one that is in order.
pub fn displaced<'p>(process: &'p Process, known: &Knowledge<'_>, id: DecisionId) -> Option<Displaced<'p>> {
    let decision = &process.decisions[id.index()];
    let step = &process.steps[decision.step.index()];
    if step.optional && step.outcome == Outcome::Failed {
        return None;
    }
    let chosen = decision.chosen?;
    let requester = decision.needed_by;
    // By which place the requester's own search came to its answer, when it was one of its places.
    let reached = decision.attempts.iter().find(|a| a.verdict == Verdict::Taken).map(|a| a.place);
    let loading = &process.decisions[process.image(chosen).decision.index()];
    let cause = if let Some((source, entry)) = words::preload_source(process, loading) {
        Cause::Preload(source, entry)
    } else {
        match reached.or(loading.via.as_ref().map(|v| v.place)) {
            Some(p) if p.rule == By::LibraryPath => Cause::LibraryPath(p.entry.unwrap_or(0)),
            _ if reached.is_none() && requester.is_some() => Cause::Earlier,
            _ => return None,
        }
    };
    let losers = || decision.attempts.iter().filter(|a| a.verdict == Verdict::NotReached);
    let own = losers().find(|a| is_own(process, known, requester, a));
    let passed = match own {
        Some(own) => own,
        // A copy of the system: only what the environment puts in front of it is worth a word.
        None if cause == Cause::Earlier => return None,
        None => losers().find(|a| matches!(a.place.rule, By::Cache | By::Default | By::MuslPath))?,
    };
    let key = process.image(chosen).object.meta.key;
    if finds_first(process, decision, key, passed) {
        return None;
    }
    let object = process.store().open(passed.path.as_bstr()).ok()?;
    let image = process.image(chosen);
    let taken_owner = words::owner(known, image.name.as_bstr(), Some(&image.object));
    let passed_owner = words::owner(known, passed.path.as_bstr(), Some(&object));
    let relation = words::relation((&image.object, taken_owner.as_ref()), (&object, passed_owner.as_ref()));
    if relation == Relation::Same {
        return None;
    }
    // RPATH stands before LD_LIBRARY_PATH: there it was the earlier load that decided, not the order.
    let earlier = reached.is_none() && !(matches!(cause, Cause::LibraryPath(_)) && passed.place.rule != By::Rpath);
    Some(Displaced { decision: id, requester, chosen, cause, passed, own: own.is_some(), relation, earlier })
}

/// True for a copy that the requester was installed with.
fn is_own(process: &Process, known: &Knowledge<'_>, requester: Option<ImageId>, loser: &Attempt) -> bool {
    if matches!(loser.place.rule, By::Rpath | By::Runpath) {
        return true;
    }
    let Some(requester) = requester.map(|id| process.image(id)) else { return false };
    let mine = words::owner(known, requester.name.as_bstr(), Some(&requester.object));
    mine.is_some() && mine == words::owner(known, loser.path.as_bstr(), None)
}

/// True when an element of the same list that stands before the loser's leads to the chosen file: the requester would
/// have found that one by itself, and the loser is an ordinary later copy.
fn finds_first(process: &Process, decision: &Decision, chosen: FileKey, loser: &Attempt) -> bool {
    let mut owners: Vec<ImageId> = loser.place.owner.into_iter().chain(decision.needed_by).collect();
    owners.dedup();
    owners.into_iter().any(|id| {
        let Some(facts) = process.image(id).facts() else { return false };
        let Some(text) = facts.runpath.as_ref().or_else(|| facts.effective_rpath()) else { return false };
        let list =
            parse_list(text.as_bstr(), List::RunPath, process.dialect().family, |e| process.expand_element(id, e));
        let list = list.unwrap_or_default();
        let before = |entry: u32| loser.place.owner != Some(id) || loser.place.entry.is_none_or(|n| entry < n);
        list.dirs.iter().filter(|d| before(d.entry)).any(|dir| {
            let path = join(dir.text.as_bstr(), &decision.asked);
            process.store().stat(path.as_bstr()).is_ok_and(|m| m.key == chosen)
        })
    })
}

fn finding(process: &Process, known: &Knowledge<'_>, list: &[Displaced<'_>]) -> Finding {
    // The most telling request speaks for all: one that has its own copy and lost it to the search order.
    let lead = list.iter().min_by_key(|d| (!d.own, d.earlier, d.relation != Relation::Older)).unwrap_or(&list[0]);
    let decision = &process.decisions[lead.decision.index()];
    let rule: Rule = if lead.earlier { LOADED_EARLIER } else { SHADOWED };
    let name = words::shown(&decision.asked);
    let requester = lead.requester.map(|id| words::label(process, id)).unwrap_or_else(|| "the program".into());
    let severity = match (lead.own, lead.relation) {
        (true, Relation::Newer) if lead.cause == Cause::Earlier => Severity::Note,
        (true, _) | (false, Relation::Older) => Severity::Warning,
        (false, _) => Severity::Note,
    };
    let kind = match lead.relation {
        Relation::Older => "an older",
        Relation::Newer => "a newer",
        Relation::Unknown | Relation::Same => "another",
    };
    let whose = if lead.own { format!("the one that comes with {requester}") } else { "the system's".to_owned() };
    let summary = match &lead.cause {
        Cause::LibraryPath(_) if !lead.earlier => {
            format!("LD_LIBRARY_PATH puts {kind} {name} in front of {whose}")
        }
        Cause::Preload(source, _) => format!("{source} loads {kind} {name} in place of {whose}"),
        Cause::LibraryPath(_) | Cause::Earlier => {
            format!("{kind} {name} was loaded earlier and answers in place of {whose}")
        }
    };
    let mut finding = Finding::new(rule, decision.asked.clone(), summary)
        .severity(severity)
        .because(because(process, lead, list))
        .with(Evidence::Decision(lead.decision))
        .with(Evidence::Image(lead.chosen));
    match &lead.cause {
        Cause::LibraryPath(entry) => {
            finding = finding.with(Evidence::Variable("LD_LIBRARY_PATH".into(), Some(*entry)));
        }
        Cause::Preload(source, entry) => finding = finding.with(Evidence::Variable(source.clone(), Some(*entry))),
        Cause::Earlier => {}
    }
    if let Some(id) = lead.requester {
        let others: FxHashSet<ImageId> = list.iter().filter_map(|d| d.requester).filter(|r| *r != id).collect();
        let place = if others.is_empty() { String::new() } else { format!("and {} more", others.len()) };
        finding = finding.with(Evidence::Copy(words::image_copy(process, known, Part::AskedBy, id, place)));
    }
    let mut arrival = words::arrival(process, lead.chosen);
    if lead.earlier && !matches!(lead.cause, Cause::Preload(..)) {
        arrival.push_str(", earlier");
    }
    let place = words::place(process, lead.passed.place);
    finding = finding
        .with(Evidence::Copy(words::image_copy(process, known, Part::Taken, lead.chosen, arrival)))
        .with(Evidence::Copy(words::path_copy(process, known, Part::Passed, lead.passed.path.as_bstr(), place)));
    finding.candidates = candidates(process, lead, list);
    finding
}

/// Why the copy won that was taken, as sentences.
pub fn because(process: &Process, lead: &Displaced<'_>, list: &[Displaced<'_>]) -> String {
    let requester = lead.requester.map(|id| words::label(process, id)).unwrap_or_else(|| "the program".into());
    let decision = &process.decisions[lead.decision.index()];
    let mut text = match (&lead.cause, lead.earlier) {
        (Cause::LibraryPath(_), false) if lead.passed.place.rule == By::Runpath => {
            format!("{requester} carries RUNPATH, which is searched after LD_LIBRARY_PATH.")
        }
        (Cause::LibraryPath(_), false) => {
            "LD_LIBRARY_PATH is searched before the cache and the default directories.".into()
        }
        (Cause::Preload(source, _), _) => {
            format!(
                "what {source} names is loaded before everything else, and a name that a loaded library answers to is not searched for again."
            )
        }
        (Cause::LibraryPath(_) | Cause::Earlier, _) => {
            let image = process.image(lead.chosen);
            let first = match image.loader {
                Some(id) => format!(", loaded for {},", words::label(process, id)),
                None => String::new(),
            };
            let how = match decision.via.as_ref().and_then(|v| v.identity) {
                Some(crate::ld::Identity::Soname) => " by its soname",
                _ => "",
            };
            format!(
                "a name that a loaded library answers to is not searched for again: {}{first} answers{how}.",
                words::label(process, lead.chosen)
            )
        }
    };
    if let Cause::LibraryPath(entry) = &lead.cause {
        let safe = not_affected(process, *entry, list);
        if !safe.is_empty() && !lead.earlier {
            text.push_str(&format!(
                " ({} {} of RPATH, which is searched before: not affected.)",
                words::enumerate(&safe),
                if safe.len() == 1 { "is reached by way" } else { "are reached by way" },
            ));
        }
    }
    if let Ok(object) = process.store().open(lead.passed.path.as_bstr()) {
        let lacks = words::missing_versions(&process.image(lead.chosen).object, &object);
        // One node named as the soname is how some vendors version: it tells nothing about age.
        if !lacks.is_empty() && lead.relation == Relation::Older {
            text.push_str(&format!(
                " The copy taken does not define the {} {}.",
                if lacks.len() == 1 { "version" } else { "versions" },
                words::enumerate(&lacks)
            ));
        }
    }
    text
}

/// Names for which the same element holds a copy that an RPATH beat.
fn not_affected(process: &Process, entry: u32, list: &[Displaced<'_>]) -> Vec<String> {
    let mut out: Vec<String> = Vec::new();
    let shadowed: FxHashSet<&BStr> =
        list.iter().map(|d| process.decisions[d.decision.index()].asked.as_bstr()).collect();
    for d in &process.decisions {
        let by_rpath = d.attempts.iter().any(|a| a.verdict == Verdict::Taken && a.place.rule == By::Rpath);
        let beaten = d.attempts.iter().any(|a| {
            a.verdict == Verdict::NotReached && a.place.rule == By::LibraryPath && a.place.entry == Some(entry)
        });
        let name = words::shown(&d.asked);
        if by_rpath && beaten && !shadowed.contains(d.asked.as_bstr()) && !out.contains(&name) {
            out.push(name);
        }
    }
    out
}

/// Changes of the environment that would let another copy win.
pub fn candidates(process: &Process, lead: &Displaced<'_>, list: &[Displaced<'_>]) -> Vec<Candidate> {
    let mut out = Vec::new();
    match &lead.cause {
        Cause::LibraryPath(entry) => {
            // The next element that holds the name would win in its turn.
            let mut entries = vec![*entry];
            for d in list {
                let attempts = &process.decisions[d.decision.index()].attempts;
                entries.extend(
                    attempts
                        .iter()
                        .filter(|a| a.verdict == Verdict::NotReached && a.place.rule == By::LibraryPath)
                        .filter_map(|a| a.place.entry),
                );
            }
            entries.sort_unstable();
            entries.dedup();
            out.push(Candidate::DropLibraryPath(vec![*entry]));
            if entries.len() > 1 {
                out.push(Candidate::DropLibraryPath(entries));
            }
            out.push(Candidate::UnsetLibraryPath);
        }
        Cause::Preload(source, entry) if source == "LD_PRELOAD" => {
            out.push(Candidate::DropPreload(vec![*entry]));
            out.push(Candidate::UnsetPreload);
        }
        Cause::Preload(..) | Cause::Earlier => {}
    }
    out
}

/// Two different files with one soname, both loaded.
fn two_copies(process: &Process, known: &Knowledge<'_>, told: &FxHashSet<&BStr>) -> Vec<Finding> {
    let mut by_soname: Vec<(&BStr, Vec<ImageId>)> = Vec::new();
    let mut position: FxHashMap<&BStr, usize> = FxHashMap::default();
    for index in 0..process.images.len() {
        let id = ImageId(index as u32);
        if !words::is_loaded_library(process, id) {
            continue;
        }
        let Some(soname) = process.image(id).soname() else { continue };
        let at = *position.entry(soname).or_insert_with(|| {
            by_soname.push((soname, Vec::new()));
            by_soname.len() - 1
        });
        by_soname[at].1.push(id);
    }
    let mut out = Vec::new();
    for (soname, ids) in by_soname {
        let [first, second, ..] = ids.as_slice() else { continue };
        if told.contains(soname) {
            continue;
        }
        // A copy renamed by a wheel's build tool is private by design: nobody else asks for its name.
        let renamed = ids.iter().filter(|id| is_renamed(&words::label(process, **id), &words::shown(soname)));
        let private = renamed.count() + 1 >= ids.len();
        let mut finding = Finding::new(
            TWO_COPIES,
            soname.to_owned(),
            format!("{} files with the soname {} are loaded", number(ids.len()), words::shown(soname)),
        )
        .severity(if private { Severity::Note } else { Severity::Warning })
        .because(format!(
            "a library opened by its path, or found under another name, is not matched with one that is loaded: each copy has its own state. Names are bound to the one that comes first in the scope, here {}.{}",
            words::shown(words::readable(process, process.image(*first).name.as_bstr())),
            drawn_away(process, &ids)
        ))
        .with(Evidence::Image(*first))
        .with(Evidence::Image(*second));
        for id in &ids {
            let place = words::arrival(process, *id);
            let by =
                process.image(*id).loader.map(|l| format!(", for {}", words::label(process, l))).unwrap_or_default();
            finding = finding.with(Evidence::Copy(words::image_copy(process, known, Part::Taken, *id, place + &by)));
        }
        out.push(finding);
    }
    out
}

/// Images whose references are counted for one pair of copies.
const MAX_REFERRERS: usize = 64;

/// What an earlier copy takes from files that came with a later one: a file needs the second copy, and the first stands
/// before it in the scope. Empty when that happens to none.
fn drawn_away(process: &Process, copies: &[ImageId]) -> String {
    let mut referrers = 0;
    for index in 0..process.images.len() {
        let id = ImageId(index as u32);
        let image = process.image(id);
        let Some(own) = copies[1..].iter().find(|c| image.needs.contains(c)) else { continue };
        referrers += 1;
        if referrers > MAX_REFERRERS || !process.is_loaded(id) {
            continue;
        }
        let scope = || image.scope.iter().flat_map(|part| process.scope_list(part)).copied();
        let Some(first) = scope().find(|i| copies.contains(i)).filter(|i| i != own) else { continue };
        let tables = [id, first, *own].map(|i| process.symbols(i));
        let [Some(asker), Some(first_symbols), Some(own_symbols)] = tables else { continue };
        let mut taken = 0usize;
        let mut seen = FxHashSet::default();
        for r in asker.references.iter(0..asker.references.symbols()).filter(|r| seen.insert(r.symbol)) {
            let Some((name, version)) = process.symbol_name(id, r.symbol) else { continue };
            let name = crate::elf::symbols::Name::new(name);
            let version = version.map(|v| v.name.as_bstr());
            let both = [first_symbols, own_symbols];
            taken += usize::from(both.iter().all(|s| super::symbols::defines(&s.table, &name, version)));
        }
        if taken > 0 {
            return format!(
                " {} came with the one of {} and takes {} from the other.",
                words::label(process, id),
                words::shown(words::readable(process, process.image(*own).name.as_bstr())),
                words::count(taken, "symbol", "symbols")
            );
        }
    }
    String::new()
}

/// True for a name like `libcudart-e409450e.so.11.0` with the soname `libcudart.so.11.0`: a hash in the stem.
fn is_renamed(name: &str, soname: &str) -> bool {
    let stem = soname.split(".so").next().unwrap_or(soname);
    let Some(rest) = name.strip_prefix(stem).and_then(|rest| rest.strip_prefix(['-', '.'])) else { return false };
    let hash = rest.split(".so").next().unwrap_or(rest);
    hash.len() >= 6 && hash.bytes().all(|b| b.is_ascii_hexdigit())
}

fn number(n: usize) -> String {
    match n {
        2 => "two".into(),
        3 => "three".into(),
        n => n.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_in_the_stem_makes_a_copy_private() {
        assert!(is_renamed("libcudart-e409450e.so.11.0", "libcudart.so.11.0"));
        assert!(is_renamed("libcudart.3eda8113.so.13", "libcudart.so.13"));
        assert!(!is_renamed("libcudart.so.11.0", "libcudart.so.11.0"));
        assert!(!is_renamed("libnccl.so.2.18.5", "libnccl.so.2"));
        assert!(!is_renamed("libfoo-extra.so.1", "libfoo.so.1"));
    }
}
