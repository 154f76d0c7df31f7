//! `flat-scatter`: adds rows to a table of one long dimension where the rows of several dimensions are added up.
//!
//! ```text
//!                                                        p = s32[512] add(multiply(i, 1000), j)
//!   g = f32[26,1000,64] scatter(broadcast(0),       =>   s = f32[26000,64] scatter(broadcast(0), p, u)
//!         [i, j], u), inserted_window_dims={0,1}         g = f32[26,1000,64] reshape(s)
//! ```
//!
//! libtpu does so with gradients of tables that are looked up by several numbers, which begin as one number everywhere. A row
//! outside of the table along any dimension goes to a place behind the end, so that it is dropped, too. Rows that are added to
//! the result of such a scatter are added to the flat table.
//!
//! Left alone: scatters into arrays that are not equal everywhere (caches), of several arrays, of windows, along dimensions
//! that are not the first ones, and by numbers that are not `s32`. *Changed* means that there is a new reshape.

use memplan_ir::{
    BinaryOp, ComparisonDirection, Dimensions, ElementType, Insert, InstructionId, Op, Scalar,
    ScatterDimensions, Shape,
};
use memplan_rewriter::{Rewriter, Sweep};

/// The type of places.
const PLACE: ElementType = ElementType::S32;

/// The pass.
pub const FLAT_SCATTER: Sweep = Sweep {
    name: "flat-scatter",
    description: "scatter gradients along one dimension, as XLA's TPU compiler does",
    rule,
};

fn rule(r: &mut Rewriter<'_>, id: InstructionId) -> Option<InstructionId> {
    let Op::Scatter(numbers) = r.op(id).clone() else { return None };
    let &[table, indices, _] = r.operands(id) else { return None };
    let extents = r.dimensions(id)?;
    let n_indexed = n_indexed(&numbers).filter(|&n| n > 1)?;
    let (indexed, row) = extents.split_at(n_indexed);
    let n_rows = indexed.iter().try_fold(1i64, |product, &extent| product.checked_mul(extent))?;
    let flat: Vec<i64> = [n_rows].into_iter().chain(row.iter().copied()).collect();
    let table = match r.splat(table) {
        Some(value) => r.splat_array(value, &flat),
        None => scattered_flat(r, table, &flat)?,
    };
    let coordinates = coordinates(r, indices, &numbers)?;
    let places = places(r, &coordinates, indexed, n_rows)?;
    let shape = Shape::array(r.element_type(id)?, flat);
    let op = Op::Scatter(Box::new(ScatterDimensions {
        inserted_window_dims: [0].into_iter().collect(),
        scatter_dims_to_operand_dims: [0].into_iter().collect(),
        input_batching_dims: Dimensions::new(),
        scatter_indices_batching_dims: Dimensions::new(),
        index_vector_dim: r.array(places)?.rank() as i64,
        indices_are_sorted: false,
        ..*numbers
    }));
    let shape = r.intern(shape);
    let scattered = r.copy(id, |scatter| {
        scatter.op = op;
        scatter.shape = shape;
        scatter.operands[0] = table;
        scatter.operands[1] = places;
    });
    r.reshaped(scattered, &extents)
}

/// The flat table that an array is a reshape of, if it is a scatter's result: rows are added to it again.
fn scattered_flat(r: &Rewriter<'_>, table: InstructionId, flat: &[i64]) -> Option<InstructionId> {
    let Op::Reshape { .. } = r.op(table) else { return None };
    let source = r.operand(table, 0);
    (matches!(r.op(source), Op::Scatter(_)) && r.dimensions(source)?[..] == *flat).then_some(source)
}

/// How many dimensions rows are looked up along, if these are the first ones, and each row is at one place of them.
fn n_indexed(numbers: &ScatterDimensions) -> Option<usize> {
    let sorted = |of: &[&Dimensions]| {
        let mut all: Vec<i64> = of.iter().flat_map(|of| of.iter().copied()).collect();
        all.sort_unstable();
        all
    };
    let indexed = sorted(&[&numbers.scatter_dims_to_operand_dims, &numbers.input_batching_dims]);
    let inserted = sorted(&[&numbers.inserted_window_dims, &numbers.input_batching_dims]);
    let are_first = indexed.iter().enumerate().all(|(at, &d)| d == at as i64);
    (are_first && indexed == inserted).then_some(indexed.len())
}

/// The numbers by which rows are looked up, one array for each of the first dimensions.
fn coordinates(
    r: &mut Rewriter<'_>,
    indices: InstructionId,
    numbers: &ScatterDimensions,
) -> Option<Vec<InstructionId>> {
    let mut extents = r.array(indices).filter(|array| array.element_type == PLACE)?.dimensions.to_vec();
    let vector = numbers.index_vector_dim as usize;
    let is_vector = vector < extents.len();
    if is_vector {
        extents.remove(vector);
    }
    let shape = Shape::array(PLACE, extents.iter().copied());
    let mut found = Vec::new();
    for (at, &d) in (0..).zip(&numbers.scatter_dims_to_operand_dims) {
        let column = if is_vector { r.slice_along(indices, vector, at..at + 1) } else { indices };
        found.push((d, r.reshaped(column, &extents)?));
    }
    for (&dimension, &d) in numbers.scatter_indices_batching_dims.iter().zip(&numbers.input_batching_dims) {
        let dimension = dimension - i64::from(dimension > vector as i64);
        found.push((d, r.emit(Op::Iota { dimension }, [], shape.clone())));
    }
    found.sort_unstable_by_key(|&(d, _)| d);
    Some(found.into_iter().map(|(_, coordinate)| coordinate).collect())
}

/// The number of each row in the table of one long dimension; behind its end where a coordinate is outside of its dimension.
fn places(
    r: &mut Rewriter<'_>,
    coordinates: &[InstructionId],
    indexed: &[i64],
    n_rows: i64,
) -> Option<InstructionId> {
    let end = i32::try_from(n_rows).ok()?;
    let extents = r.dimensions(coordinates[0])?;
    let everywhere = |r: &mut Rewriter<'_>, n: i64| r.splat_array(Scalar::integer(PLACE, n), &extents);
    let mut place = coordinates[0];
    let mut is_inside: Option<InstructionId> = None;
    for (number, (&coordinate, &extent)) in coordinates.iter().zip(indexed).enumerate() {
        let [first, limit] = [0, extent].map(|n| everywhere(r, n));
        let is_from_first = r.compare(ComparisonDirection::Ge, coordinate, first);
        let is_below_limit = r.compare(ComparisonDirection::Lt, coordinate, limit);
        let is_here = r.binary(BinaryOp::And, is_from_first, is_below_limit);
        is_inside = Some(is_inside.map_or(is_here, |before| r.binary(BinaryOp::And, before, is_here)));
        if number > 0 {
            let before = r.binary(BinaryOp::Multiply, place, limit);
            place = r.binary(BinaryOp::Add, before, coordinate);
        }
    }
    let end = everywhere(r, i64::from(end));
    Some(r.select(is_inside?, place, end))
}
