//! Elementwise operations on registers.
//!
//! Results are those of XLA's evaluator: integers wrap, dividing by zero gives -1 with the dividend as remainder,
//! shifting by the width or more gives 0 (or the sign), minimum and maximum propagate NaN, and every narrow float is
//! computed as `f32` and rounded once.

use memplan_ir::{BinaryOp, ComparisonDirection, ComparisonType, ElementType, UnaryOp};
use num_complex::{Complex, Complex32, Complex64, ComplexFloat};

use crate::element::{Lanes, round, wrap};
use crate::real::Real;

/// `out = op(x)` for `n` lanes of type `t`. `None` when the operation is not defined for the type.
pub(crate) fn unary(op: UnaryOp, t: ElementType, x: &Lanes, out: &mut Lanes, n: usize) -> Option<()> {
    match (x, &mut *out) {
        (Lanes::Int(x), Lanes::Int(out)) => map1(x, out, n, int_unary(op, t)?),
        (Lanes::F32(x), Lanes::F32(out)) => map1(x, out, n, real_unary(op)?),
        (Lanes::F64(x), Lanes::F64(out)) => map1(x, out, n, real_unary(op)?),
        (Lanes::C64(x), Lanes::C64(out)) => map1(x, out, n, complex_unary(op)?),
        (Lanes::C128(x), Lanes::C128(out)) => map1(x, out, n, complex_unary(op)?),
        (Lanes::F32(x), Lanes::Int(out)) => map1(x, out, n, is_finite(op)?),
        (Lanes::F64(x), Lanes::Int(out)) => map1(x, out, n, is_finite(op)?),
        (Lanes::C64(x), Lanes::F32(out)) => map1(x, out, n, complex_to_real(op)?),
        (Lanes::C128(x), Lanes::F64(out)) => map1(x, out, n, complex_to_real(op)?),
        _ => return None,
    }
    // The real part is the number itself, and predicates need no rounding.
    if !matches!(op, UnaryOp::IsFinite | UnaryOp::Real) {
        round(t.component(), out, n);
    }
    Some(())
}

/// `out = op(x, y)` for `n` lanes of operand type `t`. `None` when the operation is not defined for the type.
pub(crate) fn binary(
    op: BinaryOp,
    t: ElementType,
    x: &Lanes,
    y: &Lanes,
    out: &mut Lanes,
    n: usize,
) -> Option<()> {
    match (x, y, &mut *out) {
        (Lanes::Int(x), Lanes::Int(y), Lanes::Int(out)) => int_binary(op, t, x, y, out, n)?,
        (Lanes::F32(x), Lanes::F32(y), Lanes::F32(out)) => real_binary(op, x, y, out, n)?,
        (Lanes::F64(x), Lanes::F64(y), Lanes::F64(out)) => real_binary(op, x, y, out, n)?,
        (Lanes::C64(x), Lanes::C64(y), Lanes::C64(out)) => map2(x, y, out, n, complex_binary(op)?),
        (Lanes::C128(x), Lanes::C128(y), Lanes::C128(out)) => map2(x, y, out, n, complex_binary(op)?),
        (Lanes::F32(x), Lanes::F32(y), Lanes::C64(out)) if op == BinaryOp::Complex => {
            map2(x, y, out, n, Complex32::new);
        }
        (Lanes::F64(x), Lanes::F64(y), Lanes::C128(out)) if op == BinaryOp::Complex => {
            map2(x, y, out, n, Complex64::new);
        }
        _ => return None,
    }
    if op != BinaryOp::Complex {
        round(t, out, n);
    }
    Some(())
}

