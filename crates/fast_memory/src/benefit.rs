//! The benefit of fast memory: the price of the bytes that main memory then does not move.

use cranelift_entity::SecondaryMap;
use memplan_analysis::{Costs, Facts, Machine};
use memplan_ir::{ComputationId, InstructionId, Module};
use memplan_memory::{MemorySpaceId, Target};

use crate::FastMemoryOptions;
use crate::idle::runs;

/// The cost of kernels' accesses to main memory.
pub(crate) struct Benefit<'a> {
    module: &'a Module,
    costs: &'a Costs,
    options: &'a FastMemoryOptions,
    machine: Machine<'a>,
    fast: MemorySpaceId,
    /// The bytes that each instruction reads and writes: summed once, since operands are queried one by one.
    accessed: SecondaryMap<InstructionId, f64>,
    /// How often XLA expects each computation to run.
    runs: SecondaryMap<ComputationId, f64>,
}

impl<'a> Benefit<'a> {
    pub(crate) fn new(
        module: &'a Module,
        facts: &Facts,
        costs: &'a Costs,
        target: &'a Target,
        options: &'a FastMemoryOptions,
    ) -> Benefit<'a> {
        let mut accessed = SecondaryMap::new();
        module.instructions.keys().for_each(|id| accessed[id] = costs.work(id).accessed());
        let runs = runs(module, facts, &options.transfers);
        let fast = target.fast_memory.expect("it is assigned where there is some").space;
        Benefit { module, costs, options, machine: Machine::new(target), fast, accessed, runs }
    }

    /// The cost of an instruction's traffic to or from main memory: the bytes, and more if the instruction waits for
    /// them.
    pub(crate) fn of(&self, id: InstructionId, bytes: f64) -> f64 {
        let work = self.costs.work(id);
        let memory = |bytes: f64| self.machine.memory_seconds(MemorySpaceId::MAIN, bytes);
        let all = self.accessed[id];
        let compute = self.machine.compute_seconds(work);
        let saved = memory(all).max(compute) - memory(all - bytes).max(compute);
        let per_byte = memory(1.0);
        let bonus = if per_byte > 0.0 { self.options.time_weight * saved / per_byte } else { 0.0 };
        self.costs.frequency(self.module.instructions[id].parent) * (bytes + bonus)
    }

    /// The seconds that XLA's memory space assignment expects an instruction to save if it need not move some bytes to or from main
    /// memory, in loops of so many steps as XLA assumes; for one that waits for the cores, the negative of the time that main
    /// memory is idle.
    pub(crate) fn as_xla(&self, id: InstructionId, bytes: f64) -> f64 {
        let compute = self.machine.matrix_seconds(self.costs.work(id));
        let share = self.options.as_xla.bandwidth_share;
        let memory =
            |bytes: f64| self.machine.transfer_seconds(MemorySpaceId::MAIN, self.fast, bytes) / share;
        let all = memory(self.accessed[id]);
        match all > compute {
            true => memory(bytes) * self.runs[self.module.instructions[id].parent],
            false => all - compute,
        }
    }

    /// [`Benefit::as_xla`] of a read of an operand.
    pub(crate) fn as_xla_of_operand(&self, id: InstructionId, operand: u32) -> f64 {
        let read = self.costs.work(id).read_of(operand);
        self.as_xla(id, read.map_or(0.0, |access| access.bytes.0 as f64))
    }

    /// The cost of copying bytes within a memory, once per run of a computation.
    pub(crate) fn of_copy(&self, computation: ComputationId, space: MemorySpaceId, bytes: f64) -> f64 {
        let seconds = self.machine.memory_seconds(space, 2.0 * bytes);
        let per_byte = self.machine.memory_seconds(MemorySpaceId::MAIN, 1.0);
        let waits = if per_byte > 0.0 { seconds / per_byte } else { 0.0 };
        self.costs.frequency(computation) * self.options.time_weight * waits
    }

    /// The cost of a kernel's read of an operand from main memory.
    pub(crate) fn of_operand(&self, id: InstructionId, operand: u32) -> f64 {
        self.costs.work(id).read_of(operand).map_or(0.0, |access| self.of(id, access.bytes.0 as f64))
    }
}
