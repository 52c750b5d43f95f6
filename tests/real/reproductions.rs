//! Faults that users met, made again with real wheels and the real loader: the same environment is given to both, the error
//! must be the same text, and the first finding must name the culprit. Where a change is said to be proven, it is made, and
//! the real program has to work then.
//!
//! The environments are those of `tests/make-boxes`, the other releases beside them those of `tests/make-reproductions`.
//! What is missing is told as an ignored test, which `LDAUDIT_REQUIRE=reproductions` makes fail.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use crate::Part;
use crate::support::{cached, require};
use bstr::ByteSlice;
use clap::Parser;
use ldaudit::cli::args::Args;
use ldaudit::cli::audit;
use ldaudit::cli::loaders::Loaders;
use ldaudit::elf::Layout;
use ldaudit::ld::{ImageId, OpenRequest, Process, Store};
use ldaudit::system::System;
use libtest_mimic::Failed;
use serde_json::Value;

type Outcome = Result<(), Failed>;

/// One reproduction: its name, what it needs, what it does.
type Reproduction = (&'static str, &'static [&'static str], fn() -> Outcome);

const REPRODUCTIONS: &[Reproduction] = &[
    ("01 older cublasLt without cublasLtGetStatusString", &["torch113", "cc"], older_cublaslt),
    ("02 newer cublasLt, silently", &["torch113", "cublas-11.11"], newer_cublaslt),
    ("03 older nvJitLink, torch 2.1", &["torch212-ct2", "nvjitlink-12.0"], || older_nvjitlink("torch212-ct2")),
    ("03 older nvJitLink, torch 2.4", &["torch240-ort120", "nvjitlink-12.0"], || older_nvjitlink("torch240-ort120")),
    ("03 older nvJitLink, torch 2.15 is immune", &["torch2150-ort131", "nvjitlink-12.0"], nvjitlink_immune),
    ("04 older NCCL preloaded, torch 2.4", &["torch240-ort120", "nccl-2.18"], || {
        older_nccl("torch240-ort120", "ncclCommRegister")
    }),
    ("04 older NCCL preloaded, torch 2.15", &["torch2150-ort131", "nccl-2.18"], || {
        older_nccl("torch2150-ort131", "ncclCommResume")
    }),
    ("04 older NCCL on LD_LIBRARY_PATH is harmless", &["torch240-ort120", "nccl-2.18"], nccl_immune),
    ("05 libstdc++ without a version", &["torch240-ort120"], older_libstdcxx),
    ("06 libcudart of another major under the old name", &["torch201-ort116", "torch240-ort120"], wrong_cudart),
    ("07 a wheel is missing beside torch, 2.4", &["torch240-ort120"], missing_wheel),
    ("07 a wheel is missing beside torch, 2.15 finds it elsewhere", &["torch2150-ort131"], missing_wheel_is_found),
    ("08 no nvidia wheel at all", &["torch240-ort120"], no_wheels),
    ("09 onnxruntime 1.20 wants cuDNN's parts by name", &["torch240-ort120"], cudnn_parts),
    ("10 onnxruntime 1.31 wants curand, then the driver", &["torch2150-ort131", "curand-13"], curand_then_driver),
    ("11 cuDNN 8.5 tells an older error", &["torch113", "no driver"], false_dlerror),
    ("12 ctranslate2's cuDNN finds none of its parts", &["torch212-ct2"], relative_rpath),
    ("13 cuDNN 8 with parts of another release", &["torch212-ct2", "torch113"], mixed_cudnn_8),
    ("14 cuDNN 9 with parts of another release, silently", &["torch240-ort120", "torch2150-ort131"], mixed_cudnn_9),
    ("15 torchaudio for another torch", &["torch212-ct2", "torchaudio-2.4"], other_torchaudio),
    ("15 torchvision for another torch", &["torch212-ct2", "torchvision-0.19"], other_torchvision),
    (
        "15 import torchvision, for another torch",
        &["torch212-ct2", "torch2150-ort131", "torchvision-0.19"],
        import_other_torchvision,
    ),
    ("sound imports beside torch", &["torch240-ort120", "torch2150-ort131", "torchaudio-2.4"], sound_imports),
    ("03 the symbol that an older nvJitLink lacks", &["torch240-ort120", "nvjitlink-12.0"], why_of_a_symbol),
    ("16 torchvision for another CUDA", &["torch212-ct2", "torchvision-0.15"], other_cuda),
    ("18 an empty element is the current directory", &["cc"], empty_element),
    ("19 the program's RPATH serves what it loads, its RUNPATH does not", &["cc"], rpath_of_the_program),
];

/// Lists the trials.
pub fn list(part: &mut Part) {
    for (name, needs, run) in REPRODUCTIONS {
        let missing: Vec<&str> = needs.iter().copied().filter(|n| !is_there(n)).collect();
        if missing.is_empty() {
            part.add(name, run);
            continue;
        }
        let why = format!("{name}: no {} (tests/make-boxes, tests/make-reproductions)", missing.join(", "));
        part.absent(why, require::is_required("reproductions"));
    }
}

fn is_there(what: &str) -> bool {
    match what {
        "cc" => Command::new("cc").arg("--version").output().is_ok_and(|o| o.status.success()),
        "no driver" => {
            !["/usr/lib/x86_64-linux-gnu", "/usr/lib64"].iter().any(|d| Path::new(d).join("libcuda.so.1").exists())
        }
        torch if torch.starts_with("torch") && boxed(torch).join("bin/python").exists() => true,
        wheel => wheels(wheel).is_dir(),
    }
}

fn boxed(name: &str) -> PathBuf {
    cached::directory().join("boxes").join(name)
}

/// Without links: torch opens what it is told to by its real path.
fn wheels(name: &str) -> PathBuf {
    let path = cached::directory().join("wheels").join(name);
    std::fs::canonicalize(&path).unwrap_or(path)
}

fn site(name: &str) -> PathBuf {
    boxed(name).join("lib/python3.11/site-packages")
}

/// An empty directory for the files of one reproduction, in the build folder.
fn scratch(name: &str) -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("reproductions").join(name);
    let _ = std::fs::remove_dir_all(&directory);
    std::fs::create_dir_all(&directory).expect("a scratch directory");
    directory
}

/// A program with its environment, and how ldaudit is asked about it.
struct Case {
    program: PathBuf,
    arguments: Vec<OsString>,
    env: BTreeMap<String, OsString>,
    cwd: PathBuf,
    asked: Vec<OsString>,
}

impl Case {
    /// Python code in an environment; ldaudit is asked about `import torch`.
    fn python(environment: &Path, code: &str) -> Case {
        Case {
            program: environment.join("bin/python"),
            arguments: ["-B", "-c", code].map(OsString::from).into(),
            env: BTreeMap::new(),
            cwd: "/".into(),
            asked: vec!["--python".into(), environment.into(), "torch".into()],
        }
    }

    fn set(mut self, name: &str, value: impl Into<OsString>) -> Case {
        self.env.insert(name.to_owned(), value.into());
        self
    }

    fn ask(mut self, words: &[&str]) -> Case {
        self.asked.extend(words.iter().map(OsString::from));
        self
    }

    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.env_clear().env("PATH", "/usr/bin:/bin").env("HOME", "/nonexistent").envs(&self.env);
        command.current_dir(&self.cwd);
        command
    }

    /// What the real program says last, without the class of a Python exception: the loader's text. `None` when it ends
    /// well.
    fn really(&self) -> Result<Option<String>, Failed> {
        let output = self.command(&self.program).args(&self.arguments).output()?;
        if output.status.success() {
            return Ok(None);
        }
        let text = output.stderr.to_str_lossy().into_owned();
        let last = text.lines().rfind(|l| !l.trim().is_empty() && !l.starts_with(' ')).unwrap_or_default();
        Ok(Some(last.to_owned()))
    }

    fn asked(&self, format: &str) -> Result<std::process::Output, Failed> {
        let mut command = self.command(Path::new(env!("CARGO_BIN_EXE_ldaudit")));
        Ok(command.args(["--format", format]).args(&self.asked).output()?)
    }

    fn report(&self) -> Result<Value, Failed> {
        let output = self.asked("json")?;
        let report = serde_json::from_slice(&output.stdout);
        report.map_err(|e| format!("no report: {e}: {}", output.stderr.to_str_lossy()).into())
    }

    /// The error that the screen of ldaudit shows below its first line.
    fn predicted(&self) -> Result<Option<String>, Failed> {
        let text = self.asked("text")?.stdout.to_str_lossy().into_owned();
        let mut lines = text.lines();
        let fails = lines.next().is_some_and(|l| l.starts_with("FAILS"));
        Ok(fails.then(|| lines.next().unwrap_or_default().trim().to_owned()))
    }

    /// The real program and ldaudit agree on the error, which holds a text.
    fn fails_with(&self, expected: &str) -> Result<Value, Failed> {
        let real = self.really()?.ok_or("the real program works")?;
        ensure(real.contains(expected), || format!("the real error is another one: {real}"))?;
        let predicted = self.predicted()?.ok_or("ldaudit says that it works")?;
        // ctypes raises OSError and a bare dlopen has no class.
        let bare = |text: &str| text.trim_start_matches("OSError: ").to_owned();
        ensure(bare(&predicted) == bare(&real), || format!("predicted: {predicted}\n     real: {real}"))?;
        self.report()
    }

    /// Both work; the report.
    fn works(&self) -> Result<Value, Failed> {
        if let Some(error) = self.really()? {
            return Err(format!("the real program fails: {error}").into());
        }
        if let Some(error) = self.predicted()? {
            return Err(format!("ldaudit predicts: {error}").into());
        }
        self.report()
    }

    /// Makes the change that the first finding says is proven; the real program must work then.
    fn is_mended_by(&self, finding: &Value) -> Outcome {
        let remedy = &finding["remedies"][0];
        ensure(remedy["verified"] == true, || format!("nothing is proven: {finding}"))?;
        let command = remedy["commands"][0].as_str().unwrap_or_default();
        let mut mended = Case { env: self.env.clone(), arguments: self.arguments.clone(), ..self.copy() };
        if let Some(name) = command.strip_prefix("unset ") {
            mended.env.remove(name);
        } else {
            let assignment = command.strip_prefix("export ").and_then(|c| c.split_once('='));
            let (name, value) = assignment.ok_or_else(|| format!("no command of a known form: {command}"))?;
            mended.env.insert(name.into(), value.into());
        }
        match mended.really()? {
            None => Ok(()),
            Some(error) => Err(format!("`{command}` does not help: {error}").into()),
        }
    }

    fn copy(&self) -> Case {
        Case {
            program: self.program.clone(),
            arguments: self.arguments.clone(),
            env: self.env.clone(),
            cwd: self.cwd.clone(),
            asked: self.asked.clone(),
        }
    }
}

