//! An independent checker of packings. It shares no code with the solver, only the problem's definition.
//!
//! A claim is a time span during which a unit (an item, or a group of items at one offset) holds the bytes
//! `offset..offset + size`. A sweep along time keeps the live claims ordered by offset, so a new claim is compared only
//! with its two neighbors. O(n log n).

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

use crate::Problem;

/// How offsets fail to be a packing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// Not one offset for each item.
    #[error("{n_offsets} offsets for {n_items} items")]
    Count {
        /// How many offsets there are.
        n_offsets: usize,
        /// How many items there are.
        n_items: usize,
    },
    /// An offset that is not a multiple of the alignment.
    #[error("item {item} is at {offset}, not a multiple of {alignment}")]
    Misaligned {
        /// The item.
        item: usize,
        /// Its offset.
        offset: u64,
        /// Its alignment.
        alignment: u64,
    },
    /// An item that is not at its fixed offset.
    #[error("item {item} is at {offset} but fixed at {fixed}")]
    Moved {
        /// The item.
        item: usize,
        /// Its offset.
        offset: u64,
        /// The offset it is fixed at.
        fixed: u64,
    },
    /// An item that ends beyond the limit.
    #[error("item {item} at {offset} ends above {limit}")]
    TooHigh {
        /// The item.
        item: usize,
        /// Its offset.
        offset: u64,
        /// The capacity, or the largest address.
        limit: u64,
    },
    /// Members of a group at different offsets.
    #[error("items {first} and {second} share an offset but are at {first_offset} and {second_offset}")]
    Parted {
        /// A member.
        first: usize,
        /// Another member.
        second: usize,
        /// The offset of the first.
        first_offset: u64,
        /// The offset of the second.
        second_offset: u64,
    },
    /// Two interfering items with bytes in common.
    #[error("items {first} and {second} overlap at time {time}")]
    Overlap {
        /// One item (or a member of its group).
        first: usize,
        /// The other.
        second: usize,
        /// The first time both hold the bytes.
        time: u64,
    },
}

/// Checks that `offsets` is a packing of `problem`, within its capacity if it has one, and returns its height.
///
/// # Errors
///
/// A violation, if there is one.
///
/// # Panics
///
/// If a group names an item that does not exist; [`Problem::check`] rules that out.
pub fn validate(problem: &Problem, offsets: &[u64]) -> Result<u64, Violation> {
    let height = check_places(problem, offsets)?;
    let units = units(problem, offsets)?;
    check_overlaps(&claims(problem, offsets, &units))?;
    Ok(height)
}

/// `unit` holds `offset..offset + size` during `lower..upper`.
struct Claim {
    lower: u64,
    upper: u64,
    offset: u64,
    size: u64,
    /// The unit's first item.
    unit: usize,
}

fn check_places(problem: &Problem, offsets: &[u64]) -> Result<u64, Violation> {
    if offsets.len() != problem.items.len() {
        return Err(Violation::Count { n_offsets: offsets.len(), n_items: problem.items.len() });
    }
    let limit = problem.capacity.unwrap_or(u64::MAX);
    let mut height = 0;
    for (index, (item, &offset)) in problem.items.iter().zip(offsets).enumerate() {
        if offset % item.alignment != 0 {
            return Err(Violation::Misaligned { item: index, offset, alignment: item.alignment });
        }
        if let Some(fixed) = item.fixed.filter(|&fixed| fixed != offset) {
            return Err(Violation::Moved { item: index, offset, fixed });
        }
        let end = offset.checked_add(item.size).filter(|&end| item.size == 0 || end <= limit);
        let end = end.ok_or(Violation::TooHigh { item: index, offset, limit })?;
        if item.size > 0 {
            height = height.max(end);
        }
    }
    Ok(height)
}

