//! What may be in fast memory, and what it is worth: candidates, seen from each computation as a list of events.
//!
//! A *candidate* is a value, or several that must share memory because they meet in a loop, in a conditional or in an
//! operation that works in place. A *view* is what one computation sees of one value: a list of *events* in order of
//! time, each an instruction that reads it, or one that hands it into computations that have views of their own.
//!
//! ```text
//!   w = f32[1024,1024] parameter(1)          view in main     view in body, a hundred times
//!   a = dot(x, w)                            read 4 MB
//!   loop = while(tuple(.., w, ..))           enter        --> b = dot(s, w)   read 4 MB
//!   c = dot(y, w)                            read 4 MB        d = add(b, w)   read 4 MB
//! ```
//!
//! The unit of gain is a byte that main memory does not move, weighed by how often it would.

use memplan_analysis::{Costs, Durations, Facts, LiveRange, Time, ValueId, kernel_scratch};
use memplan_ir::{ComputationId, EntitySet, InstructionId, Module, Use};
use memplan_memory::Target;
use smallvec::SmallVec;

use super::idle::IdleTime;
use super::options::FastMemoryOptions;
use super::sharing::Sharing;

/// Everything that may be in fast memory.
pub(super) struct Model {
    pub(super) candidates: Vec<Candidate>,
    pub(super) sharing: Sharing,
    /// Bytes that kernels have to themselves, by instant.
    pub(super) scratch: Vec<u64>,
    /// One past the last instant.
    pub(super) end: Time,
}

/// One value, or several that must share memory.
pub(super) struct Candidate {
    /// The values, or the one that it is a part of.
    pub(super) values: SmallVec<[ValueId; 1]>,
    /// Whether it is a part: what kernels read of a value, and all that they read of it.
    pub(super) is_part: bool,
    pub(super) bytes: u64,
    /// What it takes for all of them to be there all their lives; `None` when they cannot.
    pub(super) whole: Option<Whole>,
    /// What writing them costs when they are in main memory.
    pub(super) write: f64,
    /// What it costs that they take main memory, if they are not whole in the fast one.
    pub(super) room: f64,
    /// When they would take main memory: never for what the caller sees, which takes it in any case.
    pub(super) life: Vec<LiveRange>,
    /// For a single value that an instruction writes: being written there and copied out, which some part of its life
    /// asks for.
    pub(super) evicted: Option<Evicted>,
    /// For a part: the ways for a loop to bring it one iteration ahead.
    pub(super) carried: SmallVec<[Carried; 2]>,
    /// What computations see of the values that are in main memory, outermost first.
    pub(super) views: Vec<View>,
}

/// All values in fast memory all their lives.
pub(super) struct Whole {
    /// The values without those of main memory that flow into them.
    pub(super) resident: Vec<ValueId>,
    pub(super) busy: Vec<LiveRange>,
    /// What copies in and out cost, and what has to read main memory all the same.
    pub(super) cost: f64,
    /// Values of main memory that flow into it, each to be copied in.
    pub(super) copied_in: Vec<CopiedIn>,
    /// Results of the program, to be copied out.
    pub(super) copied_out: Vec<CopiedOut>,
}

/// A result of the program that is made in fast memory.
pub(super) struct CopiedOut {
    pub(super) value: ValueId,
    /// Operands of the entry's root: at least one.
    pub(super) uses: Vec<Use>,
    /// The instruction before which the copy is done; `None`: the root.
    pub(super) done_before: Option<InstructionId>,
}

/// A value of main memory that becomes part of something in fast memory.
pub(super) struct CopiedIn {
    pub(super) value: ValueId,
    pub(super) uses: Vec<Use>,
    /// Where the copy starts.
    pub(super) start: Start,
}

/// Where a copy into fast memory starts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Start {
    /// The instruction before which it does.
    pub(super) before: InstructionId,
    /// The first instant at which it is under way.
    pub(super) time: Time,
    /// The share of its time that the cores wait for it.
    pub(super) exposed: f64,
}

