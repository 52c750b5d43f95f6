//! The cache and the configuration files against the programs that read and write them: this box's loader and ldconfig,
//! and those of the roots that `tests/make-roots` made.
//!
//! The loader is run as a copy in which the path of the cache (and of the preload file) is replaced by one relative to
//! the working directory, so that each run has a cache of its own and no root is needed. Names are asked for through
//! LD_PRELOAD, and the answer is what LD_DEBUG=libs says after `search cache=`. `LDAUDIT_CASES` sets the number of random
//! caches per loader. `LDAUDIT_REQUIRE` lists what must not be skipped: `glibc`, `ldconfig`.

mod loader;
mod tree;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use bstr::{BStr, BString, ByteSlice};
use ldaudit::ld::cache::{self, Abi, Cache, Fate, Fault, Flags, Format, Hit, Reader, Record, Unusable, Want};
use ldaudit::ld::config::{self, Configuration, LibraryId, Rules, View};
use ldaudit::system::{Host, System};

use crate::support::require;
use loader::{Loader, Processor, Random, SETTINGS, Setting, Tally, Temp, X86_64, compare, live, settings};
use tree::tree;

fn records(list: &[(&str, &str)]) -> Vec<Record> {
    list.iter().map(|(key, path)| Record::new(*key, *path, 0x303)).collect()
}

fn named(key: &str, path: &str, hwcaps: &str, isa_level: u16) -> Record {
    Record { hwcaps: Some(hwcaps.into()), isa_level, ..Record::new(key, path, 0x303) }
}

fn names(list: &[&str]) -> Vec<BString> {
    list.iter().map(|n| BString::from(*n)).collect()
}

fn encode(records: &[Record], format: Format) -> Vec<u8> {
    cache::encode(records, format, false, Some("test".into())).expect("small")
}

#[test]
fn odd_names_find_what_the_loader_finds() {
    let mut tally = Tally::default();
    for loader in Loader::all() {
        let mut list = records(&[
            ("libonly.so.1", "/n/only"),
            ("libdate.so.20240131123456", "/n/date"),
            ("libmax.so.2147483647", "/n/max"),
            ("libmin.so.2147483648", "/n/min"),
            ("libwrap.so.4294967297", "/n/wrap"),
            ("libm2.so.6", "/n/m"),
            ("lib.so.09", "/n/nine"),
            ("libq\u{e9}.so", "/n/eacute"),
            ("libqz.so", "/n/z"),
            ("0.so", "/n/zero"),
            ("a", "/n/a"),
        ]);
        cache::sort(&mut list, true, |r| r);
        let asked = names(&[
            "libonly.so.1",
            "libonly.so.01",
            "libonly.so.001",
            "libonly.so.1.0",
            "libonly.so",
            "libonly.so.10",
            "libdate.so.20240131123456",
            "libdate.so.20240131123457",
            "libmax.so.2147483647",
            "libmin.so.2147483648",
            "libwrap.so.1",
            "libwrap.so.4294967297",
            "libm2.so.06",
            "libm2.so.6",
            "lib.so.9",
            "lib.so.09",
            "lib.so.0x9",
            "libq\u{e9}.so",
            "libqz.so",
            "0.so",
            "00.so",
            "000.so",
            "a",
            "b",
            "zz",
            "missing.so",
        ]);
        for format in [Format::New, Format::Compat, Format::Old] {
            let bytes = encode(&list, format);
            compare(&loader, &SETTINGS[0], &bytes, &asked, "odd names", &mut tally);
        }
    }
}

#[test]
fn numbers_that_wrap_send_the_search_the_loaders_way() {
    let (max, min) = ("libq.so.2147483647", "libq.so.2147483648");
    let mut tally = Tally::default();
    for loader in Loader::all() {
        for keys in [[max, min, max], [min, max, min], [max, max, min], [min, min, max]] {
            let list: Vec<Record> = (0..3).map(|i| Record::new(keys[i], format!("/n/{i}"), 0x303)).collect();
            compare(&loader, &SETTINGS[0], &encode(&list, Format::New), &names(&[max, min]), "wrapping", &mut tally);
        }
    }
}

