//! The whole assignment: choose, apply, repair, and choose again.

use memplan_analysis::{Costs, Durations, Facts, LiveRange, Machine, RunEstimate, ValueId};
use memplan_ir::{EntitySet, Module, Position};
use memplan_memory::{FastMemory, FastMemoryDecision, MemorySpaceId, Target};

use crate::candidate::Candidate;
use crate::choice::Choice;
use crate::decisions::{Decisions, decisions};
use crate::footprint::Footprint;
use crate::model::Model;
use crate::prices::Prices;
use crate::repair::Place;
use crate::search::Assignment;
use crate::{Carrier, FastMemoryOptions, FastMemoryReport, Objective, Selection, Trial, resident};

/// A program with fast memory assigned.
#[derive(Clone, Debug)]
pub struct Assigned {
    /// The decisions.
    pub decisions: Vec<FastMemoryDecision>,
    /// The decisions carried out.
    pub trial: Trial,
    /// The assignment, in figures and names.
    pub report: FastMemoryReport,
}

/// Decides which values are in fast memory, and for which segments of their live ranges.
///
/// The module is in the order of its schedule, as `facts` are, and nothing is in fast memory yet. Transfers start where
/// operations of that order leave main memory time, not before the parameters and constants of a computation. Takes time
/// close to n log n in the module, times rounds that the options bound, beside what the carrier takes.
///
/// # Errors
/// Those of the carrier.
///
/// # Panics
/// When the target has no fast memory, or the facts are about another module.
pub fn assign<C: Carrier>(
    module: &Module,
    facts: &Facts,
    target: &Target,
    options: &FastMemoryOptions,
    carrier: &C,
) -> Result<Assigned, C::Error> {
    let fast = target.fast_memory.expect("the target has fast memory");
    let costs = &Costs::new(module, &facts.graph, &facts.in_place, target);
    let durations = Durations::new(module, &facts.graph, costs, target);
    let model = Model::new(module, facts, costs, target, options, &durations, None);
    let mut solver = Solver { module, facts, costs, target, fast, options, carrier, model };
    let plain = solver.solve(None)?.expect("there is no limit");
    // XLA decides once.
    let plain = match options.selection {
        Selection::ByPrice => solver.solve_again(plain)?,
        Selection::AsXla => plain,
    };
    let best = match options.objective {
        Objective::Traffic => plain,
        Objective::Footprint => solver.lower_footprint(plain)?,
    };
    let Solution { choices, decisions, trial, mut report, .. } = solver.add_residents(best)?;
    report.list(module, facts, &solver.model.candidates, &choices, options);
    Ok(Assigned { decisions, trial, report })
}

/// Choices, carried out and packed.
struct Solution {
    choices: Vec<Choice>,
    decisions: Vec<FastMemoryDecision>,
    trial: Trial,
    report: FastMemoryReport,
    /// The price of a run of the program.
    price: f64,
}

struct Solver<'a, C> {
    module: &'a Module,
    facts: &'a Facts,
    costs: &'a Costs,
    target: &'a Target,
    fast: FastMemory,
    options: &'a FastMemoryOptions,
    carrier: &'a C,
    model: Model,
}

