//! The primitive types of HLO arrays.

use strum::{Display, EnumIter, EnumString, IntoStaticStr};

/// The type of one element of an array, spelled as in HLO text (`bf16`, `f8e4m3fn`, `pred`, ...).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Display, EnumString, IntoStaticStr, EnumIter,
)]
#[strum(serialize_all = "lowercase")]
#[allow(missing_docs, reason = "each variant is the HLO type of the same name")]
pub enum ElementType {
    Pred,
    S1,
    S2,
    S4,
    S8,
    S16,
    S32,
    S64,
    U1,
    U2,
    U4,
    U8,
    U16,
    U32,
    U64,
    F16,
    Bf16,
    F32,
    F64,
    F8e5m2,
    F8e4m3,
    F8e4m3fn,
    F8e4m3b11fnuz,
    F8e3m4,
    F8e5m2fnuz,
    F8e4m3fnuz,
    F8e8m0fnu,
    F4e2m1fn,
    F6e3m2fn,
    F6e2m3fn,
    C64,
    C128,
}

impl ElementType {
    /// Bits of information in one element (`pred` 1, `s4` 4, `c64` 64).
    pub fn bits(self) -> u32 {
        use ElementType::*;
        match self {
            Pred | S1 | U1 => 1,
            S2 | U2 => 2,
            S4 | U4 | F4e2m1fn => 4,
            F6e3m2fn | F6e2m3fn => 6,
            S8 | U8 | F8e5m2 | F8e4m3 | F8e4m3fn | F8e4m3b11fnuz | F8e3m4 | F8e5m2fnuz | F8e4m3fnuz
            | F8e8m0fnu => 8,
            S16 | U16 | F16 | Bf16 => 16,
            S32 | U32 | F32 => 32,
            S64 | U64 | F64 | C64 => 64,
            C128 => 128,
        }
    }

    /// Bytes of one unpacked element in host memory: sub-byte types and `pred` take a whole byte.
    pub fn byte_width(self) -> u32 {
        self.bits().div_ceil(8)
    }

    /// Signed integers, `pred` excluded.
    pub fn is_signed(self) -> bool {
        use ElementType::*;
        matches!(self, S1 | S2 | S4 | S8 | S16 | S32 | S64)
    }

    /// Unsigned integers, `pred` excluded.
    pub fn is_unsigned(self) -> bool {
        use ElementType::*;
        matches!(self, U1 | U2 | U4 | U8 | U16 | U32 | U64)
    }

    /// Signed or unsigned integers, `pred` excluded.
    pub fn is_integral(self) -> bool {
        self.is_signed() || self.is_unsigned()
    }

    /// Real floating point, the 8-, 6- and 4-bit formats included.
    pub fn is_floating(self) -> bool {
        !self.is_integral() && !self.is_complex() && self != ElementType::Pred
    }

    /// `c64` or `c128`.
    pub fn is_complex(self) -> bool {
        matches!(self, ElementType::C64 | ElementType::C128)
    }

    /// The type of the real and imaginary parts of a complex type; any other type is its own.
    #[must_use]
    pub fn component(self) -> ElementType {
        match self {
            ElementType::C64 => ElementType::F32,
            ElementType::C128 => ElementType::F64,
            other => other,
        }
    }
}
