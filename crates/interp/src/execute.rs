//! The interpreter: control flow, tuples, and the bytes of each value.
//!
//! A value is the list of its leaves, each a place in memory. Tuples, calls, loops and bitcasts pass places on; only
//! kernels write. [`Storage`] decides where results go: into separate buffers, or into the slices of a plan.

use std::ops::Range;
use std::rc::Rc;

use memplan_ir::{
    ArrayShape, ComputationId, Dimensions, Effect, ElementType, InstructionId, Literal, Module, Op, Position,
    Role, Schedule, SecondaryMap, Shape,
};
use rustc_hash::FxHashMap;

use crate::arena::Arena;
use crate::compile::compile;
use crate::custom_calls::CustomCalls;
use crate::devices::Device;
use crate::dynamic::{self, Specialized};
use crate::kernels::Kernel;
use crate::last_use::{LastUses, last_uses};
use crate::lower::addressing;
use crate::memory::{Memory, Place, Write};
use crate::pull::{Pullable, array_shape};
use crate::writes::written_leaves;
use crate::{Error, transfer};

/// Calls within calls (loops and branches included), beyond which a module is refused. Deeper ones would overflow the
/// stack of a small thread.
const MAX_DEPTH: usize = 200;

/// An array in memory.
#[derive(Debug)]
pub(crate) struct Stored {
    pub(crate) place: Place,
    pub(crate) write: Write,
    /// The instruction and part that wrote it.
    pub(crate) position: Position,
    /// Extents, if they differ from the shape's.
    pub(crate) extents: Option<Dimensions>,
    /// Whether the place is given back, or poisoned, when the value is no longer needed.
    is_released: bool,
}

/// The leaves of a value. A token is a leaf of no bytes.
pub(crate) type Value = Vec<Rc<Stored>>;

/// The destination of results.
pub(crate) enum Storage<'m> {
    /// Each into a buffer of its own.
    Separate,
    /// Into the slices of a plan.
    Arena(Arena<'m>),
}

/// One run of a module.
pub(crate) struct Executor<'m> {
    pub(crate) module: &'m Module,
    pub(crate) memory: Memory,
    /// Which of several devices this is.
    pub(crate) device: Device<'m>,
    pub(crate) custom_calls: CustomCalls,
    schedule: &'m Schedule,
    pullable: Pullable,
    storage: Storage<'m>,
    kernels: SecondaryMap<InstructionId, Option<Rc<dyn Kernel>>>,
    constants: FxHashMap<InstructionId, Value>,
    /// Whether any shape has a dynamic dimension.
    has_dynamic: bool,
    /// Instructions compiled for the extents of their operands' leaves.
    pub(crate) specialized: FxHashMap<(InstructionId, Vec<Dimensions>), Rc<Specialized>>,
    /// For each computation, which values are no longer needed after each instruction.
    last_uses: SecondaryMap<ComputationId, Option<Rc<LastUses>>>,
    /// The position that each write wrote.
    writes: Vec<Option<Position>>,
    depth: usize,
}

