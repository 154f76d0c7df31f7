//! Initial orders, each found in one pass.
//!
//! | | picks next | source |
//! |---|---|---|
//! | textual | the first ready node in the text | JAX traces in an order that is often good |
//! | list | the node that frees the most | XLA's `ListMemoryScheduler` |
//! | depth-first | the operand with the larger fan-out behind it | XLA's `DFSMemoryScheduler` |
//! | post-order | operands from left to right | |
//! | tree | the operand that needs the most beyond its result | Sethi and Ullman 1970; Liu 1987 |
//! | reverse | from the end: the node that needs the fewest operands not needed anyway | |
//! | given | the next node of an order that came with the region | the caller |
//! | breadth-first | the node that has been ready for longest | XLA's `BFScheduler`, for many cores at work |
//!
//! All take n log n time in nodes and edges.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::graph::{Graph, Node};

/// The order of the text where it is legal: always the first node that is ready. `None` if the graph has a cycle.
pub(crate) fn textual(graph: &Graph) -> Option<Vec<Node>> {
    let order = by_place(graph, |node| node);
    (order.len() == graph.len()).then_some(order)
}

/// An order that came with the region, where it is legal; `places` has the place of each node in it.
pub(crate) fn given(graph: &Graph, places: &[u32]) -> Vec<Node> {
    by_place(graph, |node| places[node as usize])
}

/// Always the ready node that comes first by some numbers, then in the text.
fn by_place(graph: &Graph, place: impl Fn(Node) -> u32) -> Vec<Node> {
    let mut waiting = graph.in_degrees();
    let ready = graph.nodes().filter(|&node| waiting[node as usize] == 0);
    let mut ready: BinaryHeap<Reverse<(u32, Node)>> =
        ready.map(|node| Reverse((place(node), node))).collect();
    let mut order = Vec::with_capacity(graph.len());
    while let Some(Reverse((_, node))) = ready.pop() {
        order.push(node);
        release(graph, &mut waiting, node, |next| ready.push(Reverse((place(next), next))));
    }
    order
}

/// Always the ready node that frees the most bytes in addition to those that it defines, then the one with more users.
pub(crate) fn list(graph: &Graph) -> Vec<Node> {
    let mut waiting = graph.in_degrees();
    let mut state = graph.start();
    let mut is_done = vec![false; graph.len()];
    let key = |remaining: &[u32], node: Node| {
        // A node that touches no memory only delays its users.
        let is_idle = graph.touches.row(node).is_empty() && graph.needed_bytes[node as usize] == 0;
        let gain = graph.freed(remaining, node) as i64 - graph.defined_bytes[node as usize] as i64;
        (is_idle, gain, graph.successors.row(node).len(), Reverse(node))
    };
    let ready = graph.nodes().filter(|&node| waiting[node as usize] == 0);
    let mut heap: BinaryHeap<_> = ready.map(|node| key(&state.remaining, node)).collect();
    let mut order = Vec::with_capacity(graph.len());
    while let Some((.., Reverse(node))) = heap.pop() {
        // A node is pushed again when its gain grows; the best entry comes first.
        if std::mem::replace(&mut is_done[node as usize], true) {
            continue;
        }
        order.push(node);
        graph.run(&mut state, node);
        for &buffer in graph.touches.row(node) {
            if state.remaining[buffer as usize] == 1 {
                let touched_by = graph.touched_by.row(buffer).iter().copied();
                let last = touched_by.filter(|&other| !is_done[other as usize]);
                heap.extend(
                    last.filter(|&other| waiting[other as usize] == 0)
                        .map(|other| key(&state.remaining, other)),
                );
            }
        }
        release(graph, &mut waiting, node, |next| heap.push(key(&state.remaining, next)));
    }
    order
}

/// Depth first from the results, operands with more users behind them first, then larger ones.
pub(crate) fn depth_first(graph: &Graph, textual: &[Node]) -> Vec<Node> {
    let mut weight = vec![(0u64, 0u64); graph.len()];
    for &node in textual {
        let users = graph.successors.row(node).len() as u64;
        let mut sum = (users.saturating_sub(1), graph.defined_bytes[node as usize]);
        // Shared operands count once for each way that leads to them, hence the cap.
        for &before in graph.predecessors.row(node) {
            let (fan_out, bytes) = weight[before as usize];
            sum = (sum.0.saturating_add(fan_out), sum.1.saturating_add(bytes));
        }
        weight[node as usize] = sum;
    }
    visit(graph, |node| Reverse(weight[node as usize]))
}

/// Depth first from the results, operands in the order of the text.
pub(crate) fn post_order(graph: &Graph) -> Vec<Node> {
    visit(graph, |_| ())
}

