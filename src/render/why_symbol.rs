//! The story of a symbol as text: how its lookups end, who asks, which definitions are met, what lies elsewhere.

use std::io::{self, Write};

use bstr::ByteSlice;

use super::text::layout::{Paths, pad, width, wrap};
use super::text::{Ink, Style};
use super::{enumerate, escape};
use crate::findings::why_symbol::{Elsewhere, FileFacts, Lookup, Met, ProcessStory, Referrer, SymbolStory, WhySymbol};
use crate::findings::words::count;
use crate::ld::{Because, Ending, Outside, Refusal, Standing, When};
use crate::system::file_name;

/// Most symbols that are told in full, unless `-v` asks for all.
const MAX_SYMBOLS: usize = 3;
/// Most answers of one process that are told in full.
const MAX_LOOKUPS: usize = 4;
/// Most referrers with a line each.
const MAX_REFERRERS: usize = 4;
/// Most definitions of one lookup with a line each.
const MAX_MET: usize = 8;
/// Most files elsewhere with a line each.
const MAX_ELSEWHERE: usize = 5;
/// Longest symbol that is written out, in bytes.
const MAX_NAME: usize = 300;
/// Column at which the contents of a block begin.
const INDENT: usize = 12;
/// Longest lines of prose.
const PROSE: usize = 120;

/// Writes the story.
pub fn write(why: &WhySymbol, style: &Style, out: &mut dyn Write) -> io::Result<()> {
    let page = Page { why, style };
    let mut text = String::new();
    page.symbols(&mut text);
    for note in &why.notes {
        page.labelled(&mut text, "note", &safe(note.as_bytes()));
    }
    out.write_all(text.as_bytes())
}

struct Page<'a> {
    why: &'a WhySymbol,
    style: &'a Style,
}

/// One file in a table.
struct Row {
    word: &'static str,
    ink: Option<Ink>,
    path: String,
    version: String,
    reason: String,
}

/// A line of a table, or what is folded between two of them.
enum Line {
    Row(Row),
    Folded(String),
}

/// Bytes as text of bounded length.
fn safe(bytes: &[u8]) -> String {
    if bytes.len() <= MAX_NAME {
        return escape::text(bytes);
    }
    // Cut where a character begins.
    let end = (0..=MAX_NAME).rev().find(|at| bytes[*at] & 0xc0 != 0x80).unwrap_or(MAX_NAME);
    format!("{}… ({} bytes)", escape::text(&bytes[..end]), bytes.len())
}

fn short(file: &FileFacts) -> String {
    safe(file_name(file.path.as_bstr()))
}

/// Version and package of a file, as far as something tells.
fn version(file: &FileFacts) -> String {
    match (&file.version, &file.owner) {
        (Some(version), Some(owner)) if owner.version == *version => {
            format!("{} ({})", safe(version.as_bytes()), safe(owner.package.as_bytes()))
        }
        (_, Some(owner)) => format!("{} ({})", safe(owner.version.as_bytes()), safe(owner.package.as_bytes())),
        (Some(version), None) => safe(version.as_bytes()),
        (None, None) => String::new(),
    }
}

