//! What is done with a damaged ELF file, whatever it holds: read by itself, and loaded as a program and as a library of
//! processes in memory. Each answer is held to what must be true of any. Shared by the seeded tests and the fuzz
//! targets.

#![allow(dead_code)]

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bstr::{BStr, BString, ByteSlice};
use ldaudit::cli::audit::{Plan, Subject};
use ldaudit::elf::{Facts, Layout, Reader, literals, symbols};
use ldaudit::ld::{Dialect, Family, OpenFlags, Outcome, Process, Start, StepKind, Store, Verdict};
use ldaudit::render::text::Style;
use ldaudit::render::{self, Target};
use ldaudit::system::{File, FileKey, Host, Kind, Meta, System, Tree};

use super::sample::{DT_RUNPATH, Sample};

/// What one process may take.
const TIME: Duration = Duration::from_secs(if cfg!(fuzzing) { 2 } else { 10 });

const GLIBC: &str = "/lib64/ld-linux-x86-64.so.2";
const MUSL: &str = "/lib/ld-musl-x86_64.so.1";

/// Reads a file in its own layout and in those of two machines.
///
/// The work is bounded, nothing is made up (each name stands in the file), and a second reader finds the same.
pub fn facts(data: &[u8]) {
    let bytes: Arc<[u8]> = data.into();
    let meta = Meta { key: FileKey { device: 1, inode: 1 }, kind: Kind::File, size: data.len() as u64, mode: 0o644 };
    let file = File::from_memory(meta, bytes);
    let own = Layout::of_ident(data);
    let others = [Layout::LITTLE_64, Layout { is_64: false, big_endian: true }];
    for layout in own.into_iter().chain(others.into_iter().filter(|l| Some(*l) != own)) {
        let mut reader = Reader::new(&file);
        let Some(facts) = Facts::read(&mut reader, layout) else {
            assert!(data.len() < layout.header_size());
            continue;
        };
        // Pages that are asked for again after a later one was read are read once more.
        assert!(reader.bytes_read() <= 32 << 20);
        assert_eq!(Facts::read(&mut Reader::new(&file), layout).as_ref(), Some(&facts), "two readers");
        assert_eq!(Facts::read(&mut reader, layout).as_ref(), Some(&facts), "one reader twice");
        hold(&facts, data);
        if own == Some(layout) {
            texts(&file, &facts, &mut reader);
        }
    }
}

/// What is true of all facts.
fn hold(facts: &Facts, data: &[u8]) {
    assert_eq!(facts.file_size, data.len() as u64);
    assert!(facts.requests.len() <= 16 << 10, "{} requests", facts.requests.len());
    assert!(facts.defects.len() <= 300, "{} defects", facts.defects.len());
    assert!(facts.cost() < 32 << 20, "facts of {} MiB", facts.cost() >> 20);
    assert!(facts.segments.len() <= usize::from(facts.header.program_header_count));
    assert!(facts.dlopen_notes.len() <= 64 && facts.isa_level() <= 32);
    assert!(facts.build_id.as_ref().is_none_or(|id| data.find(id).is_some()));
    let requests = facts.requests.iter().take(40).map(|r| &r.name);
    let needs = facts
        .version_needs
        .iter()
        .flatten()
        .take(20)
        .flat_map(|f| std::iter::once(&f.file).chain(f.versions.iter().take(20).map(|v| &v.name)));
    let definitions = facts.version_definitions.iter().flatten().take(40).map(|d| &d.name);
    let single = [&facts.soname, &facts.rpath, &facts.runpath, &facts.interpreter].into_iter().flatten();
    for name in requests.chain(needs).chain(definitions).chain(single).chain(facts.audit.iter().take(4)) {
        assert!(!name.contains(&0));
        // A string can run over from one segment into the next, which may lie elsewhere in the file.
        let part = &name[..name.len().min(1)];
        assert!(data.find(part).is_some(), "{name} is not in the file");
        assert!(facts.segments.len() > 1 || data.find(name.as_slice()).is_some(), "{name} is not in the file");
    }
    for segment in facts.segments.iter().take(20) {
        for address in [segment.address, segment.address.wrapping_add(segment.file_size).wrapping_sub(1)] {
            if let Some((offset, room)) = facts.offset_of(address) {
                assert!(facts.is_mapped(address), "{address:#x}");
                assert!(room > 0 && offset.checked_add(room).is_some(), "{address:#x}: {offset:#x} {room:#x}");
            }
        }
    }
    assert!(facts.effective_rpath().is_none() || facts.runpath.is_none());
}

