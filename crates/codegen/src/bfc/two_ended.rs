//! One pool that two kinds of requests fill from its two ends.
//!
//! ```text
//! 0                                                            limit
//! | lower | hole | lower |          gap          | upper | hole | upper |
//! ```
//!
//! Each kind reuses its own holes only, so that its offsets depend on nothing but its own requests, until the gap is
//! used up. A freed boundary chunk rejoins the gap.

use std::collections::{BTreeMap, BTreeSet};

use memplan_memory::{Alignment, Bytes};

use super::{GRANULE, prefix, rounded, worth_splitting};

/// An end of the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Grows up: collective memory. What it takes is split off exactly, and the lowest of equally good holes is taken.
    Lower,
    /// Grows down: everything else. Holes are split when the rest is worth it, as in [`super::Bfc`], and the highest
    /// of equally good ones is taken.
    Upper,
}

/// The pool.
#[derive(Clone, Debug)]
pub struct TwoEnded {
    /// Where the gap begins.
    gap_start: u64,
    /// Where it ends.
    gap_end: u64,
    /// In use, by address: bytes.
    used: BTreeMap<u64, u64>,
    /// Per end, by address: bytes. No two are neighbors, and none borders on the gap.
    holes: [BTreeMap<u64, u64>; 2],
    /// The same by bytes, then address.
    by_size: [BTreeSet<(u64, u64)>; 2],
}

impl TwoEnded {
    /// A pool in which nothing is allocated; its size is rounded down to [`GRANULE`].
    pub fn new(limit: Bytes) -> TwoEnded {
        TwoEnded {
            gap_start: 0,
            gap_end: limit.0 / GRANULE * GRANULE,
            used: BTreeMap::new(),
            holes: Default::default(),
            by_size: Default::default(),
        }
    }

    /// Serves a request at an end and returns its address; `None` when it fits neither a hole of that end nor the gap.
    pub fn allocate(&mut self, end: End, bytes: Bytes, alignment: Alignment) -> Option<u64> {
        let size = rounded(bytes.0.max(1))?;
        let alignment = alignment.max(Alignment::new(GRANULE).expect("256 is a power of two"));
        self.reuse(end, size, alignment).or_else(|| self.carve(end, size, alignment))
    }

    /// Frees what was allocated at an address. Returns whether there was anything.
    pub fn free(&mut self, address: u64) -> bool {
        let Some(size) = self.used.remove(&address) else { return false };
        let end = if address < self.gap_start { End::Lower } else { End::Upper };
        self.insert_hole(end, address, size);
        true
    }

    /// The gap: where it begins and ends.
    pub fn gap(&self) -> (u64, u64) {
        (self.gap_start, self.gap_end)
    }

    /// What is in use: address and bytes.
    pub fn used(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.used.iter().map(|(&address, &size)| (address, size))
    }

    /// The holes of an end: address and bytes.
    pub fn holes(&self, end: End) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.holes[end as usize].iter().map(|(&address, &size)| (address, size))
    }

    /// Takes the smallest hole that fits.
    fn reuse(&mut self, end: End, size: u64, alignment: Alignment) -> Option<u64> {
        let mut best: Option<(u64, u64)> = None;
        for &(hole, address) in self.by_size[end as usize].range((size, 0)..) {
            if best.is_some_and(|(best, _)| best < hole) {
                break;
            }
            if prefix(address, alignment).checked_add(size).is_some_and(|needed| needed <= hole) {
                best = Some((hole, address));
                if end == End::Lower {
                    break;
                }
            }
        }
        let (hole, address) = best?;
        self.remove_hole(end, address, hole);
        let start = address + prefix(address, alignment);
        let rest = address + hole - start;
        let taken = if end == End::Lower || worth_splitting(rest, size) { size } else { rest };
        self.used.insert(start, taken);
        self.insert_hole(end, address, start - address);
        self.insert_hole(end, start + taken, rest - taken);
        Some(start)
    }

    /// Takes exactly what is needed from the gap; what alignment skips becomes a hole.
    fn carve(&mut self, end: End, size: u64, alignment: Alignment) -> Option<u64> {
        let address = match end {
            End::Lower => self.gap_start.checked_add(prefix(self.gap_start, alignment))?,
            End::Upper => self.gap_end.checked_sub(size)? & !(alignment.bytes() - 1),
        };
        let last = address.checked_add(size)?;
        if address < self.gap_start || last > self.gap_end {
            return None;
        }
        self.used.insert(address, size);
        match end {
            End::Lower => {
                let skipped = std::mem::replace(&mut self.gap_start, last);
                self.insert_hole(end, skipped, address - skipped);
            }
            End::Upper => {
                let skipped = std::mem::replace(&mut self.gap_end, address);
                self.insert_hole(end, last, skipped - last);
            }
        }
        Some(address)
    }

    /// Makes a hole, merged with its neighbors; at the boundary, it becomes part of the gap.
    fn insert_hole(&mut self, end: End, address: u64, size: u64) {
        if size == 0 {
            return;
        }
        let (mut start, mut last) = (address, address + size);
        let holes = &self.holes[end as usize];
        let next = holes.get(&last).map(|&size| (last, size));
        let previous =
            holes.range(..start).next_back().map(|(&a, &s)| (a, s)).filter(|&(a, s)| a + s == start);
        if let Some((address, size)) = next {
            self.remove_hole(end, address, size);
            last += size;
        }
        if let Some((address, size)) = previous {
            self.remove_hole(end, address, size);
            start = address;
        }
        match end {
            End::Lower if last == self.gap_start => self.gap_start = start,
            End::Upper if start == self.gap_end => self.gap_end = last,
            _ => {
                self.holes[end as usize].insert(start, last - start);
                self.by_size[end as usize].insert((last - start, start));
            }
        }
    }

    fn remove_hole(&mut self, end: End, address: u64, size: u64) {
        self.holes[end as usize].remove(&address);
        self.by_size[end as usize].remove(&(size, address));
    }
}
