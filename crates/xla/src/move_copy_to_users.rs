//! `move-copy-to-users`: moves copies behind the operations that read nothing else.
//!
//! ```text
//!   t = f32[8,4] transpose(x)                e = f32[4,8] exponential(x)
//!   e = f32[8,4] exponential(t)       =>     u = f32[8,4] transpose(e)
//!   a = f32[8,4] add(t, y)                   a = f32[8,4] add(t, y)
//! ```
//!
//! Where an array is asked for in another layout, XLA's layout assignment copies it. `MoveCopyToUsers` then moves the copy
//! behind operations on the elements of one array, and of two that are copied alike; a reduction reads what is copied. Before
//! other operations the copy stays, also if they read nothing else but repeated elements. After `gpu-layout-assignment` all
//! arrays are row-major, and copies are transposes.
//!
//! *Changed* means that an operation was moved before a transpose, or that two transposes became one.

use memplan_ir::{Dimensions, InstructionId, Module, Op, Shape};
use memplan_rewriter::views::inverse;
use memplan_rewriter::{Context, PassError, PassFn, Rewriter};
use smallvec::SmallVec;

use super::reshape_mover::{is_elementwise, permutation};

/// The pass.
pub const MOVE_COPY_TO_USERS: PassFn = PassFn {
    name: "move-copy-to-users",
    description: "compute before copying into another layout, as XLA's GPU compiler does",
    run,
};

fn run(module: &mut Module, _: &Context<'_>) -> Result<bool, PassError> {
    let mut rewriter = Rewriter::new(module);
    rewriter.sweep(|r, id| match r.op(id).clone() {
        Op::Reduce { .. } => r.reduced_before_transpose(id),
        Op::Transpose { dimensions } => {
            let operand = r.operand(id, 0);
            let inner = permutation(r, operand)?;
            let both = dimensions.iter().map(|&d| inner[d as usize]).collect();
            let source = r.operand(operand, 0);
            r.transposed(source, &both)
        }
        Op::Reshape { .. } => reshaped(r, id),
        Op::ReducePrecision { .. } => None,
        op => before_copy(r, id, op),
    });
    Ok(rewriter.finish())
}

/// An operation before the copy of its operands, if all are copied alike, and the copy of its result.
fn before_copy(r: &mut Rewriter<'_>, id: InstructionId, mut op: Op) -> Option<InstructionId> {
    let n_copied = match op {
        Op::Slice { .. } | Op::Pad { .. } | Op::Reverse { .. } => 1,
        _ if is_elementwise(r, id) => r.operands(id).len(),
        _ => return None,
    };
    let mut operands: SmallVec<[InstructionId; 4]> = r.operands(id).iter().copied().collect();
    let order = permutation(r, *operands.first()?)?.clone();
    let is_copied = |&operand: &InstructionId| permutation(r, operand) == Some(&order);
    if n_copied > 2 || r.has_control_dependencies(id) || !operands[..n_copied].iter().all(is_copied) {
        return None;
    }
    operands[..n_copied].iter_mut().for_each(|operand| *operand = r.operand(*operand, 0));
    let back = inverse(&order);
    match &mut op {
        Op::Slice { dimensions } => *dimensions = back.iter().map(|&d| dimensions[d as usize]).collect(),
        Op::Pad { dimensions } => *dimensions = back.iter().map(|&d| dimensions[d as usize]).collect(),
        Op::Reverse { dimensions } => dimensions.iter_mut().for_each(|d| *d = order[*d as usize]),
        _ => {}
    }
    let extents = r.dimensions(id)?;
    let inner: Dimensions = back.iter().map(|&d| extents[d as usize]).collect();
    let moved = r.emit(op, operands, Shape::array(r.element_type(id)?, inner));
    r.transposed(moved, &order)
}

/// A reshape that adds or drops dimensions of one element, before the copy of its operand. XLA has moved them away by then.
fn reshaped(r: &mut Rewriter<'_>, id: InstructionId) -> Option<InstructionId> {
    let copy = r.operand(id, 0);
    let order = permutation(r, copy)?.clone();
    let (from, to) = (r.dimensions(copy)?, r.dimensions(id)?);
    let long = |extents: &Dimensions| -> Vec<i64> {
        (0..extents.len() as i64).filter(|&d| extents[d as usize] != 1).collect()
    };
    let (of_copy, of_result) = (long(&from), long(&to));
    let extents =
        |of: &[i64], all: &Dimensions| -> Dimensions { of.iter().map(|&d| all[d as usize]).collect() };
    if extents(&of_copy, &from) != extents(&of_result, &to) {
        return None;
    }
    let mut by_source: Vec<(i64, i64)> = of_copy.iter().map(|&d| order[d as usize]).zip(of_result).collect();
    by_source.sort_unstable();
    let ones = (0..to.len() as i64).filter(|&d| to[d as usize] == 1);
    let inner: Dimensions = by_source.iter().map(|&(_, d)| d).chain(ones).collect();
    let shape = Shape::array(r.element_type(id)?, inner.iter().map(|&d| to[d as usize]));
    let source = r.operand(copy, 0);
    let moved = r.emit(Op::Reshape { inferred_dimension: None }, [source], shape);
    r.transposed(moved, &inverse(&inner))
}
