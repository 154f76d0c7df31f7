//! Sums over the batch: the operations that make one, and those that may be applied to each part's summand instead of
//! the sum.

use memplan_ir::{ArrayShape, BinaryOp, InstructionId, Module, Op, UnaryOp};
use memplan_rewriter::loops::is_zero;
use memplan_rewriter::plain_combiner;
use smallvec::SmallVec;

use super::labels::{Label, Needs};
use memplan_rewriter::rows::{Outcome, Rows, Treatment};

/// The treatment of an instruction that adds up the rows of an operand, beside reductions and products: the gradient of a
/// convolution's weights, and that of a table that rows were gathered from.
pub(super) fn sum_over(module: &Module, id: InstructionId, number: usize, rows: Rows) -> Option<Treatment> {
    let instruction = &module.instructions[id];
    let part = |dimension: i64| Some(Rows { dimension: dimension as usize, ..rows });
    let parts: SmallVec<[Option<Rows>; 4]> = match &instruction.op {
        Op::Convolution(it) if it.feature_group_count == 1 => {
            let dimensions = [it.dimensions.input_feature, it.dimensions.kernel_input_feature];
            (dimensions[number] == rows.dimension as i64).then_some(())?;
            dimensions.into_iter().map(part).collect()
        }
        Op::Scatter(scatter) if instruction.operands.len() == 3 && number > 0 => {
            (plain_combiner(module, instruction.called[0])? == BinaryOp::Add).then_some(())?;
            let updates = module.shape(instruction.operands[2]).as_array()?.rank() as i64;
            // Dimensions of the updates that count indices, in the order of the dimensions of the indices.
            let counting = (0..updates).filter(|d| !scatter.update_window_dims.contains(d));
            let indices = module.shape(instruction.operands[1]).as_array()?.rank() as i64;
            let of_indices = (0..indices).filter(|d| *d != scatter.index_vector_dim);
            let is_batching = |d: i64| scatter.scatter_indices_batching_dims.contains(&d);
            let place = |(update, index): (i64, i64)| {
                let own = if number == 1 { index } else { update };
                (own == rows.dimension as i64 && !is_batching(index)).then_some((update, index))
            };
            let (update, index) = counting.zip(of_indices).find_map(place)?;
            [None, part(index), part(update)].into_iter().collect()
        }
        _ => return None,
    };
    Some(Treatment { outcome: Outcome::Sum(BinaryOp::Add), operands: parts })
}

/// What an operation needs of its operands so that the operation of a sum is the sum of the operation, where some operands
/// are sums and all others are whole; `None` where there is no such thing. A whole operand that is needed as a sum must be
/// zero.
pub(super) fn passing(module: &Module, id: InstructionId, labels: &[Label]) -> Option<Needs> {
    let instruction = &module.instructions[id];
    if labels.iter().any(|label| matches!(label, Label::Rows(_) | Label::Later)) {
        return None;
    }
    let is_whole = |number: usize| labels[number] == Label::Whole;
    // The first operands are sums, as many as `n`; the others are whole.
    let sums = |n: usize| -> Option<Needs> {
        let need = |number| if number < n { Label::Sum } else { Label::Whole };
        (n..labels.len()).all(is_whole).then(|| (0..labels.len()).map(need).collect())
    };
    let as_they_are = || labels.iter().copied().collect();
    match &instruction.op {
        Op::Unary(UnaryOp::Negate)
        | Op::Copy
        | Op::Reshape { .. }
        | Op::Transpose { .. }
        | Op::Slice { .. }
        | Op::Reverse { .. }
        | Op::DynamicSlice { .. } => sums(1),
        Op::Convert => {
            let are_floats = [id, instruction.operands[0]].into_iter().all(|id| is_float(module, id));
            are_floats.then(as_they_are)
        }
        Op::Broadcast { .. } => {
            let count = |id| module.shape(id).as_array().and_then(ArrayShape::element_count);
            (count(id) == count(instruction.operands[0])).then(as_they_are)
        }
        Op::Binary(BinaryOp::Add | BinaryOp::Subtract) | Op::DynamicUpdateSlice | Op::Pad { .. } => sums(2),
        Op::Concatenate { .. } => sums(labels.len()),
        Op::Binary(BinaryOp::Multiply) | Op::Dot(_) => (is_whole(0) || is_whole(1)).then(as_they_are),
        Op::Binary(BinaryOp::Divide) => (is_whole(1) && is_float(module, id)).then(as_they_are),
        Op::Select => is_whole(0).then(|| Needs::from_slice(&[Label::Whole, Label::Sum, Label::Sum])),
        Op::Reduce { .. } if labels.len() == 2 => {
            let adds = plain_combiner(module, instruction.called[0]) == Some(BinaryOp::Add);
            let starts_at_zero = is_zero(module, instruction.operands[1]);
            (adds && starts_at_zero).then(as_they_are)
        }
        _ => None,
    }
}

fn is_float(module: &Module, id: InstructionId) -> bool {
    module.shape(id).as_array().is_some_and(|array| array.element_type.is_floating())
}
