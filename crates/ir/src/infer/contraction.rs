//! Dots, convolutions, transforms and solvers.

use crate::{
    ArrayShape, Convolution, Dimensions, DotDimensions, DotOperand, ElementType, FftKind, RaggedDot, Shape,
    TriangularSolve,
};

use super::dimension::{Dim, array, dim, dims, higher_precision, merge, placements, sizes_agree};
use super::{Inference, Result, attribute_error, check_dimension, check_dimensions, check_length};

impl<'a> Inference<'a> {
    /// Batch dimensions, then the remaining ones of the left operand, then of the right one.
    pub(super) fn dot(&self, numbers: &DotDimensions) -> Result<ArrayShape> {
        let (lhs, rhs) = (self.array(0)?, self.array(1)?);
        let batch = self.check_dot(numbers)?;
        let mut result = batch;
        result.extend(numbers.free(DotOperand::Lhs, lhs.rank()).iter().map(|&d| dim(lhs, d as usize)));
        result.extend(numbers.free(DotOperand::Rhs, rhs.rank()).iter().map(|&d| dim(rhs, d as usize)));
        array(self.accumulated(higher_precision(lhs.element_type, rhs.element_type)), &result)
    }

    /// A dot whose operands are scaled in blocks by operands 2 and 3. A side without scales has ones for them.
    pub(super) fn scaled_dot(&self, numbers: &DotDimensions) -> Result<ArrayShape> {
        for (side, contracting) in [(0, &numbers.lhs_contracting), (1, &numbers.rhs_contracting)] {
            let (operand, scale) = (self.array(side)?, self.array(side + 2)?);
            let are_ones = operand.element_type == ElementType::Bf16
                && scale.element_type == ElementType::Bf16
                && scale.dimensions.iter().all(|&extent| extent == 1)
                && operand.dimensions.iter().any(|&extent| extent != 1);
            if are_ones {
                continue;
            }
            check_length("contracting dimensions", contracting.len(), 1)?;
            let divides = |(&whole, &part): (&i64, &i64)| part > 0 && whole % part == 0;
            let blocks = operand.dimensions.iter().zip(&scale.dimensions);
            if scale.rank() != operand.rank() || !blocks.into_iter().all(divides) {
                return Err(self.mismatch(side, side + 2, "the same rank, the second extents that divide"));
            }
        }
        if self.array(2)?.rank() == 0 && self.array(3)?.rank() == 0 {
            return Err(self.operand_error(3, "an array, as operand 2 is a scalar"));
        }
        self.dot(numbers)
    }

    /// The position of the ragged dimension decides: for rows of the left operand, the shape is the dot's, and the
    /// right one has a group dimension; a contracting dimension puts the groups first in the result; a batch dimension
    /// changes nothing.
    pub(super) fn ragged_dot(&self, dot: &RaggedDot) -> Result<ArrayShape> {
        let (lhs, rhs, groups) = (self.array(0)?, self.array(1)?, self.array(2)?);
        let numbers = &dot.dimensions;
        let batch = self.check_dot(numbers)?;
        if !groups.element_type.is_integral() || groups.rank() == 0 {
            return Err(self.operand_error(2, "an integer array of rank 1 or more"));
        }
        let group_count = dim(groups, groups.rank() - 1);
        check_length("lhs_ragged_dims", dot.lhs_ragged_dims.len(), 1)?;
        let ragged = dot.lhs_ragged_dims[0];
        check_dimension("lhs_ragged_dims", ragged, lhs.rank())?;
        let contracting = numbers.lhs_contracting.contains(&ragged);
        let is_rows = !contracting && !numbers.lhs_batch.contains(&ragged);
        check_length("rhs_group_dims", dot.rhs_group_dims.len(), usize::from(is_rows))?;
        check_dimensions("rhs_group_dims", &dot.rhs_group_dims, rhs.rank())?;
        for &group in &dot.rhs_group_dims {
            if numbers.rhs_contracting.contains(&group) || numbers.rhs_batch.contains(&group) {
                return Err(attribute_error("rhs_group_dims", "neither contracting nor batch", group));
            }
            if !sizes_agree(rhs.dimensions[group as usize], group_count.size) {
                return Err(self.mismatch(1, 2, "the same number of groups"));
            }
        }
        let mut result = Vec::new();
        if contracting {
            result.push(group_count);
        }
        result.extend(batch);
        result.extend(numbers.free(DotOperand::Lhs, lhs.rank()).iter().map(|&d| dim(lhs, d as usize)));
        let columns = numbers.free(DotOperand::Rhs, rhs.rank());
        let is_column = |d: &&i64| !dot.rhs_group_dims.contains(d);
        result.extend(columns.iter().filter(is_column).map(|&d| dim(rhs, d as usize)));
        array(self.accumulated(higher_precision(lhs.element_type, rhs.element_type)), &result)
    }

