//! The story of one library name: who asks for it, what becomes of each copy, and which single change of the environment
//! would let another copy win.
//!
//! Everything told here is read from recorded decisions of simulated processes ([`Run`]); nothing is searched again.
//! What a change does is found out by simulating the same processes with the change made, through a closure that the
//! caller gives.

use std::fmt;

use bstr::{BStr, BString, ByteSlice};
use rayon::prelude::*;
use rustc_hash::{FxHashMap, FxHashSet};

use super::Owner;
use crate::discover::copies::{Copy, Literal, Name, Origin, Relation, directories_of};
use crate::ld::{
    Attempt, Decision, DecisionId, Family, How, Identity, ImageId, Outcome, Process, Role, Rule, StepId, StepKind,
    Verdict,
};
use crate::system::{Environment, FileKey, Host, absolute, file_name};

/// Most names of one file that are looked up.
const MAX_NAMES: usize = 16;
/// Most copies for which changes are tried.
const MAX_TRIED_COPIES: usize = 12;

/// A simulated process in which the name is, or would be, asked for.
pub struct Run {
    /// Runs with the same number are one process up to the last step.
    pub group: usize,
    /// Whose process it is: `torch 2.4.0`.
    pub title: String,
    /// What is special about it, in words; may be empty.
    pub circumstances: String,
    /// True when nobody is known to ask: the request is supposed, to tell what it would come to.
    pub supposed: bool,
    /// The process.
    pub process: Process,
    /// Decisions before this index are somebody else's and do not count.
    pub from: usize,
    /// Set when the last step is a `dlopen` of the name that a text in the caller's file makes likely. Only that
    /// request counts then.
    pub by_literal: Option<ByLiteral>,
}

/// A `dlopen` that a file can make.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ByLiteral {
    /// The step that simulates it.
    pub step: StepId,
    /// The text in the file.
    pub text: BString,
    /// How the text asks for the name.
    pub kind: Literal,
}

/// A place in the search order, told without ids.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reason {
    /// The rule.
    pub rule: Rule,
    /// File name of the image whose RPATH or RUNPATH it is.
    pub owner: Option<BString>,
    /// Element of the list as written, from 0.
    pub entry: Option<u32>,
    /// The element as written, the cache line, or the preload entry's source.
    pub written: BString,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entry = self.entry.map(|n| format!("[{n}]")).unwrap_or_default();
        let list = |f: &mut fmt::Formatter<'_>, tag: &str| {
            write!(f, "{tag}{entry}")?;
            if let Some(owner) = &self.owner {
                write!(f, " of {owner}")?;
            }
            if self.written.is_empty() { write!(f, " (an empty element)") } else { write!(f, " ({})", self.written) }
        };
        match self.rule {
            Rule::Exec => f.write_str("the program itself"),
            Rule::Path => f.write_str("asked for by its path"),
            Rule::Rpath => list(f, "RPATH"),
            Rule::Runpath => list(f, "RUNPATH"),
            Rule::LibraryPath => write!(f, "LD_LIBRARY_PATH{entry}"),
            Rule::Cache => f.write_str("ld.so.cache"),
            Rule::Default => f.write_str("default directory"),
            Rule::Preload => write!(f, "{}", self.written),
            Rule::AlreadyLoaded => f.write_str("loaded already"),
            Rule::MuslPath => write!(f, "musl's path{entry}"),
        }
    }
}

/// What becomes of one copy in one story.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fate {
    /// The search finds it.
    Taken(Reason),
    /// It answers without a search, because it is loaded already.
    Earlier {
        /// The name by which it was loaded.
        asked: BString,
        /// How it was found then.
        reason: Reason,
        /// Whose request loaded it, in words; may be empty.
        step: String,
    },
    /// A later place of the search order holds it.
    Later(Reason),
    /// This requester's own search would take it, but another copy is loaded already.
    Displaced {
        /// File name of the requester.
        asker: BString,
        /// Where its search would find it.
        reason: Reason,
    },
    /// The search came across it and went on.
    Passed {
        /// Why, in words.
        why: String,
        /// Where it stood.
        reason: Reason,
    },
    /// The search came across it and ended there: nothing later is tried.
    Ends {
        /// The loader's text.
        why: String,
        /// Where it stood.
        reason: Reason,
    },
    /// It is loaded too, for another request, and does not answer this one.
    LoadedToo {
        /// The name by which it was loaded.
        asked: BString,
    },
    /// In no list, and no list could make the loader use it.
    Unusable(String),
    /// In no search list that counts here; why, in words.
    Never(String),
}

