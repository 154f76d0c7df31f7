//! Kernel scratch: which instructions are kernels on the cores, and the memory that each reserves while it runs.
//!
//! The target's rule ([`MemorySpace::scratch_of_kernel`]) gives the bytes per kernel.

use memplan_ir::{ComputationId, Effect, InstructionId, Module, Op, Role, SecondaryMap};
use memplan_memory::{Bytes, MemorySpace, MemorySpaceId, Target};

/// Bytes of one memory that the kernel of an instruction reserves while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelScratch {
    /// The instruction.
    pub instruction: InstructionId,
    /// The memory.
    pub space: MemorySpaceId,
    /// At least one.
    pub size: Bytes,
}

/// The reservations of kernels on a target, in the order of computations and instructions: for every instruction that
/// reads or writes arrays on the cores, in the entry, in loops, in branches or in calls. Not for transfers,
/// collectives, and the computations of asynchronous calls.
///
/// Takes time linear in operands.
pub fn kernel_scratch(module: &Module, target: &Target) -> Vec<KernelScratch> {
    let spaces: Vec<&MemorySpace> =
        target.spaces.iter().filter(|space| space.kernel_scratch > Bytes::ZERO).collect();
    if spaces.is_empty() {
        return Vec::new();
    }
    let is_run = run_by_the_cores(module);
    let computations = module.computations.keys().filter(|&computation| is_run[computation]);
    let mut all = Vec::new();
    for (instruction, it) in computations.flat_map(|computation| module.instructions_of(computation)) {
        if !is_run_by_the_cores(&it.op) {
            continue;
        }
        let operands = it.operands.iter().map(|&operand| array_bytes(module, target, operand));
        let touched = operands.fold(array_bytes(module, target, instruction), Bytes::saturating_add);
        let sizes = spaces.iter().map(|space| (space.id, space.scratch_of_kernel(touched)));
        let used = sizes.filter(|&(_, size)| size > Bytes::ZERO);
        all.extend(used.map(|(space, size)| KernelScratch { instruction, space, size }));
    }
    all
}

/// Bytes of the arrays in a result that are not scalars.
fn array_bytes(module: &Module, target: &Target, id: InstructionId) -> Bytes {
    let mut sum = Bytes::ZERO;
    module.shape(id).for_each_subshape(|_, part| {
        if part.as_array().is_some_and(|array| array.rank() > 0) {
            sum = sum.saturating_add(target.size_of(part));
        }
    });
    sum
}

/// The computations that the entry reaches through control flow.
fn run_by_the_cores(module: &Module) -> SecondaryMap<ComputationId, bool> {
    let mut is_run = SecondaryMap::new();
    let mut reached = vec![module.entry];
    while let Some(computation) = reached.pop() {
        if !std::mem::replace(&mut is_run[computation], true) {
            for (_, instruction) in module.instructions_of(computation) {
                if instruction.op.traits().role == Role::Calls {
                    reached.extend(&instruction.called);
                }
            }
        }
    }
    is_run
}

/// Whether an operation is a kernel that the cores run, rather than a transfer or a collective.
fn is_run_by_the_cores(op: &Op) -> bool {
    op.is_kernel() && op.traits().effect != Effect::Host && op.collective().is_none()
}
