//! Machines: from work to seconds.

use memplan_ir::ElementType;
use memplan_memory::{MemorySpaceId, Target};

use crate::Work;

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

    /// Seconds that the cores compute. Matrix and vector units work at the same time, so the slower one counts; a unit
    /// whose rate the target does not give counts as infinitely fast.
    pub fn compute_seconds(&self, work: &Work) -> f64 {
        self.matrix_seconds(work).max(self.vector_seconds(work))
    }

    /// Seconds that the matrix units compute.
    pub fn matrix_seconds(&self, work: &Work) -> f64 {
        work.matrix.iter().map(|&(t, operations)| operations / self.matrix_rate(t)).sum()
    }

    /// Seconds that the vector units compute.
    pub fn vector_seconds(&self, work: &Work) -> f64 {
        work.vector / self.target.vector_rate.unwrap_or(f64::INFINITY)
    }

    /// Seconds that bytes take between a memory and the cores; none for a memory whose bandwidth is not known.
    pub fn memory_seconds(&self, space: MemorySpaceId, bytes: f64) -> f64 {
        let bandwidth = self.target.space(space).and_then(|space| space.bandwidth);
        bytes / bandwidth.unwrap_or(f64::INFINITY)
    }

    /// Seconds that a transfer between two memories takes when nothing else uses them: at the rate of the transfer, or
    /// of main memory, which is the slower end.
    pub fn transfer_seconds(&self, from: MemorySpaceId, to: MemorySpaceId, bytes: f64) -> f64 {
        let way = self.target.transfers.iter().find(|way| way.from == from && way.to == to);
        bytes / way.and_then(|way| way.bandwidth).or(self.main).unwrap_or(f64::INFINITY)
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
