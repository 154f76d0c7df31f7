//! `transposed-state`: copies transposed views that loops or the caller read.
//!
//! ```text
//!   t = f32[8,4] transpose(x)              t = f32[8,4] transpose(x)
//!   ROOT r = tuple(t)                =>    u = tuple(t)
//!                                          g = f32[8,4] get-tuple-element(u), index=0
//!                                          c = f32[8,4] copy(g)
//!                                          ROOT r = tuple(c)
//! ```
//!
//! XLA assigns layouts from the parameters on: a transpose is another view of the same bytes, and elementwise results
//! of it have the same layout. If a user requires row-major order, XLA inserts a copy, which is fused with the
//! transpose. It is not fused for tuple elements passed to a loop or the caller: the copy reads an element of the old
//! tuple, and tuples are simplified only after fusion. Here all layouts are row-major, so this pass inserts the copies;
//! `tuple-simplifier` must run after fusion.
//!
//! Left alone: results that are not tuples. *Changed* means that there is a new copy.

use memplan_ir::{Cursor, Insert, InstructionId, Module, Names, Op};
use memplan_rewriter::{Context, PassError, PassFn, cost};
use rustc_hash::{FxHashMap, FxHashSet};

/// The pass.
pub const TRANSPOSED_STATE: PassFn = PassFn {
    name: "transposed-state",
    description: "copy transposed views that loops or the caller read, as XLA's CPU compiler does",
    run,
};

fn run(module: &mut Module, _: &Context<'_>) -> Result<bool, PassError> {
    let mut names = Names::new(module);
    let handed_over = handed_over(module);
    let mut changed = false;
    for computation in module.computations.keys().collect::<Vec<_>>() {
        let is_transposed = transposed(module, computation);
        if is_transposed.is_empty() {
            continue;
        }
        module.edit_in_order(computation, |module, id| {
            if handed_over.contains(&id) {
                changed |= copy_elements(module, id, &is_transposed, &mut names);
            }
            module.list(id);
        });
    }
    if changed {
        module.compact();
    }
    Ok(changed)
}

/// The tuples that loops and the caller take.
fn handed_over(module: &Module) -> FxHashSet<InstructionId> {
    let loops = module.instructions.values().filter(|instruction| matches!(instruction.op, Op::While));
    let bodies = loops.clone().map(|instruction| module.computations[instruction.called[0]].root);
    let states = loops.map(|instruction| instruction.operands[0]);
    let all = bodies.chain(states).chain([module.entry_computation().root]);
    all.filter(|&id| matches!(module.instructions[id].op, Op::Tuple)).collect()
}

/// The instructions of a computation whose elements stay where a transpose found them.
fn transposed(module: &Module, computation: memplan_ir::ComputationId) -> FxHashSet<InstructionId> {
    let mut found: FxHashSet<InstructionId> = FxHashSet::default();
    for &id in &module.computations[computation].instructions {
        let instruction = &module.instructions[id];
        let is_transposed = match &instruction.op {
            // Back again, or nothing to move.
            Op::Transpose { .. } => {
                !found.contains(&instruction.operands[0]) && !cost::moves_no_bytes(module, id)
            }
            op if op.is_elementwise() && !matches!(op, Op::Copy) => {
                let has_no_order = |&&operand: &&InstructionId| {
                    module.instructions[operand].op.repeats_scalar()
                        || module.shape(operand).as_array().is_some_and(|array| array.dimensions.is_empty())
                };
                let mut ordered =
                    instruction.operands.iter().filter(|operand| !has_no_order(operand)).peekable();
                ordered.peek().is_some() && ordered.all(|operand| found.contains(operand))
            }
            _ => false,
        };
        if is_transposed {
            found.insert(id);
        }
    }
    found
}

/// Copies elements of a tuple that are transposed views. Says whether there were any.
fn copy_elements(
    module: &mut Module,
    tuple: InstructionId,
    is_transposed: &FxHashSet<InstructionId>,
    names: &mut Names,
) -> bool {
    let mut copies: FxHashMap<InstructionId, InstructionId> = FxHashMap::default();
    for i in 0..module.instructions[tuple].operands.len() {
        let element = module.instructions[tuple].operands[i];
        if !is_transposed.contains(&element) {
            continue;
        }
        let copy = match copies.get(&element) {
            Some(&copy) => copy,
            None => add_copy(module, element, names),
        };
        copies.insert(element, copy);
        module.instructions[tuple].operands[i] = copy;
    }
    !copies.is_empty()
}

fn add_copy(module: &mut Module, element: InstructionId, names: &mut Names) -> InstructionId {
    let parent = module.instructions[element].parent;
    let mut at = Cursor::end(module, names, parent);
    let tuple = at.tuple([element]);
    let element = at.get_tuple_element(tuple, 0);
    at.insert(Op::Copy, [element])
}
