//! The story of one name as text: who asks, what becomes of each copy, what would change it.

use std::cell::RefCell;
use std::io::{self, Write};

use bstr::{BStr, BString, ByteSlice};

use super::text::layout::{pad, width, wrap};
use super::text::{Ink, Style};
use super::{enumerate, escape};
use crate::discover::copies::{Literal, Relation};
use crate::findings::why::{Asker, Change, CopyFacts, Effect, Fate, Story, Stuck, Teller, Tried, Why};
use crate::findings::words::{count, plural};
use crate::ld::{How, Rule};
use crate::system::{file_name, normalised};

/// Most askers of one process that get a line each.
const MAX_ASKERS: usize = 4;
/// Most copies that are in no list of a process and get a line each.
const MAX_NEVER: usize = 6;
/// Most near misses that get a line each.
const MAX_NEAR: usize = 10;

/// Writes the story.
pub fn write(why: &Why, style: &Style, out: &mut dyn Write) -> io::Result<()> {
    let page = Page { why, style, sites: sites(why), told: RefCell::default() };
    let mut text = String::new();
    page.stories(&mut text);
    page.changes(&mut text);
    page.near(&mut text);
    page.notes(&mut text);
    out.write_all(text.as_bytes())
}

/// Package directories that many paths share, told once and written as `…`, `…2`, `…3`.
fn sites(why: &Why) -> Vec<BString> {
    let mut counts: Vec<(BString, usize)> = Vec::new();
    let askers = why.stories.iter().flat_map(|s| &s.tellers).flat_map(|t| &t.askers).map(|a| &a.image);
    for path in why.copies.iter().flat_map(|c| &c.names).chain(askers) {
        for end in [&b"/site-packages/"[..], b"/dist-packages/"] {
            if let Some(at) = path.find(end) {
                let directory = path[..at + end.len() - 1].as_bstr();
                match counts.iter_mut().find(|(d, _)| *d == directory) {
                    Some((_, n)) => *n += 1,
                    None => counts.push((directory.to_owned(), 1)),
                }
            }
        }
    }
    counts.retain(|(d, _)| d.len() > 16);
    counts.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
    counts.into_iter().map(|(d, _)| d).take(3).collect()
}

/// The sign for a package directory.
fn sign(index: usize) -> String {
    if index == 0 { "…".to_owned() } else { format!("…{}", index + 1) }
}

/// Askers that are told of in one line, in the order of the first of each.
fn grouped(askers: &[Asker]) -> Vec<Vec<&Asker>> {
    let mut groups: Vec<Vec<&Asker>> = Vec::new();
    for asker in askers {
        let alike = |a: &Asker| Asker { image: BString::default(), ..a.clone() };
        match groups.iter_mut().find(|g| alike(g[0]) == alike(asker)) {
            Some(group) => group.push(asker),
            None => groups.push(vec![asker]),
        }
    }
    groups
}

struct Page<'a> {
    why: &'a Why,
    style: &'a Style,
    sites: Vec<BString>,
    /// Errors that were told already.
    told: RefCell<Vec<String>>,
}

/// The verb of so many steps.
fn fails(steps: usize) -> &'static str {
    plural(steps, "fails", "fail")
}

fn safe(bytes: impl AsRef<[u8]>) -> String {
    escape::text(bytes.as_ref())
}

