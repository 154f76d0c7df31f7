//! Cholesky factors and triangular solves, in `f64` whatever the type.

use memplan_ir::{ArrayShape, TriangularSolve, TriangularTranspose};
use num_complex::Complex64;

use crate::Error;
use crate::kernels::dense::Dense;
use crate::kernels::{Kernel, Operand};
use crate::memory::{Memory, Place};

pub(crate) struct CholeskyKernel {
    operand: Dense,
    result: Dense,
    is_lower: bool,
}

impl CholeskyKernel {
    pub(crate) fn new(
        operand: &Operand,
        result: &ArrayShape,
        is_lower: bool,
    ) -> Result<CholeskyKernel, Error> {
        Ok(CholeskyKernel { operand: Dense::operand(operand)?, result: Dense::new(0, result)?, is_lower })
    }
}

impl Kernel for CholeskyKernel {
    fn scratch_bytes(&self) -> usize {
        self.operand.count() * size_of::<Complex64>()
    }

    /// Cholesky-Banachiewicz, row by row. What is not positive definite gives NaN, as square roots do.
    fn run(&self, memory: &mut Memory, operands: &[Place], results: &[Place], _: Place) -> Result<(), Error> {
        let mut a = self.operand.read(memory, operands);
        let n = *self.operand.shape.dimensions.last().unwrap_or(&0) as usize;
        for a in a.chunks_mut((n * n).max(1)) {
            if !self.is_lower {
                conjugate_transpose(a, n);
            }
            for i in 0..n {
                for j in 0..=i {
                    let dot: Complex64 = (0..j).map(|k| a[i * n + k] * a[j * n + k].conj()).sum();
                    let rest = a[i * n + j] - dot;
                    a[i * n + j] = if i == j { Complex64::from(rest.re.sqrt()) } else { rest / a[j * n + j] };
                }
                a[i * n + i + 1..(i + 1) * n].fill(Complex64::ZERO);
            }
            if a.iter().any(|x| x.is_nan()) {
                a.fill(Complex64::from(f64::NAN));
            }
            if !self.is_lower {
                conjugate_transpose(a, n);
            }
        }
        self.result.write(memory, results, &a);
        Ok(())
    }
}

pub(crate) struct TriangularSolveKernel {
    a: Dense,
    b: Dense,
    result: Dense,
    options: TriangularSolve,
}

impl TriangularSolveKernel {
    pub(crate) fn new(
        operands: &[Operand],
        result: &ArrayShape,
        options: TriangularSolve,
    ) -> Result<TriangularSolveKernel, Error> {
        Ok(TriangularSolveKernel {
            a: Dense::operand(&operands[0])?,
            b: Dense::operand(&operands[1])?,
            result: Dense::new(0, result)?,
            options,
        })
    }
}

impl Kernel for TriangularSolveKernel {
    fn scratch_bytes(&self) -> usize {
        (self.a.count() + self.b.count()) * size_of::<Complex64>()
    }

    /// Substitution. `x op(a) = b` is `op(a)^T x^T = b^T`, so both sides are one loop with other strides.
    fn run(&self, memory: &mut Memory, operands: &[Place], results: &[Place], _: Place) -> Result<(), Error> {
        let a = self.a.read(memory, operands);
        let mut b = self.b.read(memory, operands);
        let rank = self.b.shape.rank();
        let (rows, columns) =
            (self.b.shape.dimensions[rank - 2] as usize, self.b.shape.dimensions[rank - 1] as usize);
        let n = if self.options.left_side { rows } else { columns };
        let others = if self.options.left_side { columns } else { rows };
        let (along, across) = if self.options.left_side { (columns, 1) } else { (1, columns) };
        let is_transposed =
            (self.options.transpose_a != TriangularTranspose::NoTranspose) == self.options.left_side;
        let is_conjugated = self.options.transpose_a == TriangularTranspose::Adjoint;
        // Whether the matrix that multiplies from the left is lower triangular, and is solved from the top.
        let is_forward = self.options.lower != is_transposed;
        let element = |a: &[Complex64], i: usize, k: usize| {
            let x = if is_transposed { a[k * n + i] } else { a[i * n + k] };
            if is_conjugated { x.conj() } else { x }
        };
        for (a, b) in a.chunks((n * n).max(1)).zip(b.chunks_mut((rows * columns).max(1))) {
            for other in 0..others {
                for step in 0..n {
                    let i = if is_forward { step } else { n - 1 - step };
                    let known = if is_forward { 0..i } else { i + 1..n };
                    let dot: Complex64 =
                        known.map(|k| element(a, i, k) * b[k * along + other * across]).sum();
                    let x = &mut b[i * along + other * across];
                    *x -= dot;
                    if !self.options.unit_diagonal {
                        *x /= element(a, i, i);
                    }
                }
            }
        }
        self.result.write(memory, results, &b);
        Ok(())
    }
}

fn conjugate_transpose(a: &mut [Complex64], n: usize) {
    for i in 0..n {
        for j in 0..i {
            a.swap(i * n + j, j * n + i);
        }
    }
    a.iter_mut().for_each(|x| *x = x.conj());
}
