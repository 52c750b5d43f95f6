//! What is told of a Python environment that is damaged: a module that torch requires is gone, a library that a list of
//! files has is gone or cut short, `.pth` files and lists that cannot be read, a variable that leads nowhere.
//!
//! Boxes are the demonstration fixture with a few lines changed. What Python makes of such files was seen from
//! interpreters of 3.6 to 3.13; `python` and `real imports::` hold it to them again.

use std::path::{Path, PathBuf};

use serde_json::Value;

const SITE: &str = "/home/ada/venv/lib/python3.11/site-packages";
/// The environment in which torch of the demonstration works.
const SOUND: [&str; 3] = ["torch", "--env", "LD_LIBRARY_PATH=/opt/tools/lib"];

/// A fixture file that is removed with its value.
struct Changed(PathBuf);

impl Drop for Changed {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Changed {
    /// The demonstration with lines changed by `edit` (`None` leaves a line out) and others added.
    fn new(name: &str, edit: impl Fn(&str) -> Option<String>, added: &[String]) -> Changed {
        let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/demo/broken_torch.ld");
        let demo = std::fs::read_to_string(demo).expect("the demonstration box");
        let mut text = String::new();
        for line in demo.lines() {
            if line.starts_with("# The system's libraries") {
                added.iter().for_each(|line| text.push_str(&format!("{line}\n")));
            }
            let line = edit(line);
            line.iter().for_each(|line| text.push_str(&format!("{line}\n")));
        }
        let path = std::env::temp_dir().join(format!("ldaudit-damaged-{}-{name}.ld", std::process::id()));
        std::fs::write(&path, text).expect("written");
        Changed(path)
    }

    fn output(&self, arguments: &[&str]) -> String {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_ldaudit"));
        let command = command.args(arguments).arg("--fixture").arg(&self.0).env_clear().env("COLUMNS", "400");
        let output = command.output().expect("run");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(errors, "", "{arguments:?}");
        String::from_utf8(output.stdout).expect("UTF-8")
    }

    fn report(&self, arguments: &[&str]) -> Value {
        let text = self.output(&[arguments, &["--format", "json"]].concat());
        serde_json::from_str(&text).expect("JSON")
    }
}

/// Rule, severity and summary of each finding of some rules.
fn told(report: &Value, rules: &[&str]) -> Vec<String> {
    let findings = report["findings"].as_array().expect("findings");
    let text = |f: &Value, key: &str| f[key].as_str().unwrap_or_default().to_owned();
    let wanted = findings.iter().filter(|f| rules.contains(&text(f, "rule").as_str()));
    wanted.map(|f| format!("{} {} {}", text(f, "rule"), text(f, "severity"), text(f, "summary"))).collect()
}

fn commands(report: &Value) -> Vec<String> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let remedies = list(&report["findings"]).into_iter().flat_map(|f| list(&f["remedies"]));
    remedies.flat_map(|r| list(&r["commands"])).filter_map(|c| c.as_str().map(str::to_owned)).collect()
}

fn same(line: &str) -> Option<String> {
    Some(line.to_owned())
}

fn file(path: &str, text: &str) -> String {
    format!("file {SITE}/{path} text \"{text}\"")
}

/// A box whose torch requires and imports typing_extensions, which is not there. `listed` says whether its distribution is.
fn without_typing_extensions(name: &str, source: &str, listed: bool) -> Changed {
    let edit = |line: &str| {
        if line.starts_with(&format!("file {SITE}/torch/__init__.py ")) {
            return Some(file("torch/__init__.py", source));
        }
        if line.starts_with(&format!("file {SITE}/torch-2.4.0.dist-info/METADATA ")) {
            let required = "Version: 2.4.0\\nRequires-Dist: typing-extensions (>=4.8.0)\\n";
            return Some(line.replacen("Version: 2.4.0\\n", required, 1));
        }
        same(line)
    };
    let info = "typing_extensions-4.16.0.dist-info";
    let added = [
        file(&format!("{info}/METADATA"), "Name: typing_extensions\\nVersion: 4.16.0\\n"),
        file(&format!("{info}/RECORD"), "typing_extensions.py,,\\n"),
    ];
    Changed::new(name, edit, if listed { &added } else { &[] })
}

