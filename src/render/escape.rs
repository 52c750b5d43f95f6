//! Bytes from the audited box as text: no control byte ever reaches a terminal, and bytes that are not UTF-8 stay
//! recognisable as `\xNN`.

use std::borrow::Cow;
use std::fmt::Write;
use std::io;

use bstr::{BStr, ByteSlice};

/// Bytes as text: valid UTF-8 kept, control characters and invalid bytes as `\xNN`.
///
/// Characters that could reorder or hide text on a terminal (bidirectional controls, zero-width, line separators) are
/// escaped too.
pub fn text(bytes: &[u8]) -> String {
    // Nearly every name is printable ASCII.
    if bytes.iter().all(|b| matches!(b, b' '..=b'~')) {
        return String::from_utf8_lossy(bytes).into_owned();
    }
    let mut out = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            if is_unsafe(c) {
                let mut buffer = [0u8; 4];
                for b in c.encode_utf8(&mut buffer).bytes() {
                    let _ = write!(out, "\\x{b:02x}");
                }
            } else {
                out.push(c);
            }
        }
        for b in chunk.invalid() {
            let _ = write!(out, "\\x{b:02x}");
        }
    }
    out
}

/// The same for a JSON string: only bytes that are not UTF-8 are escaped, JSON itself quotes control characters.
pub fn json(bytes: &BStr) -> Cow<'_, str> {
    match bytes.to_str() {
        Ok(text) => Cow::Borrowed(text),
        Err(_) => {
            let mut out = String::new();
            for chunk in bytes.utf8_chunks() {
                out.push_str(chunk.valid());
                for b in chunk.invalid() {
                    let _ = write!(out, "\\x{b:02x}");
                }
            }
            Cow::Owned(out)
        }
    }
}

/// Writes bytes as [`text`] gives them.
pub fn write(out: &mut dyn io::Write, bytes: &[u8]) -> io::Result<()> {
    if bytes.iter().all(|b| matches!(b, b' '..=b'~')) {
        return out.write_all(bytes);
    }
    out.write_all(text(bytes).as_bytes())
}

fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_and_invalid_bytes_are_escaped() {
        assert_eq!(text(b"a\x1b[31mb\xff\n"), "a\\x1b[31mb\\xff\\x0a");
        assert_eq!(text("é\u{202e}".as_bytes()), "é\\xe2\\x80\\xae");
        assert_eq!(json(b"a\xffb".as_bstr()), "a\\xffb");
        assert_eq!(text("\u{9b}31m".as_bytes()), "\\xc2\\x9b31m");
    }
}
