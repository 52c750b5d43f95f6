#![no_main]

#[path = "../../tests/support/texts.rs"]
mod texts;

libfuzzer_sys::fuzz_target!(|data: &[u8]| texts::fixture(data));
