//! All of planning in one function.

use memplan_analysis::{Aliasing, Facts};
use memplan_ir::{Module, Schedule, fingerprint};
use memplan_memory::{MemoryPlan, Target};

use crate::assign::{assign_below, check_values};
use crate::regions::Results;
use crate::schedule::{schedule_with, schedules};
use crate::{AssignOptions, PlanError, ScheduleOptions};

/// How to plan.
#[derive(Clone, Debug, Default)]
pub struct PlanOptions {
    /// Make a new schedule even where the module has one.
    pub reschedule: bool,
    /// How to schedule.
    pub schedule: ScheduleOptions,
    /// Whether results count in the peak of a schedule. Without, both are tried, and the lower total is kept.
    pub results: Option<Results>,
    /// How to assign.
    pub assign: AssignOptions,
}

/// A plan with its inputs.
#[derive(Clone, Debug)]
pub struct Planned {
    /// The order of execution.
    pub schedule: Schedule,
    /// Liveness and aliasing under that order.
    pub facts: Facts,
    /// The plan.
    pub plan: MemoryPlan,
}

impl Planned {
    /// Puts the module into the order of the schedule, which makes it the module that the plan is for.
    pub fn apply(&mut self, module: &mut Module) {
        self.schedule.apply(module);
        self.plan.fingerprint = fingerprint(module);
    }
}

/// Plans a module: keeps its schedule if it has one, and gives every value an address.
///
/// The module must be legal: call graph flat, copies inserted where values that must share storage would
/// interfere (`memplan-passes` does both for modules that have no schedule).
///
/// # Errors
/// See [`PlanError`].
pub fn plan(module: &Module, target: &Target, options: &PlanOptions) -> Result<Planned, PlanError> {
    let mut planned = plan_unnamed(module, target, options)?;
    planned.plan.fingerprint = fingerprint(module);
    Ok(planned)
}

/// As [`plan()`], but the plan does not say which module it is for: its fingerprint is zero.
///
/// # Errors
/// See [`PlanError`].
pub fn plan_unnamed(module: &Module, target: &Target, options: &PlanOptions) -> Result<Planned, PlanError> {
    let aliasing = Aliasing::new(module)?;
    let schedules = match module.is_scheduled && !options.reschedule {
        true => vec![Schedule::in_textual_order(module)],
        false => {
            let found = match options.results {
                Some(results) => vec![schedule_with(module, &aliasing, target, &options.schedule, results)?],
                None => schedules(module, &aliasing, target, &options.schedule)?,
            };
            found.into_iter().map(|(schedule, _)| schedule).collect()
        }
    };
    Ok(assign_best(module, aliasing, target, schedules, &options.assign)?.1)
}

/// Assigns under each schedule and keeps the plan with the lowest total; the first of equals. Returns the number of its
/// schedule, too. The plan has no fingerprint before [`Planned::apply`].
///
/// # Errors
/// See [`PlanError`].
///
/// # Panics
/// When there is no schedule.
pub fn assign_best(
    module: &Module,
    aliasing: Aliasing,
    target: &Target,
    schedules: Vec<Schedule>,
    options: &AssignOptions,
) -> Result<(usize, Planned), PlanError> {
    check_values(module, &aliasing.flow, &aliasing.buffers, target)?;
    let mut best: Option<(usize, Planned)> = None;
    let aliasing = std::iter::repeat_n(aliasing, schedules.len());
    for (number, (schedule, aliasing)) in schedules.into_iter().zip(aliasing).enumerate() {
        let facts = aliasing.under(module, &schedule);
        let limit = best.as_ref().map(|(_, best)| best.plan.totals.total);
        if let Some(plan) = assign_below(module, &facts, target, options, limit)? {
            best = Some((number, Planned { schedule, facts, plan }));
        }
    }
    Ok(best.expect("there is a schedule to plan for"))
}
