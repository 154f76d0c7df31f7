//! Programs rewritten for another compiler, so that it needs fewer bytes for them: HLO in as JAX hands it over, HLO out
//! for that compiler.
//!
//! Every rewrite is tried, and kept where it pays under the estimate of what that compiler makes of the program
//! ([`crate::estimate()`]). What is not kept leaves no trace: a program that nothing helps comes back as it was.

use crate::estimate::{EstimateError, estimate};
use crate::first_guess::FirstGuess;
use crate::ir::{self, Module};
use crate::memory::{Bytes, Compiler, Target};
use crate::passes::{self, Context, Pass, PassError, RunOptions};

/// What to aim for.
#[derive(Clone, Debug, Default)]
pub struct RewriteOptions {
    /// Bytes that the program should fit into. Above it, bytes are worth any time.
    pub memory_limit: Option<Bytes>,
}

/// A rewritten program.
#[derive(Clone, Debug)]
pub struct Rewritten {
    /// The program for the other compiler: same parameters, results, donation and shardings.
    pub module: Module,
    /// What the compiler is expected to need for the program as it was.
    pub before: Price,
    /// What each rewrite that changes something would bring, in the order in which they were tried.
    pub steps: Vec<Step>,
}

/// What a program costs, by the estimate of a compiler.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Price {
    /// Bytes of memory.
    pub total: Bytes,
    /// Seconds of one run.
    pub seconds: f64,
}

/// One rewrite that was tried.
#[derive(Clone, Debug)]
pub struct Step {
    /// Its name.
    pub name: &'static str,
    /// One line for people.
    pub description: &'static str,
    /// What the program costs with it, and with what was kept before.
    pub price: Price,
    /// Whether it was kept.
    pub is_kept: bool,
}

