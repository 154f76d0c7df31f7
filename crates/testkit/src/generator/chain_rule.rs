//! Arrays computed step by step, and their gradients by the chain rule.

use memplan_ir::ElementType::F32;
use memplan_ir::{BinaryOp, BuildError, DotDimensions, Insert, InstructionId, Literal, UnaryOp};

use super::Body;

/// How an array was computed.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Rows by columns.
    Product {
        x: InstructionId,
        w: InstructionId,
    },
    Unary {
        op: UnaryOp,
        x: InstructionId,
    },
    Binary {
        op: BinaryOp,
        x: InstructionId,
        y: InstructionId,
    },
    /// Two matrices with as many columns, side by side.
    Beside {
        x: InstructionId,
        y: InstructionId,
    },
    /// The sum over a dimension of a matrix.
    Sum {
        x: InstructionId,
        over: i64,
    },
    /// A vector along a dimension of a matrix.
    Along {
        x: InstructionId,
        dimension: i64,
    },
}

/// The steps that lead to a result, in order.
#[derive(Default)]
pub(super) struct Tape {
    steps: Vec<(InstructionId, Step)>,
}

impl Tape {
    /// The values that gradients are computed from, each once.
    pub(super) fn read(&self) -> Vec<InstructionId> {
        let mut read = Vec::new();
        for &(result, step) in &self.steps {
            read.extend(match step {
                Step::Product { x, w } => vec![x, w],
                Step::Unary { op: UnaryOp::Cosine, x } => vec![x],
                Step::Unary { .. } => vec![result],
                Step::Binary { op: BinaryOp::Multiply, x, y } => vec![x, y],
                Step::Binary { .. } | Step::Beside { .. } | Step::Sum { .. } | Step::Along { .. } => {
                    Vec::new()
                }
            });
        }
        let mut seen = std::collections::HashSet::new();
        read.retain(|&id| seen.insert(id));
        read
    }
}

type Built = Result<InstructionId, BuildError>;

impl Body<'_, '_> {
    /// A product of matrices, over the number of terms in each of its sums, so that layer upon layer stays small.
    pub(super) fn tape_product(&mut self, tape: &mut Tape, x: InstructionId, w: InstructionId) -> Built {
        let product = self.computation.matmul(x, w)?;
        tape.steps.push((product, Step::Product { x, w }));
        let terms = self.array(w).dimensions[0];
        let share = self.number_like(1.0 / terms as f32, product)?;
        self.tape_binary(tape, BinaryOp::Multiply, product, share)
    }

    /// Tanh, logistic, or cosine.
    pub(super) fn tape_unary(&mut self, tape: &mut Tape, op: UnaryOp, x: InstructionId) -> Built {
        let result = self.computation.unary(op, x)?;
        tape.steps.push((result, Step::Unary { op, x }));
        Ok(result)
    }

    /// A sum, a difference, or a product.
    pub(super) fn tape_binary(
        &mut self,
        tape: &mut Tape,
        op: BinaryOp,
        x: InstructionId,
        y: InstructionId,
    ) -> Built {
        let result = self.computation.binary(op, x, y)?;
        tape.steps.push((result, Step::Binary { op, x, y }));
        Ok(result)
    }

    /// Two matrices with as many columns, side by side.
    pub(super) fn tape_beside(&mut self, tape: &mut Tape, x: InstructionId, y: InstructionId) -> Built {
        let both = self.computation.concatenate([x, y], 1)?;
        tape.steps.push((both, Step::Beside { x, y }));
        Ok(both)
    }

    /// Sums a matrix over a dimension, and gives each element of a matrix like it the sum that it is in.
    pub(super) fn tape_sum_along(&mut self, tape: &mut Tape, x: InstructionId, over: i64) -> Built {
        let sum = self.sum_over(x, over)?;
        tape.steps.push((sum, Step::Sum { x, over }));
        let dimension = 1 - over;
        let along = self.along(sum, x, dimension)?;
        tape.steps.push((along, Step::Along { x: sum, dimension }));
        Ok(along)
    }

