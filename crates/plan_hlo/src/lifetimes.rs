//! When the bytes of a plan are in use, and by which values.

use memplan_analysis::{Facts, LiveRange, ValueId};
use memplan_ir::{Module, Op};
use memplan_memory::{MemoryPlan, Slice};

/// A slice over the time it is occupied without a break.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetime {
    /// Its address, and its maximal bytes.
    pub slice: Slice,
    /// From when to when, in instants of the flattened schedule.
    pub live: LiveRange,
    /// The value it begins with. Others may take its place at once, as in loops or in place.
    pub value: ValueId,
    /// The largest of all values that it holds, which takes the whole slice.
    pub largest: ValueId,
}

/// Every lifetime of a plan's values, by allocation, offset and start; no byte counts twice at one instant. Working
/// memory of kernels is not among them. Takes time n log n in values.
pub fn lifetimes(module: &Module, facts: &Facts, plan: &MemoryPlan) -> Vec<Lifetime> {
    let begins =
        |(slice, value)| Lifetime { slice, live: occupied(facts, module, value), value, largest: value };
    let mut all: Vec<Lifetime> = placed_values(facts, plan).into_iter().map(begins).collect();
    all.sort_by_key(|l| (l.slice.allocation, l.slice.offset, l.live.start, l.live.end, l.value));
    let mut joined: Vec<Lifetime> = Vec::with_capacity(all.len());
    for next in all {
        match joined.last_mut() {
            Some(last)
                if (last.slice.allocation, last.slice.offset)
                    == (next.slice.allocation, next.slice.offset)
                    && next.live.start < last.live.end =>
            {
                last.live.end = last.live.end.max(next.live.end);
                if next.slice.size > last.slice.size {
                    (last.slice.size, last.largest) = (next.slice.size, next.value);
                }
            }
            _ => joined.push(next),
        }
    }
    joined
}

/// Every value with a slice, by its defining position.
pub(crate) fn placed_values(facts: &Facts, plan: &MemoryPlan) -> Vec<(Slice, ValueId)> {
    let values = facts.flow.values.iter();
    values
        .filter_map(|(id, value)| {
            let position = facts.flow.positions.position(value.definition);
            Some((*plan.slices.get(&position)?, id))
        })
        .collect()
}

/// When a value's bytes are taken: constants always, everything else while live.
pub(crate) fn occupied(facts: &Facts, module: &Module, value: ValueId) -> LiveRange {
    let instruction = facts.flow.positions.instruction(facts.flow.values[value].definition);
    match module.instructions[instruction].op {
        Op::Constant(_) => LiveRange { start: 0, end: facts.line.end() },
        _ => facts.live.of(value),
    }
}