/// For each item the least item of its group, itself where it is alone.
fn units(problem: &Problem, offsets: &[u64]) -> Result<Vec<usize>, Violation> {
    let mut parent: Vec<usize> = (0..problem.items.len()).collect();
    fn root(parent: &mut [usize], mut item: usize) -> usize {
        while parent[item] != item {
            parent[item] = parent[parent[item]];
            item = parent[item];
        }
        item
    }
    for pair in problem.groups.iter().flat_map(|group| group.windows(2)) {
        let (first, second) = (pair[0], pair[1]);
        if offsets[first] != offsets[second] {
            let (first_offset, second_offset) = (offsets[first], offsets[second]);
            return Err(Violation::Parted { first, second, first_offset, second_offset });
        }
        let (a, b) = (root(&mut parent, first), root(&mut parent, second));
        parent[a.max(b)] = a.min(b);
    }
    Ok((0..problem.items.len()).map(|item| root(&mut parent, item)).collect())
}

fn claims(problem: &Problem, offsets: &[u64], units: &[usize]) -> Vec<Claim> {
    let mut spans: BTreeMap<usize, Vec<(u64, u64, u64)>> = BTreeMap::new();
    for (index, item) in problem.items.iter().enumerate().filter(|(_, item)| item.size > 0) {
        let spans = spans.entry(units[index]).or_default();
        let mut gaps = item.gaps.clone();
        gaps.sort_by_key(|gap| gap.start);
        let mut from = item.lower;
        for gap in gaps {
            if from < gap.start {
                spans.push((from, gap.start, item.size));
            }
            from = from.max(gap.end);
        }
        if from < item.upper {
            spans.push((from, item.upper, item.size));
        }
    }
    let mut claims = Vec::new();
    for (unit, spans) in spans {
        for (lower, upper, size) in profile(&spans) {
            claims.push(Claim { lower, upper, size, offset: offsets[unit], unit });
        }
    }
    claims
}

/// The largest size at each time, as disjoint spans.
fn profile(spans: &[(u64, u64, u64)]) -> Vec<(u64, u64, u64)> {
    if let [span] = spans {
        return vec![*span];
    }
    let mut events: Vec<(u64, bool, u64)> = Vec::new();
    for &(lower, upper, size) in spans {
        events.extend([(lower, true, size), (upper, false, size)]);
    }
    events.sort_unstable();
    let mut live: BTreeMap<u64, usize> = BTreeMap::new();
    let mut out = Vec::new();
    let mut since = 0;
    for (time, starts, size) in events {
        if let Some((&most, _)) = live.last_key_value()
            && since < time
        {
            out.push((since, time, most));
        }
        since = time;
        let count = live.entry(size).or_default();
        if starts {
            *count += 1;
        } else {
            *count -= 1;
            if *count == 0 {
                live.remove(&size);
            }
        }
    }
    out
}

fn check_overlaps(claims: &[Claim]) -> Result<(), Violation> {
    let mut events: Vec<(u64, bool, usize)> = Vec::with_capacity(2 * claims.len());
    for (index, claim) in claims.iter().enumerate() {
        events.extend([(claim.lower, true, index), (claim.upper, false, index)]);
    }
    // At equal times ends (`false`) come first: ranges are half open.
    events.sort_unstable();
    let mut live: BTreeMap<u64, usize> = BTreeMap::new();
    for (time, starts, index) in events {
        let claim = &claims[index];
        if !starts {
            live.remove(&claim.offset);
            continue;
        }
        let below = live.range(..=claim.offset).next_back().map(|(_, &other)| other);
        let above = live.range(claim.offset..).next().map(|(_, &other)| other);
        let overlapping = [below, above].into_iter().flatten().find(|&other| {
            let other = &claims[other];
            other.offset < claim.offset + claim.size && claim.offset < other.offset + other.size
        });
        if let Some(other) = overlapping {
            return Err(Violation::Overlap { first: claims[other].unit, second: claim.unit, time });
        }
        live.insert(claim.offset, index);
    }
    Ok(())
}
