//! `collective-combiner`: combines collectives of one kind among the same devices.
//!
//! ```text
//!   a = f32[64] all-reduce(x)          xy = f32[96] concatenate(x, y)
//!   b = f32[32] all-reduce(y)    =>    ab = f32[96] all-reduce(xy)
//!                                      a = f32[64] slice(ab), b = f32[32] slice(ab)
//!
//!   a = f32[64] all-gather(x)    =>    ab = (f32[64], f32[32]) all-gather(x, y)
//!   b = f32[32] all-gather(y)          a = f32[64] get-tuple-element(ab), index=0; ...
//! ```
//!
//! XLA goes through the program with operands before users, and combines collectives up to some number and bytes of
//! results; seen in 0.12 on fully sharded and data-parallel training steps. Its GPU compiler sends combined all-reduces
//! as one array, and also combines gathers along different dimensions, since it gathers along the most major dimension.
//! Its CPU compiler combines only all-reduces, of any size, so all gradients wait for the last one. Left alone:
//! collectives that depend on each other. *Changed* means that collectives were combined.

use cranelift_entity::SecondaryMap;
use memplan_ir::{
    ArrayShape, Collective, ComputationId, Cursor, EntitySet, Insert, InstructionId, Module, Names, Op,
    Opcode, Shape, SliceDimension,
};
use memplan_memory::{Bytes, by_name};
use memplan_rewriter::{Context, PassError, call_graph};
use serde::Deserialize;

/// How much goes together.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CollectiveCombinerRules {
    /// The operations that are combined.
    #[serde(with = "by_name::list")]
    pub kinds: Vec<Opcode>,
    /// The most arrays that one collective takes.
    pub max_arrays: usize,
    /// The most bytes of the results of one collective.
    #[serde(default = "unlimited")]
    pub max_bytes: Bytes,
    /// Whether combined all-reduces are of one array.
    pub contiguous: bool,
}

fn unlimited() -> Bytes {
    Bytes(u64::MAX)
}

pass_with_rules!(
    COLLECTIVE_COMBINER = CollectiveCombiner(CollectiveCombinerRules),
    "collective-combiner",
    "send arrays together that go to the same devices, as XLA does",
    run
);

fn run(module: &mut Module, _: &Context<'_>, rules: &CollectiveCombinerRules) -> Result<bool, PassError> {
    if !module.instructions.values().any(|instruction| collective(&instruction.op).is_some()) {
        return Ok(false);
    }
    let computations = call_graph(module, "collective-combiner")?.sequential().to_vec();
    let mut names = Names::new(module);
    let mut changed = false;
    for computation in computations {
        let groups = groups(module, computation, rules);
        for group in groups {
            let group = independent(module, &group);
            if group.len() > 1 {
                combine(module, &group, rules, &mut names);
                changed = true;
            }
        }
        if changed {
            module.put_operands_first(computation);
        }
    }
    Ok(changed)
}

/// The attributes of a collective that is combined with others.
fn collective(op: &Op) -> Option<&Collective> {
    match op {
        Op::AllGather(it) | Op::AllReduce(it) | Op::ReduceScatter(it) => Some(it),
        _ => None,
    }
}

/// Collectives that become one, as far as the walk over a computation has come.
struct Open {
    group: Vec<InstructionId>,
    bytes: u64,
    /// Counts the groups of its kind: this one, and those before it.
    number: u32,
    /// Of each instruction, the last group of this kind that it depends on, or is in; 0 for none.
    last_before: SecondaryMap<InstructionId, u32>,
}

/// Collectives of a computation that become one, in order.
fn groups(
    module: &Module,
    computation: ComputationId,
    rules: &CollectiveCombinerRules,
) -> Vec<Vec<InstructionId>> {
    let mut done: Vec<Vec<InstructionId>> = Vec::new();
    let mut open: Vec<Open> = Vec::new();
    for &id in &module.computations[computation].instructions {
        let instruction = &module.instructions[id];
        for of_kind in &mut open {
            let before = instruction.operands.iter().chain(&instruction.control_predecessors);
            of_kind.last_before[id] =
                before.map(|&other| of_kind.last_before[other]).max().unwrap_or_default();
        }
        let (Some(own), Some(bytes)) = (collective(&instruction.op), bytes(module, id)) else { continue };
        if !rules.kinds.contains(&instruction.opcode()) {
            continue;
        }
        if instruction.operands.len() != 1 || !instruction.control_predecessors.is_empty() {
            continue;
        }
        let is_alike = |other: InstructionId| {
            let other = &module.instructions[other];
            let reducer = |called: &[ComputationId]| {
                called.first().map(|&of| &module.instructions[module.computations[of].root].op)
            };
            other.opcode() == instruction.opcode()
                && collective(&other.op).is_some_and(|it| it.replica_groups == own.replica_groups)
                && reducer(&other.called) == reducer(&instruction.called)
                && module.shape(other.operands[0]).as_array().map(|a| a.element_type)
                    == module.shape(instruction.operands[0]).as_array().map(|a| a.element_type)
        };
        let place = open.iter().position(|of_kind| is_alike(of_kind.group[0])).unwrap_or_else(|| {
            open.push(Open { group: Vec::new(), bytes: 0, number: 1, last_before: SecondaryMap::new() });
            open.len() - 1
        });
        let Open { group, bytes: sum, number, last_before } = &mut open[place];
        let fits = *sum + bytes <= rules.max_bytes.0 && group.len() < rules.max_arrays;
        if !group.is_empty() && (!fits || last_before[id] == *number) {
            done.push(std::mem::take(group));
            *sum = 0;
            *number += 1;
        }
        group.push(id);
        *sum += bytes;
        last_before[id] = *number;
    }
    done.extend(open.into_iter().map(|of_kind| of_kind.group));
    done
}

