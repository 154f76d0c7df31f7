//! Assignment: an allocation and an offset for every value.
//!
//! Arguments, results and constants get allocations of their own. All other values share one arena per memory space,
//! except those that fit into bytes of arguments and results that are not needed yet or any more
//! ([`holes`](crate::holes)).

use memplan_program::{Placement, Program, Scratch};
use memplan_units::{Bytes, Machine, MemorySpaceId, SpaceTotals};

use crate::assignment::Assignment;
use crate::bound;
use crate::in_results;
use crate::storage::Among;
use crate::{HoleOptions, PlaceError, Storages, TakeOver};

/// How to place values.
#[derive(Clone, Debug)]
pub struct PlaceOptions {
    /// How hard to try to pack each arena.
    pub pack: memplan_pack::Options,
    /// Which bytes serve several values.
    pub sharing: Sharing,
    /// How hard to look for room in results and arguments.
    pub holes: HoleOptions,
}

/// Which bytes serve several values by choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sharing {
    /// Whatever can: both ways of taking over operands, and results and donated arguments as scratch.
    #[default]
    Most,
    /// As XLA shares.
    AsXla(AsXla),
}

/// How XLA shares bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AsXla {
    /// The rule under which groups of a single value take over operands.
    pub take_over: TakeOver,
    /// Whether temps that are no larger than a result are in its memory as long as it is not: each from the beginning of the
    /// allocation on, the largest first.
    pub temps_in_results: bool,
}

impl PlaceOptions {
    /// Heuristics only: enough to compare programs, or to see what fits.
    pub fn quick() -> PlaceOptions {
        PlaceOptions { pack: memplan_pack::Options::quick(), ..PlaceOptions::default() }
    }
}

impl Default for PlaceOptions {
    /// Heuristics, and where they leave a gap a search of a fixed number of steps: a fraction of a second, and the same
    /// answer on every machine.
    fn default() -> PlaceOptions {
        let pack = memplan_pack::Options {
            node_limit: Some(20_000),
            time_limit: None,
            threads: 1,
            ..memplan_pack::Options::default()
        };
        PlaceOptions { pack, sharing: Sharing::Most, holes: HoleOptions::default() }
    }
}

/// The figures of one memory space.
#[derive(Clone, Debug)]
pub struct SpacePlacement {
    /// The slices of everything that is in the space.
    pub placement: Placement,
    /// Bytes that its arena takes.
    pub height: Bytes,
    /// The program's bytes in main memory, if that can be packed without loss.
    pub total: Bytes,
}

/// Gives every value of a program an allocation and an offset. If packing leaves a gap, a second way of sharing storage
/// is tried, and the lower total is kept.
///
/// # Errors
/// When values that must share storage cannot (see [`PlaceError`]), or sizes are beyond 64 bits.
pub fn place(
    program: &impl Program,
    machine: &dyn Machine,
    options: &PlaceOptions,
) -> Result<Placement, PlaceError> {
    Ok(place_below(program, machine, options, None)?.expect("there is no limit"))
}

/// Places like [`place`]; `None` where the total would be a limit or more, which is often clear before anything is
/// packed.
///
/// # Errors
/// As [`place`].
pub fn place_below(
    program: &impl Program,
    machine: &dyn Machine,
    options: &PlaceOptions,
    limit: Option<Bytes>,
) -> Result<Option<Placement>, PlaceError> {
    let groups = Storages::of_groups(program)?;
    let least = bound::least_total(program, &groups);
    if limit.is_some_and(|limit| least >= limit) {
        return Ok(None);
    }
    let place_with = |groups: Storages, policy, among, limit| {
        let storages = groups.shared_by_choice(program, policy, among);
        place_storages(program, machine, options, &storages, least, limit)
    };
    if let Sharing::AsXla(rules) = options.sharing {
        if !rules.temps_in_results {
            return place_with(groups, rules.take_over, Among::All, limit);
        }
        let groups = in_results::place(groups, program, machine, rules.take_over, &options.holes);
        return place_with(groups, rules.take_over, Among::Temps, limit);
    }
    let first = place_with(groups.clone(), TakeOver::Any, Among::All, limit)?;
    if first.as_ref().is_some_and(|it| it.totals.fragmentation == Bytes::ZERO || it.totals.total == least) {
        return Ok(first);
    }
    let limit = first.as_ref().map(|first| first.totals.total).or(limit);
    let other = place_with(groups, TakeOver::SingleValues, Among::All, limit)?;
    let fits = |placement: &Placement| placement.spaces.iter().all(|arena| fits(machine, arena));
    Ok(match (first, other) {
        // Less main memory is no reason to want more than there is near the cores.
        (Some(first), Some(other)) if fits(&first) && !fits(&other) => Some(first),
        (first, other) => other.or(first),
    })
}

/// Whether the arena of a memory other than main memory has room there.
fn fits(machine: &dyn Machine, arena: &SpaceTotals) -> bool {
    let usable = machine.memory(arena.space).and_then(|memory| memory.usable);
    arena.space == MemorySpaceId::MAIN || usable.is_none_or(|usable| arena.temp <= usable)
}

/// Places the values in one memory space other than main memory, by heuristics that stop when everything fits a
/// capacity; without one, by the lowest arena they find.
///
/// # Errors
/// As [`place`].
pub fn place_space(
    program: &impl Program,
    machine: &dyn Machine,
    space: MemorySpaceId,
    capacity: Option<u64>,
) -> Result<SpacePlacement, PlaceError> {
    let storages = Storages::new(program, TakeOver::Any)?;
    let scratch: Vec<Scratch> = program.scratch().collect();
    let options = PlaceOptions::quick();
    let mut assignment = Assignment::new(&storages, machine, &scratch);
    let mut arenas = assignment.place_all_but_arenas(&options);
    let total = assignment.least_total(&arenas);
    let mut height = Bytes::ZERO;
    if let Some(arena) = arenas.iter_mut().find(|arena| arena.space == space) {
        arena.problem.capacity = capacity;
        height = assignment.place_arena(arena, &options)?;
    }
    assignment.record_slices();
    Ok(SpacePlacement { placement: assignment.placement, height, total })
}

/// Places what shares storage; `least` is what every placement of the program takes.
fn place_storages(
    program: &impl Program,
    machine: &dyn Machine,
    options: &PlaceOptions,
    storages: &Storages,
    least: Bytes,
    limit: Option<Bytes>,
) -> Result<Option<Placement>, PlaceError> {
    let scratch: Vec<Scratch> = program.scratch().collect();
    let mut assignment = Assignment::new(storages, machine, &scratch);
    let mut arenas = assignment.place_all_but_arenas(options);
    if limit.is_some_and(|limit| assignment.least_total(&arenas) >= limit) {
        return Ok(None);
    }
    for arena in &mut arenas {
        assignment.place_arena(arena, options)?;
    }
    assignment.record_slices();
    assignment.record_totals(least)?;
    let placement = assignment.placement;
    Ok(limit.is_none_or(|limit| placement.totals.total < limit).then_some(placement))
}
