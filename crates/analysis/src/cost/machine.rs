//! Machines: convert work to seconds.

use memplan_ir::ElementType;
use memplan_memory::{MemorySpaceId, Target, Transfer};

use crate::{Registers, Work};

/// How fast a target works, with what its description leaves out filled in.
#[derive(Clone, Debug)]
pub struct Machine<'t> {
    target: &'t Target,
    main: Option<f64>,
}

impl Machine<'_> {
    /// The rates of a target.
    pub fn new(target: &Target) -> Machine<'_> {
        let main = target.space(MemorySpaceId::MAIN).and_then(|space| space.bandwidth);
        Machine { target, main }
    }

    /// Seconds that the cores compute. Matrix and vector units work at the same time, so the slower one counts; but what
    /// leaves the matrix units goes through vector registers. A unit whose rate the target does not give counts as
    /// infinitely fast.
    pub fn compute_seconds(&self, work: &Work) -> f64 {
        let arithmetic = work.vector / self.target.vector_rate.unwrap_or(f64::INFINITY);
        (self.matrix_seconds(work) + self.register_seconds(work)).max(arithmetic)
    }

    /// Seconds that the matrix units compute.
    pub fn matrix_seconds(&self, work: &Work) -> f64 {
        work.matrix.iter().map(|products| products.padded / self.matrix_rate(products.element_type)).sum()
    }

    /// Seconds that vector registers take on their way through the vector units.
    fn register_seconds(&self, work: &Work) -> f64 {
        let Some(unit) = self.target.vector_unit else { return 0.0 };
        let Registers { evaluated, accessed, is_move } = work.registers;
        match work.matrix.is_empty() {
            _ if is_move => unit.move_seconds * accessed,
            true => unit.evaluation_seconds * evaluated + unit.access_seconds * accessed,
            false => unit.epilogue_seconds * evaluated + unit.operand_seconds * accessed,
        }
    }

    /// Seconds that a kernel takes to move bytes between a memory and the cores; none for a memory whose bandwidth is not
    /// known.
    pub fn memory_seconds(&self, space: MemorySpaceId, bytes: f64) -> f64 {
        let rate = self.target.space(space).and_then(|space| Some(space.bandwidth? * space.kernel_share));
        bytes / rate.unwrap_or(f64::INFINITY)
    }

    /// Seconds that a kernel waits for a memory, however few bytes it moves.
    pub fn latency(&self, space: MemorySpaceId) -> f64 {
        self.target.space(space).map_or(0.0, |space| space.latency)
    }

    /// Seconds that a transfer between two memories takes when nothing else uses them: at the rate of the transfer, or
    /// of main memory, which is the slower end.
    pub fn transfer_seconds(&self, from: MemorySpaceId, to: MemorySpaceId, bytes: f64) -> f64 {
        let bandwidth = self.way(from, to).and_then(|way| way.bandwidth).or(self.main);
        bytes / bandwidth.unwrap_or(f64::INFINITY)
    }

    /// Whether kernels wait while a transfer between two memories runs.
    pub fn transfer_blocks_kernels(&self, from: MemorySpaceId, to: MemorySpaceId) -> bool {
        self.way(from, to).is_some_and(|way| way.blocks_kernels)
    }

    fn way(&self, from: MemorySpaceId, to: MemorySpaceId) -> Option<&Transfer> {
        self.target.transfers.iter().find(|way| way.from == from && way.to == to)
    }

    /// A type without a rate of its own runs at that of a type that the matrix unit computes it with: floating point
    /// numbers in one pass of bf16, which is what default precision means on a TPU; integers at that of s8; anything
    /// else at the slowest rate there is.
    fn matrix_rate(&self, t: ElementType) -> f64 {
        let rates = &self.target.rates;
        let stand_in = if t.is_integral() { ElementType::S8 } else { ElementType::Bf16 };
        let slowest =
            || [ElementType::F32, ElementType::Bf16, ElementType::F16].iter().find_map(|&t| rates.get(t));
        rates.get(t).or_else(|| rates.get(stand_in)).or_else(slowest).unwrap_or(f64::INFINITY)
    }
}
