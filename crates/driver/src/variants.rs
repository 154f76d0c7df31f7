//! Variants of the stages of `compile`, which leave out a technique or apply it more strongly. Each is a row of data.

use memplan_analysis::Machine;
use memplan_memory::{FusionGoal, MemorySpaceId, Target};
use memplan_passes::{
    AnyPass, BANDS, Bands, Fusion, FusionOptions, LOOP_RESIDUALS, LoopResiduals, OneIn, Pass, Products,
    REMAT, ROW_BLOCKS, Remat, RowBlocks,
};

use crate::Stages;

/// A variant of the usual way to compile.
#[derive(Clone, Debug)]
pub struct Variant {
    /// Its name.
    pub name: &'static str,
    /// How it differs from the usual way.
    pub description: &'static str,
    /// Its changes of the stages.
    pub changes: Vec<StageChange>,
}

/// A change of the stages.
#[derive(Clone, Debug)]
pub enum StageChange {
    /// The passes of this name are left out.
    Without(&'static str),
    /// Recomputation has other options.
    Recompute(fn(Remat) -> Remat),
    /// The stage with passes of this name runs more passes at its end.
    After(&'static str, AnyPass),
    /// The stage of this name runs another pass first.
    Before(&'static str, AnyPass),
    /// Recomputation may cost time: for each byte that is not kept, `times` the time of writing it to main memory and
    /// reading it back, in the part `reach` of the program and of the steps of its loops ([`Remat::reach`],
    /// [`LoopResiduals::reach`]).
    Price {
        /// The factor.
        times: f64,
        /// The part of the program.
        reach: f64,
        /// The most often that the peak may be lowered: see [`Remat::max_rounds`].
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
        variant("usual", "every technique, as long as it costs little time", [])
    }

    /// The stages of this variant on a machine, made from the usual ones.
    pub(crate) fn stages(&self, usual: &Stages, target: &Target) -> Stages {
        let mut stages = usual.clone();
        self.changes.iter().for_each(|change| change.apply(&mut stages, target));
        stages
    }

    /// The variants that may be faster: techniques that save bytes for time are left out.
    pub fn faster() -> Vec<Variant> {
        use StageChange::{Fuse, Recompute, Without};
        let kept = || Without(REMAT.name());
        vec![
            variant("kept values", "nothing is recomputed after the peak", [kept()]),
            variant("kept products", "no product is recomputed", [Recompute(without_products)]),
            variant("one round", "recomputation lowers the peak once", [Recompute(in_one_round)]),
            variant(
                "fewer kernels",
                "kernels take in operations that keep up to twice as many bytes alive",
                [Fuse(with_slack)],
            ),
            variant("few kernels", "kernels take in every operation they can", [Fuse(for_speed)]),
            variant(
                "few kernels, kept values",
                "kernels take in every operation they can, and nothing is recomputed after the peak",
                [Fuse(for_speed), kept()],
            ),
            variant("kept rows", "loops keep rows for other loops", [Without("loop-residuals")]),
        ]
    }

    /// The variants that may need fewer bytes for more time: the price of a byte, the part of the program before the
    /// peak where it applies, and whether the largest arrays ever exist as a whole.
    pub fn smaller() -> Vec<Variant> {
        let whole =
            "values may also be recomputed at a cost in time: a byte is worth moving it this many times";
        let early = "the same, in the first part of the program before the peak, and of the steps of loops";
        let priced = |name, times, reach, rounds| {
            let description = if reach < 1.0 { early } else { whole };
            variant(name, description, [StageChange::Price { times, reach, rounds }])
        };
        let in_blocks = |name, change: StageChange| {
            let blocks = StageChange::After(LOOP_RESIDUALS.name(), LARGEST_IN_BLOCKS.into());
            let description = "the largest arrays are computed in blocks of rows, and as above";
            variant(name, description, [change, blocks])
        };
        let priced_in_blocks =
            |name, times, reach| in_blocks(name, StageChange::Price { times, reach, rounds: 1 });
        let in_bands = |name, share| {
            let bands = StageChange::Before("lay out", Bands { share, ..BANDS }.into());
            variant(name, "layers on images are computed in bands of rows", [bands])
        };
        // The variants that help most programs come first, since large programs try only the first.
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
            in_bands("bands of rows", 0.0),
            in_bands("bands of rows, a quarter", 0.25),
            in_bands("bands of rows, half", 0.5),
        ]
    }
}

/// Arrays that alone are a large part of the peak, such as logits.
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
            StageChange::Before(name, pass) => {
                let stages = each.filter(|stage| stage.name == *name);
                stages.for_each(|stage| stage.passes.to_mut().insert(0, pass.clone()));
            }
            &StageChange::Price { times, reach, rounds } => {
                let seconds_per_byte = 2.0 * Machine::new(target).memory_seconds(MemorySpaceId::MAIN, 1.0);
                let products = match seconds_per_byte > 0.0 {
                    true => Products::ForSecondsPerByte(times * seconds_per_byte),
                    // If the time to move bytes is unknown, no byte is worth any time.
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
