//! Which findings a box gives, and which it must not give: each rule with a case that fires and its near misses.

use crate::support::case;
use case::{Case, gives, told};
use ldaudit::findings::loading::{self, Knowledge};
use ldaudit::findings::prove::Candidate;
use ldaudit::findings::{Evidence, Part, Severity};
use ldaudit::fixture::Loader;
use ldaudit::ld::{OpenRequest, StepKind};
use ldaudit::recipe::{Absent, Exception};

#[test]
fn own_copy_behind_ld_library_path_is_a_warning_with_a_proven_change() {
    let findings = gives(
        "exe /app/run needed=libx.so.1 runpath=$ORIGIN/lib\n\
         so /app/lib/libx.so.1 soname=libx.so.1\n\
         so /other/libx.so.1 soname=libx.so.1 pad=64\n\
         dir /keep\n\
         env LD_LIBRARY_PATH=/keep:/other\n\nexec /app/run\n",
        &["LD0103 warning libx.so.1"],
    );
    let [remedy, ..] = findings[0].remedies.as_slice() else { panic!("no remedy") };
    assert!(remedy.verified);
    assert_eq!(remedy.after, Some((0, 0)));
    assert_eq!(remedy.commands, ["export LD_LIBRARY_PATH=/keep"]);
    let parts: Vec<(Part, String)> = findings[0].copies().map(|c| (c.part, c.path.to_string())).collect();
    assert_eq!(
        parts,
        [
            (Part::AskedBy, "/app/run".into()),
            (Part::Taken, "/other/libx.so.1".into()),
            (Part::Passed, "/app/lib/libx.so.1".into())
        ]
    );
}

#[test]
fn rpath_before_ld_library_path_is_nothing_to_tell() {
    gives(
        "exe /app/run needed=libx.so.1 rpath=$ORIGIN/lib\n\
         so /app/lib/libx.so.1 soname=libx.so.1\n\
         so /other/libx.so.1 soname=libx.so.1 pad=64\n\
         env LD_LIBRARY_PATH=/other\n\nexec /app/run\n",
        &[],
    );
}

#[test]
fn the_same_file_or_the_same_build_is_no_loser() {
    for second in
        ["hardlink /other/libx.so.1 = /app/lib/libx.so.1", "so /other/libx.so.1 soname=libx.so.1 build_id=0102030405"]
    {
        gives(
            &format!(
                "exe /app/run needed=libx.so.1 runpath=$ORIGIN/lib\n\
                 so /app/lib/libx.so.1 soname=libx.so.1 build_id=0102030405\n\
                 {second}\n\
                 env LD_LIBRARY_PATH=/other\n\nexec /app/run\n"
            ),
            &[],
        );
    }
}

#[test]
fn a_copy_of_the_system_behind_ld_library_path_matters_when_it_is_newer() {
    let with = |taken: &str| {
        format!(
            "exe /app/run needed=libx.so.1\n\
             so /usr/lib/libx.so.1 soname=libx.so.1 def=f@@X_1,g@@X_2\n\
             so /other/libx.so.1 soname=libx.so.1 {taken}\n\
             env LD_LIBRARY_PATH=/other\n\nexec /app/run\n"
        )
    };
    gives(&with("def=f@@X_1"), &["LD0103 warning libx.so.1"]);
    gives(&with("def=f@@X_1,g@@X_2,h@@X_3"), &["LD0103 note libx.so.1"]);
}

#[test]
fn two_elements_that_hold_the_name_must_both_go() {
    let findings = gives(
        "exe /app/run needed=libx.so.1 runpath=$ORIGIN/lib\n\
         so /app/lib/libx.so.1 soname=libx.so.1\n\
         so /a/libx.so.1 soname=libx.so.1 pad=64\n\
         so /b/libx.so.1 soname=libx.so.1 pad=128\n\
         dir /keep\n\
         env LD_LIBRARY_PATH=/a:/keep:/b\n\nexec /app/run\n",
        &["LD0103 warning libx.so.1"],
    );
    let commands: Vec<&str> = findings[0].remedies.iter().flat_map(|r| &r.commands).map(String::as_str).collect();
    assert_eq!(commands, ["export LD_LIBRARY_PATH=/keep", "unset LD_LIBRARY_PATH"]);
}

