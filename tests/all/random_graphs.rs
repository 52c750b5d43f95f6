//! Random small processes under real loaders and in the model: the same loads, bindings, messages and ends.
//!
//! `LDAUDIT_GRAPHS=N` says how many (400 by default), `LDAUDIT_GRAPH_SEED=N` where to begin, `LDAUDIT_GRAPH_LOADERS=all`
//! asks musl and the loaders of foreign roots too, not just this machine's glibc; `glibc-2.31,musl` asks those alone. A
//! process on which they disagree is reduced, printed as a fixture with what the real loader did, and kept in
//! `target/graphs`.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use ldaudit::fixture::{Family, Fixture, Observation, Step, What, simulate};

use crate::support::{oracle, random_graph, require};
use oracle::{Real, Stop};

/// Disagreements that are reduced and shown.
const SHOWN: usize = 12;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default)
}

#[test]
fn random_processes_are_what_real_loaders_make_of_them() {
    let wanted = std::env::var("LDAUDIT_GRAPH_LOADERS").unwrap_or_default();
    let mut loaders = Vec::new();
    for loader in oracle::loaders() {
        match loader {
            Ok(real) => loaders.push(real),
            Err(why) if why.contains("musl") => require::skip("musl", &why),
            Err(why) => require::skip("root", &why),
        }
    }
    match wanted.as_str() {
        "all" => {}
        "" => {
            loaders.retain(|l| l.loader.family == Family::Glibc);
            loaders.truncate(1);
        }
        names => {
            let is_one = |l: &Real, name: &str| l.loader.to_string().starts_with(name);
            loaders.retain(|l| names.split(',').any(|name| is_one(l, name)));
            assert!(!loaders.is_empty(), "LDAUDIT_GRAPH_LOADERS={names} names no loader that is here");
        }
    }
    let (count, first) = (number("LDAUDIT_GRAPHS", 400), number("LDAUDIT_GRAPH_SEED", 1));
    let told: Vec<String> = loaders.into_iter().filter_map(|real| run(&Arc::new(real), first, count)).collect();
    assert!(told.is_empty(), "{}", told.join("\n\n"));
}

/// What a process did that is worth counting, so that nobody takes a run of failed starts for a test.
#[derive(Default)]
struct Tally {
    starts: AtomicUsize,
    opened: AtomicUsize,
    failed: AtomicUsize,
    called: AtomicUsize,
    bindings: AtomicUsize,
}

impl Tally {
    fn add(&self, fixture: &Fixture, seen: &Observation) {
        let add = |to: &AtomicUsize, n: usize| {
            to.fetch_add(n, Ordering::Relaxed);
        };
        for ((_, step), outcome) in fixture.steps().iter().zip(&seen.steps) {
            let to = match step {
                _ if !outcome.ok => &self.failed,
                Step::Exec(_) => &self.starts,
                Step::Dlopen(_) => &self.opened,
                Step::Call(_) => &self.called,
            };
            add(to, 1);
            add(&self.bindings, outcome.bindings.as_ref().map_or(0, Vec::len));
        }
    }
}

/// What differs under one loader.
fn run(real: &Arc<Real>, first: u64, count: u64) -> Option<String> {
    let began = std::time::Instant::now();
    let next = AtomicUsize::new(0);
    let wrong: Mutex<Vec<u64>> = Mutex::default();
    let tally = Tally::default();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = first + next.fetch_add(1, Ordering::Relaxed) as u64;
                    if seed >= first + count {
                        break;
                    }
                    let fixture = fixture(seed, real);
                    match compare(&fixture, real) {
                        Ok((differences, seen)) if differences.is_empty() => tally.add(&fixture, &seen),
                        _ => wrong.lock().expect("list").push(seed),
                    }
                }
            });
        }
    });
    let number = |n: &AtomicUsize| n.load(Ordering::Relaxed);
    println!(
        "{}: {count} processes in {:.1} s: {} starts, {} dlopens and {} calls that worked, {} steps that failed, {} bindings",
        real.loader,
        began.elapsed().as_secs_f64(),
        number(&tally.starts),
        number(&tally.opened),
        number(&tally.called),
        number(&tally.failed),
        number(&tally.bindings),
    );
    let mut wrong = wrong.into_inner().expect("list");
    wrong.sort_unstable();
    if wrong.is_empty() {
        assert!(count < 100 || number(&tally.starts) * 2 > count as usize, "most of the processes do not start");
        return None;
    }
    let shown: Vec<String> = wrong.iter().take(SHOWN).map(|seed| tell(*seed, real)).collect();
    let summary = format!("{}: {} of {count} processes differ: {wrong:?}", real.loader, wrong.len());
    println!("{summary}");
    Some(format!("{summary}\n\n{}", shown.join("\n\n")))
}

