//! Replaces a region by loops.
//!
//! ```text
//!   state   counter, what the loop reads (whole), results
//!   body    slices of what it reads -> the region's instructions on a block -> updates of results, sums
//! ```
//!
//! Results start as a broadcast scalar, which passes through an optimization barrier together with the loop's operands.
//! Without the barrier, all loops would start with the same array; a compiler copies it for each of them, possibly in
//! one kernel at the beginning of the program (XLA's GPU compiler does).

use std::sync::Arc;

use memplan_ir::{
    ArrayShape, BinaryOp, ComparisonDirection, ComputationId, Cursor, ElementType, Insert, Instruction,
    InstructionId, Metadata, Module, Names, Op, Shape,
};
use rustc_hash::{FxHashMap, FxHashSet};

use super::region::{Region, Stage, is_inner_edge};
use memplan_rewriter::rows::{
    Outcome, Rows, block_of, carried_type, count_from, cut_rows, neutral, on_block,
};

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
    /// The replacement of an operand, sliced or whole.
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
        let zero = self.outside(&note).integer(ElementType::S32, 0);
        let mut init = vec![zero];
        init.extend(inputs.iter().map(|id| stands_for.get(id).copied().unwrap_or(*id)));
        let starts: Vec<InstructionId> = stage.results.iter().map(|&result| self.start_of(result)).collect();
        let starts = self.after(starts, &init[1..], &note);
        for (&result, &start) in stage.results.iter().zip(&starts) {
            let (shape, note) =
                (self.carried_shape(result), self.module.instructions[result].metadata.clone());
            init.push(self.outside(&note).fill(start, shape));
        }
        let elements: Vec<Shape> = init.iter().map(|&id| self.module.shape(id).clone()).collect();
        let state = Shape::tuple(elements);
        let body = self.body(stage, &inputs, &state, &note);
        let condition = self.condition(&state, &note);
        let mut at = self.outside(&note);
        let init = at.tuple(init);
        let id = at.while_loop(init, condition, body);
        let blocks = self.region.n.to_string().into();
        self.module.instructions[id].extras_mut().frontend_attributes.insert(ATTRIBUTE.into(), blocks);
        let first = 1 + inputs.len();
        let results = stage.results.iter().enumerate();
        results.map(|(i, &result)| (result, self.result_of(id, first + i, result))).collect()
    }

    /// The initial value of a result's elements: anything for rows, since all of them will be written.
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
                self.outside(&note).convert(start, shape.element_type)
            }
            _ => self.outside(&note).integer(shape.element_type, 0),
        }
    }

    /// Scalars that are there when arrays are.
    fn after(
        &mut self,
        scalars: Vec<InstructionId>,
        arrays: &[InstructionId],
        note: &Note,
    ) -> Vec<InstructionId> {
        let mut at = self.outside(note);
        let tuple = at.tuple(scalars.iter().chain(arrays).copied());
        let barrier = at.insert(Op::OptimizationBarrier, [tuple]);
        (0..scalars.len() as u32).map(|index| at.get_tuple_element(barrier, index)).collect()
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
        let meant = self.module.shape(result).clone();
        let mut at = self.outside(&note);
        let carried = at.get_tuple_element(id, index as u32);
        match *at.module().shape(carried) == meant {
            true => carried,
            false => at.insert_shaped(Op::Convert, [carried], meant),
        }
    }

    fn condition(&mut self, state: &Shape, note: &Note) -> ComputationId {
        let condition = self.module.add_computation(self.names.fresh("row_blocks_condition"));
        let n = self.region.n;
        let mut at = self.at(condition, note);
        let state = at.parameter(state.clone());
        let counter = at.get_tuple_element(state, 0);
        let n = at.integer(ElementType::S32, n);
        let root = at.compare(ComparisonDirection::Lt, counter, n);
        self.module.computations[condition].root = root;
        condition
    }

    fn body(&mut self, stage: &Stage, inputs: &[InstructionId], state: &Shape, note: &Note) -> ComputationId {
        let computation = self.module.add_computation(self.names.fresh("row_blocks_body"));
        let thread = self.module.computations[self.computation].execution_thread.clone();
        self.module.computations[computation].execution_thread = thread;
        let mut at = self.at(computation, note);
        let parameter = at.parameter(state.clone());
        let counter = at.get_tuple_element(parameter, 0);
        let zero = at.integer(ElementType::S32, 0);
        let one = at.integer(ElementType::S32, 1);
        let mut next = vec![at.binary(BinaryOp::Add, counter, one)];
        let mut body = Body {
            computation,
            state: parameter,
            counter,
            zero,
            starts: FxHashMap::default(),
            operands: FxHashMap::default(),
            copies: FxHashMap::default(),
        };
        for (index, &input) in (1..).zip(inputs) {
            let element = self.at(computation, note).get_tuple_element(parameter, index);
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
        let root = self.at(computation, note).tuple(next);
        self.module.computations[computation].root = root;
        computation
    }

    /// Copies an instruction of the region to compute one block of its result.
    fn copy(&mut self, body: &mut Body, id: InstructionId) {
        let treatment = &self.region.treatments[&id];
        let Instruction { op, metadata: note, mut operands, .. } = self.module.instructions[id].clone();
        for (number, operand) in operands.iter_mut().enumerate() {
            let inner = body.copies.get(operand).copied();
            *operand = match inner {
                Some(inner) if is_inner_edge(&self.region.treatments, id, number, *operand) => inner,
                _ => self.operand(body, *operand, treatment.operands[number], &note),
            };
        }
        let unit = treatment.rows().map_or(0, |rows| rows.unit);
        let op = on_block(&op, treatment, unit);
        let shape = match treatment.outcome {
            Outcome::Rows(rows) => block_of(self.module.shape(id), rows),
            Outcome::Sum(sum) => {
                if let (Op::Reduce { .. }, Some(neutral)) = (&op, neutral(sum)) {
                    // The sum's initial value exists before the first block.
                    let array = self.module.shape(operands[1]).as_array();
                    let element_type = array.expect("a reduction starts with a scalar").element_type;
                    operands[1] = self.at(body.computation, &note).integer(element_type, neutral);
                }
                match &op {
                    Op::Dot(_) => Shape::Array(self.carried_shape(id)),
                    _ => self.module.shape(id).clone(),
                }
            }
        };
        let new = self.at(body.computation, &note).copy_of(id, operands);
        self.module.set_shape(new, shape);
        self.module.instructions[new].op = op;
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
        let start = self.start(body, unit, &note);
        count_from(&mut self.at(body.computation, &note), iota, start)
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
                let operands = self.module.instructions[id].operands.clone();
                self.at(body.computation, note).copy_of(id, operands)
            }
            Some(rows) => {
                let whole = body.operands[&(id, None)];
                let start = self.start(body, rows.unit, note);
                cut_rows(&mut self.at(body.computation, note), whole, rows, start, body.zero)
            }
        };
        body.operands.insert((id, rows), new);
        new
    }

    /// Adds a block to a result.
    fn next_result(&mut self, body: &mut Body, index: usize, result: InstructionId) -> InstructionId {
        let note = self.module.instructions[result].metadata.clone();
        let carried = self.carried_shape(result);
        let before = self.at(body.computation, &note).get_tuple_element(body.state, index as u32);
        let mut block = body.copies[&result];
        match self.region.treatments[&result].outcome {
            Outcome::Rows(rows) => {
                let starts = self.starts(body, carried.rank(), rows, &note);
                self.at(body.computation, &note).dynamic_update_slice(before, block, starts)
            }
            Outcome::Sum(op) => {
                let mut at = self.at(body.computation, &note);
                let carried = Shape::Array(carried);
                if *at.module().shape(block) != carried {
                    block = at.insert_shaped(Op::Convert, [block], carried);
                }
                at.binary(op, before, block)
            }
        }
    }

    /// The start of a block, in every dimension.
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
        let mut at = self.at(body.computation, note);
        let elements = at.integer(ElementType::S32, unit);
        let start = at.binary(BinaryOp::Multiply, body.counter, elements);
        body.starts.insert(unit, start);
        start
    }

    // The position of new instructions.

    fn at(&mut self, computation: ComputationId, note: &Note) -> Cursor<'_> {
        Cursor::end(self.module, self.names, computation).with_metadata(note.clone())
    }

    fn outside(&mut self, note: &Note) -> Cursor<'_> {
        self.at(self.computation, note)
    }
}

/// The metadata of a new instruction.
type Note = Option<Arc<Metadata>>;

/// Replaces some instructions of a computation, and lists new ones in an order in which operands precede users: the
/// order of the text, with new instructions right before their first users. Linear.
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