fn ensure(holds: bool, what: impl FnOnce() -> String) -> Outcome {
    if holds { Ok(()) } else { Err(what().into()) }
}

/// The finding that stands first, which must be of a rule and have a file in a part.
fn culprit(report: &Value, rule: &str, part: &str, path: &Path) -> Result<Value, Failed> {
    let finding = report["findings"][0].clone();
    ensure(finding["rule"] == rule, || format!("the first finding is another one: {finding}"))?;
    has_file(&finding, part, path)?;
    Ok(finding)
}

fn has_file(finding: &Value, part: &str, path: &Path) -> Outcome {
    let is_it = |p: &str| std::fs::canonicalize(p).ok() == std::fs::canonicalize(path).ok() && Path::new(p).exists();
    let mut files = finding["evidence"].as_array().into_iter().flatten();
    let found = files.any(|e| e["part"] == part && e["path"].as_str().is_some_and(is_it));
    ensure(found, || format!("{} is not told as `{part}`: {finding}", path.display()))
}

/// The finding of a rule, wherever it stands.
fn finding<'r>(report: &'r Value, rule: &str) -> Result<&'r Value, Failed> {
    let mut all = report["findings"].as_array().into_iter().flatten();
    Ok(all.find(|f| f["rule"] == rule).ok_or_else(|| format!("no {rule}: {}", report["findings"]))?)
}

