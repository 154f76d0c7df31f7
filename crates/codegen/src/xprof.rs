//! A plan for XProf's memory viewer: an `HloProto` with a buffer assignment and heap simulator traces.
//!
//! The viewer adds permanent allocations (parameters, results, constants) to the highest sum in the trace of one memory
//! space. An arena may be larger than that sum if a packing leaves gaps; the gaps at the peak are buffers too, so that
//! the viewer's peak is the program's real need.

use memplan_analysis::{LiveRange, Time};
use memplan_hlo::proto::{
    AllocationRole, BufferAllocation, BufferAssignment, ExportError, HeapEvent, HeapTrace, LogicalBuffer,
    write_assigned,
};
use memplan_ir::{EntityRef, Module, Position, ShapeIndex};
use memplan_memory::{Allocation, AllocationId, AllocationKind, Bytes, Slice};
use memplan_plan_hlo::{Load, Planned, lifetimes};

/// A serialised `HloProto` of a planned module, with where its buffers live and when. Takes time n log n in values.
///
/// # Errors
/// The module is not sound enough to be written; a verified one always is.
///
/// # Panics
/// When the plan is of another module.
pub fn xprof(module: &Module, planned: &Planned) -> Result<Vec<u8>, ExportError> {
    write_assigned(module, &assignment(module, planned))
}

/// A slice that is taken for a while.
struct Taken {
    slice: Slice,
    live: LiveRange,
    by: Position,
}

fn assignment(module: &Module, planned: &Planned) -> BufferAssignment {
    let mut taken = taken(module, planned);
    let mut traces = Vec::new();
    for (id, allocation) in &planned.plan.allocations {
        if allocation.kind == AllocationKind::Temp {
            let gaps = gaps_at_peak(planned, &taken, id, allocation.size);
            taken.extend(gaps);
            traces.extend(trace(planned, &taken, id));
        }
    }
    let buffer = |taken: &Taken| LogicalBuffer {
        defined_at: taken.by.clone(),
        allocation: taken.slice.allocation.index(),
        offset: taken.slice.offset.0,
        size: taken.slice.size.0,
    };
    BufferAssignment {
        buffers: taken.iter().map(buffer).collect(),
        allocations: planned.plan.allocations.values().map(described).collect(),
        traces,
    }
}

fn described(allocation: &Allocation) -> BufferAllocation {
    BufferAllocation {
        role: match &allocation.kind {
            AllocationKind::Argument { parameter, index } => {
                AllocationRole::Parameter { number: *parameter, index: index.clone() }
            }
            AllocationKind::Constant => AllocationRole::Constant,
            AllocationKind::Output | AllocationKind::Temp => AllocationRole::Other,
        },
        space: allocation.space.0,
        size: allocation.size.0,
        live_out: allocation.live_out,
    }
}

/// Values and working memory of kernels; no byte is in two of them at one instant.
fn taken(module: &Module, planned: &Planned) -> Vec<Taken> {
    let Planned { facts, plan, .. } = planned;
    let values = lifetimes(module, facts, plan).into_iter().map(|lifetime| Taken {
        slice: lifetime.slice,
        live: lifetime.live,
        by: facts.flow.positions.position(facts.flow.values[lifetime.largest].definition),
    });
    let scratch = plan.scratch.iter().flat_map(|(&instruction, slices)| {
        let time = facts.line.time(instruction);
        slices.iter().map(move |&slice| Taken {
            slice,
            live: LiveRange { start: time, end: time + 1 },
            by: Position { instruction, index: ShapeIndex::default() },
        })
    });
    values.chain(scratch).filter(|taken| taken.slice.size > Bytes::ZERO).collect()
}

/// The unused parts of an arena at the instant of its peak: one for each run of adjacent bytes, as a buffer of the
/// instruction that runs then.
fn gaps_at_peak(planned: &Planned, taken: &[Taken], arena: AllocationId, size: Bytes) -> Vec<Taken> {
    let line = &planned.facts.line;
    let mut load = Load::new(line.end());
    let inside = || taken.iter().filter(|taken| taken.slice.allocation == arena);
    inside().for_each(|taken| load.add(taken.live, taken.slice.size));
    let (time, _) = load.peak();
    let Some(&instruction) = line.instructions.get(time as usize) else { return Vec::new() };
    let mut there: Vec<Slice> =
        inside().filter(|taken| taken.live.is_live_at(time)).map(|taken| taken.slice).collect();
    there.sort_unstable_by_key(|slice| slice.offset);
    there.push(Slice { allocation: arena, offset: size, size: Bytes::ZERO });
    let mut free_from = Bytes::ZERO;
    let mut gaps = Vec::new();
    for slice in there {
        if slice.offset > free_from {
            gaps.push(Taken {
                slice: Slice { allocation: arena, offset: free_from, size: slice.offset - free_from },
                live: LiveRange { start: time, end: time + 1 },
                by: Position { instruction, index: ShapeIndex::default() },
            });
        }
        free_from = free_from.max(slice.end());
    }
    gaps
}

/// How the buffers of an arena come and go; none where it has none, which XProf would refuse.
fn trace(planned: &Planned, taken: &[Taken], arena: AllocationId) -> Option<HeapTrace> {
    // Values that end come before values that start.
    let mut events: Vec<(Time, bool, usize)> = Vec::new();
    for (buffer, taken) in taken.iter().enumerate().filter(|(_, taken)| taken.slice.allocation == arena) {
        events.push((taken.live.start, true, buffer));
        events.push((taken.live.end, false, buffer));
    }
    events.sort_unstable();
    let line = &planned.facts.line;
    let last = line.instructions.len().checked_sub(1)?;
    let events: Vec<HeapEvent> = events
        .into_iter()
        .map(|(time, allocates, buffer)| HeapEvent {
            allocates,
            buffer,
            at: line.instructions[(time as usize).min(last)],
        })
        .collect();
    (!events.is_empty()).then_some(HeapTrace { allocation: arena.index(), events })
}
