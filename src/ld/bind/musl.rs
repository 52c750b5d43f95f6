//! musl's way: one list of images for everything, no versions, no visibility (`do_relocs` and `find_sym`, ldso/dynlink.c).

use bstr::{BString, ByteSlice};

use super::lookup::{ALLOWED_KINDS, Answer, INDIRECT_FUNCTION, Lookup, THREAD_LOCAL, UNIQUE_BINDING};
use super::{Again, Binding, Lookups, MAX_BINDINGS, MAX_UNRESOLVED, Told, Unresolved, When, of_image};
use crate::elf::references::{Class, Reference, Relocator};
use crate::elf::symbols::{Name, Symbol, View};
use crate::ld::{ImageId, LoadFailure, OpenFlags, Process, Role, concat};

/// Names whose form with `64` at the end musl 1.2.4 and later answer by the plain function (`get_lfs64`,
/// ldso/dynlink.c).
const MUSL_LARGE_FILE_NAMES: &str = "aio_cancel aio_error aio_fsync aio_read aio_return aio_suspend aio_write alphasort \
    creat fallocate fgetpos fopen freopen fseeko fsetpos fstat fstatat fstatfs fstatvfs ftello ftruncate ftw getdents \
    getrlimit glob globfree lio_listio lockf lseek lstat mkostemp mkostemps mkstemp mkstemps mmap nftw open openat \
    posix_fadvise posix_fallocate pread preadv prlimit pwrite pwritev readdir scandir sendfile setrlimit stat statfs \
    statvfs tmpfile truncate versionsort __fxstat __fxstatat __lxstat __xstat";

/// The plain name, for one of those.
fn plain_large_file_name(name: &[u8]) -> Option<&[u8]> {
    if name == b"readdir64_r" {
        return Some(b"readdir_r");
    }
    let plain = name.strip_suffix(b"64")?;
    MUSL_LARGE_FILE_NAMES.split(' ').any(|known| known.as_bytes() == plain).then_some(plain)
}

/// The symbol of a file that musl looks at: versions count for nothing, but a hidden one is passed over.
pub(super) fn musl_candidate(table: &View<'_>, name: &Name<'_>) -> Option<Symbol> {
    table.candidates(name).find(|s| table.version_index(s.index).unwrap_or(0) & 0x8000 == 0)
}

pub(super) fn musl_accepts(symbol: &Symbol, needs_definition: bool) -> bool {
    !(symbol.is_undefined() && (needs_definition || symbol.kind() == THREAD_LOCAL))
        && (symbol.value != 0 || symbol.kind() == THREAD_LOCAL)
        && (ALLOWED_KINDS & !(1 << INDIRECT_FUNCTION)) >> symbol.kind() & 1 != 0
        && matches!(symbol.binding(), 1 | 2 | UNIQUE_BINDING)
}

impl Lookup<'_> {
    /// `find_sym` of musl: no versions (but a hidden one is passed over), no visibility (rule R10.11).
    pub(super) fn answer_musl(
        &self,
        scope: &[(ImageId, View<'_>)],
        name: &Name<'_>,
        wanted: &Symbol,
        reference: &Reference,
    ) -> Answer {
        let needs_definition = reference.class == Class::Plt;
        let skipped = if reference.class == Class::Copy { Some(ImageId(0)) } else { None };
        let find = |name: &Name<'_>, only: Option<ImageId>, needs_definition: bool| {
            scope.iter().filter(|(id, _)| Some(*id) != skipped && only.is_none_or(|only| only == *id)).find_map(
                |(id, table)| {
                    let symbol = musl_candidate(table, name)?;
                    musl_accepts(&symbol, needs_definition).then_some((*id, symbol))
                },
            )
        };
        let found = find(name, None, needs_definition).or_else(|| {
            let plain =
                plain_large_file_name(name.bytes).filter(|_| self.process.dialect().has_musl_large_file_names())?;
            find(&Name::new(plain), Some(ImageId(1)), true)
        });
        match found {
            Some((to, symbol)) => Answer::Bound { to, definition: symbol.index, flags: 0 },
            // The block of thread-local storage is asked for its place before anything is said of its absence.
            None if wanted.is_undefined() && wanted.is_weak() && reference.class == Class::Tls => Answer::Dies,
            // A weak symbol that the file itself defines is an error too.
            None => Answer::Nothing { weak: wanted.is_undefined() && wanted.is_weak() },
        }
    }
}

