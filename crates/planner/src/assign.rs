//! Assignment: an allocation and an offset for every value.
//!
//! Arguments, results and constants get allocations of their own. Everything else shares one arena per memory
//! space, after what fits has been placed into bytes of arguments and results that nobody needs yet, or any more
//! ([`holes`](crate::holes)).

use std::collections::BTreeMap;

use cranelift_entity::{PrimaryMap, SecondaryMap};
use indexmap::IndexMap;
use memplan_analysis::{Facts, LiveRange, Time, kernel_scratch};
use memplan_ir::{InstructionId, Module, Position, fingerprint};
use memplan_memory::{
    Alignment, Allocation, AllocationId, AllocationKind, Bytes, MemoryPlan, MemorySpaceId, Slice,
    SpaceTotals, Target, Totals,
};
use memplan_pack::{Item, Packing, Problem};

use crate::PlanError;
use crate::holes::{self, Candidate};
use crate::load::Load;
use crate::storage::{Home, Storage, StorageId, Storages, TakeOver, storages};

/// Steps of the packing search for each arena by default.
const DEFAULT_PACK_NODES: u64 = 20_000;

/// How to assign.
#[derive(Clone, Debug)]
pub struct AssignOptions {
    /// How hard to try to pack each arena.
    pub pack: memplan_pack::Options,
    /// Main memory that the kernels of instructions need while they run, beside what the target says they reserve
    /// ([`kernel_scratch`]).
    pub scratch: SecondaryMap<InstructionId, Bytes>,
    /// Which bytes serve several values.
    pub sharing: Sharing,
}

/// Which bytes serve several values by choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sharing {
    /// Whatever can: both ways of taking over operands, and results and donated parameters as scratch.
    #[default]
    Most,
    /// What XLA lets share: buffers of a single value take over operands, under a rule.
    AsXla(TakeOver),
}

impl AssignOptions {
    /// Heuristics only: enough to compare programs, or to see what fits.
    pub fn quick() -> AssignOptions {
        AssignOptions { pack: memplan_pack::Options::quick(), ..AssignOptions::default() }
    }
}

impl Default for AssignOptions {
    /// Heuristics, and where they leave a gap a search of a fixed number of steps: a fraction of a second, and the same
    /// answer on every machine.
    fn default() -> AssignOptions {
        let pack = memplan_pack::Options {
            node_limit: Some(DEFAULT_PACK_NODES),
            time_limit: None,
            threads: 1,
            ..memplan_pack::Options::default()
        };
        AssignOptions { pack, scratch: SecondaryMap::new(), sharing: Sharing::Most }
    }
}

/// Assigns every value of a scheduled module an allocation and an offset. Where packing leaves a gap, a second way of
/// sharing storage is tried, and the lower total is kept.
///
/// # Errors
/// When values that must share storage cannot (see [`PlanError`]), or sizes are beyond 64 bits.
pub fn assign(
    module: &Module,
    facts: &Facts,
    target: &Target,
    options: &AssignOptions,
) -> Result<MemoryPlan, PlanError> {
    Ok(assign_below(module, facts, target, options, None)?.expect("there is no limit"))
}

/// Assigns like [`assign`]; `None` where the total would be a limit or more, which is often clear before anything is
/// packed.
pub(crate) fn assign_below(
    module: &Module,
    facts: &Facts,
    target: &Target,
    options: &AssignOptions,
    limit: Option<Bytes>,
) -> Result<Option<MemoryPlan>, PlanError> {
    if let Sharing::AsXla(policy) = options.sharing {
        return assign_with(module, facts, target, options, policy, limit);
    }
    let plan = assign_with(module, facts, target, options, TakeOver::Any, limit)?;
    if plan.as_ref().is_some_and(|plan| plan.totals.fragmentation == Bytes::ZERO) {
        return Ok(plan);
    }
    let limit = plan.as_ref().map(|plan| plan.totals.total).or(limit);
    let other = assign_with(module, facts, target, options, TakeOver::SingleValues, limit)?;
    let fits = |plan: &MemoryPlan| plan.spaces.iter().all(|arena| fits(target, arena));
    Ok(match (plan, other) {
        // Less main memory is no reason to want more than there is near the cores.
        (Some(plan), Some(other)) if fits(&plan) && !fits(&other) => Some(plan),
        (plan, other) => other.or(plan),
    })
}

