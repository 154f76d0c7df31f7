//! The elements of a tuple that are read.

use memplan_ir::{InstructionId, Op, Shape};
use memplan_rewriter::Rewriter;
use rustc_hash::FxHashMap;

/// Which elements of some tuples are never taken out.
pub(crate) struct Unused(FxHashMap<InstructionId, Vec<bool>>);

impl Unused {
    /// The elements of a tuple; none of other results.
    pub(crate) fn of(&self, tuple: InstructionId) -> &[bool] {
        self.0.get(&tuple).map_or(&[], Vec::as_slice)
    }
}

/// For each live instruction that `of` picks and whose result is a tuple: which elements are never taken out. None are
/// where the tuple is used as a whole. Linear.
pub(crate) fn unused_elements(r: &Rewriter<'_>, of: impl Fn(&Op) -> bool) -> Unused {
    let mut unused: FxHashMap<InstructionId, Vec<bool>> = FxHashMap::default();
    for computation in r.module().computations.values() {
        for &id in computation.instructions.iter().filter(|&&id| r.uses(id) > 0) {
            if let (true, Shape::Tuple(elements)) = (of(r.op(id)), r.shape(id)) {
                unused.insert(id, vec![id != computation.root; elements.len()]);
            }
            if unused.is_empty() {
                continue;
            }
            let index = match r.op(id) {
                Op::GetTupleElement { index } => Some(*index as usize),
                _ => None,
            };
            for operand in r.operands(id) {
                match (index, unused.get_mut(operand)) {
                    (Some(index), Some(elements)) => elements[index] = false,
                    (None, Some(elements)) => elements.fill(false),
                    (_, None) => {}
                }
            }
        }
    }
    Unused(unused)
}
