//! Strings in read-only data that look like library names: what a file that imports `dlopen` may ask for.

use bstr::{BString, ByteSlice};

use super::{Facts, Reader};
use crate::system::File;

/// True when the dynamic string table holds the name of a function that opens libraries (`dlopen`, `dlmopen`).
///
/// Reads the string table, not the symbol table: a name there that no symbol uses does no harm to the question
/// "could this file open libraries by name".
pub fn imports_dlopen(file: &File, facts: &Facts) -> bool {
    let Some(address) = facts.dynamic.string_table else { return false };
    let Some((offset, room)) = facts.offset_of(address) else { return false };
    let len = facts.dynamic.string_size.unwrap_or(room).min(room);
    let Ok(table) = file.map(offset, len) else { return false };
    table.find(b"\0dlopen\0").is_some() || table.find(b"\0dlmopen\0").is_some()
}

/// Texts in read-only data that contain `stem`, whole from NUL to NUL, at most 256 bytes each and `limit` of them.
///
/// Searches `.rodata` where section headers name one (device code in the same segment can be a hundred times as big),
/// else every segment that is loaded read-only.
pub fn containing(file: &File, facts: &Facts, reader: &mut Reader<'_>, stem: &[u8], limit: usize) -> Vec<BString> {
    let mut out: Vec<BString> = Vec::new();
    if stem.is_empty() {
        return out;
    }
    let finder = memchr::memmem::Finder::new(stem);
    for (offset, len) in read_only_ranges(facts, reader) {
        let Ok(bytes) = file.map(offset, len) else { continue };
        let mut from = 0;
        while let Some(found) = finder.find(&bytes[from..]) {
            let at = from + found;
            from = at + stem.len();
            let start = memchr::memrchr(0, &bytes[at.saturating_sub(256)..at])
                .map_or(at.saturating_sub(256), |i| at.saturating_sub(256) + i + 1);
            let Some(len) = memchr::memchr(0, &bytes[at..bytes.len().min(at + 256)]) else { continue };
            let text = &bytes[start..at + len];
            if text.len() <= 256 && text.iter().all(|b| (0x20..0x7f).contains(b)) && !out.iter().any(|t| t == text) {
                out.push(text.into());
                if out.len() >= limit {
                    return out;
                }
            }
        }
    }
    out
}

fn read_only_ranges(facts: &Facts, reader: &mut Reader<'_>) -> Vec<(u64, u64)> {
    let sections = sections(facts, reader);
    let named: Vec<(u64, u64)> = sections
        .iter()
        .filter(|(name, _, _)| name.starts_with(b".rodata") || name.as_slice() == b".data.rel.ro")
        .map(|(_, offset, size)| (*offset, *size))
        .collect();
    if !named.is_empty() {
        return named;
    }
    facts.segments.iter().filter(|s| s.flags & 2 == 0).map(|s| (s.offset, s.file_size)).collect()
}

/// Name, offset and size of each section that lies in the file. Empty when there are no usable section headers.
fn sections(facts: &Facts, reader: &mut Reader<'_>) -> Vec<(BString, u64, u64)> {
    let h = &facts.header;
    let size = u64::from(h.section_header_size);
    let expected = if facts.layout.is_64 { 64 } else { 40 };
    if h.section_headers_at == 0 || size != expected {
        return Vec::new();
    }
    let Ok(bytes) = reader.range(h.section_headers_at, size * u64::from(h.section_header_count)) else {
        return Vec::new();
    };
    let have = bytes.len() / expected as usize;
    let Ok(headers) = goblin::elf::section_header::SectionHeader::parse(bytes, 0, have, facts.layout.context()) else {
        return Vec::new();
    };
    let Some(names) = headers.get(usize::from(h.section_names_index)).map(|s| (s.sh_offset, s.sh_size)) else {
        return Vec::new();
    };
    headers
        .iter()
        .filter(|s| s.sh_type != goblin::elf::section_header::SHT_NOBITS && s.sh_size > 0)
        .filter_map(|s| {
            let at = s.sh_name as u64;
            let name = (at < names.1).then(|| reader.string(names.0.saturating_add(at), 256)).flatten()?;
            Some((name, s.sh_offset, s.sh_size))
        })
        .collect()
}
