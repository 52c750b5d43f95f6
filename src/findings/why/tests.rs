//! Stories told of small boxes in memory.

use std::sync::Arc;

use bstr::{BStr, ByteSlice};

use super::*;
use crate::discover::copies::{self, Origin, Place};
use crate::fixture::{Expected, Fixture, Loader, Run as FixtureRun, Step, simulate};
use crate::ld::{OpenRequest, Start};
use crate::system::Host;

/// The process of a fixture's only run, under its own host or another one.
fn process(fixture: &Fixture, host: Option<Host>) -> Process {
    let loader = Loader::glibc(2, 36);
    let run: FixtureRun = fixture.runs(loader).into_iter().next().expect("a run");
    let run = FixtureRun { host: host.unwrap_or_else(|| run.host.clone()), ..run };
    let mut process = simulate::process(fixture, loader, &run).expect("a process");
    for Expected { step, .. } in &run.steps {
        match step {
            Step::Exec(exec) => drop(process.exec(exec.path.as_bstr(), exec.path.as_bstr(), Start::Kernel)),
            Step::Call(_) => {}
            Step::Dlopen(open) => drop(process.dlopen(&OpenRequest::new(open.name.clone()))),
        }
    }
    process
}

fn run(process: Process) -> Run {
    Run {
        group: 0,
        title: "app".into(),
        circumstances: String::new(),
        supposed: false,
        process,
        from: 0,
        by_literal: None,
    }
}

/// The story of a name in a box; copies are looked for in these directories.
fn story(text: &str, name: &str, directories: &[&str]) -> Why {
    let fixture = Fixture::parse(text.as_bytes()).expect("a fixture");
    let base = process(&fixture, None);
    let name = Name::parse(name.into()).expect("a name");
    let places: Vec<Place> =
        directories.iter().map(|d| Place { directory: (*d).into(), origin: Origin::Package }).collect();
    let found = copies::find(base.store(), &name, &places, &[], &[], &[]);
    let unusable: Vec<Option<String>> = vec![None; found.copies.len()];
    let owner =
        |path: &BStr| path.starts_with(b"/site/").then(|| Owner { package: "pkg".into(), version: "1.0".into() });
    let knowledge = Knowledge {
        name: &name,
        given: None,
        copies: &found.copies,
        unusable: &unusable,
        owner: &owner,
        further_changes: &[],
    };
    let (host, family) = (Arc::new(base.host().clone()), base.dialect().family);
    let what_if = |change: &Change| -> Option<Vec<Option<Run>>> {
        Some(vec![Some(run(process(&fixture, Some(change.on_host(&host, family)?))))])
    };
    tell(&knowledge, &[run(base)], &what_if)
}

fn fate<'a>(why: &'a Why, story: usize, path: &str) -> &'a Fate {
    let copy = why.copies.iter().position(|c| c.path == path).expect("a copy");
    &why.stories[story].fates.iter().find(|(index, _)| *index == copy).expect("a fate").1
}

fn winner(why: &Why, copy: Option<usize>) -> String {
    copy.map_or_else(|| "nobody".to_owned(), |c| why.copies[c].path.to_string())
}

/// Each change with the copy that wins then.
fn changes(why: &Why) -> Vec<(String, String)> {
    let mut out = Vec::new();
    for tried in &why.changes {
        let (name, value) = tried.assignment.clone().expect("a variable");
        let value = value.map_or_else(|| "(unset)".to_owned(), |v| v.to_string());
        for effect in tried.effects.iter().filter(|e| e.changes_answer) {
            out.push((format!("{name}={value}"), winner(why, effect.copy)));
        }
    }
    out
}

const RPATH_FIRST: &str = "# RPATH before the variable\n\
    exe /app/run needed=libx.so.1 rpath=/a\n\
    so /a/libx.so.1 soname=libx.so.1\n\
    so /b/libx.so.1 soname=libx.so.1\n\
    so /site/libx.so.1 soname=libx.so.1\n\
    env LD_LIBRARY_PATH=/b\n\
    exec /app/run\n";

#[test]
fn later_copies_stand_in_the_order_of_the_search() {
    let all = "exe /app/run needed=libx.so.1 runpath=/r\nenv LD_LIBRARY_PATH=/c:/b:/d:/a\nexec /app/run\n";
    let copies = ["/a", "/b", "/c", "/d", "/r"].map(|d| format!("so {d}/libx.so.1 soname=libx.so.1\n")).concat();
    let why = story(&format!("# order\n{copies}{all}"), "libx.so.1", &["/a", "/b", "/c", "/d", "/r"]);
    let paths: Vec<String> = why.stories[0].fates.iter().map(|(copy, _)| why.copies[*copy].path.to_string()).collect();
    assert_eq!(paths, ["/c", "/b", "/d", "/a", "/r"].map(|d| format!("{d}/libx.so.1")));
}

