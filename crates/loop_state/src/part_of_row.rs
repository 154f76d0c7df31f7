//! Turns an update of a slice of a row into an update of the array that contains the row.
//!
//! ```text
//! row = f32[1,8] dynamic-slice(a, i, zero)
//! new = f32[1,8] dynamic-update-slice(row, x, zero, j)      b = f32[9,8] dynamic-update-slice(a, x, i, j)
//! b = f32[9,8] dynamic-update-slice(a, new, i, zero)   =>   new = f32[1,8] dynamic-slice(b, i, zero)
//! ```
//!
//! Slices and updates of equal size clamp starts beyond the end in the same way, so the starts may be unknown.

use memplan_ir::{Dimensions, InstructionId, Module, Op, Shape, Users};
use memplan_rewriter::Rewriter;
use memplan_rewriter::loops::scalar;
use rustc_hash::FxHashMap;

/// A row that is taken out, updated slice by slice, and put back.
struct Round {
    /// The `dynamic-slice` that takes it out.
    taken: InstructionId,
    /// The updates, each of the one before.
    updates: Vec<InstructionId>,
}

/// Rewrites what can be, in one sweep.
pub(super) fn run(module: &mut Module) -> bool {
    let users = Users::new(module);
    if module.is_scheduled {
        return false;
    }
    let mut rounds: FxHashMap<InstructionId, Round> = FxHashMap::default();
    let mut put_back: FxHashMap<InstructionId, Option<InstructionId>> = FxHashMap::default();
    for &id in module.computations.values().flat_map(|computation| &computation.instructions) {
        if let Some(round) = round(module, &users, id) {
            let last = round.updates.last().copied();
            put_back.insert(id, last);
            rounds.extend(last.map(|last| (last, round)));
        }
    }
    if put_back.is_empty() {
        return false;
    }
    let mut updated: FxHashMap<InstructionId, InstructionId> = FxHashMap::default();
    let mut rewriter = Rewriter::new(module);
    rewriter.sweep(|r, id| match (rounds.get(&id), put_back.get(&id)) {
        (Some(round), _) => {
            let array = update_array(r, round);
            updated.insert(id, array);
            Some(row_of(r, array, round.taken, id))
        }
        (None, Some(Some(last))) => updated.get(last).copied(),
        // The row is put back unchanged.
        (None, Some(None)) => Some(r.operand(id, 0)),
        (None, None) => None,
    });
    rewriter.finish()
}

/// The operations on a row before an update writes it back.
fn round(module: &Module, users: &Users, put: InstructionId) -> Option<Round> {
    let instruction = &module.instructions[put];
    let &[array, row, ref starts @ ..] = instruction.operands.as_slice() else { return None };
    if instruction.op != Op::DynamicUpdateSlice || !instruction.control_predecessors.is_empty() {
        return None;
    }
    let mut updates = Vec::new();
    let mut id = below_views(module, row);
    while module.instructions[id].op == Op::DynamicUpdateSlice {
        // Those that others read as they are between updates stay rows.
        let is_between = !updates.is_empty();
        if is_between && users.of(id).len() > 1 || !module.instructions[id].control_predecessors.is_empty() {
            return None;
        }
        updates.push(id);
        id = below_views(module, module.instructions[id].operands[0]);
    }
    updates.reverse();
    let taken = &module.instructions[id];
    let is_same_row = matches!(taken.op, Op::DynamicSlice { .. })
        && is_same(module, taken.operands[0], array)
        && taken.operands.len() == starts.len() + 1
        && taken.operands[1..].iter().zip(starts).all(|(&a, &b)| is_same(module, a, b))
        && module.shape(id) == module.shape(row);
    let fits = |&update: &InstructionId| place(module, id, update).is_some();
    (is_same_row && updates.iter().all(fits)).then_some(Round { taken: id, updates })
}

/// The array behind reshapes.
fn below_views(module: &Module, mut id: InstructionId) -> InstructionId {
    while let Op::Reshape { .. } = module.instructions[id].op {
        id = module.instructions[id].operands[0];
    }
    id
}

