//! The calls to LAPACK that JAX emits on CPUs, on batches of matrices, computed in `f64`.

use memplan_ir::{ArrayShape, ElementType, InstructionId, Module, TriangularSolve, TriangularTranspose};
use num_complex::Complex64;

use crate::Error;
use crate::kernels::dense::{Dense, Work, numbers_mut};
use crate::kernels::linalg::{cholesky, triangular_solve};
use crate::kernels::{Kernel, Operand, matrix};
use crate::memory::{Memory, Place};

pub(crate) struct LapackKernel {
    routine: Routine,
    operands: Vec<Dense>,
    results: Vec<Dense>,
}

/// The routine. Its status results are the last.
#[derive(Clone, Copy)]
enum Routine {
    /// Factors, pivots, info.
    Getrf,
    /// R and reflections, factors of these.
    Geqrf,
    /// From what `Geqrf` gives: Q.
    Orgqr,
    /// From what `Geqrf` gives and a matrix: the product of Q, or its adjoint, and that matrix.
    Ormqr { is_left: bool, is_adjoint: bool },
    /// Factor, info.
    Potrf { is_lower: bool },
    /// Eigenvectors, eigenvalues, info.
    Syevd { is_lower: bool },
    /// The overwritten operand, singular values, U, adjoint of V, info.
    Gesdd,
    /// Solution.
    Trsm(TriangularSolve),
}

