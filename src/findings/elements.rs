//! Search paths as they are written: empty, relative and missing elements, of LD_LIBRARY_PATH and of the RPATH or RUNPATH
//! of what is loaded.

use bstr::{BStr, ByteSlice};

use super::words;
use super::{AUDIT_LIBRARY, EMPTY_ELEMENT, Evidence, Finding, IGNORED_VARIABLE, MISSING_DIRECTORY, RELATIVE_ELEMENT};
use crate::ld::{Family, ImageId, List, Process, Role};

/// Looks at LD_LIBRARY_PATH and at the path lists of every image.
pub fn check(process: &Process) -> Vec<Finding> {
    let mut out = Vec::new();
    if process.images.iter().all(|i| i.role != Role::Loader) {
        // A static program: no search takes place.
        return out;
    }
    ignored(process, &mut out);
    audit_libraries(process, &mut out);
    library_path(process, &mut out);
    for (index, image) in process.images.iter().enumerate() {
        if image.unloaded_by.is_none() {
            image_lists(process, ImageId(index as u32), &mut out);
        }
    }
    out
}

/// What a privileged process makes of variables that are set (rules R9.1, R9.2).
fn ignored(process: &Process, out: &mut Vec<Finding>) {
    let host = process.host();
    if !host.secure {
        return;
    }
    let why = match (process.privilege, process.images.first()) {
        (Some(privilege), Some(program)) => format!("{} is {privilege}", words::shown(&program.name)),
        _ => "the process is taken to be privileged".into(),
    };
    let glibc = process.dialect().family == Family::Glibc;
    for (name, in_part) in [("LD_LIBRARY_PATH", false), ("LD_PRELOAD", glibc), ("LD_AUDIT", glibc)] {
        // musl knows no LD_AUDIT.
        if (name == "LD_AUDIT" && !glibc) || host.env.get(name).is_none_or(|text| text.is_empty()) {
            continue;
        }
        let finding = match in_part {
            false => Finding::new(IGNORED_VARIABLE, name, format!("{name} is ignored: {why}")),
            true => Finding::new(IGNORED_VARIABLE, name, format!("{name} counts in part only: {why}")).because(
                "names with a slash are ignored; others are looked for without the loader's cache, and only files with the \
                 set-user-ID bit count.",
            ),
        };
        out.push(finding.with(Evidence::Variable(name.into(), None)));
    }
}

/// Most entries of LD_AUDIT that are told one by one.
const MAX_AUDIT_LIBRARIES: usize = 16;

/// What LD_AUDIT names. The loader opens these files before anything else, and they may answer its searches and symbols
/// (rule R11.12); one that cannot be opened is ignored with a line of its own.
fn audit_libraries(process: &Process, out: &mut Vec<Finding>) {
    const NAME: &str = "LD_AUDIT";
    let host = process.host();
    if process.dialect().family != Family::Glibc {
        return;
    }
    let Some(text) = host.env.get(NAME) else { return };
    let names = text.split_str(":").enumerate().filter(|(_, name)| !name.is_empty());
    for (entry, name) in names.take(MAX_AUDIT_LIBRARIES) {
        let name = name.as_bstr();
        // Told with the variable (rule R9.2).
        if host.secure && (name.contains(&b'/') || name.len() >= 255) {
            continue;
        }
        let shown = words::shown(name);
        // Where a bare name is found is a search of its own, and a token has its own rules.
        let is_path = name.contains(&b'/') && !name.contains(&b'$');
        let missing = is_path && process.store().stat(name).is_err_and(|errno| errno == crate::system::Errno::ENOENT);
        let finding = if missing {
            let summary = format!("{NAME}[{entry}], {shown}, does not exist: the loader ignores it");
            Finding::new(AUDIT_LIBRARY, name, summary).because(format!(
                "it says at every start: ERROR: ld.so: object '{shown}' cannot be loaded as audit interface: cannot open \
                 shared object file; ignored."
            ))
        } else {
            let summary =
                format!("{NAME}[{entry}], {shown}, is not simulated: an audit library may change every answer");
            Finding::new(AUDIT_LIBRARY, name, summary).because(
                "the loader asks it about each name that it searches, each file that it loads and each symbol that it binds; \
                 what is said here holds without it.",
            )
        };
        out.push(finding.with(Evidence::Variable(NAME.into(), Some(entry as u32))));
    }
}

