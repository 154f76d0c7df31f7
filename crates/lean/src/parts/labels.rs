//! Labels values: those with rows of the batch, sums over it, and values that exist before or after the loop over parts.
//!
//! Labels follow the text from the parameters on. An instruction whose operands have rows has rows too if its index maps
//! say that a row needs only its own row of each; it is a sum over the batch if it adds up rows. Other instructions that
//! read rows or sums need the whole batch, and are computed later.
//!
//! Labels of a loop's state are a fixed point: an element has the label of its initial value, or that of the result of
//! a step. If a step needs rows of a value from outside (a stack of zeros that is written step by step), that value is
//! cut too.

use cranelift_entity::SecondaryMap;
use memplan_ir::{BinaryOp, ComputationId, InstructionId, Module, Op, Shape};
use memplan_rewriter::cost::{self, CostClass};
use memplan_rewriter::loops::{is_zero, scalar};
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::{SmallVec, smallvec};

use super::sums;
use memplan_rewriter::rows::{Outcome, Rows, Treatment, by_operand, by_result, is_repetition};

/// What parts of the batch are to an array.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) enum Label {
    /// It does not depend on the batch, or is computed for all of it before the loop.
    #[default]
    Whole,
    /// It has rows for each part.
    Rows(Rows),
    /// It is a sum over the batch. Each part has a summand.
    Sum,
    /// It needs the whole batch, and so the end of the loop.
    Later,
}

/// The label of an array, or one for each element of a tuple of arrays.
pub(super) type LabelList = SmallVec<[Label; 1]>;

/// The labels of a module.
pub(super) struct Labels {
    /// The number of parts.
    pub(super) n: i64,
    of: SecondaryMap<InstructionId, LabelList>,
    /// What each instruction with rows or sums needs of its operands; arrays only.
    needs: FxHashMap<InstructionId, Needs>,
}

/// The parts that an instruction needs of its operands, one for each.
pub(super) type Needs = SmallVec<[Label; 4]>;

impl Labels {
    /// Labels the entry, and the loops in it, from the rows of some parameters. Values of `before` are whole.
    ///
    /// Linear in the module, times the steps of the fixpoints of nested loops.
    pub(super) fn new(
        module: &Module,
        n: i64,
        seeds: &[(InstructionId, Rows)],
        before: &FxHashSet<InstructionId>,
    ) -> Labels {
        let labels = Labels { n, of: SecondaryMap::new(), needs: FxHashMap::default() };
        let mut calls: FxHashMap<ComputationId, usize> = FxHashMap::default();
        for &id in module.computations.values().flat_map(|computation| &computation.instructions) {
            module.instructions[id].called.iter().for_each(|&called| *calls.entry(called).or_default() += 1);
        }
        let mut walk = Walk { module, labels, before, calls };
        for &id in &module.entry_computation().parameters {
            walk.labels.of[id] = of_all(module, id, Label::Whole);
        }
        for &(id, rows) in seeds {
            walk.labels.of[id] = smallvec![Label::Rows(rows)];
        }
        walk.label_computation(module.entry, &mut None);
        walk.labels
    }

    /// The labels of an instruction's result, element by element.
    pub(super) fn of(&self, id: InstructionId) -> &[Label] {
        &self.of[id]
    }

    /// The label of an array.
    pub(super) fn of_array(&self, id: InstructionId) -> Label {
        self.of[id].first().copied().unwrap_or_default()
    }

    /// What an instruction that is computed in parts needs of its operands.
    pub(super) fn needs_of(&self, id: InstructionId) -> Option<&[Label]> {
        self.needs.get(&id).map(SmallVec::as_slice)
    }

    /// Whether an instruction depends on the batch and can run in the loop.
    pub(super) fn is_inside(&self, id: InstructionId) -> bool {
        let labels = self.of(id);
        labels.iter().any(|label| matches!(label, Label::Rows(_) | Label::Sum))
            && !labels.contains(&Label::Later)
    }

