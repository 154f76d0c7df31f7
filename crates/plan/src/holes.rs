//! Holes: bytes of results before they are written, and of donated parameters after they are read, used as scratch.
//!
//! ```text
//!   address            the result's allocation exists for the whole run,
//!     ^  +---+ +-----------+       but holds the result only at the end
//!     |  | t | |  result   |
//!     |  |   | |           |       temps that make the arena's peak and fit go in there
//!     +--+---+-+-----------+--> time
//! ```
//!
//! The arena is as large as its busiest instant. So the largest temp live at the peak that fits some hole moves there,
//! and this repeats with the new peak until nothing at the peak fits.

use cranelift_entity::{PrimaryMap, entity_impl};
use memplan_program::{LiveRange, Time};
use memplan_units::{Alignment, AllocationId, Bytes, MemorySpaceId};

/// An allocation with room in it.
#[derive(Clone, Debug)]
pub(crate) struct Bin {
    pub(crate) allocation: AllocationId,
    pub(crate) space: MemorySpaceId,
    pub(crate) size: Bytes,
    pub(crate) alignment: Alignment,
    /// When its owner is in it, which takes all of it: disjoint, ascending.
    pub(crate) busy: Vec<LiveRange>,
}

/// A temp that might move into a hole.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate<'a> {
    pub(crate) space: MemorySpaceId,
    pub(crate) size: Bytes,
    /// Its alignment in addition to that of its space.
    pub(crate) alignment: Alignment,
    /// When it is live: disjoint, ascending.
    pub(crate) busy: &'a [LiveRange],
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct BinId(u32);
entity_impl!(BinId, "bin");

/// How hard to look for room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HoleOptions {
    /// Most temps and bins to look at in all: each move looks for temps live at the peak and for a bin with room, and later
    /// moves save ever less. By default about a tenth of a second.
    pub looks: usize,
    /// Most bins to try for one temp, and temps of one peak to compare: keeps one step from being quadratic in programs
    /// with very many results.
    pub tries: usize,
}

impl Default for HoleOptions {
    fn default() -> HoleOptions {
        HoleOptions { looks: 20_000_000, tries: 1024 }
    }
}

/// Chooses temps for holes: (candidate, allocation, offset).
pub(crate) fn place(
    bins: PrimaryMap<BinId, Bin>,
    candidates: &[Candidate<'_>],
    end: Time,
    options: &HoleOptions,
) -> Vec<(usize, AllocationId, Bytes)> {
    let mut placed = Vec::new();
    let mut spaces: Vec<MemorySpaceId> = bins.values().map(|bin| bin.space).collect();
    spaces.sort_unstable();
    spaces.dedup();
    for space in spaces {
        let mut bins: Vec<Filled<'_>> = bins
            .values()
            .filter(|bin| bin.space == space)
            .map(|bin| Filled { bin, guests: Vec::new() })
            .collect();
        bins.retain(|bin| bin.has_hole(end));
        bins.sort_by_key(|filled| filled.bin.size);
        let largest = bins.last().map_or(Bytes::ZERO, |filled| filled.bin.size);
        let mut curve = Curve::new(end, candidates.iter().filter(|c| c.space == space));
        let mut waiting: Vec<usize> = (0..candidates.len())
            .filter(|&i| candidates[i].space == space && candidates[i].size <= largest)
            .collect();
        waiting.sort_by_key(|&i| std::cmp::Reverse(candidates[i].size));
        // A storage that fits nowhere now fits nowhere later, since holes only fill up.
        let mut is_decided = vec![false; candidates.len()];
        let mut looks = 0;
        while looks < options.looks {
            looks += waiting.len();
            let peak = curve.peak();
            let mut best: Option<(u32, usize, Hole)> = None;
            let mut n_tried = 0;
            for &i in &waiting {
                // The largest that fits moves; among equals, the one that is live at most of the instants at the peak.
                if best.as_ref().is_some_and(|(_, b, _)| candidates[*b].size > candidates[i].size)
                    || n_tried > options.tries
                {
                    break;
                }
                if is_decided[i] || !is_live_at(candidates[i].busy, peak) {
                    continue;
                }
                n_tried += 1;
                match find_hole(&bins, candidates, i, options.tries, &mut looks) {
                    None => is_decided[i] = true,
                    Some(hole) => {
                        let n_peaks = curve.peaks_during(candidates[i].busy);
                        if best.as_ref().is_none_or(|(most, ..)| n_peaks > *most) {
                            best = Some((n_peaks, i, hole));
                        }
                    }
                }
            }
            let Some((_, i, hole)) = best else { break };
            is_decided[i] = true;
            curve.remove(&candidates[i]);
            bins[hole.bin].guests.push((i, hole.offset, hole.offset + candidates[i].size));
            placed.push((i, bins[hole.bin].bin.allocation, hole.offset));
            if placed.len().is_multiple_of(64) {
                waiting.retain(|&i| !is_decided[i]);
            }
        }
    }
    placed
}

/// A bin with its contents.
struct Filled<'a> {
    bin: &'a Bin,
    /// Candidate, offset, end.
    guests: Vec<(usize, Bytes, Bytes)>,
}

