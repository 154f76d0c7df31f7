//! `dot-decomposer`: rewrites matrix products to the one form that libraries multiply.
//!
//! ```text
//!   d = dot(q, k), batch {0,2}x{0,2}, contracting {3}x{3}
//!      =>
//!   qt = transpose(q)                      batch, rows, contracted
//!   kt = transpose(k)                      batch, contracted, columns
//!   d = dot(qt, kt), batch {0,1}x{0,1}, contracting {3}x{2}
//! ```
//!
//! Batch dimensions come first; rows, columns and contracted dimensions are one dimension each, or none for a single
//! row or column. Other operands are transposed in memory, except matrices whose rows and columns change places:
//! [`TRANSPOSE_FOLDING`] passes those to the library as they are.
//!
//! Left alone: products with at most one row, column and contracted dimension, and with their batch dimensions first.
//! *Changed* means that there was another product.

use memplan_ir::{ArrayShape, Dimensions, Dot, DotDimensions, DotOperand, Insert, InstructionId, Op, Shape};
use memplan_rewriter::{Rewriter, Sweep};

/// The pass.
pub const DOT_DECOMPOSER: Sweep = Sweep {
    name: "dot-decomposer",
    description: "transpose operands of matrix products into the library's order, as XLA's CPU compiler does",
    rule: canonicalize,
};

/// Folds transposes of rows and columns into products.
pub const TRANSPOSE_FOLDING: Sweep = Sweep {
    name: "transpose-folding",
    description: "multiply transposed matrices without moving them, as XLA's CPU compiler does",
    rule: fold_transposes,
};

/// Transposes matrices that are multiplied by vectors.
pub const MATRIX_VECTOR_PRODUCTS: Sweep = Sweep {
    name: "matrix-vector-products",
    description: "transpose matrices that vectors are multiplied by, as XLA's CPU compiler does",
    rule: for_vector,
};

/// One operand of a product: which of its dimensions do what.
struct Side<'a> {
    batch: &'a [i64],
    contracting: &'a [i64],
    free: Dimensions,
    extents: Dimensions,
}

