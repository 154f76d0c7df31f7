//! Reductions of moved, repeated or already reduced values.

use memplan_ir::{
    BinaryOp, ComputationId, Dimensions, InstructionId, Op, PaddingDimension, Scalar, Shape, SliceDimension,
    Window, WindowDimension,
};
use memplan_rewriter::Rewriter;

use super::factors::{groups, is_increasing, same_but_for_ones};

/// A reduction of one array: the parts that every rule needs.
struct Reduction {
    id: InstructionId,
    x: InstructionId,
    init: InstructionId,
    dimensions: Dimensions,
    reducer: ComputationId,
    /// The reducer's operation.
    op: BinaryOp,
    /// Whether the initial value changes nothing.
    is_neutral: bool,
}

/// A reduction of nothing much, or of an array that could be reduced before it is moved or repeated.
pub(super) fn reduce(r: &mut Rewriter<'_>, id: InstructionId, as_xla: bool) -> Option<InstructionId> {
    let reduction = reduction(r, id)?;
    let from = r.dimensions(reduction.x)?;
    if reduction.dimensions.iter().any(|&d| from[d as usize] == 0) {
        let to = r.dimensions(id)?;
        return Some(r.broadcast_scalar(reduction.init, &to));
    }
    if reduction.dimensions.iter().all(|&d| from[d as usize] == 1) {
        return Some(reduce_nothing(r, &reduction));
    }
    match r.op(reduction.x).clone() {
        Op::Broadcast { dimensions } => reduce_broadcast(r, &reduction, &dimensions),
        Op::Transpose { .. } => r.reduced_before_transpose(id),
        Op::Reshape { .. } => reduce_reshape(r, &reduction, as_xla),
        Op::Reduce { .. } => reduce_reduce(r, &reduction),
        Op::Pad { dimensions } => reduce_pad(r, &reduction, &dimensions),
        Op::Concatenate { dimension } if as_xla => reduce_concatenate(r, &reduction, dimension),
        _ => None,
    }
}

/// Pieces that are reduced along the dimension in which they are joined can be reduced alone.
fn reduce_concatenate(r: &mut Rewriter<'_>, reduction: &Reduction, dimension: i64) -> Option<InstructionId> {
    if !reduction.is_neutral || !reduction.dimensions.contains(&dimension) {
        return None;
    }
    let shape = r.shape(reduction.id).clone();
    let mut result = None;
    for piece in r.operands(reduction.x).to_vec() {
        let op = Op::Reduce { dimensions: reduction.dimensions.clone() };
        let part = r.emit_call(op, [piece, reduction.init], [reduction.reducer], shape.clone());
        result = Some(match result {
            None => part,
            Some(before) => r.emit(Op::Binary(reduction.op), [before, part], shape.clone()),
        });
    }
    result
}

fn reduction(r: &Rewriter<'_>, id: InstructionId) -> Option<Reduction> {
    let Op::Reduce { dimensions } = r.op(id) else { return None };
    let [x, init] = *r.operands(id) else { return None };
    let reducer = r.get(id).called[0];
    let op = reducer_op(r, reducer)?;
    let element_type = r.element_type(id)?;
    if [x, init].iter().any(|&operand| r.element_type(operand) != Some(element_type)) {
        return None;
    }
    let is_neutral = r.splat(init).is_some_and(|init| neutral(op, init));
    Some(Reduction { id, x, init, dimensions: dimensions.clone(), reducer, op, is_neutral })
}

/// The commutative and associative operation that a reducer is, applied to its two parameters.
fn reducer_op(r: &Rewriter<'_>, reducer: ComputationId) -> Option<BinaryOp> {
    let computation = &r.module().computations[reducer];
    let Op::Binary(op) = *r.op(computation.root) else { return None };
    let [a, b] = *r.operands(computation.root) else { return None };
    let mut operands = [a, b];
    operands.sort_unstable();
    let mut parameters = computation.parameters.clone();
    parameters.sort_unstable();
    // `mulhi` is not associative, and nobody reduces by exclusive or.
    let is_known = op.is_commutative() && !matches!(op, BinaryOp::Mulhi | BinaryOp::Xor);
    (is_known && parameters == operands).then_some(op)
}

fn neutral(op: BinaryOp, value: Scalar) -> bool {
    match op {
        BinaryOp::Add => value.is_zero(),
        BinaryOp::Multiply => value.is_one(),
        BinaryOp::Maximum => Scalar::lowest(value.element_type) == Some(value),
        BinaryOp::Minimum => Scalar::highest(value.element_type) == Some(value),
        BinaryOp::And => Scalar::integer(value.element_type, -1) == value,
        _ => value.is_zero(),
    }
}

