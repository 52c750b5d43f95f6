//! Do the versions that loaded files want exist? (`_dl_check_map_versions`, elf/dl-version.c; rules R7.1 to R7.3, R7.9 to
//! R7.11). These checks decide whether a load fails; binding single symbols is another question.

use bstr::{BStr, BString, ByteSlice};

use super::{ImageId, LoadFailure, Process, Role};

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

impl Process {
    /// Checks images that were not checked yet, in the given order.
    pub(crate) fn check_versions(&mut self, order: &[ImageId], at_startup: bool, argv0: &BStr) -> Checked {
        let mut out = Checked::default();
        for id in order {
            if std::mem::replace(&mut self.images[id.index()].versions_checked, true) {
                continue;
            }
            self.check_image(*id, at_startup, argv0, &mut out);
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
        let Some(needs) = &facts.version_needs else { return };
        let requester = self.label(id, argv0);
        for need in needs {
            if need.revision != 1 {
                let text = format!("unsupported version {} of Verneed record", need.revision);
                out.fatal = Some(LoadFailure::new(requester, text, 0));
                return;
            }
            let Some(provider) = self.find_needed(need.file.as_bstr()) else {
                let text = format!(
                    "Inconsistency detected by ld.so: dl-version.c: {}: _dl_check_map_versions: Assertion `needed != NULL' failed!",
                    self.dialect.missing_need_assertion_line()
                );
                out.fatal = Some(LoadFailure::new("", text, 0));
                return;
            };
            let provider_label = self.label(provider, argv0);
            let provider_object = self.images[provider.index()].object.clone();
            let definitions = provider_object.facts().and_then(|f| f.version_definitions.as_ref());
            for version in &need.versions {
                let message = |text: String| {
                    let mut failure = LoadFailure::new(provider_label.clone(), text, 0);
                    failure.is_version = true;
                    failure
                };
                let Some(definitions) = definitions else {
                    // The loader's own image may stand for a file that could not be read: nothing is known of it.
                    if at_startup && provider_object.facts().is_some() {
                        let failure = message(format!("no version information available (required by {requester})"));
                        push_line(&mut out.warnings, argv0, &failure);
                    }
                    continue;
                };
                let mut found = false;
                for definition in definitions {
                    if definition.revision != 1 {
                        out.missing
                            .push(message(format!("unsupported version {} of Verdef record", definition.revision)));
                        found = true;
                        break;
                    }
                    if definition.hash == version.hash && definition.name == version.name {
                        found = true;
                        break;
                    }
                }
                if found {
                    continue;
                }
                if version.is_weak() {
                    if at_startup {
                        let failure =
                            message(format!("weak version `{}' not found (required by {requester})", version.name));
                        push_line(&mut out.warnings, argv0, &failure);
                    }
                    continue;
                }
                out.missing.push(message(format!("version `{}' not found (required by {requester})", version.name)));
                if !at_startup {
                    return;
                }
            }
        }
        if self.dialect.demands_relr_marker()
            && facts.dynamic.relr.is_some()
            && facts.needed().any(|n| n.starts_with(b"libc.so."))
            && !needs.iter().any(|n| n.versions.iter().any(|v| v.name == "GLIBC_ABI_DT_RELR"))
        {
            out.fatal = Some(LoadFailure::new(requester, "DT_RELR without GLIBC_ABI_DT_RELR dependency", 0));
        }
    }

    /// `find_needed`: the image that answers to a version need's file name: by path or learnt names, not by soname
    /// alone (rule R7.1).
    fn find_needed(&self, file: &BStr) -> Option<ImageId> {
        (0..self.images.len()).map(|i| ImageId(i as u32)).find(|id| {
            let image = &self.images[id.index()];
            image.unloaded_by.is_none()
                && ((image.role != Role::Main && image.name == file) || image.names.iter().any(|n| n == file))
        })
    }
}

fn push_line(lines: &mut Vec<BString>, argv0: &BStr, failure: &LoadFailure) {
    let mut line = argv0.to_owned();
    line.extend_from_slice(b": ");
    line.extend_from_slice(&failure.dlerror());
    if !lines.contains(&line) {
        lines.push(line);
    }
}
