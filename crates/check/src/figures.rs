//! The other claims of a plan: totals, figures of memory spaces, peaks, padding.

use std::collections::BTreeMap;

use memplan_memory::{
    Alignment, Allocation, AllocationId, AllocationKind, Bytes, MemorySpaceId, SpaceTotals,
};
use rustc_hash::FxHashMap;

use crate::Violation;
use crate::facts::{Facts, Report};
use crate::live::{Peak, Peaks};

/// Totals against allocations and shapes.
pub(crate) fn check_totals(facts: &Facts<'_>, report: &mut Report) {
    let totals = &facts.plan.totals;
    let mut found = Sums::of(facts.plan.allocations.values());
    let entry = facts.module.entry_computation();
    let [mut outputs, mut aliased] = [Bytes::ZERO; 2];
    for (position, part) in facts.parts_of(entry.root) {
        outputs = outputs.saturating_add(Bytes(part.size));
        let allocation = facts.slice(position).map(|slice| &facts.plan.allocations[slice.allocation].kind);
        if let Some(AllocationKind::Argument { .. }) = allocation {
            aliased = aliased.saturating_add(Bytes(part.size));
        }
    }
    // The caller's allocation is as large as requested, so no other value fits there without being counted.
    let own = outputs.saturating_sub(aliased);
    if found.outputs > own {
        let (claimed, found) = (found.outputs, own);
        report.add(Violation::WrongTotal { name: "the memory of results".into(), claimed, found });
    }
    let in_main = |a: &&Allocation| a.space == MemorySpaceId::MAIN;
    found.temp = Sums::of(facts.plan.allocations.values().filter(in_main)).temp;
    let fixed = found.arguments.saturating_add(outputs).saturating_sub(aliased);
    let total = fixed.saturating_add(found.constants).saturating_add(found.temp);
    let mut expect = |name: &str, claimed: Bytes, found: Bytes| expect(report, name, claimed, found);
    expect("arguments", totals.arguments, found.arguments);
    expect("outputs", totals.outputs, outputs);
    expect("aliased", totals.aliased, aliased);
    expect("constants", totals.constants, found.constants);
    expect("temp", totals.temp, found.temp);
    expect("total", totals.total, total);
    expect("fragmentation", totals.fragmentation, found.temp.saturating_sub(totals.temp_lower_bound));
    expect("padding", totals.padding, padding(facts));
    if totals.total_lower_bound > totals.total {
        expect("total_lower_bound", totals.total_lower_bound, totals.total);
    }
}

/// Every memory space in use has figures, once, and they equal those of its allocations.
pub(crate) fn check_spaces(facts: &Facts<'_>, report: &mut Report) {
    let mut listed: BTreeMap<MemorySpaceId, usize> = BTreeMap::new();
    // A plan without a list claims nothing of spaces.
    if !facts.plan.spaces.is_empty() {
        listed.extend(facts.plan.allocations.values().map(|allocation| (allocation.space, 0)));
    }
    for space in &facts.plan.spaces {
        *listed.entry(space.space).or_default() += 1;
        check_space(facts, space, report);
    }
    for (space, found) in listed.into_iter().filter(|&(_, found)| found != 1) {
        report.add(Violation::SpaceListed { space, found });
    }
}

fn check_space(facts: &Facts<'_>, claimed: &SpaceTotals, report: &mut Report) {
    let space = claimed.space;
    let in_space = || facts.plan.allocations.values().filter(|a| a.space == space);
    let found = Sums::of(in_space());
    let mut expect = |name: &str, claimed: Bytes, found: Bytes| {
        expect(report, &format!("{name} of {space}"), claimed, found)
    };
    expect("temp", claimed.temp, found.temp);
    // Older plan files have the arena alone.
    if claimed.total > Bytes::ZERO {
        let granule = facts.target.space(space).map_or(Alignment::ONE, |s| s.granule);
        let sizes = in_space().map(|allocation| allocation.size.align_up(granule));
        expect("arguments", claimed.arguments, found.arguments);
        expect("outputs", claimed.outputs, found.outputs);
        expect("constants", claimed.constants, found.constants);
        expect("total", claimed.total, sizes.fold(Bytes::ZERO, Bytes::saturating_add));
    }
    let beyond = claimed.available.map_or(Bytes::ZERO, |available| claimed.total.saturating_sub(available));
    expect("excess", claimed.excess, beyond);
    if space == MemorySpaceId::MAIN {
        expect("temp_lower_bound", claimed.temp_lower_bound, facts.plan.totals.temp_lower_bound);
    }
    let Some(described) = facts.target.space(space) else { return };
    let mut same = |what, claimed: String, found: String| {
        if claimed != found {
            let (claimed, found) = (claimed.into(), found.into());
            report.add(Violation::OtherSpace { space, what, claimed, found });
        }
    };
    let capacity =
        |bytes: Option<Bytes>| bytes.map_or_else(|| "unlimited".into(), |bytes| format!("{bytes:#}"));
    same("name", claimed.name.clone(), described.name.clone());
    same("capacity", capacity(claimed.capacity), capacity(described.capacity));
    if claimed.available.is_some() {
        same("usable part", capacity(claimed.available), capacity(described.usable()));
    }
    let kind =
        |read_only: bool| String::from(if read_only { "read only" } else { "for reading and writing" });
    same("use", kind(claimed.read_only), kind(described.read_only));
}

