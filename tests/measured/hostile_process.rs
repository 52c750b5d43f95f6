//! Boxes made so that simulating a process takes for ever or all memory: every run ends soon, in bounded memory, and one
//! that had to stop says so and has failed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::alone;
use crate::support::{memory, sample};
use bstr::{BStr, BString, ByteSlice};
use ldaudit::cli::audit::{Plan, Subject};
use ldaudit::elf::Layout;
use ldaudit::ld::{Dialect, OpenRequest, Outcome, Process, Start, Store};
use ldaudit::render::text::Style;
use ldaudit::render::{self, Target};
use ldaudit::system::{Host, System, Tree};
use sample::*;

/// What one run may take in an unoptimised build.
const LIMIT: Duration = Duration::from_secs(60);
const MEMORY: usize = 1 << 30;

const GLIBC: &str = "/lib64/ld-linux-x86-64.so.2";
const MUSL: &str = "/lib/ld-musl-x86_64.so.1";

struct Box_ {
    tree: Tree,
    host: Host,
}

impl Box_ {
    fn new() -> Box_ {
        Box_ { tree: Tree::new(), host: Host::bare() }
    }

    fn file(&mut self, path: impl AsRef<[u8]>, sample: &Sample) {
        self.tree.add_file(path.as_ref(), sample.build()).expect("add");
        self.tree.set_mode(path, 0o755).expect("mode");
    }

    fn process(&self, loader: &str) -> Process {
        let system = System::new(self.host.clone(), Arc::new(self.tree.clone()));
        let dialect = Dialect::assumed(loader.into(), Layout::LITTLE_64, 62);
        let store = Store::new(system, Layout::LITTLE_64, loader == MUSL);
        Process::new(Arc::new(store), Arc::new(dialect), Arc::new(self.host.clone()), None)
    }

    /// Audits a program under both loaders and shows it in every form; gives the processes.
    fn exec(&self, program: &str) -> Vec<Process> {
        let run = |loader: &str| {
            let start = Instant::now();
            let (process, peak) = memory::peak_of(|| {
                let system = System::new(self.host.clone(), Arc::new(self.tree.clone()));
                let subject = Subject::File { path: program.into(), start: Start::Loader };
                let store = Arc::new(Store::new(system, Layout::LITTLE_64, loader == MUSL));
                let dialect = Arc::new(Dialect::assumed(loader.into(), Layout::LITTLE_64, 62));
                let host = Arc::new(self.host.clone());
                let plan = Plan {
                    lookups: ldaudit::ld::Lookups::Record,
                    ..Plan::new(subject, Target::file(program), host, store, dialect)
                };
                let report = ldaudit::cli::audit::audit(&plan);
                let (out, style) = (&mut std::io::sink(), Style { verbosity: 1, ..Style::plain() });
                render::json::write(&report, out, false).expect("a sink takes everything");
                render::ldd::write(&report, out).expect("a sink takes everything");
                render::tree::write(&report, &style, out).expect("a sink takes everything");
                render::text::write(&report, &style, out).expect("a sink takes everything");
                report.process
            });
            let took = start.elapsed();
            assert!(took < LIMIT, "{loader} took {took:?}");
            assert!(peak < MEMORY, "{loader} took {} MiB", peak >> 20);
            // Giving up is a failure of the step.
            if process.gave_up() {
                assert_eq!(process.steps.first().expect("a step").outcome, Outcome::Failed);
            }
            eprintln!("{loader}: {took:?}, {} MiB, gave up: {}", peak >> 20, process.gave_up());
            process
        };
        vec![run(GLIBC), run(MUSL)]
    }
}

fn names(process: &Process) -> Vec<&BStr> {
    process.images.iter().map(|i| i.name.as_bstr()).collect()
}

