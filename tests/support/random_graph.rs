//! Random small processes as fixtures, the comparison of what two observers saw of one, and the reduction of one on
//! which they disagree.

use bstr::{BString, ByteSlice};
use ldaudit::fixture::{
    Bound, Call, Def, Dlopen, Elf, Exec, Family, Fixture, Hash, Observation, Outcome, Request, Statement, Step,
    SymbolName, Use, VersionNeed, What,
};

use super::random::Random;

/// Functions, variables, and one thread-local variable. None of them is a name of the C library.
const FUNCTIONS: [&str; 4] = ["fa", "fb", "fc", "fd"];
const VARIABLES: [&str; 2] = ["va", "vb"];
const THREAD_LOCAL: &str = "ta";
const VERSIONS: [&str; 3] = ["V1", "V2", "V3"];
const PROGRAM: &str = "/app/run";

/// What a library is called and where it lies.
struct Library {
    name: BString,
    path: BString,
    versions: Vec<BString>,
}

/// The process of a seed.
pub fn make(seed: u64, family: Family) -> Fixture {
    let mut r = Random::new(seed);
    let count = 1 + r.index(8);
    // Mostly the last library defines everything, so that most processes start.
    let rich = r.chance(75);
    let libraries: Vec<Library> = (0..count)
        .map(|n| {
            let name = BString::from(format!("lib{}.so", (b'a' + n as u8) as char));
            let directory = if r.chance(15) { "/e" } else { "/d" };
            let versions = if r.chance(40) { 1 + r.index(3) } else { 0 };
            let versions = VERSIONS.iter().take(versions).map(|v| BString::from(*v)).collect();
            Library { path: format!("{directory}/{name}").into(), name, versions }
        })
        .collect();
    let mut statements = Vec::new();
    let mut say = |what: What| statements.push(Statement { line: 0, what });
    say(What::Comment(format!("R6, R7: random process {seed}.").into()));
    if family == Family::Musl {
        say(What::Loaders(vec![ldaudit::fixture::Selector::all(Family::Musl)]));
    }
    let fixed = r.chance(25);
    let mut program = elf(&mut r, &libraries, None, fixed, rich);
    if fixed {
        program.kind = Some(2);
    }
    say(What::Elf { path: PROGRAM.into(), program: true, elf: Box::new(program) });
    for at in 0..libraries.len() {
        let elf = elf(&mut r, &libraries, Some(at), false, rich && at + 1 == libraries.len());
        // A second copy in the other directory, of other content.
        if r.chance(5) {
            let other = if libraries[at].path.starts_with(b"/d") { "/e" } else { "/d" };
            let mut copy = elf.clone();
            copy.defs.pop();
            let path = BString::from(format!("{other}/{}", libraries[at].name));
            say(What::Elf { path, program: false, elf: Box::new(copy) });
        }
        say(What::Elf { path: libraries[at].path.clone(), program: false, elf: Box::new(elf) });
    }
    let mut env = |name: &str, value: BString| say(What::Env { name: name.into(), value });
    if r.chance(20) {
        let preloads = (0..1 + r.index(2)).map(|_| libraries[r.index(count)].path.clone());
        env("LD_PRELOAD", bstr::join(":", preloads).into());
    }
    if r.chance(12) {
        env("LD_DYNAMIC_WEAK", if r.chance(50) { "1".into() } else { "".into() });
    }
    if r.chance(30) {
        env("LD_BIND_NOW", if r.chance(85) { "1".into() } else { "".into() });
    }
    if r.chance(20) {
        env("GLIBC_TUNABLES", format!("glibc.rtld.dynamic_sort={}", 1 + r.index(2)).into());
    }
    say(What::Step(Step::Exec(Exec { path: PROGRAM.into(), loader_options: None })));
    let mut calls: Vec<Call> = Vec::new();
    for statement in &statements {
        let What::Elf { path, elf, .. } = &statement.what else { continue };
        calls.extend(elf.uses.iter().filter(|u| u.lazy).map(|u| {
            let symbol = SymbolName { name: u.name.clone(), version: u.version.clone() };
            Call { symbol, of: path.clone() }
        }));
    }
    for _ in 0..r.index(9) {
        let step = match r.pick(&calls) {
            Some(call) if r.chance(40) => Step::Call(call.clone()),
            _ => Step::Dlopen(Dlopen {
                name: libraries[r.index(count)].path.clone(),
                global: r.chance(35),
                lazy: r.chance(60),
                noload: r.chance(8),
                deepbind: r.chance(12),
                from: None,
            }),
        };
        statements.push(Statement { line: 0, what: What::Step(step) });
    }
    Fixture { statements }
}

