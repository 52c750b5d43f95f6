//! The shipped demonstration box, `fixtures/demo/broken_torch.ld`, through the library: Python is found by reading files,
//! and the audit of it says what the README promises.

use std::path::Path;
use std::sync::Arc;

use bstr::ByteSlice;
use clap::Parser;
use ldaudit::cli::args::Args;
use ldaudit::cli::audit::{self, Plan};
use ldaudit::cli::loaders::Loaders;
use ldaudit::discover::Source;
use ldaudit::discover::python::{self, Environment, Python};
use ldaudit::fixture::{Fixture, Loader, What};
use ldaudit::render::Verdict;
use ldaudit::system::System;

const SITE: &str = "/home/ada/venv/lib/python3.11/site-packages";

fn demo() -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/demo/broken_torch.ld").to_string_lossy().into_owned()
}

fn fixture() -> Fixture {
    let text = std::fs::read(demo()).expect("the demonstration box");
    Fixture::parse(&text).expect("a fixture")
}

fn system() -> System {
    fixture().system(Loader::glibc(2, 36)).expect("a box")
}

fn find(system: &System) -> Python {
    let request = python::Request { named: None, ask: None, limit: python::DEFAULT_LIMIT };
    python::discover(system, &request).unwrap_or_else(|e| panic!("no Python found: {e}"))
}

fn plan(arguments: &[&str]) -> Plan {
    let demo = demo();
    let words = ["ldaudit", "torch", "--fixture", &demo].into_iter().chain(arguments.iter().copied());
    let args = Args::try_parse_from(words).expect("arguments");
    let system = audit::system(&args).unwrap_or_else(|e| panic!("no box: {e:?}"));
    audit::plan_target(&Loaders::new(&args, &system), &mut None, "torch".into())
        .unwrap_or_else(|e| panic!("no plan: {e:?}"))
}

#[test]
fn the_screen_of_the_readme_is_the_real_one() {
    let readme = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md")).expect("README.md");
    let mut lines = readme.lines().skip_while(|l| !l.starts_with("    $ ldaudit "));
    let command = lines.next().and_then(|l| l.strip_prefix("    $ ldaudit ")).expect("a screen");
    let mut shown = String::new();
    for line in lines {
        match line.strip_prefix("    ") {
            Some(line) => shown.push_str(line),
            None if line.is_empty() => {}
            None => break,
        }
        shown.push('\n');
    }
    // cargo runs tests in the directory of the package, as the README means it.
    let seen = run(&command.split(' ').collect::<Vec<_>>());
    assert_eq!(shown.trim_end(), String::from_utf8(seen.stdout).expect("UTF-8").trim_end());
}

fn run(arguments: &[&str]) -> std::process::Output {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_ldaudit"));
    command.args(arguments).env_clear().env("COLUMNS", "100").env("HOME", "/nonexistent").output().expect("run")
}

#[test]
fn the_command_that_a_screen_points_at_is_about_the_same_box() {
    let demo = demo();
    let scratch = std::env::temp_dir().join(format!("ldaudit-demo-{}", std::process::id()));
    let odd = scratch.join("it's a box; $(true) *");
    std::fs::create_dir_all(&odd).expect("directory");
    let copy = odd.join("box.ld").to_string_lossy().into_owned();
    std::fs::copy(&demo, &copy).expect("copy");
    let library_path = "LD_LIBRARY_PATH=/usr/local/cuda-12.0/lib64:/a b/it's";
    let options: &[&[&str]] = &[
        &["torch", "--fixture", &demo],
        &["torch", "--fixture", &copy],
        &["torch", "--fixture", &demo, "--env", library_path],
        &["torch", "--fixture", &demo, "--unset", "LD_LIBRARY_PATH", "--env=-odd=1", "--dlopen", "G:L:libnope.so.9"],
        &["torch", "--fixture", &demo, "--python", "/home/ada/venv/bin/python", "--loader", "glibc:2.31"],
        &["torch", "--fixture", &demo, "--import", "torch", "--cpu", "x86-64-v2", "--no-exec", "--assume-ldconfig"],
        &["torch", "--fixture", &demo, "--secure", "--dlopen", "lib\u{1b}\u{202e}\u{e4}.so"],
        &[
            "/home/ada/venv/lib/python3.11/site-packages/torch/_C.cpython-311-x86_64-linux-gnu.so",
            "--host",
            "/home/ada/venv/bin/python",
            "--fixture",
            &demo,
        ],
    ];
    for arguments in options {
        let screen = String::from_utf8(run(arguments).stdout).expect("UTF-8");
        let command = screen.lines().find_map(|l| l.find("ldaudit --why").map(|at| l[at..].to_owned()));
        let command = command.unwrap_or_else(|| panic!("{arguments:?} points at nothing:\n{screen}"));
        // bash: dash does not know $'...'.
        let pasted = std::process::Command::new("bash")
            .args([
                "-c",
                &format!("ldaudit() {{ '{}' \"$@\"; }}; {command} --format json", env!("CARGO_BIN_EXE_ldaudit")),
            ])
            .env_clear()
            .env("HOME", "/nonexistent")
            .output()
            .expect("bash");
        assert_eq!(pasted.status.code(), Some(0), "{command}: {}", String::from_utf8_lossy(&pasted.stderr));
        let record = |output: &[u8]| -> serde_json::Value { serde_json::from_slice(output).expect("JSON") };
        let (mut again, json) = (record(&pasted.stdout), [*arguments, &["--format", "json"]].concat());
        let told = again.as_object_mut().expect("a report").remove("why").expect("a story");
        assert!(!told.is_null());
        let mut first = record(&run(&json).stdout);
        first.as_object_mut().expect("a report").remove("why");
        assert_eq!(again, first, "{command} is about another process than {arguments:?}");
    }
    std::fs::remove_dir_all(&scratch).expect("removed");
}

