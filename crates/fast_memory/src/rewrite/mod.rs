//! Makes a module of the choices: transfers are instructions, and layouts name the memory.
//!
//! A copy into fast memory starts before one instruction and is done before the first that needs it; whatever it serves
//! uses its result instead. What is written to fast memory needs no other instruction; what has to be in main memory
//! later is copied out right after it is written. Parts come by transfers that cut them out (`bring`). In the end, every value that lives in fast memory gets `S(n)`
//! wherever it appears: the dataflow of the rewritten module says where that is.

mod bring;

use cranelift_entity::SecondaryMap;
use indexmap::IndexMap;
use memplan_analysis::{CallGraph, CallGraphError, Facts, ValueId, dataflow};
use memplan_ir::{
    ArrayShape, ComputationId, ElementType, Instruction, InstructionId, Layout, Module, Names, Op, Position,
    Shape, ShapeId, ShapeIndex, Users,
};
use memplan_memory::FastMemory;
use rustc_hash::{FxBuildHasher, FxHashMap, FxHashSet};

use super::choice::{Choice, Mode, Stays};
use super::model::{Candidate, Event, Start, Use, View};
use super::scalars::When;

/// What was inserted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Inserted {
    pub(super) prefetches: usize,
    pub(super) evictions: usize,
    /// Parts that kernels read in place of a whole.
    pub(super) parts: usize,
    /// Those of them that loops carry.
    pub(super) carried: usize,
    /// What is in fast memory now, by candidate.
    pub(super) placed: Vec<(usize, Position)>,
}

/// Carries out the choices, in time linear in the module. Old instructions keep their ids; new computations stand last.
pub(super) fn rewrite(
    module: &mut Module,
    facts: &Facts,
    fast: FastMemory,
    candidates: &[Candidate],
    choices: &[Choice],
) -> Result<Inserted, CallGraphError> {
    let mut names = Names::new(module);
    let orders = bring::orders(candidates, choices);
    bring::own_interiors(module, &orders, &mut names);
    let mut rewrite = Rewrite {
        module,
        facts,
        fast,
        slots: FxHashMap::default(),
        candidate: 0,
        served: FxHashSet::default(),
        scalars: FxHashMap::default(),
        wrapped: FxHashMap::default(),
        names,
        inserted: Inserted::default(),
    };
    if !orders.is_empty() {
        let users = Users::new(rewrite.module);
        orders.iter().for_each(|order| rewrite.bring(&users, order));
    }
    for (i, (candidate, choice)) in
        candidates.iter().zip(choices).enumerate().filter(|(_, (c, _))| !c.is_part)
    {
        rewrite.candidate = i;
        rewrite.carry_out(candidate, choice);
    }
    rewrite.insert();
    rewrite.name_wrapped();
    let inserted = rewrite.inserted;
    color(module, fast, &inserted.placed)?;
    Ok(inserted)
}

/// Where new instructions go, relative to an old one; in this order before the next old one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Slot {
    /// Right after an instruction: copies of its result start.
    After,
    /// Before an instruction: copies out of fast memory are done.
    Evicted,
    /// Then copies into fast memory start.
    Started,
    /// Then those are done that the instruction needs.
    Fetched,
}

/// Which version of a value operands use.
#[derive(Clone, Copy)]
enum Version {
    /// The one that was there before.
    Original,
    /// The result of a copy.
    Copied(InstructionId),
}

struct Rewrite<'a> {
    module: &'a mut Module,
    facts: &'a Facts,
    fast: FastMemory,
    slots: FxHashMap<(InstructionId, Slot), Vec<InstructionId>>,
    /// The candidate whose choice is carried out.
    candidate: usize,
    /// Operands that parts serve.
    served: FxHashSet<Use>,
    /// Scalars that were computed anew: of a kernel, for a place, and for a moment.
    scalars: FxHashMap<(InstructionId, InstructionId, InstructionId, When), InstructionId>,
    /// What the transfers of parts call.
    wrapped: FxHashMap<InstructionId, ComputationId>,
    names: Names,
    inserted: Inserted,
}

