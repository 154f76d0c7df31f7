//! The search of `compile`: which candidates to continue, and how far.
//!
//! ```text
//!   steps:    front ── order ── recompute ── fuse ── insert copies        plan at a glance ── plan ── fast memory
//!                        │                    │            │                      │
//!              the best is chosen    equal programs    seconds are    what cannot be the best any more
//!                                    are tried once    known          ends here
//! ```

use std::sync::Arc;
use std::time::Instant;

use memplan_ir::Module;

use crate::candidates::{Candidate, Purpose, Until, candidates};
use crate::compile::CompileError;
use crate::memo::{Memo, SettingId};
use crate::objective::{Objective, Price, undominated};
use crate::planned::{Depth, Solution};
use crate::priced_module::{Done, PricedModule, Request, Step};
use crate::report::{Stage, StageReport, TriedGuess, TriedProgram, TriedPrograms};
use crate::{FirstGuess, parallel};

/// A search for programs.
pub(crate) struct Search<'a> {
    request: Request<'a>,
    memo: Memo<Step, PricedModule, Done>,
    /// Candidates that may still be tried.
    open: Vec<Candidate>,
    /// Candidates that can be planned. No two are equal after fusion; the usual way's come first.
    legal: Vec<Candidate>,
    guesses: Vec<TriedGuess>,
    start: Instant,
}

/// A program that is planned in full, and the number of its candidate among the legal ones.
pub(crate) type Finished = (usize, Solution);

