//! Lanes for items that overlap in time, as trace viewers draw them.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A lane for each range, so that no two ranges of a lane overlap, and as few lanes as can be. Ranges are half-open and
/// come in the order of their starts. Takes time n log n.
pub(super) fn lanes(ranges: impl IntoIterator<Item = (u32, u32)>) -> Vec<u32> {
    let mut busy: BinaryHeap<Reverse<(u32, u32)>> = BinaryHeap::new();
    let mut free: BinaryHeap<Reverse<u32>> = BinaryHeap::new();
    let mut n = 0;
    let assign = |(from, to): (u32, u32)| {
        while let Some(&Reverse((end, lane))) = busy.peek()
            && end <= from
        {
            busy.pop();
            free.push(Reverse(lane));
        }
        let lane = free.pop().map_or_else(
            || {
                n += 1;
                n - 1
            },
            |Reverse(lane)| lane,
        );
        busy.push(Reverse((to, lane)));
        lane
    };
    ranges.into_iter().map(assign).collect()
}

#[cfg(test)]
mod tests {
    use super::lanes;

    #[test]
    fn lanes_are_used_again() {
        assert_eq!(lanes([(0, 4), (1, 2), (2, 5), (4, 6), (5, 6)]), [0, 1, 1, 0, 1]);
        assert!(lanes([]).is_empty());
    }
}
