//! Fast memory: which values, or which parts of their lives, are kept near the cores, and which transfers bring them
//! there and back.
//!
//! [`assign`] rewrites a scheduled module for a target with fast memory. Temporaries are written there and never reach
//! main memory; what is read more than once is fetched once; what is needed soon and then again much later is copied
//! out in between; loops work on state that is there. In the module, layouts say `S(n)`, and transfers are
//! `copy-start` and `copy-done`, so that the checker proves them and the evaluator runs them.
//!
//! ```text
//!   before                                    after
//!   a = f32[1024]{0} exponential(p)           a = f32[1024]{0:S(1)} exponential(p)
//!   b = f32[1024]{0} dot(w, a)                s = (f32[1024,1024]{1,0:S(1)}, ...) copy-start(w)
//!   c = f32[1024]{0} add(a, b)                ...
//!   r = f32[1024]{0} dot(w, c)                b = f32[1024]{0:S(1)} dot(copy-done(s), a)
//! ```
//!
//! A parameter that does not change from call to call, such as a weight, need not be fetched in each of them. Where there
//! is room for one all the time, its copy starts at the very beginning and is marked `cross_program_prefetch_index`; its
//! bytes of fast memory hold nothing else from begin to end, which is part of the live ranges and of what the checker
//! proves (`resident`). A runtime may skip such a copy when the last program on the device was this one, in the same
//! arena, and the parameter is the same buffer with the same contents; otherwise it makes the copy like any other.
//!
//! XLA's memory space assignment takes values one by one, the most promising first, and what is placed stays. Here
//! every instant of fast memory has a price (Lagrangian relaxation, `prices`); at given prices each value finds its
//! best way through its uses exactly (`choice`); prices show what is scarce, and bound what any assignment could do.
//! Choices are then made to fit (`search`), carried out (`rewrite`), and the arena of fast memory is packed like any
//! other; should it come out larger than the memory, what lies beyond its end takes the place of what saves least
//! (`repair`), or goes. Then all is decided again, now that it is known how much time there is for transfers: and kernels
//! that read slices of arrays in main memory are brought the slices alone, in loops one iteration ahead (`parts`).

mod candidates;
mod choice;
mod footprint;
mod idle;
mod model;
mod naked;
mod options;
mod parts;
mod prices;
mod repair;
mod resident;
mod rewrite;
mod room;
mod scalars;
mod search;
mod sharing;
mod worth;

use memplan_analysis::{
    CallGraph, Costs, Durations, Facts, InPlace, LiveRange, Machine, RunEstimate, ValueId,
};
use memplan_ir::{EntitySet, InstructionId, Module, Op, Position, Schedule, Users};
use memplan_memory::{Bytes, FastMemory, MemorySpaceId, Target};

use memplan_planner::{PlanError, SpacePlan, TakeOver, assign_space, storages, temp_load};

use choice::{Choice, Mode};
use footprint::Footprint;
use model::Model;
pub use naked::{NakedReport, naked};
pub use options::{Objective, Options as FastMemoryOptions, Selection};
use prices::Prices;
use repair::Place;
use search::Assignment;

/// What was assigned.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FastMemoryReport {
    /// Copies into fast memory.
    pub prefetches: usize,
    /// Those of them that a call need not make when the one before has left their result where it is.
    pub residents: usize,
    /// Parts that kernels read in fast memory, of arrays that are in main memory.
    pub parts: usize,
    /// Those of them that a loop brings one iteration ahead.
    pub carried: usize,
    /// Copies out of it.
    pub evictions: usize,
    /// Bytes of fast memory that the arena takes.
    pub height: Bytes,
    /// Bytes, weighed by time as [`FastMemoryOptions::time_weight`] says, that main memory moves for what could have
    /// been elsewhere.
    pub traffic: f64,
    /// What no assignment under this schedule can be below, in the same unit, however packed.
    pub lower_bound: f64,
}

