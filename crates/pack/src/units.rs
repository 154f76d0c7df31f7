//! The same instance for one capacity, in the largest unit that divides all sizes.

use alloc::vec::Vec;

use crate::instance::{Instance, Piece, gcd};
use crate::niche::round_up;

/// Sizes and places in units, with sizes rounded up.
///
/// Offsets of canonical packings are sums of sizes, rounded up to alignments; when all of those are
/// multiples of some number of bytes, that is the unit. Rounding a size up to what every alignment
/// divides anyway loses nothing, except for a block on top, whose true end counts: `last`.
pub(crate) struct Scaled {
    unit: u64,
    /// A common divisor of all offsets.
    grain: u64,
    pub(crate) capacity: u64,
    pub(crate) size: Vec<u64>,
    /// Size of the smallest piece.
    pub(crate) smallest: Vec<u64>,
    pub(crate) alignment: Vec<u64>,
    pub(crate) fixed: Vec<Option<u64>>,
    /// The highest offset within the capacity.
    pub(crate) last: Vec<u64>,
    /// Only plain blocks without alignments and fixed places.
    pub(crate) is_simple: bool,
    fixed_blocks: Vec<u32>,
    fits: bool,
    is_rounded: bool,
}

impl Scaled {
    pub(crate) fn new(instance: &Instance, capacity: u64) -> Scaled {
        let n = instance.blocks.len();
        let grain = instance.unit();
        let mut unit = 0;
        let mut is_rounded = false;
        for (index, block) in instance.blocks.iter().enumerate() {
            for piece in instance.pieces(index) {
                is_rounded |= piece.size % grain != 0;
                unit = gcd(unit, piece.size.div_ceil(grain) * grain);
            }
            unit = gcd(unit, block.fixed.unwrap_or(0));
            if block.alignment > grain {
                unit = gcd(unit, block.alignment);
            }
        }
        let unit = unit.max(1);
        let mut scaled = Scaled {
            unit,
            grain,
            capacity: capacity.div_ceil(grain) * grain / unit,
            size: Vec::with_capacity(n),
            smallest: Vec::with_capacity(n),
            alignment: Vec::with_capacity(n),
            fixed: Vec::with_capacity(n),
            last: Vec::with_capacity(n),
            is_simple: true,
            fixed_blocks: Vec::new(),
            fits: true,
            is_rounded,
        };
        for (index, block) in instance.blocks.iter().enumerate() {
            let smallest = instance.pieces(index).iter().map(|piece| piece.size).min().unwrap_or(0);
            scaled.size.push(scaled.piece_size(block.size));
            scaled.smallest.push(scaled.piece_size(smallest));
            scaled.alignment.push(if block.alignment > grain { block.alignment / unit } else { 1 });
            scaled.fixed.push(block.fixed.map(|offset| offset / unit));
            scaled.fits &= capacity >= block.size.saturating_add(block.fixed.unwrap_or(0));
            scaled.last.push(capacity.saturating_sub(block.size) / unit);
            scaled.is_simple &= instance.is_plain(index) && block.fixed.is_none() && block.alignment <= grain;
            if block.fixed.is_some() {
                scaled.fixed_blocks.push(index as u32);
            }
        }
        scaled
    }

    /// A common divisor of the heights of canonical packings: the unit, if no size was rounded, else 1.
    pub(crate) fn height_step(&self) -> u64 {
        if self.is_rounded { 1 } else { self.unit }
    }

    /// Whether every block alone is within the capacity.
    pub(crate) fn fits_by_size(&self) -> bool {
        self.fits
    }

    pub(crate) fn piece_size(&self, size: u64) -> u64 {
        size.div_ceil(self.grain) * self.grain / self.unit
    }

    pub(crate) fn pieces<'i>(
        &self,
        instance: &'i Instance,
        block: usize,
    ) -> impl Iterator<Item = Piece> + use<'i, '_> {
        instance.pieces(block).iter().map(|piece| Piece { size: self.piece_size(piece.size), ..*piece })
    }

    /// Size of the block in one of its sections.
    pub(crate) fn size_at(&self, instance: &Instance, block: u32, section: u32) -> u64 {
        if instance.is_plain(block as usize) {
            return self.size[block as usize];
        }
        let pieces = instance.pieces(block as usize);
        let piece =
            pieces.iter().find(|piece| section < piece.upper).expect("the block is live in the section");
        self.piece_size(piece.size)
    }

    /// The first offset from `least` on that the block may have as far as alignment and fixed blocks
    /// without a place say.
    pub(crate) fn first_place(&self, instance: &Instance, block: u32, least: u64, offsets: &[u64]) -> u64 {
        if self.is_simple {
            return least;
        }
        if let Some(fixed) = self.fixed[block as usize] {
            return if least > fixed { u64::MAX } else { fixed };
        }
        let alignment = self.alignment[block as usize];
        let mut at = round_up(least, alignment);
        'again: loop {
            for &other in &self.fixed_blocks {
                let offset = self.fixed[other as usize].expect("it is one of the fixed blocks");
                if offsets[other as usize] != u64::MAX {
                    continue;
                }
                for piece in self.pieces(instance, block as usize) {
                    for obstacle in self.pieces(instance, other as usize) {
                        let together = piece.lower < obstacle.upper && obstacle.lower < piece.upper;
                        let end = offset + obstacle.size;
                        if together && offset < at.saturating_add(piece.size) && at < end {
                            at = round_up(end, alignment);
                            continue 'again;
                        }
                    }
                }
            }
            return at;
        }
    }

    /// Offsets in bytes.
    pub(crate) fn unscale(&self, offsets: &[u64]) -> Vec<u64> {
        offsets.iter().map(|offset| offset * self.unit).collect()
    }
}
