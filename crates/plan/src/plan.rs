//! The whole of planning in one function.

use memplan_analysis::Facts;
use memplan_ir::{Module, Schedule};
use memplan_memory::{MemoryPlan, Target};

use crate::{AssignOptions, PlanError, ScheduleOptions, assign, schedule};

/// How to plan.
#[derive(Clone, Debug, Default)]
pub struct PlanOptions {
    /// Make a new schedule even where the module has one.
    pub reschedule: bool,
    /// How to schedule.
    pub schedule: ScheduleOptions,
    /// How to assign.
    pub assign: AssignOptions,
}

/// A plan with what it was made from.
#[derive(Clone, Debug)]
pub struct Planned {
    /// The order of execution.
    pub schedule: Schedule,
    /// Liveness and aliasing under that order.
    pub facts: Facts,
    /// Where everything lives.
    pub plan: MemoryPlan,
}

/// Plans a module: keeps its schedule if it has one, and gives every value an address.
///
/// The module must be legal as it stands: call graph flat, copies inserted where values that must share storage would
/// interfere (`memplan-passes` does both for modules that have no schedule).
///
/// # Errors
/// See [`PlanError`].
pub fn plan(module: &Module, target: &Target, options: &PlanOptions) -> Result<Planned, PlanError> {
    let schedule = match module.is_scheduled && !options.reschedule {
        true => Schedule::in_textual_order(module),
        false => schedule(module, target, &options.schedule)?.0,
    };
    let facts = Facts::new(module, &schedule)?;
    let plan = assign(module, &facts, target, &options.assign)?;
    Ok(Planned { schedule, facts, plan })
}
