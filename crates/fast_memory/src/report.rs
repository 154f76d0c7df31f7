//! The assignment, as data.

use memplan_analysis::Facts;
use memplan_ir::{Module, ShapeIndex};
use memplan_memory::{Bytes, FastMemoryDecision, SliceTiming};

use crate::FastMemoryOptions;
use crate::candidate::Candidate;
use crate::choice::{Choice, Mode, SliceMode, ValueMode};

/// The assignment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FastMemoryReport {
    /// Copies into fast memory.
    pub prefetches: usize,
    /// Those of them that a call need not make when the one before has left their result where it is.
    pub residents: usize,
    /// Slices that kernels read in fast memory, of arrays that are in main memory.
    pub slices: usize,
    /// Those of them that a loop copies one iteration ahead.
    pub pipelined: usize,
    /// Copies out of fast memory.
    pub evictions: usize,
    /// Bytes of fast memory that the arena takes.
    pub height: Bytes,
    /// Bytes, weighed by time as [`FastMemoryOptions::time_weight`] says, that main memory moves for what could have
    /// been elsewhere.
    pub traffic: f64,
    /// A lower bound on the traffic of every assignment under this schedule, in the same unit, for any packing.
    pub lower_bound: f64,
    /// The contents of fast memory, in the order of the program.
    pub assigned: Vec<FastMemoryEntry>,
    /// Values that would save traffic in fast memory but are not in it, since others are worth more; in the order of
    /// the program.
    pub refused: Vec<FastMemoryEntry>,
}

/// A value, or a slice of an array, that could be in fast memory.
#[derive(Clone, Debug, PartialEq)]
pub struct FastMemoryEntry {
    /// The instruction that defines the value or the array: of several values that share memory, the first.
    pub name: Box<str>,
    /// The part of the instruction's result.
    pub index: ShapeIndex,
    /// Bytes that it takes.
    pub bytes: Bytes,
    /// Its residence.
    pub residence: Residence,
    /// The traffic that this saves; of a refused one, that it would save.
    pub saved: f64,
}

/// For how much of its live range a value is in fast memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Residence {
    /// Not at all.
    Main,
    /// During its whole live range.
    Pinned,
    /// In main memory all the time, and from prefetches on as long as they serve uses.
    Prefetched,
    /// From its definition on until it was copied out, and perhaps again later.
    Evicted,
    /// All the time, from one call of the program to the next.
    Resident,
    /// A slice of it, from a prefetch on.
    Slice,
    /// A slice of it, copied by a loop one iteration ahead.
    PipelinedSlice,
}

impl FastMemoryReport {
    /// Counts decisions; nothing else is filled in.
    pub(crate) fn count(decisions: &[FastMemoryDecision]) -> FastMemoryReport {
        let mut report = FastMemoryReport::default();
        for decision in decisions {
            match decision {
                FastMemoryDecision::Evict { .. } => report.evictions += 1,
                FastMemoryDecision::Prefetch(prefetch) => {
                    report.prefetches += 1;
                    report.residents += usize::from(prefetch.resident.is_some());
                }
                FastMemoryDecision::PrefetchSlice(slice) => {
                    let is_pipelined = matches!(slice.timing, SliceTiming::Pipelined { .. });
                    report.prefetches += 1 + usize::from(is_pipelined);
                    report.slices += 1;
                    report.pipelined += usize::from(is_pipelined);
                }
                FastMemoryDecision::Pin { .. }
                | FastMemoryDecision::ReadOriginal { .. }
                | FastMemoryDecision::ReadEvicted { .. } => {}
            }
        }
        report
    }

    /// Lists candidates in fast memory, and those outside that would save something.
    pub(crate) fn list(
        &mut self,
        module: &Module,
        facts: &Facts,
        candidates: &[Candidate],
        choices: &[Choice],
        options: &FastMemoryOptions,
    ) {
        for (candidate, choice) in candidates.iter().zip(choices) {
            let entry = |residence, saved| {
                let definition = facts.flow.values[candidate.first_value()].definition;
                let position = facts.flow.positions.position(definition);
                let name = module.instructions[position.instruction].name.clone();
                let bytes = Bytes(candidate.bytes());
                FastMemoryEntry { name, index: position.index, bytes, residence, saved }
            };
            if choice.is_fast() {
                let saved = Choice::main(candidate).moved - choice.moved;
                self.assigned.push(entry(Residence::of(&choice.mode), saved));
                continue;
            }
            let free = Choice::best(candidate, &|_, _| 0.0);
            let saved = choice.moved - free.moved;
            if saved > options.search.least_gain {
                self.refused.push(entry(Residence::Main, saved));
            }
        }
    }
}

impl Residence {
    /// The residence of a candidate in fast memory.
    fn of(mode: &Mode) -> Residence {
        match mode {
            Mode::Value(ValueMode::Pinned) => Residence::Pinned,
            Mode::Value(ValueMode::Prefetched(_)) => Residence::Prefetched,
            Mode::Value(ValueMode::Evicted(_)) => Residence::Evicted,
            Mode::Value(ValueMode::Resident { .. }) => Residence::Resident,
            Mode::Slice(SliceMode::Prefetched(_)) => Residence::Slice,
            Mode::Slice(SliceMode::Pipelined { .. }) => Residence::PipelinedSlice,
        }
    }
}
