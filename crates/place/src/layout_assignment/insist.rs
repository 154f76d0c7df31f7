//! Copies for callers that require another layout than a result has.

use memplan_ir::{InstructionId, Module, Names, Shape, copy_into, other_layout};
use rustc_hash::FxHashSet;

use crate::spell_out::{spell_out_tuples, tuple_leaves};

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
    if let Some(shape) = other_layout(module.shape(root), result) {
        module.computations[entry].root = copy_into(module, root, shape, "layout", names);
        return true;
    }
    let mut tuples: Vec<InstructionId> = Vec::new();
    for (index, tuple, number) in tuple_leaves(module, root) {
        let leaf = module.instructions[tuple].operands[number];
        let asked = result.subshape(&index).expect("the shape has the structure of the result");
        tuples.push(tuple);
        if let Some(shape) = other_layout(module.shape(leaf), asked) {
            module.instructions[tuple].operands[number] = copy_into(module, leaf, shape, "layout", names);
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
