//! Orders of dimensions: which there are, what they are found as, and how a reshape carries them.

use cranelift_entity::SecondaryMap;
use memplan_ir::{ArrayShape, ComputationId, Dimensions, InstructionId, Layout, Module, Op, Shape};
use memplan_rewriter::views::order_of_result;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

/// The dimensions of an array, major first.
pub(super) type Order = Dimensions;
/// The orders of the leaves of a value.
pub(super) type Leaves = SmallVec<[Order; 1]>;

/// What was found.
pub(super) struct Orders {
    pub(super) of: SecondaryMap<InstructionId, Leaves>,
    pub(super) operands: FxHashMap<(InstructionId, usize), Leaves>,
    /// Results of bodies and branches.
    pub(super) results: FxHashMap<ComputationId, Leaves>,
}

impl Orders {
    /// Whether every array stays as it is.
    pub(super) fn are_row_major(&self) -> bool {
        let leaves = self.of.values().chain(self.operands.values()).chain(self.results.values());
        leaves.flatten().all(|order| order.iter().is_sorted())
    }
}

pub(super) fn row_major(rank: usize) -> Order {
    (0..rank as i64).collect()
}

/// Which leaves of its operand a get-tuple-element is.
pub(super) fn element_leaves(module: &Module, id: InstructionId) -> std::ops::Range<usize> {
    let instruction = &module.instructions[id];
    let Op::GetTupleElement { index } = instruction.op else { return 0..0 };
    let elements = module.shape(instruction.operands[0]).as_tuple().expect("elements are taken of tuples");
    let first = elements[..index as usize].iter().map(Shape::leaf_count).sum();
    first..first + elements[index as usize].leaf_count()
}

/// The order of `to` in which a reshape is another view of `from` in some order. Extents of one stay before the next
/// dimension, or at the end.
pub(super) fn aligned(from: &ArrayShape, order: &Order, to: &ArrayShape) -> Option<Order> {
    let is_long = |array: &ArrayShape, d: i64| array.dimensions[d as usize] != 1;
    let n_long = |array: &ArrayShape| (0..array.rank() as i64).filter(|&d| is_long(array, d)).count();
    if n_long(from) == 1 && n_long(to) == 1 {
        return None;
    }
    let layout = Some(Layout::with_order(order.iter().rev().copied()));
    let from = ArrayShape { layout, ..from.clone() };
    let mut found = order_of_result(&Op::Reshape { inferred_dimension: None }, &from, to)?;
    found.reverse();
    found.retain(|d| is_long(to, *d));
    for d in (0..to.rank() as i64).rev().filter(|&d| !is_long(to, d)) {
        let next = found.iter().position(|&other| other == d + 1);
        found.insert(next.unwrap_or(found.len()), d);
    }
    Some(found)
}

/// Whether a value has a layout that is not ours to choose: in another memory, tiled, or asked for by a library call.
pub(super) fn is_unusual(module: &Module, id: InstructionId) -> bool {
    let mut maker = id;
    while let Op::GetTupleElement { .. } = module.instructions[maker].op {
        maker = module.instructions[maker].operands[0];
    }
    let is_asked_for = matches!(module.instructions[maker].op, Op::Copy | Op::CustomCall(_));
    module.shape(id).any_array(|array| {
        array.is_dynamic()
            || array.layout.as_ref().is_some_and(|layout| {
                let order = layout.minor_to_major.clone();
                *layout != Layout::with_order(order) || is_asked_for && !layout.is_row_major()
            })
    })
}
