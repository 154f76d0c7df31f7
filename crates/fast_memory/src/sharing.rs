//! Results that reuse the bytes of a dying operand: operand and result count only once.
//!
//! A value is live during the instruction that reads it last, and a result during the instruction that writes it, so
//! both count at that instant. If the planner lets the result reuse the operand's storage, only one of them should count.
//! This requires both in fast memory. So each such instruction is a *site*, which records the bytes that the present
//! choices count twice.

use indexmap::IndexMap;
use memplan_analysis::{Facts, LiveRange, Time};
use memplan_ir::Module;
use rustc_hash::{FxBuildHasher, FxHashMap};
use smallvec::SmallVec;

use crate::candidate::Candidate;
use crate::choice::Choice;

/// An instruction whose results may take over operands.
struct Site {
    time: Time,
    /// Candidates that are written, and the candidates that each may take over.
    results: Vec<(usize, SmallVec<[usize; 2]>)>,
}

/// All sites.
pub(crate) struct Sharing {
    sites: Vec<Site>,
    /// The sites that each candidate has a part in.
    of: Vec<SmallVec<[u32; 2]>>,
}

impl Sharing {
    /// Finds the sites: linear in the pairs of a result and an operand of one instruction.
    pub(crate) fn new(module: &Module, facts: &Facts, candidates: &[Candidate]) -> Sharing {
        let single = candidates.iter().enumerate().filter_map(|(i, c)| Some((c.single()?, i)));
        let of_value: FxHashMap<_, _> = single.collect();
        let mut sharing = Sharing { sites: Vec::new(), of: vec![SmallVec::new(); candidates.len()] };
        for (time, &id) in facts.line.instructions.iter().enumerate() {
            // Candidates that are read, and the operands that hold them.
            let mut read: IndexMap<usize, SmallVec<[usize; 1]>, FxBuildHasher> = IndexMap::default();
            for (k, &operand) in module.instructions[id].operands.iter().enumerate() {
                if let Some(&candidate) = facts.flow.value_of(operand).and_then(|value| of_value.get(&value))
                {
                    read.entry(candidate).or_default().push(k);
                }
            }
            let mut results = Vec::new();
            for position in facts.flow.positions.of(id) {
                let Some(value) = facts.flow.value_at(position) else { continue };
                let Some(&result) = of_value.get(&value) else { continue };
                if facts.flow.values[value].definition != position {
                    continue;
                }
                let output = facts.flow.positions.shape_index(position);
                let takes = |k: usize| facts.in_place.may_take_over(module, id, k, output);
                let is_same_size = |partner: usize| candidates[partner].bytes() == candidates[result].bytes();
                let partners = read.iter().filter(|&(&partner, operands)| {
                    partner != result && is_same_size(partner) && operands.iter().all(|&k| takes(k))
                });
                let partners: SmallVec<[usize; 2]> = partners.map(|(&partner, _)| partner).collect();
                if !partners.is_empty() {
                    results.push((result, partners));
                }
            }
            if !results.is_empty() {
                let number = sharing.sites.len() as u32;
                for (result, partners) in &results {
                    for &candidate in partners.iter().chain([result]) {
                        if sharing.of[candidate].last() != Some(&number) {
                            sharing.of[candidate].push(number);
                        }
                    }
                }
                sharing.sites.push(Site { time: time as Time, results });
            }
        }
        sharing
    }

    /// Number of sites.
    pub(crate) fn len(&self) -> usize {
        self.sites.len()
    }

    /// The sites that a candidate has a part in.
    pub(crate) fn of(&self, candidate: usize) -> &[u32] {
        &self.of[candidate]
    }

    /// The instant of a site, and the bytes that are counted twice there.
    pub(crate) fn twice(&self, site: u32, candidates: &[Candidate], choices: &[Choice]) -> (LiveRange, u64) {
        let Site { time, results } = &self.sites[site as usize];
        let mut taken: SmallVec<[usize; 4]> = SmallVec::new();
        let mut bytes = 0;
        for (result, partners) in results {
            if !begins_at(&choices[*result], *time) {
                continue;
            }
            let mut free = partners.iter().filter(|partner| !taken.contains(partner));
            if let Some(&partner) = free.find(|&&partner| ends_at(&choices[partner], *time)) {
                taken.push(partner);
                bytes += candidates[*result].bytes();
            }
        }
        (LiveRange { start: *time, end: time + 1 }, bytes)
    }

    /// The part of a range during which a candidate takes bytes of its own, as the others have chosen; with `None`, as
    /// they may choose at best.
    pub(crate) fn own_part(
        &self,
        candidate: usize,
        candidates: &[Candidate],
        range: LiveRange,
        choices: Option<&[Choice]>,
    ) -> LiveRange {
        let mut own = range;
        let may_be_under_way = candidates[candidate]
            .eviction()
            .is_some_and(|busy| range.start == busy.start && range.end <= busy.end);
        for &site in &self.of[candidate] {
            let Site { time, results } = &self.sites[site as usize];
            for (result, partners) in results {
                if *result == candidate {
                    let has_partner =
                        |choices: &[Choice]| partners.iter().any(|&p| ends_at(&choices[p], *time));
                    if range.start == *time && choices.is_none_or(has_partner) {
                        own.start = time + 1;
                    }
                } else if range.end == time + 1
                    && !may_be_under_way
                    && partners.contains(&candidate)
                    && choices.is_some_and(|choices| {
                        begins_at(&choices[*result], *time)
                            && !partners.iter().any(|&p| p != candidate && ends_at(&choices[p], *time))
                    })
                {
                    own.end = *time;
                }
            }
        }
        own.end = own.end.max(own.start);
        own
    }
}

fn begins_at(choice: &Choice, time: Time) -> bool {
    choice.busy.iter().any(|range| range.start == time)
}

/// Whether an instruction is the last that needs a value in fast memory. A copy that is under way is needed longer.
fn ends_at(choice: &Choice, time: Time) -> bool {
    choice.evicted_until <= time
        && choice.busy.iter().any(|range| range.end == time + 1 && range.start <= time)
}
