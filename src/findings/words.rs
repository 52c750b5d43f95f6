//! How findings name things: images, places of the search order, copies and how they compare. Sentences are made of
//! these words; nothing here decides whether something is wrong.

use std::cmp::Ordering;

use bstr::{BStr, BString, ByteSlice};

use super::loading::Knowledge;
use super::prove::quoted;
use super::{Copy, Owner, Part, Remedy};
use crate::discover::python::{Installed, Installer};
use crate::elf::{Facts, file_type, machine_name};
use crate::ld::verify::describe;
use crate::ld::{Decision, How, ImageId, Object, Place, Process, Role, Rule};
use crate::system::{Kind, file_name, normalised, parent};

/// Bytes as text for a sentence: what is not UTF-8 becomes `\xNN`. Control characters stay; renderers escape them.
pub fn shown(bytes: impl AsRef<[u8]>) -> String {
    let mut out = String::new();
    for chunk in bytes.as_ref().utf8_chunks() {
        out.push_str(chunk.valid());
        for byte in chunk.invalid() {
            out.push_str(&format!("\\x{byte:02x}"));
        }
    }
    out
}

/// What brings back files that installed packages list and that are gone, or that are not as they were (`are_there`).
pub fn reinstall(packages: &[Installed], are_there: bool) -> Remedy {
    let plain = |text: &str| {
        !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '+' | '!'))
    };
    let command = |by: Installer, start: &str, equals: &str| {
        // What is read from a directory's name goes into a command only when a shell takes it as it is.
        let named = packages.iter().filter(|p| p.by == by).map(|p| (shown(&p.name), shown(&p.version)));
        let named = named.filter(|(name, version)| plain(name) && plain(version));
        let words: Vec<String> = named.map(|(name, version)| format!("{name}{equals}{version}")).collect();
        (!words.is_empty()).then(|| format!("{start} {}", words.join(" ")))
    };
    let pip = command(Installer::Pip, "pip install --force-reinstall --no-deps", "==");
    let conda = command(Installer::Conda, "conda install --force-reinstall", "=");
    let names: Vec<String> = packages.iter().map(|p| format!("{} {}", shown(&p.name), shown(&p.version))).collect();
    let what = match (are_there, packages.len()) {
        (true, _) => "the file is one of its own",
        (false, 1) => "its list of files has what is gone",
        (false, _) => "their lists of files have what is gone",
    };
    let summary = format!("install {} again: {what}", enumerate(&names));
    Remedy { summary, commands: pip.into_iter().chain(conda).collect(), verified: false, after: None }
}

/// What gets required distributions that are not installed; each as pip takes it.
pub fn install(requirements: &[String]) -> Remedy {
    let words: Vec<String> = requirements.iter().map(|r| quoted(r.as_bytes().as_bstr())).collect();
    let is_one = requirements.len() == 1;
    let them = if is_one { "which is required and not installed" } else { "which are required and not installed" };
    Remedy {
        summary: format!("install {}, {them}", enumerate(requirements)),
        commands: vec![format!("pip install {}", words.join(" "))],
        verified: false,
        after: None,
    }
}

/// Where a link leads that leads nowhere.
pub fn dead_link(process: &Process, path: &BStr) -> Option<String> {
    let system = process.store().system();
    let path = system.absolute(path);
    let is_link = || system.files.lstat(path.as_bstr()).is_ok_and(|meta| meta.kind == Kind::Link);
    let is_dead = || system.files.stat(path.as_bstr()).is_err();
    if is_link() && is_dead() { system.files.read_link(path.as_bstr()).ok().map(shown) } else { None }
}

/// The short name of an image: the file name it was loaded by.
pub fn label(process: &Process, id: ImageId) -> String {
    shown(file_name(process.image(id).name.as_bstr()))
}

/// A place of the search order in words: `RUNPATH[1] of libcusparse.so.12`.
pub fn place(process: &Process, place: Place) -> String {
    let entry = place.entry.map(|n| format!("[{n}]")).unwrap_or_default();
    let of = place.owner.map(|id| format!(" of {}", label(process, id))).unwrap_or_default();
    match place.rule {
        Rule::Exec => "started".into(),
        Rule::Path => "by its path".into(),
        Rule::Rpath => format!("RPATH{entry}{of}"),
        Rule::LibraryPath => format!("LD_LIBRARY_PATH{entry}"),
        Rule::Runpath => format!("RUNPATH{entry}{of}"),
        Rule::Cache => "cache".into(),
        Rule::Default => "default directory".into(),
        Rule::Preload => format!("preload{entry}"),
        Rule::AlreadyLoaded => "already loaded".into(),
        Rule::MuslPath => format!("musl path{entry}"),
    }
}

