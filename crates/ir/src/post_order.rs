//! The order in which XLA walks over a computation.

use rustc_hash::FxHashSet;

use crate::{ComputationId, InstructionId, Module};

impl Module {
    /// The instructions of a computation in XLA's post-order (`HloComputation::MakeInstructionPostOrder`): depth first from
    /// those without users, control predecessors and then operands from left to right, each before its users. Linear.
    pub fn post_order(&self, computation: ComputationId) -> Vec<InstructionId> {
        let listed = &self.computations[computation].instructions;
        let mut is_used = FxHashSet::default();
        listed.iter().for_each(|&id| is_used.extend(self.instructions[id].operands.iter().copied()));
        let mut order = Vec::with_capacity(listed.len());
        let mut is_open = FxHashSet::default();
        let mut is_done = FxHashSet::default();
        let mut stack: Vec<InstructionId> = Vec::new();
        for &last in listed.iter().filter(|id| !is_used.contains(id)) {
            stack.push(last);
            while let Some(&id) = stack.last() {
                if !is_open.insert(id) {
                    stack.pop();
                    if is_done.insert(id) {
                        order.push(id);
                    }
                    continue;
                }
                let instruction = &self.instructions[id];
                stack.extend(instruction.operands.iter().rev().filter(|operand| !is_done.contains(operand)));
                let before = instruction.control_predecessors.iter();
                stack.extend(before.filter(|before| !is_done.contains(before)));
            }
        }
        order
    }
}
