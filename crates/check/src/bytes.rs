//! Byte ranges: their values, which were written, and which an operation in flight still uses.
//!
//! All tables are keyed by (allocation, first byte) and hold disjoint ranges, so that every question about a slice
//! costs a logarithm and the number of ranges it touches.

use std::collections::BTreeMap;

use memplan_ir::{ComputationId, InstructionId, PositionId};
use memplan_memory::{AllocationId, Bytes, Slice};

/// The value of a byte, or of a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Holder {
    /// Never written, as far as this computation knows; of a position: not computed yet.
    Nothing,
    /// An immediate in code: a constant small enough to need no memory, or a parameter that is always one.
    Embedded(PositionId),
    /// The value that was defined at a position.
    Value(PositionId),
    /// A tuple's table with certain entries (see `Facts::table`).
    Table(u32),
    /// Leftovers of an instruction's scratch memory.
    Scratch(InstructionId),
    /// Leftovers of a called computation.
    LeftBy(ComputationId),
}

type Key = (AllocationId, u64);

/// The value of every byte.
#[derive(Default)]
pub(crate) struct Contents {
    ranges: BTreeMap<Key, (u64, Holder)>,
}

impl Contents {
    /// The first range within a slice that holds something else than `expected`.
    pub(crate) fn find_other(&self, slice: &Slice, expected: Holder) -> Option<(Slice, Holder)> {
        let (allocation, start, end) = bounds(slice);
        if start == end {
            return None;
        }
        let mut at = start;
        let first = self.ranges.range(..=(allocation, start)).next_back();
        let first = first.filter(|((a, _), (range_end, _))| *a == allocation && *range_end > start);
        let from = first.map_or((allocation, start), |(key, _)| *key);
        for (&(_, range_start), &(range_end, holder)) in self.ranges.range(from..(allocation, end)) {
            if range_start > at {
                return Some((piece(allocation, at, range_start), Holder::Nothing));
            }
            if holder != expected {
                return Some((piece(allocation, at, range_end.min(end)), holder));
            }
            at = range_end;
        }
        (at < end).then(|| (piece(allocation, at, end), Holder::Nothing))
    }

    /// The value of a slice's first byte.
    pub(crate) fn first(&self, slice: &Slice) -> Holder {
        let (allocation, start, _) = bounds(slice);
        match self.ranges.range(..=(allocation, start)).next_back() {
            Some(((a, _), &(end, holder))) if *a == allocation && end > start => holder,
            _ => Holder::Nothing,
        }
    }

    /// Makes all bytes of a slice hold `holder`.
    pub(crate) fn write(&mut self, slice: &Slice, holder: Holder) {
        let (allocation, start, end) = bounds(slice);
        if start == end {
            return;
        }
        if let Some(range) = self.ranges.get_mut(&(allocation, start))
            && range.0 == end
        {
            range.1 = holder;
            return;
        }
        cut(&mut self.ranges, allocation, start);
        cut(&mut self.ranges, allocation, end);
        remove_between(&mut self.ranges, allocation, start, end);
        self.ranges.insert((allocation, start), (end, holder));
    }
}

/// Which bytes were written.
#[derive(Default, Debug)]
pub(crate) struct Written {
    ranges: BTreeMap<Key, u64>,
}

impl Written {
    /// Adds the bytes of a slice.
    pub(crate) fn add(&mut self, slice: &Slice) {
        let (allocation, mut start, mut end) = bounds(slice);
        if start == end {
            return;
        }
        // Neighbors that touch are swallowed, so that ranges stay disjoint and few.
        while let Some((&(a, s), &e)) = self.ranges.range(..=(allocation, end)).next_back() {
            if a != allocation || e < start {
                break;
            }
            if s <= start && e >= end {
                return;
            }
            (start, end) = (start.min(s), end.max(e));
            self.ranges.remove(&(a, s));
        }
        self.ranges.insert((allocation, start), end);
    }

    /// Whether any byte of a slice was written.
    pub(crate) fn touches(&self, slice: &Slice) -> bool {
        let (allocation, start, end) = bounds(slice);
        let last = self.ranges.range(..(allocation, end)).next_back();
        last.is_some_and(|(&(a, _), &range_end)| a == allocation && start < range_end)
    }

    /// The ranges, in order.
    pub(crate) fn slices(&self) -> impl ExactSizeIterator<Item = Slice> {
        self.ranges.iter().map(|(&(allocation, start), &end)| piece(allocation, start, end))
    }
}

/// Which bytes operations in flight use. Each range belongs to the instruction that started the operation.
#[derive(Default)]
pub(crate) struct InFlight {
    /// Sources. Several operations may read one range; the count says how many.
    reads: BTreeMap<Key, (u64, InstructionId, u32)>,
    /// Destinations.
    writes: BTreeMap<Key, (u64, InstructionId)>,
}

impl InFlight {
    /// The operation that still writes somewhere in a slice.
    pub(crate) fn writer(&self, slice: &Slice) -> Option<InstructionId> {
        let (allocation, start, end) = bounds(slice);
        let (&(a, _), &(range_end, owner)) = self.writes.range(..(allocation, end)).next_back()?;
        (a == allocation && range_end > start).then_some(owner)
    }

