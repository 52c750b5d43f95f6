//! The small files with names and directories in them: glibc's preload list, musl's path.

use bstr::{BStr, BString, ByteSlice, ByteVec};

use super::FILE_LIMIT;
use crate::system::{self, Errno, System};

/// The list of libraries that every process of the box gets.
pub const PRELOAD: &str = "/etc/ld.so.preload";

/// Names in `/etc/ld.so.preload`. An absent file is an empty list.
pub fn read_preload(system: &System) -> Result<Vec<BString>, Errno> {
    match system.read_small(PRELOAD.into(), FILE_LIMIT) {
        Ok(text) => Ok(preload_names(&text)),
        Err(Errno::ENOENT) => Ok(Vec::new()),
        Err(errno) => Err(errno),
    }
}

/// The names that the loader makes of the content of `/etc/ld.so.preload` (rule R6.2; `dl_main`).
///
/// Comments are blanked by a scan that goes back to the start of the file for each `#` while what is left to scan gets
/// shorter all the same, so the end of a file with several comments keeps words of them, or a bare `#`.
pub fn preload_names(text: &[u8]) -> Vec<BString> {
    let mut text = text.to_vec();
    let mut rest = text.len();
    while let Some(comment) = text.get(..rest).and_then(|t| t.find_byte(b'#')) {
        rest -= comment;
        for (offset, byte) in text[comment..].iter_mut().enumerate() {
            if offset > 0 && *byte == b'\n' {
                break;
            }
            *byte = b' ';
            rest -= 1;
            if rest == 0 {
                break;
            }
        }
    }
    let is_separator = |byte: &u8| matches!(byte, b' ' | b'\t' | b'\n' | b':');
    // A last word without a separator behind it is taken apart from the rest.
    let (list, last) = match text.last() {
        None => return Vec::new(),
        Some(end) if is_separator(end) => (&text[..text.len() - 1], None),
        Some(_) => {
            let start = text.iter().rposition(is_separator).map_or(0, |at| at + 1);
            (&text[..start.saturating_sub(1)], Some(&text[start..]))
        }
    };
    // Both parts are C strings.
    let string = |part: &[u8]| part.split(|b| *b == 0).next().unwrap_or_default().to_vec();
    let mut names: Vec<BString> =
        string(list).split(is_separator).filter(|n| !n.is_empty()).map(|n| n.into()).collect();
    names.extend(last.map(|l| BString::from(string(l))).filter(|l| !l.is_empty()));
    names
}

/// Where musl's system path comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PathSource {
    /// No path file: the path that is compiled in.
    Default,
    /// The path file.
    File,
    /// The path file exists but is empty or cannot be read, which leaves no system path at all.
    Unusable(Option<Errno>),
}

/// musl's system path (rules R10.4 and R10.5).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MuslPath {
    /// The path file that was asked for; `None` when nothing tells its name.
    pub file: Option<BString>,
    /// Where the directories come from.
    pub source: PathSource,
    /// The directories as one list ([`List::RunPath`](crate::ld::List::RunPath)); relative ones are from the working directory of the process.
    pub list: BString,
}

/// The path that musl has compiled in.
pub const MUSL_DEFAULT: &str = "/lib:/usr/local/lib:/usr/lib";

/// Reads the path file of a musl loader. `loader` is the name by which it was started (PT_INTERP), `arch` the name of its
/// architecture ([`Dialect::musl_arch`]); without one the compiled path is all that can be said.
///
/// [`Dialect::musl_arch`]: crate::ld::Dialect::musl_arch
pub fn musl_path(system: &System, loader: &BStr, arch: Option<&BStr>) -> MuslPath {
    let Some(file) = arch.map(|arch| musl_path_file(loader, arch)) else {
        return MuslPath { file: None, source: PathSource::Default, list: MUSL_DEFAULT.into() };
    };
    let (source, text) = match system.read_small(file.as_bstr(), FILE_LIMIT) {
        Err(Errno::ENOENT) => (PathSource::Default, MUSL_DEFAULT.into()),
        Err(errno) => (PathSource::Unusable(Some(errno)), Vec::new()),
        Ok(text) if text.is_empty() => (PathSource::Unusable(None), Vec::new()),
        Ok(text) => (PathSource::File, text),
    };
    // Read by getdelim up to the first zero byte.
    let list = text.split(|b| *b == 0).next().unwrap_or_default();
    MuslPath { file: Some(file), source, list: list.into() }
}

/// The path file of a musl loader (`etc_ldso_path` of 1.2).
pub fn musl_path_file(loader: &BStr, arch: &BStr) -> BString {
    let mut file = musl_prefix(loader).to_owned();
    file.push_str("/etc/ld-musl-");
    file.push_str(arch);
    file.push_str(".path");
    file
}

