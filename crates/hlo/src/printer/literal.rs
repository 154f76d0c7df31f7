//! Literals: bytes to text.

use std::fmt;

use memplan_ir::{ArrayLiteral, ElementType, Literal, LiteralData, Shape};

use super::{Layouts, separated, shape};

/// The text of a literal, without its shape.
pub(super) fn literal<W: fmt::Write>(literal_: &Literal, out: &mut W) -> fmt::Result {
    match literal_ {
        Literal::Array(array) => array_literal(array, out),
        Literal::Tuple(elements) => {
            out.write_str("( ")?;
            for (i, element) in elements.iter().enumerate() {
                shape::index_comment(out, i)?;
                literal(element, out)?;
            }
            out.write_str(" )")
        }
        Literal::Token => out.write_str("token[]"),
    }
}

/// The text of a literal, each array with its shape.
pub(crate) fn shaped_literal<W: fmt::Write>(literal: &Literal, out: &mut W) -> fmt::Result {
    match literal {
        Literal::Array(array) => {
            let array_shape = Shape::array(array.element_type, array.dimensions.iter().copied());
            // With its layout: braces right behind a shape would be read as one.
            shape(&array_shape, Layouts::Print, out)?;
            out.write_char(' ')?;
            array_literal(array, out)
        }
        Literal::Tuple(elements) => {
            out.write_str("( ")?;
            separated(out, ", ", elements, |out, element| shaped_literal(element, out))?;
            out.write_str(" )")
        }
        Literal::Token => out.write_str("token[]"),
    }
}

/// From so many bytes on, an array that is zero but for its first element is written as that element alone, which is
/// how XLA reads it: few characters made it, and few are written for it.
const LONG: usize = 1 << 16;

fn array_literal<W: fmt::Write>(array: &ArrayLiteral, out: &mut W) -> fmt::Result {
    let LiteralData::Bytes(bytes) = &array.data else { return out.write_str("{...}") };
    let width = array.element_type.byte_width() as usize;
    let extents = &array.dimensions;
    if extents.is_empty() {
        return match array.element_type {
            ElementType::Pred => write!(out, "{}", bytes[0] != 0),
            element_type => element(element_type, bytes, out),
        };
    }
    if let Some(zero) = extents.iter().position(|&extent| extent == 0) {
        let n_braces = extents[..zero].iter().fold(1, |n: i64, &extent| n.saturating_mul(extent));
        return match n_braces > LONG as i64 {
            true => out.write_str("{...}"),
            false => empty(&extents[..zero], zero + 1 < extents.len(), out),
        };
    }
    if bytes.len() > LONG && !array.element_type.is_complex() && bytes[width..].iter().all(|&byte| byte == 0)
    {
        return element(array.element_type, &bytes[..width], out);
    }
    // An odometer over all dimensions but the last: it opens and closes as many braces as roll over.
    let rank = extents.len();
    let row = extents[rank - 1] as usize;
    let n_rows = bytes.len() / width / row;
    // XLA puts spaces around rows of several elements, unless there is but one dimension.
    let (open, close) = if rank > 1 && row > 1 { ("{ ", " }") } else { ("{", "}") };
    let mut index = vec![0i64; rank - 1];
    let mut rolled = rank - 1;
    for r in 0..n_rows {
        for _ in 0..rolled {
            out.write_str("{ ")?;
        }
        out.write_str(open)?;
        let start = r * row;
        separated(out, ", ", start..start + row, |out, i| {
            element(array.element_type, &bytes[i * width..][..width], out)
        })?;
        rolled = 0;
        for d in (0..rank - 1).rev() {
            index[d] += 1;
            if index[d] < extents[d] {
                break;
            }
            index[d] = 0;
            rolled += 1;
        }
        out.write_str(close)?;
        for _ in 0..rolled {
            out.write_str(" }")?;
        }
        if r + 1 < n_rows {
            out.write_str(", ")?;
        }
    }
    Ok(())
}

/// An array without elements: braces for the dimensions before the first that is zero. If they would be too many, its
/// (empty) data is omitted.
fn empty<W: fmt::Write>(extents: &[i64], has_spaces: bool, out: &mut W) -> fmt::Result {
    match extents {
        [] => out.write_str(if has_spaces { "{  }" } else { "{}" }),
        [extent, inner @ ..] => {
            out.write_str("{ ")?;
            separated(out, ", ", 0..*extent, |out, _| empty(inner, has_spaces, out))?;
            out.write_str(" }")
        }
    }
}