/// Why a program was not rewritten.
#[derive(Debug, thiserror::Error)]
pub enum RewriteError {
    /// What the compiler will need is not known.
    #[error(transparent)]
    Estimate(#[from] EstimateError),
    /// A rewrite gave up.
    #[error(transparent)]
    Pass(#[from] PassError),
    /// A rewrite changed what the caller sees, which is a bug in memplan.
    #[error("rewrite `{0}` changed what the program takes or returns, which is a bug in memplan")]
    Interface(&'static str),
}

impl Rewritten {
    /// What the compiler is expected to need for the program as it is now.
    pub fn after(&self) -> Price {
        self.steps.iter().rev().find(|step| step.is_kept).map_or(self.before, |step| step.price)
    }
}

/// Rewrites a module for a compiler and a machine that it compiles for.
///
/// # Errors
/// See [`RewriteError`].
pub fn rewrite(
    module: Module,
    compiler: &Compiler,
    target: &Target,
    options: &RewriteOptions,
) -> Result<Rewritten, RewriteError> {
    let price = |module: &Module| -> Result<Price, RewriteError> {
        let found = estimate(module, compiler, target)?;
        Ok(Price { total: found.total, seconds: found.seconds })
    };
    let machine = compiler.on(target);
    let before = price(&module)?;
    let mut rewritten = Rewritten { module, before, steps: Vec::new() };
    for rewrite in rewrites(compiler) {
        let mut best: Option<(Module, Price)> = None;
        for &guess in rewrite.orders {
            let Some(candidate) = rewrite.apply(&rewritten.module, guess, &machine)? else { continue };
            let price = price(&candidate)?;
            if best.as_ref().is_none_or(|(_, best)| price.total < best.total) {
                best = Some((candidate, price));
            }
        }
        let Some((candidate, to)) = best else { continue };
        let is_kept = pays(rewritten.after(), to, options.memory_limit);
        let Rewrite { name, description, .. } = rewrite;
        rewritten.steps.push(Step { name, description, price: to, is_kept });
        if is_kept {
            rewritten.module = candidate;
        }
    }
    Ok(rewritten)
}

/// A rewrite, and what goes before and after it so that it applies.
struct Rewrite {
    name: &'static str,
    description: &'static str,
    /// The orders in which the program may run, of which it takes what helps most.
    orders: &'static [FirstGuess],
    /// What makes it apply, and changes nothing for a compiler that inlines and simplifies anyway.
    before: &'static [Pass],
    /// Those that bring something. Where they change nothing, there is nothing to try.
    passes: &'static [Pass],
    /// What removes what they leave behind.
    after: &'static [Pass],
}

/// In the order in which they are tried: what shortens the state of loops first, as what is recomputed within them
/// depends on it.
fn rewrites(compiler: &Compiler) -> [Rewrite; 6] {
    let recomputation: &[Pass] = match compiler.keeps_barriers {
        true => &[passes::REMAT_BEHIND_BARRIERS],
        false => &[passes::REMAT_BEHIND_SELECTS],
    };
    [
        Rewrite {
            name: "loop residuals",
            description: "a later loop recomputes what an earlier one kept for it row by row",
            orders: &[FirstGuess::Text],
            before: FLAT,
            passes: &[passes::LOOP_RESIDUALS],
            after: &[passes::WHILE_SIMPLIFIER, passes::TUPLE_SIMPLIFIER, passes::DCE],
        },
        Rewrite {
            name: "loop state in place",
            description: "a loop writes new rows over the old rows that it has read",
            orders: &[FirstGuess::Text],
            before: FLAT,
            passes: &[passes::LOOP_STATE_IN_PLACE],
            after: &[passes::WHILE_SIMPLIFIER, passes::TUPLE_SIMPLIFIER, passes::DCE],
        },
        Rewrite {
            name: "conditionals in place",
            description: "a conditional that changes its operands or hands them back changes them where they are",
            orders: &[FirstGuess::Text],
            before: FLAT,
            passes: &[passes::CONDITIONAL_IN_PLACE],
            after: &[passes::DCE],
        },
        Rewrite {
            name: "gradients of gathers",
            description: "a scatter of one element a row becomes a comparison, which is never in memory",
            orders: &[FirstGuess::Text],
            before: FLAT,
            passes: &[passes::SCATTER_TO_SELECT],
            after: &[passes::DCE],
        },
        Rewrite {
            name: "blocks of rows",
            description: "a loop computes a wide array a block of rows at a time, and again for its gradient",
            orders: &[FirstGuess::Text],
            before: FLAT,
            passes: &[passes::ROW_BLOCKS],
            after: &[passes::DCE],
        },
        Rewrite {
            name: "recomputation",
            description: "cheap values that cross the peak are computed again after it",
            orders: &FirstGuess::OF_REWRITE,
            before: FLAT,
            passes: recomputation,
            after: &[passes::DCE],
        },
    ]
}

/// The body of every function in its place.
const FLAT: &[Pass] = &[passes::CALL_INLINER, passes::TUPLE_SIMPLIFIER, passes::DCE];

impl Rewrite {
    /// The rewritten program, verified, where something is rewritten.
    fn apply(
        &self,
        module: &Module,
        guess: FirstGuess,
        machine: &Target,
    ) -> Result<Option<Module>, RewriteError> {
        let context = Context { target: machine };
        let mut candidate = module.clone();
        candidate.is_scheduled = false;
        passes::run(&mut candidate, self.before, &context, RunOptions::default())?;
        let Some(mut candidate) = guess.order(&candidate, machine)? else { return Ok(None) };
        let runs = passes::run(&mut candidate, self.passes, &context, RunOptions::default())?;
        if runs.iter().all(|run| !run.changed) {
            return Ok(None);
        }
        passes::run(&mut candidate, self.after, &context, RunOptions::default())?;
        candidate.compact();
        ir::verify(&candidate)
            .map_err(|errors| PassError::Broke { pass: self.name, message: errors.to_string() })?;
        match has_same_interface(module, &candidate) {
            true => Ok(Some(candidate)),
            false => Err(RewriteError::Interface(self.name)),
        }
    }
}

/// Whether the caller sees the same parameters and results in both.
fn has_same_interface(before: &Module, after: &Module) -> bool {
    let shapes = |module: &Module| {
        let entry = module.entry_computation();
        let parameters = entry.parameters.iter().map(|&id| module.shape(id).clone()).collect::<Vec<_>>();
        (parameters, module.shape(entry.root).clone())
    };
    shapes(before) == shapes(after) && before.config == after.config
}

/// A rewrite must save this share of the bytes at least, since estimates are off by about as much. Where a limit is
/// exceeded, anything counts.
const MIN_SAVING: f64 = 0.1;

/// And so many bytes at least: in programs of a few kilobytes, rounding to whole allocations is as much as a tenth.
const MIN_SAVED: u64 = 16 << 10;

/// Seconds, as a share of a run, that are worth as much as a share of the bytes.
const BYTES_PER_SECOND: f64 = 1.0;

/// Whether one price is better than another.
fn pays(from: Price, to: Price, limit: Option<Bytes>) -> bool {
    let saved = 1.0 - to.total.0 as f64 / (from.total.0 as f64).max(1.0);
    let slower = to.seconds / from.seconds.max(f64::MIN_POSITIVE) - 1.0;
    let is_too_large = limit.is_some_and(|limit| from.total > limit);
    let is_noticed = from.total.saturating_sub(to.total).0 >= MIN_SAVED && saved >= MIN_SAVING;
    if is_too_large { to.total < from.total } else { is_noticed && saved >= slower * BYTES_PER_SECOND }
}