/// Only dimensions of extent one are reduced: the result is each element, combined with the initial value.
fn reduce_nothing(r: &mut Rewriter<'_>, reduction: &Reduction) -> InstructionId {
    let shape = r.shape(reduction.id).clone();
    let to = shape.as_array().expect("a reduction of one array is an array").dimensions.clone();
    let reshaped = r.emit(Op::Reshape { inferred_dimension: None }, [reduction.x], shape.clone());
    if reduction.is_neutral {
        return reshaped;
    }
    let init = r.broadcast_scalar(reduction.init, &to);
    r.emit(Op::Binary(reduction.op), [init, reshaped], shape)
}

/// Repeating a value changes neither its maximum nor its minimum, and multiplies its sum.
fn reduce_broadcast(r: &mut Rewriter<'_>, reduction: &Reduction, map: &[i64]) -> Option<InstructionId> {
    let (x, from, to) = (reduction.x, r.dimensions(reduction.x)?, r.dimensions(reduction.id)?);
    let is_reduced = |d: &i64| reduction.dimensions.contains(d);
    let n_repeats = reduction
        .dimensions
        .iter()
        .filter(|d| !map.contains(d))
        .try_fold(1i64, |n, &d| n.checked_mul(from[d as usize]))?;
    let element_type = r.element_type(x)?;
    let multiplies = match reduction.op {
        BinaryOp::Multiply => return None,
        BinaryOp::Add if n_repeats > 1 => {
            if !reduction.is_neutral || element_type.is_complex() {
                return None;
            }
            true
        }
        _ => false,
    };
    let source = r.operand(x, 0);
    // The new positions of the remaining dimensions, without the reduced ones.
    let position = |d: i64| (0..d).filter(|d| !is_reduced(d)).count() as i64;
    let inner: Dimensions = (0..map.len() as i64).filter(|&i| is_reduced(&map[i as usize])).collect();
    let outer: Dimensions = map.iter().copied().filter(|d| !is_reduced(d)).map(position).collect();
    let small: Dimensions = map.iter().filter(|d| !is_reduced(d)).map(|&d| from[d as usize]).collect();
    let small_shape = Shape::array(element_type, small.iter().copied());
    let mut result = if !inner.is_empty() {
        let op = Op::Reduce { dimensions: inner };
        r.emit_call(op, [source, reduction.init], [reduction.reducer], small_shape.clone())
    } else if reduction.is_neutral {
        source
    } else {
        let init = r.broadcast_scalar(reduction.init, &small);
        r.emit(Op::Binary(reduction.op), [init, source], small_shape.clone())
    };
    if multiplies {
        let count = Scalar::integer(element_type, n_repeats);
        let count = r.splat_array(count, &small);
        result = r.emit(Op::Binary(BinaryOp::Multiply), [result, count], small_shape);
    }
    if small == to && is_increasing(&outer) {
        return Some(result);
    }
    let shape = r.shape(reduction.id).clone();
    Some(r.emit(Op::Broadcast { dimensions: outer }, [result], shape))
}

/// Groups of dimensions that are reduced as a whole can be reduced before they are reshaped.
fn reduce_reshape(r: &mut Rewriter<'_>, reduction: &Reduction, as_xla: bool) -> Option<InstructionId> {
    let source = r.operand(reduction.x, 0);
    let (from, middle) = (r.dimensions(source)?, r.dimensions(reduction.x)?);
    let mut dimensions = Dimensions::new();
    for group in groups(&from, &middle)? {
        let mut is_reduced =
            group.to.clone().filter(|&d| middle[d] != 1).map(|d| reduction.dimensions.contains(&(d as i64)));
        let first = is_reduced.next();
        if is_reduced.any(|reduced| Some(reduced) != first) {
            return None;
        }
        if first == Some(true) {
            dimensions.extend(group.from.map(|d| d as i64));
        } else if as_xla && !same_but_for_ones(&from[group.from], &middle[group.to]) {
            return None;
        }
    }
    let kept = (0..from.len()).filter(|&d| !dimensions.contains(&(d as i64))).map(|d| from[d]);
    let small = Shape::array(r.element_type(source)?, kept);
    let shape = r.shape(reduction.id).clone();
    let op = Op::Reduce { dimensions };
    let result = r.emit_call(op, [source, reduction.init], [reduction.reducer], small);
    Some(r.emit(Op::Reshape { inferred_dimension: None }, [result], shape))
}

/// Two reductions by the same operation are one.
fn reduce_reduce(r: &mut Rewriter<'_>, outer: &Reduction) -> Option<InstructionId> {
    let inner = reduction(r, outer.x)?;
    if r.uses(outer.x) != 1 || inner.op != outer.op || !inner.is_neutral {
        return None;
    }
    // The dimensions that the inner reduction leaves, by their number before it.
    let rank = r.array(inner.x)?.rank() as i64;
    let left: Dimensions = (0..rank).filter(|d| !inner.dimensions.contains(d)).collect();
    let mut dimensions = inner.dimensions;
    dimensions.extend(outer.dimensions.iter().map(|&d| left[d as usize]));
    dimensions.sort_unstable();
    let shape = r.shape(outer.id).clone();
    Some(r.emit_call(Op::Reduce { dimensions }, [inner.x, outer.init], [outer.reducer], shape))
}

