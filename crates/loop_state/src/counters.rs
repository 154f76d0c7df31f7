//! `counters-past-barriers`: takes loop counters out of barriers.
//!
//! ```text
//!   both = opt-barrier(tuple(i, x))                 both = opt-barrier(tuple(i, x))
//!   j = get-tuple-element(both), index=0      =>    next = add(i, 1)
//!   next = add(j, 1)
//! ```
//!
//! A pass that puts the operands of a step behind a barrier puts the loop counter there, too, where slices use it. XLA looks
//! for the trip count of a loop, and does not see through barriers. Without a trip count, the host decides after each step
//! whether there is another: on an H200, a language model with such loops took 1.3 times as long (docs/gpu.md).
//!
//! *Changed* means that a counter was found behind a barrier.

use memplan_ir::{BinaryOp, InstructionId, Module, Op, Users};
use memplan_rewriter::PassFn;
use memplan_rewriter::loops::{Loop, loops};

/// The pass.
pub const COUNTERS_PAST_BARRIERS: PassFn = PassFn {
    name: "counters-past-barriers",
    description: "take loop counters out of barriers, so that compilers see trip counts",
    run: |module, _| {
        if module.is_scheduled {
            return Ok(false);
        }
        let users = Users::new(module);
        let loops = loops(module, &users);
        let found: Vec<_> = loops.iter().flat_map(|of| behind_barriers(module, of)).collect();
        let changed = !found.is_empty();
        for Counted { next, operand, counter } in found {
            module.instructions[next].operands[operand] = counter;
        }
        Ok(changed)
    },
};

/// The instruction that increments a counter, and its operand that is the counter behind a barrier.
struct Counted {
    next: InstructionId,
    operand: usize,
    counter: InstructionId,
}

/// The counters of a loop that pass a barrier. Linear in the chains of barriers.
fn behind_barriers<'a>(module: &'a Module, of: &'a Loop) -> impl Iterator<Item = Counted> + 'a {
    let mut elements: Vec<u32> = of.read_by_condition.iter().copied().collect();
    elements.sort_unstable();
    elements.into_iter().flat_map(move |element| {
        let next = module.instructions[of.next].operands[element as usize];
        let instruction = &module.instructions[next];
        let counts = matches!(instruction.op, Op::Binary(BinaryOp::Add | BinaryOp::Subtract));
        let operands = instruction.operands.iter().enumerate().filter(move |_| counts);
        operands.filter_map(move |(operand, &from)| {
            let counter = before_barriers(module, from);
            let is_counter = of.element_at(module, counter) == Some(element);
            (counter != from && is_counter).then_some(Counted { next, operand, counter })
        })
    })
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
