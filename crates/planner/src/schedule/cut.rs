//! The least that can be live when a given node runs, and a set of earlier nodes that attains it: a minimum cut.
//!
//! Before node `p`, everything that `p` depends on must have run, and nothing that depends on `p`; every other node may
//! have run or not. A storage costs its bytes when the node that defines it has run and one that touches it has not.
//!
//! ```text
//!   has run                    has not
//!   source -> ancestors(p)     p, descendants(p) -> sink
//!   defining node --bytes--> storage --inf--> each node that touches it
//!   node --inf--> each of its predecessors
//! ```
//!
//! (Max-flow min-cut; the flow is found with Dinic's algorithm.)

use std::collections::VecDeque;
use std::ops::Range;

use super::graph::{Graph, Node};
use super::profile::Profile;

/// More than all bytes of a program.
const INFINITE: u64 = u64::MAX >> 1;
const SOURCE: u32 = 0;
const SINK: u32 = 1;

/// The set found, and how much work it was.
pub(crate) struct Cut {
    /// For each place of the range, whether its node should run before the one in question.
    pub(crate) runs_before: Vec<bool>,
    /// Bytes of the storages across the cut. All that is live, when the range is the whole order.
    pub(crate) bytes: u64,
    /// Edges looked at.
    pub(crate) steps: u64,
}

/// Finds what should have run before the node at `place`, among the nodes at the places of `range`; those before
/// have run, those after have not.
pub(crate) fn least_live(graph: &Graph, profile: &Profile, place: usize, range: Range<usize>) -> Cut {
    let mut vertices = vec![None; graph.len()];
    for (i, &node) in profile.order[range.clone()].iter().enumerate() {
        vertices[node as usize] = Some(i as u32 + 2);
    }
    let at = profile.order[place];
    fix(graph, &mut vertices, at, SOURCE, |node| graph.predecessors.row(node));
    fix(graph, &mut vertices, at, SINK, |node| graph.successors.row(node));
    vertices[at as usize] = Some(SINK);
    // What is outside the range has run or has not.
    let place_of = profile.places();
    let vertex = |node: Node| {
        let outside = if (place_of[node as usize] as usize) < range.start { SOURCE } else { SINK };
        vertices[node as usize].unwrap_or(outside)
    };
    let mut network = Network::new(range.len() + 2);
    // What nothing touches is there from the start to the end.
    let untouched = graph.storages.iter().zip(0..).filter(|&(_, i)| graph.touched_by.row(i).is_empty());
    let mut bytes: u64 = untouched.filter(|(s, _)| s.live_in).map(|(s, _)| s.bytes).sum();
    let mut is_seen = vec![false; graph.storages.len()];
    for &node in &profile.order[range.clone()] {
        for &before in graph.predecessors.row(node) {
            network.add(vertex(node), vertex(before), INFINITE);
        }
        for &storage in graph.touches.row(node) {
            if std::mem::replace(&mut is_seen[storage as usize], true) {
                continue;
            }
            let facts = graph.storages[storage as usize];
            let touched_by = graph.touched_by.row(storage);
            let first = touched_by.iter().copied().min_by_key(|&node| place_of[node as usize]);
            let from = if facts.live_in { SOURCE } else { first.map_or(SOURCE, vertex) };
            let ends = facts.live_out || touched_by.iter().any(|&node| vertex(node) == SINK);
            match (from, ends) {
                (SOURCE, true) => bytes += facts.bytes,
                (SINK, _) => {}
                (from, true) => network.add(from, SINK, facts.bytes),
                (from, false) => {
                    let middle = network.add_vertex();
                    network.add(from, middle, facts.bytes);
                    touched_by.iter().for_each(|&node| network.add(middle, vertex(node), INFINITE));
                }
            }
        }
    }
    let flow = network.saturate();
    let side = network.reached_from_source();
    let runs_before = profile.order[range.clone()].iter().map(|&node| side[vertex(node) as usize]).collect();
    Cut { runs_before, bytes: bytes + flow, steps: network.steps }
}

