//! The bodies of the fuzz targets (`fuzz/README.md`) over their seeds and lightly damaged copies of these, so that an
//! ordinary test run notices when one breaks.
//!
//! `LDAUDIT_FUZZ_SEEDS=DIRECTORY` makes `seeds` write them there, one directory for each target: `fuzz/seeds` does it.

use std::collections::BTreeSet;
use std::path::Path;

use crate::alone;
use crate::support::{random, sample, targets, texts};
use ldaudit::elf::Layout;
use ldaudit::fixture::place::Thing;
use ldaudit::fixture::{Fixture, Loader};
use ldaudit::ld::cache::{Format, encode};
use random::Random;
use targets::TARGETS;

/// Longest seed: small files are damaged in more interesting places.
const LONGEST: usize = 16 << 10;

/// Texts of the small fixtures of this repository.
fn fixtures() -> Vec<Vec<u8>> {
    let mut out: Vec<Vec<u8>> = walkdir::WalkDir::new(concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures"))
        .sort_by_file_name()
        .into_iter()
        .filter_map(Result::ok)
        .filter(|e| e.path().extension().is_some_and(|x| x == "ld"))
        .map(|e| std::fs::read(e.path()).expect("a fixture"))
        .filter(|text| text.len() < 4000)
        .collect();
    assert!(out.len() > 100, "{} fixtures", out.len());
    // No fixture has all words of the language.
    out.push(
        b"so /a/l.so def=f@@V:weak,g@V:object use=h@W:lazy verneed=l.so:W:weak verdef=X gnu_stack=no isa=v3 abinote=6.1 \
          build_id=0aff align=0x10000 skew=0x1000 tls=8 relr sections=no hash=both wrapper=tail pad=5 strings=\"a b\"\n\
          file /e empty\nfile /h hex 00ff\nfile /z size=10\ndamage /z at=1 hex=aa\ndamage /a/l.so e_phnum=3\n\
          muslpath /m\nsecure yes\nproc no\ncpu v4\nunset A\ncwd /a\nexec_via_loader --library-path /a /a/l.so\n"
            .to_vec(),
    );
    out
}

/// Seeds of a target, each once.
fn seeds(target: &str) -> BTreeSet<Vec<u8>> {
    let mut out = BTreeSet::new();
    match target {
        "elf_facts" | "process" => {
            for (is_64, big_endian) in [(true, false), (true, true), (false, false), (false, true)] {
                let made = sample::made(Layout { is_64, big_endian });
                out.insert(made.build());
                out.insert(made.interpreter("/lib64/ld-linux-x86_64.so.2").build());
            }
            for (path, bytes) in files_of_fixtures() {
                // The closures of many fixtures look alike to a reader of single files.
                if bytes.starts_with(b"\x7fELF") && !path.contains("/lib/") && out.len() < 150 {
                    out.insert(bytes);
                }
            }
        }
        "ld_so_cache" => {
            out.extend(
                files_of_fixtures().into_iter().filter(|(p, _)| p == "/etc/ld.so.cache").map(|(_, bytes)| bytes),
            );
            for format in [Format::Old, Format::Compat, Format::New] {
                let records = texts::cache_records();
                for (big_endian, generator) in [(false, None), (true, Some("ldconfig".into()))] {
                    out.insert(encode(&records, format, big_endian, generator).expect("a small file"));
                }
            }
        }
        "fixture_language" => out.extend(fixtures()),
        "ld_so_conf" => out.extend(texts::CONFIGURATION.iter().map(|text| text.to_vec())),
        "python_metadata" => {
            for (kind, text) in texts::PYTHON {
                out.insert([&[*kind], *text].concat());
            }
        }
        other => panic!("no seeds for {other}"),
    }
    out.retain(|seed| (1..=LONGEST).contains(&seed.len()));
    out
}

/// Path and bytes of every file that a fixture makes, forged ELF files among them.
fn files_of_fixtures() -> Vec<(String, Vec<u8>)> {
    let mut out = Vec::new();
    for text in fixtures() {
        let Ok(fixture) = Fixture::parse(&text) else { continue };
        for placed in fixture.files(Loader::glibc(2, 36)).unwrap_or_default() {
            if let Thing::File { bytes, .. } = placed.what {
                out.push((placed.path.to_string(), bytes));
            }
        }
    }
    out
}

#[test]
fn every_target_has_seeds() {
    let _alone = alone();
    let directory = std::env::var_os("LDAUDIT_FUZZ_SEEDS");
    for target in &TARGETS {
        let seeds = seeds(target.name);
        assert!(seeds.len() >= 5, "{} seeds for {}", seeds.len(), target.name);
        let Some(directory) = &directory else { continue };
        let directory = Path::new(directory).join(target.name);
        std::fs::create_dir_all(&directory).expect("a directory for seeds");
        for (n, seed) in seeds.iter().enumerate() {
            std::fs::write(directory.join(format!("seed-{n:03}")), seed).expect("a seed is written");
        }
        println!("{}: {} seeds in {}", target.name, seeds.len(), directory.display());
    }
}

#[test]
fn every_seed_holds_and_so_do_damaged_copies() {
    let _alone = alone();
    for target in &TARGETS {
        let seeds: Vec<Vec<u8>> = seeds(target.name).into_iter().collect();
        for (n, seed) in seeds.iter().enumerate() {
            assert!(!seed.is_empty());
            targets::run(target.name, seed);
            let mut random = Random::new(n as u64);
            for _ in 0..3 {
                let mut copy = seed.clone();
                for _ in 0..=random.below(4) {
                    let at = random.below(copy.len() as u64) as usize;
                    match random.below(4) {
                        0 => copy.truncate(at + 1),
                        1 => copy[at] = random.next() as u8,
                        2 => copy[at] ^= 1 << random.below(8),
                        _ => {
                            let other = random.pick(&seeds).expect("there are seeds");
                            let from = random.below(other.len() as u64) as usize;
                            let end = (from + random.below(60) as usize).min(other.len());
                            copy.splice(at..at, other[from..end].iter().copied());
                        }
                    }
                }
                targets::run(target.name, &copy);
            }
        }
    }
}
