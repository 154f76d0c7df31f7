//! Putting loops in the place of a region.
//!
//! ```text
//!   state   counter, what the loop reads (whole), results
//!   body    slices of what it reads -> the region's instructions on a block -> updates of results, sums
//! ```
//!
//! Results begin as a scalar everywhere, which comes through an optimization barrier with what the loop reads. Without
//! it, all loops would begin with one and the same array; a compiler copies it for each of them, and may do so in one
//! kernel at the beginning of the program (XLA's GPU compiler does).

use std::sync::Arc;

use memplan_ir::{
    ArrayShape, BinaryOp, ComparisonDirection, ComputationId, Dimensions, ElementType, Instruction,
    InstructionId, Literal, Metadata, Module, Names, Op, Shape,
};
use memplan_rewriter::Scalar;
use rustc_hash::{FxHashMap, FxHashSet};

use super::region::{Region, Stage, is_inner_edge};
use crate::rows::{Outcome, Rows, block_of, carried_type, neutral, on_block};

/// The attribute of a loop over blocks that says how many there are.
pub(super) const ATTRIBUTE: &str = "memplan_row_blocks";

/// Replaces a region by its loops. Members that are still read elsewhere stay as they are.
pub(super) fn build(module: &mut Module, region: &Region, names: &mut Names) {
    let Some(&first) = region.stages.first().and_then(|stage| stage.body.first()) else { return };
    let computation = module.instructions[first].parent;
    let mut stands_for: FxHashMap<InstructionId, InstructionId> = FxHashMap::default();
    for stage in &region.stages {
        let found = LoopBuilder { module, names, region, computation }.build(stage, &stands_for);
        stands_for.extend(found);
    }
    let is_dropped: FxHashSet<InstructionId> = region.treatments.keys().copied().collect();
    replace_in(module, computation, &stands_for, &is_dropped);
}

/// Makes one loop out of a stage.
struct LoopBuilder<'a> {
    module: &'a mut Module,
    names: &'a mut Names,
    region: &'a Region,
    /// The computation that gets the loop.
    computation: ComputationId,
}

/// A body under construction.
struct Body {
    computation: ComputationId,
    state: InstructionId,
    counter: InstructionId,
    zero: InstructionId,
    /// The first element of a block, by the elements in one.
    starts: FxHashMap<i64, InstructionId>,
    /// What replaces an operand, cut or whole.
    operands: FxHashMap<(InstructionId, Option<Rows>), InstructionId>,
    copies: FxHashMap<InstructionId, InstructionId>,
}

