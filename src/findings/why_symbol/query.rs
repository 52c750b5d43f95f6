//! Is the name that was given a symbol, and which symbols of a process does it mean?

use bstr::{BStr, BString, ByteSlice};

use crate::findings::demangle;

/// Longest name that is asked about, in bytes.
const MAX_NAME: usize = 1 << 20;
/// Longest mangled name that is compared with a C++ name, in bytes.
const MAX_MANGLED: usize = 8 << 10;

/// How the name is compared with symbols.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Kind {
    /// Byte for byte.
    Exact,
    /// As a C++ name.
    Cpp {
        /// The name without blanks that mean nothing.
        text: String,
        /// It holds a parameter list.
        has_parameters: bool,
        /// What every mangled form of it contains: `5Error` for `Error`.
        needles: Vec<Vec<u8>>,
    },
}

/// What was asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Query {
    /// The name, its version left out.
    pub name: BString,
    /// The version behind `@` or `@@`.
    pub version: Option<BString>,
    /// True when the form tells that a symbol is meant; a plain word may be anything.
    pub is_certain: bool,
    kind: Kind,
}

impl Query {
    /// Reads what `--why` was given. `None` when it is a library (`.so` or a slash in it), empty, or longer than any
    /// symbol.
    pub fn parse(text: &BStr) -> Option<Query> {
        if text.is_empty() || text.len() > MAX_NAME {
            return None;
        }
        // `operator/` has a slash, and no path has `::`.
        let is_cpp = text.contains_str("::") || text.contains(&b'(');
        if text.contains(&b'/') && !(is_cpp && text.contains_str("operator/")) {
            return None;
        }
        let (name, version) = match text.find_byte(b'@') {
            Some(at) if at > 0 => {
                let version = text[at..].trim_start_with(|c| c == '@');
                (text[..at].as_bstr(), (!version.is_empty()).then(|| version.as_bstr().to_owned()))
            }
            _ => (text, None),
        };
        let has_version = name.len() < text.len();
        if !has_version && !is_cpp && is_library_name(name) {
            return None;
        }
        let kind = match name.to_str() {
            Ok(text) if is_cpp && !name.starts_with(b"_Z") => Kind::cpp(text),
            _ => Kind::Exact,
        };
        let is_certain = has_version || is_cpp || name.starts_with(b"_Z");
        Some(Query { name: name.to_owned(), version, is_certain, kind })
    }

    /// True when only one symbol can be meant, of which the name is known.
    pub fn is_exact(&self) -> bool {
        self.kind == Kind::Exact
    }

    /// True when a symbol is meant.
    pub fn matches(&self, symbol: &BStr) -> bool {
        let Kind::Cpp { text, has_parameters, needles } = &self.kind else { return symbol == self.name };
        if symbol.len() > MAX_MANGLED || !symbol.starts_with(b"_Z") || needles.iter().any(|n| !symbol.contains_str(n)) {
            return false;
        }
        if *has_parameters {
            let Some(full) = demangle::full(symbol).map(|t| squeezed(&t)) else { return false };
            // The return type of a template stands in front.
            return full.strip_suffix(text.as_str()).is_some_and(|before| before.is_empty() || before.ends_with(' '))
                || full.strip_suffix(" const").is_some_and(|full| full == text);
        }
        demangle::qualified(symbol).is_some_and(|name| {
            let name = squeezed(&name);
            name == *text || !text.contains('<') && without_arguments(&name) == *text
        })
    }
}

impl Kind {
    fn cpp(text: &str) -> Kind {
        let text = squeezed(text);
        let text = text.strip_suffix(")const").map_or(text.clone(), |t| format!("{t}) const"));
        let head = &text[..list_at(&text).unwrap_or(text.len())];
        let parts = demangle::components(head);
        // std has abbreviations of its own in mangled names.
        let abbreviated = parts.iter().any(|p| p.ends_with("std"));
        let needles = parts
            .iter()
            .filter(|_| !abbreviated)
            .map(|part| part.split('<').next().unwrap_or_default().rsplit(' ').next().unwrap_or_default())
            .map(|part| part.strip_prefix('~').unwrap_or(part))
            .filter(|part| !part.starts_with("operator"))
            .filter(|part| !part.is_empty() && part.chars().all(|c| c.is_ascii_alphanumeric() || c == '_'))
            .map(|part| format!("{}{part}", part.len()).into_bytes())
            .collect();
        Kind::Cpp { has_parameters: list_at(&text).is_some(), needles, text }
    }
}

/// Where the parameter list begins; `(anonymous namespace)` is none.
fn list_at(text: &str) -> Option<usize> {
    text.match_indices('(').map(|(at, _)| at).find(|at| !text[*at..].starts_with("(anonymous namespace)"))
}

