//! How a symbol that nothing defines is explained: the culprit and its rule, the copy that has the symbol, what mends it;
//! and the near misses in which nothing is to be told.

use crate::support::case;
use case::{Case, gives, told};
use ldaudit::findings::{Evidence, Finding, Part};
use ldaudit::fixture::Loader;

fn parts(finding: &Finding) -> Vec<(Part, String)> {
    finding.copies().map(|c| (c.part, c.path.to_string())).collect()
}

fn because(finding: &Finding) -> &str {
    finding.because.as_deref().unwrap_or_default()
}

/// A library whose own copy of another one stands behind LD_LIBRARY_PATH. `{}` is what the copy in front defines.
fn shadowed(other: &str) -> String {
    format!(
        "exe /app/run\n\
         so /app/libuser.so soname=libuser.so needed=libx.so.1 runpath=/app use=f@X,g@X\n\
         so /app/libx.so.1 soname=libx.so.1 def=f@@X,g@@X\n\
         so /other/libx.so.1 soname=libx.so.1 {other}\n\
         env LD_LIBRARY_PATH=/other\n\nexec /app/run\ndlopen /app/libuser.so\n"
    )
}

#[test]
fn the_copy_in_front_is_the_culprit_and_the_one_behind_has_the_symbol() {
    let findings = gives(&shadowed("def=f@@X"), &["LD0113 error libx.so.1"]);
    let finding = &findings[0];
    assert_eq!(finding.summary, "the libx.so.1 of LD_LIBRARY_PATH[0] does not define g, which libuser.so wants");
    let expected = [
        (Part::AskedBy, "/app/libuser.so".into()),
        (Part::Taken, "/other/libx.so.1".into()),
        (Part::Passed, "/app/libx.so.1".into()),
    ];
    assert_eq!(parts(finding), expected);
    let text = because(finding);
    assert!(text.contains("RUNPATH, which is searched after LD_LIBRARY_PATH"), "{text}");
    assert!(text.contains("One of the 2 symbols that libuser.so wants of it is absent"), "{text}");
    assert!(text.contains("all are in the one of RUNPATH[0] of libuser.so"), "{text}");
    assert_eq!(finding.remedies[0].commands, ["unset LD_LIBRARY_PATH"]);
    assert!(finding.remedies[0].verified);
    assert_eq!(finding.remedies[0].after, Some((0, 0)));
    // The same copy with the symbol is only shadowing.
    gives(&shadowed("def=f@@X,g@@X"), &["LD0103 warning libx.so.1"]);
}

#[test]
fn an_unversioned_symbol_is_traced_by_the_copy_that_has_it() {
    let case = |def: &str| {
        format!(
            "exe /app/run needed=libc10.so,libuser.so rpath=/app\n\
             so /app/libc10.so soname=libc10.so\n\
             so /app/libuser.so soname=libuser.so needed=liby.so.1,libnccl.so.2 rpath=/app use=ncclCommRegister\n\
             so /app/liby.so.1 soname=liby.so.1\n\
             so /app/libnccl.so.2 soname=libnccl.so.2 def=ncclCommRegister\n\
             so /pre/libnccl.so.2 soname=libnccl.so.2 {def}\n\
             env LD_PRELOAD=/pre/libnccl.so.2\n\nexec /app/run\n"
        )
    };
    let findings = gives(&case(""), &["LD0113 error libnccl.so.2"]);
    assert!(findings[0].summary.starts_with("the libnccl.so.2 of LD_PRELOAD[0] does not define ncclCommRegister"));
    assert!(because(&findings[0]).contains("libnccl 2.18.1 does not have ncclCommRegister;"));
    assert_eq!(findings[0].remedies[0].commands, ["unset LD_PRELOAD"]);
    gives(&case("def=ncclCommRegister pad=64"), &["LD0105 warning libnccl.so.2"]);
}

