//! Factorizations of small matrices, in LAPACK's form. Matrices are row-major.

use num_complex::Complex64;

use crate::kernels::linalg::conjugate_transpose;

/// Sweeps of Jacobi's methods. They converge quadratically: ten are plenty for any matrix that fits in memory here.
const MAX_SWEEPS: usize = 60;

/// LU with partial pivoting: the factors replace the matrix, `pivots` are the rows exchanged, counted from 1. Gives the
/// number of the first pivot that is zero, or 0.
pub(crate) fn lu(a: &mut [Complex64], m: usize, n: usize, pivots: &mut [Complex64]) -> usize {
    let mut singular = 0;
    for k in 0..m.min(n) {
        let size = |i: usize| a[i * n + k].re.abs() + a[i * n + k].im.abs();
        let best = (k + 1..m).fold(k, |best, i| if size(i) > size(best) { i } else { best });
        pivots[k] = Complex64::from((best + 1) as f64);
        if a[best * n + k] == Complex64::ZERO {
            singular = if singular == 0 { k + 1 } else { singular };
            continue;
        }
        (0..n).for_each(|j| a.swap(k * n + j, best * n + j));
        for i in k + 1..m {
            let factor = a[i * n + k] / a[k * n + k];
            a[i * n + k] = factor;
            for j in k + 1..n {
                let x = a[k * n + j];
                a[i * n + j] -= factor * x;
            }
        }
    }
    singular
}

/// QR by Householder's reflections `1 - tau v v^H`: R replaces the upper triangle; the vectors, which begin with a 1
/// that is not stored, replace the rest.
pub(crate) fn qr(a: &mut [Complex64], m: usize, n: usize, taus: &mut [Complex64]) {
    for k in 0..m.min(n) {
        let below: f64 = (k + 1..m).map(|i| a[i * n + k].norm_sqr()).sum();
        let alpha = a[k * n + k];
        if below == 0.0 && alpha.im == 0.0 {
            taus[k] = Complex64::ZERO;
            continue;
        }
        let beta = -(alpha.norm_sqr() + below).sqrt().copysign(alpha.re);
        let tau = Complex64::new((beta - alpha.re) / beta, -alpha.im / beta);
        let scale = (alpha - beta).inv();
        (k + 1..m).for_each(|i| a[i * n + k] *= scale);
        a[k * n + k] = Complex64::from(beta);
        taus[k] = tau;
        for j in k + 1..n {
            reflect(a, m, n, k, j, along_reflector(a, m, n, k, j) * tau.conj());
        }
    }
}

/// The product of a reflection's vector, conjugated, with column `j`.
fn along_reflector(a: &[Complex64], m: usize, n: usize, k: usize, j: usize) -> Complex64 {
    a[k * n + j] + (k + 1..m).map(|i| a[i * n + k].conj() * a[i * n + j]).sum::<Complex64>()
}

/// Subtracts a multiple of the vector in column `k` from column `j`.
fn reflect(a: &mut [Complex64], m: usize, n: usize, k: usize, j: usize, factor: Complex64) {
    a[k * n + j] -= factor;
    for i in k + 1..m {
        let v = a[i * n + k];
        a[i * n + j] -= factor * v;
    }
}

/// The first `n` columns of the product of the reflections that [`qr`] leaves in the first columns of `a`.
pub(crate) fn product_of_reflections(a: &mut [Complex64], m: usize, n: usize, taus: &[Complex64]) {
    let reflections = taus.len().min(n);
    for j in reflections..n {
        (0..m).for_each(|i| a[i * n + j] = Complex64::from(if i == j { 1.0 } else { 0.0 }));
    }
    for k in (0..reflections).rev() {
        for j in k + 1..n {
            reflect(a, m, n, k, j, along_reflector(a, m, n, k, j) * taus[k]);
        }
        (k + 1..m).for_each(|i| a[i * n + k] *= -taus[k]);
        a[k * n + k] = Complex64::ONE - taus[k];
        (0..k).for_each(|i| a[i * n + k] = Complex64::ZERO);
    }
}

