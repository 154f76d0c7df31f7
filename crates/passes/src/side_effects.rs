//! Which instructions do something besides computing a value, and so may be neither dropped nor merged.

use cranelift_entity::EntitySet;
use memplan_ir::{ComputationId, Instruction, Module};

/// The computations that have an instruction with a side effect, their callees included.
#[derive(Clone, Debug, Default)]
pub(crate) struct SideEffects {
    computations: EntitySet<ComputationId>,
}

impl SideEffects {
    /// Looks at every computation once, callees before callers.
    pub(crate) fn new(module: &Module) -> SideEffects {
        let mut effects = SideEffects::default();
        for (id, computation) in module.computations.iter() {
            for &instruction in &computation.instructions {
                effects.note(id, &module.instructions[instruction]);
            }
        }
        effects
    }

    /// Takes note of an instruction of a computation.
    pub(crate) fn note(&mut self, computation: ComputationId, instruction: &Instruction) {
        if self.of(instruction) {
            self.computations.insert(computation);
        }
    }

    /// Whether an instruction has a side effect, itself or through what it calls.
    pub(crate) fn of(&self, instruction: &Instruction) -> bool {
        instruction.op.has_side_effect()
            || instruction.called.iter().any(|&callee| self.computations.contains(callee))
    }
}
