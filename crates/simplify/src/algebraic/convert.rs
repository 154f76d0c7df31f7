//! Conversions that change nothing, and pairs of conversions that are one.

use memplan_ir::{ElementType, InstructionId, Op};
use memplan_rewriter::Rewriter;

/// A conversion to the type at hand, back from a wider type, or by way of one.
pub(super) fn convert(r: &mut Rewriter<'_>, id: InstructionId) -> Option<InstructionId> {
    let x = r.operand(id, 0);
    let (from, to) = (r.element_type(x)?, r.element_type(id)?);
    if from == to {
        return Some(x);
    }
    match *r.op(x) {
        Op::Convert => {
            let original = r.operand(x, 0);
            let narrow = r.element_type(original)?;
            // Floats become integers by saturating, integers by wrapping around.
            let wraps = from.is_floating() && narrow.is_integral() && to.is_integral();
            if !holds_all_values(from, narrow) || (wraps && !holds_all_values(to, narrow)) {
                return None;
            }
            let shape = r.shape(id).clone();
            Some(r.emit(Op::Convert, [original], shape))
        }
        // An iota counts in its own type, so it can start in the right one while that counts far enough.
        Op::Iota { dimension } => {
            let largest = r.array(x)?.dimensions[dimension as usize] - 1;
            if !from.is_integral() || !counts_to(from, largest) || !counts_to(to, largest) {
                return None;
            }
            let shape = r.shape(id).clone();
            Some(r.emit(Op::Iota { dimension }, [], shape))
        }
        _ => None,
    }
}

/// A reinterpretation as the type at hand, or of a reinterpretation.
pub(super) fn bitcast_convert(r: &mut Rewriter<'_>, id: InstructionId) -> Option<InstructionId> {
    let x = r.operand(id, 0);
    if r.array(id)?.same_ignoring_layout(r.array(x)?) {
        return Some(x);
    }
    if !matches!(r.op(x), Op::BitcastConvert) {
        return None;
    }
    let original = r.operand(x, 0);
    let same_extents = r.dimensions(original) == r.dimensions(x) && r.dimensions(x) == r.dimensions(id);
    let shape = r.shape(id).clone();
    same_extents.then(|| r.emit(Op::BitcastConvert, [original], shape))
}

/// A reduction to a precision that the type or the operand does not exceed anyway.
pub(super) fn reduce_precision(r: &mut Rewriter<'_>, id: InstructionId) -> Option<InstructionId> {
    let Op::ReducePrecision { exponent_bits, mantissa_bits } = *r.op(id) else { return None };
    let x = r.operand(id, 0);
    let holds = |element_type: ElementType| {
        exponent_and_mantissa(element_type).is_some_and(|(e, m)| exponent_bits >= e && mantissa_bits >= m)
    };
    let is_exact = match r.op(x) {
        Op::ReducePrecision { exponent_bits: e, mantissa_bits: m } => {
            (exponent_bits, mantissa_bits) == (*e, *m)
        }
        Op::Convert => holds(r.element_type(r.operand(x, 0))?),
        _ => false,
    };
    (is_exact || holds(r.element_type(id)?)).then_some(x)
}

/// Whether each value of `narrow` is a value of `wide`, so that going through `wide` changes nothing.
fn holds_all_values(wide: ElementType, narrow: ElementType) -> bool {
    use ElementType::Pred;
    let integer_bits = |t: ElementType| if t.is_signed() { t.bits() - 1 } else { t.bits() };
    if wide == narrow {
        return true;
    }
    match (exponent_and_mantissa(wide), exponent_and_mantissa(narrow)) {
        (Some((we, wm)), Some((ne, nm))) => we >= ne && wm >= nm,
        (Some((_, mantissa)), None) => {
            // One more bit than the mantissa shows.
            (narrow.is_integral() && integer_bits(narrow) as i32 <= mantissa + 1) || narrow == Pred
        }
        (None, None) if wide.is_integral() => match narrow {
            Pred => true,
            _ => {
                narrow.is_integral()
                    && integer_bits(wide) >= integer_bits(narrow)
                    && (wide.is_signed() || !narrow.is_signed())
            }
        },
        _ => false,
    }
}

/// The exponent and mantissa bits of the IEEE-like types.
fn exponent_and_mantissa(element_type: ElementType) -> Option<(i32, i32)> {
    match element_type {
        ElementType::F64 => Some((11, 52)),
        ElementType::F32 => Some((8, 23)),
        ElementType::F16 => Some((5, 10)),
        ElementType::Bf16 => Some((8, 7)),
        _ => None,
    }
}

/// Whether all integers from zero to `largest` are values of a type.
fn counts_to(element_type: ElementType, largest: i64) -> bool {
    let bits = match exponent_and_mantissa(element_type) {
        Some((_, mantissa)) => mantissa + 1,
        None if element_type.is_signed() => element_type.bits() as i32 - 1,
        None if element_type.is_unsigned() => element_type.bits() as i32,
        None => return false,
    };
    bits >= 63 || largest <= 1 << bits.min(62) && (element_type.is_floating() || largest < 1 << bits.min(62))
}
