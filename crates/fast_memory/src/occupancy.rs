//! Occupancy: bytes of fast memory in use at every instant, with range updates and range maxima in logarithmic time.

use memplan_analysis::LiveRange;

/// A segment tree over instants: each node has the most bytes in use below it, and the bytes added to all below it.
#[derive(Clone, Debug)]
pub(crate) struct Occupancy {
    /// Instants, rounded up to a power of two.
    n: usize,
    most: Vec<i64>,
    added: Vec<i64>,
}

impl Occupancy {
    /// Bytes taken at each instant to begin with, in linear time.
    pub(crate) fn new(taken: &[u64]) -> Occupancy {
        let n = taken.len().max(1).next_power_of_two();
        let mut most = vec![0; 2 * n];
        for (leaf, &taken) in most[n..].iter_mut().zip(taken) {
            *leaf = i64::try_from(taken).unwrap_or(i64::MAX / 2);
        }
        for node in (1..n).rev() {
            most[node] = most[2 * node].max(most[2 * node + 1]);
        }
        Occupancy { n, most, added: vec![0; 2 * n] }
    }

    /// Takes bytes during a range.
    pub(crate) fn take(&mut self, range: LiveRange, bytes: u64) {
        self.add(range, bytes as i64);
    }

    /// Gives bytes back.
    pub(crate) fn release(&mut self, range: LiveRange, bytes: u64) {
        self.add(range, -(bytes as i64));
    }

    fn add(&mut self, range: LiveRange, bytes: i64) {
        if range.start < range.end {
            self.add_below(1, 0, self.n, (range.start as usize, range.end as usize), bytes);
        }
    }

    fn add_below(&mut self, node: usize, from: usize, to: usize, (start, end): (usize, usize), bytes: i64) {
        if end <= from || to <= start {
            return;
        }
        if start <= from && to <= end {
            self.most[node] += bytes;
            self.added[node] += bytes;
            return;
        }
        let middle = usize::midpoint(from, to);
        self.add_below(2 * node, from, middle, (start, end), bytes);
        self.add_below(2 * node + 1, middle, to, (start, end), bytes);
        self.most[node] = self.most[2 * node].max(self.most[2 * node + 1]) + self.added[node];
    }

    /// The most bytes taken at an instant of a range; zero for an empty one.
    pub(crate) fn most(&self, range: LiveRange) -> u64 {
        if range.start >= range.end {
            return 0;
        }
        let most = self.most_below(1, 0, self.n, (range.start as usize, range.end as usize));
        u64::try_from(most).unwrap_or(0)
    }

    fn most_below(&self, node: usize, from: usize, to: usize, (start, end): (usize, usize)) -> i64 {
        if end <= from || to <= start {
            return i64::MIN / 2;
        }
        if start <= from && to <= end {
            return self.most[node];
        }
        let middle = usize::midpoint(from, to);
        let left = self.most_below(2 * node, from, middle, (start, end));
        left.max(self.most_below(2 * node + 1, middle, to, (start, end))) + self.added[node]
    }
}
