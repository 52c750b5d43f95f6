//! What is done with a damaged text or table, whatever it holds: read as each kind of file that ldaudit reads, and held
//! to what must be true of any answer. Shared by the seeded tests and the fuzz targets.

#![allow(dead_code)]

use std::collections::HashSet;
use std::sync::Arc;

use bstr::{BStr, BString, ByteSlice};
use ldaudit::discover::python::ask::{Answer, Command, Exit, Failure};
use ldaudit::discover::python::{Ask, DEFAULT_LIMIT, EntryKind, KnownBy, Python, Request, discover};
use ldaudit::fixture::{self, Fixture, Loader};
use ldaudit::ld::cache::{self, Cache, Fate, Flags, Format, Legacy, Reader, Record, Want};
use ldaudit::ld::config::{Configuration, LibraryId, Rules, Status, View, musl_path, preload_names, rebuild};
use ldaudit::ld::{Family, List};
use ldaudit::system::{Errno, Host, System, Tree};

/// Entries of a small cache, in which damage hits the headers more often.
pub fn cache_records() -> Vec<Record> {
    (0..6)
        .map(|i| Record {
            hwcaps: (i % 3 == 0).then(|| "x86-64-v3".into()),
            ..Record::new(format!("libx.so.{i}"), format!("/lib/libx.so.{i}"), 0x303)
        })
        .collect()
}

/// `/etc/ld.so.cache`, as loaders of three releases and four machines read it.
///
/// Whatever a lookup gives is an entry of that name whose path stands in the file; telling the story of a lookup gives
/// the same answer; and what is read out of the file can be written and read again.
pub fn cache(data: &[u8]) {
    let active: Vec<BString> = ["x86-64-v3", "x86-64-v2"].map(BString::from).to_vec();
    let bytes: Arc<[u8]> = data.into();
    let readers = [(36, 62, false), (41, 62, false), (31, 62, false), (36, 3, false), (41, 183, false), (41, 22, true)];
    // What differs between the others can be seen in small files.
    let some = if data.len() > 16 << 10 { 2 } else { readers.len() };
    for (minor, machine, big_endian) in readers.into_iter().take(some) {
        let reader = Reader::glibc(minor, machine, big_endian);
        let parsed = Cache::parse(bytes.clone(), reader);
        assert_eq!(parsed.as_ref().err(), Cache::parse(bytes.clone(), reader).as_ref().err());
        let cache = match parsed {
            Ok(cache) => cache,
            Err(why) => {
                assert!(!why.to_string().is_empty());
                continue;
            }
        };
        let abi = cache::Abi { machine, class64: machine != 3, e_flags: 0 };
        let legacy = (machine == 62 && minor <= 36).then(|| Legacy::x86_64(false, None, 6, Some(0x06_0100)));
        let want = Want { flags: Flags::of_loader(abi), active: &active, isa: (machine == 62).then_some(7), legacy };
        let step = (cache.len() / 4).max(1);
        let mut names: Vec<BString> = cache.entries().take(2).map(|e| e.key.to_owned()).collect();
        let spread = (0..4u32).filter_map(|i| cache.entry(i.saturating_mul(u32::try_from(step).unwrap_or(u32::MAX))));
        names.extend(spread.map(|e| e.key.to_owned()));
        names.extend([&b"libc.so.6"[..], b"", b"\xff", b"libx.so.0000000001", b"a\0b"].map(BString::from));
        for name in &names {
            look_up(&cache, name.as_bstr(), &want, data);
        }
        for entry in cache.entries().take(50) {
            assert!(entry.to_string().contains(" => "));
        }
        // Zeros are read up to the end of the last page, and no further.
        let room = u32::try_from((data.len() + reader.page_size) / 12 + 1).expect("a small file");
        assert_eq!(cache.entry(room), None);
        assert!(cache.generator().is_none_or(|text| data.find(text).is_some()));
        write_again(&cache, reader);
    }
}

