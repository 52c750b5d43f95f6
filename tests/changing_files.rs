//! Files that are cut short, grow, vanish and are replaced while several threads audit them: an answer each time, never a
//! crash. A map of a file that is cut short would end the process with SIGBUS.

#[path = "support/random.rs"]
mod random;
#[path = "support/sample.rs"]
mod sample;

use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bstr::{BStr, BString, ByteSlice};
use ldaudit::cli::audit::{Plan, Subject};
use ldaudit::elf::{Facts, Harm, Layout, Reader, literals, symbols};
use ldaudit::ld::{Dialect, Family, OpenFlags, Outcome, Start, Store};
use ldaudit::render::{self, Target};
use ldaudit::system::{Files, Host, Live, System};
use random::Random;
use sample::*;

fn scratch(name: &str) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("ldaudit-changing-{}-{name}", std::process::id()));
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).expect("scratch directory");
    dir
}

fn bytes(path: &Path) -> &BStr {
    <[u8] as ByteSlice>::from_path(path).expect("unix").as_bstr()
}

/// A library with much to read: names, a big read-only segment, symbols.
fn big_library() -> Vec<u8> {
    let mut s = Sample::x86_64().soname("libbig.so").needed("libother.so").entry(DT_RUNPATH, "/lib");
    let name = s.string("dlopen");
    s.put(SYMBOLS as usize + 24, &[s.word(name, 4), vec![0x12, 0, 0, 0]].concat());
    let table = s.words(&[1, 2, 1, 0, 0]);
    s.put(0x8000, &table);
    s.dynamic.push((DT_HASH, 0x8000));
    s.headers.push(Header { flags: 4, address: 0x100_0000, ..Header::at(PT_LOAD, 0x1_0000, 0x20_0000) });
    for i in 0..64 {
        s.put(0x1_0000 + i * 0x8000, format!("\0libtext{i}.so\0").as_bytes());
    }
    s.put(0x20_ffff, b"\0");
    s.build()
}

#[test]
fn a_map_that_is_cut_short_says_so() {
    let dir = scratch("map");
    let path = dir.join("libbig.so");
    fs::write(&path, big_library()).expect("write");
    let file = Live::new().open(bytes(&path)).expect("open");
    let mut reader = Reader::new(&file);
    let facts = Facts::read(&mut reader, Layout::LITTLE_64).expect("facts");
    assert_eq!(facts.defects, []);
    let table = symbols::Table::open(&file, &facts).expect("tables");
    assert!(table.imports(b"dlopen") && !table.was_cut());
    assert_eq!(literals::containing(&file, &facts, &mut reader, b"lib", 1000).found.len(), 64);
    fs::OpenOptions::new().write(true).open(&path).expect("open").set_len(4096).expect("cut");
    // Opened before, cut meanwhile: what is left is read, and that it is not all is said.
    assert!(!table.defines(b"dlopen") && table.was_cut());
    let texts = literals::containing(&file, &facts, &mut reader, b"lib", 1000);
    assert!(texts.found.is_empty() && !texts.complete);
    // Opened anew: a defect.
    let file = Live::new().open(bytes(&path)).expect("open");
    let facts = Facts::read(&mut Reader::new(&file), Layout::LITTLE_64).expect("facts");
    assert!(facts.defects.iter().any(|d| d.harm == Harm::Crash));
    fs::remove_dir_all(&dir).expect("clean up");
}

/// Changes a file at random: cut, restored in place, replaced, removed, grown, overwritten.
fn change(path: &Path, whole: &[u8], random: &mut Random) {
    let file = || fs::OpenOptions::new().write(true).create(true).truncate(false).open(path);
    match random.below(7) {
        0 => drop(file().map(|f| f.set_len(random.below(whole.len() as u64)))),
        1 => drop(fs::remove_file(path)),
        2 => drop(file().map(|f| f.set_len(0))),
        3 => drop(file().map(|f| f.set_len(whole.len() as u64 * 2))),
        4 => {
            let at = random.below(whole.len() as u64 - 64);
            drop(file().map(|f| f.write_all_at(&[0xff; 64], at)));
        }
        5 => {
            let new = path.with_extension("new");
            let _ = fs::write(&new, whole).and_then(|()| fs::rename(&new, path));
        }
        _ => drop(fs::write(path, whole)),
    }
    // A new file may be run like the one before.
    let _ = fs::set_permissions(path, fs::Permissions::from_mode(0o755));
}

