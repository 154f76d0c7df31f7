//! How often a loop runs, if its counter starts, steps and ends at constants.

use memplan_ir::{
    BinaryOp, ComparisonDirection, ComputationId, Instruction, InstructionId, Literal, Module, Op, Shape,
};
use smallvec::SmallVec;

/// Most instructions that a value is followed through: compilers leave a handful, while fusions within fusions can be
/// written such that the way through them doubles with each.
const MAX_STEPS: usize = 256;

/// The number of times that the body of a `while` runs; `None` where that is not plain to see.
///
/// Plain to see is a counter among the elements of the loop's state that starts at a constant, to which the body adds
/// a constant, and which the condition compares with a constant, or with an element of the state that is constant
/// because the body hands it through. A counter that would leave the range of its type before the condition ends the
/// loop is not counted. Each of these may have been copied on the way, or be computed by fusions.
pub fn trip_count(module: &Module, id: InstructionId) -> Option<u64> {
    let instruction = &module.instructions[id];
    let (Op::While, &[body, condition]) = (&instruction.op, instruction.called.as_slice()) else {
        return None;
    };
    let state = State { module, body, init: instruction.operands[0] };
    let end = state.loop_end(condition)?;
    let start = state.initial(end.element)?;
    let step = state.step(end.element)?;
    count(i128::from(start), i128::from(step), &end)
}

/// The number of iterations of a `while` that XLA's compilers note beside it, from facts that this analysis may not
/// find. After a rewrite of the loop, the note may be wrong.
pub fn noted_trip_count(instruction: &Instruction) -> Option<u64> {
    let notes: serde_json::Value = serde_json::from_slice(instruction.backend_config.as_deref()?).ok()?;
    notes.pointer("/known_trip_count/n")?.as_str()?.parse().ok()
}

/// The state of a loop: its initial and next values.
struct State<'m> {
    module: &'m Module,
    body: ComputationId,
    init: InstructionId,
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
        let root = Node::of(module, module.computations[condition].root)?;
        let Op::Compare { direction, .. } = module.instructions[root.id].op else { return None };
        let [a, b] = root.operands(module)?;
        let counter = |node: &Node| node.state_element(module).filter(|&element| !self.is_kept(element));
        let (element, bound, direction) = match (counter(&a), counter(&b)) {
            (Some(element), None) => (element, self.constant(&b)?, direction),
            (None, Some(element)) => (element, self.constant(&a)?, mirrored(direction)),
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

    /// The amount that the body adds to an element of the state.
    fn step(&self, element: u32) -> Option<i64> {
        let next = self.next(element)?;
        let [a, b] = next.operands(self.module)?;
        let is_counter = |node: &Node| node.state_element(self.module) == Some(element);
        match self.module.instructions[next.id].op {
            Op::Binary(BinaryOp::Add) if is_counter(&a) => self.constant(&b),
            Op::Binary(BinaryOp::Add) if is_counter(&b) => self.constant(&a),
            Op::Binary(BinaryOp::Subtract) if is_counter(&a) => self.constant(&b)?.checked_neg(),
            _ => None,
        }
    }

    /// The body's result for an element of the state.
    fn next(&self, element: u32) -> Option<Node> {
        let root = Node::of(self.module, self.module.computations[self.body].root)?;
        root.element(self.module, element, &mut 0)
    }

    /// The constant that an element of the state is to begin with.
    fn initial(&self, element: u32) -> Option<i64> {
        let init = Node::of(self.module, self.init)?;
        init.element(self.module, element, &mut 0)?.constant(self.module)
    }

    /// Whether the body passes an element through.
    fn is_kept(&self, element: u32) -> bool {
        self.next(element).is_some_and(|next| next.state_element(self.module) == Some(element))
    }

    /// The value of a constant, or of an element of the state that is one in every iteration.
    fn constant(&self, node: &Node) -> Option<i64> {
        match node.state_element(self.module) {
            Some(element) if self.is_kept(element) => self.initial(element),
            _ => node.constant(self.module),
        }
    }
}

/// The computation of a value: an instruction, and the fusions that contain it, outermost first.
#[derive(Clone, Debug)]
struct Node {
    id: InstructionId,
    fusions: SmallVec<[InstructionId; 1]>,
}

impl Node {
    /// The computation of an instruction's value in a sequential computation; `None` if that is too far away.
    fn of(module: &Module, id: InstructionId) -> Option<Node> {
        Node { id, fusions: SmallVec::new() }.origin(module, &mut 0)
    }

    /// Looks through copies, into and out of fusions, and into tuples.
    fn origin(mut self, module: &Module, steps: &mut usize) -> Option<Node> {
        loop {
            *steps += 1;
            if *steps > MAX_STEPS {
                return None;
            }
            let instruction = &module.instructions[self.id];
            match &instruction.op {
                Op::Copy | Op::CopyStart { .. } | Op::CopyDone => self.id = instruction.operands[0],
                Op::Bitcast | Op::Reshape { .. } if is_same_scalar(module, self.id) => {
                    self.id = instruction.operands[0];
                }
                Op::Fusion(_) => {
                    self.fusions.push(self.id);
                    self.id = module.computations[instruction.called[0]].root;
                }
                &Op::Parameter { number } => match self.fusions.pop() {
                    Some(fusion) => self.id = module.instructions[fusion].operands[number as usize],
                    None => return Some(self),
                },
                &Op::GetTupleElement { index } => {
                    let tuple = Node { id: instruction.operands[0], fusions: self.fusions.clone() };
                    match tuple.origin(module, steps)?.element(module, index, steps) {
                        Some(element) => return Some(element),
                        None => return Some(self),
                    }
                }
                _ => return Some(self),
            }
        }
    }

    /// The computation of a tuple's element; `None` for tuples made elsewhere.
    fn element(&self, module: &Module, index: u32, steps: &mut usize) -> Option<Node> {
        let instruction = &module.instructions[self.id];
        let id = (instruction.op == Op::Tuple).then(|| instruction.operands.get(index as usize)).flatten()?;
        Node { id: *id, fusions: self.fusions.clone() }.origin(module, steps)
    }

    fn operands(&self, module: &Module) -> Option<[Node; 2]> {
        let &[a, b] = module.instructions[self.id].operands.as_slice() else { return None };
        let origin = |id| Node { id, fusions: self.fusions.clone() }.origin(module, &mut 0);
        Some([origin(a)?, origin(b)?])
    }

    /// Which element of the loop's state this is.
    fn state_element(&self, module: &Module) -> Option<u32> {
        let instruction = &module.instructions[self.id];
        let Op::GetTupleElement { index } = instruction.op else { return None };
        let state = Node { id: instruction.operands[0], fusions: self.fusions.clone() };
        let state = state.origin(module, &mut 0)?;
        matches!(module.instructions[state.id].op, Op::Parameter { .. }).then_some(index)
    }

    /// The integer that a constant is.
    fn constant(&self, module: &Module) -> Option<i64> {
        match &module.instructions[self.id].op {
            Op::Constant(Literal::Array(literal)) => literal.as_integer(),
            _ => None,
        }
    }
}

/// Whether an instruction gives the only element of its operand another shape, and nothing else.
fn is_same_scalar(module: &Module, id: InstructionId) -> bool {
    let scalar = |id: InstructionId| {
        module.shape(id).as_array().filter(|array| array.element_count() == Some(1)).map(|a| a.element_type)
    };
    scalar(id).is_some_and(|t| scalar(module.instructions[id].operands[0]) == Some(t))
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
