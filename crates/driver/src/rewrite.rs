//! Programs rewritten for another compiler, so that it needs fewer bytes for them: HLO in as JAX hands it over, HLO out
//! for that compiler.
//!
//! Every rewrite is tried, and kept where it pays under the estimate of what that compiler makes of the program
//! ([`crate::estimate()`]). What is not kept leaves no trace: a program that nothing helps comes back as it was.

use std::sync::Arc;

use crate::estimate::{EstimateError, Expected};
use crate::first_guess::FirstGuess;
use crate::parallel;
use memplan_ir as ir;
use memplan_ir::{Module, Op};
use memplan_memory as memory;
use memplan_memory::{Bytes, Compiler, Target};
use memplan_passes as passes;
use memplan_passes::{Context, Pass, PassError, Products, RunOptions, Tie};

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
    /// Arithmetic operations of one run.
    pub operations: f64,
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
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let search = Search { compiler, machine: &machine, limit: options.memory_limit, spread, threads };
    ir::verify(&module).map_err(EstimateError::Invalid)?;
    let before = search.price(module.clone())?;
    let flat = Found { module: Arc::new(search.flatten(&module)?), price: before, steps: Vec::new() };
    let mut found = vec![flat];
    let mut best: Option<Found> = None;
    for products in PRODUCTS {
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
    let best = best.expect("the first choice of products is always tried");
    let is_changed = best.steps.iter().any(|step| step.is_kept);
    let module = if is_changed { Arc::unwrap_or_clone(best.module) } else { module };
    Ok(Rewritten { module, before, steps: best.steps })
}

/// Products that may be computed again, at ever higher prices. The later ones are for programs that do not fit.
const PRODUCTS: [Products; 4] =
    [Products::Cheap, Products::AllButEvery(2), Products::AllButEvery(4), Products::AllButEvery(16)];

/// The body of every function in its place, and shardings on what they are about.
const FLAT: &[&dyn Pass] =
    &[&passes::CALL_INLINER, &passes::SHARDING_FOLDING, &passes::TUPLE_SIMPLIFIER, &passes::DCE];

/// Removes what changes of loops leave behind.
const LOOP_CLEANUP: &[&dyn Pass] = &[&passes::WHILE_SIMPLIFIER, &passes::TUPLE_SIMPLIFIER, &passes::DCE];

/// What to rewrite for.
struct Search<'a> {
    compiler: &'a Compiler,
    /// The target as the compiler sees it.
    machine: &'a Target,
    limit: Option<Bytes>,
    spread: Option<Spread>,
    threads: usize,
}

/// How a program is spread over devices.
struct Spread {
    /// Bytes of arguments that one device holds, where that is not all of them.
    arguments: Option<Bytes>,
    /// One device computes one part in so many.
    pieces: u64,
}

impl Spread {
    fn new(module: &Module, target: &Target) -> Option<Spread> {
        let pieces = memory::parallel::pieces(module);
        let arguments = memory::parallel::arguments_per_device(module, target);
        (pieces > 1).then_some(Spread { arguments, pieces })
    }