fn look_up(cache: &Cache, name: &BStr, want: &Want<'_>, data: &[u8]) {
    let found = cache.lookup(name, want);
    let told = cache.explain(name, want);
    assert_eq!(told.found, found, "{name}");
    let Ok(found) = found else { return };
    assert_eq!(told.entries.iter().any(|(_, fate)| *fate == Fate::Taken), found.is_some(), "{name}");
    let Some(hit) = found else { return };
    let entry = cache.entry(hit.entry).expect("the entry that was found");
    assert!(want.flags.taken.contains(&entry.flags), "{entry}");
    assert_eq!(entry.path, hit.path);
    assert_eq!(entry.hwcaps, hit.hwcaps.as_ref().map(|h| h.as_bstr()));
    assert!(told.entries.iter().any(|(e, fate)| e.index == hit.entry && *fate == Fate::Taken));
    let name = name.split(|b| *b == 0).next().unwrap_or_default();
    // Longer keys are shown cut.
    assert!(entry.key.len() >= 64 << 10 || cache::same_name(name.as_bstr(), entry.key), "{name:?} {entry}");
    assert!(data.find(hit.path.as_slice()).is_some(), "a path that is not in the file: {}", hit.path);
}

/// The first entries, sorted and written as ldconfig does: all of them come back, and the loader finds each plain one.
fn write_again(cache: &Cache, reader: Reader) {
    let mut records: Vec<Record> = cache
        .entries()
        .take(20)
        .map(|e| Record {
            os_version: e.os_version,
            hwcap: if e.is_named() { 0 } else { e.hwcap },
            hwcaps: e.hwcaps.map(BStr::to_owned),
            isa_level: e.isa_level(),
            ..Record::new(e.key, e.path, e.flags)
        })
        .collect();
    cache::sort(&mut records, reader.signed_char, |r| r);
    // An empty file is too short for a loader.
    if records.is_empty() {
        return;
    }
    for format in [Format::New, Format::Compat] {
        let bytes = cache::encode(&records, format, reader.big_endian, None).expect("a small file");
        let again = Cache::parse(bytes.into(), reader).expect("what is written can be read");
        let expected = records.iter().map(|r| (r.key.as_bstr(), r.path.as_bstr(), r.flags, r.os_version));
        let read: Vec<_> = again.entries().map(|e| (e.key, e.path, e.flags, e.os_version)).collect();
        assert_eq!(read, expected.collect::<Vec<_>>());
        // Numbers wrap, so that long ones have no order in which they could be found.
        let digits = |name: &[u8]| name.split(|b| !b.is_ascii_digit()).map(<[u8]>::len).max().unwrap_or(0);
        if records.iter().any(|r| digits(&r.key) > 9) {
            continue;
        }
        for record in records.iter().filter(|r| r.hwcaps.is_none() && r.hwcap == 0 && r.os_version == 0) {
            let flags = Flags { own: record.flags, taken: [record.flags; 2] };
            let want = Want { flags, active: &[], isa: Some(1), legacy: None };
            let hit = again.lookup(record.key.as_bstr(), &want).expect("a sound file").expect("an entry of that name");
            assert!(records.iter().any(|r| r.path == hit.path && r.flags == record.flags));
        }
    }
}

