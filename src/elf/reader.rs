//! Ranges of one file, read as they are asked for and kept for the life of the reader.
//!
//! A table is read in whole 4 KiB pages, so that the next question about its neighbourhood costs nothing, and nothing
//! else of the file is touched.

use bstr::BString;

use crate::system::{Errno, File};

const PAGE: u64 = 4096;
/// Longest range that may be asked for at once.
const MAX_RANGE: u64 = 64 << 20;

/// Reads ranges of a file.
pub struct Reader<'f> {
    file: &'f File,
    chunks: Vec<(u64, Vec<u8>)>,
    read: u64,
}

impl<'f> Reader<'f> {
    /// A reader that has read nothing yet.
    pub fn new(file: &'f File) -> Reader<'f> {
        Reader { file, chunks: Vec::new(), read: 0 }
    }

    /// How many bytes were read from the file so far.
    pub fn bytes_read(&self) -> u64 {
        self.read
    }

    /// Size of the file when it was opened.
    pub fn file_size(&self) -> u64 {
        self.file.meta.size
    }

    /// The bytes of a range; fewer than asked when the file ends before.
    pub fn range(&mut self, offset: u64, len: u64) -> Result<&[u8], Errno> {
        if len > MAX_RANGE {
            return Err(Errno(27));
        }
        let Some(end) = offset.checked_add(len) else { return Err(Errno::EINVAL) };
        let index = match self
            .chunks
            .iter()
            .position(|(start, bytes)| *start <= offset && end <= *start + bytes.len() as u64)
        {
            Some(index) => index,
            None => {
                let start = offset / PAGE * PAGE;
                let stop = end.max(1).div_ceil(PAGE).saturating_mul(PAGE);
                let mut bytes = vec![0u8; usize::try_from(stop - start).map_err(|_| Errno(27))?];
                let n = self.file.read_at(start, &mut bytes)?;
                self.read += n as u64;
                bytes.truncate(n);
                self.chunks.push((start, bytes));
                self.chunks.len() - 1
            }
        };
        let (start, bytes) = &self.chunks[index];
        let from = usize::try_from(offset - start).unwrap_or(usize::MAX).min(bytes.len());
        let to = usize::try_from(end - start).unwrap_or(usize::MAX).min(bytes.len());
        Ok(&bytes[from..to])
    }

    /// The NUL-terminated string at an offset. `None` when there is no NUL within `limit` bytes or before the end.
    pub fn string(&mut self, offset: u64, limit: u64) -> Option<BString> {
        let mut len = (PAGE - offset % PAGE).min(limit);
        loop {
            let bytes = self.range(offset, len).ok()?;
            if let Some(end) = memchr::memchr(0, bytes) {
                return Some(bytes[..end].into());
            }
            if (bytes.len() as u64) < len || len >= limit {
                return None;
            }
            len = (len + PAGE).min(limit);
        }
    }
}
