//! `fft-expander`: computes Fourier transforms by matrix products, as XLA's TPU compiler does.
//!
//! ```text
//!   y = c64[8,100] fft(x)              a = f32[8,100] real(x)           k = f32[8,100] dot(a + b, C)
//!                               =>     b = f32[8,100] imag(x)           u = f32[8,100] subtract(k, dot(b, C + S))
//!                                      y = c64[8,100] complex(u, v)     v = f32[8,100] add(k, dot(a, S - C))
//! ```
//!
//! `C` and `S` are cosines and sines, made of iotas. A product of complex numbers takes three real ones. A transform of more
//! than 128 elements has two steps: the first transforms every group of 128 elements that are equally far apart, the second
//! rotates its results and transforms across the groups. Several dimensions are transformed one after the other; a real
//! result is made of the whole spectrum.
//!
//! Left alone: transforms whose lengths are neither at most 128 nor such a multiple of it. *Changed* means that there was
//! another transform.

use std::f64::consts::TAU;

use memplan_ir::{
    BinaryOp, Dimensions, Dot, DotDimensions, ElementType, FftKind, Insert, InstructionId, Op, Precision,
    Scalar, Shape, UnaryOp,
};
use memplan_rewriter::{Rewriter, Sweep};

use super::complex_splitter::complex_product;

/// Rows of the matrix unit, and lanes.
const STEP: i64 = 128;

/// The pass.
pub const FFT_EXPANDER: Sweep = Sweep {
    name: "fft-expander",
    description: "transform by matrix products, as XLA's TPU compiler does",
    rule,
};

fn rule(r: &mut Rewriter<'_>, id: InstructionId) -> Option<InstructionId> {
    match r.op(id).clone() {
        Op::Fft { kind, lengths } if lengths.iter().all(|&n| has_steps(n)) => {
            transform(r, id, kind, &lengths)
        }
        _ => None,
    }
}

fn has_steps(n: i64) -> bool {
    0 < n && n <= STEP || n % STEP == 0 && n / STEP <= STEP
}

/// Complex numbers; without an imaginary part, real ones.
#[derive(Clone, Copy)]
struct Numbers {
    re: InstructionId,
    im: Option<InstructionId>,
}

fn transform(
    r: &mut Rewriter<'_>,
    id: InstructionId,
    kind: FftKind,
    lengths: &Dimensions,
) -> Option<InstructionId> {
    let x = r.operand(id, 0);
    let array = r.array(x)?;
    if !matches!(array.element_type, ElementType::F32 | ElementType::C64) {
        return None;
    }
    let first = array.rank() - lengths.len();
    let last = array.rank() - 1;
    let mut numbers = match kind {
        FftKind::Rfft => Numbers { re: x, im: None },
        _ => Numbers { re: r.unary(UnaryOp::Real, x), im: Some(r.unary(UnaryOp::Imag, x)) },
    };
    let sign = if matches!(kind, FftKind::Ifft | FftKind::Irfft) { 1.0 } else { -1.0 };
    let n_last = lengths[lengths.len() - 1];
    if kind != FftKind::Irfft {
        numbers = along(r, numbers, last, sign, false);
    }
    if kind == FftKind::Rfft {
        numbers = numbers.map(r, |r, x, _| r.slice_along(x, last, 0..n_last / 2 + 1));
    }
    for axis in (first..last).rev() {
        numbers = along(r, numbers, axis, sign, false);
    }
    if kind == FftKind::Irfft {
        numbers = numbers.map(r, |r, x, is_imaginary| whole_spectrum(r, x, last, n_last, is_imaginary));
        numbers = along(r, numbers, last, sign, true);
    }
    if sign > 0.0 {
        let n: i64 = lengths.iter().product();
        numbers = numbers.map(r, |r, x, _| scaled(r, x, 1.0 / n as f64));
    }
    match kind {
        FftKind::Irfft => Some(numbers.re),
        _ => Some(r.binary(BinaryOp::Complex, numbers.re, numbers.im?)),
    }
}

