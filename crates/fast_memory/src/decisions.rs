//! Converts choices to decisions for the pass that inserts copies.

use memplan_analysis::{Facts, ValueId};
use memplan_ir::{InstructionId, Module, Position, Use};
use memplan_memory::{FastMemoryDecision, Prefetch, SlicePrefetch, SliceTiming};
use rustc_hash::FxHashSet;

use crate::candidate::{Candidate, Event, Pinned, Pipelined, SliceCandidate, ValueCandidate, View};
use crate::choice::{Choice, Mode, Segments, SliceMode, ValueMode};

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
    for (i, (candidate, choice)) in candidates.iter().zip(choices).enumerate() {
        if let (Candidate::Slice(candidate), Mode::Slice(mode)) = (candidate, &choice.mode) {
            speller.candidate = i;
            speller.slice(candidate, mode);
        }
    }
    for (i, (candidate, choice)) in candidates.iter().zip(choices).enumerate() {
        if let (Candidate::Value(candidate), Mode::Value(mode)) = (candidate, &choice.mode) {
            speller.candidate = i;
            speller.value(candidate, mode);
        }
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
    fn slice(&mut self, candidate: &SliceCandidate, mode: &SliceMode) {
        let view = &candidate.view;
        match mode {
            SliceMode::Prefetched(segments) => {
                for segment in &segments.segments {
                    let start = segment.start.expect("nobody writes a slice to fast memory");
                    let timing = SliceTiming::Once { start_before: start.before };
                    self.prefetch_slice(view, &view.events[segment.first..=segment.last], timing);
                }
            }
            &SliceMode::Pipelined { way } => {
                let &Pipelined { first, next, double_buffered, .. } = &candidate.pipelined[way];
                let timing = SliceTiming::Pipelined {
                    first_before: first.before,
                    next_before: next.before,
                    double_buffered,
                };
                self.prefetch_slice(view, &view.events, timing);
            }
        }
    }

    fn prefetch_slice(&mut self, view: &View, events: &[Event], timing: SliceTiming) {
        let uses = uses(events);
        self.sliced.extend(&uses);
        let (value, computation) = (self.definition(view.value), view.computation);
        let slice = SlicePrefetch { value, computation, uses, timing };
        self.push(FastMemoryDecision::PrefetchSlice(slice));
    }

    fn value(&mut self, candidate: &ValueCandidate, mode: &ValueMode) {
        match mode {
            ValueMode::Pinned => self.pin(candidate.pinned.as_ref().expect("it was chosen")),
            ValueMode::Prefetched(views) => {
                for segments in views {
                    self.serve(&candidate.views[segments.view], segments, Version::Original);
                }
            }
            &ValueMode::Resident { before, index } => {
                let view = &candidate.views[0];
                self.prefetch(view, before, uses(&view.events), Some(index));
            }
            ValueMode::Evicted(segments) => {
                let view = &candidate.views[0];
                let evicted = candidate.evicted.as_ref().expect("it was chosen");
                let done_before = self.first_need(view, segments, evicted.done_before);
                let value = self.definition(view.value);
                self.push(FastMemoryDecision::Evict { value: value.clone(), done_before });
                self.push(FastMemoryDecision::Pin { value });
                self.serve(view, segments, Version::Evicted);
            }
        }
    }

    fn pin(&mut self, pinned: &Pinned) {
        for input in &pinned.prefetched {
            let prefetch = Prefetch {
                value: self.definition(input.value),
                computation: self.module.instructions[input.it.user].parent,
                start_before: input.start.before,
                uses: vec![input.it],
                resident: None,
            };
            self.push(FastMemoryDecision::Prefetch(prefetch));
        }
        for result in &pinned.evicted {
            let root = result.uses[0].user;
            let line = &self.facts.line;
            let before = result.done_before.filter(|&before| line.time(before) < line.time(root));
            let (value, uses) = (self.definition(result.value), result.uses.clone());
            let done_before = Some(before.unwrap_or(root));
            self.push(FastMemoryDecision::Evict { value: value.clone(), done_before });
            self.push(FastMemoryDecision::ReadEvicted { value, uses });
        }
        for &value in &pinned.values {
            let value = self.definition(value);
            self.push(FastMemoryDecision::Pin { value });
        }
    }

    /// The first instruction that needs the copy in main memory, not after `limit`.
    fn first_need(
        &self,
        view: &View,
        segments: &Segments,
        limit: Option<InstructionId>,
    ) -> Option<InstructionId> {
        let from_main = (0..view.events.len()).filter(|&i| !segments.serve(view, i));
        let uses = from_main.flat_map(|i| view.events[i].uses.iter().map(|it| it.user));
        let starts = segments.segments.iter().filter_map(|segment| Some(segment.start?.before));
        let line = &self.facts.line;
        uses.chain(starts).chain(limit).min_by_key(|&id| (line.begin(id), id))
    }

    /// Which version of the value serves each event of a view.
    fn serve(&mut self, view: &View, segments: &Segments, main: Version) {
        // Control flow that passes a value on gives the version that was passed in.
        let passes_in = view.events.iter().any(|event| !event.inside.is_empty());
        for segment in &segments.segments {
            let served =
                view.events[segment.first..=segment.last].iter().filter(|event| event.fast.is_some());
            let uses = uses(served);
            match segment.start {
                Some(start) => self.prefetch(view, start.before, uses, None),
                None if passes_in => self.read_original(view, uses),
                None => {}
            }
        }
        let from_main = (0..view.events.len()).filter(|&i| !segments.serve(view, i));
        let mut uses = uses(from_main.map(|i| &view.events[i]));
        uses.retain(|it| !self.sliced.contains(it));
        match main {
            Version::Evicted if !uses.is_empty() => {
                let value = self.definition(view.value);
                self.push(FastMemoryDecision::ReadEvicted { value, uses });
            }
            Version::Original if passes_in => self.read_original(view, uses),
            _ => {}
        }
        for (i, inner) in &segments.inside {
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
