//! Which rows of each array a band computes and keeps.
//!
//! Bands follow each other down the image. Rows that windows of the next band also need are kept, or computed again:
//!
//! ```text
//!   a window of 3 rows, two rows of its result in a band
//!
//!   rows of the operand    0 1 2 3 4 5 6 7 ...
//!   band 0 reads             ├─────┤             (and padding)
//!   band 1 reads                 ├─────┤         kept: 2 rows come from band 0;  computed again: all 4 are made
//! ```
//!
//! With kept rows, an array near the beginning of the segment is ahead of the array at its end: the first bands compute
//! no row of the end yet. All bands in the middle are alike, and are steps of a loop. Row numbers ignore the ends of
//! arrays, so they advance by the same number in each band; rows that do not exist are cut off last.

use memplan_ir::{InstructionId, Module};
use rustc_hash::FxHashMap;

use super::reach::{Reach, Rows};
use super::segment::{Member, Segment};

/// What is done about rows that two bands need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Halo {
    /// They are kept from one band to the next.
    Kept,
    /// They are kept, but where each row is made of the same row of a narrower array: rows of that are kept then, as those
    /// before the first layer of an inverted residual block.
    Narrow,
    /// Each band computes them.
    Recomputed,
}

/// A loop of fewer steps is no shorter than the bands that it would replace.
const FEWEST_STEPS: i64 = 3;

/// The rows of one array.
#[derive(Clone, Debug)]
struct Pace {
    /// Rows that band 0 reads.
    reads: Rows,
    /// Rows from one band to the next.
    step: i64,
    /// How many rows there are.
    extent: i64,
    /// Whether bands compute it.
    is_member: bool,
    /// Whether rows are kept from band to band.
    is_kept: bool,
}

/// The rows of every array of a segment in every band.
pub(super) struct Ranges {
    paces: FxHashMap<InstructionId, Pace>,
    /// Who reads rows of which array, and how: the last reader of the text first.
    readers: FxHashMap<InstructionId, Vec<(InstructionId, Reach)>>,
    /// Numbers of bands; those below zero compute nothing of the end.
    pub(super) bands: Rows,
    /// Bands that do the same, one after the other, and are steps of a loop.
    pub(super) in_loop: Rows,
}

impl Halo {
    /// What to do, in the order of their time.
    pub(super) const ALL: [Halo; 3] = [Halo::Kept, Halo::Narrow, Halo::Recomputed];

    /// Whether rows of a member are kept, if two bands need them.
    fn keeps(self, segment: &Segment<'_>, member: &Member) -> bool {
        // What repeats numbers is made again in any case.
        let has_rows = member.treatment.operands.iter().any(Option::is_some);
        has_rows
            && match self {
                Halo::Kept => true,
                Halo::Narrow => !segment.of_narrower_rows.contains(&member.id),
                Halo::Recomputed => false,
            }
    }
}

impl Ranges {
    /// With so many rows of the end in a band; `None` where arrays do not advance alike on all ways.
    pub(super) fn new(module: &Module, segment: &Segment<'_>, rows: i64, halo: Halo) -> Option<Ranges> {
        let mut readers: FxHashMap<InstructionId, Vec<(InstructionId, Reach)>> = FxHashMap::default();
        let mut paces: FxHashMap<InstructionId, Pace> = FxHashMap::default();
        for member in &segment.members {
            let extent = module.plain_array(member.id)?.dimensions[member.treatment.dimension];
            let pace = match readers.get(&member.id) {
                None => Pace { reads: 0..rows, step: rows, extent, is_member: true, is_kept: true },
                Some(of) => Pace {
                    is_member: true,
                    is_kept: halo.keeps(segment, member),
                    ..pace_of(&paces, of, extent)?
                },
            };
            paces.insert(member.id, pace);
            for (&operand, reach) in
                module.instructions[member.id].operands.iter().zip(&member.treatment.operands)
            {
                if let Some(reach) = *reach {
                    readers.entry(operand).or_default().push((member.id, reach));
                }
            }
        }
        for (&source, of) in readers.iter().filter(|(id, _)| !paces.contains_key(id)).collect::<Vec<_>>() {
            let extent = module.plain_array(source)?.dimensions[of[0].1.dimension];
            let is_along = of.iter().all(|(_, reach)| reach.dimension == of[0].1.dimension);
            let pace = pace_of(&paces, of, extent).filter(|_| is_along)?;
            paces.insert(source, pace);
        }
        let end = &paces[&segment.to];
        let last = (end.extent - 1).div_euclid(rows) + 1;
        let ahead = paces.values().filter(|pace| pace.is_kept);
        let first = ahead.map(|pace| (-pace.reads.end).div_euclid(pace.step) + 1).min()?.min(0);
        let mut ranges = Ranges { paces, readers, bands: first..last, in_loop: 0..0 };
        let alike = ranges.alike();
        if alike.end - alike.start >= FEWEST_STEPS {
            ranges.in_loop = alike;
        }
        Some(ranges)
    }

