//! What the installed torch says of itself: its package directory and the assignments in `torch/version.py`, read as
//! text. Nothing is imported.

use std::borrow::Cow;
use std::sync::Arc;

use bstr::{BStr, BString, ByteSlice};
use rustc_hash::{FxHashMap, FxHashSet};

use super::{Distribution, Module, Python, modules};
use crate::system::{Kind, join, parent};

/// Longest version file that is read (the real one has 300 bytes).
const MAX_BYTES: u64 = 64 * 1024;

/// An installed torch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Torch {
    /// The package directory as `import` makes it from `sys.path`: `…/site-packages/torch`.
    pub directory: BString,
    /// `torch.__version__`, `2.4.0+cu121`; that of its metadata when the file does not tell; `None` when nothing does.
    pub version: Option<BString>,
    /// `torch.version.cuda`, `12.1`; `None` for a build without CUDA.
    pub cuda: Option<BString>,
    /// `torch.version.hip`: a build for ROCm.
    pub hip: Option<BString>,
}

impl Torch {
    /// Major, minor and patch number of the version.
    pub fn numbers(&self) -> Option<(u16, u16, u16)> {
        numbers(self.version.as_ref()?.as_bstr())
    }

    /// The CUDA major version, `12`.
    pub fn cuda_major(&self) -> Option<u16> {
        self.cuda.as_ref()?.split_str(".").next()?.to_str().ok()?.parse().ok()
    }
}

/// The first three numbers of a version; a missing third counts as 0, letters end a number (`2.0.0a0` is 2.0.0).
pub fn numbers(version: &BStr) -> Option<(u16, u16, u16)> {
    let mut parts = version.split_str(".").map(|part| {
        let digits = part.iter().take_while(|b| b.is_ascii_digit()).count();
        part[..digits].to_str().ok().and_then(|s| s.parse::<u16>().ok())
    });
    Some((parts.next()??, parts.next()??, parts.next().flatten().unwrap_or(0)))
}

/// Reads the torch that `import torch` would take.
pub(super) fn read(python: &Python) -> Option<Torch> {
    let Module::Package { directory, .. } = python.find_module("torch").module else { return None };
    let file = join(directory.as_bstr(), "version.py");
    let text = python.system.read_small(file.as_bstr(), MAX_BYTES).unwrap_or_default();
    let value = |name: &str| {
        text.lines().find_map(|line| {
            let rest = line.strip_prefix(name.as_bytes())?;
            // `cuda = '11.7'` or `cuda: Optional[str] = '12.1'`
            if !matches!(rest.first(), Some(b' ' | b':' | b'=')) {
                return None;
            }
            let (_, value) = rest.split_once_str("=")?;
            let value = value.trim_ascii();
            let quote = *value.first().filter(|b| matches!(b, b'\'' | b'"'))?;
            let end = memchr::memchr(quote, value.get(1..)?)?;
            Some(BString::from(&value[1..=end]))
        })
    };
    let (version, cuda, hip) = (value("__version__"), value("cuda"), value("hip"));
    let of_metadata = || distribution(python, directory.as_bstr()).map(|d| d.version.clone());
    let version = version.or_else(of_metadata).filter(|version| !version.is_empty());
    Some(Torch { directory, version, cuda, hip })
}

/// The distribution that a package directory of torch was installed by.
fn distribution<'p>(python: &'p Python, directory: &BStr) -> Option<&'p Distribution> {
    python.distribution("torch").filter(|d| d.location == parent(directory))
}

/// Deepest directories whose names are compared, counted from the one of the package.
const MAX_DEPTH: usize = 3;
/// Most modules that are told.
const MAX_GONE: usize = 1_000;

/// Modules of torch, in Python, that its list of files has and that are not there. The names in its upper directories are
/// compared, as far as these belong to packages that `torch/__init__.py` imports for certain; no file is looked at.
pub(super) fn gone_sources(python: &Python) -> Vec<String> {
    let Module::Package { directory, .. } = python.find_module("torch").module else { return Vec::new() };
    let Some(distribution) = distribution(python, directory.as_bstr()) else { return Vec::new() };
    let Some(record) = distribution.record(&python.system) else { return Vec::new() };
    let code = python.code_of("torch");
    let mut certain: FxHashSet<&[u8]> = FxHashSet::default();
    for import in code.imports.iter().filter(|i| !i.guarded) {
        if import.module == "torch" {
            certain.extend(import.names.iter().map(|name| name.as_bytes()));
        } else if let Some(below) = import.module.strip_prefix("torch.") {
            certain.extend(below.split('.').next().map(str::as_bytes));
        }
    }
    let mut directories: FxHashMap<&[u8], Arc<modules::Names>> = FxHashMap::default();
    let mut out = Vec::new();
    for path in record.paths() {
        let Cow::Borrowed(path) = path else { continue };
        let Some(below) = path.strip_prefix(b"torch/").filter(|p| p.ends_with(b".py")) else { continue };
        let (within, name) = below.rsplit_once_str("/").unwrap_or((b"", below));
        let depth = within.find_iter("/").count() + usize::from(!within.is_empty());
        let package = within.split_str("/").next().unwrap_or_default();
        if depth >= MAX_DEPTH || depth > 0 && !certain.contains(package) {
            continue;
        }
        let names = directories
            .entry(within)
            .or_insert_with(|| modules::names_in(python, join(directory.as_bstr(), within).as_bstr()));
        if names.as_ref().as_ref().is_some_and(|names| !names.contains(name.as_bstr()))
            && let Ok(module) = below.to_str()
            && out.len() < MAX_GONE
        {
            let module = module.trim_end_matches(".py").trim_end_matches("/__init__");
            out.push(format!("torch.{}", module.replace('/', ".")));
        }
    }
    out
}

/// What a torch that was found lacks, so that it is no installed one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lack {
    /// Its directory has no `__init__.py` that is a file: Python makes an empty module of it.
    Source,
    /// It has neither a directory `lib` nor an extension `_C`: a source checkout, or something else of that name.
    Libraries,
    /// Its source does not speak of `_C`.
    Reference,
}

/// Tells a torch as its wheels and builds are from other things of that name.
pub(super) fn lacks(python: &Python) -> Option<Lack> {
    let code = python.code_of("torch");
    let directory = match &code.module {
        Module::Package { directory, .. } => directory,
        Module::Namespace(_) => return Some(Lack::Source),
        Module::Missing => return None,
        Module::Source(_) | Module::Extension(_) | Module::BuiltIn => return Some(Lack::Libraries),
    };
    let has_lib = || {
        let lib = python.system.stat(join(directory.as_bstr(), "lib").as_bstr());
        lib.is_ok_and(|meta| meta.kind == Kind::Directory)
    };
    let is_extension = |module: &Module| matches!(module, Module::Extension(_));
    if !is_extension(&modules::find_below(python, &code.module, "_C")) && !has_lib() {
        return Some(Lack::Libraries);
    }
    (code.was_read && !code.speaks_of_c).then_some(Lack::Reference)
}