#[test]
fn a_module_that_torch_requires_is_gone() {
    let certain = "import os\\nimport typing_extensions\\nif True:\\n    from torch._C import *\\n";
    let report = without_typing_extensions("absent", certain, false).report(&SOUND);
    assert_eq!(report["verdict"], "fails");
    let expected = "LD0208 error no module named `typing_extensions` is found, which `torch` imports";
    assert_eq!(told(&report, &["LD0208", "LD0101"]), [expected]);
    assert_eq!(commands(&report), ["pip install 'typing-extensions>=4.8.0'"]);
    let opened = |report: &Value| report["process"]["steps"].as_array().expect("steps").iter().any(is_global_deps);
    assert!(!opened(&report), "it is imported ahead of torch's libraries");

    let listed = without_typing_extensions("listed", certain, true);
    let screen = listed.output(&SOUND);
    let head: Vec<&str> = screen.lines().take(2).map(str::trim).collect();
    assert_eq!(
        head,
        ["FAILS  import torch (2.4.0+cu121) stops with", "ModuleNotFoundError: No module named 'typing_extensions'"]
    );
    let expected = "pip install --force-reinstall --no-deps typing_extensions==4.16.0";
    assert_eq!(commands(&listed.report(&SOUND)), [expected]);

    let later = "if True:\\n    from torch._C import *\\nfrom typing_extensions import Self\\n";
    let report = without_typing_extensions("later", later, false).report(&SOUND);
    assert_eq!(report["verdict"], "fails");
    assert!(opened(&report));
}

fn is_global_deps(step: &Value) -> bool {
    step["name"].as_str().is_some_and(|name| name.ends_with("libtorch_global_deps.so"))
}

#[test]
fn what_torch_only_tries_to_import_may_be_gone() {
    for (name, source) in [
        ("guarded", "try:\\n    import typing_extensions\\nexcept ImportError:\\n    pass\\nfrom torch._C import *\\n"),
        ("in-a-function", "def f():\\n    import typing_extensions\\nfrom torch._C import *\\n"),
        ("not-at-all", "import os\\nfrom torch._C import *\\n"),
    ] {
        let report = without_typing_extensions(name, source, false).report(&SOUND);
        assert_eq!(report["verdict"], "ok", "{name}");
        assert_eq!(told(&report, &["LD0208"]), [] as [&str; 0], "{name}");
    }
    let used = "try:\\n    import typing_extensions\\nexcept ImportError:\\n    pass\\nclass A(typing_extensions.B):\\n    x = 1\\nfrom torch._C import *\\n";
    let screen = without_typing_extensions("used", used, false).output(&SOUND);
    assert!(screen.contains("NameError: name 'typing_extensions' is not defined"), "{screen}");
}

/// A box whose torch has sources of its own, as its list of files has them; `gone` is not there.
fn without_source(name: &str, gone: &str) -> Changed {
    let init = "if _running_with_deploy():\\n    x = 1\\nelse:\\n    from .torch_version import __version__\\n\
                from . import _VF\\nif True:\\n    from torch._C import *\\nfrom .nn import modules\\nimport torch.amp\\n";
    let sources = [
        ("torch/torch_version.py", "from .version import __version__\\n"),
        ("torch/_VF.py", ""),
        ("torch/nn/__init__.py", "from .modules import linear\\n"),
        ("torch/nn/modules/__init__.py", ""),
        ("torch/nn/modules/linear.py", ""),
        ("torch/nn/modules/spare.py", ""),
        ("torch/amp/__init__.py", ""),
    ];
    let edit = |line: &str| {
        if line.starts_with(&format!("file {SITE}/torch/__init__.py ")) {
            return Some(file("torch/__init__.py", init));
        }
        let list = format!("file {SITE}/torch-2.4.0.dist-info/RECORD ");
        if line.starts_with(&list) {
            let rows: String = sources.iter().map(|(path, _)| format!("{path},,\\n")).collect();
            return Some(line.replacen("text \"", &format!("text \"{rows}"), 1));
        }
        (!line.starts_with(&format!("file {SITE}/{gone} "))).then(|| line.to_owned())
    };
    let added: Vec<String> =
        sources.iter().filter(|(path, _)| *path != gone).map(|(path, text)| file(path, text)).collect();
    Changed::new(name, edit, &added)
}