/// The n-th library, or the program.
fn elf(r: &mut Random, libraries: &[Library], at: Option<usize>, fixed: bool, rich: bool) -> Elf {
    let mut out = Elf::default();
    let own = at.map(|at| &libraries[at]);
    out.soname = own.filter(|_| r.chance(85)).map(|l| l.name.clone());
    for (other, library) in libraries.iter().enumerate() {
        // Mostly what comes later, so that there are levels; now and then a circle.
        let percent = if at.is_none_or(|at| other > at) { 38 } else { 7 };
        let is_wanted = rich && at.is_none() && other + 1 == libraries.len();
        if !is_wanted && (at == Some(other) && !r.chance(3) || !r.chance(percent)) {
            continue;
        }
        out.requests.push(match r.below(100) {
            0..2 if at.is_some() => Request::Auxiliary(library.name.clone()),
            2..4 if at.is_some() => Request::Filter(library.name.clone()),
            _ => Request::Needed(library.name.clone()),
        });
    }
    if r.chance(30) {
        let len = out.requests.len();
        (1..len).for_each(|n| out.requests.swap(n, r.index(n + 1)));
    }
    if r.chance(1) {
        out.requests.push(Request::Needed("libnowhere.so".into()));
    }
    let path = ["/d:/e", "/d:/e", "/d:/e", "/e:/d", "/d"][r.index(5)];
    if r.chance(15) {
        out.rpath = Some(path.into());
    } else {
        out.runpath = Some(path.into());
    }
    if at.is_some() {
        if r.chance(10) {
            out.flags |= 2;
        }
        out.hash = [Hash::Gnu, Hash::Gnu, Hash::Gnu, Hash::Sysv, Hash::Both][r.index(5)];
    }
    if r.chance(8) {
        out.flags |= 8;
    }
    if r.chance(4) {
        out.flags_1 |= 1;
    }
    if r.chance(1) {
        out.hash = Hash::Neither;
    }
    defs(r, own, rich, &mut out);
    uses(r, libraries, fixed && at.is_none(), &mut out);
    out
}

fn defs(r: &mut Random, own: Option<&Library>, rich: bool, out: &mut Elf) {
    let percent = match own {
        Some(_) if rich => 96,
        Some(_) => 35,
        None => 15,
    };
    let none = Vec::new();
    let versions = own.map_or(&none, |l| &l.versions);
    out.verdefs = versions.clone();
    let names = FUNCTIONS.iter().chain(&VARIABLES).chain([&THREAD_LOCAL]);
    for name in names {
        if !r.chance(percent) {
            continue;
        }
        let mut def = Def { name: (*name).into(), ..Def::default() };
        def.weak = r.chance(20);
        // Of weak protected definitions that LD_DYNAMIC_WEAK passes over a loader may warn; the model does not.
        def.protected = !def.weak && r.chance(12);
        def.hidden = !def.protected && r.chance(4);
        def.local = !def.protected && r.chance(1);
        def.section = r.chance(1);
        if VARIABLES.contains(name) {
            def.object = true;
            def.unique = r.chance(25);
        } else if *name == THREAD_LOCAL {
            def.tls = true;
            out.tls = Some(512);
        } else {
            def.ifunc = r.chance(3);
        }
        if versions.is_empty() || r.chance(if rich { 50 } else { 15 }) {
            out.defs.push(def.clone());
            if versions.is_empty() || r.chance(60) {
                continue;
            }
        }
        // The default version, and now and then older ones in front of it or behind.
        let default = r.index(versions.len());
        for (n, version) in versions.iter().enumerate() {
            if n == default && r.chance(90) {
                out.defs.push(Def { version: Some((version.clone(), true)), ..def.clone() });
            } else if r.chance(if rich { 80 } else { 30 }) {
                out.defs.push(Def { version: Some((version.clone(), r.chance(10))), ..def.clone() });
            }
        }
    }
    if r.chance(20) {
        out.defs.reverse();
    }
}

