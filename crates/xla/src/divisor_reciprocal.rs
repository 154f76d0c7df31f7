//! `divisor-reciprocal`: turns divisions by broadcasts into multiplications, as XLA's algebraic simplifier does.
//!
//! ```text
//!   s = f32[8,16] reduce(x, 0)                  s = f32[8,16] reduce(x, 0)
//!   b = f32[8,16,32] broadcast(s)         =>    r = f32[8,16] divide(1, s)
//!   q = f32[8,16,32] divide(x, b)               b = f32[8,16,32] broadcast(r)
//!                                               q = f32[8,16,32] multiply(x, b)
//! ```
//!
//! Applies if only the broadcast uses `s`. So unmerged common subexpressions decide which divisions of a softmax and its
//! gradient share a broadcast, and which arrays a library can compute inside its kernels: the pass runs before they are
//! merged. In a program that XLA has partitioned they are merged already.
//!
//! A constant divisor becomes its reciprocal: kernels compute a product again where they would read a stored quotient.
//!
//! Left alone: other divisors that are shared, and constants divided by constants. *Changed* means that there is a new
//! reciprocal.

use memplan_ir::{BinaryOp, InstructionId, Op, Scalar};
use memplan_rewriter::{Rewriter, Sweep};

/// The pass.
pub const DIVISOR_RECIPROCAL: Sweep = Sweep {
    name: "divisor-reciprocal",
    description: "multiply by reciprocals that are broadcast, as XLA's algebraic simplifier does",
    rule: by_reciprocal,
};

fn by_reciprocal(r: &mut Rewriter<'_>, id: InstructionId) -> Option<InstructionId> {
    if *r.op(id) != Op::Binary(BinaryOp::Divide) {
        return None;
    }
    let [dividend, divisor] = [r.operand(id, 0), r.operand(id, 1)];
    if let Some(constant) = r.splat(divisor) {
        let value = constant.as_float().filter(|_| r.splat(dividend).is_none())?;
        let reciprocal = Scalar::float(constant.element_type, 1.0 / value)?;
        let (dimensions, shape) = (r.dimensions(id)?, r.shape(id).clone());
        let factor = r.splat_array(reciprocal, &dimensions);
        return Some(r.emit(Op::Binary(BinaryOp::Multiply), [dividend, factor], shape));
    }
    let Op::Broadcast { dimensions } = r.op(divisor).clone() else { return None };
    let narrow = r.operand(divisor, 0);
    let (shape, of_narrow) = (r.shape(id).clone(), r.shape(narrow).clone());
    let array = r.array(narrow)?;
    let is_narrower = array.element_count() < r.array(id)?.element_count();
    let extents = array.dimensions.clone();
    // Pinned instructions count as used once more.
    let n_users = r.uses(narrow) - u32::from(r.is_pinned(narrow));
    if n_users != 1 || !is_narrower {
        return None;
    }
    let one = Scalar::float(array.element_type, 1.0)?;
    let one = r.splat_array(one, &extents);
    let reciprocal = r.emit(Op::Binary(BinaryOp::Divide), [one, narrow], of_narrow);
    let factor = r.emit(Op::Broadcast { dimensions }, [reciprocal], shape.clone());
    Some(r.emit(Op::Binary(BinaryOp::Multiply), [dividend, factor], shape))
}
