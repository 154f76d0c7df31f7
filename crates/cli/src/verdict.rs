//! Whether a program fits. Where it does not, every verb ends with status 3 after its result.

use memplan::advice::{GroupBy, Peak, Words};
use memplan::driver::{Excess, exceeded};
use memplan::ir::Module;
use memplan::memory::{Bytes, MemoryPlan, MemorySpaceId, SpaceTotals, Target};
use memplan::plan::Planned;

use crate::failure::Failure;
use crate::holders;

/// Lines of holders of the peak that are shown.
const HOLDERS: usize = 5;

/// Whether a plan fits a limit, where one is given, and the memories of its machine.
///
/// `per_device` is what the arguments of a program that is not partitioned yet take on each device. The plan is then that
/// of the whole program, so only these are held against the machine.
///
/// # Errors
/// [`Failure::DoesNotFit`], with what is too much and who holds it.
pub(crate) fn verdict(
    module: &Module,
    target: &Target,
    planned: &Planned,
    limit: Option<Bytes>,
    per_device: Option<Bytes>,
) -> Result<(), Failure> {
    verdict_at_least(module, target, planned, None, limit, per_device)
}

/// Whether a program fits where its plan is an estimate, and may need no more than `least` bytes of main memory.
///
/// # Errors
/// As [`verdict`].
pub(crate) fn verdict_at_least(
    module: &Module,
    target: &Target,
    planned: &Planned,
    least: Option<Bytes>,
    limit: Option<Bytes>,
    per_device: Option<Bytes>,
) -> Result<(), Failure> {
    let plan = &planned.plan;
    if let Some(arguments) = per_device.filter(|_| limit.is_none()) {
        return fits(arguments, target).map_err(|available| {
            Failure::DoesNotFit(format!(
                "error: the arguments alone need {} on each device",
                beyond(arguments, available)
            ))
        });
    }
    let excess = exceeded(plan, target, limit);
    let is_sure = |excess: &Excess| least.is_none_or(|least| least > excess.available);
    let main = excess.filter(is_sure).map(|excess| story(module, planned, excess));
    let others = too_small(plan, target, |space| space != MemorySpaceId::MAIN);
    let lines: Vec<String> = main.into_iter().chain(others).collect();
    if lines.is_empty() { Ok(()) } else { Err(Failure::DoesNotFit(lines.join("\n"))) }
}

/// Whether a plan fits the memories of its machine.
///
/// # Errors
/// [`Failure::DoesNotFit`] names the memories that it does not fit.
pub(crate) fn within(plan: &MemoryPlan, target: &Target) -> Result<(), Failure> {
    let lines = too_small(plan, target, |_| true);
    if lines.is_empty() { Ok(()) } else { Err(Failure::DoesNotFit(lines.join("\n"))) }
}

/// Of each memory that a plan does not fit, and that is looked at, what is too much.
fn too_small(
    plan: &MemoryPlan,
    target: &Target,
    is_looked_at: impl Fn(MemorySpaceId) -> bool,
) -> Vec<String> {
    let lines = plan.spaces.iter().filter(|space| is_looked_at(space.space)).filter_map(|space| {
        // Whether the parts fit their tiles is not a question of the sum.
        let is_tiled = target.tiles.is_some() && space.space == MemorySpaceId::MAIN;
        let known = target.space(space.space).filter(|_| !is_tiled);
        let usable = known.and_then(|space| space.usable()).filter(|&usable| space.total > usable)?;
        if may_fit(space, usable) {
            return None;
        }
        Some(format!("error: of {} the program needs {}", space.name, beyond(space.total, usable)))
    });
    lines.collect()
}

/// Whether a memory near the cores has room for all that is live at once, though not as it is packed here. Another
/// compiler has packed it, and knows a place for everything.
pub(crate) fn may_fit(space: &SpaceTotals, usable: Bytes) -> bool {
    let least = space.total.saturating_sub(space.temp).saturating_add(space.temp_lower_bound);
    space.space != MemorySpaceId::MAIN && space.total > usable && least <= usable
}

/// Whether so many bytes fit the main memory of a machine.
///
/// # Errors
/// What there is of it.
pub(crate) fn fits(needed: Bytes, target: &Target) -> Result<(), Bytes> {
    // Whether the parts fit their tiles is not a question of the sum.
    let main = target.space(MemorySpaceId::MAIN).filter(|_| target.tiles.is_none());
    match main.and_then(|space| space.usable()).filter(|&usable| needed > usable) {
        Some(usable) => Err(usable),
        None => Ok(()),
    }
}

/// What is needed, what there is, and what is too much, so that both people and scripts can read it.
pub(crate) fn beyond(needed: Bytes, available: Bytes) -> String {
    let excess = needed.saturating_sub(available);
    format!(
        "{needed} and may have {available}: {excess} too much ({} - {} = {} bytes)",
        needed.0, available.0, excess.0
    )
}

/// What is asked for, what there is, and who holds the peak.
pub fn story(module: &Module, planned: &Planned, excess: Excess) -> String {
    let peak = Peak::new(&Words::new(module, &planned.facts), planned, MemorySpaceId::MAIN);
    let mut text = format!(
        "error: the program needs {}\n  the peak is {} while `{}` runs, held by",
        beyond(excess.needed, excess.available),
        peak.report.bytes,
        module.instructions[peak.report.instruction].name,
    );
    for group in peak.groups(GroupBy::Kind).iter().take(HOLDERS) {
        text.push_str(&format!("\n  {:>12}  {}", group.bytes.to_string(), holders::line(group)));
    }
    text
}
