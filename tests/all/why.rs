//! What `--why` says, put to the real loader: small libraries are compiled, each answering with its own letter, the
//! answer of `--why` is read as JSON, and every claim in it is run. Which copy wins now; which copies come next when
//! the winner is gone; which change makes which copy win; which changes do nothing.
//!
//! Needs a C compiler and the system's own glibc. Without one the test says so and passes;
//! `LDAUDIT_REQUIRE=cc` makes that a failure.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::support::{fresh, require, strict};
use serde_json::Value;

/// The name that everything is about.
const NAME: &str = "libwhy.so.1";

/// A scratch directory that is removed at the end.
struct Box_ {
    root: PathBuf,
    schema: jsonschema::Validator,
}

impl Drop for Box_ {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

fn has_compiler() -> bool {
    let found = Command::new("cc").arg("--version").output().is_ok_and(|o| o.status.success());
    if !found {
        require::skip("cc", "there is no C compiler (cc)");
    }
    found
}

fn cc(root: &Path, source: &str, output: &str, arguments: &[&str]) {
    let file = root.join("source.c");
    fs::write(&file, source).expect("source");
    let out = root.join(output);
    fs::create_dir_all(out.parent().expect("parent")).expect("directory");
    let run = Command::new("cc")
        .current_dir(root)
        .args(["-O1", "-fPIC", "-o"])
        .arg(&out)
        .arg(&file)
        .args(arguments)
        .output()
        .expect("cc runs");
    assert!(run.status.success(), "cc {output}: {}", String::from_utf8_lossy(&run.stderr));
}

/// Directories with copies; the letter is the answer of the copy in it.
const COPIES: &[(&str, &str)] = &[
    ("a", NAME),
    ("b", NAME),
    ("h", NAME),
    // Renamed, with the SONAME kept.
    ("c", "libwhy-1a2b3c4d.so.1"),
    // A longer version, its link missing.
    ("f", "libwhy.so.1.4.2"),
];

impl Box_ {
    fn new() -> Box_ {
        let root = std::env::temp_dir().join(format!("ldaudit-why-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        fs::create_dir_all(&root).expect("scratch directory");
        let root = root.canonicalize().expect("real path");
        let mut schema: Value =
            serde_json::from_str(include_str!("../../fixtures/schema/report-1.json")).expect("the schema is JSON");
        strict::close(&mut schema);
        let box_ = Box_ { root, schema: jsonschema::validator_for(&schema).expect("the schema compiles") };
        let r = &box_.root;
        for (letter, file) in COPIES {
            let source = format!("const char *who(void) {{ return \"{letter}\"; }}");
            let soname = format!("-Wl,-soname,{NAME}");
            cc(r, &source, &format!("{letter}/{file}"), &["-shared", &soname]);
        }
        for letter in ["a", "b"] {
            let source = format!("const char *other(void) {{ return \"{letter}\"; }}");
            cc(r, &source, &format!("{letter}/libother.so.1"), &["-shared", "-Wl,-soname,libother.so.1"]);
        }
        let next = "const char *who(void) { return \"2\"; }";
        cc(r, next, "e/libwhy.so.2", &["-shared", "-Wl,-soname,libwhy.so.2"]);
        fs::create_dir_all(r.join("d")).expect("directory");
        fs::write(r.join("d").join(NAME), "this is no library, but long enough to hold a whole ELF header, and more")
            .expect("garbage");
        // Another class: the loader passes it over.
        fs::create_dir_all(r.join("g")).expect("directory");
        let mut bytes = fs::read(r.join("a").join(NAME)).expect("library");
        bytes[4] = 1;
        fs::write(r.join("g").join(NAME), bytes).expect("other class");
        box_.programs();
        box_
    }

    fn programs(&self) {
        let r = &self.root;
        let linked = r#"
            #include <stdio.h>
            const char *who(void); const char *other(void);
            int main(void) { printf("%s %s\n", who(), other()); return 0; }"#;
        let at = |d: &str| r.join(d).to_string_lossy().into_owned();
        let libraries = [format!("{}/{NAME}", at("a")), format!("{}/libother.so.1", at("a"))];
        let link = |name: &str, flags: &[&str]| {
            let mut arguments: Vec<&str> = libraries.iter().map(String::as_str).collect();
            arguments.extend(flags);
            cc(r, linked, name, &arguments);
        };
        let a = format!("-Wl,-rpath,{}", at("a"));
        link("by_rpath", &["-Wl,--disable-new-dtags", &a]);
        link("by_runpath", &["-Wl,--enable-new-dtags", &a]);
        let alone = r#"
            #include <stdio.h>
            const char *who(void);
            int main(void) { printf("%s -\n", who()); return 0; }"#;
        cc(r, alone, "by_nothing", &[&libraries[0]]);
        // An old file in front of the right one in the program's own list.
        let garbage_first = format!("-Wl,-rpath,{}:{}", at("d"), at("a"));
        link("by_runpath_behind_garbage", &["-Wl,--enable-new-dtags", &garbage_first]);

        // A library that opens the name itself; the text is in its read-only data.
        let mid = format!(
            r#"
            #include <dlfcn.h>
            const char *mid(void) {{
                void *h = dlopen("{NAME}", RTLD_NOW);
                const char *(*f)(void) = h ? (const char *(*)(void))dlsym(h, "who") : 0;
                return f ? f() : "-";
            }}"#
        );
        let runpath = format!("-Wl,-rpath,{}", at("a"));
        cc(r, &mid, "m/libmid.so", &["-shared", "-Wl,-soname,libmid.so", "-Wl,--enable-new-dtags", &runpath, "-ldl"]);
        let opener = r#"
            #include <stdio.h>
            const char *mid(void);
            int main(void) { printf("%s -\n", mid()); return 0; }"#;
        let m = format!("-Wl,-rpath,{}", at("m"));
        let libmid = format!("{}/libmid.so", at("m"));
        cc(r, opener, "by_literal", &[&libmid, "-Wl,--disable-new-dtags", &m]);

        // A program that opens a copy by its path, then the name.
        let path = format!("{}/{NAME}", at("a"));
        let by_path = format!(
            r#"
            #include <dlfcn.h>
            #include <stdio.h>
            int main(void) {{
                dlopen("{path}", RTLD_NOW);
                void *h = dlopen("{NAME}", RTLD_NOW);
                const char *(*f)(void) = h ? (const char *(*)(void))dlsym(h, "who") : 0;
                printf("%s -\n", f ? f() : "-");
                return 0;
            }}"#
        );
        cc(r, &by_path, "by_path", &["-ldl"]);
    }

    fn run(&self, program: &str, env: &BTreeMap<String, String>) -> Answer {
        let mut command = Command::new(self.root.join(program));
        command.env_clear().envs(env).current_dir(self.root.join("h"));
        Answer::of(&fresh::start(|| command.output()).expect("the program runs"))
    }

    fn why(&self, program: &str, env: &BTreeMap<String, String>, arguments: &[String]) -> Value {
        let output = Command::new(env!("CARGO_BIN_EXE_ldaudit"))
            .env_clear()
            .env("PATH", "/nonexistent")
            .current_dir(self.root.join("h"))
            .args(["--why", NAME, "--format", "json", "--no-exec"])
            .args(env.iter().map(|(k, v)| format!("--env={k}={v}")))
            .args(arguments)
            .arg(self.root.join(program))
            .output()
            .expect("ldaudit runs");
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(0), "{program} {env:?}: {errors}");
        let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        self.holds_to_the_schema(&report);
        report.get("why").expect("the report has a story").clone()
    }

    /// The schema describes every property of the story, and each decision that it refers to is one of the name.
    fn holds_to_the_schema(&self, report: &Value) {
        let errors: Vec<String> =
            self.schema.iter_errors(report).map(|e| format!("{}: {e}", e.instance_path())).take(5).collect();
        assert!(errors.is_empty(), "{errors:?}");
        for story in report["why"]["stories"].as_array().expect("stories") {
            for id in story["processes"].as_array().expect("processes").iter().flat_map(|p| p["decisions"].as_array()) {
                for id in id {
                    let decision =
                        &report["process"]["decisions"][usize::try_from(id.as_u64().expect("id")).expect("id")];
                    assert!(decision["asked"].as_str().is_some_and(|a| a.ends_with(NAME)), "{decision}");
                }
            }
        }
    }

    /// The letter of the copy with an index.
    fn letter(&self, why: &Value, copy: &Value) -> Option<String> {
        let copy = &why["copies"][usize::try_from(copy.as_u64()?).ok()?];
        let path = Path::new(copy["real_path"].as_str()?);
        let below = path.strip_prefix(&self.root).ok()?;
        below.iter().next().map(|c| c.to_string_lossy().into_owned())
    }
}

/// What a program printed: whose `who`, whose `other`. `None` when it did not start, or got no library.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Answer {
    who: Option<String>,
    other: Option<String>,
}

impl Answer {
    fn of(output: &Output) -> Answer {
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let mut words = text.split_whitespace().map(str::to_owned).filter(|_| output.status.success());
        let mut word = || words.next();
        let letter = |w: Option<String>| w.filter(|w| w != "-");
        Answer { who: letter(word()), other: letter(word()) }
    }
}

/// A small generator with a fixed seed: the environments are the same in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).expect("31 bits") % n
    }
}

