//! Arrays that products are written into piece by piece, such as key and value caches, get the layout of the products.
//!
//! ```text
//!   k = bf16[8,2048]{1,0} dot(x, w)                 rows in sublanes, features in lanes
//!   u = bf16[8,1,16,128]{3,0,2,1} reshape(k)        so do the pieces, whatever order is usual:
//!   c = bf16[8,4096,16,128]{3,0,2,1} dynamic-update-slice(cache, u, ..)
//! ```
//!
//! Dimensions along which pieces are written become outermost; if they are already, nothing changes. A parameter with
//! another layout is copied at the beginning, a result at the end.

use memplan_analysis::{Dataflow, ValueKind};
use memplan_ir::{ArrayShape, Cursor, Dimensions, Insert, InstructionId, Layout, Module, Names, Op, Users};
use memplan_rewriter::cost;
use rustc_hash::FxHashMap;

use memplan_rewriter::views;

/// The minor-to-major order of an array into which pieces of products are written; `None` where they are none, or cover
/// part of a dimension. A product is looked for at most `max_steps` above its update.
pub(super) fn order_of_updated(
    module: &Module,
    flow: &Dataflow,
    update: InstructionId,
    max_steps: usize,
) -> Option<Dimensions> {
    // An update that is itself an updated array, as in loops over layers, follows it.
    let mut outer = vec![update];
    let product = loop {
        let source = source_of(module, module.instructions[*outer.last()?].operands[1], max_steps)?;
        match module.instructions[source].op {
            Op::DynamicUpdateSlice if outer.len() < max_steps => outer.push(source),
            Op::Dot(_) => break source,
            _ => return None,
        }
    };
    let innermost = outer.pop()?;
    let array = |id: InstructionId| module.shape(id).as_array();
    let piece = |id: InstructionId| array(module.instructions[id].operands[1]);
    let covers = |id: InstructionId| {
        let (whole, piece) = array(id).zip(piece(id))?;
        let mut pairs = whole.dimensions.iter().zip(&piece.dimensions);
        pairs.all(|(whole, piece)| whole == piece || *piece == 1).then_some(())
    };
    covers(innermost)?;
    // Pieces along outermost dimensions alone are contiguous in any order of the others.
    let (whole, written) = array(innermost).zip(piece(innermost))?;
    let mut inner = whole.dimensions.iter().zip(&written.dimensions).skip_while(|(_, piece)| **piece == 1);
    if inner.all(|(whole, piece)| whole == piece) {
        return None;
    }
    if !is_written_at_many_places(module, flow, innermost, max_steps) {
        return None;
    }
    let mut order = order_by_rows(array(product)?, piece(innermost)?)?;
    let mut below = innermost;
    for id in outer.into_iter().rev() {
        covers(id)?;
        let layout = Layout { minor_to_major: order, ..Layout::default() };
        let written = ArrayShape { layout: Some(layout), ..array(below)?.clone() };
        order = views::order_of_result(&Op::Reshape { inferred_dimension: None }, &written, piece(id)?)?;
        below = id;
    }
    Some(order)
}

/// Whether a loop changes the place of a piece along some dimension behind the outermost ones. Where a program writes a single
/// row, as one step of decoding does, no layout of the whole array is worth a copy.
fn is_written_at_many_places(
    module: &Module,
    flow: &Dataflow,
    update: InstructionId,
    max_steps: usize,
) -> bool {
    let operands = &module.instructions[update].operands;
    let extents = |id| module.shape(id).as_array().map(|array| &array.dimensions[..]).unwrap_or_default();
    let pairs = extents(operands[0]).iter().zip(extents(operands[1])).zip(&operands[2..]);
    let partial = pairs.filter(|((whole, piece), _)| whole != piece).map(|(_, &at)| at);
    let mut open: Vec<InstructionId> = partial.collect();
    let mut n_followed = 0;
    while let Some(&at) = open.get(n_followed).filter(|_| n_followed < max_steps) {
        n_followed += 1;
        match flow.value_of(at).map(|value| flow.values[value]) {
            Some(value) if value.kind == ValueKind::LoopPhi => return true,
            Some(value) => {
                let made_by = flow.positions.instruction(value.definition);
                open.extend(module.instructions[made_by].operands.iter().copied());
            }
            None => {}
        }
    }
    false
}

/// The product, or the updated array, of which a piece is made element by element.
fn source_of(module: &Module, piece: InstructionId, max_steps: usize) -> Option<InstructionId> {
    let mut at = piece;
    for _ in 0..max_steps {
        let instruction = &module.instructions[at];
        at = match &instruction.op {
            Op::Dot(_) | Op::DynamicUpdateSlice => return Some(at),
            Op::Reshape { .. } | Op::Copy | Op::Slice { .. } | Op::Concatenate { .. } => {
                instruction.operands[0]
            }
            Op::Broadcast { .. } => {
                let count = |id| module.shape(id).as_array().and_then(ArrayShape::element_count);
                let &[operand] = &instruction.operands[..] else { return None };
                (count(operand) == count(at)).then_some(operand)?
            }
            _ if cost::is_pointwise(module, at) => {
                let mut operands = instruction.operands.iter();
                *operands
                    .find(|&&operand| !matches!(module.instructions[operand].op, Op::Broadcast { .. }))?
            }
            _ => return None,
        };
    }
    None
}

/// The order of a piece of a product: its last dimension, then rows, then what else the features were split into.
fn order_by_rows(product: &ArrayShape, piece: &ArrayShape) -> Option<Dimensions> {
    let (_, rows) = product.dimensions.split_last()?;
    let n_rows: i64 = rows.iter().try_fold(1i64, |product, &extent| product.checked_mul(extent))?;
    let (long, unit): (Vec<i64>, Vec<i64>) =
        (0..piece.rank() as i64).partition(|&d| piece.dimensions[d as usize] != 1);
    let mut product_of_rows = 1i64;
    let split = long.iter().position(|&d| {
        let is_behind = product_of_rows == n_rows;
        product_of_rows = product_of_rows.saturating_mul(piece.dimensions[d as usize]);
        is_behind
    })?;
    let (rows, features) = long.split_at(split);
    let (&minor, others) = features.split_last()?;
    let outer = |list: &[i64]| list.iter().rev().copied().collect::<Vec<_>>();
    (!rows.is_empty())
        .then(|| [vec![minor], outer(rows), outer(others), outer(&unit)].concat().into_iter().collect())
}

/// Puts a copy between parameters of the program and everything that reads them.
pub(super) fn copy_parameters(module: &mut Module, parameters: &[InstructionId], names: &mut Names) {
    let entry = module.entry;
    let users = Users::new(module);
    let mut copies: FxHashMap<InstructionId, InstructionId> = FxHashMap::default();
    module.edit_in_order(entry, |module, id| {
        module.list(id);
        if parameters.contains(&id) {
            copies.insert(id, Cursor::beside(module, names, id).insert(Op::Copy, [id]));
        }
    });
    for &parameter in parameters {
        for &user in users.of(parameter) {
            module.replace_operand(user, parameter, copies[&parameter]);
        }
    }
}
