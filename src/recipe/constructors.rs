//! What libraries are known to open by name on their own, as soon as they are loaded, driver or no driver.
//!
//! Observed, not guessed: each row of the table names the versions of the package with which it was seen.

use bstr::{BStr, ByteSlice};

use super::table::{Row, between, rows};
use crate::ld::Image;

const TABLE: &str = include_str!("constructor_dlopens.csv");

/// When a library opens another one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum When {
    /// In its constructors.
    Constructor,
    /// In the initialisation function of `torch._C`, after all constructors.
    ModuleInit,
}

/// One open.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Open {
    /// The name asked for.
    pub name: &'static str,
    /// Where the observation comes from, in words.
    pub note: String,
}

/// What an image opens at a moment, in order. `version_of` gives the installed version of a package: rows for other
/// versions are left out. For a package that lies outside every observed range all rows of that caller count, except
/// for torch itself, whose own libraries change from release to release.
pub fn opened_by(image: &Image, when: When, version_of: &dyn Fn(&str) -> Option<Vec<u64>>) -> Vec<Open> {
    let Some(soname) = image.soname() else { return Vec::new() };
    let of_caller: Vec<Row> = rows(TABLE).filter(|row| matches(row.get("caller"), soname)).collect();
    let fits = |row: &Row| {
        version_of(row.get("package")).is_none_or(|v| between(row.get("package_from"), row.get("package_to"), &v))
    };
    let any_fits = of_caller.iter().any(fits);
    let mut out: Vec<Open> = Vec::new();
    for row in &of_caller {
        let moment = if row.get("when") == "module_init" { When::ModuleInit } else { When::Constructor };
        let counts = if any_fits || row.get("package") == "torch" { fits(row) } else { true };
        if moment == when && counts && out.iter().all(|o| o.name != row.get("name")) {
            out.push(Open { name: row.get("name"), note: note(row) });
        }
    }
    out
}

fn note(row: &Row) -> String {
    let when = if row.get("when") == "module_init" { "when torch._C is initialised" } else { "in its constructors" };
    format!(
        "{} opens this {when} (seen with {} {} to {})",
        row.get("caller"),
        row.get("package"),
        row.get("package_from"),
        row.get("package_to")
    )
}

/// A soname with at most one `*`.
fn matches(pattern: &str, name: &BStr) -> bool {
    match pattern.split_once('*') {
        None => name == pattern,
        Some((before, after)) => {
            name.len() >= before.len() + after.len() && name.starts_with_str(before) && name.ends_with_str(after)
        }
    }
}