#[test]
fn named_entries_and_their_levels_are_chosen_as_the_loader_does() {
    let mut tally = Tally::default();
    let plain = Record::new("libx.so", "/n/plain", 0x303);
    let all = ["x86-64-v2", "x86-64-v3", "x86-64-v4", "zzz"];
    for loader in Loader::all() {
        let mut sets: Vec<Vec<Record>> = Vec::new();
        let every: Vec<Record> = all.iter().map(|n| named("libx.so", &format!("/n/{n}"), n, 0)).collect();
        sets.push(every.iter().cloned().chain([plain.clone()]).collect());
        sets.push([plain.clone()].into_iter().chain(every.iter().cloned()).collect());
        sets.push(every.iter().rev().cloned().chain([plain.clone()]).collect());
        sets.push(vec![named("libx.so", "/n/zzz", "zzz", 0)]);
        for level in [0, 1, 2, 3, 4, 5, 30, 31, 32, 33, 36, 1023] {
            sets.push(vec![named("libx.so", "/n/v2", "x86-64-v2", level), plain.clone()]);
        }
        for (flags, hwcap) in [
            (0x303, 0),
            (3, 0),
            (1, 0),
            (0xa03, 0),
            (0x803, 0),
            (0x303, 2),
            (0x303, 4),
            (0x303, 1 << 50),
            (0x303, 1 << 63),
            (0x303, 1 << 62 | 1 << 42),
        ] {
            sets.push(vec![Record { hwcap, flags, path: "/n/first".into(), ..plain.clone() }, plain.clone()]);
        }
        for os_version in [0x2_0000, 0x63_0000, 0x0100_0000] {
            sets.push(vec![Record { os_version, path: "/n/first".into(), ..plain.clone() }, plain.clone()]);
        }
        for set in &sets {
            for format in [Format::New, Format::Compat, Format::Old] {
                let bytes = encode(set, format);
                for setting in settings(&loader) {
                    compare(&loader, setting, &bytes, &names(&["libx.so", "liby.so"]), "named", &mut tally);
                }
            }
        }
    }
    eprintln!("named entries: {tally}");
}

#[test]
fn damaged_files_are_taken_or_left_as_the_loader_does() {
    let mut tally = Tally::default();
    let mut list = records(&[("liba.so", "/n/a"), ("libb.so", "/n/b"), ("libc2.so", "/n/c"), ("libd.so", "/n/d")]);
    list.push(named("libb.so", "/n/b3", "x86-64-v3", 0));
    cache::sort(&mut list, true, |r| r);
    let asked = names(&["liba.so", "libb.so", "libc2.so", "libd.so", "libe.so", "glibc-ld.so.cache"]);
    for loader in Loader::all() {
        for format in [Format::New, Format::Compat, Format::Old] {
            let good = encode(&list, format);
            let mut ask = |bytes: &[u8], what| compare(&loader, &SETTINGS[0], bytes, &asked, what, &mut tally);
            for length in (0..good.len()).step_by(7).chain(0..60).chain([good.len() - 1]) {
                ask(&good[..length.min(good.len())], "cut");
            }
            let header = good.find("glibc-ld.so.cache1.1").unwrap_or(0);
            for flag in 0..=255u8 {
                let mut bytes = good.clone();
                bytes[header + 28] = flag;
                if flag < 17 || flag % 32 < 5 {
                    ask(&bytes, "flag byte");
                }
            }
            for count in [0u32, 1, 2, 4, 6, 7, 8, 50, 1000, 0x3fff_ffff, 0x7fff_ffff, 0x8000_0000, u32::MAX] {
                for at in [12, header + 20] {
                    let mut bytes = good.clone();
                    bytes[at..at + 4].copy_from_slice(&count.to_le_bytes());
                    ask(&bytes, "count");
                }
            }
        }
    }
    eprintln!("damaged files: {tally}");
}

