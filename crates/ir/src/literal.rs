//! Constant data.

use std::sync::Arc;

use crate::{Dimensions, ElementType};

/// The value of a constant.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Literal {
    /// A dense array.
    Array(ArrayLiteral),
    /// A tuple of literals.
    Tuple(Vec<Literal>),
    /// A token.
    Token,
}

/// The elements of a dense array, in row-major order of the logical dimensions, for any layout of the shape.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ArrayLiteral {
    /// Element type.
    pub element_type: ElementType,
    /// Extents.
    pub dimensions: Dimensions,
    /// The elements.
    pub data: LiteralData,
}

/// The storage of a literal's elements.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LiteralData {
    /// Little-endian elements of [`ElementType::byte_width`] bytes each; sub-byte types take a whole byte
    /// (sign-extended for signed integers), `pred` is 0 or 1, complex numbers are real part then imaginary part.
    Bytes(Arc<[u8]>),
    /// Written `{...}`: the text left the elements out. Readers see the counter pattern of XLA's parser, see
    /// [`ArrayLiteral::bytes`].
    Elided,
}

impl ArrayLiteral {
    /// A literal from its bytes (see [`LiteralData::Bytes`]).
    ///
    /// # Panics
    /// When the number of bytes is not what type and extents ask for.
    pub fn new(
        element_type: ElementType,
        dimensions: impl IntoIterator<Item = i64>,
        bytes: impl Into<Arc<[u8]>>,
    ) -> ArrayLiteral {
        let (dimensions, bytes): (Dimensions, Arc<[u8]>) = (dimensions.into_iter().collect(), bytes.into());
        let count = dimensions.iter().product::<i64>() as usize;
        assert_eq!(bytes.len(), count * element_type.byte_width() as usize, "a literal has all its elements");
        ArrayLiteral { element_type, dimensions, data: LiteralData::Bytes(bytes) }
    }

    /// Number of elements.
    pub fn element_count(&self) -> usize {
        self.dimensions.iter().product::<i64>() as usize
    }

    /// The only element of an array of integers; `None` for other arrays, and beyond `i64`.
    pub fn as_integer(&self) -> Option<i64> {
        let LiteralData::Bytes(data) = &self.data else { return None };
        let t = self.element_type;
        if !t.is_integral() || data.len() != t.byte_width() as usize {
            return None;
        }
        let sign = if t.is_signed() && data.last()? & 0x80 != 0 { 0xff } else { 0 };
        let mut bytes = [sign; 16];
        bytes[..data.len()].copy_from_slice(data);
        i64::try_from(i128::from_le_bytes(bytes)).ok()
    }

    /// The elements (see [`LiteralData::Bytes`]). An elided literal yields the pattern that XLA's parser fills in:
    /// the array's bytes are the 32-bit words 0, 1, 2, ... and `pred` keeps the lowest bit of each byte.
    pub fn bytes(&self) -> Arc<[u8]> {
        match &self.data {
            LiteralData::Bytes(bytes) => bytes.clone(),
            LiteralData::Elided => {
                let n = self.element_count() * self.element_type.byte_width() as usize;
                let pattern = (0u32..).flat_map(u32::to_le_bytes).take(n);
                match self.element_type {
                    ElementType::Pred => pattern.map(|b| b & 1).collect(),
                    _ => pattern.collect(),
                }
            }
        }
    }
}

impl Literal {
    /// An array literal from its bytes.
    ///
    /// # Panics
    /// As [`ArrayLiteral::new`].
    pub fn array(
        element_type: ElementType,
        dimensions: impl IntoIterator<Item = i64>,
        bytes: impl Into<Arc<[u8]>>,
    ) -> Literal {
        Literal::Array(ArrayLiteral::new(element_type, dimensions, bytes))
    }

    /// An `f32` scalar.
    pub fn f32(value: f32) -> Literal {
        Literal::array(ElementType::F32, [], value.to_le_bytes())
    }

    /// An `s32` scalar.
    pub fn s32(value: i32) -> Literal {
        Literal::array(ElementType::S32, [], value.to_le_bytes())
    }

    /// A `pred` scalar.
    pub fn pred(value: bool) -> Literal {
        Literal::array(ElementType::Pred, [], [value as u8])
    }

    /// Whether elements of it are not there, because the text left them out.
    pub fn is_elided(&self) -> bool {
        match self {
            Literal::Array(array) => array.data == LiteralData::Elided,
            Literal::Tuple(elements) => elements.iter().any(Literal::is_elided),
            Literal::Token => false,
        }
    }

    /// The array, if it is one.
    pub fn as_array(&self) -> Option<&ArrayLiteral> {
        match self {
            Literal::Array(array) => Some(array),
            _ => None,
        }
    }
}
