//! Any bytes as a protobuf module: one that is written back to the same bytes, or an error.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| memplan_hlo::fuzzing::check_proto(bytes));
