//! Which modules does a source file import for certain, whenever it is run? Read as text; nothing is executed.
//!
//! Certain are import statements of the module's own level, and those with which a `try` of that level begins (they
//! are attempted, and their failure may be caught, unless the handler raises in its turn), and what stands behind the
//! `else` of a condition that never holds in an ordinary Python. What else stands in functions,
//! classes, conditions and loops depends on what the program does, and is not told.

use bstr::{BStr, ByteSlice};

use super::Python;
use super::modules::{self, Module};

/// Longest source file that is read, in bytes (generated ones of sympy have 1.5 MB).
const MAX_SOURCE: u64 = 8 << 20;
/// Most import statements of one file that are kept.
const MAX_STATEMENTS: usize = 4_000;

/// One import statement.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Import {
    /// The module in full, relative names resolved: `import a.b` and `from a.b import c` give `a.b`.
    pub module: String,
    /// What `from` takes of it; a name may be a module below it. Without `*`.
    pub names: Vec<String>,
    /// True inside `try`: its failure may be caught. False where the handler of a failed import raises again.
    pub guarded: bool,
}

/// What a module is and what its source imports for certain.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Code {
    /// What `import` takes.
    pub module: Module,
    /// Its statements in order; empty when it is not source.
    pub imports: Vec<Import>,
    /// False when there is code in Python that could not be read: byte code, or a file that may not be read.
    pub was_read: bool,
    /// True when the source speaks of `sys.path`, `sys.modules` or `sys.meta_path`: it may bring in modules that are found
    /// nowhere else.
    pub may_provide_modules: bool,
    /// True when the source speaks of a module `_C`.
    pub speaks_of_c: bool,
}

/// Looks a module up and reads its source. `parent` is what the package in front of the last dot is.
pub(super) fn read(python: &Python, name: &str, parent: Option<&Module>) -> Code {
    let module = match (parent, name.rsplit_once('.')) {
        (Some(parent), Some((_, last))) => modules::find_below(python, parent, last),
        _ => modules::find(python, name).module,
    };
    let (file, package) = match &module {
        Module::Package { init, .. } => (Some(init), name),
        Module::Source(path) => (Some(path), name.rsplit_once('.').map_or("", |(package, _)| package)),
        _ => (None, ""),
    };
    // An extension has no source, `__init__` or not: what its own code imports nobody can read off.
    let is_python = file.is_some_and(|f| f.ends_with(b".py") || f.ends_with(b".pyc"));
    let text = source_of(python, &module);
    let was_read = !is_python || text.is_some();
    let speaks_of = |word: &str| text.as_ref().is_some_and(|t| t.contains_str(word));
    let may_provide_modules = ["sys.path", "sys.modules", "meta_path"].iter().any(|word| speaks_of(word));
    let imports = text.as_ref().map(|text| statements(text.as_bstr(), package)).unwrap_or_default();
    let speaks_of_c = speaks_of("_C");
    Code { module, imports, was_read, may_provide_modules, speaks_of_c }
}

/// The source of a module, when it has one that can be read.
pub(super) fn source_of(python: &Python, module: &Module) -> Option<Vec<u8>> {
    let (Module::Package { init: file, .. } | Module::Source(file)) = module else { return None };
    let file = Some(file).filter(|f| f.ends_with(b".py"))?;
    python.system.read_small(file.as_bstr(), MAX_SOURCE).ok()
}

