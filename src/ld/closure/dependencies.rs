//! The breadth-first closure of needed libraries, with auxiliary ones and filtees.
//!
//! Follows `_dl_map_object_deps` (elf/dl-deps.c) of glibc.

use std::borrow::Cow;

use bstr::ByteSlice;

use super::{Closure, Mapped, Process};
use crate::elf::RequestTag;
use crate::ld::search::Conditions;
use crate::ld::tokens;
use crate::ld::{How, ImageId, LoadFailure, StepId};

/// More filtees than this that are moved to an earlier place stand in a circle.
const MAX_RETURNS: u32 = 10_000;
/// Most filtees that change their place.
const MAX_MOVES: usize = 1_000;

impl Process {
    /// `_dl_map_object_deps`: the breadth-first closure of some roots. Returns the list and the first failure.
    ///
    /// After a missing library the walk goes on, as `LD_TRACE_LOADED_OBJECTS` does, so that everything that is missing
    /// is known at once; a candidate that is fatal ends it.
    pub(super) fn map_dependencies(&mut self, step: StepId, roots: &[ImageId], dlopen: bool) -> Closure {
        struct Item {
            id: ImageId,
            done: bool,
        }
        let mut list: Vec<Item> = roots.iter().map(|id| Item { id: *id, done: false }).collect();
        // By image: true for what is in the list.
        let mut reserved = vec![false; self.images.len()];
        for id in roots {
            reserved[id.index()] = true;
        }
        let mut first_failure: Option<LoadFailure> = None;
        // Who led the list when the first one failed: the loader goes no further.
        let mut leader = None;
        let mut at = 0;
        // How often a filtee that was in the list already came back in front of its filter: in a circle of filters that has
        // no end, and each time takes some of the loader's stack.
        let mut returns = 0;
        'walk: while at < list.len() {
            list[at].done = true;
            let me = list[at].id;
            let mut position = at;
            let object = self.images[me.index()].object.clone();
            let requests = object.facts().map(|f| f.requests.as_slice()).unwrap_or_default();
            let mut needs = Vec::with_capacity(requests.len());
            let known = self.images[me.index()].needs.len() == requests.len();
            for (index, request) in requests.iter().enumerate() {
                let how = match request.tag {
                    RequestTag::Needed => How::Needed,
                    RequestTag::Auxiliary => How::Auxiliary,
                    RequestTag::Filter => How::Filter,
                };
                let answer = if known && self.is_loaded(self.images[me.index()].needs[index]) {
                    // Answered before; a loaded name keeps its answer.
                    Ok(Some(self.images[me.index()].needs[index]))
                } else {
                    self.need(step, me, request, how, index as u32)
                };
                let id = match answer {
                    Ok(Some(id)) => id,
                    Ok(None) => continue,
                    Err(failure) => {
                        if self.budget.is_spent() {
                            first_failure.get_or_insert(failure);
                            break 'walk;
                        }
                        let first = list[0].id;
                        if how == How::Auxiliary
                            && !failure.is_the_end()
                            && !failure.text.starts_with(b"empty dynamic")
                            && !failure.text.starts_with(b"DST not")
                        {
                            continue;
                        }
                        let missing = failure.text.as_slice() == b"cannot open shared object file"
                            || failure.text.starts_with(b"wrong ELF class");
                        first_failure.get_or_insert(failure);
                        leader.get_or_insert(first);
                        if missing {
                            continue;
                        }
                        break 'walk;
                    }
                };
                needs.push(id);
                reserved.resize(self.images.len(), false);
                let is_new = !std::mem::replace(&mut reserved[id.index()], true);
                if how != How::Needed {
                    self.budget.take(list.len() as u64 / 16, 0);
                }
                if how == How::Needed {
                    if is_new {
                        list.push(Item { id, done: false });
                    }
                } else if is_new {
                    list.insert(position, Item { id, done: false });
                    position += 1;
                    self.note_move(id, me, dlopen && first_failure.is_none());
                } else if let Some(later) = list[position + 1..].iter().position(|i| i.id == id) {
                    returns += 1;
                    if returns > MAX_RETURNS {
                        let why = "libraries that are filters of each other use up the stack";
                        let label = self.images[me.index()].name.as_bstr();
                        first_failure.get_or_insert(LoadFailure::killed(label, "SIGSEGV", why));
                        break 'walk;
                    }
                    list.remove(position + 1 + later);
                    list.insert(position, Item { id, done: false });
                    position += 1;
                    self.note_move(id, me, dlopen && first_failure.is_none());
                }
            }
            self.images[me.index()].needs = needs;
            while list.get(at).is_some_and(|i| i.done) {
                at += 1;
            }
        }
        let list: Vec<ImageId> = list.into_iter().map(|i| i.id).collect();
        Closure { leader: leader.unwrap_or(list[0]), list, failure: first_failure }
    }

    /// A filtee takes its place in front of its filter in the loader's list too. At a start that list is the search list.
    fn note_move(&mut self, filtee: ImageId, filter: ImageId, dlopen: bool) {
        if dlopen && filtee != filter && self.moved.len() < MAX_MOVES {
            self.moved.push((filtee, filter));
        }
    }

    /// One NEEDED, AUXILIARY or FILTER entry: tokens are expanded before anything else (rules R1.4, R1.6, R9.4).
    fn need(
        &mut self,
        step: StepId,
        me: ImageId,
        request: &crate::elf::Request,
        how: How,
        index: u32,
    ) -> Result<Option<ImageId>, LoadFailure> {
        let written = request.name.as_bstr();
        if !request.mapped {
            let why = "an entry of its dynamic array points at memory that is not there";
            return Err(LoadFailure::killed(self.images[me.index()].name.as_bstr(), "SIGSEGV", why));
        }
        let mut name = Cow::Borrowed(written);
        if tokens::count(written) > 0 {
            if self.host().secure {
                return Err(LoadFailure::new(written.to_owned(), "DST not allowed in SUID/SGID programs", 0));
            }
            match tokens::expand(written, self.values(me), None).filter(|n| !n.is_empty()) {
                Some(expanded) => name = Cow::Owned(expanded),
                None if how == How::Auxiliary => {
                    return Err(LoadFailure::new(written.to_owned(), "empty dynamic string token substitution", 0));
                }
                None => return Ok(None),
            }
        }
        let requested = &mut self.images[me.index()].requested;
        let repeated = index < *requested;
        *requested = (*requested).max(index + 1);
        let before = self.decisions.len();
        let answer = self.request(step, name.as_ref(), Some(me), how, Conditions::default(), None);
        match answer {
            Mapped::Image(id, new) => {
                if repeated && !new && self.decisions.len() == before + 1 {
                    // The same image asking again gets the answer it got before: nothing new to tell.
                    self.decisions.pop();
                }
                Ok(Some(id))
            }
            Mapped::Failed(failure) => Err(failure),
        }
    }
}
