//! Candidates for fast memory, and their savings.
//!
//! A candidate is a value, several values that must share memory because they meet in a loop, a conditional or an
//! in-place operation, or a slice of an array. A *view* lists the uses of one value in one computation: a list of
//! *events* in order of time, each an instruction that reads the value or passes it into computations with views of
//! their own.
//!
//! ```text
//!   w = f32[1024,1024] parameter(1)          view in main     view in body, a hundred times
//!   a = dot(x, w)                            read 4 MB
//!   loop = while(tuple(.., w, ..))           enter        --> b = dot(s, w)   read 4 MB
//!   c = dot(y, w)                            read 4 MB        d = add(b, w)   read 4 MB
//! ```
//!
//! The unit of all costs is a byte that main memory moves, multiplied by how often it does.

use memplan_analysis::{LiveRange, Time, ValueId};
use memplan_ir::{ComputationId, InstructionId, Use};
use smallvec::SmallVec;

/// What may be in fast memory by itself.
pub(crate) enum Candidate {
    /// One value, or several that must share memory.
    Value(ValueCandidate),
    /// What kernels read of an array, and all that they read of it.
    Slice(SliceCandidate),
}

/// One value, or several that must share memory.
pub(crate) struct ValueCandidate {
    pub(crate) values: SmallVec<[ValueId; 1]>,
    pub(crate) bytes: u64,
    /// What it takes that all of them are in fast memory all their live ranges; `None` when they cannot.
    pub(crate) pinned: Option<Pinned>,
    /// What writing them costs when they are in main memory.
    pub(crate) write: f64,
    /// The price of main memory that they take, unless they are pinned.
    pub(crate) main_price: f64,
    /// When they would take main memory: never for what the caller sees, which takes it in any case.
    pub(crate) live: Vec<LiveRange>,
    /// For a single value that an instruction writes: what it takes to write it to fast memory and copy it out.
    pub(crate) evicted: Option<Evicted>,
    /// What computations see of the values that are in main memory, outermost first.
    pub(crate) views: Vec<View>,
}

/// A slice that is copied out of an array in main memory.
pub(crate) struct SliceCandidate {
    pub(crate) bytes: u64,
    /// What the computation that reads it sees of it.
    pub(crate) view: View,
    /// The ways for a loop to copy it one iteration ahead.
    pub(crate) pipelined: SmallVec<[Pipelined; 2]>,
}

/// All values in fast memory all their live ranges.
pub(crate) struct Pinned {
    /// The values without those of main memory that flow into them.
    pub(crate) values: Vec<ValueId>,
    pub(crate) busy: Vec<LiveRange>,
    /// What copies in and out cost, and the reads of main memory that remain.
    pub(crate) cost: f64,
    /// Values of main memory that flow into them.
    pub(crate) prefetched: Vec<PrefetchedInput>,
    /// Results of the program among them.
    pub(crate) evicted: Vec<EvictedResult>,
}

/// A value of main memory that flows into pinned values: a copy of it does.
pub(crate) struct PrefetchedInput {
    pub(crate) value: ValueId,
    pub(crate) it: Use,
    pub(crate) start: CopyStart,
}

/// A result of the program that is written to fast memory and copied out.
pub(crate) struct EvictedResult {
    pub(crate) value: ValueId,
    /// Operands of the entry's root: at least one.
    pub(crate) uses: Vec<Use>,
    /// The instruction before which the copy is done; `None`: the root.
    pub(crate) done_before: Option<InstructionId>,
}

/// Where a copy into fast memory starts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CopyStart {
    /// The instruction before which it does.
    pub(crate) before: InstructionId,
    /// The first instant at which the copy is under way.
    pub(crate) time: Time,
    /// The share of its time that the cores wait for it.
    pub(crate) exposed: f64,
}

/// A value that is written to fast memory and copied out.
pub(crate) struct Evicted {
    /// What the copy costs.
    pub(crate) cost: f64,
    /// From the instant that writes the value to the one at which the copy has to be done.
    pub(crate) busy: LiveRange,
    /// The instruction before which it has to be done; `None`: the end of the computation.
    pub(crate) done_before: Option<InstructionId>,
}

/// A slice that is copied for the first iteration before the loop, for every other one in the iteration before.
pub(crate) struct Pipelined {
    pub(crate) first: CopyStart,
    pub(crate) next: CopyStart,
    /// Whether two buffers take turns: the slice that arrived is copied to a second buffer before its first use, so that
    /// the next one may arrive while it is used. Otherwise the next copy starts after the last use.
    pub(crate) double_buffered: bool,
    /// What all the copies cost, and what the cores wait for.
    pub(crate) cost: f64,
    /// When each buffer is needed.
    pub(crate) busy: [LiveRange; 2],
}

/// What one computation sees of a value.
pub(crate) struct View {
    pub(crate) value: ValueId,
    pub(crate) computation: ComputationId,
    /// What a copy into fast memory costs here.
    pub(crate) prefetch_cost: f64,
    /// What it costs on top when the cores wait for all of it.
    pub(crate) wait_cost: f64,
    pub(crate) events: Vec<Event>,
}

/// An instruction of a view that needs the value.
pub(crate) struct Event {
    /// When it needs the value.
    pub(crate) range: LiveRange,
    /// Where a copy into fast memory starts that is done in time.
    pub(crate) start: CopyStart,
    /// Where a copy starts at the latest.
    pub(crate) latest: CopyStart,
    /// What it costs to read main memory, views inside aside.
    pub(crate) main: f64,
    /// What it costs when the value is in fast memory; `None` when it has to be in main memory.
    pub(crate) fast: Option<f64>,
    pub(crate) uses: SmallVec<[Use; 2]>,
    /// Views of the computations that the value is passed into.
    pub(crate) inside: Vec<View>,
}

impl Candidate {
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Candidate::Value(candidate) => candidate.bytes,
            Candidate::Slice(candidate) => candidate.bytes,
        }
    }

    /// The value, of several the first, or the array that the slice is cut out of.
    pub(crate) fn first_value(&self) -> ValueId {
        match self {
            Candidate::Value(candidate) => candidate.values[0],
            Candidate::Slice(candidate) => candidate.view.value,
        }
    }

    /// The value, if it is one alone.
    pub(crate) fn single(&self) -> Option<ValueId> {
        match self {
            Candidate::Value(candidate) => candidate.single(),
            Candidate::Slice(_) => None,
        }
    }

    /// When the copy to main memory is under way, should the value be evicted.
    pub(crate) fn eviction(&self) -> Option<LiveRange> {
        match self {
            Candidate::Value(candidate) => candidate.evicted.as_ref().map(|evicted| evicted.busy),
            Candidate::Slice(_) => None,
        }
    }
}

impl ValueCandidate {
    /// The value, if it is one alone.
    pub(crate) fn single(&self) -> Option<ValueId> {
        match self.values.as_slice() {
            &[value] => Some(value),
            _ => None,
        }
    }
}

impl View {
    /// What it costs to serve all events from main memory.
    pub(crate) fn main_cost(&self) -> f64 {
        let inside = |event: &Event| event.inside.iter().map(View::main_cost).sum::<f64>();
        self.events.iter().map(|event| event.main + inside(event)).sum()
    }
}

impl Event {
    pub(crate) fn new(range: LiveRange, main: f64, fast: Option<f64>, it: Use) -> Event {
        let start = CopyStart { before: it.user, time: range.start, exposed: 1.0 };
        Event { range, start, latest: start, main, fast, uses: SmallVec::from_iter([it]), inside: Vec::new() }
    }
}
