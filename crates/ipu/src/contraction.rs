//! Dots and convolutions: the division of their work among tiles.
//!
//! A contraction is a box of multiplications: batch (groups) × rows × columns × depth. It is divided into a grid; each
//! tile gets a cell, for which it receives a slice of either operand and keeps partial sums, usually in f32. If the
//! depth is divided, several tiles have partial sums of the same results, which are exchanged and added afterwards.
//!
//! If the operands of a cell exceed the limit for temporaries, they arrive in several passes, each a part of the depth,
//! and the partial sums stay.
//!
//! The grid is the fastest by a simple model (multiplications at the matrix units' rate, plus bytes at the exchange's
//! rate, plus a synchronization for each pass) among those whose cell fits the limit; if none does, the grid with the
//! smallest cell.

use memplan_ir::{ArrayShape, Convolution, DotDimensions, DotOperand, ElementType};
use memplan_memory::{Bytes, Target, Tiles};

use crate::mapping::{Grain, LinearMapping, Mapping};
use crate::phases::Axis;

/// Most passes: more would be paid for in code, which there is for each.
const MAX_PASSES: u64 = 64;

/// A contraction.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Contraction {
    /// Independent contractions: batch dimensions of a dot, feature groups of a convolution.
    pub batch: u64,
    /// Rows of the result: what only the left operand has.
    pub rows: u64,
    /// Columns of the result: what only the right operand has.
    pub columns: u64,
    /// Products that are added up.
    pub depth: u64,
    /// Into how many slices the left operand can be cut along the depth: its depth, without a window.
    pub lhs_depth: u64,
    /// Elements of the left operand of one batch.
    pub lhs_elements: u64,
    /// Elements at the border of a slice of the left operand that the next slice needs too.
    pub halo: u64,
    /// Type of the left operand.
    pub lhs_type: ElementType,
    /// Type of the right operand.
    pub rhs_type: ElementType,
}

/// How a contraction is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Cuts of batch, rows, columns and depth.
    pub cuts: [u64; 4],
    /// In how many passes operands and partial sums arrive.
    pub passes: u64,
    /// Bytes of the operands of a cell that arrive in one pass.
    pub operands: Bytes,
    /// Bytes of the partial sums of a cell.
    pub partials: Bytes,
    /// Bytes of partial sums that a tile receives in one pass to add them up, where the depth is cut.
    pub sums: Bytes,
}

impl Contraction {
    /// That of a dot.
    pub fn of_dot(lhs: &ArrayShape, rhs: &ArrayShape, dimensions: &DotDimensions) -> Contraction {
        let product = |array: &ArrayShape, of: &[i64]| extents(array, of);
        let batch = product(lhs, &dimensions.lhs_batch);
        let depth = product(lhs, &dimensions.lhs_contracting);
        let rows = product(lhs, &dimensions.free(DotOperand::Lhs, lhs.rank()));
        Contraction {
            batch,
            rows,
            columns: product(rhs, &dimensions.free(DotOperand::Rhs, rhs.rank())),
            depth,
            lhs_depth: depth,
            lhs_elements: rows.saturating_mul(depth),
            halo: 0,
            lhs_type: lhs.element_type,
            rhs_type: rhs.element_type,
        }
    }

    /// That of a convolution: rows are places of the window, columns are output features of a group.
    pub fn of_convolution(
        input: &ArrayShape,
        kernel: &ArrayShape,
        output: &ArrayShape,
        convolution: &Convolution,
    ) -> Contraction {
        let labels = &convolution.dimensions;
        let groups = positive(convolution.feature_group_count.max(convolution.batch_group_count));
        let window = extents(kernel, &labels.kernel_spatial);
        let features = extents(kernel, &[labels.kernel_input_feature]);
        let images = extents(output, &[labels.output_batch]);
        let places = images.saturating_mul(extents(output, &labels.output_spatial));
        // A slice of places is some rows of the first spatial dimension; its window reaches into the next rows.
        let inner = labels.input_spatial.get(1..).map_or(1, |rest| extents(input, rest));
        let reach = convolution.window.dimensions.first().map_or(0, |w| positive(w.size) - 1);
        Contraction {
            batch: groups,
            rows: places,
            columns: extents(output, &[labels.output_feature]).div_ceil(groups),
            depth: window.saturating_mul(features),
            lhs_depth: features,
            lhs_elements: input.element_count().unwrap_or(u64::MAX).div_ceil(groups),
            halo: reach.saturating_mul(inner).saturating_mul(features),
            lhs_type: input.element_type,
            rhs_type: kernel.element_type,
        }
    }

