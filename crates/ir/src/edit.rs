//! Editing a module: how passes change instructions and put them in order.
//!
//! A [`Cursor`](crate::Cursor) makes new instructions. To insert instructions beside related ones throughout a
//! computation, visit it with [`Module::edit_in_order`]; [`Module::replace_operand`] changes uses.

use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

use crate::{ComputationId, Instruction, InstructionId, Module, Op, Operands, Shape};

impl Module {
    /// Appends an instruction to the computation that it names as its parent.
    pub fn add_instruction(&mut self, instruction: Instruction) -> InstructionId {
        let parent = instruction.parent;
        let id = self.instructions.push(instruction);
        self.computations[parent].instructions.push(id);
        id
    }

    /// Appends the next parameter of a computation. The name must be new.
    pub fn add_parameter(
        &mut self,
        computation: ComputationId,
        name: impl Into<Box<str>>,
        shape: Shape,
    ) -> InstructionId {
        let number = self.computations[computation].parameters.len() as u32;
        let shape = self.intern(shape);
        let id =
            self.add_instruction(Instruction::new(name, shape, Op::Parameter { number }, [], computation));
        self.computations[computation].parameters.push(id);
        id
    }

    /// Appends a copy of an instruction of another module, with operands of this one. It has the same name and notes, calls
    /// nothing yet, and waits for nothing.
    pub fn add_copy(
        &mut self,
        from: &Module,
        id: InstructionId,
        parent: ComputationId,
        operands: impl IntoIterator<Item = InstructionId>,
    ) -> InstructionId {
        let shape = self.intern(from.shape(id).clone());
        let operands = operands.into_iter().collect();
        let original = &from.instructions[id];
        self.add_instruction(Instruction {
            name: original.name.clone(),
            shape,
            op: original.op.clone(),
            operands,
            called: SmallVec::new(),
            parent,
            control_predecessors: Vec::new(),
            metadata: original.metadata.clone(),
            backend_config: original.backend_config.clone(),
            extras: original.extras.clone(),
        })
    }

    /// Appends a copy of a computation of another module under the same name; `callee` maps the computations that it
    /// calls. Linear in the computation.
    ///
    /// # Panics
    /// When an operand does not precede its user.
    pub fn add_copy_of_computation(
        &mut self,
        from: &Module,
        original: ComputationId,
        callee: impl Fn(ComputationId) -> ComputationId,
    ) -> ComputationId {
        let old = &from.computations[original];
        let copy = self.add_computation(old.name.clone());
        let mut new_id: FxHashMap<InstructionId, InstructionId> = FxHashMap::default();
        for &id in &old.instructions {
            let instruction = &from.instructions[id];
            let operands: Operands = instruction.operands.iter().map(|operand| new_id[operand]).collect();
            let new = self.add_copy(from, id, copy, operands);
            self.instructions[new].called = instruction.called.iter().map(|&id| callee(id)).collect();
            new_id.insert(id, new);
        }
        self.computations[copy].parameters = old.parameters.iter().map(|id| new_id[id]).collect();
        self.computations[copy].root = new_id[&old.root];
        copy
    }

    /// Visits the instructions of a computation in order, and rebuilds its list: a visit lists its instruction with
    /// [`Module::list`]. Instructions added before that precede it, those added afterwards follow it, and an unlisted
    /// instruction is removed. Linear, besides the time of visits.
    pub fn edit_in_order(
        &mut self,
        computation: ComputationId,
        mut visit: impl FnMut(&mut Module, InstructionId),
    ) {
        for id in std::mem::take(&mut self.computations[computation].instructions) {
            visit(self, id);
        }
    }

    /// Lists an instruction last in its computation.
    pub fn list(&mut self, id: InstructionId) {
        let parent = self.instructions[id].parent;
        self.computations[parent].instructions.push(id);
    }

    /// Gives an instruction another shape.
    pub fn set_shape(&mut self, id: InstructionId, shape: Shape) {
        self.instructions[id].shape = self.intern(shape);
    }

    /// Gives a tuple the shape that follows from its operands.
    pub fn reshape_tuple(&mut self, tuple: InstructionId) {
        let operands = self.instructions[tuple].operands.iter();
        let shape = Shape::Tuple(operands.map(|&operand| self.shape(operand).clone()).collect());
        self.set_shape(tuple, shape);
    }

    /// Lets an instruction read something else wherever it reads `old`.
    pub fn replace_operand(&mut self, user: InstructionId, old: InstructionId, new: InstructionId) {
        let operands = self.instructions[user].operands.iter_mut();
        operands.filter(|operand| **operand == old).for_each(|operand| *operand = new);
    }

    /// Appends a copy of a computation under a unique name; both copies share their callees. Linear in the computation.
    ///
    /// # Panics
    /// When an operand does not precede its user.
    pub fn clone_computation(&mut self, original: ComputationId, name: impl Into<Box<str>>) -> ComputationId {
        let clone = self.add_computation(name);
        let mut new_id: FxHashMap<InstructionId, InstructionId> = FxHashMap::default();
        for id in self.computations[original].instructions.clone() {
            let mut instruction = self.instructions[id].clone();
            instruction.parent = clone;
            instruction.operands.iter_mut().for_each(|operand| *operand = new_id[operand]);
            instruction.control_predecessors.iter_mut().for_each(|before| *before = new_id[before]);
            new_id.insert(id, self.add_instruction(instruction));
        }
        let original = &self.computations[original];
        let root = new_id[&original.root];
        let parameters = original.parameters.iter().map(|parameter| new_id[parameter]).collect();
        let execution_thread = original.execution_thread.clone();
        let copy = &mut self.computations[clone];
        (copy.root, copy.parameters, copy.execution_thread) = (root, parameters, execution_thread);
        clone
    }

    /// Orders the instructions of a computation, and their unlisted operands, such that operands and control
    /// predecessors precede their users, keeping the old order where possible. Linear.
    ///
    /// # Panics
    /// When instructions wait for each other.
    pub fn put_operands_first(&mut self, computation: ComputationId) {
        let listed = std::mem::take(&mut self.computations[computation].instructions);
        let mut placed: FxHashSet<InstructionId> = FxHashSet::default();
        let mut order = Vec::with_capacity(listed.len());
        // Each instruction on the stack with the number of operands that have been looked at: each waits for the next one.
        let mut stack: Vec<(InstructionId, usize)> = Vec::new();
        let mut waiting: FxHashSet<InstructionId> = FxHashSet::default();
        for id in listed {
            stack.push((id, 0));
            while let Some((id, next)) = stack.pop() {
                if placed.contains(&id) {
                    continue;
                }
                let instruction = &self.instructions[id];
                let mut before = instruction.operands.iter().chain(&instruction.control_predecessors);
                match before.nth(next) {
                    Some(&operand) => {
                        if next == 0 {
                            waiting.insert(id);
                        }
                        stack.push((id, next + 1));
                        if !placed.contains(&operand) {
                            let name = &self.instructions[operand].name;
                            assert!(!waiting.contains(&operand), "`{name}` waits for itself");
                            stack.push((operand, 0));
                        }
                    }
                    None => {
                        waiting.remove(&id);
                        placed.insert(id);
                        order.push(id);
                    }
                }
            }
        }
        self.computations[computation].instructions = order;
    }
}