/// Padding that changes no result need not be reduced, as long as only reduced dimensions are padded.
fn reduce_pad(
    r: &mut Rewriter<'_>,
    reduction: &Reduction,
    padding: &[PaddingDimension],
) -> Option<InstructionId> {
    let (source, value) = (r.operand(reduction.x, 0), r.operand(reduction.x, 1));
    let is_harmless = |(d, p): (usize, &PaddingDimension)| {
        *p == PaddingDimension::default()
            || (p.low >= 0 && p.high >= 0 && reduction.dimensions.contains(&(d as i64)))
    };
    if !neutral(reduction.op, r.splat(value)?) || !padding.iter().enumerate().all(is_harmless) {
        return None;
    }
    let op = Op::Reduce { dimensions: reduction.dimensions.clone() };
    let shape = r.shape(reduction.id).clone();
    Some(r.emit_call(op, [source, reduction.init], [reduction.reducer], shape))
}

/// A window of one element is a slice; a window over everything is a reduction.
pub(super) fn reduce_window(r: &mut Rewriter<'_>, id: InstructionId) -> Option<InstructionId> {
    let Op::ReduceWindow(window) = r.op(id).clone() else { return None };
    let [x, init] = *r.operands(id) else { return None };
    let reducer = r.get(id).called[0];
    let op = reducer_op(r, reducer)?;
    let (from, shape) = (r.dimensions(x)?, r.shape(id).clone());
    if let Some(folded) = pad_in_window(r, id, &window, op) {
        return Some(folded);
    }
    let is_plain = |w: &WindowDimension| w.padding_low == 0 && w.padding_high == 0 && w.base_dilation == 1;
    if !window.dimensions.iter().all(is_plain) || r.element_type(x) != r.element_type(id) {
        return None;
    }
    if window.dimensions.iter().all(|w| w.size == 1) {
        if !r.splat(init).is_some_and(|init| neutral(op, init)) {
            return None;
        }
        let dimensions = window.dimensions.iter().zip(&from).map(|(w, &limit)| SliceDimension {
            start: 0,
            limit,
            stride: w.stride,
        });
        let dimensions = dimensions.collect();
        return Some(r.emit(Op::Slice { dimensions }, [x], shape));
    }
    let is_whole = |(w, &extent): (&WindowDimension, &i64)| w.size == extent && w.window_dilation == 1;
    let is_untouched = |(w, _): (&WindowDimension, &i64)| w.size == 1 && w.stride == 1;
    let each = || window.dimensions.iter().zip(&from);
    if !each().all(|d| is_whole(d) || is_untouched(d)) {
        return None;
    }
    let dimensions: Dimensions =
        each().enumerate().filter(|(_, d)| !is_untouched(*d)).map(|(d, _)| d as i64).collect();
    let kept = each().filter(|&d| is_untouched(d)).map(|(_, &extent)| extent);
    let small = Shape::array(r.element_type(x)?, kept.collect::<Dimensions>());
    let result = r.emit_call(Op::Reduce { dimensions }, [x, init], [reducer], small);
    Some(r.emit(Op::Reshape { inferred_dimension: None }, [result], shape))
}

/// A window pads its operand by itself, with what changes no result.
fn pad_in_window(
    r: &mut Rewriter<'_>,
    id: InstructionId,
    window: &Window,
    op: BinaryOp,
) -> Option<InstructionId> {
    let (x, init) = (r.operand(id, 0), r.operand(id, 1));
    let Op::Pad { dimensions: padding } = r.op(x) else { return None };
    let is_neutral = |value: InstructionId| r.splat(value).is_some_and(|value| neutral(op, value));
    // One window cannot express padding between padded elements.
    let can_pad =
        |(w, p): (&WindowDimension, &PaddingDimension)| p.low >= 0 && p.high >= 0 && w.base_dilation == 1;
    let is_foldable = is_neutral(init)
        && is_neutral(r.operand(x, 1))
        && r.element_type(x) == r.element_type(id)
        && window.dimensions.iter().zip(padding).all(can_pad);
    if !is_foldable {
        return None;
    }
    let mut wider = window.clone();
    for (w, p) in wider.dimensions.iter_mut().zip(padding) {
        w.padding_low = w.padding_low.checked_add(p.low)?;
        w.padding_high = w.padding_high.checked_add(p.high)?;
        w.base_dilation = p.interior.checked_add(1)?;
    }
    let (source, reducer, shape) = (r.operand(x, 0), r.get(id).called[0], r.shape(id).clone());
    Some(r.emit_call(Op::ReduceWindow(Box::new(wider)), [source, init], [reducer], shape))
}
