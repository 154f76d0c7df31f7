//! `reshapes-by-rows`: keeps dimensions that a reshape merges or splits in row-major order, at any cost in padding.
//!
//! ```text
//!                                                     c = f32[500,1000,3]{2,1,0:T(8,128)} copy(x)
//!   r = f32[1500000]{0:T(1024)} reshape(x)        =>  r = f32[1500000]{0:T(1024)} reshape(c)
//!   x: f32[500,1000,3]{0,1,2:T(8,128)}
//! ```
//!
//! A reshape that is not a view iterates over the merged or split dimensions in row-major order. If the last of them is
//! short and in lanes, it takes 128 lanes: above, 6 MB become 256. A dimension that the reshape does not change may be
//! in lanes instead. libtpu chooses the order of dimensions in which operand and result need the fewest bytes together. A product
//! that only the reshape reads is stored so, without a copy.
//!
//! Group normalization splits features, which convolutions have in lanes: libtpu copies images to another layout first, and
//! back for the next convolution (34 copies and 16 in a VQ-GAN, where this pass has 35 and 16).
//!
//! Products of batches read arrays with rows in lanes, however many bytes these take; lookups and scatters do unless the table
//! takes far more ([`looks_up_in_lanes`], [`summed_in_lanes`]). Lookups also copy tables that need as many bytes in another order;
//! where they look up single elements, indices and elements are in a row (28 programs of one lookup). What is computed from sums of rows element by element has the
//! same dimension in lanes, and other arrays that it is computed from are copied. Convolutions load arrays with batches or
//! features in lanes, and windows that move over several dimensions move over none in lanes.
//!
//! Left alone: other operations that need no more bytes, and machines without tiles. *Changed* means that there is a new copy.

use memplan_ir::{ArrayShape, DotOperand, InstructionId, Module, Names, Op, Shape, Users, copy_into};
use memplan_memory::Target;
use memplan_rewriter::rows::{is_repetition, sums_equal_rows};
use memplan_rewriter::views::{
    Summed, common_runs, in_order, looks_up_in_lanes, outside_tiles, reshaped_by_rows, rows_in_lanes,
    rows_together, summed_in_lanes,
};
use memplan_rewriter::{Context, PassError, PassFn, call_graph, cost};
use rustc_hash::FxHashSet;

/// The pass.
pub const RESHAPES_BY_ROWS: PassFn = PassFn {
    name: "reshapes-by-rows",
    description: "copy operands of reshapes into an order of dimensions that reshapes read, as XLA's TPU compiler does",
    run,
};

fn run(module: &mut Module, context: &Context<'_>) -> Result<bool, PassError> {
    let users = Users::new(module);
    let updates = updates_of_sums(module, &users);
    let grows = |id| {
        padded(module, id, context.target).is_some_and(|ways| ways.iter().any(Option::is_some))
            || while_it_runs(module, id, &updates, context.target).is_some()
    };
    if !module.instructions.keys().any(grows) {
        return Ok(false);
    }
    let graph = call_graph(module, RESHAPES_BY_ROWS.name)?;
    let mut names = Names::new(module);
    let mut changed = false;
    for &computation in graph.sequential() {
        module.edit_in_order(computation, |module, id| {
            if let Some(wanted) = while_it_runs(module, id, &updates, context.target) {
                changed = true;
                let usual = module.shape(id).clone();
                for (at, shape) in wanted.operands {
                    let operand = module.instructions[id].operands[at];
                    module.instructions[id].operands[at] =
                        copy_into(module, operand, shape, "rows", &mut names);
                }
                module.list(id);
                if let Some(shape) = wanted.result {
                    module.set_shape(id, shape);
                    let back = copy_into(module, id, usual, "rows", &mut names);
                    users.of(id).iter().for_each(|&user| module.replace_operand(user, id, back));
                    if module.computations[computation].root == id {
                        module.computations[computation].root = back;
                    }
                }
                return;
            }
            let [operand, result] = padded(module, id, context.target).unwrap_or_default();
            changed |= operand.is_some() || result.is_some();
            if let Some(padded) = operand {
                let operand = module.instructions[id].operands[0];
                match written_by_product(module, &users, operand, &padded) {
                    Some(written) => {
                        written.into_iter().for_each(|id| lay_out(module, id, &padded, context.target))
                    }
                    None => {
                        module.instructions[id].operands[0] =
                            copy_into(module, operand, padded, "rows", &mut names);
                    }
                }
            }
            module.list(id);
            if let Some(padded) = result {
                let usual = module.shape(id).clone();
                let of_rows = module.instructions[id].operands[0];
                let padded = match module.instructions[of_rows].op {
                    // Rows that are looked up are written one after the other, and so is a view of them.
                    Op::Gather(_) => {
                        module.set_shape(id, padded);
                        id
                    }
                    _ => copy_into(module, id, padded, "rows", &mut names),
                };
                let back = copy_into(module, padded, usual, "rows", &mut names);
                users.of(id).iter().for_each(|&user| module.replace_operand(user, id, back));
                if module.computations[computation].root == id {
                    module.computations[computation].root = back;
                }
            }
        });
    }
    Ok(changed)
}

