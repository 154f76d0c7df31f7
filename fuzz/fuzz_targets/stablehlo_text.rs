//! Any bytes as text of StableHLO: a module that can be written as HLO if it is valid, or an error within the text.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| memplan_stablehlo::fuzzing::check_text(bytes));
