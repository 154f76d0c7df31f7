//! Rewrites both loops: the second recomputes rows, and the first keeps the values that the rows are computed from.

use memplan_ir::{
    ArrayShape, ComputationId, Cursor, Insert, Instruction, InstructionId, Module, Names, Op, Operands,
    Scalar, Shape, ShapeId,
};
use memplan_rewriter::loops::Loop;
use rustc_hash::{FxHashMap, FxHashSet};

use super::choose::Kept;
use super::find::{Pair, Residual};

/// Rewrites both loops. Residuals that are no longer kept remain as state that nothing reads. Returns the names of the
/// instructions whose rows are recomputed.
pub(super) fn apply(module: &mut Module, pair: &Pair, kept: &Kept, names: &mut Names) -> Vec<Box<str>> {
    let position = |computation: ComputationId| -> FxHashMap<InstructionId, usize> {
        let instructions = module.computations[computation].instructions.iter();
        instructions.enumerate().map(|(i, &id)| (id, i)).collect()
    };
    let (written_at, read_at) = (position(pair.producer.body), position(pair.consumer.body));
    let is_dropped = |residual: &&Residual| !kept.values.contains(&below_views(module, residual.row));
    let dropped: Vec<&Residual> = pair.residuals.iter().filter(is_dropped).collect();
    let mut slices: Vec<(InstructionId, InstructionId)> =
        dropped.iter().flat_map(|r| r.slices.iter().map(|&slice| (slice, r.row))).collect();
    slices.sort_unstable_by_key(|(slice, _)| read_at[slice]);
    let mut writer =
        Writer { module, pair, names, provided: FxHashMap::default(), before: FxHashMap::default() };
    let mut computed: FxHashMap<InstructionId, InstructionId> = FxHashMap::default();
    for (slice, row) in slices {
        for id in writer.missing(row, kept, &written_at) {
            writer.provide(id, kept, slice);
        }
        computed.insert(slice, writer.provided[&row]);
    }
    let names_of = |residual: &&Residual| writer.module.instructions[residual.row].name.clone();
    let recomputed = dropped.iter().map(names_of).collect();
    for residual in dropped {
        writer.drop(residual);
    }
    writer.finish(&computed);
    recomputed
}

/// The instruction that an array is a view of.
fn below_views(module: &Module, mut id: InstructionId) -> InstructionId {
    while let Op::Reshape { .. } | Op::Bitcast = module.instructions[id].op {
        id = module.instructions[id].operands[0];
    }
    id
}

/// The rewrite of two loops.
struct Writer<'a> {
    module: &'a mut Module,
    pair: &'a Pair,
    names: &'a mut Names,
    /// For instructions of the first loop's body: their values in the second loop's body.
    provided: FxHashMap<InstructionId, InstructionId>,
    /// New instructions, by the one before which they are inserted.
    before: FxHashMap<InstructionId, Vec<InstructionId>>,
}