/// Strings and symbols of a file.
fn texts(file: &File, facts: &Facts, reader: &mut Reader<'_>) {
    assert_eq!(literals::imports_dlopen(file, facts), literals::imports_dlopen(file, facts));
    let texts = literals::containing(file, facts, reader, b"lib", 50);
    assert!(texts.found.len() <= 50);
    assert!(texts.found.iter().all(|t| t.find(b"lib").is_some() && t.len() <= 256 && t.iter().all(|b| *b >= b' ')));
    let Some(table) = symbols::Table::open(file, facts) else { return };
    for name in [&b""[..], b"dlopen", b"malloc", b"__libc_start_main", b"_ZSt4cout"] {
        let found = table.lookup(name);
        assert_eq!(found, table.lookup(name));
        assert!(!table.defines(name) || !found.is_empty());
        assert_eq!(table.imports(name), table.imports(name));
    }
}

/// Puts a file into a box as program, library, preload and loader, and audits what is started there, under glibc and
/// musl.
///
/// Each process ends within its budget, every record refers to what is there, a step that failed says why, simulating
/// it again shows the same, and no screen has a control byte on it.
pub fn process(data: &[u8]) {
    for (loader, start, circumstances) in [
        (GLIBC, Start::Kernel, Circumstances::Plain),
        (GLIBC, Start::Loader, Circumstances::Environment),
        (GLIBC, Start::Kernel, Circumstances::Secure),
        (MUSL, Start::Loader, Circumstances::Environment),
    ] {
        let plan_for = setting(data, loader, circumstances);
        for program in ["/bin/user", "/bin/mutant"] {
            let plan = plan_for(program, start);
            let before = Instant::now();
            let report = ldaudit::cli::audit::audit(&plan);
            let took = before.elapsed();
            assert!(took < TIME, "{program} under {loader} takes {took:?}");
            check(&report.process);
            let again = plan.simulate(&plan.host).process;
            assert_eq!(summary(&again), summary(&report.process));
            let mut json = Vec::new();
            render::json::write(&report, &mut json, false).expect("memory takes everything");
            serde_json::from_slice::<serde::de::IgnoredAny>(&json).expect("JSON");
            render::ldd::write(&report, &mut std::io::sink()).expect("a sink takes everything");
            let style = Style { width: 80, verbosity: 1, ..Style::plain() };
            for draw in [render::text::write, render::tree::write] {
                let mut screen = Vec::new();
                draw(&report, &style, &mut screen).expect("memory takes everything");
                let dirty = screen.iter().any(|b| *b < b' ' && *b != b'\n' || *b == 0x7f) || screen.to_str().is_err();
                assert!(!dirty, "control bytes on the screen: {:?}", BStr::new(&screen));
            }
        }
    }
}

/// The program `/bin/user`, which needs `libm1.so` of `/mutant`, and a library without needs.
fn sound() -> &'static [Arc<[u8]>; 2] {
    static SOUND: OnceLock<[Arc<[u8]>; 2]> = OnceLock::new();
    SOUND.get_or_init(|| {
        let user = Sample::x86_64().needed("libm1.so").entry(DT_RUNPATH, "/mutant").interpreter(GLIBC);
        [user.build().into(), Sample::x86_64().soname("libneeded.so").build().into()]
    })
}

