//! The search's data about a program.

use memplan_analysis::{Costs, Durations, Facts, Time, ValueId, kernel_scratch};
use memplan_ir::{EntitySet, Module};
use memplan_memory::Target;

use crate::FastMemoryOptions;
use crate::candidate::Candidate;
use crate::collect;
use crate::idle::IdleTime;
use crate::sharing::Sharing;

/// Candidates, and the memory that they compete for.
pub(crate) struct Model {
    pub(crate) candidates: Vec<Candidate>,
    pub(crate) sharing: Sharing,
    /// Bytes of fast memory that kernels reserve for themselves, by instant.
    pub(crate) scratch: Vec<u64>,
    /// One past the last instant.
    pub(crate) end: Time,
}

impl Model {
    /// Lists candidates for fast memory, given the times of operations in `durations`, and slices of all arrays except
    /// those of `fast`; if that is `None`, no slices. Close to linear in positions and operands.
    pub(crate) fn new(
        module: &Module,
        facts: &Facts,
        costs: &Costs,
        target: &Target,
        options: &FastMemoryOptions,
        durations: &Durations,
        fast: Option<&EntitySet<ValueId>>,
    ) -> Model {
        let idle = IdleTime::new(module, facts, durations, target, &options.transfers);
        let candidates = collect::candidates(module, facts, costs, target, options, &idle, fast);
        let sharing = Sharing::new(module, facts, &candidates);
        Model { candidates, sharing, scratch: scratch(module, facts, target), end: facts.line.end() }
    }
}

fn scratch(module: &Module, facts: &Facts, target: &Target) -> Vec<u64> {
    let mut bytes = vec![0; facts.line.end() as usize];
    let is_here = |space| target.fast_memory.is_some_and(|fast| fast.space == space);
    for it in kernel_scratch(module, target).into_iter().filter(|it| is_here(it.space)) {
        bytes[facts.line.time(it.instruction) as usize] = it.size.0;
    }
    bytes
}
