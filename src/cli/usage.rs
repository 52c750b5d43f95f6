//! Use of options that makes no sense: refused, so that no answer is given to another question than the one asked.

use bstr::{BString, ByteSlice};

use super::Error;
use super::args::{Args, Format};
use super::audit::{Plan, Subject, bytes, quoted};
use crate::render::escape;
use crate::system::Environment;

/// Does what `--env` and `--unset` say.
pub fn change_environment(args: &Args, env: &mut Environment) -> Result<(), Error> {
    let mut set: Vec<BString> = Vec::new();
    for assignment in &args.env {
        let text = bytes(assignment);
        let shown = escape::text(&text);
        match text.split_once_str("=") {
            None => return Err(Error::new(format!("`--env {shown}` has no `=`"))),
            Some((b"", _)) => return Err(Error::new(format!("`--env {shown}` names no variable"))),
            Some((name, value)) => {
                env.set(name, value);
                set.push(name.into());
            }
        }
    }
    for name in &args.unset {
        let name = bytes(name);
        let shown = escape::text(&name);
        if name.is_empty() || name.contains(&b'=') {
            return Err(Error::new(format!("`--unset {shown}` names no variable")));
        }
        if set.contains(&name) {
            return Err(Error::new(format!("`--env {shown}=...` and `--unset {shown}` contradict each other")));
        }
        env.unset(name);
    }
    Ok(())
}

/// Refuses options that say nothing to a target: an answer without them would be one to another question.
pub fn check_use(args: &Args, plans: &[Plan]) -> Result<(), Error> {
    for plan in plans {
        let name = quoted(&plan.target.name);
        match plan.subject {
            Subject::File { .. } | Subject::Hosted { .. } if !args.import.is_empty() => {
                return Err(Error::with_hint(
                    format!("`--import` is for Python targets, and {name} is a file"),
                    "name the module that it belongs to",
                ));
            }
            // `--why` looks for copies in the environment.
            Subject::File { .. } | Subject::Hosted { .. }
                if args.python.is_some() && args.why.is_none() && plans.iter().all(|p| p.python.is_none()) =>
            {
                return Err(Error::with_hint(
                    format!("`--python` is for Python targets, and {name} is a file"),
                    format!(
                        "`ldaudit MODULE --dlopen {}` audits it as Python opens it behind what MODULE loads (`torch`, for an \
                         extension of torch)",
                        escape::text(&plan.target.name)
                    ),
                ));
            }
            Subject::Python { .. } if args.host.is_some() => {
                return Err(Error::with_hint(
                    format!("`--host` is for libraries, and {name} is a Python module"),
                    "Python opens it; another interpreter is named with `--python PATH`",
                ));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Refuses forms that would leave out what is asked for.
pub fn check_form(args: &Args) -> Result<(), Error> {
    // One report is one JSON value; two in a row would be none.
    if args.format == Format::Json && args.targets.len() > 1 && args.why.is_none() {
        return Err(Error::with_hint(
            "`--format json` is one report, and several targets are named",
            "use `--format jsonl`, one report a line",
        ));
    }
    let holds = match args.format {
        Format::Json | Format::Jsonl => true,
        Format::Text => args.why.is_none(),
        Format::Tree | Format::Ldd => false,
    };
    if args.bindings && !holds {
        return Err(Error::with_hint(
            "this form does not hold what `--bindings` asks for",
            "use `--format json`, or `--format text` without `--why`",
        ));
    }
    Ok(())
}