/// Whether the arena of a memory other than main memory has room there.
fn fits(target: &Target, arena: &SpaceTotals) -> bool {
    let usable = target.space(arena.space).and_then(|space| space.usable());
    arena.space == MemorySpaceId::MAIN || usable.is_none_or(|usable| arena.temp <= usable)
}

/// What a plan for one memory space says.
#[derive(Clone, Debug)]
pub struct SpacePlan {
    /// The slices of everything that is in the space.
    pub plan: MemoryPlan,
    /// Bytes that its arena takes.
    pub height: Bytes,
    /// What the program takes of main memory, if that can be packed without loss.
    pub total: Bytes,
}

/// Assigns one memory space other than main memory, by heuristics that end as soon as everything fits a capacity; without
/// one, the lowest arena they find.
///
/// # Errors
/// As [`assign`].
pub fn assign_space(
    module: &Module,
    facts: &Facts,
    target: &Target,
    space: MemorySpaceId,
    capacity: Option<u64>,
) -> Result<SpacePlan, PlanError> {
    let storages = storages(module, facts, target, TakeOver::Any)?;
    let options = AssignOptions::quick();
    let mut assignment = Assignment::new(module, facts, target, &storages);
    let mut arenas = assignment.place_all_but_arenas(&options);
    let total = assignment.least_total(&arenas);
    let mut height = Bytes::ZERO;
    if let Some(arena) = arenas.iter_mut().find(|arena| arena.space == space) {
        arena.problem.capacity = capacity;
        assignment.place_arena(arena, &options)?;
        height = assignment.plan.spaces[0].temp;
    }
    assignment.record_slices();
    Ok(SpacePlan { plan: assignment.plan, height, total })
}

fn assign_with(
    module: &Module,
    facts: &Facts,
    target: &Target,
    options: &AssignOptions,
    policy: TakeOver,
    limit: Option<Bytes>,
) -> Result<Option<MemoryPlan>, PlanError> {
    let storages = storages(module, facts, target, policy)?;
    let mut assignment = Assignment::new(module, facts, target, &storages);
    let mut arenas = assignment.place_all_but_arenas(options);
    if limit.is_some_and(|limit| assignment.least_total(&arenas) >= limit) {
        return Ok(None);
    }
    assignment.plan.fingerprint = fingerprint(module);
    for arena in &mut arenas {
        assignment.place_arena(arena, options)?;
    }
    assignment.record_slices();
    assignment.record_totals()?;
    assignment.record_space_totals();
    let plan = assignment.plan;
    Ok(limit.is_none_or(|limit| plan.totals.total < limit).then_some(plan))
}

struct Assignment<'a> {
    module: &'a Module,
    facts: &'a Facts,
    target: &'a Target,
    storages: &'a Storages,
    plan: MemoryPlan,
    /// Allocation and offset of each storage, once decided.
    places: SecondaryMap<StorageId, Option<(AllocationId, Bytes)>>,
    /// Instructions that need working memory in a space, by when they run, and how much.
    scratch: BTreeMap<(MemorySpaceId, Time), Bytes>,
}

