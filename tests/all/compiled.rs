//! What the forge cannot make is compiled from C: copy relocations and PLT entries as linkers make them, indirect
//! functions with resolvers, thread-local storage in every model, version scripts, protected symbols. Each process is run
//! by this machine's glibc and by those of foreign roots, and must do what the model says: bindings, messages, ends.
//!
//! Without a C compiler this is skipped in plain sight; `LDAUDIT_REQUIRE=cc` makes that a failure.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use bstr::BString;
use ldaudit::fixture::forge::{Role, forge};
use ldaudit::fixture::place::LIBRARY_DIRECTORY;
use ldaudit::fixture::{Content, Def, Elf, Family, Fixture, Statement, Version, What, simulate};
use ldaudit::system::Files;

use crate::support::{oracle, random_graph, require};
use oracle::{Real, Stop};

/// Flags of everything: no library of the machine takes part.
const COMMON: &str = "-nostdlib -nostartfiles -fno-stack-protector -fno-asynchronous-unwind-tables -O1 \
    -Wl,--allow-shlib-undefined -Wl,--no-as-needed";
/// Flags of a program.
const PROGRAM: &str = "-Wl,-dynamic-linker,/lib64/ld-linux-x86-64.so.2 -Wl,-rpath,/d -Wl,-rpath-link,.";

/// A file to compile.
struct Unit {
    /// Where it lies in the box; `None` for one that only the linker sees.
    place: Option<&'static str>,
    /// Its name for the linker.
    name: &'static str,
    source: &'static str,
    /// More flags and the libraries it is linked with.
    flags: &'static str,
}

/// A process.
struct Case {
    name: &'static str,
    /// The program is the last one.
    units: &'static [Unit],
    /// Environment and steps in the language of fixtures.
    steps: &'static str,
    /// A part of what the oldest and the newest loader must do, so that a case says what it says: text of a binding or
    /// message.
    shows: &'static [&'static str],
}

const fn library(place: &'static str, name: &'static str, flags: &'static str, source: &'static str) -> Unit {
    Unit { place: Some(place), name, source, flags }
}

const fn program(flags: &'static str, source: &'static str) -> Unit {
    Unit { place: Some("/app/run"), name: "run", source, flags }
}

