//! Where libraries lie on the box: the directories of every search of some processes, of the system, of packages and of
//! toolkits.

use bstr::{BStr, BString, ByteSlice};
use rustc_hash::FxHashSet;

use super::audit::Plan;
use crate::discover::copies::{self, Origin, Place};
use crate::discover::python::{EntryKind, Python};
use crate::ld::config::{Configuration, Rules, Status};
use crate::ld::{Family, ImageId, List, Process, Role, Rule};
use crate::render::{Owner, escape};
use crate::system::{Kind, System, absolute, file_name, join, parent};

/// Most files of one directory that are looked at.
const MAX_FILES: usize = 20_000;

/// The library files of the environment's packages and of the interpreter's own extensions. True when a tree was too
/// big to be seen whole.
pub fn package_files(system: &System, python: &Python) -> (Vec<BString>, bool) {
    let is_packages =
        |kind| matches!(kind, EntryKind::Site | EntryKind::UserSite | EntryKind::Pth | EntryKind::PythonPath);
    let sites = python.path().iter().filter(|e| is_packages(e.kind)).map(|e| e.directory.clone());
    let own = python.interpreter.standard.iter().filter(|d| d.ends_with(b"/lib-dynload")).cloned();
    copies::sweep(system, &sites.chain(own).collect::<Vec<_>>())
}

/// The distribution that a file belongs to: one on `sys.path`, or one whose metadata lies above the file.
pub fn owner(python: &Python, path: &BStr) -> Option<Owner> {
    let text = |t: &BStr| escape::text(t);
    match python.owner_of(path) {
        Some(owner) => Some(Owner { package: text(owner.name()), version: text(owner.version()) }),
        None => {
            let beside = python.owner_beside(path)?;
            Some(Owner { package: text(beside.name.as_bstr()), version: text(beside.version.as_bstr()) })
        }
    }
}

/// The directories that the searches of processes lead to, and those in which libraries usually lie. Each once, in the
/// order of the search.
pub fn of<'p>(system: &System, plan: &Plan, processes: impl Iterator<Item = &'p mut Process>) -> Vec<Place> {
    let mut places: Vec<Place> = Vec::new();
    let mut seen: FxHashSet<BString> = FxHashSet::default();
    let mut add = |directory: &BStr, origin: Origin| {
        let mut directory = directory.to_owned();
        while directory.len() > 1 && directory.ends_with(b"/") {
            directory.pop();
        }
        let directory = absolute(system.host.cwd.as_bstr(), directory.as_bstr());
        if seen.insert(directory.clone()) {
            places.push(Place { directory, origin });
        }
    };
    let mut processes: Vec<&mut Process> = processes.collect();
    for process in &mut processes {
        for (n, element) in library_path(process).iter().enumerate() {
            if let Some(directory) = process.expand_element(ImageId(0), element.as_bstr())
                && !process.images.is_empty()
            {
                let here = if directory.is_empty() { ".".into() } else { directory };
                add(here.as_bstr(), Origin::LibraryPath(n as u32));
            }
        }
    }
    for directory in &plan.dialect.system_dirs {
        add(directory.as_bstr(), Origin::Default);
    }
    if plan.dialect.family == Family::Glibc {
        let minor = if plan.dialect.version.0 >= 2 { u32::from(plan.dialect.version.1) } else { 0 };
        let rules = Rules::glibc(minor, plan.dialect.machine);
        let configuration = Configuration::read(system, &rules, &rules.system_directories(&plan.dialect.system_dirs));
        for directory in configuration.directories.iter().filter(|d| d.status == Status::Scanned) {
            add(directory.path.as_bstr(), Origin::Config);
        }
    }
    for process in &mut processes {
        for index in 0..process.images.len() {
            let id = ImageId(index as u32);
            let name = file_name(process.image(id).name.as_bstr()).to_owned();
            for rule in [Rule::Rpath, Rule::Runpath] {
                let list = if rule == Rule::Rpath { process.rpath_of(id) } else { process.runpath_of(id) };
                for dir in list.iter().flat_map(|l| &l.dirs) {
                    let text = if dir.text.is_empty() { ".".into() } else { dir.text.clone() };
                    add(text.as_bstr(), Origin::ImagePath { rule, image: name.clone() });
                }
            }
            if process.image(id).role != Role::Main {
                add(parent(process.image(id).name.as_bstr()), Origin::Loaded);
            }
        }
    }
    for place in copies::usual_places(system, &plan.host.env) {
        add(place.directory.as_bstr(), place.origin);
    }
    places
}

/// The elements of LD_LIBRARY_PATH.
fn library_path(process: &Process) -> Vec<BString> {
    let value = process.host().env.get("LD_LIBRARY_PATH").map(|v| v.to_owned()).unwrap_or_default();
    List::LibraryPath.elements(process.dialect().family, value.as_bstr()).map(|e| e.to_owned()).collect()
}

/// Files in directories whose names could be libraries.
pub fn files_in(system: &System, places: &[Place]) -> Vec<BString> {
    let mut out = Vec::new();
    let mut seen = FxHashSet::default();
    for place in places {
        let Ok(meta) = system.stat(place.directory.as_bstr()) else { continue };
        if meta.kind != Kind::Directory || !seen.insert(meta.key) {
            continue;
        }
        let entries = system.files.list(system.absolute(place.directory.as_bstr()).as_bstr()).unwrap_or_default();
        let named = entries.iter().take(MAX_FILES).filter(|e| e.name.contains_str(".so"));
        let libraries = named.filter(|e| matches!(e.kind, Kind::File | Kind::Link));
        out.extend(libraries.map(|e| join(place.directory.as_bstr(), &e.name)));
    }
    out
}