fn environments(root: &Path, count: usize) -> Vec<BTreeMap<String, String>> {
    let at = |d: &str| root.join(d).to_string_lossy().into_owned();
    let elements =
        [at("a"), at("b"), at("c"), at("d"), at("e"), at("f"), at("g"), at("missing"), String::new(), at("b/")];
    let mut random = Random(0x5eed_0001);
    let mut out = vec![BTreeMap::new()];
    out.push(BTreeMap::from([("LD_LIBRARY_PATH".to_owned(), format!("{}:", at("b")))]));
    out.push(BTreeMap::from([("LD_LIBRARY_PATH".to_owned(), format!("{};{}", at("b"), at("b")))]));
    while out.len() < count {
        let mut env = BTreeMap::new();
        let n = random.below(5);
        if n > 0 {
            let list: Vec<String> = (0..n).map(|_| elements[random.below(elements.len())].clone()).collect();
            env.insert("LD_LIBRARY_PATH".to_owned(), list.join(if random.below(4) == 0 { ";" } else { ":" }));
        }
        match random.below(6) {
            0 => drop(env.insert("LD_PRELOAD".to_owned(), format!("{}/{NAME}", at("b")))),
            1 => drop(env.insert("LD_PRELOAD".to_owned(), format!("{}/libwhy-1a2b3c4d.so.1", at("c")))),
            2 => drop(env.insert("LD_PRELOAD".to_owned(), NAME.to_owned())),
            _ => {}
        }
        out.push(env);
    }
    out
}

