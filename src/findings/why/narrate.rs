//! The stories that recorded decisions tell: who asked, which file answered, what became of every other copy.

use bstr::{BStr, BString, ByteSlice};
use rustc_hash::{FxHashMap, FxHashSet};

use super::{Asker, CopyFacts, Fate, Knowledge, Near, Reason, Run, Story, Teller};
use crate::discover::copies::{Copy, Origin, Relation};
use crate::ld::{Attempt, Decision, DecisionId, Family, How, Identity, ImageId, List, Outcome, Process, Rule, Verdict};
use crate::system::{FileKey, file_name};

/// Most names of one file that are looked up.
const MAX_NAMES: usize = 16;

/// Run and decision of requests.
type Requests = Vec<(usize, DecisionId)>;

/// The requests of one story in one group of runs.
pub(super) struct Member {
    /// Run and decision, the one that decides first.
    pub(super) requests: Requests,
}

/// Reads stories out of recorded decisions.
pub(super) struct Narrator<'a> {
    pub(super) knowledge: &'a Knowledge<'a>,
    pub(super) by_key: FxHashMap<FileKey, usize>,
}

/// What a request came to: the file or the text of the failure.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Answer {
    File(FileKey, BString),
    Failure(BString),
}

/// What a decision came to.
pub(super) fn answer(process: &Process, decision: &Decision) -> Answer {
    match decision.chosen {
        Some(id) => {
            let image = process.image(id);
            Answer::File(image.object.meta.key, image.name.clone())
        }
        None => Answer::Failure(decision.failure.as_ref().map(|f| f.dlerror()).unwrap_or_default()),
    }
}

impl Answer {
    /// True when the same file answers, or the same failure.
    pub(super) fn same(&self, other: &Answer) -> bool {
        match (self, other) {
            (Answer::File(a, _), Answer::File(b, _)) => a == b,
            (Answer::Failure(a), Answer::Failure(b)) => a == b,
            _ => false,
        }
    }
}

fn reason_of(process: &Process, rule: Rule, attempt: &Attempt, written: BString) -> Reason {
    let owner = attempt.place.owner.map(|o| file_name(process.image(o).name.as_bstr()).to_owned());
    Reason { rule, owner, entry: attempt.place.entry, written }
}

/// How a decision reached its file.
fn reason(process: &Process, decision: &Decision) -> Reason {
    let Some(via) = &decision.via else {
        return Reason { rule: Rule::Path, owner: None, entry: None, written: BString::default() };
    };
    // A search that came upon a file which is loaded: the attempt knows the place.
    if via.place.rule == Rule::AlreadyLoaded
        && via.identity == Some(Identity::Inode)
        && let Some(taken) = decision.attempts.iter().find(|a| a.verdict == Verdict::Taken)
    {
        return reason_of(process, taken.place.rule, taken, written(process, taken));
    }
    let owner = via.place.owner.map(|o| file_name(process.image(o).name.as_bstr()).to_owned());
    let written = match decision.how {
        How::Preload => process.steps.get(decision.step.index()).map(|s| s.note.as_str().into()).unwrap_or_default(),
        _ => via.text.clone(),
    };
    let rule = if decision.how == How::Preload { Rule::Preload } else { via.place.rule };
    Reason { rule, owner, entry: via.place.entry, written }
}

/// The element of the list in which an attempt stands, as written there.
fn written(process: &Process, attempt: &Attempt) -> BString {
    let list = match (attempt.place.rule, attempt.place.owner) {
        (Rule::Rpath, Some(owner)) => process.image(owner).facts().and_then(|f| f.rpath.as_ref()),
        (Rule::Runpath, Some(owner)) => process.image(owner).facts().and_then(|f| f.runpath.as_ref()),
        _ => None,
    };
    let family = process.dialect().family;
    let element = list
        .zip(attempt.place.entry)
        .and_then(|(list, n)| List::RunPath.elements(family, list.as_bstr()).nth(n as usize));
    element.map(BString::from).unwrap_or_default()
}

