//! What glibc's loader writes with `LD_DEBUG=libs,files`, read.

use bstr::{BStr, BString, ByteSlice};
use ldaudit::fixture::{Hit, Pass, Via};

/// Lines of the loader's trace (without their prefix) and other lines.
pub(super) fn split_trace(text: &[u8], pid: u32) -> (Vec<BString>, Vec<BString>) {
    let prefix = format!("{pid}:\t");
    let mut trace = Vec::new();
    let mut messages = Vec::new();
    for line in text.lines() {
        match line.trim_start_with(|c| c == ' ').strip_prefix(prefix.as_bytes()) {
            Some(rest) => trace.push(rest.into()),
            None if line.is_empty() => {}
            None => messages.push(line.into()),
        }
    }
    (trace, messages)
}

/// Reads LD_DEBUG=libs,files line by line (loader rules R11.2, R11.3, R3.13, R3.14).
#[derive(Default)]
pub(super) struct Reader {
    /// Hits, and whether dlopen itself asked for them.
    pub(super) hits: Vec<(Hit, bool)>,
    pub(super) passed: Vec<(BString, Pass)>,
    pub(super) tried: Vec<(BString, Vec<BString>)>,
    /// The request under way: name, who asks, and whether by dlopen.
    asked: Option<(BString, BString, bool)>,
    search: Option<Search>,
}

struct Search {
    name: BString,
    via: Option<Via>,
    tried: Vec<(BString, Option<Via>, Pass)>,
    /// True when its paths are already among those told.
    told: bool,
}

impl Search {
    fn tried_paths(&self) -> Vec<BString> {
        self.tried.iter().map(|t| t.0.clone()).collect()
    }
}

/// `NAME [N]` → NAME.
fn before_namespace(text: &[u8]) -> BString {
    let end = text.rfind(" [").unwrap_or(text.len());
    text.get(..end).unwrap_or(b"").into()
}

impl Reader {
    pub(super) fn line(&mut self, line: &BStr) {
        let bytes = line.as_bytes();
        if let Some(rest) = bytes.strip_prefix(b"find library=") {
            self.end_search();
            let name = before_namespace(rest.split_once_str("; searching").map_or(rest, |(name, _)| name));
            self.search = Some(Search { name, via: None, tried: Vec::new(), told: false });
        } else if let Some(rest) = bytes.strip_prefix(b" search path=") {
            if let (Some(search), Some((_, rule))) = (&mut self.search, rest.rsplit_once_str("\t\t(")) {
                search.via = rule_of(rule.trim_end_with(|c| c == ')').as_bstr());
            }
        } else if bytes.starts_with(b" search cache=") {
            if let Some(search) = &mut self.search {
                search.via = Some(Via::Cache);
            }
        } else if let Some(path) = bytes.strip_prefix(b"  trying file=") {
            if let Some(search) = &mut self.search {
                search.tried.push((path.into(), search.via.clone(), Pass::Tried));
            }
        } else if bytes.starts_with(b"    (") {
            let why = match bytes.trim_ascii() {
                b"(no such file)" => Pass::NotOpened,
                b"(incompatible ELF class)" => Pass::WrongClass,
                b"(incompatible ELF machine)" => Pass::WrongMachine,
                _ => return,
            };
            if let Some(last) = self.search.as_mut().and_then(|s| s.tried.last_mut()) {
                last.2 = why;
            }
        } else if let Some(rest) = bytes.strip_prefix(b"file=") {
            if rest.ends_with(b"(relocation dependency)") {
                return;
            }
            for (words, by_dlopen) in [("needed by ", false), ("dynamically loaded by ", true)] {
                if let Some((name, by)) = rest.split_once_str(&format!(";  {words}")) {
                    self.end_request(true);
                    self.asked = Some((before_namespace(name), before_namespace(by), by_dlopen));
                    return;
                }
            }
            if let Some((name, _)) = rest.split_once_str(";  generating link map") {
                self.generating(before_namespace(name));
            }
        }
    }

    /// A new object for a name.
    fn generating(&mut self, name: BString) {
        let (needed_by, by_dlopen) = match &self.asked {
            Some((asked, by, by_dlopen)) if *asked == name => (Some(by.clone()), *by_dlopen),
            // The main program itself, when the loader is started as a program.
            _ => return,
        };
        let tried =
            self.search.as_mut().filter(|s| s.name == name).and_then(|s| Some((s.tried_paths(), s.tried.pop()?)));
        let searched = tried.map(|(paths, last)| {
            self.tried.push((name.clone(), paths));
            self.search = self.search.take().map(|s| Search { told: true, ..s });
            last
        });
        let (path, via) = match searched {
            Some((path, via, _)) => (path, via),
            None => (name.clone(), Some(Via::Literal)),
        };
        self.hits.push((Hit { name, path, via, needed_by }, by_dlopen));
        self.asked = None;
        self.end_search();
    }

    fn end_search(&mut self) {
        if let Some(search) = self.search.take() {
            if !search.told {
                self.tried.push((search.name.clone(), search.tried_paths()));
            }
            self.passed.extend(search.tried.into_iter().map(|(path, _, why)| (path, why)));
        }
    }

    /// The request under way ended without a new object: by a file that is loaded already when things went on.
    fn end_request(&mut self, went_on: bool) {
        if let Some((name, by, by_dlopen)) = self.asked.take() {
            let tried = self.search.as_ref().filter(|s| s.name == name).and_then(|s| s.tried.last());
            let missed = tried.is_some_and(|t| t.2 != Pass::Tried);
            let path = match tried {
                Some((path, _, _)) => Some(path.clone()),
                None => name.contains(&b'/').then(|| name.clone()),
            };
            if let (true, false, Some(path)) = (went_on, missed, path) {
                if let Some(search) = self.search.as_mut().filter(|s| s.name == name) {
                    self.tried.push((name.clone(), search.tried_paths()));
                    search.told = true;
                    search.tried.pop();
                }
                self.hits.push((Hit { name, path, via: Some(Via::Inode), needed_by: Some(by) }, by_dlopen));
            }
        }
        self.end_search();
    }

    pub(super) fn finish(&mut self, ok: bool) {
        self.end_request(ok);
    }
}

fn rule_of(text: &BStr) -> Option<Via> {
    if let Some(of) = text.strip_prefix(b"RPATH from file ") {
        return Some(Via::Rpath { entry: None, of: Some(of.into()) });
    }
    if let Some(of) = text.strip_prefix(b"RUNPATH from file ") {
        return Some(Via::Runpath { entry: None, of: Some(of.into()) });
    }
    match text.as_bytes() {
        b"LD_LIBRARY_PATH" => Some(Via::LibraryPath(None)),
        b"--library-path" => Some(Via::LibraryPathOption(None)),
        b"system search path" => Some(Via::Default),
        _ => None,
    }
}