/// `out = x direction y` as predicates.
pub(crate) fn compare(
    direction: ComparisonDirection,
    comparison_type: ComparisonType,
    t: ElementType,
    x: &Lanes,
    y: &Lanes,
    out: &mut Lanes,
    n: usize,
) {
    let out = out.int_mut();
    match (x, y) {
        (Lanes::Int(x), Lanes::Int(y)) if t == ElementType::U64 => {
            order(direction, x, y, out, n, |x, y| (x as u64).partial_cmp(&(y as u64)));
        }
        (Lanes::Int(x), Lanes::Int(y)) => order(direction, x, y, out, n, |x, y| x.partial_cmp(&y)),
        (Lanes::F32(x), Lanes::F32(y)) if comparison_type == ComparisonType::TotalOrder => {
            order(direction, x, y, out, n, |x, y| Some(x.total_cmp(&y)));
        }
        (Lanes::F32(x), Lanes::F32(y)) => order(direction, x, y, out, n, |x, y| x.partial_cmp(&y)),
        (Lanes::F64(x), Lanes::F64(y)) if comparison_type == ComparisonType::TotalOrder => {
            order(direction, x, y, out, n, |x, y| Some(x.total_cmp(&y)));
        }
        (Lanes::F64(x), Lanes::F64(y)) => order(direction, x, y, out, n, |x, y| x.partial_cmp(&y)),
        (Lanes::C64(x), Lanes::C64(y)) => complex_order(direction, x, y, out, n),
        (Lanes::C128(x), Lanes::C128(y)) => complex_order(direction, x, y, out, n),
        _ => unreachable!("both sides of a comparison have one class"),
    }
}

/// `out = if p { x } else { y }`.
pub(crate) fn select(p: &Lanes, x: &Lanes, y: &Lanes, out: &mut Lanes, n: usize) {
    fn pick<T: Copy>(p: &[i64], x: &[T], y: &[T], out: &mut [T], n: usize) {
        for i in 0..n {
            out[i] = if p[i] != 0 { x[i] } else { y[i] };
        }
    }
    let p = p.int();
    match (x, y, out) {
        (Lanes::Int(x), Lanes::Int(y), Lanes::Int(out)) => pick(p, x, y, out, n),
        (Lanes::F32(x), Lanes::F32(y), Lanes::F32(out)) => pick(p, x, y, out, n),
        (Lanes::F64(x), Lanes::F64(y), Lanes::F64(out)) => pick(p, x, y, out, n),
        (Lanes::C64(x), Lanes::C64(y), Lanes::C64(out)) => pick(p, x, y, out, n),
        (Lanes::C128(x), Lanes::C128(y), Lanes::C128(out)) => pick(p, x, y, out, n),
        _ => unreachable!("both sides of a select have one class"),
    }
}

/// Numbers of type `from` as numbers of type `to`: floats to integers saturate with NaN as 0, integers wrap, anything
/// to a predicate asks whether it is not 0.
pub(crate) fn convert(from: ElementType, to: ElementType, x: &Lanes, out: &mut Lanes, n: usize) {
    let is_u64 = from == ElementType::U64;
    let real = |x: i64| if is_u64 { x as u64 as f64 } else { x as f64 };
    let real32 = |x: i64| if is_u64 { x as u64 as f32 } else { x as f32 };
    match (x, &mut *out) {
        (Lanes::Int(x), Lanes::Int(out)) => out[..n].copy_from_slice(&x[..n]),
        (Lanes::Int(x), Lanes::F32(out)) => map1(x, out, n, real32),
        (Lanes::Int(x), Lanes::F64(out)) => map1(x, out, n, real),
        (Lanes::Int(x), Lanes::C64(out)) => map1(x, out, n, |x| Complex32::from(real32(x))),
        (Lanes::Int(x), Lanes::C128(out)) => map1(x, out, n, |x| Complex64::from(real(x))),
        (Lanes::F32(x), Lanes::Int(out)) => map1(x, out, n, |x| saturate(to, x as f64)),
        (Lanes::F64(x), Lanes::Int(out)) => map1(x, out, n, |x| saturate(to, x)),
        (Lanes::F32(x), Lanes::F32(out)) => out[..n].copy_from_slice(&x[..n]),
        (Lanes::F32(x), Lanes::F64(out)) => map1(x, out, n, |x| x as f64),
        (Lanes::F32(x), Lanes::C64(out)) => map1(x, out, n, Complex32::from),
        (Lanes::F32(x), Lanes::C128(out)) => map1(x, out, n, |x| Complex64::from(x as f64)),
        (Lanes::F64(x), Lanes::F32(out)) => map1(x, out, n, |x| narrow(to, x)),
        (Lanes::F64(x), Lanes::F64(out)) => out[..n].copy_from_slice(&x[..n]),
        (Lanes::F64(x), Lanes::C64(out)) => map1(x, out, n, |x| Complex32::from(x as f32)),
        (Lanes::F64(x), Lanes::C128(out)) => map1(x, out, n, Complex64::from),
        (Lanes::C64(x), Lanes::C64(out)) => out[..n].copy_from_slice(&x[..n]),
        (Lanes::C64(x), Lanes::C128(out)) => map1(x, out, n, |x| Complex::new(x.re as f64, x.im as f64)),
        (Lanes::C128(x), Lanes::C64(out)) => map1(x, out, n, |x| Complex::new(x.re as f32, x.im as f32)),
        (Lanes::C128(x), Lanes::C128(out)) => out[..n].copy_from_slice(&x[..n]),
        (Lanes::C64(x), Lanes::F32(out)) => map1(x, out, n, |x| x.re),
        (Lanes::C64(x), Lanes::F64(out)) => map1(x, out, n, |x| x.re as f64),
        (Lanes::C64(x), Lanes::Int(out)) => map1(x, out, n, |x| saturate(to, x.re as f64)),
        (Lanes::C128(x), Lanes::F32(out)) => map1(x, out, n, |x| narrow(to, x.re)),
        (Lanes::C128(x), Lanes::F64(out)) => map1(x, out, n, |x| x.re),
        (Lanes::C128(x), Lanes::Int(out)) => map1(x, out, n, |x| saturate(to, x.re)),
    }
    round(to, out, n);
}

