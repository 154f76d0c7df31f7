//! `layout-constraints`: removes the calls by which a program fixes the layout of a value (JAX's
//! `with_layout_constraint`).
//!
//! ```text
//!   r = f32[4,64]{1,0} custom-call(s), custom_call_target="LayoutConstraint"      =>      s
//! ```
//!
//! XLA follows these calls when it assigns layouts, and so does [`crate::GPU_LAYOUT_ASSIGNMENT`]. XLA removes them before it
//! fuses, so this pass runs after that one. Left alone: calls for another layout than that of their operand. Idempotent.

use memplan_ir::{InstructionId, Op};
use memplan_rewriter::{Rewriter, Sweep};

/// The pass.
pub const LAYOUT_CONSTRAINTS: Sweep = Sweep {
    name: "layout-constraints",
    description: "drop calls that fix layouts, once layouts are decided",
    rule,
};

fn rule(r: &mut Rewriter<'_>, id: InstructionId) -> Option<InstructionId> {
    let Op::CustomCall(call) = r.op(id) else { return None };
    let &[operand] = r.operands(id) else { return None };
    (&*call.target == "LayoutConstraint" && r.shape(operand) == r.shape(id)).then_some(operand)
}
