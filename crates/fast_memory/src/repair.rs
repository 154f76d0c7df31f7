//! Repairs a packing that exceeds the memory: a value beyond the end moves down and ejects values that save less, or is
//! ejected itself.
//!
//! No value moves into a kernel's scratch. If scratch moves, it ejects the values that save least.
//!
//! For the remaining values, a packing that fits exists: the old one with a few values moved. The next packing will
//! likely find this one or a better one.

use memplan_analysis::{LiveRange, Time};
use rustc_hash::FxHashSet;

/// An address in fast memory, and when it is in use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    /// The candidate; `None`: scratch of a kernel.
    pub(crate) candidate: Option<usize>,
    pub(crate) offset: u64,
    pub(crate) end: u64,
    /// In the time of the module that was packed.
    pub(crate) range: LiveRange,
}

/// A candidate that is ejected, and in favour of which other; of itself, where nothing that saves less is in its way, and
/// where it is ejected in favour of scratch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ejected {
    pub(crate) candidate: usize,
    pub(crate) in_favour_of: usize,
}

/// Which candidates are ejected, so that what remains fits below `capacity`; `saved` is what each saves. In time
/// `n log n`, and `m log m` for each thing beyond the end that is there together with `m` others.
pub(crate) fn repair(mut places: Vec<Place>, capacity: u64, saved: impl Fn(usize) -> f64) -> Vec<Ejected> {
    let worth = |place: &Place| place.candidate.map_or(f64::INFINITY, &saved);
    let mut beyond: Vec<usize> = (0..places.len()).filter(|&p| places[p].end > capacity).collect();
    beyond.sort_by(|&a, &b| {
        let (a, b) = (&places[a], &places[b]);
        worth(b).total_cmp(&worth(a)).then(a.candidate.cmp(&b.candidate))
    });
    let by_time = ByTime::new(&places);
    let mut ejected: Vec<Ejected> = Vec::new();
    let mut gone: FxHashSet<usize> = FxHashSet::default();
    for p in beyond {
        let place = places[p];
        let is_gone = |place: &Place| place.candidate.is_some_and(|candidate| gone.contains(&candidate));
        if is_gone(&place) {
            continue;
        }
        let others: Vec<Place> = by_time
            .during(place.range)
            .into_iter()
            .map(|p| places[p])
            .filter(|other| other.candidate != place.candidate && !is_gone(other) && other.end <= capacity)
            .collect();
        match cheapest_offset(&others, place.end - place.offset, capacity, &saved) {
            Some((offset, cost)) if cost < worth(&place) => {
                let end = offset + (place.end - place.offset);
                let in_the_way = others.iter().filter(|other| other.offset < end && offset < other.end);
                for other in in_the_way.filter_map(|other| other.candidate) {
                    if gone.insert(other) {
                        ejected.push(Ejected {
                            candidate: other,
                            in_favour_of: place.candidate.unwrap_or(other),
                        });
                    }
                }
                places[p] = Place { offset, end, ..place };
            }
            _ => {
                gone.extend(place.candidate);
                ejected
                    .extend(place.candidate.map(|candidate| Ejected { candidate, in_favour_of: candidate }));
            }
        }
    }
    ejected
}

/// An interval tree of places: in order of their start, with the latest end below each node.
struct ByTime {
    /// Start and number of each place.
    starts: Vec<(Time, usize)>,
    /// In heap order: entry 1 is the root, leaf `n + i` the end of the place that starts `i`th.
    latest: Vec<Time>,
    n: usize,
}

impl ByTime {
    fn new(places: &[Place]) -> ByTime {
        let mut starts: Vec<(Time, usize)> =
            places.iter().enumerate().map(|(p, place)| (place.range.start, p)).collect();
        starts.sort_unstable();
        let n = starts.len().next_power_of_two();
        let mut latest = vec![0; 2 * n];
        for (leaf, &(_, p)) in latest[n..].iter_mut().zip(&starts) {
            *leaf = places[p].range.end;
        }
        for node in (1..n).rev() {
            latest[node] = latest[2 * node].max(latest[2 * node + 1]);
        }
        ByTime { starts, latest, n }
    }

    /// The numbers of the places that are there during a range, ascending.
    fn during(&self, range: LiveRange) -> Vec<usize> {
        let end = self.starts.partition_point(|&(start, _)| start < range.end);
        let mut found = Vec::new();
        // Nodes and their first leaves.
        let mut open = vec![(1, 0, self.n)];
        while let Some((node, first, width)) = open.pop() {
            if first >= end || self.latest[node] <= range.start {
                continue;
            }
            if width == 1 {
                found.push(self.starts[first].1);
                continue;
            }
            let half = width / 2;
            open.extend([(2 * node, first, half), (2 * node + 1, first + half, half)]);
        }
        found.sort_unstable();
        found
    }
}

