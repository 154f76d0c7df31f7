//! The allocations and frees that a runtime without a plan makes for a program.

use memplan_ir::Module;
use memplan_memory::{AllocationKind, MemorySpaceId};
use memplan_plan_hlo::{Planned, lifetimes};
use memplan_pool::Request;
use memplan_pool::trace::{Lifetime, Trace};

/// The allocations and frees of a plan's values in main memory, in the order of its schedule: arguments exist from the
/// start and are freed after their last use if the caller donated them; results are never freed. Constants belong to
/// the code and are left out.
///
/// Takes time n log n in values.
pub fn trace_of_plan(module: &Module, planned: &Planned) -> Trace {
    let (facts, plan) = (&planned.facts, &planned.plan);
    let is_ours = |allocation| {
        let allocation = &plan.allocations[allocation];
        allocation.space == MemorySpaceId::MAIN && allocation.kind != AllocationKind::Constant
    };
    let request = |bytes, allocation| Request::new(bytes).aligned(plan.allocations[allocation].alignment);
    let end = facts.line.end();
    let values =
        lifetimes(module, facts, plan).into_iter().filter(|l| is_ours(l.slice.allocation)).map(|l| {
            let definition = facts.flow.positions.instruction(facts.flow.values[l.value].definition);
            Lifetime {
                name: &module.instructions[definition].name,
                request: request(l.slice.size, l.slice.allocation),
                start: l.live.start.into(),
                end: (l.live.end < end).then_some(l.live.end.into()),
            }
        });
    let scratch = plan.scratch.iter().flat_map(|(&id, slices)| slices.iter().map(move |slice| (id, slice)));
    let scratch = scratch.filter(|(_, slice)| is_ours(slice.allocation)).map(|(id, slice)| {
        let start = u64::from(facts.line.time(id));
        Lifetime {
            name: &module.instructions[id].name,
            request: request(slice.size, slice.allocation),
            start,
            end: Some(start + 1),
        }
    });
    Trace::of_lifetimes(values.chain(scratch))
}
