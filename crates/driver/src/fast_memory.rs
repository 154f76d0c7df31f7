//! The stage that assigns fast memory: `memplan-fast-memory` decides, `memplan-passes` applies the decisions, and the
//! planner packs.

use memplan_analysis::Facts;
use memplan_fast_memory::{Assigned, Carrier, FastMemoryOptions, FastMemoryReport, Trial, assign};
use memplan_ir::{Module, Schedule};
use memplan_memory::{Bytes, FastMemory, FastMemoryDecision, Target};
use memplan_passes::{insert_async_copies, order_for_async_copies};
use memplan_plan_hlo::{PlanError, TakeOver, assign_space, storages};

/// Assigns fast memory to a scheduled module: layouts say which values are in it, and asynchronous copies transfer
/// values to and from it. Parameters and constants move to the front of their computations, and tuples to right before
/// the control flow that reads them; all else keeps its order. Without fast memory in the target, the module is
/// unchanged.
///
/// # Errors
/// The call graph is not one that memory can be planned for, or values that must share storage cannot.
pub fn assign_fast_memory(
    module: &mut Module,
    target: &Target,
    options: &FastMemoryOptions,
) -> Result<FastMemoryReport, PlanError> {
    let Some(fast) = target.fast_memory else { return Ok(FastMemoryReport::default()) };
    order_for_async_copies(module);
    let facts = Facts::new(module, &Schedule::in_textual_order(module))?;
    let packer = Packer { module, facts: &facts, target, fast, capacity: options.capacity };
    let Assigned { trial, report, .. } = assign(module, &facts, target, options, &packer)?;
    // Until here, any packing that fits was good enough.
    let height = assign_space(&trial.module, &trial.facts, target, fast.space, None)?.height;
    *module = trial.module;
    if report.slices > 0 {
        module.compact();
    }
    Ok(FastMemoryReport { height, ..report })
}

/// Applies decisions by the pass that inserts copies, and packs by the planner.
struct Packer<'a> {
    module: &'a Module,
    facts: &'a Facts,
    target: &'a Target,
    fast: FastMemory,
    capacity: u64,
}

impl Carrier for Packer<'_> {
    type Error = PlanError;

    fn carry_out(&self, decisions: &[FastMemoryDecision]) -> Result<Trial, PlanError> {
        let mut module = self.module.clone();
        let placed = insert_async_copies(&mut module, self.facts, self.fast, decisions)?;
        let facts = Facts::new(&module, &Schedule::in_textual_order(&module))?;
        let space = self.fast.space;
        // The final plan packs at least as well as this.
        let packed = assign_space(&module, &facts, self.target, space, Some(self.capacity))?;
        let placed = placed.into_iter().map(|it| (it.decision, it.position)).collect();
        Ok(Trial { module, facts, placed, plan: packed.plan, height: packed.height, total: packed.total })
    }

    fn temp_load(&self) -> Result<Vec<Bytes>, PlanError> {
        let storages = storages(self.module, self.facts, self.target, TakeOver::Any)?;
        Ok(storages.temp_load().curve().collect())
    }
}
