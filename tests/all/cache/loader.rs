//! Real loaders, run with a cache and a preload file of their own, and the model asked the same.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bstr::{BStr, BString, ByteSlice};
use ldaudit::ld::cache::{self, Abi, Cache, Fault, Flags, Format, Legacy, Reader, Record, Want};
use ldaudit::system::{Cpu, Host, Live, System};

use crate::support::{fresh, require};

/// EM_X86_64.
pub const X86_64: u16 = 62;

/// A directory that goes away with the value.
pub struct Temp(pub PathBuf);

impl Temp {
    pub fn new() -> Temp {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("ldaudit-cache-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).expect("temporary directory");
        Temp(path)
    }
}

impl Drop for Temp {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The small generator of the random cases: the same numbers on every box.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() >> 11) as usize % n.max(1)
    }

    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }
}

/// A glibc to run.
pub struct Loader {
    pub root: PathBuf,
    pub minor: u32,
    /// The loader with other paths in it.
    pub program: PathBuf,
    /// A directory with nothing but the libc of this loader, for `--library-path`.
    pub libraries: PathBuf,
    pub ldconfig: Option<PathBuf>,
    _keep: Temp,
}

/// What a loader did with a list of names: the path from the cache of each, up to the name at which it was killed.
pub struct Answers {
    pub paths: BTreeMap<BString, Option<BString>>,
    pub killed_at: Option<BString>,
}

impl Loader {
    pub fn at(root: &Path) -> Result<Loader, String> {
        // The absolute links of a root lead inside it.
        let system = System::new(Host::bare(), Arc::new(live(root)));
        let real =
            system.files.real_path("/lib64/ld-linux-x86-64.so.2".into()).map_err(|e| format!("no loader: {e}"))?;
        let real = under(root, real.as_bstr());
        let libc_path = real.with_file_name("libc.so.6");
        let libc = fs::read(&libc_path).map_err(|e| format!("no libc beside the loader: {e}"))?;
        let at = libc.find("release version 2.").ok_or("no version in libc")?;
        let digits = libc[at + 18..].split(|b| !b.is_ascii_digit()).next().unwrap_or_default();
        let minor = digits.to_str().ok().and_then(|d| d.parse().ok()).ok_or("no version in libc")?;
        let mut bytes = fs::read(&real).map_err(|e| e.to_string())?;
        for (from, to) in [("/etc/ld.so.cache\0", "./ld.so.cache\0"), ("/etc/ld.so.preload\0", "./ld.so.preload\0")] {
            let at = bytes.find(from).ok_or_else(|| format!("no {from:?} in the loader"))?;
            bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
        }
        let keep = Temp::new();
        let libraries = keep.0.join("lib");
        fs::create_dir(&libraries).map_err(|e| e.to_string())?;
        std::os::unix::fs::symlink(&libc_path, libraries.join("libc.so.6")).map_err(|e| e.to_string())?;
        let program = keep.0.join("ld.so");
        fs::write(&program, bytes).map_err(|e| e.to_string())?;
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(&program, mode).map_err(|e| e.to_string())?;
        let ldconfig = ["sbin/ldconfig", "usr/sbin/ldconfig"].iter().map(|p| root.join(p)).find(|p| p.exists());
        let loader = Loader { root: root.to_owned(), minor, program, libraries, ldconfig, _keep: keep };
        let probe =
            cache::encode(&[Record::new("libprobe.so", "/probe", 0x303)], Format::New, false, None).expect("small");
        match loader.ask(&SETTINGS[0], &probe, &["libprobe.so".into()]).paths.get(BStr::new("libprobe.so")) {
            Some(Some(path)) if path == "/probe" => Ok(loader),
            other => Err(format!("the loader of {} does not answer: {other:?}", root.display())),
        }
    }

    /// The loader of this box and those of the foreign roots.
    pub fn all() -> Vec<Loader> {
        let mut out = Vec::new();
        for root in std::iter::once(PathBuf::from("/")).chain(crate::support::cached::roots()) {
            match Loader::at(&root) {
                Ok(loader) => out.push(loader),
                Err(reason) => require::skip("glibc", &reason),
            }
        }
        out
    }

    pub fn run(&self, setting: &Setting, directory: &Path, preload: &[u8]) -> (Vec<u8>, bool) {
        let mut command = Command::new(&self.program);
        if !setting.prepend.is_empty() {
            command.arg("--glibc-hwcaps-prepend").arg(setting.prepend.join(":"));
        }
        if let Some(mask) = setting.mask {
            command.arg("--glibc-hwcaps-mask").arg(mask.join(":"));
        }
        command.arg("--library-path").arg(&self.libraries);
        command.arg(self.root.join("bin/true")).current_dir(directory).env_clear();
        command.env("LD_DEBUG", "libs").env("LD_PRELOAD", std::ffi::OsStr::from_bytes(preload));
        if let Some(mask) = setting.hwcap_mask {
            command.env("LD_HWCAP_MASK", mask.to_string());
        }
        let output = fresh::start(|| command.output()).expect("the loader starts");
        (output.stderr, output.status.signal().is_some())
    }

