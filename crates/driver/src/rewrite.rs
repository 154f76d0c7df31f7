//! Rewrites a program for another compiler, so that the compiler needs fewer bytes for it: JAX's HLO in, HLO for that
//! compiler out.
//!
//! The search tries the levers one after the other, in a fixed order. After each lever, it keeps a few programs from
//! fewest bytes to least time by the estimate of that compiler ([`crate::estimate()`]), among those with the lever in
//! each of its forms and those without. So it prices levers together, and chooses at the end:
//!
//! ```text
//!   as it is ──┬── gathers ──┬── 8 parts ──┬── recompute
//!              │             └── 4 parts   └──
//!              └──           ──── ...
//! ```
//!
//! If no lever helps, the program is returned unchanged.

mod choice;
mod list;
mod part;

use std::sync::Arc;

use crate::estimate::{EstimateError, passes_of};
use crate::latency_hiding::has_collectives;
use crate::spread::{self, Share, Spread};
use crate::{Estimated, FirstGuess, Memo, ModuleKey, Price, Prices, SettingId, parallel};
use memplan_ir as ir;
use memplan_ir::Module;
use memplan_memory::{Bytes, Compiler, MemorySpaceId, Target};
use memplan_passes as passes;
use memplan_passes::{
    AnyPass, Context, GradientsFirst, OfOneDevice, Pass, PassError, Pipeline, Report, RunOptions,
};
use memplan_plan_hlo::ScheduleOptions;

pub use list::{Forms, Lever, NoLever, Rewrite, Situation};

/// The goal, and how to reach it.
#[derive(Clone, Debug)]
pub struct RewriteOptions {
    /// Bytes that the program should fit into: the fastest program that does is chosen.
    pub memory_limit: Option<Bytes>,
    /// How much slower the program may become, as a share of its time. `None` is any time under a limit, and
    /// [`usual_slowdown`](RewriteOptions::usual_slowdown) without one.
    pub max_slowdown: Option<f64>,
    /// How much slower the program may become if nothing is asked for.
    pub usual_slowdown: f64,
    /// The rewrites, in the order in which they are tried.
    pub rewrites: Vec<Rewrite>,
    /// The least share of the temporaries that a program must save that takes no more time, since estimates have an error.
    /// Above a limit, any saving counts.
    pub min_saving: f64,
    /// The least share of the temporaries that a slower program must save.
    pub min_saving_if_slower: f64,
    /// The least share of all bytes that a slower program must save.
    pub min_share_if_slower: f64,
    /// A program that takes at most this share more time is not slower: less may be an error of the estimates.
    pub same_seconds: f64,
    /// The least number of bytes to save: in programs of a few kilobytes, rounding to whole allocations is as much as a
    /// tenth.
    pub min_saved: Bytes,
    /// Programs whose bytes differ by no more than this share of those as written are about as small: one of them may be
    /// better for its time.
    pub same_bytes: f64,
    /// The share of time that all bytes are worth, between programs that are about as small.
    pub worth_of_bytes: f64,
    /// Bounds the savings of a rewrite that only replaces arrays of one kind: this many times the bytes of the arrays
    /// removed, for them and their operands. A candidate that could not save enough is not priced.
    pub most_per_replaced: f64,
    /// The most programs that are held after each rewrite, for a small module.
    pub width: usize,
    /// Of large modules fewer are held: as many as have this many instructions together, but three at least.
    pub held_instructions: usize,
    /// A program that surely fits a limit is chosen before one that only probably does if it takes at most this share
    /// more time.
    pub worth_of_certainty: f64,
    /// Programs are given up that take this many times the seconds that the result may take: rewrites to come hardly make
    /// up for it.
    pub reach: f64,
    /// The most that order adds to the time of a program, as a share.
    pub time_of_order: f64,
    /// The share of time that order is worth by itself: without barriers, the compiler may choose another order than the one
    /// that was estimated.
    pub worth_of_order: f64,
    /// Look for programs of every price, whatever the result will be.
    pub is_frontier: bool,
    /// Whether barriers may be added where the compiler holds back the gradients of weights.
    pub order: bool,
    /// Whether options of the compiler may be set.
    pub flags: bool,
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
            max_slowdown: None,
            usual_slowdown: 0.1,
            rewrites: Rewrite::all(),
            min_saving: 0.05,
            min_saving_if_slower: 0.1,
            min_share_if_slower: 0.05,
            same_seconds: 0.005,
            min_saved: Bytes(16 << 10),
            same_bytes: 0.01,
            worth_of_bytes: 5.0,
            most_per_replaced: 2.0,
            width: 12,
            held_instructions: 14_000,
            worth_of_certainty: 0.03,
            reach: 1.25,
            time_of_order: 0.03,
            worth_of_order: 0.01,
            is_frontier: false,
            order: true,
            flags: true,
            schedule: ScheduleOptions::default(),
            threads: std::thread::available_parallelism().map_or(1, usize::from),
        }
    }
}

