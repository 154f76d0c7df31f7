//! Inverse and hyperbolic functions of real numbers.

use std::f64::consts::LN_2;

use super::Value;

pub(super) fn acos(x: Value<'_>) -> Value<'_> {
    ((1.0 - x) * (1.0 + x)).sqrt().atan2(x)
}

/// `log(x + sqrt(x^2 - 1))`, and `log(2 x)` where the square is too large.
pub(super) fn acosh(x: Value<'_>) -> Value<'_> {
    let below = (x - 1.0).sqrt();
    let small = (below * ((x + 1.0).sqrt() + below)).log1p();
    x.ge(x.largest() / 2.0).select(x.log() + LN_2, small)
}

pub(super) fn asin(x: Value<'_>) -> Value<'_> {
    x.atan2(((1.0 - x) * (1.0 + x)).sqrt())
}

/// `log(x + sqrt(x^2 + 1))`, with the sign of `x`, and `log(2 x)` where the square is too large.
pub(super) fn asinh(x: Value<'_>) -> Value<'_> {
    let size = x.abs();
    let square = size * size;
    let small = (size + square / ((square + 1.0).sqrt() + 1.0)).log1p();
    let is_large = size.ge(x.largest().sqrt());
    x.sign() * is_large.select(size.log() + LN_2, small)
}

pub(super) fn atan(x: Value<'_>) -> Value<'_> {
    x.atan2(1.0)
}

pub(super) fn atanh(x: Value<'_>) -> Value<'_> {
    let inside = (x.log1p() - (-x).log1p()) * 0.5;
    x.abs().gt(1.0).select(f64::NAN, inside)
}

/// `(e^x + e^-x) / 2`, without a number that is too large where the result is not.
pub(super) fn cosh(x: Value<'_>) -> Value<'_> {
    (x + -LN_2).exp() + (-LN_2 - x).exp()
}

/// `(e^x - e^-x) / 2`; where `x` is small, by `e^x - 1`, which has more digits there.
pub(super) fn sinh(x: Value<'_>) -> Value<'_> {
    let large = (x + -LN_2).exp() - (-LN_2 - x).exp();
    let less = x.expm1();
    let small = (less + less / (less + 1.0)) * 0.5;
    x.abs().lt(1.0).select(small, large)
}
