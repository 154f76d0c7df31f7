//! Buffers: values that must share storage to preserve the program's meaning.
//!
//! Values are merged if they meet in a phi (loop state, results of conditionals), if an operation writes its result
//! into an operand (dynamic-update-slice, scatter, declared output-operand aliasing, fusions that contain them), or if
//! the module declares that an output lives in a parameter. Merging is transitive. Whether a result reuses the buffer
//! of a dying operand is the planner's choice.

use cranelift_entity::{EntityRef, PrimaryMap, SecondaryMap, entity_impl};
use memplan_ir::{InstructionId, Module, ShapeIndex};
use petgraph::unionfind::UnionFind;
use rustc_hash::FxHashSet;

use crate::{CallGraph, Dataflow, InPlace, ValueId};

/// A buffer: values that must share storage.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BufferId(u32);
entity_impl!(BufferId, "buffer");

/// The partition of values into buffers.
#[derive(Clone, Debug)]
pub struct Buffers {
    /// Values of each buffer, ascending.
    pub values: PrimaryMap<BufferId, Vec<ValueId>>,
    buffer_of: SecondaryMap<ValueId, BufferId>,
}

impl Buffers {
    /// The buffer of a value.
    pub fn of(&self, value: ValueId) -> BufferId {
        self.buffer_of[value]
    }
}

/// Merges values that must share storage. Close to linear in the number of values.
pub fn buffers(module: &Module, graph: &CallGraph, flow: &Dataflow, in_place: &InPlace) -> Buffers {
    let mut sets: UnionFind<u32> = UnionFind::new(flow.values.len());
    for &(phi, input) in &flow.phi_inputs {
        sets.union(phi.as_u32(), input.as_u32());
    }
    for &computation in graph.sequential() {
        for &id in &module.computations[computation].instructions {
            for (source, result) in in_place_values(module, flow, in_place, id) {
                sets.union(source.as_u32(), result.as_u32());
            }
        }
    }
    for (output, parameter) in aliased_values(module, flow) {
        sets.union(output.as_u32(), parameter.as_u32());
    }
    number(flow, sets)
}

/// The values that an instruction updates in place: (before, after).
pub fn in_place_values<'a>(
    module: &'a Module,
    flow: &'a Dataflow,
    in_place: &InPlace,
    id: InstructionId,
) -> impl Iterator<Item = (ValueId, ValueId)> + 'a {
    in_place.must_alias(module, id).into_iter().filter_map(move |pair| {
        let source = module.instructions[id].operands.get(pair.operand as usize)?;
        Some((flow.find(*source, &pair.operand_index)?, flow.find(id, &pair.output_index)?))
    })
}

/// The values joined by input-output aliasing: (result, parameter). Aliases of parts that do not exist are left out;
/// the verifier reports them.
pub fn aliased_values<'a>(
    module: &'a Module,
    flow: &'a Dataflow,
) -> impl Iterator<Item = (ValueId, ValueId)> + 'a {
    let entry = module.entry_computation();
    module.config.input_output_alias.iter().filter_map(move |alias| {
        let parameter = *entry.parameters.get(alias.parameter as usize)?;
        let find = |id: InstructionId, index: &ShapeIndex| flow.find(id, index);
        Some((find(entry.root, &alias.output_index)?, find(parameter, &alias.parameter_index)?))
    })
}

/// Parts of parameters whose memory the caller gives up, by an alias or a donation.
pub fn given_parameters(module: &Module, flow: &Dataflow) -> FxHashSet<ValueId> {
    let parameters = &module.entry_computation().parameters;
    let find = |(number, index): (u32, &ShapeIndex)| flow.find(*parameters.get(number as usize)?, index);
    module.config.given_up().filter_map(find).collect()
}

fn number(flow: &Dataflow, mut sets: UnionFind<u32>) -> Buffers {
    let mut values: PrimaryMap<BufferId, Vec<ValueId>> = PrimaryMap::new();
    let mut buffer_of = SecondaryMap::with_default(BufferId::new(0));
    let mut of_class: Vec<Option<BufferId>> = vec![None; flow.values.len()];
    for value in flow.values.keys() {
        let class = sets.find_mut(value.as_u32()) as usize;
        let buffer = *of_class[class].get_or_insert_with(|| values.push(Vec::new()));
        values[buffer].push(value);
        buffer_of[value] = buffer;
    }
    Buffers { values, buffer_of }
}
