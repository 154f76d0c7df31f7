//! Prefetches of slices: the slice becomes a separate transfer, and kernels read its result.

use memplan_analysis::{Iteration, ScalarOrigin, ScalarScope, SlicedOperand, TupleLoop};
use memplan_ir::{
    ArrayShape, Async, ComputationId, Cursor, ElementType, Insert, InstructionId, Module, Names, Op,
    Operands, Position, Shape, ShapeId, Use, Users,
};
use memplan_memory::{SlicePrefetch, SliceTiming};
use rustc_hash::FxHashMap;
use smallvec::{SmallVec, smallvec};

use super::Inserter;
use super::edits::{At, Edits, Slot, flag, in_space};

/// Gives kernels that are to read slices fused computations of their own, since the slices in them go.
pub(super) fn unshare_kernels(module: &mut Module, slices: &[(usize, &SlicePrefetch)], names: &mut Names) {
    if slices.is_empty() {
        return;
    }
    let mut callers: FxHashMap<ComputationId, u32> = FxHashMap::default();
    for &callee in module.instructions.values().flat_map(|instruction| &instruction.called) {
        *callers.entry(callee).or_default() += 1;
    }
    for kernel in slices.iter().flat_map(|(_, slice)| &slice.uses).map(|it| it.user) {
        let Some(&fused) = module.instructions[kernel].called.first() else { continue };
        if callers[&fused] > 1 {
            *callers.get_mut(&fused).expect("it is called") -= 1;
            let name = names.unique(&format!("{}.part", module.computations[fused].name));
            let own = module.clone_computation(fused, name);
            module.instructions[kernel].called[0] = own;
            callers.insert(own, 1);
        }
    }
}

/// Names the computations that transfers of slices call. Text leaves them out, and who reads the text names them anew: in
/// the order of the text.
pub(super) fn name_wrapped(edits: &mut Edits<'_>) {
    let module = &*edits.module;
    let instructions = module.computations.values().flat_map(|computation| &computation.instructions);
    let starts = instructions.filter(|&&id| edits.slice_starts.contains(id));
    let wrapped: Vec<ComputationId> = starts.map(|&id| module.instructions[id].called[0]).collect();
    let mut numbers = 0..;
    for computation in wrapped {
        let mut names = numbers.by_ref().map(|number| match number {
            0 => "async_wrapped".to_owned(),
            _ => format!("async_wrapped.{number}"),
        });
        let name = names.find(|name| edits.names.take(name)).expect("numbers do not end");
        edits.module.computations[computation].name = name.into();
    }
}

/// Carries out prefetches of slices.
pub(super) struct SlicePrefetcher<'i, 'a> {
    inserter: &'i mut Inserter<'a>,
    users: &'i Users,
    /// Scalars that were computed anew: of a kernel, for a place, in an iteration.
    scalars: FxHashMap<(InstructionId, InstructionId, InstructionId, Iteration), InstructionId>,
}

impl<'i, 'a> SlicePrefetcher<'i, 'a> {
    pub(super) fn new(inserter: &'i mut Inserter<'a>, users: &'i Users) -> SlicePrefetcher<'i, 'a> {
        SlicePrefetcher { inserter, users, scalars: FxHashMap::default() }
    }

    pub(super) fn prefetch(&mut self, decision: usize, slice: &SlicePrefetch) {
        self.inserter.decision = decision;
        let (module, users) = (&*self.inserter.edits.module, self.users);
        let sliced = slice.uses.iter().map(|&it| SlicedOperand::of(module, users, it));
        let sliced: Vec<SlicedOperand> =
            sliced.collect::<Option<_>>().expect("kernels read only a slice of what decisions prefetch");
        let arrived = match slice.timing {
            SliceTiming::Once { start_before } => {
                let kernel = slice.uses[0].user;
                let scope = ScalarScope { facts: self.inserter.facts, kernel, around: None };
                self.copy(slice, &sliced[0], scope, Iteration::AtKernel, start_before, kernel)
            }
            SliceTiming::Pipelined { first_before, next_before, double_buffered } => {
                self.pipeline(slice, &sliced[0], [first_before, next_before], double_buffered)
            }
        };
        for (&it, sliced) in slice.uses.iter().zip(&sliced) {
            read_slice(self.inserter.edits.module, users, it, sliced, arrived);
        }
    }