/// Assigns fast memory to a scheduled module. Parameters and constants come to stand first in their computations, and
/// tuples right before the loops and branches that take them in; the order of everything else is kept. A target without fast memory leaves the module as it is.
///
/// # Errors
/// When the call graph is not one that memory can be planned for, or values that must share storage cannot.
pub fn assign(
    module: &mut Module,
    target: &Target,
    options: &FastMemoryOptions,
) -> Result<FastMemoryReport, PlanError> {
    let Some(fast) = target.fast_memory else { return Ok(FastMemoryReport::default()) };
    order_for_transfers(module);
    let facts = Facts::new(module, &Schedule::in_textual_order(module))?;
    let costs = Costs::new(module, &facts.graph, &facts.in_place, target);
    let durations = Durations::new(module, &facts.graph, &costs, target);
    let model = Model::new(module, &facts, &costs, target, options, &durations, None);
    let mut solver = Solver { module: &*module, facts: &facts, costs: &costs, target, fast, options, model };
    let plain = solver.solve(None)?.expect("there is no limit");
    let plain = solver.look_again(plain)?;
    let best = match options.objective {
        Objective::Traffic => plain,
        Objective::Footprint => solver.lower_footprint(plain)?,
    };
    let best = solver.keep_for_next_call(best)?;
    let facts = Facts::new(&best.module, &Schedule::in_textual_order(&best.module))?;
    // So far, it was enough that everything fits.
    let height = assign_space(&best.module, &facts, target, fast.space, None)?.height;
    *module = best.module;
    if best.report.parts > 0 {
        module.compact();
    }
    Ok(FastMemoryReport { height, ..best.report })
}

/// An assignment, carried out and packed.
struct Solution {
    module: Module,
    report: FastMemoryReport,
    choices: Vec<Choice>,
    /// Bytes of main memory that the program takes, if they can be packed without loss.
    total: Bytes,
    /// What a run of it costs.
    price: f64,
    /// Where in fast memory candidates are.
    places: Vec<Place>,
}

struct Solver<'a> {
    module: &'a Module,
    facts: &'a Facts,
    costs: &'a Costs,
    target: &'a Target,
    fast: FastMemory,
    options: &'a FastMemoryOptions,
    model: Model,
}

