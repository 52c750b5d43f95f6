//! A distribution's list of installed files, indexed for the question "is this path in it?".
//!
//! `RECORD` is CSV: path, hash, size; a path with a comma, quote or line break stands in quotes, quotes doubled.
//! torch's has over a megabyte, so paths are not copied: the index keeps a hash and an offset for each row.

use std::borrow::Cow;
use std::hash::Hasher;

use bstr::ByteSlice;
use memchr::{memchr, memchr2};
use rustc_hash::FxHasher;

/// Longest list that is read; the largest known is about 2 MB.
pub(super) const MAX_BYTES: u64 = 32 << 20;

/// The paths of a list as written, relative to its base directory.
pub(super) struct Record {
    bytes: Vec<u8>,
    /// Hash of the unquoted path and offset of its row, sorted.
    rows: Vec<(u64, u32)>,
    /// What is wrong with the first row that is not what an installer writes.
    damage: Option<String>,
}

impl Record {
    /// Indexes a `RECORD` file.
    pub fn of_csv(bytes: Vec<u8>) -> Record {
        let mut record = Record::build(bytes, |line| row_path(line).1);
        record.damage = damage(&record.bytes);
        record
    }

    /// Indexes a list with one plain path per line (`installed-files.txt` of old installers).
    pub fn of_lines(bytes: Vec<u8>) -> Record {
        Record::build(bytes, |line| memchr(b'\n', line).map_or(line.len(), |i| i + 1))
    }

    /// `length` gives the length of the row at the start of its argument, line end included.
    fn build(mut bytes: Vec<u8>, length: impl Fn(&[u8]) -> usize) -> Record {
        bytes.truncate(usize::try_from(MAX_BYTES).unwrap_or(usize::MAX));
        let mut rows = Vec::with_capacity(bytes.len() / 90);
        let mut at = 0;
        while at < bytes.len() {
            let row = &bytes[at..];
            if let (Some(path), Ok(offset)) = (unquoted(row), u32::try_from(at)) {
                rows.push((hash(&path), offset));
            }
            at += length(row).max(1);
        }
        rows.sort_unstable();
        Record { bytes, rows, damage: None }
    }

    /// What is wrong with the first row that is not what an installer writes.
    pub fn damage(&self) -> Option<&str> {
        self.damage.as_deref()
    }

    /// True when the list has exactly this path.
    pub fn has(&self, path: &[u8]) -> bool {
        let wanted = hash(path);
        let first = self.rows.partition_point(|(h, _)| *h < wanted);
        self.rows[first..]
            .iter()
            .take_while(|(h, _)| *h == wanted)
            .any(|(_, at)| self.bytes.get(*at as usize..).and_then(unquoted).is_some_and(|own| *own == *path))
    }

    /// The paths, as written, in no order that means anything.
    pub fn paths(&self) -> impl Iterator<Item = Cow<'_, [u8]>> {
        self.rows.iter().filter_map(|(_, at)| self.bytes.get(*at as usize..).and_then(unquoted))
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.rows.len()
    }
}

/// The first row that is not one of a path, a hash and a size (PEP 376): a list that is cut short, or none at all.
fn damage(bytes: &[u8]) -> Option<String> {
    let mut at = 0;
    let mut line = 1;
    if let Some(zero) = memchr(0, bytes) {
        let line = bytes[..zero].lines().count().max(1);
        return Some(format!("line {line} has a NUL byte"));
    }
    while at < bytes.len() {
        let row = &bytes[at..];
        let (path, length) = row_path(row);
        let row = &row[..length];
        let is_open = path.first() == Some(&b'"') && (path.len() < 2 || path.last() != Some(&b'"'));
        if is_open {
            return Some(format!("line {line} has a quote that is not closed"));
        }
        if !path.is_empty() && row.get(path.len()) != Some(&b',') {
            return Some(format!("line {line} has a path and nothing more"));
        }
        line += memchr::memchr_iter(b'\n', row).count();
        at += length.max(1);
    }
    None
}

