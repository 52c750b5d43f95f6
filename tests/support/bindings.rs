//! What real loaders bound, seen twice: glibc's trace names the two objects of each binding (loader rules R11.2, R11.4),
//! and the words that relocations filled in, read from the process's memory, show to which definition each was bound.
//! musl has no trace; the words are what tells of it.

#![allow(dead_code)] // each test binary uses its own part

use std::collections::{BTreeSet, HashMap};

use bstr::{BStr, BString, ByteSlice};
use ldaudit::fixture::forge::{Anatomy, Shows};
use ldaudit::fixture::{Bound, Call, Family, Fixture, Loader, Outcome, SymbolName, What};

/// What the forged program told after its start or after one call.
#[derive(Default)]
pub struct Told {
    /// The object that a call of dlopen gave, or dlerror's text; `None` for the start and for other calls.
    pub result: Option<Result<BString, BString>>,
    /// What a called function gave: its own address.
    pub called: Option<u64>,
    /// The loaded objects.
    pub maps: Vec<Map>,
}

/// A loaded object.
#[derive(Default)]
pub struct Map {
    /// The path that the loader recorded.
    pub path: BString,
    /// How far it was moved.
    pub moved: u64,
    /// Its relocated words; none of an object that was not forged.
    pub words: Vec<u64>,
}

/// Reads the records that `driver.s` writes.
pub fn records(stdout: &[u8]) -> Result<Vec<Told>, String> {
    let mut out = Vec::new();
    let mut now = Told::default();
    let mut rest = stdout;
    let word = |rest: &mut &[u8]| -> Option<u64> {
        let (bytes, after) = rest.split_first_chunk::<8>()?;
        *rest = after;
        Some(u64::from_le_bytes(*bytes))
    };
    while let Some((letter, after)) = rest.split_first() {
        rest = after;
        match letter {
            b'B' => {
                let cut = "the program's words were cut short";
                let map = now.maps.last_mut().ok_or("words without an object")?;
                map.moved = word(&mut rest).ok_or(cut)?;
                let count = word(&mut rest).ok_or(cut)? >> 32;
                for _ in 0..count {
                    map.words.push(word(&mut rest).ok_or(cut)?);
                }
                continue;
            }
            b'V' => {
                now.called = Some(word(&mut rest).ok_or("the program's answer was cut short")?);
                continue;
            }
            _ => {}
        }
        let Some(end) = rest.find_byte(0) else { break };
        let text = rest[..end].as_bstr();
        rest = &rest[end + 1..];
        match letter {
            b'M' => now.maps.push(Map { path: text.into(), ..Map::default() }),
            b'R' => now.result = Some(Ok(text.into())),
            b'E' => now.result = Some(Err(text.into())),
            b'C' => return Err(format!("`from {text}`: no loaded object has that path")),
            b'D' => out.push(std::mem::take(&mut now)),
            _ => {}
        }
    }
    Ok(out)
}

/// Where a call of a function begins, before its object is moved.
pub fn plt_entry(anatomy: &Anatomy, symbol: &SymbolName) -> Option<u64> {
    anatomy.words.iter().filter(|w| w.symbol == *symbol).find_map(|w| match w.shows {
        Shows::Call { plt } => Some(plt),
        _ => None,
    })
}

/// The path at which the fixture describes the file that an object is.
pub type Describes<'a> = &'a dyn Fn(&BStr) -> Option<BString>;

/// The words of a process, followed from step to step.
pub struct Memory<'f> {
    fixture: &'f Fixture,
    loader: Loader,
    program: &'f BStr,
    /// By the path at which the file is described.
    anatomies: HashMap<BString, Option<Anatomy>>,
    /// The words after the step before, by object.
    before: HashMap<BString, Vec<u64>>,
}

