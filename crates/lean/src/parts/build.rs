//! Writes the loop over parts.
//!
//! ```text
//!   state   counter, results, what the loop reads (whole)
//!   body    slices of what it reads -> the region's instructions on one part -> results
//! ```
//!
//! Results with rows are written part by part. Sums are added up, those of narrow numbers in `f32`, except for products
//! in a few parts. Loops of the region are copied with the computations that they call, for the extents of one part. If
//! only the region reads a value, and the value is cheap to compute, the loop computes it again, so it is not live
//! while the loop runs.

use std::collections::BTreeSet;
use std::sync::Arc;

use memplan_ir::{
    ArrayShape, BinaryOp, ComparisonDirection, ComputationId, Cursor, ElementType, Insert, InstructionId,
    Metadata, Module, Names, Op, Shape, Users,
};
use memplan_rewriter::cost::{self, CostClass};
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

use super::labels::{Label, Labels};
use memplan_rewriter::rows::{Outcome, Rows, Treatment, block_of, carried_type, count_from, on_block};

/// The attribute of the loop that says how many parts there are.
const ATTRIBUTE: &str = "memplan_parts";

/// Products of so many parts are added in their own type. Eight sums in `bf16` are off by twice the rounding of one.
const PARTS_IN_OWN_TYPE: i64 = 8;

/// Whether the entry has a loop over parts.
pub(super) fn has_parts(module: &Module) -> bool {
    let entry = module.entry_computation();
    entry.instructions.iter().any(|&id| module.instructions[id].frontend_attribute(ATTRIBUTE).is_some())
}

/// Replaces everything in the entry that can run in parts by a loop. Says whether there was anything.
pub(super) fn build(module: &mut Module, labels: &Labels, names: &mut Names) -> bool {
    let Some(region) = Region::find(module, labels) else { return false };
    let body = module.add_computation(names.fresh("parts_body"));
    let thread = module.computations[module.entry].execution_thread.clone();
    module.computations[body].execution_thread = thread;
    let writer = Writer {
        module,
        names,
        labels,
        region: &region,
        body,
        inputs: Vec::new(),
        known: FxHashMap::default(),
    };
    let results = writer.write();
    replace(module, &region, &results);
    true
}

/// The instructions of the entry that run in the loop.
struct Region {
    /// Operands first.
    members: Vec<InstructionId>,
    is_member: FxHashSet<InstructionId>,
    /// The members that are read after the loop.
    results: Vec<InstructionId>,
    /// The members that are only added up.
    summed_only: FxHashSet<InstructionId>,
    /// Elements that pass a barrier among the members, and exist before: what to read instead outside.
    before: FxHashMap<InstructionId, InstructionId>,
}

impl Region {
    /// `None` where nothing that is read later can be computed in parts.
    fn find(module: &Module, labels: &Labels) -> Option<Region> {
        let entry = module.entry_computation();
        let users = Users::new(module);
        let is_parameter = |id: InstructionId| matches!(module.instructions[id].op, Op::Parameter { .. });
        let is_element_inside = |id: InstructionId| {
            let instruction = &module.instructions[id];
            matches!(instruction.op, Op::GetTupleElement { .. }) && labels.is_inside(instruction.operands[0])
        };
        let mut inside: FxHashSet<InstructionId> = entry
            .instructions
            .iter()
            .copied()
            .filter(|&id| {
                !is_parameter(id)
                    && (labels.is_inside(id) || is_element_inside(id) && labels.of_array(id) != Label::Later)
            })
            .collect();
        let before = passing(module, labels, &inside);
        // What is outside reads arrays; tuples are made again there.
        let mut results = Vec::new();
        let mut seen: FxHashSet<InstructionId> = FxHashSet::default();
        let is_tuple = |id: InstructionId| matches!(module.instructions[id].op, Op::Tuple);
        let mut outside: Vec<InstructionId> = entry
            .instructions
            .iter()
            .copied()
            .filter(|id| !inside.contains(id))
            .chain(Some(entry.root).filter(|&root| is_tuple(root)))
            .collect();
        while let Some(id) = outside.pop() {
            for &operand in &module.instructions[id].operands {
                if !inside.contains(&operand) || before.contains_key(&operand) || !seen.insert(operand) {
                    continue;
                }
                match &module.instructions[operand].op {
                    Op::Tuple => outside.push(operand),
                    _ if module.shape(operand).as_array().is_some() => results.push(operand),
                    _ => return None,
                }
            }
        }
        if inside.contains(&entry.root) && !is_tuple(entry.root) {
            module.shape(entry.root).as_array()?;
            results.push(entry.root);
        }
        let mut results = BTreeSet::from_iter(results);
        sum_earlier(module, labels, &users, &mut inside, &mut results);
        let results: Vec<InstructionId> =
            entry.instructions.iter().copied().filter(|id| results.contains(id)).collect();
        sink(module, labels, &users, &mut inside);
        let members = needed(module, &inside, &results);
        let is_member = members.iter().copied().collect();
        let read = members.iter().flat_map(|&id| &module.instructions[id].operands);
        let is_read_inside = read.copied().collect();
        let summed_only = summed_only(module, labels, &users, &results, &is_read_inside);
        (!results.is_empty()).then_some(Region { members, is_member, results, summed_only, before })
    }
}

