//! An in-memory tree of files: fixtures, and later archives and snapshots.
//!
//! Permission bits count as for an ordinary user who owns everything: a file without 0o400 cannot be read, a directory
//! without 0o100 cannot be searched.

use std::collections::BTreeMap;
use std::sync::Arc;

use bstr::{BStr, BString, ByteSlice};

use super::walk::{self, Nodes};
use super::{Entry, Errno, File, FileKey, Files, Kind, Meta};

/// An in-memory tree. Build it with `add_*`, then use it as [`Files`].
#[derive(Clone)]
pub struct Tree {
    nodes: Vec<Node>,
    root: usize,
}

#[derive(Clone)]
struct Node {
    mode: u32,
    what: What,
}

#[derive(Clone)]
enum What {
    Directory(BTreeMap<BString, usize>),
    File(Arc<[u8]>),
    Link(BString),
    /// Opening gives this error (for trying how a loader treats odd errors).
    Failing(Errno),
}

/// Device number of every file of a tree.
const DEVICE: u64 = 0x1da;

impl Default for Tree {
    fn default() -> Self {
        Tree::new()
    }
}

impl Tree {
    /// A tree with an empty root directory.
    pub fn new() -> Tree {
        Tree { nodes: vec![Node { mode: 0o755, what: What::Directory(BTreeMap::new()) }], root: 0 }
    }

    /// Adds a file (parents are made). An existing file of that name is replaced. Paths must not run through links.
    pub fn add_file(&mut self, path: impl AsRef<[u8]>, bytes: impl Into<Arc<[u8]>>) -> Result<(), Errno> {
        self.add(path.as_ref().as_bstr(), Node { mode: 0o644, what: What::File(bytes.into()) })
    }

    /// Adds a directory (parents are made); an existing one stays.
    pub fn add_directory(&mut self, path: impl AsRef<[u8]>) -> Result<(), Errno> {
        self.directory(path.as_ref().as_bstr()).map(|_| ())
    }

    /// Adds a symbolic link.
    pub fn add_link(&mut self, path: impl AsRef<[u8]>, target: impl AsRef<[u8]>) -> Result<(), Errno> {
        self.add(path.as_ref().as_bstr(), Node { mode: 0o777, what: What::Link(target.as_ref().into()) })
    }

    /// Adds a second name for an existing file: same inode. `EPERM` for a directory.
    pub fn add_hard_link(&mut self, path: impl AsRef<[u8]>, existing: impl AsRef<[u8]>) -> Result<(), Errno> {
        let found = walk::resolve(self, existing.as_ref().as_bstr(), false)?;
        if found.meta.kind == Kind::Directory {
            // As for the kernel: a directory below itself would have no end.
            return Err(Errno::EPERM);
        }
        self.insert(path.as_ref().as_bstr(), found.node)
    }

    /// Adds a thing whose opening fails with an error number.
    pub fn add_failing(&mut self, path: impl AsRef<[u8]>, errno: Errno) -> Result<(), Errno> {
        self.add(path.as_ref().as_bstr(), Node { mode: 0o644, what: What::Failing(errno) })
    }

    /// Sets the permission bits of an existing node (links are not followed).
    pub fn set_mode(&mut self, path: impl AsRef<[u8]>, mode: u32) -> Result<(), Errno> {
        // Looked up without permission checks: an unreadable parent must not stop the builder.
        let index = self.find(super::normalised(path.as_ref().as_bstr()).as_bstr())?;
        self.nodes[index].mode = mode & 0o7777;
        Ok(())
    }

    /// Removes a name; what it named stays reachable by other names only.
    pub fn remove(&mut self, path: impl AsRef<[u8]>) -> Result<(), Errno> {
        let path = super::normalised(path.as_ref().as_bstr());
        let parent = self.find(super::parent(path.as_bstr()))?;
        match &mut self.nodes[parent].what {
            What::Directory(names) => names.remove(super::file_name(path.as_bstr())).map(|_| ()).ok_or(Errno::ENOENT),
            _ => Err(Errno::ENOTDIR),
        }
    }

    fn add(&mut self, path: &BStr, node: Node) -> Result<(), Errno> {
        self.nodes.push(node);
        let index = self.nodes.len() - 1;
        self.insert(path, index)
    }

    fn insert(&mut self, path: &BStr, index: usize) -> Result<(), Errno> {
        let path = super::normalised(path);
        let parent = self.directory(super::parent(path.as_bstr()))?;
        let name = super::file_name(path.as_bstr()).to_owned();
        if name.is_empty() {
            return Err(Errno::EISDIR);
        }
        match &mut self.nodes[parent].what {
            What::Directory(names) => {
                names.insert(name, index);
                Ok(())
            }
            _ => Err(Errno::ENOTDIR),
        }
    }

    fn directory(&mut self, path: &BStr) -> Result<usize, Errno> {
        let path = super::normalised(path);
        let mut here = self.root;
        for part in path.split_str("/").filter(|p| !p.is_empty()) {
            let existing = match &self.nodes[here].what {
                What::Directory(names) => names.get(part.as_bstr()).copied(),
                _ => return Err(Errno::ENOTDIR),
            };
            here = match existing {
                Some(index) => index,
                None => {
                    self.nodes.push(Node { mode: 0o755, what: What::Directory(BTreeMap::new()) });
                    let index = self.nodes.len() - 1;
                    if let What::Directory(names) = &mut self.nodes[here].what {
                        names.insert(part.into(), index);
                    }
                    index
                }
            };
        }
        match self.nodes[here].what {
            What::Directory(_) => Ok(here),
            _ => Err(Errno::ENOTDIR),
        }
    }