impl Rewrite<'_> {
    fn carry_out(&mut self, candidate: &Candidate, choice: &Choice) {
        match &choice.mode {
            Mode::Whole => {
                let whole = candidate.whole.as_ref().expect("it was chosen");
                for input in &whole.copied_in {
                    self.fetch_for(&input.uses, input.start.before);
                }
                for output in &whole.copied_out {
                    let root = output.uses[0].user;
                    let line = &self.facts.line;
                    let before = output.done_before.filter(|&before| line.time(before) < line.time(root));
                    let done = self.evict(output.value, Some(before.unwrap_or(root)));
                    output.uses.iter().for_each(|&it| self.exchange(it, done));
                }
                whole.resident.iter().for_each(|&value| self.color(value));
            }
            Mode::Carried { .. } => unreachable!("only parts are carried"),
            Mode::Main(all) => {
                for stays in all {
                    self.serve(&candidate.views[stays.view], stays, Version::Original);
                }
            }
            &Mode::Resident { before, index } => {
                let view = &candidate.views[0];
                let uses: Vec<Use> = view.events.iter().flat_map(|e| e.uses.iter().copied()).collect();
                let source = self.original(view, (before, Slot::Started));
                let start = self.fetch(source, before, &uses).expect("it is read");
                let index = i32::try_from(index).expect("there are few residents");
                self.module.instructions[start].op =
                    Op::CopyStart { cross_program_prefetch_index: Some(index) };
            }
            Mode::Evicted(stays) => {
                let view = &candidate.views[0];
                let evicted = candidate.evicted.as_ref().expect("it was chosen");
                let first = self.first_need(view, stays, evicted.done_before);
                let done = self.evict(view.value, first);
                self.color(view.value);
                self.serve(view, stays, Version::Copied(done));
            }
        }
    }

    /// The first instruction that needs the copy in main memory, not after `limit`.
    fn first_need(&self, view: &View, stays: &Stays, limit: Option<InstructionId>) -> Option<InstructionId> {
        let from_main = (0..view.events.len()).filter(|&i| !is_fast(view, stays, i));
        let uses = from_main.flat_map(|i| view.events[i].uses.iter().map(|it| it.user));
        let starts = stays.stays.iter().filter_map(|stay| Some(stay.start?.before));
        let line = &self.facts.line;
        uses.chain(starts).chain(limit).min_by_key(|&id| (line.begin(id), id))
    }

    /// Exchanges the operands of the events of a view for those of the version that serves each.
    fn serve(&mut self, view: &View, stays: &Stays, main: Version) {
        let hands_over = view.events.iter().any(|event| !event.inside.is_empty());
        for stay in &stays.stays {
            let served = (stay.first..=stay.last).map(|i| &view.events[i]);
            let served: Vec<&Event> = served.filter(|event| event.fast.is_some()).collect();
            match stay.start {
                Some(Start { before, .. }) => {
                    let uses: Vec<Use> = served.iter().flat_map(|event| event.uses.iter().copied()).collect();
                    let source = match main {
                        Version::Original => self.original(view, (before, Slot::Started)),
                        Version::Copied(done) => done,
                    };
                    self.fetch(source, before, &uses);
                }
                None if hands_over => {
                    served.iter().flat_map(|e| &e.uses).for_each(|&it| self.use_original(view, it));
                }
                None => {}
            }
        }
        for (i, event) in view.events.iter().enumerate() {
            if is_fast(view, stays, i) {
                continue;
            }
            for &it in &event.uses {
                match main {
                    // A part serves it, which has no need of the whole.
                    _ if self.served.contains(&it) => {}
                    Version::Copied(done) => self.exchange(it, done),
                    Version::Original if hands_over => self.use_original(view, it),
                    Version::Original => {}
                }
            }
        }
        for (i, inner) in &stays.inside {
            self.serve(&view.events[*i].inside[inner.view], inner, Version::Original);
        }
    }

    /// Where a view's value comes from: an instruction and a part of its result.
    fn origin(&self, value: ValueId, computation: ComputationId) -> (InstructionId, ShapeIndex) {
        let flow = &self.facts.flow;
        let positions = &flow.positions;
        let definition = flow.values[value].definition;
        let id = positions.instruction(definition);
        if self.module.instructions[id].parent == computation {
            return (id, positions.shape_index(definition).clone());
        }
        let parameters = &self.module.computations[computation].parameters;
        let mut shown = parameters.iter().flat_map(|&p| positions.of(p));
        let position = shown.find(|&p| flow.value_at(p) == Some(value)).expect("a view shows its value");
        (positions.instruction(position), positions.shape_index(position).clone())
    }

    /// An instruction whose result is the value of a view as it comes in.
    fn original(&mut self, view: &View, slot: (InstructionId, Slot)) -> InstructionId {
        let (id, index) = self.origin(view.value, view.computation);
        self.element(id, &index, slot)
    }

    /// An element of a tuple, however deep, or the array itself.
    fn element(
        &mut self,
        id: InstructionId,
        index: &ShapeIndex,
        slot: (InstructionId, Slot),
    ) -> InstructionId {
        index.0.iter().fold(id, |tuple, &index| {
            let part =
                self.module.shape(tuple).subshape(&[index].into()).expect("positions are parts").clone();
            let shape = self.module.intern(part);
            self.push("get-tuple-element", shape, Op::GetTupleElement { index }, tuple, slot)
        })
    }

    /// Lets an operand show a view's value as it comes in, unless it does: what comes out of control flow shows the
    /// version that was handed over.
    fn use_original(&mut self, view: &View, it: Use) {
        let (id, index) = self.origin(view.value, view.computation);
        let mut at = self.module.instructions[it.user].operands[it.operand as usize];
        while self.module.instructions[at].op == Op::Bitcast {
            at = self.module.instructions[at].operands[0];
        }
        let base = &self.module.instructions[at];
        let is_element = matches!(base.op, Op::GetTupleElement { .. }) && base.operands[0] == id;
        if at != id && !is_element {
            let original = self.element(id, &index, (it.user, Slot::Fetched));
            self.exchange(it, original);
        }
    }

    /// Copies the value that operands show into fast memory for them.
    fn fetch_for(&mut self, uses: &[Use], before: InstructionId) {
        let Use { user, operand } = uses[0];
        let shown = self.module.instructions[user].operands[operand as usize];
        let value = self.facts.flow.value_of(shown).expect("operands of sequential computations show values");
        let (id, index) = self.origin(value, self.module.instructions[user].parent);
        let source = self.element(id, &index, (before, Slot::Started));
        self.fetch(source, before, uses);
    }

    /// Copies into fast memory for some operands; without any, there is nothing to do. Gives where the copy starts.
    fn fetch(&mut self, source: InstructionId, before: InstructionId, uses: &[Use]) -> Option<InstructionId> {
        let first = uses.iter().map(|it| it.user).min_by_key(|&user| self.facts.line.time(user))?;
        self.inserted.prefetches += 1;
        let start = self.start(source, self.fast.space.0, 0, (before, Slot::Started));
        self.is_fast(start, [0].into());
        let done = self.done(start, (first, Slot::Fetched));
        uses.iter().for_each(|&it| self.exchange(it, done));
        Some(start)
    }

    /// Copies a value that is written to fast memory to main memory; without a limit, by the end of its computation.
    fn evict(&mut self, value: ValueId, done_before: Option<InstructionId>) -> InstructionId {
        self.inserted.evictions += 1;
        let positions = &self.facts.flow.positions;
        let definition = self.facts.flow.values[value].definition;
        let (id, index) = (positions.instruction(definition), positions.shape_index(definition).clone());
        let source = self.element(id, &index, (id, Slot::After));
        let start = self.start(source, 0, self.fast.space.0, (id, Slot::After));
        let slot = match done_before {
            Some(before) => (before, Slot::Evicted),
            None => {
                let sequence = &self.module.computations[self.module.instructions[id].parent].instructions;
                (*sequence.last().expect("a definition stands in its computation"), Slot::After)
            }
        };
        self.done(start, slot)
    }

    fn start(
        &mut self,
        source: InstructionId,
        to: u32,
        from: u32,
        slot: (InstructionId, Slot),
    ) -> InstructionId {
        let Shape::Array(array) = self.module.shape(source).clone() else {
            unreachable!("only arrays are candidates");
        };
        let [to, from] = [to, from].map(|space| Shape::Array(in_space(&array, space)));
        let flag = flag(ElementType::U32, self.fast);
        let shape = self.module.intern(Shape::tuple([to, from, flag]));
        self.push("copy-start", shape, Op::CopyStart { cross_program_prefetch_index: None }, source, slot)
    }

    fn done(&mut self, start: InstructionId, slot: (InstructionId, Slot)) -> InstructionId {
        let to = self.module.shape(start).as_tuple().expect("a transfer has two ends and a flag")[0].clone();
        let shape = self.module.intern(to);
        self.push("copy-done", shape, Op::CopyDone, start, slot)
    }

    /// Lets an operand be another instruction's result, seen in the shape that it had.
    fn exchange(&mut self, it: Use, by: InstructionId) {
        let old = self.module.instructions[it.user].operands[it.operand as usize];
        let (Shape::Array(wanted), Shape::Array(given)) = (self.module.shape(old), self.module.shape(by))
        else {
            unreachable!("only arrays are candidates");
        };
        let space = u32::try_from(given.memory_space()).expect("it is that of a target");
        let (wanted, given) = (in_space(wanted, space), given.clone());
        let new = if wanted == given {
            by
        } else {
            let shape = self.module.intern(wanted.into());
            self.push("bitcast", shape, Op::Bitcast, by, (it.user, Slot::Fetched))
        };
        self.module.instructions[it.user].operands[it.operand as usize] = new;
    }

    fn push(
        &mut self,
        name: &str,
        shape: ShapeId,
        op: Op,
        operand: InstructionId,
        slot: (InstructionId, Slot),
    ) -> InstructionId {
        let name = self.names.fresh(&format!("{name}.fast"));
        let parent = self.module.instructions[operand].parent;
        let id = self.module.instructions.push(Instruction::new(name, shape, op, [operand], parent));
        self.slots.entry(slot).or_default().push(id);
        id
    }

    fn color(&mut self, value: ValueId) {
        let positions = &self.facts.flow.positions;
        let definition = self.facts.flow.values[value].definition;
        self.is_fast(positions.instruction(definition), positions.shape_index(definition).clone());
    }

    /// Notes that a part of a result is in fast memory.
    fn is_fast(&mut self, instruction: InstructionId, index: ShapeIndex) {
        self.inserted.placed.push((self.candidate, Position { instruction, index }));
    }

    /// Puts new instructions where they belong.
    fn insert(&mut self) {
        for computation in self.module.computations.values_mut() {
            let old = std::mem::take(&mut computation.instructions);
            for id in old {
                for slot in [Slot::Evicted, Slot::Started, Slot::Fetched] {
                    computation.instructions.extend(self.slots.remove(&(id, slot)).unwrap_or_default());
                }
                computation.instructions.push(id);
                computation.instructions.extend(self.slots.remove(&(id, Slot::After)).unwrap_or_default());
            }
        }
    }
}

