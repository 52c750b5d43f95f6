//! What `--why SYMBOL` says. Traces are held against the bindings that are recorded of whole processes (every fixture, and
//! samples of `import torch` in real environments), which real loaders judge elsewhere; then the story itself on small
//! boxes, its screens, and what hostile names do to it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;

use crate::support::{cached, drawn, fixtures, require, strict};
use bstr::{BStr, BString, ByteSlice};
use ldaudit::discover::python;
use ldaudit::elf::Layout;
use ldaudit::elf::references::{Class, Reference};
use ldaudit::findings::Owner;
use ldaudit::findings::why_symbol::{Knowledge, Lookup, Query, Run, WhySymbol, tell};
use ldaudit::fixture::{Fixture, Loader, Run as FixtureRun, Step, simulate};
use ldaudit::ld::dialect::machine;
use ldaudit::ld::{
    Binding, Dialect, Ending, ImageId, LoadedCache, Lookups, OpenFlags, OpenRequest, Outside, Process, Standing, Start,
    Store, When,
};
use ldaudit::recipe::{Session, torch};
use ldaudit::render;
use ldaudit::render::text::Style;
use ldaudit::system::{Host, System};
use serde_json::Value;

// ---------------------------------------------------------------------------------------------------------- processes

/// A run's process after all its steps, every binding recorded.
fn process(fixture: &Fixture, loader: Loader, run: &FixtureRun) -> Process {
    let mut made = simulate::process(fixture, loader, run).expect("a process").with_lookups(Lookups::Record);
    for step in &run.steps {
        match &step.step {
            Step::Exec(exec) => {
                let start = if exec.loader_options.is_some() { Start::Loader } else { Start::Kernel };
                let id = made.exec(exec.path.as_bstr(), exec.path.as_bstr(), start);
                if made.steps[id.index()].error.is_some() {
                    break;
                }
            }
            Step::Dlopen(dlopen) => {
                let flags = OpenFlags {
                    global: dlopen.global,
                    lazy: dlopen.lazy,
                    no_load: dlopen.noload,
                    deep_bind: dlopen.deepbind,
                    ..OpenFlags::default()
                };
                made.dlopen(&OpenRequest { flags, ..OpenRequest::new(dlopen.name.clone()) });
            }
            #[allow(unreachable_patterns, reason = "kinds of steps that load nothing")]
            _ => {}
        }
    }
    made
}

fn reference(process: &Process, image: ImageId, symbol: u32, class: Class) -> Reference {
    let references = &process.symbols(image).expect("symbols").references;
    references.iter(symbol..symbol + 1).find(|r| r.class == class).expect("the recorded reference")
}

/// What is wrong with the trace of a recorded binding.
fn complaint(process: &Process, b: &Binding) -> Option<String> {
    let trace = process.trace_reference(b.from, &reference(process, b.from, b.symbol, b.class)).expect("a trace");
    let says = Ending::Bound { to: b.to, definition: b.definition };
    let winner = trace.winner().map(|w| (w.image, w.symbol));
    let winners = trace.candidates.iter().filter(|c| c.standing.name() == "wins").count();
    let good = trace.ending == says && winner == Some((b.to, b.definition)) && winners == 1;
    // The trace tells how things stand right after the load; what a later dlopen gave to a late lookup it names as that.
    let came_later = b.when == When::Call
        && trace.ending == Ending::Undefined
        && trace.candidates.iter().any(|c| {
            (c.image, c.symbol) == (b.to, b.definition) && matches!(c.standing, Standing::Outside(Outside::Later(_), _))
        });
    let good = good || came_later;
    let name = || process.symbol_name(b.from, b.symbol).map(|(n, _)| n.to_owned()).unwrap_or_default();
    (!good).then(|| format!("{} of {}: {b:?}, but {trace:?}", name(), process.image(b.from).name))
}

