//! Any bytes as bytecode of StableHLO or an artifact of `jax.export`: a module that can be written as HLO if it is valid, or an
//! error.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| memplan_stablehlo::fuzzing::check_bytecode(bytes));