/// Whether an event is served from fast memory.
fn is_fast(view: &View, stays: &Stays, event: usize) -> bool {
    view.events[event].fast.is_some()
        && stays.stays.iter().any(|stay| stay.first <= event && event <= stay.last)
}

/// What a transfer sets when it is done.
fn flag(element_type: ElementType, fast: FastMemory) -> Shape {
    let layout = Layout { memory_space: i64::from(fast.flags.0), ..Layout::default() };
    ArrayShape { layout: Some(layout), ..ArrayShape::new(element_type, []) }.into()
}

fn in_space(array: &ArrayShape, space: u32) -> ArrayShape {
    let mut array = array.clone();
    array.layout.iter_mut().for_each(|layout| layout.memory_space = i64::from(space));
    array
}

/// Names the memory in the layouts of values, wherever they appear.
fn color(module: &mut Module, fast: FastMemory, placed: &[(usize, Position)]) -> Result<(), CallGraphError> {
    let flow = dataflow(module, &CallGraph::new(module)?);
    let mut parts: SecondaryMap<InstructionId, Vec<ShapeIndex>> = SecondaryMap::new();
    let mut seen = FxHashSet::default();
    for (_, Position { instruction, index }) in placed {
        let value = flow.find(*instruction, index).expect("what is colored is in a sequential computation");
        if seen.insert(value) {
            for &position in flow.positions_of(value) {
                let id = flow.positions.instruction(position);
                parts[id].push(flow.positions.shape_index(position).clone());
            }
        }
    }
    for (id, parts) in parts.iter().filter(|(_, parts)| !parts.is_empty()) {
        let mut shape = module.shape(id).clone();
        parts.iter().for_each(|index| set_space(&mut shape, index, fast.space.0));
        module.instructions[id].shape = module.intern(shape);
    }
    color_interiors(module);
    Ok(())
}

