//! How often a loop runs, where its counter starts, steps and ends at constants.

use memplan_ir::{BinaryOp, ComparisonDirection, ComputationId, InstructionId, Literal, Module, Op, Shape};

use crate::scalar::Scalar;

/// The number of times that the body of a `while` runs; `None` where that is not plain to see.
///
/// Plain to see is a counter among the elements of the loop's state that starts at a constant, to which the body adds
/// a constant, and which the condition compares with a constant. A counter that would leave the range of its type
/// before the condition ends the loop is not counted.
pub fn trip_count(module: &Module, id: InstructionId) -> Option<u64> {
    let instruction = &module.instructions[id];
    let (Op::While, &[body, condition]) = (&instruction.op, instruction.called.as_slice()) else {
        return None;
    };
    let init = &module.instructions[instruction.operands[0]];
    let end = loop_end(module, condition)?;
    let start = match init.op {
        Op::Tuple => constant(module, *init.operands.get(end.element as usize)?)?,
        _ => return None,
    };
    let step = counter_step(module, body, end.element)?;
    count(i128::from(start), i128::from(step), &end)
}

/// `counter <direction> bound` keeps the loop going.
struct LoopEnd {
    element: u32,
    direction: ComparisonDirection,
    bound: i64,
    /// The largest and the smallest value that the counter can have.
    range: (i128, i128),
}

fn loop_end(module: &Module, condition: ComputationId) -> Option<LoopEnd> {
    let root = &module.instructions[module.computations[condition].root];
    let Op::Compare { direction, .. } = root.op else { return None };
    let [a, b] = *root.operands else { return None };
    let (element, bound, direction) = match (state_element(module, a), state_element(module, b)) {
        (Some(element), None) => (element, constant(module, b)?, direction),
        (None, Some(element)) => (element, constant(module, a)?, mirrored(direction)),
        _ => return None,
    };
    let Shape::Array(array) = module.shape(a) else { return None };
    let t = array.element_type;
    if !t.is_integral() {
        return None;
    }
    let range = match t.is_signed() {
        true => (-(1i128 << (t.bits() - 1)), (1i128 << (t.bits() - 1)) - 1),
        false => (0, (1i128 << t.bits()) - 1),
    };
    Some(LoopEnd { element, direction, bound, range })
}

/// What the body adds to an element of the state.
fn counter_step(module: &Module, body: ComputationId, element: u32) -> Option<i64> {
    let root = &module.instructions[module.computations[body].root];
    if !matches!(root.op, Op::Tuple) {
        return None;
    }
    let next = &module.instructions[*root.operands.get(element as usize)?];
    let [a, b] = *next.operands else { return None };
    let is_counter = |id| state_element(module, id) == Some(element);
    match next.op {
        Op::Binary(BinaryOp::Add) if is_counter(a) => constant(module, b),
        Op::Binary(BinaryOp::Add) if is_counter(b) => constant(module, a),
        Op::Binary(BinaryOp::Subtract) if is_counter(a) => constant(module, b)?.checked_neg(),
        _ => None,
    }
}

/// Which element of the only parameter an instruction takes out.
fn state_element(module: &Module, id: InstructionId) -> Option<u32> {
    let instruction = &module.instructions[id];
    match instruction.op {
        Op::GetTupleElement { index }
            if matches!(module.instructions[instruction.operands[0]].op, Op::Parameter { .. }) =>
        {
            Some(index)
        }
        _ => None,
    }
}

fn constant(module: &Module, id: InstructionId) -> Option<i64> {
    match &module.instructions[id].op {
        Op::Constant(Literal::Array(literal)) => Scalar::splat_of(literal)?.as_integer(),
        _ => None,
    }
}

fn count(start: i128, step: i128, end: &LoopEnd) -> Option<u64> {
    use ComparisonDirection::*;
    let bound = i128::from(end.bound);
    // As if the loop ran while `start + n * step < bound`, counting upwards.
    let (distance, step) = match end.direction {
        Lt => (bound - start, step),
        Le => (bound - start + 1, step),
        Gt => (start - bound, -step),
        Ge => (start - bound + 1, -step),
        Ne if step != 0 && (bound - start) % step == 0 && (bound - start) / step >= 0 => {
            return u64::try_from((bound - start) / step).ok();
        }
        Ne | Eq => return None,
    };
    if distance <= 0 {
        return Some(0);
    }
    if step <= 0 {
        return None;
    }
    let n = (distance + step - 1) / step;
    let forward = if matches!(end.direction, Lt | Le) { step } else { -step };
    let last = start + n * forward;
    (end.range.0..=end.range.1).contains(&last).then(|| u64::try_from(n).ok()).flatten()
}

fn mirrored(direction: ComparisonDirection) -> ComparisonDirection {
    use ComparisonDirection::*;
    match direction {
        Lt => Gt,
        Gt => Lt,
        Le => Ge,
        Ge => Le,
        same => same,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The iterations of `for (i = start; i <direction> bound; i += step)` over `s8`.
    #[track_caller]
    fn check(start: i128, direction: ComparisonDirection, bound: i64, step: i128, expected: Option<u64>) {
        let end = LoopEnd { element: 0, direction, bound, range: (-128, 127) };
        assert_eq!(count(start, step, &end), expected);
    }

    #[test]
    fn counts_up_and_down() {
        use ComparisonDirection::*;
        check(0, Lt, 12, 1, Some(12));
        check(0, Le, 12, 5, Some(3));
        check(11, Ge, 0, -1, Some(12));
        check(11, Gt, 0, -4, Some(3));
        check(0, Ne, 6, 2, Some(3));
        check(5, Lt, 5, 1, Some(0));
    }

    #[test]
    fn what_does_not_end_is_not_counted() {
        use ComparisonDirection::*;
        check(0, Lt, 12, -1, None);
        check(0, Lt, 12, 0, None);
        check(0, Ne, 5, 2, None);
        // The counter wraps around before it gets there.
        check(100, Lt, 127, 20, None);
        check(0, Le, 127, 1, None);
    }
}
