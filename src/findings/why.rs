//! The story of one library name: who asks for it, what becomes of each copy, and which single change of the environment
//! would let another copy win.
//!
//! Everything told here is read from recorded decisions of simulated processes ([`Run`]); nothing is searched again.
//! What a change does is found out by simulating the same processes with the change made, through a closure that the
//! caller gives.

mod change;
mod effects;
mod narrate;
#[cfg(test)]
mod tests;

use std::fmt;

use bstr::{BStr, BString};
use rustc_hash::FxHashSet;

pub use change::Change;

use self::narrate::Narrator;
use super::Owner;
use crate::discover::copies::{Copy, Literal, Name, Relation};
use crate::ld::{DecisionId, How, Process, Rule, StepId};

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

    /// Where in the search order it stands, among those of one rank.
    fn place(&self) -> (u8, u32) {
        match self {
            Fate::Later(reason) => (reason.rule as u8, reason.entry.unwrap_or(0)),
            _ => (0, 0),
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
    /// A step of the process that fails, whatever the requests come to, with the loader's text.
    pub failing: Option<(BString, BString)>,
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

/// What a change does to some of the processes of a story.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Effect {
    /// The story.
    pub story: usize,
    /// The processes among its tellers, by index, for which this holds.
    pub tellers: Vec<usize>,
    /// The requests in them for which it holds: how they arise, and the path of the image that asks.
    pub askers: Vec<(How, BString)>,
    /// True when these are all requests of the story there.
    pub all_askers: bool,
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
    /// Steps that fail then, and did not before or with another text; with the loader's text.
    pub failures: Vec<(BString, BString)>,
    /// Steps that fail as they did before.
    pub still_failing: Vec<(BString, BString)>,
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
    /// Changes that were asked for and change no answer.
    pub in_vain: Vec<Change>,
    /// Copies that LD_LIBRARY_PATH does not bring in.
    pub stuck: Vec<Stuck>,
    /// Near misses.
    pub near: Vec<Near>,
    /// Near names that are asked for.
    pub near_asked: Vec<NearAsked>,
    /// The run that a report describes whose part this story is: its decisions are the report's.
    pub reported_run: usize,
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
    let narrator = Narrator::new(knowledge);
    let (stories, members) = narrator.stories(runs);
    let (changes, stuck) = narrator.changes(runs, &stories, &members, what_if);
    let helps = |change: &&Change| changes.iter().any(|t| t.change == **change);
    let in_vain = knowledge.further_changes.iter().filter(|c| !helps(c)).cloned().collect();
    let mut why = Why {
        name: knowledge.name.text.clone(),
        given: knowledge.given.map(|g| g.to_owned()),
        copies: narrator.copies(),
        near: narrator.near(runs),
        stories,
        changes,
        in_vain,
        stuck,
        near_asked: Vec::new(),
        reported_run: 0,
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
            story.fates.sort_by_key(|(copy, fate)| (fate.rank(), fate.place(), *copy));
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
            story.fates.sort_by_key(|(copy, fate)| (fate.rank(), fate.place(), *copy));
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
