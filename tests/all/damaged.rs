//! Files that are damaged, that may not be run, or that are none: what this machine's kernel and loader do with them, down
//! to the signal, is what ldaudit says. Fields that are wrong are in `fixtures/damage`.
//!
//! Without a C compiler this is skipped in plain sight; `LDAUDIT_REQUIRE=cc` makes that a failure.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::compiled::has_compiler;
use crate::support::fresh;

/// A directory of compiled files that goes when the test ends.
struct Box(PathBuf);

impl Box {
    fn new(name: &str) -> Box {
        let directory = std::env::temp_dir().join(format!("ldaudit-{name}-{}", std::process::id()));
        fs::create_dir_all(&directory).expect("a directory");
        Box(directory)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn compile(&self, out: &str, source: &str, flags: &[&str]) -> PathBuf {
        let file = self.path(&format!("{out}.c"));
        fs::write(&file, source).expect("a source");
        let built = Command::new("cc").current_dir(&self.0).arg(&file).args(["-o", out]).args(flags).output();
        let built = built.expect("cc");
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        self.path(out)
    }

    /// Puts a file at a path that nobody has open for running.
    fn write(&self, name: &str, bytes: &[u8], mode: u32) -> PathBuf {
        let path = self.path(name);
        let _ = fs::remove_file(&path);
        fs::write(&path, bytes).expect("a file");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("a mode");
        path
    }
}

impl Drop for Box {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn ldaudit<S: AsRef<OsStr>>(arguments: &[S]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ldaudit")).args(arguments).stdin(Stdio::null()).output().expect("ldaudit")
}

/// How a start ended: `ok`, the signal, or the text of the error of `execve`.
fn real(program: &Path) -> String {
    let mut command = Command::new(program);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    match fresh::start(|| command.status()) {
        Ok(status) => match status.signal() {
            Some(libc::SIGSEGV) => "killed by SIGSEGV".into(),
            Some(libc::SIGBUS) => "killed by SIGBUS".into(),
            Some(other) => format!("killed by {other}"),
            None if status.success() => "ok".into(),
            None => format!("{status}"),
        },
        Err(e) => ldaudit::system::Errno(e.raw_os_error().unwrap_or(0)).text(),
    }
}

/// Holds ldaudit's report of a program to what the program does.
fn compare(program: &Path, context: &str) -> String {
    let real = real(program);
    let ours = ldaudit(&[program]);
    let text = String::from_utf8_lossy(&ours.stdout).into_owned();
    let is_same = match real.as_str() {
        "ok" => ours.status.code() == Some(0),
        why => ours.status.code() == Some(1) && text.contains(why),
    };
    assert!(is_same, "{context}: really {real}\n{text}{}", String::from_utf8_lossy(&ours.stderr));
    real
}

/// Data of several pages, so that tables and uninitialised data lie apart in the file.
const LIBRARY: &str = "int much[4096] = {1}; int few[8]; int f(void) { return much[0] + few[0]; }";
const PROGRAM: &str = "int much[4096] = {1}; int few[8]; int main(void) { return much[0] + few[0] - 1; }";

/// The page in which uninitialised data begins is filled with zeros by the loader: a file that ends before that page kills
/// the process, one that ends inside of it does not.
#[test]
fn a_library_may_end_where_its_uninitialised_data_begins_and_not_before() {
    if !has_compiler() {
        return;
    }
    let room = Box::new("cut-library");
    let library =
        room.compile("libcut.so", LIBRARY, &["-shared", "-fPIC", "-s", "-Wl,-soname,libcut.so", "-Wl,-z,now"]);
    let source = "int f(void); int main(void) { return f() - 1; }";
    let program = room.compile("run", source, &["-L.", "-lcut", "-Wl,-rpath,$ORIGIN"]);
    let whole = fs::read(&library).expect("the library");
    let mut seen = Vec::new();
    // Below the size of a header there is an error text, for which other tests are.
    for end in (1024..=whole.len()).step_by(1024).chain([whole.len()]) {
        room.write("libcut.so", &whole[..end], 0o755);
        seen.push(compare(&program, &format!("{end} of {} bytes of the library", whole.len())));
    }
    assert!(["ok", "killed by SIGBUS"].iter().all(|end| seen.iter().any(|s| s == end)), "{seen:?}");
}

/// The kernel fills that page of a program; whatever fails after it has begun to map ends the process by SIGSEGV.
#[test]
fn a_program_may_end_where_its_uninitialised_data_begins_and_not_before() {
    if !has_compiler() {
        return;
    }
    let kinds: [&[&str]; 4] = [
        &["-pie", "-fPIE", "-s", "-Wl,-z,now"],
        &["-pie", "-fPIE", "-s", "-Wl,-z,lazy"],
        &["-no-pie", "-fno-pic", "-s", "-Wl,-z,now"],
        // Nothing is linked and nothing is uninitialised: the entry point is the first thing that is missing.
        &["-static", "-nostdlib", "-nostartfiles", "-s", "-DBARE"],
    ];
    for (n, flags) in kinds.into_iter().enumerate() {
        let room = Box::new(&format!("cut-program-{n}"));
        let bare = "\n#ifdef BARE\nvoid _start(void) { __asm__ volatile(\"mov $60, %eax\\nxor %edi, %edi\\nsyscall\"); }\n#endif\n";
        let program = room.compile("run", &format!("{PROGRAM}{bare}"), flags);
        let whole = fs::read(&program).expect("the program");
        let mut seen = Vec::new();
        for end in (0..=whole.len()).step_by(1024).chain([100, whole.len()]) {
            if end == 0 {
                continue;
            }
            let program = room.write("run", &whole[..end], 0o755);
            seen.push(compare(&program, &format!("{end} of {} bytes, {flags:?}", whole.len())));
        }
        let signal = if flags.contains(&"-DBARE") { "killed by SIGBUS" } else { "killed by SIGSEGV" };
        assert!(["ok", signal].iter().all(|end| seen.iter().any(|s| s == end)), "{seen:?}");
    }
}

/// The kernel asks for the permission to run a program and its loader, and whether the latter is one.
#[test]
fn what_may_not_be_run_is_not_started() {
    if !has_compiler() {
        return;
    }
    let room = Box::new("modes");
    let loader = room.path("loader");
    let source = "int main(void) { return 0; }";
    let program = room.compile("run", source, &[&format!("-Wl,-dynamic-linker,{}", loader.display())]);
    let whole = fs::read(&program).expect("the program");
    let own = fs::read("/lib64/ld-linux-x86-64.so.2").expect("this machine's loader");
    let mut other_machine = own.clone();
    other_machine[18] = 183;
    let mut without_headers = own.clone();
    without_headers[56..58].fill(0);
    for (mode, loader, loader_mode, wanted) in [
        (0o755, own.as_slice(), 0o755, "ok"),
        (0o700, &own, 0o700, "ok"),
        (0o644, &own, 0o755, "Permission denied"),
        (0o755, &own, 0o644, "Permission denied"),
        (0o755, b"#!/bin/sh\n", 0o755, "Input/output error"),
        (0o755, &[b'x'; 100], 0o755, "Accessing a corrupted shared library"),
        (0o755, &other_machine, 0o755, "Accessing a corrupted shared library"),
        (0o755, &without_headers, 0o755, "Accessing a corrupted shared library"),
    ] {
        room.write("loader", loader, loader_mode);
        let program = room.write("run", &whole, mode);
        let context = format!("program {mode:o}, loader {loader_mode:o} of {} bytes", loader.len());
        assert_eq!(compare(&program, &context), wanted, "{context}");
    }
    fs::remove_file(&loader).expect("the loader");
    fs::create_dir(&loader).expect("a directory in its place");
    assert_eq!(compare(&program, "a directory as the loader"), "Permission denied");
}

/// Devices give the loader bytes or errors; a FIFO would let it wait, and ldaudit does not.
#[test]
fn devices_directories_and_fifos_are_told_as_the_loader_tells_them() {
    if !has_compiler() {
        return;
    }
    let room = Box::new("devices");
    let source = "#include <dlfcn.h>\n#include <stdio.h>\nint main(int count, char **words) {
        if (count < 2 || dlopen(words[1], RTLD_NOW)) return 0; puts(dlerror()); return 1; }";
    let program = room.compile("run", source, &["-ldl"]);
    let program = program.to_str().expect("a path");
    for name in ["/dev/zero", "/dev/null", "/dev/full", "/dev/random", "/dev/urandom", "/dev", "/dev/null/none"] {
        let real = fresh::start(|| Command::new(program).arg(name).output()).expect("the program");
        let real = String::from_utf8(real.stdout).expect("a message");
        let ours = ldaudit(&[program, "--dlopen", name]);
        let text = String::from_utf8_lossy(&ours.stdout);
        assert!(!real.is_empty() && text.contains(real.trim()), "really {real}{text}");
        assert_eq!(ours.status.code(), Some(1), "{text}");
    }
    let fifo = room.path("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().is_ok_and(|s| s.success()), "mkfifo");
    let ours = ldaudit(&[program, "--dlopen", fifo.to_str().expect("a path")]);
    let text = String::from_utf8_lossy(&ours.stdout);
    assert!(ours.status.code() == Some(1) && text.contains("waits until somebody writes into this FIFO"), "{text}");
    assert!(text.starts_with(&format!("FAILS  {program} hangs:\n")), "{text}");
    // As a preload it stops the process too: the loader says nothing. So does a file that is cut short under its map.
    let waits = |path: &Path| {
        let mut child = fresh::start(|| Command::new(program).env("LD_PRELOAD", path).stderr(Stdio::piped()).spawn())
            .expect("the program");
        std::thread::sleep(std::time::Duration::from_millis(300));
        let ended = child.try_wait().expect("a status");
        let _ = child.kill();
        let said = child.wait_with_output().expect("an end").stderr;
        assert!(said.is_empty(), "{}", String::from_utf8_lossy(&said));
        ended
    };
    assert_eq!(waits(&fifo), None, "it waits");
    let ours = ldaudit(&[program, "--env", &format!("LD_PRELOAD={}", fifo.display())]);
    let text = String::from_utf8_lossy(&ours.stdout);
    assert!(text.starts_with(&format!("FAILS  {program} hangs:\n")) && !text.contains("ignored"), "{text}");
    let cut = room.path("libcut.so");
    let libc = fs::read("/lib/x86_64-linux-gnu/libc.so.6").expect("a library");
    fs::write(&cut, &libc[..8192]).expect("a file");
    let ended = waits(&cut).expect("it ends");
    assert_eq!(ended.signal(), Some(libc::SIGBUS));
    let ours = ldaudit(&[program, "--env", &format!("LD_PRELOAD={}", cut.display())]);
    let text = String::from_utf8_lossy(&ours.stdout);
    assert!(text.contains("killed by SIGBUS") && !text.contains("ignored"), "{text}");
}
