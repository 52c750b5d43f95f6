//! `import a.b.c` of any module: packages first, frameworks by their recipes, source as far as it shows; and no unreserved
//! word where something is not followed.
//!
//! Small boxes are the demonstration fixture with files added. Real environments (`tests/make-boxes`;
//! `LDAUDIT_REQUIRE=boxes` makes their absence a failure) are judged by their interpreters: what fails there is never said
//! to work, what works is never said to fail, and for a module of torch the very same files are loaded.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Part;
use libtest_mimic::Failed;
use serde_json::Value;

const PROGRAM: &str = env!("CARGO_BIN_EXE_ldaudit");
const SITE: &str = "/home/ada/venv/lib/python3.11/site-packages";
const ENDING: &str = "cpython-311-x86_64-linux-gnu.so";
/// The environment in which torch of the demonstration works.
const SOUND: [&str; 2] = ["--env", "LD_LIBRARY_PATH=/opt/tools/lib"];

type Check = fn() -> Result<(), Failed>;

/// Lists the trials.
pub fn list(part: &mut Part) {
    let checks: &[(&str, Check)] = &[
        ("a module of torch needs torch first", modules_of_torch),
        ("source that imports torch needs it", source_that_imports_torch),
        ("what is not followed is told", what_is_not_followed_is_told),
        ("a module that is not installed", a_module_that_is_not_installed),
        ("extensions", extensions),
        ("hostile sources", hostile_sources),
        ("a module that is no file", a_module_that_is_no_file),
        ("an operator library that an import opens", operator_library),
        ("torchvision without its operators", torchvision_without_operators),
        ("a symbol across the steps of an import", symbol_across_steps),
    ];
    for (name, check) in checks {
        part.add(name, *check);
    }
    for (name, directory) in part.boxes() {
        let environment = directory.clone();
        part.add(format!("{name}: what torch needs is gone"), move || gone(&environment));
        part.add(format!("{name}: modules"), move || modules(&directory));
    }
}

// ------------------------------------------------------------------------------------------------------ small boxes

/// A fixture file that is removed with its value.
struct Small(PathBuf);

impl Drop for Small {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Small {
    /// The demonstration with files in its `site-packages`: sources with their text, extensions with what they need.
    fn with(name: &str, sources: &[(&str, &str)], extensions: &[(&str, &str)]) -> Small {
        let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/demo/broken_torch.ld");
        let demo = std::fs::read_to_string(demo).expect("the demonstration box");
        let mut added = String::new();
        for (path, text) in sources {
            let text = text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            added.push_str(&format!("file {SITE}/{path} text \"{text}\"\n"));
        }
        for (path, needed) in extensions {
            let needed = if needed.is_empty() { String::new() } else { format!(" needed={needed}") };
            let path = if path.ends_with(".so") { (*path).to_owned() } else { format!("{path}.{ENDING}") };
            added.push_str(&format!("so {SITE}/{path}{needed}\n"));
        }
        let at = demo.find("# The system's libraries").expect("the place for more files");
        let path = std::env::temp_dir().join(format!("ldaudit-imports-{}-{name}.ld", std::process::id()));
        std::fs::write(&path, format!("{}{added}\n{}", &demo[..at], &demo[at..])).expect("written");
        Small(path)
    }

    fn screen(&self, arguments: &[&str]) -> Result<String, Failed> {
        let output = Command::new(PROGRAM).args(arguments).arg("--fixture").arg(&self.0).env_clear().output()?;
        Ok(String::from_utf8(output.stdout)?)
    }