#[test]
fn a_source_of_torch_is_gone() {
    let mend = "pip install --force-reinstall --no-deps torch==2.4.0";
    for (gone, error, is_ahead) in [
        ("torch/version.py", "ModuleNotFoundError: No module named 'torch.version'", true),
        ("torch/torch_version.py", "ModuleNotFoundError: No module named 'torch.torch_version'", true),
        (
            "torch/_VF.py",
            "ImportError: cannot import name '_VF' from partially initialized module 'torch' (most likely due to a \
             circular import) (/home/ada/venv/lib/python3.11/site-packages/torch/__init__.py)",
            true,
        ),
        ("torch/amp/__init__.py", "ModuleNotFoundError: No module named 'torch.amp'", false),
        (
            "torch/nn/modules/linear.py",
            "ImportError: cannot import name 'linear' from 'torch.nn.modules' \
             (/home/ada/venv/lib/python3.11/site-packages/torch/nn/modules/__init__.py)",
            false,
        ),
    ] {
        let changed = without_source("source", gone);
        let screen = changed.output(&SOUND);
        let head: Vec<&str> = screen.lines().take(2).map(str::trim).collect();
        assert!(head[0].starts_with("FAILS  import torch (2.4.0"), "{gone}: {screen}");
        assert_eq!(head[1], error, "{gone}");
        let report = changed.report(&SOUND);
        assert_eq!(commands(&report), [mend], "{gone}");
        let opened = report["process"]["steps"].as_array().expect("steps").iter().any(is_global_deps);
        assert_eq!(opened, !is_ahead, "{gone}");
    }
    // What nothing imports for certain, and nothing at all.
    for gone in ["torch/nn/modules/spare.py", "none"] {
        let report = without_source("spare", gone).report(&SOUND);
        assert_eq!((report["verdict"].as_str(), told(&report, &["LD0208"]).len()), (Some("ok"), 0), "{gone}");
    }
}

fn opens_torch(report: &Value) -> bool {
    report["process"]["images"].as_array().expect("images").iter().any(|i| i.to_string().contains("libtorch"))
}

#[test]
fn what_is_no_installed_torch_is_told_and_not_simulated() {
    let init = format!("file {SITE}/torch/__init__.py ");
    let other = |text: &str| {
        let line = text.to_owned();
        let init = init.clone();
        Changed::new("no-torch", move |l| if l.starts_with(&init) { Some(line.clone()) } else { same(l) }, &[])
    };
    let mend = "pip install --force-reinstall --no-deps torch==2.4.0";
    // An empty file, and a directory in its place: Python makes a namespace of the directory above.
    for (line, lack) in [
        (format!("{init}empty"), "its `__init__.py` does not speak of `_C`"),
        (
            format!("dir {SITE}/torch/__init__.py"),
            "no `__init__.py` that is a file: Python makes an empty module of it",
        ),
    ] {
        let report = other(&line).report(&SOUND);
        let expected =
            format!("LD0215 warning the torch that is found is {SITE}/torch, which is no installed torch: {lack}");
        assert_eq!(told(&report, &["LD0215"]), [expected]);
        assert_eq!((report["verdict"].as_str(), opens_torch(&report)), (Some("warnings"), false), "{line}");
        assert_eq!(commands(&report), [mend]);
    }
    // In front of the installed one: a stranger that imports something, and a checkout.
    for (source, verdict) in
        [("import _json\\n", "warnings"), ("from .version import a\\nfrom torch._C import *\\n", "fails")]
    {
        let file = format!("file /home/ada/project/torch/__init__.py text \"{source}\"");
        let changed = Changed::new("stranger", same, &[file]);
        let report = changed.report(&SOUND);
        let expected = "LD0215 warning the torch that is found is /home/ada/project/torch, which is no installed torch: no \
                        directory `lib` and no extension `_C`";
        assert_eq!(told(&report, &["LD0215"]), [expected]);
        assert_eq!((report["verdict"].as_str(), opens_torch(&report)), (Some(verdict), false), "{source}");
        assert_eq!(commands(&report), [] as [&str; 0]);
        let screen = changed.output(&SOUND);
        let installed = format!("the current directory stands ahead of {SITE}, where torch is installed.");
        assert!(screen.contains(&installed), "{screen}");
        assert!(!screen.contains("2.4.0"), "{screen}");
        assert_eq!(screen.contains("ModuleNotFoundError: No module named 'torch.version'"), verdict == "fails");
    }
    assert_eq!(told(&Changed::new("torch", same, &[]).report(&SOUND), &["LD0215", "LD0216"]), [] as [&str; 0]);
}