#[test]
fn every_binding_of_every_fixture_is_traced_to_its_definition() {
    let (mut bindings, mut failures) = (0, 0);
    let mut wrong = Vec::new();
    for path in fixtures::all() {
        let fixture = fixtures::sound(&path);
        for loader in [Loader::glibc(2, 31), Loader::glibc(2, 36), Loader::glibc(2, 41), Loader::musl(1, 2, 3)] {
            if !fixture.concerns(loader) {
                continue;
            }
            for run in fixture.runs(loader) {
                let process = process(&fixture, loader, &run);
                for binding in process.bindings.iter() {
                    bindings += 1;
                    let said = complaint(&process, binding);
                    wrong.extend(said.map(|text| format!("{} under {loader}: {text}", path.display())));
                }
                for u in &process.unresolved {
                    failures += 1;
                    let trace = process.trace_reference(u.image, &reference(&process, u.image, u.index, u.class));
                    let ending = trace.expect("a trace").ending;
                    let says = if u.weak { Ending::Zero } else { Ending::Undefined };
                    if ending != says {
                        wrong.push(format!("{} under {loader}: {u:?}, but {ending:?}", path.display()));
                    }
                }
            }
        }
    }
    wrong.dedup_by_key(|text| text.split(' ').next().map(str::to_owned));
    assert!(wrong.is_empty(), "{} fixtures differ:\n{}", wrong.len(), wrong[..wrong.len().min(8)].join("\n"));
    assert!(bindings > 100 && failures > 5, "{bindings} bindings, {failures} failures");
}

/// Bindings that are traced of each real environment.
const SAMPLE: usize = 2000;

fn import_torch(directory: &Path) -> Process {
    use std::os::unix::ffi::OsStrExt;
    let mut host = Host::live();
    host.env = ldaudit::system::Environment::new();
    host.env.push("PATH", "/usr/bin:/bin");
    host.cwd = "/".into();
    let system = System { host: host.clone(), ..System::live() };
    let python = directory.join("bin/python");
    let request = python::Request {
        named: Some(python.as_os_str().as_bytes().as_bstr()),
        ask: Some(&ldaudit::cli::ask::Live),
        limit: python::DEFAULT_LIMIT,
    };
    let found = python::discover(&system, &request).unwrap_or_else(|e| panic!("{}: {e}", directory.display()));
    let interpreter = b"/lib64/ld-linux-x86-64.so.2".as_bstr();
    let dialect = Arc::new(Dialect::read(&system, interpreter, Layout::LITTLE_64, machine::X86_64));
    let cache = Some(Arc::new(LoadedCache::read(&system, &dialect, false)));
    let store = Arc::new(Store::new(system, Layout::LITTLE_64, false));
    let mut process = Process::new(store, dialect, Arc::new(host), cache).with_lookups(Lookups::Record);
    let (mut session, _) = Session::start(&mut process, &found);
    torch::import(&mut session);
    process
}

#[test]
fn bindings_of_real_environments_are_traced_to_their_definitions() {
    let boxes = cached::boxes();
    if boxes.is_empty() {
        require::skip("boxes", "there are no environments (make them with tests/make-boxes)");
    }
    for directory in boxes {
        let process = import_torch(&directory);
        let total = process.bindings.len();
        assert!(total > 10_000, "{}: only {total} bindings", directory.display());
        // Every n-th, so that all images have their share.
        let step = (total / SAMPLE).max(1);
        let sample = process.bindings.iter().step_by(step);
        let wrong: Vec<String> = sample.filter_map(|b| complaint(&process, b)).take(3).collect();
        assert!(wrong.is_empty(), "{}:\n{}", directory.display(), wrong.join("\n"));
        // The unique symbols are few and the likeliest to be told wrongly.
        let is_unique = |b: &&Binding| {
            let symbol = process.symbols(b.to).and_then(|s| s.table.symbol(b.definition));
            symbol.is_some_and(|s| s.binding() == 10)
        };
        let unique = process.bindings.iter().filter(is_unique).take(500);
        let wrong: Vec<String> = unique.filter_map(|b| complaint(&process, b)).take(3).collect();
        assert!(wrong.is_empty(), "{}, unique symbols:\n{}", directory.display(), wrong.join("\n"));
    }
}

// ------------------------------------------------------------------------------------------------------------ stories

