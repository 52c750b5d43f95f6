//! The command line: arguments as typed, the plan made of them, the pipeline, exit codes.

pub mod args;
pub mod ask;
pub mod audit;
mod boxes;
pub mod generate;
mod levels;
pub mod loaders;
mod places;
pub mod screen;
pub mod threads;
mod usage;
mod why;
mod why_symbol;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;

/// Runs the command with this process's arguments.
pub fn main() -> ExitCode {
    let args = match args::Args::try_parse() {
        Ok(args) => args,
        // Help and version are asked for; everything else is bad usage.
        Err(e) if !e.use_stderr() => {
            let _ = e.print();
            return ExitCode::SUCCESS;
        }
        Err(e) => {
            complain(&usage(&e));
            return ExitCode::from(audit::UNDONE);
        }
    };
    let mut out = io::BufWriter::with_capacity(64 * 1024, io::stdout().lock());
    let result = match args.command {
        Some(args::Command::Generate { what }) => generate::write(what, &mut out).map(|()| 0).map_err(Error::from),
        None => audit::run(&args, &mut out),
    };
    let result = result.and_then(|code| out.flush().map(|()| code).map_err(Error::from));
    match result {
        Ok(code) => ExitCode::from(code),
        Err(Error::Output(e)) if e.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(e) => {
            complain(&e);
            ExitCode::from(audit::UNDONE)
        }
    }
}

/// One line, and a hint where there is one. No byte of a name reaches the terminal as it is, and a closed standard error is
/// no reason to fail otherwise.
fn complain(error: &Error) {
    let shown = |text: &str| crate::render::escape::text(text.as_bytes());
    let mut lines = format!("ldaudit: {}\n", shown(&error.to_string()));
    if let Some(hint) = error.hint() {
        lines.push_str(&format!("hint: {}\n", shown(hint)));
    }
    let _ = io::stderr().write_all(lines.as_bytes());
}

/// Bad usage in the same form as every other error: what clap says in its first line, and the best of the rest as hint.
fn usage(error: &clap::Error) -> Error {
    let text = error.render().to_string();
    let mut lines = text.lines().map(str::trim).filter(|l| !l.is_empty());
    let first = lines.next().unwrap_or("bad usage");
    let first = first.strip_prefix("error: ").unwrap_or(first).trim_end_matches(':');
    let mut hint = None;
    for line in lines {
        let values = line.strip_prefix("[possible values: ").and_then(|l| l.strip_suffix(']'));
        let tip = values.map(|v| format!("use one of {v}")).or_else(|| line.strip_prefix("tip: ").map(str::to_owned));
        hint = hint.or(tip);
    }
    Error::with_hint(quoted(first), hint.map_or_else(|| "`ldaudit --help` lists what there is".into(), |h| quoted(&h)))
}

/// Backticks for clap's quotes.
fn quoted(text: &str) -> String {
    text.replace('\'', "`")
}

/// Why an audit could not be done: exit status 2.
#[derive(Debug)]
pub enum Error {
    /// Writing the report failed.
    Output(io::Error),
    /// Anything else: one lower-case line that names the path and the act, and a hint where one thing would help.
    Message {
        /// The line.
        text: String,
        /// What to try.
        hint: Option<String>,
    },
}

impl Error {
    /// An error with a message.
    pub fn new(text: impl Into<String>) -> Error {
        Error::Message { text: text.into(), hint: None }
    }

    /// An error with a message and a hint.
    pub fn with_hint(text: impl Into<String>, hint: impl Into<String>) -> Error {
        Error::Message { text: text.into(), hint: Some(hint.into()) }
    }

    fn hint(&self) -> Option<&str> {
        match self {
            Error::Message { hint, .. } => hint.as_deref(),
            Error::Output(_) => None,
        }
    }
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Error::Output(e) => write!(f, "cannot write the report: {e}"),
            Error::Message { text, .. } => f.write_str(text),
        }
    }
}

impl From<io::Error> for Error {
    fn from(e: io::Error) -> Error {
        Error::Output(e)
    }
}
