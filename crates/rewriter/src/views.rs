//! Orders of dimensions in which a transpose or reshape moves nothing.

use memplan_ir::{ArrayShape, Dimensions, GatherDimensions, Op, ScatterDimensions, Shape};
use memplan_memory::{Bytes, Target};

use crate::cost;

/// Elements in a row of a TPU's register.
pub const LANES: i64 = 128;

/// Rows of elements of 32 bits in a TPU's register.
pub const SUBLANES: i64 = 8;

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

/// Most runs of dimensions whose orders are all tried.
const MOST_RUNS: usize = 5;

/// An array with its dimensions in a minor-to-major order, in the machine's tiles.
pub fn in_order(array: &ArrayShape, order: &[i64], machine: &Target) -> Shape {
    Shape::Array(ArrayShape { layout: Some(machine.layout_with_order(array, order)), ..array.clone() })
}

/// The dimensions whose extent is one.
pub fn unit_dimensions(array: &ArrayShape) -> Vec<i64> {
    (0..).zip(&array.dimensions).filter(|&(_, &extent)| extent == 1).map(|(d, _)| d).collect()
}

/// How many times as many bytes a table of rows may take with its rows in lanes. libtpu copies tables of 64 features (twice the
/// bytes), and reads tables of 48 features (2.7 times), of 40 and of 16 as they lie.
const MOST_PADDING_OF_ROWS: u64 = 2;

/// The bytes that a table may take with its rows in lanes, however many times its own that is: libtpu copies 294,912 rows of 16
/// floats (144 MiB), and reads 393,216 (192 MiB) as they lie.
const FEW_BYTES_OF_ROWS: Bytes = Bytes(160 << 20);

/// The bytes by which a sum may grow with its rows in lanes, however many times its own that is, if few rows are added up:
/// libtpu adds 4,096 rows of 16 floats to 1,048,576 in lanes (448 MiB more), and to 1,179,648 as they lie (504 MiB more).
const FEW_MORE_BYTES_OF_SUMS: Bytes = Bytes(448 << 20);

/// The bytes that a sum may take with its rows in lanes if many rows are added up: libtpu adds 131,072 rows of 2 floats to
/// 1,500,000 in lanes (732 MiB), and to 1,750,000 as they lie (854 MiB).
const FEW_BYTES_OF_SUMS: Bytes = Bytes(768 << 20);

/// The most rows that are few.
const FEW_ROWS: i64 = 4096;

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

/// How libtpu adds rows up.
pub enum Summed {
    /// With rows in lanes, which takes no more bytes.
    Anyway,
    /// With rows in lanes, which takes more bytes.
    InLanes(Box<Shape>),
    /// As the sums lie: with rows in lanes they would take far more bytes.
    AsTheyLie,
}

/// How libtpu adds up the rows of an array of updates.
pub fn summed_in_lanes(
    sums: &ArrayShape,
    updates: &ArrayShape,
    scatter: &ScatterDimensions,
    machine: &Target,
) -> Summed {
    let is_indexed = |d: i64| {
        scatter.scatter_dims_to_operand_dims.contains(&d) || scatter.input_batching_dims.contains(&d)
    };
    let Some(way) = rows_in_lanes(sums, &is_indexed, machine) else { return Summed::Anyway };
    let [before, after] = [&Shape::Array(sums.clone()), &way].map(|shape| machine.size_of(shape));
    let is_row = |d: &i64| !scatter.update_window_dims.contains(d);
    let rows = (0..updates.rank() as i64).filter(is_row).map(|d| updates.dimensions[d as usize]);
    let n_rows = rows.fold(1, i64::saturating_mul);
    let is_little = match n_rows > FEW_ROWS {
        true => after <= FEW_BYTES_OF_SUMS,
        false => after.saturating_sub(before) <= FEW_MORE_BYTES_OF_SUMS,
    };
    if is_little || after.0 < before.0.saturating_mul(2) {
        Summed::InLanes(Box::new(way))
    } else {
        Summed::AsTheyLie
    }
}