/// The loader that the stories show.
const LOADER: fn() -> Loader = || Loader::glibc(2, 36);

fn owner(path: &BStr) -> Option<Owner> {
    let in_site = path.strip_prefix(b"/site/")?;
    let package = in_site.split(|b| *b == b'/').next()?;
    Some(Owner { package: package.to_str_lossy().into_owned(), version: "1.2".into() })
}

/// The story of a symbol in a box whose other libraries lie in `files`.
fn story_under(loader: Loader, text: &str, symbol: &str, files: &[&str]) -> WhySymbol {
    let fixture = Fixture::parse(text.as_bytes()).unwrap_or_else(|e| panic!("{e:?}"));
    let run = fixture.runs(loader).into_iter().next().expect("a run");
    let process = process(&fixture, loader, &run);
    let query = Query::parse(symbol.into()).expect("a symbol");
    let files: Vec<BString> = files.iter().map(|f| (*f).into()).collect();
    let fresh = simulate::process(&fixture, loader, &run).expect("a process");
    let known = Knowledge { owner: &owner, files: &files, store: fresh.store() };
    tell(&query, &[Run { title: "app".into(), process }], &known)
}

fn story(text: &str, symbol: &str) -> WhySymbol {
    story_under(LOADER(), text, symbol, &[])
}

/// The only answer of a story.
fn only(why: &WhySymbol) -> &Lookup {
    assert_eq!(why.symbols.len(), 1, "{why:?}");
    let lookups = &why.symbols[0].processes[0].lookups;
    assert_eq!(lookups.len(), 1, "{lookups:?}");
    &lookups[0]
}

/// Each definition: file, what becomes of it, why.
fn standings(lookup: &Lookup) -> Vec<String> {
    lookup.met.iter().map(|m| format!("{} {:?}", m.file.path, m.standing)).collect()
}

const VERSIONS: &str = "exe /app/run needed=liba.so,libb.so,libc2.so rpath=/d verneed=libb.so:V2 use=f@V2\n\
    so /d/liba.so soname=liba.so def=f@@V1\n\
    so /d/libb.so soname=libb.so def=f@V1,f@@V2\n\
    so /d/libc2.so soname=libc2.so def=f:weak\n\
    \nexec /app/run\nok\n";

#[test]
fn definitions_of_other_versions_are_passed_and_later_ones_are_told() {
    let why = story(VERSIONS, "f@V2");
    let lookup = only(&why);
    assert_eq!(lookup.version, Some("V2".into()));
    assert_eq!(
        standings(lookup),
        [
            "/d/liba.so Refused(OtherVersion)",
            "/d/libb.so Refused(OtherVersion)",
            "/d/libb.so Wins(First)",
            "/d/libc2.so Later",
        ]
    );
    assert_eq!(lookup.referrers[0].file.path, "/app/run");
    assert!(lookup.referrers[0].recorded);
    // Another version is referred to by nobody: what the program would get is told.
    let why = story(VERSIONS, "f@V1");
    assert!(only(&why).referrers.is_empty());
    assert_eq!(why.symbols[0].processes[0].other_versions, 1);
    assert_eq!(standings(only(&why))[0], "/d/liba.so Wins(First)");
}

#[test]
fn weak_and_hidden_definitions_each_have_their_word() {
    let text = "exe /app/run needed=liba.so,libb.so,libc2.so,libp.so rpath=/d use=f\n\
        so /d/liba.so soname=liba.so def=f:hidden\n\
        so /d/libb.so soname=libb.so def=f:weak\n\
        so /d/libc2.so soname=libc2.so def=f\n\
        so /d/libp.so soname=libp.so def=f:protected\n\
        \nexec /app/run\nok\n";
    let why = story(text, "f");
    let lookups = &why.symbols[0].processes[0].lookups;
    let of = |path: &str| lookups.iter().find(|l| l.referrers.iter().any(|r| r.file.path == path)).expect(path);
    let run = standings(of("/app/run"));
    assert_eq!(run[0], "/d/liba.so Refused(Hidden)");
    assert_eq!(run[1], "/d/libb.so Wins(FirstThoughWeak)");
    assert_eq!(run[2..], ["/d/libc2.so Later", "/d/libp.so Later"]);
    let weak = format!("env LD_DYNAMIC_WEAK=1\n{text}");
    let why = story(&weak, "f");
    let lookups = &why.symbols[0].processes[0].lookups;
    let run = lookups.iter().find(|l| l.referrers.iter().any(|r| r.file.path == "/app/run")).expect("a lookup");
    assert_eq!(standings(run)[1..3], ["/d/libb.so Overruled(First)", "/d/libc2.so Wins(First)"]);
}

