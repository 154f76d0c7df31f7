//! Functions of complex numbers, of their real and imaginary parts (functional_algorithms).

use std::f64::consts::{LN_2, PI, SQRT_2};

use super::Value;

pub(super) fn exp<'w>(z: Value<'w>) -> Value<'w> {
    let [x, y] = [z.real(), z.imag()];
    let power = x.exp();
    let half = (x * 0.5).exp();
    let is_large = power.eq(f64::INFINITY);
    // Twice the half: the product is a number where the power alone is none.
    let part = |turn: Value<'w>| is_large.select(half * turn * half, power * turn);
    let [real, imaginary] = [part(y.cos()), part(y.sin())];
    real.complex(y.eq(0.0).select(0.0, imaginary))
}

pub(super) fn logistic(z: Value<'_>) -> Value<'_> {
    let one = z.complex_number([1.0, 0.0]);
    one / (exp(-z) + one)
}

/// Nothing is lost where the parts are equal in size.
pub(super) fn square(z: Value<'_>) -> Value<'_> {
    let [x, y] = [z.real(), z.imag()];
    let is_diagonal = x.is_finite() & x.abs().eq(y.abs());
    let real = is_diagonal.select(0.0, (x - y) * (x + y));
    real.complex(x * y * 2.0)
}

pub(super) fn cosh(z: Value<'_>) -> Value<'_> {
    let half = log(z.complex_number([0.5, 0.0]));
    exp(z + half) + exp(half - z)
}

pub(super) fn sinh(z: Value<'_>) -> Value<'_> {
    let half = log(z.complex_number([0.5, 0.0]));
    exp(z + half) - exp(half - z)
}

/// Near the unit circle by `log1p` of `x^2 + y^2 - 1` in twice the precision.
pub(super) fn log(z: Value<'_>) -> Value<'_> {
    let [x, y] = [z.real(), z.imag()];
    let [(y_square, y_rest), (x_square, x_rest)] = [exact_square(y), exact_square(x)];
    let is_steep = y_square.gt(x_square);
    let larger = is_steep.select(y_square, x_square);
    let first = larger + -1.0;
    let first = (first, larger - (first - -1.0));
    let near = exact_sum(first, [is_steep.select(x_square, y_square), y_rest, x_rest], fast_two_sum);
    let [larger, smaller] = larger_and_smaller(x.abs(), y.abs());
    let ratio = smaller.eq(larger).select(1.0, smaller / larger);
    let far = larger.log() + (ratio * ratio).log1p() * 0.5;
    near.abs().lt(0.5).select(near.log1p() * 0.5, far).complex(y.atan2(x))
}

/// The same of the next number: near -1 by its logarithm.
pub(super) fn log1p(z: Value<'_>) -> Value<'_> {
    let [x, y] = [z.real(), z.imag()];
    let [(y_square, y_rest), (x_square, x_rest)] = [exact_square(y), exact_square(x)];
    let first = two_sum(x + x, y_square);
    let near = exact_sum(first, [x_square, y_rest, x_rest], two_sum);
    let next = x + 1.0;
    let [x_size, y_size] = [x.abs(), y.abs()];
    let is_small = (next.abs() + y_size).lt(0.2);
    let near = is_small.select((next * next + y_square).log() * 0.5, near.log1p() * 0.5);
    let [larger, smaller] = larger_and_smaller(x_size, y_size);
    let ratio = smaller / larger;
    let square = smaller.eq(larger).select(1.0, ratio * ratio);
    let far = larger.log() + square.log1p() * 0.5;
    let most = x.rounded(x.rounded(x.largest().sqrt()) * x.rounded(0.01));
    larger.gt(most).select(far, near).complex(y.atan2(next))
}

/// A sum with what is lost when its steps are rounded.
fn exact_sum<'w>(
    first: (Value<'w>, Value<'w>),
    terms: [Value<'w>; 3],
    add: fn(Value<'w>, Value<'w>) -> (Value<'w>, Value<'w>),
) -> Value<'w> {
    let (sum, lost) = terms.into_iter().fold(first, |(sum, lost), term| {
        let (sum, more) = add(sum, term);
        (sum, lost + more)
    });
    sum + lost
}

fn larger_and_smaller<'w>(x: Value<'w>, y: Value<'w>) -> [Value<'w>; 2] {
    [x.max(y), x.min(y)]
}

/// A square, and what is lost when it is rounded (Dekker).
fn exact_square(x: Value<'_>) -> (Value<'_>, Value<'_>) {
    let square = x * x;
    let shifted = x * if x.is_double() { 134_217_729.0 } else { 4_097.0 };
    let high = shifted + (x - shifted);
    let low = x - high;
    let product = high * low;
    (square, -square + high * high + product + product + low * low)
}

/// A sum, and what is lost when it is rounded (Knuth).
fn two_sum<'w>(x: Value<'w>, y: Value<'w>) -> (Value<'w>, Value<'w>) {
    let sum = x + y;
    let added = sum - x;
    (sum, (x - (sum - added)) + (y - added))
}

/// The same where `x` is the larger one.
fn fast_two_sum<'w>(x: Value<'w>, y: Value<'w>) -> (Value<'w>, Value<'w>) {
    let sum = x + y;
    (sum, y - (sum - x))
}

/// `sqrt(x^2 + y^2)`, without squares that are too large.
fn hypot<'w>([larger, smaller]: [Value<'w>; 2]) -> Value<'w> {
    let ratio = smaller / larger;
    let square = ratio * ratio;
    let root = (square + 1.0).sqrt();
    let vanishes = root.eq(1.0) & square.gt(0.0);
    let value = vanishes.select(larger + larger * square / 2.0, larger * root);
    larger.eq(smaller).select(larger * SQRT_2, value)
}

