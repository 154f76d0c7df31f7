//! `dot-dimension-sorter`: contracts dimensions in the order in which an operand has them.
//!
//! ```text
//!   d = dot(x, y), contracting {2,1}x{1,0}    =>    d = dot(x, y), contracting {1,2}x{0,1}
//! ```
//!
//! Dimensions that lie side by side are then one dimension, and nothing is transposed. XLA's GPU compiler sorts those of an
//! operand that has them side by side, by the left one if both do, unless that would only help one operand and hurt the other.
//!
//! Left alone: products that contract at most one dimension. *Changed* means that there was another product.

use memplan_ir::{Dimensions, InstructionId, Op};
use memplan_rewriter::{Rewriter, Sweep};

/// The pass.
pub const DOT_DIMENSION_SORTER: Sweep = Sweep {
    name: "dot-dimension-sorter",
    description: "contract dimensions in the order in which operands have them, as XLA's GPU compiler does",
    rule,
};

fn rule(r: &mut Rewriter<'_>, id: InstructionId) -> Option<InstructionId> {
    let Op::Dot(dot) = r.op(id) else { return None };
    let [lhs, rhs] = [&dot.dimensions.lhs_contracting, &dot.dimensions.rhs_contracting].map(Contracted::new);
    let helps = match (lhs.are_side_by_side, rhs.are_side_by_side) {
        (true, false) => !lhs.are_sorted,
        (false, true) => !rhs.are_sorted,
        (true, true) => !lhs.are_sorted && !rhs.are_sorted,
        (false, false) => false,
    };
    if !helps {
        return None;
    }
    let mut dot = dot.clone();
    let numbers = &mut dot.dimensions;
    let mut pairs: Vec<(i64, i64)> =
        numbers.lhs_contracting.iter().copied().zip(numbers.rhs_contracting.iter().copied()).collect();
    pairs.sort_unstable_by_key(|&(left, right)| if lhs.are_side_by_side { left } else { right });
    (numbers.lhs_contracting, numbers.rhs_contracting) = pairs.into_iter().unzip();
    Some(r.copy(id, |product| product.op = Op::Dot(dot)))
}

/// The dimensions that an operand contracts.
struct Contracted {
    are_sorted: bool,
    are_side_by_side: bool,
}

impl Contracted {
    fn new(dimensions: &Dimensions) -> Contracted {
        let mut sorted = dimensions.to_vec();
        sorted.sort_unstable();
        Contracted {
            are_sorted: dimensions.is_sorted(),
            are_side_by_side: sorted.windows(2).all(|pair| pair[0] + 1 == pair[1]),
        }
    }
}