// ------------------------------------------------------------------------------------------------ environments of our own

/// A second site directory whose torch and nvidia packages are made of links to those of an environment, all but the files
/// that are left out.
fn overlay(environment: &str, name: &str, leave_out: &[&str]) -> PathBuf {
    let (from, to) = (site(environment), scratch(name));
    let link_all = |from: &Path, to: &Path, except: &str| {
        std::fs::create_dir_all(to).expect("a directory");
        for entry in std::fs::read_dir(from).expect("a directory of the environment").flatten() {
            let name = entry.file_name();
            let left_out = leave_out.iter().any(|l| name == *l) || name == except;
            if !left_out {
                symlink(entry.path(), to.join(name)).expect("a link");
            }
        }
    };
    link_all(&from.join("torch"), &to.join("torch"), "lib");
    link_all(&from.join("torch/lib"), &to.join("torch/lib"), "");
    if !leave_out.contains(&"nvidia") {
        for package in std::fs::read_dir(from.join("nvidia")).expect("nvidia packages").flatten() {
            let lib = package.path().join("lib");
            if lib.is_dir() {
                link_all(&lib, &to.join("nvidia").join(package.file_name()).join("lib"), "");
            }
        }
    }
    to
}

/// A library with the definitions of another one, all but some, made from scratch: no code is behind them.
fn library_without(original: &Path, to: &Path, without: &[&str]) {
    let store = Store::new(System::live(), Layout::LITTLE_64, false);
    let object = store.open(original.as_os_str().as_bytes().as_bstr()).expect("the original");
    let soname = object.facts().and_then(|f| f.soname.clone()).expect("a soname");
    let table = &store.symbols(&object).expect("symbols").table;
    let names = table.hashed().filter(|s| s.is_definition()).filter_map(|s| table.name(&s).map(ToString::to_string));
    let mut assembly = String::from(".text\n");
    for name in names.filter(|n| !without.contains(&n.as_str()) && soname != n.as_str()) {
        assembly.push_str(&format!(".globl {name}\n.type {name},@function\n{name}:\n"));
    }
    assembly.push_str("ret\n.section .note.GNU-stack,\"\",@progbits\n");
    let directory = to.parent().expect("a directory");
    std::fs::write(directory.join("stub.s"), assembly).expect("assembly");
    std::fs::write(directory.join("stub.map"), format!("{soname} {{ global: *; }};\n")).expect("version script");
    compile(
        directory,
        &[
            "-shared",
            "-nostdlib",
            "stub.s",
            "-Wl,--version-script=stub.map",
            &format!("-Wl,-soname,{soname}"),
            "-o",
            &to.to_string_lossy(),
        ],
    );
}

fn compile(directory: &Path, arguments: &[&str]) {
    let status = Command::new("cc").args(arguments).current_dir(directory).status().expect("cc");
    assert!(status.success(), "cc {arguments:?}: {status}");
}

// -------------------------------------------------------------------------------------------------------- reproductions

fn older_cublaslt() -> Outcome {
    let lt = site("torch113").join("nvidia/cublas/lib/libcublasLt.so.11");
    let older = scratch("01").join("libcublasLt.so.11");
    library_without(&lt, &older, &["cublasLtGetStatusString"]);
    let case =
        Case::python(&boxed("torch113"), "import torch").set("LD_LIBRARY_PATH", older.parent().expect("directory"));
    let report =
        case.fails_with("libcublas.so.11: undefined symbol: cublasLtGetStatusString, version libcublasLt.so.11")?;
    let finding = culprit(&report, "LD0113", "taken", &older)?;
    has_file(&finding, "passed", &lt)?;
    case.is_mended_by(&finding)
}

