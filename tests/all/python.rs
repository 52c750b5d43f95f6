//! Does the discovery of Python say what Python itself says?
//!
//! The judge is the interpreter: `sys.path`, prefixes, suffixes, modules, `glob`, `fnmatch` and `importlib.metadata` of a
//! real, ordinary start are compared with both ways of finding out, asking and reading files. Interpreters: the
//! system's, those of pyenv, and the virtual environments of the big test boxes where they exist
//! (`$LDAUDIT_CACHE/boxes`; `LDAUDIT_REQUIRE=boxes` makes their absence a failure).

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use crate::support::{cached, require};
use bstr::{BStr, BString, ByteSlice};
use ldaudit::cli::ask::Live as LiveAsk;
use ldaudit::discover::python::{self, Ask, DEFAULT_LIMIT, KnownBy, Module, Owner, Python, Request};
use ldaudit::system::{Environment, Host, Live, System};
use serde_json::Value;

/// A directory that is removed with its value.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let dir = std::env::temp_dir().join(format!("ldaudit-python-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).expect("scratch directory");
        Scratch(dir.canonicalize().expect("scratch directory"))
    }

    fn file(&self, path: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().expect("parent")).expect("directory");
        fs::write(&path, bytes).expect("file");
        path
    }

    fn dir(&self, path: &str) -> PathBuf {
        let path = self.0.join(path);
        fs::create_dir_all(&path).expect("directory");
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn bytes(path: &Path) -> BString {
    path.as_os_str().as_bytes().into()
}

type Env = Vec<(String, String)>;

fn system(env: &Env, cwd: &Path) -> System {
    let mut host = Host::live();
    host.env = Environment::new();
    for (name, value) in env {
        host.env.set(name, value);
    }
    host.cwd = bytes(cwd);
    System::new(host, Arc::new(Live::new()))
}

fn base_env(home: &Path) -> Env {
    let path = std::env::var("PATH").unwrap_or_default();
    vec![("PATH".into(), path), ("HOME".into(), home.display().to_string()), ("LC_ALL".into(), "C.UTF-8".into())]
}

fn with(env: &Env, more: &[(&str, &str)]) -> Env {
    let mut env = env.clone();
    env.extend(more.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())));
    env
}

fn command(program: &Path, env: &Env, cwd: &Path) -> Command {
    let mut command = Command::new(program);
    command.env_clear().envs(env.iter().map(|(k, v)| (k, v))).current_dir(cwd);
    command
}

/// What an ordinary start of this interpreter says, by a script that prints one JSON value. `given` is its input.
fn truth(program: &Path, env: &Env, cwd: &Path, script: &str, given: &Value) -> Value {
    let script = format!("import sys, json\ngiven = json.load(open(sys.argv[1]))\n{script}\n");
    static COUNT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
    let n = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let input = std::env::temp_dir().join(format!("ldaudit-python-given-{}-{n}", std::process::id()));
    fs::write(&input, given.to_string()).expect("input");
    let out = command(program, env, cwd).args(["-B", "-c", &script]).arg(&input).output().expect("it starts");
    let _ = fs::remove_file(&input);
    assert!(out.status.success(), "{}: {}", program.display(), String::from_utf8_lossy(&out.stderr));
    serde_json::from_slice(&out.stdout).expect("JSON")
}

const FACTS: &str = r#"
import importlib.machinery, os
print(json.dumps({
    "path": sys.path,
    "executable": sys.executable, "prefix": sys.prefix, "exec_prefix": sys.exec_prefix,
    "base_prefix": sys.base_prefix, "base_exec_prefix": sys.base_exec_prefix,
    "version": list(sys.version_info[:3]), "abiflags": sys.abiflags,
    "suffixes": importlib.machinery.EXTENSION_SUFFIXES, "builtins": sorted(sys.builtin_module_names),
    "real": os.readlink("/proc/self/exe"), "platlibdir": getattr(sys, "platlibdir", "lib"),
}))"#;

fn discover(system: &System, program: &Path, asked: bool) -> Python {
    let named = bytes(program);
    let ask: Option<&dyn Ask> = if asked { Some(&LiveAsk) } else { None };
    let request = Request { named: Some(named.as_bstr()), ask, limit: DEFAULT_LIMIT };
    let python = python::discover(system, &request).unwrap_or_else(|e| panic!("{}: {e}", program.display()));
    assert_eq!(python.ask_failure, None, "{}", program.display());
    assert_eq!(matches!(python.interpreter.known_by, KnownBy::Asked { .. }), asked);
    python
}