#[test]
fn a_library_is_blamed_for_what_is_looked_up_in_it_without_being_asked_for() {
    // libmid.so, not libuser.so, needs libx.so.1; the linker was content with that.
    let case = |other: &str| {
        format!(
            "exe /app/run needed=libuser.so rpath=/app\n\
             so /app/libuser.so soname=libuser.so needed=libmid.so use=g\n\
             so /app/libmid.so soname=libmid.so needed=libx.so.1 runpath=/app\n\
             so /app/libx.so.1 soname=libx.so.1 def=g\n\
             so /other/libx.so.1 soname=libx.so.1 {other}\n\
             env LD_LIBRARY_PATH=/other\n\nexec /app/run\n"
        )
    };
    let findings = gives(&case(""), &["LD0113 error libx.so.1"]);
    assert_eq!(findings[0].summary, "the libx.so.1 of LD_LIBRARY_PATH[0] does not define g, which libuser.so wants");
    gives(&case("def=g"), &["LD0103 warning libx.so.1"]);
}

#[test]
fn a_library_that_lets_two_steps_down_is_told_once() {
    let findings = gives(
        "exe /app/run\n\
         so /app/liblazy.so soname=liblazy.so needed=libx.so.1 runpath=/app use=f:lazy\n\
         so /app/libuser.so soname=libuser.so needed=libx.so.1 runpath=/app use=g\n\
         so /app/libx.so.1 soname=libx.so.1 def=f,g\n\
         so /other/libx.so.1 soname=libx.so.1\n\
         env LD_LIBRARY_PATH=/other\n\nexec /app/run\ndlopen L:/app/liblazy.so\ndlopen /app/libuser.so\n",
        &["LD0113 error libx.so.1"],
    );
    let summary = "the libx.so.1 of LD_LIBRARY_PATH[0] does not define g and f, which libuser.so wants";
    assert_eq!(findings[0].summary, summary);
}

#[test]
fn the_table_names_the_library_where_no_other_copy_is_there() {
    let findings = gives(
        "exe /app/run needed=libuser.so rpath=/app\n\
         so /app/libuser.so soname=libuser.so needed=liby.so.1,libnccl.so.2 rpath=/app use=ncclCommSplit\n\
         so /app/liby.so.1 soname=liby.so.1\n\
         so /app/libnccl.so.2 soname=libnccl.so.2\n\nexec /app/run\n",
        &["LD0113 error libnccl.so.2"],
    );
    assert!(because(&findings[0]).contains("from 2.18 on"), "{}", because(&findings[0]));
}

#[test]
fn a_definition_that_is_loaded_and_not_in_the_scope_is_told_as_such() {
    let case = |open: &str| {
        format!(
            "exe /app/run\n\
             so /a/libdef.so soname=libdef.so def=f\n\
             so /a/libuse.so soname=libuse.so use=f\n\n\
             exec /app/run\ndlopen {open}/a/libdef.so\ndlopen /a/libuse.so\n"
        )
    };
    let findings = gives(&case(""), &["LD0113 error libdef.so"]);
    assert_eq!(findings[0].summary, "libdef.so is loaded and defines f, but not for libuse.so, which wants it");
    assert!(because(&findings[0]).contains("without RTLD_GLOBAL"));
    gives(&case("G:"), &[]);
}

#[test]
fn what_nobody_loads_is_looked_for_in_the_environment() {
    let case = |defined: &str| {
        format!(
            "exe /app/run needed=libuse.so rpath=/a\n\
             so /a/libuse.so soname=libuse.so use=missing_one\n\
             so /site/more/libmore.so.1 soname=libmore.so.1 def={defined}\n\nexec /app/run\n"
        )
    };
    let findings = gives(&case("missing_one"), &["LD0113 error libmore.so.1"]);
    assert!(findings[0].copies().any(|c| c.part == Part::Present && c.path == "/site/more/libmore.so.1"));
    let findings = gives(&case("another"), &["LD0113 error libuse.so"]);
    assert_eq!(findings[0].summary, "no library defines missing_one, which libuse.so wants");
}

