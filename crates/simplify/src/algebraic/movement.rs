//! Operations that move elements without computing: broadcast, reshape, transpose, reverse, iota.
//!
//! After these rules, no broadcast has an operand dimension of extent one, nothing is moved twice in a row, and
//! operations that only rename dimensions are reshapes.

use memplan_ir::{ArrayLiteral, Dimensions, InstructionId, Literal, Op, Scalar, Shape};
use memplan_rewriter::Rewriter;
use memplan_rewriter::views::inverse;

use super::factors::{extended, groups, is_increasing, same_but_for_ones, without_ones};

/// A broadcast of something that is moved itself.
pub(super) fn broadcast(r: &mut Rewriter<'_>, id: InstructionId) -> Option<InstructionId> {
    let Op::Broadcast { dimensions } = r.op(id).clone() else { return None };
    let x = r.operand(id, 0);
    let (from, to, shape) = (r.dimensions(x)?, r.dimensions(id)?, r.shape(id).clone());
    if from == to && is_increasing(&dimensions) {
        return Some(x);
    }
    if from.contains(&1) {
        let kept: Dimensions = extended(&from).map(|(i, _)| dimensions[i]).collect();
        let small = Shape::array(r.element_type(x)?, without_ones(&from));
        let x = r.emit(Op::Reshape { inferred_dimension: None }, [x], small);
        return Some(r.emit(Op::Broadcast { dimensions: kept }, [x], shape));
    }
    if same_but_for_ones(&from, &to) && is_increasing(&dimensions) && !to.contains(&0) {
        return Some(r.emit(Op::Reshape { inferred_dimension: None }, [x], shape));
    }
    match r.op(x).clone() {
        Op::Broadcast { dimensions: inner } => {
            let inner = inner.iter().map(|&d| dimensions[d as usize]).collect();
            let x = r.operand(x, 0);
            Some(r.emit(Op::Broadcast { dimensions: inner }, [x], shape))
        }
        Op::Transpose { dimensions: permutation } => {
            let x = r.operand(x, 0);
            let dimensions = inverse(&permutation).iter().map(|&d| dimensions[d as usize]).collect();
            Some(r.emit(Op::Broadcast { dimensions }, [x], shape))
        }
        Op::Reshape { .. } => {
            let x = r.operand(x, 0);
            let source = r.dimensions(x)?;
            let keeps_dimensions = !source.contains(&1) && same_but_for_ones(&source, &from);
            keeps_dimensions.then(|| r.emit(Op::Broadcast { dimensions }, [x], shape))
        }
        Op::Iota { dimension } => {
            let dimension = dimensions[dimension as usize];
            Some(r.emit(Op::Iota { dimension }, [], shape))
        }
        _ => None,
    }
}

/// A reshape to the same extents, of a reshape, or of something that has no order of elements to keep.
pub(super) fn reshape(r: &mut Rewriter<'_>, id: InstructionId) -> Option<InstructionId> {
    let x = r.operand(id, 0);
    let (from, to, shape) = (r.dimensions(x)?, r.dimensions(id)?, r.shape(id).clone());
    if from == to {
        return Some(x);
    }
    match r.op(x).clone() {
        Op::Reshape { .. } => {
            let x = r.operand(x, 0);
            Some(r.emit(Op::Reshape { inferred_dimension: None }, [x], shape))
        }
        Op::Broadcast { dimensions } => reshape_of_broadcast(r, id, x, &dimensions),
        Op::Iota { dimension } => {
            let group = groups(&from, &to)?.into_iter().find(|g| g.from.contains(&(dimension as usize)))?;
            let mut extended_to = extended(&to).map(|(d, _)| d).filter(|d| group.to.contains(d));
            let (only, more) = (extended_to.next()?, extended_to.next());
            let is_whole = more.is_none() && to[only] == from[dimension as usize];
            is_whole.then(|| r.emit(Op::Iota { dimension: only as i64 }, [], shape))
        }
        // One array or the other has to be in memory; a second copy of a constant would not be better.
        Op::Constant(Literal::Array(literal)) if r.uses(x) == 1 => {
            let literal = ArrayLiteral { dimensions: to, ..literal };
            Some(r.emit(Op::Constant(Literal::Array(literal)), [], shape))
        }
        _ => None,
    }
}

