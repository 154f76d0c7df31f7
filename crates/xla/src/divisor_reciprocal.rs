//! `divisor-reciprocal`: turns divisions by broadcasts into multiplications, as XLA's algebraic simplifier does.
//!
//! ```text
//!   s = f32[8,16] reduce(x, 0)                  s = f32[8,16] reduce(x, 0)
//!   b = f32[8,16,32] broadcast(s)         =>    r = f32[8,16] divide(1, s)
//!   q = f32[8,16,32] divide(x, b)               b = f32[8,16,32] broadcast(r)
//!                                               q = f32[8,16,32] multiply(x, b)
//! ```
//!
//! Applies if only the broadcast uses `s`. XLA first removes dimensions of extent 1 from a broadcast's operand by a
//! separate reshape, whose only user is the broadcast. So unmerged common subexpressions decide which divisions of a
//! softmax and its gradient share a broadcast, and which arrays a library can compute inside its kernels: the pass runs
//! before they are merged. In a program that XLA has partitioned they are merged already.
//!
//! A constant divisor becomes its reciprocal: kernels compute a product again where they would read a stored quotient.
//!
//! Left alone: other divisors that are shared, and constants divided by constants. *Changed* means that there is a new
//! reciprocal or reshape.

use memplan_ir::{BinaryOp, Dimensions, InstructionId, Op, Scalar, Shape};
use memplan_rewriter::{Rewriter, Sweep};

/// The pass.
pub const DIVISOR_RECIPROCAL: Sweep = Sweep {
    name: "divisor-reciprocal",
    description: "multiply by reciprocals that are broadcast, as XLA's algebraic simplifier does",
    rule,
};

fn rule(r: &mut Rewriter<'_>, id: InstructionId) -> Option<InstructionId> {
    match r.op(id) {
        Op::Broadcast { .. } => without_unit_dimensions(r, id),
        Op::Binary(BinaryOp::Divide) => by_reciprocal(r, id),
        _ => None,
    }
}

/// `broadcast(s)`, `s` of shape `[1,16]`, as `broadcast(reshape(s))` of shape `[16]`.
fn without_unit_dimensions(r: &mut Rewriter<'_>, id: InstructionId) -> Option<InstructionId> {
    let Op::Broadcast { dimensions } = r.op(id).clone() else { return None };
    let operand = r.operand(id, 0);
    let array = r.array(operand)?.clone();
    if !array.dimensions.contains(&1) || r.splat(operand).is_some() {
        return None;
    }
    let kept = array.dimensions.iter().zip(&dimensions).filter(|&(&extent, _)| extent != 1);
    let (extents, dimensions): (Vec<i64>, Dimensions) = kept.map(|(&extent, &d)| (extent, d)).unzip();
    let reshaped = r.emit(
        Op::Reshape { inferred_dimension: None },
        [operand],
        Shape::array(array.element_type, extents),
    );
    let shape = r.shape(id).clone();
    Some(r.emit(Op::Broadcast { dimensions }, [reshaped], shape))
}

fn by_reciprocal(r: &mut Rewriter<'_>, id: InstructionId) -> Option<InstructionId> {
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
