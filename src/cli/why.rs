//! `--why NAME [TARGET]`: which processes to simulate, where to look for copies and for askers, and the what-ifs.

use std::io::Write;
use std::sync::Arc;

use bstr::{BStr, BString, ByteSlice};
use rayon::prelude::*;
use rustc_hash::FxHashSet;

use super::Error;
use super::args::{Args, Format};
use super::audit::{self, Plan, Simulated, Subject, quoted};
use super::loaders::Loaders;
use crate::discover::copies::{self, Copy, Literal, Name, Origin};
use crate::discover::python::{self, EntryKind, Module, Python};
use crate::findings::why::{self, ByLiteral, Change, Knowledge, NearAsked, Run, Why};
use crate::findings::why_symbol::Query;
use crate::ld::{Family, How, ImageId, Object, OpenFlags, OpenRequest, Process, verify};
use crate::recipe::FRAMEWORKS;
use crate::render::{self, Target};
use crate::system::{FileKey, Host, Kind, System, file_name, join};

/// Most processes that are simulated for packages other than the target.
const MAX_PACKAGES: usize = 48;
/// Most requests by a literal that are simulated.
const MAX_LITERAL_RUNS: usize = 64;
/// Most files that are named for a near name.
const MAX_NEAR_FILES: usize = 1000;
/// Most simulations made for what-ifs; beyond that only the target's own processes are tried.
const MAX_WHAT_IFS: usize = 600;

/// Programs that need no library but libc, the first there is stands for "a program".
const PROGRAMS: &[&str] = &["/usr/bin/true", "/bin/true", "/usr/bin/env", "/bin/sh", "/bin/busybox"];

/// What a file of a package asks for.
#[derive(Clone)]
struct Asking {
    key: FileKey,
    /// True when it has a NEEDED of the name.
    needs: bool,
    /// Texts by which it may open the name.
    texts: Vec<(BString, Literal)>,
}

/// A process to simulate, under whatever environment.
struct Scenario {
    group: usize,
    title: String,
    circumstances: String,
    plan: usize,
    /// Files that are opened by their path after the plan's own steps, unless they are loaded by then.
    load: Vec<BString>,
    /// The caller of a further `dlopen`, the text in it, and how that asks for the name.
    literal: Option<(FileKey, BString, Literal)>,
    /// Which part of the process is meant.
    part: Part,
}

/// Which requests of a process belong to the story.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    /// All of them.
    Whole,
    /// Those after the start of the interpreter: the process is another package's.
    AfterStart,
    /// Those after the plan's own steps: the target goes before.
    AfterPlan,
    /// All, though nobody is known to ask.
    Supposed,
}

/// Explains one name; returns the exit status.
pub fn run(args: &Args, asked: &BStr, out: &mut dyn Write) -> Result<u8, Error> {
    if !matches!(args.format, Format::Text | Format::Json | Format::Jsonl) {
        return Err(Error::with_hint(
            "cannot write the story of a name in this form",
            "use `--format text`, `json` or `jsonl`",
        ));
    }
    let system = audit::system(args)?;
    let loaders = Loaders::new(args, &system);
    loaders.threads.start();
    if let Some(query) = Query::parse(asked)
        && super::why_symbol::run(&loaders, &query, out)?
    {
        return Ok(0);
    }
    let mut question = Question::new(&loaders, asked)?;
    question.add_own_processes();
    question.add_other_packages();
    question.add_supposed();
    question.add_plain_program()?;
    let why = question.answer()?;
    match args.format {
        Format::Json | Format::Jsonl => {
            let mut report = audit::audit(question.reported());
            report.why = Some(render::Story::Library(why));
            render::json::write(&report, out, args.format == Format::Json)?;
        }
        _ => render::why::write(&why, &super::screen::style(args), out)?,
    }
    Ok(0)
}

/// What a story is about.
pub struct Plans {
    /// The targets; when none is named the frameworks of the environment, else the program of a fixture.
    pub plans: Vec<Plan>,
    /// The Python environment.
    pub python: Option<Arc<Python>>,
    /// Why there is none.
    pub no_python: Option<String>,
}