/// The process of a seed, with the calls that it can make.
fn fixture(seed: u64, real: &Real) -> Fixture {
    let made = random_graph::make(seed, real.loader.family);
    let possible = |fixture: &Fixture| match fixture.runs(real.loader).first() {
        Some(run) => match simulate::observe(fixture, real.loader, run) {
            Ok(_) => Ok(()),
            // Lines of a made fixture are all 0: the step is the first one without which it goes well.
            Err(_) => Err(impossible(fixture, real).unwrap_or(usize::MAX)),
        },
        None => Ok(()),
    };
    let mut fixture = random_graph::without_impossible_calls(made, possible).expect("calls are what cannot be made");
    // Steps after the end of the process are left out: whether the calls among them can be made is not known.
    if let Some(run) = fixture.runs(real.loader).first()
        && let Ok(seen) = simulate::observe(&fixture, real.loader, run)
    {
        let mut steps = 0;
        fixture.statements.retain(|s| {
            let is_step = matches!(s.what, What::Step(_));
            steps += usize::from(is_step);
            !is_step || steps <= seen.steps.len()
        });
    }
    fixture
}

/// The first call that cannot be made.
fn impossible(fixture: &Fixture, real: &Real) -> Option<usize> {
    let steps = fixture.steps().len();
    (0..steps).find(|last| {
        let mut shorter = fixture.clone();
        let mut seen = 0;
        shorter.statements.retain(|s| {
            let is_step = matches!(s.what, What::Step(_));
            seen += usize::from(is_step);
            !is_step || seen <= last + 1
        });
        let run = shorter.runs(real.loader).into_iter().next();
        run.is_some_and(|run| simulate::observe(&shorter, real.loader, &run).is_err())
    })
}

/// What differs, and what the real loader did.
fn compare(fixture: &Fixture, real: &Real) -> Result<(Vec<String>, Observation), String> {
    let run = fixture.runs(real.loader).into_iter().next().ok_or("no run")?;
    let model = simulate::observe(fixture, real.loader, &run).map_err(|p| format!("model: {p}"))?;
    // One name per thread: a box is laid out anew for each process.
    let name = format!("graph-{:?}", std::thread::current().id());
    let seen = match oracle::observe(fixture, real, &name) {
        Ok(seen) => seen.into_iter().next().unwrap_or_default(),
        Err(Stop::Skip(why) | Stop::Fail(why)) => return Err(format!("real: {why}")),
    };
    Ok((random_graph::differences(&model, &seen, real.loader.family), seen))
}

/// A disagreement, reduced, as a fixture with what the real loader did.
fn tell(seed: u64, real: &Real) -> String {
    let full = fixture(seed, real);
    // What cannot be compared at all is told as it is.
    let kind = |result: &Result<(Vec<String>, Observation), String>| match result {
        Ok((differences, _)) => (!differences.is_empty()).then_some(true),
        Err(why) => (why.starts_with("real:") && !why.contains("no such call")).then_some(false),
    };
    let again = compare(&full, real);
    let wanted = kind(&again);
    if wanted.is_none() {
        return match again {
            Ok(_) => format!("seed {seed}: the disagreement did not come again"),
            Err(why) => format!("seed {seed}: {why}\n{}", full.print()),
        };
    }
    let small = random_graph::reduce(&full, |f| kind(&compare(f, real)) == wanted);
    let told = match compare(&small, real) {
        Ok((differences, seen)) => {
            let described = oracle::describe(&small, &small.runs(real.loader), &[seen]);
            let mut text = String::new();
            let mut steps = described.into_iter();
            for statement in &small.statements {
                let one = Fixture { statements: vec![statement.clone()] };
                text.push_str(&one.print());
                if matches!(statement.what, What::Step(_)) {
                    let lines = steps.next().unwrap_or_default();
                    let kept = lines.into_iter().filter(|l| !l.starts_with("found ") && !l.starts_with("order "));
                    kept.for_each(|line| text.push_str(&format!("{line}\n")));
                }
            }
            keep(seed, real, &text);
            format!("{}\n{text}", differences.join("\n"))
        }
        Err(why) => format!("{why}\n{}", small.print()),
    };
    format!("seed {seed}:\n{told}")
}

fn keep(seed: u64, real: &Real, text: &str) {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("graphs");
    let kept = std::fs::create_dir_all(&directory)
        .and_then(|()| std::fs::write(directory.join(format!("{}-{seed}.ld", real.loader)), text));
    if let Err(e) = kept {
        println!("cannot keep the fixture in {}: {e}", directory.display());
    }
}