#[test]
fn symbolic_deepbind_and_unique_change_who_wins() {
    let symbolic = "exe /app/run needed=liba.so,libb.so rpath=/d use=f\n\
        so /d/liba.so soname=liba.so def=f\n\
        so /d/libb.so soname=libb.so def=f use=f flags=symbolic\n\
        \nexec /app/run\nok\n";
    let why = story(symbolic, "f");
    let told: Vec<Vec<String>> = why.symbols[0].processes[0].lookups.iter().map(standings).collect();
    assert!(told.contains(&vec!["/d/liba.so Wins(First)".into(), "/d/libb.so Later".into()]), "{told:?}");
    assert!(told.contains(&vec!["/d/libb.so Wins(Symbolic)".into(), "/d/liba.so Later".into()]), "{told:?}");
    let deep = "exe /app/run needed=liba.so rpath=/d\n\
        so /d/liba.so soname=liba.so def=f\n\
        so /d/libu.so soname=libu.so needed=libv.so rpath=/d use=f\n\
        so /d/libv.so soname=libv.so def=f\n\
        \nexec /app/run\nok\ndlopen D:/d/libu.so\nok\n";
    assert_eq!(standings(only(&story(deep, "f"))), ["/d/libv.so Wins(DeepBind)", "/d/liba.so Later"]);
    let unique = "exe /app/run rpath=/d\n\
        so /d/libu.so soname=libu.so def=f:unique use=f\n\
        so /d/libv.so soname=libv.so def=f:unique use=f\n\
        \nexec /app/run\nok\ndlopen /d/libu.so\nok\ndlopen /d/libv.so\nok\n";
    let why = story(unique, "f");
    let second = why.symbols[0].processes[0].lookups.iter().find(|l| l.referrers[0].file.path == "/d/libv.so");
    let told = standings(second.expect("a lookup"));
    assert!(told.contains(&"/d/libu.so Wins(Unique)".to_owned()), "{told:?}");
    assert!(told.contains(&"/d/libv.so Overruled(Unique)".to_owned()), "{told:?}");
}

/// One library is opened for itself, a later one wants what it has.
const LOCAL: &str = "exe /app/run rpath=/d\n\
    so /d/libp.so soname=libp.so def=f\n\
    so /site/pkg/libu.so soname=libu.so needed=libw.so rpath=/d use=f@V1\n\
    so /d/libw.so soname=libw.so def=g@@V1\n\
    so /opt/libw.so soname=libw.so def=f@@V1,g@@V1\n\
    so /opt/libother.so soname=libother.so def=f\n\
    \nexec /app/run\nok\ndlopen /d/libp.so\nok\ndlopen /site/pkg/libu.so\nerror x\n";

