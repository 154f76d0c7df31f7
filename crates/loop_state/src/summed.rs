//! If a reduction after a loop sums a stack that the loop makes, the loop makes the sum instead.
//!
//! ```text
//! w = while((0, zeros))                                 w = while((0, 0))
//!   s' = dynamic-update-slice(s, row, i, 0)               sum' = add(sum, reduce(exponential(row)))
//! e = exponential(get-tuple-element(w))           =>
//! sum = reduce(e), dimensions={0,1}                     sum = get-tuple-element(w)
//! ```
//!
//! Follows all values computed from a stack ([`Cone`]), as long as each of their rows is computed from one row of the
//! stack ([`memplan_rewriter::rows`]), up to reductions over the rows by a sum, a product, a maximum, a minimum, `and` or `or`. If
//! all paths end in such reductions, each step applies all of that to its rows. Other operands that are read along the
//! rows are sliced in the loop; operands that are read whole are carried.
//!
//! HLO leaves the order of a reduction open; here the rows of a step are combined first, then the steps one after the
//! other. Sums and products of floating-point numbers narrower than `f32` are carried in `f32` from step to step.
//!
//! Left alone: matrix products over the rows, which are slower row by row; stacks with other readers; small stacks.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use memplan_ir::{ArrayShape, BinaryOp, Cursor, Insert, InstructionId, Module, Names, Op, Shape, Users};
use memplan_memory::Target;
use memplan_rewriter::cost::{self, CostClass, Hero};
use memplan_rewriter::loops::{Loop, loops, scalar, splat};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::apply::use_instead;
use crate::find::{Made, made_row_by_row};
use crate::within::KeepWithinLoops;
use memplan_rewriter::rows::{
    Outcome, Rows, Treatment, block_of, by_operand, by_result, carried_type, is_repetition, neutral, on_block,
};

/// Most instructions that are looked at to see that something is there before a loop.
const MAX_WALK: usize = 4096;

/// Rewrites what can be.
pub(super) fn run(module: &mut Module, target: &Target, options: &KeepWithinLoops) -> bool {
    if module.is_scheduled {
        return false;
    }
    let users = Users::new(module);
    let loops = loops(module, &users);
    let mut program: Option<LoopContext<'_>> = None;
    let mut found: Vec<(&Loop, Cone)> = Vec::new();
    for of in loops.iter().filter(|of| !of.is_sharded(module)) {
        let made = made_row_by_row(module, &users, of);
        let read: Vec<Made> =
            made.into_iter().filter(|made| of.results.contains_key(&made.element)).collect();
        let is_large = |made: &&Made| {
            let stack = module.shape_of(made.shape).as_array().and_then(|array| array.dense_bytes());
            stack.is_some_and(|bytes| bytes >= options.min_summed_bytes)
        };
        let mut done: FxHashSet<u32> = FxHashSet::default();
        for made in read.iter().filter(is_large) {
            let program = program.get_or_insert_with(|| LoopContext {
                module,
                target,
                users: &users,
                positions: positions(module),
            });
            if done.contains(&made.element) {
                continue;
            }
            if let Some(cone) = cone(program, of, &read, made, options.max_operations) {
                done.extend(cone.stacks.iter().map(|made| made.element));
                found.push((of, cone));
            }
        }
    }
    drop(program);
    if found.is_empty() {
        return false;
    }
    let mut names = Names::new(module);
    let mut stands_for = FxHashMap::default();
    for (of, cone) in &found {
        stands_for.extend(Writer::new(module, of, cone, &mut names).write());
        module.put_operands_first(of.body);
    }
    use_instead(module, &stands_for);
    true
}

fn positions(module: &Module) -> FxHashMap<InstructionId, usize> {
    let lists = module.computations.values().map(|computation| computation.instructions.iter());
    lists.flat_map(|list| list.enumerate().map(|(position, &id)| (id, position))).collect()
}

#[derive(Clone)]
struct LoopContext<'a> {
    module: &'a Module,
    target: &'a Target,
    users: &'a Users,
    /// Of each instruction in its computation.
    positions: FxHashMap<InstructionId, usize>,
}

