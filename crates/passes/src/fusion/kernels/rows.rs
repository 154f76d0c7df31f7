//! Row by row: expensive operations whose result need not exist, because a kernel holds a block of its rows on chip.
//!
//! ```text
//!   s = f32[b,q,k] dot(..)          row dimensions b and q survive in everything made from s,
//!   m = f32[b,q] reduce(s)          k does not: a block of rows of s takes k elements a row
//!   p = f32[b,q,k] exponential(s - m)
//!   o = f32[b,q,d] dot(p, v)
//! ```
//!
//! A kernel that walks over blocks of rows computes all of `m`, `p` and `o` for one block before it goes on, and `s`
//! is never in memory. This is how fused attention works (Dao et al. 2022 without the online softmax, so that whole
//! rows must fit), fused softmax and normalization kernels, and two products in a row in CUTLASS.

use memplan_ir::{Dimensions, InstructionId, Module, Op, Shape};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

/// For each dimension of a result, the dimension of the value below that it walks along with.
type Walk = SmallVec<[Option<usize>; 6]>;

/// The number of rows that a kernel can walk along: elements of `id` in the dimensions that survive in everything made
/// from it. `dependents` are the kernel's instructions in textual order, `all_of` those of them that must be made from
/// `id` for a walk along its rows to compute them.
///
/// `None` when no dimension survives.
pub(super) fn rows(
    module: &Module,
    id: InstructionId,
    dependents: &[InstructionId],
    all_of: &[InstructionId],
) -> Option<u64> {
    let extents = &module.shape(id).as_array()?.dimensions;
    let identity: Walk = (0..extents.len()).map(Some).collect();
    let mut walks: FxHashMap<InstructionId, Walk> = FxHashMap::from_iter([(id, identity)]);
    let mut is_row = vec![true; extents.len()];
    for &dependent in dependents {
        let Some(walk) = walk_of(module, dependent, &walks) else { continue };
        for (d, is_row) in is_row.iter_mut().enumerate() {
            *is_row &= walk.contains(&Some(d));
        }
        walks.insert(dependent, walk);
    }
    let rows = extents.iter().zip(&is_row).filter(|(_, is_row)| **is_row);
    let rows =
        rows.fold(1, |rows: u64, (&extent, _)| rows.saturating_mul(u64::try_from(extent).unwrap_or(0)));
    (rows > 1 && all_of.iter().all(|id| walks.contains_key(id))).then_some(rows)
}

/// How the dimensions of an instruction walk along with those of the value below; `None` when it is not made from it.
fn walk_of(module: &Module, id: InstructionId, walks: &FxHashMap<InstructionId, Walk>) -> Option<Walk> {
    let instruction = &module.instructions[id];
    let result = first_array(module.shape(id))?;
    let mut merged: Option<Walk> = None;
    for (i, operand) in instruction.operands.iter().enumerate() {
        let Some(walk) = walks.get(operand) else { continue };
        let extents = &first_array(module.shape(*operand))?;
        let walk = through(&instruction.op, i, walk, extents, result);
        merged = Some(match merged {
            None => walk,
            // Walks that disagree leave no row to walk along.
            Some(merged) => merged.iter().zip(&walk).map(|(a, b)| if a == b { *a } else { None }).collect(),
        });
    }
    merged
}

/// The walk of operand `i`, with these extents, seen from the result.
fn through(op: &Op, i: usize, walk: &Walk, extents: &[i64], result: &[i64]) -> Walk {
    let nothing: Walk = SmallVec::from_elem(None, result.len());
    match op {
        op if op.is_elementwise() => walk.clone(),
        Op::Broadcast { dimensions } => {
            let mut through = nothing;
            for (d, &to) in dimensions.iter().enumerate() {
                through[to as usize] = walk[d];
            }
            through
        }
        Op::Transpose { dimensions } => dimensions.iter().map(|&d| walk[d as usize]).collect(),
        Op::Reshape { .. } => {
            // Extents of 1 come and go; anything else ends the walk.
            let long = |extents: &[i64]| -> Dimensions {
                (0..extents.len() as i64).filter(|&d| extents[d as usize] != 1).collect()
            };
            let (from, to) = (long(extents), long(result));
            let same = from.len() == to.len()
                && from.iter().zip(&to).all(|(&f, &t)| extents[f as usize] == result[t as usize]);
            let mut through = nothing;
            if same {
                from.iter().zip(&to).for_each(|(&f, &t)| through[t as usize] = walk[f as usize]);
            }
            through
        }
        Op::Reduce { dimensions } => {
            let kept = (0..extents.len()).filter(|&d| !dimensions.contains(&(d as i64)));
            kept.map(|d| walk[d]).collect()
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
            batch.iter().enumerate().for_each(|(at, &d)| through[at] = walk[d as usize]);
            let n_free = free.clone().count();
            let first = if i == 0 { batch.len() } else { result.len() - n_free };
            free.enumerate().for_each(|(at, d)| through[first + at] = walk[d]);
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
