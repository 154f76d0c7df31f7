//! Instants, and ranges of them.

use alloc::vec::Vec;

/// An instant of the run. A program with calls and loops is flattened: instants inside an operation precede the instant
/// of the operation itself, and the body of a loop appears once, however often it runs.
pub type Time = u32;

/// Half-open range of instants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LiveRange {
    /// The instant that writes the value.
    pub start: Time,
    /// One past the last instant that reads it.
    pub end: Time,
}

impl LiveRange {
    /// Whether the value is live at an instant.
    pub fn is_live_at(&self, time: Time) -> bool {
        self.start <= time && time < self.end
    }

    /// Whether the two share an instant.
    pub fn interferes(&self, other: &LiveRange) -> bool {
        self.start < other.end && other.start < self.end
    }
}

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
