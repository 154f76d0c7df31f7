//! `library-call-layouts`: makes all arrays row-major, with copies around library calls that declare other layouts.
//!
//! ```text
//!   x = f32[4,2]{0,1} custom-call(a, b),      =>     c = f32[4,4]{0,1} copy(a)
//!       operand_layout_constraints={                 d = f32[4,2]{0,1} copy(b)
//!       f32[4,4]{0,1}, f32[4,2]{0,1}}                y = f32[4,2]{0,1} custom-call(c, d), ..
//!                                                    x = f32[4,2] copy(y)
//! ```
//!
//! LAPACK uses column-major arrays, and JAX declares that for its calls. Transposes are views in the layouts of JAX's text,
//! but products read rows, so XLA moves elements when it assigns layouts. Several calls that read the same array share its
//! copy. Left alone: modules with a schedule or bitcasts. *Changed* means that there is such a call, or another layout.

use memplan_ir::{ComputationId, InstructionId, Module, Op, results_of_library_calls, use_default_layouts};
use memplan_rewriter::{CSE, Context, DCE, Pass, PassError, PassFn, call_graph};
use rustc_hash::FxHashMap;

/// The pass.
pub const LIBRARY_CALL_LAYOUTS: PassFn = PassFn {
    name: "library-call-layouts",
    description: "make all arrays row-major, with copies around libraries that take others",
    run,
};

fn run(module: &mut Module, context: &Context<'_>) -> Result<bool, PassError> {
    let mut all = module.instructions.values();
    // A bitcast means what layouts say.
    if module.is_scheduled || all.any(|instruction| instruction.op == Op::Bitcast) {
        return Ok(false);
    }
    let computations = call_graph(module, LIBRARY_CALL_LAYOUTS.name)?.sequential().to_vec();
    if results_of_library_calls(module, &computations).is_empty() {
        let changed = module.instructions.values().any(|i| !module.shape_of(i.shape).is_plain());
        use_default_layouts(module);
        return Ok(changed);
    }
    use_default_layouts(module);
    computations.iter().for_each(|&computation| shorten(module, computation));
    DCE.run(module, context)?;
    CSE.run(module, context)?;
    Ok(true)
}

/// Shortens chains of copies, and removes copies to the same layout.
fn shorten(module: &mut Module, computation: ComputationId) {
    let mut instead: FxHashMap<InstructionId, InstructionId> = FxHashMap::default();
    module.edit_in_order(computation, |module, id| {
        for operand in &mut module.instructions[id].operands {
            *operand = instead.get(operand).copied().unwrap_or(*operand);
        }
        if is_copy(module, id) {
            let mut source = module.instructions[id].operands[0];
            while is_copy(module, source) {
                source = module.instructions[source].operands[0];
            }
            if module.instructions[source].shape == module.instructions[id].shape {
                instead.insert(id, source);
                return;
            }
            module.instructions[id].operands[0] = source;
        }
        module.list(id);
    });
    let root = &mut module.computations[computation].root;
    *root = instead.get(root).copied().unwrap_or(*root);
}

fn is_copy(module: &Module, id: InstructionId) -> bool {
    let instruction = &module.instructions[id];
    instruction.op == Op::Copy && instruction.control_predecessors.is_empty()
}
