//! Parts: a kernel that reads only a slice of an array needs only the slice in fast memory.
//!
//! Loops over layers and over time steps read one slice of a large array per iteration, inside of whatever kernel needs
//! it. Reading it takes the kernel as long as main memory takes; a copy of the slice that starts earlier leaves the
//! kernel its own time. Where the slice is needed soon after the iteration begins, the copy starts in the iteration
//! before and the loop carries its result, so that two buffers, or two halves of one buffer's life, rotate: one is read
//! while the other is filled.
//!
//! ```text
//!   body(i, stack, a)                         body(i, stack, a, slice)            slice = stack[i], brought before
//!     b = fusion(stack, i, a)  waits            b = fusion(slice, a)
//!     c = dot(b, ..)           computes         start = dynamic-slice-start(stack, i + 1)
//!                                               c = dot(b, ..)                    hides the copy
//!     return (i + 1, stack, c)                  return (i + 1, stack, c, dynamic-slice-done(start))
//! ```
//!
//! Transfers move whole tiles: a slice counts as a part when it cuts only dimensions that tiles do not span. The copy in
//! the last iteration brings what nobody reads, and is paid for.

use memplan_analysis::{Costs, Facts, LiveRange, Time, ValueId, ValueKind};
use memplan_ir::{ArrayShape, ComputationId, InstructionId, Module, Op, Shape, Users};
use memplan_memory::Target;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::choice::Busy;
use super::idle::IdleTime;
use super::model::{Start, Use};
use super::options::Options;
use super::scalars::{Loop, Scope, When};

/// A part of a value that a kernel reads, and the ways to bring it.
pub(super) struct Part {
    /// The operand that only this part is read of.
    pub(super) it: Use,
    pub(super) bytes: u64,
    /// What it costs to read it from main memory, which is a part of what the event costs there.
    pub(super) main: f64,
    /// In order of preference.
    pub(super) ways: SmallVec<[Way; 2]>,
}

/// A way to bring a part.
pub(super) struct Way {
    pub(super) arrival: Arrival,
    /// What main memory moves for it, and what the cores wait for.
    pub(super) cost: f64,
    /// When it is in fast memory.
    pub(super) busy: SmallVec<[LiveRange; 2]>,
}

/// When a part is brought.
#[derive(Clone, Copy, Debug)]
pub(super) enum Arrival {
    /// In the computation that needs it.
    InTime(Start),
    /// For the first iteration before the loop, for every other one in the iteration before.
    Carried { first: Start, next: Start },
}

impl Part {
    /// What fast memory holds when the part is brought one way.
    pub(super) fn busy<'a>(&'a self, way: &'a Way) -> impl Iterator<Item = Busy> + 'a {
        way.busy.iter().map(|&range| Busy { range, bytes: self.bytes, is_whole: false })
    }
}

/// Smaller parts are not worth a transfer of their own.
const LEAST_BYTES: u64 = 4096;

/// Finds parts, in the order of time.
pub(super) struct Parts<'a> {
    module: &'a Module,
    facts: &'a Facts,
    costs: &'a Costs,
    target: &'a Target,
    options: &'a Options,
    idle: &'a IdleTime<'a>,
    users: &'a Users,
    loops: FxHashMap<ComputationId, Option<Loop>>,
    /// Bytes of parts that were found so far: for a kernel, and for the next iteration of a loop, those before the root.
    /// Transfers take turns, so each needs the time of those before it too.
    queued: FxHashMap<InstructionId, f64>,
}