/// Everything that is computed from stacks of a loop, where all of it ends in sums over the rows.
struct Cone {
    stacks: Vec<Made>,
    /// The instructions to compute step by step, operands first. The sums are the last of their paths.
    members: Vec<InstructionId>,
    treatments: FxHashMap<InstructionId, Treatment>,
}

/// Why there is no cone.
enum Refusal {
    /// It reads another stack of the loop, too.
    Needs(Made),
    Never,
}

/// The cone of a stack, and of others that are read with it, where that saves memory.
fn cone(
    program: &LoopContext<'_>,
    of: &Loop,
    made: &[Made],
    first: &Made,
    max_operations: usize,
) -> Option<Cone> {
    let mut stacks = vec![*first];
    loop {
        let mut growth = Growth::new(program, of, made, &stacks);
        match growth.grow(max_operations) {
            Ok(()) => return growth.finish(stacks),
            Err(Refusal::Needs(other)) if stacks.iter().all(|made| made.element != other.element) => {
                stacks.push(other);
            }
            Err(_) => return None,
        }
    }
}

struct Growth<'a> {
    program: &'a LoopContext<'a>,
    of: &'a Loop,
    n: i64,
    /// The rows of a step, and their elements.
    unit: i64,
    /// All stacks of the loop, by where they are taken out.
    taken: FxHashMap<InstructionId, Made>,
    sites: FxHashMap<InstructionId, Made>,
    /// The values with rows: the stacks and values computed from them.
    rows: FxHashMap<InstructionId, Rows>,
    treatments: FxHashMap<InstructionId, Treatment>,
    members: Vec<InstructionId>,
    /// Operands that do not depend on the stacks and are not recomputed.
    carried: FxHashSet<InstructionId>,
    open: BinaryHeap<Reverse<(usize, InstructionId)>>,
}