#[test]
fn what_a_rolled_back_load_lacked_is_told_with_who_else_has_it() {
    let why = story_under(LOADER(), LOCAL, "f", &["/opt/libw.so", "/opt/libother.so", "/d/libp.so"]);
    let lookup = only(&why);
    assert_eq!(lookup.ending, Ending::Undefined);
    assert_eq!(lookup.referrers[0].file.owner.as_ref().map(|o| o.package.as_str()), Some("pkg"));
    assert!(lookup.referrers[0].recorded);
    let told = standings(lookup);
    assert_eq!(told.len(), 1);
    assert!(told[0].starts_with("/d/libp.so Outside(Local("), "{told:?}");
    assert_eq!(lookup.met[0].step, "dlopen of libp.so");
    assert_eq!(lookup.lacking.iter().map(|l| l.file.path.to_string()).collect::<Vec<_>>(), ["/d/libw.so"]);
    let error = why.symbols[0].processes[0].error.clone();
    assert_eq!(error, Some("/site/pkg/libu.so: undefined symbol: f, version V1".into()));
    // The copy of the library that was meant comes first; what is loaded is not elsewhere.
    let elsewhere: Vec<(String, bool, bool)> =
        why.symbols[0].elsewhere.iter().map(|e| (e.file.path.to_string(), e.is_copy, e.suits)).collect();
    assert_eq!(elsewhere, [("/opt/libw.so".into(), true, true), ("/opt/libother.so".into(), false, true)]);
    // With RTLD_GLOBAL it is in the scope, and wins though it has no version.
    let global = LOCAL.replace("dlopen /d/libp.so", "dlopen G:/d/libp.so");
    assert_eq!(standings(only(&story(&global, "f"))), ["/d/libp.so Wins(First)"]);
    // Opened afterwards it comes too late.
    let late = LOCAL.replace("dlopen /d/libp.so\nok\n", "") + "dlopen G:/d/libp.so\nok\n";
    let told = standings(only(&story(&late, "f")));
    assert!(told[0].starts_with("/d/libp.so Outside(Later("), "{told:?}");
}

#[test]
fn musl_looks_by_other_rules() {
    let text = "exe /app/run needed=liba.so,libb.so rpath=/d use=f\n\
        so /d/liba.so soname=liba.so def=f:hidden\n\
        so /d/libb.so soname=libb.so def=f@V1,f@@V2\n\
        \nexec /app/run\nok\n";
    let why = story_under(Loader::musl(1, 2, 3), text, "f", &[]);
    let told = standings(only(&why));
    assert_eq!(told[0], "/d/liba.so Wins(First)");
    assert!(told.contains(&"/d/libb.so Refused(OldVersion)".to_owned()), "{told:?}");
}

#[test]
fn demangled_names_stand_for_all_their_symbols() {
    let text = "exe /app/run needed=liba.so rpath=/d use=_ZN1a1fEi,_ZN1a1fEv\n\
        so /d/liba.so soname=liba.so def=_ZN1a1fEi,_ZN1a1fEv,_ZN1a1gEv\n\
        \nexec /app/run\nok\n";
    let names = |why: &WhySymbol| why.symbols.iter().map(|s| s.name.to_string()).collect::<Vec<_>>();
    assert_eq!(names(&story(text, "a::f")), ["_ZN1a1fEi", "_ZN1a1fEv"]);
    assert_eq!(names(&story(text, "a::f(int)")), ["_ZN1a1fEi"]);
    assert_eq!(names(&story(text, "_ZN1a1fEv")), ["_ZN1a1fEv"]);
    assert!(story(text, "a::h").symbols.is_empty());
    let nobody = story(text, "a::g");
    assert!(only(&nobody).referrers.is_empty());
    assert_eq!(nobody.symbols[0].demangled.as_deref(), Some("a::g()"));
}

// ------------------------------------------------------------------------------------------------------------ screens

fn screen(why: &WhySymbol, width: usize, colour: bool, verbosity: i8) -> BString {
    let mut out = Vec::new();
    render::why_symbol::write(why, &Style { width, colour, verbosity }, &mut out).expect("written to memory");
    out.into()
}

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

/// What must hold of every screen.
fn check_screen(what: &str, why: &WhySymbol) {
    for width in [1, 80, 200] {
        for verbosity in [0, 1] {
            let plain = screen(why, width, false, verbosity);
            assert_eq!(plain.chars().find(|c| c.is_control() && *c != '\n'), None, "{what} at {width}");
            assert!(plain.to_str().is_ok(), "{what} at {width}");
            assert_eq!(without_colour(screen(why, width, true, verbosity).as_bstr()), plain, "{what} at {width}");
        }
    }
}

