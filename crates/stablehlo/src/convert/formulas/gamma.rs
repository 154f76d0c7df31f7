//! The gamma function's logarithm and its derivatives, and the zeta function of Hurwitz.

use std::f64::consts::{PI, TAU};

use super::Value;

/// Lanczos' approximation with nine terms (P. Godfrey); below 1/2 by its reflection.
pub(super) fn lgamma(x: Value<'_>) -> Value<'_> {
    let reflects = x.lt(0.5);
    let z = reflects.select(-x, x - 1.0);
    let sum = sum(z, LANCZOS.iter().enumerate().map(|(i, &term)| term / (z + (i as f64 + 1.0))));
    let t = z + LANCZOS_SHIFT;
    let log_t = (z / LANCZOS_SHIFT).log1p() + LANCZOS_SHIFT.ln();
    let value = (z + 0.5 - t / log_t) * log_t + TAU.ln() / 2.0 + sum.log();
    // The sine loses digits near whole numbers, unless its argument is small.
    let size = x.abs();
    let fraction = size - size.floor();
    let reduced = fraction.number(0.5).lt(fraction).select(1.0 - fraction, fraction);
    let log_sine = (reduced * PI).sin().log();
    let reflected = PI.ln() - log_sine - value;
    let reflected = log_sine.is_finite().select(reflected, -log_sine);
    let value = reflects.select(reflected, value);
    x.abs().eq(f64::INFINITY).select(f64::INFINITY, value)
}

/// The derivative of that; no number at its poles but for zero.
pub(super) fn digamma(x: Value<'_>) -> Value<'_> {
    let reflects = x.lt(0.5);
    let z = reflects.select(-x, x - 1.0);
    let places: [Value<'_>; LANCZOS.len()] = std::array::from_fn(|i| z + (i as f64 + 1.0));
    let terms = LANCZOS.into_iter().zip(places);
    let slope = terms.clone().fold(z.number(0.0), |sum, (term, place)| sum - term / (place * place));
    let sum = sum(z, terms.map(|(term, place)| term / place));
    let t = z + LANCZOS_SHIFT;
    let log_t = (z / LANCZOS_SHIFT).log1p() + LANCZOS_SHIFT.ln();
    let value = log_t + slope / sum - (LANCZOS_SHIFT - 0.5) / t;
    // The tangent loses digits unless its argument is small.
    let angle = (x + (x + 0.5).floor().abs()) * PI;
    let reflected = value - angle.cos() * PI / angle.sin();
    let value = reflects.select(reflected, value);
    let is_pole = x.lt(0.0) & x.eq(x.floor());
    x.eq(0.0).select(-f64::INFINITY, is_pole.select(f64::NAN, value))
}

/// The derivative of `digamma` of an order that is a natural number.
pub(super) fn polygamma<'w>(order: Value<'w>, x: Value<'w>) -> Value<'w> {
    let sign = order.remainder(2.0) * 2.0 - 1.0;
    let next = order + 1.0;
    let value = sign * lgamma(next).exp() * zeta(next, x);
    let value = order.eq(0.0).select(digamma(x), value);
    let is_outside = order.ne(order.floor()) | order.lt(0.0);
    is_outside.select(f64::NAN, value)
}

/// Nine terms of the series, and twelve of the formula of Euler and Maclaurin for the rest (F. Johansson, 2015).
pub(super) fn zeta<'w>(x: Value<'w>, q: Value<'w>) -> Value<'w> {
    let minus = -x;
    let mut place = q;
    let mut sum = q.power(minus);
    for _ in 0..9 {
        place = place + 1.0;
        sum = sum + place.power(minus);
    }
    place = place + 1.0;
    let power = place.power(minus);
    let integral = power * place / (x - 1.0);
    let inverse_square = 1.0 / (place * place);
    let [series @ .., last] = ZETA;
    let mut tail: Option<Value<'w>> = None;
    for (i, term) in series.into_iter().enumerate() {
        let factor = (x + (22.0 - 2.0 * i as f64)) * (x + (21.0 - 2.0 * i as f64));
        let number = place.number(1.0 / term);
        tail = Some(factor * (inverse_square * tail.map_or(number, |tail| tail + number)));
    }
    let tail = tail.map_or(place, |tail| tail + 1.0 / last);
    let correction = power * (x / place * tail + 0.5);
    let value = sum + integral + correction;
    let least = if x.is_double() { f64::from_bits(1) } else { f64::from(f32::from_bits(1)) };
    let value = power.abs().lt(sum.abs() * least).select(sum, value);
    let value = x.lt(1.0).select(f64::NAN, value);
    let is_negative = q.le(0.0);
    let value = (is_negative & x.ne(x.floor())).select(f64::NAN, value);
    let is_even = x.eq(x.floor()) & x.remainder(2.0).eq(0.0);
    let at_pole = is_even.select(f64::INFINITY, x.number(f64::NAN));
    let value = (is_negative & q.eq(q.floor())).select(at_pole, value);
    x.eq(1.0).select(f64::INFINITY, value)
}

/// Lanczos' sum: its constant term with the first of the others.
fn sum<'w>(z: Value<'w>, terms: impl Iterator<Item = Value<'w>>) -> Value<'w> {
    let sum = terms
        .fold(None, |sum: Option<Value<'w>>, term| Some(sum.map_or(term + LANCZOS_BASE, |sum| sum + term)));
    sum.unwrap_or(z)
}

/// The place of Lanczos' approximation.
const LANCZOS_SHIFT: f64 = 7.5;

/// Its constant term.
const LANCZOS_BASE: f64 = 0.999_999_999_999_809_9;

/// Its other terms.
const LANCZOS: [f64; 8] = [
    676.520_368_121_885_1,
    -1_259.139_216_722_402_8,
    771.323_428_777_653_1,
    -176.615_029_162_140_6,
    12.507_343_278_686_905,
    -0.138_571_095_265_720_12,
    9.984_369_578_019_572e-6,
    1.505_632_735_149_311_6e-7,
];

/// The divisors of the terms of Euler and Maclaurin, the last one first.
const ZETA: [f64; 12] = [
    -7.166_165_256_175_667e18,
    1.815_210_540_194_354_6e17,
    -4_597_978_722_407_473.0,
    116_467_828_143_500.67,
    -2_950_130_727_918.164,
    74_724_249_600.0,
    -1_892_437_580.318_379_2,
    47_900_160.0,
    -1_209_600.0,
    30_240.0,
    -720.0,
    12.0,
];
