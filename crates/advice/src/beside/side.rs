//! One of two plans of a program: when each value is in memory, and which values each operation of the program has
//! become.

use memplan_analysis::{Time, ValueId, folded_operation, operation};
use memplan_driver::Estimate;
use memplan_ir::{ArrayShape, InstructionId, Module, Opcode, Position, Shape, ShapeIndex};
use memplan_memory::{Allocation, AllocationId, AllocationKind, Bytes, HolderEntry, MemorySpaceId, Target};
use memplan_plan_hlo::Lifetime;
use rustc_hash::FxHashMap;

use super::origin::Origin;
use crate::diff::Values;
use crate::explain::Subject;
use crate::holders::Holder;
use crate::words::RECOMPUTED;
use crate::{Words, shape_at};

/// A compiled program with its plan.
pub(super) struct Side<'a> {
    pub(super) subject: Subject<'a>,
    found: &'a Estimate,
    pub(super) values: Values,
    /// The values that are in each lifetime, one after the other or over each other.
    within: Vec<Vec<ValueId>>,
    described: FxHashMap<ValueId, Described>,
    /// Where each kind of values is stored.
    stored: FxHashMap<Kind, Vec<Stored>>,
    /// Values of each kind in other memories.
    elsewhere: FxHashMap<Kind, Vec<ValueId>>,
    pub(super) made: Operations,
    /// Bytes that are live at each instant.
    curve: Vec<u64>,
}

/// Bytes that hold nothing at the peak.
#[derive(Clone, Copy, Debug)]
pub(super) struct Idle {
    /// Of the memory for temporaries.
    pub(super) arena: i128,
    /// Of the memory for arguments and results.
    pub(super) others: i128,
}

/// What a value is.
#[derive(Clone, Debug)]
pub(super) struct Described {
    pub(super) origin: Origin,
    /// The line of the user's program.
    pub(super) source: Option<String>,
    /// As it is compared: with the operation that computes it, and its dimensions in order of size. What is only moved is
    /// a class of its own, and not what else the line makes.
    pub(super) holder: HolderEntry,
}

/// Values of one kind come from one operation, and have as many elements of one type.
pub(super) type Kind = (Option<String>, Option<String>);

/// A value in memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stored {
    pub(super) lifetime: usize,
    pub(super) value: ValueId,
}

/// An array that an operation has become, in memory or within a kernel.
#[derive(Clone, Copy, Debug)]
pub(super) struct Made {
    pub(super) opcode: Opcode,
    pub(super) elements: u64,
    /// The kernel that it is computed within.
    pub(super) kernel: Option<InstructionId>,
}

