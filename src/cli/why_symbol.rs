//! `--why SYMBOL [TARGET]`: which processes to simulate, and where to look for other files with the symbol.

use std::io::Write;

use bstr::BStr;

use super::Error;
use super::args::Format;
use super::audit;
use super::loaders::Loaders;
use super::{places, why};
use crate::findings::why_symbol::{self, Knowledge, Query, Run};
use crate::ld::Lookups;
use crate::render;

/// Explains one symbol. False, and nothing is written, when the name may be something else and no file here knows such
/// a symbol.
pub fn run(loaders: &Loaders<'_>, query: &Query, out: &mut dyn Write) -> Result<bool, Error> {
    let Loaders { args, system, .. } = *loaders;
    let why::Plans { mut plans, python, no_python } = match why::plans(loaders) {
        Err(_) if !query.is_certain => return Ok(false),
        plans => plans?,
    };
    if plans.is_empty() {
        return match query.is_certain {
            true => Err(Error::with_hint("cannot explain a symbol: no program to simulate", "name a target")),
            false => Ok(false),
        };
    }
    let mut runs = Vec::with_capacity(plans.len());
    let titles: Vec<String> = plans.iter().map(|plan| why::title(plan, &plans)).collect();
    for (plan, title) in plans.iter_mut().zip(titles) {
        let as_reported = std::mem::replace(&mut plan.lookups, Lookups::Record);
        runs.push(Run { title, process: plan.simulate(&plan.host).process });
        plan.lookups = as_reported;
    }
    let (mut files, cut) = python.as_ref().map(|p| places::package_files(system, p)).unwrap_or_default();
    let directories = places::of(system, &plans[0], runs.iter_mut().map(|r| &mut r.process));
    files.extend(places::files_in(system, &directories));
    let owner = |path: &BStr| places::owner(python.as_deref()?, path);
    let known = Knowledge { owner: &owner, files: &files, store: &plans[0].store };
    let mut story = why_symbol::tell(query, &runs, &known);
    if !query.is_certain {
        // A plain word: a symbol only if one of that name is there.
        if story.symbols.is_empty() {
            return Ok(false);
        }
        story.notes.push("taken for a symbol: it is no library's name, which has .so in it".into());
    }
    if cut {
        story.notes.push("the package directories are too big to be looked through whole".into());
    }
    if let Some(reason) = no_python.filter(|_| args.targets.is_empty()) {
        story.notes.push(format!("no Python environment was looked at: {reason}"));
    }
    match args.format {
        Format::Json | Format::Jsonl => {
            let mut report = audit::audit(&plans[0]);
            report.why = Some(render::Story::Symbol(story));
            render::json::write(&report, out, args.format == Format::Json)?;
        }
        _ => render::why_symbol::write(&story, &super::screen::style(args), out)?,
    }
    Ok(true)
}
