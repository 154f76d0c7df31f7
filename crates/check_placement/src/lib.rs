//! Proves placements of a program of any IR.
//!
//! Shares nothing with the planner: it reads the data of a [`Program`], and tracks the bytes of the placement from
//! instant to instant. It checks that the program's data about values and about instants agree, and takes the rest as
//! given. `memplan-check`, which knows HLO, takes no analysis as given.

#![no_std]

extern crate alloc;

mod answers;
mod overlap;

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use cranelift_entity::{EntityRef, PrimaryMap, SecondaryMap};
use memplan_program::{
    AllocationKind, LiveRange, NodeId, Origin, Placement, Program, Region, Scratch, Time, Value, ValueId,
};
use memplan_units::{Alignment, AllocationId, Bytes, Machine, MemorySpaceId, Slice, Totals};

pub use overlap::Peaks;

/// One reason why a placement or an order is wrong, or why what a program says of itself cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "each message says what its fields are")]
pub enum Misplacement {
    /// An instant reads a value outside its live range.
    #[error("instant {time} reads {value}, which is live only in {}", Instants(.live))]
    ReadWhileDead { value: ValueId, time: Time, live: LiveRange },
    /// An instant writes a value outside its live range.
    #[error("instant {time} writes {value}, which is live only in {}", Instants(.live))]
    WrittenWhileDead { value: ValueId, time: Time, live: LiveRange },
    /// A live range is empty, or goes on after the last instant.
    #[error("the live range of {at}, {}, is not within the {end} instants", Instants(.live))]
    NoRange { at: Tenant, live: LiveRange, end: Time },
    /// An argument is not there from the start, or a result or an argument that the caller keeps not to the end.
    #[error("{value} is live only in {}, but {why}", Instants(.live))]
    TooShort { value: ValueId, live: LiveRange, why: &'static str },
    /// An instant reads or writes a value that does not exist, or a group has the name of one.
    #[error("{value} is named as {named_as}, and there are {n_values} values")]
    NoSuchValue { value: ValueId, named_as: &'static str, n_values: usize },
    /// A value that needs bytes has none, or one that needs none has some.
    #[error("{value} has {size:#} bytes, and the placement gives it {}", if *.is_placed { "a slice" } else { "none" })]
    Unplaced { value: ValueId, size: Bytes, is_placed: bool },
    /// A slice is not within its allocation.
    #[error("{at} is not within {}", .slice.allocation)]
    OutOfBounds { at: Tenant, slice: Slice },
    /// A slice is smaller or larger than its contents.
    #[error("{at} needs {needed:#} bytes, and has {found:#}")]
    WrongSize { at: Tenant, needed: Bytes, found: Bytes },
    /// An address violates its alignment.
    #[error("{at} is at {:#} of {}, whose address is a multiple of {found}, but needs one of {needed}", .slice.offset, .slice.allocation)]
    Misaligned { at: Tenant, slice: Slice, found: Alignment, needed: Alignment },
    /// A slice is in another memory than it should be.
    #[error("{at} belongs in {needed} and is in {found}")]
    WrongSpace { at: Tenant, needed: MemorySpaceId, found: MemorySpaceId },
    /// Values of one group have different places.
    #[error("{first} and {second} must have the same place")]
    Apart { first: ValueId, second: ValueId },
    /// Two are in the same bytes at the same time.
    #[error("{first} and {second} share bytes at instant {time}")]
    Overlap { first: Tenant, second: Tenant, time: Time },
    /// The program would write where it must not.
    #[error("{value} is written to {allocation}, which is read-only")]
    ReadOnly { value: ValueId, allocation: AllocationId },
    /// A value is in an allocation for others.
    #[error("{value} should be in an allocation of its kind and is in {allocation}")]
    WrongAllocation { value: ValueId, allocation: AllocationId },
    /// An allocation for an argument that is none, or elsewhere.
    #[error("{allocation} is for argument {value}, which is not in it")]
    StrayArgument { allocation: AllocationId, value: ValueId },
    /// An allocation claims to hold a result and does not, or vice versa.
    #[error("{allocation} {}", if *.live_out { "is marked live out but holds no result" } else { "holds a result but is not marked live out" })]
    LiveOut { allocation: AllocationId, live_out: bool },
    /// Instants have working memory that they did not request, or lack requested memory.
    #[error("instant {time} needs {needed:#} bytes of scratch in {space} and has {found:#}")]
    WrongScratch { time: Time, space: MemorySpaceId, needed: Bytes, found: Bytes },
    /// A sum is not one.
    #[error("the placement claims {claimed:#} bytes for {what}; it is {found:#}")]
    WrongFigure { what: &'static str, claimed: Bytes, found: Bytes },
    /// An order has a node twice, or lacks it, or has one that does not exist.
    #[error("the order has {node} {times} times")]
    NotOnce { node: NodeId, times: u32 },
    /// A node runs before one of its dependencies.
    #[error("{node} runs before its dependency {dependency}")]
    OutOfOrder { node: NodeId, dependency: NodeId },
}

/// The owner of a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tenant {
    /// A value.
    Value(ValueId),
    /// The working memory of an instant.
    Scratch(Time),
}

impl core::fmt::Display for Tenant {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Tenant::Value(value) => write!(f, "{value}"),
            Tenant::Scratch(time) => write!(f, "the scratch of instant {time}"),
        }
    }
}

