//! Nodes that run other computations.

use memplan_analysis::ValueKind;
use memplan_ir::{ComputationId, Op};
use rustc_hash::FxHashSet;

use super::{Build, Neighbors};
use crate::schedule::graph::{Node, Storage, StorageIndex};

/// A node that runs other computations.
pub(super) struct Call {
    pub(super) node: Node,
    /// The callees, each with the bytes that are live beside it but counted neither by it nor by the caller.
    pub(super) callees: Vec<(ComputationId, u64)>,
    /// Bytes of the operands that the callees count.
    pub(super) handed_over: u64,
    /// For an asynchronous call: where what is live until it is done is counted, and how much of it is results.
    pub(super) scratch: Option<(StorageIndex, u64)>,
}

impl Build<'_, '_> {
    /// What runs within nodes, and which operands are counted there.
    pub(super) fn find_calls(&mut self) {
        for node in 0..self.instructions.len() as Node {
            let id = self.instructions[node as usize];
            let instruction = &self.source.module.instructions[id];
            let callees = instruction.called.iter().copied();
            let callees: Vec<ComputationId> =
                callees.filter(|&callee| self.source.graph.caller(callee) == Some(id)).collect();
            let call = match &instruction.op {
                Op::AsyncUpdate(_) | Op::AsyncDone(_) => {
                    let scratch = self.source.scratch_of[instruction.operands[0]];
                    self.source.scratch_of[id] = scratch;
                    self.parts.touches.extend(scratch.map(|scratch| (node, scratch)));
                    continue;
                }
                _ if callees.is_empty() => continue,
                Op::While => self.loop_call(node, &callees),
                Op::AsyncStart(_) => self.async_call(node, callees[0]),
                _ => self.plain_call(node, &callees),
            };
            self.calls.push(call);
        }
    }

    /// State that changes is counted by the body. The condition runs while all of it is live.
    fn loop_call(&self, node: Node, callees: &[ComputationId]) -> Call {
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
        let changing: u64 = changing.sum();
        let callees = callees.iter().map(|&c| (c, if c == body { 0 } else { changing })).collect();
        Call { node, callees, handed_over: changing, scratch: None }
    }

    /// An operand that nothing else reads is counted by the last callee that gets it: it may die there.
    fn plain_call(&mut self, node: Node, callees: &[ComputationId]) -> Call {
        let id = self.instructions[node as usize];
        let instruction = &self.source.module.instructions[id];
        let is_conditional = instruction.op == Op::Conditional;
        let mut seen = FxHashSet::default();
        let mut call = Call { node, callees: Vec::new(), handed_over: 0, scratch: None };
        for (i, &callee) in callees.iter().enumerate().rev() {
            call.callees.push((callee, call.handed_over));
            let operands = match is_conditional {
                true => &instruction.operands[i + 1..i + 2],
                false => &instruction.operands[..],
            };
            let locals: Vec<u32> = operands.iter().flat_map(|&operand| self.locals_of(operand)).collect();
            for local in locals {
                let value = &self.values[local as usize];
                let bytes = self.parts.storages[value.storage as usize].bytes;
                if bytes > 0 && value.readers == [node] && !value.returned && seen.insert(local) {
                    self.source.handed_over[callee].insert(value.value);
                    call.handed_over += bytes;
                }
            }
        }
        call
    }

    /// Whatever an asynchronous computation writes is there until the operation is done.
    fn async_call(&mut self, node: Node, callee: ComputationId) -> Call {
        let scratch = self.parts.storages.len() as StorageIndex;
        self.parts.storages.push(Storage::default());
        self.neighbors.push(Neighbors::default());
        let results = self.parts.definitions.iter().filter(|d| d.0 == node);
        let results = results.map(|d| self.parts.storages[d.1 as usize].bytes).sum();
        self.parts.definitions.push((node, scratch));
        self.parts.touches.push((node, scratch));
        self.source.scratch_of[self.instructions[node as usize]] = Some(scratch);
        Call { node, callees: vec![(callee, 0)], handed_over: 0, scratch: Some((scratch, results)) }
    }
}
