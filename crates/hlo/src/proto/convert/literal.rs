//! Constant data.

use memplan_ir::{ArrayLiteral, ArrayShape, ElementType, Literal, LiteralData, Shape};
use prost::bytes::Bytes;

use super::{FieldError, shape};
use crate::proto::messages::{LiteralProto, ShapeProto};

/// The field of a message with the elements of a type: bytes or a list of numbers.
macro_rules! bytes_fields {
    ($proto:expr, $element_type:expr, $access:ident) => {{
        use ElementType::*;
        match $element_type {
            S1 => $access!($proto.s1s),
            S2 => $access!($proto.s2s),
            S4 => $access!($proto.s4s),
            S8 => $access!($proto.s8s),
            U1 => $access!($proto.u1s),
            U2 => $access!($proto.u2s),
            U4 => $access!($proto.u4s),
            U8 => $access!($proto.u8s),
            S16 => $access!($proto.s16s),
            U16 => $access!($proto.u16s),
            F16 => $access!($proto.f16s),
            Bf16 => $access!($proto.bf16s),
            F8e5m2 => $access!($proto.f8e5m2s),
            F8e4m3 => $access!($proto.f8e4m3s),
            F8e4m3fn => $access!($proto.f8e4m3fns),
            F8e4m3b11fnuz => $access!($proto.f8e4m3b11fnuzs),
            F8e3m4 => $access!($proto.f8e3m4s),
            F8e5m2fnuz => $access!($proto.f8e5m2fnuzs),
            F8e4m3fnuz => $access!($proto.f8e4m3fnuzs),
            F8e8m0fnu => $access!($proto.f8e8m0fnus),
            F4e2m1fn => $access!($proto.f4e2m1fns),
            F6e3m2fn => $access!($proto.f6e3m2fns),
            F6e2m3fn => $access!($proto.f6e2m3fns),
            Pred | S32 | S64 | U32 | U64 | F32 | F64 | C64 | C128 => None,
        }
    }};
}

