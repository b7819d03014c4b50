#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| csalock::untrusted::try_on("postgres", bytes));
