//! `bitcast-expander`: replaces bitcasts by transposes and reshapes, if layouts will be assigned again.
//!
//! ```text
//!   t = f32[2,3]{0,1} bitcast(p)              r = f32[3,2]{1,0} reshape(p)
//!   e = (f32[2,3]{1,0}) tuple(t)         =>   t = f32[2,3]{0,1} transpose(r), dimensions={1,0}
//!                                             e = (f32[2,3]{1,0}) tuple(t)
//! ```
//!
//! The tuple's element is row-major, although nothing moves it, so the layouts of such a module are leftovers. Leaves
//! alone: scheduled modules, and layouts that agree. *Changed* means that a bitcast was replaced.

use memplan_ir::{Module, expand_bitcasts};
use memplan_rewriter::{Context, PassError, PassFn};

/// The pass.
pub const BITCAST_EXPANDER: PassFn = PassFn {
    name: "bitcast-expander",
    description: "replace bitcasts by transposes and reshapes, if layouts do not agree",
    run,
};

fn run(module: &mut Module, _: &Context<'_>) -> Result<bool, PassError> {
    let changed = expand_bitcasts(module);
    if changed {
        module.compact();
    }
    Ok(changed)
}