#[test]
fn an_extension_for_another_python_is_told_by_its_interface() {
    let case = |also: &str| {
        format!(
            "exe /usr/bin/python3.11 def=Py_IsInitialized,PyList_New{also}\n\
             so /site/ext/ext.so use=PyList_New,PyUnicode_New9\n\nexec /usr/bin/python3.11\ndlopen /site/ext/ext.so\n"
        )
    };
    let findings = gives(&case(""), &["LD0113 error python3.11"]);
    assert!(because(&findings[0]).contains("was built for another release of Python"), "{}", because(&findings[0]));
    gives(&case(",PyUnicode_New9"), &[]);
}

#[test]
fn a_function_that_is_bound_at_its_first_call_is_a_warning() {
    let case = |symbol: &str| {
        format!("exe /app/run needed=libu.so rpath=/d\nso /d/libu.so soname=libu.so use={symbol}\n\nexec /app/run\n")
    };
    let findings = gives(&case("nowhere:lazy"), &["LD0113 warning libu.so"]);
    assert!(because(&findings[0]).contains("ends at that call"), "{}", because(&findings[0]));
    gives(&case("nowhere:lazy:weak"), &[]);
    // At once it ends the start.
    gives(&case("nowhere"), &["LD0113 error libu.so"]);
}

#[test]
fn what_the_program_does_without_is_a_warning() {
    let text = "exe /app/run\nso /d/libu.so soname=libu.so use=nowhere\n\nexec /app/run\ndlopen /d/libu.so\n";
    assert_eq!(told(&Case::new(text).optional().findings()), ["LD0113 warning libu.so"]);
}

#[test]
fn a_library_audited_alone_leaves_to_its_program_what_no_library_of_its_own_is_to_define() {
    let case = |def: &str| {
        format!(
            "so /d/ext.so needed=libv.so runpath=/d use=g@V1,PyList_New,PyObject_Call,PyDict_New\n\
             so /d/libv.so soname=libv.so def=f@@V1{def}\n\nexec /d/ext.so\n"
        )
    };
    let findings = Case::new(&case("")).alone().findings();
    assert_eq!(told(&findings), ["LD0113 error libv.so", "LD0115 note ext.so"]);
    assert!(findings[1].summary.contains("leaves 3 symbols to the Python that imports it"), "{}", findings[1].summary);
    let findings = Case::new(&case(",g@@V1")).alone().findings();
    assert_eq!(told(&findings), ["LD0115 note ext.so"]);
}

/// An extension and a torch; `{}` are the definitions of libc10 and what the extension refers to.
fn torch(exported: &str, wanted: &str) -> String {
    format!(
        "exe /app/run\n\
         so /site/torch/libc10.so soname=libc10.so def={exported}\n\
         so /site/vision/_C.so needed=libc10.so use={wanted}\n\n\
         exec /app/run\ndlopen /site/torch/libc10.so\ndlopen /site/vision/_C.so\n"
    )
}

