//! Does the time grow with the number of references, and no faster? Pairs of libraries are made, one that refers to so many
//! symbols and one that defines them, and looked at beside `ldd -r`: once as a check, once with the whole table.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};

use object::elf;

use crate::runs::{Contender, Run};

/// A name that is as long as an ordinary mangled one.
fn name(n: usize) -> String {
    format!("_ZN5bench4part8function{n:08}Ev")
}

/// The parts of a library in file order, each at a multiple of 16.
struct Image {
    bytes: Vec<u8>,
}

/// Where program headers and the dynamic array stand.
const HEADERS: usize = 64 + 2 * 56;
const DYNAMIC_ENTRIES: usize = 16;

impl Image {
    fn new() -> Image {
        Image { bytes: vec![0; HEADERS + DYNAMIC_ENTRIES * 16] }
    }

    /// Adds a part; gives its address, which is its offset.
    fn add(&mut self, part: &[u8]) -> u64 {
        self.bytes.resize(self.bytes.len().next_multiple_of(16), 0);
        let at = self.bytes.len() as u64;
        self.bytes.extend_from_slice(part);
        at
    }

    fn put(&mut self, at: usize, part: &[u8]) {
        self.bytes[at..at + part.len()].copy_from_slice(part);
    }

    /// Writes the headers, one segment with everything in it, and the dynamic array.
    fn finish(mut self, dynamic: &[(u64, u64)]) -> Vec<u8> {
        let len = self.bytes.len() as u64;
        let mut header = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        header.extend_from_slice(&3u16.to_le_bytes());
        header.extend_from_slice(&62u16.to_le_bytes());
        header.extend_from_slice(&1u32.to_le_bytes());
        for value in [0u64, 64, 0] {
            header.extend_from_slice(&value.to_le_bytes());
        }
        header.extend_from_slice(&0u32.to_le_bytes());
        for value in [64u16, 56, 2, 64, 0, 0] {
            header.extend_from_slice(&value.to_le_bytes());
        }
        assert!(dynamic.len() < DYNAMIC_ENTRIES);
        let array = (HEADERS as u64, (DYNAMIC_ENTRIES * 16) as u64);
        for (kind, flags, at, size, align) in [(1u32, 6u32, 0, len, 4096u64), (2, 6, array.0, array.1, 8)] {
            header.extend_from_slice(&kind.to_le_bytes());
            header.extend_from_slice(&flags.to_le_bytes());
            for value in [at, at, at, size, size, align] {
                header.extend_from_slice(&value.to_le_bytes());
            }
        }
        self.put(0, &header);
        for (n, (tag, value)) in dynamic.iter().enumerate() {
            self.put(HEADERS + n * 16, &tag.to_le_bytes());
            self.put(HEADERS + n * 16 + 8, &value.to_le_bytes());
        }
        self.bytes
    }
}

/// A string table under construction.
struct Strings(Vec<u8>);

impl Strings {
    fn add(&mut self, text: &str) -> u32 {
        let at = self.0.len() as u32;
        self.0.extend_from_slice(text.as_bytes());
        self.0.push(0);
        at
    }
}

fn symbol(name: u32, section: u16, value: u64) -> [u8; 24] {
    let mut out = [0; 24];
    out[..4].copy_from_slice(&name.to_le_bytes());
    out[4] = 1 << 4 | 2;
    out[6..8].copy_from_slice(&section.to_le_bytes());
    out[8..16].copy_from_slice(&value.to_le_bytes());
    out
}

/// A `DT_GNU_HASH` table as a linker makes it, for symbols that stand in the order of their buckets behind the first one.
fn gnu_hash(hashes: &[u32], buckets: u32) -> Vec<u8> {
    let words = (hashes.len() / 8).next_power_of_two().max(1);
    let shift = 26;
    let mut filter = vec![0u64; words];
    let mut first = vec![0u32; buckets as usize];
    let mut chain = Vec::with_capacity(hashes.len());
    for (n, hash) in hashes.iter().enumerate() {
        filter[(hash / 64) as usize % words] |= 1 << (hash % 64) | 1 << ((hash >> shift) % 64);
        let bucket = hash % buckets;
        let place = &mut first[bucket as usize];
        if *place == 0 {
            *place = n as u32 + 1;
        }
        let is_last = hashes.get(n + 1).is_none_or(|next| next % buckets != bucket);
        chain.push(hash & !1 | u32::from(is_last));
    }
    let mut out = Vec::new();
    for word in [buckets, 1, words as u32, shift] {
        out.extend_from_slice(&word.to_le_bytes());
    }
    out.extend(filter.iter().flat_map(|w| w.to_le_bytes()));
    out.extend(first.iter().chain(&chain).flat_map(|w| w.to_le_bytes()));
    out
}

