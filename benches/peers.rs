//! `ldaudit` beside its peers, on real input, in one run: time, memory, and what is read from a cold disk.
//!
//! Every round runs each command once, one after the other, so that whatever else the machine does meets all of them alike;
//! of the rounds the median and the least are told. CPU time is what the kernel charges to the process and its threads,
//! and is the figure to trust on a busy machine; wall time shows what threads bring on an idle one.
//!
//! `benches/run` fetches the peers and the environment and starts this. `benches/README.md` has the figures.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bstr::ByteSlice;
use clap::Parser;
use ldaudit::cli::args::Args;
use ldaudit::cli::audit;
use ldaudit::cli::loaders::Loaders;
use ldaudit::elf::{Facts, Reader};
use ldaudit::ld::{Lookups, Process, Start};
use ldaudit::system::System;

mod references;
mod runs;

use runs::{Contender, Run};

/// Runs the benches.
#[derive(Parser)]
struct Options {
    /// The Python environment with torch 2.4.
    #[arg(long = "box")]
    environment: PathBuf,
    /// Runs of each command.
    #[arg(long, default_value_t = 60)]
    rounds: usize,
    /// The greatest number of references that are looked up, as a power of ten (seven: two files of half a gigabyte).
    #[arg(long, default_value_t = 6)]
    references: u32,
    /// What cargo tells every bench.
    #[arg(long, hide = true)]
    bench: bool,
}

/// Median and least of some values.
fn summary(mut values: Vec<f64>) -> (f64, f64) {
    values.sort_by(f64::total_cmp);
    (values[values.len() / 2], values[0])
}

/// What an interpreter is asked.
const ASK: &str = include_str!("../src/discover/python/ask.py");

fn os(text: &str) -> &OsStr {
    OsStr::new(text)
}

fn milliseconds(d: Duration) -> f64 {
    d.as_secs_f64() * 1000.0
}

/// Runs the contenders in turn and prints a row for each; the first one is ours. Gives back median and least of wall time.
fn race(title: &str, contenders: &[Contender], rounds: usize) -> Vec<(f64, f64)> {
    println!("\n### {title}\n");
    println!("| command | CPU ms, median (least) | wall ms, median (least) | peak MiB | ours / this: CPU, wall |");
    println!("| --- | --- | --- | --- | --- |");
    let mut runs: Vec<Vec<Run>> = contenders.iter().map(|_| Vec::new()).collect();
    for contender in contenders {
        // Once for the page cache.
        contender.run();
    }
    for _ in 0..rounds {
        for (contender, runs) in contenders.iter().zip(&mut runs) {
            runs.push(contender.run());
        }
    }
    let cpu: Vec<(f64, f64)> = runs.iter().map(|r| summary(r.iter().map(|r| milliseconds(r.cpu)).collect())).collect();
    let wall: Vec<(f64, f64)> =
        runs.iter().map(|r| summary(r.iter().map(|r| milliseconds(r.wall)).collect())).collect();
    for (n, contender) in contenders.iter().enumerate() {
        let peak = runs[n].iter().map(|r| r.peak).max().unwrap_or_default() as f64 / 1024.0;
        let ratio =
            if n == 0 { String::new() } else { format!("{:.2}, {:.2}", cpu[0].0 / cpu[n].0, wall[0].0 / wall[n].0) };
        println!(
            "| {} | {:.1} ({:.1}) | {:.1} ({:.1}) | {peak:.1} | {ratio} |",
            contender.label, cpu[n].0, cpu[n].1, wall[n].0, wall[n].1
        );
    }
    wall
}

fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|d| d.join(program)).find(|p| p.is_file())
}

/// Every regular ELF file below a directory, sorted.
fn elf_files(directory: &Path) -> Vec<PathBuf> {
    let mut out = Vec::new();
    let mut pending = vec![directory.to_owned()];
    while let Some(directory) = pending.pop() {
        for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
            let Ok(kind) = entry.file_type() else { continue };
            let mut magic = [0; 4];
            if kind.is_dir() {
                pending.push(entry.path());
            } else if kind.is_file()
                && File::open(entry.path()).and_then(|mut f| f.read_exact(&mut magic)).is_ok()
                && magic == *b"\x7fELF"
            {
                out.push(entry.path());
            }
        }
    }
    out.sort();
    out
}

/// One file of a closure and the bytes of its tables that the simulation touches, in whole pages.
struct Touched {
    path: PathBuf,
    bytes: u64,
}