/// How a live range is written in messages.
struct Instants<'a>(&'a LiveRange);

impl core::fmt::Display for Instants<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "[{}, {})", self.0.start, self.0.end)
    }
}

/// Proves that an order runs every node of a region once, after its dependencies. Linear.
///
/// # Errors
/// The first thing that is wrong.
pub fn check_order(region: &Region, order: &[NodeId]) -> Result<(), Misplacement> {
    let mut places: SecondaryMap<NodeId, (u32, u32)> = SecondaryMap::new();
    for (&node, place) in order.iter().zip(0..) {
        if node.index() >= region.n_nodes {
            return Err(Misplacement::NotOnce { node, times: 1 });
        }
        places[node] = (places[node].0 + 1, place);
    }
    for node in (0..region.n_nodes).map(NodeId::new) {
        if places[node].0 != 1 {
            return Err(Misplacement::NotOnce { node, times: places[node].0 });
        }
    }
    match region
        .dependencies
        .iter()
        .find(|(before, after)| before != after && places[*before].1 > places[*after].1)
    {
        Some(&(dependency, node)) => Err(Misplacement::OutOfOrder { node, dependency }),
        None => Ok(()),
    }
}

/// Proves that a placement is right for a program on a target: everything has bytes of its size, alignment and memory
/// space; groups have one place; values that are live together share no byte, except where the program allows a result
/// to overwrite an operand; read-only values are not written; every instant has its scratch; sums and peaks equal the
/// claims. Takes time n log n in values, and in the reads and writes of instants.
///
/// What the program says is held against itself: every read and every write of a value of some bytes is within its
/// [`live`](Value::live) range, the range is part of the run, arguments are there from the start, and results and what
/// the caller keeps to the end.
///
/// Taken on trust, since nothing here knows what an operation is: that [`reads`](Program::reads) and
/// [`writes`](Program::writes) leave nothing out; that a value is written before it is read (in a loop laid out flat the
/// instant that writes it may come later); that the values of a [`group`](Program::group) do not need different bytes at
/// the same time; that [`may_overwrite`](Program::may_overwrite) says yes only where it may; sizes, memories, alignments
/// and working memory. That no placement is lower
/// ([`total_lower_bound`](memplan_units::Totals::total_lower_bound)) is not proved here.
///
/// # Errors
/// The first thing that is wrong.
pub fn check_placement(
    program: &impl Program,
    machine: &dyn Machine,
    placement: &Placement,
) -> Result<(), Misplacement> {
    let checker = Checker::new(program, machine, placement);
    let peaks = checker.check_places()?;
    checker.check_figures(&peaks)
}

