//! What a person sees: exact screens of small boxes, at 80 and at 200 columns, and what must hold of every screen.
//!
//! The boxes are fixtures (`fixtures/screens`), so that real loaders are asked too whether they behave as told. The
//! expected screens lie in `tests/screens`; `LDAUDIT_BLESS=1` writes them anew, to be read before they are committed.

use std::path::Path;

use crate::support::{drawn, fixtures};
use bstr::{BStr, BString, ByteSlice};
use ldaudit::findings::loading::{self, Knowledge};
use ldaudit::findings::prove::{Outcome, prove};
use ldaudit::findings::{Owner, Severity};
use ldaudit::fixture::{Fixture, Loader, Run, Step, simulate};
use ldaudit::ld::{ImageId, OpenFlags, OpenRequest, Process, Start};
use ldaudit::render::text::Style;
use ldaudit::render::{self, Report, Target, Verdict};
use ldaudit::system::Host;

/// The loader that the screens show.
const LOADER: fn() -> Loader = || Loader::glibc(2, 36);

/// A run's process after all its steps, in a host that may differ from the run's.
fn process(fixture: &Fixture, run: &Run, host: &Host) -> Process {
    let run = Run { host: host.clone(), ..run.clone() };
    let mut made = simulate::process(fixture, LOADER(), &run).expect("a fixture that can be simulated");
    for step in &run.steps {
        match &step.step {
            Step::Exec(exec) => {
                let start = if exec.loader_options.is_some() { Start::Loader } else { Start::Kernel };
                let id = made.exec(exec.path.as_bstr(), exec.path.as_bstr(), start);
                if made.steps[id.index()].error.is_some() {
                    break;
                }
            }
            Step::Call(_) => {}
            Step::Dlopen(dlopen) => {
                let caller = dlopen.from.as_ref().and_then(|from| {
                    (0..made.images.len() as u32)
                        .map(ImageId)
                        .find(|id| made.is_loaded(*id) && made.image(*id).name == *from)
                });
                made.dlopen(&OpenRequest {
                    flags: OpenFlags { global: dlopen.global, lazy: dlopen.lazy, ..OpenFlags::default() },
                    caller,
                    // The driver is what the programs of these boxes can do without.
                    optional: dlopen.name == "libcuda.so.1",
                    ..OpenRequest::new(dlopen.name.clone())
                });
            }
        }
    }
    made
}

/// Distributions of the made-up environment below /venv.
fn owner(path: &BStr) -> Option<Owner> {
    const OWNERS: &[(&str, &str, &str)] = &[
        ("/nvidia/cublas/", "nvidia-cublas-cu12", "12.1.3.1"),
        ("/nvidia/cusparse/", "nvidia-cusparse-cu12", "12.1.0.106"),
        ("/nvidia/nvjitlink/", "nvidia-nvjitlink-cu12", "12.9.86"),
        ("/nvidia/nccl/", "nvidia-nccl-cu12", "2.20.5"),
        ("/site-packages/torch/", "torch", "2.4.0"),
    ];
    let path = ldaudit::system::normalised(path);
    let (_, package, version) =
        OWNERS.iter().find(|(part, ..)| path.starts_with(b"/venv/") && path.contains_str(part))?;
    Some(Owner { package: (*package).into(), version: (*version).into() })
}

fn report(fixture: &Fixture, run: &Run) -> Report {
    let process = process(fixture, run, &run.host);
    let known = Knowledge { owner: &owner, ..Knowledge::none() };
    let mut findings = loading::check(&process, &known);
    let answered = process.decisions.iter().filter(|d| d.chosen.is_some()).count();
    prove(&mut findings, &run.host.env, process.dialect().family, answered, &mut |env| {
        let host = Host { env: env.clone(), ..run.host.clone() };
        let again = self::process(fixture, run, &host);
        let findings = loading::check(&again, &known);
        Outcome::of(&again, findings)
    });
    let name = process.steps.first().map(|s| s.name.clone()).unwrap_or_default();
    let is_torch = fixture.elf("/venv/bin/python".into()).is_some();
    let target = match is_torch {
        true => Target { kind: "framework", name: "torch".into(), version: Some("2.4.0+cu121".into()), path: None },
        false => Target::file(name),
    };
    Report {
        options: Vec::new(),
        target,
        python: None,
        owners: process.images.iter().map(|i| owner(i.name.as_bstr())).collect(),
        verdict: Verdict::of(&findings),
        process,
        exception: None,
        findings,
        why: None,
    }
}

fn text(report: &Report, style: &Style) -> BString {
    let mut out = Vec::new();
    render::text::write(report, style, &mut out).expect("written to memory");
    out.into()
}