/// Fixes all that is reached from a node within the range to one side.
fn fix<'g>(
    graph: &'g Graph,
    vertices: &mut [Option<u32>],
    node: Node,
    side: u32,
    next: impl Fn(Node) -> &'g [Node],
) {
    debug_assert!(graph.len() == vertices.len());
    let mut open = vec![node];
    while let Some(node) = open.pop() {
        for &next in next(node) {
            if vertices[next as usize].is_some_and(|vertex| vertex > SINK) {
                vertices[next as usize] = Some(side);
                open.push(next);
            }
        }
    }
}

/// A flow network; the reverse of edge `e` is `e ^ 1`.
struct Network {
    edges_of: Vec<Vec<u32>>,
    to: Vec<u32>,
    room: Vec<u64>,
    steps: u64,
}

impl Network {
    fn new(n: usize) -> Network {
        Network { edges_of: vec![Vec::new(); n], to: Vec::new(), room: Vec::new(), steps: 0 }
    }

    fn add_vertex(&mut self) -> u32 {
        self.edges_of.push(Vec::new());
        self.edges_of.len() as u32 - 1
    }

    fn add(&mut self, from: u32, to: u32, room: u64) {
        // Edges into the source or out of the sink carry nothing.
        if from == to || to == SOURCE || from == SINK {
            return;
        }
        self.edges_of[from as usize].push(self.to.len() as u32);
        self.edges_of[to as usize].push(self.to.len() as u32 + 1);
        self.to.extend([to, from]);
        self.room.extend([room, 0]);
    }

    /// Sends as much as possible from the source to the sink.
    fn saturate(&mut self) -> u64 {
        let mut flow = 0;
        loop {
            let levels = self.levels();
            if levels[SINK as usize] == u32::MAX {
                return flow;
            }
            flow += self.block(&levels);
        }
    }

    /// Distance from the source of each vertex that something can still be sent to.
    fn levels(&mut self) -> Vec<u32> {
        let mut levels = vec![u32::MAX; self.edges_of.len()];
        levels[SOURCE as usize] = 0;
        let mut queue = VecDeque::from([SOURCE]);
        while let Some(vertex) = queue.pop_front() {
            for &edge in &self.edges_of[vertex as usize] {
                self.steps += 1;
                let to = self.to[edge as usize] as usize;
                if self.room[edge as usize] > 0 && levels[to] == u32::MAX {
                    levels[to] = levels[vertex as usize] + 1;
                    queue.push_back(to as u32);
                }
            }
        }
        levels
    }

    /// Fills every shortest way.
    fn block(&mut self, levels: &[u32]) -> u64 {
        let mut next = vec![0usize; self.edges_of.len()];
        let mut way: Vec<u32> = Vec::new();
        let mut flow = 0;
        loop {
            self.steps += 1;
            let at = way.last().map_or(SOURCE, |&edge| self.to[edge as usize]);
            if at == SINK {
                let room = way.iter().map(|&edge| self.room[edge as usize]).min().unwrap_or(0);
                for &edge in &way {
                    self.room[edge as usize] -= room;
                    self.room[edge as usize ^ 1] += room;
                }
                flow += room;
                let full = way.iter().position(|&edge| self.room[edge as usize] == 0).unwrap_or(0);
                way.truncate(full);
                continue;
            }
            let edges = &self.edges_of[at as usize];
            let fits = |&edge: &u32| {
                self.room[edge as usize] > 0
                    && levels[self.to[edge as usize] as usize] == levels[at as usize] + 1
            };
            match edges[next[at as usize]..].iter().position(fits) {
                Some(skipped) => {
                    next[at as usize] += skipped;
                    way.push(edges[next[at as usize]]);
                }
                None if at == SOURCE => return flow,
                None => {
                    way.pop();
                    // The edge that led here is of no more use.
                    let from = way.last().map_or(SOURCE, |&edge| self.to[edge as usize]);
                    next[from as usize] += 1;
                    next[at as usize] = edges.len();
                }
            }
        }
    }

    fn reached_from_source(&mut self) -> Vec<bool> {
        let levels = self.levels();
        levels.into_iter().map(|level| level != u32::MAX).collect()
    }
}
