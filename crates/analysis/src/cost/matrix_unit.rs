//! The effect of the matrix unit's shape, and of the number of units, on the work of a product.

use memplan_memory::{MatrixCores, Target};

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
    /// Whether it is a convolution of each feature by itself.
    pub(super) is_depthwise: bool,
}

/// Rows and columns of the least tile of a product, whose tiles are chosen by trying; of convolutions, cores compute whole ones.
const LEAST_TILE: f64 = 16.0;

/// Rows that stream through the unit together: one for each sublane of a register.
const STREAMED_TOGETHER: f64 = 8.0;

impl MatrixProduct {
    /// Multiplications that somebody asked for.
    pub(super) fn multiplications(&self) -> f64 {
        self.batch * self.rows * self.columns * self.contracted * self.taps
    }

    /// Multiplications that the matrix units of a target make in the time that the product takes: on whole tiles, as if
    /// all cores worked until the last is done, and at their full rate.
    pub(super) fn padded_on(&self, target: &Target) -> f64 {
        let (tiles, reached) =
            target.matrix_cores.map_or((*self, 1.0), |cores| (self.in_tiles(&cores), self.reached(&cores)));
        let made = match target.matrix_unit {
            Some(unit) => tiles.padded(unit as f64),
            None => tiles.multiplications(),
        };
        made / reached
    }

    /// Seconds that every product takes, large or small, in addition to that.
    pub(super) fn start_on(&self, target: &Target) -> f64 {
        target.matrix_cores.map_or(0.0, |cores| match self.taps > 1.0 {
            true => cores.convolution_seconds,
            false => cores.product_seconds,
        })
    }

    /// The whole tiles that cores compute. A vector needs no tile, and neither do convolutions that are not for matrix units.
    fn in_tiles(&self, cores: &MatrixCores) -> MatrixProduct {
        if self.depthwise_share(cores).is_some() {
            return *self;
        }
        let tile = if self.taps > 1.0 { cores.tile as f64 } else { LEAST_TILE };
        let whole = |extent: f64| if extent > 1.0 { up(extent, tile) } else { extent };
        MatrixProduct { rows: whole(self.rows), columns: whole(self.columns), ..*self }
    }

    /// The share of their rate that all cores together reach. Convolutions of one tap are products.
    fn reached(&self, cores: &MatrixCores) -> f64 {
        match (self.depthwise_share(cores), cores.convolution_share) {
            (Some(share), _) => share,
            (None, Some(share)) if self.taps > 1.0 => self.occupancy(cores) * share,
            _ => self.occupancy(cores) * cores.share,
        }
    }

    fn depthwise_share(&self, cores: &MatrixCores) -> Option<f64> {
        cores.depthwise_share.filter(|_| self.is_depthwise)
    }

    /// The share of cores that work, on average. Each computes a tile of the result; where there are fewer tiles than
    /// cores, several share the sums of one.
    fn occupancy(&self, cores: &MatrixCores) -> f64 {
        let count = cores.count as f64;
        let tiles = |extent: f64| (extent / cores.tile as f64).ceil().max(1.0);
        let tiles = self.batch.max(1.0) * tiles(self.rows) * tiles(self.columns);
        let parts = (count / tiles).min(self.contracted * self.taps / cores.depth as f64).floor().max(1.0);
        let tiles = tiles * parts;
        tiles / ((tiles / count).ceil() * count)
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
        let product = MatrixProduct { batch: 2.0, rows, columns, contracted, taps, is_depthwise: false };
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
    fn cores_without_a_tile_are_idle() {
        let cores = MatrixCores {
            count: 100,
            tile: 64,
            depth: 256,
            share: 1.0,
            convolution_share: None,
            depthwise_share: None,
            product_seconds: 0.0,
            convolution_seconds: 0.0,
        };
        let share = |batch: f64, rows: f64, columns: f64, contracted: f64| {
            MatrixProduct { batch, rows, columns, contracted, taps: 1.0, is_depthwise: false }
                .occupancy(&cores)
        };
        assert_eq!(share(1.0, 640.0, 640.0, 64.0), 1.0);
        // A last wave of one tile.
        assert_eq!(share(101.0, 64.0, 64.0, 64.0), 101.0 / 200.0);
        // One tile: of one core, or of as many as its sums are worth.
        assert_eq!(share(1.0, 8.0, 8.0, 64.0), 1.0 / 100.0);
        assert_eq!(share(1.0, 8.0, 8.0, 4096.0), 16.0 / 100.0);
        assert_eq!(share(1.0, 8.0, 8.0, 1e6), 1.0);
    }

    #[test]
    fn taps_share_a_pass_where_they_fit() {
        check(1024.0, 128.0, 64.0, 3.0, 1024.0 * 128.0 * 256.0);
        check(1024.0, 128.0, 128.0, 3.0, 1024.0 * 128.0 * 384.0);
    }
}
