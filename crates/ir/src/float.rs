//! Floating point values to bits and back, for every floating-point type of HLO.
//!
//! A format is a sign, `e` exponent bits and `m` mantissa bits, with a bias; formats differ in the meaning of the
//! highest exponent. IEEE formats use it for infinities and NaNs. The `fn` formats have no infinities, and one NaN at
//! the very top; the `fnuz` formats have their one NaN in place of negative zero; the four- and six-bit formats have
//! neither.

use crate::ElementType;

/// How a format spends its special bit patterns.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Specials {
    /// Highest exponent: infinity and NaNs.
    Ieee,
    /// All exponent and mantissa bits: NaN.
    TopNan,
    /// Only the sign bit: NaN.
    NegativeZeroNan,
    /// Every pattern is a finite number.
    None,
}

#[derive(Clone, Copy)]
struct Format {
    exponent_bits: u32,
    mantissa_bits: u32,
    bias: i32,
    specials: Specials,
}

impl ElementType {
    /// Number of explicit mantissa bits of a real floating-point type; 0 for other types.
    pub fn mantissa_bits(self) -> u32 {
        format(self).map_or(0, |f| f.mantissa_bits)
    }

    /// Whether a floating-point type follows IEEE 754 in its infinities and NaNs, so that a NaN has a payload.
    pub fn has_nan_payload(self) -> bool {
        format(self).is_some_and(|f| f.specials == Specials::Ieee)
    }

    /// The bits of the value of this type that is nearest to `value`, ties to even (`f8e8m0fnu`: ties up).
    ///
    /// Values that are too large become infinity, or NaN in formats without infinities, or the largest finite value in
    /// formats without either. A NaN keeps its sign, not its payload; formats without NaN use negative zero.
    ///
    /// # Panics
    /// When this is not a real floating-point type.
    pub fn encode_float(self, value: f64) -> u64 {
        match self {
            ElementType::F64 => return value.to_bits(),
            ElementType::F32 if !value.is_nan() => return u64::from((value as f32).to_bits()),
            ElementType::F8e8m0fnu => return encode_power_of_two(value),
            _ => {}
        }
        let format = format(self).expect("only floating-point types encode floats");
        let (e, m) = (format.exponent_bits, format.mantissa_bits);
        let sign = u64::from(value.is_sign_negative()) << (e + m);
        let top = (1u64 << (e + m)) - 1;
        let infinity = top & !((1 << m) - 1);
        let nan = match format.specials {
            Specials::Ieee => sign | infinity | 1 << (m - 1),
            Specials::TopNan => sign | top,
            Specials::NegativeZeroNan => 1 << (e + m),
            Specials::None => 1 << (e + m),
        };
        if value.is_nan() {
            return nan;
        }
        let (largest, overflow) = match format.specials {
            Specials::Ieee => (infinity - 1, sign | infinity),
            Specials::TopNan => (top - 1, nan),
            Specials::NegativeZeroNan => (top, nan),
            Specials::None => (top, sign | top),
        };
        let magnitude = value.abs();
        if magnitude.is_infinite() {
            return overflow;
        }
        // The exponent of the unit in which the mantissa counts; below the normal range it stays the smallest.
        let smallest = 1 - format.bias;
        let exponent = exponent_of(magnitude).max(smallest);
        let units = (magnitude * 2f64.powi(m as i32 - exponent)).round_ties_even() as u64;
        // A normal mantissa has its hidden bit set, which carries into the exponent field and makes it right.
        let bits = (((exponent - smallest) as u64) << m) + units;
        match bits {
            0 if format.specials == Specials::NegativeZeroNan => 0,
            _ if bits > largest => overflow,
            _ => sign | bits,
        }
    }

    /// The value that `bits` has in this type. Exact.
    ///
    /// # Panics
    /// When this is not a real floating-point type.
    pub fn decode_float(self, bits: u64) -> f64 {
        match self {
            ElementType::F64 => return f64::from_bits(bits),
            ElementType::F32 => return f64::from(f32::from_bits(bits as u32)),
            ElementType::F8e8m0fnu => {
                return if bits & 0xff == 0xff { f64::NAN } else { 2f64.powi((bits & 0xff) as i32 - 127) };
            }
            _ => {}
        }
        let format = format(self).expect("only floating-point types decode floats");
        let (e, m) = (format.exponent_bits, format.mantissa_bits);
        let top = (1u64 << (e + m)) - 1;
        let infinity = top & !((1 << m) - 1);
        let is_negative = bits >> (e + m) & 1 == 1;
        let magnitude = bits & top;
        let value = match format.specials {
            Specials::Ieee if magnitude == infinity => f64::INFINITY,
            Specials::Ieee if magnitude > infinity => f64::NAN,
            Specials::TopNan if magnitude == top => f64::NAN,
            Specials::NegativeZeroNan if magnitude == 0 && is_negative => f64::NAN,
            _ => {
                let field = (magnitude >> m) as i32;
                let mantissa = magnitude & ((1 << m) - 1);
                let (units, exponent) = match field {
                    0 => (mantissa, 1 - format.bias),
                    _ => (mantissa | 1 << m, field - format.bias),
                };
                units as f64 * 2f64.powi(exponent - m as i32)
            }
        };
        if is_negative { -value } else { value }
    }
}

fn format(element_type: ElementType) -> Option<Format> {
    use ElementType::*;
    use Specials::*;
    let (exponent_bits, mantissa_bits, bias, specials) = match element_type {
        F64 => (11, 52, 1023, Ieee),
        F32 => (8, 23, 127, Ieee),
        F16 => (5, 10, 15, Ieee),
        Bf16 => (8, 7, 127, Ieee),
        F8e5m2 => (5, 2, 15, Ieee),
        F8e4m3 => (4, 3, 7, Ieee),
        F8e3m4 => (3, 4, 3, Ieee),
        F8e4m3fn => (4, 3, 7, TopNan),
        F8e4m3b11fnuz => (4, 3, 11, NegativeZeroNan),
        F8e5m2fnuz => (5, 2, 16, NegativeZeroNan),
        F8e4m3fnuz => (4, 3, 8, NegativeZeroNan),
        F8e8m0fnu => (8, 0, 127, TopNan),
        F4e2m1fn => (2, 1, 1, None),
        F6e3m2fn => (3, 2, 3, None),
        F6e2m3fn => (2, 3, 1, None),
        _ => return Option::None,
    };
    Some(Format { exponent_bits, mantissa_bits, bias, specials })
}

/// The largest `e` with `2^e <= value`, for a finite `value`; far below every format's range for zero.
fn exponent_of(value: f64) -> i32 {
    (value.to_bits() >> 52) as i32 - 1023
}

/// `f8e8m0fnu` has neither sign nor zero: only powers of two, and one NaN.
fn encode_power_of_two(value: f64) -> u64 {
    const NAN: u64 = 0xff;
    if value.is_nan() || value < 0.0 || value.is_infinite() {
        return NAN;
    }
    let exponent = exponent_of(value).max(-127);
    let ratio = value / 2f64.powi(exponent);
    // Ties go up, as XLA has it.
    let up = ratio >= 1.5;
    let bits = (exponent + 127 + i32::from(up)) as u64;
    bits.min(NAN)
}