impl Fate {
    /// The rank from which on a copy was not come across.
    const NEVER: u8 = 6;

    /// The order in which copies are told of: what answers first, then what was come across.
    pub fn rank(&self) -> u8 {
        match self {
            Fate::Taken(_) | Fate::Earlier { .. } => 0,
            Fate::Ends { .. } => 1,
            Fate::Passed { .. } => 2,
            Fate::Displaced { .. } => 3,
            Fate::Later(_) => 4,
            Fate::LoadedToo { .. } => 5,
            Fate::Never(_) => Fate::NEVER,
            Fate::Unusable(_) => 7,
        }
    }

    /// One word for it.
    pub fn name(&self) -> &'static str {
        match self {
            Fate::Taken(_) => "taken",
            Fate::Earlier { .. } => "loaded-earlier",
            Fate::Later(_) => "later",
            Fate::Displaced { .. } => "displaced",
            Fate::Passed { .. } => "passed",
            Fate::Ends { .. } => "ends-the-load",
            Fate::LoadedToo { .. } => "loaded-too",
            Fate::Unusable(_) => "unusable",
            Fate::Never(_) => "never",
        }
    }
}

/// Who asks for the name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Asker {
    /// NEEDED, dlopen, ...
    pub how: How,
    /// The image: its path as the loader has it. Empty when the request has no requester.
    pub image: BString,
    /// The package that owns it.
    pub owner: Option<Owner>,
    /// The text in its read-only data, when that is how the request is known.
    pub literal: Option<(BString, Literal)>,
    /// What the name was asked as, when that is not the name itself.
    pub asked: Option<BString>,
    /// Who makes the step and why, in words; may be empty.
    pub note: String,
    /// True when a loaded copy answers, without a search.
    pub answered_by_loaded: bool,
}

/// One process that a story is about.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Teller {
    /// `torch 2.4.0`.
    pub title: String,
    /// What is special about the process; may be empty.
    pub circumstances: String,
    /// True when nobody is known to ask: the request is supposed.
    pub supposed: bool,
    /// Who asks in it, in the order of the requests.
    pub askers: Vec<Asker>,
    /// The lists that were searched for the first of them, in order, when it fails.
    pub searched: Vec<String>,
    /// Where the requests are recorded: index of the run and the decision; the one that decides comes first.
    pub requests: Vec<(usize, DecisionId)>,
}

/// One answer that requests of the name get, in one or several processes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Story {
    /// The processes in which it is so.
    pub tellers: Vec<Teller>,
    /// The copy that answers; `None` when the request fails.
    pub copy: Option<usize>,
    /// The file that answers, as the loader names it.
    pub path: Option<BString>,
    /// The loader's text when the request fails.
    pub failure: Option<BString>,
    /// What becomes of each copy that could answer: index of the copy, fate.
    pub fates: Vec<(usize, Fate)>,
}

/// One change of the environment.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Change {
    /// A directory in front of LD_LIBRARY_PATH.
    PrependLibraryPath(BString),
    /// LD_LIBRARY_PATH without one element, counted from 0.
    DropLibraryPath(u32),
    /// No LD_LIBRARY_PATH.
    UnsetLibraryPath,
    /// A file in front of LD_PRELOAD.
    Preload(BString),
    /// No LD_PRELOAD.
    UnsetPreload,
    /// Another module is imported before.
    ImportFirst(String),
}

/// Elements of LD_LIBRARY_PATH as a loader of this family splits it.
pub fn library_path_elements(value: &BStr, family: Family) -> Vec<&BStr> {
    let separator = |b: &u8| match family {
        Family::Glibc => matches!(b, b':' | b';'),
        Family::Musl => matches!(b, b':' | b'\n'),
    };
    if value.is_empty() { Vec::new() } else { value.split(separator).map(|e| e.as_bstr()).collect() }
}

impl Change {
    /// The environment with the change made. `None` when it cannot be written down (a separator in the path), changes
    /// nothing, or is no change of the environment.
    pub fn apply(&self, env: &Environment, family: Family) -> Option<Environment> {
        let (name, value) = self.assignment(env, family)?;
        if env.get(name).map(|v| v.to_owned()) == value {
            return None;
        }
        let mut changed = env.clone();
        match value {
            Some(value) => changed.set(name, value),
            None => changed.unset(name),
        }
        Some(changed)
    }

