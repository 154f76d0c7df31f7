//! Elementwise operations on broadcasts and reshapes: compute first, then broadcast or reshape.
//!
//! ```text
//! a = f32[8,4] broadcast(x), dimensions={0}       m = f32[8] multiply(x, y)
//! b = f32[8,4] broadcast(y), dimensions={0}  =>   ROOT r = f32[8,4] broadcast(m), dimensions={0}
//! ROOT r = f32[8,4] multiply(a, b)
//!
//! a = f32[8,1] reshape(x)                         m = f32[8] multiply(x, 2)
//! ROOT r = f32[8,1] multiply(a, 2)           =>   ROOT r = f32[8,1] reshape(m)
//! ```
//!
//! This way a broadcast computes less. A reshape costs nothing in either place; further down it meets other reshapes,
//! so that computations with and without extra dimensions become equal.

use memplan_ir::{Dimensions, InstructionId, Module, Op, Shape, Users};
use memplan_rewriter::Rewriter;
use rustc_hash::FxHashSet;

use super::factors::{same_but_for_ones, without_ones};

/// Whether an elementwise operation computes the same before as behind a broadcast or reshape. A copy is wanted as a copy,
/// and the machine decides how random bits round.
fn may_move(op: &Op) -> bool {
    op.is_elementwise() && !matches!(op, Op::StochasticConvert | Op::Copy)
}

/// An elementwise operation whose operands are all broadcast along the same dimensions, or broadcasts of scalars.
pub(super) fn of_broadcasts(r: &mut Rewriter<'_>, id: InstructionId) -> Option<InstructionId> {
    if !may_move(r.op(id)) {
        return None;
    }
    // The operand that says which dimensions are broadcast: the one with most of its own.
    let widest = r.operands(id).iter().copied().max_by_key(|&operand| broadcast_rank(r, operand))?;
    let Op::Broadcast { dimensions } = r.op(widest) else { return None };
    let (dimensions, small) = (dimensions.clone(), r.dimensions(r.operand(widest, 0))?);
    let dimensions_of_result = r.dimensions(id)?;
    if small.len() == dimensions_of_result.len() || r.array(id)?.element_count() == Some(0) {
        return None;
    }
    // A bitcast-convert between widths has another rank.
    let rank = dimensions_of_result.len();
    let operands = r.operands(id).to_vec();
    if operands.iter().any(|&x| r.array(x).is_none_or(|x| x.rank() != 0 && x.rank() != rank)) {
        return None;
    }
    let sources: Vec<Source> =
        operands.iter().map(|&operand| source(r, operand, &dimensions, &small)).collect::<Option<_>>()?;
    let op = r.op(id).clone();
    let element_type = r.element_type(id)?;
    let sources: Vec<_> = sources.into_iter().map(|source| source.over(r, &small)).collect();
    let result = r.emit(op, sources, Shape::array(element_type, small));
    let shape = r.shape(id).clone();
    Some(r.emit(Op::Broadcast { dimensions }, [result], shape))
}

/// An elementwise operation whose operands are all reshaped, or the same everywhere. It is computed on the extents from
/// which all are reshaped, or else without dimensions of extent one. `moved` restricts the reshapes that others read, too.
pub(super) fn of_reshapes(
    r: &mut Rewriter<'_>,
    id: InstructionId,
    moved: Option<&FxHashSet<InstructionId>>,
) -> Option<InstructionId> {
    let reshape = *r.operands(id).iter().find(|&&x| matches!(r.op(x), Op::Reshape { .. }))?;
    if !may_move(r.op(id)) || r.array(id)?.element_count() == Some(0) {
        return None;
    }
    let operands = r.operands(id).to_vec();
    if moved.is_some_and(|moved| operands.iter().any(|&x| stays_for_others(r, x, &operands, moved))) {
        return None;
    }
    let mut sources = Vec::with_capacity(operands.len());
    for &operand in &operands {
        sources.push(match r.op(operand) {
            Op::Reshape { .. } => Source::Array(r.operand(operand, 0)),
            op if op.repeats_scalar() => Source::Scalar(r.operand(operand, 0)),
            _ if r.array(operand)?.rank() == 0 => Source::Scalar(operand),
            _ => return None,
        });
    }
    let mut extents = r.dimensions(r.operand(reshape, 0))?;
    let differs =
        |source: &Source| matches!(source, Source::Array(x) if r.dimensions(*x).as_ref() != Some(&extents));
    if sources.iter().any(differs) {
        let to = r.dimensions(id)?;
        extents = without_ones(&to);
        if extents == to {
            return None;
        }
    }
    let op = r.op(id).clone();
    let (element_type, shape) = (r.element_type(id)?, r.shape(id).clone());
    let sources: Vec<_> = sources.into_iter().map(|source| source.over(r, &extents)).collect();
    let result = r.emit(op, sources, Shape::array(element_type, extents));
    Some(r.emit(Op::Reshape { inferred_dimension: None }, [result], shape))
}

