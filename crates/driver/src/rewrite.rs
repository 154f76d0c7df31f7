//! Rewrites a program for another compiler, so that the compiler needs fewer bytes for it: JAX's HLO in, HLO for that
//! compiler out.
//!
//! Tries every rewrite, and keeps it if it is worth it by the estimate of that compiler ([`crate::estimate()`]).
//! Rejected rewrites leave no trace: a program that nothing helps is returned unchanged.

mod list;

use std::sync::Arc;

use crate::estimate::EstimateError;
use crate::spread::{self, Spread};
use crate::{FirstGuess, Known, Memo, Price, SettingId, parallel};
use memplan_ir as ir;
use memplan_ir::Module;
use memplan_memory::{Bytes, Compiler, Target};
use memplan_passes as passes;
use memplan_passes::{AnyPass, Context, Pass, PassError, Products, Report, RunOptions};
use memplan_plan_hlo::ScheduleOptions;

pub use list::{Rewrite, Situation};

/// The goal, and how to reach it.
#[derive(Clone, Debug)]
pub struct RewriteOptions {
    /// Bytes that the program should fit into. Above it, bytes are worth any time.
    pub memory_limit: Option<Bytes>,
    /// The rewrites, in the order in which they are tried.
    pub rewrites: Vec<Rewrite>,
    /// Matrix products that may be recomputed, at ever higher prices. Those after the first are for programs that do
    /// not fit.
    pub products: Vec<Products>,
    /// The least share of the bytes that a rewrite must save, since estimates have about this error. Above a limit, any
    /// saving counts.
    pub min_saving: f64,
    /// The least number of bytes to save: in programs of a few kilobytes, rounding to whole allocations is as much as a
    /// tenth.
    pub min_saved: Bytes,
    /// The share of the bytes that must be saved per share of the seconds lost: with 1, a tenth of the bytes is worth a
    /// tenth of the time.
    pub bytes_per_second: f64,
    /// Bounds the savings of a rewrite that only replaces arrays of one kind: this many times the bytes of the arrays
    /// removed, for them and their operands. A candidate that could not save enough is not priced.
    pub most_per_replaced: f64,
    /// How to schedule the first guesses of an order.
    pub schedule: ScheduleOptions,
    /// The most threads to use: by default, the number of cores. Large programs use fewer, since each thread has a
    /// copy. Results do not depend on it.
    pub threads: usize,
}

impl Default for RewriteOptions {
    fn default() -> RewriteOptions {
        RewriteOptions {
            memory_limit: None,
            rewrites: Rewrite::all(),
            products: vec![
                Products::Cheap,
                Products::AllButEvery(2),
                Products::AllButEvery(4),
                Products::AllButEvery(16),
            ],
            min_saving: 0.1,
            min_saved: Bytes(16 << 10),
            bytes_per_second: 1.0,
            most_per_replaced: 2.0,
            schedule: ScheduleOptions::default(),
            threads: std::thread::available_parallelism().map_or(1, usize::from),
        }
    }
}

/// A rewritten program.
#[derive(Clone, Debug)]
pub struct Rewritten {
    /// The program for the other compiler: same parameters, results, donation and shardings.
    pub module: Module,
    /// The estimate of the compiler for the original program.
    pub before: Price,
    /// Every rewrite that changes something, in the order in which they were tried.
    pub steps: Vec<Step>,
}

/// One rewrite that was tried.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// Its name.
    pub name: &'static str,
    /// A description.
    pub description: &'static str,
    /// The price of the program with it, and with the rewrites kept before.
    pub price: Price,
    /// Whether it was kept.
    pub is_kept: bool,
    /// The reports of its passes.
    pub reports: Vec<Report>,
}