    /// The rows of an array that each band is beyond those of the band before.
    pub(super) fn step(&self, id: InstructionId) -> i64 {
        self.paces[&id].step
    }

    /// The rows that a band computes, of each member of the segment. Those come last of the text first.
    pub(super) fn computed(&self, members: &[Member], band: i64) -> FxHashMap<InstructionId, Rows> {
        let mut found: FxHashMap<InstructionId, Rows> = FxHashMap::default();
        for member in members {
            let pace = &self.paces[&member.id];
            let rows = match pace.is_kept {
                true => existing(&new_rows(pace, band), pace),
                false => {
                    let of = self.readers[&member.id].iter().filter_map(|(reader, reach)| {
                        let rows = &found[reader];
                        (!rows.is_empty()).then(|| existing(&reach.of(rows), pace))
                    });
                    of.reduce(hull).unwrap_or(0..0)
                }
            };
            found.insert(member.id, rows);
        }
        found
    }

    /// The rows that a band has from the one before.
    pub(super) fn carried(&self, id: InstructionId, band: i64) -> Rows {
        let pace = &self.paces[&id];
        if !pace.is_kept || !self.readers.contains_key(&id) || band <= self.bands.start {
            return 0..0;
        }
        existing(&(reads_at(pace, band).start..reads_at(pace, band - 1).end), pace)
    }

    /// The rows of an operand that a reader's rows need.
    pub(super) fn needed(&self, operand: InstructionId, reach: Reach, rows: &Rows) -> Rows {
        existing(&reach.of(rows), &self.paces[&operand])
    }

    /// Rows of one band, and rows that it has from the one before, away from the ends of the array.
    pub(super) fn within(&self, id: InstructionId) -> [i64; 2] {
        let pace = &self.paces[&id];
        let reads = pace.reads.end - pace.reads.start;
        match pace.is_kept {
            true => [reads.min(pace.step), (reads - pace.step).max(0)],
            false => [reads, 0],
        }
    }

    /// Every row that all bands together compute of an array.
    pub(super) fn total(&self, id: InstructionId) -> i64 {
        let pace = &self.paces[&id];
        match pace.is_kept {
            true => pace.extent,
            false => self.within(id)[0].min(pace.extent) * (self.bands.end - self.bands.start.max(0)),
        }
    }

    /// Whether bands compute rows of an array, rather than read them from a whole one.
    pub(super) fn is_member(&self, id: InstructionId) -> bool {
        self.paces.get(&id).is_some_and(|pace| pace.is_member)
    }

    /// How many rows an array has.
    pub(super) fn extent(&self, id: InstructionId) -> i64 {
        self.paces[&id].extent
    }

    /// The bands that read nothing beyond an end of an array.
    fn alike(&self) -> Rows {
        let first =
            self.paces.values().map(|pace| -pace.reads.start.div_euclid(pace.step)).max().unwrap_or(0);
        let past_last = |pace: &Pace| (pace.extent - pace.reads.end).div_euclid(pace.step) + 1;
        let last = self.paces.values().map(past_last).min().unwrap_or(0);
        first.max(self.bands.start)..last.min(self.bands.end)
    }
}

/// The rows of an operand that its readers need in band 0; `None` where they do not advance alike.
fn pace_of(
    paces: &FxHashMap<InstructionId, Pace>,
    readers: &[(InstructionId, Reach)],
    extent: i64,
) -> Option<Pace> {
    let of = readers.iter().map(|(reader, reach)| {
        let pace = &paces[reader];
        let computed = if pace.is_kept { new_rows(pace, 0) } else { pace.reads.clone() };
        (reach.of(&computed), pace.step * reach.stride)
    });
    let (reads, step) = of.map(Some).reduce(|a, b| match (a?, b?) {
        ((a, of_a), (b, of_b)) if of_a == of_b => Some((hull(a, b), of_a)),
        _ => None,
    })??;
    Some(Pace { reads, step, extent, is_member: false, is_kept: false })
}

/// The rows that a band reads.
fn reads_at(pace: &Pace, band: i64) -> Rows {
    pace.reads.start + band * pace.step..pace.reads.end + band * pace.step
}

/// The rows that a band reads and the one before does not have.
fn new_rows(pace: &Pace, band: i64) -> Rows {
    let reads = reads_at(pace, band);
    reads.start.max(reads.end - pace.step)..reads.end
}

fn existing(rows: &Rows, pace: &Pace) -> Rows {
    rows.start.clamp(0, pace.extent)..rows.end.clamp(0, pace.extent)
}

fn hull(a: Rows, b: Rows) -> Rows {
    a.start.min(b.start)..a.end.max(b.end)
}
