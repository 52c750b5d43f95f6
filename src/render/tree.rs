//! Who needs whom, in load order, each edge with the rule that answered it. What `dlopen` brought stands below in trees of
//! its own; what is missing is explained at the end, once for each search order.

use std::collections::VecDeque;
use std::io::{self, Write};

use bstr::ByteSlice;
use rustc_hash::{FxHashMap, FxHashSet};

use super::text::layout::{shorten, width, wrap};
use super::text::{Ink, Style};
use super::{Report, escape, places};
use crate::findings::loading::Scene;
use crate::findings::{Severity, words};
use crate::ld::{Decision, DecisionId, How, ImageId, Outcome, Process, Rule, Step, StepId, StepKind, Verdict};

/// Deepest level that is drawn in place; what lies deeper is continued in a tree of its own.
const DEEPEST: usize = 24;

/// Writes the trees.
pub fn write(report: &Report, style: &Style, out: &mut dyn Write) -> io::Result<()> {
    let mut tree = Tree::new(report, style);
    let process = &report.process;
    let mut first = true;
    for (index, step) in process.steps.iter().enumerate() {
        if step.kind == StepKind::Preload {
            continue;
        }
        if !std::mem::take(&mut first) {
            tree.line(String::new());
        }
        tree.root(StepId(index as u32), step);
    }
    tree.missing();
    for line in &tree.lines {
        writeln!(out, "{line}")?;
    }
    Ok(())
}

/// What one line stands for.
enum Twig {
    /// One request.
    Edge(DecisionId),
    /// A run of requests that loaded libraries answer.
    Loaded(Vec<DecisionId>),
}

/// A piece of a line that stays together as long as it fits on a line.
struct Part {
    /// Spaces in front of it.
    gap: usize,
    ink: Ink,
    text: String,
}

/// A line that is waiting to be drawn.
struct Branch {
    twig: Twig,
    prefix: String,
    last: bool,
    depth: usize,
}

struct Tree<'a> {
    process: &'a Process,
    scene: Scene<'a>,
    style: &'a Style,
    lines: Vec<String>,
    /// Requests of each image, in the order they were made.
    requests: FxHashMap<ImageId, Vec<DecisionId>>,
    /// Decisions that a finding speaks of: its code and severity.
    marks: FxHashMap<DecisionId, (&'static str, Severity)>,
    /// Missing names by search order: the number of the note, its first decision, the names.
    unanswered: Vec<(DecisionId, Vec<String>)>,
    numbers: FxHashMap<places::Key, usize>,
    drawn: FxHashSet<ImageId>,
}

