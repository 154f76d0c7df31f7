//! Copies that make aliasing legal, and no more than needed.
//!
//! Values that must share a buffer (loop state, results of branches, operands updated in place, results that live in
//! a parameter) may not be needed at the same time. Where an order of execution exists that keeps them apart, control
//! dependencies fix that order; where none exists, a copy separates them.
//!
//! ```text
//!   body: i = gte(state), index=0           body: i = gte(state), index=0
//!         j = gte(state), index=1                 j = gte(state), index=1
//!         use = f(i)                        =>    use = f(i)
//!         n = g(i, j)                             n = g(i, j), control-predecessors={use}
//!         ROOT t = tuple(n, i)                    c = copy(i), control-predecessors={..}   (i moves to slot 1)
//!                                                 ROOT t = tuple(n, c)
//! ```
//!
//! Each computation is treated after those it calls. Within one, *classes* are values that share a buffer there;
//! every class has the instruction that first writes it. Joining an older class with a newer one asks that every
//! reader of the older runs before the first writer of the newer; that is possible unless such a reader depends on
//! that writer (XLA inserts all copies that might be needed and then removes them one by one in program order, see
//! its copy insertion; here a copy is inserted only when joining fails).
//!
//! Requires a flat call graph. Leaves scheduled modules alone: their order is given, and so are their copies.
//! Idempotent: what was joined once joins again without a copy. Changed: whether a copy or dependency was added.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use memplan_analysis::{CallGraph, Dataflow, InPlace, ValueId, ValueKind, dataflow, only_passes_on};
use memplan_ir::{ComputationId, Instruction, InstructionId, Module, Names, Op, Shape, ShapeIndex};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::spell_out::{spell_out_tuples, tuple_leaves};
use crate::{Context, Pass, PassError};

/// The pass; the top of this file says what it does.
pub const COPY_INSERTION: Pass =
    Pass { name: "copy-insertion", description: "insert the copies that make aliasing legal", run };

/// Most steps of reachability searches in one computation, a second or so. Beyond it a search counts as having found
/// a cycle, which costs a copy and nothing else.
const MAX_SEARCH_STEPS: usize = 100_000_000;

fn run(module: &mut Module, _: &Context<'_>) -> Result<bool, PassError> {
    if module.is_scheduled {
        return Ok(false);
    }
    let unsupported = |error: memplan_analysis::CallGraphError| PassError::Unsupported {
        pass: COPY_INSERTION.name,
        message: error.to_string(),
    };
    let graph = CallGraph::new(module).map_err(unsupported)?;
    graph.require_flat(module).map_err(unsupported)?;
    let (mut changed, mut names) = (false, Names::new(module));
    for &computation in graph.sequential() {
        changed |= spell_out_tuples(module, computation, &mut names);
    }
    let flow = dataflow(module, &graph);
    let in_place = InPlace::new(module);
    let readers = count_readers(module, &graph, &flow);
    for &computation in graph.sequential() {
        let mut separate = Separate::new(module, &mut names, &graph, &flow, &in_place, &readers, computation);
        separate.updates_in_place()?;
        separate.results()?;
        changed |= separate.finish();
    }
    if changed {
        module.compact();
    }
    Ok(changed)
}

/// Where a value is read: by how many instructions and roots, those that only hand it to a called computation aside.
fn count_readers(module: &Module, graph: &CallGraph, flow: &Dataflow) -> FxHashMap<ValueId, u32> {
    let mut counts = FxHashMap::default();
    for &computation in graph.sequential() {
        for (_, instruction) in module.instructions_of(computation) {
            if !matches!(instruction.op, Op::Call { .. } | Op::Conditional) {
                for value in values_read(flow, instruction) {
                    *counts.entry(value).or_default() += 1;
                }
            }
        }
        for position in flow.positions.of(module.computations[computation].root) {
            *counts.entry(flow.value_at(position).expect("sequential")).or_default() += 1;
        }
    }
    counts
}

/// The values that an instruction reads, each once. What is only passed on is not read.
fn values_read(flow: &Dataflow, instruction: &Instruction) -> Vec<ValueId> {
    if only_passes_on(&instruction.op) {
        return Vec::new();
    }
    let mut values: Vec<ValueId> = Vec::new();
    for &operand in &instruction.operands {
        // Copies made by this pass have no positions; they are registered as readers when they are made.
        values.extend(flow.positions.of(operand).filter_map(|position| flow.value_at(position)));
    }
    values.sort_unstable();
    values.dedup();
    values
}

