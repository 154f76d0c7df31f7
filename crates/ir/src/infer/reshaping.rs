//! Operations that rearrange elements without computing on them.

use crate::{ArrayShape, ElementType, PaddingDimension, Shape};

use super::dimension::{
    Agreement, Dim, array, compatible, dim, dims, higher_precision, merge, padded, same_type, sizes_agree,
};
use super::error::Extent;
use super::{
    InferError, Inference, Result, attribute_error, brief, check_dimension, check_dimensions, check_length,
};

impl<'a> Inference<'a> {
    /// Result dimensions that no operand dimension becomes are free, so only a scalar's broadcast to itself is
    /// determined.
    pub(super) fn broadcast(&self, dimensions: &[i64]) -> Result<ArrayShape> {
        let operand = self.array(0)?;
        check_length("dimensions", dimensions.len(), operand.rank())?;
        if self.given.is_none() && operand.rank() == 0 {
            return Ok(operand.clone());
        }
        let given = self.given_array()?;
        check_dimensions("dimensions", dimensions, given.rank())?;
        for (i, &d) in dimensions.iter().enumerate() {
            if !sizes_agree(operand.dimensions[i], given.dimensions[d as usize]) {
                let expected = format!("of extent {} in dimension {d}", operand.dimensions[i]);
                return Err(InferError::Given { expected, found: brief(&given.clone().into()) });
            }
        }
        Ok(ArrayShape { element_type: operand.element_type, ..given.clone() })
    }

    pub(super) fn reshape(&self, inferred_dimension: Option<i64>) -> Result<ArrayShape> {
        let given = self.given_array()?;
        if let Some(d) = inferred_dimension.filter(|&d| d != -1) {
            check_dimension("inferred_dimension", d, given.rank())?;
        }
        self.reshape_to(given)
    }

    pub(super) fn dynamic_reshape(&self) -> Result<ArrayShape> {
        let given = self.given_array()?;
        if self.operands.len() != given.rank() + 1 {
            let expected = crate::Arity::exactly(given.rank() + 1);
            return Err(InferError::OperandCount { expected, found: self.operands.len() });
        }
        for i in 1..self.operands.len() {
            if self.scalar(i)?.element_type != ElementType::S32 {
                return Err(self.operand_error(i, "an s32 scalar"));
            }
        }
        self.reshape_to(given)
    }

    fn reshape_to(&self, given: &ArrayShape) -> Result<ArrayShape> {
        let operand = self.array(0)?;
        if !operand.is_unbounded()
            && !given.is_unbounded()
            && operand.element_count() != given.element_count()
        {
            let expected = format!("of as many elements as {}", brief(&operand.clone().into()));
            return Err(InferError::Given { expected, found: brief(&given.clone().into()) });
        }
        Ok(ArrayShape { element_type: operand.element_type, ..given.clone() })
    }

    /// The result's layout is the operand's, permuted with it: nothing moves.
    pub(super) fn transpose(&self, dimensions: &[i64]) -> Result<ArrayShape> {
        let operand = self.array(0)?;
        check_length("dimensions", dimensions.len(), operand.rank())?;
        check_dimensions("dimensions", dimensions, operand.rank())?;
        let permuted: Vec<Dim> = dimensions.iter().map(|&d| dim(operand, d as usize)).collect();
        let mut result = array(operand.element_type, &permuted)?;
        let mut becomes = vec![0; operand.rank()];
        for (to, &from) in dimensions.iter().enumerate() {
            becomes[from as usize] = to as i64;
        }
        if let Some(layout) = &operand.layout {
            let order = layout.minor_to_major.iter().map(|&d| becomes.get(d as usize).copied());
            if let Some(order) = order.collect::<Option<Vec<_>>>() {
                result.layout = Some(crate::Layout::with_order(order));
            }
        }
        Ok(result)
    }

    pub(super) fn reverse(&self, dimensions: &[i64]) -> Result<ArrayShape> {
        let operand = self.array(0)?;
        check_dimensions("dimensions", dimensions, operand.rank())?;
        Ok(operand.clone())
    }