#[test]
fn thousands_of_names_in_a_hundred_thousand_directories() {
    let _alone = alone();
    let mut b = Box_::new();
    let mut program = Sample::x86_64().entry(DT_RUNPATH, "a:".repeat(60_000) + &"/b/c:".repeat(20_000));
    for i in 0..4000 {
        program = program.needed(format!("libmissing{i}.so"));
    }
    b.file("/bin/p", &program);
    // Equal elements count once, so this much is no trouble.
    assert!(b.exec("/bin/p").iter().all(|p| !p.gave_up() || p.dialect().family.name() == "musl"));
    let list: String = (0..40_000).map(|i| format!("{i}:")).collect();
    let mut program = Sample::x86_64().entry(DT_RUNPATH, list);
    for i in 0..4000 {
        program = program.needed(format!("libmissing{i}.so"));
    }
    b.file("/bin/p", &program);
    assert!(b.exec("/bin/p").iter().all(Process::gave_up));
}

#[test]
fn a_chain_of_thousands_of_requesters() {
    let _alone = alone();
    // Each library is loaded by the one before it, so that each search walks all their run paths.
    let mut b = Box_::new();
    let length = 6000;
    for i in 0..length {
        let library = Sample::x86_64().entry(DT_RPATH, "/lib/x").needed(format!("lib{}.so", i + 1));
        b.file(if i == 0 { "/bin/p".into() } else { format!("/lib/x/lib{i}.so") }, &library);
    }
    for process in b.exec("/bin/p") {
        assert!(process.gave_up() || process.images.len() == length + 1);
        assert!(process.images.len() > 500);
    }
}

#[test]
fn a_thousand_libraries_that_all_need_each_other() {
    let _alone = alone();
    let mut b = Box_::new();
    let all: Vec<String> = (0..1000).map(|i| format!("lib{i}.so")).collect();
    let library = all.iter().fold(Sample::x86_64(), Sample::needed);
    for name in &all {
        b.file(format!("/lib/{name}"), &library.clone().soname(name));
    }
    b.host.env.set("LD_LIBRARY_PATH", "/lib");
    b.file("/bin/p", &library);
    for process in b.exec("/bin/p") {
        assert!(process.images.len() > 1000);
    }
}

#[test]
fn one_file_under_thousands_of_names() {
    let _alone = alone();
    let mut b = Box_::new();
    b.file("/lib/first.so", &Sample::x86_64().soname("first.so"));
    let mut program = Sample::x86_64().entry(DT_RUNPATH, "/lib");
    for i in 0..8000 {
        b.tree.add_hard_link(format!("/lib/alias{i}.so"), "/lib/first.so").expect("link");
        program = program.needed(format!("alias{i}.so"));
    }
    // And again, now by the names learnt.
    for i in 0..8000 {
        program = program.needed(format!("alias{i}.so"));
    }
    b.file("/bin/p", &program);
    let glibc = b.exec("/bin/p").remove(0);
    assert!(!glibc.gave_up());
    assert_eq!(glibc.images.len(), 3, "{:?}", names(&glibc));
    assert_eq!(glibc.images[2].names.len(), 8000);
}

#[test]
fn thousands_of_images_with_one_soname() {
    let _alone = alone();
    let mut b = Box_::new();
    let mut program = Sample::x86_64();
    let library = Sample::x86_64().soname("same.so").needed("same.so");
    for i in 0..6000 {
        b.file(format!("/lib/{i}.so"), &library);
        program = program.needed(format!("/lib/{i}.so"));
    }
    b.file("/bin/p", &program);
    let glibc = b.exec("/bin/p").remove(0);
    assert_eq!(glibc.images.len(), 6002);
    assert!(!glibc.gave_up());
}

#[test]
fn version_tables_with_equal_hashes() {
    let _alone = alone();
    let name = |i: usize| format!("{:a<20}{i}", "");
    let count = 30_000;
    let mut provider = Sample::x86_64().soname("libv.so");
    let mut user = Sample::x86_64().entry(DT_RUNPATH, "/lib").needed("libv.so");
    let (mut definitions, mut needs) = (Vec::new(), Vec::new());
    let file = user.string("libv.so") as u32;
    needs.extend(user.words(&[1 | (count as u32) << 16, file, 16, 0]));
    for i in 0..count {
        let text = provider.string(name(i)) as u32;
        let next = if i + 1 == count { 0 } else { 28 };
        // Verdef: version and flags, index and count, hash, aux, next; Verdaux: name, next.
        definitions.extend(provider.words(&[1, 1 << 16 | i as u32, 7, 20, next, text, 0]));
        let text = user.string(name(count - 1 - i)) as u32;
        let next = if i + 1 == count { 0 } else { 16 };
        needs.extend(user.words(&[7, 0, text, next]));
    }
    provider.put(0x20_0000, &definitions);
    provider.dynamic.push((DT_VERDEF, 0x20_0000));
    user.put(0x20_0000, &needs);
    user.dynamic.push((DT_VERNEED, 0x20_0000));
    let mut b = Box_::new();
    b.file("/lib/libv.so", &provider);
    b.file("/bin/p", &user);
    let glibc = b.exec("/bin/p").remove(0);
    assert_eq!(glibc.steps[0].error, None);
    // The same with names that are not there: as many messages as anyone will read.
    let mut b = Box_::new();
    b.file("/lib/libv.so", &Sample::x86_64().soname("libv.so"));
    b.file("/bin/p", &user);
    let glibc = b.exec("/bin/p").remove(0);
    assert!(glibc.steps[0].warnings.len() <= 1000);
}

