//! The `why` object of the JSON report when a symbol was asked for. Wire types only.

use bstr::ByteSlice;
use serde::Serialize;

use super::escape;
use crate::findings::Owner;
use crate::findings::why_symbol::{Elsewhere, FileFacts, Lacking, Lookup, Met, Referrer, SymbolStory, WhySymbol};
use crate::ld::{Ending, ImageId, Standing};

#[derive(Serialize)]
pub(super) struct WhyInfo {
    name: String,
    version: Option<String>,
    symbols: Vec<SymbolInfo>,
    symbols_left_out: usize,
    files_looked_at: usize,
    notes: Vec<String>,
}

#[derive(Serialize)]
struct SymbolInfo {
    symbol: String,
    demangled: Option<String>,
    processes: Vec<ProcessInfo>,
    elsewhere: Vec<ElsewhereInfo>,
    elsewhere_left_out: usize,
    known: Option<String>,
}

#[derive(Serialize)]
struct ProcessInfo {
    title: String,
    /// True when image ids are those of this report.
    reported: bool,
    error: Option<String>,
    lookups: Vec<LookupInfo>,
    other_versions: usize,
    left_out: usize,
}

#[derive(Serialize)]
struct LookupInfo {
    version: Option<String>,
    version_file: Option<String>,
    supposed: bool,
    referrers: Vec<ReferrerInfo>,
    scope: Vec<usize>,
    ending: &'static str,
    to: Option<usize>,
    candidates: Vec<CandidateInfo>,
    lacking: Vec<LackingInfo>,
}

#[derive(Serialize)]
struct FileInfo {
    path: String,
    soname: Option<String>,
    owner: Option<OwnerInfo>,
    version: Option<String>,
}

#[derive(Serialize)]
struct OwnerInfo {
    package: String,
    version: String,
}

#[derive(Serialize)]
struct ReferrerInfo {
    image: usize,
    file: FileInfo,
    uses: Vec<UseInfo>,
    weak: bool,
    recorded: bool,
}

#[derive(Serialize)]
struct UseInfo {
    class: &'static str,
    when: &'static str,
}

#[derive(Serialize)]
struct CandidateInfo {
    image: usize,
    file: FileInfo,
    version: Option<String>,
    default: bool,
    binding: &'static str,
    place: Option<u32>,
    standing: &'static str,
    /// Why it stands so.
    reason: Option<&'static str>,
    /// Why it would not be accepted if it were in the scope.
    refusal: Option<&'static str>,
    #[serde(skip_serializing_if = "String::is_empty")]
    step: String,
}

#[derive(Serialize)]
struct LackingInfo {
    image: usize,
    file: FileInfo,
    place: Option<u32>,
}

#[derive(Serialize)]
struct ElsewhereInfo {
    file: FileInfo,
    versions: Vec<String>,
    is_copy: bool,
    suits: bool,
}

/// Gives the number of an image in the report.
type Ids<'a> = dyn Fn(ImageId) -> usize + 'a;

fn string(bytes: impl AsRef<[u8]>) -> String {
    escape::json(bytes.as_ref().as_bstr()).into_owned()
}

pub(super) fn wire(why: &WhySymbol, ids: &Ids<'_>) -> WhyInfo {
    WhyInfo {
        name: string(&why.query.name),
        version: why.query.version.as_ref().map(string),
        symbols: why.symbols.iter().map(|s| symbol(s, why.reported_run, ids)).collect(),
        symbols_left_out: why.left_out,
        files_looked_at: why.files_looked_at,
        notes: why.notes.clone(),
    }
}

fn symbol(story: &SymbolStory, reported: usize, ids: &Ids<'_>) -> SymbolInfo {
    SymbolInfo {
        symbol: string(&story.name),
        demangled: story.demangled.clone(),
        processes: story
            .processes
            .iter()
            .map(|p| {
                // Only one process is the report's; in others images have the numbers of their own loading.
                let own = |id: ImageId| id.index();
                let ids: &Ids<'_> = if p.run == reported { ids } else { &own };
                ProcessInfo {
                    title: p.title.clone(),
                    reported: p.run == reported,
                    error: p.error.as_ref().map(string),
                    lookups: p.lookups.iter().map(|l| lookup(l, ids)).collect(),
                    other_versions: p.other_versions,
                    left_out: p.left_out,
                }
            })
            .collect(),
        elsewhere: story.elsewhere.iter().map(elsewhere).collect(),
        elsewhere_left_out: story.elsewhere_left_out,
        known: story.known.clone(),
    }
}

fn lookup(lookup: &Lookup, ids: &Ids<'_>) -> LookupInfo {
    let (ending, to) = match lookup.ending {
        Ending::Bound { to, .. } => ("bound", Some(ids(to))),
        Ending::Zero => ("zero", None),
        Ending::Undefined => ("undefined", None),
        Ending::Assertion => ("assertion", None),
    };
    LookupInfo {
        version: lookup.version.as_ref().map(string),
        version_file: lookup.version_file.as_ref().map(string),
        supposed: lookup.referrers.is_empty(),
        referrers: lookup.referrers.iter().map(|r| referrer(r, ids)).collect(),
        scope: lookup.scope.iter().map(|id| ids(*id)).collect(),
        ending,
        to,
        candidates: lookup.met.iter().map(|m| candidate(m, ids)).collect(),
        lacking: lookup.lacking.iter().map(|l| lacking(l, ids)).collect(),
    }
}

fn file(file: &FileFacts) -> FileInfo {
    FileInfo {
        path: string(&file.path),
        soname: file.soname.as_ref().map(string),
        owner: file
            .owner
            .as_ref()
            .map(|Owner { package, version }| OwnerInfo { package: package.clone(), version: version.clone() }),
        version: file.version.clone(),
    }
}

fn referrer(referrer: &Referrer, ids: &Ids<'_>) -> ReferrerInfo {
    ReferrerInfo {
        image: ids(referrer.image),
        file: file(&referrer.file),
        uses: referrer.uses.iter().map(|(c, w)| UseInfo { class: c.name(), when: w.name() }).collect(),
        weak: referrer.weak,
        recorded: referrer.recorded,
    }
}

fn candidate(met: &Met, ids: &Ids<'_>) -> CandidateInfo {
    let (reason, refusal) = match met.standing {
        Standing::Wins(because) | Standing::Overruled(because) => (Some(because.name()), None),
        Standing::Later => (None, None),
        Standing::Refused(refusal) => (Some(refusal.name()), None),
        Standing::Outside(outside, refusal) => (Some(outside.name()), refusal.map(|r| r.name())),
    };
    CandidateInfo {
        image: ids(met.image),
        file: file(&met.file),
        version: met.version.as_ref().map(string),
        default: !met.old,
        binding: if met.unique {
            "unique"
        } else if met.weak {
            "weak"
        } else {
            "global"
        },
        place: met.place,
        standing: met.standing.name(),
        reason,
        refusal,
        step: met.step.clone(),
    }
}

fn lacking(lacking: &Lacking, ids: &Ids<'_>) -> LackingInfo {
    LackingInfo { image: ids(lacking.image), file: file(&lacking.file), place: lacking.place }
}

fn elsewhere(elsewhere: &Elsewhere) -> ElsewhereInfo {
    ElsewhereInfo {
        file: file(&elsewhere.file),
        versions: elsewhere.versions.iter().map(string).collect(),
        is_copy: elsewhere.is_copy,
        suits: elsewhere.suits,
    }
}
