//! Operands that a conditional hands back: some branches return them, and the result is in their memory.
//!
//! ```text
//!   yes: p → add(p, e)      no: p → p      r = conditional(c, a, a): r is in the memory of a, and no branch copies
//! ```
//!
//! Nothing may need the operand when a branch has written over it, so what reads it elsewhere must run before the
//! conditional, and before any conditional around it. Other branches do not matter: one of them runs.
//!
//! This is decided before any computation is processed, since branches are processed before their callers: the order that
//! it takes is fixed here, by control dependencies.

use memplan_analysis::{CallGraph, Dataflow, InPlace, ValueId, ValueKind, aliased_values, in_place_values};
use memplan_ir::{ComputationId, InstructionId, Module, Op, PositionId, Shape};
use petgraph::unionfind::UnionFind;
use rustc_hash::{FxHashMap, FxHashSet};
use serde::Deserialize;

use super::order::sort_topologically;
use super::{AddsOrder, values_read};

/// Which operands that a branch returns keep their memory. Other branches copy what they return.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HandsBack {
    /// All.
    Always,
    /// Those of a conditional's first branch.
    InFirstBranch,
    /// Those of the first branch, and those that must be where the result is for another reason, such as the state of a
    /// loop of which the result is the next.
    InFirstBranchOrInPlace,
}

/// The operands that conditionals hand back.
#[derive(Default)]
pub(super) struct HandedBack {
    /// The operand in whose memory a result of a conditional is.
    pub(super) operand_of: FxHashMap<ValueId, ValueId>,
    /// The values from outside that a computation may overwrite for that.
    pub(super) free: FxHashSet<(ComputationId, ValueId)>,
}

/// What must be made to run before a conditional.
type Order = Vec<(InstructionId, InstructionId)>;

/// Most instructions looked at, a second or so: a limit for hostile programs. Beyond it, branches copy what they return.
const MAX_STEPS: usize = 20_000_000;

/// Decides what conditionals hand back, and adds control dependencies for it. Returns whether it added any.
pub(super) fn handed_back(
    module: &mut Module,
    graph: &CallGraph,
    flow: &Dataflow,
    in_place: &InPlace,
    given: &FxHashSet<ValueId>,
    (hands_back, adds_order): (HandsBack, AddsOrder),
) -> (HandedBack, bool) {
    let mut found = HandedBack::default();
    let (mut changed, mut steps, mut shared) = (false, 0, None);
    // Callers first: what they hand back is in one buffer with the results of conditionals in their branches.
    for &computation in graph.sequential().iter().rev() {
        for id in module.computations[computation].instructions.clone() {
            if module.instructions[id].op != Op::Conditional {
                continue;
            }
            let mut returned = returned_by(module, flow, id);
            returned.retain(|returned| returned.operands().next().is_some());
            if returned.is_empty() || steps > MAX_STEPS {
                continue;
            }
            let values = returned.iter().flat_map(Returned::operands).collect();
            let mut needed = Needed { module, graph, flow, given, adds_order, steps: &mut steps };
            let mut dying = needed.dying(id, values);
            let mut ordered: Vec<ComputationId> = Vec::new();
            for returned in returned {
                let result = returned.result;
                let first = returned.by_branch.first().filter(|(_, is_operand)| *is_operand);
                let first = first.map(|&(value, _)| value).filter(|value| dying.contains_key(value));
                let chosen = match hands_back {
                    HandsBack::Always => returned.operands().find(|value| dying.contains_key(value)),
                    _ if first.is_some() => first,
                    HandsBack::InFirstBranch => None,
                    HandsBack::InFirstBranchOrInPlace => {
                        let shared =
                            shared.get_or_insert_with(|| Shared::new(module, graph, flow, in_place, &found));
                        steps += shared.made.len();
                        returned.operands().find(|&v| {
                            dying.contains_key(&v) && shared.is_in_place(module, flow, in_place, v, result)
                        })
                    }
                };
                let Some((operand, order)) = chosen.and_then(|v| dying.remove_entry(&v)) else { continue };
                if let Some(shared) = &mut shared {
                    shared.sets.union(operand.as_u32(), result.as_u32());
                }
                for (before, after) in order {
                    let predecessors = &mut module.instructions[after].control_predecessors;
                    if !predecessors.contains(&before) {
                        predecessors.push(before);
                        ordered.push(module.instructions[after].parent);
                    }
                }
                found.operand_of.insert(result, operand);
                let branches = module.instructions[id].called.iter().map(|&branch| (branch, operand));
                found.free.extend(branches);
                let made_in = module.instructions[defining(flow, operand)].parent;
                let mut around = computation;
                while around != made_in
                    && let Some(caller) = graph.caller(around)
                {
                    found.free.insert((around, operand));
                    around = module.instructions[caller].parent;
                }
            }
            ordered.sort_unstable();
            ordered.dedup();
            changed |= !ordered.is_empty();
            ordered.into_iter().for_each(|computation| sort_topologically(module, computation));
        }
    }
    (found, changed)
}