/// A random cache, ordered or not, mutated or not, and names to ask it.
fn random_case(random: &mut Random) -> (Vec<u8>, Vec<BString>) {
    let stems = ["liba", "libb", "lib", "b", "libz.so.", "libq.so.1."];
    let tails =
        ["", ".so", ".so.1", ".so.01", ".so.10", "9", "09", "a9b", ".so.2147483648", ".so.4294967297", "\u{e9}"];
    let hwcaps = ["x86-64-v2", "x86-64-v3", "x86-64-v4", "aaa", "zzz", "x86-64-v"];
    let mut keys: Vec<BString> = Vec::new();
    for _ in 0..random.below(30) {
        keys.push(format!("{}{}", random.pick(&stems), random.pick(&tails)).into());
    }
    let mut list = Vec::new();
    for i in 0..random.below(60) {
        let Some(key) = keys.get(random.below(keys.len())) else { break };
        let mut record = Record::new(key.clone(), format!("/n/{i}"), 0x303);
        if random.one_in(5) {
            record.flags = *random.pick(&[1, 3, 0x803, 0xa03, -1]);
        }
        if random.one_in(8) {
            record.hwcap = *random.pick(&[2, 4, 6, 1 << 50, 1 << 51, 1 << 63, 1 << 63 | 2, 1 << 62, 1 << 61, 8]);
        } else if random.one_in(3) {
            record.hwcaps = Some((*random.pick(&hwcaps)).into());
            record.isa_level = *random.pick(&[0, 0, 0, 1, 2, 3, 4, 32]);
        }
        if random.one_in(10) {
            record.os_version = *random.pick(&[0x3_0200, 0x63_0000]);
        }
        list.push(record);
    }
    if !random.one_in(4) {
        cache::sort(&mut list, true, |r| r);
    }
    let format = *random.pick(&[Format::New, Format::New, Format::Compat, Format::Old]);
    let generator = (!random.one_in(5)).then_some("random".into());
    let mut bytes = cache::encode(&list, format, false, generator).expect("small");
    let mutations = [0, 0, 1, 2, 8][random.below(5)];
    mutate(random, &mut bytes, mutations);
    let mut asked: Vec<BString> = stems.iter().map(|s| BString::from(format!("{s}{}", random.pick(&tails)))).collect();
    asked.extend(keys.iter().step_by(3).cloned());
    asked.retain(|n| !n.is_empty());
    asked.sort();
    asked.dedup();
    (bytes, asked)
}

fn mutate(random: &mut Random, bytes: &mut Vec<u8>, times: usize) {
    for _ in 0..times {
        if bytes.is_empty() {
            return;
        }
        let at = random.below(bytes.len());
        match random.below(6) {
            0 => bytes[at] = random.next() as u8,
            1 => bytes[at] ^= 1 << random.below(8),
            2 => bytes[at] = *random.pick(&[0, 1, 0x7f, 0x80, 0xff]),
            3 => {
                let word = *random.pick(&[0u32, 1, 48, 0x7fff_ffff, 0x8000_0000, u32::MAX, bytes.len() as u32]);
                let at = at & !3;
                if let Some(field) = bytes.get_mut(at..at + 4) {
                    field.copy_from_slice(&word.to_le_bytes());
                }
            }
            4 => bytes.truncate(if random.one_in(4) { at } else { bytes.len() }),
            _ => {
                let from = random.below(bytes.len());
                let length = random.below(24).min(bytes.len() - at).min(bytes.len() - from);
                let piece = bytes[from..from + length].to_vec();
                bytes[at..at + length].copy_from_slice(&piece);
            }
        }
    }
}

