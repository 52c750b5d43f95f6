//! Layouts of environments in memory: what files alone tell. `tests/all/python.rs` compares the same code with real
//! interpreters; here are the layouts that no test machine has all of.

use std::sync::Arc;

use bstr::{BString, ByteSlice};

use super::*;
use crate::system::{Host, Tree};

/// A box in memory: files, links, environment.
struct Sketch {
    tree: Tree,
    host: Host,
}

impl Sketch {
    fn new() -> Sketch {
        let mut host = Host::bare();
        host.cwd = "/work".into();
        host.env.set("HOME", "/home/me");
        let mut sketch = Sketch { tree: Tree::new(), host };
        sketch.dir("/work");
        sketch
    }

    fn file(&mut self, path: &str, bytes: impl AsRef<[u8]>) {
        self.tree.add_file(path, bytes.as_ref().to_vec()).expect(path);
    }

    fn program(&mut self, path: &str) {
        self.file(path, b"\x7fELF");
        self.tree.set_mode(path, 0o755).expect(path);
    }

    fn dir(&mut self, path: &str) {
        self.tree.add_directory(path).expect(path);
    }

    fn link(&mut self, path: &str, target: &str) {
        self.tree.add_link(path, target).expect(path);
    }

    /// An installation: program, library with its landmark, extensions.
    fn python(&mut self, prefix: &str, lib: &str, name: &str, suffix: &str) {
        self.program(&format!("{prefix}/bin/{name}"));
        self.link(&format!("{prefix}/bin/python3"), name);
        self.file(&format!("{prefix}/{lib}/{name}/os.py"), "");
        self.file(&format!("{prefix}/{lib}/{name}/site.py"), "PREFIXES = [sys.prefix, sys.exec_prefix]\n");
        self.file(&format!("{prefix}/{lib}/{name}/lib-dynload/_ctypes{suffix}"), "");
    }

    fn system(&self) -> System {
        System::new(self.host.clone(), Arc::new(self.tree.clone()))
    }

    fn read(&self, named: Option<&str>) -> Result<Python, Error> {
        let request = Request { named: named.map(Into::into), ask: None, limit: DEFAULT_LIMIT };
        discover(&self.system(), &request)
    }

    #[track_caller]
    fn expect(&self, named: Option<&str>) -> Python {
        self.read(named).unwrap_or_else(|e| panic!("{e}"))
    }

    #[track_caller]
    fn fails(&self, named: Option<&str>) -> String {
        self.read(named).err().expect("an error").to_string()
    }
}

const LINUX: &str = ".cpython-311-x86_64-linux-gnu.so";

/// `sys.path` without the working directory.
fn path(python: &Python) -> Vec<String> {
    python.path().iter().skip(1).map(|e| e.text.to_string()).collect()
}

fn details(python: &Python) -> Vec<String> {
    python.notes().iter().map(ToString::to_string).collect()
}

#[test]
fn a_plain_prefix() {
    let mut s = Sketch::new();
    s.python("/opt/python", "lib", "python3.11", LINUX);
    s.dir("/opt/python/lib/python3.11/site-packages");
    let python = s.expect(Some("/opt/python"));
    let interpreter = &python.interpreter;
    assert_eq!(interpreter.executable, "/opt/python/bin/python3");
    assert_eq!(interpreter.real_executable, "/opt/python/bin/python3.11");
    assert_eq!(interpreter.prefix, "/opt/python");
    assert_eq!(interpreter.version.to_string(), "3.11");
    assert_eq!(interpreter.soabi(), Some("cpython-311-x86_64-linux-gnu".into()));
    assert_eq!(interpreter.multiarch, Some("x86_64-linux-gnu".into()));
    assert_eq!(interpreter.extension_suffixes, [LINUX, ".abi3.so", ".so"]);
    assert_eq!(python.environment(), Environment::Plain);
    assert_eq!(python.path()[0].text, "");
    assert_eq!(python.path()[0].directory, "/work");
    let expected = ["python311.zip", "python3.11", "python3.11/lib-dynload", "python3.11/site-packages"];
    assert_eq!(path(&python), expected.map(|p| format!("/opt/python/lib/{p}")));
    assert_eq!(interpreter.site_packages(), Some("/opt/python/lib/python3.11/site-packages".into()));
}

