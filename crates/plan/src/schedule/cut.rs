//! The least bytes live when a given node runs, with a set of earlier nodes that attains it: a minimum cut.
//!
//! Everything that node `p` depends on must run before `p`, and nothing that depends on `p`; every other node may run
//! before or after. A buffer costs its bytes if its defining node has run and a node that touches it has not.
//!
//! ```text
//!   has run                    has not
//!   source -> ancestors(p)     p, descendants(p) -> sink
//!   defining node --bytes--> buffer --inf--> each node that touches it
//!   node --inf--> each of its predecessors
//! ```
//!
//! Of the minimal sets, the smallest is chosen: the cut nearest to the source. In the reversed network, this is the cut
//! nearest to the sink.

use std::ops::Range;

use memplan_min_cut::{MinCut, Network, UNCUTTABLE};

use super::graph::{Graph, Node};
use super::profile::Profile;

const SOURCE: u32 = 0;
const SINK: u32 = 1;

/// The set found, and how much work it was.
pub(crate) struct Cut {
    /// For each place of the range, whether its node should run before the one in question.
    pub(crate) runs_before: Vec<bool>,
    /// Bytes of the buffers across the cut. All that is live, when the range is the whole order.
    pub(crate) bytes: u64,
    /// Edges looked at.
    pub(crate) steps: u64,
}

/// Finds what should have run before the node at `place`, among the nodes at the places of `range`; those before
/// have run, those after have not.
/// `None` when no cut is found in reasonable time.
pub(crate) fn least_live(graph: &Graph, profile: &Profile, place: usize, range: Range<usize>) -> Option<Cut> {
    let mut vertices = vec![None; graph.len()];
    for (i, &node) in profile.order[range.clone()].iter().enumerate() {
        vertices[node as usize] = Some(i as u32 + 2);
    }
    let at = profile.order[place];
    fix(graph, &mut vertices, at, SOURCE, |node| graph.predecessors.row(node));
    fix(graph, &mut vertices, at, SINK, |node| graph.successors.row(node));
    vertices[at as usize] = Some(SINK);
    // Nodes outside the range have run or have not.
    let place_of = profile.places();
    let vertex = |node: Node| {
        let outside = if (place_of[node as usize] as usize) < range.start { SOURCE } else { SINK };
        vertices[node as usize].unwrap_or(outside)
    };
    let mut network = Network::with_nodes(range.len() + 2);
    // A buffer that nothing touches is live from the start to the end.
    let untouched = graph.buffers.iter().zip(0..).filter(|&(_, i)| graph.touched_by.row(i).is_empty());
    let mut bytes: u64 = untouched.filter(|(s, _)| s.live_in).map(|(s, _)| s.bytes).sum();
    let mut is_seen = vec![false; graph.buffers.len()];
    for &node in &profile.order[range.clone()] {
        for &before in graph.predecessors.row(node) {
            add(&mut network, vertex(node), vertex(before), UNCUTTABLE);
        }
        for &buffer in graph.touches.row(node) {
            if std::mem::replace(&mut is_seen[buffer as usize], true) {
                continue;
            }
            let facts = graph.buffers[buffer as usize];
            let touched_by = graph.touched_by.row(buffer);
            let first = touched_by.iter().copied().min_by_key(|&node| place_of[node as usize]);
            let from = if facts.live_in { SOURCE } else { first.map_or(SOURCE, vertex) };
            let ends = facts.live_out || touched_by.iter().any(|&node| vertex(node) == SINK);
            match (from, ends) {
                (SOURCE, true) => bytes += facts.bytes,
                (SINK, _) => {}
                (from, true) => add(&mut network, from, SINK, facts.bytes),
                (from, false) => {
                    let middle = network.add_node();
                    add(&mut network, from, middle, facts.bytes);
                    let touched_by = touched_by.iter().map(|&node| vertex(node));
                    touched_by.for_each(|node| add(&mut network, middle, node, UNCUTTABLE));
                }
            }
        }
    }
    let MinCut { on_sink_side: has_run, capacity, steps } = network.cut_nearest_to_sink(SINK, SOURCE)?;
    let runs_before =
        profile.order[range.clone()].iter().map(|&node| has_run[vertex(node) as usize]).collect();
    Some(Cut { runs_before, bytes: bytes + capacity, steps })
}

/// Adds an edge to the reversed network. Edges into the source or out of the sink carry nothing.
fn add(network: &mut Network, from: u32, to: u32, capacity: u64) {
    if from != to && to != SOURCE && from != SINK {
        network.add_edge(to, from, capacity);
    }
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
