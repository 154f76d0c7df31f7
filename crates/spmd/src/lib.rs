//! Makes the program of one device from a program whose values are sharded over several, and back.
//!
//! ```text
//!   w = f32[4096,4096] parameter(0), sharding={devices=[8,1]<=[8]}     w = f32[512,4096] parameter(0)
//!   x = f32[1024,4096] parameter(1), sharding={devices=[8,1]<=[8]}     x = f32[128,4096] parameter(1)
//!   y = f32[1024,4096] dot(x, w)                                 =>    a = f32[4096,4096] all-gather(w), dimensions={0}
//!                                                                      y = f32[128,4096] dot(x, a)
//! ```
//!
//! There are three steps: reading the shardings in the program (`notes.rs`, with Shardy's annotations in `shardy.rs`),
//! propagating them to all other values (`propagate.rs`, along the factors of each operation, `rule.rs`), and writing the
//! program of one device with its collectives (`partition.rs`, `reshard.rs`). Shardings are lists of axes of one grid of
//! devices (`cut.rs`). The bodies of `shard_map` are for one device already, and stay unchanged; [`OfOneDevice::for_all`]
//! turns the whole program into such a body.
//!
//! XLA pads uneven parts and exchanges the borders of windows; this crate gathers whole arrays instead. It does not
//! understand shardings that list devices in no regular order.

mod cut;
mod notes;
mod partition;
mod propagate;
mod reshard;
mod rule;
mod shardy;
mod wrap;

use memplan_ir::{ComputationId, Cursor, InstructionId, Module, Names, Op, ShardingSpec};
use memplan_memory::Family;
use memplan_rewriter::interface::set_interface;
use memplan_rewriter::{CALL_INLINER, Context, DCE, PassError, PassFn};

use rustc_hash::FxHashSet;

use crate::notes::Notes;
use crate::propagate::Cuts;

/// Makes the program of one device, for looking at it.
pub const SPMD_PARTITIONER: PassFn = PassFn {
    name: "spmd-partitioner",
    description: "make the program of one of the devices over which shardings spread it",
    run: |module, context| {
        let partitioned = partition(module, context)?;
        let is_changed = partitioned.is_some();
        partitioned.into_iter().for_each(|of_one| *module = of_one.module);
        Ok(is_changed)
    },
};

/// The program of one of several devices. It runs on all of them at once, each with its part of the arguments.
#[derive(Clone, Debug)]
pub struct OfOneDevice {
    /// The program, with its collectives.
    pub module: Module,
    /// How many devices run it.
    pub devices: u64,
    /// How the leaves of the parameters are cut.
    pub parameters: Vec<ShardingSpec>,
    /// How the leaves of the result are cut.
    pub results: Vec<ShardingSpec>,
    /// Devices along each axis of the grid.
    grid: cut::Grid,
    of_parameters: Vec<cut::Cut>,
    of_results: Vec<cut::Cut>,
}

impl OfOneDevice {
    /// Where a device's part of a parameter begins, by the number of the leaf and the extents of the part.
    pub fn parameter_starts(&self, leaf: usize, device: u64, part: &[i64]) -> Vec<i64> {
        self.grid.starts(&self.of_parameters[leaf], device as i64, part)
    }

    /// Where a device's part of a result begins.
    pub fn result_starts(&self, leaf: usize, device: u64, part: &[i64]) -> Vec<i64> {
        self.grid.starts(&self.of_results[leaf], device as i64, part)
    }
}

/// The program of one of the devices over which shardings spread a program. `None` where nothing is cut, where devices are
/// cut in ways that are not known here, where a result would be cut otherwise than the donated parameter that it lives in,
/// or where a compiler has done it. Close to linear.
///
/// # Errors
/// Calls could not be inlined.
pub fn partition(module: &Module, context: &Context<'_>) -> Result<Option<OfOneDevice>, PassError> {
    if module.is_scheduled || !has_notes(module) {
        return Ok(None);
    }
    let mut partitioned = module.clone();
    (CALL_INLINER.run)(&mut partitioned, context)?;
    split_splats(&mut partitioned);
    let Some(notes) = Notes::read(&partitioned) else { return Ok(None) };
    let Some(cuts) = Cuts::find(&partitioned, notes) else { return Ok(None) };
    let entry = partitioned.entry_computation();
    let of_parameters: Vec<cut::Cut> =
        entry.parameters.iter().flat_map(|&parameter| cuts.of(parameter).cloned()).collect();
    let of_results: Vec<cut::Cut> = cuts.of(entry.root).cloned().collect();
    partition::partition(&mut partitioned, &cuts, context.target.family != Family::Cpu);
    if partitioned.config.entry_computation_layout.is_some() {
        set_interface(&mut partitioned);
    }
    if !donations_fit(&partitioned) {
        return Ok(None);
    }
    partitioned.compact();
    (DCE.run)(&mut partitioned, context)?;
    partitioned.compact();
    let grid = cuts.grid;
    let specs = |all: &[cut::Cut]| all.iter().map(|cut| grid.spec(cut)).collect();
    let (parameters, results) = (specs(&of_parameters), specs(&of_results));
    let devices = grid.devices() as u64;
    Ok(Some(OfOneDevice {
        module: partitioned,
        devices,
        parameters,
        results,
        grid,
        of_parameters,
        of_results,
    }))
}

/// Whether the results that live in donated parameters are cut as these.
fn donations_fit(module: &Module) -> bool {
    let entry = module.entry_computation();
    module.config.input_output_alias.iter().all(|alias| {
        let parameter = entry.parameters.get(alias.parameter as usize).map(|&id| module.shape(id));
        let parameter = parameter.and_then(|shape| shape.subshape(&alias.parameter_index)?.as_array());
        let result =
            module.shape(entry.root).subshape(&alias.output_index).and_then(|shape| shape.as_array());
        parameter.zip(result).is_some_and(|(a, b)| a.dimensions == b.dimensions)
    })
}

/// Whether anything is said about shardings.
fn has_notes(module: &Module) -> bool {
    module.instructions.values().any(|instruction| {
        instruction.extras.as_ref().is_some_and(|extras| extras.sharding.is_some())
            || notes::Call::of(&instruction.op).is_some()
    })
}

/// Gives each use of a broadcast number, and of a count, one of its own: that two values begin as the same zeros does not
/// mean that they are cut alike.
fn split_splats(module: &mut Module) {
    let mut names = Names::new(module);
    let computations: Vec<ComputationId> = module.computations.keys().collect();
    for computation in computations {
        let mut is_used = FxHashSet::default();
        module.edit_in_order(computation, |module, id| {
            for k in 0..module.instructions[id].operands.len() {
                let operand = module.instructions[id].operands[k];
                let splat = &module.instructions[operand];
                let is_number = splat.op.repeats_scalar() || matches!(splat.op, Op::Iota { .. });
                if is_number && !is_used.insert(operand) {
                    let operands = splat.operands.clone();
                    let copy = Cursor::beside(module, &mut names, operand).copy_of(operand, operands);
                    module.instructions[id].operands[k] = copy;
                }
            }
            module.list(id);
        });
    }
}

/// The parameters of the entry, which are arrays.
fn array_parameters(module: &Module) -> Option<&[InstructionId]> {
    let parameters = &module.entry_computation().parameters;
    let is_array = |&id: &InstructionId| {
        matches!(module.instructions[id].op, Op::Parameter { .. }) && module.shape(id).as_array().is_some()
    };
    parameters.iter().all(is_array).then_some(parameters)
}