impl RewriteOptions {
    /// Pulls only some levers, or all where that names none, but not others.
    pub fn pull(&mut self, only: &[Lever], without: &[Lever]) {
        let is_pulled = |lever| (only.is_empty() || only.contains(&lever)) && !without.contains(&lever);
        self.rewrites.retain(|rewrite| is_pulled(rewrite.lever));
        self.order = is_pulled(Lever::Order);
        self.flags = is_pulled(Lever::Flags);
    }

    /// Whether order is a lever for a compiler.
    fn orders_for(&self, compiler: &Compiler) -> bool {
        self.order && list::holds_gradients_back(compiler)
    }
}

/// A rewritten program.
#[derive(Clone, Debug)]
pub struct Rewritten {
    /// The program for the other compiler: same parameters, results, donation and shardings.
    pub module: Module,
    /// How many devices run the program, if it is more than one. All figures are those of one device.
    pub devices: Option<u64>,
    /// Options to give the compiler with it, by name.
    pub flags: Vec<(String, String)>,
    /// The estimate of the compiler for the original program.
    pub before: Estimated,
    /// Every rewrite that changes something, in the order in which they were tried.
    pub steps: Vec<Step>,
    /// The smallest program found that takes no more time than the original one, if it is another one than the result.
    pub free: Option<Estimated>,
    /// Every program found that none other beats in both bytes and time, from fewest bytes to least time. Each is the
    /// result under a limit of its own bytes.
    pub frontier: Vec<Estimated>,
}

/// One rewrite that was tried.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// Its lever.
    pub lever: Lever,
    /// Its name.
    pub name: &'static str,
    /// A description.
    pub description: &'static str,
    /// The estimate of the compiler for the program with it, and with the rewrites kept before. If it was not kept, that of
    /// its form of fewest bytes.
    pub estimated: Estimated,
    /// Whether it was kept.
    pub is_kept: bool,
    /// The reports of its passes.
    pub reports: Vec<Report>,
    /// Options of the compiler that it sets.
    pub flags: Vec<(String, String)>,
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
    pub fn after(&self) -> Estimated {
        self.steps.iter().rev().find(|step| step.is_kept).map_or(self.before, |step| step.estimated)
    }
}

/// Rewrites a module for a compiler, on a machine that it compiles for.
///
/// Bytes and seconds are for one device. If shardings spread the program over several, the program of one device is
/// rewritten, and returned as one manual computation over all of them. Where no such program is known, arguments are
/// divided by their shardings, and all else as finely as the most finely sharded array; such a program gets no parts and
/// no row blocks, since the rows of one block may all be on one device.
///
/// # Errors
/// See [`RewriteError`].
pub fn rewrite(
    module: Module,
    compiler: &Compiler,
    target: &Target,
    options: &RewriteOptions,
) -> Result<Rewritten, RewriteError> {
    rewrite_among(module, &Prices::new(compiler, target), options)
}

