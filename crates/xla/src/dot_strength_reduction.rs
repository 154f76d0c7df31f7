//! `dot-strength-reduction`: rewrites small products of a matrix and a vector to sums of elementwise products.
//!
//! ```text
//!   d = bf16[32,4,2048] dot(q: bf16[32,4,64], k: bf16[32,2048,4,64])    batches of 32 and 4, sums of 64
//!      =>
//!   m = bf16[32,2048,4,64] multiply(broadcast(q), k)
//!   s = f32[32,2048,4] reduce(convert(m), 0), dimensions={3}
//!   d = bf16[32,4,2048] transpose(convert(s))
//! ```
//!
//! XLA's GPU compiler does this while it simplifies, before it converts operands of products to matrices. So a step of
//! decoding reads its cache in place, in one kernel (seen on jaxlib 0.12.0.1). Its TPU compiler does this for vectors of any
//! size without batches, and with batches unless a dimension that is summed and one of the result have 64 elements: so it
//! does for all of 120 such products.
//!
//! `inner-products` is the same for products of one element, on any target.
//!
//! An operand is a vector if each of its dimensions is a batch or summed, or has one element. Left alone: products with more
//! than [`DotStrengthReduction::max_size`] for each batch, and integers. *Changed* means that there was such a product.

use memplan_ir::{ArrayShape, BinaryOp, Dimensions, ElementType, InstructionId, Module, Op, Scalar, Shape};
use memplan_rewriter::{Context, PassError, PassFn, Rewriter};
use serde::Deserialize;

/// What is small.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DotStrengthReductionRules {
    /// The product of the extents of one batch must be less: those that are summed, and those of the result.
    pub max_size: u64,
    /// Whether the result must be one element.
    #[serde(default)]
    pub to_scalars: bool,
    /// If there are batches: products stay where a dimension that is summed and one of the result have so many elements.
    #[serde(default)]
    pub batched_below: Option<u64>,
}

pass_with_rules!(
    DOT_STRENGTH_REDUCTION = DotStrengthReduction(DotStrengthReductionRules),
    "dot-strength-reduction",
    "multiply small matrices by vectors elementwise, as XLA's GPU compiler does",
    run
);

/// The pass for inner products on any target. A sum takes less time than a matrix product, and its kernel computes the
/// operands.
pub const INNER_PRODUCTS: PassFn = PassFn {
    name: "inner-products",
    description: "Compute inner products as sums of elementwise products, which fuse",
    run: |module, _| {
        let rules = DotStrengthReductionRules { max_size: u64::MAX, to_scalars: true, batched_below: None };
        // Products of narrow numbers are exact in a kernel of products, and would be rounded here.
        let is_wide = |r: &Rewriter<'_>, id| r.element_type(id).is_some_and(|of| of.bits() >= 32);
        Ok(Rewriter::swept(module, |r, id| {
            let is_inner = matches!(r.op(id), Op::Dot(_)) && is_wide(r, r.operand(id, 0));
            if is_inner { reduce(r, &rules, id) } else { None }
        }))
    },
};

fn run(module: &mut Module, _: &Context<'_>, rules: &DotStrengthReductionRules) -> Result<bool, PassError> {
    Ok(Rewriter::swept(module, |r, id| reduce(r, rules, id)))
}