    fn audit(&self, arguments: &[&str]) -> Result<Value, Failed> {
        let output = Command::new(PROGRAM)
            .args(arguments)
            .args(["--format", "json", "--fixture"])
            .arg(&self.0)
            .env_clear()
            .output()?;
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        serde_json::from_slice(&output.stdout).map_err(|e| format!("{arguments:?}: {e}: {errors}").into())
    }
}

/// The severity of a rule's first finding.
fn severity(report: &Value, rule: &str) -> Option<String> {
    let findings = report["findings"].as_array()?;
    findings.iter().find(|f| f["rule"] == rule)?["severity"].as_str().map(str::to_owned)
}

/// The error of the step that stopped the process.
fn error(report: &Value) -> Option<String> {
    let steps = report["process"]["steps"].as_array()?;
    let failed = |s: &&Value| s["outcome"] == "failed" && s["optional"] == false;
    steps.iter().find(failed)?["error"].as_str().map(str::to_owned)
}

/// Extensions that were opened, by the first part of their file name.
fn opened(report: &Value) -> Vec<String> {
    let steps = report["process"]["steps"].as_array().cloned().unwrap_or_default();
    let imports = steps.iter().filter(|s| s["kind"] == "import" && s["outcome"] == "ok");
    imports.filter_map(|s| s["name"].as_str()?.rsplit('/').next()?.split('.').next().map(str::to_owned)).collect()
}

fn same<T: PartialEq + std::fmt::Debug>(seen: T, expected: T, what: &str) -> Result<(), Failed> {
    if seen == expected { Ok(()) } else { Err(format!("{what}: {seen:?}, expected {expected:?}").into()) }
}

fn verdict(report: &Value, expected: &str, what: &str) -> Result<(), Failed> {
    same(report["verdict"].as_str(), Some(expected), what)
}

fn modules_of_torch() -> Result<(), Failed> {
    let small = Small::with(
        "torch",
        &[("torch/nn/__init__.py", ""), ("torch/nn/functional.py", ""), ("torch/cuda.py", "x = 1\n")],
        &[],
    );
    let torch = small.audit(&["torch"])?;
    for module in ["torch.nn", "torch.nn.functional", "torch.cuda", "torch._C"] {
        let report = small.audit(&[module])?;
        verdict(&report, "fails", module)?;
        same(error(&report), error(&torch), module)?;
        // The same steps, and no others.
        same(&report["process"]["steps"], &torch["process"]["steps"], module)?;
        let sound = small.audit(&[&[module][..], &SOUND].concat())?;
        verdict(&sound, "ok", module)?;
        // torch._C itself is part of what the recipe describes.
        let told = (module != "torch._C").then(|| "note".to_owned());
        same(severity(&sound, "LD0206"), told, &format!("{module}: what is not followed"))?;
    }
    // Nothing is imported twice.
    let both = small.audit(&[&["torch.nn", "--import", "torch"][..], &SOUND].concat())?;
    let once = small.audit(&[&["torch"][..], &SOUND].concat())?;
    same(&both["process"]["steps"], &once["process"]["steps"], "torch, then torch.nn")
}

fn source_that_imports_torch() -> Result<(), Failed> {
    let small = Small::with(
        "source",
        &[
            ("vision/__init__.py", "from . import ops\n"),
            ("vision/ops.py", "\"\"\"\nimport nothing\n\"\"\"\nimport torch.nn as nn\n"),
            ("torch/nn.py", ""),
            ("careful.py", "try:\n    import torch\nexcept OSError:\n    torch = None\n"),
            ("lazy.py", "def f():\n    import torch\n\nif f:\n    import torch\n"),
            ("deep/__init__.py", "import vision.ops\n"),
            ("deep/below.py", ""),
        ],
        &[],
    );
    let torch = small.audit(&["torch"])?;
    for module in ["vision", "vision.ops", "deep.below"] {
        let report = small.audit(&[module])?;
        verdict(&report, "fails", module)?;
        same(error(&report), error(&torch), module)?;
        verdict(&small.audit(&[&[module][..], &SOUND].concat())?, "ok", module)?;
    }
    // A failure that the source may catch does not end the import, and is told.
    for (module, expected) in [("careful", "warnings"), ("lazy", "ok")] {
        let report = small.audit(&[module])?;
        verdict(&report, expected, module)?;
        same(severity(&report, "LD0206"), Some("note".into()), module)?;
    }
    Ok(())
}

fn what_is_not_followed_is_told() -> Result<(), Failed> {
    let small = Small::with(
        "told",
        &[("plain.py", "x = 1\n"), ("pack/__init__.py", ""), ("space/inner.py", ""), ("coded/__init__.pyc", "")],
        &[("alone", "")],
    );
    for module in ["plain", "pack", "space.inner", "alone", "coded", "os"] {
        let report = small.audit(&[module])?;
        verdict(&report, "ok", module)?;
        same(severity(&report, "LD0206"), Some("note".into()), module)?;
        let output = Command::new(PROGRAM).args([module, "--fixture"]).arg(&small.0).env_clear().output()?;
        let screen = String::from_utf8(output.stdout)?;
        if !screen.contains("note[LD0206]  no recipe describes") {
            return Err(format!("{module} works, and nothing is reserved:\n{screen}").into());
        }
    }
    // Nothing is left open here: no code at all, and code of Python's own library.
    for module in ["space", "_json"] {
        same(severity(&small.audit(&[module])?, "LD0206"), None, module)?;
    }
    Ok(())
}

fn a_module_that_is_not_installed() -> Result<(), Failed> {
    let small = Small::with(
        "absent",
        &[
            ("wants.py", "import os\nimport requests\n"),
            ("tries.py", "try:\n    import requests\nexcept ImportError:\n    pass\n"),
            ("finds/__init__.py", "import os\nsys.path.append('/elsewhere')\nimport requests\n"),
            ("below.py", "import os.path\n"),
        ],
        &[],
    );
    for (module, expected, told) in [
        ("wants", "warnings", Some("warning")),
        ("tries", "ok", None),
        ("finds", "ok", Some("note")),
        ("below", "ok", None),
    ] {
        let report = small.audit(&[module])?;
        verdict(&report, expected, module)?;
        same(severity(&report, "LD0208").as_deref(), told, module)?;
    }
    // No word of "works" where Python will most likely raise.
    let first = small.screen(&["wants"])?.lines().next().unwrap_or_default().to_owned();
    same(first.as_str(), "MAY FAIL  import wants: no module named `requests` is found", "the first line")?;
    Ok(())
}

fn extensions() -> Result<(), Failed> {
    let small = Small::with(
        "extensions",
        &[
            ("user/__init__.py", "from . import _ext\n"),
            ("fails/__init__.py", "from ._ext import thing\n"),
            ("caught/__init__.py", "try:\n    from ._ext import thing\nexcept ImportError:\n    thing = None\n"),
            ("outer/__init__.py", "import _ctypes\n"),
            ("clash/__init__.py", "import _bz2\n"),
        ],
        &[
            ("user/_ext", ""),
            ("fails/_ext", "libnope.so.1"),
            ("caught/_ext", "libnope.so.1"),
            ("whole/__init__", ""),
            ("whole/part", ""),
            ("outer/inner", "libnope.so.1"),
        ],
    );
    same(opened(&small.audit(&["user"])?), vec!["_ext".to_owned()], "user")?;
    same(opened(&small.audit(&["user._ext"])?), vec!["_ext".to_owned()], "user._ext")?;
    // The package itself is an extension.
    same(opened(&small.audit(&["whole.part"])?), vec!["__init__".to_owned(), "part".to_owned()], "whole.part")?;
    let fails = small.audit(&["fails"])?;
    verdict(&fails, "warnings", "its package may prepare the load")?;
    same(severity(&fails, "LD0209"), Some("warning".into()), "fails")?;
    let caught = small.audit(&["caught"])?;
    verdict(&caught, "ok", "caught")?;
    same(severity(&caught, "LD0209"), None, "caught")?;
    // The target itself is taken at its word, behind what its package loads.
    let inner = small.audit(&["outer.inner"])?;
    verdict(&inner, "fails", "outer.inner")?;
    same(opened(&inner), vec!["_ctypes".to_owned()], "outer.inner")?;
    // So is Python's own library: without libbz2 there is no _bz2.
    let demo = std::fs::read_to_string(&small.0)?;
    let lines = demo.lines().filter(|l| !l.contains("/lib/x86_64-linux-gnu/libbz2"));
    std::fs::write(&small.0, lines.collect::<Vec<_>>().join("\n"))?;
    verdict(&small.audit(&["clash"])?, "fails", "clash")
}

fn hostile_sources() -> Result<(), Failed> {
    let chain: Vec<(String, String)> =
        (0..400).map(|n| (format!("m{n}.py"), format!("import m{}\nimport m{}\n", n + 1, n / 2))).collect();
    let mut sources: Vec<(&str, &str)> = chain.iter().map(|(n, t)| (n.as_str(), t.as_str())).collect();
    let deep = format!("import {}\n", ["ring"; 500].join("."));
    sources.extend([
        ("m400.py", ""),
        ("ring/__init__.py", "from . import ring\nfrom .ring import ring\nimport ring.ring\n"),
        ("ring/ring.py", "from . import ring\nimport ring, ring.ring.ring\n"),
        ("open.py", "x = (\nimport torch\n'''"),
        ("deep.py", deep.as_str()),
    ]);
    let small = Small::with("hostile", &sources, &[]);
    for module in ["m0", "ring", "ring.ring", "open", "deep"] {
        verdict(&small.audit(&[module])?, "ok", module)?;
    }
    Ok(())
}

fn a_module_that_is_no_file() -> Result<(), Failed> {
    let small = Small::with(
        "no-file",
        &[
            ("outer.py", "import sys\nsys.modules['outer.inner'] = sys\n"),
            ("plain.py", "import sys\nx = sys.modules\n"),
        ],
        &[],
    );
    verdict(&small.audit(&["outer.inner"])?, "ok", "outer.inner")?;
    for module in ["outer.other", "plain.inner"] {
        let output = Command::new(PROGRAM).args([module, "--fixture"]).arg(&small.0).env_clear().output()?;
        same(output.status.code(), Some(2), module)?;
    }
    Ok(())
}

fn operator_library() -> Result<(), Failed> {
    const LIBRARY: &str = "torchaudio/lib/libtorchaudio.so";
    let audio = |needed: &str, wrapped: bool| {
        let metadata = "Metadata-Version: 2.1\nName: torchaudio\nVersion: 2.3.1\nRequires-Dist: torch==2.3.1\n";
        let mut sources = vec![
            ("torchaudio/__init__.py", "import torch\nfrom . import _extension\n"),
            ("torchaudio/_extension/__init__.py", "if there:\n    _load_lib('libtorchaudio')\n"),
            ("torchaudio/lib/__init__.py", ""),
            ("torchaudio-2.3.1.dist-info/METADATA", metadata),
            ("torchaudio-2.3.1.dist-info/RECORD", "torchaudio/lib/libtorchaudio.so,,\n"),
        ];
        if wrapped {
            sources.push(("torch/_ops.py", "raise OSError(f\"Could not load this library: {path}\")\n"));
        }
        let library = format!("{needed} soname=libtorchaudio.so");
        Small::with("audio", &sources, &[(LIBRARY, &library), ("torchaudio/lib/_torchaudio", "libtorchaudio.so")])
    };
    let sound = audio("libz.so.1", false).audit(&[&["torchaudio"][..], &SOUND].concat())?;
    verdict(&sound, "ok", "torchaudio")?;
    // The library is there before the extension that needs it.
    same(opened(&sound).last().map(String::as_str), Some("_torchaudio"), "the last extension")?;
    let small = audio("libnope.so.1", false);
    let report = small.audit(&[&["torchaudio"][..], &SOUND].concat())?;
    verdict(&report, "fails", "torchaudio")?;
    let text = "libnope.so.1: cannot open shared object file: No such file or directory";
    same(error(&report).as_deref(), Some(text), "torchaudio")?;
    let finding = &report["findings"][0];
    same(finding["rule"].as_str(), Some("LD0101"), "the first finding")?;
    let because = finding["because"].as_str().unwrap_or_default();
    if !because.contains("torchaudio 2.3.1 requires torch==2.3.1, and torch 2.4.0+cu121 is installed") {
        return Err(because.into());
    }
    same(finding["remedies"][0]["commands"][0].as_str(), Some("pip install torchaudio==2.4.0"), "what mends it")?;
    let screen = |small: &Small| small.screen(&[&["torchaudio"][..], &SOUND].concat());
    same(screen(&small)?.lines().nth(1), Some(format!("       OSError: {text}").as_str()), "as it is")?;
    drop(small);
    let wrapped = format!("       OSError: Could not load this library: {SITE}/{LIBRARY}");
    same(screen(&audio("libnope.so.1", true))?.lines().nth(1), Some(wrapped.as_str()), "in torch's words")
}

fn torchvision_without_operators() -> Result<(), Failed> {
    let vision = |registers: &str, library: &str, needed: &str| {
        Small::with(
            "vision",
            &[
                ("torchvision/__init__.py", "from . import extension\nfrom torchvision import _meta_registrations\n"),
                ("torchvision/extension.py", "import torch\n"),
                (
                    "torchvision/_meta_registrations.py",
                    &format!("import torch.library\n\n{registers}\ndef f(): pass\n"),
                ),
                ("torch/library.py", library),
                ("torch/_custom_ops.py", ""),
            ],
            &[("torchvision/_C.so", needed)],
        )
    };
    let end = |small: Small| -> Result<Option<String>, Failed> {
        let screen = small.screen(&[&["torchvision"][..], &SOUND].concat())?;
        let fails = screen.starts_with("FAILS");
        Ok(fails.then(|| screen.lines().nth(1).unwrap_or_default().trim().to_owned()))
    };
    let new = "@torch.library.register_fake(\"torchvision::nms\")";
    let old = "@torch._custom_ops.impl_abstract(\"torchvision::nms\")";
    let has = "def register_fake(f):\n    pass\n";
    let refused = Some("RuntimeError: operator torchvision::nms does not exist".to_owned());
    same(end(vision(new, has, "libnope.so.1"))?, refused.clone(), "register_fake")?;
    same(end(vision(old, "", "libnope.so.1"))?, refused, "impl_abstract")?;
    let absent = Some("AttributeError: module 'torch.library' has no attribute 'register_fake'".to_owned());
    same(end(vision(new, "", "libz.so.1"))?, absent, "an older torch")?;
    // With the operators, or when none is asked for, the import works.
    same(end(vision(new, has, "libz.so.1"))?, None, "a sound library")?;
    same(end(vision("", has, "libnope.so.1"))?, None, "0.15 and 0.16 go on without them")
}

fn symbol_across_steps() -> Result<(), Failed> {
    const SYMBOL: &str = "__nvJitLinkAddData_12_1";
    // torch._C brings a library that defines it, for itself alone: what is imported later does not see it.
    let extension = format!("libz.so.1 use={SYMBOL}");
    let small = Small::with(
        "across",
        &[("vision/__init__.py", "import torch\nfrom . import _ext\n")],
        &[("vision/_ext", extension.as_str())],
    );
    let why = |target: &str| small.screen(&[&["--why", SYMBOL, target][..], &SOUND].concat());
    let found = why("torch")?;
    if !found.starts_with("FOUND") || !found.contains("libnvJitLink.so.12 answers") {
        return Err(found.into());
    }
    let undefined = why("vision")?;
    for part in [SYMBOL, "_ext", "undefined symbol", "dlopen of _C.cpython-311-x86_64-linux-gnu.so without"] {
        if !undefined.split_whitespace().collect::<Vec<_>>().join(" ").contains(part) {
            return Err(format!("no `{part}`:\n{undefined}").into());
        }
    }
    Ok(())
}

// ------------------------------------------------------------------------------------------------ real environments

/// Imports a module and says how that ended, and what is mapped then.
const IMPORTER: &str = "\
import importlib, json, sys
try:
    importlib.import_module(sys.argv[1])
    end = 'ok'
except BaseException as e:
    end = type(e).__name__ + ': ' + str(e)
files = set()
for line in open('/proc/self/maps'):
    parts = line.split(None, 5)
    if len(parts) == 6 and '.so' in parts[5]:
        files.add(parts[5].strip())
print('\\n' + json.dumps([end, sorted(files)]))
";

/// Modules that are tried where they are installed, in a plain environment.
const MODULES: &[&str] = &[
    "torch.nn",
    "functorch",
    "numpy",
    "numpy.linalg",
    "onnxruntime",
    "onnxruntime.capi.onnxruntime_pybind11_state",
    "ctranslate2._ext",
    "faster_whisper",
    "nvfuser",
    "triton",
    "tokenizers",
    "yaml",
    "sympy",
    "networkx",
    "ssl",
    "ctypes",
    "sqlite3",
    "json",
    "json.decoder",
    "_json",
    "sys",
];

/// Modules that are also tried with a broken library in front.
const BROKEN: &[&str] = &["torch.nn", "torch._C", "torch.cuda", "functorch", "json.decoder"];

/// What one interpreter does with one module.
struct Real {
    /// `ok`, or the exception.
    end: String,
    /// Libraries that are mapped then.
    files: BTreeSet<String>,
}

fn environment<'a>(command: &'a mut Command, library_path: Option<&Path>) -> &'a mut Command {
    command.env_clear().env("PATH", "/usr/bin:/bin").env("HOME", "/nonexistent").current_dir("/");
    command.envs(library_path.map(|d| ("LD_LIBRARY_PATH", d)))
}

