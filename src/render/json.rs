//! The JSON report, schema `ldaudit.report/1`. The wire types live here and nowhere else: a serialized type is a promise.

use std::collections::BTreeMap;
use std::io::{self, Write};

use bstr::ByteSlice;
use serde::Serialize;

use super::{Report, Story, escape};
use crate::findings::Evidence;
use crate::ld::{ImageId, Lookups, Place, Process, Role};

#[derive(Serialize)]
struct Wire<'r> {
    schema: &'static str,
    tool: Tool,
    target: Target,
    system: SystemInfo,
    verdict: &'static str,
    process: ProcessInfo<'r>,
    inventory: Inventory,
    findings: Vec<FindingInfo>,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<WhyInfo>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum WhyInfo {
    Library(super::json_why::WhyInfo),
    Symbol(super::json_why_symbol::WhyInfo),
}

#[derive(Serialize)]
struct Tool {
    name: &'static str,
    version: &'static str,
}

#[derive(Serialize)]
struct Target {
    kind: &'static str,
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<String>,
}

#[derive(Serialize)]
struct SystemInfo {
    root: String,
    arch: String,
    loader: Loader,
    cpu_level: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    python: Option<PythonInfo>,
    env: BTreeMap<String, String>,
    cwd: String,
}

#[derive(Serialize)]
struct Loader {
    dialect: &'static str,
    version: String,
    path: String,
    system_dirs: Vec<String>,
    lib: String,
    evidence: String,
}

#[derive(Serialize)]
struct PythonInfo {
    executable: String,
    version: String,
    prefix: String,
    source: String,
    asked: bool,
    sys_path: Vec<String>,
}

#[derive(Serialize)]
struct ProcessInfo<'r> {
    steps: Vec<StepInfo>,
    images: Vec<ImageInfo>,
    decisions: Vec<DecisionInfo>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bindings: Option<Bindings<'r>>,
    unresolved: Vec<UnresolvedInfo>,
}

/// From, to, symbol, version of each binding. There are hundreds of thousands: written as they are met, none is copied.
struct Bindings<'r> {
    process: &'r Process,
    ids: &'r Ids,
}

impl Serialize for Bindings<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.process.bindings.iter().filter_map(|b| {
            let (name, version) = self.process.symbol_name(b.from, b.symbol)?;
            let version = version.map(|v| escape::json(v.name.as_bstr()));
            Some((self.ids.get(b.from), self.ids.get(b.to), escape::json(name), version))
        }))
    }
}

#[derive(Serialize)]
struct UnresolvedInfo {
    image: usize,
    symbol: String,
    version: Option<String>,
    weak: bool,
    when: &'static str,
}

#[derive(Serialize)]
struct StepInfo {
    id: usize,
    kind: &'static str,
    name: String,
    flags: Vec<&'static str>,
    caller: Option<usize>,
    outcome: &'static str,
    optional: bool,
    error: Option<String>,
    image: Option<usize>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    note: String,
}

#[derive(Serialize)]
struct ImageInfo {
    id: usize,
    name: String,
    real_path: Option<String>,
    soname: Option<String>,
    decision: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    owner: Option<OwnerInfo>,
    role: &'static str,
    global: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    unloaded_by: Option<usize>,
}

#[derive(Serialize)]
struct OwnerInfo {
    package: String,
    version: String,
}

#[derive(Serialize)]
struct DecisionInfo {
    id: usize,
    step: usize,
    asked: String,
    needed_by: Option<usize>,
    how: &'static str,
    chosen: Option<usize>,
    via: Option<ViaInfo>,
    attempts: Vec<AttemptInfo>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

#[derive(Serialize)]
struct ViaInfo {
    rule: &'static str,
    owner: Option<usize>,
    entry: Option<u32>,
    text: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    identity: Option<&'static str>,
}

#[derive(Serialize)]
struct AttemptInfo {
    path: String,
    rule: &'static str,
    verdict: String,
    owner: Option<usize>,
    entry: Option<u32>,
}

#[derive(Serialize)]
struct Inventory {
    cuda: Vec<()>,
    drivers: Vec<()>,
    python: serde_json::Value,
}

#[derive(Serialize)]
struct FindingInfo {
    rule: &'static str,
    slug: &'static str,
    severity: &'static str,
    summary: String,
    subject: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    because: Option<String>,
    evidence: Vec<serde_json::Value>,
    remedies: Vec<RemedyInfo>,
}

#[derive(Serialize)]
struct RemedyInfo {
    summary: String,
    commands: Vec<String>,
    verified: bool,
    after: Option<After>,
}

#[derive(Serialize)]
struct After {
    errors: usize,
    warnings: usize,
}

/// Renumbering: images in load order, and only then what a failed step unloaded.
struct Ids {
    order: Vec<ImageId>,
    index: Vec<usize>,
}

impl Ids {
    fn of(report: &Report) -> Ids {
        let order = report.process.load_order();
        let mut index = vec![0; report.process.images.len()];
        for (position, id) in order.iter().enumerate() {
            index[id.index()] = position;
        }
        Ids { order, index }
    }

