//! Documents made from the table of arguments: the man page and shell completions; and the schema of the JSON report.
//!
//! `man/ldaudit.1` is the output of `ldaudit generate man`, and a test compares the two.

use std::io::{self, Write};

use clap::CommandFactory;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, italic, roman};

use super::args::{Args, Document};

/// The JSON schema of the report, as it is in the source tree.
pub const SCHEMA: &str = include_str!("../../fixtures/schema/report-1.json");

/// Writes a document.
pub fn write(what: Document, out: &mut dyn Write) -> io::Result<()> {
    match what {
        Document::Man => man(out),
        Document::Completions { shell } => {
            // Into memory first: this generator panics when its output is closed.
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut Args::command(), "ldaudit", &mut text);
            out.write_all(&text)
        }
        Document::Schema => out.write_all(SCHEMA.as_bytes()),
    }
}

/// A paragraph of the description.
const DESCRIPTION: &[&str] = &[
    "Simulates what the dynamic loader (ld.so of glibc, or musl's) does with a program, a library or a framework of a \
     Python environment: which file each name resolves to, by which rule, which copies were passed over, and what \
     fails, in the loader's own words. Nothing is loaded; the only program that is started is the Python interpreter, \
     to ask for its paths, and not even that with --no-exec or --root.",
    "A TARGET is a file when it contains a slash or names an existing one, else a framework (torch), else a Python \
     module of the chosen environment. Without a TARGET every known framework of the environment is audited. A word \
     is a command only when it stands first; write ./generate or -- generate for a file of that name.",
    "--why takes a NAME for a library when it holds .so or a slash, and for a symbol when it has a version behind @, \
     begins with _Z, or is a C++ name (:: or a parameter list in it). A plain word is taken for a symbol when a file \
     knows one of that name. Of a C++ name without parameters all overloads are told.",
];

/// Exit statuses with their meaning.
const EXIT_STATUS: &[(&str, &str)] = &[
    ("0", "the audit was done; no finding is at or above the level of --deny (error)"),
    ("1", "the audit was done and there are such findings: as a rule, the target fails"),
    ("2", "the audit could not be done: bad usage, unreadable target. One line on standard error says what and where."),
];

/// Variables that change what ldaudit itself does, or whose value is part of the audited environment.
const ENVIRONMENT: &[(&str, &str)] = &[
    (
        "LD_LIBRARY_PATH, LD_PRELOAD, LD_HWCAP_MASK, GLIBC_TUNABLES, ...",
        "belong to the audited environment and mean what they mean to the loader. --env and --unset change them for the \
         audit alone.",
    ),
    ("VIRTUAL_ENV, CONDA_PREFIX", "name the Python environment when --python does not"),
    ("PATH", "is searched for python3, then python, when nothing else names an interpreter"),
    ("PYTHONPATH, PYTHONHOME, PYTHONNOUSERSITE, ...", "mean what they mean to the interpreter"),
    ("NO_COLOR", "set to anything: no colour"),
    ("COLUMNS", "width of the text form"),
];

/// Files that are read.
const FILES: &[(&str, &str)] = &[
    ("/etc/ld.so.cache", "the loader's cache, read as the loader reads it"),
    ("/etc/ld.so.preload", "libraries that are preloaded into every program"),
    ("/etc/ld-musl-ARCH.path", "directories of musl's loader"),
    (
        "the loader that PT_INTERP names",
        "its built-in directories, $LIB, hwcaps names and release are read from the file",
    ),
];

/// Commands worth knowing.
const EXAMPLES: &[(&str, &str)] = &[
    ("ldaudit torch", "what `import torch` loads in the active environment, and what stops it"),
    ("ldaudit --why libcudnn.so.9 torch", "who asks for one library, every copy of it, and which one wins"),
    ("ldaudit --why cublasLtCreate@libcublasLt.so.12 torch", "who refers to one symbol, and whose definition answers"),
    ("ldaudit --env LD_LIBRARY_PATH=/opt/cuda/lib64 torch", "the same under another environment"),
    ("ldaudit --format ldd /usr/bin/*", "many files at once, in the form of ldd"),
    ("ldaudit --root /mnt/image /usr/bin/app", "a program of another root, of which nothing is run"),
];

fn man(out: &mut dyn Write) -> io::Result<()> {
    let page = Man::new(Args::command()).manual("User Commands");
    page.render_title(out)?;
    page.render_name_section(out)?;
    let mut roff = Roff::default();
    roff.control("SH", ["SYNOPSIS"]);
    for (n, line) in ["[OPTION]... [TARGET]...", "[OPTION]... --why NAME [TARGET]...", "COMMAND ..."].iter().enumerate()
    {
        if n > 0 {
            roff.control("br", []);
        }
        roff.text([bold("ldaudit"), roman(" "), italic(*line)]);
    }
    roff.control("SH", ["DESCRIPTION"]);
    for (n, paragraph) in DESCRIPTION.iter().enumerate() {
        if n > 0 {
            roff.control("PP", []);
        }
        roff.text([roman(*paragraph)]);
    }
    roff.to_writer(out)?;
    page.render_options_section(out)?;

    let mut roff = Roff::default();
    roff.control("SH", ["COMMANDS"]);
    for command in Args::command().get_subcommands() {
        commands(&mut roff, "ldaudit", command);
    }
    list(&mut roff, "EXIT STATUS", EXIT_STATUS);
    list(&mut roff, "ENVIRONMENT", ENVIRONMENT);
    list(&mut roff, "FILES", FILES);
    list(&mut roff, "EXAMPLES", EXAMPLES);
    roff.control("SH", ["SEE ALSO"]);
    roff.text([bold("ld.so"), roman("(8), "), bold("ldd"), roman("(1), "), bold("dlopen"), roman("(3)")]);
    roff.to_writer(out)
}

/// A command's leaves, each with its whole line.
fn commands(roff: &mut Roff, before: &str, command: &clap::Command) {
    let mut line = format!("{before} {}", command.get_name());
    for argument in command.get_positionals() {
        let name = argument.get_value_names().and_then(<[_]>::first).map_or("ARG", |n| n.as_str());
        line.push_str(&format!(" {name}"));
    }
    if command.has_subcommands() {
        for inner in command.get_subcommands() {
            commands(roff, &line, inner);
        }
        return;
    }
    roff.control("TP", []);
    roff.text([bold(line)]);
    let mut text = command.get_about().map(ToString::to_string).unwrap_or_default();
    for argument in command.get_positionals() {
        let values: Vec<String> = argument.get_possible_values().iter().map(|v| v.get_name().to_owned()).collect();
        if !values.is_empty() {
            text.push_str(&format!(": {}", values.join(", ")));
        }
    }
    roff.text([roman(text)]);
}

fn list(roff: &mut Roff, heading: &str, entries: &[(&str, &str)]) {
    roff.control("SH", [heading]);
    for (term, text) in entries {
        roff.control("TP", []);
        roff.text([bold(*term)]);
        roff.text([roman(*text)]);
    }
}
