//! The slices that a loop reads of its state on a stream of their own.

use memplan_ir::{ComputationId, InstructionId, Module, Op};
use rustc_hash::FxHashSet;

/// The bodies of loops that read slices.
pub(super) fn bodies_with_slices(module: &Module) -> FxHashSet<ComputationId> {
    let loops = module.instructions.values().filter(|instruction| matches!(instruction.op, Op::While));
    let bodies = loops.map(|instruction| instruction.called[0]);
    bodies
        .filter(|&body| module.computations[body].instructions.iter().any(|&id| has_slice(module, id)))
        .collect()
}

/// The slices that a computation reads.
pub(super) fn slices_of(module: &Module, computation: ComputationId) -> FxHashSet<InstructionId> {
    let listed = module.computations[computation].instructions.iter().copied();
    listed.filter(|&id| reads_slice(module, id)).collect()
}

/// Whether an instruction reads a slice, perhaps inside of a kernel. Which kernels XLA keeps slices apart from is not known
/// for each; in a loop that reads some, one of them usually is.
fn has_slice(module: &Module, id: InstructionId) -> bool {
    let slices = |&id: &InstructionId| matches!(module.instructions[id].op, Op::DynamicSlice { .. });
    let instruction = &module.instructions[id];
    let is_kernel = matches!(instruction.op, Op::Fusion(_));
    slices(&id) || is_kernel && module.computations[instruction.called[0]].instructions.iter().any(slices)
}

/// Whether an instruction is a kernel that reads a slice, and computes nothing but where it begins.
fn reads_slice(module: &Module, id: InstructionId) -> bool {
    let instruction = &module.instructions[id];
    match (&instruction.op, instruction.called.as_slice()) {
        (Op::DynamicSlice { .. }, _) => true,
        (Op::Fusion(_), &[fused]) => {
            let slices = |id| matches!(module.instructions[id].op, Op::DynamicSlice { .. });
            let is_scalar = |id| module.shape(id).as_array().is_some_and(|array| array.dimensions.is_empty());
            let passes_on = |op: &Op| op.is_input() || matches!(op, Op::Bitcast | Op::Reshape { .. });
            let inside = &module.computations[fused].instructions;
            inside.iter().filter(|&&id| slices(id)).count() == 1
                && inside
                    .iter()
                    .all(|&id| slices(id) || is_scalar(id) || passes_on(&module.instructions[id].op))
        }
        _ => false,
    }
}