/// The certain imports of a source text in order. `package` is `__package__` of the module.
fn statements(text: &BStr, package: &str) -> Vec<Import> {
    let mut out: Vec<Import> = Vec::new();
    // The indentation of the body of a `try` of the module's level while it has only held imports, or of an `else` that
    // is run for certain; `None` inside: not yet known. With it, whether it is the body of a `try`.
    let mut body: Option<(Option<usize>, bool)> = None;
    let mut is_behind_never = false;
    // That `try`, until it is known what becomes of a failed import: its first statement in the list, and whether this is
    // the handler of failed imports.
    let mut attempt: Option<(usize, Handler)> = None;
    for line in Lines::new(text) {
        let again = match (line.indent, &mut attempt) {
            (0, _) if line.text == "try:" => {
                attempt = Some((out.len(), Handler::Awaited));
                false
            }
            // Python takes the first handler that fits.
            (0, Some((_, handler @ Handler::Awaited))) if line.text.starts_with("except") => {
                let then = takes_failed_imports(&line.text);
                if then.is_some() {
                    *handler = Handler::Entered(None);
                }
                then.is_some_and(raises)
            }
            (0, _) => {
                attempt = None;
                false
            }
            (indent, Some((_, Handler::Entered(own)))) => *own.get_or_insert(indent) == indent && raises(&line.text),
            _ => false,
        };
        if let Some((first, _)) = attempt.filter(|_| again) {
            out.iter_mut().skip(first).for_each(|import| import.guarded = false);
            attempt = None;
        }
        let guarded = match (line.indent, body) {
            (0, _) => {
                let is_try = line.text == "try:";
                body = (is_try || is_behind_never && line.text == "else:").then_some((None, is_try));
                is_behind_never = NEVER.contains(&line.text.as_str());
                false
            }
            (indent, Some((None, is_try))) => {
                body = Some((Some(indent), is_try));
                is_try
            }
            (indent, Some((Some(expected), is_try))) if indent == expected => is_try,
            _ => continue,
        };
        let before = out.len();
        for statement in line.text.split(';') {
            parse(statement.trim(), package, guarded, &mut out);
        }
        if guarded && out.len() == before {
            body = None;
        }
        if out.len() >= MAX_STATEMENTS {
            break;
        }
    }
    out
}

/// Conditions that never hold in an ordinary Python, texts as `""`: torch asks them about an interpreter of its own.
const NEVER: [&str; 4] =
    ["if _running_with_deploy():", "if sys.executable == \"\":", "if TYPE_CHECKING:", "if typing.TYPE_CHECKING:"];

/// How far the reading of a `try` has come.
#[derive(Clone, Copy)]
enum Handler {
    /// The handler of failed imports has not come yet.
    Awaited,
    /// This is it; the indentation of its body once that is known.
    Entered(Option<usize>),
}

/// What follows the colon of an `except` clause that takes the failure of an import; `None` for other clauses.
fn takes_failed_imports(clause: &str) -> Option<&str> {
    const CAUGHT: [&str; 4] = ["ImportError", "ModuleNotFoundError", "Exception", "BaseException"];
    let (what, then) = clause.strip_prefix("except")?.split_once(':')?;
    let what = what.split(" as ").next().unwrap_or_default();
    let mut names = what.split(|c: char| !(c.is_alphanumeric() || c == '_')).filter(|name| !name.is_empty()).peekable();
    (names.peek().is_none() || names.any(|name| CAUGHT.contains(&name))).then_some(then.trim())
}

/// True for a statement that raises.
fn raises(statement: &str) -> bool {
    statement.strip_prefix("raise").is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_'))
}

/// What the source takes from a module at once: a class of the module's level has it among its bases or in its own
/// statements, or is decorated with it. Without the module's name, running the source ends there with NameError.
pub(super) fn taken_by_a_class(text: &BStr, module: &str) -> Option<String> {
    let annotations_run = !text.contains_str("from __future__ import annotations");
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let taken = |code: &str| {
        code.match_indices(module).find_map(|(at, _)| {
            let stands_alone = !code[..at].ends_with(|c| is_part(c) || c == '.');
            let rest = code[at + module.len()..].strip_prefix('.').filter(|_| stands_alone)?;
            Some(rest[..rest.find(|c| !is_part(c)).unwrap_or(rest.len())].to_owned())
        })
    };
    let mut inside = false;
    let mut body = None;
    for line in Lines::whole(text) {
        if line.indent == 0 {
            inside = line.text.starts_with("class ");
            body = None;
            if (inside || line.text.starts_with('@'))
                && let Some(name) = taken(&line.text)
            {
                return Some(name);
            }
            continue;
        }
        if !inside || *body.get_or_insert(line.indent) != line.indent {
            continue;
        }
        // `expr: sympy.Expr`, `limit = sympy.oo`; what a function does is another matter.
        let Some((target, rest)) = line.text.split_once([':', '=']) else { continue };
        let is_annotation = line.text[target.len()..].starts_with(':');
        if is_dotted(target.trim())
            && (annotations_run || !is_annotation)
            && let Some(name) = taken(rest)
        {
            return Some(name);
        }
    }
    None
}

/// How many of the certain imports of a source text stand in front of the first line that has a statement.
pub(super) fn count_before(text: &BStr, package: &str, statement: &str) -> usize {
    let mut end = 0;
    for line in text.lines_with_terminator() {
        if line.trim_ascii() == statement.as_bytes() {
            break;
        }
        end += line.len();
    }
    statements(text[..end].as_bstr(), package).len()
}

