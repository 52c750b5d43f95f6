//! The pipeline: system, loader, process, findings, report.

use std::ffi::OsStr;
use std::io::Write;
use std::sync::Arc;

use bstr::{BStr, BString, ByteSlice};

use super::Error;
use super::args::{Args, Format};
use crate::elf::{Facts, Layout, Reader};
use crate::findings::Severity;
use crate::findings::loading::{self, Knowledge};
use crate::findings::prove::{Outcome, prove};
use crate::ld::{Dialect, Family, Process, Start, Store};
use crate::render::{self, Report, Target, Verdict};
use crate::system::{Environment, Host, Live, System};

/// Bytes of a command line argument.
pub fn bytes(text: &OsStr) -> BString {
    use std::os::unix::ffi::OsStrExt;
    text.as_bytes().into()
}

/// The audited system as the arguments ask for.
pub fn system(args: &Args) -> Result<System, Error> {
    let mut host = Host::live();
    let files: Arc<dyn crate::system::Files> = match &args.root {
        None => Arc::new(Live::new()),
        Some(root) => {
            let path = bytes(root.as_os_str());
            host.cwd = "/".into();
            Arc::new(Live::at_root(path.as_bstr()).map_err(|e| Error::new(format!("cannot open root `{path}`: {e}")))?)
        }
    };
    for assignment in &args.env {
        let text = bytes(assignment);
        let Some((name, value)) = text.split_once_str("=") else {
            return Err(Error::new(format!("`--env {text}` has no `=`")));
        };
        host.env.set(name, value);
    }
    for name in &args.unset {
        host.env.unset(bytes(name));
    }
    host.secure = args.secure;
    Ok(System::new(host, files))
}

/// Facts of the target itself, read in its own layout.
pub fn target_facts(system: &System, path: &BStr) -> Result<Facts, Error> {
    let file = system.open(path).map_err(|e| Error::new(format!("cannot open `{path}`: {e}")))?;
    let mut reader = Reader::new(&file);
    let head = reader.range(0, 64).map_err(|e| Error::new(format!("cannot read `{path}`: {e}")))?;
    let layout = Layout::of_ident(head).ok_or_else(|| Error::new(format!("cannot audit `{path}`: not an ELF file")))?;
    Facts::read(&mut reader, layout)
        .ok_or_else(|| Error::new(format!("cannot audit `{path}`: the ELF header is cut short")))
}

/// The loader that a program or library is meant for.
pub fn dialect_for(args: &Args, system: &System, facts: &Facts) -> Result<Dialect, Error> {
    let path = facts.interpreter.clone().unwrap_or_else(|| Dialect::usual_loader(facts));
    let mut dialect = Dialect::read(system, path.as_bstr(), facts.layout, facts.header.machine);
    if let Some(spec) = &args.loader {
        let (family, version) = parse_loader(spec)?;
        if family != dialect.family {
            let path: BString = match family {
                Family::Musl => "/lib/ld-musl-x86_64.so.1".into(),
                Family::Glibc => "/lib64/ld-linux-x86-64.so.2".into(),
            };
            dialect = Dialect::assumed(path.as_bstr(), facts.layout, facts.header.machine);
        }
        dialect = dialect.with_version(version);
    }
    Ok(dialect)
}

fn parse_loader(spec: &str) -> Result<(Family, (u16, u16, u16)), Error> {
    let bad = || Error::with_hint(format!("`--loader {spec}` is not a loader"), "write `glibc:2.31` or `musl:1.2`");
    let (family, version) = spec.split_once(':').ok_or_else(bad)?;
    let family = match family {
        "glibc" => Family::Glibc,
        "musl" => Family::Musl,
        _ => return Err(bad()),
    };
    let mut parts = version.split('.').map(|p| p.parse::<u16>().map_err(|_| bad()));
    let major = parts.next().ok_or_else(bad)??;
    let minor = parts.next().unwrap_or(Ok(0))?;
    let patch = parts.next().unwrap_or(Ok(0))?;
    Ok((family, (major, minor, patch)))
}

/// Audits one ELF file.
fn audit_file(args: &Args, system: &System, path: &BStr) -> Result<Report, Error> {
    let facts = target_facts(system, path)?;
    let dialect = Arc::new(dialect_for(args, system, &facts)?);
    let store = Arc::new(Store::new(system.clone(), facts.layout, dialect.family == Family::Musl));
    // A file without PT_INTERP that asks for libraries is a library: the loader runs it, as ldd does. One that asks for
    // nothing and is marked as a program is static.
    let is_static = !facts.has_dynamic || (facts.requests.is_empty() && facts.flags_1 & crate::elf::flags_1::PIE != 0);
    let start = if facts.interpreter.is_some() || is_static { Start::Kernel } else { Start::Loader };
    let mut process = Process::new(store, dialect.clone(), None);
    process.exec(path, path, start);
    let mut report = Report {
        target: Target { kind: "file", name: path.to_owned(), version: None, path: Some(path.to_owned()) },
        python: None,
        owners: vec![None; process.images.len()],
        process,
        findings: Vec::new(),
        verdict: Verdict::Ok,
    };
    judge(&mut report, &Knowledge::none(), &mut |env| {
        let mut process = elsewhere(&facts, &dialect, system, env);
        process.exec(path, path, start);
        process
    });
    Ok(report)
}

/// A process with nothing done yet, on the same box in another environment.
fn elsewhere(facts: &Facts, dialect: &Arc<Dialect>, system: &System, env: &Environment) -> Process {
    let mut system = system.clone();
    system.host.env.clone_from(env);
    let store = Arc::new(Store::new(system, facts.layout, dialect.family == Family::Musl));
    Process::new(store, dialect.clone(), None)
}

/// Finds what is wrong, tries what could mend it, and sets the verdict. `simulate` repeats all steps in another
/// environment.
pub fn judge(report: &mut Report, known: &Knowledge<'_>, simulate: &mut dyn FnMut(&Environment) -> Process) {
    let mut findings = loading::check(&report.process, known);
    let env = report.process.host().env.clone();
    prove(&mut findings, &env, &mut |env| {
        let process = simulate(env);
        let findings = loading::check(&process, known);
        Outcome::of(&process, findings)
    });
    report.verdict = Verdict::of(&findings);
    report.findings = findings;
}

/// Does what the arguments ask for; returns the exit status.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<u8, Error> {
    let system = system(args)?;
    if args.targets.is_empty() {
        return Err(Error::new("no target"));
    }
    let style = super::screen::style(args);
    let mut status = 0;
    for (n, target) in args.targets.iter().enumerate() {
        let path = bytes(target);
        let report = audit_file(args, &system, path.as_bstr())?;
        match args.format {
            Format::Json => render::json::write(&report, out, true)?,
            Format::Jsonl => render::json::write(&report, out, false)?,
            Format::Text | Format::Tree => {
                if n > 0 {
                    writeln!(out)?;
                }
                match args.format {
                    Format::Tree => render::tree::write(&report, &style, out)?,
                    _ => render::text::write(&report, &style, out)?,
                }
            }
            Format::Ldd => {
                if args.targets.len() > 1 {
                    writeln!(out, "{}:", render::escape::text(&path))?;
                }
                render::ldd::write(&report, out)?;
            }
        }
        if report.findings.iter().any(|f| f.severity == Severity::Error) {
            status = 1;
        }
    }
    Ok(status)
}
