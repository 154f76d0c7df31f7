//! Identities of arithmetic: neutral and absorbing elements, inverses, small powers.

use memplan_ir::{BinaryOp, InstructionId, Op, Scalar, UnaryOp};
use memplan_rewriter::Rewriter;

/// Unary operations that undo each other, or that do nothing to this type.
pub(super) fn unary(r: &mut Rewriter<'_>, id: InstructionId, op: UnaryOp) -> Option<InstructionId> {
    let x = r.operand(id, 0);
    let element_type = r.element_type(x)?;
    let inner = r.op(x).clone();
    match (op, inner) {
        (UnaryOp::Negate, Op::Unary(UnaryOp::Negate)) | (UnaryOp::Not, Op::Unary(UnaryOp::Not)) => {
            Some(r.operand(x, 0))
        }
        (UnaryOp::Not, Op::Compare { .. }) => super::logic::not_compare(r, id, x),
        (UnaryOp::Abs, _) if element_type.is_unsigned() => Some(x),
        (UnaryOp::Abs, Op::Unary(UnaryOp::Abs)) => Some(x),
        (UnaryOp::Abs, Op::Unary(UnaryOp::Negate)) => {
            let inner = r.operand(x, 0);
            let shape = r.shape(id).clone();
            Some(r.emit(Op::Unary(UnaryOp::Abs), [inner], shape))
        }
        (UnaryOp::Real, Op::Binary(BinaryOp::Complex)) => Some(r.operand(x, 0)),
        (UnaryOp::Imag, Op::Binary(BinaryOp::Complex)) => Some(r.operand(x, 1)),
        (UnaryOp::Real, _) if !element_type.is_complex() => Some(x),
        (
            UnaryOp::Floor | UnaryOp::Ceil | UnaryOp::RoundNearestEven | UnaryOp::RoundNearestAwayFromZero,
            Op::Unary(
                UnaryOp::Floor
                | UnaryOp::Ceil
                | UnaryOp::RoundNearestEven
                | UnaryOp::RoundNearestAwayFromZero,
            ),
        ) => Some(x),
        _ => None,
    }
}

/// Binary operations with an operand that decides the result, or that leaves the other one as it is.
pub(super) fn binary(r: &mut Rewriter<'_>, id: InstructionId, op: BinaryOp) -> Option<InstructionId> {
    let (a, b) = (r.operand(id, 0), r.operand(id, 1));
    match op {
        BinaryOp::Add => add(r, id, a, b),
        BinaryOp::Subtract => subtract(r, id, a, b),
        BinaryOp::Multiply => multiply(r, id, a, b),
        BinaryOp::Divide => divide(r, id, a, b),
        BinaryOp::Power => power(r, id, a, b),
        BinaryOp::Remainder if is_integral(r, id) && r.splat(b)?.is_one() => splat(r, id, 0),
        BinaryOp::Maximum | BinaryOp::Minimum => extremum(r, op, a, b),
        BinaryOp::And | BinaryOp::Or | BinaryOp::Xor => bitwise(r, id, op, a, b),
        BinaryOp::ShiftLeft | BinaryOp::ShiftRightArithmetic | BinaryOp::ShiftRightLogical => {
            r.splat(b)?.is_zero().then_some(a)
        }
        BinaryOp::Complex => complex(r, a, b),
        _ => None,
    }
}

fn add(r: &mut Rewriter<'_>, id: InstructionId, a: InstructionId, b: InstructionId) -> Option<InstructionId> {
    for (x, y) in [(a, b), (b, a)] {
        if r.splat(y).is_some_and(|y| y.is_zero()) {
            return Some(x);
        }
        if let Op::Unary(UnaryOp::Negate) = r.op(y) {
            let y = r.operand(y, 0);
            return same_shape(r, id, BinaryOp::Subtract, x, y);
        }
        if let Some(c) = integer_splat(r, id, y)
            && let Op::Binary(BinaryOp::Add) = r.op(x)
            && let Some(inner) = integer_splat(r, id, r.operand(x, 1))
        {
            let x = r.operand(x, 0);
            return with_integer(r, id, BinaryOp::Add, x, c.wrapping_add(inner));
        }
    }
    None
}