impl Page<'_> {
    fn bold(&self, text: &str) -> String {
        self.style.paint(Ink::Strong, text)
    }

    fn faint(&self, text: &str) -> String {
        self.style.paint(Ink::Faint, text)
    }

    fn path(&self, path: &BStr) -> String {
        for (index, site) in self.sites.iter().enumerate() {
            if let Some(rest) = path.strip_prefix(site.as_slice()).filter(|rest| rest.starts_with(b"/")) {
                return format!("{}{}", sign(index), safe(rest));
            }
        }
        safe(path)
    }

    /// What a step is called: the file that it opens, or the name.
    fn step(&self, name: &BString) -> String {
        safe(file_name(name.as_bstr()))
    }

    /// Paths inside a sentence.
    fn sentence(&self, text: &str) -> String {
        let mut text = safe(text);
        for (index, site) in self.sites.iter().enumerate() {
            text = text.replace(&format!("{}/", safe(site)), &format!("{}/", sign(index)));
        }
        text
    }

    /// Lines of a text behind a first prefix; later lines are indented.
    fn put(&self, out: &mut String, first: &str, indent: usize, text: &str) {
        let columns = self.style.columns().saturating_sub(indent).max(24);
        for (n, line) in wrap(text, columns).iter().enumerate() {
            let line = line.trim_end();
            if n == 0 {
                out.push_str(&format!("{first}{line}\n"));
            } else {
                out.push_str(&format!("{:indent$}{line}\n", ""));
            }
        }
    }

    fn heading(&self, out: &mut String, text: &str) {
        out.push_str(&self.bold(text));
        out.push('\n');
    }

    // ------------------------------------------------------------------------------------------------------ stories

    fn stories(&self, out: &mut String) {
        let why = self.why;
        let name = safe(&why.name);
        if let Some(given) = why.given.as_ref().filter(|g| file_name(g.as_bstr()) != why.name) {
            self.put(out, "", 0, &format!("{} has the SONAME {name}: this is the story of that name", safe(given)));
        }
        let asked: Vec<&Story> = why.stories.iter().filter(|s| s.tellers.iter().any(|t| !t.supposed)).collect();
        if asked.is_empty() && why.files_looked_at == 0 {
            self.heading(out, &name);
        } else if asked.is_empty() {
            let files = count(why.files_looked_at, "file", "files");
            let looked = format!("no NEEDED and no text beside a dlopen names it in the {files} looked at");
            self.heading(out, &format!("nobody here asks for {name}"));
            self.put(out, "  ", 2, &looked);
        } else {
            self.heading(out, &format!("{name} is asked for by"));
        }
        for story in asked {
            self.story(out, story);
        }
        for story in &why.stories {
            if story.tellers.iter().all(|t| t.supposed) {
                self.story(out, story);
            }
        }
        if why.copies.iter().all(|c| !c.relation.answers()) {
            self.put(out, "  ", 2, "no copy of that name was found on this box");
        }
    }

    fn story(&self, out: &mut String, story: &Story) {
        // Supposed requests come last; of many processes with the same answer only some are told in full.
        let (asking, supposed): (Vec<&Teller>, Vec<&Teller>) = story.tellers.iter().partition(|t| !t.supposed);
        let full = if asking.len() > 3 { 2 } else { 3 };
        let (detailed, brief) = asking.split_at(asking.len().min(full));
        for teller in detailed {
            self.teller(out, teller, story);
        }
        if !brief.is_empty() {
            let titles: Vec<String> = brief.iter().map(|t| safe(&t.title)).collect();
            self.put(out, "  ", 4, &format!("and likewise {}", enumerate(&titles, 8)));
        }
        for teller in supposed {
            self.teller(out, teller, story);
        }
        if let Some(text) = &story.failure {
            let first = format!("      {}  ", self.style.paint(Ink::Bad, "fails"));
            self.put(out, &first, 13, &self.sentence(&text.to_string()));
        }
        if story.copy.is_none()
            && let Some(path) = &story.path
        {
            self.put(out, "      ", 8, &format!("answers: {}", self.path(path.as_bstr())));
        }
        self.fates(out, story);
    }

    fn teller(&self, out: &mut String, teller: &Teller, story: &Story) {
        let title = self.bold(&safe(&teller.title));
        let circumstances = match (&*teller.circumstances, teller.supposed) {
            ("", false) => String::new(),
            (text, false) => format!("  {}", safe(text)),
            (text, true) => format!(" would get  ({})", safe(text)),
        };
        if 2 + width(&safe(&teller.title)) + width(&circumstances) <= self.style.columns() {
            out.push_str(&format!("  {title}{}\n", self.faint(&circumstances)));
        } else {
            out.push_str(&format!("  {title}\n"));
            for line in wrap(circumstances.trim(), self.style.columns().saturating_sub(6)) {
                out.push_str(&format!("      {}\n", self.faint(&line)));
            }
        }
        if teller.supposed {
            if !teller.searched.is_empty() {
                let searched = format!("searched: {}", self.sentence(&teller.searched.join(", ")));
                self.put(out, "    ", 6, &searched);
            }
            return;
        }
        let groups = grouped(&teller.askers);
        for group in groups.iter().take(MAX_ASKERS) {
            let owner =
                group[0].owner.as_ref().map(|o| safe(format!("{} {}", o.package, o.version))).unwrap_or_default();
            let own = owner.is_empty() || teller.title.starts_with(&owner);
            let owner = if own { String::new() } else { format!("   ({owner})") };
            self.put(out, "    ", 6, &format!("{}{owner}", self.askers(group)));
        }
        if groups.len() > MAX_ASKERS {
            let mut names: Vec<String> = Vec::new();
            for asker in groups[MAX_ASKERS..].iter().flatten() {
                let name = safe(file_name(asker.image.as_bstr()));
                if !names.contains(&name) {
                    names.push(name);
                }
            }
            self.put(out, "    ", 6, &format!("and in like manner {}", enumerate(&names, 4)));
        }
        if let Some((step, error)) = &teller.failing {
            let line = format!("{} fails: {}", self.step(step), self.sentence(&error.to_string()));
            // One error is told once; a request that fails is told below.
            let is_request = |f: &BString| error.ends_with(f.as_bytes());
            let mut told = self.told.borrow_mut();
            if !story.failure.as_ref().is_some_and(is_request) && !told.contains(&line) {
                self.put(out, "    ", 6, &line);
                told.push(line);
            }
        }
        if !teller.searched.is_empty() {
            let searched = format!("searched: {}", self.sentence(&teller.searched.join(", ")));
            self.put(out, "    ", 6, &searched);
        }
    }

    /// Who asks, in a line: askers that differ in the file only.
    fn askers(&self, group: &[&Asker]) -> String {
        let asker = group[0];
        let mut images: Vec<String> = Vec::new();
        for image in group.iter().map(|a| safe(file_name(a.image.as_bstr()))).filter(|i| !i.is_empty()) {
            if !images.contains(&image) {
                images.push(image);
            }
        }
        let by = if images.is_empty() { String::new() } else { format!(" by {}", enumerate(&images, 3)) };
        let loaded = if asker.answered_by_loaded { ", answered by what is loaded" } else { "" };
        let asked = asker.asked.as_ref().map(|a| format!(" of {}", self.path(a.as_bstr()))).unwrap_or_default();
        match (&asker.literal, asker.how) {
            (Some((text, kind)), _) => {
                let text = self.path(text.as_bstr());
                let text = match kind {
                    Literal::Exact => "the name is in its read-only data".to_owned(),
                    Literal::Path => format!("the path {text} is in its read-only data"),
                    Literal::Template => format!("the pattern {text} is in its read-only data"),
                    Literal::Beginning => format!("{text} is in its read-only data, code may add a version"),
                    Literal::Note => "it carries a note that says so".to_owned(),
                    Literal::Near => format!("{text} is in its read-only data"),
                };
                format!("dlopen{by}, perhaps later: {text}{loaded}")
            }
            (None, How::Needed) => format!("NEEDED{by}{loaded}"),
            (None, How::Auxiliary) => format!("AUXILIARY{by}{loaded}"),
            (None, How::Filter) => format!("FILTER{by}{loaded}"),
            (None, How::Preload) => format!("preload{asked}: {}", safe(&asker.note)),
            (None, How::Dlopen) if asker.note.is_empty() => format!("dlopen{asked}{by}{loaded}"),
            (None, How::Dlopen) => format!("dlopen{asked}{by}{loaded}: {}", self.sentence(&asker.note)),
            (None, How::Exec) => "the start of the program".to_owned(),
        }
    }

    fn fates(&self, out: &mut String, story: &Story) {
        let mut rows: Vec<Row> = Vec::new();
        let (mut never, mut left_out) = (0, 0);
        for (index, fate) in &story.fates {
            if matches!(fate, Fate::Never(_) | Fate::Unusable(_)) {
                never += 1;
                if never > MAX_NEVER {
                    left_out += 1;
                    continue;
                }
            }
            rows.push(self.row(*index, fate, story));
        }
        self.table(out, &rows);
        if left_out > 0 {
            self.put(out, "      ", 8, &format!("and {left_out} more in no search list"));
        }
    }

    fn row(&self, index: usize, fate: &Fate, story: &Story) -> Row {
        let (word, ink) = match fate {
            Fate::Taken(_) => ("taken", Some(Ink::Good)),
            Fate::Earlier { .. } => ("answers", Some(Ink::Good)),
            Fate::Ends { .. } => ("ends", Some(Ink::Bad)),
            Fate::Passed { .. } => ("skipped", Some(Ink::Warn)),
            Fate::Displaced { .. } => ("loses", Some(Ink::Warn)),
            Fate::Later(_) => ("later", Some(Ink::Warn)),
            Fate::LoadedToo { .. } => ("loaded", None),
            Fate::Never(_) => ("never", None),
            Fate::Unusable(_) => ("unusable", None),
        };
        let name = &self.why.name;
        let reason = match fate {
            Fate::Taken(reason) | Fate::Later(reason) => reason.to_string(),
            Fate::Earlier { asked, reason, step } => {
                let asked = if asked == name { String::new() } else { format!(" as {}", self.path(asked.as_bstr())) };
                let step = if step.is_empty() { String::new() } else { format!(" ({step})") };
                let by = if reason.rule == Rule::Path { "" } else { "by " };
                format!("loaded before{asked}, {by}{reason}{step}")
            }
            Fate::Displaced { asker, reason } => {
                format!("what {asker} itself would find: {reason}")
            }
            Fate::Passed { why, reason } => format!("{why}; {reason}"),
            Fate::Ends { why, reason } => format!("{why}; {reason}"),
            Fate::LoadedToo { asked } => {
                format!("as {}, does not answer this request", self.path(asked.as_bstr()))
            }
            Fate::Unusable(why) => why.clone(),
            Fate::Never(why) => why.clone(),
        };
        let copy = &self.why.copies[index];
        // The file that answers is named as the loader names it, unless that is only a longer way to say the same.
        let answering = story.path.as_ref().filter(|_| story.copy == Some(index));
        let shown = match answering {
            Some(path) if !copy.names.contains(&normalised(path.as_bstr())) => path.clone(),
            Some(path) => normalised(path.as_bstr()),
            None => copy.path.clone(),
        };
        let others = copy.names.iter().filter(|n| **n != shown && file_name(n.as_bstr()) == *name);
        let others: Vec<&BString> = others.filter(|n| normalised(n.as_bstr()) == **n).collect();
        let also = match others[..] {
            [] => String::new(),
            [one] => format!("; the same file: {}", self.path(one.as_bstr())),
            [one, ..] => format!("; the same file: {} and {} more", self.path(one.as_bstr()), others.len() - 1),
        };
        Row {
            number: index + 1,
            word,
            ink,
            path: self.path(shown.as_bstr()),
            version: version(copy),
            reason: self.sentence(&format!("{reason}{also}")),
        }
    }

    /// Rows in columns when they fit, else in two lines each.
    fn table(&self, out: &mut String, rows: &[Row]) {
        let paths = rows.iter().map(|r| width(&r.path)).max().unwrap_or(0);
        let versions = rows.iter().map(|r| width(&r.version)).max().unwrap_or(0);
        let reasons = rows.iter().map(|r| width(&r.reason)).max().unwrap_or(0);
        let fits = 18 + paths + 2 + versions + 2 + reasons <= self.style.columns();
        for row in rows {
            let word = format!("{:<8}", row.word);
            let word = match row.ink {
                Some(ink) => self.style.paint(ink, &word),
                None => self.faint(&word),
            };
            let start = format!("     {:>2} {word}  ", row.number);
            if fits {
                let line = format!("{}  {}  {}", pad(&row.path, paths), pad(&row.version, versions), row.reason);
                out.push_str(&format!("{start}{}\n", line.trim_end()));
            } else {
                out.push_str(&format!("{start}{}\n", row.path));
                self.put(out, &format!("{:18}", ""), 18, &format!("{}; {}", row.version, row.reason));
            }
        }
    }

    // ------------------------------------------------------------------------------------------------------ changes

    fn changes(&self, out: &mut String) {
        if self.why.changes.is_empty() && self.why.stuck.is_empty() {
            let answering: Vec<&CopyFacts> = self.why.copies.iter().filter(|c| c.relation.answers()).collect();
            if answering.len() == 1 && self.why.stories.iter().all(|s| s.copy.is_some()) {
                out.push_str("  there is no other copy of it on this box\n");
            }
            return;
        }
        self.heading(out, "what would change it");
        let mut done = vec![false; self.why.changes.len()];
        for (index, tried) in self.why.changes.iter().enumerate() {
            if std::mem::replace(&mut done[index], true) {
                continue;
            }
            // Several ways to the same end are one entry.
            let mut ways = vec![self.change(tried)];
            for (other, known) in self.why.changes.iter().zip(&mut done).skip(index + 1) {
                if other.copy.is_none() && tried.copy.is_none() && other.effects == tried.effects {
                    ways.push(self.change(other));
                    *known = true;
                }
            }
            self.put(out, "  ", 4, &ways.join(", or "));
            for line in self.effects(tried) {
                self.put(out, "      ", 8, &line);
            }
        }
        for change in &self.why.in_vain {
            if let Change::ImportFirst(module) = change {
                self.put(out, "  ", 4, &format!("import {} first changes nothing", safe(module)));
            }
        }
        self.stuck(out);
        if !self.why.changes.is_empty() {
            let line = "each was simulated: which files load, and what fails for versions and symbols; who answers single \
                        symbols is not compared; other libraries stay as they are unless it says so";
            for line in wrap(line, self.style.columns().saturating_sub(2)) {
                out.push_str(&format!("  {}\n", self.faint(&line)));
            }
        }
    }

    /// What a change does, each effect with the processes that it holds for.
    fn effects(&self, tried: &Tried) -> Vec<String> {
        let mut lines: Vec<(String, Vec<String>)> = Vec::new();
        for effect in tried.effects.iter().filter(|e| e.changes_answer) {
            let mut text = self.effect(effect);
            if !effect.all_askers {
                let mut names: Vec<String> = Vec::new();
                for (how, image) in &effect.askers {
                    let image = safe(file_name(image.as_bstr()));
                    let name = if *how == How::Preload { "the preload entry".to_owned() } else { image };
                    if !names.contains(&name) {
                        names.push(name);
                    }
                }
                text.push_str(&format!(" (asked for by {})", enumerate(&names, 3)));
            }
            let titles = self.why.stories.get(effect.story).map(|s| {
                effect.tellers.iter().filter_map(|t| s.tellers.get(*t)).map(|t| safe(&t.title)).collect::<Vec<_>>()
            });
            let titles = titles.unwrap_or_default();
            match lines.iter_mut().find(|(t, _)| *t == text) {
                Some((_, known)) => known.extend(titles),
                None => lines.push((text, titles)),
            }
        }
        let several = self.why.stories.iter().map(|s| s.tellers.len()).sum::<usize>() > 1;
        lines
            .into_iter()
            .map(|(text, mut titles)| {
                titles.dedup();
                if several { format!("{}: {text}", enumerate(&titles, 4)) } else { text }
            })
            .collect()
    }

    fn change(&self, tried: &Tried) -> String {
        match &tried.change {
            Change::PrependLibraryPath(directory) => {
                format!("{} in front of LD_LIBRARY_PATH", self.path(directory.as_bstr()))
            }
            Change::DropLibraryPath(n) => match tried.assignment.as_ref().and_then(|(_, value)| value.as_ref()) {
                Some(value) => format!(
                    "LD_LIBRARY_PATH without element {n}: LD_LIBRARY_PATH={}",
                    self.sentence(&value.to_string())
                ),
                None => "LD_LIBRARY_PATH without its only element".to_owned(),
            },
            Change::UnsetLibraryPath => "no LD_LIBRARY_PATH".to_owned(),
            Change::Preload(file) => format!("{} in front of LD_PRELOAD", self.path(file.as_bstr())),
            Change::UnsetPreload => "no LD_PRELOAD".to_owned(),
            Change::ImportFirst(module) => format!("import {} first", safe(module)),
        }
    }

    fn effect(&self, effect: &Effect) -> String {
        let mut text = match (effect.copy, &effect.failure) {
            (Some(copy), _) => format!("copy {} wins", copy + 1),
            (None, Some(failure)) => format!("fails: {}", self.sentence(&failure.to_string())),
            (None, None) if effect.unasked => "not asked for any more".to_owned(),
            (None, None) => "another file wins".to_owned(),
        };
        let names = |list: &[BString]| enumerate(&list.iter().map(safe).collect::<Vec<_>>(), 3);
        if !effect.replaced.is_empty() {
            let what = count(effect.replaced.len(), "other library changes", "other libraries change");
            text.push_str(&format!("; {what}: {}", names(&effect.replaced)));
        }
        if effect.failure.is_none() {
            if !effect.removed.is_empty() {
                text.push_str(&format!("; not loaded any more: {}", names(&effect.removed)));
            }
            // What a mended step brings along is no surprise.
            if !effect.added.is_empty() && effect.mended.is_empty() {
                text.push_str(&format!("; loads more: {}", names(&effect.added)));
            }
        }
        let more = |n: usize| if n > 1 { format!(" and {} more", n - 1) } else { String::new() };
        if let Some((step, error)) = effect.failures.first() {
            let more = more(effect.failures.len());
            let verb = fails(effect.failures.len());
            text.push_str(&format!("; then {}{more} {verb}: {}", self.step(step), self.sentence(&error.to_string())));
        }
        if let Some((step, _)) = effect.still_failing.first() {
            let n = effect.still_failing.len();
            text.push_str(&format!("; {}{} {} all the same", self.step(step), more(n), fails(n)));
        }
        if let Some(step) = effect.mended.first() {
            let n = effect.mended.len();
            text.push_str(&format!("; then {}{} {}", self.step(step), more(n), plural(n, "loads", "load")));
        }
        text
    }

    fn stuck(&self, out: &mut String) {
        let mut done: Vec<(bool, &str, usize)> = Vec::new();
        for stuck in &self.why.stuck {
            let key = (stuck.preload_helps, stuck.why.as_str(), stuck.story);
            if done.contains(&key) {
                continue;
            }
            done.push(key);
            let same: Vec<&Stuck> =
                self.why.stuck.iter().filter(|s| (s.preload_helps, s.why.as_str(), s.story) == key).collect();
            let numbers: Vec<String> = same.iter().map(|s| (s.copy + 1).to_string()).collect();
            let copies = if numbers.len() == 1 { "copy" } else { "copies" };
            let titles: Vec<String> = self
                .why
                .stories
                .get(stuck.story)
                .map_or_else(Vec::new, |s| s.tellers.iter().map(|t| safe(&t.title)).collect());
            let several = self.why.stories.iter().map(|s| s.tellers.len()).sum::<usize>() > 1;
            let whose = if several { format!(" for {}", enumerate(&titles, 3)) } else { String::new() };
            let what = if stuck.preload_helps {
                "LD_LIBRARY_PATH does not bring in"
            } else {
                "neither LD_LIBRARY_PATH nor LD_PRELOAD brings in"
            };
            let text = format!("{what} {copies} {}{whose}: {}", enumerate(&numbers, 9), self.sentence(&stuck.why));
            self.put(out, "  ", 4, &text);
        }
    }

    // --------------------------------------------------------------------------------------------------- near misses

    fn near(&self, out: &mut String) {
        if self.why.near.is_empty() && self.why.near_asked.is_empty() {
            return;
        }
        self.heading(out, "near names, which answer only to their own");
        let mut near: Vec<_> = self.why.near.iter().collect();
        near.sort_by_key(|n| n.loaded_as.is_empty());
        let rows: Vec<Row> = near
            .iter()
            .take(MAX_NEAR)
            .map(|near| {
                let copy = &self.why.copies[near.copy];
                let relation = match copy.relation {
                    Relation::Version => "other version",
                    Relation::Developer => "name without a version",
                    Relation::Hashed => "renamed",
                    Relation::Exact | Relation::Longer | Relation::Soname => "",
                };
                let loaded: Vec<String> = near.loaded_as.iter().map(|(title, _)| safe(title)).collect();
                let loaded =
                    if loaded.is_empty() { String::new() } else { format!("; loaded by {}", enumerate(&loaded, 3)) };
                Row {
                    number: near.copy + 1,
                    word: "",
                    ink: None,
                    path: self.path(copy.path.as_bstr()),
                    version: version(copy),
                    reason: format!("{relation}{loaded}"),
                }
            })
            .collect();
        self.table(out, &rows);
        if near.len() > MAX_NEAR {
            self.put(out, "  ", 4, &format!("and {} more", near.len() - MAX_NEAR));
        }
        for near in self.why.near_asked.iter().take(MAX_NEAR) {
            let files = |files: &[BString]| {
                let names: Vec<String> = files.iter().map(|f| safe(file_name(f.as_bstr()))).collect();
                enumerate(&names, 3)
            };
            let mut ways = Vec::new();
            if !near.needed_by.is_empty() {
                ways.push(format!("NEEDED by {}", files(&near.needed_by)));
            }
            if !near.opened_by.is_empty() {
                ways.push(format!("in read-only data of {}", files(&near.opened_by)));
            }
            self.put(out, "  ", 4, &format!("{} is {}", safe(&near.name), ways.join(", ")));
        }
    }

    fn notes(&self, out: &mut String) {
        for note in &self.why.notes {
            self.put(out, "note: ", 6, &safe(note));
        }
        for (index, site) in self.sites.iter().enumerate() {
            let sign = sign(index);
            if out.contains(&format!("{sign}/")) {
                out.push_str(&self.faint(&format!("{sign} is {}", safe(site))));
                out.push('\n');
            }
        }
    }
}

fn version(copy: &CopyFacts) -> String {
    match (&copy.owner, &copy.version) {
        (Some(owner), _) => safe(format!("{} {}", owner.package, owner.version)),
        (None, Some(version)) => safe(version),
        (None, None) => "version unknown".to_owned(),
    }
}

struct Row {
    number: usize,
    word: &'static str,
    ink: Option<Ink>,
    path: String,
    version: String,
    reason: String,
}
