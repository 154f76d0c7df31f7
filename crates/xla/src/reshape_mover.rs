//! `reshape-mover`: moves transposes behind the elementwise operations that read them.
//!
//! ```text
//!   t = f32[8,4] transpose(x)                e = f32[4,8] exponential(x)
//!   e = f32[8,4] exponential(t)       =>     u = f32[8,4] transpose(e)
//! ```
//!
//! A product that reads the result can then absorb the transpose. Unlike `layout-normalization`, this pass does not
//! choose layouts: transposes with other readers, and those before reductions, stay. XLA's pass of this name also moves
//! reshapes, which take no memory but on TPUs, where `splits-last` moves some.
//!
//! *Changed* means that an operation was moved before a transpose.

use memplan_ir::{InstructionId, Module};
use memplan_rewriter::{Context, PassError, PassFn, Rewriter};

use super::layout_normalization::{is_elementwise, permutation, pointwise};

/// The pass.
pub const RESHAPE_MOVER: PassFn = PassFn {
    name: "reshape-mover",
    description: "compute elementwise before transposing, as XLA's CPU and TPU compilers do",
    run,
};

fn run(module: &mut Module, _: &Context<'_>) -> Result<bool, PassError> {
    let mut rewriter = Rewriter::new(module);
    rewriter.sweep(|r, id| {
        let moves = is_elementwise(r, id) && !reads_shared_transpose(r, id);
        moves.then(|| pointwise(r, id)).flatten()
    });
    Ok(rewriter.finish())
}

/// Whether an operand is a transpose that somebody else reads, too.
fn reads_shared_transpose(r: &Rewriter<'_>, id: InstructionId) -> bool {
    let operands = r.operands(id);
    let here = |transpose| operands.iter().filter(|&&operand| operand == transpose).count() as u32;
    operands.iter().any(|&operand| permutation(r, operand).is_some() && r.uses(operand) > here(operand))
}
