//! Operations that overwrite an operand: updates in place, and loops.

use memplan_analysis::{ValueId, ValueKind};
use memplan_ir::{InstructionId, Module, Op, Shape, ShapeIndex};
use memplan_rewriter::PassError;
use rustc_hash::FxHashMap;

use super::{Because, Class, Conflict, MustShare, NAME, Node, Separate};
use crate::Unsupported;
use crate::spell_out::tuple_leaves;

impl Separate<'_> {
    pub(super) fn updates_in_place(&mut self) -> Result<(), PassError> {
        let next_references = self.next_references();
        for node in 0..self.nodes.len() {
            let id = self.nodes[node].id;
            if self.module.instructions[id].op == Op::While {
                self.enter_loop(node);
                continue;
            }
            if let Op::Call { .. } = self.module.instructions[id].op {
                self.enter_call(node);
                continue;
            }
            if self.module.instructions[id].op == Op::Conditional {
                self.enter_conditional(node);
                continue;
            }
            let mut replaced_by: FxHashMap<(u32, ShapeIndex), ValueId> = FxHashMap::default();
            for pair in self.facts.in_place.must_alias(self.module, id) {
                let Some(result) = self.facts.flow.find(id, &pair.output_index) else { continue };
                let replaced = (pair.operand, pair.operand_index.clone());
                // A start's declaration about its operand may repeat its result.
                if replaced_by.insert(replaced, result).is_some_and(|other| other != result) {
                    let source =
                        Unsupported::SharedOperand { instruction: self.name(id), operand: pair.operand };
                    return Err(PassError::failed(NAME, source));
                }
                let operand = self.module.instructions[id].operands[pair.operand as usize];
                let is_array = matches!(self.module.shape(operand), Shape::Array(_));
                let Some(source) = self.facts.flow.find(operand, &pair.operand_index) else { continue };
                let (old, new) = (self.class(source), self.class(result));
                let is_only_use = self.operands_touching(id, old) == 1;
                let is_state = self.classes[old].first_writer.is_none();
                let is_other_state = |&memory: &ValueId| is_state && self.class(memory) != old;
                let joined = match (is_only_use, self.is_promised_elsewhere(old, new)) {
                    (false, _) => Err(Conflict::InTwoPlaces),
                    (_, true) => Err(Conflict::Promised),
                    // A reference cannot be copied when the loop asks for it in other memory: the array is, before.
                    _ if next_references.get(&result).is_some_and(is_other_state) => {
                        Err(Conflict::ComputedElsewhere)
                    }
                    _ => self.join(old, new, Some(node)),
                };
                let Err(conflict) = joined else { continue };
                let sharing = MustShare::Update { by: self.name(id), operand: pair.operand };
                let because = Because { sharing, conflict };
                let (leaf, user, number) = match is_array {
                    true => (operand, id, pair.operand as usize),
                    // Tuples that are overwritten were made explicit.
                    false => {
                        let leaves = tuple_leaves(self.module, operand);
                        let Some((_, tuple, number)) =
                            leaves.into_iter().find(|(index, ..)| *index == pair.operand_index)
                        else {
                            continue;
                        };
                        (self.module.instructions[tuple].operands[number], tuple, number)
                    }
                };
                let copy = self.copy_for(leaf, user, number, because);
                let copied = self.class_of_copy[&copy];
                self.classes[copied].touched_by.push(node);
                let joins = self.join(copied, new, Some(node)).is_ok();
                debug_assert!(joins, "a fresh copy is read by nobody else");
            }
        }
        Ok(())
    }

    /// Whether the start of this computation declares that another class takes the place of one.
    fn is_promised_elsewhere(&self, old: Class, new: Class) -> bool {
        self.promised.iter().any(|&(value, result)| {
            self.class(value) == old && self.class_of.get(&result).is_some_and(|&it| self.find(it) != new)
        })
    }

    /// The references that a loop's body passes to the next iteration, for references made of arrays, and the state
    /// whose memory each must be in.
    fn next_references(&self) -> FxHashMap<ValueId, ValueId> {
        let mut memory_of = FxHashMap::default();
        if !self.is_loop_computation() {
            return memory_of;
        }
        let computation = &self.module.computations[self.computation];
        for (index, shape) in self.module.shape(computation.root).leaves() {
            let next = self.facts.flow.find(computation.root, &index);
            let memory =
                computation.parameters.first().and_then(|&state| self.facts.flow.find(state, &index));
            if let (Shape::Buffer(_), Some(next), Some(memory)) = (shape, next, memory)
                && let Some(made) = self.made_of_array(next)
            {
                memory_of.insert(made, memory);
            }
        }
        memory_of
    }

    /// The reference that calls and loops of this computation have overwritten to give another one, as it was made of an
    /// array.
    pub(super) fn made_of_array(&self, mut reference: ValueId) -> Option<ValueId> {
        loop {
            let at = self.facts.flow.values[reference].definition;
            let (id, index) =
                (self.facts.flow.positions.instruction(at), self.facts.flow.positions.shape_index(at));
            let instruction = &self.module.instructions[id];
            let before = match instruction.op {
                Op::While if instruction.parent == self.computation => {
                    self.facts.flow.find(instruction.operands[0], index)?
                }
                _ => {
                    let pairs = self.facts.in_place.must_alias(self.module, id);
                    let pair = pairs.into_iter().find(|pair| pair.output_index == *index)?;
                    // A copy made by this pass has no positions, and is of an array.
                    if self.class_of_copy.contains_key(&instruction.operands[pair.operand as usize]) {
                        return Some(reference);
                    }
                    self.facts.flow.find(instruction.operands[pair.operand as usize], &pair.operand_index)?
                }
            };
            if matches!(
                self.facts.flow.positions.part(self.module, self.facts.flow.values[before].definition),
                Shape::Array(_)
            ) {
                return Some(reference);
            }
            reference = before;
        }
    }

    /// The values that a call overwrites were decided when the called computation was processed: they have no other
    /// readers.
    fn enter_call(&mut self, node: Node) {
        let called = self.module.instructions[self.nodes[node].id].called[0];
        for (old, new) in self.overwritten.get(&called).cloned().unwrap_or_default() {
            self.overwritten_by_callees.insert(old);
            let joins = self.join(self.class(old), self.class(new), Some(node)).is_ok();
            debug_assert!(joins, "nobody but the call reads what it overwrites");
        }
    }

    /// The operands that a conditional hands back were decided before: what else reads them runs before it.
    fn enter_conditional(&mut self, node: Node) {
        for position in self.facts.flow.positions.of(self.nodes[node].id) {
            let result = self.facts.flow.value_at(position).expect("sequential");
            // Every branch may return the result of a conditional before.
            let is_new = self.facts.flow.values[result].definition == position;
            if let Some(&operand) = self.facts.handed_back.operand_of.get(&result).filter(|_| is_new) {
                // What the operand was written over is read by nobody any more.
                let (old, new) = (self.class(operand), self.class(result));
                self.overwritten_by_callees.extend(&self.classes[old].outside);
                let joins = self.join_in_order(old, new, Some(node));
                debug_assert!(joins.is_ok(), "nothing needs what a conditional may overwrite: {joins:?}");
            }
        }
    }

    /// The caller's values whose memory a called computation uses for its results, with those results.
    pub(super) fn overwritten_for_caller(&self) -> Vec<(ValueId, ValueId)> {
        let mut overwritten = Vec::new();
        let caller =
            self.facts.graph.caller(self.computation).map(|caller| &self.module.instructions[caller].op);
        if !matches!(caller, Some(Op::Call { .. })) {
            return overwritten;
        }
        for position in self.facts.flow.positions.of(self.module.computations[self.computation].root) {
            let value = self.facts.flow.value_at(position).expect("sequential");
            let outside = &self.classes[self.class(value)].outside;
            overwritten.extend(outside.iter().filter(|&&old| old != value).map(|&old| (old, value)));
        }
        overwritten
    }

    /// The initial state of a loop is overwritten by it, where the loop changes it.
    fn enter_loop(&mut self, node: Node) {
        let id = self.nodes[node].id;
        let init = self.module.instructions[id].operands[0];
        let mut leaves = tuple_leaves(self.module, init);
        if matches!(self.module.shape(init), Shape::Array(_)) {
            leaves.push((ShapeIndex::root(), id, 0));
        }
        let leaf_of =
            |module: &Module, user: InstructionId, number: usize| module.instructions[user].operands[number];
        // The same value in two elements of the state would be overwritten while the other is still needed.
        let mut uses: FxHashMap<Class, u32> = FxHashMap::default();
        for &(_, user, number) in &leaves {
            *uses.entry(self.class_of_leaf(leaf_of(self.module, user, number))).or_default() += 1;
        }
        for (index, user, number) in leaves {
            let Some(state) = self.facts.flow.find(id, &index) else { continue };
            let definition = self.facts.flow.values[state].definition;
            let changes = self.facts.flow.values[state].kind == ValueKind::ExitPhi
                && self.facts.flow.positions.instruction(definition) == id;
            let leaf = leaf_of(self.module, user, number);
            if !changes {
                continue;
            }
            let (old, new) = (self.class_of_leaf(leaf), self.class(state));
            match self.module.shape(leaf) {
                Shape::Array(_) => {}
                // The loop's result is in the memory of the reference, whoever owns that. A reference has one user and
                // cannot be a copy, so there is nothing to do if this fails.
                Shape::Buffer(_) => {
                    _ = self.join(old, new, Some(node));
                    continue;
                }
                _ => continue,
            }
            let n_uses = uses.entry(old).or_default();
            let joined = match *n_uses {
                1 if self.is_promised_elsewhere(old, new) => Err(Conflict::Promised),
                1 => self.join(old, new, Some(node)),
                _ => Err(Conflict::InTwoPlaces),
            };
            let Err(conflict) = joined else { continue };
            *n_uses -= 1;
            let sharing = MustShare::LoopState { of: self.name(id), index };
            let copy = self.copy_for(leaf, user, number, Because { sharing, conflict });
            let copied = self.class_of_copy[&copy];
            self.classes[copied].touched_by.push(node);
            let joins = self.join(copied, new, Some(node)).is_ok();
            debug_assert!(joins, "a fresh copy is read by nobody else");
        }
    }
}
