//! Thousands of damaged copies of real and made files, each read and audited as part of a process in memory: no panic, no
//! hang, no flood of memory. The same seed gives the same mutants.
//!
//! `LDAUDIT_MUTANTS=COUNT` makes more of them (10,000 by default), `LDAUDIT_MUTANTS_SEED=N` others,
//! `LDAUDIT_MUTANTS_ONLY=NUMBER` repeats one.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::alone;
use crate::support::{memory, random, sample};
use ldaudit::cli::audit::{Plan, Subject};
use ldaudit::discover::copies;
use ldaudit::elf::{Facts, Layout, Reader, literals, symbols};
use ldaudit::findings::why;
use ldaudit::ld::{Dialect, Family, OpenFlags, Outcome, Start, Store};
use ldaudit::render::text::Style;
use ldaudit::render::{self, Target};
use ldaudit::system::{Host, System, Tree};
use random::Random;
use sample::*;

/// What one mutant may take in an unoptimised build on a busy machine; a hundredth of it is usual.
const TIME: Duration = Duration::from_secs(10);
/// What a mutant may hold in memory besides its own bytes.
const MEMORY: usize = 96 << 20;

const LOADER: &str = "/lib64/ld-linux-x86-64.so.2";

/// A file that mutants are made of.
struct Original {
    name: String,
    bytes: Vec<u8>,
    /// Offset and size of fields worth lying about.
    fields: Vec<(usize, usize)>,
}

/// Fields by role: header, program headers, dynamic array, version tables, hash tables, symbols, notes, section headers.
fn fields(bytes: &[u8]) -> Vec<(usize, usize)> {
    let Some(layout) = Layout::of_ident(bytes) else { return Vec::new() };
    let facts = facts(bytes.to_vec(), layout);
    let long = if layout.is_64 { 8 } else { 4 };
    let mut out: Vec<(usize, usize)> = (4..16).map(|i| (i, 1)).collect();
    out.extend((16..layout.header_size()).step_by(2).map(|i| (i, 2)));
    out.extend((24..24 + 3 * long).step_by(long).map(|i| (i, long)));
    let headers = facts.header.program_headers_at as usize;
    let table = usize::from(facts.header.program_header_count) * layout.program_header_size();
    for at in (headers..headers + table).step_by(4) {
        out.push((at, 4));
        if at % 8 == 0 {
            out.extend([(at, long); 2]);
        }
    }
    let mut words = |address: Option<u64>, count: usize, size: usize, times: usize| {
        let Some((offset, room)) = address.and_then(|a| facts.offset_of(a)) else { return };
        for i in 0..count.min(room as usize / size) {
            out.extend(std::iter::repeat_n((offset as usize + i * size, size), times));
        }
    };
    let d = &facts.dynamic;
    words(d.version_needs, 80, 4, 3);
    words(d.version_definitions, 120, 4, 3);
    words(d.gnu_hash, 40, 4, 2);
    words(d.hash, 20, 4, 2);
    words(d.symbol_table, 60, 4, 1);
    words(d.string_table, 64, 1, 1);
    words(d.version_symbols, 60, 2, 1);
    // Offset, type, symbol and addend.
    words(d.rela, 90, 4, 1);
    words(d.rel, 60, 4, 1);
    words(d.plt_relocations, 60, 4, 2);
    // DT_STRTAB with its address names the dynamic array; its neighbours are other entries.
    let number = |at: usize| {
        let mut value = bytes[at..at + long].to_vec();
        if layout.big_endian {
            value.reverse();
        }
        value.resize(8, 0);
        u64::from_le_bytes(value.try_into().expect("eight bytes"))
    };
    let pairs = (0..bytes.len().saturating_sub(2 * long)).step_by(long);
    if let Some(at) = pairs.into_iter().find(|at| number(*at) == 5 && Some(number(at + long)) == d.string_table) {
        for at in (at.saturating_sub(60 * long)..at + 60 * long).step_by(long) {
            out.extend([(at, long); 6]);
        }
    }
    let sections = facts.header.section_headers_at as usize;
    let table = usize::from(facts.header.section_header_count) * usize::from(facts.header.section_header_size);
    out.extend((sections..sections + table).step_by(4).map(|at| (at, 4)));
    out.retain(|(at, size)| at + size <= bytes.len());
    out
}