#[derive(Clone, Copy, PartialEq)]
enum Circumstances {
    Plain,
    /// `LD_PRELOAD` and `LD_LIBRARY_PATH`, and the file is the loader as well.
    Environment,
    Secure,
}

fn setting(data: &[u8], loader: &'static str, circumstances: Circumstances) -> impl Fn(&str, Start) -> Plan {
    let bytes: Arc<[u8]> = data.into();
    let mut tree = Tree::new();
    for (path, bytes) in ["/bin/user", "/mutant/libneeded.so"].iter().zip(sound()) {
        tree.add_file(path, bytes.clone()).expect("add");
        tree.set_mode(path, 0o755).expect("mode");
    }
    for path in ["/mutant/libm1.so", "/bin/mutant", "/lib64/libc.so.6"] {
        tree.add_file(path, bytes.clone()).expect("add");
    }
    tree.set_mode("/bin/mutant", 0o4755).expect("mode");
    let mut host = Host::bare();
    host.secure = circumstances == Circumstances::Secure;
    if circumstances == Circumstances::Environment {
        tree.add_file(loader, bytes).expect("add");
        tree.set_mode(loader, 0o755).expect("mode");
        host.env.set("LD_PRELOAD", "/bin/mutant libm1.so");
        host.env.set("LD_LIBRARY_PATH", "/mutant::$ORIGIN");
    }
    let system = System::new(host.clone(), Arc::new(tree));
    let dialect = Dialect::read(&system, loader.into(), Layout::LITTLE_64, 62);
    let store = Arc::new(Store::new(system, Layout::LITTLE_64, dialect.family == Family::Musl));
    let (dialect, host) = (Arc::new(dialect), Arc::new(host));
    move |program, start| Plan {
        lookups: ldaudit::ld::Lookups::Record,
        opens: ["libm1.so", "/mutant/libm1.so", "libmissing.so", "/bin/user"]
            .map(|name| (BString::from(name), OpenFlags { global: name.len() > 10, ..OpenFlags::default() }))
            .to_vec(),
        ..Plan::new(
            Subject::File { path: program.into(), start },
            Target::file(program),
            host.clone(),
            store.clone(),
            dialect.clone(),
        )
    }
}

/// What is true of every process.
fn check(process: &Process) {
    let (images, decisions, steps) = (process.images.len(), process.decisions.len(), process.steps.len());
    assert!(images <= 20_000 && steps >= 1);
    for decision in &process.decisions {
        assert!(decision.step.index() < steps && decision.chosen.is_none_or(|id| id.index() < images));
        assert!(decision.needed_by.is_none_or(|id| id.index() < images));
        assert!(decision.chosen.is_none() || decision.failure.is_none(), "an answer and a failure: {decision:?}");
        let taken = decision.attempts.iter().filter(|a| a.verdict == Verdict::Taken).count();
        assert!(taken <= 1, "two files for one request: {decision:?}");
    }
    for image in &process.images {
        assert!(image.decision.index() < decisions && image.step.index() < steps);
        assert!(image.loader.is_none_or(|id| id.index() < images));
        assert!(image.search_list.iter().chain(&image.needs).all(|id| id.index() < images));
    }
    for step in &process.steps {
        assert!(step.image.is_none_or(|id| id.index() < images));
        assert!(step.warnings.len() <= 1000);
        if step.kind == StepKind::Exec && step.outcome == Outcome::Failed {
            assert!(step.error.is_some() && step.failure.is_some(), "a failure without a word: {step:?}");
        }
    }
    let order = process.load_order();
    assert!(order.len() <= images && order.iter().all(|id| id.index() < images));
}

/// The answers of a process.
fn summary(process: &Process) -> Vec<String> {
    let images = process.images.iter().map(|i| format!("{} {:?} {:?}", i.name, i.names, i.unloaded_by));
    let steps = process.steps.iter().map(|s| format!("{} {:?} {:?}", s.name, s.outcome, s.error));
    images.chain(steps).collect()
}