impl LoopBuilder<'_> {
    /// Adds the loop and says what replaces each result of the stage.
    fn build(
        mut self,
        stage: &Stage,
        stands_for: &FxHashMap<InstructionId, InstructionId>,
    ) -> Vec<(InstructionId, InstructionId)> {
        let note = stage.results.first().and_then(|&id| self.module.instructions[id].metadata.clone());
        let inputs = self.region.inputs(self.module, stage);
        let zero = self.constant(self.computation, Scalar::integer(ElementType::S32, 0), &note);
        let mut init = vec![zero];
        init.extend(inputs.iter().map(|id| stands_for.get(id).copied().unwrap_or(*id)));
        let starts: Vec<InstructionId> = stage.results.iter().map(|&result| self.start_of(result)).collect();
        let starts = self.after(starts, &init[1..], &note);
        for (&result, &start) in stage.results.iter().zip(&starts) {
            let (shape, note) =
                (self.carried_shape(result), self.module.instructions[result].metadata.clone());
            init.push(self.broadcast(self.computation, start, shape, &note));
        }
        let elements: Vec<Shape> = init.iter().map(|&id| self.module.shape(id).clone()).collect();
        let state = Shape::tuple(elements);
        let body = self.body(stage, &inputs, &state, &note);
        let condition = self.condition(&state, &note);
        let init = self.add(self.computation, Op::Tuple, &init, state.clone(), &note);
        let id = self.add(self.computation, Op::While, &[init], state, &note);
        self.module.instructions[id].called.extend([body, condition]);
        let blocks = self.region.n.to_string().into();
        self.module.instructions[id].extras_mut().frontend_attributes.insert(ATTRIBUTE.into(), blocks);
        let first = 1 + inputs.len();
        let results = stage.results.iter().enumerate();
        results.map(|(i, &result)| (result, self.result_of(id, first + i, result))).collect()
    }

    /// What every element of a result is before the first block: anything for rows, as all of them will be written.
    fn start_of(&mut self, result: InstructionId) -> InstructionId {
        let note = self.module.instructions[result].metadata.clone();
        let shape = self.carried_shape(result);
        match (self.region.treatments[&result].outcome, &self.module.instructions[result].op) {
            (Outcome::Sum(_), Op::Reduce { .. }) => {
                let start = self.module.instructions[result].operands[1];
                let given = self.module.shape(start).as_array().expect("a reduction starts with a scalar");
                if given.element_type == shape.element_type {
                    return start;
                }
                let scalar = Shape::scalar(shape.element_type);
                self.add(self.computation, Op::Convert, &[start], scalar, &note)
            }
            _ => self.constant(self.computation, Scalar::integer(shape.element_type, 0), &note),
        }
    }

    /// Scalars that are there when arrays are.
    fn after(
        &mut self,
        mut scalars: Vec<InstructionId>,
        arrays: &[InstructionId],
        note: &Note,
    ) -> Vec<InstructionId> {
        let all: Vec<InstructionId> = scalars.iter().chain(arrays).copied().collect();
        let shape = Shape::Tuple(all.iter().map(|&id| self.module.shape(id).clone()).collect());
        let tuple = self.add(self.computation, Op::Tuple, &all, shape.clone(), note);
        let barrier = self.add(self.computation, Op::OptimizationBarrier, &[tuple], shape, note);
        for (index, scalar) in scalars.iter_mut().enumerate() {
            let (op, shape) =
                (Op::GetTupleElement { index: index as u32 }, self.module.shape(*scalar).clone());
            *scalar = self.add(self.computation, op, &[barrier], shape, note);
        }
        scalars
    }

    /// The shape in which a loop carries a result: sums of narrow floating-point numbers are carried in `f32`, so that
    /// they are rounded once.
    fn carried_shape(&self, result: InstructionId) -> ArrayShape {
        let mut shape = self.module.shape(result).as_array().expect("results of loops are arrays").clone();
        if let Outcome::Sum(op) = self.region.treatments[&result].outcome {
            shape.element_type = carried_type(op, shape.element_type);
        }
        shape
    }

    fn result_of(&mut self, id: InstructionId, index: usize, result: InstructionId) -> InstructionId {
        let note = self.module.instructions[result].metadata.clone();
        let shape = Shape::Array(self.carried_shape(result));
        let index = Op::GetTupleElement { index: index as u32 };
        let carried = self.add(self.computation, index, &[id], shape.clone(), &note);
        match self.module.shape(result) == &shape {
            true => carried,
            false => {
                let meant = self.module.shape(result).clone();
                self.add(self.computation, Op::Convert, &[carried], meant, &note)
            }
        }
    }

    fn condition(&mut self, state: &Shape, note: &Note) -> ComputationId {
        let condition = self.module.add_computation(self.names.fresh("row_blocks_condition"));
        let state = self.parameter(condition, state, note);
        let s32 = || Shape::scalar(ElementType::S32);
        let counter = self.add(condition, Op::GetTupleElement { index: 0 }, &[state], s32(), note);
        let n = self.constant(condition, Scalar::integer(ElementType::S32, self.region.n), note);
        let compare = Op::Compare { direction: ComparisonDirection::Lt, comparison_type: None };
        let goes_on = Shape::scalar(ElementType::Pred);
        let root = self.add(condition, compare, &[counter, n], goes_on, note);
        self.module.computations[condition].root = root;
        condition
    }

    fn body(&mut self, stage: &Stage, inputs: &[InstructionId], state: &Shape, note: &Note) -> ComputationId {
        let computation = self.module.add_computation(self.names.fresh("row_blocks_body"));
        let thread = self.module.computations[self.computation].execution_thread.clone();
        self.module.computations[computation].execution_thread = thread;
        let parameter = self.parameter(computation, state, note);
        let s32 = Shape::scalar(ElementType::S32);
        let counter =
            self.add(computation, Op::GetTupleElement { index: 0 }, &[parameter], s32.clone(), note);
        let zero = self.constant(computation, Scalar::integer(ElementType::S32, 0), note);
        let mut body = Body {
            computation,
            state: parameter,
            counter,
            zero,
            starts: FxHashMap::default(),
            operands: FxHashMap::default(),
            copies: FxHashMap::default(),
        };
        let one = self.constant(computation, Scalar::integer(ElementType::S32, 1), note);
        let mut next = vec![self.add(computation, Op::Binary(BinaryOp::Add), &[counter, one], s32, note)];
        for (i, &input) in inputs.iter().enumerate() {
            let op = Op::GetTupleElement { index: 1 + i as u32 };
            let shape = self.module.shape(input).clone();
            let element = self.add(computation, op, &[parameter], shape, note);
            body.operands.insert((input, None), element);
            next.push(element);
        }
        for &id in &stage.body {
            self.copy(&mut body, id);
        }
        for (i, &result) in stage.results.iter().enumerate() {
            let element = self.next_result(&mut body, 1 + inputs.len() + i, result);
            next.push(element);
        }
        let root = self.add(computation, Op::Tuple, &next, state.clone(), note);
        self.module.computations[computation].root = root;
        computation
    }

    /// Copies an instruction of the region to compute one block of what it computed.
    fn copy(&mut self, body: &mut Body, id: InstructionId) {
        let treatment = &self.region.treatments[&id];
        let mut copy = self.module.instructions[id].clone();
        for (number, operand) in copy.operands.iter_mut().enumerate() {
            let inner = body.copies.get(operand).copied();
            *operand = match inner {
                Some(inner) if is_inner_edge(&self.region.treatments, id, number, *operand) => inner,
                _ => self.operand(body, *operand, treatment.operands[number], &copy.metadata),
            };
        }
        let unit = treatment.rows().map_or(0, |rows| rows.unit);
        copy.op = on_block(&copy.op, treatment, unit);
        let shape = match treatment.outcome {
            Outcome::Rows(rows) => block_of(self.module.shape(id), rows),
            Outcome::Sum(op) => {
                if let (Op::Reduce { .. }, Some(neutral)) = (&copy.op, neutral(op)) {
                    // What the sum starts with is there before the first block.
                    let array = self.module.shape(copy.operands[1]).as_array();
                    let element_type = array.expect("a reduction starts with a scalar").element_type;
                    let value = Scalar::integer(element_type, neutral);
                    copy.operands[1] = self.constant(body.computation, value, &copy.metadata);
                }
                match &copy.op {
                    Op::Dot(_) => Shape::Array(self.carried_shape(id)),
                    _ => self.module.shape(id).clone(),
                }
            }
        };
        copy.name = self.names.fresh(&copy.name);
        copy.shape = self.module.intern(shape);
        copy.parent = body.computation;
        let new = self.module.add_instruction(copy);
        let new = match (self.module.instructions[new].op.clone(), treatment.rows()) {
            (Op::Iota { dimension }, Some(rows)) if dimension == rows.dimension as i64 => {
                self.count_from_block(body, new, rows.unit)
            }
            _ => new,
        };
        body.copies.insert(id, new);
    }

    /// Lets an iota count from the first element of the block.
    fn count_from_block(&mut self, body: &mut Body, iota: InstructionId, unit: i64) -> InstructionId {
        let note = self.module.instructions[iota].metadata.clone();
        let shape = self.module.shape(iota).as_array().expect("an iota is an array").clone();
        let mut start = self.start(body, unit, &note);
        if shape.element_type != ElementType::S32 {
            let scalar = Shape::scalar(shape.element_type);
            start = self.add(body.computation, Op::Convert, &[start], scalar, &note);
        }
        let start = self.broadcast(body.computation, start, shape.clone(), &note);
        let add = Op::Binary(BinaryOp::Add);
        self.add(body.computation, add, &[iota, start], Shape::Array(shape), &note)
    }

    /// An operand from outside: whole, or the block of it.
    fn operand(
        &mut self,
        body: &mut Body,
        id: InstructionId,
        rows: Option<Rows>,
        note: &Note,
    ) -> InstructionId {
        if let Some(&known) = body.operands.get(&(id, rows)) {
            return known;
        }
        let new = match rows {
            None => {
                let mut copy = self.module.instructions[id].clone();
                copy.name = self.names.fresh(&copy.name);
                copy.parent = body.computation;
                self.module.add_instruction(copy)
            }
            Some(rows) => {
                let whole = body.operands[&(id, None)];
                let block = block_of(self.module.shape(id), rows);
                let slice_sizes = block.as_array().expect("blocks are cut from arrays").dimensions.clone();
                let mut operands = vec![whole];
                operands.extend(self.starts(body, slice_sizes.len(), rows, note));
                self.add(body.computation, Op::DynamicSlice { slice_sizes }, &operands, block, note)
            }
        };
        body.operands.insert((id, rows), new);
        new
    }

    /// Adds a block to a result.
    fn next_result(&mut self, body: &mut Body, index: usize, result: InstructionId) -> InstructionId {
        let note = self.module.instructions[result].metadata.clone();
        let carried = self.carried_shape(result);
        let rank = carried.rank();
        let shape = Shape::Array(carried);
        let index = Op::GetTupleElement { index: index as u32 };
        let before = self.add(body.computation, index, &[body.state], shape.clone(), &note);
        let mut block = body.copies[&result];
        match self.region.treatments[&result].outcome {
            Outcome::Rows(rows) => {
                let mut operands = vec![before, block];
                operands.extend(self.starts(body, rank, rows, &note));
                self.add(body.computation, Op::DynamicUpdateSlice, &operands, shape, &note)
            }
            Outcome::Sum(op) => {
                if self.module.shape(block) != &shape {
                    block = self.add(body.computation, Op::Convert, &[block], shape.clone(), &note);
                }
                self.add(body.computation, Op::Binary(op), &[before, block], shape, &note)
            }
        }
    }

    /// Where a block begins, in every dimension.
    fn starts(&mut self, body: &mut Body, rank: usize, rows: Rows, note: &Note) -> Vec<InstructionId> {
        let start = self.start(body, rows.unit, note);
        (0..rank).map(|d| if d == rows.dimension { start } else { body.zero }).collect()
    }

    fn start(&mut self, body: &mut Body, unit: i64, note: &Note) -> InstructionId {
        if unit == 1 {
            return body.counter;
        }
        if let Some(&known) = body.starts.get(&unit) {
            return known;
        }
        let elements = self.constant(body.computation, Scalar::integer(ElementType::S32, unit), note);
        let multiply = Op::Binary(BinaryOp::Multiply);
        let s32 = Shape::scalar(ElementType::S32);
        let start = self.add(body.computation, multiply, &[body.counter, elements], s32, note);
        body.starts.insert(unit, start);
        start
    }

    // Single instructions.

    fn parameter(&mut self, computation: ComputationId, state: &Shape, note: &Note) -> InstructionId {
        let parameter = self.add(computation, Op::Parameter { number: 0 }, &[], state.clone(), note);
        self.module.computations[computation].parameters.push(parameter);
        parameter
    }

    fn constant(&mut self, computation: ComputationId, value: Scalar, note: &Note) -> InstructionId {
        let literal: Literal = value.literal();
        self.add(computation, Op::Constant(literal), &[], Shape::scalar(value.element_type), note)
    }

    fn broadcast(
        &mut self,
        computation: ComputationId,
        scalar: InstructionId,
        shape: ArrayShape,
        note: &Note,
    ) -> InstructionId {
        if shape.rank() == 0 {
            return scalar;
        }
        let op = Op::Broadcast { dimensions: Dimensions::new() };
        self.add(computation, op, &[scalar], Shape::Array(shape), note)
    }

    fn add(
        &mut self,
        computation: ComputationId,
        op: Op,
        operands: &[InstructionId],
        shape: Shape,
        note: &Note,
    ) -> InstructionId {
        let name = self.names.fresh(op.opcode().into());
        let shape = self.module.intern(shape);
        let mut instruction = Instruction::new(name, shape, op, operands.iter().copied(), computation);
        instruction.metadata.clone_from(note);
        self.module.add_instruction(instruction)
    }
}

/// Where a new instruction says that it comes from.
type Note = Option<Arc<Metadata>>;

/// Lets a computation use what replaces some of its instructions, and lists what it needs in an order in which operands
/// precede users: that of the text, and what is new right before its first user. Linear.
fn replace_in(
    module: &mut Module,
    computation: ComputationId,
    stands_for: &FxHashMap<InstructionId, InstructionId>,
    is_dropped: &FxHashSet<InstructionId>,
) {
    let listed = std::mem::take(&mut module.computations[computation].instructions);
    for &id in &listed {
        for operand in &mut module.instructions[id].operands {
            *operand = stands_for.get(operand).copied().unwrap_or(*operand);
        }
    }
    let root = &mut module.computations[computation].root;
    *root = stands_for.get(root).copied().unwrap_or(*root);
    let kept = listed.into_iter().filter(|id| !is_dropped.contains(id)).collect();
    module.computations[computation].instructions = kept;
    module.put_operands_first(computation);
}
