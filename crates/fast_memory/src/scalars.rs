//! Where scalars come from that say which part to bring: now, in the next iteration of a loop, and in its first.
//!
//! An offset inside of a kernel is computed from scalars among the kernel's operands, and those, in a loop, from the
//! loop's state. So it can be computed elsewhere from copies of the same few operations: with what the body returns in
//! place of the state for the next iteration, with the initial state for the first. What the body returns for an
//! element of the state takes that element's memory: before it is made it is computed from the state, afterwards it is
//! there, and the state is not.

use memplan_analysis::{CallGraph, Facts, Time, ValueId, ValueKind};
use memplan_ir::{ComputationId, InstructionId, Module, Op, Opcode, Users};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

/// A loop whose state may get another element.
#[derive(Clone, Copy, Debug)]
pub(super) struct Loop {
    /// The `while`.
    pub(super) id: InstructionId,
    /// The tuple that it begins with.
    pub(super) init: InstructionId,
    /// The body's and the condition's parameter.
    pub(super) states: [InstructionId; 2],
    /// The tuple that the body returns.
    pub(super) root: InstructionId,
}

impl Loop {
    /// The loop that a computation is the body of. Nothing but `get-tuple-element` may look at its state, and nothing
    /// else at the tuples that it is made of.
    pub(super) fn around(
        module: &Module,
        graph: &CallGraph,
        users: &Users,
        body: ComputationId,
    ) -> Option<Loop> {
        let id = graph.caller(body)?;
        let &[first, condition] = module.instructions[id].called.as_slice() else { return None };
        if module.instructions[id].op != Op::While || first != body {
            return None;
        }
        let init = module.instructions[id].operands[0];
        let states = [body, condition].map(|c| module.computations[c].parameters[0]);
        let root = module.computations[body].root;
        let is_taken_apart = |id: InstructionId| {
            let is_element =
                |&user: &InstructionId| matches!(module.instructions[user].op, Op::GetTupleElement { .. });
            users.of(id).iter().all(is_element)
        };
        let outer = &module.computations[module.instructions[id].parent];
        let is_plain = module.instructions[init].op == Op::Tuple
            && users.of(init) == [id]
            && module.instructions[root].op == Op::Tuple
            && users.of(root).is_empty()
            && outer.root != id
            && [id, states[0], states[1]].into_iter().all(is_taken_apart);
        is_plain.then_some(Loop { id, init, states, root })
    }

    /// Which element of the state an instruction of the body takes out.
    pub(super) fn element(&self, module: &Module, id: InstructionId) -> Option<u32> {
        let instruction = &module.instructions[id];
        match instruction.op {
            Op::GetTupleElement { index } if instruction.operands[0] == self.states[0] => Some(index),
            _ => None,
        }
    }
}

/// For which moment a scalar is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum When {
    /// Where the kernel runs.
    Now,
    /// In this iteration, from the loop's state alone.
    This,
    /// In the next iteration, as seen from this one.
    Next,
    /// In the first iteration, as seen from before the loop.
    First,
}

/// How to come by a scalar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// It exists.
    Existing(InstructionId),
    /// As the result of the same operation as this instruction's, on its operands, all for that moment.
    Computed(InstructionId, When),
}

/// What a kernel's scalars are made from.
#[derive(Clone, Copy)]
pub(super) struct Scope<'a> {
    pub(super) facts: &'a Facts,
    pub(super) kernel: InstructionId,
    /// The loop whose body the kernel stands in, and the instant in it at which the next iteration is asked for.
    pub(super) around: Option<(&'a Loop, Time)>,
}

