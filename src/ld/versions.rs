//! Do the versions that loaded files want exist? (`_dl_check_map_versions`, elf/dl-version.c; rules R7.1 to R7.3, R7.9 to
//! R7.11). These checks decide whether a load fails; binding single symbols is another question.

use std::collections::HashMap;

use bstr::{BStr, BString, ByteSlice};

use super::budget::Budget;
use super::{ImageId, LoadFailure, Process, Role, concat, touched};
use crate::elf::{VersionDefinition, VersionNeed};

/// Most messages that are kept.
const MAX_MESSAGES: usize = 1000;
/// Tables of more entries than this are looked up by hash instead of one by one.
const MANY: usize = 64;

/// What the checks found.
#[derive(Clone, Debug, Default)]
pub struct Checked {
    /// Missing versions, in order. Start-up prints them all and ends; `dlopen` fails with the first.
    pub missing: Vec<LoadFailure>,
    /// An error that ends the load at once in the ordinary frame.
    pub fatal: Option<LoadFailure>,
    /// Lines that start-up prints and goes on (none under `dlopen`).
    pub warnings: Vec<BString>,
}

/// What a provider's table says of a version (`match_symbol`): the first entry that is equal, or of a revision that the
/// loader does not know, decides.
enum Answer {
    Defined,
    UnknownRevision(u16),
    Missing,
}

/// A provider's table by hash and name.
struct Table<'f> {
    places: HashMap<(u32, &'f BStr), usize>,
    /// Place and number of the first entry of an unknown revision.
    unknown: Option<(usize, u16)>,
}

impl Table<'_> {
    fn of(definitions: &[VersionDefinition]) -> Table<'_> {
        let mut table = Table { places: HashMap::with_capacity(definitions.len()), unknown: None };
        for (place, d) in definitions.iter().enumerate() {
            if d.revision != 1 {
                table.unknown = Some((place, d.revision));
                break;
            }
            table.places.entry((d.hash, d.name.as_bstr())).or_insert(place);
        }
        table
    }

    fn ask(&self, version: &VersionNeed) -> Answer {
        match (self.places.contains_key(&(version.hash, version.name.as_bstr())), self.unknown) {
            (true, _) => Answer::Defined,
            (false, Some((_, revision))) => Answer::UnknownRevision(revision),
            (false, None) => Answer::Missing,
        }
    }
}

fn ask(definitions: &[VersionDefinition], version: &VersionNeed) -> Answer {
    for d in definitions {
        if d.revision != 1 {
            return Answer::UnknownRevision(d.revision);
        }
        if d.hash == version.hash && d.name == version.name {
            return Answer::Defined;
        }
    }
    Answer::Missing
}

impl Process {
    /// Checks images that were not checked yet, in the given order.
    pub(crate) fn check_versions(&mut self, order: &[ImageId], at_startup: bool, argv0: &BStr) -> Checked {
        let mut out = Checked::default();
        for id in order {
            if std::mem::replace(&mut self.images[id.index()].versions_checked, true) {
                continue;
            }
            let object = self.images[id.index()].object.clone();
            let needs = object.facts().and_then(|f| f.version_needs.as_ref());
            let count: usize = needs.map_or(0, |needs| needs.iter().map(|n| n.versions.len() + 1).sum());
            if self.budget.take(8 * count as u64, 0) {
                self.check_image(*id, at_startup, argv0, &mut out);
            } else {
                out.fatal = Some(Budget::failure(self.label(*id, argv0).as_bstr()));
            }
            if out.fatal.is_some() || (!at_startup && !out.missing.is_empty()) {
                break;
            }
        }
        if !at_startup && (out.fatal.is_some() || !out.missing.is_empty()) {
            // What a failed dlopen checked is unloaded; what stays loaded was checked before.
            for id in order {
                if self.images[id.index()].step == super::StepId(self.steps.len() as u32 - 1) {
                    self.images[id.index()].versions_checked = false;
                }
            }
        }
        out
    }