/// Depth first from the results, operands first that need much more while they are computed than afterwards. Best
/// possible for trees whose nodes leave no less behind than they found.
pub(crate) fn tree(graph: &Graph, textual: &[Node]) -> Vec<Node> {
    // The peak of a subtree, as if nothing were shared, and the bytes that remain after it.
    let mut peak = vec![0u64; graph.len()];
    let left = |node: Node| graph.defined_bytes[node as usize];
    let mut operands: Vec<Node> = Vec::new();
    for &node in textual {
        operands.clear();
        operands.extend(graph.predecessors.row(node));
        operands.sort_by_key(|&before| Reverse(peak[before as usize] - left(before)));
        let mut sum: u64 = 0;
        let mut most: u64 = 0;
        for &before in &operands {
            most = most.max(sum.saturating_add(peak[before as usize]));
            sum = sum.saturating_add(left(before));
        }
        peak[node as usize] = most.max(sum.saturating_add(left(node).max(graph.needed_bytes[node as usize])));
    }
    visit(graph, |node| Reverse(peak[node as usize] - left(node)))
}

/// From the end: always the node that leaves the fewest bytes live before it. All users of a ready node come after it,
/// so its results cost nothing any more, and its operands are live from here on backwards.
pub(crate) fn reverse(graph: &Graph) -> Vec<Node> {
    let out_degrees = graph.nodes().map(|node| graph.successors.row(node).len() as u32);
    let mut waiting: Vec<u32> = out_degrees.collect();
    let mut is_done = vec![false; graph.len()];
    let mut is_live: Vec<bool> = graph.buffers.iter().map(|s| s.live_out).collect();
    let key = |is_live: &[bool], node: Node| {
        let touches = graph.touches.row(node).iter();
        let new = touches.filter(|&&s| !is_live[s as usize]).map(|&s| graph.buffers[s as usize].bytes);
        let gain = graph.defined_bytes[node as usize] as i64 - new.sum::<u64>() as i64;
        let is_idle = graph.touches.row(node).is_empty() && graph.needed_bytes[node as usize] == 0;
        (is_idle, gain, node)
    };
    let ready = graph.nodes().filter(|&node| waiting[node as usize] == 0);
    let mut heap: BinaryHeap<_> = ready.map(|node| key(&is_live, node)).collect();
    let mut order = Vec::with_capacity(graph.len());
    while let Some((.., node)) = heap.pop() {
        if std::mem::replace(&mut is_done[node as usize], true) {
            continue;
        }
        order.push(node);
        for &buffer in graph.touches.row(node) {
            if std::mem::replace(&mut is_live[buffer as usize], true) {
                continue;
            }
            let others = graph.touched_by.row(buffer).iter().copied();
            let ready = others.filter(|&other| !is_done[other as usize] && waiting[other as usize] == 0);
            heap.extend(ready.map(|other| key(&is_live, other)));
        }
        for &before in graph.predecessors.row(node) {
            waiting[before as usize] -= 1;
            if waiting[before as usize] == 0 {
                heap.push(key(&is_live, before));
            }
        }
    }
    order.reverse();
    order
}

/// Always the node that has been ready for longest.
pub(crate) fn breadth_first(graph: &Graph) -> Vec<Node> {
    let mut waiting = graph.in_degrees();
    let mut order: Vec<Node> = graph.nodes().filter(|&node| waiting[node as usize] == 0).collect();
    let mut next = 0;
    while let Some(&node) = order.get(next) {
        next += 1;
        release(graph, &mut waiting, node, |ready| order.push(ready));
    }
    order
}

/// Post-order from the nodes without successors, in the order of a key, then of the text; operands likewise.
fn visit<K: Ord>(graph: &Graph, key: impl Fn(Node) -> K) -> Vec<Node> {
    let mut order = Vec::with_capacity(graph.len());
    let mut is_open = vec![false; graph.len()];
    let mut is_done = vec![false; graph.len()];
    let sinks = graph.nodes().filter(|&node| graph.successors.row(node).is_empty());
    let mut stack: Vec<Node> = sinks.collect();
    stack.sort_by_key(|&node| (key(node), node));
    stack.reverse();
    while let Some(&node) = stack.last() {
        if std::mem::replace(&mut is_open[node as usize], true) {
            stack.pop();
            if !std::mem::replace(&mut is_done[node as usize], true) {
                order.push(node);
            }
            continue;
        }
        let first = stack.len();
        let before = graph.predecessors.row(node).iter().copied();
        stack.extend(before.filter(|&before| !is_open[before as usize]));
        stack[first..].sort_by_key(|&node| (key(node), node));
        stack[first..].reverse();
    }
    order
}

/// Tells successors of a node that it has run.
pub(crate) fn release(graph: &Graph, waiting: &mut [u32], node: Node, mut ready: impl FnMut(Node)) {
    for &next in graph.successors.row(node) {
        waiting[next as usize] -= 1;
        if waiting[next as usize] == 0 {
            ready(next);
        }
    }
}

/// A node of a graph with a cycle that can never run.
pub(crate) fn on_cycle(graph: &Graph) -> Node {
    let mut waiting = graph.in_degrees();
    let mut ready: Vec<Node> = graph.nodes().filter(|&node| waiting[node as usize] == 0).collect();
    while let Some(node) = ready.pop() {
        release(graph, &mut waiting, node, |next| ready.push(next));
    }
    graph.nodes().find(|&node| waiting[node as usize] > 0).expect("the graph has a cycle")
}
