//! `optimization-barrier-expander`: drops optimization barriers.
//!
//! ```text
//! b = f32[4] opt-barrier(a)
//! ROOT r = f32[4] exponential(b)       =>       ROOT r = f32[4] exponential(a)
//! ```
//!
//! A barrier prevents `cse` from merging operations that `jax.checkpoint` wants to run twice. Once nothing is merged
//! any more, it only does harm: all its operands are live at once, and fusion stops at it. So this runs after
//! simplification, and `cse` must not run after it, since that would undo the program's savings.
//!
//! Leaves alone: barriers with control dependencies. Requires nothing. *Changed* means that a barrier was dropped.

use memplan_ir::{Module, Op};
use memplan_rewriter::{Context, PassError, PassFn, Rewriter};

/// Drops optimization barriers.
pub const OPTIMIZATION_BARRIER_EXPANDER: PassFn = PassFn {
    name: "optimization-barrier-expander",
    description: "drop optimization barriers, once nothing is merged any more",
    run,
};

fn run(module: &mut Module, _: &Context<'_>) -> Result<bool, PassError> {
    let mut rewriter = Rewriter::new(module);
    rewriter.sweep(|r, id| {
        let is_barrier = matches!(r.op(id), Op::OptimizationBarrier) && !r.is_pinned(id);
        is_barrier.then(|| r.operand(id, 0))
    });
    Ok(rewriter.finish())
}
