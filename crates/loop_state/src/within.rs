//! `keep-within-loops`: a loop neither stacks a value that is equal in every step, nor a value that is only summed
//! after it.
//!
//! ```text
//! w = while(..)                                           w = while(..)
//!   weights' = dynamic-update-slice(weights, v, i)          sum' = add(sum, reduce(exponential(row)))
//!   rows' = dynamic-update-slice(rows, row, i)      =>
//! v_j = dynamic-slice(weights, j)                         v_j = v
//! sum = reduce(exponential(rows))                         sum = get-tuple-element(w)
//! ```
//!
//! * A stack whose every row is a value that does not change from step to step is a broadcast ([`unchanging`]); a loop
//!   that reads rows of a broadcast carries the operand of the broadcast. Bit for bit the same.
//! * Rows that are only summed after the loop, possibly after elementwise operations and reductions of each row, are
//!   summed in the loop ([`summed`]).
//!
//! The program is simplified between rounds, since only then may a value be known to be invariant. Left alone: loops
//! with an unknown number of steps, shardings or control dependencies; stacks with other readers. Requires inlined
//! calls, and flat loop state. *Changed* means that a stack was removed.

use memplan_ir::{Module, Op};
use memplan_rewriter::{Context, Outcome, Pass, PassError, Pipeline};

use crate::{summed, unchanging};

/// The pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KeepWithinLoops {
    /// Most times that the module is looked at: stacks of stacks take one for each loop around.
    pub max_rounds: usize,
    /// The most operations between a loop and the sum that it takes over, sums included.
    pub max_operations: usize,
    /// A stack of fewer bytes is left for a reduction after the loop, which is one kernel, and not one a step.
    pub min_summed_bytes: u64,
    /// The passes that simplify the program between rounds.
    pub simplify: &'static Pipeline,
    /// Whether to simplify the module before the first round. If that finds nothing, the module stays unchanged.
    pub simplifies_first: bool,
}

impl Pass for KeepWithinLoops {
    fn name(&self) -> &'static str {
        "keep-within-loops"
    }

    fn description(&self) -> &'static str {
        "let loops sum values instead of stacking them for a later sum, and stack no value that is equal in every step"
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