impl<'a> Side<'a> {
    /// Takes time n log n in the module.
    pub(super) fn new(found: &'a Estimate, target: &'a Target) -> Side<'a> {
        let subject = Subject::new(&found.module, target, &found.planned, &found.copies);
        let words = &subject.words;
        let values = Values::new(words, &found.planned, |value| describe(words, found, value).holder);
        let within = values_within(found, &values.lifetimes);
        let mut described = FxHashMap::default();
        let mut stored: FxHashMap<Kind, Vec<Stored>> = FxHashMap::default();
        for (lifetime, within) in within.iter().enumerate() {
            for &value in within {
                let what = describe(words, found, value);
                stored.entry(kind(&what.holder)).or_default().push(Stored { lifetime, value });
                described.insert(value, what);
            }
        }
        let mut elsewhere: FxHashMap<Kind, Vec<ValueId>> = FxHashMap::default();
        for (value, memory) in placed(found) {
            if memory.space != MemorySpaceId::MAIN {
                elsewhere.entry(kind(&describe(words, found, value).holder)).or_default().push(value);
            }
        }
        let made = Operations::new(&found.module);
        let mut side =
            Side { subject, found, values, within, described, stored, elsewhere, made, curve: Vec::new() };
        side.curve = side.load();
        side
    }

    /// Main memory that holds something at each instant, constant data not counted.
    fn load(&self) -> Vec<u64> {
        let end = self.values.end;
        let mut steps = vec![0i128; end as usize + 1];
        for lifetime in self.values.lifetimes.iter().filter(|lifetime| self.counts(lifetime)) {
            let bytes = i128::from(lifetime.slice.size.0);
            steps[lifetime.live.start.min(end) as usize] += bytes;
            steps[lifetime.live.end.min(end) as usize] -= bytes;
        }
        let mut load = 0;
        let sums = steps.iter().map(|step| {
            load += step;
            u64::try_from(load).unwrap_or(0)
        });
        sums.take(end.max(1) as usize).collect()
    }

    fn counts(&self, lifetime: &Lifetime) -> bool {
        self.found.planned.plan.allocations[lifetime.slice.allocation].kind != AllocationKind::Constant
    }

    /// The first instant with the most bytes.
    pub(super) fn peak(&self) -> Time {
        let most = (0..).zip(&self.curve).max_by_key(|&(time, bytes)| (bytes, std::cmp::Reverse(time)));
        most.map_or(0, |(time, _)| time)
    }

    /// Bytes that are live at an instant.
    pub(super) fn bytes_at(&self, time: Time) -> Bytes {
        Bytes(self.curve.get(time as usize).copied().unwrap_or(0))
    }

    /// What is live at an instant, in order of when it is made: of the values of each lifetime the largest, and of those the
    /// one that is needed longest.
    pub(super) fn live_at(&self, time: Time) -> Vec<Stored> {
        let live = &self.subject.planned.facts.live;
        let lifetimes = self.values.lifetimes.iter().enumerate();
        let there = lifetimes.filter(|(_, it)| it.live.is_live_at(time) && self.counts(it));
        let there = there.map(|(lifetime, it)| {
            let most = |value: &ValueId| (self.described[value].holder.bytes, live.of(*value).end);
            let value = self.sharing(lifetime, time).max_by_key(most).unwrap_or(it.largest);
            Stored { lifetime, value }
        });
        there.collect()
    }

    /// What shares the bytes of a lifetime at an instant.
    pub(super) fn sharing(&self, lifetime: usize, time: Time) -> impl Iterator<Item = ValueId> {
        let live = &self.subject.planned.facts.live;
        self.within[lifetime].iter().copied().filter(move |&value| live.of(value).is_live_at(time))
    }

    /// Whether a value is written over another one that ends there.
    pub(super) fn is_over_another(&self, stored: Stored) -> bool {
        let live = &self.subject.planned.facts.live;
        let start = live.of(stored.value).start;
        let mut others = self.sharing(stored.lifetime, start);
        others.any(|other| other != stored.value && live.of(other).end == start + 1)
    }

    /// What is written over a value, by the instruction that reads it last.
    pub(super) fn written_over(&self, stored: Stored) -> Option<ValueId> {
        let live = &self.subject.planned.facts.live;
        let last = live.of(stored.value).end.checked_sub(1)?;
        let mut others = self.sharing(stored.lifetime, last);
        others.find(|&other| other != stored.value && live.of(other).start == last)
    }

    /// All lifetimes, each with its largest value.
    pub(super) fn all(&self) -> Vec<Stored> {
        let lifetimes = self.values.lifetimes.iter().enumerate();
        lifetimes.map(|(lifetime, it)| Stored { lifetime, value: it.largest }).collect()
    }

    pub(super) fn lifetime(&self, stored: Stored) -> &Lifetime {
        &self.values.lifetimes[stored.lifetime]
    }

    pub(super) fn described(&self, stored: Stored) -> &Described {
        &self.described[&stored.value]
    }

    /// Where a value is defined.
    pub(super) fn position(&self, value: ValueId) -> Position {
        let flow = &self.subject.planned.facts.flow;
        flow.positions.position(flow.values[value].definition)
    }

    /// The shape of a value; `None` for tables of tuples.
    pub(super) fn array(&self, stored: Stored) -> Option<&ArrayShape> {
        let position = self.position(stored.value);
        self.subject.module.shape(position.instruction).subshape(&position.index)?.as_array()
    }

    /// The operation that computes a value, wherever it is moved afterwards.
    pub(super) fn computed_by(&self, stored: Stored) -> Opcode {
        self.subject.module.instructions[self.described(stored).origin.computes].op.opcode()
    }

    /// Bytes of main memory that the program itself takes.
    pub(super) fn code(&self) -> Bytes {
        self.found.code()
    }

    /// Where values of a kind are in memory.
    pub(super) fn stored(&self, holder: &HolderEntry) -> &[Stored] {
        self.stored.get(&kind(holder)).map_or(&[], |stored| stored)
    }

    /// What has values of a kind in a memory other than the main one, and the name of that.
    pub(super) fn elsewhere(&self, holder: &HolderEntry) -> Option<(&str, &str)> {
        let &value = self.elsewhere.get(&kind(holder))?.first()?;
        let (plan, position) = (&self.found.planned.plan, self.position(value));
        let space = plan.allocations[plan.slices.get(&position)?.allocation].space;
        let memory = plan.spaces.iter().find(|totals| totals.space == space)?;
        Some((self.name(position.instruction), &memory.name))
    }

    /// The kinds of all values that are in a lifetime, one after the other.
    pub(super) fn kinds(&self, lifetime: usize) -> impl Iterator<Item = Kind> {
        self.within[lifetime].iter().map(|value| kind(&self.described[value].holder))
    }

    /// The name of an instruction.
    pub(super) fn name(&self, id: InstructionId) -> &str {
        &self.subject.module.instructions[id].name
    }

    /// The instruction that runs at an instant.
    pub(super) fn at(&self, time: Time) -> InstructionId {
        let line = &self.subject.planned.facts.line;
        line.instructions.get(time as usize).copied().unwrap_or(self.subject.module.entry_computation().root)
    }

    /// Memory that holds nothing at the peak.
    pub(super) fn idle(&self) -> Idle {
        let totals = self.found.planned.plan.totals;
        let [arena, all] = [totals.temp.0, totals.total.0 - totals.constants.0].map(i128::from);
        let peak = self.peak();
        let live = self.values.lifetimes.iter().filter(|it| it.live.is_live_at(peak) && self.is_in_arena(it));
        let in_arena: i128 = live.map(|it| i128::from(it.slice.size.0)).sum();
        let others = i128::from(self.bytes_at(peak).0) - in_arena;
        Idle { arena: arena - in_arena, others: all - arena - others }
    }

    /// The argument or result of whose memory most holds nothing at the peak, in words.
    pub(super) fn largest_unused(&self) -> String {
        let peak = self.peak();
        let plan = &self.found.planned.plan;
        let mut used: FxHashMap<AllocationId, Bytes> = FxHashMap::default();
        for lifetime in self.values.lifetimes.iter().filter(|it| it.live.is_live_at(peak)) {
            let bytes = used.entry(lifetime.slice.allocation).or_default();
            *bytes = bytes.saturating_add(lifetime.slice.size);
        }
        let others = plan.allocations.iter().filter_map(|(id, it)| {
            let what = match &it.kind {
                AllocationKind::Argument { parameter, index } => (Some(*parameter), index.clone()),
                AllocationKind::Output => (None, ShapeIndex::root()),
                AllocationKind::Constant | AllocationKind::Temp => return None,
            };
            let unused = it.size.saturating_sub(used.get(&id).copied().unwrap_or_default());
            Some((unused, what)).filter(|_| it.space == MemorySpaceId::MAIN)
        });
        let Some((unused, (parameter, index))) = others.max_by_key(|(unused, _)| *unused) else {
            return String::new();
        };
        let of = parameter.and_then(|number| {
            let parameter = self.subject.module.entry_computation().parameters.get(number as usize)?;
            Some(format!("argument `{}{index}`", self.subject.words.name(*parameter)))
        });
        format!("; most of them, {unused}, of {}", of.unwrap_or_else(|| "a result".to_string()))
    }

    fn is_in_arena(&self, lifetime: &Lifetime) -> bool {
        self.found.planned.plan.allocations[lifetime.slice.allocation].kind == AllocationKind::Temp
    }

    /// The largest part of an arena that holds nothing at the peak, in words, and what is there at other times.
    pub(super) fn largest_gap(&self) -> String {
        let peak = self.peak();
        let lifetimes = self.values.lifetimes.iter().filter(|lifetime| self.is_in_arena(lifetime));
        let mut live: Vec<&Lifetime> = lifetimes.clone().filter(|it| it.live.is_live_at(peak)).collect();
        live.sort_by_key(|lifetime| (lifetime.slice.allocation, lifetime.slice.offset));
        let mut gap = (Bytes::ZERO, Bytes::ZERO, None);
        for (id, allocation) in self.found.planned.plan.allocations.iter() {
            if allocation.kind != AllocationKind::Temp || allocation.space != MemorySpaceId::MAIN {
                continue;
            }
            let within = live.iter().filter(|lifetime| lifetime.slice.allocation == id);
            let ends = within.map(|it| (it.slice.offset, it.slice.offset.saturating_add(it.slice.size)));
            let mut from = Bytes::ZERO;
            for (offset, end) in ends.chain([(allocation.size, allocation.size)]) {
                if offset.saturating_sub(from) > gap.1.saturating_sub(gap.0) {
                    gap = (from, offset, Some(id));
                }
                from = from.max(end);
            }
        }
        let (from, to, Some(id)) = gap else { return String::new() };
        let shared = |it: &&Lifetime| {
            let end = it.slice.offset.saturating_add(it.slice.size).min(to);
            end.saturating_sub(it.slice.offset.max(from))
        };
        let there = lifetimes.filter(|lifetime| lifetime.slice.allocation == id);
        let Some(most) = there.max_by_key(shared).filter(|most| shared(most) > Bytes::ZERO) else {
            return String::new();
        };
        let position = self.position(most.largest);
        format!(
            "; the largest gap has {}, where `{}` {} is at another time",
            to.saturating_sub(from),
            self.subject.name_at(&position),
            shape_at(self.subject.module, &position)
        )
    }
}

