//! The programs that `compile` chooses from: every variant of its stages, carried on as long as it may be the best.
//!
//! ```text
//!   stages:   front ──┬── order ──┬── recompute ── fuse ──┬── plan ── fast memory
//!                     │           │                       │
//!   variants branch   where they differ first            those that cannot be the best any more end here
//! ```
//!
//! Seconds are known as soon as a program is fused, bytes at a glance after a short search for an order. Only what is
//! still promising then is planned in full.

use std::time::{Duration, Instant};

use memplan_fast_memory::FastMemoryOptions;
use memplan_ir::Module;
use memplan_memory::{Bytes, MemoryPlan, MemorySpaceId, Target};
use memplan_planner::Planned;

use crate::compile::{CompileError, CompileOptions};
use crate::objective::{Objective, Price, undominated};
use crate::parallel;
use crate::program::{Depth, Program};
use crate::report::{StageReport, TriedGuess, TriedProgram, TriedPrograms};
use crate::variants::{Way, Ways};

/// A program that was carried through to a plan.
#[derive(Clone)]
pub(crate) struct Found<'a> {
    pub(crate) program: Program<'a>,
    pub(crate) planned: Planned,
    pub(crate) price: Price,
}

/// A search for programs.
pub(crate) struct Search<'a> {
    target: &'a Target,
    options: &'a CompileOptions,
    ways: &'a Ways,
    /// The program after as many stages of the usual front, where a variant branches off.
    fronts: Vec<Option<Program<'a>>>,
    /// The program in the order of the chosen first guess, before anything is computed again.
    ordered: Program<'a>,
    guesses: Vec<TriedGuess>,
    /// The programs of the usual way, a way to fuse each.
    usual: Vec<Program<'a>>,
    tried: Vec<TriedProgram>,
    start: Instant,
}