    /// What one device needs of what all need together.
    fn of_one_device(&self, all: Price, arguments: Bytes) -> Price {
        let rest = all.total.saturating_sub(arguments);
        let pieces = self.pieces as f64;
        Price {
            total: self.arguments.unwrap_or(arguments).saturating_add(Bytes(rest.0.div_ceil(self.pieces))),
            seconds: all.seconds / pieces,
            operations: all.operations / pieces,
        }
    }
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
        let found = Expected::new(module, self.compiler, self.machine)?;
        let operations = found.run.matrix_operations + found.run.vector_operations;
        let all = Price { total: found.total(), seconds: found.run.seconds, operations };
        let of_one = |spread: &Spread| spread.of_one_device(all, found.totals.arguments);
        Ok(self.spread.as_ref().map_or(all, of_one))
    }

    fn fits(&self, price: Price) -> bool {
        self.limit.is_none_or(|limit| price.total <= limit)
    }

    fn flatten(&self, module: &Module) -> Result<Module, RewriteError> {
        let mut flat = module.clone();
        flat.is_scheduled = false;
        self.run(&mut flat, FLAT)?;
        Ok(flat)
    }

    /// Where the program stands before the first rewrite, and after each. `last` says so of other products, or only of
    /// the beginning; what does not depend on products is taken from there.
    fn keep_what_pays(&self, last: &[Found], products: Products) -> Result<Vec<Found>, RewriteError> {
        let mut all = vec![last[0].clone()];
        for (i, rewrite) in self.rewrites(products).iter().enumerate() {
            let known = last.get(i + 1).filter(|_| !rewrite.takes_products && last[i] == all[i]);
            let next = match known {
                Some(known) => known.clone(),
                None => self.keep_if_it_pays(all[i].clone(), rewrite)?,
            };
            all.push(next);
        }
        Ok(all)
    }

    fn keep_if_it_pays(&self, mut found: Found, rewrite: &Rewrite<'_>) -> Result<Found, RewriteError> {
        if let Some((candidate, price)) = self.best_way(&found.module, found.price, rewrite)? {
            let is_kept = self.pays(found.price, price);
            let Rewrite { name, description, .. } = *rewrite;
            found.steps.push(Step { name, description, price, is_kept });
            if is_kept {
                (found.module, found.price) = (Arc::new(candidate), price);
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
        rewrite: &Rewrite<'_>,
    ) -> Result<Option<(Module, Price)>, RewriteError> {
        let ways = rewrite.orders.iter().flat_map(|&guess| rewrite.ways.iter().map(move |way| (guess, way)));
        let tried = parallel::map(self.threads, ways.collect(), |(guess, way)| {
            self.apply(module, guess, rewrite, way)
        });
        let mut candidates: Vec<Module> = Vec::new();
        for candidate in tried.into_iter().filter_map(Result::transpose) {
            let candidate = candidate?;
            if candidates.last() != Some(&candidate) && self.may_pay(rewrite, module, now, &candidate) {
                candidates.push(candidate);
            }
        }
        let priced = parallel::map(self.threads, candidates, |candidate| {
            self.price(candidate.clone()).map(|price| (candidate, price))
        });
        let found = priced.into_iter().collect::<Result<Vec<_>, _>>()?;
        let rank = |price: Price| (!self.pays(now, price), !self.fits(price));
        let Some(&(_, best)) = found.iter().min_by_key(|(_, price)| (rank(*price), price.total)) else {
            return Ok(None);
        };
        let is_close = |price: Price| price.total.0 as f64 <= best.total.0 as f64 * (1.0 + MIN_SAVING);
        Ok(found.into_iter().rfind(|(_, price)| rank(*price) == rank(best) && is_close(*price)))
    }

    /// The rewritten program, verified, where something is rewritten.
    fn apply(
        &self,
        module: &Module,
        guess: FirstGuess,
        rewrite: &Rewrite<'_>,
        way: &Way<'_>,
    ) -> Result<Option<Module>, RewriteError> {
        let Some(mut candidate) = guess.order(module, self.machine)? else { return Ok(None) };
        if !way(&mut candidate)? {
            return Ok(None);
        }
        self.run(&mut candidate, rewrite.cleanup)?;
        candidate.compact();
        ir::verify(&candidate).map_err(|source| PassError::Broke { pass: rewrite.name, source })?;
        match has_same_interface(module, &candidate) {
            true => Ok(Some(candidate)),
            false => Err(RewriteError::Interface(rewrite.name)),
        }
    }

    /// Runs passes, and says whether they changed anything.
    fn run(&self, module: &mut Module, list: &[&dyn Pass]) -> Result<bool, PassError> {
        let runs = passes::run(module, list, &Context { target: self.machine }, RunOptions::default())?;
        Ok(runs.iter().any(|run| run.changed))
    }

    /// Every rewrite, in the order in which they are tried: what shortens the state of loops first, as what is recomputed
    /// within them depends on it.
    fn rewrites(&self, products: Products) -> [Rewrite<'_>; 6] {
        let pass = |pass: &'static dyn Pass| -> Vec<Way<'_>> {
            vec![Box::new(move |module| self.run(module, &[pass]))]
        };
        let residuals: Way<'_> =
            Box::new(move |module| Ok(passes::recompute_residuals(module, self.machine, products)));
        let blocks = |share: u64| -> Way<'_> {
            Box::new(move |module| passes::walk_in_row_blocks(module, self.machine, share))
        };
        let tie = if self.compiler.keeps_barriers { Tie::Barrier } else { Tie::Select };
        let recomputation: Way<'_> =
            Box::new(move |module| passes::recompute_after_peak(module, self.machine, Some(tie), products));
        let as_written: &[FirstGuess] = &[FirstGuess::Text];
        [
            Rewrite {
                name: "loop residuals",
                description: "a later loop recomputes what an earlier one kept for it row by row",
                orders: as_written,
                ways: vec![residuals],
                cleanup: LOOP_CLEANUP,
                takes_products: true,
                replaces: None,
            },
            Rewrite {
                name: "loop state in place",
                description: "a loop writes new rows over the old rows that it has read",
                orders: as_written,
                ways: pass(&passes::LOOP_STATE_IN_PLACE),
                cleanup: LOOP_CLEANUP,
                takes_products: false,
                replaces: None,
            },
            Rewrite {
                name: "conditionals in place",
                description: "a conditional that changes its operands or hands them back changes them where they are",
                orders: as_written,
                ways: pass(&passes::CONDITIONAL_IN_PLACE),
                cleanup: &[&passes::DCE],
                takes_products: false,
                replaces: None,
            },
            Rewrite {
                name: "gradients of gathers",
                description: "a scatter of one element a row becomes a comparison, which is never in memory",
                orders: as_written,
                ways: pass(&passes::SCATTER_TO_SELECT),
                cleanup: &[&passes::DCE],
                takes_products: false,
                replaces: Some(bytes_of_scatters),
            },
            Rewrite {
                name: "blocks of rows",
                description: "a loop computes a wide array a block of rows at a time, and again for its gradient",
                orders: as_written,
                ways: if self.spread.is_some() { vec![] } else { SHARES_IN_BLOCKS.map(blocks).into() },
                cleanup: &[&passes::DCE],
                takes_products: false,
                replaces: None,
            },
            Rewrite {
                name: "recomputation",
                description: "what crosses the peak is computed again after it",
                orders: &FirstGuess::OF_REWRITE,
                ways: vec![recomputation],
                cleanup: &[&passes::DCE],
                takes_products: true,
                replaces: None,
            },
        ]
    }

    /// Whether a candidate may save enough, as far as can be told without an estimate: no more than the arrays that it
    /// does without and as much again for what they are made of.
    fn may_pay(&self, rewrite: &Rewrite<'_>, module: &Module, now: Price, candidate: &Module) -> bool {
        let Some(bytes) = rewrite.replaces else { return true };
        let fewer = bytes(module, self.machine).saturating_sub(bytes(candidate, self.machine));
        !self.fits(now) || 2.0 * fewer as f64 >= now.total.0 as f64 * MIN_SAVING
    }

    /// Whether one price is better than another.
    fn pays(&self, from: Price, to: Price) -> bool {
        let saved = 1.0 - to.total.0 as f64 / (from.total.0 as f64).max(1.0);
        let slower = to.seconds / from.seconds.max(f64::MIN_POSITIVE) - 1.0;
        let is_noticed = from.total.saturating_sub(to.total).0 >= MIN_SAVED && saved >= MIN_SAVING;
        match self.fits(from) {
            true => is_noticed && saved >= slower * BYTES_PER_SECOND,
            false => to.total < from.total,
        }
    }
}