/// The offset for this size whose conflicts save least, with their savings; the lowest of equals. `None` if nothing of
/// this size fits beside the scratch.
fn cheapest_offset(
    others: &[Place],
    size: u64,
    capacity: u64,
    saved: &impl Fn(usize) -> f64,
) -> Option<(u64, f64)> {
    let last = capacity.checked_sub(size)?;
    // At which offsets it meets another: from just behind `other.offset - size` to just before `other.end`. There it
    // costs what the other saves, or meets one more scratch.
    let mut changes: Vec<(u64, f64, i32)> = Vec::with_capacity(2 * others.len());
    for other in others {
        let (cost, scratch) = other.candidate.map_or((0.0, 1), |candidate| (saved(candidate), 0));
        changes.push(((other.offset + 1).saturating_sub(size), cost, scratch));
        changes.push((other.end, -cost, -scratch));
    }
    changes.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
    let (mut cost, mut scratch) = (0.0, 0);
    let mut best: Option<(u64, f64)> = None;
    let mut at = 0;
    let mut rest = changes.iter().peekable();
    loop {
        while let Some(&(_, saved, met)) = rest.next_if(|(offset, ..)| *offset <= at) {
            cost += saved;
            scratch += met;
        }
        if scratch == 0 && best.is_none_or(|(_, least)| cost < least) {
            best = Some((at, cost));
        }
        match rest.peek() {
            Some(&&(next, ..)) if next <= last => at = next,
            _ => return best,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(candidate: usize, offset: u64, end: u64, time: (u32, u32)) -> Place {
        Place { candidate: Some(candidate), offset, end, range: LiveRange { start: time.0, end: time.1 } }
    }

    /// Candidates are worth their numbers.
    #[track_caller]
    fn check(places: Vec<Place>, capacity: u64, expected: &[(usize, usize)]) {
        let ejected = repair(places, capacity, |candidate| candidate as f64);
        let ejected: Vec<(usize, usize)> = ejected.iter().map(|it| (it.candidate, it.in_favour_of)).collect();
        assert_eq!(ejected, expected);
    }

    #[test]
    fn what_fits_stays() {
        check(vec![place(1, 0, 8, (0, 4)), place(2, 8, 16, (2, 6))], 16, &[]);
    }

    #[test]
    fn what_saves_less_goes() {
        check(vec![place(1, 0, 8, (0, 4)), place(5, 8, 12, (0, 4)), place(3, 12, 20, (2, 6))], 16, &[(1, 3)]);
        check(vec![place(4, 0, 8, (0, 4)), place(5, 8, 12, (0, 4)), place(3, 12, 20, (2, 6))], 16, &[(3, 3)]);
    }

    #[test]
    fn gaps_are_used() {
        // 7 fits between 1 and 2, for nothing.
        check(vec![place(1, 0, 4, (0, 9)), place(2, 12, 16, (0, 9)), place(7, 16, 24, (3, 5))], 16, &[]);
        // Candidates at other times do not conflict.
        check(vec![place(1, 0, 16, (0, 3)), place(7, 16, 24, (3, 5))], 16, &[]);
    }

    #[test]
    fn scratch_stays() {
        let scratch = |end, time| Place { candidate: None, ..place(0, 0, end, time) };
        let scratch_at = |offset, time| Place { candidate: None, ..place(0, offset, offset + 8, time) };
        // 9 is worth more than 1, but not where the scratch is.
        let all = vec![scratch(4, (3, 4)), place(1, 4, 16, (0, 9)), place(9, 16, 28, (3, 5))];
        check(all, 16, &[(1, 9)]);
        let all = vec![scratch(6, (3, 4)), place(1, 6, 16, (0, 9)), place(9, 16, 28, (3, 5))];
        check(all, 16, &[(9, 9)]);
        // It comes first.
        check(vec![place(9, 0, 8, (0, 9)), place(1, 8, 16, (0, 9)), scratch_at(16, (3, 4))], 16, &[(1, 1)]);
        // When no kernel runs that has any, its bytes are free.
        check(vec![scratch(16, (3, 4)), place(9, 16, 28, (4, 5))], 16, &[]);
    }

    #[test]
    fn one_after_the_other() {
        // Moved down, 9 is in the way of 8, for which no place is left.
        let all = vec![place(9, 16, 32, (0, 9)), place(8, 32, 40, (0, 9)), place(1, 0, 16, (0, 9))];
        check(all, 16, &[(1, 9), (8, 8)]);
    }
}
