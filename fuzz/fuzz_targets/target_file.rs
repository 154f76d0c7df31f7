//! Any bytes as a target file: a machine that can be planned for, or an error that says where.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| memplan_properties::files::target(bytes));
