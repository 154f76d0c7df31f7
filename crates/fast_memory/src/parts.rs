//! Parts: kernels that read only a slice of an array need only the slice in fast memory.
//!
//! Loops over layers and over time steps read one slice of a large array per iteration, inside of whatever kernels need
//! it. Each of them reads it from main memory, and waits for it; one copy of the slice serves them all, and when it starts
//! earlier, none waits. Where the slice is needed soon after the iteration begins, the copy starts in the iteration
//! before, and the loop carries its result: after the last use of the one before, or, with a second buffer that takes
//! over what was brought, after the first. So one is read while the other is filled.
//!
//! ```text
//!   body(i, stack, a)                         body(i, stack, a, slice)            slice = stack[i], brought before
//!     b = fusion(stack, i, a)  waits            b = fusion(slice, a)
//!     c = dot(b, ..)           computes         start = dynamic-slice-start(stack, i + 1)
//!                                               c = dot(b, ..)                    hides the copy
//!     return (i + 1, stack, c)                  return (i + 1, stack, c, dynamic-slice-done(start))
//! ```
//!
//! A part is a candidate of its own. Its uses are then none of the array's, which stays in main memory as far as they are
//! concerned; so parts are only looked for of arrays that would not be in fast memory otherwise.
//!
//! Transfers move whole tiles: a slice counts as a part when it cuts only dimensions that tiles do not span. The copy in
//! the last iteration brings what nobody reads, and is paid for.

use cranelift_entity::EntitySet;
use indexmap::IndexMap;
use memplan_analysis::{
    Costs, Facts, Iteration, LiveRange, ScalarScope, SlicedOperand, Time, TupleLoop, ValueId, ValueKind,
};
use memplan_ir::{ComputationId, InstructionId, Module, Shape, ShapeId, Use, Users};
use memplan_memory::Target;
use rustc_hash::{FxBuildHasher, FxHashMap, FxHashSet};
use smallvec::{SmallVec, smallvec};

use super::candidates::is_kernel;
use super::classes::Classes;
use super::idle::IdleTime;
use super::model::{Candidate, Carried, Event, Start, View};
use super::options::FastMemoryOptions;
use super::worth::Worth;

/// The parts of a program, and what is no longer to be looked at.
#[derive(Default)]
pub(super) struct Parts {
    pub(super) candidates: Vec<Candidate>,
    /// What they are parts of.
    pub(super) values: EntitySet<ValueId>,
    /// The operands that they serve.
    pub(super) uses: FxHashSet<Use>,
}

/// What two kernels have in common that read the same part.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Key {
    value: ValueId,
    computation: ComputationId,
    /// Of the array, and of the slice.
    shapes: [ShapeId; 2],
    /// Where a static slice begins.
    starts: SmallVec<[i64; 4]>,
    /// Classes of the scalars that say where a dynamic one does.
    offsets: SmallVec<[u32; 4]>,
}

/// Looks for parts.
pub(super) struct Finder<'a> {
    pub(super) module: &'a Module,
    pub(super) facts: &'a Facts,
    pub(super) costs: &'a Costs,
    pub(super) target: &'a Target,
    pub(super) options: &'a FastMemoryOptions,
    pub(super) idle: &'a IdleTime<'a>,
    pub(super) users: &'a Users,
    pub(super) worth: &'a Worth<'a>,
}

