//! `tuple-constant-expander`: turns constant tuples into tuples of constants.
//!
//! ```text
//!                                             a = f32[2] constant({1, 2})
//! c = (f32[2], s32[]) constant(({1,2}, 3))    b = s32[] constant(3)
//! x = f32[2] get-tuple-element(c), index=0 => c = (f32[2], s32[]) tuple(a, b)
//!                                             x = f32[2] get-tuple-element(c), index=0
//! ```
//!
//! Later passes then find data only in arrays, and tuple tables only where tuples are made. Also works on scheduled
//! modules: the parts take the place of the whole. Requires nothing. *Changed* means that a constant was split.

use memplan_ir::{InstructionId, Literal, Module, Op, Shape};
use memplan_rewriter::{Context, PassError, PassFn, Rewriter};

/// Takes tuple constants apart.
pub const TUPLE_CONSTANT_EXPANDER: PassFn = PassFn {
    name: "tuple-constant-expander",
    description: "turn constant tuples into tuples of constants",
    run,
};

fn run(module: &mut Module, _: &Context<'_>) -> Result<bool, PassError> {
    let is_tuple = |op: &Op| matches!(op, Op::Constant(Literal::Tuple(_)));
    if !module.instructions.values().any(|instruction| is_tuple(&instruction.op)) {
        return Ok(false);
    }
    let mut rewriter = Rewriter::new(module);
    rewriter.sweep(|r, id| {
        let Op::Constant(literal @ Literal::Tuple(_)) = r.op(id).clone() else { return None };
        let shape = r.shape(id).clone();
        Some(expand(r, literal, &shape))
    });
    Ok(rewriter.finish())
}

/// The value of a literal, in the layouts of a shape. Literals are no deeper than shapes may be.
fn expand(r: &mut Rewriter<'_>, literal: Literal, shape: &Shape) -> InstructionId {
    match (literal, shape) {
        (Literal::Tuple(elements), Shape::Tuple(shapes)) => {
            let parts: Vec<InstructionId> = elements
                .into_iter()
                .zip(shapes.iter())
                .map(|(element, shape)| expand(r, element, shape))
                .collect();
            r.emit(Op::Tuple, parts, shape.clone())
        }
        (Literal::Token, _) => r.emit(Op::AfterAll, [], shape.clone()),
        (literal, _) => r.emit(Op::Constant(literal), [], shape.clone()),
    }
}