#[test]
fn a_copy_behind_rpath_is_later_and_only_a_preload_brings_it_in() {
    let why = story(RPATH_FIRST, "libx.so.1", &["/a", "/b", "/site"]);
    assert_eq!(why.stories.len(), 1);
    assert_eq!(winner(&why, why.stories[0].copy), "/a/libx.so.1");
    assert_eq!(fate(&why, 0, "/a/libx.so.1").name(), "taken");
    let Fate::Later(reason) = fate(&why, 0, "/b/libx.so.1") else { panic!("{why:?}") };
    assert_eq!(reason.to_string(), "LD_LIBRARY_PATH[0]");
    assert_eq!(fate(&why, 0, "/site/libx.so.1").name(), "never");
    assert_eq!(
        changes(&why),
        [
            ("LD_PRELOAD=/b/libx.so.1".to_owned(), "/b/libx.so.1".to_owned()),
            ("LD_PRELOAD=/site/libx.so.1".to_owned(), "/site/libx.so.1".to_owned()),
        ]
    );
    assert_eq!(why.stuck.len(), 2);
    assert!(why.stuck.iter().all(|s| s.preload_helps && s.why == "RPATH of run is searched before LD_LIBRARY_PATH"));
    assert_eq!(why.copies[2].owner.as_ref().map(|o| o.package.as_str()), Some("pkg"));
    // Copies are numbered as they are told of.
    let paths: Vec<String> = why.copies.iter().map(|c| c.path.to_string()).collect();
    assert_eq!(paths, ["/a/libx.so.1", "/b/libx.so.1", "/site/libx.so.1"]);
}

#[test]
fn leaving_out_the_element_that_wins_and_what_else_that_changes() {
    let text = "# variable before RUNPATH\n\
        exe /app/run needed=libx.so.1,liby.so.1 runpath=/a\n\
        so /a/libx.so.1 soname=libx.so.1\n\
        so /a/liby.so.1 soname=liby.so.1\n\
        so /b/libx.so.1 soname=libx.so.1\n\
        so /b/liby.so.1 soname=liby.so.1\n\
        env LD_LIBRARY_PATH=/b:\n\
        exec /app/run\n";
    let why = story(text, "libx.so.1", &["/a", "/b"]);
    assert_eq!(winner(&why, why.stories[0].copy), "/b/libx.so.1");
    let a = "/a/libx.so.1".to_owned();
    assert_eq!(
        changes(&why),
        [
            ("LD_LIBRARY_PATH=:".to_owned(), a.clone()),
            ("LD_LIBRARY_PATH=(unset)".to_owned(), a.clone()),
            ("LD_LIBRARY_PATH=/a:/b:".to_owned(), a.clone()),
            ("LD_PRELOAD=/a/libx.so.1".to_owned(), a),
        ]
    );
    let replaced: Vec<bool> =
        why.changes.iter().map(|t| t.effects[0].replaced.iter().any(|n| n == "liby.so.1")).collect();
    assert_eq!(replaced, [true, true, true, false]);
    assert!(why.stuck.is_empty());
}

#[test]
fn different_requesters_with_different_answers_are_different_stories() {
    let text = "# two answers\n\
        exe /app/run needed=libp.so rpath=/p\n\
        so /p/libp.so soname=libp.so needed=/q/libx.so.1\n\
        so /q/libx.so.1 soname=libother.so\n\
        so /r/libx.so.1 soname=libx.so.1\n\
        env LD_LIBRARY_PATH=/r\n\
        exec /app/run\n\
        dlopen libx.so.1\n";
    let why = story(text, "libx.so.1", &["/q", "/r"]);
    let answers: Vec<String> = why.stories.iter().map(|s| winner(&why, s.copy)).collect();
    assert_eq!(answers, ["/q/libx.so.1", "/r/libx.so.1"]);
    assert_eq!(why.stories[0].tellers[0].askers[0].asked.as_ref().map(|a| a.to_string()), Some("/q/libx.so.1".into()));
    assert_eq!(fate(&why, 1, "/q/libx.so.1").name(), "loaded-too");
}

#[test]
fn a_copy_loaded_earlier_answers_and_the_requesters_own_loses() {
    let text = "# loaded earlier\n\
        exe /app/run needed=libfirst.so,libuser.so rpath=/p\n\
        so /p/libfirst.so soname=libfirst.so needed=/far/renamed.so\n\
        so /far/renamed.so soname=libx.so.1\n\
        so /p/libuser.so soname=libuser.so needed=libdeep.so\n\
        so /p/libdeep.so soname=libdeep.so needed=libx.so.1 runpath=/own\n\
        so /own/libx.so.1 soname=libx.so.1\n\
        exec /app/run\n";
    let why = story(text, "libx.so.1", &["/far", "/own"]);
    assert_eq!(winner(&why, why.stories[0].copy), "/far/renamed.so");
    let Fate::Earlier { asked, .. } = fate(&why, 0, "/far/renamed.so") else { panic!("{why:?}") };
    assert_eq!(asked, "/far/renamed.so");
    let Fate::Displaced { asker, reason } = fate(&why, 0, "/own/libx.so.1") else { panic!("{why:?}") };
    assert_eq!(
        (asker.to_string(), reason.to_string()),
        ("libdeep.so".into(), "RUNPATH[0] of libdeep.so (/own)".into())
    );
    assert_eq!(why.stuck[0].why, "a copy that was loaded before as /far/renamed.so answers");
}