fn cases(default: usize) -> usize {
    std::env::var("LDAUDIT_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(default)
}

#[test]
fn random_and_mutated_caches_give_what_the_loader_gives() {
    for loader in Loader::all() {
        let mut random = Random(0x1dc0_ffee_0000_0001);
        let mut tally = Tally::default();
        let settings: Vec<&Setting> = settings(&loader).collect();
        for case in 0..cases(120) {
            let (bytes, asked) = random_case(&mut random);
            let setting = settings[case % settings.len()];
            compare(&loader, setting, &bytes, &asked, &format!("case {case}"), &mut tally);
        }
        eprintln!("glibc 2.{}: {tally}", loader.minor);
    }
}

#[test]
fn mutants_end_without_panic_and_in_little_time() {
    let mut random = Random(0x5eed);
    let processor = Processor::live(&SETTINGS[0]);
    let readers = [17, 31, 32, 33, 36, 37, 43].map(|minor| Reader::glibc(minor, X86_64, false));
    for case in 0..10_000 {
        let (mut bytes, asked) = random_case(&mut random);
        mutate(&mut random, &mut bytes, 1 + case % 16);
        let bytes: Arc<[u8]> = bytes.into();
        for reader in readers {
            let reader = Reader { big_endian: case % 50 == 0, ..reader };
            let Ok(cache) = Cache::parse(bytes.clone(), reader) else { continue };
            for name in asked.iter().take(4) {
                let told = cache.explain(name.as_bstr(), &processor.want());
                let taken = told.entries.iter().filter(|(_, fate)| *fate == Fate::Taken).count();
                if let Ok(hit) = told.found {
                    assert_eq!(taken, usize::from(hit.is_some()), "case {case}");
                }
                assert!(cache.entries_of(name.as_bstr()).count() <= bytes.len());
            }
            assert!(cache.entries().map(|e| e.to_string().len()).sum::<usize>() < 1 << 26, "case {case}");
            let _ = cache.generator();
        }
    }
}

/// Files made to keep a reader busy: entries without end that share one name, and numbers of megabytes.
#[test]
fn files_made_to_cost_time_are_given_up() {
    let mut many = encode(&vec![Record::new("libx.so", "/n", 3); 200_000], Format::New);
    let long = many.len() as u32;
    many.extend(std::iter::repeat_n(b'0', 4 << 20));
    many.extend(b"7\0");
    for entry in 0..200_000 {
        let key = 48 + 24 * entry + 4;
        many[key..key + 4].copy_from_slice(&long.to_le_bytes());
    }
    let cache = Cache::parse(many.into(), Reader::glibc(36, X86_64, false)).expect("a cache");
    let started = std::time::Instant::now();
    assert_eq!(cache.lookup("7".into(), &Processor::live(&SETTINGS[0]).want()), Err(Fault::TooMuchWork));
    assert!(started.elapsed().as_secs() < 20);
    assert!(cache.entries().take(10).all(|e| e.key.len() <= 1 << 16));
}

#[test]
fn unusable_files_say_why() {
    let reader = Reader::glibc(36, X86_64, false);
    let why = |bytes: &[u8]| Cache::parse(bytes.into(), reader).err();
    let good = encode(&records(&[("liba.so", "/n/a")]), Format::New);
    assert_eq!(why(&good), None);
    assert_eq!(why(b""), Some(Unusable::TooShort));
    assert_eq!(why(&good[..48]), Some(Unusable::TooShort));
    assert_eq!(why(&[b'x'; 100]), Some(Unusable::BadMagic));
    let change = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        why(&bytes)
    };
    assert_eq!(change(19, b'2'), Some(Unusable::BadMagic));
    assert_eq!(change(28, 3), Some(Unusable::WrongEndian(3)));
    assert_eq!(change(28, 4), Some(Unusable::WrongEndian(4)));
    assert_eq!(change(22, 1), Some(Unusable::TooManyEntries { claimed: 0x1_0001, room: 2 }));
    let big = cache::encode(&records(&[("liba.so", "/n/a")]), Format::New, true, None).expect("small");
    let reader = Reader::glibc(41, 22, true);
    let cache = Cache::parse(big.into(), reader).expect("a cache of a big-endian machine");
    let want = Want { flags: Flags { own: 0x303, taken: [0x303; 2] }, active: &[], isa: None, legacy: None };
    let hit = Hit { path: "/n/a".into(), entry: 0, hwcaps: None };
    assert_eq!(cache.lookup("liba.so".into(), &want), Ok(Some(hit)));
}

