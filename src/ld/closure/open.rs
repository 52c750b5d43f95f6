//! `dlopen` steps under glibc, and what a failed one takes back.
//!
//! Follows `dl_open_worker_begin` and `_dl_open` (elf/dl-open.c) and `_dl_close_worker` (elf/dl-close.c) of glibc.

use bstr::ByteSlice;

use super::{Closure, Mapped, OpenRequest, Process};
use crate::ld::budget::Budget;
use crate::ld::search::Conditions;
use crate::ld::{How, ImageId, LoadFailure, Outcome, Role, ScopePart, StepId};
use crate::system::Errno;

impl Process {
    pub(super) fn dlopen_glibc(&mut self, step: StepId, request: &OpenRequest, caller: Option<ImageId>) {
        // A running program's errno is unknown; 0 leaves no tail behind a message that no failed call precedes.
        self.errno = Errno(0);
        if request.name.is_empty() && !self.images.is_empty() {
            self.steps[step.index()].image = Some(ImageId(0));
            self.steps[step.index()].outcome = Outcome::AlreadyLoaded;
            return;
        }
        let images_before = self.images.len();
        let decisions_before = self.decisions.len();
        // The caller counts only for a bare name or one with a token (dl_open_worker_begin).
        let bare = !request.name.contains(&b'/') || request.name.contains(&b'$');
        let requester = if bare { caller } else { None };
        let id = match self.request(step, request.name.as_bstr(), requester, How::Dlopen, Conditions::default(), None) {
            Mapped::Image(id, _) => id,
            Mapped::Failed(failure) => {
                let text = failure.dlerror();
                if let Some(last) = self.decisions.get_mut(decisions_before..).and_then(<[_]>::last_mut) {
                    last.needed_by = caller;
                }
                self.fail_step(step, failure, text);
                return;
            }
        };
        if !bare && let Some(last) = self.decisions.get_mut(decisions_before..).and_then(<[_]>::last_mut) {
            last.needed_by = caller;
        }
        self.steps[step.index()].image = Some(id);
        let is_new = id.index() >= images_before;
        if request.flags.no_load && is_new {
            self.unload(images_before, step);
            self.steps[step.index()].outcome = Outcome::Failed;
            return;
        }
        if !is_new {
            self.steps[step.index()].outcome = Outcome::AlreadyLoaded;
        }
        if self.images[id.index()].search_list.is_empty() {
            let Closure { list, failure, leader } = self.map_dependencies(step, &[id], true);
            let failure = failure.or_else(|| self.gave_up().then(|| Budget::failure(request.name.as_bstr())));
            let is_displaced = leader != id && self.dialect.checks_list_at_start();
            let goes_first = |f: &LoadFailure| f.is_the_end() || self.gave_up() || !is_displaced;
            if let Some(failure) = failure.filter(goes_first) {
                let text = failure.dlerror();
                self.fail_step(step, failure, text);
                self.unload(images_before, step);
                return;
            }
            if is_displaced {
                // The object's own filtee is in front of it (rule R6.3). The list is looked at before it is told which
                // dependency could not be loaded (`out:` in _dl_map_object_deps, elf/dl-deps.c).
                let failure = LoadFailure::new("", self.dialect.displaced_program_message(), 0);
                let text = failure.text.clone();
                self.fail_step(step, failure, text);
                self.unload(images_before, step);
                return;
            }
            let outcome = self.check_versions(&list, false, b"".as_bstr());
            if let Some(failure) = outcome.fatal.or_else(|| outcome.missing.into_iter().next()) {
                let text = if failure.is_assertion() { failure.text.clone() } else { failure.dlerror() };
                self.fail_step(step, failure, text);
                self.unload(images_before, step);
                return;
            }
            self.images[id.index()].search_list = list;
            self.extend_scopes(id);
            if let Some(failure) = self.relocate_opened(step, id, request.flags) {
                let text = if failure.object.is_empty() { failure.text.clone() } else { failure.dlerror() };
                self.fail_step(step, failure, text);
                self.unload(images_before, step);
                return;
            }
            self.retry_late_lookups();
        }
        if request.flags.global {
            self.promote(id);
            self.retry_late_lookups();
        }
    }

    /// RTLD_GLOBAL: the whole search list joins the global scope in order (rule R6.9).
    pub(crate) fn promote(&mut self, id: ImageId) {
        for member in self.images[id.index()].search_list.clone() {
            let image = &mut self.images[member.index()];
            if !image.global {
                image.global = true;
                self.global.push(member);
            }
        }
    }

    /// Unloads what a failed step loaded. Names that loaded images learnt meanwhile stay, as in the loader.
    pub(crate) fn unload(&mut self, from: usize, step: StepId) {
        self.release_static_tls(from);
        if !self.moved.is_empty() {
            // What was moved stays where it is, also when what it was moved for goes.
            let mut order = self.load_order();
            let stays = |id: &ImageId| self.image(*id).role != Role::Loader || self.startup_order.contains(id);
            order.retain(|id| id.index() < from && stays(id));
            self.base_order = order;
            self.moved.clear();
        }
        for image in &mut self.images[from..] {
            image.unloaded_by = Some(step);
            image.global = false;
        }
        self.global.retain(|id| id.index() < from);
        for image in &mut self.images[..from] {
            image.scope.retain(|part| !matches!(part, ScopePart::SearchList(id) if id.index() >= from));
        }
        let images = &self.images;
        self.unique.retain(|_, (id, _)| id.index() < from);
        self.by_key.retain(|_, id| images[id.index()].unloaded_by.is_none());
    }

    /// Unloads an image, as the last `dlclose` does, or as the loader does when a later stage of a `dlopen` fails that
    /// this model does not take part in. The step given is the one during which that happened.
    pub fn close(&mut self, id: ImageId, step: StepId) {
        self.release_static_tls_of(id);
        if let Some(image) = self.images.get_mut(id.index()) {
            image.unloaded_by = Some(step);
            image.global = false;
        }
        self.global.retain(|member| *member != id);
        let images = &self.images;
        self.by_key.retain(|_, id| images[id.index()].unloaded_by.is_none());
        for image in &mut self.images {
            // What needed it has to ask again.
            if image.needs.contains(&id) {
                image.needs.clear();
            }
            if image.search_list.contains(&id) {
                image.search_list.clear();
            }
        }
    }
}