#[test]
fn audits_of_files_that_change_all_the_time() {
    let dir = scratch("audit");
    for d in ["bin", "lib", "lib64"] {
        fs::create_dir_all(dir.join(d)).expect("directory");
    }
    let loader = "/lib64/ld-linux-x86-64.so.2";
    let program = Sample::x86_64().interpreter(loader).needed("libbig.so").entry(DT_RUNPATH, "/lib").build();
    let other = Sample::x86_64().soname("libother.so").build();
    let loader_bytes = fs::read(loader).unwrap_or_else(|_| other.clone());
    let files = [
        ("bin/program", program),
        ("lib/libbig.so", big_library()),
        ("lib/libother.so", other),
        ("lib64/ld-linux-x86-64.so.2", loader_bytes),
    ];
    for (name, whole) in &files {
        fs::write(dir.join(name), whole).expect("write");
        fs::set_permissions(dir.join(name), fs::Permissions::from_mode(0o755)).expect("mode");
    }
    let stop = AtomicBool::new(false);
    let (fine, failed, defects, incomplete) =
        (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let audit = |in_root: bool| {
        let (live, base) = if in_root {
            (Live::at_root(bytes(&dir)).expect("root"), BString::default())
        } else {
            (Live::new(), bytes(&dir).to_owned())
        };
        let at = |path: &str| BString::from([base.as_slice(), path.as_bytes()].concat());
        let mut host = Host::bare();
        host.env.set("LD_LIBRARY_PATH", at("/lib"));
        let system = System::new(host.clone(), Arc::new(live));
        let dialect = Dialect::read(&system, at("/lib64/ld-linux-x86-64.so.2").as_ref(), Layout::LITTLE_64, 62);
        assert_eq!(dialect.family, Family::Glibc);
        let subject = Subject::File { path: at("/bin/program"), start: Start::Kernel };
        let store = Arc::new(Store::new(system.clone(), Layout::LITTLE_64, false));
        let target = Target::file(at("/bin/program"));
        let plan = Plan {
            opens: vec![(at("/lib/libbig.so"), OpenFlags::default())],
            lookups: ldaudit::ld::Lookups::Record,
            ..Plan::new(subject, target, Arc::new(host), store, Arc::new(dialect))
        };
        let report = ldaudit::cli::audit::audit(&plan);
        render::json::write(&report, &mut std::io::sink(), false).expect("a sink takes everything");
        let steps = &report.process.steps;
        let count = if steps.iter().all(|s| s.outcome != Outcome::Failed) { &fine } else { &failed };
        count.fetch_add(1, Ordering::Relaxed);
        for image in &report.process.images {
            let damaged = image.facts().is_some_and(|f| !f.defects.is_empty());
            defects.fetch_add(u64::from(damaged), Ordering::Relaxed);
        }
        let Ok(file) = system.open(at("/lib/libbig.so").as_ref()) else { return };
        let mut reader = Reader::new(&file);
        let Some(facts) = Facts::read(&mut reader, Layout::LITTLE_64) else { return };
        let texts = literals::containing(&file, &facts, &mut reader, b"lib", 1000);
        let mut cut = !texts.complete;
        if let Some(table) = symbols::Table::open(&file, &facts) {
            table.lookup(b"dlopen");
            table.imports(b"dlopen");
            cut |= table.was_cut();
        }
        literals::imports_dlopen(&file, &facts);
        incomplete.fetch_add(u64::from(cut), Ordering::Relaxed);
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = Random::new(11);
            while !stop.load(Ordering::Relaxed) {
                let (name, whole) = random.pick(&files).expect("a file");
                change(&dir.join(name), whole, &mut random);
                if random.below(8) == 0 {
                    // Now and then all is well for a moment.
                    for (name, whole) in &files {
                        let _ = fs::write(dir.join(name), whole);
                    }
                    std::thread::sleep(Duration::from_millis(3));
                }
            }
        });
        let auditors: Vec<_> = [false, true, false]
            .map(|in_root| {
                scope.spawn({
                    let audit = &audit;
                    move || {
                        let end = Instant::now() + Duration::from_secs(3);
                        while Instant::now() < end {
                            audit(in_root);
                        }
                    }
                })
            })
            .into_iter()
            .collect();
        let results: Vec<_> = auditors.into_iter().map(|a| a.join()).collect();
        stop.store(true, Ordering::Relaxed);
        assert!(results.iter().all(Result::is_ok), "an auditor panicked");
    });
    fs::remove_dir_all(&dir).expect("clean up");
    let [fine, failed, defects, incomplete] = [fine, failed, defects, incomplete].map(AtomicU64::into_inner);
    eprintln!("{fine} audits found all well, {failed} a failure; {defects} damaged images, {incomplete} searches cut");
    assert!(fine > 0 && failed > 0 && defects > 0, "the files did not change while they were audited");
}