/// `/etc/ld.so.conf` and a file that it includes, `/etc/ld.so.preload`, musl's path file: one text in all of them.
///
/// Lists are bounded, a duplicate points at the one before it, and the loader finds every name of the view that
/// ldconfig would have.
pub fn configuration(data: &[u8]) {
    let mut tree = Tree::new();
    for path in ["/etc/ld.so.conf", "/etc/ld.so.conf.d/a.conf", "/etc/ld.so.preload", "/etc/ld-musl-x86_64.path"] {
        tree.add_file(path, data).expect("add");
    }
    for directory in ["/usr/lib", "/usr/local/lib", "/opt/x", "/b"] {
        for name in ["liba.so.1", "libb.so.1.2", "libb.so", "other.so", "libc.so.6#prelink#"] {
            tree.add_file(format!("{directory}/{name}"), *b"").expect("add");
        }
        tree.add_file(format!("{directory}/glibc-hwcaps/x86-64-v3/liba.so.1"), *b"").expect("add");
        tree.add_link(format!("{directory}/libl.so.1"), "liba.so.1").expect("add");
    }
    tree.add_directory("/usr/lib/haswell/x86_64").expect("add");
    tree.add_link("/lib", "usr/lib").expect("add");
    tree.add_link("/loop", "loop").expect("add");
    let system = System::new(Host::bare(), Arc::new(tree));
    for minor in [31, 36, 41] {
        let rules = Rules::glibc(minor, 62);
        let read = || Configuration::read(&system, &rules, &["/lib".into(), "/usr/lib".into()]);
        let configuration = read();
        assert_eq!(read(), configuration);
        assert!(configuration.directories.len() <= 20_000, "{}", configuration.directories.len());
        assert!(configuration.files.len() <= 1000 && configuration.notes.len() <= 1000);
        for (index, directory) in configuration.directories.iter().enumerate() {
            assert!(!directory.path.is_empty() && !directory.path.ends_with(b"/"), "{directory:?}");
            if let Status::Duplicate(first) = directory.status {
                assert!(first < index && configuration.directories[first].status == Status::Scanned);
            }
        }
        let mut asked = 0;
        let view = rebuild(&system, &rules, &configuration, &mut |path| {
            asked += 1;
            let soname = path.find(b"libb.so.1").map(|_| "libb.so.1".into());
            Some(LibraryId { soname, flags: 0x303, isa_level: 0, os_version: 0 })
        });
        assert!(asked <= 1000, "{asked} libraries are read");
        find_all(&view, minor);
        for line in view.lines.iter().take(50) {
            assert!(configuration.behind(line.record.path.as_bstr()).is_some(), "{line:?}");
        }
    }
    let names = preload_names(data);
    assert!(names.iter().map(|n| n.len() + 1).sum::<usize>() <= data.len() + 1);
    assert!(names.iter().all(|n| !n.is_empty() && !n.iter().any(|b| b" \t\n:\0".contains(b))), "{names:?}");
    let path = musl_path(&system, b"/lib/ld-musl-x86_64.so.1".as_bstr(), Some(b"x86_64".as_bstr()));
    assert!(path.list.len() <= data.len().max(64), "{path:?}");
    let directories: Vec<&BStr> = List::RunPath.elements(Family::Musl, path.list.as_bstr()).collect();
    assert!(directories.iter().all(|d| !d.iter().any(|b| b":\n".contains(b))), "{path:?}");
    for list in [List::LibraryPath, List::RunPath, List::Preload] {
        for family in [Family::Glibc, Family::Musl] {
            let shorter = list.without(family, data.as_bstr(), &[0]);
            assert!(shorter.flatten().is_none_or(|text| text.len() <= data.len() + 1));
        }
    }
}

/// Every name of ldconfig's view leads to a line of that name.
fn find_all(view: &View, minor: u32) {
    let cache = match view.cache(Reader::glibc(minor, 62, false)) {
        Ok(cache) => cache,
        Err(why) => {
            assert!(view.lines.is_empty(), "{why}");
            return;
        }
    };
    let flags = Flags { own: 0x303, taken: [0x303; 2] };
    let active = ["x86-64-v3".into()];
    let want = Want { flags, active: &active, isa: Some(0xf), legacy: None };
    for line in view.lines.iter().take(50).filter(|l| l.record.hwcap == 0) {
        let hit = cache.lookup(line.record.key.as_bstr(), &want).expect("a sound file").expect("a line of that name");
        assert!(view.lines.iter().any(|l| l.record.path == hit.path), "{}", hit.path);
    }
}

/// Sound texts for [`configuration`].
pub const CONFIGURATION: &[&[u8]] = &[
    b"# comment\n/usr/local/lib\ninclude /etc/ld.so.conf.d/*.conf\n/opt/x=libc6\nhwcap 1 nosegneg\n",
    b"include /etc/ld.so.conf\ninclude *.conf [a-z]*.conf\n/a b\t\n",
    b"/lib/libx.so liby.so # comment\n\tlibz.so:libw.so\n",
    b"/lib:/usr/local/lib:/usr/lib\n/b/\n/usr/lib/haswell\n",
    b"include ld.so.conf.d/[!b]?[[:alpha:]]\\onf ../etc/ld.so.conf.d/*\n/loop\nrelative/x\n/opt/x=libc5\n",
];

