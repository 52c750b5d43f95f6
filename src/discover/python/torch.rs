//! What the installed torch says of itself: its package directory and the assignments in `torch/version.py`, read as
//! text. Nothing is imported.

use bstr::{BStr, BString, ByteSlice};

use super::{Module, Python};
use crate::system::join;

/// Longest version file that is read (the real one has 300 bytes).
const MAX_BYTES: u64 = 64 * 1024;

/// An installed torch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Torch {
    /// The package directory as `import` makes it from `sys.path`: `…/site-packages/torch`.
    pub directory: BString,
    /// `torch.__version__`, `2.4.0+cu121`; `None` when the file does not tell.
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
    Some(Torch { directory, version, cuda, hip })
}