    /// The host with the change made; as [`Change::apply`].
    pub fn on_host(&self, host: &Host, family: Family) -> Option<Host> {
        Some(Host { env: self.apply(&host.env, family)?, ..host.clone() })
    }

    /// The variable that changes and its new value (`None`: it is unset).
    pub fn assignment(&self, env: &Environment, family: Family) -> Option<(&'static str, Option<BString>)> {
        const PATH: &str = "LD_LIBRARY_PATH";
        const PRELOAD: &str = "LD_PRELOAD";
        let in_front = |new: &BString, name: &str, separators: &[u8]| -> Option<BString> {
            // `$` begins a token there.
            if new.is_empty() || new.iter().any(|b| separators.contains(b) || *b == b'$') {
                return None;
            }
            Some(match env.get(name).filter(|v| !v.is_empty()) {
                Some(old) => [new.as_bytes(), b":", old.as_bytes()].concat().into(),
                None => new.clone(),
            })
        };
        match self {
            Change::PrependLibraryPath(directory) => {
                let separators: &[u8] = if family == Family::Glibc { b":;" } else { b":\n" };
                Some((PATH, Some(in_front(directory, PATH, separators)?)))
            }
            Change::DropLibraryPath(index) => {
                let value = env.get(PATH)?;
                let all = library_path_elements(value, family);
                let left: Vec<&BStr> =
                    all.iter().enumerate().filter(|(n, _)| *n != *index as usize).map(|(_, e)| *e).collect();
                if left.len() == all.len() {
                    return None;
                }
                // One empty element left is the current directory; an empty value would be no list at all.
                let value = match left[..] {
                    [] => None,
                    [one] if one.is_empty() => Some(":".into()),
                    _ => Some(bstr::join(":", left).into()),
                };
                Some((PATH, value))
            }
            Change::UnsetLibraryPath => env.get(PATH).map(|_| (PATH, None)),
            Change::Preload(file) => Some((PRELOAD, Some(in_front(file, PRELOAD, b": \t\n\r\x0b\x0c")?))),
            Change::UnsetPreload => env.get(PRELOAD).map(|_| (PRELOAD, None)),
            Change::ImportFirst(_) => None,
        }
    }

    /// The name used in reports.
    pub fn name(&self) -> &'static str {
        match self {
            Change::PrependLibraryPath(_) => "prepend-library-path",
            Change::DropLibraryPath(_) => "drop-library-path",
            Change::UnsetLibraryPath => "unset-library-path",
            Change::Preload(_) => "preload",
            Change::UnsetPreload => "unset-preload",
            Change::ImportFirst(_) => "import-first",
        }
    }
}

/// What a change does to some of the processes of a story.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Effect {
    /// The story.
    pub story: usize,
    /// The processes among its tellers, by index, for which this holds.
    pub tellers: Vec<usize>,
    /// The copy that answers then; `None` when the request fails, or the file is no known copy.
    pub copy: Option<usize>,
    /// The loader's text when the request fails then.
    pub failure: Option<BString>,
    /// True when the name is not asked for any more.
    pub unasked: bool,
    /// True when another copy answers than before.
    pub changes_answer: bool,
    /// Names of other libraries that are other files then.
    pub replaced: Vec<BString>,
    /// Names of other libraries that come in, such as what the copy needs.
    pub added: Vec<BString>,
    /// Names of other libraries that are not loaded any more.
    pub removed: Vec<BString>,
    /// Steps that fail then and did not fail before, with the loader's text.
    pub failures: Vec<(BString, BString)>,
    /// Steps that failed before and do not fail then.
    pub mended: Vec<BString>,
}

/// A change and what it does.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tried {
    /// The change.
    pub change: Change,
    /// The variable and its new value, when it is a change of the environment.
    pub assignment: Option<(String, Option<BString>)>,
    /// The copy for whose sake it was tried.
    pub copy: Option<usize>,
    /// What it does, for the stories in which it does something.
    pub effects: Vec<Effect>,
}

impl Tried {
    /// True when another copy answers somewhere.
    pub fn changes_an_answer(&self) -> bool {
        self.effects.iter().any(|e| e.changes_answer)
    }
}

/// Why LD_LIBRARY_PATH, or any change of the environment at all, does not let a copy win in a story.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stuck {
    /// The copy.
    pub copy: usize,
    /// The story.
    pub story: usize,
    /// True when LD_PRELOAD does it.
    pub preload_helps: bool,
    /// The reason, in words.
    pub why: String,
}

