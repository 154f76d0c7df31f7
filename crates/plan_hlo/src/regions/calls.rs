//! Nodes that run other computations.

use memplan_analysis::ValueKind;
use memplan_ir::{ComputationId, Op};
use memplan_memory::Bytes;
use memplan_program::{Buffer, Call, InFlight, NodeId};
use rustc_hash::FxHashSet;

use super::{Build, Neighbors};

impl Build<'_, '_> {
    /// Finds the computations that run inside nodes, and the operands that count there.
    pub(super) fn find_calls(&mut self) {
        for node in self.instructions.keys() {
            let id = self.instructions[node];
            let instruction = &self.source.module.instructions[id];
            let callees = instruction.called.iter().copied();
            let callees: Vec<ComputationId> =
                callees.filter(|&callee| self.source.graph.caller(callee) == Some(id)).collect();
            let call = match &instruction.op {
                Op::AsyncUpdate(_) | Op::AsyncDone(_) => {
                    let in_flight = self.source.in_flight[instruction.operands[0]];
                    self.source.in_flight[id] = in_flight;
                    self.region.touches.extend(in_flight.map(|buffer| (node, buffer)));
                    continue;
                }
                _ if callees.is_empty() => continue,
                Op::While => self.loop_call(node, &callees),
                Op::AsyncStart(_) => self.async_call(node, callees[0]),
                _ => self.plain_call(node, &callees),
            };
            self.region.calls.push(call);
        }
    }

    /// State that changes is counted by the body. The condition runs while all of it is live.
    fn loop_call(&self, node: NodeId, callees: &[ComputationId]) -> Call {
        let body = callees[0];
        let state = self.source.module.computations[body].parameters[0];
        let source = &self.source;
        let mut seen = FxHashSet::default();
        let changing = source.flow.positions.of(state).filter_map(|position| {
            let value = source.flow.value_at(position)?;
            let is_phi = source.flow.values[value].definition == position;
            (is_phi && source.flow.values[value].kind == ValueKind::LoopPhi && seen.insert(value))
                .then(|| source.bytes[value])
        });
        let changing: Bytes = changing.sum();
        let beside = |c: ComputationId| if c == body { Bytes::ZERO } else { changing };
        let callees = callees.iter().map(|&c| (source.region_of[c], beside(c))).collect();
        Call { node, callees, handed_over: changing, in_flight: None }
    }

    /// An operand that nothing else reads is counted by the last callee that gets it: it may die there.
    fn plain_call(&mut self, node: NodeId, callees: &[ComputationId]) -> Call {
        let id = self.instructions[node];
        let instruction = &self.source.module.instructions[id];
        let is_conditional = instruction.op == Op::Conditional;
        let mut seen = FxHashSet::default();
        let mut call = Call { node, callees: Vec::new(), handed_over: Bytes::ZERO, in_flight: None };
        for (i, &callee) in callees.iter().enumerate().rev() {
            call.callees.push((self.source.region_of[callee], call.handed_over));
            let operands = match is_conditional {
                true => &instruction.operands[i + 1..i + 2],
                false => &instruction.operands[..],
            };
            let locals: Vec<u32> = operands.iter().flat_map(|&operand| self.locals_of(operand)).collect();
            for local in locals {
                let value = &self.values[local as usize];
                let bytes = self.region.buffers[value.buffer].bytes;
                if bytes > Bytes::ZERO && value.readers == [node] && !value.returned && seen.insert(local) {
                    self.source.handed_over[callee].insert(value.value);
                    call.handed_over += bytes;
                }
            }
        }
        call
    }

    /// Whatever an asynchronous computation writes is there until the operation is done.
    fn async_call(&mut self, node: NodeId, callee: ComputationId) -> Call {
        let buffer = self.region.buffers.push(Buffer::default());
        self.neighbors[buffer] = Neighbors::default();
        let results = self.region.definitions.iter().filter(|d| d.0 == node);
        let results = results.map(|d| self.region.buffers[d.1].bytes).sum();
        self.region.definitions.push((node, buffer));
        self.region.touches.push((node, buffer));
        self.source.in_flight[self.instructions[node]] = Some(buffer);
        let callees = vec![(self.source.region_of[callee], Bytes::ZERO)];
        Call { node, callees, handed_over: Bytes::ZERO, in_flight: Some(InFlight { buffer, results }) }
    }
}