#[test]
fn two_stale_elements_go_together() {
    let findings = gives(
        "exe /app/run needed=libx.so.1,liby.so.1,libkept.so runpath=$ORIGIN/lib\n\
         so /app/lib/libx.so.1 soname=libx.so.1\nso /app/lib/liby.so.1 soname=liby.so.1\n\
         so /a/libx.so.1 soname=libx.so.1 pad=64\n\
         so /b/liby.so.1 soname=liby.so.1 pad=64\n\
         so /keep/libkept.so\n\
         env LD_LIBRARY_PATH=/a:/keep:/b\n\nexec /app/run\n",
        &["LD0103 warning libx.so.1", "LD0103 warning liby.so.1"],
    );
    let remedies: Vec<_> = findings[0].remedies.iter().map(|r| (r.commands[0].as_str(), r.after)).collect();
    // Without the variable libkept.so would be missing.
    assert_eq!(
        remedies,
        [("export LD_LIBRARY_PATH=/keep", Some((0, 0))), ("export LD_LIBRARY_PATH=/keep:/b", Some((0, 1)))]
    );
    assert_eq!(findings[0].remedies[0].summary, "leave /a and /b out of LD_LIBRARY_PATH");
    assert_eq!(findings[1].remedies[0].commands, ["export LD_LIBRARY_PATH=/keep"]);
}

#[test]
fn a_version_that_two_elements_hide_comes_back_when_both_go() {
    let findings = gives(
        "exe /app/run needed=libx.so.1,libkept.so verneed=libx.so.1:X_2 runpath=$ORIGIN/lib\n\
         so /app/lib/libx.so.1 soname=libx.so.1 def=f@@X_1,g@@X_2\n\
         so /a/libx.so.1 soname=libx.so.1 def=f@@X_1\n\
         so /b/libx.so.1 soname=libx.so.1 def=f@@X_1 pad=64\n\
         so /keep/libkept.so\n\
         env LD_LIBRARY_PATH=/a:/b:/keep\n\nexec /app/run\n",
        &["LD0104 error libx.so.1"],
    );
    let remedies: Vec<_> = findings[0].remedies.iter().map(|r| (r.commands[0].as_str(), r.after)).collect();
    assert_eq!(remedies, [("export LD_LIBRARY_PATH=/keep", Some((0, 0)))]);
}

#[test]
fn the_current_directory_stays_when_another_element_goes() {
    let findings = gives(
        "exe /app/run needed=libx.so.1,libhere.so runpath=$ORIGIN/lib\n\
         so /app/lib/libx.so.1 soname=libx.so.1\n\
         so /other/libx.so.1 soname=libx.so.1 pad=64\n\
         so /work/libhere.so\n\
         cwd /work\nenv LD_LIBRARY_PATH=/other:\n\nexec /app/run\n",
        &["LD0103 warning libx.so.1", "LD0201 note LD_LIBRARY_PATH"],
    );
    // An unset variable would lose libhere.so.
    let remedies: Vec<_> = findings[0].remedies.iter().map(|r| (r.commands[0].as_str(), r.after)).collect();
    assert_eq!(remedies, [("export LD_LIBRARY_PATH=:", Some((0, 0)))]);
}

#[test]
fn a_semicolon_is_part_of_a_directory_for_musl() {
    let case = Case::with(
        "loader musl\n\
         exe /app/run needed=libx.so\n\
         file /a;b/libx.so text \"this is no ELF file, and it is long enough to be read as a header of one\"\n\
         so /c;d/libx.so\n\
         env LD_LIBRARY_PATH=/a;b:/c;d\n\nexec /app/run\n",
        Loader::musl(1, 2, 3),
    );
    let findings = case.findings();
    assert_eq!(told(&findings), ["LD0102 error libx.so"], "{findings:#?}");
    let [remedy, ..] = findings[0].remedies.as_slice() else { panic!("no remedy: {findings:#?}") };
    assert_eq!((remedy.summary.as_str(), remedy.after), ("leave /a;b out of LD_LIBRARY_PATH", Some((0, 0))));
    assert_eq!(remedy.commands, ["export LD_LIBRARY_PATH='/c;d'"]);
}

