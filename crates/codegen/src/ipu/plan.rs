//! From a scheduled program to the tiles of one chip or several.

use std::collections::BTreeSet;

use memplan_analysis::Facts;
use memplan_ir::{InstructionId, Module};
use memplan_memory::{Target, Tiles};
use memplan_plan::PlanError;

use crate::ipu::phases::Phases;
use crate::ipu::pipeline::Stages;
use crate::ipu::placement::{self, Mappings, Policy};
use crate::ipu::placement_file::{Placement, PlacementError, Resolved};
use crate::ipu::steps::steps;
use crate::ipu::streaming::stream;
use crate::ipu::tensors::Tensors;
use crate::ipu::tile_plan::TilePlan;

/// How to plan tiles.
#[derive(Clone, Debug, Default)]
pub struct IpuOptions {
    /// How small tensors get their first tile.
    pub policy: Policy,
    /// What the user wants where.
    pub placement: Placement,
    /// Whether tensors may live in streaming memory where the chip is too small.
    pub streaming: bool,
}

/// Why tiles cannot be planned.
#[derive(Debug, thiserror::Error)]
pub enum IpuError {
    /// The target is some other machine.
    #[error("target `{0}` has no tiles")]
    NoTiles(String),
    /// More chips are asked for than there are.
    #[error("target `{target}` has {available} chips, not {wanted}: `tiles.chips` of its file says how many")]
    Chips {
        /// The target.
        target: String,
        /// How many are asked for.
        wanted: u32,
        /// How many there are.
        available: u32,
    },
    /// Values that must share storage cannot.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The placement file does not go with the program or the machine.
    #[error(transparent)]
    Placement(#[from] PlacementError),
    /// Sizes are beyond 64 bits.
    #[error("what a tile holds adds up to more than 2^64 bytes")]
    TooLarge(#[source] memplan_pack::Error),
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

/// Plans the tiles of several chips, a stage of a pipeline on each; fewer where the program has not enough to do for
/// all. What a placement file places is placed on the chip that has it.
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
        chip.plan(tensors, options)
    };
    let plans = (0..stages.count()).map(plan).collect::<Result<Vec<_>, _>>()?;
    require_vertices(module, &plans, &wishes, &options.placement)?;
    Ok(plans)
}

/// A chip and what runs on it.
pub(crate) struct Chip<'a> {
    pub(crate) module: &'a Module,
    pub(crate) facts: &'a Facts,
    pub(crate) target: &'a Target,
    machine: &'a Tiles,
    runs_here: &'a dyn Fn(InstructionId) -> bool,
    wishes: &'a Resolved,
}

impl Chip<'_> {
    fn plan(&self, tensors: Tensors, options: &IpuOptions) -> Result<TilePlan, IpuError> {
        let (tiles, fixed) = (self.machine.count, &self.wishes.tensors);
        let mappings = placement::place(self.module, self.facts, &tensors, tiles, options.policy, fixed);
        let mut best: Option<TilePlan> = None;
        for proportion in proportions(self.machine) {
            let plan = self.pack(tensors.clone(), mappings.clone(), proportion, Phases::new())?;
            let fits = plan.overflows(self.module).is_empty();
            if best.as_ref().is_none_or(|best| fits || plan.report().maximum < best.report().maximum) {
                best = Some(plan);
            }
            if fits {
                break;
            }
        }
        let plan = best.expect("the proportion of the machine is tried");
        if options.streaming { stream(self, plan) } else { Ok(plan) }
    }

    /// Packs the tiles when dots may take a proportion of each.
    pub(crate) fn pack(
        &self,
        tensors: Tensors,
        mappings: Mappings,
        proportion: f64,
        phases: Phases,
    ) -> Result<TilePlan, IpuError> {
        let machine = Tiles { temporary_proportion: proportion, ..self.machine.clone() };
        let steps = steps(
            self.module,
            self.facts,
            self.target,
            &machine,
            &tensors,
            &mappings,
            &self.wishes.vertices,
            &phases,
            self.runs_here,
        );
        TilePlan::new(&machine, self.target, self.facts, tensors, mappings, steps, phases)
    }
}

/// The parts of a tile to try for one dot or convolution: the machine's, then less and less as users set it by hand
/// when a program does not fit.
fn proportions(machine: &Tiles) -> impl Iterator<Item = f64> {
    let first = machine.temporary_proportion;
    [first].into_iter().chain([0.3, 0.1, 0.03, 0.0].into_iter().filter(move |&less| less < first))
}

/// Whoever places vertices means an instruction that has some.
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
