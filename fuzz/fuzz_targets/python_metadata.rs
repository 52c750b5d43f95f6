//! See `tests/support/targets.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ldaudit_fuzz::run("python_metadata", data));
