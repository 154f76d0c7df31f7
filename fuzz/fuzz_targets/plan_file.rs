//! Any bytes as a plan file: what the checker accepts of it runs right.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| memplan_properties::files::plan_file(bytes));
