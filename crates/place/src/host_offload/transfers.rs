//! Layouts of host arrays, and transfers to their readers on the other side.

use memplan_analysis::{CallGraph, Dataflow, InPlace, ValueId};
use memplan_ir::{
    ArrayShape, ComputationId, Cursor, ElementType, EntitySet, Insert, InstructionId, Layout, Module, Names,
    Op, Shape, ShapeIndex, Users,
};

use super::{HOST, Placement, is_on_host, placement, spread::updates_fed_by};
use crate::copy_insertion::sort_topologically;
use crate::spell_out::tuple_leaves;

/// An operand that is needed on a certain side, `None` standing for the result of a computation.
struct Need {
    user: Option<InstructionId>,
    operand: usize,
    computation: ComputationId,
    on_host: bool,
}

/// Sets memory spaces in layouts, and inserts transfers to readers on the other side. Returns whether anything changed.
pub(super) fn insert(
    module: &mut Module,
    graph: &CallGraph,
    flow: &Dataflow,
    in_place: &InPlace,
    on_host: &EntitySet<ValueId>,
    names: &mut Names,
) -> bool {
    let needs = needs(module, graph, flow, in_place, on_host);
    let mut changed = apply(module, graph, flow, on_host);
    for need in needs {
        let source = match need.user {
            Some(user) => module.instructions[user].operands[need.operand],
            None => module.computations[need.computation].root,
        };
        let Shape::Array(array) = module.shape(source).clone() else { continue };
        let is_there = flow.value_of(source).is_some_and(|value| on_host.contains(value));
        if is_there == need.on_host {
            continue;
        }
        changed = true;
        let moved = transfer(module, source, &array, need.on_host, names);
        match need.user {
            Some(user) => module.instructions[user].operands[need.operand] = moved,
            None => module.computations[need.computation].root = moved,
        }
    }
    if changed {
        for &computation in graph.sequential() {
            sort_topologically(module, computation);
            reshape_tuples(module, computation);
        }
    }
    changed
}

/// The side on which every operand is needed, if it may be on the wrong side. Tuples of loops and results are explicit.
fn needs(
    module: &Module,
    graph: &CallGraph,
    flow: &Dataflow,
    in_place: &InPlace,
    on_host: &EntitySet<ValueId>,
) -> Vec<Need> {
    let users = Users::new(module);
    let mut needs = Vec::new();
    let is_value_on_host = |id: InstructionId, index: &ShapeIndex| {
        flow.find(id, index).is_some_and(|value| on_host.contains(value))
    };
    for &computation in graph.sequential() {
        for &id in &module.computations[computation].instructions {
            let instruction = &module.instructions[id];
            let mut need = |operand: usize, on_host: bool| {
                needs.push(Need { user: Some(id), operand, computation, on_host });
            };
            let updated = in_place.must_alias(module, id);
            let pair = |operand: usize| updated.iter().find(|pair| pair.operand as usize == operand);
            let here = is_value_on_host(id, &ShapeIndex::root());
            match &instruction.op {
                op if reads_either_side(op) => {
                    // An updated operand is where the result is.
                    for pair in &updated {
                        need(pair.operand as usize, is_value_on_host(id, &pair.output_index));
                    }
                }
                Op::DynamicUpdateSlice | Op::Reshape { .. } | Op::Copy => need(0, here),
                _ => match placement(instruction) {
                    Some(Placement::Host) if updates_fed_by(module, &users, id).is_some() => {}
                    Some(placement) => need(0, placement == Placement::Host),
                    None => {
                        for operand in 0..instruction.operands.len() {
                            let is_there = pair(operand).map(|pair| is_value_on_host(id, &pair.output_index));
                            need(operand, is_there.unwrap_or(false));
                        }
                    }
                },
            }
            if instruction.op == Op::While {
                for (index, user, operand) in tuple_leaves(module, instruction.operands[0]) {
                    let on_host = is_value_on_host(id, &index);
                    needs.push(Need { user: Some(user), operand, computation, on_host });
                }
                if module.shape(instruction.operands[0]).as_array().is_some() {
                    needs.push(Need { user: Some(id), operand: 0, computation, on_host: here });
                }
            }
        }
        needs.extend(results(module, graph, computation, &is_value_on_host));
    }
    needs
}