/// A near miss: a file that the name does not reach.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Near {
    /// The copy.
    pub copy: usize,
    /// Processes that load it, with the name they ask for.
    pub loaded_as: Vec<(String, BString)>,
}

/// A near name that files ask for.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NearAsked {
    /// The name.
    pub name: BString,
    /// Files with a NEEDED of it.
    pub needed_by: Vec<BString>,
    /// Files that import `dlopen` and have the name in their read-only data.
    pub opened_by: Vec<BString>,
}

/// A copy, as far as a story tells of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CopyFacts {
    /// The name that is shown.
    pub path: BString,
    /// Every path found that leads to it.
    pub names: Vec<BString>,
    /// The path with links resolved.
    pub real_path: BString,
    /// `DT_SONAME`.
    pub soname: Option<BString>,
    /// How it relates to the name.
    pub relation: Relation,
    /// The package that owns it.
    pub owner: Option<Owner>,
    /// Version that the file name tells.
    pub version: Option<BString>,
    /// Why the loader cannot use it, when it cannot.
    pub unusable: Option<String>,
    /// Where its directories were named.
    pub origins: Vec<String>,
}

/// All that is to be told of a name.
#[derive(Clone, Debug, Default)]
pub struct Why {
    /// The name.
    pub name: BString,
    /// The path that the user gave in place of a name.
    pub given: Option<BString>,
    /// The copies. Numbers in reports are indexes into this, from 1 where people read them.
    pub copies: Vec<CopyFacts>,
    /// The answers, in the order of the processes.
    pub stories: Vec<Story>,
    /// Changes that let another copy answer somewhere.
    pub changes: Vec<Tried>,
    /// Copies that LD_LIBRARY_PATH does not bring in.
    pub stuck: Vec<Stuck>,
    /// Near misses.
    pub near: Vec<Near>,
    /// Near names that are asked for.
    pub near_asked: Vec<NearAsked>,
    /// How many files were looked at for askers.
    pub files_looked_at: usize,
    /// What was left out, in words.
    pub notes: Vec<String>,
}

/// What the caller knows beyond the runs.
pub struct Knowledge<'a> {
    /// The name.
    pub name: &'a Name,
    /// The path that the user gave in place of a name.
    pub given: Option<&'a BStr>,
    /// The copies on the box.
    pub copies: &'a [Copy],
    /// For each copy: why the loader cannot use it, when it cannot.
    pub unusable: &'a [Option<String>],
    /// The package that owns a file.
    pub owner: &'a (dyn Fn(&BStr) -> Option<Owner> + Sync),
    /// Changes to try besides those that the copies suggest.
    pub further_changes: &'a [Change],
}

/// Simulates the same runs with a change made, in the same order; `None` for a run that the change does not touch. `None`
/// altogether when the change cannot be made.
pub type WhatIf<'a> = dyn Fn(&Change) -> Option<Vec<Option<Run>>> + Sync + 'a;

/// Tells the story.
pub fn tell(knowledge: &Knowledge<'_>, runs: &[Run], what_if: &WhatIf<'_>) -> Why {
    let teller = Narrator { knowledge, by_key: keys(knowledge.copies) };
    let (stories, members) = teller.stories(runs);
    let (changes, stuck) = teller.changes(runs, &stories, &members, what_if);
    let mut why = Why {
        name: knowledge.name.text.clone(),
        given: knowledge.given.map(|g| g.to_owned()),
        copies: teller.copies(),
        near: teller.near(runs),
        stories,
        changes,
        stuck,
        near_asked: Vec::new(),
        files_looked_at: 0,
        notes: Vec::new(),
    };
    why.renumber();
    why
}

impl Why {
    /// Numbers the copies in the order in which they are told of.
    fn renumber(&mut self) {
        let mut order: Vec<usize> = Vec::new();
        for story in &mut self.stories {
            story.fates.sort_by_key(|(copy, fate)| (fate.rank(), *copy));
            order.extend(story.fates.iter().filter(|(_, fate)| fate.rank() < Fate::NEVER).map(|(copy, _)| *copy));
        }
        order.extend(0..self.copies.len());
        let mut seen = FxHashSet::default();
        order.retain(|copy| seen.insert(*copy));
        let mut new = vec![0; self.copies.len()];
        for (number, copy) in order.iter().enumerate() {
            new[*copy] = number;
        }
        let map = |copy: &mut usize| *copy = new[*copy];
        self.copies = order.iter().map(|copy| self.copies[*copy].clone()).collect();
        for story in &mut self.stories {
            story.copy.iter_mut().for_each(map);
            story.fates.iter_mut().for_each(|(copy, _)| map(copy));
            story.fates.sort_by_key(|(copy, fate)| (fate.rank(), *copy));
        }
        for tried in &mut self.changes {
            tried.copy.iter_mut().for_each(map);
            tried.effects.iter_mut().for_each(|e| e.copy.iter_mut().for_each(map));
        }
        self.stuck.iter_mut().for_each(|s| map(&mut s.copy));
        self.near.iter_mut().for_each(|n| map(&mut n.copy));
        self.near.sort_by_key(|n| n.copy);
        self.stuck.sort_by_key(|s| (s.story, s.copy));
    }
}

