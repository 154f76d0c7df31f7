//! Sets of instants.

use crate::LiveRange;

/// The union of ranges as disjoint, ascending ones. Takes time n log n.
pub fn union_of_ranges(mut ranges: Vec<LiveRange>) -> Vec<LiveRange> {
    ranges.sort_unstable();
    ranges.dedup_by(|next, last| {
        let joins = next.start <= last.end;
        if joins {
            last.end = last.end.max(next.end);
        }
        joins
    });
    ranges
}