/// Index into [`Separate::nodes`].
type Node = usize;

/// Index into [`Separate::classes`].
type Class = usize;

/// An instruction of the computation, copies included.
struct NodeData {
    id: InstructionId,
    /// What must run after it.
    successors: Vec<Node>,
}

/// Values that share a buffer within the computation.
struct ClassData {
    /// The instruction that writes it first; `None` for what is there from the start.
    first_writer: Option<Node>,
    /// Whether it may not be overwritten: constants, parameters that the caller keeps.
    is_read_only: bool,
    /// Everything that reads or writes one of its values.
    touched_by: Vec<Node>,
    /// Whether one of its values is returned, and so needed to the end.
    returned: u32,
    /// Values that come from outside the computation.
    outside: Vec<ValueId>,
}

/// The work on one computation.
struct Separate<'a> {
    module: &'a mut Module,
    names: &'a mut Names,
    graph: &'a CallGraph,
    flow: &'a Dataflow,
    in_place: &'a InPlace,
    readers: &'a FxHashMap<ValueId, u32>,
    /// How many of the readers of each value are in this computation.
    reads_here: FxHashMap<ValueId, u32>,
    computation: ComputationId,
    nodes: Vec<NodeData>,
    node_of: FxHashMap<InstructionId, Node>,
    classes: Vec<ClassData>,
    class_of: FxHashMap<ValueId, Class>,
    /// The class of what a copy made by this pass writes.
    class_of_copy: FxHashMap<InstructionId, Class>,
    /// Classes that were joined into others.
    joined: Vec<Class>,
    visited: Vec<u32>,
    stamp: u32,
    steps: usize,
    changed: bool,
}