/// How many kinds of files [`python`] knows.
pub const PYTHON_KINDS: u8 = 14;

/// Sound texts for [`python`] with their kinds.
pub const PYTHON: &[(u8, &[u8])] = &[
    (0, b"/elsewhere\nimport sys; sys.path.append('x')\n../up\n# no\n\n./here\n/elsewhere/pth\r\n"),
    (1, b"torch/__init__.py,sha256=abc,10\n\"torch/a,b.py\",,\ntorch-2.4.0.dist-info/RECORD,,\n../../bin/x,sha256=y,3\n"),
    (2, b"Metadata-Version: 2.1\nName: torch\nVersion: 2.4.0\nRequires-Dist: nvidia-cublas-cu12==12.1.3.1 ; x\n\nbody\n"),
    (3, b"home = /usr/bin\ninclude-system-site-packages = true\nversion = 3.11.2\nexecutable = /usr/bin/python3.11\n"),
    (3, b"uv = 0.4\nhome = /usr/bin\nversion_info = 3.11.2.final.0\n"),
    (4, b"__version__ = '2.4.0+cu121'\ndebug = False\ncuda: Optional[str] = '12.1'\nhip = None\n"),
    (5, b"{\"name\": \"pytorch\", \"version\": \"2.4\", \"files\": [\"lib/x.so\", \"lib/python3.11/site-packages/egg\\\"x\"]}"),
    (6, b"{\"url\": \"file:///work/x\", \"dir_info\": {\"editable\": true}}"),
    (7, b"#!/usr/bin/env bash\nexec python3 \"$@\"\n"),
    (7, b"#!/usr/bin/env bash\nset -e\nprogram=\"${0##*/}\"\nexec \"/opt/pyenv/libexec/pyenv\" exec \"$program\" \"$@\"\n"),
    (8, b"../egg/x.so\n../egg/__init__.py\nPKG-INFO\n"),
    (9, b"numpy\nnvidia-cublas-cu12>=12\n\n[extra]\nx\n"),
    (10, b"# build\nbuild_time_vars = {'LDLIBRARY': 'libpython3.11.so',\n 'MODBUILT_NAMES': 'atexit  faulthandler '\n  'posix',\n}\n"),
    (11, b"sitepackages.append(\"dist-packages\")\nif 'RPM_BUILD_ROOT' not in os.environ: '/usr/local'\nx.startswith(\".\") 'utf-8-sig'\n"),
    (12, b"MAPPING: dict[str, str] = {'torch': '/elsewhere/pth/mod', \"x\": '/y'}\n"),
    (13, ANSWER),
];

const ANSWER: &[u8] = b"ldaudit-python/1 {\"executable\": \"/venv/bin/python\", \"real_executable\": \"/usr/bin/python3.11\", \
\"prefix\": \"/venv\", \"exec_prefix\": \"/venv\", \"base_prefix\": \"/usr\", \"base_exec_prefix\": \"/usr\", \
\"implementation\": \"cpython\", \"version\": [3, 11, 2], \"abiflags\": \"\", \"platlibdir\": \"lib\", \
\"multiarch\": \"x86_64-linux-gnu\", \"suffixes\": [\".cpython-311-x86_64-linux-gnu.so\", \".abi3.so\", \".so\"], \
\"builtins\": [\"sys\", \"posix\"], \"standard\": [\"/usr/lib/python311.zip\", \"/usr/lib/python3.11\"], \
\"path\": [\"/usr/lib/python3.11\", \"/venv/lib/python3.11/site-packages\"], \"user_site\": \"/root/.local\", \
\"user_site_enabled\": false, \"skipped\": [[\"a.pth\", \"import x\"]], \"environment\": [[\"LD_LIBRARY_PATH\", \"/x\"]]}\n";

const SITE: &str = "/venv/lib/python3.11/site-packages";

/// Gives one text as the interpreter's answer.
struct Says<'a>(&'a [u8]);

impl Ask for Says<'_> {
    fn run(&self, _: &Command<'_>) -> Result<Answer, Failure> {
        Ok(Answer { exit: Exit::Status(0), stdout: self.0.to_vec(), stderr: Vec::new() })
    }
}

