//! Floats of at most eight bits, by their parameters (the OCP 8-bit and microscaling formats, and their `fnuz` kin).

use std::sync::LazyLock;

use memplan_ir::ElementType;

/// The special values of a format beyond its largest finite number.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Special {
    /// Infinities and NaNs as in IEEE 754.
    Ieee,
    /// No infinities; all ones is NaN.
    Fn,
    /// No infinities, no negative zero; the code of negative zero is NaN.
    Fnuz,
    /// Neither: larger values become the largest number.
    Finite,
    /// Powers of two without a sign; all ones is NaN.
    Exponent,
}

struct Format {
    exponent_bits: u32,
    mantissa_bits: u32,
    bias: i32,
    special: Special,
}

fn format(t: ElementType) -> Format {
    use ElementType::*;
    let (exponent_bits, mantissa_bits, bias, special) = match t {
        F8e5m2 => (5, 2, 15, Special::Ieee),
        F8e4m3 => (4, 3, 7, Special::Ieee),
        F8e3m4 => (3, 4, 3, Special::Ieee),
        F8e4m3fn => (4, 3, 7, Special::Fn),
        F8e4m3b11fnuz => (4, 3, 11, Special::Fnuz),
        F8e5m2fnuz => (5, 2, 16, Special::Fnuz),
        F8e4m3fnuz => (4, 3, 8, Special::Fnuz),
        F8e8m0fnu => (8, 0, 127, Special::Exponent),
        F4e2m1fn => (2, 1, 1, Special::Finite),
        F6e3m2fn => (3, 2, 3, Special::Finite),
        F6e2m3fn => (2, 3, 1, Special::Finite),
        _ => unreachable!("only the small float types have a format here"),
    };
    Format { exponent_bits, mantissa_bits, bias, special }
}

/// The values of the 256 codes of a format.
pub(crate) fn decoding_table(t: ElementType) -> &'static [f32; 256] {
    use ElementType::*;
    macro_rules! tables {
        ($($name:ident)*) => {
            match t {
                $($name => {
                    static TABLE: LazyLock<[f32; 256]> =
                        LazyLock::new(|| std::array::from_fn(|code| decode(&format($name), code as u32)));
                    &TABLE
                })*
                _ => unreachable!("only the small float types have a format here"),
            }
        };
    }
    tables!(F8e5m2 F8e4m3 F8e3m4 F8e4m3fn F8e4m3b11fnuz F8e5m2fnuz F8e4m3fnuz F8e8m0fnu F4e2m1fn F6e3m2fn F6e2m3fn)
}

/// The code of a number of the format, or the nearest code. A NaN keeps its sign and its leading mantissa bits where the
/// format has several NaNs.
pub(crate) fn code_of(t: ElementType, x: f32) -> u8 {
    let f = format(t);
    if !x.is_nan() || f.special != Special::Ieee {
        return encode(t, x as f64);
    }
    let mantissa = (x.to_bits() & 0x7f_ffff) >> (23 - f.mantissa_bits);
    match mantissa {
        // The bits that made it a NaN do not fit.
        0 => encode(t, x as f64),
        _ => encode(t, f64::INFINITY.copysign(x as f64)) | mantissa as u8,
    }
}

/// The code nearest to a number, ties to even. NaNs become quiet.
pub(crate) fn encode(t: ElementType, x: f64) -> u8 {
    let f = format(t);
    let (m, sign_bit) = (f.mantissa_bits, f.exponent_bits + f.mantissa_bits);
    let sign = if x.is_sign_negative() { 1u32 << sign_bit } else { 0 };
    let ones = (1u32 << sign_bit) - 1;
    let quiet_nan = match f.special {
        Special::Ieee => sign | ((1 << f.exponent_bits) - 1) << m | 1 << (m - 1),
        Special::Fn => sign | ones,
        Special::Fnuz => 1 << sign_bit,
        Special::Finite => 1 << sign_bit,
        Special::Exponent => 0xff,
    };
    if f.special == Special::Exponent {
        return if x.is_nan() || x.is_sign_negative() && x != 0.0 { 0xff } else { encode_exponent(x) };
    }
    if x.is_nan() {
        return quiet_nan as u8;
    }
    // The largest finite code, and the code for larger values.
    let (largest, beyond) = match f.special {
        Special::Ieee => ((((1 << f.exponent_bits) - 1) << m) - 1, ((1 << f.exponent_bits) - 1) << m),
        Special::Fn => (ones - 1, ones),
        Special::Fnuz | Special::Exponent => (ones, 1 << sign_bit),
        Special::Finite => (ones, ones),
    };
    let magnitude = x.abs();
    let code = if magnitude.is_infinite() {
        beyond
    } else {
        let smallest_normal = 1 - f.bias;
        let exponent = exponent_of(magnitude).max(smallest_normal);
        // Scaling by a power of two is exact here, so this rounds once.
        let quanta = (magnitude * 2f64.powi(m as i32 - exponent)).round_ties_even() as u32;
        let code = ((exponent - smallest_normal) as u32) * (1 << m) + quanta;
        if code > largest { beyond } else { code }
    };
    match f.special {
        // Zero and NaN have no sign.
        Special::Fnuz if code == 0 || code == beyond => code as u8,
        _ => (sign | code) as u8,
    }
}