#[test]
fn a_lookup_tells_what_became_of_each_entry() {
    let list = [
        named("libx.so", "/n/v2", "x86-64-v2", 0),
        named("libx.so", "/n/v3", "x86-64-v3", 3),
        named("libx.so", "/n/zzz", "zzz", 0),
        Record { hwcap: 2, ..Record::new("libx.so", "/n/legacy", 0x303) },
        Record::new("libx.so", "/n/plain", 0x303),
        Record::new("libx.so", "/n/other", 3),
    ];
    let active = names(&["x86-64-v3", "x86-64-v2"]);
    let bytes: Arc<[u8]> = encode(&list, Format::New).into();
    let want = Want { flags: Flags { own: 0x303, taken: [0x303; 2] }, active: &active, isa: Some(7), legacy: None };
    let cache = Cache::parse(bytes.clone(), Reader::glibc(41, X86_64, false)).expect("a cache");
    let told = cache.explain("libx.so".into(), &want);
    let fates: Vec<Fate> = told.entries.iter().map(|(_, fate)| *fate).collect();
    use Fate::{IsaLevel, LegacyHwcap, NotActive, NotReached, Taken};
    assert_eq!(fates, [Taken, IsaLevel, NotActive, NotReached, NotReached, NotReached]);
    assert_eq!(told.found.expect("no fault").expect("a hit").hwcaps, Some("x86-64-v2".into()));
    let none = Want { active: &[], ..want };
    let fates: Vec<Fate> = cache.explain("libx.so".into(), &none).entries.iter().map(|(_, fate)| *fate).collect();
    assert_eq!(fates, [NotActive, IsaLevel, NotActive, LegacyHwcap, Taken, NotReached]);
    // The name stands in the file only once as such; the loader of 2.31 knows no names.
    let old = Cache::parse(bytes, Reader::glibc(31, X86_64, false)).expect("a cache");
    assert_eq!(old.lookup("libx.so".into(), &want).expect("no fault").expect("a hit").path, "/n/plain");
}

// --- ldconfig ----------------------------------------------------------------------------------------------------------

fn ldconfigs() -> Vec<Loader> {
    let loaders = Loader::all();
    if loaders.iter().all(|l| l.ldconfig.is_none()) {
        require::skip("ldconfig", "no ldconfig found");
    }
    loaders.into_iter().filter(|l| l.ldconfig.is_some()).collect()
}

#[test]
fn the_cache_of_this_box_is_listed_as_ldconfig_lists_it() {
    for loader in ldconfigs() {
        let Ok(bytes) = fs::read(loader.root.join("etc/ld.so.cache")) else {
            require::skip("ldconfig", "no /etc/ld.so.cache");
            continue;
        };
        let cache = Cache::parse(bytes.into(), loader.reader()).expect("a cache");
        let output = Command::new(loader.ldconfig.as_ref().expect("ldconfig"))
            .arg("-p")
            .arg("-C")
            .arg(loader.root.join("etc/ld.so.cache"))
            .env("LC_ALL", "C")
            .output()
            .expect("ldconfig runs");
        let listed: Vec<&[u8]> = output.stdout.lines().filter_map(|l| l.strip_prefix(b"\t")).collect();
        let ours: Vec<String> = cache.entries().map(|e| e.to_string()).collect();
        assert_eq!(listed.len(), cache.len());
        for (theirs, ours) in listed.iter().zip(&ours) {
            assert_eq!(theirs.as_bstr(), ours.as_str());
        }
        let by = output.stdout.lines().find_map(|l| l.strip_prefix(b"Cache generated by: "));
        assert_eq!(cache.generator(), by.map(|b| b.as_bstr()));
        // Names and paths that exist nowhere, so that nothing is loaded.
        let bytes = fs::read(loader.root.join("etc/ld.so.cache")).expect("read before");
        let bytes = bytes.replace("lib", "Lib").replace("gLibc-ld.so.cache", "glibc-ld.so.cache");
        let mut asked: Vec<BString> = cache.entries().map(|e| e.key.replace("lib", "Lib").into()).collect();
        asked.retain(|n| !n.starts_with(b"ld-linux") && n.find_byteset(" :/").is_none());
        for i in (0..asked.len()).step_by(9) {
            let odd = asked[i].replace(".so.", ".so.0").into();
            asked.push(odd);
        }
        asked.sort();
        asked.dedup();
        let mut tally = Tally::default();
        compare(&loader, &SETTINGS[0], &bytes, &asked, "the cache of the box", &mut tally);
        assert!(tally.hits * 2 >= asked.len(), "{tally}");
        eprintln!("glibc 2.{}: {} entries listed alike, {tally}", loader.minor, ours.len());
    }
}