/// Reads one statement, if it is an import.
fn parse(statement: &str, package: &str, guarded: bool, out: &mut Vec<Import>) {
    let Some((word, rest)) = statement.split_once(|c: char| c.is_ascii_whitespace() || c == '.') else { return };
    match word {
        "import" => {
            for item in rest.split(',') {
                // `a.b as c`
                if let Some(module) = item.split_ascii_whitespace().next().filter(|m| is_dotted(m)) {
                    out.push(Import { module: module.to_owned(), names: Vec::new(), guarded });
                }
            }
        }
        "from" => {
            let rest = statement["from".len()..].trim_start();
            let Some((source, names)) = split_at_import(rest) else { return };
            let source: String = source.split_ascii_whitespace().collect();
            let Some(module) = absolute(&source, package) else { return };
            let names = names.trim().trim_start_matches('(').trim_end_matches(')');
            let names = names.split(',').filter_map(|n| n.split_ascii_whitespace().next());
            let names = names.filter(|n| is_dotted(n) && !n.contains('.')).map(str::to_owned).collect();
            out.push(Import { module, names, guarded });
        }
        _ => {}
    }
}

/// `a.b import c` as `a.b` and `c`; also `.import c` and `x import(c)`.
fn split_at_import(text: &str) -> Option<(&str, &str)> {
    const WORD: &str = "import";
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(WORD).find_map(|(at, _)| {
        let (before, after) = (&text[..at], &text[at + WORD.len()..]);
        let stands_alone = !before.ends_with(is_part) && !after.starts_with(is_part);
        stands_alone.then_some((before, after))
    })
}

fn is_dotted(name: &str) -> bool {
    name.split('.').all(|p| {
        p.chars().all(|c| c.is_alphanumeric() || c == '_') && p.starts_with(|c: char| c.is_alphabetic() || c == '_')
    })
}

/// `importlib._bootstrap._resolve_name`: one dot is the package itself, each more goes one up.
fn absolute(source: &str, package: &str) -> Option<String> {
    let below = source.trim_start_matches('.');
    let dots = source.len() - below.len();
    if dots == 0 {
        return is_dotted(below).then(|| below.to_owned());
    }
    let mut base = package;
    for _ in 1..dots {
        base = base.rsplit_once('.')?.0;
    }
    match (base, below) {
        ("", _) => None,
        (base, "") => Some(base.to_owned()),
        (base, below) => is_dotted(below).then(|| format!("{base}.{below}")),
    }
}

/// A logical line.
struct Line {
    /// Columns of white space in front of it; a tab counts as one, which is enough to compare lines of one block.
    indent: usize,
    /// Its text without comments, line breaks as spaces and each string literal as `""`; empty unless it begins with
    /// one of the words that matter here, or all are asked for.
    text: String,
}

/// Longest statement that is kept, in bytes.
const MAX_LINE: usize = 64 * 1024;

/// Logical lines of a source text: brackets, backslashes and triple quotes join physical ones.
struct Lines<'a> {
    rest: &'a [u8],
    /// True when the text of each line is wanted.
    all: bool,
}

impl<'a> Lines<'a> {
    /// The text of imports and of what may catch their failures.
    fn new(text: &'a BStr) -> Lines<'a> {
        Lines { rest: text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text), all: false }
    }

    /// The text of every line.
    fn whole(text: &'a BStr) -> Lines<'a> {
        Lines { all: true, ..Lines::new(text) }
    }
}

impl Iterator for Lines<'_> {
    type Item = Line;

    fn next(&mut self) -> Option<Line> {
        loop {
            let indent = self.rest.iter().take_while(|b| matches!(b, b' ' | b'\t' | b'\x0c')).count();
            self.rest = &self.rest[indent..];
            match self.rest.first()? {
                b'\n' | b'\r' => self.rest = &self.rest[1..],
                b'#' => self.rest = after(self.rest, self.rest.find_byte(b'\n').unwrap_or(self.rest.len())),
                _ => {
                    const WORDS: [&[u8]; 7] = [b"import", b"from", b"try", b"except", b"raise", b"if ", b"else"];
                    let matters = self.all || WORDS.iter().any(|w| self.rest.starts_with(w));
                    return Some(Line { indent, text: self.logical(matters) });
                }
            }
        }
    }
}

