//! The idle time of main memory: how early a transfer must start to end before its value is needed.
//!
//! The times of operations, and the idle time of main memory in them, depend on the contents of fast memory, so a
//! second assignment takes them from the first.
//!
//! A transfer starts as late as possible such that main memory has enough idle time up to the value's first use. If
//! operations leave main memory no idle time, an earlier start hides nothing; a transfer starts at most
//! [`TransferOptions::longest_flight`] times its own duration before the use.
//!
//! A value that is in fast memory stays there until its next use, if that is not too far away.

use cranelift_entity::SecondaryMap;
use memplan_analysis::{Durations, Facts, Machine, Time};
use memplan_ir::{ComputationId, InstructionId, Module, Op};
use memplan_memory::{FastMemory, MemorySpaceId, Target};

use crate::TransferOptions;
use crate::candidate::CopyStart;

/// Idle and elapsed time up to each instruction of each computation.
pub(crate) struct IdleTime<'a> {
    module: &'a Module,
    facts: &'a Facts,
    machine: Machine<'a>,
    fast: FastMemory,
    /// See [`TransferOptions`].
    longest_flight: f64,
    /// The place of each instruction in its computation.
    index: SecondaryMap<InstructionId, u32>,
    /// Seconds before each instruction of a computation, and at its end: idle ones of main memory, and all.
    before: SecondaryMap<ComputationId, Vec<(f64, f64)>>,
    stay: Stay,
}

/// How long values may stay in fast memory unused.
struct Stay {
    /// Seconds.
    longest: f64,
    /// Seconds before each instant, where every loop takes so many steps as the options say.
    before: Vec<f64>,
    /// How often a computation runs then.
    runs: SecondaryMap<ComputationId, f64>,
}

impl Stay {
    fn new(
        module: &Module,
        facts: &Facts,
        durations: &Durations,
        options: &TransferOptions,
        filled: f64,
    ) -> Stay {
        let runs = runs(module, facts, options);
        let mut before = Vec::with_capacity(facts.line.instructions.len() + 1);
        let mut elapsed = 0.0;
        before.push(elapsed);
        for &id in &facts.line.instructions {
            let instruction = &module.instructions[id];
            if !instruction.op.runs_callees() {
                elapsed += durations.of(id).0 * runs[instruction.parent];
            }
            before.push(elapsed);
        }
        Stay { longest: options.longest_stay * filled, before, runs }
    }
}

/// How often each computation runs where every loop takes so many steps as the options say.
pub(crate) fn runs(
    module: &Module,
    facts: &Facts,
    options: &TransferOptions,
) -> SecondaryMap<ComputationId, f64> {
    let mut runs: SecondaryMap<ComputationId, f64> = SecondaryMap::with_default(1.0);
    for &computation in facts.graph.sequential().iter().rev() {
        let Some(caller) = facts.graph.caller(computation) else { continue };
        let is_loop = module.instructions[caller].op == Op::While;
        let steps = if is_loop { options.steps_of_loops } else { 1.0 };
        runs[computation] = steps * runs[module.instructions[caller].parent];
    }
    runs
}

impl<'a> IdleTime<'a> {
    /// Adds up durations, in time linear in the module.
    pub(crate) fn new(
        module: &'a Module,
        facts: &'a Facts,
        durations: &Durations,
        target: &'a Target,
        options: &TransferOptions,
    ) -> IdleTime<'a> {
        let longest_flight = options.longest_flight;
        let fast = target.fast_memory.expect("it is assigned where there is some");
        let (mut index, mut before) = (SecondaryMap::new(), SecondaryMap::new());
        for &computation in facts.graph.sequential() {
            let (mut idle, mut elapsed) = (0.0, 0.0);
            let mut sums = vec![(0.0, 0.0)];
            for (i, &id) in module.computations[computation].instructions.iter().enumerate() {
                index[id] = i as u32;
                let (seconds, busy) = durations.of(id);
                idle += (seconds - busy).max(0.0);
                elapsed += seconds;
                sums.push((idle, elapsed));
            }
            before[computation] = sums;
        }
        let machine = Machine::new(target);
        let capacity = target.space(fast.space).and_then(|space| space.capacity).unwrap_or_default();
        let filled = machine.transfer_seconds(MemorySpaceId::MAIN, fast.space, capacity.0 as f64);
        let stay = Stay::new(module, facts, durations, options, filled);
        IdleTime { module, facts, machine, fast, longest_flight, index, before, stay }
    }

    /// Whether a value may stay in fast memory from one use in a computation to the next.
    pub(crate) fn may_stay(&self, from: Time, to: Time, computation: ComputationId) -> bool {
        let Stay { longest, before, runs } = &self.stay;
        let elapsed = before[to as usize] - before[from.min(to) as usize];
        elapsed <= longest * runs[computation]
    }

    /// The start of the transfer of a value that `user` needs and that exists from the instant `earliest`: not before
    /// the parameters and constants, which come first.
    pub(crate) fn fetch_start(&self, user: InstructionId, earliest: Time, bytes: f64) -> CopyStart {
        let seconds = self.machine.transfer_seconds(MemorySpaceId::MAIN, self.fast.space, bytes);
        let computation = self.module.instructions[user].parent;
        let (sums, sequence) =
            (&self.before[computation], &self.module.computations[computation].instructions);
        let at = self.index[user] as usize;
        let (idle, elapsed) = sums[at];
        let is_late =
            |&(i, e): &(f64, f64)| idle - i < seconds && elapsed - e < self.longest_flight * seconds;
        // The last place that is early enough; all places before it are, too.
        let early = sums[..=at].partition_point(|sum| !is_late(sum)).saturating_sub(1);
        let is_given = |&id: &InstructionId| self.module.instructions[id].op.is_input();
        let exists =
            sequence[..at].partition_point(|id| self.facts.line.begin(*id) < earliest || is_given(id));
        let start = early.max(exists).min(at);
        let hidden = if seconds > 0.0 { ((idle - sums[start].0) / seconds).min(1.0) } else { 1.0 };
        let before = sequence[start];
        CopyStart { before, time: self.facts.line.begin(before), exposed: 1.0 - hidden }
    }

    /// The memory that transfers fill.
    pub(crate) fn fast_space(&self) -> MemorySpaceId {
        self.fast.space
    }

    /// The start of a transfer that the cores wait for, and that could start at `early`.
    pub(crate) fn latest_start(&self, user: InstructionId, early: CopyStart) -> CopyStart {
        match self.facts.line.begin(user) > early.time {
            true => CopyStart { before: user, time: self.facts.line.begin(user), exposed: 1.0 },
            false => early,
        }
    }

    /// Before which instruction the copy of a value out of fast memory has to be done, and one past the last instant
    /// that it takes.
    pub(crate) fn eviction_end(
        &self,
        definition: InstructionId,
        bytes: f64,
    ) -> (Option<InstructionId>, Time) {
        let seconds = self.machine.transfer_seconds(self.fast.space, MemorySpaceId::MAIN, bytes);
        let computation = self.module.instructions[definition].parent;
        let (sums, sequence) =
            (&self.before[computation], &self.module.computations[computation].instructions);
        let at = self.index[definition] as usize + 1;
        let (idle, elapsed) = sums[at];
        let is_early =
            |&(i, e): &(f64, f64)| i - idle < seconds && e - elapsed < self.longest_flight * seconds;
        let done = at + sums[at..].partition_point(is_early);
        match sequence.get(done) {
            Some(&id) => (Some(id), self.facts.line.begin(id)),
            None => (None, self.facts.line.range(computation).1),
        }
    }
}
