//! Sums up what differs by kinds of reasons, and finds the first decision.

use std::cmp::Reverse;

use indexmap::IndexMap;
use memplan_memory::Bytes;
use rustc_hash::FxHashSet;

use super::reason::{At, NAMES};
use super::side::{Idle, Side};
use super::{Cause, CauseKind, Surplus};

/// A decision matters if it makes up one part in so many of the difference.
const MATTERS: u128 = 10;

/// Bytes that one side has more, and why.
struct Difference {
    kind: CauseKind,
    /// The compiler's bytes less those of the estimate.
    bytes: i128,
    source: Option<String>,
    /// In words.
    example: String,
}

/// Returns the reasons for the difference of the totals, the largest first and the unexplained rest last. Their bytes add
/// up to the difference.
pub(super) fn causes(at: &At<'_>, surpluses: &[Surplus]) -> Vec<Cause> {
    let values = surpluses.iter().map(Difference::of_values);
    let others = [higher_peak(at, 1), higher_peak(at, 0), packing(at), unused_arguments(at), code(at)];
    let differences: Vec<Difference> = values.chain(others).filter(|it| it.bytes != 0).collect();
    // A value of equal size on the other side is often its counterpart, as a product and the result of its epilogue are.
    let bytes: FxHashSet<i128> = differences.iter().map(|it| it.bytes).collect();
    let is_offset = |it: &Difference| bytes.contains(&-it.bytes);
    let mut kinds: IndexMap<CauseKind, Vec<Difference>> = IndexMap::new();
    for difference in differences {
        kinds.entry(difference.kind).or_default().push(difference);
    }
    let mut causes: Vec<Cause> =
        kinds.into_iter().map(|(kind, all)| Cause::of(kind, &all, is_offset)).collect();
    causes.sort_by_key(|it| (it.kind == CauseKind::Unexplained, Reverse(it.bytes.unsigned_abs()), it.kind));
    causes
}

/// Of the surpluses that make up a tenth of the difference, alone and with others of their kind, the one that is made first.
pub(super) fn first_decision<'s>(
    at: &At<'_>,
    surpluses: &'s [Surplus],
    causes: &[Cause],
) -> Option<&'s Surplus> {
    let difference: i128 = causes.iter().map(|cause| cause.bytes).sum();
    let is_much = |bytes: i128| {
        bytes.signum() == difference.signum() && bytes.unsigned_abs() * MATTERS >= difference.unsigned_abs()
    };
    // Else only packing or unused arguments make a difference, or two sides of one kind cancel out.
    let [a, b] = at.peaks();
    if !is_much(i128::from(b.0) - i128::from(a.0)) {
        return None;
    }
    let of_kind = |kind| causes.iter().find(|cause| cause.kind == kind).map_or(0, |cause| cause.bytes);
    let matter = surpluses.iter().filter(|it| is_much(of_kind(it.kind)) && is_much(signed(it)));
    // The order follows from which instructions there are.
    matter.min_by_key(|it| (it.kind == CauseKind::Order, it.made_at))
}

impl Difference {
    fn of_values(surplus: &Surplus) -> Difference {
        let Surplus { count, instruction, shape, operation, why, .. } = surplus;
        let n = if *count == 1 { String::new() } else { format!("{count} × ") };
        Difference {
            kind: surplus.kind,
            bytes: signed(surplus),
            source: surplus.source.clone(),
            example: format!("{n}`{instruction}` {shape} {operation}: {why}"),
        }
    }

    fn plain(kind: CauseKind, bytes: i128, example: String) -> Difference {
        Difference { kind, bytes, source: None, example }
    }
}

impl Cause {
    fn of(kind: CauseKind, all: &[Difference], is_offset: impl Fn(&Difference) -> bool) -> Cause {
        let bytes: i128 = all.iter().map(|it| it.bytes).sum();
        let sum = |sign: i128| {
            let bytes: u128 =
                all.iter().filter(|it| it.bytes.signum() == sign).map(|it| it.bytes.unsigned_abs()).sum();
            Bytes(u64::try_from(bytes).unwrap_or(u64::MAX))
        };
        // The largest difference with the sign of the sum.
        let is_against = |it: &Difference| it.bytes.signum() == -bytes.signum();
        let largest = all.iter().min_by_key(|it| {
            let size = it.bytes.unsigned_abs();
            (is_against(it), size * MATTERS < bytes.unsigned_abs(), is_offset(it), Reverse(size))
        });
        Cause {
            kind,
            bytes,
            compiler: sum(1),
            estimate: sum(-1),
            source: largest.and_then(|it| it.source.clone()),
            example: largest.map_or_else(String::new, |it| it.example.clone()),
        }
    }
}

/// The compiler's bytes less those of the estimate.
fn signed(surplus: &Surplus) -> i128 {
    let bytes = i128::from(surplus.bytes.0);
    if surplus.is_compilers { bytes } else { -bytes }
}

/// What the peak of a side holds more than the instant that is compared.
fn higher_peak(at: &At<'_>, side: usize) -> Difference {
    let of = &at.sides[side];
    let more = i128::from(at.peaks()[side].0) - i128::from(of.bytes_at(at.times[side]).0);
    let bytes = if side == 1 { more } else { -more };
    let peak = of.name(of.at(of.peak()));
    let what = format!("the peak of {} is elsewhere, at `{peak}`, and higher by this", NAMES[side]);
    Difference::plain(CauseKind::Order, bytes, what)
}

/// The bytes of the arenas that no value occupies at their peaks.
fn packing(at: &At<'_>) -> Difference {
    let largest = |side: &Side<'_>| side.largest_gap();
    let what = "of the memory for temporaries";
    idle(at, CauseKind::Packing, |idle| idle.arena, what, &largest)
}

/// The bytes of arguments and results that no value occupies at the peaks.
fn unused_arguments(at: &At<'_>) -> Difference {
    let largest = |side: &Side<'_>| side.largest_unused();
    let what = "of the memory for arguments and results";
    idle(at, CauseKind::Results, |idle| idle.others, what, &largest)
}

fn idle(
    at: &At<'_>,
    kind: CauseKind,
    of: impl Fn(Idle) -> i128,
    what: &str,
    largest: &dyn Fn(&Side<'_>) -> String,
) -> Difference {
    let [a, b] = at.sides.each_ref().map(|side| of(side.idle()));
    let size = |bytes: i128| Bytes(u64::try_from(bytes).unwrap_or(0));
    let more = &at.sides[usize::from(b > a)];
    let example = format!(
        "{what} {} is unused at the peak in {}, {} in {}{}",
        size(b),
        NAMES[1],
        size(a),
        NAMES[0],
        largest(more)
    );
    Difference::plain(kind, b - a, example)
}

/// What the program itself takes.
fn code(at: &At<'_>) -> Difference {
    let [a, b] = at.sides.each_ref().map(|side| i128::from(side.code().0));
    Difference::plain(CauseKind::Code, b - a, "the program itself".to_string())
}