/// Compares both ways with the truth in one environment.
fn compare(program: &Path, env: &Env, cwd: &Path) {
    let truth = truth(program, env, cwd, FACTS, &Value::Null);
    let system = system(env, cwd);
    for asked in [true, false] {
        let python = discover(&system, program, asked);
        let i = &python.interpreter;
        let what = format!("{} (asked: {asked}) with {:?}", program.display(), &env[1..]);
        let strings = |list: &[BString]| list.iter().map(ToString::to_string).collect::<Vec<_>>();
        let path: Vec<BString> = i.path.iter().map(|e| e.text.clone()).collect();
        assert_eq!(Value::from(strings(&path)), truth["path"], "sys.path of {what}");
        for (name, ours) in [
            ("executable", &i.executable),
            ("prefix", &i.prefix),
            ("exec_prefix", &i.exec_prefix),
            ("base_prefix", &i.base_prefix),
            ("base_exec_prefix", &i.base_exec_prefix),
            ("abiflags", &i.abiflags),
            ("real", &i.real_executable),
            ("platlibdir", &i.platlibdir),
        ] {
            assert_eq!(ours.to_str().ok(), truth[name].as_str(), "{name} of {what}");
        }
        // An installation without headers does not tell the last part of its version.
        let micro = i.version.micro.map_or(truth["version"][2].clone(), Value::from);
        let version = Value::from(vec![Value::from(i.version.major), Value::from(i.version.minor), micro]);
        assert_eq!(version, truth["version"], "version of {what}");
        assert_eq!(Value::from(strings(&i.extension_suffixes)), truth["suffixes"], "suffixes of {what}");
        if let Some(builtins) = &i.builtins {
            let mut builtins = strings(builtins);
            builtins.sort();
            assert_eq!(Value::from(builtins), truth["builtins"], "builtins of {what}");
        }
        if asked {
            assert_eq!(i.known_by, KnownBy::Asked { environment: Vec::new() }, "{what}");
        }
    }
}

fn boxes() -> Vec<PathBuf> {
    let found = cached::boxes();
    if found.is_empty() {
        require::skip("boxes", &format!("there are no boxes below {}", cached::directory().display()));
    }
    found
}

fn pyenv_root() -> Option<PathBuf> {
    std::env::var_os("PYENV_ROOT")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".pyenv")))
}

/// Interpreters of this machine that are no environments: of the system and of pyenv.
fn interpreters() -> Vec<PathBuf> {
    let mut found = Vec::new();
    if Path::new("/usr/bin/python3").exists() {
        found.push(PathBuf::from("/usr/bin/python3"));
    }
    let versions = pyenv_root().map(|r| r.join("versions")).and_then(|v| fs::read_dir(v).ok());
    let mut pyenv: Vec<PathBuf> = versions
        .into_iter()
        .flatten()
        .filter_map(|e| Some(e.ok()?.path().join("bin/python3")))
        .filter(|p| p.exists())
        .collect();
    let numbers = |path: &PathBuf| {
        let text = path.display().to_string();
        text.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse::<u32>().ok()).collect::<Vec<_>>()
    };
    pyenv.sort_by_key(numbers);
    found.extend(pyenv);
    assert!(!found.is_empty(), "this test needs a python3");
    found
}

#[test]
fn boxes_are_the_same_asked_and_read() {
    let scratch = Scratch::new("boxes");
    let env = base_env(&scratch.dir("home"));
    for b in boxes() {
        let python = b.join("bin/python");
        compare(&python, &env, &scratch.0);
        compare(&b.join("bin/python3"), &env, &scratch.0);
        let path = format!("{}::relative/../other:/nowhere/", scratch.0.display());
        compare(&python, &with(&env, &[("PYTHONPATH", &path)]), &scratch.0);
    }
}

