//! `splitk-rewriter`: splits the sum of a product with too few elements to use all multiprocessors.
//!
//! ```text
//!   d = f32[64,256] dot(x, y), contracting {1}x{0}
//!      =>
//!   xs = f32[64,8,64] reshape(x)
//!   ys = f32[8,64,256] reshape(y)
//!   parts = f32[8,64,256] dot(xs, ys), batch {1}x{0}, contracting {2}x{1}
//!   d = reduce(parts, 0), dimensions={0}
//! ```
//!
//! The parts are in memory, in the accumulation type, until the last kernel sums them.
//!
//! Left alone: products that XLA's formula for an H100 makes no faster, products of 32-bit integers, and products over
//! several dimensions none of which divides evenly. *Changed* means that a product was split.

use memplan_ir::{
    ArrayShape, BinaryOp, Dimensions, Dot, ElementType, InstructionId, Module, Op, PaddingDimension, Scalar,
    Shape,
};
use memplan_rewriter::{Context, PassError, Rewriter};
use serde::Deserialize;
use smallvec::SmallVec;

/// Costs and gains of parts, in the compiler's own unit of time.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SplitkRules {
    /// Most parts, a power of two.
    pub max_parts: u64,
    /// Rows and columns that one multiprocessor computes at a time.
    pub tile: u64,
    /// Multiprocessors of the machine.
    pub multiprocessors: f64,
    /// The cost of an arithmetic operation.
    pub operation: f64,
    /// The cost of a byte that the product reads or writes.
    pub byte: f64,
    /// The cost of a byte that the sum of the parts reads or writes.
    pub byte_of_sum: f64,
    /// The cost of launching that sum.
    pub sum: f64,
}

pass_with_rules!(
    SPLITK_REWRITER = SplitkRewriter(SplitkRules),
    "splitk-rewriter",
    "split the sums of small matrix products into several parts, as XLA's GPU compiler does",
    run
);

fn run(module: &mut Module, _: &Context<'_>, rules: &SplitkRules) -> Result<bool, PassError> {
    Ok(Rewriter::swept(module, |r, id| split(r, rules, id)))
}

fn split(r: &mut Rewriter<'_>, rules: &SplitkRules, id: InstructionId) -> Option<InstructionId> {
    let Op::Dot(dot) = r.op(id).clone() else { return None };
    let product = Product::new(r, id, &dot)?;
    let parts = product.best_number_of_parts(rules);
    if parts == 1 {
        return None;
    }
    let lhs = r.array(r.operand(id, 0))?;
    let (which, extent) = product.extent_to_cut(lhs, &dot.dimensions.lhs_contracting, parts)?;
    let cut = Cut { which, extent: i64::try_from(extent).ok()?, parts: parts as i64 };
    let partial = partial_products(r, id, *dot, &cut, product.accumulator)?;
    sum_up(r, id, partial, product.accumulator)
}

/// Where a product is cut into parts.
pub(crate) struct Cut {
    /// Which of the contracted dimensions is cut.
    pub(crate) which: usize,
    /// How many elements it has, after padding.
    pub(crate) extent: i64,
    /// Into how many parts.
    pub(crate) parts: i64,
}

/// The products of the parts, whose number is the first dimension.
pub(crate) fn partial_products(
    r: &mut Rewriter<'_>,
    id: InstructionId,
    mut dot: Dot,
    cut: &Cut,
    accumulator: ElementType,
) -> Option<InstructionId> {
    let &Cut { which, extent, parts } = cut;
    let [left, right] = [r.operand(id, 0), r.operand(id, 1)];
    let result = r.array(id)?.clone();
    let numbers = &mut dot.dimensions;
    let cut_left = numbers.lhs_contracting[which];
    let cut_right = numbers.rhs_contracting[which];
    let lhs = with_parts(r, left, cut_left, extent, parts);
    let rhs = with_parts(r, right, cut_right, extent, parts);
    for (batch, contracting, at) in [
        (&mut numbers.lhs_batch, &mut numbers.lhs_contracting, cut_left),
        (&mut numbers.rhs_batch, &mut numbers.rhs_contracting, cut_right),
    ] {
        batch.iter_mut().filter(|d| **d > at).for_each(|d| *d += 1);
        contracting.iter_mut().filter(|d| **d >= at).for_each(|d| *d += 1);
        batch.insert(0, at);
    }
    let extents = [parts].into_iter().chain(result.dimensions.iter().copied());
    let shape = Shape::array(accumulator, extents);
    Some(r.emit(Op::Dot(Box::new(dot)), [lhs, rhs], shape))
}