/// The story in which a program itself asks (there is one, unless it is supposed).
fn story(why: &Value) -> (usize, &Value) {
    let stories = why["stories"].as_array().expect("stories");
    let of_name = |s: &&Value| {
        s["processes"].as_array().is_some_and(|p| {
            p.iter().any(|t| {
                let askers = t["askers"].as_array().expect("askers");
                // A preload entry of the name is a request too; the program's own comes later.
                askers.iter().any(|a| a["how"] != "preload" && a.get("asked").is_none())
            })
        })
    };
    let index = stories.iter().position(|s| of_name(&s)).expect("somebody asks");
    (index, &stories[index])
}

#[test]
fn every_claim_holds_with_the_real_loader() {
    if !has_compiler() {
        return;
    }
    let box_ = Box_::new();
    let by_path = vec![format!("--dlopen={}/a/{NAME}", box_.root.display()), format!("--dlopen={NAME}")];
    let programs: &[(&str, &[String])] = &[
        ("by_rpath", &[]),
        ("by_runpath", &[]),
        ("by_nothing", &[]),
        ("by_runpath_behind_garbage", &[]),
        ("by_literal", &[]),
        ("by_path", &by_path),
    ];
    let mut claims = Claims::default();
    for (program, arguments) in programs {
        for env in environments(&box_.root, 24) {
            check(&box_, program, &env, arguments, &mut claims);
        }
    }
    println!("{claims:?}");
    // Without these the test would prove little.
    assert!(claims.winners > 80 && claims.failures > 8, "{claims:?}");
    assert!(claims.changes > 200 && claims.stuck > 25 && claims.later > 12 && claims.nothing > 40, "{claims:?}");
    assert!(claims.replaced > 10, "{claims:?}");
}

