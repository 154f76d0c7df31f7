//! Arithmetic of extents, and agreement of shapes.
//!
//! Every extent in a result goes through [`array`], which rejects negative ones; sums and products are checked.
//! Arithmetic with an unbounded extent stays unbounded.

use crate::{ArrayShape, ElementType, Shape, WindowDimension};

use super::error::Extent;
use super::{InferError, Result};

/// One dimension of an array: its extent (a bound when dynamic) and whether it is dynamic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Dim {
    pub(super) size: i64,
    pub(super) dynamic: bool,
}

impl Dim {
    pub(super) fn fixed(size: i64) -> Dim {
        Dim { size, dynamic: false }
    }

    pub(super) fn is_unbounded(self) -> bool {
        self.size == ArrayShape::UNBOUNDED
    }

    /// The extent computed by `f`, dynamic where this one is; `None` from `f` is an overflow.
    pub(super) fn map(self, at: usize, f: impl FnOnce(i64) -> Option<i64>) -> Result<Dim> {
        if self.is_unbounded() {
            return Ok(self);
        }
        let size = f(self.size).ok_or(InferError::Extent { dimension: at, found: Extent::Overflow })?;
        Ok(Dim { size, dynamic: self.dynamic })
    }
}

/// The dimension `d` of an array.
pub(super) fn dim(array: &ArrayShape, d: usize) -> Dim {
    Dim { size: array.dimensions[d], dynamic: array.is_dynamic_dimension(d) }
}

/// The dimensions of an array.
pub(super) fn dims(array: &ArrayShape) -> Vec<Dim> {
    (0..array.rank()).map(|d| dim(array, d)).collect()
}

/// A row-major array.
pub(super) fn array(element_type: ElementType, dims: &[Dim]) -> Result<ArrayShape> {
    let mut array = ArrayShape::new(element_type, dims.iter().map(|d| d.size));
    for (dimension, d) in dims.iter().enumerate() {
        if d.size < 0 && !d.is_unbounded() {
            return Err(InferError::Extent { dimension, found: Extent::Negative(d.size) });
        }
    }
    if dims.iter().any(|d| d.dynamic) {
        array.dynamic = dims.iter().map(|d| d.dynamic).collect();
    }
    Ok(array)
}

/// Merges two dimensions that must agree: the more specific one, dynamic if either is.
pub(super) fn merge(a: Dim, b: Dim) -> Option<Dim> {
    if a.is_unbounded() {
        Some(b)
    } else if b.is_unbounded() {
        Some(a)
    } else {
        (a.size == b.size).then_some(Dim { size: a.size, dynamic: a.dynamic || b.dynamic })
    }
}

/// [`merge`] for whole arrays.
pub(super) fn merge_all(a: &ArrayShape, b: &ArrayShape) -> Option<Vec<Dim>> {
    if a.rank() != b.rank() {
        return None;
    }
    (0..a.rank()).map(|d| merge(dim(a, d), dim(b, d))).collect()
}

/// Whether extents agree; an unbounded one agrees with any.
pub(super) fn sizes_agree(a: i64, b: i64) -> bool {
    a == b || a == ArrayShape::UNBOUNDED || b == ArrayShape::UNBOUNDED
}

/// Elements from the first to the last of `n` that are `dilation` apart. Zero for none.
fn dilated(n: i64, dilation: i64) -> Option<i64> {
    if n <= 0 { Some(0) } else { (n - 1).checked_mul(dilation)?.checked_add(1) }
}

/// Number of placements of a window over `base` elements; `None` on overflow. See "Window" in XLA's operation
/// semantics. Size, stride and dilations must be positive.
pub(crate) fn placements(base: i64, window: &WindowDimension) -> Option<i64> {
    let padded = dilated(base, window.base_dilation)?
        .checked_add(window.padding_low)?
        .checked_add(window.padding_high)?;
    let bound = dilated(window.size, window.window_dilation)?;
    if padded <= 0 || bound > padded {
        return Some(0);
    }
    Some((padded - bound) / window.stride + 1)
}

/// Extent after padding; `None` on overflow. May be negative.
pub(crate) fn padded(size: i64, low: i64, high: i64, interior: i64) -> Option<i64> {
    let between = size.saturating_sub(1).max(0).checked_mul(interior)?;
    size.checked_add(low)?.checked_add(high)?.checked_add(between)
}

/// How much of two shapes must agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Agreement {
    /// Element types are equal.
    Exact,
    /// Floating-point types may differ.
    IgnoringPrecision,
}

/// Whether two shapes agree the way XLA's verifier asks: same structure, element types and extents. Layouts are not
/// looked at, nor is which dimensions are dynamic; an unbounded extent agrees with any.
pub(crate) fn compatible(a: &Shape, b: &Shape, agreement: Agreement) -> bool {
    match (a, b) {
        (Shape::Array(a), Shape::Array(b)) | (Shape::Buffer(a), Shape::Buffer(b)) => {
            same_type(a.element_type, b.element_type, agreement)
                && a.rank() == b.rank()
                && a.dimensions.iter().zip(&b.dimensions).all(|(&a, &b)| sizes_agree(a, b))
        }
        (Shape::Tuple(a), Shape::Tuple(b)) => {
            a.len() == b.len() && a.iter().zip(b.iter()).all(|(a, b)| compatible(a, b, agreement))
        }
        (Shape::Token, Shape::Token) | (Shape::Opaque, Shape::Opaque) => true,
        _ => false,
    }
}

/// Whether two element types agree.
pub(crate) fn same_type(a: ElementType, b: ElementType, agreement: Agreement) -> bool {
    a == b || agreement == Agreement::IgnoringPrecision && a.is_floating() && b.is_floating()
}

/// The type that an operation on two types yields: the one of larger range, then of more precision.
pub(super) fn higher_precision(a: ElementType, b: ElementType) -> ElementType {
    fn rank(t: ElementType) -> (bool, i32, i32, u32, bool) {
        let (exponent, significand) = float_format(t.component());
        (t.is_complex(), exponent, significand, t.component().bits(), t.is_signed())
    }
    if rank(b) > rank(a) { b } else { a }
}

/// The exponent of the first power of two that is too large, and the bits of the significand; (-1, -1) for types
/// that are not floating point.
fn float_format(t: ElementType) -> (i32, i32) {
    use ElementType::*;
    match t {
        F64 => (1024, 53),
        F32 => (128, 24),
        Bf16 => (128, 8),
        F16 => (16, 11),
        F8e5m2 | F8e5m2fnuz => (16, 3),
        F8e4m3 | F8e4m3fnuz => (8, 4),
        F8e4m3fn => (9, 4),
        F8e4m3b11fnuz => (5, 4),
        F8e3m4 => (4, 5),
        F8e8m0fnu => (128, 1),
        F4e2m1fn => (3, 2),
        F6e3m2fn => (5, 3),
        F6e2m3fn => (3, 4),
        _ => (-1, -1),
    }
}
