//! How ldconfig orders entries, and how a cache file is written (`elf/cache.c`: `compare`, `save_cache`).

use std::cmp::Ordering;

use bstr::{BStr, BString, ByteSlice};

use super::{
    EXTENSION_MAGIC, Format, ISA_LEVEL_MASK, NAMED, NEW_ENTRY, NEW_HEADER, NEW_MAGIC, OLD_MAGIC, TAG_GENERATOR,
    TAG_HWCAPS, libcmp,
};

/// An entry to be written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// The name.
    pub key: BString,
    /// The path.
    pub path: BString,
    /// Type of library and machine (`library_flags`).
    pub flags: i32,
    /// Kernel version needed; 0 for none (and always since 2.36).
    pub os_version: u32,
    /// Legacy hwcap mask; 0 for none.
    pub hwcap: u64,
    /// Name of the glibc-hwcaps sub-directory it is in.
    pub hwcaps: Option<BString>,
    /// x86 ISA level, written for entries of glibc-hwcaps sub-directories only (`isa_level`).
    pub isa_level: u16,
}

impl Record {
    /// An ordinary entry.
    pub fn new(key: impl Into<BString>, path: impl Into<BString>, flags: i32) -> Record {
        let (key, path) = (key.into(), path.into());
        Record { key, path, flags, os_version: 0, hwcap: 0, hwcaps: None, isa_level: 0 }
    }
}

/// The file would need offsets above 4 GiB.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TooBig;

/// Writes a cache with the entries in the order given ([`sort`] is ldconfig's). `generator` is the text of the
/// extension section that ldconfig writes since 2.33; without it, and without named entries, no extension is written,
/// as ldconfig did before.
pub fn encode(
    records: &[Record],
    format: Format,
    big_endian: bool,
    generator: Option<&BStr>,
) -> Result<Vec<u8>, TooBig> {
    let word = |n: usize| -> Result<[u8; 4], TooBig> {
        let n = u32::try_from(n).map_err(|_| TooBig)?;
        Ok(if big_endian { n.to_be_bytes() } else { n.to_le_bytes() })
    };
    let long = |n: u64| if big_endian { n.to_be_bytes() } else { n.to_le_bytes() };
    let extended = format != Format::Old && (generator.is_some() || records.iter().any(|r| r.hwcaps.is_some()));

    // The names are numbered in the order of strcmp, which the reader relies on.
    let mut names: Vec<&BString> = records.iter().filter_map(|r| r.hwcaps.as_ref()).collect();
    names.sort();
    names.dedup();

    // The old table has no room for legacy masks, so it leaves those entries out. It keeps named ones (rule R4.3).
    let mut old: Vec<usize> = (0..records.len()).filter(|i| records[*i].hwcap == 0).collect();
    if format == Format::Compat && old.len() % 2 == 1 {
        // The last one is doubled, so that the new header is aligned alike for every machine.
        old.extend(old.last().copied());
    }

    let new_size = if format == Format::Old { 0 } else { NEW_HEADER + NEW_ENTRY * records.len() };
    let mut strings = Vec::new();
    let mut add = |text: &BString| {
        let at = new_size + strings.len();
        strings.extend_from_slice(text.split(|b| *b == 0).next().unwrap_or_default());
        strings.push(0);
        at
    };
    let places: Vec<(usize, usize)> = records.iter().map(|r| (add(&r.key), add(&r.path))).collect();
    let name_places: Vec<usize> = names.iter().map(|name| add(name)).collect();

    let mut out = Vec::new();
    if format != Format::New {
        out.extend_from_slice(OLD_MAGIC);
        out.push(0);
        out.extend(word(old.len())?);
        for i in &old {
            out.extend(word(records[*i].flags as u32 as usize)?);
            out.extend(word(places[*i].0)?);
            out.extend(word(places[*i].1)?);
        }
    }
    let header = out.len();
    if format != Format::Old {
        out.extend_from_slice(NEW_MAGIC);
        out.extend(word(records.len())?);
        out.extend(word(strings.len())?);
        out.extend([if big_endian { 3 } else { 2 }, 0, 0, 0]);
        let extension = (header + new_size + strings.len()).next_multiple_of(4);
        out.extend(word(if extended { extension } else { 0 })?);
        out.extend([0; 12]);
        for (record, place) in records.iter().zip(&places) {
            out.extend(word(record.flags as u32 as usize)?);
            out.extend(word(place.0)?);
            out.extend(word(place.1)?);
            out.extend(word(record.os_version as usize)?);
            out.extend(long(match &record.hwcaps {
                None => record.hwcap,
                Some(name) => {
                    let index = names.binary_search(&name).unwrap_or_default() as u64;
                    NAMED | (u64::from(record.isa_level) & ISA_LEVEL_MASK) << 32 | index
                }
            }));
        }
    }
    out.extend_from_slice(&strings);
    if extended {
        out.resize(out.len().next_multiple_of(4), 0);
        let generator = generator.unwrap_or_default();
        let sections = 1 + usize::from(!names.is_empty());
        let table = out.len() + 8 + 16 * sections;
        out.extend(word(EXTENSION_MAGIC as usize)?);
        out.extend(word(sections)?);
        out.extend(word(TAG_GENERATOR as usize)?);
        out.extend(word(0)?);
        out.extend(word(table + 4 * names.len())?);
        out.extend(word(generator.len())?);
        if !names.is_empty() {
            out.extend(word(TAG_HWCAPS as usize)?);
            out.extend(word(0)?);
            out.extend(word(table)?);
            out.extend(word(4 * names.len())?);
        }
        for place in &name_places {
            out.extend(word(*place)?);
        }
        out.extend_from_slice(generator);
    }
    Ok(out)
}