    /// Lets a loop copy the slice of its next iteration. Gives the slice of this iteration.
    fn pipeline(
        &mut self,
        slice: &SlicePrefetch,
        sliced: &SlicedOperand,
        [first_before, next_before]: [InstructionId; 2],
        double_buffered: bool,
    ) -> InstructionId {
        let facts = self.inserter.facts;
        let kernel = slice.uses[0].user;
        let around =
            TupleLoop::around(self.inserter.edits.module, &facts.graph, self.users, slice.computation);
        let around = around.expect("decisions pipeline slices of loops that take their state apart");
        let scope = ScalarScope { facts, kernel, around: Some((&around, facts.line.begin(next_before))) };
        let first = self.copy(slice, sliced, scope, Iteration::First, first_before, around.init);
        let next = self.copy(slice, sliced, scope, Iteration::Next, next_before, around.root);
        let edits = &mut self.inserter.edits;
        let element = add_to_state(edits.module, &around, first, next);
        let shape = edits.module.shape(next).clone();
        let at = (kernel, Slot::Fetched);
        let op = Op::GetTupleElement { index: element };
        let carried = edits.push("get-tuple-element", shape.clone(), op, around.states[0], at);
        if !double_buffered {
            return carried;
        }
        let second = edits.push("copy", shape, Op::Copy, carried, at);
        self.inserter.place(Position { instruction: second, index: [].into() });
        second
    }

    /// Copies a slice into fast memory, for `user` and those after it.
    fn copy(
        &mut self,
        slice: &SlicePrefetch,
        sliced: &SlicedOperand,
        scope: ScalarScope<'_>,
        iteration: Iteration,
        start_before: InstructionId,
        user: InstructionId,
    ) -> InstructionId {
        let at = (start_before, Slot::Started);
        let module = &*self.inserter.edits.module;
        let computation = module.instructions[start_before].parent;
        let shown = module.instructions[slice.uses[0].user].operands[slice.uses[0].operand as usize];
        let (id, index) = self.inserter.origin(self.inserter.value(&slice.value), computation);
        let edits = &mut self.inserter.edits;
        let source = edits.element(id, &index, at);
        let source = seen_as(edits, source, shown, at);
        let offsets = sliced.offsets(edits.module).to_vec();
        let offsets = offsets.into_iter().map(|offset| self.scalar(scope, offset, iteration, at));
        let operands: Operands = std::iter::once(source).chain(offsets.collect::<Operands>()).collect();
        let edits = &mut self.inserter.edits;
        let op = edits.module.instructions[sliced.slice].op.clone();
        let start = start_slice(edits, op, operands, &sliced.array, at);
        self.inserter.place(Position { instruction: start, index: [1].into() });
        let edits = &mut self.inserter.edits;
        let called = edits.module.instructions[start].called.clone();
        let shape = Shape::Array(in_space(&sliced.array, edits.fast.space.0));
        let done = Op::AsyncDone(Box::default());
        let done = edits.push("slice-done", shape, done, start, (user, Slot::Fetched));
        edits.module.instructions[done].called = called;
        done
    }

    /// A scalar of a kernel in some iteration: it exists, or operations are copied that compute it.
    fn scalar(
        &mut self,
        scope: ScalarScope<'_>,
        id: InstructionId,
        iteration: Iteration,
        at: At,
    ) -> InstructionId {
        let origin = scope.origin(self.inserter.edits.module, id, iteration);
        let (id, iteration) = match origin.expect("decisions prefetch slices at offsets that can be computed")
        {
            ScalarOrigin::Existing(id) => return id,
            ScalarOrigin::Computed(id, iteration) => (id, iteration),
        };
        let key = (scope.kernel, at.0, id, iteration);
        if let Some(&made) = self.scalars.get(&key) {
            return made;
        }
        let operands = self.inserter.edits.module.instructions[id].operands.clone();
        let operands: Operands =
            operands.into_iter().map(|operand| self.scalar(scope, operand, iteration, at)).collect();
        let edits = &mut self.inserter.edits;
        let stem = format!("{}.fast", edits.module.instructions[id].name);
        let made = edits.cursor(at).named(&stem).copy_of(id, operands);
        self.scalars.insert(key, made);
        made
    }
}

