//! A lower bound on the bytes of every placement of a program, with any sharing.
//!
//! Arguments and constants have memory of their own. Every other value that is needed at an instant needs bytes beside
//! them, or bytes of a donated argument that is not needed then:
//!
//! ```text
//!   beside  ≥  live, less what is written over operands, less what of given arguments is free      at every instant
//! ```
//!
//! An argument can hold only a value that is no larger. So the bound also holds if both sides count only values above
//! some size: two donated arguments of 8 bytes have no room for 16.
//!
//! The bound takes the program's data as given: its order, live ranges, sizes, groups, memory spaces, working memory,
//! and which results may overwrite which operands. It ignores offsets, so a placement may have to be above it.

use std::collections::BTreeMap;

use cranelift_entity::SecondaryMap;
use memplan_program::{LiveRange, Origin, Program, Time, ValueId};
use memplan_units::{Bytes, MemorySpaceId};

use crate::{StorageId, StorageKind, Storages};

/// Sizes of given arguments that the bound tells apart, the largest first. Each is a pass over everything that is live.
const MOST_SIZES: usize = 16;

/// Pairs of an operand and a result of one instant that are looked at; where there are more, each result may be written
/// over any operand that ends.
const MOST_PAIRS: usize = 4096;

/// The least that a placement of a program takes of all memory that counts: arguments, constants and results in every
/// space, and the arena of main memory. `groups` are the values that must share, before any share by choice. Close to
/// linear in values and in what instants read and write.
pub(crate) fn least_total(program: &impl Program, groups: &Storages) -> Bytes {
    let mut least = of_their_own(groups);
    least += Beside::new(program, groups).least();
    least += results_elsewhere(groups);
    Bytes(u64::try_from(least).unwrap_or(u64::MAX))
}

/// Bytes of arguments and constants, which nothing else can be instead.
fn of_their_own(groups: &Storages) -> i128 {
    let arguments = groups.values.values().filter(|value| matches!(value.origin, Origin::Argument { .. }));
    let constants = groups.all.values().filter(|storage| storage.kind == StorageKind::Constant);
    let sizes = arguments.map(|value| value.size).chain(constants.map(|storage| storage.size));
    sizes.map(|size| i128::from(size.0)).sum()
}

/// Bytes of results in other memories than main memory that find no argument to be in.
fn results_elsewhere(groups: &Storages) -> i128 {
    let mut beside: BTreeMap<MemorySpaceId, i128> = BTreeMap::new();
    for storage in groups.all.values().filter(|storage| storage.space != MemorySpaceId::MAIN) {
        let result = groups.result_of(storage);
        let bytes = match storage.kind {
            StorageKind::Output => i128::from(result.0),
            StorageKind::Argument if result == Bytes::ZERO && groups.is_writable(storage) => {
                -i128::from(storage.size.0)
            }
            _ => 0,
        };
        *beside.entry(storage.space).or_default() += bytes;
    }
    beside.values().map(|&bytes| bytes.max(0)).sum()
}

/// The needs at each instant in main memory, in addition to arguments and constants.
struct Beside {
    end: Time,
    /// Live values with their times and bytes: for a value in an argument, the argument's bytes that are not free.
    live: Vec<Live>,
    /// Sizes of the arguments that were given up.
    given: Vec<Bytes>,
    /// Results that may be written over operands, by instant.
    overwritten: Vec<Overwritten>,
}

struct Live {
    range: LiveRange,
    bytes: Bytes,
    /// The size class: values of at least this size.
    size: Bytes,
}

/// The most that can be shared between operands that end at an instant and results that begin there: no more than all
/// results share, nor all operands.
struct Overwritten {
    time: Time,
    results: Vec<Shared>,
    operands: Vec<Shared>,
}

#[derive(Clone, Copy, Default)]
struct Shared {
    bytes: Bytes,
    size: Bytes,
}

impl Beside {
    fn new(program: &impl Program, groups: &Storages) -> Beside {
        let mut beside =
            Beside { end: groups.end, live: Vec::new(), given: Vec::new(), overwritten: Vec::new() };
        for (id, storage) in groups.all.iter().filter(|(_, it)| it.space == MemorySpaceId::MAIN) {
            let argument = groups.argument_of(storage);
            match storage.kind {
                StorageKind::Nowhere | StorageKind::Constant => continue,
                StorageKind::Argument if !groups.is_writable(storage) => continue,
                StorageKind::Argument => beside.given.push(argument),
                StorageKind::Output | StorageKind::Temp => {}
            }
            let is_argument = storage.kind == StorageKind::Argument;
            beside.live.extend(groups.occupancy(id).into_iter().map(|(range, bytes)| match is_argument {
                true => Live { range, bytes: bytes.min(argument), size: argument },
                false => Live { range, bytes, size: bytes },
            }));
        }
        // Of several that an instant asks for, the last end and the largest size.
        let mut scratch: BTreeMap<Time, (Time, Bytes)> = BTreeMap::new();
        for it in program.scratch().filter(|it| it.space == MemorySpaceId::MAIN) {
            let (end, size) = scratch.entry(it.time).or_default();
            (*end, *size) = (it.end.max(*end), it.size.max(*size));
        }
        beside.live.extend(scratch.into_iter().map(|(start, (end, bytes))| Live {
            range: LiveRange { start, end },
            bytes,
            size: bytes,
        }));
        let is_kept = kept_after(groups);
        let instants = (0..groups.end).filter(|&time| program.may_reuse(time));
        beside.overwritten =
            instants.filter_map(|time| overwritten(program, groups, &is_kept, time)).collect();
        beside
    }

