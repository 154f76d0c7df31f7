//! `change-op-data-type`: computes products and convolutions in a type that the libraries support.
//!
//! ```text
//!   d = f16[64,64] dot(x, y)      =>      xw = f32[64,64] convert(x)
//!                                         yw = f32[64,64] convert(y)
//!                                         dw = f32[64,64] dot(xw, yw)
//!                                         d = f16[64,64] convert(dw)
//! ```
//!
//! The libraries of XLA's CPU compiler do not multiply f16 (seen on jaxlib 0.10.2), so all three arrays are in memory a
//! second time, and twice as wide. Nor do they compute float products of integers: the operands are converted to floats
//! first, and so are floats of eight bits, to the type of the product. Left alone: f16 with another type. *Changed* means
//! that there was such a product.

use memplan_ir::{ArrayShape, ElementType, InstructionId, Op, Shape};
use memplan_rewriter::{Rewriter, Sweep};

/// The pass.
pub const CHANGE_OP_DATA_TYPE: Sweep = Sweep {
    name: "change-op-data-type",
    description: "multiply f16 in f32, and integers to floats in floats, as XLA's CPU compiler does",
    rule: widen,
};

fn widen(r: &mut Rewriter<'_>, id: InstructionId) -> Option<InstructionId> {
    if !matches!(r.op(id), Op::Dot(_) | Op::Convolution(_)) {
        return None;
    }
    let operands = [r.operand(id, 0), r.operand(id, 1)];
    let result = r.array(id)?.clone();
    let are_all =
        |is: fn(ElementType) -> bool| operands.iter().all(|&operand| r.element_type(operand).is_some_and(is));
    let is_narrow = |t: ElementType| t.is_floating() && t.bits() <= 8;
    let wide = if are_all(|t| t == ElementType::F16) {
        ElementType::F32
    } else if result.element_type.is_floating()
        && (are_all(ElementType::is_integral) || are_all(is_narrow) && !is_narrow(result.element_type))
    {
        result.element_type
    } else {
        return None;
    };
    let op = r.op(id).clone();
    let operands = operands.map(|operand| converted(r, operand, wide));
    let product = ArrayShape { element_type: wide, layout: None, ..result.clone() };
    let product = r.emit(op, operands, Shape::Array(product));
    Some(converted(r, product, result.element_type))
}

fn converted(r: &mut Rewriter<'_>, id: InstructionId, to: ElementType) -> InstructionId {
    let array = r.array(id).expect("arrays are multiplied");
    if array.element_type == to {
        return id;
    }
    let shape = Shape::Array(ArrayShape { element_type: to, ..array.clone() });
    r.emit(Op::Convert, [id], shape)
}
