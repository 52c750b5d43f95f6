//! Ranges of one file, read as they are asked for and kept for the life of the reader.
//!
//! A table is read in whole 4 KiB pages, so that the next question about its neighbourhood costs nothing, and nothing
//! else of the file is touched. What a file can make the reader hold is bounded: one range, and all ranges together.

use std::cell::Cell;

use bstr::BString;

use crate::system::{Errno, File};

const PAGE: u64 = 4096;
/// Longest range that may be asked for at once.
const MAX_RANGE: u64 = 8 << 20;
/// Most bytes that one reader reads. Program headers, dynamic array, strings, versions and notes of real files need
/// some hundred kilobytes; a file that scatters its tables on purpose stops here.
const MAX_READ: u64 = 32 << 20;
/// A buffer up to this size is kept for the thread's next reader.
const MAX_SPARE: usize = 256 << 10;

thread_local! {
    /// The buffer of the thread's last reader: hundreds of files are read one after the other.
    static SPARE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Reads ranges of a file.
pub struct Reader<'f> {
    file: &'f File,
    /// Everything that was read.
    bytes: Vec<u8>,
    /// The parts of the file that were read, by offset.
    chunks: Vec<Chunk>,
    /// Index of the one that was used last.
    last: usize,
    asked: u64,
}

/// A part of the file.
#[derive(Clone, Copy)]
struct Chunk {
    /// Offset in the file, a multiple of the page.
    start: u64,
    /// Where its bytes begin in the buffer, and how many there are.
    at: usize,
    len: usize,
    /// True when the file ends behind it.
    ends: bool,
}

impl Chunk {
    fn holds(&self, offset: u64, end: u64) -> bool {
        offset >= self.start && (self.ends || end - self.start <= self.len as u64)
    }
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
        // Else the kernel takes the first read of a file for the begin of reading it all, and reads four times as much.
        file.advise_random();
        let mut bytes = SPARE.take();
        bytes.clear();
        Reader { file, bytes, chunks: Vec::with_capacity(8), last: 0, asked: 0 }
    }

    /// How many bytes were read from the file so far.
    pub fn bytes_read(&self) -> u64 {
        self.bytes.len() as u64
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
        let known = self.chunks.get(self.last).is_some_and(|c| c.holds(offset, end));
        if !known {
            self.last = match self.find(offset, end) {
                Some(index) => index,
                None => self.fetch(offset, end)?,
            };
        }
        let Some(chunk) = self.chunks.get(self.last) else { return Ok(&[]) };
        let bytes = self.bytes.get(chunk.at..chunk.at + chunk.len).unwrap_or_default();
        let from = usize::try_from(offset - chunk.start).unwrap_or(usize::MAX).min(bytes.len());
        let to = usize::try_from(end - chunk.start).unwrap_or(usize::MAX).min(bytes.len());
        Ok(&bytes[from..to])
    }

    /// The chunk that holds a range.
    fn find(&self, offset: u64, end: u64) -> Option<usize> {
        let index = self.chunks.partition_point(|c| c.start <= offset).checked_sub(1)?;
        self.chunks.get(index).filter(|c| c.holds(offset, end)).map(|_| index)
    }

    /// Reads the pages around a range; returns the chunk that holds them.
    fn fetch(&mut self, offset: u64, end: u64) -> Result<usize, Errno> {
        let mut start = offset / PAGE * PAGE;
        let stop = end.max(1).div_ceil(PAGE).saturating_mul(PAGE);
        let place = self.chunks.partition_point(|c| c.start <= start);
        // What was read last and ends in these pages, or right before them, is made longer: no page is read twice.
        let longer = place.checked_sub(1).filter(|i| {
            self.chunks.get(*i).is_some_and(|c| {
                c.at + c.len == self.bytes.len()
                    && (c.len as u64).is_multiple_of(PAGE)
                    && start <= c.start + c.len as u64
            })
        });
        if let Some(chunk) = longer.and_then(|i| self.chunks.get(i)) {
            start = chunk.start + chunk.len as u64;
        }
        // Room only for what the file had when it was opened, yet always for one page: files of /proc have size 0.
        let len = (stop - start).min(self.file_size().saturating_sub(start).max(PAGE));
        self.asked = self.asked.saturating_add(len);
        if self.asked > MAX_READ {
            return Err(Errno::EFBIG);
        }
        let at = self.bytes.len();
        let wanted = usize::try_from(len).map_err(|_| Errno::EFBIG)?;
        let n = self.file.append_at(start, wanted, &mut self.bytes)?;
        let ends = n < wanted;
        if let Some(index) = longer
            && let Some(chunk) = self.chunks.get_mut(index)
        {
            chunk.len += n;
            chunk.ends = ends;
            return Ok(index);
        }
        let chunk = Chunk { start, at, len: n, ends };
        match place.checked_sub(1).filter(|i| self.chunks.get(*i).is_some_and(|c| c.start == start)) {
            Some(same) => {
                self.chunks[same] = chunk;
                Ok(same)
            }
            None => {
                self.chunks.insert(place, chunk);
                Ok(place)
            }
        }
    }

    /// The NUL-terminated string at an offset, at most `limit` bytes of it. `None` when the file ends or cannot be read
    /// before either. The rest of the file's last page counts as zeros, as it is in memory.
    pub fn text(&mut self, offset: u64, limit: u64) -> Option<Text> {
        // Most strings lie in one page.
        let first = (PAGE - offset % PAGE).min(limit);
        let piece = self.range(offset, first).ok()?;
        if let Some(end) = memchr::memchr(0, piece) {
            return Some(Text { bytes: piece[..end].into(), whole: true });
        }
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

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        if bytes.capacity() <= MAX_SPARE {
            SPARE.set(bytes);
        }
    }
}
