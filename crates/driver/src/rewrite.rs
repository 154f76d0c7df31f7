//! Programs rewritten for another compiler, so that it needs fewer bytes for them: HLO in as JAX hands it over, HLO out
//! for that compiler.
//!
//! Every rewrite is tried, and kept where it pays under the estimate of what that compiler makes of the program
//! ([`crate::estimate()`]). What is not kept leaves no trace: a program that nothing helps comes back as it was.

mod list;

use std::sync::Arc;

use crate::estimate::EstimateError;
use crate::parallel;
use crate::spread::{self, Spread};
use crate::{FirstGuess, Price};
use memplan_ir as ir;
use memplan_ir::Module;
use memplan_memory::{Bytes, Compiler, Target};
use memplan_passes as passes;
use memplan_passes::{Context, Pass, PassError, Products, Report, RunOptions};
use memplan_planner::ScheduleOptions;

pub use list::{Rewrite, Situation};

/// What to aim for, and how.
#[derive(Clone, Debug)]
pub struct RewriteOptions {
    /// Bytes that the program should fit into. Above it, bytes are worth any time.
    pub memory_limit: Option<Bytes>,
    /// The rewrites, in the order in which they are tried.
    pub rewrites: Vec<Rewrite>,
    /// Matrix products that may be computed again, at ever higher prices. Those after the first are for programs that do
    /// not fit.
    pub products: Vec<Products>,
    /// A rewrite must save this share of the bytes at least, since estimates are off by about as much. Where a limit is
    /// exceeded, anything counts.
    pub min_saving: f64,
    /// And so many bytes at least: in programs of a few kilobytes, rounding to whole allocations is as much as a tenth.
    pub min_saved: Bytes,
    /// The share of the bytes that must be saved for each share of the seconds that is lost: with 1, a tenth of the bytes
    /// is worth a tenth of the time.
    pub bytes_per_second: f64,
    /// Where a rewrite only replaces arrays of a kind, what it can save: so many times the bytes of the arrays that the
    /// program does without, for these and for what they are made of. A candidate that could not save enough is not priced.
    pub most_per_replaced: f64,
    /// How the first guesses of an order are scheduled.
    pub schedule: ScheduleOptions,
    /// The most threads that work at a time: by default, as many as there are cores. Fewer do on large programs, of which
    /// each has a copy. Results do not depend on it.
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
    /// What the compiler is expected to need for the program as it was.
    pub before: Price,
    /// What each rewrite that changes something would bring, in the order in which they were tried.
    pub steps: Vec<Step>,
}

/// One rewrite that was tried.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// Its name.
    pub name: &'static str,
    /// One line for people.
    pub description: &'static str,
    /// What the program costs with it, and with what was kept before.
    pub price: Price,
    /// Whether it was kept.
    pub is_kept: bool,
    /// What its passes report.
    pub reports: Vec<Report>,
}

/// Why a program was not rewritten.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
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
/// Bytes and seconds are those of one device: of a program that shardings spread over several, arguments are cut as they
/// say, and all else is taken to be cut as finely as what is cut most finely. Time for communication is not known. Such
/// a program is not walked over in blocks of rows, since those of one block may all lie on one device.
///
/// Where the program does not fit a limit although all that is cheap is computed again, matrix products are too, as few
/// of them as it takes.
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
    let search = Search { compiler, machine: &machine, options, spread };
    ir::verify(&module).map_err(EstimateError::Invalid)?;
    let before = search.price(module.clone())?;
    let flat = Found { module: Arc::new(search.flatten(&module)?), price: before, steps: Vec::new() };
    let mut found = vec![flat];
    let mut best: Option<Found> = None;
    for &products in &options.products {
        found = search.keep_what_pays(&found, products)?;
        let last = found.last().expect("it begins with the program as it was");
        if best.as_ref().is_none_or(|best| last.price.total < best.price.total) {
            best = Some(last.clone());
        }
        if search.fits(last.price) {
            break;
        }
    }
    drop(found);
    // Without a choice of products, nothing is tried.
    let Some(best) = best else { return Ok(Rewritten { module, before, steps: Vec::new() }) };
    let is_changed = best.steps.iter().any(|step| step.is_kept);
    let module = if is_changed { Arc::unwrap_or_clone(best.module) } else { module };
    Ok(Rewritten { module, before, steps: best.steps })
}

/// The body of every function in its place, and shardings on what they are about.
const FLAT: &[&dyn Pass] = &[
    &passes::CALL_INLINER,
    &passes::FLAT_LOOP_STATE,
    &passes::SHARDING_FOLDING,
    &passes::TUPLE_SIMPLIFIER,
    &passes::DCE,
];

/// What to rewrite for.
struct Search<'a> {
    compiler: &'a Compiler,
    /// The target as the compiler sees it.
    machine: &'a Target,
    options: &'a RewriteOptions,
    spread: Option<Spread>,
}