/// How many claims of each kind were tried.
#[derive(Default, Debug)]
struct Claims {
    winners: usize,
    failures: usize,
    later: usize,
    nothing: usize,
    changes: usize,
    stuck: usize,
    replaced: usize,
}

fn check(box_: &Box_, program: &str, env: &BTreeMap<String, String>, arguments: &[String], claims: &mut Claims) {
    let why = box_.why(program, env, arguments);
    let (index, told) = story(&why);
    let now = box_.run(program, env);
    let context = || format!("{program} {env:?}\n{}", serde_json::to_string_pretty(&why).expect("JSON"));

    // Who wins now.
    let winner = box_.letter(&why, &told["copy"]);
    assert_eq!(winner, now.who, "the winner of {}", context());
    if winner.is_some() {
        claims.winners += 1
    } else {
        claims.failures += 1
    }

    // What comes next when the winner is gone.
    let fates = |word: &str| -> Vec<String> {
        let all = told["fates"].as_array().expect("fates").iter();
        all.filter(|f| f["fate"] == word).filter_map(|f| box_.letter(&why, &f["copy"])).collect()
    };
    let searched =
        told["fates"].as_array().expect("fates").iter().any(|f| f["fate"] == "taken" && f["rule"] != "preload");
    if let Some(winner) = winner.as_ref().filter(|_| searched && program != "by_path") {
        let file = COPIES.iter().find(|(l, _)| l == winner).map(|(l, f)| box_.root.join(l).join(f)).expect("a copy");
        let aside = file.with_extension("aside");
        fs::rename(&file, &aside).expect("rename");
        let next = box_.run(program, env).who;
        fs::rename(&aside, &file).expect("rename back");
        let later = fates("later");
        match &next {
            Some(next) => {
                assert!(later.contains(next), "{next} comes next, not one of {later:?}: {}", context());
                claims.later += 1;
            }
            // A file that ends the load may stand before the later ones.
            None => assert!(later.is_empty() || fates_past_garbage(env, program), "nothing comes next: {}", context()),
        }
    }

    // What each change does.
    let mut listed: Vec<(BTreeMap<String, String>, Option<String>)> = Vec::new();
    for change in why["changes"].as_array().expect("changes") {
        let mut changed = env.clone();
        let variable = change["variable"].as_str().expect("a change of the environment");
        match change["value"].as_str() {
            Some(value) => drop(changed.insert(variable.to_owned(), value.to_owned())),
            None => drop(changed.remove(variable)),
        }
        let then = box_.run(program, &changed);
        let effects: Vec<&Value> = change["effects"]
            .as_array()
            .expect("effects")
            .iter()
            .filter(|e| e["story"] == index && e["changes_answer"] == true)
            // What a preload entry comes to is not what the program gets.
            .filter(|e| e["askers"].as_array().is_some_and(|a| a.iter().any(|a| a["how"] != "preload")))
            .collect();
        for effect in &effects {
            if effect["unasked"] == true {
                continue;
            }
            // A program that fails for another reason, such as a missing second library, prints nothing.
            let some = |key: &str| effect[key].as_array().is_some_and(|f| !f.is_empty());
            let fails = some("failures") || some("still_failing");
            let promised = if fails { None } else { box_.letter(&why, &effect["copy"]) };
            assert_eq!(promised, then.who, "{variable}={:?}: {}", change["value"], context());
            claims.changes += 1;
            if then.who.is_some() && now.other.is_some() {
                let replaced = effect["replaced"].as_array().expect("replaced").iter().any(|r| r == "libother.so.1");
                assert_eq!(replaced, now.other != then.other, "libother under {variable}: {}", context());
                claims.replaced += usize::from(replaced);
            }
        }
        if effects.is_empty() {
            assert_eq!(
                now.who,
                then.who,
                "{variable}={:?} is said to change nothing here: {}",
                change["value"],
                context()
            );
        }
        listed.push((changed, then.who));
    }

    // What does nothing, and that nothing is left out.
    let stuck: Vec<(&Value, bool)> = why["stuck"]
        .as_array()
        .expect("stuck")
        .iter()
        .filter(|s| s["story"] == index)
        .map(|s| (&s["copy"], s["preload_helps"] == true))
        .collect();
    for letter in ["a", "b", "h"] {
        let at = box_.root.join(letter).to_string_lossy().into_owned();
        let with = |name: &str, value: String| {
            let mut changed = env.clone();
            let value = match env.get(name).filter(|v| !v.is_empty()) {
                Some(old) => format!("{value}:{old}"),
                None => value,
            };
            changed.insert(name.to_owned(), value);
            changed
        };
        let by_path = with("LD_LIBRARY_PATH", at.clone());
        let by_preload = with("LD_PRELOAD", format!("{at}/{NAME}"));
        let (path, preload) = (box_.run(program, &by_path).who, box_.run(program, &by_preload).who);
        let of_letter = |c: &&(&Value, bool)| box_.letter(&why, c.0).as_deref() == Some(letter);
        if let Some((_, helps)) = stuck.iter().find(of_letter) {
            assert_ne!(path.as_deref(), Some(letter), "LD_LIBRARY_PATH does bring in {letter}: {}", context());
            assert_eq!(*helps, preload.as_deref() == Some(letter), "LD_PRELOAD of {letter}: {}", context());
            claims.stuck += 1;
            continue;
        }
        // A copy that is known and can be made to win must be said to.
        let is_known = why["copies"].as_array().expect("copies").iter().any(|c| {
            c["real_path"].as_str().is_some_and(|p| Path::new(p).starts_with(&at)) && c["relation"] == "exact"
        });
        if is_known && path.as_deref() == Some(letter) && now.who.as_deref() != Some(letter) {
            let said = listed.iter().any(|(_, who)| who.as_deref() == Some(letter));
            assert!(said, "LD_LIBRARY_PATH={at} makes {letter} win, and it is not said: {}", context());
        }
        if path == now.who && preload == now.who {
            claims.nothing += 1;
        }
    }
}