pub(in crate::proto) fn literal(proto: &LiteralProto) -> Result<Literal, FieldError> {
    let declared = shape(proto.shape.as_deref().ok_or(FieldError::Missing("literal shape"))?)?;
    let array = match declared {
        Shape::Tuple(elements) => {
            if elements.len() != proto.tuple_literals.len() {
                return Err(FieldError::value(
                    "tuple_literals",
                    format!("{} long", proto.tuple_literals.len()),
                ));
            }
            return Ok(Literal::Tuple(proto.tuple_literals.iter().map(literal).collect::<Result<_, _>>()?));
        }
        Shape::Token => return Ok(Literal::Token),
        Shape::Array(array) => array,
        Shape::Buffer(_) | Shape::Opaque => {
            return Err(FieldError::value("literal shape", "a buffer or opaque"));
        }
    };
    macro_rules! stored {
        ($bytes:expr) => {
            Some(&$bytes)
        };
    }
    let element_type = array.element_type;
    let bytes = match bytes_fields!(proto, element_type, stored) {
        Some(bytes) => widen(element_type, bytes, array.element_count()),
        None => number_bytes(element_type, proto),
    };
    let width = element_type.byte_width() as usize;
    match array.element_count().and_then(|n| n.checked_mul(width as u64)) {
        Some(expected) if expected == bytes.len() as u64 => {
            let bytes = match order(&array)? {
                Some(order) => rearrange(&bytes, width, &array, &order, Direction::ToRowMajor),
                None => bytes,
            };
            let data = LiteralData::Bytes(bytes.into());
            Ok(Literal::Array(ArrayLiteral { element_type, dimensions: array.dimensions, data }))
        }
        expected => {
            Err(FieldError::LiteralSize { expected: expected.unwrap_or(u64::MAX), found: bytes.len() })
        }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Direction {
    ToRowMajor,
    FromRowMajor,
}

/// The layout's order, minor to major, of the dimensions that have more than one index; `None` where that is
/// row-major, as it almost always is.
fn order(array: &ArrayShape) -> Result<Option<Vec<usize>>, FieldError> {
    let Some(layout) = &array.layout else { return Ok(None) };
    let mut seen = vec![false; array.rank()];
    let mut order = Vec::new();
    for &d in &layout.minor_to_major {
        match usize::try_from(d).ok().and_then(|d| seen.get_mut(d)) {
            Some(seen) if !*seen => *seen = true,
            _ => return Err(FieldError::value("literal layout", format!("{:?}", layout.minor_to_major))),
        }
        if array.dimensions[d as usize] > 1 {
            order.push(d as usize);
        }
    }
    let is_row_major = order.is_sorted_by(|a, b| a > b);
    Ok((!is_row_major && layout.minor_to_major.len() == array.rank()).then_some(order))
}

/// Moves elements between row-major order and a layout's order. A message has them in memory order.
fn rearrange(
    bytes: &[u8],
    width: usize,
    array: &ArrayShape,
    order: &[usize],
    direction: Direction,
) -> Vec<u8> {
    let mut out = vec![0; bytes.len()];
    // Strides in elements of the layout, for the dimensions in row-major order, most major first.
    let mut stride = 1usize;
    let mut walk: Vec<(usize, usize, usize)> = Vec::new();
    for &d in order {
        let extent = array.dimensions[d] as usize;
        walk.push((d, extent, stride));
        stride *= extent;
    }
    walk.sort_unstable();
    let mut index = vec![0usize; walk.len()];
    let mut laid_out = 0;
    for row_major in 0..bytes.len() / width {
        let (to, from) = match direction {
            Direction::ToRowMajor => (row_major, laid_out),
            Direction::FromRowMajor => (laid_out, row_major),
        };
        out[to * width..][..width].copy_from_slice(&bytes[from * width..][..width]);
        for (i, &(_, extent, stride)) in walk.iter().enumerate().rev() {
            index[i] += 1;
            laid_out += stride;
            if index[i] < extent {
                break;
            }
            laid_out -= extent * stride;
            index[i] = 0;
        }
    }
    out
}

/// The bytes of a module's literal. Elements of a few bits are stored one to a byte there, sign-extended.
fn widen(element_type: ElementType, bytes: &Bytes, count: Option<u64>) -> Vec<u8> {
    use ElementType::*;
    let unused = 8u32.saturating_sub(element_type.bits());
    match element_type {
        S1 | S2 | S4 | U1 | U2 | U4 | F4e2m1fn => {
            // Elements are packed from the low bits of each byte up; a message may also hold one to a byte.
            let bits = element_type.bits();
            let per_byte = (8 / bits) as usize;
            let sign_extended = |value: u8| match element_type.is_signed() {
                true => ((value << unused).cast_signed() >> unused).cast_unsigned(),
                false => value << unused >> unused,
            };
            match usize::try_from(count.unwrap_or(u64::MAX)) {
                Ok(n) if bytes.len() == n => bytes.iter().map(|&b| sign_extended(b)).collect(),
                Ok(n) if bytes.len() == n.div_ceil(per_byte) => (0..n)
                    .map(|i| sign_extended(bytes[i / per_byte] >> (i % per_byte * bits as usize)))
                    .collect(),
                _ => bytes.to_vec(),
            }
        }
        _ => bytes.to_vec(),
    }
}

fn number_bytes(element_type: ElementType, proto: &LiteralProto) -> Vec<u8> {
    use ElementType::*;
    fn all<T: Copy, const N: usize>(values: &[T], bytes: impl Fn(T) -> [u8; N]) -> Vec<u8> {
        values.iter().flat_map(|&value| bytes(value)).collect()
    }
    match element_type {
        Pred => proto.preds.iter().map(|&p| p as u8).collect(),
        S32 => all(&proto.s32s, i32::to_le_bytes),
        S64 => all(&proto.s64s, i64::to_le_bytes),
        U32 => all(&proto.u32s, u32::to_le_bytes),
        U64 => all(&proto.u64s, u64::to_le_bytes),
        F32 => all(&proto.f32s, f32::to_le_bytes),
        F64 => all(&proto.f64s, f64::to_le_bytes),
        C64 => all(&proto.c64s, f32::to_le_bytes),
        C128 => all(&proto.c128s, f64::to_le_bytes),
        _ => Vec::new(),
    }
}

/// A literal as a message, with the shape that its instruction declares. `None` for elided elements: XLA takes a
/// constant without a literal.
pub(in crate::proto) fn literal_proto(literal: &Literal, shape: ShapeProto) -> Option<LiteralProto> {
    let mut proto = LiteralProto::default();
    match literal {
        Literal::Token => (),
        Literal::Tuple(elements) => {
            let shapes = shape.tuple_shapes.iter().cloned();
            let elements = elements.iter().zip(shapes).map(|(element, shape)| literal_proto(element, shape));
            proto.tuple_literals = elements.collect::<Option<_>>()?;
        }
        Literal::Array(ArrayLiteral { data: LiteralData::Elided, .. }) => return None,
        Literal::Array(ArrayLiteral { element_type, data: LiteralData::Bytes(bytes), .. }) => {
            // A verified literal fits its shape; any other is written as it is.
            let array = super::shape(&shape).ok().and_then(|shape| match shape {
                Shape::Array(array) => Some(array),
                _ => None,
            });
            let width = element_type.byte_width() as usize;
            let order = array.as_ref().and_then(|array| order(array).ok().flatten());
            match (array, order) {
                (Some(array), Some(order)) if array.element_count() == Some((bytes.len() / width) as u64) => {
                    let bytes = rearrange(bytes, width, &array, &order, Direction::FromRowMajor);
                    set_elements(&mut proto, *element_type, &bytes);
                }
                _ => set_elements(&mut proto, *element_type, bytes),
            }
        }
    }
    proto.shape = Some(Box::new(shape));
    Some(proto)
}

fn set_elements(proto: &mut LiteralProto, element_type: ElementType, bytes: &[u8]) {
    use ElementType::*;
    fn all<T, const N: usize>(bytes: &[u8], value: impl Fn([u8; N]) -> T) -> Vec<T> {
        bytes.as_chunks::<N>().0.iter().map(|&chunk| value(chunk)).collect()
    }
    macro_rules! slot {
        ($field:expr) => {
            Some(&mut $field)
        };
    }
    if let Some(slot) = bytes_fields!(proto, element_type, slot) {
        let mask = u8::MAX >> 8u32.saturating_sub(element_type.bits());
        *slot = match element_type {
            S1 | S2 | S4 | U1 | U2 | U4 => bytes.iter().map(|b| b & mask).collect::<Vec<_>>().into(),
            _ => bytes.to_vec().into(),
        };
        return;
    }
    match element_type {
        Pred => proto.preds = bytes.iter().map(|&b| b != 0).collect(),
        S32 => proto.s32s = all(bytes, i32::from_le_bytes),
        S64 => proto.s64s = all(bytes, i64::from_le_bytes),
        U32 => proto.u32s = all(bytes, u32::from_le_bytes),
        U64 => proto.u64s = all(bytes, u64::from_le_bytes),
        F32 => proto.f32s = all(bytes, f32::from_le_bytes),
        F64 => proto.f64s = all(bytes, f64::from_le_bytes),
        C64 => proto.c64s = all(bytes, f32::from_le_bytes),
        C128 => proto.c128s = all(bytes, f64::from_le_bytes),
        _ => unreachable!("every other type is stored as bytes"),
    }
}
