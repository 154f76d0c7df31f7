//! Library calls that declare the layouts of their operands and results, and copies around them for other layouts.
//!
//! ```text
//!   a = f32[4,4]{1,0} negate(p)           a = f32[4,4]{1,0} negate(p)
//!                                         c = f32[4,4]{0,1} copy(a)
//!   l = f32[4,4]{1,0} custom-call(a)  =>  l = f32[4,4]{0,1} custom-call(c), operand_layout_constraints={f32[4,4]{0,1}}
//!                                         d = f32[4,4]{1,0} copy(l)
//! ```

use rustc_hash::FxHashMap;

use crate::{ComputationId, InstructionId, Module, Names, Op, Shape, copied_as, other_layout};

/// The layouts in which a library call takes its operands, if it says so. Those of its results are then its own, too.
pub fn layouts_asked_for(module: &Module, id: InstructionId) -> Option<&[Shape]> {
    match &module.instructions[id].op {
        Op::CustomCall(call) => call.operand_layout_constraints.as_deref(),
        _ => None,
    }
}

/// The results of the library calls of some computations that declare layouts: query these before assigning layouts
/// everywhere. Linear in the computations.
pub fn results_of_library_calls(
    module: &Module,
    computations: &[ComputationId],
) -> FxHashMap<InstructionId, Shape> {
    let all = computations.iter().flat_map(|&computation| &module.computations[computation].instructions);
    let calls = all.filter(|&&id| layouts_asked_for(module, id).is_some());
    calls.map(|&id| (id, module.shape(id).clone())).collect()
}

/// Copies operands of library calls into the layouts that the calls require, and results out of the layouts that they
/// return. `lie` interprets a declared shape on a machine, where arrays may be tiled. Returns whether any copy was
/// needed. Linear in the computations.
pub fn copy_around_library_calls(
    module: &mut Module,
    computations: &[ComputationId],
    mut returned: FxHashMap<InstructionId, Shape>,
    lie: impl Fn(&mut Shape),
    names: &mut Names,
) -> bool {
    let mut copies: FxHashMap<InstructionId, InstructionId> = FxHashMap::default();
    let mut changed = false;
    for &computation in computations {
        module.edit_in_order(computation, |module, id| {
            if !copies.is_empty() {
                let operands = module.instructions[id].operands.iter_mut();
                operands.for_each(|operand| *operand = copies.get(operand).copied().unwrap_or(*operand));
            }
            let asked = layouts_asked_for(module, id).unwrap_or_default().to_vec();
            for (number, mut shape) in asked.into_iter().enumerate() {
                lie(&mut shape);
                let operand = module.instructions[id].operands[number];
                let copy = copied_as(module, operand, &shape, other_layout, "layout", names);
                module.instructions[id].operands[number] = copy;
                changed |= copy != operand;
            }
            module.list(id);
            if let Some(mut returned) = returned.remove(&id) {
                lie(&mut returned);
                let chosen = module.shape(id).clone();
                module.set_shape(id, returned);
                let copy = copied_as(module, id, &chosen, other_layout, "layout", names);
                if copy != id {
                    copies.insert(id, copy);
                    changed = true;
                }
            }
        });
        let root = &mut module.computations[computation].root;
        *root = copies.get(root).copied().unwrap_or(*root);
    }
    changed
}
