//! The instructions that write and read each value.

use cranelift_entity::SecondaryMap;
use memplan_analysis::{LiveRange, ValueId, ValueKind};
use memplan_ir::{ComputationId, EntitySet, InstructionId, Op, Shape, Use};
use rustc_hash::{FxHashMap, FxHashSet};

use super::Context;
use crate::candidate::Event;

/// The uses of values.
#[derive(Default)]
pub(super) struct Uses {
    /// Values that pass where no operand can be replaced: they are in one memory during their whole live ranges.
    pub(super) unsplittable: EntitySet<ValueId>,
    /// Values that something needs in main memory.
    pub(super) needs_main: EntitySet<ValueId>,
    /// Values that merge with others where control flow meets.
    is_phi_input: EntitySet<ValueId>,
    /// The cost of writing each value to main memory.
    pub(super) writes: SecondaryMap<ValueId, f64>,
    /// The seconds that kernels save where they read each value in fast memory, as XLA counts them; `None` where no kernel reads it.
    pub(super) saved: SecondaryMap<ValueId, Option<f64>>,
    /// The seconds that kernels save where they write each value to fast memory, as XLA counts them.
    pub(super) saved_by_writing: SecondaryMap<ValueId, f64>,
    /// Events of each value in each computation.
    pub(super) events: FxHashMap<(ValueId, ComputationId), Vec<Event>>,
    /// Operands by which a value flows into others that share its memory.
    pub(super) merging: FxHashMap<ValueId, Vec<Use>>,
    /// Operands of the entry's root.
    pub(super) returned: FxHashMap<ValueId, Vec<Use>>,
}

impl Uses {
    /// Walks over the schedule. Kernels read the operands of `sliced` only by slices that are prefetched.
    pub(super) fn new(context: Context<'_>, sliced: &FxHashSet<Use>) -> Uses {
        let mut walk = Walk { context, sliced, uses: Uses::default(), handed_on: FxHashSet::default() };
        for &(_, input) in &context.facts.flow.phi_inputs {
            walk.uses.is_phi_input.insert(input);
        }
        walk.definitions();
        walk.uses();
        walk.uses
    }
}

/// The sources of candidates: the program, and the uses of its values.
#[derive(Clone, Copy)]
pub(super) struct Collector<'a> {
    pub(super) context: Context<'a>,
    pub(super) uses: &'a Uses,
}

/// What two accesses save together, as XLA counts it: of kernels that wait for the cores rather than for memory, only the one that
/// is closest to waiting for memory counts.
pub(super) fn together(a: f64, b: f64) -> f64 {
    if a > 0.0 && b > 0.0 { a + b } else { a.max(b) }
}

struct Walk<'a> {
    context: Context<'a>,
    sliced: &'a FxHashSet<Use>,
    uses: Uses,
    /// Control flow, and values that it passes through unchanged.
    handed_on: FxHashSet<(InstructionId, ValueId)>,
}

