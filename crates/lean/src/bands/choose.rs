//! Chooses the parts of the program that run in bands, and the bands.
//!
//! A path through the program goes from cut to cut. Between two cuts it has either the operations as they are or a
//! segment in bands. The bytes of a path are those of its fullest stretch. Of the paths within the given bytes, the
//! fastest is chosen. The bytes of a band are an estimate: those of its stored arrays, until their last reader.

use memplan_analysis::{Machine, operations};
use memplan_ir::InstructionId;
use memplan_memory::{Bytes, Target};
use memplan_rewriter::cost::{self, CostClass};

use super::Bands;
use super::ranges::{Halo, Ranges};
use super::segment::{Ending, Member, Program, Segment};

/// A segment to run in bands.
pub(super) struct Choice {
    pub(super) from: Option<InstructionId>,
    pub(super) to: InstructionId,
    /// The last instruction of the text first, which is `to`.
    pub(super) members: Vec<Member>,
    pub(super) ranges: Ranges,
    /// Rows of the end in each band.
    pub(super) rows: i64,
    pub(super) halo: Halo,
}

impl Choice {
    /// The members in the order of the text.
    pub(super) fn in_text(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().rev()
    }
}

/// A stretch between two stops of a way. Stop 0 is the beginning of the program, the others are cuts.
struct Stretch {
    from: usize,
    to: usize,
    bytes: u64,
    /// Time beyond that of the operations as they are.
    seconds: f64,
    /// The number of the ending, that of its segment, and the bands; `None`: as they are.
    bands: Option<(usize, usize, i64, Halo)>,
}

/// The segments to run in bands, in the order of the text, and the estimated bytes as the program is and in bands.
pub(super) fn choose(
    program: &Program<'_>,
    target: &Target,
    endings: &[Ending],
    options: &Bands,
) -> Option<(Vec<Choice>, [Bytes; 2])> {
    let estimate = Estimate { program, target, machine: Machine::new(target) };
    let stretches = estimate.stretches(endings, options);
    let n_stops = endings.len() + 2;
    let as_it_is = stretches.iter().filter(|it| it.bands.is_none()).map(|it| it.bytes).max()?;
    let fullest = |bytes: u64, it: &Stretch| bytes.max(it.bytes);
    let least = best(&stretches, n_stops, 0, fullest).map(|(least, _)| least)?;
    let allowed = least.max((as_it_is as f64 * options.share) as u64);
    let affordable: Vec<Stretch> = stretches.into_iter().filter(|it| it.bytes <= allowed).collect();
    let (_, way) = best(&affordable, n_stops, 0.0, |seconds, it| seconds + it.seconds)?;
    let bytes = way.iter().map(|it| it.bytes).max()?;
    let choices = way.iter().filter_map(|it| {
        let (ending, number, rows, halo) = it.bands?;
        let segment = endings[ending].segments(program).nth(number)?;
        let ranges = Ranges::new(program.module, &segment, rows, halo)?;
        let Segment { from, to, members, .. } = segment;
        Some(Choice { from, to, members: members.into_iter().cloned().collect(), ranges, rows, halo })
    });
    let choices: Vec<Choice> = choices.collect();
    (!choices.is_empty()).then_some((choices, [Bytes(as_it_is), Bytes(bytes)]))
}

/// The best way from the first stop to the last, and its price. Stretches are in the order of their ends.
fn best<P: Copy + PartialOrd>(
    stretches: &[Stretch],
    n_stops: usize,
    nothing: P,
    and: impl Fn(P, &Stretch) -> P,
) -> Option<(P, Vec<&Stretch>)> {
    let mut found: Vec<Option<(P, Option<&Stretch>)>> = vec![None; n_stops];
    found[0] = Some((nothing, None));
    for it in stretches {
        let Some((before, _)) = found[it.from] else { continue };
        let price = and(before, it);
        if found[it.to].is_none_or(|(known, _)| price < known) {
            found[it.to] = Some((price, Some(it)));
        }
    }
    let price = found[n_stops - 1]?.0;
    let mut way = Vec::new();
    let mut at = n_stops - 1;
    while let Some((_, Some(it))) = found[at] {
        way.push(it);
        at = it.from;
    }
    way.reverse();
    Some((price, way))
}

struct Estimate<'a, 'm> {
    program: &'a Program<'m>,
    target: &'a Target,
    machine: Machine<'a>,
}

