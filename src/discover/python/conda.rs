//! Packages of a conda environment: `conda-meta/NAME-VERSION-BUILD.json`, each with the list of its files.
//!
//! In a conda environment the CUDA libraries lie in `lib` of the prefix and belong to packages that pip knows nothing
//! of. Package files are searched as text. First those whose name fits the file; only when none of them has it, all
//! files of all packages are indexed once, which reads some ten megabytes in a large environment.

use std::hash::Hasher;
use std::sync::OnceLock;

use bstr::{BStr, BString, ByteSlice};
use memchr::{memchr, memchr2, memmem};
use rustc_hash::{FxHashMap, FxHasher};

use crate::system::{System, join, normalised};

/// Longest package file that is read.
const MAX_BYTES: u64 = 64 << 20;
/// At most this many files are indexed.
const MAX_FILES: usize = 5_000_000;

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
    /// Hash of a file's path below the prefix, to the package that lists it.
    index: OnceLock<FxHashMap<u64, u32>>,
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
        Packages { prefix: prefix.to_owned(), list: packages.collect(), index: OnceLock::new() }
    }

    /// The package that lists a file of the prefix.
    pub fn owner_of(&self, system: &System, path: &BStr) -> Option<&Package> {
        if self.list.is_empty() {
            return None;
        }
        let path = normalised(path);
        let inside = path.strip_prefix(self.prefix.as_bytes())?.strip_prefix(b"/")?;
        let fits = |p: &&Package| p.name.split_str("-").any(|token| token.len() > 3 && inside.find(token).is_some());
        let likely = self.list.iter().filter(fits).find(|package| has(system, package, inside));
        likely.or_else(|| {
            let index = self.index.get_or_init(|| self.build_index(system));
            let package = self.list.get(*index.get(&hash(inside))? as usize)?;
            has(system, package, inside).then_some(package)
        })
    }

    fn build_index(&self, system: &System) -> FxHashMap<u64, u32> {
        let mut index = FxHashMap::default();
        for (i, package) in (0u32..).zip(&self.list) {
            let Ok(text) = system.read_small(package.metadata_path.as_bstr(), MAX_BYTES) else { continue };
            let mut rest = text.as_slice();
            while let Some(string) = next_string(&mut rest) {
                if memchr(b'/', string).is_some() && index.len() < MAX_FILES {
                    index.entry(hash(string)).or_insert(i);
                }
            }
        }
        index
    }
}

/// The next string literal of a JSON text as written, escapes and all.
fn next_string<'a>(text: &mut &'a [u8]) -> Option<&'a [u8]> {
    let start = text.get(memchr(b'"', text)? + 1..)?;
    let mut end = 0;
    loop {
        end += memchr2(b'"', b'\\', start.get(end..)?)?;
        if start.get(end) == Some(&b'"') {
            *text = start.get(end + 1..)?;
            return start.get(..end);
        }
        end += 2;
    }
}

fn hash(path: &[u8]) -> u64 {
    let mut hasher = FxHasher::default();
    hasher.write(path);
    hasher.finish()
}

/// True when the package file has the path as a string. Names with characters that JSON escapes are not found.
fn has(system: &System, package: &Package, inside: &[u8]) -> bool {
    let quoted = [b"\"", inside, b"\""].concat();
    let text = system.read_small(package.metadata_path.as_bstr(), MAX_BYTES);
    text.is_ok_and(|text| memmem::find(&text, &quoted).is_some())
}
