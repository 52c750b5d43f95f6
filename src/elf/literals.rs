//! Strings in read-only data that look like library names: what a file that imports `dlopen` may ask for.

use std::collections::HashSet;

use bstr::{BString, ByteSlice};
use goblin::elf::section_header::{self, SectionHeader};
use scroll::Pread;

use super::{Facts, Reader, symbols};
use crate::system::File;

/// Longest text that is kept, in bytes.
const MAX_TEXT: usize = 256;
/// Most bytes of one file that are searched. The largest libraries have less than this in their read-only sections.
const MAX_SCAN: u64 = 2 << 30;
/// Most bytes of a string table that are searched.
const MAX_STRINGS: u64 = 256 << 20;

/// True when the file imports a function that opens libraries by name (`dlopen`, `dlmopen`).
///
/// Reads the dynamic string table first, which settles most files; only where such a name is the tail of another one
/// (linkers let strings share their ends) the symbols are asked.
pub fn imports_dlopen(file: &File, facts: &Facts) -> bool {
    let Some(address) = facts.dynamic.string_table else { return false };
    let Some((offset, room)) = facts.offset_of(address) else { return false };
    let len = facts.dynamic.string_size.unwrap_or(room).min(room).min(MAX_STRINGS);
    let Ok(table) = file.map(offset, len) else { return false };
    if table.find(b"\0dlopen\0").is_some() || table.find(b"\0dlmopen\0").is_some() {
        return true;
    }
    let shared = |name: &[u8]| table.find(name).is_some();
    (shared(b"dlopen\0") || shared(b"dlmopen\0"))
        && symbols::Table::open(file, facts).is_some_and(|t| t.imports(b"dlopen") || t.imports(b"dlmopen"))
}

/// What a search for texts found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Texts {
    /// The texts, each once, in file order.
    pub found: Vec<BString>,
    /// False when there may be more: the limit was reached, the file is too large to be searched whole, or it was cut
    /// short meanwhile.
    pub complete: bool,
}

/// Texts in read-only data that contain `stem`, whole from NUL to NUL, printable ASCII, at most 256 bytes each and
/// `limit` of them.
///
/// Searches `.rodata` where section headers name one (device code in the same segment can be a hundred times as big),
/// else every segment that is loaded read-only.
pub fn containing(file: &File, facts: &Facts, reader: &mut Reader<'_>, stem: &[u8], limit: usize) -> Texts {
    let mut out = Texts { found: Vec::new(), complete: true };
    if stem.is_empty() || stem.len() > MAX_TEXT || stem.contains(&0) {
        return out;
    }
    let finder = memchr::memmem::Finder::new(stem);
    let mut seen: HashSet<BString> = HashSet::new();
    let mut left = MAX_SCAN;
    let ranges = read_only_ranges(facts, reader);
    for (offset, len) in ranges.into_iter().flat_map(|(offset, len)| file.stored(offset, len)) {
        if len > left {
            out.complete = false;
        }
        let len = len.min(left);
        left -= len;
        let Ok(bytes) = file.map(offset, len) else {
            out.complete = false;
            continue;
        };
        let mut from = 0;
        while let Some(found) = bytes.get(from..).and_then(|rest| finder.find(rest)) {
            let at = from + found;
            let stop = bytes.len().min(at + MAX_TEXT + 1);
            let Some(len) = memchr::memchr(0, &bytes[at..stop]) else {
                // Whatever else begins before `stop` belongs to the same text, which is too long.
                from = stop;
                continue;
            };
            from = at + len;
            let floor = at.saturating_sub(MAX_TEXT);
            let start = match memchr::memrchr(0, &bytes[floor..at]) {
                Some(nul) => floor + nul + 1,
                None if floor == 0 => 0,
                None => continue,
            };
            let text = &bytes[start..at + len];
            if text.len() <= MAX_TEXT && text.iter().all(|b| (0x20..0x7f).contains(b)) && !seen.contains(text.as_bstr())
            {
                if out.found.len() >= limit {
                    out.complete = false;
                    return out;
                }
                seen.insert(text.into());
                out.found.push(text.into());
            }
        }
        out.complete &= !bytes.was_cut();
    }
    out.complete &= file.is_whole();
    out
}

