//! Kernel scratch: the bytes of a memory near the cores that a kernel has to itself while it runs, for blocks of what it
//! reads and writes and for what does not fit into registers.
//!
//! What a compiler will take is known only when it has generated the kernel. A target therefore has a rule that is known
//! to be enough: a limit, and below it so many bytes for each byte that the kernel could touch.

use memplan_ir::{ComputationId, Effect, InstructionId, Module, Op, Role, SecondaryMap};

use crate::{Bytes, MemorySpace, MemorySpaceId, Target};

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

impl MemorySpace {
    /// What a kernel reserves whose operands and results have so many bytes, wherever they are. One that touches no
    /// arrays works on scalars and reserves nothing.
    pub fn scratch_of_kernel(&self, touched: Bytes) -> Bytes {
        match self.kernel_scratch_per_byte {
            _ if touched == Bytes::ZERO => Bytes::ZERO,
            None => self.kernel_scratch,
            Some(factor) => {
                let blocks = Bytes(touched.0.saturating_mul(factor));
                self.kernel_scratch_base.saturating_add(blocks).min(self.kernel_scratch)
            }
        }
    }
}

impl Target {
    /// What kernels reserve, in the order of computations and instructions: everything that reads or writes arrays and
    /// is run by the cores, whether from the entry, in loops, in branches or in calls. Transfers, collectives, and what
    /// asynchronous calls run are not.
    ///
    /// Takes time linear in operands.
    pub fn kernel_scratch(&self, module: &Module) -> Vec<KernelScratch> {
        let spaces: Vec<&MemorySpace> =
            self.spaces.iter().filter(|space| space.kernel_scratch > Bytes::ZERO).collect();
        if spaces.is_empty() {
            return Vec::new();
        }
        let is_run = run_by_the_cores(module);
        let computations = module.computations.keys().filter(|&computation| is_run[computation]);
        let mut all = Vec::new();
        for (instruction, it) in computations.flat_map(|computation| module.instructions_of(computation)) {
            if !is_kernel(&it.op) {
                continue;
            }
            let operands = it.operands.iter().map(|&operand| self.array_bytes(module, operand));
            let touched = operands.fold(self.array_bytes(module, instruction), Bytes::saturating_add);
            let sizes = spaces.iter().map(|space| (space.id, space.scratch_of_kernel(touched)));
            let used = sizes.filter(|&(_, size)| size > Bytes::ZERO);
            all.extend(used.map(|(space, size)| KernelScratch { instruction, space, size }));
        }
        all
    }

    /// Bytes of the arrays in a result that are not scalars.
    fn array_bytes(&self, module: &Module, id: InstructionId) -> Bytes {
        let mut sum = Bytes::ZERO;
        module.shape(id).for_each_subshape(|_, part| {
            if part.as_array().is_some_and(|array| array.rank() > 0) {
                sum = sum.saturating_add(self.size_of(part));
            }
        });
        sum
    }
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

/// Whether the cores run code for an instruction that reads or writes arrays.
fn is_kernel(op: &Op) -> bool {
    op.traits().role == Role::Computes
        && op.traits().effect != Effect::Host
        && op.collective().is_none()
        && !op.only_names_memory()
}