/// A failure with the line that musl prints.
fn not_relocated(failure: LoadFailure) -> (LoadFailure, BString) {
    let line = concat(&[b"Error relocating ", &failure.object, b": ", &failure.text]);
    (failure, line)
}

impl Process {
    /// Relocates what is not relocated yet, with one list of images for everything (`reloc_all`; rules R10.10 to
    /// R10.13). At start-up every failure is told; a `dlopen` ends at the first one.
    pub(crate) fn relocate_musl(&mut self, opened: Option<(ImageId, OpenFlags)>) -> Vec<(LoadFailure, BString)> {
        let mut list = self.global.clone();
        let mut order: Vec<ImageId> =
            (0..self.images.len() as u32).map(ImageId).filter(|id| !self.images[id.index()].is_relocated).collect();
        order.retain(|id| self.is_loaded(*id) && self.image(*id).role != Role::Loader);
        if let Some((id, _)) = opened {
            list.extend_from_slice(&self.images[id.index()].search_list);
        } else if order.first() == Some(&ImageId(0)) {
            order.rotate_left(1);
        }
        let mut errors = Vec::new();
        let mut answered = match self.lookups {
            Lookups::None => Vec::new(),
            _ => Lookup::in_one_list(self, &order, list.iter().copied()).run(&order),
        };
        let lazy = opened.is_some_and(|(_, flags)| flags.lazy);
        let mut rest = answered.as_mut_slice();
        for id in &order {
            let (own, after) = of_image(rest, *id);
            rest = after;
            let ordered = self.in_order(*id, own, Relocator::Musl, None);
            if !ordered.has_plain {
                self.keep_plain(own);
            }
            let late = lazy && !self.images[id.index()].facts().is_some_and(|f| f.binds_now());
            for told in ordered.answers {
                let (reference, answer, again) = match told {
                    Told::Answer(reference, answer, again) => (reference, answer, again),
                    Told::Unknown { kind, .. } => {
                        if errors.len() < MAX_UNRESOLVED {
                            let text = format!("unsupported relocation type {}", kind as i32);
                            errors.push(not_relocated(LoadFailure::new(self.label_of(*id), text, 0)));
                        }
                        continue;
                    }
                };
                let when = match late && (reference.is_late || reference.is_got) {
                    true => When::Call,
                    false => When::Load,
                };
                let name = self.symbol_name(*id, reference.symbol).map(|(name, _)| name.to_owned()).unwrap_or_default();
                match answer {
                    Answer::Bound { to, definition, .. } if again == Again::No => {
                        // Only what is missing is put off (rule R10.12).
                        if self.lookups == Lookups::Record && self.bindings.len() < MAX_BINDINGS {
                            self.bindings.push(Binding {
                                from: *id,
                                to,
                                symbol: reference.symbol,
                                definition,
                                class: reference.class,
                                when: When::Load,
                            });
                        }
                    }
                    Answer::Nothing { weak } => {
                        if self.unresolved.len() >= MAX_UNRESOLVED || weak && self.lookups != Lookups::Record {
                            continue;
                        }
                        // Told for each relocation of its own.
                        if !weak && when == When::Load && errors.len() < MAX_UNRESOLVED {
                            let mut failure =
                                LoadFailure::new(self.label_of(*id), concat(&[&name, b": symbol not found"]), 0);
                            failure.is_symbol = true;
                            errors.push(not_relocated(failure));
                        }
                        if again != Again::No {
                            continue;
                        }
                        self.unresolved.push(Unresolved {
                            image: *id,
                            index: reference.symbol,
                            symbol: name,
                            version: None,
                            version_file: None,
                            weak,
                            when,
                            class: reference.class,
                        });
                    }
                    Answer::Dies => {
                        let why = "it asks for the place of thread-local storage that nothing defines";
                        let failure = LoadFailure::killed(self.label_of(*id).as_bstr(), "SIGSEGV", why);
                        let text = failure.text.clone();
                        errors.push((failure, text));
                        return errors;
                    }
                    Answer::Bound { .. } => {}
                }
            }
            if self.lookups != Lookups::None
                && let Some(failure) = self.musl_dynamic_block(*id, &list, opened.is_some())
            {
                let line = concat(&[b"Error relocating ", &failure.object, b": ", &failure.text]);
                errors.push((failure, line));
            }
            self.images[id.index()].is_relocated = true;
        }
        errors
    }
}
