//! Two loops, like those that JAX makes of a scan and its gradient: the first stacks a row for each step, the second
//! reads the rows, forwards or backwards, and may stack its own rows.
//!
//! ```text
//!   forward:  (i, carry, kept, stack..)   stack[i] = row made of carry, kept, ..
//!   backward: (j, sum, stack.., made)     sum = f(sum, stack[n-1-j]);  made[n-1-j] = row
//! ```
//!
//! Passes that remove a stack (of unchanging values, of values that are summed later) or merge two stacks are about
//! such loops.

use memplan_ir::ElementType::{F32, S32};
use memplan_ir::{
    BinaryOp, BuildError, ComparisonDirection, ComputationId, Insert, InstructionId, Literal, ModuleBuilder,
    Shape, UnaryOp,
};

use crate::Random;

use super::{Body, Combiners, GenerateOptions, Kind, shape};

/// A scan, and what reads its stacks.
pub(super) struct Scan {
    /// Rows of each stack.
    steps: i64,
    carry: Kind,
    kept: Kind,
    rows: Vec<Kind>,
    forward: Loop,
    backward: Loop,
}

struct Loop {
    body: ComputationId,
    condition: ComputationId,
}

/// Which row a step writes or reads.
#[derive(Clone, Copy)]
enum Index {
    Forwards,
    Backwards,
}

pub(super) fn scan(
    module: &mut ModuleBuilder,
    random: &mut Random,
    combiners: Combiners,
    options: &GenerateOptions,
) -> Result<Scan, BuildError> {
    let steps = 2 + random.below(4) as i64;
    let kinds: [Kind; 4] = [(F32, vec![4]), (F32, vec![8]), (F32, vec![4, 8]), (S32, vec![4])];
    let (carry, kept) = (random.pick(&kinds), random.pick(&kinds));
    let rows: Vec<Kind> = (0..1 + random.below(3))
        .map(|_| if random.one_in(2) { kept.clone() } else { carry.clone() })
        .collect();
    let index = |random: &mut Random| random.pick(&[Index::Forwards, Index::Backwards]);
    let (write, read) = (index(random), index(random));
    let forward = {
        let mut body = Body::new(module, "forward", random, combiners, options);
        let root = body.forward(steps, (&carry, &kept, &rows), write)?;
        body.computation.finish(root)?
    };
    let backward = {
        let mut body = Body::new(module, "backward", random, combiners, options);
        let root = body.backward(steps, &rows, read)?;
        body.computation.finish(root)?
    };
    let forward_state = state([&carry, &kept], &rows, &[], steps);
    let backward_state = state([&rows[0]], &rows, &rows[..1], steps);
    // Some loops leave rows as they were.
    let limit = if random.one_in(5) { steps - 1 } else { steps };
    let forward = Loop { body: forward, condition: condition(module, forward_state, limit)? };
    let backward = Loop { body: backward, condition: condition(module, backward_state, limit)? };
    Ok(Scan { steps, carry, kept, rows, forward, backward })
}

/// The counter, single arrays, and stacks.
fn state<const N: usize>(single: [&Kind; N], stacked: &[Kind], made: &[Kind], steps: i64) -> Shape {
    let stacks = stacked.iter().chain(made).map(|row| shape(&stack(row, steps)));
    let elements = single.into_iter().map(shape);
    Shape::Tuple(std::iter::once(Shape::scalar(S32)).chain(elements).chain(stacks).collect())
}

fn stack((element_type, extents): &Kind, steps: i64) -> Kind {
    (*element_type, [&[steps], extents.as_slice()].concat())
}

pub(super) fn condition(
    module: &mut ModuleBuilder,
    state: Shape,
    limit: i64,
) -> Result<ComputationId, BuildError> {
    let mut condition = module.computation("condition");
    let parameter = condition.parameter("state", state);
    let count = condition.get_tuple_element(parameter, 0)?;
    let limit = condition.constant(Literal::s32(limit as i32));
    let root = condition.compare(ComparisonDirection::Lt, count, limit)?;
    condition.finish(root)
}

impl Body<'_, '_> {
    /// A step of the first loop; its root.
    fn forward(
        &mut self,
        steps: i64,
        (carry, kept, rows): (&Kind, &Kind, &[Kind]),
        write: Index,
    ) -> Result<InstructionId, BuildError> {
        let parameter = self.computation.parameter("state", state([carry, kept], rows, &[], steps));
        let part = |body: &mut Self, index| body.computation.get_tuple_element(parameter, index);
        let [count, old, unchanged] = [part(self, 0)?, part(self, 1)?, part(self, 2)?];
        self.pool.extend([count, old, unchanged]);
        self.fill(&[], 4)?;
        let row_number = self.row_number(count, steps, write)?;
        let next = self.of_kind(carry)?;
        let mut parts = vec![self.successor(count)?, next, unchanged];
        for (index, kind) in rows.iter().enumerate() {
            let row = match self.random.below(4) {
                0 if kind == kept => unchanged,
                1 if kind == kept && kind.0 == F32 => self.computation.unary(UnaryOp::Cosine, unchanged)?,
                2 if kind == carry => old,
                _ => self.of_kind(kind)?,
            };
            let stack = part(self, 3 + index as u32)?;
            parts.push(self.write_row(stack, row, row_number)?);
        }
        self.computation.tuple(parts)
    }

