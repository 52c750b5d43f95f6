//! What a single symbol or version tells of the release that has it. Tables beside this file, each row with its source.

use bstr::{BStr, ByteSlice};

use crate::recipe::table::{Row, rows};

const SYMBOLS: &str = include_str!("tables/telltale.csv");
const LIBSTDCXX: &str = include_str!("tables/libstdcxx.csv");
const WHEELS: &str = include_str!("tables/wheels.csv");
const COMPANIONS: &str = include_str!("tables/companions.csv");

/// What is known of a symbol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Telltale {
    /// The soname of the library that has it, as of the release that was looked at.
    pub library: &'static str,
    /// Which releases have it, in words that follow the library's name; `%` stands for the symbol.
    pub words: &'static str,
}

fn matches(row: &Row, symbol: &BStr) -> bool {
    let pattern = row.get("symbol");
    match pattern.strip_suffix('*') {
        Some(prefix) => symbol.starts_with(prefix.as_bytes()),
        None => symbol == pattern,
    }
}

/// What the table says of a symbol.
pub fn of_symbol(symbol: &BStr) -> Option<Telltale> {
    rows(SYMBOLS)
        .find(|row| matches(row, symbol))
        .map(|row| Telltale { library: row.get("library"), words: row.get("words") })
}

/// The release of GCC whose libstdc++ first had a version: `12.1` for `GLIBCXX_3.4.30`.
pub fn gcc_of(version: &str) -> Option<&'static str> {
    rows(LIBSTDCXX).find(|row| row.get("version") == version).map(|row| row.get("gcc"))
}

/// True when a distribution of a name (`nvidia-cudnn-cu12`) is the wheel that has a library of a stem (`libcudnn_ops`).
pub fn is_wheel_of(stem: &BStr, distribution: &str) -> bool {
    let has = |row: &Row| match row.get("library").strip_suffix('*') {
        Some(prefix) => stem.starts_with(prefix.as_bytes()),
        None => stem == row.get("library"),
    };
    rows(WHEELS).find(has).is_some_and(|row| {
        let release = distribution.strip_prefix(row.get("wheel"));
        release.is_some_and(|release| release.is_empty() || release.starts_with("-cu"))
    })
}

/// The name of a library without what tells its releases apart: `libcublasLt` of `libcublasLt.so.11`.
pub fn stem(library: &BStr) -> &BStr {
    // A few bytes, thousands of times: not worth a searcher.
    library.windows(3).position(|part| part == b".so").map_or(library, |at| library[..at].as_bstr())
}

/// The release of a package that was built for a torch: `torchvision` and `2.1.2` give `0.16.2`. Local versions are left aside.
pub fn companion(package: &str, torch: &str) -> Option<&'static str> {
    let torch = torch.split('+').next().unwrap_or_default();
    rows(COMPANIONS)
        .find(|row| row.get("package") == package && row.get("torch") == torch)
        .map(|row| row.get("release"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_all_its_fields() {
        for row in rows(SYMBOLS) {
            let fields = ["symbol", "library", "words", "source"].map(|c| row.get(c));
            assert!(fields.iter().all(|f| !f.is_empty()), "{row:?}");
            assert!(fields[1].contains(".so"), "{row:?}");
            assert!(!fields[2].ends_with('.') && fields[3].split_whitespace().count() <= 3, "{row:?}");
        }
        for row in rows(LIBSTDCXX) {
            assert!(row.get("version").contains("_") && row.get("gcc").contains('.'), "{row:?}");
        }
    }

    #[test]
    fn symbols_are_known_whole_or_by_their_beginning() {
        assert_eq!(of_symbol("__nvJitLinkAddData_12_1".into()).map(|t| t.library), Some("libnvJitLink.so.12"));
        assert_eq!(of_symbol("ncclCommSplit".into()).map(|t| t.library), Some("libnccl.so.2"));
        assert_eq!(of_symbol("ncclCommSplitted".into()), None);
        assert_eq!(gcc_of("GLIBCXX_3.4.30"), Some("12.1"));
        assert_eq!(gcc_of("GLIBCXX_3.4.99"), None);
        assert_eq!(stem("libcublasLt.so.11".into()), "libcublasLt");
    }

    #[test]
    fn companions_are_found_without_the_local_version() {
        assert_eq!(companion("torchvision", "2.1.2+cu121"), Some("0.16.2"));
        assert_eq!(companion("torchaudio", "2.0.1"), Some("2.0.2"));
        assert_eq!(companion("torchvision", "2.1.9"), None);
        for row in rows(COMPANIONS) {
            let is_version = |v: &str| v.split('.').count() == 3 && v.split('.').all(|p| p.parse::<u16>().is_ok());
            assert!(is_version(row.get("torch")) && is_version(row.get("release")), "{row:?}");
        }
    }
}