/// The same for one of several modules, whose estimates are kept.
///
/// # Errors
/// See [`RewriteError`].
pub fn rewrite_among(
    module: Module,
    prices: &Prices<'_>,
    options: &RewriteOptions,
) -> Result<Rewritten, RewriteError> {
    let compiler = prices.compiler;
    let machine = compiler.on(prices.target);
    let Given { whole, module, spread } = Given::new(module, &machine)?;
    let devices = whole.as_ref().map(|(_, of_one)| of_one.devices);
    let of_compiler = passes_of(compiler)?;
    let orders = options.orders_for(compiler);
    let mut search = Search { compiler, of_compiler, machine: &machine, options, spread, prices, orders };
    let before = search.price_as_it_is(module.clone())?;
    let flat = Attempt { module: Arc::new(search.flatten(&module)?), estimated: before, steps: Vec::new() };
    let ordered = search.only_in_order(&flat)?;
    search.orders &=
        ordered.as_ref().is_none_or(|ordered| !choice::only_costs(before, ordered.estimated, options));
    let mut found = Found { held: vec![flat], set_aside: Vec::new() };
    for rewrite in &options.rewrites {
        let n_without = found.held.len();
        found.held = search.with_and_without(found.held, rewrite)?;
        found = search.worth_going_on(found, n_without);
    }
    let mut found = found.all();
    if let Some(mut ordered) = ordered {
        ordered.steps.splice(..0, found[0].steps.iter().cloned());
        found.push(ordered);
    }
    found.extend(search.not_in_order(&found)?);
    if options.flags {
        found.extend(search.in_the_order_of_memory(&found)?);
    }
    let prices: Vec<Estimated> = found.iter().map(|attempt| attempt.estimated).collect();
    let chosen = choice::choose(&prices, options);
    let frontier = choice::undominated(&prices).into_iter().map(|i| prices[i]).collect();
    let free = choice::free(&prices).filter(|&free| free != chosen).map(|free| prices[free]);
    let mut chosen = found.swap_remove(chosen);
    // So that the module is not copied.
    drop(found);
    search.put_in_order(&mut chosen, before)?;
    let Attempt { module: rewritten, steps, .. } = chosen;
    let is_changed = steps.iter().any(|step| step.is_kept && step.lever != Lever::Flags);
    let flags = steps.iter().filter(|step| step.is_kept).flat_map(|step| step.flags.clone()).collect();
    let module = match (is_changed, whole) {
        (true, whole) => for_all_devices(whole.as_ref(), Arc::unwrap_or_clone(rewritten))?,
        (false, Some((whole, _))) => whole,
        (false, None) => module,
    };
    Ok(Rewritten { module, devices, flags, before, steps, free, frontier })
}

/// The modules that each form of each rewrite makes of a module by itself, whole and to a half, whatever they save or cost.
/// Tests run all of them, since [`rewrite`] returns only the one that it chooses.
///
/// # Errors
/// See [`RewriteError`].
pub fn each_alone(
    module: Module,
    compiler: &Compiler,
    target: &Target,
    options: &RewriteOptions,
) -> Result<Vec<(Lever, Module)>, RewriteError> {
    let machine = compiler.on(target);
    let Given { whole, module, spread } = Given::new(module, &machine)?;
    let of_compiler = passes_of(compiler)?;
    let prices = &Prices::new(compiler, target);
    let orders = options.orders_for(compiler);
    let search = Search { compiler, of_compiler, machine: &machine, options, spread, prices, orders };
    let estimated = search.price_as_it_is(module.clone())?;
    let flat = Attempt { module: Arc::new(search.flatten(&module)?), estimated, steps: Vec::new() };
    let situation = search.situation();
    let mut found = Vec::new();
    for rewrite in &options.rewrites {
        let mut ways = (rewrite.ways)(&situation);
        let n_forms = ways.len();
        let halves = |form| rewrite.parts.iter().map(move |part| part(&situation, form, part::WHOLE / 2));
        ways.extend((0..n_forms).flat_map(halves));
        let ways: Vec<(usize, &AnyPass)> = ways.iter().enumerate().collect();
        for candidate in search.candidates(&flat, rewrite, &ways, options.threads)? {
            let mut module = Arc::unwrap_or_clone(candidate.module);
            search.order(&mut module)?;
            found.push((rewrite.lever, for_all_devices(whole.as_ref(), module)?));
        }
    }
    if let Some(ordered) = search.only_in_order(&flat)? {
        found.push((Lever::Order, for_all_devices(whole.as_ref(), Arc::unwrap_or_clone(ordered.module))?));
    }
    Ok(found)
}

/// A valid module, as it is rewritten.
struct Given {
    /// The program of all devices, where the program of one is rewritten.
    whole: Option<(Module, Box<OfOneDevice>)>,
    /// What is rewritten.
    module: Module,
    spread: Option<Spread>,
}

impl Given {
    fn new(module: Module, machine: &Target) -> Result<Given, RewriteError> {
        ir::verify(&module).map_err(EstimateError::Invalid)?;
        Ok(match Share::of(&module, machine)? {
            Share::Partitioned(of_one) if of_one.for_all(&module, &of_one.module).is_some() => {
                let mut local = of_one.module.clone();
                // As the body of one manual computation, it is a program of one device with collectives in it.
                local.config.num_partitions = None;
                Given { whole: Some((module, of_one)), module: local, spread: None }
            }
            Share::Partitioned(_) => Given { spread: Spread::new(&module, machine), whole: None, module },
            Share::Whole(spread) => Given { whole: None, module, spread },
        })
    }
}

