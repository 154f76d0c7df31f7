//! The dimensions of an expensive result along which a kernel can work row by row, so that it keeps few rows on chip.
//!
//! ```text
//!   s = f32[b,q,k] dot(..)          b and q are dimensions of everything computed from s,
//!   m = f32[b,q] reduce(s)          k is not: s has b*q rows of k elements
//!   p = f32[b,q,k] exponential(s - m)
//!   o = f32[b,q,d] dot(p, v)
//! ```
//!
//! A kernel that computes all of `m`, `p` and `o` for a tile of rows before the next tile never has `s` in memory. This is
//! how fused attention works (Dao et al. 2022, without the online softmax, so that whole rows must fit), fused softmax and
//! normalization kernels, and two products in a row in CUTLASS.

use memplan_ir::{InstructionId, Module};
use rustc_hash::{FxHashMap, FxHashSet};

use memplan_rewriter::rows::{Rows, by_operand};

/// The number of rows of `id`: the product of its extents in the dimensions that all results computed from it have.
/// `dependents` are the kernel's instructions in textual order, `all_of` those that must depend on `id`, since a kernel
/// that iterates over its rows computes nothing else.
///
/// `None` when no dimension is in everything.
pub(super) fn n_rows(
    module: &Module,
    id: InstructionId,
    dependents: &[InstructionId],
    all_of: &[InstructionId],
) -> Option<u64> {
    let extents = &module.shape(id).as_array()?.dimensions;
    let mut depend: FxHashSet<InstructionId> = FxHashSet::from_iter([id]);
    for &dependent in dependents {
        if module.instructions[dependent].operands.iter().any(|operand| depend.contains(operand)) {
            depend.insert(dependent);
        }
    }
    if !all_of.iter().all(|id| depend.contains(id)) {
        return None;
    }
    let is_row = |&d: &usize| keeps_rows(module, id, d, extents[d], dependents);
    let rows = (0..extents.len()).filter(|&d| extents[d] > 1).filter(is_row);
    let rows = rows.fold(1, |rows: u64, d| rows.saturating_mul(u64::try_from(extents[d]).unwrap_or(0)));
    (rows > 1).then_some(rows)
}

/// Whether a row of every dependent is computed from one row of `id`, of which there are `n` along a dimension.
fn keeps_rows(
    module: &Module,
    id: InstructionId,
    dimension: usize,
    n: i64,
    dependents: &[InstructionId],
) -> bool {
    let mut rows: FxHashMap<InstructionId, Rows> = FxHashMap::from_iter([(id, Rows { dimension, unit: 1 })]);
    for &dependent in dependents {
        let operands = &module.instructions[dependent].operands;
        let Some(number) = operands.iter().position(|operand| rows.contains_key(operand)) else { continue };
        let treatment = by_operand(module, dependent, n, number, rows[&operands[number]]);
        // If another operand is read along another dimension, an element of the result needs several rows.
        let is_read_alike = |parts: &[Option<Rows>]| {
            operands
                .iter()
                .zip(parts)
                .all(|(operand, part)| rows.get(operand).is_none_or(|rows| *part == Some(*rows)))
        };
        match treatment {
            Some(treatment) if is_read_alike(&treatment.operands) => match treatment.rows() {
                Some(of_dependent) => rows.insert(dependent, of_dependent),
                None => return false,
            },
            _ => return false,
        };
    }
    true
}
