//! Minimum cuts of flow networks.
//!
//! ```
//! use memplan_min_cut::Network;
//!
//! // Two ways from 0 to 3: over 1 with 2, over 2 with 5.
//! let mut network = Network::with_nodes(4);
//! for (from, to, capacity) in [(0, 1, 2), (1, 3, 4), (0, 2, 5), (2, 3, 7)] {
//!     network.add_edge(from, to, capacity);
//! }
//! let cut = network.cut_nearest_to_sink(0, 3).expect("there is a cut");
//! assert_eq!(cut.capacity, 7);
//! assert_eq!(cut.on_sink_side, [false, true, true, true]);
//! ```
//!
//! The algorithm is push-relabel with global relabeling (Goldberg and Tarjan, J. ACM 35, 1988; Cherkassky and Goldberg,
//! Algorithmica 19, 1997). Only its first phase runs: excess that cannot reach the sink need not return to the source,
//! since that does not affect the cut. Shortest augmenting paths (Dinic) take a round for every length of a path, and
//! the networks of deep programs have paths of many lengths.

use std::collections::VecDeque;

/// A flow network under construction. Nodes are numbered from 0 in the order they are added.
#[derive(Clone, Debug, Default)]
pub struct Network {
    /// Edges and their reverses, in pairs: edge `e ^ 1` is the reverse of `e`.
    edges: Vec<Edge>,
    /// The edges that leave each node.
    out: Vec<Vec<u32>>,
}

/// The minimum cut that is nearest to the sink.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct MinCut {
    /// For each node, whether it is on the sink's side.
    pub on_sink_side: Vec<bool>,
    /// The total capacity of the edges across the cut, which is the maximum flow.
    pub capacity: u64,
    /// Edges that were looked at, as a measure of work that is the same on every machine.
    pub steps: u64,
}

#[derive(Clone, Copy, Debug)]
struct Edge {
    to: u32,
    capacity: u64,
}

/// The capacity of an edge that must not be cut: more than any cut.
pub const UNCUTTABLE: u64 = u64::MAX / 4;

/// The most global relabelings before the search gives up: a limit against hostile networks, since those of real
/// programs take a few.
const MAX_ROUNDS: usize = 400;

/// Nodes with excess flow, first come first served.
struct Queue {
    nodes: VecDeque<u32>,
    is_in: Vec<bool>,
}

impl Queue {
    fn new(n: usize) -> Queue {
        Queue { nodes: VecDeque::new(), is_in: vec![false; n] }
    }

    fn push(&mut self, node: u32) {
        if !std::mem::replace(&mut self.is_in[node as usize], true) {
            self.nodes.push_back(node);
        }
    }

    fn pop(&mut self) -> Option<u32> {
        let node = self.nodes.pop_front()?;
        self.is_in[node as usize] = false;
        Some(node)
    }
}

impl Network {
    /// A network without edges.
    pub fn with_nodes(n: usize) -> Network {
        Network { edges: Vec::new(), out: vec![Vec::new(); n] }
    }

    /// Adds a node and returns its number.
    pub fn add_node(&mut self) -> u32 {
        self.out.push(Vec::new());
        self.out.len() as u32 - 1
    }

    /// Adds an edge.
    ///
    /// # Panics
    /// When there is no such node.
    pub fn add_edge(&mut self, from: u32, to: u32, capacity: u64) {
        for (from, to, capacity) in [(from, to, capacity), (to, from, 0)] {
            self.out[from as usize].push(self.edges.len() as u32);
            self.edges.push(Edge { to, capacity });
        }
    }

