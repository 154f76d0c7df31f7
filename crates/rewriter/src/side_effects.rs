//! Instructions with effects other than computing a value, which may be neither dropped nor merged.

use cranelift_entity::EntitySet;
use memplan_ir::{ComputationId, Instruction};

/// The computations that have an instruction with a side effect, their callees included.
#[derive(Clone, Debug, Default)]
pub struct SideEffects {
    computations: EntitySet<ComputationId>,
}

impl SideEffects {
    /// Records an instruction of a computation, after those of the computations that it calls. Returns whether it has a
    /// side effect.
    pub fn note(&mut self, computation: ComputationId, instruction: &Instruction) -> bool {
        let has_effect = self.of(instruction);
        if has_effect {
            self.computations.insert(computation);
        }
        has_effect
    }

    /// Whether an instruction has a side effect, itself or through the computations that it calls.
    pub fn of(&self, instruction: &Instruction) -> bool {
        instruction.op.has_side_effect()
            || instruction.called.iter().any(|&callee| self.computations.contains(callee))
    }
}
