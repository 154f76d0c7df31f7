//! Operations that compute each element of the result from the operand elements at the same indices.

use crate::{ArrayShape, BinaryOp, ComparisonType, Dimensions, ElementType, Shape, UnaryOp};

use super::dimension::{Agreement, array, dims, higher_precision, merge_all, same_type};
use super::{InferError, Inference, Result, attribute_error, brief};

impl<'a> Inference<'a> {
    pub(super) fn unary(&self, op: UnaryOp) -> Result<ArrayShape> {
        use UnaryOp::*;
        let operand = self.array(0)?;
        let t = operand.element_type;
        let (allowed, expected) = match op {
            Ceil | Floor | RoundNearestAwayFromZero | RoundNearestEven | IsFinite | Cbrt | Erf => {
                (t.is_floating(), "of floating-point type")
            }
            Acos | Acosh | Asin | Asinh | Atanh | Cosine | Cosh | Exponential | Expm1 | Imag | Log
            | Log1p | Logistic | Real | Rsqrt | Sine | Sinh | Sqrt | Tan | Tanh => {
                (t.is_floating() || t.is_complex(), "of floating-point or complex type")
            }
            Abs | Sign => (
                t.is_signed() || t.is_floating() || t.is_complex(),
                "of signed, floating-point or complex type",
            ),
            Negate => (t != ElementType::Pred, "of arithmetic type"),
            CountLeadingZeros | PopulationCount => (t.is_integral(), "of integral type"),
            Not => (t == ElementType::Pred || t.is_integral(), "of pred or integral type"),
        };
        if !allowed {
            return Err(self.operand_error(0, expected));
        }
        let element_type = match op {
            Abs | Real | Imag => t.component(),
            IsFinite => ElementType::Pred,
            _ => t,
        };
        Ok(ArrayShape { element_type, ..operand.clone() })
    }

    pub(super) fn binary(&self, op: BinaryOp) -> Result<ArrayShape> {
        use BinaryOp::*;
        let t = self.array(0)?.element_type;
        let (allowed, expected) = match op {
            Add | Maximum | Minimum | Multiply => (true, ""),
            And | Or | Xor => (t == ElementType::Pred || t.is_integral(), "of pred or integral type"),
            Atan2 => (t.is_floating() || t.is_complex(), "of floating-point or complex type"),
            Complex => (matches!(t, ElementType::F32 | ElementType::F64), "of type f32 or f64"),
            Divide | Mulhi | Power | Remainder | ShiftLeft | ShiftRightArithmetic | ShiftRightLogical
            | Subtract => (t != ElementType::Pred, "of arithmetic type"),
        };
        if !allowed {
            return Err(self.operand_error(0, expected));
        }
        let result = self.same_shape(&[0, 1])?;
        Ok(match (op, result.element_type) {
            (Complex, ElementType::F32) => ArrayShape { element_type: ElementType::C64, ..result },
            (Complex, _) => ArrayShape { element_type: ElementType::C128, ..result },
            _ => result,
        })
    }

    pub(super) fn compare(&self, comparison_type: Option<ComparisonType>) -> Result<ArrayShape> {
        use ComparisonType::*;
        let t = self.array(0)?.element_type;
        let (fits, expected) = match comparison_type {
            None => (true, ""),
            Some(found) if t.is_floating() || t.is_complex() => {
                (matches!(found, Float | TotalOrder), "FLOAT or TOTALORDER")
            }
            Some(found) if t.is_integral() && t.is_signed() => (found == Signed, "SIGNED"),
            Some(found) => (found == Unsigned, "UNSIGNED"),
        };
        if let (false, Some(found)) = (fits, comparison_type) {
            return Err(attribute_error("type", format!("{expected} for {t}"), found));
        }
        Ok(ArrayShape { element_type: ElementType::Pred, ..self.same_shape(&[0, 1])? })
    }

