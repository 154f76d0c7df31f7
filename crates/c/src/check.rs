//! `memplan_check_placement`.

use std::collections::BTreeSet;

use cranelift_entity::{EntityRef, PrimaryMap, SecondaryMap};
use memplan_check_placement::{Misplacement, Tenant, check_places};
use memplan_program::{
    Allocation, AllocationKind, LiveRange, Placement, Program as Answers, Time, Value, ValueId,
};
use memplan_units::{Alignment, Bytes, MemorySpaceId, OneMemory, Slice};

use crate::border::{Failure, Posed, array, check_pointer, guard, reference};
use crate::{Access, BAD_PROBLEM, Error, MISPLACED, NONE, Overwrite, Problem, Program};

/// Proves that offsets are right for a program.
///
/// # Safety
/// Pointers are NULL or point to what the header says, which nobody else writes meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memplan_check_placement(
    problem: *const Problem,
    program: *const Program,
    offsets: *const u64,
    peak: *mut u64,
    error: *mut Error,
) -> i32 {
    let body = || {
        // SAFETY: the caller says so of all of these.
        let (posed, offsets, instants) = unsafe {
            let posed = Posed::read(problem)?;
            let offsets = array(offsets, posed.items.len(), "offsets")?;
            let instants = match program.is_null() {
                true => Instants::unknown(&posed),
                false => Instants::read(reference(program, "program")?, posed.items.len())?,
            };
            (posed, offsets, instants)
        };
        if !peak.is_null() {
            check_pointer(peak, "peak")?;
        }
        let bytes = check(&posed, offsets, instants)?;
        if !peak.is_null() {
            // SAFETY: it points to a number.
            unsafe { peak.write(bytes.0) };
        }
        Ok(())
    };
    // SAFETY: the caller says so.
    unsafe { guard(error, body) }
}

/// The reads and writes of a program's instants, in order.
struct Instants {
    end: Time,
    reads: Vec<(Time, ValueId)>,
    writes: Vec<(Time, ValueId)>,
    overwrites: BTreeSet<(Time, ValueId, ValueId)>,
}

impl Instants {
    /// So many that every item is live at some.
    fn unknown(posed: &Posed<'_>) -> Instants {
        let end = posed.items.iter().map(|item| item.upper).max().unwrap_or(0);
        let end = Time::try_from(end).unwrap_or(Time::MAX);
        Instants { end, reads: Vec::new(), writes: Vec::new(), overwrites: BTreeSet::new() }
    }

    /// # Safety
    /// The pointers of the program are NULL or point to arrays of so many elements.
    unsafe fn read(program: &Program, n_items: usize) -> Result<Instants, Failure> {
        // SAFETY: the caller says so of all of these.
        let (reads, writes, overwrites) = unsafe {
            let reads = array(program.reads, program.n_reads, "reads")?;
            let writes = array(program.writes, program.n_writes, "writes")?;
            (reads, writes, array(program.overwrites, program.n_overwrites, "overwrites")?)
        };
        let end = Time::try_from(program.n_instants).map_err(|_| {
            Failure::new(
                BAD_PROBLEM,
                format_args!("there are {} instants, more than 2^32 - 1", program.n_instants),
            )
        })?;
        let names = Names { end, n_items };
        let accesses = |list: &[Access], what: &str| {
            let read = |access: &Access| Ok((names.time(access.time, what)?, names.item(access.item, what)?));
            let mut accesses = list.iter().map(read).collect::<Result<Vec<_>, Failure>>()?;
            accesses.sort();
            Ok(accesses)
        };
        let overwrite = |it: &Overwrite| {
            let what = "an overwrite";
            Ok((names.time(it.time, what)?, names.item(it.operand, what)?, names.item(it.result, what)?))
        };
        Ok(Instants {
            end,
            reads: accesses(reads, "a read")?,
            writes: accesses(writes, "a write")?,
            overwrites: overwrites.iter().map(overwrite).collect::<Result<_, Failure>>()?,
        })
    }
}

/// The times and items that there are.
struct Names {
    end: Time,
    n_items: usize,
}

impl Names {
    fn time(&self, time: u64, what: &str) -> Result<Time, Failure> {
        let known = Time::try_from(time).ok().filter(|&known| known < self.end);
        known.ok_or_else(|| {
            let end = self.end;
            let failure = format_args!("{what} is at instant {time}, and there are {end} instants");
            Failure::new(BAD_PROBLEM, failure).at(time)
        })
    }

    fn item(&self, item: u64, what: &str) -> Result<ValueId, Failure> {
        let n_items = self.n_items;
        let known = usize::try_from(item).ok().filter(|&known| known < n_items).map(ValueId::new);
        known.ok_or_else(|| {
            let failure = format_args!("{what} is of item {item}, and there are {n_items} items");
            Failure::new(BAD_PROBLEM, failure).of(item, NONE)
        })
    }
}

/// The program as the checker asks for it: all items are computed values of one memory.
struct Asked<'a> {
    posed: &'a Posed<'a>,
    values: Vec<Value>,
    instants: Instants,
}

