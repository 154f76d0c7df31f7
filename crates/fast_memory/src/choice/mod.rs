//! The best choice for one candidate, given the price of fast memory.

mod path;

use memplan_analysis::{LiveRange, Time};
use memplan_ir::InstructionId;

use crate::candidate::{Candidate, SliceCandidate, ValueCandidate};
pub(crate) use path::Segments;
use path::{Path, cheapest_path};

/// The choice for a candidate.
#[derive(Clone, Debug, Default)]
pub(crate) struct Choice {
    pub(crate) mode: Mode,
    /// The traffic of main memory.
    pub(crate) moved: f64,
    /// That and the price of main memory that the candidate takes.
    pub(crate) traffic: f64,
    /// That and the price of holding fast memory.
    pub(crate) cost: f64,
    /// When fast memory is held: in no particular order.
    pub(crate) busy: Vec<LiveRange>,
    /// One past the last instant at which a copy out of fast memory is under way; 0 without one.
    pub(crate) evicted_until: Time,
}

/// The place of a candidate.
#[derive(Clone, Debug)]
pub(crate) enum Mode {
    Value(ValueMode),
    Slice(SliceMode),
}

/// The place of values.
#[derive(Clone, Debug)]
pub(crate) enum ValueMode {
    /// In fast memory, during their whole live ranges.
    Pinned,
    /// In main memory, and in fast memory for some segments of their live ranges.
    Prefetched(Vec<Segments>),
    /// Written to fast memory, copied to main memory, and in fast memory for some segments of the live range.
    Evicted(Segments),
    /// A parameter in main memory, and in fast memory all the time, from one call to the next: copied before an
    /// instruction, and numbered.
    Resident { before: InstructionId, index: u32 },
}

/// The place of a slice.
#[derive(Clone, Debug)]
pub(crate) enum SliceMode {
    /// Copied in the computation that reads it, for some segments of the time in which it is read.
    Prefetched(Segments),
    /// Copied by a loop one iteration ahead, in one of the candidate's ways: it serves all events.
    Pipelined { way: usize },
}

impl Default for Mode {
    fn default() -> Mode {
        Mode::Value(ValueMode::Prefetched(Vec::new()))
    }
}

impl Choice {
    /// The best choice when holding `bytes` in a range costs `price(bytes, range)`, which is infinite where there is no
    /// capacity left. Linear in the number of events.
    pub(crate) fn best(candidate: &Candidate, price: &impl Fn(u64, LiveRange) -> f64) -> Choice {
        let hold = |range: LiveRange| price(candidate.bytes(), range);
        match candidate {
            Candidate::Value(candidate) => Choice::best_of_value(candidate, &hold),
            Candidate::Slice(candidate) => Choice::best_of_slice(candidate, &hold),
        }
    }

    fn best_of_value(candidate: &ValueCandidate, hold: &impl Fn(LiveRange) -> f64) -> Choice {
        let mut path = Path::default();
        let mut segments = Vec::new();
        for (number, view) in candidate.views.iter().enumerate() {
            let (of_view, inner) = cheapest_path(view, number, None, hold);
            path.add(of_view);
            segments.push(inner);
        }
        path.pay(candidate.write, candidate.main_price);
        let mut best = path.into_choice(Mode::Value(ValueMode::Prefetched(segments)));
        if let (Some(evicted), [view]) = (&candidate.evicted, candidate.views.as_slice()) {
            let (mut path, segments) = cheapest_path(view, 0, Some(evicted.busy), hold);
            path.pay(evicted.cost, candidate.main_price);
            if path.cost < best.cost {
                best = path.into_choice(Mode::Value(ValueMode::Evicted(segments)));
                best.evicted_until = evicted.busy.end;
            }
        }
        if let Some(pinned) = &candidate.pinned {
            let path = Path::of(pinned.cost, &pinned.busy, hold);
            // Of two ways that cost the same, the one without copies.
            if path.cost <= best.cost {
                best = path.into_choice(Mode::Value(ValueMode::Pinned));
            }
        }
        best
    }

    fn best_of_slice(candidate: &SliceCandidate, hold: &impl Fn(LiveRange) -> f64) -> Choice {
        let (path, segments) = cheapest_path(&candidate.view, 0, None, hold);
        let mut best = path.into_choice(Mode::Slice(SliceMode::Prefetched(segments)));
        for (way, pipelined) in candidate.pipelined.iter().enumerate() {
            let path = Path::of(pipelined.cost, &pipelined.busy, hold);
            if path.cost < best.cost {
                best = path.into_choice(Mode::Slice(SliceMode::Pipelined { way }));
            }
        }
        best
    }

    /// Everything in main memory.
    pub(crate) fn main(candidate: &Candidate) -> Choice {
        Choice::best(candidate, &|_, _| f64::INFINITY)
    }

    /// Whether fast memory is held at all.
    pub(crate) fn is_fast(&self) -> bool {
        !self.busy.is_empty()
    }
}