/// Byte code goes to a directory of the test: the environment stays as it is, and each module is compiled once.
fn really(python: &Path, module: &str, library_path: Option<&Path>, byte_code: &Path) -> Result<Real, Failed> {
    let mut command = Command::new(python);
    let command = environment(command.args(["-c", IMPORTER, module]), library_path);
    let output = command.env("PYTHONPYCACHEPREFIX", byte_code).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let answer = text.lines().last().unwrap_or_default();
    let (end, files) = serde_json::from_str(answer).map_err(|e| format!("{module}: no answer: {e}"))?;
    Ok(Real { end, files })
}

fn modules(directory: &Path) -> Result<(), Failed> {
    let python = directory.join("bin/python");
    let name = directory.file_name().unwrap_or_default().to_string_lossy().into_owned();
    // Empty copies of what torch asks for, of whatever major release.
    let broken = std::env::temp_dir().join(format!("ldaudit-imports-{}-{name}", std::process::id()));
    std::fs::create_dir_all(&broken)?;
    for major in [11, 12, 13] {
        std::fs::write(broken.join(format!("libcublasLt.so.{major}")), b"")?;
    }
    let mut complaints = Vec::new();
    let mut tried = 0;
    for (modules, library_path) in [(MODULES, None), (BROKEN, Some(broken.as_path()))] {
        for module in modules {
            let real = really(&python, module, library_path, &broken.join("byte-code"))?;
            let top = module.split('.').next().unwrap_or(module);
            if real.end == format!("ModuleNotFoundError: No module named '{top}'") {
                continue;
            }
            tried += 1;
            let mut command = Command::new(PROGRAM);
            command.args([module, "--format", "json", "--python"]).arg(&python);
            let output = environment(&mut command, library_path).output()?;
            let report: Value = serde_json::from_slice(&output.stdout)
                .map_err(|e| format!("{module}: {e}: {}", String::from_utf8_lossy(&output.stderr)))?;
            complaints
                .extend(disagreement(&report, &real, top).map(|what| format!("{module}, {library_path:?}: {what}")));
        }
    }
    std::fs::remove_dir_all(&broken)?;
    if tried < 12 {
        complaints.push(format!("only {tried} imports were tried"));
    }
    if complaints.is_empty() { Ok(()) } else { Err(complaints.join("\n").into()) }
}

