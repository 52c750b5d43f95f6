//! What changes of the environment do: which are worth trying, what each does to the requests of a story, and why some
//! copies cannot be brought in.

use bstr::{BString, ByteSlice};
use rayon::prelude::*;
use rustc_hash::FxHashSet;

use super::narrate::{Answer, Member, Narrator, answer};
use super::{Change, Effect, Fate, Reason, Run, Story, Stuck, Tried, WhatIf};
use crate::discover::copies::{Relation, directories_of};
use crate::ld::{Decision, DecisionId, How, List, Outcome, Process, Role, Rule, StepKind};
use crate::system::{FileKey, absolute, file_name};

/// Most copies for which changes are tried.
const MAX_TRIED_COPIES: usize = 12;

/// How the libraries of two processes differ, by name.
struct Others {
    replaced: Vec<BString>,
    added: Vec<BString>,
    removed: Vec<BString>,
}

/// What differs between a process and the same with a change.
struct Compared {
    /// The requests of the name in the changed process.
    requests: Vec<DecisionId>,
    others: Others,
    steps: Failing,
}

impl Narrator<'_> {
    /// The changes that let another copy answer somewhere, and the copies that LD_LIBRARY_PATH does not bring in.
    pub(super) fn changes(
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
        let elements = host.env.get("LD_LIBRARY_PATH").map_or(0, |v| List::LibraryPath.elements(family, v).count());
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
        // What differs between two processes is found out once for all of their requests.
        let compared: Vec<Option<Compared>> =
            runs.iter().zip(changed).map(|(before, after)| Some(self.compare(before, after.as_ref()?))).collect();
        let mut out: Vec<Effect> = Vec::new();
        for (index, (story, members)) in stories.iter().zip(members).enumerate() {
            let mut of_story: Vec<Effect> = Vec::new();
            for (teller, member) in members.iter().enumerate() {
                let mut of_teller: Vec<Effect> = Vec::new();
                for (run, id) in &member.requests {
                    let Some((after, compared)) = changed[*run].as_ref().zip(compared[*run].as_ref()) else { continue };
                    let mut effect = self.effect(story, &runs[*run], *id, after, compared);
                    effect.story = index;
                    effect.tellers.push(teller);
                    match of_teller.iter_mut().find(|e| e.same_outcome(&effect)) {
                        Some(known) => {
                            let new = effect.askers.into_iter().filter(|a| !known.askers.contains(a));
                            let new: Vec<_> = new.collect();
                            known.askers.extend(new);
                        }
                        None => of_teller.push(effect),
                    }
                }
                let whole = of_teller.len() == 1;
                for mut effect in of_teller {
                    effect.all_askers = whole;
                    match of_story.iter_mut().find(|e| whole && e.all_askers && e.same_outcome(&effect)) {
                        Some(known) => {
                            known.tellers.push(teller);
                            known.askers.extend(effect.askers);
                        }
                        None => of_story.push(effect),
                    }
                }
            }
            out.extend(of_story);
        }
        out
    }

    fn effect(&self, story: &Story, before: &Run, id: DecisionId, after: &Run, compared: &Compared) -> Effect {
        let asker = |process: &Process, decision: &Decision| {
            (decision.how, decision.needed_by.map(|i| process.image(i).object.meta.key), decision.asked.clone())
        };
        let asked = &before.process.decisions[id.index()];
        let wanted = asker(&before.process, asked);
        let of = |r: &DecisionId| &after.process.decisions[r.index()];
        let requests = &compared.requests;
        let same = requests.iter().find(|r| asker(&after.process, of(r)) == wanted);
        // The asker itself may be another file then: the first request of the same kind stands for it.
        let alike = || requests.iter().find(|r| (of(r).how, &of(r).asked) == (wanted.0, &wanted.2));
        let now = same.or_else(alike).map(|r| answer(&after.process, of(r)));
        let was = answer(&before.process, asked);
        let mut steps = compared.steps.clone();
        // The request itself has its own answer.
        if before.process.steps.get(asked.step.index()).is_some_and(|step| step.name == wanted.2) {
            steps.forget(&wanted.2);
        }
        let is_of_interest = || {
            // Not made any more: that of the name, not of some path or preload entry, when nothing failed on the way.
            story.copy.is_some() && steps.new.is_empty() && wanted.0 != How::Preload && !wanted.2.contains(&b'/')
        };
        Effect {
            story: 0,
            tellers: Vec::new(),
            askers: vec![(
                asked.how,
                asked.needed_by.map(|i| before.process.image(i).name.clone()).unwrap_or_default(),
            )],
            all_askers: false,
            copy: match &now {
                Some(Answer::File(key, _)) => self.by_key.get(key).copied(),
                _ => None,
            },
            failure: match &now {
                Some(Answer::Failure(text)) => Some(text.clone()),
                _ => None,
            },
            unasked: now.is_none(),
            changes_answer: now.as_ref().map_or_else(is_of_interest, |now| !now.same(&was)),
            replaced: compared.others.replaced.clone(),
            added: compared.others.added.clone(),
            removed: compared.others.removed.clone(),
            failures: steps.new,
            still_failing: steps.same,
            mended: steps.mended,
        }
    }

    fn compare(&self, before: &Run, after: &Run) -> Compared {
        Compared {
            requests: self.requests(after),
            others: self.other_images(&before.process, &after.process),
            steps: failing_steps(&before.process, &after.process),
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

impl Effect {
    /// True when the other tells the same, whoever asks.
    fn same_outcome(&self, other: &Effect) -> bool {
        let bare = |e: &Effect| Effect { tellers: Vec::new(), askers: Vec::new(), all_askers: false, ..e.clone() };
        bare(self) == bare(other)
    }
}

/// Steps that fail in one of two processes, with the text.
#[derive(Clone)]
struct Failing {
    new: Vec<(BString, BString)>,
    same: Vec<(BString, BString)>,
    mended: Vec<BString>,
}

impl Failing {
    fn forget(&mut self, name: &BString) {
        self.new.retain(|(step, _)| step != name);
        self.same.retain(|(step, _)| step != name);
        self.mended.retain(|step| step != name);
    }
}

fn failing_steps(before: &Process, after: &Process) -> Failing {
    let failed = |process: &Process| -> Vec<(BString, BString)> {
        let failed = process.steps.iter().filter(|s| s.outcome == Outcome::Failed);
        // What a library tries on its own and does without is no failure of the process.
        let counts = failed.filter(|s| !s.optional || matches!(s.kind, StepKind::Import | StepKind::Preload));
        counts.map(|s| (s.name.clone(), s.error.clone().unwrap_or_default())).collect()
    };
    let (a, b) = (failed(before), failed(after));
    // A step that is not made any more is not mended.
    let succeeds = |name: &BString| after.steps.iter().any(|s| s.name == *name && s.outcome != Outcome::Failed);
    let mended = a.iter().filter(|(name, _)| b.iter().all(|(n, _)| n != name) && succeeds(name));
    let mended = mended.map(|(name, _)| name.clone()).collect();
    let (same, new) = b.into_iter().partition(|step| a.contains(step));
    Failing { new, same, mended }
}
