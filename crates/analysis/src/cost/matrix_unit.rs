//! What the shape of the matrix unit makes of a product.

/// A product of matrices: `batch` times `rows` x `contracted * taps` with `contracted * taps` x `columns`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct MatrixProduct {
    /// Products of the same kind.
    pub(super) batch: f64,
    /// Rows of the left matrix.
    pub(super) rows: f64,
    /// Columns of the right matrix.
    pub(super) columns: f64,
    /// Terms of a sum, of one tap.
    pub(super) contracted: f64,
    /// Elements of a convolution's innermost window, on average.
    pub(super) taps: f64,
}

/// Rows that stream through the unit together: one for each sublane of a register.
const STREAMED_TOGETHER: f64 = 8.0;

impl MatrixProduct {
    /// Multiplications that somebody asked for.
    pub(super) fn multiplications(&self) -> f64 {
        self.batch * self.rows * self.columns * self.contracted * self.taps
    }

    /// Multiplications that a unit of `unit` x `unit` cells makes: it holds one tile of one matrix, padded to its size, and
    /// the rows of the other stream through. The matrix that wastes less is held.
    pub(super) fn padded(&self, unit: f64) -> f64 {
        let contracted = match self.contracted {
            // Taps that fit into the unit together are one pass.
            features if features < unit => up(features * self.taps, unit),
            features => up(features, unit) * self.taps,
        };
        let (rows, columns) = (self.rows, self.columns);
        let held_right = up(columns, unit) * up(rows, STREAMED_TOGETHER);
        let held_left = up(rows, unit) * up(columns, STREAMED_TOGETHER);
        self.batch * contracted * held_right.min(held_left)
    }
}

/// The next multiple.
fn up(n: f64, of: f64) -> f64 {
    (n / of).ceil() * of
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(rows: f64, columns: f64, contracted: f64, taps: f64, padded: f64) {
        let product = MatrixProduct { batch: 2.0, rows, columns, contracted, taps };
        assert_eq!(product.padded(128.0), 2.0 * padded);
    }

    #[test]
    fn partial_tiles_cost_as_much_as_whole_ones() {
        check(1024.0, 256.0, 512.0, 1.0, 1024.0 * 256.0 * 512.0);
        check(1024.0, 64.0, 64.0, 1.0, 1024.0 * 64.0 * 128.0);
        check(1024.0, 130.0, 10.0, 1.0, 1024.0 * 136.0 * 128.0);
        check(8.0, 2048.0, 2048.0, 1.0, 8.0 * 2048.0 * 2048.0);
    }

    #[test]
    fn taps_share_a_pass_where_they_fit() {
        check(1024.0, 128.0, 64.0, 3.0, 1024.0 * 128.0 * 256.0);
        check(1024.0, 128.0, 128.0, 3.0, 1024.0 * 128.0 * 384.0);
    }
}