/// Rounds to a float of fewer exponent and mantissa bits, kept in the wider type; overflow becomes infinity, numbers
/// below the smallest normal become 0.
pub(crate) fn reduce_precision(
    t: ElementType,
    exponent_bits: i32,
    mantissa_bits: i32,
    x: &Lanes,
    out: &mut Lanes,
    n: usize,
) {
    let reduce = |x: f64, (own_exponent, own_mantissa): (i32, i32)| -> f64 {
        if x.is_nan() || x.is_infinite() || x == 0.0 {
            return if x.is_nan() && mantissa_bits == 0 { f64::INFINITY.copysign(x) } else { x };
        }
        let mut y = x;
        if mantissa_bits < own_mantissa {
            // Rounding in the binary representation carries into the exponent as it should.
            let dropped = 52 - mantissa_bits as u32;
            let bits = y.to_bits();
            let bias = (1u64 << (dropped - 1)) - 1 + (bits >> dropped & 1);
            y = f64::from_bits(bits.wrapping_add(bias) & !((1u64 << dropped) - 1));
        }
        if exponent_bits < own_exponent {
            let largest = (1i32 << (exponent_bits - 1)) - 1;
            let exponent = (y.to_bits() >> 52 & 0x7ff) as i32 - 1023;
            if exponent > largest {
                y = f64::INFINITY.copysign(y);
            } else if exponent < 1 - largest {
                y = 0f64.copysign(y);
            }
        }
        y
    };
    match (x, out) {
        (Lanes::F32(x), Lanes::F32(out)) => {
            let own = match t {
                ElementType::F16 => (5, 10),
                ElementType::Bf16 => (8, 7),
                ElementType::F32 => (8, 23),
                // The eight-bit formats differ in this, but none is wider than 5 and 4.
                _ => (9, 24),
            };
            map1(x, out, n, |x| reduce(x as f64, own) as f32);
        }
        (Lanes::F64(x), Lanes::F64(out)) => map1(x, out, n, |x| reduce(x, (11, 52))),
        _ => unreachable!("reduce-precision takes floats"),
    }
}

/// Converts with random bits as wide as the operand: what would be rounded away is the chance of rounding up.
pub(crate) fn stochastic_convert(
    from: ElementType,
    to: ElementType,
    x: &Lanes,
    random: &Lanes,
    out: &mut Lanes,
    n: usize,
) {
    let width = from.bits();
    let fraction_scale = 2f64.powi(width as i32);
    let is_away = |fraction: f64, random: i64| {
        let bits = random as u64 & (u64::MAX >> (64 - width));
        fraction * fraction_scale > bits as f64
    };
    let values: Vec<f64> = match x {
        Lanes::F32(x) => x[..n].iter().map(|&x| x as f64).collect(),
        Lanes::F64(x) => x[..n].to_vec(),
        _ => unreachable!("stochastic-convert takes floats"),
    };
    let random = random.int();
    match out {
        Lanes::Int(out) => {
            for i in 0..n {
                // Magnitudes are rounded, so the random bits move a number away from zero.
                let whole = values[i].trunc();
                let moved = if is_away((values[i] - whole).abs(), random[i]) { 1.0 } else { 0.0 };
                out[i] = saturate(to, whole + moved * values[i].signum());
            }
        }
        Lanes::F32(out) => {
            let dropped = 23
                - match to {
                    ElementType::Bf16 => 7,
                    ElementType::F16 => 10,
                    _ => 23,
                };
            for i in 0..n {
                let bits = (values[i] as f32).to_bits() as u64 + (random[i] as u64 & ((1u64 << dropped) - 1));
                out[i] = f32::from_bits((bits & !((1u64 << dropped) - 1)) as u32);
            }
        }
        _ => unreachable!("stochastic-convert gives integers or narrow floats"),
    }
    round(to, out, n);
}

