//! How often a loop runs, where its counter starts, steps and ends at constants.

use memplan_ir::{BinaryOp, ComparisonDirection, ComputationId, InstructionId, Literal, Module, Op, Shape};

/// The number of times that the body of a `while` runs; `None` where that is not plain to see.
///
/// Plain to see is a counter among the elements of the loop's state that starts at a constant, to which the body adds
/// a constant, and which the condition compares with a constant, or with an element of the state that is constant
/// because the body hands it through. A counter that would leave the range of its type before the condition ends the
/// loop is not counted. Either may be computed by a fusion of scalars.
pub fn trip_count(module: &Module, id: InstructionId) -> Option<u64> {
    let instruction = &module.instructions[id];
    let (Op::While, &[body, condition]) = (&instruction.op, instruction.called.as_slice()) else {
        return None;
    };
    let state = State { module, body, init: initial_state(module, instruction.operands[0])? };
    let end = state.loop_end(condition)?;
    let start = constant(module, *state.init.get(end.element as usize)?)?;
    let step = state.step(end.element)?;
    count(i128::from(start), i128::from(step), &end)
}

/// The state of a loop: where it comes from and what becomes of it.
struct State<'m> {
    module: &'m Module,
    body: ComputationId,
    init: &'m [InstructionId],
}

/// `counter <direction> bound` keeps the loop going.
struct LoopEnd {
    element: u32,
    direction: ComparisonDirection,
    bound: i64,
    /// The largest and the smallest value that the counter can have.
    range: (i128, i128),
}

impl State<'_> {
    fn loop_end(&self, condition: ComputationId) -> Option<LoopEnd> {
        let module = self.module;
        let root = Node::of(module, module.computations[condition].root);
        let Op::Compare { direction, .. } = module.instructions[root.id].op else { return None };
        let [a, b] = root.operands(module)?;
        let counter = |node: Node| state_element(module, node.id).filter(|&element| !self.is_kept(element));
        let (element, bound, direction) = match (counter(a), counter(b)) {
            (Some(element), None) => (element, self.constant(b)?, direction),
            (None, Some(element)) => (element, self.constant(a)?, mirrored(direction)),
            _ => return None,
        };
        let Shape::Array(array) = module.shape(a.id) else { return None };
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
    fn step(&self, element: u32) -> Option<i64> {
        let next = Node::of(self.module, self.next(element)?);
        let [a, b] = next.operands(self.module)?;
        let is_counter = |node: Node| state_element(self.module, node.id) == Some(element);
        match self.module.instructions[next.id].op {
            Op::Binary(BinaryOp::Add) if is_counter(a) => self.constant(b),
            Op::Binary(BinaryOp::Add) if is_counter(b) => self.constant(a),
            Op::Binary(BinaryOp::Subtract) if is_counter(a) => self.constant(b)?.checked_neg(),
            _ => None,
        }
    }

    /// What the body returns for an element of the state.
    fn next(&self, element: u32) -> Option<InstructionId> {
        let root = &self.module.instructions[self.module.computations[self.body].root];
        (root.op == Op::Tuple).then(|| root.operands.get(element as usize).copied()).flatten()
    }

    /// Whether the body hands an element through.
    fn is_kept(&self, element: u32) -> bool {
        self.next(element).is_some_and(|next| state_element(self.module, next) == Some(element))
    }

    /// The value of a constant, or of an element of the state that is one in every iteration.
    fn constant(&self, Node { id, .. }: Node) -> Option<i64> {
        match state_element(self.module, id) {
            Some(element) if self.is_kept(element) => {
                constant(self.module, *self.init.get(element as usize)?)
            }
            _ => constant(self.module, id),
        }
    }
}

/// An instruction, seen through fusions: one in a fused computation stands for what the fusion gives.
#[derive(Clone, Copy)]
struct Node {
    id: InstructionId,
    fusion: Option<InstructionId>,
}

impl Node {
    /// What gives the value of an instruction of a sequential computation.
    fn of(module: &Module, id: InstructionId) -> Node {
        let instruction = &module.instructions[id];
        match instruction.op {
            Op::Fusion(_) => {
                let root = module.computations[instruction.called[0]].root;
                Node { id: root, fusion: Some(id) }.outside(module)
            }
            _ => Node { id, fusion: None },
        }
    }

    /// The operand of the fusion that a parameter stands for.
    fn outside(self, module: &Module) -> Node {
        match (&module.instructions[self.id].op, self.fusion) {
            (&Op::Parameter { number }, Some(fusion)) => {
                Node { id: module.instructions[fusion].operands[number as usize], fusion: None }
            }
            _ => self,
        }
    }

    fn operands(self, module: &Module) -> Option<[Node; 2]> {
        let &[a, b] = module.instructions[self.id].operands.as_slice() else { return None };
        Some([a, b].map(|id| Node { id, ..self }.outside(module)))
    }
}

fn initial_state(module: &Module, id: InstructionId) -> Option<&[InstructionId]> {
    let init = &module.instructions[id];
    (init.op == Op::Tuple).then_some(&init.operands)
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

/// The integer that a constant is, seen through copies.
fn constant(module: &Module, mut id: InstructionId) -> Option<i64> {
    while module.instructions[id].op == Op::Copy {
        id = module.instructions[id].operands[0];
    }
    match &module.instructions[id].op {
        Op::Constant(Literal::Array(literal)) => literal.as_integer(),
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
