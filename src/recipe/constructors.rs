//! What constructors of known libraries open by name as soon as they are loaded, driver or no driver.

use bstr::BString;

use crate::ld::{Image, OpenFlags};

/// The opens that the constructors of an image make: name, flags, and why.
pub fn opened_by(_image: &Image) -> Vec<(BString, OpenFlags, String)> {
    Vec::new()
}
