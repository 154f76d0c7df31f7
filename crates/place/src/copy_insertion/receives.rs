//! Buffers of receives in a loop: the next receive of an iteration overwrites the previous one's data.
//!
//! ```text
//!   body: d = recv-done(gte(state, 1))          body: d = recv-done(gte(state, 1))
//!         x = gte(d, 0)                               x = gte(d, 0)     c = copy(x)
//!         r = recv(token), ..              =>         r = recv(token), control-predecessors={c}, ..
//!         use = f(x, r')                              use = f(c, r')
//!         ROOT t = tuple(i, r)                        ROOT t = tuple(i, r)
//! ```
//!
//! Data in flight cannot be copied, so the received data is copied.

use memplan_analysis::{ValueId, ValueKind};
use memplan_ir::{InstructionId, Op, ShapeIndex};
use memplan_rewriter::PassError;

use super::{Because, MustShare, NAME, Separate};
use crate::Unsupported;

impl Separate<'_> {
    pub(super) fn receives(&mut self) -> Result<(), PassError> {
        let caller =
            self.facts.graph.caller(self.computation).map(|caller| &self.module.instructions[caller]);
        if !caller.is_some_and(|caller| caller.op == Op::While && caller.called[0] == self.computation) {
            return Ok(());
        }
        let computation = &self.module.computations[self.computation];
        let (state, root) = (computation.parameters[0], computation.root);
        let transfers = self.transfers_in(root);
        let is_receive = |id: InstructionId| matches!(self.module.instructions[id].op, Op::Recv(_));
        let receives: Vec<_> = transfers.iter().filter(|&&(_, id)| is_receive(id)).cloned().collect();
        let returned: Vec<InstructionId> = transfers.into_iter().map(|(_, id)| id).collect();
        for (index, receive) in receives {
            let before = self.facts.flow.find(state, &index.child(0)).expect("a body returns what it takes");
            let received = self.facts.flow.find(receive, &[0].into()).expect("a receive has data");
            if self.facts.flow.values[before].kind != ValueKind::LoopPhi {
                continue;
            }
            let Err(conflict) = self.join(self.class(before), self.class(received), None) else { continue };
            let because = Because { sharing: MustShare::Receive { by: self.name(receive) }, conflict };
            self.copy_what_arrived(before, &returned, &because);
            if self.join(self.class(before), self.class(received), None).is_err() {
                let source = Unsupported::Receive(self.name(receive));
                return Err(PassError::failed(NAME, source));
            }
        }
        Ok(())
    }

    /// The sends and receives in an explicit tuple, with their indices.
    fn transfers_in(&self, root: InstructionId) -> Vec<(ShapeIndex, InstructionId)> {
        let mut open = vec![(ShapeIndex::root(), root)];
        let mut transfers = Vec::new();
        while let Some((index, id)) = open.pop() {
            match self.module.instructions[id].op {
                Op::Tuple => {
                    let elements = (0..).zip(&self.module.instructions[id].operands);
                    open.extend(elements.map(|(i, &element)| (index.child(i), element)));
                }
                Op::Send(_) | Op::Recv(_) => transfers.push((index, id)),
                _ => {}
            }
        }
        transfers.sort();
        transfers
    }

    /// Makes all readers of a buffer's received data read a copy of it. A tuple, or a send that the computation
    /// returns, then returns the copy.
    fn copy_what_arrived(&mut self, value: ValueId, returned: &[InstructionId], because: &Because) {
        let is_arrived = |id: &InstructionId| {
            let instruction = &self.module.instructions[*id];
            matches!(instruction.op, Op::GetTupleElement { index: 0 })
                && matches!(self.module.instructions[instruction.operands[0]].op, Op::RecvDone(_))
                && self.facts.flow.value_of(*id) == Some(value)
        };
        let ids = self.nodes.iter().map(|node| node.id);
        let arrived: Vec<InstructionId> =
            ids.filter(|id| !self.class_of_copy.contains_key(id) && is_arrived(id)).collect();
        for source in arrived {
            let readers: Vec<usize> = (0..self.nodes.len())
                .filter(|&node| self.module.instructions[self.nodes[node].id].operands.contains(&source))
                .collect();
            let old = self.class_of_leaf(source);
            let copy = self.add_copy(source, because.clone());
            let (new, made) = (self.class_of_leaf(copy), self.node_of[&copy]);
            for node in readers {
                let id = self.nodes[node].id;
                self.module.instructions[id]
                    .operands
                    .iter_mut()
                    .filter(|o| **o == source)
                    .for_each(|o| *o = copy);
                self.nodes[made].successors.push(node);
                self.classes[old].touched_by.retain(|other| *other != node);
                self.classes[new].touched_by.push(node);
                let is_handed_on = self.module.instructions[id].op == Op::Tuple || returned.contains(&id);
                if is_handed_on && self.classes[old].returned > 0 {
                    self.classes[old].returned -= 1;
                    self.classes[new].returned += 1;
                }
            }
        }
    }
}
