//! Programs rewritten for another compiler, so that it needs fewer bytes for them: HLO in as JAX hands it over, HLO out
//! for that compiler.
//!
//! Every rewrite is tried, and kept where it pays under the estimate of what that compiler makes of the program
//! ([`crate::estimate()`]). What is not kept leaves no trace: a program that nothing helps comes back as it was.

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
    // So that nobody else holds the program.
    drop((search, flat));
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
    /// What came of trying a rewrite, by its number, in some ways, on a program. Most ways are the same whatever products may
    /// be computed again.
    decided: Known<(usize, Vec<AnyPass>, Arc<Module>), Option<Decided>>,
}

/// What came of trying some of the rewrites.
#[derive(Clone)]
struct Attempt {
    module: Arc<Module>,
    price: Price,
    steps: Vec<Step>,
}

/// A rewrite that was tried, and the program with it if it was kept.
type Decided = (Step, Option<Arc<Module>>);

/// How a rewrite is tried.
#[derive(Clone, PartialEq)]
enum Try<'a> {
    /// The program is put into an order in which it may run.
    Order(FirstGuess),
    /// It is rewritten in a way.
    Way(&'a AnyPass),
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

    /// Tries a rewrite; `None` where it finds nothing.
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

    /// The program under the way of a rewrite that needs the fewest bytes of those that pay, or of all if none does. Of
    /// ways that come as close to it as estimates are right, the last, which is the one to be preferred.
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

    /// What a step makes of a program: in another order, or rewritten and verified, with what the passes report. `None`
    /// for that where nothing is rewritten.
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
    module: Arc<Module>,
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
