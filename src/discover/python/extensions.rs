//! Which extension files lie in a package?

use bstr::{BStr, BString, ByteSlice};

use super::Python;
use crate::system::{Kind, join};

/// Deepest directory and most files that are looked at, against hostile trees.
const MAX_DEPTH: usize = 12;
const MAX_ENTRIES: usize = 200_000;

impl Python {
    /// The extension modules below a package directory, by path, sorted. Links to directories are not followed.
    pub fn extensions_below(&self, directory: &BStr) -> Vec<BString> {
        let mut out = Vec::new();
        let mut seen = 0usize;
        let mut pending = vec![(directory.to_owned(), 0usize)];
        while let Some((directory, depth)) = pending.pop() {
            for entry in self.system.files.list(directory.as_bstr()).unwrap_or_default() {
                seen += 1;
                if seen > MAX_ENTRIES {
                    return out;
                }
                let path = join(directory.as_bstr(), &entry.name);
                match entry.kind {
                    Kind::Directory if depth < MAX_DEPTH => pending.push((path, depth + 1)),
                    Kind::File | Kind::Link
                        if self.interpreter.extension_suffixes.iter().any(|s| entry.name.ends_with(s))
                            && !entry.name.starts_with(b"lib") =>
                    {
                        out.push(path);
                    }
                    _ => {}
                }
            }
        }
        out.sort();
        out
    }
}
