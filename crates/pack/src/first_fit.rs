//! A constructive heuristic for small problems: puts each block, in a given order, as low as possible or into the
//! smallest hole.
//!
//! With [`Fit::Best`] it is XLA's global decreasing-size best fit, for any order.
//!
//! It supports every property of a block (alignment, fixed offsets, gaps, several sizes) and fills holes, which the
//! skyline of [`crate::niche`] cannot. It takes quadratic time; [`is_affordable`] is the limit.

use alloc::collections::BinaryHeap;
use alloc::vec;
use alloc::vec::Vec;
use core::cmp::Reverse;

use crate::construct::Offsets;
use crate::instance::{Block, Instance, Piece};
use crate::niche::round_up;
use crate::options::Clock;
use crate::profile;

/// Whether a run in one order is a matter of some tens of milliseconds.
pub(crate) fn is_affordable(instance: &Instance) -> bool {
    instance.n_pieces() <= 1 << 14
}

/// Which of the holes that are large enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fit {
    /// The lowest.
    First,
    /// The smallest, and of those the lowest.
    Best,
}

/// Places the blocks in the given order, the fixed ones before all others. Offsets saturate at 2^64. `None` where the time
/// was up before all had a place.
pub(crate) fn pack(instance: &Instance, order: &[u32], fit: Fit, clock: &Clock) -> Option<Vec<u64>> {
    let mut offsets = vec![0; instance.blocks.len()];
    let mut placed = Placed::default();
    for (index, block) in instance.blocks.iter().enumerate() {
        if let Some(offset) = block.fixed {
            offsets[index] = offset;
            placed.insert(instance, index, offset);
        }
    }
    for &block in order {
        let index = block as usize;
        if instance.blocks[index].fixed.is_some() {
            continue;
        }
        if clock.is_over() {
            return None;
        }
        let offset = match fit {
            Fit::First => placed.lowest_fit(instance, index),
            Fit::Best => placed.tightest_fit(instance, index),
        };
        offsets[index] = offset;
        placed.insert(instance, index, offset);
    }
    Some(offsets)
}

/// Places the blocks that have no place yet around those that have. `None` if the time is up before.
pub(crate) fn pack_around(
    instance: &Instance,
    placed: &[(u32, u64)],
    order: &[u32],
    clock: &Clock,
) -> Option<Offsets> {
    let mut offsets = vec![u64::MAX; instance.blocks.len()];
    let mut around = Placed::default();
    for &(block, offset) in placed {
        offsets[block as usize] = offset;
        around.insert(instance, block as usize, offset);
    }
    for &block in order {
        if offsets[block as usize] == u64::MAX {
            if clock.is_over() {
                return None;
            }
            let offset = around.lowest_fit(instance, block as usize);
            offsets[block as usize] = offset;
            around.insert(instance, block as usize, offset);
        }
    }
    let height = profile::height(instance, &offsets).unwrap_or(u64::MAX);
    Some(Offsets { offsets, height })
}

/// The pieces that have their place, in order of offset.
#[derive(Default)]
pub(crate) struct Placed {
    pieces: Vec<PlacedPiece>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct PlacedPiece {
    offset: u64,
    end: u64,
    lower: u32,
    upper: u32,
}

impl PlacedPiece {
    fn new(piece: &Piece, offset: u64) -> Self {
        let Piece { lower, upper, size } = *piece;
        PlacedPiece { offset, end: offset.saturating_add(size), lower, upper }
    }
}

impl Placed {
    /// All blocks at their offsets.
    pub(crate) fn of(instance: &Instance, offsets: &[u64]) -> Placed {
        let mut pieces = Vec::with_capacity(instance.n_pieces());
        for (block, &offset) in offsets.iter().enumerate() {
            pieces.extend(instance.pieces(block).iter().map(|piece| PlacedPiece::new(piece, offset)));
        }
        pieces.sort_by_key(|placed| placed.offset);
        Placed { pieces }
    }

    pub(crate) fn remove(&mut self, instance: &Instance, block: usize, offset: u64) {
        for piece in instance.pieces(block) {
            let from = self.pieces.partition_point(|placed| placed.offset < offset);
            let piece = PlacedPiece::new(piece, offset);
            let at = self.pieces[from..].iter().position(|&placed| placed == piece);
            self.pieces.remove(from + at.expect("the block is at this offset"));
        }
    }

    pub(crate) fn insert(&mut self, instance: &Instance, block: usize, offset: u64) {
        for piece in instance.pieces(block) {
            let at = self.pieces.partition_point(|placed| placed.offset <= offset);
            self.pieces.insert(at, PlacedPiece::new(piece, offset));
        }
    }

