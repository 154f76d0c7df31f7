//! Computes the scalars of a kernel elsewhere: in the previous iteration, or before the loop.
//!
//! The offset of a slice in a kernel is computed from scalar operands of the kernel, and in a loop from the loop's
//! state. A transfer that fetches the slice before the kernel runs needs the offset earlier. A copy of the same few
//! operations computes it: for the next iteration from the returned next state, for the first one from the initial
//! state.
//!
//! The returned element of the next state reuses the memory of the state's element. Before the body has written it, it
//! is computed from the state; afterwards it exists, and the old element does not any more.

use memplan_ir::{ComputationId, InstructionId, Module, Op, Users};

use crate::{CallGraph, Facts, Time, ValueKind};

/// A `while` whose state is a tuple that is only taken apart and put together element by element, so that it can get
/// another element.
#[derive(Clone, Copy, Debug)]
pub struct TupleLoop {
    /// The `while`.
    pub id: InstructionId,
    /// The tuple that it begins with.
    pub init: InstructionId,
    /// The body's and the condition's parameter.
    pub states: [InstructionId; 2],
    /// The tuple that the body returns.
    pub root: InstructionId,
}

impl TupleLoop {
    /// The loop of which a computation is the body; `None` when anything but `get-tuple-element` reads the state, or
    /// anything but the loop reads the tuples that the state is made from.
    pub fn around(
        module: &Module,
        graph: &CallGraph,
        users: &Users,
        body: ComputationId,
    ) -> Option<TupleLoop> {
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
        is_plain.then_some(TupleLoop { id, init, states, root })
    }

    /// Which element of the state an instruction of the body takes out.
    pub fn element(&self, module: &Module, id: InstructionId) -> Option<u32> {
        let instruction = &module.instructions[id];
        match instruction.op {
            Op::GetTupleElement { index } if instruction.operands[0] == self.states[0] => Some(index),
            _ => None,
        }
    }
}

/// The iteration for which a scalar is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Iteration {
    /// At the kernel.
    AtKernel,
    /// In this iteration, from the loop's state alone.
    This,
    /// In the next iteration, as seen from this one.
    Next,
    /// In the first iteration, as seen from before the loop.
    First,
}

/// The origin of a scalar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScalarOrigin {
    /// This instruction has computed it.
    Existing(InstructionId),
    /// A copy of this instruction computes it, from its operands in that iteration.
    Computed(InstructionId, Iteration),
}

/// The kernel whose scalars are needed elsewhere.
#[derive(Clone, Copy, Debug)]
pub struct ScalarScope<'a> {
    /// Facts about the module.
    pub facts: &'a Facts,
    /// The kernel.
    pub kernel: InstructionId,
    /// The loop of whose body the kernel is a part, and the instant in the body at which scalars of the next iteration
    /// are needed.
    pub around: Option<(&'a TupleLoop, Time)>,
}

impl ScalarScope<'_> {
    /// The origin of a scalar in the kernel, or beside it; `None` if it is not computed from scalars only, or if the
    /// loop is unknown.
    pub fn origin(&self, module: &Module, id: InstructionId, iteration: Iteration) -> Option<ScalarOrigin> {
        let kernel = &module.instructions[self.kernel];
        let instruction = &module.instructions[id];
        if instruction.parent != kernel.parent {
            return match instruction.op {
                Op::Parameter { number } => self.origin(module, kernel.operands[number as usize], iteration),
                _ => is_computable(module, id).then_some(ScalarOrigin::Computed(id, iteration)),
            };
        }
        if iteration == Iteration::AtKernel {
            return Some(ScalarOrigin::Existing(id));
        }
        let (around, at) = self.around?;
        let Some(element) = around.element(module, id) else {
            return is_computable(module, id).then_some(ScalarOrigin::Computed(id, iteration));
        };
        let [first, next] =
            [around.init, around.root].map(|tuple| module.instructions[tuple].operands[element as usize]);
        let is_made = self.is_made(id, next, at)?;
        match iteration {
            Iteration::First => Some(ScalarOrigin::Existing(first)),
            Iteration::Next if is_made => Some(ScalarOrigin::Existing(next)),
            Iteration::Next => self.origin(module, next, Iteration::This),
            Iteration::AtKernel | Iteration::This => {
                (!is_made || self.is_kept(id, next)).then_some(ScalarOrigin::Existing(id))
            }
        }
    }

    /// Whether the body returns an element of the loop's state unchanged.
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

    /// The existing scalars from which some others are computed; `None` when one cannot be computed, or takes copies of
    /// more than `limit` operations.
    pub fn sources(
        &self,
        module: &Module,
        ids: &[InstructionId],
        iteration: Iteration,
        limit: usize,
    ) -> Option<Vec<InstructionId>> {
        let mut open: Vec<(InstructionId, Iteration)> = ids.iter().map(|&id| (id, iteration)).collect();
        let mut sources = Vec::new();
        let mut visits = 0;
        while let Some((id, iteration)) = open.pop() {
            visits += 1;
            if visits > limit {
                return None;
            }
            match self.origin(module, id, iteration)? {
                ScalarOrigin::Existing(source) => sources.push(source),
                ScalarOrigin::Computed(id, iteration) => {
                    open.extend(module.instructions[id].operands.iter().map(|&operand| (operand, iteration)));
                }
            }
        }
        Some(sources)
    }
}

/// Whether an instruction computes a scalar from scalars and nothing else, and always the same one.
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