/// The sum of the parts of a product, in the type of the product.
pub(crate) fn sum_up(
    r: &mut Rewriter<'_>,
    id: InstructionId,
    partial: InstructionId,
    accumulator: ElementType,
) -> Option<InstructionId> {
    let result = r.array(id)?.clone();
    let zero = r.splat_array(Scalar::integer(accumulator, 0), &[]);
    let adder = r.combiner("sum", BinaryOp::Add, accumulator);
    let sum = ArrayShape { element_type: accumulator, ..result.clone() };
    let dimensions = Dimensions::from_elem(0, 1);
    let sum = r.emit_call(Op::Reduce { dimensions }, [partial, zero], [adder], Shape::Array(sum));
    Some(match result.element_type == accumulator {
        true => sum,
        false => r.emit(Op::Convert, [sum], Shape::Array(result)),
    })
}

/// A product of matrices, as the formula sees it.
pub(crate) struct Product {
    batch: u64,
    rows: u64,
    columns: u64,
    /// Elements that are summed for one of the result.
    pub(crate) contracted: u64,
    /// Bytes of an element of the operands, before they are converted, and of the result.
    bytes: [f64; 3],
    /// The type of the sums.
    pub(crate) accumulator: ElementType,
}

impl Product {
    /// `None` for products that are never cut up.
    pub(crate) fn new(r: &Rewriter<'_>, id: InstructionId, dot: &Dot) -> Option<Product> {
        let [left, right] = [r.operand(id, 0), r.operand(id, 1)];
        let (lhs, rhs, result) = (r.array(left)?, r.array(right)?, r.array(id)?);
        let numbers = &dot.dimensions;
        let (all_left, all_right) = (lhs.element_count()?, rhs.element_count()?);
        let is_integer = [lhs, rhs].iter().any(|operand| operand.element_type == ElementType::S32);
        if is_integer || all_left == 0 || all_right == 0 {
            return None;
        }
        // No more than all of them, which do not overflow.
        let some = |of: &[i64]| of.iter().map(|&d| lhs.dimensions[d as usize] as u64).product::<u64>();
        let (batch, contracted) = (some(&numbers.lhs_batch), some(&numbers.lhs_contracting));
        let bytes = [loaded(r, left), loaded(r, right), result.element_type];
        Some(Product {
            batch,
            rows: all_left / (batch * contracted),
            columns: all_right / (batch * contracted),
            contracted,
            bytes: bytes.map(|element_type| f64::from(element_type.bits()) / 8.0),
            accumulator: accumulator(result.element_type),
        })
    }

    /// Of equally fast ones, the smallest.
    pub(crate) fn best_number_of_parts(&self, rules: &SplitkRules) -> u64 {
        let mut best = (1, self.cost(rules, 1));
        for parts in (1..u64::BITS).map(|doublings| 1 << doublings).take_while(|&n| n <= rules.max_parts) {
            let cost = self.cost(rules, parts);
            if cost < best.1 {
                best = (parts, cost);
            }
        }
        best.0
    }