/// An array in the shape in which an operand shows it.
fn seen_as(edits: &mut Edits<'_>, source: InstructionId, shown: InstructionId, at: At) -> InstructionId {
    let shape = edits.module.shape(shown).clone();
    if *edits.module.shape(source) == shape {
        return source;
    }
    edits.push("bitcast", shape, Op::Bitcast, source, at)
}

/// `slice-start` or `dynamic-slice-start`: asynchronous, and all that its computation holds.
fn start_slice(
    edits: &mut Edits<'_>,
    op: Op,
    operands: Operands,
    array: &ArrayShape,
    at: At,
) -> InstructionId {
    let fast = edits.fast;
    let module = &mut *edits.module;
    let result = Shape::Array(in_space(array, fast.space.0));
    let sources: Vec<Shape> = operands.iter().map(|&operand| module.shape(operand).clone()).collect();
    let wrapped = module.add_computation("async_wrapped");
    let mut inside = Cursor::end(module, &mut edits.names, wrapped);
    let parameters: Operands = (sources.iter().enumerate())
        .map(|(number, shape)| {
            let name = if number == 0 { "async_param".into() } else { format!("async_param.{number}") };
            inside.named_exactly(name).parameter(shape.clone())
        })
        .collect();
    let name: &'static str = op.opcode().into();
    let root = inside.named_exactly(name).insert_shaped(op, parameters, result.clone());
    module.computations[wrapped].root = root;
    let shape = Shape::tuple([Shape::tuple(sources), result, flag(ElementType::S32, fast)]);
    let start = Op::AsyncStart(Box::<Async>::default());
    let mut outside = edits.cursor(at);
    let start = outside.named("slice-start.fast").insert_instruction(start, operands, [wrapped], Some(shape));
    edits.slice_starts.insert(start);
    start
}

/// Makes an array an element of a loop's state. Gives which.
fn add_to_state(module: &mut Module, around: &TupleLoop, first: InstructionId, next: InstructionId) -> u32 {
    let array = module.shape(first).clone();
    let element = module.instructions[around.init].operands.len() as u32;
    module.instructions[around.init].operands.push(first);
    module.instructions[around.root].operands.push(next);
    let [body, condition] = around.states;
    for id in [around.init, around.id, body, condition, around.root] {
        let shape = with_element(module, id, array.clone());
        module.instructions[id].shape = shape;
    }
    element
}

/// The shape of a tuple with one more element.
fn with_element(module: &mut Module, id: InstructionId, element: Shape) -> ShapeId {
    let elements = module.shape(id).as_tuple().expect("the state of a loop is a tuple");
    let elements = elements.iter().cloned().chain([element]).collect();
    module.intern(Shape::Tuple(elements))
}

/// Lets a kernel read a slice where it cut it out of the whole.
fn read_slice(module: &mut Module, users: &Users, it: Use, sliced: &SlicedOperand, arrived: InstructionId) {
    let shape = module.instructions[arrived].shape;
    if sliced.slice == it.user {
        let kernel = &mut module.instructions[it.user];
        kernel.op = Op::Copy;
        kernel.operands = smallvec![arrived];
        return;
    }
    module.instructions[it.user].operands[it.operand as usize] = arrived;
    let fused = module.instructions[it.user].called[0];
    let parameter = module.computations[fused].parameters[it.operand as usize];
    module.instructions[parameter].shape = shape;
    let is_needed = module.computations[fused].root == sliced.slice
        || !module.instructions[sliced.slice].control_predecessors.is_empty();
    if is_needed {
        let slice = &mut module.instructions[sliced.slice];
        slice.op = Op::Copy;
        slice.operands = smallvec![parameter];
        return;
    }
    let readers: SmallVec<[InstructionId; 2]> = users.of(sliced.slice).into();
    for reader in readers {
        let operands = &mut module.instructions[reader].operands;
        operands
            .iter_mut()
            .filter(|operand| **operand == sliced.slice)
            .for_each(|operand| *operand = parameter);
    }
    module.computations[fused].instructions.retain(|&id| id != sliced.slice);
}
