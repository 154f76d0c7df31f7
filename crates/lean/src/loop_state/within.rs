//! `keep-within-loops`: a loop does not stack what is the same in every step, nor what is summed up after it.
//!
//! ```text
//! w = while(..)                                           w = while(..)
//!   weights' = dynamic-update-slice(weights, v, i)          sum' = add(sum, reduce(exponential(row)))
//!   rows' = dynamic-update-slice(rows, row, i)      =>
//! v_j = dynamic-slice(weights, j)                         v_j = v
//! sum = reduce(exponential(rows))                         sum = get-tuple-element(w)
//! ```
//!
//! * What a loop writes into every row of a stack, and what does not change from step to step, is a broadcast
//!   ([`unchanging`]); and where a loop reads rows of a broadcast, it carries what is broadcast. Bit for bit the same.
//! * Rows that are only summed up after the loop, elementwise operations and reductions of each row before that included, are
//!   summed up by it ([`summed`]).
//!
//! A program is simplified before it is looked at again: what is invariant may only then be seen to be. Left alone: loops
//! whose number of steps is not known, with shardings or control dependencies; stacks that somebody else reads. Requires
//! inlined calls, and flat state of loops. *Changed* means that a stack has gone.

use memplan_ir::{Module, Op};
use memplan_rewriter::{Context, Outcome, Pass, PassError, Pipeline};

use super::{summed, unchanging};

/// The pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KeepWithinLoops {
    /// Most times that the module is looked at: stacks of stacks take one for each loop around.
    pub max_rounds: usize,
    /// Most operations between a loop and the end of what becomes part of it, sums included.
    pub max_operations: usize,
    /// A stack of fewer bytes is left for a reduction after the loop, which is one kernel, and not one a step.
    pub min_summed_bytes: u64,
    /// What simplifies the program before it is looked at again.
    pub simplify: &'static Pipeline,
    /// Whether the module is simplified before it is looked at for the first time. Where nothing is found then, it stays
    /// as it is.
    pub simplifies_first: bool,
}

impl Pass for KeepWithinLoops {
    fn name(&self) -> &'static str {
        "keep-within-loops"
    }

    fn description(&self) -> &'static str {
        "let loops sum up what they would stack to be summed, and stack nothing that stays the same"
    }

    fn run(&self, module: &mut Module, context: &Context<'_>) -> Result<Outcome, PassError> {
        if !self.simplifies_first {
            return Ok(self.settle(module, context)?.into());
        }
        let mut listed = module.computations.values().flat_map(|computation| &computation.instructions);
        if !listed.any(|&id| module.instructions[id].op == Op::While) {
            return Ok(Outcome::default());
        }
        let mut simple = module.clone();
        self.simplify.run(&mut simple, context)?;
        let changed = self.settle(&mut simple, context)?;
        if changed {
            *module = simple;
        }
        Ok(changed.into())
    }
}

impl KeepWithinLoops {
    fn settle(&self, module: &mut Module, context: &Context<'_>) -> Result<bool, PassError> {
        let mut changed = false;
        for _ in 0..self.max_rounds {
            let has_unchanging = unchanging::run(module, self.max_operations);
            let has_summed = summed::run(module, context.target, self);
            if !(has_unchanging || has_summed) {
                break;
            }
            self.simplify.run(module, context)?;
            changed = true;
        }
        Ok(changed)
    }
}