/// What came of trying some of the rewrites.
#[derive(Clone, PartialEq)]
struct Found {
    module: Arc<Module>,
    price: Price,
    steps: Vec<Step>,
}

impl Search<'_> {
    /// What a valid module comes to.
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

    /// Where the program stands before the first rewrite, and after each. `last` says so of other products, or only of
    /// the beginning; what does not depend on products is taken from there.
    fn keep_what_pays(&self, last: &[Found], products: Products) -> Result<Vec<Found>, RewriteError> {
        let mut all = vec![last[0].clone()];
        for (i, rewrite) in self.options.rewrites.iter().enumerate() {
            let known = last.get(i + 1).filter(|_| !rewrite.takes_products && last[i] == all[i]);
            let next = match known {
                Some(known) => known.clone(),
                None => self.keep_if_it_pays(all[i].clone(), rewrite, products)?,
            };
            all.push(next);
        }
        Ok(all)
    }

    fn keep_if_it_pays(
        &self,
        mut found: Found,
        rewrite: &Rewrite,
        products: Products,
    ) -> Result<Found, RewriteError> {
        if let Some((candidate, price)) = self.best_way(&found.module, found.price, rewrite, products)? {
            let is_kept = self.pays(found.price, price);
            let &Rewrite { name, description, .. } = rewrite;
            let reports = candidate.reports;
            found.steps.push(Step { name, description, price, is_kept, reports });
            if is_kept {
                (found.module, found.price) = (Arc::new(candidate.module), price);
            }
        }
        Ok(found)
    }

    /// The program under the way of a rewrite that needs the fewest bytes of those that pay, or of all if none does. Of
    /// ways that come as close to it as estimates are right, the last, which is the one to be preferred.
    fn best_way(
        &self,
        module: &Module,
        now: Price,
        rewrite: &Rewrite,
        products: Products,
    ) -> Result<Option<(Candidate, Price)>, RewriteError> {
        let situation =
            Situation { products, compiler: self.compiler, is_partitioned: self.spread.is_some() };
        let list = (rewrite.ways)(&situation);
        let ways = rewrite.orders.iter().flat_map(|&guess| list.iter().map(move |way| (guess, way)));
        let threads = parallel::affordable(self.options.threads, module);
        let tried =
            parallel::map(threads, ways.collect(), |(guess, way)| self.apply(module, guess, rewrite, &**way));
        let mut candidates: Vec<Candidate> = Vec::new();
        for candidate in tried.into_iter().filter_map(Result::transpose) {
            let candidate = candidate?;
            let is_new = candidates.last().is_none_or(|last| last.module != candidate.module);
            if is_new && self.may_pay(rewrite, module, now, &candidate.module) {
                candidates.push(candidate);
            }
        }
        let priced = parallel::map(threads, candidates, |candidate| {
            self.price(candidate.module.clone()).map(|price| (candidate, price))
        });
        let found = priced.into_iter().collect::<Result<Vec<_>, _>>()?;
        let rank = |price: Price| (!self.pays(now, price), !self.fits(price));
        let Some(&(_, best)) = found.iter().min_by_key(|(_, price)| (rank(*price), price.total)) else {
            return Ok(None);
        };
        let most = best.total.0 as f64 * (1.0 + self.options.min_saving);
        let is_close = |price: Price| price.total.0 as f64 <= most;
        Ok(found.into_iter().rfind(|(_, price)| rank(*price) == rank(best) && is_close(*price)))
    }

    /// The rewritten program, verified, where something is rewritten.
    fn apply(
        &self,
        module: &Module,
        guess: FirstGuess,
        rewrite: &Rewrite,
        way: &dyn Pass,
    ) -> Result<Option<Candidate>, RewriteError> {
        let (machine, schedule) = (self.machine, &self.options.schedule);
        let ordered = guess.order(module, machine, schedule, Some(&passes::FUSION))?;
        let Some(mut candidate) = ordered else { return Ok(None) };
        let context = Context { target: machine };
        let mut runs = passes::run(&mut candidate, &[way], &context, RunOptions::default())?;
        if !runs.iter().any(|run| run.changed) {
            return Ok(None);
        }
        runs.extend(passes::run(&mut candidate, &[&rewrite.cleanup], &context, RunOptions::default())?);
        candidate.compact();
        ir::verify(&candidate).map_err(|source| PassError::Broke { pass: rewrite.name, source })?;
        let reports = runs.into_iter().filter_map(|run| run.report).collect();
        match has_same_interface(module, &candidate) {
            true => Ok(Some(Candidate { module: candidate, reports })),
            false => Err(RewriteError::Interface(rewrite.name)),
        }
    }

    /// Whether a candidate may save enough, as far as can be told without an estimate.
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
    module: Module,
    /// What the passes that rewrote it report.
    reports: Vec<Report>,
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