/// Where a preload entry stands: the variable or file, and its index there.
pub fn preload_source(process: &Process, decision: &Decision) -> Option<(String, u32)> {
    if decision.how != How::Preload {
        return None;
    }
    let note = &process.steps.get(decision.step.index())?.note;
    let (source, rest) = note.split_once('[')?;
    Some((source.to_owned(), rest.strip_suffix(']')?.parse().ok()?))
}

/// How an image came into the process, in words.
pub fn arrival(process: &Process, id: ImageId) -> String {
    let decision = &process.decisions[process.image(id).decision.index()];
    if let Some((source, entry)) = preload_source(process, decision) {
        return format!("{source}[{entry}]");
    }
    match &decision.via {
        Some(via) => place(process, via.place),
        None => String::new(),
    }
}

/// Names in a sentence: `a`, `a and b`, `a, b and 3 more`.
pub fn enumerate(names: &[String]) -> String {
    match names {
        [] => String::new(),
        [one] => one.clone(),
        [a, b] => format!("{a} and {b}"),
        [a, b, c] => format!("{a}, {b} and {c}"),
        [a, b, rest @ ..] => format!("{a}, {b} and {} more", rest.len()),
    }
}

/// The word that goes with a number: `library` with 1, `libraries` with every other.
pub fn plural<'a>(n: usize, one: &'a str, many: &'a str) -> &'a str {
    if n == 1 { one } else { many }
}

/// `1 library`, `2 libraries`.
pub fn count(n: usize, one: &str, many: &str) -> String {
    format!("{n} {}", plural(n, one, many))
}

/// `a` or `an` for a word that follows.
pub fn article(word: &str) -> &'static str {
    if word.starts_with(['a', 'e', 'i', 'o', 'u', '8']) { "an" } else { "a" }
}

/// The path without `..`, when the shorter text names the same file; links can make it another one.
pub fn readable(process: &Process, path: &BStr) -> BString {
    let short = normalised(path);
    if short == path {
        return short;
    }
    let store = process.store();
    let key = |p: &BStr| store.stat(p).ok().map(|m| m.key);
    let same = match (key(path), key(short.as_bstr())) {
        (Some(a), Some(b)) => a == b,
        // What does not exist has no identity; without a link on the way `..` means what it seems to.
        (None, None) => path.find("/..").is_some_and(|at| {
            let before = path[..at].as_bstr();
            store.system().files.real_path(before).is_ok_and(|real| real == normalised(before))
        }),
        _ => false,
    };
    if same { short } else { path.to_owned() }
}

/// The version in a file's real name: `libnvJitLink.so.12.0.140` gives `12.0.140`. `None` when it has fewer than two
/// numbers, which the soname says already.
pub fn file_version(real_path: &BStr) -> Option<String> {
    let name = file_name(real_path);
    let at = name.rfind(".so.")? + 4;
    let tail = name[at..].to_str().ok()?;
    let numbers = tail.split('.').filter(|p| !p.is_empty() && p.bytes().all(|b| b.is_ascii_digit())).count();
    (numbers >= 2 && numbers == tail.split('.').count()).then(|| tail.to_owned())
}

/// The distribution of an opened file: asked by the path the loader uses, then by the path without links.
pub fn owner(known: &Knowledge<'_>, path: &BStr, object: Option<&Object>) -> Option<Owner> {
    (known.owner)(path).or_else(|| object.and_then(|o| (known.owner)(o.real_path())))
}

/// A loaded image as a file of a finding.
pub fn image_copy(process: &Process, known: &Knowledge<'_>, part: Part, id: ImageId, place: String) -> Copy {
    let image = process.image(id);
    Copy {
        part,
        path: readable(process, image.name.as_bstr()),
        image: Some(id),
        owner: owner(known, image.name.as_bstr(), Some(&image.object)),
        version: file_version(image.object.real_path()),
        place,
    }
}

/// A file that was looked at as a file of a finding.
pub fn path_copy(process: &Process, known: &Knowledge<'_>, part: Part, path: &BStr, place: String) -> Copy {
    let object = process.store().open(path).ok();
    Copy {
        part,
        path: readable(process, path),
        image: None,
        owner: owner(known, path, object.as_deref()),
        version: object.as_ref().and_then(|o| file_version(o.real_path())),
        place,
    }
}

