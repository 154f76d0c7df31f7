//! `gpu-layout-assignment`: puts the dimensions of each array in the order that XLA's GPU compiler gives it.
//!
//! ```text
//!   t = f32[8,4] transpose(x)                e = f32[4,8] exponential(x)
//!   e = f32[8,4] exponential(t)       =>     r = f32[8] reduce(e), dimensions={0}
//!   r = f32[8] reduce(e), dimensions={1}
//! ```
//!
//! XLA assigns layouts: libraries ask for them, reductions of many elements want theirs innermost, and operations on
//! elements, slices and loops pass them on ([`constraints`]). A transpose is then another view of the same bytes. Where
//! two constraints differ, XLA copies. Here all layouts are row-major, so dimensions change places instead
//! ([`physical`]), and copies are transposes.
//!
//! Left alone: operations that are row-major in any case, like convolutions, whose operands other passes transpose.
//! *Changed* means that an array is in another order.

mod constraints;
mod orders;
mod physical;

use memplan_ir::{Module, Op};
use memplan_rewriter::{Context, PassError, PassFn};

use orders::Orders;

/// The pass.
pub const GPU_LAYOUT_ASSIGNMENT: PassFn = PassFn {
    name: "gpu-layout-assignment",
    description: "order the dimensions of arrays as XLA's GPU compiler lays them out",
    run,
};

fn run(module: &mut Module, _: &Context<'_>) -> Result<bool, PassError> {
    let is_needed = |orders: &Orders| !orders.are_row_major() || notes_orders(module);
    let Some(orders) = constraints::orders(module).filter(is_needed) else {
        return Ok(false);
    };
    physical::put_in_order(module, orders);
    module.compact();
    Ok(true)
}

/// Whether a product has an order that a front end noted for a transpose, which others took for the order of its bytes.
fn notes_orders(module: &Module) -> bool {
    module.instructions.iter().any(|(id, instruction)| {
        let array = module.shape(id).as_array();
        matches!(instruction.op, Op::Dot(_)) && array.is_some_and(|array| !array.is_row_major())
    })
}