/// Halves of the number's size and real part; where their sum is no number, or none but zero, by ratios of the parts.
pub(super) fn sqrt<'w>(z: Value<'w>) -> Value<'w> {
    let [x, y] = [z.real(), z.imag()];
    let [x_size, y_size] = [x.abs(), y.abs()];
    let [x_root, y_root] = [x_size.sqrt(), y_size.sqrt()];
    let is_diagonal = x_size.eq(y_size);
    let is_flat = x_size.gt(y_size);
    let is_steep = x_size.lt(y_size);
    let halves = (hypot(larger_and_smaller(x_size, y_size)) / 2.0 + x_size / 2.0).sqrt();
    let ratio = is_diagonal.select(1.0, is_steep.select(x_size / y_size, y_size / x_size));
    let ratio_size = ratio.abs();
    let size = hypot([ratio_size.max(1.0), ratio_size.min(1.0)]);
    let flat = (size + 1.0).sqrt();
    let steep = (ratio + size).sqrt();
    let by_ratios = is_flat.select(x_root * (flat / SQRT_2), y_root * (steep / SQRT_2));
    let is_outside = halves.eq(0.0) | halves.eq(f64::INFINITY);
    let larger = is_outside.select(by_ratios, halves);
    let larger = is_diagonal.select(x_root * 1.553_773_974_030_037_4 / SQRT_2, larger);
    let ratio = is_diagonal.select(1.0, is_steep.select(x_root / y_root, y_root / x_root));
    let by_ratios = is_flat.select(y_root * ratio / (flat * SQRT_2), y_root / (steep * SQRT_2));
    let smaller = is_outside.select(by_ratios, y_size / (halves * 2.0));
    let smaller = is_diagonal.select(y_root / 2.197_368_226_935_62, smaller);
    let is_below = y.lt(0.0);
    let signed = |part: Value<'w>| is_below.select(-part, part);
    let imaginary = x.lt(0.0).select(signed(larger), signed(smaller));
    x.ge(0.0).select(larger, smaller).complex(imaginary)
}