fn originals() -> Vec<Original> {
    let mut files: Vec<(String, Vec<u8>)> = Vec::new();
    let directories = ["/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64", "/usr/lib"];
    for name in ["libc.so.6", "libstdc++.so.6", "libz.so.1", "libdl.so.2", "libgcc_s.so.1", "libselinux.so.1"] {
        let found = directories.iter().find_map(|d| std::fs::read(format!("{d}/{name}")).ok());
        match found {
            Some(bytes) => files.push((name.into(), bytes)),
            None => eprintln!("skipped: no {name} on this machine; the other originals are used"),
        }
    }
    files.push(("ls".into(), std::fs::read("/bin/ls").expect("/bin/ls")));
    files.push(("loader".into(), std::fs::read(LOADER).unwrap_or_else(|_| Sample::x86_64().build())));
    for layout in [Layout::LITTLE_64, Layout { is_64: false, big_endian: true }] {
        files.push((format!("made {layout:?}"), made(layout).build()));
        files.push((format!("made program {layout:?}"), made(layout).interpreter(LOADER).build()));
    }
    files
        .into_iter()
        .map(|(name, bytes)| {
            let fields = fields(&bytes);
            Original { name, bytes, fields }
        })
        .collect()
}

fn mutate(original: &Original, random: &mut Random) -> Vec<u8> {
    let mut bytes = original.bytes.clone();
    for _ in 0..=random.below(3) {
        if bytes.is_empty() {
            break;
        }
        match random.below(10) {
            0 => {
                let near = [64, 0x400, 0x1000, bytes.len()][random.below(4) as usize].min(bytes.len());
                bytes.truncate(random.below(near as u64 + 1) as usize);
            }
            1 => {
                for _ in 0..=random.below(16) {
                    let at = random.below(bytes.len() as u64) as usize;
                    bytes[at] ^= 1 << random.below(8);
                }
            }
            2 => {
                // A stretch of one byte, or of the file's own bytes from elsewhere.
                let at = random.below(bytes.len() as u64) as usize;
                let len = (random.below(200) as usize).min(bytes.len() - at);
                if random.below(2) == 0 {
                    let byte = [0, 0xff, b'A', b'/', b'$'][random.below(5) as usize];
                    bytes[at..at + len].fill(byte);
                } else {
                    let from = random.below((bytes.len() - len) as u64 + 1) as usize;
                    bytes.copy_within(from..from + len, at);
                }
            }
            _ => {
                let Some((at, size)) = random.pick(&original.fields).copied() else { continue };
                if at + size <= bytes.len() {
                    let big_endian = bytes.get(5) == Some(&2);
                    let mut value = lie(&bytes, at, size, random).to_le_bytes()[..size].to_vec();
                    if big_endian {
                        value.reverse();
                    }
                    bytes[at..at + size].copy_from_slice(&value);
                }
            }
        }
    }
    bytes
}

/// A value for a field: small, huge, at some edge, near the old one, a tag, or anything.
fn lie(bytes: &[u8], at: usize, size: usize, random: &mut Random) -> u64 {
    let mut old = [0u8; 8];
    old[..size].copy_from_slice(&bytes[at..at + size]);
    let old = u64::from_le_bytes(old);
    let len = bytes.len() as u64;
    let tags =
        [1, 4, 5, 6, 10, 14, 15, 29, 30, DT_GNU_HASH, DT_VERDEF, DT_VERNEED, 0x7fff_fffd, 0x7fff_ffff, 0x6fff_fffb];
    match random.below(8) {
        0 => random.below(20),
        1 => u64::MAX >> random.below(64),
        2 => old.wrapping_add(random.below(65)).wrapping_sub(32),
        3 => len.wrapping_add(random.below(33)).wrapping_sub(16),
        4 => tags[random.below(tags.len() as u64) as usize],
        5 => random.below(len.max(1)),
        6 => 1 << random.below(64),
        _ => random.next(),
    }
}