/// The files of the closure of a file. Those that every process maps (this one does) are left out: they are in the page
/// cache before anything is audited.
fn touched(path: &Path) -> Vec<Touched> {
    // Before the tables of the closure are mapped here.
    let mapped = std::fs::read_to_string("/proc/self/maps").expect("/proc/self/maps");
    let args = Args::parse_from([OsStr::new("ldaudit"), OsStr::new("--format"), OsStr::new("ldd"), path.as_os_str()]);
    let system = System::live();
    let loaders = Loaders::new(&args, &system);
    let plan = audit::plan_file(&loaders, path.as_os_str().as_bytes().as_bstr()).unwrap_or_else(|e| panic!("{e}"));
    let images = plan.simulate(&plan.host).process.images;
    assert!(images.len() > 20, "the closure has {} images only", images.len());
    let mut out: Vec<Touched> = Vec::new();
    for image in images {
        let real = image.object.real_path();
        let path = real.to_path().expect("a path").to_owned();
        if !mapped.contains(&*real.to_str_lossy()) && !out.iter().any(|t| t.path == path) {
            let file = system.open(real).expect("an image");
            let mut reader = Reader::new(&file);
            Facts::read(&mut reader, plan.store.layout()).expect("an ELF file");
            out.push(Touched { path, bytes: reader.bytes_read().next_multiple_of(4096) });
        }
    }
    out
}

/// Least wall time of putting the closure of a file together in this process, nothing remembered from before: with every
/// candidate that was tried or not reached, or with the decisions alone.
fn closure(path: &Path, attempts: bool, rounds: usize) -> Duration {
    let args = Args::parse_from([OsStr::new("ldaudit"), path.as_os_str()]);
    let name = path.as_os_str().as_bytes().as_bstr();
    let once = || {
        let system = System::live();
        let start = Instant::now();
        let loaders = Loaders::new(&args, &system);
        let plan = audit::plan_file(&loaders, name).unwrap_or_else(|e| panic!("{e}"));
        let process = Process::new(plan.store.clone(), plan.dialect.clone(), plan.host.clone(), plan.cache.clone());
        let process = process.with_lookups(Lookups::None).as_a_list();
        let mut process = if attempts { process } else { process.without_attempts() };
        process.exec(name, name, Start::Loader);
        assert!(process.images.len() > 20, "the closure has {} images only", process.images.len());
        start.elapsed()
    };
    (0..rounds).map(|_| once()).min().unwrap_or_default()
}

/// Bytes of a file that are in the page cache.
fn cached(path: &Path) -> u64 {
    let file = File::open(path).expect("an image");
    // SAFETY: nothing is read through it.
    let map = unsafe { memmap2::Mmap::map(&file) }.expect("a map");
    let mut pages = vec![0u8; map.len().div_ceil(4096)];
    // SAFETY: the map is as long as told, and there is a byte for each of its pages.
    let result = unsafe { libc::mincore(map.as_ptr().cast_mut().cast(), map.len(), pages.as_mut_ptr()) };
    assert_eq!(result, 0, "mincore");
    pages.iter().filter(|p| **p & 1 == 1).count() as u64 * 4096
}

/// Empties the page cache; false when that is not allowed.
fn drop_caches() -> bool {
    // SAFETY: no arguments, no memory.
    unsafe { libc::sync() };
    std::fs::write("/proc/sys/vm/drop_caches", "3").is_ok()
}

