//! The order of XLA's scheduler in loops that read slices of their state.
//!
//! Since jaxlib 0.12, XLA's GPU compiler reads such slices on a separate stream, and orders the computation by its
//! latency-hiding scheduler, backwards. This has two effects, seen in schedules of scanned transformers and of U-Nets
//! in parts:
//!
//! - A slice is read as soon as its offsets are known.
//! - If another kernel only adds up or stores the result of a product, the scheduler picks the product a few products later
//!   than it could ([`LoopsWithSlices::defers`]), and that kernel at the end of the step. The operands of the product, such
//!   as that of the gradient of a weight, stay live until then. Products that accumulate their own result keep their places.
//!
//! ```text
//!   g1 = product   w1 = product(g1)   g2 = product(g1)   w2 = product(g2)   g3 = product(g2) ..
//!   g1             g2                 g3                 g4   w1   g5   w2   g6   w3 ..                 (deferred by three)
//! ```

use std::collections::VecDeque;

use memplan_ir::{ComputationId, InstructionId, Module, Op};
use memplan_memory::LoopsWithSlices;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::latency_hiding::multiplies;

/// Orders the bodies of loops that read slices, in a scheduled module. Returns whether anything moved. Linear.
pub(crate) fn order_loops(module: &mut Module, rules: &LoopsWithSlices) -> bool {
    let loops = module.instructions.values().filter(|instruction| matches!(instruction.op, Op::While));
    let bodies: Vec<ComputationId> = loops.map(|instruction| instruction.called[0]).collect();
    let mut moved = false;
    for body in bodies {
        let listed = module.computations[body].instructions.clone();
        if !listed.iter().any(|&id| has_slice(module, id)) {
            continue;
        }
        let slices: FxHashSet<InstructionId> =
            listed.iter().copied().filter(|&id| reads_slice(module, id)).collect();
        let order = slices_first(module, &listed, &slices);
        let order = defer_last_products(module, body, &order, rules.defers);
        moved |= order != listed;
        module.computations[body].instructions = order;
    }
    moved
}

/// Whether an instruction reads a slice, perhaps inside of a kernel. Which kernels XLA keeps slices apart from is not known
/// for each; in a loop that reads some, one of them usually is.
fn has_slice(module: &Module, id: InstructionId) -> bool {
    let slices = |&id: &InstructionId| matches!(module.instructions[id].op, Op::DynamicSlice { .. });
    let instruction = &module.instructions[id];
    let is_kernel = matches!(instruction.op, Op::Fusion(_));
    slices(&id) || is_kernel && module.computations[instruction.called[0]].instructions.iter().any(slices)
}

/// Whether an instruction is a kernel that reads a slice, and computes nothing but where it begins.
fn reads_slice(module: &Module, id: InstructionId) -> bool {
    let instruction = &module.instructions[id];
    match (&instruction.op, instruction.called.as_slice()) {
        (Op::DynamicSlice { .. }, _) => true,
        (Op::Fusion(_), &[fused]) => {
            let slices = |id| matches!(module.instructions[id].op, Op::DynamicSlice { .. });
            let is_scalar = |id| module.shape(id).as_array().is_some_and(|array| array.dimensions.is_empty());
            let passes_on = |op: &Op| op.is_input() || matches!(op, Op::Bitcast | Op::Reshape { .. });
            let inside = &module.computations[fused].instructions;
            inside.iter().filter(|&&id| slices(id)).count() == 1
                && inside
                    .iter()
                    .all(|&id| slices(id) || is_scalar(id) || passes_on(&module.instructions[id].op))
        }
        _ => false,
    }
}

/// Moves slices, elements of tuples and constants to right behind the last of their operands.
fn slices_first(
    module: &Module,
    listed: &[InstructionId],
    slices: &FxHashSet<InstructionId>,
) -> Vec<InstructionId> {
    let mut behind: FxHashMap<Option<InstructionId>, Vec<InstructionId>> = FxHashMap::default();
    let mut place: FxHashMap<InstructionId, usize> = FxHashMap::default();
    let moves = |id: InstructionId| {
        slices.contains(&id)
            || matches!(module.instructions[id].op, Op::GetTupleElement { .. } | Op::Constant(_))
    };
    for (at, &id) in listed.iter().enumerate() {
        place.insert(id, at);
        if moves(id) {
            let instruction = &module.instructions[id];
            let before = instruction.operands.iter().chain(&instruction.control_predecessors).copied();
            behind.entry(before.max_by_key(|operand| place[operand])).or_default().push(id);
        }
    }
    // What comes first may itself be followed by others.
    let mut order = Vec::with_capacity(listed.len());
    let mut open: Vec<InstructionId> = listed.iter().rev().copied().filter(|&id| !moves(id)).collect();
    open.extend(behind.remove(&None).into_iter().flatten().rev());
    while let Some(id) = open.pop() {
        order.push(id);
        open.extend(behind.remove(&Some(id)).into_iter().flatten().rev());
    }
    order
}

/// Moves each product that no other one needs behind so many of the others, and what needs its result to the end.
fn defer_last_products(
    module: &Module,
    body: ComputationId,
    listed: &[InstructionId],
    defers: usize,
) -> Vec<InstructionId> {
    let needed = needed(module, listed);
    let root = module.computations[body].root;
    // What something but the next state reads.
    let readers = listed.iter().filter(|&&id| id != root);
    let read: FxHashSet<InstructionId> =
        readers.flat_map(|&id| &module.instructions[id].operands).copied().collect();
    let mut order = Vec::with_capacity(listed.len());
    // The products that wait, and how many others have come since.
    let mut waiting: VecDeque<(InstructionId, usize)> = VecDeque::new();
    let mut is_late: FxHashSet<InstructionId> = FxHashSet::default();
    let mut late: Vec<InstructionId> = Vec::new();
    for &id in listed {
        let instruction = &module.instructions[id];
        let mut before = instruction.operands.iter().chain(&instruction.control_predecessors);
        let is_product = multiplies(module, id);
        if before.any(|operand| is_late.contains(operand)) {
            is_late.insert(id);
            late.push(id);
        } else if is_product && !needed.contains(&id) && read.contains(&id) {
            is_late.insert(id);
            waiting.push_back((id, 0));
        } else {
            order.push(id);
            if is_product {
                waiting.iter_mut().for_each(|(_, since)| *since += 1);
            }
            while let Some(&(first, since)) = waiting.front()
                && since >= defers
            {
                waiting.pop_front();
                order.push(first);
            }
        }
    }
    order.extend(waiting.into_iter().map(|(id, _)| id));
    order.extend(late);
    order
}

/// What products and called computations need.
fn needed(module: &Module, listed: &[InstructionId]) -> FxHashSet<InstructionId> {
    let mut needed: FxHashSet<InstructionId> = FxHashSet::default();
    for &id in listed.iter().rev() {
        let instruction = &module.instructions[id];
        let is_loop = matches!(instruction.op, Op::While | Op::Conditional | Op::Call { .. });
        if needed.contains(&id) || is_loop || multiplies(module, id) {
            needed.extend(instruction.operands.iter().copied());
        }
    }
    needed
}
