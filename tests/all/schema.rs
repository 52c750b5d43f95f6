//! Do the reports hold to their schema, `fixtures/schema/report-1.json`?
//!
//! Every fixture is simulated and its report validated, for glibc and for musl; then reports of the command itself on real
//! files. Each report is validated twice: as a reader would, and strictly, where a property that the schema does not
//! describe is an error, so that the schema is never behind the report.

use std::process::Command;

use crate::support::{fixtures, strict};
use ldaudit::findings::loading::{Knowledge, check};
use ldaudit::fixture::{Loader, simulate};
use ldaudit::render::{Report, Target, json};
use serde_json::{Value, json};

struct Schema {
    plain: jsonschema::Validator,
    strict: jsonschema::Validator,
}

fn schema() -> Schema {
    let text = include_str!("../../fixtures/schema/report-1.json");
    let value: Value = serde_json::from_str(text).expect("the schema is JSON");
    jsonschema::meta::validate(&value).expect("the schema is a schema");
    let mut closed = value.clone();
    strict::close(&mut closed);
    Schema {
        plain: jsonschema::validator_for(&value).expect("the schema compiles"),
        strict: jsonschema::validator_for(&closed).expect("the strict schema compiles"),
    }
}

impl Schema {
    /// What is wrong with a report.
    fn complaints(&self, report: &Value) -> Vec<String> {
        [("", &self.plain), ("strictly: ", &self.strict)]
            .iter()
            .flat_map(|(how, validator)| {
                validator.iter_errors(report).map(move |e| format!("{how}{}: {e}", e.instance_path()))
            })
            .take(8)
            .collect()
    }

    fn check(&self, what: &str, report: &Value) {
        let complaints = self.complaints(report);
        assert!(complaints.is_empty(), "{what}:\n{}", complaints.join("\n"));
    }
}

#[test]
fn reports_of_all_fixtures_hold_to_the_schema() {
    let schema = schema();
    let mut reports = 0;
    for path in fixtures::all() {
        let fixture = fixtures::sound(&path);
        for loader in [Loader::glibc(2, 36), Loader::glibc(2, 41), Loader::musl(1, 2, 3)] {
            if !fixture.concerns(loader) {
                continue;
            }
            let Ok((process, name)) = simulate::demonstrate(&fixture, loader) else { continue };
            let target = Target::file(name);
            let mut report = Report::new(target, process);
            report.findings = check(&report.process, &Knowledge::none());
            let mut text = Vec::new();
            json::write(&report, &mut text, false).expect("written");
            let value = serde_json::from_slice(&text).expect("JSON");
            schema.check(&format!("{} under {loader}", path.display()), &value);
            reports += 1;
        }
    }
    assert!(reports > 200, "only {reports} reports were made");
}

/// The report that the command prints.
fn run(words: &[&str]) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_ldaudit"))
        .args(["--format", "json"])
        .args(words)
        .output()
        .expect("ldaudit runs");
    assert!(
        matches!(output.status.code(), Some(0 | 1)),
        "{words:?}: {} {}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).expect("one JSON object")
}

#[test]
fn reports_of_real_files_hold_to_the_schema() {
    let schema = schema();
    let own = std::env::current_exe().expect("own path");
    let own = own.to_str().expect("UTF-8");
    let mut statuses = Vec::new();
    for words in [
        vec![own],
        vec!["--dlopen", "G:libnothing.so.1", own],
        vec!["--env", "LD_PRELOAD=/nonexistent.so", "--env", "LD_LIBRARY_PATH=/tmp::relative", own],
        vec!["--host", own, "/proc/self/exe"],
        vec!["--loader", "musl:1.2", own],
    ] {
        let report = run(&words);
        schema.check(&words.join(" "), &report);
        statuses.push(report["verdict"].clone());
    }
    assert!(statuses.contains(&json!("fails")) && statuses.iter().any(|v| v != "fails"), "{statuses:?}");
}

#[test]
fn the_schema_refuses_what_is_no_report() {
    let schema = schema();
    let own = std::env::current_exe().expect("own path");
    let report = run(&[own.to_str().expect("UTF-8")]);
    for (pointer, wrong) in [
        ("/verdict", json!("maybe")),
        ("/process/images/0/id", json!(-1)),
        ("/process/decisions/0/how", json!("guessed")),
        ("/process/decisions/0/attempts/0/verdict", json!("fatal")),
        ("/process/steps/0/outcome", json!(true)),
        ("/schema", json!("ldaudit.report/2")),
    ] {
        let mut broken = report.clone();
        *broken.pointer_mut(pointer).expect(pointer) = wrong;
        assert!(!schema.complaints(&broken).is_empty(), "{pointer} was accepted");
    }
    let mut extended = report;
    extended["process"]["images"][0]["colour"] = json!("blue");
    assert!(schema.plain.is_valid(&extended) && !schema.strict.is_valid(&extended));
}

#[test]
fn the_command_prints_the_schema() {
    let output =
        Command::new(env!("CARGO_BIN_EXE_ldaudit")).args(["generate", "schema"]).output().expect("ldaudit runs");
    assert_eq!(output.stdout, include_bytes!("../../fixtures/schema/report-1.json"));
}