/// Compares peaks with a replay of the schedule. An arena cannot be smaller than its peak of live bytes, which is its
/// bound.
pub(crate) fn check_peaks(facts: &Facts<'_>, peaks: &Peaks, report: &mut Report) {
    let totals = &facts.plan.totals;
    let main = (MemorySpaceId::MAIN, totals.temp_lower_bound);
    let spaces = facts.plan.spaces.iter().map(|space| (space.space, space.temp_lower_bound));
    for (space, claimed) in std::iter::once(main).chain(spaces.filter(|&(space, _)| space != main.0)) {
        let Peak { least, most } = peaks.temp.get(&space).copied().unwrap_or_default();
        if claimed > most {
            report.add(Violation::BoundTooHigh { space, claimed, found: most });
        } else if claimed < least {
            report.add(Violation::BoundTooLow { space, claimed, found: least });
        }
    }
    let Peak { least, most } = peaks.live;
    if totals.peak_live > most {
        report.add(Violation::PeakTooHigh { claimed: totals.peak_live, found: most });
    } else if totals.peak_live < least {
        report.add(Violation::PeakTooLow { claimed: totals.peak_live, found: least });
    }
}

/// An arena that can be no smaller is used to its end.
pub(crate) fn check_ends(facts: &Facts<'_>, report: &mut Report) {
    if !facts.plan.spaces.iter().any(|space| space.proved_minimal) {
        return;
    }
    let mut ends: BTreeMap<AllocationId, Bytes> = BTreeMap::new();
    let scratch = facts.plan.scratch.values().flatten().copied();
    for slice in facts.placed().map(|(_, slice)| slice).chain(scratch) {
        let end = ends.entry(slice.allocation).or_default();
        *end = slice.offset.saturating_add(slice.size).max(*end);
    }
    for claimed in facts.plan.spaces.iter().filter(|space| space.proved_minimal) {
        let arenas = facts.plan.allocations.iter().filter(|(_, allocation)| {
            allocation.kind == AllocationKind::Temp && allocation.space == claimed.space
        });
        let used = |(id, allocation): (AllocationId, &Allocation)| {
            ends.get(&id).copied().unwrap_or_default().align_up(allocation.alignment)
        };
        let used = arenas.map(used).fold(Bytes::ZERO, Bytes::saturating_add);
        if used < claimed.temp {
            report.add(Violation::NotMinimal { space: claimed.space, claimed: claimed.temp, used });
        }
    }
}

/// The spaces whose arenas are claimed to be minimal although their peak is lower, or unknown.
pub(crate) fn said_to_be_minimal(facts: &Facts<'_>, is_bound_proved: bool) -> Vec<MemorySpaceId> {
    let claims = facts.plan.spaces.iter().filter(|space| space.proved_minimal);
    let unproved = claims.filter(|space| !is_bound_proved || space.temp > space.temp_lower_bound);
    unproved.map(|space| space.space).collect()
}

fn expect(report: &mut Report, name: &str, claimed: Bytes, found: Bytes) {
    if claimed != found {
        report.add(Violation::WrongTotal { name: name.into(), claimed, found });
    }
}

/// Bytes of allocations by purpose.
#[derive(Default)]
struct Sums {
    arguments: Bytes,
    outputs: Bytes,
    constants: Bytes,
    temp: Bytes,
}

impl Sums {
    fn of<'a>(allocations: impl Iterator<Item = &'a Allocation>) -> Sums {
        let mut sums = Sums::default();
        for allocation in allocations {
            let sum = match allocation.kind {
                AllocationKind::Argument { .. } => &mut sums.arguments,
                AllocationKind::Output => &mut sums.outputs,
                AllocationKind::Constant => &mut sums.constants,
                AllocationKind::Temp => &mut sums.temp,
            };
            *sum = sum.saturating_add(allocation.size);
        }
        sums
    }
}

/// Bytes of padding: of the values at each place, the most.
fn padding(facts: &Facts<'_>) -> Bytes {
    let padded = facts.placed().map(|(position, slice)| (slice, Bytes(facts.part(position).padding)));
    let mut places: FxHashMap<_, Bytes> = FxHashMap::default();
    for (slice, padding) in padded.filter(|(_, padding)| *padding > Bytes::ZERO) {
        let most = places.entry((slice.allocation, slice.offset)).or_default();
        *most = padding.max(*most);
    }
    places.into_values().fold(Bytes::ZERO, Bytes::saturating_add)
}