/// Multiplies `c`, of `width` columns, by the product Q of the reflections that [`qr`] leaves in `a`, or by its adjoint,
/// without making Q.
pub(crate) fn multiply_by_reflections(
    c: &mut [Complex64],
    width: usize,
    (a, m, n): (&[Complex64], usize, usize),
    taus: &[Complex64],
    (is_left, is_adjoint): (bool, bool),
) {
    let reflections = taus.len().min(n).min(m);
    // From the left columns are reflected, from the right rows.
    let (lines, from_line, from_step) =
        if is_left { (width, 1, width) } else { (c.len() / width.max(1), width, 1) };
    for step in 0..reflections {
        let k = if is_left == is_adjoint { step } else { reflections - 1 - step };
        let tau = if is_adjoint { taus[k].conj() } else { taus[k] };
        let v = |i: usize, conjugate: bool| match i == k {
            true => Complex64::ONE,
            false if conjugate => a[i * n + k].conj(),
            false => a[i * n + k],
        };
        for line in 0..lines {
            let at = |i: usize| line * from_line + i * from_step;
            let along: Complex64 = (k..m).map(|i| v(i, is_left) * c[at(i)]).sum();
            (k..m).for_each(|i| c[at(i)] -= tau * along * v(i, !is_left));
        }
    }
}

/// Eigenvalues in ascending order and eigenvectors, the columns of `v`, of a Hermitian matrix of which one triangle
/// counts. Jacobi's method with cyclic sweeps.
pub(crate) fn eigen(
    a: &mut [Complex64],
    n: usize,
    is_lower: bool,
    v: &mut [Complex64],
    values: &mut [Complex64],
) {
    if is_lower {
        conjugate_transpose(a, n);
    }
    for i in 0..n {
        a[i * n + i].im = 0.0;
        for j in 0..i {
            a[i * n + j] = a[j * n + i].conj();
        }
    }
    identity(v, n);
    let total: f64 = a.iter().map(|x| x.norm_sqr()).sum();
    for _ in 0..MAX_SWEEPS {
        let off: f64 =
            (0..n).flat_map(|i| (0..i).map(move |j| (i, j))).map(|(i, j)| a[i * n + j].norm_sqr()).sum();
        if off <= 1e-32 * total {
            break;
        }
        for p in 0..n {
            for q in p + 1..n {
                let (app, aqq) = (a[p * n + p].re, a[q * n + q].re);
                let Some(rotation) = Rotation::that_removes(a[p * n + q], app, aqq) else { continue };
                rotation.columns(a, n, n, p, q);
                rotation.rows(a, n, p, q);
                rotation.columns(v, n, n, p, q);
            }
        }
    }
    (0..n).for_each(|i| values[i] = Complex64::from(a[i * n + i].re));
    sort_columns(values, &mut [(v, n, n)], n, |x, y| x < y);
}

/// Singular values in descending order, with `a = u s v^H`, for `m` rows and `n` columns, not more. `u` has `m` rows and
/// at least `n` columns, of which those beyond complete a basis; `v` is square. One-sided Jacobi (Hestenes, 1958).
pub(crate) fn singular_values(
    a: &[Complex64],
    (m, n): (usize, usize),
    (u, width): (&mut [Complex64], usize),
    values: &mut [Complex64],
    v: &mut [Complex64],
) {
    u.fill(Complex64::ZERO);
    (0..m).for_each(|i| u[i * width..i * width + n].copy_from_slice(&a[i * n..(i + 1) * n]));
    identity(v, n);
    for _ in 0..MAX_SWEEPS {
        let mut is_done = true;
        for p in 0..n {
            for q in p + 1..n {
                let (mut pp, mut qq, mut pq) = (0.0, 0.0, Complex64::ZERO);
                for row in u.chunks(width) {
                    pp += row[p].norm_sqr();
                    qq += row[q].norm_sqr();
                    pq += row[p].conj() * row[q];
                }
                if pq.norm_sqr() <= 1e-32 * pp * qq {
                    continue;
                }
                let Some(rotation) = Rotation::that_removes(pq, pp, qq) else { continue };
                is_done = false;
                rotation.columns(u, m, width, p, q);
                rotation.columns(v, n, n, p, q);
            }
        }
        if is_done {
            break;
        }
    }
    for j in 0..n {
        values[j] = Complex64::from((0..m).map(|i| u[i * width + j].norm_sqr()).sum::<f64>().sqrt());
    }
    sort_columns(values, &mut [(u, m, width), (v, n, n)], n, |x, y| x > y);
    let smallest = values.first().map_or(0.0, |s| s.re) * f64::EPSILON * m as f64;
    for j in 0..n {
        if values[j].re > smallest {
            (0..m).for_each(|i| u[i * width + j] /= values[j].re);
        } else {
            complete(u, m, width, j);
        }
    }
    (n..width).for_each(|j| complete(u, m, width, j));
}