    fn label(&self, id: ImageId, argv0: &BStr) -> BString {
        let image = &self.images[id.index()];
        if image.role == Role::Main { argv0.to_owned() } else { image.name.clone() }
    }

    fn check_image(&self, id: ImageId, at_startup: bool, argv0: &BStr, out: &mut Checked) {
        let object = self.images[id.index()].object.clone();
        let Some(facts) = object.facts() else { return };
        let is_mapped = self.images[id.index()].role != Role::Loader;
        if is_mapped && let Some(failure) = touched::version_tables(facts, self.label(id, argv0).as_bstr()) {
            out.fatal = Some(failure);
            return;
        }
        let Some(needs) = &facts.version_needs else { return };
        let requester = || self.label(id, argv0);
        for need in needs {
            if need.revision != 1 {
                let text = format!("unsupported version {} of Verneed record", need.revision);
                out.fatal = Some(LoadFailure::new(requester(), text, 0));
                return;
            }
            // `find_needed`: by path or learnt names, not by soname alone (rule R7.1).
            let Some(provider) = self.lookup_learnt(need.file.as_bstr()) else {
                let text = format!(
                    "Inconsistency detected by ld.so: dl-version.c: {}: _dl_check_map_versions: Assertion `needed != NULL' failed!",
                    self.dialect.missing_need_assertion_line()
                );
                out.fatal = Some(LoadFailure::new("", text, 0));
                return;
            };
            let provider_object = self.images[provider.index()].object.clone();
            let definitions = provider_object.facts().and_then(|f| f.version_definitions.as_ref());
            let table = match definitions {
                Some(d) if d.len() > MANY && need.versions.len() > MANY => Some(Table::of(d)),
                _ => None,
            };
            let message = |text: BString| {
                let mut failure = LoadFailure::new(self.label(provider, argv0), text, 0);
                failure.is_version = true;
                failure
            };
            for version in &need.versions {
                if out.missing.len() + out.warnings.len() >= MAX_MESSAGES {
                    return;
                }
                let Some(definitions) = definitions else {
                    // The loader's own image may stand for a file that could not be read: nothing is known of it.
                    if at_startup && provider_object.facts().is_some() {
                        let text = concat(&[b"no version information available (required by ", &requester(), b")"]);
                        out.warn(argv0, &message(text));
                    }
                    continue;
                };
                match table.as_ref().map_or_else(|| ask(definitions, version), |t| t.ask(version)) {
                    Answer::Defined => {}
                    Answer::UnknownRevision(revision) => {
                        let text = format!("unsupported version {revision} of Verdef record");
                        out.missing.push(message(text.into()));
                    }
                    Answer::Missing => {
                        let text = |kind: &[u8]| {
                            concat(&[kind, b" `", &version.name, b"' not found (required by ", &requester(), b")"])
                        };
                        if !version.is_weak() {
                            out.missing.push(message(text(b"version")));
                            if !at_startup {
                                return;
                            }
                        } else if at_startup {
                            out.warn(argv0, &message(text(b"weak version")));
                        }
                    }
                }
            }
        }
        if self.dialect.demands_relr_marker()
            && facts.dynamic.relr.is_some()
            && facts.needed().any(|n| n.starts_with(b"libc.so."))
            && !needs.iter().any(|n| n.versions.iter().any(|v| v.name == "GLIBC_ABI_DT_RELR"))
        {
            out.fatal = Some(LoadFailure::new(requester(), "DT_RELR without GLIBC_ABI_DT_RELR dependency", 0));
        }
    }
}

/// Most warning lines of one start that are kept.
const MAX_WARNINGS: usize = 10_000;

impl Checked {
    fn warn(&mut self, argv0: &BStr, failure: &LoadFailure) {
        let line = concat(&[argv0, b": ", &failure.dlerror()]);
        // The loader prints one line for each version need, equal ones too; a hostile file must not fill the memory.
        if self.warnings.len() < MAX_WARNINGS {
            self.warnings.push(line);
        }
    }
}
