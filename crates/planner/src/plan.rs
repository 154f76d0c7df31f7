//! The whole of planning in one function.

use memplan_analysis::Facts;
use memplan_ir::{Module, Schedule, fingerprint};
use memplan_memory::{Bytes, MemoryPlan, Target};

use crate::assign::assign_below;
use crate::{AssignOptions, PlanError, Role, ScheduleOptions, schedule};

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

impl Planned {
    /// Puts the module into the order of the schedule, which makes it the module that the plan is for.
    pub fn apply(&mut self, module: &mut Module) {
        self.schedule.apply(module);
        self.plan.fingerprint = fingerprint(module);
    }
}

/// Plans a module: keeps its schedule if it has one, and gives every value an address.
///
/// The module must be legal as it stands: call graph flat, copies inserted where values that must share storage would
/// interfere (`memplan-passes` does both for modules that have no schedule).
///
/// # Errors
/// See [`PlanError`].
pub fn plan(module: &Module, target: &Target, options: &PlanOptions) -> Result<Planned, PlanError> {
    let schedules = match module.is_scheduled && !options.reschedule {
        true => vec![Schedule::in_textual_order(module)],
        false => schedules(module, target, &options.schedule)?,
    };
    assign_best(module, target, schedules, &options.assign)
}

/// Schedules worth packing: the one with the lowest peak, and the one with the lowest peak if results were free, which
/// they are as far as their allocations are scratch before they are written. Equal ones appear once.
///
/// # Errors
/// See [`ScheduleError`](crate::ScheduleError).
pub fn schedules(
    module: &Module,
    target: &Target,
    options: &ScheduleOptions,
) -> Result<Vec<Schedule>, PlanError> {
    let lowest = schedule(module, target, options)?.0;
    let free_results = |role: Role, bytes: Bytes| if role == Role::Output { Bytes::ZERO } else { bytes };
    let other = schedule(module, target, &ScheduleOptions { weigh: free_results, ..options.clone() })?.0;
    Ok(if other == lowest { vec![lowest] } else { vec![lowest, other] })
}

/// Assigns under each schedule and keeps the plan with the lowest total; the first of equals.
///
/// # Errors
/// See [`PlanError`].
///
/// # Panics
/// When there is no schedule.
pub fn assign_best(
    module: &Module,
    target: &Target,
    schedules: Vec<Schedule>,
    options: &AssignOptions,
) -> Result<Planned, PlanError> {
    let mut best: Option<Planned> = None;
    for schedule in schedules {
        let facts = Facts::new(module, &schedule)?;
        let limit = best.as_ref().map(|best| best.plan.totals.total);
        if let Some(plan) = assign_below(module, &facts, target, options, limit)? {
            best = Some(Planned { schedule, facts, plan });
        }
    }
    Ok(best.expect("there is a schedule to plan for"))
}