impl<'f> Memory<'f> {
    /// Of a process that has not begun.
    pub fn new(fixture: &'f Fixture, loader: Loader, program: &'f BStr) -> Memory<'f> {
        Memory { fixture, loader, program, anatomies: HashMap::new(), before: HashMap::new() }
    }

    fn anatomy(&mut self, object: &BStr, describes: Describes) -> Option<&Anatomy> {
        let path = describes(object)?;
        let (fixture, loader) = (self.fixture, self.loader);
        let known = self.anatomies.entry(path);
        known.or_insert_with_key(|path| fixture.anatomy(loader, path.as_bstr())).as_ref()
    }

    fn is_plain_file(&self, path: &BStr) -> bool {
        self.fixture.statements.iter().any(|s| matches!(&s.what, What::File { path: p, .. } if p == path))
    }

    /// The bindings that a trace tells of references which the fixture describes. What the loader looks up for itself
    /// under the program's name is not among those (rule R11.4).
    pub fn read_trace(
        &mut self,
        trace: &[BString],
        main: &dyn Fn(&BStr) -> BString,
        describes: Describes,
    ) -> Vec<Bound> {
        let mut out: BTreeSet<Bound> = BTreeSet::new();
        for line in trace {
            let Some((from, to, symbol)) = binding_line(line.as_bstr()) else { continue };
            let (of, to) = (main(from.as_bstr()), main(to.as_bstr()));
            if self.fixture.leaves_out(self.loader, to.as_bstr()) {
                continue;
            }
            // Of a file that is no forged one everything counts.
            let is_plain = self.is_plain_file(of.as_bstr());
            let known = self.anatomy(of.as_bstr(), describes);
            if is_plain || known.is_some_and(|a| a.words.iter().any(|w| w.symbol == symbol)) {
                out.insert(Bound { symbol, of, to, definition: None });
            }
        }
        out.into_iter().collect()
    }

    /// Adds what the words show to what the trace told; an error where the two contradict each other.
    pub fn step(
        &mut self,
        told: &Told,
        call: Option<&Call>,
        describes: Describes,
        outcome: &mut Outcome,
    ) -> Result<(), String> {
        let is_glibc = self.loader.family == Family::Glibc;
        // Definitions by the address and, for variables that were copied, by the content.
        let mut by_address: HashMap<u64, (BString, Option<BString>)> = HashMap::new();
        let mut by_content: HashMap<u64, (BString, Option<BString>)> = HashMap::new();
        let mut paths: Vec<BString> = Vec::new();
        for (index, map) in told.maps.iter().enumerate() {
            let path = if index == 0 { self.program.into() } else { map.path.clone() };
            paths.push(path.clone());
            for target in self.anatomy(path.as_bstr(), describes).iter().flat_map(|a| &a.targets) {
                let definition = (path.clone(), target.version.clone());
                by_address.insert(map.moved.wrapping_add(target.address), definition.clone());
                target.content.map(|content| by_content.insert(content, definition));
            }
        }
        let mut seen: BTreeSet<Bound> = BTreeSet::new();
        let mut now = HashMap::new();
        for (of, map) in paths.iter().zip(&told.maps) {
            let before = self.before.remove(of).unwrap_or_default();
            for word in self.anatomy(of.as_bstr(), describes).iter().flat_map(|a| &a.words) {
                let value = map.words.get(word.number).copied().unwrap_or(0);
                if before.get(word.number) == Some(&value) || is_glibc && word.is_hidden || word.is_local {
                    continue;
                }
                let found = match word.shows {
                    Shows::Address | Shows::Call { .. } => by_address.get(&value),
                    Shows::Content => by_content.get(&value),
                    Shows::Nothing => None,
                };
                if let Some((to, version)) = found {
                    let (symbol, of, to) = (word.symbol.clone(), of.clone(), to.clone());
                    seen.insert(Bound { symbol, of, to, definition: Some(version.clone()) });
                }
            }
            now.insert(of.clone(), map.words.clone());
        }
        self.before = now;
        if let (Some(value), Some(call)) = (told.called, call) {
            let (to, version) = by_address.get(&value).ok_or("the called function is no forged one")?;
            let bound = Bound {
                symbol: call.symbol.clone(),
                of: call.of.clone(),
                to: to.clone(),
                definition: Some(version.clone()),
            };
            // The function may have been called before: then the trace says nothing now.
            outcome.bindings.get_or_insert_with(Vec::new);
            seen.insert(bound);
            outcome.ok = true;
        }
        let Some(traced) = &mut outcome.bindings else {
            outcome.bindings = Some(seen.into_iter().collect());
            return Ok(());
        };
        for bound in seen {
            let is_same = |t: &Bound| t.same_reference(&bound.symbol, bound.of.as_bstr()) && t.to == bound.to;
            match traced.iter_mut().find(|t| is_same(t) && (t.definition.is_none() || t.definition == bound.definition))
            {
                Some(told) => told.definition = bound.definition,
                None if call.is_some() => traced.push(bound),
                None => return Err(format!("the trace does not tell what the words show: {bound}\n{traced:?}")),
            }
        }
        Ok(())
    }
}

/// `binding file G [N] to F [N]: normal symbol `S' [V]` → G, F and the symbol.
fn binding_line(line: &BStr) -> Option<(BString, BString, SymbolName)> {
    let rest = line.strip_prefix(b"binding file ")?;
    let (objects, rest) =
        rest.split_once_str(": normal symbol `").or_else(|| rest.split_once_str(": protected symbol `"))?;
    let (from, to) = objects.split_once_str("] to ")?;
    let without_namespace = |text: &[u8]| BString::from(text.rsplit_once_str(" [").map_or(text, |(name, _)| name));
    let (name, version) = rest.split_once_str("'")?;
    let version = version.trim_ascii().strip_prefix(b"[").and_then(|v| v.strip_suffix(b"]"));
    let symbol = SymbolName { name: name.into(), version: version.map(BString::from) };
    Some((without_namespace(from), without_namespace(to), symbol))
}
