//! Damaged and hostile ELF files: what the facts say of them, and that no file makes the reader panic, hang or fill the
//! memory. What is expected of the loader was seen from glibc 2.36 loading the same bytes.

use std::time::{Duration, Instant};

use crate::support::sample;
use ldaudit::elf::{Facts, Harm, Layout, Reader, literals, symbols};
use ldaudit::system::Errno;
use sample::*;

const LAYOUTS: [Layout; 4] = [
    Layout { is_64: true, big_endian: false },
    Layout { is_64: true, big_endian: true },
    Layout { is_64: false, big_endian: false },
    Layout { is_64: false, big_endian: true },
];

fn worst(facts: &Facts) -> Option<Harm> {
    facts.defects.iter().map(|d| d.harm).max()
}

fn within(limit: Duration, what: &str, act: impl FnOnce()) {
    let start = Instant::now();
    act();
    let took = start.elapsed();
    assert!(took < limit, "{what} took {took:?}");
}

const SOON: Duration = Duration::from_secs(5);

#[test]
fn every_class_and_byte_order_reads_alike() {
    for layout in LAYOUTS {
        let facts = Sample::new(layout).soname("libx.so.1").needed("liba.so").needed("libb.so").facts();
        assert_eq!(facts.soname.as_deref().map(|s| s.as_slice()), Some(&b"libx.so.1"[..]));
        assert_eq!(needed(&facts), ["liba.so", "libb.so"]);
        assert_eq!(facts.defects, [], "{layout:?}");
    }
}

#[test]
fn a_string_index_is_followed_wherever_it_leads_in_memory() {
    // The loader adds the index to the table's address and never looks at DT_STRSZ.
    let mut s = Sample::x86_64();
    s.put(0x2800, b"libfar.so\0");
    s.dynamic.push((DT_NEEDED, 0x2800 - STRINGS));
    s.dynamic.push((DT_NEEDED, (1u64).wrapping_sub(STRINGS)));
    let facts = s.facts();
    assert_eq!(needed(&facts), ["libfar.so", "ELF\u{2}\u{1}\u{1}"]);
    assert_eq!(worst(&facts), None);
}

#[test]
fn a_string_in_another_segment_is_found() {
    let mut s = Sample::x86_64();
    s.headers.push(Header { address: 0x10_0000, ..Header::at(PT_LOAD, 0x3000, 0x1000) });
    s.put(0x3100, b"libother.so\0");
    s.put(0x3fff, b"\0");
    s.dynamic.push((DT_NEEDED, 0x10_0100 - STRINGS));
    // The first segment then ends before the second one's bytes begin.
    let mut bytes = s.build();
    bytes[64 + 32..64 + 40].copy_from_slice(&0x2800u64.to_le_bytes());
    bytes[64 + 40..64 + 48].copy_from_slice(&0x2800u64.to_le_bytes());
    assert_eq!(needed(&facts(bytes, Layout::LITTLE_64)), ["libother.so"]);
}

#[test]
fn a_string_that_is_not_mapped_would_kill_the_process() {
    let mut s = Sample::x86_64().needed("libgood.so");
    s.dynamic.push((DT_NEEDED, 0x7fff_ffff));
    let facts = s.facts();
    assert_eq!(needed(&facts), ["libgood.so"]);
    assert_eq!(worst(&facts), Some(Harm::Crash));
}

#[test]
fn a_segment_that_reaches_past_the_last_offset_ends_there() {
    // Address 0 and as much memory as there are addresses, from somewhere in the middle of the file on.
    for (offset, found) in
        [(0x1000, Some((0x1000, u64::MAX - 0x1000))), (u64::MAX, None), (u64::MAX - 8, Some((u64::MAX - 8, 8)))]
    {
        let mut bytes = Sample::x86_64().build();
        for (at, value) in [(8, offset), (16, 0), (32, u64::MAX), (40, u64::MAX)] {
            bytes[64 + at..64 + at + 8].copy_from_slice(&u64::to_le_bytes(value));
        }
        assert_eq!(facts(bytes, Layout::LITTLE_64).offset_of(0), found);
    }
}

