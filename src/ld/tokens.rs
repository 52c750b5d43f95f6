//! Dynamic string tokens: `$ORIGIN`, `$LIB`, `$PLATFORM` (rules R1.3 to R1.7).

use bstr::{BStr, BString};

/// Values of the tokens for one expansion. `None`: the token is known but has no value.
#[derive(Clone, Copy, Debug)]
pub struct Values<'a> {
    /// `$ORIGIN`.
    pub origin: Option<&'a BStr>,
    /// `$LIB`.
    pub lib: &'a BStr,
    /// `$PLATFORM`.
    pub platform: Option<&'a BStr>,
}

/// How many known tokens a text holds (`_dl_dst_count`).
pub fn count(text: &BStr) -> usize {
    let mut n = 0;
    let mut at = 0;
    while let Some(found) = memchr::memchr(b'$', &text[at..]) {
        at += found + 1;
        if let Some((_, len)) = token_at(&text[at..]) {
            n += 1;
            at += len;
        }
    }
    n
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Token {
    Origin,
    Lib,
    Platform,
}

/// The token that begins right after a `$`, and its length (`is_dst`, since 2.28): plain form not followed by a name
/// character, braced form closed straight after the name.
fn token_at(rest: &[u8]) -> Option<(Token, usize)> {
    let (braced, body) = match rest.strip_prefix(b"{") {
        Some(body) => (true, body),
        None => (false, rest),
    };
    for (name, token) in [(&b"ORIGIN"[..], Token::Origin), (b"PLATFORM", Token::Platform), (b"LIB", Token::Lib)] {
        let Some(after) = body.strip_prefix(name) else { continue };
        if braced {
            if after.first() == Some(&b'}') {
                return Some((token, name.len() + 2));
            }
        } else if !after.first().is_some_and(|c| c.is_ascii_alphanumeric() || *c == b'_') {
            return Some((token, name.len()));
        }
    }
    None
}

/// What secure mode adds for a path element (rule R9.3).
#[derive(Clone, Copy, Debug)]
pub struct Secure<'a> {
    /// The default directories; `Some` for the main program, whose expanded elements must lie below one of them.
    pub trusted: Option<&'a [BString]>,
    /// The element is kept in the normalised form that was checked.
    pub normalise: bool,
}

/// Longest text that is expanded, in bytes: no path is that long, so that a longer one fails all the same.
const MAX_EXPANDED: usize = 8 << 10;

/// An upper bound of the length of all elements of a list after expansion, in bytes.
pub fn longest(text: &BStr, values: Values<'_>) -> usize {
    let token = [values.origin.map_or(0, |o| o.len()), values.lib.len(), values.platform.map_or(0, |p| p.len())];
    text.len().saturating_add(count(text).saturating_mul(token.into_iter().max().unwrap_or(0)))
}

/// Replaces the tokens (`_dl_dst_substitute`). `None` when a token has no value or secure mode forbids it: the
/// element is then dropped. A text that becomes longer than any path is cut.
pub fn expand(text: &BStr, values: Values<'_>, secure: Option<Secure<'_>>) -> Option<BString> {
    let mut out = BString::default();
    let mut at = 0;
    let mut check_trusted = false;
    while at < text.len() && out.len() <= MAX_EXPANDED {
        let byte = text[at];
        if byte == b'$'
            && let Some((token, len)) = token_at(&text[at + 1..])
        {
            let value = match token {
                Token::Origin => {
                    if secure.is_some() {
                        // Only as the first thing of an element and followed by a slash or the end.
                        let after = text.get(at + 1 + len);
                        if at != 0 || !(after.is_none() || after == Some(&b'/')) {
                            return None;
                        }
                        check_trusted = secure.is_some_and(|s| s.trusted.is_some());
                    }
                    values.origin
                }
                Token::Lib => Some(values.lib),
                Token::Platform => values.platform,
            };
            out.extend_from_slice(value?);
            at += 1 + len;
            continue;
        }
        out.push(byte);
        at += 1;
    }
    if check_trusted {
        let dirs = secure.and_then(|s| s.trusted).unwrap_or_default();
        if !is_trusted(&out, dirs) {
            return None;
        }
        if secure.is_some_and(|s| s.normalise) {
            return Some(crate::system::normalised(out.as_ref()));
        }
    }
    Some(out)
}

/// `is_trusted_path_normalize`: the path, normalised as text, starts with a default directory.
fn is_trusted(path: &[u8], dirs: &[BString]) -> bool {
    if path.first() != Some(&b'/') {
        return false;
    }
    let mut normal = crate::system::normalised(path.into());
    if !normal.ends_with(b"/") {
        normal.push(b'/');
    }
    dirs.iter().any(|d| normal.starts_with(d))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bstr::ByteSlice;

    fn go(text: &str) -> Option<String> {
        let values = Values { origin: Some(b"/o".as_bstr()), lib: b"lib64".as_bstr(), platform: None };
        expand(text.as_bytes().as_bstr(), values, None).map(|b| b.to_string())
    }

    #[test]
    fn only_whole_tokens_are_replaced() {
        for (text, want) in [
            ("$ORIGIN/x", "/o/x"),
            ("${ORIGIN}x", "/ox"),
            ("$ORIGINX/../lib", "$ORIGINX/../lib"),
            ("${ORIGIN/..", "${ORIGIN/.."),
            ("$ORIGIN_", "$ORIGIN_"),
            ("$$ORIGIN", "$/o"),
            ("$FOO/$LIB", "$FOO/lib64"),
            ("a$ORIGIN$ORIGIN", "a/o/o"),
        ] {
            assert_eq!(go(text).as_deref(), Some(want), "{text}");
        }
        assert_eq!(go("$PLATFORM/x"), None);
        assert_eq!(count(b"$ORIGIN$FOO${LIB}".as_bstr()), 2);
    }

    #[test]
    fn secure_mode_allows_origin_only_in_front_and_below_default_directories() {
        let values = Values { origin: Some(b"/usr/lib/app".as_bstr()), lib: b"lib64".as_bstr(), platform: None };
        let dirs = [BString::from("/usr/lib/")];
        let main = Some(Secure { trusted: Some(&dirs), normalise: false });
        let library = Some(Secure { trusted: None, normalise: false });
        assert!(expand(b"$ORIGIN/x".as_bstr(), values, main).is_some());
        assert!(expand(b"$ORIGIN/../../../x".as_bstr(), values, main).is_none());
        assert!(expand(b"$ORIGIN/../../../x".as_bstr(), values, library).is_some());
        assert!(expand(b"/a/$ORIGIN".as_bstr(), values, library).is_none());
        assert!(expand(b"${ORIGIN}x".as_bstr(), values, library).is_none());
    }
}
