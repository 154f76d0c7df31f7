//! Where two plans of one program part: that of what a compiler is expected to make of it, and that of what it made.
//!
//! ```text
//!   the program ──► estimate ──────► values, lifetimes ─┐
//!        └────────► XLA ─► module ─► values, lifetimes ─┴─► pairs ─► what has none, and why ─► causes
//! ```
//!
//! Values are paired as [`diff`](crate::diff) pairs them: names of operations, lines and shapes are what compilers leave as
//! they were. Both are looked at where most of what matters is live: at their peaks, or at the place of one of the peaks.
//! What one side has there and the other has not is explained by the first thing that they decided otherwise.

mod align;
#[cfg(feature = "proto")]
mod assigned;
mod cause;
mod causes;
mod origin;
mod side;

use memplan_analysis::Time;
use memplan_driver::Estimate;
use memplan_ir::Module;
use memplan_memory::{Bytes, Target};
use serde::Serialize;

use align::{Aligned, pairs};
#[cfg(feature = "proto")]
pub use assigned::as_assigned;
pub use cause::CauseKind;
use cause::{At, NAMES};
use causes::Differences;
use side::{Operations, Side, Stored};

use crate::diff::Figure;

/// Where two plans of a program part. Differences are the compiler's bytes less those of the estimate.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Beside {
    /// Bytes by kind: `before` is the estimate, `after` is the compiler. The total is without constants.
    pub totals: Vec<Figure>,
    /// What is compared of the estimate.
    pub estimate: Place,
    /// What is compared of the compiler.
    pub compiler: Place,
    /// Why they differ; together they are the difference of the totals.
    pub causes: Vec<Cause>,
    /// What was decided otherwise first, of what makes a difference.
    pub first: Option<Part>,
    /// What only the compiler has in memory there, the most bytes first.
    pub only_compiler: Vec<Part>,
    /// What only the estimate has there.
    pub only_estimate: Vec<Part>,
}

/// An instant of one side.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Place {
    /// The instruction that runs then.
    pub instruction: String,
    /// Bytes that are live then.
    pub bytes: Bytes,
    /// Most bytes that are live at an instant.
    pub peak: Bytes,
    /// Whether it is that instant.
    pub is_peak: bool,
}

/// All that differs for one kind of reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Cause {
    /// The reason.
    pub kind: CauseKind,
    /// By how many bytes the compiler needs more for it.
    pub bytes: i128,
    /// Bytes that only the compiler has.
    pub compiler: Bytes,
    /// Bytes that only the estimate has.
    pub estimate: Bytes,
    /// The line of the largest.
    pub source: Option<String>,
    /// The largest, in words.
    pub example: String,
}

/// Values that one side has in memory, and the other has not, or not in as many bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Part {
    /// Whether it is the compiler that has it.
    pub is_compilers: bool,
    /// How many.
    pub count: usize,
    /// Bytes of all; of values that both sides have, what they are more than there.
    pub bytes: Bytes,
    /// The operation that computes them.
    pub operation: String,
    /// What makes the first of them.
    pub instruction: String,
    /// Its shape, with its layout.
    pub shape: String,
    /// The line of the user's program.
    pub source: Option<String>,
    /// What needs it last.
    pub kept_by: String,
    /// The reason.
    pub kind: CauseKind,
    /// The reason in words.
    pub why: String,
}

/// The two programs have nothing in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no operation and no argument of one is in the other: they are two programs")]
pub struct NothingMatches;

/// A decision matters if it makes this part of the difference at least.
const MATTERS: u128 = 10;