fn keys(copies: &[Copy]) -> FxHashMap<FileKey, usize> {
    copies.iter().enumerate().filter_map(|(i, c)| c.key.map(|key| (key, i))).collect()
}

/// How the libraries of two processes differ, by name.
struct Others {
    replaced: Vec<BString>,
    added: Vec<BString>,
    removed: Vec<BString>,
}

type Requests = Vec<(usize, DecisionId)>;

/// The requests of one story in one group of runs.
struct Member {
    /// Run and decision, the one that decides first.
    requests: Requests,
}

struct Narrator<'a> {
    knowledge: &'a Knowledge<'a>,
    by_key: FxHashMap<FileKey, usize>,
}

/// What a request came to: the file or the text of the failure.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Answer {
    File(FileKey, BString),
    Failure(BString),
}

fn answer(process: &Process, decision: &Decision) -> Answer {
    match decision.chosen {
        Some(id) => {
            let image = process.image(id);
            Answer::File(image.object.meta.key, image.name.clone())
        }
        None => Answer::Failure(decision.failure.as_ref().map(|f| f.dlerror()).unwrap_or_default()),
    }
}

impl Answer {
    fn same(&self, other: &Answer) -> bool {
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
    let element = list.zip(attempt.place.entry).and_then(|(list, n)| list.split(|b| *b == b':').nth(n as usize));
    element.map(BString::from).unwrap_or_default()
}

impl Narrator<'_> {
    fn name(&self) -> &BStr {
        self.knowledge.name.text.as_bstr()
    }

    fn asks_for_name(&self, asked: &BStr) -> bool {
        asked == self.name()
            || self.knowledge.given == Some(asked)
            || (asked.contains(&b'/') && file_name(asked) == self.name())
    }

    /// The decisions of a run that answer the name.
    fn requests(&self, run: &Run) -> Vec<DecisionId> {
        let counts = |d: &Decision| match &run.by_literal {
            Some(literal) => d.step == literal.step && d.how == How::Dlopen,
            None => d.how != How::Exec && self.asks_for_name(d.asked.as_bstr()),
        };
        let all = run.process.decisions.iter().enumerate().skip(run.from);
        all.filter(|(_, d)| counts(d)).map(|(i, _)| DecisionId(i as u32)).collect()
    }

