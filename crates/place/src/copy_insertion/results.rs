//! The results of a computation.

use memplan_analysis::ValueKind;
use memplan_ir::{InputOutputAlias, InstructionId, Op, Shape, ShapeIndex};
use memplan_rewriter::PassError;
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::smallvec;

use super::{AddsOrder, Because, Class, Conflict, MustShare, NAME, Separate};
use crate::Unsupported;
use crate::spell_out::tuple_leaves;

/// A leaf of the root.
struct Slot {
    /// The tuple that holds it and its place there; `None` when the root is the leaf.
    user: Option<(InstructionId, usize)>,
    leaf: InstructionId,
    index: ShapeIndex,
    /// The class whose buffer the leaf must end up in.
    before: Option<Class>,
}

impl Separate<'_> {
    pub(super) fn results(&mut self) -> Result<(), PassError> {
        let root = self.module.computations[self.computation].root;
        let slots = self.slots(root);
        // First every slot gets a new value that is written here; then each is joined with the old value.
        let mut claimed = FxHashSet::default();
        for slot in &slots {
            let class = self.find(self.class_of_leaf(self.leaf(slot)));
            let data = &self.classes[class];
            let is_kept_parameter = slot.before.is_some_and(|before| self.find(before) == class);
            let conflict = match data {
                _ if is_kept_parameter => None,
                data if data.first_writer.is_none() || !data.outside.is_empty() => {
                    Some(Conflict::ComputedElsewhere)
                }
                data if data.is_read_only => Some(Conflict::ReadOnly),
                _ => None,
            };
            let conflict = conflict.or_else(|| (!claimed.insert(class)).then_some(Conflict::InTwoPlaces));
            if let Some(conflict) = conflict {
                self.copy_slot(slot, conflict)?;
            }
        }
        // References first: they cannot be copied, and a copy of an array waits for the readers of its destination.
        let (references, arrays): (Vec<&Slot>, _) = slots.iter().partition(|slot| self.is_reference(slot));
        for slot in references.into_iter().chain(arrays) {
            let Some(before) = slot.before else { continue };
            let class = self.class_of_leaf(self.leaf(slot));
            let Err(conflict) = self.join(before, class, None) else { continue };
            match self.is_reference(slot) || self.is_read_in_any_order(before, class) {
                true => {
                    self.copy_for_readers(before, &slot.index, conflict.clone());
                    match self.join(before, class, None) {
                        Err(_) if self.is_reference(slot) => self.copy_twice(slot, conflict),
                        Err(_) => self.copy_slot(slot, conflict)?,
                        Ok(()) => {}
                    }
                }
                false => self.copy_slot(slot, conflict)?,
            }
            let class = self.class_of_leaf(self.leaf(slot));
            let joined = match self.is_reference(slot) {
                true => self.join_in_order(before, class, None),
                false => self.join(before, class, None),
            };
            if joined.is_err() {
                return Err(self.cannot_be_kept_apart(slot));
            }
        }
        Ok(())
    }

    /// Whether nothing says that a loop's body reads its state before it makes the next one. XLA looks at its copy of the
    /// state before that of the next state, and keeps the first where only an order could do without.
    fn is_read_in_any_order(&mut self, before: Class, class: Class) -> bool {
        let is_xla = self.facts.options.adds_order == AddsOrder::ForResults;
        let Some(writer) = self.classes[class].first_writer.filter(|_| is_xla && self.is_loop_computation())
        else {
            return false;
        };
        let readers = self.touched_by(before);
        !readers.contains(&writer) && self.unordered_reader(writer, &readers).is_err()
    }

    /// The leaves of the root whose buffers are decided by someone else: the loop, the conditional, the caller.
    fn slots(&self, root: InstructionId) -> Vec<Slot> {
        let caller = self.facts.graph.caller(self.computation);
        let mut slots = Vec::new();
        if !self.module.shape(root).is_tuple() {
            slots.push(Slot { user: None, leaf: root, index: ShapeIndex::root(), before: None });
        }
        for (index, tuple, number) in tuple_leaves(self.module, root) {
            let leaf = self.module.instructions[tuple].operands[number];
            slots.push(Slot { user: Some((tuple, number)), leaf, index, before: None });
        }
        // References to memory are decided about by loops alone, whose next state is in the memory of this one.
        let is_body = caller.is_some_and(|caller| {
            let instruction = &self.module.instructions[caller];
            instruction.op == Op::While && instruction.called[0] == self.computation
        });
        slots.retain(|slot| match self.module.shape(slot.leaf) {
            Shape::Array(_) => true,
            Shape::Buffer(_) => is_body,
            _ => false,
        });
        let Some(caller) = caller else {
            let aliases = &self.module.config.input_output_alias;
            let aliases: FxHashMap<&ShapeIndex, &InputOutputAlias> =
                aliases.iter().map(|alias| (&alias.output_index, alias)).collect();
            for slot in &mut slots {
                slot.before = aliases.get(&slot.index).and_then(|alias| {
                    let parameter =
                        *self.module.entry_computation().parameters.get(alias.parameter as usize)?;
                    Some(self.class(self.facts.flow.find(parameter, &alias.parameter_index)?))
                });
            }
            return slots;
        };
        match self.module.instructions[caller].op {
            Op::While if is_body => {
                let state = self.module.computations[self.computation].parameters[0];
                slots.retain_mut(|slot| {
                    let value =
                        self.facts.flow.find(state, &slot.index).expect("a body returns what it takes");
                    let changes = self.facts.flow.values[value].kind == ValueKind::LoopPhi
                        && self.facts.flow.positions.instruction(self.facts.flow.values[value].definition)
                            == state;
                    slot.before = Some(self.class(value));
                    changes
                });
                slots
            }
            Op::Conditional => {
                slots.retain_mut(|slot| {
                    let value = self
                        .facts
                        .flow
                        .find(caller, &slot.index)
                        .expect("branches return what the conditional does");
                    let operand = self.facts.handed_back.operand_of.get(&value);
                    // A branch that does not get the operand writes into its memory whenever it likes.
                    let class = operand.and_then(|operand| self.class_of.get(operand));
                    slot.before = class.map(|&class| self.find(class));
                    self.facts.flow.values[value].kind == ValueKind::ExitPhi
                        && self.facts.flow.positions.instruction(self.facts.flow.values[value].definition)
                            == caller
                });
                slots
            }
            // A loop's condition, a called or asynchronous computation: the value just flows to the caller.
            _ => Vec::new(),
        }
    }

    /// The current value of a slot.
    fn leaf(&self, slot: &Slot) -> InstructionId {
        match slot.user {
            Some((tuple, number)) => self.module.instructions[tuple].operands[number],
            None => self.module.computations[self.computation].root,
        }
    }

    fn is_reference(&self, slot: &Slot) -> bool {
        matches!(self.module.shape(slot.leaf), Shape::Buffer(_))
    }

    fn cannot_be_kept_apart(&self, slot: &Slot) -> PassError {
        PassError::failed(NAME, Unsupported::Returned(self.name(self.leaf(slot))))
    }

    /// Copies the copy behind a slot's reference once more. The first copy can then be made while its source exists,
    /// and the second one when nobody needs the overwritten value.
    fn copy_twice(&mut self, slot: &Slot, conflict: Conflict) {
        let value = self.facts.flow.value_of(self.leaf(slot)).expect("sequential");
        let Some(made) = self.made_of_array(value) else { return };
        let pin = self.facts.flow.positions.instruction(self.facts.flow.values[made].definition);
        let operands = &self.module.instructions[pin].operands;
        let is_copy = |&number: &usize| self.class_of_copy.contains_key(&operands[number]);
        let Some(number) = (0..operands.len()).find(is_copy) else { return };
        let first = operands[number];
        let because = Because { sharing: MustShare::Result { index: slot.index.clone() }, conflict };
        let memory = self.find(self.class_of_copy[&first]);
        let second = self.copy_for(first, pin, number, because);
        // The second copy is what the memory of the reference is written by, and the first is by itself.
        let apart = self.class_of_copy[&second];
        let (first_node, second_node) = (self.node_of[&first], self.node_of[&second]);
        self.class_of_copy.insert(first, apart);
        self.class_of_copy.insert(second, memory);
        self.classes[memory].first_writer = Some(second_node);
        self.classes[memory].touched_by.retain(|node| *node != first_node);
        self.classes[apart].first_writer = Some(first_node);
        self.classes[apart].touched_by = smallvec![first_node, second_node];
    }

    /// Gives readers of a class's arrays copies of them. A reference that must be in their memory cannot be a copy.
    fn copy_for_readers(&mut self, class: Class, index: &ShapeIndex, conflict: Conflict) {
        let because = Because { sharing: MustShare::Result { index: index.clone() }, conflict };
        let mut copy_of: FxHashMap<InstructionId, InstructionId> = FxHashMap::default();
        for node in self.classes[self.find(class)].touched_by.clone() {
            let id = self.nodes[node].id;
            let read = self.arrays_only_read(id, class);
            for &(number, source) in &read {
                let copy = match copy_of.get(&source) {
                    Some(&copy) => copy,
                    None => *copy_of.entry(source).or_insert(self.add_copy(source, because.clone())),
                };
                self.read_copy(copy, id, number);
                let copied = self.class_of_copy[&copy];
                self.classes[copied].touched_by.push(node);
            }
        }
    }

    /// The operands of an instruction that are arrays of a class, unless it writes the class, too.
    fn arrays_only_read(&self, id: InstructionId, class: Class) -> Vec<(usize, InstructionId)> {
        // A copy is made early, and has no positions.
        if self.class_of_copy.contains_key(&id) {
            return Vec::new();
        }
        let class = self.find(class);
        if self.writes(id, class) {
            return Vec::new();
        }
        let operands = self.module.instructions[id].operands.iter().copied().enumerate();
        let is_read = |&(_, operand): &(usize, InstructionId)| {
            matches!(self.module.shape(operand), Shape::Array(_)) && self.class_of_leaf(operand) == class
        };
        operands.filter(is_read).collect()
    }

    /// Replaces the value of a slot by a copy.
    fn copy_slot(&mut self, slot: &Slot, conflict: Conflict) -> Result<(), PassError> {
        if self.is_reference(slot) {
            return Err(self.cannot_be_kept_apart(slot));
        }
        let because = Because { sharing: MustShare::Result { index: slot.index.clone() }, conflict };
        let leaf = self.leaf(slot);
        let class = self.find(self.class_of_leaf(leaf));
        self.classes[class].returned -= 1;
        let copy = match slot.user {
            Some((tuple, number)) => self.copy_for(leaf, tuple, number, because),
            None => {
                let copy = self.add_copy(leaf, because);
                self.module.computations[self.computation].root = copy;
                copy
            }
        };
        let class = self.class_of_copy[&copy];
        self.classes[class].returned += 1;
        Ok(())
    }
}