/// What follows the byte at an index.
fn after(text: &[u8], at: usize) -> &[u8] {
    text.get(at + 1..).unwrap_or_default()
}

impl Lines<'_> {
    /// Takes one logical line; gives its text when it is wanted.
    fn logical(&mut self, wanted: bool) -> String {
        let text = self.rest;
        let mut out: Vec<u8> = Vec::new();
        let mut keep = |bytes: &[u8]| {
            if wanted && out.len() < MAX_LINE {
                out.extend_from_slice(bytes);
            }
        };
        let mut depth = 0usize;
        let mut at = 0;
        while let Some(&byte) = text.get(at) {
            match byte {
                b'#' => {
                    at += text[at..].find_byte(b'\n').unwrap_or(text.len() - at);
                    continue;
                }
                b'\\' if text.get(at + 1) == Some(&b'\n') => {
                    keep(b" ");
                    at += 1;
                }
                b'\\' if text[at + 1..].starts_with(b"\r\n") => {
                    keep(b" ");
                    at += 2;
                }
                b'\n' if depth == 0 => break,
                b'\n' | b'\r' => keep(b" "),
                b'"' | b'\'' => {
                    at = string_end(text, at);
                    keep(b"\"\"");
                    continue;
                }
                _ => {
                    match byte {
                        b'(' | b'[' | b'{' => depth += 1,
                        b')' | b']' | b'}' => depth = depth.saturating_sub(1),
                        _ => {}
                    }
                    keep(&[byte]);
                }
            }
            at += 1;
        }
        self.rest = after(text, at);
        String::from_utf8_lossy(&out).trim_end().to_owned()
    }
}

