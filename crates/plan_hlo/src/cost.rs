//! The cost of a planned program, by the cost model.

use memplan_analysis::{Costs, Facts, KernelCosts, RunEstimate};
use memplan_ir::{ComputationId, Module};
use memplan_memory::{CostEntry, MemoryPlan, MemorySpaceId, PlanFile, Slice, Target};
use rustc_hash::FxHashSet;

/// The cost of one run of a program, and of each of its instructions.
#[derive(Clone, Debug)]
pub struct ProgramCost {
    /// One run of the program.
    pub run: RunEstimate,
    costs: Costs,
}

impl ProgramCost {
    /// Follows a run of a scheduled module whose values are where a plan has them, in time linear in the module.
    pub fn new(module: &Module, facts: &Facts, plan: &MemoryPlan, target: &Target) -> ProgramCost {
        let space = |slice: &Slice| plan.allocations[slice.allocation].space;
        let elsewhere = plan.slices.iter().filter(|(_, slice)| space(slice) != MemorySpaceId::MAIN);
        let places = elsewhere.map(|(position, slice)| (position.clone(), space(slice)));
        let costs = Costs::new(module, &facts.graph, &facts.in_place, target).placed(places);
        ProgramCost { run: RunEstimate::new(module, &facts.graph, &costs, target), costs }
    }

    /// One run of each instruction, in time linear in the module, which is to be the one that this is the cost of.
    pub fn kernels(&self, module: &Module, facts: &Facts, target: &Target) -> KernelCosts {
        KernelCosts::new(module, &facts.graph, &self.costs, target)
    }

    /// How often a computation runs in one run of the program: see [`Costs::frequency`].
    pub fn runs(&self, computation: ComputationId) -> f64 {
        self.costs.frequency(computation)
    }

    /// Adds the cost to the file of the plan. Linear in the schedule.
    pub fn note(&self, module: &Module, facts: &Facts, file: &mut PlanFile) {
        let RunEstimate { seconds, main_memory_bytes, matrix_operations, vector_operations, .. } = self.run;
        file.cost = Some(CostEntry { seconds, main_memory_bytes, matrix_operations, vector_operations });
        let run: FxHashSet<ComputationId> = facts.graph.sequential().iter().copied().collect();
        // The file has the computations that have a schedule, in the module's order.
        let mut entries = file.schedule.iter_mut().peekable();
        for (id, computation) in &module.computations {
            if let Some(entry) = entries.next_if(|entry| *entry.computation == *computation.name) {
                entry.runs = run.contains(&id).then(|| self.runs(id));
            }
        }
    }
}
