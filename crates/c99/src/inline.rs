//! Which expressions are written where they are used, rather than as variables of C.

use cranelift_entity::EntityRef;
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

use crate::dag::{Dag, Node, NodeId, VarId};
use crate::kernel::Nest;

/// Operations in one expression of C, beyond which it becomes a variable: what people read at a glance.
const MAX_INLINE: usize = 8;

/// The expressions of a nest that are used once, in the same loop, and are short; and all that cost nothing.
pub(crate) fn inline(dag: &Dag, nodes: &[NodeId], nest: &Nest) -> FxHashSet<NodeId> {
    let mut uses: FxHashMap<NodeId, SmallVec<[Option<NodeId>; 2]>> = FxHashMap::default();
    for &node in nodes {
        dag.inputs(node).iter().for_each(|&input| uses.entry(input).or_default().push(Some(node)));
    }
    nest.inputs().iter().for_each(|&input| uses.entry(input).or_default().push(None));
    // All is read before anything is written.
    let keeps_loads = nest.stores.len() > 1;
    let mut inline: FxHashSet<NodeId> = FxHashSet::default();
    let mut size: FxHashMap<NodeId, usize> = FxHashMap::default();
    for &node in nodes {
        let of_inputs =
            dag.inputs(node).iter().filter(|n| inline.contains(n)).map(|n| size[n]).sum::<usize>();
        let is_free = matches!(
            dag.nodes[node],
            Node::Constant(..) | Node::Var(_) | Node::Accumulator(..) | Node::Affine { .. } | Node::Under(..)
        );
        let is_single = match uses.get(&node).map(|u| u.as_slice()) {
            Some([None]) => true,
            Some([Some(user)]) => {
                matches!(dag.nodes[*user], Node::Folded(..)) || same_home(dag, nest, *user, node)
            }
            _ => false,
        };
        let is_kept = match dag.nodes[node] {
            Node::Load { mark, .. } => mark.is_some() || keeps_loads,
            Node::Folded(..) => true,
            _ => nest.tiling.buffers.contains_key(&node),
        };
        let is_inline = is_free || is_single && !is_kept && of_inputs < MAX_INLINE;
        // Indices are read as one.
        size.insert(
            node,
            if is_free {
                0
            } else if is_inline {
                1 + of_inputs
            } else {
                1
            },
        );
        if is_inline {
            inline.insert(node);
        }
    }
    inline
}

/// Whether two expressions are computed in the same loop.
fn same_home(dag: &Dag, nest: &Nest, a: NodeId, b: NodeId) -> bool {
    let with_lanes = nest.tiling.buffers.values().filter(|buffer| buffer.lanes.is_some());
    let lanes_of_buffers: SmallVec<[VarId; 4]> =
        with_lanes.filter_map(|buffer| Some(buffer.levels.last()?.var())).collect();
    let rank = |var: VarId| {
        let level = nest.levels.iter().position(|level| level.var() == var);
        match level {
            // Lanes are within the loops of folds.
            Some(at) if at + 1 == nest.levels.len() && nest.tiling.lanes.is_some() => (2, at),
            Some(at) => (0, at),
            None if lanes_of_buffers.contains(&var) => (2, usize::MAX),
            None => (1, var.index()),
        }
    };
    let home = |node| dag.places(node).map(rank).max();
    home(a) == home(b)
}
