//! Moves blocks to their preferred offsets, at no cost.

use crate::first_fit::Placed;
use crate::instance::Instance;

/// Comparisons after which the remaining wishes are let go: a tenth of a second.
const MOST_WORK: usize = 1 << 27;

/// Moves each block that prefers an offset there, one after the other by index, if it then overlaps nothing
/// and stays within `height`.
pub(crate) fn prefer(instance: &Instance, height: u64, offsets: &mut [u64]) {
    let wishes = instance.blocks.iter().enumerate().filter_map(|(index, block)| {
        let wish = block.preferred.filter(|wish| block.fixed.is_none() && wish % block.alignment == 0)?;
        (wish.checked_add(block.size)? <= height).then_some((index, wish))
    });
    let mut wishes = wishes.peekable();
    if wishes.peek().is_none() {
        return;
    }
    let mut placed = Placed::of(instance, offsets);
    let mut work = 0;
    for (index, wish) in wishes {
        if work >= MOST_WORK {
            return;
        }
        work += 2 * instance.n_pieces();
        placed.remove(instance, index, offsets[index]);
        if placed.conflict(instance, index, wish).is_none() {
            offsets[index] = wish;
        }
        placed.insert(instance, index, offsets[index]);
    }
}