impl<'a> Assignment<'a> {
    fn new(
        module: &'a Module,
        facts: &'a Facts,
        target: &'a Target,
        storages: &'a Storages,
    ) -> Assignment<'a> {
        Assignment {
            module,
            facts,
            target,
            storages,
            plan: MemoryPlan { target: target.name.clone(), ..MemoryPlan::default() },
            places: SecondaryMap::new(),
            scratch: BTreeMap::new(),
        }
    }

    /// Places what has an allocation of its own or finds room in one, and says what is left for arenas.
    fn place_all_but_arenas(&mut self, options: &AssignOptions) -> Vec<Arena> {
        self.list_scratch(options);
        self.place_arguments();
        self.place_own_allocations();
        if options.sharing == Sharing::Most {
            self.place_into_holes();
        }
        self.arenas()
    }

    /// Bytes of all allocations so far, and those live at once of what is left for main memory: what packing can reach
    /// at best.
    fn least_total(&self, arenas: &[Arena]) -> Bytes {
        let own = self.plan.allocations.values().fold(Bytes::ZERO, |sum, a| sum.saturating_add(a.size));
        let main = arenas.iter().find(|arena| arena.space == MemorySpaceId::MAIN);
        own.saturating_add(main.map_or(Bytes::ZERO, |main| main.load.peak().1))
    }

    fn list_scratch(&mut self, options: &AssignOptions) {
        let line = &self.facts.line;
        let own = line.instructions.iter().map(|&id| (id, MemorySpaceId::MAIN, options.scratch[id]));
        let reserved = kernel_scratch(self.module, self.target);
        let reserved = reserved.iter().map(|it| (it.instruction, it.space, it.size));
        for (id, space, size) in own.chain(reserved).filter(|(_, _, size)| *size > Bytes::ZERO) {
            let most = self.scratch.entry((space, line.time(id))).or_default();
            *most = size.max(*most);
        }
    }

    /// One allocation for each part of each parameter, in order, used or not.
    fn place_arguments(&mut self) {
        let entry = self.module.entry_computation();
        for (number, &parameter) in entry.parameters.iter().enumerate() {
            for position in self.facts.flow.positions.of(parameter) {
                let value = self.facts.flow.value_at(position).expect("the entry is sequential");
                let storage = self.storages.of(value);
                if self.storages.sizes[value] == Bytes::ZERO {
                    continue;
                }
                let index = self.facts.flow.positions.shape_index(position).clone();
                let allocation = self.plan.allocations.push(Allocation {
                    kind: AllocationKind::Argument { parameter: number as u32, index },
                    space: self.storages.all[storage].space,
                    size: self.storages.sizes[value],
                    alignment: self.target.argument_alignment,
                    live_out: self.is_live_out(storage),
                });
                self.places[storage] = Some((allocation, Bytes::ZERO));
            }
        }
    }

    /// Results and constants, each in an allocation of its own, in order of their definition.
    fn place_own_allocations(&mut self) {
        for (id, storage) in self.storages.all.iter() {
            let kind = match storage.home {
                Home::Output => AllocationKind::Output,
                Home::Constant => AllocationKind::Constant,
                Home::Nowhere | Home::Argument(..) | Home::Temp => continue,
            };
            if storage.size == Bytes::ZERO {
                continue;
            }
            let allocation = self.plan.allocations.push(Allocation {
                kind,
                space: storage.space,
                size: storage.size,
                alignment: self.target.alignment(storage.space),
                live_out: self.is_live_out(id),
            });
            self.places[id] = Some((allocation, Bytes::ZERO));
        }
    }

    /// Places temps where arguments and results leave room, those first that make the peak.
    fn place_into_holes(&mut self) {
        let mut bins = PrimaryMap::new();
        for (id, storage) in self.storages.all.iter() {
            let Some((allocation, _)) = self.places[id] else { continue };
            if self.is_writable(storage) {
                bins.push(holes::Bin {
                    allocation,
                    space: storage.space,
                    size: self.plan.allocations[allocation].size,
                    alignment: self
                        .target
                        .alignment(storage.space)
                        .min(self.plan.allocations[allocation].alignment),
                    busy: storage.busy.clone(),
                });
            }
        }
        let temps = self.temps(None);
        let candidates = temps.iter().map(|&id| {
            let storage = &self.storages.all[id];
            Candidate { space: storage.space, size: storage.size, busy: &storage.busy }
        });
        let candidates: Vec<Candidate<'_>> = candidates.collect();
        for (i, allocation, offset) in holes::place(bins, &candidates, self.facts.line.end()) {
            self.places[temps[i]] = Some((allocation, offset));
        }
    }

    /// What is left for one arena per memory space, of every space that anything is in.
    fn arenas(&self) -> Vec<Arena> {
        let mut spaces: Vec<MemorySpaceId> =
            self.temps(None).into_iter().map(|id| self.storages.all[id].space).collect();
        spaces.extend(self.plan.allocations.values().map(|allocation| allocation.space));
        spaces.extend(self.scratch.keys().map(|&(space, _)| space));
        spaces.push(MemorySpaceId::MAIN);
        spaces.sort_unstable();
        spaces.dedup();
        spaces.into_iter().map(|space| self.arena(space)).collect()
    }

    fn arena(&self, space: MemorySpaceId) -> Arena {
        let temps = self.temps(Some(space));
        let alignment = self.target.alignment(space);
        let scratch = self.scratch.range((space, 0)..=(space, Time::MAX));
        let scratch: Vec<(Time, Bytes)> = scratch.map(|(&(_, time), &size)| (time, size)).collect();
        let mut problem = Problem::new();
        let mut load = Load::new(self.facts.line.end());
        let mut first_items = Vec::with_capacity(temps.len());
        for &id in &temps {
            let storage = &self.storages.all[id];
            let first = problem.items.len();
            for (range, size) in occupancy(self.facts, self.storages, id) {
                load.add(range, size);
                let live = u64::from(range.start)..u64::from(range.end);
                problem.push(Item::new(size.0, live).aligned(alignment.bytes()));
            }
            if problem.items.len() - first > 1 {
                problem.colocate(first..problem.items.len());
            }
            debug_assert!(problem.items.len() > first || storage.busy.is_empty());
            first_items.push(first);
        }
        let first_scratch = problem.items.len();
        let spans = spans(&scratch, &load);
        for span in &spans {
            let live = u64::from(span.range.start)..u64::from(span.range.end);
            problem.push(Item::new(span.size.0, live).aligned(alignment.bytes()));
        }
        for &(time, size) in &scratch {
            load.add(LiveRange { start: time, end: time + 1 }, size);
        }
        Arena { space, temps, first_items, scratch, spans, first_scratch, problem, load }
    }

    /// Packs an arena.
    fn place_arena(&mut self, arena: &mut Arena, options: &AssignOptions) -> Result<(), PlanError> {
        let &mut Arena {
            space,
            first_scratch,
            ref temps,
            ref first_items,
            ref scratch,
            ref spans,
            ref load,
            ..
        } = arena;
        let alignment = self.target.alignment(space);
        let packing = match space {
            MemorySpaceId::MAIN => memplan_pack::pack(&arena.problem, &options.pack),
            _ => pack_above_scratch(&mut arena.problem, first_scratch, load.peak().1, &options.pack),
        };
        let packing = packing.map_err(|_| PlanError::TooLarge { space })?;
        let temp = Bytes(packing.height);
        if temp > Bytes::ZERO || (space != MemorySpaceId::MAIN && !temps.is_empty()) {
            let allocation = self.plan.allocations.push(Allocation {
                kind: AllocationKind::Temp,
                space,
                size: temp,
                alignment,
                live_out: false,
            });
            for (&id, &first) in temps.iter().zip(first_items) {
                if let Some(&offset) = packing.offsets.get(first) {
                    self.places[id] = Some((allocation, Bytes(offset)));
                }
            }
            let mut rest = scratch.iter();
            for (i, span) in spans.iter().enumerate() {
                let offset = Bytes(packing.offsets[first_scratch + i]);
                for &(time, size) in rest.by_ref().take(span.kernels) {
                    let slices =
                        self.plan.scratch.entry(self.facts.line.instructions[time as usize]).or_default();
                    slices.push(Slice { allocation, offset, size });
                }
            }
        }
        let description = self.target.space(space);
        self.plan.spaces.push(SpaceTotals {
            space,
            name: description.map_or_else(|| space.to_string(), |d| d.name.clone()),
            capacity: description.and_then(|d| d.capacity),
            // The sums follow when everything has a place.
            arguments: Bytes::ZERO,
            outputs: Bytes::ZERO,
            constants: Bytes::ZERO,
            total: Bytes::ZERO,
            temp,
            temp_lower_bound: load.peak().1,
            // With kernels put together, only the load says that nothing is lower.
            proved_minimal: temp == load.peak().1
                || packing.certificate.optimal && spans.len() == scratch.len(),
        });
        Ok(())
    }

    /// Temps not placed yet, in a space or in all.
    fn temps(&self, space: Option<MemorySpaceId>) -> Vec<StorageId> {
        let all = self.storages.all.iter();
        all.filter(|(id, storage)| {
            storage.home == Home::Temp
                && storage.size > Bytes::ZERO
                && self.places[*id].is_none()
                && space.is_none_or(|space| storage.space == space)
        })
        .map(|(id, _)| id)
        .collect()
    }

    /// The slice of every position whose value has a place, in the order of computations and instructions.
    fn record_slices(&mut self) {
        let positions = &self.facts.flow.positions;
        let mut slices = IndexMap::default();
        slices.reserve(positions.len());
        let mut computations = self.facts.graph.sequential().to_vec();
        computations.sort();
        for &id in computations.iter().flat_map(|&c| &self.module.computations[c].instructions) {
            let shape = self.module.shape(id);
            for position in positions.of(id) {
                let Some(value) = self.facts.flow.value_at(position) else { continue };
                let Some((allocation, offset)) = self.places[self.storages.of(value)] else { continue };
                let index = positions.shape_index(position);
                let part = shape.subshape(index).expect("positions are parts of their instruction's shape");
                let size = self.target.size_of(part);
                if self.storages.sizes[value] > Bytes::ZERO && size > Bytes::ZERO {
                    let position = Position { instruction: id, index: index.clone() };
                    slices.insert(position, Slice { allocation, offset, size });
                }
            }
        }
        self.plan.slices = slices;
    }

    /// What each space holds; called after the totals, which make sure that it adds up.
    fn record_space_totals(&mut self) {
        for space in &mut self.plan.spaces {
            let granule = self.target.space(space.space).map_or(Alignment::ONE, |s| s.granule);
            for allocation in self.plan.allocations.values().filter(|a| a.space == space.space) {
                match allocation.kind {
                    AllocationKind::Argument { .. } => space.arguments += allocation.size,
                    AllocationKind::Output => space.outputs += allocation.size,
                    AllocationKind::Constant => space.constants += allocation.size,
                    AllocationKind::Temp => {}
                }
                space.total = space.total.saturating_add(allocation.size.align_up(granule));
            }
        }
    }

    fn record_totals(&mut self) -> Result<(), PlanError> {
        let too_large = PlanError::TooLarge { space: MemorySpaceId::MAIN };
        let sum = |kind: fn(&AllocationKind) -> bool| {
            let sizes = self.plan.allocations.values().filter(|a| kind(&a.kind)).map(|a| a.size);
            sizes.clone().try_fold(Bytes::ZERO, Bytes::checked_add)
        };
        let arguments = sum(|kind| matches!(kind, AllocationKind::Argument { .. }));
        let own_outputs = sum(|kind| *kind == AllocationKind::Output);
        let constants = sum(|kind| *kind == AllocationKind::Constant);
        let (Some(arguments), Some(own_outputs), Some(constants)) = (arguments, own_outputs, constants)
        else {
            return Err(too_large);
        };
        let aliased = self.aliased_bytes();
        let main = self.plan.spaces.iter().find(|space| space.space == MemorySpaceId::MAIN);
        let (temp, temp_lower_bound) = main.map_or_else(Default::default, |s| (s.temp, s.temp_lower_bound));
        let parts = [arguments, own_outputs, constants, temp];
        let total = parts.into_iter().try_fold(Bytes::ZERO, Bytes::checked_add).ok_or(too_large)?;
        self.plan.totals = Totals {
            arguments,
            outputs: own_outputs + aliased,
            aliased,
            constants,
            temp,
            total,
            peak_live: peak_load(self.facts, self.storages).peak().1,
            temp_lower_bound,
            fragmentation: temp.saturating_sub(temp_lower_bound),
            padding: self.padding(),
        };
        Ok(())
    }

    /// Bytes of results that live in arguments.
    fn aliased_bytes(&self) -> Bytes {
        let live_out =
            self.storages.all.values().filter(|storage| matches!(storage.home, Home::Argument(..)));
        let sizes = live_out.map(|storage| {
            let outs = storage.values.iter().filter(|&&value| self.facts.live.is_live_out(value));
            outs.map(|&value| self.storages.sizes[value]).max().unwrap_or_default()
        });
        sizes.sum()
    }

    /// Bytes of layout padding: of what lies at each place, the most.
    fn padding(&self) -> Bytes {
        let mut places: BTreeMap<(AllocationId, Bytes), Bytes> = BTreeMap::new();
        for (position, slice) in &self.plan.slices {
            let shape = self.module.shape(position.instruction);
            let part =
                shape.subshape(&position.index).expect("positions are parts of their instruction's shape");
            let extra = slice.size.saturating_sub(self.target.unpadded_size_of(part));
            if extra > Bytes::ZERO {
                let most = places.entry((slice.allocation, slice.offset)).or_default();
                *most = extra.max(*most);
            }
        }
        places.into_values().fold(Bytes::ZERO, Bytes::saturating_add)
    }

    /// Whether the program may write into the place of a storage: not where constants are, or what the caller keeps.
    fn is_writable(&self, storage: &Storage) -> bool {
        match storage.home {
            Home::Constant => false,
            Home::Argument(..) => storage.values.iter().any(|&value| self.facts.live.is_given(value)),
            Home::Output | Home::Temp | Home::Nowhere => true,
        }
    }

    fn is_live_out(&self, storage: StorageId) -> bool {
        self.storages.all[storage].values.iter().any(|&value| self.facts.live.is_live_out(value))
    }
}