impl Writer<'_> {
    /// The values that the second loop does not have yet and needs to compute a row, operands first.
    fn missing(
        &self,
        row: InstructionId,
        kept: &Kept,
        written_at: &FxHashMap<InstructionId, usize>,
    ) -> Vec<InstructionId> {
        let mut seen: FxHashSet<InstructionId> = FxHashSet::from_iter([row]);
        let mut open = vec![row];
        let mut found = Vec::new();
        while let Some(id) = open.pop().filter(|id| !self.provided.contains_key(id)) {
            found.push(id);
            if !kept.values.contains(&id) {
                let operands = self.module.instructions[id].operands.iter().copied();
                open.extend(
                    operands.filter(|&operand| !self.provided.contains_key(&operand) && seen.insert(operand)),
                );
            }
        }
        found.sort_unstable_by_key(|id| written_at[id]);
        found
    }

    /// Provides a value to the second loop, before an instruction of its body.
    fn provide(&mut self, id: InstructionId, kept: &Kept, anchor: InstructionId) {
        let element = self.pair.producer.element_at(self.module, id);
        let value = match element {
            _ if !kept.values.contains(&id) => self.copy(id, anchor),
            None if matches!(self.module.instructions[id].op, Op::Constant(_)) => self.copy(id, anchor),
            Some(element) if element == self.pair.counter => self.step(anchor),
            Some(element) if self.pair.producer.passes_on(self.module, element) => {
                self.unchanged(element, anchor)
            }
            _ => self.row_of(id, anchor),
        };
        self.provided.insert(id, value);
    }

    /// A copy of an instruction whose operands have been provided.
    fn copy(&mut self, id: InstructionId, anchor: InstructionId) -> InstructionId {
        let Instruction { name, mut operands, .. } = self.module.instructions[id].clone();
        let counter = self.pair.counter;
        for (i, operand) in operands.iter_mut().enumerate() {
            let clamps = i > 0 && self.clamps_like_rows(id, i - 1);
            *operand = match self.pair.producer.element_at(self.module, *operand) {
                Some(element) if element == counter && clamps => self.pair.row,
                _ => self.provided[operand],
            };
        }
        self.before(anchor).named(&format!("{name}.again")).copy_of(id, operands)
    }

    /// Whether an instruction is a dynamic slice that clamps its start in a dimension by itself as rows are clamped: to as
    /// many as there are.
    fn clamps_like_rows(&self, id: InstructionId, dimension: usize) -> bool {
        let slice = &self.module.instructions[id];
        let extent = |id: InstructionId| self.module.shape(id).as_array().map(|a| a.dimensions[dimension]);
        matches!(slice.op, Op::DynamicSlice { .. })
            && extent(slice.operands[0])
                .zip(extent(id))
                .is_some_and(|(whole, part)| whole - part + 1 == self.pair.n_rows as i64)
    }

    /// The number of the step that wrote the row at hand. A number beyond the last row reads the last row.
    fn step(&mut self, anchor: InstructionId) -> InstructionId {
        let shape = self.module.instructions[self.pair.row].shape;
        let first = self.integer(0, shape, anchor);
        let last = self.integer(self.pair.n_rows as i64 - 1, shape, anchor);
        self.emit(Op::Clamp, [first, self.pair.row, last], shape, anchor)
    }

    /// An element of the first loop's state that neither loop changes.
    fn unchanged(&mut self, element: u32, anchor: InstructionId) -> InstructionId {
        let given = self.module.instructions[self.pair.producer.init].operands[element as usize];
        match self.pair.consumer_element(self.module, given) {
            Some(element) => self.take(&self.pair.consumer, element, anchor),
            None => self.carry(given, anchor),
        }
    }

    /// The row of a value that the first loop keeps, or is made to keep.
    fn row_of(&mut self, id: InstructionId, anchor: InstructionId) -> InstructionId {
        let is_kept = |residual: &&Residual| below_views(self.module, residual.row) == id;
        let value = self.module.shape(id).as_array().expect("only arrays are cut").clone();
        let (rows, row_shape) = match self.pair.residuals.iter().find(is_kept) {
            Some(residual) => {
                let shape = self.module.instructions[residual.row].shape;
                (self.take(&self.pair.consumer, residual.read_as, anchor), shape)
            }
            None => {
                let extents = std::iter::once(1).chain(value.dimensions.iter().copied());
                let shape = self.module.intern(Shape::array(value.element_type, extents));
                let result = self.keep(id, &value, shape);
                (self.carry(result, anchor), shape)
            }
        };
        let number = self.module.instructions[self.pair.row].shape;
        let slice_sizes = self.module.shape_of(row_shape).as_array().expect("an array").dimensions.clone();
        let zero = self.integer(0, number, anchor);
        let starts = std::iter::once(self.pair.row).chain(slice_sizes[1..].iter().map(|_| zero));
        let operands: Operands = std::iter::once(rows).chain(starts).collect();
        let row = self.emit(Op::DynamicSlice { slice_sizes }, operands, row_shape, anchor);
        let shape = self.module.instructions[id].shape;
        self.emit(Op::Reshape { inferred_dimension: None }, [row], shape, anchor)
    }

    /// Makes the first loop keep a value of each step. Returns the array of all rows, after the loop.
    fn keep(&mut self, id: InstructionId, value: &ArrayShape, row_shape: ShapeId) -> InstructionId {
        let producer = &self.pair.producer;
        let extents = std::iter::once(self.pair.n_rows as i64).chain(value.dimensions.iter().copied());
        let shape = self.module.intern(Shape::array(value.element_type, extents));
        let scalar = self.module.intern(Shape::scalar(value.element_type));
        // The initial rows are never read, since every row is written before.
        let zero = self.integer(0, scalar, producer.init);
        let start = self.emit(Op::Broadcast { dimensions: Default::default() }, [zero], shape, producer.init);
        let element = self.module.instructions[producer.init].operands.len() as u32;
        self.module.instructions[producer.init].operands.push(start);
        let counter = self.module.instructions[producer.init].operands[self.pair.counter as usize];
        let number = self.module.instructions[counter].shape;
        let end = producer.next;
        let rows = self.take_as(producer.state, element, shape, end);
        let step = self.take_as(producer.state, self.pair.counter, number, end);
        let zero = self.integer(0, number, end);
        let row = self.emit(Op::Reshape { inferred_dimension: None }, [id], row_shape, end);
        let starts = std::iter::once(step).chain(value.dimensions.iter().map(|_| zero));
        let operands: Operands = [rows, row].into_iter().chain(starts).collect();
        let update = self.emit(Op::DynamicUpdateSlice, operands, shape, end);
        self.module.instructions[end].operands.push(update);
        self.take_as(producer.id, element, shape, self.pair.consumer.init)
    }

    /// Adds a value from before the second loop to its state, and returns the element in the body.
    fn carry(&mut self, given: InstructionId, anchor: InstructionId) -> InstructionId {
        let consumer = &self.pair.consumer;
        let element = self.module.instructions[consumer.init].operands.len() as u32;
        self.module.instructions[consumer.init].operands.push(given);
        let shape = self.module.instructions[given].shape;
        let taken = self.take_as(consumer.state, element, shape, anchor);
        self.module.instructions[consumer.next].operands.push(taken);
        taken
    }

    fn take(&mut self, of: &Loop, element: u32, anchor: InstructionId) -> InstructionId {
        let given = self.module.instructions[of.init].operands[element as usize];
        let shape = self.module.instructions[given].shape;
        self.take_as(of.state, element, shape, anchor)
    }

    fn take_as(
        &mut self,
        tuple: InstructionId,
        index: u32,
        shape: ShapeId,
        anchor: InstructionId,
    ) -> InstructionId {
        self.emit(Op::GetTupleElement { index }, [tuple], shape, anchor)
    }

    fn integer(&mut self, value: i64, shape: ShapeId, anchor: InstructionId) -> InstructionId {
        let element_type = self.module.shape_of(shape).as_array().expect("a scalar").element_type;
        self.emit(Op::Constant(Scalar::integer(element_type, value).literal()), [], shape, anchor)
    }

    fn emit(
        &mut self,
        op: Op,
        operands: impl IntoIterator<Item = InstructionId>,
        shape: ShapeId,
        anchor: InstructionId,
    ) -> InstructionId {
        let shape = self.module.shape_of(shape).clone();
        self.before(anchor).insert_shaped(op, operands, shape)
    }

    /// For new instructions before one that is there.
    fn before(&mut self, anchor: InstructionId) -> Cursor<'_> {
        let computation = self.module.instructions[anchor].parent;
        let list = self.before.entry(anchor).or_default();
        Cursor::into_list(self.module, self.names, computation, list)
    }

    /// Makes the first loop pass a residual on unchanged.
    fn drop(&mut self, residual: &Residual) {
        let update = self.module.instructions[self.pair.producer.next].operands[residual.element as usize];
        let rows = self.module.instructions[update].operands[0];
        self.module.instructions[self.pair.producer.next].operands[residual.element as usize] = rows;
    }

    /// Inserts the new instructions, and replaces the slices of residuals by the recomputed rows.
    fn finish(mut self, computed: &FxHashMap<InstructionId, InstructionId>) {
        let [producer, consumer] = [&self.pair.producer, &self.pair.consumer];
        let around = self.module.instructions[producer.id].parent;
        for computation in [around, producer.body, consumer.body] {
            let old = std::mem::take(&mut self.module.computations[computation].instructions);
            let mut new = Vec::with_capacity(old.len());
            for id in old {
                new.extend(self.before.remove(&id).unwrap_or_default());
                let operands = &mut self.module.instructions[id].operands;
                operands.iter_mut().for_each(|operand| *operand = *computed.get(operand).unwrap_or(operand));
                new.push(id);
            }
            self.module.computations[computation].instructions = new;
        }
        for of in [producer, consumer] {
            let elements = self.module.instructions[of.init].operands.iter();
            let shape = Shape::Tuple(elements.map(|&element| self.module.shape(element).clone()).collect());
            let shape = self.module.intern(shape);
            for id in of.tuples(self.module) {
                self.module.instructions[id].shape = shape;
            }
        }
    }
}
