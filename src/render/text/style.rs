//! How loud and how wide: decided by the caller, applied here. The only place that knows of colour.

use colored::{Colorize, control};

/// The look of a report.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Style {
    /// Columns of the screen.
    pub width: usize,
    /// True to colour.
    pub colour: bool,
    /// -1 for `-q` (the verdict alone), 0, and 1 or more for `-v`.
    pub verbosity: i8,
}

/// What a piece of text is, for colour.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ink {
    /// It works.
    Good,
    /// It fails.
    Bad,
    /// Take care.
    Warn,
    /// Worth knowing.
    Note,
    /// The thing that is spoken of.
    Strong,
    /// Less important.
    Faint,
}

/// Narrowest layout: below it lines simply grow longer than the screen.
const NARROWEST: usize = 60;

impl Style {
    /// No colour, 100 columns: what a pipe gets.
    pub fn plain() -> Style {
        Style { width: 100, colour: false, verbosity: 0 }
    }

    /// The width to lay out for, within reason.
    pub fn columns(&self) -> usize {
        self.width.clamp(NARROWEST, 400)
    }

    /// Colours a text, if colour is wanted.
    pub fn paint(&self, ink: Ink, text: &str) -> String {
        if !self.colour || text.is_empty() {
            return text.to_owned();
        }
        // The crate would look at this process's terminal and environment; the caller has decided already. Text that
        // is not wanted in colour never gets here, so the switch stays on for all.
        control::set_override(true);
        match ink {
            Ink::Good => text.green().bold(),
            Ink::Bad => text.red().bold(),
            Ink::Warn => text.yellow().bold(),
            Ink::Note => text.cyan(),
            Ink::Strong => text.bold(),
            Ink::Faint => text.dimmed(),
        }
        .to_string()
    }
}
