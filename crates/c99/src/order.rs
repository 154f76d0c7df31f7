//! The order of an instruction's nests: those that read bytes before those that overwrite them.
//!
//! The plan may put a result over an operand if one loop reads each element before it writes the result there. Whatever is
//! not so is refused, rather than trusted.

use crate::dag::{ArrayId, Node, NodeId};
use crate::error::{Refusal, refusal};
use crate::kernel::{Builder, Group, Nest, Store};

impl Builder<'_, '_> {
    /// All nests, those that read bytes before those that overwrite them.
    pub(crate) fn in_order(&self, mut groups: Vec<Group>) -> Result<Vec<Nest>, Refusal> {
        let mut nests = Vec::new();
        while !groups.is_empty() {
            let is_free = |at: usize| {
                let others = groups.iter().enumerate().filter(|&(other, _)| other != at);
                !others.flat_map(|(_, group)| group).any(|nest| self.overwrites(&groups[at], nest))
            };
            let Some(at) = (0..groups.len()).find(|&at| is_free(at)) else {
                let reason = "each of its results overwrites an operand that another reads";
                return Err(refusal(self.lower.module, self.id, reason));
            };
            let group = groups.remove(at);
            for (k, nest) in group.iter().enumerate() {
                let is_copied = group[..k].iter().any(|before| self.meets(before, nest, false));
                if is_copied || self.meets(nest, nest, true) {
                    let reason = "its result overwrites an operand that is still read";
                    return Err(refusal(self.lower.module, self.id, reason));
                }
            }
            nests.extend(group.into_iter().filter(|nest| !self.is_idle(nest)));
        }
        Ok(nests)
    }

    /// Whether nests of a group write bytes that a nest reads.
    fn overwrites(&self, group: &Group, reader: &Nest) -> bool {
        group.iter().any(|writer| self.meets(writer, reader, false))
    }

    /// Whether one nest writes bytes that another reads: for a nest and itself, elsewhere than at the same element.
    pub(crate) fn meets(&self, writer: &Nest, reader: &Nest, is_same: bool) -> bool {
        let dag = &self.lower.dag;
        let reads = dag.reachable(reader.inputs());
        reads.iter().any(|&node| {
            let Node::Load { array, offset, mark } = dag.nodes[node] else { return false };
            writer.stores.iter().any(|store| {
                let is_own = mark.is_some() && array == store.array;
                !is_own && self.overlap(array, store.array) && !(is_same && self.is_at(array, offset, store))
            })
        })
    }

    /// Whether a load is of the bytes that a store writes.
    fn is_at(&self, array: ArrayId, offset: NodeId, store: &Store) -> bool {
        let width = |array: ArrayId| self.lower.arrays[array].element_type.byte_width();
        self.bytes(array) == self.bytes(store.array)
            && width(array) == width(store.array)
            && offset == store.offset
    }

    fn overlap(&self, a: ArrayId, b: ArrayId) -> bool {
        match (self.bytes(a), self.bytes(b)) {
            (Some(a), Some(b)) => a.0 == b.0 && a.1 < b.2 && b.1 < a.2,
            _ => false,
        }
    }

    /// Whether a nest only writes what is there.
    fn is_idle(&self, nest: &Nest) -> bool {
        nest.stores.iter().all(|store| match self.lower.dag.nodes[store.value] {
            Node::Load { array, offset, .. } => {
                let types = [array, store.array].map(|a| self.lower.arrays[a].element_type);
                types[0] == types[1] && self.is_at(array, offset, store)
            }
            _ => false,
        })
    }
}