impl<'a> Growth<'a> {
    fn new(program: &'a LoopContext<'a>, of: &'a Loop, made: &[Made], stacks: &[Made]) -> Growth<'a> {
        let sites_of = |made: &[Made]| -> FxHashMap<InstructionId, Made> {
            made.iter().flat_map(|made| of.results[&made.element].iter().map(|&site| (site, *made))).collect()
        };
        let mut growth = Growth {
            program,
            of,
            n: stacks[0].n_steps,
            unit: i64::try_from(stacks[0].rows.count).expect("rows are within an array"),
            taken: sites_of(made),
            sites: sites_of(stacks),
            rows: FxHashMap::default(),
            treatments: FxHashMap::default(),
            members: Vec::new(),
            carried: FxHashSet::default(),
            open: BinaryHeap::new(),
        };
        for made in stacks {
            for &site in &of.results[&made.element] {
                growth.rows.insert(site, Rows { dimension: made.rows.dimension, unit: growth.unit });
                growth.open_users(site);
            }
        }
        growth
    }

    fn open_users(&mut self, id: InstructionId) {
        let users = self.program.users.of(id).iter();
        self.open.extend(users.map(|&user| Reverse((self.program.positions[&user], user))));
    }

    /// Follows the values computed from the stacks, operands first.
    fn grow(&mut self, max_operations: usize) -> Result<(), Refusal> {
        let lines: Vec<_> = self.sites.values().map(|made| (made.rows.count, made.rows.first)).collect();
        if lines.iter().any(|line| *line != lines[0]) {
            return Err(Refusal::Never);
        }
        while let Some(Reverse((_, id))) = self.open.pop() {
            if self.treatments.contains_key(&id) {
                continue;
            }
            let treatment = self.treatment(id).ok_or(Refusal::Never)?;
            self.bring_operands(id, &treatment)?;
            if let Some(rows) = treatment.rows() {
                self.rows.insert(id, rows);
                self.open_users(id);
            }
            self.members.push(id);
            self.treatments.insert(id, treatment);
            if self.members.len() > max_operations {
                return Err(Refusal::Never);
            }
        }
        Ok(())
    }

    /// How an instruction that reads rows treats them, where that can be done within the loop.
    fn treatment(&self, id: InstructionId) -> Option<Treatment> {
        let module = self.program.module;
        let instruction = &module.instructions[id];
        let number = instruction.operands.iter().position(|operand| self.rows.contains_key(operand))?;
        let rows = self.rows[&instruction.operands[number]];
        let treatment = by_operand(module, id, self.n, number, rows)?;
        let is_read_alike = instruction
            .operands
            .iter()
            .zip(&treatment.operands)
            .all(|(operand, part)| self.rows.get(operand).is_none_or(|rows| *part == Some(*rows)));
        let is_cheap =
            matches!(cost::class_of(module, id), CostClass::Cheap | CostClass::Hero(Hero::Reduction));
        let is_root = module.computations[instruction.parent].root == id;
        let may_be = match treatment.outcome {
            Outcome::Rows(_) => !is_root,
            Outcome::Sum(_) => {
                let begins_with_constant = || scalar(module, instruction.operands[1]).is_some();
                matches!(instruction.op, Op::Reduce { .. }) && begins_with_constant()
            }
        };
        let is_plain = instruction.control_predecessors.is_empty() && instruction.extras.is_none();
        (is_read_alike && is_cheap && may_be && is_plain).then_some(treatment)
    }

    /// Sees to operands that are not computed from the stacks: repetitions are made again in the loop, others are carried.
    fn bring_operands(&mut self, id: InstructionId, treatment: &Treatment) -> Result<(), Refusal> {
        let module = self.program.module;
        for (&operand, &part) in module.instructions[id].operands.iter().zip(&treatment.operands) {
            if self.rows.contains_key(&operand) {
                continue;
            }
            let repeated = part.filter(|_| is_repetition(&module.instructions[operand].op));
            if let Some(rows) = repeated {
                let counts = matches!(module.instructions[operand].op, Op::Iota { dimension } if dimension == rows.dimension as i64);
                let treatment =
                    by_result(module, operand, self.n, rows).filter(|_| !counts).ok_or(Refusal::Never)?;
                // It may be read whole elsewhere, so it has rows for this reader only if all agree.
                self.bring_operands(operand, &treatment)?;
                self.rows.insert(operand, rows);
                self.members.push(operand);
                self.treatments.insert(operand, treatment);
                continue;
            }
            if scalar(module, operand).is_some() && part.is_none() {
                continue;
            }
            let is_cut_alike = part.is_none_or(|part| part.unit == self.unit || self.unit == 1);
            if !is_cut_alike || module.shape(operand).as_array().is_none_or(|array| array.is_dynamic()) {
                return Err(Refusal::Never);
            }
            self.check_is_there_before(operand)?;
            self.carried.insert(operand);
        }
        Ok(())
    }

    /// Whether a value is not computed from the loop.
    fn check_is_there_before(&self, value: InstructionId) -> Result<(), Refusal> {
        let LoopContext { module, positions, .. } = self.program;
        let first = positions[&self.of.id];
        let mut seen: FxHashSet<InstructionId> = FxHashSet::default();
        let mut open = vec![value];
        while let Some(id) = open.pop() {
            if let Some(&made) = self.taken.get(&id) {
                return Err(if self.sites.contains_key(&id) { Refusal::Never } else { Refusal::Needs(made) });
            }
            if id == self.of.id || seen.len() > MAX_WALK {
                return Err(Refusal::Never);
            }
            // Instructions before the loop in the text cannot depend on it.
            if positions[&id] > first {
                let instruction = &module.instructions[id];
                let before = instruction.operands.iter().chain(&instruction.control_predecessors).copied();
                open.extend(before.filter(|&operand| seen.insert(operand)));
            }
        }
        Ok(())
    }

    /// The cone, where it ends in sums of which all take much less than the stacks.
    fn finish(self, stacks: Vec<Made>) -> Option<Cone> {
        let LoopContext { module, target, .. } = *self.program;
        let bytes = |id: InstructionId| cost::result_bytes(module, target, id);
        let sum = |ids: &mut dyn Iterator<Item = InstructionId>| ids.map(bytes).fold(0, u64::saturating_add);
        let is_given = |id: InstructionId| module.instructions[id].op.is_input();
        let is_sum = |id: &InstructionId| self.treatments[id].rows().is_none();
        let sums = sum(&mut self.members.iter().copied().filter(is_sum));
        let carried = sum(&mut self.carried.iter().copied().filter(|&id| !is_given(id)));
        let stacked = sum(&mut stacks.iter().map(|made| self.of.results[&made.element][0]));
        let saves = sums.saturating_add(carried).saturating_mul(2) <= stacked;
        let Growth { members, treatments, .. } = self;
        let ends_in_sums = members.iter().any(|id| treatments[id].rows().is_none());
        (saves && ends_in_sums).then_some(Cone { stacks, members, treatments })
    }
}

/// Writes the members of a cone into the body of its loop.
struct Writer<'a> {
    of: &'a Loop,
    cone: &'a Cone,
    module: &'a mut Module,
    names: &'a mut Names,
    /// The value in the body for a part of a value from outside.
    within: FxHashMap<(InstructionId, Option<Rows>), InstructionId>,
    /// The rows of a step begin with this one.
    start: InstructionId,
}