impl<C: Carrier> Solver<'_, C> {
    /// Chooses, carries out and packs. `None` when a run would cost as much as a limit, or more.
    fn solve(&self, limit: Option<f64>) -> Result<Option<Solution>, C::Error> {
        let (assignment, prices) = self.choose();
        self.fit(assignment, &prices, limit)
    }

    /// Choices that together hold no more than the capacity at any moment, and the prices that led to them.
    fn choose(&self) -> (Assignment<'_>, Prices) {
        let (model, options) = (&self.model, self.options);
        let mut best = Assignment::empty(model, options);
        if options.selection == Selection::AsXla {
            best.fill_as_xla();
            return (best, Prices::find(model, options, 0.0, 0));
        }
        let everything = best.traffic();
        best.fill(&Prices::find(model, options, everything, 1));
        let prices = Prices::find(model, options, best.traffic(), options.prices.rounds);
        let mut priced = Assignment::empty(model, options);
        priced.fill(&prices);
        if priced.traffic() <= best.traffic() {
            best = priced;
        }
        best.improve(&prices);
        // Two results may have counted on the same operand's bytes.
        best.shrink(&prices, options.capacity);
        (best, prices)
    }

    /// Carries out and packs. Candidates that the packing puts beyond the memory's end, or that are in their way, choose
    /// again, a few times; then all candidates get less capacity as long as packing takes more than there is. `None`
    /// when a run would cost as much as a limit, or more.
    fn fit(
        &self,
        mut assignment: Assignment<'_>,
        prices: &Prices,
        limit: Option<f64>,
    ) -> Result<Option<Solution>, C::Error> {
        let FastMemoryOptions { capacity, repair, .. } = self.options;
        let mut allowed = *capacity;
        for round in 0.. {
            let (solution, places) = self.try_out(assignment.choices.clone(), prices.lower_bound)?;
            let height = solution.report.height.0;
            if limit.is_some_and(|limit| solution.price >= limit) {
                return Ok(None);
            }
            if height <= *capacity || allowed == 0 {
                return Ok(Some(solution));
            }
            let is_repaired = round < repair.attempts && assignment.repair(prices, places);
            if !is_repaired {
                allowed = allowed.saturating_sub((height - capacity).max(capacity / repair.retreat));
                assignment.shrink(prices, allowed);
            }
        }
        unreachable!("what is allowed comes down to nothing")
    }

    /// Carries choices out and packs them. Gives also where candidates and scratch are in fast memory.
    fn try_out(&self, choices: Vec<Choice>, lower_bound: f64) -> Result<(Solution, Vec<Place>), C::Error> {
        let decisions = decisions(self.module, self.facts, &self.model.candidates, &choices);
        let trial = self.carrier.carry_out(&decisions.list)?;
        let report = FastMemoryReport {
            height: trial.height,
            traffic: choices.iter().map(|choice| choice.moved).sum(),
            lower_bound,
            ..FastMemoryReport::count(&decisions.list)
        };
        let (price, places) = (self.price(&trial), self.places(&trial, &decisions));
        Ok((Solution { choices, decisions: decisions.list, trial, report, price }, places))
    }

    /// The price of a run: bytes moved, plus its time in the bytes that main memory could move meanwhile.
    fn price(&self, Trial { module, facts, .. }: &Trial) -> f64 {
        let costs = Costs::new(module, &facts.graph, &facts.in_place, self.target);
        let run = RunEstimate::new(module, &facts.graph, &costs, self.target);
        let per_byte = Machine::new(self.target).memory_seconds(MemorySpaceId::MAIN, 1.0);
        let time = if per_byte > 0.0 { run.seconds / per_byte } else { 0.0 };
        run.main_memory_bytes + self.options.time_weight * time
    }

    /// The addresses and times of candidates and scratch in fast memory.
    fn places(&self, trial: &Trial, decisions: &Decisions) -> Vec<Place> {
        let Trial { facts, plan, .. } = trial;
        let place = |(decision, position): &(usize, Position)| {
            let slice = plan.slices.get(position)?;
            let value = facts.flow.find(position.instruction, &position.index)?;
            let (offset, end) = (slice.offset.0, slice.end().0);
            let candidate = Some(decisions.candidates[*decision]);
            Some(Place { candidate, offset, end, range: facts.live.of(value) })
        };
        let mut places: Vec<Place> = trial.placed.iter().filter_map(place).collect();
        for &instruction in plan.scratch.keys() {
            if let Some(slice) = plan.scratch_in(instruction, self.fast.space) {
                let start = facts.line.time(instruction);
                let range = LiveRange { start, end: start + 1 };
                places.push(Place { candidate: None, offset: slice.offset.0, end: slice.end().0, range });
            }
        }
        places
    }

    /// Solves again, now that a first solution says how long operations take, how much time that leaves to transfers,
    /// and which arrays stay in main memory, so that slices of them may be prefetched. Gives the better of the two
    /// solutions, and leaves its model.
    fn solve_again(&mut self, first: Solution) -> Result<Solution, C::Error> {
        let &mut Solver { module, facts, costs, target, options, .. } = self;
        let Trial { module: tried, facts: found, .. } = &first.trial;
        let tried_costs = Costs::new(tried, &found.graph, &found.in_place, target);
        let durations = Durations::new(tried, &found.graph, &tried_costs, target);
        let candidates = self.model.candidates.iter().zip(&first.choices);
        let fast = candidates.filter(|(_, choice)| choice.is_fast()).map(|(c, _)| c);
        let values = fast.filter_map(|candidate| match candidate {
            Candidate::Value(candidate) => Some(&candidate.values),
            Candidate::Slice(_) => None,
        });
        let mut fast: EntitySet<ValueId> = EntitySet::new();
        fast.extend(values.flatten().copied());
        let model = Model::new(module, facts, costs, target, options, &durations, Some(&fast));
        let model = std::mem::replace(&mut self.model, model);
        let second = self.solve(Some(first.price))?;
        if second.is_none() {
            self.model = model;
        }
        Ok(second.unwrap_or(first))
    }

    /// Puts a price on main memory where most of it is taken, again and again, and keeps what takes least.
    fn lower_footprint(&mut self, plain: Solution) -> Result<Solution, C::Error> {
        let all = self.carrier.temp_load()?.into_iter().map(|bytes| bytes.0).collect();
        let mut footprint = Footprint::new(all, &self.options.footprint);
        let mut lowest = (footprint.peak(&self.model.candidates, &plain.choices), None);
        let mut choices = plain.choices.clone();
        for _ in 0..self.options.footprint.rounds {
            if lowest.0 == 0 {
                break;
            }
            footprint.raise(&mut self.model.candidates, &choices);
            let (assignment, prices) = self.choose();
            choices = assignment.choices;
            let peak = footprint.peak(&self.model.candidates, &choices);
            if peak < lowest.0 {
                lowest = (peak, Some((choices.clone(), prices)));
            }
        }
        let Some((choices, prices)) = lowest.1 else {
            return Ok(plain);
        };
        let assignment = Assignment::of(&self.model, self.options, &choices);
        let low = self.fit(assignment, &prices, None)?;
        Ok(low.filter(|low| low.trial.total < plain.trial.total).unwrap_or(plain))
    }

    /// Lets parameters stay in fast memory from call to call, where nothing else has to leave for them.
    fn add_residents(&self, mut best: Solution) -> Result<Solution, C::Error> {
        let options = self.options;
        let mut eligible =
            resident::eligible(self.module, self.facts, self.costs, &self.model, &best.choices);
        eligible.truncate(options.cross_program_prefetches.saturating_add(options.refused_residents));
        for (i, view) in eligible {
            if best.report.residents >= options.cross_program_prefetches {
                break;
            }
            let choice = resident::choice(self.module, &self.model, view, best.report.residents);
            let mut assignment = Assignment::of(&self.model, options, &best.choices);
            if !assignment.try_instead(i, choice) {
                continue;
            }
            let (next, _) = self.try_out(assignment.choices, best.report.lower_bound)?;
            if next.report.height.0 <= options.capacity && next.trial.total <= best.trial.total {
                best = next;
            }
        }
        Ok(best)
    }
}
