//! The command line: arguments as typed, the plan made of them, the pipeline, exit codes.

pub mod args;
pub mod ask;
pub mod audit;
mod boxes;
pub mod generate;
mod levels;
pub mod loaders;
pub mod screen;
pub mod threads;
mod why;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;

/// Runs the command with this process's arguments.
pub fn main() -> ExitCode {
    let args = match args::Args::try_parse() {
        Ok(args) => args,
        Err(e) => {
            let code = if e.use_stderr() { 2 } else { 0 };
            let _ = e.print();
            return ExitCode::from(code);
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
            eprintln!("ldaudit: {e}");
            if let Some(hint) = e.hint() {
                eprintln!("hint: {hint}");
            }
            ExitCode::from(2)
        }
    }
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
