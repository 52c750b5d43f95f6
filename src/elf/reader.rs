//! Ranges of one file, read as they are asked for and kept for the life of the reader.
//!
//! A table is read in whole 4 KiB pages, so that the next question about its neighbourhood costs nothing, and nothing
//! else of the file is touched. What a file can make the reader hold is bounded: one range, and all ranges together.

use std::collections::BTreeMap;

use bstr::BString;

use crate::system::{Errno, File};

const PAGE: u64 = 4096;
/// Longest range that may be asked for at once.
const MAX_RANGE: u64 = 8 << 20;
/// Most bytes that one reader reads. Program headers, dynamic array, strings, versions and notes of real files need
/// some hundred kilobytes; a file that scatters its tables on purpose stops here.
const MAX_READ: u64 = 32 << 20;

/// Reads ranges of a file.
pub struct Reader<'f> {
    file: &'f File,
    /// What was read, by the offset it begins at (a multiple of the page).
    chunks: BTreeMap<u64, Vec<u8>>,
    read: u64,
    asked: u64,
}

/// A string of a table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Text {
    /// The bytes up to the NUL, or up to the limit.
    pub bytes: BString,
    /// False when there was no NUL within the limit, so that `bytes` is only the beginning.
    pub whole: bool,
}

impl<'f> Reader<'f> {
    /// A reader that has read nothing yet.
    pub fn new(file: &'f File) -> Reader<'f> {
        Reader { file, chunks: BTreeMap::new(), read: 0, asked: 0 }
    }

    /// How many bytes were read from the file so far.
    pub fn bytes_read(&self) -> u64 {
        self.read
    }

    /// Size of the file when it was opened.
    pub fn file_size(&self) -> u64 {
        self.file.meta.size
    }

    /// The bytes of a range; fewer than asked when the file ends before. `Errno(27)` (file too large) for a range that
    /// is longer than any table, and when the file has made the reader read too much already.
    pub fn range(&mut self, offset: u64, len: u64) -> Result<&[u8], Errno> {
        if len > MAX_RANGE {
            return Err(Errno::EFBIG);
        }
        let end = offset.checked_add(len).ok_or(Errno::EINVAL)?;
        let start = self
            .chunks
            .range(..=offset)
            .next_back()
            .filter(|(start, bytes)| end - **start <= bytes.len() as u64)
            .map(|(start, _)| *start);
        let start = match start {
            Some(start) => start,
            None => self.fetch(offset, end)?,
        };
        let bytes = self.chunks.get(&start).map(Vec::as_slice).unwrap_or_default();
        let from = usize::try_from(offset - start).unwrap_or(usize::MAX).min(bytes.len());
        let to = usize::try_from(end - start).unwrap_or(usize::MAX).min(bytes.len());
        Ok(&bytes[from..to])
    }

    /// Reads the pages around a range; returns where they begin.
    fn fetch(&mut self, offset: u64, end: u64) -> Result<u64, Errno> {
        let start = offset / PAGE * PAGE;
        let stop = end.max(1).div_ceil(PAGE).saturating_mul(PAGE);
        // Room only for what the file had when it was opened, yet always for one page: files of /proc have size 0.
        let len = (stop - start).min(self.file_size().saturating_sub(start).max(PAGE));
        self.asked = self.asked.saturating_add(len);
        if self.asked > MAX_READ {
            return Err(Errno::EFBIG);
        }
        let mut bytes = vec![0u8; usize::try_from(len).map_err(|_| Errno::EFBIG)?];
        let n = self.file.read_at(start, &mut bytes)?;
        self.read += n as u64;
        bytes.truncate(n);
        self.chunks.insert(start, bytes);
        Ok(start)
    }

    /// The NUL-terminated string at an offset, at most `limit` bytes of it. `None` when the file ends or cannot be read
    /// before either. The rest of the file's last page counts as zeros, as it is in memory.
    pub fn text(&mut self, offset: u64, limit: u64) -> Option<Text> {
        let mut bytes = BString::default();
        while (bytes.len() as u64) < limit {
            let at = offset.checked_add(bytes.len() as u64)?;
            let len = (PAGE - at % PAGE).min(limit - bytes.len() as u64);
            let piece = self.range(at, len).ok()?;
            if let Some(end) = memchr::memchr(0, piece) {
                bytes.extend_from_slice(&piece[..end]);
                return Some(Text { bytes, whole: true });
            }
            let cut = (piece.len() as u64) < len;
            bytes.extend_from_slice(piece);
            if cut {
                let size = self.file_size();
                let in_last_page = !size.is_multiple_of(PAGE) && at / PAGE == size / PAGE;
                return in_last_page.then_some(Text { bytes, whole: true });
            }
        }
        Some(Text { bytes, whole: false })
    }

    /// The NUL-terminated string at an offset. `None` when there is no NUL within `limit` bytes or before the end.
    pub fn string(&mut self, offset: u64, limit: u64) -> Option<BString> {
        self.text(offset, limit).filter(|t| t.whole).map(|t| t.bytes)
    }
}