fn defining(flow: &Dataflow, value: ValueId) -> InstructionId {
    flow.positions.instruction(flow.values[value].definition)
}

/// An array in the result of a conditional.
struct Returned {
    result: ValueId,
    /// What each branch returns for it, and whether that is a part of its operand.
    by_branch: Vec<(ValueId, bool)>,
}

impl Returned {
    fn operands(&self) -> impl Iterator<Item = ValueId> {
        self.by_branch.iter().filter(|(_, is_operand)| *is_operand).map(|(value, _)| *value)
    }
}

/// The arrays in the result of a conditional for which branches return different values.
fn returned_by(module: &Module, flow: &Dataflow, id: InstructionId) -> Vec<Returned> {
    let branches = &module.instructions[id].called;
    let parameters = |&branch: &ComputationId| -> FxHashSet<ValueId> {
        let parameters = module.computations[branch].parameters.iter();
        parameters.flat_map(|&p| flow.positions.of(p)).filter_map(|at| flow.value_at(at)).collect()
    };
    let passed: Vec<FxHashSet<ValueId>> = branches.iter().map(parameters).collect();
    let is_joined = |&(at, result): &(PositionId, ValueId)| {
        let value = &flow.values[result];
        value.kind == ValueKind::ExitPhi
            && value.definition == at
            && matches!(flow.positions.part(module, at), Shape::Array(_))
    };
    let parts = flow.positions.of(id).filter_map(|at| Some((at, flow.value_at(at)?)));
    let returned = parts.filter(is_joined).map(|(at, result)| {
        let offset = at.as_u32() - flow.positions.root(id).as_u32();
        let by_branch = branches.iter().zip(&passed).map(|(&branch, passed)| {
            let root = flow.positions.root(module.computations[branch].root);
            let value = flow.value_at(PositionId::from_u32(root.as_u32() + offset)).expect("sequential");
            (value, passed.contains(&value))
        });
        Returned { result, by_branch: by_branch.collect() }
    });
    returned.collect()
}

/// What shares a buffer whether or not a conditional hands it back.
struct Shared {
    sets: UnionFind<u32>,
    /// The results of conditionals, with what each branch makes for them.
    made: Vec<(ValueId, ComputationId, ValueId)>,
}

impl Shared {
    fn new(
        module: &Module,
        graph: &CallGraph,
        flow: &Dataflow,
        in_place: &InPlace,
        found: &HandedBack,
    ) -> Shared {
        let mut sets = UnionFind::new(flow.values.len());
        let (mut returned, mut made) = (FxHashSet::default(), Vec::new());
        for &computation in graph.sequential() {
            for &id in &module.computations[computation].instructions {
                for (source, result) in in_place_values(module, flow, in_place, id) {
                    sets.union(source.as_u32(), result.as_u32());
                }
                if module.instructions[id].op == Op::Conditional {
                    for Returned { result, by_branch } in returned_by(module, flow, id) {
                        for (&branch, (value, is_operand)) in
                            module.instructions[id].called.iter().zip(by_branch)
                        {
                            match is_operand {
                                true => _ = returned.insert((result, value)),
                                false => made.push((result, branch, value)),
                            }
                        }
                    }
                }
            }
        }
        let joined = flow.phi_inputs.iter().copied().filter(|pair| !returned.contains(pair));
        let handed_back = found.operand_of.iter().map(|(&result, &operand)| (result, operand));
        for (a, b) in joined.chain(aliased_values(module, flow)).chain(handed_back) {
            sets.union(a.as_u32(), b.as_u32());
        }
        Shared { sets, made }
    }

    /// Whether an operand and a result of a conditional share a buffer anyway, and every branch that writes this buffer has
    /// read the operand before.
    fn is_in_place(
        &self,
        module: &Module,
        flow: &Dataflow,
        in_place: &InPlace,
        operand: ValueId,
        result: ValueId,
    ) -> bool {
        let is_here = |value: ValueId| self.sets.equiv(value.as_u32(), operand.as_u32());
        is_here(result)
            && self
                .made
                .iter()
                .filter(|made| is_here(made.0))
                .all(|&(_, branch, value)| is_read_before(module, flow, in_place, branch, operand, value))
    }
}