fn newer_cublaslt() -> Outcome {
    let newer = wheels("cublas-11.11").join("nvidia/cublas/lib");
    let case = Case::python(&boxed("torch113"), "import torch").set("LD_LIBRARY_PATH", &newer);
    let report = case.works()?;
    culprit(&report, "LD0103", "taken", &newer.join("libcublasLt.so.11"))?;
    let mixed = finding(&report, "LD0117")?;
    let text = mixed["summary"].as_str().unwrap_or_default();
    ensure(text.contains("11.10.3.66") && text.contains("11.11.3.6"), || text.to_owned())
}

fn older_nvjitlink(environment: &str) -> Outcome {
    let older = wheels("nvjitlink-12.0").join("nvidia/nvjitlink/lib");
    let case = Case::python(&boxed(environment), "import torch").set("LD_LIBRARY_PATH", &older);
    let error = "libcusparse.so.12: undefined symbol: __nvJitLinkAddData_12_1, version libnvJitLink.so.12";
    let report = case.fails_with(error)?;
    let finding = culprit(&report, "LD0113", "taken", &older.join("libnvJitLink.so.12"))?;
    has_file(&finding, "passed", &site(environment).join("nvidia/nvjitlink/lib/libnvJitLink.so.12"))?;
    case.is_mended_by(&finding)
}

fn nvjitlink_immune() -> Outcome {
    let older = wheels("nvjitlink-12.0").join("nvidia/nvjitlink/lib");
    let case = Case::python(&boxed("torch2150-ort131"), "import torch").set("LD_LIBRARY_PATH", older);
    let report = case.works()?;
    ensure(report["verdict"] == "ok", || report["findings"].to_string())
}

fn older_nccl(environment: &str, symbol: &str) -> Outcome {
    let older = wheels("nccl-2.18").join("nvidia/nccl/lib/libnccl.so.2");
    let case = Case::python(&boxed(environment), "import torch").set("LD_PRELOAD", &older);
    let report = case.fails_with(&format!("libtorch_cuda.so: undefined symbol: {symbol}"))?;
    let finding = culprit(&report, "LD0113", "taken", &older)?;
    has_file(&finding, "passed", &site(environment).join("nvidia/nccl/lib/libnccl.so.2"))?;
    case.is_mended_by(&finding)
}

fn nccl_immune() -> Outcome {
    let older = wheels("nccl-2.18").join("nvidia/nccl/lib");
    let report = Case::python(&boxed("torch240-ort120"), "import torch").set("LD_LIBRARY_PATH", older).works()?;
    ensure(report["verdict"] == "ok", || report["findings"].to_string())
}

fn older_libstdcxx() -> Outcome {
    let older = scratch("05").join("libstdc++.so.6");
    let system = Path::new("/usr/lib/x86_64-linux-gnu/libstdc++.so.6");
    let mut bytes = std::fs::read(system)?;
    // As long as the real name, so that only the lookup by name fails.
    let names: Vec<usize> = bytes.find_iter(b"GLIBCXX_3.4.19\0").collect();
    ensure(!names.is_empty(), || "the system's libstdc++ has no such version".into())?;
    for at in names {
        bytes[at..at + 14].copy_from_slice(b"GLIBCXX_3.4.xx");
    }
    std::fs::write(&older, bytes)?;
    let directory = older.parent().expect("directory");
    let case = Case::python(&boxed("torch240-ort120"), "import torch").set("LD_LIBRARY_PATH", directory);
    let report = case.fails_with("libstdc++.so.6: version `GLIBCXX_3.4.19' not found (required by ")?;
    let finding = culprit(&report, "LD0104", "taken", &older)?;
    has_file(&finding, "passed", system)?;
    let because = finding["because"].as_str().unwrap_or_default();
    ensure(because.contains("std::chrono::_V2::steady_clock::now()"), || because.to_owned())?;
    case.is_mended_by(&finding)
}

fn wrong_cudart() -> Outcome {
    let other = overlay("torch201-ort116", "06", &["libcudart.so.11.0"]);
    let wrong = other.join("nvidia/cuda_runtime/lib/libcudart.so.11.0");
    symlink(site("torch240-ort120").join("nvidia/cuda_runtime/lib/libcudart.so.12"), &wrong)?;
    let case = Case::python(&boxed("torch201-ort116"), "import torch").set("PYTHONPATH", other);
    let report = case.fails_with("libcudart.so.11.0: version `libcudart.so.11.0' not found (required by ")?;
    culprit(&report, "LD0104", "taken", &wrong)?;
    Ok(())
}

fn missing_wheel() -> Outcome {
    let other = overlay("torch240-ort120", "07", &["libcusparse.so.12"]);
    let case = Case::python(&boxed("torch240-ort120"), "import torch").set("PYTHONPATH", other);
    let report = case.fails_with("ImportError: libcusparse.so.12: cannot open shared object file")?;
    let there = site("torch240-ort120").join("nvidia/cusparse/lib/libcusparse.so.12");
    let finding = culprit(&report, "LD0101", "present", &there)?;
    case.is_mended_by(&finding)
}

