//! `widen-for-each-reader`: kernels widen floats themselves, even where somebody else needs the wide array in memory.
//!
//! ```text
//!   w = f32[8,4096] convert(x)                     w = f32[8,4096] convert(x)
//!   e = f32[8,4096] exponential(w)          =>     e = f32[8,4096] exponential(w)
//!   g = f32[8] gather(w, at)                       v = f32[8,4096] convert(x)
//!                                                  g = f32[8] gather(v, at)
//! ```
//!
//! XLA may compute a conversion to a wider type in any kernel that reads it, since loading the narrow array takes less
//! time. So the narrow array lives as long as they do, and the wide one is stored for the others.
//!
//! Left alone: conversions that only kernels read, or none. *Changed* means that there is a new conversion.

use memplan_ir::{ArrayShape, Cursor, InstructionId, Module, Names, Op, Users};
use memplan_rewriter::cost::{self, CostClass};
use memplan_rewriter::{Context, PassError, PassFn, call_graph};

/// The pass.
pub const WIDEN_FOR_EACH_READER: PassFn = PassFn {
    name: "widen-for-each-reader",
    description: "store no wide array for kernels that can widen a narrow one, as XLA does",
    run,
};

fn run(module: &mut Module, _: &Context<'_>) -> Result<bool, PassError> {
    let graph = call_graph(module, WIDEN_FOR_EACH_READER.name)?;
    let users = Users::new(module);
    let mut names = Names::new(module);
    let mut changed = false;
    for &computation in graph.sequential() {
        module.edit_in_order(computation, |module, id| {
            module.list(id);
            if !widens(module, id) || module.computations[computation].root == id {
                return;
            }
            let (stored, computed): (Vec<_>, Vec<_>) =
                users.of(id).iter().partition(|&&user| reads_memory(module, user, id));
            if stored.is_empty() || computed.is_empty() {
                return;
            }
            let operand = module.instructions[id].operands[0];
            let copy = Cursor::beside(module, &mut names, id).copy_of(id, [operand]);
            stored.iter().for_each(|&&user| module.replace_operand(user, id, copy));
            changed = true;
        });
    }
    Ok(changed)
}

fn widens(module: &Module, id: InstructionId) -> bool {
    let instruction = &module.instructions[id];
    let bits = |id| {
        let array =
            module.shape(id).as_array().filter(|array: &&ArrayShape| array.element_type.is_floating());
        array.map(|array| array.element_type.bits())
    };
    instruction.op == Op::Convert
        && bits(instruction.operands[0]).zip(bits(id)).is_some_and(|(from, to)| from < to)
}

/// Whether an instruction reads an operand from memory, even if its kernel could compute it.
fn reads_memory(module: &Module, user: InstructionId, operand: InstructionId) -> bool {
    let instruction = &module.instructions[user];
    match instruction.op {
        Op::Gather(_) | Op::Pad { .. } | Op::DynamicUpdateSlice | Op::Scatter(_) => {
            instruction.operands[0] == operand
        }
        Op::Concatenate { .. } => true,
        _ => matches!(cost::class_of(module, user), CostClass::Free | CostClass::Opaque),
    }
}