    /// The most over all instants, and over the sizes that count.
    fn least(&self) -> i128 {
        let mut sizes: Vec<Bytes> = self.given.clone();
        sizes.sort_unstable();
        sizes.dedup();
        let above = sizes.into_iter().rev().take(MOST_SIZES).map(|size| size.saturating_add(Bytes(1)));
        above.chain([Bytes::ZERO]).map(|size| self.least_of(size)).max().unwrap_or(0).max(0)
    }

    /// The same, counting only values of this size or more.
    fn least_of(&self, size: Bytes) -> i128 {
        let last = self.end as usize;
        let mut changes = vec![0i128; last + 1];
        for live in self.live.iter().filter(|live| live.size >= size) {
            changes[(live.range.start as usize).min(last)] += i128::from(live.bytes.0);
            changes[(live.range.end as usize).min(last)] -= i128::from(live.bytes.0);
        }
        let sum = |shared: &[Shared]| -> i128 {
            shared.iter().filter(|it| it.size >= size).map(|it| i128::from(it.bytes.0)).sum()
        };
        let mut overwritten = self.overwritten.iter().peekable();
        let mut now = 0;
        let curve = changes[..last].iter().zip(0..).map(|(change, time)| {
            now += change;
            let here = overwritten.next_if(|it| it.time == time);
            now - here.map_or(0, |it| sum(&it.results).min(sum(&it.operands)))
        });
        let most = curve.max().unwrap_or(0);
        let free = self.given.iter().filter(|&&given| given >= size).map(|given| i128::from(given.0));
        most - free.sum::<i128>()
    }
}

/// The groups that somebody needs after the last instant.
fn kept_after(groups: &Storages) -> SecondaryMap<StorageId, bool> {
    let mut kept = SecondaryMap::new();
    for (id, storage) in groups.all.iter() {
        kept[id] = groups.result_of(storage) > Bytes::ZERO || !groups.is_writable(storage);
    }
    kept
}

/// The operands that an instant may overwrite; `None` if it may overwrite none.
fn overwritten(
    program: &impl Program,
    groups: &Storages,
    is_kept: &SecondaryMap<StorageId, bool>,
    time: Time,
) -> Option<Overwritten> {
    let named = |values: &mut dyn Iterator<Item = ValueId>, counts: &dyn Fn(StorageId) -> bool| {
        let groups = values.map(|value| (groups.of(value), value));
        let mut named: Vec<(StorageId, ValueId)> = groups.filter(|&(group, _)| counts(group)).collect();
        named.sort_unstable();
        named.dedup();
        named
    };
    let in_main = |group: StorageId| groups.all[group].space == MemorySpaceId::MAIN;
    let ends = |group: StorageId| {
        let is_last = time + 1 == groups.end;
        in_main(group)
            && !(is_last && is_kept[group])
            && groups.all[group].busy.binary_search_by_key(&(time + 1), |range| range.end).is_ok()
    };
    let begins = |group: StorageId| {
        in_main(group) && groups.all[group].busy.binary_search_by_key(&time, |range| range.start).is_ok()
    };
    let results = named(&mut program.writes(time), &begins);
    if results.is_empty() {
        return None;
    }
    let operands = named(&mut program.reads(time), &ends);
    if operands.is_empty() {
        return None;
    }
    let is_any = results.len().saturating_mul(operands.len()) > MOST_PAIRS;
    let operands: Vec<&[(StorageId, ValueId)]> = operands.chunk_by(|a, b| a.0 == b.0).collect();
    let mut by_operand = vec![Shared::default(); operands.len()];
    let mut by_result = Vec::new();
    for results in results.chunk_by(|a, b| a.0 == b.0) {
        let mut best = Shared::default();
        for (operands, by_operand) in operands.iter().zip(&mut by_operand) {
            let shared = shared(groups, operands[0].0, results[0].0);
            let pairs = || {
                operands
                    .iter()
                    .flat_map(|&(_, operand)| results.iter().map(move |&(_, result)| (operand, result)))
            };
            if let Some(shared) = shared
                && (is_any || pairs().all(|(operand, result)| program.may_overwrite(time, operand, result)))
            {
                for most in [&mut best, by_operand] {
                    *most = Shared { bytes: most.bytes.max(shared.bytes), size: most.size.max(shared.size) };
                }
            }
        }
        by_result.push(best);
    }
    Some(Overwritten { time, results: by_result, operands: by_operand })
}

/// The bytes that two groups share at the instant at which one is written over the other; `None` if they cannot share.
fn shared(groups: &Storages, old: StorageId, new: StorageId) -> Option<Shared> {
    let (old, new) = (&groups.all[old], &groups.all[new]);
    let bytes = old.size.min(new.size);
    let in_argument = |it: &crate::Storage| it.kind == StorageKind::Argument;
    let outside = match (in_argument(old), in_argument(new)) {
        (true, true) => return None,
        (true, false) => (new.size <= groups.argument_of(old)).then_some(new.size)?,
        (false, true) => (old.size <= groups.argument_of(new)).then_some(old.size)?,
        (false, false) => bytes,
    };
    Some(Shared { bytes, size: outside })
}