#[test]
fn python_is_found_by_files_alone() {
    let system = system();
    let python = find(&system);
    assert_eq!(python.source(), Source::VirtualEnv);
    assert_eq!(python.environment(), Environment::Virtual("venv"));
    assert_eq!(python.interpreter.executable, "/home/ada/venv/bin/python");
    assert_eq!(python.interpreter.real_executable, "/usr/bin/python3.11");
    assert_eq!(python.interpreter.prefix, "/home/ada/venv");
    assert_eq!(python.interpreter.version.to_string(), "3.11.2");
    assert_eq!(python.interpreter.soabi(), Some("cpython-311-x86_64-linux-gnu".into()));
    assert_eq!(python.interpreter.site_packages(), Some(SITE.into()));
    assert_eq!(python.notes(), [], "every file of the box can be read");
}

#[test]
fn torch_and_its_wheels_are_found() {
    let system = system();
    let python = find(&system);
    let torch = python.torch().expect("torch");
    assert_eq!(torch.directory, format!("{SITE}/torch"));
    assert_eq!(torch.version, Some("2.4.0+cu121".into()));
    assert_eq!(torch.cuda, Some("12.1".into()));
    assert_eq!(torch.hip, None);
    assert_eq!(python.distributions().len(), 13);
    let distribution = python.distribution("torch").expect("the distribution");
    assert_eq!(distribution.version, "2.4.0");
    let requires = &python.metadata(distribution).requires;
    assert!(requires.iter().any(|r| r.contains_str("nvidia-cusparse-cu12 (==12.1.0.106)")), "{requires:?}");
    for (path, name, version) in [
        (format!("{SITE}/nvidia/nvjitlink/lib/libnvJitLink.so.12"), "nvidia-nvjitlink-cu12", "12.9.86"),
        (format!("{SITE}/torch/lib/../../nvidia/cusparse/lib/libcusparse.so.12"), "nvidia-cusparse-cu12", "12.1.0.106"),
        (format!("{SITE}/torch/lib/libtorch_cuda.so"), "torch", "2.4.0"),
    ] {
        let owner = python.owner_of(path.as_str().into()).expect("an owner");
        assert_eq!((owner.name(), owner.version()), (name.into(), version.into()), "{path}");
        assert!(system.exists(path.as_str().into()), "{path}");
    }
    // No library of the environment is without an owner.
    let libraries = fixture().statements.into_iter().filter_map(|s| match s.what {
        What::Elf { path, .. } if path.starts_with(SITE.as_bytes()) => Some(path),
        _ => None,
    });
    let libraries: Vec<_> = libraries.collect();
    assert_eq!(libraries.len(), 30);
    for path in libraries {
        assert!(python.owner_of(path.as_bstr()).is_some(), "{path}");
    }
    assert!(python.owner_of("/usr/local/cuda-12.0/lib64/libnvJitLink.so.12".into()).is_none());
}

#[test]
fn import_torch_fails_as_the_real_loader_says() {
    let plan = plan(&[]);
    let simulated = plan.simulate(&plan.host);
    let exception = simulated.exception.expect("an exception");
    assert_eq!(exception.class, "ImportError");
    assert_eq!(
        exception.text,
        format!(
            "/usr/local/cuda-12.0/lib64/libnvJitLink.so.12: version `libnvJitLink.so.12.1' not found (required by \
             {SITE}/torch/lib/../../nvidia/cusparse/lib/libcusparse.so.12)"
        )
    );
    assert!(simulated.endings.iter().all(|e| e.guess.is_none()), "2.4 is described");
    let report = audit::audit(&plan);
    assert_eq!(report.verdict, Verdict::Fails);
    assert_eq!(report.target.version.as_deref(), Some("2.4.0+cu121"));
}

