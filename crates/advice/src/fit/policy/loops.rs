//! What a policy saves within loops.

use memplan_ir::{Access, ComputationId, InstructionId, Module, Op, Users};
use memplan_passes::Saves;
use rustc_hash::FxHashSet;

/// Whether a policy saves values in the steps of loops that the program does not keep for its backward half already, as in
/// loops whose bodies are checkpointed. JAX then stacks them, one for each step. Takes time linear in the module.
pub(super) fn save_more(
    module: &Module,
    instructions: impl Iterator<Item = InstructionId>,
    saves: Saves,
) -> bool {
    let users = Users::new(module);
    let loops = instructions.filter(|&id| module.instructions[id].op == Op::While);
    let mut open: Vec<ComputationId> = loops.flat_map(|id| module.instructions[id].called.to_vec()).collect();
    let mut seen: FxHashSet<ComputationId> = FxHashSet::default();
    while let Some(computation) = open.pop() {
        if !seen.insert(computation) {
            continue;
        }
        for &id in &module.computations[computation].instructions {
            let instruction = &module.instructions[id];
            if saves.saves(&instruction.op) && !is_stacked(module, &users, id) {
                return true;
            }
            open.extend(&instruction.called);
        }
    }
    false
}

/// Whether a value is written into an array of all steps.
fn is_stacked(module: &Module, users: &Users, id: InstructionId) -> bool {
    users.of(id).iter().any(|&user| match &module.instructions[user].op {
        Op::DynamicUpdateSlice => module.instructions[user].operands[1] == id,
        Op::Convert => is_stacked(module, users, user),
        op => op.traits().access == Access::Reindexing && is_stacked(module, users, user),
    })
}