fn subtract(
    r: &mut Rewriter<'_>,
    id: InstructionId,
    a: InstructionId,
    b: InstructionId,
) -> Option<InstructionId> {
    if r.splat(b).is_some_and(|b| b.is_zero()) {
        return Some(a);
    }
    if let Op::Unary(UnaryOp::Negate) = r.op(b) {
        let b = r.operand(b, 0);
        return same_shape(r, id, BinaryOp::Add, a, b);
    }
    // Infinity minus itself is NaN, so only integers cancel.
    if a == b && is_integral(r, id) {
        return splat(r, id, 0);
    }
    // A sum that wraps around comes back the same way.
    if is_integral(r, id) && matches!(r.op(a), Op::Binary(BinaryOp::Add)) {
        let (x, y) = (r.operand(a, 0), r.operand(a, 1));
        if x == b || y == b {
            return Some(if x == b { y } else { x });
        }
    }
    let c = integer_splat(r, id, b)?;
    with_integer(r, id, BinaryOp::Add, a, c.wrapping_neg())
}

fn multiply(
    r: &mut Rewriter<'_>,
    id: InstructionId,
    a: InstructionId,
    b: InstructionId,
) -> Option<InstructionId> {
    for (x, y) in [(a, b), (b, a)] {
        let Some(c) = r.splat(y) else { continue };
        if c.is_one() {
            return Some(x);
        }
        if c.is_zero() && is_integral(r, id) {
            return Some(y);
        }
        if c.is_value(-1) && !c.element_type.is_complex() && !c.element_type.is_unsigned() {
            let shape = r.shape(id).clone();
            return same_types(r, id, x).then(|| r.emit(Op::Unary(UnaryOp::Negate), [x], shape));
        }
        if let Some(c) = integer_splat(r, id, y)
            && let Op::Binary(BinaryOp::Multiply) = r.op(x)
            && let Some(inner) = integer_splat(r, id, r.operand(x, 1))
        {
            let x = r.operand(x, 0);
            return with_integer(r, id, BinaryOp::Multiply, x, c.wrapping_mul(inner));
        }
    }
    let negated = |x| matches!(r.op(x), Op::Unary(UnaryOp::Negate));
    if negated(a) && negated(b) {
        let (a, b) = (r.operand(a, 0), r.operand(b, 0));
        return same_shape(r, id, BinaryOp::Multiply, a, b);
    }
    None
}

fn divide(
    r: &mut Rewriter<'_>,
    id: InstructionId,
    a: InstructionId,
    b: InstructionId,
) -> Option<InstructionId> {
    let c = r.splat(b)?;
    if c.is_one() {
        return Some(a);
    }
    // Division is expensive to compute again in a fusion; by a power of two, a shift or a multiplication is just as exact.
    if let Some(value) =
        c.as_integer().filter(|value| c.element_type.is_unsigned() && value.count_ones() == 1)
    {
        let dimensions = r.dimensions(b)?;
        let bits = Scalar::integer(c.element_type, i64::from(value.trailing_zeros()));
        let bits = r.splat_array(bits, &dimensions);
        return same_shape(r, id, BinaryOp::ShiftRightLogical, a, bits);
    }
    let value = c.as_float().filter(|value| is_power_of_two(*value))?;
    let reciprocal = Scalar::float(c.element_type, 1.0 / value)?;
    if reciprocal.as_float() != Some(1.0 / value) {
        return None;
    }
    let dimensions = r.dimensions(b)?;
    let reciprocal = r.splat_array(reciprocal, &dimensions);
    same_shape(r, id, BinaryOp::Multiply, a, reciprocal)
}

/// A normal power of two whose reciprocal is normal as well, in every type that reaches that far.
fn is_power_of_two(value: f64) -> bool {
    let mantissa = value.to_bits() & ((1 << 52) - 1);
    mantissa == 0 && (2f64.powi(-100)..=2f64.powi(100)).contains(&value.abs())
}

