//! The elements of a tuple that are read.

use cranelift_entity::SecondaryMap;
use memplan_ir::{InstructionId, Op, Shape};
use memplan_rewriter::Rewriter;

/// For each live instruction that `of` picks and whose result is a tuple: which elements are never taken out. None are
/// where the tuple is used as a whole. Linear.
pub(crate) fn unused_elements(
    r: &Rewriter<'_>,
    of: impl Fn(&Op) -> bool,
) -> SecondaryMap<InstructionId, Vec<bool>> {
    let mut unused: SecondaryMap<InstructionId, Vec<bool>> = SecondaryMap::new();
    for computation in r.module().computations.values() {
        for &id in computation.instructions.iter().filter(|&&id| r.uses(id) > 0) {
            if let (true, Shape::Tuple(elements)) = (of(r.op(id)), r.shape(id)) {
                unused[id] = vec![id != computation.root; elements.len()];
            }
            let index = match r.op(id) {
                Op::GetTupleElement { index } => Some(*index as usize),
                _ => None,
            };
            for &operand in r.operands(id) {
                match index {
                    Some(index) if !unused[operand].is_empty() => unused[operand][index] = false,
                    _ => unused[operand].fill(false),
                }
            }
        }
    }
    unused
}