impl Solver<'_> {
    /// Looks again at what may be done, now that it is known how long operations take with what was assigned, how much
    /// time that leaves to transfers, and which arrays stay in main memory, so that parts may be brought. Gives the better of the two assignments, and leaves its model.
    fn look_again(&mut self, first: Solution) -> Result<Solution, PlanError> {
        let durations = self.durations(&first.module)?;
        let candidates = self.model.candidates.iter().zip(&first.choices);
        let fast = candidates.filter(|(_, choice)| choice.is_fast()).flat_map(|(c, _)| &c.values);
        let mut whole: EntitySet<ValueId> = EntitySet::new();
        whole.extend(fast.copied());
        let &mut Solver { module, facts, costs, target, options, .. } = self;
        let model = Model::new(module, facts, costs, target, options, &durations, Some(&whole));
        let model = std::mem::replace(&mut self.model, model);
        let second = self.solve(Some(first.price))?;
        if second.is_none() {
            self.model = model;
        }
        Ok(second.unwrap_or(first))
    }

    /// How long operations take in a module in which choices were carried out.
    fn durations(&self, module: &Module) -> Result<Durations, PlanError> {
        let graph = CallGraph::new(module)?;
        let costs = Costs::new(module, &graph, &InPlace::new(module), self.target);
        Ok(Durations::new(module, &graph, &costs, self.target))
    }

    /// What a run of a module moves, in bytes, and how long it takes, in the bytes that main memory could move
    /// meanwhile.
    fn price(&self, module: &Module, facts: &Facts) -> f64 {
        let costs = Costs::new(module, &facts.graph, &facts.in_place, self.target);
        let run = RunEstimate::new(module, &facts.graph, &costs, self.target);
        let per_byte = Machine::new(self.target).memory_seconds(MemorySpaceId::MAIN, 1.0);
        let time = if per_byte > 0.0 { run.seconds / per_byte } else { 0.0 };
        run.main_memory_bytes + self.options.time_weight * time
    }

    /// Assigns, carries out and packs. `None` when a run would cost as much as a limit, or more.
    fn solve(&self, limit: Option<f64>) -> Result<Option<Solution>, PlanError> {
        let (assignment, prices) = self.choose();
        self.settle(assignment, &prices, limit)
    }

    /// Carries out and packs. What the packing puts beyond the memory's end, or what is in its way, chooses anew, a few
    /// times; then everything has less room as long as packing takes more than there is. `None` when a run would cost
    /// as much as a limit, or more.
    fn settle(
        &self,
        mut assignment: Assignment<'_>,
        prices: &Prices,
        limit: Option<f64>,
    ) -> Result<Option<Solution>, PlanError> {
        let capacity = self.options.capacity;
        let mut room = capacity;
        for round in 0.. {
            let solution = self.carry_out(assignment.choices.clone(), prices.lower_bound)?;
            let height = solution.report.height.0;
            if limit.is_some_and(|limit| solution.price >= limit) {
                return Ok(None);
            }
            if height <= capacity || room == 0 {
                return Ok(Some(solution));
            }
            let is_mended = round < MOST_REPAIRS && assignment.repair(prices, solution.places);
            if !is_mended {
                room = room.saturating_sub((height - capacity).max(capacity / LEAST_RETREAT));
                assignment.shrink(prices, room);
            }
        }
        unreachable!("the room comes down to nothing")
    }

    /// Choices that together hold no more than there is at any moment, and the prices that led to them.
    fn choose(&self) -> (Assignment<'_>, Prices) {
        let (model, capacity) = (&self.model, self.options.capacity);
        let mut best = Assignment::empty(model, capacity);
        if self.options.selection == Selection::AsXla {
            best.fill_as_xla();
            return (best, Prices::find(model, capacity, 0.0, 0));
        }
        let everything = best.traffic();
        best.fill(&Prices::find(model, capacity, everything, 1));
        let prices = Prices::find(model, capacity, best.traffic(), self.options.price_rounds);
        let mut priced = Assignment::empty(model, capacity);
        priced.fill(&prices);
        if priced.traffic() <= best.traffic() {
            best = priced;
        }
        best.improve(&prices, self.options.search_steps);
        // Two results may have counted on the same operand's bytes.
        best.shrink(&prices, capacity);
        (best, prices)
    }

    fn carry_out(&self, choices: Vec<Choice>, lower_bound: f64) -> Result<Solution, PlanError> {
        let candidates = &self.model.candidates;
        let mut module = self.module.clone();
        let inserted = rewrite::rewrite(&mut module, self.facts, self.fast, candidates, &choices)?;
        let facts = Facts::new(&module, &Schedule::in_textual_order(&module))?;
        // The plan that is made in the end packs no worse than this.
        let SpacePlan { plan, height, total } =
            assign_space(&module, &facts, self.target, self.fast.space, Some(self.options.capacity))?;
        let report = FastMemoryReport {
            prefetches: inserted.prefetches,
            residents: choices.iter().filter(|c| matches!(c.mode, Mode::Resident { .. })).count(),
            parts: inserted.parts,
            carried: inserted.carried,
            evictions: inserted.evictions,
            height,
            traffic: candidates.iter().zip(&choices).map(|(c, choice)| choice.moved(c)).sum(),
            lower_bound,
        };
        let price = self.price(&module, &facts);
        let place = |(candidate, position): &(usize, Position)| {
            let slice = plan.slices.get(position)?;
            let value = facts.flow.find(position.instruction, &position.index)?;
            let (offset, end) = (slice.offset.0, slice.end().0);
            Some(Place { candidate: Some(*candidate), offset, end, range: facts.live.of(value) })
        };
        let mut places: Vec<Place> = inserted.placed.iter().filter_map(place).collect();
        for &instruction in plan.scratch.keys() {
            if let Some(slice) = plan.scratch_in(instruction, self.fast.space) {
                let start = facts.line.time(instruction);
                let range = LiveRange { start, end: start + 1 };
                places.push(Place { candidate: None, offset: slice.offset.0, end: slice.end().0, range });
            }
        }
        Ok(Solution { module, report, choices, total, price, places })
    }

    /// Lets parameters stay in fast memory from call to call, where nothing else has to leave for them.
    fn keep_for_next_call(&self, mut best: Solution) -> Result<Solution, PlanError> {
        let mut wishes = resident::wishes(self.module, self.facts, self.costs, &self.model, &best.choices);
        wishes.truncate(self.options.cross_program_prefetches.saturating_add(MOST_REFUSALS));
        for i in wishes {
            if best.report.residents >= self.options.cross_program_prefetches {
                break;
            }
            let choice = resident::choice(self.module, &self.model, i, best.report.residents);
            let mut assignment = Assignment::of(&self.model, self.options.capacity, &best.choices);
            if !assignment.try_instead(i, choice) {
                continue;
            }
            let next = self.carry_out(assignment.choices, best.report.lower_bound)?;
            if next.report.height.0 <= self.options.capacity && next.total <= best.total {
                best = next;
            }
        }
        Ok(best)
    }

    /// Puts a price on main memory where most of it is taken, again and again, and keeps what takes least.
    fn lower_footprint(&mut self, plain: Solution) -> Result<Solution, PlanError> {
        let storages = storages(self.module, self.facts, self.target, TakeOver::Any)?;
        let all = temp_load(self.facts, &storages).into_iter().map(|bytes| bytes.0).collect();
        let mut footprint = Footprint::new(all);
        let mut lowest = (footprint.peak(&self.model.candidates, &plain.choices), None);
        let mut choices = plain.choices.clone();
        for _ in 0..footprint::ROUNDS {
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
        let Some((choices, prices)) = lowest.1 else { return Ok(plain) };
        let assignment = Assignment::of(&self.model, self.options.capacity, &choices);
        let low = self.settle(assignment, &prices, None)?;
        Ok(low.filter(|low| low.total < plain.total).unwrap_or(plain))
    }
}