#[test]
fn installations_are_the_same_asked_and_read() {
    let scratch = Scratch::new("installations");
    let env = base_env(&scratch.dir("home"));
    let extra = scratch.dir("extra");
    scratch.dir("extra/sub");
    scratch.file("extra/file.zip", b"not really");
    for (n, python) in interpreters().into_iter().enumerate() {
        // A user site directory with path lines of every kind.
        let facts = truth(&python, &env, &scratch.0, FACTS, &Value::Null);
        let (major, minor) = (&facts["version"][0], &facts["version"][1]);
        let user = format!("home/.local/lib/python{major}.{minor}/site-packages");
        scratch.dir(&format!("{user}/beside"));
        scratch.dir(&format!("{user}/../beyond"));
        let lines = format!(
            "# comment\n\nbeside\n./beside\n{0}\n{0}/sub/../sub \t\n/nowhere/at/all\nimport sys; sys.flag = 1\n\
             import\tos\n  beside\n../site-packages\r\nbeside/../../beyond\n{0}/file.zip",
            extra.display()
        );
        scratch.file(&format!("{user}/b.pth"), lines.as_bytes());
        scratch.file(&format!("{user}/a.pth"), extra.as_os_str().as_bytes());
        scratch.file(&format!("{user}/ignored.pth.bak"), b"beside");
        scratch.dir(&format!("{user}/hidden"));
        scratch.file(&format!("{user}/.hidden.pth"), b"hidden\n");
        scratch.dir(&format!("{user}/marked"));
        scratch.file(&format!("{user}/marked.pth"), b"\xef\xbb\xbfmarked\n");
        // Before 3.8 `site` leaves the file at the line with the NUL byte.
        scratch.dir(&format!("{user}/ahead"));
        scratch.dir(&format!("{user}/behind"));
        scratch.file(&format!("{user}/nul.pth"), b"ahead\n# \0\nnul\0\nbehind\n");
        let extra = extra.to_str().expect("UTF-8");
        let prefix = facts["prefix"].as_str().expect("prefix");
        compare(&python, &env, &scratch.0);
        for more in [
            &[("PYTHONNOUSERSITE", "1")][..],
            &[("PYTHONSAFEPATH", "1")],
            &[("PYTHONPATH", &format!("{extra}:{extra}/sub/:{extra}"))],
            &[("PYTHONUSERBASE", extra)],
            &[("PYTHONHOME", prefix), ("PYTHONPATH", extra)],
            &[("PYTHONHOME", &format!("{prefix}:{prefix}")), ("PYTHONNOUSERSITE", "1")],
        ] {
            compare(&python, &with(&env, more), &scratch.0);
        }
        // By a link somewhere else, absolute and relative, and by a linked directory.
        let up = "../".repeat(scratch.0.components().count() + 1);
        let relative = scratch.0.join(format!("deep/python{major}.{minor}-{n}"));
        fs::create_dir_all(scratch.0.join("deep")).expect("directory");
        symlink(format!("{up}{}", python.display()), &relative).expect("link");
        compare(&relative, &env, &scratch.0);
        let link = scratch.0.join(format!("link-{n}"));
        symlink(&python, &link).expect("link");
        compare(&link, &env, &scratch.0);
        let tree = scratch.0.join(format!("tree-{n}"));
        symlink(prefix, &tree).expect("link");
        compare(&tree.join("bin/python3"), &env, &scratch.0);
    }
}

#[test]
fn virtual_environments_are_the_same_asked_and_read() {
    let scratch = Scratch::new("environments");
    let env = base_env(&scratch.dir("home"));
    for (n, python) in interpreters().iter().enumerate() {
        for (kind, arguments) in
            [("plain", &[][..]), ("system", &["--system-site-packages"]), ("copied", &["--copies"])]
        {
            let venv = scratch.0.join(format!("{kind}-{n}"));
            let mut make = command(python, &env, &scratch.0);
            let made =
                make.args(["-B", "-m", "venv", "--without-pip"]).args(arguments).arg(&venv).output().expect("runs");
            if !made.status.success() {
                println!("SKIPPED: {} cannot make environments", python.display());
                continue;
            }
            let name = fs::read_dir(venv.join("lib")).expect("lib").next().expect("one").expect("entry").file_name();
            let site = venv.join("lib").join(&name).join("site-packages");
            fs::create_dir_all(site.join("added")).expect("directory");
            fs::write(site.join("added.pth"), "added\nimport sys\n").expect("file");
            // A user site directory that only `--system-site-packages` sees.
            scratch.dir(&format!("home/.local/lib/{}/site-packages", name.to_string_lossy()));
            compare(&venv.join("bin/python"), &env, &scratch.0);
            let link = scratch.0.join(format!("link-{kind}-{n}"));
            symlink(&venv, &link).expect("link");
            compare(&link.join("bin/python3"), &env, &scratch.0);
        }
    }
}

#[test]
fn pyenv_shims_lead_where_pyenv_leads() {
    let Some(root) = pyenv_root().filter(|r| r.join("shims/python3").exists() && r.join("libexec/pyenv").exists())
    else {
        println!("SKIPPED: no pyenv with shims");
        return;
    };
    let scratch = Scratch::new("pyenv");
    let project = scratch.dir("project/deep");
    let versions: Vec<String> = fs::read_dir(root.join("versions"))
        .expect("versions")
        .filter_map(|e| e.ok()?.file_name().into_string().ok())
        .filter(|v| root.join("versions").join(v).join("bin/python3").exists())
        .collect();
    let mut wanted: Vec<String> = versions.clone();
    wanted.extend(versions.iter().filter_map(|v| Some(v.rsplit_once('.')?.0.to_owned())));
    wanted.extend(["3", "system", "3.99", "python-3", "3.99:system", "9:3"].map(str::to_owned));
    wanted.extend(versions.first().map(|first| format!("python-{first}")));
    for program in ["python3", "python"] {
        let shim = root.join("shims").join(program);
        for (n, version) in wanted.iter().enumerate() {
            let mut env = base_env(&scratch.0);
            let local = scratch.0.join("project/.python-version");
            let _ = fs::remove_file(&local);
            if n % 2 == 0 {
                env.push(("PYENV_VERSION".into(), version.clone()));
            } else {
                fs::write(&local, format!("# ours\n{}\n", version.replace(':', "\n"))).expect("file");
            }
            let script = "import sys; sys.stdout.write(sys.executable)";
            let real = command(&shim, &env, &project).args(["-c", script]).output().expect("the shim starts");
            let named = bytes(&shim);
            let request = Request { named: Some(named.as_bstr()), ask: None, limit: DEFAULT_LIMIT };
            let ours = python::discover(&system(&env, &project), &request);
            if real.status.success() {
                let python = ours.unwrap_or_else(|e| panic!("{program} {version}: {e}"));
                assert_eq!(python.interpreter.executable.as_bytes(), real.stdout, "{program} {version}");
            } else {
                assert!(ours.is_err(), "{program} {version}: {:?}", ours.map(|p| p.interpreter.executable));
            }
        }
    }
}

