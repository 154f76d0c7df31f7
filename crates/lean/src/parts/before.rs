//! Values that depend on the whole batch and that the loop reads: they are computed before the loop, if they depend on
//! little.
//!
//! An example is a loss that is divided by the number of tokens that count. The gradient of each token needs this number,
//! which depends on all tokens, but only on their weights.

use memplan_ir::{InstructionId, Module, Op};
use memplan_memory::Target;
use memplan_rewriter::cost;
use rustc_hash::FxHashSet;

use super::Parts;
use super::labels::{Label, Labels};
use memplan_rewriter::rows::{Rows, is_repetition};

/// Times that values are moved before the loop: after each, others may need the whole batch.
const MAX_ROUNDS: usize = 4;

/// The labels with as much as possible in the loop, and the first values that mix examples and end it all the same.
pub(super) fn labels(
    module: &Module,
    target: &Target,
    seeds: &[(InstructionId, Rows)],
    options: Parts,
) -> (Labels, Vec<InstructionId>) {
    let mut before = FxHashSet::default();
    for _ in 0..MAX_ROUNDS {
        let labels = Labels::new(module, options.n, seeds, &before);
        let mixing = mixing(module, &labels);
        let inside = bytes(
            module,
            target,
            module.entry_computation().instructions.iter().copied().filter(|&id| labels.is_inside(id)),
        );
        let mut grew = false;
        for &id in &mixing {
            let needed = needed_for(module, id);
            let own = bytes(
                module,
                target,
                needed
                    .iter()
                    .copied()
                    .filter(|&id| labels.is_inside(id) || labels.of(id).contains(&Label::Later)),
            );
            if own <= options.before.of(inside) {
                let size = before.len();
                before.extend(needed);
                grew |= before.len() > size;
            }
        }
        if !grew {
            return (labels, mixing);
        }
    }
    let labels = Labels::new(module, options.n, seeds, &before);
    let mixing = mixing(module, &labels);
    (labels, mixing)
}

/// The first values that need the whole batch on each way from there to an instruction that also reads rows.
fn mixing(module: &Module, labels: &Labels) -> Vec<InstructionId> {
    let mut found = Vec::new();
    let mut seen: FxHashSet<InstructionId> = FxHashSet::default();
    for &id in &module.entry_computation().instructions {
        let instruction = &module.instructions[id];
        let is_later = |id: InstructionId| labels.of(id).contains(&Label::Later);
        if !is_later(id) || matches!(instruction.op, Op::Tuple) {
            continue;
        }
        let reads_rows = instruction
            .operands
            .iter()
            .any(|&operand| labels.of(operand).iter().any(|label| matches!(label, Label::Rows(_))));
        let reads_later = instruction.operands.iter().any(|&operand| is_later(operand));
        if !(reads_rows && reads_later) {
            continue;
        }
        let mut open: Vec<InstructionId> =
            instruction.operands.iter().copied().filter(|&operand| is_later(operand)).collect();
        while let Some(id) = open.pop() {
            if !seen.insert(id) {
                continue;
            }
            let earlier =
                module.instructions[id].operands.iter().copied().filter(|&operand| is_later(operand));
            let size = open.len();
            open.extend(earlier);
            if open.len() == size {
                found.push(id);
            }
        }
    }
    found
}

/// All that a value is computed from, parameters excepted, and itself.
fn needed_for(module: &Module, id: InstructionId) -> Vec<InstructionId> {
    let mut seen = FxHashSet::from_iter([id]);
    let mut needed = vec![id];
    let mut next = 0;
    while let Some(&id) = needed.get(next) {
        next += 1;
        for &operand in &module.instructions[id].operands {
            if !matches!(module.instructions[operand].op, Op::Parameter { .. }) && seen.insert(operand) {
                needed.push(operand);
            }
        }
    }
    needed
}

/// Bytes of the values, repetitions of others excepted.
fn bytes(module: &Module, target: &Target, ids: impl Iterator<Item = InstructionId>) -> u64 {
    let ids = ids.filter(|&id| !is_repetition(&module.instructions[id].op));
    ids.map(|id| cost::result_bytes(module, target, id)).fold(0, u64::saturating_add)
}
