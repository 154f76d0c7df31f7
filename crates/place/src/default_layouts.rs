//! Gives all arrays one layout, in modules without layout assignment.
//!
//! ```text
//!   a = f32[2,3]{0,1} negate(p)              a = f32[2,3]{1,0} negate(p)
//!   b = f32[2,3]{1,0} call(a), ..      =>    b = f32[2,3]{1,0} call(a), ..
//! ```
//!
//! A call moves nothing, so its operand and its parameter must have equal layouts before memory is planned. Layout
//! assignment ensures that; this pass is for programs that are planned without it. It leaves alone modules whose
//! layouts agree, and those with a schedule or bitcasts, whose layouts were assigned elsewhere.

use memplan_ir::{Module, layouts_are_assigned, use_default_layouts};
use memplan_rewriter::{Context, PassError, PassFn};

/// The pass.
pub const DEFAULT_LAYOUTS: PassFn = PassFn {
    name: "default-layouts",
    description: "Use row-major layouts everywhere if layouts of unmoved values disagree",
    run,
};

fn run(module: &mut Module, _: &Context<'_>) -> Result<bool, PassError> {
    let changed = !layouts_are_assigned(module);
    if changed {
        use_default_layouts(module);
    }
    Ok(changed)
}