fn missing_wheel_is_found() -> Outcome {
    let other = overlay("torch2150-ort131", "07b", &["libcusparse.so.12"]);
    Case::python(&boxed("torch2150-ort131"), "import torch").set("PYTHONPATH", other).works()?;
    Ok(())
}

/// What torch imports besides its own libraries.
const PURE_PYTHON: &[&str] =
    &["typing_extensions.py", "sympy", "mpmath", "jinja2", "markupsafe", "networkx", "filelock", "fsspec"];

fn no_wheels() -> Outcome {
    let other = overlay("torch240-ort120", "08", &["nvidia"]);
    for name in PURE_PYTHON {
        symlink(site("torch240-ort120").join(name), other.join(name))?;
    }
    // The interpreter behind the environment, which has none of its packages.
    let python = std::fs::canonicalize(boxed("torch240-ort120").join("bin/python"))?;
    let prefix = python.parent().and_then(Path::parent).ok_or("an interpreter without a prefix")?;
    let mut case = Case::python(prefix, "import torch").set("PYTHONPATH", other).set("PYTHONNOUSERSITE", "1");
    case.program = python;
    let report = case.fails_with("ValueError: libcublas.so.*[0-9] not found in the system path")?;
    ensure(report["findings"][0]["rule"] == "LD0101", || report["findings"].to_string())
}

fn provider(environment: &str) -> (PathBuf, PathBuf) {
    let capi = site(environment).join("onnxruntime/capi");
    (capi.join("libonnxruntime_providers_shared.so"), capi.join("libonnxruntime_providers_cuda.so"))
}

/// onnxruntime opens the shared part of its providers and then the provider.
fn provider_after_torch(environment: &str) -> Case {
    let (shared, cuda) = provider(environment);
    let code = format!(
        "import torch, ctypes; ctypes.CDLL({:?}, ctypes.RTLD_GLOBAL); ctypes.CDLL({:?})",
        shared.display().to_string(),
        cuda.display().to_string()
    );
    Case::python(&boxed(environment), &code).ask(&[
        "--dlopen",
        &format!("G:{}", shared.display()),
        "--dlopen",
        &cuda.display().to_string(),
    ])
}

fn cudnn_parts() -> Outcome {
    let case = provider_after_torch("torch240-ort120");
    let report = case.fails_with("libcudnn_adv.so.9: cannot open shared object file: No such file or directory")?;
    let there = site("torch240-ort120").join("nvidia/cudnn/lib/libcudnn_adv.so.9");
    let finding = culprit(&report, "LD0101", "present", &there)?;
    has_file(&finding, "asked by", &provider("torch240-ort120").1)
}

fn curand_then_driver() -> Outcome {
    let case = provider_after_torch("torch2150-ort131");
    let report = case.fails_with("libcurand.so.10: cannot open shared object file")?;
    let finding = culprit(&report, "LD0101", "asked by", &provider("torch2150-ort131").1)?;
    ensure(finding["subject"] == "libcurand.so.10", || finding.to_string())?;
    let case = case.set("LD_LIBRARY_PATH", wheels("curand-13").join("nvidia/cu13/lib"));
    let report = case.fails_with("libcuda.so.1: cannot open shared object file")?;
    ensure(report["findings"][0]["subject"] == "libcuda.so.1", || report["findings"].to_string())
}

fn other_torchaudio() -> Outcome {
    let wheel = wheels("torchaudio-2.4");
    let library = wheel.join("torchaudio/lib/libtorchaudio.so");
    let case = Case::python(&boxed("torch212-ct2"), "import torchaudio").set("PYTHONPATH", &wheel);
    // The same as the import meets it, and by itself.
    let import = case.copy();
    let import =
        Case { asked: ["--python".into(), boxed("torch212-ct2").into(), "torchaudio".into()].into(), ..import };
    built_for_another_torch(&import, &library, "torchaudio 2.4.0")?;
    let case = case.ask(&["--dlopen", &library.to_string_lossy()]);
    built_for_another_torch(&case, &library, "torchaudio 2.4.0")
}

/// torchvision goes on without its library, until it registers something for one of its operators.
fn import_other_torchvision() -> Outcome {
    let wheel = wheels("torchvision-0.19");
    for (environment, error) in [
        ("torch212-ct2", "module 'torch.library' has no attribute 'register_fake'"),
        ("torch2150-ort131", "RuntimeError: operator torchvision::nms does not exist"),
    ] {
        let case = Case::python(&boxed(environment), "import torchvision").set("PYTHONPATH", &wheel);
        let asked = ["--python".into(), boxed(environment).into(), "torchvision".into()].into();
        let case = Case { asked, ..case };
        let report = case.fails_with(error)?;
        finding(&report, if environment == "torch212-ct2" { "LD0114" } else { "LD0101" })?;
    }
    Ok(())
}