fn main() {
    let options = Options::parse();
    let ours = Path::new(env!("CARGO_BIN_EXE_ldaudit"));
    let site = std::fs::read_dir(options.environment.join("lib"))
        .expect("lib")
        .flatten()
        .map(|e| e.path().join("site-packages"))
        .find(|p| p.join("torch").is_dir())
        .expect("an environment with torch");
    let library = site.join("torch/lib/libtorch_cuda.so");
    let libtree = find("libtree");
    let rldd = find("rldd");
    let peers = |words: &[&OsStr]| -> Vec<Contender> {
        let mut out = Vec::new();
        for (name, path) in [("libtree", &libtree), ("rldd", &rldd), ("ldd", &find("ldd"))] {
            match path {
                Some(path) => {
                    let words: Vec<&OsStr> = std::iter::once(path.as_os_str()).chain(words.iter().copied()).collect();
                    out.push(Contender::new(name, &words));
                }
                None => println!("\n{name} is missing and left out."),
            }
        }
        out
    };
    let us = |label: &str, options: &[&str], files: &[&OsStr]| -> Contender {
        let words: Vec<&OsStr> = std::iter::once(ours.as_os_str())
            .chain(options.iter().map(|o| OsStr::new(*o)))
            .chain(files.iter().copied())
            .collect();
        Contender::new(label, &words)
    };

    let one = [library.as_os_str()];
    let mut field = vec![us("`ldaudit --format ldd`", &["--format", "ldd"], &one)];
    field.extend(peers(&one));
    race("(a) The closure of torch 2.4's libtorch_cuda.so", &field, options.rounds);
    let mut field = vec![us("`ldaudit --format json`", &["--format", "json"], &one)];
    field.extend(peers(&one));
    race("(a) The same with every attempt recorded, as JSON", &field, options.rounds);

    let [all, decisions] = [true, false].map(|attempts| milliseconds(closure(&library, attempts, options.rounds)));
    println!("\nIn one process: {decisions:.2} ms with the decisions, {all:.2} ms with every candidate.");

    let python = options.environment.join("bin/python");
    let environment = options.environment.to_str().expect("UTF-8");
    let wall = race(
        "(b) `ldaudit torch`",
        &[
            us("`ldaudit torch --python BOX`", &["torch", "--python", environment], &[]),
            us("`ldaudit torch --python BOX --no-exec`", &["torch", "--no-exec", "--python", environment], &[]),
            // The very question that is put to it, and the start of Python without one.
            Contender::new("asking the interpreter", &[python.as_os_str(), os("-BIS"), os("-c"), os(ASK)]),
            Contender::new("`python -I -S -c pass`", &[python.as_os_str(), os("-IS"), os("-c"), os("pass")]),
        ],
        options.rounds,
    );
    let beyond = |n: usize| format!("{:.1} ms ({:.1})", wall[0].0 - wall[n].0, wall[0].1 - wall[n].1);
    println!(
        "\nWall time beyond what asking the interpreter costs: {}; beyond a start of Python: {}.",
        beyond(2),
        beyond(3)
    );

    for (title, directory) in
        [("of that environment", options.environment.as_path()), ("in /usr/bin", Path::new("/usr/bin"))]
    {
        let files = elf_files(directory);
        let files: Vec<&OsStr> = files.iter().map(|f| f.as_os_str()).collect();
        let mut field = vec![
            us("`ldaudit --format ldd --threads 2`", &["--format", "ldd", "--threads", "2"], &files),
            us("`ldaudit --format ldd --threads 1`", &["--format", "ldd", "--threads", "1"], &files),
        ];
        field.extend(peers(&files));
        // ldd takes seconds here.
        let slow: Vec<Contender> = field.extract_if(.., |c| c.label == "ldd").collect();
        race(&format!("(c) The closures of all {} ELF files {title}", files.len()), &field, options.rounds.div_ceil(2));
        for contender in slow {
            let run = contender.run();
            println!("\n`ldd` once: {:.0} ms CPU, {:.0} ms wall.", milliseconds(run.cpu), milliseconds(run.wall));
        }
    }

    let found = |name: &str| {
        std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()).map(|d| d.join(name)).find(|p| p.is_file())
    };
    let mut field = vec![
        us("`ldaudit`", &[], &one),
        us("`ldaudit --bindings`", &["--bindings"], &one),
        us("`ldaudit --bindings --format json`", &["--bindings", "--format", "json"], &one),
    ];
    for name in ["ldd", "rldd"] {
        match found(name) {
            Some(path) => {
                let words = [path.as_os_str(), OsStr::new("-r"), library.as_os_str()];
                field.push(Contender::new(&format!("{name} -r"), &words));
            }
            None => println!("\n{name} is missing and left out."),
        }
    }
    race("(d) Every symbol that libtorch_cuda.so and its closure refer to", &field, options.rounds.div_ceil(2));
    race(
        "(e) Every symbol of `import torch`",
        &[
            us("`ldaudit torch`", &["torch", "--python", environment], &[]),
            us("`ldaudit torch --bindings`", &["torch", "--bindings", "--python", environment], &[]),
        ],
        options.rounds.div_ceil(2),
    );

    references::race(ours, options.references);

    println!("\n### Cold cache: bytes read from disk for (a)\n");
    if !drop_caches() {
        println!("Left out: only root may empty the page cache.");
        return;
    }
    let cold = |contender: &Contender| {
        let mut runs: Vec<Run> = (0..5)
            .map(|_| {
                drop_caches();
                contender.run()
            })
            .collect();
        runs.sort_by_key(|r| r.disk);
        runs[runs.len() / 2]
    };
    let start = cold(&us("start", &["--version"], &[]));
    println!("| command | KiB from disk, median of 5 | of these in the files of the closure | wall ms |");
    println!("| --- | --- | --- | --- |");
    let files = touched(&library);
    let in_cache = || files.iter().map(|t| cached(&t.path)).sum::<u64>();
    let mut field = vec![us("`ldaudit --format ldd`", &["--format", "ldd"], &one)];
    field.extend(peers(&one));
    let mut first = None;
    for contender in &field {
        let run = cold(contender);
        drop_caches();
        // What other processes have mapped stays.
        let before = in_cache();
        contender.run();
        let read = in_cache().saturating_sub(before);
        first.get_or_insert(read);
        println!("| {} | {} | {} | {:.0} |", contender.label, run.disk / 1024, read / 1024, milliseconds(run.wall));
    }
    println!(
        "| `ldaudit --version`: the program itself and libc | {} | | {:.0} |",
        start.disk / 1024,
        milliseconds(start.wall)
    );
    let tables: u64 = files.iter().map(|t| t.bytes).sum();
    let read = first.unwrap_or_default();
    println!(
        "\nTables touched in these {} files: {} KiB in whole pages. Read of the files: {} KiB, {:.2} times as much. The rest \
         that comes from the disk is the program itself, libc, directories and inodes.",
        files.len(),
        tables / 1024,
        read / 1024,
        read as f64 / tables as f64
    );
}
