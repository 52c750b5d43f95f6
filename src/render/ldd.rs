//! ldd's own form, for scripts that parse it. Addresses are not simulated and read as zero.

use std::io::{self, Write};

use bstr::ByteSlice;

use super::{Report, escape};
use crate::ld::{Family, How, ImageId, Process, Role};

const ADDRESS: &str = "(0x0000000000000000)";

/// Writes the list of libraries as `ldd` prints it.
pub fn write(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    let p = &report.process;
    // Nothing that a loader could take, or nothing for a loader to do.
    let Some(main) = p.images.first() else { return writeln!(out, "\tnot a dynamic executable") };
    if main.facts().is_some_and(|f| !f.has_dynamic) {
        return writeln!(out, "\tnot a dynamic executable");
    }
    let asks = p.decisions.iter().any(|d| d.how != How::Exec);
    if !p.images.iter().any(|i| i.role == Role::Loader) || !asks {
        return writeln!(out, "\tstatically linked");
    }
    let is_glibc = p.dialect().family == Family::Glibc;
    let mut lines = vec![if is_glibc {
        format!("\tlinux-vdso.so.1 {ADDRESS}")
    } else {
        format!("\t{} {ADDRESS}", escape::text(&p.images[1].name))
    }];
    // The loader's list of maps: in the order in which they were made, a missing library as a map without a file.
    let mut place_of = vec![0; p.images.len()];
    let mut images = p.images.iter().enumerate().filter(|(_, i)| i.role == Role::Library).peekable();
    for (n, d) in p.decisions.iter().enumerate() {
        while let Some((index, image)) = images.next_if(|(_, i)| i.decision.index() <= n) {
            place_of[index] = lines.len();
            if image.unloaded_by.is_none() {
                lines.push(line(p, ImageId(index as u32), is_glibc));
            }
        }
        if d.chosen.is_none() && matches!(d.how, How::Needed | How::Filter | How::Dlopen) {
            lines.push(format!("\t{} => not found", escape::text(d.asked.as_bstr())));
        }
    }
    // The loader's own map is moved behind the one that stands before it in the program's search list; nothing else is
    // looked at, so that it can stand in front of a missing library and of the vdso (dl_main, elf/rtld.c).
    let order = &p.startup_order;
    let at = order.iter().position(|id| p.image(*id).role == Role::Loader);
    if let Some(at) = at.filter(|_| is_glibc) {
        let before = at.checked_sub(1).and_then(|i| order.get(i)).filter(|id| p.image(**id).role == Role::Library);
        let place = before.map_or(0, |id| place_of[id.index()] + 1);
        lines.insert(place.min(lines.len()), line(p, order[at], is_glibc));
    }
    for line in lines {
        writeln!(out, "{line}")?;
    }
    Ok(())
}

/// One library: the name that made it load and its path, or the path alone when the two are equal.
fn line(p: &Process, id: ImageId, is_glibc: bool) -> String {
    let image = p.image(id);
    let asked = match image.names.first() {
        Some(name) if is_glibc => name,
        _ => &p.decisions[image.decision.index()].asked,
    };
    let path = escape::text(&image.name);
    if is_glibc && *asked == image.name {
        format!("\t{path} {ADDRESS}")
    } else {
        format!("\t{} => {path} {ADDRESS}", escape::text(asked))
    }
}
