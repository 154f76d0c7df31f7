//! Orders of dimensions in which a transpose or reshape moves nothing.

use memplan_ir::{ArrayShape, Dimensions, GatherDimensions, Op, Shape};
use memplan_memory::{Bytes, Target};

use crate::cost;

/// The inverse of a permutation: where each dimension is in an order.
pub fn inverse(order: &[i64]) -> Dimensions {
    let mut places = Dimensions::from_elem(0, order.len());
    (0..).zip(order).for_each(|(at, &d)| places[d as usize] = at);
    places
}

/// The minor-to-major order of the result that leaves the operand's elements where they are; `None` if there is none.
pub fn order_of_result(op: &Op, operand: &ArrayShape, result: &ArrayShape) -> Option<Dimensions> {
    match op {
        Op::Transpose { dimensions } => Some(cost::permuted(operand, dimensions).minor_to_major()),
        Op::Reshape { .. } => reshaped_order(operand, result),
        _ => None,
    }
}

/// The minor-to-major order of the operand from which the result is read in place; `None` if there is none.
pub fn order_of_operand(op: &Op, operand: &ArrayShape, result: &ArrayShape) -> Option<Dimensions> {
    match op {
        Op::Transpose { dimensions } => {
            Some(result.minor_to_major().iter().map(|&d| dimensions[d as usize]).collect())
        }
        Op::Reshape { .. } => reshaped_order(result, operand),
        _ => None,
    }
}

/// The order of `to` in which its elements, in row-major order, are stored like those of `from`.
///
/// Both lists of extents are cut into the shortest runs of equal product. A run of `to` can take the place of the one of
/// `from` if that is contiguous and in order. Extents of one are put outermost, where no tile covers them.
fn reshaped_order(from: &ArrayShape, to: &ArrayShape) -> Option<Dimensions> {
    if from.element_count()? == 0 {
        return None;
    }
    let runs = common_runs(&from.dimensions, &to.dimensions)?;
    let mut run_of = Dimensions::from_elem(0, from.rank());
    for (run, (of_from, _)) in runs.iter().enumerate() {
        of_from.iter().for_each(|&d| run_of[d as usize] = run as i64);
    }
    let mut order: Vec<i64> = unit_dimensions(to);
    let mut walk = from.minor_to_major().into_iter().rev().filter(|&d| from.dimensions[d as usize] != 1);
    while let Some(first) = walk.next() {
        let (of_from, of_to) = &runs[run_of[first as usize] as usize];
        let in_one_piece = of_from[0] == first && of_from[1..].iter().all(|&d| walk.next() == Some(d));
        if !in_one_piece {
            return None;
        }
        order.extend(of_to);
    }
    Some(order.into_iter().rev().collect())
}

/// The dimensions of the shortest runs with equal products of extents, major first, without dimensions of extent one.
pub fn common_runs(from: &[i64], to: &[i64]) -> Option<Vec<(Vec<i64>, Vec<i64>)>> {
    let long = |extents: &[i64]| -> Vec<(i64, i64)> {
        (0..).zip(extents.iter().copied()).filter(|&(_, extent)| extent != 1).collect()
    };
    let (from, to) = (long(from), long(to));
    let (mut from, mut to) = (from.into_iter().peekable(), to.into_iter().peekable());
    let mut runs = Vec::new();
    while from.peek().is_some() || to.peek().is_some() {
        let (mut of_from, mut of_to) = (Vec::new(), Vec::new());
        let (mut product_from, mut product_to) = (1i64, 1i64);
        while of_from.is_empty() || product_from != product_to {
            let (side, run, product) = match product_from <= product_to {
                true => (&mut from, &mut of_from, &mut product_from),
                false => (&mut to, &mut of_to, &mut product_to),
            };
            let (d, extent) = side.next()?;
            run.push(d);
            *product = product.checked_mul(extent)?;
        }
        runs.push((of_from, of_to));
    }
    Some(runs)
}

/// The dimensions whose extent is one.
pub fn unit_dimensions(array: &ArrayShape) -> Vec<i64> {
    (0..).zip(&array.dimensions).filter(|&(_, &extent)| extent == 1).map(|(d, _)| d).collect()
}

/// How many times as many bytes a table of rows may take with its rows in lanes. libtpu copies tables of 64 features (twice the
/// bytes) and of 64 by 3 (2.7 times), and reads tables of 40 features (3.2 times) and of 16 as they lie.
const MOST_PADDING_OF_ROWS: u64 = 3;

/// The bytes that a table may take with its rows in lanes, however many times its own that is: libtpu copies 294,912 rows of 16
/// floats (144 MiB), and reads 393,216 (192 MiB) as they lie.
const FEW_BYTES_OF_ROWS: Bytes = Bytes(160 << 20);

/// Whether libtpu looks rows up in lanes. It reads tables as they lie that would take far more bytes, and then writes the rows as
/// they lie, too.
pub fn looks_up_in_lanes(table: &ArrayShape, lookup: &GatherDimensions, machine: &Target) -> bool {
    let is_indexed =
        |d: i64| lookup.start_index_map.contains(&d) || lookup.operand_batching_dims.contains(&d);
    let before = machine.size_of(&Shape::Array(table.clone()));
    rows_in_lanes(table, &is_indexed, machine).is_none_or(|way| {
        let after = machine.size_of(&way);
        after <= FEW_BYTES_OF_ROWS || after.0 <= before.0.saturating_mul(MOST_PADDING_OF_ROWS)
    })
}

/// An array from which rows are looked up, or into which they are written, with rows in lanes, where that takes more bytes: tiles
/// cover no dimension along which rows are looked up, if there are enough others.
pub fn rows_in_lanes(
    array: &ArrayShape,
    is_indexed: &dyn Fn(i64) -> bool,
    machine: &Target,
) -> Option<Shape> {
    array.layout.as_ref().filter(|layout| !layout.tiles.is_empty())?;
    let long = (0..array.rank() as i64).rev().filter(|&d| array.dimensions[d as usize] > 1);
    let (indexed, inner): (Vec<i64>, Vec<i64>) = long.partition(|&d| is_indexed(d));
    if indexed.is_empty() || inner.is_empty() {
        return None;
    }
    let bytes = |shape: &Shape| machine.size_of(shape);
    let pairs = inner.iter().flat_map(|&lanes| inner.iter().map(move |&sublanes| [lanes, sublanes]));
    let ways = pairs.filter(|[lanes, sublanes]| inner.len() == 1 || lanes != sublanes).map(|pair| {
        let mut order: Vec<i64> = if inner.len() == 1 { vec![pair[0]] } else { pair.to_vec() };
        order.extend(inner.iter().filter(|d| !pair.contains(d)));
        order.extend(&indexed);
        order.extend(unit_dimensions(array));
        Shape::Array(ArrayShape { layout: Some(machine.layout_with_order(array, &order)), ..array.clone() })
    });
    let way = ways.min_by_key(bytes)?;
    (bytes(&way) > bytes(&Shape::Array(array.clone()))).then_some(way)
}
