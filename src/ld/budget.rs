//! How much one simulated process may take before the audit gives up.
//!
//! A real loader has no such limit: a box can be made so that starting a program takes days or all memory (a library
//! with thousands of entries, each searched in a hundred thousand directories). An audit must end, so the simulation
//! counts what it does and stops with a failure that says so, never with an answer that leaves something out. The limits
//! are far above what any real process needs: `import torch` of the newest release takes a two-hundredth of the work and a
//! thirtieth of the bytes.

use bstr::BStr;

use super::LoadFailure;

/// Steps of work: a candidate costs [`CANDIDATE`], other things less.
const WORK: u64 = 32 << 20;
/// Bytes of records.
const BYTES: u64 = 128 << 20;

/// Work of trying one path.
pub(crate) const CANDIDATE: u64 = 16;
/// Work of a lookup in the loader's cache.
pub(crate) const CACHE_LOOKUP: u64 = 256;
/// Bytes that one record takes besides its text.
pub(crate) const RECORD: u64 = 256;

/// What is left.
#[derive(Clone, Debug)]
pub(crate) struct Budget {
    work: u64,
    bytes: u64,
    spent: bool,
}

impl Default for Budget {
    fn default() -> Self {
        Budget { work: WORK, bytes: BYTES, spent: false }
    }
}

impl Budget {
    /// Takes work and bytes away. False when there was not enough left, now or before.
    pub(crate) fn take(&mut self, work: u64, bytes: u64) -> bool {
        match (self.work.checked_sub(work), self.bytes.checked_sub(bytes)) {
            (Some(work), Some(bytes)) if !self.spent => {
                self.work = work;
                self.bytes = bytes;
                true
            }
            _ => {
                self.spent = true;
                false
            }
        }
    }

    /// Takes away what a text of some length costs to be kept.
    pub(crate) fn take_text(&mut self, work: u64, len: usize) -> bool {
        self.take(work, RECORD + len as u64)
    }

    /// Leaves nothing.
    pub(crate) fn exhaust(&mut self) {
        self.spent = true;
    }

    /// True when something did not fit any more.
    pub(crate) fn is_spent(&self) -> bool {
        self.spent
    }

    /// The failure that says so.
    pub(crate) fn failure(asked: &BStr) -> LoadFailure {
        LoadFailure::new(asked.to_owned(), "the audit gives up: this process takes too much to simulate", 0)
    }
}