/// The index behind a string literal that begins with the quote at `at`. A string of one line that is not closed ends
/// with its line.
fn string_end(text: &[u8], at: usize) -> usize {
    let quote = text[at];
    let triple = text[at..].starts_with(&[quote; 3]);
    let mut i = at + if triple { 3 } else { 1 };
    while let Some(&byte) = text.get(i) {
        match byte {
            b'\\' => i += 1,
            b'\n' if !triple => return i,
            _ if byte == quote && !triple => return i + 1,
            _ if byte == quote && text[i..].starts_with(&[quote; 3]) => return i + 3,
            _ => {}
        }
        i += 1;
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(text: &str) -> Vec<String> {
        let show = |i: Import| {
            let names = if i.names.is_empty() { String::new() } else { format!(": {}", i.names.join(" ")) };
            format!("{}{}{names}", if i.guarded { "try " } else { "" }, i.module)
        };
        statements(text.into(), "pkg.sub").into_iter().map(show).collect()
    }

    #[test]
    fn statements_of_the_module_level_are_read() {
        assert_eq!(seen("import a\nimport b.c as d, e ; import f # g\n"), ["a", "b.c", "e", "f"]);
        assert_eq!(seen("from a.b import c as d, e\nfrom x import *\n"), ["a.b: c e", "x"]);
        assert_eq!(seen("from a import (\n  b,  # one\n  c as d,\n)\nimport \\\n  e\r\n"), ["a: b c", "e"]);
        assert_eq!(
            seen("\u{feff}import a\nfrom importlib import(b)\nfrom a.imports import c"),
            ["a", "importlib: b", "a.imports: c"]
        );
    }

    #[test]
    fn relative_names_are_resolved() {
        assert_eq!(
            seen("from . import a\nfrom .b import c\nfrom ..d import e\nfrom .. import f"),
            ["pkg.sub: a", "pkg.sub.b: c", "pkg.d: e", "pkg: f"]
        );
        assert_eq!(seen("from ... import a\nfrom .import b"), ["pkg.sub: b"], "three dots leave the package");
    }

    #[test]
    fn what_may_not_run_is_left_out() {
        let text = "if x:\n    import a\nelse: import b\ndef f():\n    import c\nclass D:\n  import d\nimport e\n";
        assert_eq!(seen(text), ["e"]);
        assert_eq!(seen("important = 1\nfromage = 2\nimport_ = 3\nimport\nfrom x\nfrom x import\n"), ["x"]);
    }

    #[test]
    fn what_stands_behind_a_condition_that_never_holds_is_certain() {
        let text =
            "if sys.executable == 'torch_deploy':\n    import a\nelse:\n    x = 1\n    from .b import c\nimport d\n";
        assert_eq!(seen(text), ["pkg.sub.b: c", "d"]);
        assert_eq!(seen("if TYPE_CHECKING:\n  import a\nelif x:\n  import b\nelse:\n  import c\n"), [] as [&str; 0]);
        assert_eq!(seen("if TYPE_CHECKING:\n  import a\nx = 1\nif y: pass\nelse:\n  import c\n"), [] as [&str; 0]);
    }

    #[test]
    fn texts_are_no_statements() {
        let text = "'''\nimport a\n'''\nx = \"\"\"\\\"\"\"\nimport b\n\"\"\"\ny = f(\n'import c',\n)\nz = 'it\\'s'\nimport d\n";
        assert_eq!(seen(text), ["d"]);
        assert_eq!(seen("x = 'not closed\nimport a\n\"\"\" never closed\nimport b"), ["a"]);
    }

    #[test]
    fn a_try_is_read_as_far_as_it_only_imports() {
        let text = "try:\n    import a\n    from b import c\n    x = 1\n    import d\nexcept ImportError:\n    import e\n\
                    import f\ntry: import g\nexcept X: pass\n";
        assert_eq!(seen(text), ["try a", "try b: c", "f"]);
        assert_eq!(seen("try:\n  if x:\n    import a\n  import b\n"), [] as [&str; 0]);
    }

    #[test]
    fn a_handler_that_raises_guards_nothing() {
        assert_eq!(
            seen("try:\n    import a\nexcept ImportError:\n    x = 1\n    raise ImportError(x)\nimport b\n"),
            ["a", "b"]
        );
        assert_eq!(seen("try:\n  import a\nexcept (ValueError, ImportError) as e: raise\n"), ["a"]);
        assert_eq!(seen("try:\n  import a\nexcept:\n  raise\n"), ["a"]);
        for text in [
            "try:\n  import a\nexcept ImportError:\n  if x:\n    raise\n",
            "try:\n  import a\nexcept ImportError:\n  pass\nexcept Exception:\n  raise\n",
            "try:\n  import a\nexcept ValueError:\n  raise\n",
            "try:\n  import a\nexcept ImportError:\n  raised = 1\n",
            "try:\n  import a\nfinally:\n  raise\n",
        ] {
            assert_eq!(seen(text), ["try a"], "{text}");
        }
    }

    #[test]
    fn names_that_a_class_needs_at_once() {
        let used = |text: &str| taken_by_a_class(text.into(), "sympy");
        let text = "class A(NamedTuple):\n    \"\"\"text\"\"\"\n    expr: sympy.Expr\n";
        assert_eq!(used(text).as_deref(), Some("Expr"));
        assert_eq!(used("class A(sympy.Function):\n    pass\n").as_deref(), Some("Function"));
        assert_eq!(used("class A:\n    x = f(sympy.oo)\n").as_deref(), Some("oo"));
        assert_eq!(used("@sympy.cached\ndef f(): pass\n").as_deref(), Some("cached"));
        for text in [
            "from __future__ import annotations\nclass A:\n    expr: sympy.Expr\n",
            "class A:\n    expr: 'sympy.Expr'\n",
            "class A:\n    def f(self):\n        x = sympy.oo\n",
            "class A:\n    x = 1\ndef f():\n    x: sympy.Expr = 1\n",
            "class A:\n    x = my.sympy.oo\n    y = sympy_x.oo\n",
            "if x:\n  class A(sympy.Function):\n    pass\n",
        ] {
            assert_eq!(used(text), None, "{text}");
        }
    }

    #[test]
    fn statements_in_front_of_another_are_counted() {
        let text = "import a\nif x:\n    from torch._C import *\nimport b\n";
        assert_eq!(count_before(text.into(), "", "from torch._C import *"), 1);
        assert_eq!(count_before(text.into(), "", "from torch._D import *"), 2);
    }

    #[test]
    fn hostile_texts_end() {
        assert_eq!(seen(&"(".repeat(100_000)), [] as [&str; 0]);
        assert_eq!(seen("\\"), [] as [&str; 0]);
        assert_eq!(seen("import a\\"), [] as [&str; 0]);
        assert!(seen(&"import a\n".repeat(100_000)).len() <= MAX_STATEMENTS);
        for text in ["'", "\"\"\"", "'\\", "from", "from .", "from . import", "import ,", "#", "\r\r", "try:"] {
            let _ = seen(text);
        }
    }
}
