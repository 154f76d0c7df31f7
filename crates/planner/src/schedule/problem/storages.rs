//! The values of a computation, and the storages that they form.

use memplan_analysis::{ValueId, ValueKind};
use memplan_ir::{InstructionId, Op};

use super::{Build, Local, passes_on};
use crate::schedule::graph::{Node, Storage, StorageIndex, Table};

/// A value within one computation.
pub(super) struct LocalValue {
    pub(super) value: ValueId,
    /// The node that defines it; `None` for what comes in through a parameter.
    pub(super) node: Option<Node>,
    pub(super) readers: Vec<Node>,
    pub(super) returned: bool,
    pub(super) storage: StorageIndex,
}

/// The storages that come before and after one in its buffer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Neighbors {
    pub(super) previous: Option<StorageIndex>,
    pub(super) next: Option<StorageIndex>,
}

impl Build<'_, '_> {
    /// Lists the values that appear here, each at its first appearance.
    pub(super) fn find_values(&mut self) {
        for &id in self.body() {
            // What neither a parameter nor a node shows first is a constant.
            let is_parameter = matches!(self.source.module.instructions[id].op, Op::Parameter { .. });
            let node = if is_parameter { None } else { self.node(id) };
            let values: Vec<ValueId> = self.source.values_of(id).collect();
            for value in values {
                let local = &mut self.source.local[value];
                if local.stamp != self.source.stamp {
                    *local = Local { stamp: self.source.stamp, index: self.values.len() as u32 };
                    self.values.push(LocalValue {
                        value,
                        node,
                        readers: vec![],
                        returned: false,
                        storage: 0,
                    });
                }
            }
        }
    }

    /// The local values that an instruction shows.
    pub(super) fn locals_of(&self, id: InstructionId) -> Vec<u32> {
        let source = &self.source;
        let locals = source.values_of(id).map(|value| source.local[value]);
        locals.filter(|local| local.stamp == source.stamp).map(|local| local.index).collect()
    }

    /// Every node reads all parts of its operands, unless it only passes them on.
    pub(super) fn find_readers(&mut self) {
        let module = self.source.module;
        for (node, &id) in self.instructions.iter().enumerate() {
            let instruction = &module.instructions[id];
            if passes_on(&instruction.op) {
                continue;
            }
            for &operand in &instruction.operands {
                for value in self.locals_of(operand) {
                    let readers = &mut self.values[value as usize].readers;
                    if readers.last() != Some(&(node as Node)) {
                        readers.push(node as Node);
                    }
                }
            }
        }
        for value in self.locals_of(module.computations[self.computation].root) {
            self.values[value as usize].returned = true;
        }
    }

    /// Gives each value a storage: that of the value it is written over, or a new one.
    pub(super) fn form_storages(&mut self) {
        let reads = self.values.iter().zip(0..);
        let reads: Vec<(Node, u32)> =
            reads.flat_map(|(v, i)| v.readers.iter().map(move |&node| (node, i))).collect();
        let reads = Table::new(self.instructions.len(), reads.iter().copied());
        let mut last_node = None;
        for i in 0..self.values.len() {
            let LocalValue { value, node, .. } = self.values[i];
            if let Some(node) = node.filter(|_| node != last_node) {
                self.source.ticket += 1;
                for &read in reads.row(node) {
                    let buffer = self.source.buffers.of(self.values[read as usize].value);
                    self.source.read[buffer] = (self.source.ticket, read);
                }
            }
            last_node = node;
            let (ticket, overwritten) = self.source.read[self.source.buffers.of(value)];
            self.values[i].storage = if node.is_some() && ticket == self.source.ticket {
                self.values[overwritten as usize].storage
            } else {
                self.add_storage(value, node)
            };
        }
        for value in &self.values {
            let storage = &mut self.parts.storages[value.storage as usize];
            storage.live_out |= value.returned;
            if storage.bytes > 0 {
                let nodes = value.node.iter().chain(&value.readers);
                self.parts.touches.extend(nodes.map(|&node| (node, value.storage)));
            }
        }
        self.forget_unused();
    }

    pub(super) fn add_storage(&mut self, value: ValueId, node: Option<Node>) -> StorageIndex {
        let index = self.parts.storages.len() as StorageIndex;
        let live_in = node.is_none();
        let bytes = if live_in && !self.counts(value) { 0 } else { self.source.bytes[value] };
        self.parts.storages.push(Storage { bytes, live_in, live_out: false });
        self.parts.definitions.extend(node.map(|node| (node, index)));
        index
    }

    /// What comes in and is neither touched nor returned is dead from the start.
    fn forget_unused(&mut self) {
        let mut is_touched = vec![false; self.parts.storages.len()];
        self.parts.touches.iter().for_each(|&(_, storage)| is_touched[storage as usize] = true);
        for (storage, is_touched) in self.parts.storages.iter_mut().zip(is_touched) {
            if !is_touched && !storage.live_out {
                storage.bytes = 0;
            }
        }
    }

    /// Whether a value that comes in through a parameter is counted here.
    fn counts(&self, value: ValueId) -> bool {
        let source = &self.source;
        let definition = &source.flow.values[value];
        let instruction = source.flow.positions.instruction(definition.definition);
        let is_own_state = definition.kind == ValueKind::LoopPhi
            && source.module.instructions[instruction].parent == self.computation;
        self.computation == source.module.entry
            || is_own_state
            || source.handed_over[self.computation].contains(&value)
    }

    /// Readers of each value before the writer of the next value in its buffer.
    pub(super) fn order_versions(&mut self) {
        self.neighbors = vec![Neighbors::default(); self.parts.storages.len()];
        let key = |&i: &usize| {
            let value = &self.values[i];
            let place = if value.node.is_none() { 0 } else { 1 + u32::from(value.returned) };
            (self.source.buffers.of(value.value), place, i)
        };
        let mut order: Vec<usize> = (0..self.values.len()).collect();
        order.sort_unstable_by_key(key);
        for pair in order.windows(2) {
            let (old, new) = (&self.values[pair[0]], &self.values[pair[1]]);
            let buffer_of = |value: &LocalValue| self.source.buffers.of(value.value);
            let Some(writer) = new.node.filter(|_| buffer_of(old) == buffer_of(new)) else { continue };
            let earlier = old.node.iter().chain(&old.readers);
            self.parts.edges.extend(earlier.map(|&node| (node, writer)));
            if old.storage != new.storage {
                self.neighbors[old.storage as usize].next = Some(new.storage);
                self.neighbors[new.storage as usize].previous = Some(old.storage);
            }
        }
    }
}
