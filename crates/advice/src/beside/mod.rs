//! Compares the plan that an estimate expects of a compiler with the module that the compiler made.
//!
//! ```text
//!   program ─┬─► estimate ──────► values, live ranges ─┐
//!            └─► XLA ─► module ─► values, live ranges ─┴─► partners ─► values without a partner ─► causes
//! ```
//!
//! Values are paired by properties that compilers keep, as in [`diff`](crate::diff): names of operations, source lines,
//! shapes. Each side is examined at one instant: at its own peak, or at the instant that corresponds to the peak of the
//! other side. For each value that only one side has in memory then, the comparison finds the decision that causes the
//! difference.

mod align;
#[cfg(feature = "proto")]
mod assigned;
mod causes;
mod lone;
mod origin;
mod reason;
mod side;

use std::cmp::Reverse;

use memplan_analysis::Time;
use memplan_driver::Estimate;
use memplan_ir::Module;
use memplan_memory::{Bytes, Target};
use serde::Serialize;

use align::{Aligned, Partners};
#[cfg(feature = "proto")]
pub use assigned::as_assigned;
use causes::{causes, first_decision};
use reason::At;
pub use reason::CauseKind;
use side::{Operations, Side};

use crate::diff::Figure;

/// Where the two plans of a program differ. Differences are the compiler's bytes less those of the estimate.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Beside {
    /// Bytes by kind: `before` is the estimate, `after` is the compiler. The total is without constants.
    pub totals: Vec<Figure>,
    /// The instant of the estimate's plan that is compared.
    pub estimate: Instant,
    /// The instant of the compiler's plan that is compared.
    pub compiler: Instant,
    /// Why the totals differ, the most bytes first; the bytes of all causes add up to the difference of the totals.
    pub causes: Vec<Cause>,
    /// The earliest decision that differs, among those that account for a tenth of the difference or more.
    pub first: Option<Surplus>,
    /// What only the compiler's plan holds at its instant, the most bytes first.
    pub only_compiler: Vec<Surplus>,
    /// What only the estimate's plan holds at its instant, the most bytes first.
    pub only_estimate: Vec<Surplus>,
}

/// An instant of one of the plans.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Instant {
    /// The instruction that runs.
    pub instruction: String,
    /// Bytes that are live.
    pub bytes: Bytes,
    /// Bytes that are live at the peak of the plan.
    pub peak: Bytes,
    /// Whether as much is live as at the peak.
    pub is_peak: bool,
}

/// Everything that differs for one kind of reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Cause {
    /// The kind of reason.
    pub kind: CauseKind,
    /// How many more bytes the compiler needs because of it.
    pub bytes: i128,
    /// Bytes that only the compiler has.
    pub compiler: Bytes,
    /// Bytes that only the estimate has.
    pub estimate: Bytes,
    /// The source line of the largest value.
    pub source: Option<String>,
    /// The largest value and its reason, in words.
    pub example: String,
}

/// Values of one kind that one plan holds at its instant and the other does not, or in fewer bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Surplus {
    /// Whether the compiler's plan holds them; else it is the estimate's.
    pub is_compilers: bool,
    /// How many values.
    pub count: usize,
    /// Bytes of all values; where both plans hold them, what they take more than in the other plan.
    pub bytes: Bytes,
    /// The operation that computes them.
    pub operation: String,
    /// The instruction that makes the first of them.
    pub instruction: String,
    /// The shape of the first, with its layout.
    pub shape: String,
    /// The line of the user's program.
    pub source: Option<String>,
    /// What needs it last.
    pub kept_by: String,
    /// The kind of reason.
    pub kind: CauseKind,
    /// The reason in words.
    pub why: String,
    /// How much of its program has run when the first is made, in units of 2^-20.
    #[serde(skip)]
    made_at: Time,
}

/// The two programs have nothing in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the two modules are different programs: they share no operation and no argument")]
pub struct NothingMatches;

/// Compares what a compiler is expected to make of a program with what it made. Takes time n log n in both modules.
///
/// # Errors
/// The modules are different programs.
pub fn beside(
    given: &Module,
    estimate: &Estimate,
    compiled: &Estimate,
    target: &Target,
) -> Result<Beside, NothingMatches> {
    let sides = [Side::new(estimate, target), Side::new(compiled, target)];
    let partners = Partners::of_all(&sides).ok_or(NothingMatches)?;
    let aligned = Aligned::nearest(&sides, &partners);
    let program = Operations::new(given);
    let at = At { sides: &sides, times: aligned.times, program: &program };
    let mut surpluses = aligned.surpluses(&at);
    let causes = causes(&at, &surpluses);
    let first = first_decision(&at, &surpluses, &causes).cloned();
    surpluses.sort_by_key(|it| (Reverse(it.bytes), it.made_at));
    let (only_compiler, only_estimate) = surpluses.into_iter().partition(|it| it.is_compilers);
    Ok(Beside {
        totals: figures(estimate, compiled),
        estimate: at.instant(0),
        compiler: at.instant(1),
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