impl Page<'_> {
    fn verbose(&self) -> bool {
        self.style.verbosity > 0
    }

    fn most(&self, usual: usize) -> usize {
        if self.verbose() { usize::MAX } else { usual }
    }

    fn labelled(&self, out: &mut String, label: &str, text: &str) {
        let columns = self.style.columns().min(PROSE).saturating_sub(INDENT);
        for (n, line) in wrap(text, columns).iter().enumerate() {
            let label = if n == 0 { label } else { "" };
            out.push_str(format!("  {}{line}", pad(label, INDENT - 2)).trim_end());
            out.push('\n');
        }
    }

    fn symbols(&self, out: &mut String) {
        let why = self.why;
        if why.symbols.is_empty() {
            let version = why.query.version.as_ref().map(|v| format!("@{}", safe(v))).unwrap_or_default();
            let name = format!("{}{version}", safe(&why.query.name));
            let word = self.style.paint(Ink::Warn, "UNKNOWN");
            out.push_str(&format!("{word}  {}\n", self.style.paint(Ink::Strong, &name)));
            let files = count(why.files_looked_at, "other library file", "other library files");
            let text = format!("no image of the process refers to it or defines it, nor does any of the {files} here");
            self.labelled(out, "", &text);
            return;
        }
        if why.symbols.len() > 1 {
            let all = count(why.symbols.len() + why.left_out, "symbol", "symbols");
            let line = format!("{} stands for {all}", safe(&why.query.name));
            out.push_str(&self.style.paint(Ink::Strong, &line));
            out.push('\n');
        }
        let full = self.most(MAX_SYMBOLS);
        for (n, story) in why.symbols.iter().take(full).enumerate() {
            if n > 0 || why.symbols.len() > 1 {
                out.push('\n');
            }
            self.symbol(out, story);
        }
        let rest = why.symbols.iter().skip(full).collect::<Vec<_>>();
        if !rest.is_empty() {
            out.push('\n');
            for story in rest.iter().take(10) {
                let ending = story.processes.iter().flat_map(|p| &p.lookups).next().map(|l| self.in_short(l));
                let name = story.demangled.as_ref().map_or_else(|| safe(&story.name), |d| safe(d.as_bytes()));
                let text = format!("{name}: {}", ending.unwrap_or_else(|| "in files that are not loaded".into()));
                self.labelled(out, "likewise", &text);
            }
            if rest.len() + why.left_out > 10 {
                self.labelled(out, "", &format!("and {} more (-v)", rest.len() + why.left_out - 10));
            }
        }
    }

    fn in_short(&self, lookup: &Lookup) -> String {
        match self.winner(lookup) {
            Some(met) if lookup.referrers.is_empty() => format!("defined by {}, nobody refers to it", short(&met.file)),
            Some(met) => format!("{} answers {}", short(&met.file), images(lookup)),
            None => format!("nothing answers {}", images(lookup)),
        }
    }

    fn winner<'l>(&self, lookup: &'l Lookup) -> Option<&'l Met> {
        lookup.met.iter().find(|m| matches!(m.standing, Standing::Wins(_)))
    }

    fn symbol(&self, out: &mut String, story: &SymbolStory) {
        for (n, process) in story.processes.iter().enumerate() {
            if n > 0 {
                out.push('\n');
            }
            self.process(out, story, process);
        }
        if story.processes.is_empty() {
            let word = self.style.paint(Ink::Warn, "NOT LOADED");
            let text = format!("{}: no image of the process refers to it or defines it", self.name(story, None));
            self.headline(out, &word, 12, &text);
            self.mangled(out, story);
        }
        self.elsewhere(out, story);
        if let Some(known) = &story.known {
            // What follows the colon is what a missing symbol tells.
            let fails = story.processes.iter().flat_map(|p| &p.lookups).any(|l| l.ending == Ending::Undefined);
            let known = if fails { known } else { known.split_once(": ").map_or(known.as_str(), |(fact, _)| fact) };
            self.labelled(out, "known", &safe(known.as_bytes()));
        }
    }

    /// The C++ name where there is one, with the version.
    fn name(&self, story: &SymbolStory, lookup: Option<&Lookup>) -> String {
        let name = story.demangled.as_ref().map_or_else(|| safe(&story.name), |d| safe(d.as_bytes()));
        let version = lookup.and_then(|l| l.version.as_ref());
        version.map_or(name.clone(), |v| format!("{name}, version {}", safe(v)))
    }

    fn mangled(&self, out: &mut String, story: &SymbolStory) {
        if story.demangled.is_some() {
            self.labelled(out, "symbol", &safe(&story.name));
        }
    }

    fn headline(&self, out: &mut String, word: &str, indent: usize, text: &str) {
        for (n, line) in wrap(text, self.style.columns().saturating_sub(indent)).iter().enumerate() {
            if n == 0 {
                out.push_str(&format!("{word}  {}\n", self.style.paint(Ink::Strong, line)));
            } else {
                out.push_str(&format!("{:indent$}{}\n", "", self.style.paint(Ink::Strong, line)));
            }
        }
    }

    fn process(&self, out: &mut String, story: &SymbolStory, process: &ProcessStory) {
        let title = safe(process.title.as_bytes());
        let most = self.most(MAX_LOOKUPS);
        for (n, lookup) in process.lookups.iter().take(most).enumerate() {
            if n > 0 {
                out.push('\n');
            }
            let name = self.name(story, Some(lookup));
            let who = images(lookup);
            let (word, ink, text) = match (lookup.ending, self.winner(lookup)) {
                (_, winner) if lookup.referrers.is_empty() => {
                    let text = match winner {
                        Some(met) => {
                            format!("{name}: nothing in {title} refers to it; {} would answer", short(&met.file))
                        }
                        None => format!("{name}: nothing in {title} refers to it, and the program would not find it"),
                    };
                    ("NOT REFERRED TO", Ink::Note, text)
                }
                (_, winner) if !lookup.was_made() => {
                    let would = match winner {
                        Some(met) => format!("{} would answer", short(&met.file)),
                        None => "nothing that it may bind to defines it either".to_owned(),
                    };
                    ("NOT REACHED", Ink::Warn, format!("{name}: the load of {who} in {title} ends before; {would}"))
                }
                (_, Some(met)) => {
                    ("FOUND", Ink::Good, format!("{name}: {} answers {who} in {title}", short(&met.file)))
                }
                (Ending::Zero, None) => {
                    let text = format!("{name}: nothing in {title} defines it; weak, so {who} goes on without it");
                    ("ABSENT", Ink::Note, text)
                }
                (Ending::Assertion, None) => {
                    ("DIES", Ink::Bad, format!("{name}: the loader dies of an assertion for {who} in {title}"))
                }
                (_, None) => {
                    ("UNDEFINED", Ink::Bad, format!("{name}: nothing that {who} may bind to in {title} defines it"))
                }
            };
            let painted = self.style.paint(ink, word);
            self.headline(out, &painted, word.len() + 2, &text);
            if let Some(error) = process.error.as_ref().filter(|_| n == 0) {
                for line in error.lines().take(4) {
                    out.push_str(&format!("{:indent$}{}\n", "", safe(line), indent = word.len() + 2));
                }
            }
            if n == 0 {
                self.mangled(out, story);
            }
            self.lookup(out, lookup);
        }
        if process.lookups.len() > most {
            let rest: Vec<String> = process.lookups[most..].iter().map(|l| self.in_short(l)).collect();
            self.labelled(out, "likewise", &enumerate(&rest, 3));
        }
        if process.other_versions > 0 {
            let text = count(process.other_versions, "reference asks", "references ask");
            self.labelled(out, "also", &format!("{text} for other versions of it"));
        }
        if process.left_out > 0 {
            self.labelled(
                out,
                "also",
                &format!("{} that are not told of", count(process.left_out, "reference", "references")),
            );
        }
    }

    fn lookup(&self, out: &mut String, lookup: &Lookup) {
        let mut lines: Vec<Line> = Vec::new();
        let groups = referrers(&lookup.referrers);
        let most = self.most(MAX_REFERRERS);
        for (use_, group) in groups.iter().take(most) {
            let file = &group[0].file;
            let others: Vec<String> = group[1..].iter().map(|r| short(&r.file)).collect();
            let others = if others.is_empty() { String::new() } else { format!("; so does {}", enumerate(&others, 3)) };
            lines.push(Line::Row(Row {
                word: "asks",
                ink: None,
                // What asks is told by its name where its package is known; only definitions are compared by paths.
                path: if file.owner.is_some() { short(file) } else { safe(&file.path) },
                version: version(file),
                reason: format!("{use_}{others}"),
            }));
        }
        if groups.len() > most {
            lines.push(Line::Folded(format!(
                "and {} in like manner",
                groups[most..].iter().map(|g| g.1.len()).sum::<usize>()
            )));
        }
        self.met(&mut lines, lookup);
        self.table(out, &lines);
        if let Some(text) = self.because(lookup) {
            self.labelled(out, "because", &text);
        }
    }

    /// The definitions in the order of the scope; images without one are folded.
    fn met(&self, lines: &mut Vec<Line>, lookup: &Lookup) {
        let lacking = lookup.lacking.iter().map(|l| (l.place, None, Some(l)));
        let met = lookup.met.iter().map(|m| (m.place, Some(m), None));
        let mut all: Vec<_> = met.chain(lacking).collect();
        all.sort_by_key(|(place, ..)| place.unwrap_or(u32::MAX));
        let uniform = lookup.asked.0 == lookup.asked.1;
        // Each has its own scope; the first one's is told.
        let seen_by = match lookup.referrers.first().filter(|_| !uniform) {
            Some(first) => format!(", for {}", short(&first.file)),
            None => String::new(),
        };
        let total = lookup.scope.len() as u32;
        let mut next = 0;
        let most = self.most(MAX_MET);
        let mut left_out = 0;
        for (n, (place, met, lacking)) in all.iter().enumerate() {
            // The winner is always told.
            let wins = met.is_some_and(|m| matches!(m.standing, Standing::Wins(_)));
            if n >= most && !wins {
                left_out += 1;
                continue;
            }
            if let Some(place) = place {
                if *place > next {
                    let images = count((place - next) as usize, "image", "images");
                    lines.push(Line::Folded(format!("not in {images} before{seen_by}")));
                }
                next = place + 1;
            }
            if let Some(met) = met {
                lines.push(Line::Row(self.met_row(met, lookup)));
            } else if let Some(lacking) = lacking {
                lines.push(Line::Row(Row {
                    word: "lacks it",
                    ink: Some(Ink::Bad),
                    path: safe(&lacking.file.path),
                    version: version(&lacking.file),
                    reason: "was meant at link time, and does not define it".to_owned(),
                }));
            }
        }
        if left_out > 0 {
            lines.push(Line::Folded(format!("and {left_out} more (-v)")));
        }
        let last = all.iter().filter_map(|(place, ..)| *place).max();
        if self.winner(lookup).is_none() {
            let asked = match (uniform, last) {
                (true, None) => format!("not in any of {}", count(total as usize, "image", "images")),
                (true, Some(last)) if last + 1 < total => {
                    format!("not in {} after", count((total - last - 1) as usize, "image", "images"))
                }
                (true, Some(_)) => return,
                (false, _) => format!("{} to {} images are asked", lookup.asked.0, lookup.asked.1),
            };
            lines.push(Line::Folded(asked));
        }
    }

    fn met_row(&self, met: &Met, lookup: &Lookup) -> Row {
        let of = met.version.as_ref().map(safe_version).unwrap_or_default();
        let step = safe(met.step.as_bytes());
        let (word, ink, reason) = match met.standing {
            Standing::Wins(_) => ("wins", Some(Ink::Good), String::new()),
            Standing::Later => ("later", None, "would do, but stands behind the winner".to_owned()),
            Standing::Overruled(because) => {
                let why = match because {
                    Because::Protected => "stands in front, but the file's own definition is protected".to_owned(),
                    Because::Unique => "stands in front, but a unique symbol is bound once for all".to_owned(),
                    _ if met.weak => "weak, and LD_DYNAMIC_WEAK makes the loader look on".to_owned(),
                    _ => "stands in front".to_owned(),
                };
                ("passed", Some(Ink::Warn), why)
            }
            Standing::Refused(refusal) => ("passed", Some(Ink::Warn), refused(refusal, met, lookup)),
            Standing::Outside(outside, refusal) => {
                let mut why = match outside {
                    Outside::Local(_) => format!("not in the scope: {step} without RTLD_GLOBAL"),
                    Outside::Later(_) => format!("not in the scope: opened later, {step}"),
                    Outside::Unloaded(_) => format!("not in the scope: unloaded again, {step}"),
                };
                if let Some(refusal) = refusal {
                    why.push_str(&format!("; nor would it do: {}", refused(refusal, met, lookup)));
                }
                ("unseen", Some(Ink::Warn), why)
            }
        };
        let reason = [of, reason].into_iter().filter(|t| !t.is_empty()).collect::<Vec<_>>().join("; ");
        Row { word, ink, path: safe(&met.file.path), version: version(&met.file), reason }
    }

    /// The rule by which the winner won, where there is something to tell.
    fn because(&self, lookup: &Lookup) -> Option<String> {
        let met = self.winner(lookup)?;
        let Standing::Wins(because) = met.standing else { return None };
        let winner = short(&met.file);
        let behind = lookup.met.iter().find(|m| m.standing == Standing::Later);
        let asks = lookup.referrers.first().map_or_else(|| "the file".to_owned(), |r| short(&r.file));
        Some(match because {
            Because::First => match behind {
                Some(other) => {
                    format!("{winner} stands before {} in the scope, and the first definition wins", short(&other.file))
                }
                None => return None,
            },
            Because::FirstThoughWeak => match behind {
                Some(other) => format!(
                    "{winner} stands before {} in the scope; that its definition is weak makes no difference to the loader",
                    short(&other.file)
                ),
                None => return None,
            },
            Because::NoStrongOne => {
                format!("LD_DYNAMIC_WEAK is set and no strong definition follows: {winner} is the first weak one")
            }
            Because::Protected => {
                format!("the definition in {winner} is protected: {winner} itself always means its own")
            }
            Because::NotLookedUp => format!("the symbol is local to {winner}: nothing is looked up"),
            Because::Symbolic => format!("{winner} was linked with -Bsymbolic: it is asked before all others"),
            Because::DeepBind => format!(
                "{asks} was opened with RTLD_DEEPBIND or linked with -Bsymbolic: its own libraries are asked before the global ones"
            ),
            Because::Unique => format!(
                "the symbol is unique (STB_GNU_UNIQUE): the first binding in the process, to {winner}, counts for all"
            ),
            Because::LargeFile => "musl answers the name with 64 at its end by the plain function".to_owned(),
        })
    }

    fn elsewhere(&self, out: &mut String, story: &SymbolStory) {
        let (copies, others): (Vec<&Elsewhere>, Vec<&Elsewhere>) = story.elsewhere.iter().partition(|e| e.is_copy);
        if !copies.is_empty() || !others.is_empty() {
            let whom =
                if story.processes.len() > 1 { "not loaded where it is wanted" } else { "loaded by nobody here" };
            out.push_str(&format!("  elsewhere on this box, {whom}:\n"));
        }
        let most = self.most(MAX_ELSEWHERE);
        let told = if copies.is_empty() { &others } else { &copies };
        let mut lines: Vec<Line> = told.iter().take(most).map(|e| Line::Row(elsewhere_row(e))).collect();
        let left = told.len().saturating_sub(most);
        if left > 0 {
            lines.push(Line::Folded(format!("and {left} more (-v)")));
        }
        if !copies.is_empty() && !others.is_empty() {
            let others = others.len() + story.elsewhere_left_out;
            if self.verbose() {
                lines.extend(story.elsewhere.iter().filter(|e| !e.is_copy).map(|e| Line::Row(elsewhere_row(e))));
            } else {
                let text = count(others, "other library defines", "other libraries define");
                lines.push(Line::Folded(format!("and {text} it (-v)")));
            }
        }
        self.table(out, &lines);
    }

    /// Files in columns when they fit, else in two lines each.
    fn table(&self, out: &mut String, lines: &[Line]) {
        let rows: Vec<&Row> = lines
            .iter()
            .filter_map(|l| match l {
                Line::Row(row) => Some(row),
                Line::Folded(_) => None,
            })
            .collect();
        let columns = self.style.columns();
        let together = Paths::new(&rows.iter().map(|r| r.path.as_str()).collect::<Vec<_>>());
        let widest = |f: &dyn Fn(&Row) -> usize| rows.iter().map(|r| f(r)).max().unwrap_or(0);
        let versions = widest(&|r| width(&r.version));
        let reasons = widest(&|r| width(&r.reason));
        let paths = widest(&|r| width(&r.path));
        let fits = INDENT + paths + 2 + versions + 2 + reasons <= columns;
        let mut index = 0;
        for line in lines {
            let row = match line {
                Line::Folded(text) => {
                    out.push_str(&format!("{:INDENT$}{}\n", "", self.style.paint(Ink::Faint, text)));
                    continue;
                }
                Line::Row(row) => row,
            };
            let word = pad(row.word, INDENT - 4);
            let word = row.ink.map_or_else(|| word.clone(), |ink| self.style.paint(ink, &word));
            if fits {
                let text = format!("{}  {}  {}", pad(&row.path, paths), pad(&row.version, versions), row.reason);
                out.push_str(&format!("  {word}  {}\n", text.trim_end()));
            } else {
                let path = together.fit(index, columns.saturating_sub(INDENT));
                out.push_str(&format!("  {word}  {path}\n"));
                let facts = [row.version.as_str(), row.reason.as_str()];
                let facts = facts.into_iter().filter(|f| !f.is_empty()).collect::<Vec<_>>().join("; ");
                for line in wrap(&facts, columns.min(PROSE).saturating_sub(INDENT)).iter().filter(|l| !l.is_empty()) {
                    out.push_str(&format!("{:INDENT$}{line}\n", ""));
                }
            }
            index += 1;
        }
    }
}

