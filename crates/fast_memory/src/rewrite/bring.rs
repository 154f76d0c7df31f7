//! Brings parts: slices become transfers of their own, and kernels read what those bring.

use memplan_ir::{
    ArrayShape, Async, ComputationId, ElementType, Instruction, InstructionId, Module, Op, Operands, Shape,
    ShapeId, ShapeIndex, Users,
};
use rustc_hash::FxHashMap;
use smallvec::{SmallVec, smallvec};

use super::{Rewrite, Slot, flag, in_space};
use crate::choice::{Choice, Mode};
use crate::model::{Candidate, Carried, Event, Start, Use, View};
use crate::parts::Cut;
use crate::scalars::{Loop, Origin, Scope, When};

/// A part that is to be brought, and for whom.
pub(super) struct Order<'a> {
    candidate: usize,
    view: &'a View,
    /// In the order of time.
    uses: Vec<Use>,
    arrival: Arrival,
}

/// When a part is brought.
#[derive(Clone, Copy)]
enum Arrival {
    /// In the computation that needs it.
    InTime(Start),
    /// For the first iteration before the loop, for every other one in the iteration before.
    Carried { first: Start, next: Start, rotates: bool },
}

/// The parts that choices ask for.
pub(super) fn orders<'a>(candidates: &'a [Candidate], choices: &[Choice]) -> Vec<Order<'a>> {
    let mut orders = Vec::new();
    for (i, (candidate, choice)) in candidates.iter().zip(choices).enumerate().filter(|(_, (c, _))| c.is_part)
    {
        let view = &candidate.views[0];
        let uses = |events: &[Event]| events.iter().flat_map(|event| event.uses.iter().copied()).collect();
        match &choice.mode {
            Mode::Main(all) => {
                for stay in all.iter().flat_map(|stays| &stays.stays) {
                    let start = stay.start.expect("nobody writes a part to fast memory");
                    let uses = uses(&view.events[stay.first..=stay.last]);
                    orders.push(Order { candidate: i, view, uses, arrival: Arrival::InTime(start) });
                }
            }
            Mode::Carried { way } => {
                let &Carried { first, next, rotates, .. } = &candidate.carried[*way];
                let arrival = Arrival::Carried { first, next, rotates };
                orders.push(Order { candidate: i, view, uses: uses(&view.events), arrival });
            }
            _ => unreachable!("a part stays in main memory, or is brought"),
        }
    }
    orders
}