impl<'a> Writer<'a> {
    fn new(module: &'a mut Module, of: &'a Loop, cone: &'a Cone, names: &'a mut Names) -> Writer<'a> {
        let first = cone.stacks[0];
        let update = first.update(module, of);
        let start = module.instructions[update].operands[2 + first.rows.dimension];
        Writer { of, cone, module, names, within: FxHashMap::default(), start }
    }

    /// Returns the replacement of each sum after the loop.
    fn write(mut self) -> Vec<(InstructionId, InstructionId)> {
        let mut sums = Vec::new();
        let cone = self.cone;
        for made in &cone.stacks {
            let unit = i64::try_from(made.rows.count).expect("rows are within an array");
            let rows = Rows { dimension: made.rows.dimension, unit };
            let row = made.row(self.module, self.of);
            let sites = self.of.results[&made.element].iter();
            self.within.extend(sites.map(|&site| ((site, Some(rows)), row)));
        }
        for &id in &cone.members {
            let treatment = &cone.treatments[&id];
            match treatment.outcome {
                Outcome::Rows(rows) => {
                    let copy = self.copy(id, treatment, rows);
                    self.within.insert((id, Some(rows)), copy);
                }
                Outcome::Sum(op) => sums.push((id, self.sum(id, treatment, op))),
            }
        }
        self.of.set_shapes(self.module);
        sums
    }

    /// An instruction on the rows of a step.
    fn copy(&mut self, id: InstructionId, treatment: &Treatment, rows: Rows) -> InstructionId {
        let operands = self.operands(id, treatment);
        let instruction = self.module.instructions[id].clone();
        let op = on_block(&instruction.op, treatment, rows.unit);
        let shape = block_of(self.module.shape(id), rows);
        self.within(id).insert_instruction(op, operands, instruction.called, Some(shape))
    }

    /// A sum over the rows of all steps, as it is after the loop.
    fn sum(&mut self, id: InstructionId, treatment: &Treatment, op: BinaryOp) -> InstructionId {
        let instruction = self.module.instructions[id].clone();
        let mut operands = self.operands(id, treatment);
        let array = self.module.shape(id).as_array().expect("a sum is an array").clone();
        if let Some(value) = neutral(op) {
            operands[1] = self.within(id).integer(array.element_type, value);
        }
        let (shape, called) = (self.module.shape(id).clone(), instruction.called);
        let mut row =
            self.within(id).insert_instruction(instruction.op, operands, called, Some(shape.clone()));
        let begin = splat(&mut self.around(self.of.id), instruction.operands[1], shape);
        let carried = carried_type(op, array.element_type);
        let is_widened = carried != array.element_type;
        let begin = if is_widened { self.around(id).convert(begin, carried) } else { begin };
        if is_widened {
            row = self.within(id).convert(row, carried);
        }
        // The element's number is known once it is added, and the state gets its shape at the end.
        let element = self.of.add_element(self.module, begin, row);
        let take = Op::GetTupleElement { index: element };
        let (state, of) = (self.of.state, self.of.id);
        let wide = Shape::Array(ArrayShape { element_type: carried, ..array.clone() });
        let before = self.within(id).insert_shaped(take.clone(), [state], wide.clone());
        let next = self.within(id).binary(op, before, row);
        self.module.instructions[self.of.next].operands[element as usize] = next;
        let after = self.around(id).insert_shaped(take, [of], wide);
        if is_widened { self.around(id).convert(after, array.element_type) } else { after }
    }

    fn operands(&mut self, id: InstructionId, treatment: &Treatment) -> Vec<InstructionId> {
        let operands = self.module.instructions[id].operands.clone();
        operands
            .iter()
            .zip(&treatment.operands)
            .map(|(&operand, &part)| self.operand(operand, part))
            .collect()
    }

    /// The value in the body for a part of a value.
    fn operand(&mut self, id: InstructionId, part: Option<Rows>) -> InstructionId {
        if let Some(&known) = self.within.get(&(id, part)) {
            return known;
        }
        let new = match (part, &self.module.instructions[id].op) {
            (None, Op::Constant(_)) if scalar(self.module, id).is_some() => {
                let (op, shape) = (self.module.instructions[id].op.clone(), self.module.shape(id).clone());
                self.within(id).insert_shaped(op, [], shape)
            }
            (None, _) => self.carry(id),
            (Some(rows), _) => {
                let whole = self.operand(id, None);
                self.rows_of(whole, rows)
            }
        };
        self.within.insert((id, part), new);
        new
    }

    /// A value from before the loop, which the loop passes through.
    fn carry(&mut self, id: InstructionId) -> InstructionId {
        let shape = self.module.shape(id).clone();
        let init = &self.module.instructions[self.of.init].operands;
        let known = (0..init.len()).find(|&i| init[i] == id && self.of.passes_on(self.module, i as u32));
        let take = |index: u32| Op::GetTupleElement { index };
        let state = self.of.state;
        match known {
            Some(element) => self.within(id).insert_shaped(take(element as u32), [state], shape),
            None => {
                let element = self.of.add_element(self.module, id, state);
                let taken = self.within(id).insert_shaped(take(element), [state], shape);
                self.module.instructions[self.of.next].operands[element as usize] = taken;
                taken
            }
        }
    }

    /// The rows of a step of an array in the body.
    fn rows_of(&mut self, whole: InstructionId, rows: Rows) -> InstructionId {
        let block = block_of(self.module.shape(whole), rows);
        let slice_sizes = block.as_array().expect("rows are of arrays").dimensions.clone();
        let number = self.module.shape(self.start).as_array().expect("a number is an array").element_type;
        let unit = self.cone.stacks[0].rows.count;
        let mut start = self.start;
        let mut at = self.within(whole);
        if i128::from(rows.unit) != unit {
            let elements = at.integer(number, rows.unit);
            start = at.binary(BinaryOp::Multiply, start, elements);
        }
        let zero = at.integer(number, 0);
        let starts = (0..slice_sizes.len()).map(|d| if d == rows.dimension { start } else { zero });
        let operands: Vec<InstructionId> = std::iter::once(whole).chain(starts).collect();
        at.insert_shaped(Op::DynamicSlice { slice_sizes }, operands, block)
    }

    /// For new instructions in the body, which are listed at the end.
    fn within(&mut self, metadata_of: InstructionId) -> Cursor<'_> {
        Cursor::unlisted(self.module, self.names, self.of.body).with_metadata_of(metadata_of)
    }

    /// For new instructions beside the loop, which are listed at the end.
    fn around(&mut self, metadata_of: InstructionId) -> Cursor<'_> {
        let parent = self.module.instructions[self.of.id].parent;
        Cursor::unlisted(self.module, self.names, parent).with_metadata_of(metadata_of)
    }
}
