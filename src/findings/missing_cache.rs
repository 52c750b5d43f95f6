//! The loader's cache: one that cannot be used, and what the one that ldconfig would write would change.

use std::collections::hash_map::Entry;

use bstr::{BStr, ByteSlice};
use rustc_hash::FxHashMap;

use super::words;
use super::{CACHE_UNUSABLE, Evidence, Finding, NOT_FOUND};
use crate::ld::cache::Unusable;
use crate::ld::loaded_cache::Origin;
use crate::ld::{ImageId, Process};
use crate::system::Errno;

const CACHE: &str = "/etc/ld.so.cache";

/// A note when the loader has to do without its cache.
pub(super) fn check(process: &Process) -> Option<Finding> {
    let Some(Origin::None(why)) = process.cache.as_ref().map(|c| &c.origin) else { return None };
    let summary = match why {
        Unusable::Unreadable(Errno::ENOENT) => {
            format!("there is no {CACHE}; --assume-ldconfig rebuilds it")
        }
        why => format!("the loader's cache, {CACHE}, is not used: {why}"),
    };
    let finding = Finding::new(CACHE_UNUSABLE, CACHE, summary)
        .because("only RPATH, LD_LIBRARY_PATH, RUNPATH and the default directories lead to a library then.")
        .with(Evidence::Path(CACHE.into(), why.to_string()));
    Some(finding)
}

/// Says in the findings of a process without a cache what would be otherwise with the one that ldconfig would write.
/// `with_cache` is the same process simulated with it, `errors_with_cache` its number of errors.
pub fn tell_what_ldconfig_would_change(
    findings: &mut [Finding],
    process: &Process,
    with_cache: &Process,
    errors_with_cache: usize,
) {
    let errors = findings.iter().filter(|f| f.severity == super::Severity::Error).count();
    let before = answers(process);
    let mut found: Vec<(&BStr, String)> = Vec::new();
    let mut others: Vec<(&BStr, String)> = Vec::new();
    for (asked, now) in answers(with_cache).in_order {
        match (before.of.get(asked), now) {
            (Some(None), Some(id)) => found.push((asked, path(with_cache, id))),
            (Some(Some(was)), Some(id))
                if process.image(*was).object.meta.key != with_cache.image(id).object.meta.key =>
            {
                others.push((asked, path(with_cache, id)));
            }
            _ => {}
        }
    }
    for finding in findings.iter_mut() {
        if finding.rule == NOT_FOUND
            && let Some((_, path)) = found.iter().find(|(asked, _)| *asked == finding.subject)
        {
            let text = format!(
                "there is no {CACHE}; with the one that ldconfig would write (--assume-ldconfig) it is found as {path}."
            );
            finding.because = Some(match finding.because.take() {
                Some(because) => format!("{because} And {text}"),
                None => text,
            });
        }
        if finding.rule == CACHE_UNUSABLE && finding.subject == CACHE {
            let mut text = finding.because.take().unwrap_or_default();
            text.push_str(" With the one that ldconfig would write, ");
            text.push_str(&change(&found, &others, errors, errors_with_cache));
            finding.because = Some(text);
        }
    }
}

fn change(found: &[(&BStr, String)], others: &[(&BStr, String)], errors: usize, errors_then: usize) -> String {
    let mut parts = Vec::new();
    for (list, what) in [(found, "is found as"), (others, "is another file,")] {
        let Some((name, path)) = list.first() else { continue };
        let more = match list.len() - 1 {
            0 => String::new(),
            n => format!(" (and {n} more)"),
        };
        parts.push(format!("{} {what} {path}{more}", words::shown(*name)));
    }
    if errors != errors_then {
        parts.push(format!(
            "{} {} left of {errors}",
            words::count(errors_then, "error", "errors"),
            if errors_then == 1 { "is" } else { "are" }
        ));
    }
    match parts.is_empty() {
        true => "every request of this target has the same answer.".into(),
        false => format!("{}.", parts.join("; ")),
    }
}

fn path(process: &Process, id: ImageId) -> String {
    words::shown(words::readable(process, process.image(id).name.as_bstr()))
}

/// The answer to the first request for each name.
struct Answers<'p> {
    of: FxHashMap<&'p BStr, Option<ImageId>>,
    in_order: Vec<(&'p BStr, Option<ImageId>)>,
}

fn answers(process: &Process) -> Answers<'_> {
    let mut out = Answers { of: FxHashMap::default(), in_order: Vec::new() };
    for d in &process.decisions {
        let asked = d.asked.as_bstr();
        if let Entry::Vacant(first) = out.of.entry(asked) {
            first.insert(d.chosen);
            out.in_order.push((asked, d.chosen));
        }
    }
    out
}
