//! Fourier transforms over the last one to three dimensions, in `f64`.

use std::f64::consts::PI;

use memplan_ir::{ArrayShape, FftKind};
use num_complex::Complex64;

use crate::Error;
use crate::kernels::dense::Dense;
use crate::kernels::{Kernel, Operand};
use crate::memory::{Memory, Place};

pub(crate) struct FftKernel {
    operand: Dense,
    result: Dense,
    kind: FftKind,
    lengths: Vec<usize>,
}

impl FftKernel {
    pub(crate) fn new(
        operand: &Operand,
        result: &ArrayShape,
        kind: FftKind,
        lengths: &[i64],
    ) -> Result<FftKernel, Error> {
        let lengths = lengths.iter().map(|&l| l as usize).collect();
        Ok(FftKernel { operand: Dense::operand(operand)?, result: Dense::new(0, result)?, kind, lengths })
    }

    /// Elements of all transforms, whole.
    fn count(&self) -> usize {
        let rank = self.operand.shape.rank();
        let batch: i64 = self.operand.shape.dimensions[..rank - self.lengths.len()].iter().product();
        batch as usize * self.lengths.iter().product::<usize>()
    }
}

impl Kernel for FftKernel {
    /// Operand, transforms and result, and the four vectors that a transform of awkward length works with.
    fn scratch_bytes(&self) -> usize {
        let longest = self.lengths.iter().max().map_or(0, |n| 4 * (2 * n).next_power_of_two());
        (self.operand.count() + self.count() + self.result.count() + longest) * size_of::<Complex64>()
    }

    fn run(&self, memory: &mut Memory, operands: &[Place], results: &[Place], _: Place) -> Result<(), Error> {
        let input = self.operand.read(memory, operands);
        let n = *self.lengths.last().unwrap_or(&1);
        let mut values = match self.kind {
            FftKind::Irfft => self.mirrored(&input, n),
            _ => input,
        };
        let is_inverse = matches!(self.kind, FftKind::Ifft | FftKind::Irfft);
        let mut stride = 1;
        for &length in self.lengths.iter().rev() {
            transform_lines(&mut values, length, stride, is_inverse);
            stride *= length;
        }
        if is_inverse {
            values.iter_mut().for_each(|x| *x /= stride as f64);
        }
        if self.kind == FftKind::Rfft {
            // The rest of each line is the conjugate of what is kept.
            values = values.chunks(n.max(1)).flat_map(|line| line[..n / 2 + 1].to_vec()).collect();
        }
        self.result.write(memory, results, &values);
        Ok(())
    }
}

impl FftKernel {
    /// The whole spectrum of real signals, of which the operand has the first `n / 2 + 1` entries of the last dimension.
    fn mirrored(&self, input: &[Complex64], n: usize) -> Vec<Complex64> {
        let half = n / 2 + 1;
        let lengths = &self.lengths[..self.lengths.len() - 1];
        let lines: usize = lengths.iter().product();
        let mut whole = vec![Complex64::ZERO; self.count()];
        for (out, input) in whole.chunks_mut((lines * n).max(1)).zip(input.chunks((lines * half).max(1))) {
            for line in 0..lines {
                // Entry `k` mirrors entry `-k` in every dimension.
                let (mut rest, mut mirror, mut scale) = (line, 0, 1);
                for &length in lengths.iter().rev() {
                    mirror += (length - rest % length) % length * scale;
                    rest /= length;
                    scale *= length;
                }
                for k in 0..n {
                    out[line * n + k] =
                        if k < half { input[line * half + k] } else { input[mirror * half + n - k].conj() };
                }
            }
        }
        whole
    }
}

/// Transforms all lines of `n` elements `stride` apart.
fn transform_lines(values: &mut [Complex64], n: usize, stride: usize, is_inverse: bool) {
    let mut line = vec![Complex64::ZERO; n];
    for block in values.chunks_mut((n * stride).max(1)) {
        for first in 0..stride {
            line.iter_mut().enumerate().for_each(|(i, x)| *x = block[first + i * stride]);
            transform(&mut line, is_inverse);
            line.iter().enumerate().for_each(|(i, &x)| block[first + i * stride] = x);
        }
    }
}

/// One transform, not scaled.
fn transform(line: &mut [Complex64], is_inverse: bool) {
    let n = line.len();
    if n <= 1 {
        return;
    }
    if is_inverse {
        line.iter_mut().for_each(|x| *x = x.conj());
    }
    if n.is_power_of_two() {
        radix_2(line)
    } else {
        bluestein(line)
    }
    if is_inverse {
        line.iter_mut().for_each(|x| *x = x.conj());
    }
}

/// Cooley and Tukey's algorithm for powers of two.
fn radix_2(line: &mut [Complex64]) {
    let n = line.len();
    let shift = usize::BITS - n.trailing_zeros();
    for i in 0..n {
        let j = i.reverse_bits() >> shift;
        if i < j {
            line.swap(i, j);
        }
    }
    let mut half = 1;
    while half < n {
        for block in line.chunks_mut(2 * half) {
            let (low, high) = block.split_at_mut(half);
            for (k, (a, b)) in low.iter_mut().zip(high).enumerate() {
                let turned = *b * Complex64::from_polar(1.0, -PI * k as f64 / half as f64);
                (*a, *b) = (*a + turned, *a - turned);
            }
        }
        half *= 2;
    }
}

/// Any length as a convolution with a chirp, of a length that is a power of two (Bluestein, 1970).
fn bluestein(line: &mut [Complex64]) {
    let n = line.len();
    let m = (2 * n - 1).next_power_of_two();
    // The angle of k^2 repeats after 2n, which keeps it exact for long lines.
    let chirp: Vec<Complex64> = (0..n)
        .map(|k| {
            Complex64::from_polar(1.0, -PI * ((k as u128 * k as u128) % (2 * n as u128)) as f64 / n as f64)
        })
        .collect();
    let mut a = vec![Complex64::ZERO; m];
    let mut b = vec![Complex64::ZERO; m];
    for k in 0..n {
        a[k] = line[k] * chirp[k];
        b[k] = chirp[k].conj();
        b[(m - k) % m] = b[k];
    }
    radix_2(&mut a);
    radix_2(&mut b);
    a.iter_mut().zip(&b).for_each(|(a, b)| *a = (*a * b).conj());
    radix_2(&mut a);
    for k in 0..n {
        line[k] = a[k].conj() * chirp[k] / m as f64;
    }
}