    /// Checks dimension numbers and extents; the batch dimensions.
    fn check_dot(&self, numbers: &DotDimensions) -> Result<Vec<Dim>> {
        let (lhs, rhs) = (self.array(0)?, self.array(1)?);
        let of_lhs = [&numbers.lhs_contracting[..], &numbers.lhs_batch].concat();
        let of_rhs = [&numbers.rhs_contracting[..], &numbers.rhs_batch].concat();
        check_dimensions("lhs_contracting_dims and lhs_batch_dims", &of_lhs, lhs.rank())?;
        check_dimensions("rhs_contracting_dims and rhs_batch_dims", &of_rhs, rhs.rank())?;
        check_length("rhs_contracting_dims", numbers.rhs_contracting.len(), numbers.lhs_contracting.len())?;
        check_length("rhs_batch_dims", numbers.rhs_batch.len(), numbers.lhs_batch.len())?;
        let paired = |a: &Dimensions, b: &Dimensions, what| {
            let pairs = a.iter().zip(b);
            let merged = pairs.map(|(&a, &b)| merge(dim(lhs, a as usize), dim(rhs, b as usize)));
            merged.collect::<Option<Vec<Dim>>>().ok_or_else(|| self.mismatch(0, 1, what))
        };
        paired(
            &numbers.lhs_contracting,
            &numbers.rhs_contracting,
            "the same extents in contracting dimensions",
        )?;
        paired(&numbers.lhs_batch, &numbers.rhs_batch, "the same extents in batch dimensions")
    }

    pub(super) fn convolution(&self, convolution: &Convolution) -> Result<ArrayShape> {
        // Operands may have different types: TPU programs convolve masks with weights.
        let (input, kernel) = (self.array(0)?, self.kernel()?);
        let numbers = &convolution.dimensions;
        let spatial = convolution.window.dimensions.len();
        let rank = spatial + 2;
        let dimension_list = |a: i64, b: i64, rest: &Dimensions| [&[a, b][..], rest].concat();
        let of_input = dimension_list(numbers.input_batch, numbers.input_feature, &numbers.input_spatial);
        let of_kernel = dimension_list(
            numbers.kernel_input_feature,
            numbers.kernel_output_feature,
            &numbers.kernel_spatial,
        );
        let of_output = dimension_list(numbers.output_batch, numbers.output_feature, &numbers.output_spatial);
        for (i, shape) in [(0, input), (1, kernel)] {
            if shape.rank() != rank {
                return Err(self.operand_error(i, format!("of rank {rank}, two more than the window")));
            }
        }
        for (attribute, list) in [
            ("input dim_labels", &of_input),
            ("kernel dim_labels", &of_kernel),
            ("output dim_labels", &of_output),
        ] {
            check_length(attribute, list.len(), rank)?;
            check_dimensions(attribute, list, rank)?;
        }

        let (feature_groups, batch_groups) = (convolution.feature_group_count, convolution.batch_group_count);
        for (attribute, count) in
            [("feature_group_count", feature_groups), ("batch_group_count", batch_groups)]
        {
            if count <= 0 {
                return Err(attribute_error(attribute, "at least 1", count));
            }
        }
        if feature_groups > 1 && batch_groups > 1 {
            return Err(attribute_error(
                "batch_group_count",
                "1 where feature_group_count is not",
                batch_groups,
            ));
        }
        let at = |shape: &ArrayShape, d: i64| dim(shape, d as usize);
        let batch = at(input, numbers.input_batch);
        let features = at(input, numbers.input_feature);
        let kernel_features = at(kernel, numbers.kernel_input_feature);
        let outputs = at(kernel, numbers.kernel_output_feature);
        let divides = |count: i64, d: Dim| d.is_unbounded() || d.size % count == 0;
        if !divides(feature_groups, features) || !divides(feature_groups, outputs) {
            let expected =
                format!("a divisor of the {} input and {} output features", features.size, outputs.size);
            return Err(attribute_error("feature_group_count", expected, feature_groups));
        }
        if !divides(batch_groups, batch) || !divides(batch_groups, outputs) {
            let expected =
                format!("a divisor of the {} batches and {} output features", batch.size, outputs.size);
            return Err(attribute_error("batch_group_count", expected, batch_groups));
        }
        // A sparse kernel holds one element of each block.
        let mut kernel_features = kernel_features.size;
        if let Some(Some(sparsity)) = convolution.sparsity.get(1) {
            if sparsity.num_non_zero != 1 {
                return Err(attribute_error("sparsity of the kernel", "1:N", sparsity.num_non_zero));
            }
            if kernel_features > 0 {
                kernel_features = kernel_features.saturating_mul(sparsity.block_size);
            }
        }
        if !features.is_unbounded() && !sizes_agree(features.size / feature_groups, kernel_features) {
            return Err(self.mismatch(0, 1, "the same number of features per group"));
        }

        let mut result = vec![Dim::fixed(0); rank];
        result[numbers.output_batch as usize] =
            if batch.is_unbounded() { batch } else { Dim { size: batch.size / batch_groups, ..batch } };
        result[numbers.output_feature as usize] = outputs;
        for (i, window) in convolution.window.dimensions.iter().enumerate() {
            let extent = at(kernel, numbers.kernel_spatial[i]);
            if !sizes_agree(extent.size, window.size) {
                return Err(attribute_error(
                    "window size",
                    format!("{}, as in the kernel", extent.size),
                    window.size,
                ));
            }
            for (attribute, value) in [
                ("window stride", window.stride),
                ("window dilation", window.window_dilation),
                ("base dilation", window.base_dilation),
            ] {
                if value <= 0 {
                    return Err(attribute_error(attribute, "at least 1", value));
                }
            }
            let out = numbers.output_spatial[i] as usize;
            result[out] = at(input, numbers.input_spatial[i]).map(out, |size| placements(size, window))?;
        }
        let element_type = higher_precision(input.element_type, kernel.element_type);
        array(self.accumulated(element_type), &result)
    }

