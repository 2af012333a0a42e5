#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| drumlin_fuzz::run("logs_files", bytes));