/// What is wrong with a report, seen from what really happened.
fn disagreement(report: &Value, real: &Real, top: &str) -> Option<String> {
    let end = &real.end;
    let text = error(report).unwrap_or_default();
    match (end.as_str(), report["verdict"].as_str()?) {
        ("ok", "fails") => return Some(format!("works, and is said to fail: {text}")),
        ("ok", _) => {}
        (_, "ok") => return Some(format!("{end}, and is said to work")),
        (_, "fails") if !end.ends_with(&text) => return Some(format!("{end}, and is said to fail by {text}")),
        _ => {}
    }
    if end != "ok" || top != "torch" {
        return None;
    }
    let images = report["process"]["images"].as_array()?;
    let paths = images.iter().filter_map(|i| i["real_path"].as_str()).filter(|p| p.contains(".so"));
    let ours: BTreeSet<String> = paths.map(str::to_owned).collect();
    let differ: Vec<&String> = ours.symmetric_difference(&real.files).collect();
    (!differ.is_empty()).then(|| format!("mapped by one only: {differ:?}"))
}

// ------------------------------------------------------------------------------------- what torch needs and is gone

/// Files and directories of packages; the first ones are tried always, the rest with `LDAUDIT_REAL=full`.
const GONE: &[&str] = &[
    "typing_extensions.py",
    "sympy",
    "numpy/core/_multiarray_umath",
    "numpy/_core/_multiarray_umath",
    "torch/version.py",
    "torch/nn/modules/linear.py",
    "torch/serialization.py",
    "torch/torch_version.py",
    "torch/_utils.py",
    "torch/amp/__init__.py",
    "torch/_VF.py",
    "torch/nn",
    "filelock",
    "mpmath",
    "sympy/__init__.py",
    "numpy/__init__.py",
    "numpy/linalg/_umath_linalg",
    "numpy",
    "networkx",
    "jinja2",
    "markupsafe",
    "fsspec",
    "tqdm",
    "triton",
    "setuptools",
];
/// How many of them are tried always.
const ALWAYS: usize = 7;

