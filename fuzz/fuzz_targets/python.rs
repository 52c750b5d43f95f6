#![no_main]

#[path = "../../tests/support/texts.rs"]
mod texts;

// The first byte chooses which file of the environment the rest is.
libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    if let Some((kind, data)) = data.split_first() {
        texts::python(*kind, data);
    }
});
