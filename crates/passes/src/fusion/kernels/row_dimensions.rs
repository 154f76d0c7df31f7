//! Along which dimensions of an expensive result a kernel can work row by row, so that it holds few rows on chip.
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

use memplan_ir::{Dimensions, InstructionId, Module, Op, Shape};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

/// For each dimension of a value, the dimension of the tiled result that it corresponds to.
type Origins = SmallVec<[Option<usize>; 6]>;

/// The number of rows of `id`: its extents in the dimensions that everything computed from it has, multiplied.
/// `dependents` are the kernel's instructions in textual order, `all_of` those of them that must be computed from `id`, as
/// a kernel that goes through its rows computes nothing else.
///
/// `None` when no dimension is in everything.
pub(super) fn n_rows(
    module: &Module,
    id: InstructionId,
    dependents: &[InstructionId],
    all_of: &[InstructionId],
) -> Option<u64> {
    let extents = &module.shape(id).as_array()?.dimensions;
    let identity: Origins = (0..extents.len()).map(Some).collect();
    let mut origins: FxHashMap<InstructionId, Origins> = FxHashMap::from_iter([(id, identity)]);
    let mut is_row = vec![true; extents.len()];
    for &dependent in dependents {
        let Some(of_dependent) = origins_of(module, dependent, &origins) else { continue };
        for (d, is_row) in is_row.iter_mut().enumerate() {
            *is_row &= of_dependent.contains(&Some(d));
        }
        origins.insert(dependent, of_dependent);
    }
    let rows = extents.iter().zip(&is_row).filter(|(_, is_row)| **is_row);
    let rows =
        rows.fold(1, |rows: u64, (&extent, _)| rows.saturating_mul(u64::try_from(extent).unwrap_or(0)));
    (rows > 1 && all_of.iter().all(|id| origins.contains_key(id))).then_some(rows)
}

/// The dimensions of the tiled result that those of an instruction correspond to; `None` where the instruction does not
/// depend on that result.
fn origins_of(
    module: &Module,
    id: InstructionId,
    origins: &FxHashMap<InstructionId, Origins>,
) -> Option<Origins> {
    let instruction = &module.instructions[id];
    let result = first_array(module.shape(id))?;
    let mut merged: Option<Origins> = None;
    for (i, operand) in instruction.operands.iter().enumerate() {
        let Some(of_operand) = origins.get(operand) else { continue };
        let extents = &first_array(module.shape(*operand))?;
        let of_result = through(&instruction.op, i, of_operand, extents, result);
        merged = Some(match merged {
            None => of_result,
            // Where two operands disagree, an element of the result needs several rows.
            Some(merged) => {
                merged.iter().zip(&of_result).map(|(a, b)| if a == b { *a } else { None }).collect()
            }
        });
    }
    merged
}

/// The origins of the dimensions of a result, from those of operand `i`, which has these extents.
fn through(op: &Op, i: usize, operand: &Origins, extents: &[i64], result: &[i64]) -> Origins {
    let nothing: Origins = SmallVec::from_elem(None, result.len());
    match op {
        op if op.is_elementwise() => operand.clone(),
        Op::Broadcast { dimensions } => {
            let mut through = nothing;
            for (d, &to) in dimensions.iter().enumerate() {
                through[to as usize] = operand[d];
            }
            through
        }
        Op::Transpose { dimensions } => dimensions.iter().map(|&d| operand[d as usize]).collect(),
        Op::Reshape { .. } => {
            // Extents of 1 may be added or dropped; any other reshape mixes rows.
            let long = |extents: &[i64]| -> Dimensions {
                (0..extents.len() as i64).filter(|&d| extents[d as usize] != 1).collect()
            };
            let (from, to) = (long(extents), long(result));
            let same = from.len() == to.len()
                && from.iter().zip(&to).all(|(&f, &t)| extents[f as usize] == result[t as usize]);
            let mut through = nothing;
            if same {
                from.iter().zip(&to).for_each(|(&f, &t)| through[t as usize] = operand[f as usize]);
            }
            through
        }
        Op::Reduce { dimensions } => {
            let kept = (0..extents.len()).filter(|&d| !dimensions.contains(&(d as i64)));
            kept.map(|d| operand[d]).collect()
        }
        Op::Dot(dot) => {
            let numbers = &dot.dimensions;
            let (batch, contracting) = match i {
                0 => (&numbers.lhs_batch, &numbers.lhs_contracting),
                _ => (&numbers.rhs_batch, &numbers.rhs_contracting),
            };
            let free = (0..extents.len())
                .filter(|&d| !batch.contains(&(d as i64)) && !contracting.contains(&(d as i64)));
            // Batch dimensions come first, then what is left of the left operand, then of the right one.
            let mut through = nothing;
            batch.iter().enumerate().for_each(|(at, &d)| through[at] = operand[d as usize]);
            let n_free = free.clone().count();
            let first = if i == 0 { batch.len() } else { result.len() - n_free };
            free.enumerate().for_each(|(at, d)| through[first + at] = operand[d]);
            through
        }
        _ => nothing,
    }
}

/// The extents of an array, or of the first of a tuple of arrays, which in a reduction are all alike.
fn first_array(shape: &Shape) -> Option<&[i64]> {
    match shape {
        Shape::Tuple(elements) => first_array(elements.first()?),
        array => array.as_array().map(|array| array.dimensions.as_slice()),
    }
}