#[test]
fn preloads_and_auxiliaries_by_the_thousand() {
    let _alone = alone();
    let mut b = Box_::new();
    b.tree.add_file("/etc/ld.so.preload", "x ".repeat(500_000).into_bytes()).expect("add");
    b.host.env.set("LD_PRELOAD", "y:".repeat(60_000));
    b.host.env.set("LD_LIBRARY_PATH", (0..20_000).map(|i| format!("/{i}:")).collect::<String>());
    let mut program = Sample::x86_64();
    for i in 0..4000 {
        b.file(format!("/aux/{i}"), &Sample::x86_64().entry(DT_AUXILIARY, format!("/aux/{}", i + 1)));
        program = program.entry(DT_AUXILIARY, format!("/aux/{i}"));
    }
    b.file("/bin/p", &program);
    b.exec("/bin/p");
}

#[test]
fn tokens_that_multiply() {
    let _alone = alone();
    let mut b = Box_::new();
    let deep = format!("/{}", "d/".repeat(800));
    let list: String = (0..20_000).map(|i| format!("$ORIGIN/{i}:")).collect::<String>() + &"$ORIGIN".repeat(3000);
    let mut program = Sample::x86_64().entry(DT_RUNPATH, &list).needed("$ORIGIN".repeat(1000)).needed("libx.so");
    for i in 0..50 {
        b.file(format!("{deep}lib{i}.so"), &Sample::x86_64().entry(DT_RPATH, &list).needed("libz.so"));
        program = program.needed(format!("$ORIGIN/lib{i}.so"));
    }
    b.file(format!("{deep}p"), &program);
    b.exec(&format!("{deep}p"));
}

#[test]
fn whatever_is_asked_of_a_process_it_answers() {
    let _alone = alone();
    let mut b = Box_::new();
    b.file("/bin/p", &Sample::x86_64().needed("libmissing.so"));
    b.file("/bin/q", &Sample::x86_64());
    b.tree.add_file("/bin/script", *b"#!/bin/sh\n").expect("add");
    b.tree.add_file("/bin/empty", *b"").expect("add");
    b.tree.add_file("/bin/magic", *b"\x7fELF").expect("add");
    for path in ["/bin/script", "/bin/empty", "/bin/magic"] {
        b.tree.set_mode(path, 0o755).expect("mode");
    }
    b.tree.add_failing("/bin/failing", ldaudit::system::Errno::EIO).expect("add");
    b.tree.add_link("/bin/loop", "loop").expect("add");
    let odd: [&[u8]; 13] = [
        b"",
        b"/",
        b".",
        b"..",
        b"a\0b",
        b"$",
        b"${",
        b"$ORIGIN",
        b"\xff\xfe",
        b"\x1b[31m",
        b"/bin",
        b"libc.so",
        b"./x",
    ];
    for loader in [GLIBC, MUSL] {
        for start in [Start::Kernel, Start::Loader] {
            for program in [
                "/bin/p",
                "/bin/q",
                "/bin/script",
                "/bin/empty",
                "/bin/magic",
                "/bin/failing",
                "/bin/loop",
                "/bin",
                "/none",
                "",
            ] {
                let mut process = b.process(loader);
                process.exec(program.into(), program.into(), start);
                for name in odd {
                    for caller in [None, Some(ldaudit::ld::ImageId(7))] {
                        let request = OpenRequest { caller, ..OpenRequest::new(BString::from(name)) };
                        process.dlopen(&request);
                    }
                }
            }
            // And a process in which nothing was started.
            let mut process = b.process(loader);
            for name in odd {
                process.dlopen(&OpenRequest::new(BString::from(name)));
            }
            assert_eq!(process.steps.len(), odd.len());
        }
    }
}

