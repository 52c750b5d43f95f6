//! C++ names as people write them. Only for texts: nothing is decided by a demangled name alone.

use std::fmt;

use bstr::BStr;
use cpp_demangle::{BorrowedSymbol, DemangleOptions};

/// Longest mangled name that is taken apart, in bytes: real ones have some hundred.
const MAX_NAME: usize = 8 << 10;
/// Longest text that is made of one, in bytes. Substitutions let a short name stand for gigabytes.
const MAX_TEXT: usize = 16 << 10;
/// Longest text that stands in a sentence, in characters.
const IN_A_SENTENCE: usize = 120;

/// A text that refuses to grow beyond a limit.
struct Bounded(String);

impl fmt::Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.0.len() + text.len() > MAX_TEXT {
            return Err(fmt::Error);
        }
        self.0.push_str(text);
        Ok(())
    }
}

fn demangled(name: &BStr, options: &DemangleOptions) -> Option<String> {
    if name.len() > MAX_NAME || !name.starts_with(b"_Z") {
        return None;
    }
    let symbol = BorrowedSymbol::new(name).ok()?;
    let mut out = Bounded(String::new());
    symbol.structured_demangle(&mut out, options).ok()?;
    // As c++filt and the linker's messages have it.
    let of = |before: &str| out.0.strip_prefix(before).and_then(|rest| rest.strip_suffix(")}"));
    for (before, words) in [("{vtable(", "vtable for "), ("{vtt(", "VTT for ")] {
        if let Some(class) = of(before) {
            return Some(format!("{words}{class}"));
        }
    }
    Some(out.0)
}

/// The name with its parameters: `c10::Error::what() const`. `None` when it is no C++ name or too long.
pub fn full(name: &BStr) -> Option<String> {
    demangled(name, &DemangleOptions::new())
}

/// The name alone, without parameters and return type: `c10::Error::what`.
pub fn qualified(name: &BStr) -> Option<String> {
    demangled(name, &DemangleOptions::new().no_params().no_return_type())
}

/// A symbol in a sentence: the C++ name where there is one, shortened, else the symbol itself.
pub fn in_words(name: &BStr) -> String {
    let text = full(name).unwrap_or_else(|| super::words::shown(name));
    if text.chars().count() <= IN_A_SENTENCE {
        return text;
    }
    // Parameters and template arguments make names long; what comes before them is what one looks for.
    let text = qualified(name).filter(|t| t.chars().count() <= IN_A_SENTENCE).map(|t| t + "(…)").unwrap_or(text);
    match text.char_indices().nth(IN_A_SENTENCE) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// The parts of a qualified name, split at `::` outside of template arguments, parameters and quotation.
pub fn components(qualified: &str) -> Vec<&str> {
    let mut out = Vec::new();
    let (mut depth, mut from) = (0usize, 0);
    let bytes = qualified.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at] {
            b'<' | b'(' | b'{' | b'[' => depth += 1,
            b'>' | b')' | b'}' | b']' => depth = depth.saturating_sub(1),
            b':' if depth == 0 && bytes.get(at + 1) == Some(&b':') => {
                out.push(&qualified[from..at]);
                from = at + 2;
                at += 1;
            }
            // `operator<` opens no list.
            b'o' if depth == 0 && at == from && qualified[at..].starts_with("operator") => {
                out.push(&qualified[from..]);
                return out;
            }
            _ => {}
        }
        at += 1;
    }
    out.push(&qualified[from..]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_with_and_without_parameters() {
        let what = "_ZNK3c105Error4whatEv".into();
        assert_eq!(full(what).as_deref(), Some("c10::Error::what() const"));
        assert_eq!(qualified(what).as_deref(), Some("c10::Error::what"));
        assert_eq!(in_words("cublasLtCreate".into()), "cublasLtCreate");
        assert_eq!(full("_Zgarbage".into()), None);
        assert_eq!(full("printf".into()), None);
    }

    #[test]
    fn what_would_grow_without_end_is_left_as_it_is() {
        // Each type is a pair of the one before: the text doubles with every substitution.
        let mut name = String::from("_Z1fI1AE");
        name.push_str("1BIS_S_E");
        for n in 0..60 {
            name.push_str(&format!("1BIS{n}_S{n}_E"));
        }
        assert_eq!(full(name.as_str().into()), None);
        assert!(in_words(name.as_str().into()).chars().count() <= IN_A_SENTENCE + 1);
        let deep = format!("_Z1f{}i", "P".repeat(5000));
        assert!(full(deep.as_str().into()).is_none_or(|t| t.len() <= MAX_TEXT));
        let long = format!("_Z{}{}v", 9000, "a".repeat(9000));
        assert_eq!(full(long.as_str().into()), None);
    }

    #[test]
    fn qualified_names_come_apart_at_their_own_colons() {
        assert_eq!(components("c10::Error::what"), ["c10", "Error", "what"]);
        assert_eq!(components("at::f<a::b, c::d>::g"), ["at", "f<a::b, c::d>", "g"]);
        assert_eq!(components("c10::operator<<"), ["c10", "operator<<"]);
        assert_eq!(components("main"), ["main"]);
    }
}