#[test]
fn what_was_loaded_earlier_counts_only_against_the_requesters_own_copy() {
    let case = |second: &str| {
        format!(
            "exe /app/run\n\
             so /a/libfirst.so soname=libfirst.so needed=libx.so.1 rpath=/a\n\
             so /a/libx.so.1 soname=libx.so.1\n\
             {second}\n\
             so /usr/lib/libx.so.1 soname=libx.so.1 pad=128\n\
             \nexec /app/run\ndlopen /a/libfirst.so\ndlopen /b/libsecond.so\n"
        )
    };
    gives(
        &case(
            "so /b/libsecond.so soname=libsecond.so needed=libx.so.1 runpath=/b\nso /b/libx.so.1 soname=libx.so.1 pad=64",
        ),
        &["LD0105 warning libx.so.1"],
    );
    // The system's copy would have been found: the ordinary case of a library that carries no path.
    gives(&case("so /b/libsecond.so soname=libsecond.so needed=libx.so.1"), &[]);
    // The requester would have found the loaded one by itself, before another element.
    gives(
        &case(
            "so /b/libsecond.so soname=libsecond.so needed=libx.so.1 runpath=/a:/b\nso /b/libx.so.1 soname=libx.so.1 pad=64",
        ),
        &[],
    );
}

#[test]
fn a_copy_of_the_requesters_own_distribution_is_its_own() {
    gives(
        "exe /app/run\n\
         so /first/libx.so.1 soname=libx.so.1\n\
         so /site/pkg/libuser.so soname=libuser.so needed=libx.so.1 runpath=/site/pkg\n\
         so /site/pkg/libx.so.1 soname=libx.so.1 pad=64\n\
         \nexec /app/run\ndlopen /first/libx.so.1\ndlopen /site/pkg/libuser.so\n",
        &["LD0105 warning libx.so.1"],
    );
}

#[test]
fn a_preloaded_copy_is_to_blame_on_the_variable() {
    let findings = gives(
        "exe /app/run needed=libx.so.1 rpath=$ORIGIN/lib\n\
         so /app/lib/libx.so.1 soname=libx.so.1\n\
         so /pre/libx.so.1 soname=libx.so.1 pad=64\n\
         so /pre/libhook.so soname=libhook.so\n\
         env LD_PRELOAD=/pre/libhook.so:/pre/libx.so.1\n\nexec /app/run\n",
        &["LD0105 warning libx.so.1"],
    );
    assert_eq!(findings[0].candidates[0], Candidate::DropPreload(vec![1]));
    assert_eq!(findings[0].remedies[0].commands, ["export LD_PRELOAD=/pre/libhook.so"]);
}

#[test]
fn a_link_that_leads_nowhere_is_told_where_the_library_is_missed() {
    let case = |link: &str| format!("exe /app/run needed=libx.so.1 runpath=/app/lib\n{link}\n\nexec /app/run\n");
    let findings = gives(&case("link /app/lib/libx.so.1 -> /gone/libx.so.1"), &["LD0101 error libx.so.1"]);
    let rows: Vec<String> = findings[0].copies().map(|c| format!("{} {} {}", c.part.name(), c.path, c.place)).collect();
    let expected = "skipped /app/lib/libx.so.1 RUNPATH[0] of run: a link to /gone/libx.so.1, which is not there";
    assert!(rows.contains(&expected.to_owned()), "{rows:?}");
    let findings = gives(&case("dir /app/lib"), &["LD0101 error libx.so.1"]);
    assert!(findings[0].copies().all(|c| c.part != Part::Skipped));
}

#[test]
fn what_is_shown_together_is_mended_together() {
    let text = "exe /app/run needed=libonly.so.1,libconda.so.1\nso /site/only/libonly.so.1 soname=libonly.so.1\n\
                so /site/conda/libconda.so.1 soname=libconda.so.1\n\nexec /app/run\n";
    for finding in gives(text, &["LD0101 error libonly.so.1", "LD0101 error libconda.so.1"]) {
        assert_eq!(finding.remedies[0].commands, ["export LD_LIBRARY_PATH=/site/only:/site/conda"]);
        assert_eq!(finding.remedies[0].after, Some((0, 0)));
        assert!(finding.remedies[1..].iter().all(|remedy| !remedy.verified), "{:?}", finding.remedies);
    }
}

