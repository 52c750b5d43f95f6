//! Tables beside the recipes: lines of fields separated by commas, `#` comments, the first line naming the columns.

/// The rows of a table, each with its fields.
pub fn rows(text: &'static str) -> impl Iterator<Item = Vec<&'static str>> {
    text.lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .skip(1)
        .map(|line| line.split(',').map(str::trim).collect())
}

/// True when a version lies in a range as tables write it: `2.1` (all of 2.1), `2.1-2.4`, `2.10-` (from there on).
pub fn in_range(range: &str, version: (u16, u16, u16)) -> bool {
    let number = |text: &str| -> Option<(u16, u16)> {
        let (major, minor) = text.split_once('.')?;
        Some((major.parse().ok()?, minor.split('.').next()?.parse().ok()?))
    };
    let here = (version.0, version.1);
    match range.split_once('-') {
        None => number(range) == Some(here),
        Some((from, to)) => {
            number(from).is_some_and(|from| from <= here) && (to.is_empty() || number(to).is_some_and(|to| here <= to))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_cover_whole_minor_releases() {
        assert!(in_range("2.1-2.4", (2, 4, 1)));
        assert!(!in_range("2.1-2.4", (2, 5, 0)));
        assert!(in_range("2.10-", (2, 11, 0)));
        assert!(!in_range("2.10-", (2, 9, 1)));
        assert!(in_range("1.13", (1, 13, 1)));
        assert!(!in_range("x", (1, 13, 1)));
    }
}
