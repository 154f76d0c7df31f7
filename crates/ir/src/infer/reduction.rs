//! Operations that fold many elements into one by a called computation, and related ones.

use crate::{ArrayShape, ElementType, Scan, Shape, Window};

use super::dimension::{
    Agreement, Dim, array, compatible, dim, dims, merge_all, placements, same_type, sizes_agree,
};
use super::{
    Inference, Result, Signature, attribute_error, brief, check_dimension, check_dimensions, check_length,
    membership, one_or_tuple,
};

impl<'a> Inference<'a> {
    pub(super) fn reduce(&self, dimensions: &[i64]) -> Result<Shape> {
        let inputs = self.reducible()?;
        check_dimensions("dimensions", dimensions, inputs[0].rank())?;
        let is_reduced = membership(dimensions, inputs[0].rank());
        let kept: Vec<Dim> =
            (0..inputs[0].rank()).filter(|&d| !is_reduced[d]).map(|d| dim(inputs[0], d)).collect();
        self.reduced(&inputs, &kept)
    }

    pub(super) fn reduce_window(&self, window: &Window) -> Result<Shape> {
        let inputs = self.reducible()?;
        let result = window_dims(inputs[0], window)?;
        self.reduced(&inputs, &result)
    }

    /// The arrays of a reduction, which is half of its operands; the other half are scalars of the same type.
    fn reducible(&self) -> Result<Vec<&'a ArrayShape>> {
        let n = self.operands.len() / 2;
        let inputs = (0..n).map(|i| self.array(i)).collect::<Result<Vec<_>>>()?;
        for (i, input) in inputs.iter().enumerate() {
            if merge_all(inputs[0], input).is_none() {
                return Err(self.mismatch(0, i, "the same extents"));
            }
            let initial = self.scalar(n + i)?;
            if !same_type(initial.element_type, input.element_type, Agreement::IgnoringPrecision) {
                return Err(self.mismatch(i, n + i, "the same element type"));
            }
        }
        Ok(inputs)
    }

    /// Arrays of these dimensions, of the types that the reducer yields.
    fn reduced(&self, inputs: &[&ArrayShape], result: &[Dim]) -> Result<Shape> {
        let reducer = self.signature(0)?;
        reducer.check_count(2 * inputs.len())?;
        for (i, input) in inputs.iter().enumerate() {
            let scalar = Shape::scalar(input.element_type);
            reducer.check_parameter(i, &scalar, Agreement::IgnoringPrecision)?;
            reducer.check_parameter(inputs.len() + i, &scalar, Agreement::IgnoringPrecision)?;
        }
        let accumulators =
            scalars_of(&reducer, inputs.len(), &inputs.iter().map(|a| a.element_type).collect::<Vec<_>>())?;
        let shapes =
            accumulators.into_iter().map(|t| Ok(array(t, result)?.into())).collect::<Result<Vec<Shape>>>()?;
        Ok(if matches!(reducer.result, Shape::Tuple(_)) {
            Shape::tuple(shapes)
        } else {
            one_or_tuple(shapes)
        })
    }

    pub(super) fn select_and_scatter(&self, window: &Window) -> Result<ArrayShape> {
        let (operand, source, initial) = (self.array(0)?, self.array(1)?, self.scalar(2)?);
        for (i, other) in [(1, source), (2, initial)] {
            if !same_type(operand.element_type, other.element_type, Agreement::IgnoringPrecision) {
                return Err(self.mismatch(0, i, "the same element type"));
            }
        }
        let scalar = Shape::scalar(operand.element_type);
        for (i, result) in [(0, Shape::scalar(ElementType::Pred)), (1, scalar.clone())] {
            let computation = self.signature(i)?;
            computation.check_count(2)?;
            computation.check_parameter(0, &scalar, Agreement::IgnoringPrecision)?;
            computation.check_parameter(1, &scalar, Agreement::IgnoringPrecision)?;
            computation.check_result(&result, Agreement::IgnoringPrecision)?;
        }
        let windows = array(source.element_type, &window_dims(operand, window)?)?;
        if merge_all(&windows, source).is_none() {
            let expected = format!("as large as the placements of the window, {}", brief(&windows.into()));
            return Err(self.operand_error(1, expected));
        }
        Ok(operand.clone())
    }

    pub(super) fn map(&self, dimensions: &[i64]) -> Result<ArrayShape> {
        let arrays = self.arrays()?;
        let mut result = dims(arrays[0]);
        for (i, other) in arrays.iter().enumerate() {
            let what = "the same extents";
            result = merge_all(arrays[0], other).ok_or_else(|| self.mismatch(0, i, what))?;
        }
        // Text may leave the dimensions out where the shape is declared; no other value than all of them is allowed.
        let all = 0..result.len() as i64;
        if !dimensions.is_empty() && !all.clone().eq(dimensions.iter().copied()) {
            let expected = format!("every dimension in order, {all:?}");
            return Err(attribute_error("dimensions", expected, format!("{dimensions:?}")));
        }
        let mapped = self.signature(0)?;
        mapped.check_count(arrays.len())?;
        for (i, operand) in arrays.iter().enumerate() {
            mapped.check_parameter(i, &Shape::scalar(operand.element_type), Agreement::IgnoringPrecision)?;
        }
        match mapped.result {
            Shape::Array(scalar) if scalar.rank() == 0 => array(scalar.element_type, &result),
            _ => Err(mapped.result_error("a scalar")),
        }
    }

    /// A scan calls its computation for each slice of the inputs along one dimension with the carries of the step
    /// before; it yields the outputs of all steps, stacked, and the last carries.
    pub(super) fn scan(&self, scan: &Scan) -> Result<Shape> {
        let inputs = usize::try_from(scan.num_carries)
            .ok()
            .and_then(|carries| self.operands.len().checked_sub(carries))
            .ok_or_else(|| {
                let expected = format!("within 0..={}", self.operands.len());
                attribute_error("num_carries", expected, scan.num_carries)
            })?;
        if inputs == 0 {
            return Err(attribute_error(
                "num_carries",
                format!("less than {}", self.operands.len()),
                scan.num_carries,
            ));
        }
        let step = self.signature(0)?;
        step.check_count(self.operands.len())?;
        let mut steps: Option<Dim> = None;
        for i in 0..inputs {
            let input = self.array(i)?;
            let along = check_dimension("dimensions", scan.dimension, input.rank())?;
            let found = dim(input, along);
            let agreed = super::dimension::merge(*steps.get_or_insert(found), found);
            steps =
                Some(agreed.ok_or_else(|| self.mismatch(0, i, "the same extent in the scanned dimension"))?);
            let mut slice = dims(input);
            slice.remove(along);
            step.check_parameter(
                i,
                &array(input.element_type, &slice)?.into(),
                Agreement::IgnoringPrecision,
            )?;
        }
        for (i, carry) in self.operands.iter().enumerate().skip(inputs) {
            step.check_parameter(i, carry, Agreement::IgnoringPrecision)?;
        }
        let parts = step.result.as_tuple().unwrap_or(std::slice::from_ref(step.result));
        let carries = self.operands.len() - inputs;
        let Some(outputs) = parts.len().checked_sub(carries) else {
            return Err(step.result_error(format!("a tuple that ends in {carries} carries")));
        };
        let mut result = Vec::with_capacity(parts.len());
        for (i, part) in parts.iter().enumerate() {
            if i >= outputs {
                if !compatible(part, self.operands[inputs + i - outputs], Agreement::IgnoringPrecision) {
                    return Err(step.result_error("a tuple that ends in the shapes of the carries"));
                }
                result.push(part.clone());
                continue;
            }
            let Shape::Array(output) = part else {
                return Err(step.result_error("a tuple of arrays before the carries"));
            };
            let along = check_dimension("dimensions", scan.dimension, output.rank() + 1)?;
            let mut stacked = dims(output);
            stacked.insert(along, steps.expect("a scan has an input"));
            result.push(array(output.element_type, &stacked)?.into());
        }
        Ok(if step.result.is_tuple() { Shape::tuple(result) } else { one_or_tuple(result) })
    }

    pub(super) fn sort(&self, dimension: i64) -> Result<Shape> {
        let arrays = self.arrays()?;
        for (i, other) in arrays.iter().enumerate() {
            if merge_all(arrays[0], other).is_none() {
                return Err(self.mismatch(0, i, "the same extents"));
            }
        }
        check_dimension("dimensions", dimension, arrays[0].rank())?;
        let comparator = self.signature(0)?;
        comparator.check_count(2 * arrays.len())?;
        for (i, operand) in arrays.iter().enumerate() {
            let scalar = Shape::scalar(operand.element_type);
            comparator.check_parameter(2 * i, &scalar, Agreement::IgnoringPrecision)?;
            comparator.check_parameter(2 * i + 1, &scalar, Agreement::IgnoringPrecision)?;
        }
        comparator.check_result(&Shape::scalar(ElementType::Pred), Agreement::Exact)?;
        Ok(one_or_tuple(arrays.into_iter().map(|a| a.clone().into()).collect()))
    }

    /// The `k` first of the last dimension, and where they were.
    pub(super) fn top_k(&self, k: i64) -> Result<Shape> {
        let operand = self.array(0)?;
        let mut result = dims(operand);
        let Some(last) = result.last_mut() else {
            return Err(self.operand_error(0, "of rank 1 or more"));
        };
        if k < 0 || !last.is_unbounded() && k > last.size {
            return Err(attribute_error("k", format!("within 0..={}", last.size), k));
        }
        *last = Dim::fixed(k);
        let values = array(operand.element_type, &result)?;
        let indices = array(ElementType::S32, &result)?;
        Ok(Shape::tuple([values.into(), indices.into()]))
    }

    /// Operand 0 is normalized per feature; the other operands are vectors over features, but for the last one of a
    /// gradient, which is shaped like operand 0. Training and gradient yield two such vectors as well.
    pub(super) fn batch_norm(&self, feature_index: i64, with_vectors: bool) -> Result<Shape> {
        let operand = self.array(0)?;
        if !operand.element_type.is_floating() {
            return Err(self.operand_error(0, "of floating-point type"));
        }
        let feature = check_dimension("feature_index", feature_index, operand.rank())?;
        let is_gradient = matches!(self.op, crate::Op::BatchNormGrad { .. });
        for i in 1..self.operands.len() {
            let other = self.array(i)?;
            if !same_type(operand.element_type, other.element_type, Agreement::IgnoringPrecision) {
                return Err(self.mismatch(0, i, "the same element type"));
            }
            if is_gradient && i == 4 {
                merge_all(operand, other).ok_or_else(|| self.mismatch(0, i, "the same extents"))?;
            } else if other.rank() != 1 || !sizes_agree(other.dimensions[0], operand.dimensions[feature]) {
                return Err(
                    self.operand_error(i, format!("a vector of {} features", operand.dimensions[feature]))
                );
            }
        }
        if !with_vectors {
            return Ok(operand.clone().into());
        }
        let vector: Shape = array(self.array(1)?.element_type, &[dim(operand, feature)])?.into();
        Ok(Shape::tuple([operand.clone().into(), vector.clone(), vector]))
    }
}

