//! `dce`: drops instructions whose value is not needed, and computations without callers.
//!
//! ```text
//! ENTRY main {                          ENTRY main {
//!   p = f32[4] parameter(0)               p = f32[4] parameter(0)
//!   q = f32[4] parameter(1)        =>     q = f32[4] parameter(1)
//!   dead = f32[4] add(p, q)               ROOT r = f32[4] negate(p)
//!   ROOT r = f32[4] negate(p)           }
//! }
//! ```
//!
//! Leaves alone: parameters, instructions with side effects (their own or through what they call), and both ends of
//! control dependencies. A loop without side effects is dropped even if it would never end, as in XLA. Requires
//! nothing; keeps a schedule a schedule. *Changed* means that something was dropped.

use cranelift_entity::EntitySet;
use memplan_ir::Module;

use crate::rewrite::Rewriter;
use crate::{Context, PassError, PassFn};

/// Drops dead instructions and computations.
pub const DCE: PassFn =
    PassFn { name: "dce", description: "drop instructions and computations that nothing needs", run };

fn run(module: &mut Module, _: &Context<'_>) -> Result<bool, PassError> {
    let has_dead_computation = has_dead_computation(module);
    let mut rewriter = Rewriter::new(module);
    if has_dead_computation || rewriter.has_dead_instruction() {
        rewriter.mark_changed();
    }
    Ok(rewriter.finish())
}

fn has_dead_computation(module: &Module) -> bool {
    let mut live = EntitySet::new();
    live.insert(module.entry);
    let mut n_live = 1;
    let mut stack = vec![module.entry];
    while let Some(computation) = stack.pop() {
        for (_, instruction) in module.instructions_of(computation) {
            for &callee in &instruction.called {
                if live.insert(callee) {
                    n_live += 1;
                    stack.push(callee);
                }
            }
        }
    }
    n_live < module.computations.len()
}