impl Numbers {
    /// Does the same to both parts.
    fn map(
        self,
        r: &mut Rewriter<'_>,
        mut each: impl FnMut(&mut Rewriter<'_>, InstructionId, bool) -> InstructionId,
    ) -> Numbers {
        let re = each(r, self.re, false);
        Numbers { re, im: self.im.map(|im| each(r, im, true)) }
    }
}

/// The frequencies above the middle are those below it, conjugated.
fn whole_spectrum(
    r: &mut Rewriter<'_>,
    x: InstructionId,
    axis: usize,
    n: i64,
    is_imaginary: bool,
) -> InstructionId {
    let above = r.slice_along(x, axis, 1..(n + 1) / 2);
    let dimensions = [axis as i64].into_iter().collect();
    let mut above = r.insert(Op::Reverse { dimensions }, [above]);
    if is_imaginary {
        above = r.unary(UnaryOp::Negate, above);
    }
    r.concatenate([x, above], axis as i64)
}

/// Transforms one dimension. The result may be known to be real.
fn along(r: &mut Rewriter<'_>, x: Numbers, axis: usize, sign: f64, is_real: bool) -> Numbers {
    let extents = r.dimensions(x.re).expect("numbers are arrays");
    let last = extents.len() - 1;
    if axis != last {
        let turned = x.map(r, |r, x, _| swap(r, x, axis, last));
        return along(r, turned, last, sign, is_real).map(r, |r, x, _| swap(r, x, axis, last));
    }
    let n = extents[last];
    if n <= STEP {
        return product(r, x, last, sign, is_real);
    }
    let between = n / STEP;
    let mut split = extents.clone();
    split[last] = STEP;
    split.push(between);
    let x = x.map(r, |r, x, _| r.reshape(x, split.iter().copied()));
    let x = product(r, x, last, sign, false);
    let (cosines, sines) = rotations(r, between, STEP, n, sign);
    let shape = r.dimensions(x.re).expect("numbers are arrays");
    let rank = shape.len() as i64;
    let [c, s] = [cosines, sines].map(|x| {
        let shape = Shape::array(ElementType::F32, shape.iter().copied());
        r.insert_shaped(Op::Broadcast { dimensions: [rank - 2, rank - 1].into_iter().collect() }, [x], shape)
    });
    let x = rotated(r, x, c, s);
    // The frequencies of the second step are the major ones.
    let x = product(r, x, last, sign, is_real);
    let x = x.map(r, |r, x, _| swap(r, x, last, last + 1));
    x.map(r, |r, x, _| r.reshape(x, extents.iter().copied()))
}

fn rotated(r: &mut Rewriter<'_>, x: Numbers, c: InstructionId, s: InstructionId) -> Numbers {
    let [a, b] = [c, s].map(|by| r.binary(BinaryOp::Multiply, x.re, by));
    let Some(im) = x.im else { return Numbers { re: a, im: Some(b) } };
    let [d, e] = [s, c].map(|by| r.binary(BinaryOp::Multiply, im, by));
    Numbers { re: r.binary(BinaryOp::Subtract, a, d), im: Some(r.binary(BinaryOp::Add, b, e)) }
}

/// The product with the matrix of a transform: contracts a dimension, and appends the frequencies.
fn product(r: &mut Rewriter<'_>, x: Numbers, axis: usize, sign: f64, is_real: bool) -> Numbers {
    let n = r.dimensions(x.re).expect("numbers are arrays")[axis];
    let (c, s) = rotations(r, n, n, n, sign);
    let by = |r: &mut Rewriter<'_>, x: InstructionId, matrix: InstructionId| {
        let mut dot = Dot { dimensions: DotDimensions::new([axis as i64], [0]), ..Dot::default() };
        dot.precision.operand_precision = [Precision::Highest; 2].into_iter().collect();
        r.insert(Op::Dot(Box::new(dot)), [x, matrix])
    };
    let Some(im) = x.im else { return Numbers { re: by(r, x.re, c), im: Some(by(r, x.re, s)) } };
    if is_real {
        let (of_re, of_im) = (by(r, x.re, c), by(r, im, s));
        return Numbers { re: r.binary(BinaryOp::Subtract, of_re, of_im), im: None };
    }
    let [re, im] = complex_product(r, [x.re, im], [c, s], by);
    Numbers { re, im: Some(im) }
}

/// Cosines and sines of the products of two numbers, in parts of a turn.
fn rotations(
    r: &mut Rewriter<'_>,
    rows: i64,
    columns: i64,
    turn: i64,
    sign: f64,
) -> (InstructionId, InstructionId) {
    let counted = || Shape::array(ElementType::S32, [rows, columns]);
    let (row, column) = (r.iota(counted(), 0), r.iota(counted(), 1));
    let times = r.binary(BinaryOp::Multiply, row, column);
    let turns = r.splat_array(Scalar::integer(ElementType::S32, turn), &[rows, columns]);
    let part = r.binary(BinaryOp::Remainder, times, turns);
    let part = r.convert(part, ElementType::F32);
    let angle = scaled(r, part, sign * TAU / turn as f64);
    (r.unary(UnaryOp::Cosine, angle), r.unary(UnaryOp::Sine, angle))
}

fn scaled(r: &mut Rewriter<'_>, x: InstructionId, by: f64) -> InstructionId {
    let extents = r.dimensions(x).expect("numbers are arrays");
    let by = Scalar::float(ElementType::F32, by).expect("f32 is floating");
    let by = r.splat_array(by, &extents);
    r.binary(BinaryOp::Multiply, x, by)
}

fn swap(r: &mut Rewriter<'_>, x: InstructionId, a: usize, b: usize) -> InstructionId {
    let rank = r.dimensions(x).expect("numbers are arrays").len();
    let mut order: Dimensions = (0..rank as i64).collect();
    order.swap(a, b);
    r.transpose(x, order)
}
