//! Bytes that are neither arguments nor results of operations: working memory of kernels, and second buffers of
//! collectives.

use memplan_ir::{ElementType, InstructionId, Shape};
use memplan_memory::{Bytes, MemorySpaceId};
use serde::Serialize;
use strum::IntoStaticStr;

use super::Subject;

/// Bytes that an instruction reserves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Reserved {
    /// The instruction.
    pub instruction: String,
    /// Its operation, as HLO names it.
    pub opcode: String,
    /// The memory.
    pub space: String,
    /// How many bytes.
    pub bytes: Bytes,
    /// Their purpose.
    pub what: ReservedFor,
}

/// The purpose of reserved bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, IntoStaticStr)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum ReservedFor {
    /// Working memory of a kernel that the cores run, by the target's rule.
    Kernel,
    /// Working memory of a library: an array of bytes beside the results.
    Library,
    /// The result of a collective, which needs memory in addition to its operands.
    Collective,
}

/// All reserved memory, the largest first. Linear in the module.
pub(super) fn reserved(subject: &Subject<'_>) -> Vec<Reserved> {
    let space_name = |space: MemorySpaceId| {
        subject.target.space(space).map_or_else(|| format!("memory {}", space.0), |space| space.name.clone())
    };
    let entry = |id: InstructionId, space, bytes, what| Reserved {
        instruction: subject.name(id),
        opcode: subject.module.instructions[id].opcode().to_string(),
        space: space_name(space),
        bytes,
        what,
    };
    let plan = subject.plan();
    let mut all: Vec<Reserved> = Vec::new();
    for (&id, slices) in &plan.scratch {
        for slice in slices {
            let space = plan.allocations[slice.allocation].space;
            all.push(entry(id, space, slice.size, ReservedFor::Kernel));
        }
    }
    for &id in &subject.facts().line.instructions {
        let shape = subject.module.shape(id);
        let op = &subject.module.instructions[id].op;
        if matches!(op, memplan_ir::Op::CustomCall(_)) {
            let bytes = workspace(subject, shape);
            if bytes > Bytes::ZERO {
                all.push(entry(id, MemorySpaceId::MAIN, bytes, ReservedFor::Library));
            }
        } else if op.collective().is_some() && !is_in_place(subject, id) {
            let leaves = shape.leaves();
            let bytes = leaves.iter().map(|(_, leaf)| subject.target.size_of(leaf));
            let bytes = bytes.fold(Bytes::ZERO, Bytes::saturating_add);
            all.push(entry(id, MemorySpaceId::MAIN, bytes, ReservedFor::Collective));
        }
    }
    all.sort_by_key(|reserved| std::cmp::Reverse(reserved.bytes));
    all
}

/// Bytes beside the first result of a library call: one row of bytes.
fn workspace(subject: &Subject<'_>, shape: &Shape) -> Bytes {
    let Shape::Tuple(elements) = shape else { return Bytes::ZERO };
    let is_workspace = |shape: &&Shape| {
        shape.as_array().is_some_and(|array| {
            array.rank() == 1 && matches!(array.element_type, ElementType::U8 | ElementType::S8)
        })
    };
    let workspaces = elements.iter().skip(1).filter(is_workspace);
    workspaces.map(|shape| subject.target.size_of(shape)).fold(Bytes::ZERO, Bytes::saturating_add)
}

/// Whether a result shares the memory of an operand.
fn is_in_place(subject: &Subject<'_>, id: InstructionId) -> bool {
    let flow = &subject.facts().flow;
    let place = |id: InstructionId| {
        let mut positions = flow.positions.of(id);
        positions.find_map(|position| {
            let slice = subject.plan().slices.get(&flow.positions.position(position))?;
            Some((slice.allocation, slice.offset))
        })
    };
    let operands = &subject.module.instructions[id].operands;
    place(id).is_some_and(|at| operands.iter().any(|&operand| place(operand) == Some(at)))
}
