//! `counters-past-barriers`: takes the counters of loops, and places that are computed from them, out of barriers.
//!
//! ```text
//!   both = opt-barrier(tuple(i, x))                 both = opt-barrier(tuple(i, x))
//!   j = get-tuple-element(both), index=0      =>    next = add(i, 1)
//!   next = add(j, 1)                                row = dynamic-slice(rows, i, 0)
//!   row = dynamic-slice(rows, j, 0)
//! ```
//!
//! A pass that puts the operands of a step behind a barrier puts the loop counter there, too, where slices use it. XLA looks
//! for the trip count of a loop, and does not see through barriers. Without a trip count, the host decides after each step
//! whether there is another: on an H200, a language model with such loops took 1.3 times as long (docs/gpu.md). Since jaxlib
//! 0.12, XLA's GPU compiler also looks for how the place of a slice follows from the counter, and gives up the program where a
//! barrier is in the way ("HloEvaluator does not implement the opt-barrier opcode").
//!
//! A number from which an array is computed stays behind its barrier. Recomputation may be tied to the number: without the
//! barrier, a compiler merges the second computation with the first.
//!
//! *Changed* means that a counter or a place was found behind a barrier in a loop.

use cranelift_entity::SecondaryMap;
use memplan_ir::{InstructionId, Module, Op, Users};
use memplan_rewriter::PassFn;
use memplan_rewriter::loops::loops;

/// The pass.
pub const COUNTERS_PAST_BARRIERS: PassFn = PassFn {
    name: "counters-past-barriers",
    description: "take loop counters out of barriers, so that compilers see trip counts",
    run: |module, _| Ok(run(module)),
};

/// Linear in the loops, times the length of chains of barriers.
fn run(module: &mut Module) -> bool {
    if module.is_scheduled {
        return false;
    }
    let users = Users::new(module);
    // What the next state of a loop or the place of a slice depends on.
    let mut open: Vec<InstructionId> = Vec::new();
    for of in loops(module, &users) {
        let body = &module.computations[of.body];
        let slices = body.instructions.iter().copied();
        open.extend(slices.filter(|&id| n_before_places(&module.instructions[id].op).is_some()));
        open.push(body.root);
    }
    let mut changed = false;
    let mut is_known: SecondaryMap<InstructionId, bool> = SecondaryMap::new();
    while let Some(id) = open.pop() {
        let first = n_before_places(&module.instructions[id].op).unwrap_or(0);
        for number in first..module.instructions[id].operands.len() {
            let from = module.instructions[id].operands[number];
            if !is_whole_number(module, from) {
                continue;
            }
            let value = before_barriers(module, from);
            if value != from {
                module.instructions[id].operands[number] = value;
                changed = true;
            }
            if !std::mem::replace(&mut is_known[value], true) {
                open.push(value);
            }
        }
    }
    changed
}

/// How many operands of a slice come before those that say where it is.
fn n_before_places(op: &Op) -> Option<usize> {
    match op {
        Op::DynamicSlice { .. } => Some(1),
        Op::DynamicUpdateSlice => Some(2),
        _ => None,
    }
}

fn is_whole_number(module: &Module, id: InstructionId) -> bool {
    let array = module.shape(id).as_array();
    array.is_some_and(|array| array.dimensions.is_empty() && array.element_type.is_integral())
}

/// The value that barriers pass on.
fn before_barriers(module: &Module, mut id: InstructionId) -> InstructionId {
    let instruction = |id: InstructionId| &module.instructions[id];
    loop {
        id = match instruction(id).op {
            Op::OptimizationBarrier => instruction(id).operands[0],
            Op::GetTupleElement { index } => {
                let barrier = instruction(instruction(id).operands[0]);
                if barrier.op != Op::OptimizationBarrier {
                    return id;
                }
                let passed = instruction(barrier.operands[0]);
                if passed.op != Op::Tuple {
                    return id;
                }
                passed.operands[index as usize]
            }
            _ => return id,
        }
    }
}