#[test]
fn a_hidden_module_of_the_standard_library_is_told() {
    let init = format!("file {SITE}/torch/__init__.py ");
    let source = "import os\\nimport ctypes\\nfrom torch._C import *\\n";
    let edit = |l: &str| if l.starts_with(&init) { Some(file("torch/__init__.py", source)) } else { same(l) };
    let own = "file /usr/lib/python3.11/ctypes/__init__.py empty".to_owned();
    let hides = |name: &str| format!("file /home/ada/project/{name} empty");
    let changed = Changed::new("hidden", edit, &[own.clone(), hides("ctypes.py")]);
    let expected =
        "LD0216 warning /home/ada/project/ctypes.py hides `ctypes` of Python's own library, which torch imports";
    assert_eq!(told(&changed.report(&SOUND), &["LD0216"]), [expected]);
    let screen = changed.output(&SOUND);
    assert!(screen.starts_with("MAY FAIL  import torch"), "{screen}");
    // `os` is imported before the current directory is looked at; nobody imports `mine`.
    let none = Changed::new("hides-nothing", edit, &[own, hides("os.py"), hides("mine.py")]);
    assert_eq!(told(&none.report(&SOUND), &["LD0216"]), [] as [&str; 0]);
}

#[test]
fn code_of_a_start_that_is_not_run_is_told() {
    let harmless = [
        file("distutils-precedence.pth", "import os; x\\n"),
        file("_virtualenv.pth", "import _virtualenv\\n"),
        file("google_cloud-1.0-nspkg.pth", "import sys, types, os;x\\n"),
        file("__editable__.thing-1.0.pth", "import __editable___thing_finder; x\\n"),
    ];
    assert_eq!(told(&Changed::new("harmless", same, &harmless).report(&SOUND), &["LD0217"]), [] as [&str; 0]);
    let code = [
        file("odd.pth", "# mine\\nimport sys; sys.path.insert(0, '/x')\\n"),
        file("sitecustomize.py", "x = 1\\n"),
        // The user's own are not searched by a virtual environment.
        file("usercustomize.py", "x = 1\\n"),
    ];
    let changed = Changed::new("start", same, &code);
    let line =
        format!("{SITE}/odd.pth: line 2 is code that an ordinary start runs: `import sys; sys.path.insert(0, '/x')`");
    let report = changed.report(&SOUND);
    let expected = [
        format!("LD0217 note {line}; it is not run here, and may change sys.path"),
        format!(
            "LD0217 note {SITE}/sitecustomize.py: code that an ordinary start runs; it is not run here, and may change \
             sys.path"
        ),
    ];
    assert_eq!((told(&report, &["LD0217"]), report["verdict"].as_str()), (expected.to_vec(), Some("ok")));
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_ldaudit"));
    let output = command.args(["nosuch", "--fixture"]).arg(&changed.0).env_clear().output().expect("run");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("no such module") && errors.contains(&line), "{errors}");
    // The library's own comes first, and the one behind it is not imported.
    let own = "file /usr/lib/python3.11/sitecustomize.py empty".to_owned();
    let behind = Changed::new("behind", same, &[own, code[1].clone()]);
    assert_eq!(told(&behind.report(&SOUND), &["LD0217"]), [] as [&str; 0]);
}

/// What the table of numpy 1.26 has first is not there.
#[test]
fn an_extension_of_numpy_is_gone() {
    let files = [
        file("numpy/__init__.py", "from . import core\\n"),
        file("numpy/core/__init__.py", "from . import multiarray\\n"),
        file("numpy/core/multiarray.py", "from . import _multiarray_umath\\n"),
        file("numpy-1.26.4.dist-info/METADATA", "Name: numpy\\nVersion: 1.26.4\\n"),
        file("numpy-1.26.4.dist-info/RECORD", "numpy/__init__.py,,\\n"),
    ];
    let report = Changed::new("numpy", same, &files).report(&SOUND);
    assert_eq!(report["verdict"], "fails");
    let expected = "LD0208 error no module named `numpy.core._multiarray_umath` is found, which `numpy` imports";
    assert_eq!(told(&report, &["LD0208"]), [expected]);
    assert_eq!(commands(&report), ["pip install --force-reinstall --no-deps numpy==1.26.4"]);
    let screen = Changed::new("numpy-init", same, &files[1..]).output(&SOUND);
    assert!(screen.contains("AttributeError: module 'numpy' has no attribute 'ndarray'"), "{screen}");
}

#[test]
fn a_library_that_a_list_of_files_has_is_installed_again() {
    let gone = format!("so {SITE}/nvidia/nvjitlink/lib/libnvJitLink.so.12 ");
    let report = Changed::new("gone", |line| (!line.starts_with(&gone)).then(|| line.to_owned()), &[]).report(&SOUND);
    assert_eq!(report["verdict"], "fails");
    let expected = "pip install --force-reinstall --no-deps nvidia-nvjitlink-cu12==12.9.86";
    assert_eq!(commands(&report).iter().filter(|c| c.contains("pip")).collect::<Vec<_>>(), [expected]);
    // By conda, conda does it.
    let edit = |line: &str| match line
        .starts_with(&format!("file {SITE}/nvidia_nvjitlink_cu12-12.9.86.dist-info/INSTALLER"))
    {
        true => Some(line.replace("pip", "conda")),
        false => (!line.starts_with(&gone)).then(|| line.to_owned()),
    };
    let report = Changed::new("conda", edit, &[]).report(&SOUND);
    assert!(commands(&report).contains(&"conda install --force-reinstall nvidia-nvjitlink-cu12=12.9.86".into()));
}

