//! Lines that fit: wrapping, and paths cut so that copies stay apart.

use std::collections::HashMap;

use unicode_width::UnicodeWidthStr;

/// Columns that a text takes.
pub fn width(text: &str) -> usize {
    text.width()
}

/// A text padded on the right to some columns.
pub fn pad(text: &str, columns: usize) -> String {
    let mut out = text.to_owned();
    out.extend(std::iter::repeat_n(' ', columns.saturating_sub(width(text))));
    out
}

/// Breaks a text at spaces into lines of at most `columns`; a word that is longer stays whole on a line of its own.
pub fn wrap(text: &str, columns: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let mut line = String::new();
    for word in text.split(' ').filter(|w| !w.is_empty()) {
        if !line.is_empty() && width(&line) + 1 + width(word) > columns {
            lines.push(std::mem::take(&mut line));
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    if !line.is_empty() || lines.is_empty() {
        lines.push(line);
    }
    lines
}

/// Components of all paths together up to which it is worked out what tells them apart: more are read by nobody.
const MAX_COMPONENTS: usize = 100_000;

/// Paths that are read together: each can be cut so that it is still told from the others.
pub struct Paths {
    parts: Vec<Vec<String>>,
    /// For each path the components that tell it from the others.
    keys: Vec<Vec<usize>>,
}

impl Paths {
    /// Looks at what tells the paths apart.
    pub fn new(paths: &[&str]) -> Paths {
        let parts: Vec<Vec<String>> = paths.iter().map(|p| p.split('/').map(str::to_owned).collect()).collect();
        if parts.len() < 2 || parts.iter().map(Vec::len).sum::<usize>() > MAX_COMPONENTS {
            let keys = parts.iter().map(|path| vec![path.len() - 1]).collect();
            return Paths { parts, keys };
        }
        // A tree of the components: a path is told from others wherever more than one thing follows.
        let mut next: Vec<HashMap<Option<&str>, usize>> = vec![HashMap::new()];
        for path in &parts {
            let mut at = 0;
            for part in path {
                let fresh = next.len();
                at = *next[at].entry(Some(part.as_str())).or_insert(fresh);
                if at == fresh {
                    next.push(HashMap::new());
                }
            }
            next[at].insert(None, 0);
        }
        let keys = parts
            .iter()
            .map(|path| {
                let mut at = 0;
                let mut keys = Vec::new();
                for (place, part) in path.iter().enumerate() {
                    if next[at].len() > 1 || place + 1 == path.len() {
                        keys.push(place);
                    }
                    at = next[at].get(&Some(part.as_str())).copied().unwrap_or(0);
                }
                keys
            })
            .collect();
        Paths { parts, keys }
    }

    /// The path in at most `columns`: whole, or without what is on the left and common to all, or also without
    /// components in the middle. What tells the paths apart and the file name always stay.
    pub fn fit(&self, index: usize, columns: usize) -> String {
        let (parts, keys) = (&self.parts[index], &self.keys[index]);
        let whole = parts.join("/");
        if width(&whole) <= columns {
            return whole;
        }
        // From the right, keep as many components as fit beside those that must stay.
        let mut best = render(parts, keys, parts.len() - 1);
        for from in (1..parts.len() - 1).rev() {
            let text = render(parts, keys, from);
            if width(&text) > columns {
                break;
            }
            best = text;
        }
        best
    }

    /// The shortest form.
    pub fn shortest(&self, index: usize) -> String {
        render(&self.parts[index], &self.keys[index], self.parts[index].len() - 1)
    }
}

/// Components from `from` on and the key components before it; `…` for what is left out.
fn render(parts: &[String], keys: &[usize], from: usize) -> String {
    let mut out = String::new();
    let mut last: Option<usize> = None;
    for (at, part) in parts.iter().enumerate() {
        if at < from && !keys.contains(&at) {
            continue;
        }
        let gap = match last {
            // The first component of an absolute path stands behind the root, nothing is left out in front of it.
            None => at > 1 || (at == 1 && !parts[0].is_empty()),
            Some(last) => at > last + 1,
        };
        match last {
            // A single short component takes no more room than the mark for leaving it out.
            Some(last) if at == last + 2 && width(&parts[last + 1]) <= 1 => {
                out.push('/');
                out.push_str(&parts[last + 1]);
            }
            _ if gap => out.push_str(if out.is_empty() { "…" } else { "/…" }),
            _ => {}
        }
        if at > 0 {
            out.push('/');
        }
        out.push_str(part);
        last = Some(at);
    }
    out
}

/// One path alone, cut from the left.
pub fn shorten(path: &str, columns: usize) -> String {
    Paths::new(&[path]).fit(0, columns)
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "/boxes/torch201/lib/python3.11/site-packages/nvidia/cublas/lib/libcublasLt.so.11";
    const B: &str = "/boxes/torch113/lib/python3.11/site-packages/nvidia/cublas/lib/libcublasLt.so.11";

    #[test]
    fn a_path_alone_is_cut_from_the_left() {
        assert_eq!(shorten("/usr/lib/libz.so.1", 40), "/usr/lib/libz.so.1");
        assert_eq!(shorten(A, 40), "…/nvidia/cublas/lib/libcublasLt.so.11");
        assert_eq!(shorten(A, 5), "…/libcublasLt.so.11");
        assert_eq!(shorten("libz.so.1", 3), "libz.so.1");
        assert_eq!(shorten("", 3), "");
        assert_eq!(shorten("/", 3), "/");
    }

    #[test]
    fn copies_stay_apart_however_short_they_get() {
        let both = Paths::new(&[A, B]);
        assert_eq!(both.fit(0, 100), A);
        assert_eq!(both.fit(0, 75), "…/torch201/lib/python3.11/site-packages/nvidia/cublas/lib/libcublasLt.so.11");
        assert_eq!(both.fit(0, 50), "…/torch201/…/nvidia/cublas/lib/libcublasLt.so.11");
        assert_eq!(both.fit(1, 10), "…/torch113/…/libcublasLt.so.11");
        assert_eq!(both.shortest(1), "…/torch113/…/libcublasLt.so.11");
    }

    #[test]
    fn paths_of_different_depth_and_equal_paths_are_cut_too() {
        let paths = Paths::new(&["/a/b/c/libx.so", "/a/libx.so", "/a/libx.so"]);
        assert_eq!(paths.fit(0, 12), "…/b/c/libx.so");
        assert_eq!(paths.fit(1, 3), "…/libx.so");
        let roots = Paths::new(&["/tmp/old/lib/libx.so", "/var/lib/lib/libx.so"]);
        assert_eq!(roots.fit(0, 3), "/tmp/…/libx.so");
    }

    #[test]
    fn lines_break_at_spaces_only() {
        assert_eq!(wrap("aa bb  cc", 5), ["aa bb", "cc"]);
        assert_eq!(wrap("a verylongword b", 6), ["a", "verylongword", "b"]);
        assert_eq!(wrap("", 6), [""]);
    }
}
