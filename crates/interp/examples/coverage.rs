//! Prints how many of the cases in `tests/opcodes` have each opcode, as a table.

#![allow(clippy::print_stdout, reason = "the table is the result")]

use std::collections::BTreeMap;
use std::error::Error;

use memplan_ir::Opcode;
use strum::IntoEnumIterator;

fn main() -> Result<(), Box<dyn Error>> {
    let mut cases: BTreeMap<String, usize> = BTreeMap::new();
    for file in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/opcodes"))? {
        let text = std::fs::read_to_string(file?.path())?;
        for case in text.split("HloModule ").skip(1) {
            let module = memplan_hlo::parse(&format!("HloModule {case}"))?;
            let mut opcodes: Vec<String> =
                module.instructions.values().map(|i| i.opcode().to_string()).collect();
            opcodes.sort();
            opcodes.dedup();
            opcodes.into_iter().for_each(|opcode| *cases.entry(opcode).or_default() += 1);
        }
    }
    println!("| opcode | cases against XLA |\n|---|---:|");
    for opcode in Opcode::iter().map(|opcode| opcode.to_string()) {
        println!("| {opcode} | {} |", cases.get(&opcode).copied().unwrap_or(0));
    }
    Ok(())
}