    /// Time in so many parts, in a unit of XLA's own.
    pub(crate) fn cost(&self, rules: &SplitkRules, parts: u64) -> f64 {
        let tile_extent = rules.tile.max(1);
        let Product { batch, rows, columns, contracted, bytes: [lhs, rhs, result], .. } = *self;
        let accumulator = f64::from(self.accumulator.bits()) / 8.0;
        let count = |factors: &[u64]| factors.iter().map(|&factor| factor as f64).product::<f64>();
        let tile = count(&[rows.min(tile_extent), columns.min(tile_extent)]);
        let n_tiles = count(&[batch, parts, rows.div_ceil(tile_extent), columns.div_ceil(tile_extent)]);
        let tiles_at_once = rules.multiprocessors * count(&[tile_extent, tile_extent]) / tile;
        let waves = (n_tiles / tiles_at_once).max(1.0);
        let compute = 2.0 * tile * contracted.div_ceil(parts) as f64 * waves * rules.operation;
        let read = count(&[batch, rows, contracted]) * lhs + count(&[batch, columns, contracted]) * rhs;
        let results = count(&[batch, rows, columns]);
        if parts == 1 {
            return compute.max((read + results * result) * rules.byte);
        }
        let partial = results * parts as f64 * accumulator;
        let sum = rules.sum + (partial + results * result) * rules.byte_of_sum;
        compute.max((read + partial) * rules.byte) + sum
    }

    /// Elements of the narrower operand in 16 bytes.
    pub(crate) fn alignment(&self) -> u64 {
        let narrowest = self.bytes[0].min(self.bytes[1]).min(16.0);
        (16.0 / narrowest) as u64
    }

    /// This product in equal parts, as one with a batch.
    pub(crate) fn in_parts(&self, parts: u64) -> Product {
        Product { batch: self.batch * parts, contracted: self.contracted / parts, ..*self }
    }

    /// Which of the contracted dimensions is cut, and to how many elements it is padded before. Parts begin at multiples
    /// of 16 bytes.
    fn extent_to_cut(&self, lhs: &ArrayShape, contracting: &[i64], parts: u64) -> Option<(usize, u64)> {
        let extents = contracting.iter().map(|&d| lhs.dimensions[d as usize] as u64);
        match contracting {
            [_] => Some((0, self.contracted.checked_next_multiple_of(parts * self.alignment())?)),
            _ => extents.enumerate().find(|(_, extent)| extent % parts == 0),
        }
    }
}

/// The element type that is loaded for an operand: conversions and similar operations happen in the kernel.
fn loaded(r: &Rewriter<'_>, mut id: InstructionId) -> ElementType {
    while r.op(id).is_elementwise() && r.operands(id).len() == 1 {
        id = r.operand(id, 0);
    }
    r.element_type(id).expect("what is computed element by element from an array is one")
}

fn accumulator(element_type: ElementType) -> ElementType {
    match element_type.is_floating() && element_type.bits() < 32 {
        true => ElementType::F32,
        false => element_type,
    }
}

/// An operand with one dimension split: the parts precede the rest of it.
fn with_parts(
    r: &mut Rewriter<'_>,
    mut operand: InstructionId,
    at: i64,
    extent: i64,
    parts: i64,
) -> InstructionId {
    let at = at as usize;
    let mut array = r.array(operand).expect("arrays are multiplied").clone();
    array.layout = None;
    if array.dimensions[at] != extent {
        let mut padding: SmallVec<[PaddingDimension; 2]> =
            SmallVec::from_elem(PaddingDimension::default(), array.rank());
        padding[at].high = extent - array.dimensions[at];
        array.dimensions[at] = extent;
        let zero = r.splat_array(Scalar::integer(array.element_type, 0), &[]);
        operand = r.emit(Op::Pad { dimensions: padding }, [operand, zero], Shape::Array(array.clone()));
    }
    array.dimensions[at] = extent / parts;
    array.dimensions.insert(at, parts);
    let shape = Shape::array(array.element_type, array.dimensions);
    r.emit(Op::Reshape { inferred_dimension: None }, [operand], shape)
}