impl LapackKernel {
    /// The kernel of a custom call, if its target is a known one.
    pub(crate) fn new(
        module: &Module,
        id: InstructionId,
        target: &str,
        operands: &[Operand],
        results: &[(usize, &ArrayShape)],
    ) -> Result<Option<LapackKernel>, Error> {
        let Some(name) = target.strip_prefix("lapack_").and_then(|t| t.strip_suffix("_ffi")) else {
            return Ok(None);
        };
        let config = module.instructions[id].backend_config.as_deref().unwrap_or_default();
        let config = String::from_utf8_lossy(config);
        let attribute = |key: &str| {
            let mut words =
                config.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|w| !w.is_empty());
            words.by_ref().find(|&word| word == key)?;
            words.next()
        };
        // Some are characters as LAPACK wants them: `uplo = 76 : ui8` is 'L'.
        let letter = |key: &str| attribute(key)?.parse::<u8>().ok().map(char::from);
        let is_true = |key: &str| attribute(key) == Some("true");
        let is_lower = letter("uplo") != Some('U');
        let routine = match name.get(1..).unwrap_or_default() {
            "getrf" => Routine::Getrf,
            "geqrf" => Routine::Geqrf,
            "orgqr" | "ungqr" => Routine::Orgqr,
            "ormqr" | "unmqr" => {
                Routine::Ormqr { is_left: is_true("left"), is_adjoint: is_true("transpose") }
            }
            "potrf" => Routine::Potrf { is_lower },
            "syevd" | "heevd" => Routine::Syevd { is_lower },
            "gesdd" => Routine::Gesdd,
            "trsm" => Routine::Trsm(TriangularSolve {
                left_side: letter("side") != Some('R'),
                lower: is_lower,
                unit_diagonal: letter("diag") == Some('U'),
                transpose_a: match letter("trans_x") {
                    Some('T') => TriangularTranspose::Transpose,
                    Some('C') => TriangularTranspose::Adjoint,
                    _ => TriangularTranspose::NoTranspose,
                },
            }),
            _ => return Ok(None),
        };
        let kernel = LapackKernel {
            routine,
            operands: operands.iter().map(Dense::operand).collect::<Result<_, _>>()?,
            results: results.iter().map(|&(k, shape)| Dense::new(k, shape)).collect::<Result<_, _>>()?,
        };
        match kernel.is_consistent() {
            true => Ok(Some(kernel)),
            false => Err(Error::invalid(module, id, "its arrays do not fit together")),
        }
    }

    /// Whether the shapes fit the routine; nothing has checked those of a custom call yet.
    fn is_consistent(&self) -> bool {
        let Some(first) = self.operands.first().filter(|o| o.shape.rank() >= 2) else { return false };
        let (m, n) = first.matrix();
        let batch = &first.shape.dimensions[..first.shape.rank() - 2];
        let is = |array: &Dense, extents: &[usize]| {
            let own = array.shape.dimensions.strip_prefix(batch);
            own.is_some_and(|own| own.iter().map(|&e| e as usize).eq(extents.iter().copied()))
        };
        let k = m.min(n);
        match (self.routine, &self.operands[1..], &self.results[..]) {
            (Routine::Getrf, [], [a, pivots, info]) => is(a, &[m, n]) && is(pivots, &[k]) && is(info, &[]),
            (Routine::Geqrf, [], [a, taus]) => is(a, &[m, n]) && is(taus, &[k]),
            (Routine::Orgqr, [taus], [q]) => {
                let reflections = taus.shape.dimensions.last().map_or(0, |&t| t as usize);
                is(q, &[m, n]) && is(taus, &[reflections]) && reflections <= n && n <= m
            }
            (Routine::Ormqr { is_left, .. }, [taus, c], [product]) => {
                let reflections = taus.shape.dimensions.last().map_or(0, |&t| t as usize);
                let has_matrix = c.shape.rank() >= 2;
                let (rows, columns) = if has_matrix { c.matrix() } else { (0, 0) };
                has_matrix
                    && is(c, &[rows, columns])
                    && is(product, &[rows, columns])
                    && (if is_left { rows } else { columns }) == m
                    && is(taus, &[reflections])
                    && reflections <= k
            }
            (Routine::Potrf { .. }, [], [a, info]) => m == n && is(a, &[n, n]) && is(info, &[]),
            (Routine::Syevd { .. }, [], [v, w, info]) => {
                m == n && is(v, &[n, n]) && is(w, &[n]) && is(info, &[])
            }
            (Routine::Gesdd, [], [a, s, u, vt, info]) => {
                let is_full = is(u, &[m, m]) && is(vt, &[n, n]);
                // Without vectors, arrays of one element take their place.
                let is_none = is(u, &[1, 1]) && is(vt, &[1, 1]);
                is(a, &[m, n])
                    && is(s, &[k])
                    && (is_full || is_none || is(u, &[m, k]) && is(vt, &[k, n]))
                    && is(info, &[])
            }
            (Routine::Trsm(options), [b], [x]) => {
                let (rows, columns) = b.matrix();
                m == n
                    && (if options.left_side { rows } else { columns }) == n
                    && is(x, &[rows, columns])
                    && is(b, &[rows, columns])
            }
            _ => false,
        }
    }

    /// Numbers of further working memory.
    fn extra(&self) -> usize {
        let (m, n) = self.operands[0].matrix();
        match self.routine {
            Routine::Syevd { .. } => n.saturating_mul(n),
            // The matrix, upright, and vectors on both sides.
            Routine::Gesdd => {
                let (high, wide) = (m.max(n), m.min(n));
                let vectors =
                    high.saturating_mul(self.left_columns()).saturating_add(wide.saturating_mul(wide));
                m.saturating_mul(n).saturating_add(vectors)
            }
            _ => 0,
        }
    }

    /// Vectors on the longer side of a singular value decomposition.
    fn left_columns(&self) -> usize {
        let (m, n) = self.operands[0].matrix();
        let is_full = self.results[2].matrix() == (m, m) && self.results[3].matrix() == (n, n);
        if is_full { m.max(n) } else { m.min(n) }
    }

    fn numbers(&self) -> usize {
        let arrays = self.operands.iter().chain(&self.results).map(Dense::count);
        arrays.fold(self.extra(), usize::saturating_add)
    }
}

impl Kernel for LapackKernel {
    fn scratch_bytes(&self) -> usize {
        Work::bytes([self.numbers().saturating_mul(size_of::<Complex64>())])
    }