/// Modules of other projects that work: no error and no warning.
fn sound_imports() -> Outcome {
    let wheel = wheels("torchaudio-2.4");
    let asked = ["--python".into(), boxed("torch240-ort120").into(), "torchaudio".into()].into();
    let case = Case::python(&boxed("torch240-ort120"), "import torchaudio").set("PYTHONPATH", &wheel);
    let report = Case { asked, ..case }.works()?;
    ensure(report["verdict"] == "ok", || report["findings"].to_string())?;
    let asked = ["--python".into(), boxed("torch2150-ort131").into(), "torchvision".into()].into();
    let report = Case { asked, ..Case::python(&boxed("torch2150-ort131"), "import torchvision") }.works()?;
    ensure(report["verdict"] == "ok", || report["findings"].to_string())
}

/// `--why SYMBOL` tells what the import stops with, who lacks the symbol and who has it.
fn why_of_a_symbol() -> Outcome {
    let older = wheels("nvjitlink-12.0").join("nvidia/nvjitlink/lib");
    let case = Case::python(&boxed("torch240-ort120"), "import torch").set("LD_LIBRARY_PATH", &older);
    let real = case.really()?.ok_or("the real program works")?;
    let case = case.ask(&["--why", "__nvJitLinkAddData_12_1"]);
    let text = case.asked("text")?.stdout.to_str_lossy().into_owned();
    ensure(text.starts_with("UNDEFINED"), || text.clone())?;
    ensure(text.contains(real.trim_start_matches("ImportError: ")), || format!("real: {real}\n{text}"))?;
    let row = |word: &str| text.lines().find(|l| l.trim_start().starts_with(word)).unwrap_or_default().to_owned();
    ensure(row("lacks it").contains("nvidia/nvjitlink/lib/libnvJitLink.so.12"), || text.clone())?;
    ensure(row("has it").contains("site-packages/nvidia/nvjitlink/lib/libnvJitLink.so.12"), || text.clone())
}

fn other_torchvision() -> Outcome {
    let library = wheels("torchvision-0.19").join("torchvision/_C.so");
    let code = format!("import torch; torch.ops.load_library({:?})", library.display().to_string());
    let case = Case::python(&boxed("torch212-ct2"), &code).ask(&["--dlopen", &library.to_string_lossy()]);
    built_for_another_torch(&case, &library, "torchvision 0.19.0")
}

fn built_for_another_torch(case: &Case, library: &Path, what: &str) -> Outcome {
    let report = case.fails_with("undefined symbol: _ZNK3c105Error4whatEv")?;
    let finding = culprit(&report, "LD0114", "asked by", library)?;
    let summary = finding["summary"].as_str().unwrap_or_default();
    let expected = format!("{what} was built for another torch than 2.1.2+cu121");
    ensure(summary.starts_with(&expected) && summary.contains("c10::Error::what() const"), || summary.to_owned())?;
    let because = finding["because"].as_str().unwrap_or_default();
    ensure(because.contains("built for a newer torch"), || because.to_owned())?;
    ensure(because.contains(&format!("{what} requires torch")), || because.to_owned())
}

fn other_cuda() -> Outcome {
    let library = wheels("torchvision-0.15").join("torchvision/_C.so");
    let code = format!("import torch; torch.ops.load_library({:?})", library.display().to_string());
    let case = Case::python(&boxed("torch212-ct2"), &code).ask(&["--dlopen", &library.to_string_lossy()]);
    let report = case.fails_with("libcudart.so.11.0: cannot open shared object file: No such file or directory")?;
    culprit(&report, "LD0101", "asked by", &library)?;
    Ok(())
}

// ---------------------------------------------------------------------------------- opens that a library makes by itself

/// The simulated `import torch` with more opens after it: each by the named image (`None`: ctypes' own). Returns what each
/// came to: the path, or the error.
fn opens(case: &Case, steps: &[(Option<&str>, &str)]) -> Result<Vec<Result<String, String>>, Failed> {
    let mut words: Vec<OsString> = vec!["ldaudit".into()];
    // cargo sets it for the tests.
    if !case.env.contains_key("LD_LIBRARY_PATH") {
        words.extend(["--unset".into(), "LD_LIBRARY_PATH".into()]);
    }
    for (name, value) in &case.env {
        words.extend(["--env".into(), OsString::from_vec([name.as_bytes(), b"=", value.as_bytes()].concat())]);
    }
    words.extend(case.asked.iter().cloned());
    let args = Args::parse_from(words);
    let system = audit::system(&args)?;
    let loaders = Loaders::new(&args, &system);
    let plans = audit::named_plans(&loaders, &mut None)?.all()?;
    let plan = plans.first().ok_or("no plan")?;
    let mut process = plan.simulate(&Arc::new((*plan.host).clone())).process;
    let named = |process: &Process, name: &str| {
        (0..process.images.len() as u32)
            .map(ImageId)
            .find(|id| process.is_loaded(*id) && ldaudit::system::file_name(process.image(*id).name.as_bstr()) == name)
    };
    let mut out = Vec::new();
    for (caller, name) in steps {
        let caller = caller.and_then(|c| named(&process, c)).or_else(|| {
            let ctypes = |id: &ImageId| process.image(*id).name.contains_str("/_ctypes.");
            (0..process.images.len() as u32).map(ImageId).find(ctypes)
        });
        let step = process.dlopen(&OpenRequest { caller, ..OpenRequest::new(*name) });
        let step = &process.steps[step.index()];
        out.push(match (&step.error, step.image) {
            (None, Some(image)) => Ok(process.image(image).name.to_string()),
            (error, _) => Err(error.clone().unwrap_or_default().to_string()),
        });
    }
    Ok(out)
}

