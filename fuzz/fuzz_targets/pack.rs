//! Any bytes are a small packing problem, on which the solver agrees with brute force, and a table or an error.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    memplan_pack::fuzz::check(bytes);
});
