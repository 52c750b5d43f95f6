//! What a test must not skip: `LDAUDIT_REQUIRE`, a comma-separated list of words that each test file names.

#![allow(dead_code)] // each test binary uses its own part

/// The words of the list.
pub fn all() -> Vec<String> {
    let list = std::env::var("LDAUDIT_REQUIRE").unwrap_or_default();
    list.split(',').map(str::trim).filter(|w| !w.is_empty()).map(str::to_owned).collect()
}

/// True when the absence of something has to be a failure.
pub fn is_required(what: &str) -> bool {
    all().iter().any(|w| w == what)
}

/// Says that a part is skipped and why; a failure when it must not be.
#[track_caller]
pub fn skip(what: &str, why: &str) {
    assert!(!is_required(what), "LDAUDIT_REQUIRE={what}, but {why}");
    eprintln!("skipped: {why}");
}