/// What is to be packed into one arena.
struct Arena {
    space: MemorySpaceId,
    temps: Vec<StorageId>,
    /// The first item of each temp.
    first_items: Vec<usize>,
    /// When kernels need working memory, and how much.
    scratch: Vec<(Time, Bytes)>,
    spans: Vec<Span>,
    /// The first item of the spans.
    first_scratch: usize,
    problem: Problem,
    /// What is live at every instant, scratch included.
    load: Load,
}

/// Kernels one after the other that use the same bytes as scratch.
struct Span {
    range: LiveRange,
    size: Bytes,
    kernels: usize,
}

/// Puts kernels together that follow each other and need as much, as long as no more is live between them than while
/// they run. Linear in instants.
fn spans(scratch: &[(Time, Bytes)], values: &Load) -> Vec<Span> {
    let live: Vec<Bytes> = values.curve().collect();
    let mut spans: Vec<Span> = Vec::new();
    for &(time, size) in scratch {
        let most = |last: &Span| live[last.range.end as usize - 1].max(live[time as usize]);
        match spans.last_mut() {
            Some(last)
                if last.size == size
                    && live[last.range.end as usize..time as usize].iter().all(|&l| l <= most(last)) =>
            {
                last.range.end = time + 1;
                last.kernels += 1;
            }
            _ => spans.push(Span { range: LiveRange { start: time, end: time + 1 }, size, kernels: 1 }),
        }
    }
    spans
}