impl<'a> Parts<'a> {
    pub(super) fn new(
        module: &'a Module,
        facts: &'a Facts,
        costs: &'a Costs,
        target: &'a Target,
        options: &'a Options,
        idle: &'a IdleTime<'a>,
        users: &'a Users,
    ) -> Parts<'a> {
        let (loops, queued) = (FxHashMap::default(), FxHashMap::default());
        Parts { module, facts, costs, target, options, idle, users, loops, queued }
    }

    /// The part of a value that a kernel reads by an operand, where it costs `main` to read it from main memory, and
    /// the ways to bring it that cost less.
    pub(super) fn find(&mut self, it: Use, value: ValueId, main: f64) -> Option<Part> {
        let cut = Cut::of(self.module, self.users, it)?;
        let bytes = self.target.size_of(&Shape::Array(cut.array.clone())).0;
        let moved = self.costs.frequency(self.module.instructions[it.user].parent) * bytes as f64;
        if !(LEAST_BYTES..=self.options.capacity).contains(&bytes) || main <= moved {
            return None;
        }
        let in_time = self.in_time(it, value, &cut, bytes);
        let carried = self.carried(it, value, &cut, bytes);
        let mut part = Part { it, bytes, main, ways: SmallVec::new() };
        for way in [in_time, carried].into_iter().flatten() {
            if part.ways.last().map_or(main, |best| best.cost) > way.cost {
                part.ways.push(way);
            }
        }
        (!part.ways.is_empty()).then_some(part)
    }

    /// The part is brought in the computation that needs it.
    fn in_time(&mut self, it: Use, value: ValueId, cut: &Cut, bytes: u64) -> Option<Way> {
        let scope = Scope { facts: self.facts, kernel: it.user, around: None };
        let body = self.module.instructions[it.user].parent;
        let earliest = self.earliest(value, body, cut, scope, When::Now)?;
        let queued = self.queue(it.user, bytes);
        let start = self.idle.fetch_start(it.user, earliest, queued);
        let end = self.facts.line.time(it.user) + 1;
        Some(Way {
            arrival: Arrival::InTime(start),
            cost: self.cost(body, bytes, start),
            busy: SmallVec::from_iter([LiveRange { start: start.time, end }]),
        })
    }

    /// The part is brought in the iteration before: for a dynamic slice of an array that the loop does not change.
    fn carried(&mut self, it: Use, value: ValueId, cut: &Cut, bytes: u64) -> Option<Way> {
        let (module, facts) = (self.module, self.facts);
        let body = module.instructions[it.user].parent;
        let around = self.loop_around(body)?;
        let shown = module.instructions[it.user].operands[it.operand as usize];
        let element = around.element(module, shown)?;
        let given = module.instructions[around.init].operands[element as usize];
        if facts.flow.value_of(given) != Some(value) || cut.offsets(module).is_empty() {
            return None;
        }
        let read = facts.line.time(it.user) + 1;
        let queued = self.queue(around.root, bytes);
        let next = self.idle.fetch_start(around.root, read, queued);
        let scope = Scope { facts, kernel: it.user, around: Some((&around, next.time)) };
        scope.sources(module, cut.offsets(module), When::Next)?;
        let outer = module.instructions[around.id].parent;
        let earliest = self.earliest(value, outer, cut, scope, When::First)?;
        let first = self.idle.fetch_start(around.init, earliest, bytes as f64);
        let before = LiveRange { start: first.time, end: read };
        let after = LiveRange { start: next.time, end: facts.line.time(around.id) + 1 };
        Some(Way {
            arrival: Arrival::Carried { first, next },
            cost: self.cost(body, bytes, next) + self.cost(outer, bytes, first),
            busy: SmallVec::from_iter([before, after]),
        })
    }

    /// From when on a part of a value can be brought in a computation.
    fn earliest(
        &self,
        value: ValueId,
        computation: ComputationId,
        cut: &Cut,
        scope: Scope<'_>,
        when: When,
    ) -> Option<Time> {
        let (module, facts) = (self.module, self.facts);
        let sources = scope.sources(module, cut.offsets(module), when)?;
        let made = sources.iter().map(|&id| facts.line.time(id) + 1).max();
        Some(made.unwrap_or(0).max(exists_from(module, facts, value, computation)))
    }

    /// What main memory moves for a transfer in a computation, and what the cores wait for it.
    fn cost(&self, computation: ComputationId, bytes: u64, start: Start) -> f64 {
        let moved = self.costs.frequency(computation) * bytes as f64;
        moved * (1.0 + self.options.time_weight * start.exposed)
    }

    fn queue(&mut self, user: InstructionId, bytes: u64) -> f64 {
        let queued = self.queued.entry(user).or_default();
        *queued += bytes as f64;
        *queued
    }

    fn loop_around(&mut self, body: ComputationId) -> Option<Loop> {
        let (module, graph, users) = (self.module, &self.facts.graph, self.users);
        *self.loops.entry(body).or_insert_with(|| Loop::around(module, graph, users, body))
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

/// How a kernel cuts a part out of an operand.
pub(super) struct Cut {
    /// The `slice` or `dynamic-slice`: the kernel itself, or inside of it.
    pub(super) slice: InstructionId,
    /// The part as it lies in memory.
    pub(super) array: ArrayShape,
}

impl Cut {
    /// The cut by which all of an operand goes that a kernel reads of it; `None` when it reads something else too, or a
    /// part that no transfer moves.
    pub(super) fn of(module: &Module, users: &Users, it: Use) -> Option<Cut> {
        let kernel = &module.instructions[it.user];
        let slice = match kernel.op {
            Op::Fusion(_) => {
                let parameter = module.computations[kernel.called[0]].parameters[it.operand as usize];
                let &[slice] = users.of(parameter) else { return None };
                let reads =
                    module.instructions[slice].operands.iter().filter(|&&operand| operand == parameter);
                (module.instructions[slice].operands[0] == parameter && reads.count() == 1)
                    .then_some(slice)?
            }
            _ => (it.operand == 0).then_some(it.user)?,
        };
        let Shape::Array(source) = module.shape(kernel.operands[it.operand as usize]) else { return None };
        let Shape::Array(result) = module.shape(slice) else { return None };
        let moves_rows = match &module.instructions[slice].op {
            Op::DynamicSlice { .. } => true,
            Op::Slice { dimensions } => dimensions.iter().all(|d| d.stride == 1),
            _ => false,
        };
        let same_order = |a: &ArrayShape, b: &ArrayShape| {
            let order = |shape: &ArrayShape| {
                shape.layout.as_ref().map(|l| (l.minor_to_major.clone(), l.tiles.clone()))
            };
            order(a) == order(b)
        };
        let array = ArrayShape { dimensions: result.dimensions.clone(), ..source.clone() };
        (moves_rows && same_order(source, result) && is_of_whole_tiles(source, &array))
            .then_some(Cut { slice, array })
    }

    /// The scalars that say where a dynamic slice begins.
    pub(super) fn offsets<'m>(&self, module: &'m Module) -> &'m [InstructionId] {
        &module.instructions[self.slice].operands[1..]
    }
}

/// Whether a part is less than its source, and cuts none of the dimensions that a tile spans.
fn is_of_whole_tiles(source: &ArrayShape, part: &ArrayShape) -> bool {
    let Some(layout) = &source.layout else { return false };
    let spanned = layout.tiles.first().map_or(1, |tile| tile.dimensions.len());
    source.dimensions != part.dimensions
        && source.element_type == part.element_type
        && !source.is_dynamic()
        && layout
            .minor_to_major
            .iter()
            .take(spanned)
            .all(|&d| source.dimensions[d as usize] == part.dimensions[d as usize])
}