/// Puts entries into the order in which ldconfig writes them (`compare` and `add_to_cache` in `elf/cache.c`), equal ones
/// in the order they came. `record` gives the entry of an item.
pub fn sort<T>(items: &mut Vec<T>, signed_char: bool, record: impl Fn(&T) -> &Record) {
    let order = |a: &T, b: &T| before(record(a), record(b), signed_char);
    if items.iter().all(|item| plainly_ordered(&record(item).key)) {
        items.sort_by(order);
        return;
    }
    // The order is none for such names, and the outcome depends on the insertion. Most entries still stand in order, so
    // the place is looked for from the front as ldconfig does; the bound keeps hostile directories from costing hours.
    if items.len() > 20_000 {
        let plain = |a: &T, b: &T| {
            let (a, b) = (record(a), record(b));
            b.key.cmp(&a.key).then_with(|| tie(a, b))
        };
        items.sort_by(plain);
        return;
    }
    let mut sorted: Vec<T> = Vec::with_capacity(items.len());
    for item in items.drain(..) {
        let place = sorted.iter().position(|earlier| order(earlier, &item).is_gt()).unwrap_or(sorted.len());
        sorted.insert(place, item);
    }
    *items = sorted;
}

/// True when no number in the name can make a difference wrap.
fn plainly_ordered(name: &[u8]) -> bool {
    name.split(|b| !b.is_ascii_digit()).all(|run| {
        let run = run.trim_start_with(|c| c == '0');
        run.len() <= 9
    })
}

fn before(a: &Record, b: &Record, signed_char: bool) -> Ordering {
    libcmp(&b.key, &a.key, signed_char).cmp(&0).then_with(|| tie(a, b))
}

/// The order of entries of one name: by flags, named ones first and by name, then by legacy capabilities and kernel.
fn tie(a: &Record, b: &Record) -> Ordering {
    b.flags
        .cmp(&a.flags)
        .then_with(|| match (&a.hwcaps, &b.hwcaps) {
            (Some(a), Some(b)) => a.cmp(b),
            (a, b) => b.is_some().cmp(&a.is_some()),
        })
        .then_with(|| b.hwcap.count_ones().cmp(&a.hwcap.count_ones()))
        .then_with(|| b.hwcap.cmp(&a.hwcap))
        .then_with(|| b.os_version.cmp(&a.os_version))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ld::cache::{Cache, Reader};

    #[test]
    fn what_is_written_is_read_back() {
        let named =
            Record { hwcaps: Some("x86-64-v3".into()), isa_level: 2, ..Record::new("libb.so", "/v3/libb.so", 0x303) };
        let masked = Record { hwcap: 2, os_version: 0x3_0200, ..Record::new("libb.so", "/x/libb.so", 0x303) };
        let records =
            [Record::new("libc.so", "/libc.so", 0x303), named, masked, Record::new("libb.so", "/libb.so", 0x303)];
        for big_endian in [false, true] {
            let reader = Reader::glibc(41, 62, big_endian);
            let bytes = encode(&records, Format::New, big_endian, Some("me".into())).expect("small");
            let cache = Cache::parse(bytes.into(), reader).expect("a cache");
            assert_eq!(cache.generator(), Some("me".into()));
            assert_eq!(cache.len(), 4);
            for (entry, record) in cache.entries().zip(&records) {
                assert_eq!((entry.key, entry.path), (record.key.as_bstr(), record.path.as_bstr()));
                assert_eq!((entry.flags, entry.os_version), (record.flags, record.os_version));
                assert_eq!(
                    (entry.isa_level(), entry.hwcaps),
                    (record.isa_level, record.hwcaps.as_ref().map(|h| h.as_bstr()))
                );
                assert!(entry.is_named() || entry.hwcap == record.hwcap);
            }
            // The old table has no masks; with three entries the last is doubled to align the new header.
            let bytes = encode(&records, Format::Compat, big_endian, None).expect("small");
            assert_eq!(bytes.find("glibc-ld.so.cache1.1"), Some(16 + 4 * 12));
            assert_eq!(Cache::parse(bytes.into(), reader).expect("a cache").len(), 4);
            let bytes = encode(&records, Format::Old, big_endian, None).expect("small");
            let keys = Cache::parse(bytes.into(), reader).expect("a cache");
            assert_eq!(
                keys.entries().map(|e| e.key.to_string()).collect::<Vec<_>>(),
                ["libc.so", "libb.so", "libb.so"]
            );
        }
    }

    #[test]
    fn names_go_down_and_named_entries_first() {
        let mut records = vec![
            Record::new("libx.so.9", "/1", 0x303),
            Record::new("libx.so.10", "/2", 0x303),
            Record { hwcaps: Some("b".into()), ..Record::new("libx.so.9", "/3", 0x303) },
            Record { hwcaps: Some("a".into()), ..Record::new("libx.so.9", "/4", 0x303) },
            Record { hwcap: 2, ..Record::new("libx.so.9", "/5", 0x303) },
            Record::new("libx.so.9", "/6", 0x803),
            Record::new("libx.so.9", "/7", 0x303),
        ];
        sort(&mut records, true, |r| r);
        assert_eq!(records.iter().map(|r| r.path.to_string()).collect::<String>(), "/2/6/4/3/5/1/7");
    }
}