/// What is in a file, by another ELF reader than the product's.
fn identify(root: &Path, minor: u32, path: &BStr) -> Option<LibraryId> {
    let file = live(root);
    let bytes = ldaudit::system::Files::open(&file, path).ok()?.read_all(1 << 30).ok()?;
    let elf = goblin::elf::Elf::parse(&bytes).ok()?;
    let abi = Abi { machine: elf.header.e_machine, class64: elf.is_64, e_flags: elf.header.e_flags };
    if elf.header.e_type != goblin::elf::header::ET_DYN || elf.dynamic.is_none() {
        return None;
    }
    let mut id = LibraryId {
        soname: elf.soname.map(BString::from),
        flags: cache::library_flags(
            X86_64,
            abi,
            minor >= 37 || elf.libraries.iter().any(|l| ["libc.so.6", "libm.so.6"].contains(l)),
        )?,
        isa_level: 0,
        os_version: 0,
    };
    let word = |desc: &[u8], at: usize| desc.get(at..at + 4).map(|b| u32::from_le_bytes(b.try_into().expect("four")));
    for note in elf.iter_note_headers(&bytes).into_iter().flatten().filter_map(Result::ok) {
        if note.name == "GNU" && note.n_type == 1 {
            let part = |i: usize| word(note.desc, 4 * i).unwrap_or(0);
            id.os_version = part(0) << 24 | part(1) << 16 | part(2) << 8 | part(3);
        }
    }
    for header in elf.program_headers.iter().filter(|h| h.p_type == goblin::elf::program_header::PT_GNU_PROPERTY) {
        let desc = bytes.get(header.file_range()).and_then(|n| n.get(16..)).unwrap_or_default();
        let mut at = 0;
        while let (Some(kind), Some(size)) = (word(desc, at), word(desc, at + 4)) {
            if kind == 0xc000_8002 {
                id.isa_level = cache::isa_level(word(desc, at + 8).unwrap_or(0));
            }
            at += 8 + (size as usize).next_multiple_of(if elf.is_64 { 8 } else { 4 });
        }
    }
    Some(id)
}

/// The built-in directories of a loader, as a person reads them out of the program.
fn built_in(loader: &Loader) -> Vec<BString> {
    let program = fs::read(&loader.program).expect("the loader");
    let run = ["/lib/x86_64-linux-gnu/\0", "/lib64/\0", "/usr/lib64/\0", "/usr/lib/\0"]
        .iter()
        .filter_map(|d| program.find(d))
        .min();
    let run = run.expect("built-in directories");
    program[run..]
        .split(|b| *b == 0)
        .take_while(|d| d.starts_with(b"/") && d.ends_with(b"/"))
        .map(BString::from)
        .collect()
}

fn rebuild(root: &Path, loader: &Loader) -> (Configuration, View) {
    let system = System::new(Host::bare(), Arc::new(live(root)));
    let rules = Rules::glibc(loader.minor, X86_64);
    let directories = rules.system_directories(&built_in(loader));
    let configuration = Configuration::read(&system, &rules, &directories);
    let view = config::rebuild(&system, &rules, &configuration, &mut |path| identify(root, loader.minor, path));
    (configuration, view)
}