fn encode_exponent(x: f64) -> u8 {
    if x == 0.0 {
        return 0;
    }
    if x.is_infinite() {
        return 0xff;
    }
    let exponent = exponent_of(x);
    let fraction = x * 2f64.powi(-exponent.max(-1000)) * 2f64.powi(exponent.max(-1000) - exponent);
    // Ties go to the even code: codes are exponents plus 127.
    let up = fraction > 1.5 || fraction == 1.5 && (exponent + 127) % 2 != 0;
    let code = exponent + 127 + up as i32;
    if code > 254 { 0xff } else { code.max(0) as u8 }
}

fn decode(f: &Format, code: u32) -> f32 {
    let (m, sign_bit) = (f.mantissa_bits, f.exponent_bits + f.mantissa_bits);
    if f.special == Special::Exponent {
        return if code == 0xff { f32::NAN } else { 2f64.powi(code as i32 - 127) as f32 };
    }
    let code = code & ((2 << sign_bit) - 1);
    let (sign, magnitude) = (code >> sign_bit, code & ((1 << sign_bit) - 1));
    let (exponent, mantissa) = ((magnitude >> m) as i32, magnitude & ((1 << m) - 1));
    let sign_factor = if sign == 1 { -1.0 } else { 1.0 };
    let all_ones = exponent == (1 << f.exponent_bits) - 1;
    match f.special {
        Special::Ieee if all_ones && mantissa == 0 => return sign_factor * f32::INFINITY,
        Special::Ieee if all_ones => {
            return f32::from_bits(sign << 31 | f32::INFINITY.to_bits() | mantissa << (23 - m));
        }
        Special::Fn if magnitude == (1 << sign_bit) - 1 => return f32::NAN.copysign(sign_factor),
        Special::Fnuz if code == 1 << sign_bit => return f32::NAN,
        _ => {}
    }
    let quantum = 2f64.powi(exponent.max(1) - f.bias - m as i32);
    let quanta = if exponent == 0 { mantissa } else { mantissa | 1 << m };
    sign_factor * (quanta as f64 * quantum) as f32
}

/// The exponent of the leading bit of a positive finite number; very small for 0.
fn exponent_of(x: f64) -> i32 {
    let biased = (x.to_bits() >> 52) as i32;
    if biased == 0 { -1074 } else { biased - 1023 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_its_own_nearest_code() {
        use ElementType::*;
        for t in [F8e5m2, F8e4m3, F8e3m4, F8e4m3fn, F8e4m3b11fnuz, F8e5m2fnuz, F8e4m3fnuz, F8e8m0fnu] {
            for code in 0..=255u8 {
                let value = decoding_table(t)[code as usize];
                if !value.is_nan() {
                    assert_eq!(encode(t, value as f64), code, "{t} {value}");
                }
            }
        }
    }

    #[test]
    fn too_large_is_what_the_format_says() {
        assert_eq!(encode(ElementType::F8e5m2, 1e9), 0x7c);
        assert_eq!(encode(ElementType::F8e4m3fn, 1e9), 0x7f);
        assert_eq!(encode(ElementType::F8e4m3fn, 448.0), 0x7e);
        assert_eq!(encode(ElementType::F8e4m3fnuz, 1e9), 0x80);
        assert_eq!(encode(ElementType::F4e2m1fn, -1e9), 0xf);
    }
}
