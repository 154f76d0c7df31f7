//! Helpers of these tests: the steps of [`memplan_properties`], and names of places.

use memplan::memory::{AllocationKind, MemoryPlan, Slice, Target};
pub(crate) use memplan_properties::{
    evaluate, explain, plan_and_prove, plan_to_run, prove, run_in_arena, run_passes,
};

/// Compares a text with the snapshot of a name.
#[track_caller]
pub(crate) fn snapshot(name: &str, text: &str) {
    insta::with_settings!({
        snapshot_path => "../snapshots",
        prepend_module_to_snapshot => false,
        omit_expression => true,
    }, {
        insta::assert_snapshot!(name, text);
    });
}

/// `temp +16`.
pub(crate) fn place(plan: &MemoryPlan, target: &Target, slice: &Slice) -> String {
    format!("{} +{}", kind(plan, target, slice), slice.offset.0)
}

/// What case files call the allocation of a slice.
pub(crate) fn kind(plan: &MemoryPlan, target: &Target, slice: &Slice) -> String {
    let allocation = &plan.allocations[slice.allocation];
    match &allocation.kind {
        AllocationKind::Argument { .. } => "argument".into(),
        AllocationKind::Output => "output".into(),
        AllocationKind::Constant => "constant".into(),
        AllocationKind::Temp if allocation.space == target.spaces[0].id => "temp".into(),
        AllocationKind::Temp => {
            let space = target.spaces.iter().find(|space| space.id == allocation.space);
            space.map_or("temp", |space| &space.name).into()
        }
    }
}
