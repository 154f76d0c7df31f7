//! Copies where a caller or a library call insists on another layout than a value has.

use memplan_analysis::CallGraph;
use memplan_ir::{InstructionId, Layout, Module, Names, Op, Shape};
use memplan_memory::Target;
use rustc_hash::{FxHashMap, FxHashSet};

use super::{as_asked, layouts_asked_for, sequential_instructions};
use crate::spell_out::{spell_out_tuples, tuple_leaves};

/// Copies operands of library calls into the layouts that the calls ask for, and results out of those in which the calls
/// return them. Returns whether any was needed. Results rarely need one: their layout is the call's unless they share
/// it with other values, as in a loop.
pub(super) fn copy_around_library_calls(
    module: &mut Module,
    target: &Target,
    graph: &CallGraph,
    mut returned: FxHashMap<InstructionId, Shape>,
    names: &mut Names,
) -> bool {
    let mut copies: FxHashMap<InstructionId, InstructionId> = FxHashMap::default();
    let mut changed = false;
    for &computation in graph.sequential() {
        module.edit_in_order(computation, |module, id| {
            if !copies.is_empty() {
                let operands = module.instructions[id].operands.iter_mut();
                operands.for_each(|operand| *operand = copies.get(operand).copied().unwrap_or(*operand));
            }
            let asked = layouts_asked_for(module, id).unwrap_or_default().to_vec();
            for (number, mut shape) in asked.into_iter().enumerate() {
                as_asked(&mut shape, target);
                let operand = module.instructions[id].operands[number];
                if let Some(layout) = other_layout(module.shape(operand), &shape) {
                    module.instructions[id].operands[number] = copy_into(module, operand, layout, names);
                    changed = true;
                }
            }
            module.list(id);
            if let Some(returned) = returned.remove(&id)
                && let Some(chosen) = other_layout(&returned, module.shape(id))
            {
                module.set_shape(id, returned);
                copies.insert(id, copy_into(module, id, chosen, names));
                changed = true;
            }
        });
        let root = &mut module.computations[computation].root;
        *root = copies.get(root).copied().unwrap_or(*root);
    }
    changed
}

/// The arrays that library calls with layouts of their own return, in the layouts in which they return them.
pub(super) fn results_of_library_calls(
    module: &Module,
    target: &Target,
    graph: &CallGraph,
) -> FxHashMap<InstructionId, Shape> {
    let calls = sequential_instructions(module, graph).filter(|&id| layouts_asked_for(module, id).is_some());
    let asked = |id| {
        let mut shape = module.shape(id).clone();
        as_asked(&mut shape, target);
        (id, shape)
    };
    calls.map(asked).filter(|(_, shape)| matches!(shape, Shape::Array(_))).collect()
}

/// Copies parts of the program's result into the layouts of a shape. Returns whether any was needed.
pub(super) fn copy_results(module: &mut Module, result: &Shape, names: &mut Names) -> bool {
    let entry = module.entry;
    let is_as_asked = |module: &Module, root: InstructionId| {
        let (found, asked) = (module.shape(root).leaves(), result.leaves());
        found.iter().zip(&asked).all(|((_, found), (_, asked))| other_layout(found, asked).is_none())
    };
    if is_as_asked(module, module.computations[entry].root) {
        return false;
    }
    spell_out_tuples(module, entry, true, names);
    let root = module.computations[entry].root;
    if let Some(layout) = other_layout(module.shape(root), result) {
        module.computations[entry].root = copy_into(module, root, layout, names);
        return true;
    }
    let mut tuples: Vec<InstructionId> = Vec::new();
    for (index, tuple, number) in tuple_leaves(module, root) {
        let leaf = module.instructions[tuple].operands[number];
        let asked = result.subshape(&index).expect("the shape has the structure of the result");
        tuples.push(tuple);
        if let Some(layout) = other_layout(module.shape(leaf), asked) {
            module.instructions[tuple].operands[number] = copy_into(module, leaf, layout, names);
        }
    }
    put_last(module, tuples);
    true
}

/// Moves tuples that make up a computation's result behind everything else, and gives them the shapes of their operands.
fn put_last(module: &mut Module, tuples: Vec<InstructionId>) {
    let entry = module.entry;
    let is_tuple: FxHashSet<InstructionId> =
        tuples.into_iter().chain([module.computations[entry].root]).collect();
    let list = std::mem::take(&mut module.computations[entry].instructions);
    let (tuples, others): (Vec<_>, Vec<_>) = list.into_iter().partition(|id| is_tuple.contains(id));
    for &tuple in &tuples {
        module.reshape_tuple(tuple);
    }
    module.computations[entry].instructions = [others, tuples].concat();
}

/// The layout asked for, if it is another one than an array has.
fn other_layout(found: &Shape, asked: &Shape) -> Option<Layout> {
    match (found, asked) {
        (Shape::Array(found), Shape::Array(asked)) if found.layout != asked.layout => asked.layout.clone(),
        _ => None,
    }
}

/// A copy of an array in another layout, as the last instruction of its computation.
fn copy_into(module: &mut Module, source: InstructionId, layout: Layout, names: &mut Names) -> InstructionId {
    let name = format!("{}.layout.{}", module.instructions[source].name, module.instructions.len());
    let mut shape = module.shape(source).clone();
    shape.as_array_mut().expect("only arrays are copied").layout = Some(layout);
    let shape = module.intern(shape);
    module.add_beside(source, names.unique(&name), shape, Op::Copy, [source])
}
