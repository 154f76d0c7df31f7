//! Any bytes as HLO text: a module whose text reads back, or an error that can be shown.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| memplan_hlo::fuzzing::check_text(bytes));
