//! The verifier: reports all errors of a module in one run.

mod aliasing;
mod buffers;
mod error;
mod groups;
mod pairs;
mod shapes;
mod structure;

pub use error::*;

use crate::{ComputationId, EntitySet, InstructionId, Module};

/// Checks a module and reports everything that is wrong with it.
///
/// Checks, in this order:
///
/// 1. *Structure.* Ids lead somewhere; operands precede their users in the same computation; parameters are
///    numbered without gaps; roots are where they belong; callees precede callers, so nothing recurs; nobody
///    calls the entry; control dependencies make no circle, and follow the order where the module is scheduled.
/// 2. *Shapes.* Declared shapes and layouts make sense; each is what [`infer`](crate::infer) says, layouts aside.
///    This covers operand and computation signatures too.
/// 3. *Pairs.* What is started is done, once and by the right operation.
/// 4. *Groups* of devices of collectives.
/// 5. *The interface.* Entry layout, input-output aliases, buffer donors.
/// 6. *References to memory*, `b(f32[8])`, in a module that is sound otherwise: who may have them, and who writes there.
///
/// An instruction whose structure is broken is not looked at further; all others are.
///
/// Does not check that layouts of operands suit an operation, the contents of backend configurations, shardings, and
/// that sends meet their receives on another device.
///
/// Time is linear in the size of module and shapes.
///
/// # Errors
/// Everything that is wrong with it.
pub fn verify(module: &Module) -> Result<(), VerifyErrors> {
    let mut verifier = Verifier::new(module);
    verifier.check_structure();
    verifier.check_shapes();
    verifier.check_pairs();
    verifier.check_groups();
    verifier.check_interface();
    verifier.check_buffers();
    verifier.finish()
}

struct Verifier<'a> {
    module: &'a Module,
    errors: Vec<VerifyError>,
    /// Instructions whose structure is sound: their ids may be followed.
    sound: EntitySet<InstructionId>,
}

impl<'a> Verifier<'a> {
    fn new(module: &'a Module) -> Verifier<'a> {
        let sound = EntitySet::with_capacity(module.instructions.len());
        Verifier { module, errors: Vec::new(), sound }
    }

    fn finish(mut self) -> Result<(), VerifyErrors> {
        if self.errors.is_empty() {
            return Ok(());
        }
        let key = |error: &VerifyError| match error {
            VerifyError::Module(_) => (0, 0, 0),
            VerifyError::Computation { id, .. } => (1, id.as_u32(), 0),
            VerifyError::Instruction { id, .. } => {
                let parent = self.module.instructions.get(*id).map_or(u32::MAX, |i| i.parent.as_u32());
                (1, parent, id.as_u32() + 1)
            }
        };
        self.errors.sort_by_key(key);
        Err(VerifyErrors(self.errors))
    }

    fn report_module(&mut self, error: ModuleError) {
        self.errors.push(VerifyError::Module(error));
    }

    fn report_computation(&mut self, id: ComputationId, source: ComputationError) {
        let name = self.module.computations[id].name.clone();
        self.errors.push(VerifyError::Computation { id, name, source });
    }

    fn report(&mut self, id: InstructionId, source: impl Into<InstructionError>) {
        let instruction = &self.module.instructions[id];
        self.errors.push(VerifyError::Instruction {
            id,
            name: instruction.name.clone(),
            opcode: instruction.opcode(),
            computation: self
                .module
                .computations
                .get(instruction.parent)
                .map_or("?".into(), |c| c.name.clone()),
            source: source.into(),
        });
    }

    /// The sound instructions in order.
    fn sound_instructions(&self) -> impl Iterator<Item = (InstructionId, &'a crate::Instruction)> + use<'a> {
        let (module, sound) = (self.module, self.sound.clone());
        let ids = module.computations.values().flat_map(|computation| &computation.instructions);
        ids.filter(move |&&id| sound.contains(id)).map(|&id| (id, &module.instructions[id]))
    }
}
