//! The views of values in computations.

use cranelift_entity::SecondaryMap;
use memplan_analysis::{ValueId, ValueKind};
use memplan_ir::ComputationId;
use rustc_hash::FxHashMap;

use super::values::bytes_of;
use super::{Context, Uses};
use crate::candidate::{Event, View};
use crate::slices::exists_from;

/// The views of every value, inner ones inside of the events that pass the value in. Values that come into a
/// computation by no operand are marked as unsplittable.
pub(super) fn views(context: Context<'_>, uses: &mut Uses) -> FxHashMap<ValueId, Vec<View>> {
    let Context { module, facts, .. } = context;
    let mut lists: FxHashMap<(ValueId, ComputationId), Vec<Event>> = std::mem::take(&mut uses.events);
    let mut keys: Vec<(ValueId, ComputationId)> = lists.keys().copied().collect();
    let mut depth: SecondaryMap<ComputationId, u32> = SecondaryMap::new();
    for &computation in facts.graph.sequential().iter().rev() {
        let caller = facts.graph.caller(computation);
        depth[computation] = caller.map_or(0, |id| depth[module.instructions[id].parent] + 1);
    }
    // The innermost first, so that a view is whole when it is put inside.
    keys.sort_unstable_by_key(|&(value, c)| (value, std::cmp::Reverse(depth[c]), c));
    let mut views: FxHashMap<ValueId, Vec<View>> = FxHashMap::default();
    // Found once for each value, which many computations may see.
    let mut sizes: FxHashMap<ValueId, Option<u64>> = FxHashMap::default();
    for (value, computation) in keys {
        let Some(bytes) = *sizes.entry(value).or_insert_with(|| bytes_of(context, value)) else { continue };
        let events = lists.remove(&(value, computation)).expect("each key is taken once");
        let view = view(context, value, computation, events, bytes);
        let definition = facts.flow.positions.instruction(facts.flow.values[value].definition);
        let home = module.instructions[definition].parent;
        // A loop's state is defined in its body and its condition.
        let is_home = computation == home
            || facts.flow.values[value].kind == ValueKind::LoopPhi && {
                let caller = facts.graph.caller(home);
                caller.is_some() && facts.graph.caller(computation) == caller
            };
        if is_home {
            views.entry(value).or_default().push(view);
            continue;
        }
        let around = facts.graph.caller(computation).and_then(|caller| {
            let end = facts.line.time(caller) + 1;
            let outer = lists.get_mut(&(value, module.instructions[caller].parent))?;
            outer.iter_mut().find(|event| event.range.end == end)
        });
        match around {
            Some(event) => event.inside.push(view),
            // It comes in by no operand.
            None => {
                uses.unsplittable.insert(value);
            }
        }
    }
    views
}

/// The view of a value in a computation.
fn view(
    context: Context<'_>,
    value: ValueId,
    computation: ComputationId,
    mut events: Vec<Event>,
    bytes: u64,
) -> View {
    let Context { module, facts, costs, options, idle, .. } = context;
    let earliest = exists_from(module, facts, value, computation);
    let mut last_used = earliest;
    for event in &mut events {
        event.is_near = idle.may_stay(last_used, event.range.start, computation);
        last_used = event.range.end;
        event.start = idle.fetch_start(event.uses[0].user, earliest, bytes as f64);
        event.latest = idle.latest_start(event.uses[0].user, event.start);
        // A use inside that needs main memory keeps the value there.
        if event.inside.iter().any(|view| view.events.iter().any(|e| e.fast.is_none())) {
            event.fast = None;
        }
    }
    let prefetch_cost = costs.frequency(computation) * bytes as f64;
    let wait_cost = options.time_weight * prefetch_cost;
    View { value, computation, prefetch_cost, wait_cost, events }
}