fn safe_version(version: &bstr::BString) -> String {
    format!("version {}", safe(version))
}

/// `libfoo.so`, `libfoo.so and 3 more`.
fn images(lookup: &Lookup) -> String {
    let names: Vec<String> = lookup.referrers.iter().map(|r| short(&r.file)).collect();
    match names.len() {
        0 => "the program".to_owned(),
        1 | 2 => enumerate(&names, 2),
        n => format!("{} and {} more", names[0], n - 1),
    }
}

/// Referrers that differ in the file only, in the order of the first of each, with what they ask for in words.
fn referrers(all: &[Referrer]) -> Vec<(String, Vec<&Referrer>)> {
    let mut groups: Vec<(String, Vec<&Referrer>)> = Vec::new();
    for referrer in all {
        let uses: Vec<String> = referrer
            .uses
            .iter()
            .map(|(class, when)| {
                let when = if *when == When::Load { "at load" } else { "at the first call" };
                let class = match class.name() {
                    "plt" => "call",
                    "tls" => "thread-local variable",
                    "copy" => "copy of a variable",
                    _ => "address",
                };
                format!("{class}, {when}")
            })
            .collect();
        let weak = if referrer.weak { "weak " } else { "" };
        let recorded = if referrer.recorded { "" } else { ", not reached" };
        let text = format!("{weak}{}{recorded}", uses.join("; "));
        match groups.iter_mut().find(|(t, _)| *t == text) {
            Some((_, group)) => group.push(referrer),
            None => groups.push((text, vec![referrer])),
        }
    }
    groups
}