impl<'m> Executor<'m> {
    pub(crate) fn new(
        module: &'m Module,
        schedule: &'m Schedule,
        storage: Storage<'m>,
        memory: Memory,
    ) -> Executor<'m> {
        Executor {
            module,
            memory,
            device: Device::alone(),
            custom_calls: CustomCalls::default(),
            schedule,
            pullable: Pullable::new(module),
            storage,
            kernels: SecondaryMap::new(),
            constants: FxHashMap::default(),
            has_dynamic: module.shapes.iter().any(dynamic::has_dynamic),
            specialized: FxHashMap::default(),
            last_uses: SecondaryMap::new(),
            writes: vec![None],
            depth: 0,
        }
    }

    /// Runs the entry computation on the leaves of its parameters.
    pub(crate) fn run(&mut self, inputs: &[Vec<Literal>]) -> Result<Vec<Literal>, Error> {
        let module = self.module;
        self.place_constants()?;
        let mut arguments = Vec::new();
        for (&parameter, leaves) in module.entry_computation().parameters.iter().zip(inputs) {
            let shapes = module.shape(parameter).leaves();
            let mut value = Vec::new();
            for (literal, (index, shape)) in leaves.iter().zip(shapes) {
                value.push(self.write_literal(Position { instruction: parameter, index }, shape, literal)?);
            }
            arguments.push(value);
        }
        let result = self.run_computation(module.entry, arguments)?;
        let root = module.entry_computation().root;
        let leaves = module.shape(root).leaves();
        result.iter().zip(leaves).map(|(leaf, (_, shape))| self.read(leaf, shape, "the caller")).collect()
    }

    /// Runs a computation.
    pub(crate) fn run_computation(
        &mut self,
        id: ComputationId,
        arguments: Vec<Value>,
    ) -> Result<Value, Error> {
        if self.depth >= MAX_DEPTH {
            let computation = self.module.computations[id].name.to_string();
            return Err(Error::TooDeep { computation, limit: MAX_DEPTH });
        }
        self.depth += 1;
        let module = self.module;
        let mut sequence = self.schedule.sequence(id);
        if sequence.is_empty() {
            sequence = &module.computations[id].instructions;
        }
        let last_uses = self.last_uses(id, sequence)?;
        let mut values: FxHashMap<InstructionId, Value> = FxHashMap::default();
        for (&instruction, dead) in sequence.iter().zip(last_uses.iter()) {
            let value = self.step(instruction, &values, &arguments)?;
            self.check_places(instruction, &value)?;
            values.insert(instruction, value);
            for dead in dead {
                if let Some(value) = values.remove(dead) {
                    self.release(value);
                }
            }
        }
        let root = module.computations[id].root;
        let result = values.remove(&root).expect("a sequence in order has the root");
        values.into_values().chain(arguments).for_each(|value| self.release(value));
        self.depth -= 1;
        Ok(result)
    }

    fn step(
        &mut self,
        id: InstructionId,
        values: &FxHashMap<InstructionId, Value>,
        arguments: &[Value],
    ) -> Result<Value, Error> {
        let module = self.module;
        let instruction = &module.instructions[id];
        let operand = |k: usize| &values[&instruction.operands[k]];
        let first = || operand(0).clone();
        Ok(match &instruction.op {
            Op::Parameter { number } => arguments[*number as usize].clone(),
            Op::Constant(_) => self.constants[&id].clone(),
            Op::Tuple => (0..instruction.operands.len()).flat_map(|k| operand(k).clone()).collect(),
            Op::GetTupleElement { index } => {
                let elements = module.shape(instruction.operands[0]).as_tuple().unwrap_or_default();
                let begin: usize = elements.iter().take(*index as usize).map(Shape::leaf_count).sum();
                operand(0)[begin..begin + elements[*index as usize].leaf_count()].to_vec()
            }
            op if op.traits().role == Role::PassesOn => first(),
            Op::AsyncUpdate(_) | Op::AllReduceDone(_) => first(),
            Op::Copy if module.shape(id).is_tuple() => first(),
            Op::AfterAll => vec![self.token(id)],
            Op::Call { .. } => {
                let arguments = (0..instruction.operands.len()).map(|k| operand(k).clone()).collect();
                self.run_computation(instruction.called[0], arguments)?
            }
            Op::While => self.run_while(id, first())?,
            Op::Conditional => self.run_conditional(id, operand(0), &|k| operand(k).clone())?,
            Op::AsyncStart(_) => {
                let arguments: Vec<Value> =
                    (0..instruction.operands.len()).map(|k| operand(k).clone()).collect();
                let mut value: Value = arguments.iter().flatten().cloned().collect();
                let result = self.run_computation(instruction.called[0], arguments)?;
                // If the computation itself overwrote its operand, nobody expects the operand when it is done.
                let is_whole = |leaf: &Stored| self.memory.intruder(leaf.place, leaf.write).is_none();
                value.iter_mut().filter(|leaf| !is_whole(leaf)).for_each(|leaf| *leaf = self.token(id));
                value.extend(result);
                self.push_contexts(id, &mut value)?;
                value
            }
            Op::AsyncDone(_) | Op::AllGatherDone(_) | Op::CollectivePermuteDone(_) | Op::CopyDone => {
                self.finish(id, operand(0))?
            }
            // The operands stay in the result, since they may not change until it is done.
            Op::AllGatherStart(_) | Op::CollectivePermuteStart(_) => {
                let operands: Vec<&Value> = (0..instruction.operands.len()).map(operand).collect();
                let mut value: Value = operands.iter().copied().flatten().cloned().collect();
                value.extend(self.run_kernel(id, &operands)?);
                self.push_contexts(id, &mut value)?;
                value
            }
            Op::CopyStart { .. } => {
                let mut value = self.run_kernel(id, &[operand(0)])?;
                value.extend(first());
                self.push_contexts(id, &mut value)?;
                value
            }
            op if op.traits().effect == Effect::Host => {
                return Err(Error::unsupported(module, id, "it talks to the host, and there is none"));
            }
            _ => {
                let operands: Vec<&Value> = (0..instruction.operands.len()).map(operand).collect();
                self.run_kernel(id, &operands)?
            }
        })
    }

    /// Runs the kernel of an instruction, and gives the leaves that it writes.
    fn run_kernel(&mut self, id: InstructionId, operands: &[&Value]) -> Result<Value, Error> {
        let module = self.module;
        let mut places = Vec::new();
        for leaf in operands.iter().copied().flatten() {
            self.check_whole(leaf, &module.instructions[id].name)?;
            places.push(leaf.place);
        }
        if let Some(literals) = self.outside(id, operands)? {
            let leaves = written_leaves(module, id);
            return literals.iter().zip(leaves).map(|(l, leaf)| self.write_result(id, leaf, l)).collect();
        }
        if self.has_dynamic && dynamic::is_dynamic(module, id) {
            return self.run_dynamic(id, operands);
        }
        let kernel = self.kernel(id)?;
        let results = self.launch(id, &*kernel, &places, written_leaves(module, id))?;
        Ok(results.into_iter().map(Rc::new).collect())
    }

    /// Runs a kernel that writes these leaves of an instruction's result.
    pub(crate) fn launch(
        &mut self,
        id: InstructionId,
        kernel: &dyn Kernel,
        operands: &[Place],
        leaves: Range<usize>,
    ) -> Result<Vec<Stored>, Error> {
        let mut results = Vec::new();
        for (index, shape) in self.module.shape(id).leaves().into_iter().take(leaves.end).skip(leaves.start) {
            results.push(self.result(Position { instruction: id, index }, shape)?);
        }
        let scratch = self.scratch(id, kernel.scratch_bytes())?;
        let places: Vec<Place> = results.iter().map(|r| r.place).collect();
        kernel.run(&mut self.memory, operands, &places, scratch)?;
        if let Storage::Separate = self.storage {
            self.memory.free(scratch);
        }
        for result in &results {
            self.memory.claim(result.place, result.write);
        }
        Ok(results)
    }

    /// Writes a leaf of an instruction's result.
    pub(crate) fn write_result(
        &mut self,
        id: InstructionId,
        leaf: usize,
        literal: &Literal,
    ) -> Result<Rc<Stored>, Error> {
        let (index, shape) = self.module.shape(id).leaves().swap_remove(leaf);
        self.write_literal(Position { instruction: id, index }, shape, literal)
    }

    /// The results of operations on literals: operations between devices, and functions of the embedder. `None` for all
    /// others, which have a kernel.
    fn outside(&mut self, id: InstructionId, operands: &[&Value]) -> Result<Option<Vec<Literal>>, Error> {
        let module = self.module;
        let instruction = &module.instructions[id];
        let function = match &instruction.op {
            Op::CustomCall(call) => self.custom_calls.find(&call.target).map(|f| (f, call)),
            op if self.device.runs(op) => None,
            _ => return Ok(None),
        };
        if function.is_none() && matches!(instruction.op, Op::CustomCall(_)) {
            return Ok(None);
        }
        let mut given = Vec::new();
        for (&operand, value) in instruction.operands.iter().zip(operands) {
            let mut leaves = Vec::new();
            for (leaf, (_, shape)) in value.iter().zip(module.shape(operand).leaves()) {
                leaves.push(self.read(leaf, shape, &instruction.name)?);
            }
            given.push(leaves);
        }
        let Some((function, call)) = function else {
            return self.device.exchange(module, id, given.concat()).map(Some);
        };
        let operands: Vec<Literal> = (instruction.operands.iter().zip(given))
            .map(|(&operand, leaves)| crate::nest(module.shape(operand), &mut leaves.into_iter()))
            .collect();
        let failed = |reason: String| Error::CustomCall {
            instruction: instruction.name.to_string(),
            target: call.target.to_string(),
            reason,
        };
        let result = function(call, &operands).map_err(failed)?;
        let mut leaves = Vec::new();
        flatten(&result, &mut leaves);
        if !crate::fits(&leaves, module.shape(id)) {
            return Err(failed("its result has another shape".to_string()));
        }
        Ok(Some(leaves.into_iter().cloned().collect()))
    }

    fn run_while(&mut self, id: InstructionId, mut state: Value) -> Result<Value, Error> {
        let (body, condition) =
            (self.module.instructions[id].called[0], self.module.instructions[id].called[1]);
        loop {
            let goes_on = self.run_computation(condition, vec![state.clone()])?;
            self.check_whole(&goes_on[0], &self.module.instructions[id].name)?;
            let is_true = self.memory.bytes(goes_on[0].place)[0] != 0;
            self.release(goes_on);
            if !is_true {
                return Ok(state);
            }
            state = self.run_computation(body, vec![state])?;
        }
    }

    fn run_conditional(
        &mut self,
        id: InstructionId,
        index: &Value,
        operand: &dyn Fn(usize) -> Value,
    ) -> Result<Value, Error> {
        let instruction = &self.module.instructions[id];
        self.check_whole(&index[0], &instruction.name)?;
        let index_type = array_shape(self.module, instruction.operands[0])?.element_type;
        let branch = branch_of(self.memory.bytes(index[0].place), index_type, instruction.called.len());
        self.run_computation(instruction.called[branch], vec![operand(branch + 1)])
    }

    /// The result of an asynchronous operation, once everything it worked on is seen to be untouched: but for operands
    /// that it worked on in place, which are where the result is.
    fn finish(&mut self, id: InstructionId, started: &Value) -> Result<Value, Error> {
        let module = self.module;
        let start = module.shape(module.instructions[id].operands[0]).as_tuple().unwrap_or_default();
        // Copies put the destination first, everything else its operands.
        let element = !matches!(module.instructions[id].op, Op::CopyDone) as usize;
        let begin: usize = start.iter().take(element).map(Shape::leaf_count).sum();
        let result = begin..begin + module.shape(id).leaf_count();
        for (i, leaf) in started.iter().enumerate() {
            let is_updated = || started[result.clone()].iter().any(|updated| updated.place == leaf.place);
            if result.contains(&i) || !is_updated() {
                self.check_whole(leaf, &module.instructions[id].name)?;
            }
        }
        Ok(started[result].to_vec())
    }

    /// The leaves of an asynchronous start beyond operands and results: handles that no one reads.
    fn push_contexts(&mut self, id: InstructionId, value: &mut Value) -> Result<(), Error> {
        let module = self.module;
        for (index, shape) in module.shape(id).leaves().into_iter().skip(value.len()) {
            let context = self.result(Position { instruction: id, index }, shape)?;
            self.memory.claim(context.place, context.write);
            value.push(Rc::new(context));
        }
        Ok(())
    }

    fn kernel(&mut self, id: InstructionId) -> Result<Rc<dyn Kernel>, Error> {
        if let Some(kernel) = &self.kernels[id] {
            return Ok(kernel.clone());
        }
        let kernel: Rc<dyn Kernel> = compile(self.module, &self.pullable, id)?.into();
        self.kernels[id] = Some(kernel.clone());
        Ok(kernel)
    }

    /// The place of a result that is about to be written.
    fn result(&mut self, position: Position, shape: &Shape) -> Result<Stored, Error> {
        let Some(shape) = shape.as_array() else {
            return Ok(Stored { place: NOWHERE, write: 0, position, extents: None, is_released: false });
        };
        let size = addressing(shape)?.size;
        let place = match &self.storage {
            Storage::Separate => self.memory.allocate(size, false)?,
            // A value without bytes needs no slice.
            Storage::Arena(_) if size == 0 => NOWHERE,
            Storage::Arena(arena) => arena.place(self.module, &position, size)?,
        };
        let write = self.writes.len() as Write;
        if let Storage::Arena(_) = self.storage {
            self.writes.push(Some(position.clone()));
        }
        Ok(Stored { place, write, position, extents: None, is_released: true })
    }

    fn scratch(&mut self, id: InstructionId, size: usize) -> Result<Place, Error> {
        match &self.storage {
            Storage::Arena(arena) => {
                // Whatever lived here is gone: a value that someone still wants is found missing when it is read.
                arena.all_scratch(id).for_each(|place| self.memory.claim(place, 0));
                if size == 0 { Ok(NOWHERE) } else { arena.scratch(self.module, id, size) }
            }
            Storage::Separate => self.memory.allocate(size, false),
        }
    }

    fn token(&self, id: InstructionId) -> Rc<Stored> {
        let position = Position { instruction: id, index: Default::default() };
        Rc::new(Stored { place: NOWHERE, write: 0, position, extents: None, is_released: false })
    }

    fn release(&mut self, value: Value) {
        for leaf in value {
            if let Ok(stored) = Rc::try_unwrap(leaf)
                && stored.is_released
            {
                match self.storage {
                    Storage::Separate => self.memory.free(stored.place),
                    Storage::Arena(_) => self.memory.poison(stored.place, stored.write),
                }
            }
        }
    }

    /// Constants are written once, before anything runs, as the loader of a program does.
    fn place_constants(&mut self) -> Result<(), Error> {
        let module = self.module;
        let is_called = crate::called_computations(module);
        // Equal constants may share a place, and are then written as one.
        let mut placed: FxHashMap<Place, (InstructionId, Rc<Stored>)> = FxHashMap::default();
        for &id in is_called.iter().flat_map(|&c| &module.computations[c].instructions) {
            let Op::Constant(literal) = &module.instructions[id].op else { continue };
            let mut leaves = Vec::new();
            flatten(literal, &mut leaves);
            let mut value = Vec::new();
            for (literal, (index, shape)) in leaves.into_iter().zip(module.shape(id).leaves()) {
                let stored = self.write_literal(Position { instruction: id, index }, shape, literal)?;
                let is_equal = |&(other, ref it): &(InstructionId, Rc<Stored>)| {
                    let [a, b] = [id, other].map(|id| &module.instructions[id]);
                    a.op == b.op && a.shape == b.shape && it.position.index == stored.position.index
                };
                let shared = placed.get(&stored.place).filter(|other| is_equal(other));
                let stored = match shared {
                    Some((_, shared)) => {
                        self.memory.claim(shared.place, shared.write);
                        shared.clone()
                    }
                    None => stored,
                };
                placed.insert(stored.place, (id, stored.clone()));
                value.push(stored);
            }
            self.constants.insert(id, value);
        }
        Ok(())
    }

    fn write_literal(
        &mut self,
        position: Position,
        shape: &Shape,
        literal: &Literal,
    ) -> Result<Rc<Stored>, Error> {
        let is_embedded = matches!(&self.storage, Storage::Arena(arena) if !arena.has(&position))
            && matches!(self.module.instructions[position.instruction].op, Op::Constant(_));
        let mut stored = if is_embedded && let Some(array) = shape.as_array() {
            // The plan leaves constants out that are part of the code.
            let place = self.memory.allocate(addressing(array)?.size, false)?;
            Stored { place, write: 0, position, extents: None, is_released: false }
        } else {
            self.result(position, shape)?
        };
        if let (Some(array), Literal::Array(literal)) = (shape.as_array(), literal) {
            let mut addressing = addressing(array)?;
            if literal.dimensions != array.dimensions {
                // Elements keep their places within the bounds, and nothing is left there but them.
                addressing.is_row_major = false;
                self.memory.bytes_mut(stored.place).fill(0);
                stored.extents = Some(literal.dimensions.clone());
            }
            transfer::write(literal, &addressing, &mut self.memory, stored.place);
            self.memory.claim(stored.place, stored.write);
        }
        Ok(Rc::new(stored))
    }

    pub(crate) fn read(&self, leaf: &Stored, shape: &Shape, reader: &str) -> Result<Literal, Error> {
        let Some(array) = shape.as_array() else { return Ok(Literal::Token) };
        self.check_whole(leaf, reader)?;
        let mut addressing = addressing(array)?;
        let Some(extents) = leaf.extents.as_ref().filter(|&extents| extents != &array.dimensions) else {
            return Ok(Literal::Array(transfer::read(array, &addressing, &self.memory, leaf.place)));
        };
        addressing.is_row_major = false;
        let array = ArrayShape { dimensions: extents.clone(), ..array.clone() };
        Ok(Literal::Array(transfer::read(&array, &addressing, &self.memory, leaf.place)))
    }

    /// Whether every byte of a value still belongs to the value's write.
    fn check_whole(&self, leaf: &Stored, reader: &str) -> Result<(), Error> {
        let Storage::Arena(arena) = &self.storage else { return Ok(()) };
        match self.memory.intruder(leaf.place, leaf.write) {
            None => Ok(()),
            Some((at, write)) => {
                let describe = |position: &Position| {
                    format!("{}{}", self.module.instructions[position.instruction].name, position.index)
                };
                let writer =
                    self.writes[write as usize].as_ref().map_or("no one since it was freed".into(), describe);
                let begin = leaf.place.offset as u64;
                Err(Error::Poison {
                    reader: reader.to_string(),
                    value: describe(&leaf.position),
                    allocation: arena.allocation_name(leaf.place),
                    begin,
                    end: begin + leaf.place.size as u64,
                    byte: begin + at as u64,
                    writer,
                })
            }
        }
    }

    /// Whether the plan keeps a value in place that an instruction passes on.
    fn check_places(&self, id: InstructionId, value: &Value) -> Result<(), Error> {
        let Storage::Arena(arena) = &self.storage else { return Ok(()) };
        for (leaf, (index, _)) in value.iter().zip(self.module.shape(id).leaves()) {
            if leaf.place != NOWHERE && leaf.write != 0 {
                arena.check_place(self.module, &Position { instruction: id, index }, leaf.place)?;
            }
        }
        Ok(())
    }

    fn last_uses(&mut self, id: ComputationId, sequence: &[InstructionId]) -> Result<Rc<LastUses>, Error> {
        if let Some(known) = &self.last_uses[id] {
            return Ok(known.clone());
        }
        let found = Rc::new(last_uses(self.module, id, sequence)?);
        self.last_uses[id] = Some(found.clone());
        Ok(found)
    }
}

/// The place of values without bytes.
pub(crate) const NOWHERE: Place = Place { buffer: 0, offset: 0, size: 0 };

/// Which of `n` branches the index of a conditional selects: a predicate the first if it holds, an index out of range
/// the last.
pub(crate) fn branch_of(index: &[u8], index_type: ElementType, n: usize) -> usize {
    match index_type {
        ElementType::Pred => (index[0] == 0) as usize,
        _ => {
            let index = index.first_chunk().map_or(-1, |&bytes| i32::from_le_bytes(bytes));
            usize::try_from(index).ok().filter(|&index| index < n).unwrap_or(n - 1)
        }
    }
}

/// The leaves of a literal, in order.
pub(crate) fn flatten<'a>(literal: &'a Literal, leaves: &mut Vec<&'a Literal>) {
    match literal {
        Literal::Tuple(elements) => elements.iter().for_each(|e| flatten(e, leaves)),
        leaf => leaves.push(leaf),
    }
}
