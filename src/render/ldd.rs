//! ldd's own form, for scripts that parse it. Addresses are not simulated and read as zero.

use std::io::{self, Write};

use bstr::ByteSlice;

use super::{Report, escape};
use crate::ld::{Family, How, ImageId, Role};

const ADDRESS: &str = "(0x0000000000000000)";

/// Writes the list of libraries as `ldd` prints it.
pub fn write(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    let p = &report.process;
    // Nothing asked for: no loader at all, or a library without NEEDED, for which ldd says the same.
    if p.images.first().and_then(|i| i.facts()).is_some_and(|f| !f.has_dynamic) {
        return writeln!(out, "\tnot a dynamic executable");
    }
    let asks = p.decisions.iter().any(|d| d.how != How::Exec);
    if !p.images.iter().any(|i| i.role == Role::Loader) || !asks {
        return writeln!(out, "\tstatically linked");
    }
    if p.dialect().family == Family::Glibc {
        writeln!(out, "\tlinux-vdso.so.1 {ADDRESS}")?;
    } else {
        writeln!(out, "\t{} {ADDRESS}", escape::text(&p.images[1].name))?;
    }
    // What is missing stands where it was asked for: ldd keeps a place for it in the load order.
    let mut lines: Vec<(usize, String)> = Vec::new();
    let order = p.load_order();
    let position = |id: ImageId| order.iter().position(|o| *o == id).unwrap_or(usize::MAX);
    for id in &order {
        let image = p.image(*id);
        if image.role == Role::Main || image.unloaded_by.is_some() || !listed(p, *id) {
            continue;
        }
        let path = escape::text(&image.name);
        let asked = image
            .names
            .first()
            .map_or_else(|| escape::text(&p.decisions[image.decision.index()].asked), |n| escape::text(n));
        let line = if p.dialect().family == Family::Musl {
            let asked = escape::text(&p.decisions[image.decision.index()].asked);
            format!("\t{asked} => {path} {ADDRESS}")
        } else if asked == path {
            format!("\t{path} {ADDRESS}")
        } else {
            format!("\t{asked} => {path} {ADDRESS}")
        };
        lines.push((position(*id) * 2, line));
    }
    for d in &p.decisions {
        if d.chosen.is_none() && matches!(d.how, How::Needed | How::Filter | How::Dlopen) {
            let after = last_image_before(p, d);
            lines.push((
                after.map_or(0, position) * 2 + 1,
                format!("\t{} => not found", escape::text(d.asked.as_bstr())),
            ));
        }
    }
    lines.sort_by_key(|(at, _)| *at);
    for (_, line) in lines {
        writeln!(out, "{line}")?;
    }
    Ok(())
}

fn listed(p: &crate::ld::Process, id: ImageId) -> bool {
    let image = p.image(id);
    image.role != Role::Loader || p.decisions.iter().any(|d| d.chosen == Some(id) && d.how == How::Needed)
}

/// The image that was loaded last before a decision was made.
fn last_image_before(p: &crate::ld::Process, decision: &crate::ld::Decision) -> Option<ImageId> {
    let at = p.decisions.iter().position(|d| std::ptr::eq(d, decision))?;
    p.images
        .iter()
        .enumerate()
        .filter(|(_, i)| i.decision.index() < at && i.role != Role::Loader)
        .map(|(i, _)| ImageId(i as u32))
        .next_back()
}
