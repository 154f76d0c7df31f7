//! `reciprocals`: products with reciprocals in place of quotients.
//!
//! ```text
//!   q = divide(a, broadcast(b))      =>      q = multiply(a, broadcast(divide(1, b)))
//!   q = divide(a, broadcast(3))      =>      q = multiply(a, broadcast(0.333333343))
//! ```
//!
//! XLA's CPU compiler does so with floating-point numbers, of which quotients are *expensive*: no other kernel computes
//! one again, but each may compute the product. Left alone: divisors that have other readers, or are not broadcast, and
//! quotients of integers and complex numbers. *Changed* means that a quotient became a product.

use memplan_ir::{BinaryOp, InstructionId, Module, Op, Shape};

use crate::rewrite::Rewriter;
use crate::scalar::Scalar;
use crate::{Context, Pass, PassError};

/// The pass.
pub const RECIPROCALS: Pass = Pass {
    name: "reciprocals",
    description: "multiply by reciprocals of what is broadcast, as XLA's CPU compiler does",
    run,
};

fn run(module: &mut Module, _: &Context<'_>) -> Result<bool, PassError> {
    let mut rewriter = Rewriter::new(module);
    rewriter.sweep(|r, id| match r.op(id) {
        Op::Binary(BinaryOp::Divide) => as_product(r, id),
        _ => None,
    });
    Ok(rewriter.finish())
}

fn as_product(r: &mut Rewriter<'_>, id: InstructionId) -> Option<InstructionId> {
    let (dividend, divisor) = (r.operand(id, 0), r.operand(id, 1));
    let array = r.array(id)?.clone();
    if !array.element_type.is_floating() || array.dimensions.is_empty() {
        return None;
    }
    let factor = match r.op(divisor).clone() {
        _ if let Some(number) = r.splat(divisor) => {
            let reciprocal = Scalar::float(array.element_type, 1.0 / number.as_float()?)?;
            r.splat_array(reciprocal, &array.dimensions)
        }
        Op::Broadcast { dimensions } => {
            let narrow = r.operand(divisor, 0);
            let of_one = r.array(narrow)?.clone();
            if r.uses(narrow) != 1 {
                return None;
            }
            let one = r.splat_array(Scalar::integer(array.element_type, 1), &of_one.dimensions);
            let reciprocal = r.emit(Op::Binary(BinaryOp::Divide), [one, narrow], Shape::Array(of_one));
            r.emit(Op::Broadcast { dimensions }, [reciprocal], Shape::Array(array.clone()))
        }
        _ => return None,
    };
    Some(r.emit(Op::Binary(BinaryOp::Multiply), [dividend, factor], Shape::Array(array)))
}
