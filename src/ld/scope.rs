//! Where a reference is looked up: the ordered lists of images (rules R6.4 to R6.10; `_dl_new_object`,
//! `_dl_map_object_from_fd` and `update_scopes` of glibc).

use super::{ImageId, OpenFlags, Process};

/// One list of a lookup scope.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ScopePart {
    /// The image alone: it was linked with `-Bsymbolic`.
    Itself(ImageId),
    /// The global scope: the program's search list, then what `RTLD_GLOBAL` added.
    Global,
    /// The search list of an image: itself and its dependencies, breadth first.
    SearchList(ImageId),
}

impl Process {
    /// The scope of a new image. `loader` is the image whose request caused the load.
    pub(crate) fn new_scope(&self, id: ImageId, loader: Option<ImageId>, flags: OpenFlags) -> Vec<ScopePart> {
        let mut top = loader.unwrap_or(id);
        while let Some(above) = self.images.get(top.index()).and_then(|i| i.loader) {
            top = above;
        }
        let mut scope = vec![ScopePart::Global];
        if top != ImageId(0) {
            scope.push(ScopePart::SearchList(top));
            if flags.deep_bind {
                scope.reverse();
            }
        }
        scope
    }

    /// The images of one list, in order.
    pub fn scope_list<'a>(&'a self, part: &'a ScopePart) -> &'a [ImageId] {
        match part {
            ScopePart::Itself(id) => std::slice::from_ref(id),
            ScopePart::Global => &self.global,
            ScopePart::SearchList(id) => self.images.get(id.index()).map_or(&[], |image| image.search_list.as_slice()),
        }
    }

    /// Adds the search list of what was opened to images of it that an earlier `dlopen` loaded: it counts for what they
    /// bind from now on (`update_scopes`, elf/dl-open.c; rule R6.8).
    pub(crate) fn extend_scopes(&mut self, opened: ImageId) {
        let list = self.images[opened.index()].search_list.clone();
        for member in list {
            let image = &self.images[member.index()];
            let was_opened_before = image.is_relocated && !self.startup_order.contains(&member);
            let part = ScopePart::SearchList(opened);
            if was_opened_before && !image.scope.contains(&part) && image.scope.len() < MAX_SCOPE {
                self.images[member.index()].scope.push(part);
            }
        }
    }
}

/// Most lists of one scope. Each `dlopen` that needs an image adds one.
const MAX_SCOPE: usize = 4096;