const MODULES: &str = r#"
from importlib.machinery import PathFinder, BuiltinImporter
def look(name):
    path = None
    parts = name.split(".")
    for i, part in enumerate(parts):
        if i == 0 and BuiltinImporter.find_spec(part):
            return "builtin"
        spec = PathFinder.find_spec(part, path)
        if spec is None:
            return None
        path = spec.submodule_search_locations
        if path is None and i + 1 < len(parts):
            return None
    if spec.origin is None or spec.loader is None or spec.origin == "namespace":
        return list(path)
    return spec.origin
print(json.dumps([look(name) for name in given]))"#;

#[test]
fn modules_are_found_where_import_finds_them() {
    let scratch = Scratch::new("modules");
    let env = base_env(&scratch.dir("home"));
    // A directory of odd cases as working directory, which comes first.
    let odd = scratch.dir("odd");
    for path in ["pkg/__init__.py", "both.py", "space/inner/__init__.py", "plain.pyc", "dir_and_file.py", "order.py"] {
        scratch.file(&format!("odd/{path}"), b"");
    }
    for path in ["extension/__init__.so", "extension/__init__.py", "order.abi3.so", "order.so"] {
        scratch.file(&format!("odd/{path}"), b"");
    }
    for path in ["both", "dir_and_file/__init__.py", "nvidia/cublas"] {
        scratch.dir(&format!("odd/{path}"));
    }
    let names = [
        "pkg",
        "both",
        "space",
        "space.inner",
        "plain",
        "dir_and_file",
        "extension",
        "order",
        "absent",
        "absent.x",
        "pkg.absent",
        "nvidia",
        "nvidia.cublas",
        "nvidia.cublas.lib",
        "nvidia.cudnn",
        "os",
        "os.path",
        "sys",
        "_ctypes",
        "math",
        "_ssl",
        "zlib",
        "json",
        "json.decoder",
        "torch",
        "torch._C",
        "torch.version",
        "torch.lib",
        "onnxruntime",
        "google",
        "onnxruntime.capi.onnxruntime_pybind11_state",
        "numpy",
        "numpy.core._multiarray_umath",
        "triton._C.libtriton",
        "ctranslate2._ext",
        "sqlite3",
        "encodings",
        "email.mime",
        "marshal",
        "errno",
        "posix",
        "_struct",
        "itertools",
    ];
    let given = Value::from(names.to_vec());
    let mut programs = interpreters();
    programs.extend(boxes().iter().map(|b| b.join("bin/python")));
    for program in programs {
        let truth = truth(&program, &env, &odd, MODULES, &given);
        let system = system(&env, &odd);
        for asked in [true, false] {
            let python = discover(&system, &program, asked);
            for (name, expected) in names.iter().zip(truth.as_array().expect("list")) {
                let ours = match python.find_module(name).module {
                    Module::BuiltIn => Value::from("builtin"),
                    Module::Package { init: file, .. } | Module::Extension(file) | Module::Source(file) => {
                        // What comes from the working directory has a relative name in older versions.
                        Value::from(file.to_string())
                    }
                    Module::Namespace(all) => Value::from(all.iter().map(ToString::to_string).collect::<Vec<_>>()),
                    Module::Missing => Value::Null,
                };
                // Only CPython 3.8 and later leave a list of their built-in modules among their files.
                if !asked && expected == "builtin" && python.interpreter.version.older_than(3, 8) {
                    continue;
                }
                assert_eq!(ours, *expected, "{name} in {} (asked: {asked})", program.display());
            }
        }
    }
}

const GLOB: &str = "import glob\nprint(json.dumps([glob.glob(p) for p in given]))";

