//! One change of the environment of a process, as a value.

use bstr::{BString, ByteSlice};

use crate::ld::{Family, List};
use crate::system::{Environment, Host};

/// One change of the environment.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Change {
    /// A directory in front of LD_LIBRARY_PATH.
    PrependLibraryPath(BString),
    /// LD_LIBRARY_PATH without one element, counted from 0.
    DropLibraryPath(u32),
    /// No LD_LIBRARY_PATH.
    UnsetLibraryPath,
    /// A file in front of LD_PRELOAD.
    Preload(BString),
    /// No LD_PRELOAD.
    UnsetPreload,
    /// Another module is imported before.
    ImportFirst(String),
}

impl Change {
    /// The environment with the change made. `None` when it cannot be written down (a separator in the path), changes
    /// nothing, or is no change of the environment.
    pub fn apply(&self, env: &Environment, family: Family) -> Option<Environment> {
        let (name, value) = self.assignment(env, family)?;
        if env.get(name).map(|v| v.to_owned()) == value {
            return None;
        }
        let mut changed = env.clone();
        match value {
            Some(value) => changed.set(name, value),
            None => changed.unset(name),
        }
        Some(changed)
    }

    /// The host with the change made; as [`Change::apply`].
    pub fn on_host(&self, host: &Host, family: Family) -> Option<Host> {
        Some(Host { env: self.apply(&host.env, family)?, ..host.clone() })
    }

    /// The variable that changes and its new value (`None`: it is unset).
    pub fn assignment(&self, env: &Environment, family: Family) -> Option<(&'static str, Option<BString>)> {
        const PATH: &str = "LD_LIBRARY_PATH";
        const PRELOAD: &str = "LD_PRELOAD";
        let in_front = |new: &BString, name: &str, list: List| -> Option<BString> {
            let separators = list.separators(family);
            // `$` begins a token there.
            if new.is_empty() || new.iter().any(|b| separators.contains(b) || *b == b'$') {
                return None;
            }
            Some(match env.get(name).filter(|v| !v.is_empty()) {
                Some(old) => [new.as_bytes(), b":", old.as_bytes()].concat().into(),
                None => new.clone(),
            })
        };
        match self {
            Change::PrependLibraryPath(directory) => Some((PATH, Some(in_front(directory, PATH, List::LibraryPath)?))),
            Change::DropLibraryPath(index) => {
                Some((PATH, List::LibraryPath.without(family, env.get(PATH)?, &[*index])?))
            }
            Change::UnsetLibraryPath => env.get(PATH).map(|_| (PATH, None)),
            Change::Preload(file) => Some((PRELOAD, Some(in_front(file, PRELOAD, List::Preload)?))),
            Change::UnsetPreload => env.get(PRELOAD).map(|_| (PRELOAD, None)),
            Change::ImportFirst(_) => None,
        }
    }

    /// The name used in reports.
    pub fn name(&self) -> &'static str {
        match self {
            Change::PrependLibraryPath(_) => "prepend-library-path",
            Change::DropLibraryPath(_) => "drop-library-path",
            Change::UnsetLibraryPath => "unset-library-path",
            Change::Preload(_) => "preload",
            Change::UnsetPreload => "unset-preload",
            Change::ImportFirst(_) => "import-first",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changed(variable: &str, value: &str, change: &Change, family: Family) -> Option<Option<String>> {
        let mut env = Environment::new();
        env.set(variable, value);
        let after = change.apply(&env, family)?;
        Some(after.get(variable).map(|v| v.to_string()))
    }

    #[test]
    fn elements_are_left_out_one_at_a_time() {
        let drop = |value: &str, n: u32, family| changed("LD_LIBRARY_PATH", value, &Change::DropLibraryPath(n), family);
        let glibc = |value: &str, n: u32| drop(value, n, Family::Glibc);
        let some = |text: &str| Some(Some(text.to_owned()));
        assert_eq!(glibc("/a:/b:/c", 1), some("/a:/c"));
        assert_eq!(glibc("/a;/b", 0), some("/b"));
        assert_eq!(glibc("/a", 0), Some(None));
        // What is left of `/a:` is the current directory; an empty value would be no list.
        assert_eq!(glibc("/a:", 0), some(":"));
        assert_eq!(glibc("/a::/b", 1), some("/a:/b"));
        assert_eq!(glibc("/a", 1), None);
        assert_eq!(glibc("", 0), None);
        assert_eq!(drop("/a;/b\n/c", 0, Family::Musl), some("/c"));
    }

    #[test]
    fn a_directory_goes_in_front_unless_it_cannot_be_written() {
        let put = |value: &str, d: &str| {
            changed("LD_LIBRARY_PATH", value, &Change::PrependLibraryPath(d.into()), Family::Glibc)
        };
        assert_eq!(put("/b", "/a"), Some(Some("/a:/b".into())));
        assert_eq!(put("", "/a"), Some(Some("/a".into())));
        assert_eq!(put(":", "/a"), Some(Some("/a::".into())));
        assert_eq!(put("/b", "/a:b"), None);
        assert_eq!(put("/b", "/a;b"), None);
        assert_eq!(put("/b", "/$ORIGIN"), None);
        let preload = |d: &str| changed("LD_PRELOAD", "x.so", &Change::Preload(d.into()), Family::Glibc);
        assert_eq!(preload("/a/y.so"), Some(Some("/a/y.so:x.so".into())));
        assert_eq!(preload("/a b/y.so"), None);
        assert_eq!(changed("LD_PRELOAD", "x.so", &Change::UnsetPreload, Family::Glibc), Some(None));
        assert_eq!(changed("OTHER", "x", &Change::UnsetPreload, Family::Glibc), None);
    }
}