    fn run(
        &self,
        memory: &mut Memory,
        operands: &[Place],
        results: &[Place],
        scratch: Place,
    ) -> Result<(), Error> {
        let width = size_of::<Complex64>();
        let all = Work::new(memory, scratch).take::<Complex64>(self.numbers());
        let mut used = 0;
        let mut places = Vec::new();
        for array in self.operands.iter().chain(&self.results) {
            places.push(all.part(used * width, array.count() * width));
            used += array.count();
        }
        let (given, made) = places.split_at(self.operands.len());
        // Without elements there are still results.
        numbers_mut::<Complex64>(memory, all).fill(Complex64::ZERO);
        for (operand, &place) in self.operands.iter().zip(given) {
            operand.read(memory, operands, ElementType::C128, place);
        }
        let (m, n) = self.operands[0].matrix();
        let batches = self.operands[0].count() / (m * n).max(1);
        let mut rest = numbers_mut::<Complex64>(memory, all);
        let mut arrays: Vec<&mut [Complex64]> = Vec::new();
        for array in self.operands.iter().chain(&self.results) {
            let (taken, left) = rest.split_at_mut(array.count());
            arrays.push(taken);
            rest = left;
        }
        for b in 0..batches {
            let mut parts: Vec<&mut [Complex64]> = (arrays.iter_mut())
                .map(|array| {
                    let size = array.len() / batches;
                    &mut array[b * size..(b + 1) * size]
                })
                .collect();
            self.one(m, n, &mut parts, rest);
        }
        for (result, &place) in self.results.iter().zip(made) {
            result.write(memory, results, ElementType::C128, place);
        }
        Ok(())
    }
}

impl LapackKernel {
    /// Computes the results for one matrix of the batch; `arrays` are operands, then results.
    fn one(&self, m: usize, n: usize, arrays: &mut [&mut [Complex64]], extra: &mut [Complex64]) {
        let number = |n: usize| Complex64::from(n as f64);
        match (self.routine, arrays) {
            (Routine::Getrf, [given, a, pivots, info]) => {
                a.copy_from_slice(given);
                info[0] = number(matrix::lu(a, m, n, pivots));
            }
            (Routine::Geqrf, [given, a, taus]) => {
                a.copy_from_slice(given);
                matrix::qr(a, m, n, taus);
            }
            (Routine::Orgqr, [given, taus, q]) => {
                q.copy_from_slice(given);
                matrix::product_of_reflections(q, m, n, taus);
            }
            (Routine::Ormqr { is_left, is_adjoint }, [given, taus, c, product]) => {
                product.copy_from_slice(c);
                let width = self.operands[2].matrix().1;
                let sides = (is_left, is_adjoint);
                matrix::multiply_by_reflections(product, width, (given, m, n), taus, sides);
            }
            (Routine::Potrf { is_lower }, [given, a, info]) => {
                a.copy_from_slice(given);
                let failed = cholesky(a, n, is_lower);
                info[0] = number(failed);
                // The other triangle is not looked at.
                for (i, j) in (0..n).flat_map(|i| (0..n).map(move |j| (i, j))) {
                    if i != j && (i < j) == is_lower {
                        a[i * n + j] = given[i * n + j];
                    }
                }
            }
            (Routine::Syevd { is_lower }, [given, v, values, info]) => {
                extra.copy_from_slice(given);
                matrix::eigen(extra, n, is_lower, v, values);
                info[0] = Complex64::ZERO;
            }
            (Routine::Gesdd, [given, a, values, u, vt, info]) => {
                a.copy_from_slice(given);
                let (upright, vectors) = extra.split_at_mut(m * n);
                // A wide matrix is the adjoint of a high one.
                let (high, wide) = (m.max(n), m.min(n));
                let width = self.left_columns();
                let (left, right) = vectors.split_at_mut(high * width);
                for (at, x) in upright.iter_mut().enumerate() {
                    *x = if m >= n { given[at] } else { given[at % wide * n + at / wide].conj() };
                }
                matrix::singular_values(upright, (high, wide), (left, width), values, right);
                let (us, vs) = match m >= n {
                    true => ((&*left, width), (&*right, n)),
                    false => ((&*right, m), (&*left, width)),
                };
                // Without vectors there is no memory for any.
                let columns = u.len() / m.max(1);
                if u.len() == m * columns && vt.len() == n * (vt.len() / n.max(1)) {
                    (0..u.len()).for_each(|at| u[at] = us.0[at / columns * us.1 + at % columns]);
                    (0..vt.len()).for_each(|at| vt[at] = vs.0[at % n * vs.1 + at / n].conj());
                }
                info[0] = Complex64::ZERO;
            }
            (Routine::Trsm(options), [a, b, x]) => {
                x.copy_from_slice(b);
                let columns = self.operands[1].matrix().1;
                triangular_solve(a, n, x, columns, options);
            }
            _ => unreachable!("the arrays have been looked at"),
        }
    }
}