    fn find(&self, location: &BStr) -> Result<usize, Errno> {
        let mut here = self.root;
        for part in location.split_str("/").filter(|p| !p.is_empty()) {
            match &self.nodes[here].what {
                What::Directory(names) => here = *names.get(part.as_bstr()).ok_or(Errno::ENOENT)?,
                _ => return Err(Errno::ENOTDIR),
            }
        }
        Ok(here)
    }

    fn meta(&self, index: usize) -> Meta {
        let node = &self.nodes[index];
        let (kind, size) = match &node.what {
            What::Directory(_) => (Kind::Directory, 0),
            What::File(bytes) => (Kind::File, bytes.len() as u64),
            What::Link(target) => (Kind::Link, target.len() as u64),
            What::Failing(_) => (Kind::Other, 0),
        };
        Meta { key: FileKey { device: DEVICE, inode: index as u64 + 2 }, kind, size, mode: node.mode }
    }
}

impl Nodes for Tree {
    type Node = usize;

    fn root(&self) -> Result<(usize, Meta), Errno> {
        Ok((self.root, self.meta(self.root)))
    }

    fn child(&self, directory: &usize, name: &BStr) -> Result<(usize, Meta), Errno> {
        let node = &self.nodes[*directory];
        match &node.what {
            What::Directory(_) if node.mode & 0o100 == 0 => Err(Errno::EACCES),
            What::Directory(names) => {
                let index = *names.get(name).ok_or(Errno::ENOENT)?;
                Ok((index, self.meta(index)))
            }
            _ => Err(Errno::ENOTDIR),
        }
    }

    fn read_link(&self, link: &usize) -> Result<BString, Errno> {
        match &self.nodes[*link].what {
            What::Link(target) => Ok(target.clone()),
            _ => Err(Errno::EINVAL),
        }
    }
}

impl Files for Tree {
    fn open(&self, path: &BStr) -> Result<File, Errno> {
        let found = walk::resolve(self, path, true)?;
        let node = &self.nodes[found.node];
        if let What::Failing(errno) = node.what {
            return Err(errno);
        }
        if node.mode & 0o400 == 0 {
            return Err(Errno::EACCES);
        }
        Ok(match &node.what {
            What::File(bytes) => File::from_memory(found.meta, bytes.clone()),
            _ => File::not_readable(found.meta, Errno::EISDIR),
        })
    }

    fn stat(&self, path: &BStr) -> Result<Meta, Errno> {
        Ok(walk::resolve(self, path, true)?.meta)
    }

    fn may_run(&self, path: &BStr) -> Result<(), Errno> {
        let meta = self.stat(path)?;
        if meta.kind == Kind::File && meta.mode & 0o100 != 0 { Ok(()) } else { Err(Errno::EACCES) }
    }

    fn lstat(&self, path: &BStr) -> Result<Meta, Errno> {
        Ok(walk::resolve(self, path, false)?.meta)
    }

    fn read_link(&self, path: &BStr) -> Result<BString, Errno> {
        Nodes::read_link(self, &walk::resolve(self, path, false)?.node)
    }

    fn list(&self, path: &BStr) -> Result<Vec<Entry>, Errno> {
        let node = &self.nodes[walk::resolve(self, path, true)?.node];
        match &node.what {
            What::Directory(_) if node.mode & 0o400 == 0 => Err(Errno::EACCES),
            What::Directory(names) => Ok(names
                .iter()
                .map(|(name, index)| Entry { name: name.clone(), kind: self.meta(*index).kind })
                .collect()),
            _ => Err(Errno::ENOTDIR),
        }
    }

    fn real_path(&self, path: &BStr) -> Result<BString, Errno> {
        Ok(walk::resolve(self, path, true)?.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_modes_and_errors_follow_the_kernel() {
        let mut t = Tree::new();
        t.add_file("/a/x", *b"x").expect("add");
        t.add_link("/l", "a").expect("add");
        t.add_link("/dangling", "/nowhere").expect("add");
        t.add_link("/self", "self").expect("add");
        t.add_hard_link("/hard", "/a/x").expect("add");
        assert_eq!(t.open("/l/x".into()).expect("open").read_all(10).expect("read"), b"x");
        assert_eq!(t.real_path("/l/../l/x".into()).expect("real"), "/a/x");
        assert_eq!(t.stat("/hard".into()).expect("stat").key, t.stat("/a/x".into()).expect("stat").key);
        assert_eq!(t.open("/dangling".into()).err(), Some(Errno::ENOENT));
        assert_eq!(t.open("/self".into()).err(), Some(Errno::ELOOP));
        assert_eq!(t.open("/a/x/".into()).err(), Some(Errno::ENOTDIR));
        assert_eq!(t.open("/a/x/y".into()).err(), Some(Errno::ENOTDIR));
        let long = format!("/{}", "n".repeat(256));
        assert_eq!(t.open(long.as_str().into()).err(), Some(Errno::ENAMETOOLONG));
        assert_eq!(t.open("/a".into()).expect("a directory opens").read_at(0, &mut [0; 4]), Err(Errno::EISDIR));
        t.set_mode("/a/x", 0).expect("mode");
        assert_eq!(t.open("/a/x".into()).err(), Some(Errno::EACCES));
        t.set_mode("/a", 0o600).expect("mode");
        assert_eq!(t.stat("/a/x".into()).err(), Some(Errno::EACCES));
    }
}
