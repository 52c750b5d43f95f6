//! The command line: the only room that sees all others, and the only one that starts programs.

pub mod ask;
