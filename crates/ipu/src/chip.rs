//! One chip: its program, and its packed tiles.

use memplan_analysis::Facts;
use memplan_ir::{InstructionId, Module};
use memplan_memory::{Target, Tiles};

use crate::error::IpuError;
use crate::phases::Phases;
use crate::placement::Mappings;
use crate::placement_file::Resolved;
use crate::steps::steps;
use crate::tensors::Tensors;
use crate::tile_plan::TilePlan;

/// A chip and its program.
#[derive(Clone, Copy)]
pub(crate) struct Chip<'a> {
    pub(crate) module: &'a Module,
    pub(crate) facts: &'a Facts,
    pub(crate) target: &'a Target,
    pub(crate) machine: &'a Tiles,
    pub(crate) runs_here: &'a dyn Fn(InstructionId) -> bool,
    pub(crate) wishes: &'a Resolved,
}

impl Chip<'_> {
    /// Packs the tiles when dots may take a proportion of each.
    pub(crate) fn pack(
        &self,
        tensors: Tensors,
        mappings: Mappings,
        proportion: f64,
        phases: Phases,
    ) -> Result<TilePlan, IpuError> {
        let machine = Tiles { temporary_proportion: proportion, ..self.machine.clone() };
        let chip = Chip { machine: &machine, ..*self };
        let steps = steps(&chip, &tensors, &mappings, &phases);
        TilePlan::new(&chip, tensors, mappings, steps, phases)
    }
}