fn uses(r: &mut Random, libraries: &[Library], copies: bool, out: &mut Elf) {
    // Versions are asked for of a library that the file needs and that has them; seldom of any other.
    let needed = |name: &BString| out.requests.iter().any(|q| matches!(q, Request::Needed(n) if n == name));
    let versioned: Vec<&Library> = libraries.iter().filter(|l| needed(&l.name) && !l.versions.is_empty()).collect();
    let unversioned: Vec<&Library> = libraries.iter().filter(|l| needed(&l.name) && l.versions.is_empty()).collect();
    let mut verneeds: Vec<VersionNeed> = Vec::new();
    let names = FUNCTIONS.iter().chain(&VARIABLES).chain([&THREAD_LOCAL]);
    for name in names {
        for _ in 0..2 {
            if !r.chance(26) {
                continue;
            }
            let mut usage = Use { name: (*name).into(), weak: r.chance(45), ..Use::default() };
            if *name == THREAD_LOCAL {
                usage.tls = true;
            } else if VARIABLES.contains(name) {
                usage.copy = copies && r.chance(50);
                usage.data = !usage.copy && r.chance(40);
            } else {
                usage.lazy = r.chance(55);
                usage.data = !usage.lazy && r.chance(40);
                usage.canonical = copies && usage.lazy && r.chance(30);
            }
            let from = if r.chance(96) { r.pick(&versioned) } else { r.pick(&unversioned) };
            if let Some(from) = from.filter(|_| r.chance(45)) {
                let version = match r.pick(&from.versions) {
                    Some(version) if r.chance(97) => version.clone(),
                    _ => VERSIONS[r.index(3)].into(),
                };
                if !verneeds.iter().any(|n| n.version == version) {
                    let weak = r.chance(4);
                    verneeds.push(VersionNeed { file: from.name.clone(), version: version.clone(), weak });
                }
                usage.version = Some(version);
            }
            out.uses.push(usage);
        }
    }
    if r.chance(30) {
        out.uses.reverse();
    }
    // One place per variable: a program has one copy of it, and no other definition.
    let mut copied: Vec<BString> = Vec::new();
    out.uses.retain(|u| {
        let again = u.copy && copied.contains(&u.name);
        if u.copy && !again {
            copied.push(u.name.clone());
        }
        !again
    });
    out.defs.retain(|d| !copied.contains(&d.name));
    let stand_ins: Vec<BString> = out.uses.iter().filter(|u| u.canonical).map(|u| u.name.clone()).collect();
    out.defs.retain(|d| !stand_ins.contains(&d.name));
    out.verneeds = verneeds;
}

/// Takes out the calls that the process cannot make: of objects that are not loaded, of functions that they do not call.
pub fn without_impossible_calls(
    mut fixture: Fixture,
    possible: impl Fn(&Fixture) -> Result<(), usize>,
) -> Option<Fixture> {
    loop {
        match possible(&fixture) {
            Ok(()) => return Some(fixture),
            Err(step) => {
                let steps: Vec<usize> = (0..fixture.statements.len())
                    .filter(|at| matches!(fixture.statements[*at].what, What::Step(_)))
                    .collect();
                fixture.statements.remove(*steps.get(step)?);
            }
        }
    }
}

/// What two observers saw differently; none when it is the same. `what_is_seen` of bindings is what the real loader
/// shows of them.
pub fn differences(model: &Observation, real: &Observation, family: Family) -> Vec<String> {
    let mut out = Vec::new();
    if model.steps.len() != real.steps.len() {
        out.push(format!("{} steps, real {}", model.steps.len(), real.steps.len()));
    }
    for (at, (model, real)) in model.steps.iter().zip(&real.steps).enumerate() {
        let mut differs = |what: &str, model: String, real: String| {
            if model != real {
                out.push(format!("step {at}: {what}\n    model {model}\n    real  {real}"));
            }
        };
        differs("result", end(model), end(real));
        if real.order.is_some() || model.ok {
            differs("order", format!("{:?}", model.order), format!("{:?}", real.order));
        }
        if family == Family::Glibc || model.ok && real.ok {
            let (model, real) = (bindings(model, family), bindings(real, family));
            let missing: Vec<String> =
                real.iter().filter(|r| !model.iter().any(|m| same(m, r))).map(Bound::to_string).collect();
            let more: Vec<String> =
                model.iter().filter(|m| !real.iter().any(|r| same(m, r))).map(Bound::to_string).collect();
            differs("bindings", more.join(", "), missing.join(", "));
        }
    }
    out
}

/// How a step ended. A start that fails for its versions mixes warnings with errors; the model keeps them apart.
fn end(outcome: &Outcome) -> String {
    let mut said = outcome.said.clone();
    if outcome.exit.is_some() && said.len() > 1 {
        said.sort();
    }
    format!("ok {} exit {:?} killed {:?} said {said:?}", outcome.ok, outcome.exit, outcome.killed)
}

fn same(model: &Bound, real: &Bound) -> bool {
    let seen = real.definition.is_none() || model.definition == real.definition;
    model.same_reference(&real.symbol, real.of.as_bstr()) && model.to == real.to && seen
}

/// musl shows no bindings of thread-local variables.
fn bindings(outcome: &Outcome, family: Family) -> Vec<Bound> {
    let all = outcome.bindings.iter().flatten();
    all.filter(|b| family == Family::Glibc || b.symbol.name != THREAD_LOCAL).cloned().collect()
}