/// Lets parameters and roots of fused computations say where operands and results are. A computation that fusions
/// share says so where they agree.
fn color_interiors(module: &mut Module) {
    let mut spaces: FxHashMap<(InstructionId, ShapeIndex), Option<i64>> = FxHashMap::default();
    let mut order = Vec::new();
    let fusions = module.instructions.iter().filter(|(_, i)| matches!(i.op, Op::Fusion(_)));
    for (id, instruction) in fusions {
        let fused = &module.computations[instruction.called[0]];
        let root = &module.instructions[fused.root];
        let mut say = |inner: InstructionId, index: ShapeIndex, outer: &Shape| {
            let space = outer.as_array().map_or(0, ArrayShape::memory_space);
            let said = spaces.entry((inner, index.clone())).or_insert_with(|| {
                order.push((inner, index));
                Some(space)
            });
            if *said != Some(space) {
                *said = None;
            }
        };
        for (&parameter, &operand) in fused.parameters.iter().zip(&instruction.operands) {
            for (index, leaf) in module.shape(operand).leaves() {
                say(parameter, index, leaf);
            }
        }
        for (index, leaf) in module.shape(id).leaves() {
            if let (Op::Tuple, [i]) = (&root.op, index.0.as_slice()) {
                say(root.operands[*i as usize], ShapeIndex::root(), leaf);
            }
            say(fused.root, index, leaf);
        }
    }
    // All parts of a shape before it is interned, since a shared tuple is copied when it changes.
    let mut changed: IndexMap<InstructionId, Shape, FxBuildHasher> = IndexMap::default();
    for (inner, index) in order {
        let Some(space) = spaces[&(inner, index.clone())] else { continue };
        let part = changed.get(&inner).unwrap_or_else(|| module.shape(inner)).subshape(&index);
        if part.and_then(Shape::as_array).is_some_and(|array| array.memory_space() != space) {
            let shape = changed.entry(inner).or_insert_with(|| module.shape(inner).clone());
            set_space(shape, &index, u32::try_from(space).unwrap_or(0));
        }
    }
    for (inner, shape) in changed {
        module.instructions[inner].shape = module.intern(shape);
    }
}

fn set_space(shape: &mut Shape, index: &ShapeIndex, space: u32) {
    let part = shape.subshape_mut(index);
    if let Some(layout) = part.and_then(Shape::as_array_mut).and_then(|array| array.layout.as_mut()) {
        layout.memory_space = i64::from(space);
    }
}
