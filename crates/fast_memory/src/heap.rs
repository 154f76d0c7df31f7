//! Fast memory as a heap over time: which addresses are free during a range of instants.

use memplan_analysis::{LiveRange, Time};
use smallvec::SmallVec;

/// How many instants one list of chunks is for.
const STEP: Time = 64;

/// Bytes that are taken during a range of instants.
#[derive(Clone, Copy, Debug)]
struct Chunk {
    range: LiveRange,
    offset: u64,
    end: u64,
}

/// A memory of limited size.
#[derive(Clone, Debug)]
pub(crate) struct Heap {
    limit: u64,
    /// For every [`STEP`] instants: chunks taken from before the first of them.
    before: Vec<Vec<Chunk>>,
    /// For every [`STEP`] instants: chunks taken from one of them on.
    from: Vec<Vec<Chunk>>,
}

impl Heap {
    /// An empty memory, from instant 0 up to `end`.
    pub(crate) fn new(limit: u64, end: Time) -> Heap {
        let steps = (end / STEP + 1) as usize;
        Heap { limit, before: vec![Vec::new(); steps], from: vec![Vec::new(); steps] }
    }

    /// The smallest hole that bytes fit into during a range, of those the lowest: XLA's best fit. Linear in the chunks that are
    /// taken during the range.
    pub(crate) fn find(&self, range: LiveRange, bytes: u64) -> Option<u64> {
        let mut taken = self.taken(range);
        taken.sort_unstable();
        let mut best: Option<(u64, u64)> = None;
        let mut free_from = 0;
        for (offset, end) in taken.into_iter().chain([(self.limit, self.limit)]) {
            let hole = offset.saturating_sub(free_from);
            if hole >= bytes && best.is_none_or(|(least, _)| hole < least) {
                best = Some((hole, free_from));
            }
            free_from = free_from.max(end);
        }
        best.map(|(_, offset)| offset)
    }

    /// Takes bytes at an offset during a range.
    pub(crate) fn take(&mut self, range: LiveRange, offset: u64, bytes: u64) {
        if range.start >= range.end {
            return;
        }
        let chunk = Chunk { range, offset, end: offset + bytes };
        let (first, last) = (range.start / STEP, (range.end - 1) / STEP);
        self.from[first as usize].push(chunk);
        for step in first + 1..=last {
            self.before[step as usize].push(chunk);
        }
    }

    /// The offsets and ends of chunks that are taken at some instant of a range.
    fn taken(&self, range: LiveRange) -> SmallVec<[(u64, u64); 64]> {
        if range.start >= range.end {
            return SmallVec::new();
        }
        let (first, last) = ((range.start / STEP) as usize, ((range.end - 1) / STEP) as usize);
        let later = self.from[first..=last].iter().flatten();
        let all = self.before[first].iter().chain(later);
        all.filter(|chunk| chunk.range.interferes(&range)).map(|chunk| (chunk.offset, chunk.end)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: Time, end: Time) -> LiveRange {
        LiveRange { start, end }
    }

    #[test]
    fn the_smallest_hole_is_found() {
        let mut heap = Heap::new(100, 1000);
        heap.take(range(0, 900), 10, 20);
        heap.take(range(0, 900), 35, 25);
        assert_eq!(heap.find(range(5, 700), 5), Some(30));
        assert_eq!(heap.find(range(5, 700), 10), Some(0));
        assert_eq!(heap.find(range(5, 700), 11), Some(60));
        assert_eq!(heap.find(range(5, 700), 41), None);
        assert_eq!(heap.find(range(900, 1000), 100), Some(0), "later, all is free");
    }

    #[test]
    fn whatever_is_taken_at_some_instant_is_in_the_way() {
        let mut heap = Heap::new(10, 1000);
        heap.take(range(500, 501), 0, 6);
        assert_eq!(heap.find(range(0, 500), 10), Some(0));
        assert_eq!(heap.find(range(0, 501), 5), None);
        assert_eq!(heap.find(range(100, 900), 4), Some(6));
        assert_eq!(heap.find(range(501, 900), 10), Some(0));
        assert_eq!(heap.find(range(700, 700), 10), Some(0), "an empty range");
    }
}
