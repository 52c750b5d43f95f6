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
    // The path walked so far, and for each component of it where it begins there.
    let mut walked = BString::default();
    let mut trail: Vec<(usize, F::Node, Meta)> = Vec::new();
    // Texts still to walk, the innermost link's last, each with how far it was walked.
    let mut pending: Vec<(BString, usize)> = vec![(path.to_owned(), 0)];
    let mut must_be_directory = path.ends_with(b"/");
    let mut links = 0;
    while let Some(name) = next_component(&mut pending) {
        let (here, meta) = trail.last().map_or((&root, &root_meta), |(_, node, meta)| (node, meta));
        if meta.kind != Kind::Directory {
            return Err(Errno::ENOTDIR);
        }
        let text = &pending[name.0].0[name.1.clone()];
        match text {
            b"." => continue,
            b".." => {
                if let Some((begin, _, _)) = trail.pop() {
                    walked.truncate(begin);
                }
                continue;
            }
            _ => {}
        }
        if text.len() > NAME_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        let (next, next_meta) = nodes.child(here, text.as_bstr())?;
        let is_last = is_walked(&pending);
        if next_meta.kind == Kind::Link && (follow || !is_last || must_be_directory) {
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
            if is_last && target.ends_with(b"/") {
                must_be_directory = true;
            }
            if target.first() == Some(&b'/') {
                trail.clear();
                walked.clear();
            }
            pending.push((target, 0));
            continue;
        }
        trail.push((walked.len(), next, next_meta));
        walked.push(b'/');
        walked.extend_from_slice(text);
    }
    let meta = trail.last().map_or(root_meta, |(_, _, meta)| *meta);
    if must_be_directory && meta.kind != Kind::Directory {
        return Err(Errno::ENOTDIR);
    }
    if walked.is_empty() {
        walked.push(b'/');
    }
    let node = trail.pop().map_or(root, |(_, node, _)| node);
    Ok(Found { path: walked, node, meta })
}

/// The next component: in which text, and where. Texts that are walked are put away.
fn next_component(pending: &mut Vec<(BString, usize)>) -> Option<(usize, std::ops::Range<usize>)> {
    while let Some((text, at)) = pending.last_mut() {
        while text.get(*at) == Some(&b'/') {
            *at += 1;
        }
        let begin = *at;
        let end = text[begin..].find_byte(b'/').map_or(text.len(), |i| begin + i);
        if begin < end {
            *at = end;
            return Some((pending.len() - 1, begin..end));
        }
        pending.pop();
    }
    None
}

/// True when nothing but slashes is left to walk.
fn is_walked(pending: &[(BString, usize)]) -> bool {
    pending.iter().all(|(text, at)| text[*at..].iter().all(|b| *b == b'/'))
}