    /// How to compute rows of a value that exists without the batch, in place of cutting them out: repetitions, and what is
    /// cheaply made of them.
    pub(super) fn remade(&self, module: &Module, id: InstructionId, rows: Rows) -> Option<Treatment> {
        let is_leaf = |id: InstructionId, rows: Rows| {
            is_repetition(&module.instructions[id].op).then(|| by_result(module, id, self.n, rows).is_some())
        };
        if !is_cheaply_made(module, self.n, (id, rows), is_leaf) {
            return None;
        }
        match module.instructions[id].op {
            Op::Constant(_) => Some(Treatment { outcome: Outcome::Rows(rows), operands: SmallVec::new() }),
            _ => by_result(module, id, self.n, rows),
        }
    }
}

/// The most operations that are computed again for rows of a value.
const MAX_REMADE: usize = 256;

/// Whether rows of a value are cheaply made of rows of others, down to leaves: `is_leaf` says of a value whether it is one
/// that can be had or one that cannot, or neither. Visits each value once.
fn is_cheaply_made(
    module: &Module,
    n: i64,
    value: (InstructionId, Rows),
    mut is_leaf: impl FnMut(InstructionId, Rows) -> Option<bool>,
) -> bool {
    let mut seen = FxHashSet::from_iter([value]);
    let mut open = vec![value];
    while let Some((id, rows)) = open.pop() {
        let instruction = &module.instructions[id];
        let can_be_had = match instruction.op {
            Op::Constant(_) => Some(scalar(module, id).is_some()),
            _ => is_leaf(id, rows),
        };
        match can_be_had {
            Some(true) => continue,
            Some(false) => return false,
            None => {}
        }
        let is_cheap = matches!(cost::class_of(module, id), CostClass::Cheap | CostClass::Free);
        if !is_cheap || matches!(instruction.op, Op::GetTupleElement { .. } | Op::Parameter { .. }) {
            return false;
        }
        let Some(treatment) = by_result(module, id, n, rows) else { return false };
        for (&operand, part) in instruction.operands.iter().zip(&treatment.operands) {
            open.extend(part.map(|rows| (operand, rows)).filter(|&next| seen.insert(next)));
        }
        if seen.len() > MAX_REMADE {
            return false;
        }
    }
    true
}

/// Whether an instruction that adds up rows has nothing to add them to.
fn starts_at_zero(module: &Module, id: InstructionId) -> bool {
    let instruction = &module.instructions[id];
    match instruction.op {
        Op::Reduce { .. } => is_zero(module, instruction.operands[1]),
        Op::Scatter(_) => is_zero(module, instruction.operands[0]),
        _ => true,
    }
}

struct Walk<'a> {
    module: &'a Module,
    labels: Labels,
    before: &'a FxHashSet<InstructionId>,
    /// How many instructions call a computation.
    calls: FxHashMap<ComputationId, usize>,
}

/// Elements of a loop's state of which a step needs rows, or that they are sums; `None` in the entry, where values can be
/// cut.
type Wanted = Option<Vec<(u32, Label)>>;