/// Packs items, at most `load` bytes of them at once, of which those from `first` on are scratch: below all values,
/// where the kernels of libtpu have theirs, or anywhere, when that is lower and the problem's capacity asks for it.
fn pack_above_scratch(
    problem: &mut Problem,
    first: usize,
    load: Bytes,
    options: &memplan_pack::Options,
) -> Result<Packing, memplan_pack::Error> {
    problem.items[first..].iter_mut().for_each(|item| item.fixed = Some(0));
    let mut below = memplan_pack::pack(problem, options)?;
    if first == problem.items.len() || below.height <= problem.capacity.unwrap_or(load.0) {
        return Ok(below);
    }
    problem.items[first..].iter_mut().for_each(|item| item.fixed = None);
    let anywhere = memplan_pack::pack(problem, options)?;
    if anywhere.height < below.height {
        return Ok(anywhere);
    }
    below.certificate.optimal = below.height == anywhere.certificate.lower_bound;
    Ok(below)
}

/// When a storage is occupied, and by how many bytes: disjoint, ascending ranges.
pub(crate) fn occupancy(facts: &Facts, storages: &Storages, id: StorageId) -> Vec<(LiveRange, Bytes)> {
    let storage = &storages.all[id];
    // Almost always every value has the storage's size, and then its busy ranges are the answer.
    if storage.values.iter().all(|&v| storages.sizes[v] == storage.size) {
        return storage.busy.iter().map(|&range| (range, storage.size)).collect();
    }
    let mut live: Vec<(LiveRange, Bytes)> =
        storage.values.iter().map(|&v| (facts.live.of(v), storages.sizes[v])).collect();
    live.retain(|(_, size)| *size > Bytes::ZERO);
    let mut edges: Vec<(u32, bool, Bytes)> = live
        .iter()
        .flat_map(|&(range, size)| [(range.start, true, size), (range.end, false, size)])
        .collect();
    edges.sort_unstable();
    // How many values of each size are live between two edges.
    let mut sizes: BTreeMap<Bytes, u32> = BTreeMap::new();
    let mut pieces: Vec<(LiveRange, Bytes)> = Vec::new();
    let mut last = 0;
    for (time, begins, size) in edges {
        if let Some((&largest, _)) = sizes.last_key_value()
            && last < time
        {
            match pieces.last_mut() {
                Some((piece, bytes)) if piece.end == last && *bytes == largest => piece.end = time,
                _ => pieces.push((LiveRange { start: last, end: time }, largest)),
            }
        }
        last = time;
        if begins {
            *sizes.entry(size).or_default() += 1;
        } else if let Some(count) = sizes.get_mut(&size) {
            *count -= 1;
            if *count == 0 {
                sizes.remove(&size);
            }
        }
    }
    pieces
}

/// Bytes live at every instant, each byte once: arguments that the caller keeps and constants always, everything else
/// while a value is in it.
pub(crate) fn peak_load(facts: &Facts, storages: &Storages) -> Load {
    let mut load = Load::new(facts.line.end());
    let always = LiveRange { start: 0, end: facts.line.end() };
    for (id, storage) in storages.all.iter() {
        if storage.home == Home::Constant {
            load.add(always, storage.size);
        } else if storage.home != Home::Nowhere {
            occupancy(facts, storages, id).into_iter().for_each(|(range, size)| load.add(range, size));
        }
    }
    load
}