/// The integer of type `to` nearest to zero from `x`, at most its range; NaN is 0. A predicate is `x != 0`.
pub(crate) fn saturate(to: ElementType, x: f64) -> i64 {
    let bits = to.bits();
    match to {
        ElementType::Pred => (x != 0.0) as i64,
        ElementType::U64 => x as u64 as i64,
        t if t.is_signed() => (x as i64).clamp(i64::MIN >> (64 - bits), i64::MAX >> (64 - bits)),
        _ => (x as i64).clamp(0, (u64::MAX >> (64 - bits)) as i64),
    }
}

/// `x` as an `f32` that can still be rounded to `to`: bfloat16 and half-precision numbers round from the `f64` at once.
fn narrow(to: ElementType, x: f64) -> f32 {
    match to {
        ElementType::Bf16 => half::bf16::from_f64(x).to_f32(),
        ElementType::F16 => half::f16::from_f64(x).to_f32(),
        _ => x as f32,
    }
}

fn map1<A: Copy, B>(x: &[A], out: &mut [B], n: usize, f: impl Fn(A) -> B) {
    out[..n].iter_mut().zip(&x[..n]).for_each(|(out, &x)| *out = f(x));
}

fn map2<A: Copy, B: Copy, C>(x: &[A], y: &[B], out: &mut [C], n: usize, f: impl Fn(A, B) -> C) {
    out[..n].iter_mut().zip(x[..n].iter().zip(&y[..n])).for_each(|(out, (&x, &y))| *out = f(x, y));
}

fn order<T: Copy>(
    direction: ComparisonDirection,
    x: &[T],
    y: &[T],
    out: &mut [i64],
    n: usize,
    compare: impl Fn(T, T) -> Option<std::cmp::Ordering>,
) {
    use ComparisonDirection::*;
    match direction {
        Eq => map2(x, y, out, n, |x, y| compare(x, y).is_some_and(|o| o.is_eq()) as i64),
        Ne => map2(x, y, out, n, |x, y| compare(x, y).is_none_or(|o| o.is_ne()) as i64),
        Ge => map2(x, y, out, n, |x, y| compare(x, y).is_some_and(|o| o.is_ge()) as i64),
        Gt => map2(x, y, out, n, |x, y| compare(x, y).is_some_and(|o| o.is_gt()) as i64),
        Le => map2(x, y, out, n, |x, y| compare(x, y).is_some_and(|o| o.is_le()) as i64),
        Lt => map2(x, y, out, n, |x, y| compare(x, y).is_some_and(|o| o.is_lt()) as i64),
    }
}

/// Compares complex numbers as XLA's CPU compiler does: two are in an order if their real parts are, or if those are equal
/// and the imaginary parts are in the order. So `<=` and `>=` ask for the real parts alone.
fn complex_order<T: Real>(
    direction: ComparisonDirection,
    x: &[Complex<T>],
    y: &[Complex<T>],
    out: &mut [i64],
    n: usize,
) {
    use ComparisonDirection::*;
    match direction {
        Eq => map2(x, y, out, n, |x, y| (x == y) as i64),
        Ne => map2(x, y, out, n, |x, y| (x != y) as i64),
        Ge => map2(x, y, out, n, |x, y| (x.re >= y.re) as i64),
        Le => map2(x, y, out, n, |x, y| (x.re <= y.re) as i64),
        Gt => map2(x, y, out, n, |x, y| (x.re > y.re || x.re == y.re && x.im > y.im) as i64),
        Lt => map2(x, y, out, n, |x, y| (x.re < y.re || x.re == y.re && x.im < y.im) as i64),
    }
}

