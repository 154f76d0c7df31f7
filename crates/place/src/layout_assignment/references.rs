//! References: memory that library calls work on, in the layout that one of them requires.
//!
//! ```text
//!   r = b(f32[4,4]{1,0}) custom-call(a), "Pin"             c = f32[4,4]{0,1} copy(a)
//!   s = b(f32[4,4]{0,1}) custom-call(r), "library",    =>  r = b(f32[4,4]{0,1}) custom-call(c), "Pin"
//!       operand_layout_constraints={b(f32[4,4]{0,1})}      s = b(f32[4,4]{0,1}) custom-call(r), "library"
//! ```
//!
//! Memory behind a reference is not copied, so all references to it have one layout. Calls that turn arrays into
//! references, or references into arrays, declare it as well: then the arrays are copied, as around any library call.

use memplan_analysis::{CallGraph, Dataflow, InPlace, ValueId, in_place_values};
use memplan_ir::{EntitySet, InstructionId, Layout, Module, Op, Shape, ShapeIndex, layouts_asked_for};
use petgraph::unionfind::UnionFind;
use rustc_hash::FxHashMap;

use super::sequential_instructions;

/// Gives all references to one memory the layout that the first library call asks for. Returns whether any had another, or
/// any call now declares it. Close to linear in the module.
pub(super) fn follow_calls(module: &mut Module, graph: &CallGraph, flow: &Dataflow) -> bool {
    if !module.shapes.iter().any(|shape| matches!(shape, Shape::Buffer(_))) {
        return false;
    }
    let asked = layouts_asked_for_references(module, graph, flow);
    let mut changed = false;
    for (value, layout) in &asked {
        for &position in flow.positions_of(*value) {
            let id = flow.positions.instruction(position);
            let mut shape = module.shape(id).clone();
            if set_layout(&mut shape, flow.positions.shape_index(position), layout) {
                module.set_shape(id, shape);
                changed = true;
            }
        }
    }
    let mut is_asked: EntitySet<ValueId> = EntitySet::new();
    is_asked.extend(asked.iter().map(|(value, _)| *value));
    let ids: Vec<InstructionId> = sequential_instructions(module, graph).collect();
    for id in ids {
        let instruction = &module.instructions[id];
        let is_asked = |at: &InstructionId| flow.value_of(*at).is_some_and(|value| is_asked.contains(value));
        let is_about = is_asked(&id) || instruction.operands.iter().any(is_asked);
        if is_about && layouts_asked_for(module, id).is_none() {
            declare(module, id);
            changed = true;
        }
    }
    changed
}

/// The layout of each reference to memory for which some call asks for one.
fn layouts_asked_for_references(
    module: &Module,
    graph: &CallGraph,
    flow: &Dataflow,
) -> Vec<(ValueId, Layout)> {
    let is_reference = |value: ValueId| {
        let at = flow.values[value].definition;
        matches!(flow.positions.part(module, at), Shape::Buffer(_))
    };
    let in_place = InPlace::new(module);
    let mut sets: UnionFind<u32> = UnionFind::new(flow.values.len());
    let mut same = |a: ValueId, b: ValueId| {
        if is_reference(a) && is_reference(b) {
            sets.union(a.as_u32(), b.as_u32());
        }
    };
    flow.phi_inputs.iter().for_each(|&(phi, input)| same(phi, input));
    for id in sequential_instructions(module, graph) {
        in_place_values(module, flow, &in_place, id).for_each(|(before, after)| same(before, after));
    }
    let class_of = sets.into_labeling();
    let mut of_class: FxHashMap<u32, Layout> = FxHashMap::default();
    for id in sequential_instructions(module, graph) {
        let Some(constraints) = layouts_asked_for(module, id) else { continue };
        let operands = module.instructions[id].operands.iter().copied().zip(constraints);
        for (at, shape) in operands.chain([(id, module.shape(id))]) {
            if let (Shape::Buffer(array), Some(value)) = (shape, flow.value_of(at))
                && let Some(layout) = &array.layout
            {
                of_class.entry(class_of[value.as_u32() as usize]).or_insert_with(|| layout.clone());
            }
        }
    }
    let references = flow.values.keys().filter(|&value| is_reference(value));
    let asked = references.filter_map(|value| {
        let layout = of_class.get(&class_of[value.as_u32() as usize])?;
        Some((value, layout.clone()))
    });
    asked.collect()
}

/// Makes a call declare its layouts; those of arrays equal those of the references that they become or come from.
fn declare(module: &mut Module, id: InstructionId) {
    let Op::CustomCall(call) = &module.instructions[id].op else { return };
    let operands = &module.instructions[id].operands;
    let mut asked: Vec<Shape> = operands.iter().map(|&operand| module.shape(operand).clone()).collect();
    let mut result = module.shape(id).clone();
    for alias in &call.output_operand_aliasing {
        let Some(operand) = asked.get_mut(alias.operand as usize) else { continue };
        let layout = |shape: Option<&Shape>| match shape {
            Some(Shape::Buffer(array)) => array.layout.clone(),
            _ => None,
        };
        if let Some(layout) = layout(operand.subshape(&alias.operand_index)) {
            set_layout(&mut result, &alias.output_index, &layout);
        } else if let Some(layout) = layout(result.subshape(&alias.output_index)) {
            set_layout(operand, &alias.operand_index, &layout);
        }
    }
    module.set_shape(id, result);
    if let Op::CustomCall(call) = &mut module.instructions[id].op {
        call.operand_layout_constraints = Some(asked);
    }
}

/// Returns whether an array is there that had another layout.
fn set_layout(shape: &mut Shape, at: &ShapeIndex, layout: &Layout) -> bool {
    let array = shape.subshape_mut(at).and_then(Shape::as_array_mut);
    array.is_some_and(|array| array.layout.replace(layout.clone()).as_ref() != Some(layout))
}
