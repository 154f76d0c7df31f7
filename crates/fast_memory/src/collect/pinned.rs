//! Values in fast memory from the moment they are written.

use memplan_analysis::{LiveRange, Time, ValueId, ValueKind, union_of_ranges};
use memplan_ir::{Op, Use};
use rustc_hash::FxHashMap;

use super::values::starts_in_main_memory;
use super::{Collector, Context};
use crate::candidate::{Evicted, EvictedResult, Pinned, PrefetchedInput, View};

impl Collector<'_> {
    /// Requirements for keeping values in fast memory over their whole live ranges; `None` if impossible.
    pub(super) fn pinned(
        self,
        values: &[ValueId],
        bytes: u64,
        views: &FxHashMap<ValueId, Vec<View>>,
    ) -> Option<Pinned> {
        let Context { module, facts, costs, idle, .. } = self.context;
        let mut pinned = Pinned {
            values: Vec::new(),
            busy: Vec::new(),
            cost: 0.0,
            prefetched: Vec::new(),
            evicted: Vec::new(),
        };
        if values.len() == 1
            && (starts_in_main_memory(self.context, values[0]) || facts.live.is_live_out(values[0]))
        {
            return None;
        }
        for &value in values {
            let range = facts.live.of(value);
            if starts_in_main_memory(self.context, value) {
                // It remains in main memory, and a copy of it flows into the others.
                let uses = self.uses.merging.get(&value).cloned().unwrap_or_default();
                if uses.is_empty() || self.uses.unsplittable.contains(value) {
                    return None;
                }
                for it in uses {
                    let (begin, end) = self.range_of(it);
                    let start = idle.fetch_start(it.user, range.start, bytes as f64);
                    debug_assert!(start.time <= begin);
                    pinned.busy.push(LiveRange { start: start.time, end });
                    pinned.cost += costs.frequency(module.instructions[it.user].parent) * bytes as f64;
                    pinned.prefetched.push(PrefetchedInput { value, it, start });
                }
                pinned.cost += views.get(&value).into_iter().flatten().map(View::main_cost).sum::<f64>();
                continue;
            }
            if self.uses.needs_main.contains(value) {
                return None;
            }
            let mut events = views.get(&value).into_iter().flatten().flat_map(|view| &view.events);
            if !events.all(|event| event.is_near) {
                return None;
            }
            pinned.values.push(value);
            if facts.live.is_live_out(value) {
                let definition = facts.flow.positions.instruction(facts.flow.values[value].definition);
                if module.instructions[definition].parent != module.entry {
                    return None;
                }
                let (done_before, mut end) = idle.eviction_end(definition, bytes as f64);
                let root = module.entry_computation().root;
                for event in views.get(&value).into_iter().flatten().flat_map(|view| &view.events) {
                    if event.uses.iter().all(|it| it.user != root) {
                        end = end.max(event.range.end);
                    }
                }
                let uses = self.uses.returned.get(&value)?.clone();
                pinned.evicted.push(EvictedResult { value, uses, done_before });
                pinned.cost += bytes as f64;
                pinned.busy.push(LiveRange { start: range.start, end });
                continue;
            }
            pinned.busy.push(range);
        }
        pinned.busy = union_of_ranges(pinned.busy);
        Some(pinned)
    }

    /// When an operand is needed, and until when.
    fn range_of(self, it: Use) -> (Time, Time) {
        let Context { module, facts, users, .. } = self.context;
        let line = &facts.line;
        match users.of(it.user) {
            [user] if module.instructions[it.user].op == Op::Tuple => {
                (line.begin(*user).min(line.time(it.user)), line.time(*user) + 1)
            }
            _ => (line.begin(it.user), line.time(it.user) + 1),
        }
    }

    /// Requirements for writing a value to fast memory and copying it out; `None` if impossible.
    pub(super) fn evicted(self, value: ValueId, bytes: u64) -> Option<Evicted> {
        let Context { module, facts, costs, idle, .. } = self.context;
        let flow = &facts.flow;
        let definition = flow.positions.instruction(flow.values[value].definition);
        if flow.values[value].kind != ValueKind::Written
            || starts_in_main_memory(self.context, value)
            || self.uses.needs_main.contains(value)
            || self.uses.unsplittable.contains(value)
            || module.instructions[definition].op.is_allocation()
        {
            return None;
        }
        let parent = module.instructions[definition].parent;
        let start = facts.line.time(definition);
        let (done_before, end) = idle.eviction_end(definition, bytes as f64);
        let cost = costs.frequency(parent) * bytes as f64;
        Some(Evicted { cost, busy: LiveRange { start, end }, done_before })
    }
}
