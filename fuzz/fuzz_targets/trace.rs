//! Any bytes as a trace of allocations: pools serve it without giving a byte twice, or an error.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| memplan_properties::files::trace(bytes));