/// The instance of a function for integers of so many bits.
macro_rules! of_width {
    ($bits:expr, $function:ident) => {
        match $bits {
            1 => $function::<1>,
            2 => $function::<2>,
            4 => $function::<4>,
            8 => $function::<8>,
            16 => $function::<16>,
            32 => $function::<32>,
            _ => $function::<64>,
        }
    };
}

fn int_unary(op: UnaryOp, t: ElementType) -> Option<fn(i64) -> i64> {
    fn clz(bits: u32) -> fn(i64) -> i64 {
        fn counted<const BITS: u32>(x: i64) -> i64 {
            let x = x as u64 & (u64::MAX >> (64 - BITS));
            x.leading_zeros() as i64 - (64 - BITS as i64)
        }
        of_width!(bits, counted)
    }
    fn ones(bits: u32) -> fn(i64) -> i64 {
        fn counted<const BITS: u32>(x: i64) -> i64 {
            (x as u64 & (u64::MAX >> (64 - BITS))).count_ones() as i64
        }
        of_width!(bits, counted)
    }
    Some(match op {
        UnaryOp::Abs if t.is_signed() => i64::wrapping_abs,
        UnaryOp::Abs | UnaryOp::Real => |x| x,
        UnaryOp::Imag => |_| 0,
        UnaryOp::Negate => i64::wrapping_neg,
        UnaryOp::Not if t == ElementType::Pred => |x| (x == 0) as i64,
        UnaryOp::Not => |x| !x,
        UnaryOp::Sign if t.is_signed() => i64::signum,
        UnaryOp::Sign => |x| (x != 0) as i64,
        UnaryOp::CountLeadingZeros => clz(t.bits()),
        UnaryOp::PopulationCount => ones(t.bits()),
        UnaryOp::IsFinite => |_| 1,
        _ => return None,
    })
}

fn real_unary<T: Real>(op: UnaryOp) -> Option<fn(T) -> T> {
    Some(match op {
        UnaryOp::Abs => T::abs,
        UnaryOp::Acos => T::acos,
        UnaryOp::Acosh => T::acosh,
        UnaryOp::Asin => T::asin,
        UnaryOp::Asinh => T::asinh,
        UnaryOp::Atanh => T::atanh,
        UnaryOp::Cbrt => T::cbrt,
        UnaryOp::Ceil => T::ceil,
        UnaryOp::Cosine => T::cos,
        UnaryOp::Cosh => T::cosh,
        UnaryOp::Erf => T::erf,
        UnaryOp::Exponential => T::exp,
        UnaryOp::Expm1 => T::exp_m1,
        UnaryOp::Floor => T::floor,
        UnaryOp::Log => T::ln,
        UnaryOp::Log1p => T::ln_1p,
        UnaryOp::Logistic => |x| T::ONE / (T::ONE + (-x).exp()),
        UnaryOp::Negate => |x| -x,
        UnaryOp::Real => |x| x,
        UnaryOp::Imag => |_| T::ZERO,
        UnaryOp::RoundNearestAwayFromZero => T::round,
        UnaryOp::RoundNearestEven => T::round_ties_even,
        UnaryOp::Rsqrt => |x| T::ONE / x.sqrt(),
        UnaryOp::Sign => |x| if x == T::ZERO || x.is_nan() { x } else { T::ONE.copysign(x) },
        UnaryOp::Sine => T::sin,
        UnaryOp::Sinh => T::sinh,
        UnaryOp::Sqrt => T::sqrt,
        UnaryOp::Tan => T::tan,
        UnaryOp::Tanh => T::tanh,
        _ => return None,
    })
}

fn is_finite<T: Real>(op: UnaryOp) -> Option<fn(T) -> i64> {
    (op == UnaryOp::IsFinite).then_some(|x: T| x.is_finite() as i64)
}

