//! ldd's own form, for scripts that parse it. Addresses are not simulated and read as zero.

use std::collections::HashSet;
use std::io::{self, Write};

use bstr::ByteSlice;

use super::{Report, escape};
use crate::ld::musl::{missing_line, own_name};
use crate::ld::{Decision, Family, How, ImageId, Process, Role};

const ADDRESS: &[u8] = b"(0x0000000000000000)";

/// Writes the list of libraries as `ldd` prints it.
pub fn write(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    let p = &report.process;
    // Nothing that a loader could take, or nothing for a loader to do.
    let Some(main) = p.images.first() else { return writeln!(out, "\tnot a dynamic executable") };
    if main.facts().is_some_and(|f| !f.has_dynamic) {
        return writeln!(out, "\tnot a dynamic executable");
    }
    // Requests that a loaded image answers need not have been written down.
    let asks = main.facts().is_some_and(|f| !f.requests.is_empty()) || p.decisions.iter().any(|d| d.how != How::Exec);
    // musl can relocate what asks for nothing, too.
    let is_glibc = p.dialect().family == Family::Glibc;
    if !p.images.iter().any(|i| i.role == Role::Loader) || !asks && is_glibc {
        return writeln!(out, "\tstatically linked");
    }
    let mut lines = vec![if is_glibc { Line::Vdso } else { Line::Image(ImageId(1)) }];
    // The loader's list of maps: in the order in which they were made, a missing library as a map without a file.
    let mut place_of = vec![0; p.images.len()];
    let mut own_names = HashSet::new();
    let mut images = p.images.iter().enumerate().filter(|(_, i)| i.role == Role::Library).peekable();
    for (n, d) in p.decisions.iter().enumerate() {
        while let Some((index, image)) = images.next_if(|(_, i)| i.decision.index() <= n) {
            place_of[index] = lines.len();
            if image.unloaded_by.is_none() {
                lines.push(Line::Image(ImageId(index as u32)));
            }
        }
        if d.chosen.is_none() && matches!(d.how, How::Needed | How::Filter | How::Dlopen) {
            lines.push(Line::Missing(d));
        }
        // musl tells each name of its own once, by the first form of it.
        if let Some(own) = own_name(d.asked.as_bstr()).filter(|_| !is_glibc && d.chosen == Some(ImageId(1)))
            && own_names.insert(own)
        {
            lines.push(Line::Own(d));
        }
    }
    // The loader's own map is moved behind the one that stands before it in the program's search list; nothing else is
    // looked at, so that it can stand in front of a missing library and of the vdso (dl_main, elf/rtld.c).
    let order = &p.startup_order;
    let at = order.iter().position(|id| p.image(*id).role == Role::Loader);
    if let Some(at) = at.filter(|_| is_glibc) {
        let before = at.checked_sub(1).and_then(|i| order.get(i)).filter(|id| p.image(**id).role == Role::Library);
        let place = before.map_or(0, |id| place_of[id.index()] + 1);
        lines.insert(place.min(lines.len()), Line::Image(order[at]));
    }
    for line in lines {
        line.write(p, is_glibc, out)?;
    }
    // musl relocates what it lists.
    let failures = if is_glibc { &[][..] } else { &p.relocation_failures };
    for line in failures {
        escape::write(out, line)?;
        out.write_all(b"\n")?;
    }
    Ok(())
}

enum Line<'p> {
    Vdso,
    Image(ImageId),
    Missing(&'p Decision),
    /// musl: a name of libc's own, which the loader itself answers.
    Own(&'p Decision),
}

impl Line<'_> {
    fn write(&self, p: &Process, is_glibc: bool, out: &mut dyn Write) -> io::Result<()> {
        match self {
            Line::Vdso => out.write_all(b"\tlinux-vdso.so.1 ")?,
            Line::Image(id) => {
                let image = p.image(*id);
                // glibc has the name that made the library load; musl writes a line when it loads one.
                let asked = match image.names.first() {
                    Some(name) if is_glibc => name,
                    _ => &p.decisions[image.decision.index()].asked,
                };
                out.write_all(b"\t")?;
                if *asked != image.name || (!is_glibc && image.role == Role::Library) {
                    escape::write(out, asked)?;
                    out.write_all(b" => ")?;
                }
                escape::write(out, &image.name)?;
                out.write_all(b" ")?;
            }
            Line::Own(decision) => {
                out.write_all(b"\t")?;
                escape::write(out, &decision.asked)?;
                out.write_all(b" => ")?;
                escape::write(out, &p.image(ImageId(1)).name)?;
                out.write_all(b" ")?;
            }
            Line::Missing(decision) if !is_glibc => {
                let asked_by = decision.needed_by.filter(|_| decision.how == How::Needed);
                let asked_by = asked_by.map(|id| p.image(id).name.as_bstr());
                let reason = decision.failure.as_ref().map(|f| f.text.as_bstr()).unwrap_or_default();
                escape::write(out, &missing_line(decision.asked.as_bstr(), reason, asked_by))?;
                return out.write_all(b"\n");
            }
            Line::Missing(decision) => {
                out.write_all(b"\t")?;
                escape::write(out, &decision.asked)?;
                return out.write_all(b" => not found\n");
            }
        }
        out.write_all(ADDRESS)?;
        out.write_all(b"\n")
    }
}