impl Finder<'_> {
    /// Finds the parts of all values but those of `whole` that save something when everything is as it should be.
    /// Close to linear in operands.
    pub(super) fn find(&self, whole: &EntitySet<ValueId>) -> Parts {
        let mut parts = Parts::default();
        let mut ways = Ways { find: self, queued: FxHashMap::default() };
        for (key, uses) in self.uses(whole) {
            let cut = SlicedOperand::of(self.module, self.users, uses[0]).expect("it was cut before");
            let Some(candidate) = ways.candidate(&key, &uses, &cut) else { continue };
            parts.candidates.push(candidate);
            parts.values.insert(key.value);
            parts.uses.extend(uses);
        }
        parts
    }

    /// Operands of which kernels read the same part, in the order of time.
    fn uses(&self, whole: &EntitySet<ValueId>) -> IndexMap<Key, Vec<Use>, FxBuildHasher> {
        let (module, facts) = (self.module, self.facts);
        let mut classes = Classes::default();
        let mut uses: IndexMap<Key, Vec<Use>, FxBuildHasher> = IndexMap::default();
        for &id in &facts.line.instructions {
            let instruction = &module.instructions[id];
            if !is_kernel(&instruction.op) {
                continue;
            }
            let in_place = facts.in_place.must_alias(module, id);
            for (k, &operand) in instruction.operands.iter().enumerate() {
                let it = Use { user: id, operand: k as u32 };
                let Some(value) = facts.flow.value_of(operand).filter(|&value| !whole.contains(value)) else {
                    continue;
                };
                let Some(cut) = SlicedOperand::of(module, self.users, it) else { continue };
                let scope = ScalarScope { facts, kernel: id, around: None };
                let offsets = cut.offsets(module);
                let is_overwritten = in_place.iter().any(|pair| pair.operand == it.operand);
                if is_overwritten
                    || scope
                        .sources(
                            module,
                            offsets,
                            Iteration::AtKernel,
                            self.options.transfers.offset_operations,
                        )
                        .is_none()
                {
                    continue;
                }
                let offsets = offsets.iter().map(|&offset| classes.of(module, scope, offset));
                let key = Key {
                    value,
                    computation: instruction.parent,
                    shapes: [instruction.operands[k], cut.slice].map(|id| module.instructions[id].shape),
                    starts: cut.starts(module),
                    offsets: offsets.collect(),
                };
                uses.entry(key).or_default().push(it);
            }
        }
        uses
    }
}

/// Makes candidates of parts, one after the other.
struct Ways<'f, 'a> {
    find: &'f Finder<'a>,
    /// Bytes of parts that were found so far: for a kernel, and for the next iteration of a loop, those before the root.
    /// Transfers take turns, so each needs the time of those before it too.
    queued: FxHashMap<InstructionId, f64>,
}

impl Ways<'_, '_> {
    fn candidate(&mut self, key: &Key, uses: &[Use], cut: &SlicedOperand) -> Option<Candidate> {
        let find = self.find;
        let bytes = find.target.size_of(&Shape::Array(cut.array.clone())).0;
        let fetch = find.costs.frequency(key.computation) * bytes as f64;
        let main: f64 = uses.iter().map(|it| find.worth.of_operand(it.user, it.operand)).sum();
        if !(find.options.transfers.smallest_slice..=find.options.capacity).contains(&bytes) || main <= fetch
        {
            return None;
        }
        let mut events: Vec<Event> = Vec::new();
        for &it in uses {
            let time = find.facts.line.time(it.user);
            let cost = find.worth.of_operand(it.user, it.operand);
            match events.last_mut() {
                Some(last) if last.range.start == time => {
                    last.main += cost;
                    last.uses.push(it);
                }
                _ => events.push(Event::new(LiveRange { start: time, end: time + 1 }, cost, Some(0.0), it)),
            }
        }
        let queued = self.queue(uses[0].user, bytes);
        for event in &mut events {
            let user = event.uses[0].user;
            let scope = ScalarScope { facts: find.facts, kernel: user, around: None };
            let cut = SlicedOperand::of(find.module, find.users, event.uses[0]).expect("it was cut before");
            let earliest = self.earliest(key.value, key.computation, &cut, scope, Iteration::AtKernel)?;
            event.start = find.idle.fetch_start(user, earliest, queued);
            event.latest = find.idle.latest_start(user, event.start);
        }
        let carried = self.carried(key, &events, cut, bytes);
        let wait = find.options.time_weight * fetch;
        Some(Candidate {
            values: smallvec![key.value],
            is_part: true,
            bytes,
            whole: None,
            write: 0.0,
            room: 0.0,
            life: Vec::new(),
            evicted: None,
            carried,
            views: vec![View { value: key.value, computation: key.computation, fetch, wait, events }],
        })
    }

