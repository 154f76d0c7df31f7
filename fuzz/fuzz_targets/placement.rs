//! Any bytes as a placement file: it can be had, or an error that says where.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| memplan_properties::files::placement(bytes));
