//! The order of XLA's latency-hiding scheduler: transfers between devices, and reads and writes of slices, overlap with other work.
//!
//! The scheduler goes through a computation backwards, from results to operands. At every step it picks one of the
//! instructions whose users are all scheduled. Each collective has a start and an end, with the time of its transfer
//! between them; one transfer runs at a time.
//!
//! ```text
//!   backwards:   end ─── product ── product ─── start     one collective at a time
//!                 └──── time of the transfer ────┘
//! ```
//!
//! It prefers, in this order, by its source and its log (jaxlib 0.12):
//!
//! 1. the end of a transfer, if no transfer runs;
//! 2. an instruction that waits less: a start waits for the time of its transfer;
//! 3. any instruction but a start with no other transfer before it;
//! 4. a start, if the end of another transfer waits for it;
//! 5. the instruction with more time of transfers before it;
//! 6. the instruction whose time is nearest to the remaining time of the running transfer;
//! 7. an instruction that reads the result of a transfer;
//! 8. the instruction that makes more of its operands ready;
//! 9. the instruction that is later in the text.
//!
//! Since jaxlib 0.12, XLA reads the slices that a loop takes of its state on a stream of their own. The scheduler thinks that
//! each takes five milliseconds, so all begin with the step, and any number run at a time.
//!
//! So the scheduler defers gradients of weights until it needs work that overlaps with transfers, and their operands stay
//! live: an unrolled program may need three times the bytes of the same layers in a loop.

mod backwards;
mod slices;
mod times;

use memplan_ir::{
    Async, ComputationId, Cursor, Insert, InstructionId, Module, Names, Op, OutputOperandAlias, Shape,
    ShapeIndex, Users,
};
use memplan_memory::LatencyHiding;
use rustc_hash::FxHashSet;

use backwards::{Backwards, Place};

/// Whether there are transfers between devices.
pub(crate) fn has_collectives(module: &Module) -> bool {
    let mut computations = module.computations.values();
    computations.any(|computation| computation.instructions.iter().any(|&id| is_collective(module, id)))
}

/// Whether there is anything to hide.
pub(crate) fn has_transfers(module: &Module, rules: &LatencyHiding) -> bool {
    has_collectives(module) || rules.slice.is_some() && !slices::bodies_with_slices(module).is_empty()
}

/// Orders the computations that have collectives, and loops that read slices, of a scheduled module. `seconds` is the time of
/// an instruction. Returns whether anything changed. Takes time with the instructions and with how many of them are ready at
/// once.
pub(crate) fn hide_latency(
    module: &mut Module,
    rules: &LatencyHiding,
    seconds: &dyn Fn(InstructionId) -> f64,
) -> bool {
    let with_slices =
        if rules.slice.is_some() { slices::bodies_with_slices(module) } else { FxHashSet::default() };
    let has_collective = |computation: ComputationId| {
        module.computations[computation].instructions.iter().any(|&id| is_collective(module, id))
    };
    let ordered = module.computations.keys();
    let ordered: Vec<ComputationId> =
        ordered.filter(|&id| with_slices.contains(&id) || has_collective(id)).collect();
    let mut changed = false;
    let mut names = Names::new(module);
    let users = Users::new(module);
    for computation in ordered {
        let before = module.computations[computation].instructions.clone();
        let slices = match with_slices.contains(&computation) {
            true => slices::slices_of(module, computation),
            false => FxHashSet::default(),
        };
        let order = Backwards::new(module, computation, rules, &slices, seconds).order();
        // Parameters come first.
        let mut list: Vec<InstructionId> =
            before.iter().copied().filter(|&id| module.instructions[id].op.is_input()).collect();
        for place in order {
            list.push(match place {
                Place::Whole(id) | Place::End(id) => id,
                Place::Start(id) => start(module, &mut names, &users, id),
            });
        }
        module.computations[computation].instructions = list;
        module.put_operands_first(computation);
        changed |= module.computations[computation].instructions != before;
    }
    if changed {
        // The computations of starts come before those that call them.
        module.compact();
    }
    changed
}

/// Makes the start of a collective; the instruction itself becomes the end. In between, its operands and its result are in
/// memory, and a sum is where its operand was.
fn start(module: &mut Module, names: &mut Names, users: &Users, id: InstructionId) -> InstructionId {
    let instruction = module.instructions[id].clone();
    let operands = instruction.operands.clone();
    let shape = module.shape(id).clone();
    let given: Vec<Shape> = operands.iter().map(|&operand| module.shape(operand).clone()).collect();
    let is_sum = matches!(instruction.op, Op::AllReduce(_));
    let is_free = |operand: InstructionId| {
        is_sum && users.of(operand).len() == 1 && !module.instructions[operand].op.is_input()
    };
    let pairs = (0..).zip(&operands).filter(|&(_, &operand)| is_free(operand)).map(|(number, _)| {
        let whole = ShapeIndex::from([1]);
        let output_index = if shape.is_tuple() { whole.join(&[number].into()) } else { whole };
        OutputOperandAlias { output_index, operand: number, operand_index: ShapeIndex::root() }
    });
    let pairs: Vec<OutputOperandAlias> = pairs.collect();
    let mut at = Cursor::unlisted(module, names, instruction.parent);
    let wrapped = at.new_computation("async_wrapped", |inside| {
        let parameters: Vec<InstructionId> =
            given.iter().map(|shape| inside.parameter(shape.clone())).collect();
        inside.insert_instruction(
            instruction.op.clone(),
            parameters,
            instruction.called.clone(),
            Some(shape.clone()),
        )
    });
    let attributes = Async { output_operand_aliasing: pairs, ..Async::default() };
    let parts = Shape::tuple([Shape::tuple(given.clone()), shape.clone()]);
    let mut at = Cursor::unlisted(module, names, instruction.parent).with_metadata_of(id);
    let started =
        at.insert_instruction(Op::AsyncStart(Box::new(attributes)), operands, [wrapped], Some(parts));
    let end = &mut module.instructions[id];
    end.op = Op::AsyncDone(Box::default());
    end.operands = [started].into_iter().collect();
    end.called = [wrapped].into_iter().collect();
    started
}

fn is_collective(module: &Module, id: InstructionId) -> bool {
    module.instructions[id].op.is_whole_collective()
}