/// Makes column `j` a unit vector orthogonal to the previous ones: the remainder of an axis, orthogonalized twice for
/// accuracy.
fn complete(u: &mut [Complex64], m: usize, width: usize, j: usize) {
    // Of all axes, the one of which most is left.
    let covered = |i: usize| (0..j).map(|k| u[i * width + k].norm_sqr()).sum::<f64>();
    let axis = (1..m).fold(0, |best, i| if covered(i) < covered(best) { i } else { best });
    (0..m).for_each(|i| u[i * width + j] = Complex64::from(if i == axis { 1.0 } else { 0.0 }));
    for _ in 0..2 {
        for k in 0..j {
            let along: Complex64 = (0..m).map(|i| u[i * width + k].conj() * u[i * width + j]).sum();
            for i in 0..m {
                let x = u[i * width + k];
                u[i * width + j] -= along * x;
            }
        }
        let norm = (0..m).map(|i| u[i * width + j].norm_sqr()).sum::<f64>().sqrt();
        (0..m).for_each(|i| u[i * width + j] /= norm);
    }
}

/// A rotation of two columns by an angle, one of them turned by a phase.
struct Rotation {
    cosine: f64,
    sine: Complex64,
}

impl Rotation {
    /// The rotation of columns `p` and `q` that makes their product `pq` zero, where it is not.
    fn that_removes(pq: Complex64, pp: f64, qq: f64) -> Option<Rotation> {
        let size = pq.norm();
        if size == 0.0 || !size.is_finite() {
            return None;
        }
        let slope = (qq - pp) / (2.0 * size);
        let tangent = 1.0f64.copysign(slope) / (slope.abs() + slope.hypot(1.0));
        let cosine = 1.0 / tangent.hypot(1.0);
        Some(Rotation { cosine, sine: pq / size * (tangent * cosine) })
    }

    fn of(&self, x: Complex64, y: Complex64) -> (Complex64, Complex64) {
        (x * self.cosine - y * self.sine.conj(), x * self.sine + y * self.cosine)
    }

    /// As columns, conjugated.
    fn rows(&self, a: &mut [Complex64], width: usize, p: usize, q: usize) {
        for k in 0..width {
            let (x, y) = self.of(a[p * width + k].conj(), a[q * width + k].conj());
            (a[p * width + k], a[q * width + k]) = (x.conj(), y.conj());
        }
    }

    fn columns(&self, a: &mut [Complex64], rows: usize, width: usize, p: usize, q: usize) {
        for i in 0..rows {
            (a[i * width + p], a[i * width + q]) = self.of(a[i * width + p], a[i * width + q]);
        }
    }
}

fn identity(a: &mut [Complex64], n: usize) {
    a.fill(Complex64::ZERO);
    (0..n).for_each(|i| a[i * n + i] = Complex64::ONE);
}

/// Brings values into an order, and the first `n` columns of matrices of so many rows and columns with them.
fn sort_columns(
    values: &mut [Complex64],
    matrices: &mut [(&mut [Complex64], usize, usize)],
    n: usize,
    is_before: impl Fn(f64, f64) -> bool,
) {
    for at in 0..n {
        let best = (at + 1..n).fold(at, |b, k| if is_before(values[k].re, values[b].re) { k } else { b });
        values.swap(at, best);
        for (matrix, rows, width) in &mut *matrices {
            (0..*rows).for_each(|i| matrix.swap(i * *width + at, i * *width + best));
        }
    }
}
