//! `sorts-across-lanes`: sorts along another dimension than the last one.
//!
//! ```text
//!   s = f32[256,512] sort(x), dimensions={1}      =>     xt = f32[512,256] transpose(x)
//!                                                        st = f32[512,256] sort(xt), dimensions={0}
//!                                                        s  = f32[256,512] transpose(st)
//! ```
//!
//! A sort along lanes is slow. Where another dimension fills a register, libtpu copies the arrays to a layout with that
//! dimension in lanes, and copies the sorted arrays back. Seen in 0.12 on 24 arrays: 128 rows are enough, 64 are not. Left alone: sorts at either end of a control dependency. *Changed* means that there was such a sort.

use memplan_ir::{Dimensions, Insert, InstructionId, Op, Shape};
use memplan_rewriter::views::LANES;
use memplan_rewriter::{Rewriter, Sweep};

/// The pass.
pub const SORTS_ACROSS_LANES: Sweep = Sweep {
    name: "sorts-across-lanes",
    description: "sort along another dimension than that of lanes, as XLA's TPU compiler does",
    rule: turn,
};

fn turn(r: &mut Rewriter<'_>, id: InstructionId) -> Option<InstructionId> {
    let Op::Sort { dimension, is_stable } = *r.op(id) else { return None };
    let operands = r.operands(id).to_vec();
    let extents = r.array(operands[0])?.dimensions.clone();
    let last = extents.len() - 1;
    let other = extents[..last].iter().rposition(|&extent| extent >= LANES);
    let other = other.filter(|_| dimension as usize == last)?;
    let mut order: Dimensions = (0..=last as i64).collect();
    order.swap(other, last);
    let turned = operands.iter().map(|&operand| turned(r, operand, &order)).collect::<Option<Vec<_>>>()?;
    let shapes: Vec<Shape> = turned.iter().map(|&operand| r.shape(operand).clone()).collect();
    let shape = if let [shape] = &shapes[..] { shape.clone() } else { Shape::tuple(shapes.clone()) };
    let op = Op::Sort { dimension: other as i64, is_stable };
    let comparator = r.get(id).called[0];
    let sorted = r.emit_call(op, turned, [comparator], shape);
    if shapes.len() == 1 {
        return r.transposed(sorted, &order);
    }
    let mut parts = Vec::new();
    for (index, shape) in (0..).zip(shapes) {
        let part = r.emit(Op::GetTupleElement { index }, [sorted], shape);
        parts.push(r.transposed(part, &order)?);
    }
    Some(r.tuple(parts))
}

/// An array with its dimensions in another order. Positions are made in that order.
fn turned(r: &mut Rewriter<'_>, id: InstructionId, order: &Dimensions) -> Option<InstructionId> {
    match *r.op(id) {
        Op::Iota { dimension } => {
            let array = r.array(id)?;
            let extents: Dimensions = order.iter().map(|&d| array.dimensions[d as usize]).collect();
            let shape = Shape::array(array.element_type, extents);
            let dimension = order.iter().position(|&d| d == dimension)? as i64;
            Some(r.emit(Op::Iota { dimension }, [], shape))
        }
        _ => r.transposed(id, order),
    }
}