/// Finds out what a story is about.
pub fn plans(loaders: &Loaders<'_>) -> Result<Plans, Error> {
    let Loaders { args, system, .. } = *loaders;
    let mut python = None;
    let mut plans = match args.targets[..] {
        [] => Vec::new(),
        _ => audit::named_plans(loaders, &mut python)?.all()?,
    };
    let mut no_python = None;
    if python.is_none() && args.python.is_none() {
        python = plans.first().and_then(|plan| plan.environment().cloned());
    }
    if python.is_none() {
        match audit::find_python(args, system) {
            Ok(found) => python = Some(Arc::new(found)),
            // What was named must be there.
            Err(e) if args.python.is_some() => return Err(e),
            Err(e) => no_python = Some(e.to_string()),
        }
    }
    if let Some(python) = python.as_ref().filter(|_| plans.is_empty()) {
        for framework in FRAMEWORKS {
            if python.find_module(framework).module != Module::Missing {
                plans.push(audit::plan_python(loaders, python, framework)?);
            }
        }
        super::usage::check_use(args, &plans)?;
    }
    if plans.is_empty() {
        // A fixture without a framework is about its program.
        plans = audit::named_plans(loaders, &mut python)?.all()?;
    }
    Ok(Plans { plans, python, no_python })
}

/// What was asked for: a name, or a path that stands for one and is given back too.
fn read_name(system: &System, asked: &BStr, files: &[BString]) -> Result<(Name, Option<BString>), Error> {
    let mut text = asked.to_owned();
    let mut given = None;
    if text.contains(&b'/') {
        if let Err(errno) = system.stat(text.as_bstr()) {
            return Err(Error::new(format!("cannot explain {}: {}", quoted(&text), errno.text().to_lowercase())));
        }
        given = Some(text.clone());
        let facts = audit::target_facts(system, text.as_bstr()).ok();
        text = facts.and_then(|f| f.soname).unwrap_or_else(|| file_name(text.as_bstr()).to_owned());
    }
    if let Some(name) = Name::parse(text.as_bstr()) {
        return Ok((name, given));
    }
    let wanted = text.to_ascii_lowercase();
    let names = files.iter().map(|f| file_name(f.as_bstr()).to_owned());
    let mut similar: Vec<BString> =
        names.filter(|f| !wanted.is_empty() && f.to_ascii_lowercase().contains_str(&wanted)).collect();
    similar.sort_by_key(|f| (f.len(), f.clone()));
    similar.dedup();
    similar.truncate(5);
    let hint = match similar[..] {
        [] => "write the name as programs ask for it, `libfoo.so.1`".to_owned(),
        _ => format!("libraries here: {}", similar.iter().map(|n| quoted(n)).collect::<Vec<_>>().join(", ")),
    };
    let what = "neither the name of a library nor a symbol that a file here refers to or defines";
    Err(Error::with_hint(format!("cannot explain {}: {what}", quoted(&text)), hint))
}

/// Everything known about the question so far.
struct Question<'a> {
    args: &'a Args,
    system: &'a System,
    loaders: &'a Loaders<'a>,
    plans: Vec<Plan>,
    /// How many of the plans are targets; others are added for packages.
    targets: usize,
    python: Option<Arc<Python>>,
    /// Why there is no Python.
    no_python: Option<String>,
    name: Name,
    given: Option<BString>,
    /// Library files of the environment's packages.
    files: Vec<BString>,
    scenarios: Vec<Scenario>,
    baseline: Vec<Run>,
    /// Files looked at for askers.
    looked_at: usize,
    near_asked: Vec<NearAsked>,
    notes: Vec<String>,
}