/// A rewrite, and the ways to do it, of which that is taken which helps most.
struct Rewrite<'a> {
    name: &'static str,
    description: &'static str,
    /// The orders in which the program may run, the likeliest last.
    orders: &'a [FirstGuess],
    /// The cheapest last.
    ways: Vec<Way<'a>>,
    /// Removes what it leaves behind.
    cleanup: &'a [&'a dyn Pass],
    /// Whether the ways depend on which products may be computed again.
    takes_products: bool,
    /// Bytes of the arrays in a program of the kind that it replaces, where these are all that it saves.
    replaces: Option<fn(&Module, &Target) -> u64>,
}

/// Changes a module, and says whether it did.
type Way<'a> = Box<dyn Fn(&mut Module) -> Result<bool, PassError> + Sync + 'a>;

/// Arrays that take one part in so many of what is live at the peak are walked over in blocks: of small ones, too, or
/// only of the widest, as every loop costs time.
const SHARES_IN_BLOCKS: [u64; 2] = [passes::MIN_SHARE_IN_BLOCKS, 8];

fn bytes_of_scatters(module: &Module, target: &Target) -> u64 {
    let instructions = module.computations.values().flat_map(|computation| &computation.instructions);
    let scatters = instructions.filter(|&&id| matches!(module.instructions[id].op, Op::Scatter(_)));
    let leaves = scatters.flat_map(|&id| module.shape(id).leaves());
    leaves.fold(0, |sum, (_, leaf)| sum.saturating_add(target.size_of(leaf).0))
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