impl Walk<'_> {
    /// The values that instructions write, and those that must be in main memory.
    fn definitions(&mut self) {
        for (value, definition) in self.context.facts.flow.values.iter() {
            let positions = &self.context.facts.flow.positions;
            let id = positions.instruction(definition.definition);
            let instruction = &self.context.module.instructions[id];
            if definition.kind != ValueKind::Written {
                continue;
            }
            let op = &instruction.op;
            if !self.context.reaches_fast_memory(id) && !op.is_free() && !op.is_allocation() {
                self.uses.needs_main.insert(value);
                continue;
            }
            let index = positions.shape_index(definition.definition);
            let work = self.context.costs.work(id);
            let written = work.write_of(index);
            let bytes = written.map_or(0.0, |access| access.bytes.0 as f64);
            self.uses.writes[value] = self.context.benefit.of(id, bytes);
            self.uses.saved_by_writing[value] = self.context.benefit.as_xla(id, bytes);
        }
    }

    /// The readers of values, and the values that control flow passes on.
    fn uses(&mut self) {
        for &id in &self.context.facts.line.instructions {
            let instruction = &self.context.module.instructions[id];
            match &instruction.op {
                // A value that is passed on is used by its final readers.
                Op::Tuple | Op::GetTupleElement { .. } | Op::Bitcast | Op::Parameter { .. } => {}
                Op::While | Op::Conditional | Op::Call { .. } => self.pass_in(id),
                _ if self.context.reaches_fast_memory(id) => self.read(id),
                _ => self.require_main(id),
            }
            if self.context.module.computations[instruction.parent].root == id {
                self.return_from(id);
            }
        }
    }

    /// An operation whose operands have to be in main memory: one that communicates, or that is unknown.
    fn require_main(&mut self, id: InstructionId) {
        for &operand in &self.context.module.instructions[id].operands {
            for position in self.context.facts.flow.positions.of(operand) {
                if let Some(value) = self.context.facts.flow.value_at(position) {
                    self.uses.needs_main.insert(value);
                    self.uses.unsplittable.insert(value);
                }
            }
        }
    }

    /// A kernel reads its operands.
    fn read(&mut self, id: InstructionId) {
        let Context { module, facts, .. } = self.context;
        let flow = &facts.flow;
        let time = facts.line.time(id);
        let in_place = facts.in_place.must_alias(module, id);
        let overwritten: FxHashSet<u32> = in_place.iter().map(|pair| pair.operand).collect();
        for (k, &operand) in module.instructions[id].operands.iter().enumerate() {
            if module.shape(operand).is_tuple() {
                flow.positions.of(operand).filter_map(|p| flow.value_at(p)).for_each(|value| {
                    self.uses.unsplittable.insert(value);
                });
            }
            let Some(value) = flow.value_of(operand) else { continue };
            self.see(operand, value);
            let it = Use { user: id, operand: k as u32 };
            let read = self.context.benefit.as_xla_of_operand(id, it.operand);
            let saved = &mut self.uses.saved[value];
            *saved = Some(saved.map_or(read, |saved| together(saved, read)));
            let is_sliced = self.sliced.contains(&it);
            let cost = if is_sliced { 0.0 } else { self.context.benefit.of_operand(id, it.operand) };
            let merges = overwritten.contains(&it.operand);
            if merges {
                self.uses.merging.entry(value).or_default().push(it);
            }
            let range = LiveRange { start: time, end: time + 1 };
            // The overwritten operand is where the result is, and a slice is cut out of main memory.
            let fast = if merges || is_sliced { None } else { Some(0.0) };
            self.add(value, id, Event::new(range, cost, fast, it));
        }
    }

    /// Control flow passes its operands into computations.
    fn pass_in(&mut self, id: InstructionId) {
        let Context { module, facts, .. } = self.context;
        let flow = &facts.flow;
        let instruction = &module.instructions[id];
        for (k, &operand) in instruction.operands.iter().enumerate() {
            if instruction.op == Op::Conditional && k == 0 {
                continue;
            }
            let given = &module.instructions[operand];
            let edges: Vec<(Use, InstructionId)> = match (&given.op, module.shape(operand)) {
                (_, Shape::Array(_)) => vec![(Use { user: id, operand: k as u32 }, operand)],
                (Op::Tuple, _) if self.context.users.of(operand).len() == 1 => {
                    let elements = given.operands.iter().enumerate();
                    elements.map(|(j, &e)| (Use { user: operand, operand: j as u32 }, e)).collect()
                }
                _ => Vec::new(),
            };
            // A value can only be replaced where a single operand shows it.
            let replaceable = edges.iter().filter(|(_, e)| module.shape(*e).as_array().is_some());
            let shown: FxHashSet<ValueId> =
                replaceable.filter_map(|(_, element)| flow.value_of(*element)).collect();
            for value in flow.positions.of(operand).filter_map(|p| flow.value_at(p)) {
                if !shown.contains(&value) {
                    self.uses.unsplittable.insert(value);
                }
            }
            let begin = facts.line.begin(id).min(facts.line.time(operand));
            let range = LiveRange { start: begin, end: facts.line.time(id) + 1 };
            for (it, element) in edges {
                let Some(value) = flow.value_of(element) else { continue };
                self.see(element, value);
                if self.is_merged_by(id, k, it, value) {
                    self.uses.merging.entry(value).or_default().push(it);
                    self.add(value, id, Event::new(range, 0.0, None, it));
                } else {
                    self.handed_on.insert((id, value));
                    self.add(value, id, Event::new(range, 0.0, Some(0.0), it));
                }
            }
        }
    }

    /// An operand with a value. Behind control flow that passes the value through, the operand before the control flow
    /// counts: a use elsewhere has no operand to replace.
    fn see(&mut self, mut operand: InstructionId, value: ValueId) {
        let module = self.context.module;
        while matches!(module.instructions[operand].op, Op::GetTupleElement { .. } | Op::Bitcast) {
            operand = module.instructions[operand].operands[0];
        }
        if self.handed_on.contains(&(operand, value)) {
            self.uses.unsplittable.insert(value);
        }
    }

    /// Whether control flow merges an operand with other values: the computation sees another value than comes in, or
    /// the value comes out merged.
    fn is_merged_by(&self, id: InstructionId, k: usize, it: Use, value: ValueId) -> bool {
        let Context { module, facts, .. } = self.context;
        let flow = &facts.flow;
        let called = &module.instructions[id].called;
        let callee = match module.instructions[id].op {
            Op::While | Op::Call { .. } => called[0],
            _ => called[k - 1],
        };
        let parameters = &module.computations[callee].parameters;
        let parameter = match module.instructions[id].op {
            Op::Call { .. } => parameters[k],
            _ => parameters[0],
        };
        let mut positions = flow.positions.of(parameter);
        let at = if it.user == id {
            positions.next()
        } else {
            flow.positions.find(parameter, &[it.operand].into())
        };
        let is_conditional = module.instructions[id].op == Op::Conditional;
        at.and_then(|p| flow.value_at(p)) != Some(value)
            || is_conditional && self.uses.is_phi_input.contains(value)
    }

    /// Results of the entry are in main memory at the end. Results of other computations either merge with their
    /// callers' values, or are passed on unchanged.
    fn return_from(&mut self, root: InstructionId) {
        let Context { module, facts, .. } = self.context;
        let flow = &facts.flow;
        let computation = module.instructions[root].parent;
        let is_entry = computation == module.entry;
        let is_tuple = module.instructions[root].op == Op::Tuple;
        if !is_entry {
            let caller = facts.graph.caller(computation);
            if caller.is_some_and(|id| matches!(module.instructions[id].op, Op::Call { .. })) {
                for value in flow.positions.of(root).filter_map(|p| flow.value_at(p)) {
                    self.uses.unsplittable.insert(value);
                }
            }
            return;
        }
        let (time, end) = (facts.line.time(root), facts.line.end());
        for position in flow.positions.of(root) {
            let Some(value) = flow.value_at(position) else { continue };
            match *flow.positions.shape_index(position).0.as_slice() {
                [j] if is_tuple => {
                    self.see(module.instructions[root].operands[j as usize], value);
                    let it = Use { user: root, operand: j };
                    self.uses.returned.entry(value).or_default().push(it);
                    let event = Event::new(LiveRange { start: time, end }, 0.0, None, it);
                    self.add(value, root, event);
                }
                _ => {
                    self.uses.unsplittable.insert(value);
                    self.uses.needs_main.insert(value);
                }
            }
        }
    }

    fn add(&mut self, value: ValueId, user: InstructionId, event: Event) {
        let computation = self.context.module.instructions[user].parent;
        let events = self.uses.events.entry((value, computation)).or_default();
        // Several operands of one instruction are one event.
        match events.last_mut() {
            Some(last) if last.range.end == event.range.end => {
                last.main += event.main;
                last.range.start = last.range.start.min(event.range.start);
                last.fast = last.fast.zip(event.fast).map(|(a, b)| a + b);
                last.uses.extend(event.uses);
            }
            _ => events.push(event),
        }
    }
}
