//! The scalars of a loop's body at each step: linear functions of the step number.

use memplan_ir::{BinaryOp, ComparisonDirection, ElementType, InstructionId, Module, Op, UnaryOp};
use memplan_rewriter::loops::{Loop, scalar};
use rustc_hash::FxHashMap;

/// Deepest expression that is looked into.
const MAX_DEPTH: usize = 64;

/// `start + step * t` at step `t` of a loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) start: i128,
    pub(super) step: i128,
}

/// The integers of a body that are lines.
pub(super) struct Lines<'a> {
    module: &'a Module,
    of: &'a Loop,
    /// How often the loop runs, at least once.
    pub(super) n_steps: i128,
    known: FxHashMap<InstructionId, Option<Line>>,
}

impl<'a> Lines<'a> {
    pub(super) fn new(module: &'a Module, of: &'a Loop, n_steps: u64) -> Lines<'a> {
        Lines { module, of, n_steps: i128::from(n_steps), known: FxHashMap::default() }
    }

    /// The line of an integer that never overflows its type. Linear in its operands, over all calls.
    pub(super) fn of(&mut self, id: InstructionId) -> Option<Line> {
        self.at_depth(id, MAX_DEPTH)
    }

    /// The smallest and the largest value; `None` when they are far outside of any type.
    pub(super) fn bounds(&self, line: Line) -> Option<(i128, i128)> {
        let last = line.start.checked_add(line.step.checked_mul(self.n_steps - 1)?)?;
        Some((line.start.min(last), line.start.max(last)))
    }

    fn at_depth(&mut self, id: InstructionId, depth: usize) -> Option<Line> {
        if let Some(&line) = self.known.get(&id) {
            return line;
        }
        let element_type = self.module.shape(id).as_array()?.element_type;
        let line = if depth > 0 && element_type.is_integral() { self.compute(id, depth - 1) } else { None };
        let line = line.filter(|&line| self.fits(line, element_type));
        self.known.insert(id, line);
        line
    }

    fn compute(&mut self, id: InstructionId, depth: usize) -> Option<Line> {
        let module = self.module;
        let instruction = &module.instructions[id];
        let operand = |i: usize| instruction.operands[i];
        match instruction.op {
            Op::Constant(_) => constant(scalar(module, id)?.as_integer()?),
            Op::GetTupleElement { .. } => self.element(self.of.element_at(module, id)?, depth),
            Op::Reshape { .. } | Op::Copy | Op::Convert => self.at_depth(operand(0), depth),
            Op::Unary(UnaryOp::Negate) => {
                combine(Line { start: 0, step: 0 }, self.at_depth(operand(0), depth)?, i128::checked_sub)
            }
            Op::Binary(op) => {
                let (a, b) = (self.at_depth(operand(0), depth)?, self.at_depth(operand(1), depth)?);
                self.binary(op, a, b)
            }
            Op::Select => match self.decide(operand(0), depth)? {
                true => self.at_depth(operand(1), depth),
                false => self.at_depth(operand(2), depth),
            },
            Op::Clamp => {
                let [least, x, most] = [0, 1, 2].map(|i| self.at_depth(operand(i), depth));
                let above = self.binary(BinaryOp::Maximum, least?, x?)?;
                self.binary(BinaryOp::Minimum, above, most?)
            }
            _ => None,
        }
    }

    /// An element of the state: one that is passed through, or grows by a constant in each step.
    fn element(&mut self, element: u32, depth: usize) -> Option<Line> {
        let [init, next] =
            [self.of.init, self.of.next].map(|id| self.module.instructions[id].operands[element as usize]);
        let Line { start, .. } = constant(scalar(self.module, init)?.as_integer()?)?;
        if self.of.passes_on(self.module, element) {
            return Some(Line { start, step: 0 });
        }
        let next = &self.module.instructions[next];
        let is_itself = |i: usize| self.of.element_at(self.module, next.operands[i]) == Some(element);
        let (other, sign) = match next.op {
            Op::Binary(BinaryOp::Add) if is_itself(0) => (1, 1),
            Op::Binary(BinaryOp::Add) if is_itself(1) => (0, 1),
            Op::Binary(BinaryOp::Subtract) if is_itself(0) => (1, -1),
            _ => return None,
        };
        let by = self.at_depth(next.operands[other], depth).filter(|by| by.step == 0)?;
        Some(Line { start, step: sign * by.start })
    }

    fn binary(&self, op: BinaryOp, a: Line, b: Line) -> Option<Line> {
        match op {
            BinaryOp::Add => combine(a, b, i128::checked_add),
            BinaryOp::Subtract => combine(a, b, i128::checked_sub),
            BinaryOp::Multiply => {
                let (a, b) = if b.step == 0 { (a, b.start) } else { (b, (a.step == 0).then_some(a.start)?) };
                Some(Line { start: a.start.checked_mul(b)?, step: a.step.checked_mul(b)? })
            }
            BinaryOp::Maximum => {
                self.compare(ComparisonDirection::Ge, a, b).map(|is_a| if is_a { a } else { b })
            }
            BinaryOp::Minimum => {
                self.compare(ComparisonDirection::Le, a, b).map(|is_a| if is_a { a } else { b })
            }
            _ => None,
        }
    }

    /// A comparison that comes out alike in all steps.
    fn decide(&mut self, id: InstructionId, depth: usize) -> Option<bool> {
        let instruction = &self.module.instructions[id];
        let Op::Compare { direction, .. } = instruction.op else { return None };
        let [a, b] = [0, 1].map(|i| self.at_depth(instruction.operands[i], depth));
        self.compare(direction, a?, b?)
    }

    fn compare(&self, direction: ComparisonDirection, a: Line, b: Line) -> Option<bool> {
        use ComparisonDirection::{Eq, Ge, Gt, Le, Lt, Ne};
        let (least, most) = self.bounds(combine(a, b, i128::checked_sub)?)?;
        let (always, never) = match direction {
            Lt => (most < 0, least >= 0),
            Le => (most <= 0, least > 0),
            Gt => (least > 0, most <= 0),
            Ge => (least >= 0, most < 0),
            Eq => ((least, most) == (0, 0), least > 0 || most < 0),
            Ne => (least > 0 || most < 0, (least, most) == (0, 0)),
        };
        (always || never).then_some(always)
    }

    /// Whether nothing wraps around.
    fn fits(&self, line: Line, element_type: ElementType) -> bool {
        let bits = element_type.bits();
        let range = match element_type.is_signed() {
            true => -(1i128 << (bits - 1))..1i128 << (bits - 1),
            false => 0..1i128 << bits,
        };
        self.bounds(line).is_some_and(|(least, most)| range.contains(&least) && range.contains(&most))
    }
}

fn constant(value: i64) -> Option<Line> {
    Some(Line { start: i128::from(value), step: 0 })
}

fn combine(a: Line, b: Line, f: impl Fn(i128, i128) -> Option<i128>) -> Option<Line> {
    Some(Line { start: f(a.start, b.start)?, step: f(a.step, b.step)? })
}
