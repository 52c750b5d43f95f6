//! The `ldaudit` command.

fn main() {}
