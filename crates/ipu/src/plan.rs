//! From a scheduled program to the tiles of one chip or several.

use std::collections::BTreeSet;

use memplan_analysis::Facts;
use memplan_ir::{InstructionId, Module};
use memplan_memory::{Target, Tiles};

use crate::chip::Chip;
use crate::error::IpuError;
use crate::phases::Phases;
use crate::pipeline::Stages;
use crate::placement::{self, Policy};
use crate::placement_file::{Placement, PlacementError, Resolved};
use crate::streaming::stream;
use crate::tensors::Tensors;
use crate::tile_plan::TilePlan;

/// How to plan tiles.
#[derive(Clone, Debug, Default)]
pub struct IpuOptions {
    /// How small tensors get their first tile.
    pub policy: Policy,
    /// The user's placements.
    pub placement: Placement,
    /// Whether tensors may live in streaming memory where the chip is too small.
    pub streaming: bool,
}

/// Plans the tiles of one chip for a scheduled module.
///
/// # Errors
/// See [`IpuError`].
pub fn plan_tiles(
    module: &Module,
    facts: &Facts,
    target: &Target,
    options: &IpuOptions,
) -> Result<TilePlan, IpuError> {
    let chips = plan_pipeline(module, facts, target, 1, false, options)?;
    Ok(chips.into_iter().next().expect("a pipeline has a chip at least"))
}

/// Plans the tiles of several chips, one stage of a pipeline on each; fewer if the program has not enough work for all.
/// Placements from a file apply to the chip that has the tensor.
///
/// # Errors
/// See [`IpuError`].
pub fn plan_pipeline(
    module: &Module,
    facts: &Facts,
    target: &Target,
    chips: u32,
    recompute: bool,
    options: &IpuOptions,
) -> Result<Vec<TilePlan>, IpuError> {
    let machine = target.tiles.as_ref().ok_or_else(|| IpuError::NoTiles(target.name.clone()))?;
    if chips > machine.chips {
        let (target, available) = (target.name.clone(), machine.chips);
        return Err(IpuError::Chips { target, wanted: chips, available });
    }
    let tensors = Tensors::new(module, facts, target)?;
    let wishes = options.placement.resolve(module, facts, &tensors, machine.count)?;
    let stages = Stages::new(module, facts, &tensors, chips.max(1));
    let plan = |chip| {
        let runs_here = |id| stages.runs_on(facts, chip, id);
        let tensors = stages.tensors_of(&tensors, chip, recompute);
        let chip = Chip { module, facts, target, machine, runs_here: &runs_here, wishes: &wishes };
        plan_chip(&chip, tensors, options)
    };
    let plans = (0..stages.count()).map(plan).collect::<Result<Vec<_>, _>>()?;
    require_vertices(module, &plans, &wishes, &options.placement)?;
    Ok(plans)
}

/// Packs a chip, with dots that take less and less, and with tensors off it where that is allowed.
fn plan_chip(chip: &Chip<'_>, tensors: Tensors, options: &IpuOptions) -> Result<TilePlan, IpuError> {
    let (tiles, fixed) = (chip.machine.count, &chip.wishes.tensors);
    let mappings = placement::place(chip.module, chip.facts, &tensors, tiles, options.policy, fixed);
    let mut best: Option<TilePlan> = None;
    for proportion in proportions(chip.machine) {
        let plan = chip.pack(tensors.clone(), mappings.clone(), proportion, Phases::new())?;
        let fits = plan.overflows(chip.module).is_empty();
        if best.as_ref().is_none_or(|best| fits || plan.report().maximum < best.report().maximum) {
            best = Some(plan);
        }
        if fits {
            break;
        }
    }
    let plan = best.expect("the proportion of the machine is tried");
    if options.streaming { stream(chip, plan) } else { Ok(plan) }
}

/// The parts of a tile to try for one dot or convolution: the machine's, then less and less as users set it by hand
/// when a program does not fit.
fn proportions(machine: &Tiles) -> impl Iterator<Item = f64> {
    let first = machine.temporary_proportion;
    [first].into_iter().chain([0.3, 0.1, 0.03, 0.0].into_iter().filter(move |&less| less < first))
}

/// A placement of vertices must name an instruction that has some.
fn require_vertices(
    module: &Module,
    plans: &[TilePlan],
    wishes: &Resolved,
    placement: &Placement,
) -> Result<(), PlacementError> {
    let steps = plans.iter().flat_map(|plan| &plan.steps.all);
    let working: BTreeSet<InstructionId> = steps.map(|step| step.instruction).collect();
    match wishes.vertices.keys().find(|id| !working.contains(id)) {
        Some(&id) => placement.no_vertices(&module.instructions[id].name).map_or(Ok(()), Err),
        None => Ok(()),
    }
}