#[test]
fn what_the_kernel_refuses_is_said_in_its_words() {
    let _alone = alone();
    let good = Sample::x86_64().interpreter(GLIBC);
    let error = |sample: &dyn Fn(&mut Vec<u8>)| {
        let mut b = Box_::new();
        let mut bytes = good.build();
        sample(&mut bytes);
        b.file(GLIBC, &Sample::x86_64());
        b.tree.add_file("/bin/p", bytes).expect("add");
        b.tree.set_mode("/bin/p", 0o755).expect("mode");
        let mut process = b.process(GLIBC);
        process.exec("/bin/p".into(), "/bin/p".into(), Start::Kernel);
        process.steps[0].error.as_ref().map(|e| e.to_string())
    };
    let refused = Some("/bin/p: cannot execute: Exec format error".to_owned());
    assert_eq!(error(&|_| ()), None);
    assert_eq!(error(&|b| b[16] = 4), refused, "e_type");
    assert_eq!(error(&|b| b[18] = 3), refused, "e_machine");
    assert_eq!(error(&|b| b[56..58].copy_from_slice(&[0, 0])), refused, "no program headers");
    assert_eq!(error(&|b| b[56..58].copy_from_slice(&1171u16.to_le_bytes())), refused, "more than 64 KiB of them");
    assert_eq!(error(&|b| b.truncate(100)), refused);
    assert_eq!(error(&|b| b[64 + 2 * 56 + 32] = 3), refused, "an interpreter without NUL");
}

#[test]
fn segments_that_cannot_be_mapped_are_refused() {
    let _alone = alone();
    let error = |sample: Sample, version: (u16, u16, u16)| {
        let mut b = Box_::new();
        b.file("/bin/p", &Sample::x86_64());
        b.file("/x.so", &sample);
        let system = System::new(b.host.clone(), Arc::new(b.tree.clone()));
        let dialect = Dialect::assumed(GLIBC.into(), Layout::LITTLE_64, 62).with_version(version);
        let store = Store::new(system, Layout::LITTLE_64, false);
        let mut process = Process::new(Arc::new(store), Arc::new(dialect), Arc::new(b.host.clone()), None);
        process.exec("/bin/p".into(), "/bin/p".into(), Start::Loader);
        let step = process.dlopen(&OpenRequest::new("/x.so"));
        process.steps[step.index()].error.as_ref().map(|e| e.to_string())
    };
    let with = |header: Header| {
        let mut s = Sample::x86_64();
        s.put(0x5fff, b"\0");
        s.headers.push(header);
        s
    };
    let now = (2, 36, 0);
    let said = |text: &str| Some(format!("/x.so: {text}"));
    assert_eq!(error(with(Header { address: 0x8000, ..Header::at(PT_LOAD, 0x3000, 0x1000) }), now), None);
    let overlap = with(Header { address: 0x1000, ..Header::at(PT_LOAD, 0x3000, 0x1000) });
    assert_eq!(error(overlap.clone(), now), said("ELF load command address/offset not page-aligned"));
    assert_eq!(error(overlap, (2, 31, 0)), said("cannot change memory protections"));
    let huge = with(Header { memory_size: 1 << 47, address: 0x8000, ..Header::at(PT_LOAD, 0x3000, 0x1000) });
    assert_eq!(error(huge, now), said("failed to map segment from shared object"));
    let empty = with(Header { file_size: 0, ..Header::at(PT_DYNAMIC, 0x3000, 0) });
    assert_eq!(error(empty.clone(), now), said("object file has no dynamic section"));
    assert_eq!(error(empty, (2, 31, 0)), None);
    let nowhere = with(Header { address: 0, ..Header::at(PT_DYNAMIC, 0x3000, 16) });
    assert_eq!(error(nowhere, now), said("object file has no dynamic section"));
}
