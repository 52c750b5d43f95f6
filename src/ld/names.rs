//! Which image answers to a name (`_dl_lookup_map`; rule R5.1)?
//!
//! Names come out of files, so that the hash must withstand names made to collide; for a handful of images comparing is
//! cheaper than any index.

use std::collections::HashMap;

use bstr::{BStr, BString};

use super::{Image, ImageId, Role};

/// Up to this many images are looked through one by one.
const FEW: usize = 24;

/// The names of a process's images.
#[derive(Debug, Default)]
pub(crate) struct Names {
    /// Images that answer to a name, in load order: by a name of theirs (true) or only by their soname (false). Absent while
    /// there are few images.
    index: Option<HashMap<BString, Vec<(ImageId, bool)>>>,
    /// True when images answer to their soname (glibc).
    by_soname: bool,
}

impl Names {
    /// No names yet.
    pub(crate) fn new(by_soname: bool) -> Names {
        Names { index: None, by_soname }
    }

    /// Takes in the last image of a process.
    pub(crate) fn add_last(&mut self, images: &[Image]) {
        let from = match &self.index {
            Some(_) => images.len().saturating_sub(1),
            None if images.len() > FEW => 0,
            None => return,
        };
        let index = self.index.get_or_insert_default();
        for (n, image) in images.iter().enumerate().skip(from) {
            let id = ImageId(n as u32);
            // The main program has an empty l_name: it answers to its soname only (rule R5.4).
            if image.role != Role::Main {
                note(index, image.name.clone(), id, true);
            }
            for name in &image.names {
                note(index, name.clone(), id, true);
            }
            if let Some(soname) = image.soname().filter(|_| self.by_soname) {
                note(index, soname.to_owned(), id, false);
            }
        }
    }

    /// Takes in a name that an image has learnt.
    pub(crate) fn learn(&mut self, name: &BStr, id: ImageId) {
        if let Some(index) = &mut self.index {
            note(index, name.to_owned(), id, true);
        }
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

    fn answers(&self, images: &[Image], name: &BStr, soname_counts: bool) -> Option<(ImageId, bool)> {
        let is_loaded = |id: ImageId| images.get(id.index()).is_some_and(|i| i.unloaded_by.is_none());
        if let Some(index) = &self.index {
            return index.get(name)?.iter().copied().find(|(id, learnt)| (*learnt || soname_counts) && is_loaded(*id));
        }
        for (n, image) in images.iter().enumerate().filter(|(_, i)| i.unloaded_by.is_none()) {
            let own = image.role != Role::Main && image.name == name;
            if own || image.names.iter().any(|n| n == name) {
                return Some((ImageId(n as u32), true));
            }
            if soname_counts && self.by_soname && image.soname().is_some_and(|s| s == name) {
                return Some((ImageId(n as u32), false));
            }
        }
        None
    }
}

fn note(index: &mut HashMap<BString, Vec<(ImageId, bool)>>, name: BString, id: ImageId, learnt: bool) {
    let answering = index.entry(name).or_default();
    match answering.binary_search_by_key(&id, |(id, _)| *id) {
        Ok(at) => answering[at].1 |= learnt,
        Err(at) => answering.insert(at, (id, learnt)),
    }
}