fn library_path(process: &Process, out: &mut Vec<Finding>) {
    const NAME: &str = "LD_LIBRARY_PATH";
    let host = process.host();
    let family = process.dialect().family;
    let glibc = family == Family::Glibc;
    let Some(text) = host.env.get(NAME).filter(|t| !t.is_empty() && !host.secure) else { return };
    let elements: Vec<&BStr> = List::LibraryPath.elements(family, text).collect();
    let mut empty = Vec::new();
    for (entry, element) in elements.iter().enumerate() {
        let variable = || Evidence::Variable(NAME.into(), Some(entry as u32));
        if element.is_empty() {
            empty.push(entry);
            continue;
        }
        // musl takes the elements as they stand; an element whose token has no value does not count with glibc.
        let expanded = if glibc {
            match process.expand_element(ImageId(0), element) {
                Some(dir) if !dir.is_empty() => dir,
                _ => continue,
            }
        } else {
            (*element).to_owned()
        };
        let shown = words::shown(element);
        if !expanded.starts_with(b"/") {
            let summary =
                format!("{NAME}[{entry}], {shown}, is relative: what it names depends on the current directory");
            out.push(Finding::new(RELATIVE_ELEMENT, (*element).to_owned(), summary).with(variable()));
        } else if !process.store().is_dir(expanded.as_bstr()) {
            let summary = match process.store().stat(expanded.as_bstr()) {
                Ok(_) => format!("{NAME}[{entry}], {shown}, is not a directory"),
                Err(errno) if errno == crate::system::Errno::ENOENT => {
                    format!("{NAME}[{entry}], {shown}, does not exist")
                }
                Err(errno) => format!("{NAME}[{entry}], {shown}, cannot be searched: {errno}"),
            };
            out.push(Finding::new(MISSING_DIRECTORY, (*element).to_owned(), summary).with(variable()));
        }
    }
    if let (Some(first), true) = (empty.first(), List::LibraryPath.empty_element_counts(family)) {
        let how = if elements.len() == empty.len() {
            "consists of separators only".to_owned()
        } else {
            position(&empty, elements.len())
        };
        let summary = format!("{NAME} {how}: the current directory is searched too");
        out.push(
            Finding::new(EMPTY_ELEMENT, NAME, summary)
                .because(format!(
                    "an empty element stands for the current directory, at present {}.",
                    words::shown(&host.cwd)
                ))
                .with(Evidence::Variable(NAME.into(), Some(*first as u32))),
        );
    }
}

/// How the empty elements came about, as one sees it in the text.
fn position(empty: &[usize], count: usize) -> String {
    let mut parts = Vec::new();
    if empty.first() == Some(&0) {
        parts.push("begins with a separator");
    }
    if empty.iter().any(|n| *n != 0 && *n + 1 != count) {
        parts.push("holds two separators in a row");
    }
    if empty.last().is_some_and(|n| *n + 1 == count) {
        parts.push("ends in a separator");
    }
    parts.join(" and ")
}

fn image_lists(process: &Process, id: ImageId, out: &mut Vec<Finding>) {
    let family = process.dialect().family;
    let Some(facts) = process.image(id).facts() else { return };
    let lists = [("RPATH", facts.effective_rpath()), ("RUNPATH", facts.runpath.as_ref())];
    for (tag, text) in lists.into_iter().filter_map(|(tag, text)| Some((tag, text.filter(|t| !t.is_empty())?))) {
        let label = words::label(process, id);
        let elements: Vec<&BStr> = List::RunPath.elements(family, text.as_bstr()).collect();
        let empty: Vec<usize> = (0..elements.len()).filter(|n| elements[*n].is_empty()).collect();
        if !empty.is_empty() && List::RunPath.empty_element_counts(family) {
            let how = if empty.len() == elements.len() {
                "consists of separators only".to_owned()
            } else {
                position(&empty, elements.len())
            };
            let summary = format!("{tag} of {label} {how}: the current directory is searched too");
            out.push(Finding::new(EMPTY_ELEMENT, label.clone(), summary).with(Evidence::Image(id)));
        }
        for (entry, element) in elements.iter().enumerate().filter(|(_, e)| !e.is_empty()) {
            let expanded = process.expand_element(id, element).unwrap_or_default();
            if expanded.is_empty() || expanded.starts_with(b"/") {
                continue;
            }
            let summary = format!(
                "{tag}[{entry}] of {label}, {}, is relative: what it names depends on the current directory",
                words::shown(element)
            );
            out.push(Finding::new(RELATIVE_ELEMENT, label.clone(), summary).with(Evidence::Image(id)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_elements_are_described_as_they_are_seen() {
        assert_eq!(position(&[2], 3), "ends in a separator");
        assert_eq!(position(&[0], 3), "begins with a separator");
        assert_eq!(position(&[1], 3), "holds two separators in a row");
        assert_eq!(position(&[0, 2], 3), "begins with a separator and ends in a separator");
    }
}
