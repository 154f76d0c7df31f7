//! Any bytes as an archive of inputs: literals that are written back, or an error.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| memplan_properties::files::npz(bytes));
