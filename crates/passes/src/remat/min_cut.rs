//! Minimum cuts of flow networks, by pushing what the source can give towards the sink as far as it goes (push-relabel
//! with exact distances from time to time; Goldberg and Tarjan, J. ACM 35, 1988; Cherkassky and Goldberg, Algorithmica
//! 19, 1997). What cannot reach the sink stays where it is: it makes no difference to the cut. Unlike shortest
//! augmenting paths, this does not take a round for every length of a path, and a deep network has many.

use std::collections::VecDeque;

/// A flow network under construction. Nodes are numbered from 0 in the order they are added.
#[derive(Clone, Debug, Default)]
pub(crate) struct Network {
    /// Edges and their reverses, in pairs: edge `e ^ 1` is the reverse of `e`.
    edges: Vec<Edge>,
    /// The edges that leave each node.
    out: Vec<Vec<u32>>,
}

#[derive(Clone, Copy, Debug)]
struct Edge {
    to: u32,
    capacity: u64,
}

/// More than any cut: an edge that must not be cut.
pub(crate) const UNCUTTABLE: u64 = u64::MAX / 4;

/// How often distances are computed anew before the search gives up. Networks of real programs take a few times.
const MAX_ROUNDS: usize = 400;

/// Nodes that have more than they passed on, first come first served.
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
    pub(crate) fn add_node(&mut self) -> u32 {
        self.out.push(Vec::new());
        self.out.len() as u32 - 1
    }

    pub(crate) fn add_edge(&mut self, from: u32, to: u32, capacity: u64) {
        for (from, to, capacity) in [(from, to, capacity), (to, from, 0)] {
            self.out[from as usize].push(self.edges.len() as u32);
            self.edges.push(Edge { to, capacity });
        }
    }

    /// Of the minimum cuts between two nodes the one nearest to the sink: for each node whether it is on the sink's
    /// side. `None` when every cut goes through an edge that must not be cut, or none is found in reasonable time.
    pub(crate) fn cut_nearest_to_sink(mut self, source: u32, sink: u32) -> Option<Vec<bool>> {
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
        while let Some(node) = queue.pop() {
            let at = node as usize;
            while excess[at] > 0 && distances[at] < n as u32 {
                let Some(&edge) = self.out[at].get(next[at]) else {
                    distances[at] = self.nearest(node, &distances);
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
                next.fill(0);
            }
            if n_rounds > MAX_ROUNDS {
                return None;
            }
        }
        (excess[sink as usize] < u128::from(UNCUTTABLE)).then(|| self.reaches(sink))
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
mod tests {
    use super::*;

    #[track_caller]
    fn check(nodes: u32, edges: &[(u32, u32, u64)], sink_side: &[u32]) {
        let mut network = Network::default();
        (0..nodes).for_each(|_| _ = network.add_node());
        edges.iter().for_each(|&(from, to, capacity)| network.add_edge(from, to, capacity));
        let side = network.cut_nearest_to_sink(0, nodes - 1).expect("there is a cut");
        let on_sink_side: Vec<u32> = (0..nodes).filter(|&node| side[node as usize]).collect();
        assert_eq!(on_sink_side, sink_side);
    }

    #[test]
    fn cuts_the_narrowest_edge_of_a_path() {
        check(4, &[(0, 1, 5), (1, 2, 3), (2, 3, 4)], &[2, 3]);
    }

    #[test]
    fn among_equal_cuts_takes_the_last() {
        check(4, &[(0, 1, 3), (1, 2, 3), (2, 3, 3)], &[3]);
    }

    #[test]
    fn one_source_of_two_values_is_cheaper_than_both() {
        check(4, &[(0, 1, 4), (1, 2, 3), (1, 3, 3), (2, 3, 9)], &[1, 2, 3]);
    }

    #[test]
    fn flow_can_be_taken_back() {
        // The path 0-1-4-5 found first must give way for both 0-1-3-5 and 0-2-4-5.
        let edges = [(0, 1, 1), (0, 2, 1), (1, 4, 1), (1, 3, 1), (2, 4, 1), (3, 5, 1), (4, 5, 1)];
        check(6, &edges, &[5]);
    }

    #[test]
    fn long_and_short_ways_are_cut_together() {
        // A chain from 1 to 9, with a way in of width 2 at each place and a way out of width 1 at every other.
        let mut edges: Vec<(u32, u32, u64)> = (1..9).map(|i| (i, i + 1, 3)).collect();
        edges.extend((1..10).map(|i| (0, i, 2)));
        edges.extend((1..10).filter(|i| i % 2 == 1).map(|i| (i, 10, 1)));
        check(11, &edges, &[10]);
    }

    #[test]
    fn there_may_be_no_cut() {
        let mut network = Network::default();
        (0..2).for_each(|_| _ = network.add_node());
        network.add_edge(0, 1, UNCUTTABLE);
        assert_eq!(network.cut_nearest_to_sink(0, 1), None);
    }
}