    /// The lowest offset at which the block overlaps nothing.
    pub(crate) fn lowest_fit(&self, instance: &Instance, block: usize) -> u64 {
        let alignment = instance.blocks[block].alignment;
        match instance.pieces(block) {
            [piece] => {
                let (lower, upper, size) = (piece.lower, piece.upper, piece.size);
                let mut offset = 0u64;
                for placed in &self.pieces {
                    if placed.lower < upper && lower < placed.upper && placed.end > offset {
                        if placed.offset >= offset.saturating_add(size) && placed.offset > offset {
                            break;
                        }
                        offset = round_up(placed.end, alignment);
                    }
                }
                offset
            }
            pieces => self.lowest_fit_of_pieces(&instance.blocks[block], pieces),
        }
    }

    /// One walk upwards. A placed piece keeps the block away from offsets between its own less the size of the block's
    /// piece then, and its end; since sizes differ, some come into play only after others further up.
    fn lowest_fit_of_pieces(&self, block: &Block, pieces: &[Piece]) -> u64 {
        let mut offset = 0u64;
        // Those further up: (from where on they are in the way, their end).
        let mut later: BinaryHeap<Reverse<(u64, u64)>> = BinaryHeap::new();
        for placed in &self.pieces {
            if placed.offset >= offset.saturating_add(block.size) {
                break;
            }
            if placed.end <= offset {
                continue;
            }
            // The pieces are in order of time: start with the first that ends after the placed one begins.
            let from = pieces.partition_point(|piece| piece.upper <= placed.lower);
            let during = pieces[from..].iter().take_while(|piece| piece.lower < placed.upper);
            let Some(size) = during.map(|piece| piece.size).max() else { continue };
            if placed.offset >= offset.saturating_add(size) {
                later.push(Reverse((placed.offset - size, placed.end)));
                continue;
            }
            offset = round_up(placed.end, block.alignment);
            while let Some(&Reverse((_, end))) = later.peek().filter(|Reverse((start, _))| *start < offset) {
                later.pop();
                if end > offset {
                    offset = round_up(end, block.alignment);
                }
            }
        }
        offset
    }

    /// The start of the smallest hole that is free whenever the block holds bytes and has room for the largest
    /// of its pieces; the lowest such place above everything where there is no hole.
    pub(crate) fn tightest_fit(&self, instance: &Instance, block: usize) -> u64 {
        let Block { size, alignment, .. } = instance.blocks[block];
        let pieces = instance.pieces(block);
        let mut best = (u64::MAX, u64::MAX);
        let mut offset = 0u64;
        for placed in &self.pieces {
            let next = pieces.partition_point(|piece| piece.upper <= placed.lower);
            if pieces.get(next).is_none_or(|piece| piece.lower >= placed.upper) {
                continue;
            }
            if let Some(hole) = placed.offset.checked_sub(offset)
                && (size..best.0).contains(&hole)
            {
                best = (hole, offset);
            }
            offset = offset.max(round_up(placed.end, alignment));
        }
        if best.1 == u64::MAX { offset } else { best.1 }
    }

    /// The end of a placed piece that the block would overlap at `offset`. `None` also where addresses end.
    pub(crate) fn conflict(&self, instance: &Instance, block: usize, offset: u64) -> Option<u64> {
        if offset == u64::MAX {
            return None;
        }
        let pieces = instance.pieces(block);
        let end = offset.saturating_add(instance.blocks[block].size);
        let near =
            self.pieces.iter().take_while(|placed| placed.offset < end).filter(|placed| placed.end > offset);
        let overlaps = |placed: &&PlacedPiece| {
            // The pieces are in order of time: start with the first that ends after the placed one begins.
            let from = pieces.partition_point(|piece| piece.upper <= placed.lower);
            let during = pieces[from..].iter().take_while(|piece| piece.lower < placed.upper);
            during.into_iter().any(|piece| placed.offset < offset.saturating_add(piece.size))
        };
        near.filter(overlaps).map(|placed| placed.end).max()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::instance::Mapping;
    use crate::{Item, Problem};

    /// Blocks of several pieces of different sizes, with gaps.
    fn stairs(seed: u64) -> Problem {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut below = |n: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % n
        };
        let mut problem = Problem::new();
        for _ in 0..40 {
            let first = problem.items.len();
            let mut time = below(20);
            for _ in 0..1 + below(4) {
                let end = time + 1 + below(6);
                problem.push(Item::new(1 + below(30), time..end).aligned(1 << below(4)));
                time = end + below(5);
            }
            problem.colocate(first..problem.items.len());
        }
        problem
    }

    #[test]
    fn one_walk_finds_the_lowest_place_of_a_block_with_pieces() {
        for seed in 0..300 {
            let (instance, _) = Mapping::new(&stairs(seed)).expect("nothing is wrong with it");
            let mut placed = Placed::default();
            for block in 0..instance.blocks.len() {
                let mut lowest = 0;
                while let Some(end) = placed.conflict(&instance, block, lowest) {
                    lowest = round_up(end, instance.blocks[block].alignment);
                }
                let found = placed.lowest_fit_of_pieces(&instance.blocks[block], instance.pieces(block));
                assert_eq!(found, lowest, "seed {seed}, block {block}");
                placed.insert(&instance, block, found);
            }
        }
    }
}