impl<'a> Narrator<'a> {
    /// A narrator who knows the copies.
    pub(super) fn new(knowledge: &'a Knowledge<'a>) -> Narrator<'a> {
        let copies = knowledge.copies.iter().enumerate();
        let by_key = copies.filter_map(|(i, c)| c.key.map(|key| (key, i))).collect();
        Narrator { knowledge, by_key }
    }
}

impl Narrator<'_> {
    pub(super) fn name(&self) -> &BStr {
        self.knowledge.name.text.as_bstr()
    }

    fn asks_for_name(&self, asked: &BStr) -> bool {
        asked == self.name()
            || self.knowledge.given == Some(asked)
            || (asked.contains(&b'/') && file_name(asked) == self.name())
    }

    /// The decisions of a run that answer the name.
    pub(super) fn requests(&self, run: &Run) -> Vec<DecisionId> {
        let counts = |d: &Decision| match &run.by_literal {
            Some(literal) => d.step == literal.step && d.how == How::Dlopen,
            None => d.how != How::Exec && self.asks_for_name(d.asked.as_bstr()),
        };
        let all = run.process.decisions.iter().enumerate().skip(run.from);
        all.filter(|(_, d)| counts(d)).map(|(i, _)| DecisionId(i as u32)).collect()
    }

    pub(super) fn stories(&self, runs: &[Run]) -> (Vec<Story>, Vec<Vec<Member>>) {
        let mut stories: Vec<Story> = Vec::new();
        let mut members: Vec<Vec<Member>> = Vec::new();
        let mut groups: Vec<usize> = runs.iter().map(|r| r.group).collect();
        groups.dedup();
        let mut done = FxHashSet::default();
        for group in groups {
            if !done.insert(group) {
                continue;
            }
            let mut found: Vec<(Answer, Requests)> = Vec::new();
            for (index, run) in runs.iter().enumerate().filter(|(_, r)| r.group == group) {
                for id in self.requests(run) {
                    let answer = answer(&run.process, &run.process.decisions[id.index()]);
                    match found.iter_mut().find(|(a, _)| a.same(&answer)) {
                        Some((_, requests)) => requests.push((index, id)),
                        None => found.push((answer, vec![(index, id)])),
                    }
                }
            }
            for (answer, mut requests) in found {
                // The request whose search decided is told first.
                let searched = |(run, id): &(usize, DecisionId)| {
                    let decision = &runs[*run].process.decisions[id.index()];
                    !is_answered_by_loaded(decision)
                };
                if let Some(first) = requests.iter().position(searched) {
                    requests[..=first].rotate_right(1);
                }
                let story = self.story(runs, &answer, &requests);
                match stories.iter().position(|s| same_story(s, &story)) {
                    Some(index) => {
                        stories[index].tellers.extend(story.tellers);
                        members[index].push(Member { requests });
                    }
                    None => {
                        stories.push(story);
                        members.push(vec![Member { requests }]);
                    }
                }
            }
        }
        (stories, members)
    }

    fn story(&self, runs: &[Run], answer: &Answer, requests: &[(usize, DecisionId)]) -> Story {
        let (first_run, first) = requests[0];
        let run = &runs[first_run];
        let mut fates = Vec::new();
        for (index, copy) in self.knowledge.copies.iter().enumerate() {
            let is_answer = matches!(answer, Answer::File(key, _) if copy.key == Some(*key));
            if copy.relation.answers() || is_answer {
                fates.push((index, self.fate(runs, requests, answer, index)));
            }
        }
        let mut askers: Vec<Asker> = Vec::new();
        for (run, id) in requests {
            let asker = self.asker(&runs[*run], *id);
            if !askers.contains(&asker) {
                askers.push(asker);
            }
        }
        let (copy, path, failure) = match answer {
            Answer::File(key, path) => (self.by_key.get(key).copied(), Some(path.clone()), None),
            Answer::Failure(text) => (None, None, Some(text.clone())),
        };
        let searched = match failure {
            Some(_) => searched(&run.process, &run.process.decisions[first.index()]),
            None => Vec::new(),
        };
        Story {
            tellers: vec![Teller {
                title: run.title.clone(),
                circumstances: run.circumstances.clone(),
                supposed: run.supposed,
                failing: failing(run, requests),
                askers,
                searched,
                requests: requests.to_vec(),
            }],
            copy,
            path,
            failure,
            fates,
        }
    }

    fn asker(&self, run: &Run, id: DecisionId) -> Asker {
        let process = &run.process;
        let decision = &process.decisions[id.index()];
        let image = decision.needed_by.map(|i| process.image(i));
        let note = match decision.how {
            How::Dlopen | How::Preload => process.steps.get(decision.step.index()).map(|s| s.note.clone()),
            _ => None,
        };
        Asker {
            how: decision.how,
            image: image.map(|i| i.name.clone()).unwrap_or_default(),
            owner: image.and_then(|i| (self.knowledge.owner)(i.object.real_path())),
            literal: run.by_literal.as_ref().map(|l| (l.text.clone(), l.kind)),
            asked: (decision.asked != self.name()).then(|| decision.asked.clone()),
            note: if run.by_literal.is_some() { String::new() } else { note.unwrap_or_default() },
            answered_by_loaded: is_answered_by_loaded(decision),
        }
    }

    fn fate(&self, runs: &[Run], requests: &[(usize, DecisionId)], answer: &Answer, index: usize) -> Fate {
        let copy = &self.knowledge.copies[index];
        let (first_run, first) = requests[0];
        let process = &runs[first_run].process;
        if let Answer::File(key, _) = answer
            && copy.key == Some(*key)
        {
            let decision = &process.decisions[first.index()];
            if !is_answered_by_loaded(decision) {
                return Fate::Taken(reason(process, decision));
            }
            if let Some(id) = decision.chosen {
                let loading = &process.decisions[process.image(id).decision.index()];
                let step = process.steps.get(loading.step.index()).map(|s| s.note.clone()).unwrap_or_default();
                return Fate::Earlier { asked: loading.asked.clone(), reason: reason(process, loading), step };
            }
        }
        for (run, id) in requests {
            let process = &runs[*run].process;
            let decision = &process.decisions[id.index()];
            let mut unreached_before = false;
            if let Some((path, place)) = &decision.refused
                && process.store().stat(path.as_bstr()).is_ok_and(|m| Some(m.key) == copy.key)
            {
                let attempt = Attempt { path: path.clone(), place: *place, verdict: Verdict::Taken };
                let why = decision.failure.as_ref().map(|f| f.text.to_string()).unwrap_or_default();
                return Fate::Ends {
                    why,
                    reason: reason_of(process, place.rule, &attempt, written(process, &attempt)),
                };
            }
            for attempt in &decision.attempts {
                if !self.is_copy(process, copy, attempt) {
                    unreached_before |= attempt.verdict == Verdict::NotReached;
                    continue;
                }
                let reason = reason_of(process, attempt.place.rule, attempt, written(process, attempt));
                return match &attempt.verdict {
                    Verdict::NotReached if is_answered_by_loaded(decision) && !unreached_before => Fate::Displaced {
                        asker: decision
                            .needed_by
                            .map(|i| file_name(process.image(i).name.as_bstr()).to_owned())
                            .unwrap_or_default(),
                        reason,
                    },
                    Verdict::NotReached | Verdict::Taken => Fate::Later(reason),
                    Verdict::Fatal(text) => Fate::Ends { why: text.clone(), reason },
                    other => Fate::Passed { why: passed_words(other), reason },
                };
            }
        }
        let loaded = process.images.iter().find(|i| i.unloaded_by.is_none() && Some(i.object.meta.key) == copy.key);
        if let Some(image) = loaded {
            return Fate::LoadedToo { asked: process.decisions[image.decision.index()].asked.clone() };
        }
        match &self.knowledge.unusable.get(index) {
            Some(Some(why)) => Fate::Unusable(why.clone()),
            _ if has_ended(&process.decisions[first.index()]) => {
                Fate::Never("not tried: the search ends at the unusable file".into())
            }
            _ => Fate::Never(self.why_never(process, copy)),
        }
    }

    /// Why no list of a process led to a copy.
    fn why_never(&self, process: &Process, copy: &Copy) -> String {
        if copy.key.is_none() {
            return "a link that leads nowhere".into();
        }
        if matches!(copy.relation, Relation::Longer | Relation::Soname) {
            return "has another file name: answers only once it is loaded by that".into();
        }
        let glibc = process.dialect().family == Family::Glibc;
        for origin in &copy.origins {
            match origin {
                Origin::LibraryPath(n) if process.host().secure => {
                    return format!("LD_LIBRARY_PATH[{n}] names its directory, but is ignored in secure mode");
                }
                Origin::Cache => {
                    return "a line of ld.so.cache names it, but the loader takes another line or none".into();
                }
                Origin::ImagePath { .. } => {
                    return format!("{origin} names its directory, but does not count for this request");
                }
                Origin::Config if glibc && !copy.origins.contains(&Origin::Default) => {
                    return "ld.so.conf names its directory, but ld.so.cache has no line for it (ldconfig adds one)"
                        .into();
                }
                _ => {}
            }
        }
        "in no search list of this process".into()
    }

    fn is_copy(&self, process: &Process, copy: &Copy, attempt: &Attempt) -> bool {
        match copy.key {
            Some(key) => process.store().stat(attempt.path.as_bstr()).is_ok_and(|m| m.key == key),
            None => copy.names.contains(&attempt.path),
        }
    }

    pub(super) fn copies(&self) -> Vec<CopyFacts> {
        let copies = self.knowledge.copies.iter().zip(self.knowledge.unusable);
        copies
            .map(|(copy, unusable)| CopyFacts {
                path: copy.path.clone(),
                names: copy.names.clone(),
                real_path: copy.real_path().to_owned(),
                soname: copy.soname().map(|s| s.to_owned()),
                relation: copy.relation,
                owner: std::iter::once(copy.real_path())
                    .chain(copy.names.iter().map(|n| n.as_bstr()))
                    .take(MAX_NAMES)
                    .find_map(|path| (self.knowledge.owner)(path)),
                version: copy.version_in_name(),
                unusable: unusable.clone(),
                origins: copy.origins.iter().map(|o| o.to_string()).collect(),
            })
            .collect()
    }

    pub(super) fn near(&self, runs: &[Run]) -> Vec<Near> {
        let near = self.knowledge.copies.iter().enumerate().filter(|(_, c)| !c.relation.answers());
        near.map(|(index, copy)| {
            let mut loaded_as: Vec<(String, BString)> = Vec::new();
            for run in runs {
                let loaded = run.process.images.iter().filter(|i| i.unloaded_by.is_none());
                for image in loaded.filter(|i| copy.key.is_some() && i.key == copy.key) {
                    let asked = run.process.decisions[image.decision.index()].asked.clone();
                    if loaded_as.iter().all(|(title, name)| (title, name) != (&run.title, &asked)) {
                        loaded_as.push((run.title.clone(), asked));
                    }
                }
            }
            Near { copy: index, loaded_as }
        })
        .collect()
    }
}