#[test]
fn what_gets_to_the_next_error_is_better_than_nothing() {
    let case = |used: &str| {
        format!(
            "exe /app/run needed=libonly.so.1,libuser.so runpath=/app\nso /app/libuser.so soname=libuser.so {used}\n\
             so /site/only/libonly.so.1 soname=libonly.so.1\n\nexec /app/run\n"
        )
    };
    for (used, left) in [("", 0), ("use=nowhere", 1)] {
        let findings = gives(&case(used), &["LD0101 error libonly.so.1"]);
        assert_eq!(findings[0].remedies[0].commands, ["export LD_LIBRARY_PATH=/site/only"], "{used}");
        assert_eq!(findings[0].remedies[0].after, Some((left, 0)), "{used}");
    }
}

#[test]
fn a_variable_that_leads_where_the_program_would_go_anyway_shadows_nothing() {
    let case = |own: &str| {
        format!(
            "exe /app/bin/run needed=libx.so.1 runpath=$ORIGIN/../lib\nso /app/lib/libx.so.1 soname=libx.so.1\n\
             so /lib/libx.so.1 soname=libx.so.1 pad=64\n{own}\nenv LD_LIBRARY_PATH=/opt/lib\n\nexec /app/bin/run\n"
        )
    };
    gives(&case("hardlink /opt/lib/libx.so.1 = /app/lib/libx.so.1"), &[]);
    gives(&case("so /opt/lib/libx.so.1 soname=libx.so.1 pad=128"), &["LD0103 warning libx.so.1"]);
}

#[test]
fn a_preload_that_fails_is_a_warning() {
    gives("exe /app/run\nenv LD_PRELOAD=/gone/libhook.so\n\nexec /app/run\n", &["LD0109 warning /gone/libhook.so"]);
    // In secure mode a file may be there and not count.
    let case =
        "exe /app/run\nso /lib/libhook.so soname=libhook.so\nsecure yes\nenv LD_PRELOAD=libhook.so\n\nexec /app/run\n";
    let findings = gives(case, &["LD0109 warning libhook.so", "LD0213 note LD_PRELOAD"]);
    let because = findings[0].because.as_deref().unwrap_or_default();
    assert!(because.contains(" /lib/libhook.so has no set-user-ID bit"), "{because}");
}

#[test]
fn two_copies_are_a_warning_unless_one_was_renamed_on_purpose() {
    let case = |second: &str| {
        format!(
            "exe /app/run\n\
             so /a/libgomp.so.1 soname=libgomp.so.1\n\
             so /b/{second} soname=libgomp.so.1 pad=64\n\
             \nexec /app/run\ndlopen /a/libgomp.so.1\ndlopen /b/{second}\n"
        )
    };
    gives(&case("libgomp.so.1"), &["LD0106 warning libgomp.so.1"]);
    gives(&case("libgomp-a34b3233.so.1"), &["LD0106 note libgomp.so.1"]);
    gives(&case("libgomp.so.1").replace("/b/libgomp.so.1 soname=libgomp.so.1", "/b/libgomp.so.1 soname=libb.so"), &[]);
}

#[test]
fn what_is_optional_is_no_finding_when_absent_and_a_warning_when_broken() {
    let absent = "exe /app/run\n\nexec /app/run\ndlopen libcuda.so.1\n";
    assert!(Case::new(absent).optional().findings().is_empty());
    gives(absent, &["LD0101 error libcuda.so.1"]);
    let broken = "exe /app/run\nfile /usr/lib/libcuda.so.1 size=0\n\nexec /app/run\ndlopen libcuda.so.1\n";
    assert_eq!(told(&Case::new(broken).optional().findings()), ["LD0102 warning libcuda.so.1"]);
}

#[test]
fn what_stops_the_process_comes_first_and_missing_names_stand_together() {
    gives(
        "exe /app/run needed=liba.so.1,libgone.so.1,libgone.so.2 runpath=/d\n\
         so /d/liba.so.1 soname=liba.so.1 needed=libother.so.1\n\
         env LD_LIBRARY_PATH=/nowhere\n\nexec /app/run\n",
        &[
            "LD0101 error libgone.so.1",
            "LD0101 error libgone.so.2",
            "LD0101 error libother.so.1",
            "LD0202 note /nowhere",
        ],
    );
}

