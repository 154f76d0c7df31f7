//! Chooses an instant of each plan, and finds the values that are live at only one of them.

use std::collections::VecDeque;

use indexmap::IndexMap;
use memplan_analysis::Time;
use memplan_ir::InstructionId;
use memplan_memory::Bytes;
use rustc_hash::FxHashMap;

use super::reason::{At, NAMES, Reason};
use super::side::{Kind, Side, Stored};
use super::{CauseKind, Surplus};
use crate::diff::{COMPILED_TWICE, partners_by};
use crate::shape_at;

/// Which lifetimes of the two plans hold the same value, over the whole program.
pub(super) struct Partners {
    /// For each lifetime of the estimate, that of the compiler; and the reverse.
    of: [Vec<Option<u32>>; 2],
}

impl Partners {
    /// `None` where the plans have no value in common.
    pub(super) fn of_all(sides: &[Side<'_>; 2]) -> Option<Partners> {
        let [a, b] = sides.each_ref().map(Side::all);
        let of_a = pairs(sides, [&a, &b]);
        let mut of_b = vec![None; b.len()];
        for (i, j) in (0..).zip(&of_a) {
            j.iter().for_each(|&j| of_b[j as usize] = Some(i));
        }
        of_a.iter().any(Option::is_some).then_some(Partners { of: [of_a, of_b] })
    }
}

/// What is live at an instant of each plan, in pairs.
pub(super) struct Aligned {
    pub(super) times: [Time; 2],
    live: [Vec<Stored>; 2],
    /// For each live value of the estimate, its place in the list of the compiler.
    partners: Vec<Option<u32>>,
}

impl Aligned {
    /// Compares the peaks, or the larger peak with the instant of the other plan that holds most of the same values:
    /// whichever leaves fewer bytes to explain.
    pub(super) fn nearest(sides: &[Side<'_>; 2], partners: &Partners) -> Aligned {
        let [a, b] = sides;
        let [of_a, of_b] = &partners.of;
        let peaks = [a.peak(), b.peak()];
        let at_larger_peak = match b.bytes_at(peaks[1]) >= a.bytes_at(peaks[0]) {
            true => [a.values.like(&b.values, peaks[1], of_a), peaks[1]],
            false => [peaks[0], b.values.like(&a.values, peaks[0], of_b)],
        };
        let candidates = [peaks, at_larger_peak].map(|times| Aligned::new(sides, times, partners));
        candidates.into_iter().min_by_key(|it| it.unexplained(sides)).expect("there are two")
    }

    fn new(sides: &[Side<'_>; 2], times: [Time; 2], partners: &Partners) -> Aligned {
        let [a, b] = sides;
        let mut live = [a.live_at(times[0]), b.live_at(times[1])];
        // Among values of one kind, those whose partners are live go first, so that the others are left.
        let is_live = |j: u32| b.values.lifetimes[j as usize].live.is_live_at(times[1]);
        live[0].sort_by_key(|it| (!partners.of[0][it.lifetime].is_some_and(is_live), it.lifetime));
        let partners = pairs(sides, [&live[0], &live[1]]);
        Aligned { times, live, partners }
    }

    /// Bytes without a partner, and those that the peaks have more than the instants.
    fn unexplained(&self, sides: &[Side<'_>; 2]) -> u128 {
        let bytes = |(side, stored): (usize, Stored)| u128::from(sides[side].lifetime(stored).slice.size.0);
        let below = |side: usize| {
            let of = &sides[side];
            u128::from(of.bytes_at(of.peak()).0 - of.bytes_at(self.times[side]).0)
        };
        self.alone().map(bytes).sum::<u128>() + below(0) + below(1)
    }

    /// Values without a partner, with their side.
    fn alone(&self) -> impl Iterator<Item = (usize, Stored)> {
        let mut is_paired = vec![false; self.live[1].len()];
        self.partners.iter().flatten().for_each(|&j| is_paired[j as usize] = true);
        let a = self.live[0].iter().zip(&self.partners).filter(|(_, partner)| partner.is_none());
        let b = self.live[1].iter().zip(is_paired).filter(|(_, is_paired)| !is_paired);
        a.map(|(&stored, _)| (0, stored)).chain(b.map(|(&stored, _)| (1, stored)))
    }

    /// Values that both sides hold, in other numbers of bytes: those of the estimate, and those of the compiler.
    fn resized<'l>(&'l self, sides: &'l [Side<'_>; 2]) -> impl Iterator<Item = (Stored, Stored)> + 'l {
        let pairs = self.live[0].iter().zip(&self.partners);
        let pairs = pairs.filter_map(|(&ours, partner)| Some((ours, self.live[1][(*partner)? as usize])));
        pairs.filter(|&(ours, theirs)| {
            sides[0].lifetime(ours).slice.size != sides[1].lifetime(theirs).slice.size
        })
    }