/// Why a program was not rewritten.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RewriteError {
    /// There is no estimate.
    #[error(transparent)]
    Estimate(#[from] EstimateError),
    /// A rewrite failed.
    #[error(transparent)]
    Pass(#[from] PassError),
    /// A rewrite changed the program's interface, which is a bug in memplan.
    #[error("rewrite `{0}` changed the parameters or results of the program, which is a bug in memplan")]
    Interface(&'static str),
}

impl Rewritten {
    /// The estimate of the compiler for the rewritten program.
    pub fn after(&self) -> Price {
        self.steps.iter().rev().find(|step| step.is_kept).map_or(self.before, |step| step.price)
    }
}

/// Rewrites a module for a compiler, on a machine that it compiles for.
///
/// Bytes and seconds are for one device: if shardings spread the program over several, arguments are divided by their
/// shardings, and all else as finely as the most finely sharded array. Time for communication is unknown. Such a
/// program gets no row blocks, since the rows of one block may all be on one device.
///
/// If the program exceeds a limit although everything cheap is recomputed, matrix products are recomputed too, as few
/// as possible.
///
/// # Errors
/// See [`RewriteError`].
pub fn rewrite(
    module: Module,
    compiler: &Compiler,
    target: &Target,
    options: &RewriteOptions,
) -> Result<Rewritten, RewriteError> {
    let machine = compiler.on(target);
    let spread = Spread::new(&module, &machine);
    let search = Search { compiler, machine: &machine, options, spread, decided: Known::default() };
    ir::verify(&module).map_err(EstimateError::Invalid)?;
    let before = search.price(module.clone())?;
    let flat = Attempt { module: Arc::new(search.flatten(&module)?), price: before, steps: Vec::new() };
    let mut best: Option<Attempt> = None;
    for &products in &options.products {
        let found = search.keep_what_pays(flat.clone(), products)?;
        let fits = search.fits(found.price);
        if best.as_ref().is_none_or(|best| found.price.total < best.price.total) {
            best = Some(found);
        }
        if fits {
            break;
        }
    }
    // So that the memo owns the program.
    drop((search, flat));
    // Nothing is tried without a choice of products.
    let Some(best) = best else { return Ok(Rewritten { module, before, steps: Vec::new() }) };
    let is_changed = best.steps.iter().any(|step| step.is_kept);
    let module = if is_changed { Arc::unwrap_or_clone(best.module) } else { module };
    Ok(Rewritten { module, before, steps: best.steps })
}

/// Inlines every function, and moves shardings to the operations that they describe.
const FLAT: &[&dyn Pass] = &[
    &passes::CALL_INLINER,
    &passes::FLAT_LOOP_STATE,
    &passes::SHARDING_FOLDING,
    &passes::TUPLE_SIMPLIFIER,
    &passes::DCE,
];

/// The situation to rewrite for.
struct Search<'a> {
    compiler: &'a Compiler,
    /// The target as the compiler sees it.
    machine: &'a Target,
    options: &'a RewriteOptions,
    spread: Option<Spread>,
    /// Results of rewrites by number and form, per program. Most forms do not depend on the products that may be
    /// recomputed.
    decided: Known<(usize, Vec<AnyPass>, Arc<Module>), Option<Decided>>,
}

/// Results of some of the rewrites.
#[derive(Clone)]
struct Attempt {
    module: Arc<Module>,
    price: Price,
    steps: Vec<Step>,
}

/// A rewrite that was tried, and the program with it if it was kept.
type Decided = (Step, Option<Arc<Module>>);

/// A step of a rewrite.
#[derive(Clone, PartialEq)]
enum Try<'a> {
    /// Orders the program in a possible order of execution.
    Order(FirstGuess),
    /// Rewrites it in one form.
    Way(&'a AnyPass),
}

impl Search<'_> {
    /// Prices a valid module.
    fn price(&self, module: Module) -> Result<Price, RewriteError> {
        Ok(spread::price_on(module, self.compiler, self.machine, self.spread.as_ref())?)
    }

    fn fits(&self, price: Price) -> bool {
        self.options.memory_limit.is_none_or(|limit| price.total <= limit)
    }

    fn flatten(&self, module: &Module) -> Result<Module, RewriteError> {
        let mut flat = module.clone();
        flat.is_scheduled = false;
        passes::run(&mut flat, FLAT, &Context { target: self.machine }, RunOptions::default())?;
        Ok(flat)
    }

    /// Tries one rewrite after the other.
    fn keep_what_pays(&self, mut found: Attempt, products: Products) -> Result<Attempt, RewriteError> {
        let situation =
            Situation { products, compiler: self.compiler, is_partitioned: self.spread.is_some() };
        for (i, rewrite) in self.options.rewrites.iter().enumerate() {
            let ways = (rewrite.ways)(&situation);
            let key = (i, ways.clone(), found.module.clone());
            let decided = self.decided.of(key, || self.decide(&found, rewrite, &ways))?;
            let Some((step, kept)) = decided else { continue };
            if let Some(module) = kept {
                (found.module, found.price) = (module, step.price);
            }
            found.steps.push(step);
        }
        Ok(found)
    }

    /// Tries a rewrite; `None` if it finds nothing to change.
    fn decide(
        &self,
        found: &Attempt,
        rewrite: &Rewrite,
        ways: &[AnyPass],
    ) -> Result<Option<Decided>, RewriteError> {
        let Some((candidate, price)) = self.best_way(found, rewrite, ways)? else { return Ok(None) };
        let is_kept = self.pays(found.price, price);
        let &Rewrite { name, description, .. } = rewrite;
        let step = Step { name, description, price, is_kept, reports: candidate.reports };
        Ok(Some((step, is_kept.then_some(candidate.module))))
    }

    /// The program in the form of a rewrite with the fewest bytes, of the forms that are worth it, or of all if none
    /// is. Of forms closer than the error of estimates, the last, which is the preferred one.
    fn best_way(
        &self,
        Attempt { module, price: now, .. }: &Attempt,
        rewrite: &Rewrite,
        ways: &[AnyPass],
    ) -> Result<Option<(Candidate, Price)>, RewriteError> {
        let threads = parallel::affordable(self.options.threads, module);
        let (mut memo, first) = Memo::new(module.clone());
        let orders = rewrite.orders.iter().flat_map(|&guess| ways.iter().map(move |way| (guess, way)));
        let settings: Vec<SettingId> =
            orders.map(|(guess, way)| memo.branch(first, [Try::Order(guess), Try::Way(way)])).collect();
        memo.reach(&settings, 2, threads, |program, step| self.take(program, step, rewrite, module))?;
        let mut candidates: Vec<Candidate> = Vec::new();
        for setting in settings {
            let (program, reports) = (memo.program(setting), &*memo.done(setting)[1]);
            let is_new = candidates.last().is_none_or(|last| !Arc::ptr_eq(&last.module, program));
            if let Some(reports) =
                reports.clone().filter(|_| is_new && self.may_pay(rewrite, module, *now, program))
            {
                candidates.push(Candidate { module: program.clone(), reports });
            }
        }
        drop(memo);
        let priced = parallel::map(threads, candidates, |candidate| {
            self.price(Module::clone(&candidate.module)).map(|price| (candidate, price))
        });
        let found = priced.into_iter().collect::<Result<Vec<_>, _>>()?;
        let rank = |price: Price| (!self.pays(*now, price), !self.fits(price));
        let Some(&(_, best)) = found.iter().min_by_key(|(_, price)| (rank(*price), price.total)) else {
            return Ok(None);
        };
        let most = best.total.0 as f64 * (1.0 + self.options.min_saving);
        let is_close = |price: Price| price.total.0 as f64 <= most;
        Ok(found.into_iter().rfind(|(_, price)| rank(*price) == rank(best) && is_close(*price)))
    }

    /// The result of a step: the program in another order, or rewritten and verified, with the reports of the passes.
    /// The reports are `None` if nothing was rewritten.
    fn take(
        &self,
        program: Arc<Module>,
        step: &Try<'_>,
        rewrite: &Rewrite,
        before: &Module,
    ) -> Result<(Module, Option<Vec<Report>>), RewriteError> {
        let (machine, schedule) = (self.machine, &self.options.schedule);
        let way = match step {
            Try::Order(guess) => {
                let ordered = guess.order(&program, machine, schedule, Some(&passes::FUSION))?;
                return Ok((ordered.unwrap_or_else(|| Arc::unwrap_or_clone(program)), None));
            }
            Try::Way(way) => &***way,
        };
        let mut candidate = Arc::unwrap_or_clone(program);
        let context = Context { target: machine };
        let mut runs = passes::run(&mut candidate, &[way], &context, RunOptions::default())?;
        if !runs.iter().any(|run| run.changed) {
            return Ok((candidate, None));
        }
        runs.extend(passes::run(&mut candidate, &[&rewrite.cleanup], &context, RunOptions::default())?);
        candidate.compact();
        ir::verify(&candidate).map_err(|source| PassError::Broke { pass: rewrite.name, source })?;
        if !has_same_interface(before, &candidate) {
            return Err(RewriteError::Interface(rewrite.name));
        }
        Ok((candidate, Some(runs.into_iter().filter_map(|run| run.report).collect())))
    }

    /// Whether a candidate may save enough, as far as one can tell without an estimate.
    fn may_pay(&self, rewrite: &Rewrite, module: &Module, now: Price, candidate: &Module) -> bool {
        let Some(bytes) = rewrite.replaces else { return true };
        let fewer = bytes(module, self.machine).saturating_sub(bytes(candidate, self.machine));
        let most = self.options.most_per_replaced * fewer as f64;
        !self.fits(now) || most >= now.total.0 as f64 * self.options.min_saving
    }

    /// Whether one price is better than another.
    fn pays(&self, from: Price, to: Price) -> bool {
        let saved = 1.0 - to.total.0 as f64 / (from.total.0 as f64).max(1.0);
        let slower = to.seconds / from.seconds.max(f64::MIN_POSITIVE) - 1.0;
        let options = self.options;
        let is_noticed =
            from.total.saturating_sub(to.total) >= options.min_saved && saved >= options.min_saving;
        match self.fits(from) {
            true => is_noticed && saved >= slower * options.bytes_per_second,
            false => to.total < from.total,
        }
    }
}

/// A rewritten program.
struct Candidate {
    module: Arc<Module>,
    /// The reports of the passes that rewrote it.
    reports: Vec<Report>,
}

/// Whether both programs have the same parameters and results.
fn has_same_interface(before: &Module, after: &Module) -> bool {
    let shapes = |module: &Module| {
        let entry = module.entry_computation();
        let parameters = entry.parameters.iter().map(|&id| module.shape(id).clone()).collect::<Vec<_>>();
        (parameters, module.shape(entry.root).clone())
    };
    shapes(before) == shapes(after) && before.config == after.config
}
