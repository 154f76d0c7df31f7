//! Operations that some consumers must not compute while others read them from memory.
//!
//! If an operation reads more than it writes, from two or more arrays, each consumer that computes it would read all its
//! operands again. It is fused only if all consumers on all paths compute it.

use cranelift_entity::EntitySet;
use memplan_ir::{InstructionId, Op, Shape};
use rustc_hash::FxHashSet;

use super::Fuser;

/// Most edges that are followed from an instruction to its last user, a limit on time: what needs more is not fused on all
/// of its ways.
const MAX_STEPS: usize = 1024;

/// The instructions of a computation that must not be duplicated.
pub(super) fn unfusible(fuser: &Fuser<'_>) -> EntitySet<InstructionId> {
    let mut found = EntitySet::new();
    for &id in fuser.order.iter().rev() {
        let is_harmless = reads_one_array(fuser, id) || reads_no_more(fuser, id);
        if !is_harmless && !fuses_on_all_ways(fuser, id, &found) {
            found.insert(id);
        }
    }
    found
}

/// Whether all operands but one are negligible: of fewer dimensions than the result, or made of nothing.
fn reads_one_array(fuser: &Fuser<'_>, id: InstructionId) -> bool {
    let rank = |id: InstructionId| rank(fuser.module.shape(id));
    let result = rank(id);
    let counts = |operand: &&InstructionId| {
        let is_made_of_nothing = match &fuser.module.instructions[**operand].op {
            Op::Broadcast { .. } | Op::Iota { .. } => true,
            Op::Constant(_) => rank(**operand) == 0,
            _ => false,
        };
        !is_made_of_nothing && rank(**operand) >= result
    };
    fuser.module.instructions[id].operands.iter().filter(counts).count() <= 1
}

/// The most dimensions of an array of a shape, without those of extent 1.
fn rank(shape: &Shape) -> usize {
    match shape {
        Shape::Tuple(elements) => elements.iter().map(rank).max().unwrap_or(0),
        other => other.as_array().map_or(0, |array| array.dimensions.iter().filter(|&&d| d != 1).count()),
    }
}

/// The elements of all arrays of a shape.
fn elements(shape: &Shape) -> u64 {
    match shape {
        Shape::Tuple(parts) => parts.iter().map(elements).fold(0, u64::saturating_add),
        other => other.as_array().map_or(0, |array| array.element_count().unwrap_or(u64::MAX)),
    }
}

/// Whether the operands have no more elements than the result.
fn reads_no_more(fuser: &Fuser<'_>, id: InstructionId) -> bool {
    let elements = |id: InstructionId| elements(fuser.module.shape(id));
    let mut operands = fuser.module.instructions[id].operands.clone();
    operands.sort_unstable();
    operands.dedup();
    operands.into_iter().map(elements).fold(0, u64::saturating_add) <= elements(id)
}

/// Whether every edge on every way from an instruction to its users fuses.
fn fuses_on_all_ways(fuser: &Fuser<'_>, id: InstructionId, unfusible: &EntitySet<InstructionId>) -> bool {
    let users = fuser.users.of(id);
    let fuses =
        |producer, consumer| fuser.may_consume(consumer) && fuser.may_fuse(producer, &fuser.kernel(consumer));
    if !fuser.may_produce(id) || !users.iter().all(|&user| fuses(id, user)) {
        return false;
    }
    let Some(last) = users.iter().map(|&user| fuser.positions[user]).max() else { return true };
    if users.len() == 1 {
        return true;
    }
    let Some(behind) = reached(fuser, id, last) else { return false };
    let mut open: Vec<InstructionId> = users.to_vec();
    let mut seen: FxHashSet<InstructionId> = open.iter().copied().collect();
    while let Some(consumer) = open.pop() {
        let on_the_way =
            fuser.arrays(consumer).into_iter().filter(|operand| *operand == id || behind.contains(operand));
        for operand in on_the_way {
            if unfusible.contains(operand) || !fuses(operand, consumer) {
                return false;
            }
            if operand != id && seen.insert(operand) {
                open.push(operand);
            }
        }
    }
    true
}

/// The instructions before a position that depend on an instruction's result; `None` if that takes too many steps.
fn reached(fuser: &Fuser<'_>, id: InstructionId, last: u32) -> Option<FxHashSet<InstructionId>> {
    let mut reached: FxHashSet<InstructionId> = FxHashSet::default();
    let mut open = vec![id];
    let mut steps = 0;
    while let Some(id) = open.pop() {
        for &user in fuser.users.of(id) {
            steps += 1;
            if steps > MAX_STEPS {
                return None;
            }
            if fuser.positions[user] < last && reached.insert(user) {
                open.push(user);
            }
        }
    }
    Some(reached)
}