/// Whether two instructions have the same value, which is plain to see for constants and elements of a tuple.
fn is_same(module: &Module, a: InstructionId, b: InstructionId) -> bool {
    let [x, y] = [a, b].map(|id| &module.instructions[id]);
    let is_element = matches!(x.op, Op::GetTupleElement { .. }) && x.op == y.op && x.operands == y.operands;
    a == b || is_element || scalar(module, a).is_some_and(|value| scalar(module, b) == Some(value))
}

/// The position and size of a row's update in the array: for each dimension, the start is an operand of the update or
/// of the slice that reads the row. `None` if rows and updates are not aligned.
fn place(
    module: &Module,
    taken: InstructionId,
    update: InstructionId,
) -> Option<(Vec<InstructionId>, Dimensions)> {
    let [slice, put] = [taken, update].map(|id| &module.instructions[id]);
    let extents = |id: InstructionId| -> Option<&[i64]> {
        module.shape(id).as_array().filter(|array| !array.is_dynamic()).map(|array| &array.dimensions[..])
    };
    let (whole, row) = (extents(slice.operands[0])?, extents(taken)?);
    let (viewed, part) = (extents(update)?, extents(put.operands[1])?);
    if put.operands.len() != viewed.len() + 2 {
        return None;
    }
    // Extents of 1 come and go in views.
    let mut of_view = (0..viewed.len()).filter(|&d| viewed[d] != 1);
    let (mut starts, mut sizes) = (Vec::with_capacity(whole.len()), Dimensions::new());
    for d in 0..whole.len() {
        let (start, size) = match row[d] {
            1 => (slice.operands[1 + d], 1),
            extent => {
                let v = of_view.next().filter(|&v| viewed[v] == extent)?;
                let is_all_of_row = part[v] == extent;
                let is_row_whole = extent == whole[d];
                let start = if is_all_of_row { slice.operands[1 + d] } else { put.operands[2 + v] };
                (is_all_of_row || is_row_whole).then_some((start, part[v]))?
            }
        };
        starts.push(start);
        sizes.push(size);
    }
    let element_type = |id: InstructionId| module.shape(id).as_array().map(|array| array.element_type);
    let is_one_type = starts.windows(2).all(|pair| element_type(pair[0]) == element_type(pair[1]));
    let is_empty = part.contains(&0);
    (of_view.next().is_none() && is_one_type && !is_empty).then_some((starts, sizes))
}

/// Updates the array instead of the row.
fn update_array(r: &mut Rewriter<'_>, round: &Round) -> InstructionId {
    let mut array = r.operand(round.taken, 0);
    let shape = r.shape(array).clone();
    for &update in &round.updates {
        let (starts, sizes) = place(r.module(), round.taken, update).expect("it was looked at before");
        let mut part = r.operand(update, 1);
        if r.dimensions(part).as_ref() != Some(&sizes) {
            let element_type = r.element_type(part).expect("parts are arrays");
            let op = Op::Reshape { inferred_dimension: None };
            part = r.emit(op, [part], Shape::array(element_type, sizes));
        }
        let operands: Vec<InstructionId> = [array, part].into_iter().chain(starts).collect();
        array = r.emit(Op::DynamicUpdateSlice, operands, shape.clone());
    }
    array
}

/// The row of the updated array, as a view of the shape of `like`.
fn row_of(
    r: &mut Rewriter<'_>,
    array: InstructionId,
    taken: InstructionId,
    like: InstructionId,
) -> InstructionId {
    let slice = r.get(taken).clone();
    let operands = std::iter::once(array).chain(slice.operands[1..].iter().copied());
    let row_shape = r.shape(taken).clone();
    let row = r.emit(slice.op, operands, row_shape.clone());
    match r.shape(like).clone() {
        shape if shape == row_shape => row,
        shape => r.emit(Op::Reshape { inferred_dimension: None }, [row], shape),
    }
}