fn complex_unary<T: Real>(op: UnaryOp) -> Option<fn(Complex<T>) -> Complex<T>>
where
    Complex<T>: ComplexFloat<Real = T>,
{
    Some(match op {
        UnaryOp::Acos => ComplexFloat::acos,
        UnaryOp::Acosh => ComplexFloat::acosh,
        UnaryOp::Asin => ComplexFloat::asin,
        UnaryOp::Asinh => ComplexFloat::asinh,
        UnaryOp::Atanh => ComplexFloat::atanh,
        UnaryOp::Cosine => ComplexFloat::cos,
        UnaryOp::Cosh => ComplexFloat::cosh,
        UnaryOp::Cbrt => ComplexFloat::cbrt,
        UnaryOp::Exponential => ComplexFloat::exp,
        // exp(x + iy) - 1 = expm1(x) cos(y) - 2 sin(y/2)^2 + i exp(x) sin(y), which keeps what 1 would swallow.
        UnaryOp::Expm1 => |z| {
            let half_sine = (z.im * T::HALF).sin();
            let re = z.re.exp_m1() * z.im.cos() - (half_sine * half_sine + half_sine * half_sine);
            Complex::new(re, z.re.exp() * z.im.sin())
        },
        UnaryOp::Log => ComplexFloat::ln,
        // ln |1 + z| from the parts, because 1 + z may have lost z.
        UnaryOp::Log1p => |z| {
            let re = T::HALF * (z.re * (z.re + T::ONE + T::ONE) + z.im * z.im).ln_1p();
            Complex::new(re, z.im.atan2(z.re + T::ONE))
        },
        UnaryOp::Logistic => |z| {
            Complex::new(T::ONE, T::ZERO)
                / (Complex::new(T::ONE, T::ZERO) + ComplexFloat::exp(Complex::new(-z.re, -z.im)))
        },
        UnaryOp::Negate => |z| Complex::new(-z.re, -z.im),
        UnaryOp::Rsqrt => |z| Complex::new(T::ONE, T::ZERO) / ComplexFloat::sqrt(z),
        UnaryOp::Sign => |z| {
            let magnitude = z.re.hypot(z.im);
            if magnitude == T::ZERO { z } else { Complex::new(z.re / magnitude, z.im / magnitude) }
        },
        UnaryOp::Sine => ComplexFloat::sin,
        UnaryOp::Sinh => ComplexFloat::sinh,
        UnaryOp::Sqrt => ComplexFloat::sqrt,
        UnaryOp::Tan => ComplexFloat::tan,
        UnaryOp::Tanh => ComplexFloat::tanh,
        _ => return None,
    })
}

fn complex_to_real<T: Real>(op: UnaryOp) -> Option<fn(Complex<T>) -> T> {
    Some(match op {
        UnaryOp::Abs => |z| z.re.hypot(z.im),
        UnaryOp::Real => |z| z.re,
        UnaryOp::Imag => |z| z.im,
        _ => return None,
    })
}

fn int_binary(op: BinaryOp, t: ElementType, x: &[i64], y: &[i64], out: &mut [i64], n: usize) -> Option<()> {
    let is_u64 = t == ElementType::U64;
    let is_pred = t == ElementType::Pred;
    let bits = t.bits() as i64;
    let mask = u64::MAX >> (64 - bits);
    // A shift count is read as unsigned, so that a negative one is beyond any width.
    let count = move |y: i64| y as u64 & mask;
    match op {
        BinaryOp::Add if is_pred => map2(x, y, out, n, |x, y| x | y),
        BinaryOp::Add => map2(x, y, out, n, i64::wrapping_add),
        BinaryOp::Subtract if is_pred => map2(x, y, out, n, |x, y| x ^ y),
        BinaryOp::Subtract => map2(x, y, out, n, i64::wrapping_sub),
        BinaryOp::Multiply => map2(x, y, out, n, i64::wrapping_mul),
        BinaryOp::And => map2(x, y, out, n, |x, y| x & y),
        BinaryOp::Or => map2(x, y, out, n, |x, y| x | y),
        BinaryOp::Xor => map2(x, y, out, n, |x, y| x ^ y),
        BinaryOp::Maximum if is_u64 => map2(x, y, out, n, |x, y| (x as u64).max(y as u64) as i64),
        BinaryOp::Maximum => map2(x, y, out, n, i64::max),
        BinaryOp::Minimum if is_u64 => map2(x, y, out, n, |x, y| (x as u64).min(y as u64) as i64),
        BinaryOp::Minimum => map2(x, y, out, n, i64::min),
        BinaryOp::Divide if is_u64 => {
            map2(x, y, out, n, |x, y| (x as u64).checked_div(y as u64).unwrap_or(u64::MAX) as i64);
        }
        BinaryOp::Divide => map2(x, y, out, n, |x, y| if y == 0 { -1 } else { x.wrapping_div(y) }),
        BinaryOp::Remainder if is_u64 => {
            map2(x, y, out, n, |x, y| (x as u64).checked_rem(y as u64).unwrap_or(x as u64) as i64);
        }
        BinaryOp::Remainder => map2(x, y, out, n, |x, y| if y == 0 { x } else { x.wrapping_rem(y) }),
        BinaryOp::ShiftLeft => {
            map2(x, y, out, n, |x, y| if count(y) >= bits as u64 { 0 } else { x << count(y) });
        }
        BinaryOp::ShiftRightLogical => map2(x, y, out, n, |x, y| {
            if count(y) >= bits as u64 { 0 } else { ((x as u64 & mask) >> count(y)) as i64 }
        }),
        BinaryOp::ShiftRightArithmetic => map2(x, y, out, n, |x, y| {
            let signed = x << (64 - bits) >> (64 - bits);
            signed >> count(y).min(bits as u64 - 1)
        }),
        BinaryOp::Power => map2(x, y, out, n, |x, y| int_power(t, x, y)),
        BinaryOp::Mulhi => map2(x, y, out, n, |x, y| {
            if is_u64 {
                ((x as u64 as u128 * y as u64 as u128) >> 64) as i64
            } else {
                ((x as i128 * y as i128) >> bits) as i64
            }
        }),
        _ => return None,
    }
    Some(())
}