#[test]
fn glob_gives_the_same_files_in_the_same_order() {
    let scratch = Scratch::new("glob");
    let env = base_env(&scratch.0);
    for n in [12, 8, 11, 13, 9, 2, 100] {
        scratch.file(&format!("nvidia/cublas/lib/libcublas.so.{n}"), b"");
        scratch.file(&format!("many/libcudnn_ops_infer.so.{n}"), b"");
    }
    for name in [
        "libcublas.so",
        "libcublas.so.x",
        ".hidden.so.1",
        "[x].so.1",
        "a]b",
        "ü.so.1",
        "-",
        "a-b",
        "file/x",
        "z/lib.so",
    ] {
        scratch.file(&format!("nvidia/cublas/lib/{name}"), b"");
    }
    scratch.dir("nvidia/cudnn/lib");
    scratch.file("nvidia/file", b"");
    symlink("cublas", scratch.0.join("nvidia/linked")).expect("link");
    symlink("nowhere", scratch.0.join("nvidia/dangling")).expect("link");
    let mut patterns: Vec<String> = [
        "nvidia/cublas/lib/libcublas.so.*[0-9]",
        "nvidia/*/lib/libcublas.so.*[0-9]",
        "many/*.so.*[0-9].*[0-9]",
        "many/*",
        "*",
        "*/*",
        "*/*/",
        "nvidia/*/",
        "nvidia/dangling",
        "nvidia/dang*",
        "nvidia/cublas/lib/.*",
        "many/[",
        "many/[!",
        "nvidia/cublas/lib/[[]x].so.*",
        "nvidia/cublas/lib/?.so.1",
        "nvidia/cublas/lib/*]*",
        "nvidia/cublas/lib/[!a-y]*",
        "nvidia/cublas/lib/[a-]*",
        "nvidia/cublas/lib/[]a]*",
        "nvidia//cublas/lib/*1",
        "./nvidia/*/lib",
        "../*/nvidia/cub*",
        "absent/*",
        "nvidia/file/*",
        "",
        "/",
        "/*/../etc",
        "nvidia/**/lib",
        "nvidia/c*/lib/../l*b/*.so",
        "nvidia/file/",
        "*/file/",
    ]
    .map(str::to_owned)
    .into();
    let root = scratch.0.display();
    patterns.extend(patterns.clone().iter().map(|p| format!("{root}/{p}")));
    let mut runs = vec![(interpreters().pop().expect("the newest"), patterns)];
    for b in boxes() {
        let site = format!("{}/lib/python3.11/site-packages", b.display());
        let patterns = [
            "*",
            "nvidia/*/lib/*.so.*[0-9]",
            "nvidia/*",
            "torch/lib/*",
            "torch/lib/lib*.so*",
            "nvidia/cu*/lib/lib*[0-9]",
        ];
        runs.push((b.join("bin/python"), patterns.iter().map(|p| format!("{site}/{p}")).collect()));
    }
    for (program, patterns) in runs {
        let truth = truth(&program, &env, &scratch.0, GLOB, &Value::from(patterns.clone()));
        let python = discover(&system(&env, &scratch.0), &program, false);
        for (pattern, expected) in patterns.iter().zip(truth.as_array().expect("list")) {
            let ours: Vec<String> = python.glob(pattern.as_str().into()).iter().map(ToString::to_string).collect();
            assert_eq!(Value::from(ours), *expected, "{pattern}");
        }
    }
}

#[test]
fn names_match_patterns_as_fnmatch_says() {
    let scratch = Scratch::new("fnmatch");
    let alphabet: Vec<char> = "ab0-9[]!*?.^ü\\".chars().collect();
    let mut state = 0x1234_5678_9abc_def1_u64;
    let mut next = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state % below as u64).expect("small")
    };
    let mut text = |longest: usize| {
        let length = next(longest + 1);
        (0..length).map(|_| alphabet[next(alphabet.len())]).collect::<String>()
    };
    let pairs: Vec<Vec<String>> = (0..6000).map(|_| vec![text(4), text(7)]).collect();
    // A range that runs backwards is empty, but before 3.10 it is an error; those pairs are left out.
    let python = interpreters().pop().expect("the newest");
    let script = r#"
import fnmatch, re
def match(n, p):
    try: return fnmatch.fnmatchcase(n, p)
    except re.error: return None
print(json.dumps([match(n, p) for n, p in given]))"#;
    let truth = truth(&python, &base_env(&scratch.0), &scratch.0, script, &Value::from(pairs.clone()));
    let mut hits = 0;
    for (pair, expected) in pairs.iter().zip(truth.as_array().expect("list")) {
        if expected.is_null() {
            continue;
        }
        let ours = python::glob::matches_name(pair[0].as_str().into(), pair[1].as_str().into());
        assert_eq!(Value::from(ours), *expected, "{pair:?}");
        hits += usize::from(ours);
    }
    assert!(hits > 200, "only {hits} of the pairs match: a weak test");
}