fn kind(holder: &HolderEntry) -> Kind {
    (holder.operation.clone(), holder.shape.clone())
}

/// What a value is, in words that both compilers have. What only moves a value is not what that is.
fn describe(words: &Words<'_>, found: &Estimate, value: ValueId) -> Described {
    let origin = Origin::of(words, value);
    let position = words.facts.flow.positions.position(words.facts.flow.values[value].definition);
    let shape = match found.module.shape(position.instruction).subshape(&position.index) {
        Some(Shape::Array(array)) => compared_shape(array),
        _ => "table".to_string(),
    };
    let of = origin.prefix();
    let holder = Holder::of(words, &found.planned, value);
    let source = holder.source.clone();
    let holder = HolderEntry {
        operation: Some(format!("{of}{}", origin.name)),
        shape: Some(shape),
        source: holder.source.filter(|_| of.is_empty()),
        class: (!of.is_empty()).then(|| of.to_string()),
        ..holder
    };
    Described { origin, source, holder }
}

/// Dimensions may be in another order, and some are of one element alone.
fn compared_shape(array: &ArrayShape) -> String {
    let mut dimensions: Vec<i64> = array.dimensions.iter().copied().filter(|&size| size != 1).collect();
    dimensions.sort_unstable();
    let dimensions: Vec<String> = dimensions.iter().map(i64::to_string).collect();
    format!("{}[{}]", array.element_type, dimensions.join(","))
}