impl<'a> Separate<'a> {
    fn new(
        module: &'a mut Module,
        names: &'a mut Names,
        graph: &'a CallGraph,
        flow: &'a Dataflow,
        in_place: &'a InPlace,
        readers: &'a FxHashMap<ValueId, u32>,
        computation: ComputationId,
    ) -> Separate<'a> {
        let mut separate = Separate {
            module,
            names,
            graph,
            flow,
            in_place,
            readers,
            reads_here: FxHashMap::default(),
            computation,
            nodes: Vec::new(),
            node_of: FxHashMap::default(),
            classes: Vec::new(),
            class_of: FxHashMap::default(),
            class_of_copy: FxHashMap::default(),
            joined: Vec::new(),
            visited: Vec::new(),
            stamp: 0,
            steps: 0,
            changed: false,
        };
        separate.list_nodes();
        separate.list_classes();
        separate
    }

    // ---- Setting up -----------------------------------------------------------------------------------------------

    fn list_nodes(&mut self) {
        for id in self.module.computations[self.computation].instructions.clone() {
            let node = self.add_node(id);
            let instruction = &self.module.instructions[id];
            for before in instruction.operands.iter().chain(&instruction.control_predecessors) {
                let before = self.node_of[before];
                if self.nodes[before].successors.last() != Some(&node) {
                    self.nodes[before].successors.push(node);
                }
            }
        }
    }

    fn add_node(&mut self, id: InstructionId) -> Node {
        let node = self.nodes.len();
        self.nodes.push(NodeData { id, successors: Vec::new() });
        self.node_of.insert(id, node);
        self.visited.push(0);
        node
    }

    /// One class for each value that appears in the computation, with who writes and reads it.
    fn list_classes(&mut self) {
        let is_entry = self.computation == self.module.entry;
        for node in 0..self.nodes.len() {
            let id = self.nodes[node].id;
            for position in self.flow.positions.of(id) {
                let value = self
                    .flow
                    .value_at(position)
                    .expect("every position of a sequential computation has a value");
                if self.class_of.contains_key(&value) {
                    continue;
                }
                let kind = self.flow.values[value].kind;
                let is_parameter = matches!(self.module.instructions[id].op, Op::Parameter { .. });
                let definition = self.flow.positions.instruction(self.flow.values[value].definition);
                let is_constant = matches!(self.module.instructions[definition].op, Op::Constant(_));
                // The state of a loop is the loop's own in its body and condition, but not in what those call.
                let is_own_state = kind == ValueKind::LoopPhi && self.is_loop_computation();
                let comes_from_caller = is_parameter && !is_entry && !is_own_state;
                let class = self.classes.len();
                self.classes.push(ClassData {
                    first_writer: (!is_parameter).then_some(node),
                    is_read_only: is_constant
                        || (kind == ValueKind::Parameter && !self.is_given(definition, value)),
                    touched_by: if is_parameter { Vec::new() } else { vec![node] },
                    returned: 0,
                    outside: if comes_from_caller { vec![value] } else { Vec::new() },
                });
                self.joined.push(class);
                self.class_of.insert(value, class);
            }
            for value in values_read(self.flow, &self.module.instructions[id]) {
                let class = self.class_of[&value];
                self.classes[class].touched_by.push(node);
                if !matches!(self.module.instructions[id].op, Op::Call { .. } | Op::Conditional) {
                    *self.reads_here.entry(value).or_default() += 1;
                }
            }
        }
        for position in self.flow.positions.of(self.module.computations[self.computation].root) {
            let class = self.class_of[&self.flow.value_at(position).expect("sequential")];
            self.classes[class].returned += 1;
        }
    }

    /// Whether a loop runs this computation.
    fn is_loop_computation(&self) -> bool {
        let caller = self.graph.caller(self.computation);
        caller.is_some_and(|caller| self.module.instructions[caller].op == Op::While)
    }

    /// Whether the caller of the program gives a parameter up.
    fn is_given(&self, parameter: InstructionId, value: ValueId) -> bool {
        let Op::Parameter { number } = self.module.instructions[parameter].op else { return false };
        let definition = self.flow.values[value].definition;
        let at = self.flow.positions.shape_index(definition);
        let config = &self.module.config;
        config.input_output_alias.iter().any(|a| a.parameter == number && a.parameter_index == *at)
            || config.buffer_donors.iter().any(|d| d.parameter == number && d.index == *at)
    }

    // ---- Operations that overwrite an operand ---------------------------------------------------------------------

    fn updates_in_place(&mut self) -> Result<(), PassError> {
        for node in 0..self.nodes.len() {
            let id = self.nodes[node].id;
            if self.module.instructions[id].op == Op::While {
                self.enter_loop(node);
                continue;
            }
            for pair in self.in_place.must_alias(self.module, id) {
                let operand = self.module.instructions[id].operands[pair.operand as usize];
                let is_array = matches!(self.module.shape(operand), Shape::Array(_));
                let Some(result) = self.flow.find(id, &pair.output_index) else { continue };
                let Some(source) = self.flow.find(operand, &pair.operand_index) else { continue };
                let (old, new) = (self.class(source), self.class(result));
                let is_only_use = self.operands_touching(id, old) == 1;
                if is_only_use && self.join(old, new, Some(node)) {
                    continue;
                }
                if !is_array {
                    return Err(PassError::Unsupported {
                        pass: COPY_INSERTION.name,
                        message: format!(
                            "`{}` updates an element of a tuple in place while it is still needed",
                            self.module.instructions[id].name
                        ),
                    });
                }
                let copy = self.copy_for(operand, id, pair.operand as usize);
                let copied = self.class_of_copy[&copy];
                let joins = self.join(copied, new, Some(node));
                debug_assert!(joins, "a fresh copy is read by nobody else");
            }
        }
        Ok(())
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
            let Some(state) = self.flow.find(id, &index) else { continue };
            let definition = self.flow.values[state].definition;
            let changes = self.flow.values[state].kind == ValueKind::ExitPhi
                && self.flow.positions.instruction(definition) == id;
            let leaf = leaf_of(self.module, user, number);
            if !changes || !matches!(self.module.shape(leaf), Shape::Array(_)) {
                continue;
            }
            let (old, new) = (self.class_of_leaf(leaf), self.class(state));
            let n_uses = uses.entry(old).or_default();
            if *n_uses == 1 && self.join(old, new, Some(node)) {
                continue;
            }
            *n_uses -= 1;
            let copy = self.copy_for(leaf, user, number);
            let copied = self.class_of_copy[&copy];
            self.classes[copied].touched_by.push(node);
            let joins = self.join(copied, new, Some(node));
            debug_assert!(joins, "a fresh copy is read by nobody else");
        }
    }

    /// How many operands of an instruction hold values of a class.
    fn operands_touching(&self, id: InstructionId, class: Class) -> usize {
        let class = self.find(class);
        let operands = self.module.instructions[id].operands.iter();
        operands
            .filter(|&operand| match self.class_of_copy.get(operand) {
                // A copy made by this pass has no positions.
                Some(&copied) => self.find(copied) == class,
                None => {
                    let mut values = self.flow.positions.of(*operand).filter_map(|p| self.flow.value_at(p));
                    values.any(|value| self.class(value) == class)
                }
            })
            .count()
    }

    // ---- What the computation returns -----------------------------------------------------------------------------

    fn results(&mut self) -> Result<(), PassError> {
        let root = self.module.computations[self.computation].root;
        let slots = self.slots(root);
        // First every slot gets a value of its own that is written here; then each is joined with what was there.
        let mut claimed = FxHashSet::default();
        for slot in &slots {
            let class = self.find(self.class_of_leaf(self.leaf(slot)));
            let data = &self.classes[class];
            let is_kept_parameter = slot.before.is_some_and(|before| self.find(before) == class);
            let is_usable = data.first_writer.is_some() && !data.is_read_only && data.outside.is_empty();
            if !(is_usable || is_kept_parameter) || !claimed.insert(class) {
                self.copy_slot(slot);
            }
        }
        for slot in &slots {
            let Some(before) = slot.before else { continue };
            let class = self.class_of_leaf(self.leaf(slot));
            if self.find(before) == self.find(class) || self.join(before, class, None) {
                continue;
            }
            self.copy_slot(slot);
            let class = self.class_of_leaf(self.leaf(slot));
            if !self.join(before, class, None) {
                let name = &self.module.instructions[self.leaf(slot)].name;
                let message =
                    format!("the value returned as `{name}` cannot be kept apart from what it replaces");
                return Err(PassError::Unsupported { pass: COPY_INSERTION.name, message });
            }
        }
        Ok(())
    }

    /// The leaves of the root whose buffers are decided by someone else: the loop, the conditional, the caller.
    fn slots(&self, root: InstructionId) -> Vec<Slot> {
        let caller = self.graph.caller(self.computation);
        let mut slots = Vec::new();
        if !self.module.shape(root).is_tuple() {
            slots.push(Slot { user: None, leaf: root, index: ShapeIndex::root(), before: None });
        }
        for (index, tuple, number) in tuple_leaves(self.module, root) {
            let leaf = self.module.instructions[tuple].operands[number];
            slots.push(Slot { user: Some((tuple, number)), leaf, index, before: None });
        }
        slots.retain(|slot| matches!(self.module.shape(slot.leaf), Shape::Array(_)));
        let Some(caller) = caller else {
            for slot in &mut slots {
                let alias =
                    self.module.config.input_output_alias.iter().find(|a| a.output_index == slot.index);
                slot.before = alias.and_then(|alias| {
                    let parameter =
                        *self.module.entry_computation().parameters.get(alias.parameter as usize)?;
                    Some(self.class(self.flow.find(parameter, &alias.parameter_index)?))
                });
            }
            return slots;
        };
        match self.module.instructions[caller].op {
            Op::While if self.module.instructions[caller].called[0] == self.computation => {
                let state = self.module.computations[self.computation].parameters[0];
                slots.retain_mut(|slot| {
                    let value = self.flow.find(state, &slot.index).expect("a body returns what it takes");
                    let changes = self.flow.values[value].kind == ValueKind::LoopPhi
                        && self.flow.positions.instruction(self.flow.values[value].definition) == state;
                    slot.before = Some(self.class(value));
                    changes
                });
                slots
            }
            Op::Conditional => {
                slots.retain(|slot| {
                    let value = self
                        .flow
                        .find(caller, &slot.index)
                        .expect("branches return what the conditional does");
                    self.flow.values[value].kind == ValueKind::ExitPhi
                        && self.flow.positions.instruction(self.flow.values[value].definition) == caller
                });
                slots
            }
            // A loop's condition, a called or asynchronous computation: the value just flows to the caller.
            _ => Vec::new(),
        }
    }

    /// What a slot holds now.
    fn leaf(&self, slot: &Slot) -> InstructionId {
        match slot.user {
            Some((tuple, number)) => self.module.instructions[tuple].operands[number],
            None => self.module.computations[self.computation].root,
        }
    }

    /// Puts a copy of what a slot holds into it.
    fn copy_slot(&mut self, slot: &Slot) {
        let leaf = self.leaf(slot);
        let class = self.find(self.class_of_leaf(leaf));
        self.classes[class].returned -= 1;
        let copy = match slot.user {
            Some((tuple, number)) => self.copy_for(leaf, tuple, number),
            None => {
                let copy = self.add_copy(leaf);
                self.module.computations[self.computation].root = copy;
                copy
            }
        };
        let class = self.class_of_copy[&copy];
        self.classes[class].returned += 1;
    }

    // ---- Classes --------------------------------------------------------------------------------------------------

    fn find(&self, mut class: Class) -> Class {
        while self.joined[class] != class {
            class = self.joined[class];
        }
        class
    }

    fn class(&self, value: ValueId) -> Class {
        self.find(self.class_of[&value])
    }

    fn class_of_leaf(&self, leaf: InstructionId) -> Class {
        match self.class_of_copy.get(&leaf) {
            Some(&class) => self.find(class),
            None => self.class(self.flow.value_of(leaf).expect("sequential")),
        }
    }

    /// Lets `new` replace `old` in its buffer, if everything that touches `old` can run before `new` is written.
    /// `updater` is the instruction that overwrites an operand by definition, if that is the reason.
    fn join(&mut self, old: Class, new: Class, updater: Option<Node>) -> bool {
        let (old, new) = (self.find(old), self.find(new));
        if old == new {
            return true;
        }
        let Some(writer) = self.classes[new].first_writer else { return false };
        let data = &self.classes[old];
        if data.is_read_only || data.returned > 0 || !self.classes[new].outside.is_empty() {
            return false;
        }
        if !data.outside.iter().all(|&value| self.is_read_here_only(value, old)) {
            return false;
        }
        let touched_by = data.touched_by.clone();
        let overwrites_itself = updater == Some(writer);
        if touched_by.contains(&writer) && !overwrites_itself && !self.reads_before_writing(writer, old, new)
        {
            return false;
        }
        if self.reaches_any(writer, &touched_by) {
            return false;
        }
        for node in touched_by {
            if node != writer {
                self.add_order(node, writer);
            }
        }
        let absorbed = &mut self.classes[new];
        let (touched, returned) = (std::mem::take(&mut absorbed.touched_by), absorbed.returned);
        self.classes[old].touched_by.extend(touched);
        self.classes[old].returned += returned;
        self.joined[new] = old;
        true
    }

    /// Whether a value from outside is read by this computation alone.
    fn is_read_here_only(&self, value: ValueId, class: Class) -> bool {
        let is_carried = |node: &Node| {
            matches!(self.module.instructions[self.nodes[*node].id].op, Op::Call { .. } | Op::Conditional)
        };
        // Counted by value as `readers` is: the class may have other values, and copies that this pass has made.
        let here = self.reads_here.get(&value).copied().unwrap_or(0);
        let carried = self.classes[class].touched_by.iter().filter(|node| is_carried(node)).count();
        carried == 0 && self.readers.get(&value).copied().unwrap_or(0) <= here
    }

    /// Whether an instruction that reads the old class and writes the new one may do both in one buffer.
    fn reads_before_writing(&self, writer: Node, old: Class, new: Class) -> bool {
        let id = self.nodes[writer].id;
        // A copy made by this pass reads its source element by element. It has no positions.
        if self.class_of_copy.contains_key(&id) {
            return true;
        }
        let instruction = &self.module.instructions[id];
        let outputs =
            self.flow.positions.of(id).filter(|&position| {
                self.flow.value_at(position).is_some_and(|value| self.class(value) == new)
            });
        let outputs: Vec<ShapeIndex> = outputs.map(|p| self.flow.positions.shape_index(p).clone()).collect();
        let holds_old = |operand: &InstructionId| match self.class_of_copy.get(operand) {
            Some(&class) => self.find(class) == old,
            None => {
                let mut values = self.flow.positions.of(*operand).filter_map(|p| self.flow.value_at(p));
                values.any(|value| self.class(value) == old)
            }
        };
        let readers =
            (0..instruction.operands.len()).filter(|&number| holds_old(&instruction.operands[number]));
        let mut readers = readers.peekable();
        readers.peek().is_some()
            && readers.all(|number| {
                outputs.iter().all(|output| self.in_place.may_take_over(self.module, id, number, output))
            })
    }

    // ---- Order ----------------------------------------------------------------------------------------------------

    /// Whether one of `targets`, other than `from` itself, must run after `from`.
    fn reaches_any(&mut self, from: Node, targets: &[Node]) -> bool {
        self.stamp += 2;
        let (target, seen) = (self.stamp, self.stamp + 1);
        targets.iter().filter(|&&node| node != from).for_each(|&node| self.visited[node] = target);
        let mut stack = vec![from];
        self.visited[from] = seen;
        while let Some(node) = stack.pop() {
            self.steps += self.nodes[node].successors.len();
            if self.steps > MAX_SEARCH_STEPS {
                return true;
            }
            for &next in &self.nodes[node].successors {
                if self.visited[next] == target {
                    return true;
                }
                if self.visited[next] != seen {
                    self.visited[next] = seen;
                    stack.push(next);
                }
            }
        }
        false
    }

    fn add_order(&mut self, before: Node, after: Node) {
        let (first, second) = (self.nodes[before].id, self.nodes[after].id);
        let instruction = &mut self.module.instructions[second];
        if instruction.operands.contains(&first) || instruction.control_predecessors.contains(&first) {
            return;
        }
        self.changed = true;
        instruction.control_predecessors.push(first);
        self.nodes[before].successors.push(after);
    }

    // ---- Copies ---------------------------------------------------------------------------------------------------

    /// Replaces operand `number` of `user` by a copy of it.
    fn copy_for(&mut self, source: InstructionId, user: InstructionId, number: usize) -> InstructionId {
        let copy = self.add_copy(source);
        self.module.instructions[user].operands[number] = copy;
        let (from, to) = (self.node_of[&copy], self.node_of[&user]);
        self.nodes[from].successors.push(to);
        copy
    }

    fn add_copy(&mut self, source: InstructionId) -> InstructionId {
        self.changed = true;
        let original = &self.module.instructions[source];
        let name = format!("{}.copy.{}", original.name, self.module.instructions.len());
        let name = self.names.unique(&name);
        let mut copy = Instruction::new(name, original.shape, Op::Copy, [source], self.computation);
        copy.metadata = original.metadata.clone();
        let copy = self.module.add_instruction(copy);
        let node = self.add_node(copy);
        let from = self.node_of[&source];
        self.nodes[from].successors.push(node);
        let read = self.class_of_leaf(source);
        self.classes[read].touched_by.push(node);
        let class = self.classes.len();
        self.classes.push(ClassData {
            first_writer: Some(node),
            is_read_only: false,
            touched_by: vec![node],
            returned: 0,
            outside: Vec::new(),
        });
        self.joined.push(class);
        self.class_of_copy.insert(copy, class);
        copy
    }

    /// Puts the instructions into an order that keeps all dependencies.
    fn finish(self) -> bool {
        if self.changed {
            sort_topologically(self.module, self.computation);
        }
        self.changed
    }
}

