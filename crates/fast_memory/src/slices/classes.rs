//! Value numbering of scalars: finds kernels that slice at equal offsets.

use memplan_analysis::{Iteration, ScalarOrigin, ScalarScope, ValueId};
use memplan_ir::{InstructionId, Module, Opcode};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

/// Classes of scalars by computation: the members of a class are equal.
#[derive(Default)]
pub(crate) struct Classes {
    count: u32,
    existing: FxHashMap<Option<ValueId>, u32>,
    computed: FxHashMap<Operation, SmallVec<[(InstructionId, u32); 1]>>,
}

/// An operation on classes. An instruction of each class has its attributes.
type Operation = (Opcode, SmallVec<[u32; 3]>);

impl Classes {
    /// The class of a scalar that can be come by where the kernel runs.
    pub(crate) fn of(&mut self, module: &Module, scope: ScalarScope<'_>, id: InstructionId) -> u32 {
        let origin =
            scope.origin(module, id, Iteration::AtKernel).expect("scalars were found to be computable");
        let id = match origin {
            ScalarOrigin::Existing(id) => {
                let value = scope.facts.flow.value_of(id);
                let next = self.count;
                let class = *self.existing.entry(value).or_insert(next);
                self.count += u32::from(class == next);
                return class;
            }
            ScalarOrigin::Computed(id, _) => id,
        };
        let instruction = &module.instructions[id];
        let operands = instruction.operands.iter().map(|&operand| self.of(module, scope, operand)).collect();
        let known = self.computed.entry((instruction.opcode(), operands)).or_default();
        let same = known.iter().find(|(other, _)| {
            let other = &module.instructions[*other];
            (&other.op, other.shape, &other.called)
                == (&instruction.op, instruction.shape, &instruction.called)
        });
        if let Some(&(_, class)) = same {
            return class;
        }
        known.push((id, self.count));
        self.count += 1;
        self.count - 1
    }
}