    /// One of the parts when it is cut along an axis.
    pub(crate) fn in_phases(mut self, axis: Axis, phases: u64) -> Contraction {
        match axis {
            Axis::Batch => self.batch = self.batch.div_ceil(phases),
            Axis::Columns => self.columns = self.columns.div_ceil(phases),
            Axis::Rows | Axis::Elements => {
                self.rows = self.rows.div_ceil(phases);
                self.lhs_elements = self.lhs_elements.div_ceil(phases);
            }
            Axis::Depth => {
                self.depth = self.depth.div_ceil(phases);
                self.lhs_depth = self.lhs_depth.div_ceil(phases);
                self.lhs_elements = self.lhs_elements.div_ceil(phases);
            }
        }
        self
    }

    /// The best grid for the tiles of a target: at most as many cells as `tiles`.
    pub fn grid(&self, target: &Target, machine: &Tiles, tiles: u32) -> Grid {
        let limit = Bytes((machine.bytes.0 as f64 * machine.temporary_proportion) as u64);
        let rate =
            target.rates.get(self.lhs_type).or_else(|| target.rates.get(ElementType::F32)).unwrap_or(1e12);
        let (per_product, per_byte) =
            (2.0 * f64::from(machine.count) / rate, f64::from(machine.count) / machine.exchange_bandwidth);
        let seconds = |grid: &Grid| {
            let [b, m, n, k] = self.cell(grid.cuts);
            let products = b as f64 * m as f64 * n as f64 * k as f64;
            let received = (grid.operands.0 as f64 + grid.sums.0 as f64) * grid.passes as f64;
            products * per_product
                + received * per_byte
                + grid.passes as f64 * machine.synchronization_seconds
        };
        let mut best: Option<((bool, u64, f64), Grid)> = None;
        let most = u64::from(tiles.max(1));
        let batch = self.batch.clamp(1, most);
        for rows in cuts(self.rows, most / batch) {
            for columns in cuts(self.columns, most / batch / rows) {
                for depth in cuts(self.depth, most / batch / rows / columns) {
                    let grid = self
                        .cut([batch, rows, columns, depth], machine)
                        .in_passes(limit, self.depth.div_ceil(depth));
                    let bytes = grid.temporaries();
                    let is_over = bytes > limit;
                    // Beyond the limit, smaller is better; within it, faster is.
                    let key = (is_over, if is_over { bytes.0 } else { 0 }, seconds(&grid));
                    if best.is_none_or(|(least, _)| key.partial_cmp(&least).is_some_and(|o| o.is_lt())) {
                        best = Some((key, grid));
                    }
                }
            }
        }
        best.map_or_else(|| self.cut([1; 4], machine), |(_, grid)| grid)
    }

    /// The extents of a cell.
    fn cell(&self, [b, m, n, k]: [u64; 4]) -> [u64; 4] {
        [self.batch.div_ceil(b), self.rows.div_ceil(m), self.columns.div_ceil(n), self.depth.div_ceil(k)]
    }