fn hash(path: &[u8]) -> u64 {
    let mut hasher = FxHasher::default();
    hasher.write(path);
    hasher.finish()
}

/// The path of the row at the start of `row`, `None` for an empty line.
fn unquoted(row: &[u8]) -> Option<Cow<'_, [u8]>> {
    let (path, _) = row_path(row);
    if path.is_empty() {
        return None;
    }
    Some(match path.strip_prefix(b"\"") {
        Some(inside) => {
            let inside = inside.strip_suffix(b"\"").unwrap_or(inside);
            if memchr(b'"', inside).is_some() { inside.replace("\"\"", "\"").into() } else { inside.into() }
        }
        None => path.into(),
    })
}

/// The path as written (quotes kept) and the length of the row with its line end.
fn row_path(row: &[u8]) -> (&[u8], usize) {
    let end = if row.first() == Some(&b'"') {
        let mut at = 1;
        loop {
            match row.get(at..).and_then(|rest| memchr(b'"', rest)) {
                Some(i) if row.get(at + i + 1) == Some(&b'"') => at += i + 2,
                Some(i) => break at + i + 1,
                // No closing quote: everything that follows would be one path.
                None => break row.len(),
            }
        }
    } else {
        memchr2(b',', b'\n', row).unwrap_or(row.len())
    };
    let length = row.get(end..).and_then(|rest| memchr(b'\n', rest)).map_or(row.len(), |i| end + i + 1);
    (row[..end].trim_end_with(|c| c == '\r'), length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_paths_and_ragged_rows_are_read() {
        let text =
            b"a/b.so,sha256=x,1\r\n\"odd, \"\"name\"\".py\",,\n\nlast-without-end,sha256=y,2\nbare\r\n../../../bin/x,,";
        let record = Record::of_csv(text.to_vec());
        for path in ["a/b.so", "odd, \"name\".py", "last-without-end", "bare", "../../../bin/x"] {
            assert!(record.has(path.as_bytes()), "{path}");
        }
        assert!(!record.has(b"a/b"));
        assert!(!record.has(b""));
        assert_eq!(record.len(), 5);
        assert_eq!(record.damage(), Some("line 5 has a path and nothing more"));
    }

    #[test]
    fn what_no_installer_writes_is_damage() {
        let damage = |text: &[u8]| Record::of_csv(text.to_vec()).damage().map(str::to_owned);
        for sound in [&b""[..], b"a,,\n", b"a,sha256=x,1\r\nb,,", b"\"a,\"\"b\",,\n\nc,x,2\n"] {
            assert_eq!(damage(sound), None, "{}", sound.as_bstr());
        }
        for (text, what) in [
            (&b"a,,\nb/c"[..], "line 2 has a path and nothing more"),
            (b"a,,\n\"b,,\nc,,\n", "line 2 has a quote that is not closed"),
            (b"a,,\nx\0y,,\n", "line 2 has a NUL byte"),
            (b"\x7fELF\x02\n", "line 1 has a path and nothing more"),
            (b"\"", "line 1 has a quote that is not closed"),
        ] {
            assert_eq!(damage(text).as_deref(), Some(what), "{}", text.as_bstr());
        }
    }

    #[test]
    fn an_open_quote_does_not_swallow_earlier_rows_and_ends() {
        let record = Record::of_csv(b"a,,\n\"open,,\nb,,\n".to_vec());
        assert!(record.has(b"a"));
        assert!(!record.has(b"b"));
        let many = Record::of_csv(vec![b'"'; 100_000]);
        assert!(many.len() <= 1);
        assert!(!many.has(b"x"));
    }

    #[test]
    fn plain_lists_have_one_path_a_line() {
        let record = Record::of_lines(b"../pkg/x.so\n../pkg/y, z.py\n".to_vec());
        assert!(record.has(b"../pkg/x.so"));
        assert_eq!(record.len(), 2);
    }
}