/// `x` to the power `y` modulo the type's range. A negative exponent gives the integer part of the true power.
fn int_power(t: ElementType, x: i64, y: i64) -> i64 {
    if t.is_signed() && y < 0 {
        return match x {
            1 => 1,
            -1 if y % 2 == 0 => 1,
            -1 => -1,
            _ => 0,
        };
    }
    let (mut base, mut exponent, mut power) = (x, y as u64, 1i64);
    while exponent > 0 {
        if exponent & 1 == 1 {
            power = power.wrapping_mul(base);
        }
        base = base.wrapping_mul(base);
        exponent >>= 1;
    }
    wrap(t, power)
}

fn real_binary<T: Real>(op: BinaryOp, x: &[T], y: &[T], out: &mut [T], n: usize) -> Option<()> {
    match op {
        BinaryOp::Add => map2(x, y, out, n, |x, y| x + y),
        BinaryOp::Subtract => map2(x, y, out, n, |x, y| x - y),
        BinaryOp::Multiply => map2(x, y, out, n, |x, y| x * y),
        BinaryOp::Divide => map2(x, y, out, n, |x, y| x / y),
        BinaryOp::Remainder => map2(x, y, out, n, |x, y| x % y),
        BinaryOp::Maximum => map2(x, y, out, n, |x, y| if x >= y || x.is_nan() { x } else { y }),
        BinaryOp::Minimum => map2(x, y, out, n, |x, y| if x <= y || x.is_nan() { x } else { y }),
        BinaryOp::Power => map2(x, y, out, n, T::powf),
        BinaryOp::Atan2 => map2(x, y, out, n, T::atan2),
        _ => return None,
    }
    Some(())
}

type ComplexBinary<T> = fn(Complex<T>, Complex<T>) -> Complex<T>;

fn complex_binary<T: Real>(op: BinaryOp) -> Option<ComplexBinary<T>>
where
    Complex<T>: ComplexFloat<Real = T>,
{
    Some(match op {
        BinaryOp::Add => |x, y| x + y,
        BinaryOp::Subtract => |x, y| x - y,
        BinaryOp::Multiply => |x, y| x * y,
        BinaryOp::Divide => |x, y| x / y,
        // As `>=` and `<=` of complex numbers, which ask for the real parts.
        BinaryOp::Maximum => |x, y| if x.re >= y.re { x } else { y },
        BinaryOp::Minimum => |x, y| if x.re <= y.re { x } else { y },
        BinaryOp::Power => |x, y| {
            let zero = Complex::new(T::ZERO, T::ZERO);
            if x == zero {
                return if y == zero { Complex::new(T::ONE, T::ZERO) } else { zero };
            }
            ComplexFloat::powc(x, y)
        },
        // -i ln((y + ix) / sqrt(x^2 + y^2)), the principal value.
        BinaryOp::Atan2 => |x, y| {
            let i = Complex::new(T::ZERO, T::ONE);
            let z = ComplexFloat::ln((y + i * x) / ComplexFloat::sqrt(x * x + y * y));
            Complex::new(z.im, -z.re)
        },
        _ => return None,
    })
}