    /// The kernel of a convolution; a sparse one is a pair of values and their places.
    fn kernel(&self) -> Result<&'a ArrayShape> {
        match self.operands[1].as_tuple() {
            Some([Shape::Array(values), _]) => Ok(values),
            _ => self.array(1),
        }
    }

    /// Dots and convolutions may yield another type than their operands', as a given shape asks.
    fn accumulated(&self, from: ElementType) -> ElementType {
        match self.given {
            Some(Shape::Array(given)) => given.element_type,
            _ => from,
        }
    }

    pub(super) fn fft(&self, kind: FftKind, lengths: &[i64]) -> Result<ArrayShape> {
        let operand = self.array(0)?;
        if !(1..=3).contains(&lengths.len()) {
            return Err(attribute_error("fft_length", "1 to 3 long", format!("{} long", lengths.len())));
        }
        if let Some(&negative) = lengths.iter().find(|&&n| n < 0) {
            return Err(attribute_error("fft_length", "at least 0", negative));
        }
        let Some(first) = operand.rank().checked_sub(lengths.len()) else {
            return Err(self.operand_error(0, format!("of rank {} or more", lengths.len())));
        };
        let is_real = kind == FftKind::Rfft;
        let t = operand.element_type;
        let half = |n: i64| if n == 0 { 0 } else { n / 2 + 1 };
        let last = lengths.len() - 1;
        // Plain transforms keep the shape, and XLA does not look at their lengths.
        let expected_extents = match kind {
            FftKind::Fft | FftKind::Ifft => None,
            FftKind::Rfft => Some(lengths.to_vec()),
            FftKind::Irfft => Some([&lengths[..last], &[half(lengths[last])]].concat()),
        };
        let (allowed, expected) = match is_real {
            true => (matches!(t, ElementType::F32 | ElementType::F64), "of type f32 or f64"),
            false => (t.is_complex(), "of complex type"),
        };
        if !allowed {
            return Err(self.operand_error(0, expected));
        }
        if let Some(expected) = expected_extents
            && !expected.iter().zip(&operand.dimensions[first..]).all(|(&a, &b)| sizes_agree(a, b))
        {
            return Err(self.operand_error(0, format!("of last extents {expected:?}")));
        }
        let mut result = dims(operand);
        let end = operand.rank() - 1;
        match kind {
            FftKind::Fft | FftKind::Ifft => return Ok(operand.clone()),
            FftKind::Rfft => result[end] = Dim { size: half(lengths[last]), ..result[end] },
            FftKind::Irfft => result[end] = Dim { size: lengths[last], ..result[end] },
        }
        let element_type = match t {
            ElementType::F32 => ElementType::C64,
            ElementType::F64 => ElementType::C128,
            complex => complex.component(),
        };
        array(element_type, &result)
    }

    pub(super) fn cholesky(&self) -> Result<ArrayShape> {
        let (operand, _) = self.square(0)?;
        Ok(operand.clone())
    }

    pub(super) fn triangular_solve(&self, options: &TriangularSolve) -> Result<ArrayShape> {
        let ((a, n), b) = (self.square(0)?, self.array(1)?);
        if a.element_type != b.element_type {
            return Err(self.mismatch(0, 1, "the same element type"));
        }
        if a.rank() != b.rank() {
            return Err(self.mismatch(0, 1, "the same rank"));
        }
        let rank = a.rank();
        let shared = if options.left_side { rank - 2 } else { rank - 1 };
        if !sizes_agree(b.dimensions[shared], n) {
            return Err(self.mismatch(0, 1, "the same extent in the shared dimension"));
        }
        if !(0..rank - 2).all(|d| sizes_agree(a.dimensions[d], b.dimensions[d])) {
            return Err(self.mismatch(0, 1, "the same extents in batch dimensions"));
        }
        Ok(b.clone())
    }

    /// Operand `i` as a batch of square matrices, and their extent.
    fn square(&self, i: usize) -> Result<(&'a ArrayShape, i64)> {
        let a = self.array(i)?;
        if !a.element_type.is_floating() && !a.element_type.is_complex() {
            return Err(self.operand_error(i, "of floating-point or complex type"));
        }
        match a.dimensions[..] {
            [.., n, m] if sizes_agree(n, m) => Ok((a, n)),
            _ => Err(self.operand_error(i, "of rank 2 or more with equal last extents")),
        }
    }
}
