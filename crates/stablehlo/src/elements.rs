//! The elements of constants in text.

use std::sync::Arc;

use memplan_ir::{ArrayShape, ElementType};

use crate::mlir::Elements;

/// Where something is wrong in the text, and what.
type Wrong = (usize, String);

/// Reads what is between `dense<` and `>`.
pub(crate) fn parse(text: &str, shape: ArrayShape) -> Result<Elements, Wrong> {
    let element = shape.element_type;
    let Some(count) = shape.element_count().filter(|&count| count <= 1 << 40) else {
        return Err((0, "a constant of that many elements cannot be".to_owned()));
    };
    let trimmed = text.trim();
    if trimmed.is_empty() {
        return finish(shape, Vec::new(), count, false);
    }
    if let Some(digits) = trimmed.strip_prefix("\"0x").and_then(|rest| rest.strip_suffix('"')) {
        let bytes = hex(digits).ok_or((0, "these are no hexadecimal digits".to_owned()))?;
        return from_raw(shape, &bytes).ok_or((0, "the bytes do not fit the type".to_owned()));
    }
    let (mut bytes, mut at, mut is_splat) = (Vec::new(), 0, true);
    let wrong = |at| (at, format!("this is no element of type {element}"));
    while at < text.len() {
        let rest = &text[at..];
        let first = rest.chars().next().unwrap_or_default();
        if first == '(' && element.is_complex() {
            let end = rest.find(')').ok_or_else(|| wrong(at))?;
            let (real, imaginary) = rest[1..end].split_once(',').ok_or_else(|| wrong(at))?;
            for part in [real, imaginary] {
                push(element.component(), part.trim(), &mut bytes).ok_or_else(|| wrong(at))?;
            }
            at += end + 1;
        } else if first.is_whitespace() || matches!(first, ',' | '[' | ']') {
            is_splat &= first != '[';
            at += first.len_utf8();
        } else {
            let end =
                rest.find(|c: char| c.is_whitespace() || matches!(c, ',' | ']' | '[')).unwrap_or(rest.len());
            push(element, &rest[..end], &mut bytes).ok_or_else(|| wrong(at))?;
            if element.is_complex() {
                bytes.resize(bytes.len() + element.component().byte_width() as usize, 0);
            }
            at += end;
        }
    }
    finish(shape, bytes, count, is_splat)
}

fn finish(shape: ArrayShape, bytes: Vec<u8>, count: u64, is_splat: bool) -> Result<Elements, Wrong> {
    let width = u64::from(shape.element_type.byte_width());
    let expected = if is_splat { 1 } else { count };
    let found = bytes.len() as u64 / width;
    match found == expected {
        true => Ok(Elements { is_splat: is_splat && count != 1, bytes: bytes.into(), shape }),
        false => Err((0, format!("expected {expected} elements, found {found}"))),
    }
}

/// Elements from bytes as MLIR keeps them: `i1` as bits or bytes, others in bytes. One element alone is a splat.
pub(crate) fn from_raw(shape: ArrayShape, raw: &[u8]) -> Option<Elements> {
    let element = shape.element_type;
    let width = element.byte_width() as usize;
    let count = usize::try_from(shape.element_count()?).ok()?;
    if element == ElementType::Pred {
        let is_splat = raw.len() == 1 && count != 1 && matches!(raw[0], 0 | 0xff);
        let bytes: Vec<u8> = match raw.len() {
            _ if is_splat => vec![u8::from(raw[0] != 0)],
            n if n == count.div_ceil(8) => (0..count).map(|i| raw[i / 8] >> (i % 8) & 1).collect(),
            n if n == count => raw.iter().map(|&byte| u8::from(byte != 0)).collect(),
            _ => return None,
        };
        return Some(Elements { shape, bytes: bytes.into(), is_splat });
    }
    let is_splat = raw.len() == width && count != 1;
    if !is_splat && raw.len() != count.checked_mul(width)? {
        return None;
    }
    Some(Elements { shape, bytes: normal(element, raw), is_splat })
}

/// Elements of less than a byte are extended as HLO keeps them.
fn normal(element: ElementType, raw: &[u8]) -> Arc<[u8]> {
    let bits = element.bits();
    if bits >= 8 {
        return raw.into();
    }
    let extend = |&byte: &u8| match element.is_signed() {
        true => (byte << (8 - bits)).cast_signed().wrapping_shr(8 - bits).cast_unsigned(),
        false => byte & ((1 << bits) - 1),
    };
    raw.iter().map(extend).collect()
}

/// Appends one element.
fn push(element: ElementType, text: &str, bytes: &mut Vec<u8>) -> Option<()> {
    let component = element.component();
    let bits = parse_scalar(component, text)?;
    bytes.extend_from_slice(&bits.to_le_bytes()[..component.byte_width() as usize]);
    Some(())
}

/// The bits of one element; integers are extended to 64.
pub(crate) fn parse_scalar(element: ElementType, text: &str) -> Option<u64> {
    if element == ElementType::Pred {
        return match text {
            "true" => Some(1),
            "false" => Some(0),
            _ => text.parse::<i64>().ok().map(|value| u64::from(value != 0)),
        };
    }
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text),
    };
    if let Some(digits) = digits.strip_prefix("0x") {
        let bits = u64::from_str_radix(digits, 16).ok()?;
        return Some(if negative { bits.wrapping_neg() } else { bits });
    }
    if element.is_floating() {
        return Some(match element {
            ElementType::F64 => text.parse::<f64>().ok()?.to_bits(),
            ElementType::F32 => text.parse::<f32>().ok()?.to_bits().into(),
            _ => element.encode_float(text.parse().ok()?),
        });
    }
    let value: i128 = text.parse().ok()?;
    let fits = match element.is_unsigned() {
        true => (0..1i128 << element.bits()).contains(&value),
        false => (-(1i128 << (element.bits() - 1))..1i128 << element.bits()).contains(&value),
    };
    fits.then_some(value as u64)
}

/// The bytes of hexadecimal digits.
pub(crate) fn hex(digits: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let (pairs, []) = digits.as_bytes().as_chunks::<2>() else { return None };
    pairs.iter().map(|&[high, low]| Some((digit(high)? * 16 + digit(low)?) as u8)).collect()
}
