//! Gives each reader of a shared splat its own copy.
//!
//! ```text
//!   z = f32[1024,1024] broadcast(zero)            z = f32[1024,1024] broadcast(zero)
//!   a = f32[1024,1024] add(mask, z)         =>    y = f32[1024,1024] broadcast(zero)
//!   b = f32[1024,1024] add(weights, z)            a = f32[1024,1024] add(mask, z)
//!                                                 b = f32[1024,1024] add(weights, y)
//! ```
//!
//! Zeros added to a mask and zeros added to weights are unrelated, and either may be resized alone. CSE merges them
//! again later, if they are still equal.

use memplan_ir::{Cursor, InstructionId, Module, Names, Op};
use memplan_rewriter::{Context, PassError, PassFn};
use rustc_hash::FxHashSet;

/// The pass.
pub const UNSHARE_SPLATS: PassFn = PassFn {
    name: "unshare-splats",
    description: "Give every instruction its own splat, iota and constant, so that dimensions belong together only where values do",
    run,
};

fn run(module: &mut Module, _: &Context<'_>) -> Result<bool, PassError> {
    let mut names = Names::new(module);
    let mut changed = false;
    for computation in module.computations.keys().collect::<Vec<_>>() {
        let root = module.computations[computation].root;
        // Those that somebody reads already.
        let mut taken: FxHashSet<InstructionId> = FxHashSet::default();
        module.edit_in_order(computation, |module, id| {
            for i in 0..module.instructions[id].operands.len() {
                let operand = module.instructions[id].operands[i];
                if !depends_on_no_array(module, operand) || operand != root && taken.insert(operand) {
                    continue;
                }
                let sources = module.instructions[operand].operands.clone();
                let copy = Cursor::beside(module, &mut names, operand).copy_of(operand, sources);
                module.instructions[id].operands[i] = copy;
                changed = true;
            }
            module.list(id);
        });
    }
    Ok(changed)
}

/// Whether an array is made of a scalar, or of nothing.
fn depends_on_no_array(module: &Module, id: InstructionId) -> bool {
    let instruction = &module.instructions[id];
    let rank = |id: InstructionId| module.shape(id).as_array().map_or(0, |array| array.rank());
    match instruction.op {
        Op::Broadcast { .. } => rank(instruction.operands[0]) == 0,
        Op::Iota { .. } | Op::Constant(_) => rank(id) > 0,
        _ => false,
    }
}