/// True when a loaded image answered by its name or SONAME, without a search.
fn is_answered_by_loaded(decision: &Decision) -> bool {
    decision.via.as_ref().is_some_and(|v| v.place.rule == Rule::AlreadyLoaded && v.identity != Some(Identity::Inode))
}

/// The first step of a process that fails and that is not one of these requests alone.
fn failing(run: &Run, requests: &[(usize, DecisionId)]) -> Option<(BString, BString)> {
    let process = &run.process;
    let is_request = |name: &BString| {
        requests.iter().any(|(_, id)| {
            let decision = process.decisions.get(id.index());
            decision.is_some_and(|d| d.how == How::Dlopen && d.asked == *name)
        })
    };
    let failed = process.steps.iter().filter(|s| s.outcome == Outcome::Failed && !s.optional && !is_request(&s.name));
    failed.map(|s| (s.name.clone(), s.error.clone().unwrap_or_default())).next()
}

/// True when a candidate ended the whole search.
fn has_ended(decision: &Decision) -> bool {
    let fatal = |a: &Attempt| matches!(a.verdict, Verdict::Fatal(_));
    decision.chosen.is_none() && (decision.refused.is_some() || decision.attempts.iter().any(fatal))
}

/// True when two stories tell the same: the same answer, by the same rule when it was searched for, and the same of
/// every other copy. That a copy is loaded already in one of them makes no difference when it was found by the same rule.
fn same_story(a: &Story, b: &Story) -> bool {
    let same_fate = |(i, x): &(usize, Fate), (j, y): &(usize, Fate)| {
        i == j
            && (x == y
                || match (x, y) {
                    (Fate::Taken(r), Fate::Earlier { reason, .. }) | (Fate::Earlier { reason, .. }, Fate::Taken(r)) => {
                        r == reason
                    }
                    // What a process does not search for itself tells less of the places than one that does.
                    (Fate::Later(_), Fate::Later(_)) => true,
                    _ => false,
                })
    };
    (a.copy, &a.path, &a.failure) == (b.copy, &b.path, &b.failure)
        && a.fates.len() == b.fates.len()
        && a.fates.iter().zip(&b.fates).all(|(x, y)| same_fate(x, y))
}

