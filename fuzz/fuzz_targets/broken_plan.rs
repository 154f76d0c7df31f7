//! Any bytes as a module and a broken plan of it: what the checker accepts runs right.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| memplan_properties::programs::broken_plan(bytes));
