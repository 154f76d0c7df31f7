//! Slices, gathers and scatters: parts of an array, at constant or computed positions.

use crate::{ArrayShape, GatherDimensions, ScatterDimensions, Shape, SliceDimension};

use super::dimension::{Agreement, Dim, array, compatible, dim, dims, same_type, sizes_agree};
use super::{
    InferError, Inference, Result, attribute_error, brief, check_dimension, check_dimensions, check_length,
    membership, one_or_tuple,
};

impl<'a> Inference<'a> {
    pub(super) fn slice(&self, slices: &[SliceDimension]) -> Result<ArrayShape> {
        let operand = self.array(0)?;
        check_length("slice", slices.len(), operand.rank())?;
        let mut result = dims(operand);
        for (slot, &SliceDimension { start, limit, stride }) in result.iter_mut().zip(slices) {
            let text = || format!("[{start}:{limit}:{stride}]");
            let whole = !slot.is_unbounded() && start == 0 && limit == slot.size && stride == 1;
            if start < 0 || limit < start || !slot.is_unbounded() && limit > slot.size {
                let expected = format!("within the extent {}", slot.size);
                return Err(attribute_error("slice", expected, text()));
            }
            if stride <= 0 {
                return Err(attribute_error("slice", "of positive stride", text()));
            }
            // Both are at least zero, so neither the difference nor the rounded quotient can overflow.
            let size = (limit - start) / stride + i64::from((limit - start) % stride != 0);
            *slot = Dim { size, dynamic: slot.dynamic && whole };
        }
        array(operand.element_type, &result)
    }

    pub(super) fn dynamic_slice(&self, sizes: &[i64]) -> Result<ArrayShape> {
        let operand = self.array(0)?;
        self.check_start_indices(1, operand.rank())?;
        check_length("dynamic_slice_sizes", sizes.len(), operand.rank())?;
        let mut result = dims(operand);
        for (slot, &size) in result.iter_mut().zip(sizes) {
            if size < 0 || !slot.is_unbounded() && size > slot.size {
                return Err(attribute_error(
                    "dynamic_slice_sizes",
                    format!("within 0..={}", slot.size),
                    size,
                ));
            }
            *slot = Dim { size, dynamic: slot.dynamic && size == slot.size };
        }
        array(operand.element_type, &result)
    }

    pub(super) fn dynamic_update_slice(&self) -> Result<ArrayShape> {
        let (operand, update) = (self.array(0)?, self.array(1)?);
        self.check_start_indices(2, operand.rank())?;
        if !same_type(operand.element_type, update.element_type, Agreement::IgnoringPrecision) {
            return Err(self.mismatch(0, 1, "the same element type"));
        }
        let fits = |d: usize| {
            let (whole, part) = (dim(operand, d), dim(update, d));
            whole.is_unbounded() || part.is_unbounded() || (0..=whole.size).contains(&part.size)
        };
        if update.rank() != operand.rank() || !(0..operand.rank()).all(fits) {
            return Err(self.mismatch(0, 1, "the same rank, the second no larger extents"));
        }
        // An in-place update is rounded to the type of its operand.
        Ok(operand.clone())
    }

    /// Start indices are the operands `first..`: one integer scalar per dimension, or all in one vector.
    fn check_start_indices(&self, first: usize, rank: usize) -> Result<()> {
        let found = self.operands.len().saturating_sub(first);
        if found == 1 && self.array(first)?.rank() == 1 {
            let vector = self.array(first)?;
            if !vector.element_type.is_integral() || vector.dimensions[0] != rank as i64 {
                return Err(self.operand_error(first, format!("an integer vector of {rank} elements")));
            }
            return Ok(());
        }
        if found != rank {
            let expected = crate::Arity::exactly(first + rank);
            return Err(InferError::OperandCount { expected, found: self.operands.len() });
        }
        for i in first..self.operands.len() {
            let index = self.scalar(i)?;
            if !index.element_type.is_integral() {
                return Err(self.operand_error(i, "an integer scalar"));
            }
            if index.element_type != self.scalar(first)?.element_type {
                return Err(self.mismatch(first, i, "the same element type"));
            }
        }
        Ok(())
    }