    /// Everything that differs; values of one kind that differ for one reason are one entry.
    pub(super) fn surpluses(&self, at: &At<'_>) -> Vec<Surplus> {
        let size = |side: usize, stored: Stored| at.sides[side].lifetime(stored).slice.size;
        let mut found: Vec<Differing> = Vec::new();
        for (ours, theirs) in self.resized(at.sides) {
            let (a, b) = (size(0, ours), size(1, theirs));
            let (side, stored) = if a > b { (0, ours) } else { (1, theirs) };
            found.push(Differing {
                side,
                stored,
                bytes: Bytes(a.0.abs_diff(b.0)),
                reason: at.resized(ours, theirs),
            });
        }
        found.extend(self.alone().map(|(side, stored)| Differing {
            side,
            stored,
            bytes: size(side, stored),
            reason: at.alone(side, stored),
        }));
        explain_operands_by_results(at, &mut found);
        let mut surpluses: IndexMap<(bool, CauseKind, String, String), Surplus> = IndexMap::new();
        for one in found {
            let new = one.surplus(at);
            let key = (new.is_compilers, new.kind, new.operation.clone(), new.shape.clone());
            match surpluses.get_mut(&key) {
                Some(all) => {
                    all.count += 1;
                    all.bytes = all.bytes.saturating_add(new.bytes);
                }
                None => {
                    surpluses.insert(key, new);
                }
            }
        }
        surpluses.into_values().collect()
    }
}

/// Pairs values of two lists by name, then the rest by their size and by the values that they share their bytes with.
fn pairs(sides: &[Side<'_>; 2], lists: [&[Stored]; 2]) -> Vec<Option<u32>> {
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

/// A value that differs.
struct Differing {
    side: usize,
    stored: Stored,
    bytes: Bytes,
    reason: Reason,
}

impl Differing {
    fn surplus(self, at: &At<'_>) -> Surplus {
        let here = &at.sides[self.side];
        let position = here.position(self.stored.value);
        let described = here.described(self.stored);
        let (start, end) = (here.lifetime(self.stored).live.start, here.values.end.max(1));
        Surplus {
            is_compilers: self.side == 1,
            count: 1,
            bytes: self.bytes,
            operation: described.origin.name.clone(),
            instruction: here.subject.name_at(&position),
            shape: shape_at(here.subject.module, &position),
            source: described.source.clone(),
            kept_by: here.subject.words.kept_by(self.stored.value),
            kind: self.reason.kind,
            why: self.reason.why,
            made_at: Time::try_from((u64::from(start) << 20) / u64::from(end)).unwrap_or(Time::MAX),
        }
    }
}

/// Where one side still holds an operand because the other has computed the result already, and only that side has such a
/// result, the operand differs for the same reason as the result does.
fn explain_operands_by_results(at: &At<'_>, found: &mut [Differing]) {
    let mut kinds: FxHashMap<(usize, InstructionId), CauseKind> = FxHashMap::default();
    for it in found.iter().filter(|it| it.reason.kind != CauseKind::Order) {
        let maker = at.sides[it.side].position(it.stored.value).instruction;
        kinds.entry((it.side, maker)).or_insert(it.reason.kind);
    }
    for it in found.iter_mut().filter(|it| it.reason.kind == CauseKind::Order) {
        let other = 1 - it.side;
        let Some(reader) = it.reason.last_reader else { continue };
        if let Some(&kind) = kinds.get(&(other, reader)) {
            let name = at.sides[other].name(reader);
            it.reason =
                Reason::new(kind, format!("{} has replaced it by `{name}` at that point", NAMES[other]));
        }
    }
}
