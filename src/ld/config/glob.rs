//! The patterns of `include` lines, as glibc's `glob` and `fnmatch` take them.

use bstr::{BStr, BString, ByteSlice};

use super::{is_blank, is_space};
use crate::system::{self, System};

/// Paths that one pattern may stand for.
const MATCHES_LIMIT: usize = 10_000;

/// glibc's `glob` without flags, sorted as in the C locale: `*`, `?` and brackets do not match a leading period, a
/// backslash quotes, and a pattern without any of them stands for itself when it exists.
///
/// `names_left` is how many names may still be compared with patterns; at 0 nothing more is listed.
pub(super) fn glob(system: &System, pattern: &BStr, names_left: &mut usize) -> Vec<BString> {
    let (directory, name) = match pattern.rfind_byte(b'/') {
        Some(0) => (BStr::new("/"), pattern[1..].as_bstr()),
        Some(at) => (pattern[..at].as_bstr(), pattern[at + 1..].as_bstr()),
        None => return Vec::new(),
    };
    // A trailing slash asks for a directory, which is no configuration file.
    // No path is longer than the second.
    if name.is_empty() || pattern.len() > 4096 {
        return Vec::new();
    }
    let directories =
        if is_pattern(directory) { glob(system, directory, names_left) } else { vec![unquoted(directory)] };
    let mut out = Vec::new();
    for directory in directories {
        if is_pattern(name) {
            if *names_left == 0 {
                break;
            }
            let names = system.files.list(directory.as_bstr()).unwrap_or_default();
            *names_left = names_left.saturating_sub(names.len().max(1));
            let names = names.iter().filter(|entry| matches(name, entry.name.as_bstr()));
            out.extend(names.map(|entry| system::join(directory.as_bstr(), &entry.name)));
        } else {
            let path = system::join(directory.as_bstr(), unquoted(name));
            out.extend(system.files.lstat(path.as_bstr()).is_ok().then_some(path));
        }
        if out.len() > MATCHES_LIMIT {
            out.truncate(MATCHES_LIMIT);
            break;
        }
    }
    out.sort();
    out
}

/// True when a path has a character that makes it a pattern.
fn is_pattern(path: &BStr) -> bool {
    let mut quoted = false;
    let mut bracket = false;
    path.iter().any(|byte| {
        if std::mem::take(&mut quoted) {
            return false;
        }
        match byte {
            b'\\' => quoted = true,
            b'[' => bracket = true,
            _ => {}
        }
        matches!(byte, b'*' | b'?') || (*byte == b']' && bracket)
    })
}

fn unquoted(text: &BStr) -> BString {
    let mut out = BString::default();
    let mut bytes = text.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'\\' => out.extend(bytes.next()),
            other => out.push(*other),
        }
    }
    out
}

/// `fnmatch` of one path component, in the C locale.
fn matches(pattern: &BStr, name: &BStr) -> bool {
    // A period at the start must be there as itself.
    if name.starts_with(b".") && !pattern.starts_with(b".") && !pattern.starts_with(b"\\.") {
        return false;
    }
    let (mut p, mut n) = (0, 0);
    // Where to go on after the last star: behind it, with one more byte of the name taken.
    let mut retry: Option<(usize, usize)> = None;
    loop {
        let step = match (pattern.get(p), name.get(n)) {
            (Some(b'*'), _) => {
                retry = Some((p + 1, n));
                p += 1;
                continue;
            }
            (None, None) => return true,
            (Some(b'?'), Some(_)) => Some(p + 1),
            (Some(b'\\'), Some(byte)) => (pattern.get(p + 1) == Some(byte)).then_some(p + 2),
            (Some(b'['), Some(byte)) => match bracket(&pattern[p + 1..], *byte) {
                Some((true, length)) => Some(p + 1 + length),
                Some((false, _)) => None,
                // Without an end it is an ordinary character.
                None => (*byte == b'[').then_some(p + 1),
            },
            (Some(literal), Some(byte)) => (literal == byte).then_some(p + 1),
            (None, Some(_)) | (Some(_), None) => None,
        };
        match (step, retry) {
            (Some(next), _) => {
                p = next;
                n += 1;
            }
            (None, Some((after, taken))) if taken < name.len() => {
                retry = Some((after, taken + 1));
                p = after;
                n = taken + 1;
            }
            (None, _) => return false,
        }
    }
}

