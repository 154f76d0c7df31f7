//! Ways to compile: the stages of `compile` with techniques left out, or driven further. Each is a row of data.

use memplan_analysis::Machine;
use memplan_memory::{FusionGoal, MemorySpaceId, Target};
use memplan_passes::{
    AnyPass, Fusion, FusionOptions, LOOP_RESIDUALS, LoopResiduals, OneIn, Pass, Products, REMAT, ROW_BLOCKS,
    Remat, RowBlocks,
};

use crate::Stages;

/// A way to compile beside the usual one.
#[derive(Clone, Debug)]
pub struct Variant {
    /// Its name.
    pub name: &'static str,
    /// What it does differently, for people.
    pub description: &'static str,
    /// What it changes in the stages.
    pub changes: Vec<StageChange>,
}

/// A change of the stages.
#[derive(Clone, Debug)]
pub enum StageChange {
    /// The passes of a name are left out.
    Without(&'static str),
    /// Recomputation has other options.
    Recompute(fn(Remat) -> Remat),
    /// The stage with the passes of a name does something more in the end.
    After(&'static str, AnyPass),
    /// Recomputation takes time: as much for a byte that is not kept as so many `times` writing it to main memory and
    /// reading it back, in the part of the program, and of the steps of its loops, that `reach` says ([`Remat::reach`],
    /// [`LoopResiduals::reach`]).
    Price {
        /// How often.
        times: f64,
        /// In which part.
        reach: f64,
        /// How often the peak may be lowered at most: see [`Remat::max_rounds`].
        rounds: usize,
    },
    /// Each way to fuse has other options.
    Fuse(fn(Fusion) -> Fusion),
}

fn variant(
    name: &'static str,
    description: &'static str,
    changes: impl IntoIterator<Item = StageChange>,
) -> Variant {
    Variant { name, description, changes: changes.into_iter().collect() }
}

fn for_speed(fusion: Fusion) -> Fusion {
    Fusion { options: FusionOptions { goal: Some(FusionGoal::Kernels), ..fusion.options }, ..fusion }
}

fn with_slack(fusion: Fusion) -> Fusion {
    Fusion { options: FusionOptions { slack: OneIn(1), ..fusion.options }, ..fusion }
}

fn without_products(remat: Remat) -> Remat {
    Remat { products: Products::Kept, ..remat }
}

fn in_one_round(remat: Remat) -> Remat {
    Remat { max_rounds: 1, ..remat }
}

impl Variant {
    /// The usual way.
    pub(crate) fn usual() -> Variant {
        variant("usual", "every technique, as far as it costs little", [])
    }

    /// The stages of this variant on a machine, made from those of the usual way.
    pub(crate) fn stages(&self, usual: &Stages, target: &Target) -> Stages {
        let mut stages = usual.clone();
        self.changes.iter().for_each(|change| change.apply(&mut stages, target));
        stages
    }

    /// The variants that may be faster: what saves bytes for time is left out.
    pub fn faster() -> Vec<Variant> {
        use StageChange::{Fuse, Recompute, Without};
        let kept = || Without(REMAT.name());
        vec![
            variant("kept values", "nothing is computed again after the peak", [kept()]),
            variant("kept products", "no product is computed again", [Recompute(without_products)]),
            variant("one round", "recomputation lowers the peak once", [Recompute(in_one_round)]),
            variant(
                "fewer kernels",
                "kernels take in what keeps twice as many bytes alive",
                [Fuse(with_slack)],
            ),
            variant("few kernels", "kernels take in what they can", [Fuse(for_speed)]),
            variant(
                "few kernels, kept values",
                "kernels take in what they can, and nothing is computed again after the peak",
                [Fuse(for_speed), kept()],
            ),
            variant("kept rows", "loops keep rows for other loops", [Without("loop-residuals")]),
        ]
    }

    /// The variants that may need fewer bytes for more time: what a byte is worth, and in which part of what runs before
    /// the peak; and whether the largest arrays are ever there as a whole.
    pub fn smaller() -> Vec<Variant> {
        let whole = "what takes time is computed again, too, where a byte is worth moving it so many times";
        let early = "the same, in the first part of what runs before the peak, and of the steps of loops";
        let priced = |name, times, reach, rounds| {
            let description = if reach < 1.0 { early } else { whole };
            variant(name, description, [StageChange::Price { times, reach, rounds }])
        };
        let in_blocks = |name, change: StageChange| {
            let blocks = StageChange::After(LOOP_RESIDUALS.name(), LARGEST_IN_BLOCKS.into());
            let description = "the largest arrays are computed a block of rows at a time, and as above";
            variant(name, description, [change, blocks])
        };
        let priced_in_blocks =
            |name, times, reach| in_blocks(name, StageChange::Price { times, reach, rounds: 1 });
        // What most programs are smaller with comes first: of large programs only the first are tried.
        vec![
            priced_in_blocks("blocks of rows, price 2", 2.0, 1.0),
            priced("price 2", 2.0, 1.0, 1),
            in_blocks("blocks of rows", StageChange::Recompute(in_one_round)),
            priced_in_blocks("blocks of rows, price 2, three quarters", 2.0, 0.75),
            priced_in_blocks("blocks of rows, price 1.4", 1.4, 1.0),
            priced_in_blocks("blocks of rows, price 2, first half", 2.0, 0.5),
            priced_in_blocks("blocks of rows, price 1.4, first half", 1.4, 0.5),
            priced("price 16", 16.0, 1.0, 1),
            priced("price 2, first half, many rounds", 2.0, 0.5, REMAT.max_rounds),
            priced("price 1.4", 1.4, 1.0, 1),
            in_blocks("blocks of rows, kept products", StageChange::Recompute(without_products)),
            priced_in_blocks("blocks of rows, price 16", 16.0, 1.0),
            priced("price 1, many rounds", 1.0, 1.0, REMAT.max_rounds),
            priced("price 4, three quarters, many rounds", 4.0, 0.75, REMAT.max_rounds),
        ]
    }
}

/// Arrays that alone are a good part of the peak, such as logits.
const LARGEST_IN_BLOCKS: RowBlocks = RowBlocks { min_share: OneIn(10), max_rounds: 1, ..ROW_BLOCKS };

impl StageChange {
    fn apply(&self, stages: &mut Stages, target: &Target) {
        let Stages { front, recompute, before_fusion, fusions, legalize } = stages;
        let each = front.iter_mut().chain([recompute, before_fusion, legalize]);
        match self {
            StageChange::Without(name) => each.for_each(|stage| *stage = stage.without(name)),
            StageChange::Recompute(change) => {
                each.for_each(|stage| *stage = stage.with(REMAT.name(), change(REMAT)));
            }
            StageChange::After(name, pass) => {
                let stages = each.filter(|stage| stage.contains(name));
                stages.for_each(|stage| stage.passes.to_mut().push(pass.clone()));
            }
            &StageChange::Price { times, reach, rounds } => {
                let seconds_per_byte = 2.0 * Machine::new(target).memory_seconds(MemorySpaceId::MAIN, 1.0);
                let products = match seconds_per_byte > 0.0 {
                    true => Products::ForSecondsPerByte(times * seconds_per_byte),
                    // Where nobody knows how long bytes take, no byte is worth any time.
                    false => REMAT.products,
                };
                let remat = Remat { products, reach, max_rounds: rounds, ..REMAT };
                let residuals = LoopResiduals { products, reach, ..LOOP_RESIDUALS };
                each.for_each(|stage| {
                    *stage = stage.with(REMAT.name(), remat).with(LOOP_RESIDUALS.name(), residuals);
                });
            }
            StageChange::Fuse(change) => fusions.iter_mut().for_each(|fusion| *fusion = change(*fusion)),
        }
    }
}
