//! `copy-fusion`: a kernel also writes the copy of its result.
//!
//! ```text
//!   f = f32[8] fusion(x)        =>      t = (f32[8], f32[8]) fusion(x)
//!   c = f32[8] copy(f)                  f = f32[8] get-tuple-element(t), index=0
//!                                       c = f32[8] get-tuple-element(t), index=1
//! ```
//!
//! This saves XLA's GPU compiler a kernel (seen on jaxlib 0.10.2), and both arrays exist from then on. Runs after copy
//! insertion. Left alone: kernels that do more than compute elements, have several results or, in loops, no operands, and copies with control
//! dependencies or another layout. *Changed* means that a kernel writes a copy.

use memplan_ir::{Cursor, Insert, InstructionId, Module, Names, Op, Operands, Users};
use memplan_rewriter::{Context, PassError, PassFn, call_graph};
use rustc_hash::FxHashSet;

/// The pass.
pub const COPY_FUSION: PassFn = PassFn {
    name: "copy-fusion",
    description: "let kernels write copies of their results, as XLA's GPU compiler does",
    run,
};

fn run(module: &mut Module, _: &Context<'_>) -> Result<bool, PassError> {
    let graph = call_graph(module, COPY_FUSION.name)?;
    let computations = graph.sequential().to_vec();
    let mut names = Names::new(module);
    let users = Users::new(module);
    let before = module.instructions.values().flat_map(|instruction| &instruction.control_predecessors);
    let is_awaited: FxHashSet<InstructionId> = before.copied().collect();
    let mut changed = false;
    for computation in computations {
        let listed = module.computations[computation].instructions.clone();
        for id in listed {
            let is_filled_in_loop =
                computation != module.entry && module.instructions[id].operands.is_empty();
            if is_filled_in_loop || is_awaited.contains(&id) || !computes_elements(module, id) {
                continue;
            }
            let is_copy = |&user: &InstructionId| !is_awaited.contains(&user) && is_plain_copy(module, user);
            let copies: Vec<InstructionId> = users.of(id).iter().copied().filter(is_copy).collect();
            if !copies.is_empty() {
                write_copies(module, id, &copies, &mut names);
                changed = true;
            }
        }
        module.put_operands_first(computation);
    }
    Ok(changed)
}

fn is_plain_copy(module: &Module, id: InstructionId) -> bool {
    let instruction = &module.instructions[id];
    instruction.op == Op::Copy
        && instruction.control_predecessors.is_empty()
        && module.shape(id) == module.shape(instruction.operands[0])
}

/// Whether an instruction is a kernel with one result, which computes elements from elements.
fn computes_elements(module: &Module, id: InstructionId) -> bool {
    let instruction = &module.instructions[id];
    let is_simple = |op: &Op| {
        op.is_elementwise()
            || matches!(
                op,
                Op::Parameter { .. }
                    | Op::Constant(_)
                    | Op::Broadcast { .. }
                    | Op::Iota { .. }
                    | Op::Reshape { .. }
                    | Op::Bitcast
            )
    };
    matches!(instruction.op, Op::Fusion(_))
        && instruction.control_predecessors.is_empty()
        && module.shape(id).as_array().is_some()
        && module.instructions_of(instruction.called[0]).all(|(_, inner)| is_simple(&inner.op))
}

/// Makes a kernel write its result once more for each copy.
fn write_copies(module: &mut Module, id: InstructionId, copies: &[InstructionId], names: &mut Names) {
    let fused = module.instructions[id].called[0];
    let root = module.computations[fused].root;
    let results = vec![root; copies.len() + 1];
    let tuple = Cursor::beside(module, names, root).tuple(results);
    module.computations[fused].root = tuple;
    // The old instruction becomes an element, so that its readers need not change.
    let fusion = module.instructions[id].clone();
    let mut at = Cursor::beside(module, names, id);
    let call = at.named("loop_fusion").insert_calling(fusion.op, fusion.operands, fusion.called);
    for (index, &element) in (0..).zip([&id].into_iter().chain(copies)) {
        let instruction = &mut module.instructions[element];
        instruction.op = Op::GetTupleElement { index };
        instruction.operands = Operands::from_iter([call]);
        instruction.called.clear();
        instruction.backend_config = None;
    }
}
