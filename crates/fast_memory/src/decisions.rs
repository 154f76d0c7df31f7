//! Choices as decisions: what the pass that inserts copies is told.

use memplan_analysis::{Facts, ValueId};
use memplan_ir::{InstructionId, Module, Position, Use};
use memplan_memory::{FastMemoryDecision, Prefetch, SlicePrefetch, SliceTiming};
use rustc_hash::FxHashSet;

use crate::choice::{Choice, Mode, Stays};
use crate::model::{Candidate, Carried, Event, Start, View, Whole};

/// Decisions, and the candidate of each.
pub(crate) struct Decisions {
    pub(crate) list: Vec<FastMemoryDecision>,
    pub(crate) candidates: Vec<usize>,
}

/// Spells choices out as decisions, in time linear in the uses of candidates.
pub(crate) fn decisions(
    module: &Module,
    facts: &Facts,
    candidates: &[Candidate],
    choices: &[Choice],
) -> Decisions {
    let decisions = Decisions { list: Vec::new(), candidates: Vec::new() };
    let mut speller = Speller { module, facts, candidate: 0, sliced: FxHashSet::default(), decisions };
    let all = || candidates.iter().zip(choices).enumerate();
    for (i, (candidate, choice)) in all().filter(|(_, (c, _))| c.is_part) {
        speller.candidate = i;
        speller.part(candidate, choice);
    }
    for (i, (candidate, choice)) in all().filter(|(_, (c, _))| !c.is_part) {
        speller.candidate = i;
        speller.value(candidate, choice);
    }
    speller.decisions
}

struct Speller<'a> {
    module: &'a Module,
    facts: &'a Facts,
    candidate: usize,
    /// Operands that prefetches of slices serve.
    sliced: FxHashSet<Use>,
    decisions: Decisions,
}

/// Which version of a value in main memory uses read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Version {
    Original,
    Evicted,
}