    /// XLA's operation semantics, "Gather". The result has the batch dimensions of the indices (all but the index
    /// vector) and, at `offset_dims`, the slice dimensions that are neither collapsed nor batching.
    pub(super) fn gather(&self, numbers: &GatherDimensions) -> Result<ArrayShape> {
        let (operand, indices) = (self.array(0)?, self.index_array(1)?);
        let rank = operand.rank();
        let batch = self.index_batch_dims(indices, numbers.index_vector_dim)?;
        let vector_length = index_vector_length(indices, numbers.index_vector_dim);

        check_length("slice_sizes", numbers.slice_sizes.len(), rank)?;
        for (d, &size) in numbers.slice_sizes.iter().enumerate() {
            let whole = dim(operand, d);
            if size < 0 || !whole.is_unbounded() && size > whole.size {
                return Err(attribute_error("slice_sizes", format!("within 0..={}", whole.size), size));
            }
        }
        check_dimensions("start_index_map", &numbers.start_index_map, rank)?;
        if !sizes_agree(vector_length, numbers.start_index_map.len() as i64) {
            return Err(attribute_error(
                "start_index_map",
                format!("{vector_length} long, as the index vector"),
                format!("{} long", numbers.start_index_map.len()),
            ));
        }
        let removed = [&numbers.collapsed_slice_dims[..], &numbers.operand_batching_dims].concat();
        check_dimensions("collapsed_slice_dims and operand_batching_dims", &removed, rank)?;
        for &d in &removed {
            if numbers.slice_sizes[d as usize] > 1 {
                let expected = "at most 1 where the dimension is collapsed or batching";
                return Err(attribute_error("slice_sizes", expected, numbers.slice_sizes[d as usize]));
            }
        }
        self.check_batching(
            (&numbers.operand_batching_dims, &numbers.start_indices_batching_dims),
            operand,
            indices,
            numbers.index_vector_dim,
        )?;

        check_length("offset_dims", numbers.offset_dims.len(), rank - removed.len())?;
        let result_rank = batch.len() + numbers.offset_dims.len();
        check_sorted("offset_dims", &numbers.offset_dims)?;
        check_dimensions("offset_dims", &numbers.offset_dims, result_rank)?;
        let is_removed = membership(&removed, rank);
        let mut offsets = (0..rank).filter(|&d| !is_removed[d]).map(|d| {
            let size = numbers.slice_sizes[d];
            Dim { size, dynamic: dim(operand, d).dynamic && size == operand.dimensions[d] }
        });
        let mut batch = batch.into_iter();
        let result: Option<Vec<Dim>> = membership(&numbers.offset_dims, result_rank)
            .into_iter()
            .map(|is_offset| if is_offset { offsets.next() } else { batch.next() })
            .collect();
        array(operand.element_type, &result.expect("the two kinds of dimension add up to the rank"))
    }

    /// XLA's operation semantics, "Scatter": the reverse of a gather, whose result has the shape of the updates.
    pub(super) fn scatter(&self, numbers: &ScatterDimensions) -> Result<Shape> {
        let n = self.operands.len() / 2;
        let arrays = (0..n).map(|i| self.array(i)).collect::<Result<Vec<_>>>()?;
        let indices = self.index_array(n)?;
        let operand = arrays[0];
        let rank = operand.rank();
        let batch = self.index_batch_dims(indices, numbers.index_vector_dim)?;
        let vector_length = index_vector_length(indices, numbers.index_vector_dim);

        let map = &numbers.scatter_dims_to_operand_dims;
        check_dimensions("scatter_dims_to_operand_dims", map, rank)?;
        if !sizes_agree(vector_length, map.len() as i64) {
            return Err(attribute_error(
                "scatter_dims_to_operand_dims",
                format!("{vector_length} long, as the index vector"),
                format!("{} long", map.len()),
            ));
        }
        let removed = [&numbers.inserted_window_dims[..], &numbers.input_batching_dims].concat();
        check_dimensions("inserted_window_dims and input_batching_dims", &removed, rank)?;
        let mapped = [&map[..], &numbers.input_batching_dims].concat();
        check_dimensions("scatter_dims_to_operand_dims and input_batching_dims", &mapped, rank)?;
        self.check_batching(
            (&numbers.input_batching_dims, &numbers.scatter_indices_batching_dims),
            operand,
            indices,
            numbers.index_vector_dim,
        )?;
        check_length("update_window_dims", numbers.update_window_dims.len(), rank - removed.len())?;
        let update_rank = batch.len() + numbers.update_window_dims.len();
        check_sorted("update_window_dims", &numbers.update_window_dims)?;
        check_dimensions("update_window_dims", &numbers.update_window_dims, update_rank)?;

        let is_removed = membership(&removed, rank);
        let window: Vec<i64> = (0..rank).filter(|&d| !is_removed[d]).map(|d| operand.dimensions[d]).collect();
        let is_window = membership(&numbers.update_window_dims, update_rank);
        for (i, target) in arrays.iter().enumerate() {
            let update = self.array(n + 1 + i)?;
            if target.rank() != rank
                || !(0..rank).all(|d| sizes_agree(target.dimensions[d], operand.dimensions[d]))
            {
                return Err(self.mismatch(0, i, "the same extents"));
            }
            if !same_type(target.element_type, update.element_type, Agreement::IgnoringPrecision) {
                return Err(self.mismatch(i, n + 1 + i, "the same element type"));
            }
            self.check_updates(n + 1 + i, update, &batch, &window, &is_window)?;
        }
        self.scatter_result(&arrays)
    }