impl Estimate<'_, '_> {
    /// All stretches, in the order of their ends.
    fn stretches(&self, endings: &[Ending], options: &Bands) -> Vec<Stretch> {
        let cuts: Vec<InstructionId> = endings.iter().map(|ending| ending.to).collect();
        let mut found = Vec::new();
        let live = self.live_bytes();
        let mut start = 0;
        for (number, ending) in endings.iter().enumerate() {
            let end = self.program.positions[ending.to] as usize + 1;
            found.push(as_it_is(number, live[start..end].iter().copied().max()));
            start = end;
            for (i, segment) in ending.segments(self.program).enumerate() {
                let from =
                    segment.from.map_or(Some(0), |from| Some(1 + cuts.iter().position(|&cut| cut == from)?));
                let Some(from) = from else { continue };
                let extent = self
                    .program
                    .module
                    .plain_array(ending.to)
                    .map_or(0, |array| array.dimensions[segment.members[0].treatment.dimension]);
                let halves = std::iter::successors(Some(1), |&rows| Some(2 * rows))
                    .take_while(|rows| 2 * rows <= extent);
                let mut is_short_enough = false;
                for (rows, halo) in halves.flat_map(|rows| Halo::ALL.map(|halo| (rows, halo))) {
                    let Some(ranges) = Ranges::new(self.program.module, &segment, rows, halo) else {
                        continue;
                    };
                    if self.written(&segment, &ranges) > options.max_written {
                        continue;
                    }
                    is_short_enough = true;
                    let bytes = self.bytes(&segment, &ranges);
                    let seconds = self.more_seconds(&segment, &ranges);
                    let bands = Some((number, i, rows, halo));
                    found.push(Stretch { from, to: number + 1, bytes, seconds, bands });
                }
                // Longer segments have more kernels and need more bands to begin with.
                if !is_short_enough {
                    break;
                }
            }
        }
        found.push(as_it_is(endings.len(), live[start..].iter().copied().max()));
        found
    }

    /// The bytes of stored arrays at each place in the text.
    fn live_bytes(&self) -> Vec<u64> {
        let n = self.program.module.entry_computation().instructions.len();
        let arrays =
            self.program.last_reads.iter().map(|(&id, &last)| {
                (self.program.positions[id] as usize, last as usize, self.array_bytes(id))
            });
        live(n, arrays)
    }

    /// The most bytes that are live in a band, with both ends of the segment.
    fn bytes(&self, segment: &Segment<'_>, ranges: &Ranges) -> u64 {
        let first = self.program.positions[segment.members.last().expect("a segment has an end").id];
        let end = self.program.positions[segment.to];
        let inside = segment.members[1..].iter().filter(|member| self.program.stored.contains(&member.id));
        let mut always = segment.from.map_or(0, |from| self.array_bytes(from)) + self.array_bytes(segment.to);
        let mut arrays = Vec::new();
        for member in inside {
            let row = self.array_bytes(member.id) / ranges.extent(member.id).max(1) as u64;
            let [new, carried] = ranges.within(member.id);
            always += row * carried as u64;
            let last = self.program.last_reads[&member.id].min(end);
            arrays.push((
                (self.program.positions[member.id] - first) as usize,
                (last - first) as usize,
                row * new as u64,
            ));
        }
        always + live((end - first) as usize + 1, arrays).into_iter().max().unwrap_or(0)
    }

    /// Seconds for the rows that are computed more than once, and to begin kernels once for each band.
    fn more_seconds(&self, segment: &Segment<'_>, ranges: &Ranges) -> f64 {
        let module = self.program.module;
        let kernels =
            segment.members.iter().filter(|member| self.program.stored.contains(&member.id)).count() as f64;
        let bands = (ranges.bands.end - ranges.bands.start) as f64;
        let again = segment.members.iter().map(|member| {
            let share = ranges.total(member.id) as f64 / ranges.extent(member.id).max(1) as f64 - 1.0;
            share.max(0.0) * self.machine.compute_seconds(&operations(module, member.id))
        });
        again.sum::<f64>() + kernels * (bands - 1.0) * self.target.kernel_overhead
    }

    /// Kernels in the text of the bands that are written out, and of the loop's body.
    fn written(&self, segment: &Segment<'_>, ranges: &Ranges) -> usize {
        let kernels = segment.members.iter();
        let kernels = kernels
            .filter(|member| matches!(cost::class_of(self.program.module, member.id), CostClass::Hero(_)));
        let in_loop = &ranges.in_loop;
        let bands = ranges.bands.end - ranges.bands.start - (in_loop.end - in_loop.start);
        kernels.count() * (bands as usize + usize::from(!in_loop.is_empty()))
    }

    fn array_bytes(&self, id: InstructionId) -> u64 {
        cost::result_bytes(self.program.module, self.target, id)
    }
}

fn as_it_is(from: usize, bytes: Option<u64>) -> Stretch {
    Stretch { from, to: from + 1, bytes: bytes.unwrap_or(0), seconds: 0.0, bands: None }
}

/// The bytes at each of `n` places, of arrays with their first and last place.
fn live(n: usize, arrays: impl IntoIterator<Item = (usize, usize, u64)>) -> Vec<u64> {
    let mut changes = vec![0i64; n + 1];
    for (first, last, bytes) in arrays {
        changes[first] += bytes as i64;
        changes[last.min(n - 1) + 1] -= bytes as i64;
    }
    let mut sum = 0;
    changes.truncate(n);
    changes
        .iter()
        .map(|change| {
            sum += change;
            sum as u64
        })
        .collect()
}
