//! Damaged caches, configuration, Python metadata and fixtures: no panic, no hang. The same seed gives the same damage.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use crate::support::{fixtures, random, texts};
use random::Random;

/// What one text may take in an unoptimised build on a busy machine.
const LIMIT: Duration = Duration::from_secs(10);

/// Damages texts and hands each to a reader.
fn damage(seed: u64, count: u64, originals: &[Vec<u8>], read: impl Fn(&[u8], &mut Random)) {
    for n in 0..count {
        let mut random = Random::new(seed ^ n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut text = random.pick(originals).expect("there are originals").clone();
        for _ in 0..=random.below(6) {
            mutate(&mut text, originals, &mut random);
        }
        text.truncate(1 << 20);
        let start = Instant::now();
        let result = catch_unwind(AssertUnwindSafe(|| read(&text, &mut random)));
        let took = start.elapsed();
        if result.is_err() || took > LIMIT {
            let saved = std::env::temp_dir().join(format!("ldaudit-text-{seed}-{n}"));
            std::fs::write(&saved, &text).expect("save");
            panic!("text {n} of seed {seed}: panic {}, {took:?}; saved as {}", result.is_err(), saved.display());
        }
    }
}

fn mutate(text: &mut Vec<u8>, originals: &[Vec<u8>], random: &mut Random) {
    if text.is_empty() {
        text.extend_from_slice(b"x");
    }
    let len = text.len() as u64;
    let at = random.below(len) as usize;
    match random.below(9) {
        0 => text[at] ^= 1 << random.below(8),
        1 => text[at] = [0, b'\n', b'/', b' ', b'"', b',', b'=', b'$', 0xff][random.below(9) as usize],
        2 => text.truncate(at),
        3 => {
            let end = (at + random.below(40) as usize).min(text.len());
            text.drain(at..end);
        }
        4 => {
            // A piece again, perhaps many times.
            let end = (at + 1 + random.below(80) as usize).min(text.len());
            let piece = text[at..end].repeat(1 + random.below(50) as usize);
            text.splice(at..at, piece);
        }
        5 => {
            let other = random.pick(originals).expect("there are originals");
            let from = random.below(other.len().max(1) as u64) as usize;
            let end = (from + random.below(100) as usize).min(other.len());
            text.splice(at..at, other[from.min(end)..end].iter().copied());
        }
        6 => {
            let long = [b'a', b'/', b'$', b' '][random.below(4) as usize];
            text.splice(at..at, std::iter::repeat_n(long, random.below(70_000) as usize));
        }
        7 => {
            // A number of four bytes: small, huge, near the old one.
            let value = [random.below(40) as u32, u32::MAX >> random.below(32), len as u32][random.below(3) as usize];
            for (byte, new) in text.iter_mut().skip(at / 4 * 4).zip(value.to_le_bytes()) {
                *byte = new;
            }
        }
        _ => text.swap(at, random.below(len) as usize),
    }
}

#[test]
fn caches() {
    let mut originals: Vec<Vec<u8>> = vec![b"ld.so-1.7.0\0\0\0\0\0".to_vec()];
    // The cache of this machine, and a small one, in which damage hits the headers more often.
    originals.extend(std::fs::read("/etc/ld.so.cache").ok().filter(|c| c.len() < 200_000));
    use ldaudit::ld::cache::{Format, encode};
    for format in [Format::Old, Format::Compat, Format::New] {
        originals.extend(encode(&texts::cache_records(), format, false, None).ok());
    }
    assert!(originals.len() >= 4);
    damage(1, 2000, &originals, |text, _| texts::cache(text));
}

#[test]
fn configuration() {
    let originals: Vec<Vec<u8>> = texts::CONFIGURATION.iter().map(|text| text.to_vec()).collect();
    damage(2, 3000, &originals, |text, _| texts::configuration(text));
}

#[test]
fn python_metadata() {
    let originals: Vec<Vec<u8>> = texts::PYTHON.iter().map(|(_, text)| text.to_vec()).collect();
    damage(3, 4000, &originals, |text, random| texts::python(random.below(texts::PYTHON_KINDS.into()) as u8, text));
}

#[test]
fn damaged_fixtures() {
    let all = fixtures::all().into_iter().map(|path| std::fs::read(path).expect("fixture"));
    let originals: Vec<Vec<u8>> = all.filter(|text| text.len() < 4000).collect();
    assert!(originals.len() > 100, "{} fixtures", originals.len());
    damage(4, 1500, &originals, |text, _| texts::fixture(text));
}
