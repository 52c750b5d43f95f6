//! The `why` object of the JSON report: the story of one name. Wire types only.

use bstr::{BString, ByteSlice};
use serde::Serialize;

use super::escape;
use crate::findings::Owner;
use crate::findings::why::{Asker, Change, CopyFacts, Effect, Fate, Reason, Story, Tried, Why};

#[derive(Serialize)]
pub(super) struct WhyInfo {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    given: Option<String>,
    copies: Vec<CopyInfo>,
    stories: Vec<StoryInfo>,
    changes: Vec<ChangeInfo>,
    /// Modules whose import before the others changes no answer.
    imports_in_vain: Vec<String>,
    stuck: Vec<StuckInfo>,
    near: Vec<NearInfo>,
    near_asked: Vec<NearAskedInfo>,
    files_looked_at: usize,
    notes: Vec<String>,
}

#[derive(Serialize)]
struct CopyInfo {
    id: usize,
    path: String,
    names: Vec<String>,
    real_path: String,
    soname: Option<String>,
    relation: &'static str,
    owner: Option<OwnerInfo>,
    version: Option<String>,
    unusable: Option<String>,
    origins: Vec<String>,
}

#[derive(Serialize)]
struct OwnerInfo {
    package: String,
    version: String,
}

#[derive(Serialize)]
struct StoryInfo {
    id: usize,
    copy: Option<usize>,
    path: Option<String>,
    error: Option<String>,
    processes: Vec<TellerInfo>,
    fates: Vec<FateInfo>,
}

#[derive(Serialize)]
struct TellerInfo {
    title: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    circumstances: String,
    supposed: bool,
    /// Decisions of this report, when the process is the one that the report describes.
    decisions: Vec<usize>,
    askers: Vec<AskerInfo>,
    failing: Option<FailureInfo>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    searched: Vec<String>,
}

#[derive(Serialize)]
struct AskerInfo {
    how: &'static str,
    image: String,
    owner: Option<OwnerInfo>,
    #[serde(skip_serializing_if = "Option::is_none")]
    literal: Option<LiteralInfo>,
    #[serde(skip_serializing_if = "Option::is_none")]
    asked: Option<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    note: String,
    answered_by_loaded: bool,
}

#[derive(Serialize)]
struct LiteralInfo {
    text: String,
    kind: &'static str,
}

#[derive(Serialize)]
struct FateInfo {
    copy: usize,
    fate: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    rule: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    owner: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    entry: Option<u32>,
    text: String,
}

#[derive(Serialize)]
struct ChangeInfo {
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    variable: Option<String>,
    /// The new value; null when the variable is unset.
    value: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    module: Option<String>,
    for_copy: Option<usize>,
    effects: Vec<EffectInfo>,
}

#[derive(Serialize)]
struct EffectInfo {
    story: usize,
    processes: Vec<usize>,
    askers: Vec<EffectAsker>,
    all_askers: bool,
    copy: Option<usize>,
    error: Option<String>,
    unasked: bool,
    changes_answer: bool,
    replaced: Vec<String>,
    added: Vec<String>,
    removed: Vec<String>,
    failures: Vec<FailureInfo>,
    still_failing: Vec<FailureInfo>,
    mended: Vec<String>,
}

#[derive(Serialize)]
struct EffectAsker {
    how: &'static str,
    image: String,
}

#[derive(Serialize)]
struct FailureInfo {
    step: String,
    error: String,
}

#[derive(Serialize)]
struct StuckInfo {
    copy: usize,
    story: usize,
    preload_helps: bool,
    why: String,
}

#[derive(Serialize)]
struct NearInfo {
    copy: usize,
    loaded: Vec<LoadedInfo>,
}

#[derive(Serialize)]
struct LoadedInfo {
    process: String,
    asked: String,
}

#[derive(Serialize)]
struct NearAskedInfo {
    name: String,
    needed_by: Vec<String>,
    opened_by: Vec<String>,
}

fn string(bytes: impl AsRef<[u8]>) -> String {
    escape::json(bytes.as_ref().as_bstr()).into_owned()
}

pub(super) fn wire(why: &Why) -> WhyInfo {
    WhyInfo {
        name: string(&why.name),
        given: why.given.as_ref().map(string),
        copies: why.copies.iter().enumerate().map(|(id, c)| copy(id, c)).collect(),
        stories: why.stories.iter().enumerate().map(|(id, s)| story(id, s, why.reported_run)).collect(),
        changes: why.changes.iter().map(change).collect(),
        imports_in_vain: why
            .in_vain
            .iter()
            .filter_map(|c| match c {
                Change::ImportFirst(module) => Some(module.clone()),
                _ => None,
            })
            .collect(),
        stuck: why
            .stuck
            .iter()
            .map(|s| StuckInfo { copy: s.copy, story: s.story, preload_helps: s.preload_helps, why: s.why.clone() })
            .collect(),
        near: why
            .near
            .iter()
            .map(|n| NearInfo {
                copy: n.copy,
                loaded: n
                    .loaded_as
                    .iter()
                    .map(|(process, asked)| LoadedInfo { process: process.clone(), asked: string(asked) })
                    .collect(),
            })
            .collect(),
        near_asked: why
            .near_asked
            .iter()
            .map(|n| NearAskedInfo {
                name: string(&n.name),
                needed_by: n.needed_by.iter().map(string).collect(),
                opened_by: n.opened_by.iter().map(string).collect(),
            })
            .collect(),
        files_looked_at: why.files_looked_at,
        notes: why.notes.clone(),
    }
}

