//! Softmax whose scores and exponentials are both stored.
//!
//! One kernel of libtpu computes scores, their maxima, exponentials and sums, and stores the exponentials, or scores and maxima.
//! Either is one array. It computes them in two kernels where the product of scores cuts its first operand out of a larger
//! array: then both arrays exist.

use memplan_ir::{BinaryOp, InstructionId, Op, Opcode, UnaryOp};

use super::Grouper;
use super::ended::{MOST_FOLLOWED, moves};

impl Grouper<'_> {
    /// Whether `id` is the exponential of softmax of a product that takes its batches out of a larger array, as where queries,
    /// keys and values are heads of one product. libtpu then stores both the scores and their exponentials, if the scores are
    /// a product of the same or of narrower numbers: elsewhere one kernel computes both, and stores one of them.
    pub(super) fn is_exponential_of_stored(&self, id: InstructionId) -> bool {
        let instruction = |id: InstructionId| &self.module.instructions[id];
        let is_reduced = |&user: &InstructionId| matches!(instruction(user).op, Op::Reduce { .. });
        let less_maximum = |&id: &InstructionId| {
            let it = instruction(id);
            (it.op == Op::Binary(BinaryOp::Subtract)).then(|| it.operands[0])
        };
        let scores = instruction(id).operands.first().and_then(less_maximum);
        self.target.fusion.dot.windows_outside_tiles
            && instruction(id).op == Op::Unary(UnaryOp::Exponential)
            && scores.is_some_and(|scores| {
                let is_apart = |product: InstructionId, between: &[InstructionId]| {
                    let is_itself = between.iter().all(|&at| moves(&instruction(at).op));
                    (is_itself || self.widens(product)) && self.takes_out_batches(product)
                };
                self.users.of(scores).iter().any(is_reduced)
                    && (self.takes_out_batches(scores)
                        || self.any_product_before(scores, Opcode::Dot, moves, is_apart))
            })
    }

    /// Whether a product's numbers have more bits than those it is made of.
    fn widens(&self, product: InstructionId) -> bool {
        let bits =
            |id: InstructionId| self.module.shape(id).as_array().map(|array| array.element_type.bits());
        bits(self.module.instructions[product].operands[0]) < bits(product)
    }

    /// Whether the first operand of a product is a slice along a dimension of batches.
    fn takes_out_batches(&self, product: InstructionId) -> bool {
        let instruction = &self.module.instructions[product];
        let Op::Dot(dot) = &instruction.op else { return false };
        let mut batches = dot.dimensions.lhs_batch.iter();
        batches.any(|&d| self.is_taken_out_along(instruction.operands[0], d as usize))
    }

    /// Whether an array is a slice along a dimension, moved or rounded.
    fn is_taken_out_along(&self, mut id: InstructionId, mut dimension: usize) -> bool {
        for _ in 0..MOST_FOLLOWED {
            let instruction = &self.module.instructions[id];
            let Some(shape) = self.module.shape(id).as_array() else { return false };
            match &instruction.op {
                Op::Slice { dimensions } => {
                    let of = self.module.shape(instruction.operands[0]).as_array();
                    let cut = dimensions.get(dimension).zip(of);
                    return cut.is_some_and(|(cut, of)| cut.limit - cut.start < of.dimensions[dimension]);
                }
                Op::Transpose { dimensions } => dimension = dimensions[dimension] as usize,
                Op::Reshape { .. } => {
                    let of = self.module.shape(instruction.operands[0]).as_array();
                    let Some(of) = of.filter(|of| long(&of.dimensions).eq(long(&shape.dimensions))) else {
                        return false;
                    };
                    let place = long(&shape.dimensions[..dimension]).count();
                    let at = |(d, &extent): (usize, &i64)| (extent > 1).then_some(d);
                    let Some(d) = of.dimensions.iter().enumerate().filter_map(at).nth(place) else {
                        return false;
                    };
                    dimension = d;
                }
                Op::Convert | Op::Bitcast => {}
                _ => return false,
            }
            id = instruction.operands[0];
        }
        false
    }
}

/// The extents of more than one element.
fn long(extents: &[i64]) -> impl Iterator<Item = &i64> {
    extents.iter().filter(|&&extent| extent > 1)
}