/// Whether what reads a value in a computation must run before another value is written, or may write that over it.
fn is_read_before(
    module: &Module,
    flow: &Dataflow,
    in_place: &InPlace,
    computation: ComputationId,
    read: ValueId,
    written: ValueId,
) -> bool {
    let at = flow.values[written].definition;
    let (writer, output) = (flow.positions.instruction(at), flow.positions.shape_index(at));
    let before = all_before(module, writer);
    let ids = module.computations[computation].instructions.iter().copied();
    let mut readers = ids.filter(|&id| values_read(flow, &module.instructions[id]).contains(&read));
    readers.all(|id| {
        let operands = module.instructions[id].operands.iter().enumerate();
        let mut reads = operands.filter(|(_, operand)| flow.value_of(**operand) == Some(read));
        let is_kernel = !matches!(module.instructions[id].op, Op::Call { .. } | Op::Conditional | Op::While);
        match id == writer && is_kernel {
            true => reads.all(|(number, _)| in_place.may_take_over(module, id, number, output)),
            false => before.contains(&id),
        }
    })
}

/// An instruction, and what must run before it in its computation.
fn all_before(module: &Module, id: InstructionId) -> FxHashSet<InstructionId> {
    let mut before = FxHashSet::from_iter([id]);
    for &other in module.computations[module.instructions[id].parent].instructions.iter().rev() {
        if before.contains(&other) {
            let instruction = &module.instructions[other];
            before.extend(instruction.operands.iter().chain(&instruction.control_predecessors));
        }
    }
    before
}

/// The search for what still needs a value.
struct Needed<'a> {
    module: &'a Module,
    graph: &'a CallGraph,
    flow: &'a Dataflow,
    given: &'a FxHashSet<ValueId>,
    adds_order: AddsOrder,
    steps: &'a mut usize,
}

impl Needed<'_> {
    /// Those of the values that nothing needs once a conditional begins, each with the order that this takes.
    fn dying(&mut self, id: InstructionId, values: FxHashSet<ValueId>) -> FxHashMap<ValueId, Order> {
        let computation = self.module.instructions[id].parent;
        let ids = &self.module.computations[computation].instructions;
        *self.steps += ids.len();
        let mut orders: FxHashMap<ValueId, Order> =
            values.into_iter().map(|value| (value, Order::new())).collect();
        // What every branch returns is in the result itself.
        let root = self.module.computations[computation].root;
        for position in self.flow.positions.of(root).chain(self.flow.positions.of(id)) {
            self.flow.value_at(position).map(|value| orders.remove(&value));
        }
        let inputs = |id: InstructionId| {
            let instruction = &self.module.instructions[id];
            instruction.operands.iter().chain(&instruction.control_predecessors)
        };
        let before = all_before(self.module, id);
        let mut after = FxHashSet::from_iter([id]);
        for &other in ids {
            if inputs(other).any(|input| after.contains(input)) {
                after.insert(other);
            }
            if before.contains(&other) {
                continue;
            }
            for value in values_read(self.flow, &self.module.instructions[other]) {
                if self.adds_order != AddsOrder::Always || after.contains(&other) {
                    orders.remove(&value);
                } else if let Some(order) = orders.get_mut(&value) {
                    order.push((other, id));
                }
            }
        }
        let is_own =
            |value: ValueId| self.module.instructions[defining(self.flow, value)].parent == computation;
        let outer: FxHashSet<ValueId> = orders.keys().copied().filter(|&value| !is_own(value)).collect();
        let caller = self.graph.caller(computation);
        let caller = caller.filter(|&caller| self.module.instructions[caller].op == Op::Conditional);
        let mut of_caller = match caller {
            Some(caller) if !outer.is_empty() => self.dying(caller, outer),
            _ => FxHashMap::default(),
        };
        orders.retain(|&value, order| match is_own(value) {
            true => {
                let is_constant =
                    matches!(self.module.instructions[defining(self.flow, value)].op, Op::Constant(_));
                let is_kept =
                    self.flow.values[value].kind == ValueKind::Parameter && !self.given.contains(&value);
                !is_constant && !is_kept
            }
            false => of_caller.remove(&value).map(|more| order.extend(more)).is_some(),
        });
        orders
    }
}
