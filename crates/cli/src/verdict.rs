//! Whether a program fits. If it does not, every verb exits with status 3 after its result.

use memplan::advice::{Devices, GroupBy, Peak, Words};
use memplan::driver::{Excess, exceeded};
use memplan::ir::Module;
use memplan::memory::{Bytes, MemoryPlan, MemorySpaceId, SpaceTotals, Target};
use memplan::plan::Planned;

use crate::failure::Failure;
use crate::holders;

/// Lines of holders of the peak that are shown.
const HOLDERS: usize = 5;

/// Checks that a plan fits a limit, if there is one, and the memories of its machine.
///
/// Where the plan is still of the program of all devices, only the bytes of the arguments on each are compared with the
/// machine.
///
/// # Errors
/// [`Failure::DoesNotFit`] names the excess and the holders of the peak.
pub(crate) fn verdict(
    module: &Module,
    target: &Target,
    planned: &Planned,
    limit: Option<Bytes>,
    devices: &Devices,
) -> Result<(), Failure> {
    verdict_at_least(module, target, planned, None, limit, devices)
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
    devices: &Devices,
) -> Result<(), Failure> {
    let plan = &planned.plan;
    if let Some(arguments) = devices.of_whole.filter(|_| limit.is_none()) {
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
    unless_any(main.into_iter().chain(others).collect())
}

/// Whether a plan fits the memories of its machine.
///
/// # Errors
/// [`Failure::DoesNotFit`] names the memories that it does not fit.
pub(crate) fn within(plan: &MemoryPlan, target: &Target) -> Result<(), Failure> {
    unless_any(too_small(plan, target, |_| true))
}

/// Fails with the lines, if there are any.
fn unless_any(lines: Vec<String>) -> Result<(), Failure> {
    if lines.is_empty() { Ok(()) } else { Err(Failure::DoesNotFit(lines.join("\n"))) }
}

/// Describes the excess in each memory that `is_looked_at` and that the plan does not fit.
fn too_small(
    plan: &MemoryPlan,
    target: &Target,
    is_looked_at: impl Fn(MemorySpaceId) -> bool,
) -> Vec<String> {
    let lines = plan.spaces.iter().filter(|space| is_looked_at(space.space)).filter_map(|space| {
        // Tiles are checked one by one, not by their sum.
        let is_tiled = target.tiles.is_some() && space.space == MemorySpaceId::MAIN;
        let known = target.space(space.space).filter(|_| !is_tiled);
        let usable = known.and_then(|space| space.usable()).filter(|&usable| space.total > usable)?;
        if may_fit(space, usable) {
            return None;
        }
        Some(format!("error: in {} the program needs {}", space.name, beyond(space.total, usable)))
    });
    lines.collect()
}

/// Whether a memory near the cores has room for all values that are live at once, although this packing does not fit.
/// Another compiler has packed it, and has an address for everything.
pub(crate) fn may_fit(space: &SpaceTotals, usable: Bytes) -> bool {
    let least = space.total.saturating_sub(space.temp).saturating_add(space.temp_lower_bound);
    space.space != MemorySpaceId::MAIN && space.total > usable && least <= usable
}

/// Whether so many bytes fit the main memory of a machine.
///
/// # Errors
/// The available bytes.
pub(crate) fn fits(needed: Bytes, target: &Target) -> Result<(), Bytes> {
    // Tiles are checked one by one, not by their sum.
    let main = target.space(MemorySpaceId::MAIN).filter(|_| target.tiles.is_none());
    match main.and_then(|space| space.usable()).filter(|&usable| needed > usable) {
        Some(usable) => Err(usable),
        None => Ok(()),
    }
}

/// States needed, available and excess bytes, for people and for scripts.
pub(crate) fn beyond(needed: Bytes, available: Bytes) -> String {
    let excess = needed.saturating_sub(available);
    format!(
        "{needed}, but only {available} is available: {excess} too much ({} - {} = {} bytes)",
        needed.0, available.0, excess.0
    )
}

/// States the needed and available bytes, and who holds the peak.
pub fn story(module: &Module, planned: &Planned, excess: Excess) -> String {
    let peak = Peak::new(&Words::new(module, &planned.facts), planned, MemorySpaceId::MAIN);
    let mut text = format!(
        "error: the program needs {}\n  the peak is {} while `{}` runs; the largest holders are",
        beyond(excess.needed, excess.available),
        peak.report.bytes,
        module.instructions[peak.report.instruction].name,
    );
    for group in peak.groups(GroupBy::Kind).iter().take(HOLDERS) {
        text.push_str(&format!("\n  {:>12}  {}", group.bytes.to_string(), holders::line(group)));
    }
    text
}
