//! A library's name taken apart: which file names are it or nearly it, and which texts ask for it.

use bstr::{BStr, BString, ByteSlice};

use crate::system::file_name;

/// The parts of a library's file name: `libcudart-e409450e.so.11.0` is `libcudart`, `e409450e`, `.11.0`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Parts<'a> {
    stem: &'a BStr,
    hash: Option<&'a BStr>,
    pub(super) version: &'a BStr,
}

pub(super) fn parts(name: &BStr) -> Option<Parts<'_>> {
    let at = name.find_iter(b".so").find(|at| matches!(name.get(at + 3), None | Some(b'.')))?;
    let (whole, version) = (&name[..at], &name[at + 3..]);
    if whole.is_empty() {
        return None;
    }
    Some(match hash_of(whole.as_bstr()) {
        Some(cut) => {
            Parts { stem: whole[..cut].as_bstr(), hash: Some(whole[cut + 1..].as_bstr()), version: version.as_bstr() }
        }
        None => Parts { stem: whole.as_bstr(), hash: None, version: version.as_bstr() },
    })
}

/// Where the hash begins that a wheel's maker put behind a stem: auditwheel writes `libgomp-a34b3233.so.1`, other tools
/// `libcudart.3eda8113.so.13`.
fn hash_of(whole: &BStr) -> Option<usize> {
    whole.rfind_byteset(b"-.").filter(|cut| {
        let hash = &whole[cut + 1..];
        *cut > 0 && (8..=40).contains(&hash.len()) && hash.iter().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
    })
}

/// A name up to its `.so` without hashes, `libgfortran` of `libgfortran-040039e1-0352e75f`: a wheel that vendors what
/// another one has vendored adds a second one.
pub fn unhashed(whole: &BStr) -> &BStr {
    let mut rest = whole;
    while let Some(cut) = hash_of(rest) {
        rest = rest[..cut].as_bstr();
    }
    rest
}

/// A library name that is asked about.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Name {
    /// The name without a directory: what NEEDED and `dlopen` are compared with.
    pub text: BString,
    /// The name up to `.so`, hash kept.
    whole: BString,
    stem: BString,
    hash: Option<BString>,
    version: BString,
}

/// How a file relates to the name, closest first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Relation {
    /// The file name is the name.
    Exact,
    /// A longer version as file name (`libfoo.so.8.9.7`), and the SONAME is the name: only the link is missing.
    Longer,
    /// Another file name, and the SONAME is the name: answers once it is loaded by its path.
    Soname,
    /// Another version of the name.
    Version,
    /// The name without a version, as compilers want it.
    Developer,
    /// Renamed with a hash, or with another one than the name has.
    Hashed,
}

impl Relation {
    /// The name used in reports.
    pub fn name(self) -> &'static str {
        match self {
            Relation::Exact => "exact",
            Relation::Longer => "longer-version",
            Relation::Soname => "soname",
            Relation::Version => "other-version",
            Relation::Developer => "developer-name",
            Relation::Hashed => "renamed",
        }
    }

    /// True when a file of this relation answers the name, once it is loaded in whatever way.
    pub fn answers(self) -> bool {
        matches!(self, Relation::Exact | Relation::Longer | Relation::Soname)
    }
}

/// How a text in read-only data asks for the name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Literal {
    /// The name itself.
    Exact,
    /// A path that ends in the name.
    Path,
    /// A pattern that can become the name (`libnvrtc.so.%d`).
    Template,
    /// The beginning of the name (`libnvrtc.so.`, `libcudnn_graph.so`): code may add the version.
    Beginning,
    /// A note that declares what the file opens (`.note.dlopen`, as systemd's libraries have it).
    Note,
    /// Another name than the one asked about, near to it.
    Near,
}

impl Literal {
    /// The name used in reports.
    pub fn name(self) -> &'static str {
        match self {
            Literal::Exact => "exact",
            Literal::Path => "path",
            Literal::Template => "template",
            Literal::Beginning => "beginning",
            Literal::Note => "note",
            Literal::Near => "near",
        }
    }
}

impl Name {
    /// Reads a library name; `None` when it holds no `.so`.
    pub fn parse(text: &BStr) -> Option<Name> {
        let p = parts(text)?;
        Some(Name {
            text: text.to_owned(),
            whole: text[..text.len() - p.version.len() - 3].into(),
            stem: p.stem.to_owned(),
            hash: p.hash.map(|h| h.to_owned()),
            version: p.version.to_owned(),
        })
    }