impl Scope<'_> {
    /// How to come by a scalar that stands in the kernel, or beside it. `None` when that takes more than scalars, or
    /// the loop is not known.
    pub(super) fn origin(&self, module: &Module, id: InstructionId, when: When) -> Option<Origin> {
        let kernel = &module.instructions[self.kernel];
        let instruction = &module.instructions[id];
        if instruction.parent != kernel.parent {
            return match instruction.op {
                Op::Parameter { number } => self.origin(module, kernel.operands[number as usize], when),
                _ => is_computable(module, id).then_some(Origin::Computed(id, when)),
            };
        }
        if when == When::Now {
            return Some(Origin::Existing(id));
        }
        let (around, at) = self.around?;
        let Some(element) = around.element(module, id) else {
            return is_computable(module, id).then_some(Origin::Computed(id, when));
        };
        let [first, next] =
            [around.init, around.root].map(|tuple| module.instructions[tuple].operands[element as usize]);
        let is_made = self.is_made(id, next, at)?;
        match when {
            When::First => Some(Origin::Existing(first)),
            When::Next if is_made => Some(Origin::Existing(next)),
            When::Next => self.origin(module, next, When::This),
            When::Now | When::This => (!is_made || self.is_kept(id, next)).then_some(Origin::Existing(id)),
        }
    }

    /// Whether an element of the loop's state is what the body returns for it.
    fn is_kept(&self, element: InstructionId, next: InstructionId) -> bool {
        let flow = &self.facts.flow;
        flow.value_of(element) == flow.value_of(next)
    }

    /// Whether what the body returns for an element of the state exists at an instant; `None` for another element.
    fn is_made(&self, element: InstructionId, next: InstructionId, at: Time) -> Option<bool> {
        let flow = &self.facts.flow;
        let value = &flow.values[flow.value_of(next)?];
        let made = self.facts.line.time(flow.positions.instruction(value.definition));
        match value.kind {
            _ if self.is_kept(element, next) => Some(true),
            ValueKind::Written | ValueKind::ExitPhi => Some(made < at),
            _ => None,
        }
    }

    /// The existing scalars that some others come from; `None` when one cannot be come by, or not by a few operations.
    pub(super) fn sources(
        &self,
        module: &Module,
        ids: &[InstructionId],
        when: When,
    ) -> Option<Vec<InstructionId>> {
        let mut open: Vec<(InstructionId, When)> = ids.iter().map(|&id| (id, when)).collect();
        let mut sources = Vec::new();
        let mut visits = 0;
        while let Some((id, when)) = open.pop() {
            visits += 1;
            if visits > MOST_OPERATIONS {
                return None;
            }
            match self.origin(module, id, when)? {
                Origin::Existing(source) => sources.push(source),
                Origin::Computed(id, when) => {
                    open.extend(module.instructions[id].operands.iter().map(|&operand| (operand, when)));
                }
            }
        }
        Some(sources)
    }
}

/// Scalars by how they are computed: those of a class are equal.
#[derive(Default)]
pub(super) struct Classes {
    count: u32,
    existing: FxHashMap<Option<ValueId>, u32>,
    computed: FxHashMap<Operation, SmallVec<[(InstructionId, u32); 1]>>,
}

/// An operation on classes. What it is beside its name, an instruction of each class shows.
type Operation = (Opcode, SmallVec<[u32; 3]>);

impl Classes {
    /// The class of a scalar that can be come by where the kernel runs.
    pub(super) fn of(&mut self, module: &Module, scope: Scope<'_>, id: InstructionId) -> u32 {
        let origin = scope.origin(module, id, When::Now).expect("scalars were found to be computable");
        let id = match origin {
            Origin::Existing(id) => {
                let value = scope.facts.flow.value_of(id);
                let next = self.count;
                let class = *self.existing.entry(value).or_insert(next);
                self.count += u32::from(class == next);
                return class;
            }
            Origin::Computed(id, _) => id,
        };
        let instruction = &module.instructions[id];
        let operands = instruction.operands.iter().map(|&operand| self.of(module, scope, operand)).collect();
        let known = self.computed.entry((instruction.opcode(), operands)).or_default();
        let same = known.iter().find(|(other, _)| {
            let other = &module.instructions[*other];
            (&other.op, other.shape, &other.called)
                == (&instruction.op, instruction.shape, &instruction.called)
        });
        if let Some(&(_, class)) = same {
            return class;
        }
        known.push((id, self.count));
        self.count += 1;
        self.count - 1
    }
}

/// The most operations that are repeated for one part.
const MOST_OPERATIONS: usize = 64;

/// Whether an instruction makes a scalar of scalars and of nothing else, always the same.
fn is_computable(module: &Module, id: InstructionId) -> bool {
    let is_scalar = |id: InstructionId| module.shape(id).as_array().is_some_and(|array| array.rank() == 0);
    let instruction = &module.instructions[id];
    let is_pure = matches!(
        instruction.op,
        Op::Constant(_)
            | Op::Unary(_)
            | Op::Binary(_)
            | Op::Compare { .. }
            | Op::Select
            | Op::Clamp
            | Op::Convert
            | Op::Copy
            | Op::Bitcast
            | Op::Reshape { .. }
            | Op::Fusion(_)
    );
    is_pure && is_scalar(id) && instruction.operands.iter().all(|&operand| is_scalar(operand))
}