impl<'a> Question<'a> {
    fn new(loaders: &'a Loaders<'a>, asked: &'a BStr) -> Result<Question<'a>, Error> {
        let Loaders { args, system, .. } = *loaders;
        let Plans { plans, python, no_python } = plans(loaders)?;
        let (files, cut) = python.as_ref().map(|p| super::places::package_files(system, p)).unwrap_or_default();
        let (name, given) = read_name(system, asked, &files)?;
        let mut notes = Vec::new();
        if cut {
            notes.push("the package directories are too big to be looked through whole".into());
        }
        Ok(Question {
            args,
            system,
            loaders,
            targets: plans.len(),
            plans,
            python,
            no_python,
            name,
            given,
            files,
            scenarios: Vec::new(),
            baseline: Vec::new(),
            looked_at: 0,
            near_asked: Vec::new(),
            notes,
        })
    }

    // ------------------------------------------------------------------------------------------------- processes

    /// The targets themselves, and what their libraries can open by name.
    fn add_own_processes(&mut self) {
        for plan in 0..self.targets {
            let group = self.next_group();
            self.add(Scenario {
                group,
                title: self.title(plan),
                circumstances: String::new(),
                plan,
                load: Vec::new(),
                literal: None,
                part: Part::Whole,
            });
            let Some(run) = self.baseline.last() else { continue };
            let images: Vec<BString> = run
                .process
                .images
                .iter()
                .filter(|i| i.unloaded_by.is_none() && i.facts().is_some())
                .map(|i| i.name.clone())
                .collect();
            let store = self.plans[plan].store.clone();
            let name = &self.name;
            let found: Vec<Vec<(BString, Literal)>> =
                images.par_iter().map(|path| copies::literals(&store, name, path.as_bstr())).collect();
            self.looked_at += images.len();
            let title = self.title(plan);
            for (path, texts) in images.iter().zip(found) {
                let Ok(object) = store.open(path.as_bstr()) else { continue };
                self.note_near(path, &object, &texts);
                let key = object.meta.key;
                self.add_literal(group, plan, &title, "", &[], key, texts, Part::Whole);
            }
        }
    }

    /// Files of the environment's packages that the targets do not load and that ask for the name.
    fn add_other_packages(&mut self) {
        let file_target = (0..self.targets).any(|p| !matches!(self.plans[p].subject, Subject::Python { .. }));
        let Some(python) = self.python.clone().filter(|_| !file_target) else { return };
        let Some(base) = self.interpreter_plan(&python) else { return };
        let store = base.store.clone();
        let loaded: FxHashSet<FileKey> =
            self.baseline.iter().flat_map(|r| &r.process.images).map(|i| i.object.meta.key).collect();
        let name = self.name.clone();
        let found: Vec<Option<Asking>> = self
            .files
            .par_iter()
            .map(|path| {
                let object = store.open(path.as_bstr()).ok()?;
                let facts = object.facts()?;
                if object.meta.kind != Kind::File || loaded.contains(&object.meta.key) {
                    return None;
                }
                let needs = facts.requests.iter().any(|r| r.name == name.text);
                let texts = copies::literals(&store, &name, path.as_bstr());
                Some(Asking { key: object.meta.key, needs, texts })
            })
            .collect();
        self.looked_at += found.iter().flatten().count();
        // One process for each package; a file under several names is one file.
        let mut seen: FxHashSet<FileKey> = FxHashSet::default();
        let mut packages: Vec<(Option<String>, String, Vec<usize>)> = Vec::new();
        for (index, entry) in found.iter().enumerate() {
            let Some(asking) = entry else { continue };
            if !seen.insert(asking.key) {
                continue;
            }
            let path = self.files[index].clone();
            if let Ok(object) = store.open(path.as_bstr()) {
                self.note_near(&path, &object, &asking.texts);
            }
            if !asking.needs && asking.texts.iter().all(|(_, kind)| *kind == Literal::Near) {
                continue;
            }
            let (module, title) = self.package_of(&python, path.as_bstr());
            match packages.iter_mut().find(|(m, t, _)| (m, t) == (&module, &title)) {
                Some((_, _, files)) => files.push(index),
                None => packages.push((module, title, vec![index])),
            }
        }
        if packages.len() > MAX_PACKAGES {
            let more = packages.len() - MAX_PACKAGES;
            self.notes.push(match more {
                1 => "1 more package asks for it and is not shown".into(),
                n => format!("{n} more packages ask for it and are not shown"),
            });
            packages.truncate(MAX_PACKAGES);
        }
        let own: Vec<String> = (0..self.targets).map(|p| self.plans[p].target.name.to_string()).collect();
        let own_packages: Vec<String> = own
            .iter()
            .filter_map(|module| match python.find_module(module).module {
                Module::Package { init: file, .. } | Module::Extension(file) => python.owner_of(file.as_bstr()),
                _ => None,
            })
            .map(|o| format!("{} {}", o.name(), o.version()))
            .collect();
        for (module, title, files) in packages {
            let load: Vec<BString> = files.iter().map(|i| self.files[*i].clone()).collect();
            let below =
                |o: &String, m: &String| o.strip_prefix(m.as_str()).is_some_and(|r| r.is_empty() || r.starts_with('.'));
            let is_own =
                module.as_ref().is_none_or(|m| own.iter().any(|o| below(o, m))) || own_packages.contains(&title);
            // What has no module of its own, or belongs to the target, is opened later by the target's libraries.
            let framework = (0..self.targets).next();
            let (plan, circumstances) = match (is_own, framework, &module) {
                (true, Some(plan), _) => {
                    (plan, format!("when it is opened after import {}", self.plans[plan].target.name))
                }
                (false, _, Some(module)) => {
                    self.plans.push(Plan {
                        subject: Subject::Python { modules: vec![module.clone()] },
                        target: Target { kind: "module", name: module.as_str().into(), version: None, path: None },
                        ..self.copy_of(&base)
                    });
                    (self.plans.len() - 1, "in a process of its own".to_owned())
                }
                _ => {
                    self.plans.push(self.copy_of(&base));
                    (self.plans.len() - 1, "when the interpreter opens it".to_owned())
                }
            };
            let part = if plan < self.targets { Part::AfterPlan } else { Part::AfterStart };
            let group = self.next_group();
            self.add(Scenario {
                group,
                title: title.clone(),
                circumstances: circumstances.clone(),
                plan,
                load: load.clone(),
                literal: None,
                part,
            });
            for index in files {
                let Some(Asking { key, texts, .. }) = found[index].clone() else { continue };
                self.add_literal(group, plan, &title, &circumstances, &load, key, texts, part);
            }
        }
    }

    /// What a request in the targets' own processes would get, where nobody in them is known to ask.
    fn add_supposed(&mut self) {
        for plan in 0..self.targets {
            let title = self.title(plan);
            let asks = |r: &Run| {
                r.title == title
                    && (r.by_literal.is_some() || r.process.decisions.iter().any(|d| d.asked == self.name.text))
            };
            if self.baseline.iter().any(asks) {
                continue;
            }
            let group = self.next_group();
            self.add(Scenario {
                group,
                title,
                circumstances: "asked for at the end".into(),
                plan,
                load: Vec::new(),
                literal: None,
                part: Part::Supposed,
            });
        }
    }

    /// What a program without search paths of its own gets.
    fn add_plain_program(&mut self) -> Result<(), Error> {
        let told = self
            .baseline
            .iter()
            .any(|r| r.by_literal.is_some() || r.process.decisions.iter().any(|d| d.asked == self.name.text));
        if told && !self.args.targets.is_empty() {
            return Ok(());
        }
        let program = PROGRAMS.iter().find(|p| {
            audit::target_facts(self.system, p.as_bytes().as_bstr())
                .is_ok_and(|f| f.interpreter.is_some() && f.rpath.is_none() && f.runpath.is_none())
        });
        let Some(program) = program else {
            if self.plans.is_empty() {
                let reason = self.no_python.clone().unwrap_or_else(|| "no target".into());
                return Err(Error::with_hint(
                    format!("cannot explain {}: no program to simulate ({reason})", quoted(&self.name.text)),
                    "name a target",
                ));
            }
            return Ok(());
        };
        let args = Args { dlopen: Vec::new(), host: None, ..self.args.clone() };
        let mut plan = audit::plan_file(&Loaders::new(&args, self.system), program.as_bytes().as_bstr())?;
        plan.opens = vec![(self.name.text.clone(), OpenFlags::default())];
        self.plans.push(plan);
        let group = self.next_group();
        self.add(Scenario {
            group,
            title: "a program without RPATH".into(),
            circumstances: format!("{program} stands for it"),
            plan: self.plans.len() - 1,
            load: Vec::new(),
            literal: None,
            part: Part::Supposed,
        });
        Ok(())
    }

    fn next_group(&self) -> usize {
        self.scenarios.last().map_or(0, |s| s.group + 1)
    }

    /// Adds a scenario when it can be simulated.
    fn add(&mut self, scenario: Scenario) {
        let host = self.plans[scenario.plan].host.clone();
        if let Some(run) = self.simulate(&scenario, &host, None) {
            self.scenarios.push(scenario);
            self.baseline.push(run);
        }
    }

    /// Adds the closest request that texts in a file make likely.
    #[expect(clippy::too_many_arguments, reason = "the parts of a scenario, given in one place")]
    fn add_literal(
        &mut self,
        group: usize,
        plan: usize,
        title: &str,
        circumstances: &str,
        load: &[BString],
        key: FileKey,
        texts: Vec<(BString, Literal)>,
        part: Part,
    ) {
        let Some((text, kind)) = texts.into_iter().find(|(_, kind)| *kind != Literal::Near) else { return };
        // What the steps themselves show to be opened needs no supposition.
        let asks = |run: &Run| {
            let by = |d: &crate::ld::Decision| {
                d.needed_by.is_some_and(|i| run.process.image(i).object.meta.key == key) && d.asked == self.name.text
            };
            run.group == group && run.process.decisions.iter().any(|d| d.how == How::Dlopen && by(d))
        };
        if self.baseline.iter().filter(|r| r.by_literal.is_none()).any(asks) {
            return;
        }
        if self.scenarios.iter().filter(|s| s.literal.is_some()).count() >= MAX_LITERAL_RUNS {
            return;
        }
        self.add(Scenario {
            group,
            title: title.to_owned(),
            circumstances: circumstances.to_owned(),
            plan,
            load: load.to_vec(),
            literal: Some((key, text, kind)),
            part,
        });
    }

    /// Remembers which near misses of the name a file asks for.
    fn note_near(&mut self, path: &BString, object: &Object, texts: &[(BString, Literal)]) {
        let Some(facts) = object.facts() else { return };
        let is_near = |name: &BString| *name != self.name.text && self.name.relation_of_name(name.as_bstr()).is_some();
        let needed: Vec<BString> = facts.requests.iter().map(|r| r.name.clone()).filter(is_near).collect();
        let opened = texts.iter().filter(|(_, kind)| *kind == Literal::Near).map(|(text, _)| text.clone());
        let asked = needed.into_iter().map(|n| (n, true)).chain(opened.map(|n| (n, false)));
        for (name, by_needed) in asked.collect::<Vec<_>>() {
            let index = self.near_asked.iter().position(|n| n.name == name).unwrap_or_else(|| {
                self.near_asked.push(NearAsked { name, ..NearAsked::default() });
                self.near_asked.len() - 1
            });
            let near = &mut self.near_asked[index];
            let files = if by_needed { &mut near.needed_by } else { &mut near.opened_by };
            if files.len() < MAX_NEAR_FILES && !files.contains(path) {
                files.push(path.clone());
            }
        }
    }

    fn title(&self, plan: usize) -> String {
        title(&self.plans[plan], &self.plans[..self.targets])
    }

    /// A plan that only starts the interpreter.
    fn interpreter_plan(&self, python: &Arc<Python>) -> Option<Plan> {
        if let Some(plan) = self.plans.iter().find(|p| matches!(p.subject, Subject::Python { .. })) {
            return Some(Plan { subject: Subject::Python { modules: Vec::new() }, ..self.copy_of(plan) });
        }
        audit::plan_interpreter(self.loaders, python).ok()
    }

    /// The same plan once more; everything in it is shared.
    fn copy_of(&self, plan: &Plan) -> Plan {
        let subject = Subject::Python { modules: Vec::new() };
        let (host, store, dialect) = (plan.host.clone(), plan.store.clone(), plan.dialect.clone());
        Plan {
            cache: plan.cache.clone(),
            python: plan.python.clone(),
            around: plan.around.clone(),
            lookups: plan.lookups,
            options: plan.options.clone(),
            ..Plan::new(subject, plan.target.clone(), host, store, dialect)
        }
    }

    /// The importable module that a file belongs to, if any, and what to call its package.
    fn package_of(&self, python: &Python, path: &BStr) -> (Option<String>, String) {
        let owner = python.owner_of(path);
        let entry = python
            .path()
            .iter()
            .filter(|e| !e.directory.is_empty() && e.kind != EntryKind::WorkingDirectory)
            .filter_map(|e| path.strip_prefix(e.directory.as_bytes())?.strip_prefix(b"/"))
            .min_by_key(|below| below.len());
        let first = entry.and_then(|below| below.split(|b| *b == b'/').next()).unwrap_or_default();
        // auditwheel puts a package's libraries next to it, in `<package>.libs`.
        let top = first.strip_suffix(b".libs").unwrap_or(first);
        let top = top.split(|b| *b == b'.').next().unwrap_or_default().to_str().unwrap_or_default().to_owned();
        // A package without an extension loads nothing when it is imported.
        let loads = |name: &str| match python.find_module(name).module {
            Module::Extension(_) => true,
            Module::Package { directory, .. } => !python.extensions_below(directory.as_bstr()).is_empty(),
            _ => false,
        };
        let standard = python.interpreter.standard.iter().any(|d| path.starts_with(d.as_slice()));
        let mut module = (!standard && !top.is_empty() && loads(&top)).then(|| top.clone());
        if let (None, Some(python::dist::Owner::Distribution(d)), false) = (&module, &owner, standard) {
            // The package may be named otherwise than the distribution: `pillow.libs` belongs to `PIL`.
            let list = join(d.metadata_path.as_bstr(), "top_level.txt");
            let text = self.system.read_small(list.as_bstr(), 64 * 1024).unwrap_or_default();
            module = text.lines().filter_map(|l| l.trim_ascii().to_str().ok()).find(|m| loads(m)).map(str::to_owned);
        }
        let title = match owner {
            Some(owner) => render::escape::text(format!("{} {}", owner.name(), owner.version()).as_bytes()),
            None if standard => format!("Python {}", python.interpreter.version),
            None => module.clone().unwrap_or_else(|| render::escape::text(file_name(path))),
        };
        (module, title)
    }

    // -------------------------------------------------------------------------------------------------- simulation

    /// Simulates a scenario under a host. `first` is a module that is imported before. `None` when the process does not
    /// start, or the file whose literal is meant cannot be loaded.
    fn simulate(&self, scenario: &Scenario, host: &Arc<Host>, first: Option<&str>) -> Option<Run> {
        let plan = &self.plans[scenario.plan];
        let importing =
            |modules: Vec<String>| Plan { subject: Subject::Python { modules }, ..self.copy_of(plan) }.simulate(host);
        let Simulated { mut process, .. } = match (first, &plan.subject) {
            (Some(module), Subject::Python { modules }) => {
                importing(std::iter::once(module.to_owned()).chain(modules.iter().cloned()).collect())
            }
            _ => plan.simulate(host),
        };
        if process.images.is_empty() {
            return None;
        }
        // What the interpreter asks for at its start is no matter of the package.
        let from = match (scenario.part, first) {
            (Part::Whole | Part::Supposed, _) => 0,
            (Part::AfterPlan, _) => process.decisions.len(),
            (Part::AfterStart, Some(module)) => importing(vec![module.to_owned()]).process.decisions.len(),
            (Part::AfterStart, None) => importing(Vec::new()).process.decisions.len(),
        };
        for path in &scenario.load {
            let key = plan.store.open(path.as_bstr()).ok()?.meta.key;
            if loaded(&process, key).is_none() {
                process.dlopen(&OpenRequest { note: "opened by its path".into(), ..OpenRequest::new(path.clone()) });
            }
        }
        if scenario.part == Part::Supposed && scenario.plan < self.targets {
            process.dlopen(&OpenRequest { optional: true, ..OpenRequest::new(self.name.text.clone()) });
        }
        let by_literal = match &scenario.literal {
            None => None,
            Some((key, text, kind)) => {
                let caller = loaded(&process, *key)?;
                let name = if *kind == Literal::Path { text.clone() } else { self.name.text.clone() };
                let step = process.dlopen(&OpenRequest {
                    caller: Some(caller),
                    optional: true,
                    note: format!("a text in its read-only data: {text}"),
                    ..OpenRequest::new(name)
                });
                Some(ByLiteral { step, text: text.clone(), kind: *kind })
            }
        };
        Some(Run {
            group: scenario.group,
            title: scenario.title.clone(),
            circumstances: scenario.circumstances.clone(),
            supposed: scenario.part == Part::Supposed,
            process,
            from,
            by_literal,
        })
    }

    /// The process whose report goes along: the first target's, else the one that was added last.
    fn reported_run(&self) -> usize {
        if self.targets > 0 { 0 } else { self.scenarios.len().saturating_sub(1) }
    }

    fn reported(&self) -> &Plan {
        &self.plans[self.scenarios.get(self.reported_run()).map_or(0, |s| s.plan)]
    }

    // ------------------------------------------------------------------------------------------------------ answer

    fn answer(&mut self) -> Result<Why, Error> {
        let found = self.find_copies();
        let first = &self.plans[0];
        let unusable: Vec<Option<String>> = found.copies.iter().map(|c| unusable(c, first)).collect();
        let modules: Vec<Change> = self.imports_to_try().into_iter().map(Change::ImportFirst).collect();
        let python = self.python.clone();
        let owner = |path: &BStr| super::places::owner(python.as_deref()?, path);
        let knowledge = Knowledge {
            name: &self.name,
            given: self.given.as_ref().map(|g| g.as_bstr()),
            copies: &found.copies,
            unusable: &unusable,
            owner: &owner,
            further_changes: &modules,
        };
        let few = self.scenarios.len().saturating_mul(found.copies.len().min(12) * 2 + 4) <= MAX_WHAT_IFS;
        let what_if = |change: &Change| self.what_if(change, few);
        let mut why = why::tell(&knowledge, &self.baseline, &what_if);
        why.reported_run = self.reported_run();
        why.files_looked_at = self.looked_at;
        why.near_asked = std::mem::take(&mut self.near_asked);
        why.notes = std::mem::take(&mut self.notes);
        if !few {
            why.notes.push("changes were simulated for the target's own processes only".into());
        }
        if found.cut {
            why.notes.push("too many copies; not all are shown".into());
        }
        if let Some(reason) = self.no_python.take().filter(|_| self.targets == 0) {
            why.notes.push(format!("no Python environment was looked at: {reason}"));
        }
        Ok(why)
    }

    fn what_if(&self, change: &Change, all: bool) -> Option<Vec<Option<Run>>> {
        let first = match change {
            Change::ImportFirst(module) => Some(module.as_str()),
            _ => None,
        };
        let base = &self.plans[0];
        let host = match first {
            Some(_) => base.host.clone(),
            None => Arc::new(change.on_host(&base.host, base.dialect.family)?),
        };
        Some(
            self.scenarios
                .par_iter()
                .map(|scenario| {
                    let foreign = scenario.part == Part::AfterStart;
                    let touched = if first.is_some() { foreign } else { all || !foreign };
                    touched.then(|| self.simulate(scenario, &host, first)).flatten()
                })
                .collect(),
        )
    }

    /// Modules whose import before another package may change what that gets.
    fn imports_to_try(&self) -> Vec<String> {
        if !self.scenarios.iter().any(|s| s.part == Part::AfterStart) {
            return Vec::new();
        }
        let frameworks = (0..self.targets).filter(|p| self.plans[*p].target.kind == "framework");
        frameworks.map(|p| self.plans[p].target.name.to_string()).collect()
    }

    fn find_copies(&mut self) -> copies::Found {
        let plan = &self.plans[0];
        let mut paths: Vec<(BString, Origin)> = Vec::new();
        if let Some(given) = &self.given {
            paths.push((given.clone(), Origin::Given));
        }
        if let Some(cache) = plan.cache.as_ref().and_then(|c| c.cache()) {
            paths.extend(cache.entries_of(self.name.text.as_bstr()).map(|e| (e.path.to_owned(), Origin::Cache)));
        }
        let asked = &self.name.text;
        for process in self.baseline.iter().map(|run| &run.process) {
            for decision in process.decisions.iter().filter(|d| d.asked == *asked) {
                paths.extend(decision.attempts.iter().map(|a| (a.path.clone(), Origin::Attempt)));
                paths.extend(decision.chosen.map(|id| (process.image(id).name.clone(), Origin::Attempt)));
            }
        }
        let places = super::places::of(self.system, plan, self.baseline.iter_mut().map(|run| &mut run.process));
        paths.retain(|(path, _)| self.system.stat(path.as_bstr()).is_ok());
        let subdirectories = plan.dialect.subdirectories(&plan.host);
        copies::find(&plan.store, &self.name, &places, &self.files, &paths, &subdirectories)
    }
}

/// What a target is called among others: a file by its name alone, unless another one has the same.
pub fn title(plan: &Plan, among: &[Plan]) -> String {
    let target = &plan.target;
    let short = |target: &Target| match target.kind {
        "file" => file_name(target.name.as_bstr()).to_owned(),
        _ => target.name.clone(),
    };
    let own = short(target);
    let is_shared = among.iter().any(|other| other.target.name != target.name && short(&other.target) == own);
    let name = if is_shared { &target.name } else { &own };
    let version = target.version.as_ref().map(|v| format!(" {v}")).unwrap_or_default();
    format!("{name}{version}")
}

/// The image with a file's identity that is loaded now.
fn loaded(process: &Process, key: FileKey) -> Option<ImageId> {
    let of_file = |i: &crate::ld::Image| i.unloaded_by.is_none() && i.object.meta.key == key;
    process.images.iter().position(of_file).map(|i| ImageId(i as u32))
}

/// Why the loader cannot use a copy, wherever it stands.
fn unusable(copy: &Copy, plan: &Plan) -> Option<String> {
    let object = match &copy.object {
        Ok(object) => object,
        Err(errno) if copy.key.is_some() => return Some(errno.text().to_lowercase()),
        Err(_) => return Some("a link that leads nowhere".into()),
    };
    if plan.dialect.family == Family::Musl {
        return object.facts().is_none().then(|| "not a shared library".into());
    }
    match verify::header(object, &plan.dialect, &plan.host) {
        verify::Check::Usable => None,
        verify::Check::Skip(crate::ld::Verdict::WrongClass) => Some("wrong ELF class".into()),
        verify::Check::Skip(crate::ld::Verdict::WrongMachine) => Some("built for another machine".into()),
        verify::Check::Skip(_) => Some("passed over by this loader".into()),
        verify::Check::Fatal(text, _) => {
            let head = object.head.as_deref().unwrap_or_default();
            let what = verify::describe(head);
            Some(if text == "invalid ELF header" { format!("{text} ({what})") } else { text.into() })
        }
    }
}
