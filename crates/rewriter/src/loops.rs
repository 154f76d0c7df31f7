//! Loops in the form that most rewrites need: the state is a tuple that is read and made element by element.

use memplan_ir::{
    ComputationId, Cursor, Insert, InstructionId, Literal, Module, Names, Op, Scalar, Shape, Users,
};
use rustc_hash::{FxHashMap, FxHashSet};

/// A `while` whose state is a tuple that is only taken apart and put together element by element.
#[derive(Clone, Debug)]
pub struct Loop {
    /// The `while`.
    pub id: InstructionId,
    /// The computation of each step.
    pub body: ComputationId,
    /// The computation that decides whether there is another step.
    pub condition: ComputationId,
    /// The tuple that it starts with.
    pub init: InstructionId,
    /// The body's parameter.
    pub state: InstructionId,
    /// The tuple that the body ends with.
    pub next: InstructionId,
    /// For each element of the state: where the body takes it out, if it does.
    pub taken: FxHashMap<u32, Vec<InstructionId>>,
    /// For each element of the state: where it is taken out after the loop.
    pub results: FxHashMap<u32, Vec<InstructionId>>,
    /// Elements that the condition reads.
    pub read_by_condition: FxHashSet<u32>,
}

impl Loop {
    /// Which element of the state an instruction of the body takes out.
    pub fn element_at(&self, module: &Module, id: InstructionId) -> Option<u32> {
        let instruction = &module.instructions[id];
        match instruction.op {
            Op::GetTupleElement { index } if instruction.operands[0] == self.state => Some(index),
            _ => None,
        }
    }

    /// The condition's parameter.
    pub fn condition_state(&self, module: &Module) -> InstructionId {
        module.computations[self.condition].parameters[0]
    }

    /// All instructions that have the shape of the state.
    pub fn tuples(&self, module: &Module) -> [InstructionId; 5] {
        [self.id, self.init, self.state, self.next, self.condition_state(module)]
    }

    /// Whether the program says how elements of the state are spread over devices.
    pub fn is_sharded(&self, module: &Module) -> bool {
        let extras = self.tuples(module).map(|id| module.instructions[id].extras.as_ref());
        extras.into_iter().flatten().any(|extras| extras.sharding.is_some())
    }

    /// Whether the next state has a value in one element and in no other.
    pub fn becomes_only(&self, module: &Module, value: InstructionId, element: u32) -> bool {
        let next = (0u32..).zip(&module.instructions[self.next].operands);
        next.filter(|&(_, &operand)| operand == value).map(|(i, _)| i).eq([element])
    }

    /// Whether each step passes an element on unchanged.
    pub fn passes_on(&self, module: &Module, element: u32) -> bool {
        let next = module.instructions[self.next].operands[element as usize];
        self.element_at(module, next) == Some(element)
    }

    /// The update that writes a part of an element in each step, if nothing else in the loop uses the element.
    pub fn only_update(&self, module: &Module, users: &Users, element: u32) -> Option<InstructionId> {
        let update = module.instructions[self.next].operands[element as usize];
        let array = *module.instructions[update].operands.first()?;
        let is_only = module.instructions[update].op == Op::DynamicUpdateSlice
            && self.element_at(module, array) == Some(element)
            && self.taken.get(&element).is_some_and(|taken| taken[..] == [array])
            && users.of(array) == [update]
            && users.of(update) == [self.next]
            && self.becomes_only(module, update, element)
            && !self.read_by_condition.contains(&element);
        is_only.then_some(update)
    }

    /// Adds an element to the state, which begins as `init` and becomes `next` in each step. Returns its number.
    /// [`Loop::set_shapes`] is to be called when all are added.
    pub fn add_element(&self, module: &mut Module, init: InstructionId, next: InstructionId) -> u32 {
        let element = module.instructions[self.init].operands.len() as u32;
        module.instructions[self.init].operands.push(init);
        module.instructions[self.next].operands.push(next);
        for id in self.tuples(module) {
            if let Some(extras) = &mut module.instructions[id].extras {
                // It says where all of the state comes from, which this no longer is.
                extras.origin = None;
            }
        }
        element
    }

    /// Gives everything with the shape of the state the shape of its initial value.
    pub fn set_shapes(&self, module: &mut Module) {
        let elements = module.instructions[self.init].operands.iter();
        let shape = Shape::Tuple(elements.map(|&element| module.shape(element).clone()).collect());
        let shape = module.intern(shape);
        for id in self.tuples(module) {
            module.instructions[id].shape = shape;
        }
    }
}

