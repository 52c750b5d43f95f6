//! Packages of a conda environment: `conda-meta/NAME-VERSION-BUILD.json`, each with the list of its files.
//!
//! In a conda environment the CUDA libraries lie in `lib` of the prefix and belong to packages that pip knows nothing
//! of. The lists are searched as text, most likely package first: they can have tens of megabytes together.

use bstr::{BStr, BString, ByteSlice};
use memchr::memmem;

use crate::system::{System, join};

/// Longest package file that is read.
const MAX_BYTES: u64 = 64 << 20;

/// An installed conda package.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Package {
    /// Name, `libcublas`.
    pub name: BString,
    /// Version, `12.4.5.8`.
    pub version: BString,
    /// Build string.
    pub build: BString,
    /// Its file in `conda-meta`.
    pub metadata_path: BString,
}

/// The packages of a prefix; none when it is no conda environment.
pub struct Packages {
    prefix: BString,
    list: Vec<Package>,
}

impl Packages {
    /// Lists the packages of a prefix.
    pub fn list(system: &System, prefix: &BStr) -> Packages {
        let directory = join(prefix, "conda-meta");
        let entries = system.files.list(directory.as_bstr()).unwrap_or_default();
        let packages = entries.iter().filter_map(|entry| {
            let stem = entry.name.strip_suffix(b".json")?;
            let (rest, build) = stem.rsplit_once_str("-")?;
            let (name, version) = rest.rsplit_once_str("-")?;
            Some(Package {
                name: name.into(),
                version: version.into(),
                build: build.into(),
                metadata_path: join(directory.as_bstr(), &entry.name),
            })
        });
        Packages { prefix: prefix.to_owned(), list: packages.collect() }
    }

    /// The package that lists a file of the prefix.
    pub fn owner_of(&self, system: &System, path: &BStr) -> Option<&Package> {
        if self.list.is_empty() {
            return None;
        }
        let path = crate::system::normalised(path);
        let inside = path.strip_prefix(self.prefix.as_bytes())?.strip_prefix(b"/")?;
        // As the JSON text has it. Names with characters that JSON escapes are not looked for.
        let quoted = [b"\"", inside, b"\""].concat();
        let mut order: Vec<(bool, usize)> = self
            .list
            .iter()
            .enumerate()
            .map(|(i, p)| {
                let fits = p.name.split_str("-").any(|token| token.len() > 2 && inside.find(token).is_some());
                (!fits, i)
            })
            .collect();
        order.sort_unstable();
        order.into_iter().filter_map(|(_, i)| self.list.get(i)).find(|package| {
            let text = system.read_small(package.metadata_path.as_bstr(), MAX_BYTES);
            text.is_ok_and(|text| memmem::find(&text, &quoted).is_some())
        })
    }
}
