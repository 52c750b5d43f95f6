//! Screens beside the ones that are drawn below `tests/screens`.

use std::path::Path;

use bstr::{BStr, ByteSlice};

/// Compares a screen with the drawn one; `LDAUDIT_BLESS` draws it anew instead. Returns what differs.
pub fn differs(name: &str, seen: &BStr) -> Option<String> {
    let drawn = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/screens").join(format!("{name}.text"));
    if std::env::var_os("LDAUDIT_BLESS").is_some() {
        std::fs::write(&drawn, seen).expect("screen written");
        return None;
    }
    let expected = std::fs::read(&drawn).unwrap_or_default();
    (seen != expected.as_bstr()).then(|| format!("{name}\n--- expected\n{}\n--- seen\n{seen}", expected.as_bstr()))
}
