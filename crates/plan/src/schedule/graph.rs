//! A region for the search: nodes that must run in some order, and the buffers that they touch.
//!
//! A *buffer* is live from the first node that touches it to the last; from the start if it is live in, and to the end
//! if it is live out. While a node runs, all buffers that it touches are live together, except that a result may
//! overwrite an operand that no later node touches.
//!
//! ```text
//!   before(i)   bytes live before node i
//!   during(i) = before(i) + bytes i needs - bytes it takes over
//!   after(i)  = before(i) + bytes i defines - bytes of buffers that i is the last to touch
//!   peak      = max over i of during(i)
//! ```
//!
//! A node needs the bytes that it defines, or, if it runs other regions, the bytes that these need beyond its operands.
//!
//! The live bytes between nodes depend only on the set of nodes that have run, and a node that runs early frees at
//! least as much as one that runs late: live bytes are a submodular function of that set. This makes the shortcuts in
//! [`search`](super::search) exact.

use cranelift_entity::EntityRef;
use memplan_program::{Buffer, BufferId, NodeId, Region};

/// Number of a [`NodeId`](memplan_program::NodeId), as tables hold it.
pub(crate) type Node = u32;
/// Number of a [`BufferId`](memplan_program::BufferId), as tables hold it.
pub(crate) type BufferIndex = u32;

/// Lists of numbers, one list per row, in one allocation.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Table {
    starts: Vec<u32>,
    entries: Vec<u32>,
}

/// A buffer, as the search counts it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Counted {
    pub(crate) bytes: u64,
    pub(crate) live_in: bool,
    pub(crate) live_out: bool,
}

/// A region, indexed for the search: nodes, the order constraints of every schedule, and the buffers that they touch.
#[derive(Clone, Debug, Default)]
pub(crate) struct Graph {
    pub(crate) predecessors: Table,
    pub(crate) successors: Table,
    pub(crate) buffers: Vec<Counted>,
    /// For each node, the buffers it touches, those it defines included; each once.
    pub(crate) touches: Table,
    /// For each buffer, the nodes that touch it.
    pub(crate) touched_by: Table,
    /// For each node, bytes of the buffers it defines.
    pub(crate) defined_bytes: Vec<u64>,
    /// For each node, bytes needed while it runs in addition to live bytes before it and bytes that it takes over.
    pub(crate) needed_bytes: Vec<u64>,
    /// For each node, its [`Reuse`](memplan_program::Reuse)s: a result, how many like it, how many operands, the
    /// operands.
    reuses: Table,
    /// Bytes live before anything runs.
    pub(crate) initial: u64,
    /// For each order that came with the region, the place of each node in it.
    pub(crate) given: Vec<Vec<u32>>,
}

/// A partly executed order.
#[derive(Clone, Debug)]
pub(crate) struct State {
    /// For each buffer, how many nodes have still to touch it.
    pub(crate) remaining: Vec<u32>,
    /// Bytes live now.
    pub(crate) live: u64,
    /// The most bytes live so far.
    pub(crate) peak: u64,
}

impl Table {
    /// Sorts pairs (row, entry) into rows; entries keep their order, repeated pairs are kept.
    pub(crate) fn new(n_rows: usize, pairs: impl Iterator<Item = (u32, u32)> + Clone) -> Table {
        let mut starts = vec![0u32; n_rows + 2];
        for (row, _) in pairs.clone() {
            starts[row as usize + 2] += 1;
        }
        for i in 2..starts.len() {
            starts[i] += starts[i - 1];
        }
        let mut entries = vec![0; *starts.last().expect("there are at least two starts") as usize];
        for (row, entry) in pairs {
            let at = &mut starts[row as usize + 1];
            entries[*at as usize] = entry;
            *at += 1;
        }
        starts.pop();
        Table { starts, entries }
    }

    /// The entries of a row.
    pub(crate) fn row(&self, row: u32) -> &[u32] {
        &self.entries[self.starts[row as usize] as usize..self.starts[row as usize + 1] as usize]
    }
}

/// The place of each node in an order; nodes that are not in it come last.
fn places(n: usize, order: &[NodeId]) -> Vec<u32> {
    let mut places = vec![u32::MAX; n];
    order.iter().zip(0..).for_each(|(node, place)| places[node.index()] = place);
    places
}

