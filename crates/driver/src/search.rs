//! The programs that `compile` chooses from: every variant of its stages, carried on as long as it may be the best.
//!
//! ```text
//!   stages:   front ──┬── order ──┬── recompute ── fuse ── insert copies ──┬── plan ── fast memory
//!                     │           │                                        │
//!   variants branch   where they differ first                              what cannot be the best any more ends here
//! ```
//!
//! Seconds are known as soon as a program is legal, bytes at a glance after a short search for an order. Only what is
//! still promising then is planned in full.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use memplan_ir::{Module, fingerprint};
use memplan_memory::{Bytes, MemoryPlan, MemorySpaceId, Target};

use crate::compile::{CompileError, CompileOptions};
use crate::objective::{Objective, Price, undominated};
use crate::parallel;
use crate::program::{Depth, Found, Program};
use crate::report::{StageReport, TriedGuess, TriedProgram, TriedPrograms};
use crate::variants::{Way, Ways};

/// A program that can be planned, and what is known of it.
struct Candidate<'a> {
    program: Program<'a>,
    /// The fingerprint of the program as it was fused.
    fused: u64,
    /// What it comes to at a glance.
    glance: OnceLock<Price>,
    /// What it comes to in full.
    price: Option<Price>,
    /// Whether it was planned in full with fast memory for speed.
    is_finished: bool,
}

