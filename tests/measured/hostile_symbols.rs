//! Damaged relocation, hash, symbol and version tables: every lookup ends, in bounded time and memory, and what is damaged
//! is told.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::alone;
use crate::support::memory;
use bstr::ByteSlice;
use ldaudit::elf::{Facts, Layout, Reader};
use ldaudit::findings::loading::{self, Knowledge};
use ldaudit::findings::{DAMAGED_FILE, Finding};
use ldaudit::fixture::{Family, Fixture, Loader};
use ldaudit::ld::{Dialect, Lookups, OpenRequest, Process, Start, Store};
use ldaudit::system::{Host, System, Tree};

const TIME: Duration = Duration::from_secs(10);
const MEMORY: usize = 64 << 20;

/// The library that is damaged, and those around it: it is looked through, and looks up itself.
fn files(hash: &str) -> String {
    format!(
        "exe /run needed=liba.so,libb.so runpath=/d use=f:lazy,v:data,g\n\
         so /d/liba.so runpath=/d needed=libb.so hash={hash} verdef=V1 def=f@@V1,v@@V1:object,g use=h@V2:lazy,h@V2,w:data,f \
         verneed=libb.so:V2\n\
         so /d/libb.so verdef=V2 def=h@@V2,w,f,g,v:object\n"
    )
}

const DT_RELA: u64 = 7;
const DT_RELASZ: u64 = 8;
const DT_PLTRELSZ: u64 = 2;
const DT_JMPREL: u64 = 23;

/// A file of which single words are changed.
struct Patient {
    bytes: Vec<u8>,
    facts: Facts,
}

impl Patient {
    fn new(fixture: &Fixture, loader: Loader) -> Patient {
        let tree = fixture.tree(loader).expect("a tree");
        let system = System::new(Host::bare(), Arc::new(tree));
        let file = system.open("/d/liba.so".into()).expect("the library");
        let bytes = file.read_all(1 << 20).expect("its bytes");
        let facts = Facts::read(&mut Reader::new(&file), Layout::LITTLE_64).expect("an ELF file");
        Patient { bytes, facts }
    }

    /// Sets a number of `size` bytes at an address.
    fn put(&mut self, address: Option<u64>, at: u64, size: usize, value: u64) {
        let address = address.expect("the table is there") + at;
        let (offset, _) = self.facts.offset_of(address).expect("it lies in the file");
        self.bytes[offset as usize..offset as usize + size].copy_from_slice(&value.to_le_bytes()[..size]);
    }

    /// Sets every word of a stretch.
    fn fill(&mut self, address: Option<u64>, from: u64, words: u64, value: u64) {
        for n in 0..words {
            self.put(address, from + 4 * n, 4, value);
        }
    }

    /// Changes the value of an entry of the dynamic array.
    fn entry(&mut self, tag: u64, value: u64) {
        let long = |at: usize| u64::from_le_bytes(self.bytes[at..at + 8].try_into().expect("eight bytes"));
        let table = (0..self.bytes.len() - 16).step_by(8);
        let known = [self.facts.dynamic.rela, self.facts.dynamic.plt_relocations, self.facts.dynamic.rela_size];
        let known = known.into_iter().chain([self.facts.dynamic.plt_relocation_size, self.facts.dynamic.string_size]);
        let known: Vec<u64> = known.flatten().collect();
        let found = table.into_iter().find(|at| long(*at) == tag && known.contains(&long(*at + 8)));
        let at = found.unwrap_or_else(|| panic!("no entry {tag:#x}")) + 8;
        self.bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }
}

type Harm = fn(&mut Patient);

