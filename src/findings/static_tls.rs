//! Thread-local storage in the static area: libraries opened later for which there is no room (rule R6.31), and how much
//! of the room is gone.
//!
//! The simulation counts what its steps take; whatever else the program opens takes room too. So what does not fit fails
//! for certain, and what fits may yet fail: that is told with the sizes, as a note.

use super::loading::{Knowledge, Scene};
use super::words;
use super::{Candidate, Evidence, Finding, Part, STATIC_TLS, Severity};
use crate::ld::bind::static_tls::{Refused, StaticTls};
use crate::ld::{Family, ImageId, LoadFailure, Outcome, Process, StepId};

/// Most libraries that are listed.
const MAX_ROWS: usize = 8;
/// Room that is asked for comes in such pieces, in bytes.
const PIECE: u64 = 512;

/// Looks at what did not fit, or else at what is left.
pub fn check(scene: &Scene<'_>, known: &Knowledge<'_>, out: &mut Vec<Finding>) {
    let process = scene.process;
    if process.dialect().family == Family::Musl {
        musl(scene, known, out);
        return;
    }
    let Some(area) = process.static_tls() else { return };
    for (n, refused) in area.refused.iter().enumerate() {
        if process.steps[refused.step.index()].outcome == Outcome::Failed {
            let mut finding = without_room(process, known, area, refused);
            finding.candidates = if n == 0 { candidates(process, area, refused) } else { Vec::new() };
            if scene.is_harmless(refused.step) {
                finding.severity = Severity::Warning;
            }
            out.push(finding);
        }
    }
    if area.refused.is_empty() {
        out.extend(nearly_full(process, known, area));
    }
}

fn candidates(process: &Process, area: &StaticTls, refused: &Refused) -> Vec<Candidate> {
    let mut out = Vec::new();
    if process.dialect().has_static_tls_tunables() && refused.align <= area.align() {
        let missing: u64 = area.refused.iter().map(|r| r.size.saturating_add(r.align)).fold(0, u64::saturating_add);
        let room = area.optional_room().saturating_add(missing.saturating_sub(refused.free));
        out.extend(room.checked_next_multiple_of(PIECE).map(Candidate::StaticRoom));
    }
    out.push(Candidate::AppendPreload(process.image(refused.image).name.clone()));
    out
}

/// What else takes room, by size.
fn takers(process: &Process, area: &StaticTls) -> String {
    let mut taken = area.taken.clone();
    taken.sort_by_key(|t| std::cmp::Reverse(t.bytes));
    let names: Vec<String> = taken.iter().map(|t| format!("{} {}", words::label(process, t.image), t.bytes)).collect();
    words::enumerate(&names)
}

fn rows<'a>(
    process: &'a Process,
    known: &'a Knowledge<'_>,
    ids: impl Iterator<Item = ImageId> + 'a,
) -> impl Iterator<Item = Evidence> + 'a {
    let row = |id: ImageId| {
        let by = process.image(id).loader.map(|l| format!(", for {}", words::label(process, l))).unwrap_or_default();
        let place = words::arrival(process, id) + &by;
        Evidence::Copy(words::image_copy(process, known, Part::Taken, id, place))
    };
    ids.take(MAX_ROWS).map(row)
}

fn without_room(process: &Process, known: &Knowledge<'_>, area: &StaticTls, refused: &Refused) -> Finding {
    let label = words::label(process, refused.image);
    let by = words::label(process, refused.by);
    let size = refused.size;
    let summary = if refused.align > area.align() {
        format!("{label} cannot be opened: its thread-local data wants an alignment of {} bytes", refused.align)
    } else {
        format!(
            "{label} cannot be opened: {size} bytes of thread-local data do not fit into the {} that are left",
            refused.free
        )
    };
    let who = if refused.by == refused.image { "it was compiled".into() } else { format!("{by} was compiled") };
    let mut because = format!(
        "{who} for thread-local data at a fixed distance (initial-exec). That lies in an area laid out at the start, with {} bytes to spare for all that is opened later",
        area.room
    );
    if refused.align > area.align() {
        because.push_str(&format!(", aligned to {} bytes", area.align()));
    }
    let others = takers(process, area);
    match others.as_str() {
        "" => because.push('.'),
        others => because.push_str(&format!("; before it come {others}.")),
    }
    let mut finding = Finding::new(STATIC_TLS, label, summary).because(because);
    finding.evidence = vec![Evidence::Step(refused.step), Evidence::Image(refused.image)];
    let mut ids = vec![refused.image, refused.by];
    ids.dedup();
    ids.extend(area.taken.iter().map(|t| t.image));
    finding.evidence.extend(rows(process, known, ids.into_iter()));
    finding
}

/// More than half of the room is gone: what else the program opens decides.
fn nearly_full(process: &Process, known: &Knowledge<'_>, area: &StaticTls) -> Option<Finding> {
    let (gone, room) = (area.gone(), area.room);
    if gone <= room / 2 {
        return None;
    }
    let largest = area.taken.iter().max_by_key(|t| t.bytes)?.image;
    let label = words::label(process, largest);
    let summary = format!(
        "{label} takes much of the room for thread-local data: {gone} of {room} bytes are gone, {} are left",
        area.free()
    );
    let error = words::shown(dlopen_error(process, largest));
    let because = format!(
        "libraries compiled for thread-local data at a fixed distance (initial-exec) share an area laid out at the start, with {room} bytes to spare for all that is opened later: {}. When it is used up dlopen says: {error}.",
        takers(process, area)
    );
    let mut finding = Finding::new(STATIC_TLS, label, summary).severity(Severity::Note).because(because);
    finding.evidence = vec![Evidence::Image(largest)];
    finding.evidence.extend(rows(process, known, area.taken.iter().map(|t| t.image)));
    Some(finding)
}

/// What `dlopen` says of a library whose thread-local data does not fit.
fn dlopen_error(process: &Process, id: ImageId) -> bstr::BString {
    LoadFailure::static_tls(process.image(id)).dlerror()
}

/// musl has no room to spare: what is opened later and wants its data at a fixed distance never loads.
fn musl(scene: &Scene<'_>, known: &Knowledge<'_>, out: &mut Vec<Finding>) {
    let process = scene.process;
    for (n, step) in process.steps.iter().enumerate() {
        let id = StepId(n as u32);
        let Some(failure) = step.failure.as_ref().filter(|f| f.is_dynamic_tls()) else { continue };
        let image = process.images.iter().rposition(|i| i.name == failure.object && i.unloaded_by == Some(id));
        let Some(image) = image.map(|n| ImageId(n as u32)) else { continue };
        let label = words::label(process, image);
        let summary = format!("{label} cannot be opened: it wants thread-local data at a fixed distance");
        let because = "it was compiled for data in an area that is laid out at the start (initial-exec), and musl has no room to spare in it. Only a library that is there at the start can be compiled so.";
        let mut finding = Finding::new(STATIC_TLS, label, summary).because(because);
        finding.evidence = vec![Evidence::Step(id), Evidence::Image(image)];
        finding.evidence.extend(rows(process, known, std::iter::once(image)));
        finding.candidates = vec![Candidate::AppendPreload(process.image(image).name.clone())];
        if scene.is_harmless(id) {
            finding.severity = Severity::Warning;
        }
        out.push(finding);
    }
}