/// The ranges of the file to search: offset and length, in order, none overlapping another, all inside the file.
fn read_only_ranges(facts: &Facts, reader: &mut Reader<'_>) -> Vec<(u64, u64)> {
    let named: Vec<(u64, u64)> = sections(facts, reader)
        .into_iter()
        .filter(|(name, _, _)| name.starts_with(b".rodata") || name.as_slice() == b".data.rel.ro")
        .map(|(_, offset, size)| (offset, size))
        .collect();
    if !named.is_empty() {
        return merged(named, facts.file_size);
    }
    merged(
        facts.segments.iter().filter(|s| s.flags & 2 == 0).map(|s| (s.offset, s.file_size)).collect(),
        facts.file_size,
    )
}

/// Ranges as a damaged file gives them: thousands may cover the same bytes, which must be searched once.
fn merged(mut ranges: Vec<(u64, u64)>, file_size: u64) -> Vec<(u64, u64)> {
    ranges.sort_unstable();
    let mut out: Vec<(u64, u64)> = Vec::new();
    for (offset, len) in ranges {
        let end = offset.saturating_add(len).min(file_size);
        let covered = out.last().map_or(0, |(o, l)| o + l);
        match out.last_mut() {
            Some(last) if offset < covered => last.1 = end.max(covered) - last.0,
            _ if offset < end => out.push((offset, end - offset)),
            _ => {}
        }
    }
    out
}

/// Name, offset and size of each section that lies in the file. Empty when there are no usable section headers.
fn sections(facts: &Facts, reader: &mut Reader<'_>) -> Vec<(BString, u64, u64)> {
    let h = &facts.header;
    let size = u64::from(h.section_header_size);
    let expected: usize = if facts.layout.is_64 { 64 } else { 40 };
    if h.section_headers_at == 0 || size != expected as u64 {
        return Vec::new();
    }
    let Ok(bytes) = reader.range(h.section_headers_at, size * u64::from(h.section_header_count)) else {
        return Vec::new();
    };
    // One by one: goblin's own loop takes offset 0 for "no section headers", and these bytes begin with them.
    let context = facts.layout.context();
    let headers: Vec<SectionHeader> =
        bytes.chunks_exact(expected).map_while(|header| header.pread_with(0, context).ok()).collect();
    let Some(names) = headers.get(usize::from(h.section_names_index)).map(|s| (s.sh_offset, s.sh_size)) else {
        return Vec::new();
    };
    headers
        .iter()
        .filter(|s| s.sh_type != section_header::SHT_NOBITS && s.sh_size > 0)
        .filter_map(|s| {
            let at = s.sh_name as u64;
            let name = (at < names.1).then(|| reader.string(names.0.saturating_add(at), 256)).flatten()?;
            Some((name, s.sh_offset, s.sh_size))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use bstr::BString;

    use super::*;
    use crate::elf::Layout;
    use crate::fixture::{Fixture, Loader};

    fn texts(attributes: &str) -> Vec<String> {
        let text = format!(
            "# texts\nexe /app/run needed=libneeded.so.1\nso /a/libx.so soname=libx.so needed=libneeded.so.1 \
             strings=libopened.so.1 {attributes}\nexec /app/run\n"
        );
        let fixture = Fixture::parse(text.as_bytes()).expect("a fixture");
        let system = fixture.system(Loader::glibc(2, 36)).expect("a system");
        let file = system.open("/a/libx.so".into()).expect("the file");
        let mut reader = Reader::new(&file);
        let facts = Facts::read(&mut reader, Layout::LITTLE_64).expect("facts");
        let texts = containing(&file, &facts, &mut reader, b".so.1", 10);
        let mut found: Vec<String> = texts.found.iter().map(BString::to_string).collect();
        found.sort();
        found
    }

    #[test]
    fn sections_keep_what_the_loader_reads_apart_from_what_code_reads() {
        assert_eq!(texts(""), ["libopened.so.1"]);
        // Without them everything that is loaded read-only is searched.
        assert_eq!(texts("sections=no"), ["libneeded.so.1", "libopened.so.1"]);
    }
}
