//! `splits-last`: moves reshapes that split dimensions behind the operations that read them.
//!
//! ```text
//!   g = f32[8,64,64,32,2] reshape(x)                      m = f32[8,128] reduce(x), dimensions={1,2}
//!   s = f32[8,32] reduce(g), dimensions={1,2,4}     =>    g = f32[8,32,2] reshape(m)
//!                                                         s = f32[8,32] reduce(g), dimensions={2}
//! ```
//!
//! Features in groups (group normalization) have a short last dimension, which tiles would pad. libtpu works on whole features
//! and sums groups last. `sums-before-splits` moves sums alone: libtpu inlines functions with several callers after it moved
//! elementwise work, which then stays in groups (`jnp.var` of normalizations of equal shape).
//!
//! *Changed* means that an operation was moved before a reshape.

use memplan_ir::{Dimensions, InstructionId, Op, Shape};
use memplan_rewriter::views::common_runs;
use memplan_rewriter::{Rewriter, Sweep};

use super::reshape_mover::is_elementwise;

/// The pass.
pub const SPLITS_LAST: Sweep = Sweep {
    name: "splits-last",
    description: "compute before splitting dimensions, as XLA's TPU compiler does",
    rule,
};

/// The pass for sums.
pub const SUMS_BEFORE_SPLITS: Sweep = Sweep {
    name: "sums-before-splits",
    description: "sum before splitting dimensions, as XLA's TPU compiler does",
    rule: sum,
};

const RESHAPE: Op = Op::Reshape { inferred_dimension: None };

/// The dimensions that become one: each before the split, with those after it.
type Runs = Vec<(i64, Vec<i64>)>;

fn rule(r: &mut Rewriter<'_>, id: InstructionId) -> Option<InstructionId> {
    match r.op(id) {
        _ if r.has_control_dependencies(id) => None,
        Op::Reduce { .. } => sum(r, id),
        _ if is_elementwise(r, id) => elementwise(r, id),
        _ => None,
    }
}

/// How a reshape splits dimensions, if it does nothing else.
fn runs_of(r: &Rewriter<'_>, id: InstructionId) -> Option<Runs> {
    let Op::Reshape { .. } = r.op(id) else { return None };
    let (whole, split) = (r.dimensions(r.operand(id, 0))?, r.dimensions(id)?);
    if whole.contains(&1) || whole.len() >= split.len() {
        return None;
    }
    let single = |(from, to): (Vec<i64>, Vec<i64>)| (from.len() == 1).then(|| (from[0], to));
    common_runs(&whole, &split)?.into_iter().map(single).collect()
}

/// Computes elementwise on whole dimensions, and splits the result.
fn elementwise(r: &mut Rewriter<'_>, id: InstructionId) -> Option<InstructionId> {
    let (split, runs) = r.operands(id).iter().find_map(|&operand| Some((operand, runs_of(r, operand)?)))?;
    let whole = r.dimensions(r.operand(split, 0))?;
    let (extents, element_type) = (r.dimensions(id)?, r.element_type(id)?);
    let is_movable = |&operand: &InstructionId| match (r.dimensions(operand), r.op(operand)) {
        (Some(found), _) if found.is_empty() => true,
        (Some(found), Op::Reshape { .. }) => {
            found == extents && r.dimensions(r.operand(operand, 0)).is_some_and(|source| source == whole)
        }
        (Some(found), Op::Broadcast { dimensions }) => {
            found == extents && dimensions.iter().all(|&d| extents[d as usize] != 1) && dimensions.is_sorted()
        }
        _ => false,
    };
    if !r.operands(id).iter().all(is_movable) {
        return None;
    }
    let operands: Vec<InstructionId> = r.operands(id).to_vec();
    let operands: Vec<InstructionId> =
        operands.into_iter().map(|operand| unsplit(r, operand, &runs, &whole)).collect::<Option<_>>()?;
    let op = r.op(id).clone();
    let moved = r.emit(op, operands, Shape::array(element_type, whole));
    Some(r.emit(RESHAPE, [moved], Shape::array(element_type, extents)))
}

/// An operand with whole dimensions.
fn unsplit(
    r: &mut Rewriter<'_>,
    operand: InstructionId,
    runs: &Runs,
    whole: &Dimensions,
) -> Option<InstructionId> {
    let (Op::Broadcast { dimensions }, extents) = (r.op(operand).clone(), r.dimensions(operand)?) else {
        return Some(if r.dimensions(operand)?.is_empty() { operand } else { r.operand(operand, 0) });
    };
    let element_type = r.element_type(operand)?;
    let touched = runs.iter().filter(|(_, to)| to.iter().any(|d| dimensions.contains(d)));
    let (from, to): (Vec<i64>, Vec<&[i64]>) = touched.map(|(from, to)| (*from, &to[..])).unzip();
    let to = to.concat();
    let shape = |of: &[i64], extents: &Dimensions| {
        Shape::array(element_type, of.iter().map(|&d| extents[d as usize]))
    };
    let mut source = r.operand(operand, 0);
    if to[..] != dimensions[..] {
        let place = |d: &i64| to.iter().position(|to| to == d).map(|at| at as i64);
        let dimensions: Dimensions = dimensions.iter().map(place).collect::<Option<_>>()?;
        source = r.emit(Op::Broadcast { dimensions }, [source], shape(&to, &extents));
    }
    if from.len() != to.len() {
        source = r.emit(RESHAPE, [source], shape(&from, whole));
    }
    let dimensions = from.into_iter().collect();
    Some(r.emit(Op::Broadcast { dimensions }, [source], Shape::array(element_type, whole.clone())))
}

/// Reduces whole dimensions before the split, and the other ones after it.
fn sum(r: &mut Rewriter<'_>, id: InstructionId) -> Option<InstructionId> {
    let Op::Reduce { dimensions } = r.op(id).clone() else { return None };
    if r.has_control_dependencies(id) {
        return None;
    }
    let &[split, initial] = r.operands(id) else { return None };
    let (reducer, element_type, result) = (r.get(id).called[0], r.element_type(id)?, r.shape(id).clone());
    let runs = runs_of(r, split)?;
    let (source, extents) = (r.operand(split, 0), r.dimensions(split)?);
    let whole = r.dimensions(source)?;
    let is_summed = |d: &i64| dimensions.contains(d);
    let (first, kept): (Runs, Runs) = runs.into_iter().partition(|(_, to)| to.iter().all(is_summed));
    if first.is_empty() {
        return None;
    }
    let array = |of: &mut dyn Iterator<Item = i64>, extents: &Dimensions| {
        Shape::array(element_type, of.map(|d| extents[d as usize]))
    };
    let shape = array(&mut kept.iter().map(|(from, _)| *from), &whole);
    let first = Op::Reduce { dimensions: first.iter().map(|(from, _)| *from).collect() };
    let summed = r.emit_call(first, [source, initial], [reducer], shape);
    let kept: Vec<i64> = kept.into_iter().flat_map(|(_, to)| to).collect();
    let mut summed = r.emit(RESHAPE, [summed], array(&mut kept.iter().copied(), &extents));
    let last: Dimensions = (0..).zip(&kept).filter(|(_, d)| is_summed(d)).map(|(at, _)| at).collect();
    if !last.is_empty() {
        let shape = array(&mut kept.iter().copied().filter(|d| !is_summed(d)), &extents);
        summed = r.emit_call(Op::Reduce { dimensions: last }, [summed, initial], [reducer], shape);
    }
    Some(r.emit(RESHAPE, [summed], result))
}
