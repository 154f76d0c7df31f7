//! Codelets: the code of vertices. Vertices with the same computation and types share one codelet, whose code is on a
//! tile once.

use std::fmt::Write as _;

use memplan_ir::{ComputationId, InstructionId, Module, Op, Shape};
use memplan_memory::{Bytes, TileCosts};
use rustc_hash::FxHashMap;

/// A codelet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Codelet {
    /// Its computation, types included: equal names are one codelet.
    pub(crate) name: String,
    /// Bytes of its code.
    pub(crate) code: Bytes,
}

/// The codelet of an instruction.
pub(crate) fn codelet(module: &Module, id: InstructionId, costs: &TileCosts) -> Codelet {
    let instruction = &module.instructions[id];
    match (&instruction.op, instruction.called.first()) {
        (Op::Fusion(_), Some(&fused)) => of_fusion(module, fused, costs),
        (op, _) => {
            let mut name = op.opcode().to_string();
            for &array in instruction.operands.iter().chain([&id]) {
                name.push_str(&types(module.shape(array)));
            }
            // Computations called per element (a reducer, a comparator) are part of the code.
            let called = instruction.called.iter().map(|&c| contents(module, c));
            let mut operations = 0;
            for (text, n) in called {
                let _ = write!(name, " {text}");
                operations += n;
            }
            let code = costs.code_of(op.opcode()).0 + operations * costs.operation_code.0;
            Codelet { name, code: Bytes(code) }
        }
    }
}

fn of_fusion(module: &Module, fused: ComputationId, costs: &TileCosts) -> Codelet {
    let (name, operations) = contents(module, fused);
    let kernels =
        module.computations[fused].instructions.iter().map(|&id| module.instructions[id].op.opcode());
    let kernel = kernels.map(|opcode| costs.code_of(opcode)).max().unwrap_or(costs.codelet_code);
    Codelet { name, code: Bytes(kernel.0 + operations * costs.operation_code.0) }
}

/// The content of a computation as text, without extents, and its number of operations.
fn contents(module: &Module, computation: ComputationId) -> (String, u64) {
    let instructions = &module.computations[computation].instructions;
    let mut numbers: FxHashMap<InstructionId, usize> = FxHashMap::default();
    let (mut text, mut operations) = (String::new(), 0);
    for (number, &id) in instructions.iter().enumerate() {
        let instruction = &module.instructions[id];
        numbers.insert(id, number);
        let opcode = instruction.op.opcode();
        let _ = write!(text, "{opcode}{}", types(module.shape(id)));
        match &instruction.op {
            // Larger ones are data, and the codelet is the same for all of them.
            Op::Constant(literal) if module.shape(id).as_array().is_some_and(|a| a.rank() == 0) => {
                let _ = write!(text, "={literal:?}");
            }
            Op::Compare { direction, .. } => {
                let _ = write!(text, "={direction:?}");
            }
            _ => {}
        }
        for operand in &instruction.operands {
            let _ = write!(text, ",{}", numbers.get(operand).copied().unwrap_or(usize::MAX));
        }
        text.push(';');
        operations += u64::from(!instruction.op.is_free());
    }
    (text, operations)
}

fn types(shape: &Shape) -> String {
    let mut text = String::new();
    for (_, leaf) in shape.leaves() {
        match leaf.as_array() {
            Some(array) => {
                let _ = write!(text, " {}", array.element_type);
            }
            None => text.push_str(" -"),
        }
    }
    text
}