    pub(super) fn select(&self) -> Result<ArrayShape> {
        let predicate = self.array(0)?;
        if predicate.element_type != ElementType::Pred {
            return Err(self.operand_error(0, "of type pred"));
        }
        let result = self.same_shape(&[1, 2])?;
        if predicate.rank() != 0 && merge_all(predicate, &result).is_none() {
            return Err(self.mismatch(0, 1, "the same extents, or the first must be a scalar"));
        }
        Ok(result)
    }

    pub(super) fn clamp(&self) -> Result<ArrayShape> {
        let operand = self.array(1)?;
        for bound in [0, 2] {
            let shape = self.array(bound)?;
            if !same_type(shape.element_type, operand.element_type, Agreement::IgnoringPrecision) {
                return Err(self.mismatch(bound, 1, "the same element type"));
            }
            if shape.rank() != 0 && merge_all(shape, operand).is_none() {
                return Err(self.mismatch(bound, 1, "the same extents, or the first must be a scalar"));
            }
        }
        Ok(operand.clone())
    }

    pub(super) fn convert(&self) -> Result<ArrayShape> {
        let operand = self.array(0)?;
        let given = self.given_array()?;
        if operand.element_type.is_complex() && !given.element_type.is_complex() {
            return Err(self.operand_error(0, "real where the result is real"));
        }
        Ok(ArrayShape { element_type: given.element_type, ..operand.clone() })
    }

    pub(super) fn stochastic_convert(&self) -> Result<ArrayShape> {
        let (operand, random) = (self.array(0)?, self.array(1)?);
        let to = self.given_array()?.element_type;
        if !operand.element_type.is_floating() {
            return Err(self.operand_error(0, "of floating-point type"));
        }
        if !random.element_type.is_unsigned() || random.element_type.bits() != operand.element_type.bits() {
            return Err(self.operand_error(1, "of an unsigned type as wide as operand 0"));
        }
        let dims = merge_all(operand, random).ok_or_else(|| self.mismatch(0, 1, "the same extents"))?;
        array(to, &dims)
    }