/// What the loader opened and what the program printed while it ran some code.
fn traced(case: &Case) -> Result<String, Failed> {
    let output = case.command(&case.program).args(&case.arguments).env("LD_DEBUG", "libs").output()?;
    Ok([output.stdout, output.stderr].concat().to_str_lossy().into_owned())
}

/// Calls a function of cuDNN that makes it load a part of itself.
fn cudnn_call(library: &Path, function: &str) -> String {
    format!(
        "import torch, ctypes; l = ctypes.CDLL({:?}); h = ctypes.c_void_p(); print(l.{function}(ctypes.byref(h)))",
        library.display().to_string()
    )
}

fn false_dlerror() -> Outcome {
    let cudnn = site("torch113").join("nvidia/cudnn/lib/libcudnn.so.8");
    let code = cudnn_call(&cudnn, "cudnnCreateConvolutionDescriptor");
    let case = Case::python(&boxed("torch113"), &code);
    let output = case.command(&case.program).args(&case.arguments).output()?;
    let real = [output.stdout, output.stderr].concat().to_str_lossy().into_owned();
    let cudnn = cudnn.to_string_lossy().into_owned();
    // The part itself loads; what fails is what its constructor opens, under a name that drivers do not have.
    let steps = [
        (None, cudnn.as_str()),
        (Some("libcudnn.so.8"), "libcudnn_cnn_infer.so.8"),
        (Some("libcudnn_cnn_infer.so.8"), "libcuda.so"),
    ];
    let answers = opens(&case, &steps)?;
    let part = answers[1].as_ref().map_err(|e| format!("the part does not load: {e}"))?;
    ensure(part.ends_with("nvidia/cudnn/lib/libcudnn_cnn_infer.so.8"), || part.clone())?;
    let error = answers[2].as_ref().err().ok_or("libcuda.so is found")?;
    let message = format!("Could not load library libcudnn_cnn_infer.so.8. Error: {error}");
    ensure(real.contains(&message), || format!("predicted: {message}\nreal: {real}"))
}

fn relative_rpath() -> Outcome {
    let directory = site("torch212-ct2").join("ctranslate2.libs");
    let cudnn = std::fs::read_dir(&directory)?.flatten().map(|e| e.path());
    let is_cudnn = |p: &PathBuf| p.file_name().is_some_and(|n| n.as_bytes().starts_with(b"libcudnn-"));
    let cudnn = cudnn.into_iter().find(is_cudnn).ok_or("ctranslate2 bundles no cuDNN")?;
    let case = Case::python(&boxed("torch212-ct2"), &cudnn_call(&cudnn, "cudnnCreate"));
    let output = case.command(&case.program).args(&case.arguments).output()?;
    let real = [output.stdout, output.stderr].concat().to_str_lossy().into_owned();
    let name = cudnn.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let path = cudnn.to_string_lossy().into_owned();
    let answers = opens(&case, &[(None, path.as_str()), (Some(&name), "libcudnn_ops_infer.so.8")])?;
    let error = answers[1].as_ref().err().ok_or("the part is found")?;
    let message = format!("Could not load library libcudnn_ops_infer.so.8. Error: {error}");
    ensure(real.contains(&message), || format!("predicted: {message}\nreal: {real}"))
}

/// The file that the loader initialised for a name.
fn initialised<'t>(trace: &'t str, name: &str) -> Option<&'t str> {
    let lines = trace.lines().filter_map(|l| l.split_once("calling init: ").map(|(_, path)| path.trim()));
    lines.into_iter().find(|path| path.rsplit('/').next().is_some_and(|n| n == name))
}

fn mixed_cudnn_8() -> Outcome {
    let cudnn = site("torch212-ct2").join("nvidia/cudnn/lib/libcudnn.so.8");
    let other = site("torch113").join("nvidia/cudnn/lib");
    let code = cudnn_call(&cudnn, "cudnnCreateTensorDescriptor");
    let case = Case::python(&boxed("torch212-ct2"), &code).set("LD_LIBRARY_PATH", &other);
    let trace = traced(&case)?;
    let part = "libcudnn_ops_infer.so.8";
    let real = initialised(&trace, part).ok_or("the real process loads no such part")?;
    let path = cudnn.to_string_lossy().into_owned();
    let answers = opens(&case, &[(None, path.as_str()), (Some("libcudnn.so.8"), part)])?;
    ensure(answers[1].as_deref() == Ok(real), || format!("predicted {:?}, real {real}", answers[1]))?;
    ensure(Path::new(real).starts_with(&other), || format!("the part is the wheel's own: {real}"))
}