/// How two copies of one library compare.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Relation {
    /// The same build under two names.
    Same,
    /// The first is older.
    Older,
    /// The first is newer.
    Newer,
    /// Nothing tells.
    Unknown,
}

/// Compares two copies: by build id, by the versions they define, by the versions of their distributions, by file names.
pub fn relation(a: (&Object, Option<&Owner>), b: (&Object, Option<&Owner>)) -> Relation {
    let ((a, a_owner), (b, b_owner)) = (a, b);
    if let (Some(x), Some(y)) = (a.facts(), b.facts()) {
        if x.build_id.is_some() && x.build_id == y.build_id && x.file_size == y.file_size {
            return Relation::Same;
        }
        let only_a = !missing_versions(b, a).is_empty();
        let only_b = !missing_versions(a, b).is_empty();
        match (only_a, only_b) {
            (false, true) => return Relation::Older,
            (true, false) => return Relation::Newer,
            _ => {}
        }
    }
    let by_owner = match (a_owner, b_owner) {
        (Some(x), Some(y)) if x.package == y.package => compare_versions(&x.version, &y.version),
        _ => None,
    };
    let by_name = || compare_versions(&file_version(a.real_path())?, &file_version(b.real_path())?);
    match by_owner.or_else(by_name) {
        Some(Ordering::Less) => Relation::Older,
        Some(Ordering::Greater) => Relation::Newer,
        Some(Ordering::Equal) | None => Relation::Unknown,
    }
}

/// Versions that `full` defines and `lacking` does not, in file order.
pub fn missing_versions(lacking: &Object, full: &Object) -> Vec<String> {
    let definitions = |o: &Object| o.facts().and_then(|f| f.version_definitions.clone()).unwrap_or_default();
    let have: Vec<BString> = definitions(lacking).into_iter().map(|d| d.name).collect();
    definitions(full)
        .into_iter()
        .filter(|d| d.flags & 1 == 0 && !have.contains(&d.name))
        .map(|d| shown(d.name))
        .collect()
}

/// Compares dotted numbers; `None` when either holds none in front.
pub fn compare_versions(a: &str, b: &str) -> Option<Ordering> {
    let numbers =
        |text: &str| -> Vec<u64> { text.split(['.', '+', '-']).map_while(|part| part.parse().ok()).collect() };
    let (a, b) = (numbers(a), numbers(b));
    (!a.is_empty() && !b.is_empty()).then(|| a.cmp(&b))
}

/// `1 byte`, `100 bytes`.
fn bytes(n: u64) -> String {
    format!("{n} {}", if n == 1 { "byte" } else { "bytes" })
}

/// What a file is that cannot be loaded, in words: `a git-lfs pointer`, `a directory`.
pub fn what_is(process: &Process, path: &BStr) -> String {
    let Ok(object) = process.store().open(path) else { return "a file that cannot be opened".into() };
    match object.meta.kind {
        Kind::Directory => return "a directory".into(),
        Kind::Other => return "a device, pipe or socket".into(),
        Kind::File | Kind::Link => {}
    }
    let head = match &object.head {
        Ok(head) => head.as_slice(),
        Err(errno) => return format!("a file that cannot be read: {errno}"),
    };
    let starts = |texts: &[&[u8]]| texts.iter().any(|t| head.starts_with(t));
    if head.is_empty() {
        "an empty file".into()
    } else if head.iter().all(|b| *b == 0) {
        "a file of zero bytes (was it copied or downloaded in full?)".into()
    } else if starts(&[b"!<arch>", b"!<thin>"]) {
        "a static archive".into()
    } else if starts(&[b"\x1f\x8b", b"PK\x03\x04", b"\xfd7zXZ", b"BZh", b"\x28\xb5\x2f\xfd"]) {
        "a compressed file".into()
    } else if starts(&[b"<!DOCTYPE", b"<!doctype", b"<html", b"<HTML"]) {
        "a web page".into()
    } else if starts(&[b"MZ"]) {
        "a Windows library".into()
    } else if starts(&[b"\xcf\xfa\xed\xfe", b"\xce\xfa\xed\xfe", b"\xca\xfe\xba\xbe"]) {
        "a macOS library".into()
    } else if starts(&[b"\x7fELF"]) {
        let short = head.len() < process.dialect().layout.header_size();
        match object.header(process.dialect().layout) {
            _ if short => format!("an ELF file cut off after {}", bytes(object.meta.size)),
            Some(h) if h.file_type == file_type::REL => "an object file (.o), not yet linked".into(),
            _ if cut_short(process, &object).is_some() => {
                format!("an ELF file cut off after {}", bytes(object.meta.size))
            }
            _ => "a damaged ELF file".into(),
        }
    } else if head.iter().all(|b| (0x20..0x7f).contains(b) || matches!(b, b'\n' | b'\t' | b'\r')) {
        match describe(head) {
            "not an ELF file" => "a text file".into(),
            words => words.into(),
        }
    } else {
        describe(head).into()
    }
}

