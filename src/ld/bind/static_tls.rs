//! The static area for thread-local storage: what it holds at the start, and who of those that come later still fits
//! (rule R6.31).
//!
//! Follows `_dl_tls_static_surplus_init` and `_dl_determine_tlsoffset` (elf/dl-tls.c), `_dl_try_allocate_static_tls`
//! (elf/dl-reloc.c) and `_dl_close_worker` (elf/dl-close.c) of glibc. musl has no room to spare: what comes later never
//! lies there (`do_relocs`, ldso/dynlink.c).
//!
//! What a running program opens besides the simulated steps takes room too, so that a failure told here is certain, while
//! a fit is one only as far as the steps go.

use bstr::ByteSlice;
use rustc_hash::FxHashMap;

use super::lookup::{Answer, Lookup};
use crate::elf::ThreadLocal;
use crate::elf::references::{Class, Reference, Relocator, StaticUse};
use crate::ld::dialect::{Dialect, machine};
use crate::ld::{Image, ImageId, LoadFailure, Process, Role, StepId, concat, tunables};
use crate::system::Host;

/// A block that `dlopen` put into the static area.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Taken {
    /// Whose block it is.
    pub image: ImageId,
    /// The step during which it was put there.
    pub step: StepId,
    /// Bytes of the room that it takes, those for its alignment counted.
    pub bytes: u64,
}

/// A block that did not fit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refused {
    /// Whose block it is.
    pub image: ImageId,
    /// The image with the relocation that wants it there.
    pub by: ImageId,
    /// The step that failed for it.
    pub step: StepId,
    /// Its size in bytes.
    pub size: u64,
    /// Its alignment.
    pub align: u64,
    /// Bytes that were left.
    pub free: u64,
}

/// The static area of a glibc process after its start.
#[derive(Clone, Debug)]
pub struct StaticTls {
    /// Blocks lie below the thread pointer, the later ones lower (`TLS_TCB_AT_TP`).
    below: bool,
    /// Where the area ends.
    size: u64,
    /// Up to where it is used.
    used: u64,
    /// The strictest alignment that it can give.
    align: u64,
    /// Bytes that descriptors may still take (since 2.32).
    optional: Option<u64>,
    /// What it was at first.
    set_aside: u64,
    /// Start and end of each block.
    blocks: FxHashMap<ImageId, (u64, u64)>,
    /// Bytes that were free after the start.
    pub room: u64,
    /// What `dlopen` put there and what is loaded still.
    pub taken: Vec<Taken>,
    /// What did not fit.
    pub refused: Vec<Refused>,
}

/// Alignment of the thread control block (`TCB_ALIGNMENT`).
const CONTROL_ALIGN: u64 = 64;
/// Room for thread-local data of a C library in a further namespace (`LIBC_IE_TLS`), of other libraries
/// (`OTHER_IE_TLS`), and what is added so that the defaults give the historic 1664 bytes (`LEGACY_TLS`).
const SHARES: (u64, u64, u64) = (144, 144, 144);
/// The same in older releases that took the tunables over.
const OLD_SHARES: (u64, u64, u64) = (192, 144, 0);
/// Namespaces, and bytes for descriptors, when no tunable says otherwise.
const NAMESPACES: u64 = 4;
const OPTIONAL: u64 = 512;
/// Most namespaces (`DL_NNS`).
const MAX_NAMESPACES: u64 = 16;
/// Size and alignment of the area for restartable sequences, which 2.41 and later keep behind the blocks of the start. A
/// kernel that knows more of them than today's can ask for more.
const RESTARTABLE: u64 = 32;

/// Spare bytes of the static area (`_dl_tls_static_surplus_init`), and how many of them descriptors may take.
fn surplus(dialect: &Dialect, host: &Host) -> (u64, Option<u64>) {
    if !dialect.has_static_tls_tunables() {
        return (64 + MAX_NAMESPACES * 100, None);
    }
    let namespaces = tunables::number(dialect, host, b"glibc.rtld.nns").filter(|n| (1..=MAX_NAMESPACES).contains(n));
    let namespaces = namespaces.unwrap_or(NAMESPACES);
    let optional = tunables::number(dialect, host, b"glibc.rtld.optional_static_tls").unwrap_or(OPTIONAL);
    let (libc, others, legacy) = if dialect.version >= (2, 32, 0) { SHARES } else { OLD_SHARES };
    let fixed = (namespaces - 1) * libc + namespaces * others + legacy;
    (fixed.saturating_add(optional), Some(optional))
}

