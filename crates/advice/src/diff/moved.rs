//! Whether the peak is at another place of the program than before.
//!
//! ```text
//!   bytes │      after  ┌──┐               If a program grew, the values at the peak after are compared with those that
//!         │      ┌───┐  │  │               are live at the same place before: there, each value has a partner.
//!         │      │ ┌─┴──┘  │
//!         │   ┌──┘ │before │               If the peak before has more bytes than this place, no value changed by the
//!         │   │ ┌──┘ └──┐  │               difference: the peak moved.
//!         └───┴─┴───────┴──┴──► time
//! ```
//!
//! The place of one program that corresponds to the peak of the other is found from values: the instant at which most of
//! the values of that peak are live, and fewest others.

use memplan_analysis::{Time, ValueId, folded_operation, operation};
use memplan_ir::{InstructionId, Module};
use memplan_memory::{Bytes, HolderEntry, MemorySpaceId, PeakEntry};
use memplan_plan_hlo::{Lifetime, Planned, lifetimes};
use serde::Serialize;

use super::partners::partners;
use crate::Words;
use crate::holders::{Holder, Peak, fold_instruction};

/// A program that is compared, beside its plan file.
#[derive(Clone, Copy, Debug)]
pub struct PlannedModule<'a> {
    /// The module.
    pub module: &'a Module,
    /// Its plan.
    pub planned: &'a Planned,
}

/// Where the peak was, and where it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Moved {
    /// The place of the peak before.
    pub from: Place,
    /// The place of the peak after.
    pub to: Place,
}

/// A place of both programs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Place {
    /// The operation that runs there, in the program that has its peak there.
    pub operation: String,
    /// The line of the user's program.
    pub source: Option<String>,
    /// Bytes that are live there before.
    pub before: Bytes,
    /// Bytes that are live there after.
    pub after: Bytes,
}

/// What is live in main memory where the peak of the other program is.
pub(super) struct Elsewhere {
    /// Before, where the peak is after.
    pub(super) before: PeakEntry,
    /// After, where the peak was before.
    pub(super) after: PeakEntry,
    /// The places of the peaks.
    pub(super) places: Moved,
}

impl Elsewhere {
    /// Takes time n log n in the values of both programs.
    pub(super) fn new(before: PlannedModule<'_>, after: PlannedModule<'_>) -> Elsewhere {
        let sides = [before, after].map(|PlannedModule { module, planned }| {
            let words = Words::new(module, &planned.facts);
            let peak = Peak::new(&words, planned, MemorySpaceId::MAIN);
            let values = Values::new(&words, planned, |value| Holder::of(&words, planned, value));
            (words, planned, peak, values)
        });
        let [(words_a, planned_a, peak_a, values_a), (words_b, planned_b, peak_b, values_b)] = &sides;
        let of_a = partners(&values_a.holders, &values_b.holders);
        let mut of_b: Vec<Option<u32>> = vec![None; values_b.holders.len()];
        for (a, b) in (0..).zip(&of_a) {
            b.iter().for_each(|&b| of_b[b as usize] = Some(a));
        }
        let time_a = values_a.like(values_b, peak_b.report.time, &of_a);
        let time_b = values_b.like(values_a, peak_a.report.time, &of_b);
        let at_a = Peak::at(words_a, planned_a, MemorySpaceId::MAIN, time_a);
        let at_b = Peak::at(words_b, planned_b, MemorySpaceId::MAIN, time_b);
        let places = Moved {
            from: Place::new(words_a, peak_a.report.instruction, peak_a.report.bytes, at_b.report.bytes),
            to: Place::new(words_b, peak_b.report.instruction, at_a.report.bytes, peak_b.report.bytes),
        };
        Elsewhere { before: at_a.entry(words_a.module), after: at_b.entry(words_b.module), places }
    }
}

impl Place {
    fn new(words: &Words<'_>, instruction: InstructionId, before: Bytes, after: Bytes) -> Place {
        let module = words.module;
        let operation = match operation(module, instruction) {
            "" => fold_instruction(&module.instructions[instruction].name),
            name => folded_operation(name),
        };
        let source = words.sources.user(instruction).map(|frame| frame.to_string());
        Place { operation, source, before, after }
    }
}

/// The values of a program in main memory, by when they are made.
#[derive(Debug)]
pub(crate) struct Values {
    pub(crate) lifetimes: Vec<Lifetime>,
    /// What each of them is.
    pub(crate) holders: Vec<HolderEntry>,
    pub(crate) end: Time,
}

impl Values {
    /// `describe` says what a value is.
    pub(crate) fn new(
        words: &Words<'_>,
        planned: &Planned,
        describe: impl Fn(ValueId) -> HolderEntry,
    ) -> Values {
        let (module, facts, plan) = (words.module, &planned.facts, &planned.plan);
        let mut lifetimes = lifetimes(module, facts, plan);
        lifetimes.retain(|lifetime| plan.allocations[lifetime.slice.allocation].space == MemorySpaceId::MAIN);
        lifetimes.sort_by_key(|lifetime| (lifetime.live.start, lifetime.value));
        let holders = lifetimes.iter().map(|lifetime| describe(lifetime.largest));
        Values { holders: holders.collect(), lifetimes, end: facts.line.end() }
    }

    /// When most of what is live in another program at some instant is live, and least of what is not, by bytes.
    pub(crate) fn like(&self, other: &Values, at: Time, partners: &[Option<u32>]) -> Time {
        let mut steps: Vec<i128> = vec![0; self.end as usize + 1];
        for (lifetime, partner) in self.lifetimes.iter().zip(partners) {
            let is_there = partner.is_some_and(|there| other.lifetimes[there as usize].live.is_live_at(at));
            let bytes = i128::from(lifetime.slice.size.0);
            let bytes = if is_there { bytes } else { -bytes };
            steps[lifetime.live.start as usize] += bytes;
            steps[lifetime.live.end.min(self.end) as usize] -= bytes;
        }
        let mut likeness = 0;
        let sums = steps.iter().map(|step| {
            likeness += step;
            likeness
        });
        let last = self.end.max(1) as usize;
        let best = (0..).zip(sums.take(last)).max_by_key(|&(time, sum)| (sum, std::cmp::Reverse(time)));
        best.map_or(0, |(time, _)| time)
    }
}