/// A search for programs.
pub(crate) struct Search<'a> {
    target: &'a Target,
    options: &'a CompileOptions,
    ways: &'a Ways,
    /// The program after as many stages of the usual front, where a variant branches off.
    fronts: Vec<Option<Program<'a>>>,
    /// The program in the order of each first guess, before anything is computed again.
    ordered: Vec<Program<'a>>,
    guesses: Vec<TriedGuess>,
    /// No two of them are equal. Those of the usual way come first.
    candidates: Vec<Candidate<'a>>,
    /// How many are of the usual way, a way to fuse each.
    n_usual: usize,
    /// The numbers of those that are usual or may be faster, once those were made.
    fast: Option<Vec<usize>>,
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
        let ordered = front.in_each_order()?;
        let (mut back, guesses) = recomputed_in_best_order(&ordered, options.threads)?;
        back.measure()?;
        let usual = back.fuse_in_each_way(options.threads).into_iter().collect::<Result<Vec<_>, _>>()?;
        let (candidates, fast) = (Vec::new(), None);
        let mut search =
            Search { target, options, ways, fronts, ordered, guesses, candidates, n_usual: 0, fast, start };
        search.add(usual)?;
        search.n_usual = search.candidates.len();
        Ok(search)
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
        let smaller = self.smaller()?;
        self.add(smaller)?;
        let all: Vec<usize> = (0..self.candidates.len()).collect();
        let prices = self.glances(&all)?;
        let mut kept = undominated(&prices);
        thin(&mut kept, self.options.points, &prices);
        kept.retain(|&i| !self.candidates[i].is_finished);
        found.extend(self.finish(&kept)?);
        Ok(found)
    }

    /// The programs of which one is the best: the fastest, and of those that are not much slower the smallest.
    fn finalists(&mut self) -> Result<Vec<Found<'a>>, CompileError> {
        // Where nobody knows how long the program takes, as with loops without end in loops that never run, nothing is
        // faster than the usual way.
        let usual = self.candidates[0].program.seconds()?;
        if !usual.is_finite() {
            return self.finish(&(0..self.n_usual).collect::<Vec<_>>());
        }
        let others = self.fast()?.split_off(1);
        let seconds =
            parallel::map(self.options.threads, others.clone(), |i| self.candidates[i].program.seconds());
        let seconds = seconds.into_iter().collect::<Result<Vec<_>, CompileError>>()?;
        let mut timed = vec![(usual, 0)];
        timed.extend(seconds.into_iter().zip(others));
        timed.sort_by(|a, b| a.0.total_cmp(&b.0));
        if self.options.objective == Objective::Balanced {
            self.leave_too_large(&mut timed)?;
        }
        let limit = timed[0].0 * (1.0 + self.options.objective.tolerance() + self.unknown_share());
        timed.truncate(timed.partition_point(|(seconds, _)| *seconds <= limit));
        let mut fast: Vec<usize> = timed.into_iter().map(|(_, i)| i).collect();
        if fast.len() > self.options.finalists {
            let others = fast.split_off(1);
            let glances = self.glances(&others)?;
            let mut glances: Vec<(Bytes, usize)> =
                glances.iter().zip(others).map(|(glance, i)| (glance.total, i)).collect();
            glances.sort_by_key(|(total, _)| *total);
            glances.truncate(self.options.finalists.saturating_sub(1));
            fast.extend(glances.into_iter().map(|(_, i)| i));
        }
        self.finish(&fast)
    }

    /// Leaves the fastest programs as long as they need too many bytes beside the usual ones.
    fn leave_too_large(&self, timed: &mut Vec<(f64, usize)>) -> Result<(), CompileError> {
        let is_usual = |i: usize| i < self.n_usual;
        // Nothing is to be compared where the fastest program is a usual one.
        if is_usual(timed[0].1) {
            return Ok(());
        }
        let usual: Vec<usize> = (0..self.n_usual).collect();
        let least = self.glances(&usual)?.iter().map(|price| price.total.0).min();
        let most = least.expect("there is a usual way") as f64 * (1.0 + self.options.most_growth);
        while !is_usual(timed[0].1) && self.candidates[timed[0].1].glance()?.total.0 as f64 > most {
            timed.remove(0);
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
        let usual = self.candidates[..self.n_usual].iter().map(|candidate| candidate.program.clone());
        let plans = parallel::map(self.options.threads, usual.collect(), |program: Program<'a>| {
            program.plan(Depth::Full)
        });
        let mut plans = plans.into_iter().collect::<Result<Vec<_>, CompileError>>()?;
        let prices: Vec<Price> = plans.iter().map(|found| found.price).collect();
        let chosen = Objective::Memory.choose(&prices).expect("there is a way to fuse");
        for (candidate, price) in self.candidates.iter_mut().zip(prices) {
            candidate.price.get_or_insert(price);
        }
        let fast_memory = self.options.fast_memory.options(Objective::Memory, self.target);
        plans.swap_remove(chosen).with_fast_memory(fast_memory.as_ref())
    }

    /// Plans candidates in full.
    fn finish(&mut self, candidates: &[usize]) -> Result<Vec<Found<'a>>, CompileError> {
        let fast_memory = self.options.fast_memory.options(Objective::Time, self.target);
        let programs = candidates.iter().map(|&i| self.candidates[i].program.clone()).collect();
        let found = parallel::map(self.options.threads, programs, |program: Program<'a>| {
            program.plan(Depth::Full)?.with_fast_memory(fast_memory.as_ref())
        });
        let found = found.into_iter().collect::<Result<Vec<_>, _>>()?;
        for (&i, found) in candidates.iter().zip(&found) {
            (self.candidates[i].price, self.candidates[i].is_finished) = (Some(found.price), true);
        }
        Ok(found)
    }

    fn glances(&self, candidates: &[usize]) -> Result<Vec<Price>, CompileError> {
        let glance = |i: usize| self.candidates[i].glance();
        parallel::map(self.options.threads, candidates.to_vec(), glance).into_iter().collect()
    }

    /// The numbers of the candidates of the usual way and of those that may be faster.
    fn fast(&mut self) -> Result<Vec<usize>, CompileError> {
        if self.fast.is_none() {
            let guess = self.guesses.iter().position(|guess| guess.is_chosen).expect("one is chosen");
            let programs = self.varied(&self.ways.faster, &self.ordered[guess])?;
            self.add(programs)?;
            self.fast = Some((0..self.candidates.len()).collect());
        }
        Ok(self.fast.clone().expect("they are made above"))
    }

    /// The fused programs that may need fewer bytes, in the order of each first guess: what to recompute depends much on
    /// the order.
    fn smaller(&self) -> Result<Vec<Program<'a>>, CompileError> {
        let mut programs = Vec::new();
        for ordered in &self.ordered {
            programs.extend(self.varied(&self.ways.smaller, ordered)?);
        }
        Ok(programs)
    }

    /// The fused programs of some variants, in the order of an ordered program.
    fn varied(&self, ways: &'a [Way], ordered: &Program<'a>) -> Result<Vec<Program<'a>>, CompileError> {
        let programs = parallel::map(self.options.threads, ways.iter().collect(), |way: &'a Way| {
            let mut program = match &self.fronts[way.shared] {
                _ if way.shared + 1 == self.fronts.len() => ordered.clone(),
                front => front.clone().expect("a way branches off here"),
            };
            program.way = way;
            for stage in way.stages.front.get(way.shared..).unwrap_or_default() {
                program.stage(stage)?;
            }
            if way.shared + 1 < self.fronts.len() {
                program = program.guess(ordered.guess)?.unwrap_or(program);
            }
            program.recompute()?;
            program.fuse_in_each_way(1).into_iter().collect::<Result<Vec<_>, _>>()
        });
        Ok(programs.into_iter().collect::<Result<Vec<_>, CompileError>>()?.into_iter().flatten().collect())
    }

    /// Adds those programs that differ from all candidates: what is planned once need not be planned again.
    fn add(&mut self, programs: Vec<Program<'a>>) -> Result<(), CompileError> {
        let mut known: Vec<u64> = self.candidates.iter().map(|candidate| candidate.fused).collect();
        let mut new = Vec::new();
        for program in programs {
            let fused = fingerprint(&program.module);
            if !known.contains(&fused) {
                known.push(fused);
                new.push((fused, program));
            }
        }
        let new = parallel::map(self.options.threads, new, |(fused, program): (u64, Program<'a>)| {
            let (program, glance) = (program.legalize()?, OnceLock::new());
            Ok(Candidate { program, fused, glance, price: None, is_finished: false })
        });
        self.candidates.extend(new.into_iter().collect::<Result<Vec<_>, CompileError>>()?);
        Ok(())
    }

    /// Notes with a program what it was chosen from.
    fn note(self, mut found: Found<'a>) -> Found<'a> {
        let program = &mut found.program;
        let name = |program: &Program<'_>| (program.way.name, program.guess, program.fusion);
        let tried = self.candidates.iter().map(|Candidate { program: other, price, .. }| {
            let is_chosen = name(other) == name(program);
            let price = if is_chosen { Some(found.price) } else { *price };
            let (variant, guess, fusion) = name(other);
            TriedProgram { variant, guess, fusion, price, is_chosen }
        });
        let tried = TriedPrograms { programs: tried.collect(), guesses: self.guesses };
        // What was measured on the way counts here, too.
        let n_front = self.ways.usual.stages.front.len() + 1;
        let own: Duration = program.stages[n_front..].iter().map(|stage| stage.time).sum();
        let others = self.start.elapsed().saturating_sub(own);
        program.note_total("other programs", others, found.price.total, StageReport::Programs(tried));
        found
    }
}

