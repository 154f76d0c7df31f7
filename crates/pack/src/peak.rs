//! When most bytes are live, and which items those are: the first thing to look at if a problem does not fit.

use alloc::vec::Vec;

use crate::{Item, Problem};

/// The time at which most bytes are live.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peak {
    /// The first such time.
    pub time: u64,
    /// The bytes live then; items that share an offset count one by one.
    pub bytes: u128,
    /// The items live then, the largest first.
    pub items: Vec<usize>,
}

impl Problem {
    /// The moment of most live bytes, and the items that hold them; `None` if nothing is ever live. O(n log n).
    pub fn peak(&self) -> Option<Peak> {
        let mut events: Vec<(u64, i128)> = Vec::with_capacity(2 * self.items.len());
        for item in &self.items {
            let size = i128::from(item.size);
            let mut gaps = item.gaps.clone();
            gaps.sort_unstable_by_key(|gap| gap.start);
            let mut from = item.lower;
            for gap in gaps {
                if from < gap.start {
                    events.extend([(from, size), (gap.start, -size)]);
                }
                from = from.max(gap.end);
            }
            if from < item.upper {
                events.extend([(from, size), (item.upper, -size)]);
            }
        }
        events.sort_unstable_by_key(|&(time, _)| time);
        let mut load = 0;
        let mut most = (0, 0);
        for same_time in events.chunk_by(|a, b| a.0 == b.0) {
            load += same_time.iter().map(|(_, change)| change).sum::<i128>();
            if load > most.0 {
                most = (load, same_time[0].0);
            }
        }
        let (bytes, time) = most;
        let is_live = |item: &Item| {
            (item.lower..item.upper).contains(&time) && !item.gaps.iter().any(|gap| gap.contains(&time))
        };
        let mut items: Vec<usize> =
            (0..self.items.len()).filter(|&index| is_live(&self.items[index])).collect();
        items.sort_by_key(|&index| core::cmp::Reverse(self.items[index].size));
        (bytes > 0).then(|| Peak { time, bytes: bytes.unsigned_abs(), items })
    }
}