/// Writes `libuser.so`, which refers to `count` symbols, and `libprovider.so`, which it needs and which defines them.
fn make(directory: &Path, count: usize) -> PathBuf {
    const DT_NEEDED: u64 = 1;
    const DT_STRTAB: u64 = 5;
    const DT_SYMTAB: u64 = 6;
    const DT_RELA: u64 = 7;
    const DT_RELASZ: u64 = 8;
    const DT_RELAENT: u64 = 9;
    const DT_STRSZ: u64 = 10;
    const DT_SYMENT: u64 = 11;
    const DT_RUNPATH: u64 = 29;
    const DT_GNU_HASH: u64 = 0x6fff_fef5;

    let buckets = (count as u32 / 4).max(1) | 1;
    let mut defined: Vec<(u32, usize)> = (0..count).map(|n| (elf::gnu_hash(name(n).as_bytes()), n)).collect();
    defined.sort_unstable_by_key(|(hash, _)| hash % buckets);
    let mut strings = Strings(vec![0]);
    let mut symbols = vec![0u8; 24];
    for (_, n) in &defined {
        let at = strings.add(&name(*n));
        symbols.extend_from_slice(&symbol(at, 1, HEADERS as u64));
    }
    let hashes: Vec<u32> = defined.iter().map(|(hash, _)| *hash).collect();
    let mut image = Image::new();
    let dynamic = [
        (DT_GNU_HASH, image.add(&gnu_hash(&hashes, buckets))),
        (DT_SYMTAB, image.add(&symbols)),
        (DT_STRTAB, image.add(&strings.0)),
        (DT_STRSZ, strings.0.len() as u64),
        (DT_SYMENT, 24),
    ];
    fs::write(directory.join("libprovider.so"), image.finish(&dynamic)).expect("a library");

    let mut strings = Strings(vec![0]);
    let (needed, runpath) = (strings.add("libprovider.so"), strings.add("$ORIGIN"));
    let mut symbols = vec![0u8; 24];
    for n in 0..count {
        let at = strings.add(&name(n));
        symbols.extend_from_slice(&symbol(at, 0, 0));
    }
    let mut image = Image::new();
    let slots = image.add(&vec![0; count * 8]);
    let mut relocations = Vec::with_capacity(count * 24);
    for n in 0..count as u64 {
        // R_X86_64_GLOB_DAT.
        for word in [slots + n * 8, (n + 1) << 32 | 6, 0] {
            relocations.extend_from_slice(&word.to_le_bytes());
        }
    }
    let dynamic = [
        (DT_NEEDED, needed.into()),
        (DT_RUNPATH, runpath.into()),
        (DT_SYMTAB, image.add(&symbols)),
        (DT_STRTAB, image.add(&strings.0)),
        (DT_STRSZ, strings.0.len() as u64),
        (DT_SYMENT, 24),
        (DT_GNU_HASH, image.add(&gnu_hash(&[], 1))),
        (DT_RELA, image.add(&relocations)),
        (DT_RELASZ, relocations.len() as u64),
        (DT_RELAENT, 24),
    ];
    let user = directory.join("libuser.so");
    fs::write(&user, image.finish(&dynamic)).expect("a library");
    user
}

/// The least wall time and CPU time of some runs, and the most memory of one in KiB.
fn least(words: &[&OsStr], rounds: usize) -> Run {
    let contender = Contender::new("", words);
    let runs = (0..rounds).map(|_| contender.run());
    let both = |a: Run, b: Run| Run { wall: a.wall.min(b.wall), cpu: a.cpu.min(b.cpu), peak: a.peak.max(b.peak), ..a };
    runs.reduce(both).expect("a round")
}

/// Prints a row for each power of ten from four on.
pub fn race(ours: &Path, most: u32) {
    let directory = std::env::temp_dir().join(format!("ldaudit-references-{}", std::process::id()));
    fs::create_dir_all(&directory).expect("a directory");
    println!("\n### (f) From ten thousand references on, least of all rounds\n");
    println!(
        "| references | check: wall ms, CPU ns each | with the table | `ldd -r`: wall ms | ours / this | peak MiB |"
    );
    println!("| --- | --- | --- | --- | --- | --- |");
    for power in 4..=most {
        let count = 10usize.pow(power);
        let file: OsString = make(&directory, count).into();
        let rounds = if power < 6 { 20 } else { 5 };
        let check = least(&[ours.as_os_str(), &file], rounds);
        // Text shows numbers of a table of images only.
        let table = least(&[ours.as_os_str(), OsStr::new("--bindings"), &file], rounds);
        let ldd = least(&[OsStr::new("ldd"), OsStr::new("-r"), &file], rounds);
        let ms = |run: Run| run.wall.as_secs_f64() * 1e3;
        let each = |run: Run| run.cpu.as_secs_f64() * 1e9 / count as f64;
        println!(
            "| 10^{power} | {:.1}, {:.0} | {:.1}, {:.0} | {:.1} | {:.2}, {:.2} | {:.0}, {:.0} |",
            ms(check),
            each(check),
            ms(table),
            each(table),
            ms(ldd),
            ms(check) / ms(ldd),
            ms(table) / ms(ldd),
            check.peak as f64 / 1024.0,
            table.peak as f64 / 1024.0
        );
    }
    fs::remove_dir_all(&directory).expect("the directory is this bench's own");
}
