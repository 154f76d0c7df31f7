//! Adds a value to each row inside the loop, instead of to all rows after it.
//!
//! With gradients accumulated over microbatches, the backward loop over layers makes an array of all gradients, which
//! is added to the sum so far. The loop can carry the sum as its state, so that the array of gradients never exists.
//!
//! ```text
//! w = while((0, zeros))                                   w = while((0, sum))
//!   d = dynamic-update-slice(d, row, i, 0)           =>     old = dynamic-slice(sum, i, 0)
//! total = add(sum, get-tuple-element(w), index=1)           sum = dynamic-update-slice(sum, add(old, row), i, 0)
//! ```
//!
//! Works for any elementwise operations, if the last one reads the array that its result replaces (see [`Backings`]),
//! the others read only constants, and the loop writes every row.

use memplan_ir::{Cursor, Insert, InstructionId, Module, Names, Op, Shape, Users};
use memplan_rewriter::loops::{Loop, loops, scalar, splat};

use crate::backing::Backings;
use crate::find::made_row_by_row;

/// Elementwise operations on an array that a loop makes.
struct Accumulation {
    /// The array's element of the state.
    element: u32,
    /// Each reads the one before, the first the loop's result.
    operations: Vec<InstructionId>,
    /// The other operand of the last operation: the old value of its result.
    onto: InstructionId,
}

/// Rewrites what can be, with at most so many operations each.
pub(super) fn run(module: &mut Module, max_operations: usize) -> bool {
    if module.is_scheduled {
        return false;
    }
    let users = Users::new(module);
    let loops = loops(module, &users);
    let backings = Backings::new(module, &users, &loops);
    let mut found = Vec::new();
    for of in &loops {
        for made in made_row_by_row(module, &users, of) {
            let accumulation = accumulation(module, &users, &backings, of, made.element, max_operations);
            found.extend(accumulation.map(|found| (of, found)));
        }
    }
    let mut names = Names::new(module);
    for (of, accumulation) in &found {
        apply(module, &users, of, accumulation, &mut names);
    }
    !found.is_empty()
}

fn accumulation(
    module: &Module,
    users: &Users,
    backings: &Backings<'_>,
    of: &Loop,
    element: u32,
    max_operations: usize,
) -> Option<Accumulation> {
    let &[mut id] = of.results.get(&element)?.as_slice() else { return None };
    let mut operations = Vec::new();
    while operations.len() < max_operations {
        let &[user] = users.of(id) else { return None };
        let operation = &module.instructions[user];
        let is_elementwise = matches!(operation.op, Op::Unary(_) | Op::Binary(_) | Op::Convert);
        let is_plain = operation.control_predecessors.is_empty() && operation.extras.is_none();
        module.plain_array(user).filter(|_| is_elementwise && is_plain)?;
        operations.push(user);
        let is_other = |&&operand: &&InstructionId| operand != id && !is_constant(module, operand);
        if let Some(&onto) = operation.operands.iter().find(is_other) {
            let is_alike = module.instructions[onto].shape == operation.shape;
            let backing =
                backings.of(onto, &[user]).filter(|_| is_alike && is_there_from_the_start(module, onto))?;
            let goes_there = backings.goes_to(&[user], &backing)?;
            return goes_there.then_some(Accumulation { element, operations, onto });
        }
        id = user;
    }
    None
}

/// Whether a value is there from the beginning of its computation.
fn is_there_from_the_start(module: &Module, id: InstructionId) -> bool {
    let is_parameter = |id: InstructionId| matches!(module.instructions[id].op, Op::Parameter { .. });
    match module.instructions[id].op {
        Op::GetTupleElement { .. } => is_parameter(module.instructions[id].operands[0]),
        _ => is_parameter(id),
    }
}

/// Whether all elements are one constant.
fn is_constant(module: &Module, id: InstructionId) -> bool {
    match module.instructions[id].op {
        Op::Broadcast { .. } => is_constant(module, module.instructions[id].operands[0]),
        _ => scalar(module, id).is_some(),
    }
}

fn apply(module: &mut Module, users: &Users, of: &Loop, found: &Accumulation, names: &mut Names) {
    let &Accumulation { element, ref operations, onto } = found;
    let last = *operations.last().expect("something is added");
    let whole = module.instructions[last].shape;
    let update = module.instructions[of.next].operands[element as usize];
    let [taken, result] = [&of.taken, &of.results].map(|sites| sites[&element][0]);

    let row = add_in_body(module, found, update, taken, result, names);
    module.instructions[update].operands[1] = row;
    for id in [update, taken, result] {
        module.instructions[id].shape = whole;
    }
    begin_with(module, of, element, onto);
    // The result of the loop replaces that of the operations.
    for &user in users.of(last) {
        let operands = &mut module.instructions[user].operands;
        operands.iter_mut().filter(|operand| **operand == last).for_each(|operand| *operand = result);
    }
    let around = &mut module.computations[module.instructions[of.id].parent];
    around.instructions.retain(|id| !operations.contains(id));
    if around.root == last {
        around.root = result;
    }
    of.set_shapes(module);
}

/// Applies the operations to one row, before it is written. Returns the row to write.
fn add_in_body(
    module: &mut Module,
    found: &Accumulation,
    update: InstructionId,
    taken: InstructionId,
    result: InstructionId,
    names: &mut Names,
) -> InstructionId {
    let mut row = module.instructions[update].operands[1];
    let starts = module.instructions[update].operands[2..].to_vec();
    let sizes = module.plain_array(row).expect("rows are arrays").dimensions.clone();
    let mut before = result;
    for &id in &found.operations {
        let operation = module.instructions[id].clone();
        let mut at = Cursor::before(module, names, update).with_metadata_of(id);
        let mut operands = Vec::with_capacity(operation.operands.len());
        for &operand in &operation.operands {
            let element_type = at.module().plain_array(operand).expect("operands are arrays").element_type;
            let shape = Shape::array(element_type, sizes.clone());
            operands.push(match operand {
                _ if operand == before => row,
                _ if operand == found.onto => {
                    // The state that contains the row still has the shape of the other summand.
                    let operands = std::iter::once(taken).chain(starts.iter().copied());
                    at.insert_shaped(Op::DynamicSlice { slice_sizes: sizes.clone() }, operands, shape)
                }
                _ => splat(&mut at, operand, shape),
            });
        }
        let element_type = at.module().plain_array(id).expect("the operations are on arrays").element_type;
        row = at.insert_shaped(operation.op, operands, Shape::array(element_type, sizes.clone()));
        before = id;
    }
    row
}

/// Gives an element of the state the initial value `given`, which is listed early enough.
fn begin_with(module: &mut Module, of: &Loop, element: u32, given: InstructionId) {
    module.instructions[of.init].operands[element as usize] = given;
    let list = &mut module.computations[module.instructions[of.init].parent].instructions;
    let mut moved: Vec<InstructionId> = module.instructions[given].operands.to_vec();
    moved.push(given);
    list.retain(|id| !moved.contains(id));
    list.splice(0..0, moved);
}