#[test]
fn a_copy_that_no_search_leads_to_is_named_and_its_directory_tried() {
    let findings = gives(
        "exe /app/run needed=libonly.so.1\nso /site/only/libonly.so.1 soname=libonly.so.1\n\nexec /app/run\n",
        &["LD0101 error libonly.so.1"],
    );
    assert!(findings[0].copies().any(|c| c.part == Part::Present && c.path == "/site/only/libonly.so.1"));
    assert_eq!(findings[0].remedies[0].commands, ["export LD_LIBRARY_PATH=/site/only"]);
    assert!(findings[0].remedies[0].verified);
}

#[test]
fn what_misses_something_is_kept_out_when_the_environment_brought_it() {
    let findings = gives(
        "exe /app/run needed=libx.so.1\n\
         so /usr/lib/libx.so.1 soname=libx.so.1\n\
         so /other/libx.so.1 soname=libx.so.1 needed=libgone.so.1\n\
         env LD_LIBRARY_PATH=/other\n\nexec /app/run\n",
        &["LD0101 error libgone.so.1", "LD0103 note libx.so.1"],
    );
    assert_eq!(findings[0].remedies[0].commands, ["unset LD_LIBRARY_PATH"]);
}

#[test]
fn a_missing_version_names_the_copy_that_has_it() {
    let findings = gives(
        "exe /app/run needed=libv.so.1 runpath=$ORIGIN verneed=libv.so.1:V_2,libv.so.1:V_3\n\
         so /app/libv.so.1 soname=libv.so.1 def=f@@V_1,g@@V_2,h@@V_3\n\
         so /other/libv.so.1 soname=libv.so.1 def=f@@V_1\n\
         env LD_LIBRARY_PATH=/other\n\nexec /app/run\n",
        &["LD0104 error libv.so.1"],
    );
    assert_eq!(findings[0].summary, "libv.so.1 does not define V_2 and V_3, which run wants");
    let because = findings[0].because.as_deref().unwrap_or_default();
    assert!(
        because.contains("versions up to V_1") && because.contains("RUNPATH[0] of run has what is wanted"),
        "{because}"
    );
}

#[test]
fn unusable_files_are_named_for_what_they_are() {
    for (content, what) in [
        ("file /bad/libx.so.1 size=0", "an empty file"),
        ("file /bad/libx.so.1 size=4096", "a file of zero bytes"),
        ("dir /bad/libx.so.1", "a directory"),
        (
            "file /bad/libx.so.1 text \"INPUT(libx.so.1.0 -lm) and some more text to make it long enough for a header\"",
            "a linker script",
        ),
        (
            "file /bad/libx.so.1 text \"version https://git-lfs.github.com/spec/v1 oid sha256:0000000000000000000000\"",
            "a git-lfs pointer",
        ),
        (
            "file /bad/libx.so.1 text \"<!DOCTYPE html><html><head><title>Log in to download this file</title></head>\"",
            "a web page",
        ),
        ("so /bad/libx.so.1 soname=libx.so.1\ndamage /bad/libx.so.1 truncate=40", "an ELF file cut off after 40 bytes"),
    ] {
        let findings = gives(
            &format!("exe /app/run needed=libx.so.1\n{content}\nenv LD_LIBRARY_PATH=/bad\n\nexec /app/run\n"),
            &["LD0102 error libx.so.1"],
        );
        assert!(findings[0].summary.contains(what), "{}", findings[0].summary);
    }
}

#[test]
fn a_program_in_place_of_a_library_is_refused() {
    let findings = gives(
        "exe /app/run needed=libx.so.1\nexe /bad/libx.so.1\nenv LD_LIBRARY_PATH=/bad\n\nexec /app/run\n",
        &["LD0108 error libx.so.1"],
    );
    assert!(findings[0].because.as_deref().is_some_and(|b| b.contains("program")), "{:?}", findings[0].because);
}

