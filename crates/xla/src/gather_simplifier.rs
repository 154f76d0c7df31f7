//! `gather-simplifier`: gathers slices with all their dimensions, and drops those of extent 1 afterwards.
//!
//! ```text
//!   g = f32[9,4] gather(x, at),                   w = f32[9,1,4] gather(x, at),
//!       collapsed_slice_dims={0}           =>         collapsed_slice_dims={}
//!                                                 g = f32[9,4] reshape(w)
//! ```
//!
//! XLA's CPU compiler does the same to the updates of scatters. The reshapes cost nothing, but no kernel writes its result
//! over an array of another shape.
//!
//! Left alone: gathers and scatters with batches, and those whose slices do not come last. *Changed* means that there is
//! a new reshape.

use memplan_ir::{Dimensions, Insert, InstructionId, Op, Shape};
use memplan_rewriter::{Rewriter, Sweep};

/// The pass.
pub const GATHER_SIMPLIFIER: Sweep = Sweep {
    name: "gather-simplifier",
    description: "gather and scatter slices with all their dimensions, as XLA's CPU compiler does",
    rule,
};

fn rule(r: &mut Rewriter<'_>, id: InstructionId) -> Option<InstructionId> {
    match r.op(id) {
        Op::Gather(_) => gather(r, id),
        Op::Scatter(_) => scatter(r, id),
        _ => None,
    }
}

fn gather(r: &mut Rewriter<'_>, id: InstructionId) -> Option<InstructionId> {
    let Op::Gather(mut numbers) = r.op(id).clone() else { return None };
    if numbers.collapsed_slice_dims.is_empty() || !numbers.operand_batching_dims.is_empty() {
        return None;
    }
    let [x, indices] = [r.operand(id, 0), r.operand(id, 1)];
    let shape = r.shape(id).clone();
    let array = shape.as_array()?;
    let n_slices = leading(&array.dimensions, &numbers.offset_dims)?;
    let indices =
        index_vectors(r, indices, numbers.index_vector_dim, numbers.start_index_map.len(), n_slices)?;
    let whole: Dimensions = std::iter::once(n_slices).chain(numbers.slice_sizes.iter().copied()).collect();
    numbers.offset_dims = (1..whole.len() as i64).collect();
    numbers.collapsed_slice_dims = Dimensions::new();
    numbers.start_indices_batching_dims = Dimensions::new();
    numbers.index_vector_dim = 1;
    let wide = Shape::array(array.element_type, whole);
    let wide = r.emit(Op::Gather(numbers), [x, indices], wide);
    Some(r.emit(Op::Reshape { inferred_dimension: None }, [wide], shape))
}

fn scatter(r: &mut Rewriter<'_>, id: InstructionId) -> Option<InstructionId> {
    let Op::Scatter(mut numbers) = r.op(id).clone() else { return None };
    let &[x, indices, updates] = r.operands(id) else { return None };
    if numbers.inserted_window_dims.is_empty() || !numbers.input_batching_dims.is_empty() {
        return None;
    }
    let array = r.array(updates)?.clone();
    let n_slices = leading(&array.dimensions, &numbers.update_window_dims)?;
    let rank = r.array(x)?.rank() as i64;
    let mut kept = array.dimensions[array.dimensions.len() - numbers.update_window_dims.len()..].iter();
    let mut whole: Dimensions = [n_slices].into_iter().collect();
    for d in 0..rank {
        whole.push(if numbers.inserted_window_dims.contains(&d) { 1 } else { *kept.next()? });
    }
    let n_indices = numbers.scatter_dims_to_operand_dims.len();
    let indices = index_vectors(r, indices, numbers.index_vector_dim, n_indices, n_slices)?;
    numbers.update_window_dims = (1..=rank).collect();
    numbers.inserted_window_dims = Dimensions::new();
    numbers.scatter_indices_batching_dims = Dimensions::new();
    numbers.index_vector_dim = 1;
    let updates = r.reshape(updates, whole);
    let op = Op::Scatter(numbers);
    Some(r.copy(id, |scatter| {
        scatter.op = op;
        scatter.operands = [x, indices, updates].into_iter().collect();
    }))
}

/// How many slices there are, if their own dimensions come last.
fn leading(dimensions: &[i64], of_slice: &[i64]) -> Option<i64> {
    let n_before = dimensions.len().checked_sub(of_slice.len())?;
    let is_last = of_slice.iter().enumerate().all(|(i, &d)| d == (n_before + i) as i64);
    is_last.then(|| dimensions[..n_before].iter().product())
}

/// The indices as one row for each slice; nothing where the elements of rows do not lie side by side.
fn index_vectors(
    r: &mut Rewriter<'_>,
    indices: InstructionId,
    index_vector_dim: i64,
    n_indices: usize,
    n_slices: i64,
) -> Option<InstructionId> {
    let rank = r.array(indices)?.rank() as i64;
    if index_vector_dim + 1 < rank {
        return None;
    }
    r.reshaped(indices, &[n_slices, n_indices as i64])
}