#[test]
fn stories_look_as_drawn() {
    let files = ["/opt/libw.so", "/opt/libother.so"];
    let telltale = "exe /usr/bin/python3.11\n\
        so /site/torch/lib/libtorch_cuda.so needed=libcublas.so.11,libcublasLt.so.11 runpath=/site/nvidia/cublas/lib\n\
        so /site/nvidia/cublas/lib/libcublas.so.11 soname=libcublas.so.11 needed=libcublasLt.so.11 runpath=$ORIGIN use=cublasLtGetStatusString@libcublasLt.so.11\n\
        so /site/nvidia/cublas/lib/libcublasLt.so.11 soname=libcublasLt.so.11 def=cublasLtGetStatusString@@libcublasLt.so.11,cublasLtCreate@@libcublasLt.so.11\n\
        so /usr/local/cuda-11.2/lib64/libcublasLt.so.11 soname=libcublasLt.so.11 def=cublasLtCreate@@libcublasLt.so.11\n\
        env LD_LIBRARY_PATH=/usr/local/cuda-11.2/lib64\n\
        \nexec /usr/bin/python3.11\nok\ndlopen /site/torch/lib/libtorch_cuda.so\nerror x\n";
    let lt = ["/site/nvidia/cublas/lib/libcublasLt.so.11"];
    let all: [(&str, WhySymbol); 5] = [
        ("undefined", story_under(LOADER(), LOCAL, "f", &files)),
        ("versions", story(VERSIONS, "f")),
        ("nobody", story(VERSIONS, "f@V1")),
        ("unknown", story(VERSIONS, "nosuch@V9")),
        ("telltale", story_under(LOADER(), telltale, "cublasLtGetStatusString", &lt)),
    ];
    let mut wrong = Vec::new();
    for (name, why) in all {
        check_screen(name, &why);
        let mut seen = BString::default();
        for width in [80, 200] {
            seen.extend_from_slice(format!("=== {width} columns\n").as_bytes());
            seen.extend_from_slice(&screen(&why, width, false, 0));
        }
        wrong.extend(drawn::differs(&format!("symbols/{name}"), seen.as_bstr()));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

#[test]
fn hostile_names_are_escaped_and_cut() {
    let long = "a".repeat((1 << 20) - 1);
    let text = format!(
        "exe /app/run needed=liba.so rpath=/d use=\"f\\n\\x1b[31m\" use={long}\n\
         so \"/d/l\\x1b[2Jib.so\" soname=liba.so def=\"f\\n\\x1b[31m\" def={long}\n\
         link /d/liba.so -> \"l\\x1b[2Jib.so\"\n\
         \nexec /app/run\nok\n"
    );
    let started = std::time::Instant::now();
    for name in ["f\n\u{1b}[31m", &long] {
        let why = story(&text, name);
        assert_eq!(only(&why).referrers.len(), 1);
        check_screen("a hostile name", &why);
        let shown = screen(&why, 80, false, 1);
        assert!(shown.len() < 8192, "{} bytes are shown", shown.len());
    }
    // As C++ names, and deeper than anything that demangles.
    for name in ["a::\u{1b}[31m", "<>::((", "::", &format!("{}::x", "a<".repeat(100_000))] {
        check_screen(name.get(..10).unwrap_or(name), &story(&text, name));
    }
    assert!(started.elapsed().as_secs() < 60, "{:?}", started.elapsed());
    assert_eq!(Query::parse("x".repeat((1 << 20) + 1).as_str().into()), None);
}

// ------------------------------------------------------------------------------------------------------------ command

fn scratch(name: &str, text: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("why_symbol_{name}.ld"));
    std::fs::write(&path, text).expect("fixture written");
    path
}

fn run(fixture: &Path, words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ldaudit"))
        .args(words)
        .arg("--fixture")
        .arg(fixture)
        .env_clear()
        .env("COLUMNS", "100")
        .output()
        .expect("ldaudit runs")
}

#[test]
fn the_command_tells_symbols_from_libraries() {
    let fixture = scratch("versions", VERSIONS);
    let text = |words: &[&str]| {
        let output = run(&fixture, words);
        (
            output.status.code(),
            String::from_utf8(output.stdout).expect("UTF-8"),
            output.stderr.to_str_lossy().into_owned(),
        )
    };
    let (status, told, _) = text(&["--why", "f@V2"]);
    assert_eq!(status, Some(0));
    assert!(told.starts_with("FOUND  f, version V2: libb.so answers run"), "{told}");
    // A plain word that no file knows is no symbol, and one that a file knows is said to be taken for one.
    let (status, _, error) = text(&["--why", "nosuch"]);
    assert_eq!((status, error.lines().count()), (Some(2), 2), "{error}");
    let (status, told, _) = text(&["--why", "f"]);
    assert!(status == Some(0) && told.contains("taken for a symbol"), "{told}");
    let (status, told, _) = text(&["--why", "liba.so"]);
    assert!(status == Some(0) && told.starts_with("liba.so is asked for by"), "{told}");
    let (status, told, _) = text(&["--why", "a::b"]);
    assert!(status == Some(0) && told.starts_with("UNKNOWN"), "{told}");
    let mut schema: Value =
        serde_json::from_str(include_str!("../../fixtures/schema/report-1.json")).expect("the schema is JSON");
    strict::close(&mut schema);
    let schema = jsonschema::validator_for(&schema).expect("the schema compiles");
    for (box_, symbol) in [(&fixture, "f"), (&fixture, "f@V1"), (&fixture, "a::b"), (&scratch("local", LOCAL), "f")] {
        let output = run(box_, &["--why", symbol, "--format", "json"]);
        let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let complaints: Vec<String> =
            schema.iter_errors(&report).map(|e| format!("{}: {e}", e.instance_path())).collect();
        assert!(complaints.is_empty(), "{symbol}: {complaints:?}");
        assert!(report["why"]["symbols"].is_array());
        assert!(report["process"].get("bindings").is_none());
    }
    let report: Value =
        serde_json::from_slice(&run(&fixture, &["--why", "f@V2", "--format", "json"]).stdout).expect("JSON");
    let lookup = &report["why"]["symbols"][0]["processes"][0]["lookups"][0];
    let image = lookup["to"].as_u64().expect("an image") as usize;
    assert_eq!(report["process"]["images"][image]["name"], "/d/libb.so");
    let standings: Vec<&str> =
        lookup["candidates"].as_array().expect("candidates").iter().filter_map(|c| c["standing"].as_str()).collect();
    assert_eq!(standings, ["refused", "refused", "wins", "later"]);
}

#[test]
fn what_one_target_defines_is_told_to_another_that_lacks_it() {
    let fixture = scratch("targets", "exe /app/run\nso /d/a.so use=b\nso /d/b.so def=b\nso /e/a.so\n\nexec /app/run\n");
    let told = |words: &[&str]| {
        let output = run(&fixture, words);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    let two = told(&["--why", "b", "/d/a.so", "/d/b.so"]);
    assert!(
        two.contains("elsewhere on this box, not loaded where it is wanted:\n") && two.contains("/d/b.so"),
        "{two}"
    );
    let one = told(&["--why", "b", "/d/a.so"]);
    assert!(!one.contains("elsewhere"), "{one}");
    // Files of one name are told apart.
    let both = told(&["--why", "b", "/d/a.so", "/e/a.so"]);
    assert!(both.contains("nothing that a.so may bind to in /d/a.so"), "{both}");
}

#[test]
fn bindings_are_told_as_a_table() {
    let fixture = scratch("table", VERSIONS);
    let told = run(&fixture, &["--bindings"]).stdout.to_str_lossy().into_owned();
    let table = told.split("\n\n").last().unwrap_or_default();
    assert_eq!(table, "1 reference is bound, by 1 image\n  run  1\n    1  -> libb.so\n");
    let told = run(&fixture, &["--bindings", "-v"]).stdout.to_str_lossy().into_owned();
    assert!(told.ends_with("    1  -> libb.so\n         f@V2  data load\n"), "{told}");
    // The other forms have no place for it, and do not leave it out in silence.
    for form in ["tree", "ldd"] {
        let refused = run(&fixture, &["--format", form, "--bindings"]);
        assert_eq!((refused.status.code(), refused.stdout.len()), (Some(2), 0), "{form}");
    }
}