fn round_up(value: u64, to: u64) -> u64 {
    value.checked_next_multiple_of(to.max(1)).unwrap_or(u64::MAX)
}

impl StaticTls {
    /// The area as `_dl_determine_tlsoffset` lays it out; `blocks` in load order. `None` where it is not known: an audit
    /// module makes it larger.
    fn at_start(
        dialect: &Dialect,
        host: &Host,
        blocks: impl Iterator<Item = (ImageId, ThreadLocal)>,
    ) -> Option<StaticTls> {
        if !host.secure && host.env.get("LD_AUDIT").is_some_and(|v| !v.is_empty()) {
            return None;
        }
        let below = matches!(dialect.machine, machine::X86_64 | machine::I386 | machine::S390);
        let (surplus, optional) = surplus(dialect, host);
        let mut out = StaticTls {
            below,
            size: 0,
            used: if below { 0 } else { 16 },
            align: CONTROL_ALIGN,
            optional,
            set_aside: optional.unwrap_or(0),
            blocks: FxHashMap::default(),
            room: 0,
            taken: Vec::new(),
            refused: Vec::new(),
        };
        // A gap that alignment left, which a later block may fill.
        let mut gap = (0, 0);
        for (image, block) in blocks {
            out.align = out.align.max(block.align);
            let place = if below { out.below(block, &mut gap) } else { out.above(block, &mut gap) };
            out.blocks.insert(image, place);
        }
        if dialect.keeps_restartable_sequences_behind() {
            out.used = round_up(out.used, RESTARTABLE).saturating_add(RESTARTABLE);
        }
        let end = out.used.saturating_add(surplus);
        out.size = round_up(end, if below { out.align } else { CONTROL_ALIGN });
        out.room = out.size - out.used;
        Some(out)
    }

    /// One block of the start below the thread pointer: the text of the loader's loop.
    fn below(&mut self, block: ThreadLocal, gap: &mut (u64, u64)) -> (u64, u64) {
        let align = block.align.max(1);
        let first = block.first_byte.wrapping_neg() & (align - 1);
        let end =
            |from: u64| round_up(from.saturating_add(block.size).saturating_sub(first), align).saturating_add(first);
        let (top, bottom) = *gap;
        if bottom - top >= block.size {
            let end = end(top);
            if end <= bottom {
                gap.0 = end;
                return (end.saturating_sub(block.size), end);
            }
        }
        let end = end(self.used);
        if end > self.used.saturating_add(block.size).saturating_add(bottom - top) {
            *gap = (self.used, end.saturating_sub(block.size));
        }
        self.used = end;
        (end.saturating_sub(block.size), end)
    }

    /// One block of the start above the thread pointer.
    fn above(&mut self, block: ThreadLocal, gap: &mut (u64, u64)) -> (u64, u64) {
        let align = block.align.max(1);
        let first = block.first_byte.wrapping_neg() & (align - 1);
        let place = |from: u64| {
            let at = round_up(from, align);
            if at.saturating_sub(from) < first { at.saturating_add(align) } else { at }
        };
        let end = |at: u64| at.saturating_add(block.size).saturating_sub(first);
        let (bottom, top) = *gap;
        if block.size <= top - bottom {
            let at = place(bottom);
            if end(at) <= top {
                gap.0 = end(at);
                return (at - first, end(at));
            }
        }
        let at = place(self.used);
        if (at - first).saturating_sub(self.used) > top - bottom {
            *gap = (self.used, at - first);
        }
        self.used = end(at);
        (at - first, end(at))
    }

    /// Bytes that are left.
    pub fn free(&self) -> u64 {
        self.size.saturating_sub(self.used)
    }

    /// The strictest alignment that a block in it can have.
    pub fn align(&self) -> u64 {
        self.align
    }

    /// Bytes that are set aside for descriptors (`glibc.rtld.optional_static_tls`); 0 where no tunable sets them.
    pub fn optional_room(&self) -> u64 {
        self.set_aside
    }

    /// Bytes that `dlopen` took of the room.
    pub fn gone(&self) -> u64 {
        self.room.saturating_sub(self.free())
    }