#[test]
fn an_extension_for_another_torch_is_compared_with_what_torch_exports() {
    // c10::Error::Error(std::string, std::string, void const*) with the old and the new string.
    let old = "_ZN3c105ErrorC1ESsSsPKv";
    let new = "_ZN3c105ErrorC1ENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEES6_PKv";
    let findings = gives(&torch(old, new), &["LD0114 error _C.so"]);
    assert!(
        findings[0].summary.starts_with("vision 1.0 was built for another torch than 1.0: libc10.so does not export")
    );
    assert!(because(&findings[0]).contains("the new form of std::string"), "{}", because(&findings[0]));
    assert!(because(&findings[0]).contains("vision 1.0 requires torch ==9.1."), "{}", because(&findings[0]));
    assert_eq!(findings[0].remedies[0].commands, ["pip install torch==9.1"]);
    assert!(!findings[0].remedies[0].verified);
    let demangled = findings[0].evidence.iter().find_map(|e| match e {
        Evidence::Symbol { demangled, .. } => demangled.clone(),
        _ => None,
    });
    assert!(demangled.is_some_and(|d| d.starts_with("c10::Error::Error(")));
    let findings = gives(&torch(new, old), &["LD0114 error _C.so"]);
    assert!(because(&findings[0]).contains("the old form of std::string"), "{}", because(&findings[0]));

    // c10::f(int) and c10::f(long).
    let findings = gives(&torch("_ZN3c101fEl", "_ZN3c101fEi"), &["LD0114 error _C.so"]);
    let text = because(&findings[0]);
    assert!(text.contains("It wants c10::f(int), and this torch exports c10::f(long)."), "{text}");
    // c10::f(int) and c10::v1::f(int) below a class.
    let findings = gives(&torch("_ZN3c102v11A1fEi", "_ZN3c101A1fEi"), &["LD0114 error _C.so"]);
    assert!(because(&findings[0]).contains("in another namespace"), "{}", because(&findings[0]));
    // c10::Error::what() const, which only newer ones export.
    let findings = gives(&torch(old, "_ZNK3c105Error4whatEv"), &["LD0114 error _C.so"]);
    let text = because(&findings[0]);
    assert!(text.contains("Neither libc10.so nor any other library of this torch exports"), "{text}");
    assert!(text.contains("built for a newer torch"), "{text}");
    // Nothing is wrong when it is exported, and a name outside of torch's namespaces is no business of torch.
    gives(&torch(new, new), &[]);
    gives(&torch(old, "_ZN4mine1fEi"), &["LD0113 error _C.so"]);
}

#[test]
fn a_version_floor_is_told_with_the_symbols_that_raise_it() {
    let case = |version: &str| {
        format!(
            "exe /app/run needed=libstdc++.so.6 rpath=/d use=f@{version},h@GLIBCXX_3.4\n\
             so /d/libstdc++.so.6 soname=libstdc++.so.6 def=g@@GLIBCXX_3.4.28,h@@GLIBCXX_3.4,f@@GLIBCXX_3.4.21\n\n\
             exec /app/run\n"
        )
    };
    let findings = gives(&case("GLIBCXX_3.4.30"), &["LD0104 error libstdc++.so.6"]);
    let text = because(&findings[0]);
    assert!(text.contains("defines versions up to GLIBCXX_3.4.28."), "{text}");
    assert!(text.contains("GLIBCXX_3.4.30 is wanted for f: 1 of the 2 symbols"), "{text}");
    assert!(text.contains("GLIBCXX_3.4.30 came with GCC 12.1, the copy taken is of GCC 9.3."), "{text}");
    gives(&case("GLIBCXX_3.4.21"), &[]);
}

#[test]
fn versions_are_told_by_the_file_that_lacks_them_and_by_who_wants_them() {
    let findings = gives(
        "exe /app/run needed=libstdc++.so.6,libc.so.6 rpath=/d \
         verneed=libc.so.6:GLIBC_2.34,libstdc++.so.6:GLIBCXX_3.4.29\n\
         so /d/libstdc++.so.6 soname=libstdc++.so.6 needed=libc.so.6 def=f@@GLIBCXX_3.4.28 use=g@GLIBC_2.38,h@GLIBC_2.33\n\
         so /d/libc.so.6 soname=libc.so.6 def=g@@GLIBC_2.31,h@@GLIBC_2.2.5\n\nexec /app/run\n",
        // The first line of the loader's message decides which stands first, not which was loaded first.
        &["LD0104 error libc.so.6", "LD0104 error libstdc++.so.6"],
    );
    let summaries: Vec<&str> = findings.iter().map(|f| f.summary.as_str()).collect();
    assert!(summaries[0].ends_with("does not define GLIBC_2.34, which run wants"), "{summaries:?}");
    assert!(summaries[1].ends_with("does not define GLIBCXX_3.4.29, which run wants"), "{summaries:?}");
    let text = because(&findings[0]);
    assert!(text.contains("run was built on a system with glibc 2.34 or later."), "{text}");
    assert!(text.contains("libstdc++.so.6 wants GLIBC_2.38 and GLIBC_2.33 of it."), "{text}");
}

