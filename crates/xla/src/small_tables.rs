//! `small-tables`: looks up an element of a short array by comparisons.
//!
//! ```text
//!   g = f32[512] gather(x: f32[3], at: s32[512])     =>     s0 = f32[512] broadcast(x[0]);  s1, s2 = ..
//!                                                           g  = select(at > 1, s2, select(at > 0, s1, s0))
//! ```
//!
//! libtpu does so for fewer than 64 elements (for 64 it depends on the number of look-ups, from 72 on it gathers: 18 programs of
//! 0.12), and what computes the indices and reads the elements is in the same kernel. A gather keeps its indices within the
//! array, and so do the comparisons.
//!
//! Left alone: arrays of more dimensions or of dynamic extents, and indices of other types than signed ones of 32 bits. *Changed*
//! means that there was such a gather.

use memplan_ir::{ComparisonDirection, ElementType, Insert, InstructionId, Op, Scalar};
use memplan_rewriter::{Rewriter, Sweep};

/// The pass.
pub const SMALL_TABLES: Sweep = Sweep {
    name: "small-tables",
    description: "look up elements of short arrays by comparisons, as XLA's TPU compiler does",
    rule,
};

/// The longest array that is looked up so.
const MOST_ELEMENTS: i64 = 63;

fn rule(r: &mut Rewriter<'_>, id: InstructionId) -> Option<InstructionId> {
    let Op::Gather(numbers) = r.op(id).clone() else { return None };
    let [x, at] = [r.operand(id, 0), r.operand(id, 1)];
    let (&[n], &[1]) = (&r.array(x)?.dimensions[..], &numbers.slice_sizes[..]) else { return None };
    let result = r.array(id)?.clone();
    let is_looked_up = numbers.start_index_map[..] == [0] && r.element_type(at)? == ElementType::S32;
    if n > MOST_ELEMENTS || !is_looked_up || result.is_dynamic() {
        return None;
    }
    let at = r.reshaped(at, &result.dimensions)?;
    let of_table = |r: &mut Rewriter<'_>, i: i64| {
        let element = r.slice_along(x, 0, i..i + 1);
        let element = r.reshaped(element, &[])?;
        Some(r.broadcast_scalar(element, &result.dimensions))
    };
    let mut found = of_table(r, 0)?;
    for i in 1..n {
        let before = r.splat_array(Scalar::integer(ElementType::S32, i - 1), &result.dimensions);
        let is_behind = r.compare(ComparisonDirection::Gt, at, before);
        let element = of_table(r, i)?;
        found = r.select(is_behind, element, found);
    }
    Some(found)
}