/// The loader's path without its last two components, which is where its `/etc` lies; empty for the usual
/// `/lib/ld-musl-ARCH.so.1` and for a relative path.
fn musl_prefix(loader: &BStr) -> &BStr {
    if !loader.starts_with(b"/") {
        return BStr::new("");
    }
    let file = loader.rfind_byte(b'/').unwrap_or(0);
    let end = loader[..file].rfind_byte(b'/').unwrap_or(0);
    if end < 4096 { loader[..end].as_bstr() } else { BStr::new("") }
}

/// The name of the architecture in the loader's file name: `x86_64` of `/lib/ld-musl-x86_64.so.1`.
pub fn musl_arch(loader: &BStr) -> Option<&BStr> {
    let name = system::file_name(loader).strip_prefix(b"ld-musl-")?;
    Some(name[..name.find(".so")?].as_bstr())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system::{Host, Tree};

    #[test]
    fn only_the_first_comment_is_surely_gone() {
        let names = |text: &str| preload_names(text.as_bytes()).iter().map(|n| n.to_string()).collect::<Vec<_>>();
        assert_eq!(names("a.so:b.so\tc.so\nd.so"), ["a.so", "b.so", "c.so", "d.so"]);
        assert_eq!(names("a.so # b.so\nc.so\n"), ["a.so", "c.so"]);
        // Seen from the loaders of 2.31 to 2.43.
        assert_eq!(names("nope1.so # c1\n# c2 word\nnope2.so"), ["nope1.so", "word", "nope2.so"]);
        assert_eq!(names("nope1.so # c1\n# c2 word\nnope2.so\n"), ["nope1.so", "ord", "nope2.so"]);
        assert!(names("").is_empty());
        assert!(names("#").is_empty());
        assert_eq!(names("a\0b c"), ["a", "c"]);
    }

    fn musl(loader: &str, file: Option<(&str, &str)>) -> MuslPath {
        let mut tree = Tree::new();
        if let Some((path, text)) = file {
            tree.add_file(path, text.as_bytes()).expect("add");
        }
        let system = System::new(Host::bare(), std::sync::Arc::new(tree));
        musl_path(&system, loader.into(), Some(musl_arch(loader.into()).expect("a musl loader")))
    }

    #[test]
    fn musls_path_file_lies_beside_the_loaders_directory() {
        let usual = "/lib/ld-musl-x86_64.so.1";
        let default = musl(usual, None);
        let path_file = Some("/etc/ld-musl-x86_64.path".into());
        assert_eq!((default.file, default.source), (path_file, PathSource::Default));
        assert_eq!(default.list, MUSL_DEFAULT);
        let file = musl(usual, Some(("/etc/ld-musl-x86_64.path", "/a:/b;c\n\n:rel:\n")));
        assert_eq!((file.source, file.list.to_string().as_str()), (PathSource::File, "/a:/b;c\n\n:rel:\n"));
        let empty = musl(usual, Some(("/etc/ld-musl-x86_64.path", "")));
        assert_eq!((empty.source, empty.list.len()), (PathSource::Unusable(None), 0));
        let directory = musl(usual, Some(("/etc/ld-musl-x86_64.path/x", "")));
        assert_eq!(directory.source, PathSource::Unusable(Some(Errno::EISDIR)));
        let zero = musl(usual, Some(("/etc/ld-musl-x86_64.path", "/a\0/b")));
        assert_eq!(zero.list, "/a");
        let unknown =
            musl_path(&System::new(Host::bare(), std::sync::Arc::new(Tree::new())), "/lib/libc.so".into(), None);
        assert_eq!((unknown.file, unknown.list.to_string().as_str()), (None, MUSL_DEFAULT));
        // Seen by strace with PT_INTERP of these forms.
        for (loader, file) in [
            ("/opt/m/lib/ld-musl-x86_64.so.1", "/opt/m/etc/ld-musl-x86_64.path"),
            ("/opt//m/lib//ld-musl-x86_64.so.1", "/opt//m/lib/etc/ld-musl-x86_64.path"),
            ("/opt/m/lib/../lib/ld-musl-x86_64.so.1", "/opt/m/lib/../etc/ld-musl-x86_64.path"),
            ("lib/ld-musl-x86_64.so.1", "/etc/ld-musl-x86_64.path"),
            ("/ld-musl-x86_64.so.1", "/etc/ld-musl-x86_64.path"),
        ] {
            assert_eq!(musl(loader, None).file, Some(file.into()));
        }
        assert_eq!(musl_arch("/lib64/ld-linux-x86-64.so.2".into()), None);
    }
}
