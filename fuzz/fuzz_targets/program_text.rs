//! Any bytes as HLO text: a valid module is planned, compiled and proved.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| memplan_properties::programs::text(bytes));
