//! Heights along time.

use alloc::collections::BinaryHeap;
use alloc::vec::Vec;

use crate::instance::Instance;

/// Raises the floor of each section to the highest end of the fixed blocks around it, and their gaps, too.
pub(crate) fn raise_to_fixed(instance: &Instance, floor: &mut [u64]) {
    let fixed = |block: &&crate::instance::Block| block.fixed.is_some();
    let mut fixed: Vec<_> = instance.blocks.iter().filter(fixed).collect();
    fixed.sort_by_key(|block| block.lower);
    let mut waiting = fixed.into_iter().peekable();
    // Ends of the fixed blocks met so far, the highest first; past ones leave when they surface.
    let mut ends: BinaryHeap<(u64, u32)> = BinaryHeap::new();
    for (section, floor) in floor.iter_mut().enumerate() {
        while let Some(block) = waiting.next_if(|block| block.lower as usize <= section) {
            ends.push((block.fixed.unwrap_or(0) + block.size, block.upper));
        }
        while ends.peek().is_some_and(|&(_, upper)| upper as usize <= section) {
            ends.pop();
        }
        if let Some(&(end, _)) = ends.peek() {
            *floor = (*floor).max(end);
        }
    }
}

/// One past the highest byte used; `None` where an offset has left the 64 bits.
pub(crate) fn height(instance: &Instance, offsets: &[u64]) -> Option<u64> {
    let mut ends = instance.blocks.iter().zip(offsets).map(|(block, offset)| offset.checked_add(block.size));
    ends.try_fold(0, |height, end| Some(height.max(end?)))
}