fn tree(report: &Report, style: &Style) -> BString {
    let mut out = Vec::new();
    render::tree::write(report, style, &mut out).expect("written to memory");
    out.into()
}

const fn style(width: usize) -> Style {
    Style { width, colour: false, verbosity: 0 }
}

/// The screens of a box one below the other, each under a line that says how it was asked for.
fn album(fixture: &Fixture) -> BString {
    let run = fixture.runs(LOADER()).into_iter().next().expect("a step");
    let report = report(fixture, &run);
    let mut out = BString::default();
    for (head, screen) in [
        ("text, 80 columns", text(&report, &style(80))),
        ("text, 200 columns", text(&report, &style(200))),
        ("tree, 100 columns", tree(&report, &style(100))),
    ] {
        out.extend_from_slice(format!("=== {head}\n").as_bytes());
        out.extend_from_slice(&screen);
    }
    out
}

#[test]
fn boxes_look_as_drawn() {
    let mut wrong = Vec::new();
    for path in fixtures::below("fixtures/screens") {
        let name = path.file_stem().expect("a file name").to_string_lossy().into_owned();
        let seen = album(&fixtures::sound(&path));
        wrong.extend(drawn::differs(&name, seen.as_bstr()));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

#[test]
fn the_verdict_is_that_of_the_loader() {
    let mut wrong = Vec::new();
    for path in fixtures::all() {
        let fixture = fixtures::sound(&path);
        if !fixture.concerns(LOADER()) {
            continue;
        }
        for run in fixture.runs(LOADER()) {
            let report = report(&fixture, &run);
            let process = &report.process;
            let failed = process
                .steps
                .iter()
                .any(|s| s.outcome == ldaudit::ld::Outcome::Failed && !s.optional && s.failure.is_some());
            let errors = report.findings.iter().filter(|f| f.severity == Severity::Error).count();
            if failed != (errors > 0) {
                wrong.push(format!("{}: failed {failed}, {errors} errors", path.display()));
            }
            // What stopped the process comes first.
            if failed && report.findings.first().is_none_or(|f| f.severity != Severity::Error) {
                wrong.push(format!("{}: the first finding is no error", path.display()));
            }
            let sorted = report.findings.windows(2).all(|w| w[0].severity >= w[1].severity || w[0].group.is_some());
            if !sorted {
                wrong.push(format!("{}: findings are out of order", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn no_screen_has_control_bytes_and_colour_changes_nothing_else() {
    for path in fixtures::all() {
        let fixture = fixtures::sound(&path);
        if !fixture.concerns(LOADER()) {
            continue;
        }
        for run in fixture.runs(LOADER()) {
            let report = report(&fixture, &run);
            for width in [1, 80, 200] {
                for verbosity in [-1, 0, 1] {
                    for draw in [text as fn(&Report, &Style) -> BString, tree] {
                        let plain = draw(&report, &Style { width, colour: false, verbosity });
                        let bad = plain.chars().find(|c| c.is_control() && *c != '\n');
                        assert_eq!(bad, None, "{} at {width}", path.display());
                        assert!(plain.to_str().is_ok(), "{} at {width}", path.display());
                        let coloured = draw(&report, &Style { width, colour: true, verbosity });
                        assert_eq!(without_colour(coloured.as_bstr()), plain, "{} at {width}", path.display());
                    }
                }
            }
        }
    }
}

/// The text without `ESC [ ... m`.
fn without_colour(text: &BStr) -> BString {
    let mut out = BString::default();
    let mut rest: &[u8] = text;
    while let Some(at) = rest.find(b"\x1b[") {
        out.extend_from_slice(&rest[..at]);
        let end = rest[at..].find_byte(b'm').expect("an escape sequence ends in m");
        rest = &rest[at + end + 1..];
    }
    out.extend_from_slice(rest);
    out
}

#[test]
fn quiet_is_the_verdict_alone() {
    let fixture =
        fixtures::sound(&Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/screens/two_missing_libraries.ld"));
    let run = fixture.runs(LOADER()).remove(0);
    let report = report(&fixture, &run);
    let quiet = text(&report, &Style { verbosity: -1, ..Style::plain() });
    assert_eq!(
        quiet,
        "FAILS  /opt/app/app does not start:\n       /opt/app/app: error while loading shared libraries: libaa.so.1: \
         cannot open shared object file: No such file or directory\n"
    );
}

#[test]
fn a_deep_chain_is_drawn_without_end_of_the_margin() {
    let mut description = String::from("exe /app/run needed=lib0.so rpath=/d\n");
    for n in 0..300 {
        let needed = if n < 299 { format!(" needed=lib{}.so", n + 1) } else { String::new() };
        description.push_str(&format!("so /d/lib{n}.so soname=lib{n}.so{needed}\n"));
    }
    description.push_str("\nexec /app/run\nok\n");
    let fixture = Fixture::parse(description.as_bytes()).expect("fixture");
    let run = fixture.runs(LOADER()).remove(0);
    let report = report(&fixture, &run);
    let drawn = tree(&report, &style(100));
    for n in 0..300 {
        assert!(drawn.contains_str(format!("lib{n}.so [rpath[0] of run]")), "lib{n}.so is missing");
    }
    let widest = drawn.lines().map(|l| l.to_str_lossy().chars().count()).max().unwrap_or(0);
    assert!(widest < 200, "{widest} columns");
}

/// Columns of the screens whose lines are measured.
const NARROW: usize = 80;

/// True for a line that is wider than the screen though it could have been broken. Whole stay: a word that is too long
/// even behind its label or below its branches, a command to paste, and the loader's own message.
fn overflows(line: &str, label: usize, in_verdict: bool) -> bool {
    let is_command = |l: &str| {
        let l = l.trim_start();
        ["ldaudit ", "export ", "unset "].iter().any(|w| l.starts_with(w))
    };
    let starts = ["    fails: ", "    harmless: "];
    let is_message = (in_verdict && line.starts_with("       ")) || starts.iter().any(|s| line.starts_with(s));
    let lead = line.chars().take_while(|c| matches!(c, ' ' | '│' | '├' | '└' | '─')).count();
    let longest = line.split_whitespace().map(width).max().unwrap_or(0);
    width(line) > NARROW && !is_command(line) && !is_message && longest + lead.max(label) <= NARROW
}

fn width(text: &str) -> usize {
    unicode_width::UnicodeWidthStr::width(text)
}

#[test]
fn lines_fit_on_a_screen_of_80_columns() {
    let mut wrong: Vec<String> = Vec::new();
    let mut measured = 0;
    for path in fixtures::all() {
        let fixture = fixtures::sound(&path);
        if !fixture.concerns(LOADER()) {
            continue;
        }
        for run in fixture.runs(LOADER()) {
            let report = report(&fixture, &run);
            for verbosity in [0, 1] {
                for (form, draw) in [("text", text as fn(&Report, &Style) -> BString), ("tree", tree)] {
                    let drawn = draw(&report, &Style { width: NARROW, colour: false, verbosity });
                    let drawn = drawn.to_str_lossy();
                    let verdict = drawn.lines().take_while(|l| !l.is_empty()).count();
                    measured += 1;
                    for (n, line) in drawn.lines().enumerate() {
                        if overflows(line, 12, form == "text" && n < verdict) {
                            wrong.push(format!("{} as {form}, -v {verbosity}: {line}", path.display()));
                        }
                    }
                }
            }
        }
    }
    assert!(measured > 1000, "{measured} screens");
    assert!(wrong.is_empty(), "{} lines:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn stories_fit_on_a_screen_of_80_columns() {
    let mut wrong: Vec<String> = Vec::new();
    let mut measured = 0;
    for path in fixtures::all() {
        let fixture = fixtures::sound(&path);
        if !fixture.concerns(LOADER()) {
            continue;
        }
        let Some(run) = fixture.runs(LOADER()).into_iter().next() else { continue };
        let process = process(&fixture, &run, &run.host);
        let asked = process.decisions.iter().map(|d| d.asked.clone()).filter(|n| !n.contains(&b'/'));
        let symbols = process.unresolved.iter().filter_map(|u| u.symbol.to_str().ok()).map(BString::from);
        let mut names: Vec<BString> = asked.chain(symbols.take(1)).collect();
        names.sort();
        names.dedup();
        for name in names.iter().take(4).filter_map(|n| n.to_str().ok()) {
            let output = std::process::Command::new(env!("CARGO_BIN_EXE_ldaudit"))
                .args(["--why", name, "--fixture"])
                .arg(&path)
                .env_clear()
                .env("COLUMNS", NARROW.to_string())
                .output()
                .expect("run");
            measured += usize::from(output.status.code() == Some(0));
            // The paths of a story begin at column 18. The story of a symbol begins with the message.
            let text = output.stdout.to_str_lossy().into_owned();
            let is_message = |l: &str| l.contains(": symbol lookup error: ");
            for line in text.lines().filter(|l| overflows(l, 18, false) && !is_message(l)) {
                wrong.push(format!("--why {name} in {}: {line}", path.display()));
            }
        }
    }
    assert!(measured > 500, "{measured} stories");
    assert!(wrong.is_empty(), "{} lines:\n{}", wrong.len(), wrong.join("\n"));
}
