//! A fingerprint of a module's computation, so that a plan for one module is not used for another.

use std::fmt::{self, Write};
use std::hash::{Hash, Hasher};

use rustc_hash::{FxHashMap, FxHasher};

use crate::{ArrayLiteral, Literal, LiteralData, Module, Op};

/// A 64-bit fingerprint of computations, instructions, operations, shapes, aliasing and order.
///
/// Notes that change nothing about the program (metadata, backend configs, shardings) do not count. Equal on every
/// machine; not cryptographic.
pub fn fingerprint(module: &Module) -> u64 {
    let mut hash = HashWriter(FxHasher::default());
    module.name.hash(&mut hash.0);
    module.is_scheduled.hash(&mut hash.0);
    module.computations[module.entry].name.hash(&mut hash.0);
    module.config.input_output_alias.hash(&mut hash.0);
    for donor in &module.config.buffer_donors {
        (donor.parameter, &donor.index).hash(&mut hash.0);
    }
    let mut local = FxHashMap::default();
    for computation in module.computations.values() {
        computation.name.hash(&mut hash.0);
        local.clear();
        for (i, &id) in computation.instructions.iter().enumerate() {
            local.insert(id, i);
            let instruction = &module.instructions[id];
            instruction.name.hash(&mut hash.0);
            module.shape_of(instruction.shape).hash(&mut hash.0);
            hash_op(&instruction.op, &mut hash);
            for operand in instruction.operands.iter().chain(&instruction.control_predecessors) {
                local.get(operand).hash(&mut hash.0);
            }
            for &called in &instruction.called {
                module.computations[called].name.hash(&mut hash.0);
            }
        }
        local.get(&computation.root).hash(&mut hash.0);
    }
    hash.0.finish()
}

fn hash_op(op: &Op, hash: &mut HashWriter) {
    match op {
        Op::Constant(literal) => hash_literal(literal, hash),
        other => write!(hash, "{other:?}").expect("hashing does not fail"),
    }
}

fn hash_literal(literal: &Literal, hash: &mut HashWriter) {
    match literal {
        Literal::Array(ArrayLiteral { data: LiteralData::Bytes(bytes), .. }) => bytes.hash(&mut hash.0),
        Literal::Array(ArrayLiteral { data: LiteralData::Elided, .. }) => 1u8.hash(&mut hash.0),
        Literal::Tuple(elements) => elements.iter().for_each(|element| hash_literal(element, hash)),
        Literal::Token => 2u8.hash(&mut hash.0),
    }
}

/// Hashes written text, so that the debug form of an operation needs no string.
struct HashWriter(FxHasher);

impl Write for HashWriter {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        self.0.write(s.as_bytes());
        Ok(())
    }
}
