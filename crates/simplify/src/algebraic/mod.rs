//! `algebraic-simplifier`: replaces instructions by simpler ones with the same value.
//!
//! ```text
//! c = f32[] constant(2)
//! b = f32[8,1] broadcast(c), dimensions={}
//! r = f32[8] reshape(b)                          c = f32[] constant(2)
//! e = f32[8,4] broadcast(r), dimensions={0}      e = f32[8,4] broadcast(c), dimensions={}
//! t = f32[4,8] transpose(p), dimensions={1,0}    m = f32[8,4] multiply(p, e)
//! u = f32[8,4] transpose(t), dimensions={1,0}
//! m = f32[8,4] multiply(u, e)               =>
//! ```
//!
//! The rules are grouped by operation, one file each. They obey these principles:
//!
//! * A rule looks at an instruction and below it, never at its users, so that one sweep in order is a fixpoint.
//! * Integers keep their value bit for bit. Floating-point identities hold for NaN and infinities. `x + 0` is `x`
//!   although it changes the sign of a negative zero, as in XLA; sums may be taken in another order.
//! * No rule increases memory: its result has at most the bytes of the instructions that it replaces, counting those
//!   that other users keep alive. Rules that would duplicate an expensive operation require a single use.
//!
//! Leaves alone: dynamic shapes, and modules whose layouts count (scheduled, or with bitcasts), since a transpose that
//! is free in one layout is a copy in another. Requires nothing. *Changed* means that an instruction was replaced.

mod arithmetic;
mod contraction;
mod convert;
mod convolution;
mod elementwise;
mod factors;
mod indexing;
mod logic;
mod movement;
mod reduction;
mod slicing;

use memplan_ir::{BinaryOp, InstructionId, Module, Op, Scalar};
use memplan_rewriter::{Context, Outcome, Pass, PassError, Rewriter};
use rustc_hash::FxHashSet;
use serde::Deserialize;

/// Replaces instructions by simpler ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AlgebraicSimplifier {
    /// Whether to decide as XLA's simplifier does where memplan decides otherwise. It leaves elementwise operations behind a
    /// reshape that others read too, and reductions behind one that changes dimensions that they keep. It reduces the pieces
    /// of a concatenation one by one, also if somebody else reads the whole, and it selects by a predicate instead of
    /// multiplying by it, also where that turns NaN into zero.
    pub as_xla: bool,
}

/// The pass as `compile` runs it.
pub const ALGEBRAIC_SIMPLIFIER: AlgebraicSimplifier = AlgebraicSimplifier { as_xla: false };

impl Default for AlgebraicSimplifier {
    fn default() -> AlgebraicSimplifier {
        ALGEBRAIC_SIMPLIFIER
    }
}

impl Pass for AlgebraicSimplifier {
    fn name(&self) -> &'static str {
        "algebraic-simplifier"
    }

    fn description(&self) -> &'static str {
        "replace instructions by simpler ones with the same value"
    }

    fn run(&self, module: &mut Module, _: &Context<'_>) -> Result<Outcome, PassError> {
        let mut rewriter = Rewriter::new(module);
        if rewriter.is_layout_sensitive() {
            return Ok(false.into());
        }
        let moved = self.as_xla.then(|| elementwise::moved_by_xla(rewriter.module()));
        rewriter.sweep(|r, id| simplify(r, id, moved.as_ref()));
        Ok(rewriter.finish().into())
    }
}

/// The simpler replacement of an instruction, if there is one. For XLA's simplifier, the reshapes that it moves.
fn simplify(
    r: &mut Rewriter<'_>,
    id: InstructionId,
    moved: Option<&FxHashSet<InstructionId>>,
) -> Option<InstructionId> {
    if r.is_pinned(id) {
        return None;
    }
    match r.op(id) {
        Op::Sort { .. } => return indexing::sort(r, id),
        Op::Scatter(_) => return indexing::scatter(r, id),
        _ => {}
    }
    // From here on every array has static extents.
    r.array(id)?;
    if r.operands(id).iter().any(|&operand| r.array(operand).is_none()) {
        return None;
    }
    if r.array(id)?.element_count() == Some(0) && !matches!(r.op(id), Op::Constant(_) | Op::Broadcast { .. })
    {
        return nothing(r, id);
    }
    let simplified = match r.op(id) {
        Op::Unary(op) => arithmetic::unary(r, id, *op),
        Op::Binary(BinaryOp::Multiply) if moved.is_some() => {
            logic::multiply_by_predicate(r, id).or_else(|| arithmetic::binary(r, id, BinaryOp::Multiply))
        }
        Op::Binary(op) => arithmetic::binary(r, id, *op),
        Op::Compare { .. } => logic::compare(r, id),
        Op::Select => logic::select(r, id),
        Op::Clamp => logic::clamp(r, id),
        Op::Convert => convert::convert(r, id),
        Op::BitcastConvert => convert::bitcast_convert(r, id),
        Op::ReducePrecision { .. } => convert::reduce_precision(r, id),
        Op::Broadcast { .. } => movement::broadcast(r, id),
        Op::Reshape { .. } => movement::reshape(r, id),
        Op::Transpose { .. } => movement::transpose(r, id)
            .or_else(|| contraction::transpose_of_dot(r, id))
            .or_else(|| convolution::transpose_of_convolution(r, id)),
        Op::Reverse { .. } => movement::reverse(r, id),
        Op::Copy => Some(r.operand(id, 0)),
        Op::Iota { .. } => movement::iota(r, id),
        Op::Constant(_) => movement::constant(r, id),
        Op::Slice { .. } => slicing::slice(r, id),
        Op::Pad { .. } => slicing::pad(r, id),
        Op::Concatenate { .. } => slicing::concatenate(r, id),
        Op::DynamicSlice { .. } => indexing::dynamic_slice(r, id),
        Op::DynamicUpdateSlice => indexing::dynamic_update_slice(r, id),
        Op::Gather(_) => indexing::gather(r, id),
        Op::Reduce { .. } => reduction::reduce(r, id, moved.is_some()),
        Op::ReduceWindow(_) => reduction::reduce_window(r, id),
        Op::Dot(_) => contraction::dot(r, id),
        Op::Convolution(_) => convolution::convolution(r, id),
        _ => None,
    };
    simplified
        .or_else(|| elementwise::of_broadcasts(r, id))
        .or_else(|| elementwise::of_reshapes(r, id, moved))
}

/// An array without elements: any value will do.
fn nothing(r: &mut Rewriter<'_>, id: InstructionId) -> Option<InstructionId> {
    let (element_type, dimensions) = (r.element_type(id)?, r.dimensions(id)?);
    Some(r.splat_array(Scalar::integer(element_type, 0), &dimensions))
}