#[test]
fn the_file_is_seen_in_whole_pages() {
    // A segment of one byte maps its whole page; zeros follow only where memory is longer than the file's part.
    for (memory, want) in [(0x1001u64, 1), (0x9000, 0)] {
        let mut s = Sample::x86_64().needed("liba.so");
        s.put(0x1fff, b"\0");
        let mut bytes = s.build();
        bytes[64 + 32..64 + 40].copy_from_slice(&0x1001u64.to_le_bytes());
        bytes[64 + 40..64 + 48].copy_from_slice(&memory.to_le_bytes());
        let facts = facts(bytes, Layout::LITTLE_64);
        let names = needed(&facts);
        assert_eq!(names.iter().filter(|n| *n == "liba.so").count(), want, "{names:?}");
    }
}

#[test]
fn the_interpreter_is_what_the_kernel_takes() {
    let good = Sample::x86_64().interpreter("/lib/ld.so");
    assert_eq!(good.facts().interpreter.as_deref().map(|s| s.as_slice()), Some(&b"/lib/ld.so"[..]));
    let mut two = good.clone().interpreter("/second");
    assert_eq!(two.facts().interpreter.as_deref().map(|s| s.as_slice()), Some(&b"/lib/ld.so"[..]));
    for (size, errno) in [
        (1, Errno::ENOEXEC),
        (5, Errno::ENOEXEC),
        (4097, Errno::ENOEXEC),
        (1 << 60, Errno::ENOEXEC),
        (0, Errno::ENOEXEC),
    ] {
        two.headers[0].file_size = size;
        let facts = two.facts();
        assert_eq!(facts.interpreter.as_deref().map(|s| s.len()), Some(0), "there is one, and it is no good");
        assert_eq!(facts.interpreter_error, Some(errno), "{size}");
    }
    two.headers[0] = Header::at(PT_INTERP, 1 << 40, 20);
    assert_eq!(two.facts().interpreter_error, Some(Errno::EIO));
}

#[test]
fn names_that_all_point_at_one_long_string_are_bounded() {
    within(SOON, "16,000 names of 8 KiB", || {
        let mut s = Sample::x86_64();
        let at = s.string(vec![b'a'; 1 << 20]);
        s.dynamic.extend((0..16_000).map(|i| (DT_NEEDED, at + i)));
        let facts = s.facts();
        assert!(facts.cost() < 4 << 20, "{}", facts.cost());
        assert_eq!(worst(&facts), Some(Harm::Incomplete));
        assert!(facts.needed().all(|n| n.len() > 4096), "a name that is cut is still longer than any path");
    });
}

#[test]
fn search_lists_are_cut_after_a_whole_element() {
    let text = "/dir:".repeat(100_000);
    let facts = Sample::x86_64().entry(DT_RUNPATH, &text).facts();
    let list = facts.runpath.as_ref().expect("a list");
    assert!(list.len() <= 256 << 10 && list.ends_with(b":/dir"));
    assert_eq!(worst(&facts), Some(Harm::Incomplete));
}

#[test]
fn version_tables_that_run_in_place_or_far_away_end() {
    for tag in [DT_VERNEED, DT_VERDEF] {
        // Records one byte apart: each is read, with a chain of its own, until the limit.
        let mut s = Sample::x86_64();
        s.string("VERSION");
        s.put(0x3000, &[1u8; 0x40000]);
        s.dynamic.push((tag, 0x3000));
        within(SOON, "overlapping version records", || {
            let facts = s.facts();
            assert!(facts.cost() < 8 << 20, "{}", facts.cost());
            assert!(worst(&facts) >= Some(Harm::Incomplete));
        });
        let mut s = Sample::x86_64();
        s.dynamic.push((tag, 0x7777_0000));
        assert_eq!(worst(&s.facts()), Some(Harm::Crash));
    }
}

