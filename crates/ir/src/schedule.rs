//! Schedules: the order of execution, separate from the module.

use cranelift_entity::SecondaryMap;

use crate::{ComputationId, InstructionId, Module};

/// A total order of the instructions of every computation that has one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Schedule {
    sequences: SecondaryMap<ComputationId, Vec<InstructionId>>,
}

impl Schedule {
    /// The order in which the module lists its instructions: its schedule, if [`Module::is_scheduled`].
    pub fn in_textual_order(module: &Module) -> Schedule {
        let mut schedule = Schedule::default();
        for (id, computation) in module.computations.iter() {
            schedule.set(id, computation.instructions.clone());
        }
        schedule
    }

    /// The instructions of a computation in order of execution; empty when it has no order.
    pub fn sequence(&self, computation: ComputationId) -> &[InstructionId] {
        &self.sequences[computation]
    }

    /// Replaces the order of a computation.
    pub fn set(&mut self, computation: ComputationId, sequence: Vec<InstructionId>) {
        self.sequences[computation] = sequence;
    }

    /// Makes this the order of the module's instructions, and marks it scheduled.
    ///
    /// # Panics
    /// When a sequence is neither empty nor a permutation of its computation's instructions.
    pub fn apply(&self, module: &mut Module) {
        for (id, computation) in module.computations.iter_mut() {
            let sequence = self.sequence(id);
            if !sequence.is_empty() {
                assert_eq!(
                    sequence.len(),
                    computation.instructions.len(),
                    "a schedule has every instruction once"
                );
                computation.instructions.clear();
                computation.instructions.extend_from_slice(sequence);
            }
        }
        module.is_scheduled = true;
    }
}