    /// True for `libfoo.so`: the name without a version.
    pub fn is_developer(&self) -> bool {
        self.version.is_empty()
    }

    /// True when the name carries a hash.
    pub fn is_hashed(&self) -> bool {
        self.hash.is_some()
    }

    /// The name without its hash.
    pub fn unhashed(&self) -> BString {
        [self.stem.as_bytes(), b".so", self.version.as_bytes()].concat().into()
    }

    /// What every text that asks for the name contains.
    pub fn needle(&self) -> BString {
        [self.whole.as_bytes(), b".so"].concat().into()
    }

    /// How a file name relates to the name, its SONAME left aside.
    pub fn relation_of_name(&self, file: &BStr) -> Option<Relation> {
        if file == self.text {
            return Some(Relation::Exact);
        }
        if !file.starts_with(&self.stem) {
            return None;
        }
        let p = parts(file)?;
        if p.stem != self.stem {
            None
        } else if p.hash != self.hash.as_ref().map(|h| h.as_bstr()) {
            Some(Relation::Hashed)
        } else if p.version.is_empty() {
            Some(Relation::Developer)
        } else {
            Some(Relation::Version)
        }
    }

    /// How a file relates to the name.
    pub fn relation(&self, file: &BStr, soname: Option<&BStr>) -> Option<Relation> {
        if file != self.text && soname.is_some_and(|s| s == self.text) {
            let longer = file.strip_prefix(self.text.as_bytes()).is_some_and(|rest| rest.starts_with(b"."));
            return Some(if longer { Relation::Longer } else { Relation::Soname });
        }
        self.relation_of_name(file)
    }

    /// How a text in read-only data asks for the name; `None` when it does not.
    pub fn literal(&self, text: &BStr) -> Option<Literal> {
        if text == self.text {
            return Some(Literal::Exact);
        }
        let file = file_name(text);
        if file == self.text {
            return Some(Literal::Path);
        }
        // `%slibfoo.so.1`: the directory comes in as an argument.
        let file = file.strip_prefix(b"%s").map_or(file, |rest| rest.as_bstr());
        if file == self.text {
            return Some(Literal::Template);
        }
        if file.contains_str("%") || file.contains_str("{}") {
            return fits_template(file, self.text.as_bstr()).then_some(Literal::Template);
        }
        let rest = self.text.strip_prefix(file.as_bytes())?;
        let at_boundary = rest.starts_with(b".") || file.ends_with(b".");
        (file.len() >= self.whole.len() + 3 && at_boundary).then_some(Literal::Beginning)
    }
}

