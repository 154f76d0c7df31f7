//! Live bytes along an order, kept up to date while parts of the order change.

use super::graph::{BufferIndex, Graph, Node};

/// An order with the bytes live at each place, and a tree of maxima over them.
#[derive(Clone, Debug)]
pub(crate) struct Profile {
    pub(crate) order: Vec<Node>,
    /// Bytes live before each place.
    pub(crate) before: Vec<u64>,
    /// First and last place that touches each buffer; live-in ones begin before 0, live-out ones end past the end.
    lives: Vec<(u32, u32)>,
    /// A binary tree in heap order: entry 1 is the root, leaf `leaves + i` the bytes live while place `i` runs.
    most: Vec<u64>,
    leaves: usize,
}

/// Of a buffer in [`Profile::lives`]: live before the first node, or after the last.
const OUTSIDE: u32 = u32::MAX;

impl Profile {
    /// Replays a legal order of all nodes.
    pub(crate) fn new(graph: &Graph, order: Vec<Node>) -> Profile {
        let n = order.len();
        let leaves = n.next_power_of_two();
        let mut profile = Profile {
            order,
            before: vec![0; n + 1],
            lives: vec![(OUTSIDE, 0); graph.buffers.len()],
            most: vec![0; 2 * leaves],
            leaves,
        };
        let mut state = graph.start();
        for place in 0..n {
            let node = profile.order[place];
            profile.before[place] = state.live;
            profile.most[leaves + place] = graph.run(&mut state, node);
            for &buffer in graph.touches.row(node) {
                let life = &mut profile.lives[buffer as usize];
                *life = (life.0.min(place as u32), place as u32);
            }
        }
        profile.before[n] = state.live;
        for (life, buffer) in profile.lives.iter_mut().zip(&graph.buffers) {
            life.0 = if buffer.live_in { OUTSIDE } else { life.0 };
            life.1 = if buffer.live_out { OUTSIDE } else { life.1 };
        }
        (1..leaves).rev().for_each(|i| profile.pull(i));
        profile
    }

    /// The most bytes live.
    pub(crate) fn peak(&self) -> u64 {
        self.most[1].max(self.before[0])
    }

    /// The first place with the most bytes live.
    pub(crate) fn peak_place(&self) -> usize {
        let mut at = 1;
        while at < self.leaves {
            at = if self.most[2 * at] == self.most[at] { 2 * at } else { 2 * at + 1 };
        }
        at - self.leaves
    }

    /// Whether the first and the last node that touch a buffer have places in a range.
    pub(crate) fn ends_inside(&self, buffer: BufferIndex, range: &std::ops::Range<usize>) -> (bool, bool) {
        let (first, last) = self.lives[buffer as usize];
        (range.contains(&(first as usize)), range.contains(&(last as usize)))
    }

    /// The place of each node.
    pub(crate) fn places(&self) -> Vec<u32> {
        let mut places = vec![0; self.order.len()];
        self.order.iter().zip(0..).for_each(|(&node, place)| places[node as usize] = place);
        places
    }

    /// Puts the nodes from a place on into another order.
    pub(crate) fn reorder(&mut self, graph: &Graph, start: usize, nodes: &[Node]) {
        let range = start..start + nodes.len();
        self.order[range.clone()].copy_from_slice(nodes);
        // Lives that begin or end here do so at another place now.
        let mut touched: Vec<(BufferIndex, u32)> = Vec::new();
        for place in range.clone() {
            let row = graph.touches.row(self.order[place]);
            touched.extend(row.iter().map(|&buffer| (buffer, place as u32)));
        }
        touched.sort_unstable();
        for run in touched.chunk_by(|a, b| a.0 == b.0) {
            let (begins, ends) = self.ends_inside(run[0].0, &range);
            let life = &mut self.lives[run[0].0 as usize];
            life.0 = if begins { run[0].1 } else { life.0 };
            life.1 = if ends { run[run.len() - 1].1 } else { life.1 };
        }
        let mut live = self.before[range.start];
        for place in range.clone() {
            let node = self.order[place];
            let dies = |buffer: BufferIndex| self.lives[buffer as usize].1 == place as u32;
            let (during, after) = graph.levels(live, node, dies);
            self.before[place] = live;
            self.most[self.leaves + place] = during;
            live = after;
        }
        debug_assert_eq!(
            live, self.before[range.end],
            "what is live after a window does not depend on its order"
        );
        let (mut first, mut last) = (self.leaves + range.start, self.leaves + range.end - 1);
        while first > 1 {
            (first, last) = (first / 2, last / 2);
            (first..=last).for_each(|i| self.pull(i));
        }
    }

    fn pull(&mut self, i: usize) {
        self.most[i] = self.most[2 * i].max(self.most[2 * i + 1]);
    }
}