/// A product that nothing else reads, and its rounding, if its kernel can store it in a layout: a tile covers a row and a column.
fn written_by_product(
    module: &Module,
    users: &Users,
    mut id: InstructionId,
    layout: &Shape,
) -> Option<Vec<InstructionId>> {
    let mut written = vec![id];
    if module.instructions[id].op == Op::Convert && users.of(id).len() == 1 {
        id = module.instructions[id].operands[0];
        written.push(id);
    }
    let Op::Dot(dot) = &module.instructions[id].op else { return None };
    let lhs = module.shape(module.instructions[id].operands[0]).as_array()?;
    let has_batches = !dot.dimensions.lhs_batch.is_empty();
    let columns = dot.dimensions.free(DotOperand::Lhs, lhs.rank()).len() as i64;
    let order = layout.as_array()?.minor_to_major();
    let in_tile: Vec<bool> = order.iter().take(2).map(|&d| d < columns).collect();
    let is_only_read_here = written.iter().all(|&id| users.of(id).len() == 1);
    (!has_batches && is_only_read_here && in_tile.len() == 2 && in_tile[0] != in_tile[1]).then_some(written)
}

/// Gives an array the order of dimensions of another one.
fn lay_out(module: &mut Module, id: InstructionId, like: &Shape, target: &Target) {
    let (Some(array), Some(like)) = (module.shape(id).as_array(), like.as_array()) else { return };
    let shape = in_order(array, &like.minor_to_major(), target);
    module.set_shape(id, shape);
}

/// The layouts of the operand and the result of a reshape while it runs, if they take more bytes than usual, or if the reshape
/// splits or merges features that a convolution has in lanes.
fn padded(module: &Module, id: InstructionId, target: &Target) -> Option<[Option<Shape>; 2]> {
    let instruction = &module.instructions[id];
    let Op::Reshape { .. } = instruction.op else { return None };
    let [operand, result] = [instruction.operands[0], id].map(|id| module.shape(id));
    if cost::moves_no_bytes(module, id) {
        return None;
    }
    let [before, after] = [operand.as_array()?, result.as_array()?];
    let is_of_features = splits_features(before, after) || splits_features(after, before);
    let [from, to] = reshaped_by_rows(before, after, target)?;
    let while_it_runs = |way: Shape, usual: &Shape| {
        let is_larger = target.size_of(&way) > target.size_of(usual);
        (is_larger || is_of_features && way != *usual).then_some(way)
    };
    Some([while_it_runs(from, operand), while_it_runs(to, result)])
}

/// Whether a reshape splits the dimension in lanes of an image. Convolutions lay out images with batch and features in tiles.
fn splits_features(images: &ArrayShape, split: &ArrayShape) -> bool {
    let last = images.rank() as i64 - 1;
    let order = images.minor_to_major();
    if last < 3 || order[..2] != [last, 0] && order[..2] != [0, last] {
        return false;
    }
    let runs = common_runs(&images.dimensions, &split.dimensions);
    runs.is_some_and(|runs| runs.iter().any(|(from, to)| from[..] == order[..1] && to.len() > 1))
}

/// The layouts of operands and result while an operation runs, where they differ from those that the arrays have.
struct ByRows {
    operands: Vec<(usize, Shape)>,
    result: Option<Shape>,
}

/// An array in row-major order, if it has another one. One dimension may be excepted: it comes first.
fn row_major(array: &ArrayShape, except: Option<i64>, target: &Target) -> Option<Shape> {
    let is_row = |d: &i64| Some(*d) != except && array.dimensions[*d as usize] > 1;
    let (rows, others): (Vec<i64>, Vec<i64>) = (0..array.rank() as i64).rev().partition(is_row);
    let is_row_major = array.minor_to_major().iter().filter(|d| is_row(d)).eq(&rows);
    (!is_row_major).then(|| in_order(array, &[rows, others].concat(), target))
}

/// What is computed element by element from sums of rows that begin equal, in the layout of these.
fn updates_of_sums(module: &Module, users: &Users) -> FxHashSet<InstructionId> {
    let mut open: Vec<InstructionId> =
        module.instructions.keys().filter(|&id| sums_equal_rows(module, id)).collect();
    let mut found = FxHashSet::default();
    while let Some(id) = open.pop() {
        for &user in users.of(id) {
            let is_alike = module.shape(user) == module.shape(id);
            if is_alike && cost::is_pointwise(module, user) && found.insert(user) {
                open.push(user);
            }
        }
    }
    found
}