impl Answers for Asked<'_> {
    fn end(&self) -> Time {
        self.instants.end
    }

    fn n_values(&self) -> usize {
        self.values.len()
    }

    fn value(&self, value: ValueId) -> Value {
        self.values[value.index()]
    }

    fn group(&self, value: ValueId) -> ValueId {
        ValueId::new(self.posed.group(value.index()))
    }

    fn reads(&self, time: Time) -> impl Iterator<Item = ValueId> {
        at(&self.instants.reads, time)
    }

    fn writes(&self, time: Time) -> impl Iterator<Item = ValueId> {
        at(&self.instants.writes, time)
    }

    fn may_overwrite(&self, time: Time, operand: ValueId, result: ValueId) -> bool {
        self.instants.overwrites.contains(&(time, operand, result))
    }
}

fn at(accesses: &[(Time, ValueId)], time: Time) -> impl Iterator<Item = ValueId> {
    let first = accesses.partition_point(|access| access.0 < time);
    accesses[first..].iter().take_while(move |access| access.0 == time).map(|access| access.1)
}

/// Holds offsets against a problem and its instants, and returns the most bytes in use at once.
fn check(posed: &Posed<'_>, offsets: &[u64], instants: Instants) -> Result<Bytes, Failure> {
    let values = (0..offsets.len()).map(|item| value(posed, item)).collect::<Result<Vec<_>, Failure>>()?;
    for (item, &offset) in offsets.iter().enumerate() {
        if let Some(fixed) = posed.fixed(item).filter(|&fixed| fixed != offset) {
            let what = format_args!("item {item} is at {offset} and fixed at {fixed}");
            return Err(Failure::new(MISPLACED, what).of(item as u64, NONE));
        }
    }
    let mut allocations = PrimaryMap::new();
    let all = allocations.push(Allocation {
        kind: AllocationKind::Temp,
        space: MemorySpaceId::MAIN,
        size: Bytes(posed.capacity.unwrap_or(u64::MAX)),
        alignment: values.iter().map(|value| value.alignment).max().unwrap_or(Alignment::ONE),
        live_out: false,
    });
    let mut slices = SecondaryMap::new();
    for (item, (value, &offset)) in values.iter().zip(offsets).enumerate() {
        let slice = Slice { allocation: all, offset: Bytes(offset), size: value.size };
        slices[ValueId::new(item)] = Some(slice).filter(|slice| !slice.size.is_zero());
    }
    let placement = Placement { allocations, slices, ..Placement::default() };
    let memory = OneMemory { name: "memory".into(), capacity: None, alignment: Alignment::ONE };
    let peaks = check_places(&Asked { posed, values, instants }, &memory, &placement);
    peaks.map(|peaks| peaks.all).map_err(misplaced)
}

/// An item as a value of the checker, which counts times in 32 bits and has alignments that are powers of two.
fn value(posed: &Posed<'_>, item: usize) -> Result<Value, Failure> {
    let crate::Item { size, alignment, lower, upper } = posed.items[item];
    let (Ok(start), Ok(end)) = (Time::try_from(lower), Time::try_from(upper)) else {
        let what = format_args!("item {item} is live in [{lower}, {upper}), and times are below 2^32 here");
        return Err(Failure::new(BAD_PROBLEM, what).of(item as u64, NONE));
    };
    let alignment = Alignment::new(alignment).map_err(|error| {
        Failure::new(BAD_PROBLEM, format_args!("item {item}: {error}")).of(item as u64, NONE)
    })?;
    Ok(Value { alignment, ..Value::computed(Bytes(size), LiveRange { start, end }) })
}

/// A wrong place, or a program that contradicts itself, in the words of the header.
fn misplaced(error: Misplacement) -> Failure {
    let id = |value: ValueId| u64::from(value.as_u32());
    // Nothing asks for working memory.
    let who = |tenant: Tenant| if let Tenant::Value(value) = tenant { id(value) } else { NONE };
    let dead = |does: &str, value, time, live: LiveRange| {
        let (item, LiveRange { start, end }) = (id(value), live);
        let what = format_args!("instant {time} {does} item {item}, which is live in [{start}, {end}) only");
        Failure::new(BAD_PROBLEM, what).of(item, NONE).at(u64::from(time))
    };
    match error {
        Misplacement::Overlap { first, second, time } => {
            let (first, second) = (who(first), who(second));
            let what = format_args!("items {first} and {second} share bytes at instant {time}");
            Failure::new(MISPLACED, what).of(first, second).at(u64::from(time))
        }
        Misplacement::Apart { first, second } => {
            let (first, second) = (id(first), id(second));
            let what = format_args!("items {first} and {second} are of one group and have different offsets");
            Failure::new(MISPLACED, what).of(first, second)
        }
        Misplacement::OutOfBounds { at, slice } => {
            let (item, offset) = (who(at), slice.offset.0);
            let what = format_args!("item {item} at {offset} ends beyond the capacity");
            Failure::new(MISPLACED, what).of(item, NONE)
        }
        Misplacement::Misaligned { at, slice, needed, .. } => {
            let (item, offset) = (who(at), slice.offset.0);
            let what = format_args!("item {item} is at {offset}, which is not a multiple of {needed}");
            Failure::new(MISPLACED, what).of(item, NONE)
        }
        Misplacement::ReadWhileDead { value, time, live } => dead("reads", value, time, live),
        Misplacement::WrittenWhileDead { value, time, live } => dead("writes", value, time, live),
        Misplacement::NoRange { at, live, end } => {
            let (item, LiveRange { start, end: last }) = (who(at), live);
            let what = format_args!(
                "item {item} is live in [{start}, {last}), which is no part of the {end} instants"
            );
            Failure::new(BAD_PROBLEM, what).of(item, NONE)
        }
        other => Failure::new(MISPLACED, other),
    }
}