    /// The operation that still reads or writes somewhere in a slice.
    pub(crate) fn user(&self, slice: &Slice) -> Option<InstructionId> {
        let (allocation, start, end) = bounds(slice);
        let reader = self.reads.range(..(allocation, end)).next_back();
        let reader = reader.filter(|((a, _), (range_end, ..))| *a == allocation && *range_end > start);
        self.writer(slice).or(reader.map(|(_, (_, owner, _))| *owner))
    }

    /// Marks a source. Ranges of valid plans are equal or disjoint; others were reported when they were read.
    pub(crate) fn hold_read(&mut self, slice: &Slice, owner: InstructionId) {
        let (allocation, start, end) = bounds(slice);
        let entry = self.reads.entry((allocation, start)).or_insert((end, owner, 0));
        entry.2 += 1;
    }

    /// Marks a destination.
    pub(crate) fn hold_write(&mut self, slice: &Slice, owner: InstructionId) {
        let (allocation, start, end) = bounds(slice);
        self.writes.insert((allocation, start), (end, owner));
    }

    /// Takes back [`InFlight::hold_read`].
    pub(crate) fn release_read(&mut self, slice: &Slice) {
        let (allocation, start, _) = bounds(slice);
        if let Some(entry) = self.reads.get_mut(&(allocation, start)) {
            entry.2 -= 1;
            if entry.2 == 0 {
                self.reads.remove(&(allocation, start));
            }
        }
    }

    /// Takes back [`InFlight::hold_write`].
    pub(crate) fn release_write(&mut self, slice: &Slice) {
        let (allocation, start, _) = bounds(slice);
        self.writes.remove(&(allocation, start));
    }
}

/// Splits the range that covers `at` there.
fn cut(ranges: &mut BTreeMap<Key, (u64, Holder)>, allocation: AllocationId, at: u64) {
    let Some((&(a, start), range)) = ranges.range_mut(..(allocation, at)).next_back() else { return };
    if a == allocation && start < at && range.0 > at {
        let (end, holder) = *range;
        range.0 = at;
        ranges.insert((allocation, at), (end, holder));
    }
}

fn remove_between(ranges: &mut BTreeMap<Key, (u64, Holder)>, allocation: AllocationId, start: u64, end: u64) {
    while let Some((&key, _)) = ranges.range((allocation, start)..(allocation, end)).next() {
        ranges.remove(&key);
    }
}

fn bounds(slice: &Slice) -> (AllocationId, u64, u64) {
    (slice.allocation, slice.offset.0, slice.offset.0.saturating_add(slice.size.0))
}

fn piece(allocation: AllocationId, start: u64, end: u64) -> Slice {
    Slice { allocation, offset: Bytes(start), size: Bytes(end - start) }
}

#[cfg(test)]
mod tests {
    use cranelift_entity::EntityRef;

    use super::*;

    fn slice(start: u64, end: u64) -> Slice {
        piece(AllocationId::new(0), start, end)
    }

    fn value(i: usize) -> Holder {
        Holder::Value(PositionId::new(i))
    }

    /// Against one holder per byte.
    #[test]
    fn contents_agree_with_bytes() {
        let mut model = [Holder::Nothing; 32];
        let mut contents = Contents::default();
        let mut seed = 1u64;
        let mut random = |n: u64| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) % n
        };
        for i in 0..2000 {
            let start = random(32);
            let end = start + random(33 - start);
            if i % 3 == 0 {
                contents.write(&slice(start, end), value(i));
                model[start as usize..end as usize].fill(value(i));
            }
            // Nobody reads bytes that were never written.
            let expected = match model[random(32) as usize] {
                Holder::Nothing => value(usize::MAX >> 40),
                held => held,
            };
            let other = model[start as usize..end as usize].iter().position(|&held| held != expected);
            let found = contents.find_other(&slice(start, end), expected);
            assert_eq!(found.map(|(bytes, _)| bytes.offset.0 - start), other.map(|i| i as u64));
            if let Some((bytes, holder)) = found {
                let range = bytes.offset.0 as usize..bytes.end().0 as usize;
                assert!(range.end <= end as usize && model[range].iter().all(|&held| held == holder));
            }
            if start < 32 {
                assert_eq!(contents.first(&slice(start, start + 1)), model[start as usize]);
            }
        }
    }

    #[test]
    fn written_ranges_merge_where_they_touch() {
        let mut written = Written::default();
        for (start, end) in [(0, 4), (8, 12), (20, 24), (4, 8), (10, 21), (40, 40)] {
            written.add(&slice(start, end));
        }
        assert_eq!(written.slices().collect::<Vec<_>>(), [slice(0, 24)]);
    }

    #[test]
    fn flights_are_seen_from_any_overlapping_slice() {
        let (a, b) = (InstructionId::new(1), InstructionId::new(2));
        let mut flights = InFlight::default();
        flights.hold_read(&slice(0, 8), a);
        flights.hold_read(&slice(0, 8), b);
        flights.hold_write(&slice(16, 24), a);
        assert_eq!(flights.writer(&slice(0, 16)), None);
        assert_eq!(flights.writer(&slice(20, 21)), Some(a));
        assert_eq!(flights.user(&slice(7, 9)), Some(a));
        flights.release_read(&slice(0, 8));
        assert!(flights.user(&slice(7, 9)).is_some());
        flights.release_read(&slice(0, 8));
        flights.release_write(&slice(16, 24));
        assert_eq!(flights.user(&slice(0, 32)), None);
    }
}