/// A leaf of the root.
struct Slot {
    /// The tuple that holds it and its place there; `None` when the root is the leaf.
    user: Option<(InstructionId, usize)>,
    leaf: InstructionId,
    index: ShapeIndex,
    /// The class whose buffer the leaf must end up in.
    before: Option<Class>,
}

/// Orders the instructions of a computation by operands and control dependencies, otherwise as they stood.
fn sort_topologically(module: &mut Module, computation: ComputationId) {
    let ids = module.computations[computation].instructions.clone();
    let place: FxHashMap<InstructionId, usize> = ids.iter().enumerate().map(|(i, &id)| (id, i)).collect();
    let mut successors: Vec<Vec<usize>> = vec![Vec::new(); ids.len()];
    let mut waiting = vec![0usize; ids.len()];
    for (i, &id) in ids.iter().enumerate() {
        let instruction = &module.instructions[id];
        for before in instruction.operands.iter().chain(&instruction.control_predecessors) {
            successors[place[before]].push(i);
            waiting[i] += 1;
        }
    }
    let mut ready: BinaryHeap<Reverse<usize>> =
        (0..ids.len()).filter(|&i| waiting[i] == 0).map(Reverse).collect();
    let mut order = Vec::with_capacity(ids.len());
    while let Some(Reverse(i)) = ready.pop() {
        order.push(ids[i]);
        for &next in &successors[i] {
            waiting[next] -= 1;
            if waiting[next] == 0 {
                ready.push(Reverse(next));
            }
        }
    }
    assert_eq!(order.len(), ids.len(), "control dependencies are added only where they close no cycle");
    module.computations[computation].instructions = order;
}