#[test]
fn files_that_are_passed_and_files_that_end_the_load_are_told_apart() {
    let text = "# bad files\n\
        exe /app/run needed=libx.so.1 runpath=/other:/bad:/good\n\
        so /other/libx.so.1 soname=libx.so.1 machine=aarch64\n\
        file /bad/libx.so.1 text \"this is not a library, yet long enough to be read as a header of one\"\n\
        so /good/libx.so.1 soname=libx.so.1\n\
        exec /app/run\n";
    let why = story(text, "libx.so.1", &["/other", "/bad", "/good"]);
    let told = &why.stories[0];
    assert_eq!(told.copy, None);
    assert_eq!(told.failure.as_ref().map(|f| f.to_string()), Some("/bad/libx.so.1: invalid ELF header".into()));
    let Fate::Passed { why: reason, .. } = fate(&why, 0, "/other/libx.so.1") else { panic!("{why:?}") };
    assert_eq!(reason, "built for another machine");
    assert_eq!(fate(&why, 0, "/bad/libx.so.1").name(), "ends-the-load");
    let Fate::Never(reason) = fate(&why, 0, "/good/libx.so.1") else { panic!("{why:?}") };
    assert_eq!(reason, "not tried: the search ends at the unusable file");
    let mends = why.changes.iter().find(|t| matches!(t.change, Change::PrependLibraryPath(_))).expect("a way out");
    assert_eq!(mends.effects[0].mended, ["/app/run"]);
}

#[test]
fn near_names_and_missing_links_are_no_answers() {
    let text = "# near\n\
        exe /app/run needed=libx.so.1 runpath=/d\n\
        so /d/libx.so.1.2 soname=libx.so.1\n\
        so /d/libx.so.2 soname=libx.so.2\n\
        so /d/libx.so soname=libx.so\n\
        exec /app/run\n";
    let why = story(text, "libx.so.1", &["/d"]);
    assert_eq!(why.stories[0].copy, None);
    assert_eq!(why.stories[0].tellers[0].searched, ["RUNPATH of run (/d)", "ld.so.cache", "the default directories"]);
    assert_eq!(why.near.len(), 2);
    let Fate::Never(reason) = fate(&why, 0, "/d/libx.so.1.2") else { panic!("{why:?}") };
    assert_eq!(reason, "has another file name: answers only once it is loaded by that");
    assert_eq!(changes(&why), [("LD_PRELOAD=/d/libx.so.1.2".to_owned(), "/d/libx.so.1.2".to_owned())]);
}

#[test]
fn secure_mode_ignores_the_variable_and_says_so() {
    let text = format!("# secure\nsecure yes\n{}", RPATH_FIRST.trim_start_matches(|c| c != '\n').trim_start());
    let why = story(&text.replace("rpath=/a", "rpath=/none"), "libx.so.1", &["/a", "/b"]);
    assert_eq!(why.stories[0].copy, None);
    assert!(why.stuck.iter().all(|s| !s.preload_helps && s.why == "LD_LIBRARY_PATH is ignored in secure mode"));
    assert_eq!(why.stuck.len(), 2);
}

#[test]
fn a_preload_entry_and_the_program_may_fare_differently() {
    let text = "# preload by name\n\
        exe /app/run needed=libm.so rpath=/p\n\
        so /p/libm.so soname=libm.so needed=libx.so.1 runpath=/own\n\
        so /own/libx.so.1 soname=libx.so.1\n\
        so /v/libx.so.1 soname=libx.so.1\n\
        env LD_LIBRARY_PATH=/v\n\
        env LD_PRELOAD=libx.so.1\n\
        exec /app/run\n";
    let why = story(text, "libx.so.1", &["/own", "/v"]);
    let unset =
        why.changes.iter().find(|t| t.change == Change::UnsetLibraryPath || t.change == Change::DropLibraryPath(0));
    let effects = &unset.expect("a change").effects;
    let of = |how: How| effects.iter().find(|e| e.askers.iter().any(|(h, _)| *h == how)).expect("an effect");
    assert_eq!(winner(&why, of(How::Needed).copy), "/own/libx.so.1");
    assert_eq!(of(How::Preload).copy, None);
    assert!(!of(How::Needed).all_askers);
}