    /// The part is brought in the iteration before: for a dynamic slice of an array that the loop does not change.
    fn carried(
        &mut self,
        key: &Key,
        events: &[Event],
        cut: &SlicedOperand,
        bytes: u64,
    ) -> SmallVec<[Carried; 2]> {
        let Finder { module, facts, users, .. } = *self.find;
        let mut ways = SmallVec::new();
        let first = events[0].uses[0];
        let shown = module.instructions[first.user].operands[first.operand as usize];
        let Some(around) = TupleLoop::around(module, &facts.graph, users, key.computation) else {
            return ways;
        };
        let Some(element) = around.element(module, shown) else { return ways };
        let given = module.instructions[around.init].operands[element as usize];
        if facts.flow.value_of(given) != Some(key.value) || cut.offsets(module).is_empty() {
            return ways;
        }
        let queued = self.queue(around.root, bytes);
        let used = LiveRange { start: events[0].range.start, end: events[events.len() - 1].range.end };
        ways.extend(self.carried_around(key, first, cut, &around, (used, false), (bytes, queued)));
        if events.len() > 1 {
            ways.extend(self.carried_around(key, first, cut, &around, (used, true), (bytes, queued)));
        }
        ways
    }

    fn carried_around(
        &self,
        key: &Key,
        first: Use,
        cut: &SlicedOperand,
        around: &TupleLoop,
        (used, rotates): (LiveRange, bool),
        (bytes, queued): (u64, f64),
    ) -> Option<Carried> {
        let Finder { module, facts, idle, .. } = *self.find;
        let free = if rotates { used.start + 1 } else { used.end };
        let next = idle.fetch_start(around.root, free, queued);
        let scope = ScalarScope { facts, kernel: first.user, around: Some((around, next.time)) };
        scope.sources(
            module,
            cut.offsets(module),
            Iteration::Next,
            self.find.options.transfers.offset_operations,
        )?;
        let outer = module.instructions[around.id].parent;
        let earliest = self.earliest(key.value, outer, cut, scope, Iteration::First)?;
        let first = idle.fetch_start(around.init, earliest, bytes as f64);
        let mut cost = self.cost(key.computation, bytes, next) + self.cost(outer, bytes, first);
        if rotates {
            cost += self.find.worth.of_handing_on(key.computation, idle.fast_space(), bytes as f64);
        }
        let end = facts.line.time(around.id) + 1;
        let busy = match rotates {
            false => [LiveRange { start: first.time, end: used.end }, LiveRange { start: next.time, end }],
            true => [LiveRange { start: first.time, end }, used],
        };
        Some(Carried { first, next, rotates, cost, busy })
    }

    /// From when on a part of a value can be brought in a computation.
    fn earliest(
        &self,
        value: ValueId,
        computation: ComputationId,
        cut: &SlicedOperand,
        scope: ScalarScope<'_>,
        iteration: Iteration,
    ) -> Option<Time> {
        let Finder { module, facts, .. } = *self.find;
        let sources = scope.sources(
            module,
            cut.offsets(module),
            iteration,
            self.find.options.transfers.offset_operations,
        )?;
        let made = sources.iter().map(|&id| facts.line.time(id) + 1).max();
        Some(made.unwrap_or(0).max(exists_from(module, facts, value, computation)))
    }

    /// What main memory moves for a transfer in a computation, and what the cores wait for it.
    fn cost(&self, computation: ComputationId, bytes: u64, start: Start) -> f64 {
        let moved = self.find.costs.frequency(computation) * bytes as f64;
        moved * (1.0 + self.find.options.time_weight * start.exposed)
    }

    fn queue(&mut self, user: InstructionId, bytes: u64) -> f64 {
        let queued = self.queued.entry(user).or_default();
        *queued += bytes as f64;
        *queued
    }
}

/// The first instant at which a computation can read a value.
pub(super) fn exists_from(
    module: &Module,
    facts: &Facts,
    value: ValueId,
    computation: ComputationId,
) -> Time {
    let definition = &facts.flow.values[value];
    let id = facts.flow.positions.instruction(definition.definition);
    match definition.kind {
        ValueKind::Written | ValueKind::ExitPhi if module.instructions[id].parent == computation => {
            facts.line.time(id) + 1
        }
        _ => facts.line.range(computation).0,
    }
}