/// Written to fast memory and copied out.
pub(super) struct Evicted {
    /// The copy costs as much as it moves.
    pub(super) cost: f64,
    /// From the instant that writes it to the one at which the copy has to be done.
    pub(super) busy: LiveRange,
    /// The instruction before which it has to be done; `None`: the end of the computation.
    pub(super) done_before: Option<InstructionId>,
}

/// Brought for the first iteration before the loop, for every other one in the iteration before.
pub(super) struct Carried {
    pub(super) first: Start,
    pub(super) next: Start,
    /// Whether two buffers rotate: what was brought is handed on to a second one before its first use, so that the next
    /// may come while it is used. Otherwise the next one starts after the last use.
    pub(super) rotates: bool,
    /// What all the copies cost, and what the cores wait for.
    pub(super) cost: f64,
    /// When each buffer is needed.
    pub(super) busy: [LiveRange; 2],
}

/// What one computation sees of a value.
pub(super) struct View {
    pub(super) value: ValueId,
    pub(super) computation: ComputationId,
    /// What a copy into fast memory costs here.
    pub(super) fetch: f64,
    /// What it costs on top when the cores wait for all of it.
    pub(super) wait: f64,
    pub(super) events: Vec<Event>,
}

/// A need for a value.
pub(super) struct Event {
    /// When it must be there, and one past the instant up to which.
    pub(super) range: LiveRange,
    /// Where a copy into fast memory starts that is done in time.
    pub(super) start: Start,
    /// Where one starts at the latest.
    pub(super) latest: Start,
    /// What it costs to read main memory, what is in `inside` aside.
    pub(super) main: f64,
    /// What it costs when the value is in fast memory; `None` when it has to be in main memory.
    pub(super) fast: Option<f64>,
    pub(super) uses: SmallVec<[Use; 2]>,
    /// What the computations see that it is handed to.
    pub(super) inside: Vec<View>,
}

impl Candidate {
    /// The value, if it is one alone.
    pub(super) fn single(&self) -> Option<ValueId> {
        match self.values.as_slice() {
            &[value] if !self.is_part => Some(value),
            _ => None,
        }
    }
}

impl Model {
    /// Lists what may be in fast memory, when operations take as long as `durations` says, and parts of all values
    /// but those of `whole`; without that, no parts. Close to linear in positions and operands.
    pub(super) fn new(
        module: &Module,
        facts: &Facts,
        costs: &Costs,
        target: &Target,
        options: &FastMemoryOptions,
        durations: &Durations,
        whole: Option<&EntitySet<ValueId>>,
    ) -> Model {
        let idle = IdleTime::new(module, facts, durations, target, &options.transfers);
        let candidates = super::candidates::candidates(module, facts, costs, target, options, &idle, whole);
        let sharing = Sharing::new(module, facts, &candidates);
        Model { candidates, sharing, scratch: scratch(module, facts, target), end: facts.line.end() }
    }
}

/// Bytes of fast memory that kernels have to themselves, by instant.
fn scratch(module: &Module, facts: &Facts, target: &Target) -> Vec<u64> {
    let mut bytes = vec![0; facts.line.end() as usize];
    let is_here = |space| target.fast_memory.is_some_and(|fast| fast.space == space);
    for it in kernel_scratch(module, target).into_iter().filter(|it| is_here(it.space)) {
        bytes[facts.line.time(it.instruction) as usize] = it.size.0;
    }
    bytes
}

/// What it costs to serve a view from main memory.
pub(super) fn main_cost(view: &View) -> f64 {
    view.events.iter().map(|event| event.main + event.inside.iter().map(main_cost).sum::<f64>()).sum()
}

impl Event {
    pub(super) fn new(range: LiveRange, main: f64, fast: Option<f64>, it: Use) -> Event {
        let start = Start { before: it.user, time: range.start, exposed: 1.0 };
        Event { range, start, latest: start, main, fast, uses: SmallVec::from_iter([it]), inside: Vec::new() }
    }
}
