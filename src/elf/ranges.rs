//! Tables of one file under few maps: those that lie in one segment share a map.

use std::ops::Deref;
use std::sync::Arc;

use super::Facts;
use crate::system::{File, Mapped};

/// A range of a map that others may share.
pub struct Range {
    map: Arc<Mapped>,
    start: usize,
    end: usize,
}

impl Range {
    /// True when the file was cut short under the map, so that part of what was read is zeros.
    pub fn was_cut(&self) -> bool {
        self.map.was_cut()
    }
}

impl Deref for Range {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.map.get(self.start..self.end).unwrap_or_default()
    }
}

/// Hands out ranges of a file by the addresses of its dynamic array.
pub struct Ranges<'f> {
    file: &'f File,
    facts: &'f Facts,
    /// First offset that is needed and end, of each stretch of the file, with its map once it was made.
    stretches: Vec<(u64, u64, Option<Arc<Mapped>>)>,
}

impl<'f> Ranges<'f> {
    /// For the tables of symbols and relocations of a file.
    pub fn new(file: &'f File, facts: &'f Facts) -> Ranges<'f> {
        let d = &facts.dynamic;
        let tables =
            [d.symbol_table, d.string_table, d.gnu_hash, d.hash, d.version_symbols, d.rel, d.rela, d.plt_relocations];
        let mut stretches: Vec<(u64, u64, Option<Arc<Mapped>>)> = Vec::new();
        for (offset, room) in tables.into_iter().flatten().filter_map(|address| facts.offset_of(address)) {
            let end = offset.saturating_add(room);
            match stretches.iter_mut().find(|(_, other, _)| *other == end) {
                Some((start, _, _)) => *start = offset.min(*start),
                None => stretches.push((offset, end, None)),
            }
        }
        Ranges { file, facts, stretches }
    }

    /// What is mapped at an address, `limit` bytes at most; the number of bytes that were there tells a caller what is
    /// missing. `None` when nothing of the file is mapped there or it cannot be read.
    pub fn at(&mut self, address: u64, limit: u64) -> Option<(Range, u64)> {
        let (offset, room) = self.facts.offset_of(address)?;
        let end = offset.saturating_add(room);
        let (start, _, map) = self.stretches.iter_mut().find(|(start, other, _)| *other == end && offset >= *start)?;
        let map = match map {
            Some(map) => map.clone(),
            None => map.insert(Arc::new(self.file.map(*start, end - *start).ok()?)).clone(),
        };
        let first = usize::try_from(offset - *start).ok()?.min(map.len());
        let len = usize::try_from(limit.min(room)).unwrap_or(usize::MAX);
        let last = first.saturating_add(len).min(map.len());
        Some((Range { map, start: first, end: last }, room))
    }
}
