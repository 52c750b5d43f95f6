//! What the terminal is like: width and colour of the text forms.

use std::io::IsTerminal;

use super::args::{Args, Colour};
use crate::render::text::Style;

/// Columns when nothing tells: a pipe, a file.
const USUAL_WIDTH: usize = 100;

/// The look that the arguments, the environment and the terminal ask for.
pub fn style(args: &Args) -> Style {
    let set = |name: &str| std::env::var_os(name).is_some_and(|v| !v.is_empty());
    let colour = match args.colour {
        Colour::Always => true,
        Colour::Never => false,
        // NO_COLOR counts when it is set to anything (no-color.org).
        Colour::Auto => !set("NO_COLOR") && std::env::var_os("TERM").is_none_or(|t| t != "dumb") && is_terminal(),
    };
    let verbosity = if args.quiet { -1 } else { i8::try_from(args.verbose).unwrap_or(i8::MAX) };
    Style { width: width(), colour, verbosity }
}

fn is_terminal() -> bool {
    std::io::stdout().is_terminal()
}

/// COLUMNS, the terminal's own width, or the usual one.
fn width() -> usize {
    let given = std::env::var("COLUMNS").ok().and_then(|c| c.parse::<usize>().ok()).filter(|n| *n > 0);
    let asked = || {
        let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
        Some(usize::from(size.ws_col)).filter(|n| *n > 0)
    };
    given.or_else(asked).unwrap_or(USUAL_WIDTH)
}
