//! The only path walker: `..`, links inside the root, the loop limit, search permission.
//!
//! Follows the kernel's rules (`fs/namei.c`): a component is looked up only in a directory (`ENOTDIR` otherwise), at
//! most 40 links are followed in one walk (`ELOOP`), a component is at most 255 bytes and a path at most 4095 bytes
//! (`ENAMETOOLONG`), `..` at the root stays there, and a trailing slash asks for a directory.

use bstr::{BStr, BString, ByteSlice};

use super::{Errno, Kind, Meta};

/// An absolute path none of whose parents is a link. Only the walker makes one.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Location(BString);

impl Location {
    /// The root directory.
    pub fn root() -> Location {
        Location("/".into())
    }

    /// The path as text.
    pub fn as_bstr(&self) -> &BStr {
        self.0.as_bstr()
    }

    /// The path as text.
    pub fn into_path(self) -> BString {
        self.0
    }

    fn child(&self, name: &[u8]) -> Location {
        Location(super::join(self.0.as_bstr(), name))
    }

    fn parent(&self) -> Location {
        match self.0.rfind_byte(b'/') {
            Some(0) | None => Location::root(),
            Some(i) => Location(self.0[..i].into()),
        }
    }
}

/// What the walker asks of a backend. Permission to search a directory is part of `lstat` of what lies in it:
/// `EACCES` when the directory may not be searched.
pub trait Nodes {
    /// `lstat` of a location.
    fn lstat(&self, at: &Location) -> Result<Meta, Errno>;
    /// Text of the link at a location.
    fn read_link(&self, at: &Location) -> Result<BString, Errno>;
}

const MAX_LINKS: usize = 40;
const PATH_MAX: usize = 4096;
const NAME_MAX: usize = 255;

/// Resolves an absolute path. With `follow` a link in the last component is followed too (a trailing slash follows it
/// in any case).
pub fn resolve(nodes: &(impl Nodes + ?Sized), path: &BStr, follow: bool) -> Result<(Location, Meta), Errno> {
    if path.is_empty() {
        return Err(Errno::ENOENT);
    }
    if path.len() >= PATH_MAX {
        return Err(Errno::ENAMETOOLONG);
    }
    if path.contains(&0) {
        return Err(Errno::EINVAL);
    }
    let mut here = Location::root();
    let mut meta = nodes.lstat(&here)?;
    // Components still to walk, last one first.
    let mut pending: Vec<BString> = Vec::new();
    push_components(&mut pending, path);
    let mut must_be_directory = path.ends_with(b"/");
    let mut links = 0;
    while let Some(name) = pending.pop() {
        if meta.kind != Kind::Directory {
            return Err(Errno::ENOTDIR);
        }
        match name.as_slice() {
            b"." => continue,
            b".." => {
                here = here.parent();
                meta = nodes.lstat(&here)?;
                continue;
            }
            _ => {}
        }
        if name.len() > NAME_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        let next = here.child(&name);
        let next_meta = nodes.lstat(&next)?;
        if next_meta.kind == Kind::Link && (follow || !pending.is_empty() || must_be_directory) {
            links += 1;
            if links > MAX_LINKS {
                return Err(Errno::ELOOP);
            }
            let target = nodes.read_link(&next)?;
            if target.is_empty() {
                return Err(Errno::ENOENT);
            }
            if target.len() >= PATH_MAX {
                return Err(Errno::ENAMETOOLONG);
            }
            if pending.is_empty() && target.ends_with(b"/") {
                must_be_directory = true;
            }
            if target.first() == Some(&b'/') {
                here = Location::root();
                meta = nodes.lstat(&here)?;
            }
            push_components(&mut pending, target.as_bstr());
            continue;
        }
        here = next;
        meta = next_meta;
    }
    if must_be_directory && meta.kind != Kind::Directory {
        return Err(Errno::ENOTDIR);
    }
    Ok((here, meta))
}

fn push_components(pending: &mut Vec<BString>, path: &BStr) {
    pending.extend(path.rsplit(|b| *b == b'/').filter(|part| !part.is_empty()).map(BString::from));
}
