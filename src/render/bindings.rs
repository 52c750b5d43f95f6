//! The table of bindings as text: which image binds how often to which, and with `-v` each symbol.

use std::collections::BTreeMap;
use std::io::{self, Write};

use bstr::ByteSlice;

use super::text::layout::{pad, width};
use super::text::{Ink, Style};
use super::{Report, escape};
use crate::findings::words::count;
use crate::ld::{Binding, ImageId, Process, When};
use crate::system::file_name;

/// Longest symbol that is written out, in bytes.
const MAX_NAME: usize = 1000;

/// Writes the table.
pub fn write(report: &Report, style: &Style, out: &mut dyn Write) -> io::Result<()> {
    let process = &report.process;
    // In load order, and what an image binds to most often first.
    let place = places(process);
    let mut pairs: BTreeMap<(usize, usize), Pair> = BTreeMap::new();
    // References to one image stand together more often than not.
    for run in process.bindings.parts().flat_map(|part| part.chunk_by(|a, b| (a.from, a.to) == (b.from, b.to))) {
        let Some(first) = run.first() else { continue };
        let pair = pairs.entry((place[first.from.index()], place[first.to.index()])).or_default();
        pair.count += run.len();
        pair.late += run.iter().filter(|b| b.when == When::Call).count();
        if style.verbosity > 0 {
            pair.bindings.extend(run);
        }
    }
    let images = process.load_order();
    let label = |at: usize| images.get(at).map(|id| name(process, *id)).unwrap_or_default();
    let froms: std::collections::BTreeSet<usize> = pairs.keys().map(|(from, _)| *from).collect();
    let total = count(process.bindings.len(), "reference is bound", "references are bound");
    writeln!(out, "{}", style.paint(Ink::Strong, &format!("{total}, by {}", count(froms.len(), "image", "images"))))?;
    for from in froms {
        let mut rows: Vec<(usize, &Pair)> =
            pairs.range((from, 0)..=(from, usize::MAX)).map(|((_, to), pair)| (*to, pair)).collect();
        rows.sort_by_key(|(to, pair)| (std::cmp::Reverse(pair.count), *to));
        let all: usize = rows.iter().map(|(_, pair)| pair.count).sum();
        writeln!(out, "  {}  {all}", style.paint(Ink::Strong, &label(from)))?;
        let digits = rows.iter().map(|(_, pair)| pair.count.to_string().len()).max().unwrap_or(1);
        for (to, pair) in rows {
            let own = if to == from { "  (itself)" } else { "" };
            let late = if pair.late == 0 { String::new() } else { format!("  {} at the first call", pair.late) };
            let line = format!("    {:>digits$}  -> {}{own}{late}", pair.count, label(to));
            writeln!(out, "{line}")?;
            if style.verbosity > 0 {
                symbols(process, &pair.bindings, digits + 8, style, out)?;
            }
        }
    }
    Ok(())
}

/// References of one image that are bound to another.
#[derive(Default)]
struct Pair<'p> {
    count: usize,
    /// How many of them at the first call.
    late: usize,
    /// Kept when each symbol is shown.
    bindings: Vec<&'p Binding>,
}

fn places(process: &Process) -> Vec<usize> {
    let mut out = vec![0; process.images.len()];
    for (at, id) in process.load_order().iter().enumerate() {
        out[id.index()] = at;
    }
    out
}

/// The file name, or the path when another image has that name too.
fn name(process: &Process, id: ImageId) -> String {
    let path = &process.image(id).name;
    let short = file_name(path.as_bstr());
    let is_alone = process.images.iter().filter(|i| file_name(i.name.as_bstr()) == short).count() < 2;
    escape::text(if is_alone { short } else { path.as_bstr() })
}

/// Each symbol with its version and class, in the order of the names.
fn symbols(
    process: &Process,
    bindings: &[&Binding],
    indent: usize,
    style: &Style,
    out: &mut dyn Write,
) -> io::Result<()> {
    let mut rows: Vec<(String, &'static str, &'static str)> = bindings
        .iter()
        .filter_map(|b| {
            let (name, version) = process.symbol_name(b.from, b.symbol)?;
            let cut = &name[..name.len().min(MAX_NAME)];
            let mut text = escape::text(cut);
            if cut.len() < name.len() {
                text.push_str(&format!("… ({} bytes)", name.len()));
            }
            if let Some(version) = version {
                text.push_str(&format!("@{}", escape::text(&version.name[..version.name.len().min(MAX_NAME)])));
            }
            Some((text, b.class.name(), b.when.name()))
        })
        .collect();
    rows.sort();
    let columns = style.columns().saturating_sub(indent + 12);
    let widest = rows.iter().map(|(text, ..)| width(text)).max().unwrap_or(0).min(columns);
    for (text, class, when) in rows {
        writeln!(out, "{:indent$}{}  {}", "", pad(&text, widest), style.paint(Ink::Faint, &format!("{class} {when}")))?;
    }
    Ok(())
}