/// An environment of links to another one, in which one file or directory is missing.
fn without(environment: &Path, gone: &str, scratch: &Path) -> Result<bool, Failed> {
    let site = "lib/python3.11/site-packages";
    let _ = std::fs::remove_dir_all(scratch);
    std::fs::create_dir_all(scratch.join("bin"))?;
    std::fs::create_dir_all(scratch.join(site))?;
    std::fs::copy(environment.join("pyvenv.cfg"), scratch.join("pyvenv.cfg"))?;
    std::os::unix::fs::symlink(environment.join("bin/python").canonicalize()?, scratch.join("bin/python"))?;
    linked(&environment.join(site), &scratch.join(site), gone)
}

/// Links to the entries of a directory but for one, which lies at a path below it; true when that one is there. The last
/// part of the path is the beginning of a file name when it has no ending.
fn linked(from: &Path, to: &Path, gone: &str) -> Result<bool, Failed> {
    let (first, rest) = gone.split_once('/').unwrap_or((gone, ""));
    let mut found = false;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_extension = name.strip_prefix(first).is_some_and(|ending| ending == format!(".{ENDING}"));
        if name == first && !rest.is_empty() {
            std::fs::create_dir(to.join(&name))?;
            found |= linked(&entry.path(), &to.join(&name), rest)?;
        } else if name == first || is_extension {
            found = true;
        } else {
            std::os::unix::fs::symlink(entry.path(), to.join(&name))?;
        }
    }
    Ok(found)
}