/// Leaves what is done to a sum to the time after the loop, where that carries no more bytes through the loop: the scaled
/// gradient beside the gradient, a sum in another type. A sum in another order is no more work in the loop, where a
/// product may be computed in that order.
fn sum_earlier(
    module: &Module,
    labels: &Labels,
    users: &Users,
    inside: &mut FxHashSet<InstructionId>,
    results: &mut BTreeSet<InstructionId>,
) {
    let entry = module.entry_computation();
    let is_sum = |id: InstructionId| labels.of(id) == [Label::Sum];
    let elements =
        |id: InstructionId| module.shape(id).as_array().and_then(ArrayShape::element_count).unwrap_or(0);
    for &id in entry.instructions.iter().rev() {
        let operands = &module.instructions[id].operands;
        let is_made_of_sums = operands.iter().any(|&operand| is_sum(operand))
            && operands.iter().all(|&operand| is_sum(operand) || !inside.contains(&operand));
        let is_read_inside = users.of(id).iter().any(|user| inside.contains(user));
        let is_order = reordered(module, id).is_some();
        if !results.contains(&id) || !is_sum(id) || !is_made_of_sums || is_read_inside || is_order {
            continue;
        }
        let more = operands.iter().filter(|operand| is_sum(**operand) && !results.contains(operand));
        let more: BTreeSet<InstructionId> = more.copied().collect();
        if more.iter().map(|&operand| elements(operand)).sum::<u64>() <= elements(id) {
            results.remove(&id);
            inside.remove(&id);
            results.extend(more);
        }
    }
}

/// The array that an instruction returns in another order or shape.
fn reordered(module: &Module, id: InstructionId) -> Option<InstructionId> {
    let instruction = &module.instructions[id];
    matches!(instruction.op, Op::Transpose { .. } | Op::Reshape { .. }).then(|| instruction.operands[0])
}

/// The sums that are only added up, so that they need not be rounded before: products, also in another order.
fn summed_only(
    module: &Module,
    labels: &Labels,
    users: &Users,
    results: &[InstructionId],
    is_read_inside: &FxHashSet<InstructionId>,
) -> FxHashSet<InstructionId> {
    let mut found = FxHashSet::default();
    let is_summed = |id: &&InstructionId| labels.of(**id) == [Label::Sum] && !is_read_inside.contains(id);
    for &result in results.iter().filter(is_summed) {
        let is_read_once = |id: &InstructionId| users.of(*id).len() == 1;
        let chain = std::iter::successors(Some(result), |&id| reordered(module, id).filter(is_read_once));
        let chain: Vec<InstructionId> = chain.collect();
        if chain.last().is_some_and(|&id| matches!(module.instructions[id].op, Op::Dot(_))) {
            found.extend(chain);
        }
    }
    found
}

