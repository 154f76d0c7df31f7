//! `scatter-slice-simplifier`: scatters into the part of an array that is read.
//!
//! ```text
//!   s = f32[9,16] scatter(0, at, u)             =>     r = f32[8,16] scatter(0, at, u)
//!   r = f32[8,16] slice(s), from the start
//! ```
//!
//! XLA's GPU compiler does this (seen on jaxlib 0.12). Gradients of pooling with padding at the end become arrays of the
//! extents without it, and share their zeros with others of these extents. What is scattered beyond the end is dropped.
//!
//! Left alone: parts that do not begin at the start, dimensions along which an update has several elements, scatters with
//! several results or other readers. *Changed* means that there is a new scatter.

use memplan_ir::{ArrayShape, InstructionId, Op, ScatterDimensions, Shape};
use memplan_rewriter::{Rewriter, Sweep};

/// The pass.
pub const SCATTER_SLICE_SIMPLIFIER: Sweep = Sweep {
    name: "scatter-slice-simplifier",
    description: "scatter into the part of an array that is read, as XLA's GPU compiler does",
    rule,
};

fn rule(r: &mut Rewriter<'_>, id: InstructionId) -> Option<InstructionId> {
    let Op::Slice { dimensions } = r.op(id).clone() else { return None };
    let scatter = r.operand(id, 0);
    let Op::Scatter(numbers) = r.op(scatter).clone() else { return None };
    let &[operand, indices, updates] = r.operands(scatter) else { return None };
    if r.uses(scatter) != 1 || r.has_control_dependencies(scatter) || r.has_control_dependencies(id) {
        return None;
    }
    let (whole, of_updates) = (r.array(operand)?, r.array(updates)?);
    let is_kept = |d: usize| {
        let of = dimensions[d];
        let is_single = || elements_along(&numbers, of_updates, whole.rank(), d) == Some(1);
        of.start == 0 && of.stride == 1 && (of.limit == whole.dimensions[d] || is_single())
    };
    if !(0..whole.rank()).all(is_kept) {
        return None;
    }
    let shape = Shape::Array(ArrayShape { layout: None, ..r.array(id)?.clone() });
    let combine = r.get(scatter).called[0];
    let part = match r.splat(operand) {
        Some(value) => r.splat_array(value, &r.array(id)?.dimensions.clone()),
        None => r.emit(Op::Slice { dimensions }, [operand], shape.clone()),
    };
    Some(r.emit_call(Op::Scatter(numbers), [part, indices, updates], [combine], shape))
}

/// How many elements along a dimension one index writes; `None` if the indices do not choose among all elements along it.
fn elements_along(numbers: &ScatterDimensions, updates: &ArrayShape, rank: usize, d: usize) -> Option<i64> {
    let d = d as i64;
    if !numbers.scatter_dims_to_operand_dims.contains(&d) {
        return None;
    }
    if numbers.inserted_window_dims.contains(&d) {
        return Some(1);
    }
    let is_in_window =
        |d: &i64| !numbers.inserted_window_dims.contains(d) && !numbers.input_batching_dims.contains(d);
    let at = (0..rank as i64).filter(is_in_window).position(|other| other == d)?;
    Some(updates.dimensions[*numbers.update_window_dims.get(at)? as usize])
}