/// Compares what a compiler is expected to make of a program with what it made. Takes time n log n in both.
///
/// # Errors
/// They are of two programs.
pub fn beside(
    given: &Module,
    estimate: &Estimate,
    compiled: &Estimate,
    target: &Target,
) -> Result<Beside, NothingMatches> {
    let sides = [Side::new(estimate, target), Side::new(compiled, target)];
    let [a, b] = &sides;
    let all = |side: &Side<'_>| {
        let lifetimes = side.values.lifetimes.iter().enumerate();
        lifetimes.map(|(lifetime, it)| Stored { lifetime, value: it.largest }).collect::<Vec<_>>()
    };
    let of_a = pairs(&sides, [&all(a), &all(b)]);
    if of_a.iter().all(Option::is_none) {
        return Err(NothingMatches);
    }
    let mut of_b: Vec<Option<u32>> = vec![None; b.values.holders.len()];
    for (i, j) in (0..).zip(&of_a) {
        j.iter().for_each(|&j| of_b[j as usize] = Some(i));
    }
    let peaks = [a.peak(), b.peak()];
    // What the larger peak holds is what is to be explained.
    let there = match b.bytes_at(peaks[1]) >= a.bytes_at(peaks[0]) {
        true => [a.values.like(&b.values, peaks[1], &of_a), peaks[1]],
        false => [peaks[0], b.values.like(&a.values, peaks[0], &of_b)],
    };
    let aligned = [peaks, there].map(|times| Aligned::new(&sides, times, &of_a));
    let best = aligned.iter().min_by_key(|aligned| aligned.cost(&sides)).expect("there are two");
    let program = Operations::new(given);
    let at = At { sides: &sides, times: best.times, program: &program };
    let mut parts: Vec<(Part, Time)> = best.parts(&at);
    let mut differences = Differences::default();
    for (part, _) in &parts {
        differences.add(part);
    }
    // What the peaks have more than the places that are compared.
    for (side, sign) in [(1, 1), (0, -1)] {
        let bytes = |time: Time| i128::from(sides[side].bytes_at(time).0);
        let more = bytes(peaks[side]) - bytes(best.times[side]);
        let at = sides[side].name(sides[side].at(peaks[side]));
        let example = || format!("the peak of {} is elsewhere, at `{at}`", NAMES[side]);
        differences.plain(CauseKind::Order, sign * more, example);
    }
    let [idle_a, idle_b] = [a.idle(), b.idle()];
    let both = |a: i128, b: i128| {
        let [a, b] = [a, b].map(|bytes| Bytes(u64::try_from(bytes).unwrap_or(0)));
        format!("{b} hold nothing at the peak in {}, {a} in {}", NAMES[1], NAMES[0])
    };
    differences.plain(CauseKind::Packing, idle_b.arena - idle_a.arena, || {
        let gap = if idle_b.arena > idle_a.arena { b.largest_gap() } else { a.largest_gap() };
        format!("of the arena {}{gap}", both(idle_a.arena, idle_b.arena))
    });
    differences.plain(CauseKind::Results, idle_b.others - idle_a.others, || {
        let unused = if idle_b.others > idle_a.others { b.largest_unused() } else { a.largest_unused() };
        format!("of arguments and results {}{unused}", both(idle_a.others, idle_b.others))
    });
    let code = |estimate: &Estimate| i128::from(estimate.code().0);
    differences.plain(CauseKind::Code, code(compiled) - code(estimate), || "the program itself".to_string());
    let causes = differences.causes();
    let difference: i128 = causes.iter().map(|cause| cause.bytes).sum();
    let is_much = |bytes: i128| {
        bytes.signum() == difference.signum() && bytes.unsigned_abs() * MATTERS >= difference.unsigned_abs()
    };
    // Peaks may be as high, and only places be other ones; and what the other side has for the same reason may outweigh it.
    let is_at_peak = is_much(i128::from(b.bytes_at(peaks[1]).0) - i128::from(a.bytes_at(peaks[0]).0));
    let matters = |part: &Part| {
        let sum = causes.iter().find(|cause| cause.kind == part.kind).map_or(0, |cause| cause.bytes);
        let bytes = i128::from(part.bytes.0);
        is_at_peak && is_much(sum) && is_much(if part.is_compilers { bytes } else { -bytes })
    };
    let first = parts.iter().filter(|(part, _)| matters(part));
    // An order follows from what there is to order.
    let first = first.min_by_key(|(part, time)| (part.kind == CauseKind::Order, *time));
    let first = first.map(|(part, _)| part.clone());
    parts.sort_by_key(|(part, time)| (std::cmp::Reverse(part.bytes), *time));
    let (only_compiler, only_estimate) =
        parts.into_iter().map(|(part, _)| part).partition(|part| part.is_compilers);
    let place = |side: usize| Place {
        instruction: sides[side].name(sides[side].at(best.times[side])).to_string(),
        bytes: sides[side].bytes_at(best.times[side]),
        peak: sides[side].bytes_at(peaks[side]),
        is_peak: sides[side].bytes_at(peaks[side]) == sides[side].bytes_at(best.times[side]),
    };
    Ok(Beside {
        totals: figures(estimate, compiled),
        estimate: place(0),
        compiler: place(1),
        causes,
        first,
        only_compiler,
        only_estimate,
    })
}

fn figures(estimate: &Estimate, compiled: &Estimate) -> Vec<Figure> {
    let (a, b) = (&estimate.totals, &compiled.totals);
    [
        ("arguments", a.arguments, b.arguments),
        ("outputs", a.outputs, b.outputs),
        ("aliased", a.aliased, b.aliased),
        ("temp", a.temp, b.temp),
        ("total", estimate.total, compiled.total),
    ]
    .map(|(name, before, after)| Figure { name, before, after })
    .to_vec()
}
