//! Tracks the bytes from instant to instant: which values are where, and which share.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::ops::Bound::{Excluded, Unbounded};

use memplan_program::{AllocationKind, LiveRange, Origin, Program, Time, ValueId};
use memplan_units::{AllocationId, Bytes, MemorySpaceId, Slice};

use super::{Checker, Misplacement, Tenant, is_writable};

/// The most bytes in use at once, each byte once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peaks {
    /// Of all values.
    pub all: Bytes,
    /// Of each arena, scratch included.
    pub temp: BTreeMap<MemorySpaceId, Bytes>,
}

/// Somebody in a slice for a while.
#[derive(Clone, Copy)]
struct Stay {
    tenant: Tenant,
    slice: Slice,
    live: LiveRange,
}

/// The beginning of a slice. Slices that share bytes begin at the same byte, or the placement is wrong.
type Place = (AllocationId, Bytes);

/// Finds two that share bytes while both are needed, or else how much is needed at once.
pub(super) fn check<P: Program>(checker: &Checker<'_, P>) -> Result<Peaks, Misplacement> {
    let stays = stays(checker);
    let mut by_end: Vec<usize> = (0..stays.len()).collect();
    by_end.sort_unstable_by_key(|&i| stays[i].live.end);
    let mut leaving = by_end.into_iter().peekable();
    let mut sweep = Sweep {
        checker,
        here: BTreeMap::new(),
        all: Bytes::ZERO,
        temp: BTreeMap::new(),
        peaks: Peaks { all: Bytes::ZERO, temp: BTreeMap::new() },
    };
    for same_start in stays.chunk_by(|a, b| a.live.start == b.live.start) {
        let now = same_start[0].live.start;
        while let Some(i) = leaving.next_if(|&i| stays[i].live.end <= now) {
            sweep.leave(stays[i]);
        }
        for &stay in same_start {
            sweep.enter(stay)?;
        }
        sweep.note_peaks();
    }
    Ok(sweep.peaks)
}

/// All stays by their start. Read-only values stay for the whole run; they and results stay after the end, so that not
/// even the last instant overwrites them.
fn stays<P: Program>(checker: &Checker<'_, P>) -> Vec<Stay> {
    let after = checker.program.end().saturating_add(1);
    let values = checker.placed().map(|(id, value, slice)| {
        let live = match value.origin {
            Origin::Constant => LiveRange { start: 0, end: after },
            Origin::Argument { .. } if !is_writable(value) => LiveRange { start: 0, end: after },
            _ if value.is_result => LiveRange { end: after, ..value.live },
            _ => value.live,
        };
        Stay { tenant: Tenant::Value(id), slice, live }
    });
    let needed = checker.needed_scratch();
    let scratch = checker.placement.scratch.iter().map(|&(time, slice)| {
        let space = checker.placement.allocations[slice.allocation].space;
        let end = needed.get(&(time, space)).map_or(time.saturating_add(1), |&(end, _)| end);
        let live = LiveRange { start: time, end };
        Stay { tenant: Tenant::Scratch(time), slice, live }
    });
    let mut stays: Vec<Stay> = values.chain(scratch).collect();
    stays.sort_by_key(|stay| stay.live.start);
    stays
}

struct Sweep<'a, 'c, P> {
    checker: &'a Checker<'c, P>,
    /// The present stays.
    here: BTreeMap<Place, Vec<Stay>>,
    /// Bytes of values now.
    all: Bytes,
    /// Bytes of arenas now.
    temp: BTreeMap<MemorySpaceId, Bytes>,
    peaks: Peaks,
}

impl<P: Program> Sweep<'_, '_, P> {
    fn enter(&mut self, stay: Stay) -> Result<(), Misplacement> {
        let place = (stay.slice.allocation, stay.slice.offset);
        let before = self.here.range(..place).next_back();
        let after = self.here.range((Excluded(place), Unbounded)).next();
        let neighbors = before.into_iter().chain(after).flat_map(|(_, others)| others);
        let collides = |other: &&Stay| other.slice.overlaps(&stay.slice);
        let same = self.here.get(&place).into_iter().flatten();
        let other =
            neighbors.filter(collides).chain(same.filter(|other| !self.may_share(&stay, other))).next();
        if let Some(other) = other {
            let (first, second, time) = (other.tenant, stay.tenant, stay.live.start);
            return Err(Misplacement::Overlap { first, second, time });
        }
        self.change(place, |here| here.push(stay));
        Ok(())
    }

    fn leave(&mut self, stay: Stay) {
        self.change((stay.slice.allocation, stay.slice.offset), |here| {
            here.retain(|other| other.tenant != stay.tenant);
        });
    }

    /// Changes who is at a place, and counts the difference.
    fn change(&mut self, place: Place, change: impl FnOnce(&mut Vec<Stay>)) {
        let here = self.here.entry(place).or_default();
        let largest = |here: &[Stay], is_value: bool| {
            let sizes = here.iter().filter(|s| !is_value || matches!(s.tenant, Tenant::Value(_)));
            sizes.map(|stay| stay.slice.size).max().unwrap_or_default()
        };
        let (old, old_values) = (largest(here, false), largest(here, true));
        change(here);
        let (new, new_values) = (largest(here, false), largest(here, true));
        if here.is_empty() {
            self.here.remove(&place);
        }
        self.all = self.all.saturating_add(new_values).saturating_sub(old_values);
        let allocation = &self.checker.placement.allocations[place.0];
        if allocation.kind == AllocationKind::Temp {
            let temp = self.temp.entry(allocation.space).or_default();
            *temp = temp.saturating_add(new).saturating_sub(old);
        }
    }

    fn note_peaks(&mut self) {
        self.peaks.all = self.peaks.all.max(self.all);
        for (&space, &bytes) in &self.temp {
            let most = self.peaks.temp.entry(space).or_default();
            *most = bytes.max(*most);
        }
    }

    /// Whether two at the same place may be there together: values of one group, or, for a single instant, a result and
    /// the operand that it is written over. The one that enters comes first.
    fn may_share(&self, entering: &Stay, there: &Stay) -> bool {
        let (Tenant::Value(new), Tenant::Value(old)) = (entering.tenant, there.tenant) else { return false };
        let group = |value: ValueId| self.checker.program.group(value);
        let time = entering.live.start;
        group(new) == group(old)
            || there.live.end == time + 1 && self.is_written_over(time, group(old), group(new))
            || entering.live.end == time + 1
                && there.live.start == time
                && self.is_written_over(time, group(new), group(old))
    }

    /// Whether an instant writes values of one group over all values of another that it reads.
    fn is_written_over(&self, time: Time, old: ValueId, new: ValueId) -> bool {
        let program = self.checker.program;
        if !program.may_reuse(time) {
            return false;
        }
        let in_group = |group: ValueId| move |value: &ValueId| program.group(*value) == group;
        let mut reads = program.reads(time).filter(in_group(old)).peekable();
        let writes: Vec<ValueId> = program.writes(time).filter(in_group(new)).collect();
        reads.peek().is_some()
            && !writes.is_empty()
            && reads.all(|read| writes.iter().all(|&written| program.may_overwrite(time, read, written)))
    }
}