    /// An update has the batch dimensions of the indices and, at `update_window_dims`, extents that fit the window.
    fn check_updates(
        &self,
        number: usize,
        update: &ArrayShape,
        batch: &[Dim],
        window: &[i64],
        is_window: &[bool],
    ) -> Result<()> {
        let rank = batch.len() + window.len();
        if update.rank() != rank {
            return Err(self.operand_error(number, format!("of rank {rank}")));
        }
        let (mut batch, mut window) = (batch.iter(), window.iter());
        for (d, (&found, &is_window)) in update.dimensions.iter().zip(is_window).enumerate() {
            let (fits, expected) = if is_window {
                let bound = *window.next().expect("window dimensions were counted");
                let fits = found <= bound || bound == ArrayShape::UNBOUNDED || found == ArrayShape::UNBOUNDED;
                (fits, format!("of extent {bound} or less in dimension {d}"))
            } else {
                let size = batch.next().expect("batch dimensions were counted").size;
                (sizes_agree(found, size), format!("of extent {size} in dimension {d}"))
            };
            if !fits {
                return Err(self.operand_error(number, expected));
            }
        }
        Ok(())
    }

    /// Each result has the extents of its array and the type that the combiner yields for it.
    fn scatter_result(&self, arrays: &[&ArrayShape]) -> Result<Shape> {
        let combiner = self.signature(0)?;
        combiner.check_count(2 * arrays.len())?;
        for (i, array) in arrays.iter().enumerate() {
            let scalar = Shape::scalar(array.element_type);
            combiner.check_parameter(i, &scalar, Agreement::IgnoringPrecision)?;
            combiner.check_parameter(arrays.len() + i, &scalar, Agreement::IgnoringPrecision)?;
        }
        let scalars = one_or_tuple(arrays.iter().map(|a| Shape::scalar(a.element_type)).collect());
        if !compatible(combiner.result, &scalars, Agreement::IgnoringPrecision) {
            return Err(combiner.result_error(brief(&scalars)));
        }
        Ok(one_or_tuple(arrays.iter().map(|&a| a.clone().into()).collect()))
    }

    fn index_array(&self, i: usize) -> Result<&'a ArrayShape> {
        let indices = self.array(i)?;
        if indices.element_type.is_integral() {
            Ok(indices)
        } else {
            Err(self.operand_error(i, "of integral type"))
        }
    }

    /// The dimensions of the indices but the one that holds the index vector; that one may be one past the last.
    fn index_batch_dims(&self, indices: &ArrayShape, index_vector_dim: i64) -> Result<Vec<Dim>> {
        check_dimension("index_vector_dim", index_vector_dim, indices.rank() + 1)?;
        Ok((0..indices.rank()).filter(|&d| d as i64 != index_vector_dim).map(|d| dim(indices, d)).collect())
    }

    /// Batching dimensions of operand and indices go in pairs of equal extent.
    fn check_batching(
        &self,
        (of_operand, of_indices): (&[i64], &[i64]),
        operand: &ArrayShape,
        indices: &ArrayShape,
        index_vector_dim: i64,
    ) -> Result<()> {
        check_dimensions("batching dimensions of the indices", of_indices, indices.rank())?;
        check_length("batching dimensions of the indices", of_indices.len(), of_operand.len())?;
        if of_indices.contains(&index_vector_dim) {
            let expected = "without index_vector_dim";
            return Err(attribute_error("batching dimensions of the indices", expected, index_vector_dim));
        }
        for (&a, &b) in of_operand.iter().zip(of_indices) {
            let (a, b) = (operand.dimensions[a as usize], indices.dimensions[b as usize]);
            if !sizes_agree(a, b) {
                return Err(attribute_error("batching dimensions", format!("of extent {a} in both"), b));
            }
        }
        Ok(())
    }
}

/// The length of an index vector: 1 where the indices themselves are the elements.
fn index_vector_length(indices: &ArrayShape, index_vector_dim: i64) -> i64 {
    indices.dimensions.get(index_vector_dim as usize).copied().unwrap_or(1)
}

fn check_sorted(attribute: &'static str, dimensions: &[i64]) -> Result<()> {
    if dimensions.is_sorted() {
        return Ok(());
    }
    Err(attribute_error(attribute, "ascending", format!("{dimensions:?}")))
}
