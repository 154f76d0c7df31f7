//! Comparisons, selections and clamps whose outcome is known.

use memplan_ir::{
    BinaryOp, ComparisonDirection, ComparisonType, ElementType, InstructionId, Op, Scalar, UnaryOp,
};
use memplan_rewriter::Rewriter;

/// A comparison that has the same outcome for every element.
pub(super) fn compare(r: &mut Rewriter<'_>, id: InstructionId) -> Option<InstructionId> {
    let Op::Compare { direction, comparison_type } = *r.op(id) else { return None };
    let (a, b) = (r.operand(id, 0), r.operand(id, 1));
    let element_type = r.element_type(a)?;
    if let Some(outcome) = known_outcome(r, direction, a, b, element_type) {
        return splat(r, id, outcome);
    }
    // Constants go to the right, so that later rules look in one place.
    if r.splat(a).is_some() && r.splat(b).is_none() {
        let op = Op::Compare { direction: swapped(direction), comparison_type };
        let shape = r.shape(id).clone();
        return Some(r.emit(op, [b, a], shape));
    }
    predicate_as_number(r, id, direction, a, b)
}

/// The complement of a comparison. With NaNs only `EQ` and `NE` have one.
pub(super) fn not_compare(
    r: &mut Rewriter<'_>,
    id: InstructionId,
    compare: InstructionId,
) -> Option<InstructionId> {
    let Op::Compare { direction, comparison_type } = *r.op(compare) else { return None };
    let (a, b) = (r.operand(compare, 0), r.operand(compare, 1));
    let is_total = r.element_type(a)?.is_integral()
        || r.element_type(a)? == ElementType::Pred
        || comparison_type == Some(ComparisonType::TotalOrder);
    let is_equality = matches!(direction, ComparisonDirection::Eq | ComparisonDirection::Ne);
    if !is_total && !is_equality {
        return None;
    }
    let shape = r.shape(id).clone();
    Some(r.emit(Op::Compare { direction: complement(direction), comparison_type }, [a, b], shape))
}

/// A product with a predicate that was converted to numbers is a selection.
pub(super) fn multiply_by_predicate(r: &mut Rewriter<'_>, id: InstructionId) -> Option<InstructionId> {
    let [a, b] = [r.operand(id, 0), r.operand(id, 1)];
    let predicate = |x: InstructionId| {
        let is_converted = *r.op(x) == Op::Convert;
        let of = is_converted.then(|| r.operand(x, 0))?;
        (r.element_type(of) == Some(ElementType::Pred)).then_some(of)
    };
    let (on_true, predicate) = predicate(b).map(|of| (a, of)).or_else(|| Some((b, predicate(a)?)))?;
    let (element_type, dimensions) = (r.element_type(id)?, r.dimensions(id)?);
    let on_false = r.splat_array(Scalar::integer(element_type, 0), &dimensions);
    let shape = r.shape(id).clone();
    Some(r.emit(Op::Select, [predicate, on_true, on_false], shape))
}

/// A selection with a known predicate, or between equal things.
pub(super) fn select(r: &mut Rewriter<'_>, id: InstructionId) -> Option<InstructionId> {
    let [predicate, on_true, on_false] = [0, 1, 2].map(|i| r.operand(id, i));
    if on_true == on_false {
        return Some(on_true);
    }
    if let Some(known) = r.splat(predicate) {
        return Some(if known.is_zero() { on_false } else { on_true });
    }
    let shape = r.shape(id).clone();
    if let Op::Unary(UnaryOp::Not) = r.op(predicate) {
        let predicate = r.operand(predicate, 0);
        return Some(r.emit(Op::Select, [predicate, on_false, on_true], shape));
    }
    if let (Some(t), Some(f)) = (r.splat(on_true), r.splat(on_false)) {
        // Bit for bit: of two zeros, one may be negative.
        if t == f {
            return Some(on_true);
        }
        if t.element_type == ElementType::Pred && r.dimensions(predicate) == r.dimensions(id) {
            return Some(if f.is_zero() {
                predicate
            } else {
                r.emit(Op::Unary(UnaryOp::Not), [predicate], shape)
            });
        }
    }
    if r.element_type(id)? == ElementType::Pred && r.dimensions(predicate) == r.dimensions(id) {
        if r.splat(on_true).is_some_and(|t| t.is_one()) {
            return Some(r.emit(Op::Binary(BinaryOp::Or), [predicate, on_false], shape));
        }
        if r.splat(on_false).is_some_and(|f| f.is_zero()) {
            return Some(r.emit(Op::Binary(BinaryOp::And), [predicate, on_true], shape));
        }
    }
    // The choice of a nested selection by the same predicate is known.
    let nested =
        |branch: InstructionId| matches!(r.op(branch), Op::Select) && r.operand(branch, 0) == predicate;
    if nested(on_true) || nested(on_false) {
        let t = if nested(on_true) { r.operand(on_true, 1) } else { on_true };
        let f = if nested(on_false) { r.operand(on_false, 2) } else { on_false };
        return Some(r.emit(Op::Select, [predicate, t, f], shape));
    }
    None
}