    /// `_dl_try_allocate_static_tls`. False when the block does not fit.
    fn place(&mut self, image: ImageId, step: StepId, block: ThreadLocal, is_optional: bool) -> bool {
        let align = block.align.max(1);
        if align > self.align {
            return false;
        }
        let free = self.free();
        let (bytes, place) = if self.below {
            let Some(spare) = block.size.checked_add(block.first_byte).and_then(|n| free.checked_sub(n)) else {
                return false;
            };
            let bytes = free - spare / align * align - block.first_byte;
            let end = self.used + bytes;
            (bytes, (end - block.size, end))
        } else {
            let at = round_up(self.used.saturating_sub(block.first_byte), align).saturating_add(block.first_byte);
            let end = at.saturating_add(block.size);
            if end > self.size {
                return false;
            }
            (end - self.used, (self.used, end))
        };
        if is_optional && let Some(left) = &mut self.optional {
            match left.checked_sub(bytes) {
                Some(rest) => *left = rest,
                None => return false,
            }
        }
        self.used = place.1;
        self.blocks.insert(image, place);
        self.taken.push(Taken { image, step, bytes });
        true
    }

    /// What `_dl_close_worker` gets back of the blocks of images that go, in the order in which it comes to them: only
    /// what lies in one piece at the end.
    fn release(&mut self, images: impl Iterator<Item = ImageId>) {
        let mut piece: Option<(u64, u64)> = None;
        for image in images {
            let Some(block) = self.blocks.remove(&image) else { continue };
            self.taken.retain(|t| t.image != image);
            piece = Some(match piece {
                None => block,
                Some((start, end)) if block.1 == start => (block.0, end),
                Some((start, end)) if block.0 == end => (start, block.1),
                Some((start, end)) if end == self.used => {
                    self.used = start;
                    block
                }
                Some(piece) if block.1 == self.used => {
                    self.used = block.0;
                    piece
                }
                Some((_, end)) if end < block.1 => block,
                Some(piece) => piece,
            });
        }
        if let Some((start, _)) = piece.filter(|(_, end)| *end == self.used) {
            self.used = start;
        }
    }
}

impl Process {
    /// The static area for thread-local storage, once a glibc process has started; `None` where it is not known.
    pub fn static_tls(&self) -> Option<&StaticTls> {
        self.static_tls.as_ref()
    }

    /// Lays out the static area for what is there at the start.
    pub(crate) fn lay_out_static_tls(&mut self) {
        let block = |id: ImageId| Some((id, self.image(id).facts()?.tls?));
        let order = self.load_order();
        self.static_tls = StaticTls::at_start(self.dialect(), self.host(), order.into_iter().filter_map(block));
    }

    /// Puts the blocks into the static area that relocations of an image want there, in their order. Returns the first
    /// one that does not fit: the failure, and before which of
    /// [`References::every`] the load ends.
    ///
    /// [`References::every`]: crate::elf::references::References::every
    pub(crate) fn place_static_tls(&mut self, step: StepId, id: ImageId, lazy: bool) -> Option<(usize, LoadFailure)> {
        self.static_tls.as_ref()?;
        let references = &self.symbols(id)?.references;
        if !references.has_static_uses {
            return None;
        }
        // Descriptors of DT_JMPREL could wait for their first use.
        let waits = self.binds_late(id, lazy) && self.dialect().resolves_descriptors_late();
        let mut uses = references.static_uses(Relocator::Glibc { late: false });
        uses.retain(|u| !(waits && u.is_optional && u.is_late));
        let known = self.block_owners(id, &uses, || Lookup::new(self, &[id]));
        for one in uses {
            let owner = match known.get(&one.symbol) {
                Some(Owner::Image(owner)) => *owner,
                Some(Owner::Nobody) => continue,
                // The load ends here for another reason.
                Some(Owner::Missing) | None => return None,
            };
            let Some(block) = self.image(owner).facts().and_then(|f| f.tls) else { continue };
            let area = self.static_tls.as_mut()?;
            if area.blocks.contains_key(&owner) || area.place(owner, step, block, one.is_optional) || one.is_optional {
                continue;
            }
            let ThreadLocal { size, align, .. } = block;
            let free = area.free();
            area.refused.push(Refused { image: owner, by: id, step, size, align, free });
            return Some((one.at + 1, LoadFailure::static_tls(self.image(owner))));
        }
        None
    }

