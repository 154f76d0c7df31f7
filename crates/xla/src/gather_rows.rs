//! `gather-rows`: looks up one row after the other.
//!
//! ```text
//!   g = f32[8,100,64] gather(x: f32[1000,64], at: s32[8,100])     =>     i = s32[800] reshape(at)
//!                                                                        r = f32[800,64] gather(x, i)
//!                                                                        g = f32[8,100,64] reshape(r)
//! ```
//!
//! libtpu's gathers have one dimension of indices. Where the last of several dimensions does not fill tiles, the reshapes copy:
//! of rows 8 fill a tile, and of single elements 128.
//!
//! Left alone: gathers that have it, those by several numbers, those whose reshapes are only other views, those of dynamic extents,
//! and indices of a type that cannot hold the number of a batch. *Changed* means that a gather has fewer dimensions.

use memplan_ir::{Dimensions, GatherDimensions, Insert, InstructionId, Op, Shape};
use memplan_rewriter::views::{LANES, SUBLANES, inverse};
use memplan_rewriter::{Rewriter, Sweep};

use crate::batched_gather_scatter_normalizer::{can_count, look_batches_up};

/// The pass.
pub const GATHER_ROWS: Sweep = Sweep {
    name: "gather-rows",
    description: "look up rows by one dimension of indices, as XLA's TPU compiler does",
    rule,
};

fn rule(r: &mut Rewriter<'_>, id: InstructionId) -> Option<InstructionId> {
    let Op::Gather(numbers) = r.op(id).clone() else { return None };
    let result = r.array(id)?.clone();
    let is_offset = |d: &i64| numbers.offset_dims.contains(d);
    let (offsets, batches): (Dimensions, Dimensions) = (0..result.rank() as i64).partition(is_offset);
    if batches.len() < 2 || numbers.start_index_map.len() != 1 || result.is_dynamic() {
        return None;
    }
    let extent = |d: &i64| result.dimensions[*d as usize];
    let n_rows: i64 = batches.iter().map(extent).product();
    let minor = extent(batches.last()?);
    let has_batches = !numbers.operand_batching_dims.is_empty();
    let is_view = match offsets.is_empty() {
        true => minor > LANES / 2 || has_batches,
        false => minor % SUBLANES == 0,
    };
    if is_view {
        return None;
    }
    let element_type = r.element_type(r.operand(id, 1))?;
    if has_batches && !can_count(element_type, batches.iter().map(extent)) {
        return None;
    }
    let mut one_by_one = GatherDimensions {
        offset_dims: (1..=offsets.len() as i64).collect(),
        index_vector_dim: 1,
        ..GatherDimensions::clone(&numbers)
    };
    let mut indices = r.reshaped(r.operand(id, 1), &[n_rows])?;
    if has_batches {
        let of_indices = look_batches_up(&mut one_by_one);
        let extents: Dimensions = batches.iter().map(extent).collect();
        let number = |r: &mut Rewriter<'_>, d: &i64| {
            let place = if *d < numbers.index_vector_dim { *d } else { *d - 1 };
            let batch = r.iota(Shape::array(element_type, extents.iter().copied()), place);
            r.reshape(batch, [n_rows, 1])
        };
        let mut all: Vec<InstructionId> = of_indices.iter().map(|d| number(r, d)).collect();
        all.push(r.reshape(indices, [n_rows, 1]));
        indices = r.concatenate(all, 1);
    }
    let rows = Shape::array(result.element_type, [n_rows].into_iter().chain(offsets.iter().map(extent)));
    let rows = r.emit(Op::Gather(Box::new(one_by_one)), [r.operand(id, 0), indices], rows);
    let order: Dimensions = batches.iter().chain(&offsets).copied().collect();
    let extents: Dimensions = order.iter().map(extent).collect();
    let rows = r.reshaped(rows, &extents)?;
    r.transposed(rows, &inverse(&order))
}