#[test]
fn without_the_toolkits_element_it_works() {
    let plan = plan(&["--env", "LD_LIBRARY_PATH=/opt/tools/lib:"]);
    let simulated = plan.simulate(&plan.host);
    assert_eq!(simulated.exception, None);
    let loaded = |name: &str| {
        simulated.process.images.iter().any(|i| i.unloaded_by.is_none() && i.name.ends_with(name.as_bytes()))
    };
    assert!(loaded("/nvjitlink/lib/libnvJitLink.so.12"));
    assert!(!loaded("/usr/local/cuda-12.0/lib64/libnvJitLink.so.12"));
    assert_ne!(audit::audit(&plan).verdict, Verdict::Fails);
}

#[test]
fn the_box_can_be_audited_again_under_another_environment() {
    let plan = plan(&[]);
    let mut host = (*plan.host).clone();
    host.env.set("LD_PRELOAD", format!("{SITE}/nvidia/nvjitlink/lib/libnvJitLink.so.12"));
    let simulated = plan.simulate(&Arc::new(host));
    assert_eq!(simulated.exception, None, "the wheel's copy is there first");
}

#[test]
fn rules_that_are_asked_for_are_named_and_what_stays_of_the_box() {
    let demo = demo();
    let screen = |arguments: &[&str]| {
        let out = run(&[&["torch", "--fixture", &demo], arguments].concat()).stdout;
        String::from_utf8(out).expect("UTF-8").split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let asked = screen(&["--loader", "glibc:2.31"]);
    assert!(asked.contains("By the rules of glibc 2.31; the libraries, libc too, are this box's."), "{asked}");
    assert!(!screen(&[]).contains("By the rules of"));
}

#[test]
fn a_file_by_itself_is_seen_among_the_packages_around_it() {
    let demo = demo();
    let file = format!("{SITE}/nvidia/cusparse/lib/libcusparse.so.12");
    let screen = |arguments: &[&str]| {
        let out = run(&[&["--fixture", &demo, &file], arguments].concat()).stdout;
        String::from_utf8(out).expect("UTF-8").split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let alone = screen(&[]);
    for text in ["libcusparse.so.12 12.1.0.106 (nvidia-cusparse-cu12)", "12.9.86 (nvidia-nvjitlink-cu12) RUNPATH"] {
        assert!(alone.contains(text), "no {text:?} in {alone}");
    }
    let why = screen(&["--why", "libnvJitLink.so.12"]);
    assert!(why.contains("nvidia-nvjitlink-cu12 12.9.86"), "{why}");
}

/// The demonstration box without the lines that have one of some words, and its screen.
fn screen_without(words: &[&str]) -> String {
    let text = std::fs::read_to_string(demo()).expect("the demonstration box");
    let kept: Vec<&str> = text.lines().filter(|line| !words.iter().any(|word| line.contains(word))).collect();
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("demo-without-{}.ld", words.len()));
    std::fs::write(&path, kept.join("\n")).expect("a fixture");
    let out = run(&["torch", "--env", "LD_LIBRARY_PATH=", "--fixture", path.to_str().expect("a path")]).stdout;
    String::from_utf8(out).expect("UTF-8").split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn required_wheels_that_are_gone_are_asked_for_together() {
    let (cublas, cufft) =
        ("so /home/ada/venv/lib/python3.11/site-packages/nvidia/cublas/", "/nvidia/cufft/lib/libcufft.so.11 so");
    let gone = screen_without(&[cublas]);
    assert!(gone.contains("ImportError: libcublas.so.12: cannot open shared object file"), "{gone}");
    assert!(gone.contains("pip install --force-reinstall --no-deps nvidia-cublas-cu12==12.1.3.1 "), "{gone}");
    let uninstalled = screen_without(&[cublas, "/nvidia_cublas_cu12-"]);
    assert!(uninstalled.contains("try install nvidia-cublas-cu12==12.1.3.1, which is required and not installed"));
    assert!(uninstalled.contains("pip install nvidia-cublas-cu12==12.1.3.1 "), "{uninstalled}");
    let both = screen_without(&[cublas, "/nvidia_cublas_cu12-", cufft]);
    let commands = "pip install nvidia-cublas-cu12==12.1.3.1 \
                    pip install --force-reinstall --no-deps nvidia-cufft-cu12==11.0.2.54 ";
    assert!(both.contains(commands), "{both}");
}