const CASES: &[Case] = &[
    Case {
        name: "copies and PLT entries that stand for functions",
        units: &[
            library(
                "/d/liba.so",
                "liba.so",
                "",
                "int v[2] = {1, 2}; int f(void) { return v[0]; } int (*p)(void) = f; int *q = v;",
            ),
            program(
                "-no-pie -fno-pic liba.so",
                "extern int v[2]; extern int f(void); int *k = v; int same(int (*x)(void)) { return x == f; }
                 int use(void) { return v[0] + f(); }",
            ),
        ],
        steps: "env LD_BIND_NOW=1\nexec /app/run",
        shows: &["v of /d/liba.so to /app/run", "f of /d/liba.so to /app/run", "f of /app/run to /d/liba.so"],
    },
    Case {
        name: "a copy of another size",
        units: &[
            Unit { place: None, name: "old/liba.so", source: "int v[2] = {1, 2};", flags: "-Wl,-soname,liba.so" },
            library("/d/liba.so", "liba.so", "", "int v[4] = {1, 2, 3, 4}; int *get(void) { return v; }"),
            program("-no-pie -fno-pic old/liba.so", "extern int v[2]; int use(void) { return v[1]; }"),
        ],
        steps: "exec /app/run",
        shows: &["/app/run: Symbol `v' has different size in shared object, consider re-linking"],
    },
    Case {
        name: "a copy of a smaller size",
        units: &[
            Unit { place: None, name: "old/liba.so", source: "int v[4] = {1, 2};", flags: "-Wl,-soname,liba.so" },
            library("/d/liba.so", "liba.so", "", "int v[2] = {1, 2};"),
            program("-no-pie -fno-pic old/liba.so", "extern int v[4]; int use(void) { return v[1]; }"),
        ],
        steps: "exec /app/run",
        shows: &["v of /app/run to /d/liba.so"],
    },
    Case {
        name: "copies of protected data and addresses of protected functions",
        units: &[
            Unit {
                place: None,
                name: "old/liba.so",
                source: "int v = 1; int f(void) { return 1; }",
                flags: "-Wl,-soname,liba.so",
            },
            library(
                "/d/liba.so",
                "liba.so",
                "",
                "__attribute__((visibility(\"protected\"))) int v = 1;
                 __attribute__((visibility(\"protected\"))) int f(void) { return v; }
                 int *get(void) { return &v; } void *fun(void) { return (void *)f; }",
            ),
            program(
                "-no-pie -fno-pic old/liba.so",
                "extern int v; extern int f(void); int same(int (*x)(void)) { return x == f; }
                 int use(void) { return v; }",
            ),
        ],
        steps: "env LD_BIND_NOW=1\nexec /app/run",
        shows: &["v of /app/run to /d/liba.so"],
    },
    Case {
        name: "indirect functions",
        units: &[
            library(
                "/d/liba.so",
                "liba.so",
                "",
                "static int one(void) { return 1; } static void *pick(void) { return (void *)one; }
                 int f(void) __attribute__((ifunc(\"pick\"))); int call(void) { return f(); }
                 static int g(void) __attribute__((ifunc(\"pick\"))); int local(void) { return g(); }
                 int (*p)(void) = f;",
            ),
            library("/d/libb.so", "libb.so", "liba.so", "extern int f(void); int (*b)(void) = f; int x(void) { return f(); }"),
            program("-pie -fpie libb.so liba.so", "extern int f(void), x(void); int use(void) { return f() + x(); }"),
        ],
        steps: "env LD_BIND_NOW=1\nexec /app/run",
        shows: &["f of /d/libb.so to /d/liba.so", "f of /d/liba.so to /d/liba.so"],
    },
    Case {
        name: "indirect functions of libraries that are relocated later",
        units: &[
            library("/d/libb.so", "libb.so", "", "extern int f(void); int (*b)(void) = f; int x(void) { return f() + f(); }"),
            library(
                "/d/liba.so",
                "liba.so",
                "libb.so",
                "static int one(void) { return 1; } static void *pick(void) { return (void *)one; }
                 int f(void) __attribute__((ifunc(\"pick\")));",
            ),
            program("-pie -fpie liba.so libb.so", "extern int x(void); int use(void) { return x(); }"),
        ],
        steps: "env LD_BIND_NOW=1\nexec /app/run",
        shows: &["/app/run: Relink `/d/libb.so' with `/d/liba.so' for IFUNC symbol `f'"],
    },
    Case {
        name: "an indirect function of the program",
        units: &[
            library("/d/libb.so", "libb.so", "", "extern int f(void); int (*b)(void) = f;"),
            program(
                "-pie -fpie -rdynamic libb.so",
                "static int one(void) { return 1; } static void *pick(void) { return (void *)one; }
                 int f(void) __attribute__((ifunc(\"pick\")));",
            ),
        ],
        steps: "exec /app/run",
        shows: &["is defined in the executable and creates an unsatisfiable circular dependency"],
    },
    Case {
        name: "thread-local storage in every model",
        units: &[
            library("/d/liba.so", "liba.so", "", "__thread int t = 1; __thread int u; int *ta(void) { return &t; }"),
            library(
                "/d/libgd.so",
                "libgd.so",
                "-ftls-model=global-dynamic liba.so",
                "extern __thread int t; static __thread int own; int *gd(void) { return &t; }
                 int *mine(void) { return &own; }",
            ),
            library(
                "/d/libdesc.so",
                "libdesc.so",
                "-mtls-dialect=gnu2 -Wl,-z,now liba.so",
                "extern __thread int t; int *desc(void) { return &t; }",
            ),
            library(
                "/d/libie.so",
                "libie.so",
                "-ftls-model=initial-exec liba.so",
                "extern __thread int u; __thread int w; int *ie(void) { return &u; } int *iw(void) { return &w; }",
            ),
            program(
                "-pie -fpie libgd.so libdesc.so libie.so liba.so",
                "extern __thread int t, w; __thread int u = 3; int *use(void) { return &t; } int *le(void) { return &u; }
                 int *later(void) { return &w; }",
            ),
        ],
        steps: "exec /app/run",
        shows: &["t of /d/libgd.so to /d/liba.so", "u of /d/libie.so to /app/run", "t of /app/run to /d/liba.so"],
    },
    Case {
        name: "thread-local storage under dlopen",
        units: &[
            library("/d/plug.so", "plug.so", "-ftls-model=initial-exec", "__thread int s; int *ie(void) { return &s; }"),
            library("/d/missing.so", "missing.so", "", "extern __thread int nowhere; int *gd(void) { return &nowhere; }"),
            program("-pie -fpie", "int nothing;"),
        ],
        steps: "exec /app/run\ndlopen /d/plug.so\ndlopen L:/d/missing.so",
        shows: &["s of /d/plug.so to /d/plug.so", "/d/missing.so: undefined symbol: nowhere"],
    },
    Case {
        name: "calls without PLT are bound at the load",
        units: &[
            library("/d/plt.so", "plt.so", "-fplt -Wl,-z,lazy", "extern int nowhere(void); int f(void) { return nowhere() + 1; }"),
            library("/d/noplt.so", "noplt.so", "-fno-plt -Wl,-z,lazy", "extern int nowhere(void); int f(void) { return nowhere() + 1; }"),
            library("/d/now.so", "now.so", "-Wl,-z,now", "extern int nowhere(void); int f(void) { return nowhere() + 1; }"),
            library("/d/table.so", "table.so", "-Wl,-z,lazy", "extern int nowhere(void); int (*table[])(void) = {nowhere};"),
            library(
                "/d/weak.so",
                "weak.so",
                "-Wl,-z,lazy",
                "extern int nowhere(void) __attribute__((weak)); int (*table[])(void) = {nowhere};",
            ),
            program("-pie -fpie", "int nothing;"),
        ],
        steps: "exec /app/run\ndlopen L:/d/plt.so\ndlopen L:/d/noplt.so\ndlopen L:/d/now.so\ndlopen L:/d/table.so\ndlopen L:/d/weak.so\n\
                dlopen /d/plt.so",
        shows: &["/d/noplt.so: undefined symbol: nowhere", "/d/now.so: undefined symbol: nowhere"],
    },
    Case {
        name: "symbolic links of a library",
        units: &[
            library("/d/liball.so", "liball.so", "-Wl,-Bsymbolic", "int v = 1; int f(void) { return v; } int *g(void) { return &v; } int h(void) { return f(); }"),
            library("/d/libfun.so", "libfun.so", "-Wl,-Bsymbolic-functions", "int v = 2; int f(void) { return v; } int h2(void) { return f(); }"),
            library("/d/libno.so", "libno.so", "", "int v = 3; int f(void) { return v; } int h3(void) { return f(); }"),
            program("-pie -fpie -rdynamic liball.so libfun.so libno.so", "int v = 4; int f(void) { return 0; } extern int h(void); int use(void) { return h(); }"),
        ],
        steps: "env LD_BIND_NOW=1\nexec /app/run",
        shows: &["f of /d/libno.so to /app/run", "v of /d/libfun.so to /app/run"],
    },
    Case {
        name: "versions of a version script",
        units: &[
            Unit { place: None, name: "v1/libv.so", source: "int f(void) { return 1; }", flags: "-Wl,-soname,libv.so -Wl,--version-script=v1.map" },
            library(
                "/d/libv.so",
                "libv.so",
                "-Wl,--version-script=v2.map",
                "int f1(void) { return 1; } int f2(void) { return 2; } int g(void) { return 3; }
                 __asm__(\".symver f1,f@V1\\n.symver f2,f@@V2\");",
            ),
            library("/d/libold.so", "libold.so", "v1/libv.so", "extern int f(void); int old(void) { return f(); } int (*po)(void) = f;"),
            library("/d/libnew.so", "libnew.so", "libv.so", "extern int f(void), g(void); int new(void) { return f() + g(); } int (*pn)(void) = f;"),
            library("/d/libnone.so", "libnone.so", "", "extern int f(void), g(void); int none(void) { return f() + g(); }"),
            program("-pie -fpie libold.so libnew.so libnone.so libv.so", "extern int old(void), new(void); int use(void) { return old() + new(); }"),
        ],
        steps: "env LD_BIND_NOW=1\nexec /app/run",
        shows: &["f@V1 of /d/libold.so to /d/libv.so", "f@V2 of /d/libnew.so to /d/libv.so", "f of /d/libnone.so to /d/libv.so"],
    },
    Case {
        name: "a library rebuilt without its versions",
        units: &[
            Unit { place: None, name: "v1/libv.so", source: "int f(void) { return 1; }", flags: "-Wl,-soname,libv.so -Wl,--version-script=v1.map" },
            library("/d/libv.so", "libv.so", "", "int f(void) { return 1; }"),
            library("/d/libold.so", "libold.so", "v1/libv.so", "extern int f(void); int old(void) { return f(); }"),
            program("-pie -fpie libold.so libv.so", "extern int old(void); int use(void) { return old(); }"),
        ],
        steps: "env LD_BIND_NOW=1\nexec /app/run",
        shows: &["/app/run: /d/libv.so: no version information available (required by /d/libold.so)"],
    },
    Case {
        name: "unique, weak and common variables",
        units: &[
            library("/d/one.so", "one.so", "-fcommon", "__asm__(\".globl u\\n.type u,@gnu_unique_object\\n.data\\nu: .long 1\\n.size u,4\\n.text\"); extern int u; int c; int *a(void) { return &u; } int *b(void) { return &c; }"),
            library("/d/two.so", "two.so", "-fcommon", "__asm__(\".globl u\\n.type u,@gnu_unique_object\\n.data\\nu: .long 2\\n.size u,4\\n.text\"); extern int u; int c; int *a(void) { return &u; } int *b(void) { return &c; }"),
            library("/d/libweak.so", "libweak.so", "", "__attribute__((weak)) int w = 1; __attribute__((weak)) int k(void) { return 1; }"),
            library("/d/libstrong.so", "libstrong.so", "", "int w = 2; int k(void) { return 2; } int *pw(void) { return &w; }"),
            program("-pie -fpie libweak.so libstrong.so", "extern int w, k(void); int use(void) { return w + k(); }"),
        ],
        steps: "env LD_BIND_NOW=1\nexec /app/run\ndlopen /d/one.so\ndlopen /d/two.so\nenv LD_DYNAMIC_WEAK=1\nexec /app/run",
        shows: &["u of /d/two.so to /d/one.so", "c of /d/two.so to /d/two.so", "k of /app/run to /d/libweak.so", "k of /app/run to /d/libstrong.so"],
    },
    Case {
        name: "hash tables of both kinds",
        units: &[
            library("/d/libg.so", "libg.so", "-Wl,--hash-style=gnu", "int g0, g1, g2, g3, g4, g5, g6, g7, g8, g9;"),
            library("/d/libs.so", "libs.so", "-Wl,--hash-style=sysv", "int s0, s1, s2, s3, s4, s5, s6, s7, s8, s9;"),
            library("/d/libb.so", "libb.so", "-Wl,--hash-style=both", "int b0, b1, b2, b3, b4, b5, b6, b7, b8, b9, s9;"),
            program(
                "-pie -fpie -fno-pie libg.so libs.so libb.so -no-pie",
                "extern int g0, g4, g9, s0, s4, s9, b0, b4, b9; int *all[] = {&g0, &g4, &g9, &s0, &s4, &s9, &b0, &b4, &b9};",
            ),
        ],
        steps: "exec /app/run",
        shows: &["s9 of /app/run to /d/libs.so", "b9 of /app/run to /d/libb.so"],
    },
    Case {
        name: "a library in front of the one that was linked against",
        units: &[
            library("/d/libmeant.so", "libmeant.so", "-Wl,--version-script=v1.map", "int f(void) { return 1; }"),
            library("/d/libbuilt.so", "libbuilt.so", "", "int f(void) { return 2; } int inner(void) { return 3; } int built(void) { return f() + inner(); }"),
            library("/d/libinner.so", "libinner.so", "", "int inner(void) { return 4; }"),
            library("/d/libuser.so", "libuser.so", "-Wl,-rpath,/d libmeant.so libinner.so", "extern int f(void), inner(void); int user(void) { return f() + inner(); }"),
            program("-pie -fpie libbuilt.so libuser.so", "extern int user(void); int use(void) { return user(); }"),
        ],
        steps: "env LD_BIND_NOW=1\nexec /app/run",
        shows: &["f@V1 of /d/libuser.so to /d/libbuilt.so", "inner of /d/libuser.so to /d/libbuilt.so"],
    },
    Case {
        name: "protected data of a library that forbids copies",
        units: &[
            Unit { place: None, name: "old/liba.so", source: "int v = 1;", flags: "-Wl,-soname,liba.so" },
            library(
                "/d/liba.so",
                "liba.so",
                "-mno-direct-extern-access",
                "__attribute__((visibility(\"protected\"))) int v = 1; int *get(void) { return &v; }",
            ),
            program("-no-pie -fno-pic old/liba.so", "extern int v; int use(void) { return v; }"),
        ],
        steps: "exec /app/run",
        shows: &[],
    },
];

/// Version scripts that units name.
const SCRIPTS: [(&str, &str); 2] = [("v1.map", "V1 { f; };"), ("v2.map", "V1 { f; }; V2 { f; g; } V1;")];

#[test]
fn compiled_processes_are_what_real_loaders_make_of_them() {
    judge(CASES);
}

/// The room for thread-local storage that `dlopen` brings, to the byte: what just fits and what just does not.
#[test]
fn the_room_for_static_thread_local_storage_ends_where_the_model_says() {
    judge(&[
        room_of_one_library(),
        room_after_others(),
        room_by_tunables(),
        room_and_descriptors(),
        room_for_foreign_blocks(),
    ]);
}

/// Whether there is a C compiler; says so when there is none.
pub fn has_compiler() -> bool {
    let is_there = Command::new("cc").arg("--version").output().is_ok_and(|o| o.status.success());
    if !is_there {
        require::skip("cc", "there is no C compiler (cc)");
    }
    is_there
}

fn judge(cases: &[Case]) {
    if !has_compiler() {
        return;
    }
    let mut failed = Vec::new();
    let mut done = 0;
    for loader in oracle::loaders() {
        let real = match loader {
            Ok(real) if real.loader.family == Family::Glibc => real,
            Ok(_) => continue,
            Err(why) if why.contains("musl") => continue,
            Err(why) => {
                require::skip("root", &why);
                continue;
            }
        };
        for case in cases {
            done += 1;
            if let Err(why) = check(case, &real) {
                failed.push(format!("{} [{}]\n{why}", case.name, real.loader));
            }
        }
    }
    println!("{done} runs");
    assert!(failed.is_empty(), "{} of {done} differ:\n\n{}", failed.len(), failed.join("\n\n"));
}

/// A text that lives as long as the tests.
fn kept(text: String) -> &'static str {
    Box::leak(text.into_boxed_str())
}

/// A library `/d/NAME.so` with a thread-local block of a size and alignment and a reference of a model to it.
fn block(name: &str, size: u32, align: u32, model: &str) -> Unit {
    let source = format!(
        "__thread char {name}[{size}] __attribute__((aligned({align}))); char *of_{name}(void) {{ return {name}; }}"
    );
    library(kept(format!("/d/{name}.so")), kept(format!("{name}.so")), kept(model.into()), kept(source))
}

const FIXED: &str = "-ftls-model=initial-exec";
const DESCRIPTOR: &str = "-ftls-model=global-dynamic -mtls-dialect=gnu2 -Wl,-z,now";

fn case(name: &'static str, units: Vec<Unit>, steps: String, shows: &'static [&'static str]) -> Case {
    Case { name, units: Vec::leak(units), steps: kept(steps), shows }
}

/// One `exec` for each line, with a `dlopen` of each word in it.
fn runs(lines: &[&str]) -> String {
    let opens = |line: &str| line.split(' ').map(|name| format!("dlopen /d/{name}.so\n")).collect::<String>();
    lines.iter().map(|line| format!("exec /app/run\n{}", opens(line))).collect()
}

const REFUSED: &str = "cannot allocate memory in static TLS block";

fn room_of_one_library() -> Case {
    let mut units = Vec::new();
    let mut names = Vec::new();
    for align in [1, 8, 64] {
        // All that is between what fits everywhere and what fits nowhere.
        for size in [1600, 1648, 1656, 1663, 1664, 1665, 1695, 1696, 1697, 1704, 1711, 1712, 1713, 1728, 1792] {
            let name = format!("s{size}_{align}");
            units.push(block(&name, size, align, FIXED));
            names.push(name);
        }
    }
    units.push(block("aligned", 8, 128, FIXED));
    names.push("aligned".into());
    units.push(program("-pie -fpie", "int nothing;"));
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    case("room of one library", units, runs(&names), &["/d/s1713_1.so: cannot allocate memory in static TLS block"])
}

fn room_after_others() -> Case {
    let units = vec![
        Unit { place: Some("/d/libstart.so"), name: "libstart.so", ..block("start", 40, 16, FIXED) },
        block("a", 600, 8, FIXED),
        block("b", 600, 32, FIXED),
        block("c", 300, 1, FIXED),
        block("d", 120, 1, FIXED),
        block("e", 100, 1, FIXED),
        block("big", 1000, 8, FIXED),
        block("wide", 8, 128, FIXED),
        library(
            "/d/two.so",
            "two.so",
            "-ftls-model=initial-exec big.so",
            "extern __thread char big[]; __thread char two[100]; char *x(void) { return big; } char *y(void) { return two; }",
        ),
        program(
            "-pie -fpie libstart.so",
            "__thread char own[100] __attribute__((aligned(128))); char *use(void) { return own; }",
        ),
    ];
    let lines =
        ["a b c d e", "a b big c d e", "a two b d e", "wide a b c e d", "a a b d two c", "a two d two c e big b"];
    case("room after others", units, runs(&lines), &[REFUSED])
}

fn room_by_tunables() -> Case {
    let sizes = [1000, 1100, 1199, 1200, 1201, 1248, 1264, 1300, 1700, 2000, 2200, 2300, 2400, 3000];
    let mut units: Vec<Unit> = sizes.iter().map(|size| block(&format!("s{size}"), *size, 8, FIXED)).collect();
    units.push(program("-pie -fpie", "int nothing;"));
    let names: Vec<String> = sizes.iter().map(|size| format!("s{size}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let settings = [
        "rtld.nns=1",
        "rtld.nns=2",
        "rtld.nns=6",
        "rtld.nns=40",
        "rtld.optional_static_tls=0",
        "rtld.optional_static_tls=1200",
        "pthread.rseq=0",
    ];
    let steps = settings.iter().map(|set| format!("env GLIBC_TUNABLES=glibc.{set}\n{}", runs(&names))).collect();
    case("room by tunables", units, steps, &[REFUSED])
}

fn room_and_descriptors() -> Case {
    let units = vec![
        block("small", 300, 8, DESCRIPTOR),
        block("other", 200, 8, DESCRIPTOR),
        block("more", 100, 8, DESCRIPTOR),
        block("large", 600, 8, DESCRIPTOR),
        block("general", 800, 8, "-ftls-model=global-dynamic"),
        block("a", 1400, 1, FIXED),
        block("b", 1100, 1, FIXED),
        block("c", 600, 1, FIXED),
        block("d", 1000, 1, FIXED),
        program("-pie -fpie", "int nothing;"),
    ];
    let lines = [
        "small a",
        "large a",
        "general a",
        "small other b",
        "small other more b",
        "large c d",
        "a large general small c",
        "small other more c d",
    ];
    case("room and descriptors", units, runs(&lines), &[REFUSED])
}

fn room_for_foreign_blocks() -> Case {
    let foreign = |name: &'static str, of: &str| {
        let source = format!("extern __thread char {of}[]; char *use_{name}(void) {{ return {of}; }}");
        let flags = format!("-ftls-model=initial-exec -Wl,-z,now -Wl,-rpath,/d {of}.so");
        library(kept(format!("/d/{name}.so")), kept(format!("{name}.so")), kept(flags), kept(source))
    };
    let units = vec![
        block("data", 1000, 8, "-ftls-model=global-dynamic"),
        block("huge", 4000, 8, "-ftls-model=global-dynamic"),
        block("a", 900, 8, FIXED),
        foreign("wants", "data"),
        foreign("greedy", "huge"),
        library(
            "/d/weak.so",
            "weak.so",
            FIXED,
            "extern __thread char none[] __attribute__((weak)); char *use(void) { return none; }",
        ),
        library(
            "/d/both.so",
            "both.so",
            "-ftls-model=initial-exec -Wl,-z,now -Wl,-rpath,/d huge.so",
            "extern __thread char huge[]; extern int nowhere; int *before(void) { return &nowhere; } char *use(void) { return huge; }",
        ),
        library(
            "/d/call.so",
            "call.so",
            "-ftls-model=initial-exec -Wl,-z,now -Wl,-rpath,/d huge.so",
            "extern __thread char huge[]; extern int nowhere(void); int before(void) { return nowhere() + huge[1]; }",
        ),
        program("-pie -fpie", "int nothing;"),
    ];
    let lines = [
        "data a wants",
        "a data wants",
        "wants a",
        "a wants",
        "huge greedy data a",
        "greedy wants a",
        "weak both call a",
    ];
    case(
        "room for foreign blocks",
        units,
        runs(&lines),
        &["/d/huge.so: cannot allocate memory in static TLS block", "/d/data.so: cannot allocate"],
    )
}

fn check(case: &Case, real: &Real) -> Result<(), String> {
    let scratch =
        oracle::Scratch::new(&format!("compiled-{}-{}", case.name, real.loader)).map_err(|e| e.to_string())?;
    let fixture = build(case, real, &scratch.0)?;
    let runs = fixture.runs(real.loader);
    let seen = match oracle::observe(&fixture, real, case.name) {
        Ok(seen) => seen,
        Err(Stop::Skip(why) | Stop::Fail(why)) => return Err(why),
    };
    let mut complaints = Vec::new();
    let mut told = String::new();
    for (run, seen) in runs.iter().zip(&seen) {
        let mut tree = fixture.tree(real.loader).map_err(|p| p.to_string())?;
        for (path, file) in real.files() {
            let bytes: Arc<[u8]> = fs::read(file).map_err(|e| e.to_string())?.into();
            // The loader lies beside its C library, which says what release both are.
            let place = match path == Family::Glibc.interpreter() {
                true => format!("{LIBRARY_DIRECTORY}/ld-{}.so", real.loader.version),
                false => path.clone(),
            };
            let made = tree.add_file(&place, bytes).and_then(|()| tree.set_mode(&place, 0o755));
            let made = made.and_then(|()| if place == *path { Ok(()) } else { tree.add_link(path, &place) });
            made.map_err(|e| e.to_string())?;
        }
        assert!(tree.stat("/app/run".into()).is_ok());
        let model = simulate::observe_in(tree, &fixture, real.loader, run).map_err(|p| p.to_string())?;
        complaints.extend(random_graph::differences(&model, seen, Family::Glibc));
        for step in &seen.steps {
            step.said.iter().for_each(|line| told.push_str(&format!("{line}\n")));
            step.bindings.iter().flatten().for_each(|bound| told.push_str(&format!("{bound}\n")));
        }
    }
    for wanted in case.shows.iter().filter(|w| !told.contains(**w)) {
        complaints.push(format!("the real loader does not show: {wanted}"));
    }
    if complaints.is_empty() { Ok(()) } else { Err(format!("{}\nthe real loader:\n{told}", complaints.join("\n"))) }
}

/// Compiles the files of a case; the box that they lie in.
fn build(case: &Case, real: &Real, dir: &Path) -> Result<Fixture, String> {
    for sub in ["old", "v1"] {
        fs::create_dir_all(dir.join(sub)).map_err(|e| e.to_string())?;
    }
    for (name, text) in SCRIPTS {
        fs::write(dir.join(name), text).map_err(|e| e.to_string())?;
    }
    // The program's driver asks for dlopen without a version, of a stand-in that the linker sees.
    let in_libc = real.loader.version >= Version([2, 34, 0]);
    let stubs: &[&str] = if in_libc { &["libc.so.6"] } else { &["libdl.so.2", "libc.so.6"] };
    for stub in stubs {
        let named = |name: &str| Def { name: name.into(), ..Def::default() };
        let defs = ["dlopen", "dlerror"].map(named).to_vec();
        let elf = Elf { soname: Some((*stub).into()), defs, ..Elf::default() };
        fs::write(dir.join(stub), forge(&elf, &Role::Library, "/stub".into())?).map_err(|e| e.to_string())?;
    }
    fs::write(dir.join("driver.S"), driver()).map_err(|e| e.to_string())?;
    let mut out = Fixture::default();
    let mut say = |what: What| out.statements.push(Statement { line: 0, what });
    for unit in case.units {
        let source: PathBuf = dir.join(format!("{}.c", unit.name.replace('/', "-")));
        fs::write(&source, unit.source).map_err(|e| e.to_string())?;
        let mut cc = Command::new("cc");
        cc.current_dir(dir).args(COMMON.split_whitespace()).arg("-o").arg(unit.name).arg(&source);
        if unit.place == Some("/app/run") {
            cc.arg("driver.S").args(PROGRAM.split_whitespace()).args(unit.flags.split_whitespace()).args(stubs);
        } else {
            let soname = Path::new(unit.name).file_name().unwrap_or_default().to_string_lossy().into_owned();
            cc.args(["-shared", "-fPIC"]).arg(format!("-Wl,-soname,{soname}")).args(unit.flags.split_whitespace());
        }
        let run = cc.output().map_err(|e| format!("cc: {e}"))?;
        if !run.status.success() {
            return Err(format!("cc {}: {}", unit.name, String::from_utf8_lossy(&run.stderr)));
        }
        if let Some(place) = unit.place {
            let bytes = fs::read(dir.join(unit.name)).map_err(|e| e.to_string())?;
            say(What::File { path: place.into(), content: Content::Hex(bytes) });
            say(What::Mode { path: place.into(), mode: 0o755 });
        }
    }
    // The box has a C library when a forged program wants one.
    let unused = Elf { libc: true, ..Elf::default() };
    say(What::Elf { path: "/app/unused".into(), program: true, elf: Box::new(unused) });
    let steps = Fixture::parse(case.steps.as_bytes()).map_err(|p| format!("{:?}", p))?;
    out.statements.extend(steps.statements);
    Ok(out)
}

/// The code of forged programs with the words that must follow it.
fn driver() -> BString {
    let source = include_str!("../../src/fixture/driver.s");
    let words = "ldaudit_driver_end:\n.quad _DYNAMIC - ldaudit_driver_end\n.quad ldaudit_dlopen - ldaudit_driver_end\n\
                 .quad ldaudit_dlerror - ldaudit_driver_end\n.quad 1\n";
    let (before, after) = source.split_once("ldaudit_driver_end:\n").expect("the end of the driver");
    format!(
        ".intel_syntax noprefix\n.globl _start\n.text\n_start:\n{before}{words}{after}\n.data\n.balign 8\nldaudit_dlopen: .quad \
         dlopen\nldaudit_dlerror: .quad dlerror\n.section .note.GNU-stack,\"\",@progbits\n"
    )
    .into()
}
