//! Dots: transposes folded into dimension numbers, and products without a contracted dimension.

use memplan_ir::indexing::{Source, operands_read};
use memplan_ir::{BinaryOp, Dimensions, Dot, DotOperand, ElementType, InstructionId, Op, Scalar, Shape};
use memplan_rewriter::Rewriter;

use super::factors::is_increasing;

/// A dot of transposed operands, or one that is an outer product.
pub(super) fn dot(r: &mut Rewriter<'_>, id: InstructionId) -> Option<InstructionId> {
    let Op::Dot(dot) = r.op(id).clone() else { return None };
    let lhs = r.dimensions(r.operand(id, 0))?;
    let contracted = dot.dimensions.lhs_contracting.iter().map(|&d| lhs[d as usize]);
    let n_summed: i64 = contracted.product();
    if n_summed == 0 {
        let (element_type, to) = (r.element_type(id)?, r.dimensions(id)?);
        return Some(r.splat_array(Scalar::integer(element_type, 0), &to));
    }
    if n_summed == 1
        && let Some(product) = outer_product(r, id)
    {
        return Some(product);
    }
    fold_transposes(r, id, *dot)
}

/// `dot(transpose(a), b)` is a dot of `a` that contracts other dimensions, as long as the dimensions that are left
/// keep their order.
fn fold_transposes(r: &mut Rewriter<'_>, id: InstructionId, mut dot: Dot) -> Option<InstructionId> {
    let mut operands = [r.operand(id, 0), r.operand(id, 1)];
    let mut folded = false;
    for (side, operand) in operands.iter_mut().enumerate() {
        let Op::Transpose { dimensions: permutation } = r.op(*operand) else { continue };
        let numbers = &mut dot.dimensions;
        let free = numbers.free([DotOperand::Lhs, DotOperand::Rhs][side], permutation.len());
        let free: Dimensions = free.iter().map(|&d| permutation[d as usize]).collect();
        if !is_increasing(&free) {
            continue;
        }
        let [contracting, batch] = match side {
            0 => [&mut numbers.lhs_contracting, &mut numbers.lhs_batch],
            _ => [&mut numbers.rhs_contracting, &mut numbers.rhs_batch],
        };
        contracting.iter_mut().chain(batch).for_each(|d| *d = permutation[*d as usize]);
        *operand = r.operand(*operand, 0);
        folded = true;
    }
    let shape = r.shape(id).clone();
    folded.then(|| r.emit(Op::Dot(Box::new(dot)), operands, shape))
}

/// A dot that sums over nothing is an elementwise product, which needs no array of its own where it is fused.
fn outer_product(r: &mut Rewriter<'_>, id: InstructionId) -> Option<InstructionId> {
    let (element_type, to, shape) = (r.element_type(id)?, r.dimensions(id)?, r.shape(id).clone());
    let operands = [r.operand(id, 0), r.operand(id, 1)];
    for &operand in &operands {
        if !widens(r.element_type(operand)?, element_type) {
            return None;
        }
    }
    let maps = operands_read(r.module(), id);
    let mut factors = operands;
    for (factor, map) in factors.iter_mut().zip(maps) {
        let map = map?;
        let (mut kept, mut places) = (Dimensions::new(), Dimensions::new());
        for (&extent, source) in map.extents.iter().zip(&map.sources) {
            if let Source::Dim(d) = *source
                && d < map.rank
            {
                kept.push(extent);
                places.push(d as i64);
            }
        }
        let narrow = r.element_type(*factor)?;
        let small = Shape::array(narrow, kept.iter().copied());
        *factor = r.emit(Op::Reshape { inferred_dimension: None }, [*factor], small);
        if narrow != element_type {
            *factor = r.emit(Op::Convert, [*factor], Shape::array(element_type, kept));
        }
        let product = Shape::array(element_type, to.iter().copied());
        *factor = r.emit(Op::Broadcast { dimensions: places }, [*factor], product);
    }
    Some(r.emit(Op::Binary(BinaryOp::Multiply), factors, shape))
}

/// Whether products of one type are computed in another without loss before the sum.
fn widens(from: ElementType, to: ElementType) -> bool {
    from == to
        || (from.is_floating()
            && matches!(to, ElementType::F32 | ElementType::F64)
            && from.bits() < to.bits())
        || (from.is_integral()
            && to.is_integral()
            && from.is_signed() == to.is_signed()
            && from.bits() < to.bits())
}

/// `transpose(dot(a, b))` is `dot(b, a)` when it exchanges the dimensions of `a` and `b`.
pub(super) fn transpose_of_dot(r: &mut Rewriter<'_>, id: InstructionId) -> Option<InstructionId> {
    let Op::Transpose { dimensions: permutation } = r.op(id) else { return None };
    let x = r.operand(id, 0);
    let Op::Dot(dot) = r.op(x) else { return None };
    if r.uses(x) != 1 {
        return None;
    }
    let numbers = &dot.dimensions;
    let n_batch = numbers.lhs_batch.len();
    let rank = permutation.len();
    let n_lhs_free = r.array(r.operand(x, 0))?.rank() - n_batch - numbers.lhs_contracting.len();
    let (batch, free) = permutation.split_at(n_batch);
    if batch.iter().any(|&d| d as usize >= n_batch) {
        return None;
    }
    let in_order = (n_batch..rank).map(|d| d as i64);
    let exchanged = (n_batch + n_lhs_free..rank).chain(n_batch..n_batch + n_lhs_free).map(|d| d as i64);
    let exchanges = exchanged.eq(free.iter().copied());
    if !exchanges && !in_order.eq(free.iter().copied()) {
        return None;
    }
    let mut dot = dot.clone();
    let reorder = |list: &Dimensions| batch.iter().map(|&d| list[d as usize]).collect();
    dot.dimensions.lhs_batch = reorder(&dot.dimensions.lhs_batch);
    dot.dimensions.rhs_batch = reorder(&dot.dimensions.rhs_batch);
    let mut operands = [r.operand(x, 0), r.operand(x, 1)];
    if exchanges {
        operands.reverse();
        let numbers = &mut dot.dimensions;
        std::mem::swap(&mut numbers.lhs_batch, &mut numbers.rhs_batch);
        std::mem::swap(&mut numbers.lhs_contracting, &mut numbers.rhs_contracting);
        dot.precision.operand_precision.reverse();
    }
    let shape = r.shape(id).clone();
    Some(r.emit(Op::Dot(dot), operands, shape))
}
