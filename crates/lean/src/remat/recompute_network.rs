//! A minimum cut that separates values to keep from values to recompute.
//!
//! ```text
//!   values that must be kept: source --inf--> value --bytes--> value' --inf--> each value computed from it
//!                                                       value' --inf--> sink, for values needed later
//! ```
//!
//! A value is kept if its edge is cut; values on the sink's side of the cut are recomputed from kept ones. The cost of
//! recomputing a value is an edge from the source, which is cut if the value is recomputed.

use memplan_ir::{InstructionId, Module};
use memplan_min_cut::{MinCut, Network, UNCUTTABLE};
use rustc_hash::{FxHashMap, FxHashSet};

/// The cheapest choice of values to keep.
pub(crate) struct Choice {
    /// Values to keep, from which all others that are needed can be computed.
    pub(crate) kept: FxHashSet<InstructionId>,
    /// Values to recompute from them.
    pub(crate) recomputed: FxHashSet<InstructionId>,
}

/// Of the choices that cost least, the one that recomputes least; `None` where there is none.
///
/// `bytes` is the cost of keeping a value, [`UNCUTTABLE`] if it cannot be kept; `price` is the cost of recomputing it
/// in bytes, [`UNCUTTABLE`] if it is given or can only be kept.
pub(crate) fn choose(
    module: &Module,
    needed: impl Iterator<Item = InstructionId>,
    bytes: impl Fn(InstructionId) -> u64,
    price: impl Fn(InstructionId) -> u64,
) -> Option<Choice> {
    let mut network = Network::default();
    let (source, sink) = (network.add_node(), network.add_node());
    // The value of an instruction is the edge from the instruction's node to the node numbered after it.
    let mut nodes: FxHashMap<InstructionId, u32> = FxHashMap::default();
    let mut open: Vec<InstructionId> = Vec::new();
    let mut node_of = |id: InstructionId, network: &mut Network, open: &mut Vec<InstructionId>| {
        *nodes.entry(id).or_insert_with(|| {
            let node = network.add_node();
            network.add_node();
            network.add_edge(node, node + 1, bytes(id));
            open.push(id);
            node
        })
    };
    for id in needed {
        let node = node_of(id, &mut network, &mut open);
        network.add_edge(node + 1, sink, UNCUTTABLE);
    }
    while let Some(id) = open.pop() {
        let node = node_of(id, &mut network, &mut open);
        let price = price(id);
        if price > 0 {
            network.add_edge(source, node, price);
        }
        if price == UNCUTTABLE {
            continue;
        }
        for &operand in &module.instructions[id].operands {
            let from = node_of(operand, &mut network, &mut open);
            network.add_edge(from + 1, node, UNCUTTABLE);
        }
    }
    let MinCut { on_sink_side, .. } = network.cut_nearest_to_sink(source, sink)?;
    let is_recomputed = |node: u32| on_sink_side[node as usize];
    let is_cut = |node: u32| !is_recomputed(node) && is_recomputed(node + 1);
    let values = || nodes.iter().map(|(&id, &node)| (id, node));
    Some(Choice {
        kept: values().filter(|&(_, node)| is_cut(node)).map(|(id, _)| id).collect(),
        recomputed: values().filter(|&(_, node)| is_recomputed(node)).map(|(id, _)| id).collect(),
    })
}
