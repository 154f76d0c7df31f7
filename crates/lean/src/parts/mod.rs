//! `parts`: runs a program over parts of its batch, one after the other, in a loop.
//!
//! Every array of a training step that has a row per example, forward and backward, then exists for one part only, as
//! with `jax.lax.scan` over micro-batches:
//!
//! ```text
//!   h = f32[256,512] dot(x, w)                 for i in 0..8:
//!   l = f32[256,512] ...                  =>     h = f32[32,512] dot(x[i], w)
//!   g = f32[512,512] dot(x, l)                   l = f32[32,512] ...
//!                                                g = g + dot(x[i], l)
//! ```
//!
//! - [`labels`] says of each value whether it has rows of the batch, is a sum over the batch, or exists before or after
//!   the loop. Loops of the program are followed; those with rows in their state run within each part.
//! - [`sums`] says through which operations a sum over the batch passes, so that it is complete only after the loop.
//! - [`build`] writes the loop. The loop adds up sums, and writes results with a row per example in place.
//!
//! Only the index maps of [`rows`](crate::rows) decide; the pass does not recognize layers or losses. A value that
//! mixes examples (the statistics of a batch norm, a contrastive loss) ends the region: operations that depend on it
//! run after the loop, over the whole batch. If the value depends on little (the number of tokens that count), it is
//! computed before the loop instead.
//!
//! Results are equal up to the order of sums over the batch; products in up to eight parts are added in their own type.
//! Left alone: scheduled modules, modules for several partitions. Requires inlined calls and flat loop state.

mod before;
mod build;
mod labels;
mod sums;

use memplan_analysis::{BatchOfArguments, Dimensions};
use memplan_ir::{InstructionId, Module, Names};
use memplan_rewriter::{Context, OneIn, Outcome, Pass, PassError, Report};

use memplan_rewriter::rows::Rows;

/// The pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parts {
    /// The number of parts.
    pub n: i64,
    /// Values that the whole batch is needed for are computed before the loop if all that they depend on has at most this
    /// share of the bytes in the loop.
    pub before: OneIn,
}

/// The pass with the fewest parts.
pub const PARTS: Parts = Parts { n: 2, before: OneIn(64) };

impl Default for Parts {
    fn default() -> Parts {
        PARTS
    }
}

/// What runs in parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartsReport {
    /// The number of parts.
    pub n: i64,
    /// Examples in one part.
    pub examples: i64,
    /// Names of the first values that need the whole batch, of those that end the loop early.
    pub mixes: Vec<Box<str>>,
}

impl Pass for Parts {
    fn name(&self) -> &'static str {
        "parts"
    }

    fn description(&self) -> &'static str {
        "Run the program over parts of its batch in a loop, adding up what is summed over the batch"
    }

    fn run(&self, module: &mut Module, context: &Context<'_>) -> Result<Outcome, PassError> {
        let is_spread = module.config.num_partitions.is_some_and(|n| n > 1);
        if is_spread || module.is_scheduled || build::has_parts(module) {
            return Ok(Outcome::default());
        }
        let Some(batch) = Dimensions::follow(module).of_batch(module) else { return Ok(Outcome::default()) };
        let Some(seeds) = seeds(module, &batch, self.n) else { return Ok(Outcome::default()) };
        let (labels, mixes) = before::labels(module, context.target, &seeds, *self);
        let report = PartsReport {
            n: self.n,
            examples: batch.extent / self.n,
            mixes: mixes.iter().map(|&id| module.instructions[id].name.clone()).collect(),
        };
        let mut names = Names::new(module);
        if !build::build(module, &labels, &mut names) {
            return Ok(Outcome::default());
        }
        module.compact();
        Ok(Outcome { changed: true, report: Some(Report::new(report)) })
    }
}

/// The batch dimension of each parameter of the entry that has one, as rows; `None` if it does not divide into parts.
fn seeds(module: &Module, batch: &BatchOfArguments, n: i64) -> Option<Vec<(InstructionId, Rows)>> {
    let parameters = &module.entry_computation().parameters;
    let seeds = batch.parameters.iter().map(|&(number, dimension)| {
        let id = parameters[number];
        let extent = module.shape(id).as_array()?.dimensions[dimension];
        (extent % n == 0).then_some((id, Rows { dimension, unit: extent / n }))
    });
    let seeds: Vec<_> = seeds.collect::<Option<_>>()?;
    (n > 1 && !seeds.is_empty()).then_some(seeds)
}
