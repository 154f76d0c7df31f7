//! Prints the module of a seed of `tests/random.rs`, or of an input of the fuzz targets `generated` and `broken_plan`:
//! `show 708`, `show fuzz/artifacts/generated/crash-...`.

#![allow(clippy::print_stdout, reason = "this is what it is for")]

use memplan::hlo;
use memplan_properties::programs::{decided, of_seed};

fn main() {
    let argument = std::env::args().nth(1).expect("usage: show SEED | show FILE");
    let module = match argument.parse() {
        Ok(seed) => of_seed(seed),
        Err(_) => {
            let bytes = std::fs::read(&argument).expect("the file can be read");
            // The first bytes of the other target break the plan.
            decided(if argument.contains("broken_plan") { &bytes[bytes.len().min(12)..] } else { &bytes })
        }
    };
    print!("{}", hlo::print(&module));
}
