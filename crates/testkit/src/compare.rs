//! Comparison of results.

use memplan_ir::{ArrayLiteral, ElementType, Literal};

/// How far two results are apart: the largest difference of two floats, relative to the largest magnitude in their
/// array (or 1 where that is less). Infinite where shapes, integers, infinities or NaNs differ.
pub fn difference(found: &Literal, expected: &Literal) -> f64 {
    match (found, expected) {
        (Literal::Tuple(found), Literal::Tuple(expected)) if found.len() == expected.len() => {
            found.iter().zip(expected).fold(0.0, |worst, (f, e)| difference(f, e).max(worst))
        }
        (Literal::Array(found), Literal::Array(expected)) => array_difference(found, expected),
        (Literal::Token, Literal::Token) => 0.0,
        _ => f64::INFINITY,
    }
}

/// The first place where two results differ by more than `tolerance`: path and values, for a message. `None` if they
/// agree.
pub fn first_difference(found: &Literal, expected: &Literal, tolerance: f64) -> Option<String> {
    match (found, expected) {
        (Literal::Tuple(found), Literal::Tuple(expected)) if found.len() == expected.len() => {
            let pairs = found.iter().zip(expected).enumerate();
            pairs.into_iter().find_map(|(i, (found, expected))| {
                first_difference(found, expected, tolerance).map(|rest| format!("{{{i}}} {rest}"))
            })
        }
        _ if difference(found, expected) <= tolerance => None,
        (Literal::Array(found), Literal::Array(expected)) => {
            let (found, expected) = (elements(found), elements(expected));
            Some(format!("is {found:?} instead of {expected:?}"))
        }
        _ => Some(format!("is {found:?} instead of {expected:?}")),
    }
}

/// Asserts that two results differ by no more than `tolerance`, as [`difference`] counts.
///
/// # Panics
/// When they do.
#[track_caller]
pub fn assert_close(name: &str, found: &Literal, expected: &Literal, tolerance: f64) {
    if let Some(difference) = first_difference(found, expected, tolerance) {
        panic!("{name}: {difference}");
    }
}

/// The first place where an array is not the one that XLA computes. Floats may be apart as far as XLA's own approximations
/// of elementary functions: more in narrow types, nothing in those of 8 bits. Any NaN is as good as another.
pub fn difference_from_xla(found: &ArrayLiteral, of_xla: &ArrayLiteral) -> Option<String> {
    let tolerance = match found.element_type {
        ElementType::F32 | ElementType::C64 => 2e-5,
        ElementType::F64 | ElementType::C128 => 1e-12,
        ElementType::F16 => 2e-3,
        ElementType::Bf16 => 8e-3,
        _ if found.bytes() == of_xla.bytes() => return None,
        element_type if element_type.is_floating() => 0.0,
        _ => return Some(format!("{:?} instead of {:?}", found.bytes(), of_xla.bytes())),
    };
    let (found, of_xla) = (elements(found), elements(of_xla));
    let largest = of_xla.iter().filter(|x| x.is_finite()).fold(0f64, |m, x| m.max(x.abs()));
    let agrees = |f: f64, x: f64| match f.is_finite() && x.is_finite() && tolerance > 0.0 {
        true => (f - x).abs() <= tolerance * x.abs().max(largest.min(10.0)),
        false => f.to_bits() == x.to_bits() || f.is_nan() && x.is_nan(),
    };
    let (i, (f, x)) = found.iter().zip(&of_xla).enumerate().find(|&(_, (&f, &x))| !agrees(f, x))?;
    Some(format!("[{i}] is {f} instead of {x}"))
}

fn array_difference(found: &ArrayLiteral, expected: &ArrayLiteral) -> f64 {
    if found.element_type != expected.element_type || found.dimensions != expected.dimensions {
        return f64::INFINITY;
    }
    let (left, right) = (found.bytes(), expected.bytes());
    if left == right {
        return 0.0;
    }
    if !(found.element_type.is_floating() || found.element_type.is_complex()) {
        return f64::INFINITY;
    }
    let (found, expected) = (elements(found), elements(expected));
    let largest = expected.iter().filter(|x| x.is_finite()).fold(1f64, |m, x| m.max(x.abs()));
    found.iter().zip(&expected).fold(0.0, |worst, (x, y)| {
        let apart = match x == y || (x.is_nan() && y.is_nan()) {
            true => 0.0,
            false => (x - y).abs() / largest,
        };
        if apart.is_nan() { f64::INFINITY } else { apart.max(worst) }
    })
}

/// Elements as numbers: floats by value, others by their bits; both parts of complex ones.
fn elements(array: &ArrayLiteral) -> Vec<f64> {
    let element_type = array.element_type.component();
    let width = element_type.byte_width() as usize;
    let value = |bytes: &[u8]| {
        let mut bits = [0; 8];
        bits[..width.min(8)].copy_from_slice(&bytes[..width.min(8)]);
        let bits = u64::from_le_bytes(bits);
        match element_type.is_floating() {
            true => element_type.decode_float(bits),
            false => bits as f64,
        }
    };
    array.bytes().chunks(width).map(value).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences() {
        let pair = |a, b| Literal::Tuple(vec![Literal::f32(a), Literal::s32(b)]);
        assert_eq!(difference(&pair(1.0, 2), &pair(1.0, 2)), 0.0);
        assert_eq!(difference(&pair(1.5, 2), &pair(1.0, 2)), 0.5);
        assert_eq!(difference(&pair(6.0, 2), &pair(4.0, 2)), 0.5);
        assert_eq!(difference(&pair(1.0, 3), &pair(1.0, 2)), f64::INFINITY);
        assert_eq!(difference(&pair(f32::NAN, 3), &pair(f32::NAN, 3)), 0.0);
        assert_eq!(difference(&pair(f32::NAN, 3), &pair(1.0, 3)), f64::INFINITY);
        assert_eq!(
            first_difference(&pair(1.5, 2), &pair(1.0, 2), 0.1).as_deref(),
            Some("{0} is [1.5] instead of [1.0]")
        );
    }
}