/// Files of a Python environment, and what its interpreter says: which one is `kind`.
///
/// Damage of one file leaves the others' answers as they are: the sound distribution beside it still owns its file.
pub fn python(kind: u8, data: &[u8]) {
    let kind = kind % PYTHON_KINDS;
    let mut tree = Tree::new();
    let mut file = |path: &str, bytes: &[u8]| tree.add_file(path, bytes).expect("add");
    let dist = |name: &str| format!("{SITE}/torch-2.4.0.dist-info/{name}");
    let egg = |name: &str| format!("{SITE}/egg-1.0-py3.11.egg-info/{name}");
    for (path, bytes) in [
        ("/usr/bin/python3.11", &b"\x7fELF"[..]),
        ("/usr/lib/python3.11/os.py", b""),
        ("/usr/lib/python3.11/lib-dynload/_ctypes.cpython-311-x86_64-linux-gnu.so", b""),
        ("/usr/lib/python3.11/_sysconfigdata__x86_64-linux-gnu.py", b"'LDLIBRARY': 'libpython3.11.so'"),
        ("/venv/pyvenv.cfg", b"home = /usr/bin\nversion = 3.11.2\n"),
        ("/elsewhere/pth/mod.py", b""),
        (&format!("{SITE}/torch/__init__.py"), b""),
        (&format!("{SITE}/egg/x.so"), b""),
        (&format!("{SITE}/sound/x.so"), b""),
        (&format!("{SITE}/sound-3.0.dist-info/METADATA"), b"Name: sound\nVersion: 3.0\n"),
        (&format!("{SITE}/sound-3.0.dist-info/RECORD"), b"sound/x.so,sha256=x,0\n"),
        (&format!("{SITE}/a.pth"), b"/elsewhere\nimport x\n"),
        (&dist("METADATA"), b"Name: torch\nVersion: 2.4.0\n"),
        (&dist("RECORD"), b"torch/__init__.py,sha256=x,0\n"),
        (&egg("PKG-INFO"), b"Name: egg\nVersion: 1.0\n"),
        (&egg("installed-files.txt"), b"../egg/x.so\n"),
    ] {
        file(path, bytes);
    }
    let path = match kind {
        0 => format!("{SITE}/a.pth"),
        1 => dist("RECORD"),
        2 => dist("METADATA"),
        3 => "/venv/pyvenv.cfg".into(),
        4 => format!("{SITE}/torch/version.py"),
        5 => "/venv/conda-meta/x-1-0.json".into(),
        6 => dist("direct_url.json"),
        7 => "/usr/bin/python3.11".into(),
        8 => egg("installed-files.txt"),
        9 => egg("requires.txt"),
        10 => "/usr/lib/python3.11/_sysconfigdata__x86_64-linux-gnu.py".into(),
        11 => "/usr/lib/python3.11/site.py".into(),
        12 => format!("{SITE}/__editable___x_finder.py"),
        // No file: what the interpreter says.
        _ => "/nowhere".into(),
    };
    file(&path, data);
    tree.add_link("/venv/bin/python", "/usr/bin/python3.11").expect("add");
    tree.set_mode("/usr/bin/python3.11", 0o755).expect("mode");
    let mut host = Host::bare();
    host.env.set("VIRTUAL_ENV", "/venv");
    host.env.set("HOME", "/root");
    let system = System::new(host, Arc::new(tree));
    let says = Says(data);
    let ask: Option<&dyn Ask> = if kind == 13 { Some(&says) } else { None };
    let request = Request { named: None, ask, limit: DEFAULT_LIMIT };
    match (discover(&system, &request), discover(&system, &request)) {
        (Ok(python), Ok(again)) => {
            assert_eq!(python.interpreter, again.interpreter);
            hold(&system, &python);
            // Where the environment is found as it is, all that was not damaged is found in it.
            if !matches!(kind, 3 | 7 | 11 | 13) {
                assert_eq!(python.interpreter.prefix, "/venv");
                let owner = python.owner_of(BStr::new(&format!("{SITE}/sound/x.so"))).expect("an owner");
                assert!(kind != 0 || owner.name() == "sound", "{}", owner.name());
                assert!(kind == 12 || python.torch().is_some());
            }
        }
        (Err(error), Err(again)) => {
            assert_eq!(error.to_string(), again.to_string());
            assert!(!error.to_string().is_empty());
            assert!(error.hint().is_none_or(|h| !h.is_empty()));
            assert!(matches!(kind, 3 | 7 | 13), "{error}");
        }
        _ => panic!("two answers to one question"),
    }
}