/// Edits the bodies of loops, one after the other, in a module that has no schedule. `edit` says whether it changed a body,
/// where operands may then stand behind their users; its users are those of the module before. Says whether any changed.
pub fn edit_bodies(
    module: &mut Module,
    mut edit: impl FnMut(&mut Module, &Users, &mut Names, &Loop) -> bool,
) -> bool {
    if module.is_scheduled {
        return false;
    }
    let users = Users::new(module);
    let mut names = Names::new(module);
    let mut changed = false;
    for of in loops(module, &users) {
        if edit(module, &users, &mut names, &of) {
            module.put_operands_first(of.body);
            changed = true;
        }
    }
    changed
}

/// The loops whose body and condition are theirs alone. Linear.
pub fn loops(module: &Module, users: &Users) -> Vec<Loop> {
    // Bodies that several loops share are not changed for one of them.
    let mut calls: FxHashMap<ComputationId, usize> = FxHashMap::default();
    let listed = module.computations.values().flat_map(|computation| &computation.instructions);
    for &called in listed.clone().flat_map(|&id| &module.instructions[id].called) {
        *calls.entry(called).or_default() += 1;
    }
    let is_own = |computation: &ComputationId| calls[computation] == 1;
    listed
        .filter(|&&id| module.instructions[id].op == Op::While)
        .filter(|&&id| module.instructions[id].called.iter().all(is_own))
        .filter_map(|&id| loop_of(module, users, id))
        .collect()
}

fn loop_of(module: &Module, users: &Users, id: InstructionId) -> Option<Loop> {
    let instruction = &module.instructions[id];
    let &[body, condition] = instruction.called.as_slice() else { return None };
    let &[init] = instruction.operands.as_slice() else { return None };
    let next = module.computations[body].root;
    let &[state] = module.computations[body].parameters.as_slice() else { return None };
    let &[condition_state] = module.computations[condition].parameters.as_slice() else { return None };
    let is_tuple = |id: InstructionId| module.instructions[id].op == Op::Tuple;
    let is_root = module.computations[instruction.parent].root == id;
    let has_control = !instruction.control_predecessors.is_empty();
    // The initial state is changed, too, so it must be this loop's alone.
    if !is_tuple(init) || !is_tuple(next) || is_root || has_control || users.of(init).len() != 1 {
        return None;
    }
    Some(Loop {
        id,
        body,
        condition,
        init,
        state,
        next,
        taken: elements(module, users, state)?,
        results: elements(module, users, id)?,
        read_by_condition: elements(module, users, condition_state)?.into_keys().collect(),
    })
}

/// The instructions that read elements of a tuple; `None` if it is used as a whole.
fn elements(
    module: &Module,
    users: &Users,
    tuple: InstructionId,
) -> Option<FxHashMap<u32, Vec<InstructionId>>> {
    let mut elements: FxHashMap<u32, Vec<InstructionId>> = FxHashMap::default();
    for &user in users.of(tuple) {
        let Op::GetTupleElement { index } = module.instructions[user].op else { return None };
        let is_root = module.computations[module.instructions[user].parent].root == user;
        if is_root || !users.of(user).is_empty() {
            elements.entry(index).or_default().push(user);
        }
    }
    Some(elements)
}

/// Adds an array whose elements all equal those of a constant, or of a broadcast of one.
///
/// # Panics
/// When it is no such constant.
pub fn splat(at: &mut Cursor<'_>, constant: InstructionId, shape: Shape) -> InstructionId {
    let mut constant = constant;
    while let Op::Broadcast { .. } = at.module().instructions[constant].op {
        constant = at.module().instructions[constant].operands[0];
    }
    let value = scalar(at.module(), constant).expect("a constant of equal elements");
    let value = at.constant(value.literal());
    at.fill(value, shape)
}

/// The common value of all elements of a constant.
pub fn scalar(module: &Module, id: InstructionId) -> Option<Scalar> {
    match &module.instructions[id].op {
        Op::Constant(Literal::Array(literal)) => Scalar::splat_of(literal),
        _ => None,
    }
}

/// Whether all elements of a value are those of a constant that is zero, only repeated, moved or converted.
pub fn is_zero(module: &Module, id: InstructionId) -> bool {
    let mut source = id;
    while let Op::Broadcast { .. } | Op::Reshape { .. } | Op::Copy | Op::Convert | Op::Transpose { .. } =
        module.instructions[source].op
    {
        source = module.instructions[source].operands[0];
    }
    scalar(module, source).is_some_and(|value| value.is_zero())
}
