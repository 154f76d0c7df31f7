//! Any bytes as decisions of the module generator: planned and compiled, the module means what it meant.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| memplan_properties::programs::generated(bytes));