/// Parameters that may have no room before no more are asked.
const MOST_REFUSALS: usize = 8;

/// Attempts to mend a packing that is too high.
const MOST_REPAIRS: usize = 4;

/// The part of the capacity by which at least the next attempt takes less, so that there are not many.
const LEAST_RETREAT: u64 = 64;

/// Moves what takes no time to where it gives transfers most room: parameters and constants to the front, and tuples
/// that control flow takes in to right before it.
fn order_for_transfers(module: &mut Module) {
    let users = Users::new(module);
    for computation in module.computations.values_mut() {
        let instructions = &module.instructions;
        let is_free = |id: InstructionId| instructions[id].control_predecessors.is_empty();
        let is_given = |&id: &InstructionId| {
            matches!(instructions[id].op, Op::Parameter { .. } | Op::Constant(_)) && is_free(id)
        };
        let is_handed_over = |id: InstructionId| match users.of(id) {
            [user] => {
                instructions[id].op == Op::Tuple && is_free(id) && instructions[*user].op.runs_callees()
            }
            _ => false,
        };
        let old = std::mem::take(&mut computation.instructions);
        let (given, others): (Vec<_>, Vec<_>) = old.into_iter().partition(is_given);
        computation.instructions = given;
        for id in others {
            if instructions[id].op.runs_callees() {
                let mut tuples: Vec<InstructionId> = Vec::new();
                for &operand in instructions[id].operands.iter().filter(|&&o| is_handed_over(o)) {
                    if !tuples.contains(&operand) {
                        tuples.push(operand);
                    }
                }
                computation.instructions.extend(tuples);
            }
            if !is_handed_over(id) {
                computation.instructions.push(id);
            }
        }
    }
}