fn element<W: fmt::Write>(element_type: ElementType, bytes: &[u8], out: &mut W) -> fmt::Result {
    if element_type.is_complex() {
        let part = element_type.component();
        let (re, im) = bytes.split_at(bytes.len() / 2);
        out.write_char('(')?;
        element(part, re, out)?;
        out.write_str(", ")?;
        element(part, im, out)?;
        return out.write_char(')');
    }
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    let bits = u64::from_le_bytes(word);
    if element_type.is_floating() {
        return float(element_type, bits, out);
    }
    if element_type.is_signed() {
        let shift = 64 - 8 * bytes.len() as u32;
        return write!(out, "{}", (bits << shift) as i64 >> shift);
    }
    write!(out, "{bits}")
}

fn float<W: fmt::Write>(element_type: ElementType, bits: u64, out: &mut W) -> fmt::Result {
    let value = element_type.decode_float(bits);
    if value == 0.0 && value.is_sign_negative() {
        // XLA prints `-0`, and reads that as the integer.
        return out.write_str("-0.0");
    }
    if value.is_nan() {
        let mask = (1u64 << element_type.mantissa_bits()) - 1;
        let has_sign = element_type != ElementType::F8e8m0fnu;
        let sign = if has_sign && bits >> (element_type.bits() - 1) == 1 { "-" } else { "" };
        let payload = bits & mask;
        let quiet = element_type.encode_float(f64::NAN) & mask;
        return match element_type.has_nan_payload() && payload != quiet {
            true => write!(out, "{sign}nan(0x{payload:x})"),
            false => write!(out, "{sign}nan"),
        };
    }
    match element_type {
        ElementType::F64 => double(out, value),
        ElementType::F32 => {
            let is_short = shortened(value, 6).is_ok_and(|short| short as f32 == value as f32);
            number(out, value, if is_short { 6 } else { 9 })
        }
        // As many digits as are needed to tell any two values of the type apart.
        other => {
            let digits = f64::from(other.mantissa_bits() + 1) * std::f64::consts::LOG10_2 + 1.0;
            number(out, value, digits.ceil() as usize)
        }
    }
}

/// A double with 15 digits where they are enough, otherwise with 17.
pub(super) fn double<W: fmt::Write>(out: &mut W, value: f64) -> fmt::Result {
    let is_short = shortened(value, 15) == Ok(value);
    number(out, value, if is_short { 15 } else { 17 })
}

/// The value rounded to so many significant digits.
fn shortened(value: f64, digits: usize) -> Result<f64, std::num::ParseFloatError> {
    format!("{value:.*e}", digits - 1).parse()
}

/// A number with at most so many significant digits, the way C's `%g` writes it.
pub(crate) fn number<W: fmt::Write>(out: &mut W, value: f64, digits: usize) -> fmt::Result {
    if value.is_infinite() {
        return out.write_str(if value > 0.0 { "inf" } else { "-inf" });
    }
    if value.is_nan() {
        return out.write_str("nan");
    }
    if value.fract() == 0.0 && value.abs() < 1e9f64.min(10f64.powi(digits as i32)) {
        let sign = if value.is_sign_negative() { "-" } else { "" };
        return write!(out, "{sign}{}", value.abs() as u64);
    }
    let scientific = format!("{value:.*e}", digits - 1);
    let (mantissa, exponent) = scientific.split_once('e').expect("scientific notation has an exponent");
    let exponent: i32 = exponent.parse().expect("the exponent is a number");
    let trim = |text: &str| -> String {
        match text.contains('.') {
            true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
            false => text.to_owned(),
        }
    };
    if exponent < -4 || exponent >= digits as i32 {
        let sign = if exponent < 0 { '-' } else { '+' };
        return write!(out, "{}e{sign}{:02}", trim(mantissa), exponent.abs());
    }
    let decimals = (digits as i32 - 1 - exponent) as usize;
    out.write_str(&trim(&format!("{value:.decimals$}")))
}
