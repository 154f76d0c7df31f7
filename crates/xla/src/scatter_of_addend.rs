//! `scatter-of-addend`: lets a scatter add to an array, instead of adding its result to that array.
//!
//! ```text
//!   s = f32[8,16] scatter(0, at, u), add        =>     r = f32[8,16] scatter(x, at, u), add
//!   r = f32[8,16] add(x, s)
//! ```
//!
//! XLA's algebraic simplifier does this to gradients of look-ups, which are added to another gradient. Seen in 0.12 on
//! XLA CPU and GPU, on all programs of docs/truth.md with such sums. Left alone: scatters with other readers.
//! *Changed* means that there is a new scatter.

use memplan_ir::{BinaryOp, InstructionId, Op};
use memplan_rewriter::{Rewriter, Sweep};

/// The pass.
pub const SCATTER_OF_ADDEND: Sweep = Sweep {
    name: "scatter-of-addend",
    description: "scatter into the array that the result is added to, as XLA's algebraic simplifier does",
    rule,
};

fn rule(r: &mut Rewriter<'_>, id: InstructionId) -> Option<InstructionId> {
    let &[first, second] = r.operands(id) else { return None };
    let is_sum = matches!(r.op(id), Op::Binary(BinaryOp::Add)) && !r.has_control_dependencies(id);
    let (scatter, addend) = match () {
        () if !is_sum || first == second => return None,
        () if adds_to_zeros(r, first) => (first, second),
        () if adds_to_zeros(r, second) => (second, first),
        () => return None,
    };
    Some(r.copy(scatter, |scatter| scatter.operands[0] = addend))
}

/// Whether an instruction scatters into zeros, for one reader, by sums.
fn adds_to_zeros(r: &Rewriter<'_>, id: InstructionId) -> bool {
    let instruction = r.get(id);
    if !matches!(instruction.op, Op::Scatter(_)) || instruction.operands.len() != 3 || r.uses(id) != 1 {
        return false;
    }
    let combiner = &r.module().computations[instruction.called[0]];
    let root = r.get(combiner.root);
    let sums = matches!(root.op, Op::Binary(BinaryOp::Add)) && root.operands[..] == combiner.parameters[..];
    sums && r.splat(instruction.operands[0]).is_some_and(|value| value.is_zero())
}
