//! Fourier transforms over the last one to three dimensions, in `f64`.

use std::f64::consts::PI;

use memplan_ir::{ArrayShape, ElementType, FftKind};
use num_complex::Complex64;

use crate::Error;
use crate::kernels::dense::{Dense, Work, numbers_mut};
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
    fn scratch_bytes(&self) -> usize {
        let counts = [self.operand.count(), self.count(), self.awkward()];
        Work::bytes(counts.map(|n| n.saturating_mul(size_of::<Complex64>())))
    }

    fn run(
        &self,
        memory: &mut Memory,
        operands: &[Place],
        results: &[Place],
        scratch: Place,
    ) -> Result<(), Error> {
        let mut work = Work::new(memory, scratch);
        let input = work.take::<Complex64>(self.operand.count());
        let whole = work.take::<Complex64>(self.count());
        let awkward = work.take::<Complex64>(self.awkward());
        let n = *self.lengths.last().unwrap_or(&1);
        match self.kind {
            FftKind::Irfft => {
                self.operand.read(memory, operands, ElementType::C128, input);
                self.mirror(memory, input, whole, n);
            }
            _ => self.operand.read(memory, operands, ElementType::C128, whole),
        }
        let is_inverse = matches!(self.kind, FftKind::Ifft | FftKind::Irfft);
        let all = Place { size: awkward.offset + awkward.size - whole.offset, ..whole };
        let (values, awkward) = numbers_mut::<Complex64>(memory, all).split_at_mut(self.count());
        let mut stride = 1;
        for &length in self.lengths.iter().rev() {
            transform_lines(values, length, stride, is_inverse, awkward);
            stride *= length;
        }
        if is_inverse {
            values.iter_mut().for_each(|x| *x /= stride as f64);
        }
        if self.kind == FftKind::Rfft {
            // The rest of each line is the conjugate of the kept part.
            let kept = n / 2 + 1;
            for line in 1..values.len() / n.max(1) {
                values.copy_within(line * n..line * n + kept, line * kept);
            }
        }
        self.result.write(memory, results, ElementType::C128, whole);
        Ok(())
    }
}

impl FftKernel {
    /// Elements that transforms of single lines work with: the line, and what [`bluestein`] wants.
    fn awkward(&self) -> usize {
        let of = |&n: &usize| if n.is_power_of_two() { n } else { 2 * n + 2 * (2 * n).next_power_of_two() };
        self.lengths.iter().map(of).max().unwrap_or(0)
    }

    /// The whole spectrum of real signals, of which the operand has the first `n / 2 + 1` entries of the last dimension.
    fn mirror(&self, memory: &mut Memory, input: Place, whole: Place, n: usize) {
        let half = n / 2 + 1;
        let lengths = &self.lengths[..self.lengths.len() - 1];
        let lines: usize = lengths.iter().product();
        // Scratch begins with the input, so both are one slice.
        let both = Place { size: whole.offset + whole.size - input.offset, ..input };
        let (input, whole) = numbers_mut::<Complex64>(memory, both).split_at_mut(self.operand.count());
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
    }
}

/// Transforms all lines of `n` elements `stride` apart.
fn transform_lines(
    values: &mut [Complex64],
    n: usize,
    stride: usize,
    is_inverse: bool,
    awkward: &mut [Complex64],
) {
    let (line, awkward) = awkward.split_at_mut(n);
    for block in values.chunks_mut((n * stride).max(1)) {
        for first in 0..stride {
            line.iter_mut().enumerate().for_each(|(i, x)| *x = block[first + i * stride]);
            transform(line, is_inverse, awkward);
            line.iter().enumerate().for_each(|(i, &x)| block[first + i * stride] = x);
        }
    }
}

/// One transform, not scaled.
fn transform(line: &mut [Complex64], is_inverse: bool, awkward: &mut [Complex64]) {
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
        bluestein(line, awkward)
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
fn bluestein(line: &mut [Complex64], work: &mut [Complex64]) {
    let n = line.len();
    let m = (2 * n - 1).next_power_of_two();
    let (chirp, work) = work.split_at_mut(n);
    let (a, work) = work.split_at_mut(m);
    let b = &mut work[..m];
    // The angle of k^2 repeats after 2n, which keeps it exact for long lines.
    for (k, x) in chirp.iter_mut().enumerate() {
        let square = (k as u128 * k as u128) % (2 * n as u128);
        *x = Complex64::from_polar(1.0, -PI * square as f64 / n as f64);
    }
    a.fill(Complex64::ZERO);
    b.fill(Complex64::ZERO);
    for k in 0..n {
        a[k] = line[k] * chirp[k];
        b[k] = chirp[k].conj();
        b[(m - k) % m] = b[k];
    }
    radix_2(a);
    radix_2(b);
    a.iter_mut().zip(&*b).for_each(|(a, b)| *a = (*a * b).conj());
    radix_2(a);
    for k in 0..n {
        line[k] = a[k].conj() * chirp[k] / m as f64;
    }
}