    /// The same bytes, part by part. Tiles and dynamic arrays have more than their elements.
    pub(super) fn bitcast(&self) -> Result<&'a Shape> {
        let given = self.given_shape()?;
        match may_have_equal_bytes(self.operands[0], given) {
            true => Ok(given),
            false => Err(self.operand_error(0, "of as many bytes as the result")),
        }
    }

    /// Of equal width: the same extents. To narrower elements: a new last dimension with the parts. To wider ones:
    /// the last dimension, which holds the parts, goes.
    pub(super) fn bitcast_convert(&self) -> Result<ArrayShape> {
        let operand = self.array(0)?;
        let to = self.given_array()?.element_type;
        if operand.element_type.is_complex() != to.is_complex() {
            return Err(self.operand_error(0, "complex exactly where the result is"));
        }
        let (from_bits, to_bits) = (width(operand.element_type), width(to));
        let mut extents = dims(operand);
        if from_bits > to_bits {
            if from_bits % to_bits != 0 {
                return Err(
                    self.operand_error(0, format!("of a type whose width is a multiple of that of {to}"))
                );
            }
            extents.push(super::dimension::Dim::fixed(i64::from(from_bits / to_bits)));
        } else if from_bits < to_bits {
            let parts = i64::from(to_bits / from_bits);
            match extents.pop() {
                Some(last) if to_bits % from_bits == 0 && last.size == parts => (),
                _ => {
                    let expected = format!("of a last extent that makes up one {to}");
                    return Err(self.operand_error(0, expected));
                }
            }
        } else {
            return Ok(ArrayShape { element_type: to, ..operand.clone() });
        }
        array(to, &extents)
    }

    pub(super) fn reduce_precision(&self, exponent_bits: i32, mantissa_bits: i32) -> Result<ArrayShape> {
        let operand = self.array(0)?;
        if !operand.element_type.is_floating() {
            return Err(self.operand_error(0, "of floating-point type"));
        }
        if exponent_bits < 1 {
            return Err(attribute_error("exponent_bits", "at least 1", exponent_bits));
        }
        if mantissa_bits < 0 {
            return Err(attribute_error("mantissa_bits", "at least 0", mantissa_bits));
        }
        Ok(operand.clone())
    }

    pub(super) fn iota(&self, dimension: i64) -> Result<ArrayShape> {
        let given = self.given_array()?;
        super::check_dimension("iota_dimension", dimension, given.rank())?;
        if given.element_type == ElementType::Pred {
            let expected = "of arithmetic type".into();
            return Err(InferError::Given { expected, found: brief(&given.clone().into()) });
        }
        Ok(given.clone())
    }

    pub(super) fn rng(&self, distribution: crate::RngDistribution) -> Result<ArrayShape> {
        use crate::RngDistribution::*;
        let (a, b) = (self.scalar(0)?, self.scalar(1)?);
        if a.element_type != b.element_type {
            return Err(self.mismatch(0, 1, "the same element type"));
        }
        let t = a.element_type;
        let (allowed, expected) = match distribution {
            RngUniform => (!t.is_complex(), "of a type that is not complex"),
            RngNormal => (t.is_floating(), "of floating-point type"),
        };
        if !allowed {
            return Err(self.operand_error(0, expected));
        }
        let given = self.given_array()?;
        let element_type = if same_type(given.element_type, t, Agreement::IgnoringPrecision) {
            given.element_type
        } else {
            t
        };
        Ok(ArrayShape { element_type, ..given.clone() })
    }

    /// The common shape of the arrays at these operands, which must agree in extents and, except for precision, in
    /// type.
    fn same_shape(&self, operands: &[usize; 2]) -> Result<ArrayShape> {
        let [first, second] = *operands;
        let (a, b) = (self.array(first)?, self.array(second)?);
        if !same_type(a.element_type, b.element_type, Agreement::IgnoringPrecision) {
            return Err(self.mismatch(first, second, "the same element type"));
        }
        let dims = merge_all(a, b).ok_or_else(|| self.mismatch(first, second, "the same extents"))?;
        let mut result =
            ArrayShape { element_type: higher_precision(a.element_type, b.element_type), ..a.clone() };
        result.dimensions = dims.iter().map(|d| d.size).collect::<Dimensions>();
        result.dynamic.clear();
        if dims.iter().any(|d| d.dynamic) {
            result.dynamic.extend(dims.iter().map(|d| d.dynamic));
        }
        Ok(result)
    }
}

/// Bits of an element where its bits are looked at: a `pred` is a byte.
fn width(t: ElementType) -> u32 {
    if t == ElementType::Pred { 8 } else { t.bits() }
}

/// Whether two shapes have the same tuples, and arrays of as many bytes as far as their elements tell.
fn may_have_equal_bytes(a: &Shape, b: &Shape) -> bool {
    let bits = |shape: &Shape| {
        let array = shape.as_array().filter(|array| !array.is_dynamic())?;
        let layout = array.layout.as_ref();
        let packed = layout.map_or(0, |layout| layout.element_size_in_bits);
        let width = if packed > 0 { packed } else { i64::from(array.element_type.byte_width()) * 8 };
        let is_plain = layout.is_none_or(|layout| layout.tiles.is_empty() && layout.rare.is_none());
        array.element_count().filter(|_| is_plain)?.checked_mul(u64::try_from(width).ok()?)
    };
    match (a, b) {
        (Shape::Tuple(a), Shape::Tuple(b)) => {
            a.len() == b.len() && a.iter().zip(b.iter()).all(|(a, b)| may_have_equal_bytes(a, b))
        }
        (Shape::Tuple(_), _) | (_, Shape::Tuple(_)) => false,
        _ => bits(a).zip(bits(b)).is_none_or(|(a, b)| a == b),
    }
}
