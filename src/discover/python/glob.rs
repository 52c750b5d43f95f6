//! Python's `glob.glob`, with its order.
//!
//! `glob` gives the names of a directory in the order of `os.scandir`, which is the order of the directory itself.
//! Frameworks take the first match, so the order is kept ([`Files::list_unsorted`](crate::system::Files)). Semantics
//! of CPython's `Lib/glob.py` and `Lib/fnmatch.py` without `recursive`: `*`, `?`, `[seq]`, `[!seq]`; a leading dot
//! is matched only by a dot; matching is by character, and a byte that is not UTF-8 counts as a character.

use bstr::{BStr, BString, ByteSlice};

use crate::system::{Kind, System, file_name};

/// At most this many matches are given.
const MAX_MATCHES: usize = 100_000;

/// `glob.glob(pattern)`. A relative pattern is taken from the working directory and gives relative paths.
pub fn glob(system: &System, pattern: &BStr) -> Vec<BString> {
    let mut out = matches(system, pattern, false);
    out.truncate(MAX_MATCHES);
    out
}

fn has_magic(text: &[u8]) -> bool {
    text.iter().any(|b| matches!(b, b'*' | b'?' | b'['))
}

/// `os.path.split`: the directory without its trailing slashes (unless it is all slashes), and the last name.
fn split(path: &BStr) -> (&BStr, &BStr) {
    let name = file_name(path);
    let directory = &path[..path.len() - name.len()];
    let trimmed = directory.trim_end_with(|c| c == '/');
    (if trimmed.is_empty() { directory.as_bstr() } else { trimmed.as_bstr() }, name)
}

/// `glob._iglob`. With `directories_only` what is no directory is left out.
fn matches(system: &System, pattern: &BStr, directories_only: bool) -> Vec<BString> {
    let (directory, name) = split(pattern);
    if !has_magic(pattern) {
        let there = if name.is_empty() { system.is_dir(directory) } else { exists(system, pattern) };
        return if there { vec![pattern.to_owned()] } else { Vec::new() };
    }
    let directories = if directory != pattern && has_magic(directory) {
        matches(system, directory, true)
    } else {
        vec![directory.to_owned()]
    };
    let mut out = Vec::new();
    for directory in directories {
        if has_magic(name) {
            for found in names(system, directory.as_bstr(), directories_only) {
                if (!found.starts_with(b".") || name.starts_with(b".")) && matches_name(found.as_bstr(), name) {
                    out.push(joined(directory.as_bstr(), found.as_bstr()));
                }
            }
        } else {
            let path = joined(directory.as_bstr(), name);
            let there =
                if name.is_empty() { system.is_dir(directory.as_bstr()) } else { exists(system, path.as_bstr()) };
            if there {
                out.push(path);
            }
        }
        if out.len() >= MAX_MATCHES {
            break;
        }
    }
    out
}

/// `os.path.join` of two parts of which the second is relative.
fn joined(directory: &BStr, name: &BStr) -> BString {
    crate::system::join(directory, name)
}

fn exists(system: &System, path: &BStr) -> bool {
    system.files.lstat(system.absolute(path).as_bstr()).is_ok()
}

fn names(system: &System, directory: &BStr, directories_only: bool) -> Vec<BString> {
    let path = system.absolute(directory);
    let entries = system.files.list_unsorted(path.as_bstr()).unwrap_or_default();
    entries
        .into_iter()
        .filter(|entry| {
            !directories_only
                || entry.kind == Kind::Directory
                || entry.kind == Kind::Link && system.is_dir(joined(path.as_bstr(), entry.name.as_bstr()).as_bstr())
        })
        .map(|entry| entry.name)
        .collect()
}

/// `fnmatch.fnmatchcase(name, pattern)`. Time is bounded by the product of the lengths.
pub fn matches_name(name: &BStr, pattern: &BStr) -> bool {
    let name: Vec<u32> = characters(name);
    let pattern = compile(&characters(pattern));
    // Greedy matching with one point to come back to, the last star: enough, since each other part is one character.
    let (mut n, mut p) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        match pattern.get(p) {
            Some(Part::Star) => {
                star = Some((p, n));
                p += 1;
            }
            Some(part) if part.takes(name[n]) => {
                n += 1;
                p += 1;
            }
            _ => match star {
                Some((at, from)) => {
                    star = Some((at, from + 1));
                    n = from + 1;
                    p = at + 1;
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|part| matches!(part, Part::Star))
}

enum Part {
    Star,
    Any,
    One(u32),
    /// Ranges (a single character is a range of one), and whether the set is negated.
    Set(Vec<(u32, u32)>, bool),
}

impl Part {
    fn takes(&self, c: u32) -> bool {
        match self {
            Part::Star => false,
            Part::Any => true,
            Part::One(own) => *own == c,
            Part::Set(ranges, negated) => ranges.iter().any(|(low, high)| (*low..=*high).contains(&c)) != *negated,
        }
    }
}

/// Characters as numbers; a byte outside UTF-8 becomes U+DC80 + its low bits, as Python's `surrogateescape` does.
fn characters(text: &BStr) -> Vec<u32> {
    let mut out = Vec::with_capacity(text.len());
    for chunk in text.utf8_chunks() {
        out.extend(chunk.valid().chars().map(u32::from));
        out.extend(chunk.invalid().iter().map(|b| 0xdc00 + u32::from(*b)));
    }
    out
}

fn compile(pattern: &[u32]) -> Vec<Part> {
    let is = |i: usize, c: char| pattern.get(i) == Some(&u32::from(c));
    let mut out = Vec::new();
    let mut i = 0;
    while let Some(&c) = pattern.get(i) {
        i += 1;
        match char::from_u32(c) {
            Some('*') => {
                if !matches!(out.last(), Some(Part::Star)) {
                    out.push(Part::Star);
                }
            }
            Some('?') => out.push(Part::Any),
            Some('[') => {
                let mut end = i;
                if is(end, '!') {
                    end += 1;
                }
                if is(end, ']') {
                    end += 1;
                }
                while end < pattern.len() && !is(end, ']') {
                    end += 1;
                }
                if end >= pattern.len() {
                    // An unclosed bracket stands for itself.
                    out.push(Part::One(c));
                    continue;
                }
                let negated = is(i, '!');
                out.push(Part::Set(ranges(&pattern[i + usize::from(negated)..end]), negated));
                i = end + 1;
            }
            _ => out.push(Part::One(c)),
        }
    }
    out
}

/// Ranges of a set's inside. A hyphen at an end stands for itself, and a range that runs backwards is empty.
fn ranges(inside: &[u32]) -> Vec<(u32, u32)> {
    let hyphen = u32::from('-');
    let mut out = Vec::new();
    let mut i = 0;
    while let Some(&low) = inside.get(i) {
        match (inside.get(i + 1), inside.get(i + 2)) {
            (Some(&middle), Some(&high)) if middle == hyphen => {
                if low <= high {
                    out.push((low, high));
                }
                i += 3;
            }
            _ => {
                out.push((low, low));
                i += 1;
            }
        }
    }
    out
}
