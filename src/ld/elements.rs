//! Lists that a loader takes apart: LD_LIBRARY_PATH, RPATH and RUNPATH, LD_PRELOAD.
//!
//! Which bytes separate elements, and what an empty element means, is a matter of the loader and of the list. Whoever
//! takes such a list apart, numbers its elements or leaves some out asks here.

use bstr::{BStr, BString, ByteSlice};

use super::Family;

/// A list that a loader takes apart.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum List {
    /// LD_LIBRARY_PATH, and `--library-path` in its place.
    LibraryPath,
    /// DT_RPATH and DT_RUNPATH; musl's path file is one as well.
    RunPath,
    /// LD_PRELOAD, and `--preload`.
    Preload,
}

impl List {
    /// The bytes that stand between elements: glibc's `fillin_rpath` and `handle_preload_list` (2.17 to 2.43), musl's
    /// `path_open` and `load_preload` (1.2; the blanks are those of its `isspace`).
    pub fn separators(self, family: Family) -> &'static [u8] {
        match (family, self) {
            (Family::Glibc, List::LibraryPath) => b":;",
            (Family::Glibc, List::RunPath) => b":",
            (Family::Glibc, List::Preload) => b": ",
            (Family::Musl, List::LibraryPath | List::RunPath) => b":\n",
            (Family::Musl, List::Preload) => b": \t\n\x0b\x0c\r",
        }
    }

    /// The elements as decisions number them: empty ones count in a list of directories and not in one of files. An
    /// empty text has none.
    pub fn elements(self, family: Family, text: &BStr) -> impl Iterator<Item = &BStr> {
        let separators = self.separators(family);
        let counts = move |element: &&[u8]| self != List::Preload || !element.is_empty();
        let whole = (!text.is_empty()).then_some(text);
        whole.into_iter().flat_map(|t| t.split(|b| separators.contains(b))).filter(counts).map(|e| e.as_bstr())
    }

    /// True where an empty element is the current directory; musl passes over it.
    pub fn empty_element_counts(self, family: Family) -> bool {
        family == Family::Glibc && self != List::Preload
    }

    /// The text without the elements of these numbers, so written that the loader reads what is left as before. `None`
    /// when nothing was taken out, `Some(None)` when nothing is left that counts: then the variable goes.
    ///
    /// One empty element that is left is `:`, the current directory for glibc. The empty string would be no list at all
    /// (run on 2.36: a library in the current directory is found with `:` and not with an empty LD_LIBRARY_PATH).
    pub fn without(self, family: Family, text: &BStr, numbers: &[u32]) -> Option<Option<BString>> {
        let all: Vec<&BStr> = self.elements(family, text).collect();
        let kept: Vec<&BStr> =
            all.iter().enumerate().filter(|(n, _)| !numbers.contains(&(*n as u32))).map(|(_, e)| *e).collect();
        if kept.len() == all.len() {
            return None;
        }
        if !kept.iter().any(|e| !e.is_empty() || self.empty_element_counts(family)) {
            return Some(None);
        }
        let joined: BString = bstr::join(":", kept).into();
        Some(Some(if joined.is_empty() { ":".into() } else { joined }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn elements(list: List, family: Family, text: &str) -> Vec<String> {
        list.elements(family, text.into()).map(|e| e.to_string()).collect()
    }

    #[test]
    fn each_loader_and_each_list_has_its_separators() {
        let (glibc, musl) = (Family::Glibc, Family::Musl);
        assert_eq!(elements(List::LibraryPath, glibc, "/a;/b:\n/c:"), ["/a", "/b", "\n/c", ""]);
        assert_eq!(elements(List::LibraryPath, musl, "/a;/b:\n/c:"), ["/a;/b", "", "/c", ""]);
        assert_eq!(elements(List::RunPath, glibc, "/a;/b:/c\n"), ["/a;/b", "/c\n"]);
        assert_eq!(elements(List::RunPath, musl, "/a;/b:/c\n"), ["/a;/b", "/c", ""]);
        assert_eq!(elements(List::Preload, glibc, " a.so::b.so\tc.so "), ["a.so", "b.so\tc.so"]);
        assert_eq!(elements(List::Preload, musl, " a.so::b.so\tc.so\x0bd.so"), ["a.so", "b.so", "c.so", "d.so"]);
        assert!(elements(List::LibraryPath, glibc, "").is_empty());
        assert_eq!(elements(List::LibraryPath, glibc, ":"), ["", ""]);
    }

    #[test]
    fn what_is_left_means_what_it_meant() {
        let without = |family, text: &str, numbers: &[u32]| {
            List::LibraryPath.without(family, text.into(), numbers).map(|t| t.map(|t| t.to_string()))
        };
        let some = |text: &str| Some(Some(text.to_owned()));
        assert_eq!(without(Family::Glibc, "/a:/b;/c", &[1]), some("/a:/c"));
        assert_eq!(without(Family::Glibc, "/a:/b:/c", &[0, 2]), some("/b"));
        assert_eq!(without(Family::Glibc, "/a:", &[0]), some(":"));
        assert_eq!(without(Family::Glibc, "/a::", &[0]), some(":"));
        assert_eq!(without(Family::Glibc, "/a:", &[1]), some("/a"));
        assert_eq!(without(Family::Glibc, "/a", &[0]), Some(None));
        assert_eq!(without(Family::Glibc, "/a", &[1]), None);
        assert_eq!(without(Family::Glibc, "", &[0]), None);
        // musl: `;` is a byte like any other, and an empty element is nothing.
        assert_eq!(without(Family::Musl, "/a;/b\n/c", &[0]), some("/c"));
        assert_eq!(without(Family::Musl, "/a;/b", &[1]), None);
        assert_eq!(without(Family::Musl, "/a:", &[0]), Some(None));
        let preload = |text: &str, n| List::Preload.without(Family::Glibc, text.into(), &[n]);
        assert_eq!(preload(" /x.so::/y.so", 0), Some(Some("/y.so".into())));
        assert_eq!(preload(" /x.so ", 0), Some(None));
    }
}
