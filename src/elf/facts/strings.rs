//! The string table as the loader sees it in memory, and how much of it is kept.

use bstr::BString;

use super::super::Reader;
use super::super::reader::Text;
use super::{Facts, Harm, Memory};

/// Longest library name or version name that is kept, in bytes: beyond PATH_MAX (4096) no name can be opened, so that
/// the beginning of a longer one fails for the same reason.
const MAX_NAME: u64 = 8 << 10;

/// Bytes of all names of one file that are kept. Thousands of entries can point at one long string.
const MAX_NAMES: usize = 1 << 20;

/// Most strings of one file that are looked for outside the segment of the string table.
const MAX_STRAYS: u32 = 256;

/// The string table and what may still be kept of it.
pub(super) struct Strings {
    address: u64,
    /// Offset in the file and bytes there, when the table begins in a segment.
    at: Option<(u64, u64)>,
    names_left: usize,
    strays_left: u32,
}

/// Why a string could not be had.
pub(super) enum NoText {
    /// The loader would read memory that is not there.
    Unmapped,
    /// Too much was read of this file already.
    Spent,
}

impl Strings {
    /// A table at an address; `at` is its offset in the file and its bytes there, when it begins in a segment.
    pub(super) fn new(address: u64, at: Option<(u64, u64)>) -> Strings {
        Strings { address, at, names_left: MAX_NAMES, strays_left: MAX_STRAYS }
    }

    /// The string at an index of the table, as the loader sees it in memory: it trusts the index, so that the string
    /// may lie in any segment. A string longer than `limit` is cut there.
    pub(super) fn get(
        &mut self,
        facts: &Facts,
        reader: &mut Reader<'_>,
        index: u64,
        limit: u64,
    ) -> Result<Text, NoText> {
        let limit = limit.min(self.names_left as u64);
        if limit == 0 {
            return Err(NoText::Spent);
        }
        let mut text = match self.at {
            Some((start, room)) if index < room => {
                reader.text(start.saturating_add(index), limit.min(room - index)).ok_or(NoText::Unmapped)?
            }
            _ => Text { bytes: BString::default(), whole: false },
        };
        // Most strings end where they begin; what follows is for tables that cross a segment's end.
        while !text.whole && (text.bytes.len() as u64) < limit {
            self.strays_left = self.strays_left.checked_sub(1).ok_or(NoText::Spent)?;
            let have = text.bytes.len() as u64;
            match facts.memory_at(self.address.wrapping_add(index).wrapping_add(have)) {
                Memory::File { offset, room } => {
                    let more = reader.text(offset, room.min(limit - have)).ok_or(NoText::Unmapped)?;
                    text.whole = more.whole;
                    text.bytes.extend_from_slice(&more.bytes);
                }
                Memory::Zeros => text.whole = true,
                Memory::Nothing => return Err(NoText::Unmapped),
            }
        }
        self.names_left -= text.bytes.len().min(self.names_left);
        Ok(text)
    }

    /// A name; says what is wrong with one that cannot be had.
    pub(super) fn name(
        &mut self,
        facts: &mut Facts,
        reader: &mut Reader<'_>,
        index: u64,
        what: &str,
    ) -> Option<BString> {
        self.name_or_reason(facts, reader, index, what).ok()
    }

    pub(super) fn name_or_reason(
        &mut self,
        facts: &mut Facts,
        reader: &mut Reader<'_>,
        index: u64,
        what: &str,
    ) -> Result<BString, NoText> {
        let got = self.get(facts, reader, index, MAX_NAME);
        match &got {
            Ok(text) if text.whole => {}
            Ok(_) => facts.defect(Harm::Odd, format!("{what} is longer than any path can be")),
            Err(NoText::Unmapped) => {
                facts.defect(Harm::Crash, format!("{what} points outside what is mapped of the file"));
            }
            Err(NoText::Spent) => {
                facts.defect(Harm::Incomplete, format!("too many long names; {what} is not read"));
            }
        }
        got.map(|text| text.bytes)
    }
}
