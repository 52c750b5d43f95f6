//! What is done with a damaged text or table, whatever it holds: read as each kind of file that ldaudit reads. Shared by
//! the seeded test and the fuzz targets.

#![allow(dead_code)]

use std::sync::Arc;

use bstr::{BStr, BString, ByteSlice};
use ldaudit::discover::python::{DEFAULT_LIMIT, Request, discover};
use ldaudit::fixture::{self, Fixture, Loader};
use ldaudit::ld::cache::{self, Cache, Flags, Want};
use ldaudit::ld::config::{Configuration, Rules, musl_path, preload_names};
use ldaudit::ld::{Family, List};
use ldaudit::system::{Host, System, Tree};

/// `/etc/ld.so.cache`.
pub fn cache(data: &[u8]) {
    let active: Vec<BString> = ["x86-64-v3", "x86-64-v2"].map(BString::from).to_vec();
    for minor in [31, 36, 41] {
        let Ok(cache) = Cache::parse(data.into(), cache::Reader::glibc(minor, 62, false)) else { continue };
        let abi = cache::Abi { machine: 62, class64: true, e_flags: 0 };
        let want = Want { flags: Flags::of_loader(abi), active: &active, isa: Some(7), legacy: None };
        let some: Vec<BString> = cache.entries().take(3).map(|e| e.key.to_owned()).collect();
        for name in some.iter().map(|n| n.as_bstr()).chain([b"libc.so.6".as_bstr(), b"".as_bstr(), b"\xff".as_bstr()]) {
            let _ = cache.lookup(name, &want);
            let _ = cache.explain(name, &want);
        }
        for entry in cache.entries().take(2000) {
            let _ = entry.to_string();
        }
        let _ = (cache.generator(), cache.format(), cache.len());
    }
}

/// `/etc/ld.so.conf`, `/etc/ld.so.preload` and musl's path file.
pub fn configuration(data: &[u8]) {
    let mut tree = Tree::new();
    for path in ["/etc/ld.so.conf", "/etc/ld.so.conf.d/a.conf", "/etc/ld.so.preload", "/etc/ld-musl-x86_64.path"] {
        tree.add_file(path, data).expect("add");
    }
    tree.add_directory("/usr/lib").expect("add");
    let system = System::new(Host::bare(), Arc::new(tree));
    for minor in [31, 41] {
        let _ = Configuration::read(&system, &Rules::glibc(minor, 62), &["/usr/lib".into()]);
    }
    let _ = preload_names(data);
    let _ = musl_path(&system, b"/lib/ld-musl-x86_64.so.1".as_bstr(), Some(b"x86_64".as_bstr()));
    for list in [List::LibraryPath, List::RunPath, List::Preload] {
        for family in [Family::Glibc, Family::Musl] {
            let _ = list.without(family, data.as_bstr(), &[0]);
        }
    }
}

/// Files of a Python environment: which one is `kind`.
pub fn python(kind: u8, data: &[u8]) {
    const VENV: &str = "/venv/lib/python3.11/site-packages";
    let mut tree = Tree::new();
    let mut file = |path: &str, bytes: &[u8]| tree.add_file(path, bytes).expect("add");
    let dist = |name: &str| format!("{VENV}/torch-2.4.0.dist-info/{name}");
    for (path, bytes) in [
        ("/usr/bin/python3.11", &b"\x7fELF"[..]),
        ("/usr/lib/python3.11/os.py", b""),
        ("/usr/lib/python3.11/lib-dynload/_ctypes.cpython-311-x86_64-linux-gnu.so", b""),
        ("/venv/pyvenv.cfg", b"home = /usr/bin\nversion = 3.11.2\n"),
        ("/venv/lib/python3.11/site-packages/torch/__init__.py", b""),
        ("/venv/lib/python3.11/site-packages/a.pth", b"/elsewhere\nimport x\n"),
        (&dist("METADATA"), b"Name: torch\nVersion: 2.4.0\n"),
        (&dist("RECORD"), b"torch/__init__.py,sha256=x,0\n"),
    ] {
        file(path, bytes);
    }
    let path = match kind % 8 {
        0 => format!("{VENV}/a.pth"),
        1 => dist("RECORD"),
        2 => dist("METADATA"),
        3 => "/venv/pyvenv.cfg".into(),
        4 => format!("{VENV}/torch/version.py"),
        5 => "/venv/conda-meta/x.json".into(),
        6 => dist("direct_url.json"),
        _ => "/usr/bin/python3.11".into(),
    };
    file(&path, data);
    tree.add_link("/venv/bin/python", "/usr/bin/python3.11").expect("add");
    tree.set_mode("/usr/bin/python3.11", 0o755).expect("mode");
    let mut host = Host::bare();
    host.env.set("VIRTUAL_ENV", "/venv");
    let system = System::new(host, Arc::new(tree));
    match discover(&system, &Request { named: None, ask: None, limit: DEFAULT_LIMIT }) {
        Ok(python) => {
            let _ = (python.path(), python.environment(), python.distributions(), python.notes(), python.torch());
            for module in ["torch", "torch._C", "", "..", "x"] {
                let _ = python.find_module(module);
            }
            let inside = format!("{VENV}/torch/__init__.py");
            if let Some(owner) = python.owner_of(BStr::new(&inside)) {
                let _ = (owner.name().to_string(), owner.version().to_string());
            }
            let _ = python.glob(b"/venv/lib/*/site-packages/torch/*".as_bstr());
        }
        Err(error) => {
            let _ = (error.to_string(), error.hint());
        }
    }
}

/// A fixture: parsed, printed, parsed again, simulated.
pub fn fixture(data: &[u8]) {
    let Ok(parsed) = Fixture::parse(data) else { return };
    let printed = parsed.print();
    let again = Fixture::parse(printed.as_bytes()).expect("what is printed can be parsed");
    assert_eq!(again.print(), printed);
    for loader in [Loader::glibc(2, 36), Loader::musl(1, 2, 3)] {
        for run in parsed.runs(loader).iter().take(4) {
            let _ = fixture::simulate::observe(&parsed, loader, run);
        }
    }
}
