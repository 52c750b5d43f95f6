//! Tables beside the recipes: fields separated by commas, `#` comments, the first line naming the columns.

/// One row; fields by column name.
#[derive(Clone, Debug)]
pub struct Row {
    columns: &'static str,
    line: &'static str,
}

impl Row {
    /// The field of a column; empty when the table has no such column.
    pub fn get(&self, column: &str) -> &'static str {
        let index = self.columns.split(',').position(|c| c.trim() == column);
        index.and_then(|i| self.line.split(',').nth(i)).unwrap_or_default().trim()
    }
}

/// The rows of a table.
pub fn rows(text: &'static str) -> impl Iterator<Item = Row> {
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let columns = lines.next().unwrap_or_default();
    lines.map(move |line| Row { columns, line })
}

/// The numbers of a version: `12.1.3.1`. Letters end a part.
pub fn numbers(text: &str) -> Vec<u64> {
    text.split('.')
        .map(|part| part.chars().take_while(char::is_ascii_digit).collect::<String>().parse().unwrap_or(0))
        .collect()
}

/// True when a version lies between two bounds, both inclusive. A bound covers everything that begins with it: `2.4` all
/// of 2.4. An empty bound is open.
pub fn between(from: &str, to: &str, version: &[u64]) -> bool {
    let cut = |bound: &[u64]| version.iter().copied().chain(std::iter::repeat(0)).take(bound.len()).collect::<Vec<_>>();
    let above = from.is_empty() || {
        let from = numbers(from);
        cut(&from) >= from
    };
    let below = to.is_empty() || {
        let to = numbers(to);
        cut(&to) <= to
    };
    above && below
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_cover_what_begins_with_them() {
        assert!(between("2.1", "2.4", &[2, 4, 1]));
        assert!(!between("2.1", "2.4", &[2, 5, 0]));
        assert!(between("2.10", "", &[2, 11, 0]));
        assert!(!between("2.10", "", &[2, 9, 1]));
        assert!(between("1.13.1", "1.13.1", &[1, 13, 1]));
        assert!(!between("1.13.1", "1.13.1", &[1, 13, 0]));
        assert!(between("12.1.3.1", "12.6.4.1", &[12, 4, 5, 8]));
    }

    #[test]
    fn fields_are_found_by_column() {
        let row = rows("# c\na,b\n1,2\n").next().expect("row");
        assert_eq!((row.get("b"), row.get("x")), ("2", ""));
    }
}
