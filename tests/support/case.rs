//! Boxes in a few lines with the findings that they give. Distributions lie below `/site`, one directory each, version
//! 1.0.

#![allow(dead_code)] // each test binary uses its own part

use bstr::{BStr, ByteSlice};
use ldaudit::findings::loading::{self, Knowledge};
use ldaudit::findings::prove::{Outcome, prove};
use ldaudit::findings::{Finding, Owner, interposed};
use ldaudit::fixture::{Fixture, Loader, Run, Step, simulate};
use ldaudit::ld::{OpenFlags, OpenRequest, Process, Start};
use ldaudit::system::Host;

/// A box with one run of it.
pub struct Case {
    /// The box.
    pub fixture: Fixture,
    /// Its first run.
    pub run: Run,
    /// The loader that is asked.
    pub loader: Loader,
    optional: bool,
    alone: bool,
}

impl Case {
    /// For glibc 2.36.
    pub fn new(text: &str) -> Case {
        Case::with(text, Loader::glibc(2, 36))
    }

    /// For any loader.
    pub fn with(text: &str, loader: Loader) -> Case {
        let fixture = Fixture::parse(text.as_bytes()).unwrap_or_else(|p| panic!("{p:?}"));
        let run = fixture.runs(loader).into_iter().next().expect("a step");
        Case { fixture, run, loader, optional: false, alone: false }
    }

    /// The program is a library that the loader runs as ldd does.
    pub fn alone(mut self) -> Case {
        self.alone = true;
        self
    }

    /// Every dlopen is one that the program can do without.
    pub fn optional(mut self) -> Case {
        self.optional = true;
        self
    }

    /// The process after all steps of the run.
    pub fn process(&self, host: &Host) -> Process {
        let run = Run { host: host.clone(), ..self.run.clone() };
        let mut process = simulate::process(&self.fixture, self.loader, &run).expect("simulated");
        if self.alone {
            process = process.as_a_list();
        }
        for step in &run.steps {
            match &step.step {
                Step::Exec(exec) => {
                    let start = if self.alone { Start::Loader } else { Start::Kernel };
                    process.exec(exec.path.as_bstr(), exec.path.as_bstr(), start);
                }
                Step::Call(_) => {}
                Step::Dlopen(dlopen) => {
                    let flags = OpenFlags { global: dlopen.global, lazy: dlopen.lazy, ..OpenFlags::default() };
                    let request =
                        OpenRequest { flags, optional: self.optional, ..OpenRequest::new(dlopen.name.clone()) };
                    process.dlopen(&request);
                }
            }
        }
        process
    }

    fn check(&self, process: &Process) -> Vec<Finding> {
        let owner = |path: &BStr| -> Option<Owner> {
            let name = path.strip_prefix(b"/site/")?.split_str("/").next()?;
            Some(Owner { package: name.to_str_lossy().into(), version: "1.0".into() })
        };
        let copies = |name: &BStr| match name.as_bytes() {
            b"libonly.so.1" => vec!["/site/only/libonly.so.1".into()],
            b"libconda.so.1" => vec!["/site/conda/libconda.so.1".into()],
            _ => Vec::new(),
        };
        let libraries = || vec!["/site/more/libmore.so.1".into()];
        let requires = |path: &BStr| match path.starts_with(b"/site/vision/") {
            true => vec!["numpy".into(), "torch ==9.1".into()],
            false => Vec::new(),
        };
        let known = Knowledge {
            owner: &owner,
            copies: &copies,
            libraries: &libraries,
            requires: &requires,
            ..Knowledge::none()
        };
        loading::check(process, &known)
            .into_iter()
            // The boxes have no cache: true, and not what these cases are about.
            .filter(|f| f.rule.id != "LD0205")
            .collect()
    }

    /// The symbols that other libraries answer than those they were linked against.
    pub fn interposed(&self) -> Vec<Finding> {
        let process = self.process(&self.run.host);
        let owner = |image: &ldaudit::ld::Image| -> Option<Owner> {
            let name = image.name.strip_prefix(b"/site/")?.split_str("/").next()?;
            Some(Owner { package: name.to_str_lossy().into(), version: "1.0".into() })
        };
        let owners: Vec<Option<Owner>> = process.images.iter().map(owner).collect();
        interposed::check(&process, &Knowledge::none(), &owners)
    }

    /// What is found, with what mends it.
    pub fn findings(&self) -> Vec<Finding> {
        let process = self.process(&self.run.host);
        let mut findings = self.check(&process);
        let answered = process.decisions.iter().filter(|d| d.chosen.is_some()).count();
        prove(&mut findings, &self.run.host.env, process.dialect().family, answered, &mut |env| {
            let process = self.process(&Host { env: env.clone(), ..self.run.host.clone() });
            let findings = self.check(&process);
            Outcome::of(&process, findings)
        });
        findings
    }
}

/// `RULE severity subject`, one for each finding.
pub fn told(findings: &[Finding]) -> Vec<String> {
    findings.iter().map(|f| format!("{} {} {}", f.rule.id, f.severity.name(), f.subject)).collect()
}

/// Checks what a box gives for glibc 2.36.
#[track_caller]
pub fn gives(text: &str, expected: &[&str]) -> Vec<Finding> {
    let findings = Case::new(text).findings();
    assert_eq!(told(&findings), expected, "{findings:#?}");
    findings
}
