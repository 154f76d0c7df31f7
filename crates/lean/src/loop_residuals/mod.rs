//! `loop-residuals`: a loop recomputes rows instead of reading those that an earlier loop kept for it.
//!
//! Before: the forward loop of a scanned training step writes, for each step, every value that its derivative needs
//! into a row of a large array, a *residual*, and the backward loop reads the rows in reverse. After: a row is kept
//! only if it is expensive to compute, or smaller than its operands.
//!
//! ```text
//! forward, step i:  g = dot(h, w)                         g = dot(h, w)
//!                   s = logistic(g)                       s = logistic(g)
//!                   t = multiply(s, subtract(1, s))       ...
//!                   keeps s and t               =>        keeps g
//! backward, row r:  s = s_kept[r], t = t_kept[r]          s = logistic(g_kept[r]), t = multiply(s, subtract(1, s))
//! ```
//!
//! A minimum cut of the data flow of one step selects the rows to keep, as in [`crate::REMAT`]. The capacity of a value
//! is its bytes times the number of steps. It is zero if the backward loop has the value anyway, and its bytes counted
//! once if neither loop changes the value. Expensive operations and loop-carried state are connected to the source.
//!
//! Left alone: loops with an unknown number of steps, residuals with other readers, rows that are not whole, and loops
//! with control dependencies. Requires inlined calls; leaves dead state behind for `while-simplifier`. *Changed* means
//! that a residual is recomputed.

mod apply;
mod choose;
mod find;

use memplan_ir::{Module, Names, Users};
use memplan_memory::Bytes;
use memplan_rewriter::{Context, Outcome, Pass, PassError, Report};

use crate::remat::Products;

/// The pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoopResiduals {
    /// Which matrix products and convolutions may be recomputed.
    pub products: Products,
    /// The part of a step, from its begin, in which values may be recomputed that take time to compute. With less than all
    /// of it, less is recomputed, and more is kept.
    pub reach: f64,
    /// Most times that pairs of loops are looked for. Each time, a loop is part of one pair.
    pub max_rounds: usize,
    /// The bytes kept must shrink by this fraction at least: less is not worth the longer program.
    pub min_gain: f64,
}

/// The pass as `compile` runs it.
pub const LOOP_RESIDUALS: LoopResiduals =
    LoopResiduals { products: Products::Cheap, reach: 1.0, max_rounds: 4, min_gain: 1.0 / 16.0 };

impl Default for LoopResiduals {
    fn default() -> LoopResiduals {
        LOOP_RESIDUALS
    }
}

/// The residuals that are recomputed, loop by loop.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResidualsReport {
    /// Pairs of loops, in the order in which they were rewritten.
    pub pairs: Vec<ResidualPair>,
}

/// Two loops, the second of which recomputes rows that the first kept for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResidualPair {
    /// Name of the first loop.
    pub producer: Box<str>,
    /// Name of the second loop.
    pub consumer: Box<str>,
    /// How often each of them runs: the number of rows.
    pub steps: u64,
    /// Bytes of the residuals before.
    pub before: Bytes,
    /// Bytes that are kept for the second loop now.
    pub after: Bytes,
    /// Names of the instructions of the first loop whose rows are recomputed.
    pub recomputed: Vec<Box<str>>,
}

impl Pass for LoopResiduals {
    fn name(&self) -> &'static str {
        "loop-residuals"
    }

    fn description(&self) -> &'static str {
        "Recompute rows in a loop instead of keeping them in an earlier loop"
    }

    fn run(&self, module: &mut Module, context: &Context<'_>) -> Result<Outcome, PassError> {
        let mut names = Names::new(module);
        let mut report = ResidualsReport::default();
        for _ in 0..self.max_rounds {
            let users = Users::new(module);
            let pairs = find::pairs(module, &users);
            let choices: Vec<_> = pairs
                .into_iter()
                .filter_map(|pair| {
                    choose::choose(module, context.target, &pair, self).map(|kept| (pair, kept))
                })
                .collect();
            if choices.is_empty() {
                break;
            }
            for (pair, kept) in choices {
                let recomputed = apply::apply(module, &pair, &kept, &mut names);
                report.pairs.push(ResidualPair {
                    producer: module.instructions[pair.producer.id].name.clone(),
                    consumer: module.instructions[pair.consumer.id].name.clone(),
                    steps: pair.n_rows,
                    before: kept.bytes_before,
                    after: kept.bytes_after,
                    recomputed,
                });
            }
        }
        let changed = !report.pairs.is_empty();
        Ok(Outcome { changed, report: changed.then(|| Report::new(report)) })
    }
}