    fn cut(&self, cuts: [u64; 4], machine: &Tiles) -> Grid {
        let (tiles, partial) = (machine.count, machine.partial_bytes.0);
        let [b, m, n, k] = self.cell(cuts);
        let slice = self.lhs_elements.div_ceil(cuts[1]).saturating_add(self.halo).min(self.lhs_elements);
        let lhs = b.saturating_mul(slice.div_ceil(cuts[3].min(self.lhs_depth).max(1)));
        let rhs = b.saturating_mul(n).saturating_mul(k);
        let bytes =
            |elements: u64, of: ElementType| elements.saturating_mul(u64::from(of.byte_width()).max(1));
        Grid {
            cuts,
            passes: 1,
            operands: Bytes(bytes(lhs, self.lhs_type).saturating_add(bytes(rhs, self.rhs_type))),
            partials: Bytes(b.saturating_mul(m).saturating_mul(n).saturating_mul(partial)),
            sums: Bytes(match cuts[3] {
                1 => 0,
                depth => {
                    let results = self.batch.saturating_mul(self.rows).saturating_mul(self.columns);
                    let spread = LinearMapping::new(results, Grain::of(partial), 0..tiles, 0);
                    let share = Mapping::Linear(spread).largest_share();
                    share.saturating_mul(partial).saturating_mul(added_at_once(depth, tiles))
                }
            }),
        }
    }
}

impl Grid {
    /// The same with as many passes as the limit asks for, if they can be made.
    fn in_passes(self, limit: Bytes, depth: u64) -> Grid {
        let room = limit.saturating_sub(self.partials).0.max(1);
        let wanted = self.operands.max(self.sums).0.div_ceil(room);
        let passes = wanted.clamp(1, depth.clamp(1, MAX_PASSES));
        let part = |bytes: Bytes| Bytes(bytes.0.div_ceil(passes));
        Grid { passes, operands: part(self.operands), sums: part(self.sums), ..self }
    }

    /// The most bytes that a tile needs at once: for its cell, or while partial sums are added up.
    pub fn temporaries(&self) -> Bytes {
        self.partials.saturating_add(self.operands.max(self.sums))
    }

    /// How many tiles have a cell.
    pub fn cells(&self) -> u32 {
        self.cuts.iter().product::<u64>() as u32
    }
}

/// How many of some partial results a tile receives at once. More than the square root of the number of tiles are added
/// up in two stages.
pub(crate) fn added_at_once(partials: u64, tiles: u32) -> u64 {
    partials.min(u64::from(tiles).isqrt() + 1)
}

/// Numbers of cuts worth trying: powers of two, those times three, and all there may be.
fn cuts(extent: u64, most: u64) -> impl Iterator<Item = u64> {
    let most = most.min(extent).max(1);
    let powers = (0..16).flat_map(|i| [1u64 << i, 3u64 << i]).filter(move |&n| n < most);
    powers.chain([most])
}

fn extents(array: &ArrayShape, dimensions: &[i64]) -> u64 {
    let extent =
        |&d: &i64| usize::try_from(d).ok().and_then(|d| array.dimensions.get(d)).map_or(1, |&n| positive(n));
    dimensions.iter().map(extent).fold(1, u64::saturating_mul)
}

fn positive(extent: i64) -> u64 {
    u64::try_from(extent).unwrap_or(1).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn square(n: u64) -> Contraction {
        Contraction {
            batch: 1,
            rows: n,
            columns: n,
            depth: n,
            lhs_depth: n,
            lhs_elements: n * n,
            halo: 0,
            lhs_type: ElementType::F32,
            rhs_type: ElementType::F32,
        }
    }

    #[test]
    fn the_grid_uses_the_chip_and_obeys_the_limit() {
        let mut target = Target::find("ipu-gc200").expect("built in");
        let mut tiles = target.tiles.clone().expect("an IPU has tiles");
        let free = square(4096).grid(&target, &tiles, tiles.count);
        assert!(free.cells() > 1000 && free.cells() <= 1472, "{free:?}");
        tiles.temporary_proportion = 0.1;
        target.tiles = Some(tiles.clone());
        let tight = square(4096).grid(&target, &tiles, tiles.count);
        let bytes = |grid: Grid| grid.temporaries().0;
        assert!(bytes(tight) <= tiles.bytes.0 / 10 || bytes(tight) <= bytes(free), "{tight:?}");
        tiles.temporary_proportion = 0.0;
        let least = square(4096).grid(&target, &tiles, tiles.count);
        assert!(bytes(least) <= bytes(tight), "0 is as little as possible");
        assert_eq!(square(1).grid(&target, &tiles, tiles.count).cells(), 1);
    }
}