#[test]
fn a_virtual_environment_of_a_pyenv_version() {
    let mut s = Sketch::new();
    let base = "/home/me/.pyenv/versions/3.11.7";
    s.python(base, "lib", "python3.11", LINUX);
    s.dir(&format!("{base}/lib/python3.11/site-packages"));
    s.dir("/home/me/.pyenv/shims");
    s.dir("/home/me/.local/lib/python3.11/site-packages");
    s.link("/work/venv/bin/python", &format!("{base}/bin/python3.11"));
    s.file(
        "/work/venv/pyvenv.cfg",
        format!("home = {base}/bin\nuv = 0.5\nversion_info = 3.11.7\nInclude-System-Site-Packages = false\n"),
    );
    s.dir("/work/venv/lib/python3.11/site-packages");
    s.host.env.set("VIRTUAL_ENV", "/work/venv");
    let python = s.expect(None);
    assert_eq!(python.source(), Source::VirtualEnv);
    assert_eq!(python.interpreter.prefix, "/work/venv");
    assert_eq!(python.interpreter.base_prefix, base);
    assert_eq!(python.interpreter.version.micro, Some(7));
    assert_eq!(python.environment(), Environment::Virtual("uv"));
    assert!(!python.interpreter.user_site.enabled);
    assert_eq!(path(&python)[3..], ["/work/venv/lib/python3.11/site-packages"]);
    // The system's packages come after the environment's, and then the user's count too.
    s.file("/work/venv/pyvenv.cfg", format!("include-system-site-packages=TRUE\nhome={base}/bin\nvirtualenv = 20\n"));
    let python = s.expect(None);
    assert_eq!(python.environment(), Environment::Virtual("virtualenv"));
    let user = "/home/me/.local/lib/python3.11/site-packages".to_owned();
    let expected =
        ["/work/venv/lib/python3.11/site-packages".to_owned(), user, format!("{base}/lib/python3.11/site-packages")];
    assert_eq!(path(&python)[3..], expected);
    // The base itself.
    let python = s.expect(Some(base));
    assert_eq!(python.environment(), Environment::Pyenv);
    s.file("/work/venv/pipx_metadata.json", "{}");
    assert_eq!(s.expect(Some("/work/venv")).environment(), Environment::Pipx);
}

#[test]
fn debian_has_dist_packages() {
    let mut s = Sketch::new();
    s.python("/usr", "lib", "python3.11", LINUX);
    s.file("/usr/lib/python3.11/site.py", "    \"dist-packages\")\n");
    for directory in [
        "/usr/local/lib/python3.11/dist-packages",
        "/usr/lib/python3/dist-packages",
        "/usr/lib/python3.11/site-packages",
    ] {
        s.dir(directory);
    }
    s.host.env.set("PATH", "/usr/bin");
    let python = s.expect(None);
    assert_eq!(python.source(), Source::SearchPath(0));
    assert_eq!(path(&python)[3..], ["/usr/local/lib/python3.11/dist-packages", "/usr/lib/python3/dist-packages"]);
    assert_eq!(python.environment(), Environment::System);
}

#[test]
fn fedora_has_lib64_and_usr_local() {
    let mut s = Sketch::new();
    s.python("/usr", "lib64", "python3.13", ".cpython-313-x86_64-linux-gnu.so");
    s.file(
        "/usr/lib64/python3.13/site.py",
        "if 'RPM_BUILD_ROOT' not in os.environ:\n    PREFIXES.insert(0, \"/usr/local\")\n",
    );
    let directories = ["/usr/local/lib64", "/usr/local/lib", "/usr/lib64", "/usr/lib"]
        .map(|d| format!("{d}/python3.13/site-packages"));
    for directory in &directories {
        s.dir(directory);
    }
    let python = s.expect(Some("/usr"));
    assert_eq!(python.interpreter.platlibdir, "lib64");
    assert_eq!(
        path(&python)[..3],
        ["/usr/lib64/python313.zip", "/usr/lib64/python3.13", "/usr/lib64/python3.13/lib-dynload"]
    );
    assert_eq!(path(&python)[3..], directories);
    s.host.env.set("RPM_BUILD_ROOT", "/build");
    assert_eq!(path(&s.expect(Some("/usr")))[3..], directories[2..]);
}