/// `libfoo.so`, `libfoo.so.1`.
fn is_library_name(name: &BStr) -> bool {
    name.find_iter(b".so").any(|at| matches!(name.get(at + 3), None | Some(b'.')))
}

/// Blanks left out, but for those between words.
fn squeezed(text: &str) -> String {
    let is_word = |c: char| c.is_alphanumeric() || matches!(c, '_' | '$');
    let mut out = String::with_capacity(text.len());
    let mut gap = false;
    for c in text.chars() {
        if c == ' ' {
            gap = !out.is_empty();
            continue;
        }
        let after_word =
            out.chars().next_back().is_some_and(|last| is_word(last) || matches!(last, '>' | ')' | '*' | '&'));
        if std::mem::take(&mut gap) && after_word && (is_word(c) || c == '(' && out.ends_with("for")) {
            out.push(' ');
        }
        out.push(c);
    }
    out
}

/// The name without template arguments: `at::f` of `at::f<int>`.
fn without_arguments(name: &str) -> String {
    if name.contains("operator") {
        return name.to_owned();
    }
    let mut depth = 0usize;
    let mut out = String::with_capacity(name.len());
    for c in name.chars() {
        match c {
            '<' => depth += 1,
            '>' => depth = depth.saturating_sub(1),
            c if depth == 0 => out.push(c),
            _ => {}
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(text: &str) -> Query {
        Query::parse(text.into()).unwrap_or_else(|| panic!("{text} is a symbol"))
    }

    #[test]
    fn libraries_and_symbols_are_told_apart_by_their_form() {
        for library in ["libfoo.so", "libfoo.so.1", "/lib/x", "./foo", "a/b@c", "_ext.abi3.so", ""] {
            assert_eq!(Query::parse(library.into()), None, "{library}");
        }
        for certain in
            ["foo@V1", "foo@@V1", "_ZN1aE", "a::b", "f(int)", "cublasLtCreate@libcublasLt.so.11", "c::operator/"]
        {
            assert!(query(certain).is_certain, "{certain}");
        }
        assert!(!query("malloc").is_certain);
        assert!(!query(".solution").is_certain);
        let versioned = query("cublasLtCreate@libcublasLt.so.11");
        assert_eq!((versioned.name, versioned.version), ("cublasLtCreate".into(), Some("libcublasLt.so.11".into())));
        assert_eq!(query("foo@@V1").version, Some("V1".into()));
        assert_eq!(query("foo@").version, None);
        assert_eq!(Query::parse("a".repeat(2 << 20).as_str().into()), None);
    }

    #[test]
    fn names_match_with_and_without_parameters() {
        let what = "_ZNK3c105Error4whatEv".into();
        for text in
            ["c10::Error::what", "c10::Error::what()", "c10::Error::what() const", "c10 :: Error :: what( )const"]
        {
            assert!(query(text).matches(what), "{text}");
        }
        for text in ["c10::Error", "Error::what", "c10::Error::what(int)", "c10::Error::wha", "what"] {
            assert!(!query(text).matches(what), "{text}");
        }
        assert!(query("_ZNK3c105Error4whatEv").matches(what));
        assert!(query("f(int)").matches("_Z1fi".into()));
        assert!(!query("f(int)").matches("_Z1fj".into()));
        let template = "_ZN2at1fIiEEiT_".into();
        for text in ["at::f", "at::f<int>", "at::f<int>(int)", "int at::f<int>(int)"] {
            assert!(query(text).matches(template), "{text}");
        }
        assert!(query("c10::Error::Error").matches("_ZN3c105ErrorC1ESsSsPKv".into()));
        assert!(query("c10::Error::~Error").matches("_ZN3c105ErrorD1Ev".into()));
        assert!(query("vtable for c10::Error").matches("_ZTVN3c105ErrorE".into()));
        assert!(query("std::terminate").matches("_ZSt9terminatev".into()));
        assert!(query("c10::operator<<").matches("_ZN3c10lsERSoi".into()));
    }

    #[test]
    fn long_and_odd_names_are_compared_in_bounded_time() {
        let long = format!("_Z{}{}v", 900_000, "a".repeat(900_000));
        assert!(!query("a::b").matches(long.as_str().into()));
        assert!(query(&long).matches(long.as_str().into()));
        for odd in ["::", "(", "<>::<", "a::", "((((", "operator(", "::operator", "a::\u{1b}[31m"] {
            query(odd).matches("_ZN1a1bEv".into());
        }
        assert!(Query::parse(BStr::new(b"a\xff::b")).is_some_and(|q| !q.matches("_ZN1a1bEv".into())));
    }
}