fn mixed_cudnn_9() -> Outcome {
    let cudnn = site("torch240-ort120").join("nvidia/cudnn/lib/libcudnn.so.9");
    let other = site("torch2150-ort131").join("nvidia/cudnn/lib");
    let code = format!(
        "import torch, ctypes; print('reported', ctypes.CDLL({:?}).cudnnGetVersion())",
        cudnn.display().to_string()
    );
    let case = Case::python(&boxed("torch240-ort120"), &code).set("LD_LIBRARY_PATH", &other);
    let trace = traced(&case)?;
    ensure(trace.contains("reported 92600"), || "the real process reports another version".into())?;
    let real = initialised(&trace, "libcudnn_graph.so.9").ok_or("the real process loads no such part")?;
    let path = cudnn.to_string_lossy().into_owned();
    let caller = Some("libcudnn.so.9");
    let names = ["libcudnn_graph.so.9.1.0", "libcudnn_graph.so.9.1", "libcudnn_graph.so.9"];
    let answers = opens(&case, &[(None, path.as_str()), (caller, names[0]), (caller, names[1]), (caller, names[2])])?;
    ensure(answers[1].is_err() && answers[2].is_err(), || format!("{answers:?}"))?;
    ensure(answers[3].as_deref() == Ok(real), || format!("predicted {:?}, real {real}", answers[3]))?;
    ensure(Path::new(real).starts_with(&other), || format!("the part is the wheel's own: {real}"))
}

// ----------------------------------------------------------------------------------------------- programs without Python

fn bare(program: &Path, cwd: &Path, asked: &[&str]) -> Case {
    Case {
        program: program.into(),
        arguments: Vec::new(),
        env: BTreeMap::new(),
        cwd: cwd.into(),
        asked: [program.to_string_lossy().as_ref()].iter().chain(asked).map(OsString::from).collect(),
    }
}

fn empty_element() -> Outcome {
    let directory = scratch("18");
    std::fs::write(directory.join("a.c"), "int f(void) { return 7; }\n")?;
    std::fs::write(directory.join("m.c"), "int f(void);\nint main(void) { return f() != 7; }\n")?;
    compile(&directory, &["-shared", "-fPIC", "-o", "libcwdx.so", "a.c"]);
    compile(&directory, &["m.c", "-o", "m", "-L.", "-lcwdx", "-Wl,--enable-new-dtags,-rpath,/nonexistent/lib:"]);
    let program = directory.join("m");
    let report = bare(&program, &directory, &[]).works()?;
    finding(&report, "LD0201")?;
    let report = bare(&program, Path::new("/"), &[]).fails_with("libcwdx.so: cannot open shared object file")?;
    culprit(&report, "LD0101", "asked by", &program)?;
    finding(&report, "LD0201")?;
    Ok(())
}

fn rpath_of_the_program() -> Outcome {
    let directory = scratch("19");
    for d in ["bin", "lib", "alt"] {
        std::fs::create_dir(directory.join(d))?;
    }
    std::fs::write(directory.join("p.c"), "int probe(void) { return 1; }\n")?;
    // The library whose code calls dlopen has no path of its own, as _ctypes of a distribution's Python.
    std::fs::write(
        directory.join("call.c"),
        "#include <dlfcn.h>\n#include <stdio.h>\nint call(void) {\n\
         if (dlopen(\"libprobe.so.1\", RTLD_NOW)) return 0;\n fprintf(stderr, \"%s\\n\", dlerror()); return 1; }\n",
    )?;
    std::fs::write(directory.join("m.c"), "int call(void);\nint main(void) { return call(); }\n")?;
    compile(&directory, &["-shared", "-fPIC", "-Wl,-soname,libprobe.so.1", "-o", "lib/libprobe.so.1", "p.c"]);
    std::fs::copy(directory.join("lib/libprobe.so.1"), directory.join("alt/libprobe.so.1"))?;
    compile(&directory, &["-shared", "-fPIC", "-Wl,-soname,libcall.so", "-o", "lib/libcall.so", "call.c", "-ldl"]);
    for (name, tags) in [("rpath", "--disable-new-dtags"), ("runpath", "--enable-new-dtags")] {
        let path = format!("-Wl,{tags},-rpath,$ORIGIN/../lib");
        compile(&directory, &["m.c", "-o", &format!("bin/{name}"), "-Llib", "-lcall", &path]);
    }
    for (name, with_alt, expected) in [
        ("rpath", true, Some("lib")),
        ("runpath", true, Some("alt")),
        ("rpath", false, Some("lib")),
        ("runpath", false, None),
    ] {
        let mut case = bare(&directory.join("bin").join(name), Path::new("/"), &[]);
        if with_alt {
            case = case.set("LD_LIBRARY_PATH", directory.join("alt"));
        }
        let trace = traced(&case)?;
        let real = initialised(&trace, "libprobe.so.1");
        let directory_of =
            |path: &str| Path::new(path).parent().and_then(Path::file_name).map(|n| n.to_string_lossy().into_owned());
        ensure(real.and_then(directory_of).as_deref() == expected, || {
            format!("{name}: the real loader takes {real:?}")
        })?;
        let predicted = opens(&case, &[(Some("libcall.so"), "libprobe.so.1")])?.remove(0);
        match real {
            Some(real) => {
                let same = |a: &str, b: &str| std::fs::canonicalize(a).ok() == std::fs::canonicalize(b).ok();
                ensure(predicted.as_deref().is_ok_and(|p| same(p, real)), || {
                    format!("{name}: {predicted:?}, real {real}")
                })?;
            }
            None => {
                let error = predicted.err().ok_or("ldaudit finds it")?;
                ensure(trace.contains(&error), || format!("{name}: predicted {error}, real {trace}"))?;
            }
        }
    }
    Ok(())
}