    /// Of the minimum cuts between two nodes the one nearest to the sink. `None` when every cut goes through an edge of
    /// [`UNCUTTABLE`] capacity, or none is found in reasonable time. Takes time O(n² √m) at worst, and close to linear on
    /// networks of programs.
    ///
    /// # Panics
    /// When source and sink are one, or not in the network.
    pub fn cut_nearest_to_sink(mut self, source: u32, sink: u32) -> Option<MinCut> {
        assert_ne!(source, sink, "nothing separates a node from itself");
        let n = self.out.len();
        let mut excess = vec![0u128; n];
        let mut queue = Queue::new(n);
        for i in 0..self.out[source as usize].len() {
            let edge = self.out[source as usize][i];
            let Edge { to, capacity } = self.edges[edge as usize];
            self.push(edge, capacity);
            excess[to as usize] += u128::from(capacity);
            if to != sink && capacity > 0 {
                queue.push(to);
            }
        }
        let mut distances = self.distances(source, sink);
        // The next edge of each node to look at: those before it lead nowhere.
        let mut next = vec![0usize; n];
        let (mut n_raised, mut n_rounds) = (0, 0);
        let every_edge = self.edges.len() as u64;
        let mut steps = every_edge;
        while let Some(node) = queue.pop() {
            let at = node as usize;
            while excess[at] > 0 && distances[at] < n as u32 {
                steps += 1;
                let Some(&edge) = self.out[at].get(next[at]) else {
                    distances[at] = self.nearest(node, &distances);
                    steps += self.out[at].len() as u64;
                    (next[at], n_raised) = (0, n_raised + 1);
                    continue;
                };
                let Edge { to, capacity } = self.edges[edge as usize];
                if capacity == 0 || distances[at] != distances[to as usize] + 1 {
                    next[at] += 1;
                    continue;
                }
                let amount = u64::try_from(excess[at]).map_or(capacity, |excess| excess.min(capacity));
                self.push(edge, amount);
                excess[at] -= u128::from(amount);
                excess[to as usize] += u128::from(amount);
                if to != sink {
                    queue.push(to);
                }
            }
            if n_raised >= n {
                (n_raised, n_rounds) = (0, n_rounds + 1);
                distances = self.distances(source, sink);
                steps += every_edge;
                next.fill(0);
            }
            if n_rounds > MAX_ROUNDS {
                return None;
            }
        }
        let capacity = u64::try_from(excess[sink as usize]).ok().filter(|&flow| flow < UNCUTTABLE)?;
        Some(MinCut { on_sink_side: self.reaches(sink), capacity, steps: steps + every_edge })
    }

    fn push(&mut self, edge: u32, amount: u64) {
        self.edges[edge as usize].capacity -= amount;
        self.edges[edge as usize ^ 1].capacity += amount;
    }

    /// The fewest edges from each node to the sink over which something could flow; the number of nodes where there is no
    /// way, and at the source, to which nothing has to return.
    fn distances(&self, source: u32, sink: u32) -> Vec<u32> {
        let n = self.out.len() as u32;
        let mut distances = vec![n; self.out.len()];
        distances[sink as usize] = 0;
        let mut queue = VecDeque::from([sink]);
        while let Some(node) = queue.pop_front() {
            for &edge in &self.out[node as usize] {
                let from = self.edges[edge as usize].to;
                let is_open = self.edges[edge as usize ^ 1].capacity > 0;
                if is_open && from != source && distances[from as usize] == n {
                    distances[from as usize] = distances[node as usize] + 1;
                    queue.push_back(from);
                }
            }
        }
        distances
    }

    /// The distance of a node as that of its neighbors has it.
    fn nearest(&self, node: u32, distances: &[u32]) -> u32 {
        let edges = self.out[node as usize].iter().map(|&edge| self.edges[edge as usize]);
        let open = edges.filter(|edge| edge.capacity > 0).map(|edge| distances[edge.to as usize] + 1);
        open.min().unwrap_or(u32::MAX).min(self.out.len() as u32)
    }

    /// The nodes from which flow could still reach the sink.
    fn reaches(&self, sink: u32) -> Vec<bool> {
        let mut reaches = vec![false; self.out.len()];
        reaches[sink as usize] = true;
        let mut queue = VecDeque::from([sink]);
        while let Some(node) = queue.pop_front() {
            for &edge in &self.out[node as usize] {
                let from = self.edges[edge as usize].to;
                if self.edges[edge as usize ^ 1].capacity > 0 && !reaches[from as usize] {
                    reaches[from as usize] = true;
                    queue.push_back(from);
                }
            }
        }
        reaches
    }
}

#[cfg(test)]
mod tests;
