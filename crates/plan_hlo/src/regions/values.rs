//! Bytes of values.

use cranelift_entity::{EntityRef, SecondaryMap};
use memplan_analysis::{Dataflow, ValueId, ValueKind, given_parameters};
use memplan_ir::{Module, Op};
use memplan_memory::{Bytes, Target};
use rustc_hash::FxHashSet;

use super::Results;

/// The most bytes that a value asks for at any position; none for constants, for parameters that the caller keeps, and
/// for results where those are free.
pub(super) fn value_bytes(
    module: &Module,
    target: &Target,
    results: Results,
    flow: &Dataflow,
) -> SecondaryMap<ValueId, Bytes> {
    // Clipped so that the sum over all values stays within 64 bits.
    let limit = Bytes((u64::MAX >> 2) / (flow.values.len() as u64 + 1));
    let mut part_sizes = Vec::with_capacity(module.shapes.len());
    for shape in &module.shapes {
        let mut sizes = Vec::new();
        shape.for_each_subshape(|_, part| {
            sizes.push(if part.is_tuple() { Bytes::ZERO } else { target.size_of(part).min(limit) });
        });
        part_sizes.push(sizes);
    }
    let given = given_parameters(module, flow);
    let root = module.entry_computation().root;
    let returned: FxHashSet<ValueId> = match results {
        Results::Count => FxHashSet::default(),
        Results::AreFree => flow.positions.of(root).filter_map(|p| flow.value_at(p)).collect(),
    };
    let mut bytes = SecondaryMap::new();
    bytes.resize(flow.values.len());
    for (id, value) in flow.values.iter() {
        let instruction = flow.positions.instruction(value.definition);
        let counts = match value.kind {
            // A returned parameter is still an argument.
            ValueKind::Parameter => given.contains(&id),
            _ => !returned.contains(&id),
        };
        if !counts || matches!(module.instructions[instruction].op, Op::Constant(_)) {
            continue;
        }
        let sizes = flow.positions_of(id).iter().map(|&position| {
            let shape = module.instructions[flow.positions.instruction(position)].shape;
            part_sizes[shape.index()][flow.positions.preorder(position)]
        });
        bytes[id] = sizes.max().unwrap_or_default();
    }
    bytes
}
