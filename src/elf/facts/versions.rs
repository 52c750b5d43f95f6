//! The tables of versions that a file needs and defines.

use super::super::Reader;
use super::strings::Strings;
use super::{Facts, Harm, VersionDefinition, VersionNeed, VersionNeedFile, read_words};

/// Most entries of each version table that are read.
const MAX_VERSIONS: usize = 32 << 10;

fn half(word: u32, index: u32, endian: scroll::Endian) -> u16 {
    // The words were read in the file's byte order; in a big-endian file the first half is the upper one.
    let low_first = matches!(endian, scroll::Endian::Little);
    let shift = if (index == 0) == low_first { 0 } else { 16 };
    (word >> shift) as u16
}

fn words<const N: usize>(
    reader: &mut Reader<'_>,
    start: u64,
    room: u64,
    at: u64,
    endian: scroll::Endian,
) -> Option<[u32; N]> {
    let len = 4 * N as u64;
    if at.checked_add(len)? > room {
        return None;
    }
    read_words(reader.range(start.checked_add(at)?, len).ok()?, 0, endian)
}

impl Facts {
    pub(super) fn read_version_needs(
        &mut self,
        reader: &mut Reader<'_>,
        address: u64,
        strings: &mut Strings,
    ) -> Vec<VersionNeedFile> {
        let mut out = Vec::new();
        let Some((start, room)) = self.offset_of(address) else {
            self.defect(Harm::Crash, "DT_VERNEED lies outside every loaded segment");
            return out;
        };
        let endian = self.layout.context().le;
        let mut at = 0u64;
        let mut total = 0usize;
        loop {
            // Verneed: u16 version, u16 count, u32 file, u32 aux, u32 next.
            let Some([word, file, aux, next]) = words::<4>(reader, start, room, at, endian) else {
                self.defect(Harm::Crash, "the version need table ends outside its segment");
                return out;
            };
            let revision = half(word, 0, endian);
            let mut versions = Vec::with_capacity(usize::from(half(word, 1, endian)).min(16));
            let mut aux_at = at.saturating_add(aux.into());
            loop {
                // Vernaux: u32 hash, u16 flags, u16 other, u32 name, u32 next.
                let Some([hash, flags_other, name, aux_next]) = words::<4>(reader, start, room, aux_at, endian) else {
                    self.defect(Harm::Crash, "the version need table ends outside its segment");
                    break;
                };
                total += 1;
                if let Some(name) = strings.name(self, reader, name.into(), "a version name") {
                    versions.push(VersionNeed {
                        name,
                        hash,
                        flags: half(flags_other, 0, endian),
                        index: half(flags_other, 1, endian),
                    });
                }
                if aux_next == 0 || total > MAX_VERSIONS {
                    break;
                }
                aux_at = aux_at.saturating_add(aux_next.into());
            }
            if let Some(file) = strings.name(self, reader, file.into(), "the file name of a version need") {
                out.push(VersionNeedFile { revision, file, versions });
            }
            total += 1;
            if next == 0 {
                return out;
            }
            if total > MAX_VERSIONS {
                self.defect(Harm::Incomplete, "too many version needs, the rest is not read");
                return out;
            }
            at = at.saturating_add(next.into());
        }
    }

    pub(super) fn read_version_definitions(
        &mut self,
        reader: &mut Reader<'_>,
        address: u64,
        strings: &mut Strings,
    ) -> Vec<VersionDefinition> {
        let mut out = Vec::new();
        let Some((start, room)) = self.offset_of(address) else {
            self.defect(Harm::Crash, "DT_VERDEF lies outside every loaded segment");
            return out;
        };
        let endian = self.layout.context().le;
        let mut at = 0u64;
        let mut total = 0usize;
        loop {
            // Verdef: u16 version, u16 flags, u16 ndx, u16 cnt, u32 hash, u32 aux, u32 next.
            let Some([version_flags, index_count, hash, aux, next]) = words::<5>(reader, start, room, at, endian)
            else {
                self.defect(Harm::Crash, "the version definition table ends outside its segment");
                return out;
            };
            let aux = words::<2>(reader, start, room, at.saturating_add(aux.into()), endian);
            match aux.map(|[name, _next]| strings.name(self, reader, name.into(), "the name of a version definition")) {
                Some(Some(name)) => out.push(VersionDefinition {
                    revision: half(version_flags, 0, endian),
                    name,
                    hash,
                    flags: half(version_flags, 1, endian),
                    index: half(index_count, 0, endian),
                }),
                Some(None) => {}
                None => self.defect(Harm::Crash, "the version definition table ends outside its segment"),
            }
            if next == 0 {
                return out;
            }
            total += 1;
            if total > MAX_VERSIONS {
                self.defect(Harm::Incomplete, "too many version definitions, the rest is not read");
                return out;
            }
            at = at.saturating_add(next.into());
        }
    }
}
