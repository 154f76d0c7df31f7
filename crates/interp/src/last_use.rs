//! The last use of every value.

use memplan_ir::{ComputationId, InstructionId, Module};
use rustc_hash::FxHashMap;

use crate::Error;

/// For each place in a sequence, the values that nothing after it wants.
pub(crate) type LastUses = Vec<Vec<InstructionId>>;

/// Looks at the order in which a computation runs. The root is never dead.
///
/// # Errors
/// When an instruction stands before its operand, or the root is missing: then the order is none.
pub(crate) fn last_uses(
    module: &Module,
    computation: ComputationId,
    sequence: &[InstructionId],
) -> Result<LastUses, Error> {
    let name = |id: InstructionId| &module.instructions[id].name;
    let root = module.computations[computation].root;
    let mut last: FxHashMap<InstructionId, usize> = FxHashMap::default();
    for (at, &id) in sequence.iter().enumerate() {
        for &operand in &module.instructions[id].operands {
            let Some(last) = last.get_mut(&operand) else {
                let (id, operand) = (name(id), name(operand));
                return Err(Error::BrokenPlan(format!("{id} is scheduled before its operand {operand}")));
            };
            *last = at;
        }
        last.insert(id, at);
    }
    if !last.contains_key(&root) {
        return Err(Error::BrokenPlan(format!("{}, which is the result, is not scheduled", name(root))));
    }
    let mut dead = vec![Vec::new(); sequence.len()];
    for &id in sequence.iter().filter(|&&id| id != root) {
        dead[last[&id]].push(id);
    }
    Ok(dead)
}
