//! Which image answers to a name (`_dl_lookup_map`; rule R5.1)?
//!
//! Names come out of files, so that the hash must withstand names made to collide; for a handful of images comparing is
//! cheaper than any index.

use std::collections::HashMap;
use std::hash::Hasher;

use bstr::{BStr, BString, ByteSlice};
use rustc_hash::FxHasher;

use super::{Image, ImageId, Role};

/// Up to this many names are looked through one by one.
const FEW: usize = 96;

/// The names of a process's images.
#[derive(Debug, Default)]
pub(crate) struct Names {
    /// While there are few names: a hash of each, the image, and how it answers.
    few: Vec<(u32, ImageId, Kind)>,
    /// Afterwards: images that answer to a name, in load order, by a name of theirs (true) or only by their soname (false).
    index: Option<HashMap<BString, Vec<(ImageId, bool)>>>,
    /// True when images answer to their soname (glibc).
    by_soname: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// By its path or by a name that made it load or that it learnt.
    Name,
    Soname,
}

impl Names {
    /// No names yet.
    pub(crate) fn new(by_soname: bool) -> Names {
        Names { few: Vec::new(), index: None, by_soname }
    }

    /// Takes in the last image of a process.
    pub(crate) fn add_last(&mut self, images: &[Image]) {
        let Some(image) = images.last() else { return };
        let id = ImageId(images.len() as u32 - 1);
        for (name, kind) in self.names_of(image) {
            self.note(images, name, id, kind);
        }
    }

    /// Takes in a name that an image has learnt.
    pub(crate) fn learn(&mut self, images: &[Image], name: &BStr, id: ImageId) {
        self.note(images, name, id, Kind::Name);
    }

    /// The first loaded image that answers; true when it does by a name of its own or one that it learnt, false when only
    /// by its soname.
    pub(crate) fn find(&self, images: &[Image], name: &BStr) -> Option<(ImageId, bool)> {
        self.answers(images, name, true)
    }

    /// The first loaded image that answers by a name of its own or one that it learnt.
    pub(crate) fn find_learnt(&self, images: &[Image], name: &BStr) -> Option<ImageId> {
        self.answers(images, name, false).map(|(id, _)| id)
    }

    /// The names that an image answers to. The main program has an empty l_name: it answers to what it learnt and to its
    /// soname only (rule R5.4).
    fn names_of<'i>(&self, image: &'i Image) -> impl Iterator<Item = (&'i BStr, Kind)> + use<'i> {
        let own = (image.role != Role::Main).then(|| image.name.as_bstr());
        let learnt = image.names.iter().map(|n| n.as_bstr());
        let soname = image.soname().filter(|_| self.by_soname);
        own.into_iter().chain(learnt).map(|n| (n, Kind::Name)).chain(soname.map(|n| (n, Kind::Soname)))
    }

    fn note(&mut self, images: &[Image], name: &BStr, id: ImageId, kind: Kind) {
        if self.index.is_none() {
            if self.few.len() < FEW {
                self.few.push((hash(name), id, kind));
                return;
            }
            let mut index = HashMap::new();
            for (n, image) in images.iter().enumerate() {
                for (name, kind) in self.names_of(image) {
                    note(&mut index, name, ImageId(n as u32), kind);
                }
            }
            self.few = Vec::new();
            self.index = Some(index);
        }
        if let Some(index) = &mut self.index {
            note(index, name, id, kind);
        }
    }

    fn answers(&self, images: &[Image], name: &BStr, soname_counts: bool) -> Option<(ImageId, bool)> {
        let is_loaded = |id: ImageId| images.get(id.index()).is_some_and(|i| i.unloaded_by.is_none());
        if let Some(index) = &self.index {
            return index.get(name)?.iter().copied().find(|(id, learnt)| (*learnt || soname_counts) && is_loaded(*id));
        }
        let wanted = hash(name);
        let mut best: Option<(ImageId, bool)> = None;
        for (_, id, kind) in self.few.iter().filter(|(hash, ..)| *hash == wanted) {
            let learnt = *kind == Kind::Name;
            if (!learnt && !soname_counts) || best.is_some_and(|(b, l)| b < *id || (b == *id && (l || !learnt))) {
                continue;
            }
            let Some(image) = images.get(id.index()).filter(|i| i.unloaded_by.is_none()) else { continue };
            let answers = match kind {
                Kind::Name => (image.role != Role::Main && image.name == name) || image.names.iter().any(|n| n == name),
                Kind::Soname => image.soname().is_some_and(|s| s == name),
            };
            if answers {
                best = Some((*id, learnt));
            }
        }
        best
    }
}

fn hash(name: &BStr) -> u32 {
    let mut hasher = FxHasher::default();
    hasher.write(name);
    hasher.finish() as u32
}

fn note(index: &mut HashMap<BString, Vec<(ImageId, bool)>>, name: &BStr, id: ImageId, kind: Kind) {
    let answering = index.entry(name.to_owned()).or_default();
    let learnt = kind == Kind::Name;
    match answering.binary_search_by_key(&id, |(id, _)| *id) {
        Ok(at) => answering[at].1 |= learnt,
        Err(at) => answering.insert(at, (id, learnt)),
    }
}
