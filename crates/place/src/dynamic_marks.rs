//! `dynamic-marks`: makes a value dynamic, or static, wherever it is seen.
//!
//! ```text
//!   s = (f32[16]) tuple(p)                  c = f32[<=16] copy(p)
//!   w = (f32[16]) while(s), body=b     =>   s = (f32[<=16]) tuple(c)
//!                                           w = (f32[<=16]) while(s), body=b
//!   b { s = (f32[<=16]) parameter(0) .. }
//! ```
//!
//! XLA ignores the marks of dynamic dimensions where values are passed on, so a program may pass static arrays to a
//! loop or a call that declares dynamic ones, and vice versa. In memory the difference matters: extents take bytes,
//! which someone must write. The definition of a value decides whether it is dynamic. Where values meet in a loop or a
//! conditional, the result is dynamic if one of them is, and the others are copied; so are results whose marks the
//! caller sees. Also works on scheduled modules, which could not be planned otherwise. Requires one call site per
//! computation. *Changed* means that a mark changed. Close to linear in the number of positions.

use memplan_analysis::{CallGraph, Dataflow, ValueId, ValueKind, dataflow};
use memplan_ir::{
    ArrayShape, ComputationId, InstructionId, Module, Names, Op, PositionId, SecondaryMap, Shape, copied_as,
};
use memplan_rewriter::{Context, PassError, PassFn, call_graph};
use smallvec::SmallVec;

/// The pass, described at the top of this file.
pub const DYNAMIC_MARKS: PassFn = PassFn {
    name: NAME,
    description: "make values dynamic, or static, wherever they are seen; copy where static and dynamic ones meet",
    run,
};

const NAME: &str = "dynamic-marks";

/// Which dimensions are dynamic; empty where none is.
type Marks = SmallVec<[bool; 8]>;

fn run(module: &mut Module, _: &Context<'_>) -> Result<bool, PassError> {
    if !module.shapes.iter().any(|shape| shape.any_array(ArrayShape::is_dynamic)) {
        return Ok(false);
    }
    let graph = call_graph(module, NAME)?;
    let flow = dataflow(module, &graph);
    let marks = marks_of_values(module, &flow);
    let result = module.shape(module.entry_computation().root).clone();
    if !mark_positions(module, &graph, &flow, &marks) {
        return Ok(false);
    }
    copy_where_values_meet(module, &graph, &result);
    module.compact();
    Ok(true)
}

/// The marks of each value, from its definition, or from the definitions that meet in it.
fn marks_of_values(module: &Module, flow: &Dataflow) -> SecondaryMap<ValueId, Marks> {
    let mut marks: SecondaryMap<ValueId, Marks> = SecondaryMap::new();
    let mut flows_into: SecondaryMap<ValueId, SmallVec<[ValueId; 2]>> = SecondaryMap::new();
    flow.phi_inputs.iter().for_each(|&(phi, input)| flows_into[input].push(phi));
    let definition = |value: ValueId| array_at(module, flow, flow.values[value].definition);
    let mut pending = Vec::new();
    for (id, value) in &flow.values {
        let is_made = matches!(value.kind, ValueKind::Written | ValueKind::Parameter);
        if let (true, Some(array)) = (is_made, definition(id).filter(|array| array.is_dynamic())) {
            marks[id].clone_from(&array.dynamic);
            pending.push(id);
        }
    }
    while let Some(input) = pending.pop() {
        for phi in flows_into[input].clone() {
            let (Some(at), Some(from)) = (definition(phi), definition(input)) else { continue };
            // Seen through a bitcast, it has other dimensions, and only the program knows which of them are dynamic.
            let added = if at.dimensions == from.dimensions { &marks[input] } else { &at.dynamic };
            let joined = either(&marks[phi], added);
            if joined != marks[phi] {
                marks[phi] = joined;
                pending.push(phi);
            }
        }
    }
    marks
}

/// Gives every array the marks of the value that is seen there. Returns whether any were others.
fn mark_positions(
    module: &mut Module,
    graph: &CallGraph,
    flow: &Dataflow,
    marks: &SecondaryMap<ValueId, Marks>,
) -> bool {
    let mut changed = false;
    let computations = graph.sequential().iter();
    let ids: Vec<InstructionId> =
        computations.flat_map(|&c| &module.computations[c].instructions).copied().collect();
    for id in ids {
        let differs = |position: PositionId| {
            let (value, array) = (flow.value_at(position)?, array_at(module, flow, position)?);
            let definition = array_at(module, flow, flow.values[value].definition)?;
            // A bitcast sees the same bytes as other dimensions.
            let is_whole = array.dimensions == definition.dimensions;
            let is_other = is_whole && marks[value] != array.dynamic;
            is_other.then(|| (position, marks[value].clone()))
        };
        let others: Vec<_> = flow.positions.of(id).filter_map(differs).collect();
        if others.is_empty() {
            continue;
        }
        let mut shape = module.shape(id).clone();
        for (position, marks) in others {
            let array =
                shape.subshape_mut(flow.positions.shape_index(position)).and_then(Shape::as_array_mut);
            array.expect("there is an array at the position").dynamic = marks;
        }
        module.set_shape(id, shape);
        changed = true;
    }
    changed
}

/// Copies what enters a loop, what a loop's body or a branch leaves, and the program's result, where others see other marks.
fn copy_where_values_meet(module: &mut Module, graph: &CallGraph, result: &Shape) {
    let mut names = Names::new(module);
    for &computation in graph.sequential() {
        module.edit_in_order(computation, |module, id| {
            if module.instructions[id].op == Op::While {
                let state = module.shape(id).clone();
                let init = module.instructions[id].operands[0];
                module.instructions[id].operands[0] =
                    copied_as(module, init, &state, other_marks, "extents", &mut names);
            }
            module.list(id);
        });
        if let Some(seen) = seen_by_caller(module, graph, computation, result) {
            let root = module.computations[computation].root;
            module.computations[computation].root =
                copied_as(module, root, &seen, other_marks, "extents", &mut names);
        }
    }
}

/// The shape of a computation's result if another value may take its place: in the next iteration, after a conditional,
/// for the caller of the program. Elsewhere the caller sees the result itself.
fn seen_by_caller(
    module: &Module,
    graph: &CallGraph,
    computation: ComputationId,
    result: &Shape,
) -> Option<Shape> {
    let Some(caller) = graph.caller(computation) else { return Some(result.clone()) };
    let is_body = module.instructions[caller].called[0] == computation;
    match module.instructions[caller].op {
        Op::While if is_body => Some(module.shape(caller).clone()),
        Op::Conditional => Some(module.shape(caller).clone()),
        _ => None,
    }
}

/// The shape of an array with the required marks, if they differ from its own.
fn other_marks(found: &Shape, asked: &Shape) -> Option<Shape> {
    match (found, asked) {
        (Shape::Array(found), Shape::Array(asked)) if found.dynamic != asked.dynamic => {
            Some(Shape::Array(ArrayShape { dynamic: asked.dynamic.clone(), ..found.clone() }))
        }
        _ => None,
    }
}

fn array_at<'m>(module: &'m Module, flow: &Dataflow, position: PositionId) -> Option<&'m ArrayShape> {
    flow.positions.part(module, position).as_array()
}

/// Dynamic where one of two is.
fn either(a: &Marks, b: &Marks) -> Marks {
    let n = a.len().max(b.len());
    let is_dynamic = |marks: &Marks, d: usize| marks.get(d).copied().unwrap_or(false);
    (0..n).map(|d| is_dynamic(a, d) || is_dynamic(b, d)).collect()
}
