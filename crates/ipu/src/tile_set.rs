//! Sets of tiles as ranges: most are one run of neighbors, or two where a run passes the last tile.

use std::ops::Range;

use smallvec::SmallVec;

/// A set of tiles: disjoint ranges, ascending, none of them touching.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct TileSet(SmallVec<[Range<u32>; 2]>);

impl TileSet {
    /// The tiles of some ranges, in any order.
    pub fn new(ranges: impl IntoIterator<Item = Range<u32>>) -> TileSet {
        let mut ranges: SmallVec<[Range<u32>; 2]> =
            ranges.into_iter().filter(|range| !range.is_empty()).collect();
        ranges.sort_unstable_by_key(|range| range.start);
        ranges.dedup_by(|next, last| {
            let joins = next.start <= last.end;
            if joins {
                last.end = last.end.max(next.end);
            }
            joins
        });
        TileSet(ranges)
    }

    /// The tiles from one on, as many as `length`: after the last tile of a window comes its first.
    pub fn wrapped(start: u32, length: u32, window: Range<u32>) -> TileSet {
        let end = start + length;
        match end.checked_sub(window.end) {
            None | Some(0) => TileSet::new(std::iter::once(start..end)),
            Some(over) => TileSet::new([start..window.end, window.start..window.start + over]),
        }
    }

    /// The ranges, ascending.
    pub fn ranges(&self) -> &[Range<u32>] {
        &self.0
    }

    /// The tiles, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        self.0.iter().flat_map(Clone::clone)
    }

    /// How many tiles.
    pub fn len(&self) -> u32 {
        self.0.iter().map(|range| range.end - range.start).sum()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a tile is in it.
    pub fn contains(&self, tile: u32) -> bool {
        self.0.iter().any(|range| range.contains(&tile))
    }
}

/// A sum for each tile, made of amounts on sets of tiles: an addition costs the ranges of its set, not its tiles.
#[derive(Clone, Debug)]
pub(crate) struct TileSums {
    /// The amounts added from each tile on; an amount is subtracted after the last tile of a range.
    steps: Vec<i128>,
}

impl TileSums {
    pub(crate) fn new(tiles: u32) -> TileSums {
        TileSums { steps: vec![0; tiles as usize + 1] }
    }

    pub(crate) fn add(&mut self, tiles: &TileSet, amount: u64) {
        for range in tiles.ranges() {
            self.steps[range.start as usize] += i128::from(amount);
            self.steps[range.end as usize] -= i128::from(amount);
        }
    }

    /// The sums by tile.
    pub(crate) fn finish(&self) -> Vec<u64> {
        let mut sum = 0i128;
        let sums = self.steps[..self.steps.len() - 1].iter().map(|step| {
            sum += step;
            u64::try_from(sum).unwrap_or(u64::MAX)
        });
        sums.collect()
    }
}

/// The largest amount on each tile. Linearithmic in ranges and tiles.
pub(crate) fn largest_on_each_tile<'a>(
    tiles: u32,
    amounts: impl IntoIterator<Item = (&'a TileSet, u64)>,
) -> Vec<u64> {
    let mut ranges: Vec<(u64, Range<u32>)> = amounts
        .into_iter()
        .flat_map(|(set, amount)| set.ranges().iter().map(move |range| (amount, range.clone())))
        .collect();
    ranges.sort_unstable_by_key(|(amount, range)| (std::cmp::Reverse(*amount), range.start, range.end));
    fill_from_largest(tiles as usize, ranges.into_iter().map(|(a, r)| (a, r.start as usize..r.end as usize)))
}

/// For each place the amount of the first range that covers it; zero where none does. Each place is written once.
pub(crate) fn fill_from_largest(
    len: usize,
    descending: impl IntoIterator<Item = (u64, Range<usize>)>,
) -> Vec<u64> {
    let mut filled = vec![0; len];
    // The next place at or after each that has no amount yet, with paths halved on the way.
    let mut next: Vec<usize> = (0..=len).collect();
    let free_from = |next: &mut Vec<usize>, mut at: usize| {
        while next[at] != at {
            next[at] = next[next[at]];
            at = next[at];
        }
        at
    };
    for (amount, range) in descending {
        let mut at = free_from(&mut next, range.start.min(len));
        while at < range.end.min(len) {
            filled[at] = amount;
            next[at] = at + 1;
            at = free_from(&mut next, at + 1);
        }
    }
    filled
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_join_what_touches() {
        assert_eq!(TileSet::wrapped(6, 5, 2..8).ranges(), [2..5, 6..8]);
        assert_eq!(TileSet::wrapped(6, 2, 2..8).ranges().len(), 1);
        let set = TileSet::new([7..9, 0..2, 2..3, 5..5]);
        assert_eq!(set.ranges(), [0..3, 7..9]);
        assert_eq!((set.len(), set.contains(8), set.contains(3)), (5, true, false));
        assert_eq!(set.iter().collect::<Vec<_>>(), [0, 1, 2, 7, 8]);
    }

    #[test]
    fn sums_and_maxima() {
        let (a, b) = (TileSet::new([0..2, 3..4]), TileSet::new(std::iter::once(1..4)));
        let mut sums = TileSums::new(5);
        sums.add(&a, 10);
        sums.add(&b, 4);
        assert_eq!(sums.finish(), [10, 14, 4, 14, 0]);
        assert_eq!(largest_on_each_tile(5, [(&b, 4), (&a, 10)]), [10, 10, 4, 10, 0]);
    }
}
