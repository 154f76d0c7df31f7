//! Which instructions write memory themselves, and which of their leaves.

use std::ops::Range;

use memplan_ir::{Effect, InstructionId, Module, Op, Role};

use crate::lower::leaf_count;

/// Whether an instruction writes memory through a kernel.
pub(crate) fn has_kernel(module: &Module, id: InstructionId) -> bool {
    let op = &module.instructions[id].op;
    let traits = op.traits();
    match traits.role {
        Role::Provides | Role::PassesOn | Role::Regroups | Role::Orders | Role::Calls | Role::Continues => {
            false
        }
        Role::Queries => true,
        // Tables of tuples are copied by nobody.
        Role::Computes => !matches!(op, Op::Copy) || !module.shape(id).is_tuple(),
        Role::Starts => !op.runs_callees(),
        Role::Ends => traits.effect == Effect::Host,
    }
}

/// Which leaves of its result the kernel of an instruction writes: not those that pass operands on.
pub(crate) fn written_leaves(module: &Module, id: InstructionId) -> Range<usize> {
    let instruction = &module.instructions[id];
    match &instruction.op {
        Op::CopyStart { .. } => 0..1,
        Op::AllGatherStart(_) | Op::CollectivePermuteStart(_) => {
            let n: usize = instruction.operands.iter().map(|&o| leaf_count(module.shape(o))).sum();
            n..2 * n
        }
        _ => 0..leaf_count(module.shape(id)),
    }
}