fn passed_words(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Skipped(errno) | Verdict::ListStopped(errno) => errno.text().to_lowercase(),
        Verdict::WrongClass => "wrong ELF class".into(),
        Verdict::WrongMachine => "built for another machine".into(),
        Verdict::NeedsNewerKernel => "asks for a newer kernel".into(),
        Verdict::NotSetUserId => "has no set-user-ID bit".into(),
        Verdict::Forbidden => "the requester forbids the default directories".into(),
        Verdict::Fatal(text) => text.clone(),
        Verdict::Taken | Verdict::NotReached | Verdict::DirectoryMissing => String::new(),
    }
}

/// The lists that a failed search went through, in order.
fn searched(process: &Process, decision: &Decision) -> Vec<String> {
    let mut out: Vec<(Rule, Option<ImageId>, usize)> = Vec::new();
    for attempt in &decision.attempts {
        let (rule, owner) = (attempt.place.rule, attempt.place.owner);
        match out.iter_mut().find(|(r, o, _)| (*r, *o) == (rule, owner)) {
            Some((_, _, n)) => *n += 1,
            None => out.push((rule, owner, 1)),
        }
    }
    let asked_by_path = decision.asked.contains(&b'/');
    let family = process.dialect().family;
    let mut words: Vec<String> = out
        .into_iter()
        .filter(|(rule, ..)| !matches!(rule, Rule::Cache))
        .map(|(rule, owner, _)| {
            let of = owner.map(|o| format!(" of {}", file_name(process.image(o).name.as_bstr()))).unwrap_or_default();
            let entries =
                |list: Option<&BString>| match list.map(|l| (List::RunPath.elements(family, l.as_bstr()).count(), l)) {
                    Some((1..=3, list)) => format!(" ({list})"),
                    Some((n, _)) => format!(" ({n} directories)"),
                    None => String::new(),
                };
            let facts = owner.and_then(|o| process.image(o).facts());
            match rule {
                Rule::Rpath => format!("RPATH{of}{}", entries(facts.and_then(|f| f.rpath.as_ref()))),
                Rule::Runpath => format!("RUNPATH{of}{}", entries(facts.and_then(|f| f.runpath.as_ref()))),
                Rule::Default => "the default directories".to_owned(),
                Rule::Path => "its path".to_owned(),
                other => other.name().to_owned(),
            }
        })
        .collect();
    if !asked_by_path && family == Family::Glibc && decision.via.is_none() {
        let at = words.iter().position(|w| w == "the default directories").unwrap_or(words.len());
        words.insert(at, "ld.so.cache".to_owned());
    }
    words
}
