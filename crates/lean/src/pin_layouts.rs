//! `pin-layouts`: slices that a loop reads of state that it updates keep the layout of that state.
//!
//! XLA lets products choose the layout of their operands. If such an operand is a slice of loop state, XLA propagates
//! the layout to the whole state, which the caller has in another layout: it transposes a whole cache of keys and
//! values before the loop, and back after it. A `LayoutConstraint`, as JAX's `with_layout_constraint` writes it, stops
//! the propagation, so XLA transposes only slices.
//!
//! ```text
//!   u = f32[8,4,64] dynamic-update-slice(state, x, i, t, 0)
//!   s = f32[1,4,64] dynamic-slice(u, i, 0, 0)                    s = ..
//!   r = f32[4,64] reshape(s)                           =>        r = f32[4,64]{1,0} custom-call(reshape(s)), "LayoutConstraint"
//!   d = dot(q, r)                                                d = dot(q, r)
//! ```
//!
//! Left alone: state whose initial value is not the caller's array, that the loop does not update, or of which it
//! reads more than slices; scheduled programs, whose layouts are decided. Requires inlined calls. Idempotent. *Changed*
//! means that a layout is pinned.

use memplan_ir::{
    ArrayShape, Cursor, CustomCall, Insert, InstructionId, Layout, Module, Names, Op, Shape, Users,
};
use memplan_rewriter::loops::{Loop, edit_bodies};
use memplan_rewriter::{Context, PassError, PassFn};
use rustc_hash::FxHashSet;

/// The pass.
pub const PIN_LAYOUTS: PassFn = PassFn {
    name: "pin-layouts",
    description: "Let what a loop reads of the state that it updates keep the layout of that state",
    run,
};

fn run(module: &mut Module, _: &Context<'_>) -> Result<bool, PassError> {
    Ok(edit_bodies(module, |module, users, names, of| {
        let elements = 0..module.instructions[of.next].operands.len() as u32;
        let read: Vec<InstructionId> =
            elements.filter_map(|element| rows_read(module, users, of, element)).flatten().collect();
        read.iter().for_each(|&row| pin(module, users, row, names));
        !read.is_empty()
    }))
}

/// The rows that a loop reads of an element of its state that it updates in place.
fn rows_read(module: &Module, users: &Users, of: &Loop, element: u32) -> Option<Vec<InstructionId>> {
    let init = module.instructions[of.init].operands[element as usize];
    let is_given = matches!(module.instructions[init].op, Op::Parameter { .. });
    let is_array = |array: &ArrayShape| array.rank() > 2 && !array.is_dynamic();
    if !is_given || !module.shape(init).as_array().is_some_and(is_array) {
        return None;
    }
    let (mut updates, mut slices) = (0, Vec::new());
    let mut open = of.taken.get(&element)?.clone();
    let mut seen: FxHashSet<InstructionId> = open.iter().copied().collect();
    while let Some(value) = open.pop() {
        for &user in users.of(value) {
            match module.instructions[user].op {
                Op::DynamicUpdateSlice if module.instructions[user].operands[0] == value => {
                    updates += 1;
                    if seen.insert(user) {
                        open.push(user);
                    }
                }
                Op::DynamicSlice { .. } => slices.push(user),
                _ if user == of.next => {}
                _ => return None,
            }
        }
    }
    // A slice of one row is usually reshaped to that row.
    let row = |slice: InstructionId| match users.of(slice) {
        &[only] if matches!(module.instructions[only].op, Op::Reshape { .. }) => only,
        _ => slice,
    };
    let rows = slices.into_iter().map(row).filter(|&row| can_be_pinned(module, users, row));
    (updates > 0).then(|| rows.collect())
}

/// Whether a value has several dimensions to order, in the usual order, and nobody asks for its layout yet.
fn can_be_pinned(module: &Module, users: &Users, row: InstructionId) -> bool {
    let is_pinned = |&user: &InstructionId| matches!(&module.instructions[user].op, Op::CustomCall(call) if &*call.target == CONSTRAINT);
    let is_usual = |array: &ArrayShape| {
        let usual = Layout::row_major(array.rank());
        array.rank() > 1 && array.layout.as_ref().is_none_or(|layout| *layout == usual)
    };
    module.shape(row).as_array().is_some_and(is_usual) && !users.of(row).iter().any(is_pinned)
}

/// The call that gives its result a layout.
const CONSTRAINT: &str = "LayoutConstraint";

/// Lets the readers of a value read it in row-major order.
fn pin(module: &mut Module, users: &Users, row: InstructionId, names: &mut Names) {
    let array = module.shape(row).as_array().expect("rows are arrays").clone();
    let row_major = ArrayShape { layout: Some(Layout::row_major(array.rank())), ..array.clone() };
    let call = CustomCall {
        target: CONSTRAINT.into(),
        operand_layout_constraints: Some(vec![Shape::from(row_major)]),
        ..CustomCall::default()
    };
    let stem = format!("{}.pinned", module.instructions[row].name);
    let parent = module.instructions[row].parent;
    let mut at = Cursor::unlisted(module, names, parent).with_metadata_of(row);
    let constrained = at.named(&stem).insert_shaped(Op::CustomCall(Box::new(call)), [row], array);
    for &user in users.of(row) {
        module.replace_operand(user, row, constrained);
    }
}