#[test]
fn conda_has_everything_in_one_prefix_and_owns_its_libraries() {
    let mut s = Sketch::new();
    s.python("/opt/conda/envs/gpu", "lib", "python3.11", LINUX);
    s.link("/opt/conda/envs/gpu/bin/python", "python3.11");
    s.dir("/opt/conda/envs/gpu/lib/python3.11/site-packages");
    s.file("/opt/conda/envs/gpu/conda-meta/history", "");
    s.file(
        "/opt/conda/envs/gpu/conda-meta/libcublas-12.4.5.8-he02047a_2.json",
        r#"{"files": ["lib/libcublas.so.12", "lib/x"]}"#,
    );
    s.file("/opt/conda/envs/gpu/conda-meta/cuda-nvrtc-12.4.127-0.json", r#"{"files": ["lib/libnvrtc.so.12"]}"#);
    s.file(
        "/opt/conda/envs/gpu/conda-meta/libstdcxx-ng-13.2.0-hc0a3c3a_7.json",
        r#"{"channel": "a\"b\\", "files": ["lib/libstdc++.so.6", "share/x"], "open": "never ends"#,
    );
    s.host.env.set("CONDA_PREFIX", "/opt/conda/envs/gpu");
    let python = s.expect(None);
    assert_eq!(python.source(), Source::CondaPrefix);
    assert_eq!(python.environment(), Environment::Conda);
    assert_eq!(path(&python)[3..], ["/opt/conda/envs/gpu/lib/python3.11/site-packages"]);
    let owner = |path: &str| python.owner_of(path.into()).map(|o| (o.name().to_string(), o.version().to_string()));
    let found = |name: &str, version: &str| Some((name.to_owned(), version.to_owned()));
    assert_eq!(owner("/opt/conda/envs/gpu/lib/libcublas.so.12"), found("libcublas", "12.4.5.8"));
    assert_eq!(owner("/opt/conda/envs/gpu/lib/../lib/libnvrtc.so.12"), found("cuda-nvrtc", "12.4.127"));
    assert_eq!(owner("/opt/conda/envs/gpu/lib/libstdc++.so.6"), found("libstdcxx-ng", "13.2.0"));
    assert_eq!(owner("/opt/conda/envs/gpu/lib/libcublas.so.1"), None);
    assert_eq!(owner("/opt/conda/lib/libcublas.so.12"), None);
}

#[test]
fn a_standalone_build_that_tells_its_suffix_by_its_build_data_only() {
    let mut s = Sketch::new();
    let prefix = "/home/me/.local/share/uv/python/cpython-3.12.7-linux-x86_64-gnu";
    s.program(&format!("{prefix}/bin/python3.12"));
    s.file(&format!("{prefix}/lib/python3.12/os.py"), "");
    s.dir(&format!("{prefix}/lib/python3.12/lib-dynload"));
    let data = "build_time_vars = {'A': 'x',\n 'LDLIBRARY': 'libpython3.12.so',\n 'MODBUILT_NAMES': '_ctypes  math  '\n                   'zlib',\n 'Z': 1}\n";
    s.file(&format!("{prefix}/lib/python3.12/_sysconfigdata__linux_x86_64-linux-gnu.py"), data);
    let python = s.expect(Some(&format!("{prefix}/bin/python3.12")));
    assert_eq!(python.interpreter.version.to_string(), "3.12.7");
    assert_eq!(python.interpreter.extension_suffixes[0], ".cpython-312-x86_64-linux-gnu.so");
    assert_eq!(python.environment(), Environment::Standalone);
    assert_eq!(python.find_module("zlib").module, Module::BuiltIn);
    assert_eq!(python.find_module("sys").module, Module::BuiltIn);
    assert_eq!(python.find_module("absent").module, Module::Missing);
    assert_eq!(python.shared_library(), Some("libpython3.12.so".into()));
}

#[test]
fn a_free_threaded_build_has_its_own_directory() {
    let mut s = Sketch::new();
    s.python("/opt/ft", "lib", "python3.13t", ".cpython-313t-x86_64-linux-gnu.so");
    s.dir("/opt/ft/lib/python3.13t/site-packages");
    let python = s.expect(Some("/opt/ft"));
    let expected = ["python313t.zip", "python3.13t", "python3.13t/lib-dynload", "python3.13t/site-packages"];
    assert_eq!(path(&python), expected.map(|p| format!("/opt/ft/lib/{p}")));
    assert_eq!(python.interpreter.abiflags, "t");
    assert_eq!(python.interpreter.extension_suffixes, [".cpython-313t-x86_64-linux-gnu.so", ".abi3.so", ".so"]);
}

#[test]
fn a_program_without_version_takes_the_newest_library_and_says_so() {
    let mut s = Sketch::new();
    s.program("/opt/p/bin/python3");
    for version in ["3.9", "3.12", "3.10"] {
        s.file(&format!("/opt/p/lib/python{version}/os.py"), "");
    }
    s.dir("/opt/p/lib/python3.14");
    let python = s.expect(Some("/opt/p"));
    assert_eq!(python.interpreter.version.to_string(), "3.12");
    assert!(details(&python).iter().any(|n| n.contains("several Python libraries")), "{:?}", details(&python));
    s.program("/opt/p/bin/tool");
    assert!(s.fails(Some("/opt/p/bin/tool")).contains("does not say that it is a Python"));
    s.program("/opt/q/bin/pypy3.10");
    assert!(s.fails(Some("/opt/q/bin/pypy3.10")).contains("PyPy"));
}

#[test]
fn each_unusable_interpreter_is_its_own_error() {
    let mut s = Sketch::new();
    s.file("/work/text", "text");
    s.program("/work/garbage");
    s.file("/work/garbage", "text");
    s.tree.set_mode("/work/garbage", 0o755).expect("mode");
    s.dir("/work/empty/bin");
    s.link("/work/env/bin/python", "/gone/python3.11");
    s.file("/work/env/pyvenv.cfg", "home = /gone\n");
    s.file("/work/wrapper", "#!/bin/sh\nexec /usr/bin/python3 \"$@\"\n");
    s.tree.set_mode("/work/wrapper", 0o755).expect("mode");
    s.program("/closed/python3");
    s.tree.set_mode("/closed", 0).expect("mode");
    s.program("/lonely/bin/python3.11");
    for (named, message) in [
        ("/work/absent", "no Python at `/work/absent` (from --python): no such file"),
        ("absent", "no Python at `absent` (from --python): no such file"),
        ("/work/text/x", "no Python at `/work/text/x` (from --python): no such file"),
        ("text", "cannot use `/work/text` as Python: not an executable file"),
        ("garbage", "cannot use `/work/garbage` as Python: not an executable file"),
        ("/work/empty/", "no Python in `/work/empty` (from --python): neither `bin/python3` nor `bin/python`"),
        (
            "/work/env",
            "cannot use `/work/env/bin/python` as Python: a link to `/gone/python3.11`, which does not exist",
        ),
        ("/work/wrapper", "cannot tell which Python `/work/wrapper` runs without running it: a script (`#!/bin/sh`)"),
        ("/closed/python3", "cannot look at `/closed/python3`: permission denied"),
        (
            "/lonely/bin/python3.11",
            "cannot tell the paths of `/lonely/bin/python3.11` from files: no `lib/python3.11/os.py` above `/lonely/bin`",
        ),
    ] {
        assert_eq!(s.fails(Some(named)), message);
    }
    s.host.env.set("PATH", "/none:");
    s.host.env.set("CONDA_PREFIX", "/work/empty");
    let error = s.read(None).err().expect("nothing");
    let expected = "no Python found: VIRTUAL_ENV is not set; CONDA_PREFIX: no interpreter in `/work/empty`; neither `python3` nor `python` in \
                    the 2 directories of PATH";
    assert_eq!(error.to_string(), expected);
    assert!(error.hint().is_some_and(|h| h.contains("--python PATH")));
    assert_eq!(error.path(), None);
    // An empty element of PATH is the working directory.
    s.python("/opt/python", "lib", "python3.11", LINUX);
    s.link("/work/python3", "/opt/python/bin/python3");
    let python = s.expect(None);
    assert_eq!((python.source(), python.interpreter.executable), (Source::SearchPath(1), "/work/python3".into()));
}

#[test]
fn shims_are_followed_by_variable_then_file_then_global_version() {
    let mut s = Sketch::new();
    for version in ["3.11.7", "3.11.10", "3.12.1", "3.13.0rc1", "3.13-dev"] {
        let name = format!("python{}", version.split('.').take(2).collect::<Vec<_>>().join("."));
        let name = name.trim_end_matches("-dev").to_owned();
        s.python(&format!("/p/versions/{version}"), "lib", &name, LINUX);
    }
    s.file(
        "/p/shims/python3",
        "#!/usr/bin/env bash\nexport PYENV_ROOT=\"/p\"\nexec \"/p/libexec/pyenv\" exec \"$program\" \"$@\"\n",
    );
    s.tree.set_mode("/p/shims/python3", 0o755).expect("mode");
    s.file("/p/version", "3.12.1\n");
    s.host.env.set("PATH", "/p/shims:/usr/bin");
    s.host.cwd = "/work/a/b".into();
    s.dir("/work/a/b");
    let chosen = |s: &Sketch| s.expect(None).interpreter.executable.to_string();
    assert_eq!(chosen(&s), "/p/versions/3.12.1/bin/python3");
    s.file("/work/.python-version", "\n# comment\n../../evil\n3.11\r\n");
    assert_eq!(chosen(&s), "/p/versions/3.11.10/bin/python3");
    s.host.env.set("PYENV_VERSION", "3.13:3.11.7");
    assert_eq!(chosen(&s), "/p/versions/3.11.7/bin/python3");
    s.host.env.set("PYENV_VERSION", "3.99");
    let message =
        "cannot follow the pyenv shim `/p/shims/python3`: version `3.99` (from PYENV_VERSION) is not installed";
    assert_eq!(s.fails(None), message);
    s.python("/usr", "lib", "python3.11", LINUX);
    assert_eq!(chosen(&s), "/usr/bin/python3");
}

#[test]
fn path_lines_of_pth_files() {
    let mut s = Sketch::new();
    s.python("/opt/python", "lib", "python3.11", LINUX);
    let site = "/opt/python/lib/python3.11/site-packages";
    s.dir(&format!("{site}/inside"));
    s.dir("/src/project");
    s.dir("/src/odd \u{fc}");
    let lines = "\u{feff}inside\ninside\n/src/project\n/src/./project\n# /src\nimport evil; evil.run()\nimport\tevil\n import evil\n\
                 importevil\n/src/odd \u{fc}\n..\n";
    s.file(&format!("{site}/one.pth"), lines);
    s.file(&format!("{site}/two.pth"), b"/src/\xff\n".as_slice());
    s.link(&format!("{site}/loop.pth"), "loop.pth");
    s.dir(&format!("{site}/directory.pth"));
    s.file(&format!("{site}/big.pth"), vec![b'x'; (1 << 20) + 1]);
    s.file(&format!("{site}/sitecustomize.py"), "");
    let python = s.expect(Some("/opt/python"));
    let expected = [site.to_owned(), format!("{site}/inside"), "/src/project".into(), "/src/odd \u{fc}".into()];
    // `..` is the library directory, known already; the byte order mark is part of the first line before 3.13.
    assert_eq!(path(&python)[3..], expected);
    let kinds: Vec<EntryKind> = python.path()[4..].iter().map(|e| e.kind).collect();
    assert_eq!(kinds, [EntryKind::Site, EntryKind::Pth, EntryKind::Pth, EntryKind::Pth]);
    let notes = details(&python);
    for part in [
        "skip `/opt/python/lib/python3.11/site-packages/one.pth`: line 6 is code that an ordinary start runs: `import evil; evil.run()`",
        "one.pth`: line 7 is code",
        "decode `/opt/python/lib/python3.11/site-packages/two.pth`: not UTF-8",
        "loop.pth`: too many levels of symbolic links",
        "directory.pth`: is a directory",
        "big.pth`: file too large",
        "sitecustomize.py`: code that an ordinary start runs",
    ] {
        assert!(notes.iter().any(|n| n.contains(part)), "{part}: {notes:#?}");
    }
    assert_eq!(notes.len(), 7, "{notes:#?}");
}

#[test]
fn variables_change_the_path() {
    let mut s = Sketch::new();
    s.python("/opt/python", "lib", "python3.11", LINUX);
    s.python("/other", "lib", "python3.11", LINUX);
    s.dir("/other/lib/python3.11/site-packages");
    s.dir("/base/lib/python3.11/site-packages");
    s.host.env.set("PYTHONPATH", "/a:rel/../b::/a/");
    s.host.env.set("PYTHONUSERBASE", "/base");
    s.host.env.set("PYTHONHOME", "/other");
    s.host.env.set("PYTHONSAFEPATH", "1");
    let python = s.expect(Some("/opt/python"));
    let all: Vec<String> = python.path().iter().map(|e| e.text.to_string()).collect();
    let expected = [
        "/a",
        "/work/b",
        "/work",
        "/other/lib/python311.zip",
        "/other/lib/python3.11",
        "/other/lib/python3.11/lib-dynload",
        "/base/lib/python3.11/site-packages",
        "/other/lib/python3.11/site-packages",
    ];
    assert_eq!(all, expected);
    assert_eq!(python.interpreter.prefix, "/other");
    assert_eq!(python.path()[0].kind, EntryKind::PythonPath);
    assert_eq!(python.path()[6].kind, EntryKind::UserSite);
    s.host.env.set("PYTHONNOUSERSITE", "x");
    assert!(!s.expect(Some("/opt/python")).path().iter().any(|e| e.kind == EntryKind::UserSite));
    s.host.env.unset("PYTHONNOUSERSITE");
    s.host.env.unset("PYTHONUSERBASE");
    s.host.env.unset("HOME");
    assert!(details(&s.expect(Some("/opt/python"))).iter().any(|n| n.contains("HOME is not set")));
}

/// An environment with these distributions' metadata.
fn with_distributions(files: &[(&str, &[u8])]) -> Sketch {
    let mut s = Sketch::new();
    s.python("/opt/python", "lib", "python3.11", LINUX);
    s.dir("/opt/python/lib/python3.11/site-packages");
    for (path, bytes) in files {
        s.file(&format!("/opt/python/lib/python3.11/site-packages/{path}"), bytes);
    }
    s
}

#[test]
fn distributions_of_every_form() {
    let s = with_distributions(&[
        ("Foo_Bar.baz-1.0.dist-info/METADATA", b"Metadata-Version: 2.1\nName: Foo_Bar.baz\nVersion: 1.0\nRequires-Dist: torch (==2.4)\nrequires-dist: x ; extra == 'y'\nDescription: a\n  Name: no\n\nName: body\n"),
        ("Foo_Bar.baz-1.0.dist-info/INSTALLER", b"pip\n"),
        ("Foo_Bar.baz-1.0.dist-info/RECORD", b"foo/a.so,,\n\"foo/b,c.so\",,\n../../../bin/foo,,\n/abs/file,,\n"),
        ("old-2.1-py3.11.egg-info/PKG-INFO", b"Name: old\nVersion: 2.1\n\n"),
        ("old-2.1-py3.11.egg-info/requires.txt", b"torch>=1\n\n[extra]\nnot-this\n"),
        ("old-2.1-py3.11.egg-info/installed-files.txt", b"../old/x.so\n"),
        ("single-3.egg-info", b"Name: single\nVersion: 3\n"),
        ("develop.egg-info/PKG-INFO", b"Name: Develop\nVersion: 4.dev0\n"),
    ]);
    let python = s.expect(Some("/opt/python"));
    let list: Vec<(String, String)> =
        python.distributions().iter().map(|d| (d.normalised.to_string(), d.version.to_string())).collect();
    let expected = [("foo-bar-baz", "1.0"), ("develop", "4.dev0"), ("old", "2.1"), ("single", "3")];
    assert_eq!(list, expected.map(|(n, v)| (n.to_owned(), v.to_owned())));
    let foo = python.distribution("foo.bar_baz").expect("by any spelling");
    assert_eq!(python.metadata(foo).requires, ["torch (==2.4)", "x ; extra == 'y'"]);
    assert_eq!(python.metadata(foo).installer, Some("pip".into()));
    assert_eq!(python.metadata(python.distribution("old").expect("old")).requires, ["torch>=1"]);
    let site = "/opt/python/lib/python3.11/site-packages";
    for (path, owner) in [
        (format!("{site}/foo/a.so"), Some("Foo_Bar.baz")),
        (format!("{site}/foo/b,c.so"), Some("Foo_Bar.baz")),
        ("/opt/python/bin/foo".into(), Some("Foo_Bar.baz")),
        (format!("{site}/old/x.so"), Some("old")),
        (format!("{site}/foo/c.so"), None),
        (format!("{site}/foo"), None),
    ] {
        assert_eq!(python.owner_of(path.as_str().into()).map(|o| o.name().to_string()).as_deref(), owner, "{path}");
    }
    assert_eq!(details(&python), [""; 0]);
}

#[test]
fn damaged_metadata_is_a_note_and_nothing_more() {
    let junk: Vec<u8> = (0..200_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let mut huge = b"Name: huge\nVersion: 1\n".to_vec();
    huge.resize(100 << 20, b'x');
    let no_end = [b"torch/x.so,,\n\"".as_slice(), &vec![b'a'; 1 << 20]].concat();
    let mut s = with_distributions(&[
        ("junk-1.dist-info/METADATA", &junk),
        ("junk-1.dist-info/RECORD", &junk),
        ("huge-1.dist-info/METADATA", &huge),
        ("huge-1.dist-info/RECORD", &vec![b'\n'; 40 << 20]),
        ("torch-1.dist-info/RECORD", &no_end),
        ("empty.dist-info/METADATA", b""),
        ("-.dist-info/METADATA", b"Name\n"),
        (".dist-info/x", b""),
        ("file.dist-info", b"not a directory"),
        ("torch/version.py", &junk),
        ("torch/__init__.py", b""),
    ]);
    let site = "/opt/python/lib/python3.11/site-packages";
    s.link(&format!("{site}/loop-1.dist-info"), "loop-1.dist-info");
    s.tree.add_file(format!("{site}/\u{fffd}-1.dist-info/METADATA"), *b"Name: \xff\xfe\n").expect("file");
    let python = s.expect(Some("/opt/python"));
    for distribution in python.distributions() {
        python.metadata(distribution);
    }
    assert_eq!(python.metadata(python.distribution("huge").expect("huge")).version, "1");
    assert_eq!(
        python.owner_of(format!("{site}/torch/x.so").as_str().into()).map(|o| o.name().to_string()),
        Some("torch".into())
    );
    assert!(python.owner_of(format!("{site}/nobody").as_str().into()).is_none());
    assert_eq!(python.torch().expect("torch").numbers(), None);
    let notes = details(&python);
    for part in [
        "parse `/opt/python/lib/python3.11/site-packages/junk-1.dist-info/METADATA`: no `Name`",
        "huge-1.dist-info/METADATA`: headers beyond",
        "huge-1.dist-info/RECORD`: file too large",
        "empty.dist-info/METADATA`: no `Name`",
        "file.dist-info/METADATA`: not a directory",
        "loop-1.dist-info/METADATA`: too many levels",
    ] {
        assert!(notes.iter().any(|n| n.contains(part)), "{part}: {notes:#?}");
    }
}

#[test]
fn modules_in_pythons_order() {
    let mut s = with_distributions(&[
        ("both/__init__.py", b""),
        ("both.py", b""),
        ("ext.so", b""),
        ("ext.abi3.so", b""),
        ("ext.cpython-311-x86_64-linux-gnu.so", b""),
        ("ext.py", b""),
        ("nvidia/cudnn/lib/x", b""),
        ("torch/__init__.py", b""),
        ("torch/_C.cpython-311-x86_64-linux-gnu.so", b""),
        (
            "__editable___mine_1_finder.py",
            b"import sys\nMAPPING: dict[str, str] = {'mine': '/src/mine', 'single' : '/src/one'}\nX = 1\n",
        ),
    ]);
    s.file("/extra/nvidia/cublas/lib/y", b"");
    s.file("/extra/ext.py", b"");
    s.file("/src/mine/__init__.py", b"");
    s.file("/src/mine/_c.so", b"");
    s.file("/src/one.py", b"");
    s.file("/archive.zip", b"PK");
    s.host.env.set("PYTHONPATH", "/archive.zip:/extra");
    let python = s.expect(Some("/opt/python"));
    let site = "/opt/python/lib/python3.11/site-packages";
    let module = |name: &str| python.find_module(name).module;
    let at = |path: &str| BString::from(format!("{site}/{path}"));
    assert_eq!(module("both"), Module::Package { directory: at("both"), init: at("both/__init__.py") });
    assert_eq!(module("ext"), Module::Source("/extra/ext.py".into()));
    assert_eq!(module("torch._C"), Module::Extension(at("torch/_C.cpython-311-x86_64-linux-gnu.so")));
    assert_eq!(module("nvidia"), Module::Namespace(vec!["/extra/nvidia".into(), at("nvidia")]));
    assert_eq!(module("nvidia.cublas"), Module::Namespace(vec!["/extra/nvidia/cublas".into()]));
    assert_eq!(module("mine"), Module::Package { directory: "/src/mine".into(), init: "/src/mine/__init__.py".into() });
    assert_eq!(module("mine._c"), Module::Extension("/src/mine/_c.so".into()));
    assert_eq!(module("single"), Module::Source("/src/one.py".into()));
    for absent in ["", ".", "torch.", "torch._C.x", "../torch", "torch/_C", "absent.torch"] {
        assert_eq!(module(absent), Module::Missing, "{absent:?}");
    }
    assert_eq!(python.find_module("torch").not_searched, ["/archive.zip"]);
    s.host.env.unset("PYTHONPATH");
    let python = s.expect(Some("/opt/python"));
    assert_eq!(python.find_module("ext").module, Module::Extension(at("ext.cpython-311-x86_64-linux-gnu.so")));
    assert_eq!(python.torch().expect("torch").directory, at("torch"));
    let libraries = python.library_directories(python.path().last().expect("entry"), &["torch"]);
    assert_eq!(libraries.len(), 1);
    assert_eq!(
        (libraries[0].folder.as_bstr(), libraries[0].names.as_slice()),
        ("nvidia/cudnn".into(), &[BString::from("x")][..])
    );
}

#[test]
fn versions_of_torch_are_read_as_text() {
    let version = b"from typing import Optional\n\n__all__ = ['__version__']\n__version__ = '2.4.0a0+git1'\ndebug = False\ncuda: Optional[str] = '12.1'\ncuda_x = '1'\nhip: Optional[str] = None\n";
    let s = with_distributions(&[("torch/__init__.py", b""), ("torch/version.py", version)]);
    let torch = s.expect(Some("/opt/python")).torch().expect("torch");
    assert_eq!(torch.version, Some("2.4.0a0+git1".into()));
    assert_eq!((torch.numbers(), torch.cuda_major(), torch.hip), (Some((2, 4, 0)), Some(12), None));
    assert_eq!(torch::numbers("2.15".into()), Some((2, 15, 0)));
    assert_eq!(torch::numbers("2".into()), None);
    assert_eq!(torch::numbers("99999999.1".into()), None);
}

#[test]
fn a_question_leaves_preloads_and_traces_of_the_loader_out() {
    struct Recorder(std::sync::Mutex<Vec<Vec<(String, String)>>>);
    impl Ask for Recorder {
        fn run(&self, command: &ask::Command<'_>) -> Result<ask::Answer, ask::Failure> {
            let env = command.env.iter().map(|(n, v)| (n.to_string(), v.to_string())).collect();
            self.0.lock().expect("lock").push(env);
            assert!(command.argv.contains(&"-B".into()) && command.cwd == "/work");
            Err(ask::Failure::TimedOut)
        }
    }
    let mut s = Sketch::new();
    s.python("/opt/python", "lib", "python3.11", LINUX);
    for (name, value) in [
        ("LD_PRELOAD", "/evil.so"),
        ("LD_AUDIT", "/evil.so"),
        ("LD_DEBUG", "all"),
        ("LD_TRACE_LOADED_OBJECTS", "1"),
        ("LD_LIBRARY_PATH", "/needed"),
        ("PYTHONPATH", "/x"),
    ] {
        s.host.env.set(name, value);
    }
    let recorder = Recorder(std::sync::Mutex::default());
    let request = Request { named: Some("/opt/python".into()), ask: Some(&recorder), limit: DEFAULT_LIMIT };
    let python = discover(&s.system(), &request).unwrap_or_else(|e| panic!("{e}"));
    assert!(matches!(python.ask_failure, Some(Error::TimedOut { .. })));
    assert_eq!(python.interpreter.known_by, KnownBy::Files);
    let seen = recorder.0.lock().expect("lock").concat();
    let names: Vec<&str> = seen.iter().map(|(n, _)| n.as_str()).collect();
    assert_eq!(names, ["HOME", "LD_LIBRARY_PATH", "PYTHONPATH"]);
}

#[test]
fn mutated_files_never_stop_the_discovery() {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state % below.max(1) as u64).unwrap_or(0)
    };
    let site = "/v/lib/python3.11/site-packages";
    let originals: Vec<(String, Vec<u8>)> = [
        ("/v/pyvenv.cfg".to_owned(), "home = /opt/python/bin\nversion = 3.11.7\n"),
        (format!("{site}/a.pth"), "../x\nimport y\n/opt\n"),
        (format!("{site}/torch-1.dist-info/RECORD"), "torch/x.so,sha256=a,1\n\"torch/a,b\"\"\",,\n"),
        (format!("{site}/torch-1.dist-info/METADATA"), "Name: torch\nVersion: 1\nRequires-Dist: x\n\nbody\n"),
        (format!("{site}/old.egg-info/PKG-INFO"), "Name: old\nVersion: 2\n"),
        (format!("{site}/torch/version.py"), "__version__ = '2.4.0'\ncuda: Optional[str] = \"12.1\"\n"),
        (format!("{site}/__editable___m_finder.py"), "MAPPING: dict[str, str] = {'m': '/m', \"n\": '/n'}\n"),
        (
            "/opt/python/lib/python3.11/_sysconfigdata__linux_x.py".to_owned(),
            "{'MODBUILT_NAMES': 'a '\n 'b',\n 'LDLIBRARY': 'l'}",
        ),
        ("/opt/python/include/python3.11/patchlevel.h".to_owned(), "#define PY_MICRO_VERSION 7\n"),
        ("/v/conda-meta/pkg-1-0.json".to_owned(), "{\"files\": [\"lib/a.so\", \"lib/\\\"b\"]}"),
        ("/v/.python-version".to_owned(), "3.11\n"),
        ("/p/shims/python3".to_owned(), "#!/bin/sh\nexport PYENV_ROOT=\"/p\"\nexec pyenv\n"),
    ]
    .map(|(path, text)| (path, text.as_bytes().to_vec()))
    .into();
    let mut found = 0;
    for _ in 0..800 {
        let mut s = Sketch::new();
        s.python("/opt/python", "lib", "python3.11", LINUX);
        s.link("/v/bin/python3", "/opt/python/bin/python3.11");
        s.file(&format!("{site}/torch/__init__.py"), "");
        s.host.cwd = "/v".into();
        let mutated = next(originals.len());
        for (i, (path, bytes)) in originals.iter().enumerate() {
            let mut bytes = bytes.clone();
            for _ in 0..if i == mutated { 1 + next(4) } else { 0 } {
                let at = next(bytes.len());
                match next(4) {
                    0 => bytes.truncate(at),
                    1 => bytes.insert(at, b"\"'\n\0/=,{\\"[next(9)]),
                    2 if at < bytes.len() => bytes[at] = u8::try_from(next(256)).unwrap_or(0),
                    _ => bytes.extend_from_within(at..),
                }
            }
            s.file(path, bytes);
            s.tree.set_mode(path, 0o755).expect("mode");
        }
        let _ = s.read(Some("/p/shims/python3"));
        let Ok(python) = s.read(Some("/v")) else { continue };
        found += 1;
        for name in ["torch", "m.x", "n", "a", "absent"] {
            python.find_module(name);
        }
        for path in
            ["/v/lib/a.so", "/v/lib/python3.11/site-packages/torch/x.so", "/v/lib/python3.11/site-packages/torch/a,b\""]
        {
            python.owner_of(path.into()).map(|o| (o.name().len(), o.version().len()));
        }
        python.distributions().iter().for_each(|d| drop(python.metadata(d).clone()));
        python.torch().map(|t| (t.numbers(), t.cuda_major()));
        let _ = (python.shared_library(), python.environment(), python.notes());
    }
    assert!(found > 600, "only {found} of the boxes were read to the end");
}