/// The program of all devices, from the rewritten one of one device.
fn for_all_devices(
    whole: Option<&(Module, Box<OfOneDevice>)>,
    rewritten: Module,
) -> Result<Module, RewriteError> {
    match whole {
        Some((whole, of_one)) => {
            of_one.for_all(whole, &rewritten).ok_or(RewriteError::Interface("manual computation"))
        }
        None => Ok(rewritten),
    }
}

/// Inlines every function, and moves shardings to the operations that they describe.
const FLAT: &[&dyn Pass] = &[
    &passes::CALL_INLINER,
    &passes::FLAT_LOOP_STATE,
    &passes::SHARDING_FOLDING,
    &passes::TUPLE_SIMPLIFIER,
    &passes::DCE,
];

/// Puts a program in order.
const ORDERED: &[&dyn Pass] =
    &[&GradientsFirst { in_entry: false, ..passes::GRADIENTS_FIRST }, &passes::COUNTERS_PAST_BARRIERS];

/// The situation to rewrite for.
struct Search<'a> {
    compiler: &'a Compiler,
    /// The passes that it runs.
    of_compiler: Pipeline,
    /// The target as the compiler sees it.
    machine: &'a Target,
    options: &'a RewriteOptions,
    spread: Option<Spread>,
    /// Those of programs that are not spread.
    prices: &'a Prices<'a>,
    /// Whether programs are put in order.
    orders: bool,
}

/// A program with some of the rewrites.
#[derive(Clone)]
struct Attempt {
    module: Arc<Module>,
    estimated: Estimated,
    steps: Vec<Step>,
}

/// The programs found so far.
struct Found {
    /// Those that the next rewrite is tried on, the one without any rewrite first.
    held: Vec<Attempt>,
    /// Others that may be chosen in the end.
    set_aside: Vec<Attempt>,
}

impl Found {
    /// All programs, the one without any rewrite first.
    fn all(self) -> Vec<Attempt> {
        let Found { mut held, set_aside } = self;
        held.extend(set_aside);
        held
    }
}

/// A step of a rewrite.
#[derive(Clone, PartialEq)]
enum Try<'a> {
    /// Orders the program in a possible order of execution.
    Order(FirstGuess),
    /// Rewrites it in one form.
    Way(&'a AnyPass),
}

