//! Converts a compiler's own buffer assignment to a plan.

use memplan_analysis::ValueId;
use memplan_driver::Estimate;
use memplan_hlo::proto::{AllocationRole, BufferAllocation, BufferAssignment};
use memplan_ir::Shape;
use memplan_memory::{
    Alignment, Allocation, AllocationId, AllocationKind, Bytes, MemoryPlan, MemorySpaceId, Slice, Totals,
};
use memplan_plan_hlo::peak_report;
use rustc_hash::FxHashMap;

/// A compiled program with the places that its compiler gave to its values, instead of those that it is expected to give
/// them. `None` where the assignment has none of its values: it is of another program. Close to linear in both.
pub fn as_assigned(compiled: Estimate, assignment: &BufferAssignment) -> Option<Estimate> {
    let mut slices: Vec<(ValueId, Slice)> = slices(&compiled, assignment).into_iter().collect();
    if slices.is_empty() {
        return None;
    }
    slices.sort_unstable_by_key(|(value, _)| *value);
    let flow = &compiled.planned.facts.flow;
    let at = |(value, slice)| (flow.positions.position(flow.values[value].definition), slice);
    let mut plan = MemoryPlan {
        allocations: assignment.allocations.iter().map(allocation).collect(),
        slices: slices.into_iter().map(at).collect(),
        scratch: Default::default(),
        ..compiled.planned.plan.clone()
    };
    let sum = |counts: &dyn Fn(&Allocation) -> bool| {
        let counted = plan.allocations.values().filter(|allocation| counts(allocation));
        counted.map(|allocation| allocation.size).fold(Bytes::ZERO, Bytes::saturating_add)
    };
    let is_argument = |it: &Allocation| matches!(it.kind, AllocationKind::Argument { .. });
    plan.totals = Totals {
        arguments: sum(&is_argument),
        outputs: sum(&|it| it.live_out),
        aliased: sum(&|it| it.live_out && is_argument(it)),
        constants: sum(&|it| it.kind == AllocationKind::Constant),
        temp: sum(&|it| it.kind == AllocationKind::Temp),
        total: sum(&|_| true),
        ..plan.totals
    };
    let totals = plan.totals;
    let total = totals.total.saturating_sub(totals.constants);
    let peak = peak_report(&compiled.module, &compiled.planned.facts, &plan);
    let mut found = Estimate { totals, total, peak, ..compiled };
    found.planned.plan = plan;
    Some(found)
}

fn allocation(it: &BufferAllocation) -> Allocation {
    Allocation {
        kind: match &it.role {
            AllocationRole::Parameter { number, index } => {
                AllocationKind::Argument { parameter: *number, index: index.clone() }
            }
            AllocationRole::Constant => AllocationKind::Constant,
            AllocationRole::Other if it.live_out => AllocationKind::Output,
            AllocationRole::Other | AllocationRole::ThreadLocal => AllocationKind::Temp,
        },
        space: MemorySpaceId(it.space),
        // What each thread has for itself is a part of its stack.
        size: if it.role == AllocationRole::ThreadLocal { Bytes::ZERO } else { Bytes(it.size) },
        alignment: Alignment::ONE,
        live_out: it.live_out,
    }
}

/// The place of each array. Of the values that share a buffer, the compiler names one.
fn slices(compiled: &Estimate, assignment: &BufferAssignment) -> FxHashMap<ValueId, Slice> {
    let (module, facts) = (&compiled.module, &compiled.planned.facts);
    let mut slices: FxHashMap<ValueId, Slice> = FxHashMap::default();
    for buffer in &assignment.buffers {
        let (at, of) = (&buffer.defined_at, &assignment.allocations[buffer.allocation]);
        let is_array = matches!(module.shape(at.instruction).subshape(&at.index), Some(Shape::Array(_)));
        let is_within = buffer.offset.checked_add(buffer.size).is_some_and(|end| end <= of.size);
        let is_placed = is_array && is_within && of.role != AllocationRole::ThreadLocal;
        if let Some(value) = facts.flow.find(at.instruction, &at.index).filter(|_| is_placed) {
            let allocation = u32::try_from(buffer.allocation).expect("files have fewer lines");
            slices.insert(
                value,
                Slice {
                    allocation: AllocationId::from_u32(allocation),
                    offset: Bytes(buffer.offset),
                    size: Bytes(buffer.size),
                },
            );
        }
    }
    for values in facts.buffers.values.values() {
        let Some(slice) = values.iter().find_map(|value| slices.get(value).copied()) else { continue };
        for &value in values {
            slices.entry(value).or_insert(slice);
        }
    }
    slices
}
