//! The loader's cache as one process sees it: read from the box, or rebuilt by ldconfig's rules when it is missing and
//! that was asked for.

use std::sync::{Arc, OnceLock};

use bstr::{BStr, BString, ByteSlice};

use super::cache::{self, Abi, Cache, Fault, Flags, Legacy, Unusable, Want};
use super::config::{Configuration, LibraryId, Rules, View, rebuild};
use super::dialect::{Dialect, machine};
use super::search::CacheHit;
use super::tunables;
use crate::elf::{Facts, Reader, file_type};
use crate::system::{Errno, Host, System};

/// Where the cache comes from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Origin {
    /// `/etc/ld.so.cache` of the box.
    File,
    /// Rebuilt by ldconfig's rules (`--assume-ldconfig`).
    Rebuilt,
    /// There is none that the loader would use; the reason.
    None(Unusable),
}

/// A cache and what is needed to look names up in it.
pub struct LoadedCache {
    cache: Option<Cache>,
    /// Where it comes from.
    pub origin: Origin,
    flags: Flags,
    /// What ldconfig would write in its place, once somebody wants to know.
    instead: OnceLock<Option<Arc<LoadedCache>>>,
}

impl LoadedCache {
    /// Reads the cache of a box. `assume_ldconfig` rebuilds one that is missing.
    pub fn read(system: &System, dialect: &Dialect, assume_ldconfig: bool) -> LoadedCache {
        match Cache::open(system, reader(dialect)) {
            Err(Unusable::Unreadable(Errno::ENOENT)) if assume_ldconfig => {
                LoadedCache::of_view(&ldconfig_view(system, dialect), dialect)
            }
            cache => LoadedCache::new(cache, Origin::File, dialect),
        }
    }

    fn of_view(view: &View, dialect: &Dialect) -> LoadedCache {
        LoadedCache::new(view.cache(reader(dialect)), Origin::Rebuilt, dialect)
    }

    fn new(cache: Result<Cache, Unusable>, origin: Origin, dialect: &Dialect) -> LoadedCache {
        let flags =
            Flags::of_loader(Abi { machine: dialect.machine, class64: dialect.layout.is_64, e_flags: dialect.e_flags });
        let (cache, origin) = match cache {
            Ok(cache) => (Some(cache), origin),
            Err(why) => (None, Origin::None(why)),
        };
        LoadedCache { cache, origin, flags, instead: OnceLock::new() }
    }

    /// For a cache that does not exist: the one that `assume_ldconfig` would have given, rebuilt once. `None` when there is
    /// a cache, damaged or not, or when none can be built; nor is one built of more than 50,000 files, for nobody asked
    /// for it.
    pub fn rebuilt(&self, system: &System, dialect: &Dialect) -> Option<Arc<LoadedCache>> {
        if self.origin != Origin::None(Unusable::Unreadable(Errno::ENOENT)) {
            return None;
        }
        let rebuild = || {
            let view = view(system, dialect, MAX_UNASKED)?;
            Some(Arc::new(LoadedCache::of_view(&view, dialect))).filter(|c| c.cache.is_some())
        };
        self.instead.get_or_init(rebuild).clone()
    }

    /// The file behind it, when there is a usable one.
    pub fn cache(&self) -> Option<&Cache> {
        self.cache.as_ref()
    }

    /// The one path that the loader takes for a name (rule R4.10). `active` are the usable names of glibc-hwcaps
    /// sub-directories, best first.
    pub fn lookup(
        &self,
        name: &BStr,
        dialect: &Dialect,
        host: &Host,
        active: &[BString],
    ) -> Result<Option<CacheHit>, Fault> {
        let Some(cache) = self.cache.as_ref() else { return Ok(None) };
        let want = Want { flags: self.flags, active, isa: isa(dialect, host), legacy: legacy(dialect, host) };
        let Some(hit) = cache.lookup(name, &want)? else { return Ok(None) };
        let mut text = name.to_owned();
        text.extend_from_slice(b" => ");
        text.extend_from_slice(&hit.path);
        Ok(Some(CacheHit { entry: hit.entry, path: hit.path, text }))
    }
}

/// Most files that are read for a cache that nobody asked for.
const MAX_UNASKED: usize = 50_000;

/// What ldconfig would write into the cache of a box.
pub fn ldconfig_view(system: &System, dialect: &Dialect) -> View {
    view(system, dialect, usize::MAX).unwrap_or_default()
}

/// The same, unless it takes more than so many files.
fn view(system: &System, dialect: &Dialect, most: usize) -> Option<View> {
    let minor = minor(dialect);
    let rules = Rules::glibc(minor, dialect.machine);
    let configuration = Configuration::read(system, &rules, &rules.system_directories(&dialect.system_dirs));
    let mut files = 0;
    let view = rebuild(system, &rules, &configuration, &mut |path| {
        files += 1;
        if files <= most { identify(system, dialect.machine, minor, path) } else { None }
    });
    (files <= most).then_some(view)
}

/// The minor release of a glibc 2.
fn minor(dialect: &Dialect) -> u32 {
    if dialect.version.0 >= 2 { u32::from(dialect.version.1) } else { 0 }
}

fn reader(dialect: &Dialect) -> cache::Reader {
    cache::Reader::glibc(minor(dialect), dialect.machine, dialect.layout.big_endian)
}

fn isa(dialect: &Dialect, host: &Host) -> Option<u32> {
    matches!(dialect.machine, machine::X86_64 | machine::I386).then(|| cache::isa_bits(host.cpu.level))
}

fn legacy(dialect: &Dialect, host: &Host) -> Option<Legacy> {
    if !dialect.uses_legacy_cache_entries() {
        return None;
    }
    let (major, minor, patch) = super::verify::assumed_kernel(host);
    let kernel = Some(major.min(255) << 16 | minor.min(255) << 8 | patch.min(255));
    match dialect.machine {
        machine::X86_64 => {
            let cpu = tunables::cpu(dialect, host);
            let mask = tunables::hwcap_mask(dialect, host).unwrap_or(6);
            Some(Legacy::x86_64(cpu.avx512_1, cpu.platform.as_ref().map(|p| p.as_bstr()), mask, kernel))
        }
        _ => None,
    }
}

/// What ldconfig takes from a library.
fn identify(system: &System, ldconfig: u16, minor: u32, path: &BStr) -> Option<LibraryId> {
    let file = system.open(path).ok()?;
    let mut reader = Reader::new(&file);
    let layout = crate::elf::Layout::of_ident(reader.range(0, 64).ok()?)?;
    let facts = Facts::read(&mut reader, layout)?;
    if facts.header.file_type != file_type::DYN || !facts.has_dynamic {
        return None;
    }
    let abi = Abi { machine: facts.header.machine, class64: layout.is_64, e_flags: facts.header.flags };
    let libc6 = minor >= 37
        || facts.needed().any(|n| n == "libc.so.6" || n == "libm.so.6")
        || facts.interpreter.as_ref().is_some_and(|i| i.find(b"/ld-linux").is_some());
    Some(LibraryId {
        soname: facts.soname.clone(),
        flags: cache::library_flags(ldconfig, abi, libc6)?,
        isa_level: cache::isa_level(facts.isa_needed),
        os_version: facts
            .abi_tag
            .map_or(0, |(os, a, b, c)| (os & 0xff) << 24 | (a & 0xff) << 16 | (b & 0xff) << 8 | (c & 0xff)),
    })
}