impl<'a> Tree<'a> {
    fn new(report: &'a Report, style: &'a Style) -> Tree<'a> {
        let process = &report.process;
        let mut requests: FxHashMap<ImageId, Vec<DecisionId>> = FxHashMap::default();
        for (n, d) in process.decisions.iter().enumerate() {
            let preload = d.how == How::Preload;
            if let Some(by) =
                d.needed_by.filter(|_| preload || matches!(d.how, How::Needed | How::Auxiliary | How::Filter))
            {
                requests.entry(by).or_default().push(DecisionId(n as u32));
            } else if preload {
                // musl's preloads have no requester; they belong to the program all the same.
                requests.entry(ImageId(0)).or_default().push(DecisionId(n as u32));
            }
        }
        let mut marks = FxHashMap::default();
        for f in report.findings.iter().rev().filter(|f| f.severity > Severity::Note) {
            if let Some(id) = f.decision() {
                marks.insert(id, (f.rule.id, f.severity));
            }
        }
        Tree {
            process,
            scene: Scene::new(process, report.exception.as_ref()),
            style,
            lines: Vec::new(),
            requests,
            marks,
            unanswered: Vec::new(),
            numbers: FxHashMap::default(),
            drawn: FxHashSet::default(),
        }
    }

    fn line(&mut self, text: String) {
        self.lines.push(text);
    }

    fn paint(&self, ink: Ink, text: &str) -> String {
        self.style.paint(ink, text)
    }

    fn name(&self, id: ImageId) -> String {
        escape::text(words::label(self.process, id).as_bytes())
    }

    // ------------------------------------------------------------------------------------------------------------ roots

    fn root(&mut self, id: StepId, step: &Step) {
        let columns = self.style.columns();
        let mut name = escape::text(&step.name);
        if matches!(step.kind, StepKind::Dlopen | StepKind::Import) && self.style.verbosity <= 0 {
            // `import` and `dlopen` are as long. Where the file lies stands below, too.
            name = shorten(&name, columns.saturating_sub(7));
        }
        let mut title = match step.kind {
            StepKind::Exec | StepKind::Preload => self.paint(Ink::Strong, &name),
            StepKind::Dlopen => format!("dlopen {}", self.paint(Ink::Strong, &name)),
            StepKind::Import => format!("import {}", self.paint(Ink::Strong, &name)),
        };
        let mut remarks: Vec<String> = Vec::new();
        if let Some(flags) = step.flags {
            remarks.push(flags.names().join(" "));
        }
        if let Some(caller) = step.caller.filter(|_| step.kind != StepKind::Exec) {
            remarks.push(format!("by {}", self.name(caller)));
        }
        if step.optional {
            remarks.push("optional".into());
        }
        match step.outcome {
            Outcome::AlreadyLoaded => remarks.push("already loaded".into()),
            Outcome::Skipped => remarks.push("not done".into()),
            Outcome::Ok | Outcome::Failed => {}
        }
        let remarks = if remarks.is_empty() { String::new() } else { format!("({})", remarks.join(", ")) };
        // `import` and `dlopen` are as long.
        let named = width(&name) + if matches!(step.kind, StepKind::Exec | StepKind::Preload) { 0 } else { 7 };
        if remarks.is_empty() || named + 2 + width(&remarks) <= columns {
            let gap = if remarks.is_empty() { "" } else { "  " };
            title.push_str(&self.paint(Ink::Faint, &format!("{gap}{remarks}")));
            self.line(title);
        } else {
            self.line(title);
            for line in wrap(&remarks, columns.saturating_sub(4)) {
                let line = self.paint(Ink::Faint, &format!("    {line}"));
                self.line(line);
            }
        }
        if !step.note.is_empty() {
            for line in wrap(&escape::text(step.note.as_bytes()), self.style.columns().saturating_sub(4)) {
                let line = self.paint(Ink::Faint, &format!("    {line}"));
                self.line(line);
            }
        }
        if step.outcome == Outcome::Failed {
            let harmless = self.scene.is_harmless(id);
            let ink = if harmless { Ink::Faint } else { Ink::Bad };
            for line in step.error.iter().flat_map(|e| e.lines()) {
                let text = format!("    {}: {}", if harmless { "harmless" } else { "fails" }, escape::text(line));
                let text = self.paint(ink, &text);
                self.line(text);
            }
        }
        match step.kind {
            StepKind::Exec | StepKind::Preload => {
                if !self.process.images.is_empty() {
                    self.children_of(ImageId(0));
                }
            }
            StepKind::Dlopen | StepKind::Import => {
                // The request of the dlopen itself is the only edge of its root.
                let own = (0..self.process.decisions.len() as u32).map(DecisionId).find(|d| {
                    let decision = &self.process.decisions[d.index()];
                    decision.step == id && decision.how == How::Dlopen
                });
                if let Some(decision) = own {
                    let twig = Twig::Edge(decision);
                    self.draw(VecDeque::from([Branch { twig, prefix: String::new(), last: true, depth: 0 }]));
                }
            }
        }
    }

    // --------------------------------------------------------------------------------------------------------- branches

    fn children_of(&mut self, id: ImageId) {
        self.drawn.insert(id);
        let mut stack = VecDeque::new();
        self.push_children(id, "", 0, &mut stack);
        self.draw(stack);
    }

    /// Draws branches, the children of each right behind it. Chains that are too deep go on in trees of their own.
    fn draw(&mut self, mut stack: VecDeque<Branch>) {
        let mut deeper: VecDeque<ImageId> = VecDeque::new();
        loop {
            while let Some(branch) = stack.pop_front() {
                let arm = if branch.last { "└── " } else { "├── " };
                let room = self.style.columns().saturating_sub(width(&branch.prefix) + 4).max(40);
                let decision = match &branch.twig {
                    Twig::Loaded(run) => {
                        let text = self.run(run, room);
                        self.line(format!("{}{arm}{text}", branch.prefix));
                        continue;
                    }
                    Twig::Edge(decision) => *decision,
                };
                let below = if branch.last { "    " } else { "│   " };
                for (n, text) in self.edge(decision, room).iter().enumerate() {
                    let arm = if n == 0 { arm } else { below };
                    self.line(format!("{}{arm}{text}", branch.prefix));
                }
                let chosen = self.process.decisions[decision.index()].chosen;
                let Some(id) = chosen.filter(|id| self.process.image(*id).decision == decision) else { continue };
                if !self.drawn.insert(id) || !self.requests.contains_key(&id) {
                    continue;
                }
                if branch.depth >= DEEPEST {
                    deeper.push_back(id);
                    continue;
                }
                let prefix = format!("{}{}", branch.prefix, if branch.last { "    " } else { "│   " });
                self.push_children(id, &prefix, branch.depth + 1, &mut stack);
            }
            let Some(id) = deeper.pop_front() else { break };
            let title =
                format!("{}{}", self.paint(Ink::Strong, &self.name(id)), self.paint(Ink::Faint, "  (continued)"));
            self.line(title);
            self.push_children(id, "", 0, &mut stack);
        }
    }

    /// Puts the branches of an image in front of what is still to be drawn.
    fn push_children(&self, id: ImageId, prefix: &str, depth: usize, stack: &mut VecDeque<Branch>) {
        for (n, twig) in self.twigs(id).into_iter().rev().enumerate() {
            stack.push_front(Branch { twig, prefix: prefix.to_owned(), last: n == 0, depth });
        }
    }

    /// The requests of an image; runs of loaded libraries in one line unless `-v` asks for each.
    fn twigs(&self, id: ImageId) -> Vec<Twig> {
        let mut out: Vec<Twig> = Vec::new();
        for decision in self.requests.get(&id).map(Vec::as_slice).unwrap_or_default() {
            let d = &self.process.decisions[decision.index()];
            let plain = d.via.as_ref().is_some_and(|v| v.place.rule == Rule::AlreadyLoaded)
                && !self.marks.contains_key(decision)
                && self.style.verbosity <= 0;
            match (plain, out.last_mut()) {
                (true, Some(Twig::Loaded(run))) => run.push(*decision),
                (true, _) => out.push(Twig::Loaded(vec![*decision])),
                (false, _) => out.push(Twig::Edge(*decision)),
            }
        }
        out
    }

    /// `libm.so.6, libc.so.6 [already loaded]`: as many names as fit.
    fn run(&self, run: &[DecisionId], room: usize) -> String {
        const REASON: &str = " [already loaded]";
        let mut text = String::new();
        for (n, id) in run.iter().enumerate() {
            let name = escape::text(&self.process.decisions[id.index()].asked);
            let rest = run.len() - n;
            let more = format!(", {rest} more");
            let separator = if n == 0 { "" } else { ", " };
            let tail = if rest == 1 { 0 } else { width(&more) };
            if n > 0 && width(&text) + width(&name) + 2 + tail + width(REASON) > room {
                text.push_str(&more);
                break;
            }
            text.push_str(separator);
            text.push_str(&name);
        }
        self.paint(Ink::Faint, &format!("{text}{REASON}"))
    }

    /// `libx.so.1 [runpath[1] of libfoo.so]  …/nvidia/x/lib`; what does not fit goes on in further lines.
    fn edge(&mut self, id: DecisionId, room: usize) -> Vec<String> {
        let decision = &self.process.decisions[id.index()];
        let asked = escape::text(&decision.asked);
        let mark = self.marks.get(&id).map(|(code, severity)| {
            let ink = if *severity == Severity::Error { Ink::Bad } else { Ink::Warn };
            Part { gap: 2, ink, text: format!("! {code}") }
        });
        let Some(chosen) = decision.chosen else {
            let verb = match decision.how {
                How::Auxiliary => "optional filter, ",
                _ => "",
            };
            let text = self.unanswered(id, decision);
            let ink = if self.scene.is_harmless(decision.step) || decision.how == How::Auxiliary {
                Ink::Faint
            } else {
                Ink::Bad
            };
            let name = Part { gap: 0, ink, text: asked };
            let why = format!("{verb}{text}");
            let why = why.split("  ").map(|text| Part { gap: 2, ink, text: text.to_owned() });
            return self.parts([name].into_iter().chain(why).chain(mark), room, None);
        };
        let image = self.process.image(chosen);
        let reason = self.reason(decision);
        let mut name = asked.clone();
        let label = self.name(chosen);
        let by_path = decision.asked.contains(&b'/');
        if by_path {
            name.clone_from(&label);
        } else if label != asked {
            name = format!("{asked} = {label}");
        }
        let new = image.decision == id;
        let (strong, note) = if new { (Ink::Strong, Ink::Note) } else { (Ink::Faint, Ink::Faint) };
        let name = Part { gap: 0, ink: strong, text: name };
        let bracket = Part { gap: 1, ink: note, text: format!("[{reason}]") };
        let gone = (new && image.unloaded_by.is_some()).then(|| "unloaded again".to_owned());
        let gone = gone.map(|text| Part { gap: 2, ink: Ink::Faint, text });
        let directory = new.then(|| words::directory(words::readable(self.process, image.name.as_bstr()).as_bstr()));
        let parts = [Some(name), Some(bracket), mark, gone].into_iter().flatten();
        self.parts(parts, room, directory.map(|d| escape::text(&d)))
    }

    /// Parts one behind the other in lines of so many columns, and a directory where there is room for it.
    fn parts(&self, parts: impl Iterator<Item = Part>, room: usize, directory: Option<String>) -> Vec<String> {
        const BELOW: usize = 2;
        let mut lines = vec![String::new()];
        let mut used = 0;
        for part in parts {
            let next = used + part.gap + width(&part.text);
            if used == 0 || next <= room {
                let text = self.paint(part.ink, &part.text);
                if let Some(line) = lines.last_mut() {
                    line.push_str(&" ".repeat(part.gap));
                    line.push_str(&text);
                }
                used = next;
                continue;
            }
            for text in wrap(&part.text, room.saturating_sub(BELOW)) {
                used = BELOW + width(&text);
                lines.push(format!("{}{}", " ".repeat(BELOW), self.paint(part.ink, &text)));
            }
        }
        if let Some(directory) = directory {
            let left = room.saturating_sub(used + 2);
            let directory = shorten(&directory, left);
            if let Some(line) = lines.last_mut().filter(|_| width(&directory) <= left) {
                line.push_str(&self.paint(Ink::Faint, &format!("  {directory}")));
            }
        }
        lines
    }

    /// The rule in the words of the report's other forms.
    fn reason(&self, decision: &Decision) -> String {
        if let Some((source, entry)) = words::preload_source(self.process, decision) {
            let bare = decision.via.as_ref().filter(|v| v.place.rule != Rule::Preload);
            let by = bare.map(|v| format!(", {}", self.place(v.place))).unwrap_or_default();
            return format!("{source}[{entry}]{by}");
        }
        let Some(via) = &decision.via else { return String::new() };
        let filter = match decision.how {
            How::Filter => "filter, ",
            How::Auxiliary => "optional filter, ",
            _ => "",
        };
        let text = match via.identity {
            Some(crate::ld::Identity::Soname) => "already loaded, by its soname".to_owned(),
            Some(crate::ld::Identity::Inode) => "already loaded, the same file".to_owned(),
            Some(crate::ld::Identity::Name) | None => self.place(via.place),
        };
        format!("{filter}{text}")
    }

    fn place(&self, place: crate::ld::Place) -> String {
        let entry = place.entry.filter(|_| place.rule != Rule::Cache && place.rule != Rule::Default);
        let entry = entry.map(|n| format!("[{n}]")).unwrap_or_default();
        let of = place.owner.map(|id| format!(" of {}", self.name(id))).unwrap_or_default();
        match place.rule {
            Rule::AlreadyLoaded => "already loaded".into(),
            Rule::MuslPath => format!("path{entry}"),
            rule => format!("{}{entry}{of}", rule.name()),
        }
    }

    // ---------------------------------------------------------------------------------------------------------- missing

    /// What to say of a request without an answer; the search order gets a number and is told once, at the end.
    fn unanswered(&mut self, id: DecisionId, decision: &Decision) -> String {
        let fatal = decision.attempts.iter().rev().find_map(|a| match &a.verdict {
            Verdict::Fatal(text) => Some((a, text)),
            _ => None,
        });
        if let Some((attempt, text)) = fatal {
            let what = words::what_is(self.process, attempt.path.as_bstr());
            let path = escape::text(&words::readable(self.process, attempt.path.as_bstr()));
            let place = self.place(attempt.place);
            return format!("ends the load: {} [{place}]  {path}: {what}", escape::text(text.as_bytes()));
        }
        if decision.asked.contains(&b'/') {
            let errno = decision.failure.as_ref().map_or(0, |f| f.errno);
            return if errno == 2 { "not there".into() } else { crate::system::Errno(errno).text() };
        }
        let next = self.unanswered.len();
        let number = *self.numbers.entry(places::key(decision)).or_insert(next);
        if number == next {
            self.unanswered.push((id, Vec::new()));
        }
        let name = escape::text(&decision.asked);
        if !self.unanswered[number].1.contains(&name) {
            self.unanswered[number].1.push(name);
        }
        format!("not found ({})", number + 1)
    }

    /// The notes on what is missing: each search order once, with the names that were looked for in it.
    fn missing(&mut self) {
        for (n, (id, names)) in std::mem::take(&mut self.unanswered).into_iter().enumerate() {
            let decision = &self.process.decisions[id.index()];
            let who = decision.needed_by.map(|id| format!(" for {}", self.name(id))).unwrap_or_default();
            let head = match names.as_slice() {
                [one] => format!("({}) {one}, not found{who}; searched in this order:", n + 1),
                list => format!(
                    "({}) {} not found{who}, same places searched: {}",
                    n + 1,
                    words::count(list.len(), "library", "libraries"),
                    list.join(", ")
                ),
            };
            self.line(String::new());
            for line in wrap(&head, self.style.columns()) {
                self.line(line);
            }
            let mut lines = places::lines(self.process, decision);
            if self.style.verbosity <= 0 {
                lines = places::brief(lines);
            }
            for line in places::drawn(&lines, self.style.columns().saturating_sub(4), self.style) {
                self.line(format!("    {line}"));
            }
        }
    }
}
