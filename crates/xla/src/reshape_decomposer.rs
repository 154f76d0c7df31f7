//! `reshape-decomposer`: replaces reshapes and transposes that move nothing by bitcasts.
//!
//! ```text
//!   f32[6]{0} reshape(f32[2,3]{1,0} x)      =>     f32[6]{0} bitcast(x)
//! ```
//!
//! XLA's fusion looks at opcodes: a bitcast costs nothing, but a transpose is computed. Left alone: programs before
//! layout assignment. *Changed* means that there is a new bitcast.

use memplan_ir::{InstructionId, Module, Op, layouts_agree};
use memplan_rewriter::{Context, PassError, PassFn, cost};

/// The pass.
pub const RESHAPE_DECOMPOSER: PassFn = PassFn {
    name: "reshape-decomposer",
    description: "replace reshapes and transposes that move no bytes by bitcasts, as XLA does before it fuses",
    run,
};

fn run(module: &mut Module, _: &Context<'_>) -> Result<bool, PassError> {
    if !layouts_agree(module) {
        return Ok(false);
    }
    let views: Vec<InstructionId> =
        module.instructions.keys().filter(|&id| cost::moves_no_bytes(module, id)).collect();
    views.iter().for_each(|&id| module.instructions[id].op = Op::Bitcast);
    Ok(!views.is_empty())
}