#[test]
fn a_program_of_glibc_under_musl_is_told_as_such() {
    use ldaudit::fixture::Loader;
    let because_of = |needed: &str| {
        let text = format!(
            "loader musl\nexe /app/run needed={needed} use=f\nso /lib/liba.so soname=liba.so\n\nexec /app/run\n"
        );
        let findings = case::Case::with(&text, Loader::musl(1, 2, 3)).findings();
        let of_symbols = findings.into_iter().find(|f| f.rule.id == "LD0113");
        of_symbols.and_then(|f| f.because).unwrap_or_default()
    };
    let text = because_of("libc.so.6");
    assert!(text.contains("run was built for glibc: it asks for libc.so.6"), "{text}");
    assert_eq!(because_of("liba.so"), "the only library that run needs does not define it: liba.so.");
}

#[test]
fn another_copy_of_the_environment_that_would_do_is_named_and_tried() {
    let case = |def: &str| {
        format!(
            "exe /app/run needed=libconda.so.1 use=f@V_2\n\
             so /usr/lib/libconda.so.1 soname=libconda.so.1 def=f@@V_1\n\
             so /site/conda/libconda.so.1 soname=libconda.so.1 def=f@@{def}\n\nexec /app/run\n"
        )
    };
    let findings = gives(&case("V_2"), &["LD0104 error libconda.so.1"]);
    assert!(findings[0].copies().any(|c| c.part == Part::Present && c.path == "/site/conda/libconda.so.1"));
    assert_eq!(findings[0].remedies[0].commands, ["export LD_LIBRARY_PATH=/site/conda"]);
    let findings = gives(&case("V_3"), &["LD0104 error libconda.so.1"]);
    assert!(findings[0].copies().all(|c| c.part != Part::Present));
    assert!(findings[0].remedies.is_empty());
}

#[test]
fn a_newer_glibc_cannot_be_put_in_place() {
    let findings = gives(
        "exe /app/run needed=libc.so.6 use=f@GLIBC_2.38\n\
         so /usr/lib/libc.so.6 soname=libc.so.6 def=f@@GLIBC_2.36\n\nexec /app/run\n",
        &["LD0104 error libc.so.6"],
    );
    let text = because(&findings[0]);
    assert!(text.contains("no other copy can take its place") && text.contains("glibc 2.38 or later"), "{text}");
}

// ------------------------------------------------------------------------------------------- what works and may surprise

/// A program that opens two libraries.
fn opens(first: &str, second: &str) -> String {
    let path = |line: &str| line.split(' ').next().unwrap_or_default().to_owned();
    format!("exe /app/run\nso {first}\nso {second}\n\nexec /app/run\ndlopen {}\ndlopen {}\n", path(first), path(second))
}

#[test]
fn two_openmp_run_times_are_a_note() {
    gives(
        &opens("/a/libgomp-a34b3233.so.1 soname=libgomp-a34b3233.so.1", "/b/libiomp5.so soname=libiomp5.so"),
        &["LD0116 note libgomp-a34b3233.so.1"],
    );
    gives(&opens("/a/libgomp.so.1 soname=libgomp.so.1", "/b/libgompx.so.1 soname=libgompx.so.1"), &[]);
    // Parts of one make.
    gives(&opens("/a/libmkl_rt.so.2 soname=libmkl_rt.so.2", "/a/libmkl_core.so.2 soname=libmkl_core.so.2"), &[]);
}

#[test]
fn what_one_copy_takes_from_the_users_of_another_is_counted() {
    let case = |first: &str| {
        format!(
            "exe /app/run\n\
             so /a/libx.so.1 soname=libx.so.1 def={first}\n\
             so /b/liby.so needed=/b/libx.so.1 use=f,g soname=liby.so\n\
             so /b/libx.so.1 soname=libx.so.1 def=f,g pad=64\n\n\
             exec /app/run\ndlopen G:/a/libx.so.1\ndlopen /b/liby.so\n"
        )
    };
    let findings = gives(&case("f,g"), &["LD0106 warning libx.so.1"]);
    let text = because(&findings[0]);
    assert!(text.ends_with("liby.so came with the one of /b/libx.so.1 and takes 2 symbols from the other."), "{text}");
    let findings = gives(&case("h"), &["LD0106 warning libx.so.1"]);
    assert!(!because(&findings[0]).contains("came with"));
}

