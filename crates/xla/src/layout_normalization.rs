//! `layout-normalization`: moves transposes behind the elementwise operations that read them.
//!
//! ```text
//!   t = f32[8,4] transpose(x)                e = f32[4,8] exponential(x)
//!   e = f32[8,4] exponential(t)       =>     u = f32[8,4] transpose(e)
//! ```
//!
//! XLA's layout assignment makes a transpose another view of the same bytes, and elementwise results and reductions of
//! the transposed array keep that order. If an operation needs another order, XLA's layout normalization writes a
//! transpose there. Only broadcasts and iotas have no order of their own. So if a product computes attention scores
//! with the queries last, they stay in this order through the softmax.
//!
//! Left alone: operations that read two arrays of which only one is transposed; XLA copies one of them. *Changed* means
//! that an operation was moved before a transpose.

use memplan_ir::{Dimensions, InstructionId, Module, Op, Shape};
use memplan_rewriter::views::inverse;
use memplan_rewriter::{Context, PassError, PassFn, Rewriter, cost};
use smallvec::SmallVec;

/// The pass.
pub const LAYOUT_NORMALIZATION: PassFn = PassFn {
    name: "layout-normalization",
    description: "compute elementwise before transposing, as XLA's GPU compiler lays arrays out",
    run,
};

fn run(module: &mut Module, _: &Context<'_>) -> Result<bool, PassError> {
    let mut rewriter = Rewriter::new(module);
    rewriter.sweep(|r, id| match r.op(id) {
        Op::Reduce { .. } => r.reduced_before_transpose(id),
        Op::Reshape { .. } => without_single_rows(r, id),
        Op::Transpose { dimensions } => {
            let dimensions = dimensions.clone();
            transpose(r, id, &dimensions)
        }
        _ if is_elementwise(r, id) => pointwise(r, id),
        _ => None,
    });
    Ok(rewriter.finish())
}

/// A transpose of a transpose, or one that brings back the order of what an operation between them reads.
fn transpose(r: &mut Rewriter<'_>, id: InstructionId, order: &Dimensions) -> Option<InstructionId> {
    let operand = r.operand(id, 0);
    if let Some(inner) = permutation(r, operand) {
        let both = order.iter().map(|&d| inner[d as usize]).collect();
        let source = r.operand(operand, 0);
        return r.transposed(source, &both);
    }
    let inverse = inverse(order);
    let brings_back = |&read: &InstructionId| permutation(r, read) == Some(&inverse);
    let extents = r.dimensions(operand)?;
    let is_movable =
        |&read: &InstructionId| r.dimensions(read).is_some_and(|found| found.is_empty() || found == extents);
    if !is_elementwise(r, operand)
        || r.uses(operand) != 1
        || r.has_control_dependencies(operand)
        || !r.operands(operand).iter().any(brings_back)
        || !r.operands(operand).iter().all(is_movable)
    {
        return None;
    }
    before_transpose(r, operand, &inverse)
}

/// An operation on the elements of arrays that are transposed in the same way, or only repeat.
pub(super) fn pointwise(r: &mut Rewriter<'_>, id: InstructionId) -> Option<InstructionId> {
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
    let operands: Option<Vec<InstructionId>> = operands
        .into_iter()
        .map(|operand| untransposed(r, operand, order).or_else(|| r.transposed(operand, &back)))
        .collect();
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

/// Dimensions of one element that a reshape drops are dropped before the transpose: only the others move elements.
fn without_single_rows(r: &mut Rewriter<'_>, id: InstructionId) -> Option<InstructionId> {
    let transpose = r.operand(id, 0);
    let order = permutation(r, transpose)?.clone();
    let source = r.operand(transpose, 0);
    let (inner, outer) = (r.dimensions(source)?, r.dimensions(transpose)?);
    let is_long = |&extent: &i64| extent != 1;
    let left: Dimensions = outer.iter().copied().filter(is_long).collect();
    if left.len() == outer.len() || r.dimensions(id)? != left {
        return None;
    }
    let element_type = r.element_type(id)?;
    let shape = Shape::array(element_type, inner.iter().copied().filter(is_long));
    let squeezed = r.emit(Op::Reshape { inferred_dimension: None }, [source], shape);
    let rank = |at: i64| inner[..at as usize].iter().filter(|&extent| is_long(extent)).count() as i64;
    let order = order.iter().filter(|&&at| inner[at as usize] != 1).map(|&at| rank(at)).collect();
    r.transposed(squeezed, &order)
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