    /// The gradients of some values, given that of a result. `at` says where values of the tape are now.
    pub(super) fn gradients(
        &mut self,
        tape: &Tape,
        at: &dyn Fn(InstructionId) -> InstructionId,
        (result, gradient): (InstructionId, InstructionId),
        wanted: &[InstructionId],
    ) -> Result<Vec<InstructionId>, BuildError> {
        use BinaryOp::{Add, Multiply, Subtract};
        let mut found: Vec<(InstructionId, InstructionId)> = vec![(result, gradient)];
        for &(id, step) in tape.steps.iter().rev() {
            let Some(&(_, d)) = found.iter().find(|(of, _)| *of == id) else { continue };
            let parts = match step {
                Step::Product { x, w } => {
                    let dx = self.computation.dot(d, at(w), DotDimensions::new([1], [1]))?;
                    let dw = self.computation.dot(at(x), d, DotDimensions::new([0], [0]))?;
                    vec![(x, dx), (w, dw)]
                }
                Step::Unary { op: UnaryOp::Cosine, x } => {
                    let sine = self.computation.unary(UnaryOp::Sine, at(x))?;
                    let slope = self.computation.unary(UnaryOp::Negate, sine)?;
                    vec![(x, self.computation.binary(Multiply, d, slope)?)]
                }
                Step::Unary { op, x } => {
                    // 1 - y² of a tanh, y - y² of a logistic.
                    let y = at(id);
                    let square = self.computation.binary(Multiply, y, y)?;
                    let first = if op == UnaryOp::Tanh { self.number_like(1.0, y)? } else { y };
                    let slope = self.computation.binary(Subtract, first, square)?;
                    vec![(x, self.computation.binary(Multiply, d, slope)?)]
                }
                Step::Binary { op: Multiply, x, y } => {
                    let dx = self.computation.binary(Multiply, d, at(y))?;
                    vec![(x, dx), (y, self.computation.binary(Multiply, d, at(x))?)]
                }
                Step::Binary { op: Subtract, x, y } => {
                    vec![(x, d), (y, self.computation.unary(UnaryOp::Negate, d)?)]
                }
                Step::Binary { x, y, .. } => vec![(x, d), (y, d)],
                Step::Beside { x, y } => {
                    let columns = self.array(d).dimensions[1];
                    let of_x = self.computation.slice_along(d, 1, 0..columns / 2)?;
                    vec![(x, of_x), (y, self.computation.slice_along(d, 1, columns / 2..columns)?)]
                }
                Step::Sum { x, over } => vec![(x, self.along(d, x, 1 - over)?)],
                Step::Along { x, dimension } => vec![(x, self.sum_over(d, 1 - dimension)?)],
            };
            for (id, part) in parts {
                match found.iter().position(|(of, _)| *of == id) {
                    Some(i) => found[i].1 = self.computation.binary(Add, found[i].1, part)?,
                    None => found.push((id, part)),
                }
            }
        }
        let of = |body: &mut Self, id| match found.iter().find(|(of, _)| *of == id) {
            Some(&(_, gradient)) => Ok(gradient),
            None => body.number_like(0.0, id),
        };
        wanted.iter().map(|&id| of(self, id)).collect()
    }

    /// The sum of a matrix over a dimension.
    pub(super) fn sum_over(&mut self, x: InstructionId, over: i64) -> Built {
        let zero = self.computation.constant(Literal::f32(0.0));
        self.computation.reduce(x, zero, [over], self.combiners.sum_f32)
    }

    /// A vector along a dimension of a matrix like another.
    pub(super) fn along(&mut self, x: InstructionId, like: InstructionId, dimension: i64) -> Built {
        let extents = self.array(like).dimensions.to_vec();
        self.computation.broadcast(x, extents, [dimension])
    }

    /// A number everywhere in an array like another.
    pub(super) fn number_like(&mut self, value: f32, like: InstructionId) -> Built {
        let extents = self.array(like).dimensions.to_vec();
        debug_assert_eq!(self.array(like).element_type, F32);
        let value = self.computation.constant(Literal::f32(value));
        self.computation.broadcast(value, extents, [])
    }
}