impl Filled<'_> {
    fn has_hole(&self, end: Time) -> bool {
        let busy: Time = self.bin.busy.iter().map(|range| range.end.min(end) - range.start.min(end)).sum();
        busy < end
    }

    /// The lowest offset at which a candidate fits among the guests.
    fn lowest_fit(&self, candidates: &[Candidate<'_>], candidate: &Candidate<'_>) -> Option<Bytes> {
        let mut taken: Vec<(Bytes, Bytes)> = self
            .guests
            .iter()
            .filter(|(guest, ..)| interfere(candidates[*guest].busy, candidate.busy))
            .map(|&(_, start, end)| (start, end))
            .collect();
        taken.sort_unstable();
        let mut offset = Bytes::ZERO;
        for (start, end) in taken {
            if offset.checked_add(candidate.size)? <= start {
                break;
            }
            offset = offset.max(end.align_up(self.bin.alignment));
        }
        (offset.checked_add(candidate.size)? <= self.bin.size).then_some(offset)
    }
}

/// Room for a candidate.
#[derive(Clone, Copy, Debug)]
struct Hole {
    bin: usize,
    offset: Bytes,
}

/// Room in the smallest bin that has some for a candidate. Counts the bins that it looks at.
fn find_hole(
    bins: &[Filled<'_>],
    candidates: &[Candidate<'_>],
    i: usize,
    tries: usize,
    looks: &mut usize,
) -> Option<Hole> {
    let candidate = &candidates[i];
    let first = bins.partition_point(|filled| filled.bin.size < candidate.size);
    bins[first..].iter().enumerate().take(tries).find_map(|(n, filled)| {
        *looks += 1;
        if candidate.alignment > filled.bin.alignment || interfere(&filled.bin.busy, candidate.busy) {
            return None;
        }
        Some(Hole { bin: first + n, offset: filled.lowest_fit(candidates, candidate)? })
    })
}

fn is_live_at(busy: &[LiveRange], time: Time) -> bool {
    let next = busy.partition_point(|range| range.end <= time);
    busy.get(next).is_some_and(|range| range.is_live_at(time))
}

fn interfere(a: &[LiveRange], b: &[LiveRange]) -> bool {
    let (few, many) = if a.len() <= b.len() { (a, b) } else { (b, a) };
    few.iter().any(|range| {
        let next = many.partition_point(|other| other.end <= range.start);
        many.get(next).is_some_and(|other| other.interferes(range))
    })
}

/// Bytes live at every instant, with range updates and the peak in logarithmic time: a segment tree of maxima.
struct Curve {
    leaves: usize,
    nodes: Vec<Highest>,
    /// Added to the whole subtree, and not yet in the maximum of the nodes above.
    pending: Vec<i128>,
}

/// The most bytes within a range of instants, and at how many of them.
#[derive(Clone, Copy, Debug, Default)]
struct Highest {
    bytes: i128,
    count: u32,
}

impl Highest {
    fn or(self, other: Highest) -> Highest {
        match self.bytes.cmp(&other.bytes) {
            std::cmp::Ordering::Less => other,
            std::cmp::Ordering::Greater => self,
            std::cmp::Ordering::Equal => Highest { bytes: self.bytes, count: self.count + other.count },
        }
    }

    fn raised(self, bytes: i128) -> Highest {
        Highest { bytes: self.bytes + bytes, count: self.count }
    }
}

impl Curve {
    fn new<'a>(end: Time, candidates: impl Iterator<Item = &'a Candidate<'a>>) -> Curve {
        let leaves = (end as usize).max(1).next_power_of_two();
        let mut deltas = vec![0i128; leaves + 1];
        for candidate in candidates {
            for range in candidate.busy {
                deltas[range.start as usize] += i128::from(candidate.size.0);
                deltas[(range.end as usize).min(leaves)] -= i128::from(candidate.size.0);
            }
        }
        let mut nodes = vec![Highest::default(); 2 * leaves];
        let mut live = 0;
        for (leaf, delta) in deltas[..leaves].iter().enumerate() {
            live += delta;
            nodes[leaves + leaf] = Highest { bytes: live, count: 1 };
        }
        for node in (1..leaves).rev() {
            nodes[node] = nodes[2 * node].or(nodes[2 * node + 1]);
        }
        Curve { leaves, nodes, pending: vec![0; 2 * leaves] }
    }

    fn highest(&self, node: usize) -> Highest {
        self.nodes[node].raised(self.pending[node])
    }

    /// The first instant with the most bytes.
    fn peak(&self) -> Time {
        let mut node = 1;
        while node < self.leaves {
            let (left, right) = (self.highest(2 * node), self.highest(2 * node + 1));
            node = if left.bytes >= right.bytes { 2 * node } else { 2 * node + 1 };
        }
        (node - self.leaves) as Time
    }

    /// At how many instants of some ranges the most bytes of all are live.
    fn peaks_during(&self, busy: &[LiveRange]) -> u32 {
        let most = self.highest(1).bytes;
        let found = busy.iter().filter_map(|range| self.within(1, 0, self.leaves, range));
        found.filter(|highest| highest.bytes == most).map(|highest| highest.count).sum()
    }

    fn within(&self, node: usize, low: usize, high: usize, range: &LiveRange) -> Option<Highest> {
        let (start, end) = (range.start as usize, range.end as usize);
        if end <= low || high <= start {
            return None;
        }
        if start <= low && high <= end {
            return Some(self.highest(node));
        }
        let middle = low.midpoint(high);
        let halves =
            (self.within(2 * node, low, middle, range), self.within(2 * node + 1, middle, high, range));
        let both = match halves {
            (Some(left), Some(right)) => left.or(right),
            (left, right) => left.or(right)?,
        };
        Some(both.raised(self.pending[node]))
    }

    fn remove(&mut self, candidate: &Candidate<'_>) {
        for range in candidate.busy {
            self.add(1, 0, self.leaves, range, -i128::from(candidate.size.0));
        }
    }

    fn add(&mut self, node: usize, low: usize, high: usize, range: &LiveRange, bytes: i128) {
        let (start, end) = (range.start as usize, range.end as usize);
        if end <= low || high <= start {
            return;
        }
        if start <= low && high <= end {
            self.pending[node] += bytes;
            return;
        }
        let middle = low.midpoint(high);
        self.add(2 * node, low, middle, range, bytes);
        self.add(2 * node + 1, middle, high, range, bytes);
        self.nodes[node] = self.highest(2 * node).or(self.highest(2 * node + 1));
    }
}