#[test]
fn damaged_files_of_the_environment_are_told_and_change_no_verdict() {
    let torch_record = format!("file {SITE}/torch-2.4.0.dist-info/RECORD ");
    let cut = |line: &str| match line.starts_with(&torch_record) {
        true => Some(format!("{torch_record}text \"torch/__init__.py,,\\ntorch/lib/libto\"")),
        false => same(line),
    };
    let report = Changed::new("record", cut, &[]).report(&SOUND);
    let expected =
        format!("LD0207 note cannot parse {SITE}/torch-2.4.0.dist-info/RECORD: line 2 has a path and nothing more");
    assert_eq!((told(&report, &["LD0207"]), report["verdict"].as_str()), (vec![expected], Some("ok")));

    let path_file = [file("odd.pth", "import nosuch, os\\nlater\\n")];
    let report = Changed::new("pth", same, &path_file).report(&SOUND);
    let expected = format!(
        "LD0211 note {SITE}/odd.pth: line 1 imports `nosuch`, which is not found: an ordinary start says so and leaves \
         the file there"
    );
    assert_eq!((told(&report, &["LD0211"]), report["verdict"].as_str()), (vec![expected], Some("ok")));
    let report = Changed::new("loop", same, &[format!("link {SITE}/odd.pth -> odd.pth")]).report(&SOUND);
    let expected = format!("LD0211 note cannot read {SITE}/odd.pth: too many levels of symbolic links");
    assert_eq!((told(&report, &["LD0211"]), report["verdict"].as_str()), (vec![expected], Some("ok")));

    let sound = Changed::new("sound", same, &[file("fine.pth", "# import nosuch\\nimport os; os.x\\n../more\\n")]);
    assert_eq!(told(&sound.report(&SOUND), &["LD0207", "LD0211", "LD0212", "LD0214"]), [] as [&str; 0]);
}

#[test]
fn a_variable_that_leads_to_no_environment_is_told() {
    let demo = Changed::new("variable", same, &[]);
    let report = demo.report(&[&SOUND[..], &["--env", "VIRTUAL_ENV=/nosuch"]].concat());
    let expected = "LD0212 note VIRTUAL_ENV leads to no Python: `/nosuch` does not exist; audited is `/home/ada/venv`, which \
                    PATH[0] leads to";
    assert_eq!((told(&report, &["LD0212"]), report["verdict"].as_str()), (vec![expected.into()], Some("ok")));
    let report = demo.report(&[&SOUND[..], &["--env", "CONDA_PREFIX=/nosuch"]].concat());
    assert_eq!(told(&report, &["LD0212"]), [] as [&str; 0], "VIRTUAL_ENV comes first");
}

#[test]
fn a_process_that_a_signal_ends_raises_nothing() {
    let library = format!("so {SITE}/nvidia/nvjitlink/lib/libnvJitLink.so.12 ");
    let path = library.split(' ').nth(1).unwrap_or_default();
    let cut = |line: &str| match line.starts_with(&library) {
        true => Some(format!("{line} pad=8192\ndamage {path} truncate=2000")),
        false => same(line),
    };
    let screen = Changed::new("cut", cut, &[]).output(&SOUND);
    let first = screen.lines().next().unwrap_or_default();
    assert_eq!(first, "FAILS  import torch (2.4.0+cu121) is killed by SIGBUS", "{screen}");
    assert!(!screen.contains("Error: "), "{screen}");
}

#[test]
fn a_described_python_is_asked_about_what_is_installed() {
    let demo = Changed::new("no-target", same, &[]);
    let variable = &SOUND[1..];
    assert_eq!(demo.output(variable), demo.output(&SOUND));
    // Without a framework its program is what there is.
    let torch = format!("{SITE}/torch");
    let bare = Changed::new("no-framework", |line| (!line.contains(&torch)).then(|| line.to_owned()), &[]);
    assert_eq!(bare.output(variable).lines().next(), Some("WORKS  /home/ada/venv/bin/python starts"));
}