/// What inverse functions have in common (T. Hull and others, 1997, with fewer regions): of `asin(x + iy)` the cosine of the
/// real part times `a`, and the size of the imaginary part, where `a` is half the sum of the distances from 1 and -1.
fn inverse<'w>(x: Value<'w>, y: Value<'w>) -> [Value<'w>; 2] {
    let [x, y] = [x.abs(), y.abs()];
    let most = x.rounded(x.rounded(x.largest().sqrt()) / 8.0);
    let [above, below] = [x + 1.0, x - 1.0];
    let r = hypot(larger_and_smaller(above.abs(), y));
    let s = hypot(larger_and_smaller(below.abs(), y));
    let a = (r + s) * 0.5;
    let half = (a + x) * 0.5;
    let square = y * y;
    let r_sum = r + above;
    let [s_rest, s_sum] = [s - below, s + below];
    let inside = (half * (square / r_sum + s_rest)).sqrt();
    let outside = y * (half / r_sum + half / s_sum).sqrt();
    let real = x.max(y).ge(most).select(y, x.le(1.0).select(inside, outside));

    let near_axis = x.lt(x.rounded(most * x.rounded(1e12)));
    let y_most = near_axis.select(x.rounded(most * x.rounded(1e-6)), x.number(x.rounded(most * 100.0)));
    let is_high = y.ge(y_most);
    let larger = is_high.select(y, x);
    let ratio = (is_high & !y.eq(f64::INFINITY)).select(x / y, x.number(0.0));
    let far = (larger.log() + LN_2) + (ratio * ratio).log1p() * 0.5;
    let least = if x.is_double() { f64::MIN_POSITIVE } else { f64::from(f32::MIN_POSITIVE) };
    let is_segment = y.lt(x.rounded(x.rounded(least.sqrt()) * 4.0)) & x.lt(1.0);
    let next = a + 1.0;
    let half_square = square * 0.5;
    let r_part = half_square / r_sum;
    let close = a.le(1.5).select(r_part + half_square / s_rest, a - 1.0);
    let before = x.ge(1.0).select(r_part + s_sum * 0.5, close);
    let before = is_segment.select(-(above * below / next), before);
    let root = (before * next).sqrt();
    let near = is_segment.select(y / root, (before + root).log1p());
    [real, larger.ge(is_high.select(y_most, x.number(most))).select(far, near)]
}

/// A size with the sign of a number.
fn signed<'w>(like: Value<'w>, size: Value<'w>) -> Value<'w> {
    like.lt(0.0).select(-size, size)
}

pub(super) fn asin(z: Value<'_>) -> Value<'_> {
    let [real, imaginary] = inverse(z.real(), z.imag());
    z.real().atan2(real).complex(signed(z.imag(), imaginary))
}

pub(super) fn acosh(z: Value<'_>) -> Value<'_> {
    let [real, imaginary] = inverse(z.real(), z.imag());
    imaginary.complex(signed(z.imag(), real.atan2(z.real())))
}

pub(super) fn acos(z: Value<'_>) -> Value<'_> {
    let [real, imaginary] = inverse(z.real(), z.imag());
    let imaginary = z.imag().lt(0.0).select(imaginary, -imaginary);
    real.atan2(z.real()).complex(imaginary)
}

pub(super) fn asinh(z: Value<'_>) -> Value<'_> {
    let [x, y] = [z.real(), z.imag()];
    let [real, imaginary] = inverse(-y, x);
    signed(x, imaginary).complex(y.atan2(real))
}

pub(super) fn atanh(z: Value<'_>) -> Value<'_> {
    let [real, imaginary] = atanh_of(z.real(), z.imag());
    real.complex(imaginary)
}

pub(super) fn atan(z: Value<'_>) -> Value<'_> {
    let [real, imaginary] = atanh_of(-z.imag(), z.real());
    imaginary.complex(-real)
}

/// The parts of the logarithm of `(1 + z) / (1 - z)`, halved.
fn atanh_of<'w>(x: Value<'w>, y: Value<'w>) -> [Value<'w>; 2] {
    // One over the distance of 1 to the number before it.
    let inverse = if x.is_double() { 9_007_199_254_740_994.0 } else { 16_777_218.0 };
    let most = x.rounded(inverse * inverse);
    let [x_size, y_size] = [x.abs(), y.abs()];
    let is_near = x_size.lt(most) & y_size.lt(most);
    let before = 1.0 - x_size;
    let square = y * y;
    let near = x_size / (before * before + square);
    let is_infinite =
        (x.eq(f64::INFINITY) | x.eq(-f64::INFINITY)) | (y.eq(f64::INFINITY) | y.eq(-f64::INFINITY));
    let far = 1.0 / (x_size / y + y / x_size) / y;
    let is_flat = (y_size * inverse).lt(x_size);
    let far = is_flat.select(1.0 / x_size, is_infinite.select(0.0, far));
    let sign = |of: Value<'w>| of.ge(0.0).select(1.0, of.number(-1.0));
    let real = sign(x) * (is_near.select(near, far) * 4.0).log1p() * 0.25;
    let angle = (y + y).atan2(before * (x_size + 1.0) - square);
    [real, is_near.select(angle, sign(y) * PI) * 0.5]
}