/// Size that an ELF file has, and the least that it must have had by its own headers, in bytes; `None` when nothing of
/// it is known to be missing. What no file can be long enough for is damage of another kind.
pub fn cut_short(process: &Process, object: &Object) -> Option<(u64, u64)> {
    const LONGEST: u64 = 1 << 46;
    let layout = process.dialect().layout;
    let header = object.header(layout).filter(|h| h.ident.starts_with(b"\x7fELF"))?;
    let table = (layout.program_header_size() as u64).saturating_mul(header.program_header_count.into());
    let table_end = if table == 0 { 0 } else { header.program_headers_at.saturating_add(table) };
    let segments = object.facts().map_or(0, end_of_segments);
    let least = table_end.max(segments);
    (least > object.meta.size && least < LONGEST).then_some((object.meta.size, least))
}

/// Where the last segment ends in the file.
pub fn end_of_segments(facts: &Facts) -> u64 {
    facts.segments.iter().map(|s| s.offset.saturating_add(s.file_size)).max().unwrap_or(0)
}

/// What a file of another class or machine is for: `a library for aarch64`, `a 32-bit library (i386)`.
pub fn architecture(process: &Process, path: &BStr) -> String {
    let Ok(object) = process.store().open(path) else { return "a library for another architecture".into() };
    let Ok(head) = &object.head else { return "a library for another architecture".into() };
    let machine = match (head.get(5), head.get(18..20)) {
        (Some(2), Some(&[hi, lo])) => u16::from_be_bytes([hi, lo]),
        (_, Some(&[lo, hi])) => u16::from_le_bytes([lo, hi]),
        _ => 0,
    };
    match head.get(4) {
        Some(1) if process.dialect().layout.is_64 => format!("a 32-bit library ({})", machine_name(machine)),
        Some(2) if !process.dialect().layout.is_64 => format!("a 64-bit library ({})", machine_name(machine)),
        _ => format!("a library for {}", machine_name(machine)),
    }
}

/// The directory that a candidate was looked for in.
pub fn directory(path: &BStr) -> BString {
    match parent(path) {
        dir if dir.is_empty() => ".".into(),
        dir => dir.to_owned(),
    }
}

/// True for libraries (not the program, not the loader) that are loaded when all steps are done.
pub fn is_loaded_library(process: &Process, id: ImageId) -> bool {
    process.image(id).role == Role::Library && process.is_loaded(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_real_names_and_compared_by_number() {
        assert_eq!(file_version("/x/libnvJitLink.so.12.0.140".into()).as_deref(), Some("12.0.140"));
        assert_eq!(file_version("/x/libstdc++.so.6.0.30".into()).as_deref(), Some("6.0.30"));
        for without in ["/x/liba.so.12", "/x/liba.so", "/x/liba.so.1.x", "/x/liba-1.2.so"] {
            assert_eq!(file_version(without.into()), None, "{without}");
        }
        assert_eq!(compare_versions("12.9.86", "12.10.1"), Some(Ordering::Less));
        assert_eq!(compare_versions("2.4.0+cu121", "2.4.0"), Some(Ordering::Equal));
        assert_eq!(compare_versions("x", "1"), None);
    }

    #[test]
    fn names_are_listed_in_a_sentence() {
        let names: Vec<String> = ["a", "b", "c", "d"].map(String::from).into();
        assert_eq!(enumerate(&names[..1]), "a");
        assert_eq!(enumerate(&names[..2]), "a and b");
        assert_eq!(enumerate(&names[..3]), "a, b and c");
        assert_eq!(enumerate(&names), "a, b and 2 more");
        assert_eq!(shown(b"a\xffb"), "a\\xffb");
    }
}