#[test]
fn releases_of_one_family_side_by_side_are_a_note() {
    let with = |first: &str, second: &str| opens(first, second);
    gives(
        &with("/a/libcublas.so.12.1.3 soname=libcublas.so.12", "/b/libcublasLt.so.12.4.5 soname=libcublasLt.so.12"),
        &["LD0117 note libcublasLt.so.12.4.5"],
    );
    // One release; another major release; no release that is known; another family.
    for second in [
        "/b/libcublasLt.so.12.1.3 soname=libcublasLt.so.12",
        "/b/libcublasLt.so.11.4.5 soname=libcublasLt.so.11",
        "/b/libcublasLt.so.12 soname=libcublasLt.so.12",
        "/b/libcudnn.so.12.4.5 soname=libcudnn.so.12",
    ] {
        gives(&with("/a/libcublas.so.12.1.3 soname=libcublas.so.12", second), &[]);
    }
}

#[test]
fn static_thread_local_storage_is_counted() {
    let case = |a: u32, b: u32| {
        opens(
            &format!("/a/liba.so soname=liba.so def=a:tls use=a:static_tls tls={a}"),
            &format!("/b/libb.so soname=libb.so def=b:tls use=b:static_tls tls={b}"),
        )
    };
    gives(&case(64, 4096), &["LD0118 error libb.so"]);
    gives(&case(1000, 200), &["LD0118 note liba.so"]);
    gives(&case(64, 64), &[]);
    // Dynamic storage takes no room there, and more room can be asked for.
    gives(&case(64, 4096).replace(":static_tls", ":tls"), &[]);
    gives(
        &case(64, 4096).replace("\n\nexec", "\nenv GLIBC_TUNABLES=glibc.rtld.optional_static_tls=10000\n\nexec"),
        &[],
    );
    // What wants a block of another library is named beside it.
    let foreign = opens(
        "/a/libdata.so soname=libdata.so def=v:tls use=v:tls tls=4096",
        "/b/libuser.so soname=libuser.so use=v:static_tls needed=libdata.so runpath=/a",
    );
    let findings = Case::new(&foreign).findings();
    assert_eq!(told(&findings), ["LD0118 error libdata.so"]);
    let because = findings[0].because.as_deref().unwrap_or_default();
    assert!(because.starts_with("libuser.so was compiled for thread-local data at a fixed distance"), "{because}");
    // musl has no room to spare at all.
    let musl = Case::with(&case(64, 64), Loader::musl(1, 2, 5)).findings();
    assert_eq!(told(&musl), ["LD0118 error liba.so", "LD0118 error libb.so"]);
}

#[test]
fn more_room_and_a_load_at_the_start_mend_a_full_static_area() {
    let text = opens(
        "/a/liba.so soname=liba.so def=a:tls use=a:static_tls tls=700",
        "/b/libb.so soname=libb.so def=b:tls use=b:static_tls tls=1800",
    );
    let findings = Case::new(&text).findings();
    assert_eq!(told(&findings), ["LD0118 error libb.so"]);
    let remedies: Vec<(&str, bool)> =
        findings[0].remedies.iter().map(|r| (r.commands[0].as_str(), r.verified)).collect();
    let expected = ["export GLIBC_TUNABLES=glibc.rtld.optional_static_tls=1536", "export LD_PRELOAD=/b/libb.so"];
    assert_eq!(remedies, expected.map(|command| (command, true)));
}