    fn stories(&self, runs: &[Run]) -> (Vec<Story>, Vec<Vec<Member>>) {
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

    fn copies(&self) -> Vec<CopyFacts> {
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

    fn near(&self, runs: &[Run]) -> Vec<Near> {
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

    // ------------------------------------------------------------------------------------------------------ changes

    fn changes(
        &self,
        runs: &[Run],
        stories: &[Story],
        members: &[Vec<Member>],
        what_if: &WhatIf<'_>,
    ) -> (Vec<Tried>, Vec<Stuck>) {
        let Some(base) = runs.first().map(|r| &r.process) else { return (Vec::new(), Vec::new()) };
        let (env, family) = (&base.host().env, base.dialect().family);
        let candidates = self.candidates(base, stories);
        let tried: Vec<Option<Tried>> = candidates
            .par_iter()
            .map(|(change, copy)| {
                let changed = what_if(change)?;
                let effects = self.effects(runs, &changed, stories, members);
                let assignment = change.assignment(env, family).map(|(name, value)| (name.to_owned(), value));
                Some(Tried { change: change.clone(), assignment, copy: *copy, effects })
            })
            .collect();
        let stuck = self.stuck(base, stories, &candidates, &tried);
        let helpful = tried.into_iter().flatten().filter(Tried::changes_an_answer).collect();
        (helpful, stuck)
    }

    fn candidates(&self, base: &Process, stories: &[Story]) -> Vec<(Change, Option<usize>)> {
        let (host, family) = (base.host(), base.dialect().family);
        let mut out: Vec<(Change, Option<usize>)> = Vec::new();
        let mut winning_elements: Vec<u32> = Vec::new();
        let mut preloaded = false;
        for (_, fate) in stories.iter().flat_map(|s| &s.fates) {
            let (Fate::Taken(reason) | Fate::Ends { reason, .. } | Fate::Earlier { reason, .. }) = fate else {
                continue;
            };
            match (reason.rule, reason.entry) {
                (Rule::LibraryPath, Some(n)) if !winning_elements.contains(&n) => winning_elements.push(n),
                (Rule::Preload, _) => preloaded = true,
                _ => {}
            }
        }
        winning_elements.sort_unstable();
        out.extend(winning_elements.iter().map(|n| (Change::DropLibraryPath(*n), None)));
        let elements = host.env.get("LD_LIBRARY_PATH").map_or(0, |v| library_path_elements(v, family).len());
        if elements > usize::from(!winning_elements.is_empty()) {
            out.push((Change::UnsetLibraryPath, None));
        }
        if preloaded {
            out.push((Change::UnsetPreload, None));
        }
        let mut copies = 0;
        for (index, copy) in self.knowledge.copies.iter().enumerate().filter(|(_, c)| c.relation.answers()) {
            let wins_everywhere = !stories.is_empty() && stories.iter().all(|s| s.copy == Some(index));
            if wins_everywhere || self.knowledge.unusable.get(index).is_some_and(Option::is_some) {
                continue;
            }
            copies += 1;
            if copies > MAX_TRIED_COPIES {
                break;
            }
            if let Some(directory) = directories_of(copy, self.knowledge.name).into_iter().next() {
                out.push((Change::PrependLibraryPath(absolute(host.cwd.as_bstr(), directory.as_bstr())), Some(index)));
            }
            out.push((Change::Preload(absolute(host.cwd.as_bstr(), copy.path.as_bstr())), Some(index)));
        }
        out.extend(self.knowledge.further_changes.iter().map(|c| (c.clone(), None)));
        out
    }

    fn effects(
        &self,
        runs: &[Run],
        changed: &[Option<Run>],
        stories: &[Story],
        members: &[Vec<Member>],
    ) -> Vec<Effect> {
        let mut out: Vec<Effect> = Vec::new();
        for (story, members) in members.iter().enumerate() {
            let mut of_story: Vec<Effect> = Vec::new();
            for (teller, member) in members.iter().enumerate() {
                // Further requests of one process follow the first; each supposed dlopen stands for itself.
                let decisive = member.requests.iter().enumerate().filter(|(position, (run, id))| {
                    let own = || !is_answered_by_loaded(&runs[*run].process.decisions[id.index()]);
                    *position == 0 || (runs[*run].by_literal.is_some() && own())
                });
                for (_, (run, id)) in decisive {
                    let Some(after) = changed.get(*run).and_then(|c| c.as_ref()) else { continue };
                    let effect = self.effect(story, teller, &stories[story], &runs[*run], *id, after);
                    match of_story.iter_mut().find(|e| same_effect(e, &effect)) {
                        Some(known) if known.tellers.contains(&teller) => {}
                        Some(known) => known.tellers.push(teller),
                        None => of_story.push(effect),
                    }
                }
            }
            out.extend(of_story);
        }
        out
    }

    fn effect(&self, index: usize, teller: usize, story: &Story, before: &Run, id: DecisionId, after: &Run) -> Effect {
        let asker = |process: &Process, decision: &Decision| {
            (decision.how, decision.needed_by.map(|i| process.image(i).object.meta.key), decision.asked.clone())
        };
        let wanted = asker(&before.process, &before.process.decisions[id.index()]);
        let requests = self.requests(after);
        let same = requests.iter().find(|r| asker(&after.process, &after.process.decisions[r.index()]) == wanted);
        // The asker itself may be another file then: the first request of the same kind stands for it.
        let request = same.or_else(|| {
            requests.iter().find(|r| {
                let decision = &after.process.decisions[r.index()];
                decision.how == wanted.0 && decision.asked == wanted.2
            })
        });
        let now = request.map(|r| answer(&after.process, &after.process.decisions[r.index()]));
        let copy = match &now {
            Some(Answer::File(key, _)) => self.by_key.get(key).copied(),
            _ => None,
        };
        let was = answer(&before.process, &before.process.decisions[id.index()]);
        let (mut failures, mut mended) = failing_steps(&before.process, &after.process);
        // The request itself has its own answer.
        let itself = before.process.steps.get(before.process.decisions[id.index()].step.index()).map(|s| &s.name);
        if itself.is_some_and(|step| *step == wanted.2) {
            failures.retain(|(step, _)| *step != wanted.2);
            mended.retain(|step| *step != wanted.2);
        }
        let others = self.other_images(&before.process, &after.process);
        Effect {
            story: index,
            tellers: vec![teller],
            copy,
            failure: match &now {
                Some(Answer::Failure(text)) => Some(text.clone()),
                _ => None,
            },
            unasked: now.is_none(),
            changes_answer: match &now {
                Some(now) => !now.same(&was),
                // Not asked any more: only of interest when nothing failed on the way there.
                None => story.copy.is_some() && failures.is_empty(),
            },
            replaced: others.replaced,
            added: others.added,
            removed: others.removed,
            failures,
            mended,
        }
    }

    /// How the images of two processes differ, copies of the name aside.
    fn other_images(&self, before: &Process, after: &Process) -> Others {
        let is_copy =
            |key: &FileKey| self.by_key.get(key).is_some_and(|c| self.knowledge.copies[*c].relation.answers());
        let loaded = |process: &Process| -> Vec<(BString, FileKey)> {
            let images = process.images.iter().filter(|i| i.unloaded_by.is_none() && i.role == Role::Library);
            let others = images.filter(|i| !is_copy(&i.object.meta.key));
            others
                .map(|i| {
                    let name = i.soname().unwrap_or_else(|| file_name(i.name.as_bstr()));
                    (name.to_owned(), i.object.meta.key)
                })
                .collect()
        };
        let (a, b) = (loaded(before), loaded(after));
        let only = |list: &[(BString, FileKey)], other: &[(BString, FileKey)]| -> Vec<BString> {
            let keys: FxHashSet<FileKey> = other.iter().map(|(_, key)| *key).collect();
            let mut names: Vec<BString> = Vec::new();
            for (name, _) in list.iter().filter(|(_, key)| !keys.contains(key)) {
                if !names.contains(name) {
                    names.push(name.clone());
                }
            }
            names
        };
        let (gone, come) = (only(&a, &b), only(&b, &a));
        Others {
            added: come.iter().filter(|n| a.iter().all(|(name, _)| name != *n)).cloned().collect(),
            removed: gone.iter().filter(|n| b.iter().all(|(name, _)| name != *n)).cloned().collect(),
            // One of two copies that comes or goes counts as a change too.
            replaced: {
                let mut both: Vec<BString> = come.into_iter().chain(gone).collect();
                both.retain(|n| a.iter().any(|(name, _)| name == n) && b.iter().any(|(name, _)| name == n));
                both.sort();
                both.dedup();
                both
            },
        }
    }

    fn stuck(
        &self,
        base: &Process,
        stories: &[Story],
        candidates: &[(Change, Option<usize>)],
        tried: &[Option<Tried>],
    ) -> Vec<Stuck> {
        let mut out = Vec::new();
        let exact = self.knowledge.copies.iter().enumerate().filter(|(_, c)| c.relation == Relation::Exact);
        for (copy, _) in exact {
            let tries: Vec<(&Change, &Option<Tried>)> = candidates
                .iter()
                .zip(tried)
                .filter(|((_, for_copy), _)| *for_copy == Some(copy))
                .map(|((change, _), tried)| (change, tried))
                .collect();
            if tries.is_empty() {
                continue;
            }
            for (story, told) in stories.iter().enumerate() {
                if told.copy == Some(copy) {
                    continue;
                }
                let wins = |tried: &Option<Tried>| {
                    tried.as_ref().is_some_and(|t| {
                        t.effects.iter().any(|e| e.story == story && e.copy == Some(copy) && e.changes_answer)
                    })
                };
                let by_path = tries.iter().find(|(change, _)| matches!(change, Change::PrependLibraryPath(_)));
                let by_preload = tries.iter().find(|(change, _)| matches!(change, Change::Preload(_)));
                let dropped = candidates.iter().zip(tried).filter(|((_, c), _)| c.is_none()).any(|(_, t)| wins(t));
                if dropped || by_path.is_some_and(|(_, tried)| wins(tried)) {
                    continue;
                }
                let why = match by_path {
                    None => "no directory holds it under the name".to_owned(),
                    Some((_, None)) => "its directory cannot be written in LD_LIBRARY_PATH".to_owned(),
                    Some((_, Some(_))) if base.host().secure => "LD_LIBRARY_PATH is ignored in secure mode".to_owned(),
                    Some((_, Some(tried))) => self.why_not(told, tried, story),
                };
                out.push(Stuck { copy, story, preload_helps: by_preload.is_some_and(|(_, tried)| wins(tried)), why });
            }
        }
        out
    }

    /// Why a directory in front of LD_LIBRARY_PATH changes nothing: the rule that answers stands before it.
    fn why_not(&self, story: &Story, tried: &Tried, index: usize) -> String {
        let effect = tried.effects.iter().find(|e| e.story == index);
        if let Some(effect) = effect {
            if let Some((step, text)) = effect.failures.first().filter(|_| effect.unasked) {
                return format!("then {step} fails before it is asked for: {text}");
            }
            if effect.unasked {
                return "then it is not asked for any more".to_owned();
            }
            if let Some(text) = &effect.failure
                && story.failure.is_none()
            {
                return format!("then it does not load: {text}");
            }
        }
        let answering = story.fates.iter().find(|(copy, _)| Some(*copy) == story.copy).map(|(_, fate)| fate);
        match answering {
            Some(Fate::Taken(reason)) => before_library_path(reason),
            Some(Fate::Earlier { asked, .. }) if asked != self.name() => {
                format!("a copy that was loaded before as {asked} answers")
            }
            Some(Fate::Earlier { reason, .. }) => {
                format!("a copy that was loaded before answers, and {}", before_library_path(reason))
            }
            _ => match &story.failure {
                Some(text) => format!("the request fails all the same: {text}"),
                None => "another copy answers all the same".to_owned(),
            },
        }
    }
}

fn before_library_path(reason: &Reason) -> String {
    match (&reason.rule, &reason.owner) {
        (Rule::Rpath, Some(owner)) => format!("RPATH of {owner} is searched before LD_LIBRARY_PATH"),
        (Rule::Path, _) => "it is asked for by its path, so nothing is searched".to_owned(),
        (Rule::Preload, _) => "a preloaded copy answers, so nothing is searched".to_owned(),
        (Rule::Exec, _) => "it is part of every process from the start".to_owned(),
        _ => format!("{reason} answers all the same"),
    }
}

/// True when a loaded image answered by its name or SONAME, without a search.
fn is_answered_by_loaded(decision: &Decision) -> bool {
    decision.via.as_ref().is_some_and(|v| v.place.rule == Rule::AlreadyLoaded && v.identity != Some(Identity::Inode))
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

fn same_effect(a: &Effect, b: &Effect) -> bool {
    Effect { tellers: Vec::new(), ..a.clone() } == Effect { tellers: Vec::new(), ..b.clone() }
}

/// Steps that fail in the second process only, and steps that fail in the first only.
fn failing_steps(before: &Process, after: &Process) -> (Vec<(BString, BString)>, Vec<BString>) {
    let failed = |process: &Process| -> Vec<(BString, BString)> {
        process
            .steps
            .iter()
            .filter(|s| s.outcome == Outcome::Failed)
            // What a library tries on its own and does without is no failure of the process.
            .filter(|s| !s.optional || matches!(s.kind, StepKind::Import | StepKind::Preload))
            .map(|s| (s.name.clone(), s.error.clone().unwrap_or_default()))
            .collect()
    };
    let (a, b) = (failed(before), failed(after));
    let only = |list: &[(BString, BString)], other: &[(BString, BString)]| -> Vec<(BString, BString)> {
        list.iter().filter(|(name, _)| other.iter().all(|(n, _)| n != name)).cloned().collect()
    };
    let mended = only(&a, &b).into_iter().map(|(name, _)| name).filter(|name| {
        // A step that is not made any more is not mended.
        after.steps.iter().any(|s| s.name == *name && s.outcome != Outcome::Failed)
    });
    (only(&b, &a), mended.collect())
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
    let mut words: Vec<String> = out
        .into_iter()
        .filter(|(rule, ..)| !matches!(rule, Rule::Cache))
        .map(|(rule, owner, _)| {
            let of = owner.map(|o| format!(" of {}", file_name(process.image(o).name.as_bstr()))).unwrap_or_default();
            let entries = |list: Option<&BString>| match list.map(|l| (l.split(|b| *b == b':').count(), l)) {
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
    if !asked_by_path && process.dialect().family == Family::Glibc && decision.via.is_none() {
        let at = words.iter().position(|w| w == "the default directories").unwrap_or(words.len());
        words.insert(at, "ld.so.cache".to_owned());
    }
    words
}