/// What is true of every environment.
fn hold(system: &System, python: &Python) {
    let path = python.path();
    assert!(path.len() <= 10_001 || python.interpreter.known_by != KnownBy::Files);
    for entry in path {
        let directory = entry.directory.as_bstr();
        assert!(directory.starts_with(b"/") || python.interpreter.known_by != KnownBy::Files, "{directory}");
        assert!(
            entry.kind != EntryKind::Pth || system.exists(directory) || python.interpreter.known_by != KnownBy::Files
        );
    }
    if python.interpreter.known_by == KnownBy::Files {
        let once: HashSet<&BString> = path.iter().map(|e| &e.directory).collect();
        let working = path.iter().filter(|e| e.kind == EntryKind::WorkingDirectory).count();
        assert!(once.len() + working >= path.len(), "a directory twice");
    }
    let _ = (python.environment(), python.interpreter.soabi(), python.interpreter.library());
    for distribution in python.distributions() {
        let metadata = python.metadata(distribution);
        assert!(!metadata.name.contains(&b'\n') && !metadata.version.contains(&b'\n'));
        assert!(distribution.entry < path.len());
    }
    assert!(python.distribution("torch").is_none_or(|d| d.normalised == "torch"));
    let _ = (python.torch().and_then(|t| Some((t.numbers()?, t.cuda_major()?))), python.shared_library());
    for module in ["torch", "torch._C", "", "..", "x", "egg", "torch.a.b"] {
        let found = python.find_module(module);
        assert_eq!(found, python.find_module(module));
    }
    for file in ["torch/__init__.py", "egg/x.so", "none", "torch/a,b.py", "../../../bin/x"] {
        let inside = format!("{SITE}/{file}");
        let owner = python.owner_of(BStr::new(&inside)).map(|o| (o.name().to_owned(), o.version().to_owned()));
        assert_eq!(owner, python.owner_of(BStr::new(&inside)).map(|o| (o.name().to_owned(), o.version().to_owned())));
    }
    for match_ in python.glob(b"/venv/lib/*/site-packages/torch/*".as_bstr()) {
        assert!(system.files.lstat(match_.as_bstr()) != Err(Errno::ENOENT), "{match_}");
    }
    for entry in path.iter().take(10) {
        let _ = python.library_directories(entry, &["torch"]);
    }
    assert!(python.notes().len() <= 3000);
    for note in python.notes() {
        assert!(!note.to_string().is_empty());
    }
}

/// A fixture: parsed, printed, parsed again, simulated.
///
/// What is printed says the same as what was read, and simulating it twice shows the same.
pub fn fixture(data: &[u8]) {
    let parsed = match Fixture::parse(data) {
        Ok(parsed) => parsed,
        Err(problems) => {
            assert!((1..=100).contains(&problems.len()));
            let lines = data.lines().count();
            assert!(problems.iter().all(|p| p.line <= lines && !p.text.is_empty()));
            return;
        }
    };
    let printed = parsed.print();
    let again = Fixture::parse(printed.as_bytes()).expect("what is printed can be parsed");
    assert_eq!(again, parsed, "{printed}");
    assert_eq!(again.print(), printed);
    let _ = (fixture::judge::lint(&parsed), parsed.rule(), parsed.needs_libc());
    for loader in [Loader::glibc(2, 36), Loader::musl(1, 2, 3)] {
        for run in parsed.runs(loader).iter().take(2) {
            let seen = fixture::simulate::observe(&parsed, loader, run);
            assert_eq!(fixture::simulate::observe(&again, loader, run), seen);
            if let Ok(seen) = seen {
                assert!(seen.steps.len() <= run.steps.len());
                let _ = fixture::judge::judge(run, &seen);
            }
        }
    }
}