impl Graph {
    /// The graph of a region. `calls` lists the nodes that run other regions, each with the bytes it needs while it
    /// runs in addition to live bytes before it; the others need the bytes that they define.
    pub(crate) fn new(region: Region, calls: &[(Node, u64)]) -> Graph {
        let n = region.n_nodes;
        let numbers = |(a, b): (NodeId, NodeId)| (a.as_u32(), b.as_u32());
        let mut edges: Vec<(Node, Node)> = region.dependencies.into_iter().map(numbers).collect();
        edges.sort_unstable();
        edges.dedup();
        edges.retain(|(before, after)| before != after);
        let numbers = |(node, buffer): (NodeId, BufferId)| (node.as_u32(), buffer.as_u32());
        let mut touches: Vec<(Node, BufferIndex)> = region.touches.into_iter().map(numbers).collect();
        touches.sort_unstable();
        touches.dedup();
        let count =
            |&Buffer { bytes, live_in, live_out }: &Buffer| Counted { bytes: bytes.0, live_in, live_out };
        let buffers: Vec<Counted> = region.buffers.values().map(count).collect();
        let swapped = |&(a, b): &(u32, u32)| (b, a);
        let mut defined_bytes = vec![0; n];
        for &(node, buffer) in &region.definitions {
            defined_bytes[node.index()] += region.buffers[buffer].bytes.0;
        }
        let mut needed_bytes = defined_bytes.clone();
        calls.iter().for_each(|&(node, bytes)| needed_bytes[node as usize] = bytes);
        let reuses = region.reuses.iter().flat_map(|reuse| {
            let head = [reuse.result.as_u32(), reuse.n_results, reuse.operands.len() as u32];
            let operands = reuse.operands.iter().map(|operand| operand.as_u32());
            head.into_iter().chain(operands).map(|entry| (reuse.node.as_u32(), entry))
        });
        Graph {
            predecessors: Table::new(n, edges.iter().map(swapped)),
            successors: Table::new(n, edges.iter().copied()),
            touches: Table::new(n, touches.iter().copied()),
            touched_by: Table::new(buffers.len(), touches.iter().map(swapped)),
            defined_bytes,
            needed_bytes,
            reuses: Table::new(n, reuses),
            given: region.given.iter().map(|order| places(n, order)).collect(),
            initial: buffers.iter().filter(|s| s.live_in).map(|s| s.bytes).sum(),
            buffers,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.defined_bytes.len()
    }

    pub(crate) fn nodes(&self) -> std::ops::Range<Node> {
        0..self.len() as Node
    }

    /// The state before anything has run.
    pub(crate) fn start(&self) -> State {
        let remaining = (0..self.buffers.len() as u32).map(|s| self.touched_by.row(s).len() as u32);
        State { remaining: remaining.collect(), live: self.initial, peak: self.initial }
    }

    /// Bytes live while a node runs, and after it, when `live` are live before it and it is the last to touch the
    /// buffers for which `dies` holds.
    pub(crate) fn levels(&self, live: u64, node: Node, dies: impl Fn(BufferIndex) -> bool) -> (u64, u64) {
        let defined = self.defined_bytes[node as usize];
        let taken = self.reuses(node).map(|(result, n_results, operands)| {
            let dying = operands.iter().filter(|&&buffer| dies(buffer)).count();
            self.buffers[result as usize].bytes * dying.min(n_results) as u64
        });
        let needed = self.needed_bytes[node as usize] - taken.sum::<u64>();
        let freed = self.touches.row(node).iter().filter(|&&buffer| dies(buffer));
        let freed: u64 = freed.map(|&buffer| self.buffers[buffer as usize].bytes).sum();
        (live + needed, live + defined - freed)
    }

    /// Bytes of buffers that a node, run next, would be the last to touch.
    pub(crate) fn freed(&self, remaining: &[u32], node: Node) -> u64 {
        let touches = self.touches.row(node).iter();
        touches.filter(|&&s| self.dies(remaining, s)).map(|&s| self.buffers[s as usize].bytes).sum()
    }

    /// Bytes that a node needs when it takes over all it can.
    pub(crate) fn least_needed(&self, node: Node) -> u64 {
        let taken = self.reuses(node).map(|(result, n_results, operands)| {
            self.buffers[result as usize].bytes * operands.len().min(n_results) as u64
        });
        self.needed_bytes[node as usize] - taken.sum::<u64>()
    }

    /// Runs a node, and returns the bytes live while it runs.
    pub(crate) fn run(&self, state: &mut State, node: Node) -> u64 {
        let (during, after) = self.levels(state.live, node, |s| self.dies(&state.remaining, s));
        state.peak = state.peak.max(during);
        state.live = after;
        for &buffer in self.touches.row(node) {
            state.remaining[buffer as usize] -= 1;
        }
        during
    }

    /// The most bytes live in an order of all nodes.
    pub(crate) fn peak(&self, order: &[Node]) -> u64 {
        let mut state = self.start();
        order.iter().for_each(|&node| {
            self.run(&mut state, node);
        });
        state.peak
    }

    /// The take-overs of a node: a result, how many are like it, and the operands they may take over.
    pub(crate) fn reuses(&self, node: Node) -> impl Iterator<Item = (BufferIndex, usize, &[BufferIndex])> {
        let mut row = self.reuses.row(node);
        std::iter::from_fn(move || {
            let [result, n_results, n_operands, rest @ ..] = row else { return None };
            let (operands, next) = rest.split_at(*n_operands as usize);
            row = next;
            Some((*result, *n_results as usize, operands))
        })
    }

    /// Whether an order has every node once, predecessors first.
    #[cfg(test)]
    pub(crate) fn is_legal(&self, order: &[Node]) -> bool {
        let mut waiting: Vec<u32> = self.in_degrees();
        let mut done = vec![false; self.len()];
        order.len() == self.len()
            && order.iter().all(|&node| {
                let is_ready =
                    waiting[node as usize] == 0 && !std::mem::replace(&mut done[node as usize], true);
                is_ready && {
                    self.successors.row(node).iter().for_each(|&s| waiting[s as usize] -= 1);
                    true
                }
            })
    }

    /// For each node, how many predecessors it has.
    pub(crate) fn in_degrees(&self) -> Vec<u32> {
        self.nodes().map(|node| self.predecessors.row(node).len() as u32).collect()
    }

    /// Whether the next node that touches a buffer is the last.
    fn dies(&self, remaining: &[u32], buffer: BufferIndex) -> bool {
        remaining[buffer as usize] == 1 && !self.buffers[buffer as usize].live_out
    }
}
