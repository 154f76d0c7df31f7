//! `narrow-kernel-results`: kernels store bf16 where only products in other kernels read a result.
//!
//! ```text
//!   f { t = f32[m,n] multiply(...)                         f { t = f32[m,n] multiply(...)
//!       s = f32[n] reduce(t)                                   s = f32[n] reduce(t)
//!       (t, s) }                                    =>         r = bf16[m,n] convert(t)
//!   g = f32[k,n] dot(x, f{0})                                  (r, s) }
//! ```
//!
//! `bfloat16-propagation` does not know which readers share a kernel with what they read: here, a gradient is added up for
//! the bias as it is made, and then only read by products. XLA's TPU compiler looks at kernels, too.
//!
//! Requires fusions. Left alone: results that somebody else reads. *Changed* means that some result is narrower.

use memplan_ir::{Cursor, ElementType, Insert, InstructionId, Module, Names, Op, Users};
use memplan_rewriter::{Context, PassError, PassFn, call_graph};

use crate::bfloat16_propagation::{element_type, moves_operand, rounds, set_element_type};

/// The pass.
pub const NARROW_KERNEL_RESULTS: PassFn = PassFn {
    name: "narrow-kernel-results",
    description: "store results of kernels in bf16 that only products in others read, as XLA's TPU compiler does",
    run,
};

fn run(module: &mut Module, _: &Context<'_>) -> Result<bool, PassError> {
    let graph = call_graph(module, NARROW_KERNEL_RESULTS.name)?;
    let users = Users::new(module);
    let mut names = Names::new(module);
    let mut changed = false;
    for &computation in graph.sequential() {
        for id in module.computations[computation].instructions.clone() {
            let results = if is_product(module, id) { results(module, &users, id) } else { Vec::new() };
            for (element, seen_at) in results {
                let is_read = seen_at.iter().any(|&at| !users.of(at).is_empty());
                let inside: Option<Vec<_>> =
                    seen_at.iter().map(|&at| passed_to_products(module, &users, at)).collect();
                let Some(inside) = inside.filter(|_| is_read) else { continue };
                round_result(module, &mut names, id, element);
                let narrower = seen_at.into_iter().chain(inside.into_iter().flatten());
                narrower.for_each(|at| set_element_type(module, at, ElementType::Bf16));
                changed = true;
            }
        }
    }
    Ok(changed)
}

/// Whether an instruction is a kernel built around a product.
fn is_product(module: &Module, id: InstructionId) -> bool {
    let instruction = &module.instructions[id];
    let is_dot = |&id: &InstructionId| matches!(module.instructions[id].op, Op::Dot(_));
    matches!(instruction.op, Op::Fusion(_))
        && module.computations[instruction.called[0]].instructions.iter().any(is_dot)
}

/// The wide results of a kernel that only instructions of its computation see: which element of the kernel's tuple, if it makes
/// one, and the instructions that are this result.
fn results(module: &Module, users: &Users, id: InstructionId) -> Vec<(Option<usize>, Vec<InstructionId>)> {
    let is_root = |id: &InstructionId| module.computations[module.instructions[*id].parent].root == *id;
    let is_wide = |id: InstructionId| element_type(module, id) == Some(ElementType::F32);
    let Some(elements) = module.shape(id).as_tuple() else {
        return if is_wide(id) && !is_root(&id) { vec![(None, vec![id])] } else { Vec::new() };
    };
    let mut seen_at = vec![Vec::new(); elements.len()];
    for &user in users.of(id) {
        let Op::GetTupleElement { index } = module.instructions[user].op else { return Vec::new() };
        seen_at[index as usize].push(user);
    }
    let results = seen_at
        .into_iter()
        .enumerate()
        .filter(|(_, seen_at)| !seen_at.is_empty() && seen_at.iter().all(|at| is_wide(*at) && !is_root(at)));
    results.map(|(element, seen_at)| (Some(element), seen_at)).collect()
}

/// The instructions inside kernels that pass an array on to products, the parameters of kernels included; `None` where something
/// else reads the array.
fn passed_to_products(module: &Module, users: &Users, id: InstructionId) -> Option<Vec<InstructionId>> {
    let mut passed_on = Vec::new();
    let mut open = vec![id];
    while let Some(at) = open.pop() {
        let is_inside = at != id;
        if is_inside && module.computations[module.instructions[at].parent].root == at {
            return None;
        }
        for &user in users.of(at) {
            let reader = &module.instructions[user];
            let places = reader.operands.iter().enumerate().filter(|(_, operand)| **operand == at);
            for (k, _) in places {
                match reader.op {
                    Op::Dot(_) if rounds(&reader.op, k) => {}
                    Op::Fusion(_) if !is_inside => {
                        open.push(module.computations[reader.called[0]].parameters[k]);
                    }
                    _ if is_inside && only_moves(module, user) => open.push(user),
                    _ => return None,
                }
            }
        }
        if is_inside {
            passed_on.push(at);
        }
    }
    Some(passed_on)
}

/// Whether all numbers of a result are numbers of the only operand.
fn only_moves(module: &Module, id: InstructionId) -> bool {
    let instruction = &module.instructions[id];
    let moves = moves_operand(&instruction.op, 0) || instruction.op == Op::Bitcast;
    moves && instruction.operands.len() == 1 && element_type(module, id) == Some(ElementType::F32)
}

/// Lets a kernel end with a conversion of a result.
fn round_result(module: &mut Module, names: &mut Names, id: InstructionId, element: Option<usize>) {
    let computation = module.instructions[id].called[0];
    let root = module.computations[computation].root;
    let wide = element.map_or(root, |element| module.instructions[root].operands[element]);
    let narrow = Cursor::beside(module, names, wide).convert(wide, ElementType::Bf16);
    match element {
        None => module.computations[computation].root = narrow,
        Some(element) => {
            module.instructions[root].operands[element] = narrow;
            module.reshape_tuple(root);
            // The conversion was listed behind the tuple.
            module.put_operands_first(computation);
            let shape = module.shape(root).clone();
            module.set_shape(id, shape);
        }
    }
}
