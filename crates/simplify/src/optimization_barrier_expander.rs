//! `optimization-barrier-expander`: drops optimization barriers.
//!
//! ```text
//! b = f32[4] opt-barrier(a)
//! ROOT r = f32[4] exponential(b)       =>       ROOT r = f32[4] exponential(a)
//! ```
//!
//! A barrier keeps `cse` from merging what `jax.checkpoint` asks to compute twice. Once nothing is merged any more it
//! only does harm: all that it holds is alive at once, and nothing fuses across. So this runs after simplification, and
//! `cse` must not run after it, or memory is what the program was written to save.
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
