//! Checks that every kernel has the scratch that it reserves on this machine.
//!
//! This file has its own list of instructions that are not kernels, so that the plan and its proof cannot forget the
//! same kernel. The walk checks that nothing else is in a kernel's scratch while it runs.

use memplan_ir::{ComputationId, InstructionId, Op, Opcode, SecondaryMap};
use memplan_memory::{Bytes, MemorySpace};

use crate::Violation;
use crate::facts::{Facts, Report};

pub(crate) fn check_kernel_scratch(facts: &Facts<'_>, report: &mut Report) {
    let spaces = facts.target.spaces.iter();
    let reserving: Vec<&MemorySpace> = spaces.filter(|space| space.kernel_scratch > Bytes::ZERO).collect();
    if reserving.is_empty() {
        return;
    }
    let is_run = run_in_order(facts);
    // Instructions that are in no computation do not run.
    let computations = facts.module.computations.iter().filter(|&(id, _)| is_run[id]);
    for &id in computations.flat_map(|(_, computation)| &computation.instructions) {
        let instruction = &facts.module.instructions[id];
        if !is_kernel(&instruction.op) {
            continue;
        }
        let arrays = instruction.operands.iter().chain([&id]).map(|&it| array_bytes(facts, it));
        let touched = Bytes(arrays.fold(0, u64::saturating_add));
        for space in &reserving {
            let needed = space.scratch_of_kernel(touched);
            let found = facts.plan.scratch_in(id, space.id).map_or(Bytes::ZERO, |slice| slice.size);
            if found < needed {
                let at = facts.place_of(id);
                report.add(Violation::TooLittleScratch { at, space: space.id, needed, found });
            }
        }
    }
}

/// Computations that the entry runs itself or through control flow, as opposed to beside it or within kernels.
fn run_in_order(facts: &Facts<'_>) -> SecondaryMap<ComputationId, bool> {
    let mut is_run = SecondaryMap::new();
    let mut open = vec![facts.module.entry];
    while let Some(computation) = open.pop() {
        if is_run[computation] {
            continue;
        }
        is_run[computation] = true;
        let instructions = facts.module.computations[computation].instructions.iter();
        for &id in instructions {
            let instruction = &facts.module.instructions[id];
            if matches!(instruction.op, Op::While | Op::Conditional | Op::Call { .. }) {
                open.extend(&instruction.called);
            }
        }
    }
    is_run
}

/// Bytes of the arrays in a result; scalars are in registers.
fn array_bytes(facts: &Facts<'_>, id: InstructionId) -> u64 {
    let mut sum: u64 = 0;
    facts.module.shape(id).for_each_subshape(|_, part| {
        let is_array = part.as_array().is_some_and(|array| array.rank() != 0);
        sum = sum.saturating_add(if is_array { facts.target.size_of(part).0 } else { 0 });
    });
    sum
}

/// Everything but names for bytes that are there, control flow, transfers, and what other devices take part in.
fn is_kernel(op: &Op) -> bool {
    use Opcode::*;
    match op.opcode() {
        Parameter | Constant | Bitcast | Domain | OptimizationBarrier | AddDependency | GetTupleElement
        | Tuple | AfterAll | GetDimensionSize | PartitionId | ReplicaId => false,
        Call | Conditional | While => false,
        AsyncStart | AsyncUpdate | AsyncDone | CopyStart | CopyDone => false,
        Infeed | Outfeed | Send | SendDone | Recv | RecvDone => false,
        AllGather
        | AllGatherStart
        | AllGatherDone
        | AllReduce
        | AllReduceStart
        | AllReduceDone
        | AllToAll
        | CollectiveBroadcast
        | CollectivePermute
        | CollectivePermuteStart
        | CollectivePermuteDone
        | RaggedAllToAll
        | ReduceScatter => false,
        CustomCall => !op.only_names_memory(),
        _ => true,
    }
}