fn power(
    r: &mut Rewriter<'_>,
    id: InstructionId,
    a: InstructionId,
    b: InstructionId,
) -> Option<InstructionId> {
    let exponent = r.splat(b)?;
    if exponent.element_type.is_complex() || !same_types(r, id, a) {
        return None;
    }
    if exponent.is_zero() {
        return splat(r, id, 1);
    }
    if exponent.is_one() {
        return Some(a);
    }
    if exponent.is_value(2) {
        return same_shape(r, id, BinaryOp::Multiply, a, a);
    }
    if exponent.is_value(3) {
        let square = same_shape(r, id, BinaryOp::Multiply, a, a)?;
        return same_shape(r, id, BinaryOp::Multiply, square, a);
    }
    if exponent.is_value(-1) && exponent.element_type.is_floating() {
        let one = splat(r, id, 1)?;
        return same_shape(r, id, BinaryOp::Divide, one, a);
    }
    None
}

fn extremum(r: &Rewriter<'_>, op: BinaryOp, a: InstructionId, b: InstructionId) -> Option<InstructionId> {
    if a == b {
        return Some(a);
    }
    let (neutral, absorbing) = match op {
        BinaryOp::Maximum => (Scalar::lowest as fn(_) -> _, Scalar::highest as fn(_) -> _),
        _ => (Scalar::highest as fn(_) -> _, Scalar::lowest as fn(_) -> _),
    };
    for (x, y) in [(a, b), (b, a)] {
        let Some(c) = r.splat(y) else { continue };
        if neutral(c.element_type) == Some(c) {
            return Some(x);
        }
        // A NaN wins over infinity.
        if !c.element_type.is_floating() && absorbing(c.element_type) == Some(c) {
            return Some(y);
        }
    }
    None
}

fn bitwise(
    r: &mut Rewriter<'_>,
    id: InstructionId,
    op: BinaryOp,
    a: InstructionId,
    b: InstructionId,
) -> Option<InstructionId> {
    if a == b {
        return if op == BinaryOp::Xor { splat(r, id, 0) } else { Some(a) };
    }
    for (x, y) in [(a, b), (b, a)] {
        let Some(c) = r.splat(y) else { continue };
        let all_ones = Scalar::integer(c.element_type, -1);
        match op {
            BinaryOp::And if c == all_ones => return Some(x),
            BinaryOp::And if c.is_zero() => return Some(y),
            BinaryOp::Or if c == all_ones => return Some(y),
            BinaryOp::Or | BinaryOp::Xor if c.is_zero() => return Some(x),
            BinaryOp::Xor if c == all_ones => {
                let shape = r.shape(id).clone();
                return Some(r.emit(Op::Unary(UnaryOp::Not), [x], shape));
            }
            _ => {}
        }
    }
    None
}

/// A complex number put together from its own parts.
fn complex(r: &Rewriter<'_>, a: InstructionId, b: InstructionId) -> Option<InstructionId> {
    let parts = matches!(r.op(a), Op::Unary(UnaryOp::Real)) && matches!(r.op(b), Op::Unary(UnaryOp::Imag));
    (parts && r.operand(a, 0) == r.operand(b, 0)).then(|| r.operand(a, 0))
}

fn is_integral(r: &Rewriter<'_>, id: InstructionId) -> bool {
    r.element_type(id).is_some_and(|element_type| element_type.is_integral())
}

/// The value of an integer array whose elements are all the same.
fn integer_splat(r: &Rewriter<'_>, id: InstructionId, operand: InstructionId) -> Option<i64> {
    if is_integral(r, id) { r.splat(operand)?.as_integer() } else { None }
}

/// Whether an operand has the type of the result: types that differ in precision only may be mixed.
fn same_types(r: &Rewriter<'_>, id: InstructionId, operand: InstructionId) -> bool {
    r.element_type(id) == r.element_type(operand)
}

fn splat(r: &mut Rewriter<'_>, id: InstructionId, value: i64) -> Option<InstructionId> {
    let (element_type, dimensions) = (r.element_type(id)?, r.dimensions(id)?);
    Some(r.splat_array(Scalar::integer(element_type, value), &dimensions))
}

fn with_integer(
    r: &mut Rewriter<'_>,
    id: InstructionId,
    op: BinaryOp,
    x: InstructionId,
    value: i64,
) -> Option<InstructionId> {
    let constant = splat(r, id, value)?;
    same_shape(r, id, op, x, constant)
}

fn same_shape(
    r: &mut Rewriter<'_>,
    id: InstructionId,
    op: BinaryOp,
    a: InstructionId,
    b: InstructionId,
) -> Option<InstructionId> {
    let shape = r.shape(id).clone();
    Some(r.emit(Op::Binary(op), [a, b], shape))
}