/// Every value that has a place, and the allocation where.
fn placed(found: &Estimate) -> impl Iterator<Item = (ValueId, &Allocation)> {
    let (flow, plan) = (&found.planned.facts.flow, &found.planned.plan);
    flow.values.iter().filter_map(|(id, value)| {
        let slice = plan.slices.get(&flow.positions.position(value.definition))?;
        Some((id, &plan.allocations[slice.allocation]))
    })
}

/// The values of each lifetime.
fn values_within(found: &Estimate, lifetimes: &[Lifetime]) -> Vec<Vec<ValueId>> {
    let facts = &found.planned.facts;
    let mut at: FxHashMap<_, Vec<usize>> = FxHashMap::default();
    for (i, lifetime) in lifetimes.iter().enumerate() {
        at.entry((lifetime.slice.allocation, lifetime.slice.offset)).or_default().push(i);
    }
    let mut within = vec![Vec::new(); lifetimes.len()];
    for (value, definition) in facts.flow.values.iter() {
        let position = facts.flow.positions.position(definition.definition);
        let slice = found.planned.plan.slices.get(&position);
        let Some(list) = slice.and_then(|slice| at.get(&(slice.allocation, slice.offset))) else { continue };
        // Lifetimes of one place follow each other.
        let start = facts.live.of(value).start;
        let i = list.partition_point(|&i| lifetimes[i].live.start <= start).saturating_sub(1);
        within[list[i]].push(value);
    }
    within
}

