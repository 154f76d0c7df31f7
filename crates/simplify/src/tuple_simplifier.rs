//! `tuple-simplifier`: removes tuples that are only taken apart again.
//!
//! ```text
//! t = (f32[4], s32[]) tuple(a, i)                 t = (f32[4], s32[]) parameter(0)
//! x = f32[4] get-tuple-element(t), index=0        x = f32[4] get-tuple-element(t), index=0
//! ROOT r = f32[4] negate(x)                       i = s32[] get-tuple-element(t), index=1
//!                                                 ROOT r = (f32[4], s32[]) tuple(x, i)
//!      =>                                              =>
//! ROOT r = f32[4] negate(a)                       ROOT t = (f32[4], s32[]) parameter(0)
//! ```
//!
//! Elements of an optimization barrier are dropped if neither the barrier's readers nor others read them.
//!
//! Leaves alone: other elements of a barrier, since their operands must run before everything after it; a tuple made of
//! all elements of a larger one. Requires nothing. *Changed* means that an instruction was replaced.

use memplan_ir::{InstructionId, Module, Op, Shape};
use memplan_rewriter::{Context, PassError, PassFn, Rewriter};

use crate::tuple_uses::unused_elements;

/// Looks through tuples.
pub const TUPLE_SIMPLIFIER: PassFn =
    PassFn { name: "tuple-simplifier", description: "remove tuples that are only taken apart again", run };

fn run(module: &mut Module, _: &Context<'_>) -> Result<bool, PassError> {
    let mut rewriter = Rewriter::new(module);
    let unused = unused_elements(&rewriter, |op| matches!(op, Op::OptimizationBarrier));
    rewriter.sweep(|r, id| match r.op(id) {
        Op::GetTupleElement { index } => element_of_tuple(r, id, *index),
        Op::Tuple => whole_again(r, id),
        // It copies no more than where the elements are.
        Op::Copy if r.shape(id).is_tuple() => Some(r.operand(id, 0)),
        Op::OptimizationBarrier => without_unused_elements(r, id, unused.of(id)),
        _ => None,
    });
    Ok(rewriter.finish())
}

/// The element itself where the tuple is put together nearby.
pub(crate) fn element_of_tuple(r: &Rewriter<'_>, id: InstructionId, index: u32) -> Option<InstructionId> {
    let tuple = r.operand(id, 0);
    matches!(r.op(tuple), Op::Tuple).then(|| r.operand(tuple, index as usize))
}

/// The tuple whose elements, all of them and in order, this tuple is put together from.
pub(crate) fn whole_again(r: &Rewriter<'_>, id: InstructionId) -> Option<InstructionId> {
    let elements = r.operands(id);
    let source_of = |i: usize| match r.op(elements[i]) {
        Op::GetTupleElement { index } if *index as usize == i => Some(r.operand(elements[i], 0)),
        _ => None,
    };
    let whole = (!elements.is_empty()).then(|| source_of(0)).flatten()?;
    let is_whole = r.shape(whole).as_tuple().is_some_and(|parts| parts.len() == elements.len())
        && (1..elements.len()).all(|i| source_of(i) == Some(whole));
    is_whole.then_some(whole)
}

/// A barrier over fewer elements, followed by a tuple with the dropped ones' old values.
fn without_unused_elements(
    r: &mut Rewriter<'_>,
    id: InstructionId,
    unused: &[bool],
) -> Option<InstructionId> {
    let operand = r.operand(id, 0);
    if r.is_pinned(id) || !matches!(r.op(operand), Op::Tuple) || !unused.contains(&true) {
        return None;
    }
    let (shape, shapes) = (r.shape(id).clone(), r.shape(id).as_tuple()?.to_vec());
    let mut elements = r.operands(operand).to_vec();
    let kept: Vec<usize> = (0..elements.len()).filter(|&i| !unused[i] || r.uses(elements[i]) > 1).collect();
    if kept.len() == elements.len() {
        return None;
    }
    let kept_shape = Shape::Tuple(kept.iter().map(|&i| shapes[i].clone()).collect());
    let tuple = r.emit(Op::Tuple, kept.iter().map(|&i| elements[i]).collect::<Vec<_>>(), kept_shape.clone());
    let barrier = r.emit(Op::OptimizationBarrier, [tuple], kept_shape);
    for (new_index, &i) in kept.iter().enumerate() {
        let op = Op::GetTupleElement { index: new_index as u32 };
        elements[i] = r.emit(op, [barrier], shapes[i].clone());
    }
    Some(r.emit(Op::Tuple, elements, shape))
}
