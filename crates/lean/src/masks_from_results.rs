//! `masks-from-results`: the mask of a ReLU is computed from its result, which is kept anyway.
//!
//! The gradient of `max(x, 0)` needs to know where `x > 0`. JAX compares `x`, so a compiler keeps the result of a product
//! for the mask, and its maximum for the next product. But `max(x, 0) > 0` wherever `x > 0`, and nowhere else. The
//! barrier stops the compiler from computing the maximum again from `x`.
//!
//! ```text
//!   x = dot(..)                          x = dot(..)
//!   y = maximum(x, 0)                    y = maximum(x, 0)
//!   m = compare(x, 0), GT          =>    b = opt-barrier(y)
//!   d = dot(y, w)                        m = compare(b, 0), GT
//!                                        d = dot(b, w)
//! ```
//!
//! The same holds for any number that both are compared with, and for `<=`; and for the minimum with `<` and `>=`. It holds
//! for infinities, for zeros of both signs, and where `x` is not a number: then so is the maximum, and both masks are false.
//!
//! Left alone: values that are needed otherwise, or that are computed from such values alone. Requires inlined calls.
//! Idempotent. *Changed* means that a mask reads a result. Linear in the module.

use memplan_ir::{
    BinaryOp, ComparisonDirection, ComparisonType, ComputationId, Cursor, Insert, InstructionId, Module,
    Names, Op, Scalar, Users,
};
use memplan_rewriter::cost::{CostClass, class_of};
use memplan_rewriter::{Context, PassError, PassFn, loops};

/// The pass.
pub const MASKS_FROM_RESULTS: PassFn = PassFn {
    name: "masks-from-results",
    description: "Compute the mask of a maximum from its result, which is kept anyway, behind a barrier",
    run,
};

fn run(module: &mut Module, _: &Context<'_>) -> Result<bool, PassError> {
    let users = Users::new(module);
    let bounds = bounds(module, &users);
    let mut names = Names::new(module);
    for Bound { result, masks } in &bounds {
        let (parent, shape) = (module.instructions[*result].parent, module.shape(*result).clone());
        let mut at = Cursor::unlisted(module, &mut names, parent).with_metadata_of(*result);
        let kept = at.insert_shaped(Op::OptimizationBarrier, [*result], shape);
        users.of(*result).iter().for_each(|&user| module.replace_operand(user, *result, kept));
        masks.iter().for_each(|&mask| module.instructions[mask].operands[0] = kept);
    }
    // Bounds are in the order of computations.
    let mut changed: Vec<ComputationId> =
        bounds.iter().map(|bound| module.instructions[bound.result].parent).collect();
    changed.dedup();
    changed.into_iter().for_each(|computation| module.put_operands_first(computation));
    Ok(!bounds.is_empty())
}

/// A maximum or minimum of a value and a number, and the masks that can be computed from it.
struct Bound {
    result: InstructionId,
    masks: Vec<InstructionId>,
}

/// Those of values that nothing else needs, and that have other readers.
fn bounds(module: &Module, users: &Users) -> Vec<Bound> {
    let listed = module.computations.values().flat_map(|computation| &computation.instructions);
    let of_result = |&result: &InstructionId| {
        let Op::Binary(op @ (BinaryOp::Maximum | BinaryOp::Minimum)) = module.instructions[result].op else {
            return None;
        };
        let &[a, b] = &module.instructions[result].operands[..] else { return None };
        let (value, number) = match (splat(module, a), splat(module, b)) {
            (None, Some(number)) => (a, number),
            (Some(number), None) => (b, number),
            _ => return None,
        };
        let (masks, others): (Vec<_>, Vec<_>) =
            users.of(value).iter().copied().filter(|&user| user != result).partition(|&user| {
                let instruction = &module.instructions[user];
                is_same_for(op, &instruction.op)
                    && instruction.operands[0] == value
                    && splat(module, instruction.operands[1]) == Some(number)
            });
        let is_free = others.is_empty() && !masks.is_empty() && !users.of(result).is_empty();
        (is_free && is_computed_for_it_alone(module, users, value)).then_some(Bound { result, masks })
    };
    listed.filter_map(of_result).collect()
}

/// Whether a comparison with a number finds the same for a value and for its maximum or minimum with that number.
fn is_same_for(bound: BinaryOp, op: &Op) -> bool {
    use ComparisonDirection::{Ge, Gt, Le, Lt};
    let Op::Compare { direction, comparison_type } = op else { return false };
    let directions = if bound == BinaryOp::Maximum { [Gt, Le] } else { [Lt, Ge] };
    directions.contains(direction) && *comparison_type != Some(ComparisonType::TotalOrder)
}

/// Whether a product, convolution or sum as large as a value is needed for it, but nowhere else.
fn is_computed_for_it_alone(module: &Module, users: &Users, value: InstructionId) -> bool {
    let bytes = module.shape(value).dense_bytes();
    let mut open = vec![value];
    while let Some(id) = open.pop() {
        match class_of(module, id) {
            CostClass::Hero(_) if module.shape(id).dense_bytes() >= bytes => return true,
            CostClass::Cheap => {
                let operands = module.instructions[id].operands.iter().copied();
                open.extend(operands.filter(|&operand| users.of(operand).len() == 1));
            }
            CostClass::Hero(_) | CostClass::Free | CostClass::Opaque => {}
        }
    }
    false
}

/// The number that all elements of an array are.
fn splat(module: &Module, id: InstructionId) -> Option<Scalar> {
    match module.instructions[id].op {
        Op::Broadcast { .. } => loops::scalar(module, module.instructions[id].operands[0]),
        _ => loops::scalar(module, id),
    }
}