/// Gives kernels interiors of their own that are to read parts.
pub(super) fn own_interiors(module: &mut Module, orders: &[Order<'_>], names: &mut memplan_ir::Names) {
    if orders.is_empty() {
        return;
    }
    let mut callers: FxHashMap<ComputationId, u32> = FxHashMap::default();
    for &callee in module.instructions.values().flat_map(|instruction| &instruction.called) {
        *callers.entry(callee).or_default() += 1;
    }
    for kernel in orders.iter().flat_map(|order| &order.uses).map(|it| it.user) {
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

impl Rewrite<'_> {
    pub(super) fn bring(&mut self, users: &Users, order: &Order<'_>) {
        let &Order { candidate, view, ref uses, arrival } = order;
        self.candidate = candidate;
        let cuts: Vec<Cut> = uses
            .iter()
            .map(|&it| Cut::of(self.module, users, it))
            .collect::<Option<_>>()
            .expect("an interior of its own is cut as before");
        let (it, cut) = (uses[0], &cuts[0]);
        let kernel = it.user;
        let facts = self.facts;
        let brought = match arrival {
            Arrival::InTime(start) => {
                let scope = Scope { facts, kernel, around: None };
                self.transfer(view, cut, it, scope, (start, When::Now), kernel)
            }
            Arrival::Carried { first, next, rotates } => {
                let around = Loop::around(self.module, &facts.graph, users, view.computation);
                let around = around.expect("a loop stays what it is");
                let scope = Scope { facts, kernel, around: Some((&around, next.time)) };
                let first = self.transfer(view, cut, it, scope, (first, When::First), around.init);
                let next = self.transfer(view, cut, it, scope, (next, When::Next), around.root);
                self.inserted.carried += 1;
                let element = self.carry(&around, first, next);
                let shape = self.module.instructions[next].shape;
                let op = Op::GetTupleElement { index: element };
                let slot = (kernel, Slot::Fetched);
                let carried = self.push("get-tuple-element", shape, op, around.states[0], slot);
                if rotates {
                    let handed_on = self.push("copy", shape, Op::Copy, carried, slot);
                    self.is_fast(handed_on, ShapeIndex::root());
                    handed_on
                } else {
                    carried
                }
            }
        };
        self.inserted.parts += 1;
        for (&it, cut) in uses.iter().zip(&cuts) {
            read_part(self.module, users, it, cut, brought);
            self.served.insert(it);
        }
    }

    /// Cuts a part out of a view's value into fast memory, for `user`.
    fn transfer(
        &mut self,
        view: &View,
        cut: &Cut,
        it: Use,
        scope: Scope<'_>,
        (start, when): (Start, When),
        user: InstructionId,
    ) -> InstructionId {
        self.inserted.prefetches += 1;
        let slot = (start.before, Slot::Started);
        let computation = self.module.instructions[start.before].parent;
        let (id, index) = self.origin(view.value, computation);
        let source = self.element(id, &index, slot);
        let shown = self.module.instructions[it.user].operands[it.operand as usize];
        let source = self.seen_as(source, shown, slot);
        let offsets = cut.offsets(self.module).to_vec();
        let offsets = offsets.into_iter().map(|offset| self.scalar(scope, offset, when, slot));
        let operands: Operands = std::iter::once(source).chain(offsets.collect::<Operands>()).collect();
        let op = self.module.instructions[cut.slice].op.clone();
        let start = self.start_slice(op, operands, &cut.array, slot);
        self.is_fast(start, [1].into());
        let called = self.module.instructions[start].called.clone();
        let shape = self.module.intern(in_space(&cut.array, self.fast.space.0).into());
        let done = Op::AsyncDone(Box::default());
        let done = self.push("slice-done", shape, done, start, (user, Slot::Fetched));
        self.module.instructions[done].called = called;
        done
    }

    /// An array in the shape in which an operand shows it.
    fn seen_as(
        &mut self,
        source: InstructionId,
        shown: InstructionId,
        slot: (InstructionId, Slot),
    ) -> InstructionId {
        let shape = self.module.instructions[shown].shape;
        if self.module.instructions[source].shape == shape {
            return source;
        }
        self.push("bitcast", shape, Op::Bitcast, source, slot)
    }

    /// A scalar of a kernel, for some moment.
    fn scalar(
        &mut self,
        scope: Scope<'_>,
        id: InstructionId,
        when: When,
        slot: (InstructionId, Slot),
    ) -> InstructionId {
        let origin = scope.origin(self.module, id, when).expect("scalars were found to be computable");
        let (id, when) = match origin {
            Origin::Existing(id) => return id,
            Origin::Computed(id, when) => (id, when),
        };
        let key = (scope.kernel, slot.0, id, when);
        if let Some(&made) = self.scalars.get(&key) {
            return made;
        }
        let operands = self.module.instructions[id].operands.clone();
        let operands: Operands =
            operands.into_iter().map(|operand| self.scalar(scope, operand, when, slot)).collect();
        let original = &self.module.instructions[id];
        let made = Instruction {
            name: self.names.fresh(&format!("{}.fast", original.name)),
            operands,
            parent: self.module.instructions[slot.0].parent,
            control_predecessors: Vec::new(),
            ..original.clone()
        };
        let made = self.insert_at(made, slot);
        self.scalars.insert(key, made);
        made
    }

    /// `slice-start` or `dynamic-slice-start`: asynchronous, and all that its computation holds.
    fn start_slice(
        &mut self,
        op: Op,
        operands: Operands,
        array: &ArrayShape,
        slot: (InstructionId, Slot),
    ) -> InstructionId {
        let module = &mut *self.module;
        let result = Shape::Array(in_space(array, self.fast.space.0));
        let wrapped = module.add_computation("async_wrapped");
        let parameter = |(number, &operand): (usize, &InstructionId)| {
            let op = Op::Parameter { number: number as u32 };
            let name = if number == 0 { "async_param".into() } else { format!("async_param.{number}") };
            module.add_instruction(Instruction::new(
                name,
                module.instructions[operand].shape,
                op,
                [],
                wrapped,
            ))
        };
        let parameters: Vec<InstructionId> = operands.iter().enumerate().map(parameter).collect();
        let shape = module.intern(result.clone());
        let name: &'static str = op.opcode().into();
        let inner = Instruction::new(name, shape, op, parameters.iter().copied(), wrapped);
        module.computations[wrapped].root = module.add_instruction(inner);
        module.computations[wrapped].parameters = parameters;
        let sources = operands.iter().map(|&operand| module.shape(operand).clone()).collect();
        let flag = flag(ElementType::S32, self.fast);
        let shape = module.intern(Shape::tuple([Shape::Tuple(sources), result, flag]));
        let name = self.names.fresh("slice-start.fast");
        let parent = module.instructions[slot.0].parent;
        let start = Op::AsyncStart(Box::<Async>::default());
        let mut start = Instruction::new(name, shape, start, operands, parent);
        start.called = smallvec![wrapped];
        let start = self.insert_at(start, slot);
        self.wrapped.insert(start, wrapped);
        start
    }

    /// Names what transfers call. Text leaves it out, and who reads the text names it anew: in the order of the text.
    pub(super) fn name_wrapped(&mut self) {
        let computations = self.module.computations.values();
        let starts = computations.flat_map(|computation| &computation.instructions);
        let wrapped: Vec<ComputationId> =
            starts.filter_map(|start| self.wrapped.get(start).copied()).collect();
        let mut numbers = 0..;
        for computation in wrapped {
            let mut names = numbers.by_ref().map(|number| match number {
                0 => "async_wrapped".to_owned(),
                _ => format!("async_wrapped.{number}"),
            });
            let name = names.find(|name| self.names.take(name)).expect("numbers do not end");
            self.module.computations[computation].name = name.into();
        }
    }

    fn insert_at(&mut self, instruction: Instruction, slot: (InstructionId, Slot)) -> InstructionId {
        let id = self.module.instructions.push(instruction);
        self.slots.entry(slot).or_default().push(id);
        id
    }

    /// Makes an array an element of a loop's state. Gives which.
    fn carry(&mut self, around: &Loop, first: InstructionId, next: InstructionId) -> u32 {
        let module = &mut *self.module;
        let part = module.shape(first).clone();
        let element = module.instructions[around.init].operands.len() as u32;
        module.instructions[around.init].operands.push(first);
        module.instructions[around.root].operands.push(next);
        let [body, condition] = around.states;
        for id in [around.init, around.id, body, condition, around.root] {
            let shape = with_element(module, id, part.clone());
            module.instructions[id].shape = shape;
        }
        element
    }
}

/// The shape of a tuple with one more element.
fn with_element(module: &mut Module, id: InstructionId, element: Shape) -> ShapeId {
    let elements = module.shape(id).as_tuple().expect("the state of a loop is a tuple");
    let elements = elements.iter().cloned().chain([element]).collect();
    module.intern(Shape::Tuple(elements))
}

/// Lets a kernel read a part where it cut it out of the whole.
fn read_part(module: &mut Module, users: &Users, it: Use, cut: &Cut, part: InstructionId) {
    let shape = module.instructions[part].shape;
    if cut.slice == it.user {
        let kernel = &mut module.instructions[it.user];
        kernel.op = Op::Copy;
        kernel.operands = smallvec![part];
        return;
    }
    module.instructions[it.user].operands[it.operand as usize] = part;
    let fused = module.instructions[it.user].called[0];
    let parameter = module.computations[fused].parameters[it.operand as usize];
    module.instructions[parameter].shape = shape;
    let is_needed = module.computations[fused].root == cut.slice
        || !module.instructions[cut.slice].control_predecessors.is_empty();
    if is_needed {
        let slice = &mut module.instructions[cut.slice];
        slice.op = Op::Copy;
        slice.operands = smallvec![parameter];
        return;
    }
    let readers: SmallVec<[InstructionId; 2]> = users.of(cut.slice).into();
    for reader in readers {
        let operands = &mut module.instructions[reader].operands;
        operands.iter_mut().filter(|operand| **operand == cut.slice).for_each(|operand| *operand = parameter);
    }
    module.computations[fused].instructions.retain(|&id| id != cut.slice);
}