/// Operations that only pass values on, whose operands are needed at their final readers; operations that transfer a
/// slice themselves; and kernels made of such operations.
fn reads_either_side(op: &Op) -> bool {
    op.only_passes_on()
        || op.runs_callees()
        || matches!(
            op,
            Op::AsyncUpdate(_)
                | Op::AsyncDone(_)
                | Op::CopyStart { .. }
                | Op::CopyDone
                | Op::Slice { .. }
                | Op::DynamicSlice { .. }
                | Op::Fusion(_)
        )
}

/// The sides on which the results of a computation are needed, as far as its caller requires one.
fn results(
    module: &Module,
    graph: &CallGraph,
    computation: ComputationId,
    is_value_on_host: &impl Fn(InstructionId, &ShapeIndex) -> bool,
) -> Vec<Need> {
    let root = module.computations[computation].root;
    let asked = module.config.entry_computation_layout.as_ref().map(|asked| &asked.result);
    let own = module.shape(root);
    let is_needed = |index: &ShapeIndex| -> Option<bool> {
        let Some(caller) = graph.caller(computation) else {
            return Some(asked.unwrap_or(own).subshape(index).is_some_and(is_on_host));
        };
        match module.instructions[caller].op {
            Op::While if module.instructions[caller].called[0] == computation => {
                Some(is_value_on_host(module.computations[computation].parameters[0], index))
            }
            Op::Conditional => Some(is_value_on_host(caller, index)),
            _ => None,
        }
    };
    let leaves = tuple_leaves(module, root).into_iter().filter_map(|(index, user, operand)| {
        Some(Need { user: Some(user), operand, computation, on_host: is_needed(&index)? })
    });
    let whole = own.as_array().and_then(|_| is_needed(&ShapeIndex::root()));
    let whole = whole.map(|on_host| Need { user: None, operand: 0, computation, on_host });
    leaves.chain(whole).collect()
}

/// Lets the layouts of all values on the host say so.
fn apply(module: &mut Module, graph: &CallGraph, flow: &Dataflow, on_host: &EntitySet<ValueId>) -> bool {
    let sequential = graph.sequential().iter();
    let ids: Vec<InstructionId> =
        sequential.flat_map(|&c| module.computations[c].instructions.clone()).collect();
    let mut changed = false;
    for id in ids {
        let mut shape = module.shape(id).clone();
        for position in flow.positions.of(id) {
            let index = flow.positions.shape_index(position);
            let space = match flow.value_at(position).is_some_and(|value| on_host.contains(value)) {
                true => HOST,
                false => 0,
            };
            let is_elsewhere = match shape.subshape(index) {
                Some(Shape::Array(array)) => (array.memory_space() == HOST) != (space == HOST),
                _ => false,
            };
            if is_elsewhere && let Some(Shape::Array(array)) = shape.subshape_mut(index) {
                *array = in_space(array, space);
            }
        }
        if shape != *module.shape(id) {
            module.set_shape(id, shape);
            changed = true;
        }
    }
    changed
}

/// Gives tuples the shapes of their current operands.
fn reshape_tuples(module: &mut Module, computation: ComputationId) {
    for id in module.computations[computation].instructions.clone() {
        if module.instructions[id].op == Op::Tuple {
            module.reshape_tuple(id);
        }
    }
}

/// Transfers an array to the other side; an array of one value is written there instead.
fn transfer(
    module: &mut Module,
    source: InstructionId,
    array: &ArrayShape,
    to_host: bool,
    names: &mut Names,
) -> InstructionId {
    let original = module.instructions[source].clone();
    let there = in_space(array, if to_host { HOST } else { 0 });
    let mut at = Cursor::beside(module, names, source);
    if matches!(original.op, Op::Broadcast { .. }) {
        return at.insert_shaped(original.op, [original.operands[0]], there);
    }
    let flag = Shape::array(ElementType::U32, []);
    let ends = Shape::tuple([there.into(), array.clone().into(), flag]);
    let start = at.insert_shaped(Op::CopyStart { cross_program_prefetch_index: None }, [source], ends);
    at.insert(Op::CopyDone, [start])
}

fn in_space(array: &ArrayShape, space: i64) -> ArrayShape {
    let mut array = array.clone();
    let rank = array.rank();
    array.layout.get_or_insert_with(|| Layout::row_major(rank)).memory_space = space;
    array
}