    pub fn ask(&self, setting: &Setting, bytes: &[u8], names: &[BString]) -> Answers {
        let directory = Temp::new();
        fs::write(directory.0.join("ld.so.cache"), bytes).expect("write");
        let (text, killed) = self.run(setting, &directory.0, &bstr::join(" ", names));
        let mut paths = BTreeMap::new();
        let mut current: Option<BString> = None;
        let mut searching = false;
        for line in text.lines().filter_map(|l| l.split_once_str(":\t")).map(|(_, text)| text) {
            if let Some(name) = line.strip_prefix(b"find library=") {
                current = Some(name[..name.rfind(" [").expect("namespace")].into());
            } else if searching && let Some(name) = &current {
                paths.insert(name.clone(), line.strip_prefix(b"  trying file=").map(BString::from));
            }
            searching = line.starts_with(b" search cache=");
        }
        Answers { paths, killed_at: if killed { current } else { None } }
    }

    pub fn reader(&self) -> Reader {
        Reader::glibc(self.minor, X86_64, false)
    }
}

pub fn under(root: &Path, path: &BStr) -> PathBuf {
    root.join(path.trim_start_with(|c| c == '/').to_path().expect("unix path"))
}

pub fn live(root: &Path) -> Live {
    Live::at_root(root.as_os_str().as_bytes().as_bstr()).expect("root")
}

/// Settings of the loader that change what it wants: options of 2.33 and later, and an environment variable.
pub struct Setting {
    pub prepend: &'static [&'static str],
    pub mask: Option<&'static [&'static str]>,
    pub hwcap_mask: Option<u64>,
}

pub const SETTINGS: &[Setting] = &[
    Setting { prepend: &[], mask: None, hwcap_mask: None },
    Setting { prepend: &[], mask: None, hwcap_mask: Some(0) },
    Setting { prepend: &["zzz", "aaa"], mask: Some(&["x86-64-v2"]), hwcap_mask: Some(4) },
    Setting { prepend: &["x86-64-v2", "x86-64-v2", "x86-64-v"], mask: None, hwcap_mask: None },
];

/// What the loaders of this box's processor want.
pub struct Processor {
    pub active: Vec<BString>,
    pub isa: u32,
    pub legacy: Legacy,
}

impl Processor {
    pub fn live(setting: &Setting) -> Processor {
        let host = Host::live();
        let Cpu { level, avx512_1, platform } = host.cpu;
        let (major, minor, patch) = host.kernel;
        let kernel = Some(major << 16 | minor << 8 | patch);
        let built_in = (2..=level).rev().map(|l| format!("x86-64-v{l}"));
        let built_in = built_in.filter(|n| setting.mask.is_none_or(|mask| mask.contains(&n.as_str())));
        Processor {
            active: setting.prepend.iter().map(|n| (*n).into()).chain(built_in.map(BString::from)).collect(),
            isa: cache::isa_bits(level),
            legacy: Legacy::x86_64(
                avx512_1,
                platform.as_ref().map(|p| p.as_bstr()),
                setting.hwcap_mask.unwrap_or(6),
                kernel,
            ),
        }
    }

    pub fn want(&self) -> Want<'_> {
        let abi = Abi { machine: X86_64, class64: true, e_flags: 0 };
        Want { flags: Flags::of_loader(abi), active: &self.active, isa: Some(self.isa), legacy: Some(self.legacy) }
    }
}

/// Lookups that were compared.
#[derive(Default)]
pub struct Tally {
    pub lookups: usize,
    pub hits: usize,
    pub killed: usize,
}

impl std::fmt::Display for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} lookups alike, {} of them hits, {} kills", self.lookups, self.hits, self.killed)
    }
}

/// Compares model and loader for one cache file.
pub fn compare(loader: &Loader, setting: &Setting, bytes: &[u8], names: &[BString], what: &str, tally: &mut Tally) {
    let processor = Processor::live(setting);
    let model = Cache::parse(bytes.into(), loader.reader());
    let answers = loader.ask(setting, bytes, names);
    for name in names {
        let expected = match &model {
            Err(_) => Ok(None),
            Ok(cache) => cache.lookup(name.as_bstr(), &processor.want()),
        };
        if let Ok(cache) = &model {
            assert_eq!(cache.explain(name.as_bstr(), &processor.want()).found, expected, "explanation of {name}");
        }
        let real = answers.paths.get(name);
        let killed = answers.killed_at.as_ref() == Some(name);
        let context = || {
            let saved = std::env::temp_dir().join("ldaudit-disagreement.cache");
            let _ = fs::write(&saved, bytes);
            format!("{what}: {name} under 2.{} (file kept as {}), model {model:?}", loader.minor, saved.display())
        };
        tally.lookups += 1;
        tally.killed += usize::from(killed);
        match (&expected, real) {
            // What lies behind the file in memory is chance.
            (Err(Fault::ReadsPastEnd), _) => {}
            (Err(fault), _) => assert!(killed, "{fault:?} expected: {}", context()),
            (Ok(_), None) if killed => panic!("killed: {}", context()),
            (Ok(hit), Some(real)) => {
                assert_eq!(hit.as_ref().map(|h| &h.path), real.as_ref(), "{}", context());
                tally.hits += usize::from(real.is_some());
            }
            (Ok(_), None) => panic!("no answer: {}", context()),
        }
        if killed {
            break;
        }
    }
}

/// The settings that a loader knows.
pub fn settings(loader: &Loader) -> impl Iterator<Item = &'static Setting> {
    let knows = loader.minor >= 33;
    SETTINGS.iter().filter(move |s| knows || (s.prepend.is_empty() && s.mask.is_none()))
}
