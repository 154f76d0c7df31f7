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

/// A value, a group or a slice that may be in fast memory.
pub(crate) enum Candidate {
    /// One value, or several that must share memory.
    Value(ValueCandidate),
    /// The slice that kernels read of an array, with all reads of it.
    Slice(SliceCandidate),
}

/// One value, or several that must share memory.
pub(crate) struct ValueCandidate {
    pub(crate) values: SmallVec<[ValueId; 1]>,
    pub(crate) bytes: u64,
    /// Requirements for keeping all of them in fast memory over all their live ranges; `None` if impossible.
    pub(crate) pinned: Option<Pinned>,
    /// The cost of writing them to main memory.
    pub(crate) write: f64,
    /// The seconds that XLA expects kernels to save with all of them in fast memory.
    pub(crate) saved_as_xla: f64,
    /// The price of main memory that they take, unless they are pinned.
    pub(crate) main_price: f64,
    /// When they would take main memory; empty for values that the caller sees, which always take it.
    pub(crate) live: Vec<LiveRange>,
    /// For a single value written by an instruction: requirements for writing it to fast memory and copying it out.
    pub(crate) evicted: Option<Evicted>,
    /// The views of the values in main memory, outermost first.
    pub(crate) views: Vec<View>,
}

/// A slice that is copied out of an array in main memory.
pub(crate) struct SliceCandidate {
    pub(crate) bytes: u64,
    /// The view of the reading computation.
    pub(crate) view: View,
    /// The ways for a loop to copy it one iteration ahead.
    pub(crate) pipelined: SmallVec<[Pipelined; 2]>,
}

/// All values in fast memory all their live ranges.
pub(crate) struct Pinned {
    /// The values, without values of main memory that flow into them.
    pub(crate) values: Vec<ValueId>,
    pub(crate) busy: Vec<LiveRange>,
    /// The cost of copies in and out, and of the remaining reads of main memory.
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

/// The start of a copy into fast memory.
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
    /// The cost of the copy.
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
    /// The cost of all copies, and of waiting for them.
    pub(crate) cost: f64,
    /// When each buffer is needed.
    pub(crate) busy: [LiveRange; 2],
}

/// The uses of a value in one computation.
pub(crate) struct View {
    pub(crate) value: ValueId,
    pub(crate) computation: ComputationId,
    /// The cost of a copy into fast memory here.
    pub(crate) prefetch_cost: f64,
    /// The additional cost if the cores wait for all of it.
    pub(crate) wait_cost: f64,
    pub(crate) events: Vec<Event>,
}

/// An instruction of a view that needs the value.
pub(crate) struct Event {
    /// When it needs the value.
    pub(crate) range: LiveRange,
    /// The start of a copy into fast memory that ends in time.
    pub(crate) start: CopyStart,
    /// The latest start of a copy.
    pub(crate) latest: CopyStart,
    /// Whether the value may stay in fast memory since the event before, or since it was written.
    pub(crate) is_near: bool,
    /// The cost of reading main memory, without inner views.
    pub(crate) main: f64,
    /// The cost if the value is in fast memory; `None` if it must be in main memory.
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

    /// The seconds that XLA expects kernels to save with it in fast memory.
    pub(crate) fn saved_as_xla(&self) -> f64 {
        match self {
            Candidate::Value(candidate) => candidate.saved_as_xla,
            Candidate::Slice(_) => 0.0,
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
    /// The cost of serving all events from main memory.
    pub(crate) fn main_cost(&self) -> f64 {
        let inside = |event: &Event| event.inside.iter().map(View::main_cost).sum::<f64>();
        self.events.iter().map(|event| event.main + inside(event)).sum()
    }
}

impl Event {
    pub(crate) fn new(range: LiveRange, main: f64, fast: Option<f64>, it: Use) -> Event {
        let start = CopyStart { before: it.user, time: range.start, exposed: 1.0 };
        let uses = SmallVec::from_iter([it]);
        Event { range, start, latest: start, is_near: true, main, fast, uses, inside: Vec::new() }
    }
}
