//! Slices as candidates: which uses read them in fast memory, and when copies of them start.

use memplan_analysis::{Iteration, LiveRange, ScalarScope, SlicedOperand, Time, TupleLoop, ValueId};
use memplan_ir::{ComputationId, InstructionId, Shape, Use};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::{Key, exists_from};
use crate::candidate::{CopyStart, Event, Pipelined, SliceCandidate, View};
use crate::collect::Context;

/// Makes candidates of slices, one after the other.
pub(super) struct Builder<'a> {
    context: Context<'a>,
    /// Bytes of the slices that were found so far: for each first user, and for the next iteration of a loop, those
    /// before the root. Transfers take turns, so each needs the time of those before it too.
    queued: FxHashMap<InstructionId, f64>,
}

impl<'a> Builder<'a> {
    pub(super) fn new(context: Context<'a>) -> Builder<'a> {
        Builder { context, queued: FxHashMap::default() }
    }

    /// The candidate for the slice that some uses read; `None` when a copy of it saves nothing.
    pub(super) fn candidate(
        &mut self,
        key: &Key,
        uses: &[Use],
        sliced: &SlicedOperand,
    ) -> Option<SliceCandidate> {
        let Context { module, costs, target, options, users, benefit, .. } = self.context;
        let bytes = target.size_of(&Shape::Array(sliced.array.clone())).0;
        let prefetch_cost = costs.frequency(key.computation) * bytes as f64;
        let main: f64 = uses.iter().map(|it| benefit.of_operand(it.user, it.operand)).sum();
        let is_worthwhile = options.transfers.smallest_slice..=options.capacity;
        if !is_worthwhile.contains(&bytes) || main <= prefetch_cost {
            return None;
        }
        let mut events = self.events(uses);
        let queued = self.queue(uses[0].user, bytes);
        for event in &mut events {
            let it = event.uses[0];
            let scope = ScalarScope { facts: self.context.facts, kernel: it.user, around: None };
            let sliced = SlicedOperand::of(module, users, it).expect("it was sliced before");
            let earliest = self.earliest(key.value, key.computation, &sliced, scope, Iteration::AtKernel)?;
            event.start = self.context.idle.fetch_start(it.user, earliest, queued);
            event.latest = self.context.idle.latest_start(it.user, event.start);
        }
        let pipelined = self.pipelined(key, &events, sliced, bytes);
        let wait_cost = options.time_weight * prefetch_cost;
        let view = View { value: key.value, computation: key.computation, prefetch_cost, wait_cost, events };
        Some(SliceCandidate { bytes, view, pipelined })
    }

    fn events(&self, uses: &[Use]) -> Vec<Event> {
        let Context { facts, benefit, .. } = self.context;
        let mut events: Vec<Event> = Vec::new();
        for &it in uses {
            let time = facts.line.time(it.user);
            let cost = benefit.of_operand(it.user, it.operand);
            match events.last_mut() {
                Some(last) if last.range.start == time => {
                    last.main += cost;
                    last.uses.push(it);
                }
                _ => events.push(Event::new(LiveRange { start: time, end: time + 1 }, cost, Some(0.0), it)),
            }
        }
        events
    }

    /// The ways to copy a slice in the iteration before: for a dynamic slice of an array that the loop does not change.
    fn pipelined(
        &mut self,
        key: &Key,
        events: &[Event],
        sliced: &SlicedOperand,
        bytes: u64,
    ) -> SmallVec<[Pipelined; 2]> {
        let Context { module, facts, users, .. } = self.context;
        let mut ways = SmallVec::new();
        let first = events[0].uses[0];
        let shown = module.instructions[first.user].operands[first.operand as usize];
        let Some(around) = TupleLoop::around(module, &facts.graph, users, key.computation) else {
            return ways;
        };
        let Some(element) = around.element(module, shown) else { return ways };
        let given = module.instructions[around.init].operands[element as usize];
        if facts.flow.value_of(given) != Some(key.value) || sliced.offsets(module).is_empty() {
            return ways;
        }
        let queued = self.queue(around.root, bytes);
        let used = LiveRange { start: events[0].range.start, end: events[events.len() - 1].range.end };
        let slice = Ahead { key, first, sliced, around: &around, used, bytes, queued };
        ways.extend(self.one_iteration_ahead(&slice, false));
        if events.len() > 1 {
            ways.extend(self.one_iteration_ahead(&slice, true));
        }
        ways
    }

    fn one_iteration_ahead(&self, slice: &Ahead<'_>, double_buffered: bool) -> Option<Pipelined> {
        let Context { module, facts, idle, benefit, options, .. } = self.context;
        let &Ahead { key, sliced, around, used, bytes, queued, .. } = slice;
        let free = if double_buffered { used.start + 1 } else { used.end };
        let next = idle.fetch_start(around.root, free, queued);
        let scope = ScalarScope { facts, kernel: slice.first.user, around: Some((around, next.time)) };
        let limit = options.transfers.offset_operations;
        scope.sources(module, sliced.offsets(module), Iteration::Next, limit)?;
        let outer = module.instructions[around.id].parent;
        let earliest = self.earliest(key.value, outer, sliced, scope, Iteration::First)?;
        let first = idle.fetch_start(around.init, earliest, bytes as f64);
        let mut cost = self.cost(key.computation, bytes, next) + self.cost(outer, bytes, first);
        if double_buffered {
            cost += benefit.of_copy(key.computation, idle.fast_space(), bytes as f64);
        }
        let end = facts.line.time(around.id) + 1;
        let busy = match double_buffered {
            false => [LiveRange { start: first.time, end: used.end }, LiveRange { start: next.time, end }],
            true => [LiveRange { start: first.time, end }, used],
        };
        Some(Pipelined { first, next, double_buffered, cost, busy })
    }

    /// From when on a slice of a value can be copied in a computation.
    fn earliest(
        &self,
        value: ValueId,
        computation: ComputationId,
        sliced: &SlicedOperand,
        scope: ScalarScope<'_>,
        iteration: Iteration,
    ) -> Option<Time> {
        let Context { module, facts, options, .. } = self.context;
        let limit = options.transfers.offset_operations;
        let sources = scope.sources(module, sliced.offsets(module), iteration, limit)?;
        let made = sources.iter().map(|&id| facts.line.time(id) + 1).max();
        Some(made.unwrap_or(0).max(exists_from(module, facts, value, computation)))
    }

    /// The traffic of a copy in a computation, and the cores' wait for it.
    fn cost(&self, computation: ComputationId, bytes: u64, start: CopyStart) -> f64 {
        let moved = self.context.costs.frequency(computation) * bytes as f64;
        moved * (1.0 + self.context.options.time_weight * start.exposed)
    }

    fn queue(&mut self, user: InstructionId, bytes: u64) -> f64 {
        let queued = self.queued.entry(user).or_default();
        *queued += bytes as f64;
        *queued
    }
}

/// A slice that a loop may copy one iteration ahead.
struct Ahead<'a> {
    key: &'a Key,
    /// The operand that reads it first.
    first: Use,
    sliced: &'a SlicedOperand,
    around: &'a TupleLoop,
    /// From the first use to the last, in one iteration.
    used: LiveRange,
    bytes: u64,
    /// Bytes that transfers move before the end of the iteration, this one last.
    queued: f64,
}
