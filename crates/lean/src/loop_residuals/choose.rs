//! The rows to keep: a minimum cut of the data flow of one step.

use memplan_ir::{InstructionId, Module, Op};
use memplan_memory::{Bytes, Target};
use rustc_hash::FxHashSet;

use super::LoopResiduals;
use super::find::Pair;
use crate::remat::recompute_network::{self, Choice};
use memplan_min_cut::UNCUTTABLE;
use memplan_rewriter::cost;

/// The values of the first loop that the second loop gets; it computes all others.
#[derive(Clone, Debug)]
pub(super) struct Kept {
    /// Instructions of the first loop's body: rows, elements of state that neither loop changes, the number of the step,
    /// constants.
    pub(super) values: FxHashSet<InstructionId>,
    /// Bytes of the residuals as they are.
    pub(super) bytes_before: Bytes,
    /// Bytes of `values`, for all steps.
    pub(super) bytes_after: Bytes,
}

/// The values to keep that take the fewest bytes; `None` where that is hardly less than now.
pub(super) fn choose(module: &Module, target: &Target, pair: &Pair, options: &LoopResiduals) -> Option<Kept> {
    let n = pair.n_rows;
    let bytes = |id: InstructionId| cost::result_bytes(module, target, id);
    let now = pair.residuals.iter().fold(0u64, |sum, r| sum.saturating_add(bytes(r.row).saturating_mul(n)));
    let step = &module.computations[pair.producer.body].instructions;
    let recomputable = options.products.recomputable(module, target, pair.producer.body, n as f64);
    let recomputable = recomputable.within(step, options.reach, false);
    let price = |id: InstructionId| {
        let is_given = pair.producer.element_at(module, id).is_some();
        let is_constant = matches!(module.instructions[id].op, Op::Constant(_));
        if is_given || is_constant { UNCUTTABLE } else { recomputable.price(id) }
    };
    let capacity = |id| capacity(module, target, pair, id);
    let rows = pair.residuals.iter().map(|residual| residual.row);
    let Choice { kept: values, .. } = recompute_network::choose(module, rows, capacity, price)?;
    let kept = values.iter().fold(0u64, |sum, &id| sum.saturating_add(capacity(id)));
    let gains = kept as f64 <= now as f64 * (1.0 - options.min_gain);
    gains.then_some(Kept { values, bytes_before: Bytes(now), bytes_after: Bytes(kept) })
}

/// The bytes that it takes to give a value to the second loop.
fn capacity(module: &Module, target: &Target, pair: &Pair, id: InstructionId) -> u64 {
    let instruction = &module.instructions[id];
    let bytes = || cost::result_bytes(module, target, id).min(1 << 40);
    if module.shape(id).as_array().is_none_or(|array| array.is_dynamic() || array.memory_space() != 0) {
        return UNCUTTABLE;
    }
    match (pair.producer.element_at(module, id), &instruction.op) {
        (Some(element), _) if element == pair.counter => 0,
        (Some(element), _) if pair.producer.passes_on(module, element) => {
            let given = module.instructions[pair.producer.init].operands[element as usize];
            let is_parameter = is_kept_by_caller(module, given);
            if is_parameter || pair.consumer_element(module, given).is_some() { 0 } else { bytes() }
        }
        (None, Op::Constant(_)) => bytes(),
        // The value that a view shows is cut instead.
        (None, Op::Reshape { .. } | Op::Bitcast) => UNCUTTABLE,
        _ => bytes().saturating_mul(pair.n_rows).min(UNCUTTABLE - 1),
    }
}

/// Whether the caller of the program keeps a value.
fn is_kept_by_caller(module: &Module, id: InstructionId) -> bool {
    let instruction = &module.instructions[id];
    matches!(instruction.op, Op::Parameter { .. }) && instruction.parent == module.entry
}

impl Pair {
    /// The element of the second loop's state that is a given value throughout.
    pub(super) fn consumer_element(&self, module: &Module, given: InstructionId) -> Option<u32> {
        let init = &module.instructions[self.consumer.init].operands;
        (0..init.len() as u32).find(|&i| init[i as usize] == given && self.consumer.passes_on(module, i))
    }
}