fn bytes(module: &Module, id: InstructionId) -> Option<u64> {
    module.shape(id).as_array()?.dense_bytes()
}

/// Those of a group that still do not depend on each other, now that other groups have been combined.
fn independent(module: &Module, group: &[InstructionId]) -> Vec<InstructionId> {
    let mut kept: Vec<InstructionId> = Vec::new();
    let mut is_kept: EntitySet<InstructionId> = EntitySet::new();
    // What those that are kept are computed from: none of it is kept, or depends on what is.
    let mut before: EntitySet<InstructionId> = EntitySet::new();
    for &id in group {
        if before.contains(id) {
            continue;
        }
        if let Some(more) = all_before(module, id, &before, &is_kept) {
            before.extend(more);
            is_kept.insert(id);
            kept.push(id);
        }
    }
    kept
}

/// What an instruction is computed from, beyond what is known; `None` if that has one of some others.
fn all_before(
    module: &Module,
    id: InstructionId,
    known: &EntitySet<InstructionId>,
    others: &EntitySet<InstructionId>,
) -> Option<Vec<InstructionId>> {
    let mut seen: EntitySet<InstructionId> = EntitySet::new();
    let mut found = Vec::new();
    let mut work = vec![id];
    while let Some(id) = work.pop() {
        let instruction = &module.instructions[id];
        for &operand in instruction.operands.iter().chain(&instruction.control_predecessors) {
            if others.contains(operand) {
                return None;
            }
            if !known.contains(operand) && seen.insert(operand) {
                found.push(operand);
                work.push(operand);
            }
        }
    }
    Some(found)
}

fn combine(module: &mut Module, group: &[InstructionId], rules: &CollectiveCombinerRules, names: &mut Names) {
    let first = group[0];
    let (op, called) = (module.instructions[first].op.clone(), module.instructions[first].called.clone());
    let operands: Vec<InstructionId> = group.iter().map(|&id| module.instructions[id].operands[0]).collect();
    if rules.contiguous && matches!(op, Op::AllReduce(_)) {
        return concatenated(module, group, &operands, names);
    }
    let shapes: Vec<Shape> = group.iter().map(|&id| module.shape(id).clone()).collect();
    let mut at = Cursor::beside(module, names, first);
    let all = at.insert_instruction(op, operands, called, Some(Shape::tuple(shapes)));
    for (index, &id) in (0..).zip(group) {
        let instruction = &mut module.instructions[id];
        instruction.op = Op::GetTupleElement { index };
        instruction.operands = [all].into_iter().collect();
        instruction.called.clear();
    }
}

/// As one array of one dimension.
fn concatenated(module: &mut Module, group: &[InstructionId], operands: &[InstructionId], names: &mut Names) {
    let first = group[0];
    let (op, called) = (module.instructions[first].op.clone(), module.instructions[first].called.clone());
    let wholes: Vec<ArrayShape> =
        group.iter().map(|&id| module.shape(id).as_array().expect("arrays are combined").clone()).collect();
    let count = |array: &ArrayShape| array.element_count().unwrap_or(0) as i64;
    let mut at = Cursor::beside(module, names, first);
    let flat: Vec<InstructionId> =
        operands.iter().zip(&wholes).map(|(&operand, whole)| at.reshape(operand, [count(whole)])).collect();
    let joined = at.insert(Op::Concatenate { dimension: 0 }, flat);
    let total: i64 = wholes.iter().map(count).sum();
    let shape = Shape::array(wholes[0].element_type, [total]);
    let all = at.insert_instruction(op, [joined], called, Some(shape));
    let mut start = 0;
    for (&id, whole) in group.iter().zip(&wholes) {
        let limit = start + count(whole);
        let part =
            Cursor::beside(module, names, first).slice(all, [SliceDimension { start, limit, stride: 1 }]);
        let instruction = &mut module.instructions[id];
        instruction.op = Op::Reshape { inferred_dimension: None };
        instruction.operands = [part].into_iter().collect();
        instruction.called.clear();
        start = limit;
    }
}
