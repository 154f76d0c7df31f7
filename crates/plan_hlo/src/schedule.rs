//! An order of execution with a low peak for a module.
//!
//! Each sequential computation becomes a region ([`regions`](crate::regions)), which [`memplan_plan`] schedules without
//! knowing operations. Take-overs that involve must-alias buffers of several values are decided by the order of the
//! text.

use cranelift_entity::SecondaryMap;
use memplan_analysis::{Aliasing, CallGraphError};
use memplan_ir::{ComputationId, InstructionId, Module, Schedule};
use memplan_memory::{Bytes, Target};
use memplan_plan::{Method, RegionError, RegionReport, ScheduleOptions};

use crate::PlanError;
use crate::given_orders::given_orders;
use crate::regions::{Results, regions};

/// The results of each scheduling method.
#[derive(Clone, Debug, Default)]
pub struct ScheduleReport {
    /// The peak of live bytes under this schedule, without constants and parameters that the caller keeps, which exist
    /// under every schedule.
    pub peak: Bytes,
    /// The results for each sequential computation, callees first: nodes are instructions that compute.
    pub computations: Vec<(ComputationId, RegionReport)>,
}

/// Why no schedule was made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ScheduleError {
    /// The call graph is not one that memory can be planned for.
    #[error(transparent)]
    CallGraph(#[from] CallGraphError),
    /// Values that must share storage cannot.
    #[error(
        "instruction `{instruction}` in computation `{computation}` would have to run before its dependencies: \
         values that must share storage are needed at the same time; copies must be inserted first (pass \
         `copy-insertion`)"
    )]
    Cycle {
        /// The computation.
        computation: Box<str>,
        /// An instruction that cannot be placed.
        instruction: Box<str>,
    },
    /// The region of a computation is none that can be scheduled.
    #[error(transparent)]
    Region(RegionError),
}

/// Schedules every computation of a module, including called ones.
///
/// The call graph must be flat, and copies must separate values that must share storage but interfere. If the module
/// has a schedule, that is one of the orders tried.
///
/// # Errors
/// See [`ScheduleError`].
pub fn schedule(
    module: &Module,
    target: &Target,
    options: &ScheduleOptions,
) -> Result<(Schedule, ScheduleReport), ScheduleError> {
    schedule_with(module, &Aliasing::new(module)?, target, options, Results::Count)
}

/// Schedules like [`schedule`] a module of which is known what shares storage, for the peak that counts results or does
/// not.
///
/// # Errors
/// See [`ScheduleError`].
pub fn schedule_with(
    module: &Module,
    aliasing: &Aliasing,
    target: &Target,
    options: &ScheduleOptions,
    results: Results,
) -> Result<(Schedule, ScheduleReport), ScheduleError> {
    let given = given_orders(module, target, aliasing.graph.sequential(), &options.methods);
    schedule_given(module, aliasing, target, options, results, &given)
}

/// Schedules worth packing, and how each was found: the one with the lowest peak, and the one with the lowest peak if
/// results were free, which they are as far as their allocations are scratch before they are written. Equal ones appear
/// once.
///
/// # Errors
/// See [`ScheduleError`].
pub fn schedules(
    module: &Module,
    aliasing: &Aliasing,
    target: &Target,
    options: &ScheduleOptions,
) -> Result<Vec<(Schedule, ScheduleReport)>, PlanError> {
    let given = given_orders(module, target, aliasing.graph.sequential(), &options.methods);
    let schedule = |results| schedule_given(module, aliasing, target, options, results, &given);
    let lowest = schedule(Results::Count)?;
    // One order that nobody improves does not depend on what counts.
    if options.budget == 0 && matches!(options.methods[..], [Method::Given(_)]) {
        return Ok(vec![lowest]);
    }
    let other = schedule(Results::AreFree)?;
    Ok(if other.0 == lowest.0 { vec![lowest] } else { vec![lowest, other] })
}

fn schedule_given(
    module: &Module,
    aliasing: &Aliasing,
    target: &Target,
    options: &ScheduleOptions,
    results: Results,
    given: &[[Vec<InstructionId>; 4]],
) -> Result<(Schedule, ScheduleReport), ScheduleError> {
    let (mut regions, nodes) = regions(module, aliasing, target, results);
    for ((region, nodes), orders) in regions.values_mut().zip(nodes.values()).zip(given) {
        region.given = nodes.among(orders);
    }
    let found = memplan_plan::schedule_regions(regions, options).map_err(|error| match error {
        RegionError::Cycle { region, node } => ScheduleError::Cycle {
            computation: module.computations[nodes[region].computation].name.clone(),
            instruction: nodes[region].name(module, node),
        },
        other => ScheduleError::Region(other),
    })?;
    let mut schedule = Schedule::in_textual_order(module);
    let mut report = ScheduleReport::default();
    let mut is_placed = SecondaryMap::new();
    for ((_, found), nodes) in found.into_iter().zip(nodes.values()) {
        schedule.set(nodes.computation, nodes.sequence(module, &found.order, &mut is_placed));
        report.peak = found.report.peak;
        report.computations.push((nodes.computation, found.report));
    }
    Ok((schedule, report))
}