fn refused(refusal: Refusal, met: &Met, lookup: &Lookup) -> String {
    let wanted = lookup.version.as_ref().map(|v| safe(v)).unwrap_or_default();
    match refusal {
        Refusal::NoDefinition => match met.kind {
            0..=2 | 5 | 6 | 10 => "is no definition: it has no address".to_owned(),
            kind => format!("symbols of type {kind} are never bound to"),
        },
        Refusal::PltEntry => "is the PLT entry of the program, which answers for addresses only".to_owned(),
        Refusal::OtherVersion => format!("another version than {wanted}"),
        Refusal::OldVersion => "kept for old programs: only a reference to that very version means it".to_owned(),
        Refusal::Ambiguous => "one of several versions, and none is asked for".to_owned(),
        Refusal::Unversioned => format!("has no version, and {wanted} is insisted on"),
        Refusal::Assertion => "is the library that was meant, and has no versions at all".to_owned(),
        Refusal::Hidden => "hidden".to_owned(),
        Refusal::Local => "local".to_owned(),
        Refusal::Program => "the program's own place, for which the copy is wanted".to_owned(),
        Refusal::Namesake => "another definition in the same file answers".to_owned(),
    }
}

fn elsewhere_row(elsewhere: &Elsewhere) -> Row {
    let versions: Vec<String> = elsewhere.versions.iter().map(|v| safe(v)).collect();
    let mut reason = match versions.len() {
        0 => String::new(),
        1 => format!("version {}", versions[0]),
        _ => format!("versions {}", enumerate(&versions, 3)),
    };
    if !elsewhere.suits {
        reason.push_str(", which is not the one asked for");
    }
    let file = &elsewhere.file;
    Row { word: "has it", ink: None, path: safe(&file.path), version: version(file), reason }
}