/// Elements behind barriers that do not depend on the batch, and the values before the barrier.
fn passing(
    module: &Module,
    labels: &Labels,
    inside: &FxHashSet<InstructionId>,
) -> FxHashMap<InstructionId, InstructionId> {
    let mut found = FxHashMap::default();
    for &id in &module.entry_computation().instructions {
        let instruction = &module.instructions[id];
        let Op::GetTupleElement { index } = instruction.op else { continue };
        let barrier = &module.instructions[instruction.operands[0]];
        if !inside.contains(&id)
            || labels.of_array(id) != Label::Whole
            || barrier.op != Op::OptimizationBarrier
        {
            continue;
        }
        let tuple = &module.instructions[barrier.operands[0]];
        if tuple.op == Op::Tuple {
            let source = tuple.operands[index as usize];
            found.insert(id, found.get(&source).copied().unwrap_or(source));
        }
    }
    found
}

/// Adds what is cheaply made of other values, and read only inside.
fn sink(module: &Module, labels: &Labels, users: &Users, inside: &mut FxHashSet<InstructionId>) {
    let entry = module.entry_computation();
    for &id in entry.instructions.iter().rev() {
        let instruction = &module.instructions[id];
        let is_array = module.shape(id).as_array().is_some_and(|array| array.rank() > 0);
        let is_cheap = matches!(cost::class_of(module, id), CostClass::Cheap)
            && !instruction.op.has_side_effect()
            && !instruction.operands.is_empty();
        let is_read_inside =
            !users.of(id).is_empty() && users.of(id).iter().all(|user| inside.contains(user));
        if labels.of(id) == [Label::Whole] && is_array && is_cheap && is_read_inside && id != entry.root {
            inside.insert(id);
        }
    }
}

/// The instructions inside that the results need, operands first.
fn needed(
    module: &Module,
    inside: &FxHashSet<InstructionId>,
    results: &[InstructionId],
) -> Vec<InstructionId> {
    let mut seen: FxHashSet<InstructionId> = results.iter().copied().collect();
    let mut open = results.to_vec();
    while let Some(id) = open.pop() {
        for &operand in &module.instructions[id].operands {
            if inside.contains(&operand) && seen.insert(operand) {
                open.push(operand);
            }
        }
    }
    module.entry_computation().instructions.iter().copied().filter(|id| seen.contains(id)).collect()
}

/// Lets everything outside read results of the loop, and drops what is not read any more.
fn replace(module: &mut Module, region: &Region, results: &FxHashMap<InstructionId, InstructionId>) {
    let entry = module.entry;
    let listed = std::mem::take(&mut module.computations[entry].instructions);
    let new = |id: InstructionId| results.get(&id).or_else(|| region.before.get(&id)).copied().unwrap_or(id);
    let is_dropped = |id: &InstructionId| {
        region.is_member.contains(id) && !matches!(module.instructions[*id].op, Op::Tuple)
    };
    let kept: Vec<InstructionId> = listed.into_iter().filter(|id| !is_dropped(id)).collect();
    for &id in &kept {
        for operand in &mut module.instructions[id].operands {
            *operand = new(*operand);
        }
    }
    let root = &mut module.computations[entry].root;
    *root = new(*root);
    let mut reachable: FxHashSet<InstructionId> = FxHashSet::default();
    let mut open = vec![module.computations[entry].root];
    while let Some(id) = open.pop() {
        if reachable.insert(id) {
            open.extend(module.instructions[id].operands.iter().copied());
        }
    }
    // Tuples of members that only members read would name what is not there.
    let is_kept = |id: &InstructionId| {
        reachable.contains(id) || !region.is_member.contains(id) && !reads_dropped(module, region, *id)
    };
    let kept = kept.into_iter().filter(is_kept).collect();
    module.computations[entry].instructions = kept;
    module.put_operands_first(entry);
}

fn reads_dropped(module: &Module, region: &Region, id: InstructionId) -> bool {
    module.instructions[id].operands.iter().any(|operand| region.is_member.contains(operand))
}

/// The metadata of a new instruction.
type Note = Option<Arc<Metadata>>;

/// Writes the loop.
struct Writer<'a> {
    module: &'a mut Module,
    names: &'a mut Names,
    labels: &'a Labels,
    region: &'a Region,
    body: ComputationId,
    /// What the loop reads, in the order of the last elements of its state.
    inputs: Vec<InstructionId>,
    /// What stands for values of the entry in the body, whole or in part.
    known: FxHashMap<(InstructionId, Label), InstructionId>,
}