/// Proves places like [`check_placement`], ignoring [`totals`](Placement::totals) and [`spaces`](Placement::spaces):
/// for placements without sums. Returns the most bytes in use at once.
///
/// # Errors
/// The first thing that is wrong.
pub fn check_places(
    program: &impl Program,
    machine: &dyn Machine,
    placement: &Placement,
) -> Result<Peaks, Misplacement> {
    Checker::new(program, machine, placement).check_places()
}

struct Checker<'a, P> {
    program: &'a P,
    machine: &'a dyn Machine,
    placement: &'a Placement,
    values: PrimaryMap<ValueId, Value>,
}

impl<'a, P: Program> Checker<'a, P> {
    fn new(program: &'a P, machine: &'a dyn Machine, placement: &'a Placement) -> Checker<'a, P> {
        let values = (0..program.n_values()).map(|i| program.value(ValueId::new(i)));
        Checker { program, machine, placement, values: values.collect() }
    }

    fn check_places(&self) -> Result<Peaks, Misplacement> {
        self.check_answers()?;
        self.check_values()?;
        self.check_allocations()?;
        self.check_scratch()?;
        overlap::check(self)
    }

    /// Everything that has bytes, with its slice.
    fn placed(&self) -> impl Iterator<Item = (ValueId, &Value, Slice)> {
        let slices = &self.placement.slices;
        self.values.iter().filter_map(move |(id, value)| Some((id, value, slices[id]?)))
    }

    fn check_values(&self) -> Result<(), Misplacement> {
        for (id, value) in &self.values {
            let slice = self.placement.slices[id];
            if slice.is_some() != (value.size > Bytes::ZERO) {
                let is_placed = slice.is_some();
                return Err(Misplacement::Unplaced { value: id, size: value.size, is_placed });
            }
            let Some(slice) = slice else { continue };
            self.check_slice(Tenant::Value(id), slice, value.size, value.space, value.alignment)?;
            let first = self.program.group(id);
            let of_first = self.placement.slices[first];
            if of_first.is_some_and(|s| (s.allocation, s.offset) != (slice.allocation, slice.offset)) {
                return Err(Misplacement::Apart { first, second: id });
            }
            self.check_kind(id, value, slice)?;
        }
        Ok(())
    }

    /// Whether a slice is within an allocation of the right memory, as large and aligned as it has to be.
    fn check_slice(
        &self,
        at: Tenant,
        slice: Slice,
        size: Bytes,
        space: MemorySpaceId,
        alignment: Alignment,
    ) -> Result<(), Misplacement> {
        let allocation = self.placement.allocations.get(slice.allocation);
        let end = slice.offset.checked_add(slice.size);
        let Some(allocation) = allocation.filter(|a| end.is_some_and(|end| end <= a.size)) else {
            return Err(Misplacement::OutOfBounds { at, slice });
        };
        if slice.size != size {
            return Err(Misplacement::WrongSize { at, needed: size, found: slice.size });
        }
        if allocation.space != space {
            return Err(Misplacement::WrongSpace { at, needed: space, found: allocation.space });
        }
        // The caller's arguments may have a smaller alignment than the program's own values.
        let needed = self.machine.alignment(space).min(allocation.alignment).max(alignment);
        if allocation.alignment < needed || !slice.offset.is_aligned(needed) {
            return Err(Misplacement::Misaligned { at, slice, found: allocation.alignment, needed });
        }
        Ok(())
    }

    /// Whether a value may be in the kind of allocation that it is in.
    fn check_kind(&self, id: ValueId, value: &Value, slice: Slice) -> Result<(), Misplacement> {
        let Slice { allocation, offset, .. } = slice;
        let kind = self.placement.allocations[allocation].kind;
        let is_right = match value.origin {
            Origin::Argument { .. } => kind == AllocationKind::Argument(id) && offset == Bytes::ZERO,
            Origin::Constant => kind == AllocationKind::Constant && !value.is_result,
            Origin::Computed => {
                let is_read_only = match kind {
                    AllocationKind::Argument(of) => !self.values.get(of).is_some_and(is_writable),
                    AllocationKind::Constant => true,
                    AllocationKind::Output | AllocationKind::Temp => false,
                };
                if is_read_only {
                    return Err(Misplacement::ReadOnly { value: id, allocation });
                }
                !value.is_result || kind != AllocationKind::Temp
            }
        };
        if is_right { Ok(()) } else { Err(Misplacement::WrongAllocation { value: id, allocation }) }
    }

    fn check_allocations(&self) -> Result<(), Misplacement> {
        let mut holds_result: SecondaryMap<AllocationId, bool> = SecondaryMap::new();
        self.placed().filter(|(_, v, _)| v.is_result).for_each(|(_, _, s)| holds_result[s.allocation] = true);
        for (id, allocation) in &self.placement.allocations {
            if let AllocationKind::Argument(value) = allocation.kind {
                let of_value = self.placement.slices.get(value).copied().flatten();
                let is_there = of_value.is_some_and(|s| s.allocation == id && s.size == allocation.size);
                let origin = self.values.get(value).map(|value| value.origin);
                if !is_there || !matches!(origin, Some(Origin::Argument { .. })) {
                    return Err(Misplacement::StrayArgument { allocation: id, value });
                }
            }
            if allocation.live_out != holds_result[id] {
                return Err(Misplacement::LiveOut { allocation: id, live_out: allocation.live_out });
            }
        }
        Ok(())
    }

    /// The scratch that begins at each instant in each space: when it ends, and how much it is. Of several that an instant
    /// asks for, the last end and the largest size.
    fn needed_scratch(&self) -> BTreeMap<(Time, MemorySpaceId), (Time, Bytes)> {
        let mut needed: BTreeMap<_, (Time, Bytes)> = BTreeMap::new();
        for Scratch { time, end, space, size } in self.program.scratch().filter(|it| it.size > Bytes::ZERO) {
            let (last, most) = needed.entry((time, space)).or_default();
            (*last, *most) = (end.max(*last), size.max(*most));
        }
        needed
    }

    /// Whether each instant has the scratch that it asks for, and no other.
    fn check_scratch(&self) -> Result<(), Misplacement> {
        let needed = self.needed_scratch().into_iter();
        let needed: Vec<_> = needed.map(|((time, space), (_, size))| (time, space, size)).collect();
        let mut found = Vec::with_capacity(self.placement.scratch.len());
        for &(time, slice) in &self.placement.scratch {
            let at = Tenant::Scratch(time);
            let allocation = self.placement.allocations.get(slice.allocation);
            let space = allocation.ok_or(Misplacement::OutOfBounds { at, slice })?.space;
            self.check_slice(at, slice, slice.size, space, Alignment::ONE)?;
            found.push((time, space, slice.size));
        }
        found.sort_unstable();
        let differ = needed.iter().zip(&found).find(|(needed, found)| needed != found);
        let differ = differ.map(|(&needed, &found)| (needed, found)).or_else(|| {
            let n = needed.len().min(found.len());
            let missing =
                needed.get(n).map(|&(time, space, size)| ((time, space, size), (time, space, Bytes::ZERO)));
            missing.or_else(|| {
                found.get(n).map(|&(time, space, size)| ((time, space, Bytes::ZERO), (time, space, size)))
            })
        });
        match differ {
            Some(((time, space, needed), (other_time, other_space, found))) => {
                let found = if (time, space) == (other_time, other_space) { found } else { Bytes::ZERO };
                Err(Misplacement::WrongScratch { time, space, needed, found })
            }
            None => Ok(()),
        }
    }

    fn check_figures(&self, peaks: &Peaks) -> Result<(), Misplacement> {
        let claimed = &self.placement.totals;
        let allocations = self.placement.allocations.values();
        let sum = |is_one: &dyn Fn(&AllocationKind, MemorySpaceId) -> bool| {
            let sizes = allocations.clone().filter(|a| is_one(&a.kind, a.space)).map(|a| a.size);
            sizes.fold(Bytes::ZERO, Bytes::saturating_add)
        };
        let arguments = sum(&|kind, _| matches!(kind, AllocationKind::Argument(_)));
        let own_outputs = sum(&|kind, _| *kind == AllocationKind::Output);
        let constants = sum(&|kind, _| *kind == AllocationKind::Constant);
        let temp = sum(&|kind, space| *kind == AllocationKind::Temp && space == MemorySpaceId::MAIN);
        let parts = [arguments, own_outputs, constants, temp];
        let lower_bound = peaks.temp.get(&MemorySpaceId::MAIN).copied().unwrap_or_default();
        let aliased = self.aliased();
        let found = Totals {
            arguments,
            outputs: own_outputs.saturating_add(aliased),
            aliased,
            constants,
            temp,
            total: parts.into_iter().fold(Bytes::ZERO, Bytes::saturating_add),
            total_lower_bound: claimed.total_lower_bound,
            peak_live: peaks.all,
            temp_lower_bound: lower_bound,
            fragmentation: temp.saturating_sub(lower_bound),
            padding: claimed.padding,
        };
        let figures = |t: &Totals| {
            [
                ("the sum of arguments", t.arguments),
                ("the sum of results", t.outputs),
                ("the sum of results in arguments", t.aliased),
                ("the sum of constants", t.constants),
                ("the arena", t.temp),
                ("the total", t.total),
                ("the most that is live at once", t.peak_live),
                ("the lower bound of the arena", t.temp_lower_bound),
                ("what the arena takes above its bound", t.fragmentation),
            ]
        };
        let mut pairs: Vec<_> = figures(claimed).into_iter().zip(figures(&found)).collect();
        for space in &self.placement.spaces {
            let in_space = |is_one: fn(&AllocationKind) -> bool| {
                sum(&move |kind, found| found == space.space && is_one(kind))
            };
            let bound = peaks.temp.get(&space.space).copied().unwrap_or_default();
            let found = [
                (
                    "the sum of arguments in a space",
                    in_space(|kind| matches!(kind, AllocationKind::Argument(_))),
                ),
                ("the sum of results in a space", in_space(|kind| *kind == AllocationKind::Output)),
                ("the sum of constants in a space", in_space(|kind| *kind == AllocationKind::Constant)),
                ("the arena of a space", in_space(|kind| *kind == AllocationKind::Temp)),
                ("the lower bound of an arena", bound),
            ];
            let claimed =
                [space.arguments, space.outputs, space.constants, space.temp, space.temp_lower_bound];
            pairs.extend(claimed.into_iter().zip(found).map(|(claimed, found)| ((found.0, claimed), found)));
        }
        let wrong = pairs.into_iter().find(|(claimed, found)| claimed.1 != found.1);
        wrong.map_or(Ok(()), |((what, claimed), (_, found))| {
            Err(Misplacement::WrongFigure { what, claimed, found })
        })
    }

    /// Bytes of results in arguments: of those at one place, the largest.
    fn aliased(&self) -> Bytes {
        let mut largest: SecondaryMap<AllocationId, Bytes> = SecondaryMap::new();
        for (_, value, slice) in self.placed().filter(|(_, value, _)| value.is_result) {
            if let AllocationKind::Argument(_) = self.placement.allocations[slice.allocation].kind {
                largest[slice.allocation] = largest[slice.allocation].max(value.size);
            }
        }
        largest.values().copied().fold(Bytes::ZERO, Bytes::saturating_add)
    }
}

/// Whether the program may write where an argument is.
fn is_writable(value: &Value) -> bool {
    matches!(value.origin, Origin::Argument { writable: true, .. })
}