impl Search<'_> {
    fn situation(&self) -> Situation<'_> {
        Situation { compiler: self.compiler, is_partitioned: self.spread.is_some() }
    }

    /// Prices a valid module.
    fn price_as_it_is(&self, module: Module) -> Result<Estimated, RewriteError> {
        let Search { compiler, of_compiler, machine, spread, .. } = self;
        if spread.is_some() {
            return Ok(spread::price_on(module, compiler, of_compiler, machine, spread.as_ref())?);
        }
        let key = ModuleKey::new(&module);
        Ok(self.prices.known_or(key, || spread::price_on(module, compiler, of_compiler, machine, None))?)
    }

    /// Prices a rewritten module as it will be in the end: in order, if that is a lever.
    fn price(&self, mut module: Module) -> Result<Estimated, RewriteError> {
        self.order(&mut module)?;
        self.price_as_it_is(module)
    }

    /// Adds the barriers without which the compiler would hold back the gradients of weights; says whether there are any.
    fn order(&self, module: &mut Module) -> Result<bool, RewriteError> {
        if !self.orders {
            return Ok(false);
        }
        let context = Context { target: self.machine };
        let runs = passes::run(module, ORDERED, &context, RunOptions::default())?;
        Ok(runs[0].changed)
    }

    /// A program in order, and not changed otherwise; none where that changes nothing.
    fn only_in_order(&self, attempt: &Attempt) -> Result<Option<Attempt>, RewriteError> {
        if !self.orders {
            return Ok(None);
        }
        let mut module = Module::clone(&attempt.module);
        if !self.order(&mut module)? {
            return Ok(None);
        }
        let estimated = self.price_as_it_is(module.clone())?;
        let steps = attempt.steps.iter().cloned().chain([in_order(estimated)]).collect();
        Ok(Some(Attempt { module: Arc::new(module), estimated, steps }))
    }

    /// The programs that would be chosen if they were a little faster, as they are without being put in order.
    fn not_in_order(&self, found: &[Attempt]) -> Result<Vec<Attempt>, RewriteError> {
        if !self.orders {
            return Ok(Vec::new());
        }
        let prices: Vec<Estimated> = found.iter().map(|attempt| attempt.estimated).collect();
        let close = choice::nearly_fast_enough(&prices, self.options).into_iter();
        let as_it_is = |i: usize| {
            let mut attempt = found[i].clone();
            attempt.estimated = self.price_as_it_is(Module::clone(&attempt.module))?;
            if let Some(last) = attempt.steps.iter_mut().rfind(|step| step.is_kept) {
                last.estimated = attempt.estimated;
            }
            Ok(attempt)
        };
        close.map(as_it_is).collect()
    }

    /// Puts a rewritten program in order, and adds the step, if that is better than the same program without.
    fn put_in_order(&self, attempt: &mut Attempt, before: Estimated) -> Result<(), RewriteError> {
        if !self.orders {
            return Ok(());
        }
        let kept = attempt.steps.iter().rposition(|step| step.is_kept && step.lever != Lever::Flags);
        let Some(last) = kept else { return Ok(()) };
        let mut module = Module::clone(&attempt.module);
        if !self.order(&mut module)? {
            return Ok(());
        }
        let ordered = self.price_as_it_is(module.clone())?;
        let as_it_is = self.price_as_it_is(Module::clone(&attempt.module))?;
        attempt.steps[last].estimated = as_it_is;
        if choice::is_better_in_order(before, as_it_is, ordered, self.options) {
            attempt.module = Arc::new(module);
            attempt.steps.insert(last + 1, in_order(ordered));
        }
        Ok(())
    }

    fn flatten(&self, module: &Module) -> Result<Module, RewriteError> {
        let mut flat = module.clone();
        flat.is_scheduled = false;
        passes::run(&mut flat, FLAT, &Context { target: self.machine }, RunOptions::default())?;
        Ok(flat)
    }

    /// Some programs without a rewrite and with it in each of its forms. The first one is always that without any rewrite.
    fn with_and_without(&self, found: Vec<Attempt>, rewrite: &Rewrite) -> Result<Vec<Attempt>, RewriteError> {
        let mut priced = self.forms(&found, rewrite)?;
        if rewrite.min_share > 0.0 {
            let most = |from: usize| found[from].estimated.price.total.0 as f64 * (1.0 - rewrite.min_share);
            priced.retain(|(from, _, estimated)| estimated.price.total.0 as f64 <= most(*from));
        }
        let step = |candidate: &Candidate, estimated, is_kept| {
            let &Rewrite { lever, name, description, .. } = rewrite;
            let (reports, flags) = (candidate.reports.clone(), Vec::new());
            Step { lever, name, description, estimated, is_kept, reports, flags }
        };
        let mut next = found;
        for (from, attempt) in next.iter_mut().enumerate() {
            if let Some((_, candidate, estimated)) = smallest(&priced, from) {
                attempt.steps.push(step(candidate, *estimated, false));
            }
        }
        for (from, candidate, estimated) in priced {
            let mut steps = next[from].steps.clone();
            *steps.last_mut().expect("the rewrite was tried") = step(&candidate, estimated, true);
            next.push(Attempt { module: candidate.module, estimated, steps });
        }
        Ok(next)
    }

    /// The forms of a rewrite that are tried on some programs, in order of these: each with the number of the program that
    /// it was made of, and its price.
    fn forms(
        &self,
        found: &[Attempt],
        rewrite: &Rewrite,
    ) -> Result<Vec<(usize, Candidate, Estimated)>, RewriteError> {
        let situation = self.situation();
        let ways = (rewrite.ways)(&situation);
        let threads = parallel::affordable(self.options.threads, &found[0].module);
        let mut priced: Vec<(usize, Candidate, Estimated)> = Vec::new();
        // Attempts on which forms are left to try, and how many were tried.
        let first = usize::from(self.leaves_first(found));
        let mut open: Vec<(usize, usize)> = (first..found.len()).map(|from| (from, 0)).collect();
        while !open.is_empty() {
            let mut candidates = Vec::new();
            for (from, n_tried) in &mut open {
                let is_tried = priced.iter().any(|(of, ..)| of == from);
                let last = if is_tried { ways.len() } else { rewrite.forms.first(ways.len(), *n_tried) };
                let in_vain = |form: usize| {
                    let mut known = priced.iter().filter(|(of, ..)| of == from);
                    known.any(|(_, candidate, after)| {
                        candidate.form == form && !self.saves(found[*from].estimated, *after)
                    })
                };
                let tried: Vec<(usize, &AnyPass)> = (*n_tried..last)
                    .filter(|&form| rewrite.forms.alone(form, ways.len()).is_none_or(in_vain))
                    .map(|form| (form, &ways[form]))
                    .collect();
                let of_attempt = self.candidates(&found[*from], rewrite, &tried, threads)?;
                *n_tried = last;
                let is_new = |candidate: &Candidate| {
                    let mut known = priced.iter().filter(|(of, ..)| of == from);
                    known.all(|(_, known, _)| known.module != candidate.module)
                };
                candidates.extend(of_attempt.into_iter().filter(is_new).map(|candidate| (*from, candidate)));
            }
            let of_round = parallel::map(threads, candidates, |(from, candidate)| {
                self.price(Module::clone(&candidate.module)).map(|estimated| (from, candidate, estimated))
            });
            priced.extend(of_round.into_iter().collect::<Result<Vec<_>, _>>()?);
            open.retain(|&(from, n_tried)| {
                let mut of_attempt = priced.iter().filter(|(of, ..)| *of == from).peekable();
                let goes_on = match of_attempt.peek() {
                    Some(_) if rewrite.forms == Forms::Paired => true,
                    Some(_) => {
                        of_attempt.any(|(_, _, estimated)| self.saves(found[from].estimated, *estimated))
                    }
                    None => rewrite.forms != Forms::Nested,
                };
                goes_on && n_tried < ways.len()
            });
        }
        if !rewrite.parts.is_empty() {
            for (from, attempt) in found.iter().enumerate().skip(first) {
                let parts = self.in_part(&found[0].estimated, attempt, rewrite, &priced, from)?;
                priced.extend(parts.into_iter().map(|(candidate, estimated)| (from, candidate, estimated)));
            }
        }
        priced.sort_by_key(|(from, ..)| *from);
        Ok(priced)
    }

    /// Whether nothing more is tried on the program without any rewrite: it is large, and another one beats it.
    fn leaves_first(&self, found: &[Attempt]) -> bool {
        let prices: Vec<Estimated> = found.iter().map(|attempt| attempt.estimated).collect();
        self.width(&found[0].module) < self.options.width && !choice::undominated(&prices).contains(&0)
    }

    /// Whether a form of a rewrite does anything for a program, so that weaker forms may be worth their time.
    fn saves(&self, before: Estimated, after: Estimated) -> bool {
        let least = if self.options.memory_limit.is_some() { 0.0 } else { self.options.same_bytes };
        (after.price.total.0 as f64) < before.price.total.0 as f64 * (1.0 - least)
            || after.price.seconds < before.price.seconds
    }

    /// The programs that need fewer bytes if the compiler orders them for memory rather than to hide transfers between
    /// devices, with the option that makes it do so.
    fn in_the_order_of_memory(&self, found: &[Attempt]) -> Result<Vec<Attempt>, RewriteError> {
        let Some(rules) = &self.compiler.latency_hiding else { return Ok(Vec::new()) };
        let Some(usable) = self.machine.space(MemorySpaceId::MAIN).and_then(|space| space.usable()) else {
            return Ok(Vec::new());
        };
        let mut compiler = self.compiler.clone();
        compiler.latency_hiding = None;
        let mut better = Vec::new();
        for attempt in found.iter().filter(|attempt| has_collectives(&attempt.module)) {
            let mut module = Module::clone(&attempt.module);
            if attempt.steps.iter().any(|step| step.is_kept) {
                self.order(&mut module)?;
            }
            let spread = self.spread.as_ref();
            let estimated = spread::price_on(module, &compiler, &self.of_compiler, self.machine, spread)?;
            if estimated.price.total >= attempt.estimated.price.total {
                continue;
            }
            // The scheduler is to think that it has no more than the program needs in that order.
            let percent = (100 * estimated.price.total.0 / usable.0.max(1)).max(1);
            let step = Step {
                lever: Lever::Flags,
                name: "order of memory",
                description: "the compiler orders the program for memory, not to hide transfers between devices",
                estimated,
                is_kept: true,
                reports: Vec::new(),
                flags: vec![(rules.option.clone(), percent.to_string())],
            };
            let steps = attempt.steps.iter().cloned().chain([step]).collect();
            better.push(Attempt { module: attempt.module.clone(), estimated, steps });
        }
        Ok(better)
    }

    /// How many programs are held.
    fn width(&self, module: &Module) -> usize {
        let held = self.options.held_instructions / module.instruction_count().max(1);
        held.max(3).min(self.options.width)
    }

    /// Chooses the programs that the next rewrite is tried on, and sets aside the others that none beats. The first ones are
    /// those without the last rewrite: the best of them goes on even if one with the rewrite beats it, since another
    /// rewrite may do more without that one.
    fn worth_going_on(&self, found: Found, n_without: usize) -> Found {
        let n = found.held.len();
        let all = found.all();
        let prices: Vec<Estimated> = all.iter().map(|attempt| attempt.estimated).collect();
        let mut held = choice::thin(&prices[..n], self.width(&all[0].module), self.options);
        let without = choice::choose(&prices[..n_without], self.options);
        if !held.contains(&without) {
            held.push(without);
        }
        let unbeaten = choice::undominated(&prices);
        let mut all: Vec<Option<Attempt>> = all.into_iter().map(Some).collect();
        let mut take = |i: usize| all[i].take();
        let held = held.into_iter().filter_map(&mut take).collect();
        Found { held, set_aside: unbeaten.into_iter().filter_map(take).collect() }
    }

    /// A program in each of some forms of a rewrite that changes it.
    fn candidates(
        &self,
        Attempt { module, estimated: now, .. }: &Attempt,
        rewrite: &Rewrite,
        ways: &[(usize, &AnyPass)],
        threads: usize,
    ) -> Result<Vec<Candidate>, RewriteError> {
        let (mut memo, first) = Memo::new(module.clone());
        // Of a large module only the likeliest order is tried.
        let is_small = self.width(module) == self.options.width;
        let orders = if is_small { &rewrite.orders[..] } else { &rewrite.orders[rewrite.orders.len() - 1..] };
        // It has the order of its text already.
        let is_ordered = *orders == [FirstGuess::Text];
        let orders = orders.iter().flat_map(|&guess| ways.iter().map(move |&(_, way)| (guess, way)));
        let settings: Vec<SettingId> = orders
            .map(|(guess, way)| {
                let order = (!is_ordered).then_some(Try::Order(guess));
                memo.branch(first, order.into_iter().chain([Try::Way(way)]))
            })
            .collect();
        let forms = ways.iter().map(|&(form, _)| form).cycle();
        memo.reach(&settings, 2, threads, |program, step| self.take(program, step, rewrite, module))?;
        let mut candidates: Vec<Candidate> = Vec::new();
        for (setting, form) in settings.into_iter().zip(forms) {
            let reports = memo.done(setting).last().expect("every setting has a way");
            let program = memo.program(setting);
            let is_new = candidates.iter().all(|known| !Arc::ptr_eq(&known.module, program));
            if let Some(reports) =
                Option::clone(reports).filter(|_| is_new && self.may_pay(rewrite, module, now.price, program))
            {
                candidates.push(Candidate { module: program.clone(), form, reports });
            }
        }
        Ok(candidates)
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
        self.options.memory_limit.is_some_and(|limit| now.total > limit)
            || most >= now.total.0 as f64 * self.options.min_saving / 5.0
    }
}

/// The step that puts a program in order.
fn in_order(estimated: Estimated) -> Step {
    Step {
        lever: Lever::Order,
        name: "gradients first",
        description: "a loop completes gradients of weights, and frees large values, before it goes on",
        estimated,
        is_kept: true,
        reports: Vec::new(),
        flags: Vec::new(),
    }
}

/// A rewritten program.
struct Candidate {
    module: Arc<Module>,
    /// The number of its form.
    form: usize,
    /// The reports of the passes that rewrote it.
    reports: Vec<Report>,
}

/// The form of fewest bytes that was tried on a program.
fn smallest(priced: &[(usize, Candidate, Estimated)], from: usize) -> Option<&(usize, Candidate, Estimated)> {
    let of_program = priced.iter().filter(|(of, ..)| *of == from);
    of_program.min_by_key(|(_, _, estimated)| estimated.price.total)
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