/// Where an instruction is copied to.
struct Scope {
    computation: ComputationId,
    /// The state and the counter of the loop over parts, if this is its body.
    parts: Option<[InstructionId; 2]>,
    known: FxHashMap<(InstructionId, Label), InstructionId>,
}

impl Writer<'_> {
    /// The results of the loop, by what they replace.
    fn write(mut self) -> FxHashMap<InstructionId, InstructionId> {
        let region = self.region;
        let counter = Shape::scalar(ElementType::S32);
        // Its shape is known when all inputs are.
        let state = self.at(self.body, None).parameter(Shape::tuple([counter]));
        let counter = self.insert_element(state, 0, Shape::scalar(ElementType::S32));
        let mut scope = Scope {
            computation: self.body,
            parts: Some([state, counter]),
            known: std::mem::take(&mut self.known),
        };
        for &id in &region.members {
            self.copy(&mut scope, id);
        }
        let one = self.at(self.body, None).integer(ElementType::S32, 1);
        let mut next = vec![self.at(self.body, None).binary(BinaryOp::Add, counter, one)];
        for (i, &result) in region.results.iter().enumerate() {
            next.push(self.next_result(&mut scope, i, result));
        }
        let first_input = next.len() as u32;
        for index in 0..self.inputs.len() {
            next.push(scope.known[&(self.inputs[index], Label::Whole)]);
        }
        let shape = Shape::tuple(next.iter().map(|&id| self.module.shape(id).clone()).collect::<Vec<_>>());
        self.module.set_shape(state, shape.clone());
        self.number_inputs(state, first_input);
        let root = self.at(self.body, None).tuple(next);
        self.module.computations[self.body].root = root;
        self.call_loop(&shape)
    }

    /// Inputs follow the results in the state: the body named them in the order in which it needed them.
    fn number_inputs(&mut self, state: InstructionId, first: u32) {
        for &id in &self.module.computations[self.body].instructions.clone() {
            let instruction = &mut self.module.instructions[id];
            if let Op::GetTupleElement { index } = &mut instruction.op
                && instruction.operands[0] == state
                && *index >= INPUTS
            {
                *index = *index - INPUTS + first;
            }
        }
    }

    /// Adds the loop to the entry.
    fn call_loop(&mut self, state: &Shape) -> FxHashMap<InstructionId, InstructionId> {
        let (region, entry) = (self.region, self.module.entry);
        let n = self.labels.n;
        let note = self.module.instructions[region.results[0]].metadata.clone();
        let mut at = Cursor::end(self.module, self.names, entry).with_metadata(note);
        let condition = at.new_computation("parts_condition", |at| {
            let parameter = at.parameter(state.clone());
            let counter = at.get_tuple_element(parameter, 0);
            let n = at.integer(ElementType::S32, n);
            at.compare(ComparisonDirection::Lt, counter, n)
        });
        let mut initial = vec![at.integer(ElementType::S32, 0)];
        let elements = state.as_tuple().expect("the state is a tuple").to_vec();
        for shape in &elements[1..=region.results.len()] {
            let shape = shape.as_array().expect("results are arrays").clone();
            let zero = at.integer(shape.element_type, 0);
            initial.push(at.fill(zero, shape));
        }
        initial.extend(self.inputs.iter().map(|id| region.before.get(id).copied().unwrap_or(*id)));
        let initial = at.tuple(initial);
        let last = at.while_loop(initial, condition, self.body);
        self.module.instructions[last]
            .extras_mut()
            .frontend_attributes
            .insert(ATTRIBUTE.into(), n.to_string().into());
        let mut results = FxHashMap::default();
        for (i, &result) in region.results.iter().enumerate() {
            let note = self.module.instructions[result].metadata.clone();
            let meant = self.module.shape(result).clone();
            let mut at = self.at(entry, note);
            let carried = at.get_tuple_element(last, 1 + i as u32);
            let is_meant = *at.module().shape(carried) == meant;
            results.insert(
                result,
                if is_meant { carried } else { at.insert_shaped(Op::Convert, [carried], meant) },
            );
        }
        results
    }

    /// Adds a part to a result.
    fn next_result(&mut self, scope: &mut Scope, i: usize, result: InstructionId) -> InstructionId {
        let [state, counter] = scope.parts.expect("results are of the loop over parts");
        let note = self.module.instructions[result].metadata.clone();
        let label = self.labels.of_array(result);
        let mut shape = self.module.shape(result).as_array().expect("results are arrays").clone();
        let mut part = scope.known[&(result, label)];
        if label == Label::Sum {
            shape.element_type = self.summed_type(result, shape.element_type);
        }
        let before = self.insert_element(state, 1 + i as u32, shape.clone().into());
        match label {
            Label::Rows(rows) => {
                let starts = self.starts(scope, counter, shape.rank(), rows, &note);
                self.at(scope.computation, note).dynamic_update_slice(before, part, starts)
            }
            Label::Sum => {
                let shape = Shape::Array(shape);
                let mut at = self.at(scope.computation, note);
                if *at.module().shape(part) != shape {
                    part = at.insert_shaped(Op::Convert, [part], shape);
                }
                at.binary(BinaryOp::Add, before, part)
            }
            Label::Whole | Label::Later => part,
        }
    }

    /// Copies an instruction to compute one part of its result.
    fn copy(&mut self, scope: &mut Scope, id: InstructionId) -> InstructionId {
        let instruction = self.module.instructions[id].clone();
        let own: Vec<Label> = self.labels.of(id).to_vec();
        let new = match &instruction.op {
            Op::While => self.copy_loop(scope, id),
            Op::Tuple => self.copy_tuple(scope, id, &own),
            Op::GetTupleElement { .. } | Op::OptimizationBarrier => {
                let operand =
                    scope.known[&(instruction.operands[0], first(self.labels.of(instruction.operands[0])))];
                self.at(scope.computation, None).copy_of(id, [operand])
            }
            _ => {
                let needs = self
                    .labels
                    .needs_of(id)
                    .map_or_else(|| vec![Label::Whole; instruction.operands.len()], <[Label]>::to_vec);
                let operands: Vec<InstructionId> = instruction
                    .operands
                    .iter()
                    .zip(&needs)
                    .map(|(&operand, &need)| self.fetch(scope, operand, need))
                    .collect();
                let new = self.at(scope.computation, None).copy_of(id, operands);
                if let Label::Rows(rows) = first(&own) {
                    let part = |need: &Label| match need {
                        Label::Rows(rows) => Some(*rows),
                        _ => None,
                    };
                    let operands: SmallVec<[Option<Rows>; 4]> = needs.iter().map(part).collect();
                    let treatment = Treatment { outcome: Outcome::Rows(rows), operands };
                    self.module.instructions[new].op = on_block(&instruction.op, &treatment, rows.unit);
                }
                new
            }
        };
        let mut shape = part_of(self.module.shape(id), &own);
        if scope.parts.is_some()
            && self.region.summed_only.contains(&id)
            && let Some(array) = shape.as_array_mut()
        {
            array.element_type = self.summed_type(id, array.element_type);
        }
        if *self.module.shape(new) != shape {
            self.module.set_shape(new, shape);
        }
        scope.known.insert((id, first(&own)), new);
        new
    }

    /// The type in which a sum is carried from part to part. Products are gradients of weights, which are large: a few of
    /// them are added in their own type, as devices that share a batch add theirs.
    fn summed_type(&self, id: InstructionId, own: ElementType) -> ElementType {
        let orders = std::iter::successors(Some(id), |&id| reordered(self.module, id));
        let is_product = orders.last().is_some_and(|id| self.module.instructions[id].op.is_contraction());
        if is_product && self.labels.n <= PARTS_IN_OWN_TYPE { own } else { carried_type(BinaryOp::Add, own) }
    }

    /// Copies a tuple whose elements are needed with these labels.
    fn copy_tuple(&mut self, scope: &mut Scope, id: InstructionId, needs: &[Label]) -> InstructionId {
        let operands = self.module.instructions[id].operands.clone();
        let elements: Vec<InstructionId> =
            operands.iter().zip(needs).map(|(&operand, &need)| self.fetch(scope, operand, need)).collect();
        self.at(scope.computation, None).copy_of(id, elements)
    }

    /// Copies a loop with its computations.
    fn copy_loop(&mut self, scope: &mut Scope, id: InstructionId) -> InstructionId {
        let instruction = self.module.instructions[id].clone();
        let state: Vec<Label> = self.labels.of(id).to_vec();
        let initial = instruction.operands[0];
        let initial = match self.module.instructions[initial].op {
            Op::Tuple => {
                let new = self.copy_tuple(scope, initial, &state);
                let shape = part_of(self.module.shape(initial), &state);
                self.module.set_shape(new, shape);
                new
            }
            _ => scope.known[&(initial, first(self.labels.of(initial)))],
        };
        let called: SmallVec<[ComputationId; 1]> =
            instruction.called.iter().map(|&called| self.copy_computation(called, &state)).collect();
        let new = self.at(scope.computation, None).copy_of(id, [initial]);
        self.module.instructions[new].called = called;
        new
    }

    /// Copies the body or the condition of a loop whose state has these labels.
    fn copy_computation(&mut self, original: ComputationId, state: &[Label]) -> ComputationId {
        let name = self.names.fresh(&self.module.computations[original].name);
        let computation = self.module.add_computation(name);
        let thread = self.module.computations[original].execution_thread.clone();
        self.module.computations[computation].execution_thread = thread;
        let mut scope = Scope { computation, parts: None, known: FxHashMap::default() };
        let listed = self.module.computations[original].instructions.clone();
        let root = self.module.computations[original].root;
        let mut new_root = None;
        for id in listed {
            let new = match self.module.instructions[id].op {
                Op::Parameter { .. } => {
                    let shape = part_of(self.module.shape(id), state);
                    let new = self.at(computation, None).parameter(shape);
                    scope.known.insert((id, first(state)), new);
                    new
                }
                Op::Tuple if id == root => {
                    let new = self.copy_tuple(&mut scope, id, state);
                    let shape = part_of(self.module.shape(id), state);
                    self.module.set_shape(new, shape);
                    new
                }
                _ => self.copy(&mut scope, id),
            };
            if id == root {
                new_root = Some(new);
            }
        }
        self.module.computations[computation].root = new_root.expect("the root is listed");
        computation
    }

    /// A value in the form in which a copy needs it.
    fn fetch(&mut self, scope: &mut Scope, id: InstructionId, need: Label) -> InstructionId {
        if let Some(&known) = scope.known.get(&(id, need)) {
            return known;
        }
        let new = match need {
            Label::Rows(rows) => self.rows_of(scope, id, rows),
            Label::Sum => {
                let shape = self.module.shape(id).as_array().expect("sums are arrays").clone();
                let mut at = self.at(scope.computation, None);
                let zero = at.integer(shape.element_type, 0);
                at.fill(zero, shape)
            }
            Label::Whole | Label::Later => self.input(scope, id),
        };
        scope.known.insert((id, need), new);
        new
    }

    /// A value from before the loop.
    fn input(&mut self, scope: &Scope, id: InstructionId) -> InstructionId {
        let [state, _] = scope.parts.expect("loops of a part have all values that they read");
        let is_scalar_constant = matches!(self.module.instructions[id].op, Op::Constant(_))
            && self.module.shape(id).as_array().is_some_and(|array| array.rank() == 0);
        if is_scalar_constant {
            return self.at(scope.computation, None).copy_of(id, []);
        }
        let shape = self.module.shape(id).clone();
        let index = INPUTS + self.inputs.len() as u32;
        self.inputs.push(id);
        self.insert_element(state, index, shape)
    }

    /// Rows of a value that exists as a whole: made again, or cut out.
    fn rows_of(&mut self, scope: &mut Scope, id: InstructionId, rows: Rows) -> InstructionId {
        let note = self.module.instructions[id].metadata.clone();
        if let Some(treatment) = self.labels.remade(self.module, id, rows) {
            return self.remake(scope, id, &treatment, rows);
        }
        let Some([_, counter]) = scope.parts else {
            // A loop of a part was asked for these rows, so they are cheaply made of rows of its state.
            let treatment = memplan_rewriter::rows::by_result(self.module, id, self.labels.n, rows)
                .expect("rows were asked for");
            return self.remake(scope, id, &treatment, rows);
        };
        let whole = self.fetch(scope, id, Label::Whole);
        let block = block_of(self.module.shape(id), rows);
        let slice_sizes = block.as_array().expect("rows are of arrays").dimensions.clone();
        let mut operands = vec![whole];
        operands.extend(self.starts(scope, counter, slice_sizes.len(), rows, &note));
        self.at(scope.computation, note).insert_shaped(Op::DynamicSlice { slice_sizes }, operands, block)
    }

    /// Makes rows of a value from rows of its operands.
    fn remake(
        &mut self,
        scope: &mut Scope,
        id: InstructionId,
        treatment: &Treatment,
        rows: Rows,
    ) -> InstructionId {
        let instruction = self.module.instructions[id].clone();
        let note = instruction.metadata.clone();
        let block = block_of(self.module.shape(id), rows);
        if matches!(instruction.op, Op::Constant(_)) {
            let value =
                memplan_rewriter::loops::scalar(self.module, id).expect("a constant of equal elements");
            let mut at = self.at(scope.computation, note);
            let value = at.constant(value.literal());
            return at.fill(value, block);
        }
        let operands: Vec<InstructionId> = instruction
            .operands
            .iter()
            .zip(&treatment.operands)
            .map(|(&operand, part)| self.fetch(scope, operand, part.map_or(Label::Whole, Label::Rows)))
            .collect();
        let new = self.at(scope.computation, None).copy_of(id, operands);
        self.module.set_shape(new, block);
        self.module.instructions[new].op = on_block(&instruction.op, treatment, rows.unit);
        match (&instruction.op, scope.parts) {
            (Op::Iota { dimension }, Some([_, counter])) if *dimension == rows.dimension as i64 => {
                self.count_from_part(scope, counter, new, rows.unit, &note)
            }
            _ => new,
        }
    }

    /// Lets an iota count from the first element of the part.
    fn count_from_part(
        &mut self,
        scope: &mut Scope,
        counter: InstructionId,
        iota: InstructionId,
        unit: i64,
        note: &Note,
    ) -> InstructionId {
        let start = self.start(scope, counter, unit, note);
        count_from(&mut self.at(scope.computation, note.clone()), iota, start)
    }

    /// The start of a part, in every dimension.
    fn starts(
        &mut self,
        scope: &mut Scope,
        counter: InstructionId,
        rank: usize,
        rows: Rows,
        note: &Note,
    ) -> Vec<InstructionId> {
        let start = self.start(scope, counter, rows.unit, note);
        let zero = self.at(scope.computation, None).integer(ElementType::S32, 0);
        (0..rank).map(|d| if d == rows.dimension { start } else { zero }).collect()
    }

    fn start(&mut self, scope: &mut Scope, counter: InstructionId, unit: i64, note: &Note) -> InstructionId {
        if unit == 1 {
            return counter;
        }
        let mut at = self.at(scope.computation, note.clone());
        let elements = at.integer(ElementType::S32, unit);
        at.binary(BinaryOp::Multiply, counter, elements)
    }

    /// An element of the state, before the shape of the state is known.
    fn insert_element(&mut self, state: InstructionId, index: u32, shape: Shape) -> InstructionId {
        self.at(self.body, None).insert_shaped(Op::GetTupleElement { index }, [state], shape)
    }

    fn at(&mut self, computation: ComputationId, note: Note) -> Cursor<'_> {
        Cursor::end(self.module, self.names, computation).with_metadata(note)
    }
}

/// Inputs are numbered from here until the number of results is known.
const INPUTS: u32 = 1 << 30;

/// The first label names a value; arrays have one.
fn first(labels: &[Label]) -> Label {
    labels.first().copied().unwrap_or_default()
}

/// The shape of one part of a value.
fn part_of(shape: &Shape, labels: &[Label]) -> Shape {
    let of_array = |shape: &Shape, label: Label| match label {
        Label::Rows(rows) => block_of(shape, rows),
        _ => shape.clone(),
    };
    match shape {
        Shape::Tuple(elements) => Shape::tuple(
            elements.iter().zip(labels).map(|(element, &label)| of_array(element, label)).collect::<Vec<_>>(),
        ),
        shape => of_array(shape, first(labels)),
    }
}