/// The layouts in which a lookup, a scatter, a product of batches, a convolution, a window or an update with sums of rows reads and
/// writes, where they differ from those that the arrays have.
fn while_it_runs(
    module: &Module,
    id: InstructionId,
    updates: &FxHashSet<InstructionId>,
    target: &Target,
) -> Option<ByRows> {
    let instruction = &module.instructions[id];
    let array = |at: usize| module.shape(instruction.operands[at]).as_array();
    let rows =
        |array: &ArrayShape, is_indexed: &dyn Fn(i64) -> bool| rows_in_lanes(array, is_indexed, target);
    let found = match &instruction.op {
        Op::Gather(numbers) if looks_up_in_lanes(array(0)?, numbers, target) => {
            let is_indexed = |d: i64| numbers.slice_sizes[d as usize] == 1;
            let result = module.shape(id).as_array()?;
            let together = |array, is_indexed: &dyn Fn(i64) -> bool| rows_together(array, is_indexed, target);
            let table = together(array(0)?, &is_indexed);
            // Single elements and their indices are in a row.
            let (indices, result) = match numbers.slice_sizes.iter().all(|&elements| elements == 1) {
                true => (
                    row_major(array(1)?, Some(numbers.index_vector_dim), target),
                    row_major(result, None, target),
                ),
                false => (None, together(result, &|d| !numbers.offset_dims.contains(&d))),
            };
            let operands = [table.map(|shape| (0, shape)), indices.map(|shape| (1, shape))];
            ByRows { operands: operands.into_iter().flatten().collect(), result }
        }
        Op::Scatter(numbers) if instruction.operands.len() == 3 => {
            let updated = match summed_in_lanes(array(0)?, array(2)?, numbers, target) {
                Summed::Anyway => None,
                Summed::InLanes(shape) => Some(*shape),
                Summed::AsTheyLie => return None,
            };
            let updates = rows(array(2)?, &|d| !numbers.update_window_dims.contains(&d));
            let operands = [updated.clone().map(|shape| (0, shape)), updates.map(|shape| (2, shape))];
            ByRows { operands: operands.into_iter().flatten().collect(), result: updated }
        }
        Op::Dot(dot) if target.fusion.dot.windows_outside_tiles => {
            let numbers = &dot.dimensions;
            let operand = |(at, of): (usize, DotOperand)| {
                let array = array(at)?;
                let rows = numbers.free(of, array.rank());
                let has_rows = rows.iter().any(|&d| array.dimensions[d as usize] > 1);
                let is_batch = |d: i64| numbers.batch(of).contains(&d);
                has_rows.then(|| Some((at, rows_in_lanes(array, &is_batch, target)?)))?
            };
            let operands = [(0, DotOperand::Lhs), (1, DotOperand::Rhs)];
            ByRows { operands: operands.into_iter().filter_map(operand).collect(), result: None }
        }
        Op::Convolution(it) if target.fusion.convolution.windows_outside_tiles => {
            let numbers = &it.dimensions;
            let loaded = array(0)?;
            let lanes = *loaded.minor_to_major().first()?;
            if [numbers.input_batch, numbers.input_feature].contains(&lanes) {
                return None;
            }
            let sides = &[vec![numbers.input_batch], vec![numbers.input_feature]];
            ByRows { operands: vec![(0, outside_tiles(loaded, sides, target))], result: None }
        }
        Op::ReduceWindow(window) if target.fusion.convolution.windows_outside_tiles => {
            let array = array(0)?;
            let moves = |d: i64| window.dimensions[d as usize].size > 1;
            let lanes = *array.minor_to_major().first()?;
            let others = (0..array.rank() as i64).rev();
            let is_across = moves(lanes) && others.clone().filter(|&d| moves(d)).count() > 1;
            let still = others.clone().find(|&d| !moves(d)).filter(|_| is_across)?;
            let order: Vec<i64> = [still].into_iter().chain(others.filter(|&d| d != still)).collect();
            ByRows { operands: vec![(0, in_order(array, &order, target))], result: None }
        }
        _ if updates.contains(&id) => {
            let order = module.shape(id).as_array()?.minor_to_major();
            let across = |at: usize| {
                let operand =
                    array(at).filter(|operand| operand.minor_to_major().first() != order.first())?;
                let is_own = !is_repetition(&module.instructions[instruction.operands[at]].op);
                is_own.then(|| (at, in_order(operand, &order, target)))
            };
            let operands = (0..instruction.operands.len()).filter_map(across).collect();
            ByRows { operands, result: None }
        }
        _ => return None,
    };
    (!found.operands.is_empty() || found.result.is_some()).then_some(found)
}