/// The interpreter judges whether torch can be imported without something; where it cannot, the text that is told stands in
/// what it wrote.
fn gone(environment_of: &Path) -> Result<(), Failed> {
    let name = environment_of.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let scratch = std::env::temp_dir().join(format!("ldaudit-gone-{}-{name}", std::process::id()));
    let full = std::env::var("LDAUDIT_REAL").is_ok_and(|v| v == "full");
    let mut complaints = Vec::new();
    let mut tried = 0;
    for gone in &GONE[..if full { GONE.len() } else { ALWAYS }] {
        let directory = scratch.join("env");
        if !without(environment_of, gone, &directory)? {
            continue;
        }
        tried += 1;
        let python = directory.join("bin/python");
        let mut command = Command::new(&python);
        let command = environment(command.args(["-c", "import torch"]), None);
        let output = command.env("PYTHONPYCACHEPREFIX", scratch.join("byte-code")).output()?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let mut command = Command::new(PROGRAM);
        command.args(["torch", "--python"]).arg(&directory);
        let screen = String::from_utf8(environment(&mut command, None).output()?.stdout)?;
        let mut lines = screen.lines();
        let fails = lines.next().is_some_and(|line| line.starts_with("FAILS"));
        let error = lines.next().unwrap_or_default().trim();
        if fails == output.status.success() {
            complaints.push(format!("without {gone}: {said:?}, and said is {screen}"));
        } else if fails && !said.contains(error) {
            complaints.push(format!("without {gone}: {said:?}, and said is {error}"));
        }
    }
    std::fs::remove_dir_all(&scratch)?;
    if tried < 2 {
        complaints.push(format!("only {tried} were tried"));
    }
    if complaints.is_empty() { Ok(()) } else { Err(complaints.join("\n").into()) }
}