#[test]
fn files_for_other_machines_are_a_note_when_a_good_one_follows() {
    gives(
        "exe /app/run needed=libx.so.1\n\
         so /arm/libx.so.1 machine=aarch64 soname=libx.so.1\n\
         so /usr/lib/libx.so.1 soname=libx.so.1\n\
         env LD_LIBRARY_PATH=/arm\n\nexec /app/run\n",
        &["LD0107 note libx.so.1"],
    );
}

#[test]
fn a_list_that_an_error_ends_says_what_was_left_out() {
    let findings = gives(
        "exe /app/run needed=libx.so.1\n\
         link /loop/libx.so.1 -> libx.so.1\n\
         so /good/libx.so.1 soname=libx.so.1\n\
         env LD_LIBRARY_PATH=/loop:/good\n\nexec /app/run\n",
        &["LD0101 error libx.so.1"],
    );
    assert!(findings[0].because.as_deref().is_some_and(|b| b.contains("ends LD_LIBRARY_PATH")));
    assert_eq!(findings[0].remedies[0].commands, ["export LD_LIBRARY_PATH=/good"]);
}

#[test]
fn elements_of_path_lists() {
    gives(
        "exe /app/run runpath=lib:\nenv LD_LIBRARY_PATH=:/gone:rel\n\nexec /app/run\n",
        &["LD0201 note LD_LIBRARY_PATH", "LD0201 note run", "LD0202 note /gone", "LD0203 note rel", "LD0203 note run"],
    );
    // musl skips empty elements, and a privileged process does not read the variable.
    let musl = Case::with("loader musl\nexe /app/run\nenv LD_LIBRARY_PATH=:\n\nexec /app/run\n", Loader::musl(1, 2, 3));
    assert!(told(&musl.findings()).is_empty());
    gives("exe /app/run\nsecure yes\nenv LD_LIBRARY_PATH=:/gone\n\nexec /app/run\n", &["LD0213 note LD_LIBRARY_PATH"]);
}

#[test]
fn audit_libraries_are_told_and_not_simulated() {
    let case = "exe /app/run\nso /a/libaudit.so soname=libaudit.so\nenv LD_AUDIT=/a/libaudit.so:/gone.so::libbare.so\n\n\
                exec /app/run\n";
    let expected = ["LD0218 note /a/libaudit.so", "LD0218 note /gone.so", "LD0218 note libbare.so"];
    let findings = gives(case, &expected);
    let of = |name: &str| findings.iter().find(|f| f.subject == name).expect("told");
    assert!(of("/a/libaudit.so").summary.contains("LD_AUDIT[0], /a/libaudit.so, is not simulated"));
    let because = of("/gone.so").because.as_deref().unwrap_or_default();
    let line =
        "ERROR: ld.so: object '/gone.so' cannot be loaded as audit interface: cannot open shared object file; ignored.";
    assert!(because.ends_with(line), "{because}");
    gives(&case.replace("env ", "secure yes\nenv "), &["LD0213 note LD_AUDIT", "LD0218 note libbare.so"]);
    let musl = Case::with(&format!("loader musl\n{case}"), Loader::musl(1, 2, 3));
    assert!(told(&musl.findings()).is_empty());
}

#[test]
fn a_loader_that_is_not_there_explains_all_else() {
    let findings = Case::new("exe /app/run needed=libgone.so interp=/nope/ld.so\n\nexec /app/run\n").findings();
    assert_eq!(told(&findings)[0], "LD0110 error /app/run");
    assert!(findings.iter().all(|f| f.rule.id != "LD0204"));
}

#[test]
fn severities_fall_and_every_finding_has_evidence() {
    let text = "exe /app/run needed=libx.so.1,libgone.so runpath=$ORIGIN:\n\
         so /app/libx.so.1 soname=libx.so.1\nso /o/libx.so.1 soname=libx.so.1 pad=64\n\
         env LD_LIBRARY_PATH=/o:/gone\nenv LD_PRELOAD=/none.so\n\nexec /app/run\n";
    let findings = gives(
        text,
        &[
            "LD0101 error libgone.so",
            "LD0103 warning libx.so.1",
            "LD0109 warning /none.so",
            "LD0201 note run",
            "LD0202 note /gone",
        ],
    );
    assert!(findings.windows(2).all(|w| w[0].severity >= w[1].severity));
    assert!(findings.iter().all(|f| !f.evidence.is_empty() && !f.summary.is_empty()));
    assert_eq!(findings[0].severity, Severity::Error);
}

