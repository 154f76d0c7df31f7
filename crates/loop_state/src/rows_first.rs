//! Lets each step of a loop read rows of an array before it overwrites them, in whatever order a compiler runs the step.
//!
//! ```text
//!   row = dynamic-slice(array, i, 0)                  row = dynamic-slice(array, i, 0)
//!                                                     both = opt-barrier(tuple(row, array))
//!   use = f(row)                                =>    use = f(get-tuple-element(both), index=0)
//!   n = dynamic-update-slice(array, g, i, 0)          n = dynamic-update-slice(get-tuple-element(both), index=1, g, i, 0)
//! ```
//!
//! XLA inserts copies before it schedules, and fuses the slice into each kernel that uses the row. The update does not depend
//! on all of these kernels, so they might run after it. XLA then copies the whole array in each step.

use memplan_ir::{Cursor, Insert, InstructionId, Module, Names, Op, Users};
use memplan_rewriter::loops::{Loop, loops};

/// Puts barriers into all loops that read rows of an array and write rows of it. Linear in the module, but for chains of
/// updates.
pub(super) fn read_rows_first(module: &mut Module) {
    let users = Users::new(module);
    let mut names = Names::new(module);
    for of in loops(module, &users) {
        let found = find(module, &users, &of);
        for overwritten in &found {
            overwritten.put_barriers(module, &users, &mut names);
        }
        if !found.is_empty() {
            module.put_operands_first(of.body);
        }
    }
}

/// An array in the state of a loop. Each step reads rows of it and overwrites rows.
struct Overwritten {
    /// Reads of rows, as they are listed.
    rows: Vec<InstructionId>,
    /// The array as the step begins.
    array: InstructionId,
    /// The first update.
    update: InstructionId,
}

fn find(module: &Module, users: &Users, of: &Loop) -> Vec<Overwritten> {
    let next = &module.instructions[of.next].operands;
    (0..).zip(next).filter_map(|(element, &last)| overwritten(module, users, of, element, last)).collect()
}

fn overwritten(
    module: &Module,
    users: &Users,
    of: &Loop,
    element: u32,
    last: InstructionId,
) -> Option<Overwritten> {
    let sites = of.taken.get(&element)?;
    let operation = |id: InstructionId| &module.instructions[id];
    let mut update = last;
    loop {
        let base =
            matches!(operation(update).op, Op::DynamicUpdateSlice).then(|| operation(update).operands[0])?;
        if sites.contains(&base) {
            break;
        }
        update = base;
    }
    let readers = || sites.iter().flat_map(|&site| users.of(site)).copied().filter(|&user| user != update);
    let is_row = |&id: &InstructionId| {
        matches!(operation(id).op, Op::DynamicSlice { .. }) && sites.contains(&operation(id).operands[0])
    };
    let are_rows = readers().all(|reader| is_row(&reader));
    let body = &module.computations[of.body].instructions;
    let rows: Vec<_> = body.iter().copied().filter(is_row).collect();
    let array = operation(update).operands[0];
    (are_rows && !rows.is_empty()).then_some(Overwritten { rows, array, update })
}

impl Overwritten {
    fn put_barriers(&self, module: &mut Module, users: &Users, names: &mut Names) {
        let mut array = self.array;
        for &row in &self.rows {
            let mut at = Cursor::after(module, names, row).with_metadata_of(row);
            let both = at.tuple([row, array]);
            let barrier = at.named("rows_first").insert(Op::OptimizationBarrier, [both]);
            let read = at.get_tuple_element(barrier, 0);
            array = at.get_tuple_element(barrier, 1);
            for &user in users.of(row) {
                module.replace_operand(user, row, read);
            }
        }
        module.instructions[self.update].operands[0] = array;
    }
}
