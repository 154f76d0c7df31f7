//! Two instants, one of each side: what is live at both, and what at one.

use std::collections::VecDeque;

use indexmap::IndexMap;
use memplan_analysis::Time;
use memplan_ir::InstructionId;
use memplan_memory::Bytes;
use rustc_hash::FxHashMap;

use super::cause::{At, NAMES, Reason};
use super::side::{Kind, Side, Stored};
use super::{CauseKind, Part};
use crate::diff::{COMPILED_TWICE, partners_by};
use crate::shape_at;

/// What is live on both sides at an instant of each, in pairs.
pub(super) struct Aligned {
    pub(super) times: [Time; 2],
    live: [Vec<Stored>; 2],
    partners: Vec<Option<u32>>,
}

impl Aligned {
    pub(super) fn new(sides: &[Side<'_>; 2], times: [Time; 2], of_a: &[Option<u32>]) -> Aligned {
        let [a, b] = sides;
        let mut live = [a.live_at(times[0]), b.live_at(times[1])];
        // Of one kind, those come first whose partners are live, too: what is left is what differs.
        let is_there = |j: usize| b.values.lifetimes[j].live.is_live_at(times[1]);
        live[0].sort_by_key(|stored| {
            let has_partner = of_a[stored.lifetime].is_some_and(|j| is_there(j as usize));
            (!has_partner, stored.lifetime)
        });
        let partners = pairs(sides, [&live[0], &live[1]]);
        Aligned { times, live, partners }
    }

    /// What is left unpaired, and what the peaks have more.
    pub(super) fn cost(&self, sides: &[Side<'_>; 2]) -> u128 {
        let mut is_paired = vec![false; self.live[1].len()];
        self.partners.iter().flatten().for_each(|&j| is_paired[j as usize] = true);
        let bytes = |side: usize, stored: Stored| u128::from(sides[side].lifetime(stored).slice.size.0);
        let a = self.live[0].iter().zip(&self.partners).filter(|(_, partner)| partner.is_none());
        let b = self.live[1].iter().zip(&is_paired).filter(|(_, is_paired)| !**is_paired);
        let alone = a.map(|(&stored, _)| bytes(0, stored)).sum::<u128>()
            + b.map(|(&stored, _)| bytes(1, stored)).sum::<u128>();
        let below = |side: usize| {
            let of = &sides[side];
            u128::from(of.bytes_at(of.peak()).0 - of.bytes_at(self.times[side]).0)
        };
        alone + below(0) + below(1)
    }

    /// Values that differ, those of one kind and one reason together, each with how far the program has come when the first
    /// of them is made.
    pub(super) fn parts(&self, at: &At<'_>) -> Vec<(Part, Time)> {
        let size = |side: usize, stored: Stored| at.sides[side].lifetime(stored).slice.size;
        let mut found: Vec<(usize, Stored, Bytes, Reason)> = Vec::new();
        let mut is_paired = vec![false; self.live[1].len()];
        for (&ours, partner) in self.live[0].iter().zip(&self.partners) {
            let Some(partner) = *partner else {
                found.push((0, ours, size(0, ours), at.alone(0, ours)));
                continue;
            };
            is_paired[partner as usize] = true;
            let theirs = self.live[1][partner as usize];
            let (a, b) = (size(0, ours), size(1, theirs));
            if a != b {
                let (side, stored) = if a > b { (0, ours) } else { (1, theirs) };
                found.push((side, stored, Bytes(a.0.abs_diff(b.0)), at.resized(ours, theirs)));
            }
        }
        for (&theirs, _) in self.live[1].iter().zip(is_paired).filter(|(_, is_paired)| !is_paired) {
            found.push((1, theirs, size(1, theirs), at.alone(1, theirs)));
        }
        instead(at, &mut found);
        let mut parts: IndexMap<(bool, CauseKind, String, String), (Part, Time)> = IndexMap::new();
        for (side, stored, bytes, reason) in found {
            let new = part(at, side, stored, bytes, reason);
            let key = (new.is_compilers, new.kind, new.operation.clone(), new.shape.clone());
            let (there, _) = parts.entry(key).or_insert_with(|| {
                let none = Part { count: 0, bytes: Bytes::ZERO, ..new };
                (none, progress(at, side, stored))
            });
            there.count += 1;
            there.bytes = there.bytes.saturating_add(bytes);
        }
        parts.into_values().collect()
    }
}

/// Which of two lists are the same thing: what is called so, and of the rest what is in one place with the same values.
pub(super) fn pairs(sides: &[Side<'_>; 2], lists: [&[Stored]; 2]) -> Vec<Option<u32>> {
    let [a, b] = sides;
    let holders = |side: &Side<'_>, list: &[Stored]| {
        list.iter().map(|&stored| side.described(stored).holder.clone()).collect::<Vec<_>>()
    };
    let mut partners = partners_by(&COMPILED_TWICE, &holders(a, lists[0]), &holders(b, lists[1]));
    let mut is_paired = vec![false; lists[1].len()];
    partners.iter().flatten().for_each(|&j| is_paired[j as usize] = true);
    let mut waiting: FxHashMap<(Kind, Bytes), VecDeque<usize>> = FxHashMap::default();
    for (j, stored) in lists[1].iter().enumerate().filter(|(j, _)| !is_paired[*j]) {
        for kind in b.kinds(stored.lifetime) {
            waiting.entry((kind, b.lifetime(*stored).slice.size)).or_default().push_back(j);
        }
    }
    for (partner, stored) in partners.iter_mut().zip(lists[0]).filter(|(partner, _)| partner.is_none()) {
        for kind in a.kinds(stored.lifetime) {
            let Some(list) = waiting.get_mut(&(kind, a.lifetime(*stored).slice.size)) else { continue };
            while list.front().is_some_and(|&j| is_paired[j]) {
                list.pop_front();
            }
            if let Some(j) = list.pop_front() {
                is_paired[j] = true;
                *partner = u32::try_from(j).ok();
                break;
            }
        }
    }
    partners
}

/// Where one side still needs a value because the other has what is made of it, the reason is that of what is made: it is
/// computed later, or not turned, or not copied.
fn instead(at: &At<'_>, found: &mut [(usize, Stored, Bytes, Reason)]) {
    let mut makers: FxHashMap<(usize, InstructionId), Reason> = FxHashMap::default();
    for (side, stored, _, reason) in found.iter() {
        let maker = at.sides[*side].position(stored.value).instruction;
        if reason.kind != CauseKind::Order {
            makers.entry((*side, maker)).or_insert_with(|| reason.clone());
        }
    }
    for (side, _, _, reason) in found.iter_mut() {
        let made = reason.last_reader.and_then(|reader| makers.get(&(1 - *side, reader)));
        if let (CauseKind::Order, Some(made), Some(reader)) = (reason.kind, made, reason.last_reader) {
            let name = at.sides[1 - *side].name(reader);
            *reason = Reason {
                kind: made.kind,
                why: format!("{} has `{name}` of it by now", NAMES[1 - *side]),
                last_reader: None,
            };
        }
    }
}

fn part(at: &At<'_>, side: usize, stored: Stored, bytes: Bytes, reason: Reason) -> Part {
    let here = &at.sides[side];
    let position = here.position(stored.value);
    let described = here.described(stored);
    Part {
        is_compilers: side == 1,
        count: 1,
        bytes,
        operation: described.origin.name.clone(),
        instruction: here.subject.name_at(&position),
        shape: shape_at(here.subject.module, &position),
        source: described.source.clone(),
        kept_by: here.subject.words.kept_by(stored.value),
        kind: reason.kind,
        why: reason.why,
    }
}

/// How much of a program has run when a value is made, in parts of 2^20.
fn progress(at: &At<'_>, side: usize, stored: Stored) -> Time {
    let (start, end) = (at.sides[side].lifetime(stored).live.start, at.sides[side].values.end.max(1));
    Time::try_from((u64::from(start) << 20) / u64::from(end)).unwrap_or(Time::MAX)
}
