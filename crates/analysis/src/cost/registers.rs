//! Vector registers: the work of the vector units, in units of what they process at once.
//!
//! A kernel is a loop over the registers of the largest value that it evaluates; other values of the same iteration
//! cost little. Each register that is read from or written to memory adds to the cost.

use memplan_ir::{Access, ElementType, InstructionId, Module, Op, Role, Shape};
use memplan_memory::Target;

/// Vector registers that a kernel works on; zero on machines whose description has none.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Registers {
    /// Those of the largest value that it evaluates, each element in a word of its own.
    pub evaluated: f64,
    /// Those that it reads and writes, with elements packed as they are in memory.
    pub accessed: f64,
    /// Whether it only puts whole registers elsewhere, or fills them.
    pub is_move: bool,
}

/// Registers of an instruction that is a kernel by itself, accesses aside.
pub(super) fn of_kernel(module: &Module, target: &Target, id: InstructionId) -> Registers {
    let evaluated = match &module.instructions[id].op {
        // In a fusion these are not kept anywhere; here they are written.
        Op::Broadcast { .. } | Op::Iota { .. } => of_shape(target, module.shape(id)),
        _ => evaluated(module, target, id),
    };
    Registers { evaluated, accessed: 0.0, is_move: is_move(module, id) }
}

/// Registers that an instruction evaluates: those of its result, or of the operand of a reduction; an update counts
/// only the replaced part.
pub(super) fn evaluated(module: &Module, target: &Target, id: InstructionId) -> f64 {
    let instruction = &module.instructions[id];
    let operand = |i: usize| instruction.operands.get(i).map_or(0.0, |&o| of_shape(target, module.shape(o)));
    match &instruction.op {
        Op::Broadcast { .. } | Op::Iota { .. } | Op::Fusion(_) => 0.0,
        Op::DynamicUpdateSlice => operand(1),
        Op::Scatter(_) => operand(instruction.operands.len() - 1),
        op if op.traits().role != Role::Computes => 0.0,
        op if op.traits().access == Access::Reduction => operand(0).max(of_shape(target, module.shape(id))),
        _ => of_shape(target, module.shape(id)),
    }
}

/// Registers of all leaves of a shape, each element in a word of its own.
fn of_shape(target: &Target, shape: &Shape) -> f64 {
    let Some(unit) = &target.vector_unit else { return 0.0 };
    let leaves = shape.leaves();
    let elements = leaves.iter().filter_map(|(_, leaf)| {
        let array = leaf.as_array()?;
        let bits = match array.element_type {
            // A byte each in memory.
            ElementType::Pred => 8,
            other => other.bits().clamp(1, 32),
        };
        Some(target.size_of(leaf).0 as f64 * 8.0 / f64::from(bits))
    });
    elements.sum::<f64>() / unit.register_elements as f64
}

/// Registers that hold some bytes.
pub(super) fn of_bytes(target: &Target, bytes: f64) -> f64 {
    target.vector_unit.map_or(0.0, |unit| bytes / (4.0 * unit.register_elements as f64))
}

/// Whether an instruction only moves rows of words, or fills an array with one number: the minor-most dimension is
/// along the lanes before and after.
fn is_move(module: &Module, id: InstructionId) -> bool {
    let instruction = &module.instructions[id];
    let Some(result) = module.shape(id).as_array() else { return false };
    let Some(operand) = instruction.operands.first().and_then(|&o| module.shape(o).as_array()) else {
        return false;
    };
    let is_words = result.element_type.bits() == 32 && operand.element_type == result.element_type;
    match &instruction.op {
        Op::Broadcast { .. } => is_words && operand.rank() == 0,
        Op::Copy => is_words && operand.minor_to_major().first() == result.minor_to_major().first(),
        _ => false,
    }
}
