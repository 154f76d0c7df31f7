//! The values of a computation, and the buffers of its region that they form.

use cranelift_entity::SecondaryMap;
use memplan_analysis::ValueKind;
use memplan_ir::{InstructionId, Op};
use memplan_memory::Bytes;
use memplan_program::{Buffer, BufferId, NodeId, ValueId};

use super::{Build, Local, passes_on};

/// A value within one computation.
pub(super) struct LocalValue {
    pub(super) value: ValueId,
    /// The node that defines it; `None` for what comes in through a parameter.
    pub(super) node: Option<NodeId>,
    pub(super) readers: Vec<NodeId>,
    pub(super) returned: bool,
    pub(super) buffer: BufferId,
}

/// The buffers that hold the values of the same must-alias buffer before and after one.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Neighbors {
    pub(super) previous: Option<BufferId>,
    pub(super) next: Option<BufferId>,
}

impl Build<'_, '_> {
    /// Lists the values that appear here, each at its first appearance.
    pub(super) fn find_values(&mut self) {
        for &id in self.body() {
            // A value first seen neither at a parameter nor at a node is a constant.
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
                        buffer: BufferId::from_u32(0),
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
        for (node, &id) in &self.instructions {
            let instruction = &module.instructions[id];
            if passes_on(&instruction.op) {
                continue;
            }
            for &operand in &instruction.operands {
                for value in self.locals_of(operand) {
                    let readers = &mut self.values[value as usize].readers;
                    if readers.last() != Some(&node) {
                        readers.push(node);
                    }
                }
            }
        }
        for value in self.locals_of(module.computations[self.computation].root) {
            self.values[value as usize].returned = true;
        }
    }

    /// Gives each value a buffer: that of the value it is written over, or a new one.
    pub(super) fn form_buffers(&mut self) {
        // The values that each node reads, by node.
        let mut reads: Vec<(NodeId, u32)> = Vec::new();
        for (value, i) in self.values.iter().zip(0..) {
            reads.extend(value.readers.iter().map(|&node| (node, i)));
        }
        reads.sort_by_key(|&(node, _)| node);
        let mut last_node = None;
        for i in 0..self.values.len() {
            let LocalValue { value, node, .. } = self.values[i];
            if let Some(node) = node.filter(|_| node != last_node) {
                self.source.ticket += 1;
                let first = reads.partition_point(|&(reader, _)| reader < node);
                for &(_, read) in reads[first..].iter().take_while(|&&(reader, _)| reader == node) {
                    let class = self.source.buffers.of(self.values[read as usize].value);
                    self.source.read[class] = (self.source.ticket, read);
                }
            }
            last_node = node;
            let (ticket, overwritten) = self.source.read[self.source.buffers.of(value)];
            self.values[i].buffer = if node.is_some() && ticket == self.source.ticket {
                self.values[overwritten as usize].buffer
            } else {
                self.add_buffer(value, node)
            };
        }
        for value in &self.values {
            let buffer = &mut self.region.buffers[value.buffer];
            buffer.live_out |= value.returned;
            if buffer.bytes > Bytes::ZERO {
                let nodes = value.node.iter().chain(&value.readers);
                self.region.touches.extend(nodes.map(|&node| (node, value.buffer)));
            }
        }
        self.forget_unused();
    }

    fn add_buffer(&mut self, value: ValueId, node: Option<NodeId>) -> BufferId {
        let live_in = node.is_none();
        let bytes = if live_in && !self.counts(value) { Bytes::ZERO } else { self.source.bytes[value] };
        let buffer = self.region.buffers.push(Buffer { bytes, live_in, live_out: false });
        self.region.definitions.extend(node.map(|node| (node, buffer)));
        buffer
    }

    /// Values that enter and are neither touched nor returned are dead from the start.
    fn forget_unused(&mut self) {
        let mut is_touched: SecondaryMap<BufferId, bool> = SecondaryMap::new();
        is_touched.resize(self.region.buffers.len());
        self.region.touches.iter().for_each(|&(_, buffer)| is_touched[buffer] = true);
        for (id, buffer) in &mut self.region.buffers {
            if !is_touched[id] && !buffer.live_out {
                buffer.bytes = Bytes::ZERO;
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

    /// Readers of each value before the writer of the next value in its buffer. Tokens overwrite nothing.
    pub(super) fn order_versions(&mut self) {
        self.neighbors.resize(self.region.buffers.len());
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
            if self.source.is_token(new.value) {
                continue;
            }
            let earlier = old.node.iter().chain(&old.readers);
            self.region.dependencies.extend(earlier.map(|&node| (node, writer)));
            if old.buffer != new.buffer {
                self.neighbors[old.buffer].next = Some(new.buffer);
                self.neighbors[new.buffer].previous = Some(old.buffer);
            }
        }
    }
}