impl<'a> Search<'a> {
    /// Follows the usual way up to fused programs.
    pub(crate) fn begin(
        module: Module,
        target: &'a Target,
        options: &'a CompileOptions,
        ways: &'a Ways,
    ) -> Result<Search<'a>, CompileError> {
        let mut front = Program::new(module, target, options, &ways.usual);
        front.note("before", Duration::ZERO, StageReport::Nothing);
        front.measure()?;
        let branches = |n: usize, front: &Program<'a>| ways.branch_after(n).then(|| front.clone());
        let mut fronts = vec![branches(0, &front)];
        for stage in &ways.usual.stages.front {
            front.stage(stage)?;
            front.measure()?;
            fronts.push(branches(fronts.len(), &front));
        }
        let start = Instant::now();
        let (ordered, mut back, guesses) = front.recompute_under_best_guess()?;
        back.measure()?;
        let usual = distinct(back.fuse_in_each_way(options.threads))?;
        Ok(Search { target, options, ways, fronts, ordered, guesses, usual, tried: Vec::new(), start })
    }

    /// The program that the options ask for, or the smallest that was found where none fits.
    pub(crate) fn best(mut self) -> Result<Found<'a>, CompileError> {
        let Search { target, options, .. } = self;
        let fits = |found: &Found<'_>| exceeded(&found.planned.plan, target, options.memory_limit).is_none();
        let mut objective = options.objective;
        let mut found = match (objective, options.memory_limit) {
            (Objective::Memory, _) => vec![self.smallest()?],
            (_, None) => self.finalists()?,
            (_, Some(_)) => Vec::new(),
        };
        if !found.iter().any(fits) {
            // More memory must never give a slower program, so what is chosen from does not depend on the limit.
            (objective, found) = (Objective::Time, self.all()?);
        }
        if found.iter().any(fits) {
            found.retain(fits);
        } else {
            objective = Objective::Memory;
        }
        let prices: Vec<Price> = found.iter().map(|found| found.price).collect();
        let chosen = objective.choose(&prices).expect("the usual way leads to a program");
        Ok(self.note(found.swap_remove(chosen)))
    }

    /// Every program that is worth planning, whatever is asked for.
    pub(crate) fn all(&mut self) -> Result<Vec<Found<'a>>, CompileError> {
        let mut found = self.finalists()?;
        found.push(self.smallest()?);
        let mut programs = self.varied(&self.ways.faster)?;
        programs.extend(self.varied(&self.ways.smaller)?);
        let programs = distinct(self.usual.iter().cloned().chain(programs).map(Ok))?;
        let glances = parallel::map(self.options.threads, programs, |program| {
            let glance = program.glance()?;
            Ok((program, glance))
        });
        let glances = glances.into_iter().collect::<Result<Vec<_>, CompileError>>()?;
        let prices: Vec<Price> = glances.iter().map(|(_, price)| *price).collect();
        let mut kept = undominated(&prices);
        thin(&mut kept, self.options.points, &prices);
        let mut is_kept = vec![false; glances.len()];
        kept.into_iter().for_each(|i| is_kept[i] = true);
        let (kept, left): (Vec<_>, Vec<_>) =
            glances.into_iter().zip(is_kept).partition(|(_, is_kept)| *is_kept);
        left.iter().for_each(|((program, _), _)| self.leave(program));
        let kept = kept.into_iter().map(|((program, _), _)| program).collect();
        found.extend(self.finish(kept)?);
        Ok(found)
    }

    /// The programs of which one is the best: the fastest, and of those that are not much slower the smallest.
    fn finalists(&mut self) -> Result<Vec<Found<'a>>, CompileError> {
        let threads = self.options.threads;
        let varied = self.varied(&self.ways.faster)?;
        let programs = distinct(self.usual.iter().cloned().chain(varied).map(Ok))?;
        let timed = parallel::map(threads, programs, |program| Ok((program.seconds()?, program)));
        let mut timed = timed.into_iter().collect::<Result<Vec<_>, CompileError>>()?;
        timed.sort_by(|a, b| a.0.total_cmp(&b.0));
        if self.options.objective == Objective::Balanced {
            self.leave_too_large(&mut timed)?;
        }
        let limit = timed[0].0 * (1.0 + self.options.objective.tolerance() + self.unknown_share());
        let n_fast = timed.partition_point(|(seconds, _)| *seconds <= limit);
        timed.split_off(n_fast).iter().for_each(|(_, program)| self.leave(program));
        let programs = timed.into_iter().map(|(_, program)| program);
        let mut fast: Vec<Program<'a>> = programs.collect();
        if fast.len() > self.options.finalists {
            let others = fast.split_off(1);
            let glances = parallel::map(threads, others, |program| Ok((program.glance()?.total, program)));
            let mut glances = glances.into_iter().collect::<Result<Vec<_>, CompileError>>()?;
            glances.sort_by_key(|(total, _)| *total);
            let left = glances.split_off(self.options.finalists.saturating_sub(1));
            left.iter().for_each(|(_, program)| self.leave(program));
            fast.extend(glances.into_iter().map(|(_, program)| program));
        }
        self.finish(fast)
    }

    /// Leaves the fastest programs as long as they need too many bytes beside the usual ones.
    fn leave_too_large(&mut self, timed: &mut Vec<(f64, Program<'a>)>) -> Result<(), CompileError> {
        let is_usual = |program: &Program<'_>| std::ptr::eq(program.way, &self.ways.usual);
        // Nothing is to be compared where the fastest program is a usual one.
        if is_usual(&timed[0].1) {
            return Ok(());
        }
        let threads = self.options.threads;
        let totals =
            parallel::map(threads, self.usual.iter().collect(), |program: &Program<'_>| program.glance());
        let totals = totals.into_iter().collect::<Result<Vec<_>, CompileError>>()?;
        let least = totals.iter().map(|price| price.total.0).min().expect("there is a usual way");
        let most = least as f64 * (1.0 + self.options.most_growth);
        while !is_usual(&timed[0].1) && timed[0].1.glance()?.total.0 as f64 > most {
            let (_, program) = timed.remove(0);
            self.try_one(&program, None);
        }
        Ok(())
    }

    /// The share of a program's time that is not known before it has fast memory.
    fn unknown_share(&self) -> f64 {
        let fast_memory = self.options.fast_memory.options(Objective::Time, self.target);
        if fast_memory.is_some() { self.options.fast_memory_share } else { 0.0 }
    }

    /// The program of fewest bytes that the usual way leads to.
    fn smallest(&mut self) -> Result<Found<'a>, CompileError> {
        let plans = parallel::map(self.options.threads, self.usual.clone(), |program| {
            program.legalize_and_plan(Depth::Full)
        });
        let plans = plans.into_iter().collect::<Result<Vec<_>, CompileError>>()?;
        let prices: Vec<Price> = plans.iter().map(|(program, planned)| program.price(planned)).collect();
        let chosen = Objective::Memory.choose(&prices).expect("there is a way to fuse");
        plans.iter().zip(&prices).for_each(|((program, _), price)| self.try_one(program, Some(*price)));
        let fast_memory = self.options.fast_memory.options(Objective::Memory, self.target);
        let (program, planned) = plans.into_iter().nth(chosen).expect("it is one of them");
        Found::new(program, planned, fast_memory.as_ref())
    }

    /// Plans programs in full.
    fn finish(&mut self, programs: Vec<Program<'a>>) -> Result<Vec<Found<'a>>, CompileError> {
        let fast_memory = self.options.fast_memory.options(Objective::Time, self.target);
        let found = parallel::map(self.options.threads, programs, |program| {
            let (program, planned) = program.legalize_and_plan(Depth::Full)?;
            Found::new(program, planned, fast_memory.as_ref())
        });
        let found = found.into_iter().collect::<Result<Vec<_>, _>>()?;
        found.iter().for_each(|found| self.try_one(&found.program, Some(found.price)));
        Ok(found)
    }

    /// The fused programs of some variants.
    fn varied(&self, ways: &'a [Way]) -> Result<Vec<Program<'a>>, CompileError> {
        let programs = parallel::map(self.options.threads, ways.iter().collect(), |way: &'a Way| {
            let mut program = match &self.fronts[way.shared] {
                _ if way.shared + 1 == self.fronts.len() => self.ordered.clone(),
                front => front.clone().expect("a way branches off here"),
            };
            program.way = way;
            for stage in way.stages.front.get(way.shared..).unwrap_or_default() {
                program.stage(stage)?;
            }
            if way.shared + 1 < self.fronts.len() {
                program = program.guess(self.ordered.guess)?.unwrap_or(program);
            }
            program.recompute()?;
            program.fuse_in_each_way(1).into_iter().collect::<Result<Vec<_>, _>>()
        });
        Ok(programs.into_iter().collect::<Result<Vec<_>, CompileError>>()?.into_iter().flatten().collect())
    }

    fn leave(&mut self, program: &Program<'a>) {
        self.try_one(program, None);
    }

    fn try_one(&mut self, program: &Program<'a>, price: Option<Price>) {
        let (variant, fusion) = (program.way.name, program.fusion);
        self.tried.push(TriedProgram { variant, fusion, price, is_chosen: false });
    }

    /// Notes with a program what it was chosen from.
    fn note(mut self, mut found: Found<'a>) -> Found<'a> {
        let program = &mut found.program;
        let is_it = |tried: &&mut TriedProgram| {
            (tried.variant, tried.fusion, tried.price)
                == (program.way.name, program.fusion, Some(found.price))
        };
        self.tried.iter_mut().rev().find(is_it).into_iter().for_each(|tried| tried.is_chosen = true);
        // What was measured on the way counts here, too.
        let n_front = self.ways.usual.stages.front.len() + 1;
        let own: Duration = program.stages[n_front..].iter().map(|stage| stage.time).sum();
        let tried = TriedPrograms { guesses: self.guesses, programs: self.tried };
        let others = self.start.elapsed().saturating_sub(own);
        program.note_total("other programs", others, found.price.total, StageReport::Programs(tried));
        found
    }
}

impl<'a> Found<'a> {
    fn new(
        mut program: Program<'a>,
        planned: Planned,
        fast_memory: Option<&FastMemoryOptions>,
    ) -> Result<Found<'a>, CompileError> {
        let planned = program.assign_fast_memory(planned, fast_memory)?;
        let price = program.price(&planned);
        Ok(Found { program, planned, price })
    }
}

/// The bytes that a plan exceeds: a limit, or what main memory has for programs. `None` where it fits.
pub fn exceeded(plan: &MemoryPlan, target: &Target, limit: Option<Bytes>) -> Option<Bytes> {
    let usable = target.space(MemorySpaceId::MAIN).and_then(|space| space.usable());
    let needed = plan.spaces.iter().find(|space| space.space == MemorySpaceId::MAIN);
    // Whether the parts fit their tiles is not a question of the sum.
    let usable = usable.filter(|_| target.tiles.is_none());
    let of_limit = limit.filter(|limit| plan.totals.total > *limit);
    of_limit.or(usable.filter(|usable| needed.is_some_and(|needed| needed.total > *usable)))
}

/// Drops points of a frontier until there are no more than a number: each time the one whose neighbours are nearest to
/// each other in bytes.
fn thin(points: &mut Vec<usize>, most: usize, prices: &[Price]) {
    while points.len() > most.max(2) {
        let gap = |i: &usize| prices[points[i + 1]].total.0 - prices[points[i - 1]].total.0;
        let densest = (1..points.len() - 1).min_by_key(gap).expect("there are inner points");
        points.remove(densest);
    }
}

/// Those of some programs that differ from all before them: what is planned once need not be planned again.
pub(crate) fn distinct<'a>(
    programs: impl IntoIterator<Item = Result<Program<'a>, CompileError>>,
) -> Result<Vec<Program<'a>>, CompileError> {
    let mut kept: Vec<Program<'_>> = Vec::new();
    for next in programs {
        let next = next?;
        if kept.iter().all(|other| other.module != next.module) {
            kept.push(next);
        }
    }
    Ok(kept)
}
