//! The only path walker: `..`, links inside the root, the loop limit, search permission.
//!
//! Follows the kernel's rules (`fs/namei.c`): a component is looked up only in a directory (`ENOTDIR` otherwise), at
//! most 40 links are followed in one walk (`ELOOP`), a component is at most 255 bytes and a path at most 4095 bytes
//! (`ENAMETOOLONG`), `..` at the root stays there, and a trailing slash asks for a directory.

use bstr::{BStr, BString, ByteSlice};

use super::{Errno, Kind, Meta};

/// What the walker asks of a backend. Permission to search a directory is part of `child`: `EACCES` when it may not be
/// searched.
pub trait Nodes {
    /// A place in the tree.
    type Node;

    /// The root directory.
    fn root(&self) -> Result<(Self::Node, Meta), Errno>;
    /// What a directory holds under a name, by `lstat`: a link is not followed.
    fn child(&self, directory: &Self::Node, name: &BStr) -> Result<(Self::Node, Meta), Errno>;
    /// Text of a link.
    fn read_link(&self, link: &Self::Node) -> Result<BString, Errno>;
}

/// Where a walk ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found<N> {
    /// An absolute path none of whose parents is a link.
    pub path: BString,
    /// The place.
    pub node: N,
    /// Its `lstat`.
    pub meta: Meta,
}

const MAX_LINKS: usize = 40;
const PATH_MAX: usize = 4096;
const NAME_MAX: usize = 255;

/// Resolves an absolute path. With `follow` a link in the last component is followed too (a trailing slash follows it
/// in any case).
pub fn resolve<F: Nodes + ?Sized>(nodes: &F, path: &BStr, follow: bool) -> Result<Found<F::Node>, Errno> {
    if path.is_empty() {
        return Err(Errno::ENOENT);
    }
    if path.len() >= PATH_MAX {
        return Err(Errno::ENAMETOOLONG);
    }
    if path.contains(&0) {
        return Err(Errno::EINVAL);
    }
    let (root, root_meta) = nodes.root()?;
    // The directories walked through, without the root, and the last component.
    let mut trail: Vec<(BString, F::Node, Meta)> = Vec::new();
    // Components still to walk, last one first.
    let mut pending: Vec<BString> = Vec::new();
    push_components(&mut pending, path);
    let mut must_be_directory = path.ends_with(b"/");
    let mut links = 0;
    while let Some(name) = pending.pop() {
        let (here, meta) = trail.last().map_or((&root, &root_meta), |(_, node, meta)| (node, meta));
        if meta.kind != Kind::Directory {
            return Err(Errno::ENOTDIR);
        }
        match name.as_slice() {
            b"." => continue,
            b".." => {
                trail.pop();
                continue;
            }
            _ => {}
        }
        if name.len() > NAME_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        let (next, next_meta) = nodes.child(here, name.as_bstr())?;
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
                trail.clear();
            }
            push_components(&mut pending, target.as_bstr());
            continue;
        }
        trail.push((name, next, next_meta));
    }
    let meta = trail.last().map_or(root_meta, |(_, _, meta)| *meta);
    if must_be_directory && meta.kind != Kind::Directory {
        return Err(Errno::ENOTDIR);
    }
    let mut path = BString::default();
    for (name, _, _) in &trail {
        path.push(b'/');
        path.extend_from_slice(name);
    }
    if path.is_empty() {
        path.push(b'/');
    }
    let node = trail.pop().map_or(root, |(_, node, _)| node);
    Ok(Found { path, node, meta })
}

fn push_components(pending: &mut Vec<BString>, path: &BStr) {
    pending.extend(path.rsplit(|b| *b == b'/').filter(|part| !part.is_empty()).map(BString::from));
}