const DISTRIBUTIONS: &str = r#"
import importlib.metadata as m, os
out = []
for d in m.distributions():
    files = d.files or []
    some = [os.path.abspath(str(d.locate_file(f))) for f in files[:: max(1, len(files) // 40)]]
    some += [os.path.abspath(str(d.locate_file(f))) for f in files if ".so" in f.name or "/bin/" in str(f)]
    installer = d.read_text("INSTALLER")
    out.append([d.metadata["Name"], d.version, d.metadata.get_all("Requires-Dist") or [], some, installer and installer.strip()])
print(json.dumps(out))"#;

#[test]
fn distributions_and_owners_are_those_of_importlib_metadata() {
    let scratch = Scratch::new("distributions");
    let env = base_env(&scratch.0);
    for b in boxes() {
        let program = b.join("bin/python");
        let truth = truth(&program, &env, &scratch.0, DISTRIBUTIONS, &Value::Null);
        let python = discover(&system(&env, &scratch.0), &program, true);
        let mut owners: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let rows = truth.as_array().expect("list");
        for row in rows {
            let name = row[0].as_str().expect("name");
            let ours = python.distribution(name).unwrap_or_else(|| panic!("{name} in {}", b.display()));
            let metadata = python.metadata(ours);
            assert_eq!(metadata.name.to_str().ok(), row[0].as_str());
            assert_eq!(metadata.version.to_str().ok(), row[1].as_str(), "{name}");
            assert_eq!(ours.version.to_str().ok(), row[1].as_str(), "{name}: version of the directory name");
            let requires: Vec<String> = metadata.requires.iter().map(ToString::to_string).collect();
            assert_eq!(Value::from(requires), row[2], "{name}");
            assert_eq!(
                metadata.installer.as_ref().map(ToString::to_string),
                row[4].as_str().map(str::to_owned),
                "{name}"
            );
            for file in row[3].as_array().expect("files") {
                owners.entry(file.as_str().expect("path").to_owned()).or_default().push(ours.normalised.to_string());
            }
        }
        assert_eq!(python.distributions().len(), rows.len(), "{}", b.display());
        assert!(owners.len() > 200, "{} files", owners.len());
        for (file, wanted) in &owners {
            let Some(Owner::Distribution(owner)) = python.owner_of(file.as_str().into()) else {
                panic!("{file}: no owner")
            };
            assert_eq!(owner.written_name(), python.metadata(owner).name);
            // A file that several wheels bring (`nvidia/__init__.py`) may be said to be any one's.
            assert!(wanted.contains(&owner.normalised.to_string()), "{file}: {} instead of {wanted:?}", owner.name);
        }
        let site = python.interpreter.site_packages().expect("site-packages").to_string();
        let libraries = python.glob(format!("{site}/nvidia/*/lib/libcu*.so.*").as_str().into());
        for library in &libraries {
            let owner = python.owner_of(library.as_bstr()).expect("an owner");
            assert!(owner.name().starts_with(b"nvidia-"), "{library}: {}", owner.name());
        }
        assert!(!libraries.is_empty());
        // The same file by the other library directory and by `..`; then files of nobody.
        let roundabout = format!("{site}/torch/lib/../../torch/lib/libc10.so");
        let other = format!("{}/lib64/python3.11/site-packages/torch/lib/libc10.so", b.display());
        for path in [roundabout, other] {
            assert_eq!(
                python.owner_of(path.as_str().into()).map(|o| o.name().to_string()),
                Some("torch".into()),
                "{path}"
            );
        }
        let venv_file = format!("{}/pyvenv.cfg", b.display());
        for path in [&format!("{site}/torch/lib/nobody.so"), &venv_file, "/usr/lib/libc.so", "torch"] {
            assert!(python.owner_of(path.into()).is_none(), "{path}");
        }
        let torch = python.torch().expect("torch");
        assert_eq!(torch.directory, format!("{site}/torch"));
        let expected = fs::read_to_string(format!("{site}/torch/version.py")).expect("version.py");
        let (version, cuda) = (torch.version.as_ref().expect("version"), torch.cuda.as_ref().expect("cuda"));
        assert!(expected.contains(&format!("__version__ = '{version}'")), "{version}");
        assert!(expected.contains(&format!("= '{cuda}'")), "{cuda}");
        assert!(version.starts_with(&python.distribution("torch").expect("torch").version));
        let libraries = python.library_directories(python.path().last().expect("entry"), &["torch", "absent"]);
        assert!(libraries.iter().any(|l| l.folder == "torch" && l.names.iter().any(|n| n == "libc10.so")));
        assert!(libraries.iter().any(|l| l.folder.starts_with(b"nvidia/") && !l.names.is_empty()));
        assert_eq!(python.notes().iter().filter(|n| n.act != "skip").count(), 0, "{:?}", python.notes());
        assert_eq!(python.environment().to_string(), "virtual environment made by uv");
        assert_eq!(python.shared_library(), Some("libpython3.11.so".into()));
    }
}

#[test]
fn asking_runs_no_code_of_the_directory_the_environment_or_the_search_path() {
    let scratch = Scratch::new("harmless");
    let mark = scratch.0.join("mark");
    // `posix` is built in and needs no text encoding, which may be just what is being imported.
    let bomb = format!(
        "import posix; d = posix.open({:?}, 1089, 420); posix.write(d, __name__.encode() + b' '); posix.close(d)\n",
        mark.display().to_string()
    );
    // Modules that a start, `site` or the script might import, in the working directory and on PYTHONPATH.
    for directory in ["cwd", "extra"] {
        for name in [
            "os",
            "site",
            "json",
            "locale",
            "encodings/__init__",
            "sitecustomize",
            "usercustomize",
            "re",
            "io",
            "codecs",
            "pkgutil",
            "_sitebuiltins",
            "stat",
            "abc",
            "traceback",
            "sysconfig",
            "_bootlocale",
        ] {
            scratch.file(&format!("{directory}/{name}.py"), bomb.as_bytes());
        }
    }
    let calm = scratch.dir("calm");
    for python in interpreters() {
        let mut env = base_env(&scratch.dir("home"));
        let version = truth(&python, &env, &calm, "print(json.dumps(list(sys.version_info[:2])))", &Value::Null);
        let _ = fs::remove_file(&mark);
        let site = format!("home/.local/lib/python{}.{}/site-packages", version[0], version[1]);
        scratch.file(&format!("{site}/x.pth"), bomb.as_bytes());
        scratch.file(&format!("{site}/sitecustomize.py"), bomb.as_bytes());
        scratch.file(&format!("{site}/usercustomize.py"), bomb.as_bytes());
        let cwd = scratch.0.join("cwd");
        env.push(("PYTHONPATH".into(), scratch.0.join("extra").display().to_string()));
        let prefix = python.parent().and_then(Path::parent).expect("prefix").display().to_string();
        for env in [env.clone(), with(&env, &[("PYTHONHOME", &prefix)])] {
            let found = discover(&system(&env, &cwd), &python, true);
            assert!(!mark.exists(), "{}: {}", python.display(), fs::read_to_string(&mark).unwrap_or_default());
            assert!(found.path().iter().any(|e| e.directory.ends_with(b"/extra")), "{:?}", found.path());
            let skipped = found.notes().iter().filter(|n| n.act == "skip" && n.path.ends_with(b"x.pth")).count();
            assert_eq!(skipped, 1, "{:?}", found.notes());
        }
        assert!(!scratch.0.join("extra/__pycache__").exists(), "byte code was written");
        // The trap is real: an ordinary start springs it.
        let _ = command(&python, &env, &cwd).args(["-B", "-c", ""]).output().expect("starts");
        assert!(mark.exists(), "{}: the trap does not work", python.display());
        fs::remove_file(&mark).expect("mark");
    }
}

#[test]
fn a_path_file_that_is_too_large_is_not_read() {
    let scratch = Scratch::new("large");
    let calm = scratch.dir("calm");
    let [small, large] = ["small", "large"].map(|name| scratch.dir(name).display().to_string());
    for python in interpreters() {
        let env = base_env(&scratch.dir("home"));
        let version = truth(&python, &env, &calm, "print(json.dumps(list(sys.version_info[:2])))", &Value::Null);
        let site = format!("home/.local/lib/python{}.{}/site-packages", version[0], version[1]);
        scratch.file(&format!("{site}/a.pth"), format!("{small}\n").as_bytes());
        scratch.file(&format!("{site}/b.pth"), format!("{large}\n").repeat((1 << 20) / large.len()).as_bytes());
        for asked in [true, false] {
            let found = discover(&system(&env, &calm), &python, asked);
            let has = |directory: &str| found.path().iter().any(|e| e.directory == directory);
            assert!(has(&small) && !has(&large), "{}: {:?}", python.display(), found.path());
            let told = found.path_file_damage().iter().any(|n| n.path.ends_with(b"b.pth") && n.act == "read");
            assert!(told, "{}: {:?}", python.display(), found.path_file_damage());
        }
    }
}

#[test]
fn each_failure_to_answer_is_its_own_and_files_are_read_instead() {
    let scratch = Scratch::new("failures");
    let python = &interpreters()[0];
    let env = base_env(&scratch.0);
    let calm = system(&env, &scratch.0);
    let ask = |script: &str, limit: f32| {
        let path = scratch.file("wrapper", format!("#!/bin/sh\n{script}\n").as_bytes());
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("mode");
        let named = bytes(&path);
        let limit = Duration::from_secs_f32(limit);
        python::discover(&calm, &Request { named: Some(named.as_bstr()), ask: Some(&LiveAsk), limit })
    };
    let text = |result: Result<Python, python::Error>| result.err().map(|e| e.to_string()).unwrap_or_default();
    let wrapper = scratch.0.join("wrapper").display().to_string();
    let expect = |why: &str| format!("cannot ask `{wrapper}` for its paths: {why}");
    assert_eq!(text(ask("sleep 60", 0.2)), expect("no answer within 0.2 s"));
    let status = expect("it ended with status 7: boom: no");
    assert_eq!(text(ask("echo one >&2; echo 'boom: no' >&2; exit 7", 30.0)), status);
    assert_eq!(text(ask("kill -11 $$", 30.0)), expect("it ended with signal 11"));
    assert_eq!(text(ask("echo hello", 30.0)), expect("no answer in its output"));
    let wrong = text(ask("echo 'ldaudit-python/1 {\"path\":3}'", 30.0));
    assert!(wrong.starts_with(&expect("not the expected answer (")), "{wrong}");
    assert_eq!(text(ask("yes", 30.0)), expect("it wrote more than 4194304 bytes"));
    // A wrapper that sets variables is seen through.
    let script = format!("echo noise; export LD_LIBRARY_PATH=/opt/own; exec {} \"$@\"", python.display());
    let found = ask(&script, 30.0).expect("the wrapper answers");
    let environment = vec![("LD_LIBRARY_PATH".into(), "/opt/own".into())];
    assert_eq!(found.interpreter.known_by, KnownBy::Asked { environment });
    assert_eq!(found.interpreter.real_executable, bytes(&python.canonicalize().expect("real")));
    // An interpreter whose start fails is read from files, and the failure is kept.
    let named = bytes(python);
    scratch.file("broken/libc.so.6", b"");
    let broken = with(&env, &[("LD_LIBRARY_PATH", &scratch.0.join("broken").display().to_string())]);
    let request = Request { named: Some(named.as_bstr()), ask: Some(&LiveAsk), limit: DEFAULT_LIMIT };
    let found = python::discover(&system(&broken, &scratch.0), &request).expect("files tell");
    assert_eq!(found.interpreter.known_by, KnownBy::Files);
    let failure = found.ask_failure.expect("kept").to_string();
    assert!(failure.contains("it ended with status 127") && failure.contains("libc.so.6"), "{failure}");
    // A file that is no program.
    let path = scratch.file("text", b"no program");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("mode");
    let named = bytes(&path);
    let request = Request { named: Some(named.as_bstr()), ask: Some(&LiveAsk), limit: DEFAULT_LIMIT };
    let refused = text(python::discover(&calm, &request));
    assert_eq!(refused, format!("cannot use `{}` as Python: not an executable file", path.display()));
}

#[test]
fn variables_and_path_are_looked_at_in_order() {
    let scratch = Scratch::new("order");
    let python = interpreters()[0].canonicalize().expect("real");
    for directory in ["venv/bin", "conda/bin", "path"] {
        scratch.dir(directory);
        symlink(&python, scratch.0.join(directory).join("python3")).expect("link");
    }
    let at = |name: &str| scratch.0.join(name).display().to_string();
    let choose = |env: &[(&str, String)], named: Option<&str>| {
        let env: Env = env.iter().map(|(k, v)| ((*k).to_owned(), v.clone())).collect();
        let request = Request { named: named.map(BStr::new), ask: None, limit: DEFAULT_LIMIT };
        python::discover(&system(&env, &scratch.0), &request)
            .map(|p| (p.choice.executable.to_string(), p.source().to_string()))
            .map_err(|e| e.to_string())
    };
    let path = ("PATH", format!("/nowhere:{}:/usr/bin", at("path")));
    let venv = ("VIRTUAL_ENV", at("venv"));
    let conda = ("CONDA_PREFIX", at("conda"));
    let stale = ("VIRTUAL_ENV", at("gone"));
    let ok = |path: &str, source: &str| Ok((at(path), source.to_owned()));
    assert_eq!(choose(&[path.clone(), venv.clone(), conda.clone()], None), ok("venv/bin/python3", "VIRTUAL_ENV"));
    assert_eq!(choose(&[path.clone(), conda.clone()], None), ok("conda/bin/python3", "CONDA_PREFIX"));
    assert_eq!(choose(std::slice::from_ref(&path), None), ok("path/python3", "PATH[1]"));
    assert_eq!(choose(&[path.clone(), stale.clone()], None), ok("path/python3", "PATH[1]"));
    assert_eq!(choose(&[path.clone(), venv], Some("conda")), ok("conda/bin/python3", "--python"));
    assert_eq!(choose(std::slice::from_ref(&path), Some("./venv/bin/python3")), ok("venv/bin/python3", "--python"));
    assert_eq!(choose(&[path], Some("python3")), ok("path/python3", "--python"));
    let expected = format!(
        "no Python found: VIRTUAL_ENV: `{}` does not exist; CONDA_PREFIX is not set; neither `python3` nor `python` in the \
         only directory of PATH",
        at("gone")
    );
    assert_eq!(choose(&[("PATH", "/nowhere".into()), stale], None), Err(expected));
}
