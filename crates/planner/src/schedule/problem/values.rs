//! Bytes of values.

use cranelift_entity::{EntityRef, SecondaryMap};
use memplan_analysis::{Dataflow, ValueId, ValueKind, given_parameters};
use memplan_ir::{Module, Op};
use memplan_memory::Target;
use rustc_hash::FxHashSet;

use crate::schedule::{Role, ScheduleOptions};

/// The most bytes that a value asks for at any position; constants and parameters that the caller keeps none.
pub(super) fn value_bytes(
    module: &Module,
    target: &Target,
    options: &ScheduleOptions,
    flow: &Dataflow,
) -> SecondaryMap<ValueId, u64> {
    // Clipped so that the sum over all values stays within 64 bits.
    let limit = (u64::MAX >> 2) / (flow.values.len() as u64 + 1);
    let mut part_sizes = Vec::with_capacity(module.shapes.len());
    for shape in &module.shapes {
        let mut sizes = Vec::new();
        shape.for_each_subshape(|_, part| {
            sizes.push(if part.is_tuple() { 0 } else { target.size_of(part).0.min(limit) });
        });
        part_sizes.push(sizes);
    }
    let given = given_parameters(module, flow);
    let entry = module.entry_computation();
    let results: FxHashSet<ValueId> =
        flow.positions.of(entry.root).filter_map(|position| flow.value_at(position)).collect();
    let mut bytes = SecondaryMap::new();
    bytes.resize(flow.values.len());
    for (id, value) in flow.values.iter() {
        let instruction = flow.positions.instruction(value.definition);
        let is_constant = matches!(module.instructions[instruction].op, Op::Constant(_));
        if is_constant || value.kind == ValueKind::Parameter && !given.contains(&id) {
            continue;
        }
        let role = match value.kind {
            ValueKind::Parameter => Role::Argument,
            _ if results.contains(&id) => Role::Output,
            _ => Role::Temp,
        };
        let sizes = flow.positions_of(id).iter().map(|&position| {
            let shape = module.instructions[flow.positions.instruction(position)].shape;
            part_sizes[shape.index()][flow.positions.preorder(position)]
        });
        let size = memplan_memory::Bytes(sizes.max().unwrap_or_default());
        bytes[id] = (options.weigh)(role, size).0.min(limit);
    }
    bytes
}