/// Reads a mutant by every reader and puts it into processes; true when a program that needs it starts.
fn audit(bytes: &[u8], random: &mut Random) -> bool {
    let memory: Arc<[u8]> = bytes.into();
    let layouts = [Layout::LITTLE_64, Layout { is_64: false, big_endian: true }];
    let own = Layout::of_ident(bytes);
    for layout in own.into_iter().chain(layouts) {
        let file = file(memory.clone());
        let mut reader = Reader::new(&file);
        let Some(facts) = Facts::read(&mut reader, layout) else { continue };
        assert!(facts.cost() < 32 << 20, "facts of {} MiB", facts.cost() >> 20);
        if own == Some(layout) {
            literals::imports_dlopen(&file, &facts);
            let texts = literals::containing(&file, &facts, &mut reader, b"lib", 50);
            assert!(texts.found.len() <= 50);
            if let Some(table) = symbols::Table::open(&file, &facts) {
                for name in [&b""[..], b"dlopen", b"malloc", b"__libc_start_main", b"_ZSt4cout"] {
                    table.lookup(name);
                    table.imports(name);
                }
            }
        }
    }
    let mut tree = Tree::new();
    let user = Sample::x86_64().needed("libm1.so").entry(DT_RUNPATH, "/mutant").interpreter(LOADER);
    let helper = Sample::x86_64().soname("libneeded.so");
    for (path, bytes) in [("/bin/user", user.build()), ("/mutant/libneeded.so", helper.build())] {
        tree.add_file(path, bytes).expect("add");
        tree.set_mode(path, 0o755).expect("mode");
    }
    for path in ["/mutant/libm1.so", "/bin/mutant", "/lib64/libc.so.6"] {
        tree.add_file(path, memory.clone()).expect("add");
        tree.set_mode(path, 0o755).expect("mode");
    }
    if random.below(4) == 0 {
        tree.add_file(LOADER, memory.clone()).expect("add");
        tree.set_mode(LOADER, 0o755).expect("mode");
    }
    let mut host = Host::bare();
    host.secure = random.below(8) == 0;
    if random.below(4) == 0 {
        host.env.set("LD_PRELOAD", "/bin/mutant libm1.so");
        host.env.set("LD_LIBRARY_PATH", "/mutant::$ORIGIN");
    }
    let system = System::new(host.clone(), Arc::new(tree));
    let versions = [(2, 31, 0), (2, 36, 0), (2, 41, 0)];
    let dialect = if random.below(4) == 0 {
        Dialect::assumed("/lib/ld-musl-x86_64.so.1".into(), Layout::LITTLE_64, 62)
    } else {
        Dialect::read(&system, LOADER.into(), Layout::LITTLE_64, 62).with_version(versions[random.below(3) as usize])
    };
    let store = Arc::new(Store::new(system, Layout::LITTLE_64, dialect.family == Family::Musl));
    let (dialect, host) = (Arc::new(dialect), Arc::new(host));
    let mut starts = false;
    for (program, start) in
        [("/bin/user", Start::Kernel), ("/bin/mutant", Start::Kernel), ("/bin/mutant", Start::Loader)]
    {
        let names = ["libm1.so", "/mutant/libm1.so", "libmissing.so", "/bin/user"];
        let opens = names.map(|name| (name.into(), OpenFlags { global: random.below(2) == 0, ..OpenFlags::default() }));
        let subject = Subject::File { path: program.into(), start };
        let plan = Plan {
            opens: opens.to_vec(),
            lookups: ldaudit::ld::Lookups::Record,
            ..Plan::new(subject, Target::file(program), host.clone(), store.clone(), dialect.clone())
        };
        let report = ldaudit::cli::audit::audit(&plan);
        starts |= program == "/bin/user" && report.process.steps.first().is_some_and(|s| s.outcome == Outcome::Ok);
        let out = &mut std::io::sink();
        render::json::write(&report, out, false).expect("a sink takes everything");
        render::ldd::write(&report, out).expect("a sink takes everything");
        let style = Style { width: 80, verbosity: 1, ..Style::plain() };
        for draw in [render::text::write, render::tree::write] {
            let mut screen = Vec::new();
            draw(&report, &style, &mut screen).expect("memory takes everything");
            assert_clean(&screen);
        }
        if random.below(4) == 0 {
            explain(&plan);
        }
    }
    starts
}

