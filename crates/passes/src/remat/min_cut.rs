//! Minimum cuts of small flow networks, by Dinic's algorithm (E. A. Dinic, 1970): shortest augmenting paths, all of one
//! length at a time.

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

/// Phases after which the search gives up. The length of the shortest path grows with every phase; networks of real
/// programs take a few dozen.
const MAX_PHASES: usize = 400;

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
        let mut flow: u64 = 0;
        for _ in 0..MAX_PHASES {
            let levels = self.levels(source);
            if levels[sink as usize] == u32::MAX {
                return Some(self.reaches(sink));
            }
            flow = flow.checked_add(self.saturate(source, sink, &levels))?;
            if flow >= UNCUTTABLE {
                return None;
            }
        }
        None
    }

    /// The number of edges on the shortest path from the source to each node; `u32::MAX` where there is none.
    fn levels(&self, source: u32) -> Vec<u32> {
        let mut levels = vec![u32::MAX; self.out.len()];
        levels[source as usize] = 0;
        let mut queue = VecDeque::from([source]);
        while let Some(node) = queue.pop_front() {
            for &edge in &self.out[node as usize] {
                let Edge { to, capacity } = self.edges[edge as usize];
                if capacity > 0 && levels[to as usize] == u32::MAX {
                    levels[to as usize] = levels[node as usize] + 1;
                    queue.push_back(to);
                }
            }
        }
        levels
    }

    /// Pushes flow along shortest paths until none is left. Returns how much.
    fn saturate(&mut self, source: u32, sink: u32, levels: &[u32]) -> u64 {
        let mut next = vec![0usize; self.out.len()];
        let mut path: Vec<u32> = Vec::new();
        let mut pushed: u64 = 0;
        let mut node = source;
        loop {
            if node == sink {
                let room = path.iter().map(|&edge| self.edges[edge as usize].capacity).min().unwrap_or(0);
                pushed = pushed.saturating_add(room);
                for &edge in &path {
                    self.edges[edge as usize].capacity -= room;
                    self.edges[edge as usize ^ 1].capacity += room;
                }
                // Go on from where the path is blocked first.
                let blocked = path.iter().position(|&edge| self.edges[edge as usize].capacity == 0);
                path.truncate(blocked.expect("the narrowest edge is full now"));
                node = path.last().map_or(source, |&edge| self.edges[edge as usize].to);
                continue;
            }
            let Some(&edge) = self.out[node as usize].get(next[node as usize]) else {
                // A dead end: step back, and do not come here again.
                let Some(edge) = path.pop() else { return pushed };
                node = self.edges[edge as usize ^ 1].to;
                next[node as usize] += 1;
                continue;
            };
            let Edge { to, capacity } = self.edges[edge as usize];
            if capacity > 0 && levels[to as usize] == levels[node as usize] + 1 {
                path.push(edge);
                node = to;
            } else {
                next[node as usize] += 1;
            }
        }
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
    fn there_may_be_no_cut() {
        let mut network = Network::default();
        (0..2).for_each(|_| _ = network.add_node());
        network.add_edge(0, 1, UNCUTTABLE);
        assert_eq!(network.cut_nearest_to_sink(0, 1), None);
    }
}