/// Leaves out whatever can be left out while `differs` still holds.
pub fn reduce(fixture: &Fixture, mut differs: impl FnMut(&Fixture) -> bool) -> Fixture {
    let mut best = fixture.clone();
    let mut tries = 0;
    loop {
        let mut smaller = false;
        let mut change = 0;
        while let Some(next) = changed(&best, change) {
            tries += 1;
            if tries > 3000 {
                return best;
            }
            if next != best && differs(&next) {
                best = next;
                smaller = true;
            } else {
                change += 1;
            }
        }
        if !smaller {
            return best;
        }
    }
}

/// The n-th way to make a fixture smaller; `None` when there are no more.
fn changed(fixture: &Fixture, mut n: usize) -> Option<Fixture> {
    // Whole lines first, from the end: steps, variables, files.
    let removable: Vec<usize> = (0..fixture.statements.len())
        .rev()
        .filter(|at| match &fixture.statements[*at].what {
            What::Step(step) => !matches!(step, Step::Exec(_)),
            What::Env { .. } => true,
            What::Elf { program, .. } => !program,
            _ => false,
        })
        .collect();
    let mut out = fixture.clone();
    if let Some(at) = removable.get(n) {
        out.statements.remove(*at);
        return Some(out);
    }
    n -= removable.len();
    for statement in &mut out.statements {
        match &mut statement.what {
            What::Elf { elf, .. } => {
                let ways = elf_ways(elf);
                if n < ways {
                    change_elf(elf, n);
                    return Some(out);
                }
                n -= ways;
            }
            What::Step(Step::Dlopen(dlopen)) => {
                let mut flags = [&mut dlopen.global, &mut dlopen.lazy, &mut dlopen.noload, &mut dlopen.deepbind];
                if let Some(flag) = flags.get_mut(n) {
                    **flag = false;
                    return Some(out);
                }
                n -= flags.len();
            }
            _ => {}
        }
    }
    None
}

/// Ways to change a file apart from its lists.
const SINGLE_WAYS: usize = 8;
/// Ways to change a definition or use besides leaving it out.
const DEF_WAYS: usize = 11;
const USE_WAYS: usize = 5;

fn elf_ways(elf: &Elf) -> usize {
    SINGLE_WAYS
        + elf.requests.len()
        + elf.defs.len() * (1 + DEF_WAYS)
        + elf.uses.len() * (1 + USE_WAYS)
        + elf.verdefs.len()
        + elf.verneeds.len() * 2
}

fn change_elf(elf: &mut Elf, mut n: usize) {
    match n {
        0 => elf.soname = None,
        1 => elf.flags = 0,
        2 => elf.flags_1 = 0,
        3 => elf.hash = Hash::Gnu,
        4 => elf.kind = None,
        5 => elf.tls = None,
        6 => elf.runpath = elf.rpath.take().or_else(|| elf.runpath.take()),
        7 => elf.runpath = elf.runpath.as_ref().map(|_| "/d".into()),
        _ => {}
    }
    if n < SINGLE_WAYS {
        return;
    }
    n -= SINGLE_WAYS;
    // Removes the n-th of a list, or counts it.
    macro_rules! one_of {
        ($list:expr) => {
            if n < $list.len() {
                $list.remove(n);
                return;
            }
            n -= $list.len();
        };
    }
    one_of!(elf.requests);
    one_of!(elf.defs);
    one_of!(elf.uses);
    one_of!(elf.verdefs);
    one_of!(elf.verneeds);
    if let Some(need) = elf.verneeds.get_mut(n) {
        need.weak = false;
        return;
    }
    n -= elf.verneeds.len();
    if let Some(def) = elf.defs.get_mut(n / DEF_WAYS) {
        let way = n % DEF_WAYS;
        let flags = [
            &mut def.weak,
            &mut def.unique,
            &mut def.protected,
            &mut def.hidden,
            &mut def.local,
            &mut def.section,
            &mut def.ifunc,
            &mut def.object,
            &mut def.tls,
        ];
        match flags.into_iter().nth(way) {
            Some(flag) => *flag = false,
            None if way == 9 => def.version = None,
            None => def.version.iter_mut().for_each(|(_, default)| *default = true),
        }
        return;
    }
    n -= elf.defs.len() * DEF_WAYS;
    if let Some(usage) = elf.uses.get_mut(n / USE_WAYS) {
        match n % USE_WAYS {
            0 => usage.version = None,
            1 => usage.weak = false,
            2 => (usage.lazy, usage.canonical) = (false, false),
            3 => usage.data = false,
            _ => usage.canonical = false,
        }
    }
}