fn owner(owner: &Option<Owner>) -> Option<OwnerInfo> {
    owner.as_ref().map(|o| OwnerInfo { package: o.package.clone(), version: o.version.clone() })
}

fn copy(id: usize, copy: &CopyFacts) -> CopyInfo {
    CopyInfo {
        id,
        path: string(&copy.path),
        names: copy.names.iter().map(string).collect(),
        real_path: string(&copy.real_path),
        soname: copy.soname.as_ref().map(string),
        relation: copy.relation.name(),
        owner: owner(&copy.owner),
        version: copy.version.as_ref().map(string),
        unusable: copy.unusable.clone(),
        origins: copy.origins.clone(),
    }
}

fn story(id: usize, story: &Story, reported: usize) -> StoryInfo {
    StoryInfo {
        id,
        copy: story.copy,
        path: story.path.as_ref().map(string),
        error: story.failure.as_ref().map(string),
        processes: story
            .tellers
            .iter()
            .map(|t| TellerInfo {
                title: t.title.clone(),
                circumstances: t.circumstances.clone(),
                supposed: t.supposed,
                decisions: t.requests.iter().filter(|(run, _)| *run == reported).map(|(_, d)| d.index()).collect(),
                askers: t.askers.iter().map(asker).collect(),
                failing: t
                    .failing
                    .as_ref()
                    .map(|(step, error)| FailureInfo { step: string(step), error: string(error) }),
                searched: t.searched.clone(),
            })
            .collect(),
        fates: story.fates.iter().map(|(copy, fate)| fate_info(*copy, fate)).collect(),
    }
}

fn asker(asker: &Asker) -> AskerInfo {
    AskerInfo {
        how: asker.how.name(),
        image: string(&asker.image),
        owner: owner(&asker.owner),
        literal: asker.literal.as_ref().map(|(text, kind)| LiteralInfo { text: string(text), kind: kind.name() }),
        asked: asker.asked.as_ref().map(string),
        note: asker.note.clone(),
        answered_by_loaded: asker.answered_by_loaded,
    }
}

fn fate_info(copy: usize, fate: &Fate) -> FateInfo {
    let (reason, text): (Option<&Reason>, String) = match fate {
        Fate::Taken(reason) | Fate::Later(reason) => (Some(reason), reason.to_string()),
        Fate::Earlier { asked, reason, .. } => (Some(reason), format!("loaded earlier as {}", string(asked))),
        Fate::Displaced { asker, reason } => (Some(reason), format!("own search of {}", string(asker))),
        Fate::Passed { why, reason } | Fate::Ends { why, reason } => (Some(reason), why.clone()),
        Fate::LoadedToo { asked } => (None, format!("loaded as {}", string(asked))),
        Fate::Unusable(why) | Fate::Never(why) => (None, why.clone()),
    };
    FateInfo {
        copy,
        fate: fate.name(),
        rule: reason.map(|r| r.rule.name()),
        owner: reason.and_then(|r| r.owner.as_ref()).map(string),
        entry: reason.and_then(|r| r.entry),
        text,
    }
}

fn change(tried: &Tried) -> ChangeInfo {
    ChangeInfo {
        kind: tried.change.name(),
        variable: tried.assignment.as_ref().map(|(name, _)| name.clone()),
        value: tried.assignment.as_ref().and_then(|(_, value)| value.as_ref()).map(string),
        module: match &tried.change {
            Change::ImportFirst(module) => Some(module.clone()),
            _ => None,
        },
        for_copy: tried.copy,
        effects: tried.effects.iter().map(effect).collect(),
    }
}

fn effect(effect: &Effect) -> EffectInfo {
    EffectInfo {
        story: effect.story,
        processes: effect.tellers.clone(),
        askers: effect
            .askers
            .iter()
            .map(|(how, image)| EffectAsker { how: how.name(), image: string(image) })
            .collect(),
        all_askers: effect.all_askers,
        copy: effect.copy,
        error: effect.failure.as_ref().map(string),
        unasked: effect.unasked,
        changes_answer: effect.changes_answer,
        replaced: effect.replaced.iter().map(string).collect(),
        added: effect.added.iter().map(string).collect(),
        removed: effect.removed.iter().map(string).collect(),
        failures: failures(&effect.failures),
        still_failing: failures(&effect.still_failing),
        mended: effect.mended.iter().map(string).collect(),
    }
}

fn failures(steps: &[(BString, BString)]) -> Vec<FailureInfo> {
    steps.iter().map(|(step, error)| FailureInfo { step: string(step), error: string(error) }).collect()
}