#[test]
fn an_extension_by_itself_is_sent_to_the_torch_that_brings_its_libraries() {
    let extension = Case::new(
        "so /site/other/_C.so soname=_C.so needed=libtorch_cpu.so,libother.so.1\n\nexec_via_loader /site/other/_C.so\n",
    );
    let findings = extension.alone().findings();
    assert_eq!(told(&findings), ["LD0101 error libtorch_cpu.so", "LD0101 error libother.so.1"]);
    let commands: Vec<&str> = findings[0].remedies.iter().flat_map(|r| &r.commands).map(String::as_str).collect();
    assert_eq!(commands, ["ldaudit torch --dlopen /site/other/_C.so"]);
    assert!(findings[1].remedies.iter().all(|r| r.commands.is_empty()), "{:?}", findings[1].remedies);
    // A program has nobody who loads it for it.
    let findings = gives("exe /app/run needed=libtorch_cpu.so\n\nexec /app/run\n", &["LD0101 error libtorch_cpu.so"]);
    assert_eq!(findings[0].remedies, []);
}

#[test]
fn an_exception_of_a_frameworks_own_follows_a_failure_that_somebody_minds() {
    let case = Case::new("exe /app/run\n\nexec /app/run\ndlopen libfirst.so.1\n");
    let mut process = case.process(&case.run.host);
    process.dlopen(&OpenRequest { optional: true, ..OpenRequest::new("libcuda.so.1") });
    let exception = Exception::new("ValueError", "libfirst.so.*[0-9] not found");
    let known = Knowledge { exception: Some(&exception), ..Knowledge::none() };
    let mut findings = loading::check(&process, &known);
    findings.retain(|f| f.severity == Severity::Error);
    assert_eq!(told(&findings), ["LD0101 error libfirst.so.1"], "{findings:#?}");
}

#[test]
fn a_module_that_is_missing_is_told_as_one_and_pythonhome_is_blamed() {
    let raised = |text: &str, by: Option<&str>, env: &str| {
        let case = Case::new(&format!("exe /app/run\n{env}\nexec /app/run\n"));
        let module = text.split('\'').nth(1).unwrap_or_default().to_owned();
        let absent = by.map(|by| Box::new(Absent { module, by: by.into(), may_be_provided: false, cure: None }));
        let exception = Exception { absent, ..Exception::new("ModuleNotFoundError", text) };
        let known = Knowledge { exception: Some(&exception), ..Knowledge::none() };
        let mut findings = loading::check(&case.process(&case.run.host), &known);
        findings.retain(|f| f.severity == Severity::Error);
        findings
    };
    let math = "No module named 'math'";
    let findings = raised(math, Some("torch"), "env PYTHONHOME=/usr\n");
    assert_eq!(told(&findings), ["LD0208 error math"]);
    assert_eq!(findings[0].remedies[0].commands, ["unset PYTHONHOME"]);
    assert!(findings[0].evidence.contains(&Evidence::Variable("PYTHONHOME".into(), None)));
    for env in ["", "env PYTHONHOME=\n"] {
        assert_eq!(raised(math, Some("torch"), env)[0].remedies, []);
    }
    let findings = raised("No module named 'torch._custom_ops'", None, "env PYTHONHOME=/usr\n");
    assert_eq!(told(&findings), ["LD0208 error torch._custom_ops"]);
    assert_eq!(findings[0].remedies, []);
}

#[test]
fn a_name_that_is_missing_again_where_somebody_minds_is_told_once() {
    let case = Case::new("exe /app/run\nso /d/ext.so needed=libgone.so.1\n\nexec /app/run\n");
    let mut process = case.process(&case.run.host);
    for optional in [true, false] {
        process.dlopen(&OpenRequest { optional, kind: StepKind::Import, ..OpenRequest::new("/d/ext.so") });
    }
    let mut findings = loading::check(&process, &Knowledge::none());
    findings.retain(|f| f.severity == Severity::Error);
    assert_eq!(told(&findings), ["LD0101 error libgone.so.1"], "{findings:#?}");
}
