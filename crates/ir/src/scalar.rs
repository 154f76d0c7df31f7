//! Single elements of any type: the constants that rewrites compare with and create.

use crate::{ArrayLiteral, ElementType, Literal, LiteralData};

/// One element of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scalar {
    /// Its type.
    pub element_type: ElementType,
    /// Little-endian, as in [`LiteralData::Bytes`]; bytes beyond the element's width are zero.
    bytes: [u8; 16],
}

impl Scalar {
    /// The element that all elements of a literal are, bit for bit. `None` when they differ, when there are none, and
    /// when the text left them out.
    pub fn splat_of(literal: &ArrayLiteral) -> Option<Scalar> {
        let LiteralData::Bytes(data) = &literal.data else { return None };
        let width = literal.element_type.byte_width() as usize;
        let first = data.get(..width)?;
        // Each element equals the next one: a comparison of the data with itself, shifted.
        (data[width..] == data[..data.len() - width]).then(|| Scalar::from_bytes(literal.element_type, first))
    }

    /// The `i`-th element of a literal in row-major order; `None` when the text left it out.
    pub fn element_of(literal: &ArrayLiteral, i: usize) -> Option<Scalar> {
        let LiteralData::Bytes(data) = &literal.data else { return None };
        let width = literal.element_type.byte_width() as usize;
        Some(Scalar::from_bytes(literal.element_type, data.get(i * width..(i + 1) * width)?))
    }

    fn from_bytes(element_type: ElementType, data: &[u8]) -> Scalar {
        let mut bytes = [0; 16];
        bytes[..data.len()].copy_from_slice(data);
        Scalar { element_type, bytes }
    }

    /// The element with an integral value, wrapped around where the type is too narrow, rounded where it is
    /// floating-point.
    pub fn integer(element_type: ElementType, value: i64) -> Scalar {
        let component = element_type.component();
        let bits = match component {
            ElementType::Pred => u64::from(value != 0),
            float if float.is_floating() => float.encode_float(value as f64),
            integral => wrap(integral, value) as u64,
        };
        let width = component.byte_width() as usize;
        Scalar::from_bytes(element_type, &bits.to_le_bytes()[..width])
    }

    /// The element nearest to a real value; `None` for types that are not floating-point.
    pub fn float(element_type: ElementType, value: f64) -> Option<Scalar> {
        let width = element_type.byte_width() as usize;
        element_type.is_floating().then(|| {
            Scalar::from_bytes(element_type, &element_type.encode_float(value).to_le_bytes()[..width])
        })
    }

    /// The smallest value of a type: minus infinity where there is one, false. `None` for complex types, and for
    /// floating-point types without infinities.
    pub fn lowest(element_type: ElementType) -> Option<Scalar> {
        match element_type {
            ElementType::Pred => Some(Scalar::integer(element_type, 0)),
            float if float.is_floating() => Scalar::infinity(float, f64::NEG_INFINITY),
            signed if signed.is_signed() => Some(Scalar::integer(signed, -1 << (signed.bits() - 1))),
            unsigned if unsigned.is_unsigned() => Some(Scalar::integer(unsigned, 0)),
            _ => None,
        }
    }

    /// The largest value of a type, see [`Scalar::lowest`].
    pub fn highest(element_type: ElementType) -> Option<Scalar> {
        match element_type {
            ElementType::Pred => Some(Scalar::integer(element_type, 1)),
            float if float.is_floating() => Scalar::infinity(float, f64::INFINITY),
            signed if signed.is_signed() => Some(Scalar::integer(signed, !(-1 << (signed.bits() - 1)))),
            unsigned if unsigned.is_unsigned() => Some(Scalar::integer(unsigned, -1)),
            _ => None,
        }
    }

    fn infinity(element_type: ElementType, value: f64) -> Option<Scalar> {
        Scalar::float(element_type, value).filter(|scalar| scalar.as_float() == Some(value))
    }

    /// The value of an integer or `pred`; `None` for other types, and for a `u64` beyond `i64`.
    pub fn as_integer(&self) -> Option<i64> {
        let bits = self.low_bits() as i64;
        match self.element_type {
            ElementType::Pred => Some(i64::from(bits != 0)),
            ElementType::U64 => (bits >= 0).then_some(bits),
            integral if integral.is_integral() => Some(wrap(integral, bits)),
            _ => None,
        }
    }

    /// The value of a real floating-point element; `None` for other types.
    pub fn as_float(&self) -> Option<f64> {
        self.element_type.is_floating().then(|| self.element_type.decode_float(self.low_bits()))
    }

    /// Whether the value is zero, of either sign, complex zeros included.
    pub fn is_zero(&self) -> bool {
        self.is_value(0)
    }

    /// Whether the value is one.
    pub fn is_one(&self) -> bool {
        self.is_value(1)
    }

    /// Whether the value is the given small integer.
    pub fn is_value(&self, value: i64) -> bool {
        if self.element_type.is_complex() {
            let width = self.element_type.component().byte_width() as usize;
            let part =
                |at: usize| Scalar::from_bytes(self.element_type.component(), &self.bytes[at..at + width]);
            return part(0).is_value(value) && part(width).is_value(0);
        }
        match self.as_float() {
            Some(float) => float == value as f64,
            None => self.as_integer() == Some(value),
        }
    }

    /// The scalar constant.
    pub fn literal(&self) -> Literal {
        let width = self.element_type.byte_width() as usize;
        Literal::array(self.element_type, [], &self.bytes[..width])
    }

    fn low_bits(&self) -> u64 {
        let mut low = [0; 8];
        low.copy_from_slice(&self.bytes[..8]);
        u64::from_le_bytes(low)
    }
}

/// An integer reduced to the range of a type.
fn wrap(element_type: ElementType, value: i64) -> i64 {
    let unused = 64 - element_type.bits().min(64);
    if element_type.is_signed() {
        value << unused >> unused
    } else {
        ((value as u64) << unused >> unused) as i64
    }
}