/// A clamp that has been done already, or whose bounds are the type's.
pub(super) fn clamp(r: &mut Rewriter<'_>, id: InstructionId) -> Option<InstructionId> {
    let [low, x, high] = [0, 1, 2].map(|i| r.operand(id, i));
    if matches!(r.op(x), Op::Clamp) && r.operand(x, 0) == low && r.operand(x, 2) == high {
        return Some(x);
    }
    let is = |bound: InstructionId, extreme: fn(ElementType) -> Option<Scalar>| {
        r.splat(bound).is_some_and(|bound| extreme(bound.element_type) == Some(bound))
    };
    (is(low, Scalar::lowest) && is(high, Scalar::highest)).then_some(x)
}

fn known_outcome(
    r: &Rewriter<'_>,
    direction: ComparisonDirection,
    a: InstructionId,
    b: InstructionId,
    element_type: ElementType,
) -> Option<bool> {
    use ComparisonDirection::*;
    let is_discrete = element_type.is_integral() || element_type == ElementType::Pred;
    // NaN differs from itself, so only integers are known to be equal.
    if a == b && is_discrete {
        return Some(matches!(direction, Eq | Ge | Le));
    }
    let (a, b) = (range(r, a)?, range(r, b)?);
    match direction {
        Lt if a.1 < b.0 => Some(true),
        Lt if a.0 >= b.1 => Some(false),
        Le if a.1 <= b.0 => Some(true),
        Le if a.0 > b.1 => Some(false),
        Gt if a.0 > b.1 => Some(true),
        Gt if a.1 <= b.0 => Some(false),
        Ge if a.0 >= b.1 => Some(true),
        Ge if a.1 < b.0 => Some(false),
        Eq | Ne if a.1 < b.0 || a.0 > b.1 => Some(direction == Ne),
        Eq | Ne if a.0 == a.1 && a == b => Some(direction == Eq),
        _ => None,
    }
}

/// The smallest and the largest value that an integer array can have; `None` when nothing is known.
fn range(r: &Rewriter<'_>, id: InstructionId) -> Option<(i64, i64)> {
    let element_type = r.element_type(id)?;
    if let Some(value) = r.splat(id) {
        return value.as_integer().map(|value| (value, value));
    }
    match r.op(id) {
        Op::Iota { dimension } => {
            let largest = r.array(id)?.dimensions[*dimension as usize] - 1;
            let fits = Scalar::highest(element_type)?.as_integer().is_none_or(|highest| largest <= highest);
            (element_type.is_integral() && fits).then_some((0, largest))
        }
        Op::Broadcast { .. } | Op::Reshape { .. } | Op::Transpose { .. } | Op::Slice { .. } => {
            // One step only: the operands have been simplified towards this one.
            let inner = r.operand(id, 0);
            matches!(r.op(inner), Op::Iota { .. }).then(|| range(r, inner)).flatten()
        }
        _ if element_type == ElementType::Pred => Some((0, 1)),
        _ if element_type.is_unsigned() => Some((0, Scalar::highest(element_type)?.as_integer()?)),
        _ => None,
    }
}

/// A predicate made a number, compared with zero or one.
fn predicate_as_number(
    r: &mut Rewriter<'_>,
    id: InstructionId,
    direction: ComparisonDirection,
    a: InstructionId,
    b: InstructionId,
) -> Option<InstructionId> {
    use ComparisonDirection::*;
    let predicate = match r.op(a) {
        Op::Convert => r.operand(a, 0),
        _ => a,
    };
    if r.element_type(predicate)? != ElementType::Pred {
        return None;
    }
    let b = r.splat(b)?;
    let holds_when_true = match (direction, b.is_zero(), b.is_one()) {
        (Ne | Gt, true, _) | (Eq | Ge, _, true) => true,
        (Eq | Le, true, _) | (Ne | Lt, _, true) => false,
        _ => return None,
    };
    let shape = r.shape(id).clone();
    Some(if holds_when_true { predicate } else { r.emit(Op::Unary(UnaryOp::Not), [predicate], shape) })
}

fn splat(r: &mut Rewriter<'_>, id: InstructionId, value: bool) -> Option<InstructionId> {
    let dimensions = r.dimensions(id)?;
    Some(r.splat_array(Scalar::integer(ElementType::Pred, value.into()), &dimensions))
}

fn swapped(direction: ComparisonDirection) -> ComparisonDirection {
    use ComparisonDirection::*;
    match direction {
        Eq => Eq,
        Ne => Ne,
        Ge => Le,
        Gt => Lt,
        Le => Ge,
        Lt => Gt,
    }
}

fn complement(direction: ComparisonDirection) -> ComparisonDirection {
    use ComparisonDirection::*;
    match direction {
        Eq => Ne,
        Ne => Eq,
        Ge => Lt,
        Gt => Le,
        Le => Gt,
        Lt => Ge,
    }
}