impl<'a> Side<'a> {
    fn new(array: &ArrayShape, numbers: &'a DotDimensions, operand: DotOperand) -> Side<'a> {
        Side {
            batch: numbers.batch(operand),
            contracting: numbers.contracting(operand),
            free: numbers.free(operand, array.rank()),
            extents: array.dimensions.clone(),
        }
    }

    fn is_canonical(&self) -> bool {
        let is_leading = self.batch.iter().enumerate().all(|(i, &d)| i as i64 == d);
        self.contracting.len() == 1 && self.free.len() <= 1 && is_leading
    }

    fn extent_of(&self, dimensions: &[i64]) -> i64 {
        dimensions.iter().map(|&d| self.extents[d as usize]).product()
    }

    /// The number of rows or columns, if there are several.
    fn width(&self) -> Option<i64> {
        Some(self.extent_of(&self.free)).filter(|&width| width != 1)
    }
}

fn canonicalize(r: &mut Rewriter<'_>, id: InstructionId) -> Option<InstructionId> {
    let Op::Dot(dot) = r.op(id).clone() else { return None };
    let (left, right) = (r.operand(id, 0), r.operand(id, 1));
    let result = r.array(id)?.clone();
    let lhs = Side::new(r.array(left)?, &dot.dimensions, DotOperand::Lhs);
    let rhs = Side::new(r.array(right)?, &dot.dimensions, DotOperand::Rhs);
    if lhs.is_canonical() && rhs.is_canonical() {
        return None;
    }
    let batch: Dimensions = lhs.batch.iter().map(|&d| lhs.extents[d as usize]).collect();
    let n_batch = batch.len() as i64;
    let contracted = lhs.extent_of(lhs.contracting);
    let extents = |inner: [Option<i64>; 2]| -> Dimensions {
        batch.iter().copied().chain(inner.into_iter().flatten()).collect()
    };
    let of_lhs = [lhs.batch, &lhs.free, lhs.contracting].concat();
    let of_rhs = [rhs.batch, rhs.contracting, &rhs.free].concat();
    let new_left = arranged(r, left, of_lhs, extents([lhs.width(), Some(contracted)]));
    let new_right = arranged(r, right, of_rhs, extents([Some(contracted), rhs.width()]));
    let dimensions = DotDimensions::new([n_batch + i64::from(lhs.width().is_some())], [n_batch])
        .with_batch(0..n_batch, 0..n_batch);
    let shape = ArrayShape::new(result.element_type, extents([lhs.width(), rhs.width()]));
    let product =
        r.emit(Op::Dot(Box::new(Dot { dimensions, ..*dot })), [new_left, new_right], Shape::Array(shape));
    r.reshaped(product, &result.dimensions)
}

/// An operand with its dimensions in another order, and then taken together. Transposes that the program has already lose
/// their layout, which keeps libraries from narrow products.
fn arranged(r: &mut Rewriter<'_>, id: InstructionId, order: Vec<i64>, extents: Dimensions) -> InstructionId {
    let mut transposed = r.transposed(id, &order.into()).expect("arrays are multiplied");
    let array = r.array(transposed).expect("arrays are multiplied");
    if let Op::Transpose { dimensions } = r.op(transposed)
        && !array.is_row_major()
    {
        let (dimensions, source) = (dimensions.clone(), r.operand(transposed, 0));
        transposed = r.transpose(source, dimensions);
    }
    r.reshaped(transposed, &extents).expect("arrays are multiplied")
}

fn fold_transposes(r: &mut Rewriter<'_>, id: InstructionId) -> Option<InstructionId> {
    let Op::Dot(mut dot) = r.op(id).clone() else { return None };
    let [mut left, mut right] = [r.operand(id, 0), r.operand(id, 1)];
    // Vectors are not transposed.
    if [left, right].iter().any(|&operand| r.array(operand).is_none_or(|array| array.dimensions.len() < 2)) {
        return None;
    }
    let DotDimensions { lhs_contracting, rhs_contracting, lhs_batch, rhs_batch } = &mut dot.dimensions;
    let mut changed = false;
    for (operand, contracting, batch) in
        [(&mut left, lhs_contracting, lhs_batch), (&mut right, rhs_contracting, rhs_batch)]
    {
        let Op::Transpose { dimensions } = r.op(*operand) else { continue };
        let stays = |&d: &i64| dimensions[d as usize] == d;
        if contracting.len() == 1 && batch.len() + 2 == dimensions.len() && batch.iter().all(stays) {
            contracting[0] = dimensions[contracting[0] as usize];
            *operand = r.operand(*operand, 0);
            changed = true;
        }
    }
    if !changed {
        return None;
    }
    let shape = Shape::Array(r.array(id)?.clone());
    Some(r.emit(Op::Dot(dot), [left, right], shape))
}

/// XLA folds transposes of matrices into products of two matrices alone. The matrix is on the left with its rows, or on the
/// right with its columns.
fn for_vector(r: &mut Rewriter<'_>, id: InstructionId) -> Option<InstructionId> {
    let Op::Dot(mut dot) = r.op(id).clone() else { return None };
    let mut operands = [r.operand(id, 0), r.operand(id, 1)];
    let DotDimensions { lhs_contracting, rhs_contracting, lhs_batch, .. } = &mut dot.dimensions;
    if !lhs_batch.is_empty() || r.dimensions(id)?.len() != 1 {
        return None;
    }
    let mut changed = false;
    for (operand, contracting, at) in [(0, lhs_contracting, 1), (1, rhs_contracting, 0)] {
        let is_matrix = r.dimensions(operands[operand])?.len() == 2;
        if is_matrix && contracting.len() == 1 && contracting[0] != at {
            operands[operand] = r.transposed(operands[operand], &Dimensions::from_iter([1, 0]))?;
            contracting[0] = at;
            changed = true;
        }
    }
    let shape = r.shape(id).clone();
    changed.then(|| r.emit(Op::Dot(dot), operands, shape))
}