#[test]
fn an_executable_stack_is_a_note_where_it_works_and_an_error_where_it_is_refused() {
    let text = "exe /app/run\nso /d/libx.so soname=libx.so gnu_stack=rwx\n\nexec /app/run\ndlopen /d/libx.so\n";
    gives(text, &["LD0119 note libx.so"]);
    gives(&text.replace("rwx", "rw"), &[]);
    let newer = Case::with(text, Loader::glibc(2, 41)).findings();
    assert_eq!(told(&newer), ["LD0108 error /d/libx.so"]);
    // At the start nobody refuses it.
    gives("exe /app/run needed=libx.so rpath=/d\nso /d/libx.so soname=libx.so gnu_stack=rwx\n\nexec /app/run\n", &[]);
}

/// Summaries of what is interposed.
fn interposed(text: &str) -> Vec<String> {
    Case::new(text).interposed().into_iter().map(|f| f.summary).collect()
}

#[test]
fn a_library_in_front_of_the_one_that_was_linked_against_is_a_note() {
    let text = "exe /app/run needed=libuser.so runpath=/d use=g
so /d/libuser.so soname=libuser.so needed=libmeant.so runpath=/d use=f,g,h
so /d/libmeant.so soname=libmeant.so def=f,g,h:weak
so /d/libpre.so soname=libpre.so def=f,g,h,other
env LD_PRELOAD=/d/libpre.so

exec /app/run
";
    let found = Case::new(text).interposed();
    assert_eq!(told(&found), ["LD0120 note libpre.so"]);
    // A weak definition is made to be replaced.
    assert_eq!(found[0].summary, "libpre.so answers 2 symbols that were linked to take from libmeant.so");
    let because = found[0].because.as_deref().unwrap_or_default();
    assert!(because.starts_with("libpre.so (LD_PRELOAD[0]) comes before libmeant.so"), "{because}");
    assert!(because.contains("f, g") && because.contains("symbols of libuser.so"), "{because}");
    let copies: Vec<String> = found[0].copies().map(|c| format!("{} {}", c.part.name(), c.path)).collect();
    assert_eq!(copies, ["asked by /d/libuser.so", "taken /d/libpre.so", "passed /d/libmeant.so"]);
    // Not preloaded, nobody is in front.
    assert!(interposed(&text.replace("env LD_PRELOAD=/d/libpre.so\n", "")).is_empty());
    // Nothing refers to it.
    assert!(interposed(&text.replace("use=f,g,h", "").replace("use=g", "")).is_empty());
}

#[test]
fn the_version_says_which_library_was_meant() {
    let text = "exe /app/run needed=libfirst.so,libuser.so runpath=/d
so /d/libfirst.so soname=libfirst.so def=f
so /d/libuser.so soname=libuser.so needed=libfirst.so,libmeant.so runpath=/d use=f@V1 verneed=libmeant.so:V1
so /d/libmeant.so soname=libmeant.so def=f@@V1

exec /app/run
";
    assert_eq!(interposed(text), ["libfirst.so answers 1 symbol that was linked to take from libmeant.so"]);
    // Another version does not answer, and one without a version that was linked against first is meant.
    assert!(interposed(&text.replace("libfirst.so def=f", "libfirst.so def=f@@V0")).is_empty());
    assert!(interposed(&text.replace("use=f@V1 verneed=libmeant.so:V1", "use=f")).is_empty());
}

