//! Cholesky factors and triangular solves, in `f64` for all types.

use memplan_ir::{ArrayShape, ElementType, TriangularSolve, TriangularTranspose};
use num_complex::Complex64;

use crate::Error;
use crate::kernels::dense::{Dense, Work, numbers_mut};
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
        Work::bytes([self.operand.count() * size_of::<Complex64>()])
    }

    fn run(
        &self,
        memory: &mut Memory,
        operands: &[Place],
        results: &[Place],
        scratch: Place,
    ) -> Result<(), Error> {
        let matrices = Work::new(memory, scratch).take::<Complex64>(self.operand.count());
        self.operand.read(memory, operands, ElementType::C128, matrices);
        let (n, _) = self.operand.matrix();
        for a in numbers_mut::<Complex64>(memory, matrices).chunks_mut((n * n).max(1)) {
            if cholesky(a, n, self.is_lower) > 0 {
                a.fill(Complex64::from(f64::NAN));
            }
        }
        self.result.write(memory, results, ElementType::C128, matrices);
        Ok(())
    }
}

/// Makes a matrix its Cholesky factor, the other triangle zero. Gives the order of the first leading minor that is not
/// positive, or 0.
///
/// Cholesky-Banachiewicz, row by row.
pub(crate) fn cholesky(a: &mut [Complex64], n: usize, is_lower: bool) -> usize {
    if !is_lower {
        conjugate_transpose(a, n);
    }
    let mut failed = 0;
    for i in 0..n {
        for j in 0..=i {
            let dot: Complex64 = (0..j).map(|k| a[i * n + k] * a[j * n + k].conj()).sum();
            let rest = a[i * n + j] - dot;
            // A root of a negative number is not a number, and spoils all that follows.
            a[i * n + j] = if i == j { Complex64::from(rest.re.sqrt()) } else { rest / a[j * n + j] };
        }
        let is_positive = a[i * n + i].re > 0.0;
        failed = if failed == 0 && !is_positive { i + 1 } else { failed };
        a[i * n + i + 1..(i + 1) * n].fill(Complex64::ZERO);
    }
    if !is_lower {
        conjugate_transpose(a, n);
    }
    failed
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
        Work::bytes([self.a.count() + self.b.count()].map(|n| n * size_of::<Complex64>()))
    }

    fn run(
        &self,
        memory: &mut Memory,
        operands: &[Place],
        results: &[Place],
        scratch: Place,
    ) -> Result<(), Error> {
        let (n_a, n_b) = (self.a.count(), self.b.count());
        let both = Work::new(memory, scratch).take::<Complex64>(n_a + n_b);
        let (width, solved) = (size_of::<Complex64>(), n_b * size_of::<Complex64>());
        let [a, b] = [both.part(0, n_a * width), both.part(n_a * width, solved)];
        self.a.read(memory, operands, ElementType::C128, a);
        self.b.read(memory, operands, ElementType::C128, b);
        let (rows, columns) = self.b.matrix();
        let (n, _) = self.a.matrix();
        let (a, b_numbers) = numbers_mut::<Complex64>(memory, both).split_at_mut(n_a);
        for (a, b) in a.chunks((n * n).max(1)).zip(b_numbers.chunks_mut((rows * columns).max(1))) {
            triangular_solve(a, n, b, columns, self.options);
        }
        self.result.write(memory, results, ElementType::C128, b);
        Ok(())
    }
}

/// Substitution: `b`, of rows of `columns`, becomes `op(a)^-1 b`, or `b op(a)^-1`.
pub(crate) fn triangular_solve(
    a: &[Complex64],
    n: usize,
    b: &mut [Complex64],
    columns: usize,
    options: TriangularSolve,
) {
    // `x op(a) = b` is `op(a)^T x^T = b^T`, so both sides are one loop with other strides.
    let rows = b.len() / columns.max(1);
    let others = if options.left_side { columns } else { rows };
    let (along, across) = if options.left_side { (columns, 1) } else { (1, columns) };
    let is_transposed = (options.transpose_a != TriangularTranspose::NoTranspose) == options.left_side;
    let is_conjugated = options.transpose_a == TriangularTranspose::Adjoint;
    // Whether the matrix that multiplies from the left is lower triangular, and is solved from the top.
    let is_forward = options.lower != is_transposed;
    let element = |i: usize, k: usize| {
        let x = if is_transposed { a[k * n + i] } else { a[i * n + k] };
        if is_conjugated { x.conj() } else { x }
    };
    for other in 0..others {
        for step in 0..n {
            let i = if is_forward { step } else { n - 1 - step };
            let known = if is_forward { 0..i } else { i + 1..n };
            let dot: Complex64 = known.map(|k| element(i, k) * b[k * along + other * across]).sum();
            let x = &mut b[i * along + other * across];
            *x -= dot;
            if !options.unit_diagonal {
                *x /= element(i, i);
            }
        }
    }
}

pub(crate) fn conjugate_transpose(a: &mut [Complex64], n: usize) {
    for i in 0..n {
        for j in 0..i {
            a.swap(i * n + j, j * n + i);
        }
    }
    a.iter_mut().for_each(|x| *x = x.conj());
}
