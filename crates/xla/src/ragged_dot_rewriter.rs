//! `ragged-dot-rewriter`: computes products of groups of rows as one product with all groups.
//!
//! ```text
//!   r = f32[m,n] ragged-dot(x, w, sizes)          x: f32[m,k], w: f32[g,k,n]
//!      =>
//!   i = pred[g,m,k] whether row m is in group g
//!   s = f32[g,m,k] select(i, broadcast(x), 0)
//!   r = f32[m,n] dot(s, w), contracting {0,2}x{0,1}
//! ```
//!
//! So XLA needs an array of all rows for each group. If the groups divide the contracted dimension (gradients of the
//! weights), XLA repeats both operands, and groups are a batch. XLA does this on CPUs and GPUs; seen in 0.12.
//!
//! Left alone: groups of batches, and groups that differ between batches. *Changed* means that there was such a product.

use memplan_ir::{
    BinaryOp, ComparisonDirection, Dimensions, Dot, DotDimensions, ElementType, Insert, InstructionId, Op,
    Scalar, Shape,
};
use memplan_rewriter::{Rewriter, Sweep};

/// The pass.
pub const RAGGED_DOT_REWRITER: Sweep = Sweep {
    name: "ragged-dot-rewriter",
    description: "multiply all groups of rows with all weights, as XLA does",
    rule: rewrite,
};

fn rewrite(r: &mut Rewriter<'_>, id: InstructionId) -> Option<InstructionId> {
    let Op::RaggedDot(dot) = r.op(id).clone() else { return None };
    let &[lhs, rhs, sizes] = r.operands(id) else { return None };
    let DotDimensions { lhs_contracting, rhs_contracting, lhs_batch, rhs_batch } = dot.dimensions;
    let &ragged = dot.lhs_ragged_dims.first()?;
    let contracted = lhs_contracting.iter().position(|&d| d == ragged);
    let is_one_list = r.array(sizes)?.rank() == 1;
    let has_groups = contracted.is_some() || !dot.rhs_group_dims.is_empty();
    if !is_one_list || !has_groups || lhs_batch.contains(&ragged) {
        return None;
    }
    let beyond = |dimensions: &Dimensions| dimensions.iter().map(|d| d + 1).collect::<Vec<i64>>();
    let rows = Rows::new(r, sizes)?;
    let new_lhs = rows.by_group(r, lhs, ragged)?;
    let (new_rhs, dimensions) = match contracted {
        Some(at) => {
            let new_rhs = rows.by_group(r, rhs, rhs_contracting[at])?;
            let lhs_batch = [vec![0], beyond(&lhs_batch)].concat();
            let rhs_batch = [vec![0], beyond(&rhs_batch)].concat();
            let dimensions = DotDimensions::new(beyond(&lhs_contracting), beyond(&rhs_contracting));
            (new_rhs, dimensions.with_batch(lhs_batch, rhs_batch))
        }
        None => {
            let of_lhs = [vec![0], beyond(&lhs_contracting)].concat();
            let of_rhs = [&dot.rhs_group_dims[..1], &rhs_contracting].concat();
            (rhs, DotDimensions::new(of_lhs, of_rhs).with_batch(beyond(&lhs_batch), rhs_batch))
        }
    };
    let product = Dot { dimensions, precision: dot.precision };
    let shape = Shape::Array(r.array(id)?.clone());
    Some(r.emit(Op::Dot(Box::new(product)), [new_lhs, new_rhs], shape))
}

/// Where the rows of each group begin and end: arrays of one number for each group.
struct Rows {
    begin: InstructionId,
    end: InstructionId,
    element_type: ElementType,
    groups: i64,
}

impl Rows {
    /// Running sums of the sizes.
    fn new(r: &mut Rewriter<'_>, sizes: InstructionId) -> Option<Rows> {
        let (element_type, groups) = (r.element_type(sizes)?, r.dimensions(sizes)?[0]);
        let square = Shape::array(element_type, [groups, groups]);
        let [of, until] = [1, 0].map(|dimension| r.iota(square.clone(), dimension));
        let is_before = r.compare(ComparisonDirection::Le, of, until);
        let repeated = r.broadcast(sizes, [groups, groups], [1]);
        let zeros = r.splat_array(Scalar::integer(element_type, 0), &[groups, groups]);
        let counted = r.select(is_before, repeated, zeros);
        let zero = r.splat_array(Scalar::integer(element_type, 0), &[]);
        let sum = r.combiner("sum", BinaryOp::Add, element_type);
        let shape = Shape::array(element_type, [groups]);
        let end = r.emit_call(
            Op::Reduce { dimensions: Dimensions::from_slice(&[1]) },
            [counted, zero],
            [sum],
            shape,
        );
        let begin = r.binary(BinaryOp::Subtract, end, sizes);
        Some(Rows { begin, end, element_type, groups })
    }

    /// An array once for each group, with zeros where a dimension's index is not in that group.
    fn by_group(&self, r: &mut Rewriter<'_>, array: InstructionId, dimension: i64) -> Option<InstructionId> {
        let (extents, element_type) = (r.dimensions(array)?, r.element_type(array)?);
        let extent = extents[dimension as usize];
        let all: Vec<i64> = [&[self.groups], &extents[..]].concat();
        let index = r.iota(Shape::array(self.element_type, [self.groups, extent]), 1);
        let [begin, end] = [self.begin, self.end].map(|bound| r.broadcast(bound, [self.groups, extent], [0]));
        let is_behind = r.compare(ComparisonDirection::Ge, index, begin);
        let is_before = r.compare(ComparisonDirection::Lt, index, end);
        let is_within = r.binary(BinaryOp::And, is_behind, is_before);
        let mask = r.broadcast(is_within, all.iter().copied(), [0, dimension + 1]);
        let repeated = r.broadcast(array, all.iter().copied(), 1..all.len() as i64);
        let zeros = r.splat_array(Scalar::integer(element_type, 0), &all);
        Some(r.select(mask, repeated, zeros))
    }
}
