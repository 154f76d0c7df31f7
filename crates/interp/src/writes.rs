//! The instructions that write memory themselves, and the leaves that they write.

use std::ops::Range;

use memplan_ir::{Effect, InstructionId, Module, Op, Role};

/// Whether an instruction writes memory through a kernel.
pub(crate) fn has_kernel(module: &Module, id: InstructionId) -> bool {
    match &module.instructions[id].op {
        // Tables of tuples are copied by nobody.
        Op::Copy => !module.shape(id).is_tuple(),
        // Data from the host is written when it has arrived.
        op if op.traits().role == Role::Ends => op.traits().effect == Effect::Host,
        op => op.does_work() || op.only_names_memory(),
    }
}

/// The leaves of its result that the kernel of an instruction writes: not those that pass operands on.
pub(crate) fn written_leaves(module: &Module, id: InstructionId) -> Range<usize> {
    let instruction = &module.instructions[id];
    match &instruction.op {
        Op::CopyStart { .. } => 0..1,
        Op::AllGatherStart(_) | Op::CollectivePermuteStart(_) => {
            let n: usize = instruction.operands.iter().map(|&o| module.shape(o).leaf_count()).sum();
            n..2 * n
        }
        _ => 0..module.shape(id).leaf_count(),
    }
}
