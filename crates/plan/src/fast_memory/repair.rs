//! Repair of a packing that is higher than the memory: what lies beyond its end is moved down, and takes the room of
//! what saves less; or it goes itself.
//!
//! What is left has a packing that fits, the old one with a few things moved, and the next packing is likely to find
//! that or a better one.

use memplan_analysis::LiveRange;

/// Where in fast memory the packing put something, and when it is there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// Whose it is.
    pub(super) candidate: usize,
    pub(super) offset: u64,
    pub(super) end: u64,
    /// In the time of the module that was packed.
    pub(super) range: LiveRange,
}

/// A candidate that has to go, and the one that it has to go for: itself, where nothing that saves less is in its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Loss {
    pub(super) candidate: usize,
    pub(super) to: usize,
}

/// Which candidates have to go, so that what is left fits below `capacity`; `saved` is what each is worth. In time
/// `k n log n` for `k` things beyond the end.
pub(super) fn repair(mut places: Vec<Place>, capacity: u64, saved: impl Fn(usize) -> f64) -> Vec<Loss> {
    let mut beyond: Vec<usize> = (0..places.len()).filter(|&p| places[p].end > capacity).collect();
    beyond.sort_by(|&a, &b| {
        let (a, b) = (&places[a], &places[b]);
        saved(b.candidate).total_cmp(&saved(a.candidate)).then(a.candidate.cmp(&b.candidate))
    });
    let mut losses: Vec<Loss> = Vec::new();
    for p in beyond {
        let place = places[p];
        let is_lost = |candidate: usize| losses.iter().any(|loss| loss.candidate == candidate);
        if is_lost(place.candidate) {
            continue;
        }
        let others: Vec<Place> = places
            .iter()
            .filter(|other| other.candidate != place.candidate && !is_lost(other.candidate))
            .filter(|other| other.end <= capacity && other.range.interferes(&place.range))
            .copied()
            .collect();
        match cheapest_offset(&others, place.end - place.offset, capacity, &saved) {
            Some((offset, cost)) if cost < saved(place.candidate) => {
                let end = offset + (place.end - place.offset);
                for other in others.iter().filter(|other| other.offset < end && offset < other.end) {
                    if !losses.iter().any(|loss| loss.candidate == other.candidate) {
                        losses.push(Loss { candidate: other.candidate, to: place.candidate });
                    }
                }
                places[p] = Place { offset, end, ..place };
            }
            _ => losses.push(Loss { candidate: place.candidate, to: place.candidate }),
        }
    }
    losses
}

/// The offset at which something of a size is in the way of what saves least, and how much that saves; the lowest of
/// equals. `None` when it is larger than the memory.
fn cheapest_offset(
    others: &[Place],
    size: u64,
    capacity: u64,
    saved: &impl Fn(usize) -> f64,
) -> Option<(u64, f64)> {
    let last = capacity.checked_sub(size)?;
    // At which offsets it meets another: from just behind `other.offset - size` to just before `other.end`.
    let mut changes: Vec<(u64, f64)> = Vec::with_capacity(2 * others.len());
    for other in others {
        changes.push(((other.offset + 1).saturating_sub(size), saved(other.candidate)));
        changes.push((other.end, -saved(other.candidate)));
    }
    changes.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
    let mut cost = 0.0;
    let mut best: Option<(u64, f64)> = None;
    let mut at = 0;
    let mut rest = changes.iter().peekable();
    loop {
        while let Some(&(_, change)) = rest.next_if(|(offset, _)| *offset <= at) {
            cost += change;
        }
        if best.is_none_or(|(_, least)| cost < least) {
            best = Some((at, cost));
        }
        match rest.peek() {
            Some(&&(next, _)) if next <= last => at = next,
            _ => return best,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(candidate: usize, offset: u64, end: u64, time: (u32, u32)) -> Place {
        Place { candidate, offset, end, range: LiveRange { start: time.0, end: time.1 } }
    }

    /// Candidates are worth their numbers.
    #[track_caller]
    fn check(places: Vec<Place>, capacity: u64, expected: &[(usize, usize)]) {
        let losses = repair(places, capacity, |candidate| candidate as f64);
        let losses: Vec<(usize, usize)> = losses.iter().map(|loss| (loss.candidate, loss.to)).collect();
        assert_eq!(losses, expected);
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
        // What is there at other times is in nobody's way.
        check(vec![place(1, 0, 16, (0, 3)), place(7, 16, 24, (3, 5))], 16, &[]);
    }

    #[test]
    fn one_after_the_other() {
        // Moved down, 9 is in the way of 8, which has nowhere left to go.
        let all = vec![place(9, 16, 32, (0, 9)), place(8, 32, 40, (0, 9)), place(1, 0, 16, (0, 9))];
        check(all, 16, &[(1, 9), (8, 8)]);
    }
}