/// Tells the story of a name in a process with a mutant, and simulates what would change it.
fn explain(plan: &Plan) {
    let name = copies::Name::parse("libm1.so".into()).expect("a name");
    let place = |directory: &str| copies::Place { directory: directory.into(), origin: copies::Origin::Default };
    let found = copies::find(&plan.store, &name, &[place("/mutant"), place("/bin"), place("/lib64")], &[], &[], &[]);
    for copy in &found.copies {
        copies::literals(&plan.store, &name, copy.path.as_ref());
    }
    let unusable = vec![None; found.copies.len()];
    let knowledge = why::Knowledge {
        name: &name,
        given: None,
        copies: &found.copies,
        unusable: &unusable,
        owner: &|_| None,
        further_changes: &[],
    };
    let run = |process| why::Run {
        group: 0,
        title: "mutant".into(),
        circumstances: String::new(),
        supposed: false,
        process,
        from: 0,
        by_literal: None,
    };
    let what_if = |change: &why::Change| {
        let host = change.on_host(&plan.host, plan.dialect.family)?;
        Some(vec![Some(run(plan.simulate(&Arc::new(host)).process))])
    };
    let story = why::tell(&knowledge, &[run(plan.simulate(&plan.host).process)], &what_if);
    let style = Style { width: 80, ..Style::plain() };
    let mut screen = Vec::new();
    render::why::write(&story, &style, &mut screen).expect("memory takes everything");
    assert_clean(&screen);
}

/// No file can send anything to a terminal but text.
fn assert_clean(screen: &[u8]) {
    let dirty = screen.iter().any(|b| *b < b' ' && *b != b'\n' || *b == 0x7f) || std::str::from_utf8(screen).is_err();
    assert!(!dirty, "control bytes on the screen: {:?}", bstr::BStr::new(screen));
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|v| v.parse().unwrap_or_else(|_| panic!("{name}={v} is not a number")))
}

#[test]
fn no_mutant_panics_hangs_or_fills_the_memory() {
    let _alone = alone();
    let seed = number("LDAUDIT_MUTANTS_SEED").unwrap_or(20_240_229);
    let count = number("LDAUDIT_MUTANTS").unwrap_or(10_000);
    let only = number("LDAUDIT_MUTANTS_ONLY");
    let originals = originals();
    // Ends the test when one mutant never ends: a thread that hangs cannot be stopped otherwise.
    static CURRENT: AtomicU64 = AtomicU64::new(u64::MAX);
    std::thread::spawn(|| {
        let mut last = (u64::MAX, Instant::now());
        loop {
            std::thread::sleep(Duration::from_millis(500));
            let current = CURRENT.load(Ordering::Relaxed);
            if current != last.0 {
                last = (current, Instant::now());
            } else if current != u64::MAX && last.1.elapsed() > 6 * TIME {
                eprintln!("mutant {current} does not end");
                std::process::abort();
            }
        }
    });
    let mut slowest = (Duration::ZERO, 0);
    let mut largest = (0, 0);
    let mut starts = 0;
    for n in 0..count {
        if only.is_some_and(|only| only != n) {
            continue;
        }
        CURRENT.store(n, Ordering::Relaxed);
        let mut random = Random::new(seed ^ n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let original = random.pick(&originals).expect("there are originals");
        let bytes = mutate(original, &mut random);
        let start = Instant::now();
        let (result, peak) = memory::peak_of(|| catch_unwind(AssertUnwindSafe(|| audit(&bytes, &mut random))));
        let took = start.elapsed();
        let peak = peak.saturating_sub(4 * bytes.len());
        if result.is_err() || took > TIME || peak > MEMORY {
            let saved = std::env::temp_dir().join(format!("ldaudit-mutant-{seed}-{n}"));
            std::fs::write(&saved, &bytes).expect("save");
            panic!(
                "mutant {n} of seed {seed}, made of {}: panic {}, {took:?}, {} MiB; saved as {}; \
                 LDAUDIT_MUTANTS_SEED={seed} LDAUDIT_MUTANTS_ONLY={n} repeats it",
                original.name,
                result.is_err(),
                peak >> 20,
                saved.display()
            );
        }
        starts += u64::from(result.unwrap_or(false));
        slowest = slowest.max((took, n));
        largest = largest.max((peak, n));
    }
    CURRENT.store(u64::MAX, Ordering::Relaxed);
    // Damage that is always or never noticed would try little. Three of four boxes have no loader, which ends every start.
    assert!(only.is_some() || (count / 50..count * 19 / 20).contains(&starts), "{starts} of {count} start");
    eprintln!(
        "{count} mutants of {} files, seed {seed}: {starts} can be loaded; slowest {:?} (number {}), \
         largest {} KiB (number {})",
        originals.len(),
        slowest.0,
        slowest.1,
        largest.0 >> 10,
        largest.1
    );
}
