//! Classes: values that share a buffer, and whether two classes may be joined.

use memplan_analysis::ValueId;
use memplan_ir::{InstructionId, Op, ShapeIndex};

use super::{Class, Conflict, Node, NodeData, Separate};

impl Separate<'_> {
    pub(super) fn find(&self, mut class: Class) -> Class {
        while self.joined[class] != class {
            class = self.joined[class];
        }
        class
    }

    pub(super) fn class(&self, value: ValueId) -> Class {
        self.find(self.class_of[&value])
    }

    pub(super) fn class_of_leaf(&self, leaf: InstructionId) -> Class {
        match self.class_of_copy.get(&leaf) {
            Some(&class) => self.find(class),
            None => self.class(self.facts.flow.value_of(leaf).expect("sequential")),
        }
    }

    /// Makes `new` replace `old` in its buffer, if everything that touches `old` can run before `new` is written.
    /// `updater` is the instruction that overwrites an operand by definition, if that is the reason.
    pub(super) fn join(&mut self, old: Class, new: Class, updater: Option<Node>) -> Result<(), Conflict> {
        self.join_with(old, new, updater, self.facts.options.adds_order.for_a(updater.is_some()))
    }

    /// The same where control dependencies may be added, as for references to memory, which cannot be copied instead.
    pub(super) fn join_in_order(
        &mut self,
        old: Class,
        new: Class,
        updater: Option<Node>,
    ) -> Result<(), Conflict> {
        self.join_with(old, new, updater, true)
    }

    fn join_with(
        &mut self,
        old: Class,
        new: Class,
        updater: Option<Node>,
        adds_order: bool,
    ) -> Result<(), Conflict> {
        let (old, new) = (self.find(old), self.find(new));
        if old == new {
            return Ok(());
        }
        let Some(writer) = self.classes[new].first_writer else { return Err(Conflict::ComputedElsewhere) };
        let data = &self.classes[old];
        if data.is_read_only {
            return Err(Conflict::ReadOnly);
        }
        if data.returned > 0 {
            return Err(Conflict::Returned);
        }
        if !self.classes[new].outside.is_empty() {
            return Err(Conflict::ComputedElsewhere);
        }
        let is_free = |value: ValueId| self.facts.handed_back.free.contains(&(self.computation, value));
        if !data.outside.iter().all(|&value| is_free(value) || self.is_read_here_only(value, old)) {
            return Err(Conflict::ReadElsewhere);
        }
        let touched_by = self.touched_by(old);
        let overwrites_itself = updater == Some(writer);
        if touched_by.contains(&writer) && !overwrites_itself && !self.reads_before_writing(writer, old, new)
        {
            return Err(Conflict::ReadWhileOverwritten);
        }
        self.later_reader(writer, &touched_by)?;
        // A copy made by this pass runs after all that read what it overwrites.
        let is_copy = self.class_of_copy.contains_key(&self.nodes[writer].id);
        if !is_copy && !adds_order {
            self.unordered_reader(writer, &touched_by)?;
        }
        for node in touched_by {
            if node != writer {
                self.add_order(node, writer);
            }
        }
        // Nodes that touched the old values run before the writer, so a node that must run after all of them need only
        // run after those that touch the new ones, including the writer.
        let absorbed = &mut self.classes[new];
        let (touched, returned) = (std::mem::take(&mut absorbed.touched_by), absorbed.returned);
        self.classes[old].touched_by = touched;
        self.classes[old].returned += returned;
        self.joined[new] = old;
        Ok(())
    }

    /// Nodes that read or write the last value of a class, including copies made by this pass.
    pub(super) fn touched_by(&self, class: Class) -> Vec<Node> {
        let touches = |&node: &Node| {
            let NodeData { id, reads_copies, .. } = self.nodes[node];
            !reads_copies || self.operands_touching(id, class) > 0 || self.writes(id, class)
        };
        self.classes[class].touched_by.iter().copied().filter(touches).collect()
    }

    /// Whether a result of an instruction is in a class.
    pub(super) fn writes(&self, id: InstructionId, class: Class) -> bool {
        let class = self.find(class);
        let mut results =
            self.facts.flow.positions.of(id).filter_map(|position| self.facts.flow.value_at(position));
        results.any(|value| self.class(value) == class)
    }

    /// How many operands of an instruction hold values of a class.
    pub(super) fn operands_touching(&self, id: InstructionId, class: Class) -> usize {
        let class = self.find(class);
        let operands = self.module.instructions[id].operands.iter();
        operands
            .filter(|&operand| match self.class_of_copy.get(operand) {
                // A copy made by this pass has no positions.
                Some(&copied) => self.find(copied) == class,
                None => {
                    let mut values =
                        self.facts.flow.positions.of(*operand).filter_map(|p| self.facts.flow.value_at(p));
                    values.any(|value| self.class(value) == class)
                }
            })
            .count()
    }

    /// Whether a value from outside is read by this computation alone, or by a call that overwrites it.
    fn is_read_here_only(&self, value: ValueId, class: Class) -> bool {
        if self.overwritten_by_callees.contains(&value) {
            return true;
        }
        let is_carried = |node: &Node| {
            matches!(self.module.instructions[self.nodes[*node].id].op, Op::Call { .. } | Op::Conditional)
        };
        // Counted by value as `readers` is: the class may have other values, and copies that this pass has made.
        let here = self.reads_here.get(&value).copied().unwrap_or(0);
        let carried = self.classes[class].touched_by.iter().filter(|node| is_carried(node)).count();
        carried == 0 && self.facts.readers[value] <= here + self.calls_on_the_way(value)
    }

    /// How many calls and conditionals hand a value from where it is made to this computation.
    fn calls_on_the_way(&self, value: ValueId) -> u32 {
        let made = self.facts.flow.positions.instruction(self.facts.flow.values[value].definition);
        let made_in = self.module.instructions[made].parent;
        let mut computation = self.computation;
        let mut calls = 0;
        while computation != made_in
            && let Some(caller) = self.facts.graph.caller(computation)
        {
            let caller = &self.module.instructions[caller];
            calls += u32::from(matches!(caller.op, Op::Call { .. } | Op::Conditional));
            computation = caller.parent;
        }
        calls
    }

    /// Whether an instruction that reads the old class and writes the new one may do both in one buffer.
    fn reads_before_writing(&self, writer: Node, old: Class, new: Class) -> bool {
        let id = self.nodes[writer].id;
        // A copy made by this pass reads its source element by element. It has no positions.
        if self.class_of_copy.contains_key(&id) {
            return true;
        }
        let instruction = &self.module.instructions[id];
        // Another of its results may be there already, if only to be thrown away.
        if self.writes(id, old) {
            return false;
        }
        let outputs = self.facts.flow.positions.of(id).filter(|&position| {
            self.facts.flow.value_at(position).is_some_and(|value| self.class(value) == new)
        });
        let outputs: Vec<ShapeIndex> =
            outputs.map(|p| self.facts.flow.positions.shape_index(p).clone()).collect();
        let holds_old = |operand: &InstructionId| match self.class_of_copy.get(operand) {
            Some(&class) => self.find(class) == old,
            None => {
                let mut values =
                    self.facts.flow.positions.of(*operand).filter_map(|p| self.facts.flow.value_at(p));
                values.any(|value| self.class(value) == old)
            }
        };
        let readers =
            (0..instruction.operands.len()).filter(|&number| holds_old(&instruction.operands[number]));
        let mut readers = readers.peekable();
        readers.peek().is_some()
            && readers.all(|number| {
                outputs
                    .iter()
                    .all(|output| self.facts.in_place.may_take_over(self.module, id, number, output))
            })
    }
}
