//! A lower bound for problems with gaps: blocks that interfere in pairs, but never all at one time.
//!
//! ```text
//!   a ###......####     Intervals that meet in pairs have a time in common, so for plain blocks the most bytes
//!   b ..####.......     live at one time is all there is to say. A block with a gap breaks that: here each
//!   c .....#####...     meets the others, no time sees all three, and yet no two can share a byte.
//! ```
//!
//! Every packing orders such a clique by offset, so it is as high as the sum of its sizes. For each section, the
//! cliques tried are its live blocks, plus blocks in a gap there that interfere with enough of them.

use alloc::vec;
use alloc::vec::Vec;
use core::cmp::Reverse;

use crate::instance::{Instance, Piece};

/// Sections from which a clique is grown, those with the most bytes live or in a gap.
const MOST_SECTIONS: usize = 256;

/// Pieces compared in all, a few milliseconds.
const MOST_WORK: usize = 1 << 22;

/// Raises a lower bound where a clique shows more. O(n log n), and a bounded number of comparisons of pieces.
pub(crate) fn raise(instance: &Instance, bound: u64) -> u64 {
    let gapped: Vec<u32> =
        (0..instance.blocks.len() as u32).filter(|&b| !instance.is_plain(b as usize)).collect();
    let sections = promising_sections(instance, &gapped, bound);
    let mut seeds = vec![Vec::new(); sections.len()];
    for block in 0..instance.blocks.len() as u32 {
        for piece in instance.pieces(block as usize) {
            let from = sections.partition_point(|&section| section < piece.lower);
            let to = sections.partition_point(|&section| section < piece.upper);
            seeds[from..to].iter_mut().for_each(|seed: &mut Vec<u32>| seed.push(block));
        }
    }
    let unit = instance.unit();
    let mut work = MOST_WORK;
    let mut bound = bound;
    for (section, mut clique) in sections.into_iter().zip(seeds) {
        let in_gap = |block: &u32| {
            let pieces = instance.pieces(*block as usize);
            let hull = pieces[0].lower..pieces[pieces.len() - 1].upper;
            hull.contains(&section) && clique.binary_search(block).is_err()
        };
        let mut more: Vec<u32> = gapped.iter().copied().filter(in_gap).collect();
        more.sort_by_key(|&block| Reverse(instance.blocks[block as usize].size));
        for block in more {
            grow(instance, &mut clique, block, &mut work);
        }
        bound = bound.max(weight(instance, &clique, unit, &mut work));
        if work == 0 {
            break;
        }
    }
    bound
}

/// The sections where the bytes live and those in a gap together are above the bound, the most promising of them, in order.
fn promising_sections(instance: &Instance, gapped: &[u32], bound: u64) -> Vec<u32> {
    if gapped.is_empty() {
        return Vec::new();
    }
    let mut delta = vec![0i128; instance.n_sections + 1];
    for block in &instance.blocks {
        delta[block.lower as usize] += i128::from(block.size);
        delta[block.upper as usize] -= i128::from(block.size);
    }
    let mut promise = 0;
    let mut promises: Vec<(i128, u32)> = Vec::new();
    for (section, delta) in delta[..instance.n_sections].iter().enumerate() {
        promise += delta;
        if promise > i128::from(bound) {
            promises.push((promise, section as u32));
        }
    }
    promises.sort_unstable_by_key(|&(promise, section)| (Reverse(promise), section));
    promises.truncate(MOST_SECTIONS);
    let mut sections: Vec<u32> = promises.into_iter().map(|(_, section)| section).collect();
    sections.sort_unstable();
    sections
}

/// Adds a block to a clique, in exchange for the members that it can share bytes with, if they are smaller together.
fn grow(instance: &Instance, clique: &mut Vec<u32>, block: u32, work: &mut usize) {
    let size = |block: u32| u128::from(instance.blocks[block as usize].size);
    let cost = |other: &u32| instance.pieces(*other as usize).len() + instance.pieces(block as usize).len();
    let needed: usize = clique.iter().map(cost).sum();
    if *work < needed {
        *work = 0;
        return;
    }
    *work -= needed;
    let meets = |other: &u32| distance(instance, *other, block) > 0;
    let lost: u128 = clique.iter().filter(|other| !meets(other)).map(|&other| size(other)).sum();
    if lost < size(block) {
        clique.retain(meets);
        clique.push(block);
    }
}

/// The height that a clique needs, by the same rounding as [`Instance::lower_bound`].
fn weight(instance: &Instance, clique: &[u32], unit: u64, work: &mut usize) -> u64 {
    let mut sum = 0u128;
    let mut saved = 0;
    for &block in clique {
        let index = block as usize;
        let size = if instance.is_uniform(index) {
            instance.blocks[index].size
        } else {
            let needed = clique.len() * instance.pieces(index).len();
            if *work < needed {
                *work = 0;
                return 0;
            }
            *work -= needed;
            let others = clique.iter().filter(|&&other| other != block);
            let distances = others.map(|&other| distance(instance, block, other));
            distances.min().unwrap_or(instance.blocks[index].size)
        };
        let rounded = u128::from(size.div_ceil(unit)) * u128::from(unit);
        sum += rounded;
        saved = saved.max(rounded - u128::from(size));
    }
    // A load above 2^64 was refused before.
    u64::try_from(sum - saved).unwrap_or(0)
}

/// How far above `below` the other block must begin if it is the upper one; 0 where they never meet.
fn distance(instance: &Instance, below: u32, above: u32) -> u64 {
    let (mut lower, mut upper) = (instance.pieces(below as usize), instance.pieces(above as usize));
    let mut most = 0;
    while let ([a, rest_a @ ..], [b, rest_b @ ..]) = (lower, upper) {
        if meet(a, b) {
            most = most.max(a.size);
        }
        if a.upper <= b.upper {
            lower = rest_a;
        } else {
            upper = rest_b;
        }
    }
    most
}

fn meet(a: &Piece, b: &Piece) -> bool {
    a.lower < b.upper && b.lower < a.upper
}