#[test]
fn sixty_five_thousand_program_headers_are_read_as_they_are() {
    // Nothing gives e_phnum 0xffff a second meaning: kernel and loader take the number as it stands.
    for kind in [PT_LOAD, PT_NOTE, PT_INTERP, PT_DYNAMIC, 0x6474_e553] {
        within(SOON, "65,535 program headers", || {
            let mut s = Sample::x86_64().needed("liba.so");
            s.headers = vec![Header { align: 8, ..Header::at(kind, 0x1000, 1 << 40) }; 65_533];
            let facts = s.facts();
            assert_eq!(facts.header.program_header_count, 65_535);
            let file = file(s.build());
            let mut reader = Reader::new(&file);
            let texts = literals::containing(&file, &facts, &mut reader, b"lib", 10);
            assert!(texts.found.len() <= 10);
        });
    }
}

#[test]
fn an_array_without_end_is_bounded_and_named() {
    let mut s = Sample::x86_64();
    s.endless = true;
    s.dynamic = vec![(DT_NEEDED, 1); 200];
    s.string("x");
    assert_eq!(worst(&s.facts()), Some(Harm::Crash));
    s.dynamic = vec![(DT_NEEDED, 1); 70_000];
    assert_eq!(worst(&s.facts()), Some(Harm::Incomplete));
}

#[test]
fn truncation_says_whether_touching_it_kills() {
    let mut s = Sample::x86_64();
    s.put(0x5fff, b"\0");
    let bytes = s.build();
    let cut = |n: usize| facts(bytes[..n].to_vec(), Layout::LITTLE_64);
    assert_eq!(worst(&cut(0x6000)), None);
    assert_eq!(worst(&cut(0x5800)), Some(Harm::Incomplete), "the rest of the last page reads as zeros");
    assert_eq!(worst(&cut(0x3000)), Some(Harm::Crash));
}

#[test]
fn hash_chains_without_end_or_in_a_circle_end() {
    // GNU: the filter lets every name pass, every chain word matches and none ends the chain; the index runs up to the
    // largest number.
    for first in [1u32, u32::MAX - 40] {
        let mut s = Sample::x86_64();
        let name = s.string("name");
        let hash = object::elf::gnu_hash(b"name") & !1;
        // A Bloom filter that lets everything pass.
        let mut table = s.words(&[1, first, 1, 0, u32::MAX, u32::MAX, first]);
        table.extend(s.words(&vec![hash; 300_000]));
        s.put(0x8000, &table);
        s.put(SYMBOLS as usize + 24, &[s.word(name, 4), vec![0x12, 0, 7, 0]].concat());
        s.dynamic.push((DT_GNU_HASH, 0x8000));
        let (file, facts) = (file(s.build()), s.facts());
        let symbols = symbols::Table::open(&file, &facts).expect("tables");
        within(SOON, "an endless chain", || {
            for _ in 0..5 {
                assert_eq!(symbols.defines(b"name"), first == 1);
            }
        });
    }
    // SYSV: a chain that leads back to its beginning.
    let mut s = Sample::x86_64();
    let name = s.string("name");
    let table = s.words(&[1, u32::MAX, 1, 0, 1]);
    s.put(0x8000, &table);
    s.put(SYMBOLS as usize + 24, &[s.word(name, 4), vec![0x12, 0, 7, 0]].concat());
    s.dynamic.push((DT_HASH, 0x8000));
    let (file, facts) = (file(s.build()), s.facts());
    let symbols = symbols::Table::open(&file, &facts).expect("tables");
    within(SOON, "a circle", || {
        assert!(symbols.defines(b"name"));
        assert!(!symbols.defines(b"other"));
        assert!(symbols.lookup(b"name").len() <= 1024);
    });
}

#[test]
fn symbol_tables_need_not_be_aligned() {
    let mut s = Sample::x86_64();
    let name = s.string("name");
    s.put(0x8001 + 24, &[s.word(name, 4), vec![0x12, 0, 7, 0]].concat());
    let table = s.words(&[1, 2, 1, 0, 0]);
    s.put(0x9001, &table);
    s.dynamic.push((DT_HASH, 0x9001));
    let mut bytes = s.build();
    // DT_SYMTAB is the third entry behind ours.
    let at = DYNAMIC as usize + 3 * 16 + 8;
    bytes[at..at + 8].copy_from_slice(&0x8001u64.to_le_bytes());
    let facts = facts(bytes.clone(), Layout::LITTLE_64);
    assert_eq!(facts.dynamic.symbol_table, Some(0x8001));
    let file = file(bytes);
    assert!(symbols::Table::open(&file, &facts).expect("tables").defines(b"name"));
}

