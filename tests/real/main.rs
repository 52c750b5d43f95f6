//! What is tried on as many inputs as this machine has: fixtures, files of the system, real environments. Each input is a
//! test of its own, named after the file that tries it: `cargo test --test real oracle::search/` runs some fixtures
//! under real loaders, `cargo test --test real imports::` one file. One program, because linking the library takes long.

mod bindings;
mod environments;
mod imports;
mod model;
mod musl;
mod oracle;
mod quiet;
mod reproductions;
mod second_opinion;
mod system;

/// Code that several test programs share.
#[path = "../support"]
mod support {
    pub mod bindings;
    pub mod cached;
    pub mod fixtures;
    pub mod fresh;
    pub mod ld_debug;
    pub mod oracle;
    pub mod random;
    pub mod random_env;
    pub mod real;
    pub mod require;
    pub mod system_files;
}

use std::panic::catch_unwind;
use std::path::PathBuf;

use libtest_mimic::{Arguments, Failed, Trial};

use support::{cached, require};

/// One file: its name, and what lists its trials.
type File = (&'static str, fn(&mut Part));

/// The files. Those whose single trials take longest come first, so that none of these runs
/// alone at the end.
const PARTS: &[File] = &[
    ("imports", imports::list),
    ("reproductions", reproductions::list),
    ("quiet", quiet::list),
    ("environments", environments::list),
    ("bindings", bindings::list),
    ("second_opinion", second_opinion::list),
    ("oracle", oracle::list),
    ("musl", musl::list),
    ("system", system::list),
    ("model", model::list),
];

/// The trials of one file.
struct Part {
    name: &'static str,
    trials: Vec<Trial>,
}

impl Part {
    /// One trial more.
    fn add(&mut self, name: impl AsRef<str>, run: impl FnOnce() -> Result<(), Failed> + Send + 'static) {
        self.trials.push(Trial::test(format!("{}::{}", self.name, name.as_ref()), run));
    }

    /// Something that is not there: shown as an ignored trial, or as a failed one where it is required.
    fn absent(&mut self, why: impl AsRef<str>, required: bool) {
        let (name, why) = (self.name, why.as_ref());
        let text = format!("required, but missing: {why}");
        self.trials.push(
            Trial::test(format!("{name}::skipped: {why}"), move || Err(text.into())).with_ignored_flag(!required),
        );
    }

    /// The real environments, each with its name; that there are none is said.
    fn boxes(&mut self) -> Vec<(String, PathBuf)> {
        let boxes = cached::boxes();
        if boxes.is_empty() {
            self.absent("no environments (make them with tests/make-boxes)", require::is_required("boxes"));
        }
        let name = |directory: &PathBuf| directory.file_name().unwrap_or_default().to_string_lossy().into_owned();
        boxes.into_iter().map(|directory| (name(&directory), directory)).collect()
    }
}

/// False when a filter names another file.
fn is_wanted(name: &str, arguments: &Arguments) -> bool {
    let named = arguments.filter.as_deref().and_then(|f| f.split_once("::")).map(|(file, _)| file);
    named.is_none_or(|file| name.contains(file) || !PARTS.iter().any(|(known, _)| *known == file))
}

fn main() {
    let arguments = Arguments::from_args();
    if std::env::var_os("LDAUDIT_BLESS").is_some_and(|v| !v.is_empty()) {
        oracle::bless(arguments.filter.as_deref().unwrap_or_default());
        return;
    }
    let mut trials = Vec::new();
    for (name, list) in PARTS.iter().filter(|(name, _)| is_wanted(name, &arguments)) {
        let listed = catch_unwind(|| {
            let mut part = Part { name, trials: Vec::new() };
            list(&mut part);
            part.trials
        });
        match listed {
            Ok(listed) => trials.extend(listed),
            // The panic has been printed. The other files are tried all the same.
            Err(_) => trials.push(Trial::test(format!("{name}::list of its trials"), || Err("it panicked".into()))),
        }
    }
    libtest_mimic::run(&arguments, trials).exit();
}
