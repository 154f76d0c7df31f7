//! Finds the values on the host: those that the program marks, and their views and in-place results.

use memplan_analysis::{CallGraph, Dataflow, InPlace, ValueId, in_place_values};
use memplan_ir::{EntityRef, EntitySet, InstructionId, Module, Op, Users};

use super::{Placement, is_on_host, placement};

/// The values that are on the host. Linear in positions.
pub(super) fn values_on_host(
    module: &Module,
    graph: &CallGraph,
    flow: &Dataflow,
    in_place: &InPlace,
) -> EntitySet<ValueId> {
    // From each value, the values that are on the host if it is.
    let mut follow: Vec<Vec<ValueId>> = vec![Vec::new(); flow.values.len()];
    let mut open: Vec<ValueId> = Vec::new();
    for &(phi, input) in &flow.phi_inputs {
        follow[input.index()].push(phi);
    }
    let users = Users::new(module);
    for &id in graph.sequential().iter().flat_map(|&c| &module.computations[c].instructions) {
        let instruction = &module.instructions[id];
        let passes = match instruction.op {
            Op::Reshape { .. } | Op::Copy => instruction.operands.first(),
            Op::DynamicUpdateSlice => instruction.operands.get(1),
            _ => None,
        };
        let through = passes.and_then(|&operand| flow.value_of(operand)).zip(flow.value_of(id));
        if let Some((from, to)) = through.filter(|_| module.shape(id).as_array().is_some()) {
            follow[from.index()].push(to);
        }
        for (before, after) in in_place_values(module, flow, in_place, id) {
            follow[before.index()].push(after);
        }
        if placement(instruction) == Some(Placement::Host) {
            match updates_fed_by(module, &users, id) {
                // The update itself carries the row over.
                Some(updates) => open.extend(updates.iter().filter_map(|&update| flow.value_of(update))),
                None => open.extend(flow.value_of(id)),
            }
        }
    }
    open.extend(said_to_be_on_host(module, flow));
    let mut on_host = EntitySet::new();
    while let Some(value) = open.pop() {
        if on_host.insert(value) {
            open.extend(&follow[value.index()]);
        }
    }
    on_host
}

/// The dynamic-update-slices that write an array, or reshapes of it, somewhere, if nothing else reads it.
pub(super) fn updates_fed_by(
    module: &Module,
    users: &Users,
    id: InstructionId,
) -> Option<Vec<InstructionId>> {
    let (mut open, mut updates) = (vec![id], Vec::new());
    while let Some(id) = open.pop() {
        if module.computations[module.instructions[id].parent].root == id {
            return None;
        }
        for &user in users.of(id) {
            let instruction = &module.instructions[user];
            let is_update = instruction.op == Op::DynamicUpdateSlice
                && instruction.operands.iter().position(|&operand| operand == id) == Some(1);
            match instruction.op {
                Op::Reshape { .. } => open.push(user),
                _ if is_update => updates.push(user),
                _ => return None,
            }
        }
    }
    (!updates.is_empty()).then_some(updates)
}

/// The values whose definition has a layout on the host, and the parameters for which the caller asks for one.
fn said_to_be_on_host(module: &Module, flow: &Dataflow) -> Vec<ValueId> {
    let is_defined_there = |at| is_on_host(flow.positions.part(module, at));
    let defined = flow.values.iter().filter(|(_, value)| is_defined_there(value.definition));
    let mut values: Vec<ValueId> = defined.map(|(value, _)| value).collect();
    let asked = module.config.entry_computation_layout.iter().flat_map(|asked| &asked.parameters);
    for (&parameter, shape) in module.entry_computation().parameters.iter().zip(asked) {
        let leaves = shape.leaves().into_iter().filter(|(_, leaf)| is_on_host(leaf));
        values.extend(leaves.filter_map(|(index, _)| flow.find(parameter, &index)));
    }
    values
}