/// The reshapes that XLA's `ReshapeMover` moves: all that read one are elementwise and read nothing but such reshapes from the
/// same extents, or the same number everywhere.
pub(super) fn moved_by_xla(module: &Module) -> FxHashSet<InstructionId> {
    let users = Users::new(module);
    let op = |id: InstructionId| &module.instructions[id].op;
    let extents = |id: InstructionId| module.shape(id).as_array().map(|array| &array.dimensions);
    let from = |id: InstructionId| extents(module.instructions[id].operands[0]);
    let reshapes = |id: InstructionId| {
        let operands = module.instructions[id].operands.iter().copied();
        operands.filter(|&operand| matches!(op(operand), Op::Reshape { .. }))
    };
    let may_follow = |id: InstructionId| {
        let first = reshapes(id).next();
        let is_movable = |&operand: &InstructionId| match op(operand) {
            Op::Reshape { .. } => from(operand) == first.and_then(from),
            op => op.repeats_scalar() || extents(operand).is_some_and(|extents| extents.is_empty()),
        };
        first.is_some() && may_move(op(id)) && module.instructions[id].operands.iter().all(is_movable)
    };
    let all =
        || module.computations.values().flat_map(|computation| computation.instructions.iter().copied());
    let mut stays: FxHashSet<InstructionId> = all().filter(|&id| !may_follow(id)).collect();
    let mut moved: FxHashSet<InstructionId> =
        all().filter(|&id| matches!(op(id), Op::Reshape { .. })).collect();
    let mut open: Vec<InstructionId> = stays.iter().copied().collect();
    while let Some(id) = open.pop() {
        for reshape in reshapes(id) {
            if moved.remove(&reshape) {
                open.extend(users.of(reshape).iter().copied().filter(|&user| stays.insert(user)));
            }
        }
    }
    moved
}

/// Whether a reshape mixes dimensions, and others than these operands of one instruction are the reason that it stays.
fn stays_for_others(
    r: &Rewriter<'_>,
    id: InstructionId,
    operands: &[InstructionId],
    moved: &FxHashSet<InstructionId>,
) -> bool {
    let here = operands.iter().filter(|&&operand| operand == id).count();
    let mixes = |from, to| !same_but_for_ones(from, to);
    matches!(r.op(id), Op::Reshape { .. })
        && r.uses(id) as usize > here
        && !moved.contains(&id)
        && r.array(id)
            .zip(r.array(r.operand(id, 0)))
            .is_some_and(|(to, from)| mixes(&from.dimensions, &to.dimensions))
}

enum Source {
    Array(InstructionId),
    Scalar(InstructionId),
}

impl Source {
    /// The source as an array of the given extents.
    fn over(self, r: &mut Rewriter<'_>, dimensions: &[i64]) -> InstructionId {
        match self {
            Source::Array(array) if r.dimensions(array).as_deref() == Some(dimensions) => array,
            Source::Array(array) => {
                let element_type = r.element_type(array).expect("sources are arrays");
                let shape = Shape::array(element_type, dimensions.iter().copied());
                r.emit(Op::Reshape { inferred_dimension: None }, [array], shape)
            }
            Source::Scalar(scalar) => r.broadcast_scalar(scalar, dimensions),
        }
    }
}

/// Dimensions that an operand has before it is broadcast; an array that is not a broadcast ranks above all.
fn broadcast_rank(r: &Rewriter<'_>, operand: InstructionId) -> usize {
    match r.op(operand) {
        Op::Broadcast { dimensions } => dimensions.len(),
        _ if r.array(operand).is_some_and(|array| array.rank() == 0) => 0,
        _ => usize::MAX,
    }
}

fn source(
    r: &Rewriter<'_>,
    operand: InstructionId,
    dimensions: &Dimensions,
    small: &[i64],
) -> Option<Source> {
    if r.array(operand)?.rank() == 0 {
        // The predicate of a select, the bounds of a clamp.
        return Some(Source::Scalar(operand));
    }
    let Op::Broadcast { dimensions: found } = r.op(operand) else { return None };
    let inner = r.operand(operand, 0);
    let inner_dimensions = &r.array(inner)?.dimensions;
    if inner_dimensions.is_empty() {
        return Some(Source::Scalar(inner));
    }
    (found == dimensions && inner_dimensions.as_slice() == small).then_some(Source::Array(inner))
}