/// Every damage by name; true when it has to be told as damage of the file.
fn harms(hash: &str) -> Vec<(&'static str, bool, Harm)> {
    let mut out: Vec<(&'static str, bool, Harm)> = vec![
        ("nothing", false, |_| {}),
        ("relocations against absent symbols", true, |p| p.put(p.facts.dynamic.rela, 12, 4, 0xffff_ffff)),
        ("calls of absent symbols", true, |p| p.put(p.facts.dynamic.plt_relocations, 12, 4, 0x7fff_ffff)),
        ("4 GiB of relocations", true, |p| p.entry(DT_RELASZ, 24 * (1 << 28))),
        ("relocations without end", true, |p| p.entry(DT_RELASZ, u64::MAX)),
        ("4 GiB of calls", true, |p| p.entry(DT_PLTRELSZ, 24 * (1 << 28))),
        ("relocations nowhere", true, |p| p.entry(DT_RELA, 1 << 40)),
        ("calls nowhere", true, |p| p.entry(DT_JMPREL, u64::MAX - 8)),
        ("a name past the end", false, |p| {
            for n in 1..8 {
                p.put(p.facts.dynamic.symbol_table, 24 * n, 4, 0xffff_fff0);
            }
        }),
        ("a version that nobody defines", false, |p| {
            for n in 1..8 {
                p.put(p.facts.dynamic.version_symbols, 2 * n, 2, 0x7ffe);
            }
        }),
        ("versions in a circle", false, |p| p.put(p.facts.dynamic.version_needs, 28, 4, 0u64.wrapping_sub(16))),
        ("definitions far away", false, |p| p.put(p.facts.dynamic.version_definitions, 16, 4, 0xffff_ffff)),
    ];
    if hash == "gnu" {
        out.extend::<[(_, _, Harm); 6]>([
            ("no buckets", false, |p| p.put(p.facts.dynamic.gnu_hash, 0, 4, 0)),
            ("4 G buckets", false, |p| p.put(p.facts.dynamic.gnu_hash, 0, 4, 0xffff_ffff)),
            ("a first symbol far away", false, |p| p.put(p.facts.dynamic.gnu_hash, 4, 4, 0xffff_ffff)),
            ("a Bloom filter of no words", false, |p| p.put(p.facts.dynamic.gnu_hash, 8, 4, 0)),
            ("a Bloom filter of 4 G words", false, |p| p.put(p.facts.dynamic.gnu_hash, 8, 4, 0xffff_ffff)),
            ("chains without end", false, |p| p.fill(p.facts.dynamic.gnu_hash, 24, 8, 0x7fff_fffe)),
        ]);
    } else {
        out.extend::<[(_, _, Harm); 4]>([
            ("no buckets", false, |p| p.put(p.facts.dynamic.hash, 0, 4, 0)),
            ("4 G buckets", false, |p| p.put(p.facts.dynamic.hash, 0, 4, 0xffff_ffff)),
            ("4 G chains", false, |p| p.put(p.facts.dynamic.hash, 4, 4, 0xffff_ffff)),
            ("chains in a circle", false, |p| p.fill(p.facts.dynamic.hash, 8, 6, 1)),
        ]);
    }
    out
}

/// A process with the damaged file, and what is found wrong with it.
fn run(fixture: &Fixture, loader: Loader, damaged: &[u8]) -> (Process, Vec<Finding>) {
    let mut tree: Tree = fixture.tree(loader).expect("a tree");
    tree.add_file("/d/liba.so", damaged.to_vec()).expect("replace");
    let host = Host::bare();
    let system = System::new(host.clone(), Arc::new(tree));
    let interpreter = loader.family.interpreter().as_bytes().as_bstr();
    let dialect = Dialect::read(&system, interpreter, Layout::LITTLE_64, 62);
    let store = Arc::new(Store::new(system, Layout::LITTLE_64, loader.family == Family::Musl));
    let process = Process::new(store, Arc::new(dialect), Arc::new(host), None);
    let mut process = process.with_lookups(Lookups::Record);
    process.exec("/run".into(), "/run".into(), Start::Kernel);
    process.dlopen(&OpenRequest::new("/d/liba.so"));
    let known = Knowledge::none();
    let findings = loading::check(&process, &known);
    (process, findings)
}

#[test]
fn damaged_tables_end_every_lookup_and_are_told() {
    let _alone = alone();
    let mut told = 0;
    for hash in ["gnu", "sysv"] {
        let fixture = Fixture::parse(files(hash).as_bytes()).unwrap_or_else(|p| panic!("{p:?}"));
        for loader in [Loader::glibc(2, 31), Loader::glibc(2, 43), Loader::musl(1, 2, 3)] {
            for (what, is_damage, harm) in harms(hash) {
                let mut patient = Patient::new(&fixture, loader);
                harm(&mut patient);
                let start = Instant::now();
                let ((process, findings), peak) = memory::peak_of(|| run(&fixture, loader, &patient.bytes));
                let took = start.elapsed();
                assert!(took < TIME && peak < MEMORY, "{what} [{hash}, {loader}]: {took:?}, {} MiB", peak >> 20);
                if what == "nothing" {
                    assert!(process.steps.iter().all(|s| s.error.is_none()), "[{loader}] {:?}", process.steps);
                    assert!(process.bindings.len() > 6, "[{loader}] few bindings");
                    assert_eq!(findings, [], "[{loader}]");
                }
                let damage = findings.iter().find(|f| f.rule == DAMAGED_FILE);
                if is_damage {
                    let summary = &damage.unwrap_or_else(|| panic!("{what} [{hash}, {loader}] is not told")).summary;
                    assert!(summary.contains("liba.so") && summary.contains("DT_"), "{what}: {summary}");
                    told += 1;
                }
            }
        }
    }
    assert!(told >= 40, "{told}");
}
