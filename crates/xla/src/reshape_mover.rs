//! `reshape-mover`: moves transposes behind the elementwise operations that read them.
//!
//! ```text
//!   t = f32[8,4] transpose(x)                e = f32[4,8] exponential(x)
//!   e = f32[8,4] exponential(t)       =>     u = f32[8,4] transpose(e)
//! ```
//!
//! A product that reads the result can then absorb the transpose. Other operands are transposed in the same way, or only
//! repeat. Transposes with other readers stay. XLA's pass of this name also moves reshapes, which take no memory but on TPUs,
//! where `splits-last` moves some.
//!
//! *Changed* means that an operation was moved before a transpose.

use memplan_ir::{Dimensions, InstructionId, Op, Shape};
use memplan_rewriter::views::inverse;
use memplan_rewriter::{Rewriter, Sweep, cost};
use smallvec::SmallVec;

/// The pass.
pub const RESHAPE_MOVER: Sweep = Sweep {
    name: "reshape-mover",
    description: "compute elementwise before transposing, as XLA's CPU and TPU compilers do",
    rule,
};

fn rule(r: &mut Rewriter<'_>, id: InstructionId) -> Option<InstructionId> {
    let moves = is_elementwise(r, id) && !reads_shared_transpose(r, id);
    moves.then(|| pointwise(r, id)).flatten()
}

/// Whether an operand is a transpose that somebody else reads, too.
fn reads_shared_transpose(r: &Rewriter<'_>, id: InstructionId) -> bool {
    let operands = r.operands(id);
    let here = |transpose| operands.iter().filter(|&&operand| operand == transpose).count() as u32;
    operands.iter().any(|&operand| permutation(r, operand).is_some() && r.uses(operand) > here(operand))
}

/// An operation on the elements of arrays that are transposed in the same way, or only repeat.
fn pointwise(r: &mut Rewriter<'_>, id: InstructionId) -> Option<InstructionId> {
    let transpose = r.operands(id).iter().copied().find(|&operand| permutation(r, operand).is_some())?;
    let order = permutation(r, transpose)?.clone();
    let extents = r.dimensions(id)?;
    let is_movable = |&operand: &InstructionId| {
        r.dimensions(operand).is_some_and(|found| found.is_empty() || found == extents)
            && match r.op(operand) {
                Op::Transpose { dimensions } => *dimensions == order,
                Op::Broadcast { .. } | Op::Iota { .. } => true,
                Op::Constant(_) => r.splat(operand).is_some(),
                _ => r.dimensions(operand).is_some_and(|found| found.is_empty()),
            }
    };
    if r.has_control_dependencies(id) || !r.operands(id).iter().all(is_movable) {
        return None;
    }
    let moved = before_transpose(r, id, &order)?;
    r.transposed(moved, &order)
}

/// An elementwise operation as it is before its result is transposed into `order`.
fn before_transpose(r: &mut Rewriter<'_>, id: InstructionId, order: &Dimensions) -> Option<InstructionId> {
    let (extents, element_type) = (r.dimensions(id)?, r.element_type(id)?);
    let back = inverse(order);
    let operands: SmallVec<[InstructionId; 4]> = r.operands(id).iter().copied().collect();
    let operands: Option<Vec<InstructionId>> =
        operands.into_iter().map(|operand| untransposed(r, operand, order)).collect();
    let shape = Shape::array(element_type, back.iter().map(|&d| extents[d as usize]));
    let op = r.op(id).clone();
    Some(r.emit(op, operands?, shape))
}

/// What an operand is before it is transposed into `order`; `None` if that takes another transpose.
fn untransposed(r: &mut Rewriter<'_>, operand: InstructionId, order: &Dimensions) -> Option<InstructionId> {
    let outer = r.dimensions(operand)?;
    if outer.is_empty() {
        return Some(operand);
    }
    let inner: Dimensions = inverse(order).iter().map(|&d| outer[d as usize]).collect();
    let shape = Shape::array(r.element_type(operand)?, inner.clone());
    match r.op(operand).clone() {
        Op::Transpose { dimensions } if dimensions == *order => Some(r.operand(operand, 0)),
        Op::Iota { dimension } => Some(r.emit(Op::Iota { dimension: order[dimension as usize] }, [], shape)),
        Op::Constant(_) => {
            let value = r.splat(operand)?;
            Some(r.splat_array(value, &inner))
        }
        Op::Broadcast { dimensions } => {
            let moved: Dimensions = dimensions.iter().map(|&d| order[d as usize]).collect();
            let mut by_place: Dimensions = (0..moved.len() as i64).collect();
            by_place.sort_by_key(|&i| moved[i as usize]);
            let source = r.operand(operand, 0);
            let source = match permutation(r, source).cloned() {
                // Transposed and back.
                Some(back) if by_place.iter().enumerate().all(|(i, &at)| back[at as usize] == i as i64) => {
                    r.operand(source, 0)
                }
                _ => r.transposed(source, &by_place)?,
            };
            let dimensions = by_place.iter().map(|&i| moved[i as usize]).collect();
            Some(r.emit(Op::Broadcast { dimensions }, [source], shape))
        }
        _ => None,
    }
}

/// Whether an operation computes each element of its result from those at the same place, and calls nothing for that.
pub(super) fn is_elementwise(r: &Rewriter<'_>, id: InstructionId) -> bool {
    cost::is_pointwise(r.module(), id) && r.get(id).called.is_empty()
}

pub(super) fn permutation<'r>(r: &'r Rewriter<'_>, id: InstructionId) -> Option<&'r Dimensions> {
    match r.op(id) {
        Op::Transpose { dimensions } => Some(dimensions),
        _ => None,
    }
}
