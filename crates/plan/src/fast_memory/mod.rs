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
//! XLA's memory space assignment takes values one by one, the most promising first, and what is placed stays. Here
//! every instant of fast memory has a price (Lagrangian relaxation, `prices`); at given prices each value finds its
//! best way through its uses exactly (`choice`); prices show what is scarce, and bound what any assignment could do.
//! Choices are then made to fit (`search`), carried out (`rewrite`), and the arena of fast memory is packed like any
//! other; should it come out larger than the memory, what saves least goes.

mod choice;
mod idle;
mod model;
mod naked;
mod options;
mod prices;
mod rewrite;
mod room;
mod search;
mod sharing;

use memplan_analysis::{Costs, Facts};
use memplan_ir::{Module, Op, Schedule};
use memplan_memory::{Bytes, FastMemory, Target};

use crate::{AssignOptions, PlanError};
use idle::IdleTime;
use model::Model;
pub use naked::{NakedReport, naked};
pub use options::Options as FastMemoryOptions;
use prices::Prices;
use search::Assignment;

/// What was assigned.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FastMemoryReport {
    /// Copies into fast memory.
    pub prefetches: usize,
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

/// Assigns fast memory to a scheduled module. Parameters and constants come to stand first in their computations; the
/// order of everything else is kept. A target without fast memory leaves the module as it is.
///
/// # Errors
/// When the call graph is not one that memory can be planned for, or values that must share storage cannot.
pub fn assign(
    module: &mut Module,
    target: &Target,
    options: &FastMemoryOptions,
) -> Result<FastMemoryReport, PlanError> {
    let Some(fast) = target.fast_memory else { return Ok(FastMemoryReport::default()) };
    put_given_values_first(module);
    let facts = Facts::new(module, &Schedule::in_textual_order(module))?;
    let costs = Costs::new(module, &facts.graph, &facts.in_place, target);
    let idle = IdleTime::new(module, &facts, &costs, target, fast);
    let model = Model::new(module, &facts, &costs, target, options, &idle);
    let mut limit = options.capacity;
    loop {
        let mut assignment = Assignment::empty(&model, limit);
        let all = assignment.traffic();
        let no_prices = Prices::find(&model, limit, all, 1);
        assignment.fill(&no_prices);
        let prices = Prices::find(&model, limit, assignment.traffic(), options.price_rounds);
        let mut priced = Assignment::empty(&model, limit);
        priced.fill(&prices);
        if priced.traffic() <= assignment.traffic() {
            assignment = priced;
        }
        assignment.improve(&prices, options.search_steps);
        let mut rewritten = module.clone();
        let inserted =
            rewrite::rewrite(&mut rewritten, &facts, fast, &model.candidates, &assignment.choices)?;
        let height = height(&rewritten, target, fast)?;
        if height.0 <= options.capacity || limit == 0 {
            *module = rewritten;
            return Ok(FastMemoryReport {
                prefetches: inserted.prefetches,
                evictions: inserted.evictions,
                height,
                traffic: assignment.traffic(),
                lower_bound: prices.lower_bound,
            });
        }
        // What packing takes on top.
        limit = limit.saturating_sub((height.0 - options.capacity).max(options.capacity / 256));
    }
}

/// Bytes that the arena of fast memory takes.
fn height(module: &Module, target: &Target, fast: FastMemory) -> Result<Bytes, PlanError> {
    let facts = Facts::new(module, &Schedule::in_textual_order(module))?;
    let plan = crate::assign(module, &facts, target, &AssignOptions::default())?;
    let arena = plan.spaces.iter().find(|space| space.space == fast.space);
    Ok(arena.map_or(Bytes::ZERO, |arena| arena.temp))
}

/// Parameters and constants take no time, and transfers may start as soon as they are there.
fn put_given_values_first(module: &mut Module) {
    for computation in module.computations.values_mut() {
        let instructions = &module.instructions;
        let is_given = |id: &memplan_ir::InstructionId| {
            let instruction = &instructions[*id];
            matches!(instruction.op, Op::Parameter { .. } | Op::Constant(_))
                && instruction.control_predecessors.is_empty()
        };
        let (given, mut others): (Vec<_>, Vec<_>) =
            std::mem::take(&mut computation.instructions).into_iter().partition(is_given);
        computation.instructions = given;
        computation.instructions.append(&mut others);
    }
}
