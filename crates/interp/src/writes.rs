//! Which instructions write memory themselves, and which of their leaves.

use std::ops::Range;

use memplan_ir::{InstructionId, Module, Op};

use crate::lower::leaf_count;

/// Whether an operation's called computations are run step by step.
pub(crate) fn runs_callees(op: &Op) -> bool {
    matches!(op, Op::Call { .. } | Op::While | Op::Conditional | Op::AsyncStart(_))
}

/// Whether an instruction writes memory through a kernel.
pub(crate) fn has_kernel(module: &Module, id: InstructionId) -> bool {
    match &module.instructions[id].op {
        op if runs_callees(op) => false,
        Op::Copy => !module.shape(id).is_tuple(),
        Op::Parameter { .. }
        | Op::Constant(_)
        | Op::Tuple
        | Op::GetTupleElement { .. }
        | Op::Bitcast
        | Op::OptimizationBarrier
        | Op::Domain(_)
        | Op::AddDependency
        | Op::AfterAll
        | Op::AsyncUpdate(_)
        | Op::AsyncDone(_)
        | Op::AllReduceDone(_)
        | Op::AllGatherDone(_)
        | Op::CollectivePermuteDone(_)
        | Op::CopyDone => false,
        _ => true,
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
