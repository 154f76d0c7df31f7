//! `default-result-layouts`: makes results row-major, even if a transpose at the end is annotated with another order.
//!
//! ```text
//!   HloModule m, entry_computation_layout={(f32[4,8]{1,0})->f32[8,4]{0,1}}
//!   ROOT t = f32[8,4]{0,1} transpose(x)                 // as JAX writes it when it converts StableHLO
//!      =>
//!   HloModule m, entry_computation_layout={(f32[4,8]{1,0})->f32[8,4]{1,0}}
//!   ROOT t = f32[8,4]{1,0} transpose(x)
//! ```
//!
//! StableHLO has no layouts, so JAX's parameters and results are row-major, and XLA moves elements to make results
//! row-major (seen on jaxlib 0.10.2). Left alone: returned parameters, and results of control flow, calls and
//! libraries. *Changed* means that the layout of a result changed.

use memplan_ir::{InstructionId, Layout, Module, Op, Role, Shape, layouts_asked_for};
use memplan_rewriter::{Context, PassError, PassFn};

/// The pass.
pub const DEFAULT_RESULT_LAYOUTS: PassFn =
    PassFn { name: "default-result-layouts", description: "return results row-major, as JAX requires", run };

fn run(module: &mut Module, _: &Context<'_>) -> Result<bool, PassError> {
    if module.is_scheduled {
        return Ok(false);
    }
    let root = module.entry_computation().root;
    let is_tuple = module.instructions[root].op == Op::Tuple;
    let results: Vec<InstructionId> = match is_tuple {
        true => module.instructions[root].operands.to_vec(),
        false => vec![root],
    };
    let mut changed = false;
    for id in results {
        let computes = module.instructions[id].op.traits().role == Role::Computes
            && layouts_asked_for(module, id).is_none();
        let Shape::Array(array) = module.shape(id) else { continue };
        if computes && array.layout.as_ref().is_some_and(lies_otherwise) {
            let mut array = array.clone();
            array.layout = None;
            module.set_shape(id, Shape::Array(array));
            changed = true;
        }
    }
    if changed {
        if is_tuple {
            module.reshape_tuple(root);
        }
        let result = module.shape(root).clone();
        if let Some(layout) = &mut module.config.entry_computation_layout {
            layout.result = result;
        }
    }
    Ok(changed)
}

/// Whether a layout is an order, and not row-major.
fn lies_otherwise(layout: &Layout) -> bool {
    !layout.is_row_major() && layout.tiles.is_empty() && layout.memory_space == 0
}