/// The types of a computation's result, which must be `n` scalars of these types but for precision.
fn scalars_of(computation: &Signature<'_>, n: usize, types: &[ElementType]) -> Result<Vec<ElementType>> {
    let parts = match computation.result {
        Shape::Tuple(parts) => &parts[..],
        single => std::slice::from_ref(single),
    };
    let expected = || brief(&one_or_tuple(types.iter().map(|&t| Shape::scalar(t)).collect()));
    if parts.len() != n {
        return Err(computation.result_error(expected()));
    }
    let found = parts.iter().zip(types).map(|(part, &t)| match part {
        Shape::Array(a) if a.rank() == 0 && same_type(a.element_type, t, Agreement::IgnoringPrecision) => {
            Some(a.element_type)
        }
        _ => None,
    });
    found.collect::<Option<_>>().ok_or_else(|| computation.result_error(expected()))
}

/// How often a window fits in each dimension of an array.
pub(super) fn window_dims(base: &ArrayShape, window: &Window) -> Result<Vec<Dim>> {
    check_length("window", window.dimensions.len(), base.rank())?;
    let mut result = dims(base);
    for (d, (slot, w)) in result.iter_mut().zip(&window.dimensions).enumerate() {
        for (attribute, value) in [
            ("window size", w.size),
            ("window stride", w.stride),
            ("window dilation", w.window_dilation),
            ("base dilation", w.base_dilation),
        ] {
            if value <= 0 {
                return Err(attribute_error(attribute, "at least 1", value));
            }
        }
        *slot = slot.map(d, |size| placements(size, w))?;
    }
    Ok(result)
}