impl Candidate<'_> {
    fn glance(&self) -> Result<Price, CompileError> {
        if let Some(&price) = self.glance.get() {
            return Ok(price);
        }
        let price = self.program.clone().plan(Depth::Glance)?.price;
        Ok(*self.glance.get_or_init(|| price))
    }
}

/// Recomputes rather than keeps, under the first guess that comes to the smallest plan at a glance.
fn recomputed_in_best_order<'a>(
    ordered: &[Program<'a>],
    threads: usize,
) -> Result<(Program<'a>, Vec<TriedGuess>), CompileError> {
    let is_decided = ordered.len() == 1;
    let glances = parallel::map(threads, ordered.iter().collect(), |ordered: &Program<'a>| {
        let mut back = ordered.clone();
        back.recompute()?;
        let found = match is_decided {
            true => None,
            false => {
                let fused = back.clone().fuse(back.way.stages.fusions.first().copied())?;
                Some(fused.legalize()?.plan(Depth::Glance)?.price.total)
            }
        };
        Ok((back, found))
    });
    let mut glances = glances.into_iter().collect::<Result<Vec<_>, CompileError>>()?;
    let chosen = (0..glances.len()).min_by_key(|&i| glances[i].1).expect("there is a guess");
    let tried = glances.iter().enumerate().map(|(i, (program, total))| TriedGuess {
        guess: program.guess,
        total: *total,
        is_chosen: i == chosen,
    });
    let tried = tried.collect();
    Ok((glances.swap_remove(chosen).0, tried))
}

/// What a plan needs, and the less that it may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Excess {
    /// Bytes of everything, against a limit; of main memory, against what it has for programs.
    pub needed: Bytes,
    /// The limit, or what there is.
    pub available: Bytes,
}

/// How a plan exceeds a limit, or what main memory has for programs. `None` where it fits.
pub fn exceeded(plan: &MemoryPlan, target: &Target, limit: Option<Bytes>) -> Option<Excess> {
    let usable = target.space(MemorySpaceId::MAIN).and_then(|space| space.usable());
    let needed = plan.spaces.iter().find(|space| space.space == MemorySpaceId::MAIN);
    // Whether the parts fit their tiles is not a question of the sum.
    let usable = usable.filter(|_| target.tiles.is_none());
    let of_limit = limit.map(|available| Excess { needed: plan.totals.total, available });
    let of_main = needed.zip(usable).map(|(main, available)| Excess { needed: main.total, available });
    of_limit.into_iter().chain(of_main).find(|excess| excess.needed > excess.available)
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
