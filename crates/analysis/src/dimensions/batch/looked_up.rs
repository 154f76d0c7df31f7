//! Finds arrays whose rows an integer argument looks up: the nodes of a graph, by its edges.

use memplan_ir::{InstructionId, Module, Op};
use rustc_hash::FxHashSet;

use super::arguments::is_random_key;
use crate::dimensions::{Dimensions, FactorId, FactorList};
use crate::{Facts, Phase, ValueClasses};

/// What has a row for each element of a factor.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum RowOf {
    /// The model: a table that examples look up.
    Model,
    /// One argument: nodes, or a table that is not known to be the model's.
    Table,
    /// Several arguments: the nodes of a graph.
    Data,
    /// No argument.
    Computed,
}

/// The rows that integer arguments look up, and those arguments.
#[derive(Default)]
pub(super) struct LookedUp {
    pub(super) factors: FxHashSet<FactorId>,
    /// Whether the forward half adds up rows by an argument: sums over the edges of a graph.
    pub(super) is_graph: bool,
    /// The arguments that name rows, by parameter number.
    pub(super) by: FxHashSet<usize>,
}

/// Finds rows that are looked up, by gathers or by scatters of the forward half, at indices that integer arguments say.
pub(super) fn looked_up(
    dimensions: &Dimensions,
    module: &Module,
    (classes, facts): &(ValueClasses, Facts),
    row_of: impl Fn(FactorId) -> RowOf,
) -> LookedUp {
    let mut found = LookedUp::default();
    let listed = module.computations.values().flat_map(|computation| &computation.instructions);
    for &id in listed {
        let instruction = &module.instructions[id];
        let (table, indices, along, vector, batching) = match &instruction.op {
            Op::Gather(gather) => (
                instruction.operands[0],
                instruction.operands[1],
                &gather.start_index_map,
                gather.index_vector_dim,
                &gather.start_indices_batching_dims,
            ),
            Op::Scatter(scatter) => (
                instruction.operands[0],
                instruction.operands[instruction.operands.len() / 2],
                &scatter.scatter_dims_to_operand_dims,
                scatter.index_vector_dim,
                &scatter.scatter_indices_batching_dims,
            ),
            _ => continue,
        };
        let table: Vec<FactorList> = dimensions.of_array(table).map(|d| dimensions.factors_of(d)).collect();
        let rows = along.iter().filter_map(|&d| table.get(d as usize)).flatten().copied();
        // Gradients are added to rows of any table, sums of edges to nodes alone.
        let is_scatter = matches!(instruction.op, Op::Scatter(_));
        if is_scatter && classes.phases.of(id) != Phase::Forward {
            continue;
        }
        let does_combine = |called| {
            let root = module.computations[called].root;
            !matches!(module.instructions[root].op, Op::Parameter { .. })
        };
        let is_sum = is_scatter && instruction.called.iter().any(|&called| does_combine(called));
        let is_row = |kind: RowOf| kind != RowOf::Model && (is_sum || kind != RowOf::Table);
        let rows: Vec<FactorId> = rows.filter(|&factor| is_row(row_of(factor))).collect();
        let by = dimensions.of_array(indices).map(|d| dimensions.factors_of(d)).enumerate();
        let by: Vec<(i64, FactorList)> =
            by.map(|(d, factors)| (d as i64, factors)).filter(|(d, _)| *d != vector).collect();
        // An element of each row: labels, positions.
        let is_own = by.iter().flat_map(|(_, factors)| factors).any(|factor| rows.contains(factor));
        if is_own || rows.is_empty() {
            continue;
        }
        let arguments = index_arguments(module, facts, indices);
        if arguments.is_empty() {
            continue;
        }
        found.is_graph |= is_sum;
        found.by.extend(arguments);
        if rows.iter().all(|&row| row_of(row) == RowOf::Computed) {
            continue;
        }
        found.factors.extend(rows);
        let by = by.into_iter().filter(|(d, _)| !batching.contains(d));
        found.factors.extend(by.flat_map(|(_, factors)| factors));
    }
    found
}

/// The most operations between an argument and the indices that it says.
const MAX_STEPS: usize = 64;

/// The arguments of the entry that indices are computed from, by parameter number, also within loops that do not change
/// them; none if the program counts or draws the indices itself.
fn index_arguments(module: &Module, facts: &Facts, indices: InstructionId) -> Vec<usize> {
    let (mut seen, mut open) = (FxHashSet::from_iter([indices]), vec![indices]);
    let mut found = Vec::new();
    while let Some(id) = open.pop() {
        let instruction = &module.instructions[id];
        match instruction.op {
            Op::Parameter { .. } | Op::GetTupleElement { .. } => found.extend(argument(module, facts, id)),
            _ => {
                let is_integral = |id: &InstructionId| {
                    module.shape(*id).as_array().is_some_and(|array| !array.element_type.is_floating())
                };
                let operands = instruction.operands.iter().copied().filter(is_integral);
                open.extend(operands.filter(|&operand| seen.len() < MAX_STEPS && seen.insert(operand)));
            }
        }
    }
    found
}

/// The number of the argument that a value is, but for random keys.
fn argument(module: &Module, facts: &Facts, id: InstructionId) -> Option<usize> {
    let value = &facts.flow.values[facts.flow.value_of(id)?];
    let definition = facts.flow.positions.instruction(value.definition);
    match module.instructions[definition].op {
        Op::Parameter { number } if module.instructions[definition].parent == module.entry => {
            module.shape(definition).as_array().filter(|array| !is_random_key(array))?;
            Some(number as usize)
        }
        _ => None,
    }
}