/// Reshapes the operand of a broadcast instead of its result, where each group of dimensions that the reshape mixes
/// is made of broadcast dimensions only, or of the operand's only.
fn reshape_of_broadcast(
    r: &mut Rewriter<'_>,
    id: InstructionId,
    broadcast: InstructionId,
    dimensions: &[i64],
) -> Option<InstructionId> {
    let x = r.operand(broadcast, 0);
    let (from, to, shape) = (r.dimensions(broadcast)?, r.dimensions(id)?, r.shape(id).clone());
    if !is_increasing(dimensions) {
        return None;
    }
    let (mut new_extents, mut new_dimensions) = (Dimensions::new(), Dimensions::new());
    for group in groups(&from, &to)? {
        let mut is_kept =
            group.from.clone().filter(|&d| from[d] != 1).map(|d| dimensions.contains(&(d as i64)));
        let first = is_kept.next();
        if is_kept.any(|kept| Some(kept) != first) {
            return None;
        }
        if first == Some(true) {
            for d in group.to.filter(|&d| to[d] != 1) {
                new_extents.push(to[d]);
                new_dimensions.push(d as i64);
            }
        }
    }
    let small = Shape::array(r.element_type(x)?, new_extents.iter().copied());
    let x = if r.dimensions(x)? == new_extents {
        x
    } else {
        r.emit(Op::Reshape { inferred_dimension: None }, [x], small)
    };
    Some(r.emit(Op::Broadcast { dimensions: new_dimensions }, [x], shape))
}

/// A transpose that moves nothing, or of something that is moved already.
pub(super) fn transpose(r: &mut Rewriter<'_>, id: InstructionId) -> Option<InstructionId> {
    let Op::Transpose { dimensions: permutation } = r.op(id).clone() else { return None };
    let x = r.operand(id, 0);
    let shape = r.shape(id).clone();
    if is_increasing(&permutation) {
        return Some(x);
    }
    let extents = r.dimensions(x)?;
    let moved: Dimensions = permutation.iter().copied().filter(|&d| extents[d as usize] != 1).collect();
    if is_increasing(&moved) {
        return Some(r.emit(Op::Reshape { inferred_dimension: None }, [x], shape));
    }
    match r.op(x).clone() {
        Op::Transpose { dimensions: inner } => {
            let dimensions = permutation.iter().map(|&d| inner[d as usize]).collect();
            let x = r.operand(x, 0);
            Some(r.emit(Op::Transpose { dimensions }, [x], shape))
        }
        Op::Broadcast { dimensions: inner } => {
            let position = inverse(&permutation);
            let dimensions = inner.iter().map(|&d| position[d as usize]).collect();
            let x = r.operand(x, 0);
            Some(r.emit(Op::Broadcast { dimensions }, [x], shape))
        }
        Op::Iota { dimension } => {
            let dimension = inverse(&permutation)[dimension as usize];
            Some(r.emit(Op::Iota { dimension }, [], shape))
        }
        _ => None,
    }
}

/// A reversal of dimensions along which nothing varies, or of a reversal.
pub(super) fn reverse(r: &mut Rewriter<'_>, id: InstructionId) -> Option<InstructionId> {
    let Op::Reverse { dimensions } = r.op(id).clone() else { return None };
    let x = r.operand(id, 0);
    let extents = r.dimensions(x)?;
    let inner = r.op(x).clone();
    let varies = |d: &i64| match &inner {
        Op::Broadcast { dimensions } => dimensions.contains(d),
        Op::Iota { dimension } => dimension == d,
        _ => true,
    };
    let mut kept: Dimensions =
        dimensions.iter().copied().filter(|d| extents[*d as usize] > 1 && varies(d)).collect();
    let mut source = x;
    if let Op::Reverse { dimensions: undone } = &inner {
        // Two reversals cancel.
        let (first, second): (Dimensions, Dimensions) = (undone.clone(), kept.clone());
        kept.retain(|d| !first.contains(d));
        kept.extend(first.iter().copied().filter(|d| !second.contains(d)));
        source = r.operand(x, 0);
    }
    kept.sort_unstable();
    if kept.is_empty() {
        return Some(source);
    }
    let shape = r.shape(id).clone();
    let is_simpler = source != x || kept.len() < dimensions.len();
    is_simpler.then(|| r.emit(Op::Reverse { dimensions: kept }, [source], shape))
}

/// An iota along a dimension of extent one, which only counts to zero.
pub(super) fn iota(r: &mut Rewriter<'_>, id: InstructionId) -> Option<InstructionId> {
    let Op::Iota { dimension } = *r.op(id) else { return None };
    let dimensions = r.dimensions(id)?;
    let zero = Scalar::integer(r.element_type(id)?, 0);
    (dimensions[dimension as usize] == 1).then(|| r.splat_array(zero, &dimensions))
}

/// A constant that is the same everywhere: one element, broadcast, costs no memory.
pub(super) fn constant(r: &mut Rewriter<'_>, id: InstructionId) -> Option<InstructionId> {
    let dimensions = r.dimensions(id)?;
    let value = r.splat(id)?;
    (dimensions.iter().product::<i64>() > 1).then(|| r.splat_array(value, &dimensions))
}
