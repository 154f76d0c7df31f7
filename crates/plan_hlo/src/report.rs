//! A summary of a plan for people: the holders of the peak, why they are live, and the load over the program.

use memplan_analysis::{Facts, LiveRange, Time, ValueId, ValueKind};
use memplan_ir::{InstructionId, Module, Op, Position};
use memplan_memory::{Bytes, MemoryPlan, MemorySpaceId, Slice};

use crate::lifetimes::{lifetimes, occupied, placed_values};

/// The load of a program over its run, and the live values at its peak.
#[derive(Clone, Debug)]
pub struct PeakReport {
    /// The instant with the most bytes live, in the flattened schedule.
    pub time: Time,
    /// The instruction that runs then.
    pub instruction: InstructionId,
    /// Bytes live then, each byte once.
    pub bytes: Bytes,
    /// Bytes live at every instant.
    pub curve: Vec<Bytes>,
    /// The live values at the peak, largest first.
    pub buffers: Vec<PeakBuffer>,
}

/// A slice that is occupied at the peak.
#[derive(Clone, Debug)]
pub struct PeakBuffer {
    /// Its slice.
    pub slice: Slice,
    /// The value in it.
    pub value: ValueId,
    /// The definition of that value.
    pub position: Position,
    /// From when to when that value is needed.
    pub live: LiveRange,
    /// Why it is still needed.
    pub kept_by: KeptBy,
}

/// The reason why a value stays alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeptBy {
    /// The caller did not give the parameter up.
    Caller,
    /// It is a result of the program.
    Result,
    /// It is constant data.
    Constant,
    /// It is state that a loop still needs.
    Loop(InstructionId),
    /// This instruction reads it last.
    Reader(InstructionId),
}

/// Finds the peak of a plan, over all memories together, and the live values there. Linear in positions, and in the
/// live values.
pub fn peak_report(module: &Module, facts: &Facts, plan: &MemoryPlan) -> PeakReport {
    report(module, facts, plan, None, |_| true)
}

/// The same for one memory alone.
pub fn peak_report_in(module: &Module, facts: &Facts, plan: &MemoryPlan, space: MemorySpaceId) -> PeakReport {
    report(module, facts, plan, None, |slice| plan.allocations[slice.allocation].space == space)
}

/// The same for any instant.
pub fn report_at(
    module: &Module,
    facts: &Facts,
    plan: &MemoryPlan,
    space: MemorySpaceId,
    time: Time,
) -> PeakReport {
    report(module, facts, plan, Some(time), |slice| plan.allocations[slice.allocation].space == space)
}

fn report(
    module: &Module,
    facts: &Facts,
    plan: &MemoryPlan,
    time: Option<Time>,
    counts: impl Fn(Slice) -> bool,
) -> PeakReport {
    let mut placed = placed_values(facts, plan);
    placed.retain(|(slice, _)| counts(*slice));
    let mut load = crate::Load::new(facts.line.end());
    for lifetime in lifetimes(module, facts, plan).iter().filter(|lifetime| counts(lifetime.slice)) {
        load.add(lifetime.live, lifetime.slice.size);
    }
    let curve: Vec<Bytes> = load.curve().collect();
    let (time, bytes) = match time {
        None => load.peak(),
        Some(time) => (time, curve.get(time as usize).copied().unwrap_or_default()),
    };
    let mut at_peak: Vec<&(Slice, ValueId)> =
        placed.iter().filter(|(_, value)| occupied(facts, module, *value).is_live_at(time)).collect();
    // One line a slice: of the values that share it, the largest, and of those the one that is needed longest.
    at_peak.sort_by_key(|(slice, value)| {
        let live = occupied(facts, module, *value);
        (slice.allocation, slice.offset, std::cmp::Reverse((slice.size, live.end)))
    });
    at_peak.dedup_by_key(|(slice, _)| (slice.allocation, slice.offset));
    at_peak.sort_by_key(|(slice, _)| std::cmp::Reverse(slice.size));
    let buffers =
        at_peak.into_iter().map(|&(slice, value)| peak_buffer(module, facts, slice, value)).collect();
    let instruction = facts.line.instructions.get(time as usize).copied();
    PeakReport {
        time,
        instruction: instruction.unwrap_or(module.entry_computation().root),
        bytes,
        curve,
        buffers,
    }
}

fn peak_buffer(module: &Module, facts: &Facts, slice: Slice, value: ValueId) -> PeakBuffer {
    PeakBuffer {
        slice,
        value,
        position: facts.flow.positions.position(facts.flow.values[value].definition),
        live: facts.live.of(value),
        kept_by: kept_by(module, facts, value),
    }
}

/// Why a value is needed until it is needed no longer. Takes constant time.
pub fn kept_by(module: &Module, facts: &Facts, value: ValueId) -> KeptBy {
    let live = facts.live.of(value);
    let definition = facts.flow.values[value];
    let defined_by = &module.instructions[facts.flow.positions.instruction(definition.definition)];
    let last = live.end.saturating_sub(1).min(facts.line.end().saturating_sub(1));
    if matches!(defined_by.op, Op::Constant(_)) {
        KeptBy::Constant
    } else if facts.live.is_live_out(value) {
        KeptBy::Result
    } else if definition.kind == ValueKind::Parameter && live.end == facts.line.end() {
        KeptBy::Caller
    } else {
        match facts.line.instructions[last as usize] {
            reader if definition.kind == ValueKind::LoopPhi => KeptBy::Loop(reader),
            reader => KeptBy::Reader(reader),
        }
    }
}
