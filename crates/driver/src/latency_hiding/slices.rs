//! The slices that a loop reads of its state, or writes to it, on a stream of their own.

use memplan_ir::{ComputationId, InstructionId, Module, Op};
use rustc_hash::FxHashSet;

/// The bodies of loops that read or write slices.
pub(super) fn bodies_with_slices(module: &Module) -> FxHashSet<ComputationId> {
    let loops = module.instructions.values().filter(|instruction| matches!(instruction.op, Op::While));
    let bodies = loops.map(|instruction| instruction.called[0]);
    bodies
        .filter(|&body| module.computations[body].instructions.iter().any(|&id| moves_slice(module, id)))
        .collect()
}

/// The slices that a computation reads and writes.
pub(super) fn slices_of(module: &Module, computation: ComputationId) -> FxHashSet<InstructionId> {
    let listed = module.computations[computation].instructions.iter().copied();
    listed.filter(|&id| moves_slice(module, id)).collect()
}

/// Whether a kernel that moves a slice writes it.
pub(super) fn writes(module: &Module, id: InstructionId) -> bool {
    let writes = |op: &Op| *op == Op::DynamicUpdateSlice;
    let instruction = &module.instructions[id];
    let is_inside =
        |called: &ComputationId| writes(&module.instructions[module.computations[*called].root].op);
    writes(&instruction.op) || instruction.called.iter().any(is_inside)
}

/// Whether an instruction is a kernel that reads or writes a slice, and computes nothing but where it begins.
fn moves_slice(module: &Module, id: InstructionId) -> bool {
    let instruction = &module.instructions[id];
    let moves = |op: &Op| matches!(op, Op::DynamicSlice { .. } | Op::DynamicUpdateSlice);
    match (&instruction.op, instruction.called.as_slice()) {
        (Op::Fusion(_), &[fused]) => {
            let op = |id: InstructionId| &module.instructions[id].op;
            let is_scalar = |id| module.shape(id).as_array().is_some_and(|array| array.dimensions.is_empty());
            let passes_on =
                |op: &Op| op.is_input() || matches!(op, Op::Bitcast | Op::Reshape { .. } | Op::Slice { .. });
            let inside = &module.computations[fused].instructions;
            inside.iter().filter(|&&id| moves(op(id))).count() == 1
                && inside.iter().all(|&id| moves(op(id)) || is_scalar(id) || passes_on(op(id)))
        }
        (op, _) => moves(op),
    }
}
