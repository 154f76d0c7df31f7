//! Elementwise operations on broadcasts: compute first, then broadcast.
//!
//! ```text
//! a = f32[8,4] broadcast(x), dimensions={0}       m = f32[8] multiply(x, y)
//! b = f32[8,4] broadcast(y), dimensions={0}  =>   ROOT r = f32[8,4] broadcast(m), dimensions={0}
//! ROOT r = f32[8,4] multiply(a, b)
//! ```

use memplan_analysis::is_elementwise;
use memplan_ir::{Dimensions, InstructionId, Op, Shape};

use crate::rewrite::Rewriter;

/// An elementwise operation whose operands are all broadcast along the same dimensions, or broadcasts of scalars.
pub(super) fn of_broadcasts(r: &mut Rewriter<'_>, id: InstructionId) -> Option<InstructionId> {
    if !is_elementwise(r.get(id)) || matches!(r.op(id), Op::StochasticConvert | Op::Copy) {
        return None;
    }
    // The operand that says which dimensions are broadcast: the one with most of its own.
    let widest = r.operands(id).iter().copied().max_by_key(|&operand| broadcast_rank(r, operand))?;
    let Op::Broadcast { dimensions } = r.op(widest) else { return None };
    let (dimensions, small) = (dimensions.clone(), r.dimensions(r.operand(widest, 0))?);
    let dimensions_of_result = r.dimensions(id)?;
    if small.len() == dimensions_of_result.len() || r.array(id)?.element_count() == Some(0) {
        return None;
    }
    // A bitcast-convert between widths has another rank.
    let rank = dimensions_of_result.len();
    let operands = r.operands(id).to_vec();
    if operands.iter().any(|&x| r.array(x).is_none_or(|x| x.rank() != 0 && x.rank() != rank)) {
        return None;
    }
    let sources: Vec<Source> =
        operands.iter().map(|&operand| source(r, operand, &dimensions, &small)).collect::<Option<_>>()?;
    let op = r.op(id).clone();
    let element_type = r.element_type(id)?;
    let sources: Vec<_> = sources
        .into_iter()
        .map(|source| match source {
            Source::Array(array) => array,
            Source::Scalar(scalar) => r.broadcast_scalar(scalar, &small),
        })
        .collect();
    let result = r.emit(op, sources, Shape::array(element_type, small));
    let shape = r.shape(id).clone();
    Some(r.emit(Op::Broadcast { dimensions }, [result], shape))
}

enum Source {
    Array(InstructionId),
    Scalar(InstructionId),
}

/// Dimensions that an operand has before it is broadcast; an array that is not a broadcast ranks above all.
fn broadcast_rank(r: &Rewriter<'_>, operand: InstructionId) -> usize {
    match r.op(operand) {
        Op::Broadcast { dimensions } => dimensions.len(),
        _ if r.array(operand).is_some_and(|array| array.rank() == 0) => 0,
        _ => usize::MAX,
    }
}

fn source(
    r: &Rewriter<'_>,
    operand: InstructionId,
    dimensions: &Dimensions,
    small: &[i64],
) -> Option<Source> {
    if r.array(operand)?.rank() == 0 {
        // The predicate of a select, the bounds of a clamp.
        return Some(Source::Scalar(operand));
    }
    let Op::Broadcast { dimensions: found } = r.op(operand) else { return None };
    let inner = r.operand(operand, 0);
    let inner_dimensions = &r.array(inner)?.dimensions;
    if inner_dimensions.is_empty() {
        return Some(Source::Scalar(inner));
    }
    (found == dimensions && inner_dimensions.as_slice() == small).then_some(Source::Array(inner))
}