    fn get(&self, id: ImageId) -> usize {
        self.index[id.index()]
    }
}

fn string(bytes: impl AsRef<[u8]>) -> String {
    escape::json(bytes.as_ref().as_bstr()).into_owned()
}

/// Writes the report, with a line end.
pub fn write(report: &Report, out: &mut dyn Write, pretty: bool) -> io::Result<()> {
    let ids = Ids::of(report);
    let wire = wire(report, &ids);
    if pretty {
        serde_json::to_writer_pretty(&mut *out, &wire)?;
    } else {
        serde_json::to_writer(&mut *out, &wire)?;
    }
    out.write_all(b"\n")
}

fn wire<'r>(report: &'r Report, ids: &'r Ids) -> Wire<'r> {
    let p = &report.process;
    let dialect = p.dialect();
    let host = p.host();
    let machine = p.images.first().and_then(|i| i.facts()).map_or(dialect.machine, |f| f.header.machine);
    let env = super::RELEVANT_VARIABLES
        .iter()
        .filter_map(|name| host.env.get(name).map(|value| ((*name).to_owned(), string(value))))
        .collect();
    let python = report.python.as_ref().map(|py| PythonInfo {
        executable: string(&py.executable),
        version: py.version.clone(),
        prefix: string(&py.prefix),
        source: py.source.clone(),
        asked: py.asked,
        sys_path: py.sys_path.iter().map(string).collect(),
    });
    let inventory_python = serde_json::to_value(&python).unwrap_or_default();
    Wire {
        schema: "ldaudit.report/1",
        tool: Tool { name: env!("CARGO_PKG_NAME"), version: env!("CARGO_PKG_VERSION") },
        target: Target {
            kind: report.target.kind,
            name: string(&report.target.name),
            version: report.target.version.clone(),
            path: report.target.path.as_ref().map(string),
        },
        system: SystemInfo {
            root: p.store().system().files.root().map_or_else(|| "/".to_owned(), string),
            arch: crate::elf::machine_name(machine),
            loader: Loader {
                dialect: dialect.family.name(),
                version: dialect.version_text(),
                path: string(&dialect.path),
                system_dirs: dialect.system_dirs.iter().map(string).collect(),
                lib: string(&dialect.lib),
                evidence: match &dialect.evidence {
                    crate::ld::dialect::Evidence::Read => "read from the loader".into(),
                    crate::ld::dialect::Evidence::Given => "given".into(),
                    crate::ld::dialect::Evidence::Assumed(why) => format!("assumed: {why}"),
                },
            },
            cpu_level: if host.cpu.level > 0 { format!("x86-64-v{}", host.cpu.level) } else { "baseline".into() },
            python,
            env,
            cwd: string(&host.cwd),
        },
        verdict: report.verdict.name(),
        process: ProcessInfo {
            steps: p
                .steps
                .iter()
                .enumerate()
                .map(|(id, s)| StepInfo {
                    id,
                    kind: s.kind.name(),
                    name: string(&s.name),
                    flags: s.flags.map(|f| f.names()).unwrap_or_default(),
                    caller: s.caller.map(|c| ids.get(c)),
                    outcome: s.outcome.name(),
                    optional: s.optional,
                    error: s.error.as_ref().map(string),
                    image: s.image.map(|i| ids.get(i)),
                    warnings: s.warnings.iter().map(string).collect(),
                    note: s.note.clone(),
                })
                .collect(),
            images: ids.order.iter().map(|id| image(report, ids, *id)).collect(),
            decisions: p
                .decisions
                .iter()
                .enumerate()
                .map(|(id, d)| DecisionInfo {
                    id,
                    step: d.step.index(),
                    asked: string(&d.asked),
                    needed_by: d.needed_by.map(|i| ids.get(i)),
                    how: d.how.name(),
                    chosen: d.chosen.map(|i| ids.get(i)),
                    via: d.via.as_ref().map(|v| {
                        let place = place(ids, v.place);
                        ViaInfo {
                            rule: v.place.rule.name(),
                            owner: place.0,
                            entry: place.1,
                            text: string(&v.text),
                            identity: v.identity.map(|i| match i {
                                crate::ld::Identity::Name => "name",
                                crate::ld::Identity::Soname => "soname",
                                crate::ld::Identity::Inode => "inode",
                            }),
                        }
                    }),
                    attempts: d
                        .attempts
                        .iter()
                        .map(|a| {
                            let place = place(ids, a.place);
                            AttemptInfo {
                                path: string(&a.path),
                                rule: a.place.rule.name(),
                                verdict: a.verdict.name(),
                                owner: place.0,
                                entry: place.1,
                            }
                        })
                        .collect(),
                    error: d.failure.as_ref().map(|f| string(f.dlerror())),
                })
                .collect(),
            bindings: (p.lookups() == Lookups::Record).then_some(Bindings { process: p, ids }),
            unresolved: p
                .unresolved
                .iter()
                .map(|u| UnresolvedInfo {
                    image: ids.get(u.image),
                    symbol: string(&u.symbol),
                    version: u.version.as_ref().map(string),
                    weak: u.weak,
                    when: u.when.name(),
                })
                .collect(),
        },
        inventory: Inventory { cuda: Vec::new(), drivers: Vec::new(), python: inventory_python },
        findings: report
            .findings
            .iter()
            .map(|f| FindingInfo {
                rule: f.rule.id,
                slug: f.rule.slug,
                severity: f.severity.name(),
                summary: f.summary.clone(),
                subject: string(&f.subject),
                because: f.because.clone(),
                evidence: f.evidence.iter().map(|e| evidence(ids, e)).collect(),
                remedies: f
                    .remedies
                    .iter()
                    .map(|r| RemedyInfo {
                        summary: r.summary.clone(),
                        commands: r.commands.clone(),
                        verified: r.verified,
                        after: r.after.map(|(errors, warnings)| After { errors, warnings }),
                    })
                    .collect(),
            })
            .collect(),
        why: report.why.as_ref().map(|story| match story {
            Story::Library(why) => WhyInfo::Library(super::json_why::wire(why)),
            Story::Symbol(why) => WhyInfo::Symbol(super::json_why_symbol::wire(why, &|id| {
                ids.index.get(id.index()).copied().unwrap_or(id.index())
            })),
        }),
    }
}

fn place(ids: &Ids, place: Place) -> (Option<usize>, Option<u32>) {
    (place.owner.map(|o| ids.get(o)), place.entry)
}

fn image(report: &Report, ids: &Ids, id: ImageId) -> ImageInfo {
    let i = report.process.image(id);
    ImageInfo {
        id: ids.get(id),
        name: string(&i.name),
        real_path: i.facts().map(|_| string(i.object.real_path())),
        soname: i.soname().map(string),
        decision: i.decision.index(),
        owner: report
            .owners
            .get(id.index())
            .and_then(|o| o.as_ref())
            .map(|o| OwnerInfo { package: o.package.clone(), version: o.version.clone() }),
        role: match i.role {
            Role::Main => "main",
            Role::Loader => "loader",
            Role::Library => "library",
            Role::Vdso => "vdso",
        },
        global: i.global,
        unloaded_by: i.unloaded_by.map(|s| s.index()),
    }
}

fn evidence(ids: &Ids, e: &Evidence) -> serde_json::Value {
    use serde_json::json;
    match e {
        Evidence::Decision(d) => json!({"decision": d.index()}),
        Evidence::Image(i) => json!({"image": ids.get(*i)}),
        Evidence::Step(s) => json!({"step": s.index()}),
        Evidence::Path(path, note) => json!({"path": string(path), "note": note}),
        Evidence::Symbol { image, symbol, version, demangled } => json!({
            "symbol": string(symbol),
            "version": version.as_ref().map(string),
            "demangled": demangled,
            "image": ids.get(*image),
        }),
        Evidence::Variable(name, entry) => json!({"variable": name, "entry": entry}),
        Evidence::Copy(copy) => json!({
            "part": copy.part.name(),
            "path": string(&copy.path),
            "image": copy.image.map(|i| ids.get(i)),
            "owner": copy.owner.as_ref().map(|o| json!({"package": o.package, "version": o.version})),
            "version": copy.version,
            "place": copy.place,
        }),
    }
}