/// Whether ldconfig can `chroot` here: for others than root it follows links itself, and takes absolute paths only.
fn can_chroot(loader: &Loader) -> bool {
    let probe = Temp::new();
    fs::create_dir(probe.0.join("etc")).expect("directory");
    fs::write(probe.0.join("etc/ld.so.conf"), "include relative").expect("file");
    let mut command = Command::new(loader.ldconfig.as_ref().expect("ldconfig"));
    let output = command.arg("-r").arg(&probe.0).args(["-N", "-X"]).output().expect("ldconfig runs");
    output.status.success()
}

fn ldconfig(loader: &Loader, root: &Path, more: &[&str]) -> Vec<u8> {
    let output = Command::new(loader.ldconfig.as_ref().expect("ldconfig"))
        .args(["-r"])
        .arg(root)
        .args(["-C", "/etc/made.cache", "-X"])
        .args(more)
        .env("LC_ALL", "C")
        .output()
        .expect("ldconfig runs");
    fs::read(root.join("etc/made.cache")).unwrap_or_else(|e| panic!("no cache: {e}: {output:?}"))
}

/// Compares every line of the rebuilt view with the file that ldconfig writes.
fn compare_view(loader: &Loader, root: &Path) -> (Configuration, View) {
    let (configuration, view) = rebuild(root, loader);
    let bytes = ldconfig(loader, root, &[]);
    let theirs = Cache::parse(bytes.into(), loader.reader()).expect("a cache");
    let ours = view.cache(loader.reader()).expect("a cache");
    let list =
        |cache: &Cache| -> Vec<String> { cache.entries().map(|e| format!("{e} level {}", e.isa_level())).collect() };
    let (theirs, ours) = (list(&theirs), list(&ours));
    for (i, (theirs, ours)) in theirs.iter().zip(&ours).enumerate() {
        assert_eq!(ours, theirs, "line {i} under 2.{}", loader.minor);
    }
    assert_eq!(ours.len(), theirs.len(), "2.{}", loader.minor);
    eprintln!("glibc 2.{}: {} lines of {} alike", loader.minor, ours.len(), root.display());
    (configuration, view)
}

#[test]
fn the_view_of_a_tree_is_what_ldconfig_writes() {
    let loaders = ldconfigs();
    let tree = tree(loaders.iter().all(can_chroot));
    for loader in loaders {
        let (configuration, view) = compare_view(&loader, &tree.0);
        // A report can name the line behind an entry.
        let behind = configuration.behind("/opt/b/lib-b.so".into()).expect("a directory");
        assert_eq!(behind.source.to_string(), "/etc/ld.so.conf:4");
        let plain = |l: &&config::Line| l.record.hwcaps.is_none() && l.record.hwcap == 0;
        let common = view.lines.iter().filter(plain).find(|l| l.record.key == "libcommon.so.1");
        assert_eq!(common.expect("a line").source.to_string(), "/etc/ld.so.conf:3");
    }
}

/// Whole roots, named by `LDAUDIT_SCRATCH_ROOTS`, which may be written to: each gets `/etc/made.cache`.
#[test]
fn the_view_of_whole_roots_is_what_ldconfig_writes() {
    let roots = std::env::var("LDAUDIT_SCRATCH_ROOTS").unwrap_or_default();
    for root in roots.split(':').filter(|r| !r.is_empty()).map(PathBuf::from) {
        match Loader::at(&root) {
            Ok(loader) if loader.ldconfig.is_some() => drop(compare_view(&loader, &root)),
            Ok(_) => require::skip("ldconfig", &format!("none in {}", root.display())),
            Err(reason) => require::skip("glibc", &reason),
        }
    }
}

/// The files of the other formats are compared by what a loader makes of them.
#[test]
fn ldconfigs_other_formats_read_alike() {
    let loaders = Loader::all();
    let writers = ldconfigs();
    let tree = tree(writers.iter().all(can_chroot));
    for writer in writers {
        for format in ["new", "compat", "old"] {
            let bytes = ldconfig(&writer, &tree.0, &["-c", format]);
            let cache = Cache::parse(bytes.clone().into(), writer.reader()).expect("a cache");
            let mut asked: Vec<BString> = cache.entries().map(|e| e.key.to_owned()).collect();
            asked.extend(names(&["libnum.so.1", "libnum.so.010", "libmany.so.01", "missing.so"]));
            asked.retain(|n| !n.is_empty() && n.find_byteset(" :/").is_none());
            asked.sort();
            asked.dedup();
            let mut tally = Tally::default();
            for loader in &loaders {
                compare(loader, &SETTINGS[0], &bytes, &asked, format, &mut tally);
            }
            eprintln!("written by 2.{} as {format}: {tally}", writer.minor);
        }
    }
}