    /// Gives back what images take of the static area that a failed `dlopen` unloads: those from a number on.
    pub(crate) fn release_static_tls(&mut self, from: usize) {
        let is_going = |id: &ImageId| id.index() >= from;
        let Some(area) = self.static_tls.as_ref().filter(|area| area.blocks.keys().any(is_going)) else { return };
        let count = area.blocks.keys().filter(|id| is_going(id)).count();
        let mut order = self.load_order();
        order.retain(|id| self.is_loaded(*id));
        if count > 1 {
            order = self.sort_images(&order, true, None);
        }
        if let Some(area) = &mut self.static_tls {
            area.release(order.into_iter().filter(is_going));
        }
    }

    /// Gives back what one image takes of the static area.
    pub(crate) fn release_static_tls_of(&mut self, id: ImageId) {
        if let Some(area) = &mut self.static_tls {
            area.release(std::iter::once(id));
        }
    }

    /// musl has no room to spare: the first relocation of an image that wants a block in the static area which did not
    /// come at the start (`do_relocs`). `list` is where symbols are looked up.
    pub(super) fn musl_dynamic_block(&self, id: ImageId, list: &[ImageId], is_opened: bool) -> Option<LoadFailure> {
        let references = &self.symbols(id)?.references;
        if !is_opened || !references.has_static_uses {
            return None;
        }
        let uses: Vec<_> = references.static_uses(Relocator::Musl).into_iter().filter(|u| !u.is_optional).collect();
        let known = self.block_owners(id, &uses, || Lookup::in_one_list(self, &[id], list.iter().copied()));
        uses.iter().find_map(|one| {
            let Some(Owner::Image(owner)) = known.get(&one.symbol) else { return None };
            let came_at_start = self.startup_order.contains(owner) || self.image(*owner).role != Role::Library;
            self.image(*owner).facts().and_then(|f| f.tls).filter(|_| !came_at_start)?;
            let name = match one.symbol {
                0 => "(local)".into(),
                index => self.symbol_name(id, index).map(|(name, _)| name.to_owned()).unwrap_or_default(),
            };
            let text = concat(&[&name, DYNAMIC, &self.image(*owner).name]);
            Some(LoadFailure::new(self.image(id).name.clone(), text, 0))
        })
    }

    /// Whose thread-local blocks relocations of an image stand for, by symbol.
    fn block_owners<'p>(
        &'p self,
        id: ImageId,
        uses: &[StaticUse],
        lookup: impl FnOnce() -> Lookup<'p>,
    ) -> FxHashMap<u32, Owner> {
        let mut known: FxHashMap<u32, Owner> = FxHashMap::default();
        known.insert(0, Owner::Image(id));
        if uses.iter().all(|u| u.symbol == 0) {
            return known;
        }
        let lookup = lookup();
        for one in uses {
            known.entry(one.symbol).or_insert_with(|| {
                let (symbol, class) = (one.symbol, Class::Tls);
                let reference = Reference { symbol, class, is_late: false, is_static_tls: true, is_got: false };
                match lookup.answer(id, &reference) {
                    // What is not looked up is the file's own.
                    None => Owner::Image(id),
                    Some(Answer::Bound { to, .. }) => Owner::Image(to),
                    Some(Answer::Nothing { weak: true }) => Owner::Nobody,
                    Some(_) => Owner::Missing,
                }
            });
        }
        known
    }
}

/// What musl says between the symbol and the library with its definition.
const DYNAMIC: &[u8] = b": initial-exec TLS resolves to dynamic definition in ";

impl LoadFailure {
    /// What glibc says of a library whose thread-local block does not fit.
    pub fn static_tls(image: &Image) -> LoadFailure {
        LoadFailure::new(image.name.clone(), "cannot allocate memory in static TLS block", 0)
    }

    /// True when musl refuses a library that wants a thread-local block of what was not there at the start.
    pub fn is_dynamic_tls(&self) -> bool {
        self.text.contains_str(DYNAMIC)
    }
}

/// Whose thread-local block a symbol stands for.
#[derive(Clone, Copy, Debug)]
enum Owner {
    /// That of an image.
    Image(ImageId),
    /// Nobody's: a weak reference that nothing answers.
    Nobody,
    /// Nothing answers the reference.
    Missing,
}
