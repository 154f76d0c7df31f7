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
//! *Changed* means that a whole number was found behind a barrier in a loop.

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
    let bodies = loops(module, &users).into_iter().map(|of| of.body);
    let listed: Vec<InstructionId> =
        bodies.flat_map(|body| module.computations[body].instructions.clone()).collect();
    let mut changed = false;
    for id in listed {
        for number in 0..module.instructions[id].operands.len() {
            let from = module.instructions[id].operands[number];
            let is_place = module
                .shape(from)
                .as_array()
                .is_some_and(|array| array.dimensions.is_empty() && array.element_type.is_integral());
            let value = if is_place { before_barriers(module, from) } else { from };
            if value != from {
                module.instructions[id].operands[number] = value;
                changed = true;
            }
        }
    }
    changed
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