/// `ldconfig -N -X -v` writes nothing and lists the directories in order with what it found in each.
#[test]
fn the_view_of_this_box_is_what_ldconfig_finds() {
    for loader in ldconfigs() {
        if loader.root != Path::new("/") {
            continue;
        }
        let output = Command::new(loader.ldconfig.as_ref().expect("ldconfig"))
            .args(["-N", "-X", "-v"])
            .env("LC_ALL", "C")
            .output()
            .expect("ldconfig runs");
        let (configuration, view) = rebuild(&loader.root, &loader);
        let mut directory = BString::default();
        let mut directories = Vec::new();
        let mut found = 0;
        for line in output.stdout.lines() {
            if let Some((soname, file)) = line.strip_prefix(b"\t").and_then(|l| l.split_once_str(" -> ")) {
                let file = file.split_once_str(" (").map_or(file, |(f, _)| f);
                let file = ldaudit::system::join(directory.as_bstr(), file);
                let line = view.lines.iter().find(|l| l.file == file);
                let line = line.unwrap_or_else(|| panic!("{file} is missing"));
                assert_eq!(line.record.key.as_slice(), soname, "soname of {file}");
                found += 1;
            } else if let Some(at) = line.find_byte(b':').filter(|_| line.starts_with(b"/")) {
                directory = line[..at].into();
                directories.push(directory.clone());
            }
        }
        let scanned = configuration.directories.iter().filter(|d| d.status == config::Status::Scanned);
        let ours: Vec<BString> = scanned.map(|d| d.path.clone()).collect();
        assert_eq!(ours, directories.iter().filter(|d| ours.contains(d)).cloned().collect::<Vec<_>>());
        assert!(found > 0 || view.lines.is_empty());
        eprintln!("glibc 2.{}: {found} of {} lines listed by ldconfig -v", loader.minor, view.lines.len());
    }
}

// --- the preload file --------------------------------------------------------------------------------------------------

#[test]
fn the_preload_file_is_cut_into_names_as_the_loader_cuts_it() {
    let mut random = Random(0xface);
    let pieces = ["nope1.so", "w", " ", "\n", "\t", ":", "#", "# c1", "# c2 word", "\n#", "libx.so", "\0", "ab"];
    let mut texts: Vec<Vec<u8>> = vec![
        b"nope1.so # c1\n# c2 word\nnope2.so".to_vec(),
        b"nope1.so # c1\n# c2 word\nnope2.so\n".to_vec(),
        b"#".to_vec(),
        b"a#b#c\n#d\ne f:g\n".to_vec(),
    ];
    for _ in 0..cases(120) {
        texts.push((0..random.below(14)).flat_map(|_| random.pick(&pieces).bytes()).collect());
    }
    for loader in Loader::all() {
        for text in &texts {
            let directory = Temp::new();
            fs::write(directory.0.join("ld.so.preload"), text).expect("write");
            let (output, killed) = loader.run(&SETTINGS[0], &directory.0, b"");
            assert!(!killed, "{:?}", text.as_bstr());
            let asked = output.lines().filter_map(|l| l.split_once_str(":\tfind library=")).map(|(_, name)| name);
            let asked = asked.map(|n| BString::from(&n[..n.rfind(" [").expect("namespace")]));
            let theirs: Vec<BString> = asked.take_while(|n| n != "libc.so.6").collect();
            assert_eq!(config::preload_names(text), theirs, "{:?} under 2.{}", text.as_bstr(), loader.minor);
        }
        eprintln!("glibc 2.{}: {} preload files read alike", loader.minor, texts.len());
    }
}
