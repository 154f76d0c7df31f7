//! `uninitialized-results`: an array that a loop writes completely, row by row, starts as storage without contents.
//!
//! JAX initializes the stack of a scan's results with zeros that nobody reads:
//!
//! ```text
//! z = f32[9,8] broadcast(0)                                  b = f32[9,8] custom-call(), "AllocateBuffer"
//! w = while((0, z))                                          w = while((0, b))
//!   z' = dynamic-update-slice(z, row, i, 0)           =>       z' = dynamic-update-slice(z, row, i, 0)
//! ```
//!
//! This saves writing every byte once, and a copy if several stacks start with the same zeros. The custom call has the
//! name that the TPU compiler uses ([`Op::is_allocation`]).
//!
//! Left alone: arrays that start as part of the caller's memory or of an outer loop's state, since the loop may
//! overwrite them in place; loops with an unknown number of steps. Runs last, since it hides that two results had equal
//! initial values. *Changed* means that an initial value was replaced; the old one may then be dead.

use memplan_ir::{Cursor, Insert, Module, Names, Op, Users};
use memplan_rewriter::loops::{Loop, loops};
use memplan_rewriter::{Context, PassError, PassFn};

use crate::find::{Made, made_row_by_row};

/// Leaves out what fills arrays that loops overwrite.
pub const UNINITIALIZED_RESULTS: PassFn = PassFn {
    name: "uninitialized-results",
    description: "do not initialize arrays that a loop overwrites row by row",
    run,
};

/// [`UNINITIALIZED_RESULTS`] as libtpu does it: it replaces the zeros that a forward loop stacks its values over, but not those
/// of gradients, which a backward loop writes from the last row to the first (seen on libtpu 0.0.52). So a gradient's zeros are
/// written, which is a reason to keep it in fast memory.
pub const UNINITIALIZED_STACKS: PassFn = PassFn {
    name: "uninitialized-stacks",
    description: "do not initialize arrays that a loop overwrites from the first row on, as libtpu does",
    run: |module, _| leave_uninitialized(module, |made| made.rows.first.step > 0),
};

fn run(module: &mut Module, _: &Context<'_>) -> Result<bool, PassError> {
    leave_uninitialized(module, |_| true)
}

fn leave_uninitialized(module: &mut Module, is_wanted: fn(&Made) -> bool) -> Result<bool, PassError> {
    let users = Users::new(module);
    let loops = loops(module, &users);
    let mut names = Names::new(module);
    let mut changed = false;
    for of in &loops {
        let filled = filled_in_vain(module, &users, of, is_wanted);
        changed |= !filled.is_empty();
        start_without_contents(module, of, &filled, &mut names);
    }
    Ok(changed)
}

/// The elements of the state of which the loop writes every row before anybody reads it, and that something fills.
fn filled_in_vain(module: &Module, users: &Users, of: &Loop, is_wanted: fn(&Made) -> bool) -> Vec<u32> {
    let init = &module.instructions[of.init].operands;
    let is_filled = |&element: &u32| {
        let start = &module.instructions[init[element as usize]];
        let is_given = matches!(start.op, Op::Parameter { .. } | Op::GetTupleElement { .. } | Op::While);
        !is_given && !start.op.is_allocation()
    };
    let made = made_row_by_row(module, users, of).into_iter().filter(is_wanted);
    made.map(|made| made.element).filter(is_filled).collect()
}

fn start_without_contents(module: &mut Module, of: &Loop, elements: &[u32], names: &mut Names) {
    for &element in elements {
        let start = module.instructions[of.init].operands[element as usize];
        let shape = module.shape(start).clone();
        let mut at = Cursor::before(module, names, of.init).with_metadata_of(start);
        let storage = at.custom_call("AllocateBuffer", [], shape);
        module.instructions[storage].extras = module.instructions[start].extras.clone();
        module.instructions[of.init].operands[element as usize] = storage;
    }
}