fn reduce(
    r: &mut Rewriter<'_>,
    rules: &DotStrengthReductionRules,
    id: InstructionId,
) -> Option<InstructionId> {
    let Op::Dot(dot) = r.op(id).clone() else { return None };
    let numbers = &dot.dimensions;
    let sides = [
        (r.operand(id, 0), &numbers.lhs_batch, &numbers.lhs_contracting),
        (r.operand(id, 1), &numbers.rhs_batch, &numbers.rhs_contracting),
    ];
    let is_vector = |&&(operand, batch, summed): &&(InstructionId, &Dimensions, &Dimensions)| {
        let is_used = |d: i64| batch.contains(&d) || summed.contains(&d);
        r.dimensions(operand)
            .is_some_and(|extents| (0..).zip(extents).all(|(d, extent)| extent == 1 || is_used(d)))
    };
    if rules.to_scalars && r.dimensions(id)?.iter().any(|&extent| extent != 1) {
        return None;
    }
    let place = sides.iter().position(|side| is_vector(&side))?;
    let ((vector, of_vector, sums_of_vector), (matrix, batch, summed)) = (sides[place], sides[1 - place]);
    let to = r.array(matrix)?.clone();
    let (vector, of_vector, sums_of_vector) = without_others(r, vector, of_vector, sums_of_vector)?;
    let from = r.array(vector)?.clone();
    let result = r.array(id)?.clone();
    if !to.element_type.is_floating() || from.element_type != to.element_type {
        return None;
    }
    let others: Vec<i64> =
        (0..to.rank() as i64).filter(|d| !batch.contains(d) && !summed.contains(d)).collect();
    let extents = others.iter().chain(summed).map(|&d| to.dimensions[d as usize] as u64);
    if extents.fold(1u64, u64::saturating_mul) >= rules.max_size {
        return None;
    }
    let extent = |d: &i64| to.dimensions[*d as usize];
    let is_batched = batch.iter().any(|d| extent(d) > 1);
    let reaches = |dimensions: &[i64], least: u64| dimensions.iter().any(|d| extent(d) as u64 >= least);
    if rules
        .batched_below
        .is_some_and(|least| is_batched && reaches(&others, least) && reaches(summed, least))
    {
        return None;
    }
    let goes_to = |d: i64| {
        let in_batch = of_vector.iter().position(|&other| other == d).map(|i| batch[i]);
        in_batch.or_else(|| sums_of_vector.iter().position(|&other| other == d).map(|i| summed[i]))
    };
    let goes: Vec<i64> = (0..from.rank() as i64).map(goes_to).collect::<Option<_>>()?;
    // Broadcasts keep the order of dimensions.
    let mut order: Dimensions = (0..goes.len() as i64).collect();
    order.sort_by_key(|&d| goes[d as usize]);
    let turned = r.transposed(vector, &order)?;
    let dimensions: Dimensions = order.iter().map(|&d| goes[d as usize]).collect();
    let spread = r.emit(Op::Broadcast { dimensions }, [turned], Shape::Array(to.clone()));
    // In the product's order: layouts are asked for in the order of operands.
    let mut factors = [spread, matrix];
    factors.rotate_left(place);
    let multiplied = r.emit(Op::Binary(BinaryOp::Multiply), factors, Shape::Array(to.clone()));
    let accumulator = if to.element_type.bits() < 32 { ElementType::F32 } else { to.element_type };
    let wide = convert(r, multiplied, accumulator)?;
    let left: Vec<i64> = (0..to.rank() as i64).filter(|d| !summed.contains(d)).collect();
    let shape = Shape::array(accumulator, left.iter().map(|&d| to.dimensions[d as usize]));
    let zero = r.splat_array(Scalar::integer(accumulator, 0), &[]);
    let adder = r.combiner("sum", BinaryOp::Add, accumulator);
    let sum = r.emit_call(Op::Reduce { dimensions: summed.clone() }, [wide, zero], [adder], shape);
    let wanted = batch.iter().chain(&others);
    let order: Dimensions =
        wanted.map(|d| left.iter().position(|other| other == d).map(|i| i as i64)).collect::<Option<_>>()?;
    let sum = r.transposed(sum, &order)?;
    let sum = convert(r, sum, result.element_type)?;
    match r.dimensions(sum)? == result.dimensions {
        true => Some(sum),
        false => Some(r.emit(Op::Reshape { inferred_dimension: None }, [sum], Shape::Array(result))),
    }
}

/// A vector without dimensions, of one element, that are neither batches nor summed, and the numbers of those.
fn without_others(
    r: &mut Rewriter<'_>,
    vector: InstructionId,
    batch: &Dimensions,
    summed: &Dimensions,
) -> Option<(InstructionId, Dimensions, Dimensions)> {
    let array = r.array(vector)?.clone();
    let used: Vec<i64> =
        (0..array.rank() as i64).filter(|d| batch.contains(d) || summed.contains(d)).collect();
    if used.len() == array.rank() {
        return Some((vector, batch.clone(), summed.clone()));
    }
    let shape = Shape::array(array.element_type, used.iter().map(|&d| array.dimensions[d as usize]));
    let squeezed = r.emit(Op::Reshape { inferred_dimension: None }, [vector], shape);
    let place = |d: &i64| used.iter().position(|other| other == d).expect("it is used") as i64;
    Some((squeezed, batch.iter().map(place).collect(), summed.iter().map(place).collect()))
}

fn convert(r: &mut Rewriter<'_>, x: InstructionId, to: ElementType) -> Option<InstructionId> {
    let array = r.array(x)?.clone();
    if array.element_type == to {
        return Some(x);
    }
    Some(r.emit(Op::Convert, [x], Shape::Array(ArrayShape { element_type: to, ..array })))
}