impl Walk<'_> {
    /// Labels all instructions of a computation whose parameters are labelled.
    fn label_computation(&mut self, computation: ComputationId, wanted: &mut Wanted) {
        let module = self.module;
        for &id in &module.computations[computation].instructions {
            if matches!(module.instructions[id].op, Op::Parameter { .. }) {
                continue;
            }
            self.labels.needs.remove(&id);
            let found = match self.before.contains(&id) {
                true => None,
                false => self.label(id, wanted),
            };
            self.labels.of[id] = match found {
                Some(labels) => labels,
                None if self.before.contains(&id) => of_all(module, id, Label::Whole),
                None => of_all(module, id, Label::Later),
            };
        }
    }

    /// The labels of an instruction; `None` if it needs the whole batch.
    fn label(&mut self, id: InstructionId, wanted: &mut Wanted) -> Option<LabelList> {
        let module = self.module;
        let instruction = &module.instructions[id];
        let operands = instruction.operands.iter().map(|&operand| self.labels.of(operand));
        let all: LabelList = operands.flatten().copied().collect();
        if all.iter().all(|label| *label == Label::Whole) {
            return Some(of_all(module, id, Label::Whole));
        }
        match &instruction.op {
            // A tuple may also have elements that come later.
            Op::Tuple => return is_flat(module, id).then_some(all),
            Op::GetTupleElement { index } => {
                let label = *all.get(*index as usize)?;
                let is_made_in_loop = wanted.is_none()
                    && matches!(module.instructions[instruction.operands[0]].op, Op::While)
                    && self.labels.is_inside(instruction.operands[0]);
                let comes_last = label == Label::Whole && is_made_in_loop;
                return Some(smallvec![if comes_last { Label::Later } else { label }]);
            }
            _ if all.contains(&Label::Later) || !instruction.control_predecessors.is_empty() => return None,
            Op::OptimizationBarrier => return Some(all),
            Op::While => return self.label_loop(id, all, wanted),
            _ => {}
        }
        let (outcome, needs) = self.treatment(id, &all)?;
        for (&operand, &need) in instruction.operands.iter().zip(&needs) {
            if !self.brings(operand, need, wanted) {
                return None;
            }
        }
        self.labels.needs.insert(id, needs);
        let labels = of_all(module, id, outcome);
        (!labels.is_empty()).then_some(labels)
    }

    /// How an instruction treats its array operands, which have these labels.
    fn treatment(&self, id: InstructionId, labels: &[Label]) -> Option<(Label, Needs)> {
        let (module, n) = (self.module, self.labels.n);
        let instruction = &module.instructions[id];
        if labels.len() != instruction.operands.len() {
            return None;
        }
        if labels.contains(&Label::Sum) {
            return Some((Label::Sum, sums::passing(module, id, labels)?));
        }
        let with_rows = labels.iter().enumerate().filter_map(|(number, label)| match label {
            Label::Rows(rows) => Some((number, *rows)),
            _ => None,
        });
        for (number, rows) in with_rows {
            let found =
                sums::sum_over(module, id, number, rows).or_else(|| by_operand(module, id, n, number, rows));
            if let Some(treatment) = found {
                let part = |rows: &Option<Rows>| rows.map_or(Label::Whole, Label::Rows);
                let outcome = match treatment.outcome {
                    Outcome::Rows(rows) => Label::Rows(rows),
                    Outcome::Sum(op) => {
                        (op == BinaryOp::Add && starts_at_zero(module, id)).then_some(Label::Sum)?
                    }
                };
                return Some((outcome, treatment.operands.iter().map(part).collect()));
            }
        }
        None
    }

    /// Whether a value can be brought in the form in which it is needed.
    fn brings(&self, id: InstructionId, need: Label, wanted: &mut Wanted) -> bool {
        match (self.labels.of_array(id), need) {
            (label, need) if label == need => true,
            (Label::Whole, Label::Rows(rows)) => self.cuts(id, rows, wanted),
            (Label::Whole, Label::Sum) => is_zero(self.module, id) || self.asks(id, need, wanted),
            _ => false,
        }
    }

    /// Whether rows of a whole value can be had: cut out in the entry; made again in a loop, or asked for.
    fn cuts(&self, id: InstructionId, rows: Rows, wanted: &mut Wanted) -> bool {
        wanted.is_none()
            || is_cheaply_made(self.module, self.labels.n, (id, rows), |id, rows| {
                let op = &self.module.instructions[id].op;
                let counts = matches!(op, Op::Iota { dimension } if *dimension == rows.dimension as i64);
                if counts { Some(false) } else { self.asks(id, Label::Rows(rows), wanted).then_some(true) }
            })
    }

    /// Asks for a label of an element of a loop's state, if the value is one.
    fn asks(&self, id: InstructionId, need: Label, wanted: &mut Wanted) -> bool {
        let module = self.module;
        let instruction = &module.instructions[id];
        let (Some(wanted), Op::GetTupleElement { index }) = (wanted, &instruction.op) else { return false };
        let is_state = matches!(module.instructions[instruction.operands[0]].op, Op::Parameter { .. });
        if is_state && !wanted.contains(&(*index, need)) {
            wanted.push((*index, need));
        }
        is_state
    }

    /// The labels of a loop's last state, from those of its first one.
    fn label_loop(&mut self, id: InstructionId, first: LabelList, wanted: &mut Wanted) -> Option<LabelList> {
        let module = self.module;
        let &[body, condition] = module.instructions[id].called.as_slice() else { return None };
        let may_repeat = |called| !has_side_effects(module, called) && self.calls.get(&called) == Some(&1);
        if !may_repeat(body) || !may_repeat(condition) {
            return None;
        }
        let mut state = first.clone();
        loop {
            if state.contains(&Label::Later) {
                return None;
            }
            self.label_parameter(body, &state);
            let mut asked = Some(Vec::new());
            self.label_computation(body, &mut asked);
            let next = self.labels.of(module.computations[body].root).to_vec();
            if next.len() != state.len() {
                return None;
            }
            let mut joined = state.clone();
            for (index, label) in asked.unwrap_or_default() {
                joined[index as usize] = join(joined[index as usize], label);
            }
            for (label, next) in joined.iter_mut().zip(&next) {
                *label = join(*label, *next);
            }
            if joined == state {
                break;
            }
            state = joined;
        }
        self.label_parameter(condition, &state);
        // The state is settled: nothing more may be asked of it.
        let mut late = Some(Vec::new());
        self.label_computation(condition, &mut late);
        let is_counted = self.labels.of_array(module.computations[condition].root) == Label::Whole;
        let starts = self.elements(module.instructions[id].operands[0]);
        let ends = self.elements(module.computations[body].root);
        let is_brought = is_counted
            && (0..state.len()).all(|e| {
                let Some((start, end)) = starts.zip(ends).map(|(a, b)| (a[e], b[e])) else {
                    return state[e] == first[e];
                };
                self.brings(start, state[e], wanted) && self.brings(end, state[e], &mut late)
            });
        (is_brought && late.is_none_or(|late| late.is_empty())).then_some(state)
    }

    /// The values in a tuple, if they are together only there.
    fn elements(&self, id: InstructionId) -> Option<&[InstructionId]> {
        let instruction = &self.module.instructions[id];
        matches!(instruction.op, Op::Tuple).then_some(&instruction.operands[..])
    }

    fn label_parameter(&mut self, computation: ComputationId, state: &LabelList) {
        let parameter = self.module.computations[computation].parameters[0];
        self.labels.of[parameter] = state.clone();
    }
}

/// The label of a value that is either.
fn join(a: Label, b: Label) -> Label {
    match (a, b) {
        (a, b) if a == b => a,
        (Label::Whole, other) | (other, Label::Whole) => other,
        _ => Label::Later,
    }
}

/// One label for each array of a result; none where there are others.
fn of_all(module: &Module, id: InstructionId, label: Label) -> LabelList {
    match module.shape(id) {
        Shape::Tuple(elements) => elements.iter().map(|_| label).collect(),
        _ => smallvec![label],
    }
}

/// Whether a computation, or one that it calls, does anything but compute its root. Visits each once.
fn has_side_effects(module: &Module, computation: ComputationId) -> bool {
    let mut seen = FxHashSet::from_iter([computation]);
    let mut open = vec![computation];
    while let Some(computation) = open.pop() {
        for (_, instruction) in module.instructions_of(computation) {
            if instruction.op.has_side_effect() {
                return true;
            }
            open.extend(instruction.called.iter().copied().filter(|&called| seen.insert(called)));
        }
    }
    false
}

fn is_flat(module: &Module, id: InstructionId) -> bool {
    module
        .shape(id)
        .as_tuple()
        .is_some_and(|elements| elements.iter().all(|element| element.as_array().is_some()))
}
