//! `batched-gather-scatter-normalizer`: gathers and scatters with batches as those of one large batch.
//!
//! ```text
//!   g = f32[8,5] gather(x, at), operand_batching_dims={0}      b = s32[8,5,1] iota(), iota_dimension=0
//!                                                         =>   i = s32[8,5,2] concatenate(b, at), dimensions={2}
//!                                                              g = f32[8,5] gather(x, i)
//! ```
//!
//! XLA's compilers begin with this, so that the numbers of batches are among the indices.
//!
//! Left alone: indices of a type that cannot hold the number of a batch. *Changed* means that there is a new concatenation.

use memplan_ir::{Dimensions, ElementType, GatherDimensions, Insert, InstructionId, Op, Shape};
use memplan_rewriter::{Rewriter, Sweep};

/// The pass.
pub const BATCHED_GATHER_SCATTER_NORMALIZER: Sweep = Sweep {
    name: "batched-gather-scatter-normalizer",
    description: "write numbers of batches among the indices of gathers and scatters, as XLA's compilers do",
    rule,
};

fn rule(r: &mut Rewriter<'_>, id: InstructionId) -> Option<InstructionId> {
    match r.op(id).clone() {
        Op::Gather(mut numbers) if !numbers.operand_batching_dims.is_empty() => {
            let of_indices = look_batches_up(&mut numbers);
            let indices = with_batches(r, r.operand(id, 1), numbers.index_vector_dim, &of_indices)?;
            let shape = r.shape(id).clone();
            let x = r.operand(id, 0);
            Some(r.emit(Op::Gather(numbers), [x, indices], shape))
        }
        Op::Scatter(mut numbers) if !numbers.input_batching_dims.is_empty() => {
            let of_indices = std::mem::take(&mut numbers.scatter_indices_batching_dims);
            // Arrays, indices, and updates for each array.
            let at = r.operands(id).len() / 2;
            let indices = with_batches(r, r.operand(id, at), numbers.index_vector_dim, &of_indices)?;
            let of_input = std::mem::take(&mut numbers.input_batching_dims);
            numbers.scatter_dims_to_operand_dims.insert_from_slice(0, &of_input);
            numbers.inserted_window_dims.extend(of_input);
            numbers.inserted_window_dims.sort_unstable();
            numbers.indices_are_sorted &= numbers.scatter_dims_to_operand_dims.is_sorted();
            Some(r.copy(id, |scatter| {
                scatter.op = Op::Scatter(numbers);
                scatter.operands[at] = indices;
            }))
        }
        _ => None,
    }
}

/// Puts the numbers of batches before the other indices of a gather. Returns the dimensions of the indices that are batches.
pub(crate) fn look_batches_up(numbers: &mut GatherDimensions) -> Dimensions {
    let of_operand = std::mem::take(&mut numbers.operand_batching_dims);
    numbers.start_index_map.insert_from_slice(0, &of_operand);
    numbers.collapsed_slice_dims.extend(of_operand);
    numbers.collapsed_slice_dims.sort_unstable();
    numbers.indices_are_sorted &= numbers.start_index_map.is_sorted();
    std::mem::take(&mut numbers.start_indices_batching_dims)
}

/// Whether indices of a type can be the numbers of so many batches along each dimension.
pub(crate) fn can_count(element_type: ElementType, batches: impl IntoIterator<Item = i64>) -> bool {
    matches!(element_type, ElementType::S32 | ElementType::U32 | ElementType::S64 | ElementType::U64)
        && batches.into_iter().all(|n| n <= i64::from(i32::MAX))
}

/// The indices with the numbers of these dimensions before them.
fn with_batches(
    r: &mut Rewriter<'_>,
    indices: InstructionId,
    vector: i64,
    batching: &Dimensions,
) -> Option<InstructionId> {
    let array = r.array(indices)?;
    let element_type = array.element_type;
    let mut dimensions = array.dimensions.clone();
    if !can_count(element_type, batching.iter().map(|&d| dimensions[d as usize])) {
        return None;
    }
    let vector = vector as usize;
    let mut indices = indices;
    if vector == dimensions.len() {
        dimensions.push(1);
        indices = r.reshape(indices, dimensions.iter().copied());
    }
    let n_indices = std::mem::replace(&mut dimensions[vector], 1);
    let one = Shape::array(element_type, dimensions.iter().copied());
    let mut all: Vec<InstructionId> =
        batching.iter().map(|&dimension| r.emit(Op::Iota { dimension }, [], one.clone())).collect();
    all.push(indices);
    dimensions[vector] = n_indices + batching.len() as i64;
    let shape = Shape::array(element_type, dimensions);
    Some(r.emit(Op::Concatenate { dimension: vector as i64 }, all, shape))
}