    /// A step of the second loop; its root.
    fn backward(&mut self, steps: i64, rows: &[Kind], read: Index) -> Result<InstructionId, BuildError> {
        let parameter = self.computation.parameter("state", state([&rows[0]], rows, &rows[..1], steps));
        let part = |body: &mut Self, index| body.computation.get_tuple_element(parameter, index as u32);
        let [count, sum] = [part(self, 0)?, part(self, 1)?];
        let row_number = self.row_number(count, steps, read)?;
        let stacks = (2..2 + rows.len()).map(|index| part(self, index)).collect::<Result<Vec<_>, _>>()?;
        self.pool.push(sum);
        for (&stack, kind) in stacks.iter().zip(rows) {
            let row = self.read_row(stack, kind, row_number)?;
            self.pool.push(row);
        }
        self.fill(&[], 4)?;
        let [next, made] = [self.of_kind(&rows[0])?, self.of_kind(&rows[0])?];
        let next = match rows[0].0 {
            F32 => self.bounded(next)?,
            _ => next,
        };
        let added = part(self, 2 + rows.len())?;
        let written = self.write_row(added, made, row_number)?;
        let mut parts = vec![self.successor(count)?, next];
        parts.extend(stacks);
        parts.push(written);
        self.computation.tuple(parts)
    }

    pub(super) fn successor(&mut self, count: InstructionId) -> Result<InstructionId, BuildError> {
        let one = self.computation.constant(Literal::s32(1));
        self.computation.binary(BinaryOp::Add, count, one)
    }

    fn row_number(
        &mut self,
        count: InstructionId,
        steps: i64,
        index: Index,
    ) -> Result<InstructionId, BuildError> {
        match index {
            Index::Forwards => Ok(count),
            Index::Backwards => {
                let last = self.computation.constant(Literal::s32(steps as i32 - 1));
                self.computation.binary(BinaryOp::Subtract, last, count)
            }
        }
    }

    fn row_starts(&mut self, stack: InstructionId, row: InstructionId) -> Vec<InstructionId> {
        let rank = self.array(stack).rank();
        let zero = self.computation.constant(Literal::s32(0));
        std::iter::once(row).chain(vec![zero; rank - 1]).collect()
    }

    pub(super) fn write_row(
        &mut self,
        stack: InstructionId,
        row: InstructionId,
        number: InstructionId,
    ) -> Result<InstructionId, BuildError> {
        let extents: Vec<i64> =
            std::iter::once(1).chain(self.array(row).dimensions.iter().copied()).collect();
        let row = self.computation.reshape(row, extents)?;
        let starts = self.row_starts(stack, number);
        self.computation.dynamic_update_slice(stack, row, starts)
    }

    pub(super) fn read_row(
        &mut self,
        stack: InstructionId,
        row: &Kind,
        number: InstructionId,
    ) -> Result<InstructionId, BuildError> {
        let extents: Vec<i64> = std::iter::once(1).chain(row.1.iter().copied()).collect();
        let starts = self.row_starts(stack, number);
        let slice = self.computation.dynamic_slice(stack, starts, extents)?;
        self.computation.reshape(slice, row.1.iter().copied())
    }

    /// Runs both loops, or the first and a reduction of its stacks.
    pub(super) fn run_scan(&mut self, scan: &Scan) -> Result<(), BuildError> {
        let zero = self.computation.constant(Literal::s32(0));
        let mut parts = vec![zero, self.of_kind(&scan.carry)?, self.of_kind(&scan.kept)?];
        for row in &scan.rows {
            parts.push(self.initial_stack(&stack(row, scan.steps))?);
        }
        let initial = self.computation.tuple(parts)?;
        let first = self.computation.while_loop(initial, scan.forward.condition, scan.forward.body)?;
        let carry = self.computation.get_tuple_element(first, 1)?;
        self.pool.push(carry);
        let stacks = (0..scan.rows.len() as u32)
            .map(|index| self.computation.get_tuple_element(first, 3 + index))
            .collect::<Result<Vec<_>, _>>()?;
        for &stack in &stacks {
            match self.random.below(4) {
                0 => self.pool.push(stack),
                1 => {
                    let reduced = self.reduce_steps(stack)?;
                    self.pool.push(reduced);
                }
                _ => {}
            }
        }
        if self.random.one_in(4) {
            return Ok(());
        }
        let mut parts = vec![zero, self.of_kind(&scan.rows[0])?];
        parts.extend(stacks);
        parts.push(self.initial_stack(&stack(&scan.rows[0], scan.steps))?);
        let initial = self.computation.tuple(parts)?;
        let second = self.computation.while_loop(initial, scan.backward.condition, scan.backward.body)?;
        for index in [1, 2 + scan.rows.len() as u32] {
            let result = self.computation.get_tuple_element(second, index)?;
            self.pool.push(result);
        }
        Ok(())
    }

    /// Zeros, as JAX begins stacks, or any array.
    fn initial_stack(&mut self, kind: &Kind) -> Result<InstructionId, BuildError> {
        if self.random.one_in(4) {
            return self.of_kind(kind);
        }
        let zero = match kind.0 {
            S32 => Literal::s32(0),
            _ => Literal::f32(0.0),
        };
        let zero = self.computation.constant(zero);
        self.computation.broadcast(zero, kind.1.iter().copied(), [])
    }

    /// The sum or the maximum over the steps.
    fn reduce_steps(&mut self, stack: InstructionId) -> Result<InstructionId, BuildError> {
        let Combiners { sum_f32, maximum_f32, sum_s32, .. } = self.combiners;
        let x = if self.random.one_in(2) { stack } else { self.computation.unary(UnaryOp::Abs, stack)? };
        let element_type = self.array(x).element_type;
        let (identity, combiner) = match element_type {
            S32 => (Literal::s32(0), sum_s32),
            _ if self.random.one_in(2) => (Literal::f32(f32::NEG_INFINITY), maximum_f32),
            _ => (Literal::f32(0.0), sum_f32),
        };
        let identity = self.computation.constant(identity);
        self.computation.reduce(x, identity, [0], combiner)
    }
}
