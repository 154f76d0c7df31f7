//! `loop-buffers`: gives each array of equal elements that loops carry a broadcast of its own.
//!
//! ```text
//!   z = f32[50,1024] broadcast(zero)           z = f32[50,1024] broadcast(zero)
//!   s = (f32[50,1024], ..) tuple(z, z)    =>   y = f32[50,1024] broadcast(zero)
//!   w = while(s)                               s = (f32[50,1024], ..) tuple(z, y)
//! ```
//!
//! A scan writes each of its results into an array of zeros. If all results shared one array of zeros, each would be a
//! copy of it, in addition to the zeros. libtpu allocates each separately (`AllocateBuffer`, seen on libtpu 0.0.52).
//! Left alone: other values than broadcasts of a scalar, and arrays that only the loop reads. *Changed* means that an
//! array was added.

use memplan_ir::{Cursor, InstructionId, Module, Names, Op, Users};
use memplan_rewriter::{Context, PassError, PassFn};
use rustc_hash::FxHashSet;

/// The pass.
pub const LOOP_BUFFERS: PassFn =
    PassFn { name: "loop-buffers", description: "make what loops fill where it lies, as libtpu does", run };

fn run(module: &mut Module, _: &Context<'_>) -> Result<bool, PassError> {
    let users = Users::new(module);
    let is_state = |id: InstructionId| {
        let is_loop = |&user: &InstructionId| module.instructions[user].op == Op::While;
        module.instructions[id].op == Op::Tuple && users.of(id).iter().any(is_loop)
    };
    let states: FxHashSet<InstructionId> = module.instructions.keys().filter(|&id| is_state(id)).collect();
    let mut names = Names::new(module);
    let mut changed = false;
    for computation in module.computations.keys().collect::<Vec<_>>() {
        module.edit_in_order(computation, |module, id| {
            let carried = if states.contains(&id) { module.instructions[id].operands.len() } else { 0 };
            for i in 0..carried {
                let operands = &module.instructions[id].operands;
                let operand = operands[i];
                let is_shared = users.of(operand).len() > 1 || operands[..i].contains(&operand);
                if !is_shared || !module.instructions[operand].op.repeats_scalar() {
                    continue;
                }
                let sources = module.instructions[operand].operands.clone();
                let alone = Cursor::beside(module, &mut names, operand).copy_of(operand, sources);
                module.instructions[id].operands[i] = alone;
                changed = true;
            }
            module.list(id);
        });
    }
    Ok(changed)
}
