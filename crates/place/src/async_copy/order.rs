//! Reorders instructions to leave copies the most time.

use memplan_ir::{InstructionId, Module, Op, Users};

/// Moves instructions that take no time to where they leave copies most time: parameters and constants to the front of
/// their computations, and tuples right before the control flow that reads them. The order of everything else is kept.
/// Linear in the module.
pub fn order_for_async_copies(module: &mut Module) {
    let users = Users::new(module);
    for computation in module.computations.values_mut() {
        let instructions = &module.instructions;
        let is_free = |id: InstructionId| instructions[id].control_predecessors.is_empty();
        let is_given = |&id: &InstructionId| instructions[id].op.is_input() && is_free(id);
        let is_state = |id: InstructionId| match users.of(id) {
            [user] => {
                instructions[id].op == Op::Tuple && is_free(id) && instructions[*user].op.runs_callees()
            }
            _ => false,
        };
        let old = std::mem::take(&mut computation.instructions);
        let (given, others): (Vec<_>, Vec<_>) = old.into_iter().partition(is_given);
        computation.instructions = given;
        for id in others {
            if instructions[id].op.runs_callees() {
                let mut tuples: Vec<InstructionId> = Vec::new();
                for &operand in instructions[id].operands.iter().filter(|&&o| is_state(o)) {
                    if !tuples.contains(&operand) {
                        tuples.push(operand);
                    }
                }
                computation.instructions.extend(tuples);
            }
            if !is_state(id) {
                computation.instructions.push(id);
            }
        }
    }
}