/// Whether a bracket expression, given without its `[`, takes a byte, and its length with the `]`; `None` without one.
fn bracket(text: &[u8], byte: u8) -> Option<(bool, usize)> {
    let negated = matches!(text.first(), Some(b'!' | b'^'));
    let mut at = usize::from(negated);
    let first = at;
    let mut hit = false;
    loop {
        let from = match *text.get(at)? {
            b']' if at > first => return Some((hit != negated, at + 1)),
            b'[' if matches!(text.get(at + 1), Some(b':')) => {
                let length = text[at + 2..].find(":]")?;
                hit |= class(&text[at + 2..at + 2 + length], byte);
                at += length + 4;
                continue;
            }
            b'\\' => {
                at += 1;
                *text.get(at)?
            }
            other => other,
        };
        at += 1;
        match (text.get(at), text.get(at + 1)) {
            (Some(b'-'), Some(to)) if *to != b']' => {
                at += 2;
                let to = if *to == b'\\' {
                    at += 1;
                    *text.get(at - 1)?
                } else {
                    *to
                };
                hit |= (from..=to).contains(&byte);
            }
            _ => hit |= byte == from,
        }
    }
}

fn class(name: &[u8], byte: u8) -> bool {
    match name {
        b"alnum" => byte.is_ascii_alphanumeric(),
        b"alpha" => byte.is_ascii_alphabetic(),
        b"blank" => is_blank(byte),
        b"cntrl" => byte.is_ascii_control(),
        b"digit" => byte.is_ascii_digit(),
        b"graph" => byte.is_ascii_graphic(),
        b"lower" => byte.is_ascii_lowercase(),
        b"print" => byte.is_ascii_graphic() || byte == b' ',
        b"punct" => byte.is_ascii_punctuation(),
        b"space" => is_space(char::from(byte)),
        b"upper" => byte.is_ascii_uppercase(),
        b"xdigit" => byte.is_ascii_hexdigit(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system::{Host, Tree};

    #[test]
    fn patterns_match_as_fnmatch_does() {
        let yes = [
            ("*.conf", "a.conf"),
            ("*", "a"),
            ("a*b*c", "a1b2b3c"),
            ("?b", "ab"),
            ("[a-c]x", "bx"),
            ("[!a-c]x", "dx"),
            ("[^a-c]x", "dx"),
            ("[]]", "]"),
            ("[a-]", "-"),
            ("[[:digit:]_]", "7"),
            ("[\\]]", "]"),
            ("[", "["),
            ("a[b", "a[b"),
            ("\\*", "*"),
            (".*", ".a"),
            ("*.*.*", "a.b.c"),
            ("", ""),
        ];
        let no = [
            ("*.conf", ".conf"),
            ("?a", ".a"),
            ("[.]a", ".a"),
            ("*", ".a"),
            ("a", "A"),
            ("[!]x]", "x"),
            ("[[:alpha:]]", "1"),
            ("\\*", "a"),
            ("a\\", "a"),
            ("?", ""),
            ("*a", "b"),
        ];
        for (pattern, name) in yes {
            assert!(matches(pattern.into(), name.into()), "{pattern} {name}");
        }
        for (pattern, name) in no {
            assert!(!matches(pattern.into(), name.into()), "{pattern} {name}");
        }
        let stars = "*a".repeat(2000);
        assert!(!matches(stars.as_str().into(), "a".repeat(255).as_str().into()));
    }

    #[test]
    fn paths_come_sorted_and_directories_can_be_patterns() {
        let mut tree = Tree::new();
        for path in ["/e/b/2.c", "/e/a/1.c", "/e/a/0.c", "/e/a/.h.c", "/e/x", "/e/b/q*"] {
            tree.add_file(path, *b"").expect("add");
        }
        let system = System::new(Host::bare(), std::sync::Arc::new(tree));
        let paths =
            |pattern: &str| glob(&system, pattern.into(), &mut 1000).iter().map(|p| p.to_string()).collect::<Vec<_>>();
        assert_eq!(paths("/e/*/*.c"), ["/e/a/0.c", "/e/a/1.c", "/e/b/2.c"]);
        assert_eq!(paths("/e/?/1.c"), ["/e/a/1.c"]);
        assert_eq!(paths("/e/x"), ["/e/x"]);
        assert_eq!(paths("/e/b/q\\*"), ["/e/b/q*"]);
        assert!(paths("/e/none").is_empty());
        assert!(paths("/e/a/").is_empty());
        assert_eq!(paths("/e//a/0*"), ["/e//a/0.c"]);
        let mut left = 5;
        // `/e` has three names, and so has the first directory in it: nothing is left for the second.
        assert_eq!(glob(&system, "/e/*/*.c".into(), &mut left), ["/e/a/0.c", "/e/a/1.c"]);
        assert_eq!(left, 0);
    }
}
