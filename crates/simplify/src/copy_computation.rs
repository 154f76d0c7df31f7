//! Copies of computations with different parameters or results.

use memplan_ir::{ComputationId, InstructionId, Op, Operands, Shape};
use memplan_rewriter::Rewriter;
use rustc_hash::{FxHashMap, FxHashSet};

/// Makes a computation that has one parameter of shape `state`, and whose result is made of `results` of an old one: a
/// tuple of them, or with `tuple` false the only one. Side effects come along.
///
/// Readers of elements of the old parameter are replaced by the result of `element`, which is part of the copy; nothing
/// else may use that parameter. Instructions in `brought` are not computed, but read from the new parameter at the
/// index given. Linear in the instructions visited and copied.
pub(crate) fn copy_computation(
    r: &mut Rewriter<'_>,
    old: ComputationId,
    state: Shape,
    results: &[InstructionId],
    tuple: bool,
    brought: &FxHashMap<InstructionId, usize>,
    element: &mut impl FnMut(&mut Rewriter<'_>, Site) -> InstructionId,
) -> ComputationId {
    let needed = needed_for(r, old, results, brought);
    let computation = &r.module().computations[old];
    let (name, thread) = (computation.name.clone(), computation.execution_thread.clone());
    let old_parameter = computation.parameters[0];
    let state = r.intern(state);
    r.new_computation(name.split('.').next().unwrap_or(&name), &thread, |r| {
        let parameter = r.copy(old_parameter, |copy| (copy.shape, copy.extras) = (state, None));
        let mut copies: FxHashMap<InstructionId, InstructionId> = FxHashMap::default();
        for id in r.live_instructions_of(old) {
            if !needed.contains(&id) || id == old_parameter {
                continue;
            }
            let copy = match (brought.get(&id), state_element(r, old, id)) {
                (Some(&index), _) => Site { parameter, id, index }.take(r, index),
                (None, Some(index)) => element(r, Site { parameter, id, index }),
                (None, None) => r.copy(id, |copy| {
                    for operand in copy.operands.iter_mut().chain(&mut copy.control_predecessors) {
                        *operand = copies[operand];
                    }
                }),
            };
            copies.insert(id, copy);
        }
        let results: Operands = results.iter().map(|id| copies[id]).collect();
        if !tuple {
            return results[0];
        }
        let (name, shape) = (r.fresh_name("tuple"), r.intern(tuple_of(r, &results)));
        // It has the parameter's metadata.
        r.copy(parameter, |root| {
            (root.name, root.op, root.shape, root.operands) = (name, Op::Tuple, shape, results);
        })
    })
}

fn tuple_of(r: &Rewriter<'_>, elements: &[InstructionId]) -> Shape {
    Shape::Tuple(elements.iter().map(|&id| r.shape(id).clone()).collect())
}

/// A reader of an element of the old parameter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Site {
    /// The parameter of the copy.
    pub(crate) parameter: InstructionId,
    /// The instruction of the old computation that takes the element out.
    pub(crate) id: InstructionId,
    /// Which element.
    pub(crate) index: usize,
}

impl Site {
    /// Takes element `index` of the new parameter out instead.
    pub(crate) fn take(&self, r: &mut Rewriter<'_>, index: usize) -> InstructionId {
        r.copy(self.id, |copy| {
            copy.op = Op::GetTupleElement { index: index as u32 };
            copy.operands = [self.parameter].into_iter().collect();
            copy.called.clear();
        })
    }
}

/// Which element of its parameter an instruction of a computation takes out.
pub(crate) fn state_element(
    r: &Rewriter<'_>,
    computation: ComputationId,
    id: InstructionId,
) -> Option<usize> {
    let parameters = &r.module().computations[computation].parameters;
    match r.op(id) {
        Op::GetTupleElement { index } if parameters.first() == Some(&r.operand(id, 0)) => {
            Some(*index as usize)
        }
        _ => None,
    }
}

/// Whether a computation has one parameter and does nothing with it but take elements out.
pub(crate) fn uses_elements_only(r: &mut Rewriter<'_>, computation: ComputationId) -> bool {
    let [state] = r.module().computations[computation].parameters[..] else { return false };
    let root = r.root_of(computation);
    let instructions = r.live_instructions_of(computation);
    r.shape(state).is_tuple()
        && root != state
        && instructions
            .iter()
            .filter(|&&id| r.operands(id).contains(&state))
            .all(|&id| matches!(r.op(id), Op::GetTupleElement { .. }))
}

/// The live instructions of a computation that have side effects or control dependencies.
pub(crate) fn fixed_instructions(r: &mut Rewriter<'_>, computation: ComputationId) -> Vec<InstructionId> {
    let mut instructions = r.live_instructions_of(computation);
    instructions.retain(|&id| r.is_pinned(id) && !matches!(r.op(id), Op::Parameter { .. }));
    instructions
}

/// The parts of a tuple shape that are kept.
pub(crate) fn part_of(tuple: &Shape, kept: &[usize]) -> Shape {
    let parts = tuple.as_tuple().expect("only tuples lose elements");
    Shape::Tuple(kept.iter().map(|&i| parts[i].clone()).collect())
}

/// The dependencies of some results of a computation, and of its side effects.
fn needed_for(
    r: &mut Rewriter<'_>,
    computation: ComputationId,
    results: &[InstructionId],
    brought: &FxHashMap<InstructionId, usize>,
) -> FxHashSet<InstructionId> {
    let mut needed = FxHashSet::default();
    let mut stack = fixed_instructions(r, computation);
    stack.extend(results);
    while let Some(id) = stack.pop() {
        if needed.insert(id) && !brought.contains_key(&id) {
            stack.extend(r.operands(id).iter().chain(&r.get(id).control_predecessors));
        }
    }
    needed
}
