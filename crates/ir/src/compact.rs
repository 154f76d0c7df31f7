//! Drops unreachable parts of a module, and renumbers the rest.

use cranelift_entity::{EntityRef, EntitySet, PrimaryMap, SecondaryMap, packed_option::PackedOption};

use crate::{ComputationId, Instruction, InstructionId, Module, Op};

impl Module {
    /// Drops computations that the entry does not reach, and instructions that no computation lists. Instruction ids
    /// then follow the text, and callees precede their callers, otherwise in the order they had. Linear.
    pub fn compact(&mut self) {
        let order = reachable_callees_first(self);
        if order.len() < self.computations.len() || !order.is_sorted() {
            renumber_computations(self, &order);
        }
        renumber_instructions(self);
    }
}

/// The old order, with callees that follow their first caller moved to right before it.
fn reachable_callees_first(module: &Module) -> Vec<ComputationId> {
    let callees: SecondaryMap<ComputationId, Vec<ComputationId>> = callees(module);
    let reachable = reachable(module.entry, &callees);
    let mut order = Vec::with_capacity(module.computations.len());
    let mut entered = EntitySet::new();
    // Each computation on the stack with the callees it has yet to visit.
    let mut stack: Vec<(ComputationId, std::slice::Iter<'_, ComputationId>)> = Vec::new();
    for next in module.computations.keys().filter(|&id| reachable.contains(id)) {
        if entered.insert(next) {
            stack.push((next, callees[next].iter()));
        }
        while let Some((computation, rest)) = stack.last_mut() {
            match rest.next() {
                Some(&callee) if !entered.insert(callee) => {}
                Some(&callee) => stack.push((callee, callees[callee].iter())),
                None => {
                    order.push(*computation);
                    stack.pop();
                }
            }
        }
    }
    order
}

fn reachable(
    entry: ComputationId,
    callees: &SecondaryMap<ComputationId, Vec<ComputationId>>,
) -> EntitySet<ComputationId> {
    let mut reachable = EntitySet::new();
    let mut open = vec![entry];
    while let Some(computation) = open.pop() {
        if reachable.insert(computation) {
            open.extend(&callees[computation]);
        }
    }
    reachable
}

fn callees(module: &Module) -> SecondaryMap<ComputationId, Vec<ComputationId>> {
    let mut callees: SecondaryMap<ComputationId, Vec<ComputationId>> = SecondaryMap::new();
    for (id, computation) in &module.computations {
        let called = computation.instructions.iter().flat_map(|&id| &module.instructions[id].called);
        callees[id] = called.copied().collect();
    }
    callees
}

fn renumber_computations(module: &mut Module, order: &[ComputationId]) {
    let mut new_id: SecondaryMap<ComputationId, PackedOption<ComputationId>> = SecondaryMap::new();
    for (i, &old) in order.iter().enumerate() {
        new_id[old] = ComputationId::new(i).into();
    }
    let renumber = |id: ComputationId| new_id[id].expect("callees of reachable computations are reachable");
    let old = std::mem::replace(&mut module.computations, PrimaryMap::with_capacity(order.len()));
    let mut old: Vec<_> = old.into_iter().map(|(_, computation)| Some(computation)).collect();
    for &id in order {
        let computation = old[id.index()].take().expect("an order has each computation once");
        let parent = ComputationId::new(module.computations.len());
        for &instruction in &computation.instructions {
            let instruction = &mut module.instructions[instruction];
            instruction.parent = parent;
            instruction.called.iter_mut().for_each(|callee| *callee = renumber(*callee));
        }
        module.computations.push(computation);
    }
    module.entry = renumber(module.entry);
}

fn renumber_instructions(module: &mut Module) {
    let mut new_id: SecondaryMap<InstructionId, PackedOption<InstructionId>> =
        SecondaryMap::with_capacity(module.instructions.len());
    let ids = module.computations.values().flat_map(|computation| &computation.instructions);
    let (mut n, mut is_as_before) = (0, true);
    for &old in ids {
        assert!(new_id[old].is_none(), "an instruction stands in one place");
        new_id[old] = InstructionId::new(n).into();
        is_as_before &= old.index() == n;
        n += 1;
    }
    if is_as_before && n == module.instructions.len() {
        return;
    }
    let renumber =
        |id: InstructionId| new_id[id].expect("what an instruction refers to stands in its computation");
    let mut old = std::mem::replace(&mut module.instructions, PrimaryMap::with_capacity(n));
    for computation in module.computations.values_mut() {
        for id in &mut computation.instructions {
            let mut instruction = old[*id].take();
            instruction.operands.iter_mut().for_each(|operand| *operand = renumber(*operand));
            instruction.control_predecessors.iter_mut().for_each(|before| *before = renumber(*before));
            *id = module.instructions.push(instruction);
        }
        computation.root = renumber(computation.root);
        computation.parameters.iter_mut().for_each(|parameter| *parameter = renumber(*parameter));
    }
}

impl Instruction {
    /// Leaves one without a name and without anything on the heap.
    fn take(&mut self) -> Instruction {
        std::mem::replace(self, Instruction::new("", self.shape, Op::Tuple, [], self.parent))
    }
}
