//! `loop-residuals`: what one loop keeps for another is recomputed there from less.
//!
//! Before: the forward loop of a scanned training step writes, for each step, everything that its derivative needs into
//! rows of large arrays, *residuals*, and the backward loop takes the rows out again, the last first. After: only rows
//! that are expensive to compute, or smaller than what they are computed from, are kept.
//!
//! ```text
//! forward, step i:  g = dot(h, w)                         g = dot(h, w)
//!                   s = logistic(g)                       s = logistic(g)
//!                   t = multiply(s, subtract(1, s))       ...
//!                   keeps s and t               =>        keeps g
//! backward, row r:  s = s_kept[r], t = t_kept[r]          s = logistic(g_kept[r]), t = multiply(s, subtract(1, s))
//! ```
//!
//! What to keep is a minimum cut of the data flow of one step, as in [`crate::REMAT`]: every value is as wide as its
//! bytes times the number of steps, what the backward loop has anyway costs nothing, what neither changes costs its own
//! bytes once, and expensive operations and state that is carried from step to step hang on the source.
//!
//! Left alone: loops whose number of steps is not known, residuals that anything else reads, rows that are not whole,
//! and loops with control dependencies. Requires inlined calls; leaves dead state behind for `while-simplifier`.
//! *Changed* means that a residual is recomputed.

mod apply;
mod choose;
mod find;

use memplan_ir::{Module, Names, Users};

use memplan_memory::Target;

use crate::PassFn;
use crate::remat::Products;

/// The pass.
pub const LOOP_RESIDUALS: PassFn = PassFn {
    name: "loop-residuals",
    description: "Recompute in a loop what an earlier loop would keep for it row by row",
    run: |module, context| Ok(recompute_residuals(module, context.target, Products::Cheap)),
};

/// Most times that pairs of loops are looked for. Each time, a loop is part of one pair.
const MAX_ROUNDS: usize = 4;

/// Recomputes rows from cheap operations, and as many products as may be: what [`LOOP_RESIDUALS`] does, with its
/// choice. Says whether anything changed.
pub fn recompute_residuals(module: &mut Module, target: &Target, products: Products) -> bool {
    let mut names = Names::new(module);
    let mut changed = false;
    for _ in 0..MAX_ROUNDS {
        let users = Users::new(module);
        let pairs = find::pairs(module, &users);
        let choices: Vec<_> = pairs
            .into_iter()
            .filter_map(|pair| choose::choose(module, target, &pair, products).map(|kept| (pair, kept)))
            .collect();
        if choices.is_empty() {
            break;
        }
        for (pair, kept) in choices {
            apply::apply(module, &pair, &kept, &mut names);
        }
        changed = true;
    }
    changed
}