#[test]
fn literals_are_whole_and_their_search_is_linear() {
    let mut s = Sample::x86_64();
    s.headers.push(Header { flags: 4, address: 0x100_0000, ..Header::at(PT_LOAD, 0x3000, 0x70_3000) });
    s.put(0x3000, b"\0libfirst.so\0has libinner.so in it, libtwice\0");
    s.put(0x4000, &[b'l'; 0x40_0000]);
    s.put(0x40_4000, &b"lib".repeat(0x10_0000));
    s.put(0x70_5000, b"\0libend.so\0");
    let (file, facts) = (file(s.build()), s.facts());
    within(SOON, "megabytes of matches without an end", || {
        let mut reader = Reader::new(&file);
        let texts = literals::containing(&file, &facts, &mut reader, b"lib", 100);
        assert_eq!(texts.found, ["libfirst.so", "has libinner.so in it, libtwice", "libend.so"]);
        assert!(texts.complete);
        let texts = literals::containing(&file, &facts, &mut reader, b"l", 2);
        assert_eq!(texts.found.len(), 2);
        assert!(!texts.complete);
    });
}

#[test]
fn dlopen_is_found_where_strings_share_their_ends() {
    let with = |names: &[&str], undefined: bool| {
        let mut s = Sample::x86_64();
        let mut at = 0;
        for name in names {
            at = s.string(name);
        }
        // The last name's tail is the symbol `dlopen`.
        let shared = at + names.last().map_or(0, |n| n.len() as u64 - 6);
        s.put(SYMBOLS as usize + 24, &[s.word(shared, 4), vec![0x12, 0, u8::from(!undefined), 0]].concat());
        let table = s.words(&[1, 2, 0, 0, 0]);
        s.put(0x8000, &table);
        s.dynamic.push((DT_HASH, 0x8000));
        let facts = s.facts();
        literals::imports_dlopen(&file(s.build()), &facts)
    };
    assert!(with(&["dlopen"], true));
    assert!(with(&["my_dlopen"], true), "the import is the tail of another name");
    assert!(!with(&["my_dlopen"], false), "a definition is no import");
}

#[test]
fn a_sparse_file_of_terabytes_costs_nothing() {
    use ldaudit::system::{Files, Live};
    use std::os::unix::fs::FileExt;
    let path = std::env::temp_dir().join(format!("ldaudit-sparse-{}", std::process::id()));
    let mut s = Sample::x86_64().needed("liba.so");
    s.headers.push(Header { flags: 4, address: 1 << 41, ..Header::at(PT_LOAD, 0x10_0000, 1 << 40) });
    std::fs::write(&path, s.build()).expect("write");
    let disk = std::fs::OpenOptions::new().write(true).open(&path).expect("open");
    // File systems have different limits; a gigabyte is much as well.
    let size =
        [1u64 << 40, 1 << 33, 1 << 30].into_iter().find(|n| disk.set_len(n + 0x10_0000).is_ok()).expect("a size");
    disk.write_all_at(b"\0libdeep.so\0", size / 2).expect("write in the middle");
    let bytes = bstr::BString::from(path.to_string_lossy().as_bytes());
    within(SOON, "a sparse file", || {
        let file = Live::new().open(bytes.as_ref()).expect("open");
        let mut reader = Reader::new(&file);
        let facts = Facts::read(&mut reader, Layout::LITTLE_64).expect("facts");
        assert_eq!(needed(&facts), ["liba.so"]);
        assert!(reader.bytes_read() < 64 << 10);
        assert_eq!(worst(&facts), (size < 1 << 40).then_some(Harm::Crash));
        let texts = literals::containing(&file, &facts, &mut reader, b"lib", 100);
        assert_eq!(texts.found, ["libdeep.so"]);
        assert!(texts.complete);
        assert_eq!(file.read_all(1 << 20), Err(Errno::EFBIG));
    });
    std::fs::remove_file(&path).expect("clean up");
}
