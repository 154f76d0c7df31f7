//! XLA's walk over a program, by which it orders buffers of one size.

use cranelift_entity::SecondaryMap;
use memplan_analysis::CallGraph;
use memplan_ir::{InstructionId, Module, Users};

/// When the walk comes to each instruction: to callees before callers, to operands before their users, to the first operand
/// first (`HloComputation::MakeInstructionPostOrder`). Linear.
pub(crate) fn walk(module: &Module, graph: &CallGraph) -> SecondaryMap<InstructionId, u32> {
    let users = Users::new(module);
    let mut turns = SecondaryMap::new();
    let mut is_seen: SecondaryMap<InstructionId, bool> = SecondaryMap::new();
    let mut n_seen = 0;
    let mut open = Vec::new();
    for &computation in graph.sequential() {
        let listed = &module.computations[computation].instructions;
        for &end in listed.iter().filter(|id| users.of(**id).is_empty()) {
            open.push((end, false));
            while let Some((id, are_operands_done)) = open.pop() {
                if are_operands_done {
                    turns[id] = n_seen;
                    n_seen += 1;
                } else if !std::mem::replace(&mut is_seen[id], true) {
                    open.push((id, true));
                    let instruction = &module.instructions[id];
                    let before = instruction.operands.iter().chain(&instruction.control_predecessors);
                    open.extend(before.rev().map(|&before| (before, false)));
                }
            }
        }
    }
    turns
}