    pub(super) fn concatenate(&self, dimension: i64) -> Result<ArrayShape> {
        let arrays = self.arrays()?;
        let at = check_dimension("dimensions", dimension, arrays[0].rank())?;
        let mut result = dims(arrays[0]);
        let mut element_type = arrays[0].element_type;
        for (i, operand) in arrays.iter().enumerate().skip(1) {
            if !same_type(element_type, operand.element_type, Agreement::IgnoringPrecision) {
                return Err(self.mismatch(0, i, "the same element type"));
            }
            if operand.rank() != result.len() {
                return Err(self.mismatch(0, i, "the same rank"));
            }
            element_type = higher_precision(element_type, operand.element_type);
            for (d, slot) in result.iter_mut().enumerate() {
                let other = dim(operand, d);
                if d != at {
                    let what = "the same extents but for the concatenated one";
                    *slot = merge(*slot, other).ok_or_else(|| self.mismatch(0, i, what))?;
                } else if other.is_unbounded() {
                    *slot = other;
                } else {
                    *slot = slot.map(d, |size| size.checked_add(other.size))?;
                    slot.dynamic |= other.dynamic;
                }
            }
        }
        array(element_type, &result)
    }

    pub(super) fn pad(&self, padding: &[PaddingDimension]) -> Result<ArrayShape> {
        let (operand, value) = (self.array(0)?, self.scalar(1)?);
        if !same_type(operand.element_type, value.element_type, Agreement::IgnoringPrecision) {
            return Err(self.mismatch(0, 1, "the same element type"));
        }
        check_length("padding", padding.len(), operand.rank())?;
        let mut result = dims(operand);
        for (d, (slot, p)) in result.iter_mut().zip(padding).enumerate() {
            if p.interior < 0 {
                return Err(attribute_error("interior padding", "at least 0", p.interior));
            }
            *slot = slot.map(d, |size| padded(size, p.low, p.high, p.interior))?;
            if slot.size < 0 && !slot.is_unbounded() {
                return Err(InferError::Extent { dimension: d, found: Extent::Negative(slot.size) });
            }
        }
        array(higher_precision(operand.element_type, value.element_type), &result)
    }

    pub(super) fn get_dimension_size(&self, dimension: i64) -> Result<Shape> {
        check_dimension("dimensions", dimension, self.array(0)?.rank())?;
        Ok(Shape::scalar(ElementType::S32))
    }

    pub(super) fn set_dimension_size(&self, dimension: i64) -> Result<ArrayShape> {
        let operand = self.array(0)?;
        let at = check_dimension("dimensions", dimension, operand.rank())?;
        if self.scalar(1)?.element_type != ElementType::S32 {
            return Err(self.operand_error(1, "an s32 scalar"));
        }
        let mut result = operand.clone();
        result.dynamic.resize(operand.rank(), false);
        result.dynamic[at] = true;
        Ok(result)
    }

    /// A value that comes out as it went in, layout included unless a given one differs.
    pub(super) fn pass_through(&self) -> Result<&'a Shape> {
        match self.given {
            Some(given) if compatible(given, self.operands[0], Agreement::Exact) => Ok(given),
            _ => Ok(self.operands[0]),
        }
    }

    pub(super) fn constant(&self, literal: &crate::Literal) -> Result<Shape> {
        let inferred = literal_shape(literal);
        match self.given {
            Some(given) if compatible(given, &inferred, Agreement::Exact) => Ok(given.clone()),
            _ => Ok(inferred),
        }
    }
}

fn literal_shape(literal: &crate::Literal) -> Shape {
    match literal {
        crate::Literal::Array(array) => Shape::array(array.element_type, array.dimensions.iter().copied()),
        crate::Literal::Tuple(elements) => Shape::Tuple(elements.iter().map(literal_shape).collect()),
        crate::Literal::Token => Shape::Token,
    }
}