/// What each operation of a module has become, by name.
pub(super) struct Operations {
    of: FxHashMap<String, Vec<Made>>,
    /// The same by the last part of the name alone: calls put the names of callers before those of callees.
    of_last: FxHashMap<String, Vec<Made>>,
    /// What is computed again, by the name that it has in the forward half.
    again: FxHashMap<String, Vec<Made>>,
}

impl Operations {
    /// Linear in the module.
    pub(super) fn new(module: &Module) -> Operations {
        let fusions = module.instructions.iter().filter(|(_, it)| it.op.opcode() == Opcode::Fusion);
        let kernels: FxHashMap<_, _> = fusions.map(|(id, fusion)| (fusion.called[0], id)).collect();
        let [mut of, mut of_last, mut again] = [(); 3].map(|()| FxHashMap::default());
        let add = |map: &mut FxHashMap<String, Vec<Made>>, name: String, made: Made| {
            map.entry(name).or_default().push(made);
        };
        let recomputed = format!("{RECOMPUTED}/");
        for (computation, listed) in &module.computations {
            for &id in &listed.instructions {
                let op = &module.instructions[id].op;
                let (name, array) = (operation(module, id), module.shape(id).as_array());
                let Some(array) = array.filter(|_| !name.is_empty()) else { continue };
                if op.opcode() == Opcode::Fusion || op.only_passes_on() {
                    continue;
                }
                let made = Made {
                    opcode: op.opcode(),
                    elements: array.element_count().unwrap_or(0),
                    kernel: kernels.get(&computation).copied(),
                };
                let name = folded_operation(name);
                add(&mut of_last, last_part(&name).to_string(), made);
                if let Some((_, forward)) = name.split_once(&recomputed) {
                    add(&mut again, forward.to_string(), made);
                }
                add(&mut of, name, made);
            }
        }
        Operations { of, of_last, again }
    }

    /// What an operation has become.
    pub(super) fn of(&self, name: &str) -> &[Made] {
        self.of.get(name).map(Vec::as_slice).unwrap_or_default()
    }

    /// What an operation of the forward half has become where `jax.checkpoint` has it computed again.
    pub(super) fn again(&self, name: &str) -> &[Made] {
        self.again.get(name).map(Vec::as_slice).unwrap_or_default()
    }

    /// What an operation has become, or if there is none, what others have whose names end alike.
    pub(super) fn of_any(&self, name: &str) -> &[Made] {
        let of_last = || self.of_last.get(last_part(name)).map_or(&[][..], |made| made);
        self.of.get(name).map(Vec::as_slice).unwrap_or_else(of_last)
    }
}

fn last_part(name: &str) -> &str {
    name.rsplit('/').next().unwrap_or(name)
}