impl<'a> Search<'a> {
    /// Every candidate, at the input program.
    pub(crate) fn new(module: Module, request: Request<'a>) -> Search<'a> {
        let program = Arc::new(PricedModule::new(module));
        let (mut memo, first) = Memo::new(program.clone());
        let open = candidates(&program.module, request, &mut memo, first);
        memo.forget(first);
        Search { request, memo, open, legal: Vec::new(), guesses: Vec::new(), start: Instant::now() }
    }

    /// Runs the candidates of some purposes up to the first guess of the order, in parallel, so that candidates with
    /// equal programs are merged from there on.
    pub(crate) fn lay_out(&mut self, most: Purpose) -> Result<(), CompileError> {
        let asked = self.settings(|candidate| candidate.purpose <= most);
        for n_steps in 1..=self.n_steps(Until::LaidOut) {
            self.reach(&asked, n_steps)?;
            self.measure(self.memo.program(asked[0]), asked[0], n_steps)?;
        }
        self.start = Instant::now();
        Ok(())
    }

    /// Recomputes values in the order of each first guess, and continues with the guess whose usual way has the
    /// smallest quick plan. Recomputation depends much on the order, so candidates that may need fewer bytes are tried
    /// under each guess.
    pub(crate) fn choose_order(&mut self) -> Result<(), CompileError> {
        let usual = self.settings(|candidate| candidate.purpose == Purpose::Usual);
        self.reach(&usual, self.n_steps(Until::Ordered))?;
        let (guesses, first) = self.different_orders();
        self.keep(|candidate| guesses.contains(&candidate.guess));
        self.reach(&first, self.n_steps(Until::Recomputed))?;
        let measured = first.iter().filter(|_| self.request.options.measure_stages);
        let recomputed: Vec<Arc<PricedModule>> =
            measured.map(|&setting| self.memo.program(setting).clone()).collect();
        let totals = match first.len() {
            1 => vec![None],
            _ => {
                self.reach(&first, self.n_steps(Until::Legal))?;
                let glance = |setting| self.request.glance(self.memo.program(setting));
                self.each(&first, |setting| Ok(Some(glance(setting)?.total)))?
            }
        };
        let chosen = (0..first.len()).min_by_key(|&i| totals[i]).expect("there is a guess");
        if let Some(program) = recomputed.get(chosen) {
            self.measure(program, first[chosen], self.n_steps(Until::Recomputed))?;
        }
        let is_chosen = |candidate: &Candidate| candidate.guess == guesses[chosen];
        self.keep(|candidate| is_chosen(candidate) || candidate.purpose == Purpose::Smaller);
        let tried = first.iter().zip(totals).enumerate().map(|(i, (&setting, total))| TriedGuess {
            guess: self.order(setting).unwrap_or(FirstGuess::Text),
            total,
            is_chosen: i == chosen,
        });
        self.guesses = tried.collect();
        self.add(Purpose::Usual)
    }

    /// The programs that the objective needs, planned in full; empty if it depends on all programs.
    pub(crate) fn for_objective(&mut self) -> Result<Vec<Finished>, CompileError> {
        match (self.request.options.objective, self.request.options.memory_limit) {
            (Objective::Memory, _) => Ok(vec![self.smallest()?]),
            (_, None) => self.fastest(),
            (_, Some(_)) => Ok(Vec::new()),
        }
    }

    /// Every program worth planning, for any objective, planned in full.
    pub(crate) fn all(&mut self) -> Result<Vec<Finished>, CompileError> {
        let mut finished = self.fastest()?;
        let fastest: Vec<usize> = finished.iter().map(|(number, _)| *number).collect();
        finished.push(self.smallest()?);
        self.add(Purpose::Smaller)?;
        let prices = self.glances(&self.numbers(Purpose::Smaller))?;
        let mut points = undominated(&prices);
        thin(&mut points, self.request.options.points, &prices);
        points.retain(|i| !fastest.contains(i));
        finished.extend(self.finish(&points)?);
        Ok(finished)
    }

    /// The best program among those that fit, or the smallest if none fits.
    pub(crate) fn choose(self, mut finished: Vec<Finished>, objective: Objective) -> Solution {
        let fits = |(_, found): &Finished| self.request.fits(&found.planned.plan);
        let objective = if finished.iter().any(fits) { objective } else { Objective::Memory };
        if finished.iter().any(fits) {
            finished.retain(fits);
        }
        let prices: Vec<Price> = finished.iter().map(|(_, found)| found.price).collect();
        let chosen = objective.choose(&prices).expect("the usual way leads to a program");
        let (number, mut found) = finished.swap_remove(chosen);
        let others = self.others(number, &found);
        found.stages = self.stages(number).chain(found.stages).chain([others]).collect();
        found
    }

    /// The candidate with this number among the legal ones.
    pub(crate) fn candidate(&self, number: usize) -> &Candidate {
        &self.legal[number]
    }

    /// The programs that may be the best: the fastest, and of those not much slower the smallest.
    fn fastest(&mut self) -> Result<Vec<Finished>, CompileError> {
        // If the time of a program is unknown, as with endless loops in loops that never run, nothing counts as faster
        // than the usual way.
        if !self.seconds(&[0])?[0].is_finite() {
            return self.finish(&self.numbers(Purpose::Usual));
        }
        self.add(Purpose::Faster)?;
        let numbers = self.numbers(Purpose::Faster);
        let mut timed: Vec<(f64, usize)> = self.seconds(&numbers)?.into_iter().zip(numbers).collect();
        timed.sort_by(|a, b| a.0.total_cmp(&b.0));
        let options = self.request.options;
        if options.objective == Objective::Balanced {
            self.leave_too_large(&mut timed)?;
        }
        let limit = timed[0].0 * (1.0 + options.objective.tolerance() + self.unknown_share());
        timed.truncate(timed.partition_point(|(seconds, _)| *seconds <= limit));
        let mut fast: Vec<usize> = timed.into_iter().map(|(_, i)| i).collect();
        if fast.len() > options.finalists {
            let others = fast.split_off(1);
            let glances = self.glances(&others)?;
            let mut totals =
                others.iter().zip(&glances).map(|(&i, glance)| (glance.total, i)).collect::<Vec<_>>();
            totals.sort_by_key(|(total, _)| *total);
            totals.truncate(options.finalists.saturating_sub(1));
            fast.extend(totals.into_iter().map(|(_, i)| i));
        }
        self.finish(&fast)
    }

    /// Drops the fastest programs while they need too many bytes compared with the usual way.
    fn leave_too_large(&self, timed: &mut Vec<(f64, usize)>) -> Result<(), CompileError> {
        let is_usual = |i: usize| self.legal[i].purpose == Purpose::Usual;
        // If the fastest program is a usual one, there is nothing to compare.
        if is_usual(timed[0].1) {
            return Ok(());
        }
        let least = self.glances(&self.numbers(Purpose::Usual))?.iter().map(|price| price.total.0).min();
        let most = least.expect("there is a usual way") as f64 * (1.0 + self.request.options.most_growth);
        while !is_usual(timed[0].1) && self.glances(&[timed[0].1])?[0].total.0 as f64 > most {
            timed.remove(0);
        }
        Ok(())
    }

    /// The share of a program's time that is unknown before it has fast memory.
    fn unknown_share(&self) -> f64 {
        let Request { target, options } = self.request;
        let fast_memory = options.fast_memory.options(Objective::Time, target);
        if fast_memory.is_some() { options.fast_memory_share } else { 0.0 }
    }

    /// The program of fewest bytes that the usual way leads to.
    fn smallest(&mut self) -> Result<Finished, CompileError> {
        let Request { target, options } = self.request;
        let usual = self.numbers(Purpose::Usual);
        let mut plans = self.each(&usual, |i| self.plan(i))?;
        let prices: Vec<Price> = plans.iter().map(|found| found.price).collect();
        for (&i, &price) in usual.iter().zip(&prices) {
            self.legal[i].price.get_or_insert(price);
        }
        let chosen = Objective::Memory.choose(&prices).expect("there is a way to fuse");
        let fast_memory = options.fast_memory.options(Objective::Memory, target);
        let found = self.request.with_fast_memory(plans.swap_remove(chosen), fast_memory.as_ref())?;
        Ok((usual[chosen], found))
    }

    /// Plans candidates in full, with fast memory for speed.
    fn finish(&mut self, numbers: &[usize]) -> Result<Vec<Finished>, CompileError> {
        let Request { target, options } = self.request;
        let fast_memory = options.fast_memory.options(Objective::Time, target);
        let finished = self.each(numbers, |i| {
            Ok((i, self.request.with_fast_memory(self.plan(i)?, fast_memory.as_ref())?))
        })?;
        for (i, found) in &finished {
            self.legal[*i].price = Some(found.price);
        }
        Ok(finished)
    }

    fn plan(&self, number: usize) -> Result<Solution, CompileError> {
        let setting = self.legal[number].setting;
        let program = self.memo.program(setting);
        self.measure(program, setting, self.n_steps(Until::Legal))?;
        self.request.plan(program, Depth::Full)
    }

    fn seconds(&self, numbers: &[usize]) -> Result<Vec<f64>, CompileError> {
        self.each(numbers, |i| self.request.seconds(self.memo.program(self.legal[i].setting)))
    }

    fn glances(&self, numbers: &[usize]) -> Result<Vec<Price>, CompileError> {
        self.each(numbers, |i| self.request.glance(self.memo.program(self.legal[i].setting)))
    }

    /// Applies a function to each item; results are in the order of the items.
    fn each<T: Copy + Send + Sync, R: Send>(
        &self,
        of: &[T],
        find: impl Fn(T) -> Result<R, CompileError> + Sync,
    ) -> Result<Vec<R>, CompileError> {
        parallel::map(self.request.options.threads, of.to_vec(), find).into_iter().collect()
    }

    /// The numbers of the legal candidates up to a purpose.
    fn numbers(&self, most: Purpose) -> Vec<usize> {
        (0..self.legal.len()).filter(|&i| self.legal[i].purpose <= most).collect()
    }

    /// The settings of the usual way, one for each first guess that gives a new order, and these guesses. If none does,
    /// the order of the text is the only one.
    fn different_orders(&self) -> (Vec<FirstGuess>, Vec<SettingId>) {
        let usual = self.open.iter().filter(|candidate| candidate.purpose == Purpose::Usual);
        let usual = usual.map(|candidate| (candidate.guess, candidate.setting));
        let mut different: Vec<(FirstGuess, SettingId)> = Vec::new();
        for (guess, setting) in usual.clone().filter(|&(_, setting)| self.order(setting).is_some()) {
            let program = |setting| self.memo.program(setting);
            let is_known = |&(known, at)| known == guess || Arc::ptr_eq(program(at), program(setting));
            if !different.iter().any(is_known) {
                different.push((guess, setting));
            }
        }
        if different.is_empty() { usual.take(1).unzip() } else { different.into_iter().unzip() }
    }

    /// The first guess that ordered the program of a setting; `None` if the guess gave no order.
    fn order(&self, setting: SettingId) -> Option<FirstGuess> {
        self.memo.done(setting)[self.n_steps(Until::Ordered) - 1].order
    }

    /// The fingerprint of a setting's program after fusion.
    fn fused(&self, setting: SettingId) -> Option<u64> {
        self.memo.done(setting)[self.n_steps(Until::Fused) - 1].fused
    }

    /// Runs the candidates of a purpose until they can be planned. Of candidates with equal programs after fusion, only
    /// the first continues, since one plan suffices.
    fn add(&mut self, purpose: Purpose) -> Result<(), CompileError> {
        let asked = self.settings(|candidate| candidate.purpose == purpose);
        self.reach(&asked, self.n_steps(Until::Fused))?;
        let asked: Vec<Candidate> =
            self.open.extract_if(.., |candidate| candidate.purpose == purpose).collect();
        for candidate in asked {
            let fused = self.fused(candidate.setting);
            match self.legal.iter().any(|known| self.fused(known.setting) == fused) {
                true => self.memo.forget(candidate.setting),
                false => self.legal.push(candidate),
            }
        }
        let settings: Vec<SettingId> = self.legal.iter().map(|candidate| candidate.setting).collect();
        self.reach(&settings, self.n_steps(Until::Legal))
    }

    /// Drops the open candidates that fail a test.
    fn keep(&mut self, is_kept: impl Fn(&Candidate) -> bool) {
        let given_up = self.open.extract_if(.., |candidate| !is_kept(candidate));
        given_up.for_each(|candidate| self.memo.forget(candidate.setting));
    }

    /// The settings of some open candidates.
    fn settings(&self, is_asked: impl Fn(&Candidate) -> bool) -> Vec<SettingId> {
        let asked = self.open.iter().filter(|candidate| is_asked(candidate));
        asked.map(|candidate| candidate.setting).collect()
    }

    fn reach(&mut self, settings: &[SettingId], n_steps: usize) -> Result<(), CompileError> {
        let request = self.request;
        self.memo
            .reach(settings, n_steps, request.options.threads, |program, step| request.take(program, step))
    }

    /// Measures the program after some steps of a setting.
    fn measure(
        &self,
        program: &PricedModule,
        setting: SettingId,
        n_steps: usize,
    ) -> Result<(), CompileError> {
        let is_legal = n_steps == self.n_steps(Until::Legal);
        self.request.measure(program, &self.memo.done(setting)[..n_steps], is_legal)
    }

    fn n_steps(&self, until: Until) -> usize {
        until.n_steps(&self.request.options.stages)
    }

    /// The stages of a legal candidate.
    fn stages(&self, number: usize) -> impl Iterator<Item = Stage> {
        self.memo.done(self.legal[number].setting).iter().filter_map(|done| done.stage())
    }

    /// The stage that lists the alternatives of the chosen program.
    fn others(&self, number: usize, found: &Solution) -> Stage {
        let tried = self.legal.iter().enumerate().map(|(i, candidate)| {
            let &Candidate { variant, setting, fusion, price, .. } = candidate;
            let guess = self.order(setting).unwrap_or(FirstGuess::Text);
            let is_chosen = i == number;
            let price = if is_chosen { Some(found.price) } else { price };
            TriedProgram { variant, guess, fusion, price, is_chosen }
        });
        let tried = TriedPrograms { programs: tried.collect(), guesses: self.guesses.clone() };
        // Includes measurements from earlier on.
        let own = self.stages(number).skip(self.n_steps(Until::LaidOut)).chain(found.stages.iter().cloned());
        let time = self.start.elapsed().saturating_sub(own.map(|stage| stage.time).sum());
        self.request.stage("other programs", time, Some(found.price.total), StageReport::Programs(tried))
    }
}

/// Drops points of a frontier until at most a number remain: each time the one whose neighbors are closest to each
/// other in bytes.
fn thin(points: &mut Vec<usize>, most: usize, prices: &[Price]) {
    while points.len() > most.max(2) {
        let gap = |i: &usize| prices[points[i + 1]].total.0 - prices[points[i - 1]].total.0;
        let densest = (1..points.len() - 1).min_by_key(gap).expect("there are inner points");
        points.remove(densest);
    }
}