#[test]
fn a_library_that_loses_its_own_symbols_is_told_and_what_is_by_design_is_not() {
    let text = "exe /app/run needed=libone.so,libtwo.so runpath=/d def=strcmp
so /d/libone.so soname=libone.so def=inflate,malloc,u:unique,_ZdlPv use=inflate,malloc
so /d/libtwo.so soname=libtwo.so def=inflate,malloc,u:unique,_ZdlPv use=inflate,malloc,u,_ZdlPv

exec /app/run
";
    assert_eq!(interposed(text), ["libone.so answers 1 symbol that was linked to take from libtwo.so"]);
    // Libraries of one distribution know each other.
    let one = text.replace("/d/", "/site/both/").replace("runpath=/d", "runpath=/site/both");
    assert!(interposed(&one).is_empty());
    let two = one
        .replace("/site/both/libone.so", "/site/other/libone.so")
        .replace("runpath=/site/both", "runpath=/site/both:/site/other");
    assert_eq!(interposed(&two).len(), 1);
    // So do those of one directory of a package, where nothing is known of distributions.
    let beside = |to: &str| text.replace("/d/", to).replace("runpath=/d", &format!("runpath={to}"));
    assert!(interposed(&beside("/v/lib/python3.11/site-packages/p/")).is_empty());
    assert_eq!(interposed(&beside("/v/lib/p/")).len(), 1);
    // Two copies of one library are another rule's, and a run-time takes over what others have built in.
    assert!(
        interposed(
            &text
                .replace("soname=libtwo.so", "soname=libone.so")
                .replace("needed=libone.so,libtwo.so", "needed=libone.so,/d/libtwo.so")
        )
        .is_empty()
    );
    let run_time = text.replace("libone.so", "libstdc++.so.6");
    assert!(interposed(&run_time).is_empty());
    // Wheels put hashes behind the names of what they vendor.
    let hashed = text.replace("libone.so", "libx-0a1b2c3d.so.5").replace("libtwo.so", "libx-040039e1-0352e75f.so.5");
    assert!(interposed(&hashed).is_empty());
    let other = text.replace("libone.so", "libx-0a1b2c3d.so.5").replace("libtwo.so", "liby-0352e75f.so.5");
    assert_eq!(interposed(&other).len(), 1);
    // What a compiler builds in because old run-times lack it comes before the run-time's own.
    assert!(interposed(&text.replace("libtwo.so", "libstdc++.so.6")).is_empty());
    // Bound to its own by -Bsymbolic.
    assert!(interposed(&text.replace("/d/libtwo.so soname", "/d/libtwo.so flags=symbolic soname")).is_empty());
}

#[test]
fn what_comes_later_did_not_win() {
    let text = "exe /app/run
so /d/libtwo.so soname=libtwo.so def=inflate use=inflate
so /d/libone.so soname=libone.so def=inflate

exec /app/run
dlopen /d/libtwo.so
dlopen G:/d/libone.so
";
    assert!(interposed(text).is_empty());
    let before =
        text.replace("dlopen /d/libtwo.so\ndlopen G:/d/libone.so", "dlopen G:/d/libone.so\ndlopen /d/libtwo.so");
    assert_eq!(interposed(&before), ["libone.so answers 1 symbol that was linked to take from libtwo.so"]);
}

#[test]
fn a_cause_is_told_once_where_it_does_the_worst() {
    use ldaudit::findings::{Finding, Severity, fold_repeated};
    let made = |subject: &str, severity| {
        let mut finding = Finding::new(ldaudit::findings::UNDEFINED_SYMBOL, subject, format!("about {subject}"));
        finding.severity = severity;
        finding
    };
    let (warning, error) = (Severity::Warning, Severity::Error);
    let all = vec![made("a", warning), made("b", error), made("a", error), made("b", error), made("c", warning)];
    let folded = fold_repeated(all);
    let told: Vec<_> = folded.iter().map(|f| (f.subject.to_string(), f.severity)).collect();
    assert_eq!(told, [("b".into(), error), ("a".into(), error), ("c".into(), warning)]);
}

#[test]
fn what_a_preloaded_library_lacks_at_the_start_is_an_error_of_its_own() {
    let text = "exe /app/run
so /d/liban.so soname=liban.so flags=bind_now use=b:lazy
env LD_PRELOAD=/d/liban.so

exec /app/run
";
    let findings = gives(text, &["LD0113 error liban.so"]);
    assert!(!because(&findings[0]).contains("first called"), "{}", because(&findings[0]));
    assert_eq!(findings[0].remedies[0].commands, ["unset LD_PRELOAD"]);
    // Bound late it waits for the call.
    gives(&text.replace("flags=bind_now ", ""), &["LD0113 warning liban.so"]);
}
