//! What a policy saves within loops.

use memplan_ir::{Access, ComputationId, Instruction, InstructionId, Module, Op};
use memplan_passes::Saves;
use rustc_hash::FxHashSet;

/// Whether a policy saves values in the steps of loops that the program does not keep for its backward half already, as in
/// loops whose bodies are checkpointed. JAX then stacks them, one for each step. Takes time linear in the module.
pub(super) fn save_more(
    module: &Module,
    instructions: impl Iterator<Item = InstructionId>,
    saves: Saves,
) -> bool {
    let loops = instructions.filter(|&id| module.instructions[id].op == Op::While);
    let mut open: Vec<ComputationId> = loops.flat_map(|id| module.instructions[id].called.to_vec()).collect();
    let mut seen: FxHashSet<ComputationId> = FxHashSet::default();
    let (mut saved, mut stacked) = (Vec::new(), FxHashSet::default());
    while let Some(computation) = open.pop() {
        if !seen.insert(computation) {
            continue;
        }
        for &id in &module.computations[computation].instructions {
            let instruction = &module.instructions[id];
            if saves.saves(&instruction.op) {
                saved.push(id);
            }
            if instruction.op == Op::DynamicUpdateSlice {
                add_sources(module, instruction.operands[1], &mut stacked);
            }
            open.extend(&instruction.called);
        }
    }
    saved.iter().any(|id| !stacked.contains(id))
}

/// Adds a value that is written into an array of all steps, and the values that it has the elements of.
fn add_sources(module: &Module, value: InstructionId, stacked: &mut FxHashSet<InstructionId>) {
    let mut value = Some(value);
    while let Some(id) = value.filter(|&id| stacked.insert(id)) {
        let Instruction { op, operands, .. } = &module.instructions[id];
        let has_elements = *op == Op::Convert || op.traits().access == Access::Reindexing;
        value = operands.first().copied().filter(|_| has_elements);
    }
}