/// True when a list of the program or the environment leads over the file that is no library.
fn fates_past_garbage(env: &BTreeMap<String, String>, program: &str) -> bool {
    program.contains("garbage")
        || env.get("LD_LIBRARY_PATH").is_some_and(|v| v.split([':', ';']).any(|e| e.as_bytes().ends_with(b"/d")))
}

#[test]
fn names_that_are_no_names_end_with_status_two() {
    let run = |arguments: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_ldaudit"))
            .env_clear()
            .env("PATH", "/nonexistent")
            .args(arguments)
            .output()
            .expect("ldaudit runs")
    };
    let odd = run(&["--why", "libc"]);
    assert_eq!(odd.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&odd.stderr).starts_with("ldaudit: cannot explain `libc`"));
    let gone = run(&["--why", "/nonexistent/libx.so.1"]);
    assert_eq!(gone.status.code(), Some(2));
    let nowhere = run(&["--why", "libdoesnotexist.so.7"]);
    assert_eq!(nowhere.status.code(), Some(0), "a story of nothing is a story");
    let text = String::from_utf8_lossy(&nowhere.stdout).into_owned();
    assert!(text.contains("no copy of that name"), "{text}");
    let strange = run(&["--why", "lib\u{1b}[31m.so.1"]);
    assert!(!strange.stdout.as_bytes_contains(0x1b), "an escape sequence reached the terminal");
}

trait Contains {
    fn as_bytes_contains(&self, byte: u8) -> bool;
}

impl Contains for Vec<u8> {
    fn as_bytes_contains(&self, byte: u8) -> bool {
        std::ffi::OsStr::from_bytes(self).as_bytes().contains(&byte)
    }
}