/// True when a text made from a `printf` or `{}` pattern can be `name`. Numbers stand for digits, strings for anything
/// but slashes; both for at least one character.
fn fits_template(pattern: &[u8], name: &[u8]) -> bool {
    let Some((first, rest)) = pattern.split_first() else { return name.is_empty() };
    let (digits, after): (bool, &[u8]) = match (first, rest) {
        (b'%', [b'%', after @ ..]) => return name.first() == Some(&b'%') && fits_template(after, &name[1..]),
        (b'%', _) => {
            let flags = rest.iter().take_while(|b| b.is_ascii_digit() || matches!(b, b'-' | b'.' | b'l' | b'h' | b'z'));
            let flags = flags.count();
            match rest.get(flags) {
                Some(b'd' | b'i' | b'u') => (true, &rest[flags + 1..]),
                Some(b's') => (false, &rest[flags + 1..]),
                _ => return false,
            }
        }
        (b'{', [b'}', after @ ..]) => (false, after),
        _ => return name.first() == Some(first) && fits_template(rest, &name[1..]),
    };
    // Names and patterns are at most 256 bytes long with few fields, so trying each length is no matter.
    if pattern.iter().filter(|b| matches!(b, b'%' | b'{')).count() > 4 {
        return false;
    }
    let room = name.iter().take_while(|b| if digits { b.is_ascii_digit() } else { **b != b'/' }).count();
    (1..=room).any(|n| fits_template(after, &name[n..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        Name::parse(text.into()).expect("a library name")
    }

    #[test]
    fn names_are_taken_apart_at_the_first_so() {
        let of = |text: &str| {
            parts(text.as_bytes().as_bstr())
                .map(|p| (p.stem.to_string(), p.hash.map(|h| h.to_string()).unwrap_or_default(), p.version.to_string()))
        };
        let made = |a: &str, b: &str, c: &str| Some((a.to_owned(), b.to_owned(), c.to_owned()));
        assert_eq!(of("libfoo.so.8.9"), made("libfoo", "", ".8.9"));
        assert_eq!(of("libfoo.so"), made("libfoo", "", ""));
        assert_eq!(of("libgomp-a34b3233.so.1.0.0"), made("libgomp", "a34b3233", ".1.0.0"));
        assert_eq!(of("libcudart.3eda8113.so.13"), made("libcudart", "3eda8113", ".13"));
        assert_eq!(of("libc-2.31.so"), made("libc-2.31", "", ""));
        assert_eq!(of("_C.cpython-311-x86_64-linux-gnu.so"), made("_C.cpython-311-x86_64-linux-gnu", "", ""));
        assert_eq!(of("lib.sofa.so.1"), made("lib.sofa", "", ".1"));
        assert_eq!(of("libfoo"), None);
        assert_eq!(of(".so"), None);
        assert_eq!(of("-a34b3233.so"), made("-a34b3233", "", ""));
    }

    #[test]
    fn a_file_relates_to_a_name_by_its_own_name_and_its_soname() {
        let n = name("libfoo.so.8");
        let of = |file: &str, soname: Option<&str>| n.relation(file.into(), soname.map(|s| s.into()));
        assert_eq!(of("libfoo.so.8", Some("libother.so")), Some(Relation::Exact));
        assert_eq!(of("libfoo.so.8.9.7", Some("libfoo.so.8")), Some(Relation::Longer));
        assert_eq!(of("libfoo.so.8.9.7", Some("libfoo.so.8.9")), Some(Relation::Version));
        assert_eq!(of("zz.so", Some("libfoo.so.8")), Some(Relation::Soname));
        assert_eq!(of("libfoo-0123abcd.so.8", Some("libfoo.so.8")), Some(Relation::Soname));
        assert_eq!(of("libfoo-0123abcd.so.8", None), Some(Relation::Hashed));
        assert_eq!(of("libfoo.so.9", None), Some(Relation::Version));
        assert_eq!(of("libfoo.so", None), Some(Relation::Developer));
        assert_eq!(of("libfoobar.so.8", None), None);
        assert_eq!(of("libfo.so.8", None), None);
        let hashed = name("libfoo-0123abcd.so.8");
        assert_eq!(hashed.relation_of_name("libfoo.so.8".into()), Some(Relation::Hashed));
        assert_eq!(hashed.relation_of_name("libfoo-0123abcd.so.9".into()), Some(Relation::Version));
    }

    #[test]
    fn texts_ask_for_a_name_in_several_ways() {
        let n = name("libnvrtc.so.12");
        let of = |text: &str| n.literal(text.into());
        assert_eq!(of("libnvrtc.so.12"), Some(Literal::Exact));
        assert_eq!(of("/opt/x/libnvrtc.so.12"), Some(Literal::Path));
        assert_eq!(of("libnvrtc.so.%d"), Some(Literal::Template));
        assert_eq!(of("%s/libnvrtc.so.%s"), Some(Literal::Template));
        assert_eq!(of("libnvrtc.so.{}"), Some(Literal::Template));
        assert_eq!(of("libnvrtc.so."), Some(Literal::Beginning));
        assert_eq!(of("libnvrtc.so"), Some(Literal::Beginning));
        assert_eq!(of("libnvrtc.so.1"), None);
        assert_eq!(of("libnvrtc.so.%d.%d"), None);
        assert_eq!(of("libnvrtc.so.13"), None);
        assert_eq!(of("libnvrtc"), None);
        assert_eq!(of("cannot load libnvrtc.so.12"), None);
        assert_eq!(of("libnvrtc.so.%n"), None);
        assert_eq!(of("libnvrtc.so.%"), None);
        assert_eq!(name("libx.so.1.2").literal("libx.so.%d.%02d".into()), Some(Literal::Template));
        assert_eq!(name("libx.so").literal("libx.so.1".into()), None);
    }

    #[test]
    fn a_pattern_of_many_fields_takes_no_time() {
        let text = format!("lib{}.so", "a".repeat(200));
        let pattern = "%s".repeat(100);
        assert!(!fits_template(pattern.as_bytes(), text.as_bytes()));
    }
}