/// An array from which rows are looked up, or into which they are written, with rows in lanes, where that takes more bytes
/// ([`rows_together`]).
pub fn rows_in_lanes(
    array: &ArrayShape,
    is_indexed: &dyn Fn(i64) -> bool,
    machine: &Target,
) -> Option<Shape> {
    let bytes = |shape: &Shape| machine.size_of(shape);
    rows_together(array, is_indexed, machine).filter(|way| bytes(way) > bytes(&Shape::Array(array.clone())))
}

/// The layout in which an array has rows in lanes, if it has another layout. Tiles cover no dimension along which rows are looked up,
/// if there are enough others.
pub fn rows_together(
    array: &ArrayShape,
    is_indexed: &dyn Fn(i64) -> bool,
    machine: &Target,
) -> Option<Shape> {
    array.layout.as_ref().filter(|layout| !layout.tiles.is_empty())?;
    let is_long = |&d: &i64| array.dimensions[d as usize] > 1;
    let long = (0..array.rank() as i64).rev().filter(is_long);
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
        in_order(array, &order, machine)
    });
    let order =
        |array: &ArrayShape| -> Vec<i64> { array.minor_to_major().iter().copied().filter(is_long).collect() };
    ways.min_by_key(bytes).filter(|way| way.as_array().is_some_and(|way| order(way) != order(array)))
}

/// The array in the layout that takes the fewest bytes of those whose tiles cover a dimension of each list.
///
/// # Panics
/// If a list is empty.
pub fn outside_tiles(array: &ArrayShape, [rows, columns]: &[Vec<i64>; 2], machine: &Target) -> Shape {
    let pairs = rows.iter().flat_map(|&row| columns.iter().map(move |&column| [column, row]));
    let laid_out = |pair: [i64; 2]| {
        let others = (0..array.rank() as i64).rev().filter(|d| !pair.contains(d));
        let order: Vec<i64> = pair.into_iter().chain(others).collect();
        in_order(array, &order, machine)
    };
    let ways = pairs.flat_map(|[a, b]| [laid_out([a, b]), laid_out([b, a])]);
    ways.min_by_key(|way| machine.size_of(way)).expect("neither list is empty")
}

/// The layouts of the operand and the result of a reshape that is no view, as libtpu lays them out while it runs: those of the
/// fewest bytes in which merged or split dimensions are in row-major order. `None` for more than five runs of
/// dimensions, and on machines without tiles.
pub fn reshaped_by_rows(operand: &ArrayShape, result: &ArrayShape, machine: &Target) -> Option<[Shape; 2]> {
    let is_tiled = |array: &ArrayShape| array.layout.as_ref().is_some_and(|layout| !layout.tiles.is_empty());
    let runs = common_runs(&operand.dimensions, &result.dimensions)?;
    if !is_tiled(operand) || !is_tiled(result) || runs.len() > MOST_RUNS {
        return None;
    }
    let laid_out = |array: &ArrayShape, mut order: Vec<i64>| {
        order.extend(unit_dimensions(array));
        in_order(array, &order, machine)
    };
    let ways = orders(runs.len()).into_iter().map(|order| {
        let from = order.iter().flat_map(|&at| runs[at].0.iter().rev().copied());
        let to = order.iter().flat_map(|&at| runs[at].1.iter().rev().copied());
        [laid_out(operand, from.collect()), laid_out(result, to.collect())]
    });
    let bytes = |shape: &Shape| machine.size_of(shape);
    ways.min_by_key(|[from, to]| bytes(from).saturating_add(bytes(to)))
}

/// All orders of the numbers below `n`.
fn orders(n: usize) -> Vec<Vec<usize>> {
    let Some(last) = n.checked_sub(1) else { return vec![Vec::new()] };
    let with_last = |order: Vec<usize>| {
        (0..n).map(move |at| {
            let mut order = order.clone();
            order.insert(at, last);
            order
        })
    };
    orders(last).into_iter().flat_map(with_last).collect()
}