impl Speller<'_> {
    fn part(&mut self, candidate: &Candidate, choice: &Choice) {
        let view = &candidate.views[0];
        match &choice.mode {
            Mode::Main(all) => {
                for stay in all.iter().flat_map(|stays| &stays.stays) {
                    let start = stay.start.expect("nobody writes a part to fast memory");
                    let timing = SliceTiming::Once { start_before: start.before };
                    self.slice(view, &view.events[stay.first..=stay.last], timing);
                }
            }
            Mode::Carried { way } => {
                let &Carried { first, next, rotates, .. } = &candidate.carried[*way];
                let timing = SliceTiming::Pipelined {
                    first_before: first.before,
                    next_before: next.before,
                    double_buffered: rotates,
                };
                self.slice(view, &view.events, timing);
            }
            _ => unreachable!("a part stays in main memory, or is brought"),
        }
    }

    fn slice(&mut self, view: &View, events: &[Event], timing: SliceTiming) {
        let uses = uses(events);
        self.sliced.extend(&uses);
        let (value, computation) = (self.definition(view.value), view.computation);
        let slice = SlicePrefetch { value, computation, uses, timing };
        self.push(FastMemoryDecision::PrefetchSlice(slice));
    }

    fn value(&mut self, candidate: &Candidate, choice: &Choice) {
        match &choice.mode {
            Mode::Whole => self.pin(candidate.whole.as_ref().expect("it was chosen")),
            Mode::Carried { .. } => unreachable!("only parts are carried"),
            Mode::Main(all) => {
                for stays in all {
                    self.serve(&candidate.views[stays.view], stays, Version::Original);
                }
            }
            &Mode::Resident { before, index } => {
                let view = &candidate.views[0];
                self.prefetch(view, before, uses(&view.events), Some(index));
            }
            Mode::Evicted(stays) => {
                let view = &candidate.views[0];
                let evicted = candidate.evicted.as_ref().expect("it was chosen");
                let done_before = self.first_need(view, stays, evicted.done_before);
                let value = self.definition(view.value);
                self.push(FastMemoryDecision::Evict { value: value.clone(), done_before });
                self.push(FastMemoryDecision::Pin { value });
                self.serve(view, stays, Version::Evicted);
            }
        }
    }

    fn pin(&mut self, whole: &Whole) {
        for input in &whole.copied_in {
            let prefetch = Prefetch {
                value: self.definition(input.value),
                computation: self.module.instructions[input.uses[0].user].parent,
                start_before: input.start.before,
                uses: input.uses.clone(),
                resident: None,
            };
            self.push(FastMemoryDecision::Prefetch(prefetch));
        }
        for output in &whole.copied_out {
            let root = output.uses[0].user;
            let line = &self.facts.line;
            let before = output.done_before.filter(|&before| line.time(before) < line.time(root));
            let (value, uses) = (self.definition(output.value), output.uses.clone());
            let done_before = Some(before.unwrap_or(root));
            self.push(FastMemoryDecision::Evict { value: value.clone(), done_before });
            self.push(FastMemoryDecision::ReadEvicted { value, uses });
        }
        for &value in &whole.resident {
            let value = self.definition(value);
            self.push(FastMemoryDecision::Pin { value });
        }
    }

    /// The first instruction that needs the copy in main memory, not after `limit`.
    fn first_need(&self, view: &View, stays: &Stays, limit: Option<InstructionId>) -> Option<InstructionId> {
        let from_main = (0..view.events.len()).filter(|&i| !is_fast(view, stays, i));
        let uses = from_main.flat_map(|i| view.events[i].uses.iter().map(|it| it.user));
        let starts = stays.stays.iter().filter_map(|stay| Some(stay.start?.before));
        let line = &self.facts.line;
        uses.chain(starts).chain(limit).min_by_key(|&id| (line.begin(id), id))
    }

    /// Which version of the value serves each event of a view.
    fn serve(&mut self, view: &View, stays: &Stays, main: Version) {
        // What comes out of control flow shows the version that was handed in.
        let hands_over = view.events.iter().any(|event| !event.inside.is_empty());
        for stay in &stays.stays {
            let served = view.events[stay.first..=stay.last].iter().filter(|event| event.fast.is_some());
            let uses = uses(served);
            match stay.start {
                Some(Start { before, .. }) => self.prefetch(view, before, uses, None),
                None if hands_over => self.read_original(view, uses),
                None => {}
            }
        }
        let from_main = (0..view.events.len()).filter(|&i| !is_fast(view, stays, i));
        let mut uses = uses(from_main.map(|i| &view.events[i]));
        uses.retain(|it| !self.sliced.contains(it));
        match main {
            Version::Evicted if !uses.is_empty() => {
                let value = self.definition(view.value);
                self.push(FastMemoryDecision::ReadEvicted { value, uses });
            }
            Version::Original if hands_over => self.read_original(view, uses),
            _ => {}
        }
        for (i, inner) in &stays.inside {
            self.serve(&view.events[*i].inside[inner.view], inner, Version::Original);
        }
    }

    fn prefetch(&mut self, view: &View, start_before: InstructionId, uses: Vec<Use>, resident: Option<u32>) {
        let (value, computation) = (self.definition(view.value), view.computation);
        let prefetch = Prefetch { value, computation, start_before, uses, resident };
        self.push(FastMemoryDecision::Prefetch(prefetch));
    }

    fn read_original(&mut self, view: &View, uses: Vec<Use>) {
        if !uses.is_empty() {
            let (value, computation) = (self.definition(view.value), view.computation);
            self.push(FastMemoryDecision::ReadOriginal { value, computation, uses });
        }
    }

    fn definition(&self, value: ValueId) -> Position {
        let flow = &self.facts.flow;
        flow.positions.position(flow.values[value].definition)
    }

    fn push(&mut self, decision: FastMemoryDecision) {
        self.decisions.list.push(decision);
        self.decisions.candidates.push(self.candidate);
    }
}

fn uses<'e>(events: impl IntoIterator<Item = &'e Event>) -> Vec<Use> {
    events.into_iter().flat_map(|event| event.uses.iter().copied()).collect()
}

/// Whether an event is served from fast memory.
fn is_fast(view: &View, stays: &Stays, event: usize) -> bool {
    view.events[event].fast.is_some()
        && stays.stays.iter().any(|stay| stay.first <= event && event <= stay.last)
}
