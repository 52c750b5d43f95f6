//! The arguments exactly as typed.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use bstr::BString;
use clap::{Parser, Subcommand, ValueEnum};

/// Output forms.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Format {
    /// One screen: the verdict, the culprit, what else matters.
    Text,
    /// Who needs whom, each edge with its reason.
    Tree,
    /// ldd's own form.
    Ldd,
    /// The report as JSON.
    Json,
    /// The report as one line of JSON.
    Jsonl,
}

/// Levels of findings.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Level {
    /// Something fails.
    Error,
    /// Fragile, or silently not what was installed.
    Warning,
    /// Worth knowing.
    Note,
}

/// When to colour.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Colour {
    /// On a terminal, unless NO_COLOR is set.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// Commands other than an audit. A word is a command only when it stands first: `ldaudit ./generate` and
/// `ldaudit -- generate` audit a file of that name.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Print the man page, shell completions or the schema of the JSON report.
    Generate {
        /// What to print.
        #[command(subcommand)]
        what: Document,
    },
}

/// What `ldaudit generate` prints.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Subcommand)]
pub enum Document {
    /// The man page, in roff.
    Man,
    /// Completions for a shell.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// The JSON schema of the report (`--format json`).
    Schema,
}

/// Says what the dynamic loader does, and why, and how to mend it.
#[derive(Clone, Debug, Parser)]
#[command(name = "ldaudit", version, about, args_conflicts_with_subcommands = true, disable_help_subcommand = true)]
pub struct Args {
    /// A command in place of an audit.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// ELF file, framework (torch) or Python module to audit.
    #[arg(value_name = "TARGET")]
    pub targets: Vec<OsString>,
    /// Explain one library name: who asks for it, every candidate, who wins, what would change it. Or one symbol
    /// (printf, printf@GLIBC_2.2.5, _ZN3c105ErrorD1Ev, c10::Error::what): who refers to it, every definition, who wins.
    #[arg(long, value_name = "NAME")]
    pub why: Option<OsString>,
    /// Python interpreter or environment to look at.
    #[arg(long, value_name = "PATH")]
    pub python: Option<OsString>,
    /// Audit another root directory; nothing of it is executed, no link leaves it.
    #[arg(long, value_name = "DIR")]
    pub root: Option<PathBuf>,
    /// Audit a box that is described in a fixture file instead of this one.
    #[arg(long, value_name = "FILE", conflicts_with = "root")]
    pub fixture: Option<PathBuf>,
    /// Set a variable of the audited environment.
    #[arg(long, value_name = "K=V")]
    pub env: Vec<OsString>,
    /// Remove a variable of the audited environment.
    #[arg(long, value_name = "K")]
    pub unset: Vec<OsString>,
    /// After the target's own steps also dlopen NAME (G: RTLD_GLOBAL, L: RTLD_LAZY).
    #[arg(long, value_name = "[G:][L:]NAME")]
    pub dlopen: Vec<OsString>,
    /// Audit a library as if this program had dlopened it.
    #[arg(long, value_name = "PROGRAM", conflicts_with = "import")]
    pub host: Option<OsString>,
    /// Load other modules first, in order.
    #[arg(long, value_name = "MOD")]
    pub import: Vec<OsString>,
    /// Simulate this loader: glibc:2.31, musl:1.2.
    #[arg(long, value_name = "SPEC")]
    pub loader: Option<String>,
    /// Simulate this processor: x86-64-v2.
    #[arg(long, value_name = "LEVEL")]
    pub cpu: Option<String>,
    /// Take the process to be set-user-ID (AT_SECURE).
    #[arg(long)]
    pub secure: bool,
    /// Rebuild a missing loader cache of the root by ldconfig's rules.
    #[arg(long)]
    pub assume_ldconfig: bool,
    /// Never run anything of the audited box, not even its Python interpreter.
    #[arg(long)]
    pub no_exec: bool,
    /// Also report every symbol binding: who refers to what, and whose definition answers. As text a table of images;
    /// with -v every symbol.
    #[arg(long)]
    pub bindings: bool,
    /// Threads that many targets are audited on [default: one for each processor]. The output is the same.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// Findings at or above this level make the exit status 1.
    #[arg(long, value_name = "LEVEL", value_enum, default_value = "error", conflicts_with = "why")]
    pub deny: Level,
    /// Leave out the findings of a rule (its id or short name).
    #[arg(long, value_name = "RULE", conflicts_with = "why")]
    pub allow: Vec<String>,
    /// Take the findings of a rule for warnings.
    #[arg(long, value_name = "RULE", conflicts_with = "why")]
    pub warn: Vec<String>,
    /// Take the findings of a rule for errors.
    #[arg(long, value_name = "RULE", conflicts_with = "why")]
    pub error: Vec<String>,
    /// Form of the report.
    #[arg(long, value_enum, default_value = "text")]
    pub format: Format,
    /// When to colour the text and tree forms.
    #[arg(long = "color", value_name = "WHEN", value_enum, default_value = "auto")]
    pub colour: Colour,
    /// The verdict alone.
    #[arg(short, long, conflicts_with = "verbose")]
    pub quiet: bool,
    /// Every finding in full, every library with its rule.
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub verbose: u8,
}

impl Args {
    /// The options that the answer depends on, as words of a command line that asks about the same box in the same way.
    pub fn of_the_box(&self) -> Vec<BString> {
        // Every field is named here, so that a new option cannot be forgotten.
        let Args {
            command: _,
            targets: _,
            why: _,
            python,
            root,
            fixture,
            env,
            unset,
            dlopen,
            host,
            import,
            loader,
            cpu,
            secure,
            assume_ldconfig,
            no_exec,
            bindings: _,
            threads: _,
            deny: _,
            allow: _,
            warn: _,
            error: _,
            format: _,
            colour: _,
            quiet: _,
            verbose: _,
        } = self;
        let mut out: Vec<BString> = Vec::new();
        let mut value = |name: &str, value: &OsStr| {
            let value = value.as_bytes();
            // What begins with a dash is a value only behind an equals sign.
            match value.first() {
                None | Some(b'-') => out.push([name.as_bytes(), b"=", value].concat().into()),
                Some(_) => out.extend([name.into(), value.into()]),
            }
        };
        python.iter().for_each(|v| value("--python", v));
        root.iter().for_each(|v| value("--root", v.as_os_str()));
        fixture.iter().for_each(|v| value("--fixture", v.as_os_str()));
        env.iter().for_each(|v| value("--env", v));
        unset.iter().for_each(|v| value("--unset", v));
        host.iter().for_each(|v| value("--host", v));
        import.iter().for_each(|v| value("--import", v));
        dlopen.iter().for_each(|v| value("--dlopen", v));
        loader.iter().for_each(|v| value("--loader", v.as_ref()));
        cpu.iter().for_each(|v| value("--cpu", v.as_ref()));
        let flags = [("--secure", secure), ("--assume-ldconfig", assume_ldconfig), ("--no-exec", no_exec)];
        out.extend(flags.iter().filter(|(_, set)| **set).map(|(name, _)| BString::from(*name)));
        out
    }
}
